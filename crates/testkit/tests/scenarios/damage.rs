//! Scenarios with damaged bytes.

use sheaf::{Database, Error};
use sheaf_testkit::corruption::{InjectedDamage, StoredDatabase, inspect, inspect_all};
use sheaf_testkit::crash::machine::TestMachine;
use sheaf_testkit::crash::workload::{WorkloadShape, generate};
use sheaf_testkit::fixture::{DiskKind, Fixture, TestSetting, TestSubject};
use sheaf_testkit::repairs::{ExtraDamage, RepairFlaw, check_repair};

use super::steps;

/// Scenario 8. Damaged frames before the position that a checkpoint or a later frame proves durable
/// are reported as damage, not accepted as a torn tail.
#[test]
fn rot_below_the_durable_mark_is_never_a_torn_tail() {
    let mut workload = steps("0.1=30 S[0.2=300,1.2=200] work S[0.3=500] work");
    workload.extend(generate(
        11,
        &WorkloadShape { steps: 40, has_background_work: true, ..WorkloadShape::default() },
    ));
    workload.extend(steps("persist 0.4=10 S[1.4=20] tick 0.5=30"));
    let stored_db = StoredDatabase::killed(&workload);
    let logs: Vec<_> =
        stored_db.bit_flips(7, 8).filter(|damage| damage.to_string().contains(".seg")).collect();
    let report = inspect_all(&stored_db, logs);
    assert!(report.failures.is_empty(), "{report}\n{}", report.failures.join("\n"));
    assert!(report.errors > 0, "{report}");
}

/// Returns a database after a kill. It has synced commits to a single keyspace over several
/// segments. Only the newest segment proves that the last ones were durable.
fn single(subject: &TestSubject) -> StoredDatabase {
    let synced: Vec<String> = (0..40).map(|n| format!("S[0.{}={}]", n % 9, 200 + n)).collect();
    StoredDatabase::killed_with(subject, &steps(&format!("{} 0.9=10", synced.join(" "))))
}

/// Returns the written segments of the keyspace's log, oldest first.
fn written_segments(stored_db: &StoredDatabase) -> Vec<std::path::PathBuf> {
    let dir = if matches!(stored_db.subject.engine, "flex" | "delsm") { "journal" } else { "flat" };
    let is_written = |path: &std::path::PathBuf| {
        let bytes = stored_db.sim.read_file(path).expect("a file of the fixture");
        bytes[512.min(bytes.len())..].iter().any(|byte| *byte != 0)
    };
    let all = stored_db.files().into_iter().map(|(path, _)| path);
    let of_log = all.filter(|path| path.starts_with(format!("/db/{dir}")) && is_written(path));
    of_log.collect()
}

/// A written segment with a damaged header, or without its file, is damage. The opening does not
/// change it, and a repair reports that data may be missing.
#[test]
fn a_used_segment_without_a_header_is_damage_and_kept() {
    for subject in [TestSubject::flex(), TestSubject::delsm(), TestSubject::flat(), TestSubject::kreon()] {
        let stored_db = single(&subject);
        let segments = written_segments(&stored_db);
        assert!(segments.len() >= 3, "{subject:?}: {segments:?}");
        for path in segments.iter().rev().take(2) {
            let len = stored_db.sim.read_file(path).unwrap().len() as u64;
            let mut damages =
                vec![InjectedDamage::Missing(path.clone()), InjectedDamage::Length(path.clone(), 0)];
            damages.extend([0, 12, 20, 45, 58, 321].map(|at| InjectedDamage::Flip(path.clone(), at, 0)));
            for bytes in [512, 1024, len] {
                let zeros = vec![0; usize::try_from(bytes).unwrap()];
                damages.push(InjectedDamage::Write(path.clone(), 0, zeros, "zeros"));
            }
            for damage in damages {
                let answer = inspect(&stored_db, &damage)
                    .unwrap_or_else(|what| panic!("{subject:?}, {damage}: {what}"));
                assert!(answer.has_error, "{subject:?}, {damage}: {answer:?}");
                stays_and_is_repaired(&stored_db, &damage);
            }
        }
    }
}

