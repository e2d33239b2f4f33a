//! # Open: a damaged database, as far as it can be brought up
//!
//! ```text
//!  ROOT, or what is made in its place (`root`) -> segments, whatever their headers say -> survey -> catalogue -> images
//!    -> replay, past holes -> spaces: each with an engine that knows its newest versions, or without
//! ```
//!
//! Every keyspace stands or falls by itself. One whose image or own files are damaged, or whose engine fails in the replay, has no
//! engine: its records are all that is known of it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::gaps::{self, Part, pass};
use super::report::Harms;
use super::root::is_made;
use super::survey::{Doubts, survey};
use crate::disk::How;
use crate::engine::{Engine, EngineFactory, Replay};
use crate::error::{Error, Result};
use crate::frame::Kind;
use crate::options::EngineOptions;
use crate::record::Record;
use crate::root::{KeyspaceEntry, Root, SegmentEntry};
use crate::segment::{self, Address, DATA_START, MAX_CAPACITY, Segment};
use crate::store::catalogue::decode_entry;
use crate::store::image;
use crate::store::load::{replayed_from, restore};
use crate::store::recover::{Found, Recovery};
use crate::store::{Kept, Store};
use crate::types::{KeyspaceId, LogId, SegmentId, Seq};

/// What is remembered of single keys takes at most this part of the memory budget.
const SHARE: u64 = 8;
/// What a remembered key takes beside its bytes, about.
const ENTRY: u64 = 64;

/// A keyspace of the damaged database.
pub(super) struct Space {
    pub(super) id: KeyspaceId,
    pub(super) name: String,
    pub(super) engine_name: String,
    /// What was chosen of the engine's options.
    pub(super) options: EngineOptions,
    /// None if this build does not know.
    pub(super) log: Option<LogId>,
    /// No entry of the catalogue has it: it may be one that never got a name, or was dropped.
    pub(super) is_nameless: bool,
    /// It has no name, and files of its engine's own.
    pub(super) has_files: bool,
    /// It knows the newest versions.
    pub(super) engine: Option<Arc<dyn Engine>>,
    /// Why there is none.
    pub(super) unindexed: Option<String>,
    /// Files of it were left out: what they held is lost.
    pub(super) has_skipped: bool,
}

/// The damaged database, brought up.
pub(super) struct Opened {
    pub(super) segments: Vec<Vec<Arc<Segment>>>,
    pub(super) spaces: Vec<Space>,
    pub(super) cut: Seq,
    pub(super) doubts: Doubts,
    /// Neither slot of ROOT could be read.
    pub(super) is_rootless: bool,
    /// The newest commit to each keyspace that was met.
    alive: HashMap<KeyspaceId, Seq>,
    /// Keys whose newest version is above all doubt.
    sure: HashMap<KeyspaceId, HashSet<Box<[u8]>>>,
    /// Keys with a record that their engine could not take in.
    pub(super) strays: HashMap<KeyspaceId, HashSet<Box<[u8]>>>,
    /// For what is remembered of single keys.
    room: u64,
}

impl Opened {
    /// Whether a version may have been superseded or removed by what is missing. Its number is not known of pairs of a walk.
    pub(super) fn is_doubtful(&self, space: &Space, key: &[u8], seq: Option<Seq>) -> bool {
        let Some(log) = space.log else { return true };
        if self.is_rootless || space.is_nameless || space.unindexed.is_some() || self.is_gone_maybe(space.id)
        {
            return true;
        }
        let doubt = self.doubts.logs[log.index()];
        let is_sure = || self.sure.get(&space.id).is_some_and(|sure| sure.contains(key));
        doubt > Seq::ZERO && seq.is_none_or(|seq| seq <= doubt) && !is_sure()
    }

    /// Whether what is missing may have dropped or cleared the keyspace: nothing was committed to it after that.
    fn is_gone_maybe(&self, id: KeyspaceId) -> bool {
        let alive = self.alive.get(&id).copied().unwrap_or_default();
        self.doubts.catalogue > Seq::ZERO && alive <= self.doubts.catalogue
    }
}

