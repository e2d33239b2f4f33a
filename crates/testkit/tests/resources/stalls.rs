//! Stalls of writers are counted and reported: once, outside of all locks, and isolated from the
//! effects of the callback.

#![expect(clippy::unwrap_used, reason = "a test's own steps work")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use sheaf::{Database, Durability, Keyspace, Stall, StallKind};
use sheaf_platform::sync::epoch;
use sheaf_testkit::fixture::{DiskKind, Fixture, TestSetting, TestSubject};
use sheaf_testkit::recording_disk::RecordingDisk;

const TINY: TestSetting = TestSetting::new(DiskKind::Simulated, true, true);

fn fixture() -> Fixture {
    Fixture::new(&TestSubject::flex(), TINY)
}

fn stall_count(db: &Database, kind: StallKind) -> u64 {
    db.stats().stalls.iter().find(|stall| stall.kind == kind).unwrap().count
}

#[test]
fn a_writer_that_creates_segments_reports_each_stall() {
    let fixture = fixture();
    let told: Arc<Mutex<Vec<Stall>>> = Arc::default();
    let sink = Arc::clone(&told);
    let tell = move |stall: &Stall| sink.lock().unwrap().push(stall.clone());
    let builder = fixture.builder().stall_threshold(Duration::ZERO).on_stall(tell);
    let db = builder.open(fixture.path()).unwrap();
    let ks = fixture.keyspace(&db, "people");
    told.lock().unwrap().clear();
    let before = stall_count(&db, StallKind::Preallocation);
    for index in 0..200u32 {
        ks.insert(index.to_be_bytes(), [7; 100]).unwrap();
    }
    let told = told.lock().unwrap();
    let waits = stall_count(&db, StallKind::Preallocation) - before;
    assert!(waits > 2, "inline work prepares no segments ahead of writers");
    let segments: Vec<&Stall> = told.iter().filter(|stall| stall.kind == StallKind::Preallocation).collect();
    assert_eq!(segments.len() as u64, waits, "told as often as counted");
    let of_people = |stall: &&&Stall| stall.keyspace.as_deref() == Some("people");
    assert!(segments.iter().filter(of_people).count() > 2, "{told:?}");
}

#[test]
fn a_stall_names_the_keyspace_if_the_commit_writes_to_one() {
    let fixture = fixture();
    let told: Arc<Mutex<Vec<Stall>>> = Arc::default();
    let sink = Arc::clone(&told);
    let tell = move |stall: &Stall| sink.lock().unwrap().push(stall.clone());
    let builder = fixture.builder().stall_threshold(Duration::ZERO).on_stall(tell);
    let db = builder.open(fixture.path()).unwrap();
    let (a, b) = (fixture.keyspace(&db, "a"), fixture.keyspace(&db, "b"));
    let stalls_of = |round: &str, other: &Keyspace| -> Vec<Option<String>> {
        told.lock().unwrap().clear();
        for index in 0..200 {
            let mut batch = db.batch();
            batch.insert(&a, format!("{round} {index}"), [7; 100]);
            batch.insert(other, format!("{round} {index}, other"), [7; 100]);
            batch.commit().unwrap();
        }
        let told = told.lock().unwrap();
        let segments = told.iter().filter(|stall| stall.kind == StallKind::Preallocation);
        segments.map(|stall| stall.keyspace.clone()).collect()
    };
    let (one, several) = (stalls_of("one", &a), stalls_of("several", &b));
    assert!(one.len() > 2 && one.iter().all(|name| name.as_deref() == Some("a")), "{one:?}");
    assert!(several.len() > 2 && several.iter().all(Option::is_none), "{several:?}");
}

