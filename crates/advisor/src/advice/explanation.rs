//! # Words: reasons for the rank of a candidate
//!
//! Compares a candidate with its best rival: lists the parts of the load with the largest
//! differences, and their measured costs.

use super::{AdviceRequest, Candidate, CostPart};

/// Smallest part of the largest difference that is listed.
const MIN_DIFFERENCE: f64 = 0.1;

/// Adds the reasons and drawbacks to each candidate.
pub(super) fn explain(question: &AdviceRequest<'_>, candidates: &mut [Candidate]) {
    for index in 0..candidates.len() {
        let rival = if index == 0 { candidates.get(1) } else { candidates.first() };
        let reasons = rival.map(|rival| differences(&candidates[index], rival)).unwrap_or_default();
        let hurts = drawbacks(question, &candidates[index], candidates);
        (candidates[index].reasons, candidates[index].drawbacks) = (reasons, hurts);
    }
}

/// Returns the differences between two candidates, the largest first.
fn differences(mine: &Candidate, rival: &Candidate) -> Vec<String> {
    let mut parts: Vec<(f64, &CostPart, &CostPart)> = mine
        .parts
        .iter()
        .filter_map(|part| {
            let theirs = rival.parts.iter().find(|other| other.operation == part.operation)?;
            Some((part.share * (part.ns - theirs.ns), part, theirs))
        })
        .collect();
    let largest = parts.iter().map(|part| part.0.abs()).fold(0.0, f64::max);
    parts.retain(|part| part.0.abs() > largest * MIN_DIFFERENCE && part.0.abs() > mine.ns * 0.01);
    parts.sort_by(|a, b| b.0.abs().total_cmp(&a.0.abs()));
    parts.iter().take(3).map(|(_, mine, theirs)| describe_difference(mine, theirs, rival.engine)).collect()
}

fn describe_difference(mine: &CostPart, theirs: &CostPart, rival: &str) -> String {
    let (times, word) = match mine.ns < theirs.ns {
        true => (theirs.ns / mine.ns, "faster than"),
        false => (mine.ns / theirs.ns, "slower than"),
    };
    format!(
        "{} ({:.0} % of the operations): {}, {times:.1} × {word} {rival} ({})",
        mine.operation,
        mine.share * 100.0,
        time(mine.ns),
        time(theirs.ns)
    )
}

fn drawbacks(question: &AdviceRequest<'_>, mine: &Candidate, all: &[Candidate]) -> Vec<String> {
    let mut hurts = Vec::new();
    let least = |of: fn(&Candidate) -> f64| all.iter().map(of).fold(f64::INFINITY, f64::min);
    let writes = question.workload.writes() as f64 / question.workload.operations().max(1) as f64;
    if writes > 0.05 && mine.write_amplification > least(|c| c.write_amplification) * 1.3 {
        hurts.push(format!("writes {:.1} bytes to the device for each byte", mine.write_amplification));
    }
    if writes > 0.05 && mine.space_amplification > least(|c| c.space_amplification) * 1.3 {
        hurts.push(format!(
            "uses up to {:.1} × the live data on disk under updates",
            mine.space_amplification
        ));
    }
    if mine.hit_rate < 0.9 {
        let (needed, budget) = (size(mine.resident_bytes), size(question.memory_budget));
        hurts.push(format!(
            "{:.0} % of the reads hit memory: the working set needs {needed}, the budget is {budget}",
            mine.hit_rate * 100.0
        ));
    }
    if mine.index_bytes > question.memory_budget / 4 {
        hurts.push(format!("its index needs {} of memory", size(mine.index_bytes)));
    }
    hurts
}

/// Formats a size in bytes.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "three digits are shown")]
pub(super) fn size(bytes: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.iter().find(|(_, bits)| bytes >= 1 << bits) {
        Some((unit, bits)) => format!("{:.1} {unit}", bytes as f64 / f64::from(1u32 << bits)),
        None => format!("{bytes} B"),
    }
}

fn time(ns: f64) -> String {
    if ns < 1000.0 { format!("{ns:.0} ns") } else { format!("{:.1} µs", ns / 1000.0) }
}
