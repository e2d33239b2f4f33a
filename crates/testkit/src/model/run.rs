//! # Model runs: one seed after another, on every engine and geometry

use std::sync::atomic::{AtomicU64, Ordering};

use sheaf_platform::sync::Mutex;

use super::{ModelCase, ModelFailure, execute, steps};
use crate::fixture::{DiskKind, TestSetting, TestSubject};
use crate::totals::{Budget, Stopwatch, Totals};

/// Steps of a sequence.
const STEPS: usize = 2000;
/// Every n-th sequence is executed on all engines.
const ALL_ENGINES_INTERVAL: u64 = 8;

const TINY: TestSetting = TestSetting::new(DiskKind::Simulated, true, true);
const NORMAL: TestSetting = TestSetting::new(DiskKind::Simulated, false, true);

/// Executes sequences until the budget, counted in operations, is spent.
#[must_use]
pub fn run(subject: &TestSubject, seed: u64, budget: Budget) -> Totals {
    let watch = Stopwatch::start();
    let totals = Mutex::new(Totals::new("model", subject.name));
    let next = AtomicU64::new(0);
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if watch.seconds() >= budget.seconds || !has_room(&totals.lock(), budget) {
                return;
            }
            let setting = if number % 4 == 3 { NORMAL } else { TINY };
            let case = ModelCase {
                engine: subject.name,
                flaw: None,
                setting,
                seed: seed.wrapping_add(number),
                steps: STEPS,
            };
            let (played, result) = match number % ALL_ENGINES_INTERVAL {
                0 => (2 * TestSubject::all().len() as u64, check_all_engines(&case)),
                _ => (1, case.check().map(drop).map_err(|failure| case.report(&failure))),
            };
            let mut totals = totals.lock();
            totals.cases += played * STEPS as u64;
            totals.distinct += STEPS as u64;
            if let Err(what) = result {
                totals.failures.push(crate::totals::HarnessFailure { replay: case.replay(), message: what });
            }
        }
    };
    std::thread::scope(|scope| {
        (1..budget.workers).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    let mut totals = totals.into_inner();
    totals.seconds = watch.seconds();
    totals
}

fn has_room(totals: &Totals, budget: Budget) -> bool {
    totals.cases < budget.cases && totals.failures.len() < 3
}

/// Executes one sequence, without the steps that some engine does not support, on all engines in
/// two geometries. The observed values must be the same.
///
/// # Errors
///
/// Returns the first engine and geometry that fails or differs.
pub(super) fn check_all_engines(case: &ModelCase) -> Result<(), String> {
    let mut all = steps::generate(case.seed, case.steps, TINY);
    let removes = |step: &steps::ModelStep| {
        matches!(step, steps::ModelStep::RemoveRange { .. } | steps::ModelStep::RangeCommit(_))
    };
    all.retain(|step| !removes(step));
    let mut first = None;
    for subject in TestSubject::all() {
        for setting in [TINY, NORMAL] {
            let digest = execute::execute(&subject, setting, &all)
                .map_err(|failure: ModelFailure| format!("{subject:?} {setting:?}: {failure}"))?;
            let expected = *first.get_or_insert(digest);
            if digest != expected {
                return Err(format!("{subject:?} {setting:?} observes {digest:x}, not {expected:x}"));
            }
        }
    }
    Ok(())
}

/// Generates the model checker's tests for one engine: `model_suite!(flat, TestSubject::flat())`.
#[macro_export]
macro_rules! model_suite {
    ($module:ident, $subject:expr) => {
        mod $module {
            #[test]
            fn random_operations_match_a_map() {
                let cases = $subject.ci_cases(150_000);
                let budget = $crate::totals::Budget::cases(cases).workers(2);
                $crate::model::run(&$subject, 0, budget).must_hold(cases);
            }

            #[test]
            fn random_operations_match_a_map_on_the_real_disk() {
                use $crate::fixture::{DiskKind, TestSetting};
                for seed in 0..4 {
                    let setting = TestSetting::new(DiskKind::Real, seed % 2 == 0, true);
                    let engine = $subject.name;
                    $crate::model::ModelCase { engine, flaw: None, setting, seed, steps: 800 }.must_hold();
                }
            }
        }
    };
}
