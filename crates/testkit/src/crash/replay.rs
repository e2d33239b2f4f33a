//! # Replay: a failure as one line, made smaller and run again
//!
//! ```text
//!  <engine> [torn]: <steps> @ <call> <keep> [@ <call of the recovery> <keep>]
//!  keep: killed | none | all | mask:<hex> | only:<n> | but:<n> | prefix:<n> | seed:<hex>/<percent>
//! ```

use sheaf_base::disk::sim::{Keep, Pending};

use super::check::{Claim, End, Probe, check};
use super::explore::{Failure, Plan, Point, explore, print_of, record, second_claim};
use super::history::History;
use super::workload::{Step, parse};
use super::world::World;
use crate::stage::Subject;
use crate::totals::Stopwatch;

/// Marks a disk that tears sectors, in a line.
const TORN: &str = " torn";

/// A choice of a power cut as a word.
#[must_use]
pub fn show_keep(keep: &Keep) -> String {
    match keep {
        Keep::None => "none".into(),
        Keep::All => "all".into(),
        Keep::Mask(mask) => format!("mask:{mask:x}"),
        Keep::Seeded { seed, percent } => format!("seed:{seed:x}/{percent}"),
        Keep::Prefix(count) => format!("prefix:{count}"),
        Keep::AllBut(index) => format!("but:{index}"),
        Keep::Only(index) => format!("only:{index}"),
        Keep::By(_) => "by".into(),
    }
}

/// The choice that [`show_keep`] wrote.
#[must_use]
pub fn parse_keep(word: &str) -> Option<Keep> {
    let (kind, number) = word.split_once(':').unwrap_or((word, ""));
    Some(match kind {
        "none" => Keep::None,
        "all" => Keep::All,
        "mask" => Keep::Mask(u64::from_str_radix(number, 16).ok()?),
        "seed" => {
            let (seed, percent) = number.split_once('/')?;
            Keep::Seeded { seed: u64::from_str_radix(seed, 16).ok()?, percent: percent.parse().ok()? }
        }
        "prefix" => Keep::Prefix(number.parse().ok()?),
        "but" => Keep::AllBut(number.parse().ok()?),
        "only" => Keep::Only(number.parse().ok()?),
        _ => return None,
    })
}

/// The name of a plan's engine, and of the disk's manners if they are not the usual ones.
#[must_use]
pub fn setting(plan: &Plan) -> String {
    format!("{}{}", plan.subject.name, if plan.paranoid { TORN } else { "" })
}

/// What to type to run a line again.
#[must_use]
pub fn command(line: &str) -> String {
    format!(
        "SHEAF_CRASH='{line}' cargo test -p sheaf-testkit --test suites crash::replay_a_line -- --ignored --nocapture"
    )
}

/// The plan that a line's setting stands for, and the rest of the line.
fn plan_of(line: &str) -> Result<(Plan, &str), String> {
    let (setting, rest) = line.split_once(':').ok_or("a line begins with an engine and a colon")?;
    let paranoid = setting.ends_with(TORN);
    let engine = setting.trim_end_matches(TORN).trim();
    let subject = Subject::named(engine).ok_or(format!("{engine:?} is no engine"))?;
    Ok((Plan { subject, paranoid, ..Plan::default() }, rest))
}

/// Runs the crash of one replay line again: what it prints is the story, what it answers the verdict.
pub fn replay(line: &str) -> Result<(), String> {
    let (plan, line) = plan_of(line)?;
    let mut parts = line.split('@').map(str::trim);
    let steps = parts.next().and_then(parse).ok_or("no steps")?;
    let Some(first) = parts.next() else {
        let report = explore(&steps, &plan);
        println!("{report}");
        return report.failure.map_or(Ok(()), |failure| Err(failure.to_string()));
    };
    let (points, history, ran) = record(&steps, &plan);
    ran?;
    let (number, keep) = place(first)?;
    let point = points.get(number).ok_or("no such moment")?;
    println!("{} of {} moments; promised: {:?}", number, points.len(), point.marks);
    println!("{}", point.image.pending().describe(keep.as_ref().unwrap_or(&Keep::All)));
    let mut scene = Scene::set(&plan, &history, number, point);
    let result = scene.crash(keep.as_ref());
    let Some(second) = parts.next() else {
        return result;
    };
    let (number, keep) = place(second)?;
    let keep = keep.ok_or("a second crash is a power cut")?;
    let moment = scene.probe.moments.get(number).ok_or("no such moment of the recovery")?;
    println!("second: {} of {} moments; {:?}", number, scene.probe.moments.len(), moment.marks);
    println!("{}", moment.image.pending().describe(&keep));
    scene.crash_again(number, &keep)
}

/// A moment of a workload, for trying one crash after the other.
struct Scene<'a> {
    plan: &'a Plan,
    claim: Claim<'a>,
    number: usize,
    point: &'a Point,
    probe: Probe,
}

