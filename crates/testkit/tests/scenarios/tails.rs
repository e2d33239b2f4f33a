//! Scenarios about the ends of the logs after a crash.

use std::path::PathBuf;

use sheaf_platform::disk::SECTOR;
use sheaf_sim::{CallClass, Fault, FaultKind, FaultPlan, KeepChoice, UnitKind};
use sheaf_testkit::corruption::{InjectedDamage, StoredDatabase, inspect};
use sheaf_testkit::crash::explore::ExplorePlan;
use sheaf_testkit::crash::machine::TestMachine;
use sheaf_testkit::faults::{FaultCase, FaultReach, every_case};
use sheaf_testkit::fixture::TestSubject;
use sheaf_testkit::recording_disk::DiskDefect;
use sheaf_testkit::totals::Budget;

use super::{keyspace, put_durably, steps, survives, text};

/// Scenario 1. A power cut loses A and keeps B. A new A has the length of the old one. After a
/// second power cut the old B must not follow it.
#[test]
fn a_stale_frame_never_chains_into_the_new_log() {
    let machine = TestMachine::new();
    let db = machine.open().unwrap();
    let k = keyspace(&db, "k");
    put_durably(&db, &k, "base", b"0").unwrap();
    // Values longer than a sector, so that A and B are in different sectors.
    let old = |name: &str| format!("old {name} {}", "x".repeat(700));
    k.insert("a", old("A")).unwrap();
    k.insert("b", old("B")).unwrap();
    let (mut first_cuts, mut lost_a_kept_b, mut second_cuts) = (0, 0, 0);
    for cut in machine.sim.pending().keeps(7, 12, 7) {
        let kept: Vec<_> =
            machine.sim.pending().units().iter().enumerate().map(|(i, u)| cut.keeps(i, u)).collect();
        lost_a_kept_b += u32::from(!kept[0] && kept.last() == Some(&true));
        let second = machine.after_power_cut(&cut);
        let db = second.open().unwrap();
        let k = keyspace(&db, "k");
        let found = (text(&k, "a"), text(&k, "b"));
        assert!(found.1.is_none() || found.0.is_some(), "B without A");
        let new = format!("new A {}", "y".repeat(700));
        assert_eq!(new.len(), old("A").len());
        k.insert("a", &new).unwrap();
        for keep in second.sim.pending().keeps(5, 8, 7) {
            let machine = second.after_power_cut(&keep);
            let db = machine.open().unwrap();
            let k = keyspace(&db, "k");
            assert_eq!(text(&k, "b"), found.1, "the old B is back, or served data is lost");
            let a = text(&k, "a");
            assert!(a == found.0 || a.as_ref() == Some(&new), "A is neither old nor new: {a:?}");
            second_cuts += 1;
        }
        first_cuts += 1;
    }
    assert!(
        lost_a_kept_b > 0 && first_cuts >= 8 && second_cuts > 16,
        "{first_cuts} {lost_a_kept_b} {second_cuts}"
    );
}

/// Scenario 2. One log lost commit 11, and the other kept 12. New commits with these numbers must
/// not mix with them after a second power cut. Keyspace 2 is in the journal, 0 and 1 in the store
/// log.
#[test]
fn two_logs_cut_at_different_places_never_mix_old_and_new_commits() {
    let steps = steps(
        "0.2=40 2.2=40 S[0.3=600,2.3=10] 2.2=77 0.2=50 B[0.4=700,2.4=700] drop1 B[0.5=9,2.5=600] 0.6=80",
    );
    let report = survives(
        &steps,
        &ExplorePlan {
            second_crash_rate: 12,
            second_crash_subsets: 8,
            max_seconds: 30.0,
            ..ExplorePlan::default()
        },
    );
    assert!(report.second_images > 1000, "{report}");
}

