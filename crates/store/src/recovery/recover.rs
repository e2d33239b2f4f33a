//! # Recovery: from files to a served state
//!
//! Opens the segments, decides which commits count, loads the keyspaces, and makes the result
//! durable before it is served.
//!
//! ## Picture
//!
//! ```text
//!  ROOT -> open segments -> [unclean: scan unsealed ones -> cut] -> catalog
//!       -> [unclean, writable: rewrite the accepted frames in place, sync, restamp empty segments]
//!       -> images -> replay -> [writable: both slots of ROOT] -> serve
//! ```
//!
//! ## Crash
//!
//! - `tail_scan` decides which frames are accepted. If an earlier sync failed and the machine was
//!   not restarted, some of them may be in the page cache only. So they are written again, the same
//!   bytes at the same places, and synced before the database is served. This needs no new blocks,
//!   and a crash during it changes nothing (commit.md R10, scenario 10; decisions/0004).
//! - Frames above the cut stay in place, behind the accepted end that ROOT records for their
//!   segment. Empty segments get a new incarnation in their header, which invalidates frames that
//!   they may contain.
//!
//! ## Threads
//!
//! One thread, except that many segments are opened in parallel and that `replay` uses several
//! threads. No other thread has access to the store yet.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::convert::Infallible;
use std::sync::Arc;

use crate::changes::{Lifetimes, retained_ids};
use crate::commit::tail::{HOT_TAIL, Tail, tail_of};
use crate::expiry::{value_form, with_keyspace_options};
use crate::keyspace::catalog::{Catalog, KeyspaceMap, decode_entry};
use crate::keyspace::state::FileDamage;
use crate::recovery::damaged_ranges;
use crate::recovery::replay::restore_and_replay;
use crate::space::gc::SURVIVOR_STREAMS;
use crate::{KeyspaceState, Store};
use sheaf_engine::checkpoint_file;
use sheaf_engine::window::{TAILS, WindowWord};
use sheaf_log::blob::BlobRef;
use sheaf_log::frame::FrameKind;
use sheaf_log::record::Record;
use sheaf_log::root::{CatalogEntry, CheckpointRef, Root, RootLog, RootSegment};
use sheaf_log::segment::{self, DATA_START, ScanEnd, Segment, SegmentScan};
use sheaf_log::types::{KeyspaceId, LogId, SegmentId, Seq};
use sheaf_platform::disk::OpenMode;
use sheaf_platform::error::{Damage, Error, IoContext, IoOp, Result};
use sheaf_platform::parallel::{map_parallel, opening_threads};
use sheaf_platform::span;
use sheaf_platform::sync::atomic::Ordering;

/// Bytes rewritten at a time.
const REWRITE_BYTES: usize = 1 << 20;
/// One thread opens up to this many segments.
const FEW_SEGMENTS: usize = 128;

/// Segment that is being recovered.
pub(crate) struct FoundSegment {
    pub(crate) segment: Segment,
    /// Entry of ROOT; `None` if the segment is newer than ROOT.
    pub(crate) root_entry: Option<RootSegment>,
    /// For each run of frames of one commit, in order: the end of the frame before it, and its seq.
    pub(crate) runs: Vec<(u64, Seq)>,
    /// End of the frames that may count.
    pub(crate) end: u64,
    pub(crate) frames: u32,
    pub(crate) last_seq: Seq,
}

impl FoundSegment {
    pub(crate) fn is_sealed(&self) -> bool {
        self.root_entry.is_some_and(|e| e.is_sealed)
    }
}

/// State of an opening.
pub(crate) struct Recovery<'a> {
    pub(crate) store: &'a Store,
    pub(crate) root: &'a Root,
    pub(crate) logs: Vec<Vec<FoundSegment>>,
    pub(crate) damaged_logs: Vec<Option<FileDamage>>,
    pub(crate) leftovers: Vec<std::path::PathBuf>,
    /// Segments with a damaged header that may never have been written, and whether the header is
    /// blank.
    pub(crate) suspect_headers: Vec<(FileDamage, bool)>,
    /// Unreadable segments that contain frames. ROOT continues to list them, so that their files
    /// are kept for a repair.
    pub(crate) unreadable_segments: Vec<(LogId, RootSegment)>,
    pub(crate) accepted_blobs: Vec<BlobRef>,
    pub(crate) cut: Seq,
    pub(crate) frames: u64,
    pub(crate) bytes_cut: u64,
    pub(crate) next_segment: u64,
    /// Lifetimes of keyspaces for the change feed, if the database has one.
    pub(crate) lifetimes: Lifetimes,
}

