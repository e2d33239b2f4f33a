//! Scenarios about bytes that rot.

use sheaf::{Database, Error};
use sheaf_testkit::corrupt::{Damage, Fixture, corrupt, inspect};
use sheaf_testkit::crash::workload::{Shape, generate};
use sheaf_testkit::crash::world::World;
use sheaf_testkit::repairs::{Also, Flaw, judge};
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

/// Synced commits to one keyspace, the only one, over several segments of its log, and a kill: all that says that the last ones
/// were durable stands in the newest segment.
fn single(subject: &Subject) -> Fixture {
    let synced: Vec<String> = (0..40).map(|n| format!("S[0.{}={}]", n % 9, 200 + n)).collect();
    Fixture::killed_of(subject, &steps(&format!("{} 0.9=10", synced.join(" "))))
}

/// The segments of the keyspace's log that were written to, oldest first.
fn written_segments(fixture: &Fixture) -> Vec<std::path::PathBuf> {
    let dir = if matches!(fixture.subject.engine, "flex" | "delsm") { "journal" } else { "flat" };
    let is_written = |path: &std::path::PathBuf| {
        let bytes = fixture.sim.read_file(path).expect("a file of the fixture");
        bytes[512.min(bytes.len())..].iter().any(|byte| *byte != 0)
    };
    let all = fixture.files().into_iter().map(|(path, _)| path);
    let of_log = all.filter(|path| path.starts_with(format!("/db/{dir}")) && is_written(path));
    of_log.collect()
}

/// Whatever becomes of the header of a segment that was written to, or of its file: damage, which the opening leaves as it is, and
/// a repair that knows that something may be missing.
#[test]
fn a_used_segment_without_a_header_is_damage_and_stays() {
    for subject in [Subject::flex(), Subject::delsm(), Subject::flat(), Subject::kreon()] {
        let fixture = single(&subject);
        let segments = written_segments(&fixture);
        assert!(segments.len() >= 3, "{subject:?}: {segments:?}");
        for path in segments.iter().rev().take(2) {
            let len = fixture.sim.read_file(path).unwrap().len() as u64;
            let mut damages = vec![Damage::Missing(path.clone()), Damage::Length(path.clone(), 0)];
            damages.extend([0, 12, 20, 45, 58, 321].map(|at| Damage::Flip(path.clone(), at, 0)));
            for bytes in [512, 1024, len] {
                let zeros = vec![0; usize::try_from(bytes).unwrap()];
                damages.push(Damage::Write(path.clone(), 0, zeros, "zeros"));
            }
            for damage in damages {
                let answer =
                    inspect(&fixture, &damage).unwrap_or_else(|what| panic!("{subject:?}, {damage}: {what}"));
                assert!(answer.error, "{subject:?}, {damage}: {answer:?}");
                stays_and_is_repaired(&fixture, &damage);
            }
        }
    }
}

/// Opens the damaged database twice and writes where that can be done: the file stays, and a repair does not call whole what is not.
fn stays_and_is_repaired(fixture: &Fixture, damage: &Damage) {
    let world = World::of(&fixture.subject, fixture.sim.kill());
    damage.strike(&world.sim);
    let (path, _) = damage.place();
    let before = world.sim.read_file(path).ok();
    for _ in 0..2 {
        if let Ok(db) = world.open() {
            let _ = db
                .keyspace("other", fixture.subject.options_of(fixture.subject.other))
                .and_then(|other| other.insert("k", "v"));
            db.close().expect("an orderly end");
        }
        assert_eq!(world.sim.read_file(path).ok(), before, "{damage}");
    }
    judge(fixture, damage, Also::Nothing, Flaw::None)
        .unwrap_or_else(|what| panic!("{:?}, {damage}: {what}", fixture.subject));
}

/// What was made ready and never written to is nobody's loss.
#[test]
fn a_ready_segment_with_a_damaged_header_costs_nothing() {
    for subject in [Subject::flex(), Subject::flat()] {
        let fixture = single(&subject);
        let used = written_segments(&fixture);
        let ready = fixture.files().into_iter().map(|(path, _)| path).find(|path| {
            path.extension().is_some_and(|e| e == "seg")
                && path.parent() == used[0].parent()
                && !used.contains(path)
        });
        let ready = ready.expect("some are made ahead");
        for at in [0, 20, 321] {
            let answer = inspect(&fixture, &Damage::Flip(ready.clone(), at, 0)).unwrap();
            assert!(answer.exact, "{subject:?}, {at}: {answer:?}");
        }
    }
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
