//! Restored backups have the state at the start of the backup; a partial backup is refused.

#![expect(clippy::unwrap_used, reason = "a test's own steps work")]

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use sheaf::{BackupOptions, BackupProgress, BackupRate, Database, Error, KeyspaceOptions, RepairOptions};
use sheaf_platform::clock::{Clock, SystemClock};
use sheaf_platform::disk::{Disk, OpenMode, remove_tree};
use sheaf_sim::{KeepChoice, SimDisk};
use sheaf_testkit::backups::{self, all_engines, compare, dir_bytes, is_flaw_found, restore_and_compare};
use sheaf_testkit::fixture::{DiskKind, Fixture, TestSetting, TestSubject, wait_epoch_garbage_freed};
use sheaf_testkit::recording_disk::{DiskDefect, RecordingDisk};

sheaf_testkit::every_engine!(backup_suite);

const TINY: TestSetting = TestSetting::new(DiskKind::Simulated, true, true);

#[test]
fn a_backup_of_all_engines_is_a_consistent_snapshot() {
    let (subject, engines) = all_engines();
    for seed in 0..4 {
        backups::backup_chain(&subject, &engines, seed).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
}

/// The harness detects a store that frees files of a backup.
#[test]
fn a_backup_of_unpinned_files_is_detected() {
    for subject in [TestSubject::flat(), TestSubject::cedrus(), TestSubject::kreon()] {
        assert!((0..10).any(|seed| is_flaw_found(&subject, seed)), "{subject:?}: not found");
    }
}

/// Returns a database with some pairs on a simulated disk.
fn small(fixture: &Fixture) -> Database {
    let db = fixture.open();
    let keyspace = fixture.keyspace(&db, "k");
    (0..200u32).for_each(|n| keyspace.insert(n.to_be_bytes(), [7; 100]).unwrap());
    db
}

/// Limits the free space of the disk to `bytes`.
fn leave_room(fixture: &Fixture, bytes: u64) {
    let sim = fixture.sim_disk().unwrap();
    let used: u64 = sim.files().iter().map(|(_, len)| len.next_multiple_of(4096)).sum();
    sim.set_capacity(used + bytes);
}

fn sibling_dir(fixture: &Fixture, name: &str) -> PathBuf {
    fixture.path().with_file_name(name)
}

/// The harness detects a backup that is finished before it was synced.
#[test]
fn a_backup_finished_before_its_sync_is_detected() {
    let fixture = Fixture::new(&TestSubject::flat(), TINY);
    drop(small(&fixture));
    let fork: Arc<SimDisk> = Arc::new(fixture.sim_disk().unwrap().fork());
    let recording_disk = RecordingDisk::new(Arc::clone(&fork) as Arc<dyn Disk>);
    recording_disk.set_defect(DiskDefect::IgnoredSync);
    let db = fixture.builder_on(Arc::new(recording_disk)).open(fixture.path()).unwrap();
    let dir = sibling_dir(&fixture, "backup");
    db.backup(&dir, BackupOptions::default()).unwrap();
    let cut: Arc<dyn Disk> = Arc::new(fork.power_cut(&KeepChoice::None));
    assert!(fixture.builder_on(cut).restore(&dir, sibling_dir(&fixture, "to"), None).is_err());
}

#[test]
fn opening_a_backup_is_refused_with_a_hint() {
    for subject in [TestSubject::flat(), TestSubject::flex()] {
        let fixture = Fixture::new(&subject, TINY);
        let db = small(&fixture);
        let dir = sibling_dir(&fixture, "backup");
        db.backup(&dir, BackupOptions::default()).unwrap();
        for read_only in [false, true] {
            let opened = fixture.builder_on(Arc::clone(fixture.disk())).read_only(read_only).open(&dir);
            let said = opened.map(drop).unwrap_err().to_string();
            assert!(said.contains("sheaf restore"), "{said}");
        }
        // A backup can be restored several times, also while the original is open.
        for name in ["one", "two"] {
            let to = sibling_dir(&fixture, name);
            fixture.builder_on(Arc::clone(fixture.disk())).restore(&dir, &to, None).unwrap();
            let again = fixture.builder_on(Arc::clone(fixture.disk())).open(&to).unwrap();
            assert_eq!(fixture.keyspace(&again, "k").len().unwrap(), 200);
            fixture.keyspace(&again, "k").insert("more", name).unwrap();
            // Both databases continue with the same numbers, so neither may use the other's backup
            // as a base.
            let crossed = again.backup(sibling_dir(&fixture, "crossed"), BackupOptions::default().base(&dir));
            assert!(matches!(crossed, Err(Error::InvalidArgument { .. })), "{crossed:?}");
        }
        assert_eq!(fixture.keyspace(&db, "k").len().unwrap(), 200);
    }
}

#[test]
fn invalid_targets_are_refused_and_leave_no_files() {
    let fixture = Fixture::new(&TestSubject::flat(), TINY);
    let db = small(&fixture);
    let dir = sibling_dir(&fixture, "backup");
    let invalid = |dir: &PathBuf, options: BackupOptions<'_>, part: &str| match db.backup(dir, options) {
        Err(Error::InvalidArgument { reason: why, .. }) => assert!(why.contains(part), "{why}"),
        other => panic!("{other:?}"),
    };
    invalid(&db.path().join("inside"), BackupOptions::default(), "inside the database");
    invalid(&db.path(), BackupOptions::default(), "inside the database");
    db.backup(&dir, BackupOptions::default().verify(false)).unwrap();
    invalid(&dir, BackupOptions::default(), "not empty");
    let other = Fixture::new(&TestSubject::flat(), TINY);
    let foreign = fixture.builder_on(Arc::clone(other.disk())).open("/stage/foreign").unwrap();
    foreign.backup("/stage/theirs", BackupOptions::default()).unwrap();
    let copy = copy_manifest(other.disk(), fixture.disk(), "/stage/theirs");
    invalid(&sibling_dir(&fixture, "next"), BackupOptions::default().base(copy), "another database");
    assert!(fixture.disk().list(&sibling_dir(&fixture, "next")).is_err(), "nothing is left");
    let missing = db.backup(sibling_dir(&fixture, "next"), BackupOptions::default().base("/stage/nowhere"));
    assert!(matches!(missing, Err(Error::NotABackup { .. })), "{missing:?}");
    let restored = fixture.builder_on(Arc::clone(fixture.disk())).restore(&dir, db.path(), None);
    assert!(matches!(restored, Err(Error::InvalidArgument { .. })), "{restored:?}");
    let reader = fixture.builder_on(Arc::clone(fixture.disk()));
    db.close().unwrap();
    let reader = reader.read_only(true).open(fixture.path()).unwrap();
    assert!(matches!(reader.backup("/stage/ro", BackupOptions::default()), Err(Error::ReadOnly)));
    assert!(fixture.disk().list(&sibling_dir(&fixture, "ro")).is_err(), "nothing is left");
}