/// Brings up what `root` is of.
pub(super) fn bring_up(store: &Store, root: &Root, harms: &mut Harms) -> Result<Opened> {
    let is_rootless = is_made(root);
    let mut recovery = Recovery::new(store, root);
    for log in LogId::ALL {
        let founds = find(&recovery, log, harms)?;
        recovery.logs.push(founds);
        recovery.broken.push(None);
    }
    let doubts = survey(&mut recovery, harms);
    let cut = recovery.cut;
    let mut entries = catalogue(&recovery);
    let named = entries.len();
    if is_rootless || doubts.catalogue > Seq::ZERO {
        nameless(&recovery, &mut entries, harms);
    }
    let segments = recovery.admit(true)?;
    let room = store.options.memory / SHARE;
    let mut opened = Opened {
        segments,
        spaces: Vec::new(),
        cut,
        doubts,
        is_rootless,
        alive: HashMap::new(),
        sure: HashMap::new(),
        strays: HashMap::new(),
        room,
    };
    opened.take_spaces(store, root, entries, harms)?;
    for space in opened.spaces.iter_mut().skip(named) {
        space.is_nameless = true;
        let has_files = store.ground.home.as_ref().map(|home| home.has_files(space.id)).transpose();
        space.has_files = harms.taken(has_files).flatten().unwrap_or(false);
    }
    opened.replay(root, harms);
    Ok(opened)
}

/// The segments of `log`: those of ROOT, and newer ones.
fn find(recovery: &Recovery<'_>, log: LogId, harms: &mut Harms) -> Result<Vec<Found>> {
    let (store, root) = (recovery.store, recovery.root);
    let dir = &store.log(log).dir;
    let mut entries: BTreeMap<SegmentId, Option<SegmentEntry>> =
        root.logs[log.index()].segments.iter().map(|s| (s.id, Some(*s))).collect();
    match store.disk.list(dir) {
        Ok(names) if !root.clean => {
            let ids = names.iter().filter_map(|entry| segment::number_of(&entry.name));
            for id in ids.filter(|id| *id >= root.next_segment) {
                entries.entry(id).or_default();
            }
        }
        Ok(_) => {}
        Err(error) => harms.skipped(&Error::io("list", dir, error)),
    }
    let mut founds = Vec::new();
    for (id, entry) in entries {
        let Some(segment) = open(recovery, log, id, entry, harms) else { continue };
        let end = entry.map_or(DATA_START, |e| e.end);
        let (frames, last_seq) = entry.map_or((0, Seq::ZERO), |e| (e.frames, e.last_seq));
        founds.push(Found { segment, entry, runs: Vec::new(), end, frames, last_seq });
    }
    Ok(founds)
}

/// A segment by its header, or by what ROOT says of it. None of a newer one than ROOT that nothing can be read of: it may never have been
/// written.
fn open(
    recovery: &Recovery<'_>,
    log: LogId,
    id: SegmentId,
    entry: Option<SegmentEntry>,
    harms: &mut Harms,
) -> Option<Segment> {
    let store = recovery.store;
    let dir = &store.log(log).dir;
    let known = entry.as_ref().map(|entry| recovery.identity(log, entry));
    let error = match Segment::open(&*store.disk, dir, id, store.id, log, How::Read) {
        // An empty one may have been given to another incarnation since.
        Ok(segment) if entry.is_none_or(|e| e.end <= DATA_START || known == Some(*segment.identity())) => {
            return Some(segment);
        }
        Ok(_) => None,
        Err(error) => Some(error),
    };
    if let Some(identity) = known {
        error.iter().for_each(|error| harms.error(error));
        return Some(Segment::open_as(&*store.disk, dir, identity));
    }
    // Written in the life that wrote ROOT.
    let path = dir.join(segment::file_name(id));
    let len = store.disk.open(&path, How::Read).and_then(|file| file.len()).unwrap_or(0);
    let incarnation = recovery.root.incarnation;
    let capacity = len.clamp(DATA_START, MAX_CAPACITY);
    let identity = segment::Identity { store: store.id, log, id, stream: 0, incarnation, capacity };
    let segment = Segment::open_as(&*store.disk, dir, identity);
    let is_good = gaps::has_frame(&segment);
    if is_good {
        error.iter().for_each(|error| harms.error(error));
    }
    is_good.then_some(segment)
}

