//! Kill -9 loop on the real disk. This program starts itself as a child, which changes a space at
//! full speed and reports on a pipe each operation that it has synced. SIGKILL ends it at a random
//! moment, possibly while it opens the space. Each state has its number as its mark and is a
//! function of the seed. The next process checks the recovered state byte for byte and continues
//! from it.
//!
//! Blind spot: data that only a power cut loses, because the kernel survives.

#![expect(clippy::disallowed_methods, reason = "real processes, real time, real files")]

mod support;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use sheaf_flexspace::{FlexSpace, SpaceOptions};
use support::{Random, WorkloadStep};

const DIR: &str = "SHEAF_FLEXSPACE_KILL_DIR";
const TEST_TIME: Duration = Duration::from_secs(8);
/// Maximum time of an opening, also on a loaded machine.
const OPEN_TIMEOUT: Duration = Duration::from_secs(60);
/// Length at which the content stops growing.
const MAX_LEN: u64 = 60_000;

fn options() -> SpaceOptions {
    SpaceOptions { tiny: true, limit: Some(256 << 10), ..SpaceOptions::default() }
}

/// Returns change `number` of a space of `len` bytes. It is the same in every process.
fn change(number: u64, len: u64) -> WorkloadStep {
    let mut random = Random(number);
    let at = random.below(len + 1);
    let bytes = vec![
        u8::try_from(number % 251).expect("small");
        usize::try_from(1 + random.below(700)).expect("small")
    ];
    match random.below(8) {
        _ if len > MAX_LEN => WorkloadStep::Collapse(at, (len - at).min(20_000)),
        0 => WorkloadStep::Collapse(at, random.below(len - at + 1).min(600)),
        1..=3 => WorkloadStep::Write(at, bytes),
        4 => WorkloadStep::Hole(at, 1 + random.below(300)),
        _ => WorkloadStep::Insert(at, bytes),
    }
}

/// Executes `step` and sets the mark in one operation.
fn apply_with_mark(space: &FlexSpace, number: u64, step: &WorkloadStep) {
    let edit = space.edit().mark(number);
    match step {
        WorkloadStep::Collapse(at, len) => edit.collapse(*at, *len),
        WorkloadStep::Write(at, bytes) => edit.write(*at, bytes),
        WorkloadStep::Hole(at, len) => edit.insert_hole(*at, *len),
        WorkloadStep::Insert(at, bytes) => edit.insert(*at, bytes),
        other => unreachable!("{other:?} is not drawn"),
    }
    .commit()
    .expect("there is room");
}

/// Body of the child processes; as a test of its own it does nothing.
#[test]
fn be_the_child() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let space = FlexSpace::open(dir, options()).expect("a killed space opens");
    let mut out = std::io::stderr();
    // The space is open.
    out.write_all(&0u64.to_le_bytes()).expect("the parent listens");
    for number in space.mark() + 1.. {
        apply_with_mark(&space, number, &change(number, space.len()));
        if number % 97 == 0 {
            space.sync().expect("a disk without faults");
            out.write_all(&number.to_le_bytes()).expect("the parent listens");
        }
    }
}

/// Runs a child for at most `time`, measured from its start or from the end of opening. Returns the
/// last number that it synced.
fn run_child(dir: &Path, time: Duration, is_from_opening: bool) -> u64 {
    let program = std::env::current_exe().expect("we run");
    let mut child = Command::new(program)
        .args(["be_the_child", "--exact", "--nocapture", "--test-threads=1"])
        .env(DIR, dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a child starts");
    let mut pipe = child.stderr.take().expect("piped");
    let (opened, opening) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut told = vec![0];
        pipe.read_exact(&mut told).or_else(|e| match e.kind() {
            std::io::ErrorKind::UnexpectedEof => {
                told.clear();
                Ok(())
            }
            _ => Err(e),
        })?;
        // Fails if the parent does not wait for the opening.
        let _ = opened.send(());
        pipe.read_to_end(&mut told).map(|_| told)
    });
    if is_from_opening {
        opening.recv_timeout(OPEN_TIMEOUT).expect("it opens");
    }
    // Kill the child at a random moment.
    std::thread::sleep(time);
    child.kill().expect("it was started here");
    let status = child.wait().expect("it was started here");
    let told = reader.join().expect("no panic").expect("readable");
    assert_eq!(status.code(), None, "the child failed: {}", String::from_utf8_lossy(&told));
    let last = told.chunks_exact(8).last();
    last.map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().expect("eight")))
}

struct SpaceTestDir(PathBuf);

impl Drop for SpaceTestDir {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

#[test]
fn a_killed_process_loses_nothing_that_it_synced() {
    let dir = std::env::temp_dir().join(format!("sheaf-flexspace-kill-{}", std::process::id()));
    let scratch = SpaceTestDir(dir);
    let mut random = Random(u64::from(std::process::id()));
    let (mut model, mut number, mut synced) = (Vec::new(), 0, 0);
    let (mut kills, mut opened) = (0, 0);
    let begun = Instant::now();
    while begun.elapsed() < TEST_TIME {
        let time = Duration::from_micros(random.below(60_000));
        let told = run_child(&scratch.0, time, random.below(3) > 0);
        kills += 1;
        opened += u32::from(told > 0);
        synced = synced.max(told);
        if !scratch.0.exists() || kills % 2 == 0 {
            // The next child opens the state that this one left, if any.
            continue;
        }
        let space = FlexSpace::open(&scratch.0, options()).expect("a killed space opens");
        let context = || format!("{} after {kills} kills", scratch.0.display());
        assert!(space.mark() >= synced.max(number), "{}: {} and not {synced}", context(), space.mark());
        while number < space.mark() {
            number += 1;
            change(number, model.len() as u64).apply(&mut model);
        }
        assert!(support::content(&space).expect("readable") == model, "{}", context());
        if kills % 8 == 1 {
            space.verify(|finding| panic!("{}: {finding}", context())).expect("readable");
        }
        drop(space); // This closes the space cleanly. The children never do.
    }
    println!("{kills} kills, {opened} after a sync, {number} changes");
    assert!(kills > 10 && number > 100);
}
