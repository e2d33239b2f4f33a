//! # Still: a state of everything that stays on disk
//!
//! What a backup copies while the database goes on.
//!
//! ## Picture
//!
//! ```text
//!  maintenance lock ───────────────────────────────────────────────────────────────┐
//!   survivors synced | a round: [window closed: S, ends of tails] -> durable = S | ROOT of S | engines' own files, held
//!                                                                                  └─> copied, at leisure ─> dropped:
//!                                                                                      what waited goes
//! ```
//!
//! ## Invariants
//!
//! 1. The state is that of S: everything committed up to there, and all of it is on the device.
//!    Logs end where they did at S; engines' own files hold nothing above, since they hold what the
//!    store was certain of, which was durable before.
//! 2. While one lives nothing that its ROOT names goes or is written again: [`Store`] lets nothing
//!    go that was made before it (`rooting`), dropped keyspaces are not buried, and engines hold
//!    their own files. What is made later comes and goes as ever, so that what waits for it has a
//!    bound: what there was.
//! 3. All segments of the state are sealed: a recovery from it looks for nothing behind their ends.
//!    Those without a frame are left out.
//! 4. It neither stops commits nor cleaning. What waits for it is counted as held, not as room: the
//!    cleaner's limit does not see it, and on a full disk, where copies would take room and give
//!    none, it rests.
//!
//! ## Threads
//!
//! One at a time is made; any number may live, in any thread.
//!
//! ## Crash
//!
//! Nothing of it is on disk. What waited is swept at the next opening, as whatever ROOT does not
//! name.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use super::log::LogState;
use super::root_writer::{PinnedBounds, RootState};
use super::tail::Tail;
use super::{Store, image};
use crate::backup_files::PinnedFiles;
use crate::error::Result;
use crate::root::{Root, RootLog, RootSegment};
use crate::segment::{self, DATA_START, Segment};
use crate::sync::atomic::Ordering;
use crate::types::{KeyspaceId, LogId, SegmentId, Seq};

/// Where the logs ended at S.
struct LogEnds {
    seq: Seq,
    tails: Vec<(Arc<Segment>, u64)>,
    /// Segments that were empty.
    unused: HashSet<SegmentId>,
}

/// Of a file of staged values: its number, and whether it is a chunk.
type BlobFile = (u64, bool);
/// A keyspace, and the files of its engine's own.
type EnginePins = (KeyspaceId, Box<dyn PinnedFiles>);

/// A state that stays. See the module.
pub struct PinnedState {
    store: Arc<Store>,
    root: Root,
    pin_id: u64,
    blobs: Vec<BlobFile>,
    engine_files: Vec<EnginePins>,
}

/// A file of the store's own that belongs to a state.
#[derive(Clone, Debug)]
pub(crate) struct PinnedStoreFile {
    /// Below the database's directory.
    pub(crate) name: PathBuf,
    /// Bytes of it; all there are, if that is not known.
    pub(crate) len: Option<u64>,
    /// What its length is to be at least.
    pub(crate) min_len: u64,
    /// The name means these bytes for ever.
    pub(crate) is_immutable: bool,
    /// It may be of a commit that never came, and gone by now.
    pub(crate) may_be_missing: bool,
}

impl Store {
    /// Takes the state of now, and keeps it on disk. A database with a damaged log or keyspace has
    /// none.
    pub fn pin_state(self: &Arc<Store>) -> Result<PinnedState> {
        let mut m = self.maintenance.lock();
        self.check_writable()?;
        self.check_undamaged()?;
        self.sync_survivors(&mut m)?;
        let (ends, segments) = self.sync_and_read_ends()?;
        let root = self.pinned_root(&m, &ends, &segments);
        let seq = ends.seq;
        m.last_pin_id += 1;
        let turn = m.last_pin_id;
        let (segments, images) = (root.next_segment, m.next_image);
        // Which files of values there are is looked up below; until then all stay.
        m.pinned.push(PinnedBounds { seq, pin_id: turn, segments, images, blobs: u64::MAX });
        self.pinned_states.store(m.pinned.len() as u64, Ordering::Relaxed);
        match self.pin_engine_files(&root) {
            Ok((blobs, pinned_files)) => {
                m.pinned.last_mut().into_iter().for_each(|pinned| pinned.blobs = self.context.blobs.next());
                Ok(PinnedState {
                    store: Arc::clone(self),
                    root,
                    pin_id: turn,
                    blobs,
                    engine_files: pinned_files,
                })
            }
            Err(error) => {
                m.pinned.pop();
                self.free_retired(&mut m);
                Err(error)
            }
        }
    }