/// Result of a recovery, for the opened store.
pub(crate) struct RecoveryResult {
    pub(crate) cut: Seq,
    pub(crate) records: u64,
    pub(crate) frames: u64,
    pub(crate) bytes_cut: u64,
    pub(crate) next_segment: u64,
    pub(crate) replayed_bytes: [u64; LogId::ALL.len()],
    pub(crate) image_bytes: [u64; LogId::ALL.len()],
    pub(crate) catalog: Catalog,
    pub(crate) logs: Vec<(Vec<Arc<Segment>>, Option<RootLog>)>,
    pub(crate) leftovers: Vec<std::path::PathBuf>,
    pub(crate) lifetimes: Lifetimes,
}

impl<'a> Recovery<'a> {
    pub(crate) fn new(store: &'a Store, root: &'a Root) -> Recovery<'a> {
        Recovery {
            store,
            root,
            logs: Vec::new(),
            damaged_logs: Vec::new(),
            leftovers: Vec::new(),
            suspect_headers: Vec::new(),
            unreadable_segments: Vec::new(),
            accepted_blobs: Vec::new(),
            cut: root.floor,
            frames: 0,
            bytes_cut: 0,
            next_segment: root.next_segment.0,
            lifetimes: Lifetimes::default(),
        }
    }

    /// Performs the recovery, except the writes of ROOT and the removal of leftovers.
    pub(crate) fn run(mut self) -> Result<RecoveryResult> {
        for log in LogId::ALL {
            let broken = self.root.logs[log.index()].is_broken;
            let (found, damage) = self.find_segments(log)?;
            self.logs.push(found);
            self.damaged_logs.push(match (broken, damage) {
                (_, Some(damage)) => Some(damage),
                (true, None) => Some(self.frozen_damage(log)),
                (false, None) => None,
            });
        }
        if !self.root.is_clean {
            let _span = span!(INFO, "scan tails");
            self.scan_tails()?;
        }
        if let Some(broken) = &self.damaged_logs[LogId::Journal.index()] {
            return Err(broken.to_error()); // the catalog is not known
        }
        let (map, next_keyspace) = self.read_catalog()?;
        if !self.store.options.read_only && !self.root.is_clean {
            let _span = span!(INFO, "rewrite the tail");
            self.rewrite_tail()?;
        }
        let admitted = self.assign_slots(false)?;
        let _span = span!(INFO, "load and replay", cut = self.cut.0);
        let loaded =
            restore_and_replay(self.store, self.root, &mut self.damaged_logs, map, &admitted, self.cut)?;
        let logs = self.log_entries(admitted);
        // Files of a damaged log may be needed to repair it.
        let frozen = |path: &std::path::PathBuf| {
            LogId::ALL.into_iter().any(|log| {
                self.damaged_logs[log.index()].is_some() && path.starts_with(&self.store.log(log).dir)
            })
        };
        self.leftovers.retain(|path| !frozen(path));
        Ok(RecoveryResult {
            cut: self.cut,
            records: loaded.records,
            frames: self.frames + loaded.frames,
            bytes_cut: self.bytes_cut,
            next_segment: self.next_segment,
            replayed_bytes: loaded.replayed_bytes,
            image_bytes: loaded.image_bytes,
            catalog: Catalog::new(loaded.map, next_keyspace, self.root.has_options),
            logs,
            leftovers: self.leftovers,
            lifetimes: self.lifetimes,
        })
    }

    fn frozen_damage(&self, log: LogId) -> FileDamage {
        let what = Damage::MissingCommits { first_missing: self.root.floor.0, durable: self.root.floor.0 };
        FileDamage { path: self.store.log(log).dir.clone(), offset: 0, structure: "log", what }
    }

    /// Returns the header that the segment of a ROOT entry must have.
    pub(crate) fn identity(&self, log: LogId, entry: &RootSegment) -> segment::SegmentIdentity {
        let RootSegment { id, stream, incarnation, capacity, .. } = *entry;
        segment::SegmentIdentity { store: self.store.identity.id, log, id, stream, incarnation, capacity }
    }

    /// Opens the segments of `log`: those that ROOT lists, and newer ones.
    fn find_segments(&mut self, log: LogId) -> Result<(Vec<FoundSegment>, Option<FileDamage>)> {
        let store = self.store;
        let dir = &store.log(log).dir;
        let entries: BTreeMap<SegmentId, RootSegment> =
            self.root.logs[log.index()].segments.iter().map(|s| (s.id, *s)).collect();
        let retained = retained_ids(self.root, log);
        let mut names: Vec<SegmentId> = entries.keys().copied().collect();
        for entry in store.disk.list(dir).during(IoOp::List, dir)? {
            let Some(id) = segment::number_of(&entry.name) else { continue };
            if id >= self.root.next_segment && !self.root.is_clean {
                names.push(id);
            } else if !entries.contains_key(&id) && !retained.contains(&id) {
                self.leftovers.push(dir.join(&entry.name));
            }
        }
        let open_mode = if store.options.read_only { OpenMode::Read } else { OpenMode::ReadWrite };
        let (mut found, mut damage) = (Vec::new(), None);
        // Opening a segment takes six system calls.
        let threads =
            if store.options.inline { 1 } else { opening_threads().min(names.len() / FEW_SEGMENTS) };
        let open = |number: usize| {
            Segment::open(&*store.disk, dir, names[number], store.identity.id, log, open_mode)
        };
        let Ok(all) = map_parallel(threads, names.len(), |number| Ok::<_, Infallible>(open(number)));
        for (id, mut opened) in names.into_iter().zip(all) {
            self.next_segment = self.next_segment.max(id.0 + 1);
            let entry = entries.get(&id).copied();
            if opened.as_ref().is_err_and(Error::is_corrupt)
                && entry.is_none_or(|entry| !entry.is_sealed)
                && let Some(old) = self.repair_header(log, id, entry.as_ref(), open_mode)?
            {
                opened = match open_mode {
                    OpenMode::Read => Ok(Segment::open_as(&*store.disk, dir, old)),
                    _ => Segment::open(&*store.disk, dir, id, store.identity.id, log, open_mode),
                };
            }
            match opened {
                Ok(segment) => {
                    let end = entry.map_or(DATA_START, |e| e.end);
                    let (frames, last_seq) = entry.map_or((0, Seq::ZERO), |e| (e.frames, e.last_seq));
                    found.push(FoundSegment {
                        segment,
                        root_entry: entry,
                        runs: Vec::new(),
                        end,
                        frames,
                        last_seq,
                    });
                }
                Err(e) if e.is_corrupt() && self.is_never_used(log, id, entry.as_ref()) => {
                    self.leftovers.push(dir.join(segment::file_name(id)));
                    self.suspect_headers.push((FileDamage::from_error(e)?, self.is_blank(log, id)));
                }
                Err(e) => {
                    damage = Some(FileDamage::from_error(e)?);
                    if entry.is_none() {
                        self.keep_listed(log, id);
                    }
                }
            }
        }
        Ok((found, damage))
    }

    /// Restores a header that a crash tore while the segment was restamped. A read-only opening
    /// changes nothing. Returns the identity before the restamp, or `None` if the header is not
    /// torn.
    fn repair_header(
        &self,
        log: LogId,
        id: SegmentId,
        entry: Option<&RootSegment>,
        open_mode: OpenMode,
    ) -> Result<Option<segment::SegmentIdentity>> {
        let (disk, dir, next) =
            (&*self.store.disk, &self.store.log(log).dir, self.store.identity.incarnation);
        for old in self.identities(log, id, entry) {
            let is_torn = match open_mode {
                OpenMode::Read => Segment::is_header_torn(disk, dir, old, next)?,
                _ => Segment::repair_header(disk, dir, old, next)?,
            };
            if is_torn {
                return Ok(Some(old));
            }
        }
        Ok(None)
    }

    /// Returns the identities that the header of a segment may have. This is the one of its ROOT
    /// entry, or those that the previous opening may have given it.
    fn identities(
        &self,
        log: LogId,
        id: SegmentId,
        entry: Option<&RootSegment>,
    ) -> Vec<segment::SegmentIdentity> {
        if let Some(entry) = entry {
            return vec![self.identity(log, entry)];
        }
        let newer = self.assumed_entry(log, id);
        (0..SURVIVOR_STREAMS).map(|stream| self.identity(log, &RootSegment { stream, ..newer })).collect()
    }

    /// Returns the entry that ROOT would have for a segment that was created after ROOT was
    /// written.
    pub(crate) fn assumed_entry(&self, log: LogId, id: SegmentId) -> RootSegment {
        RootSegment {
            id,
            stream: 0,
            incarnation: self.root.incarnation,
            capacity: Segment::capacity_from_header(&*self.store.disk, &self.store.log(log).dir, id),
            end: DATA_START,
            is_sealed: false,
            last_seq: Seq::ZERO,
            frames: 0,
        }
    }

    /// Returns the error for an unreadable segment that ROOT or a seal refers to. Returns `None` if
    /// it is readable, contains frames, or was never written to.
    pub(crate) fn unreadable_error(&self, log: LogId, id: SegmentId) -> Option<Error> {
        let (disk, dir) = (&*self.store.disk, &self.store.log(log).dir);
        let error = Segment::open(disk, dir, id, self.store.identity.id, log, OpenMode::Read).err()?;
        let entry = self.root.logs[log.index()].segments.iter().find(|entry| entry.id == id);
        let is_unused = error.is_corrupt() && self.is_never_used(log, id, entry);
        let identity = self.identity(log, &entry.copied().unwrap_or_else(|| self.assumed_entry(log, id)));
        let segment = Segment::open_as(disk, dir, identity);
        let is_unused = is_unused && (entry.is_some() || segment.is_never_written());
        (!is_unused && !damaged_ranges::has_frame(&segment)).then_some(error)
    }

    /// Makes ROOT list a damaged segment that it did not list before.
    pub(crate) fn keep_listed(&mut self, log: LogId, id: SegmentId) {
        self.unreadable_segments.push((log, self.assumed_entry(log, id)));
    }

    /// Returns true if a segment without a valid header was never written to. Name and header are
    /// durable before ROOT lists a segment and before a frame is written to it (model
    /// `segment_naming`). A crash may therefore leave a missing file or a blank header only if ROOT
    /// does not list the segment. References by seals are checked in `scan_log`.
    fn is_never_used(&self, log: LogId, id: SegmentId, entry: Option<&RootSegment>) -> bool {
        // A survivor segment may be sealed while it is still empty, if the write of the first
        // survivor failed.
        if let Some(entry) = entry
            && (self.root.is_clean || entry.is_sealed)
        {
            return entry.end <= DATA_START;
        }
        let (disk, dir) = (&*self.store.disk, &self.store.log(log).dir);
        let identities = self.identities(log, id, entry);
        // The checksums of frames do not depend on the stream.
        let segment = identities.first().map(|identity| Segment::open_as(disk, dir, *identity));
        segment.is_some_and(|segment| match entry {
            Some(entry) => entry.end <= DATA_START && segment.is_never_written(),
            None => !damaged_ranges::has_frame(&segment),
        })
    }

    /// Returns the keyspaces at the cut and the next keyspace id: those of ROOT, with the changes
    /// after its floor.
    fn read_catalog(&mut self) -> Result<(KeyspaceMap, KeyspaceId)> {
        let mut entries: BTreeMap<String, CatalogEntry> =
            self.root.keyspaces.iter().map(|k| (k.name.clone(), k.clone())).collect();
        let mut next = self.root.next_keyspace;
        let mut lifetimes = self.root_lifetimes();
        if !self.root.is_clean {
            let is_known = |found: &&FoundSegment| found.is_sealed() && found.last_seq <= self.root.floor;
            for found in self.logs[LogId::Journal.index()].iter().filter(|found| !is_known(found)) {
                let mut scan = SegmentScan::new(&found.segment, 0, found.end);
                for scanned in scan.by_ref() {
                    let header = scanned.frame.header;
                    if header.kind != FrameKind::Commit
                        || header.seq <= self.root.floor
                        || header.seq > self.cut
                    {
                        continue;
                    }
                    let damaged = |what| Error::corrupt(found.segment.path(), scanned.offset, "record", what);
                    let record = Record::decode(scanned.frame.payload()).map_err(damaged)?;
                    if record.keyspace != KeyspaceId::CATALOG {
                        continue;
                    }
                    let (name, entry, _) = decode_entry(&record).map_err(damaged)?;
                    lifetimes.end(&name, header.seq);
                    match entry {
                        Some(entry) => {
                            lifetimes.add(entry.id, &name, value_form(&entry.options), header.seq);
                            next = next.max(KeyspaceId(entry.id.0 + 1));
                            entries.insert(name, entry);
                        }
                        None => drop(entries.remove(&name)),
                    }
                }
                if let ScanEnd::Torn(_, error) = scan.stop() {
                    return Err(error); // the tail scan has read all of it
                }
            }
        }
        self.lifetimes = lifetimes;
        let mut map = KeyspaceMap::new();
        for (name, entry) in entries {
            let Some(factory) = self.store.factory(&entry.engine) else {
                let why =
                    format!("this build has no engine {:?}, which keyspace {name:?} needs", entry.engine);
                return Err(Error::InvalidArgument { argument: "engine", reason: why });
            };
            entry.options.check(&entry.engine, &with_keyspace_options(factory.options()))?;
            let engine = self.store.create_engine(&**factory, entry.id, &entry.options);
            let context = &self.store.context;
            let keyspace = KeyspaceState::new(entry.id, &name, engine, entry.options, Seq::ZERO, context);
            map.insert(name, Arc::new(keyspace));
        }
        Ok((map, next))
    }

    /// Returns the lifetimes of keyspaces for the change feed, as of the floor.
    fn root_lifetimes(&self) -> Lifetimes {
        let Some(changes) = &self.root.changes else { return Lifetimes::default() };
        let mut lifetimes = Lifetimes::from_root(&changes.keyspaces);
        self.root
            .keyspaces
            .iter()
            .for_each(|k| lifetimes.add(k.id, &k.name, value_form(&k.options), Seq::ZERO));
        lifetimes
    }

    /// Writes the accepted frames again at the same places, so that the next sync covers them.
    /// Invalidates all other frames.
    fn rewrite_tail(&mut self) -> Result<()> {
        for (log, founds) in self.logs.iter_mut().enumerate() {
            if self.damaged_logs[log].is_some() {
                continue;
            }
            for found in founds.iter_mut().filter(|f| !f.is_sealed()) {
                if found.end > DATA_START {
                    // From the start: a page may contain both durable and accepted frames.
                    rewrite_segment(&found.segment, found.end)?;
                } else {
                    let path = found.segment.path().to_path_buf();
                    let dir = &self.store.logs[log].dir;
                    found.segment =
                        found.segment.restamp(&*self.store.disk, dir, self.store.identity.incarnation)?;
                    found.segment.file().sync().during(IoOp::Sync, &path)?;
                    found.root_entry = None;
                }
            }
            self.store
                .disk
                .sync_dir(&self.store.logs[log].dir)
                .during(IoOp::SyncDirectory, &self.store.logs[log].dir)?;
        }
        for blob in &self.accepted_blobs {
            self.store.context.blobs.rewrite(blob)?;
        }
        self.store.context.blobs.sync_all_names(&self.accepted_blobs)
    }

    /// Returns the slots that the segments of the store log had at the checkpoint: images contain
    /// addresses that use them. Each image of a log has all of them. With `may_be_missing`, any
    /// unreadable image is skipped.
    fn slots_at_checkpoint(&self, may_be_missing: bool) -> Result<HashMap<SegmentId, u32>> {
        let checkpoint = &self.root.logs[LogId::ValueLog.index()].checkpoint;
        for id in &checkpoint.keyspaces {
            let path = self.store.image_path(*id, checkpoint.number);
            match checkpoint_file::slots_at_image(
                &*self.store.disk,
                path,
                self.store.identity.id,
                *id,
                checkpoint.number,
            ) {
                // its keyspace stays closed
                Err(error) if may_be_missing || error.is_corrupt() => {}
                other => return other,
            }
        }
        Ok(HashMap::new())
    }

    /// Adds the segments to the table of segments, which assigns slots.
    pub(crate) fn assign_slots(&mut self, may_be_missing: bool) -> Result<Vec<Vec<Arc<Segment>>>> {
        let clean = self.root.is_clean;
        let then = self.slots_at_checkpoint(may_be_missing)?;
        let mut all = Vec::new();
        for founds in std::mem::take(&mut self.logs) {
            let mut segments = Vec::new();
            for found in founds {
                let is_open = !found.is_sealed();
                let FoundSegment { segment, end, frames, last_seq, .. } = found;
                segment.publish(end.max(DATA_START));
                segment.mark_synced(end); // synced by the clean close, or rewritten just before
                let empty = end <= DATA_START;
                // After a clean close the tails were not scanned, and ROOT does not have their last
                // commits.
                let is_unscanned_tail = clean && is_open && !empty;
                segment.note_frames(frames, if is_unscanned_tail { self.cut } else { last_seq });
                // Only after a clean close the tail is continued; otherwise only empty segments are
                // used.
                if !is_open || !(clean || empty) {
                    segment.seal(0);
                }
                segments.push(Arc::new(segment));
            }
            segments.sort_by_key(|s| s.id());
            all.push(segments);
        }
        let flat: Vec<Arc<Segment>> = all.iter().flatten().cloned().collect();
        if let (false, Some(last)) = (self.store.context.segments.add_all(&flat, &then), flat.last()) {
            let got = sheaf_log::segment::SLOT_COUNT as u64 + 1;
            let what = Damage::BadLength { got, max: got - 1 };
            return Err(Error::corrupt(last.path(), 0, "set of segments", what));
        }
        Ok(all)
    }

    /// Returns the segments of the logs, and for a damaged log the entry that ROOT must repeat.
    fn log_entries(&self, admitted: Vec<Vec<Arc<Segment>>>) -> Vec<(Vec<Arc<Segment>>, Option<RootLog>)> {
        let of_log = |(log, segments): (usize, Vec<Arc<Segment>>)| {
            let before = &self.root.logs[log];
            let frozen = self.damaged_logs[log].is_some().then(|| {
                let listed: HashSet<SegmentId> = before.segments.iter().map(|s| s.id).collect();
                let mut entry = RootLog { is_broken: true, ..before.clone() };
                let newer = segments.iter().filter(|s| !listed.contains(&s.id()));
                entry.segments.extend(newer.map(|s| s.entry(DATA_START, false)));
                let lost = self
                    .unreadable_segments
                    .iter()
                    .filter(|(of, entry)| of.index() == log && !listed.contains(&entry.id));
                entry.segments.extend(lost.map(|(_, entry)| *entry));
                entry.segments.sort_by_key(|s| s.id);
                entry
            });
            (segments, frozen)
        };
        admitted.into_iter().enumerate().map(of_log).collect()
    }
}