/// Copies the file BACKUP of a backup to another disk.
fn copy_manifest(from: &Arc<dyn Disk>, to: &Arc<dyn Disk>, dir: &str) -> PathBuf {
    let dir = PathBuf::from(dir);
    let file = from.open(&dir.join("BACKUP"), OpenMode::Read).unwrap();
    let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
    file.read_at(0, &mut bytes).unwrap();
    to.create_dir(&dir).unwrap();
    to.open(&dir.join("BACKUP"), OpenMode::Create).unwrap().write_at(0, &bytes).unwrap();
    dir
}

#[test]
fn a_cancelled_backup_leaves_no_files() {
    let fixture = Fixture::new(&TestSubject::flex(), TINY);
    let db = small(&fixture);
    let dir = sibling_dir(&fixture, "backup");
    for stop in 1..6 {
        let mut ticks = 0;
        let mut watcher = |_| {
            ticks += 1;
            if ticks == stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let done = db.backup(&dir, BackupOptions::default().on_progress(&mut watcher));
        assert!(matches!(done, Err(Error::Cancelled)), "{done:?}");
        assert!(fixture.disk().list(&dir).is_err());
        assert_eq!(db.stats().pinned_states, 0);
    }
    // An existing empty directory is not removed.
    fixture.disk().create_dir(&dir).unwrap();
    let mut watcher = |_| ControlFlow::Break(());
    assert!(db.backup(&dir, BackupOptions::default().on_progress(&mut watcher)).is_err());
    assert!(fixture.disk().list(&dir).unwrap().is_empty());
    db.backup(&dir, BackupOptions::default()).unwrap();
}

/// A failed call removes the files that it created. Files that other programs put into the
/// directory in the same time stay, even in a directory with a name that the call needs.
#[test]
fn foreign_files_in_a_target_are_not_removed() {
    let fixture = Fixture::new(&TestSubject::flex(), TINY);
    let db = small(&fixture);
    let (disk, from, dir) =
        (fixture.disk(), sibling_dir(&fixture, "backup"), sibling_dir(&fixture, "target"));
    db.backup(&from, BackupOptions::default()).unwrap();
    let theirs = |name: &str| {
        disk.create_dir(&dir.join(name))
            .and_then(|()| disk.open(&dir.join(name).join("theirs"), OpenMode::Create))
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
    let builder = || fixture.builder_on(Arc::clone(disk));

    let mut watcher = leave_it;
    db.backup(&dir, BackupOptions::default().on_progress(&mut watcher)).unwrap_err();
    assert_eq!(left(), ["photographs"], "of a backup");
    clear();
    builder().restore(&from, &dir, Some(&mut watcher)).unwrap_err();
    assert_eq!(left(), ["photographs"], "of a restoration");
    clear();
    let mut watcher = bump_into;
    db.backup(&dir, BackupOptions::default().on_progress(&mut watcher)).unwrap_err();
    assert_eq!(left(), ["journal"], "of a backup");
    clear();
    let keyspace = fixture.keyspace(&db, "k"); // a repair reports progress after many pairs
    (0..5000u32).for_each(|n| keyspace.insert(n.to_be_bytes(), [7; 10]).unwrap());
    drop((keyspace, db));
    let mut watcher = |_| {
        theirs("photographs").unwrap();
        ControlFlow::Break(())
    };
    builder().repair(fixture.path(), &dir, RepairOptions::default().on_progress(&mut watcher)).unwrap_err();
    assert_eq!(left(), ["photographs"], "of a repair");
}

#[test]
fn the_end_of_the_database_ends_its_backups() {
    let fixture = Fixture::new(&TestSubject::flat(), TINY);
    let db = small(&fixture);
    let dir = sibling_dir(&fixture, "backup");
    let handle = db.clone();
    let mut first = Some(db);
    let mut watcher = |_| {
        first.take().map(Database::close).transpose().unwrap();
        ControlFlow::Continue(())
    };
    let done = handle.backup(&dir, BackupOptions::default().on_progress(&mut watcher));
    assert!(matches!(done, Err(Error::Closed)), "{done:?}");
    assert!(fixture.disk().list(&dir).is_err());
    drop(handle);
    assert_eq!(fixture.keyspace(&fixture.open(), "k").len().unwrap(), 200);
}

/// Files that a backup pins fill the disk: writes are refused, and succeed again after the backup
/// ends.
#[test]
fn a_disk_filled_during_a_backup_refuses_writes_until_it_ends() {
    for subject in [TestSubject::flat(), TestSubject::flex(), TestSubject::kreon()] {
        let fixture = Fixture::new(&subject, TINY);
        let db = small(&fixture);
        let keyspace = fixture.keyspace(&db, "k");
        leave_room(&fixture, 64 << 10);
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
                    let _ = db.pump(); // the disk may be too full for its work
                }
            }
            ControlFlow::Continue(())
        };
        let dir = sibling_dir(&fixture, "backup");
        let done = db.backup(&dir, BackupOptions::default().on_progress(&mut watcher));
        assert!(refused, "{subject:?}: it never fills up: {done:?}");
        assert!(done.is_ok() || matches!(done, Err(Error::NoSpace { .. })), "{done:?}");
        assert_eq!((db.stats().pinned_states, db.stats().pinned_bytes), (0, 0));
        for round in 0..100 {
            if round % 20 == 0 {
                wait_epoch_garbage_freed(); // readers of other tests pin freed files, too
            }
            let _ = db.pump();
        }
        keyspace.insert("after", "all").unwrap_or_else(|error| panic!("{subject:?}: {error}"));
        assert_eq!(keyspace.len().unwrap(), 201);
    }
}

