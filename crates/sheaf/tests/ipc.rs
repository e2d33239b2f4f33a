//! The IPC socket on the real disk: requests, permissions, and the end of connections; attached
//! readers with their owner.

#![expect(clippy::unwrap_used, reason = "a test's own steps work")]
#![allow(clippy::disallowed_methods, reason = "a test makes its directories and its clients itself")]

use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sheaf::{
    AttachedOwner, BackupOptions, BackupRate, Change, ChangeKind, ChangeQuery, ChangeRetention,
    CommittedChanges, Database, DatabaseStats, Error, Keyspace, KeyspaceOptions, LockConflict, OpenOutcome,
};

struct IpcDir(PathBuf);

impl IpcDir {
    fn new(name: &str) -> IpcDir {
        let dir = std::env::temp_dir().join(format!("sheaf-ipc-{name}-{}", std::process::id()));
        std::fs::remove_dir_all(&dir).ok();
        std::fs::create_dir_all(&dir).unwrap();
        IpcDir(dir)
    }

    fn db(&self) -> PathBuf {
        self.0.join("db")
    }
}

impl Drop for IpcDir {
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

/// Creates a database with a keyspace of each engine.
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

/// Checks that every keyspace has round `round`, or returns `OwnerClosed`. Returns the number of
/// such errors.
fn check(db: &Database, round: u32) -> usize {
    let mut gone = 0;
    for engine in ENGINES {
        let keyspace = db.open_keyspace(engine).unwrap().unwrap();
        for n in 0..1000u32 {
            match keyspace.get(n.to_be_bytes()) {
                Ok(got) => assert!(got.as_deref() == Some(&value(n, round)[..]), "{engine} {n}"),
                Err(Error::OwnerClosed { .. }) => gone += 1,
                Err(other) => panic!("{engine} {n}: {other:?}"),
            }
        }
    }
    gone
}

fn continue_always<T>(_: &T) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[test]
fn the_owner_replies_to_every_request() {
    let dir = IpcDir::new("asked");
    let (db, keyspaces) = full(&dir.db());
    assert!(db.stats().has_ipc);
    let mut owner = AttachedOwner::connect(dir.db()).unwrap().unwrap();
    let (ours, theirs) = (db.overview(), owner.overview().unwrap());
    assert_eq!(
        (ours.stats.visible_seq, ours.stats.opening),
        (theirs.stats.visible_seq, theirs.stats.opening)
    );
    let names =
        |stats: &DatabaseStats| stats.caches.iter().map(|cache| cache.keyspace.clone()).collect::<Vec<_>>();
    assert!(names(&ours.stats) == names(&theirs.stats) && names(&ours.stats).contains(&Some("kreon".into())));
    assert_eq!(ours.stats.memory.is_exceeded(), theirs.stats.memory.is_exceeded());
    assert!(theirs.stats.has_ipc && theirs.keyspaces.len() == ENGINES.len());
    for (ours, theirs) in ours.keyspaces.iter().zip(&theirs.keyspaces) {
        assert_eq!(
            (&ours.info, ours.ordered, ours.stats.keys),
            (&theirs.info, theirs.ordered, theirs.stats.keys)
        );
        assert_eq!(theirs.stats.keys, 1000);
    }
    owner.persist().unwrap();
    assert!(db.stats().durable_seq >= theirs.stats.visible_seq);

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
    let done = owner.backup(&backup, None, true, BackupRate::default(), watch).unwrap();
    assert!(done.seq >= theirs.stats.visible_seq && ticks > 2);
    assert!(!backup.join("door").exists());
    let next = owner
        .backup(dir.0.join("next"), Some(&backup), true, BackupRate::default(), |_| ControlFlow::Continue(()))
        .unwrap();
    assert!(next.linked_bytes > 0);
    Database::restore(&backup, dir.0.join("again")).unwrap();
    assert_eq!(check(&Database::open(dir.0.join("again")).unwrap(), 0), 0);

    assert_eq!(owner.estimate_conversion("flat").unwrap().pairs, 1000);
    let done = owner.convert("flat", "flex", continue_always).unwrap().unwrap();
    assert!(done.copied_pairs >= 1000 && keyspaces[0].engine() == "flex");
    // A cancelled conversion ends early, unless it is already complete.
    let ended = owner.convert("flat", "cedrus", |_| ControlFlow::Break(())).unwrap();
    assert_eq!(keyspaces[0].engine(), if ended.is_some() { "cedrus" } else { "flex" });

    let mut owner = AttachedOwner::connect(dir.db()).unwrap().unwrap();
    owner.compact(Some("flex"), continue_always).unwrap();
    assert!(matches!(owner.compact(Some("none"), continue_always), Err(Error::KeyspaceNotFound { .. })));
    let done = owner.compact(None, continue_always).unwrap();
    assert_eq!(done.rewritten_pairs + done.skipped_pairs, 2000);
    drop(keyspaces);
    db.close().unwrap();
    assert!(matches!(owner.persist(), Err(Error::OwnerClosed { .. })));
    assert!(AttachedOwner::connect(dir.db()).unwrap().is_none() && !dir.db().join("door").exists());
}

#[test]
fn a_conversion_for_a_client_refuses_an_operator_that_the_owner_lacks() {
    let dir = IpcDir::new("operator");
    let path = dir.db();
    let longest = |_: &[u8], _: Option<&[u8]>, operand: &[u8]| Ok(operand.to_vec());
    let db = Database::builder().merge_operator("longest", longest).open(&path).unwrap();
    let options = |operator: &str| KeyspaceOptions::default().merge_operator(operator);
    let names = db.keyspace("names", options("longest")).unwrap();
    let convert = |to: KeyspaceOptions| {
        let mut owner = AttachedOwner::connect(&path).unwrap().unwrap();
        owner.convert("names", to, continue_always)
    };
    let (local, remote) =
        (db.convert("names", options("shortest"), continue_always), convert(options("shortest")));
    assert!(matches!(local, Err(Error::InvalidArgument { argument: "merge operator", .. })), "{local:?}");
    assert_eq!(format!("{remote:?}"), format!("{local:?}"));
    assert_eq!(names.options().merge_operator(), Some("longest"));
    assert!(convert(options("append")).unwrap().is_some());
    assert!(convert(options("longest")).unwrap().is_some());
    names.merge("ada", "byron").unwrap();

    // An owner without the operator of the keyspace converts it, and keeps the name.
    drop(names);
    db.close().unwrap();
    let db = Database::open(&path).unwrap();
    assert!(convert(options("longest").engine("flat")).unwrap().is_some());
    let names = db.open_keyspace("names").unwrap().unwrap();
    assert_eq!((names.engine(), names.options().merge_operator()), ("flat", Some("longest")));
    let missing =
        AttachedOwner::connect(&path).unwrap().unwrap().convert("none", options("shortest"), continue_always);
    assert_eq!(
        format!("{missing:?}"),
        format!("{:?}", db.convert("none", options("shortest"), continue_always))
    );
}

#[test]
fn an_operation_is_cancelled_when_its_client_disconnects() {
    let dir = IpcDir::new("cancelled");
    let (db, _all) = full(&dir.db());
    let to = dir.0.join("backup");
    // After a cancellation, the operation has ended when the reply arrives.
    let mut owner = AttachedOwner::connect(dir.db()).unwrap().unwrap();
    let refused = owner.backup(&to, None, true, BackupRate::default(), |_| ControlFlow::Break(()));
    assert!(refused.is_ok() || matches!(refused, Err(Error::Cancelled)), "{refused:?}");
    assert!(to.exists() == refused.is_ok() && db.stats().pinned_states == 0);
    std::fs::remove_dir_all(&to).ok();
    // A target inside of the database is refused.
    let mut owner = AttachedOwner::connect(dir.db()).unwrap().unwrap();
    let inside =
        owner.backup(dir.db().join("x"), None, true, BackupRate::default(), |_| ControlFlow::Continue(()));
    assert!(matches!(inside, Err(Error::InvalidArgument { .. })), "{inside:?}");
    // The database closes during a backup: the client gets an error, and no incomplete backup
    // remains.
    let (begun, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            owner.backup(&to, None, true, BackupRate::default(), |_| {
                let _ = begun.send(());
                ControlFlow::Continue(())
            })
        });
        told.recv().unwrap();
        db.close().unwrap();
        let ended = waiting.join().unwrap();
        let done = ended.is_ok(); // the backup may have been complete already
        assert!(done || matches!(ended, Err(Error::OwnerClosed { .. } | Error::Cancelled)), "{ended:?}");
        assert_eq!(to.exists(), done);
    });
    assert_eq!(check(&Database::open(dir.db()).unwrap(), 0), 0);
}

