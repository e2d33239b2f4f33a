//! # Spinning: how long to poll before sleeping
//!
//! A wake-up costs microseconds on both sides, a poll nanoseconds. A thread that expects an event
//! soon therefore polls for a while before it sleeps. The budget of polls adapts. If a sleep was so
//! short that polling would have seen its end, the budget doubles; otherwise it halves. Only the
//! duration of sleeps is used: a budget that is too short for any reply would never see a
//! successful poll and never grow.
//!
//! The thread does not yield its processor between polls. Two threads that wait for each other and
//! yield would take turns on one processor, and the kernel would not move either of them.
//!
//! If there are more polling threads than processors, a poll takes time from the thread that does
//! the awaited work. In that case the budget is minimal.

use std::time::{Duration, Instant};

/// Bounds of the budget in polls. A smaller upper bound gave no benefit.
const MIN_BUDGET: u32 = 64;
const MAX_BUDGET: u32 = 1 << 11;
/// Upper bound if there are more polling threads than processors.
const OVERSUBSCRIBED_BUDGET: u32 = MIN_BUDGET;
/// Sleeps shorter than this were not worth it: sleep and wake-up themselves take a large part of
/// it.
const SHORT_SLEEP: Duration = Duration::from_micros(50);

/// Polling budget of one waiting thread.
#[derive(Debug)]
pub struct SpinWait {
    budget: u32,
    max_budget: u32,
    /// End of the last unsuccessful poll.
    spin_ended: Option<Instant>,
}

impl Default for SpinWait {
    fn default() -> SpinWait {
        SpinWait { budget: MAX_BUDGET, max_budget: MAX_BUDGET, spin_ended: None }
    }
}

#[expect(clippy::disallowed_methods, reason = "measures a sleep; no data depends on it")]
fn now() -> Instant {
    Instant::now()
}

impl SpinWait {
    /// Returns a budget for one of `pollers` threads that may poll at the same time.
    #[must_use]
    pub fn for_pollers(pollers: usize) -> SpinWait {
        let processors = sheaf_platform::parallel::processors();
        let most = if pollers > processors { OVERSUBSCRIBED_BUDGET } else { MAX_BUDGET };
        SpinWait { budget: most, max_budget: most, spin_ended: None }
    }

    /// Polls until `is_there` returns true. Returns false if the budget is exhausted: the caller
    /// should then sleep.
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

    /// Adapts the budget. The caller calls this after the sleep that follows an unsuccessful poll.
    pub fn after_sleep(&mut self) {
        let Some(since) = self.spin_ended.take() else { return };
        let is_short = now() - since < SHORT_SLEEP;
        self.budget =
            if is_short { self.max_budget.min(self.budget * 2) } else { MIN_BUDGET.max(self.budget / 2) };
    }
}
