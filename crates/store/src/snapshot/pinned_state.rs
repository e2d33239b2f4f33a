//! # Pinned state: files of one state that are kept on disk
//!
//! A backup copies them, and an attached reader reads them, while commits continue.
//!
//! ## Picture
//!
//! ```text
//!  with the maintenance lock:
//!    sync survivors | sync round: [window closed: S, ends of tails] -> durable = S | pin files
//!  then: copy or read ─> drop ─> delayed deletions are done
//! ```
//!
//! ## Invariants
//!
//! 1. The state is that of S: it contains all commits up to S, and all of it is durable. Logs end
//!    at their ends of S. Files of engines contain nothing above S: they contain only durable
//!    commits.
//! 2. While the value exists, no file of its ROOT is deleted or overwritten. The store deletes no
//!    file that is older (`root_writer`), dropped keyspaces are kept, and engines pin their own
//!    files. Newer files are deleted as usual, so the delayed space is bounded.
//! 3. All segments of the state are sealed: recovery looks for nothing behind their ends. Segments
//!    without a frame are left out.
//! 4. Commits and GC continue. Delayed space counts as pinned, not as garbage: the space limit of
//!    GC ignores it. On a full disk GC pauses, since copies would take space and free none.
//!
//! ## Crash
//!
//! Nothing is stored on disk. The next opening deletes the delayed files, like all files without a
//! reference.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use crate::Store;
use crate::commit::tail::Tail;
use crate::space::log::LogState;
use crate::space::root_writer::{PinnedBounds, RootState};
use sheaf_engine::backup_files::PinnedFiles;
use sheaf_engine::checkpoint_file;
use sheaf_log::root::{Root, RootLog, RootSegment};
use sheaf_log::segment::{self, DATA_START, Segment};
use sheaf_log::types::{KeyspaceId, LogId, SegmentId, Seq};
use sheaf_platform::error::Result;
use sheaf_platform::sync::atomic::Ordering;

/// Ends of the logs at S.
struct LogEnds {
    seq: Seq,
    tails: Vec<(Arc<Segment>, u64)>,
    /// Segments that were empty.
    unused: HashSet<SegmentId>,
}

/// Number of a blob file, and whether it is a chunk.
type BlobFile = (u64, bool);
/// Keyspace and the pinned files of its engine.
type EnginePins = (KeyspaceId, Box<dyn PinnedFiles>);

/// State with files that are kept on disk. Creations are serialized; any number may exist, in any
/// thread.
pub struct PinnedState {
    store: Arc<Store>,
    root: Root,
    pin_id: u64,
    blobs: Vec<BlobFile>,
    engine_files: Vec<EnginePins>,
}

/// File of the store that belongs to a pinned state.
#[derive(Clone, Debug)]
pub(crate) struct PinnedStoreFile {
    /// Path relative to the database's directory.
    pub(crate) name: PathBuf,
    /// Length of the part that belongs to the state; `None` for the whole file.
    pub(crate) len: Option<u64>,
    /// Least length of the file.
    pub(crate) min_len: u64,
    /// True if no other bytes ever get this name.
    pub(crate) is_immutable: bool,
    /// True if the file may be missing: it may belong to a commit that was never completed.
    pub(crate) may_be_missing: bool,
}

