//! # Life cycle of a database: each state is read, repaired, converted, copied and moved
//!
//! All steps use the command, like a user. A *state* is a directory that was closed, killed,
//! restored, repaired, converted, copied or moved. Every reading verb must work on every state.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::CaseResult;
use crate::case::{ALL_ENGINES, CaseContext, FieldCase};
use crate::figure::FieldFigure;
use crate::processes::HolderProcess;

/// Pairs of the database, enough for several segments and intervals.
const PAIRS: u64 = 20_000;

pub(crate) fn cases() -> Vec<FieldCase> {
    let short = &["flex", "delsm"];
    vec![FieldCase { name: "life-cycle", engines: ALL_ENGINES, short, deadline_s: 600, run: lifecycle }]
}

/// Counts of the steps that ran and that failed.
struct LifeSteps<'a> {
    context: &'a CaseContext,
    run: u64,
    failed: u64,
}

impl LifeSteps<'_> {
    /// Runs `sheaf VERB ...`. Counts and shows a failure.
    fn sheaf(&mut self, words: &[&str]) -> Option<Output> {
        self.run += 1;
        let mut command = Command::new(&self.context.sheaf);
        command.args(words).current_dir(&self.context.dir).stdin(Stdio::null());
        let told = match command.output() {
            Ok(output) if output.status.success() => return Some(output),
            Ok(output) => format!("{}: {}", output.status, text(&output.stderr)),
            Err(refusal) => refusal.to_string(),
        };
        self.fail(&format!("sheaf {}: {told}", words.join(" ")));
        None
    }

    fn fail(&mut self, told: &str) {
        self.failed += 1;
        println!("{}", told.trim_end());
    }

    /// Runs every reading verb on `name`.
    fn read(&mut self, name: &str) {
        self.sheaf(&["verify", name]);
        for words in [&["stats", name][..], &["keyspaces", name]] {
            self.sheaf(words);
        }
        if let Some(got) = self.sheaf(&["get", name, "-k", "data", "k7"])
            && !got.stdout.starts_with(b"v7-")
        {
            self.fail(&format!("{name}: get prints {:?}", text(&got.stdout)));
        }
        self.count(name);
        if let Some(dump) = self.sheaf(&["dump", name, "-k", "data"]) {
            let lines = dump.stdout.split(|&byte| byte == b'\n');
            let pairs = lines.filter(|line| line.starts_with(b"k") && line.contains(&b'\t')).count();
            if pairs as u64 != PAIRS {
                self.fail(&format!("{name}: dump has {pairs} pairs"));
            }
        }
    }

    fn count(&mut self, name: &str) {
        let Some(scan) = self.sheaf(&["scan", name, "-k", "data"]) else { return };
        let pairs = scan.stdout.iter().filter(|&&byte| byte == b'\n').count();
        if pairs as u64 != PAIRS {
            self.fail(&format!("{name}: scan has {pairs} pairs"));
        }
    }

    /// Reads the state, then repairs it, moves it and converts it.
    fn check_state(&mut self, name: &str, other: &str) -> CaseResult {
        self.read(name);
        let repaired = format!("{name}-repaired");
        if self.sheaf(&["repair", name, &repaired]).is_some() {
            self.count(&repaired);
        }
        let moved = format!("{name}-moved");
        copy(&self.context.dir.join(name), &self.context.dir.join(&moved))?;
        if self.sheaf(&["convert", &moved, "-k", "data", "--to", other]).is_some() {
            self.read(&moved);
        }
        for passing in [&repaired, &moved] {
            let _ = fs::remove_dir_all(self.context.dir.join(passing));
        }
        Ok(())
    }
}

fn lifecycle(context: &CaseContext) -> CaseResult {
    let mut steps = LifeSteps { context, run: 0, failed: 0 };
    let other = if context.engine == "flex" { "kreon" } else { "flex" };
    let at = |name: &str| context.dir.join(name);
    let lines: String = (0..PAIRS).map(|n| format!("k{n}\tv{n}-{}\n", "x".repeat(60))).collect();
    fs::write(at("pairs.tsv"), lines)?;
    steps.sheaf(&["load", "closed", "-k", "data", "-e", &context.engine, "pairs.tsv"]);
    steps.check_state("closed", other)?;

    copy(&at("closed"), &at("open"))?;
    let writer = HolderProcess::start("open", &at("open"), &context.engine)?;
    steps.read("open");
    steps.sheaf(&["backup", "open", "backup"]);
    writer.kill()?;
    copy(&at("open"), &at("killed"))?;
    steps.check_state("killed", other)?;
    steps.sheaf(&["put", "open", "-k", "more", "key", "value"]);
    steps.check_state("open", other)?;

    steps.sheaf(&["restore", "backup", "restored"]);
    steps.check_state("restored", other)?;
    fs::rename(at("restored"), at("moved"))?;
    steps.check_state("moved", other)?;
    report(&steps);
    Ok(())
}

fn report(steps: &LifeSteps<'_>) {
    FieldFigure::new("steps", steps.run as f64, "").report();
    FieldFigure::new("failed steps", steps.failed as f64, "").at_most(0.0).report();
}

/// Copies a directory with its content, like `cp -r`, but without sockets.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (kind, target): (_, PathBuf) = (entry.file_type()?, to.join(entry.file_name()));
        if kind.is_dir() {
            copy(&entry.path(), &target)?;
        } else if kind.is_file() {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(300)]).into_owned()
}