/// Returns the checkpoint for the next ROOT. If its position was behind frames that were lost with
/// their whole segment, that segment is empty now, and replay starts at its beginning.
fn checkpoint_of(entry: &RootLog, segments: &[Arc<Segment>]) -> CheckpointRef {
    let mut checkpoint = entry.checkpoint.clone();
    let is_empty = |id| segments.iter().any(|s| s.id() == id && s.end() <= DATA_START);
    for position in checkpoint.open.iter_mut().filter(|position| is_empty(position.segment)) {
        position.offset = DATA_START;
    }
    checkpoint
}

/// Writes the content of a segment again, the same bytes at the same places, and syncs it.
fn rewrite_segment(segment: &Segment, end: u64) -> Result<()> {
    let (file, path) = (segment.file(), segment.path());
    let mut buffer = vec![0; REWRITE_BYTES];
    let mut at = 0;
    while at < end {
        let len = usize::try_from(end - at).unwrap_or(REWRITE_BYTES).min(REWRITE_BYTES);
        file.read_at(at, &mut buffer[..len]).during(IoOp::Read, path)?;
        file.write_at(at, &buffer[..len]).during(IoOp::Write, path)?;
        at += len as u64;
    }
    sheaf_platform::disk::mark_len_dirty(&**file).during(IoOp::Extend, path)?;
    file.sync().during(IoOp::Sync, path)
}

