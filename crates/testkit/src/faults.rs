//! # Fault harness: the n-th disk call fails, for every n
//!
//! A workload runs many times, and each time another disk call fails: only that call, all later
//! calls of its kind too, or all later calls, as after the loss of the device. Each failure must
//! reach the caller as an error of the right kind. A refused write must have no effect. Reads
//! return correct data or an error. A poisoned database accepts no write until it is reopened. Then
//! all handles are dropped and the database is opened without faults: once as after a kill and
//! twice after a power cut. It must keep its promises, accept a commit, and be the same after
//! another opening.
//!
//! ## Blind spots
//!
//! - A power cut after a failed directory sync and a reopening in the same boot. The kernel shows
//!   names that are not on the device, and no call can save them.
//! - Two different failures in one run.
//! - Failures of mapped memory.
//! - Interleavings of threads.
//! - Short and interrupted transfers: the real disk continues them (its own tests check that), and
//!   fails like `NoProgress` or `Torn` here if that makes no progress.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use sheaf::Error;
use sheaf_platform::clock::UnixMillis;
use sheaf_platform::sync::Mutex;
use sheaf_sim::{AfterFailedSync, CallClass, Fault, FaultKind, FaultPlan, KeepChoice, SimDisk};

use crate::crash::check::{AfterRecovery, ExpectedPrefix, check};
use crate::crash::history::{CommitHistory, ExpectedState};
use crate::crash::machine::TestMachine;
use crate::crash::run::WorkloadRun;
use crate::crash::workload::{CrashStep, TestRandom, WorkloadShape, format_steps, generate};
use crate::fixture::TestSubject;
use crate::recording_disk::DiskDefect;
use crate::supervise::run_supervised;
use crate::totals::{self, Budget, Stopwatch, Totals};

/// Kinds of failures: EIO, ENOSPC, EDQUOT, EMFILE, EINTR, EAGAIN, a short transfer, no transfer.
pub const FAILURES: [FaultKind; 8] = [
    FaultKind::Io,
    FaultKind::NoSpace,
    FaultKind::Quota,
    FaultKind::TooManyOpen,
    FaultKind::Interrupted,
    FaultKind::Again,
    FaultKind::Torn { sectors: 1 },
    FaultKind::NoProgress,
];

/// A run ends after this number of consecutive failed openings.
const MAX_FAILED_OPENS: u32 = 12;

/// Calls that fail after the first failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultReach {
    /// None.
    Once,
    /// Every call of the same kind.
    Kind,
    /// Every call.
    All,
}

impl FaultReach {
    const ALL: [FaultReach; 3] = [FaultReach::Once, FaultReach::Kind, FaultReach::All];
}

/// A fault in a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultCase {
    /// Kind of the call that fails first.
    pub class: CallClass,
    /// Number of that call in the run, from 1.
    pub nth: u64,
    /// Number of that call among those of its kind.
    pub nth_of_kind: u64,
    /// Calls that fail after it.
    pub reach: FaultReach,
    /// Kind of the failure.
    pub failure: FaultKind,
    /// Content that reads return after a failed sync.
    pub read_after_failed_sync: AfterFailedSync,
}

impl FaultCase {
    fn fault(&self) -> Fault {
        let of_kind = Fault::new(self.class, self.failure).nth(self.nth_of_kind);
        match self.reach {
            FaultReach::Once => of_kind,
            FaultReach::Kind => of_kind.forever(),
            FaultReach::All => Fault::new(CallClass::Any, self.failure).nth(self.nth).forever(),
        }
    }

    /// Whether a call of `class` can fail.
    fn can_fail(&self, class: CallClass) -> bool {
        self.reach == FaultReach::All || self.class == class
    }
}

impl fmt::Display for FaultCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FaultCase { class, nth, reach, failure, read_after_failed_sync: after, .. } = self;
        write!(f, "call {nth} ({class:?}) fails as {failure:?}, {reach:?}, {after:?}")
    }
}

