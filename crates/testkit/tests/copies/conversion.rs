//! Bulk loads and conversions: between all pairs of engines, with writes in between, with threads,
//! and with damage.

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use sheaf::{BulkLoadOptions, ConversionPhase, Database, Error, Keyspace, KeyspaceOptions};
use sheaf_sim::FaultKind;
use sheaf_testkit::conversion::{ConversionCase, fixture_of, sorted_pairs};
use sheaf_testkit::crash::workload::{CONVERSION_ENGINES, parse_steps};
use sheaf_testkit::faults::{FaultCase as Failing, FaultReach, every_case};
use sheaf_testkit::fixture::{DiskKind, Fixture, TestSetting, TestSubject};
use sheaf_testkit::recording_disk::{DiskDefect, RecordingDisk};
use sheaf_testkit::totals::Budget;

const TINY: TestSetting = TestSetting::new(DiskKind::Simulated, true, true);

fn pairs_of_engines() -> impl Iterator<Item = (&'static str, &'static str)> {
    let all = || CONVERSION_ENGINES.into_iter().chain(["ledger"]);
    all().flat_map(move |from| all().map(move |to| (from, to))).filter(|(from, to)| from != to)
}

#[test]
fn every_engine_converts_to_every_other_during_writes() {
    for (number, (from, to)) in pairs_of_engines().enumerate() {
        for seed in 0..6 {
            ConversionCase { from, to, seed: seed * 1000 + number as u64, setting: TINY }.run();
        }
    }
}

#[test]
fn engines_convert_on_the_real_disk() {
    for (number, (from, to)) in pairs_of_engines().enumerate().step_by(5) {
        let setting = TestSetting::new(DiskKind::Real, number % 2 == 0, true);
        ConversionCase { from, to, seed: number as u64, setting }.run();
    }
}

/// Regressions: in a flush, a version that GC had moved into memory was taken for an older version
/// that a snapshot needed. The threads run cases in parallel, because garbage of other databases is
/// then collected at any time: once a segment left its slot between two lookups.
#[test]
fn snapshots_of_kreon_outlive_writes_and_the_conversion() {
    let play =
        || (0..60).for_each(|seed| ConversionCase { from: "kreon", to: "flat", seed, setting: TINY }.run());
    std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(play))));
}

/// Replays one case: `SHEAF_MOVING='FROM TO SEED_VAR'`.
#[test]
#[ignore = "replays SHEAF_MOVING"]
fn replay_a_conversion() {
    let line = std::env::var("SHEAF_MOVING").expect("SHEAF_MOVING holds the line");
    let words: Vec<&'static str> = line.leak().split(' ').collect();
    let seed = words[2].parse().expect("a number");
    ConversionCase { from: words[0], to: words[1], seed, setting: TINY }.run();
}

#[test]
fn a_load_refuses_existing_data_and_unsorted_keys() {
    for engine in CONVERSION_ENGINES {
        let fixture = fixture_of(engine);
        let db = fixture.open();
        let options = || BulkLoadOptions::default().engine(engine);
        let mut loader = db.bulk_load("a", options()).unwrap();
        loader.push("b", "1").unwrap();
        for key in ["b", "a"] {
            let error = loader.push(key, "2").unwrap_err();
            assert!(error.to_string().contains("pair 2"), "{error}");
        }
        assert!(matches!(loader.push(vec![b'c'; 70_000], "2"), Err(Error::TooLarge { object: "key", .. })));
        loader.push("c", "3").unwrap();
        assert!(db.open_keyspace("a").unwrap().is_none());
        // Another writer creates the keyspace first.
        let ks = fixture.keyspace(&db, "a");
        ks.insert("x", "y").unwrap();
        assert!(matches!(loader.finish(), Err(Error::InvalidArgument { argument: "keyspace", .. })));
        assert_eq!(ks.get("x").unwrap().as_deref(), Some(&b"y"[..]));
        assert!(matches!(
            db.bulk_load("a", options()),
            Err(Error::InvalidArgument { argument: "keyspace", .. })
        ));
        let other = BulkLoadOptions::default().engine(fixture.subject.other_engine);
        ks.clear().unwrap();
        assert!(matches!(db.bulk_load("a", other.clone()), Err(Error::EngineMismatch { .. })));
        ks.insert("x", "y").unwrap();
        let mut loader = db.bulk_load("a", other.replace(true)).unwrap();
        loader.push("k", "v").unwrap();
        assert_eq!(loader.finish().unwrap().pairs, 1);
        assert_eq!((ks.len().unwrap(), ks.engine()), (1, fixture.subject.other_engine), "the handle works");
        assert!(matches!(
            db.convert("nobody", engine, |_| ControlFlow::Continue(())),
            Err(Error::KeyspaceNotFound { .. })
        ));
        assert!(matches!(
            db.convert("a", "nothing", |_| ControlFlow::Continue(())),
            Err(Error::InvalidArgument { argument: "engine", .. })
        ));
    }
}