/// The keyspaces at the cut, as far as they are known.
fn catalogue(recovery: &Recovery<'_>) -> Vec<KeyspaceEntry> {
    let root = recovery.root;
    let mut entries: BTreeMap<String, KeyspaceEntry> =
        root.keyspaces.iter().map(|k| (k.name.clone(), k.clone())).collect();
    if root.clean {
        return entries.into_values().collect();
    }
    each_commit(recovery, LogId::Journal, &mut |seq, record| {
        if seq <= root.floor || record.keyspace != KeyspaceId::CATALOGUE {
            return;
        }
        match decode_entry(record) {
            Ok((name, Some(entry))) => drop(entries.insert(name, entry)),
            Ok((name, None)) => drop(entries.remove(&name)),
            Err(_) => {} // written so: nothing that this build knows
        }
    });
    entries.into_values().collect()
}

/// Adds what has records, or a directory, and no entry: the commit that created it may be missing.
fn nameless(recovery: &Recovery<'_>, entries: &mut Vec<KeyspaceEntry>, harms: &mut Harms) {
    let store = recovery.store;
    let mut ids: BTreeSet<(KeyspaceId, Option<LogId>)> = BTreeSet::new();
    for log in LogId::ALL {
        each_commit(recovery, log, &mut |_, record| {
            ids.insert((record.keyspace, Some(log)));
        });
    }
    if let (true, Some(home)) = (is_made(recovery.root), &store.ground.home) {
        let all = harms.taken(home.ids()).unwrap_or_default();
        let with_files = all.into_iter().filter(|id| !ids.iter().any(|(known, _)| known == id));
        ids.extend(with_files.map(|id| (id, None)).collect::<Vec<_>>());
    }
    let known: HashSet<KeyspaceId> = entries.iter().map(|entry| entry.id).collect();
    for (id, log) in ids.into_iter().filter(|(id, _)| *id != KeyspaceId::CATALOGUE && !known.contains(id)) {
        let Some(engine) = guess(store, log, id) else { continue };
        let mut name = format!("lost-{}", id.0);
        while entries.iter().any(|entry| entry.name == name) {
            name.push('+');
        }
        entries.push(KeyspaceEntry { id, name, engine, options: EngineOptions::default() });
    }
}

/// Calls `each` with the records of the commits in `log` that count, in order.
fn each_commit(recovery: &Recovery<'_>, log: LogId, each: &mut dyn FnMut(Seq, &Record<'_>)) {
    for found in &recovery.logs[log.index()] {
        pass(&found.segment, DATA_START, found.end, false, &mut |part| {
            let Part::Frame(scanned) = part else { return };
            let header = scanned.frame.header;
            let counts = matches!(header.kind, Kind::Commit | Kind::Moved) && header.seq <= recovery.cut;
            if let (true, Ok(record)) = (counts, Record::decode(scanned.frame.payload())) {
                each(header.seq, &record);
            }
        });
    }
}