impl Store {
    /// Removes files that ROOT does not list: leftovers of a crash, and blobs without a reference.
    pub(crate) fn remove_orphans(&self, root: &Root, leftovers: &[std::path::PathBuf]) -> Result<()> {
        for path in leftovers {
            match self.disk.remove(path) {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                other => other.during(IoOp::Remove, path)?,
            }
        }
        let named: HashSet<String> = root
            .logs
            .iter()
            .flat_map(|log| {
                log.checkpoint
                    .keyspaces
                    .iter()
                    .map(|id| checkpoint_file::file_name(*id, log.checkpoint.number))
            })
            .collect();
        let images = self.dir.join(checkpoint_file::IMAGE_DIR);
        for entry in self.disk.list(&images).during(IoOp::List, &images)? {
            if !named.contains(&entry.name) {
                let path = images.join(&entry.name);
                self.disk.remove(&path).during(IoOp::Remove, &path)?;
            }
        }
        let keyspaces = self.catalog.map();
        if let Some(engine_dir) = &self.context.engine_dir {
            engine_dir.sweep(|id| keyspaces.values().any(|keyspace| keyspace.id() == id))?;
        }
        let (live, is_whole) = self.referenced_blobs();
        let (retained, has_all) = self.retained_blobs(&live);
        let needed = live.union(&retained).copied().collect();
        self.context.blobs.finish_recovery(&needed, !is_whole || !has_all)
    }

