//! Backups in the midst of everything, restored, are the database of their moment; half a backup is none.

#![expect(clippy::unwrap_used, reason = "a test's own steps work")]

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use sheaf::{BackupOptions, BackupPace, BackupProgress, Database, Error, KeyspaceOptions, RepairOptions};
use sheaf_base::clock::{Clock, SystemClock};
use sheaf_base::disk::sim::{Keep, SimDisk};
use sheaf_base::disk::{Disk, How, remove_tree};
use sheaf_testkit::backups::{self, all_engines, bytes_in, compare, is_flaw_seen, restore};
use sheaf_testkit::stage::{Place, Setting, Stage, Subject, others_have_let_go};
use sheaf_testkit::tap::{Lie, Tap};

sheaf_testkit::every_engine!(backup_suite);

const TINY: Setting = Setting::new(Place::Simulated, true, true);

#[test]
fn a_backup_is_one_moment_of_all_engines_together() {
    let (subject, engines) = all_engines();
    for seed in 0..4 {
        backups::chain(&subject, &engines, seed).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
}

/// A store that lets go what a backup holds is noticed.
#[test]
fn a_state_that_does_not_stay_is_found() {
    for subject in [Subject::flat(), Subject::cedrus(), Subject::kreon()] {
        assert!((0..10).any(|seed| is_flaw_seen(&subject, seed)), "{subject:?}: not found");
    }
}

/// A database of some pairs on a simulated disk, and its directory.
fn small(stage: &Stage) -> Database {
    let db = stage.open();
    let keyspace = stage.keyspace(&db, "k");
    (0..200u32).for_each(|n| keyspace.insert(n.to_be_bytes(), [7; 100]).unwrap());
    db
}

/// From now on the disk has room for so many bytes more.
fn leave_room(stage: &Stage, bytes: u64) {
    let sim = stage.simulated().unwrap();
    let used: u64 = sim.files().iter().map(|(_, len)| len.next_multiple_of(4096)).sum();
    sim.set_capacity(used + bytes);
}

fn beside(stage: &Stage, name: &str) -> PathBuf {
    stage.path().with_file_name(name)
}

/// A backup that was not synced before it was finished is noticed.
#[test]
fn a_backup_that_is_finished_before_it_is_durable_is_found() {
    let stage = Stage::new(&Subject::flat(), TINY);
    drop(small(&stage));
    let fork: Arc<SimDisk> = Arc::new(stage.simulated().unwrap().fork());
    let tap = Tap::new(Arc::clone(&fork) as Arc<dyn Disk>);
    tap.set_lie(Lie::Sync);
    let db = stage.builder_on(Arc::new(tap)).open(stage.path()).unwrap();
    let dir = beside(&stage, "backup");
    db.backup(&dir, BackupOptions::default()).unwrap();
    let cut: Arc<dyn Disk> = Arc::new(fork.power_cut(&Keep::None));
    assert!(stage.builder_on(cut).restore(&dir, beside(&stage, "to"), None).is_err());
}

#[test]
fn a_backup_is_no_database_and_says_what_to_do() {
    for subject in [Subject::flat(), Subject::flex()] {
        let stage = Stage::new(&subject, TINY);
        let db = small(&stage);
        let dir = beside(&stage, "backup");
        db.backup(&dir, BackupOptions::default()).unwrap();
        for read_only in [false, true] {
            let opened = stage.builder_on(Arc::clone(stage.disk())).read_only(read_only).open(&dir);
            let said = opened.map(drop).unwrap_err().to_string();
            assert!(said.contains("sheaf restore"), "{said}");
        }
        // It can be restored as often as one likes, beside the open original.
        for name in ["one", "two"] {
            let to = beside(&stage, name);
            stage.builder_on(Arc::clone(stage.disk())).restore(&dir, &to, None).unwrap();
            let again = stage.builder_on(Arc::clone(stage.disk())).open(&to).unwrap();
            assert_eq!(stage.keyspace(&again, "k").len().unwrap(), 200);
            stage.keyspace(&again, "k").insert("more", name).unwrap();
            // Both go on with the same numbers: neither's backups are a base for the other.
            let crossed = again.backup(beside(&stage, "crossed"), BackupOptions::default().base(&dir));
            assert!(matches!(crossed, Err(Error::Invalid { .. })), "{crossed:?}");
        }
        assert_eq!(stage.keyspace(&db, "k").len().unwrap(), 200);
    }
}

#[test]
fn what_cannot_be_is_refused_and_leaves_nothing() {
    let stage = Stage::new(&Subject::flat(), TINY);
    let db = small(&stage);
    let dir = beside(&stage, "backup");
    let invalid = |dir: &PathBuf, options: BackupOptions<'_>, part: &str| match db.backup(dir, options) {
        Err(Error::Invalid { why, .. }) => assert!(why.contains(part), "{why}"),
        other => panic!("{other:?}"),
    };
    invalid(&db.path().join("inside"), BackupOptions::default(), "inside the database");
    invalid(&db.path(), BackupOptions::default(), "inside the database");
    db.backup(&dir, BackupOptions::default().verify(false)).unwrap();
    invalid(&dir, BackupOptions::default(), "not empty");
    let other = Stage::new(&Subject::flat(), TINY);
    let foreign = stage.builder_on(Arc::clone(other.disk())).open("/stage/foreign").unwrap();
    foreign.backup("/stage/theirs", BackupOptions::default()).unwrap();
    let copy = sheaf_copy(other.disk(), stage.disk(), "/stage/theirs");
    invalid(&beside(&stage, "next"), BackupOptions::default().base(copy), "another database");
    assert!(stage.disk().list(&beside(&stage, "next")).is_err(), "nothing is left");
    let missing = db.backup(beside(&stage, "next"), BackupOptions::default().base("/stage/nowhere"));
    assert!(matches!(missing, Err(Error::NotABackup { .. })), "{missing:?}");
    let restored = stage.builder_on(Arc::clone(stage.disk())).restore(&dir, db.path(), None);
    assert!(matches!(restored, Err(Error::Invalid { .. })), "{restored:?}");
    let reader = stage.builder_on(Arc::clone(stage.disk()));
    db.close().unwrap();
    let reader = reader.read_only(true).open(stage.path()).unwrap();
    assert!(matches!(reader.backup("/stage/ro", BackupOptions::default()), Err(Error::ReadOnly)));
    assert!(stage.disk().list(&beside(&stage, "ro")).is_err(), "nothing is left");
}

