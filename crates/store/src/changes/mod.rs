//! # Change feed: the committed changes, read from the logs
//!
//! Every commit is in stream 0 of one or both logs. The feed merges these frames by seq. It writes
//! no second copy: segments that GC or a checkpoint has collected are *retained* instead of freed.
//!
//! ## Picture
//!
//! ```text
//!  live segment --collected--> retained segment --trim: start = its last seq--> freed (R13)
//!                                      ^ by limits, by cursors in both slots of ROOT, or for space
//! ```
//!
//! ## Invariants
//!
//! 1. Every commit after `start` is in a live segment of stream 0 or in a retained segment (model
//!    `retention`, R19). A segment becomes retained before it leaves the live list.
//! 2. A segment is trimmed together with all retained segments that have no later seq. The ROOT
//!    without it has a `start` that is not below its last seq.
//! 3. A blob that was superseded at commit `s` is kept until `start` reaches `s`.
//! 4. Recovery does not read retained segments.
//!
//! ## Threads
//!
//! The holder of the maintenance lock changes the state. Readers take its lock for a moment.

mod cursors;
mod lifetimes;
mod merge;
mod position;
mod reader;
mod retention;
mod signal;
#[doc(hidden)]
pub mod wire;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use self::cursors::CursorInfo;
pub use self::position::ChangePosition;
pub use self::reader::{Change, ChangeBound, ChangeKind, ChangeReader, ChangeValue, CommittedChanges};
pub use self::retention::RetentionChoice;
pub(crate) use self::retention::retained_ids;
pub use self::signal::ChangeWakerKey;

use self::cursors::CursorPositions;
pub(crate) use self::lifetimes::Lifetimes;
use self::signal::ChangeSignal;
use crate::Store;
use sheaf_log::root_changes::{NamedCursor, RetainedSegment, RetentionLimits, RootChanges};
use sheaf_log::types::Seq;
use sheaf_platform::error::{Error, Result};
use sheaf_platform::sync::Mutex;
use sheaf_platform::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// State of the feed of a database that has ever retained changes.
#[derive(Debug)]
pub(crate) struct FeedState {
    feed: u128,
    limits: Option<RetentionLimits>,
    start: Seq,
    /// Retained segments, by their last seq.
    retained: Vec<RetainedSegment>,
    lifetimes: Arc<Lifetimes>,
    cursors: BTreeMap<String, CursorPositions>,
    /// Superseded blobs, each with the seq that `start` must reach before it is freed.
    blobs: Vec<(Seq, u64)>,
}

/// The change feed of a store.
#[derive(Debug, Default)]
pub(crate) struct ChangeFeed {
    state: Mutex<Option<FeedState>>,
    /// Whether changes are retained now.
    is_on: AtomicBool,
    pub(crate) signal: ChangeSignal,
    retained_bytes: AtomicU64,
    /// Segments that were trimmed since the opening.
    trimmed_segments: AtomicU64,
}

/// Statistics of the change feed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChangeStats {
    /// True if changes are retained.
    pub is_retaining: bool,
    /// The feed has every commit after this one.
    pub oldest_seq: u64,
    /// Collected segments that are kept for the feed.
    pub retained_segments: u64,
    /// Size of their files in bytes.
    pub retained_bytes: u64,
    /// Superseded large values that are kept for the feed.
    pub retained_blobs: u64,
    /// Retained segments that were freed since the opening.
    pub trimmed_segments: u64,
    /// Named cursors.
    pub cursors: u64,
    /// Position of the slowest of them.
    pub slowest_cursor_seq: Option<u64>,
}

impl ChangeStats {
    /// Returns all fields, in the order of messages.
    #[doc(hidden)]
    #[must_use]
    pub fn to_words(self) -> [u64; 8] {
        let slowest = self.slowest_cursor_seq.map_or(0, |seq| seq.saturating_add(1));
        [
            u64::from(self.is_retaining),
            self.oldest_seq,
            self.retained_segments,
            self.retained_bytes,
            self.retained_blobs,
            self.trimmed_segments,
            self.cursors,
            slowest,
        ]
    }

    /// Returns the statistics with these fields, in the order of messages.
    #[doc(hidden)]
    #[must_use]
    pub fn from_words(words: [u64; 8]) -> ChangeStats {
        let [
            on,
            oldest_seq,
            retained_segments,
            retained_bytes,
            retained_blobs,
            trimmed_segments,
            cursors,
            slowest,
        ] = words;
        ChangeStats {
            is_retaining: on != 0,
            oldest_seq,
            retained_segments,
            retained_bytes,
            retained_blobs,
            trimmed_segments,
            cursors,
            slowest_cursor_seq: slowest.checked_sub(1),
        }
    }
}

impl ChangeFeed {
    /// Returns whether changes are retained.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }

    /// Applies `change` to the state, if the database has ever retained changes.
    fn with<R>(&self, change: impl FnOnce(&mut FeedState) -> R) -> Option<R> {
        self.state.lock().as_mut().map(change)
    }

