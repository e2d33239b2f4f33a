//! # Root writer and deferred deletion
//!
//! This module contains the one rule for freeing files (commit.md R13). A segment, image, blob or
//! keyspace that is no longer needed is *retired*: the next ROOT does not list it. It is freed
//! after a second ROOT without it is durable, so that neither slot lists it. The data that
//! superseded it is durable before it is retired. A pinned state delays the freeing of everything
//! that it may refer to. Files created after the pin are not affected.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use crate::checkpoint::PendingCheckpoint;
use crate::space::gc::SURVIVOR_STREAMS;
use crate::space::log::LogState;
use crate::{KeyspaceState, Store};
use sheaf_log::blob;
use sheaf_log::root::{CheckpointRef, Root, RootLog, RootSegment, RootSlots};
use sheaf_log::segment::{self, Segment};
use sheaf_log::types::{KeyspaceId, LogId, SegmentId, Seq};
use sheaf_platform::error::{Error, PoisonCause, Result};
use sheaf_platform::sync::Mutex;
use sheaf_platform::sync::atomic::{AtomicU64, Ordering};

/// Chunks of blob numbers that ROOT reserves in advance. The background raises the bound when the
/// first chunk is used, a writer when it begins the last one.
const BLOB_CHUNKS_AHEAD: u64 = 4;

/// Object that is freed when neither ROOT slot refers to it.
#[derive(Debug)]
pub(crate) enum PendingFree {
    /// Segment without live entries.
    Segment(LogId, Arc<Segment>),
    /// Collected segment that the change feed retains. Only its slot is freed.
    RetainedSlot(Arc<Segment>),
    /// File of a segment that the change feed no longer retains.
    RetainedSegment(LogId, RootSegment),
    /// Old image: its keyspace and its number.
    Image(KeyspaceId, u64),
    /// Blob.
    Blob(u64),
    /// Space that only older images of a keyspace refer to. Its engine reuses the space.
    Predecessors(Arc<KeyspaceState>),
}

/// Pinned state, and bounds on the numbers of its files. Numbers are assigned in ascending order,
/// so a file with a number at or above its bound does not belong to the state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PinnedBounds {
    pub(crate) seq: Seq,
    /// Distinguishes pinned states of the same commit.
    pub(crate) pin_id: u64,
    pub(crate) segments: SegmentId,
    pub(crate) images: u64,
    pub(crate) blobs: u64,
}

impl PinnedBounds {
    fn may_reference(&self, what: &PendingFree) -> bool {
        match what {
            PendingFree::Segment(_, segment) | PendingFree::RetainedSlot(segment) => {
                segment.id() < self.segments
            }
            PendingFree::RetainedSegment(_, segment) => segment.id < self.segments,
            PendingFree::Image(_, number) => *number < self.images,
            PendingFree::Blob(id) => blob::file_number(*id) < self.blobs,
            PendingFree::Predecessors(_) => true,
        }
    }
}

/// Tail of a stream of survivors, to which a GC thread appends.
#[derive(Debug)]
pub(crate) struct SurvivorTail {
    pub(crate) segment: Arc<Segment>,
    pub(crate) offset: u64,
}

/// Survivors of one GC thread.
#[derive(Debug, Default)]
pub(crate) struct SurvivorTails {
    /// Tails by stream. Index 0 is unused.
    pub(crate) streams: [Option<SurvivorTail>; SURVIVOR_STREAMS as usize],
    /// Full segments that are not durable yet.
    pub(crate) unsynced: Vec<Arc<Segment>>,
}

impl SurvivorTails {
    /// Ends all streams: the next survivor begins a segment.
    pub(crate) fn end_streams(&mut self) {
        for tail in self.streams.iter_mut().filter_map(Option::take) {
            tail.segment.seal(tail.segment.sealed_at());
            self.unsynced.push(tail.segment);
        }
    }
}

/// State under the maintenance lock: everything that changes the content of ROOT.
#[derive(Debug, Default)]
pub(crate) struct RootState {
    pub(crate) generation: u64,
    pub(crate) first_seq: Seq,
    pub(crate) seq_bound: Seq,
    pub(crate) blob_bound: u64,
    pub(crate) checkpoints: [CheckpointRef; LogId::ALL.len()],
    /// Positions of the checkpoints in the older and in the newer slot.
    pub(crate) older_checkpoint: [Seq; LogId::ALL.len()],
    pub(crate) newer_checkpoint: [Seq; LogId::ALL.len()],
    /// Survivors of the GC threads, per log.
    pub(crate) survivors: [Vec<SurvivorTails>; LogId::ALL.len()],
    /// Lifespans of hot victims, until there are enough for a mean.
    pub(crate) lifespans: Vec<u64>,
    /// Victims of unknown liveness. GC skips them until it has tried all others (gc I5).
    pub(crate) undetermined_victims: HashSet<SegmentId>,
    /// Retired objects, each with the first generation of ROOT that does not refer to it.
    pub(crate) pending_free: Vec<(u64, PendingFree)>,
    /// Pinned states, and the id of the last one.
    pub(crate) pinned: Vec<PinnedBounds>,
    pub(crate) last_pin_id: u64,
    /// Pending checkpoints.
    pub(crate) pending: [Option<PendingCheckpoint>; LogId::ALL.len()],
    /// Number of the next image.
    pub(crate) next_image: u64,
}