#[test]
fn an_attached_reader_sees_one_snapshot_until_it_closes() {
    let dir = IpcDir::new("beside");
    let (db, all) = full(&dir.db());
    let early = reader(&dir.db()).unwrap();
    assert_eq!(db.stats().pinned_states, 1);
    assert!(matches!(early.keyspace("new", KeyspaceOptions::default()), Err(Error::ReadOnly)));
    let mut late = None;
    for round in 1..4 {
        all.iter().for_each(|keyspace| fill(keyspace, round));
        if round == 2 {
            late = Some(reader(&dir.db()).unwrap());
        }
    }
    db.drop_keyspace("delsm").unwrap();
    db.convert("cedrus", "flat", continue_always).unwrap();
    let late = late.unwrap();
    assert_eq!((check(&early, 0), check(&late, 2)), (0, 0));
    assert_eq!(early.verify(|error| panic!("{error}")).unwrap().pairs, 6000);
    let file = late.open_keyspace("delsm").unwrap().unwrap().blob_path(0u32.to_be_bytes()).unwrap().unwrap();
    assert_eq!(std::fs::read(file).unwrap(), value(0, 2));
    assert_eq!(db.stats().pinned_states, 2);
    early.close().unwrap();
    drop(late);
    while db.stats().pinned_states > 0 {
        std::thread::yield_now(); // the owner waits for the kernel to report the close
    }
    let made = std::fs::read_dir(dir.db().join("images")).unwrap();
    let made =
        made.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("held-"));
    assert_eq!(made.count(), 0);
    db.close().unwrap();
}

