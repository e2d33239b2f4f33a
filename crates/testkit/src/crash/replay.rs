//! # Replay: a failure as one line, shrunk and run again
//!
//! ```text
//!  <engine> [torn]: <steps> @ <call> <keep> [@ <call of the recovery> <keep>]
//!  keep: killed | none | all | mask:<hex> | only:<n> | but:<n> | prefix:<n> | seed:<hex>/<percent>
//! ```

use sheaf_sim::{KeepChoice, PendingUnits};

use super::check::{AfterRecovery, ExpectedPrefix, RecoveryRecording, check};
use super::explore::{
    CrashFailure, CrashPoint, ExplorePlan, explore, image_fingerprint, record_points, second_expected,
};
use super::history::CommitHistory;
use super::machine::TestMachine;
use super::workload::{CrashStep, parse_steps};
use crate::fixture::TestSubject;
use crate::totals::Stopwatch;

/// Suffix for a disk that tears sectors.
const TORN_SUFFIX: &str = " torn";

/// Returns a choice of kept units as a word.
#[must_use]
pub fn format_keep(keep: &KeepChoice) -> String {
    match keep {
        KeepChoice::None => "none".into(),
        KeepChoice::All => "all".into(),
        KeepChoice::Mask(mask) => format!("mask:{mask:x}"),
        KeepChoice::Seeded { seed, percent } => format!("seed:{seed:x}/{percent}"),
        KeepChoice::Prefix(count) => format!("prefix:{count}"),
        KeepChoice::AllBut(index) => format!("but:{index}"),
        KeepChoice::Only(index) => format!("only:{index}"),
        KeepChoice::By(_) => "by".into(),
    }
}

/// Parses a word written by [`format_keep`].
#[must_use]
pub fn parse_keep(word: &str) -> Option<KeepChoice> {
    let (kind, number) = word.split_once(':').unwrap_or((word, ""));
    Some(match kind {
        "none" => KeepChoice::None,
        "all" => KeepChoice::All,
        "mask" => KeepChoice::Mask(u64::from_str_radix(number, 16).ok()?),
        "seed" => {
            let (seed, percent) = number.split_once('/')?;
            KeepChoice::Seeded { seed: u64::from_str_radix(seed, 16).ok()?, percent: percent.parse().ok()? }
        }
        "prefix" => KeepChoice::Prefix(number.parse().ok()?),
        "but" => KeepChoice::AllBut(number.parse().ok()?),
        "only" => KeepChoice::Only(number.parse().ok()?),
        _ => return None,
    })
}

/// Returns the name of a plan's engine, with a suffix if the disk tears sectors.
#[must_use]
pub fn plan_name(plan: &ExplorePlan) -> String {
    format!("{}{}", plan.subject.name, if plan.tears_sectors { TORN_SUFFIX } else { "" })
}

/// Returns the shell command that runs a line again.
#[must_use]
pub fn replay_command(line: &str) -> String {
    format!(
        "SHEAF_CRASH='{line}' cargo test -p sheaf-testkit --test suites crash::replay_a_line -- --ignored --nocapture"
    )
}

/// Parses the setting of a line. Returns the plan and the rest of the line.
fn parse_plan(line: &str) -> Result<(ExplorePlan, &str), String> {
    let (setting, rest) = line.split_once(':').ok_or("a line begins with an engine and a colon")?;
    let paranoid = setting.ends_with(TORN_SUFFIX);
    let engine = setting.trim_end_matches(TORN_SUFFIX).trim();
    let subject = TestSubject::by_name(engine).ok_or(format!("{engine:?} is no engine"))?;
    Ok((ExplorePlan { subject, tears_sectors: paranoid, ..ExplorePlan::default() }, rest))
}

/// Runs the crash of a replay line again and prints its course.
///
/// # Errors
///
/// Returns the violation, or the reason why the line is invalid.
pub fn replay(line: &str) -> Result<(), String> {
    let (plan, line) = parse_plan(line)?;
    let mut parts = line.split('@').map(str::trim);
    let steps = parts.next().and_then(parse_steps).ok_or("no steps")?;
    let Some(first) = parts.next() else {
        let report = explore(&steps, &plan);
        println!("{report}");
        return report.failure.map_or(Ok(()), |failure| Err(failure.to_string()));
    };
    let (points, history, ran) = record_points(&steps, &plan);
    ran?;
    let (number, keep) = parse_point(first)?;
    let point = points.get(number).ok_or("no such moment")?;
    println!("{} of {} moments; promised: {:?}", number, points.len(), point.marks);
    println!("{}", point.image.pending().describe(keep.as_ref().unwrap_or(&KeepChoice::All)));
    let mut scene = CrashReplay::new(&plan, &history, number, point);
    let result = scene.crash(keep.as_ref());
    let Some(second) = parts.next() else {
        return result;
    };
    let (number, keep) = parse_point(second)?;
    let keep = keep.ok_or("a second crash is a power cut")?;
    let moment = scene.recording.crash_points.get(number).ok_or("no such moment of the recovery")?;
    println!("second: {} of {} moments; {:?}", number, scene.recording.crash_points.len(), moment.marks);
    println!("{}", moment.image.pending().describe(&keep));
    scene.crash_again(number, &keep)
}

