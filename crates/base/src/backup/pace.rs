//! # Pace: what a backup leaves to others
//!
//! Copying takes a part of the device and of a processor, and what commits miss of them while a cleaner or a committer is at work
//! their brake takes of them once more, in rests too. So a backup rests: as long as a rate asks for, or as it takes for those who commit to
//! keep three quarters of their speed. That is the one they had before it began, for what it costs shows in its rests too, or the one
//! in its rests, if they are faster then; and the older the first is, the less it counts. Of commits that go on at the fraction `x` of it beside
//! the work, and at `y` in rests of `r` times as long, `(x + r y) / (1 + r)` are kept.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, SystemClock};
use crate::error::Result;
use crate::shares::proportion;
use crate::speed::{Looks, Speed};
use crate::store::Store;
use crate::types::Seq;

/// A rest is no longer between two looks at whether it is to end.
const SLICE: Duration = Duration::from_millis(50);
/// Work that took longer waited for something.
const WORK: Duration = Duration::from_millis(200);
/// What those who commit keep of their speed, if rests between these parts of the work can do it: the shortest still show it.
const KEPT: f64 = 0.75;
const REST: (f64, f64) = (0.125, 2.0);
/// Speeds beside work and in rests are of so many seconds.
const MEMORY: f64 = 1.0;
/// What the speed before is above that in rests counts half after so many seconds, for others may have less to do by then.
const FADES: f64 = 60.0;

/// Share of the machine that a backup uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BackupPace {
    /// Gives precedence to commits: after each piece that overlaps with commits the backup pauses,
    /// for an eighth of the time of the piece up to twice that time. The goal is that commits keep
    /// three quarters of their rate before the backup. Without commits the backup runs at full
    /// speed.
    #[default]
    GiveWay,
    /// At most this many bytes per second are copied, compared or read back.
    AtMost(NonZeroU64),
    /// Full speed.
    Full,
}

/// A backup's rests.
pub(super) struct Pace {
    store: Arc<Store>,
    plan: Plan,
}

/// When it rests, and how long.
struct Plan {
    pace: BackupPace,
    /// The last one was when it began to work, or to rest.
    looks: Looks,
    /// When the next bytes are due.
    due: Duration,
    /// When it began, and how many commits a second there were then.
    began: Duration,
    before: f64,
    /// Commits beside its work, and in its rests.
    working: Speed,
    resting: Speed,
}

impl Pace {
    pub(super) fn new(store: &Arc<Store>, pace: BackupPace) -> Pace {
        // Where whoever calls does all the work, nobody is beside him.
        let pace = if store.is_inline() { BackupPace::Full } else { pace };
        let now = SystemClock.now();
        let plan = Plan::new(pace, store.visible(), store.commits_a_second(), now);
        Pace { store: Arc::clone(store), plan }
    }

    /// So many bytes are done: rests as long as that asks for. `look` says, now and then, whether it goes on.
    pub(super) fn rest(&mut self, bytes: u64, mut look: impl FnMut() -> Result<()>) -> Result<()> {
        let until = self.plan.rest_until(bytes, self.store.visible(), SystemClock.now());
        while let Some(left) = until.checked_sub(SystemClock.now()).filter(|left| !left.is_zero()) {
            self.store.rest(left.min(SLICE))?;
            look()?;
        }
        self.plan.work_on(self.store.visible(), SystemClock.now());
        Ok(())
    }
}

impl Plan {
    fn new(pace: BackupPace, seen: Seq, before: Option<f64>, now: Duration) -> Plan {
        let [working, resting] = [Speed::of(MEMORY), Speed::of(MEMORY)];
        let mut looks = Looks::default();
        looks.look(seen, now);
        Plan { pace, looks, due: now, began: now, before: before.unwrap_or_default(), working, resting }
    }

    /// The rest is over.
    fn work_on(&mut self, newest: Seq, now: Duration) {
        let (commits, rested) = self.looks.look(newest, now);
        self.resting.add(commits, rested);
    }

    /// How long it rests, in parts of its work.
    fn share(&self) -> f64 {
        let Some((working, resting)) = self.working.get().zip(self.resting.get()) else { return 1.0 };
        let age = self.looks.since().saturating_sub(self.began).as_secs_f64();
        let all = resting + (self.before - resting).max(0.0) * 0.5f64.powf(age / FADES);
        let (missing, won) = (KEPT * all - working, resting - KEPT * all);
        if missing <= 0.0 {
            REST.0
        } else if won <= 0.0 {
            REST.1
        } else {
            (missing / won).clamp(REST.0, REST.1)
        }
    }

