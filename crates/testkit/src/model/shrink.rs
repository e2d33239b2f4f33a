//! # Shrinking: fewer steps that still fail

use super::{Failure, Step};

/// Most replays.
const ATTEMPTS: usize = 600;

/// Drops steps, in ever smaller groups, for as long as `fails` finds that the rest fails.
pub(super) fn shrink(
    mut steps: Vec<Step>,
    mut failure: Failure,
    mut fails: impl FnMut(&[Step]) -> Option<Failure>,
) -> (Vec<Step>, Failure) {
    steps.truncate(failure.step + 1);
    let mut attempts = 0;
    let mut group = steps.len().div_ceil(2);
    while group > 0 {
        let mut from = 0;
        let mut dropped = false;
        while from < steps.len() && attempts < ATTEMPTS {
            let mut fewer = steps.clone();
            fewer.drain(from..(from + group).min(steps.len()));
            attempts += 1;
            match fails(&fewer) {
                Some(still) => {
                    fewer.truncate(still.step + 1);
                    (steps, failure, dropped) = (fewer, still, true);
                }
                None => from += group,
            }
        }
        if !(dropped && group == 1) {
            group /= 2; // single steps are tried again while that helps
        }
        if attempts >= ATTEMPTS {
            break;
        }
    }
    (steps, failure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_steps_that_matter_are_left() {
        let noise = || (0..300).map(|_| Step::Persist);
        let steps: Vec<Step> =
            noise().chain([Step::Crash]).chain(noise()).chain([Step::Reopen]).chain(noise()).collect();
        let fails = |steps: &[Step]| {
            let crash = steps.iter().position(|s| matches!(s, Step::Crash))?;
            let reopen = steps[crash..].iter().position(|s| matches!(s, Step::Reopen))?;
            Some(Failure { step: crash + reopen, why: String::new() })
        };
        let first = fails(&steps).unwrap();
        let (left, _) = shrink(steps, first, fails);
        assert!(matches!(left.as_slice(), [Step::Crash, Step::Reopen]), "{left:?}");
    }
}
