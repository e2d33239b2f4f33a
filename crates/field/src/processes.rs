//! # Several processes with one database: parallel commands, owners that are stopped or killed

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sheaf::{Database, KeyspaceOptions};

use crate::CaseResult;
use crate::case::{ALL_TOGETHER, CaseContext, FieldCase};
use crate::figure::FieldFigure;

/// Maximum seconds of a command while the owner is stopped.
const STOPPED_LIMIT: f64 = 20.0;

pub(crate) fn cases() -> Vec<FieldCase> {
    let case = |name, short, run| FieldCase { name, engines: ALL_TOGETHER, short, deadline_s: 300, run };
    vec![
        case("commands-together", ALL_TOGETHER, run_concurrently),
        case("owner-stopped", ALL_TOGETHER, run_with_stopped_owner),
        case("owner-killed", ALL_TOGETHER, run_after_kill),
        case("interrupted-verbs", ALL_TOGETHER, run_interrupted),
    ]
}

/// Another process that has a database open.
pub(crate) struct HolderProcess(Child);

impl HolderProcess {
    /// Starts a process that performs `action` (`open`, `attach`), and waits until it is
    /// complete.
    pub(crate) fn start(action: &str, dir: &Path, engine: &str) -> std::io::Result<HolderProcess> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("writer").arg(action).arg(dir).arg(engine);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        match line.trim() {
            "ready" => Ok(HolderProcess(child)),
            _ => Err(std::io::Error::other("the other process did not open the database")),
        }
    }

    fn signal(&self, signal: Signal) -> std::io::Result<()> {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.ok_or_else(|| std::io::Error::other("no process id"))?, signal)?;
        Ok(())
    }

    /// Closes the stdin of the process, which tells it to end, and waits for its end.
    pub(crate) fn close_stdin(mut self) -> std::io::Result<ExitStatus> {
        drop(self.0.stdin.take());
        self.0.wait()
    }

    /// Kills the process and waits for its end.
    pub(crate) fn kill(mut self) -> std::io::Result<()> {
        self.0.kill()?;
        self.0.wait().map(drop)
    }
}

/// Main function of the other process: opens a database and keeps it open until stdin is closed.
pub(crate) fn hold_database(words: &[String]) -> CaseResult {
    let [what, dir, rest @ ..] = words else { return Err("writer needs a directory".into()) };
    let db = match what.as_str() {
        "attach" => Database::builder().read_only(true).open(dir)?,
        _ => Database::open(dir)?,
    };
    if let Some(engine) = rest.first().filter(|_| what == "open") {
        let options = KeyspaceOptions::default().engine(engine);
        let more = db.keyspace("more", options)?;
        (0..1_000_u32).try_for_each(|number| more.insert(number.to_be_bytes(), [1; 100]))?;
    }
    println!("ready");
    let _ = std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(db.close()?)
}

