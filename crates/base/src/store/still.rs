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
//! 1. The state is that of S: everything committed up to there, and all of it is on the device. Logs end where they did at S; engines' own
//!    files hold nothing above, since they hold what the store was certain of, which was durable before.
//! 2. While one lives nothing that its ROOT names goes or is written again: [`Store`] lets nothing go that was made before it
//!    (`rooting`), dropped keyspaces are not buried, and engines hold their own files. What is made later comes and goes as ever, so that
//!    what waits for it has a bound: what there was.
//! 3. All segments of the state are sealed: a recovery from it looks for nothing behind their ends. Those without a frame are left out.
//! 4. It neither stops commits nor cleaning. What waits for it is counted as held, not as room: the cleaner's limit does not see it, and on a
//!    full disk, where copies would take room and give none, it rests.
//!
//! ## Threads
//!
//! One at a time is made; any number may live, in any thread.
//!
//! ## Crash
//!
//! Nothing of it is on disk. What waited is swept at the next opening, as whatever ROOT does not name.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use super::log::Log;
use super::rooting::{Maintenance, Staying};
use super::tail::Tail;
use super::{Store, image};
use crate::error::Result;
use crate::own::OwnFiles;
use crate::root::{LogEntry, Root, SegmentEntry};
use crate::segment::{self, DATA_START, Segment};
use crate::sync::atomic::Ordering;
use crate::types::{KeyspaceId, LogId, SegmentId, Seq};

/// Where the logs ended at S.
struct Ends {
    seq: Seq,
    tails: Vec<(Arc<Segment>, u64)>,
    /// Segments that were empty.
    ready: HashSet<SegmentId>,
}

/// Of a file of staged values: its number, and whether it is a chunk.
type Blob = (u64, bool);
/// A keyspace, and the files of its engine's own.
type Own = (KeyspaceId, Box<dyn OwnFiles>);

/// A state that stays. See the module.
pub struct Still {
    store: Arc<Store>,
    root: Root,
    turn: u64,
    blobs: Vec<Blob>,
    own: Vec<Own>,
}

/// A file of the store's own that belongs to a state.
#[derive(Clone, Debug)]
pub(crate) struct Belonging {
    /// Below the database's directory.
    pub(crate) name: PathBuf,
    /// Bytes of it; all there are, if that is not known.
    pub(crate) len: Option<u64>,
    /// What its length is to be at least.
    pub(crate) whole: u64,
    /// The name means these bytes for ever.
    pub(crate) is_fixed: bool,
    /// It may be of a commit that never came, and gone by now.
    pub(crate) may_miss: bool,
}

impl Store {
    /// Takes the state of now, and keeps it on disk. A database with a damaged log or keyspace has none.
    pub fn still(self: &Arc<Store>) -> Result<Still> {
        let mut m = self.maintenance.lock();
        self.check_writable()?;
        self.check_whole()?;
        self.sync_survivors(&mut m)?;
        let (ends, segments) = self.ends_of_now()?;
        let root = self.root_of(&m, &ends, &segments);
        let seq = ends.seq;
        m.still_turn += 1;
        let turn = m.still_turn;
        let (segments, images) = (root.next_segment, m.next_image);
        // Which files of values there are is looked up below; until then all stay.
        m.stills.push(Staying { seq, turn, segments, images, blobs: u64::MAX });
        self.stills.store(m.stills.len() as u64, Ordering::Relaxed);
        match self.hold_files(&root) {
            Ok((blobs, own)) => {
                m.stills.last_mut().into_iter().for_each(|still| still.blobs = self.ground.blobs.next());
                Ok(Still { store: Arc::clone(self), root, turn, blobs, own })
            }
            Err(error) => {
                m.stills.pop();
                self.let_go(&mut m);
                Err(error)
            }
        }
    }

    /// An error if a log or a keyspace is damaged.
    fn check_whole(&self) -> Result<()> {
        if let Some(log) = self.logs.iter().find(|log| log.is_frozen()) {
            return Err(log.frozen_error());
        }
        self.catalogue.map().values().try_for_each(|kept| kept.engine().map(drop))
    }

    /// Makes everything durable, and says where the logs ended when it was.
    fn ends_of_now(&self) -> Result<(Ends, [Vec<Arc<Segment>>; LogId::ALL.len()])> {
        let _leading = self.round.lead();
        let making = self.making.lock(); // no segment is between its number and its listing
        let segments = self.logs.each_ref().map(Log::list);
        let ends = self.sync_looking(|order, word| {
            let tails = order.tails.iter().enumerate();
            let end = |(index, tail): (usize, &Tail)| {
                Some((tail.segment.clone()?, tail.end_at(word.offset(index))))
            };
            let ends = Ends {
                seq: self.progress.last_given(word.reserved()),
                tails: tails.filter_map(end).collect(),
                ready: order.ready.iter().flatten().map(|segment| segment.id()).collect(),
            };
            drop(making);
            ends
        })?;
        Ok((ends, segments))
    }