    /// An error if a log or a keyspace is damaged.
    fn check_undamaged(&self) -> Result<()> {
        if let Some(log) = self.logs.iter().find(|log| log.is_frozen()) {
            return Err(log.frozen_error());
        }
        self.catalog.map().values().try_for_each(|keyspace| keyspace.engine().map(drop))
    }

    /// Makes everything durable, and says where the logs ended when it was.
    fn sync_and_read_ends(&self) -> Result<(LogEnds, [Vec<Arc<Segment>>; LogId::ALL.len()])> {
        let _leading = self.sync_round.lock_leader();
        let making = self.next_segment.lock(); // no segment is between its number and its listing
        let segments = self.logs.each_ref().map(LogState::list);
        let ends = self.sync_and_capture(|order, word| {
            let tails = order.tails.iter().enumerate();
            let end = |(index, tail): (usize, &Tail)| {
                Some((tail.segment.clone()?, tail.end_at(word.offset(index))))
            };
            let ends = LogEnds {
                seq: self.commit_progress.last_assigned(word.reserved()),
                tails: tails.filter_map(end).collect(),
                unused: order.preallocated.iter().flatten().map(|segment| segment.id()).collect(),
            };
            drop(making);
            ends
        })?;
        Ok((ends, segments))
    }

    /// What ROOT would say of that state, if all its segments were sealed.
    fn pinned_root(&self, m: &RootState, ends: &LogEnds, segments: &[Vec<Arc<Segment>>]) -> Root {
        let entry = |segment: &Arc<Segment>| {
            let tail = ends.tails.iter().find(|(tail, _)| tail.id() == segment.id());
            let end = tail.map_or_else(|| segment.end(), |(_, end)| *end);
            RootSegment { last_seq: segment.last_seq().min(ends.seq), ..segment.entry(end, true) }
        };
        let mut root = Root {
            generation: m.generation,
            floor: ends.seq,
            first_seq: m.first_seq,
            seq_bound: m.seq_bound,
            next_segment: SegmentId(*self.next_segment.lock()),
            blob_bound: m.blob_bound,
            keyspaces: self.catalog.entries_at(ends.seq),
            next_keyspace: self.catalog.next_id(),
            ..self.root_template()
        };
        for (log, listed) in root.logs.iter_mut().zip(segments) {
            let listed = listed.iter().filter(|segment| !ends.unused.contains(&segment.id()));
            let written = listed.map(entry).filter(|entry| entry.end > DATA_START);
            *log = RootLog { segments: written.collect(), ..RootLog::default() };
        }
        for (log, checkpoint) in root.logs.iter_mut().zip(&m.checkpoints) {
            log.checkpoint = checkpoint.clone();
        }
        root
    }

    /// Has engines hold their files, and looks which staged values there are.
    fn pin_engine_files(&self, root: &Root) -> Result<(Vec<BlobFile>, Vec<EnginePins>)> {
        let keyspaces = self.catalog.all();
        let mut pinned_files = Vec::new();
        for entry in &root.keyspaces {
            let Some(keyspace) = keyspaces.iter().find(|keyspace| keyspace.id() == entry.id) else {
                continue;
            };
            pinned_files.extend(Arc::clone(keyspace.engine()?).pin_files()?.map(|files| (entry.id, files)));
        }
        Ok((self.context.blobs.files()?, pinned_files))
    }

