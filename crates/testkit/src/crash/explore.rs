//! # Explorer: every state that a power cut may leave at every point of a workload
//!
//! The workload runs once. Before each disk call that changes something, the disk is forked. A
//! power cut may keep or lose each pending unit of a fork (sector, length, name) independently.
//! With few units all subsets are tried, otherwise a fixed selection and some random ones. Each new
//! image is opened and checked ([`super::check`]). A sample of the images crashes again during
//! recovery.
//!
//! ## Order
//!
//! ```text
//!  round 1   every point in order:   killed, nothing kept, everything kept
//!  round 2   every point, shuffled:  all other choices
//! ```
//!
//! A run that is cut short has therefore seen every point of the workload, and a fair sample of the
//! other choices.
//!
//! ## Blind spots
//!
//! Interleavings of threads; bugs that need large data (the geometry is tiny); effects that the
//! simulated disk does not model; subsets that are not drawn when many units are pending; a third
//! crash.

#![allow(clippy::cast_possible_truncation)] // numbers here are small by construction

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sheaf_platform::clock::{Clock, ManualClock, UnixMillis};
use sheaf_platform::sync::Mutex;
use sheaf_sim::{KeepChoice, PendingUnits, SimDisk};

use super::check::{
    AfterRecovery, ExpectedPrefix, RecoveredState, RecoveryRecording, SecondCrashPoint, check,
};
use super::history::{CommitHistory, HistoryMarks};
use super::machine::TestMachine;
use super::replay::format_keep;
use super::run::WorkloadRun;
use super::workload::{CrashStep, TestRandom, format_steps};
use crate::fixture::TestSubject;
use crate::recording_disk::DiskDefect;
use crate::supervise::run_supervised;
use crate::totals::Stopwatch;

/// Extent and target of an exploration.
#[derive(Clone, Debug)]
pub struct ExplorePlan {
    /// Engine under test.
    pub subject: TestSubject,
    /// Up to this number of pending units, all subsets are tried.
    pub exhaustive_units: usize,
    /// Random subsets for a larger number of units.
    pub random_subsets: u64,
    /// One in this many images crashes again during its recovery; 0 for none.
    pub second_crash_rate: u64,
    /// Subsets tried at each point of such a recovery.
    pub second_crash_subsets: usize,
    /// States tried in the whole recovery, at points in random order.
    pub second_crash_states: u64,
    /// Also crash before the first commit, while the database is created: this is the same in every
    /// workload.
    pub includes_creation: bool,
    /// Crash from this step on only. Earlier steps were explored as the end of a shorter workload.
    pub first_step: usize,
    /// Defect of the disk up to the first crash.
    pub defect: DiskDefect,
    /// Defect of the disk after the first crash.
    pub later_defect: DiskDefect,
    /// Tear sectors at any byte, and so on; see [`SimDisk::set_paranoid`].
    pub tears_sectors: bool,
    /// Stops after this many seconds.
    pub max_seconds: f64,
    /// Stops after this many states.
    pub max_states: u64,
}

impl Default for ExplorePlan {
    fn default() -> ExplorePlan {
        ExplorePlan {
            subject: TestSubject::flat(),
            exhaustive_units: 8,
            random_subsets: 16,
            second_crash_rate: 300,
            second_crash_subsets: 8,
            second_crash_states: u64::MAX,
            includes_creation: false,
            first_step: 0,
            defect: DiskDefect::None,
            later_defect: DiskDefect::None,
            tears_sectors: false,
            max_seconds: f64::INFINITY,
            max_states: u64::MAX,
        }
    }
}

/// A crash after which a check failed.
#[derive(Clone, Debug)]
pub struct CrashFailure {
    /// Engine, and the disk's mode if it tears sectors.
    pub setting: String,
    /// The workload.
    pub steps: Vec<CrashStep>,
    /// Number of the changing disk call before which the crash happened.
    pub crash_point: usize,
    /// Pending units that were kept; `None` if the process was killed.
    pub kept_units: Option<KeepChoice>,
    /// Second crash, if there was one: its point and the kept units.
    pub second_crash: Option<(usize, KeepChoice)>,
    /// Description of the violation.
    pub mismatch: String,
}

impl CrashFailure {
    /// Returns the line that repeats the crash.
    #[must_use]
    pub fn replay_line(&self) -> String {
        let keep = self.kept_units.as_ref().map_or("killed".into(), format_keep);
        let mut line =
            format!("{}: {} @ {} {keep}", self.setting, format_steps(&self.steps), self.crash_point);
        if let Some((moment, keep)) = &self.second_crash {
            line += &format!(" @ {moment} {}", format_keep(keep));
        }
        line
    }
}