    /// What ROOT would say of that state, if all its segments were sealed.
    fn root_of(&self, m: &Maintenance, ends: &Ends, segments: &[Vec<Arc<Segment>>]) -> Root {
        let entry = |segment: &Arc<Segment>| {
            let tail = ends.tails.iter().find(|(tail, _)| tail.id() == segment.id());
            let end = tail.map_or_else(|| segment.end(), |(_, end)| *end);
            SegmentEntry { last_seq: segment.last_seq().min(ends.seq), ..segment.entry(end, true) }
        };
        let mut root = Root {
            generation: m.generation,
            floor: ends.seq,
            first_seq: m.first_seq,
            seq_bound: m.seq_bound,
            next_segment: SegmentId(*self.making.lock()),
            blob_bound: m.blob_bound,
            keyspaces: self.catalogue.as_of(ends.seq),
            next_keyspace: self.catalogue.next_id(),
            ..self.root_frame()
        };
        for (log, listed) in root.logs.iter_mut().zip(segments) {
            let listed = listed.iter().filter(|segment| !ends.ready.contains(&segment.id()));
            let written = listed.map(entry).filter(|entry| entry.end > DATA_START);
            *log = LogEntry { segments: written.collect(), ..LogEntry::default() };
        }
        for (log, checkpoint) in root.logs.iter_mut().zip(&m.checkpoints) {
            log.checkpoint = checkpoint.clone();
        }
        root
    }

    /// Has engines hold their files, and looks which staged values there are.
    fn hold_files(&self, root: &Root) -> Result<(Vec<Blob>, Vec<Own>)> {
        let kepts = self.catalogue.all();
        let mut own = Vec::new();
        for entry in &root.keyspaces {
            let Some(kept) = kepts.iter().find(|kept| kept.id() == entry.id) else { continue };
            own.extend(Arc::clone(kept.engine()?).still()?.map(|files| (entry.id, files)));
        }
        Ok((self.ground.blobs.files()?, own))
    }

    /// A state is not needed any more.
    fn release_still(&self, turn: u64) {
        let mut m = self.maintenance.lock();
        if let Some(index) = m.stills.iter().position(|still| still.turn == turn) {
            m.stills.swap_remove(index);
        }
        if !self.flags.closed.load(Ordering::Acquire) {
            self.let_go(&mut m); // after the end the next opening sweeps it
        }
        drop(m);
        self.signals.wake();
    }

    /// Breaks the second invariant: nothing stays any more. For tests that prove that they would notice.
    #[doc(hidden)]
    pub fn forget_stills(&self) {
        let mut m = self.maintenance.lock();
        m.stills.clear();
        self.let_go(&mut m);
    }

    /// Whether a state stays that is not the present one.
    pub(super) fn is_still(&self) -> bool {
        self.stills.load(Ordering::Relaxed) > 0
    }
}

impl Still {
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
    pub(crate) fn own(&self) -> impl Iterator<Item = (KeyspaceId, &dyn OwnFiles)> {
        self.own.iter().map(|(id, own)| (*id, &**own))
    }

    /// The files of the store's own.
    pub(crate) fn files(&self) -> impl Iterator<Item = Belonging> {
        self.segments().chain(self.images()).chain(self.staged())
    }

    fn segments(&self) -> impl Iterator<Item = Belonging> {
        let of_log = |log: LogId| self.root.logs[log.index()].segments.iter().map(move |entry| (log, entry));
        LogId::ALL.into_iter().flat_map(of_log).map(|(log, entry)| Belonging {
            name: PathBuf::from(log.directory()).join(segment::file_name(entry.id)),
            len: Some(entry.end),
            whole: entry.capacity,
            is_fixed: true,
            may_miss: false,
        })
    }

    fn images(&self) -> impl Iterator<Item = Belonging> {
        let checkpoints = self.root.logs.iter().map(|log| &log.checkpoint);
        let named = checkpoints.flat_map(|c| c.keyspaces.iter().map(|id| image::file_name(*id, c.number)));
        named.map(|name| Belonging {
            name: PathBuf::from(image::DIRECTORY).join(name),
            len: None,
            whole: 0,
            is_fixed: true,
            may_miss: false,
        })
    }

    /// Staged values. Those of commits after S are among them, and of commits that will never be; an opening sweeps them.
    fn staged(&self) -> impl Iterator<Item = Belonging> {
        let elsewhere = |id: u64| self.own.iter().any(|(_, own)| own.has_blob(id));
        let here = self.blobs.iter().filter(move |(id, is_chunk)| *is_chunk || !elsewhere(*id));
        let dir = self.store.path();
        here.filter_map(move |(id, is_chunk)| {
            let path = self.store.ground.blobs.file_of(*id, *is_chunk);
            let name = path.strip_prefix(dir).ok()?.to_path_buf();
            Some(Belonging { name, len: None, whole: 0, is_fixed: !is_chunk, may_miss: true })
        })
    }
}

impl std::fmt::Debug for Still {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Still of {:?} at {}", self.store, self.root.floor.0)
    }
}

impl Drop for Still {
    fn drop(&mut self) {
        if self.store.fork.is_child() {
            std::mem::forget(std::mem::take(&mut self.own)); // as in `View`: locks may be held for ever
            return;
        }
        self.own.clear(); // engines first: what they let go the store may take away
        self.store.release_still(self.turn);
    }
}
