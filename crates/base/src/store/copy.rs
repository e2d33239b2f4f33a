//! # Copy: pairs of one keyspace, as a view shows them, into another
//!
//! ```text
//!  walk      all of them, as the cursor has them: pairs, or keys and a look at each where values may be large
//!  gather    keys in any order -> the lowest that fit into memory, in order -> a look at each -> the next ones
//!  keys      these -> a look at each: put, or removed
//!  marked    all keys of either that are marked
//! ```
//!
//! ## Costs
//!
//! One walk; a gathering walks over the keys once for each share of memory that they take.

use std::sync::Arc;

use super::fill::Filling;
use super::watch::Marks;
use super::{ConversionProgress, Kept, OwnedCursor};
use crate::engine::{Bounds, Cursor, Want};
use crate::error::Result;
use crate::types::Seq;
use crate::value::{Stored, ValueFile};

/// Bytes that a gathered key takes beside itself, about.
const ENTRY: usize = 32;
/// Keys may take this part of the budget ...
const GATHER_SHARE: u64 = 8;
/// ... so often. Keyspaces with more go by commits in whatever order: walking again costs more than a journal then.
const MOST_GATHERINGS: usize = 4;

/// A keyspace at a view, which somebody keeps.
pub(super) struct Source<'a> {
    pub(super) kept: &'a Arc<Kept>,
    pub(super) at: Seq,
}

impl Source<'_> {
    pub(super) fn cursor(&self, want: Want) -> Result<Box<dyn Cursor>> {
        Ok(Box::new(OwnedCursor::open(Arc::<Kept>::clone(self.kept), self.at, Bounds::all(), want)?))
    }

    /// Whether a walk may meet values that memory should not have to hold.
    fn has_large(&self) -> Result<bool> {
        let engine = self.kept.engine()?;
        let mut staged = Vec::new();
        engine.blobs(&mut staged)?;
        Ok(engine.adopts_files() || !staged.is_empty())
    }

    /// Bytes of the value of `key`.
    pub(super) fn len_of(&self, key: &[u8]) -> Result<u64> {
        let mut len = 0;
        self.kept.engine()?.look(self.at, key, &mut |stored| {
            len = match stored {
                Stored::Bytes(found) => found.len() as u64,
                Stored::File(found) => found.len(),
            };
        })?;
        Ok(len)
    }

    /// Gives `key` the value that it has here. False if it has none.
    fn copy(&self, key: &[u8], to: &mut Filling, done: &mut ConversionProgress) -> Result<bool> {
        let (mut bytes, mut file): (Option<Vec<u8>>, Option<ValueFile>) = (None, None);
        self.kept.engine()?.look(self.at, key, &mut |stored| match stored {
            Stored::Bytes(found) => bytes = Some(found.to_vec()),
            Stored::File(found) => file = Some(found),
        })?;
        let (len, stored) = match (&bytes, file) {
            (_, Some(file)) => (file.len(), Stored::File(file)),
            (Some(bytes), None) => (bytes.len() as u64, Stored::Bytes(bytes)),
            (None, None) => return Ok(false),
        };
        to.put_stored(key, stored)?;
        done.copied += 1;
        done.bytes += key.len() as u64 + len;
        Ok(true)
    }
}

/// All pairs.
pub(super) struct Walk {
    cursor: Box<dyn Cursor>,
    want: Want,
}

impl Walk {
    pub(super) fn new(source: &Source<'_>) -> Result<Walk> {
        let want = if source.has_large()? { Want::Keys } else { Want::Pairs };
        Ok(Walk { cursor: source.cursor(want)?, want })
    }

    /// The next `count`. False at the end.
    pub(super) fn step(
        &mut self,
        source: &Source<'_>,
        count: usize,
        to: &mut Filling,
        done: &mut ConversionProgress,
    ) -> Result<bool> {
        for _ in 0..count {
            if !self.cursor.next()? {
                return Ok(false);
            }
            let key = self.cursor.key();
            match self.want {
                Want::Pairs => {
                    let value = self.cursor.value();
                    to.put(key, value)?;
                    done.copied += 1;
                    done.bytes += (key.len() + value.len()) as u64;
                }
                Want::Keys => drop(source.copy(key, to, done)?),
            }
        }
        Ok(true)
    }
}

/// All pairs, sorted on the way.
pub(super) struct Gather {
    cursor: Box<dyn Cursor>,
    /// The last key of the gathering before.
    above: Option<Box<[u8]>>,
    keys: Vec<Box<[u8]>>,
    bytes: usize,
    limit: usize,
    /// The lowest key that was left out: what is not below it comes next time.
    below: Option<Box<[u8]>>,
    /// Keys of all gatherings together, in bytes.
    total: usize,
    /// A walk is over: what is left of what it gathered, in order.
    sorted: Option<std::vec::IntoIter<Box<[u8]>>>,
}

