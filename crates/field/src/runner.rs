//! # Runner: runs one process for each case and prints the table
//!
//! ## Invariants
//!
//! 1. A case has its own process group. At its end the runner kills all processes of the group.
//! 2. The runner removes the directory of a case before the next case.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use crate::Arguments;
use crate::case::{self, FieldCase, RunSize};
use crate::figure::FieldFigure;

/// Number of lines shown of a failed case's stderr.
const SHOWN_LINES: usize = 8;

/// Counts of a whole run.
#[derive(Default)]
struct RunTotals {
    met: u32,
    missed: u32,
}

/// Runs all cases that the arguments select and prints the table.
///
/// # Errors
///
/// Returns a text if a figure missed its required value, a case failed, or nothing was selected.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let io = |e: std::io::Error| format!("{}: {e}", arguments.dir.display());
    fs::create_dir_all(&arguments.dir).map_err(io)?;
    let dir = arguments.dir.canonicalize().map_err(io)?.join(std::process::id().to_string());
    let (began, mut totals) = (Instant::now(), RunTotals::default());
    for case in case::all().iter().filter(|case| arguments.selects(case)) {
        for engine in arguments.engines_of(case) {
            run_case(arguments, case, engine, &dir, &mut totals)?;
        }
    }
    let _ = fs::remove_dir_all(&dir);
    let RunTotals { met, missed } = totals;
    println!("\n{met} met, {missed} missed, {} s", began.elapsed().as_secs());
    match (met, missed) {
        (0, 0) => Err("no case was selected; --list prints their names".to_owned()),
        (_, 0) => Ok(()),
        _ => Err(format!("{missed} figures missed their required values or could not be taken")),
    }
}

impl Arguments {
    fn selects(&self, case: &FieldCase) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| case.name.contains(part.as_str()))
    }

    fn engines_of<'a>(&'a self, case: &'a FieldCase) -> impl Iterator<Item = &'static str> + 'a {
        let of_form = if self.form == RunSize::Short { case.short } else { case.engines };
        let is_wanted =
            |engine: &str| self.engines.is_empty() || self.engines.iter().any(|wanted| wanted == engine);
        of_form.iter().copied().filter(move |engine| is_wanted(engine))
    }

    fn deadline(&self, case: &FieldCase) -> Duration {
        Duration::from_secs(match self.form {
            RunSize::Short => case.deadline_s.min(120),
            RunSize::Full => case.deadline_s,
            RunSize::Long => case.deadline_s * 10,
        })
    }
}

fn run_case(
    arguments: &Arguments,
    case: &FieldCase,
    engine: &str,
    dir: &Path,
    totals: &mut RunTotals,
) -> Result<(), String> {
    let io = |e: std::io::Error| format!("{}: {e}", dir.display());
    fs::create_dir_all(dir).map_err(io)?;
    let began = Instant::now();
    let mut child = start(arguments, case, engine, dir).map_err(io)?;
    let outcome = finish(&mut child, arguments.deadline(case), |line| {
        let Some(figure) = FieldFigure::parse(line) else { return println!("  {line}") };
        let is_met = figure.is_met(arguments.form == RunSize::Short);
        *(if is_met { &mut totals.met } else { &mut totals.missed }) += 1;
        let name = format!("{} {engine}", case.name);
        println!("{} {name:<28} {figure}", if is_met { "  " } else { "! " });
    });
    match outcome {
        Ok(()) => println!("   {} {engine}: {:.1} s", case.name, began.elapsed().as_secs_f64()),
        Err(why) => {
            totals.missed += 1;
            println!("!  {} {engine}: {why}", case.name);
        }
    }
    fs::remove_dir_all(dir).map_err(io)
}

fn start(arguments: &Arguments, case: &FieldCase, engine: &str, dir: &Path) -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--case", case.name, "--engine", engine, "--form", arguments.form.name()]);
    command.arg("--dir").arg(dir).arg("--sheaf").arg(&arguments.sheaf);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.process_group(0).spawn()
}

/// Follows the case to its end, then kills its process group (I1).
fn finish(child: &mut Child, limit: Duration, tell: impl FnMut(&str)) -> Result<(), String> {
    let complaints = lines(child.stderr.take());
    let followed = follow(child, limit, tell);
    if let Some(group) = group(child) {
        // The leader is not reaped yet, so the number still identifies this group.
        let _ = kill_process_group(group, Signal::KILL);
    }
    let status = child.wait().map_err(|e| e.to_string())?;
    followed?;
    if status.success() {
        return Ok(());
    }
    let mut last = VecDeque::new();
    while let Ok(line) = complaints.recv_timeout(Duration::from_millis(200)) {
        last.push_back(line);
        if last.len() > SHOWN_LINES {
            last.pop_front();
        }
    }
    let last: Vec<String> = last.into();
    Err(format!("failed ({status})\n     {}", last.join("\n     ")))
}

/// Passes the lines of the case's stdout to `tell` until the case ends. Does not reap its process.
fn follow(child: &mut Child, limit: Duration, mut tell: impl FnMut(&str)) -> Result<(), String> {
    let began = Instant::now();
    let said = lines(child.stdout.take());
    loop {
        match said.recv_timeout(limit.saturating_sub(began.elapsed())) {
            Ok(line) => tell(&line),
            Err(RecvTimeoutError::Timeout) => {
                return Err(format!("did not end within {} s", limit.as_secs()));
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    if let Some(leader) = group(child) {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(leader), options).map_err(|e| e.to_string())?;
    }
    Ok(())
}

fn group(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

/// Reads lines in a thread, so that the caller can wait for a line with a deadline.
fn lines(source: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (send, receive) = mpsc::channel();
    if let Some(source) = source {
        std::thread::spawn(move || {
            for line in BufReader::new(source).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
    }
    receive
}