    /// Returns the blobs to which engines refer, and whether that is all. If a keyspace is damaged
    /// or cannot be read, its blobs are not known.
    pub(crate) fn referenced_blobs(&self) -> (HashSet<u64>, bool) {
        let (mut live, mut is_whole) = (Vec::new(), true);
        for keyspace in self.catalog.map().values() {
            is_whole &= keyspace.engine().is_ok_and(|engine| engine.blobs(&mut live).is_ok());
        }
        (live.into_iter().collect(), is_whole)
    }

    /// Initializes the store with the result of the recovery.
    pub(crate) fn apply_recovery(&mut self, root: &Root, recovered: RecoveryResult) {
        let next = root.seq_bound.max(recovered.cut.next());
        self.pipeline.progress.begin(recovered.cut, next);
        self.sync.begin(recovered.cut);
        self.catalog = recovered.catalog;
        self.lifecycle.lost_seqs = recovered.cut.next()..next;
        if let Some(changes) = &root.changes {
            self.changes.begin(changes, recovered.lifetimes);
        }
        self.choose_retention(recovered.cut);
        self.context.set_retains_changes(self.changes.is_on());
        *self.root.next_segment.get_mut() = recovered.next_segment;
        let blob_bound = self.next_blob_bound();
        let commit_state = self.pipeline.commit_state.get_mut();
        *self.pipeline.seq_bound.get_mut() = next.0 + self.geometry.seq_chunk;
        let mut offsets = [0; TAILS];
        let m = self.root.maintenance.get_mut();
        m.generation = root.generation;
        m.first_seq = next;
        m.seq_bound = Seq(next.0 + self.geometry.seq_chunk);
        m.blob_bound = blob_bound;
        self.root.published.set_blob_bound(m.blob_bound);
        m.next_image = root.logs.iter().map(|l| l.checkpoint.number + 1).max().unwrap_or(1);
        for ((log, (segments, frozen)), entry) in self.logs.iter_mut().zip(recovered.logs).zip(&root.logs) {
            for segment in segments.iter().filter(|s| !s.is_sealed() && frozen.is_none()) {
                let free = [false, true]
                    .map(|hot| tail_of(log.id, hot))
                    .into_iter()
                    .find(|t| commit_state.tails[*t].segment.is_none());
                match free {
                    _ if segment.end() <= DATA_START => {
                        commit_state.preallocated[log.id.index()].push_back(Arc::clone(segment))
                    }
                    Some(tail) => {
                        segment.set_hot(tail == HOT_TAIL);
                        segment.file().begin_stores();
                        commit_state.tails[tail] = Tail::in_segment(Arc::clone(segment), segment.end());
                        offsets[tail] = commit_state.tails[tail].close_sector(segment.end());
                    }
                    None => segment.seal(0),
                }
            }
            m.checkpoints[log.id.index()] = checkpoint_of(entry, &segments);
            // The replayed bytes count toward the next checkpoint.
            log.set_replayed_bytes(recovered.replayed_bytes[log.id.index()]);
            log.image_bytes.store(recovered.image_bytes[log.id.index()], Ordering::Relaxed);
            *log.segments.get_mut() = segments.into_iter().map(|s| (s.id(), s)).collect();
            *log.frozen.get_mut() = frozen;
        }
        let commit_state = self.pipeline.commit_state.get_mut();
        let mut closed = self.pipeline.window.close();
        closed.word = WindowWord::new(next, offsets);
        commit_state.publish_tail_set(&mut closed);
    }
}
