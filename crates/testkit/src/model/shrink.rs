//! # Shrinker: removes steps from a failing sequence

use super::{ModelFailure, ModelStep};

/// Maximum number of replays.
const ATTEMPTS: usize = 600;

/// Removes steps, in ever smaller groups, as long as `fails` reports that the rest still fails.
pub(super) fn shrink(
    mut steps: Vec<ModelStep>,
    mut failure: ModelFailure,
    mut fails: impl FnMut(&[ModelStep]) -> Option<ModelFailure>,
) -> (Vec<ModelStep>, ModelFailure) {
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
            group /= 2; // single steps are tried again as long as one of them was removed
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
        let noise = || (0..300).map(|_| ModelStep::Persist);
        let steps: Vec<ModelStep> = noise()
            .chain([ModelStep::Crash])
            .chain(noise())
            .chain([ModelStep::Reopen])
            .chain(noise())
            .collect();
        let fails = |steps: &[ModelStep]| {
            let crash = steps.iter().position(|s| matches!(s, ModelStep::Crash))?;
            let reopen = steps[crash..].iter().position(|s| matches!(s, ModelStep::Reopen))?;
            Some(ModelFailure { step: crash + reopen, reason: String::new() })
        };
        let first = fails(&steps).unwrap();
        let (left, _) = shrink(steps, first, fails);
        assert!(matches!(left.as_slice(), [ModelStep::Crash, ModelStep::Reopen]), "{left:?}");
    }
}
