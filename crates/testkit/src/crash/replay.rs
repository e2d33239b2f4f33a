//! # Replay: a failure as one line, made smaller and run again
//!
//! ```text
//!  <steps> @ <call> <keep> [@ <call of the recovery> <keep>]
//!  keep: killed | none | all | mask:<hex> | only:<n> | but:<n> | prefix:<n> | seed:<hex>/<percent>
//! ```

use sheaf_base::clock::{Clock, SystemClock};
use sheaf_base::disk::sim::Keep;

use super::check::{Claim, End, Probe, check};
use super::explore::{Failure, Plan, explore, print_of, record, second_claim};
use super::workload::{Step, parse, show};
use super::world::World;

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

/// Runs the crash of one replay line again: what it prints is the story, what it answers the verdict.
pub fn replay(line: &str, plan: &Plan) -> Result<(), String> {
    let mut parts = line.split('@').map(str::trim);
    let steps = parts.next().and_then(parse).ok_or("no steps")?;
    let (points, history, ran) = record(&steps, plan);
    ran?;
    let Some(first) = parts.next() else {
        let report = explore(&steps, plan);
        println!("{report}");
        return report.failure.map_or(Ok(()), |failure| Err(failure.to_string()));
    };
    let (number, keep) = place(first)?;
    let point = points.get(number).ok_or("no such moment")?;
    let image = match &keep {
        Some(keep) => point.image.power_cut(keep),
        None => point.image.kill(),
    };
    let from = if keep.is_some() { point.marks.durable } else { point.marks.acked };
    println!("{} of {} moments; promised: {:?}", number, points.len(), point.marks);
    println!("{}", point.image.pending().describe(keep.as_ref().unwrap_or(&Keep::All)));
    let claim = Claim {
        history: &history,
        from,
        durable: point.marks.durable,
        to: point.marks.issued,
        seq: point.marks.seq,
    };
    let mut probe = Probe::default();
    let end = End::of(print_of(&image, number, keep.is_none()));
    let result = check(&World::on(image), claim, end, Some(&mut probe));
    let Some(second) = parts.next() else {
        return result.map(drop);
    };
    let (number, keep) = place(second)?;
    let keep = keep.ok_or("a second crash is a power cut")?;
    let moment = probe.moments.get(number).ok_or("no such moment of the recovery")?;
    println!("second: {} of {} moments; {:?}", number, probe.moments.len(), moment.marks);
    println!("{}", moment.image.pending().describe(&keep));
    let claim = second_claim(&probe, moment, claim);
    check(&World::on(moment.image.power_cut(&keep)), claim, End::Cut, None).map(drop)
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
    let started = SystemClock.now();
    let is_late = || (SystemClock.now() - started).as_secs_f64() > seconds;
    let plan = Plan { seconds: (seconds / 4.0).min(plan.seconds), ..plan.clone() };
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

/// The same failure with as little lost as possible, if it is one of a single crash.
fn lose_less(mut failure: Failure, plan: &Plan) -> Failure {
    if failure.second.is_some() {
        return failure;
    }
    let (points, ..) = record(&failure.steps, plan);
    let (Some(point), Some(keep)) = (points.get(failure.point), &failure.keep) else {
        return failure;
    };
    let pending = point.image.pending();
    if pending.len() > 64 {
        return failure;
    }
    let kept = pending.units().iter().enumerate().filter(|(index, unit)| keep.keeps(*index, unit));
    let mut mask: u64 = kept.map(|(index, _)| 1 << index).sum();
    for index in 0..pending.len() {
        let more = mask | 1 << index;
        if more == mask {
            continue;
        }
        let line = format!("{} @ {} mask:{more:x}", show(&failure.steps), failure.point);
        if let Err(what) = replay(&line, plan) {
            (mask, failure.what) = (more, what);
        }
    }
    failure.keep = Some(Keep::Mask(mask));
    failure
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
