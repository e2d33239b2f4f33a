//! # `repair`: salvages the intact data of a damaged database into a new one
//!
//! ## Report
//!
//! ```text
//!  lost      KEYSPACE  KEY  commit 17  REASON      in the order of reading, keys escaped
//!  doubtful  KEYSPACE  KEY  commit 12
//!  unnamed   KEYSPACE  173 pairs  FILE  REASON     then lost pairs without a known key, by file
//!  gap       KEYSPACE  KEY  KEY         REASON     and the keys around each unreadable range
//!  damage    FILE      FROM-TO         KIND        then all damaged places and missing commits
//!  missing   commits 20 to 22
//!  ...                                             then the keyspaces, always on stdout
//! ```
//!
//! With `--json` each line is an object with a field `kind`.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use sheaf::{
    DamagedFile, Database, KeyspaceRepair, LostRecords, RepairFinding, RepairOptions, RepairOutcome,
    RepairReport, UnreadableRange,
};

use crate::args::{CopyModeArgs, WaitArgs};
use crate::failure::{Failure, Result, combine};
use crate::interrupt::Interrupt;
use crate::open::check_parent;
use crate::output::{Stopwatch, byte_bar, stdout, time};
use crate::text_format::parse_size;
use crate::text_format::{self, escape, many};

/// Arguments of `repair`.
#[derive(Debug, Args)]
pub(crate) struct Repair {
    /// Directory of the damaged database or backup
    #[arg(value_name = "DAMAGED")]
    pub(crate) damaged: PathBuf,
    /// Directory of the new database, which must be new or empty; its parent directory must exist
    #[arg(value_name = "NEW")]
    pub(crate) new: PathBuf,
    /// Also write doubtful pairs, for which a damaged place may contain a newer version
    #[arg(long)]
    pub(crate) keep_doubtful: bool,
    /// File for the list of doubtful and lost pairs and damaged places [default: stdout]
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Print JSON objects, one per line, with a field "kind"
    #[arg(long)]
    pub(crate) json: bool,
    /// Memory budget for both databases, in bytes or with KiB, MiB or GiB
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_size)]
    pub(crate) memory: u64,
    #[command(flatten)]
    pub(crate) wait: WaitArgs,
    #[command(flatten)]
    pub(crate) modes: CopyModeArgs,
}

pub(crate) fn run(args: &Repair) -> Result {
    check_parent(&args.new)?;
    let watch = Stopwatch::start();
    let bar = byte_bar("repair", 0);
    let mut report = FindingWriter::new(args)?;
    let interrupt = Interrupt::watch()?;
    let mut watcher = |progress: sheaf::RepairProgress| {
        bar.set_length(progress.total);
        bar.set_position(progress.done);
        interrupt.control_flow()
    };
    let mut listener = |finding: &RepairFinding<'_>| report.write_finding(finding);
    let options = RepairOptions::default()
        .keep_doubtful(args.keep_doubtful)
        .on_progress(&mut watcher)
        .on_finding(&mut listener);
    let done = args.modes.apply(Database::builder()).memory(args.memory).wait(args.wait.time).repair(
        &args.damaged,
        &args.new,
        options,
    );
    bar.finish_and_clear();
    let done = interrupt.map_cancelled(done, || "no partial database remains".to_owned())?;
    done.keyspaces.iter().for_each(|keyspace| report.write_losses(keyspace));
    report.write_damages(&done);
    let doubtful = done.keyspaces.iter().map(|keyspace| keyspace.doubtful).sum();
    let left_out = if args.keep_doubtful { 0 } else { doubtful };
    let verdict = if done.is_complete() { Ok(()) } else { Err(Failure::Lossy { left_out }) };
    let listed = report.end();
    let told = summarize(args, &done, &watch);
    combine(verdict, listed.and(told))
}

/// Writer of the report, to a file or stdout. The first error stops it; [`FindingWriter::end`]
/// returns it.
struct FindingWriter<'a> {
    out: Box<dyn Write>,
    path: Option<&'a Path>,
    is_json: bool,
    line: String,
    failed: Option<std::io::Error>,
}

