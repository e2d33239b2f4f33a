//! # Explore: every state that a power cut may leave, at every moment of a workload
//!
//! The workload runs once; before each disk call that changes something the disk is forked. A fork's
//! pending units (sectors, lengths, names) are what a power cut may keep or lose, each by itself: with
//! few of them all subsets are tried, with many a fixed choice and some at random. Every image that is
//! new is opened and checked ([`super::check`]); a sample of them crashes again while it is recovering.
//!
//! ## Order
//!
//! ```text
//!  round 1   every moment in order:   killed, nothing kept, everything kept
//!  round 2   every moment, shuffled:  all other choices
//! ```
//!
//! So a look that is cut short has seen every moment of the workload, and of the rest a fair sample.
//!
//! ## What it cannot see
//!
//! Interleavings of threads; bugs of size (geometry is tiny); what the simulated disk does not model;
//! subsets that are not drawn when many units are pending; a third crash.

#![allow(clippy::cast_possible_truncation)] // numbers here are small by construction

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sheaf_base::disk::sim::{Keep, Pending, SimDisk};
use sheaf_base::sync::Mutex;

use super::check::{Claim, End, Found, Moment, Probe, check};
use super::history::{History, Marks};
use super::replay::show_keep;
use super::run::Run;
use super::workload::{Random, Step, show};
use super::world::World;
use crate::stage::Subject;
use crate::tap::Lie;
use crate::totals::Stopwatch;
use crate::trial::trial;

/// How thoroughly to look, and at what.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The engine under test.
    pub subject: Subject,
    /// All subsets of up to so many pending units.
    pub exhaustive: usize,
    /// So many random subsets of more.
    pub random: u64,
    /// One in so many images crashes again during its recovery; 0 for none.
    pub second: u64,
    /// So many subsets at each moment of such a recovery,
    pub second_keeps: usize,
    /// and so many in all of it, at moments drawn at random.
    pub second_states: u64,
    /// Also crash before the first commit, while the database is made: the same in every workload.
    pub creation: bool,
    /// Crash from this step on only: earlier ones were looked at as the end of a shorter workload.
    pub from_step: usize,
    /// What the disk lies about,
    pub lie: Lie,
    /// and what it lies about after the first crash.
    pub later_lie: Lie,
    /// Tear sectors at any byte, and so on: see [`SimDisk`].
    pub paranoid: bool,
    /// Stop looking after so many seconds,
    pub seconds: f64,
    /// or so many states.
    pub states: u64,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            subject: Subject::flat(),
            exhaustive: 8,
            random: 16,
            second: 300,
            second_keeps: 8,
            second_states: u64::MAX,
            creation: false,
            from_step: 0,
            lie: Lie::None,
            later_lie: Lie::None,
            paranoid: false,
            seconds: f64::INFINITY,
            states: u64::MAX,
        }
    }
}

/// One crash that went wrong.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The engine, and the disk's manners if they were not the usual ones.
    pub setting: String,
    /// The workload.
    pub steps: Vec<Step>,
    /// Before which changing disk call of it.
    pub point: usize,
    /// Which pending units were kept; `None`: the process was killed.
    pub keep: Option<Keep>,
    /// The second crash, if it took one: moment, and what it kept.
    pub second: Option<(usize, Keep)>,
    /// What is wrong.
    pub what: String,
}

impl Failure {
    /// What runs it again.
    #[must_use]
    pub fn line(&self) -> String {
        let keep = self.keep.as_ref().map_or("killed".into(), show_keep);
        let mut line = format!("{}: {} @ {} {keep}", self.setting, show(&self.steps), self.point);
        if let Some((moment, keep)) = &self.second {
            line += &format!(" @ {moment} {}", show_keep(keep));
        }
        line
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n  replay: {}", self.what, super::replay::command(&self.line()))
    }
}

/// What was looked at.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Workloads run.
    pub workloads: u64,
    /// Moments at which power may have failed.
    pub points: u64,
    /// Crash states: a moment and a choice of what is kept, also of second crashes.
    pub states: u64,
    /// Different disk images among them, each opened and checked.
    pub images: u64,
    /// Those of `images` that are left by a second crash.
    pub second: u64,
    /// Seconds it took.
    pub seconds: f64,
    /// The first thing that went wrong.
    pub failure: Option<Failure>,
}

impl Report {
    /// Adds the figures of another report.
    pub fn add(&mut self, other: Report) {
        self.workloads += other.workloads;
        self.points += other.points;
        self.states += other.states;
        self.images += other.images;
        self.second += other.second;
        self.seconds += other.seconds;
        self.failure = self.failure.take().or(other.failure);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { workloads, points, states, images, second, seconds, .. } = self;
        let rate = *images as f64 / seconds.max(1e-9);
        write!(
            f,
            "{workloads} workloads, {points} moments, {states} crash states, {images} images opened ({second} after \
             a second crash), {seconds:.1} s, {rate:.0} images/s"
        )
    }
}

