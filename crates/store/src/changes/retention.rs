//! # Retention: collected segments and superseded blobs that the feed still needs
//!
//! All functions run under the maintenance lock.

use std::collections::HashSet;
use std::sync::Arc;

use super::lifetimes::Lifetimes;
use super::{FeedState, bytes_of};
use crate::expiry::value_form;
use crate::space::log::LogState;
use crate::space::root_writer::{PendingFree, RootState};
use crate::{KeyspaceState, Store};
use sheaf_log::record::{Record, RecordContent};
use sheaf_log::root::Root;
use sheaf_log::root_changes::{RetainedSegment, RetentionLimits};
use sheaf_log::segment::{DATA_START, ScanEnd, Segment, SegmentScan};
use sheaf_log::types::{LogId, SegmentId, Seq};
use sheaf_platform::disk::OpenMode;
use sheaf_platform::error::{Error, Result};
use sheaf_platform::random::random_bits;
use sheaf_platform::sync::atomic::Ordering;

/// Part of the retained bytes that a full disk frees at a time.
const FULL_DISK_DIVISOR: u64 = 4;
/// Segments that a full disk frees at least at a time.
const FULL_DISK_SEGMENTS: usize = 4;

/// Choice of the retention at an opening.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RetentionChoice {
    /// The setting of the last opening stays.
    #[default]
    Keep,
    /// Changes are no longer retained.
    Off,
    /// Changes are retained within these limits.
    On(RetentionLimits),
}

impl FeedState {
    /// Returns whether the limits permit to free the oldest retained segment now.
    fn is_oldest_expired(&self, now: u64) -> bool {
        let Some(oldest) = self.retained.first() else { return false };
        let Some(limits) = self.limits else { return true };
        if bytes_of(&self.retained) > limits.bytes || oldest.segment.last_seq <= self.start {
            return true;
        }
        let is_held = || self.cursors.values().any(|cursor| cursor.oldest() < oldest.segment.last_seq);
        let is_old = now.saturating_sub(oldest.collected_at) >= limits.seconds;
        is_old && !(limits.until_cursors_pass && is_held())
    }

    /// Takes the oldest retained segment and raises the start of the feed above it (I2).
    fn trim_oldest(&mut self) -> RetainedSegment {
        let oldest = self.retained.remove(0);
        self.start = self.start.max(oldest.segment.last_seq);
        oldest
    }
}

impl Store {
    /// Removes a collected segment from the live segments: retains it for the feed, or retires it.
    pub(crate) fn collect_segment(&self, m: &mut RootState, log: &LogState, segment: Arc<Segment>) {
        let is_retained = self.changes.is_on()
            && segment.identity().stream == 0
            && segment.end() > DATA_START
            && self.retain_segment(log.id, &segment);
        log.segments.lock().remove(&segment.id()); // after it is retained (I1)
        m.retire(match is_retained {
            true => PendingFree::RetainedSlot(segment),
            false => PendingFree::Segment(log.id, segment),
        });
    }

    /// Adds a segment to the retained ones. Returns false if the feed does not need it.
    fn retain_segment(&self, log: LogId, segment: &Arc<Segment>) -> bool {
        let first = segment.frame(DATA_START, segment.end());
        let first_seq = first.map_or(Seq::ZERO, |frame| frame.header.seq);
        let collected_at = self.clock.unix_seconds();
        let entry = segment.entry(segment.end(), true);
        let retained = RetainedSegment { log, segment: entry, first_seq, collected_at };
        let added = self.changes.with(|state| {
            if entry.last_seq <= state.start {
                return false;
            }
            let at = state.retained.partition_point(|other| other.segment.last_seq <= entry.last_seq);
            state.retained.insert(at, retained);
            self.changes.retained_bytes.store(bytes_of(&state.retained), Ordering::Relaxed);
            true
        });
        added == Some(true)
    }

    /// Frees the retained segments and the blobs that the limits permit. Returns whether there were
    /// any.
    pub(crate) fn trim_changes(&self, m: &mut RootState) -> bool {
        self.trim_changes_while(m, |state, _| state.is_oldest_expired(self.clock.unix_seconds()))
    }

    /// Returns whether the limits permit to free a retained segment.
    pub(crate) fn is_trim_due(&self) -> bool {
        self.changes.with(|state| state.is_oldest_expired(self.clock.unix_seconds())) == Some(true)
    }

