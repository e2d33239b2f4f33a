//! Every group commit mode keeps the promise: acknowledged commits survive a power cut.

#![expect(clippy::unwrap_used, reason = "a test's own steps work")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use sheaf::{Database, DatabaseStats, Durability, GroupCommitMode, Keyspace, KeyspaceOptions};
use sheaf_platform::clock::ManualClock;
use sheaf_sim::{KeepChoice, SimDisk};
use sheaf_testkit::recording_disk::{DiskCallKind, RecordingDisk};

fn open(sim: &SimDisk, batching: GroupCommitMode) -> (Database, Keyspace) {
    let db = Database::builder()
        .disk(Arc::new(sim.clone()))
        .tiny(true)
        .group_commit_mode(batching)
        .open("/db")
        .unwrap();
    let keyspace = db.keyspace("k", KeyspaceOptions::default()).unwrap();
    (db, keyspace)
}

fn put(db: &Database, keyspace: &Keyspace, key: &str) -> sheaf::CommitTicket {
    let mut batch = db.batch();
    batch.durability(Durability::Sync).insert(keyspace, key, key);
    batch.submit().unwrap()
}

#[test]
fn every_group_commit_mode_keeps_acknowledged_commits() {
    for batching in GroupCommitMode::ALL {
        let sim = SimDisk::new();
        let (db, keyspace) = open(&sim, batching);
        for n in 0..30 {
            put(&db, &keyspace, &n.to_string()).wait().unwrap();
            let (_after, there) = open(&sim.power_cut(&KeepChoice::None), batching);
            assert!(there.contains_key(n.to_string()).unwrap(), "{batching:?}: {n} is missing");
        }
        // Waits for the oldest of several tickets first, then for the others.
        let tickets: Vec<_> = (30..40).map(|n| put(&db, &keyspace, &n.to_string())).collect();
        tickets.iter().for_each(|ticket| ticket.wait().unwrap());
        let (_after, there) = open(&sim.power_cut(&KeepChoice::None), batching);
        assert_eq!(there.len().unwrap(), 40, "{batching:?}");
    }
}

#[test]
fn writers_return_in_every_group_commit_mode() {
    for batching in GroupCommitMode::ALL {
        let sim = SimDisk::new();
        let (db, keyspace) = open(&sim, batching);
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let (db, keyspace) = (&db, &keyspace);
                scope.spawn(move || {
                    for n in 0..50 {
                        put(db, keyspace, &format!("{writer}.{n}")).wait().unwrap();
                        assert!(db.snapshot().unwrap().keyspace("k").is_ok());
                    }
                });
            }
        });
        assert_eq!(keyspace.len().unwrap(), 200);
        let (_after, there) = open(&sim.power_cut(&KeepChoice::None), batching);
        assert_eq!(there.len().unwrap(), 200, "{batching:?}");
        drop(keyspace);
        db.close().unwrap();
    }
}

#[test]
fn bytes_of_a_sync_round_count_as_unsynced_until_durable() {
    let (recording_disk, clock) =
        (RecordingDisk::new(Arc::new(SimDisk::new())), Arc::new(ManualClock::new()));
    let builder = Database::builder().disk(Arc::new(recording_disk.clone())).tiny(true).inline(true);
    let db = builder.clock(Arc::clone(&clock) as _).open("/db").unwrap();
    let keyspace = db.keyspace("k", KeyspaceOptions::default()).unwrap();
    db.persist().unwrap();
    assert_eq!(db.stats().unsynced_age, Duration::ZERO);
    keyspace.insert("a", "a").unwrap();
    clock.advance(Duration::from_secs(2));
    let seen: Arc<Mutex<Vec<DatabaseStats>>> = Arc::default();
    let (sink, watching, passing) = (Arc::clone(&seen), db.clone(), Arc::clone(&clock));
    recording_disk.set_observer(move |class, _| {
        if class == DiskCallKind::Sync {
            passing.advance(Duration::from_secs(3));
            sink.lock().unwrap().push(watching.stats());
        }
    });
    db.persist().unwrap();
    recording_disk.clear_observer();
    let seen = seen.lock().unwrap();
    assert!(seen[0].durable_seq < seen[0].visible_seq, "the device has not answered");
    assert_eq!(seen[0].unsynced_age, Duration::from_secs(5));
    let after = db.stats();
    assert_eq!((after.durable_seq, after.unsynced_age), (after.visible_seq, Duration::ZERO));
    // The age of the next commit starts with that commit.
    keyspace.insert("b", "b").unwrap();
    clock.advance(Duration::from_secs(1));
    assert_eq!(db.stats().unsynced_age, Duration::from_secs(1));
}
