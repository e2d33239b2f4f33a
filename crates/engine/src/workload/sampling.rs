//! # Sampling: number of calls until the next sample
//!
//! Each thread has a countdown. Gaps have a geometric distribution, as if each call were chosen
//! independently with a probability of 1 in [`SAMPLE_WEIGHT`].

use std::cell::Cell;

use sheaf_platform::random::random_bits;
use sheaf_platform::sync::atomic::{AtomicUsize, Ordering};

/// Number of calls that a sampled call represents.
pub const SAMPLE_WEIGHT: u64 = 64;
/// Maximum gap. It cuts one gap in 10 million: (63/64)^1024 = 1e-7.
const MAX_GAP: u32 = 1024;

// Those of std in every build: a scheduler must not explore which call is sampled.
std::thread_local! {
    /// Number of calls until the next sample; zero before the first one.
    static GAP: Cell<u32> = const { Cell::new(0) };
    /// State of this thread's random generator; zero before it is seeded.
    static SEED: Cell<u64> = const { Cell::new(0) };
    /// Number of this thread's stripe, plus one.
    static STRIPE: Cell<usize> = const { Cell::new(0) };
}

/// Returns whether this call is sampled. Must be called exactly once for each call.
#[inline(always)]
#[must_use]
pub fn is_sample_due() -> bool {
    GAP.with(|gap| {
        let left = gap.get().wrapping_sub(1);
        gap.set(left);
        left.wrapping_sub(1) >= MAX_GAP && draw(left)
    })
}

/// Draws the next gap. The countdown ended (`left` is 0), or there is none yet.
#[cold]
#[inline(never)]
fn draw(left: u32) -> bool {
    let next = || GAP.with(|gap| gap.set(gap_of(random())));
    next();
    // The first call of a thread is as likely as any other: it belongs to the first gap.
    left == 0 || is_sample_due()
}

/// Returns the gap for 53 random bits: 1 with a probability of 1/64, 2 with 63/64 of that, and so
/// on.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 1 and MAX_GAP")]
fn gap_of(bits: u64) -> u32 {
    let unit = (bits >> 11) as f64 / (1u64 << 53) as f64;
    let gap = (1.0 - unit).ln() / (1.0 - 1.0 / SAMPLE_WEIGHT as f64).ln();
    (gap as u32 + 1).min(MAX_GAP)
}

/// Returns the next random number (Splitmix64).
fn random() -> u64 {
    SEED.with(|seed| {
        let mut state = seed.get();
        if state == 0 {
            #[allow(clippy::cast_possible_truncation, reason = "half of the bits are enough")]
            let bits = random_bits() as u64;
            state = bits;
        }
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15).max(1);
        seed.set(state);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    })
}

/// Restarts this thread's random numbers with a fixed seed. A database without background threads
/// must behave the same for the same seed.
pub fn reseed() {
    SEED.with(|seed| seed.set(1));
    GAP.with(|gap| gap.set(0));
}

/// Returns a number that differs between threads.
pub(super) fn thread_stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    STRIPE.with(|stripe| {
        if stripe.get() == 0 {
            stripe.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        stripe.get()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_call_in_64_is_sampled() {
        reseed();
        let calls = 1_000_000;
        let sampled = (0..calls).filter(|_| is_sample_due()).count() as f64;
        let share = sampled * SAMPLE_WEIGHT as f64 / f64::from(calls);
        assert!((0.97..1.03).contains(&share), "{share}");
    }

    #[test]
    fn the_first_call_is_as_likely_as_any() {
        let mut sampled = 0.0;
        for seed in 1..100_000u64 {
            SEED.with(|s| s.set(seed.wrapping_mul(0x2545_f491_4f6c_dd1d)));
            GAP.with(|gap| gap.set(0));
            sampled += f64::from(u8::from(is_sample_due()));
        }
        let share = sampled * SAMPLE_WEIGHT as f64 / 100_000.0;
        assert!((0.9..1.1).contains(&share), "{share}");
    }

    #[test]
    fn gaps_go_with_no_period() {
        reseed();
        for period in [2, 3, 5, 8, 16, 64] {
            let mut hits = vec![0.0; period];
            for call in 0..2_000_000 {
                if is_sample_due() {
                    hits[call % period] += 1.0;
                }
            }
            let mean = hits.iter().sum::<f64>() / period as f64;
            let worst = hits.iter().map(|hit| (hit / mean - 1.0).abs()).fold(0.0, f64::max);
            assert!(worst < 0.25, "period {period}: {worst}");
        }
    }
}
