//! # Child: a process that writes until it is killed
//!
//! The parent starts this program again, waits for its line on the standard output, lets it write for a
//! moment longer and sends SIGKILL. What the parent then opens is what a crash left.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use crate::args::Child;
use crate::drive::{Length, Phase, SYNC_INTERVAL};
use crate::subjects::{Setting, Subject};
use crate::{Result, workload};

const READY: &str = "writing";

/// The process id of the child that runs, for the thread that cleans up after a signal.
static RUNNING: AtomicI32 = AtomicI32::new(0);

/// Ends the child, if there is one.
pub(crate) fn end_all() {
    let pid = RUNNING.load(Ordering::SeqCst);
    if pid > 0 {
        // SAFETY: a plain system call; the pid is of our own child, not yet waited for.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
}

/// The child: two threads of update-zipf for ever.
pub(crate) fn write_until_killed(options: &Child) -> Result<()> {
    // SAFETY: a plain system call: the child dies with its parent.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let store = options.subject.open(&options.dir, Setting::BUFFERED)?;
    let short = Phase::of(Length::Time(Duration::from_secs(1)), Some(SYNC_INTERVAL));
    workload::update_zipf(&*store, options.pairs, 2, 1, short)?;
    println!("{READY}");
    std::io::stdout().flush()?;
    let long = Phase::of(Length::Time(Duration::from_secs(600)), Some(SYNC_INTERVAL));
    workload::update_zipf(&*store, options.pairs, 2, 2, long)?;
    Err("nobody killed the writer".into())
}

/// The parent: starts the child on the database in `dir` and kills it in mid-write, `after` its start.
pub(crate) fn kill_a_writer(subject: Subject, dir: &Path, pairs: u64, after: Duration) -> Result<()> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["child-writer", "--subject", subject.name(), "--pairs", &pairs.to_string(), "--dir"])
        .arg(dir)
        .stdout(Stdio::piped())
        .spawn()?;
    RUNNING.store(i32::try_from(child.id())?, Ordering::SeqCst);
    let mut line = String::new();
    if let Some(output) = child.stdout.take() {
        BufReader::new(output).read_line(&mut line)?;
    }
    let is_writing = line.trim_end() == READY;
    if is_writing {
        std::thread::sleep(after);
    }
    child.kill()?;
    RUNNING.store(0, Ordering::SeqCst);
    child.wait()?;
    if is_writing { Ok(()) } else { Err("the writer ended before it was killed".into()) }
}
