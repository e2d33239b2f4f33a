//! # Spin: how long to look before sleeping
//!
//! A wake-up costs microseconds on both sides, a look nanoseconds: whoever expects something soon looks for a
//! while. How long is learnt: a sleep that ended so soon that looking would have seen the end doubles the budget,
//! a longer one halves it. (Learning from looks alone gets stuck: a budget too short for any answer never sees one. It made
//! a sixth of the requests, in one run.) The processor is not offered to others between looks: two who wait for each
//! other would then live on one processor by turns, and the kernel leaves them there; who has nothing to do soon sleeps.
//!
//! Where there are more who look than processors, a look keeps somebody from the work that is waited for: then everybody
//! looks for a moment only (with two workers on two processors 1.1 to 2.5 times the requests, at a fifth to all of the p99, over
//! shared memory; over TCP no worse).

use std::time::{Duration, Instant};

/// Bounds of the budget, in looks. The upper one is 50 to 100 µs of looking; a quarter of it was no better,
/// as far as one noisy run can tell.
const LEAST: u32 = 64;
const MOST: u32 = 1 << 11;
/// The upper one where there are more who look than processors.
const FEW: u32 = LEAST;
/// A sleep that is shorter was not worth it: falling asleep and being woken takes a good part of it.
const SHORT: Duration = Duration::from_micros(50);

/// The budget of one waiter.
#[derive(Debug)]
pub struct Spin {
    budget: u32,
    most: u32,
    /// When the last looking ended without success.
    gave_up: Option<Instant>,
}

impl Default for Spin {
    fn default() -> Spin {
        Spin { budget: MOST, most: MOST, gave_up: None }
    }
}

#[expect(clippy::disallowed_methods, reason = "how long a sleep took; nothing of the database hangs on it")]
fn now() -> Instant {
    Instant::now()
}

impl Spin {
    /// For one of so many who may look at the same time.
    #[must_use]
    pub fn among(lookers: usize) -> Spin {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let most = if lookers > processors { FEW } else { MOST };
        Spin { budget: most, most, gave_up: None }
    }

    /// Looks until `is_there` says so (true), or the budget is used up (false): then sleep.
    pub fn until(&mut self, mut is_there: impl FnMut() -> bool) -> bool {
        for _ in 0..self.budget {
            if is_there() {
                return true;
            }
            std::hint::spin_loop();
        }
        self.gave_up = Some(now());
        false
    }

    /// The sleep after that is over.
    pub fn slept(&mut self) {
        let Some(since) = self.gave_up.take() else { return };
        let is_short = now() - since < SHORT;
        self.budget = if is_short { self.most.min(self.budget * 2) } else { LEAST.max(self.budget / 2) };
    }
}
