//! # Rooting: what goes into ROOT, and what may go once it is there
//!
//! The one rule for freeing (commit.md R13) is here: a segment, image or keyspace that is no longer
//! needed is left out of ROOT; when a second ROOT without it is durable, neither slot names it and it
//! goes. What superseded its content was durable before it was left out. While a state stays (`still`) nothing goes that it may name: what was
//! made later goes as ever.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use super::checkpoint::Pending;
use super::clean::STREAMS;
use super::log::Log;
use super::{Kept, Store};
use crate::blob;
use crate::error::{Error, Result};
use crate::root::{CheckpointRef, LogEntry, Root};
use crate::segment::Segment;
use crate::sync::atomic::Ordering;
use crate::types::{KeyspaceId, LogId, SegmentId, Seq};

/// Chunks of blob numbers that are reserved ahead: the background raises the bound when the first is used, a writer when the last is
/// begun.
const BLOB_CHUNKS: u64 = 4;

/// Something that goes when both slots are past it.
#[derive(Debug)]
pub(crate) enum Dying {
    /// A segment nothing points into.
    Segment(LogId, Arc<Segment>),
    /// An old image: whose, and its number.
    Image(KeyspaceId, u64),
    /// A staged value.
    Blob(u64),
    /// What only images of a keyspace before its present one name.
    Before(Arc<Kept>),
}

/// A state that stays, and where its names end: numbers are handed out in order, and what has a later one is none of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Staying {
    pub(crate) seq: Seq,
    /// Tells it from another one of the same commit.
    pub(crate) turn: u64,
    pub(crate) segments: SegmentId,
    pub(crate) images: u64,
    pub(crate) blobs: u64,
}

impl Staying {
    fn may_name(&self, what: &Dying) -> bool {
        match what {
            Dying::Segment(_, segment) => segment.id() < self.segments,
            Dying::Image(_, number) => *number < self.images,
            Dying::Blob(id) => blob::file_number(*id) < self.blobs,
            Dying::Before(_) => true,
        }
    }
}

/// A stream of survivors: where a thread that collects garbage appends.
#[derive(Debug)]
pub(crate) struct Survivors {
    pub(crate) segment: Arc<Segment>,
    pub(crate) offset: u64,
}

/// The survivors of one thread that collects garbage.
#[derive(Debug, Default)]
pub(crate) struct SurvivorTails {
    /// Tails by stream (index 0 unused).
    pub(crate) streams: [Option<Survivors>; STREAMS as usize],
    /// Full segments that the device does not have yet.
    pub(crate) unsynced: Vec<Arc<Segment>>,
}

impl SurvivorTails {
    /// Ends all streams: the next survivor begins a segment.
    pub(crate) fn seal(&mut self) {
        for tail in self.streams.iter_mut().filter_map(Option::take) {
            tail.segment.seal(tail.segment.sealed_at());
            self.unsynced.push(tail.segment);
        }
    }
}

/// What the maintenance lock guards: everything that changes what ROOT says.
#[derive(Debug, Default)]
pub(crate) struct Maintenance {
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
    pub(crate) unjudged: HashSet<SegmentId>,
    /// What goes, with the first generation of ROOT that does not name it.
    pub(crate) dying: Vec<(u64, Dying)>,
    /// What is to stay, and how many such states there were.
    pub(crate) stills: Vec<Staying>,
    pub(crate) still_turn: u64,
    /// Checkpoints that are under way.
    pub(crate) pending: [Option<Pending>; LogId::ALL.len()],
    /// The number of the next image.
    pub(crate) next_image: u64,
}

