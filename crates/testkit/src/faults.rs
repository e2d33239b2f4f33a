//! # Faults: the n-th call of a kind fails, for every n
//!
//! A workload runs again and again, and each time another disk call fails, once or from then on for
//! ever. Each failure must reach the caller as an error of the right kind; what was refused must not be
//! there; reads answer right or with an error; a poisoned database takes no write until it is reopened.
//! Then every handle is dropped and the database opened without faults, once as the killed process's
//! successor and once after a power cut, and must keep its promise.
//!
//! ## What it cannot see
//!
//! A power cut after a failed directory sync and a reopening in the same boot: the kernel shows names that
//! the platter lacks, and no call saves them. Two different failures in one run; failures of mapped memory; interleavings of threads.

use std::fmt;

use sheaf::Error;
use sheaf_base::clock::{Clock, SystemClock};
use sheaf_base::disk::sim::{AfterFailedSync, Class, Failure, Fault, Keep};

use crate::crash::check::{Claim, End, check, quietly};
use crate::crash::history::{History, State};
use crate::crash::run::Run;
use crate::crash::workload::{Step, show};
use crate::crash::world::World;

/// A fault in a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Which kind of call fails.
    pub class: Class,
    /// The how-manieth of them, from 1.
    pub nth: u64,
    /// All after it as well.
    pub forever: bool,
    /// How.
    pub failure: Failure,
    /// What reads see after a failed sync.
    pub after: AfterFailedSync,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { class, nth, forever, failure, after } = self;
        write!(
            f,
            "{class:?} number {nth}{} fails as {failure:?}, {after:?}",
            if *forever { " and all later" } else { "" }
        )
    }
}

/// What was tried.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Runs in which the fault struck.
    pub runs: u64,
    /// Those that ended poisoned.
    pub poisoned: u64,
    /// Those in which nobody but background work noticed.
    pub unnoticed: u64,
    /// Seconds it took.
    pub seconds: f64,
    /// What went wrong.
    pub failures: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { runs, poisoned, unnoticed, seconds, failures } = self;
        write!(
            f,
            "{runs} faults struck ({poisoned} poisoned, {unnoticed} noticed by no caller), {} wrong, {seconds:.1} s",
            failures.len()
        )
    }
}

/// What a case came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The run made fewer calls of that class.
    NotReached,
    /// The fault struck; `noticed`: a caller got an error; `poisoned`: writes were refused after it.
    Struck {
        /// A caller got an error.
        noticed: bool,
        /// Writes were refused after it.
        poisoned: bool,
    },
}

/// Fails call 1, 1 + `stride`, 1 + 2 × `stride` ... of `class` in `steps`, until the run completes.
#[must_use]
pub fn every_call(steps: &[Step], class: Class, failure: Failure, forever: bool, stride: u64) -> Report {
    let started = SystemClock.now();
    let mut report = Report::default();
    let mut nth: u64 = 1;
    loop {
        let after = if nth.is_multiple_of(2) { AfterFailedSync::ShowsOld } else { AfterFailedSync::ShowsNew };
        let case = Case { class, nth, forever, failure, after };
        match quietly(|| run_case(steps, case)) {
            Ok(Outcome::NotReached) => break,
            Ok(Outcome::Struck { noticed, poisoned }) => {
                report.runs += 1;
                report.poisoned += u64::from(poisoned);
                report.unnoticed += u64::from(!noticed);
            }
            Err(what) => {
                report.runs += 1;
                report.failures.push(format!("{case}: {what}\n  workload: {}", show(steps)));
                if report.failures.len() >= 5 {
                    break;
                }
            }
        }
        nth += stride;
    }
    report.seconds = (SystemClock.now() - started).as_secs_f64();
    report
}

/// Runs `steps` under one fault and checks everything.
pub fn run_case(steps: &[Step], case: Case) -> Result<Outcome, String> {
    let world = World::new();
    world.sim.set_after_failed_sync(case.after);
    world.tap.set_fuse(3_000_000);
    let fault = Fault::new(case.class, case.failure).nth(case.nth);
    world.sim.set_faults(if case.forever { fault.forever() } else { fault });
    let mut run = Run::new(world.clone());
    let mut watch = Watch { case, poisoned: false, noticed: false };
    for (number, step) in steps.iter().enumerate() {
        // What a process finds that opens the database after a failed sync is for `afterwards` to say.
        if watch.poisoned && matches!(step, Step::Reopen | Step::Abandon) {
            let db = run.db().map_err(|e| e.to_string())?;
            run.abandon();
            match db.close() {
                Err(Error::Poisoned { .. }) => break,
                other => return Err(format!("closing a poisoned database answers {other:?}")),
            }
        }
        watch.step(&mut run, number, step).map_err(|what| format!("step {number} ({step}): {what}"))?;
        if std::env::var_os("SHEAF_FAULT").is_some() {
            let stats = run.opened().map(|db| db.stats());
            println!(
                "{number} {step}: injected {}, {:?}, {:?}",
                world.sim.injected(),
                run.history.lock().marks,
                stats.map(|s| (s.visible, s.durable, s.poisoned))
            );
        }
        if watch.poisoned && run.opened().is_none() {
            break;
        }
    }
    let before = world.sim.injected();
    run.abandon();
    // Dropping the last handle syncs, and nobody is left to be told that it failed.
    watch.poisoned |= world.sim.injected() > before;
    let history = run.history.lock().clone();
    let struck = world.sim.injected() > 0;
    world.sim.set_faults(sheaf_base::disk::sim::FaultPlan::default());
    afterwards(&world, &history, watch)?;
    Ok(match struck {
        true => Outcome::Struck { noticed: watch.noticed, poisoned: watch.poisoned },
        false => Outcome::NotReached,
    })
}

