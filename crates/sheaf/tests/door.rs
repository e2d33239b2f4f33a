//! The door on the real disk: what is asked through it, who may come in, how it ends; readers beside their owner.

#![expect(clippy::unwrap_used, reason = "a test's own steps work")]
#![allow(clippy::disallowed_methods, reason = "a test makes its directories and its clients itself")]

use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sheaf::{
    BackupOptions, BackupPace, Database, Error, InUse, Keyspace, KeyspaceOptions, Owner, Reached, Stats,
};

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("sheaf-door-{name}-{}", std::process::id()));
        std::fs::remove_dir_all(&dir).ok();
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }

    fn db(&self) -> PathBuf {
        self.0.join("db")
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

const ENGINES: [&str; 6] = ["flat", "flat-ordered", "flex", "cedrus", "kreon", "delsm"];

fn value(n: u32, round: u32) -> Vec<u8> {
    let len = if n.is_multiple_of(97) { 100_000 } else { 40 + n as usize % 700 };
    let mut value = format!("{n} {round} ").into_bytes();
    value.resize(len, b'x');
    value
}

fn fill(keyspace: &Keyspace, round: u32) {
    (0..1000u32).for_each(|n| keyspace.insert(n.to_be_bytes(), value(n, round)).unwrap());
}

/// A database with a keyspace of each engine.
fn full(path: &Path) -> (Database, Vec<Keyspace>) {
    let db = Database::open(path).unwrap();
    let keyspace = |engine: &&str| db.keyspace(engine, KeyspaceOptions::default().engine(engine)).unwrap();
    let all: Vec<Keyspace> = ENGINES.iter().map(keyspace).collect();
    all.iter().for_each(|keyspace| fill(keyspace, 0));
    (db, all)
}

fn reader(path: &Path) -> sheaf::Result<Database> {
    Database::builder().read_only(true).memory(1 << 20).open(path)
}

/// It has round `round` of every keyspace, or says that the owner is gone; how often it said so.
fn check(db: &Database, round: u32) -> usize {
    let mut gone = 0;
    for engine in ENGINES {
        let keyspace = db.existing_keyspace(engine).unwrap().unwrap();
        for n in 0..1000u32 {
            match keyspace.get(n.to_be_bytes()) {
                Ok(got) => assert!(got.as_deref() == Some(&value(n, round)[..]), "{engine} {n}"),
                Err(Error::OwnerGone { .. }) => gone += 1,
                Err(other) => panic!("{engine} {n}: {other:?}"),
            }
        }
    }
    gone
}

fn go_on<T>(_: &T) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[test]
fn the_owner_answers_what_it_is_asked() {
    let dir = Dir::new("asked");
    let (db, keyspaces) = full(&dir.db());
    assert!(db.stats().door);
    let mut owner = Owner::connect(dir.db()).unwrap().unwrap();
    let (ours, theirs) = (db.overview(), owner.overview().unwrap());
    assert_eq!((ours.stats.visible, ours.stats.opening), (theirs.stats.visible, theirs.stats.opening));
    let names = |stats: &Stats| stats.caches.iter().map(|cache| cache.keyspace.clone()).collect::<Vec<_>>();
    assert!(names(&ours.stats) == names(&theirs.stats) && names(&ours.stats).contains(&Some("kreon".into())));
    assert_eq!(ours.stats.memory.is_exceeded(), theirs.stats.memory.is_exceeded());
    assert!(theirs.stats.door && theirs.keyspaces.len() == ENGINES.len());
    for (ours, theirs) in ours.keyspaces.iter().zip(&theirs.keyspaces) {
        assert_eq!(
            (&ours.info, ours.ordered, ours.stats.keys),
            (&theirs.info, theirs.ordered, theirs.stats.keys)
        );
        assert_eq!(theirs.stats.keys, 1000);
    }
    owner.persist().unwrap();
    assert!(db.stats().durable >= theirs.stats.visible);

    let (mut ticks, mut findings) = (0, Vec::new());
    let watch = |_: &sheaf::VerifyReport| {
        ticks += 1;
        ControlFlow::Continue(())
    };
    let report = owner.verify(|error| findings.push(error), watch).unwrap();
    assert!(findings.is_empty() && ticks > 0 && report.pairs == 6000 && !report.files.is_empty());

    let mut ticks = 0;
    let watch = |_| {
        ticks += 1;
        ControlFlow::Continue(())
    };
    let backup = dir.0.join("backup");
    let done = owner.backup(&backup, None, true, BackupPace::default(), watch).unwrap();
    assert!(done.seq >= theirs.stats.visible && ticks > 2);
    assert!(!backup.join("door").exists());
    let next = owner
        .backup(dir.0.join("next"), Some(&backup), true, BackupPace::default(), |_| ControlFlow::Continue(()))
        .unwrap();
    assert!(next.linked > 0);
    Database::restore(&backup, dir.0.join("again")).unwrap();
    assert_eq!(check(&Database::open(dir.0.join("again")).unwrap(), 0), 0);

    assert_eq!(owner.estimate_conversion("flat").unwrap().pairs, 1000);
    let done = owner.convert("flat", "flex", go_on).unwrap().unwrap();
    assert!(done.copied >= 1000 && keyspaces[0].engine() == "flex");
    // Told to end, it does, if it is not done by then.
    let ended = owner.convert("flat", "cedrus", |_| ControlFlow::Break(())).unwrap();
    assert_eq!(keyspaces[0].engine(), if ended.is_some() { "cedrus" } else { "flex" });

    let mut owner = Owner::connect(dir.db()).unwrap().unwrap();
    owner.compact(Some("flex"), go_on).unwrap();
    assert!(matches!(owner.compact(Some("none"), go_on), Err(Error::NoKeyspace { .. })));
    let done = owner.compact(None, go_on).unwrap();
    assert_eq!(done.moved + done.left, 2000);
    drop(keyspaces);
    db.close().unwrap();
    assert!(matches!(owner.persist(), Err(Error::OwnerGone { .. })));
    assert!(Owner::connect(dir.db()).unwrap().is_none() && !dir.db().join("door").exists());
}

#[test]
fn what_nobody_waits_for_any_more_ends_as_cancelled() {
    let dir = Dir::new("cancelled");
    let (db, _all) = full(&dir.db());
    let to = dir.0.join("backup");
    // Told to end, it is over when the answer is there.
    let mut owner = Owner::connect(dir.db()).unwrap().unwrap();
    let refused = owner.backup(&to, None, true, BackupPace::default(), |_| ControlFlow::Break(()));
    assert!(refused.is_ok() || matches!(refused, Err(Error::Cancelled)), "{refused:?}");
    assert!(to.exists() == refused.is_ok() && db.stats().stills == 0);
    std::fs::remove_dir_all(&to).ok();
    // Relative names are the client's, the rest is refused.
    let mut owner = Owner::connect(dir.db()).unwrap().unwrap();
    let inside =
        owner.backup(dir.db().join("x"), None, true, BackupPace::default(), |_| ControlFlow::Continue(()));
    assert!(matches!(inside, Err(Error::Invalid { .. })), "{inside:?}");
    // The database closes in the midst: the client learns it, and nothing is left.
    let (begun, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            owner.backup(&to, None, true, BackupPace::default(), |_| {
                let _ = begun.send(());
                ControlFlow::Continue(())
            })
        });
        told.recv().unwrap();
        db.close().unwrap();
        let ended = waiting.join().unwrap();
        let done = ended.is_ok(); // it may have been as good as done
        assert!(done || matches!(ended, Err(Error::OwnerGone { .. } | Error::Cancelled)), "{ended:?}");
        assert_eq!(to.exists(), done);
    });
    assert_eq!(check(&Database::open(dir.db()).unwrap(), 0), 0);
}