impl Maintenance {
    /// `what` is left out of the next ROOT and goes after the one that follows.
    pub(crate) fn dies(&mut self, what: Dying) {
        self.dying.push((self.generation + 1, what));
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
    pub(crate) fn waits_for_root(&self) -> bool {
        self.dying.iter().any(|(first, _)| *first >= self.generation)
    }

    /// Tombstones up to here are in the images both slots name.
    pub(crate) fn tombstone_line(&self, log: LogId) -> Seq {
        self.newer_checkpoint[log.index()].min(self.older_checkpoint[log.index()])
    }
}

impl Store {
    /// Writes ROOT and lets go what no slot names any more.
    pub(super) fn write_root(&self, m: &mut Maintenance, clean: bool) -> Result<()> {
        if self.flags.closed.load(Ordering::Acquire) && !clean {
            return Err(Error::Closed); // the end is written, and the next life may have begun
        }
        let root = self.gather_root(m, clean)?;
        if let Err(error) = self.slots.write(&root) {
            if error.is_failed_sync() {
                return Err(self.poison("sync of ROOT"));
            }
            return Err(error);
        }
        m.generation = root.generation;
        self.note_listed(root.next_segment);
        m.older_checkpoint =
            std::mem::replace(&mut m.newer_checkpoint, m.checkpoints.each_ref().map(|c| c.seq));
        self.let_go(m);
        Ok(())
    }

    /// Notes that ROOT lists all segments of numbers below `next`.
    fn note_listed(&self, next: SegmentId) {
        for log in &self.logs {
            log.segments.lock().range(..next).for_each(|(_, segment)| segment.mark_listed());
        }
    }

    /// Raises the bounds of numbers that may be handed out. ROOT lists all segments then that there were at the call.
    pub(super) fn extend_bounds(&self) -> Result<()> {
        let mut m = self.maintenance.lock();
        let next = self.window.word().next();
        m.seq_bound = m.seq_bound.max(Seq(next.0 + self.geometry.seq_chunk));
        m.blob_bound = m.blob_bound.max(self.fresh_blob_bound());
        self.write_root(&mut m, false)?;
        self.seq_bound.store(m.seq_bound.0, Ordering::Release);
        self.blob_bound.store(m.blob_bound, Ordering::Release);
        Ok(())
    }

    /// Blob numbers that are reserved from now on end here.
    pub(super) fn fresh_blob_bound(&self) -> u64 {
        self.ground.blobs.next() + BLOB_CHUNKS * self.geometry.blob_chunk
    }

    /// Whether so few blob numbers are left that a writer must wait for more: it would wait for a sync round and for all that
    /// goes with a ROOT. Others may be taking numbers meanwhile.
    pub(super) fn blob_bound_is_here(&self) -> bool {
        self.blob_numbers_left() <= self.geometry.blob_chunk
    }

    fn blob_numbers_left(&self) -> u64 {
        self.blob_bound.load(Ordering::Acquire).saturating_sub(self.ground.blobs.next())
    }

    /// True when less than half of a chunk of numbers is left, or the first chunk of those reserved for blobs is used: long before
    /// a writer is held up.
    pub(super) fn bounds_are_near(&self) -> bool {
        let left = self.seq_bound.load(Ordering::Relaxed).saturating_sub(self.window.word().next().0);
        left < self.geometry.seq_chunk / 2
            || self.blob_numbers_left() < (BLOB_CHUNKS - 1) * self.geometry.blob_chunk
    }

    fn gather_root(&self, m: &Maintenance, clean: bool) -> Result<Root> {
        let _leading = self.round.lead(); // no round is between taking dirty segments and syncing them
        self.check_sound()?; // nor has one failed, which would leave what it took in no list
        let making = self.making.lock(); // no segment is between its number and its listing
        let order = self.order.lock();
        let floor = self.durable();
        let mut unsynced: HashSet<SegmentId> = HashSet::new();
        for tail in &order.tails {
            unsynced.extend(tail.unsynced.iter().map(|(_, s)| s.id()));
            unsynced.extend(tail.segment.iter().map(|s| s.id()));
        }
        // What is empty now may be full and sealed by commits above `floor` before it is looked at below.
        unsynced.extend(order.ready.iter().flatten().map(|s| s.id()));
        drop(order);
        let survivors = m.survivors.iter().flatten();
        unsynced.extend(survivors.flat_map(|tails| tails.unsynced.iter().map(|s| s.id())));
        let mut root = Root {
            generation: m.generation + 1,
            clean,
            floor,
            first_seq: m.first_seq,
            seq_bound: m.seq_bound,
            next_segment: SegmentId(*making),
            blob_bound: m.blob_bound,
            keyspaces: self.catalogue.as_of(floor),
            next_keyspace: self.catalogue.next_id(),
            ..self.root_frame()
        };
        for (entry, log) in root.logs.iter_mut().zip(&self.logs) {
            *entry = self.gather_log(m, log, clean, &unsynced);
        }
        Ok(root)
    }