    /// A state is not needed any more.
    fn unpin_state(&self, turn: u64) {
        let mut m = self.maintenance.lock();
        if let Some(index) = m.pinned.iter().position(|pinned| pinned.pin_id == turn) {
            m.pinned.swap_remove(index);
        }
        if !self.flags.is_closed.load(Ordering::Acquire) {
            self.free_retired(&mut m); // after the end the next opening sweeps it
        }
        drop(m);
        self.signals.wake();
    }

    /// Breaks the second invariant: nothing stays any more. For tests that prove that they would
    /// notice.
    #[doc(hidden)]
    pub fn unpin_all_states(&self) {
        let mut m = self.maintenance.lock();
        m.pinned.clear();
        self.free_retired(&mut m);
    }

    /// Whether a state stays that is not the present one.
    pub(super) fn has_pinned_state(&self) -> bool {
        self.pinned_states.load(Ordering::Relaxed) > 0
    }
}

impl PinnedState {
    /// The last commit in it.
    #[must_use]
    pub fn seq(&self) -> Seq {
        self.root.floor
    }

    /// What its ROOT says.
    pub(crate) fn root(&self) -> &Root {
        &self.root
    }

    /// Files of the engines' own.
    pub(crate) fn engine_files(&self) -> impl Iterator<Item = (KeyspaceId, &dyn PinnedFiles)> {
        self.engine_files.iter().map(|(id, pinned_files)| (*id, &**pinned_files))
    }

    /// The files of the store's own.
    pub(crate) fn files(&self) -> impl Iterator<Item = PinnedStoreFile> {
        self.segments().chain(self.images()).chain(self.blob_files())
    }

    fn segments(&self) -> impl Iterator<Item = PinnedStoreFile> {
        let of_log = |log: LogId| self.root.logs[log.index()].segments.iter().map(move |entry| (log, entry));
        LogId::ALL.into_iter().flat_map(of_log).map(|(log, entry)| PinnedStoreFile {
            name: PathBuf::from(log.directory()).join(segment::file_name(entry.id)),
            len: Some(entry.end),
            min_len: entry.capacity,
            is_immutable: true,
            may_be_missing: false,
        })
    }

    fn images(&self) -> impl Iterator<Item = PinnedStoreFile> {
        let checkpoints = self.root.logs.iter().map(|log| &log.checkpoint);
        let named = checkpoints.flat_map(|c| c.keyspaces.iter().map(|id| image::file_name(*id, c.number)));
        named.map(|name| PinnedStoreFile {
            name: PathBuf::from(image::IMAGE_DIR).join(name),
            len: None,
            min_len: 0,
            is_immutable: true,
            may_be_missing: false,
        })
    }

    /// Staged values. Those of commits after S are among them, and of commits that will never be;
    /// an opening sweeps them.
    fn blob_files(&self) -> impl Iterator<Item = PinnedStoreFile> {
        let elsewhere = |id: u64| self.engine_files.iter().any(|(_, pinned_files)| pinned_files.has_blob(id));
        let here = self.blobs.iter().filter(move |(id, is_chunk)| *is_chunk || !elsewhere(*id));
        let dir = self.store.path();
        here.filter_map(move |(id, is_chunk)| {
            let path = self.store.context.blobs.file_of(*id, *is_chunk);
            let name = path.strip_prefix(dir).ok()?.to_path_buf();
            Some(PinnedStoreFile {
                name,
                len: None,
                min_len: 0,
                is_immutable: !is_chunk,
                may_be_missing: true,
            })
        })
    }
}

impl std::fmt::Debug for PinnedState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Still of {:?} at {}", self.store, self.root.floor.0)
    }
}

impl Drop for PinnedState {
    fn drop(&mut self) {
        if self.store.fork.is_child() {
            std::mem::forget(std::mem::take(&mut self.engine_files)); // as in `View`: locks may be held for ever
            return;
        }
        self.engine_files.clear(); // engines first: what they let go the store may take away
        self.store.unpin_state(self.pin_id);
    }
}