/// A moment of the workload at which the power may fail.
pub struct Point {
    /// The disk.
    pub image: SimDisk,
    /// What was promised.
    pub marks: Marks,
    /// The step under way; at the end, how many there were.
    pub step: usize,
}

/// Runs `steps`, forking the disk before every changing call and at the end.
pub fn record(steps: &[Step], plan: &Plan) -> (Vec<Point>, History, Result<(), String>) {
    let world = World::of(&plan.subject, SimDisk::new());
    world.sim.set_paranoid(plan.paranoid);
    world.tap.set_lie(plan.lie);
    let mut run = Run::new(world.clone());
    let points: Arc<Mutex<Vec<Point>>> = Arc::default();
    let now: Arc<AtomicUsize> = Arc::default();
    let (sim, history, out) = (world.sim.clone(), Arc::clone(&run.history), Arc::clone(&points));
    let (step, from_step) = (Arc::clone(&now), plan.from_step);
    world.tap.watch(move |_, _| {
        let (step, marks) = (step.load(Ordering::Relaxed), history.lock().marks);
        // A moment nobody will look at keeps its number and costs nothing.
        let image = if step >= from_step { sim.fork() } else { SimDisk::new() };
        out.lock().push(Point { image, marks, step });
    });
    let ran = trial(name_of(steps, plan), || {
        let fails = |e| format!("the workload fails: {e}");
        run.db().map_err(fails)?;
        for (number, step) in steps.iter().enumerate() {
            now.store(number, Ordering::Relaxed);
            run.step(number, step).map_err(fails)?;
        }
        Ok(())
    });
    world.tap.unwatch();
    let history = run.history.lock().clone();
    let mut points = std::mem::take(&mut *points.lock());
    points.push(Point { image: world.sim.fork(), marks: history.marks, step: steps.len() });
    (points, history, ran)
}

fn name_of(steps: &[Step], plan: &Plan) -> String {
    format!("{}: {}", super::replay::setting(plan), show(steps))
}

/// Explores one workload until something goes wrong.
#[must_use]
pub fn explore(steps: &[Step], plan: &Plan) -> Report {
    let watch = Stopwatch::start();
    let (points, history, ran) = record(steps, plan);
    let mut explorer = Explorer {
        plan,
        history: &history,
        seen: HashMap::new(),
        random: Random::new(steps.len() as u64),
        name: name_of(steps, plan),
        report: Report { workloads: 1, points: points.len() as u64, ..Report::default() },
        watch,
    };
    let trouble = match ran {
        Ok(()) => explorer.all(&points).err(),
        Err(what) => Some(Trouble { point: points.len() - 1, keep: None, second: None, what }),
    };
    let mut report = explorer.report;
    report.failure = trouble.map(|trouble| {
        let Trouble { point, keep, second, what } = trouble;
        Failure { setting: super::replay::setting(plan), steps: steps.to_vec(), point, keep, second, what }
    });
    report.seconds = watch.seconds();
    report
}

/// A crash and what is wrong after it.
struct Trouble {
    point: usize,
    keep: Option<Keep>,
    second: Option<(usize, Keep)>,
    what: String,
}

struct Explorer<'a> {
    plan: &'a Plan,
    history: &'a History,
    seen: HashMap<u64, Found>,
    random: Random,
    report: Report,
    watch: Stopwatch,
    /// Of the plan and the workload, as a replay line begins.
    name: String,
}

