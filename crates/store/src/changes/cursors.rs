//! # Named cursors: durable positions of consumers
//!
//! ROOT has the cursors. A crash may bring back the older slot of ROOT, so segments are freed by
//! the positions in both slots (R19).

use super::{ChangePosition, not_retained};
use crate::Store;
use sheaf_log::root_changes::{MAX_CURSOR_NAME, MAX_CURSORS};
use sheaf_log::types::Seq;
use sheaf_platform::error::{Error, Result};

/// Position of a cursor now, and in the slots of ROOT.
#[derive(Clone, Copy, Debug)]
pub(super) struct CursorPositions {
    pub(super) seq: Seq,
    newer: Seq,
    older: Seq,
}

impl CursorPositions {
    fn new(seq: Seq) -> CursorPositions {
        CursorPositions { seq, newer: seq, older: seq }
    }

    /// Returns a cursor that ROOT has; the other slot may have any older position.
    pub(super) fn recovered(seq: Seq) -> CursorPositions {
        CursorPositions { seq, newer: seq, older: Seq::ZERO }
    }

    /// Returns the oldest position that a crash may bring back.
    pub(super) fn oldest(&self) -> Seq {
        self.seq.min(self.newer).min(self.older)
    }

    /// Records that ROOT was written with the present position.
    pub(super) fn note_written(&mut self) {
        self.older = std::mem::replace(&mut self.newer, self.seq);
    }
}

/// A named cursor of the change feed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CursorInfo {
    /// Name of the cursor.
    pub name: String,
    /// Position that its consumer committed last.
    pub position: ChangePosition,
}

fn check_cursor_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > MAX_CURSOR_NAME {
        let reason = format!("{} bytes; must be 1 to {MAX_CURSOR_NAME}", name.len());
        return Err(Error::InvalidArgument { argument: "cursor name", reason });
    }
    Ok(())
}

impl Store {
    /// Creates the cursor `name` durably, before the oldest change that is available, if it does
    /// not exist.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidArgument`] for a name that is empty or too long, and if the database
    /// retains no changes. Returns [`Error::TooLarge`] if there are too many cursors. Returns
    /// [`Error::ReadOnly`], [`Error::Closed`] or [`Error::Poisoned`], and errors of writing ROOT.
    pub fn create_change_cursor(&self, name: &str) -> Result<()> {
        check_cursor_name(name)?;
        self.check_writable()?;
        let mut m = self.root.maintenance.lock();
        let is_on = self.changes.is_on();
        let created = self.changes.with(|state| {
            if state.cursors.contains_key(name) {
                return Ok(false);
            }
            if state.cursors.len() >= MAX_CURSORS {
                let got = state.cursors.len() as u64 + 1;
                return Err(Error::TooLarge {
                    object: "set of change cursors",
                    got,
                    max: MAX_CURSORS as u64,
                });
            }
            state.cursors.insert(name.to_owned(), CursorPositions::new(state.start));
            Ok(true)
        });
        match created.filter(|_| is_on).unwrap_or_else(|| Err(not_retained()))? {
            true => self.write_root(&mut m, false),
            false => Ok(()),
        }
    }

    /// Returns the position of the cursor `name`.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidArgument`] if there is no such cursor, and [`Error::Closed`].
    pub fn change_cursor_position(&self, name: &str) -> Result<ChangePosition> {
        self.check_open()?;
        let found = self
            .changes
            .with(|state| state.cursors.get(name).map(|cursor| ChangePosition::new(state.feed, cursor.seq)));
        found.flatten().ok_or_else(|| unknown_cursor(name))
    }

    /// Moves the cursor `name` to `position`, durably. Segments that all cursors have passed may be
    /// freed afterwards. Writes ROOT.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidArgument`] if there is no such cursor, if `position` is before that
    /// of the cursor, or if it is not one of this feed. Returns [`Error::ChangesTooOld`] if the
    /// changes after it are not available. Returns [`Error::ReadOnly`], [`Error::Closed`] or
    /// [`Error::Poisoned`], and errors of writing ROOT.
    pub fn move_change_cursor(&self, name: &str, position: &ChangePosition) -> Result<()> {
        self.check_writable()?;
        self.check_position(position)?;
        // A cursor must not name a commit that a power cut may lose.
        self.wait_durable(position.seq())?;
        let mut m = self.root.maintenance.lock();
        let moved = self.changes.with(|state| {
            let Some(cursor) = state.cursors.get_mut(name) else { return Err(unknown_cursor(name)) };
            if position.seq() < cursor.seq {
                let reason = format!("the cursor is already at commit {}", cursor.seq);
                return Err(Error::InvalidArgument { argument: "change position", reason });
            }
            cursor.seq = position.seq();
            Ok(())
        });
        moved.unwrap_or_else(|| Err(not_retained()))?;
        self.write_root(&mut m, false)
    }

    /// Removes the cursor `name` durably. Returns false if there is none.
    ///
    /// # Errors
    ///
    /// Returns [`Error::ReadOnly`], [`Error::Closed`] or [`Error::Poisoned`], and errors of writing
    /// ROOT.
    pub fn remove_change_cursor(&self, name: &str) -> Result<bool> {
        self.check_writable()?;
        let mut m = self.root.maintenance.lock();
        let removed = self.changes.with(|state| state.cursors.remove(name).is_some()) == Some(true);
        if removed {
            self.write_root(&mut m, false)?;
        }
        Ok(removed)
    }

    /// Returns the cursors, by name.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Closed`] if the database is closed.
    pub fn change_cursors(&self) -> Result<Vec<CursorInfo>> {
        self.check_open()?;
        let all = self.changes.with(|state| {
            let info = |(name, cursor): (&String, &CursorPositions)| CursorInfo {
                name: name.clone(),
                position: ChangePosition::new(state.feed, cursor.seq),
            };
            state.cursors.iter().map(info).collect()
        });
        Ok(all.unwrap_or_default())
    }
}

fn unknown_cursor(name: &str) -> Error {
    Error::InvalidArgument { argument: "cursor name", reason: format!("there is no cursor {name:?}") }
}
