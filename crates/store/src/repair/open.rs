//! # Opening of a damaged database, as far as possible
//!
//! ```text
//!  ROOT or substitute -> segments, even with damaged headers -> damage scan -> catalog -> images
//!    -> replay past damage -> keyspaces: with an engine that knows the newest versions, or without
//! ```
//!
//! Each keyspace is handled separately. If an image or file of it is damaged, or its engine fails
//! during replay, it has no engine: only its records are known.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::damage_scan::{Doubts, scan_damage};
use super::report::DamageList;
use super::root_substitute::is_substitute;
use crate::expiry::with_keyspace_options;
use crate::keyspace::catalog::decode_entry;
use crate::recovery::damaged_ranges::{self, ScanPart, scan_past_damage};
use crate::recovery::recover::{FoundSegment, Recovery};
use crate::recovery::replay::{replay_start, restore_keyspace};
use crate::{KeyspaceState, Store};
use sheaf_engine::checkpoint_file;
use sheaf_engine::contract::{Engine, EngineFactory, ReplayRecord};
use sheaf_log::frame::FrameKind;
use sheaf_log::options::EngineOptions;
use sheaf_log::record::Record;
use sheaf_log::root::{CatalogEntry, Root, RootSegment};
use sheaf_log::segment::{self, Address, DATA_START, MAX_CAPACITY, Segment};
use sheaf_log::types::{KeyspaceId, LogId, SegmentId, Seq};
use sheaf_platform::disk::OpenMode;
use sheaf_platform::error::{Error, IoOp, Result};

/// Data about single keys takes at most the memory budget divided by this.
const KEY_BUDGET_DIVISOR: u64 = 8;
/// Estimated bytes of a remembered key in addition to the key.
const ENTRY_OVERHEAD: u64 = 64;

/// Keyspace of the damaged database.
pub(super) struct SourceKeyspace {
    pub(super) id: KeyspaceId,
    pub(super) name: String,
    pub(super) engine_name: String,
    /// Chosen options of the engine.
    pub(super) options: EngineOptions,
    /// `None` if this build does not have the engine.
    pub(super) log: Option<LogId>,
    /// Not in the catalog: it may be unpublished, or dropped.
    pub(super) is_unnamed: bool,
    /// Whether a keyspace without a name has files of its engine.
    pub(super) has_files: bool,
    /// Engine that knows the newest versions.
    pub(super) engine: Option<Arc<dyn Engine>>,
    /// Reason for a missing or incomplete engine.
    pub(super) index_error: Option<String>,
    /// Whether files were skipped: their content is lost.
    pub(super) has_skipped_files: bool,
}

impl SourceKeyspace {
    /// Returns the name of its engine, for errors.
    pub(super) fn static_engine_name(&self) -> &'static str {
        self.engine.as_ref().map_or("unknown", |engine| engine.name())
    }
}

/// The opened damaged database.
pub(super) struct SourceDatabase {
    pub(super) segments: Vec<Vec<Arc<Segment>>>,
    pub(super) sources: Vec<SourceKeyspace>,
    pub(super) cut: Seq,
    pub(super) doubts: Doubts,
    /// Whether neither slot of ROOT could be read.
    pub(super) is_root_unreadable: bool,
    /// Newest replayed commit of each keyspace.
    newest_seqs: HashMap<KeyspaceId, Seq>,
    /// Keys with a version that is newer than all doubts.
    certain_keys: HashMap<KeyspaceId, HashSet<Box<[u8]>>>,
    /// Keys with a record that the engine could not replay.
    pub(super) failed_keys: HashMap<KeyspaceId, HashSet<Box<[u8]>>>,
    /// Memory left for data about single keys.
    memory_left: u64,
}

impl SourceDatabase {
    /// Returns true if missing data may have superseded or removed a version. `seq` is not known
    /// for pairs from a walk.
    pub(super) fn is_doubtful(&self, source: &SourceKeyspace, key: &[u8], seq: Option<Seq>) -> bool {
        source.index_error.is_some() || self.is_doubtful_in_log(source, key, seq)
    }

    /// Like [`SourceDatabase::is_doubtful`], for a version that the index has with certainty.
    pub(super) fn is_doubtful_in_log(&self, source: &SourceKeyspace, key: &[u8], seq: Option<Seq>) -> bool {
        let Some(log) = source.log else { return true };
        if self.is_keyspace_doubtful(source) {
            return true;
        }
        let doubt = self.doubts.logs[log.index()];
        let is_sure = || self.certain_keys.get(&source.id).is_some_and(|sure| sure.contains(key));
        doubt > Seq::ZERO && seq.is_none_or(|seq| seq <= doubt) && !is_sure()
    }