impl RootState {
    /// Retires an object: the next ROOT does not refer to it, and it is freed after the one that
    /// follows.
    pub(crate) fn retire(&mut self, what: PendingFree) {
        self.pending_free.push((self.generation + 1, what));
    }

    /// Returns the survivors of at least `threads` threads.
    pub(crate) fn survivors_of(&mut self, log: LogId, threads: usize) -> &mut [SurvivorTails] {
        let all = &mut self.survivors[log.index()];
        if all.len() < threads {
            all.resize_with(threads, SurvivorTails::default);
        }
        all
    }

    /// Returns whether writing ROOT once more lets retired objects be freed.
    pub(crate) fn is_root_write_due(&self) -> bool {
        self.pending_free.iter().any(|(first, _)| *first >= self.generation)
    }

    /// Returns the seq up to which the images of both slots contain all tombstones.
    pub(crate) fn tombstone_line(&self, log: LogId) -> Seq {
        self.newer_checkpoint[log.index()].min(self.older_checkpoint[log.index()])
    }
}

/// Copies of values under the maintenance lock, for threads without that lock. Only its holder
/// writes them.
#[derive(Debug)]
pub(crate) struct PublishedRoot {
    /// The journal is durable up to this commit, and ROOT says so.
    floor_seq: AtomicU64,
    /// Blob numbers from here on need a new ROOT first.
    blob_bound: AtomicU64,
    /// Bytes of retired segments that one ROOT slot may still list.
    pub(crate) pending_free_bytes: AtomicU64,
    /// Bytes of retired segments that only pinned states keep.
    pub(crate) pinned_bytes: AtomicU64,
    pub(crate) pinned_states: AtomicU64,
    /// Mean lifespan of an entry in a hot segment, in commits. `u64::MAX` until it is known.
    lifespan: AtomicU64,
}

impl PublishedRoot {
    fn new() -> PublishedRoot {
        PublishedRoot {
            floor_seq: AtomicU64::new(0),
            blob_bound: AtomicU64::new(0),
            pending_free_bytes: AtomicU64::new(0),
            pinned_bytes: AtomicU64::new(0),
            pinned_states: AtomicU64::new(0),
            lifespan: AtomicU64::new(u64::MAX),
        }
    }

    /// Returns the floor of ROOT, up to which the journal is durable.
    pub(crate) fn floor(&self) -> Seq {
        Seq(self.floor_seq.load(Ordering::Acquire))
    }

    pub(crate) fn set_floor(&self, floor: Seq) {
        self.floor_seq.store(floor.0, Ordering::Release);
    }

    pub(crate) fn set_blob_bound(&self, bound: u64) {
        self.blob_bound.store(bound, Ordering::Release);
    }

    /// Returns true if there is a pinned state.
    pub(crate) fn has_pinned_state(&self) -> bool {
        self.pinned_states.load(Ordering::Relaxed) > 0
    }

    /// Returns the mean lifespan of an entry in a hot segment, in commits.
    #[inline]
    pub(crate) fn lifespan(&self) -> u64 {
        self.lifespan.load(Ordering::Relaxed)
    }

    pub(crate) fn set_lifespan(&self, commits: u64) {
        self.lifespan.store(commits, Ordering::Relaxed);
    }
}

/// ROOT, and the state of its writer.
#[derive(Debug)]
pub(crate) struct RootWriter {
    pub(crate) slots: RootSlots,
    /// State under the maintenance lock, which is this mutex.
    pub(crate) maintenance: Mutex<RootState>,
    pub(crate) published: PublishedRoot,
    /// Number of the next segment. The lock is held while a segment is created.
    pub(crate) next_segment: Mutex<u64>,
    /// Segments sealed since the background last wrote ROOT because of sealed segments. Raised
    /// under the order lock, and lowered under the maintenance lock.
    pub(crate) sealed_since_write: AtomicU64,
}

impl RootWriter {
    /// Creates the writer of a store that is not recovered yet.
    pub(crate) fn new(slots: RootSlots) -> RootWriter {
        RootWriter {
            slots,
            maintenance: Mutex::default(),
            published: PublishedRoot::new(),
            next_segment: Mutex::new(0),
            sealed_since_write: AtomicU64::new(0),
        }
    }
}