impl<'a> Scene<'a> {
    fn set(plan: &'a Plan, history: &'a History, number: usize, point: &'a Point) -> Scene<'a> {
        let marks = point.marks;
        let claim =
            Claim { history, from: marks.durable, durable: marks.durable, to: marks.issued, seq: marks.seq };
        Scene { plan, claim, number, point, probe: Probe::default() }
    }

    /// The first crash, and what its recovery does.
    fn crash(&mut self, keep: Option<&Keep>) -> Result<(), String> {
        let (image, from) = match keep {
            Some(keep) => (self.point.image.power_cut(keep), self.point.marks.durable),
            None => (self.point.image.kill(), self.point.marks.acked),
        };
        self.claim.from = from;
        let end = End::of(print_of(&image, self.number, keep.is_none()));
        let world = World::of(&self.plan.subject, image);
        check(&world, self.claim, end, Some(&mut self.probe)).map(drop)
    }

    /// A second crash, at a moment of the recovery from the first.
    fn crash_again(&self, moment: usize, keep: &Keep) -> Result<(), String> {
        let moment = self.probe.moments.get(moment).ok_or("no such moment of the recovery")?;
        let claim = second_claim(&self.probe, moment, self.claim);
        check(&World::of(&self.plan.subject, moment.image.power_cut(keep)), claim, End::Cut, None).map(drop)
    }
}

fn place(text: &str) -> Result<(usize, Option<Keep>), String> {
    let (number, keep) = text.split_once(' ').ok_or("a moment is a number and a choice")?;
    let number = number.parse().map_err(|_| "a moment is a number")?;
    match keep.trim() {
        "killed" => Ok((number, None)),
        word => Ok((number, Some(parse_keep(word).ok_or(format!("what is {word:?}?"))?))),
    }
}

/// The smallest workload found within `seconds` that still goes wrong (in any way).
#[must_use]
pub fn shrink(failure: Failure, plan: &Plan, seconds: f64) -> Failure {
    let watch = Stopwatch::start();
    let is_late = || watch.seconds() > seconds;
    let limit = (seconds / 4.0).min(plan.seconds);
    let plan = Plan { seconds: limit, states: u64::MAX, from_step: 0, ..plan.clone() };
    let mut best = failure;
    let mut chunk = best.steps.len() / 2;
    while chunk > 0 && !is_late() {
        let mut from = 0;
        let mut shorter = false;
        while from < best.steps.len() && !is_late() {
            let mut steps: Vec<Step> = best.steps.clone();
            steps.drain(from..(from + chunk).min(steps.len()));
            match explore(&steps, &plan).failure {
                Some(found) => {
                    best = found;
                    shorter = true;
                }
                None => from += chunk,
            }
        }
        if !shorter || chunk > 1 {
            chunk /= 2;
        }
    }
    lose_less(best, &plan)
}

/// The same failure with as little lost as possible: of what the last crash of it takes.
fn lose_less(mut failure: Failure, plan: &Plan) -> Failure {
    let (points, history, _) = record(&failure.steps, plan);
    let Some(point) = points.get(failure.point) else {
        return failure;
    };
    let mut scene = Scene::set(plan, &history, failure.point, point);
    if let Some((moment, keep)) = failure.second.clone() {
        let first = scene.crash(failure.keep.as_ref());
        let pending = scene.probe.moments.get(moment).map(|m| m.image.pending());
        if let (Ok(()), Some(pending)) = (first, pending) {
            let kept = keep_more(&pending, &keep, |keep| scene.crash_again(moment, keep));
            if let Some((keep, what)) = kept {
                (failure.second, failure.what) = (Some((moment, keep)), what);
            }
        }
    } else if let Some(keep) = &failure.keep {
        let kept = keep_more(&point.image.pending(), keep, |keep| scene.crash(Some(keep)));
        if let Some((keep, what)) = kept {
            (failure.keep, failure.what) = (Some(keep), what);
        }
    }
    failure
}

/// The choice that keeps what `keep` keeps and whatever else leaves `crash` failing, one unit after the
/// other. `None` if nothing can be added.
fn keep_more(
    pending: &Pending,
    keep: &Keep,
    mut crash: impl FnMut(&Keep) -> Result<(), String>,
) -> Option<(Keep, String)> {
    if pending.len() > 64 {
        return None;
    }
    let kept = pending.units().iter().enumerate().filter(|(index, unit)| keep.keeps(*index, unit));
    let mut mask: u64 = kept.map(|(index, _)| 1 << index).sum();
    let mut best = None;
    for index in 0..pending.len() {
        let more = mask | 1 << index;
        if more == mask {
            continue;
        }
        if let Err(what) = crash(&Keep::Mask(more)) {
            mask = more;
            best = Some((Keep::Mask(more), what));
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_choice_reads_back() {
        for word in ["none", "all", "mask:2f", "seed:ff/50", "prefix:3", "but:0", "only:70"] {
            assert_eq!(show_keep(&parse_keep(word).unwrap()), word);
        }
    }
}
