//! # Pace: pauses of a backup in favor of commits
//!
//! Copying uses device and processor time. If GC or a committer is slowed down by it, the throttle
//! slows commits even more, and also during the pauses of the backup. The backup therefore pauses:
//! as long as a byte rate demands, or until commits keep three quarters of their reference rate.
//!
//! The reference is the rate during pauses, or the rate before the backup if that was higher. The
//! reason is that the backup lowers the rate in pauses too. The excess of the earlier rate fades
//! with its age. Let `x` be the fraction of the reference during work, and `y` the fraction in
//! pauses, which last `r` times as long. Then commits keep `(x + r y) / (1 + r)`.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use crate::Store;
use crate::commit::commit_rate::{CommitRate, CommitSampler};
use sheaf_log::types::Seq;
use sheaf_platform::clock::{Clock, SystemClock};
use sheaf_platform::error::Result;
use sheaf_platform::memory::cache_arbiter::proportion;

/// Longest sleep before the pause checks again for a cancellation.
const PAUSE_SLICE: Duration = Duration::from_millis(50);
/// Longest work time that counts. A piece that took longer was waiting for the device or a lock.
const MAX_PIECE_TIME: Duration = Duration::from_millis(200);
/// Fraction of the reference rate that commits should keep.
const TARGET_COMMIT_RATE: f64 = 0.75;
/// Shortest and longest pause, relative to the work before it. The shortest is still long enough to
/// measure the rate in pauses.
const PAUSE_RANGE: (f64, f64) = (0.125, 2.0);
/// Time constant of the measured rates during work and in pauses, in seconds.
const RATE_SECONDS: f64 = 1.0;
/// Half-life of the excess of the rate before the backup over the rate in pauses, in seconds.
/// Writers may have less to do by then.
const BASELINE_HALF_LIFE: f64 = 60.0;

/// Share of the machine that a backup uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BackupRate {
    /// Gives precedence to commits. After each piece that overlaps with commits the backup pauses,
    /// for an eighth of the time of the piece up to twice that time. The goal is that commits keep
    /// three quarters of their rate before the backup. Without commits the backup runs at full
    /// speed.
    #[default]
    YieldToCommits,
    /// At most this many bytes per second are copied, compared or read back.
    BytesPerSecond(NonZeroU64),
    /// Full speed.
    Unlimited,
}

/// Pauses of one backup.
pub(super) struct BackupPacer {
    store: Arc<Store>,
    plan: PausePlan,
}

/// Schedule of the pauses.
struct PausePlan {
    pace: BackupRate,
    /// Last sample: the start of the present work or pause.
    sampler: CommitSampler,
    /// Time at which the next bytes are due, for [`BackupRate::BytesPerSecond`].
    next_due: Duration,
    /// Start of the backup, and commits per second before it.
    started_at: Duration,
    baseline_rate: f64,
    /// Rate of commits during work, and in pauses.
    working_rate: CommitRate,
    paused_rate: CommitRate,
}

impl BackupPacer {
    pub(super) fn new(store: &Arc<Store>, pace: BackupRate) -> BackupPacer {
        // In inline mode the calling thread does all the work, so nothing runs concurrently.
        let pace = if store.is_inline() { BackupRate::Unlimited } else { pace };
        let now = SystemClock.now();
        let plan = PausePlan::new(pace, store.visible(), store.commits_per_second(), now);
        BackupPacer { store: Arc::clone(store), plan }
    }

    /// Pauses after `bytes` were copied. Calls `look` regularly during the pause; an error of it
    /// ends the pause.
    pub(super) fn pause(&mut self, bytes: u64, mut look: impl FnMut() -> Result<()>) -> Result<()> {
        let until = self.plan.pause_until(bytes, self.store.visible(), SystemClock.now());
        while let Some(left) = until.checked_sub(SystemClock.now()).filter(|left| !left.is_zero()) {
            self.store.pause(left.min(PAUSE_SLICE))?;
            look()?;
        }
        self.plan.resume(self.store.visible(), SystemClock.now());
        Ok(())
    }
}

impl PausePlan {
    fn new(pace: BackupRate, seen: Seq, before: Option<f64>, now: Duration) -> PausePlan {
        let [working, resting] =
            [CommitRate::over_seconds(RATE_SECONDS), CommitRate::over_seconds(RATE_SECONDS)];
        let mut looks = CommitSampler::default();
        looks.sample(seen, now);
        PausePlan {
            pace,
            sampler: looks,
            next_due: now,
            started_at: now,
            baseline_rate: before.unwrap_or_default(),
            working_rate: working,
            paused_rate: resting,
        }
    }

    /// Records the end of a pause.
    fn resume(&mut self, newest: Seq, now: Duration) {
        let (commits, rested) = self.sampler.sample(newest, now);
        self.paused_rate.add(commits, rested);
    }

    /// Returns the length of the next pause, relative to the work before it.
    fn pause_share(&self) -> f64 {
        let Some((working, resting)) = self.working_rate.get().zip(self.paused_rate.get()) else {
            return 1.0;
        };
        let age = self.sampler.last_sample().saturating_sub(self.started_at).as_secs_f64();
        let all = resting + (self.baseline_rate - resting).max(0.0) * 0.5f64.powf(age / BASELINE_HALF_LIFE);
        let (missing, won) = (TARGET_COMMIT_RATE * all - working, resting - TARGET_COMMIT_RATE * all);
        if missing <= 0.0 {
            PAUSE_RANGE.0
        } else if won <= 0.0 {
            PAUSE_RANGE.1
        } else {
            (missing / won).clamp(PAUSE_RANGE.0, PAUSE_RANGE.1)
        }
    }

