//! # ROOT: the starting point of recovery
//!
//! A [`DoubleSlot`] with the slots `ROOT.0` and `ROOT.1`. ROOT lists everything that recovery
//! needs:
//!
//! - the floor, up to which recovery expects every commit,
//! - the live segments of each log,
//! - the keyspaces as of the floor, and the index checkpoints,
//! - the bounds of numbers that may have been used.
//!
//! A file that neither slot lists is free.
//!
//! ## Invariants
//!
//! 1. Those of a [`DoubleSlot`]: a torn write loses no state, and opening on a full disk can write
//!    the slots.
//! 2. The floor never exceeds the durable commits, and the catalog in a slot is that of its floor.
//! 3. Numbers of commits, segments, keyspaces and blobs are assigned below the bounds in ROOT.
//!    After an unclean close they start above these bounds, so no number is used twice (commit.md
//!    R11).

use std::path::Path;
use std::sync::Arc;

use crate::double_slot::{self, DoubleSlot, DoubleSlotState};
use crate::frame::MAX_SEQ;
use crate::options::EngineOptions;
use crate::root_changes::RootChanges;
use crate::segment::{DATA_START, MAX_CAPACITY};
use crate::types::{Incarnation, KeyspaceId, LogId, SegmentId, Seq, StoreId};
use sheaf_platform::codec::{FieldReader, FieldWriter, utf8};
use sheaf_platform::disk::Disk;
use sheaf_platform::error::{Damage, Error, Result};

/// Version of every file format of this build.
pub const FORMAT: u32 = 6;
/// Version of ROOT, and of BACKUP with the same body, after a keyspace was created with options.
pub const FORMAT_WITH_OPTIONS: u32 = 7;
/// Version of ROOT after changes were retained for the change feed.
pub const FORMAT_WITH_CHANGES: u32 = 8;

/// One keyspace of the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CatalogEntry {
    /// Number of the keyspace.
    pub id: KeyspaceId,
    /// Name of the keyspace.
    pub name: String,
    /// Name of its engine.
    pub engine: String,
    /// Options that were set at its creation.
    pub options: EngineOptions,
}

/// One live segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootSegment {
    /// Number of the segment.
    pub id: SegmentId,
    /// Stream of the log: 0 has commits in order, higher numbers have survivors.
    pub stream: u8,
    /// The incarnation that wrote the segment.
    pub incarnation: Incarnation,
    /// Bytes that the segment may contain.
    pub capacity: u64,
    /// Accepted bytes. If `is_sealed`, these are all bytes, else those known to be durable when
    /// ROOT was written.
    pub end: u64,
    /// Whether no frame may follow `end`.
    pub is_sealed: bool,
    /// Highest sequence number in the segment.
    pub last_seq: Seq,
    /// Number of frames, for estimates.
    pub frames: u32,
}

/// Position in a stream of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPosition {
    /// The segment.
    pub segment: SegmentId,
    /// Offset in the segment.
    pub offset: u64,
}

/// The published checkpoint of the keyspaces of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckpointRef {
    /// Number in the names of its files.
    pub number: u64,
    /// Newest commit that the images contain.
    pub seq: Seq,
    /// Positions in the open segments where replay starts.
    pub open: Vec<LogPosition>,
    /// Replay also reads every segment from this number on, from its start.
    pub next_segment: SegmentId,
    /// The keyspaces that have an image.
    pub keyspaces: Vec<KeyspaceId>,
}

/// One log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RootLog {
    /// Live segments, by number.
    pub segments: Vec<RootSegment>,
    /// Checkpoint of the keyspaces of the log.
    pub checkpoint: CheckpointRef,
    /// Whether commits below the durable mark are missing. Then the keyspaces of the log cannot be
    /// used.
    pub is_broken: bool,
}

/// The state stored in a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// Number of the write of ROOT.
    pub generation: u64,
    /// The database.
    pub store: StoreId,
    /// Secret of the keyed hashes.
    pub hash_key: u128,
    /// The incarnation that wrote this state.
    pub incarnation: Incarnation,
    /// Whether the database was closed cleanly: everything is durable.
    pub is_clean: bool,
    /// Recovery expects every commit up to this one: a missing one is damage.
    pub floor: Seq,
    /// The first sequence number of this incarnation.
    pub first_seq: Seq,
    /// Upper bound: only lower sequence numbers were assigned.
    pub seq_bound: Seq,
    /// Upper bound: only lower segment numbers were assigned before this opening.
    pub next_segment: SegmentId,
    /// Number of the next keyspace.
    pub next_keyspace: KeyspaceId,
    /// Upper bound: only lower blob numbers were assigned.
    pub blob_bound: u64,
    /// The keyspaces as of the floor.
    pub keyspaces: Vec<CatalogEntry>,
    /// Whether a keyspace was ever created with options. Builds that do not know options must
    /// refuse to open the database.
    pub has_options: bool,
    /// The logs, by [`LogId`].
    pub logs: [RootLog; LogId::ALL.len()],
    /// The change feed, if changes were ever retained.
    pub changes: Option<RootChanges>,
}