    /// Sets the state that ROOT describes. `lifetimes` are those of the recovered catalog.
    pub(crate) fn begin(&mut self, root: &RootChanges, lifetimes: Lifetimes) {
        let mut retained = root.retained.clone();
        retained.sort_by_key(|retained| retained.segment.last_seq);
        self.retained_bytes.store(bytes_of(&retained), Ordering::Relaxed);
        self.is_on.store(root.limits.is_some(), Ordering::Release);
        let cursors = root.cursors.iter().map(|c| (c.name.clone(), CursorPositions::recovered(c.seq)));
        *self.state.get_mut() = Some(FeedState {
            feed: root.feed,
            limits: root.limits,
            start: root.start,
            retained,
            lifetimes: Arc::new(lifetimes),
            cursors: cursors.collect(),
            blobs: Vec::new(),
        });
    }

    /// Returns the part of ROOT as of this floor.
    pub(crate) fn as_root(&self, floor: Seq) -> Option<RootChanges> {
        self.with(|state| RootChanges {
            feed: state.feed,
            limits: state.limits,
            start: state.start,
            retained: state.retained.clone(),
            keyspaces: state.lifetimes.as_of(floor, state.start),
            cursors: state
                .cursors
                .iter()
                .map(|(name, cursor)| NamedCursor { name: name.clone(), seq: cursor.seq })
                .collect(),
        })
    }

    /// Records that ROOT was written with the present state.
    pub(crate) fn note_root_written(&self) {
        self.with(|state| state.cursors.values_mut().for_each(CursorPositions::note_written));
    }

    /// Returns the statistics.
    pub(crate) fn stats(&self) -> ChangeStats {
        let stats = self.with(|state| ChangeStats {
            is_retaining: state.limits.is_some(),
            oldest_seq: state.start.0,
            retained_segments: state.retained.len() as u64,
            retained_bytes: bytes_of(&state.retained),
            retained_blobs: state.blobs.len() as u64,
            trimmed_segments: self.trimmed_segments.load(Ordering::Relaxed),
            cursors: state.cursors.len() as u64,
            slowest_cursor_seq: state.cursors.values().map(|cursor| cursor.seq.0).min(),
        });
        stats.unwrap_or_default()
    }
}

/// Returns the size of the files of retained segments.
fn bytes_of(retained: &[RetainedSegment]) -> u64 {
    retained.iter().map(|retained| retained.segment.capacity).sum()
}

/// Returns the error of a feed of a database that retains no changes.
fn not_retained() -> Error {
    Error::InvalidArgument {
        argument: "change feed",
        reason: "the database retains no changes; the program that writes it must open it with \
                 `Builder::retain_changes`"
            .to_owned(),
    }
}

impl Store {
    /// Returns the position after commit `seq`.
    fn position_at(&self, seq: Seq) -> Result<ChangePosition> {
        let feed = self.changes.with(|state| state.feed).filter(|_| self.changes.is_on());
        feed.map(|feed| ChangePosition::new(feed, seq)).ok_or_else(not_retained)
    }

    /// Returns the position before the oldest change that is available.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidArgument`] if the database retains no changes, and
    /// [`Error::Closed`].
    pub fn oldest_change_position(&self) -> Result<ChangePosition> {
        self.check_open()?;
        let start = self.changes.with(|state| state.start).ok_or_else(not_retained)?;
        self.position_at(start)
    }

    /// Returns the position after commit `seq`, which is made durable first.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Store::oldest_change_position`] and of a sync.
    pub fn change_position(&self, seq: Seq) -> Result<ChangePosition> {
        self.check_open()?;
        let position = self.position_at(seq)?;
        if !self.options.read_only {
            self.wait_durable(seq)?;
        }
        Ok(position)
    }

    /// Checks that `position` belongs to this feed, and that the changes after it are available.
    fn check_position(&self, position: &ChangePosition) -> Result<()> {
        let feed = self.changes.with(|state| state.feed).filter(|_| self.changes.is_on());
        let feed = feed.ok_or_else(not_retained)?;
        let invalid = |reason: String| Error::InvalidArgument { argument: "change position", reason };
        if position.feed() != feed {
            return Err(invalid("it is a position of another database".to_owned()));
        }
        let (seq, newest) = (position.seq(), self.visible());
        if seq > newest {
            return Err(invalid(format!("commit {seq} does not exist; the newest one is {newest}")));
        }
        if self.lifecycle.lost_seqs.contains(&seq) {
            return Err(invalid(format!("commit {seq} was lost in a crash, because it was not durable")));
        }
        self.check_available(seq)
    }

    /// Checks that the changes after commit `seq` are available.
    fn check_available(&self, seq: Seq) -> Result<()> {
        let start = self.changes.with(|state| state.start).ok_or_else(not_retained)?;
        if seq < start {
            return Err(Error::ChangesTooOld { position: seq.0, oldest: start.0 });
        }
        Ok(())
    }
}
