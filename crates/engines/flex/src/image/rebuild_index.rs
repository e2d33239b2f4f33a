//! # Index rebuild: the index, read from the space
//!
//! After a crash during a flush, the space is ahead of the image of the index, or the image may be
//! damaged or missing. Then several threads scan sections of the space to find its intervals.
//!
//! ## First interval of a section
//!
//! ```text
//!   | section          | section                 | section
//!   I......I......I......I......I......I......I......I......          I: start of an interval
//!                      |-^ the first extent that begins with the header of a first run: a guess
//! ```
//!
//! A run was inserted in one operation, so it begins an extent. But an extent may also be the rest
//! of a long run and begin with any bytes. So a scan of a section begins at a guess. The scan ends
//! before the first interval that begins at or behind the end of the section. Finally the sections
//! are joined from the start of the space. If a section does not begin where the one before ended,
//! its guess was wrong, and it is read again. The result equals that of a sequential scan.
//!
//! ## Costs
//!
//! A sequential read of the space with its checksums, and a decoding of each pair
//! (docs/decisions/0009). The paper reads only one key per 8 to 64 KiB. Here every pair must be
//! read: pairs contain the references to blobs, and opening deletes blobs without a reference.

use std::collections::HashSet;
use std::ops::Range;

use sheaf_engine::keys::shortest_separator;
use sheaf_flexspace::SpaceView;
use sheaf_log::record::RecordContent;
use sheaf_log::types::Seq;
use sheaf_platform::error::{Damage, Error, Result};
use sheaf_platform::parallel::{opening_threads, run_parallel};
use sheaf_platform::sync::atomic::{AtomicU64, Ordering};

use crate::engine::FlexEngine;
use crate::index::slots::IntervalCounts;
use crate::index::table::IntervalTable;
use crate::interval::block::SortedVersions;
use crate::interval::run::{self, MAX_RUN_HEADER};

/// Bytes of a section; a thread takes one section after the other.
const SECTION_BYTES: u64 = 4 << 20;
const TINY_SECTION_BYTES: u64 = 2 << 10;
/// Bytes that are read at a time.
const READ_WINDOW: u64 = 512 << 10;
/// Largest unreadable range. Behind a larger one, all intervals are skipped, because readers hold a
/// whole range in memory.
const MAX_UNREADABLE: u64 = 64 << 20;

/// An interval found in the space.
#[derive(Debug)]
struct FoundInterval {
    start: u64,
    len: u64,
    /// Lowest and highest key of the interval.
    keys: [Vec<u8>; 2],
    /// Newest commit with a pair in the interval.
    newest: Seq,
    interval_counts: IntervalCounts,
}

/// Consecutive intervals of a section, the blobs that they refer to, and the end of the last
/// interval.
#[derive(Debug, Default)]
struct SpaceSection {
    start: u64,
    intervals: Vec<FoundInterval>,
    blobs: Vec<u64>,
    end: u64,
}

/// Reads a view sequentially.
struct SectionReader<'a> {
    view: &'a SpaceView,
    at: u64,
    bytes: Vec<u8>,
    /// Below this offset nothing is read ahead, because the bytes there are damaged.
    exact_until: u64,
}

impl SectionReader<'_> {
    fn new(view: &SpaceView) -> SectionReader<'_> {
        SectionReader { view, at: 0, bytes: Vec::new(), exact_until: 0 }
    }

    /// Returns `len` bytes at `at`, which must not decrease; fewer at the end of the space.
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

    /// Reads `ahead` bytes from `at`, or only the `needed` ones if not all can be read.
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
    /// Adds the intervals of the space to the table.
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
                // Damage is found again by the sequential pass below.
                let Ok(start) = self.guess_interval_start(&view, &range) else { continue };
                // No interval begins before `start`: skip those sections. A damaged space that
                // claims to be larger than any file then costs no more.
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
                continue; // a long interval reaches beyond it
            }
            if section.start != at {
                self.add_section(table, self.scan_section(&view, at, end)?, &mut last)?;
            } else {
                self.add_section(table, section, &mut last)?;
            }
            at = table.tree.len();
        }
        if at < len {
            // reports the damage
            self.add_section(table, self.scan_section(&view, at, len)?, &mut last)?;
        }
        Ok(())
    }

    /// Returns where the first interval in `range` seems to begin.
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

    /// Returns the intervals from `start`, an offset in the space, up to the first one that begins
    /// at or behind `end`.
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
            // Skip the first run of the interval and the runs appended to it.
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
                if !begins && at == interval {
                    return Err(self.damage(at, run::kind_damage(true, bytes)));
                }
                if len > left {
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

    /// Adds the readable intervals to the table, for a repair. Reports each range between them to
    /// `skipped` and adds it as an unreadable interval, so that the offsets of later intervals
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

    /// Adds an interval without a readable key behind the existing ones. Its separator is directly
    /// above the last key.
    fn add_unreadable(&self, table: &mut IntervalTable, range: Range<u64>, last: &mut Option<Vec<u8>>) {
        let separator = last.as_ref().map_or_else(Vec::new, |last| successor(last));
        *last = Some(separator.clone());
        let interval_counts = IntervalCounts { entries: 1, live: 1, runs: 1, has_blobs: false };
        let item = table.new_interval(&separator, interval_counts, &self.interval_cache);
        table.tree.insert(range.start, range.end - range.start, item);
    }

    /// Decodes the bytes of an interval, and adds its blobs to `blobs`.
    fn decode_interval(&self, start: u64, data: &[u8], blobs: &mut Vec<u64>) -> Result<FoundInterval> {
        let SortedVersions { found, runs, live } =
            SortedVersions::of(data).map_err(|what| self.damage(start, what))?;
        let (Some((_, first)), Some((_, last))) = (found.first(), found.last()) else {
            return Err(self.damage(start, Damage::bad_field("pairs of an interval", 1.., 0)));
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
        let newest = found.iter().map(|(_, pair)| pair.seq).max().unwrap_or(Seq::ZERO);
        Ok(FoundInterval { start, len: data.len() as u64, keys, newest, interval_counts })
    }

    /// Adds intervals behind the existing ones.
    fn add_section(
        &self,
        table: &mut IntervalTable,
        section: SpaceSection,
        last: &mut Option<Vec<u8>>,
    ) -> Result<()> {
        for FoundInterval { start, len, keys: [low, high], newest, interval_counts } in section.intervals {
            let separator = match last {
                None => Vec::new(),
                Some(last) if *last < low => shortest_separator(last, &low).to_vec(),
                Some(_) => return Err(self.damage(start, out_of_order(start))),
            };
            let item = table.new_interval(&separator, interval_counts, &self.interval_cache);
            table.tree.insert(start, len, item);
            table.newest_rebuilt = table.newest_rebuilt.max(newest);
            *last = Some(high);
        }
        table.blobs.extend(section.blobs);
        Ok(())
    }

    fn damage(&self, at: u64, what: Damage) -> Error {
        Error::corrupt(&self.interval_cache.path, at, "interval", what)
    }
}

/// Returns the lowest key above `key`.
fn successor(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

/// Returns whether the keys of a section are above `last`, with room for an unreadable interval in
/// between if there is one.
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
/// of the space if there is none. If the header of a run is readable, it contains the end of the
/// run. Otherwise the run ends with the first extent below the maximum length, since a run was
/// inserted in one operation.
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
    Damage::bad_field("start of an interval", "one with keys above those before it", at)
}
