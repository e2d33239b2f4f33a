//! # Group commit: sync rounds of the whole database
//!
//! One thread syncs the logs for all that wait, as in FlatStore (§3.3, pipelined horizontal
//! batching). Committers write their frames to the kernel in parallel and continue at once. A
//! committer that needs durability and finds no leader becomes the leader. The leader waits briefly
//! for more committers and syncs for all of them while others commit. [`GroupCommitMode`] selects
//! other ways of sharing syncs, for comparisons.
//!
//! ## Picture
//!
//! ```text
//!  leader:  gather | window closed: S = last reserved, close sectors, take unsynced data
//!           | wait until visible >= S | sync blobs and logs | durable = S, wake the waiters
//!  waiter:  durable >= seq?  else yields a few times, then sleeps until the round ends
//! ```
//!
//! ## Invariants
//!
//! 1. The leader lock allows one round at a time, so `durable` only grows and no sync overtakes
//!    another.
//! 2. The leader closes sectors: the next frame of each tail starts at a new sector. So frames
//!    after a round share no sector with frames before it (frame I2). All frames of commits up to S
//!    are copied before the syncs begin.
//! 3. A failed sync is never repeated: the store is poisoned.
//! 4. A waiter sleeps only if it found the leader lock taken, and is woken after the lock is
//!    released. So no waiter sleeps without a leader.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use crate::Store;
use crate::commit::CommitState;
use crate::commit::tail::{Tail, log_of, tail_of};
use crate::commit::wakers::CommitWakers;
use sheaf_engine::window::{ClosedWindow, TAILS, WindowWord};
use sheaf_log::blob;
use sheaf_log::segment::Segment;
use sheaf_log::types::{Durability, Incarnation, LogId, Seq, StoreId};
use sheaf_platform::clock::Clock;
use sheaf_platform::disk::SECTOR;
use sheaf_platform::error::{Error, IoContext, IoOp, PoisonCause, Result};
use sheaf_platform::parallel::map_threads;
use sheaf_platform::span;
use sheaf_platform::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sheaf_platform::sync::{Mutex, MutexGuard, WaitTree};

/// Method by which commits that wait for durability share syncs: the methods of FlatStore (§3.3),
/// for comparison. All give the same guarantees; the default is the fastest (decisions/0011).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum GroupCommitMode {
    /// One sync per wait, even if the commit is already durable.
    SyncPerWait,
    /// One sync for all commits of the waiting thread since its last sync.
    SyncPerThread,
    /// One sync for all threads; no thread commits while it runs.
    Blocking,
    /// One sync for all threads; the next commits are gathered while it runs.
    #[default]
    Pipelined,
}

impl GroupCommitMode {
    /// All methods.
    pub const ALL: [GroupCommitMode; 4] = [
        GroupCommitMode::SyncPerWait,
        GroupCommitMode::SyncPerThread,
        GroupCommitMode::Blocking,
        GroupCommitMode::Pipelined,
    ];
}

/// Largest part of the last sync duration by which the leader delays a round, within the limits
/// below.
const GATHER_DIVISOR: u32 = 3;
const MIN_GATHER: Duration = Duration::from_micros(20);
const MAX_GATHER: Duration = Duration::from_micros(100);
/// Bytes that a sync writes in hardly more time than no bytes.
const SMALL_ROUND_BYTES: u64 = 64 << 10;
/// Number of yields of a waiter before it sleeps. A model checker needs only one.
const YIELDS_BEFORE_SLEEP: u32 = if cfg!(shuttle) { 1 } else { 20 };

/// Blobs and segments that may not be durable.
struct UnsyncedData {
    blobs: blob::UnsyncedBlobs,
    /// Segments, and the ends up to which they must be synced.
    segments: Vec<(u64, Arc<Segment>)>,
    /// Full segments among them.
    full: Vec<(u64, Arc<Segment>)>,
}

/// Whether a round syncs even if it finds no unsynced data.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SyncMode {
    IfDirty,
    Always,
}

sheaf_platform::sync::thread_local! {
    /// The commit up to which the own rounds of this thread have synced, and the opening of the
    /// store that it belongs to.
    static OWN_SYNCED: Cell<Option<((Incarnation, StoreId), Seq)>> = const { Cell::new(None) };
}