    /// Returns the end of the pause after `bytes` that were finished at `now`.
    fn pause_until(&mut self, bytes: u64, newest: Seq, now: Duration) -> Duration {
        match self.pace {
            BackupRate::Unlimited => now,
            BackupRate::YieldToCommits => {
                let (commits, worked) = self.sampler.sample(newest, now);
                self.working_rate.add(commits, worked);
                if commits == 0 { now } else { now + worked.min(MAX_PIECE_TIME).mul_f64(self.pause_share()) }
            }
            BackupRate::BytesPerSecond(rate) => {
                // Unused time is not made up for if something else delayed the work.
                self.next_due =
                    self.next_due.max(self.sampler.last_sample()).saturating_add(transfer_time(bytes, rate));
                self.next_due
            }
        }
    }
}

/// Returns the time that `bytes` take at `rate` bytes per second.
fn transfer_time(bytes: u64, rate: NonZeroU64) -> Duration {
    Duration::from_nanos(proportion(bytes, 1_000_000_000, rate.get()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn plan(pace: BackupRate, before: Option<f64>) -> PausePlan {
        PausePlan::new(pace, Seq(7), before, 10 * MS)
    }

    #[test]
    fn at_first_pauses_are_as_long_as_the_work() {
        let mut plan = plan(BackupRate::YieldToCommits, None);
        assert_eq!(plan.pause_until(1, Seq(7), 15 * MS), 15 * MS, "nobody commits");
        assert_eq!(plan.pause_until(1, Seq(8), 20 * MS), 25 * MS);
        plan.resume(Seq(8), 25 * MS);
        assert_eq!(plan.pause_until(1, Seq(8), 30 * MS), 30 * MS, "nobody has since");
        plan.resume(Seq(8), 30 * MS);
        assert_eq!(plan.pause_until(1, Seq(9), 9000 * MS), 9200 * MS, "it waited for the device");
    }

    /// Returns the pause after `pieces` pieces of 10 ms, relative to a piece. The rates are commits
    /// per millisecond: before the backup, during the work, and in pauses.
    fn pause_after(pieces: usize, before: u64, concurrent: u64, resting: u64) -> f64 {
        let mut plan = plan(BackupRate::YieldToCommits, Some(before as f64 * 1e3));
        let (mut now, mut newest) = (10 * MS, Seq(7));
        let mut rest = Duration::ZERO;
        for _ in 0..pieces {
            (now, newest) = (now + 10 * MS, Seq(newest.0 + 10 * concurrent));
            rest = plan.pause_until(1, newest, now) - now;
            let commits = u64::try_from(rest.as_micros()).unwrap() * resting / 1000;
            (now, newest) = (now + rest, Seq(newest.0 + commits));
            plan.resume(newest, now);
        }
        rest.as_secs_f64() / 0.01
    }

    #[track_caller]
    fn assert_near(parts: f64, expected: f64) {
        assert!((parts - expected).abs() < 0.05, "{parts} instead of {expected}");
    }

    #[test]
    fn pauses_are_long_enough_for_commits_to_keep_their_rate() {
        for (concurrent, parts) in [(100, 0.125), (75, 0.125), (60, 0.6), (50, 1.0), (30, 1.8), (1, 2.0)] {
            assert_near(pause_after(100, 0, concurrent, 100), parts);
            assert_near(pause_after(100, 100, concurrent, 100), parts);
        }
    }

    #[test]
    fn commits_lost_during_pauses_are_counted() {
        assert_near(pause_after(100, 100, 60, 90), 1.0);
        assert_near(pause_after(100, 100, 60, 70), 2.0);
        assert_near(pause_after(100, 100, 76, 70), 0.125);
        assert_near(pause_after(100, 50, 60, 90), 0.33);
    }

    #[test]
    fn the_baseline_rate_fades() {
        let parts = [1, 2000, 6000, 50_000].map(|pieces| pause_after(pieces, 100, 60, 85));
        assert_near(parts[0], 1.0);
        assert!(parts[1] > parts[2] && parts[2] > parts[3], "{parts:?}");
        assert_near(parts[3], (0.75 * 85.0 - 60.0) / (0.25 * 85.0));
    }

    #[test]
    fn a_byte_rate_is_kept_without_catching_up() {
        let mut plan = plan(BackupRate::BytesPerSecond(NonZeroU64::new(1000).unwrap()), None);
        assert_eq!(plan.pause_until(5, Seq(7), 11 * MS), 15 * MS);
        plan.sampler.sample(Seq(7), 15 * MS);
        assert_eq!(plan.pause_until(5, Seq(7), 16 * MS), 20 * MS);
        plan.sampler.sample(Seq(7), 80 * MS);
        assert_eq!(plan.pause_until(5, Seq(7), 90 * MS), 85 * MS, "late already");
        let far = plan.pause_until(u64::MAX, Seq(7), 90 * MS);
        assert!(far > 1_000_000_000 * MS, "{far:?}");
    }

    #[test]
    fn full_speed_never_pauses() {
        assert_eq!(plan(BackupRate::Unlimited, None).pause_until(5, Seq(8), 11 * MS), 11 * MS);
    }
}