#[test]
fn a_reader_beside_sees_one_moment_and_keeps_it_until_it_closes() {
    let dir = Dir::new("beside");
    let (db, all) = full(&dir.db());
    let early = reader(&dir.db()).unwrap();
    assert_eq!(db.stats().stills, 1);
    assert!(matches!(early.keyspace("new", KeyspaceOptions::default()), Err(Error::ReadOnly)));
    let mut late = None;
    for round in 1..4 {
        all.iter().for_each(|keyspace| fill(keyspace, round));
        if round == 2 {
            late = Some(reader(&dir.db()).unwrap());
        }
    }
    db.drop_keyspace("delsm").unwrap();
    db.convert("cedrus", "flat", go_on).unwrap();
    let late = late.unwrap();
    assert_eq!((check(&early, 0), check(&late, 2)), (0, 0));
    assert_eq!(early.verify(|error| panic!("{error}")).unwrap().pairs, 6000);
    let file = late.existing_keyspace("delsm").unwrap().unwrap().path(0u32.to_be_bytes()).unwrap().unwrap();
    assert_eq!(std::fs::read(file).unwrap(), value(0, 2));
    assert_eq!(db.stats().stills, 2);
    early.close().unwrap();
    drop(late);
    while db.stats().stills > 0 {
        std::thread::yield_now(); // the owner learns it from the kernel
    }
    let made = std::fs::read_dir(dir.db().join("images")).unwrap();
    let made =
        made.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("held-"));
    assert_eq!(made.count(), 0);
    db.close().unwrap();
}