#[test]
fn a_finished_or_cancelled_load_leaves_no_extra_files() {
    for engine in CONVERSION_ENGINES {
        let fixture = fixture_of(engine);
        let mut db = fixture.open();
        let pairs = sorted_pairs(400);
        for life in 0..3 {
            let mut loader =
                db.bulk_load("a", BulkLoadOptions::default().engine(engine).replace(true)).unwrap();
            pairs.iter().for_each(|(key, value)| loader.push(key, value).unwrap());
            match life {
                0 => drop(loader),
                1 => {
                    fixture.kill();
                    drop(loader);
                }
                _ => drop(loader.finish().unwrap()),
            }
            if life > 0 {
                db = if life == 1 { fixture.kill_and_reopen(db) } else { fixture.reopen(db) };
            }
            for _ in 0..200 {
                fixture.advance(std::time::Duration::from_secs(1));
                db.pump().unwrap();
            }
            let own = fixture
                .read_tree()
                .keys()
                .filter(|path| path.parent().is_some_and(|dir| dir.ends_with("own")))
                .count();
            assert!(own <= usize::from(life == 2), "{engine}, life {life}: {own} directories");
            assert_eq!(db.keyspaces().len(), usize::from(life == 2), "{engine}");
        }
        let ks = db.open_keyspace("a").unwrap().unwrap();
        assert_eq!(ks.len().unwrap(), 400, "{engine}");
        assert!(pairs.iter().all(|(key, value)| ks.get(key).unwrap().as_deref() == Some(value)), "{engine}");
        let mut found = 0;
        db.verify(|error| panic!("{engine}: {error}")).unwrap();
        ks.iter().unwrap().for_each(|pair| found += usize::from(pair.is_ok()));
        assert_eq!(found, 400);
    }
}

/// Returns the number in the value of a counter.
fn number(value: &[u8]) -> u64 {
    u64::from_be_bytes(value.try_into().expect("eight bytes"))
}

/// Increments the counter `key`.
fn increment(ks: &Keyspace, key: &[u8]) {
    ks.update(key, |old| Some((old.map_or(0, number) + 1).to_be_bytes().to_vec())).expect("an update");
}