/// Figures of a run of the harness.
#[derive(Clone, Debug, Default)]
pub struct FaultReport {
    /// Disk calls of the workload without faults.
    pub calls: u64,
    /// Runs in which a fault was injected.
    pub runs: u64,
    /// Runs that ended with a poisoned database.
    pub poisoned: u64,
    /// Runs in which only background work got the error.
    pub background_only: u64,
    /// Duration in seconds.
    pub seconds: f64,
    /// First violations.
    pub failures: Vec<totals::HarnessFailure>,
}

impl fmt::Display for FaultReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FaultReport { calls, runs, poisoned, background_only, seconds, failures } = self;
        let rate = *runs as f64 / seconds.max(1e-9);
        write!(
            f,
            "{calls} calls, {runs} faults struck ({poisoned} poisoned, {background_only} noticed by no caller), \
             {} wrong, {seconds:.1} s, {rate:.0}/s",
            failures.len()
        )
    }
}

/// Result of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultOutcome {
    /// A caller got an error.
    pub is_reported: bool,
    /// Later writes were refused.
    pub is_poisoned: bool,
}

/// Generates the workload of a seed with this number of operations. Every second seed runs much
/// background work, every third compacts, every seventh renames and merges. An opening makes about
/// a hundred calls, so at most one in a hundred steps opens the database.
#[must_use]
pub fn workload(seed: u64, steps: usize) -> Vec<CrashStep> {
    let busy = seed.is_multiple_of(2);
    let compacts = seed.is_multiple_of(3);
    let moves = false;
    let shape = WorkloadShape {
        steps: 2 * steps,
        has_background_work: busy,
        has_drops: true,
        has_compactions: compacts,
        has_loads_and_conversions: moves,
        has_renames_and_merges: seed % 7 == 5,
        large: 1_100,
        len: 100,
        ..WorkloadShape::default()
    };
    let mut due = 0;
    let fits = |(number, step): &(usize, CrashStep)| {
        let opens = matches!(step, CrashStep::Reopen | CrashStep::DropHandles);
        let is_early = opens && *number < due;
        if opens && !is_early {
            due = number + 100;
        }
        !is_early
    };
    generate(seed, &shape).into_iter().enumerate().filter(fits).map(|(_, step)| step).take(steps).collect()
}

/// Injects all faults into random workloads of 300 operations. The budget's `cases` are workloads.
/// Each gets an equal share of the seconds, which covers a random sample of its faults if time is
/// short.
#[must_use]
pub fn run(subject: &TestSubject, seed: u64, budget: Budget) -> Totals {
    let watch = Stopwatch::start();
    let mut totals = Totals::new("error plans", subject.name);
    let each = if budget.cases == u64::MAX { f64::INFINITY } else { budget.seconds / budget.cases as f64 };
    for number in 0..budget.cases {
        let seconds = each.min(budget.seconds - watch.seconds());
        if seconds <= 0.0 || !totals.failures.is_empty() {
            break;
        }
        let report = every_call(subject, seed.wrapping_add(number), 300, Budget { seconds, ..budget });
        println!("error plans of {}, workload {number}: {report}", subject.name);
        totals.cases += report.runs;
        totals.distinct += report.runs;
        totals.failures.extend(report.failures);
    }
    totals.seconds = watch.seconds();
    totals
}

/// Injects all faults at every call of the workload of `seed`, until the seconds are spent.
#[must_use]
pub fn every_call(subject: &TestSubject, seed: u64, steps: usize, budget: Budget) -> FaultReport {
    every_nth_call(subject, seed, steps, 1, budget)
}

/// Like [`every_call`], but only at each `nth` call.
#[must_use]
pub fn every_nth_call(
    subject: &TestSubject,
    seed: u64,
    steps: usize,
    nth: u64,
    budget: Budget,
) -> FaultReport {
    let workload = workload(seed, steps);
    let wanted = |case: &FaultCase| case.nth.is_multiple_of(nth);
    every_case(
        subject,
        &workload,
        wanted,
        DiskDefect::None,
        |case| replay_line(subject, seed, steps, case),
        budget,
    )
}

