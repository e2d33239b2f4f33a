//! Tasks that await commits: every task is woken.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use sheaf::{CommitFuture, Error};
use sheaf_platform::sync::{Condvar, Mutex};
use sheaf_sim::{CallClass, Fault, FaultKind};

use super::*;

/// Waker of a task with a thread of its own.
#[derive(Default)]
pub(super) struct TaskWaker {
    is_woken: Mutex<bool>,
    woken: Condvar,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        *self.is_woken.lock() = true;
        self.woken.notify_one();
    }
}

impl TaskWaker {
    pub(super) fn sleep(&self) {
        let mut is_woken = self.is_woken.lock();
        while !*is_woken {
            self.woken.wait(&mut is_woken);
        }
        *is_woken = false;
    }
}

/// Runs a future to its end. A waker that stays anywhere afterwards is a leak.
fn run_task(future: CommitFuture) -> sheaf::Result<()> {
    let task = Arc::new(TaskWaker::default());
    let result = {
        let (waker, mut future) = (Waker::from(Arc::clone(&task)), pin!(future));
        loop {
            match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(result) => break result,
                Poll::Pending => task.sleep(),
            }
        }
    };
    assert_eq!(Arc::strong_count(&task), 1, "a waker is left");
    result
}

fn submit(keyspace: &Keyspace, key: &str) -> sheaf::Result<CommitFuture> {
    Ok(keyspace.submit_insert(key, "x", Durability::Sync)?.into_future())
}

/// Starts `tasks` threads with a task each, and runs the rounds of the sync thread until all have
/// ended.
fn with_sync_thread(db: &Database, tasks: Vec<Box<dyn FnOnce() + Send>>) {
    let running = Arc::new(AtomicUsize::new(tasks.len()));
    let mut threads = Vec::new();
    for task in tasks {
        let running = Arc::clone(&running);
        threads.push(spawn(move || {
            task();
            running.fetch_sub(1, Ordering::SeqCst);
        }));
    }
    while running.load(Ordering::SeqCst) > 0 {
        let _ = db.pump();
        sheaf_platform::sync::thread::yield_now();
    }
    join(threads);
}

fn tasks_and_a_thread(engine: &str) {
    let machine = ModelMachine::default();
    let db = machine.open();
    let keyspace = open_keyspace(&db, "a", engine);
    let mut tasks: Vec<Box<dyn FnOnce() + Send>> = Vec::new();
    for task in 0..2 {
        let (db, keyspace) = (db.clone(), keyspace.clone());
        tasks.push(Box::new(move || {
            let commit =
                keyspace.submit_insert(format!("{task}"), "x", Durability::Sync).expect("it commits");
            run_task((&commit).into_future()).expect("it is durable");
            assert!(commit.is_durable() && db.stats().durable_seq >= commit.seq());
        }));
    }
    let writer = (db.clone(), keyspace.clone());
    tasks.push(Box::new(move || insert_durably(&writer.0, &writer.1, "thread", "x")));
    with_sync_thread(&db, tasks);
}

#[test]
fn a_waker_inserted_while_a_round_ends_is_called() {
    on_every_engine(400, tasks_and_a_thread);
}

fn dropped_futures(engine: &str) {
    let machine = ModelMachine::default();
    let db = machine.open();
    let keyspace = open_keyspace(&db, "a", engine);
    let mut tasks: Vec<Box<dyn FnOnce() + Send>> = Vec::new();
    for task in 0..2 {
        let keyspace = keyspace.clone();
        tasks.push(Box::new(move || {
            let waker = Arc::new(TaskWaker::default());
            let mut future = submit(&keyspace, &format!("{task}")).expect("it commits");
            let context = Waker::from(Arc::clone(&waker));
            let _ = pin!(&mut future).poll(&mut Context::from_waker(&context));
            drop((context, future));
            // The sync thread may be calling it.
            while Arc::strong_count(&waker) > 1 {
                sheaf_platform::sync::thread::yield_now();
            }
        }));
    }
    let other = keyspace.clone();
    tasks.push(Box::new(move || {
        run_task(submit(&other, "kept").expect("it commits")).expect("it is durable");
    }));
    with_sync_thread(&db, tasks);
    db.persist().expect("it syncs");
    for key in ["0", "1", "kept"] {
        assert!(keyspace.contains_key(key).expect("it reads"), "the commit of a dropped future stays");
    }
}

#[test]
fn a_dropped_future_leaves_no_waker_and_loses_no_commit() {
    on_every_engine(400, dropped_futures);
}

fn tasks_and_a_failed_sync(engine: &str, nth: u64) {
    let machine = ModelMachine::default();
    let db = machine.open();
    let keyspace = open_keyspace(&db, "a", engine);
    machine.disk.set_faults(Fault::new(CallClass::Sync, FaultKind::Io).on(".seg").nth(nth));
    let mut tasks: Vec<Box<dyn FnOnce() + Send>> = Vec::new();
    for task in 0..3 {
        let (db, keyspace, disk) = (db.clone(), keyspace.clone(), machine.disk.clone());
        tasks.push(Box::new(move || {
            for round in 0..2 {
                // A commit may fail too, with the error of a segment that it waits for.
                let Ok(commit) = submit(&keyspace, &format!("{task}.{round}")) else {
                    assert!(disk.injected() > 0);
                    return;
                };
                if let Err(error) = run_task(commit) {
                    assert!(matches!(error, Error::Poisoned { .. }), "{error}");
                    assert!(disk.injected() > 0 && db.stats().poisoned.is_some());
                    return;
                }
            }
            assert!(db.stats().durable_seq >= 2);
        }));
    }
    with_sync_thread(&db, tasks);
}

/// (Fails if a poll does not look at the health of the store again after it has inserted its
/// waker.)
#[test]
fn a_failed_sync_reaches_every_task() {
    for nth in [1, 2] {
        explore(300, move || tasks_and_a_failed_sync("flat", nth));
        explore(60, move || tasks_and_a_failed_sync("flex", nth));
    }
}

fn tasks_and_a_close(engine: &str) {
    let machine = ModelMachine::default();
    let db = machine.open();
    let keyspace = open_keyspace(&db, "a", engine);
    let tasks = (0..2).map(|task| {
        let keyspace = keyspace.clone();
        spawn(move || {
            // A commit after the last round of the close is in the kernel and not durable.
            let ended = submit(&keyspace, &format!("{task}")).and_then(run_task);
            assert!(matches!(ended, Ok(()) | Err(Error::Closed)), "{ended:?}");
        })
    });
    let tasks: Vec<_> = tasks.collect();
    db.close().expect("it closes");
    join(tasks);
}

#[test]
fn a_close_wakes_every_task() {
    on_every_engine(400, tasks_and_a_close);
}