impl Store {
    /// Writes ROOT and frees the objects that no slot refers to any more.
    pub(crate) fn write_root(&self, m: &mut RootState, clean: bool) -> Result<()> {
        if self.health.is_closed() && !clean {
            return Err(Error::Closed); // ROOT is marked clean, and another process may own it now
        }
        self.trim_changes(m);
        let root = self.build_root(m, clean)?;
        if let Err(error) = self.root.slots.write(&root) {
            if error.is_failed_sync() {
                return Err(self.poison(PoisonCause::RootSync));
            }
            return Err(error);
        }
        m.generation = root.generation;
        self.changes.note_root_written();
        self.note_listed(root.next_segment);
        m.older_checkpoint =
            std::mem::replace(&mut m.newer_checkpoint, m.checkpoints.each_ref().map(|c| c.seq));
        self.free_retired(m);
        Ok(())
    }

    /// Marks all segments with numbers below `next` as listed in ROOT.
    fn note_listed(&self, next: SegmentId) {
        for log in &self.logs {
            log.segments.lock().range(..next).for_each(|(_, segment)| segment.mark_in_root());
        }
    }

    /// Raises the bounds of seqs and blob numbers. On return ROOT lists all segments that existed
    /// at the call.
    pub(crate) fn extend_bounds(&self) -> Result<()> {
        let mut m = self.root.maintenance.lock();
        let next = self.pipeline.window.word().next();
        m.seq_bound = m.seq_bound.max(Seq(next.0 + self.geometry.seq_chunk));
        m.blob_bound = m.blob_bound.max(self.next_blob_bound());
        self.write_root(&mut m, false)?;
        self.pipeline.seq_bound.store(m.seq_bound.0, Ordering::Release);
        self.root.published.set_blob_bound(m.blob_bound);
        Ok(())
    }

    /// Returns the end of the blob numbers that the next ROOT reserves.
    pub(crate) fn next_blob_bound(&self) -> u64 {
        self.context.blobs.next() + BLOB_CHUNKS_AHEAD * self.geometry.blob_chunk
    }

    /// Returns whether so few blob numbers are left that a writer must extend the bound itself, and
    /// thereby wait for a sync round and for ROOT. One chunk remains, because other threads take
    /// numbers at the same time.
    pub(crate) fn is_blob_bound_reached(&self) -> bool {
        self.blob_ids_left() <= self.geometry.blob_chunk
    }

    fn blob_ids_left(&self) -> u64 {
        self.root.published.blob_bound.load(Ordering::Acquire).saturating_sub(self.context.blobs.next())
    }

    /// Returns whether less than half of a chunk of seqs is left, or the first of the reserved
    /// chunks of blob numbers is used. This is long before a writer must wait.
    pub(crate) fn is_bound_near(&self) -> bool {
        self.pipeline.seqs_left() < self.geometry.seq_chunk / 2
            || self.blob_ids_left() < (BLOB_CHUNKS_AHEAD - 1) * self.geometry.blob_chunk
    }

    fn build_root(&self, m: &RootState, clean: bool) -> Result<Root> {
        // No round has taken unsynced segments that it has not synced yet.
        let _leading = self.sync.round.lock_leader();
        // No failed round has taken segments that are in no list any more.
        self.health.check_not_poisoned()?;
        // Every segment with a number is in the list of its log.
        let making = self.root.next_segment.lock();
        let commit_state = self.pipeline.commit_state.lock();
        let floor = self.durable();
        let mut unsynced: HashSet<SegmentId> = HashSet::new();
        for tail in &commit_state.tails {
            unsynced.extend(tail.unsynced.iter().map(|(_, s)| s.id()));
            unsynced.extend(tail.segment.iter().map(|s| s.id()));
        }
        // Commits above `floor` may fill and seal these empty segments before they are examined
        // below.
        unsynced.extend(commit_state.preallocated.iter().flatten().map(|s| s.id()));
        drop(commit_state);
        let survivors = m.survivors.iter().flatten();
        unsynced.extend(survivors.flat_map(|tails| tails.unsynced.iter().map(|s| s.id())));
        let mut root = Root {
            generation: m.generation + 1,
            is_clean: clean,
            floor,
            first_seq: m.first_seq,
            seq_bound: m.seq_bound,
            next_segment: SegmentId(*making),
            blob_bound: m.blob_bound,
            keyspaces: self.catalog.entries_at(floor),
            next_keyspace: self.catalog.next_id(),
            changes: self.changes.as_root(floor),
            ..self.root_template()
        };
        for (entry, log) in root.logs.iter_mut().zip(&self.logs) {
            *entry = self.build_root_log(m, log, clean, &unsynced);
        }
        Ok(root)
    }

