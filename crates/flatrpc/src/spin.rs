//! # Spin: how long to look before sleeping
//!
//! A wake-up costs microseconds on both sides, a look nanoseconds: whoever expects something soon
//! looks for a while. How long is learnt: a sleep that ended so soon that looking would have seen
//! the end doubles the budget, a longer one halves it. (Learning from looks alone gets stuck: a
//! budget too short for any answer never sees one. It made a sixth of the requests, in one run.)
//! The processor is not offered to others between looks: two who wait for each other would then
//! live on one processor by turns, and the kernel leaves them there; who has nothing to do soon
//! sleeps.
//!
//! Where there are more who look than processors, a look keeps somebody from the work that is
//! waited for: then everybody looks for a moment only (with two workers on two processors 1.1 to
//! 2.5 times the requests, at a fifth to all of the p99, over shared memory; over TCP no worse).

use std::time::{Duration, Instant};

/// Bounds of the budget, in looks. The upper one is 50 to 100 µs of looking; a quarter of it was no
/// better, as far as one noisy run can tell.
const MIN_BUDGET: u32 = 64;
const MAX_BUDGET: u32 = 1 << 11;
/// The upper one where there are more who look than processors.
const OVERSUBSCRIBED_BUDGET: u32 = MIN_BUDGET;
/// A sleep that is shorter was not worth it: falling asleep and being woken takes a good part of
/// it.
const SHORT_SLEEP: Duration = Duration::from_micros(50);

/// The budget of one waiter.
#[derive(Debug)]
pub struct SpinWait {
    budget: u32,
    max_budget: u32,
    /// When the last looking ended without success.
    spin_ended: Option<Instant>,
}

impl Default for SpinWait {
    fn default() -> SpinWait {
        SpinWait { budget: MAX_BUDGET, max_budget: MAX_BUDGET, spin_ended: None }
    }
}

#[expect(clippy::disallowed_methods, reason = "how long a sleep took; nothing of the database hangs on it")]
fn now() -> Instant {
    Instant::now()
}

impl SpinWait {
    /// For one of so many who may look at the same time.
    #[must_use]
    pub fn for_pollers(pollers: usize) -> SpinWait {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let most = if pollers > processors { OVERSUBSCRIBED_BUDGET } else { MAX_BUDGET };
        SpinWait { budget: most, max_budget: most, spin_ended: None }
    }

    /// Looks until `is_there` says so (true), or the budget is used up (false): then sleep.
    pub fn spin_until(&mut self, mut is_there: impl FnMut() -> bool) -> bool {
        for _ in 0..self.budget {
            if is_there() {
                return true;
            }
            std::hint::spin_loop();
        }
        self.spin_ended = Some(now());
        false
    }

    /// The sleep after that is over.
    pub fn after_sleep(&mut self) {
        let Some(since) = self.spin_ended.take() else { return };
        let is_short = now() - since < SHORT_SLEEP;
        self.budget =
            if is_short { self.max_budget.min(self.budget * 2) } else { MIN_BUDGET.max(self.budget / 2) };
    }
}