/// Calls `attempt` again if there is no space: readers of other tests may pin freed files.
fn retry_on_no_space<T>(mut attempt: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    for _ in 0..20 {
        match attempt() {
            Err(Error::NoSpace { .. }) => wait_epoch_garbage_freed(),
            done => return done,
        }
    }
    attempt()
}

/// Pairs that are overwritten repeatedly during a backup need as much space as without one,
/// plus the size of the data at its start.
#[test]
fn data_overwritten_during_a_backup_takes_no_extra_space() {
    for subject in [TestSubject::flat(), TestSubject::flat_ordered(), TestSubject::flex()] {
        let fixture = Fixture::new(&subject, TINY);
        let db = small(&fixture);
        let keyspace = fixture.keyspace(&db, "k");
        leave_room(&fixture, 1 << 20);
        let mut watcher = |_| {
            for n in 0..20_000u32 {
                let done = retry_on_no_space(|| {
                    let done = keyspace.insert((n % 200).to_be_bytes(), [n.to_be_bytes()[3]; 100]);
                    if matches!(done, Err(Error::NoSpace { .. })) {
                        let _ = db.pump(); // GC follows when space is freed late
                    }
                    done
                });
                done.unwrap_or_else(|error| panic!("{subject:?}: update {n}: {error}"));
                if n % 64 == 0 {
                    retry_on_no_space(|| db.pump()).unwrap();
                }
            }
            ControlFlow::Continue(())
        };
        db.backup(sibling_dir(&fixture, "backup"), BackupOptions::default().on_progress(&mut watcher))
            .unwrap();
    }
}

