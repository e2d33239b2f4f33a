//! # Scenarios: background work
//!
//! Background work that fails for one keyspace must not block the others. Several background
//! threads must work at the same time.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use sheaf::{Error, PoisonCause};
use sheaf_platform::clock::{Clock, SystemClock};
use sheaf_sim::{CallClass, Fault, FaultKind, FaultPlan};
use sheaf_testkit::fixture::{DiskKind, Fixture, TestSetting, TestSubject};
use sheaf_testkit::recording_disk::RecordingDisk;

/// Files of the first keyspace, and of the second.
const FAILING_FILES: &str = "own/00000001";
const HEALTHY_FILES: &str = "own/00000002";

/// Returns the files below `part` of the database, with their bytes.
fn files(fixture: &Fixture, part: &str) -> BTreeMap<PathBuf, Vec<u8>> {
    let below = fixture.path().join(part);
    let files = fixture.read_tree().into_iter().filter(|(path, _)| path.starts_with(&below));
    files.filter_map(|(path, bytes)| Some((path, bytes?))).collect()
}

/// Scenario 19, another part: a keyspace with unwritable files pins its part of the journal, and
/// nothing else. Frozen data of the other keyspace is flushed, the other log gets its checkpoint,
/// and the caller of the work gets the error.
#[test]
fn a_keyspace_with_failing_files_does_not_block_others() {
    let fixture = Fixture::new(&TestSubject::flex(), TestSetting::new(DiskKind::Simulated, true, true));
    let db = fixture.open();
    let (sick, well) = (fixture.keyspace(&db, "sick"), fixture.keyspace(&db, "well"));
    let flat = fixture.other_keyspace(&db, "flat");
    while db.pump().unwrap() {}
    let sim = fixture.sim_disk().unwrap();
    let (before, checkpoints) = (files(&fixture, HEALTHY_FILES), db.stats().checkpoints);
    sim.set_faults(Fault::new(CallClass::Any, FaultKind::Io).on(FAILING_FILES).forever());
    let mut failed = None;
    for index in 0..2000_u32 {
        for keyspace in [&sick, &well, &flat] {
            keyspace.insert(index.to_be_bytes(), [7; 60]).unwrap();
        }
        failed = db.pump().err().or(failed);
    }
    let is_of_sick = |error: &Error| matches!(error, Error::Io { path, .. } if path.to_string_lossy().contains(FAILING_FILES));
    assert!(failed.as_ref().is_some_and(is_of_sick), "{failed:?}");
    assert_ne!(files(&fixture, HEALTHY_FILES), before, "the memtable of the other keyspace is not flushed");
    assert!(db.stats().checkpoints > checkpoints, "the other log has no checkpoint");

    sim.set_faults(FaultPlan::default());
    while db.pump().unwrap() {}
    drop((sick, well, flat));
    let db = fixture.reopen(db);
    assert_eq!(fixture.keyspace(&db, "sick").len().unwrap(), 2000);
    assert_eq!(fixture.keyspace(&db, "well").len().unwrap(), 2000);
}

/// The trie of one keyspace is unreadable, so the liveness of its entries is unknown. GC collects
/// other segments, and the log stays within its limit. When the trie is readable again, the skipped
/// segments are collected too.
#[test]
fn a_gc_victim_of_unknown_liveness_is_skipped() {
    let fixture = Fixture::new(&TestSubject::cedrus(), TestSetting::new(DiskKind::Simulated, true, true));
    let db = fixture.open();
    let (sick, well) = (fixture.keyspace(&db, "sick"), super::keyspace(&db, "well"));
    for index in (0..200_u32).chain(0..100) {
        sick.insert(index.to_be_bytes(), [7; 100]).unwrap();
    }
    drop((sick, well));
    let db = fixture.reopen(db); // the pages of the trie are not in memory now
    let well = super::keyspace(&db, "well");
    let flat = |db: &sheaf::Database| db.stats().logs.into_iter().find(|log| log.name == "flat").unwrap();
    let (freed, sim) = (flat(&db).freed_segments, fixture.sim_disk().unwrap());
    sim.set_faults(Fault::new(CallClass::Read, FaultKind::Io).on(FAILING_FILES).forever());
    let (mut failed, mut most) = (None, 0);
    for round in 0..60_u8 {
        (0..100_u32).for_each(|index| well.insert(index.to_be_bytes(), [round; 100]).unwrap());
        failed = db.pump().err().or(failed);
        (0..5).for_each(|_| drop(db.pump()));
        most = most.max(flat(&db).disk_bytes);
    }
    assert!(failed.is_some(), "all could be judged: nothing is tested");
    assert!(flat(&db).freed_segments > freed + 10, "{:?}", flat(&db));
    sim.set_faults(FaultPlan::default());
    while db.pump().unwrap() {}
    assert!(flat(&db).disk_bytes < most, "{most}: {:?}", flat(&db));
    db.verify(|finding| panic!("{finding}")).unwrap();
    assert_eq!(fixture.keyspace(&db, "sick").len().unwrap(), 200);
}

/// Meeting point for threads that use different files.
struct FileRendezvous {
    /// Files in use, number of waits so far, and whether two files were in use at the same time.
    state: Mutex<(BTreeSet<PathBuf>, u32, bool)>,
    changed: Condvar,
}

impl FileRendezvous {
    /// Maximum time that one thread waits for another.
    const MAX_WAIT: Duration = Duration::from_millis(200);
    /// Maximum number of waits.
    const MAX_WAITS: u32 = 20;

