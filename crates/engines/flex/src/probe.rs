//! # Probe: the index, read from the space
//!
//! After a crash in mid-commit the space is further on than the image of the index, and an image may be damaged or missing.
//! Then the space says where intervals begin and what is in them. Some threads read it, a stretch each at a time.
//!
//! ## How a stretch finds its first interval
//!
//! ```text
//!   | stretch          | stretch                 | stretch
//!   I......I......I......I......I......I......I......I......          I: an interval begins
//!                      |-^ the first extent that begins with the head of a first run: a guess
//! ```
//!
//! Runs were inserted in one go, so each begins an extent; but an extent may also be the rest of a long run, and begin
//! with anything. So a stretch begins with a guess and goes on to the first interval behind its end. In the end
//! the stretches are put together from the start of the space: one that does not begin where the one before ended was
//! guessed wrongly, and is read again from there, by the one thread that is left. What is taken up is what a walk from
//! the start finds, whatever the bytes say.
//!
//! ## Why all of it is read
//!
//! The paper reads one key for each 8 to 64 KiB. Here the names of staged values are in the pairs, and the files
//! that nobody names go at opening: a pair that was not read would lose its value.
//!
//! ## Costs
//!
//! A sequential read of the space, its sums, and a look at each pair: docs/decisions/0009 has the figures.

use std::collections::HashSet;
use std::ops::Range;

use sheaf_base::error::{Damage, Error, Result};
use sheaf_base::keys::between;
use sheaf_base::record::Content;
use sheaf_base::sync::atomic::{AtomicU64, Ordering};
use sheaf_base::work::side_by_side;
use sheaf_flexspace::View;

use crate::block::Sorted;
use crate::engine::FlexEngine;
use crate::run::{self, RUN_HEAD};
use crate::slots::Figures;
use crate::table::Table;

/// Bytes that a thread reads between two looks at what is left.
const STRETCH: u64 = 4 << 20;
const TINY_STRETCH: u64 = 2 << 10;
/// Bytes that are read at a time.
const WINDOW: u64 = 512 << 10;
/// Most threads.
const THREADS: usize = 4;

/// An interval of the space.
#[derive(Debug)]
struct Found {
    start: u64,
    len: u64,
    /// Its lowest and its highest key.
    keys: [Vec<u8>; 2],
    figures: Figures,
}

/// What a stretch has: intervals one behind the other, the staged values they name, and where they end.
#[derive(Debug, Default)]
struct Stretch {
    start: u64,
    intervals: Vec<Found>,
    blobs: Vec<u64>,
    end: u64,
}

/// Reads a view from front to back.
struct Window<'a> {
    view: &'a View,
    at: u64,
    bytes: Vec<u8>,
}

impl Window<'_> {
    /// `len` bytes at `at`, which does not go back; fewer at the end of the space.
    fn get(&mut self, at: u64, len: u64) -> Result<&[u8]> {
        let end = (at + len).min(self.view.len());
        if end > self.at + self.bytes.len() as u64 || at < self.at {
            let count = (end - at).max(WINDOW).min(self.view.len() - at);
            self.view.will_need(at, count);
            self.bytes.resize(usize::try_from(count).unwrap_or(usize::MAX), 0);
            self.at = at;
            self.view.read(at, &mut self.bytes)?;
        }
        let from = usize::try_from(at - self.at).unwrap_or(usize::MAX);
        let to = usize::try_from(end - self.at).unwrap_or(usize::MAX);
        Ok(&self.bytes[from..to])
    }
}