#[test]
fn a_reader_whose_owner_closes_says_so_and_nothing_wrong() {
    let dir = Dir::new("gone");
    let (db, all) = full(&dir.db());
    let reader = reader(&dir.db()).unwrap();
    drop(all);
    db.close().unwrap(); // not held up
    let db = Database::open(dir.db()).unwrap();
    for round in 1..4 {
        ENGINES.iter().for_each(|engine| fill(&db.existing_keyspace(engine).unwrap().unwrap(), round));
    }
    assert!(check(&reader, 0) > 0);
    let scanned = reader.existing_keyspace("flex").unwrap().unwrap().iter();
    let scanned = scanned.and_then(|pairs| pairs.collect::<sheaf::Result<Vec<_>>>());
    assert!(matches!(scanned, Err(Error::OwnerGone { .. })), "{:?}", scanned.map(|pairs| pairs.len()));
}

/// The kind of the message by which an owner says that it is at work.
const SIGN_OF_LIFE: u8 = 17;

#[test]
fn nobody_waits_for_a_guest() {
    let dir = Dir::new("guests");
    let db = Database::open(dir.db()).unwrap();
    let socket = dir.db().join("door");
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    // One that talks nonsense, or more than there can be, is shown out; the others are not harmed.
    for nonsense in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"SHEAFDOR\x09\0\0\0\0\0\0\0",
        b"SHEAFDOR\x04\0\0\0\0\0\0\0\xff\xff\xff\xff",
    ] {
        let mut guest = UnixStream::connect(&socket).unwrap();
        guest.write_all(nonsense).unwrap();
        let mut said = Vec::new();
        guest.read_to_end(&mut said).ok();
        assert!(said.is_empty() || said.starts_with(b"SHEAFDOR\x04\0\0\0"));
    }
    let mut guest = UnixStream::connect(&socket).unwrap();
    guest.write_all(b"SHEAFDOR\x04\0\0\0\0\0\0\0\x01\0\0\0\x63").unwrap();
    guest.read_exact(&mut [0; 16]).unwrap();
    let mut answer = || {
        let (mut len, mut answer) = ([0; 4], Vec::new());
        guest.read_exact(&mut len).unwrap();
        answer.resize(u32::from_le_bytes(len) as usize, 0);
        guest.read_exact(&mut answer).unwrap();
        answer[0]
    };
    // Signs of life may come first.
    let first = std::iter::repeat_with(&mut answer).find(|kind| *kind != SIGN_OF_LIFE);
    assert_eq!(first, Some(0), "an unknown request gets an error");
    let mut owner = Owner::connect(dir.db()).unwrap().unwrap();
    owner.persist().unwrap();
    let _idle = UnixStream::connect(&socket).unwrap();
    db.close().unwrap();
    assert!(matches!(owner.persist(), Err(Error::OwnerGone { .. })));
}