#[test]
fn an_attached_reader_has_the_names_of_its_snapshot() {
    let dir = IpcDir::new("renamed");
    let (db, all) = full(&dir.db());
    let early = reader(&dir.db()).unwrap();
    let opened_before = early.open_keyspace("flex").unwrap().unwrap();
    let present = |engine: &&str| format!("{engine}.new");
    for keyspace in &all {
        keyspace.rename(&present(&keyspace.name().as_str())).unwrap();
        fill(keyspace, 1);
    }
    // The old names are those of other keyspaces now.
    let others: Vec<Keyspace> =
        ENGINES.iter().map(|engine| db.keyspace(engine, KeyspaceOptions::default()).unwrap()).collect();
    others.iter().for_each(|keyspace| keyspace.insert("other", "1").unwrap());
    let late = reader(&dir.db()).unwrap();
    db.rename_keyspace("flex.new", "third").unwrap();
    assert_eq!(check(&early, 0), 0);
    assert_eq!(opened_before.get(5u32.to_be_bytes()).unwrap().as_deref(), Some(&value(5, 0)[..]));
    assert_eq!(early.keyspaces().len(), ENGINES.len());
    for engine in &ENGINES {
        let renamed = late.open_keyspace(&present(engine)).unwrap().unwrap();
        assert_eq!(renamed.get(5u32.to_be_bytes()).unwrap().as_deref(), Some(&value(5, 1)[..]), "{engine}");
        assert_eq!(late.open_keyspace(engine).unwrap().unwrap().len().unwrap(), 1, "{engine}");
    }
    assert!(late.open_keyspace("third").unwrap().is_none());
    let mut owner = AttachedOwner::connect(dir.db()).unwrap().unwrap();
    let names: Vec<String> = owner.overview().unwrap().keyspaces.into_iter().map(|k| k.info.name).collect();
    assert!(names.contains(&"third".to_owned()) && !names.contains(&"flex.new".to_owned()), "{names:?}");
    early.close().unwrap();
    late.close().unwrap();
    db.close().unwrap();
}