/// Like [`every_call`], with a given workload, the faults that `wanted` selects, and a disk defect.
/// `replay` returns the replay line of a case.
#[must_use]
pub fn every_case(
    subject: &TestSubject,
    workload: &[CrashStep],
    wanted: impl Fn(&FaultCase) -> bool,
    defect: DiskDefect,
    replay: impl Fn(&FaultCase) -> String + Sync,
    budget: Budget,
) -> FaultReport {
    let watch = Stopwatch::start();
    let mut cases = match cases(subject, workload) {
        Ok(cases) => cases,
        Err(message) => {
            let failures = vec![totals::HarnessFailure { replay: format_steps(workload), message }];
            return FaultReport { failures, ..FaultReport::default() };
        }
    };
    cases.retain(wanted);
    let calls = cases.iter().map(|case| case.nth).max().unwrap_or_default();
    let report = Mutex::new(FaultReport { calls, ..FaultReport::default() });
    let (next, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let work = || {
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            if is_over.load(Ordering::Relaxed) || watch.seconds() > budget.seconds {
                return;
            }
            let result = run_supervised(replay(case), || run_case(subject, workload, *case, defect, false));
            let mut report = report.lock();
            report.runs += u64::from(!matches!(result, Ok(None)));
            match result {
                Ok(None) => {}
                Ok(Some(FaultOutcome { is_reported: noticed, is_poisoned: poisoned })) => {
                    report.poisoned += u64::from(poisoned);
                    report.background_only += u64::from(!noticed);
                }
                Err(what) => {
                    let what = format!("{case}: {what}");
                    report.failures.push(totals::HarnessFailure { replay: replay(case), message: what });
                    is_over.store(report.failures.len() >= 5, Ordering::Relaxed);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        (1..budget.workers).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    let mut report = report.into_inner();
    report.seconds = watch.seconds();
    report
}

fn replay_line(subject: &TestSubject, seed: u64, steps: usize, case: &FaultCase) -> String {
    let kind = FAILURES.iter().position(|kind| *kind == case.failure).unwrap_or_default();
    format!(
        "SHEAF_FAULT='{} {seed} {steps} {} {kind} {:?}' cargo test -p sheaf-testkit --test suites faults::replay_a_fault \
         -- --ignored --nocapture",
        subject.name, case.nth, case.reach
    )
}

/// Runs one fault again and prints its course.
///
/// # Errors
///
/// Returns the violation, or the reason why the line is invalid.
pub fn replay(line: &str) -> Result<(), String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [engine, seed, steps, nth, kind, reach] = words[..] else {
        return Err("a line is engine, seed, steps, call, kind, reach".into());
    };
    let subject = TestSubject::by_name(engine).ok_or("no such engine")?;
    let number = |word: &str| word.parse::<u64>().map_err(|e| format!("{word:?}: {e}"));
    let steps = usize::try_from(number(steps)?).map_err(|e| e.to_string())?;
    let workload = workload(number(seed)?, steps);
    let kind =
        usize::try_from(number(kind)?).ok().and_then(|kind| FAILURES.get(kind)).ok_or("no such kind")?;
    let nth = number(nth)?;
    let cases = cases(&subject, &workload)?;
    let is_it =
        |case: &&FaultCase| case.nth == nth && case.failure == *kind && format!("{:?}", case.reach) == reach;
    let case = cases.iter().find(is_it).ok_or("no such case")?;
    println!("{case}");
    run_case(&subject, &workload, *case, DiskDefect::None, true).map(|struck| println!("{struck:?}"))
}

/// Returns the cases of a workload: every call, with every kind of failure.
fn cases(subject: &TestSubject, workload: &[CrashStep]) -> Result<Vec<FaultCase>, String> {
    let machine = TestMachine::for_subject(subject, SimDisk::new());
    machine.sim.log_classes(true);
    let mut run = WorkloadRun::new(machine.clone());
    run.run_steps(workload).map_err(|e| format!("without any fault: {e}"))?;
    run.drop_handles();
    let mut counts: HashMap<String, u64> = HashMap::new();
    let mut cases = Vec::new();
    for (nth, class) in (1..).zip(machine.sim.class_log()) {
        let nth_of_kind = counts.entry(format!("{class:?}")).or_default();
        *nth_of_kind += 1;
        let after = if nth % 2 == 0 { AfterFailedSync::ShowsOld } else { AfterFailedSync::ShowsNew };
        for failure in FAILURES {
            let case = |reach| FaultCase {
                class,
                nth,
                nth_of_kind: *nth_of_kind,
                reach,
                failure,
                read_after_failed_sync: after,
            };
            let reaches = FaultReach::ALL.into_iter().filter(|reach| is_distinct(class, failure, *reach));
            cases.extend(reaches.map(case));
        }
    }
    TestRandom::new(cases.len() as u64).shuffle(&mut cases);
    Ok(cases)
}

/// Whether a failure of this kind and reach differs from others in the list: a call without a
/// transfer cannot have a short one, and a lost device always returns EIO.
fn is_distinct(class: CallClass, failure: FaultKind, reach: FaultReach) -> bool {
    let can_transfer = match failure {
        FaultKind::Torn { .. } => class == CallClass::Write,
        FaultKind::NoProgress => matches!(class, CallClass::Read | CallClass::Write),
        _ => true,
    };
    can_transfer && (reach != FaultReach::All || failure == FaultKind::Io)
}

/// Runs `steps` with one fault and checks everything. Returns `None` if the run ended before the
/// call that was to fail.
///
/// # Errors
///
/// Returns a description of the first violation.
pub fn run_case(
    subject: &TestSubject,
    steps: &[CrashStep],
    case: FaultCase,
    defect: DiskDefect,
    tells_story: bool,
) -> Result<Option<FaultOutcome>, String> {
    let machine = TestMachine::for_subject(subject, SimDisk::new());
    machine.sim.set_after_failed_sync(case.read_after_failed_sync);
    machine.recording_disk.set_call_limit(3_000_000);
    machine.recording_disk.set_defect(defect);
    machine.sim.set_faults(case.fault());
    let mut run = WorkloadRun::new(machine.clone());
    let mut watch = FaultTracker { case, is_poisoned: false, is_reported: false, reopen_failed: false };
    let mut refused = 0;
    for (number, step) in steps.iter().enumerate() {
        // `check_recovered` checks the opening of a database after a failed sync.
        if watch.is_poisoned && matches!(step, CrashStep::Reopen | CrashStep::DropHandles) {
            let db = run.db().map_err(|e| e.to_string())?;
            run.drop_handles();
            match db.close() {
                Err(Error::Poisoned { .. }) => break,
                other => return Err(format!("closing a poisoned database answers {other:?}")),
            }
        }
        watch.step(&mut run, number, step).map_err(|failure| format!("step {number} ({step}): {failure}"))?;
        if tells_story {
            let stats = run.open_db().map(|db| db.stats());
            println!(
                "{number} {step}: injected {}, {:?}, {:?}",
                machine.sim.injected(),
                run.history.lock().marks,
                stats.map(|s| (s.visible_seq, s.durable_seq, s.poisoned))
            );
        }
        refused = if run.open_db().is_none() { refused + 1 } else { 0 };
        if refused == MAX_FAILED_OPENS || (watch.is_poisoned && refused > 0) {
            break;
        }
    }
    let before = machine.sim.injected();
    run.drop_handles();
    // Dropping the last handle syncs, and has no caller to report a failure to.
    watch.is_poisoned |= machine.sim.injected() > before;
    if machine.sim.injected() == 0 {
        return Ok(None); // the random hash key can change the number of calls by a few
    }
    let history = run.history.lock().clone();
    machine.sim.set_faults(FaultPlan::default());
    check_recovered(&machine, &history, watch)?;
    Ok(Some(FaultOutcome { is_reported: watch.is_reported, is_poisoned: watch.is_poisoned }))
}

/// Checks the promises after the run, without faults.
fn check_recovered(
    machine: &TestMachine,
    history: &CommitHistory,
    watch: FaultTracker,
) -> Result<(), String> {
    let (marks, case) = (history.marks, watch.case);
    let expected = |from| ExpectedPrefix {
        history,
        min_commits: from,
        min_after_power_cut: marks.durable,
        max_commits: marks.issued,
        seen_seq: marks.seq,
        now: None,
    };
    // Only a failed sync may remove acknowledged data from the kernel's cache.
    let can_shake = case.can_fail(CallClass::Sync) || case.can_fail(CallClass::SyncDir);
    let is_cache_whole = !(can_shake && (watch.is_poisoned || watch.reopen_failed));
    let from = if is_cache_whole { marks.acked } else { marks.durable };
    // After a failed sync of a directory or volume a later sync cannot save the lost name, only the
    // file's bytes.
    let may_lose_names = case.can_fail(CallClass::SyncDir) || machine.recording_disk.has_failed_volume_sync();
    let end = if may_lose_names { AfterRecovery::Close } else { AfterRecovery::PowerCut };
    check(&machine.after_kill(), expected(from), end, None)
        .map_err(|failure| format!("reopened: {failure}"))?;
    for keep in [KeepChoice::None, KeepChoice::Seeded { seed: case.nth, percent: 50 }] {
        check(
            &machine.after_power_cut(&keep),
            expected(marks.durable),
            AfterRecovery::from_number(case.nth),
            None,
        )
        .map_err(|failure| format!("power cut, kept {keep:?}: {failure}"))?;
    }
    Ok(())
}

/// State of a run with faults.
#[derive(Clone, Copy)]
struct FaultTracker {
    case: FaultCase,
    is_poisoned: bool,
    is_reported: bool,
    /// A call failed while the database was closing or opening, when there is no database to
    /// poison.
    reopen_failed: bool,
}

impl FaultTracker {
    fn step(&mut self, run: &mut WorkloadRun, number: usize, step: &CrashStep) -> Result<(), String> {
        let was_poisoned = self.is_poisoned;
        let before = run.history.lock().marks;
        let injected = run.machine.sim.injected();
        let opens = run.open_db().is_none() || matches!(step, CrashStep::Reopen | CrashStep::DropHandles);
        let result = run.run_step(number, step);
        self.reopen_failed |= opens && run.machine.sim.injected() > injected;
        let marks = run.history.lock().marks;
        if was_poisoned {
            // Commits issued after the poisoning never happened. The doubtful commit before them
            // stays.
            let mut history = run.history.lock();
            while history.marks.issued > before.issued {
                history.remove_last();
            }
            // A keyspace with a doubtful drop may still exist: creating it again is then no commit.
            history.marks = before;
            let is_write = marks.issued > before.issued;
            return match result {
                Ok(()) if is_write => Err("a poisoned database took a write".into()),
                Ok(()) => Ok(()),
                // A doubtful drop is visible: its keyspace is missing until the database is
                // reopened.
                Err(Error::Poisoned { .. } | Error::KeyspaceNotFound { .. }) => Ok(()),
                Err(e) => Err(format!("a poisoned database answers {e:?}")),
            };
        }
        let Err(error) = result else { return Ok(()) };
        self.is_reported = true;
        self.check_error_kind(&error)?;
        self.record_failure(run, &error);
        self.check_reads(run)
    }

    /// Checks that an injected failure is reported as itself or as poisoning.
    fn check_error_kind(&self, error: &Error) -> Result<(), String> {
        let fits = match error {
            Error::Poisoned { .. } => true,
            Error::Io { source, .. } => {
                let is_full = matches!(self.case.failure, FaultKind::NoSpace | FaultKind::Quota);
                self.is_injected(source) && (!is_full || error.is_failed_sync())
            }
            Error::NoSpace { .. } => matches!(self.case.failure, FaultKind::NoSpace | FaultKind::Quota),
            // A read that makes no progress is reported as a truncated file.
            Error::Corrupt { .. } => {
                self.case.failure == FaultKind::NoProgress && self.case.can_fail(CallClass::Read)
            }
            _ => false,
        };
        if fits { Ok(()) } else { Err(format!("the caller gets {error:?}")) }
    }

    fn is_injected(&self, source: &std::io::Error) -> bool {
        use std::io::ErrorKind;
        let expected = match self.case.failure {
            FaultKind::TooManyOpen => libc::EMFILE,
            FaultKind::Interrupted => libc::EINTR,
            FaultKind::Again => libc::EAGAIN,
            // Only for a sync: other calls return `NoSpace`.
            FaultKind::NoSpace => libc::ENOSPC,
            FaultKind::Quota => libc::EDQUOT,
            FaultKind::NoProgress
                if matches!(source.kind(), ErrorKind::UnexpectedEof | ErrorKind::WriteZero) =>
            {
                return true;
            }
            FaultKind::Io | FaultKind::Torn { .. } | FaultKind::NoProgress | FaultKind::Panic => libc::EIO,
        };
        source.raw_os_error() == Some(expected)
    }

    /// Updates the history after a failed call: a refused commit never happened, and a commit that
    /// poisoned the database is doubtful.
    fn record_failure(&mut self, run: &mut WorkloadRun, error: &Error) {
        let says_poisoned = matches!(error, Error::Poisoned { .. });
        let is_poisoned = says_poisoned || run.open_db().is_some_and(|db| db.stats().poisoned.is_some());
        self.is_poisoned = is_poisoned;
        let mut history = run.history.lock();
        while !is_poisoned && history.marks.issued > history.marks.acked {
            history.remove_last();
        }
    }

    /// Checks that reads return correct data or an error.
    fn check_reads(&self, run: &WorkloadRun) -> Result<(), String> {
        let Some(db) = run.open_db() else {
            return Ok(());
        };
        match ExpectedState::read(db) {
            Ok(state) => {
                let history = run.history.lock();
                let (from, to) = (history.marks.acked, history.marks.issued);
                let now = UnixMillis::default(); // no pair expires
                match history.find_prefix(state.fingerprint(), from, to, now) {
                    Some(_) => Ok(()),
                    None => Err(format!("after the error, {}", history.explain(&state, from, to, now))),
                }
            }
            // The kernel dropped unsynced pages, as btrfs does, so a checked read must fail.
            Err(Error::Corrupt { .. })
                if self.is_poisoned && self.case.read_after_failed_sync == AfterFailedSync::ShowsOld =>
            {
                Ok(())
            }
            Err(error) => self.check_error_kind(&error).map_err(|what| format!("reading: {what}")),
        }
    }
}

/// Generates the fault test for one engine: `fault_suite!(flat, TestSubject::flat())`.
#[macro_export]
macro_rules! fault_suite {
    ($module:ident, $subject:expr) => {
        mod $module {
            use super::*;
            use $crate::totals::Budget;

            #[test]
            fn every_call_fails_in_every_way_and_nothing_promised_is_lost() {
                let subject = $subject;
                // Most calls are made by the store and are the same for each engine, so `flat`
                // covers them with more operations. Engines with files of their own make several
                // times as many calls per operation. Campaigns fail every call of 300 operations.
                let (operations, nth) = match subject.engine {
                    "flat" => (300, 17),
                    $crate::reference_engine::NAME => (100, 7),
                    _ => (100, 11),
                };
                let budget = Budget::seconds(f64::INFINITY);
                let report = $crate::faults::every_nth_call(&subject, 5, operations, nth, budget);
                println!("{}: {report}", stringify!($module));
                let failures = report.failures.iter().map(ToString::to_string).collect::<Vec<_>>();
                assert!(failures.is_empty(), "{report}\n{}", failures.join("\n"));
                assert!(report.runs > 1_000 && report.poisoned > 20, "{report}");
            }
        }
    };
}