impl fmt::Display for CrashFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n  replay: {}", self.mismatch, super::replay::replay_command(&self.replay_line()))
    }
}

/// Figures of an exploration.
#[derive(Clone, Debug, Default)]
pub struct ExploreReport {
    /// Workloads run.
    pub workloads: u64,
    /// Points at which the power may have failed.
    pub points: u64,
    /// Crash states: a point and a choice of kept units, second crashes included.
    pub states: u64,
    /// Different disk images among them, each opened and checked.
    pub images: u64,
    /// Images left by a second crash, included in `images`.
    pub second_images: u64,
    /// Duration in seconds.
    pub seconds: f64,
    /// First violation found.
    pub failure: Option<CrashFailure>,
}

impl ExploreReport {
    /// Adds the figures of another report.
    pub fn add(&mut self, other: ExploreReport) {
        self.workloads += other.workloads;
        self.points += other.points;
        self.states += other.states;
        self.images += other.images;
        self.second_images += other.second_images;
        self.seconds += other.seconds;
        self.failure = self.failure.take().or(other.failure);
    }
}

impl fmt::Display for ExploreReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ExploreReport { workloads, points, states, images, second_images: second, seconds, .. } = self;
        let rate = *images as f64 / seconds.max(1e-9);
        write!(
            f,
            "{workloads} workloads, {points} moments, {states} crash states, {images} images opened ({second} after \
             a second crash), {seconds:.1} s, {rate:.0} images/s"
        )
    }
}

/// Point of the workload at which the power may fail.
pub struct CrashPoint {
    /// Disk at that point.
    pub image: SimDisk,
    /// Progress of the commits, which decides the allowed states.
    pub marks: HistoryMarks,
    /// Step in progress; after the end, the number of steps.
    pub step: usize,
    /// Time, if pairs may expire.
    pub now: Option<UnixMillis>,
}

/// Runs `steps` and forks the disk before every changing call and at the end. The result also has
/// the history, and the error if a step failed.
pub fn record_points(
    steps: &[CrashStep],
    plan: &ExplorePlan,
) -> (Vec<CrashPoint>, CommitHistory, Result<(), String>) {
    let has_expiry = steps.iter().any(CrashStep::is_expiring);
    let machine = TestMachine { has_expiry, ..TestMachine::for_subject(&plan.subject, SimDisk::new()) };
    let now_of = move |clock: &ManualClock| has_expiry.then(|| clock.unix_millis());
    machine.sim.set_paranoid(plan.tears_sectors);
    machine.recording_disk.set_defect(plan.defect);
    let mut run = WorkloadRun::new(machine.clone());
    let points: Arc<Mutex<Vec<CrashPoint>>> = Arc::default();
    let now: Arc<AtomicUsize> = Arc::default();
    let (sim, history, out) = (machine.sim.clone(), Arc::clone(&run.history), Arc::clone(&points));
    let (step, from_step, clock) = (Arc::clone(&now), plan.first_step, Arc::clone(&machine.clock));
    machine.recording_disk.set_observer(move |_, _| {
        let (step, marks) = (step.load(Ordering::Relaxed), history.lock().marks);
        // A point that is not explored keeps its number, but needs no fork.
        let image = if step >= from_step { sim.fork() } else { SimDisk::new() };
        out.lock().push(CrashPoint { image, marks, step, now: now_of(&clock) });
    });
    let ran = run_supervised(replay_name(steps, plan), || {
        let fails = |e| format!("the workload fails: {e}");
        run.db().map_err(fails)?;
        for (number, step) in steps.iter().enumerate() {
            now.store(number, Ordering::Relaxed);
            run.run_step(number, step).map_err(fails)?;
        }
        Ok(())
    });
    machine.recording_disk.clear_observer();
    let history = run.history.lock().clone();
    let mut points = std::mem::take(&mut *points.lock());
    let (image, now) = (machine.sim.fork(), now_of(&machine.clock));
    points.push(CrashPoint { image, marks: history.marks, step: steps.len(), now });
    (points, history, ran)
}

fn replay_name(steps: &[CrashStep], plan: &ExplorePlan) -> String {
    format!("{}: {}", super::replay::plan_name(plan), format_steps(steps))
}

