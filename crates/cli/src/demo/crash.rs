//! # Crash: kills a writer, then checks the acknowledged commits
//!
//! Demonstrates that an acknowledged commit survives SIGKILL and that batches are atomic. It cannot
//! demonstrate a power cut. The tests do that, on a simulated disk.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use sheaf::{Database, Error, Keyspace};

use super::page::DemoPage;
use super::writer::{BATCH_ROWS, KEYSPACES, count_rows};
use crate::failure::{Failure, Result};
use crate::output::Stopwatch;
use crate::text_format::{count, size};

/// Number of acknowledged batches before the writer is killed ...
const MIN_BATCHES: u64 = 200;
/// ... and the time that it must have run.
const MIN_RUN: Duration = Duration::from_millis(400);
/// Number of batches after the last acknowledged one that are checked: unacknowledged batches may
/// exist, but must be complete.
const CHECKED_AFTER_LAST: u64 = 8;

pub(crate) fn show(page: &mut DemoPage, database: &Path) -> Result {
    page.step("crash")?;
    let watch = Stopwatch::start();
    let acknowledged = kill_a_writer(page, database)?;
    let (batches, pairs) = (count(acknowledged), count(acknowledged * BATCH_ROWS * KEYSPACES.len() as u64));
    let what = format!("kill -9 after {batches} acknowledged batches ({pairs} pairs)");
    page.line(&what, Some(watch.elapsed()))?;

    page.step("reopen")?;
    let db = Database::builder().create(false).open(database)?;
    let opening = db.stats().opening;
    let cut = match opening.discarded_bytes {
        0 => "no commit was incomplete".to_owned(),
        bytes => format!("{} of an incomplete commit ignored", size(bytes)),
    };
    page.line(
        &format!("{} records replayed; {cut}", count(opening.records_replayed)),
        Some(opening.duration),
    )?;
    check(page, &db, acknowledged)?;

    page.step("verify")?;
    let watch = Stopwatch::start();
    let mut damages = 0;
    let report = db.verify(|_| damages += 1)?;
    let (pairs, bytes, files) = (count(report.pairs), size(report.bytes), report.files.len());
    page.line(&format!("{pairs} pairs, {bytes} in {files} files read"), Some(watch.elapsed()))?;
    page.verdict(damages == 0, "soundness", "no damage")?;
    Ok(db.close()?)
}

/// Starts a writer, kills it while it writes, and returns the last number that it acknowledged.
fn kill_a_writer(page: &mut DemoPage, database: &Path) -> Result<u64> {
    let failed = |op| Failure::stream(op, "the writer");
    let program = std::env::current_exe().map_err(failed("find"))?;
    let mut command = Command::new(program);
    command.arg("demo-writer").arg(database).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = WriterProcess(command.spawn().map_err(failed("start"))?);
    let stdout = child.0.stdout.take().ok_or_else(|| Failure::Refused("the writer has no stdout".into()))?;
    let mut numbers = AckReader(BufReader::new(stdout));

    let mut last = 0;
    let mut watch = None;
    while last < MIN_BATCHES || watch.as_ref().is_some_and(|watch: &Stopwatch| watch.elapsed() < MIN_RUN) {
        last = numbers.next()?.ok_or_else(|| Failure::Refused("the writer ended by itself".into()))?;
        if watch.is_none() {
            watch = Some(Stopwatch::start());
            check_second_open(page, database, child.0.id())?;
        }
    }
    child.0.kill().map_err(failed("kill"))?;
    child.0.wait().map_err(failed("wait for"))?;
    // Numbers that it printed before it was killed are still in the pipe.
    while let Some(number) = numbers.next()? {
        last = number;
    }
    Ok(last)
}

/// Checks that a second owner is refused while the first one runs.
fn check_second_open(page: &mut DemoPage, database: &Path, owner: u32) -> Result {
    let second = Database::builder().create(false).open(database).err();
    let refused = matches!(second, Some(Error::Locked { pid, .. }) if pid.is_none_or(|pid| pid == owner));
    page.line(
        &format!("process {owner} writes batches of {} pairs over two keyspaces", BATCH_ROWS * 2),
        None,
    )?;
    page.verdict(refused, "one owner", "at the same time a second open is refused")
}

fn check(page: &mut DemoPage, db: &Database, acknowledged: u64) -> Result {
    let mut sides: Vec<Keyspace> = Vec::new();
    for side in KEYSPACES {
        sides.extend(db.open_keyspace(side)?);
    }
    let whole = BATCH_ROWS * KEYSPACES.len() as u64;
    let mut lost = 0;
    for number in 1..=acknowledged {
        lost += u64::from(count_rows(&sides, number)? != whole);
    }
    let found =
        format!("{} of {} acknowledged batches are present", count(acknowledged - lost), count(acknowledged));
    page.verdict(lost == 0, "durability", &found)?;

    let beyond =
        (1..=CHECKED_AFTER_LAST).map(|i| count_rows(&sides, acknowledged + i)).collect::<Result<Vec<_>>>()?;
    let halves = beyond.iter().filter(|rows| **rows != 0 && **rows != whole).count();
    let wholes = beyond.iter().filter(|rows| **rows == whole).count();
    let found = match wholes {
        0 => "no unacknowledged batch is present, complete or partial".to_owned(),
        1 => "one unacknowledged batch is present and complete; none is partial".to_owned(),
        _ => format!("{wholes} unacknowledged batches are present and complete; none is partial"),
    };
    let in_order = beyond.iter().skip_while(|rows| **rows == whole).all(|rows| *rows == 0);
    page.verdict(halves == 0 && in_order, "atomic batches", &found)
}

/// Writer process. Dropping it kills the process.
struct WriterProcess(Child);

impl Drop for WriterProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Numbers that the writer prints. A last line without LF was cut off by the kill and is ignored.
struct AckReader(BufReader<ChildStdout>);

impl AckReader {
    fn next(&mut self) -> Result<Option<u64>> {
        let mut line = String::new();
        self.0.read_line(&mut line).map_err(Failure::stream("read", "the writer's numbers"))?;
        let Some(number) = line.strip_suffix('\n') else { return Ok(None) };
        let number = number.parse().map_err(|_| Failure::Refused(format!("the writer said {number:?}")))?;
        Ok(Some(number))
    }
}