#[test]
fn guests_that_ask_for_nothing_give_their_places_to_others() {
    let dir = Dir::new("places");
    let db = Database::open(dir.db()).unwrap();
    let socket = dir.db().join("door");
    // As many as one process may have: readers keep their places, silent ones do not.
    let readers: Vec<Database> = (0..4).map(|_| reader(&dir.db()).unwrap()).collect();
    let silent: Vec<UnixStream> = (0..60).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    let full = loop {
        match Owner::connect(dir.db()) {
            Ok(owner) => drop(owner.unwrap()), // a full door is an error, not `None`
            Err(full) => break full,
        }
    };
    assert!(matches!(full, Error::Locked { cause: InUse::Crowded, pid: Some(_), .. }), "{full:?}");
    assert!(full.to_string().contains("as many connections"), "{full}");
    let wait = Duration::from_secs(20);
    let late = Database::builder().read_only(true).wait(wait).open(dir.db()).unwrap(); // when one has been silent for long enough
    assert_eq!(db.stats().stills, 5);
    readers
        .iter()
        .chain([&late])
        .for_each(|reader| assert!(reader.verify(|error| panic!("{error}")).is_ok()));
    // Nobody comes any more: they are shown out all the same.
    for mut silent in silent {
        let mut said = Vec::new();
        silent.read_to_end(&mut said).ok();
        assert!(said.len() == 16 || said.is_empty(), "a hello, or nothing");
    }
}

/// A socket in place of an owner's, which says `hello` and nothing more.
fn silent_owner(dir: &Path, hello: Option<&[u8]>) -> (UnixListener, Option<UnixStream>, sheaf::Result<()>) {
    std::fs::create_dir(dir).unwrap();
    std::fs::write(dir.join("LOCK"), format!("{}\n{:032x}\n", std::process::id(), 7)).unwrap();
    let listener = UnixListener::bind(dir.join("door")).unwrap();
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| Owner::connect(dir)?.unwrap().persist());
        let guest = hello.map(|hello| {
            let mut guest = listener.accept().unwrap().0;
            guest.write_all(hello).unwrap();
            guest
        });
        let said = asking.join().unwrap();
        (listener.try_clone().unwrap(), guest, said)
    })
}

#[test]
fn an_owner_that_says_nothing_is_named_after_a_while() {
    let dir = Dir::new("silent");
    let hello = b"SHEAFDOR\x04\0\0\0\0\0\0\0";
    // It takes nobody in; it says half a hello; it does not answer what it is asked.
    let silences: [(&str, Option<&[u8]>); 3] =
        [("deaf", None), ("half", Some(&hello[..9])), ("dumb", Some(&hello[..]))];
    std::thread::scope(|scope| {
        for (name, hello) in silences {
            let dir = dir.0.join(name);
            scope.spawn(move || {
                let (_listener, _guest, said) = silent_owner(&dir, hello);
                let Err(Error::OwnerSilent { pid, program, is_stopped: false, .. }) = &said else {
                    panic!("{name}: {said:?}");
                };
                assert!(*pid == Some(std::process::id()) && program.is_some());
                assert!(said.unwrap_err().to_string().contains("has not answered for 5 s"));
            });
        }
    });
}

#[test]
fn a_reader_waits_for_an_owner_without_a_door_and_a_writer_for_anybody() {
    let dir = Dir::new("wait");
    let db = Database::builder().door(false).open(dir.db()).unwrap();
    db.keyspace("k", KeyspaceOptions::default()).unwrap().insert("a", "b").unwrap();
    let waiting = |read_only| {
        Database::builder().read_only(read_only).wait(Duration::from_secs(60)).open(dir.db()).unwrap()
    };
    std::thread::scope(|scope| {
        let (reader, writer) = (scope.spawn(|| waiting(true)), scope.spawn(|| waiting(false)));
        drop(db);
        // One after the other, or beside each other: both get in.
        let has_read = |db: Database| {
            let value = db.existing_keyspace("k").unwrap().unwrap().get("a");
            matches!(&value, Ok(Some(value)) if **value == *b"b")
                || matches!(value, Err(Error::OwnerGone { .. }))
        };
        let reader = scope.spawn(move || has_read(reader.join().unwrap()));
        assert!(has_read(writer.join().unwrap()));
        assert!(reader.join().unwrap());
    });
    let held = Database::builder().door(false).open(dir.db()).unwrap();
    for read_only in [true, false] {
        let wait = Duration::from_millis(100);
        let refused = Database::builder().read_only(read_only).wait(wait).open(dir.db()).map(drop);
        let Err(Error::Locked { pid, program, cause, .. }) = &refused else { panic!("{refused:?}") };
        assert_eq!(*cause, if read_only { InUse::NoDoor } else { InUse::Owner });
        assert!(*pid == Some(std::process::id()) && program.is_some());
    }
    drop(held);
    let held = reader(&dir.db()).unwrap();
    let refused = Database::open(dir.db()).map(drop);
    assert!(matches!(refused, Err(Error::Locked { cause: InUse::Readers, .. })), "{refused:?}");
    drop(held);
}