impl Root {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut w = FieldWriter::default();
        w.u64(self.generation);
        w.u128(self.store.0);
        w.u128(self.hash_key);
        w.u64(self.incarnation.0);
        w.u8(u8::from(self.is_clean));
        for number in [self.floor.0, self.first_seq.0, self.seq_bound.0, self.next_segment.0] {
            w.u64(number);
        }
        w.u32(self.next_keyspace.0);
        w.u64(self.blob_bound);
        w.list(&self.keyspaces, |w, k| {
            w.u32(k.id.0);
            w.bytes(k.name.as_bytes());
            w.bytes(k.engine.as_bytes());
        });
        for log in &self.logs {
            w.list(&log.segments, encode_segment);
            w.u64(log.checkpoint.number);
            w.u64(log.checkpoint.seq.0);
            w.list(&log.checkpoint.open, |w, p| {
                w.u64(p.segment.0);
                w.u64(p.offset);
            });
            w.u64(log.checkpoint.next_segment.0);
            w.list(&log.checkpoint.keyspaces, |w, k| w.u32(k.0));
            w.u8(u8::from(log.is_broken));
        }
        if self.has_options || self.changes.is_some() {
            let chosen: Vec<_> = self.keyspaces.iter().filter(|k| !k.options.is_empty()).collect();
            w.list(&chosen, |w, k| {
                w.u32(k.id.0);
                k.options.encode(w);
            });
        }
        if let Some(changes) = &self.changes {
            w.u8(u8::from(self.has_options));
            changes.encode(&mut w);
        }
        w.0
    }

    pub(crate) fn decode(body: &[u8]) -> Result<Root, Damage> {
        let mut r = FieldReader::new(body);
        let generation = r.counter("generation")?;
        let store = StoreId(r.u128()?);
        let hash_key = r.u128()?;
        let incarnation = Incarnation(r.counter("incarnation")?);
        let clean = r.u8()? != 0;
        let [floor, first_seq, seq_bound] = [r.u64()?, r.u64()?, r.u64()?].map(Seq);
        // No database reaches this number, and one that started there would run out of numbers.
        if let Some(value) = [floor.0, first_seq.0, seq_bound.0].into_iter().find(|seq| *seq > MAX_SEQ / 2) {
            return Err(Damage::bad_field("sequence number", ..=MAX_SEQ / 2, value));
        }
        let next_segment = SegmentId(r.counter("next segment")?);
        let next_keyspace = keyspace(&mut r)?;
        let blob_bound = r.counter("bound of blob numbers")?;
        let mut keyspaces = r.list(|r| {
            let id = keyspace(r)?;
            let (name, engine) = (utf8("name", r.bytes()?)?, utf8("engine", r.bytes()?)?);
            let (name, engine) = (name.to_owned(), engine.to_owned());
            Ok(CatalogEntry { id, name, engine, options: EngineOptions::default() })
        })?;
        let mut logs: [RootLog; LogId::ALL.len()] = Default::default();
        for log in &mut logs {
            log.segments = r.list(decode_segment)?;
            log.checkpoint = CheckpointRef {
                number: r.counter("checkpoint")?,
                seq: Seq(r.counter("checkpoint's commit")?),
                open: r.list(|r| Ok(LogPosition { segment: SegmentId(r.u64()?), offset: r.u64()? }))?,
                next_segment: SegmentId(r.counter("checkpoint's next segment")?),
                keyspaces: r.list(|r| Ok(KeyspaceId(r.u32()?)))?,
            };
            log.is_broken = r.u8()? != 0;
        }
        let mut has_options = !r.rest().is_empty();
        if has_options {
            let mut rest = keyspaces.iter_mut();
            r.list(|r| decode_options(r, &mut rest))?;
        }
        let mut changes = None;
        if !r.rest().is_empty() {
            has_options = r.u8()? != 0;
            let decoded = RootChanges::decode(&mut r)?;
            for retained in &decoded.retained {
                let (id, live) = (retained.segment.id, &logs[retained.log.index()].segments);
                if id >= next_segment || live.iter().any(|segment| segment.id == id) {
                    return Err(Damage::bad_field("retained segment", "one that is not live", id.0));
                }
            }
            changes = Some(decoded);
        }
        r.finish()?;
        Ok(Root {
            generation,
            store,
            hash_key,
            incarnation,
            is_clean: clean,
            floor,
            first_seq,
            seq_bound,
            next_segment,
            next_keyspace,
            blob_bound,
            keyspaces,
            has_options,
            logs,
            changes,
        })
    }
}