impl Opened {
    /// Makes the keyspaces, with what their images and own files say.
    fn take_spaces(
        &mut self,
        store: &Store,
        root: &Root,
        entries: Vec<KeyspaceEntry>,
        harms: &mut Harms,
    ) -> Result<()> {
        for entry in entries {
            let KeyspaceEntry { id, name, engine: engine_name, options } = entry;
            let Some(factory) = store.factory(&engine_name) else {
                let unindexed = Some(format!("this build has no engine {engine_name:?}"));
                let engine_name = guess(store, None, id).unwrap_or(engine_name);
                let (log, engine, is_nameless) = (None, None, false);
                let options = EngineOptions::default();
                self.spaces.push(Space {
                    id,
                    name,
                    engine_name,
                    options,
                    log,
                    is_nameless,
                    has_files: false,
                    engine,
                    unindexed,
                    has_skipped: false,
                });
                continue;
            };
            // Others than it allows are damage: what was made with them cannot be read, and is seen to be so.
            let is_allowed = options.check(&engine_name, factory.options()).is_ok();
            let options = if is_allowed { options } else { EngineOptions::default() };
            let engine = factory.create(id, &options, &store.ground);
            let log = engine.log();
            let kept = Kept::new(id, &name, Arc::clone(&engine), options.clone(), Seq::ZERO);
            let restored = match (self.is_rootless, log) {
                (false, _) => restore(store, root, &self.segments, self.cut, &kept).map_err(Some),
                // The secret of the hashes is lost, and with it every index that knows keys by them.
                (true, LogId::Flat) => Err(None),
                (true, LogId::Journal) => {
                    let root = newest_image(store, root, id);
                    restore(store, &root, &self.segments, self.cut, &kept).map_err(Some)
                }
            };
            let mut has_skipped = false;
            let (engine, unindexed) = match restored {
                Ok(_) => (Some(engine), None),
                Err(None) => (None, Some("no ROOT file could be read".to_owned())),
                Err(Some(error)) => {
                    let error = damage(error)?;
                    harms.error(&error);
                    // What was restored by half is not gone on with.
                    let anew = factory.create(id, &options, &store.ground);
                    let rest = anew.restore_rest(&mut |error| {
                        has_skipped = true;
                        harms.error(&error);
                    });
                    let rest = rest.is_ok();
                    // Without its files there is only what the log still has.
                    has_skipped |= !rest && log == LogId::Journal;
                    (rest.then_some(anew), Some(error.to_string()))
                }
            };
            let (log, is_nameless) = (Some(log), false);
            let has_files = false;
            self.spaces.push(Space {
                id,
                name,
                engine_name,
                options,
                log,
                is_nameless,
                has_files,
                engine,
                unindexed,
                has_skipped,
            });
        }
        Ok(())
    }

    /// Hands the records behind the checkpoints to the engines, as far as they can be read.
    fn replay(&mut self, root: &Root, harms: &mut Harms) {
        let by_id: HashMap<KeyspaceId, usize> =
            self.spaces.iter().enumerate().map(|(at, space)| (space.id, at)).collect();
        for log in LogId::ALL {
            for segment in self.segments[log.index()].clone() {
                let from = replayed_from(&root.logs[log.index()].checkpoint, segment.id());
                let from = from.filter(|from| *from < segment.end());
                let Some(from) = from else { continue };
                pass(&segment, from, segment.end(), false, &mut |part| {
                    let Part::Frame(scanned) = part else { return };
                    let header = scanned.frame.header;
                    let is_due = matches!(header.kind, Kind::Commit | Kind::Moved) && header.seq <= self.cut;
                    let Some(record) = Record::decode(scanned.frame.payload()).ok().filter(|_| is_due) else {
                        return;
                    };
                    let replay = Replay {
                        seq: header.seq,
                        key: record.key,
                        content: record.content,
                        address: Address::new(segment.slot(), scanned.offset),
                        span: u32::try_from(header.span()).unwrap_or(u32::MAX),
                    };
                    self.replay_one(log, record.keyspace, by_id.get(&record.keyspace), &replay, harms);
                });
            }
        }
        for at in 0..self.spaces.len() {
            let Some(engine) = self.spaces[at].engine.clone() else { continue };
            match engine.absorb(0, 1) {
                Ok(()) => engine.replayed(),
                Err(error) => self.give_up(at, &error, harms),
            }
        }
    }