    /// Frees retained segments on a full disk, the oldest first. Returns false if there were none.
    pub(crate) fn trim_changes_for_space(&self, m: &mut RootState) -> bool {
        let least = self.changes.retained_bytes.load(Ordering::Relaxed) / FULL_DISK_DIVISOR;
        self.trim_changes_while(m, |_, trimmed| {
            trimmed.len() < FULL_DISK_SEGMENTS || bytes_of(trimmed) < least
        })
    }

    fn trim_changes_while(
        &self,
        m: &mut RootState,
        goes: impl Fn(&FeedState, &[RetainedSegment]) -> bool,
    ) -> bool {
        let freed = self.changes.with(|state| {
            let (mut trimmed, before) = (Vec::new(), state.start);
            state.start = state.start.max(state.lifetimes.least_start());
            while !state.retained.is_empty() && goes(state, &trimmed) {
                trimmed.push(state.trim_oldest());
            }
            if state.start > before && state.lifetimes.has_dropped_before(state.start) {
                Arc::make_mut(&mut state.lifetimes).forget(state.start);
            }
            let start = state.start;
            let blobs: Vec<u64> =
                state.blobs.extract_if(.., |(seq, _)| *seq <= start).map(|(_, id)| id).collect();
            self.changes.retained_bytes.store(bytes_of(&state.retained), Ordering::Relaxed);
            (trimmed, blobs)
        });
        let Some((trimmed, blobs)) = freed else { return false };
        let any = !trimmed.is_empty() || !blobs.is_empty();
        self.changes.trimmed_segments.fetch_add(trimmed.len() as u64, Ordering::Relaxed);
        for retained in trimmed {
            m.retire(PendingFree::RetainedSegment(retained.log, retained.segment));
        }
        blobs.into_iter().for_each(|id| m.retire(PendingFree::Blob(id)));
        any
    }

    /// Retires superseded blobs, or keeps them for the feed (I3).
    pub(crate) fn collect_blobs(&self, m: &mut RootState, blobs: Vec<u64>) {
        if self.changes.is_on() {
            let superseded_at = self.visible();
            self.changes.with(|state| state.blobs.extend(blobs.iter().map(|id| (superseded_at, *id))));
        } else {
            blobs.into_iter().for_each(|id| m.retire(PendingFree::Blob(id)));
        }
    }

    /// Records that a keyspace got its name at commit `seq`, and that the one it replaces lost it.
    pub(crate) fn note_keyspace_created(&self, keyspace: &KeyspaceState, seq: Seq) {
        self.changes.with(|state| {
            let lifetimes = Arc::make_mut(&mut state.lifetimes);
            lifetimes.end(&keyspace.name(), seq);
            lifetimes.add(keyspace.id(), &keyspace.name(), value_form(keyspace.options()), seq);
        });
    }

    /// Records that a keyspace, which had the name `from`, got its present name at commit `seq`.
    pub(crate) fn note_keyspace_renamed(&self, keyspace: &KeyspaceState, from: &str, seq: Seq) {
        self.note_keyspace_dropped(from, seq);
        self.note_keyspace_created(keyspace, seq);
    }

    /// Records that a keyspace was dropped at commit `seq`.
    pub(crate) fn note_keyspace_dropped(&self, name: &str, seq: Seq) {
        self.changes.with(|state| Arc::make_mut(&mut state.lifetimes).end(name, seq));
    }

    /// Applies the choice of this opening. Called before ROOT is written for the first time.
    pub(crate) fn choose_retention(&mut self, cut: Seq) {
        let choice = self.options.retain_changes;
        if choice == RetentionChoice::Keep {
            return;
        }
        let RetentionChoice::On(limits) = choice else {
            // The next trim frees everything that is retained.
            if let Some(state) = self.changes.state.get_mut() {
                state.limits = None;
                self.changes.is_on.store(false, Ordering::Release);
            }
            return;
        };
        let lifetimes = || {
            let mut lifetimes = Lifetimes::default();
            let mut add =
                |k: &KeyspaceState| lifetimes.add(k.id(), &k.name(), value_form(k.options()), Seq::ZERO);
            self.catalog.map().values().for_each(|keyspace| add(keyspace));
            Arc::new(lifetimes)
        };
        let lifetimes = lifetimes();
        let state = self.changes.state.get_mut().get_or_insert_with(|| FeedState {
            feed: random_bits(),
            limits: None,
            start: cut,
            retained: Vec::new(),
            lifetimes: Arc::clone(&lifetimes),
            cursors: Default::default(),
            blobs: Vec::new(),
        });
        if state.limits.is_none() {
            // Segments may have been freed while the retention was off.
            (state.start, state.lifetimes) = (cut, lifetimes);
        }
        state.limits = Some(limits);
        self.changes.is_on.store(true, Ordering::Release);
    }