impl Explorer<'_> {
    fn all(&mut self, points: &[Point]) -> Result<(), Trouble> {
        let is_due = |point: &Point| {
            point.step >= self.plan.from_step && (point.marks.issued > 0 || self.plan.creation)
        };
        let mut due: Vec<usize> = (0..points.len()).filter(|number| is_due(&points[*number])).collect();
        for number in &due {
            let pending = points[*number].image.pending();
            for keep in [None, Some(Keep::None), Some(Keep::All)] {
                self.state(*number, &points[*number], &pending, keep)?;
            }
        }
        self.random.shuffle(&mut due);
        for number in due {
            let pending = points[number].image.pending();
            for keep in pending.keeps(self.plan.exhaustive, self.plan.random, self.random.next()) {
                if self.is_over() {
                    return Ok(());
                }
                self.state(number, &points[number], &pending, Some(keep))?;
            }
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.report.states >= self.plan.states || self.watch.seconds() > self.plan.seconds
    }

    /// One choice at one moment. `None` is a killed process.
    fn state(
        &mut self,
        number: usize,
        point: &Point,
        pending: &Pending,
        keep: Option<Keep>,
    ) -> Result<(), Trouble> {
        if self.is_over() {
            return Ok(());
        }
        self.report.states += 1;
        self.try_state(number, point, pending, keep.as_ref()).map_err(|(second, what)| Trouble {
            point: number,
            keep,
            second,
            what,
        })
    }

    fn try_state(
        &mut self,
        number: usize,
        point: &Point,
        pending: &Pending,
        keep: Option<&Keep>,
    ) -> Result<(), (Option<(usize, Keep)>, String)> {
        let image = match keep {
            Some(keep) => point.image.power_cut_of(pending, keep),
            None => point.image.kill(),
        };
        let from = if keep.is_some() { point.marks.durable } else { point.marks.acked };
        let claim = Claim {
            history: self.history,
            from,
            durable: point.marks.durable,
            to: point.marks.issued,
            seq: point.marks.seq,
        };
        let print = print_of(&image, number, keep.is_none());
        if let Some(found) = self.seen.get(&print) {
            return self.known(*found, claim).map_err(|what| (None, what));
        }
        self.report.images += 1;
        let end = End::of(print);
        let is_probed = self.plan.second > 0 && self.random.once_in(self.plan.second);
        let mut probe = is_probed.then(Probe::default);
        let world = World::of(&self.plan.subject, image);
        world.tap.set_lie(self.plan.later_lie);
        let name = format!("{} @ {number} {}", self.name, keep.map_or("killed".into(), show_keep));
        let found = trial(name, || check(&world, claim, end, probe.as_mut())).map_err(|what| (None, what))?;
        self.seen.insert(print, found);
        match probe {
            Some(probe) => self
                .second_crashes(&probe, claim)
                .map_err(|(number, keep, what)| (Some((number, keep)), what)),
            None => Ok(()),
        }
    }

    /// An image that was opened before, when less was promised.
    fn known(&self, found: Found, claim: Claim<'_>) -> Result<(), String> {
        if claim.history.find(found.print, claim.from, claim.to).is_none() {
            let at = claim.history.find(found.print, 0, claim.history.prints.len() - 1);
            return Err(format!(
                "the state is the one after {at:?} commits, allowed are {} to {}",
                claim.from, claim.to
            ));
        }
        if found.seq <= claim.seq {
            return Err(format!(
                "commit number {} is used again: {} was seen before the crash",
                found.seq, claim.seq
            ));
        }
        Ok(())
    }

    fn second_crashes(&mut self, probe: &Probe, claim: Claim<'_>) -> Result<(), (usize, Keep, String)> {
        let mut seen = HashSet::new();
        let last = self.report.states.saturating_add(self.plan.second_states);
        let mut moments: Vec<(usize, &Moment)> = probe.moments.iter().enumerate().collect();
        self.random.shuffle(&mut moments);
        for (number, moment) in moments {
            let pending = moment.image.pending();
            for keep in self.some_keeps(&pending) {
                if self.is_over() || self.report.states >= last {
                    return Ok(());
                }
                self.report.states += 1;
                let world = World::of(&self.plan.subject, moment.image.power_cut_of(&pending, &keep));
                let promised = moment.marks.map(|marks| (marks.durable, marks.issued));
                if !seen.insert((world.sim.hash(), promised)) {
                    continue;
                }
                self.report.images += 1;
                self.report.second += 1;
                second_crash(&world, probe, moment, claim).map_err(|what| (number, keep, what))?;
            }
        }
        Ok(())
    }

    /// Nothing, everything, and some choices in between.
    fn some_keeps(&mut self, pending: &Pending) -> Vec<Keep> {
        let wanted = self.plan.second_keeps;
        let mut keeps = pending.keeps(4, wanted as u64, self.random.next());
        let last = keeps.len() - 1;
        keeps.swap(1.min(last), last); // of all subsets the last is everything; else it is any
        for place in 2..wanted.min(keeps.len()) {
            let other = place + self.random.below((keeps.len() - place) as u64) as usize;
            keeps.swap(place, other);
        }
        keeps.truncate(wanted.max(2));
        keeps
    }
}

/// Checks the machine that a power cut at `moment` of a recovery left.
fn second_crash(world: &World, probe: &Probe, moment: &Moment, claim: Claim<'_>) -> Result<(), String> {
    let claim = second_claim(probe, moment, claim);
    let phase = if moment.marks.is_some() { "after" } else { "in" };
    check(world, claim, End::Cut, None)
        .map_err(|what| format!("second crash, {phase} recovery: {what}"))
        .map(drop)
}

/// A fingerprint of a disk after a crash. What is pending after a kill is not in the bytes: it stands for itself.
#[must_use]
pub fn print_of(image: &SimDisk, point: usize, is_killed: bool) -> u64 {
    if is_killed { Random::new(point as u64).next() } else { image.hash() }
}

/// What may be left by a crash at `moment` of a recovery that began under `claim`.
#[must_use]
pub fn second_claim<'a>(probe: &'a Probe, moment: &Moment, claim: Claim<'a>) -> Claim<'a> {
    match (&probe.aftermath, moment.marks) {
        (Some(history), Some(marks)) => {
            Claim { history, from: marks.durable, durable: marks.durable, to: marks.issued, seq: claim.seq }
        }
        _ => Claim { from: claim.durable, ..claim },
    }
}
