//! # Rooting: what goes into ROOT, and what may go once it is there
//!
//! The one rule for freeing (commit.md R13) is here: a segment, image or keyspace that is no longer
//! needed is left out of ROOT; when a second ROOT without it is durable, neither slot names it and
//! it goes. What superseded its content was durable before it was left out. While a state stays
//! (`still`) nothing goes that it may name: what was made later goes as ever.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use super::checkpoint::PendingCheckpoint;
use super::gc::SURVIVOR_STREAMS;
use super::log::LogState;
use super::{KeyspaceState, Store};
use crate::blob;
use crate::error::{Error, Result};
use crate::root::{CheckpointRef, Root, RootLog};
use crate::segment::Segment;
use crate::sync::atomic::Ordering;
use crate::types::{KeyspaceId, LogId, SegmentId, Seq};

/// Chunks of blob numbers that are reserved ahead: the background raises the bound when the first
/// is used, a writer when the last is begun.
const BLOB_CHUNKS_AHEAD: u64 = 4;

/// Something that goes when both slots are past it.
#[derive(Debug)]
pub(crate) enum PendingFree {
    /// A segment nothing points into.
    Segment(LogId, Arc<Segment>),
    /// An old image: whose, and its number.
    Image(KeyspaceId, u64),
    /// A staged value.
    Blob(u64),
    /// What only images of a keyspace before its present one name.
    Predecessors(Arc<KeyspaceState>),
}

/// A state that stays, and where its names end: numbers are handed out in order, and what has a
/// later one is none of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PinnedBounds {
    pub(crate) seq: Seq,
    /// Tells it from another one of the same commit.
    pub(crate) pin_id: u64,
    pub(crate) segments: SegmentId,
    pub(crate) images: u64,
    pub(crate) blobs: u64,
}

impl PinnedBounds {
    fn may_reference(&self, what: &PendingFree) -> bool {
        match what {
            PendingFree::Segment(_, segment) => segment.id() < self.segments,
            PendingFree::Image(_, number) => *number < self.images,
            PendingFree::Blob(id) => blob::file_number(*id) < self.blobs,
            PendingFree::Predecessors(_) => true,
        }
    }
}

/// A stream of survivors: where a thread that collects garbage appends.
#[derive(Debug)]
pub(crate) struct SurvivorTail {
    pub(crate) segment: Arc<Segment>,
    pub(crate) offset: u64,
}

/// The survivors of one thread that collects garbage.
#[derive(Debug, Default)]
pub(crate) struct SurvivorTails {
    /// Tails by stream (index 0 unused).
    pub(crate) streams: [Option<SurvivorTail>; SURVIVOR_STREAMS as usize],
    /// Full segments that the device does not have yet.
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

/// What the maintenance lock guards: everything that changes what ROOT says.
#[derive(Debug, Default)]
pub(crate) struct RootState {
    pub(crate) generation: u64,
    pub(crate) first_seq: Seq,
    pub(crate) seq_bound: Seq,
    pub(crate) blob_bound: u64,
    pub(crate) checkpoints: [CheckpointRef; LogId::ALL.len()],
    /// Starts of the checkpoints that the older and the newer slot name.
    pub(crate) older_checkpoint: [Seq; LogId::ALL.len()],
    pub(crate) newer_checkpoint: [Seq; LogId::ALL.len()],
    /// Survivors of the threads that collect garbage, per log.
    pub(crate) survivors: [Vec<SurvivorTails>; LogId::ALL.len()],
    /// How long hot victims lasted, until there are enough for a mean.
    pub(crate) lifespans: Vec<u64>,
    /// Victims that the cleaner could not judge, until it has tried all others.
    pub(crate) undetermined_victims: HashSet<SegmentId>,
    /// What goes, with the first generation of ROOT that does not name it.
    pub(crate) pending_free: Vec<(u64, PendingFree)>,
    /// What is to stay, and how many such states there were.
    pub(crate) pinned: Vec<PinnedBounds>,
    pub(crate) last_pin_id: u64,
    /// Checkpoints that are under way.
    pub(crate) pending: [Option<PendingCheckpoint>; LogId::ALL.len()],
    /// The number of the next image.
    pub(crate) next_image: u64,
}

impl RootState {
    /// `what` is left out of the next ROOT and goes after the one that follows.
    pub(crate) fn retire(&mut self, what: PendingFree) {
        self.pending_free.push((self.generation + 1, what));
    }

    /// Returns the survivors of `threads` threads, or of more if there were more.
    pub(crate) fn survivors_of(&mut self, log: LogId, threads: usize) -> &mut [SurvivorTails] {
        let all = &mut self.survivors[log.index()];
        if all.len() < threads {
            all.resize_with(threads, SurvivorTails::default);
        }
        all
    }

    /// Something goes once ROOT is written again.
    pub(crate) fn is_root_write_due(&self) -> bool {
        self.pending_free.iter().any(|(first, _)| *first >= self.generation)
    }

    /// Tombstones up to here are in the images both slots name.
    pub(crate) fn tombstone_line(&self, log: LogId) -> Seq {
        self.newer_checkpoint[log.index()].min(self.older_checkpoint[log.index()])
    }
}

impl Store {
    /// Writes ROOT and lets go what no slot names any more.
    pub(super) fn write_root(&self, m: &mut RootState, clean: bool) -> Result<()> {
        if self.flags.is_closed.load(Ordering::Acquire) && !clean {
            return Err(Error::Closed); // the end is written, and the next life may have begun
        }
        let root = self.build_root(m, clean)?;
        if let Err(error) = self.root_slots.write(&root) {
            if error.is_failed_sync() {
                return Err(self.poison("sync of ROOT"));
            }
            return Err(error);
        }
        m.generation = root.generation;
        self.note_listed(root.next_segment);
        m.older_checkpoint =
            std::mem::replace(&mut m.newer_checkpoint, m.checkpoints.each_ref().map(|c| c.seq));
        self.free_retired(m);
        Ok(())
    }

