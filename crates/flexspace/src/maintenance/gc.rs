//! # Garbage collection in steps
//!
//! A *pass* selects the emptiest segments and walks the whole index once. A *step* of it examines
//! some thousand entries and copies those in the selected segments without the lock. Under the lock
//! it then remaps the entries that still exist, as one operation. Edits may shift the address range
//! of a step; the writer updates it.
//!
//! ## Progress
//!
//! An extent has at most 1/32 of a segment, and at most 30/32 of all segments without the reserve
//! may be live. So there is always a segment that is at most 15/16 full (paper, section 4.1).
//! Emptying it gains more than the possible loss at a segment's end. The reserve, which users must
//! not take, is the space that a pass copies to. Users that find no space execute steps themselves.
//! Before that, when space is low, each write is delayed a little (`write/throttle.rs`), so that no
//! write waits for long.
//!
//! ## Idle spaces
//!
//! Under load, a small space may have as much garbage as live bytes. One second after the last
//! operation, segments that are at least a quarter garbage are collected. This ends when the
//! garbage is at most a quarter of the live bytes plus four segments. Such a pass writes at most
//! three bytes for each byte that it gains, and ends with fewer segments in use. An idle space
//! therefore soon writes nothing.
//!
//! ## Crash
//!
//! A step is one operation: remaps in one frame. The original bytes remain until it is durable
//! (`maintenance/mod.rs`).

use sheaf_platform::sync::atomic::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use sheaf_platform::error::{Error, Result};
use sheaf_platform::sync::MutexGuard;

use crate::extent::{Extent, footprint};
use crate::format::{ExtentRun, IndexRecord};
use crate::segments::placement::LentBuffer;
use crate::shared::{SharedSpace, SpaceVersion};
use crate::tree::{TreeEntry, TreeItem};
use crate::write::log;
use crate::write::writer::{SegmentState, SpaceOp, SpaceWriter, WriteClass};

/// Minimum and maximum number of segments that one pass empties.
const MIN_VICTIMS: usize = 4;
const MAX_VICTIMS: usize = 64;
/// Twice the number of garbage segments that are tolerated in a space without a limit, in addition
/// to a quarter of the live bytes.
const GARBAGE_SLACK: u64 = 32;
/// Number of garbage segments that are tolerated in an idle space, in addition to a quarter of the
/// live bytes.
const IDLE_SLACK: u64 = 4;
/// Minimum number of segments that an idle pass must gain, so that fewer are in use afterwards.
const MIN_IDLE_GAIN: u64 = 2;
/// This part of a space without a limit may wait to be released.
const RELEASE_DIVISOR: u64 = 128;
/// Bytes of segments that a pass empties for each index entry that it walks over. The walk is then
/// a small part of its work.
const WALK_COST: u64 = 24;

/// One of this many extents is probed in the page cache before all are requested from the device.
const CACHE_PROBE_INTERVAL: usize = 4;

/// A walk over the index.
#[derive(Debug)]
pub(crate) struct GcPass {
    victims: Victims,
    /// True if the space was idle when the pass began. Then the pass continues to its end.
    is_idle: bool,
}

/// Reason for collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GcReason {
    /// Little space is left, or much is garbage.
    LowSpace,
    /// There was no operation for a while.
    Idle,
}

/// Selected segments, as a table because it is searched for every entry of the index.
#[derive(Debug)]
struct Victims(Vec<bool>);

impl Victims {
    fn contains(&self, segment: u32) -> bool {
        self.0.get(segment as usize).copied().unwrap_or(false)
    }

    fn is_empty(&self) -> bool {
        !self.0.contains(&true)
    }
}

/// Entries of one step that are in selected segments, and the version in which they were found.
struct FoundExtents {
    version: Arc<SpaceVersion>,
    entries: Vec<TreeEntry<Extent>>,
    is_last: bool,
}