/// Scenario 6. The frame reaches the disk, and its large value does not, or only in part.
#[test]
fn a_commit_whose_blob_is_lost_is_absent() {
    let machine = TestMachine::new();
    let db = machine.open().unwrap();
    let k = keyspace(&db, "k");
    put_durably(&db, &k, "large", &[1; 5000]).unwrap();
    k.insert("large", [2; 5000]).unwrap();
    k.insert("after", b"small").unwrap();
    let (mut old, mut new) = (0, 0);
    for keep in machine.sim.pending().keeps(14, 200, 3) {
        let machine = machine.after_power_cut(&keep);
        let db = machine.open().unwrap();
        let k = keyspace(&db, "k");
        let value = k.get("large").unwrap().expect("one of the two");
        match value[0] {
            1 => {
                assert_eq!(&value[..], &[1; 5000][..]);
                assert_eq!(text(&k, "after"), None, "a commit without its predecessor");
                old += 1;
            }
            _ => {
                assert_eq!(&value[..], &[2; 5000][..]);
                new += 1;
            }
        }
    }
    assert!(old > 0 && new > 0, "{old} {new}");
}

/// Scenario 10. A sync fails and the process reopens the database: the page cache has frames that
/// the device lacks. Data that a reader then sees must survive a power cut, also one during that
/// opening.
#[test]
fn data_served_after_a_failed_sync_survives_the_next_power_cut() {
    let steps = steps("S[0.2=40,1.2=30] 0.3=600 S[0.4=50] B[0.2=10,1.3=700] persist 0.5=60 tick S[0.6=20]");
    let is_sync = |case: &FaultCase| {
        (case.class, case.failure, case.reach) == (CallClass::Sync, FaultKind::Io, FaultReach::Once)
    };
    let whole = Budget::seconds(f64::INFINITY);
    let report =
        every_case(&TestSubject::flat(), &steps, is_sync, DiskDefect::None, ToString::to_string, whole);
    assert!(report.failures.is_empty(), "{report}\n{:?}", report.failures);
    assert!(report.poisoned >= 4, "{report}");
}

/// Scenario 10, second half: the power fails while the process after the failed sync is opening.
#[test]
fn a_power_cut_while_opening_after_a_failed_sync_keeps_what_was_durable() {
    for nth in 1..=3 {
        let machine = TestMachine::new();
        let db = machine.open().unwrap();
        let k = keyspace(&db, "k");
        put_durably(&db, &k, "safe", b"1").unwrap();
        k.insert("unsafe", [7; 900]).unwrap();
        machine.sim.set_faults(Fault::new(CallClass::Sync, FaultKind::Io).nth(nth));
        let failed = (0..3).map(|n| put_durably(&db, &k, "more", &[n])).filter(Result::is_err).count();
        assert!(failed > 0, "no sync failed");
        drop((db, k));
        machine.sim.set_faults(FaultPlan::default());
        let next = TestMachine::with_disk(machine.sim.kill());
        let moments = fork_before_changes(&next);
        let db = next.open().unwrap();
        let served = text(&keyspace(&db, "k"), "unsafe");
        let moments = moments();
        for (number, image) in moments.iter().enumerate() {
            for keep in image.pending().keeps(4, 12, nth) {
                let machine = TestMachine::with_disk(image.power_cut(&keep));
                let db = machine.open().unwrap_or_else(|e| panic!("moment {number}, {keep:?}: {e}"));
                assert_eq!(
                    text(&keyspace(&db, "k"), "safe").as_deref(),
                    Some("1"),
                    "moment {number}, {keep:?}"
                );
            }
        }
        let db = next.after_power_cut(&KeepChoice::None).open().unwrap();
        assert_eq!(text(&keyspace(&db, "k"), "unsafe"), served, "data that was served is lost");
    }
}

/// Records forks of the disk before each changing call from now on.
fn fork_before_changes(machine: &TestMachine) -> impl Fn() -> Vec<sheaf_sim::SimDisk> {
    let images = std::sync::Arc::new(sheaf_platform::sync::Mutex::new(Vec::new()));
    let (sim, into, recording_disk) = (machine.sim.clone(), images.clone(), machine.recording_disk.clone());
    machine.recording_disk.set_observer(move |_, _| into.lock().push(sim.fork()));
    move || {
        recording_disk.clear_observer();
        std::mem::take(&mut *images.lock())
    }
}