impl<'a> FindingWriter<'a> {
    #[expect(clippy::disallowed_methods, reason = "the user's own file")]
    fn new(args: &'a Repair) -> Result<FindingWriter<'a>> {
        let path = args.report.as_deref();
        let out: Box<dyn Write> = match path {
            Some(path) => {
                Box::new(BufWriter::new(File::create(path).map_err(Failure::stream("create", path))?))
            }
            None => Box::new(stdout()),
        };
        Ok(FindingWriter { out, path, is_json: args.json, line: String::new(), failed: None })
    }

    fn write_line(&mut self) {
        self.line.push('\n');
        if self.failed.is_none() {
            self.failed = self.out.write_all(self.line.as_bytes()).err();
        }
        self.line.clear();
    }

    fn write_finding(&mut self, finding: &RepairFinding<'_>) {
        let (kind, why, kept) = match finding.outcome {
            RepairOutcome::Doubtful { is_copied: kept } => ("doubtful", None, Some(kept)),
            RepairOutcome::Lost { error: why } => ("lost", Some(why.to_string()), None),
            _ => return,
        };
        let seq = finding.seq.map(|seq| seq.0);
        if self.is_json {
            let (keyspace, key) = (finding.keyspace, text_format::json(finding.key));
            let object = json!({
                "kind": kind, "keyspace": keyspace, "key": key, "commit": seq, "kept": kept, "why": why
            });
            self.line.push_str(&object.to_string());
            return self.write_line();
        }
        self.line.push_str(kind);
        for field in [finding.keyspace.as_bytes(), finding.key] {
            self.line.push('\t');
            escape(field, &mut self.line);
        }
        let commit = seq.map_or_else(|| "commit unknown".to_owned(), |seq| format!("commit {seq}"));
        for field in [Some(commit), why].into_iter().flatten() {
            self.line.push('\t');
            escape(field.as_bytes(), &mut self.line);
        }
        self.write_line();
    }

    /// Lists the losses of a keyspace that have no line of their own: by file, and by range of
    /// keys.
    fn write_losses(&mut self, keyspace: &KeyspaceRepair) {
        for LostRecords { path, pairs, reason: why, .. } in &keyspace.lost_records {
            let path = path.display().to_string();
            if self.is_json {
                let object = json!({
                    "kind": "unnamed", "keyspace": keyspace.name, "pairs": pairs, "file": path, "why": why
                });
                self.line.push_str(&object.to_string());
            } else {
                self.fields(
                    &["unnamed", &keyspace.name, &many(*pairs, "pair"), &path, why].map(str::as_bytes),
                );
            }
            self.write_line();
        }
        for UnreadableRange { after, before, reason: why, .. } in &keyspace.unreadable_ranges {
            let (after, before) = (after.as_deref(), before.as_deref());
            if self.is_json {
                let object = json!({
                    "kind": "gap", "keyspace": keyspace.name, "after": after.map(text_format::json),
                    "before": before.map(text_format::json), "why": why
                });
                self.line.push_str(&object.to_string());
            } else {
                let (after, before) = (after.unwrap_or_default(), before.unwrap_or_default());
                self.fields(&[b"gap", keyspace.name.as_bytes(), after, before, why.as_bytes()]);
            }
            self.write_line();
        }
    }

    /// Appends fields, with tabs between them.
    fn fields(&mut self, fields: &[&[u8]]) {
        for (number, field) in fields.iter().enumerate() {
            if number > 0 {
                self.line.push('\t');
            }
            escape(field, &mut self.line);
        }
    }

    fn write_damages(&mut self, done: &RepairReport) {
        for DamagedFile { path, start: from, end: to, description: what, .. } in &done.damaged_files {
            let path = path.display().to_string();
            if self.is_json {
                let object = json!({ "kind": "damage", "file": path, "from": from, "to": to, "what": what });
                self.line.push_str(&object.to_string());
            } else {
                self.line.push_str("damage\t");
                escape(path.as_bytes(), &mut self.line);
                let to = to.map_or_else(String::new, |to| to.to_string());
                self.line.push_str(&format!("\t{from}-{to}\t"));
                escape(what.as_bytes(), &mut self.line);
            }
            self.write_line();
        }
        for (first, last) in &done.missing_commits {
            match self.is_json {
                true => self
                    .line
                    .push_str(&json!({ "kind": "missing", "first": first, "last": last }).to_string()),
                false => self.line.push_str(&format!("missing\tcommits {first} to {last}")),
            }
            self.write_line();
        }
    }

    fn end(mut self) -> Result {
        let flushed = self.failed.take().map_or_else(|| self.out.flush(), Err);
        match self.path {
            Some(path) => flushed.map_err(Failure::stream("write", path)),
            None => Ok(flushed?),
        }
    }
}

fn summarize(args: &Repair, done: &RepairReport, watch: &Stopwatch) -> Result {
    let mut out = stdout();
    for keyspace in &done.keyspaces {
        match args.json {
            true => writeln!(out, "{}", keyspace_json(keyspace))?,
            false => writeln!(out, "{}", keyspace_text(keyspace, args.keep_doubtful))?,
        }
    }
    if !args.json && done.keyspaces.iter().any(|keyspace| keyspace.is_name_lost) {
        writeln!(
            out,
            "a keyspace without its name is called lost-NUMBER: `sheaf rename` gives it another name"
        )?;
    }
    let certain = done.keyspaces.iter().map(|keyspace| keyspace.certain).sum();
    if args.json {
        let object = json!({
            "kind": "end", "whole": done.is_complete(), "commit": done.seq, "damages": done.damage_count,
            "rootless": done.is_root_unreadable, "catalogue doubtful": done.is_catalog_doubtful,
            "incomplete": done.is_incomplete, "seconds": watch.elapsed().as_secs_f64()
        });
        writeln!(out, "{object}")?;
        return Ok(out.flush()?);
    }
    if done.is_root_unreadable {
        writeln!(out, "neither ROOT.0 nor ROOT.1 can be read: no pair is certain")?;
    }
    if done.is_catalog_doubtful {
        writeln!(out, "missing commits may have created, cleared or dropped keyspaces")?;
    }
    if done.is_incomplete {
        writeln!(out, "a directory could not be listed: its files were skipped")?;
    }
    let (damages, pairs) = (many(done.damage_count, "damaged place"), many(certain, "pair"));
    writeln!(out, "{damages}, {pairs} salvaged with certainty in {}", time(watch.elapsed()))?;
    Ok(out.flush()?)
}

fn keyspace_json(keyspace: &KeyspaceRepair) -> serde_json::Value {
    let KeyspaceRepair {
        name,
        is_name_lost: nameless,
        engine,
        certain,
        doubtful,
        lost,
        lost_without_key: unnamed,
        has_more_lost: and_more,
        index_error: unindexed,
        ..
    } = keyspace;
    json!({
        "kind": "keyspace", "name": name, "name lost": nameless, "engine": engine, "whole": keyspace.is_complete(),
        "certain": certain, "doubtful": doubtful, "lost": lost, "unnamed": unnamed, "more lost": and_more, "unindexed": unindexed
    })
}

fn keyspace_text(keyspace: &KeyspaceRepair, kept: bool) -> String {
    let mut line = String::new();
    escape(keyspace.name.as_bytes(), &mut line);
    line.push_str(&format!("\t{}\t{} certain", keyspace.engine, keyspace.certain));
    if keyspace.is_name_lost {
        line.push_str(", its name is lost");
    }
    if keyspace.is_complete() {
        line.push_str(", whole");
    }
    if keyspace.doubtful > 0 {
        let fate = if kept { "kept" } else { "left out" };
        line.push_str(&format!(", {} doubtful ({fate})", keyspace.doubtful));
    }
    match (keyspace.lost, keyspace.has_more_lost) {
        (0, false) => {}
        (0, true) => line.push_str(", an unknown number may be lost"),
        (lost, false) => line.push_str(&format!(", {lost} lost")),
        (lost, true) => line.push_str(&format!(", {lost} lost, possibly more")),
    }
    if keyspace.lost_without_key > 0 {
        line.push_str(&format!(", of which {} have unknown keys", keyspace.lost_without_key));
    }
    if let Some(why) = &keyspace.index_error {
        line.push_str(", without its index: ");
        escape(why.as_bytes(), &mut line);
    }
    line
}