impl SpaceWriter {
    /// Returns true if little space is left or much is garbage.
    pub(crate) fn is_gc_due(&self) -> bool {
        let g = &self.data_files.geometry;
        if self.is_limited() {
            return self.is_low_on_space();
        }
        if let Some(is_due) = self.is_bounded_gc_due() {
            return is_due;
        }
        self.has_more_garbage_than(u64::from(g.segments_per_file).min(GARBAGE_SLACK) / 2)
    }

    /// Returns true if an idle space has more garbage than is tolerated.
    fn is_idle_gc_due(&self) -> bool {
        !self.is_limited()
            && self.is_bounded_idle_gc_due().unwrap_or_else(|| self.has_more_garbage_than(IDLE_SLACK))
    }

    /// Returns a key. While it does not change, an idle pass that found nothing would find nothing
    /// again.
    fn idle_pass_key(&self) -> (u64, Option<u64>) {
        (self.seq, self.oldest.map(|(version, _)| version))
    }

    /// Returns true if garbage exceeds a quarter of the live bytes plus this number of segments.
    fn has_more_garbage_than(&self, segments: u64) -> bool {
        let g = &self.data_files.geometry;
        let (used, live) = self.used_and_live();
        used * g.segment > live + live / 4 + segments * g.segment
    }

    /// Returns the segments in use and the live bytes in them. Dead segments wait for a sync or a
    /// reader, and collecting more does not free them. The same applies to pinned segments.
    pub(crate) fn used_and_live(&self) -> (u64, u64) {
        let unused = (self.allocator.free.len() + self.allocator.without_blocks.len()) as u64
            + self.dead_segments()
            + self.pinned.segments;
        let used = self.allocator.with_file.saturating_sub(unused);
        (used, self.total_live.saturating_sub(self.pinned.live))
    }

    pub(crate) fn is_limited(&self) -> bool {
        self.allocator.limit < u64::from(u32::MAX)
    }

    /// Returns true if there is a limit and little space is left below it: every freed segment
    /// counts.
    pub(crate) fn is_low_on_space(&self) -> bool {
        self.is_limited() && self.writable_bytes(WriteClass::User) < 2 * self.throttle_threshold()
    }

    /// Returns the number of dead segments for which a release is worth its syncs: `least`, or a
    /// small part of all segments in a space without a limit.
    pub(crate) fn min_release(&self, least: u64) -> u64 {
        if self.is_limited() || self.allocator.bound.is_some() {
            least
        } else {
            least.max(self.allocator.with_file / RELEASE_DIVISOR)
        }
    }

    /// Returns the threshold of writable bytes below which users are throttled. Below twice as
    /// much, garbage is collected. The threshold is a quarter of the space that is neither live nor
    /// reserved, and at most 1/13 of the limit. With much free space, collection then begins when
    /// 85 % of the limit are used.
    pub(crate) fn throttle_threshold(&self) -> u64 {
        let g = &self.data_files.geometry;
        let all = self.allocator.limit.saturating_sub(g.reserve).saturating_mul(g.segment);
        (all.saturating_sub(self.total_live) / 4).min(all / 13)
    }

    /// Selects the emptiest sealed segments with live bytes that fit into the space of the
    /// collector. Excludes segments that the pinned version `held` references: they would take
    /// space and free none.
    fn victims(&self, held: Option<u64>, because: GcReason) -> Victims {
        let g = &self.data_files.geometry;
        let is_at_rest = because == GcReason::Idle;
        let worth = if is_at_rest && self.allocator.bound.is_none() {
            g.segment / 4 * 3
        } else {
            g.segment / 16 * 15
        };
        let mut sealed: Vec<(u64, u32)> = (0..)
            .zip(&self.segments)
            .filter(|(_, s)| {
                s.state == SegmentState::Sealed && s.live > 0 && s.live <= worth && !s.is_damaged
            })
            .filter(|(_, s)| held.is_none_or(|mark| s.open_seq >= mark))
            .map(|(number, segment)| (segment.live, number))
            .collect();
        sealed.sort_unstable();
        // One segment is kept in reserve for extents that edits split during the pass.
        let spare = if self.available_to(WriteClass::Gc) > 1 { g.segment } else { 0 };
        let mut room = self.gc_writable_bytes().saturating_sub(spare);
        let mut victims = Victims(vec![false; self.segments.len()]);
        // A pass walks the whole index. It copies so much that the walk is a small part of its
        // work. It copies no more than that, so that segments are freed a few at a time.
        let few = self.tree.entries().saturating_mul(WALK_COST) / g.segment;
        let few = usize::try_from(few).unwrap_or(MAX_VICTIMS).clamp(MIN_VICTIMS, MAX_VICTIMS);
        let few = if is_at_rest { MAX_VICTIMS } else { few };
        let mut gain = 0;
        for (live, number) in sealed.into_iter().take(few) {
            if live > room {
                break;
            }
            room -= live;
            gain += g.segment - live;
            victims.0[number as usize] = true;
        }
        if is_at_rest && gain < MIN_IDLE_GAIN * g.segment {
            victims.0.clear();
        }
        victims
    }
}