/// State of the sync rounds.
#[derive(Debug, Default)]
pub(crate) struct SyncRound {
    leader: Mutex<()>,
    /// Counts releases of the leader lock. Waiters sleep on it.
    ended: WaitTree,
    /// Committers that have ever waited. The number of those that wait *now* would include
    /// committers that were just served but have not run yet, so the leader would not gather any.
    waiters_total: AtomicU64,
    /// Value of `waiters_total` when the last round took its S.
    waiters_at_last: AtomicU64,
    /// Waiters that the last round served.
    last_served: AtomicU64,
    /// Duration of the syncs of the last round, in nanoseconds.
    last_sync_ns: AtomicU64,
    /// Rounds with a waiter, halved at each background tick. Tells whether committers ask for
    /// durability.
    recent_waits: AtomicU32,
    /// Durable mark that was last written to a log.
    noted_seq: AtomicU64,
}

impl SyncRound {
    /// Wakes all waiters, so that they check their condition again.
    pub(crate) fn wake(&self) {
        self.ended.advance();
    }

    /// Counts a committer that waits for durability.
    pub(crate) fn count_waiter(&self) {
        self.waiters_total.fetch_add(1, Ordering::AcqRel);
    }

    /// Takes the leader lock, which keeps rounds from running.
    pub(crate) fn lock_leader(&self) -> LeaderGuard<'_> {
        LeaderGuard { lock: Some(self.leader.lock()), ended: &self.ended }
    }

    /// Like [`SyncRound::lock_leader`], but returns `None` if the lock is taken.
    fn try_lock_leader(&self) -> Option<LeaderGuard<'_>> {
        self.leader.try_lock().map(|lock| LeaderGuard { lock: Some(lock), ended: &self.ended })
    }

    /// Returns true while committers keep asking for durability.
    pub(crate) fn is_in_demand(&self) -> bool {
        self.recent_waits.load(Ordering::Relaxed) > 8
    }
}

/// Durable commits, and the sync rounds that make commits durable.
#[derive(Debug, Default)]
pub(crate) struct SyncState {
    pub(crate) round: SyncRound,
    /// Wakers of the tasks that wait for durability.
    pub(crate) wakers: CommitWakers,
    /// Newest commit that is durable with all commits before it. Written under the leader lock.
    durable: AtomicU64,
    /// Time of the oldest commit that no round has taken, in ns of the clock plus 1. 0 if there is
    /// none. Set by commits, and cleared under the leader lock.
    unsynced_since: AtomicU64,
    /// Time of the oldest commit that a round has taken and not yet made durable, in the same unit.
    /// Written under the leader lock.
    syncing_since: AtomicU64,
}

impl SyncState {
    /// Returns the newest commit that is known to be durable, with all commits before it.
    #[inline]
    pub(crate) fn durable(&self) -> Seq {
        Seq(self.durable.load(Ordering::Acquire))
    }

    /// Starts with `cut`, the last commit that recovery accepted. It is durable when the opening
    /// returns.
    pub(crate) fn begin(&self, cut: Seq) {
        self.durable.store(cut.0, Ordering::Relaxed);
    }

    /// Marks all commits up to `seq` as durable. The caller holds the leader lock.
    fn mark_durable(&self, seq: Seq) {
        assert!(self.durable() <= seq, "group_commit (I1): the durable mark only grows");
        self.durable.store(seq.0, Ordering::Release);
        self.syncing_since.store(0, Ordering::Release);
    }

    /// Records the time of the first commit that no round has taken.
    #[inline]
    pub(crate) fn note_unsynced(&self, clock: &dyn Clock) {
        if self.unsynced_since.load(Ordering::Relaxed) == 0 {
            let now = u64::try_from(clock.now().as_nanos()).unwrap_or(u64::MAX - 1);
            self.unsynced_since.store(now + 1, Ordering::Relaxed);
        }
    }

    /// Notes that a round takes all unsynced commits. The caller holds the leader lock.
    fn take_unsynced_since(&self) {
        let since = self.unsynced_since.load(Ordering::Relaxed);
        if since > 0 {
            self.syncing_since.store(since, Ordering::Release);
            self.unsynced_since.store(0, Ordering::Release);
        }
    }