/// Explores one workload until a check fails or the plan's limits are reached.
#[must_use]
pub fn explore(steps: &[CrashStep], plan: &ExplorePlan) -> ExploreReport {
    let watch = Stopwatch::start();
    let (points, history, ran) = record_points(steps, plan);
    let mut explorer = Explorer {
        plan,
        history: &history,
        seen: HashMap::new(),
        random: TestRandom::new(steps.len() as u64),
        name: replay_name(steps, plan),
        report: ExploreReport { workloads: 1, points: points.len() as u64, ..ExploreReport::default() },
        stopwatch: watch,
    };
    let trouble = match ran {
        Ok(()) => explorer.explore_points(&points).err(),
        Err(what) => Some(CrashMismatch { point: points.len() - 1, keep: None, second: None, what }),
    };
    let mut report = explorer.report;
    report.failure = trouble.map(|trouble| {
        let CrashMismatch { point, keep, second, what } = trouble;
        CrashFailure {
            setting: super::replay::plan_name(plan),
            steps: steps.to_vec(),
            crash_point: point,
            kept_units: keep,
            second_crash: second,
            mismatch: what,
        }
    });
    report.seconds = watch.seconds();
    report
}

/// A crash and the violation found after it.
struct CrashMismatch {
    point: usize,
    keep: Option<KeepChoice>,
    second: Option<(usize, KeepChoice)>,
    what: String,
}

struct Explorer<'a> {
    plan: &'a ExplorePlan,
    history: &'a CommitHistory,
    seen: HashMap<u64, RecoveredState>,
    random: TestRandom,
    report: ExploreReport,
    stopwatch: Stopwatch,
    /// Plan and workload, as at the beginning of a replay line.
    name: String,
}

impl Explorer<'_> {
    fn explore_points(&mut self, points: &[CrashPoint]) -> Result<(), CrashMismatch> {
        let is_due = |point: &CrashPoint| {
            point.step >= self.plan.first_step && (point.marks.issued > 0 || self.plan.includes_creation)
        };
        let mut due: Vec<usize> = (0..points.len()).filter(|number| is_due(&points[*number])).collect();
        for number in &due {
            let pending = points[*number].image.pending();
            for keep in [None, Some(KeepChoice::None), Some(KeepChoice::All)] {
                self.state(*number, &points[*number], &pending, keep)?;
            }
        }
        self.random.shuffle(&mut due);
        for number in due {
            let pending = points[number].image.pending();
            for keep in
                pending.keeps(self.plan.exhaustive_units, self.plan.random_subsets, self.random.next())
            {
                if self.is_over() {
                    return Ok(());
                }
                self.state(number, &points[number], &pending, Some(keep))?;
            }
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.report.states >= self.plan.max_states || self.stopwatch.seconds() > self.plan.max_seconds
    }

    /// Tries one choice at one point. `None` is a killed process.
    fn state(
        &mut self,
        number: usize,
        point: &CrashPoint,
        pending: &PendingUnits,
        keep: Option<KeepChoice>,
    ) -> Result<(), CrashMismatch> {
        if self.is_over() {
            return Ok(());
        }
        self.report.states += 1;
        self.try_state(number, point, pending, keep.as_ref()).map_err(|(second, what)| CrashMismatch {
            point: number,
            keep,
            second,
            what,
        })
    }

    fn try_state(
        &mut self,
        number: usize,
        point: &CrashPoint,
        pending: &PendingUnits,
        keep: Option<&KeepChoice>,
    ) -> Result<(), (Option<(usize, KeepChoice)>, String)> {
        let image = match keep {
            Some(keep) => point.image.power_cut_of(pending, keep),
            None => point.image.kill(),
        };
        let from = if keep.is_some() { point.marks.durable } else { point.marks.acked };
        let expected = ExpectedPrefix {
            history: self.history,
            min_commits: from,
            min_after_power_cut: point.marks.durable,
            max_commits: point.marks.issued,
            seen_seq: point.marks.seq,
            now: point.now,
        };
        let print = image_fingerprint(&image, number, keep.is_none(), point.now);
        if let Some(found) = self.seen.get(&print) {
            return self.check_known_image(*found, expected).map_err(|what| (None, what));
        }
        self.report.images += 1;
        let end = AfterRecovery::from_number(print);
        let is_probed = self.plan.second_crash_rate > 0 && self.random.one_in(self.plan.second_crash_rate);
        let mut recording = is_probed.then(RecoveryRecording::default);
        let machine = TestMachine::for_subject(&self.plan.subject, image);
        machine.recording_disk.set_defect(self.plan.later_defect);
        let name = format!("{} @ {number} {}", self.name, keep.map_or("killed".into(), format_keep));
        let found = run_supervised(name, || check(&machine, expected, end, recording.as_mut()))
            .map_err(|what| (None, what))?;
        self.seen.insert(print, found);
        match recording {
            Some(recording) => self
                .second_crashes(&recording, expected)
                .map_err(|(number, keep, what)| (Some((number, keep)), what)),
            None => Ok(()),
        }
    }

    /// Checks an image that was opened before, under different limits.
    fn check_known_image(&self, found: RecoveredState, expected: ExpectedPrefix<'_>) -> Result<(), String> {
        if !expected.is_allowed(found.fingerprint) {
            let (all, now) = (expected.history.fingerprints.len() - 1, expected.now.unwrap_or_default());
            let at = expected.history.find_prefix(found.fingerprint, 0, all, now);
            return Err(format!(
                "the state is the one after {at:?} commits, allowed are {} to {}",
                expected.min_commits, expected.max_commits
            ));
        }
        if found.next_seq <= expected.seen_seq {
            return Err(format!(
                "commit number {} is used again: {} was seen before the crash",
                found.next_seq, expected.seen_seq
            ));
        }
        Ok(())
    }

    fn second_crashes(
        &mut self,
        recording: &RecoveryRecording,
        expected: ExpectedPrefix<'_>,
    ) -> Result<(), (usize, KeepChoice, String)> {
        let mut seen = HashSet::new();
        let last = self.report.states.saturating_add(self.plan.second_crash_states);
        let mut moments: Vec<(usize, &SecondCrashPoint)> =
            recording.crash_points.iter().enumerate().collect();
        self.random.shuffle(&mut moments);
        for (number, moment) in moments {
            let pending = moment.image.pending();
            for keep in self.choose_subsets(&pending) {
                if self.is_over() || self.report.states >= last {
                    return Ok(());
                }
                self.report.states += 1;
                let machine =
                    TestMachine::for_subject(&self.plan.subject, moment.image.power_cut_of(&pending, &keep));
                let promised = moment.marks.map(|marks| (marks.durable, marks.issued));
                if !seen.insert((machine.sim.hash(), promised, moment.now)) {
                    continue;
                }
                self.report.images += 1;
                self.report.second_images += 1;
                second_crash(&machine, recording, moment, expected).map_err(|what| (number, keep, what))?;
            }
        }
        Ok(())
    }

    /// Returns nothing, everything, and some choices in between.
    fn choose_subsets(&mut self, pending: &PendingUnits) -> Vec<KeepChoice> {
        let wanted = self.plan.second_crash_subsets;
        let mut keeps = pending.keeps(4, wanted as u64, self.random.next());
        let last = keeps.len() - 1;
        keeps.swap(1.min(last), last); // in the list of all subsets, the last keeps everything
        for place in 2..wanted.min(keeps.len()) {
            let other = place + self.random.below((keeps.len() - place) as u64) as usize;
            keeps.swap(place, other);
        }
        keeps.truncate(wanted.max(2));
        keeps
    }
}