/// Scenario 11. No later write shares a sector with an acknowledged commit, so a torn write cannot
/// damage the commit.
#[test]
fn a_torn_write_never_reaches_an_acknowledged_commit() {
    let machine = TestMachine::with_torn_sectors();
    let db = machine.open().unwrap();
    let k = keyspace(&db, "k");
    put_durably(&db, &k, "safe", b"<the acknowledged value>").unwrap();
    let places = find(&machine, b"<the acknowledged value>");
    assert!(!places.is_empty());
    for n in 0..5 {
        k.insert(format!("later {n}"), b"small").unwrap();
    }
    for unit in machine.sim.pending().units() {
        if let UnitKind::Sector { index, .. } = unit.kind {
            let (start, end) = (index * SECTOR, (index + 1) * SECTOR);
            let hit = places.iter().any(|(path, at)| *path == *unit.path && *at < end && *at + 24 > start);
            assert!(!hit, "sector {index} of {} is written again", unit.path.display());
        }
    }
    for seed in 0..100 {
        let machine = machine.after_power_cut(&KeepChoice::Seeded { seed, percent: 50 });
        let db = machine.open().unwrap();
        assert_eq!(text(&keyspace(&db, "k"), "safe").as_deref(), Some("<the acknowledged value>"));
    }
}

fn find(machine: &TestMachine, bytes: &[u8]) -> Vec<(PathBuf, u64)> {
    let files = machine.sim.files();
    let hits = files.iter().flat_map(|(path, _)| {
        let content = machine.sim.read_file(path).expect("listed");
        let at =
            content.windows(bytes.len()).enumerate().filter(|(_, w)| *w == bytes).map(|(at, _)| at as u64);
        at.map(|at| (path.clone(), at)).collect::<Vec<_>>()
    });
    hits.collect()
}

/// Scenario 15. A committer ends between its reservation and its copy. Its own code cannot panic
/// there, so the disk panics, at every write of a commit, and the process is killed at every call.
#[test]
fn a_committer_killed_during_a_commit_leaves_no_hole() {
    let steps = steps("0.2=40 B[0.3=30,1.2=600,0.4=500] 1.3=20 S[0.5=10,1.5=10] 0.6=30");
    let report =
        survives(&steps, &ExplorePlan { second_crash_rate: 50, max_states: 1_500, ..ExplorePlan::default() });
    assert!(report.images > 100, "{report}");
    for nth in 1..40 {
        let machine = TestMachine::new();
        let db = machine.open().unwrap();
        let k = keyspace(&db, "k");
        machine.sim.set_faults(Fault::new(CallClass::Write, FaultKind::Panic).nth(nth));
        let died = sheaf_testkit::supervise::run_supervised("a writer dies", || {
            (0..10).try_for_each(|n| k.insert("count", [n]).map_err(|e| e.to_string()))
        });
        let written = k.get("count").unwrap().map_or(0, |v| v[0] + 1);
        let reopened = TestMachine::with_disk(machine.sim.kill());
        machine.sim.set_faults(FaultPlan::default());
        drop((db, k));
        let db = reopened.open().unwrap();
        let kept = keyspace(&db, "k").get("count").unwrap().map_or(0, |v| v[0] + 1);
        assert!(
            kept == written || kept == written + 1,
            "call {nth}: {written} were visible, {kept} are kept"
        );
        if died.is_ok() {
            assert!(nth > 10, "the fault never struck");
            return;
        }
    }
}

/// Scenario 17. Damage to the last acknowledged commit after a clean close is an error, not a torn
/// tail.
#[test]
fn rot_in_the_last_commit_after_a_clean_close_is_an_error() {
    let stored_db = StoredDatabase::closed(&steps("0.2=40 1.2=30 S[0.3=50]"));
    let mut hits = 0;
    for (path, at) in find(&TestMachine::with_disk(stored_db.sim.kill()), b"<2.0>") {
        let answer = inspect(&stored_db, &InjectedDamage::Flip(path.clone(), at, 1)).unwrap();
        assert!(answer.has_error, "{} at {at}: {answer:?}", path.display());
        hits += 1;
    }
    assert!(hits > 0, "no file contains the value");
}