    /// Returns the time of the oldest commit that may not be durable.
    pub(crate) fn oldest_unsynced(&self) -> Option<Duration> {
        // The order matters: a sync round moves the time from the first variable to the second.
        let since = [&self.unsynced_since, &self.syncing_since].map(|since| since.load(Ordering::Acquire));
        since.iter().filter_map(|since| since.checked_sub(1)).min().map(Duration::from_nanos)
    }
}

/// Guard of the leader lock. Wakes the waiters after it has released the lock: a waiter that wakes
/// earlier could find the lock still taken, and sleep without a leader.
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
    /// Waits until commit `seq` is as durable as `durability` requires. The caller must hold no
    /// lock and no epoch guard.
    ///
    /// # Errors
    ///
    /// - [`Error::Poisoned`] if a sync fails, or if the store was poisoned before `seq` became
    ///   durable.
    /// - [`Error::Closed`] if the database was closed before.
    /// - [`Error::TooManyFiles`] if a file cannot be opened for a sync. A retry syncs it.
    #[inline]
    pub fn acknowledge(&self, seq: Seq, durability: Durability) -> Result<()> {
        if durability == Durability::Buffer {
            return Ok(()); // a visible commit is in the kernel (store I1)
        }
        if self.durable() >= seq && self.options.group_commit_mode == GroupCommitMode::Pipelined {
            return Ok(());
        }
        self.wait_for_sync(|| self.acknowledge_unreported(seq, durability))
    }

    /// Like [`Store::acknowledge`], for a caller that may hold locks: a long wait is not reported.
    pub(crate) fn acknowledge_unreported(&self, seq: Seq, durability: Durability) -> Result<()> {
        if durability == Durability::Buffer {
            return Ok(()); // a visible commit is in the kernel (store I1)
        }
        match self.options.group_commit_mode {
            GroupCommitMode::SyncPerWait => self.wait_own_round(seq, false),
            GroupCommitMode::SyncPerThread => self.wait_own_round(seq, true),
            GroupCommitMode::Blocking | GroupCommitMode::Pipelined => self.wait_durable(seq),
        }
    }

    /// Waits until all commits that were acknowledged before the call are durable.
    ///
    /// # Errors
    ///
    /// The errors of [`Store::acknowledge`].
    pub fn persist(&self) -> Result<()> {
        self.check_open()?;
        if self.options.read_only {
            return Ok(());
        }
        self.wait_for_sync(|| self.wait_durable(self.visible()))
    }

    pub(crate) fn wait_durable(&self, seq: Seq) -> Result<()> {
        if self.durable() >= seq {
            return Ok(());
        }
        self.counters.sync_waits.fetch_add(1, Ordering::Relaxed);
        self.sync.round.count_waiter();
        self.wait_shared_round(seq)
    }

    /// Runs a round for the caller alone, even if rounds of other threads have synced the commit.
    /// With `vertical`, skips it if an earlier round of the same thread has synced the commit.
    fn wait_own_round(&self, seq: Seq, vertical: bool) -> Result<()> {
        let done = (self.identity.incarnation, self.identity.id);
        let mine = OWN_SYNCED.with(|own| own.get().filter(|(of, _)| *of == done).map(|(_, upto)| upto));
        if vertical && mine.is_some_and(|upto| upto >= seq) {
            return Ok(());
        }
        self.counters.sync_waits.fetch_add(1, Ordering::Relaxed);
        let _leading = self.sync.round.lock_leader();
        match self.check_writable() {
            Err(_) if self.durable() >= seq => return Ok(()),
            other => other?,
        }
        self.sync.round.recent_waits.fetch_add(1, Ordering::Relaxed);
        self.sync_as_leader(SyncMode::Always)?;
        OWN_SYNCED.with(|own| own.set(Some((done, self.durable()))));
        Ok(())
    }

    pub(crate) fn wait_shared_round(&self, seq: Seq) -> Result<()> {
        let mut yields = 0;
        loop {
            let round = self.sync.round.ended.load();
            if self.durable() >= seq {
                return Ok(());
            }
            self.check_writable()?;
            if let Some(_leading) = self.sync.round.try_lock_leader() {
                if self.durable() >= seq {
                    return Ok(());
                }
                self.gather_waiters();
                self.sync.round.recent_waits.fetch_add(1, Ordering::Relaxed);
                self.sync_as_leader(SyncMode::IfDirty)?;
                continue;
            }
            if yields < YIELDS_BEFORE_SLEEP {
                yields += 1;
                sheaf_platform::sync::thread::yield_now();
            } else {
                self.sync.round.ended.wait(round);
            }
        }
    }

    /// Waits for as many waiters as the last round served, but only for a fraction of the sync
    /// duration.
    fn gather_waiters(&self) {
        let round = &self.sync.round;
        let last = round.last_served.load(Ordering::Relaxed);
        let short = || {
            round.waiters_total.load(Ordering::Acquire) - round.waiters_at_last.load(Ordering::Relaxed) < last
        };
        // The stores of a model checker are inline, and their clock advances with each reading.
        if last <= 1 || (self.options.inline && !cfg!(shuttle)) || !short() {
            return;
        }
        let took = Duration::from_nanos(round.last_sync_ns.load(Ordering::Relaxed));
        let until = self.clock.now() + (took / GATHER_DIVISOR).clamp(MIN_GATHER, MAX_GATHER);
        while short() && self.clock.now() < until {
            sheaf_platform::sync::thread::yield_now();
        }
    }

    /// Runs one round for the background: syncs unsynced data, or writes the durable mark to the
    /// logs.
    pub(crate) fn sync_tick(&self) -> Result<bool> {
        self.sync.round.recent_waits.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |d| Some(d / 2)).ok();
        if self.health.is_poisoned() {
            return Ok(false);
        }
        let _leading = self.sync.round.lock_leader();
        if self.durable() < self.visible() {
            self.sync_as_leader(SyncMode::IfDirty)?;
            return Ok(true);
        }
        self.append_watermarks()
    }

    /// Writes notes of the durable mark to the logs, once after the last commit (commit.md R8).
    fn append_watermarks(&self) -> Result<bool> {
        let durable = self.durable().0;
        if self.sync.round.noted_seq.swap(durable, Ordering::Relaxed) == durable {
            return Ok(false);
        }
        let mut commit_state = self.pipeline.commit_state.lock();
        self.health.check_not_poisoned()?;
        if self.health.is_closed() {
            return Ok(false); // the next owner may already be writing after the end
        }
        let (mut closed, mut rolled) = (self.pipeline.window.close(), false);
        for tail in 0..TAILS {
            let due = &self.log(log_of(tail)).is_watermark_due;
            if commit_state.tails[tail].segment.is_some() && due.swap(false, Ordering::Relaxed) {
                rolled |= self.append_watermark(&mut commit_state, &mut closed, tail)?;
            }
        }
        if rolled {
            commit_state.publish_tail_set(&mut closed);
        }
        Ok(true)
    }

    /// Makes the bytes of `segments` up to the given ends durable, and the names of their files.
    /// `threads` threads sync different files.
    pub(crate) fn sync_segments(&self, segments: &[(u64, Arc<Segment>)], threads: usize) -> Result<()> {
        for log in &self.logs {
            let new = |s: &Segment| s.identity().log == log.id && !s.is_name_synced();
            if segments.iter().any(|(_, s)| new(s)) {
                self.disk.sync_dir(&log.dir).during(IoOp::SyncDirectory, &log.dir)?;
                segments.iter().filter(|(_, s)| new(s)).for_each(|(_, s)| s.mark_named());
            }
        }
        // With few bytes, the syncs of all files start together and share the device. With many
        // bytes, that would start the writing of the same data twice.
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

    /// Runs the last round, after the last commit.
    pub(crate) fn sync_for_close(&self) -> Result<()> {
        let _leading = self.sync.round.lock_leader();
        self.sync_as_leader(SyncMode::IfDirty)
    }

    /// Runs one round. Returns the result of `look`, which sees the state at S. The caller holds
    /// the leader lock.
    pub(crate) fn sync_and_capture<R>(&self, look: impl FnOnce(&CommitState, WindowWord) -> R) -> Result<R> {
        self.sync_with(SyncMode::IfDirty, look)
    }

    /// Runs one round. The caller holds the leader lock.
    fn sync_as_leader(&self, whether: SyncMode) -> Result<()> {
        self.sync_with(whether, |_, _| ())
    }

    fn sync_with<R>(&self, whether: SyncMode, look: impl FnOnce(&CommitState, WindowWord) -> R) -> Result<R> {
        // Every leader must check this itself. Data that a failed round had taken is no longer in
        // any list of unsynced data, so the next round would wrongly report it as durable.
        self.health.check_not_poisoned()?;
        let mut commit_state = self.pipeline.commit_state.lock();
        let mut closed = self.pipeline.window.close();
        let UnsyncedData { blobs, segments, full } =
            self.take_unsynced(&mut commit_state, &mut closed, whether);
        let seen = look(&commit_state, closed.word);
        let seq = self.pipeline.progress.last_assigned(closed.word.reserved());
        // This mode is naive on purpose: no thread commits until the round is over.
        let commit_state =
            (self.options.group_commit_mode == GroupCommitMode::Blocking).then_some((closed, commit_state));
        let _span = span!(TRACE, "sync round", commit = seq.0, segments = segments.len());
        // Fails if a commit in the window failed and poisoned the store. Then nothing more becomes
        // durable.
        self.pipeline.progress.wait(seq)?;
        segments.iter().for_each(|(end, segment)| segment.publish(*end));
        full.iter().for_each(|(end, segment)| segment.file().end_stores(*end));
        let began = self.clock.now();
        let synced = self.context.blobs.sync(&blobs).and_then(|()| self.sync_segments(&segments, 1));
        match synced {
            Ok(()) => {}
            // No sync was lost: the next round takes all of this data again.
            Err(error @ Error::TooManyFiles { .. }) => {
                drop(commit_state);
                self.restore_unsynced(&mut self.pipeline.commit_state.lock(), blobs, segments);
                return Err(error);
            }
            Err(_) => return Err(self.poison(PoisonCause::Sync)),
        }
        let took = self.clock.now().saturating_sub(began).as_nanos();
        self.sync.round.last_sync_ns.store(u64::try_from(took).unwrap_or(0), Ordering::Relaxed);
        assert!(seq <= self.visible(), "store (I2): a durable commit is visible");
        self.sync.mark_durable(seq);
        self.changes.signal.wake_durable();
        for log in LogId::ALL {
            self.log(log).is_watermark_due.store(true, Ordering::Relaxed);
        }
        self.counters.sync_rounds.fetch_add(1, Ordering::Relaxed);
        drop(commit_state);
        Ok(seen)
    }

    /// Marks everything that a round took and did not sync as unsynced again.
    fn restore_unsynced(
        &self,
        commit_state: &mut CommitState,
        blobs: blob::UnsyncedBlobs,
        segments: Vec<(u64, Arc<Segment>)>,
    ) {
        commit_state.unsynced_blobs.merge(blobs);
        for (end, segment) in segments {
            let is_tail =
                |tail: &&mut Tail| tail.segment.as_ref().is_some_and(|one| Arc::ptr_eq(one, &segment));
            match commit_state.tails.iter_mut().find(is_tail) {
                Some(tail) => tail.has_unsynced = true,
                None => {
                    commit_state.tails[tail_of(segment.identity().log, false)].unsynced.push((end, segment))
                }
            }
        }
    }

    /// Takes everything that a round must sync for the commits that have a seq now, and closes the
    /// sectors.
    fn take_unsynced(
        &self,
        commit_state: &mut CommitState,
        closed: &mut ClosedWindow<'_>,
        whether: SyncMode,
    ) -> UnsyncedData {
        let (mut segments, mut full) = (Vec::new(), Vec::new());
        let mut moved = false;
        for (index, tail) in commit_state.tails.iter_mut().enumerate() {
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
            commit_state.publish_tail_set(closed);
        }
        if segments.is_empty() && whether == SyncMode::Always {
            let tail = tail_of(LogId::ValueLog, false);
            let end = commit_state.tails[tail].end_at(closed.word.offset(tail));
            segments.extend(commit_state.tails[tail].segment.iter().map(|s| (end, Arc::clone(s))));
        }
        self.sync.take_unsynced_since();
        let arrived = self.sync.round.waiters_total.load(Ordering::Acquire);
        let before = self.sync.round.waiters_at_last.swap(arrived, Ordering::Relaxed);
        self.sync.round.last_served.store(arrived - before, Ordering::Relaxed);
        UnsyncedData { blobs: std::mem::take(&mut commit_state.unsynced_blobs), segments, full }
    }
}