#[test]
fn an_attached_reader_returns_owner_closed_and_never_wrong_data() {
    let dir = IpcDir::new("gone");
    let (db, all) = full(&dir.db());
    let reader = reader(&dir.db()).unwrap();
    drop(all);
    db.close().unwrap(); // does not wait for the reader
    let db = Database::open(dir.db()).unwrap();
    for round in 1..4 {
        ENGINES.iter().for_each(|engine| fill(&db.open_keyspace(engine).unwrap().unwrap(), round));
    }
    assert!(check(&reader, 0) > 0);
    let scanned = reader.open_keyspace("flex").unwrap().unwrap().iter();
    let scanned = scanned.and_then(|pairs| pairs.collect::<sheaf::Result<Vec<_>>>());
    assert!(matches!(scanned, Err(Error::OwnerClosed { .. })), "{:?}", scanned.map(|pairs| pairs.len()));
}

/// Kind of the message that an owner sends while it works.
const HEARTBEAT: u8 = 17;

#[test]
fn a_stalled_connection_delays_neither_the_owner_nor_other_connections() {
    let dir = IpcDir::new("clients");
    let db = Database::open(dir.db()).unwrap();
    let socket = dir.db().join("door");
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    // A connection with invalid or oversized data is closed, without harm to the others.
    for nonsense in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"SHEAFDOR\x09\0\0\0\0\0\0\0",
        b"SHEAFDOR\x08\0\0\0\0\0\0\0\xff\xff\xff\xff",
    ] {
        let mut client = UnixStream::connect(&socket).unwrap();
        client.write_all(nonsense).unwrap();
        let mut said = Vec::new();
        client.read_to_end(&mut said).ok();
        assert!(said.is_empty() || said.starts_with(b"SHEAFDOR\x08\0\0\0"));
    }
    let mut client = UnixStream::connect(&socket).unwrap();
    client.write_all(b"SHEAFDOR\x08\0\0\0\0\0\0\0\x01\0\0\0\x63").unwrap();
    client.read_exact(&mut [0; 16]).unwrap();
    let mut answer = || {
        let (mut len, mut answer) = ([0; 4], Vec::new());
        client.read_exact(&mut len).unwrap();
        answer.resize(u32::from_le_bytes(len) as usize, 0);
        client.read_exact(&mut answer).unwrap();
        answer[0]
    };
    // Heartbeats may precede the reply.
    let first = std::iter::repeat_with(&mut answer).find(|kind| *kind != HEARTBEAT);
    assert_eq!(first, Some(0), "an unknown request gets an error");
    let mut owner = AttachedOwner::connect(dir.db()).unwrap().unwrap();
    owner.persist().unwrap();
    let _idle = UnixStream::connect(&socket).unwrap();
    db.close().unwrap();
    assert!(matches!(owner.persist(), Err(Error::OwnerClosed { .. })));
}

#[test]
fn idle_connections_are_evicted_for_new_ones() {
    let dir = IpcDir::new("places");
    let db = Database::open(dir.db()).unwrap();
    let socket = dir.db().join("door");
    // Fill all connections of one process: readers keep theirs, idle ones can be evicted.
    let readers: Vec<Database> = (0..4).map(|_| reader(&dir.db()).unwrap()).collect();
    let silent: Vec<UnixStream> = (0..60).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    let full = loop {
        match AttachedOwner::connect(dir.db()) {
            Ok(owner) => drop(owner.unwrap()), // at the limit it is an error, not `None`
            Err(full) => break full,
        }
    };
    assert!(
        matches!(full, Error::Locked { cause: LockConflict::TooManyConnections, pid: Some(_), .. }),
        "{full:?}"
    );
    assert!(full.to_string().contains("as many connections"), "{full}");
    let wait = Duration::from_secs(20);
    let late = Database::builder().read_only(true).wait(wait).open(dir.db()).unwrap(); // evicts one
    assert_eq!(db.stats().pinned_states, 5);
    readers
        .iter()
        .chain([&late])
        .for_each(|reader| assert!(reader.verify(|error| panic!("{error}")).is_ok()));
    // Idle connections are also closed without new clients.
    for mut silent in silent {
        let mut said = Vec::new();
        silent.read_to_end(&mut said).ok();
        assert!(said.len() == 16 || said.is_empty(), "a hello, or nothing");
    }
}