impl FlexEngine {
    /// Takes up the intervals that the space has.
    pub(crate) fn read_space(&self, table: &mut Table) -> Result<()> {
        let Some(view) = table.space.as_ref().map(|space| space.view()) else { return Ok(()) };
        let len = view.len();
        let each = if self.shelf.ground.tiny { TINY_STRETCH } else { STRETCH };
        let (count, next) = (len.div_ceil(each), AtomicU64::new(0));
        let share = || {
            let mut mine: Vec<(u64, Stretch)> = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let range = number * each..((number + 1) * each).min(len);
                if number >= count {
                    return mine;
                }
                // What is damaged is found again, by the walk that counts.
                let Ok(start) = self.guess(&view, &range) else { continue };
                // Nothing begins before: a space that says it is larger than any file costs no more for it.
                next.fetch_max(start / each, Ordering::Relaxed);
                let read = self.walk(&view, start, range.end);
                mine.extend(read.ok().map(|stretch| (number, stretch)));
            }
        };
        let threads = if self.shelf.ground.inline { 1 } else { THREADS };
        let mut stretches: Vec<(u64, Stretch)> = side_by_side(threads, share).into_iter().flatten().collect();
        stretches.sort_unstable_by_key(|(number, _)| *number);
        table.blobs = HashSet::new();
        let (mut at, mut last) = (0, None);
        for (number, stretch) in stretches {
            let end = ((number + 1) * each).min(len);
            if end <= at {
                continue; // a long interval goes beyond it
            }
            if stretch.start != at {
                self.take_up(table, self.walk(&view, at, end)?, &mut last)?;
            } else {
                self.take_up(table, stretch, &mut last)?;
            }
            at = table.tree.len();
        }
        if at < len {
            self.take_up(table, self.walk(&view, at, len)?, &mut last)?; // and says what is damaged
        }
        Ok(())
    }

    /// Where the first interval in `range` seems to begin.
    fn guess(&self, view: &View, range: &Range<u64>) -> Result<u64> {
        let mut at = range.start;
        while at > 0 && at < range.end {
            let Some(extent) = view.read_extent(at, 0)? else { break };
            if extent.start == at
                && let Some(extent) = view.read_extent(at, RUN_HEAD)?
                && run::head(&extent.bytes).is_ok_and(|(begins, ..)| begins)
            {
                break;
            }
            at = extent.start + extent.len;
        }
        Ok(at)
    }

    /// The intervals from `start`, which is in the space, to the first that begins at `end` or behind it.
    fn walk(&self, view: &View, start: u64, end: u64) -> Result<Stretch> {
        let mut window = Window { view, at: 0, bytes: Vec::new() };
        let mut stretch = Stretch { start, end: start, ..Stretch::default() };
        while stretch.end < end {
            // Behind its first run and those that go on in it.
            let interval = stretch.end;
            let mut at = interval;
            while at < view.len() {
                let bytes = window.get(interval, at - interval + RUN_HEAD as u64)?;
                let bytes = bytes.get(usize::try_from(at - interval).unwrap_or(usize::MAX)..).unwrap_or(&[]);
                let (begins, head, len) = run::head(bytes).map_err(|what| self.damage(at, what))?;
                if begins && at > interval {
                    break;
                }
                let left = (view.len() - at).saturating_sub(head as u64);
                if !begins && at == interval || len > left {
                    return Err(self.damage(at, Damage::BadLength { got: len, max: left }));
                }
                at += head as u64 + len;
            }
            let data = window.get(interval, at - interval)?;
            let found = self.look_at(interval, data, &mut stretch.blobs)?;
            stretch.intervals.push(found);
            stretch.end = at;
        }
        Ok(stretch)
    }

    /// What an interval's bytes say.
    fn look_at(&self, start: u64, data: &[u8], blobs: &mut Vec<u64>) -> Result<Found> {
        let Sorted { found, runs, live } = Sorted::of(data).map_err(|what| self.damage(start, what))?;
        let (Some((_, first)), Some((_, last))) = (found.first(), found.last()) else {
            return Err(self.damage(start, disorder(start)));
        };
        let before = blobs.len();
        blobs.extend(found.iter().filter_map(|(_, pair)| match pair.content {
            Content::Staged(blob) => Some(blob.id),
            _ => None,
        }));
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let figures =
            Figures { entries: count(found.len()), live: count(live), runs, is_staged: blobs.len() > before };
        let keys = [first.key.to_vec(), last.key.to_vec()];
        Ok(Found { start, len: data.len() as u64, keys, figures })
    }

    /// Puts intervals behind those that are there.
    fn take_up(&self, table: &mut Table, stretch: Stretch, last: &mut Option<Vec<u8>>) -> Result<()> {
        for Found { start, len, keys: [low, high], figures } in stretch.intervals {
            let sep = match last {
                None => Vec::new(),
                Some(last) if *last < low => between(last, &low).to_vec(),
                Some(_) => return Err(self.damage(start, disorder(start))),
            };
            let item = table.new_interval(&sep, figures, &self.shelf);
            table.tree.insert(start, len, item);
            *last = Some(high);
        }
        table.blobs.extend(stretch.blobs);
        Ok(())
    }

    fn damage(&self, at: u64, what: Damage) -> Error {
        Error::corrupt(&self.shelf.path, at, what)
    }
}

fn disorder(at: u64) -> Damage {
    Damage::BadField { field: "order of intervals", value: at }
}
