//! Scenarios about GC, checkpoints, freed space and full disks.

#![allow(clippy::cast_possible_truncation)] // numbers here are small by construction

use std::collections::BTreeMap;

use sheaf::{DatabaseStats, Error};
use sheaf_sim::{CallClass, Fault, FaultKind, FaultPlan, KeepChoice};
use sheaf_testkit::crash::explore::ExplorePlan;
use sheaf_testkit::crash::machine::TestMachine;
use sheaf_testkit::crash::run::WorkloadRun;
use sheaf_testkit::crash::workload::CrashStep;

use super::{keyspace, put_durably, steps, survives, text};

/// Runs `steps` without crashes and returns the final figures, to check that the scenario occurred.
fn run_and_stat(steps: &[CrashStep]) -> DatabaseStats {
    let mut run = WorkloadRun::new(TestMachine::new());
    run.run_steps(steps).expect("no faults: it runs");
    run.db().expect("it is open").stats()
}

fn freed(stats: &DatabaseStats) -> u64 {
    stats.logs.iter().map(|log| log.freed_segments).sum()
}

/// Returns rounds of overwrites with background work between them, after a first and before a last
/// part.
fn churn(first: &str, round: &str, rounds: usize, last: &str) -> Vec<CrashStep> {
    steps(&format!("{first} {} {last}", vec![round; rounds].join(" ")))
}

/// Scenario 3. GC moves commits that were synced since the last ROOT, and frees their segment. A
/// power cut at any call must lose none of them.
#[test]
fn synced_commits_survive_the_cleaning_of_their_segment() {
    let steps = churn("S[0.7=300,1.7=200]", "S[0.2=900,1.2=700] S[0.3=900] tick work", 12, "S[0.4=20]");
    assert!(freed(&run_and_stat(&steps)) > 0, "nothing was cleaned: {:?}", run_and_stat(&steps).logs);
    let report = survives(
        &steps,
        &ExplorePlan {
            second_crash_rate: 200,
            exhaustive_units: 6,
            max_states: 1_500,
            ..ExplorePlan::default()
        },
    );
    assert!(report.images > 300, "{report}");
}

/// Scenario 4. A key and its tombstone are in different segments, and both segments are collected:
/// the key must stay removed.
#[test]
fn a_removed_key_stays_gone_when_its_tombstone_is_cleaned() {
    let churned = churn(
        "0.7=300 persist 0.2=900 0.3=900 0.2=900 tick S[0.7-]",
        "S[0.2=900,1.2=700] 0.3=900 tick work",
        14,
        "reopen work",
    );
    let stats = run_and_stat(&churned);
    assert!(freed(&run_and_stat(&churned[..churned.len() - 2])) > 3, "{stats:?}");
    let report = survives(
        &churned,
        &ExplorePlan {
            second_crash_rate: 300,
            exhaustive_units: 5,
            random_subsets: 8,
            max_states: 1_500,
            ..ExplorePlan::default()
        },
    );
    assert!(report.images > 300, "{report}");
}

/// Scenario 5. An unsynced overwrite supersedes a synced value. Its space must not be freed before
/// the overwrite is durable.
#[test]
fn an_unsynced_overwrite_never_costs_the_synced_value() {
    let steps = churn("S[0.2=800,1.2=800]", "0.2=900 0.2=800 1.2=900 0.2=700 work", 10, "0.2=5");
    assert!(freed(&run_and_stat(&steps)) > 0);
    let report = survives(
        &steps,
        &ExplorePlan {
            second_crash_rate: 0,
            exhaustive_units: 6,
            max_states: 1_500,
            ..ExplorePlan::default()
        },
    );
    assert!(report.images > 200, "{report}");
}

