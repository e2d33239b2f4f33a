//! # Warmth: intervals on their way into memory after an opening
//!
//! An opening reads a checkpoint and no data. Readers then find every interval missing, and each pays for its own. So when
//! some were missed, and nothing else is due, the store's background reads the others, in the order of the space, as long as
//! the budget has room without evicting anything. A keyspace that nobody reads stays where it is.
//!
//! ## Threads
//!
//! Readers count what they missed. The committer (`work`) walks, under the table's lock.

use sheaf_base::error::Result;
use sheaf_base::sync::atomic::{AtomicU64, Ordering};
use sheaf_base::sync::epoch::Guard;

use crate::index::{Shelf, State};

/// Intervals that readers must have missed.
const WANTED: u64 = 64;
/// Bytes of the space that a step reads.
const STEP: u64 = 1 << 20;
/// Hundredths of the budget above which nothing is warmed.
const ROOM: u64 = 75;
/// A walk that has not begun, and one that has ended.
const COLD: u64 = u64::MAX - 1;
const WARM: u64 = u64::MAX;

/// How far the walk has come.
#[derive(Debug)]
pub(crate) struct Warmth {
    missed: AtomicU64,
    /// Where it goes on.
    at: AtomicU64,
    warmed: AtomicU64,
}

impl Warmth {
    /// Of a keyspace whose intervals are in memory because they were made there.
    pub(crate) fn new() -> Warmth {
        Warmth { missed: AtomicU64::new(0), at: AtomicU64::new(WARM), warmed: AtomicU64::new(0) }
    }

    /// Intervals were found in an image, or in the space.
    pub(crate) fn is_cold(&self) {
        self.missed.store(0, Ordering::Relaxed);
        self.at.store(COLD, Ordering::Relaxed);
    }

    /// A reader missed an interval.
    pub(crate) fn note_miss(&self) {
        if self.at.load(Ordering::Relaxed) == COLD && self.missed.fetch_add(1, Ordering::Relaxed) >= WANTED {
            let _ = self.at.compare_exchange(COLD, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Intervals read ahead of readers so far.
    pub(crate) fn warmed(&self) -> u64 {
        self.warmed.load(Ordering::Relaxed)
    }

    /// A step. True if there is more.
    pub(crate) fn step(&self, state: &State, shelf: &Shelf, guard: &Guard) -> Result<bool> {
        let from = self.at.load(Ordering::Relaxed);
        if from >= COLD {
            return Ok(false);
        }
        let (index, memory) = (&state.index, &shelf.ground.memory);
        let end = from.saturating_add(STEP);
        if let Some(view) = &index.view {
            view.will_need(from, STEP);
        }
        let mut at = from;
        for entry in index.tree.range(from).take_while(|entry| entry.start < end) {
            at = entry.start + entry.len;
            if shelf.slots.get(entry.item.slot).is_cached() {
                continue;
            }
            if memory.total() >= memory.budget() / 100 * ROOM {
                self.at.store(WARM, Ordering::Relaxed);
                return Ok(false);
            }
            match index.load(&entry, shelf, guard) {
                Ok(_) => self.warmed.fetch_add(1, Ordering::Relaxed),
                // Whoever reads it is told.
                Err(error) if error.is_corrupt() => continue,
                Err(error) => return Err(error),
            };
        }
        let is_over = at >= index.tree.len();
        self.at.store(if is_over { WARM } else { at }, Ordering::Relaxed);
        Ok(!is_over)
    }
}