/// A point of a workload at which several crashes are tried.
struct CrashReplay<'a> {
    plan: &'a ExplorePlan,
    expected: ExpectedPrefix<'a>,
    number: usize,
    point: &'a CrashPoint,
    recording: RecoveryRecording,
}

impl<'a> CrashReplay<'a> {
    fn new(
        plan: &'a ExplorePlan,
        history: &'a CommitHistory,
        number: usize,
        point: &'a CrashPoint,
    ) -> CrashReplay<'a> {
        let marks = point.marks;
        let expected = ExpectedPrefix {
            history,
            min_commits: marks.durable,
            min_after_power_cut: marks.durable,
            max_commits: marks.issued,
            seen_seq: marks.seq,
            now: point.now,
        };
        CrashReplay { plan, expected, number, point, recording: RecoveryRecording::default() }
    }

    /// Runs the first crash, and records its recovery.
    fn crash(&mut self, keep: Option<&KeepChoice>) -> Result<(), String> {
        let (image, from) = match keep {
            Some(keep) => (self.point.image.power_cut(keep), self.point.marks.durable),
            None => (self.point.image.kill(), self.point.marks.acked),
        };
        self.expected.min_commits = from;
        let print = image_fingerprint(&image, self.number, keep.is_none(), self.point.now);
        let end = AfterRecovery::from_number(print);
        let machine = TestMachine::for_subject(&self.plan.subject, image);
        check(&machine, self.expected, end, Some(&mut self.recording)).map(drop)
    }

    /// Runs a second crash, at a point of the recovery from the first.
    fn crash_again(&self, moment: usize, keep: &KeepChoice) -> Result<(), String> {
        let moment = self.recording.crash_points.get(moment).ok_or("no such moment of the recovery")?;
        let expected = second_expected(&self.recording, moment, self.expected);
        check(
            &TestMachine::for_subject(&self.plan.subject, moment.image.power_cut(keep)),
            expected,
            AfterRecovery::PowerCut,
            None,
        )
        .map(drop)
    }
}

fn parse_point(text: &str) -> Result<(usize, Option<KeepChoice>), String> {
    let (number, keep) = text.split_once(' ').ok_or("a moment is a number and a choice")?;
    let number = number.parse().map_err(|_| "a moment is a number")?;
    match keep.trim() {
        "killed" => Ok((number, None)),
        word => Ok((number, Some(parse_keep(word).ok_or(format!("unknown word {word:?}"))?))),
    }
}

/// Returns the smallest workload found within `seconds` that still fails, in any way.
#[must_use]
pub fn shrink(failure: CrashFailure, plan: &ExplorePlan, seconds: f64) -> CrashFailure {
    let watch = Stopwatch::start();
    let is_late = || watch.seconds() > seconds;
    let limit = (seconds / 4.0).min(plan.max_seconds);
    let plan = ExplorePlan { max_seconds: limit, max_states: u64::MAX, first_step: 0, ..plan.clone() };
    let mut best = failure;
    let mut chunk = best.steps.len() / 2;
    while chunk > 0 && !is_late() {
        let mut from = 0;
        let mut shorter = false;
        while from < best.steps.len() && !is_late() {
            let mut steps: Vec<CrashStep> = best.steps.clone();
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
    minimize_loss(best, &plan)
}

/// Returns the same failure with as few lost units as possible in its last crash.
fn minimize_loss(mut failure: CrashFailure, plan: &ExplorePlan) -> CrashFailure {
    let (points, history, _) = record_points(&failure.steps, plan);
    let Some(point) = points.get(failure.crash_point) else {
        return failure;
    };
    let mut scene = CrashReplay::new(plan, &history, failure.crash_point, point);
    if let Some((moment, keep)) = failure.second_crash.clone() {
        let first = scene.crash(failure.kept_units.as_ref());
        let pending = scene.recording.crash_points.get(moment).map(|m| m.image.pending());
        if let (Ok(()), Some(pending)) = (first, pending) {
            let kept = keep_more(&pending, &keep, |keep| scene.crash_again(moment, keep));
            if let Some((keep, what)) = kept {
                (failure.second_crash, failure.mismatch) = (Some((moment, keep)), what);
            }
        }
    } else if let Some(keep) = &failure.kept_units {
        let kept = keep_more(&point.image.pending(), keep, |keep| scene.crash(Some(keep)));
        if let Some((keep, what)) = kept {
            (failure.kept_units, failure.mismatch) = (Some(keep), what);
        }
    }
    failure
}

/// Adds kept units to `keep` one after another, as long as `crash` still fails. Returns `None` if
/// no unit can be added.
fn keep_more(
    pending: &PendingUnits,
    keep: &KeepChoice,
    mut crash: impl FnMut(&KeepChoice) -> Result<(), String>,
) -> Option<(KeepChoice, String)> {
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
        if let Err(what) = crash(&KeepChoice::Mask(more)) {
            mask = more;
            best = Some((KeepChoice::Mask(more), what));
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
            assert_eq!(format_keep(&parse_keep(word).unwrap()), word);
        }
    }
}