impl Store {
    /// Pins the present state, and makes it durable.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`](sheaf_platform::error::Error::Corrupt) if a log or a keyspace is
    /// damaged: such a state cannot be pinned. Returns `Closed`, `ReadOnly` or `Poisoned` if writes
    /// are not possible, and errors of a sync.
    pub fn pin_state(self: &Arc<Store>) -> Result<PinnedState> {
        let mut m = self.root.maintenance.lock();
        self.check_writable()?;
        self.check_undamaged()?;
        self.sync_survivors(&mut m)?;
        let (ends, segments) = self.sync_and_read_ends()?;
        assert!(ends.seq <= self.durable(), "pinned_state (I1): all commits of the state are durable");
        let root = self.pinned_root(&m, &ends, &segments);
        let seq = ends.seq;
        m.last_pin_id += 1;
        let turn = m.last_pin_id;
        let (segments, images) = (root.next_segment, m.next_image);
        // The blob files are listed below; until then all are kept.
        m.pinned.push(PinnedBounds { seq, pin_id: turn, segments, images, blobs: u64::MAX });
        self.root.published.pinned_states.store(m.pinned.len() as u64, Ordering::Relaxed);
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

    /// Returns an error if a log or a keyspace is damaged.
    fn check_undamaged(&self) -> Result<()> {
        if let Some(log) = self.logs.iter().find(|log| log.is_frozen()) {
            return Err(log.frozen_error());
        }
        self.catalog.map().values().try_for_each(|keyspace| keyspace.engine().map(drop))
    }

    /// Makes everything durable. Returns the ends of the logs at that point, and the segments.
    fn sync_and_read_ends(&self) -> Result<(LogEnds, [Vec<Arc<Segment>>; LogId::ALL.len()])> {
        let _leading = self.sync.round.lock_leader();
        // No segment is between its number and its listing.
        let next_segment = self.root.next_segment.lock();
        let segments = self.logs.each_ref().map(LogState::list);
        let ends = self.sync_and_capture(|commit_state, word| {
            let tails = commit_state.tails.iter().enumerate();
            let end = |(index, tail): (usize, &Tail)| {
                Some((tail.segment.clone()?, tail.end_at(word.offset(index))))
            };
            let ends = LogEnds {
                seq: self.pipeline.progress.last_assigned(word.reserved()),
                tails: tails.filter_map(end).collect(),
                unused: commit_state.preallocated.iter().flatten().map(|segment| segment.id()).collect(),
            };
            drop(next_segment);
            ends
        })?;
        Ok((ends, segments))
    }

    /// Returns the ROOT of the state, with all segments sealed.
    fn pinned_root(&self, m: &RootState, ends: &LogEnds, segments: &[Vec<Arc<Segment>>]) -> Root {
        let entry = |segment: &Arc<Segment>| {
            // The last commit in a tail is recorded when the tail is sealed.
            let tail = ends.tails.iter().find(|(tail, _)| tail.id() == segment.id());
            let (end, last_seq) =
                tail.map_or_else(|| (segment.end(), segment.last_seq()), |(_, end)| (*end, ends.seq));
            RootSegment { last_seq: last_seq.min(ends.seq), ..segment.entry(end, true) }
        };
        let mut root = Root {
            generation: m.generation,
            floor: ends.seq,
            first_seq: m.first_seq,
            seq_bound: m.seq_bound,
            next_segment: SegmentId(*self.root.next_segment.lock()),
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

    /// Lets engines pin their files, and lists the present blobs.
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

    /// Releases a pinned state.
    fn unpin_state(&self, turn: u64) {
        let mut m = self.root.maintenance.lock();
        if let Some(index) = m.pinned.iter().position(|pinned| pinned.pin_id == turn) {
            m.pinned.swap_remove(index);
        }
        if !self.health.is_closed() {
            self.free_retired(&mut m); // after closing, the next opening deletes the files
        }
        drop(m);
        self.background.wake();
    }

    /// Releases all pins, which breaks I2. For tests that prove that they notice it.
    #[doc(hidden)]
    pub fn unpin_all_states(&self) {
        let mut m = self.root.maintenance.lock();
        m.pinned.clear();
        self.free_retired(&mut m);
    }

    /// Returns true if there is a pinned state.
    pub(crate) fn has_pinned_state(&self) -> bool {
        self.root.published.has_pinned_state()
    }
}

impl PinnedState {
    /// Returns the last commit in it.
    #[must_use]
    pub fn seq(&self) -> Seq {
        self.root.floor
    }

    /// Returns the ROOT of the state.
    pub(crate) fn root(&self) -> &Root {
        &self.root
    }

    /// Returns the files of the engines.
    pub(crate) fn engine_files(&self) -> impl Iterator<Item = (KeyspaceId, &dyn PinnedFiles)> {
        self.engine_files.iter().map(|(id, pinned_files)| (*id, &**pinned_files))
    }

    /// Returns the files of the store.
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
        let named =
            checkpoints.flat_map(|c| c.keyspaces.iter().map(|id| checkpoint_file::file_name(*id, c.number)));
        named.map(|name| PinnedStoreFile {
            name: PathBuf::from(checkpoint_file::IMAGE_DIR).join(name),
            len: None,
            min_len: 0,
            is_immutable: true,
            may_be_missing: false,
        })
    }

    /// Returns the blobs. They may include blobs of later commits, and of commits that are never
    /// completed; an opening removes those.
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
        write!(f, "PinnedState({:?} at {})", self.store, self.root.floor.0)
    }
}

impl Drop for PinnedState {
    fn drop(&mut self) {
        if self.store.health.is_forked_child() {
            // as in `View`: locks may be held forever
            std::mem::forget(std::mem::take(&mut self.engine_files));
            return;
        }
        // engines first: the store may delete the files that they release
        self.engine_files.clear();
        self.store.unpin_state(self.pin_id);
    }
}
