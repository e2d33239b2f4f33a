//! The kill -9 loop, on the real disk: this program starts itself again as a child that changes a
//! space as fast as it can and says on a pipe what it has synced; it dies by SIGKILL at any moment,
//! while it opens too. Each state has its number as its mark, and follows from the seed: what the
//! next life finds is checked byte for byte, and lives on.
//!
//! What it cannot see: what a power cut would lose; the kernel survives.

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
/// An opening takes no longer, whatever else the machine does.
const OPEN_TIMEOUT: Duration = Duration::from_secs(60);
/// Where contents stop growing.
const MAX_LEN: u64 = 60_000;

fn options() -> SpaceOptions {
    SpaceOptions { tiny: true, limit: Some(256 << 10), ..SpaceOptions::default() }
}

/// Change `number`, of a space of `len` bytes: the same in every life.
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

/// Does `step` and sets the mark, in one.
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

/// Not a test of its own: what the children run.
#[test]
fn be_the_child() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let space = FlexSpace::open(dir, options()).expect("what was killed opens");
    let mut out = std::io::stderr();
    out.write_all(&0u64.to_le_bytes()).expect("the parent listens"); // it is open
    for number in space.mark() + 1.. {
        apply_with_mark(&space, number, &change(number, space.len()));
        if number % 97 == 0 {
            space.sync().expect("a disk without faults");
            out.write_all(&number.to_le_bytes()).expect("the parent listens");
        }
    }
}

/// A child lives for `time` at most, from its start or from when it has opened the space; the last
/// number that it synced.
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
        let _ = opened.send(()); // nobody waits if it is not to be from then on
        pipe.read_to_end(&mut told).map(|_| told)
    });
    if is_from_opening {
        opening.recv_timeout(OPEN_TIMEOUT).expect("it opens");
    }
    std::thread::sleep(time); // the child is to be killed at a moment that nobody chose
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
            continue; // the next child opens what this one left, if it did anything
        }
        let space = FlexSpace::open(&scratch.0, options()).expect("what was killed opens");
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
        drop(space); // which closes it in order; the children never do
    }
    println!("{kills} kills, {opened} after a sync, {number} changes");
    assert!(kills > 10 && number > 100);
}