    fn replay_one(
        &mut self,
        log: LogId,
        id: KeyspaceId,
        at: Option<&usize>,
        replay: &Replay<'_>,
        harms: &mut Harms,
    ) {
        let alive = self.alive.entry(id).or_default();
        *alive = (*alive).max(replay.seq);
        let Some(at) = at.copied() else { return };
        let doubt = self.doubts.logs[log.index()];
        if doubt > Seq::ZERO && replay.seq > doubt && self.takes(replay.key) {
            self.sure.entry(id).or_default().insert(replay.key.into());
        }
        let Some(engine) = self.spaces[at].engine.clone() else { return };
        let Err(error) = engine.replay(replay) else { return };
        // An engine of the flat log fails over another record that it compares this one with.
        if log == LogId::Journal || !self.takes(replay.key) {
            return self.give_up(at, &error, harms);
        }
        self.strays.entry(id).or_default().insert(replay.key.into());
    }

    /// Whether there is room for one more key.
    fn takes(&mut self, key: &[u8]) -> bool {
        let left = self.room.checked_sub(key.len() as u64 + ENTRY);
        self.room = left.unwrap_or(self.room);
        left.is_some()
    }

    fn give_up(&mut self, at: usize, error: &Error, harms: &mut Harms) {
        harms.error(error);
        let space = &mut self.spaces[at];
        (space.engine, space.unindexed) = (None, Some(error.to_string()));
    }
}

/// `root` with the newest image of a keyspace of the journal as its checkpoint's.
fn newest_image(store: &Store, root: &Root, id: KeyspaceId) -> Root {
    let mut root = root.clone();
    let names = store.disk.list(&store.dir.join(image::DIRECTORY)).unwrap_or_default();
    let numbers = names.iter().filter_map(|entry| image::number_of(&entry.name, id));
    if let Some(number) = numbers.max() {
        let checkpoint = &mut root.logs[LogId::Journal.index()].checkpoint;
        (checkpoint.number, checkpoint.keyspaces) = (number, vec![id]);
    }
    root
}

/// The engine that a keyspace may have had: one of its log that has files of such names as are in its directory, or the first.
fn guess(store: &Store, log: Option<LogId>, id: KeyspaceId) -> Option<String> {
    // The number of no keyspace: what is made for a look has no files.
    let log_of = |factory: &Arc<dyn EngineFactory>| {
        factory.create(KeyspaceId(u32::MAX), &EngineOptions::default(), &store.ground).log()
    };
    let of_log = store.factories.iter().filter(|factory| log.is_none_or(|log| log_of(factory) == log));
    let names: Vec<&'static str> = of_log.map(|factory| factory.name()).collect();
    let files = store.ground.home.as_ref().map(|home| home.disk.list(&home.of(id)).unwrap_or_default());
    let files: Vec<String> = files.unwrap_or_default().into_iter().map(|entry| entry.name).collect();
    let by_files = names.iter().find(|name| files.iter().any(|file| is_file_of(name, file)));
    by_files.or(names.first()).map(|name| (*name).to_owned())
}

/// Whether the name of a file below `own/` is one that the engine gives.
fn is_file_of(engine: &str, file: &str) -> bool {
    match engine {
        "delsm" => file.ends_with(".keys") || file.starts_with("KEYS."),
        "flex" => file.starts_with("HEAD."),
        "cedrus" => file.starts_with("trie"),
        "kreon" => file.starts_with("levels"),
        _ => false,
    }
}

/// Whether an error says that something cannot be read, whoever is to blame. What says anything else is passed on.
pub(super) fn damage(error: Error) -> Result<Error> {
    match error {
        Error::Corrupt { .. } | Error::Format { .. } => Ok(error),
        Error::Io { op: "open" | "read" | "list" | "measure", .. } => Ok(error),
        other => Err(other),
    }
}
