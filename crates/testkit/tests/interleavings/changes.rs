//! Consumers of the change feed that wait: every one is woken, and gets every commit once.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use sheaf::{ChangeKind, Changes, Error};
use sheaf_testkit::replica::keep_all_changes;

use super::tasks::TaskWaker;
use super::*;

const COMMITS: usize = 3;

fn open(machine: &ModelMachine) -> Database {
    machine.builder().retain_changes(keep_all_changes()).open("/db").expect("it opens")
}

fn keys(commit: &sheaf::CommittedChanges) -> Vec<String> {
    let key = |change: &sheaf::Change| match &change.kind {
        ChangeKind::Put { key, .. } => String::from_utf8_lossy(key).into_owned(),
        other => format!("{other:?}"),
    };
    commit.changes.iter().map(key).collect()
}

/// Starts two writers and a consumer, which must get all commits.
fn consumer_and_writers(engine: &str, is_durable: bool, consume: fn(&mut Changes) -> Vec<String>) {
    let machine = ModelMachine::default();
    let db = open(&machine);
    let keyspace = open_keyspace(&db, "a", engine);
    let from = db.newest_change().expect("changes are retained");
    let mut changes = db.changes(from).expect("the position is present");
    if !is_durable {
        changes = changes.include_unsynced();
    }
    let consumer = spawn(move || {
        let mut found = Vec::new();
        while found.len() < COMMITS {
            found.extend(consume(&mut changes));
        }
        found.sort();
        assert_eq!(found, ["0", "1", "2"]);
    });
    let writers = [0..2, 2..COMMITS].map(|numbers| {
        let (db, keyspace) = (db.clone(), keyspace.clone());
        spawn(move || {
            for number in numbers {
                match is_durable {
                    true => insert_durably(&db, &keyspace, &number.to_string(), "x"),
                    false => keyspace.insert(number.to_string(), "x").expect("it commits"),
                }
            }
        })
    });
    join(writers);
    join([consumer]);
}

fn blocking(changes: &mut Changes) -> Vec<String> {
    keys(&changes.next().expect("the database is open").expect("the feed is readable"))
}

fn as_a_task(changes: &mut Changes) -> Vec<String> {
    let task = Arc::new(TaskWaker::default());
    {
        let (waker, mut ready) = (Waker::from(Arc::clone(&task)), pin!(changes.ready()));
        while let Poll::Pending = ready.as_mut().poll(&mut Context::from_waker(&waker)) {
            task.sleep();
        }
    }
    let found = changes.try_next().expect("the feed is readable");
    found.map(|commit| keys(&commit)).unwrap_or_default()
}

#[test]
fn a_consumer_of_durable_changes_is_woken() {
    on_every_engine(300, |engine| consumer_and_writers(engine, true, blocking));
}

#[test]
fn a_consumer_of_visible_changes_is_woken() {
    on_every_engine(300, |engine| consumer_and_writers(engine, false, blocking));
}

#[test]
fn a_task_that_waits_for_changes_is_woken() {
    on_every_engine(200, |engine| consumer_and_writers(engine, true, as_a_task));
    on_every_engine(200, |engine| consumer_and_writers(engine, false, as_a_task));
}

fn consumer_and_close(engine: &str) {
    let machine = ModelMachine::default();
    let db = open(&machine);
    let keyspace = open_keyspace(&db, "a", engine);
    let mut changes = db.changes(db.newest_change().expect("changes are retained")).expect("it is present");
    let consumer = spawn(move || {
        while let Some(commit) = changes.next() {
            match commit {
                Ok(commit) => assert_eq!(keys(&commit), ["key"]),
                Err(error) => assert!(matches!(error, Error::Closed), "{error}"),
            }
        }
    });
    insert_durably(&db, &keyspace, "key", "x");
    drop(keyspace);
    db.close().expect("it closes");
    join([consumer]);
}

#[test]
fn a_close_ends_the_consumers() {
    on_every_engine(200, consumer_and_close);
}
