//! # Entry proof: records that an unreadable index certainly had
//!
//! The log alone does not prove that a key exists: a tombstone is freed once checkpoints cover it,
//! and an older record of its key may remain. An image that has the number of index entries for
//! each segment proves it, although pages of the index are lost.
//!
//! ## Picture
//!
//! ```text
//!  log before the checkpoint: newest record of each key, if it is a put ─> candidates by segment
//!  image: entries by segment          entries ⊆ candidates
//!                                     equal numbers, no damage in the segment ─> equal sets
//!  log behind the checkpoint: the newest record of a key counts, as at every opening
//! ```
//!
//! ## Invariants
//!
//! 1. Every entry of the index at the checkpoint, in a segment that exists and is not damaged, is a
//!    candidate of that segment. Its record is the newest of its key, and GC frees only others.
//! 2. Two copies of one version make their segments unprovable, unless the image has no entry in
//!    one of them: the log does not tell which copy the index has.
//!
//! ## Costs
//!
//! One pass over the log for each part of the keys that fits into memory.

use std::collections::{HashMap, HashSet};

use super::open::{SourceDatabase, SourceKeyspace};
use crate::Store;
use crate::recovery::damaged_ranges::{ScanPart, scan_past_damage};
use crate::recovery::replay::{image_entries, replay_start};
use sheaf_log::frame::FrameKind;
use sheaf_log::record::{Record, RecordContent};
use sheaf_log::root::Root;
use sheaf_log::segment::{Address, DATA_START, Segment};
use sheaf_log::types::{LogId, Seq};
use sheaf_platform::error::Result;

/// Segments of which all candidates are entries of the index.
pub(super) struct EntryProof {
    /// Slots of these segments.
    proven: HashSet<u32>,
    /// Offset at which an opening starts to replay a segment, by its slot.
    replay_starts: HashMap<u32, u64>,
    /// Whether this includes all segments with entries, and the log has no damage.
    pub(super) is_whole: bool,
}

impl EntryProof {
    /// Returns true if the newest record of a key belongs to the index if it is at `address`.
    pub(super) fn covers(&self, address: Address) -> bool {
        let is_replayed =
            self.replay_starts.get(&address.slot()).is_some_and(|from| address.offset() >= *from);
        is_replayed || self.proven.contains(&address.slot())
    }
}

/// Newest record of a key before the checkpoint.
struct NewestOfKey {
    seq: Seq,
    /// Slot of its segment; `None` for a tombstone.
    slot: Option<u32>,
}

/// Numbers of entries and candidates of one keyspace.
struct EntryCensus<'a> {
    opened: &'a SourceDatabase,
    source: &'a SourceKeyspace,
    /// Entries of the image by slot.
    entries: HashMap<u32, u64>,
    candidates: HashMap<u32, u64>,
    replay_starts: HashMap<u32, u64>,
    /// Slots of damaged segments.
    damaged: HashSet<u32>,
    /// Slots with copies of versions that other segments have too (I2).
    ambiguous: HashSet<u32>,
}

/// Returns the proof for a keyspace. Returns `None` if its image cannot be read or has no counts.
/// Reads the log `parts` times and calls `done` with the bytes.
///
/// # Errors
///
/// Returns the error of `done`.
pub(super) fn prove_entries(
    (store, root): (&Store, &Root),
    opened: &SourceDatabase,
    source: &SourceKeyspace,
    parts: u64,
    done: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Option<EntryProof>> {
    let Some(factory) = store.factory(&source.engine_name).filter(|_| source.log == Some(LogId::ValueLog))
    else {
        return Ok(None);
    };
    // The engine of the source may have been dropped. This one only knows the options.
    let reader = factory.create(source.id, &source.options, &store.context);
    let read = image_entries(store, root, &opened.segments, opened.cut, (source.id, &*reader));
    let Ok(entries) = read else { return Ok(None) };
    let mut census = EntryCensus {
        opened,
        source,
        entries: entries.into_iter().filter(|(_, count)| *count > 0).collect(),
        candidates: HashMap::new(),
        replay_starts: HashMap::new(),
        damaged: HashSet::new(),
        ambiguous: HashSet::new(),
    };
    let segments = &opened.segments[LogId::ValueLog.index()];
    let checkpoint = &root.logs[LogId::ValueLog.index()].checkpoint;
    let start = |segment: &Segment| Some((segment.slot(), replay_start(checkpoint, segment.id())?));
    census.replay_starts = segments.iter().filter_map(|segment| start(segment)).collect();
    for part in 0..parts {
        let mut newest = HashMap::new();
        for segment in segments {
            census.add_segment(segment, (part, parts), &mut newest);
            done(segment.end())?;
        }
        for slot in newest.into_values().filter_map(|candidate| candidate.slot) {
            *census.candidates.entry(slot).or_default() += 1;
        }
    }
    Ok(Some(census.into_proof()))
}

impl EntryCensus<'_> {
    /// Adds the records of a segment that are in part `part` of `parts` of the keys.
    fn add_segment(
        &mut self,
        segment: &Segment,
        (part, parts): (u64, u64),
        newest: &mut HashMap<Box<[u8]>, NewestOfKey>,
    ) {
        let slot = segment.slot();
        let replay_start = self.replay_starts.get(&slot).copied().unwrap_or(u64::MAX);
        scan_past_damage(segment, DATA_START, segment.end(), false, &mut |found| {
            let ScanPart::Frame(scanned) = found else {
                self.damaged.insert(slot);
                return;
            };
            let header = scanned.frame.header;
            let is_commit = matches!(header.kind, FrameKind::Commit | FrameKind::Relocated);
            if !is_commit || header.seq > self.opened.cut {
                return;
            }
            let Ok(record) = Record::decode(scanned.frame.payload()) else {
                self.damaged.insert(slot);
                return;
            };
            if record.keyspace == self.source.id
                && scanned.offset < replay_start
                && u64::from(crc32c::crc32c(record.key)) % parts == part
            {
                self.add_record(slot, header.seq, &record, newest);
            }
        });
    }

    fn add_record(
        &mut self,
        slot: u32,
        seq: Seq,
        record: &Record<'_>,
        newest: &mut HashMap<Box<[u8]>, NewestOfKey>,
    ) {
        let slot = matches!(record.content, RecordContent::Put(_) | RecordContent::Blob(_)).then_some(slot);
        let Some(other) = newest.get_mut(record.key) else {
            newest.insert(record.key.into(), NewestOfKey { seq, slot });
            return;
        };
        if seq > other.seq {
            *other = NewestOfKey { seq, slot };
        } else if seq == other.seq {
            let has_entries = |slot: &Option<u32>| slot.is_some_and(|slot| self.entries.contains_key(&slot));
            match (has_entries(&other.slot), has_entries(&slot)) {
                (false, _) => other.slot = slot,
                (true, false) => {}
                (true, true) => self.ambiguous.extend(other.slot.into_iter().chain(slot)), // I2
            }
        }
    }

    fn into_proof(self) -> EntryProof {
        let is_proven = |(slot, count): (&u32, &u64)| {
            let is_equal = self.candidates.get(slot) == Some(count);
            (is_equal && !self.damaged.contains(slot) && !self.ambiguous.contains(slot)).then_some(*slot)
        };
        let proven: HashSet<u32> = self.entries.iter().filter_map(is_proven).collect();
        let is_whole = self.damaged.is_empty() && proven.len() == self.entries.len();
        EntryProof { proven, replay_starts: self.replay_starts, is_whole }
    }
}
