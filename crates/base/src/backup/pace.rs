//! # Pace: what a backup leaves to others
//!
//! Copying takes a part of the device and of a processor, and what commits miss of them while a cleaner or a committer is at work
//! their brake takes of them once more. So a backup rests: as long as it worked while others commit, or as long as a rate asks for.

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

/// How much of the machine a backup takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackupPace {
    /// After each piece it rests as long as that took, if something was committed meanwhile. Without commits it goes as fast as it can.
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
    /// The newest commit when it worked last.
    seen: Seq,
    /// Since when it works.
    since: Duration,
    /// When the next bytes are due.
    due: Duration,
}

impl Pace {
    pub(super) fn new(store: &Arc<Store>, pace: BackupPace) -> Pace {
        // Where whoever calls does all the work, nobody is beside him.
        let pace = if store.is_inline() { BackupPace::Full } else { pace };
        let now = SystemClock.now();
        let plan = Plan { pace, seen: store.visible(), since: now, due: now };
        Pace { store: Arc::clone(store), plan }
    }

    /// So many bytes are done: rests as long as that asks for. `look` says, now and then, whether it goes on.
    pub(super) fn rest(&mut self, bytes: u64, mut look: impl FnMut() -> Result<()>) -> Result<()> {
        let until = self.plan.rest_until(bytes, self.store.visible(), SystemClock.now());
        while let Some(left) = until.checked_sub(SystemClock.now()).filter(|left| !left.is_zero()) {
            self.store.rest(left.min(SLICE))?;
            look()?;
        }
        self.plan.since = SystemClock.now();
        Ok(())
    }
}

impl Plan {
    /// When work goes on after `bytes` that were done by `now`.
    fn rest_until(&mut self, bytes: u64, newest: Seq, now: Duration) -> Duration {
        match self.pace {
            BackupPace::Full => now,
            BackupPace::GiveWay => {
                let worked = now.saturating_sub(self.since).min(WORK);
                if std::mem::replace(&mut self.seen, newest) == newest { now } else { now + worked }
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
        Plan { pace, seen: Seq(7), since: 10 * MS, due: 10 * MS }
    }

    #[test]
    fn beside_commits_it_rests_as_long_as_it_worked() {
        let mut plan = plan(BackupPace::GiveWay);
        assert_eq!(plan.rest_until(1, Seq(7), 15 * MS), 15 * MS, "nobody commits");
        assert_eq!(plan.rest_until(1, Seq(8), 15 * MS), 20 * MS);
        assert_eq!(plan.rest_until(1, Seq(8), 15 * MS), 15 * MS, "nobody has since");
        assert_eq!(plan.rest_until(1, Seq(9), 9000 * MS), 9200 * MS, "it waited for the device");
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
