//! # Root: what stands in for one that cannot be read
//!
//! Segments say themselves whose they are, so their frames can be checked. What cannot be had again: which segments counted, where
//! replay began, what was durable, and the secret of the hashes, without which no index of hashes means anything.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::gaps::has_frame;
use super::report::Harms;
use crate::disk::{Disk, How};
use crate::error::IoContext;
use crate::frame::MAX_SEQ;
use crate::root::{Root, SegmentEntry};
use crate::segment::{self, DATA_START, Identity, MAX_CAPACITY, Segment};
use crate::types::{Incarnation, KeyspaceId, LogId, SegmentId, Seq, StoreId};

/// Incarnations that are tried for a segment whose header is damaged.
const TRIES: usize = 16;

/// Whether `root` was made here: no slot has this generation.
pub(super) fn is_made(root: &Root) -> bool {
    root.generation == 0
}

/// A root for the segments in `path`; none if none of them says whose it is.
pub(super) fn make(disk: &dyn Disk, path: &Path, harms: &mut Harms) -> Option<Root> {
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for log in LogId::ALL {
        let dir = path.join(log.directory());
        let entries = match disk.list(&dir) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            entries => harms.taken(entries.during("list", &dir)).unwrap_or_default(),
        };
        for entry in entries {
            let Some(id) = segment::number_of(&entry.name) else { continue };
            match Segment::identify(disk, &dir.join(&entry.name)) {
                Ok(identity) if identity.id == id && identity.log == log => good.push(identity),
                Ok(_) => bad.push((log, id)),
                Err(error) => {
                    harms.error(&error);
                    bad.push((log, id));
                }
            }
        }
    }
    let store = most(good.iter().map(|identity| identity.store.0)).map(StoreId)?;
    good.retain(|identity| identity.store == store);
    let lives: BTreeSet<Incarnation> = good.iter().map(|identity| identity.incarnation).collect();
    for (log, id) in bad {
        good.extend(find_life(disk, path, store, (log, id), &lives));
    }
    let mut root = blank(store, lives.last().copied().unwrap_or_default());
    for identity in good {
        root.logs[identity.log.index()].segments.push(entry_of(&identity));
    }
    root.logs.iter_mut().for_each(|log| log.segments.sort_by_key(|segment| segment.id));
    Some(root)
}

/// The number that there is most of.
fn most(numbers: impl Iterator<Item = u128>) -> Option<u128> {
    let mut counts: BTreeMap<u128, u64> = BTreeMap::new();
    numbers.for_each(|number| *counts.entry(number).or_default() += 1);
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(number, _)| number)
}

/// Who a segment of a damaged header is: tried on its frames.
fn find_life(
    disk: &dyn Disk,
    path: &Path,
    store: StoreId,
    (log, id): (LogId, SegmentId),
    lives: &BTreeSet<Incarnation>,
) -> Option<Identity> {
    let dir = path.join(log.directory());
    let file = disk.open(&dir.join(segment::file_name(id)), How::Read).ok()?;
    let capacity = file.len().ok()?.clamp(DATA_START, MAX_CAPACITY);
    let as_of = |incarnation: &Incarnation| Identity {
        store,
        log,
        id,
        stream: 0,
        incarnation: *incarnation,
        capacity,
    };
    let tried = lives.iter().rev().take(TRIES).map(as_of);
    tried.into_iter().find(|identity| has_frame(&Segment::open_as(disk, &dir, *identity)))
}

/// Nothing is known of its end.
fn entry_of(identity: &Identity) -> SegmentEntry {
    SegmentEntry {
        id: identity.id,
        stream: identity.stream,
        incarnation: identity.incarnation,
        capacity: identity.capacity,
        end: DATA_START,
        sealed: false,
        last_seq: Seq::ZERO,
        frames: 0,
    }
}

fn blank(store: StoreId, incarnation: Incarnation) -> Root {
    Root {
        has_options: false,
        generation: 0,
        store,
        hash_key: 0,
        incarnation,
        clean: false,
        floor: Seq::ZERO,
        first_seq: Seq(1),
        seq_bound: Seq(MAX_SEQ / 2),
        next_segment: SegmentId(u64::MAX),
        next_keyspace: KeyspaceId(u32::MAX),
        blob_bound: 1 << 63,
        keyspaces: Vec::new(),
        logs: Default::default(),
    }
}