fn sheaf(context: &CaseContext, words: &[&str]) -> Command {
    let mut command = Command::new(&context.sheaf);
    command.args(words).current_dir(&context.dir);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Runs a command to its end. Shows the stderr of a failed command.
fn run_to_end(mut command: Command) -> std::io::Result<bool> {
    let output = command.output()?;
    if !output.status.success() {
        print!("{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(output.status.success())
}

fn put(context: &CaseContext, key: &str) -> Command {
    sheaf(context, &["put", "db", key, "value"])
}

/// Runs 60 gets in parallel with 60 puts, then 20 puts at once, then 20 readers and 20 writers at
/// once.
fn run_concurrently(context: &CaseContext) -> CaseResult {
    let get = || sheaf(context, &["get", "db", "a"]);
    if !run_to_end(put(context, "a"))? {
        return Err("the first put failed".into());
    }
    let began = Instant::now();
    let count = |work: Vec<Command>| -> std::io::Result<u64> {
        let mut failed = 0;
        for command in work {
            failed += u64::from(!run_to_end(command)?);
        }
        Ok(failed)
    };
    let (gets, puts) = std::thread::scope(|scope| {
        let puts = scope.spawn(|| count((0..60).map(|n| put(context, &format!("k{n}"))).collect()));
        let gets = count((0..60).map(|_| get()).collect());
        (gets, puts.join().expect("the thread only runs commands"))
    });
    FieldFigure::new("failed gets of 60", gets? as f64, "").at_most(0.0).report();
    FieldFigure::new("failed puts of 60", puts? as f64, "").at_most(0.0).report();
    let at_once = |commands: Vec<Command>| -> std::io::Result<u64> {
        let started: Result<Vec<Child>, _> =
            commands.into_iter().map(|mut command| command.spawn()).collect();
        let mut failed = 0;
        for child in started? {
            let output = child.wait_with_output()?;
            failed += u64::from(!output.status.success());
            print!("{}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(failed)
    };
    let writers = |from: u64| (from..from + 20).map(|n| put(context, &format!("k{n}"))).collect();
    let failed = at_once(writers(100))?;
    FieldFigure::new("failed puts of 20 at once", failed as f64, "").at_most(0.0).report();
    let mut both: Vec<Command> = writers(200);
    both.extend((0..20).map(|_| get()));
    let failed = at_once(both)?;
    FieldFigure::new("failed of 20 gets and 20 puts at once", failed as f64, "").at_most(0.0).report();
    FieldFigure::new("all together", began.elapsed().as_secs_f64(), "s").report();
    Ok(())
}

/// Runs verbs while the owner is stopped. Each must end, and its error must name the owner.
fn run_with_stopped_owner(context: &CaseContext) -> CaseResult {
    run_to_end(put(context, "a"))?;
    let owner = HolderProcess::start("open", &context.db(), "flex")?;
    owner.signal(Signal::STOP)?;
    let pid = owner.0.id().to_string();
    let verbs: [&[&str]; 8] = [
        &["get", "db", "a"],
        &["scan", "db"],
        &["stats", "db"],
        &["keyspaces", "db"],
        &["verify", "db"],
        &["dump", "db"],
        &["backup", "db", "backup"],
        &["put", "db", "b", "c"],
    ];
    let began = Instant::now();
    let mut started = Vec::new();
    for words in verbs {
        let mut words = words.to_vec();
        words.extend(["--wait", "1"]);
        let child = sheaf(context, &words).spawn()?;
        started.push((words, child));
    }
    let (mut longest, mut unnamed) = (0.0_f64, 0);
    for (words, child) in started {
        let output = child.wait_with_output()?;
        longest = longest.max(began.elapsed().as_secs_f64());
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() || !told.contains(&pid) {
            unnamed += 1;
            println!("{}: {} {told}", words.join(" "), output.status);
        }
    }
    FieldFigure::new("longest verb while the owner is stopped", longest, "s").at_most(STOPPED_LIMIT).report();
    FieldFigure::new("verbs that do not name the owner", f64::from(unnamed), "").at_most(0.0).report();
    owner.signal(Signal::CONT)?;
    let is_read = run_to_end(sheaf(context, &["get", "db", "a"]))?;
    FieldFigure::new("read after the owner continues", f64::from(u8::from(is_read)), "")
        .at_least(1.0)
        .report();
    Ok(owner.kill()?)
}

/// Runs commands after the owner was killed.
fn run_after_kill(context: &CaseContext) -> CaseResult {
    run_to_end(put(context, "a"))?;
    let mut failed = 0;
    for _ in 0..5 {
        HolderProcess::start("open", &context.db(), "flex")?.kill()?;
        failed += u64::from(!run_to_end(sheaf(context, &["get", "db", "a"]))?);
        failed += u64::from(!run_to_end(put(context, "b"))?);
        failed += u64::from(!run_to_end(sheaf(context, &["verify", "db"]))?);
    }
    FieldFigure::new("failed commands after kills", failed as f64, "").at_most(0.0).report();
    Ok(())
}

/// Interrupts verbs at random moments, and runs each again to its end.
fn run_interrupted(context: &CaseContext) -> CaseResult {
    let at = |name: &str| context.dir.join(name);
    let lines: String = (0..50_000).map(|n| format!("k{n:08}\tvalue{n:060}\n")).collect();
    fs::write(at("pairs.tsv"), lines)?;
    run_to_end(sheaf(context, &["load", "db", "pairs.tsv"]))?;
    run_to_end(sheaf(context, &["backup", "db", "backup"]))?;
    let verbs: [(&[&str], Option<&str>); 7] = [
        (&["load", "db", "pairs.tsv"], None),
        (&["load", "db", "--sorted", "--replace", "pairs.tsv"], None),
        (&["backup", "db", "again"], Some("again")),
        (&["restore", "backup", "restored"], Some("restored")),
        (&["repair", "db", "repaired"], Some("repaired")),
        (&["convert", "db", "--to", "flat-ordered"], None),
        (&["convert", "db", "--to", "flex"], None),
    ];
    let mut random = fastrand::Rng::with_seed(11);
    let (mut failed, mut longest) = (0, 0.0_f64);
    for round in 0..context.size(2, 8) {
        for (words, made) in verbs {
            for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
                let after = Duration::from_millis(random.u64(..300 / (1 + round % 3)));
                let (status, took) = interrupt(sheaf(context, words), signal, after)?;
                longest = longest.max(took);
                if status.success() {
                    remove(made.map(at))?;
                }
            }
            if !run_to_end(sheaf(context, words))? {
                failed += 1;
                println!("run again: sheaf {}", words.join(" "));
            }
            remove(made.map(at))?;
        }
    }
    FieldFigure::new("verbs that failed when run again", f64::from(failed), "").at_most(0.0).report();
    FieldFigure::new("longest end of an interrupted verb", longest, "s").at_most(10.0).report();
    let is_whole = run_to_end(sheaf(context, &["verify", "db"]))?;
    FieldFigure::new("sound afterwards", f64::from(u8::from(is_whole)), "").at_least(1.0).report();
    Ok(())
}

fn remove(made: Option<PathBuf>) -> std::io::Result<()> {
    match made.map(fs::remove_dir_all) {
        Some(Err(refusal)) if refusal.kind() != std::io::ErrorKind::NotFound => Err(refusal),
        _ => Ok(()),
    }
}

/// Sends `signal` to the command `after` its start. Returns its status and the seconds from the
/// signal to its end.
fn interrupt(mut command: Command, signal: Signal, after: Duration) -> std::io::Result<(ExitStatus, f64)> {
    let child = HolderProcess(command.stderr(Stdio::null()).spawn()?);
    std::thread::sleep(after);
    let _ = child.signal(signal); // the command may have ended
    let began = Instant::now();
    let mut child = child;
    let status = child.0.wait()?;
    Ok((status, began.elapsed().as_secs_f64()))
}