    /// Returns true if it is doubtful that the keyspace exists.
    fn is_keyspace_doubtful(&self, source: &SourceKeyspace) -> bool {
        self.is_root_unreadable || source.is_unnamed || self.may_be_dropped(source.id)
    }

    /// Returns true if missing data may have changed any pair of the keyspace.
    pub(super) fn has_doubts(&self, source: &SourceKeyspace) -> bool {
        self.is_keyspace_doubtful(source)
            || source.log.is_none_or(|log| self.doubts.logs[log.index()] > Seq::ZERO)
    }

    /// Returns true if missing data may have dropped or cleared the keyspace: no commit to it is
    /// known after that.
    fn may_be_dropped(&self, id: KeyspaceId) -> bool {
        let alive = self.newest_seqs.get(&id).copied().unwrap_or_default();
        self.doubts.catalog > Seq::ZERO && alive <= self.doubts.catalog
    }
}

/// Opens the database of `root`.
pub(super) fn open_damaged(store: &Store, root: &Root, damages: &mut DamageList) -> Result<SourceDatabase> {
    let is_rootless = is_substitute(root);
    let mut recovery = Recovery::new(store, root);
    for log in LogId::ALL {
        let founds = find_segments(&recovery, log, damages)?;
        recovery.logs.push(founds);
        recovery.damaged_logs.push(None);
    }
    let doubts = scan_damage(&mut recovery, damages);
    let cut = recovery.cut;
    let mut entries = read_catalog(&recovery);
    let named = entries.len();
    if is_rootless || doubts.catalog > Seq::ZERO {
        add_unnamed(&recovery, &mut entries, damages);
    }
    let segments = recovery.assign_slots(true)?;
    let room = store.options.memory_budget / KEY_BUDGET_DIVISOR;
    let mut opened = SourceDatabase {
        segments,
        sources: Vec::new(),
        cut,
        doubts,
        is_root_unreadable: is_rootless,
        newest_seqs: HashMap::new(),
        certain_keys: HashMap::new(),
        failed_keys: HashMap::new(),
        memory_left: room,
    };
    opened.open_keyspaces(store, root, entries, damages)?;
    for source in opened.sources.iter_mut().skip(named) {
        source.is_unnamed = true;
        let has_files =
            store.context.engine_dir.as_ref().map(|engine_dir| engine_dir.has_files(source.id)).transpose();
        source.has_files = damages.ok_or_note(has_files).flatten().unwrap_or(false);
    }
    opened.replay(root, damages);
    Ok(opened)
}

/// Returns the segments of `log`: those that ROOT lists, and newer ones.
fn find_segments(recovery: &Recovery<'_>, log: LogId, damages: &mut DamageList) -> Result<Vec<FoundSegment>> {
    let (store, root) = (recovery.store, recovery.root);
    let dir = &store.log(log).dir;
    let mut entries: BTreeMap<SegmentId, Option<RootSegment>> =
        root.logs[log.index()].segments.iter().map(|s| (s.id, Some(*s))).collect();
    match store.disk.list(dir) {
        Ok(names) if !root.is_clean => {
            let ids = names.iter().filter_map(|entry| segment::number_of(&entry.name));
            for id in ids.filter(|id| *id >= root.next_segment) {
                entries.entry(id).or_default();
            }
        }
        Ok(_) => {}
        Err(error) => damages.note_skipped(&Error::io(IoOp::List, dir, error)),
    }
    let mut founds = Vec::new();
    for (id, entry) in entries {
        let Some(segment) = open_segment(recovery, log, id, entry, damages) else { continue };
        let end = entry.map_or(DATA_START, |e| e.end);
        let (frames, last_seq) = entry.map_or((0, Seq::ZERO), |e| (e.frames, e.last_seq));
        founds.push(FoundSegment { segment, root_entry: entry, runs: Vec::new(), end, frames, last_seq });
    }
    Ok(founds)
}

