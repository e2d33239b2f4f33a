//! # Ground: what an engine may use
//!
//! Services of the base that engines read from. No paths, no syncs, no threads.

use std::sync::Arc;

use crate::blob::Blobs;
use crate::memory::Memory;
use crate::segment::{SLOT_COUNT, Segments};
use crate::sync::Mutex;
use crate::types::Seq;

/// Segments there can be at a time in tiny geometry, which is opened a million times.
const TINY_SLOTS: usize = 1 << 12;

/// The services.
#[derive(Debug)]
pub struct Ground {
    /// From addresses to frames.
    pub segments: Segments,
    /// Values beside the logs.
    pub blobs: Arc<Blobs>,
    /// The budget.
    pub memory: Memory,
    /// Secret of the keyed hashes.
    pub hash_key: [u64; 2],
    /// Directory and bucket sizes small enough that everything happens within 200 operations.
    pub tiny: bool,
    dead_blobs: Mutex<Vec<(Seq, u64)>>,
}

impl Ground {
    /// The services of one open database.
    #[must_use]
    pub fn new(blobs: Arc<Blobs>, budget: u64, hash_key: u128, tiny: bool) -> Ground {
        let key = hash_key.to_le_bytes();
        Ground {
            segments: Segments::with_slots(if tiny { TINY_SLOTS } else { SLOT_COUNT }),
            blobs,
            memory: Memory::new(budget),
            hash_key: [crate::frame::u64_at(&key, 0), crate::frame::u64_at(&key, 8)],
            tiny,
            dead_blobs: Mutex::default(),
        }
    }

    /// Blob `id` was superseded by commit `seq` and no view needs it: it goes when that is durable.
    pub fn blob_died(&self, seq: Seq, id: u64) {
        self.dead_blobs.lock().push((seq, id));
    }

    /// Blobs superseded at or before `durable`.
    pub fn take_dead_blobs(&self, durable: Seq) -> Vec<u64> {
        let mut dead = self.dead_blobs.lock();
        let mut gone = Vec::new();
        dead.retain(|(seq, id)| {
            let stays = *seq > durable;
            if !stays {
                gone.push(*id);
            }
            stays
        });
        gone
    }
}
