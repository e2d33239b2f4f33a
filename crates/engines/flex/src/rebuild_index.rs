//! # Probe: the index, read from the space
//!
//! After a crash in mid-commit the space is further on than the image of the index, and an image
//! may be damaged or missing. Then the space says where intervals begin and what is in them. Some
//! threads read it, a stretch each at a time.
//!
//! ## How a stretch finds its first interval
//!
//! ```text
//!   | stretch          | stretch                 | stretch
//!   I......I......I......I......I......I......I......I......          I: an interval begins
//!                      |-^ the first extent that begins with the head of a first run: a guess
//! ```
//!
//! Runs were inserted in one go, so each begins an extent; but an extent may also be the rest of a
//! long run, and begin with anything. So a stretch begins with a guess and goes on to the first
//! interval behind its end. In the end the stretches are put together from the start of the space:
//! one that does not begin where the one before ended was guessed wrongly, and is read again from
//! there, by the one thread that is left. What is taken up is what a walk from the start finds,
//! whatever the bytes say.
//!
//! ## Why all of it is read
//!
//! The paper reads one key for each 8 to 64 KiB. Here the names of staged values are in the pairs,
//! and the files that nobody names go at opening: a pair that was not read would lose its value.
//!
//! ## Costs
//!
//! A sequential read of the space, its sums, and a look at each pair: docs/decisions/0009 has the
//! figures.

use std::collections::HashSet;
use std::ops::Range;

use sheaf_base::error::{Damage, Error, Result};
use sheaf_base::keys::shortest_separator;
use sheaf_base::parallel::{opening_threads, run_parallel};
use sheaf_base::record::RecordContent;
use sheaf_base::sync::atomic::{AtomicU64, Ordering};
use sheaf_flexspace::SpaceView;

use crate::block::SortedVersions;
use crate::engine::FlexEngine;
use crate::run::{self, MAX_RUN_HEADER};
use crate::slots::IntervalCounts;
use crate::table::IntervalTable;

/// Bytes that a thread reads between two looks at what is left.
const SECTION_BYTES: u64 = 4 << 20;
const TINY_SECTION_BYTES: u64 = 2 << 10;
/// Bytes that are read at a time.
const READ_WINDOW: u64 = 512 << 10;
/// Bytes of a stretch without an interval that can be read; with more, the intervals behind it are
/// left out: readers hold a stretch in memory.
const MAX_UNREADABLE: u64 = 64 << 20;

/// An interval of the space.
#[derive(Debug)]
struct FoundInterval {
    start: u64,
    len: u64,
    /// Its lowest and its highest key.
    keys: [Vec<u8>; 2],
    interval_counts: IntervalCounts,
}

/// What a stretch has: intervals one behind the other, the staged values they name, and where they
/// end.
#[derive(Debug, Default)]
struct SpaceSection {
    start: u64,
    intervals: Vec<FoundInterval>,
    blobs: Vec<u64>,
    end: u64,
}

/// Reads a view from front to back.
struct SectionReader<'a> {
    view: &'a SpaceView,
    at: u64,
    bytes: Vec<u8>,
    /// Before this nothing is read ahead: there is damage.
    exact_until: u64,
}

impl SectionReader<'_> {
    fn new(view: &SpaceView) -> SectionReader<'_> {
        SectionReader { view, at: 0, bytes: Vec::new(), exact_until: 0 }
    }

    /// `len` bytes at `at`, which does not go back; fewer at the end of the space.
    fn get(&mut self, at: u64, len: u64) -> Result<&[u8]> {
        let end = (at + len).min(self.view.len());
        if end > self.at + self.bytes.len() as u64 || at < self.at {
            let needed = end - at;
            let ahead = if end <= self.exact_until { needed } else { needed.max(READ_WINDOW) };
            self.fill(at, needed, ahead.min(self.view.len() - at))?;
        }
        let from = usize::try_from(at - self.at).unwrap_or(usize::MAX);
        let to = usize::try_from(end - self.at).unwrap_or(usize::MAX);
        Ok(&self.bytes[from..to])
    }

    /// Reads `ahead` bytes from `at`, or those that are `needed` if not all can be read.
    fn fill(&mut self, at: u64, needed: u64, ahead: u64) -> Result<()> {
        self.at = at;
        self.view.will_need(at, ahead);
        self.bytes.resize(usize::try_from(ahead).unwrap_or(usize::MAX), 0);
        let mut read = self.view.read(at, &mut self.bytes);
        if read.is_err() && needed < ahead {
            self.exact_until = at + ahead;
            self.bytes.truncate(usize::try_from(needed).unwrap_or(usize::MAX));
            read = self.view.read(at, &mut self.bytes);
        }
        if read.is_err() {
            self.bytes.clear();
        }
        read.map(drop)
    }
}

