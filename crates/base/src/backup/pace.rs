//! # Pace: what a backup leaves to others
//!
//! Copying takes a part of the device and of a processor, and what commits miss of them while a cleaner or a committer is at work
//! their brake takes of them once more. So a backup rests: as long as a rate asks for, or as it takes for those who commit to keep
//! four fifths of the speed that they have in its rests: of commits that go on at the fraction `x` of it beside the work, and at all of it in rests of
//! `r` times as long, `(x + r) / (1 + r)` are kept. In rests they are slower than alone: in all they keep two thirds or more of that.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, SystemClock};
use crate::error::Result;
use crate::store::Store;
use crate::types::Seq;

/// A rest is no longer between two looks at whether it is to end.
const SLICE: Duration = Duration::from_millis(50);
/// Work that took longer waited for something.
const WORK: Duration = Duration::from_millis(200);
/// What those who commit keep of their speed in rests, if rests between these parts of the work can do it: the shortest still show it.
const KEPT: f64 = 0.8;
const REST: (f64, f64) = (0.125, 2.0);
/// Speeds are of about so many seconds, ...
const MEMORY: f64 = 1.0;
/// ... and of at least so many: before, it rests as long as it worked.
const KNOWN: f64 = 0.02;

/// How much of the machine a backup takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackupPace {
    /// After each piece during which something was committed it rests, for an eighth to twice as long as that took: so that commits keep about two
    /// thirds of their speed or more. Without commits it goes as fast as it can.
    #[default]
    GiveWay,
    /// So many bytes a second at most, copied, compared or read back, whatever others do.
    AtMost(NonZeroU64),
    /// As fast as it can.
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
    /// The newest commit when it began to work, or to rest.
    seen: Seq,
    /// Since when it works, or rests.
    since: Duration,
    /// When the next bytes are due.
    due: Duration,
    /// Commits beside its work, and in its rests.
    working: Speed,
    resting: Speed,
}

/// Commits in some time, of which the latest counts most.
#[derive(Clone, Copy, Debug, Default)]
struct Speed {
    commits: f64,
    seconds: f64,
}

impl Speed {
    fn add(&mut self, commits: u64, time: Duration) {
        self.commits += commits as f64;
        self.seconds += time.as_secs_f64();
        if self.seconds > MEMORY {
            self.commits /= 2.0;
            self.seconds /= 2.0;
        }
    }

    /// Commits a second, once that is known.
    fn get(&self) -> Option<f64> {
        (self.seconds >= KNOWN && self.commits > 0.0).then(|| self.commits / self.seconds)
    }
}