impl SharedSpace {
    /// Executes a step if much is garbage or little space is left; in an idle space, if some is
    /// garbage. Returns true if it did.
    pub(crate) fn gc_if_due(&self) -> Result<bool> {
        if self.writer.lock().is_gc_due() {
            return self.gc_step();
        }
        let goes_on = self.gc_pass.lock().as_ref().is_some_and(|pass| pass.is_idle);
        let is_due = goes_on || (self.is_long_idle() && self.writer.lock().is_idle_gc_due());
        if is_due { self.gc_step_for(GcReason::Idle) } else { Ok(false) }
    }

    /// Executes one step of the current or a new pass. Returns false if no segment is worth
    /// collecting.
    fn gc_step(&self) -> Result<bool> {
        self.gc_step_for(GcReason::LowSpace)
    }

    fn gc_step_for(&self, because: GcReason) -> Result<bool> {
        let mut gc_pass = self.gc_pass.lock();
        if gc_pass.is_none() {
            let mut w = self.writer.lock();
            let read = w.tree.versions_in_use(self.checkpoint_version());
            let held = w.find_long_pinned(&read, self.options.clock.now());
            if because == GcReason::Idle && w.last_idle_pass == Some(w.idle_pass_key()) {
                return Ok(false);
            }
            let victims = w.victims(held, because);
            if victims.is_empty() {
                w.last_idle_pass = Some(w.idle_pass_key());
                return Ok(false);
            }
            w.gc_range = Some((0, 0));
            let data_files = Arc::clone(&w.data_files);
            drop(w);
            (0..)
                .zip(&victims.0)
                .filter(|(_, chosen)| **chosen)
                .for_each(|(segment, _)| data_files.prefetch_segment(segment));
            *gc_pass = Some(GcPass { victims, is_idle: because == GcReason::Idle });
        }
        let Some(pass) = gc_pass.as_mut() else { return Ok(false) };
        let found = self.find_victim_extents(pass);
        let moved = self.read_extents(pass, &found)?;
        // The found version is held until the remap. Its chunks therefore cannot be overwritten: an
        // entry with an unchanged address has unchanged bytes.
        let (is_done, held) = (found.is_last, found.version);
        let repointed = self.remap_copies(moved);
        drop(held);
        let is_full = matches!(repointed, Err(Error::NoSpace { .. } | Error::FileSizeLimit { .. }));
        if is_done || is_full {
            // There was not enough space for all selected segments. The next pass selects again
            // after something was freed.
            let mut w = self.writer.lock();
            w.gc_range = None;
            if is_full {
                w.last_idle_pass = Some(w.idle_pass_key());
            }
            drop(w);
            *gc_pass = None;
        }
        if is_full { Ok(false) } else { repointed.map(|()| true) }
    }

    /// Walks on through the index. Sets the tracked range to the part that was walked.
    fn find_victim_extents(&self, pass: &GcPass) -> FoundExtents {
        let g = &self.geometry;
        let mut w = self.writer.lock();
        let version = self.current.load_full();
        let from = w.gc_range.map_or(0, |(_, to)| to);
        let (mut entries, mut bytes, mut to, mut looked) = (Vec::new(), 0, from, 0);
        for entry in version.tree.range(from) {
            if looked == g.gc_step_entries || bytes >= g.gc_step_bytes {
                break;
            }
            looked += 1;
            to = entry.start + entry.len;
            if !entry.item.is_hole() && pass.victims.contains(w.data_files.segment_of(entry.item)) {
                bytes += entry.len;
                entries.push(entry);
            }
        }
        w.gc_range = Some((from, to));
        let is_last = to >= version.tree.len();
        FoundExtents { version, entries, is_last }
    }

