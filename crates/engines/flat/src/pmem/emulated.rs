//! # Emulated persistent memory: loses stores that were not flushed and fenced
//!
//! Keeps two copies of the bytes: the visible ones and the durable ones. A flush records a copy of
//! a line; the fence makes that copy durable. All other differences may survive a power cut or not,
//! in units of eight bytes: the processor may have evicted a line at any time, in any state.

use std::collections::{BTreeMap, BTreeSet};

use sheaf_platform::sync::Mutex;

use super::{FlushCounts, LINE_BYTES, PersistentMemory, line_range};

/// Effect of a power cut on bytes that were not made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnfencedBytes {
    /// All of them are lost.
    Lost,
    /// All of them were evicted before, and are kept.
    Kept,
    /// Each group of eight bytes is lost or kept, depending on the seed.
    Torn(u64),
}

#[derive(Debug, Default)]
struct EmulatedBytes {
    visible: Vec<u8>,
    durable: Vec<u8>,
    /// Lines with visible bytes that may differ from the durable ones.
    dirty: BTreeSet<usize>,
    /// Content of lines when they were flushed, until the fence.
    flushed: BTreeMap<usize, [u8; LINE_BYTES]>,
    told: FlushCounts,
}

/// Emulated persistent memory.
#[derive(Debug)]
pub struct EmulatedPmem(Mutex<EmulatedBytes>);

impl EmulatedPmem {
    /// Returns memory with `len` zeros, which are durable.
    #[must_use]
    pub fn new(len: usize) -> EmulatedPmem {
        let bytes =
            EmulatedBytes { visible: vec![0; len], durable: vec![0; len], ..EmulatedBytes::default() };
        EmulatedPmem(Mutex::new(bytes))
    }

    /// Returns memory with `bytes`, which are durable.
    #[must_use]
    pub fn with_bytes(bytes: Vec<u8>) -> EmulatedPmem {
        EmulatedPmem(Mutex::new(EmulatedBytes {
            durable: bytes.clone(),
            visible: bytes,
            ..EmulatedBytes::default()
        }))
    }

    /// Appends zeros, or removes bytes at the end. Durable at once, as on a file system.
    pub fn resize(&self, len: usize) {
        let mut bytes = self.0.lock();
        bytes.visible.resize(len, 0);
        bytes.durable.resize(len, 0);
        let end = len.div_ceil(LINE_BYTES);
        bytes.dirty.retain(|line| *line < end);
        bytes.flushed.retain(|line, _| *line < end);
    }

    /// Returns the content after a power cut.
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
