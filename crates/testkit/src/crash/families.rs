//! # Workload families of a campaign
//!
//! ```text
//!  short     every workload of up to three steps out of 16, on an empty database
//!  loaded    the same after a prelude that leaves dead segments and a checkpoint due: GC runs
//!  plain, busy, large, drops, torn, sorted, moving, expiring     random, by seed, without end
//!  creation  the creation of a database
//! ```
//!
//! A short workload is crashed during its last step only. Its first steps are the whole of a
//! shorter workload, which was explored before. The family is therefore complete without exploring
//! any step sequence twice.

#![allow(clippy::cast_possible_truncation)] // numbers here are small by construction

use std::sync::atomic::{AtomicU64, Ordering};

use sheaf_platform::sync::Mutex;

use super::explore::{ExplorePlan, ExploreReport, explore};
use super::replay::{replay_command, shrink};
use super::workload::{CrashStep, WorkloadShape, generate, parse_steps};
use crate::fixture::TestSubject;
use crate::totals::{Budget, HarnessFailure, Stopwatch, Totals};

/// Steps of short workloads: three keys, three keyspaces, and all calls of the basic API.
const SHORT_STEPS: &str = "0.2=40 0.3=300 0.2- 0.3- 2.0=0 B[0.2=30,2.3=600,0.3=9] S[0.3=20,2.3=9] S[0.2-,1.2=1500] \
     persist tick work clear0 drop0 drop2 reopen abandon";

/// Number of short workloads: 16 + 16² + 16³.
const SHORT_WORKLOADS: usize = 4368;
/// Bytes of large values. In tiny geometry a value above 1 KiB is large, and one above 16 KiB gets
/// a file of its own.
const LARGE_VALUE_BYTES: u32 = 3_000;
/// Slices into which the short workloads are divided.
pub const SHORT_SLICES: usize = 64;

/// Family of workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // see the module
pub enum WorkloadFamily {
    Creation,
    Short,
    Loaded,
    Plain,
    Busy,
    Large,
    Drops,
    Torn,
    Sorted,
    Moving,
    Expiring,
}

impl WorkloadFamily {
    /// All families.
    pub const ALL: [WorkloadFamily; 11] = [
        WorkloadFamily::Creation,
        WorkloadFamily::Short,
        WorkloadFamily::Loaded,
        WorkloadFamily::Plain,
        WorkloadFamily::Busy,
        WorkloadFamily::Large,
        WorkloadFamily::Drops,
        WorkloadFamily::Torn,
        WorkloadFamily::Sorted,
        WorkloadFamily::Moving,
        WorkloadFamily::Expiring,
    ];

    /// Share of a budget, in percent.
    fn budget_percent(self) -> u64 {
        match self {
            WorkloadFamily::Creation => 2,
            WorkloadFamily::Short => 19,
            WorkloadFamily::Loaded => 17,
            WorkloadFamily::Busy | WorkloadFamily::Torn => 10,
            WorkloadFamily::Plain | WorkloadFamily::Large | WorkloadFamily::Drops => 8,
            WorkloadFamily::Sorted | WorkloadFamily::Moving | WorkloadFamily::Expiring => 6,
        }
    }

    /// Returns the number of workloads over which a budget of cases is spread. For the short ones,
    /// this is the number of workloads of up to two steps.
    fn workload_count(self) -> u64 {
        match self {
            WorkloadFamily::Creation => 1,
            WorkloadFamily::Short | WorkloadFamily::Loaded => 272,
            WorkloadFamily::Plain
            | WorkloadFamily::Busy
            | WorkloadFamily::Large
            | WorkloadFamily::Drops
            | WorkloadFamily::Torn
            | WorkloadFamily::Sorted
            | WorkloadFamily::Expiring => 8,
            WorkloadFamily::Moving => 24,
        }
    }

    fn is_short(self) -> bool {
        matches!(self, WorkloadFamily::Short | WorkloadFamily::Loaded)
    }