/// Plays an owner: a socket that sends `hello` and nothing more.
fn silent_owner(dir: &Path, hello: Option<&[u8]>) -> (UnixListener, Option<UnixStream>, sheaf::Result<()>) {
    std::fs::create_dir(dir).unwrap();
    std::fs::write(dir.join("LOCK"), format!("{}\n{:032x}\n", std::process::id(), 7)).unwrap();
    let listener = UnixListener::bind(dir.join("door")).unwrap();
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| AttachedOwner::connect(dir)?.unwrap().persist());
        let client = hello.map(|hello| {
            let mut client = listener.accept().unwrap().0;
            client.write_all(hello).unwrap();
            client
        });
        let said = asking.join().unwrap();
        (listener.try_clone().unwrap(), client, said)
    })
}

#[test]
fn an_unresponsive_owner_is_an_error_that_names_it() {
    let dir = IpcDir::new("silent");
    let hello = b"SHEAFDOR\x08\0\0\0\0\0\0\0";
    // It does not accept; it sends half a hello; it does not answer requests.
    let silences: [(&str, Option<&[u8]>); 3] =
        [("deaf", None), ("half", Some(&hello[..9])), ("dumb", Some(&hello[..]))];
    std::thread::scope(|scope| {
        for (name, hello) in silences {
            let dir = dir.0.join(name);
            scope.spawn(move || {
                let (_listener, _client, said) = silent_owner(&dir, hello);
                let Err(Error::OwnerUnresponsive { pid, program, is_stopped: false, .. }) = &said else {
                    panic!("{name}: {said:?}");
                };
                assert!(*pid == Some(std::process::id()) && program.is_some());
                assert!(said.unwrap_err().to_string().contains("has not answered for 5 s"));
            });
        }
    });
}

#[test]
fn readers_wait_for_an_owner_without_ipc_and_writers_for_any_lock() {
    let dir = IpcDir::new("wait");
    let db = Database::builder().ipc(false).open(dir.db()).unwrap();
    db.keyspace("k", KeyspaceOptions::default()).unwrap().insert("a", "b").unwrap();
    let waiting = |read_only| {
        Database::builder().read_only(read_only).wait(Duration::from_secs(60)).open(dir.db()).unwrap()
    };
    std::thread::scope(|scope| {
        let (reader, writer) = (scope.spawn(|| waiting(true)), scope.spawn(|| waiting(false)));
        drop(db);
        // Both open the database, one after the other or together.
        let has_read = |db: Database| {
            let value = db.open_keyspace("k").unwrap().unwrap().get("a");
            matches!(&value, Ok(Some(value)) if **value == *b"b")
                || matches!(value, Err(Error::OwnerClosed { .. }))
        };
        let reader = scope.spawn(move || has_read(reader.join().unwrap()));
        assert!(has_read(writer.join().unwrap()));
        assert!(reader.join().unwrap());
    });
    let held = Database::builder().ipc(false).open(dir.db()).unwrap();
    for read_only in [true, false] {
        let wait = Duration::from_millis(100);
        let refused = Database::builder().read_only(read_only).wait(wait).open(dir.db()).map(drop);
        let Err(Error::Locked { pid, program, cause, .. }) = &refused else { panic!("{refused:?}") };
        assert_eq!(*cause, if read_only { LockConflict::NoIpc } else { LockConflict::Owner });
        assert!(*pid == Some(std::process::id()) && program.is_some());
    }
    drop(held);
    let held = reader(&dir.db()).unwrap();
    let refused = Database::open(dir.db()).map(drop);
    assert!(matches!(refused, Err(Error::Locked { cause: LockConflict::Readers, .. })), "{refused:?}");
    drop(held);
}

