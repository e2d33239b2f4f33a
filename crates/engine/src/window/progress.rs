//! # Progress: complete commits, and the newest visible one
//!
//! ## Picture
//!
//! ```text
//!   complete: a ring of seqs     [.. 44 | 45? | 46 | 47 ..]
//!   visible:  44                       └── a thread that sees 45 complete moves visible to 47
//! ```
//!
//! ## Invariants
//!
//! 1. A commit stores its seq in the ring and then reads `visible`. A thread that moves `visible`
//!    reads the ring afterwards. All these accesses are sequentially consistent, so at least one of
//!    the two sees the other. Hence no complete commit is left behind.
//! 2. A place of the ring is reused only after the commit that used it is visible.
//! 3. `visible` never reaches a failed commit. A thread that waits for a failed commit, or for a
//!    later one, gets an error.

use std::path::Path;
use std::sync::OnceLock;

use crossbeam_utils::CachePadded;

use sheaf_log::types::Seq;
use sheaf_platform::disk::cached_reads;
use sheaf_platform::error::{Error, IoOp, PoisonCause, Result};
use sheaf_platform::sync::atomic::{AtomicU64, Ordering};
use sheaf_platform::sync::{self, WaitWords};

/// Places of the ring: more than the number of threads that commit at a time.
const PLACES: usize = if cfg!(shuttle) { 4 } else { 1024 };
/// Places per cache line.
const LINE: usize = if cfg!(shuttle) { 1 } else { 8 };
/// Number of polls of `visible` before a waiting thread yields.
const SPINS: u32 = if cfg!(shuttle) { 0 } else { 200 };
/// Number of yields before it sleeps.
const YIELDS: u32 = if cfg!(shuttle) { 1 } else { 8 };

/// Progress of the commits.
#[derive(Debug)]
pub struct CommitProgress {
    visible: CachePadded<AtomicU64>,
    /// The first seq of this process. Readers see all earlier ones: they are recovered, or were
    /// never assigned. `u64::MAX` until commits begin. An engine that a repair reads never has
    /// commits.
    first: CachePadded<AtomicU64>,
    complete: Box<[AtomicU64]>,
    /// Wakes threads that wait until a seq is visible.
    waiters: WaitWords,
    /// The first commit that failed, or `u64::MAX`.
    failed: CachePadded<AtomicU64>,
    /// The operation that failed.
    cause: OnceLock<PoisonCause>,
}

impl Default for CommitProgress {
    fn default() -> CommitProgress {
        CommitProgress {
            visible: CachePadded::default(),
            first: CachePadded::new(AtomicU64::new(u64::MAX)),
            complete: (0..PLACES).map(|_| AtomicU64::new(0)).collect(),
            waiters: WaitWords::default(),
            failed: CachePadded::new(AtomicU64::new(u64::MAX)),
            cause: OnceLock::new(),
        }
    }
}

/// Returns the place of a seq in the ring. Neighbouring seqs have different cache lines, because
/// different cores write them at the same time.
#[inline]
fn place(seq: u64) -> usize {
    let lines = (PLACES / LINE) as u64;
    #[allow(clippy::cast_possible_truncation, reason = "below PLACES")]
    let place = (seq % lines * LINE as u64 + seq / lines % LINE as u64) as usize;
    place
}

impl CommitProgress {
    /// Returns the newest visible commit.
    #[inline]
    #[must_use]
    pub fn visible(&self) -> Seq {
        Seq(self.visible.load(Ordering::SeqCst))
    }

    /// Starts with `newest`, the last commit of an earlier process, and with `first` as the next
    /// seq. Must be called before the first commit. Until then every commit is visible.
    pub fn begin(&self, newest: Seq, first: Seq) {
        self.visible.store(newest.0, Ordering::SeqCst);
        self.first.store(first.0, Ordering::SeqCst);
    }

    /// Returns the progress of a new database.
    #[cfg(test)]
    pub(crate) fn started() -> CommitProgress {
        let progress = CommitProgress::default();
        progress.begin(Seq::ZERO, Seq(1));
        progress
    }

    /// Returns whether commit `seq` is visible, given that `visible` is the newest visible commit.
    #[inline]
    pub fn is_visible(&self, seq: Seq, visible: Seq) -> bool {
        seq <= visible || seq.0 < self.first.load(Ordering::Relaxed)
    }

    /// Returns `reserved`, or the newest visible commit if this process has not reserved a seq yet.
    pub fn last_assigned(&self, reserved: Seq) -> Seq {
        if reserved.0 < self.first.load(Ordering::Relaxed) { self.visible() } else { reserved }
    }

