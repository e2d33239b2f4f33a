//! # Ratchet: recorded counts, which may only shrink
//!
//! Has one line for each file with a violation: the path, then the counts of the five rules. A file
//! without a line has no violations.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;

use super::FileCounts;
use super::rules::allowed;
use crate::shell::project_root;

/// Path of the ratchet file below the root.
const FILE: &str = "crates/xtask/prose.ratchet";
/// Names of the rules, in the order of the columns.
const RULES: [&str; 5] =
    ["dialect words", "doc starts", "wide comment lines", "missing # Errors", "long headers"];

/// Recorded counts by path.
#[derive(Debug, Default)]
pub(super) struct Ratchet(BTreeMap<String, [usize; 5]>);

impl Ratchet {
    /// Reads the ratchet file.
    ///
    /// # Errors
    ///
    /// Returns a text if the file is missing or a line is not a path and five counts.
    pub(super) fn read() -> Result<Ratchet, String> {
        let text = fs::read_to_string(project_root().join(FILE)).map_err(|e| format!("{FILE}: {e}"))?;
        Ratchet::parse(&text)
    }

    fn parse(text: &str) -> Result<Ratchet, String> {
        let mut counts = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let parts: Vec<&str> = line.split('\t').collect();
            let [path, numbers @ ..] = &parts[..] else { return Err(format!("{FILE}: {line}")) };
            let numbers: Result<Vec<usize>, _> = numbers.iter().map(|n| n.parse()).collect();
            let numbers = numbers.ok().and_then(|numbers| numbers.try_into().ok());
            counts.insert((*path).to_owned(), numbers.ok_or_else(|| format!("{FILE}: {line}"))?);
        }
        Ok(Ratchet(counts))
    }

    /// Records the present counts. Within one crate, text may move between files, so counts of a
    /// file may grow; no total of a crate may grow.
    ///
    /// # Errors
    ///
    /// Returns a text with the total that grew, or with the error of the write.
    pub(super) fn update(found: &FileCounts) -> Result<(), String> {
        let path = project_root().join(FILE);
        if path.exists() {
            shrinks(&Ratchet::read()?, found)?;
        }
        fs::write(&path, Ratchet::text(found)).map_err(|e| format!("{FILE}: {e}"))
    }

    fn text(found: &FileCounts) -> String {
        let mut text =
            format!("# Violations that may stay: path, {}. Counts only shrink.\n", RULES.join(", "));
        for (path, counts) in found {
            let [dialect, others @ ..] = counts.by_rule;
            if dialect > allowed(counts.words) || others != [0; 4] {
                let numbers = counts.by_rule.map(|count| count.to_string()).join("\t");
                let _ = writeln!(text, "{path}\t{numbers}");
            }
        }
        text
    }
}

/// Returns the crate of a path, or `docs` for documents.
pub(super) fn area(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').collect();
    match parts[..] {
        ["crates", "engines", name, ..] | ["crates", name, ..] => name.to_owned(),
        ["fuzz", ..] => "fuzz".to_owned(),
        _ => "docs".to_owned(),
    }
}

fn shrinks(old: &Ratchet, found: &FileCounts) -> Result<(), String> {
    let mut totals: BTreeMap<String, ([usize; 5], [usize; 5])> = BTreeMap::new();
    let add = |sum: &mut [usize; 5], more: &[usize; 5]| {
        sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
    };
    for (path, counts) in &old.0 {
        add(&mut totals.entry(area(path)).or_default().0, counts);
    }
    for (path, counts) in found {
        let mut broken = counts.by_rule;
        if !old.0.contains_key(path) && broken[0] <= allowed(counts.words) {
            broken[0] = 0;
        }
        add(&mut totals.entry(area(path)).or_default().1, &broken);
    }
    for (area, (before, now)) in totals {
        for ((rule, before), now) in RULES.iter().zip(before).zip(now) {
            if now > before {
                return Err(format!("{area}: {rule} grew from {before} to {now}"));
            }
        }
    }
    Ok(())
}

/// Compares the present counts with the recorded ones.
///
/// # Errors
///
/// Returns a text with every count that grew. Returns an error also if a recorded count is too
/// large.
pub(super) fn compare(found: &FileCounts, old: &Ratchet) -> Result<(), String> {
    let mut told = String::new();
    let paths: BTreeSet<&String> = found.keys().chain(old.0.keys()).collect();
    let mut is_slack = false;
    for path in paths {
        let counts = found.get(path).copied().unwrap_or_default();
        let recorded = old.0.get(path).copied();
        let before = recorded.unwrap_or([allowed(counts.words), 0, 0, 0, 0]);
        for ((rule, before), now) in RULES.iter().zip(before).zip(counts.by_rule) {
            if now > before {
                let _ = writeln!(told, "{path}: {rule}: {now}, at most {before}");
            }
            is_slack |= recorded.is_some() && now < before;
        }
    }
    if !told.is_empty() {
        return Err(format!("{told}`cargo xtask prose --list PATH` shows the lines"));
    }
    if is_slack {
        return Err("some files got better: record it with `cargo xtask prose --update`".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::rules::ProseCounts;
    use super::*;

    fn found(path: &str, words: usize, broken: [usize; 5]) -> FileCounts {
        FileCounts::from([(path.to_owned(), ProseCounts { words, by_rule: broken })])
    }

    #[test]
    fn a_count_that_grows_and_one_that_was_not_recorded_smaller_are_refused() {
        let old = Ratchet::parse("# counts\ncrates/store/a.rs\t5\t1\t0\t0\t0\n").unwrap();
        assert!(compare(&found("crates/store/a.rs", 100, [5, 1, 0, 0, 0]), &old).is_ok());
        let grown = compare(&found("crates/store/a.rs", 100, [6, 1, 0, 0, 0]), &old).unwrap_err();
        assert!(grown.contains("crates/store/a.rs: dialect words: 6, at most 5"), "{grown}");
        let better = compare(&found("crates/store/a.rs", 100, [4, 1, 0, 0, 0]), &old).unwrap_err();
        assert!(better.contains("--update"), "{better}");
    }

    #[test]
    fn a_new_file_must_be_plain() {
        let old = Ratchet::default();
        assert!(compare(&found("crates/store/new.rs", 1_000, [3, 0, 0, 0, 0]), &old).is_ok());
        assert!(compare(&found("crates/store/new.rs", 1_000, [4, 0, 0, 0, 0]), &old).is_err());
        assert!(compare(&found("crates/store/new.rs", 1_000, [0, 0, 1, 0, 0]), &old).is_err());
    }

    #[test]
    fn an_update_may_move_text_within_a_crate_and_never_raises_a_total() {
        let old = Ratchet::parse("crates/store/a.rs\t5\t0\t0\t0\t0\n").unwrap();
        assert!(shrinks(&old, &found("crates/store/b.rs", 100, [5, 0, 0, 0, 0])).is_ok());
        assert!(shrinks(&old, &found("crates/store/b.rs", 100, [6, 0, 0, 0, 0])).is_err());
        assert!(shrinks(&old, &found("crates/sheaf/b.rs", 100, [5, 0, 0, 0, 0])).is_err());
    }

    #[test]
    fn a_line_that_is_no_record_is_an_error() {
        for bad in ["a.rs\t1\t2", "a.rs\t1\t2\tx\t0\t0", "a.rs"] {
            assert!(Ratchet::parse(bad).is_err(), "{bad}");
        }
    }
}