#[test]
fn a_stall_callback_may_write_and_may_panic() {
    let fixture = fixture();
    let (place, calls): (Arc<OnceLock<sheaf::Keyspace>>, Arc<Mutex<u32>>) = Default::default();
    let (seen, count) = (Arc::clone(&place), Arc::clone(&calls));
    let tell = move |stall: &Stall| {
        let Some(keyspace) = seen.get() else { return };
        let call = {
            let mut calls = count.lock().unwrap();
            *calls += 1;
            *calls
        };
        keyspace
            .submit_insert(format!("told-{call}"), stall.kind.name(), Durability::Sync)
            .unwrap()
            .wait()
            .unwrap();
        panic!("the callback panics: expected in the output");
    };
    let builder = fixture.builder().stall_threshold(Duration::ZERO).on_stall(tell);
    let db = builder.open(fixture.path()).unwrap();
    let ks = fixture.keyspace(&db, "k");
    place.set(ks.clone()).ok().unwrap();
    let before = stall_count(&db, StallKind::Sync);
    ks.submit_insert("key", "value", Durability::Sync).unwrap().wait().unwrap();
    db.persist().unwrap();
    let calls = *calls.lock().unwrap();
    assert!(calls >= 1);
    assert_eq!(ks.len().unwrap(), 1 + u64::from(calls), "its writes are present");
    assert!(stall_count(&db, StallKind::Sync) > before + 1, "its own waits are counted, and not told");
    assert_eq!(db.stats().poisoned, None);
    drop(place); // its keyspace keeps the database open, like the closure
    db.close().unwrap();
}

#[test]
fn an_exhausted_budget_is_reported_as_memory_stalls() {
    let fixture = fixture();
    let db = fixture.builder().memory(1 << 19).open(fixture.path()).unwrap();
    let ks = fixture.keyspace(&db, "k");
    let refused = (0..200_000u32).find_map(|index| ks.insert(index.to_be_bytes(), [7; 8]).err());
    assert!(matches!(refused, Some(sheaf::Error::MemoryBudgetExceeded { .. })), "{refused:?}");
    let stats = db.stats();
    let memory = stats.stalls.iter().find(|stall| stall.kind == StallKind::Memory).unwrap();
    assert!(memory.count > 0 && memory.longest <= memory.total, "{memory:?}");
}

/// An epoch guard delays all frees, so background work must not hold one during a write or a sync.
/// (`flex` and `kreon` hold one for a bounded step.)
#[test]
fn background_writes_hold_no_epoch_guard() {
    for subject in
        [TestSubject::flat(), TestSubject::flat_ordered(), TestSubject::cedrus(), TestSubject::delsm()]
    {
        let fixture = Fixture::new(&subject, TINY);
        let recording_disk = RecordingDisk::new(Arc::clone(fixture.disk()));
        let db = fixture.builder_on(Arc::new(recording_disk.clone())).open(fixture.path()).unwrap();
        let keyspace = fixture.keyspace(&db, "k");
        let at_work = Arc::new(AtomicBool::new(false));
        let calls: Arc<Mutex<Vec<(String, bool)>>> = Arc::default();
        let (works, seen) = (Arc::clone(&at_work), Arc::clone(&calls));
        recording_disk.set_observer(move |class, path| {
            if works.load(Ordering::Relaxed) {
                seen.lock().unwrap().push((format!("{class:?} {}", path.display()), epoch::is_pinned()));
            }
        });
        for n in 0..6000u32 {
            let key = (n % 700).to_be_bytes();
            match n % 11 {
                0 => keyspace.remove(key).unwrap(),
                1 => keyspace.insert(key, [7; 2000]).unwrap(),
                _ => keyspace.insert(key, [n.to_be_bytes()[3]; 90]).unwrap(),
            }
            if n % 16 == 0 {
                fixture.advance(Duration::from_millis(10));
                at_work.store(true, Ordering::Relaxed);
                db.pump().unwrap();
                at_work.store(false, Ordering::Relaxed);
            }
        }
        let calls = calls.lock().unwrap();
        let held: Vec<&String> = calls.iter().filter(|(_, is_held)| *is_held).map(|(call, _)| call).collect();
        assert!(calls.len() > 100, "{subject:?}: {} calls", calls.len());
        assert!(
            held.is_empty(),
            "{subject:?}: {} of {}: {:?}",
            held.len(),
            calls.len(),
            &held[..held.len().min(9)]
        );
    }
}