    fn build_root_log(
        &self,
        m: &RootState,
        log: &LogState,
        clean: bool,
        unsynced: &HashSet<SegmentId>,
    ) -> RootLog {
        if let Some(frozen) = log.frozen.lock().clone() {
            return frozen;
        }
        let listed = log.list();
        let segments = listed.iter().map(|segment| {
            if clean {
                return segment.entry(segment.end(), segment.is_sealed());
            }
            let open = unsynced.contains(&segment.id()) || !segment.is_sealed();
            segment.entry(if open { segment.synced() } else { segment.end() }, !open)
        });
        RootLog {
            segments: segments.collect(),
            checkpoint: m.checkpoints[log.id.index()].clone(),
            is_broken: false,
        }
    }

    /// Frees the objects that neither slot nor a pinned state refers to. Blob files are only
    /// queued. They are removed later, a few at a time and without the maintenance lock.
    pub(crate) fn free_retired(&self, m: &mut RootState) {
        let RootState { generation, pinned, pending_free: all, .. } = m;
        let bytes = |what: &PendingFree| match what {
            PendingFree::Segment(_, s) => s.identity().capacity,
            PendingFree::RetainedSegment(_, s) => s.capacity,
            _ => 0,
        };
        let (mut dying, mut held) = (0, 0);
        let mut going = Vec::new();
        all.retain_mut(|(first, what)| {
            if first >= generation {
                dying += bytes(what);
                return true;
            }
            let is_held = pinned.iter().any(|bounds| bounds.may_reference(what));
            if is_held {
                held += bytes(what);
                if let PendingFree::Segment(_, segment) = what
                    && *first + 1 == *generation
                {
                    // Only the pinned state needs the segment now, so its page cache is released.
                    segment.file().drop_cached(0, segment.identity().capacity);
                }
            } else {
                going.push(std::mem::replace(what, PendingFree::Blob(u64::MAX)));
            }
            is_held
        });
        self.root.published.pending_free_bytes.store(dying, Ordering::Relaxed);
        self.root.published.pinned_bytes.store(held, Ordering::Relaxed);
        self.root.published.pinned_states.store(pinned.len() as u64, Ordering::Relaxed);
        for what in going {
            // If a file cannot be removed, the next opening removes it.
            match what {
                PendingFree::Segment(log, segment) => {
                    let is_listed = self.log(log).segments.lock().contains_key(&segment.id());
                    assert!(!is_listed, "store (I3): ROOT does not list a segment that is freed");
                    self.context.segments.remove(&segment);
                    let _ = self.disk.remove(segment.path());
                    self.log(log).freed_segments.fetch_add(1, Ordering::Relaxed);
                }
                PendingFree::RetainedSlot(segment) => self.context.segments.remove(&segment),
                PendingFree::RetainedSegment(log, entry) => {
                    let log = self.log(log);
                    let _ = self.disk.remove(&log.dir.join(segment::file_name(entry.id)));
                    log.freed_segments.fetch_add(1, Ordering::Relaxed);
                }
                PendingFree::Image(id, number) => drop(self.disk.remove(&self.image_path(id, number))),
                PendingFree::Blob(id) => self.context.blobs.remove_later(id),
                PendingFree::Predecessors(keyspace) => {
                    keyspace.engine().into_iter().for_each(|engine| engine.image_superseded())
                }
            }
        }
    }

    /// Retires blobs and dropped keyspaces that became unreferenced since the last call. Returns
    /// true if there were any.
    pub(crate) fn retire_unreferenced(&self, m: &mut RootState) -> bool {
        let blobs = self.context.take_retired_blobs(self.durable());
        let any = !blobs.is_empty();
        self.collect_blobs(m, blobs);
        // The order matters: a view that is registered after the registry was read is newer than
        // every drop that was durable before.
        let durable = self.durable();
        let oldest = self.current_views().oldest();
        let oldest = oldest.into_iter().chain(m.pinned.iter().map(|bounds| bounds.seq)).min();
        let gone = self.catalog.take_reclaimable(durable, oldest);
        for keyspace in &gone {
            if let Ok(engine) = keyspace.engine() {
                if keyspace.log() == LogId::Journal {
                    self.log(LogId::Journal)
                        .dropped_bytes
                        .fetch_add(engine.log_bytes_needed(), Ordering::Relaxed);
                }
                let mut blobs = Vec::new();
                // The next opening removes the blobs that an error leaves out.
                let _ = engine.blobs(&mut blobs);
                self.collect_blobs(m, blobs);
                engine.drop_data();
            }
        }
        any || !gone.is_empty()
    }

    /// Returns the path of an image.
    pub(crate) fn image_path(&self, id: KeyspaceId, number: u64) -> PathBuf {
        self.dir
            .join(sheaf_engine::checkpoint_file::IMAGE_DIR)
            .join(sheaf_engine::checkpoint_file::file_name(id, number))
    }
}