/// Encodes the entry of a segment.
pub(crate) fn encode_segment(w: &mut FieldWriter, s: &RootSegment) {
    w.u64(s.id.0);
    w.u8(s.stream);
    w.u64(s.incarnation.0);
    w.u64(s.capacity);
    w.u64(s.end);
    w.u8(u8::from(s.is_sealed));
    w.u64(s.last_seq.0);
    w.u32(s.frames);
}

/// Decodes the options of one of the remaining keyspaces. They are stored in the order of the
/// keyspaces.
fn decode_options<'k>(
    r: &mut FieldReader<'_>,
    rest: &mut impl Iterator<Item = &'k mut CatalogEntry>,
) -> Result<(), Damage> {
    let id = r.u32()?;
    let options = EngineOptions::decode(r)?;
    match rest.find(|k| k.id.0 == id) {
        Some(keyspace) if !options.is_empty() => keyspace.options = options,
        Some(_) => return Err(Damage::bad_field("number of options", 1.., 0)),
        None => {
            let expected = "number of a later keyspace in the list";
            return Err(Damage::bad_field("keyspace of options", expected, u64::from(id)));
        }
    }
    Ok(())
}

/// Decodes the entry of a segment.
pub(crate) fn decode_segment(r: &mut FieldReader<'_>) -> Result<RootSegment, Damage> {
    let entry = RootSegment {
        id: SegmentId(r.counter("segment")?),
        stream: r.u8()?,
        incarnation: Incarnation(r.counter("incarnation")?),
        capacity: r.u64()?,
        end: r.u64()?,
        is_sealed: r.u8()? != 0,
        last_seq: Seq(r.counter("segment's last commit")?),
        frames: r.u32()?,
    };
    let least = if entry.is_sealed { DATA_START } else { 0 };
    if entry.capacity > MAX_CAPACITY {
        return Err(Damage::bad_field("capacity", ..=MAX_CAPACITY, entry.capacity));
    }
    match (least..=entry.capacity).contains(&entry.end) {
        true => Ok(entry),
        false => Err(Damage::bad_field("segment end", least..=entry.capacity, entry.end)),
    }
}

/// Decodes the number of a keyspace. A number that leaves too few for later keyspaces is damage.
///
/// # Errors
///
/// Returns the damage if there are too few bytes, or the number is too large.
pub fn keyspace(r: &mut FieldReader<'_>) -> Result<KeyspaceId, Damage> {
    match r.u32()? {
        id if id <= u32::MAX / 2 => Ok(KeyspaceId(id)),
        id => Err(Damage::bad_field("keyspace", ..=u64::from(u32::MAX / 2), u64::from(id))),
    }
}

/// The two slots of ROOT on disk.
#[derive(Debug)]
pub struct RootSlots(DoubleSlot);

impl DoubleSlotState for Root {
    const STEM: &'static str = "ROOT";
    const MAGIC: &'static [u8; 8] = b"SHEAFROT";
    const NEWEST_VERSION: u32 = FORMAT_WITH_CHANGES;

    fn version(&self) -> u32 {
        match (&self.changes, self.has_options) {
            (Some(_), _) => FORMAT_WITH_CHANGES,
            (None, true) => FORMAT_WITH_OPTIONS,
            (None, false) => FORMAT,
        }
    }

    fn generation(&self) -> u64 {
        self.generation
    }
    fn encode(&self) -> Vec<u8> {
        Root::encode(self)
    }
    fn decode(body: &[u8]) -> Result<Root, Damage> {
        Root::decode(body)
    }
}