impl FlexEngine {
    /// Takes up the intervals that the space has.
    pub(crate) fn rebuild_index(&self, table: &mut IntervalTable) -> Result<()> {
        let Some(view) = table.space.as_ref().map(|space| space.view()) else { return Ok(()) };
        let len = view.len();
        let each = if self.interval_cache.context.tiny { TINY_SECTION_BYTES } else { SECTION_BYTES };
        let (count, next) = (len.div_ceil(each), AtomicU64::new(0));
        let share = || {
            let mut mine: Vec<(u64, SpaceSection)> = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let range = number * each..((number + 1) * each).min(len);
                if number >= count {
                    return mine;
                }
                // What is damaged is found again, by the walk that counts.
                let Ok(start) = self.guess_interval_start(&view, &range) else { continue };
                // Nothing begins before: a space that says it is larger than any file costs no more
                // for it.
                next.fetch_max(start / each, Ordering::Relaxed);
                let read = self.scan_section(&view, start, range.end);
                mine.extend(read.ok().map(|section| (number, section)));
            }
        };
        let threads = if self.interval_cache.context.inline { 1 } else { opening_threads() };
        let mut sections: Vec<(u64, SpaceSection)> =
            run_parallel(threads, share).into_iter().flatten().collect();
        sections.sort_unstable_by_key(|(number, _)| *number);
        table.blobs = HashSet::new();
        let (mut at, mut last) = (0, None);
        for (number, section) in sections {
            let end = ((number + 1) * each).min(len);
            if end <= at {
                continue; // a long interval goes beyond it
            }
            if section.start != at {
                self.add_section(table, self.scan_section(&view, at, end)?, &mut last)?;
            } else {
                self.add_section(table, section, &mut last)?;
            }
            at = table.tree.len();
        }
        if at < len {
            self.add_section(table, self.scan_section(&view, at, len)?, &mut last)?; // and says what is damaged
        }
        Ok(())
    }

    /// Where the first interval in `range` seems to begin.
    fn guess_interval_start(&self, view: &SpaceView, range: &Range<u64>) -> Result<u64> {
        let mut at = range.start;
        while at > 0 && at < range.end {
            let Some(extent) = view.read_extent(at, 0)? else { break };
            if extent.start == at
                && let Some(extent) = view.read_extent(at, MAX_RUN_HEADER)?
                && run::decode_header(&extent.bytes).is_ok_and(|(begins, ..)| begins)
            {
                break;
            }
            at = extent.start + extent.len;
        }
        Ok(at)
    }

    /// The intervals from `start`, which is in the space, to the first that begins at `end` or
    /// behind it.
    fn scan_section(&self, view: &SpaceView, start: u64, end: u64) -> Result<SpaceSection> {
        self.scan_section_with(&mut SectionReader::new(view), start, end)
    }

    fn scan_section_with(
        &self,
        window: &mut SectionReader<'_>,
        start: u64,
        end: u64,
    ) -> Result<SpaceSection> {
        let view = window.view;
        let mut section = SpaceSection { start, end: start, ..SpaceSection::default() };
        while section.end < end {
            // Behind its first run and those that go on in it.
            let interval = section.end;
            let mut at = interval;
            while at < view.len() {
                let bytes = window.get(interval, at - interval + MAX_RUN_HEADER as u64)?;
                let bytes = bytes.get(usize::try_from(at - interval).unwrap_or(usize::MAX)..).unwrap_or(&[]);
                let (begins, head, len) = run::decode_header(bytes).map_err(|what| self.damage(at, what))?;
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
            let found = self.decode_interval(interval, data, &mut section.blobs)?;
            section.intervals.push(found);
            section.end = at;
        }
        Ok(section)
    }

    /// Takes up, for a repair, the intervals that can be read. Reports each stretch between them to
    /// `skipped` and keeps it as an unreadable interval, so that the places of those behind it
    /// agree with the space.
    pub(crate) fn rebuild_partial_index(
        &self,
        table: &mut IntervalTable,
        skipped: &mut dyn FnMut(Error),
    ) -> Result<()> {
        let Some(view) = table.space.as_ref().map(|space| space.view()) else { return Ok(()) };
        table.blobs = HashSet::new();
        let (mut window, mut last) = (SectionReader::new(&view), None);
        let (mut at, mut begin) = (0, 0); // bytes from `begin` to `at` cannot be read
        while at < view.len() {
            let error = match self.scan_section_with(&mut window, at, at + 1) {
                Ok(section) if is_above_last(&section, begin < at, last.as_deref()) => {
                    at = section.end;
                    if begin < section.start {
                        self.add_unreadable(table, begin..section.start, &mut last);
                    }
                    self.add_section(table, section, &mut last)?;
                    begin = at;
                    continue;
                }
                Ok(section) => self.damage(section.start, out_of_order(section.start)),
                Err(error) if error.is_corrupt() => error,
                Err(error) => return Err(error),
            };
            skipped(error);
            at = next_interval(&view, at)?;
            if at - begin > MAX_UNREADABLE {
                return Ok(());
            }
        }
        if begin < at {
            self.add_unreadable(table, begin..at, &mut last);
        }
        Ok(())
    }

    /// Puts an interval without a key behind those that are there: for the keys directly above the
    /// last one.
    fn add_unreadable(&self, table: &mut IntervalTable, range: Range<u64>, last: &mut Option<Vec<u8>>) {
        let separator = last.as_ref().map_or_else(Vec::new, |last| successor(last));
        *last = Some(separator.clone());
        let interval_counts = IntervalCounts { entries: 1, live: 1, runs: 1, has_blobs: false };
        let item = table.new_interval(&separator, interval_counts, &self.interval_cache);
        table.tree.insert(range.start, range.end - range.start, item);
    }

    /// What an interval's bytes say.
    fn decode_interval(&self, start: u64, data: &[u8], blobs: &mut Vec<u64>) -> Result<FoundInterval> {
        let SortedVersions { found, runs, live } =
            SortedVersions::of(data).map_err(|what| self.damage(start, what))?;
        let (Some((_, first)), Some((_, last))) = (found.first(), found.last()) else {
            return Err(self.damage(start, out_of_order(start)));
        };
        let before = blobs.len();
        blobs.extend(found.iter().filter_map(|(_, pair)| match pair.content {
            RecordContent::Blob(blob) => Some(blob.id),
            _ => None,
        }));
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let interval_counts = IntervalCounts {
            entries: count(found.len()),
            live: count(live),
            runs,
            has_blobs: blobs.len() > before,
        };
        let keys = [first.key.to_vec(), last.key.to_vec()];
        Ok(FoundInterval { start, len: data.len() as u64, keys, interval_counts })
    }

    /// Puts intervals behind those that are there.
    fn add_section(
        &self,
        table: &mut IntervalTable,
        section: SpaceSection,
        last: &mut Option<Vec<u8>>,
    ) -> Result<()> {
        for FoundInterval { start, len, keys: [low, high], interval_counts } in section.intervals {
            let separator = match last {
                None => Vec::new(),
                Some(last) if *last < low => shortest_separator(last, &low).to_vec(),
                Some(_) => return Err(self.damage(start, out_of_order(start))),
            };
            let item = table.new_interval(&separator, interval_counts, &self.interval_cache);
            table.tree.insert(start, len, item);
            *last = Some(high);
        }
        table.blobs.extend(section.blobs);
        Ok(())
    }

    fn damage(&self, at: u64, what: Damage) -> Error {
        Error::corrupt(&self.interval_cache.path, at, what)
    }
}

