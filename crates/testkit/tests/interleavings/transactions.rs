//! Transactions next to other commits (decisions/0051, scenario W42).

use std::sync::Mutex;

use sheaf::Error;

use super::committing::open_on_a_slow_disk;
use super::*;

/// Commits by their seqs; the flag tells whether the commit required an empty keyspace.
type Commits = Arc<Mutex<Vec<(u64, bool)>>>;

fn record(commits: &Commits, seq: u64, required_empty: bool) {
    commits.lock().expect("one holder").push((seq, required_empty));
}

/// Two transactions insert a key if they find no key at all, next to a writer without a
/// transaction. A transaction that commits is the first commit of all.
fn at_most_one_finds_the_keyspace_empty(engine: &str) {
    let machine = ModelMachine::default();
    let db = open_on_a_slow_disk(&machine);
    let keyspace = open_keyspace(&db, "a", engine);
    let commits = Commits::default();
    let insert_if_empty = |name: &'static str| {
        let (db, keyspace, commits) = (db.clone(), keyspace.clone(), Arc::clone(&commits));
        spawn(move || {
            let tx = db.transaction().expect("it begins");
            match tx.is_empty(&keyspace) {
                Ok(true) => {}
                Ok(false) | Err(Error::Conflict { .. }) => return,
                Err(other) => panic!("{other}"),
            }
            tx.insert(&keyspace, name, "").expect("it inserts");
            match tx.submit() {
                Ok(ticket) => record(&commits, ticket.seq(), true),
                Err(Error::Conflict { .. }) => {}
                Err(other) => panic!("{other}"),
            }
        })
    };
    let writer = {
        let (db, keyspace, commits) = (db.clone(), keyspace.clone(), Arc::clone(&commits));
        spawn(move || {
            // Not all of these keys share their stripe with the key of a transaction.
            for name in ["p", "q", "r"] {
                let mut batch = db.batch();
                batch.insert(&keyspace, name, "");
                record(&commits, batch.submit().expect("it commits").seq(), false);
            }
        })
    };
    join([insert_if_empty("ada"), insert_if_empty("alan"), writer]);
    let mut commits = std::mem::take(&mut *commits.lock().expect("one holder"));
    commits.sort_unstable();
    assert!(commits[1..].iter().all(|(_, required_empty)| !required_empty), "{engine}: {commits:?}");
    assert_eq!(keyspace.len().expect("it counts"), commits.len() as u64);
}

/// Transactions that read and write two keys, next to updates of one of them.
fn transactions_and_updates_all_count(engine: &str) {
    const ROUNDS: u8 = 2;
    let machine = ModelMachine::default();
    let db = open_on_a_slow_disk(&machine);
    let keyspace = open_keyspace(&db, "a", engine);
    for name in ["x", "y"] {
        keyspace.insert(name, [0]).expect("it inserts");
    }
    let moves = |from: &'static str, to: &'static str| {
        let (db, keyspace) = (db.clone(), keyspace.clone());
        spawn(move || {
            for _ in 0..ROUNDS {
                loop {
                    let tx = db.transaction().expect("it begins");
                    let read = |name| tx.get(&keyspace, name).expect("it reads").map_or(0, |value| value[0]);
                    let (left, right) = (read(from), read(to));
                    tx.insert(&keyspace, from, [left.wrapping_sub(1)]).expect("it inserts");
                    tx.insert(&keyspace, to, [right.wrapping_add(1)]).expect("it inserts");
                    match tx.commit() {
                        Ok(()) => break,
                        Err(Error::Conflict { .. }) => sheaf_platform::sync::thread::yield_now(),
                        Err(other) => panic!("{other}"),
                    }
                }
            }
        })
    };
    let updates = {
        let keyspace = keyspace.clone();
        spawn(move || {
            for _ in 0..ROUNDS {
                let add = |old: Option<&[u8]>| Some(vec![old.map_or(0, |old| old[0]).wrapping_add(10)]);
                keyspace.update("x", add).expect("it updates");
            }
        })
    };
    join([moves("x", "y"), moves("y", "x"), updates]);
    let values = ["x", "y"].map(|name| keyspace.get(name).expect("it reads").map(|value| value[0]));
    assert_eq!(values, [Some(10 * ROUNDS), Some(0)], "{engine}");
}

#[test]
fn at_most_one_transaction_finds_a_keyspace_empty() {
    on_every_engine(1_000, at_most_one_finds_the_keyspace_empty);
}

#[test]
fn transactions_next_to_updates_all_count() {
    on_every_engine(300, transactions_and_updates_all_count);
}