impl RootSlots {
    /// Names of the slots.
    pub const NAMES: [&'static str; 2] = ["ROOT.0", "ROOT.1"];

    /// Returns the slots of the database in `dir`.
    #[must_use]
    pub fn new(disk: Arc<dyn Disk>, dir: &Path) -> RootSlots {
        RootSlots(DoubleSlot::new(disk, dir))
    }

    /// Returns whether `name` is that of a slot.
    #[must_use]
    pub fn is_slot(name: &str) -> bool {
        double_slot::is_slot::<Root>(name)
    }

    /// Returns whether `name` is the temporary name of a new slot.
    #[must_use]
    pub fn is_temp_slot(name: &str) -> bool {
        double_slot::is_temp_slot::<Root>(name)
    }

    /// Creates both slots of a new database.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] or [`Error::NoSpace`] if a slot cannot be written or synced.
    pub fn create(&self, root: &Root) -> Result<()> {
        self.write(root)?;
        self.write(&Root { generation: root.generation + 1, ..root.clone() })
    }

    /// Rewrites the slot of `root`, see [`DoubleSlot::rewrite_durably`].
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] or [`Error::NoSpace`] if the slot cannot be written or synced.
    pub fn rewrite_durably(&self, root: &Root) -> Result<()> {
        self.0.rewrite_durably(root)
    }

    /// Writes `root` to the slot of its generation, durably.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] or [`Error::NoSpace`] if the slot cannot be written or synced.
    pub fn write(&self, root: &Root) -> Result<()> {
        self.0.write(root)
    }

    /// Reads the newest valid slot. Returns `Ok(None)` if neither file exists.
    ///
    /// # Errors
    ///
    /// Like [`DoubleSlot::read`].
    pub fn read(&self) -> Result<Option<Root>> {
        self.0.read()
    }