/// Writers increment counters while a thread loads other pairs: no increment is lost or doubled.
#[test]
fn concurrent_writes_survive_bulk_loads_that_keep_them() {
    for engine in ["flex", "flat", "kreon"] {
        let setting = TestSetting::new(DiskKind::Simulated, true, false);
        let fixture = Fixture::new(&TestSubject::by_name(engine).expect("an engine"), setting);
        let db = fixture.open();
        let ks = fixture.keyspace(&db, "a");
        (0..500u32).for_each(|n| ks.insert(n.to_be_bytes(), [7; 100]).unwrap());
        let (is_over, counted) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for step in 0u32.. {
                        if is_over.load(Ordering::Relaxed) {
                            break;
                        }
                        let name = [b"count", &(step % 64).to_be_bytes()[..]].concat();
                        increment(&ks, &name);
                        counted.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            for round in 0..6u64 {
                let mut loader = db.bulk_load("a", BulkLoadOptions::default().keep(true)).unwrap();
                // The counters are between the first and the last loaded key.
                let keys =
                    (0..200u32).map(|n| [if n < 100 { b"a" } else { b"x" }, &n.to_be_bytes()[..]].concat());
                keys.clone().for_each(|key| loader.push(key, round.to_be_bytes()).unwrap());
                loader.finish().unwrap();
                for key in keys {
                    assert_eq!(ks.get(key).unwrap().as_deref(), Some(&round.to_be_bytes()[..]), "{engine}");
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
        let counts = (0..64u32).filter_map(|n| ks.get([b"count", &n.to_be_bytes()[..]].concat()).unwrap());
        let sum: u64 = counts.map(|count| number(&count)).sum();
        assert_eq!(sum, counted.into_inner(), "{engine}");
        assert!(sum > 0, "{engine}: the threads wrote");
    }
}

/// Writers increment counters while a thread converts: no increment is lost or doubled.
#[test]
fn concurrent_writes_survive_a_conversion() {
    for setting in
        [TestSetting::new(DiskKind::Simulated, true, false), TestSetting::new(DiskKind::Real, false, false)]
    {
        let fixture = Fixture::new(&TestSubject::flex(), setting);
        let db = fixture.open();
        let ks = fixture.keyspace(&db, "a");
        let (is_over, counted) = (AtomicBool::new(false), AtomicU64::new(0));
        for n in 0..2_000u32 {
            ks.insert(n.to_be_bytes(), [7; 100]).unwrap();
        }
        std::thread::scope(|scope| {
            for thread in 0..3u32 {
                let (ks, counted, is_over, db) = (ks.clone(), &counted, &is_over, db.clone());
                scope.spawn(move || {
                    let mut key = thread;
                    while !is_over.load(Ordering::Relaxed) {
                        key = (key * 5 + 3) % 64;
                        let name = [b"count", &key.to_be_bytes()[..]].concat();
                        increment(&ks, &name);
                        counted.fetch_add(1, Ordering::Relaxed);
                        let mine = [b"mine", &thread.to_be_bytes()[..]].concat();
                        let mut batch = db.batch();
                        batch.insert(&ks, &mine, key.to_be_bytes()).remove(&ks, [b"no", &mine[..]].concat());
                        batch.commit().unwrap();
                        assert_eq!(
                            ks.get(&mine).unwrap().as_deref(),
                            Some(&key.to_be_bytes()[..]),
                            "what was written"
                        );
                    }
                });
            }
            for to in ["flat", "kreon", "delsm", "cedrus", "flex", "flat-ordered", "flex"] {
                let mut last = ConversionPhase::Copying;
                let done = db.convert("a", to, |progress| {
                    last = progress.phase;
                    ControlFlow::Continue(())
                });
                assert!(done.unwrap().unwrap().copied_pairs >= 2_000);
                assert_eq!((ks.engine(), last), (to, ConversionPhase::CatchingUp));
            }
            is_over.store(true, Ordering::Relaxed);
        });
        let total = || -> u64 {
            let counts = ks.prefix("count").unwrap().map(|pair| pair.unwrap().1);
            counts.map(|count| number(&count)).sum()
        };
        assert_eq!(total(), counted.load(Ordering::Relaxed));
        assert_eq!(ks.len().unwrap(), 2_000 + 64 + 3);
    }
}

/// A kill at any time leaves the old engine or the new one, with all acknowledged writes.
#[test]
fn a_kill_leaves_the_old_keyspace_or_the_new_one() {
    let fixture = Fixture::new(&TestSubject::flat(), TestSetting::new(DiskKind::Real, true, false));
    let mut db = fixture.open();
    let mut map: BTreeMap<Vec<u8>, Vec<u8>> = sorted_pairs(300).into_iter().collect();
    let ks = fixture.keyspace(&db, "a");
    map.iter().for_each(|(key, value)| ks.insert(key, value).unwrap());
    drop(ks);
    let mut engines = CONVERSION_ENGINES.into_iter().cycle();
    for round in 0..36u64 {
        let ks = db.open_keyspace("a").unwrap().unwrap();
        let before = ks.engine();
        let to = engines.find(|to| *to != before).unwrap();
        let acknowledged = std::thread::scope(|scope| {
            let converter = scope.spawn(|| db.convert("a", to, |_| ControlFlow::Continue(())));
            let mut acknowledged = Vec::new();
            for n in 0..=round * 4 {
                let (key, value) = (format!("key{:06}", n * 7 % 400), format!("{round}.{n}"));
                ks.insert(&key, &value).unwrap();
                acknowledged.push((key.into_bytes(), value.into_bytes()));
            }
            fixture.kill();
            drop(converter.join().unwrap());
            acknowledged
        });
        map.extend(acknowledged);
        drop(ks);
        db = fixture.kill_and_reopen(db);
        let ks = db.open_keyspace("a").unwrap().unwrap();
        assert!([before, to].contains(&ks.engine()));
        let found: BTreeMap<_, _> =
            ks.iter().unwrap().map(|pair| pair.unwrap()).map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
        assert_eq!(found.len(), map.len(), "round {round}: {before} to {to}");
        assert_eq!(found, map);
    }
}

/// An unreadable source stays unchanged, and the error names the damaged place.
#[test]
fn a_damaged_source_is_reported_and_kept() {
    for from in CONVERSION_ENGINES {
        let to = if from == "flex" { "flat" } else { "flex" };
        let fixture = fixture_of(from);
        let db = fixture.open();
        let ks = fixture.keyspace(&db, "a");
        sorted_pairs(600).iter().for_each(|(key, value)| ks.insert(key, value).unwrap());
        drop(ks);
        db.close().unwrap();
        let mut refused = 0;
        let files: Vec<_> =
            fixture.read_tree().into_iter().filter_map(|(path, bytes)| Some((path, bytes?))).collect();
        for (path, bytes) in files.iter().filter(|(_, bytes)| bytes.len() > 2_000) {
            let at = bytes.len() / 2;
            fixture.write_file(path, at as u64, &[!bytes[at]]);
            if let Ok(db) = fixture.try_open() {
                match db.convert("a", to, |_| ControlFlow::Continue(())) {
                    Err(Error::Corrupt { path: named, .. }) => {
                        refused += 1;
                        assert!(named.starts_with(fixture.path()), "{from}: {named:?}");
                        assert_eq!(db.open_keyspace("a").unwrap().unwrap().engine(), from);
                    }
                    Err(error) => panic!("{from}: {error}"),
                    Ok(_) => {}
                }
                fixture.kill();
            }
            for (path, bytes) in &files {
                fixture.write_file(path, 0, bytes);
            }
            if refused > 0 {
                break; // the open database has created files that do not belong to these
            }
        }
        assert!(refused > 0, "{from}");
    }
}

#[test]
fn a_full_disk_refuses_before_anything_is_written() {
    let fixture = fixture_of("flat");
    let db: Database = fixture.open();
    let ks = db.keyspace("a", KeyspaceOptions::default().engine("flat")).unwrap();
    sorted_pairs(600).iter().for_each(|(key, value)| ks.insert(key, value).unwrap());
    let estimate = db.estimate_conversion("a").unwrap();
    assert_eq!(estimate.pairs, 600);
    let data: u64 = sorted_pairs(600).iter().map(|(key, value)| (key.len() + value.len()) as u64).sum();
    assert!(estimate.data_bytes.abs_diff(data) < data / 4, "{estimate:?}, there are {data}");
    assert!(estimate.required_bytes > data && estimate.free_bytes > estimate.required_bytes);
    let disk = fixture.sim_disk().unwrap();
    disk.set_capacity(1); // less than is used
    let before = fixture.bytes_on_disk();
    for to in ["flex", "kreon", "delsm"] {
        assert!(
            matches!(db.convert("a", to, |_| ControlFlow::Continue(())), Err(Error::NoSpace { .. })),
            "{to}"
        );
    }
    assert_eq!(fixture.bytes_on_disk(), before);
    assert_eq!(ks.len().unwrap(), 600);
}

/// Every fourth call of a load and of conversions in both directions fails.
#[test]
fn a_failed_load_or_conversion_leaves_the_old_data() {
    for (number, subject) in
        [TestSubject::flex(), TestSubject::delsm(), TestSubject::cedrus()].into_iter().enumerate()
    {
        let to = CONVERSION_ENGINES[(number + 3) % CONVERSION_ENGINES.len()];
        let steps = format!(
            "0.2=90 0.3=1500 0.4=20 2.2=9 load0:30 0.3=700 convert0:{to} 0.5=40 work convert0:{} convert2:flex persist",
            subject.engine
        );
        let steps = parse_steps(&steps).expect("written by hand");
        let chosen = |case: &Failing| {
            case.reach == FaultReach::Once
                && case.failure == FaultKind::Io
                && case.nth % 4 == number as u64 % 4
        };
        let budget = Budget::seconds(60.0);
        let report = every_case(&subject, &steps, chosen, DiskDefect::None, ToString::to_string, budget);
        let failures = report.failures.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert!(failures.is_empty() && report.runs > 20, "{subject:?}: {report}\n{}", failures.join("\n"));
    }
}

/// A value fits the log of one engine and not that of the next, so the commit writes it as a blob.
/// Then the keyspace is cleared, and the commit detects that and starts again. The blob of the
/// first attempt must be removed at once, not at the next opening.
#[test]
fn a_stream_over_a_conversion_and_a_clearing_leaves_one_value() {
    let fixture = Fixture::new(&TestSubject::flat(), TINY);
    let recording_disk = RecordingDisk::new(Arc::clone(fixture.disk()));
    let db = fixture.builder_on(Arc::new(recording_disk.clone())).open(fixture.path()).unwrap();
    let keyspace = db.keyspace("k", KeyspaceOptions::default().engine("flat")).unwrap();
    let mut writer = keyspace.writer("key").unwrap();
    writer.write_all(&[7; 700]).unwrap();
    db.convert("k", "delsm", |_| ControlFlow::Continue(())).unwrap();
    let is_value = |path: &Path| path.extension().is_some_and(|extension| extension == "blob");
    let to_clear = Mutex::new(Some(keyspace.clone()));
    recording_disk.on_create(move |path| {
        let keyspace = to_clear.lock().unwrap().take_if(|_| is_value(path));
        keyspace.into_iter().for_each(|keyspace| keyspace.clear().unwrap());
    });
    writer.commit().unwrap();
    assert_eq!(&*keyspace.get("key").unwrap().unwrap(), [7; 700]);
    let values = || fixture.read_tree().keys().filter(|path| is_value(path)).count();
    assert_eq!(values(), 1, "{:?}", fixture.read_tree().keys());
    keyspace.remove("key").unwrap();
    db.persist().unwrap();
    while db.pump().unwrap() {}
    assert_eq!(values(), 0, "{:?}", fixture.read_tree().keys());
}