    /// Marks commit `seq` as complete, and moves `visible` as far as possible.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Poisoned`] if the previous commit in the ring place of `seq` can never
    /// become visible, because it or an earlier one failed.
    #[inline]
    pub fn complete(&self, seq: Seq) -> Result<()> {
        let is_next = seq.0 > self.first.load(Ordering::Relaxed)
            && self.visible.compare_exchange(seq.0 - 1, seq.0, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        if is_next {
            self.waiters.of(seq.0).wake();
        } else {
            self.wait(Seq(seq.0.saturating_sub(PLACES as u64)))?; // (I2)
            self.complete[place(seq.0)].store(seq.0, Ordering::SeqCst);
        }
        self.advance();
        Ok(())
    }

    /// Moves `visible` over all complete commits that follow it.
    #[inline]
    fn advance(&self) {
        loop {
            let visible = self.visible.load(Ordering::SeqCst);
            let begin = visible.max(self.first.load(Ordering::Relaxed) - 1);
            let mut end = begin;
            while self.complete[place(end + 1)].load(Ordering::SeqCst) == end + 1 {
                end += 1;
            }
            if end == begin {
                break;
            }
            // If another thread moved `visible` first, more commits may be complete.
            if self.visible.compare_exchange(visible, end, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
                self.waiters.wake(begin + 1, end);
            }
        }
    }

    /// Waits until commit `seq` is visible.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Poisoned`] if the commit, or an earlier one, failed. In the cached mode of
    /// [`cached_reads`], refuses a wait that is longer than some yields.
    #[inline]
    pub fn wait(&self, seq: Seq) -> Result<()> {
        if self.is_visible(seq, self.visible()) { Ok(()) } else { self.wait_long(seq) }
    }

    #[cold]
    fn wait_long(&self, seq: Seq) -> Result<()> {
        let (mut looks, word) = (0, self.waiters.of(seq.0));
        loop {
            let moved = word.load();
            if self.visible() >= seq {
                return Ok(());
            }
            if self.is_failed(seq) {
                return Err(self.error());
            }
            if looks < SPINS {
                std::hint::spin_loop();
            } else if looks < SPINS + YIELDS {
                sync::thread::yield_now();
            } else if cached_reads::is_active() {
                return Err(Error::io(IoOp::Read, Path::new("commit"), cached_reads::refuse()));
            } else {
                let is_over = || self.visible() >= seq || self.is_failed(seq);
                word.sleep_unless(moved, is_over);
            }
            looks += 1;
        }
    }

    /// Records that commit `seq` failed because of `cause` and never completes.
    pub fn fail(&self, seq: Seq, cause: PoisonCause) {
        assert!(self.visible() < seq, "progress (I3): a failed commit is not visible");
        self.cause.get_or_init(|| cause);
        self.failed.fetch_min(seq.0, Ordering::SeqCst);
        self.waiters.wake_all();
    }

    /// Returns whether commit `seq` can never become visible, because it or an earlier one failed.
    pub fn is_failed(&self, seq: Seq) -> bool {
        self.failed.load(Ordering::SeqCst) <= seq.0
    }

    fn error(&self) -> Error {
        Error::Poisoned { cause: self.cause.get().copied().unwrap_or(PoisonCause::Commit) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_is_the_end_of_the_dense_prefix() {
        let progress = CommitProgress::default();
        progress.begin(Seq(40), Seq(41));
        for (complete, visible) in [(42, 40), (44, 40), (41, 42), (43, 44), (45, 45)] {
            progress.complete(Seq(complete)).unwrap();
            assert_eq!(progress.visible(), Seq(visible), "after {complete}");
        }
    }

    #[test]
    fn readers_see_everything_until_commits_begin() {
        let progress = CommitProgress::default();
        progress.wait(Seq(7)).unwrap();
        progress.begin(Seq(0), Seq(1));
        assert!(!progress.is_visible(Seq(1), progress.visible()));
    }

    #[test]
    fn seqs_between_two_processes_are_skipped() {
        let progress = CommitProgress::default();
        progress.begin(Seq(40), Seq(100));
        progress.wait(Seq(99)).unwrap();
        progress.complete(Seq(101)).unwrap();
        assert_eq!(progress.visible(), Seq(40));
        progress.complete(Seq(100)).unwrap();
        assert_eq!(progress.visible(), Seq(101));
    }

    #[test]
    fn each_place_of_the_ring_has_neighbours_on_other_lines() {
        let mut places: Vec<usize> = (0..PLACES as u64).map(place).collect();
        assert!(places.windows(2).all(|pair| pair[0] / LINE != pair[1] / LINE));
        places.sort_unstable();
        assert!(places.into_iter().eq(0..PLACES));
    }

    #[test]
    fn a_failed_commit_ends_the_waits_for_it_and_for_later_ones() {
        let progress = CommitProgress::started();
        progress.complete(Seq(3)).unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| progress.wait(Seq(3)));
            progress.fail(Seq(2), PoisonCause::Append);
            assert!(matches!(waits.join().unwrap(), Err(Error::Poisoned { cause: PoisonCause::Append })));
        });
        progress.complete(Seq(1)).unwrap();
        assert!(progress.wait(Seq(1)).is_ok());
        assert!(matches!(progress.wait(Seq(2)), Err(Error::Poisoned { cause: PoisonCause::Append })));
        assert_eq!(progress.visible(), Seq(1));
    }

    #[test]
    fn many_threads_complete_in_any_order_and_all_becomes_visible() {
        const THREADS: u64 = 4;
        const EACH: u64 = 20_000;
        let (progress, next) = (CommitProgress::started(), AtomicU64::new(1));
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        let seq = Seq(next.fetch_add(1, Ordering::SeqCst));
                        progress.complete(seq).unwrap();
                        progress.wait(seq).unwrap();
                    }
                });
            }
        });
        assert_eq!(progress.visible(), Seq(THREADS * EACH));
    }
}