    fn plan(self, subject: &TestSubject) -> ExplorePlan {
        let plan = ExplorePlan { subject: subject.clone(), ..ExplorePlan::default() };
        match self {
            WorkloadFamily::Creation => {
                ExplorePlan { includes_creation: true, second_crash_rate: 10, ..plan }
            }
            WorkloadFamily::Short | WorkloadFamily::Loaded => {
                ExplorePlan { exhaustive_units: 10, second_crash_rate: 100, ..plan }
            }
            WorkloadFamily::Plain
            | WorkloadFamily::Busy
            | WorkloadFamily::Large
            | WorkloadFamily::Drops
            | WorkloadFamily::Sorted => plan,
            WorkloadFamily::Moving => ExplorePlan { second_crash_rate: 10, ..plan },
            WorkloadFamily::Expiring => ExplorePlan { second_crash_rate: 100, ..plan },
            WorkloadFamily::Torn => ExplorePlan { tears_sectors: true, exhaustive_units: 6, ..plan },
        }
    }

    /// Returns the workloads, each with the first step in which it is crashed.
    fn workloads(
        self,
        subject: &TestSubject,
        seed: u64,
    ) -> Box<dyn Iterator<Item = (Vec<CrashStep>, usize)> + Send> {
        let shape = match self {
            WorkloadFamily::Creation => {
                let steps = parse_steps("S[0.2=9]").expect("written by hand");
                return Box::new(std::iter::once((steps, 0)));
            }
            WorkloadFamily::Short => return Box::new(short_workloads(Vec::new())),
            WorkloadFamily::Loaded => return Box::new(short_workloads(prelude())),
            WorkloadFamily::Plain => WorkloadShape::default(),
            WorkloadFamily::Busy => WorkloadShape {
                steps: 80,
                keys: 5,
                has_background_work: true,
                large: 1_900,
                ..WorkloadShape::default()
            },
            WorkloadFamily::Large => {
                WorkloadShape { large: LARGE_VALUE_BYTES, steps: 25, ..WorkloadShape::default() }
            }
            WorkloadFamily::Drops => WorkloadShape { steps: 30, has_drops: true, ..WorkloadShape::default() },
            WorkloadFamily::Torn => WorkloadShape {
                steps: 40,
                has_background_work: true,
                has_drops: true,
                large: 1_900,
                ..WorkloadShape::default()
            },
            WorkloadFamily::Moving => WorkloadShape {
                steps: 12,
                has_background_work: true,
                has_loads_and_conversions: true,
                large: 1_900,
                ..WorkloadShape::default()
            },
            WorkloadFamily::Expiring => WorkloadShape {
                steps: 16,
                keys: 6,
                has_background_work: true,
                has_drops: true,
                has_expiry: true,
                large: 1_900,
                ..WorkloadShape::default()
            },
            WorkloadFamily::Sorted => WorkloadShape {
                steps: 50,
                has_background_work: true,
                has_compactions: true,
                ..WorkloadShape::default()
            },
        };
        let spaces = subject.engines().len() as u64;
        let shape = WorkloadShape { spaces, has_renames_and_merges: true, ..shape };
        let first = seed.wrapping_add((self as u64) << 32);
        Box::new((0..).map(move |number| {
            // Some of the values do not fit a chunk file.
            let is_huge = shape.large == LARGE_VALUE_BYTES && number % 4 == 3;
            let shape = if is_huge { WorkloadShape { large: 6 * LARGE_VALUE_BYTES, ..shape } } else { shape };
            // A conversion has as many crash points as the rest of its workload.
            let has_loads_and_conversions =
                shape.has_loads_and_conversions || (shape.has_expiry && number % 4 == 3);
            let shape = WorkloadShape { has_loads_and_conversions, ..shape };
            // The first half of a workload with expiry only writes pairs for the second half.
            let first_step = if shape.has_expiry { shape.steps / 2 } else { 0 };
            (generate(first.wrapping_add(number), &shape), first_step)
        }))
    }
}