/// Scenario 18. Values contain the bytes of the database's own log, with its frames. After any
/// power cut they must not be replayed as commits.
#[test]
fn log_bytes_stored_as_values_are_never_replayed() {
    let machine = TestMachine::new();
    let db = machine.open().unwrap();
    let k = keyspace(&db, "k");
    k.insert("ghost", b"boo").unwrap();
    put_durably(&db, &k, "real", b"1").unwrap();
    k.remove("ghost").unwrap();
    db.persist().unwrap();
    let files: Vec<Vec<u8>> = machine
        .sim
        .files()
        .iter()
        .filter(|(path, _)| path.extension().is_some_and(|e| e == "seg"))
        .map(|(path, _)| machine.sim.read_file(path).expect("listed"))
        .collect();
    for (number, bytes) in files.iter().enumerate() {
        let written = bytes.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
        // From different offsets, so that old frames are at all kinds of frame boundaries.
        for from in (0..written.min(2048)).step_by(120) {
            k.insert(format!("copy {number} {from}"), &bytes[from..(from + 900).min(written)]).unwrap();
        }
    }
    let mut images = 0;
    for machine in machine.after_any_power_cut() {
        let db = machine.open().unwrap();
        let k = keyspace(&db, "k");
        assert_eq!(text(&k, "ghost"), None, "a commit out of a value");
        assert_eq!(text(&k, "real").as_deref(), Some("1"));
        images += 1;
    }
    assert!(images > 50);
}

/// A torn write of GC leaves complete copies after the end of its segment. That part is not written
/// again: an opening would read the copies as following frames, and later frames as damage. (The
/// failure needs a shorter second part of equal frames in the same stream, which no case here
/// produces. So the test also passes without the fix.)
#[test]
fn a_torn_gc_write_is_not_read_by_recovery() {
    let mut torn = 0;
    for (nth, sectors) in (1..=16).flat_map(|nth| [1, 2].map(|sectors| (nth, sectors))) {
        let machine = TestMachine::new();
        let db = machine.open().unwrap();
        let k = keyspace(&db, "k");
        let mut newest = [0u32; 60];
        let mut write = |keys: &mut dyn Iterator<Item = usize>, round: u32| {
            for key in keys {
                match k.insert(format!("{key:02}"), format!("{round:030}")) {
                    Ok(()) => newest[key] = round,
                    Err(error) => assert!(matches!(error, sheaf::Error::Poisoned { .. }), "{error}"),
                }
            }
            newest
        };
        for round in 1..6 {
            write(&mut (0..60).filter(|key| round < 3 || key % 3 > 0), round);
        }
        machine.sim.set_faults(Fault::new(CallClass::Write, FaultKind::Torn { sectors }).on(".seg").nth(nth));
        for _ in 0..4 {
            let _ = db.pump();
        }
        torn += machine.sim.injected();
        machine.sim.set_faults(FaultPlan::default());
        // Only a small part of the copied entries is live at the next attempt.
        write(&mut (0..60).filter(|key| key % 7 > 0), 6);
        for round in 7..10 {
            let _ = db.pump();
            write(&mut (0..60).filter(|key| key % 5 == 0), round);
        }
        let is_durable = db.persist().is_ok();
        let newest = write(&mut std::iter::empty(), 0);
        for keep in [KeepChoice::None, KeepChoice::All] {
            let db = machine.after_power_cut(&keep).open().unwrap();
            let k = keyspace(&db, "k");
            for (key, round) in newest.iter().enumerate() {
                let found = text(&k, &format!("{key:02}"));
                if is_durable {
                    assert_eq!(
                        found,
                        Some(format!("{round:030}")),
                        "write {nth}, {sectors} sectors, key {key}"
                    );
                }
            }
            db.verify(|finding| panic!("write {nth}, {sectors} sectors: {finding}")).unwrap();
        }
    }
    assert!(torn > 3, "torn writes: {torn}");
}

/// An opening writes the tail that it accepts again, and syncs it. A full device at that sync is
/// reported as a failed sync, not as a lack of space: freed space cannot restore the lost data.
#[test]
fn an_open_whose_sync_returns_enospc_reports_a_failed_sync() {
    for failure in [FaultKind::NoSpace, FaultKind::Quota] {
        let machine = TestMachine::new();
        let db = machine.open().unwrap();
        keyspace(&db, "k").insert("key", b"value").unwrap();
        let killed = machine.after_kill();
        killed.sim.set_faults(Fault::new(CallClass::Sync, failure).on(".seg"));
        let error = killed.open().expect_err("it cannot sync the accepted commits");
        assert!(error.is_failed_sync(), "{error:?}");
        let db = killed.open().unwrap();
        assert_eq!(text(&keyspace(&db, "k"), "key").as_deref(), Some("value"));
    }
}