    /// Reads the found entries. Deselects a segment with a damaged block.
    fn read_extents(
        &self,
        pass: &mut GcPass,
        found: &FoundExtents,
    ) -> Result<Vec<(TreeEntry<Extent>, Vec<u8>)>> {
        let data_files = &found.version.data_files;
        // The pass has requested whole segments. With little memory they may have been evicted
        // since.
        if found.entries.iter().step_by(CACHE_PROBE_INTERVAL).any(|entry| !data_files.is_cached(entry.item)) {
            data_files.will_need(found.entries.iter().map(|entry| (entry.item, 0, entry.len)));
        }
        let mut copies = Vec::with_capacity(found.entries.len());
        for entry in &found.entries {
            let mut bytes = vec![0; usize::try_from(entry.len).unwrap_or(usize::MAX)];
            match found.version.data_files.read(entry.item, 0, &mut bytes) {
                Ok(()) => copies.push((*entry, bytes)),
                Err(error) if error.is_corrupt() => {
                    let segment = found.version.data_files.segment_of(entry.item);
                    pass.victims.0[segment as usize] = false;
                    self.writer.lock().segments[segment as usize].is_damaged = true;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(copies)
    }

    /// Writes one copy, usually into a borrowed buffer without the writer's lock.
    fn write_copy(&self, mut bytes: &[u8], lent_buffer: &mut Option<LentBuffer>) -> Result<ExtentRun> {
        let mut run = ExtentRun::new();
        while !bytes.is_empty() {
            if let Some((len, extent)) =
                lent_buffer.as_mut().and_then(|lent_buffer| lent_buffer.write_extent(bytes, &self.geometry))
            {
                run.push((len, extent));
                bytes = &bytes[usize::try_from(len).unwrap_or(usize::MAX)..];
                continue;
            }
            let mut w = self.writer.lock();
            if let Some(full) = lent_buffer.take() {
                w.return_buffer(full);
            }
            if w.needs_buffer() {
                drop(w);
                self.allocate_buffer();
                w = self.writer.lock();
            }
            if w.allocator.is_short_of_buffers() {
                drop(w);
                self.flush()?;
                w = self.writer.lock();
            }
            if w.allocator.free.is_empty() && w.allocator.available_segments() > 0 {
                let more = w.writable_now(WriteClass::Gc) + 1;
                drop(w);
                self.preallocate(WriteClass::Gc, more)?;
                w = self.writer.lock();
            }
            *lent_buffer = w.lend_buffer()?;
            if lent_buffer.is_none() {
                run.extend(w.write_extents(WriteClass::Gc, bytes)?);
                return Ok(run);
            }
        }
        Ok(run)
    }

    /// Writes the copies, and remaps the entries that still reference the originals.
    fn remap_copies(&self, copies: Vec<(TreeEntry<Extent>, Vec<u8>)>) -> Result<()> {
        if copies.is_empty() {
            return Ok(());
        }
        // An entry may have been split since; each part is a record.
        let body = 64 + 64 * 2 * self.geometry.gc_step_entries.min(copies.len() * 4 + 16);
        // Reserves log space before copying, because copies without a log record are useless.
        drop(self.lock_with_log_room(body)?);
        let answer = self.write_and_remap(&copies, body);
        self.writer.lock().finish_gc_segments();
        answer
    }

    /// Locks the writer, with space in the log for a frame of `body` bytes.
    fn lock_with_log_room(&self, body: usize) -> Result<MutexGuard<'_, SpaceWriter>> {
        loop {
            let w = self.writer.lock();
            self.check_writable()?;
            if w.log.backlog() > self.geometry.log_backlog {
                drop(w);
                self.flush()?;
            } else if !w.log.has_room(body) {
                drop(w);
                self.ensure_spare(log::max_frame_bytes(body))?;
            } else {
                return Ok(w);
            }
        }
    }

    /// Does the work of [`SharedSpace::remap_copies`]. The caller must then call
    /// [`SpaceWriter::finish_gc_segments`].
    fn write_and_remap(&self, copies: &[(TreeEntry<Extent>, Vec<u8>)], body: usize) -> Result<()> {
        let mut moved = CopiedRuns::new();
        let (mut bytes, mut write_error, mut lent_buffer) = (0, None, None);
        for (entry, copy) in copies {
            match self.write_copy(copy, &mut lent_buffer) {
                Ok(run) => moved.insert((entry.item.chunk(), entry.item.skip()), (entry.len, run)),
                Err(error) => {
                    write_error = Some(error);
                    // Earlier copies are still remapped.
                    break;
                }
            };
            bytes += footprint(entry.len, self.geometry.checksum_block);
        }
        if let Some(lent_buffer) = lent_buffer {
            self.writer.lock().return_buffer(lent_buffer);
        }
        // Other threads may have used the log space.
        let mut w = self.lock_with_log_room(body)?;
        let Some((from, to)) = w.gc_range else { return Ok(()) };
        let version = self.current.load_full();
        let mut records = records_in_place(copies, &mut moved, &version);
        if !moved.is_empty() {
            // Other threads wait for the lock. The range is searched only for entries that changed
            // since the copying began.
            let room = (body - 64).saturating_sub(records.iter().map(size_of_record).sum());
            records.extend(records_moved(&moved, &version, (from, to), room));
        }
        drop(version);
        self.counters.moved.fetch_add(bytes, Ordering::Relaxed);
        if !records.is_empty() {
            self.commit_records(&mut w, &records);
        }
        write_error.map_or(Ok(()), Err)
    }

    /// Makes `bytes` writable for a user, by collecting if necessary.
    pub(crate) fn make_room(&self, bytes: u64) -> Result<()> {
        loop {
            let dead = {
                let w = self.writer.lock();
                if w.writable_bytes(WriteClass::User) >= bytes {
                    return Ok(());
                }
                w.dead_segments()
            };
            // A release costs a sync. It waits until enough segments are dead or nothing else is
            // possible.
            let is_worth_it = dead >= (self.geometry.reserve / 2).max(1);
            if is_worth_it && self.release()? > 0 || self.gc_step()? || self.release()? > 0 {
                continue;
            }
            // A background thread may have freed segments that this thread did not see.
            if self.writer.lock().writable_bytes(WriteClass::User) < bytes {
                return self.no_space();
            }
        }
    }

    /// Frees unused segments with blocks on a full disk, and empties others by collecting. Returns
    /// true if there are more free segments than before.
    pub(crate) fn reclaim_segments(&self) -> Result<bool> {
        loop {
            if self.release()? > 0 {
                return Ok(true);
            }
            if !self.gc_step()? {
                return Ok(self.release()? > 0 || self.shorten_log()?);
            }
        }
    }

    /// Throttles a user that wrote `bytes` and has `left` more bytes, less than `low`. With
    /// background threads it sleeps; otherwise it executes some of their work. The less is left,
    /// the more.
    pub(crate) fn throttle_write(&self, bytes: u64, left: u64, low: u64) {
        if !self.options.inline {
            return self.throttle.delay(bytes, left, low);
        }
        let scarcity = (16 * (low - left)).div_ceil(low);
        let mut due = bytes.saturating_mul(scarcity).min(self.geometry.gc_step_bytes * 2);
        while due > 0 {
            let before = self.counters.moved.load(Ordering::Relaxed);
            match self.gc_step() {
                Ok(true) => {}
                // The write itself is done. The next writer that needs space reports the error.
                Ok(false) | Err(_) => break,
            }
            due = due.saturating_sub((self.counters.moved.load(Ordering::Relaxed) - before).max(4096));
        }
    }

    /// Rewrites a range, one extent at a time.
    pub(crate) fn defrag(&self, at: u64, len: u64) -> Result<()> {
        let view = self.current.load_full();
        let end = at.saturating_add(len).min(view.tree.len());
        drop(view);
        let mut from = at;
        let mut buffer = Vec::new();
        while from < end {
            let version = self.current.load_full();
            let Some(entry) = version.tree.get(from) else { break };
            if entry.item.is_hole() {
                from = entry.start + entry.len;
                continue;
            }
            let run = version.tree.range(from).take_while(|e| !e.item.is_hole()).last();
            let data_end = run.map_or(from, |last| last.start + last.len);
            let to = end.min(data_end).min(from + self.geometry.max_extent);
            let fragments = version.tree.range(from).take_while(|entry| entry.start < to).count();
            if fragments > 1 {
                buffer.resize(usize::try_from(to - from).unwrap_or(usize::MAX), 0);
                version.read(from, &mut buffer)?;
                let seq = version.tree.version();
                drop(version);
                if !self.rewrite(seq, from, &buffer)? {
                    continue; // The range was changed since: try again.
                }
            }
            from = to;
        }
        Ok(())
    }

    /// Writes `bytes`, read at operation `seq`, to the same position. Returns false if there were
    /// other operations since.
    fn rewrite(&self, seq: u64, at: u64, bytes: &[u8]) -> Result<bool> {
        self.commit_if(&[SpaceOp::Write { at, bytes }], |w| w.seq == seq)
    }
}

/// Copies of extents, by chunk and skipped bytes: length and new location.
type CopiedRuns = BTreeMap<(u64, u64), (u64, ExtentRun)>;

/// Returns the maximum bytes of a record in the log.
fn size_of_record(record: &IndexRecord) -> usize {
    if let IndexRecord::Remap { run, .. } = record { 48 + 16 * run.len() } else { 48 }
}

/// Returns records for entries that are unchanged, and removes these from `moved`.
fn records_in_place(
    copies: &[(TreeEntry<Extent>, Vec<u8>)],
    moved: &mut CopiedRuns,
    version: &SpaceVersion,
) -> Vec<IndexRecord> {
    let mut records = Vec::with_capacity(copies.len());
    for (entry, _) in copies {
        if version.tree.get(entry.start) == Some(*entry)
            && let Some((_, run)) = moved.remove(&(entry.item.chunk(), entry.item.skip()))
        {
            records.push(IndexRecord::Remap { at: entry.start, run });
        }
    }
    records
}

/// Returns records for the remaining copies, by searching the range of the index. Edits may have
/// split and shifted the entries. The records have at most `room` bytes. Entries that do not fit,
/// because they were split into more parts than expected, are left to the next pass.
fn records_moved(
    moved: &CopiedRuns,
    version: &SpaceVersion,
    (from, to): (u64, u64),
    room: usize,
) -> Vec<IndexRecord> {
    let mut records = Vec::new();
    let mut size = 0;
    for entry in version.tree.range(from).take_while(|entry| entry.start < to) {
        let key = (entry.item.chunk(), entry.item.skip());
        let Some((before, (len, run))) = moved.range(..=key).next_back().filter(|_| !entry.item.is_hole())
        else {
            continue;
        };
        let skip = key.1 - before.1.min(key.1);
        if before.0 == key.0 && skip + entry.len <= *len {
            let record = IndexRecord::Remap { at: entry.start, run: sub_run(run, skip, entry.len) };
            size += size_of_record(&record);
            if size > room {
                break;
            }
            records.push(record);
        }
    }
    records
}

/// Returns the part of a run from `skip` on, `len` bytes long.
fn sub_run(run: &ExtentRun, mut skip: u64, mut left: u64) -> ExtentRun {
    let mut part = ExtentRun::new();
    for (len, extent) in run {
        if skip >= *len {
            skip -= len;
            continue;
        }
        let now = (len - skip).min(left);
        if now > 0 {
            part.push((now, extent.suffix(skip)));
        }
        left -= now;
        skip = 0;
    }
    part
}

#[cfg(test)]
mod tests;
