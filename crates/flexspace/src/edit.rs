//! # Edits and cursors: the two ways to change a space
//!
//! An [`Edit`] gathers parts that are there together or not at all, in one frame of the log and one
//! version for readers. A [`SpaceCursor`] is a place in the space that moves as it reads, writes
//! and inserts.

use std::io;

use sheaf_base::error::Result;

use crate::space::FlexSpace;
use crate::view::{ExtentBytes, seek};
use crate::writer::SpaceOp;

/// An operation of several parts; see [`FlexSpace::edit`]. Each part sees what the ones before it
/// did. Its bytes are borrowed until [`Edit::commit`].
#[derive(Debug)]
#[must_use = "an edit does nothing until it is committed"]
pub struct Edit<'a> {
    space: &'a FlexSpace,
    ops: Vec<SpaceOp<'a>>,
}

impl<'a> Edit<'a> {
    pub(crate) fn new(space: &'a FlexSpace) -> Edit<'a> {
        Edit { space, ops: Vec::new() }
    }

    fn with(mut self, op: SpaceOp<'a>) -> Edit<'a> {
        self.ops.push(op);
        self
    }

    /// As [`FlexSpace::write`].
    pub fn write(self, at: u64, bytes: &'a [u8]) -> Edit<'a> {
        self.with(SpaceOp::Write { at, bytes })
    }

    /// As [`FlexSpace::insert`].
    pub fn insert(self, at: u64, bytes: &'a [u8]) -> Edit<'a> {
        self.with(SpaceOp::Insert { at, bytes })
    }

    /// As [`FlexSpace::insert_hole`].
    pub fn insert_hole(self, at: u64, len: u64) -> Edit<'a> {
        self.with(SpaceOp::InsertHole { at, len })
    }

    /// As [`FlexSpace::collapse`].
    pub fn collapse(self, at: u64, len: u64) -> Edit<'a> {
        self.with(SpaceOp::Collapse { at, len })
    }

    /// Sets a number of the caller's that belongs to the state: what a crash leaves has the number
    /// that its last operation left. A database keeps there how much of its log is in the space.
    pub fn mark(self, mark: u64) -> Edit<'a> {
        self.with(SpaceOp::Mark(mark))
    }

    /// Does it all.
    ///
    /// # Errors
    ///
    /// As for [`FlexSpace::write`] and [`FlexSpace::insert`]; nothing was changed.
    pub fn commit(self) -> Result<()> {
        self.space.shared().commit(&self.ops)
    }
}

/// A place in a space. Other changes of the space do not move it.
#[derive(Debug)]
pub struct SpaceCursor<'a> {
    space: &'a FlexSpace,
    at: u64,
}

impl FlexSpace {
    /// A cursor at `at`.
    #[must_use]
    pub fn cursor(&self, at: u64) -> SpaceCursor<'_> {
        SpaceCursor { space: self, at }
    }
}

impl SpaceCursor<'_> {
    /// Where it is.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.at
    }

    /// Inserts `bytes` here and moves behind them.
    ///
    /// # Errors
    ///
    /// As for [`FlexSpace::insert`].
    pub fn insert(&mut self, bytes: &[u8]) -> Result<()> {
        self.space.insert(self.at, bytes)?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    /// Removes the `len` bytes behind it.
    ///
    /// # Errors
    ///
    /// As for [`FlexSpace::collapse`].
    pub fn collapse(&mut self, len: u64) -> Result<()> {
        self.space.collapse(self.at, len)
    }

    /// The extent that it is in, from that one's first byte on; see
    /// [`crate::SpaceView::read_extent`]. Moves behind the extent, so that the next call answers
    /// with the next one; stays where it is at the end.
    ///
    /// # Errors
    ///
    /// As for [`FlexSpace::read`].
    pub fn read_extent(&mut self, max: usize) -> Result<Option<ExtentBytes>> {
        let extent = self.space.read_extent(self.at, max)?;
        if let Some(ExtentBytes { start, len, .. }) = &extent {
            self.at = start + len;
        }
        Ok(extent)
    }

    /// Writes the `len` bytes behind it again, in as few extents as can be. Stays where it is.
    ///
    /// # Errors
    ///
    /// As for [`FlexSpace::defrag`].
    pub fn defrag(&mut self, len: u64) -> Result<()> {
        self.space.defrag(self.at, len)
    }

    /// As [`FlexSpace::sync`]: of everything, whoever did it.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn sync(&self) -> Result<()> {
        self.space.sync()
    }
}

impl io::Read for SpaceCursor<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.space.read(self.at, buf).map_err(io::Error::other)?;
        self.at += count as u64;
        Ok(count)
    }
}

impl io::Write for SpaceCursor<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.space.write(self.at, buf).map_err(io::Error::other)?;
        self.at += buf.len() as u64;
        Ok(buf.len())
    }

    /// Does nothing: what was written can be read at once. See [`FlexSpace::sync`].
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl io::Seek for SpaceCursor<'_> {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        self.at = seek(self.at, self.space.len(), to)?;
        Ok(self.at)
    }
}
