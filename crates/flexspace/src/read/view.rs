//! # Views: reading a state
//!
//! Readers take no lock and never wait. The nodes of a version, and the segments that it
//! references, do not change while it is held.

use std::cell::Cell;
use std::io;
use std::sync::Arc;

use sheaf_platform::error::{Error, Result};

use crate::extent::{BLOCK_HEADER, Extent, footprint};
use crate::shared::SpaceVersion;
use crate::tree::{TreeEntry, TreeItem, TreeRange};

/// Bytes that a verification requests from the device at a time.
const VERIFY_READ_AHEAD: u64 = 1 << 20;
/// Entries for which pages are prefetched at a time.
const PREFETCH_ENTRIES: usize = 8;

/// Bytes of an extent, from its first byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtentBytes {
    /// Start of the extent in the space.
    pub start: u64,
    /// Length of the extent.
    pub len: u64,
    /// True for a hole.
    pub is_hole: bool,
    /// First bytes of the extent, up to the requested maximum.
    pub bytes: Vec<u8>,
}

thread_local! {
    /// End of this thread's last read.
    static LAST_READ_END: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// Returns true if a read of `count` bytes at `at` continues this thread's last read. It may have
/// been in another space: the result only guides prefetching.
#[inline]
fn is_sequential(at: u64, count: usize) -> bool {
    LAST_READ_END.replace(at + count as u64) == at
}

impl SpaceVersion {
    pub(crate) fn read(&self, at: u64, buf: &mut [u8]) -> Result<usize> {
        let left = usize::try_from(self.tree.len().saturating_sub(at)).unwrap_or(usize::MAX);
        let count = left.min(buf.len());
        let mut rest = &mut buf[..count];
        if count == 0 {
            return Ok(0);
        }
        let is_run = is_sequential(at, count);
        let wanted = if is_run { u64::MAX } else { at + count as u64 };
        let mut from = at;
        let mut entries = self.tree.range(at);
        while let Some(entry) = entries.next() {
            let skip = from - entry.start;
            let now = usize::try_from(entry.len - skip).unwrap_or(usize::MAX).min(rest.len());
            if !is_run && from == at {
                // Prefetches all cache lines at once. Otherwise the checksum waits for each line.
                self.data_files.prefetch(entry.item.suffix(skip), entry.len - skip);
            }
            if skip == 0 && (is_run || now < rest.len()) {
                self.prefetch(&entry, &entries, wanted);
            }
            let (part, later) = rest.split_at_mut(now);
            self.data_files.read(entry.item, skip, part)?;
            rest = later;
            from += now as u64;
            if rest.is_empty() {
                break;
            }
        }
        Ok(count)
    }

    /// Prefetches the data that is read after `entry`. `behind` walks the following entries, up to
    /// byte `end`. Prefetches the cache lines of the next entry and, once for eight entries, the
    /// pages of eight. A TLB miss stalls the processor even in a prefetch. Several misses in a row
    /// overlap.
    #[inline]
    fn prefetch(&self, entry: &TreeEntry<Extent>, behind: &TreeRange<'_, Extent>, end: u64) {
        let is_turn = behind.passed_entries() % PREFETCH_ENTRIES == 1;
        let mut behind = behind.clone().take_while(|later| later.start < end);
        let Some(next) = behind.next().filter(|next| !self.data_files.is_adjacent(entry, next)) else {
            return;
        };
        if is_turn {
            behind
                .take(PREFETCH_ENTRIES)
                .for_each(|later| self.data_files.prefetch_pages(later.item, later.len));
        }
        self.data_files.prefetch(next.item, next.len);
    }

    /// Requests a range from the device, with all of its extents in parallel.
    pub(crate) fn will_need(&self, at: u64, len: u64) {
        let end = at.saturating_add(len);
        let entries = self.tree.range(at).take_while(|entry| entry.start < end);
        self.data_files.will_need(entries.map(|entry| {
            let skip = at.saturating_sub(entry.start);
            (entry.item, skip, (entry.len - skip).min(end - entry.start - skip))
        }));
    }

    pub(crate) fn peek(&self, at: u64, buf: &mut [u8]) -> usize {
        let Some(entry) = self.tree.get(at) else { return 0 };
        let skip = at - entry.start;
        let count = usize::try_from(entry.len - skip).unwrap_or(usize::MAX).min(buf.len());
        self.data_files.peek(entry.item, skip, &mut buf[..count])
    }

    pub(crate) fn read_extent(&self, at: u64, max: usize) -> Result<Option<ExtentBytes>> {
        let Some(TreeEntry { start, len, item }) = self.tree.get(at) else { return Ok(None) };
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX).min(max)];
        self.data_files.read(item, 0, &mut bytes)?;
        Ok(Some(ExtentBytes { start, len, is_hole: item.is_hole(), bytes }))
    }

    /// Verifies the checksums of an extent.
    fn verify(&self, extent: Extent, len: u64) -> Result<()> {
        let piece = self.data_files.geometry.checksum_block;
        if extent.is_hole() {
            return Ok(());
        }
        for number in extent.skip() / piece..(extent.skip() + len).div_ceil(piece) {
            self.data_files.with_block(extent, number, |_, _, _| Ok(()))?;
        }
        Ok(())
    }
}