#[test]
fn open_or_connect_opens_the_database_or_connects_to_its_owner() {
    let dir = IpcDir::new("reach");
    assert!(matches!(
        Database::builder().create(false).open_or_connect(dir.db()),
        Err(Error::DatabaseNotFound { .. })
    ));
    let Ok(OpenOutcome::Database(db)) = Database::builder().open_or_connect(dir.db()) else {
        panic!("no owner has it open")
    };
    let Ok(OpenOutcome::Owner(mut owner)) = Database::builder().open_or_connect(dir.db()) else {
        panic!("the owner is open in this process")
    };
    owner.persist().unwrap();
    db.close().unwrap();
}

#[test]
fn an_owner_without_ipc_is_an_error_locked() {
    let dir = IpcDir::new("none");
    let db = Database::builder().ipc(false).open(dir.db()).unwrap();
    assert!(!db.stats().has_ipc && !dir.db().join("door").exists());
    let locked = reader(&dir.db()).map(drop).unwrap_err();
    assert!(matches!(locked, Error::Locked { cause: LockConflict::NoIpc, pid: Some(_), .. }), "{locked:?}");
    assert!(locked.to_string().contains("has no socket"), "{locked}");
    let locked = Database::open(dir.db()).map(drop).unwrap_err();
    assert!(
        matches!(locked, Error::Locked { cause: LockConflict::Owner, .. })
            && !locked.to_string().contains("no socket")
    );
    drop(db);
    // Files that remain after a crash are no owner, and do not prevent opening.
    drop(UnixListener::bind(dir.db().join("door")).unwrap());
    std::fs::write(dir.db().join("door.new"), b"").unwrap();
    assert!(AttachedOwner::connect(dir.db()).unwrap().is_none());
    assert!(reader(&dir.db()).is_ok());
    let db = Database::open(dir.db()).unwrap();
    assert!(db.stats().has_ipc && AttachedOwner::connect(dir.db()).unwrap().is_some());
    // If the socket cannot be created, the database still opens.
    db.close().unwrap();
    std::fs::create_dir(dir.db().join("door")).unwrap();
    let db = Database::open(dir.db()).unwrap();
    assert!(!db.stats().has_ipc);
    db.backup(dir.0.join("backup"), BackupOptions::default()).unwrap();
}

#[test]
fn a_database_path_may_exceed_the_socket_path_limit() {
    let dir = IpcDir::new("long");
    let deep = dir.0.join("d".repeat(120)).join("e".repeat(120));
    let db = Database::open(&deep).unwrap();
    db.keyspace("k", KeyspaceOptions::default()).unwrap().insert("a", "b").unwrap();
    assert!(db.stats().has_ipc);
    let beside = reader(&deep).unwrap();
    assert_eq!(beside.open_keyspace("k").unwrap().unwrap().get("a").unwrap().unwrap(), b"b");
}

#[test]
fn a_connection_does_not_keep_a_database_open() {
    let dir = IpcDir::new("last");
    let db = Database::open(dir.db()).unwrap();
    let keyspace = db.keyspace("k", KeyspaceOptions::default()).unwrap();
    let owner = AttachedOwner::connect(dir.db()).unwrap().unwrap();
    let beside = reader(&dir.db()).unwrap();
    drop(db);
    assert!(matches!(Database::open(dir.db()), Err(Error::Locked { .. })), "a handle is there still");
    drop(keyspace);
    drop(Database::open(dir.db()).unwrap());
    drop((owner, beside));
}

/// Opens a database that retains changes.
fn retaining(path: &Path) -> Database {
    let retention = ChangeRetention::new(1 << 30, Duration::from_secs(3600));
    Database::builder().retain_changes(retention).open(path).unwrap()
}

