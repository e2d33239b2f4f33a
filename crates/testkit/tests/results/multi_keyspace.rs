//! Keyspaces of all engines in one database: batches and snapshots over them, with crashes and
//! kills.

#![expect(clippy::unwrap_used, reason = "a test's own steps work")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use sheaf::{Database, KeyspaceOptions, Snapshot};
use sheaf_testkit::crash::families::{WorkloadFamily, run_family};
use sheaf_testkit::fixture::{DiskKind, Fixture, TestSetting, TestSubject, wait_epoch_garbage_freed};
use sheaf_testkit::kill::{ChildLauncher, child_main, kill_loop};
use sheaf_testkit::totals::Budget;

fn holds(family: WorkloadFamily, cases: u64) {
    run_family(family, &TestSubject::all_engines(), 1, Budget::cases(cases)).must_hold(cases);
}

#[test]
fn batches_over_all_engines_survive_power_cuts_whole_and_in_order() {
    holds(WorkloadFamily::Plain, 2_000);
    holds(WorkloadFamily::Torn, 2_000);
}

#[test]
fn cleaning_and_checkpoints_of_all_engines_at_once_lose_nothing() {
    holds(WorkloadFamily::Busy, 2_000);
    holds(WorkloadFamily::Large, 1_000);
}

#[test]
fn creating_dropping_and_converting_keyspaces_survives_power_cuts() {
    holds(WorkloadFamily::Drops, 1_500);
    holds(WorkloadFamily::Moving, 1_500);
}

#[test]
fn child_of_the_kill_loop() {
    child_main();
}

#[test]
fn a_kill_leaves_all_engines_at_the_same_commit() {
    let scratch = sheaf_testkit::fixture::scratch_dir(env!("CARGO_TARGET_TMPDIR"));
    let child = concat!(module_path!(), "::child_of_the_kill_loop");
    let report = kill_loop(
        &TestSubject::all_engines(),
        &scratch,
        &ChildLauncher::test(child),
        1,
        Budget::cases(120).workers(4),
    );
    assert!(report.failures.is_empty(), "{report}\n{:?}", report.failures);
    assert_eq!(report.kills, 120, "{report}");
    assert!(report.commits > 0, "nothing was written: {report}");
}

/// Returns the number that the newest batch in `snapshot` wrote to every keyspace. Checks that all
/// keyspaces have the same number.
fn newest_batch(snapshot: &Snapshot, names: &[&str]) -> u64 {
    let numbers = names.iter().map(|name| {
        let keyspace = snapshot.keyspace(name).unwrap();
        let last = keyspace.get("last").unwrap().expect("written before any snapshot");
        let last = u64::from_be_bytes(last[..].try_into().unwrap());
        let newest =
            keyspace.iter().unwrap().map(|pair| pair.unwrap()).filter(|(key, _)| &key[..] != b"last");
        let newest = newest.map(|(_, value)| u64::from_be_bytes(value[..8].try_into().unwrap())).max();
        assert_eq!(newest, Some(last), "{name}: a scan and a get of one snapshot");
        last
    });
    let numbers: Vec<u64> = numbers.collect();
    assert!(numbers.iter().all(|number| *number == numbers[0]), "{names:?} are at {numbers:?}");
    numbers[0]
}

/// A batch writes its number to a keyspace of each engine. A snapshot must show the same number
/// everywhere: at least the newest number acknowledged before it, and none that was not yet
/// written.
#[test]
fn snapshots_over_all_engines_are_consistent() {
    const BATCHES: u64 = 3_000;
    let fixture = Fixture::new(&TestSubject::all_engines(), TestSetting::new(DiskKind::Real, true, false));
    let db = fixture.open();
    let names = sheaf::engines();
    let spaces: Vec<_> = names
        .iter()
        .map(|name| db.keyspace(name, KeyspaceOptions::default().engine(name)).unwrap())
        .collect();
    let (acked, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let write = |number: u64| {
        let mut batch = db.batch();
        for space in &spaces {
            let value = [&number.to_be_bytes()[..], &[7; 100]].concat();
            batch.insert(space, (number % 97).to_be_bytes(), value).insert(
                space,
                "last",
                number.to_be_bytes(),
            );
        }
        batch.commit().unwrap();
        acked.store(number, Ordering::Release);
    };
    write(1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (2..=BATCHES).for_each(write);
            is_over.store(true, Ordering::Release);
        });
        let mut looks = 0;
        while !is_over.load(Ordering::Acquire) || looks < 3 {
            let before = acked.load(Ordering::Acquire);
            let snapshot = db.snapshot().unwrap();
            let after = acked.load(Ordering::Acquire) + 1; // one more may be committed
            let first = newest_batch(&snapshot, &names);
            assert!((before..=after).contains(&first), "{first} of {before} to {after}");
            assert_eq!(newest_batch(&snapshot, &names), first, "a snapshot stays");
            looks += 1;
        }
    });
    assert_eq!(newest_batch(&db.snapshot().unwrap(), &names), BATCHES);
}

/// Advances the clock and runs background work until none is left.
fn run_background(fixture: &Fixture, db: &Database) {
    for _ in 0..100 {
        fixture.advance(Duration::from_secs(2));
        if !db.pump().unwrap() {
            break;
        }
    }
}

/// Keyspaces are created, filled and dropped while another one is written to all the time. The disk
/// usage must not grow.
#[test]
fn a_keyspace_dropped_under_load_is_reclaimed() {
    for engine in sheaf::engines() {
        let fixture =
            Fixture::new(&TestSubject::all_engines(), TestSetting::new(DiskKind::Simulated, true, true));
        let db = fixture.open();
        let busy = db.keyspace("busy", KeyspaceOptions::default().engine("flex")).unwrap();
        let life = |db: &Database, round: u8| {
            let space = db.keyspace("passing", KeyspaceOptions::default().engine(engine)).unwrap();
            for number in 0..400u64 {
                space
                    .insert(number.to_be_bytes(), vec![round; 500 + 700 * usize::from(number % 8 == 0)])
                    .unwrap();
                busy.insert((number % 50).to_be_bytes(), [round; 200]).unwrap();
                if number == 300 {
                    assert!(db.drop_keyspace("passing").unwrap());
                    break;
                }
                if number % 40 == 0 {
                    run_background(&fixture, db);
                }
            }
            // The load continues while space is freed.
            for number in 0..400u64 {
                busy.insert((number % 50).to_be_bytes(), [round; 200]).unwrap();
                if number % 20 == 0 {
                    run_background(&fixture, db);
                }
            }
            // Readers of other tests pin freed files, too. A file may free another one.
            let mut bytes = u64::MAX;
            loop {
                wait_epoch_garbage_freed();
                run_background(&fixture, db);
                match fixture.bytes_on_disk() {
                    fewer if fewer < bytes => bytes = fewer,
                    _ => return bytes,
                }
            }
        };
        let sizes: Vec<u64> = (0..8).map(|round| life(&db, round)).collect();
        let (first, last) = (sizes[0].max(sizes[1]), sizes[7]);
        println!("{engine}: {sizes:?}");
        assert!(last <= first + first / 4, "{engine}: {first} bytes after two keyspaces, {last} after eight");
        db.close().unwrap();
    }
}