    /// Called before a use of `path`: waits for another thread that uses another file.
    fn wait_for_other_thread(&self, path: &Path) {
        let mut state = self.state.lock().expect("no thread panics");
        state.0.insert(path.to_owned());
        if state.0.len() > 1 {
            state.2 = true;
            self.changed.notify_all();
        }
        if !state.2 && state.1 < Self::MAX_WAITS {
            state.1 += 1;
            state = self
                .changed
                .wait_timeout_while(state, Self::MAX_WAIT, |(_, _, met)| !*met)
                .expect("no thread panics")
                .0;
        }
        state.0.remove(path);
    }

    /// Whether two threads have met, or the waits are used up.
    fn is_over(&self) -> bool {
        let state = self.state.lock().expect("no thread panics");
        state.2 || state.1 == Self::MAX_WAITS
    }
}

/// Function that a [`RecordingDisk`] calls before a use of a file.
type Hook = Box<dyn Fn(&Path) + Send + Sync>;

/// Maximum time that [`uses_are_concurrent`] writes, in case background threads use no file.
const MAX_WRITE_TIME: Duration = Duration::from_secs(120);

/// Returns whether two background threads use files below `part` at the same time, in a database
/// with `threads` background threads. `install` installs a hook for one kind of use. All keyspaces
/// get the same writes, so that they have work at the same time.
fn uses_are_concurrent(
    subject: &TestSubject,
    part: &'static str,
    install: fn(&RecordingDisk, Hook),
    threads: usize,
) -> bool {
    let fixture = Fixture::new(subject, TestSetting::new(DiskKind::Simulated, true, false));
    let recording_disk = RecordingDisk::new(Arc::clone(fixture.disk()));
    let builder = fixture.builder_on(Arc::new(recording_disk.clone())).background_threads(threads);
    let db = builder.open(fixture.path()).expect("it opens");
    let keyspaces = ["a", "b", "c"].map(|name| fixture.keyspace(&db, name));
    let meeting = Arc::new(FileRendezvous { state: Mutex::default(), changed: Condvar::new() });
    let (host, me) = (Arc::clone(&meeting), thread::current().id());
    let hook = move |path: &Path| {
        if thread::current().id() != me && path.to_string_lossy().contains(part) {
            host.wait_for_other_thread(path);
        }
    };
    install(&recording_disk, Box::new(hook));
    let deadline = SystemClock.now() + MAX_WRITE_TIME;
    while !meeting.is_over() && SystemClock.now() < deadline {
        for index in 0..100_u32 {
            for keyspace in &keyspaces {
                keyspace.insert(index.to_be_bytes(), [7; 60]).expect("it is written");
            }
        }
    }
    install(&recording_disk, Box::new(|_| ()));
    for keyspace in &keyspaces {
        assert_eq!(keyspace.len().expect("it is read"), 100);
    }
    db.verify(|finding| panic!("{finding}")).expect("it is read");
    let state = meeting.state.lock().expect("no thread panics");
    let (waits, has_met) = (state.1, state.2);
    assert!(waits > 0, "no background thread uses files of {part}");
    has_met
}

#[test]
fn garbage_of_several_segments_is_collected_at_the_same_time() {
    let is_concurrent = |threads| {
        uses_are_concurrent(&TestSubject::flat(), "/flat/", |disk, hook| disk.on_read(hook), threads)
    };
    assert!(is_concurrent(4));
    assert!(!is_concurrent(1));
}

#[test]
fn several_keyspaces_flush_at_the_same_time() {
    let is_concurrent = |threads| {
        uses_are_concurrent(&TestSubject::flex(), "/own/", |disk, hook| disk.on_write(hook), threads)
    };
    assert!(is_concurrent(4));
    assert!(!is_concurrent(1));
}

/// A step that panics on a helper thread ends the round, also for threads that wait for turns. The
/// database is poisoned and can be closed.
#[test]
fn a_panic_of_a_helper_poisons_and_ends_the_round() {
    let fixture = Fixture::new(&TestSubject::flex(), TestSetting::new(DiskKind::Simulated, true, false));
    let recording_disk = RecordingDisk::new(Arc::clone(fixture.disk()));
    let builder = fixture.builder_on(Arc::new(recording_disk.clone())).background_threads(4);
    let db = builder.open(fixture.path()).expect("it opens");
    let keyspaces = ["a", "b", "c"].map(|name| fixture.keyspace(&db, name));
    let me = thread::current().id();
    recording_disk.on_write(move |path| {
        let is_step = thread::current().id() != me && path.to_string_lossy().contains(HEALTHY_FILES);
        assert!(!is_step, "as the test wants");
    });
    let deadline = SystemClock.now() + MAX_WRITE_TIME;
    let write = |index: u32| {
        keyspaces.iter().try_for_each(|keyspace| keyspace.insert((index % 100).to_be_bytes(), [7; 60]))
    };
    let refused = (0..).map(write).find(|result| result.is_err() || SystemClock.now() > deadline);
    assert!(
        matches!(refused, Some(Err(Error::Poisoned { cause: PoisonCause::BackgroundWork }))),
        "{refused:?}"
    );
    drop(keyspaces);
    assert!(matches!(db.close(), Err(Error::Poisoned { .. })));
    recording_disk.on_write(|_| ());
    let db = fixture.open();
    assert!(["a", "b", "c"].iter().all(|name| fixture.keyspace(&db, name).len().unwrap() == 100));
}