/// Returns the keys and values of the puts of a commit.
fn puts(commit: &CommittedChanges) -> Vec<(Vec<u8>, Vec<u8>)> {
    let put = |change: &Change| match &change.kind {
        ChangeKind::Put { key, value, .. } => Some((key.clone(), value.read().unwrap())),
        _ => None,
    };
    commit.changes.iter().filter_map(put).collect()
}

#[test]
fn a_client_reads_the_changes_that_the_owner_retains() {
    let dir = IpcDir::new("changes");
    let db = retaining(&dir.db());
    let (users, logs) = (db.keyspace("users", "flex").unwrap(), db.keyspace("logs", "flat").unwrap());
    let first = db.newest_change().unwrap();
    let large = value(97, 1).repeat(30); // more than a message
    users.insert("ada", &large).unwrap();
    logs.insert("1", "started").unwrap();
    users.remove("ada").unwrap();
    db.persist().unwrap();
    let read = |query: ChangeQuery| {
        let (mut owner, mut commits) = (AttachedOwner::connect(dir.db()).unwrap().unwrap(), Vec::new());
        let done = owner.changes(&query, |commit| {
            commits.push(commit.clone());
            ControlFlow::Continue(())
        });
        done.map(|()| commits)
    };
    let all = read(ChangeQuery::default()).unwrap();
    let (mut local, mut ours) = (db.changes(db.oldest_change().unwrap()).unwrap(), Vec::new());
    while let Some(commit) = local.try_next().unwrap() {
        ours.push(commit);
    }
    assert_eq!(format!("{all:?}"), format!("{ours:?}"));
    assert_eq!(all.iter().flat_map(puts).next(), Some((b"ada".to_vec(), large)));
    let later = read(ChangeQuery::default().after(first).keyspace("logs")).unwrap();
    assert_eq!(later.iter().flat_map(puts).collect::<Vec<_>>(), [(b"1".to_vec(), b"started".to_vec())]);
    assert_eq!(read(ChangeQuery::default().after(first).prefix("b")).unwrap().len(), 0);

    let foreign = format!("{:032x}-0", 7).parse().unwrap();
    let refused = read(ChangeQuery::default().after(foreign));
    assert_eq!(format!("{refused:?}"), format!("{:?}", db.changes(foreign).map(|_| ())));
    drop((users, logs, local));
    db.close().unwrap();
    let plain = dir.0.join("plain");
    let _db = Database::open(&plain).unwrap();
    let refused =
        AttachedOwner::connect(&plain).unwrap().unwrap().changes(&ChangeQuery::default(), continue_always);
    assert!(matches!(refused, Err(Error::InvalidArgument { argument: "change feed", .. })), "{refused:?}");
}

#[test]
fn a_client_follows_the_changes_until_it_leaves_or_the_owner_closes() {
    let dir = IpcDir::new("follow");
    let db = retaining(&dir.db());
    let users = db.keyspace("users", "flex").unwrap();
    let query = ChangeQuery::default().after(db.newest_change().unwrap()).follow();
    let (seen, commits) = std::sync::mpsc::channel();
    let follow = |count: usize| {
        let (seen, query, path) = (seen.clone(), query.clone(), dir.db());
        let mut owner = AttachedOwner::connect(path).unwrap().unwrap();
        std::thread::spawn(move || {
            let mut left = count;
            owner.changes(&query, |commit| {
                seen.send(puts(commit)).unwrap();
                left -= 1;
                if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
        })
    };
    let leaves = follow(2);
    for name in ["ada", "alan"] {
        // The client waits for each commit.
        users.insert(name, "x").unwrap();
        assert_eq!(commits.recv().unwrap(), [(name.as_bytes().to_vec(), b"x".to_vec())]);
    }
    leaves.join().unwrap().unwrap();
    let stays = follow(usize::MAX);
    assert_eq!(commits.iter().take(2).count(), 2);
    drop(users);
    db.close().unwrap(); // does not wait for the client
    assert!(matches!(stays.join().unwrap(), Err(Error::OwnerClosed { .. })));
}
