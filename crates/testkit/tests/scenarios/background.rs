//! # Scenarios: background work
//!
//! Background work that fails for one keyspace must not block the others. Several background
//! threads must work at the same time.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use sheaf::Error;
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

/// Meeting point for threads that read different files.
struct ReadRendezvous {
    /// Files that are being read, number of waits so far, and whether two files were read at the
    /// same time.
    state: Mutex<(BTreeSet<PathBuf>, u32, bool)>,
    changed: Condvar,
    max_waits: u32,
}

impl ReadRendezvous {
    /// Maximum time that one reader waits for another.
    const MAX_WAIT: Duration = Duration::from_millis(200);

    /// Readers wait up to `max_waits` times.
    fn new(max_waits: u32) -> ReadRendezvous {
        ReadRendezvous { state: Mutex::default(), changed: Condvar::new(), max_waits }
    }

    /// Called before a read of `path`: waits for another thread that reads another file.
    fn wait_for_other_reader(&self, path: &Path) {
        let mut state = self.state.lock().expect("no reader panics");
        state.0.insert(path.to_owned());
        if state.0.len() > 1 {
            state.2 = true;
            self.changed.notify_all();
        }
        if !state.2 && state.1 < self.max_waits {
            state.1 += 1;
            state = self
                .changed
                .wait_timeout_while(state, Self::MAX_WAIT, |(_, _, met)| !*met)
                .expect("no reader panics")
                .0;
        }
        state.0.remove(path);
    }

    /// Whether two readers have met, or the waits are used up.
    fn is_over(&self) -> bool {
        let state = self.state.lock().expect("no reader panics");
        state.2 || state.1 == self.max_waits
    }
}

/// Returns whether two background threads read files below `part` at the same time, in a database
/// with `threads` background threads.
fn reads_are_concurrent(subject: &TestSubject, part: &'static str, threads: usize) -> bool {
    let fixture = Fixture::new(subject, TestSetting::new(DiskKind::Simulated, true, false));
    let recording_disk = RecordingDisk::new(Arc::clone(fixture.disk()));
    let builder = fixture.builder_on(Arc::new(recording_disk.clone())).background_threads(threads);
    let db = builder.open(fixture.path()).expect("it opens");
    let keyspaces = ["a", "b", "c"].map(|name| fixture.keyspace(&db, name));
    // Readers that can meet end their waits; only one thread waits in vain.
    let max_waits = if threads == 1 { 20 } else { 200 };
    let (meeting, me) = (Arc::new(ReadRendezvous::new(max_waits)), thread::current().id());
    let host = Arc::clone(&meeting);
    recording_disk.on_read(move |path| {
        if thread::current().id() != me && path.to_string_lossy().contains(part) {
            host.wait_for_other_reader(path);
        }
    });
    for index in 0..20_000_u32 {
        for keyspace in &keyspaces {
            keyspace.insert((index * 7919 % 100).to_be_bytes(), [7; 60]).expect("it is written");
        }
        if meeting.is_over() {
            break;
        }
    }
    recording_disk.on_read(|_| ());
    for keyspace in &keyspaces {
        assert_eq!(keyspace.len().expect("it is read"), 100);
    }
    db.verify(|finding| panic!("{finding}")).expect("it is read");
    let state = meeting.state.lock().expect("no reader panics");
    let (waits, has_met) = (state.1, state.2);
    assert!(waits > 0, "no background thread reads files of {part}");
    has_met
}

#[test]
fn garbage_of_several_segments_is_collected_at_the_same_time() {
    assert!(reads_are_concurrent(&TestSubject::flat(), "/flat/", 4));
    assert!(!reads_are_concurrent(&TestSubject::flat(), "/flat/", 1));
}

#[test]
fn several_keyspaces_do_background_steps_at_the_same_time() {
    assert!(reads_are_concurrent(&TestSubject::flex(), "/own/", 4));
    assert!(!reads_are_concurrent(&TestSubject::flex(), "/own/", 1));
}
