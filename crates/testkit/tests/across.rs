//! Keyspaces of all engines in one database: batches and snapshots over them, under crashes and kills, and many of them.

#![expect(clippy::unwrap_used, reason = "a test's own steps work")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use sheaf::{Database, KeyspaceOptions, Snapshot};
use sheaf_testkit::crash::families::{Family, run_family};
use sheaf_testkit::kill::{Starter, be_the_child, kill_loop};
use sheaf_testkit::stage::{Place, Setting, Stage, Subject, others_have_let_go};
use sheaf_testkit::totals::Budget;

fn holds(family: Family, cases: u64) {
    run_family(family, &Subject::across(), 1, Budget::cases(cases)).must_hold(cases);
}

#[test]
fn batches_over_all_engines_survive_power_cuts_whole_and_in_order() {
    holds(Family::Plain, 2_000);
    holds(Family::Torn, 2_000);
}

#[test]
fn cleaning_and_checkpoints_of_all_engines_at_once_lose_nothing() {
    holds(Family::Busy, 2_000);
    holds(Family::Large, 1_000);
}

#[test]
fn keyspaces_of_all_engines_come_go_and_move_through_power_cuts() {
    holds(Family::Drops, 1_500);
    holds(Family::Moving, 1_500);
}

#[test]
fn child_of_the_kill_loop() {
    be_the_child();
}

#[test]
fn killed_processes_leave_all_engines_at_one_commit() {
    let scratch = sheaf_testkit::stage::scratch(env!("CARGO_TARGET_TMPDIR"));
    let child = concat!(module_path!(), "::child_of_the_kill_loop");
    let report =
        kill_loop(&Subject::across(), &scratch, &Starter::test(child), 1, Budget::cases(120).workers(4));
    assert!(report.failures.is_empty(), "{report}\n{:?}", report.failures);
    assert_eq!(report.kills, 120, "{report}");
    assert!(report.commits > 0, "nothing was written: {report}");
}

/// The number that the newest batch in `snapshot` wrote to every keyspace, and how many keys each has.
fn moment(snapshot: &Snapshot, names: &[&str]) -> u64 {
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

/// A batch writes its number to a keyspace of each engine; whoever looks sees the same number everywhere, and none that was
/// not acknowledged yet or is older than what was acknowledged before.
#[test]
fn snapshots_over_all_engines_are_of_one_moment() {
    const BATCHES: u64 = 3_000;
    let stage = Stage::new(&Subject::across(), Setting::new(Place::Real, true, false));
    let db = stage.open();
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
            let after = acked.load(Ordering::Acquire) + 1; // one may be between its commit and our store
            let first = moment(&snapshot, &names);
            assert!((before..=after).contains(&first), "{first} of {before} to {after}");
            assert_eq!(moment(&snapshot, &names), first, "a snapshot stays");
            looks += 1;
        }
    });
    assert_eq!(moment(&db.snapshot().unwrap(), &names), BATCHES);
}

/// Time passes, and background work runs until there is none.
fn settle(stage: &Stage, db: &Database) {
    for _ in 0..100 {
        stage.advance(Duration::from_secs(2));
        if !db.pump().unwrap() {
            break;
        }
    }
}

/// Keyspaces are made, filled and dropped beside one that is written to all the time: the disk does not grow with them.
#[test]
fn a_keyspace_dropped_under_load_gives_its_space_back() {
    for engine in sheaf::engines() {
        let stage = Stage::new(&Subject::across(), Setting::new(Place::Simulated, true, true));
        let db = stage.open();
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
                    settle(&stage, db);
                }
            }
            // The load goes on: space comes back beside it.
            for number in 0..400u64 {
                busy.insert((number % 50).to_be_bytes(), [round; 200]).unwrap();
                if number % 20 == 0 {
                    settle(&stage, db);
                }
            }
            others_have_let_go(); // readers of other tests keep freed files, too
            settle(&stage, db);
            stage.bytes_on_disk()
        };
        let sizes: Vec<u64> = (0..8).map(|round| life(&db, round)).collect();
        let (first, last) = (sizes[0].max(sizes[1]), sizes[7]);
        println!("{engine}: {sizes:?}");
        assert!(last <= first + first / 4, "{engine}: {first} bytes after two keyspaces, {last} after eight");
        db.close().unwrap();
    }
}