/// Checks the machine that a power cut at `moment` of a recovery left.
fn second_crash(
    machine: &TestMachine,
    recording: &RecoveryRecording,
    moment: &SecondCrashPoint,
    expected: ExpectedPrefix<'_>,
) -> Result<(), String> {
    let expected = second_expected(recording, moment, expected);
    let phase = if moment.marks.is_some() { "after" } else { "in" };
    check(machine, expected, AfterRecovery::PowerCut, None)
        .map_err(|failure| format!("second crash, {phase} recovery: {failure}"))
        .map(drop)
}

/// Returns a fingerprint of a disk after a crash. After a kill the pending units are not part of
/// the bytes, so each killed image counts as different. So does an image at another time `now`.
#[must_use]
pub fn image_fingerprint(image: &SimDisk, point: usize, is_killed: bool, now: Option<UnixMillis>) -> u64 {
    let print = if is_killed { TestRandom::new(point as u64).next() } else { image.hash() };
    now.map_or(print, |now| print ^ TestRandom::new(now.0).next())
}

/// Returns the states allowed after a crash at `moment` of a recovery that began under `expected`.
#[must_use]
pub fn second_expected<'a>(
    recording: &'a RecoveryRecording,
    moment: &SecondCrashPoint,
    expected: ExpectedPrefix<'a>,
) -> ExpectedPrefix<'a> {
    match (&recording.after_recovery, moment.marks) {
        (Some(history), Some(marks)) => ExpectedPrefix {
            history,
            min_commits: marks.durable,
            min_after_power_cut: marks.durable,
            max_commits: marks.issued,
            seen_seq: expected.seen_seq,
            now: moment.now,
        },
        _ => ExpectedPrefix { min_commits: expected.min_after_power_cut, now: moment.now, ..expected },
    }
}
