//! # Families: the workloads that a campaign explores
//!
//! ```text
//!  short     every workload of up to three steps out of 16, on an empty database
//!  loaded    the same after a prelude that leaves dead segments and a checkpoint due: cleaning happens
//!  plain, busy, large, drops, torn, sorted, moving     random ones, by seeds, without end
//!  creation  a database in the making
//! ```
//!
//! A short workload is crashed during its last step only: its first steps are the whole of a shorter one,
//! which was explored before. So all of them together are complete, and none is looked at twice.

#![allow(clippy::cast_possible_truncation)] // numbers here are small by construction

use std::sync::atomic::{AtomicU64, Ordering};

use sheaf_base::sync::Mutex;

use super::explore::{Plan, Report, explore};
use super::replay::{command, shrink};
use super::workload::{Shape, Step, generate, parse};
use crate::stage::Subject;
use crate::totals::{Budget, Failure, Stopwatch, Totals};

/// What every short workload is made of: two keys, two keyspaces, all that a caller can ask for.
const ALPHABET: &str = "0.2=40 0.3=300 0.2- 0.3- 2.0=0 B[0.2=30,2.3=600,0.3=9] S[0.3=20,2.3=9] S[0.2-,1.2=1500] \
     persist tick work clear0 drop0 drop2 reopen abandon";

/// How many short workloads there are: 16 + 16² + 16³.
const SHORT: usize = 4368;
/// Bytes of large values in a geometry where more than 1 KiB is large, and more than 16 KiB gets a file.
const LARGE: u32 = 3_000;
/// In how many slices the short workloads are explored.
pub const SLICES: usize = 64;

/// A kind of workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // see the module
pub enum Family {
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
}

impl Family {
    /// All of them.
    pub const ALL: [Family; 10] = [
        Family::Creation,
        Family::Short,
        Family::Loaded,
        Family::Plain,
        Family::Busy,
        Family::Large,
        Family::Drops,
        Family::Torn,
        Family::Sorted,
        Family::Moving,
    ];

    /// Its part of a budget, in percent.
    fn share(self) -> u64 {
        match self {
            Family::Creation => 2,
            Family::Short => 22,
            Family::Loaded => 20,
            Family::Busy | Family::Torn => 10,
            Family::Plain | Family::Large | Family::Drops => 8,
            Family::Sorted | Family::Moving => 6,
        }
    }

    /// Over how many workloads a budget of cases is to be spread: of the short ones, those of two steps.
    fn breadth(self) -> u64 {
        match self {
            Family::Creation => 1,
            Family::Short | Family::Loaded => 272,
            Family::Plain | Family::Busy | Family::Large | Family::Drops | Family::Torn | Family::Sorted => 8,
            Family::Moving => 24,
        }
    }

    fn is_short(self) -> bool {
        matches!(self, Family::Short | Family::Loaded)
    }

    fn plan(self, subject: &Subject) -> Plan {
        let plan = Plan { subject: subject.clone(), ..Plan::default() };
        match self {
            Family::Creation => Plan { creation: true, second: 10, ..plan },
            Family::Short | Family::Loaded => Plan { exhaustive: 10, second: 100, ..plan },
            Family::Plain | Family::Busy | Family::Large | Family::Drops | Family::Sorted => plan,
            Family::Moving => Plan { second: 10, ..plan },
            Family::Torn => Plan { paranoid: true, exhaustive: 6, ..plan },
        }
    }