/// The file BACKUP of another disk's backup.
fn sheaf_copy(from: &Arc<dyn Disk>, to: &Arc<dyn Disk>, dir: &str) -> PathBuf {
    let dir = PathBuf::from(dir);
    let file = from.open(&dir.join("BACKUP"), How::Read).unwrap();
    let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
    file.read_at(0, &mut bytes).unwrap();
    to.create_dir(&dir).unwrap();
    to.open(&dir.join("BACKUP"), How::Create).unwrap().write_at(0, &bytes).unwrap();
    dir
}

#[test]
fn a_backup_that_is_given_up_leaves_nothing() {
    let stage = Stage::new(&Subject::flex(), TINY);
    let db = small(&stage);
    let dir = beside(&stage, "backup");
    for stop in 1..6 {
        let mut ticks = 0;
        let mut watcher = |_| {
            ticks += 1;
            if ticks == stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let done = db.backup(&dir, BackupOptions::default().watched(&mut watcher));
        assert!(matches!(done, Err(Error::Cancelled)), "{done:?}");
        assert!(stage.disk().list(&dir).is_err());
        assert_eq!(db.stats().stills, 0);
    }
    // One that was there, empty, stays.
    stage.disk().create_dir(&dir).unwrap();
    let mut watcher = |_| ControlFlow::Break(());
    assert!(db.backup(&dir, BackupOptions::default().watched(&mut watcher)).is_err());
    assert!(stage.disk().list(&dir).unwrap().is_empty());
    db.backup(&dir, BackupOptions::default()).unwrap();
}

/// What fails takes back what it made. What somebody else put into the directory meanwhile is not among that, and neither is a directory of
/// theirs that has a name which would have been needed.
#[test]
fn what_others_put_into_a_target_stays() {
    let stage = Stage::new(&Subject::flex(), TINY);
    let db = small(&stage);
    let (disk, from, dir) = (stage.disk(), beside(&stage, "backup"), beside(&stage, "target"));
    db.backup(&from, BackupOptions::default()).unwrap();
    let theirs = |name: &str| {
        disk.create_dir(&dir.join(name)).and_then(|()| disk.open(&dir.join(name).join("theirs"), How::Create))
    };
    let left = || {
        let mut names: Vec<String> = disk.list(&dir).unwrap().into_iter().map(|entry| entry.name).collect();
        names.sort();
        for name in &names {
            assert_eq!(disk.list(&dir.join(name)).unwrap().len(), 1, "{name}");
        }
        names
    };
    let clear = || remove_tree(&**disk, &dir).unwrap();
    let leave_it = |_: BackupProgress| {
        theirs("photographs").unwrap();
        ControlFlow::Break(())
    };
    let bump_into = |_: BackupProgress| {
        drop(theirs("journal"));
        ControlFlow::Continue(())
    };
    let builder = || stage.builder_on(Arc::clone(disk));

    let mut watcher = leave_it;
    db.backup(&dir, BackupOptions::default().watched(&mut watcher)).unwrap_err();
    assert_eq!(left(), ["photographs"], "of a backup");
    clear();
    builder().restore(&from, &dir, Some(&mut watcher)).unwrap_err();
    assert_eq!(left(), ["photographs"], "of a restoration");
    clear();
    let mut watcher = bump_into;
    db.backup(&dir, BackupOptions::default().watched(&mut watcher)).unwrap_err();
    assert_eq!(left(), ["journal"], "of a backup");
    clear();
    let keyspace = stage.keyspace(&db, "k"); // a repair tells of so many pairs
    (0..5000u32).for_each(|n| keyspace.insert(n.to_be_bytes(), [7; 10]).unwrap());
    drop((keyspace, db));
    let mut watcher = |_| {
        theirs("photographs").unwrap();
        ControlFlow::Break(())
    };
    builder().repair(stage.path(), &dir, RepairOptions::default().watched(&mut watcher)).unwrap_err();
    assert_eq!(left(), ["photographs"], "of a repair");
}

#[test]
fn the_end_of_the_database_ends_its_backups() {
    let stage = Stage::new(&Subject::flat(), TINY);
    let db = small(&stage);
    let dir = beside(&stage, "backup");
    let handle = db.clone();
    let mut first = Some(db);
    let mut watcher = |_| {
        first.take().map(Database::close).transpose().unwrap();
        ControlFlow::Continue(())
    };
    let done = handle.backup(&dir, BackupOptions::default().watched(&mut watcher));
    assert!(matches!(done, Err(Error::Closed)), "{done:?}");
    assert!(stage.disk().list(&dir).is_err());
    drop(handle);
    assert_eq!(stage.keyspace(&stage.open(), "k").len().unwrap(), 200);
}

/// What a backup holds fills the disk: writes are refused, and go on by themselves when it is done.
#[test]
fn a_disk_that_fills_up_beside_a_backup_refuses_writes_until_it_is_done() {
    for subject in [Subject::flat(), Subject::flex(), Subject::kreon()] {
        let stage = Stage::new(&subject, TINY);
        let db = small(&stage);
        let keyspace = stage.keyspace(&db, "k");
        leave_room(&stage, 64 << 10);
        let mut refused = false;
        let mut watcher = |_| {
            for n in 0..20_000u32 {
                match keyspace.insert((n % 200).to_be_bytes(), [n.to_be_bytes()[3]; 100]) {
                    Ok(()) => {}
                    Err(Error::NoSpace { .. }) => {
                        refused = true;
                        break;
                    }
                    Err(error) => panic!("{error}"),
                }
                if n % 64 == 0 {
                    let _ = db.pump(); // there may be no room for what it wants
                }
            }
            ControlFlow::Continue(())
        };
        let dir = beside(&stage, "backup");
        let done = db.backup(&dir, BackupOptions::default().watched(&mut watcher));
        assert!(refused, "{subject:?}: it never fills up: {done:?}");
        assert!(done.is_ok() || matches!(done, Err(Error::NoSpace { .. })), "{done:?}");
        assert_eq!((db.stats().stills, db.stats().held_bytes), (0, 0));
        for round in 0..100 {
            if round % 20 == 0 {
                others_have_let_go(); // readers of other tests keep freed files, too
            }
            let _ = db.pump();
        }
        keyspace.insert("after", "all").unwrap_or_else(|error| panic!("{subject:?}: {error}"));
        assert_eq!(keyspace.len().unwrap(), 201);
    }
}

/// What it says. Where there was no room it is asked again, as the readers of other tests let go of freed files, too.
fn with_room<T>(mut attempt: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    for _ in 0..20 {
        match attempt() {
            Err(Error::NoSpace { .. }) => others_have_let_go(),
            done => return done,
        }
    }
    attempt()
}

/// Pairs that are written again and again beside a backup take the room that they take without one, and once more what there was.
#[test]
fn what_comes_and_goes_beside_a_backup_takes_no_room() {
    for subject in [Subject::flat(), Subject::flat_ordered(), Subject::flex()] {
        let stage = Stage::new(&subject, TINY);
        let db = small(&stage);
        let keyspace = stage.keyspace(&db, "k");
        leave_room(&stage, 1 << 20);
        let mut watcher = |_| {
            for n in 0..20_000u32 {
                let done = with_room(|| {
                    let done = keyspace.insert((n % 200).to_be_bytes(), [n.to_be_bytes()[3]; 100]);
                    if matches!(done, Err(Error::NoSpace { .. })) {
                        let _ = db.pump(); // as the background would: what is freed late is cleaned late
                    }
                    done
                });
                done.unwrap_or_else(|error| panic!("{subject:?}: update {n}: {error}"));
                if n % 64 == 0 {
                    with_room(|| db.pump()).unwrap();
                }
            }
            ControlFlow::Continue(())
        };
        db.backup(beside(&stage, "backup"), BackupOptions::default().watched(&mut watcher)).unwrap();
    }
}

/// So many bytes a second, not read back.
fn rate<'a>(bytes: u64) -> BackupOptions<'a> {
    BackupOptions::default().verify(false).pace(BackupPace::AtMost(bytes.try_into().unwrap()))
}

/// At a rate it takes its time, and ends at once where it is given up, or with the database.
#[test]
fn a_backup_at_a_rate_takes_its_time_and_no_longer() {
    let stage = Stage::new(&Subject::flat(), Setting::new(Place::Real, true, false));
    let db = small(&stage);
    let began = SystemClock.now();
    let done = db.backup(beside(&stage, "slow"), rate(200_000)).unwrap();
    let least = Duration::from_secs_f64(done.copied as f64 / 200_000.0);
    let took = SystemClock.now().saturating_sub(began);
    assert!(took >= least && !least.is_zero(), "{done:?} in {took:?}");
    // A byte a second: hours.
    let began = SystemClock.now();
    let mut looks = 0;
    let mut watcher = |progress: BackupProgress| {
        looks += u32::from(progress.done > 0);
        if looks == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let given_up = db.backup(beside(&stage, "given-up"), rate(1).watched(&mut watcher));
    assert!(matches!(given_up, Err(Error::Cancelled)), "{given_up:?}");
    let handle = db.clone();
    let mut watched = Some(db);
    let closing = std::thread::scope(|scope| {
        let mut watcher = |progress: BackupProgress| {
            if progress.done > 0
                && let Some(db) = watched.take()
            {
                scope.spawn(move || db.close().unwrap());
            }
            ControlFlow::Continue(())
        };
        handle.backup(beside(&stage, "cut-short"), rate(1).watched(&mut watcher))
    });
    assert!(matches!(closing, Err(Error::Closed)), "{closing:?}");
    let took = SystemClock.now().saturating_sub(began);
    assert!(took < Duration::from_secs(20), "{took:?}");
}

/// What does not change is not copied again.
#[test]
fn an_incremental_backup_copies_what_is_new() {
    for subject in [Subject::flat(), Subject::flex(), Subject::kreon(), Subject::delsm()] {
        let stage = Stage::new(&subject, TINY);
        let db = stage.open();
        let keyspace = stage.keyspace(&db, "k");
        for n in 0..4000u32 {
            keyspace.insert(n.to_be_bytes(), sheaf_testkit::conformance::bytes(300, u64::from(n))).unwrap();
            if n % 16 == 0 {
                db.pump().unwrap();
            }
        }
        let [first, second] = ["first", "second"].map(|name| beside(&stage, name));
        let full = db.backup(&first, BackupOptions::default()).unwrap();
        assert_eq!(full.linked, 0);
        keyspace.insert("new", [1; 300]).unwrap();
        let next = db.backup(&second, BackupOptions::default().base(&first)).unwrap();
        assert!(next.linked > next.copied, "{subject:?}: {next:?} after {full:?}");
        assert!(bytes_in(&**stage.disk(), &second) >= next.linked + next.copied);
        let mut maps = backups::Maps::new();
        let pairs = keyspace.iter().unwrap().map(|pair| pair.unwrap()).map(|(k, v)| (k.to_vec(), v.to_vec()));
        maps.insert("k".to_owned(), pairs.collect());
        drop(restore(&stage, stage.disk(), &second, &maps).unwrap());
        compare(&db, &maps).unwrap();
    }
}

/// Real threads on the real disk: pairs of two keyspaces that are always written together are together in each backup, which has
/// all that was acknowledged before it began.
#[test]
fn backups_beside_real_writers_are_of_one_moment() {
    const ROUNDS: usize = 3;
    for engine in ["flat", "flex", "cedrus", "kreon", "delsm"] {
        let stage = Stage::new(&Subject::named(engine).unwrap(), Setting::new(Place::Real, true, false));
        let db = stage.open();
        let spaces = [engine, if engine == "flex" { "flat" } else { "flex" }].map(|engine| {
            db.keyspace(&format!("in-{engine}"), KeyspaceOptions::default().engine(engine)).unwrap()
        });
        let (acked, ends) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 1u64.. {
                    let mut batch = db.batch();
                    let value = [&n.to_be_bytes()[..], &[7; 200]].concat();
                    for space in &spaces {
                        batch.insert(space, (n % 500).to_be_bytes(), &value).insert(
                            space,
                            "last",
                            n.to_be_bytes(),
                        );
                    }
                    batch.commit().unwrap();
                    acked.store(n, Ordering::Release);
                    if ends.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            let mut base: Option<PathBuf> = None;
            for round in 0..ROUNDS {
                while acked.load(Ordering::Acquire) < 2000 * (round as u64 + 1) {
                    std::thread::yield_now();
                }
                let (dir, to) = (beside(&stage, &format!("b{round}")), beside(&stage, &format!("r{round}")));
                let before = acked.load(Ordering::Acquire);
                let options = BackupOptions::default();
                let options = base.iter().fold(options, |options, base| options.base(base));
                db.backup(&dir, options).unwrap();
                let after = acked.load(Ordering::Acquire) + 1;
                Database::restore(&dir, &to).unwrap();
                let again = stage.builder_on(Arc::clone(stage.disk())).open(&to).unwrap();
                let all = spaces.each_ref().map(|space| {
                    let space = again.existing_keyspace(&space.name()).unwrap().unwrap();
                    let mut pairs: Vec<_> = space.iter().unwrap().map(|p| p.unwrap()).collect();
                    pairs.sort();
                    pairs.into_iter().map(|(k, v)| (k.to_vec(), v.to_vec())).collect::<Vec<_>>()
                });
                assert_eq!(all[0], all[1], "{engine}: the same moment of both");
                let last = all[0].iter().find(|(key, _)| key == b"last").unwrap();
                let last = u64::from_be_bytes(last.1[..].try_into().unwrap());
                assert!((before..=after).contains(&last), "{engine}: {last} of {before} to {after}");
                base = Some(dir);
            }
            ends.store(true, Ordering::Relaxed);
        });
    }
}