#[test]
fn an_opening_is_here_or_with_the_owner() {
    let dir = Dir::new("reach");
    assert!(matches!(Database::builder().create(false).reach(dir.db()), Err(Error::NotFound { .. })));
    let Ok(Reached::Database(db)) = Database::builder().reach(dir.db()) else { panic!("nobody has it") };
    let Ok(Reached::Owner(mut owner)) = Database::builder().reach(dir.db()) else { panic!("we have it") };
    owner.persist().unwrap();
    db.close().unwrap();
}

#[test]
fn where_there_is_no_door_the_answer_is_locked() {
    let dir = Dir::new("none");
    let db = Database::builder().door(false).open(dir.db()).unwrap();
    assert!(!db.stats().door && !dir.db().join("door").exists());
    let locked = reader(&dir.db()).map(drop).unwrap_err();
    assert!(matches!(locked, Error::Locked { cause: InUse::NoDoor, pid: Some(_), .. }), "{locked:?}");
    assert!(locked.to_string().contains("has no socket"), "{locked}");
    let locked = Database::open(dir.db()).map(drop).unwrap_err();
    assert!(
        matches!(locked, Error::Locked { cause: InUse::Owner, .. })
            && !locked.to_string().contains("no socket")
    );
    drop(db);
    // What a crash leaves is no owner, and no obstacle.
    drop(UnixListener::bind(dir.db().join("door")).unwrap());
    std::fs::write(dir.db().join("door.new"), b"").unwrap();
    assert!(Owner::connect(dir.db()).unwrap().is_none());
    assert!(reader(&dir.db()).is_ok());
    let db = Database::open(dir.db()).unwrap();
    assert!(db.stats().door && Owner::connect(dir.db()).unwrap().is_some());
    // A name that cannot be had: it opens all the same.
    db.close().unwrap();
    std::fs::create_dir(dir.db().join("door")).unwrap();
    let db = Database::open(dir.db()).unwrap();
    assert!(!db.stats().door);
    db.backup(dir.0.join("backup"), BackupOptions::default()).unwrap();
}

#[test]
fn a_path_may_be_longer_than_a_sockets() {
    let dir = Dir::new("long");
    let deep = dir.0.join("d".repeat(120)).join("e".repeat(120));
    let db = Database::open(&deep).unwrap();
    db.keyspace("k", KeyspaceOptions::default()).unwrap().insert("a", "b").unwrap();
    assert!(db.stats().door);
    let beside = reader(&deep).unwrap();
    assert_eq!(beside.existing_keyspace("k").unwrap().unwrap().get("a").unwrap().unwrap(), b"b");
}

#[test]
fn a_guest_does_not_keep_a_database_open() {
    let dir = Dir::new("last");
    let db = Database::open(dir.db()).unwrap();
    let keyspace = db.keyspace("k", KeyspaceOptions::default()).unwrap();
    let owner = Owner::connect(dir.db()).unwrap().unwrap();
    let beside = reader(&dir.db()).unwrap();
    drop(db);
    assert!(matches!(Database::open(dir.db()), Err(Error::Locked { .. })), "a handle is there still");
    drop(keyspace);
    drop(Database::open(dir.db()).unwrap());
    drop((owner, beside));
}