    /// The workloads, each with the step from which on it is crashed.
    fn workloads(self, subject: &Subject, seed: u64) -> Box<dyn Iterator<Item = (Vec<Step>, usize)> + Send> {
        let shape = match self {
            Family::Creation => {
                let steps = parse("S[0.2=9]").expect("written by hand");
                return Box::new(std::iter::once((steps, 0)));
            }
            Family::Short => return Box::new(short_workloads(Vec::new())),
            Family::Loaded => return Box::new(short_workloads(prelude())),
            Family::Plain => Shape::default(),
            Family::Busy => Shape { steps: 80, keys: 5, busy: true, large: 1_900, ..Shape::default() },
            Family::Large => Shape { large: LARGE, steps: 25, ..Shape::default() },
            Family::Drops => Shape { steps: 30, drops: true, ..Shape::default() },
            Family::Torn => Shape { steps: 40, busy: true, drops: true, large: 1_900, ..Shape::default() },
            Family::Moving => Shape { steps: 12, busy: true, moves: true, large: 1_900, ..Shape::default() },
            Family::Sorted => Shape { steps: 50, busy: true, compacts: true, ..Shape::default() },
        };
        let shape = Shape { spaces: subject.engines().len() as u64, ..shape };
        let first = seed.wrapping_add((self as u64) << 32);
        Box::new((0..).map(move |number| {
            // Some of the values that do not fit a chunk.
            let is_huge = shape.large == LARGE && number % 4 == 3;
            let shape = if is_huge { Shape { large: 6 * LARGE, ..shape } } else { shape };
            (generate(first.wrapping_add(number), &shape), 0)
        }))
    }
}

/// Every workload of one, two and three steps after `prelude`.
fn short_workloads(prelude: Vec<Step>) -> impl Iterator<Item = (Vec<Step>, usize)> {
    let alphabet = parse(ALPHABET).expect("written by hand");
    let count = alphabet.len();
    (1..=3u32).flat_map(move |len| {
        let (alphabet, prelude) = (alphabet.clone(), prelude.clone());
        (0..count.pow(len)).map(move |number| {
            let digit = |place: u32| alphabet[number / count.pow(place) % count].clone();
            let steps: Vec<Step> = prelude.iter().cloned().chain((0..len).rev().map(digit)).collect();
            let last = steps.len() - 1;
            (steps, last)
        })
    })
}

/// Overwrites that fill segments with what is dead, and a log long enough for a checkpoint.
fn prelude() -> Vec<Step> {
    let churn = "B[0.2=250,0.3=250,2.2=250] B[0.2=240,1.4=90,2.3=250] ".repeat(24);
    parse(&format!("0.4=60 2.4=60 {churn} persist")).expect("written by hand")
}

/// Explores all families, each for its part of the budget.
#[must_use]
pub fn run(subject: &Subject, seed: u64, budget: Budget) -> Totals {
    let mut totals = Totals::new("crash states", subject.name);
    for family in Family::ALL {
        let part = Budget {
            seconds: budget.seconds * family.share() as f64 / 100.0,
            cases: budget.cases.saturating_mul(family.share()) / 100,
            ..budget
        };
        // Turn after turn from another place on: there are more short workloads than one turn can look at.
        let first = if family.is_short() { seed as usize % SLICES * SHORT / SLICES } else { 0 };
        totals.add(run_slice(family, (first, 1), subject, seed, part));
    }
    totals
}

/// Explores one slice of the short workloads of a `family`, [`Family::Short`] or [`Family::Loaded`], to its end: those that `seed`
/// modulo [`SLICES`] names. All slices together are all of them.
#[must_use]
pub fn run_short(family: Family, subject: &Subject, seed: u64, budget: Budget) -> Totals {
    let budget = Budget { seconds: f64::INFINITY, cases: u64::MAX, ..budget };
    run_slice(family, (seed as usize % SLICES, SLICES), subject, seed, budget)
}

/// Explores one family until the budget is spent, the family is through, or something goes wrong.
#[must_use]
pub fn run_family(family: Family, subject: &Subject, seed: u64, budget: Budget) -> Totals {
    run_slice(family, (0, 1), subject, seed, budget)
}

