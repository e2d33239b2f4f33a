//! # Lines of docs/reliability/LEDGER.md
//!
//! A campaign finds its line by its start (day, commit, harness, engine, first seed) and replaces
//! it. A lock on the file lets several campaigns write in parallel.

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::process::Command;

use crate::shell::project_root;

const LEDGER_FILE: &str = "docs/reliability/LEDGER.md";

/// Result of one turn, or of all turns of one line.
#[derive(Clone, Debug, Default)]
pub(crate) struct TurnTotals {
    pub(crate) cases: u64,
    pub(crate) seconds: f64,
    pub(crate) failures: u64,
}

/// Results of one harness on one engine.
pub(crate) struct LedgerLine {
    pub(crate) harness: String,
    pub(crate) engine: String,
    /// Seed of the first turn. Each next seed is larger by `stride`.
    pub(crate) seed: u64,
    pub(crate) turns: u64,
    pub(crate) sum: TurnTotals,
    stride: u64,
    begin: String,
}

impl LedgerLine {
    pub(crate) fn new(
        day: &str,
        commit: &str,
        harness: &str,
        engine: &str,
        seed: u64,
        stride: u64,
    ) -> LedgerLine {
        LedgerLine {
            harness: harness.to_owned(),
            engine: engine.to_owned(),
            seed,
            turns: 0,
            sum: TurnTotals::default(),
            stride,
            begin: format!("| {day} | {commit} | {harness} | {engine} | {seed} "),
        }
    }

    /// Adds the result of a turn.
    pub(crate) fn add(&mut self, turn: &TurnTotals) {
        self.turns += 1;
        self.sum.cases += turn.cases;
        self.sum.seconds += turn.seconds;
        self.sum.failures += turn.failures;
    }

    fn text(&self) -> String {
        let TurnTotals { cases, seconds, failures } = &self.sum;
        let turns = match self.turns {
            1 => String::new(),
            turns => format!("+ {} k, k < {turns} ", self.stride),
        };
        format!("{}{turns}| {cases} | {seconds:.0} | {failures} |", self.begin)
    }

    /// Writes the line to the ledger, and replaces its previous version.
    pub(crate) fn update_file(&self) -> Result<(), String> {
        self.try_update_file().map_err(|e| format!("{LEDGER_FILE}: {e}"))
    }

    fn try_update_file(&self) -> std::io::Result<()> {
        let mut file =
            fs::OpenOptions::new().read(true).write(true).open(project_root().join(LEDGER_FILE))?;
        file.lock()?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        match lines.iter_mut().find(|line| line.starts_with(&self.begin)) {
            Some(line) => *line = self.text(),
            None => lines.push(self.text()),
        }
        text = lines.join("\n") + "\n";
        file.seek(SeekFrom::Start(0))?;
        file.write_all(text.as_bytes())?;
        file.set_len(text.len() as u64)
    }
}

/// Returns the day and the commit, with a `+` if the working tree has changes outside of docs.
pub(crate) fn today() -> (String, String) {
    let said = |program: &str, words: &[&str]| {
        let output = Command::new(program).args(words).current_dir(project_root()).output();
        output.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned()).unwrap_or_default()
    };
    let is_clean = said("git", &["status", "--porcelain", "--", ".", ":!docs"]).is_empty();
    let commit = said("git", &["rev-parse", "--short", "HEAD"]) + if is_clean { "" } else { "+" };
    (said("date", &["-u", "+%F"]), commit)
}