/// Returns options for a backup with this many bytes per second, without verification.
fn at_rate<'a>(bytes: u64) -> BackupOptions<'a> {
    BackupOptions::default().verify(false).rate(BackupRate::BytesPerSecond(bytes.try_into().unwrap()))
}

/// A rate limit makes a backup slow. A cancellation or a close of the database ends it at once.
#[test]
fn a_rate_limited_backup_takes_the_expected_time() {
    let fixture = Fixture::new(&TestSubject::flat(), TestSetting::new(DiskKind::Real, true, false));
    let db = small(&fixture);
    let began = SystemClock.now();
    let done = db.backup(sibling_dir(&fixture, "slow"), at_rate(200_000)).unwrap();
    let least = Duration::from_secs_f64(done.copied_bytes as f64 / 200_000.0);
    let took = SystemClock.now().saturating_sub(began);
    assert!(took >= least && !least.is_zero(), "{done:?} in {took:?}");
    // One byte per second would take hours.
    let began = SystemClock.now();
    let mut looks = 0;
    let mut watcher = |progress: BackupProgress| {
        looks += u32::from(progress.done > 0);
        if looks == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let given_up = db.backup(sibling_dir(&fixture, "given-up"), at_rate(1).on_progress(&mut watcher));
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
        handle.backup(sibling_dir(&fixture, "cut-short"), at_rate(1).on_progress(&mut watcher))
    });
    assert!(matches!(closing, Err(Error::Closed)), "{closing:?}");
    let took = SystemClock.now().saturating_sub(began);
    assert!(took < Duration::from_secs(20), "{took:?}");
}

/// Unchanged data is not copied again.
#[test]
fn an_incremental_backup_copies_only_new_data() {
    for subject in [TestSubject::flat(), TestSubject::flex(), TestSubject::kreon(), TestSubject::delsm()] {
        let fixture = Fixture::new(&subject, TINY);
        let db = fixture.open();
        let keyspace = fixture.keyspace(&db, "k");
        for n in 0..4000u32 {
            keyspace.insert(n.to_be_bytes(), sheaf_testkit::conformance::bytes(300, u64::from(n))).unwrap();
            if n % 16 == 0 {
                db.pump().unwrap();
            }
        }
        let [first, second] = ["first", "second"].map(|name| sibling_dir(&fixture, name));
        let full = db.backup(&first, BackupOptions::default()).unwrap();
        assert_eq!(full.linked_bytes, 0);
        keyspace.insert("new", [1; 300]).unwrap();
        let next = db.backup(&second, BackupOptions::default().base(&first)).unwrap();
        assert!(next.linked_bytes > next.copied_bytes, "{subject:?}: {next:?} after {full:?}");
        assert!(dir_bytes(&**fixture.disk(), &second) >= next.linked_bytes + next.copied_bytes);
        let mut maps = backups::KeyspaceMaps::new();
        let pairs = keyspace.iter().unwrap().map(|pair| pair.unwrap()).map(|(k, v)| (k.to_vec(), v.to_vec()));
        maps.insert("k".to_owned(), pairs.collect());
        drop(restore_and_compare(&fixture, fixture.disk(), &second, &maps).unwrap());
        compare(&db, &maps).unwrap();
    }
}

/// Threads on the real disk: each backup contains batches over two keyspaces completely, and all
/// commits acknowledged before it began.
#[test]
fn backups_during_writes_are_consistent_snapshots() {
    const ROUNDS: usize = 3;
    for engine in ["flat", "flex", "cedrus", "kreon", "delsm"] {
        let fixture = Fixture::new(
            &TestSubject::by_name(engine).unwrap(),
            TestSetting::new(DiskKind::Real, true, false),
        );
        let db = fixture.open();
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
                let (dir, to) = (
                    sibling_dir(&fixture, &format!("b{round}")),
                    sibling_dir(&fixture, &format!("r{round}")),
                );
                let before = acked.load(Ordering::Acquire);
                let options = BackupOptions::default();
                let options = base.iter().fold(options, |options, base| options.base(base));
                db.backup(&dir, options).unwrap();
                let after = acked.load(Ordering::Acquire) + 1;
                Database::restore(&dir, &to).unwrap();
                let again = fixture.builder_on(Arc::clone(fixture.disk())).open(&to).unwrap();
                let all = spaces.each_ref().map(|space| {
                    let space = again.open_keyspace(&space.name()).unwrap().unwrap();
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
