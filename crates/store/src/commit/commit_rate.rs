//! # Commit rate: recent number of commits per second

use std::time::Duration;

use sheaf_log::types::Seq;

/// Shortest time in seconds after which a rate is known.
const MIN_SECONDS: f64 = 0.02;

/// Decaying average of the commits per second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommitRate {
    /// Approximate length of the averaged time.
    window_seconds: f64,
    commits: f64,
    seconds: f64,
}

impl CommitRate {
    /// Creates a rate over about the last `memory` seconds.
    pub(crate) fn over_seconds(memory: f64) -> CommitRate {
        CommitRate { window_seconds: memory, commits: 0.0, seconds: 0.0 }
    }

    /// Adds `commits` commits that happened within `time`.
    pub(crate) fn add(&mut self, commits: u64, time: Duration) {
        self.commits += commits as f64;
        self.seconds += time.as_secs_f64();
        if self.seconds > self.window_seconds {
            self.commits *= self.window_seconds / 2.0 / self.seconds;
            self.seconds = self.window_seconds / 2.0;
        }
    }

    /// Returns the commits per second. `None` if the observed time is too short or had no commits.
    pub(crate) fn get(&self) -> Option<f64> {
        (self.seconds >= MIN_SECONDS && self.commits > 0.0).then(|| self.commits / self.seconds)
    }
}

/// Sampler of the number of commits between two calls.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CommitSampler {
    /// The newest commit at the last sample, and the time of that sample.
    last: Option<(Seq, Duration)>,
}

impl CommitSampler {
    /// Returns the number of commits and the time since the last sample. Both are 0 for the first
    /// sample.
    pub(crate) fn sample(&mut self, newest: Seq, now: Duration) -> (u64, Duration) {
        let (seen, since) = self.last.replace((newest, now)).unwrap_or((newest, now));
        (newest.0.saturating_sub(seen.0), now.saturating_sub(since))
    }

    /// Returns the time of the last sample.
    pub(crate) fn last_sample(&self) -> Duration {
        self.last.map_or(Duration::ZERO, |(_, since)| since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_that_of_the_last_seconds() {
        let mut speed = CommitRate::over_seconds(4.0);
        assert_eq!(speed.get(), None);
        speed.add(100, Duration::from_millis(10));
        assert_eq!(speed.get(), None, "too short a time to tell");
        speed.add(900, Duration::from_millis(990));
        assert_eq!(speed.get(), Some(1000.0));
        for _ in 0..200 {
            speed.add(10, Duration::from_millis(100));
        }
        let now = speed.get().unwrap_or_default();
        assert!((100.0..101.0).contains(&now), "{now}");
        speed.add(0, Duration::from_secs(1000));
        let now = speed.get().unwrap_or_default();
        assert!(now < 1.0, "one long time without any is the last seconds whole: {now}");
    }

    #[test]
    fn the_first_sample_counts_no_commits() {
        let mut looks = CommitSampler::default();
        assert_eq!(looks.sample(Seq(1_000_000), Duration::from_secs(5)), (0, Duration::ZERO));
        assert_eq!(looks.sample(Seq(1_000_007), Duration::from_secs(6)), (7, Duration::from_secs(1)));
        assert_eq!(looks.last_sample(), Duration::from_secs(6));
    }
}