    /// Returns the blobs to which changes refer that the feed still has, and whether these are all.
    /// Remembers those that are not in `live`. Reads all segments of stream 0 after the start of
    /// the feed, if the database has blobs.
    pub(crate) fn retained_blobs(&self, live: &HashSet<u64>) -> (HashSet<u64>, bool) {
        let has_blobs = self.context.blobs.files().is_ok_and(|files| !files.is_empty());
        let start = self.changes.with(|state| (state.start, state.retained.clone()));
        let Some((start, retained)) = start.filter(|_| has_blobs && self.changes.is_on()) else {
            return (HashSet::new(), true);
        };
        let (mut found, mut is_whole) = (Vec::new(), true);
        let listed = self.logs.iter().flat_map(LogState::list);
        for segment in listed.filter(|s| s.identity().stream == 0 && s.last_seq() > start) {
            is_whole &= blob_records(&segment, start, &mut found);
        }
        for retained in &retained {
            is_whole &= match self.open_retained(retained) {
                Ok(segment) => blob_records(&segment, start, &mut found),
                Err(_) => false,
            };
        }
        let needed = found.iter().map(|(_, id)| *id).collect();
        found.retain(|(_, id)| !live.contains(id));
        self.changes.with(|state| state.blobs = found);
        (needed, is_whole)
    }

    /// Opens the file of a retained segment.
    pub(super) fn open_retained(&self, retained: &RetainedSegment) -> Result<Segment> {
        let (dir, id) = (&self.log(retained.log).dir, retained.segment.id);
        let segment = Segment::open(&*self.disk, dir, id, self.identity.id, retained.log, OpenMode::Read)?;
        segment.publish(retained.segment.end);
        segment.note_frames(retained.segment.frames, retained.segment.last_seq);
        segment.seal(0);
        Ok(segment)
    }
}

/// Adds the blobs to which commits after `start` in `segment` refer, each with its seq. Returns
/// false if the segment is damaged.
fn blob_records(segment: &Segment, start: Seq, found: &mut Vec<(Seq, u64)>) -> bool {
    let mut scan = SegmentScan::new(segment, 0, segment.end());
    for scanned in scan.by_ref().filter(|scanned| scanned.frame.header.seq > start) {
        if let Ok(Record { content: RecordContent::Blob(blob), .. }) = Record::decode(scanned.frame.payload())
        {
            found.push((scanned.frame.header.seq, blob.id));
        }
    }
    matches!(scan.stop(), ScanEnd::Sealed(_))
}

/// Returns the retained segments of `log` that ROOT lists.
pub(crate) fn retained_ids(root: &Root, log: LogId) -> HashSet<SegmentId> {
    let retained = root.changes.iter().flat_map(|changes| &changes.retained);
    retained.filter(|retained| retained.log == log).map(|retained| retained.segment.id).collect()
}

impl Store {
    /// Returns an error for each retained segment that is damaged.
    pub(crate) fn verify_retained(&self, found: &mut impl FnMut(Error), frames: &mut u64, bytes: &mut u64) {
        let retained = self.changes.with(|state| state.retained.clone()).unwrap_or_default();
        for entry in retained {
            let checked = self.open_retained(&entry).and_then(|segment| {
                let mut scan = SegmentScan::new(&segment, 0, segment.end());
                for scanned in scan.by_ref() {
                    *frames += 1;
                    *bytes += scanned.frame.span();
                }
                scan.take_error().map_or(Ok(()), Err)
            });
            let is_retained = || {
                let is_it = |other: &RetainedSegment| other.segment.id == entry.segment.id;
                self.changes.with(|state| state.retained.iter().any(is_it)) == Some(true)
            };
            if let Err(error) = checked
                && is_retained()
            {
                found(error);
            }
        }
    }
}