/// How a step of a gathering ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Gathered {
    /// There is more.
    More,
    /// All was copied.
    All,
    /// There are too many keys for this.
    TooMany,
}

impl Gather {
    pub(super) fn new(source: &Source<'_>, tiny: bool, budget: u64) -> Result<Gather> {
        let limit = match tiny {
            true => 60 * ENTRY,
            false => usize::try_from(budget / GATHER_SHARE).unwrap_or(usize::MAX),
        };
        let cursor = source.cursor(Want::Keys)?;
        Ok(Gather {
            cursor,
            above: None,
            keys: Vec::new(),
            bytes: 0,
            limit,
            below: None,
            total: 0,
            sorted: None,
        })
    }

    /// Memory that is taken.
    pub(super) fn memory(&self) -> u64 {
        self.bytes as u64
    }

    /// Looks at the next `count` keys, or copies as many of what was gathered.
    pub(super) fn step(
        &mut self,
        source: &Source<'_>,
        count: usize,
        to: &mut Filling,
        done: &mut ConversionProgress,
    ) -> Result<Gathered> {
        if let Some(sorted) = &mut self.sorted {
            for key in sorted.by_ref().take(count) {
                source.copy(&key, to, done)?;
                self.above = Some(key);
            }
            return if sorted.as_slice().is_empty() { self.go_on(source) } else { Ok(Gathered::More) };
        }
        for _ in 0..count {
            if !self.cursor.next()? {
                return Ok(self.end_walk());
            }
            let key = self.cursor.key();
            self.total += key.len() + ENTRY;
            let is_wanted = self.above.as_deref().is_none_or(|above| key > above)
                && self.below.as_deref().is_none_or(|below| key < below);
            if is_wanted {
                self.bytes += key.len() + ENTRY;
                self.keys.push(key.into());
                if self.bytes > self.limit {
                    self.cut();
                }
            }
        }
        Ok(Gathered::More)
    }

    /// Keeps the lower half, if there are two.
    fn cut(&mut self) {
        let half = self.keys.len() / 2;
        if half > 0 {
            self.keys.select_nth_unstable(half);
            self.below = Some(self.keys.swap_remove(half));
            self.keys.truncate(half);
        }
        self.bytes = self.keys.iter().map(|key| key.len() + ENTRY).sum();
    }

    /// All keys were seen: what was gathered is put into order.
    fn end_walk(&mut self) -> Gathered {
        if self.above.is_none() && self.total / 2 > MOST_GATHERINGS * self.limit {
            return Gathered::TooMany;
        }
        self.keys.sort_unstable();
        self.sorted = Some(std::mem::take(&mut self.keys).into_iter());
        Gathered::More
    }

    /// All that was gathered is copied: the next walk, if something was left out.
    fn go_on(&mut self, source: &Source<'_>) -> Result<Gathered> {
        if self.below.take().is_none() {
            return Ok(Gathered::All);
        }
        (self.sorted, self.bytes) = (None, 0);
        self.cursor = source.cursor(Want::Keys)?;
        Ok(Gathered::More)
    }
}

/// What was changed since the last copy.
pub(super) enum Chase {
    /// These keys.
    Keys(std::collections::hash_set::IntoIter<Box<[u8]>>),
    /// Keys of the source that are marked; then those of the target.
    Marked(Marks, Box<dyn Cursor>, bool),
}

impl Chase {
    /// The next `count` keys. False at the end. `target` is what is being filled, at a view that has all that was copied before.
    pub(super) fn step(
        &mut self,
        source: &Source<'_>,
        target: &Source<'_>,
        count: usize,
        to: &mut Filling,
        done: &mut ConversionProgress,
    ) -> Result<bool> {
        for _ in 0..count {
            match self {
                Chase::Keys(keys) => {
                    let Some(key) = keys.next() else { return Ok(false) };
                    if !source.copy(&key, to, done)? {
                        to.remove(&key)?;
                    }
                }
                Chase::Marked(marks, cursor, is_target) => {
                    if !cursor.next()? {
                        if *is_target {
                            return Ok(false);
                        }
                        to.flush()?; // a key may be met again
                        (*cursor, *is_target) = (target.cursor(Want::Keys)?, true);
                        continue;
                    }
                    let key = cursor.key();
                    if !marks.has(key) {
                        continue;
                    }
                    let is_there = match is_target {
                        false => source.copy(key, to, done)?,
                        true => source.kept.engine()?.contains(source.at, key)?,
                    };
                    if !is_there {
                        to.remove(key)?;
                    }
                }
            }
        }
        Ok(true)
    }
}
