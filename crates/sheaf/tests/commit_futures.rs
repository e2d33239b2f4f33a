//! Commit futures on the real disk, with the background threads of a database and without a
//! runtime.

#![allow(clippy::disallowed_methods, reason = "waits for threads of the database in real time")]

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use sheaf::{Database, Durability, Error, Keyspace, KeyspaceOptions};
use sheaf_sim::{CallClass, Fault, FaultKind, SimDisk};

/// Waker that wakes the thread that created it.
struct ThreadWaker {
    thread: std::thread::Thread,
    calls: AtomicUsize,
}

impl ThreadWaker {
    fn new() -> Arc<ThreadWaker> {
        Arc::new(ThreadWaker { thread: std::thread::current(), calls: AtomicUsize::new(0) })
    }
}

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.thread.unpark();
    }
}

/// Opens a database with an interval of syncs that is too long for these tests.
fn open(dir: &tempfile::TempDir) -> (Database, Keyspace) {
    let builder = Database::builder().sync_interval(Duration::from_secs(3600));
    let db = builder.open(dir.path()).expect("it opens");
    let users = db.keyspace("users", KeyspaceOptions::default()).expect("it opens");
    (db, users)
}

fn submit(users: &Keyspace, key: usize) -> sheaf::CommitTicket {
    users.submit_insert(key.to_be_bytes(), "x", Durability::Sync).expect("it commits")
}

#[test]
fn a_pending_future_requests_a_round_at_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let (db, users) = open(&dir);
    for key in 0..20 {
        pollster::block_on(submit(&users, key).into_future()).expect("it is durable");
    }
    let buffered = users.submit_insert("b", "x", Durability::Buffer).expect("it commits");
    pollster::block_on(async { (&buffered).await }).expect("it is in the kernel");
    assert!(!buffered.is_durable());
    pollster::block_on(buffered.durable()).expect("it is durable");
    assert!(buffered.is_durable());
    db.close().expect("it closes");
}

#[test]
fn many_futures_of_one_thread_share_few_rounds() {
    let dir = tempfile::tempdir().expect("a directory");
    let (db, users) = open(&dir);
    let commits: Vec<_> = (0..500).map(|key| submit(&users, key)).collect();
    let rounds = db.stats().sync_rounds;
    let task = ThreadWaker::new();
    let waker = Waker::from(Arc::clone(&task));
    let mut futures: Vec<_> = commits.iter().map(|commit| Box::pin(commit.into_future())).collect();
    while !futures.is_empty() {
        futures.retain_mut(|future| {
            future
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .map(|done| done.expect("a sync"))
                .is_pending()
        });
        if !futures.is_empty() {
            std::thread::park_timeout(Duration::from_secs(10));
        }
    }
    let rounds = db.stats().sync_rounds - rounds;
    assert!(commits.iter().all(sheaf::CommitTicket::is_durable));
    assert!(rounds <= 20, "{rounds} rounds for 500 futures");
    drop(waker);
    db.close().expect("it closes");
    assert_eq!(Arc::strong_count(&task), 1, "a waker is left");
}

#[test]
fn a_dropped_future_leaves_no_waker_and_loses_no_commit() {
    let dir = tempfile::tempdir().expect("a directory");
    let (db, users) = open(&dir);
    let task = ThreadWaker::new();
    let waker = Waker::from(Arc::clone(&task));
    for key in 0..200 {
        let mut future = pin!(submit(&users, key).into_future());
        let _ = future.as_mut().poll(&mut Context::from_waker(&waker));
    }
    drop(waker);
    let began = Instant::now();
    while Arc::strong_count(&task) > 1 {
        assert!(began.elapsed() < Duration::from_secs(10), "a waker is left");
        std::thread::yield_now();
    }
    db.close().expect("it closes");
    let (db, users) = open(&dir);
    assert_eq!(users.len().expect("it counts"), 200);
    db.close().expect("it closes");
}

#[test]
fn a_waker_may_drop_the_last_handle_of_the_database() {
    struct Owner(std::sync::Mutex<Option<(Database, Keyspace)>>);
    impl Wake for Owner {
        fn wake(self: Arc<Self>) {
            drop(self.0.lock().expect("no panic").take());
        }
    }
    let dir = tempfile::tempdir().expect("a directory");
    let (db, users) = open(&dir);
    let mut future = Box::pin(submit(&users, 1).into_future());
    let owner = Arc::new(Owner(std::sync::Mutex::new(Some((db, users)))));
    let waker = Waker::from(Arc::clone(&owner));
    let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(matches!(polled, Poll::Pending | Poll::Ready(Ok(()))));
    drop(future);
    drop(waker);
    drop(owner);
    let began = Instant::now();
    let db = loop {
        match Database::open(dir.path()) {
            Ok(db) => break db,
            Err(error) => assert!(began.elapsed() < Duration::from_secs(20), "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(
        db.keyspace("users", KeyspaceOptions::default()).expect("it opens").len().expect("it counts"),
        1
    );
}

#[test]
fn a_future_of_a_closed_database_is_ready() {
    let dir = tempfile::tempdir().expect("a directory");
    let (db, users) = open(&dir);
    let commit = submit(&users, 1);
    db.close().expect("it closes");
    pollster::block_on(commit.into_future()).expect("the close made it durable");
}

#[test]
fn a_failed_sync_reaches_every_future() {
    let disk = SimDisk::new();
    let builder = Database::builder().disk(Arc::new(disk.clone())).sync_interval(Duration::from_secs(3600));
    let db = builder.open("/db").expect("it opens");
    let users = db.keyspace("users", KeyspaceOptions::default()).expect("it opens");
    let commits: Vec<_> = (0..50).map(|key| submit(&users, key)).collect();
    disk.set_faults(Fault::new(CallClass::Sync, FaultKind::Io));
    std::thread::scope(|scope| {
        for commit in &commits {
            scope.spawn(move || {
                let failed = pollster::block_on(commit.into_future());
                assert!(matches!(failed, Err(Error::Poisoned { .. })), "{failed:?}");
            });
        }
    });
    assert!(commits.iter().all(|commit| !commit.is_durable()));
    let later = pollster::block_on(commits[0].durable());
    assert!(matches!(later, Err(Error::Poisoned { .. })), "{later:?}");
}