/// A state of a space; see [`crate::FlexSpace::view`].
#[derive(Clone, Debug)]
pub struct SpaceView {
    version: Arc<SpaceVersion>,
}

impl SpaceView {
    pub(crate) fn new(version: Arc<SpaceVersion>) -> SpaceView {
        SpaceView { version }
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.version.tree.len()
    }

    /// Returns true if the state contains no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of operations up to this state since the space was created.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.version.tree.version()
    }

    /// Returns the number last set by [`crate::Edit::mark`].
    #[must_use]
    pub fn mark(&self) -> u64 {
        self.version.mark
    }

    /// Like [`crate::FlexSpace::read`], on this state.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::FlexSpace::read`].
    pub fn read(&self, at: u64, buf: &mut [u8]) -> Result<usize> {
        self.version.read(at, buf)
    }

    /// Copies bytes from `at` into `buf` *without verifying them*. Returns the number of bytes. It
    /// stops at the end of the extent, and earlier if the bytes are not readable without a checked
    /// read. The caller must verify the bytes with a checksum of its own, and use a checked read if
    /// that fails. Reads no other bytes of the extent.
    #[must_use]
    pub fn peek(&self, at: u64, buf: &mut [u8]) -> usize {
        self.version.peek(at, buf)
    }

    /// Announces that a range will be read soon. Requests missing bytes from the device in parallel
    /// and does not wait. Makes a system call for each contiguous part on disk, and is therefore
    /// useful only if bytes are missing in memory.
    pub fn will_need(&self, at: u64, len: u64) {
        self.version.will_need(at, len);
    }

    /// Returns the extent that contains byte `at`: its start, its length, and up to `max` bytes
    /// from its start. Returns `None` beyond the end. Bytes inserted or written in one call start
    /// an extent, unless they were written directly behind the bytes of the call before and extend
    /// their extent. The start of an extent is therefore the start of a call or a part of a longer
    /// one, and a reader that lost its position finds a boundary again.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`SpaceView::read`].
    pub fn read_extent(&self, at: u64, max: usize) -> Result<Option<ExtentBytes>> {
        self.version.read_extent(at, max)
    }

    /// Returns true if the bytes that were written together with the byte at `at` may continue in
    /// the next extent. Extents have a maximum length, and end with their segment.
    #[must_use]
    pub fn may_continue(&self, at: u64) -> bool {
        let g = &self.version.data_files.geometry;
        self.version.tree.get(at).is_some_and(|entry| {
            let len = entry.item.skip() + entry.len;
            let end = entry.item.chunk() % g.segment + footprint(len, g.checksum_block);
            !entry.item.is_hole()
                && (len >= g.max_extent || end + BLOCK_HEADER + g.checksum_block > g.segment)
        })
    }

    /// Returns the number of extents and holes in the range.
    #[must_use]
    pub fn fragments(&self, at: u64, len: u64) -> usize {
        let end = at.saturating_add(len);
        self.version.tree.range(at).take_while(|entry| entry.start < end).count()
    }

    /// Reads every byte. Calls `report` with each damaged extent.
    ///
    /// # Errors
    ///
    /// Returns errors of reading other than damage. Damage is only reported.
    pub fn verify(&self, mut report: impl FnMut(Error)) -> Result<()> {
        self.verify_steps(&mut report, &mut |_| Ok(()))
    }

    /// Like [`SpaceView::verify`]. Calls `step` with the bytes of each extent, and stops at its
    /// first error.
    pub(crate) fn verify_steps(
        &self,
        report: &mut dyn FnMut(Error),
        step: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        if let Err(what) = self.version.tree.check() {
            report(Error::InvalidArgument { argument: "index", reason: what });
        }
        let mut ahead = 0;
        for entry in self.version.tree.range(0) {
            if entry.start >= ahead {
                self.version.will_need(entry.start, VERIFY_READ_AHEAD);
                ahead = entry.start + VERIFY_READ_AHEAD;
            }
            step(entry.len)?;
            match self.version.verify(entry.item, entry.len) {
                Err(error) if error.is_corrupt() => report(error),
                other => other?,
            }
        }
        Ok(())
    }

    /// Returns a reader positioned at the start.
    #[must_use]
    pub fn reader(&self) -> ViewReader {
        ViewReader { view: self.clone(), at: 0 }
    }
}

/// Reader of a view with the traits of a file.
#[derive(Clone, Debug)]
pub struct ViewReader {
    view: SpaceView,
    at: u64,
}

impl io::Read for ViewReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.view.read(self.at, buf).map_err(io::Error::other)?;
        self.at += count as u64;
        Ok(count)
    }
}

impl io::Seek for ViewReader {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        self.at = seek(self.at, self.view.len(), to)?;
        Ok(self.at)
    }
}

/// Returns the new position of a cursor at `at` in a space of `len` bytes.
pub(crate) fn seek(at: u64, len: u64, to: io::SeekFrom) -> io::Result<u64> {
    let place = match to {
        io::SeekFrom::Start(place) => Some(place),
        io::SeekFrom::Current(by) => at.checked_add_signed(by),
        io::SeekFrom::End(by) => len.checked_add_signed(by),
    };
    place.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "before the start"))
}