/// Opens the damaged database twice and writes if possible: the file stays, and a repair does not
/// report an incomplete keyspace as complete.
fn stays_and_is_repaired(stored_db: &StoredDatabase, damage: &InjectedDamage) {
    let machine = TestMachine::for_subject(&stored_db.subject, stored_db.sim.kill());
    damage.apply(&machine.sim);
    let (path, _) = damage.location();
    let before = machine.sim.read_file(path).ok();
    for _ in 0..2 {
        if let Ok(db) = machine.open() {
            let _ = db
                .keyspace("other", stored_db.subject.options_of(stored_db.subject.other_engine))
                .and_then(|other| other.insert("k", "v"));
            db.close().expect("an orderly end");
        }
        assert_eq!(machine.sim.read_file(path).ok(), before, "{damage}");
    }
    check_repair(stored_db, damage, ExtraDamage::None, RepairFlaw::None)
        .unwrap_or_else(|what| panic!("{:?}, {damage}: {what}", stored_db.subject));
}

/// Damage to a preallocated, unused segment loses no data.
#[test]
fn a_preallocated_segment_with_a_damaged_header_loses_nothing() {
    for subject in [TestSubject::flex(), TestSubject::flat()] {
        let stored_db = single(&subject);
        let used = written_segments(&stored_db);
        let ready = stored_db.files().into_iter().map(|(path, _)| path).find(|path| {
            path.extension().is_some_and(|e| e == "seg")
                && path.parent() == used[0].parent()
                && !used.contains(path)
        });
        let ready = ready.expect("some are made ahead");
        for at in [0, 20, 321] {
            let answer = inspect(&stored_db, &InjectedDamage::Flip(ready.clone(), at, 0)).unwrap();
            assert!(answer.is_exact, "{subject:?}, {at}: {answer:?}");
        }
    }
}

/// Scenario 23. Damage to the data of one keyspace does not affect reads of the other.
#[test]
fn rot_in_one_keyspace_does_not_affect_the_other() {
    let stored_db = StoredDatabase::closed(&steps("0.2=300 1.2=300 0.3=300 1.3=300 persist work"));
    let (mut damaged, mut refused) = (0, 0);
    for (path, _) in stored_db.files() {
        let bytes = stored_db.sim.read_file(&path).unwrap();
        // The first write of the workload belongs to keyspace alpha, and its value repeats this
        // tag.
        for (at, _) in bytes.windows(5).enumerate().filter(|(_, w)| *w == b"<0.0>").step_by(7) {
            let answer = inspect(&stored_db, &InjectedDamage::Flip(path.clone(), at as u64, 2)).unwrap();
            assert!(
                answer.has_error && !answer.open_failed && answer.intact_keyspaces == 1,
                "{} at {at}: {answer:?}",
                path.display()
            );
            damaged += 1;
        }
    }
    for (path, len) in
        stored_db.files().into_iter().filter(|(path, _)| path.extension().is_some_and(|e| e == "img"))
    {
        for at in (0..len).step_by(5) {
            let answer = inspect(&stored_db, &InjectedDamage::Flip(path.clone(), at, 2)).unwrap();
            assert!(
                answer.is_exact || (!answer.open_failed && answer.intact_keyspaces >= 1),
                "{} at {at}: {answer:?}",
                path.display()
            );
            refused += u32::from(answer.has_error);
        }
    }
    assert!(damaged > 0 && refused > 0, "{damaged} {refused}");
}

/// A blob file is removed while the database is open: a read returns an error that names the file
/// and does not retry forever. An open chunk file stays readable until the database is opened
/// again.
#[test]
fn a_blob_removed_from_an_open_database_is_reported() {
    for subject in TestSubject::all() {
        let fixture = Fixture::new(&subject, TestSetting::new(DiskKind::Simulated, true, true));
        let db = fixture.open();
        let keyspace = fixture.keyspace(&db, "a");
        let value = vec![b'v'; 5000];
        keyspace.insert("large", &value).unwrap();
        let is_value = |e: &std::ffi::OsStr| e == "blob" || e == "chunk";
        let file = fixture.read_tree().into_keys().find(|path| path.extension().is_some_and(is_value));
        let file = file.expect("it was staged");
        fixture.disk().remove(&file).unwrap();
        let names_it = |error: Error| matches!(error, Error::Corrupt { path, .. } if path == file);
        let check = |db: &Database| {
            let keyspace = fixture.keyspace(db, "a");
            assert!(names_it(keyspace.get("large").unwrap_err()));
            assert!(names_it(keyspace.iter().unwrap().next().unwrap().unwrap_err()));
            let mut found = Vec::new();
            db.verify(|finding| found.push(finding)).unwrap();
            assert!(found.into_iter().any(names_it));
        };
        if file.extension().is_some_and(|e| e == "chunk") {
            assert_eq!(keyspace.get("large").unwrap().as_deref(), Some(&value[..]));
            drop((keyspace, db));
            check(&fixture.open());
        } else {
            check(&db);
        }
    }
}