/// Scenario 7. An in-place page reaches the disk before its commit. The store log has no pages that
/// are written in place, so the test checks the nearest property: a nonzero byte of a segment never
/// changes while the segment exists.
#[test]
fn stored_frames_are_never_overwritten() {
    let churned = churn("S[0.7=300]", "S[0.2=900,1.2=700] 0.3=900 B[0.2-,1.3=9] tick work", 10, "S[0.4=20]");
    let machine = TestMachine::new();
    let mut run = WorkloadRun::new(machine.clone());
    let mut before: BTreeMap<std::path::PathBuf, Vec<u8>> = BTreeMap::new();
    run.db().unwrap();
    for (number, step) in churned.iter().enumerate() {
        run.run_step(number, step).unwrap();
        let files =
            machine.sim.files().into_iter().filter(|(path, _)| path.extension().is_some_and(|e| e == "seg"));
        let now: BTreeMap<std::path::PathBuf, Vec<u8>> =
            files.map(|(path, _)| (path.clone(), machine.sim.read_file(&path).unwrap())).collect();
        for (path, old) in &before {
            let Some(new) = now.get(path) else { continue };
            let changed = old.iter().zip(new).position(|(old, new)| *old != 0 && old != new);
            assert_eq!(changed, None, "{} after step {number}", path.display());
        }
        before = now;
    }
}

/// Scenario 9. An index checkpoint is written while segments that it references are freed.
#[test]
fn an_image_never_points_into_a_freed_segment() {
    let steps = churn(
        "S[0.7=300,1.7=200]",
        "0.2=900 1.2=900 0.3=800 1.3=700 B[0.4=900,1.4=900] tick work",
        14,
        "reopen 0.5=9",
    );
    let stats = run_and_stat(&steps[..steps.len() - 2]);
    assert!(freed(&stats) > 2 && stats.checkpoints > 1, "{stats:?}");
    let report = survives(
        &steps,
        &ExplorePlan {
            second_crash_rate: 300,
            exhaustive_units: 4,
            random_subsets: 6,
            max_states: 1_500,
            ..ExplorePlan::default()
        },
    );
    assert!(report.images > 300, "{report}");
}

/// Scenario 19. A keyspace that is written only once must not pin the journal. The catalog is
/// changed hundreds of times, and the journal must stay small.
#[test]
fn one_idle_keyspace_does_not_pin_the_journal() {
    let machine = TestMachine::new();
    let db = machine.open().unwrap();
    let idle = keyspace(&db, "idle");
    idle.insert("yesterday", b"1").unwrap();
    let journal =
        |db: &sheaf::Database| db.stats().logs.iter().find(|l| l.name == "journal").unwrap().disk_bytes;
    let mut most = 0;
    for round in 0..300 {
        keyspace(&db, &format!("{}{round}", "passing ".repeat(20)));
        assert!(db.drop_keyspace(&format!("{}{round}", "passing ".repeat(20))).unwrap());
        machine.run_background(&db).unwrap();
        most = most.max(journal(&db));
    }
    assert!(most < 256 << 10, "the journal takes {most} bytes");
    let appended = db.stats().logs.iter().find(|l| l.name == "journal").unwrap().appended_bytes;
    assert!(appended > 100 << 10, "it was hardly written: {appended}");
    assert_eq!(text(&idle, "yesterday").as_deref(), Some("1"));
}

/// Scenario 19, second half: checkpoints that keep failing cost space, but no data. When they
/// succeed again, the space is freed.
#[test]
fn checkpoints_that_keep_failing_lose_nothing() {
    let machine = TestMachine::new();
    let db = machine.open().unwrap();
    let k = keyspace(&db, "k");
    machine.sim.set_faults(Fault::new(CallClass::Create, FaultKind::Io).on("images").forever());
    let mut failed = 0;
    for round in 0..60u8 {
        put_durably(&db, &k, &format!("key{}", round % 7), &[round; 900]).unwrap();
        machine.clock.advance(std::time::Duration::from_secs(2));
        failed += u32::from(db.pump().is_err());
    }
    assert!(failed > 0, "no checkpoint failed");
    let killed = TestMachine::with_disk(machine.sim.kill());
    assert_eq!(keyspace(&killed.open().unwrap(), "k").get("key3").unwrap().unwrap()[0], 59);
    machine.sim.set_faults(FaultPlan::default());
    machine.run_background(&db).unwrap();
    assert!(db.stats().checkpoints > 0);
    assert_eq!(k.get("key3").unwrap().unwrap()[0], 59);
}