/// Returns every workload of one, two and three steps after `prelude`.
fn short_workloads(prelude: Vec<CrashStep>) -> impl Iterator<Item = (Vec<CrashStep>, usize)> {
    let alphabet = parse_steps(SHORT_STEPS).expect("written by hand");
    let count = alphabet.len();
    (1..=3u32).flat_map(move |len| {
        let (alphabet, prelude) = (alphabet.clone(), prelude.clone());
        (0..count.pow(len)).map(move |number| {
            let digit = |place: u32| alphabet[number / count.pow(place) % count].clone();
            let steps: Vec<CrashStep> = prelude.iter().cloned().chain((0..len).rev().map(digit)).collect();
            let last = steps.len() - 1;
            (steps, last)
        })
    })
}

/// Returns overwrites that fill segments with dead entries, and a log long enough for a checkpoint.
fn prelude() -> Vec<CrashStep> {
    let churn = "B[0.2=250,0.3=250,2.2=250] B[0.2=240,1.4=90,2.3=250] ".repeat(24);
    parse_steps(&format!("0.4=60 2.4=60 {churn} persist")).expect("written by hand")
}

/// Explores all families, each for its share of the budget.
#[must_use]
pub fn run(subject: &TestSubject, seed: u64, budget: Budget) -> Totals {
    let mut totals = Totals::new("crash states", subject.name);
    for family in WorkloadFamily::ALL {
        let part = Budget {
            seconds: budget.seconds * family.budget_percent() as f64 / 100.0,
            cases: budget.cases.saturating_mul(family.budget_percent()) / 100,
            ..budget
        };
        // Each seed starts at another slice: one run cannot explore all short workloads.
        let first =
            if family.is_short() { seed as usize % SHORT_SLICES * SHORT_WORKLOADS / SHORT_SLICES } else { 0 };
        totals.add(run_slice(family, (first, 1), subject, seed, part));
    }
    totals
}

/// Explores one slice of the short workloads of `family`, [`WorkloadFamily::Short`] or
/// [`WorkloadFamily::Loaded`], completely. The slice is `seed` modulo [`SHORT_SLICES`]. All slices
/// together are the whole family.
#[must_use]
pub fn run_short(family: WorkloadFamily, subject: &TestSubject, seed: u64, budget: Budget) -> Totals {
    let budget = Budget { seconds: f64::INFINITY, cases: u64::MAX, ..budget };
    run_slice(family, (seed as usize % SHORT_SLICES, SHORT_SLICES), subject, seed, budget)
}

/// Explores one family until the budget is spent, the family ends, or a check fails.
#[must_use]
pub fn run_family(family: WorkloadFamily, subject: &TestSubject, seed: u64, budget: Budget) -> Totals {
    run_slice(family, (0, 1), subject, seed, budget)
}

/// Like [`run_family`], but explores only every `slice.1`-th workload from number `slice.0` on. A
/// family of millions of states can thus be explored slice by slice.
#[must_use]
pub fn run_slice(
    family: WorkloadFamily,
    slice: (usize, usize),
    subject: &TestSubject,
    seed: u64,
    budget: Budget,
) -> Totals {
    let hunt = FamilyRun {
        plan: family.plan(subject),
        workloads: Mutex::new(Box::new(family.workloads(subject, seed).skip(slice.0).step_by(slice.1))),
        states_per_workload: (budget.cases < u64::MAX)
            .then(|| budget.cases.div_ceil(family.workload_count())),
        budget,
        stopwatch: Stopwatch::start(),
        spent: AtomicU64::new(0),
        total: Mutex::default(),
    };
    std::thread::scope(|scope| {
        for _ in 1..budget.workers {
            scope.spawn(|| hunt.run_worker());
        }
        hunt.run_worker();
    });
    let seconds = hunt.stopwatch.seconds();
    let mut report = hunt.total.into_inner();
    let failures = report.failure.take().map(|found| {
        let small = shrink(
            found,
            &ExplorePlan { second_crash_rate: hunt.plan.second_crash_rate.min(4), ..hunt.plan.clone() },
            20.0,
        );
        HarnessFailure {
            replay: replay_command(&small.replay_line()),
            message: format!("{family:?}: {}", small.mismatch),
        }
    });
    println!("{family:?} on {}: {report}", subject.name);
    Totals {
        cases: report.states,
        distinct: report.images,
        seconds,
        failures: failures.into_iter().collect(),
        ..Totals::new(&format!("crash states, {family:?}"), subject.name)
    }
}

