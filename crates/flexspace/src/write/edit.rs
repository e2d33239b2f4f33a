//! # Edits and cursors: two further ways to change a space
//!
//! An [`Edit`] combines several parts into one atomic operation: one log frame and one version for
//! readers. A [`SpaceCursor`] is a position that advances as it reads, writes and inserts.

use std::io;

use sheaf_platform::error::Result;

use crate::read::view::{ExtentBytes, seek};
use crate::space::FlexSpace;
use crate::write::writer::SpaceOp;

/// An operation of several parts; see [`FlexSpace::edit`]. Each part applies to the result of the
/// parts before it. Borrows its bytes until [`Edit::commit`].
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

    /// Adds a [`FlexSpace::write`].
    pub fn write(self, at: u64, bytes: &'a [u8]) -> Edit<'a> {
        self.with(SpaceOp::Write { at, bytes })
    }

    /// Adds a [`FlexSpace::insert`].
    pub fn insert(self, at: u64, bytes: &'a [u8]) -> Edit<'a> {
        self.with(SpaceOp::Insert { at, bytes })
    }

    /// Adds a [`FlexSpace::insert_hole`].
    pub fn insert_hole(self, at: u64, len: u64) -> Edit<'a> {
        self.with(SpaceOp::InsertHole { at, len })
    }

    /// Adds a [`FlexSpace::collapse`].
    pub fn collapse(self, at: u64, len: u64) -> Edit<'a> {
        self.with(SpaceOp::Collapse { at, len })
    }

    /// Sets the caller's number. It belongs to the state: after a crash [`FlexSpace::mark`] returns
    /// the number of the last recovered operation. A database stores the position of its own log in
    /// it.
    pub fn mark(self, mark: u64) -> Edit<'a> {
        self.with(SpaceOp::Mark(mark))
    }

    /// Executes all parts as one operation.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`FlexSpace::write`] and [`FlexSpace::insert`]. The content is then
    /// unchanged.
    pub fn commit(self) -> Result<()> {
        self.space.shared().commit(&self.ops)
    }
}

/// A position in a space. Other changes of the space do not move it.
#[derive(Debug)]
pub struct SpaceCursor<'a> {
    space: &'a FlexSpace,
    at: u64,
}

impl FlexSpace {
    /// Returns a cursor at `at`.
    #[must_use]
    pub fn cursor(&self, at: u64) -> SpaceCursor<'_> {
        SpaceCursor { space: self, at }
    }
}

impl SpaceCursor<'_> {
    /// Returns the position in bytes.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.at
    }

    /// Inserts `bytes` at the position and moves behind them.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`FlexSpace::insert`].
    pub fn insert(&mut self, bytes: &[u8]) -> Result<()> {
        self.space.insert(self.at, bytes)?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    /// Removes the `len` bytes behind the position.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`FlexSpace::collapse`].
    pub fn collapse(&mut self, len: u64) -> Result<()> {
        self.space.collapse(self.at, len)
    }

    /// Returns the extent that contains the position, from its first byte; see
    /// [`crate::SpaceView::read_extent`]. Moves behind the extent, so that the next call returns
    /// the next one. At the end of the space the position does not change.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`FlexSpace::read`].
    pub fn read_extent(&mut self, max: usize) -> Result<Option<ExtentBytes>> {
        let extent = self.space.read_extent(self.at, max)?;
        if let Some(ExtentBytes { start, len, .. }) = &extent {
            self.at = start + len;
        }
        Ok(extent)
    }

    /// Rewrites the `len` bytes behind the position into as few extents as possible. Does not move.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`FlexSpace::defrag`].
    pub fn defrag(&mut self, len: u64) -> Result<()> {
        self.space.defrag(self.at, len)
    }

    /// Makes all operations on the space durable, like [`FlexSpace::sync`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`FlexSpace::sync`].
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

    /// Does nothing: written bytes are readable at once. [`FlexSpace::sync`] makes them durable.
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
