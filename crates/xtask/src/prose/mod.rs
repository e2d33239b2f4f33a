//! # Prose gate: the language of comments, documents and messages
//!
//! Counts violations of the language rules in each file and compares them with the counts that the
//! ratchet file records. No count may grow, so that old text may stay until it is rewritten and new
//! text must be plain.
//!
//! ## Picture
//!
//! ```text
//! files ─ source::read ─> comments, strings, signatures ─ rules::violations ─> ProseCounts
//!                                                          ratchet::compare <───────┘
//! ```
//!
//! ## Invariants
//!
//! 1. A file without a line in the ratchet file must have no violation, except dialect words within
//!    [`rules::allowed`].
//! 2. `--update` never raises a total of a crate or of docs.
//! 3. Every rule has samples that must fail (`samples/`), checked by the tests of [`rules`].

mod ratchet;
mod rules;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::shell::project_root;
use ratchet::Ratchet;
use rules::ProseCounts;

/// Directories without prose of the project.
const SKIPPED: [&str; 4] = ["target", ".git", "samples", "corpus"];

/// Counts of every file, by its path below the root.
type FileCounts = BTreeMap<String, ProseCounts>;

/// Checks the language of all files. `--update` records smaller counts, and `--list PATH` shows the
/// violations of the files with PATH in their path.
///
/// # Errors
///
/// Returns a text that lists the files that got worse, or an unknown argument.
pub(crate) fn prose(words: &[String]) -> Result<(), String> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        [] => ratchet::compare(&count_files()?, &Ratchet::read()?),
        ["--update"] => Ratchet::update(&count_files()?),
        ["--list", part] => list(part),
        ["--totals"] => count_files().map(|found| totals(&found)),
        _ => Err("usage: cargo xtask prose [--update | --totals | --list PATH]".to_owned()),
    }
}

/// Returns the paths and texts of the Rust files that `is_wanted` selects by path.
pub(crate) fn rust_files(is_wanted: impl Fn(&str) -> bool) -> Result<Vec<(String, String)>, String> {
    let paths = files()?.into_iter().filter(|path| path.ends_with(".rs") && is_wanted(path));
    let read = |path: String| match fs::read_to_string(project_root().join(&path)) {
        Ok(text) => Ok((path, text)),
        Err(error) => Err(format!("{path}: {error}")),
    };
    paths.map(read).collect()
}

/// Returns the paths of all files with prose, relative to the root: those that git tracks, or
/// without git all files below the root.
pub(crate) fn files() -> Result<Vec<String>, String> {
    let mut command = Command::new("git");
    command.args(["ls-files", "--", "*.rs", "*.md"]).current_dir(project_root());
    let mut paths: Vec<String> = match command.output() {
        Ok(output) if output.status.success() => {
            let names = String::from_utf8_lossy(&output.stdout).into_owned();
            names.lines().filter(|name| is_prose(name)).map(str::to_owned).collect()
        }
        _ => {
            let mut paths = Vec::new();
            collect_files(&project_root(), &project_root(), &mut paths)?;
            paths
        }
    };
    paths.sort();
    Ok(paths)
}

/// Returns whether the path is outside of the directories without prose, and the file exists.
fn is_prose(path: &str) -> bool {
    !path.split('/').any(|part| SKIPPED.contains(&part)) && project_root().join(path).is_file()
}

fn collect_files(root: &Path, dir: &Path, paths: &mut Vec<String>) -> Result<(), String> {
    let told = |e: std::io::Error| format!("{}: {e}", dir.display());
    for entry in fs::read_dir(dir).map_err(told)? {
        let entry = entry.map_err(told)?;
        let (path, name) = (entry.path(), entry.file_name());
        if SKIPPED.iter().any(|skipped| name == *skipped) {
            continue;
        }
        if path.is_dir() {
            collect_files(root, &path, paths)?;
        } else if path.extension().is_some_and(|end| end == "rs" || end == "md")
            && let Ok(below) = path.strip_prefix(root)
        {
            paths.push(below.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

fn count_files() -> Result<FileCounts, String> {
    let mut found = FileCounts::new();
    for path in files()? {
        let text = fs::read_to_string(project_root().join(&path)).map_err(|e| format!("{path}: {e}"))?;
        let counts = rules::violations(&path, &text).counts();
        found.insert(path, counts);
    }
    Ok(found)
}

fn list(part: &str) -> Result<(), String> {
    for path in files()?.iter().filter(|path| path.contains(part)) {
        let text = fs::read_to_string(project_root().join(path)).map_err(|e| format!("{path}: {e}"))?;
        for (line, told) in &rules::violations(path, &text).list {
            println!("{path}:{line}: {told}");
        }
    }
    Ok(())
}

/// Prints the counts of each crate and of the documents.
fn totals(found: &FileCounts) {
    let mut areas: BTreeMap<String, ProseCounts> = BTreeMap::new();
    for (path, counts) in found {
        areas.entry(ratchet::area(path)).or_default().add(counts);
    }
    println!("{:<28} {}", "area", ProseCounts::HEADINGS);
    for (area, counts) in &areas {
        println!("{area:<28} {counts}");
    }
}