impl Pace {
    pub(super) fn new(store: &Arc<Store>, pace: BackupPace) -> Pace {
        // Where whoever calls does all the work, nobody is beside him.
        let pace = if store.is_inline() { BackupPace::Full } else { pace };
        let now = SystemClock.now();
        let plan = Plan::new(pace, store.visible(), now);
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
    fn new(pace: BackupPace, seen: Seq, now: Duration) -> Plan {
        Plan { pace, seen, since: now, due: now, working: Speed::default(), resting: Speed::default() }
    }

    /// What was committed since it was asked last, and in what time.
    fn turn(&mut self, newest: Seq, now: Duration) -> (u64, Duration) {
        let commits = newest.0.saturating_sub(std::mem::replace(&mut self.seen, newest).0);
        (commits, now.saturating_sub(std::mem::replace(&mut self.since, now)))
    }

    /// The rest is over.
    fn work_on(&mut self, newest: Seq, now: Duration) {
        let (commits, rested) = self.turn(newest, now);
        self.resting.add(commits, rested);
    }

    /// How long it rests, in parts of its work.
    fn share(&self) -> f64 {
        let Some((working, resting)) = self.working.get().zip(self.resting.get()) else { return 1.0 };
        ((KEPT - working / resting) / (1.0 - KEPT)).clamp(REST.0, REST.1)
    }

    /// When work goes on after `bytes` that were done by `now`.
    fn rest_until(&mut self, bytes: u64, newest: Seq, now: Duration) -> Duration {
        match self.pace {
            BackupPace::Full => now,
            BackupPace::GiveWay => {
                let (commits, worked) = self.turn(newest, now);
                self.working.add(commits, worked);
                if commits == 0 { now } else { now + worked.min(WORK).mul_f64(self.share()) }
            }
            BackupPace::AtMost(rate) => {
                // What was not used while something else took its time is not made up for.
                self.due = self.due.max(self.since).saturating_add(time(bytes, rate));
                self.due
            }
        }
    }
}

/// What `bytes` take at so many a second.
fn time(bytes: u64, rate: NonZeroU64) -> Duration {
    let nanoseconds = u128::from(bytes) * 1_000_000_000 / u128::from(rate.get());
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn plan(pace: BackupPace) -> Plan {
        Plan::new(pace, Seq(7), 10 * MS)
    }

    #[test]
    fn beside_commits_it_rests_as_long_as_it_worked_at_first() {
        let mut plan = plan(BackupPace::GiveWay);
        assert_eq!(plan.rest_until(1, Seq(7), 15 * MS), 15 * MS, "nobody commits");
        assert_eq!(plan.rest_until(1, Seq(8), 20 * MS), 25 * MS);
        plan.work_on(Seq(8), 25 * MS);
        assert_eq!(plan.rest_until(1, Seq(8), 30 * MS), 30 * MS, "nobody has since");
        plan.work_on(Seq(8), 30 * MS);
        assert_eq!(plan.rest_until(1, Seq(9), 9000 * MS), 9200 * MS, "it waited for the device");
    }

    /// Rests after pieces of 10 ms beside commits that go at 100 a millisecond in rests, and at so many beside work.
    fn rest_after(beside: u64) -> Duration {
        let mut plan = plan(BackupPace::GiveWay);
        let (mut now, mut newest) = (10 * MS, Seq(7));
        let mut rest = Duration::ZERO;
        for _ in 0..100 {
            (now, newest) = (now + 10 * MS, Seq(newest.0 + 10 * beside));
            rest = plan.rest_until(1, newest, now) - now;
            (now, newest) = (now + rest, Seq(newest.0 + u64::try_from(rest.as_micros()).unwrap() / 10));
            plan.work_on(newest, now);
        }
        rest
    }

    #[test]
    fn it_rests_as_long_as_it_takes_for_others_to_keep_their_speed() {
        let rests = [100, 75, 60, 50, 30].map(rest_after);
        for (rest, parts) in rests.into_iter().zip([0.125, 0.25, 1.0, 1.5, 2.0]) {
            let expected = (10 * MS).mul_f64(parts);
            assert!(rest.abs_diff(expected) < MS / 2, "{rests:?}");
        }
        assert!(rest_after(1).abs_diff(20 * MS) < MS / 2, "no longer than that");
    }

    #[test]
    fn a_rate_is_kept_and_what_was_missed_is_not_made_up_for() {
        let mut plan = plan(BackupPace::AtMost(NonZeroU64::new(1000).unwrap()));
        assert_eq!(plan.rest_until(5, Seq(7), 11 * MS), 15 * MS);
        plan.since = 15 * MS;
        assert_eq!(plan.rest_until(5, Seq(7), 16 * MS), 20 * MS);
        plan.since = 80 * MS;
        assert_eq!(plan.rest_until(5, Seq(7), 90 * MS), 85 * MS, "late already");
        let far = plan.rest_until(u64::MAX, Seq(7), 90 * MS);
        assert!(far > 1_000_000_000 * MS, "{far:?}");
    }

    #[test]
    fn at_full_speed_it_never_rests() {
        assert_eq!(plan(BackupPace::Full).rest_until(5, Seq(8), 11 * MS), 11 * MS);
    }
}
