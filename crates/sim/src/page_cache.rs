//! # Page cache: the blocks of files that are in memory
//!
//! A disk has one after its page cache was dropped ([`SimDisk::drop_page_cache`]). The content is
//! that of the volume; this module knows only which blocks of it a read finds in memory.
//!
//! [`SimDisk::drop_page_cache`]: super::SimDisk::drop_page_cache

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;

use super::volume::Ino;
use sheaf_platform::disk::PAGE;
use sheaf_platform::disk::cached_reads;

/// Blocks in memory, and the number of reads that needed the device.
#[derive(Debug, Default)]
pub(super) struct PageCache {
    blocks: BTreeSet<(Ino, u64)>,
    pub(super) device_reads: u64,
}

fn blocks_of(offset: u64, len: usize) -> Range<u64> {
    let end = offset.saturating_add(len as u64);
    offset / PAGE as u64..end.div_ceil(PAGE as u64)
}

impl PageCache {
    /// Adds the blocks of a range that was written or read.
    pub(super) fn insert(&mut self, ino: Ino, offset: u64, len: usize) {
        self.blocks.extend(blocks_of(offset, len).map(|block| (ino, block)));
    }

    /// Reads a range, from the device unless all of its blocks are in memory.
    ///
    /// # Errors
    ///
    /// Returns an error if a block is missing and the thread is in the cached mode.
    pub(super) fn read(&mut self, ino: Ino, offset: u64, len: usize) -> io::Result<()> {
        if blocks_of(offset, len).all(|block| self.blocks.contains(&(ino, block))) {
            return Ok(());
        }
        cached_reads::check_may_wait()?;
        self.device_reads += 1;
        self.insert(ino, offset, len);
        Ok(())
    }
}
