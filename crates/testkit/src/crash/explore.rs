//! # Explore: every state that a power cut may leave, at every moment of a workload
//!
//! The workload runs once; before each disk call that changes something the disk is forked. A fork's
//! pending units (sectors, lengths, names) are what a power cut may keep or lose, each by itself: with
//! few of them all subsets are tried, with many a fixed choice and some at random. Every image that is
//! new is opened and checked ([`super::check`]); a sample of them crashes again while it is recovering.
//!
//! ## What it cannot see
//!
//! Interleavings of threads; bugs of size (geometry is tiny); what the simulated disk does not model;
//! subsets that are not drawn when many units are pending; a third crash.

#![allow(clippy::cast_possible_truncation)] // numbers here are small by construction

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use sheaf_base::clock::{Clock, SystemClock};
use sheaf_base::disk::sim::{Keep, SimDisk};
use sheaf_base::sync::Mutex;

use super::check::{Claim, End, Found, Moment, Probe, check, quietly};
use super::history::{History, Marks, NAMES};
use super::replay::show_keep;
use super::run::Run;
use super::workload::{Random, Step, show};
use super::world::{ENGINES, World};
use crate::tap::Lie;

/// How thoroughly to look.
#[derive(Clone, Debug)]
pub struct Plan {
    /// All subsets of up to so many pending units.
    pub exhaustive: usize,
    /// So many random subsets of more.
    pub random: u64,
    /// One in so many images crashes again during its recovery; 0 for none.
    pub second: u64,
    /// So many subsets at each moment of such a recovery.
    pub second_keeps: usize,
    /// Also crash before the first commit, while the database is made: the same in every workload.
    pub creation: bool,
    /// What the disk lies about.
    pub lie: Lie,
    /// Tear sectors at any byte, and so on: see [`SimDisk`].
    pub paranoid: bool,
    /// The engines of the keyspaces.
    pub engines: [&'static str; NAMES.len()],
    /// Stop looking after so many seconds.
    pub seconds: f64,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            exhaustive: 8,
            random: 16,
            second: 300,
            second_keeps: 8,
            creation: false,
            lie: Lie::None,
            paranoid: false,
            engines: ENGINES,
            seconds: f64::INFINITY,
        }
    }
}

/// One crash that went wrong.
#[derive(Clone, Debug)]
pub struct Failure {
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

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keep = self.keep.as_ref().map_or("killed".into(), show_keep);
        write!(f, "{}\n  replay: SHEAF_CRASH='{} @ {} {keep}", self.what, show(&self.steps), self.point)?;
        if let Some((moment, keep)) = &self.second {
            write!(f, " @ {moment} {}", show_keep(keep))?;
        }
        write!(f, "'")
    }
}

/// What was looked at.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Workloads run.
    pub workloads: u64,
    /// Moments at which power may have failed.
    pub points: u64,
    /// Crash states: a moment and a choice of what is kept.
    pub states: u64,
    /// Different disk images among them, each opened and checked.
    pub images: u64,
    /// States after a second crash, each opened and checked.
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
        let rate = (self.images + self.second) as f64 / self.seconds.max(1e-9);
        write!(
            f,
            "{} workloads, {} moments, {} crash states, {} images and {} second crashes opened, {:.1} s, {rate:.0} openings checked/s",
            self.workloads, self.points, self.states, self.images, self.second, self.seconds
        )
    }
}

/// A moment of the workload at which the power may fail.
pub struct Point {
    /// The disk.
    pub image: SimDisk,
    /// What was promised.
    pub marks: Marks,
}

