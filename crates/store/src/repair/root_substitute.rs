//! # Root substitute: a ROOT built from the headers of segments
//!
//! Segment headers identify their database, so that frames can be verified. Some facts cannot be
//! recovered:
//!
//! - the segments that counted, the start of the replay, and the durable mark;
//! - the hash key, without which an index of hashes cannot be used.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::report::DamageList;
use crate::recovery::damaged_ranges::has_frame;
use sheaf_log::frame::MAX_SEQ;
use sheaf_log::root::{Root, RootSegment};
use sheaf_log::segment::{self, DATA_START, MAX_CAPACITY, Segment, SegmentIdentity};
use sheaf_log::types::{Incarnation, KeyspaceId, LogId, SegmentId, Seq, StoreId};
use sheaf_platform::disk::{Disk, OpenMode};
use sheaf_platform::error::{IoContext, IoOp};

/// Maximum number of incarnations that are tried for a segment with a damaged header.
const MAX_INCARNATIONS: usize = 16;

/// Returns true if `root` is a substitute: no slot has this generation.
pub(super) fn is_substitute(root: &Root) -> bool {
    root.generation == 0
}

/// Builds a substitute from the segments in `path`. Returns `None` if no header is valid.
pub(super) fn make_substitute(disk: &dyn Disk, path: &Path, damages: &mut DamageList) -> Option<Root> {
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for log in LogId::ALL {
        let dir = path.join(log.directory());
        let entries = match disk.list(&dir) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            entries => damages.ok_or_note(entries.during(IoOp::List, &dir)).unwrap_or_default(),
        };
        for entry in entries {
            let Some(id) = segment::number_of(&entry.name) else { continue };
            match Segment::identify(disk, &dir.join(&entry.name)) {
                Ok(identity) if identity.id == id && identity.log == log => good.push(identity),
                Ok(_) => bad.push((log, id)),
                Err(error) => {
                    damages.note_error(&error);
                    bad.push((log, id));
                }
            }
        }
    }
    let store = most_frequent(good.iter().map(|identity| identity.store.0)).map(StoreId)?;
    good.retain(|identity| identity.store == store);
    let lives: BTreeSet<Incarnation> = good.iter().map(|identity| identity.incarnation).collect();
    for (log, id) in bad {
        good.extend(find_identity(disk, path, store, (log, id), &lives));
    }
    let mut root = empty_root(store, lives.last().copied().unwrap_or_default());
    for identity in good {
        root.logs[identity.log.index()].segments.push(entry_of(&identity));
    }
    root.logs.iter_mut().for_each(|log| log.segments.sort_by_key(|segment| segment.id));
    Some(root)
}

/// Returns the most frequent number.
fn most_frequent(numbers: impl Iterator<Item = u128>) -> Option<u128> {
    let mut counts: BTreeMap<u128, u64> = BTreeMap::new();
    numbers.for_each(|number| *counts.entry(number).or_default() += 1);
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(number, _)| number)
}

/// Finds the identity of a segment with a damaged header by checking its frames.
fn find_identity(
    disk: &dyn Disk,
    path: &Path,
    store: StoreId,
    (log, id): (LogId, SegmentId),
    lives: &BTreeSet<Incarnation>,
) -> Option<SegmentIdentity> {
    let dir = path.join(log.directory());
    let file = disk.open(&dir.join(segment::file_name(id)), OpenMode::Read).ok()?;
    let capacity = file.len().ok()?.clamp(DATA_START, MAX_CAPACITY);
    let as_of = |incarnation: &Incarnation| SegmentIdentity {
        store,
        log,
        id,
        stream: 0,
        incarnation: *incarnation,
        capacity,
    };
    let tried = lives.iter().rev().take(MAX_INCARNATIONS).map(as_of);
    tried.into_iter().find(|identity| has_frame(&Segment::open_as(disk, &dir, *identity)))
}

/// Returns an entry without a known end.
fn entry_of(identity: &SegmentIdentity) -> RootSegment {
    RootSegment {
        id: identity.id,
        stream: identity.stream,
        incarnation: identity.incarnation,
        capacity: identity.capacity,
        end: DATA_START,
        is_sealed: false,
        last_seq: Seq::ZERO,
        frames: 0,
    }
}

fn empty_root(store: StoreId, incarnation: Incarnation) -> Root {
    Root {
        has_options: false,
        generation: 0,
        store,
        hash_key: 0,
        incarnation,
        is_clean: false,
        floor: Seq::ZERO,
        first_seq: Seq(1),
        seq_bound: Seq(MAX_SEQ / 2),
        next_segment: SegmentId(u64::MAX),
        next_keyspace: KeyspaceId(u32::MAX),
        blob_bound: 1 << 63,
        keyspaces: Vec::new(),
        logs: Default::default(),
        changes: None,
    }
}