/// Scenario 20. On a full disk, opening needs no space, reads and removals succeed, and space freed
/// by removals can be used without reopening.
#[test]
fn a_full_disk_can_be_opened_read_and_emptied() {
    let machine = TestMachine::new();
    let db = machine.open().unwrap();
    let k = keyspace(&db, "k");
    machine.sim.set_capacity(320 << 10);
    let mut written = Vec::new();
    let full = loop {
        let key = format!("key{:04}", written.len());
        match k.insert(&key, [written.len() as u8; 800]) {
            Ok(()) => written.push(key),
            Err(e) => break e,
        }
        let _ = machine.tick(&db);
        assert!(written.len() < 2000, "the disk is never full");
    };
    assert!(matches!(full, Error::NoSpace { .. }), "{full:?}");
    assert!(written.len() > 50);
    let check = |k: &sheaf::Keyspace| {
        for (number, key) in written.iter().enumerate() {
            assert_eq!(k.get(key).unwrap().as_deref(), Some(&[number as u8; 800][..]), "{key}");
        }
    };
    check(&k);
    drop((k, db));
    let killed = TestMachine::with_disk(machine.sim.kill());
    killed.sim.set_capacity(0); // no new block
    let db = killed.open().unwrap();
    let k = keyspace(&db, "k");
    check(&k);
    killed.sim.set_capacity(320 << 10);
    for (number, key) in written[..written.len() * 3 / 4].iter().enumerate() {
        k.remove(key).unwrap_or_else(|e| panic!("removing {key} on a full disk: {e}"));
        if number % 25 == 24 {
            let _ = killed.tick(&db); // each sync wastes the rest of a sector of the log
        }
    }
    for _ in 0..50 {
        killed.clock.advance(std::time::Duration::from_secs(2));
        let _ = db.pump();
    }
    k.insert("room again", [1; 800]).unwrap();
    put_durably(&db, &k, "and again", &[2; 800]).unwrap();
    let after = killed.after_power_cut(&KeepChoice::None);
    let k = keyspace(&after.open().unwrap(), "k");
    assert_eq!(k.get("room again").unwrap().unwrap()[0], 1);
    assert_eq!(k.len().unwrap() as usize, written.len() - written.len() * 3 / 4 + 2);
}

/// Regression, found by the kill loop: the number of a segment with survivors lies between those of
/// two segments that a batch spans. The batch was taken for torn, and all later commits were lost.
#[test]
fn a_batch_that_spans_segments_around_survivors_is_whole() {
    let large: Vec<String> = (0..8).map(|n| format!("{}.{}=900", n % 2, n)).collect();
    let round = format!("S[0.2=900,1.2=700,0.3=900] 0.4=300 tick work B[{}] 1.4=20", large.join(","));
    let steps = churn("S[0.7=300]", &round, 12, "0.5=9");
    assert!(freed(&run_and_stat(&steps)) > 0);
    let report = survives(
        &steps,
        &ExplorePlan {
            second_crash_rate: 200,
            exhaustive_units: 3,
            random_subsets: 4,
            max_states: 1_500,
            ..ExplorePlan::default()
        },
    );
    assert!(report.images > 50, "{report}");
}

/// Scenario 22. A batch larger than a segment is complete or absent. A batch beyond the limit, and
/// a value of 4 GiB, are refused before anything is written.
#[test]
fn batches_beyond_a_segment_are_whole_and_beyond_the_limit_refused() {
    let large: Vec<String> = (0..30).map(|n| format!("{}.{}=900", n % 2, n)).collect();
    let steps = steps(&format!("S[0.2=10,1.2=10] B[{}] 0.2=30", large.join(",")));
    let report = survives(
        &steps,
        &ExplorePlan {
            second_crash_rate: 50,
            exhaustive_units: 6,
            max_states: 1_500,
            ..ExplorePlan::default()
        },
    );
    assert!(report.images > 100, "{report}");

    let machine = TestMachine::new();
    let db = machine.open().unwrap();
    let k = keyspace(&db, "k");
    let ops = machine.sim.ops();
    let mut batch = db.batch();
    for n in 0..4000u32 {
        batch.insert(&k, n.to_le_bytes(), [0; 1000]);
    }
    assert!(matches!(batch.commit(), Err(Error::TooLarge { object: "batch", .. })));
    assert!(matches!(k.insert([0; 65_536], b""), Err(Error::TooLarge { object: "key", .. })));
    let huge = vec![0u8; 1 << 32]; // never touched, because its length is refused
    assert!(matches!(
        k.insert("huge", &huge),
        Err(Error::TooLarge { object: "value", got: 0x1_0000_0000, .. })
    ));
    assert_eq!(machine.sim.ops(), ops, "something was written");
}
