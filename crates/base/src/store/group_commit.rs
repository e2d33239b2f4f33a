//! # Sync rounds: one at a time for the whole database
//!
//! FlatStore's pipelined horizontal batching (§3.3) living once for all engines: committers put
//! their frames into the kernel in parallel and go on at once; one that needs durability and finds
//! no leader becomes one, gathers for a moment, and syncs for everybody while others commit.
//!
//! ## Picture
//!
//! ```text
//!  leader:  gather a moment | window closed: S = last reserved, close sectors, take dirty
//!           | wait: visible >= S | sync blobs, logs | durable = S, wake
//!  waiter:  durable >= n ?  yield a few times, else sleep until the round ends
//! ```
//!
//! Other ways to share syncs can be chosen at opening ([`GroupCommitMode`]), so that this one can
//! be measured against them: a round for each waiter's own commits, or one that keeps committers
//! out while it syncs.
//!
//! ## Invariants
//!
//! 1. One round at a time (the leader lock), so durable marks are monotonic and a sync never
//!    overtakes.
//! 2. Frames after a round share no sector with frames before it (frame I2). All frames of commits
//!    up to S are copied before the syncs begin.
//! 3. A failed sync is never repeated: the store is poisoned.
//! 4. A waiter sleeps only if it found the leader lock taken, and is woken after the lock is free:
//!    no waiter sleeps without a leader.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use super::commit::CommitState;
use super::tail::{Tail, log_of, tail_of};
use super::{GroupCommitMode, Store};
use crate::blob;
use crate::disk::SECTOR;
use crate::error::{Error, IoContext, Result};
use crate::parallel::map_threads;
use crate::segment::Segment;
use crate::span;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard, WaitTree};
use crate::types::{Durability, Incarnation, LogId, Seq, StoreId};
use crate::window::{ClosedWindow, TAILS, WindowWord};

/// A round is held up for at most this part of what its syncs take, within the limits below.
const GATHER_DIVISOR: u32 = 3;
const MIN_GATHER: Duration = Duration::from_micros(20);
const MAX_GATHER: Duration = Duration::from_micros(100);
/// Bytes of a round that take the device hardly longer than none.
const SMALL_ROUND_BYTES: u64 = 64 << 10;
/// Times a waiter yields before it sleeps; a model need not wait long for the rare case.
const YIELDS_BEFORE_SLEEP: u32 = if cfg!(shuttle) { 1 } else { 20 };

/// Blobs and segments that the device may lack.
struct UnsyncedData {
    blobs: blob::UnsyncedBlobs,
    /// Segments, up to these ends.
    segments: Vec<(u64, Arc<Segment>)>,
    /// Full segments among them.
    full: Vec<(u64, Arc<Segment>)>,
}

/// Whether a round that finds nothing unsynced syncs all the same.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SyncMode {
    IfDirty,
    Always,
}

crate::sync::thread_local! {
    /// What the thread's own rounds have made durable, and of which opening of which store.
    static OWN_SYNCED: Cell<Option<((Incarnation, StoreId), Seq)>> = const { Cell::new(None) };
}

/// The state of sync rounds.
#[derive(Debug, Default)]
pub(crate) struct SyncRound {
    leader: Mutex<()>,
    /// Counts how often the leader lock came free; waiters sleep on it.
    ended: WaitTree,
    /// Committers that ever came to wait. (Counting who waits *now* would count those just served
    /// who have not run yet, and nobody would be gathered.)
    waiters_total: AtomicU64,
    /// How many had when the last round took its S.
    waiters_at_last: AtomicU64,
    /// How many that round served.
    last_served: AtomicU64,
    /// How long its syncs took, in nanoseconds.
    last_sync_ns: AtomicU64,
    /// Rounds that somebody waited for, halved at each background tick: is this a durable load?
    recent_waits: AtomicU32,
    /// The durable mark last written into a log.
    noted_seq: AtomicU64,
}

impl SyncRound {
    /// Wakes all waiters to look again.
    pub(crate) fn wake(&self) {
        self.ended.advance();
    }

    /// Keeps rounds from running while the guard lives.
    pub(crate) fn lock_leader(&self) -> LeaderGuard<'_> {
        LeaderGuard { lock: Some(self.leader.lock()), ended: &self.ended }
    }

    /// As [`SyncRound::lock_leader`], if nobody has it.
    fn try_lock_leader(&self) -> Option<LeaderGuard<'_>> {
        self.leader.try_lock().map(|lock| LeaderGuard { lock: Some(lock), ended: &self.ended })
    }

    /// True while committers keep asking for durability.
    pub(crate) fn is_in_demand(&self) -> bool {
        self.recent_waits.load(Ordering::Relaxed) > 8
    }
}