/// Opens a segment by its header, or by its entry in ROOT. Returns `None` for a segment that is
/// newer than ROOT and has no valid frame: it may never have been written.
fn open_segment(
    recovery: &Recovery<'_>,
    log: LogId,
    id: SegmentId,
    entry: Option<RootSegment>,
    damages: &mut DamageList,
) -> Option<Segment> {
    let store = recovery.store;
    let dir = &store.log(log).dir;
    let known = entry.as_ref().map(|entry| recovery.identity(log, entry));
    let error = match Segment::open(&*store.disk, dir, id, store.identity.id, log, OpenMode::Read) {
        // An empty segment may have been restamped since ROOT was written.
        Ok(segment) if entry.is_none_or(|e| e.end <= DATA_START || known == Some(*segment.identity())) => {
            return Some(segment);
        }
        Ok(_) => None,
        Err(error) => Some(error),
    };
    if let Some(identity) = known {
        error.iter().for_each(|error| damages.note_error(error));
        return Some(Segment::open_as(&*store.disk, dir, identity));
    }
    // The opening that wrote ROOT has written it.
    let path = dir.join(segment::file_name(id));
    let len = store.disk.open(&path, OpenMode::Read).and_then(|file| file.len()).unwrap_or(0);
    let incarnation = recovery.root.incarnation;
    let capacity = len.clamp(DATA_START, MAX_CAPACITY);
    let identity =
        segment::SegmentIdentity { store: store.identity.id, log, id, stream: 0, incarnation, capacity };
    let segment = Segment::open_as(&*store.disk, dir, identity);
    let is_good = damaged_ranges::has_frame(&segment);
    if is_good {
        error.iter().for_each(|error| damages.note_error(error));
    }
    is_good.then_some(segment)
}

/// Returns the keyspaces at the cut, as far as they are known.
fn read_catalog(recovery: &Recovery<'_>) -> Vec<CatalogEntry> {
    let root = recovery.root;
    let mut entries: BTreeMap<String, CatalogEntry> =
        root.keyspaces.iter().map(|k| (k.name.clone(), k.clone())).collect();
    if root.is_clean {
        return entries.into_values().collect();
    }
    for_each_commit(recovery, LogId::Journal, &mut |seq, record| {
        if seq <= root.floor || record.keyspace != KeyspaceId::CATALOG {
            return;
        }
        match decode_entry(record) {
            Ok((name, Some(entry), _)) => drop(entries.insert(name, entry)),
            Ok((name, None, _)) => drop(entries.remove(&name)),
            Err(_) => {} // with a valid checksum, but in a form that this build does not know
        }
    });
    entries.into_values().collect()
}

/// Adds keyspaces with records or a directory, but without an entry: the commit that created them
/// may be missing.
fn add_unnamed(recovery: &Recovery<'_>, entries: &mut Vec<CatalogEntry>, damages: &mut DamageList) {
    let store = recovery.store;
    let mut ids: BTreeSet<(KeyspaceId, Option<LogId>)> = BTreeSet::new();
    for log in LogId::ALL {
        for_each_commit(recovery, log, &mut |_, record| {
            ids.insert((record.keyspace, Some(log)));
        });
    }
    if let (true, Some(engine_dir)) = (is_substitute(recovery.root), &store.context.engine_dir) {
        let all = damages.ok_or_note(engine_dir.ids()).unwrap_or_default();
        let with_files = all.into_iter().filter(|id| !ids.iter().any(|(known, _)| known == id));
        ids.extend(with_files.map(|id| (id, None)).collect::<Vec<_>>());
    }
    let known: HashSet<KeyspaceId> = entries.iter().map(|entry| entry.id).collect();
    for (id, log) in ids.into_iter().filter(|(id, _)| *id != KeyspaceId::CATALOG && !known.contains(id)) {
        let Some(engine) = guess_engine(store, log, id) else { continue };
        let mut name = format!("lost-{}", id.0);
        while entries.iter().any(|entry| entry.name == name) {
            name.push('+');
        }
        entries.push(CatalogEntry { id, name, engine, options: EngineOptions::default() });
    }
}

/// Calls `each` with the records of all commits in `log` that count, in the order of the log.
fn for_each_commit(recovery: &Recovery<'_>, log: LogId, each: &mut dyn FnMut(Seq, &Record<'_>)) {
    for found in &recovery.logs[log.index()] {
        scan_past_damage(&found.segment, DATA_START, found.end, false, &mut |part| {
            let ScanPart::Frame(scanned) = part else { return };
            let header = scanned.frame.header;
            let counts =
                matches!(header.kind, FrameKind::Commit | FrameKind::Relocated) && header.seq <= recovery.cut;
            if let (true, Ok(record)) = (counts, Record::decode(scanned.frame.payload())) {
                each(header.seq, &record);
            }
        });
    }
}