    fn gather_log(&self, m: &Maintenance, log: &Log, clean: bool, unsynced: &HashSet<SegmentId>) -> LogEntry {
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
        LogEntry {
            segments: segments.collect(),
            checkpoint: m.checkpoints[log.id.index()].clone(),
            broken: false,
        }
    }

    /// Frees what neither slot names, nor a state that stays. Files of values are removed later, a few at a time, when the caller
    /// has let the maintenance lock go.
    pub(super) fn let_go(&self, m: &mut Maintenance) {
        let Maintenance { generation, stills, dying: all, .. } = m;
        let bytes = |what: &Dying| if let Dying::Segment(_, s) = what { s.identity().capacity } else { 0 };
        let (mut dying, mut held) = (0, 0);
        let mut going = Vec::new();
        all.retain_mut(|(first, what)| {
            if first >= generation {
                dying += bytes(what);
                return true;
            }
            let is_held = stills.iter().any(|still| still.may_name(what));
            if is_held {
                held += bytes(what);
                if let Dying::Segment(_, segment) = what
                    && *first + 1 == *generation
                {
                    // From now on only the state needs it; what it has of the page cache others need more.
                    segment.file().forget(0, segment.identity().capacity);
                }
            } else {
                going.push(std::mem::replace(what, Dying::Blob(u64::MAX)));
            }
            is_held
        });
        self.dying_bytes.store(dying, Ordering::Relaxed);
        self.held_bytes.store(held, Ordering::Relaxed);
        self.stills.store(stills.len() as u64, Ordering::Relaxed);
        for what in going {
            // A file that cannot be removed is swept at the next open.
            match what {
                Dying::Segment(log, segment) => {
                    self.ground.segments.dismiss(&segment);
                    let _ = self.disk.remove(segment.path());
                    self.log(log).freed.fetch_add(1, Ordering::Relaxed);
                }
                Dying::Image(id, number) => drop(self.disk.remove(&self.image_path(id, number))),
                Dying::Blob(id) => self.ground.blobs.leave(id),
                Dying::Before(kept) => kept.engine().into_iter().for_each(|engine| engine.outlived()),
            }
        }
    }

    /// Takes what died since the last time: staged values and keyspaces nobody sees any more. True if
    /// there was any.
    pub(super) fn bury(&self, m: &mut Maintenance) -> bool {
        let blobs = self.ground.take_dead_blobs(self.durable());
        let any = !blobs.is_empty();
        for id in blobs {
            m.dies(Dying::Blob(id));
        }
        // In this order: a view that is registered after the look is younger than any drop durable before it.
        let durable = self.durable();
        let oldest = self.views().oldest();
        let oldest = oldest.into_iter().chain(m.stills.iter().map(|still| still.seq)).min();
        let gone = self.catalogue.take_dead(durable, oldest);
        for kept in &gone {
            if let Ok(engine) = kept.engine() {
                if kept.log() == LogId::Journal {
                    self.log(LogId::Journal).dropped.fetch_add(engine.logged(), Ordering::Relaxed);
                }
                let mut blobs = Vec::new();
                let _ = engine.blobs(&mut blobs); // what is not known goes with the next opening
                blobs.into_iter().for_each(|id| m.dies(Dying::Blob(id)));
                engine.retire();
            }
        }
        any || !gone.is_empty()
    }

    /// The file of an image.
    pub(super) fn image_path(&self, id: KeyspaceId, number: u64) -> PathBuf {
        self.dir.join(super::image::DIRECTORY).join(super::image::file_name(id, number))
    }
}