    /// Reports each slot that cannot be read.
    pub fn check(&self, report: &mut impl FnMut(Error)) {
        self.0.check::<Root>(report);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root_changes::RetainedSegment;
    use sheaf_platform::codec::COUNT_LIMIT;

    fn with_keyspaces(options: &[&[(&str, u64)]]) -> Root {
        let chosen = |pairs: &&[(&str, u64)]| {
            let mut options = EngineOptions::default();
            pairs.iter().for_each(|(name, value)| options.set(name, *value));
            options
        };
        let entry = |(id, options)| CatalogEntry {
            id: KeyspaceId(id),
            name: format!("keyspace {id}"),
            engine: "e".to_owned(),
            options,
        };
        let keyspaces: Vec<_> = (1..).zip(options.iter().map(chosen)).map(entry).collect();
        Root {
            generation: 7,
            store: StoreId(1),
            hash_key: 2,
            incarnation: Incarnation(3),
            is_clean: true,
            floor: Seq(4),
            first_seq: Seq(5),
            seq_bound: Seq(6),
            next_segment: SegmentId(7),
            next_keyspace: KeyspaceId(8),
            blob_bound: 9,
            has_options: keyspaces.iter().any(|keyspace| !keyspace.options.is_empty()),
            keyspaces,
            logs: Default::default(),
            changes: None,
        }
    }

    #[test]
    fn only_the_newer_version_stores_keyspace_options() {
        let plain = with_keyspaces(&[&[], &[]]);
        let chosen = with_keyspaces(&[&[("a", 1), ("b", u64::MAX)], &[], &[("c", 0)]]);
        let dropped = Root { has_options: true, ..with_keyspaces(&[&[]]) };
        for (root, version) in
            [(&plain, FORMAT), (&chosen, FORMAT_WITH_OPTIONS), (&dropped, FORMAT_WITH_OPTIONS)]
        {
            assert_eq!(root.version(), version);
            assert_eq!(double_slot::slot_bytes(root)[8..12], version.to_le_bytes());
            assert_eq!(&Root::decode(&root.encode()).unwrap(), root);
        }
        // The first part of the body is the format of older builds.
        let without = with_keyspaces(&[&[], &[], &[]]);
        assert!(chosen.encode().starts_with(&without.encode()));
    }

    #[test]
    fn a_retained_segment_that_is_live_or_not_created_is_damage() {
        let segment = |id| RootSegment {
            id: SegmentId(id),
            stream: 0,
            incarnation: Incarnation(1),
            capacity: 4096,
            end: 1024,
            is_sealed: true,
            last_seq: Seq(3),
            frames: 1,
        };
        let retaining = |id| {
            let retained = RetainedSegment {
                log: LogId::ValueLog,
                segment: segment(id),
                first_seq: Seq(1),
                collected_at: 0,
            };
            let changes = RootChanges {
                feed: 1,
                limits: None,
                start: Seq(0),
                retained: vec![retained],
                keyspaces: Vec::new(),
                cursors: Vec::new(),
            };
            let mut root = Root { changes: Some(changes), ..with_keyspaces(&[&[]]) };
            root.logs[LogId::ValueLog.index()].segments = vec![segment(5)];
            root
        };
        let good = retaining(4);
        assert_eq!((good.version(), Root::decode(&good.encode())), (FORMAT_WITH_CHANGES, Ok(good)));
        for id in [5, 7, 8] {
            assert!(Root::decode(&retaining(id).encode()).is_err(), "segment {id}");
        }
    }

    #[test]
    fn missing_empty_and_duplicate_options_are_damage() {
        let chosen = with_keyspaces(&[&[("a", 1)], &[("a", 1)]]).encode();
        let at = with_keyspaces(&[&[], &[]]).encode().len() + 4;
        let entry = (chosen.len() - at) / 2;
        for (from, id) in [(at, 9u32), (at + entry, 1), (at, 2)] {
            let mut bytes = chosen.clone();
            bytes[from..from + 4].copy_from_slice(&id.to_le_bytes());
            assert!(Root::decode(&bytes).is_err(), "keyspace {id}");
        }
        let mut none = with_keyspaces(&[&[]]).encode();
        [1u32, 1, 0].iter().for_each(|word| none.extend_from_slice(&word.to_le_bytes()));
        assert!(Root::decode(&none).is_err());
        for len in at - 3..chosen.len() {
            assert!(Root::decode(&chosen[..len]).is_err(), "cut at {len}");
        }
    }

    #[test]
    fn the_largest_ids_are_damage() {
        fn entry(id: u64, incarnation: u64, last_seq: u64) -> RootSegment {
            RootSegment {
                id: SegmentId(id),
                stream: 0,
                incarnation: Incarnation(incarnation),
                capacity: 4096,
                end: 4096,
                is_sealed: true,
                last_seq: Seq(last_seq),
                frames: 1,
            }
        }
        let plain = with_keyspaces(&[&[]]);
        let forged: [fn(&mut Root, u64); 10] = [
            |root, number| root.generation = number,
            |root, number| root.incarnation = Incarnation(number),
            |root, number| root.next_segment = SegmentId(number),
            |root, number| root.blob_bound = number,
            |root, number| root.logs[1].checkpoint.number = number,
            |root, number| root.logs[1].checkpoint.seq = Seq(number),
            |root, number| root.logs[1].checkpoint.next_segment = SegmentId(number),
            |root, number| root.logs[0].segments = vec![entry(number, 1, 1)],
            |root, number| root.logs[0].segments = vec![entry(1, number, 1)],
            |root, number| root.logs[0].segments = vec![entry(1, 1, number)],
        ];
        let decoded = |forge: fn(&mut Root, u64), number| {
            let mut root = plain.clone();
            forge(&mut root, number);
            Root::decode(&root.encode())
        };
        for (which, forge) in forged.into_iter().enumerate() {
            assert!(decoded(forge, 1).is_ok(), "number {which}");
            for number in [COUNT_LIMIT, u64::MAX - 1, u64::MAX] {
                let refused = decoded(forge, number);
                assert!(matches!(refused, Err(Damage::BadField { got, .. }) if got == number), "{which}");
            }
        }
        let mut named = plain.clone();
        named.keyspaces[0].id = KeyspaceId(u32::MAX);
        let next = Root { next_keyspace: KeyspaceId(u32::MAX), ..plain.clone() };
        assert!([named, next].iter().all(|root| Root::decode(&root.encode()).is_err()));
    }

    #[test]
    fn a_segment_ends_within_its_file() {
        let encoded = |capacity: u64, end: u64, sealed: bool| {
            let mut w = FieldWriter::default();
            w.u64(7);
            w.u8(0);
            [3, capacity, end].into_iter().for_each(|n| w.u64(n));
            w.u8(u8::from(sealed));
            w.u64(9);
            w.u32(2);
            w.0
        };
        let is_good = |capacity, end, sealed| {
            let bytes = encoded(capacity, end, sealed);
            decode_segment(&mut FieldReader::new(&bytes)).is_ok()
        };
        assert!(is_good(4096, 4096, true) && is_good(4096, 0, false) && is_good(4096, DATA_START, true));
        assert!(!is_good(4096, 4097, false) && !is_good(4096, 0, true));
        assert!(!is_good(u64::MAX, u64::MAX, true), "no address reaches there");
    }
}