impl SourceDatabase {
    /// Creates the keyspaces and restores them from their images and files.
    fn open_keyspaces(
        &mut self,
        store: &Store,
        root: &Root,
        entries: Vec<CatalogEntry>,
        damages: &mut DamageList,
    ) -> Result<()> {
        for entry in entries {
            let source = self.open_keyspace(store, root, entry, damages)?;
            self.sources.push(source);
        }
        Ok(())
    }

    /// Creates a keyspace and restores it from its image and files.
    fn open_keyspace(
        &self,
        store: &Store,
        root: &Root,
        entry: CatalogEntry,
        damages: &mut DamageList,
    ) -> Result<SourceKeyspace> {
        let CatalogEntry { id, name, engine: engine_name, options } = entry;
        let Some(factory) = store.factory(&engine_name) else {
            let unindexed = Some(format!("this build has no engine {engine_name:?}"));
            let engine_name = guess_engine(store, None, id).unwrap_or(engine_name);
            return Ok(SourceKeyspace {
                id,
                name,
                engine_name,
                options: EngineOptions::default(),
                log: None,
                is_unnamed: false,
                has_files: false,
                engine: None,
                index_error: unindexed,
                has_skipped_files: false,
            });
        };
        // Options that the engine does not permit are damage. Data that was written with them
        // cannot be read, and the engine detects that.
        let is_allowed = options.check(&engine_name, &with_keyspace_options(factory.options())).is_ok();
        let options = if is_allowed { options } else { EngineOptions::default() };
        let engine = store.create_engine(&**factory, id, &options);
        let log = engine.log();
        let keyspace =
            KeyspaceState::new(id, &name, Arc::clone(&engine), options.clone(), Seq::ZERO, &store.context);
        let restored = match (self.is_root_unreadable, log) {
            (false, _) => restore_keyspace(store, root, &self.segments, self.cut, &keyspace).map_err(Some),
            // The hash key is lost, and with it every index that contains hashes.
            (true, LogId::ValueLog) => Err(None),
            (true, LogId::Journal) => {
                let root = with_newest_image(store, root, id);
                restore_keyspace(store, &root, &self.segments, self.cut, &keyspace).map_err(Some)
            }
        };
        let mut has_skipped = false;
        let (engine, unindexed) = match restored {
            Ok(_) => (Some(engine), None),
            Err(None) => (None, Some("no ROOT file could be read".to_owned())),
            Err(Some(error)) => {
                let error = into_damage(error)?;
                damages.note_error(&error);
                // A partly restored engine must not be used.
                let anew = store.create_engine(&**factory, id, &options);
                let rest = anew.restore_partial(&mut |error| {
                    has_skipped = true;
                    damages.note_error(&error);
                });
                let rest = rest.is_ok();
                // Without its files, only the records in the log are left.
                has_skipped |= !rest && log == LogId::Journal;
                (rest.then_some(anew), Some(error.to_string()))
            }
        };
        Ok(SourceKeyspace {
            id,
            name,
            engine_name,
            options,
            log: Some(log),
            is_unnamed: false,
            has_files: false,
            engine,
            index_error: unindexed,
            has_skipped_files: has_skipped,
        })
    }

    /// Replays the records behind the checkpoints, as far as they can be read.
    fn replay(&mut self, root: &Root, damages: &mut DamageList) {
        let by_id: HashMap<KeyspaceId, usize> =
            self.sources.iter().enumerate().map(|(at, source)| (source.id, at)).collect();
        for log in LogId::ALL {
            for segment in self.segments[log.index()].clone() {
                let from = replay_start(&root.logs[log.index()].checkpoint, segment.id());
                let from = from.filter(|from| *from < segment.end());
                let Some(from) = from else { continue };
                scan_past_damage(&segment, from, segment.end(), false, &mut |part| {
                    let ScanPart::Frame(scanned) = part else { return };
                    let header = scanned.frame.header;
                    let is_due = matches!(header.kind, FrameKind::Commit | FrameKind::Relocated)
                        && header.seq <= self.cut;
                    let Some(record) = Record::decode(scanned.frame.payload()).ok().filter(|_| is_due) else {
                        return;
                    };
                    let replay = ReplayRecord {
                        seq: header.seq,
                        key: record.key,
                        content: record.content,
                        address: Address::new(segment.slot(), scanned.offset),
                        span: u32::try_from(header.span()).unwrap_or(u32::MAX),
                    };
                    self.replay_record(log, record.keyspace, by_id.get(&record.keyspace), &replay, damages);
                });
            }
        }
        for at in 0..self.sources.len() {
            let Some(engine) = self.sources[at].engine.clone() else { continue };
            match engine.finish_replay(0, 1) {
                Ok(()) => engine.replay_finished(),
                Err(error) => self.drop_engine(at, &error, damages),
            }
        }
    }