/// The leader lock. Once it is free again everybody who may have found it taken is woken: a waiter
/// woken any earlier could find it taken still, and sleep with nobody left to lead.
pub(crate) struct LeaderGuard<'a> {
    lock: Option<MutexGuard<'a, ()>>,
    ended: &'a WaitTree,
}

impl Drop for LeaderGuard<'_> {
    fn drop(&mut self) {
        self.lock.take();
        self.ended.advance();
    }
}

impl Store {
    /// Returns when commit `seq` has what `durability` promises. The caller holds no lock and no
    /// guard.
    #[inline]
    pub fn acknowledge(&self, seq: Seq, durability: Durability) -> Result<()> {
        match durability {
            Durability::Buffer => Ok(()), // what is visible is in the kernel (store I1)
            Durability::Sync
                if self.durable() >= seq && self.options.group_commit_mode == GroupCommitMode::Pipelined =>
            {
                Ok(())
            }
            Durability::Sync => self.wait_for_sync(|| self.acknowledge_unreported(seq, durability)),
        }
    }

    /// As [`Store::acknowledge`], for a caller that may hold locks: a long wait is not reported.
    pub(super) fn acknowledge_unreported(&self, seq: Seq, durability: Durability) -> Result<()> {
        match durability {
            Durability::Buffer => Ok(()), // what is visible is in the kernel (store I1)
            Durability::Sync => match self.options.group_commit_mode {
                GroupCommitMode::SyncPerWait => self.wait_own_round(seq, false),
                GroupCommitMode::SyncPerThread => self.wait_own_round(seq, true),
                GroupCommitMode::Blocking | GroupCommitMode::Pipelined => self.wait_durable(seq),
            },
        }
    }

    /// Waits until everything acknowledged before the call is on the device.
    pub fn persist(&self) -> Result<()> {
        self.check_open()?;
        if self.options.read_only {
            return Ok(());
        }
        self.wait_for_sync(|| self.wait_durable(self.visible()))
    }

    pub(super) fn wait_durable(&self, seq: Seq) -> Result<()> {
        if self.durable() >= seq {
            return Ok(());
        }
        self.counters.sync_waits.fetch_add(1, Ordering::Relaxed);
        self.sync_round.waiters_total.fetch_add(1, Ordering::AcqRel);
        self.wait_shared_round(seq)
    }

    /// A round for the caller alone, whatever others' rounds have done for it. If it is `vertical`,
    /// not for what an earlier round of its own has done.
    fn wait_own_round(&self, seq: Seq, vertical: bool) -> Result<()> {
        let done = (self.incarnation, self.id);
        let mine = OWN_SYNCED.with(|own| own.get().filter(|(of, _)| *of == done).map(|(_, upto)| upto));
        if vertical && mine.is_some_and(|upto| upto >= seq) {
            return Ok(());
        }
        self.counters.sync_waits.fetch_add(1, Ordering::Relaxed);
        let _leading = self.sync_round.lock_leader();
        match self.check_writable() {
            Err(_) if self.durable() >= seq => return Ok(()),
            other => other?,
        }
        self.sync_round.recent_waits.fetch_add(1, Ordering::Relaxed);
        self.sync_as_leader(SyncMode::Always)?;
        OWN_SYNCED.with(|own| own.set(Some((done, self.durable()))));
        Ok(())
    }

    fn wait_shared_round(&self, seq: Seq) -> Result<()> {
        let mut yields = 0;
        loop {
            let round = self.sync_round.ended.load();
            if self.durable() >= seq {
                return Ok(());
            }
            self.check_writable()?;
            if let Some(_leading) = self.sync_round.try_lock_leader() {
                if self.durable() >= seq {
                    return Ok(());
                }
                self.gather_waiters();
                self.sync_round.recent_waits.fetch_add(1, Ordering::Relaxed);
                self.sync_as_leader(SyncMode::IfDirty)?;
                continue;
            }
            if yields < YIELDS_BEFORE_SLEEP {
                yields += 1;
                crate::sync::thread::yield_now();
            } else {
                self.sync_round.ended.wait(round);
            }
        }
    }