/// State shared by the workers of one family.
struct FamilyRun {
    plan: ExplorePlan,
    workloads: Mutex<Box<dyn Iterator<Item = (Vec<CrashStep>, usize)> + Send>>,
    /// Maximum number of states per workload, if the budget counts cases.
    states_per_workload: Option<u64>,
    budget: Budget,
    stopwatch: Stopwatch,
    spent: AtomicU64,
    total: Mutex<ExploreReport>,
}

impl FamilyRun {
    fn run_worker(&self) {
        loop {
            let seconds = self.budget.seconds - self.stopwatch.seconds();
            let states = self.budget.cases.saturating_sub(self.spent.load(Ordering::Relaxed));
            if seconds <= 0.0 || states == 0 || self.total.lock().failure.is_some() {
                return;
            }
            let Some((steps, from_step)) = self.workloads.lock().next() else {
                return;
            };
            let states = states.min(self.states_per_workload.unwrap_or(u64::MAX));
            let second_states = self.states_per_workload.map_or(u64::MAX, |each| each.div_ceil(4));
            let plan = ExplorePlan {
                first_step: from_step,
                max_seconds: seconds,
                max_states: states,
                second_crash_states: second_states,
                ..self.plan.clone()
            };
            let report = explore(&steps, &plan);
            self.spent.fetch_add(report.states, Ordering::Relaxed);
            self.total.lock().add(report);
        }
    }
}

/// Generates the crash explorer's tests for one engine: `crash_suite!(flat, TestSubject::flat())`.
#[macro_export]
macro_rules! crash_suite {
    ($module:ident, $subject:expr) => {
        mod $module {
            use super::*;
            use $crate::crash::families::{WorkloadFamily, run_family};
            use $crate::totals::Budget;

            fn holds(family: WorkloadFamily, cases: u64, at_least: u64) {
                let subject = $subject;
                let budget = Budget::cases(subject.ci_cases(cases));
                run_family(family, &subject, 1, budget).must_hold(subject.ci_cases(at_least));
            }

            #[test]
            fn a_crash_during_creation_leaves_a_valid_database_or_none() {
                holds(WorkloadFamily::Creation, 2_000, 1_000);
            }

            #[test]
            fn every_short_workload_survives_every_power_cut_also_in_recovery() {
                holds(WorkloadFamily::Short, 5_000, 5_000);
            }

            #[test]
            fn cleaning_and_checkpoints_survive_every_power_cut() {
                holds(WorkloadFamily::Loaded, 2_000, 2_000);
            }

            #[test]
            fn acknowledged_commits_survive_power_cuts_as_a_prefix() {
                holds(WorkloadFamily::Plain, 2_000, 2_000);
            }

            #[test]
            fn cleaning_and_checkpoints_lose_nothing_and_bring_nothing_back() {
                holds(WorkloadFamily::Busy, 1_500, 1_500);
            }

            #[test]
            fn large_values_are_complete_or_absent() {
                holds(WorkloadFamily::Large, 2_000, 2_000);
            }

            #[test]
            fn power_cuts_during_keyspace_creation_and_drop_lose_nothing() {
                holds(WorkloadFamily::Drops, 2_000, 2_000);
            }

            #[test]
            fn torn_sectors_odd_lengths_and_garbage_are_no_commits() {
                holds(WorkloadFamily::Torn, 1_500, 1_500);
            }

            #[test]
            fn a_crash_in_a_load_or_a_conversion_leaves_the_old_keyspace_or_the_new_one() {
                holds(WorkloadFamily::Moving, 2_000, 2_000);
            }

            #[test]
            fn expired_pairs_stay_away_and_no_other_pair_is_lost() {
                holds(WorkloadFamily::Expiring, 2_000, 2_000);
            }

            #[test]
            fn a_compacted_keyspace_survives_every_power_cut() {
                let cases = if $subject.is_sorted_by_compaction() { 2_000 } else { 1_000 };
                holds(WorkloadFamily::Sorted, cases, cases);
            }
        }
    };
}