    fn replay_record(
        &mut self,
        log: LogId,
        id: KeyspaceId,
        at: Option<&usize>,
        replay: &ReplayRecord<'_>,
        damages: &mut DamageList,
    ) {
        let alive = self.newest_seqs.entry(id).or_default();
        *alive = (*alive).max(replay.seq);
        let Some(at) = at.copied() else { return };
        let doubt = self.doubts.logs[log.index()];
        if doubt > Seq::ZERO && replay.seq > doubt && self.take_memory(replay.key) {
            self.certain_keys.entry(id).or_default().insert(replay.key.into());
        }
        let Some(engine) = self.sources[at].engine.clone() else { return };
        let Err(error) = engine.replay(replay) else { return };
        // An engine over the store log may fail because of another record, which it compares with
        // this one.
        if log == LogId::Journal || !self.take_memory(replay.key) {
            return self.drop_engine(at, &error, damages);
        }
        self.failed_keys.entry(id).or_default().insert(replay.key.into());
    }

    /// Reserves memory for one more key. Returns false if there is none.
    fn take_memory(&mut self, key: &[u8]) -> bool {
        let left = self.memory_left.checked_sub(key.len() as u64 + ENTRY_OVERHEAD);
        self.memory_left = left.unwrap_or(self.memory_left);
        left.is_some()
    }

    fn drop_engine(&mut self, at: usize, error: &Error, damages: &mut DamageList) {
        damages.note_error(error);
        let source = &mut self.sources[at];
        (source.engine, source.index_error) = (None, Some(error.to_string()));
    }
}

/// Returns `root` with a checkpoint that has the newest image of the keyspace `id` of the journal.
fn with_newest_image(store: &Store, root: &Root, id: KeyspaceId) -> Root {
    let mut root = root.clone();
    let names = store.disk.list(&store.dir.join(checkpoint_file::IMAGE_DIR)).unwrap_or_default();
    let numbers = names.iter().filter_map(|entry| checkpoint_file::number_of(&entry.name, id));
    if let Some(number) = numbers.max() {
        let checkpoint = &mut root.logs[LogId::Journal.index()].checkpoint;
        (checkpoint.number, checkpoint.keyspaces) = (number, vec![id]);
    }
    root
}

/// Guesses the engine of a keyspace: one over `log` that matches the file names in its directory,
/// or else the first one over `log`.
fn guess_engine(store: &Store, log: Option<LogId>, id: KeyspaceId) -> Option<String> {
    // The id of no keyspace: the temporary engine finds no files.
    let log_of = |factory: &Arc<dyn EngineFactory>| {
        factory.create(KeyspaceId(u32::MAX), &EngineOptions::default(), &store.context).log()
    };
    let of_log = store.factories.iter().filter(|factory| log.is_none_or(|log| log_of(factory) == log));
    let candidates: Vec<&Arc<dyn EngineFactory>> = of_log.collect();
    let files = store
        .context
        .engine_dir
        .as_ref()
        .map(|engine_dir| engine_dir.disk.list(&engine_dir.of(id)).unwrap_or_default());
    let files: Vec<String> = files.unwrap_or_default().into_iter().map(|entry| entry.name).collect();
    let by_files = candidates.iter().find(|engine| files.iter().any(|file| engine.owns_file(file)));
    by_files.or(candidates.first()).map(|engine| engine.name().to_owned())
}

/// Returns the error if it means that something cannot be read. Fails with any other error.
pub(super) fn into_damage(error: Error) -> Result<Error> {
    match error {
        Error::Corrupt { .. } | Error::UnsupportedVersion { .. } => Ok(error),
        Error::Io { op, .. } if op.is_read() => Ok(error),
        other => Err(other),
    }
}