    /// Notes that ROOT lists all segments of numbers below `next`.
    fn note_listed(&self, next: SegmentId) {
        for log in &self.logs {
            log.segments.lock().range(..next).for_each(|(_, segment)| segment.mark_in_root());
        }
    }

    /// Raises the bounds of numbers that may be handed out. ROOT lists all segments then that there
    /// were at the call.
    pub(super) fn extend_bounds(&self) -> Result<()> {
        let mut m = self.maintenance.lock();
        let next = self.window.word().next();
        m.seq_bound = m.seq_bound.max(Seq(next.0 + self.geometry.seq_chunk));
        m.blob_bound = m.blob_bound.max(self.next_blob_bound());
        self.write_root(&mut m, false)?;
        self.seq_bound.store(m.seq_bound.0, Ordering::Release);
        self.blob_bound.store(m.blob_bound, Ordering::Release);
        Ok(())
    }

    /// Blob numbers that are reserved from now on end here.
    pub(super) fn next_blob_bound(&self) -> u64 {
        self.context.blobs.next() + BLOB_CHUNKS_AHEAD * self.geometry.blob_chunk
    }

    /// Whether so few blob numbers are left that a writer must wait for more: it would wait for a
    /// sync round and for all that goes with a ROOT. Others may be taking numbers meanwhile.
    pub(super) fn is_blob_bound_reached(&self) -> bool {
        self.blob_ids_left() <= self.geometry.blob_chunk
    }

    fn blob_ids_left(&self) -> u64 {
        self.blob_bound.load(Ordering::Acquire).saturating_sub(self.context.blobs.next())
    }

    /// True when less than half of a chunk of numbers is left, or the first chunk of those reserved
    /// for blobs is used: long before a writer is held up.
    pub(super) fn is_bound_near(&self) -> bool {
        let left = self.seq_bound.load(Ordering::Relaxed).saturating_sub(self.window.word().next().0);
        left < self.geometry.seq_chunk / 2
            || self.blob_ids_left() < (BLOB_CHUNKS_AHEAD - 1) * self.geometry.blob_chunk
    }

    fn build_root(&self, m: &RootState, clean: bool) -> Result<Root> {
        let _leading = self.sync_round.lock_leader(); // no round is between taking dirty segments and syncing them
        self.check_not_poisoned()?; // nor has one failed, which would leave what it took in no list
        let making = self.next_segment.lock(); // no segment is between its number and its listing
        let order = self.commit_state.lock();
        let floor = self.durable();
        let mut unsynced: HashSet<SegmentId> = HashSet::new();
        for tail in &order.tails {
            unsynced.extend(tail.unsynced.iter().map(|(_, s)| s.id()));
            unsynced.extend(tail.segment.iter().map(|s| s.id()));
        }
        // What is empty now may be full and sealed by commits above `floor` before it is looked at
        // below.
        unsynced.extend(order.preallocated.iter().flatten().map(|s| s.id()));
        drop(order);
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

    /// Frees what neither slot names, nor a state that stays. Files of values are removed later, a
    /// few at a time, when the caller has let the maintenance lock go.
    pub(super) fn free_retired(&self, m: &mut RootState) {
        let RootState { generation, pinned, pending_free: all, .. } = m;
        let bytes = |what: &PendingFree| {
            if let PendingFree::Segment(_, s) = what { s.identity().capacity } else { 0 }
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
                    // From now on only the state needs it; what it has of the page cache others
                    // need more.
                    segment.file().drop_cached(0, segment.identity().capacity);
                }
            } else {
                going.push(std::mem::replace(what, PendingFree::Blob(u64::MAX)));
            }
            is_held
        });
        self.pending_free_bytes.store(dying, Ordering::Relaxed);
        self.pinned_bytes.store(held, Ordering::Relaxed);
        self.pinned_states.store(pinned.len() as u64, Ordering::Relaxed);
        for what in going {
            // A file that cannot be removed is swept at the next open.
            match what {
                PendingFree::Segment(log, segment) => {
                    self.context.segments.remove(&segment);
                    let _ = self.disk.remove(segment.path());
                    self.log(log).freed_segments.fetch_add(1, Ordering::Relaxed);
                }
                PendingFree::Image(id, number) => drop(self.disk.remove(&self.image_path(id, number))),
                PendingFree::Blob(id) => self.context.blobs.remove_later(id),
                PendingFree::Predecessors(keyspace) => {
                    keyspace.engine().into_iter().for_each(|engine| engine.image_superseded())
                }
            }
        }
    }

    /// Takes what died since the last time: staged values and keyspaces nobody sees any more. True
    /// if there was any.
    pub(super) fn retire_unreferenced(&self, m: &mut RootState) -> bool {
        let blobs = self.context.take_retired_blobs(self.durable());
        let any = !blobs.is_empty();
        for id in blobs {
            m.retire(PendingFree::Blob(id));
        }
        // In this order: a view that is registered after the look is younger than any drop durable
        // before it.
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
                let _ = engine.blobs(&mut blobs); // what is not known goes with the next opening
                blobs.into_iter().for_each(|id| m.retire(PendingFree::Blob(id)));
                engine.drop_data();
            }
        }
        any || !gone.is_empty()
    }

    /// The file of an image.
    pub(super) fn image_path(&self, id: KeyspaceId, number: u64) -> PathBuf {
        self.dir.join(super::image::IMAGE_DIR).join(super::image::file_name(id, number))
    }
}