/// The lowest key above `key`.
fn successor(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

/// Returns whether the keys that were read are above `last`, with room for an unreadable interval
/// between them if there is one.
fn is_above_last(section: &SpaceSection, has_unreadable: bool, last: Option<&[u8]>) -> bool {
    let lows = section.intervals.iter().map(|found| &found.keys[0][..]);
    let low = lows.min().unwrap_or_default();
    match (last, has_unreadable) {
        (None, false) => true,
        (None, true) => !low.is_empty(),
        (Some(last), false) => last < low,
        (Some(last), true) => &successor(last)[..] < low,
    }
}

/// Returns where the next interval behind the unreadable one at `at` begins, or may begin; the end
/// of the space if there is none. A readable head of a run says where the run ends. Else it ends
/// with an extent, since runs were inserted in one go: the first one that is not as long as an
/// extent can be.
fn next_interval(view: &SpaceView, mut at: u64) -> Result<u64> {
    let head_at = |at: u64| {
        let mut bytes = [0; MAX_RUN_HEADER];
        let count = view.read(at, &mut bytes).ok()?;
        run::decode_header(&bytes[..count]).ok()
    };
    while at < view.len() {
        let left = view.len() - at;
        let behind = head_at(at).map(|(_, head, len)| (head as u64).saturating_add(len));
        match behind.filter(|len| *len <= left) {
            Some(len) => at += len,
            None => {
                let mut is_run = true;
                while is_run && at < view.len() {
                    is_run = view.may_continue(at);
                    let extent = view.read_extent(at, 0)?;
                    at = extent.map_or(view.len(), |extent| extent.start + extent.len);
                }
            }
        }
        if head_at(at).is_some_and(|(begins, ..)| begins) {
            break;
        }
    }
    Ok(at)
}

fn out_of_order(at: u64) -> Damage {
    Damage::BadField { field: "order of intervals", value: at }
}
