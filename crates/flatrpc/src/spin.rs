//! # Spin: how long to look before sleeping
//!
//! A wake-up costs microseconds on both sides, a look nanoseconds: whoever expects something soon looks for a
//! while. How long is learnt: a wait that ended while looking raises the budget, one that did not halves it.
//! Between looks the processor is offered to others, so that with more threads than processors those who
//! have work get it.

/// Looks between two offers of the processor.
const BURST: u32 = 64;
/// Bounds of the budget, in looks. The upper one is about 50 µs of looking.
const LEAST: u32 = BURST;
const MOST: u32 = 1 << 11;

/// The budget of one waiter.
#[derive(Debug)]
pub struct Spin {
    budget: u32,
}

impl Default for Spin {
    fn default() -> Spin {
        Spin { budget: MOST }
    }
}

impl Spin {
    /// Looks until `is_there` says so (true), or the budget is used up (false): then sleep.
    pub fn until(&mut self, mut is_there: impl FnMut() -> bool) -> bool {
        for looks in 1..=self.budget {
            if is_there() {
                self.budget = MOST.min(self.budget.max(looks * 4));
                return true;
            }
            std::hint::spin_loop();
            if looks % BURST == 0 {
                std::thread::yield_now();
            }
        }
        self.budget = LEAST.max(self.budget / 2);
        false
    }
}