/// The promises after it all, without faults.
fn afterwards(world: &World, history: &History, watch: Watch) -> Result<(), String> {
    let marks = history.marks;
    let claim = |from| Claim { history, from, durable: marks.durable, to: marks.issued, seq: marks.seq };
    // Only a failed sync may have taken what was acknowledged out of the kernel's cache.
    let is_cache_whole =
        !(watch.poisoned && matches!(watch.case.class, Class::Sync | Class::SyncDir | Class::Any));
    let from = if is_cache_whole { marks.acked } else { marks.durable };
    let reopened = World::on(world.sim.kill());
    // A name that a failed directory sync dropped cannot be saved by a later one: only the bytes can.
    let end = if matches!(watch.case.class, Class::SyncDir) { End::Close } else { End::Cut };
    check(&reopened, claim(from), end, None).map_err(|what| format!("reopened: {what}"))?;
    for keep in [Keep::None, Keep::All, Keep::Seeded { seed: watch.case.nth, percent: 50 }] {
        let cut = world.cut(&keep);
        check(&cut, claim(marks.durable), End::of(watch.case.nth), None)
            .map_err(|what| format!("power cut, kept {keep:?}: {what}"))?;
    }
    Ok(())
}

/// What is known while the faults strike.
#[derive(Clone, Copy)]
struct Watch {
    case: Case,
    poisoned: bool,
    noticed: bool,
}

impl Watch {
    fn step(&mut self, run: &mut Run, number: usize, step: &Step) -> Result<(), String> {
        let was_poisoned = self.poisoned;
        let before = run.history.lock().marks;
        let result = run.step(number, step);
        let marks = run.history.lock().marks;
        if was_poisoned {
            // Commits issued after the poison never were; the one in doubt, below them, stays.
            let mut history = run.history.lock();
            while history.marks.issued > before.issued {
                history.withdraw();
            }
            let is_write = marks.issued > before.issued;
            return match result {
                Ok(()) if is_write => Err("a poisoned database took a write".into()),
                Ok(()) => Ok(()),
                // A drop in doubt is visible: its keyspace is gone until a reopening brings it back.
                Err(Error::Poisoned { .. } | Error::NoKeyspace { .. }) => Ok(()),
                Err(e) => Err(format!("a poisoned database answers {e:?}")),
            };
        }
        let Err(error) = result else { return Ok(()) };
        self.noticed = true;
        self.is_right_kind(&error)?;
        self.settle(run, &error);
        self.read(run)
    }

    /// An injected failure may show as itself or as poison, and as nothing else.
    fn is_right_kind(&self, error: &Error) -> Result<(), String> {
        let fits = match error {
            Error::Poisoned { .. } => true,
            Error::Io { source, .. } => match self.case.failure {
                Failure::TooManyOpen => source.raw_os_error() == Some(24),
                Failure::NoSpace => false,
                _ => source.raw_os_error() == Some(5),
            },
            Error::NoSpace { .. } => self.case.failure == Failure::NoSpace,
            _ => false,
        };
        if fits { Ok(()) } else { Err(format!("the caller gets {error:?}")) }
    }

    /// What the failed call leaves: a refused commit never was; one that poisoned is in doubt.
    fn settle(&mut self, run: &mut Run, error: &Error) {
        let says_poisoned = matches!(error, Error::Poisoned { .. });
        let is_poisoned = says_poisoned || run.opened().is_some_and(|db| db.stats().poisoned.is_some());
        self.poisoned = is_poisoned;
        let mut history = run.history.lock();
        while !is_poisoned && history.marks.issued > history.marks.acked {
            history.withdraw();
        }
    }

    /// Reads are right or errors.
    fn read(&self, run: &Run) -> Result<(), String> {
        let Some(db) = run.opened() else {
            return Ok(());
        };
        let history = run.history.lock().clone();
        match State::read(db) {
            Ok(state) => {
                let (from, to) = (history.marks.acked, history.marks.issued);
                match history.find(state.print(), from, to) {
                    Some(_) => Ok(()),
                    None => Err(format!("after the error, {}", history.explain(&state, from, to))),
                }
            }
            // The kernel took back what it had, as btrfs does: what is checked is then rightly refused.
            Err(Error::Corrupt { .. }) if self.poisoned && self.case.after == AfterFailedSync::ShowsOld => {
                Ok(())
            }
            Err(error) => self.is_right_kind(&error).map_err(|what| format!("reading: {what}")),
        }
    }
}