    /// When work goes on after `bytes` that were done by `now`.
    fn rest_until(&mut self, bytes: u64, newest: Seq, now: Duration) -> Duration {
        match self.pace {
            BackupPace::Full => now,
            BackupPace::GiveWay => {
                let (commits, worked) = self.looks.look(newest, now);
                self.working.add(commits, worked);
                if commits == 0 { now } else { now + worked.min(WORK).mul_f64(self.share()) }
            }
            BackupPace::AtMost(rate) => {
                // What was not used while something else took its time is not made up for.
                self.due = self.due.max(self.looks.since()).saturating_add(time(bytes, rate));
                self.due
            }
        }
    }
}

/// What `bytes` take at so many a second.
fn time(bytes: u64, rate: NonZeroU64) -> Duration {
    Duration::from_nanos(proportion(bytes, 1_000_000_000, rate.get()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn plan(pace: BackupPace, before: Option<f64>) -> Plan {
        Plan::new(pace, Seq(7), before, 10 * MS)
    }

    #[test]
    fn beside_commits_it_rests_as_long_as_it_worked_at_first() {
        let mut plan = plan(BackupPace::GiveWay, None);
        assert_eq!(plan.rest_until(1, Seq(7), 15 * MS), 15 * MS, "nobody commits");
        assert_eq!(plan.rest_until(1, Seq(8), 20 * MS), 25 * MS);
        plan.work_on(Seq(8), 25 * MS);
        assert_eq!(plan.rest_until(1, Seq(8), 30 * MS), 30 * MS, "nobody has since");
        plan.work_on(Seq(8), 30 * MS);
        assert_eq!(plan.rest_until(1, Seq(9), 9000 * MS), 9200 * MS, "it waited for the device");
    }

    /// The rest after so many pieces of 10 ms, in parts of these, beside so many commits a millisecond, `resting` in rests, and `before`.
    fn rest_after(pieces: usize, before: u64, beside: u64, resting: u64) -> f64 {
        let mut plan = plan(BackupPace::GiveWay, Some(before as f64 * 1e3));
        let (mut now, mut newest) = (10 * MS, Seq(7));
        let mut rest = Duration::ZERO;
        for _ in 0..pieces {
            (now, newest) = (now + 10 * MS, Seq(newest.0 + 10 * beside));
            rest = plan.rest_until(1, newest, now) - now;
            let commits = u64::try_from(rest.as_micros()).unwrap() * resting / 1000;
            (now, newest) = (now + rest, Seq(newest.0 + commits));
            plan.work_on(newest, now);
        }
        rest.as_secs_f64() / 0.01
    }

    #[track_caller]
    fn assert_near(parts: f64, expected: f64) {
        assert!((parts - expected).abs() < 0.05, "{parts} in place of {expected}");
    }

    #[test]
    fn it_rests_as_long_as_it_takes_for_others_to_keep_their_speed() {
        for (beside, parts) in [(100, 0.125), (75, 0.125), (60, 0.6), (50, 1.0), (30, 1.8), (1, 2.0)] {
            assert_near(rest_after(100, 0, beside, 100), parts);
            assert_near(rest_after(100, 100, beside, 100), parts);
        }
    }

    #[test]
    fn what_its_work_costs_others_in_its_rests_counts_too() {
        assert_near(rest_after(100, 100, 60, 90), 1.0);
        assert_near(rest_after(100, 100, 60, 70), 2.0);
        assert_near(rest_after(100, 100, 76, 70), 0.125);
        assert_near(rest_after(100, 50, 60, 90), 0.33);
    }

    #[test]
    fn what_was_before_counts_less_and_less() {
        let parts = [1, 2000, 6000, 50_000].map(|pieces| rest_after(pieces, 100, 60, 85));
        assert_near(parts[0], 1.0);
        assert!(parts[1] > parts[2] && parts[2] > parts[3], "{parts:?}");
        assert_near(parts[3], (0.75 * 85.0 - 60.0) / (0.25 * 85.0));
    }

    #[test]
    fn a_rate_is_kept_and_what_was_missed_is_not_made_up_for() {
        let mut plan = plan(BackupPace::AtMost(NonZeroU64::new(1000).unwrap()), None);
        assert_eq!(plan.rest_until(5, Seq(7), 11 * MS), 15 * MS);
        plan.looks.look(Seq(7), 15 * MS);
        assert_eq!(plan.rest_until(5, Seq(7), 16 * MS), 20 * MS);
        plan.looks.look(Seq(7), 80 * MS);
        assert_eq!(plan.rest_until(5, Seq(7), 90 * MS), 85 * MS, "late already");
        let far = plan.rest_until(u64::MAX, Seq(7), 90 * MS);
        assert!(far > 1_000_000_000 * MS, "{far:?}");
    }

    #[test]
    fn at_full_speed_it_never_rests() {
        assert_eq!(plan(BackupPace::Full, None).rest_until(5, Seq(8), 11 * MS), 11 * MS);
    }
}
