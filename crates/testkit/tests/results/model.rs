//! Engines agree with a sorted map for any sequence of operations.

use sheaf_testkit::fixture::{DiskKind, TestSetting, TestSubject};
use sheaf_testkit::model::ModelCase;
use sheaf_testkit::reference_engine::EngineFlaw;

const TINY: TestSetting = TestSetting::new(DiskKind::Simulated, true, true);
const NORMAL: TestSetting = TestSetting::new(DiskKind::Simulated, false, true);

fn case(engine: &'static str, setting: TestSetting, seed: u64, steps: usize) -> ModelCase {
    ModelCase { engine, flaw: None, setting, seed, steps }
}

const SIMULATED: &[TestSetting] = &[TINY, TINY, TINY, NORMAL];

sheaf_testkit::every_engine!(model_suite);

#[test]
fn flat_plain_agrees_with_a_map_on_the_simulated_disk() {
    let budget = sheaf_testkit::totals::Budget::cases(100_000).workers(2);
    sheaf_testkit::model::run(&TestSubject::flat_plain(), 0, budget).must_hold(100_000);
}

/// Sequences contain kills: the next opening finds the bytes that were stored through mappings.
#[test]
fn flat_in_persistent_memory_agrees_with_a_map() {
    for seed in 0..12 {
        let setting = TestSetting::new(DiskKind::Real, seed % 3 != 2, true);
        case(TestSubject::flat_persistent().name, setting, seed, 1200).must_hold();
    }
}

#[test]
fn engines_and_geometries_agree_on_the_same_trace() {
    for seed in 1000..1003 {
        case("flat", TINY, seed, 1500).check_all_engines().unwrap();
        case("flex", TINY, seed, 1500).check_all_engines().unwrap();
        case("cedrus", TINY, seed, 1500).check_all_engines().unwrap();
        case("kreon", TINY, seed, 1500).check_all_engines().unwrap();
        case("delsm", TINY, seed, 1500).check_all_engines().unwrap();
    }
}

#[test]
fn a_seed_determines_the_run() {
    for subject in TestSubject::all() {
        let case = case(subject.name, TINY, 77, 1500);
        assert_eq!(case.must_hold(), case.must_hold());
        let again: ModelCase = case.to_string().parse().unwrap();
        assert_eq!(again.to_string(), case.to_string());
    }
}

/// Each deliberate bug must be found within the budget of the test above, and shrunk to a sequence
/// that is short enough to read.
#[test]
fn every_flaw_of_the_reference_engine_is_found_and_shrunk() {
    let mut report = Vec::new();
    for flaw in EngineFlaw::ALL {
        let found = (0..60).zip(SIMULATED.iter().cycle()).find_map(|(seed, setting)| {
            let case = ModelCase {
                engine: sheaf_testkit::reference_engine::NAME,
                flaw: Some(flaw),
                setting: *setting,
                seed,
                steps: 2000,
            };
            let failure = case.check().err()?;
            Some((seed, case.shrink(&failure)))
        });
        report.push((flaw, found));
    }
    for (flaw, found) in report {
        let (seed, (steps, failure)) = found.unwrap_or_else(|| panic!("{flaw:?} is not found"));
        println!("{flaw:?}: seed {seed}, {} steps: {}", steps.len(), failure.reason);
        assert!(steps.len() <= 20, "{flaw:?} takes {} steps: {steps:#?}", steps.len());
    }
}

/// Replays a line that a failure prints: `SHEAF_MODEL='flat sim-tiny-inline 17 2000'`.
#[test]
#[ignore = "replays one line"]
fn replay() {
    let line = std::env::var("SHEAF_MODEL").expect("SHEAF_MODEL holds the line");
    let case = line.parse::<ModelCase>().unwrap();
    case.must_hold();
    case.check_all_engines().unwrap();
}
