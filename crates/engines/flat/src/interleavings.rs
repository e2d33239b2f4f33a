//! How the indexes are explored under a scheduler: half of the schedules at random, half with few preemptions.
//!
//! Built with `--cfg shuttle` only. See testkit's `interleavings` for the knobs.

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

pub(crate) fn explore(schedules: usize, scenario: fn()) {
    let setting = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let half = setting("SHEAF_SCHEDULES").unwrap_or(schedules) / 2;
    let seed = setting("SHEAF_SEED").unwrap_or(1) as u64;
    let mut config = Config::new();
    config.stack_size = 256 << 10;
    config.silence_warnings = true;
    Runner::new(RandomScheduler::new_from_seed(seed, half), config.clone()).run(scenario);
    Runner::new(PctScheduler::new_from_seed(seed, 3, half), config).run(scenario);
}