/// As [`run_family`], of the family's workloads only each `slice.1`-th from number `slice.0` on: a family
/// of millions of states is explored slice by slice.
#[must_use]
pub fn run_slice(
    family: Family,
    slice: (usize, usize),
    subject: &Subject,
    seed: u64,
    budget: Budget,
) -> Totals {
    let hunt = Hunt {
        plan: family.plan(subject),
        workloads: Mutex::new(Box::new(family.workloads(subject, seed).skip(slice.0).step_by(slice.1))),
        each: (budget.cases < u64::MAX).then(|| budget.cases.div_ceil(family.breadth())),
        budget,
        watch: Stopwatch::start(),
        spent: AtomicU64::new(0),
        total: Mutex::default(),
    };
    std::thread::scope(|scope| {
        for _ in 1..budget.workers {
            scope.spawn(|| hunt.work());
        }
        hunt.work();
    });
    let seconds = hunt.watch.seconds();
    let mut report = hunt.total.into_inner();
    let failures = report.failure.take().map(|found| {
        let small = shrink(found, &Plan { second: hunt.plan.second.min(4), ..hunt.plan.clone() }, 20.0);
        Failure { replay: command(&small.line()), what: format!("{family:?}: {}", small.what) }
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

/// Workers over the same workloads.
struct Hunt {
    plan: Plan,
    workloads: Mutex<Box<dyn Iterator<Item = (Vec<Step>, usize)> + Send>>,
    /// States of one workload at most, if the budget counts them.
    each: Option<u64>,
    budget: Budget,
    watch: Stopwatch,
    spent: AtomicU64,
    total: Mutex<Report>,
}

impl Hunt {
    fn work(&self) {
        loop {
            let seconds = self.budget.seconds - self.watch.seconds();
            let states = self.budget.cases.saturating_sub(self.spent.load(Ordering::Relaxed));
            if seconds <= 0.0 || states == 0 || self.total.lock().failure.is_some() {
                return;
            }
            let Some((steps, from_step)) = self.workloads.lock().next() else {
                return;
            };
            let states = states.min(self.each.unwrap_or(u64::MAX));
            let second_states = self.each.map_or(u64::MAX, |each| each.div_ceil(4));
            let plan = Plan { from_step, seconds, states, second_states, ..self.plan.clone() };
            let report = explore(&steps, &plan);
            self.spent.fetch_add(report.states, Ordering::Relaxed);
            self.total.lock().add(report);
        }
    }
}

/// The crash explorer's tests for one engine: `crash_suite!(flat, Subject::flat())`.
#[macro_export]
macro_rules! crash_suite {
    ($module:ident, $subject:expr) => {
        mod $module {
            use super::*;
            use $crate::crash::families::{Family, run_family};
            use $crate::totals::Budget;

            fn holds(family: Family, cases: u64, at_least: u64) {
                let subject = $subject;
                let budget = Budget::cases(subject.in_ci(cases));
                run_family(family, &subject, 1, budget).must_hold(subject.in_ci(at_least));
            }

            #[test]
            fn a_crash_while_a_database_is_made_leaves_one_or_none() {
                holds(Family::Creation, 3_000, 1_000);
            }

            #[test]
            fn every_short_workload_survives_every_power_cut_also_in_recovery() {
                holds(Family::Short, 16_000, 16_000);
            }

            #[test]
            fn cleaning_and_checkpoints_survive_every_power_cut() {
                holds(Family::Loaded, 10_000, 10_000);
            }

            #[test]
            fn acknowledged_commits_survive_power_cuts_as_a_prefix() {
                holds(Family::Plain, 6_000, 6_000);
            }

            #[test]
            fn cleaning_and_checkpoints_lose_nothing_and_bring_nothing_back() {
                holds(Family::Busy, 7_000, 7_000);
            }

            #[test]
            fn large_values_are_there_whole_or_not_at_all() {
                holds(Family::Large, 6_000, 6_000);
            }

            #[test]
            fn power_cuts_while_keyspaces_come_and_go_lose_nothing() {
                holds(Family::Drops, 6_000, 6_000);
            }

            #[test]
            fn torn_sectors_odd_lengths_and_garbage_are_no_commits() {
                holds(Family::Torn, 7_000, 7_000);
            }

            #[test]
            fn a_crash_in_a_load_or_a_conversion_leaves_the_old_keyspace_or_the_new_one() {
                holds(Family::Moving, 6_000, 6_000);
            }

            #[test]
            fn a_compacted_keyspace_survives_every_power_cut() {
                let cases = if $subject.is_sorted_by_compaction() { 4_000 } else { 2_000 };
                holds(Family::Sorted, cases, cases);
            }
        }
    };
}
