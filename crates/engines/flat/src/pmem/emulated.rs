//! # Emulated persistent memory: loses stores that were not flushed and fenced
//!
//! Keeps two copies of the bytes: the visible ones and the durable ones. A flush records a copy of
//! a line; the fence makes that copy durable. All other differences may survive a power cut or not,
//! in units of eight bytes: the processor may have evicted a line at any time, in any state.
//!
//! A store to a page without a block, where a real mapping raises SIGBUS, panics.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;

use sheaf_platform::disk::persistent::{LINE_BYTES, PersistentMemory};
use sheaf_platform::sync::Mutex;

/// Bytes of a line.
const LINE: usize = 64;
const _: () = assert!(LINE as u64 == LINE_BYTES);
/// Bytes of a block of the file system.
const BLOCK: usize = 4096;

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
    flushed: BTreeMap<usize, [u8; LINE]>,
    /// Blocks that the file has.
    blocks: BTreeSet<usize>,
}

impl EmulatedBytes {
    fn store(&mut self, at: usize, bytes: &[u8]) {
        self.visible[at..at + bytes.len()].copy_from_slice(bytes);
        self.dirty.extend(at / LINE..(at + bytes.len()).div_ceil(LINE));
    }

    fn flush(&mut self, line: usize) {
        let mut copy = [0; LINE];
        let end = (line * LINE + LINE).min(self.visible.len());
        copy[..end - line * LINE].copy_from_slice(&self.visible[line * LINE..end]);
        self.flushed.insert(line, copy);
    }

    fn fence(&mut self) {
        for (line, copy) in std::mem::take(&mut self.flushed) {
            let range = line * LINE..(line * LINE + LINE).min(self.durable.len());
            self.durable[range.clone()].copy_from_slice(&copy[..range.len()]);
            if self.durable[range.clone()] == self.visible[range] {
                self.dirty.remove(&line);
            }
        }
    }
}

/// Emulated memory of a file.
#[derive(Debug, Default)]
pub struct EmulatedPmem(Mutex<EmulatedBytes>);

impl EmulatedPmem {
    /// Returns memory with `bytes`, which are durable and have blocks.
    #[must_use]
    pub fn with_bytes(bytes: Vec<u8>) -> EmulatedPmem {
        let blocks = (0..bytes.len().div_ceil(BLOCK)).collect();
        let durable = bytes.clone();
        EmulatedPmem(Mutex::new(EmulatedBytes {
            durable,
            visible: bytes,
            blocks,
            ..EmulatedBytes::default()
        }))
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.lock().visible.len()
    }

    /// Returns whether the length is zero.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes out. The range must be within the memory.
    pub fn load(&self, at: usize, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.0.lock().visible[at..at + bytes.len()]);
    }

    /// Appends zeros without blocks, or removes bytes at the end. Durable at once: the disk keeps
    /// the length.
    pub fn resize(&self, len: usize) {
        let mut bytes = self.0.lock();
        bytes.visible.resize(len, 0);
        bytes.durable.resize(len, 0);
        let end = len.div_ceil(LINE);
        bytes.dirty.retain(|line| *line < end);
        bytes.flushed.retain(|line, _| *line < end);
        bytes.blocks.retain(|block| *block < len.div_ceil(BLOCK));
    }

    /// Gives the bytes of `range` blocks.
    pub fn allocate(&self, range: Range<usize>) {
        self.0.lock().blocks.extend(range.start / BLOCK..range.end.div_ceil(BLOCK));
    }

    /// Frees the blocks of `range`, which then reads as zeros.
    pub fn punch_hole(&self, range: Range<usize>) {
        let mut bytes = self.0.lock();
        let zeros = vec![0; range.len()];
        bytes.store(range.start, &zeros);
        let whole = range.start.div_ceil(BLOCK)..range.end / BLOCK;
        bytes.blocks.retain(|block| !whole.contains(block));
    }

    /// Writes through the file system: allocates blocks where there are none. Not durable before
    /// [`EmulatedPmem::sync`].
    pub fn write(&self, at: usize, bytes: &[u8]) {
        self.allocate(at..at + bytes.len());
        self.0.lock().store(at, bytes);
    }

    /// Makes all bytes durable, as the sync of a file does.
    pub fn sync(&self) {
        let mut bytes = self.0.lock();
        for line in bytes.dirty.clone() {
            bytes.flush(line);
        }
        bytes.fence();
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
            let end = (line * LINE + LINE).min(left.len());
            for at in (line * LINE..end).step_by(8) {
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

/// Returns the offset in memory; one beyond it is no offset of an emulated file.
pub(super) fn offset(at: u64) -> usize {
    usize::try_from(at).unwrap_or(usize::MAX)
}

impl PersistentMemory for EmulatedPmem {
    // SAFETY: every call is sound: a lock protects the bytes, and the bounds are checked.
    unsafe fn store(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let (mut own, at) = (self.0.lock(), offset(at));
        let end = at + bytes.len();
        let has_block = |block: usize| own.blocks.contains(&block);
        assert!(
            end <= own.visible.len() && (at / BLOCK..end.div_ceil(BLOCK)).all(has_block),
            "pmem::disk (I1): a store of {} bytes at {at} raises no SIGBUS",
            bytes.len()
        );
        own.store(at, bytes);
        Ok(())
    }

    fn flush(&self, range: Range<u64>) -> io::Result<()> {
        let mut own = self.0.lock();
        let end = offset(range.end);
        assert!(end <= own.visible.len(), "pmem::disk (I4): a flush raises no SIGBUS");
        (offset(range.start) / LINE..end.div_ceil(LINE)).for_each(|line| own.flush(line));
        Ok(())
    }

    fn fence(&self) -> io::Result<()> {
        self.0.lock().fence();
        Ok(())
    }
}
