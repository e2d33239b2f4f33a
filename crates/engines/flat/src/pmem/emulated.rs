//! # Emulated persistent memory: loses what was not flushed and fenced
//!
//! Two copies of the bytes: what programs see, and what is durable. A flush takes a copy of a line on its way; the
//! fence makes that durable. Whatever else differs between the two is at the power cut's mercy, eight bytes at a time:
//! the processor may have evicted a line at any moment, in any state.

use std::collections::{BTreeMap, BTreeSet};

use sheaf_base::sync::Mutex;

use super::{LINE, Lines, Told, lines};

/// What becomes of bytes that were not made durable when the power goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// All are lost.
    Lost,
    /// All were evicted in time.
    Kept,
    /// Each eight of them one or the other, as the seed has it.
    Torn(u64),
}

#[derive(Debug, Default)]
struct Bytes {
    seen: Vec<u8>,
    durable: Vec<u8>,
    /// Lines that differ, or may.
    dirty: BTreeSet<usize>,
    /// Lines as they were when they were flushed, until the fence.
    flushed: BTreeMap<usize, [u8; LINE]>,
    told: Told,
}

/// See the module.
#[derive(Debug)]
pub struct Emulated(Mutex<Bytes>);

impl Emulated {
    /// `len` bytes of zeros, durable.
    #[must_use]
    pub fn new(len: usize) -> Emulated {
        let bytes = Bytes { seen: vec![0; len], durable: vec![0; len], ..Bytes::default() };
        Emulated(Mutex::new(bytes))
    }

    /// Durable bytes.
    #[must_use]
    pub fn holding(bytes: Vec<u8>) -> Emulated {
        Emulated(Mutex::new(Bytes { durable: bytes.clone(), seen: bytes, ..Bytes::default() }))
    }

    /// More zeros behind, or fewer bytes; durable at once, as a file system sees to.
    pub fn resize(&self, len: usize) {
        let mut bytes = self.0.lock();
        bytes.seen.resize(len, 0);
        bytes.durable.resize(len, 0);
        let end = len.div_ceil(LINE);
        bytes.dirty.retain(|line| *line < end);
        bytes.flushed.retain(|line, _| *line < end);
    }

    /// What is there after the power went.
    #[must_use]
    pub fn after_power_cut(&self, fate: Fate) -> Vec<u8> {
        let bytes = self.0.lock();
        let mut left = bytes.durable.clone();
        let mut state = match fate {
            Fate::Torn(seed) => seed | 1,
            Fate::Lost | Fate::Kept => 1,
        };
        for line in &bytes.dirty {
            let end = (line * LINE + LINE).min(left.len());
            for at in (line * LINE..end).step_by(8) {
                state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
                let keep = match fate {
                    Fate::Lost => false,
                    Fate::Kept => true,
                    Fate::Torn(_) => state >> 63 == 1,
                };
                if keep {
                    let word = at..(at + 8).min(end);
                    left[word.clone()].copy_from_slice(&bytes.seen[word]);
                }
            }
        }
        left
    }
}

impl Lines for Emulated {
    fn len(&self) -> usize {
        self.0.lock().seen.len()
    }

    fn load(&self, at: usize, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.0.lock().seen[at..at + bytes.len()]);
    }

    fn store(&self, at: usize, bytes: &[u8]) {
        let mut own = self.0.lock();
        own.seen[at..at + bytes.len()].copy_from_slice(bytes);
        own.dirty.extend(lines(at, bytes.len()));
    }

    fn flush(&self, at: usize, len: usize) {
        let mut own = self.0.lock();
        for line in lines(at, len) {
            own.told.lines += 1;
            let mut copy = [0; LINE];
            let end = (line * LINE + LINE).min(own.seen.len());
            copy[..end - line * LINE].copy_from_slice(&own.seen[line * LINE..end]);
            own.flushed.insert(line, copy);
        }
    }

    fn fence(&self) {
        let mut own = self.0.lock();
        let flushed = std::mem::take(&mut own.flushed);
        own.told.fences += u64::from(!flushed.is_empty());
        for (line, copy) in flushed {
            let end = (line * LINE + LINE).min(own.durable.len());
            let range = line * LINE..end;
            own.durable[range.clone()].copy_from_slice(&copy[..end - line * LINE]);
            if own.durable[range.clone()] == own.seen[range] {
                own.dirty.remove(&line);
            }
        }
    }

    fn told(&self) -> Told {
        self.0.lock().told
    }
}