    /// Waits a moment for as many as the last round served: for a fraction of what the sync costs.
    fn gather_waiters(&self) {
        let round = &self.sync_round;
        let last = round.last_served.load(Ordering::Relaxed);
        let short = || {
            round.waiters_total.load(Ordering::Acquire) - round.waiters_at_last.load(Ordering::Relaxed) < last
        };
        // (A model's stores are inline, and their clock passes by being looked at.)
        if last <= 1 || (self.options.inline && !cfg!(shuttle)) || !short() {
            return;
        }
        let took = Duration::from_nanos(round.last_sync_ns.load(Ordering::Relaxed));
        let until = self.clock.now() + (took / GATHER_DIVISOR).clamp(MIN_GATHER, MAX_GATHER);
        while short() && self.clock.now() < until {
            crate::sync::thread::yield_now();
        }
    }

    /// One round on the background's behalf: syncs what is unsynced, else writes the mark down.
    pub(super) fn sync_tick(&self) -> Result<bool> {
        self.sync_round.recent_waits.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |d| Some(d / 2)).ok();
        if self.flags.is_poisoned.load(Ordering::Acquire) {
            return Ok(false);
        }
        let _leading = self.sync_round.lock_leader();
        if self.durable() < self.visible() {
            self.sync_as_leader(SyncMode::IfDirty)?;
            return Ok(true);
        }
        self.append_watermarks()
    }

    /// Lets the logs say that everything is durable, once after the last commit (commit.md R8).
    fn append_watermarks(&self) -> Result<bool> {
        let durable = self.durable().0;
        if self.sync_round.noted_seq.swap(durable, Ordering::Relaxed) == durable {
            return Ok(false);
        }
        let mut order = self.commit_state.lock();
        self.check_not_poisoned()?;
        if self.flags.is_closed.load(Ordering::Acquire) {
            return Ok(false); // behind the end the next life may be writing
        }
        let (mut closed, mut rolled) = (self.window.close(), false);
        for tail in 0..TAILS {
            let due = &self.log(log_of(tail)).is_watermark_due;
            if order.tails[tail].segment.is_some() && due.swap(false, Ordering::Relaxed) {
                rolled |= self.append_watermark(&mut order, &mut closed, tail)?;
            }
        }
        if rolled {
            order.publish_tail_set(&mut closed);
        }
        Ok(true)
    }

    /// Makes the bytes of `segments` up to the ends given, and the names of their files, durable.
    /// `threads` threads sync different files.
    pub(super) fn sync_segments(&self, segments: &[(u64, Arc<Segment>)], threads: usize) -> Result<()> {
        for log in &self.logs {
            let new = |s: &Segment| s.identity().log == log.id && !s.is_named();
            if segments.iter().any(|(_, s)| new(s)) {
                self.disk.sync_dir(&log.dir).during("sync directory", &log.dir)?;
                segments.iter().filter(|(_, s)| new(s)).for_each(|(_, s)| s.mark_named());
            }
        }
        // A little of several files: the device's time is shared. Of much, writing would begin
        // twice.
        let due: u64 = segments.iter().map(|(end, segment)| end.saturating_sub(segment.synced())).sum();
        if due <= SMALL_ROUND_BYTES {
            segments.iter().skip(1).for_each(|(_, segment)| segment.start_sync());
        }
        map_threads(threads, segments.len(), |index| {
            let (end, segment) = &segments[index];
            segment.sync(*end)
        })
        .map(drop)
    }

    /// The last round of all, after the last commit.
    pub(super) fn sync_for_close(&self) -> Result<()> {
        let _leading = self.sync_round.lock_leader();
        self.sync_as_leader(SyncMode::IfDirty)
    }

    /// One round; what `look` sees at the moment that it answers for. The caller holds the leader
    /// lock.
    pub(super) fn sync_and_capture<R>(&self, look: impl FnOnce(&CommitState, WindowWord) -> R) -> Result<R> {
        self.sync_with(SyncMode::IfDirty, look)
    }

    /// One round. The caller holds the leader lock.
    fn sync_as_leader(&self, whether: SyncMode) -> Result<()> {
        self.sync_with(whether, |_, _| ())
    }

    fn sync_with<R>(&self, whether: SyncMode, look: impl FnOnce(&CommitState, WindowWord) -> R) -> Result<R> {
        // Looked at here, by whoever leads: what a round that failed had taken is in no list of
        // what is unsynced any more, so the next one would answer for it.
        self.check_not_poisoned()?;
        let mut order = self.commit_state.lock();
        let mut closed = self.window.close();
        let UnsyncedData { blobs, segments, full } = self.take_unsynced(&mut order, &mut closed, whether);
        let seen = look(&order, closed.word);
        let seq = self.commit_progress.last_assigned(closed.word.reserved());
        // What makes batching naive: nobody commits until it is over.
        let order = (self.options.group_commit_mode == GroupCommitMode::Blocking).then_some((closed, order));
        let _span = span!(TRACE, "sync round", commit = seq.0, segments = segments.len());
        // A failure in the window has poisoned: nothing is durable any more that was not before.
        self.commit_progress.wait(seq)?;
        segments.iter().for_each(|(end, segment)| segment.publish(*end));
        full.iter().for_each(|(end, segment)| segment.file().end_stores(*end));
        let began = self.clock.now();
        let synced = self.context.blobs.sync(&blobs).and_then(|()| self.sync_segments(&segments, 1));
        match synced {
            Ok(()) => {}
            // No sync was lost: all of it is taken by the next round again.
            Err(error @ Error::TooManyFiles { .. }) => {
                drop(order);
                self.restore_unsynced(&mut self.commit_state.lock(), blobs, segments);
                return Err(error);
            }
            Err(_) => return Err(self.poison("sync")),
        }
        let took = self.clock.now().saturating_sub(began).as_nanos();
        self.sync_round.last_sync_ns.store(u64::try_from(took).unwrap_or(0), Ordering::Relaxed);
        self.durable.store(seq.0, Ordering::Release);
        self.syncing_since.store(0, Ordering::Release);
        for log in LogId::ALL {
            self.log(log).is_watermark_due.store(true, Ordering::Relaxed);
        }
        self.counters.sync_rounds.fetch_add(1, Ordering::Relaxed);
        drop(order);
        Ok(seen)
    }

    /// Marks everything that a round took and did not sync as unsynced again.
    fn restore_unsynced(
        &self,
        order: &mut CommitState,
        blobs: blob::UnsyncedBlobs,
        segments: Vec<(u64, Arc<Segment>)>,
    ) {
        order.unsynced_blobs.merge(blobs);
        for (end, segment) in segments {
            let is_tail =
                |tail: &&mut Tail| tail.segment.as_ref().is_some_and(|one| Arc::ptr_eq(one, &segment));
            match order.tails.iter_mut().find(is_tail) {
                Some(tail) => tail.has_unsynced = true,
                None => order.tails[tail_of(segment.identity().log, false)].unsynced.push((end, segment)),
            }
        }
    }

    /// Takes what a round has to sync for everything that has a seq now, and closes the sectors.
    fn take_unsynced(
        &self,
        order: &mut CommitState,
        closed: &mut ClosedWindow<'_>,
        whether: SyncMode,
    ) -> UnsyncedData {
        let (mut segments, mut full) = (Vec::new(), Vec::new());
        let mut moved = false;
        for (index, tail) in order.tails.iter_mut().enumerate() {
            let offset = closed.word.offset(index);
            full.extend(tail.unsynced.iter().cloned());
            segments.append(&mut tail.unsynced);
            if tail.is_dirty(offset) {
                let end = tail.end_at(offset);
                segments.extend(tail.segment.iter().map(|s| (end, Arc::clone(s))));
            }
            tail.has_unsynced = false;
            if offset != tail.start || !offset.is_multiple_of(SECTOR) {
                closed.word.set_offset(index, tail.close_sector(offset));
                moved = true;
            }
        }
        if moved {
            order.publish_tail_set(closed);
        }
        if segments.is_empty() && whether == SyncMode::Always {
            let tail = tail_of(LogId::ValueLog, false);
            let end = order.tails[tail].end_at(closed.word.offset(tail));
            segments.extend(order.tails[tail].segment.iter().map(|s| (end, Arc::clone(s))));
        }
        let since = self.unsynced_since.load(Ordering::Relaxed);
        if since > 0 {
            self.syncing_since.store(since, Ordering::Release);
            self.unsynced_since.store(0, Ordering::Release);
        }
        let arrived = self.sync_round.waiters_total.load(Ordering::Acquire);
        let before = self.sync_round.waiters_at_last.swap(arrived, Ordering::Relaxed);
        self.sync_round.last_served.store(arrived - before, Ordering::Relaxed);
        UnsyncedData { blobs: std::mem::take(&mut order.unsynced_blobs), segments, full }
    }
}
