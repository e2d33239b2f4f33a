//! # Emulated persistent memory: loses what was not flushed and fenced
//!
//! Two copies of the bytes: what programs see, and what is durable. A flush takes a copy of a line
//! on its way; the fence makes that durable. Whatever else differs between the two is at the power
//! cut's mercy, eight bytes at a time: the processor may have evicted a line at any moment, in any
//! state.

use std::collections::{BTreeMap, BTreeSet};

use sheaf_base::sync::Mutex;

use super::{FlushCounts, LINE_BYTES, PersistentMemory, line_range};

/// What becomes of bytes that were not made durable when the power goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnfencedBytes {
    /// All are lost.
    Lost,
    /// All were evicted in time.
    Kept,
    /// Each eight of them one or the other, as the seed has it.
    Torn(u64),
}

#[derive(Debug, Default)]
struct EmulatedBytes {
    visible: Vec<u8>,
    durable: Vec<u8>,
    /// Lines that differ, or may.
    dirty: BTreeSet<usize>,
    /// Lines as they were when they were flushed, until the fence.
    flushed: BTreeMap<usize, [u8; LINE_BYTES]>,
    told: FlushCounts,
}

/// See the module.
#[derive(Debug)]
pub struct EmulatedPmem(Mutex<EmulatedBytes>);

impl EmulatedPmem {
    /// `len` bytes of zeros, durable.
    #[must_use]
    pub fn new(len: usize) -> EmulatedPmem {
        let bytes =
            EmulatedBytes { visible: vec![0; len], durable: vec![0; len], ..EmulatedBytes::default() };
        EmulatedPmem(Mutex::new(bytes))
    }

    /// Durable bytes.
    #[must_use]
    pub fn with_bytes(bytes: Vec<u8>) -> EmulatedPmem {
        EmulatedPmem(Mutex::new(EmulatedBytes {
            durable: bytes.clone(),
            visible: bytes,
            ..EmulatedBytes::default()
        }))
    }

    /// More zeros behind, or fewer bytes; durable at once, as a file system sees to.
    pub fn resize(&self, len: usize) {
        let mut bytes = self.0.lock();
        bytes.visible.resize(len, 0);
        bytes.durable.resize(len, 0);
        let end = len.div_ceil(LINE_BYTES);
        bytes.dirty.retain(|line| *line < end);
        bytes.flushed.retain(|line, _| *line < end);
    }

    /// What is there after the power went.
    #[must_use]
    pub fn after_power_cut(&self, fate: UnfencedBytes) -> Vec<u8> {
        let bytes = self.0.lock();
        let mut left = bytes.durable.clone();
        let mut state = match fate {
            UnfencedBytes::Torn(seed) => seed | 1,
            UnfencedBytes::Lost | UnfencedBytes::Kept => 1,
        };
        for line in &bytes.dirty {
            let end = (line * LINE_BYTES + LINE_BYTES).min(left.len());
            for at in (line * LINE_BYTES..end).step_by(8) {
                state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
                let keep = match fate {
                    UnfencedBytes::Lost => false,
                    UnfencedBytes::Kept => true,
                    UnfencedBytes::Torn(_) => state >> 63 == 1,
                };
                if keep {
                    let word = at..(at + 8).min(end);
                    left[word.clone()].copy_from_slice(&bytes.visible[word]);
                }
            }
        }
        left
    }
}

impl PersistentMemory for EmulatedPmem {
    fn len(&self) -> usize {
        self.0.lock().visible.len()
    }

    fn load(&self, at: usize, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.0.lock().visible[at..at + bytes.len()]);
    }

    fn store(&self, at: usize, bytes: &[u8]) {
        let mut own = self.0.lock();
        own.visible[at..at + bytes.len()].copy_from_slice(bytes);
        own.dirty.extend(line_range(at, bytes.len()));
    }

    fn flush(&self, at: usize, len: usize) {
        let mut own = self.0.lock();
        for line in line_range(at, len) {
            own.told.lines += 1;
            let mut copy = [0; LINE_BYTES];
            let end = (line * LINE_BYTES + LINE_BYTES).min(own.visible.len());
            copy[..end - line * LINE_BYTES].copy_from_slice(&own.visible[line * LINE_BYTES..end]);
            own.flushed.insert(line, copy);
        }
    }

    fn fence(&self) {
        let mut own = self.0.lock();
        let flushed = std::mem::take(&mut own.flushed);
        own.told.fences += u64::from(!flushed.is_empty());
        for (line, copy) in flushed {
            let end = (line * LINE_BYTES + LINE_BYTES).min(own.durable.len());
            let range = line * LINE_BYTES..end;
            own.durable[range.clone()].copy_from_slice(&copy[..end - line * LINE_BYTES]);
            if own.durable[range.clone()] == own.visible[range] {
                own.dirty.remove(&line);
            }
        }
    }

    fn flush_counts(&self) -> FlushCounts {
        self.0.lock().told
    }
}
