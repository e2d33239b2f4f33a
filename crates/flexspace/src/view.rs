//! # View: reading a state
//!
//! No lock and no wait: a version's nodes and the segments it names stay as they are while it is
//! held.

use std::cell::Cell;
use std::io;
use std::sync::Arc;

use sheaf_base::error::{Error, Result};

use crate::extent::{BLOCK_HEADER, Extent, footprint};
use crate::shared::SpaceVersion;
use crate::tree::{TreeEntry, TreeItem, TreeRange};

/// Bytes that a verification asks for at a time.
const VERIFY_READ_AHEAD: u64 = 1 << 20;
/// Entries whose pages are asked for at a time.
const PREFETCH_ENTRIES: usize = 8;

/// The bytes of an extent, from its first one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtentBytes {
    /// Where the extent starts in the space.
    pub start: u64,
    /// How long it is.
    pub len: u64,
    /// Whether it is a hole.
    pub is_hole: bool,
    /// Its first bytes, as many as were asked for.
    pub bytes: Vec<u8>,
}

thread_local! {
    /// Where this thread's last read ended.
    static LAST_READ_END: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// Whether a read of `count` bytes at `at` goes on where this thread's last one ended. Of whatever
/// space: it only says what is worth loading ahead.
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
                // Its lines come together then, and not each when the sum comes to it.
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

    /// Asks the processor for what is read after `entry`: the entries that `behind` walks, up to
    /// byte `end`. For the next one's lines; and, once for eight entries, for the pages of eight. A
    /// page whose address the processor does not know keeps it waiting, even when it is only asked
    /// ahead; side by side all take as long as one.
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

    /// Has a range read from the device soon, all of its extents side by side.
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

    /// Reads an extent for its checksums.
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

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.version.tree.len()
    }

    /// True if it has no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Operations that led to it, in all lives of the space.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.version.tree.version()
    }

    /// The number last set by [`crate::Edit::mark`].
    #[must_use]
    pub fn mark(&self) -> u64 {
        self.version.mark
    }

    /// As [`crate::FlexSpace::read`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn read(&self, at: u64, buf: &mut [u8]) -> Result<usize> {
        self.version.read(at, buf)
    }

    /// Bytes from `at` on as they stand, *not checked*: as many as fit into `buf` and their extent
    /// has, or less where more is not at hand; how many. For whoever has a checksum of its own, and
    /// reads in earnest when this is not what it should be: of the extent's other bytes none is
    /// read.
    #[must_use]
    pub fn peek(&self, at: u64, buf: &mut [u8]) -> usize {
        self.version.peek(at, buf)
    }

    /// Hints that a range will be read soon: what of it is not in memory is asked from the device
    /// at once and side by side, and nothing waits for it. A call of the system for each row of
    /// extents that stand one behind the other: worth it where bytes are missing.
    pub fn will_need(&self, at: u64, len: u64) {
        self.version.will_need(at, len);
    }

    /// The extent that holds byte `at`: where it starts, how long it is, and up to `max` bytes from
    /// its start. `None` from the end on. What was inserted or written in one go starts an extent,
    /// so that a reader that lost its place finds one again.
    ///
    /// # Errors
    ///
    /// As for [`SpaceView::read`].
    pub fn read_extent(&self, at: u64, max: usize) -> Result<Option<ExtentBytes>> {
        self.version.read_extent(at, max)
    }

    /// Returns whether the bytes written in one go with the byte at `at` may go on in the next
    /// extent: extents have a largest length, and end with their segment.
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

    /// Extents and holes in the range.
    #[must_use]
    pub fn fragments(&self, at: u64, len: u64) -> usize {
        let end = at.saturating_add(len);
        self.version.tree.range(at).take_while(|entry| entry.start < end).count()
    }

    /// Reads every byte; each damaged extent goes to `report`.
    ///
    /// # Errors
    ///
    /// None of damage; that goes to `report`.
    pub fn verify(&self, mut report: impl FnMut(Error)) -> Result<()> {
        self.verify_steps(&mut report, &mut |_| Ok(()))
    }

    /// The same; `step` is told of the bytes, and its error ends it.
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

    /// A cursor that reads from the start.
    #[must_use]
    pub fn reader(&self) -> ViewReader {
        ViewReader { view: self.clone(), at: 0 }
    }
}

/// Reads a view as a file is read.
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

/// Where a cursor at `at` in `len` bytes goes.
pub(crate) fn seek(at: u64, len: u64, to: io::SeekFrom) -> io::Result<u64> {
    let place = match to {
        io::SeekFrom::Start(place) => Some(place),
        io::SeekFrom::Current(by) => at.checked_add_signed(by),
        io::SeekFrom::End(by) => len.checked_add_signed(by),
    };
    place.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "before the start"))
}
