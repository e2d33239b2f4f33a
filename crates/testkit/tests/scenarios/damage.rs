//! Scenarios about bytes that rot.

use sheaf::{Database, Error};
use sheaf_testkit::corrupt::{Damage, Fixture, corrupt, inspect};
use sheaf_testkit::crash::workload::{Shape, generate};
use sheaf_testkit::stage::{Place, Setting, Stage, Subject};

use super::steps;

/// Scenario 8. Frames below what a checkpoint, or a later frame, knows to be durable rot: damage, never a
/// torn tail under an engine that is further.
#[test]
fn rot_below_the_durable_mark_is_never_a_torn_tail() {
    let mut workload = steps("0.1=30 S[0.2=300,1.2=200] work S[0.3=500] work");
    workload.extend(generate(11, &Shape { steps: 40, busy: true, ..Shape::default() }));
    workload.extend(steps("persist 0.4=10 S[1.4=20] tick 0.5=30"));
    let fixture = Fixture::killed(&workload);
    let logs: Vec<_> = fixture.flips(7, 8).filter(|damage| damage.to_string().contains(".seg")).collect();
    let report = corrupt(&fixture, logs);
    assert!(report.failures.is_empty(), "{report}\n{}", report.failures.join("\n"));
    assert!(report.errors > 0, "{report}");
}

/// Scenario 23. Rot in what belongs to one keyspace: the other opens and answers everything.
#[test]
fn rot_in_one_keyspace_leaves_the_other_whole() {
    let fixture = Fixture::closed(&steps("0.2=300 1.2=300 0.3=300 1.3=300 persist work"));
    let (mut damaged, mut refused) = (0, 0);
    for (path, _) in fixture.files() {
        let bytes = fixture.sim.read_file(&path).unwrap();
        // The first write of the workload is alpha's; its value repeats this tag.
        for (at, _) in bytes.windows(5).enumerate().filter(|(_, w)| *w == b"<0.0>").step_by(7) {
            let answer = inspect(&fixture, &Damage::Flip(path.clone(), at as u64, 2)).unwrap();
            assert!(
                answer.error && !answer.unopened && answer.whole_spaces == 1,
                "{} at {at}: {answer:?}",
                path.display()
            );
            damaged += 1;
        }
    }
    for (path, len) in
        fixture.files().into_iter().filter(|(path, _)| path.extension().is_some_and(|e| e == "img"))
    {
        for at in (0..len).step_by(5) {
            let answer = inspect(&fixture, &Damage::Flip(path.clone(), at, 2)).unwrap();
            assert!(
                answer.exact || (!answer.unopened && answer.whole_spaces >= 1),
                "{} at {at}: {answer:?}",
                path.display()
            );
            refused += u32::from(answer.error);
        }
    }
    assert!(damaged > 0 && refused > 0, "{damaged} {refused}");
}

/// Somebody removes the file of a staged value under the open database: whoever reads it is told which
/// file is missing, and nobody searches for ever. A chunk that is open is read all the same, until the database is opened again.
#[test]
fn a_staged_value_that_vanishes_under_the_open_database_is_damage() {
    for subject in Subject::all() {
        let stage = Stage::new(&subject, Setting::new(Place::Simulated, true, true));
        let db = stage.open();
        let keyspace = stage.keyspace(&db, "a");
        let value = vec![b'v'; 5000];
        keyspace.insert("large", &value).unwrap();
        let is_value = |e: &std::ffi::OsStr| e == "blob" || e == "chunk";
        let file = stage.tree().into_keys().find(|path| path.extension().is_some_and(is_value));
        let file = file.expect("it was staged");
        stage.disk().remove(&file).unwrap();
        let names_it = |error: Error| matches!(error, Error::Corrupt { path, .. } if path == file);
        let check = |db: &Database| {
            let keyspace = stage.keyspace(db, "a");
            assert!(names_it(keyspace.get("large").unwrap_err()));
            assert!(names_it(keyspace.iter().unwrap().next().unwrap().unwrap_err()));
            let mut found = Vec::new();
            db.verify(|finding| found.push(finding)).unwrap();
            assert!(found.into_iter().any(names_it));
        };
        if file.extension().is_some_and(|e| e == "chunk") {
            assert_eq!(keyspace.get("large").unwrap().as_deref(), Some(&value[..]));
            drop((keyspace, db));
            check(&stage.open());
        } else {
            check(&db);
        }
    }
}