/// Runs `steps`, forking the disk before every changing call and at the end.
pub fn record(steps: &[Step], plan: &Plan) -> (Vec<Point>, History, Result<(), String>) {
    let world = if plan.paranoid { World::paranoid() } else { World::new() };
    let mut run = Run::new(world.clone());
    run.engines = plan.engines;
    world.tap.set_lie(plan.lie);
    let points: Arc<Mutex<Vec<Point>>> = Arc::default();
    let (sim, history, out) = (world.sim.clone(), Arc::clone(&run.history), Arc::clone(&points));
    world.tap.watch(move |_| {
        let marks = history.lock().marks;
        out.lock().push(Point { image: sim.fork(), marks });
    });
    let ran = quietly(|| run.all(steps).map_err(|e| format!("the workload fails: {e}")));
    world.tap.unwatch();
    let history = run.history.lock().clone();
    let mut points = std::mem::take(&mut *points.lock());
    points.push(Point { image: world.sim.fork(), marks: history.marks });
    (points, history, ran)
}

/// Explores one workload until something goes wrong.
#[must_use]
pub fn explore(steps: &[Step], plan: &Plan) -> Report {
    let started = SystemClock.now();
    let mut report = Report { workloads: 1, ..Report::default() };
    let (points, history, ran) = record(steps, plan);
    report.points = points.len() as u64;
    let failure =
        |point, keep, second, what| Some(Failure { steps: steps.to_vec(), point, keep, second, what });
    if let Err(what) = ran {
        report.failure = failure(points.len() - 1, None, None, what);
        return report;
    }
    let mut explorer =
        Explorer { plan, history: &history, seen: HashMap::new(), random: Random::new(steps.len() as u64) };
    'points: for (number, point) in points.iter().enumerate() {
        if point.marks.issued == 0 && !plan.creation {
            continue;
        }
        let cuts = point.image.pending().keeps(plan.exhaustive, plan.random, explorer.random.next());
        for keep in std::iter::once(None).chain(cuts.into_iter().map(Some)) {
            report.states += 1;
            if let Err((second, what)) = explorer.state(number, point, keep.as_ref(), &mut report) {
                report.failure = failure(number, keep, second, what);
                break 'points;
            }
            if (SystemClock.now() - started).as_secs_f64() > plan.seconds {
                break 'points;
            }
        }
    }
    report.seconds = (SystemClock.now() - started).as_secs_f64();
    report
}

type Trouble = (Option<(usize, Keep)>, String);

struct Explorer<'a> {
    plan: &'a Plan,
    history: &'a History,
    seen: HashMap<u64, Found>,
    random: Random,
}

impl Explorer<'_> {
    /// One choice at one moment. `None` is a killed process.
    fn state(
        &mut self,
        number: usize,
        point: &Point,
        keep: Option<&Keep>,
        report: &mut Report,
    ) -> Result<(), Trouble> {
        let image = match keep {
            Some(keep) => point.image.power_cut(keep),
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
        report.images += 1;
        let end = End::of(print);
        let is_probed = self.plan.second > 0 && self.random.once_in(self.plan.second);
        let mut probe = is_probed.then(Probe::default);
        let found = check(&World::on(image), claim, end, probe.as_mut()).map_err(|what| (None, what))?;
        self.seen.insert(print, found);
        match probe {
            Some(probe) => self.second_crashes(&probe, claim, report),
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

    fn second_crashes(
        &mut self,
        probe: &Probe,
        claim: Claim<'_>,
        report: &mut Report,
    ) -> Result<(), Trouble> {
        for (number, moment) in probe.moments.iter().enumerate() {
            for keep in self.some_keeps(&moment.image) {
                report.second += 1;
                let crash = second_crash(probe, moment, &keep, claim);
                crash.map_err(|what| (Some((number, keep)), what))?;
            }
        }
        Ok(())
    }

    /// Nothing, everything, and some choices in between.
    fn some_keeps(&mut self, image: &SimDisk) -> Vec<Keep> {
        let wanted = self.plan.second_keeps;
        let mut keeps = image.pending().keeps(4, wanted as u64, self.random.next());
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

/// Checks the machine that a power cut at `moment` of a recovery leaves.
fn second_crash(probe: &Probe, moment: &Moment, keep: &Keep, claim: Claim<'_>) -> Result<(), String> {
    let world = World::on(moment.image.power_cut(keep));
    let claim = second_claim(probe, moment, claim);
    let phase = if moment.marks.is_some() { "after" } else { "in" };
    check(&world, claim, End::Cut, None)
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
