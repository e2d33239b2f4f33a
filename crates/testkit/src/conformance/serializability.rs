//! # Serializability: histories of concurrent transactions
//!
//! Threads run random transactions over few keys of two engines, next to writers without
//! transactions. All values differ. The transactions that committed are then replayed in the order
//! of their commits.

use std::collections::BTreeMap;

use super::sorted;
use crate::crash::workload::TestRandom;
use crate::fixture::Fixture;
use sheaf::{Database, Error, Keyspace, Transaction};

fn key(number: usize) -> Vec<u8> {
    super::key(number).into_bytes()
}

/// One call of a transaction and its result.
enum Event {
    Get(usize, Vec<u8>, Option<Vec<u8>>),
    Scan(usize, (usize, usize), Vec<(Vec<u8>, Vec<u8>)>),
    Write(usize, Vec<u8>, Option<Vec<u8>>),
}

/// A committed transaction. If it wrote nothing, it is at the state after `seq`.
struct Committed {
    seq: u64,
    events: Vec<Event>,
    has_writes: bool,
}

const HISTORY_KEYS: usize = 6;

/// Runs one random transaction. Returns its events, and whether it wrote.
fn random_events(
    tx: &Transaction,
    (spaces, marker): (&[Keyspace; 2], &Keyspace),
    random: &mut TestRandom,
    stamp: &mut u64,
) -> sheaf::Result<(Vec<Event>, bool)> {
    let (mut events, mut has_writes) = (Vec::new(), false);
    for _ in 0..1 + random.index_below(5) {
        let (space, k) = (random.index_below(2), key(random.index_below(HISTORY_KEYS)));
        match random.index_below(6) {
            0 | 1 => {
                let value = tx.get(&spaces[space], &k)?.map(|value| value.to_vec());
                events.push(Event::Get(space, k, value));
            }
            2 if spaces[space].capabilities()?.ordered => {
                let (low, high) = (random.index_below(HISTORY_KEYS), random.index_below(HISTORY_KEYS + 1));
                let range = tx.range(&spaces[space], key(low)..key(high.max(low)))?;
                let pairs = range.map(|pair| pair.map(|(k, v)| (k.to_vec(), v.to_vec())));
                events.push(Event::Scan(space, (low, high.max(low)), pairs.collect::<sheaf::Result<_>>()?));
            }
            2 => {
                let mut pairs = tx
                    .iter(&spaces[space])?
                    .map(|pair| pair.map(|(k, v)| (k.to_vec(), v.to_vec())))
                    .collect::<sheaf::Result<Vec<_>>>()?;
                pairs.sort();
                events.push(Event::Scan(space, (0, HISTORY_KEYS), pairs));
            }
            3 => {
                tx.remove(&spaces[space], &k)?;
                has_writes = true;
                events.push(Event::Write(space, k, None));
            }
            _ => {
                *stamp += 1;
                let value = stamp.to_le_bytes().to_vec();
                tx.insert(&spaces[space], &k, &value)?;
                has_writes = true;
                events.push(Event::Write(space, k, Some(value)));
            }
        }
    }
    if has_writes {
        // Ensures that the commit has a seq of its own, even if it only removes missing keys.
        *stamp += 1;
        tx.insert(marker, stamp.to_le_bytes(), "")?;
    }
    Ok((events, has_writes))
}

fn run_history(
    db: &Database,
    spaces: &[Keyspace; 2],
    marker: &Keyspace,
    threads: u64,
    seed: u64,
) -> (Vec<Committed>, u64) {
    const TRANSACTIONS: u64 = 480;
    let work = |thread: u64| {
        let (mut random, mut stamp) = (TestRandom::new(seed + thread), thread << 32);
        let (mut committed, mut conflicts) = (Vec::new(), 0);
        for round in 0..TRANSACTIONS / threads {
            if round % 4 == 3 {
                // A writer without a transaction.
                stamp += 1;
                let (space, k, value) =
                    (random.index_below(2), key(random.index_below(HISTORY_KEYS)), stamp.to_le_bytes());
                let mut batch = db.batch();
                batch.insert(&spaces[space], &k, value);
                let events = vec![Event::Write(space, k, Some(value.to_vec()))];
                committed.push(Committed { seq: batch.submit().unwrap().seq(), events, has_writes: true });
                continue;
            }
            let tx = db.transaction().unwrap();
            let answer = random_events(&tx, (spaces, marker), &mut random, &mut stamp);
            let answer = answer.and_then(|(events, has_writes)| {
                Ok(Committed { seq: tx.submit()?.seq(), events, has_writes })
            });
            match answer {
                Ok(one) => committed.push(one),
                Err(Error::Conflict { .. }) => conflicts += 1,
                Err(other) => panic!("{other:?}"),
            }
        }
        (committed, conflicts)
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        let mut all = (Vec::new(), 0);
        for worker in workers {
            let (committed, conflicts) = worker.join().unwrap();
            all.0.extend(committed);
            all.1 += conflicts;
        }
        all
    })
}

/// Replays the transactions in the order of their commits. This is the serial order that the
/// database claims, so each read must return the value in the replay. A history without such an
/// order has a cycle of dependencies.
fn check_history(mut history: Vec<Committed>) -> [BTreeMap<Vec<u8>, Vec<u8>>; 2] {
    // A transaction that only reads follows the commit that it saw last.
    history.sort_by_key(|one| (one.seq, !one.has_writes));
    let mut state: [BTreeMap<Vec<u8>, Vec<u8>>; 2] = Default::default();
    for one in &history {
        for event in &one.events {
            match event {
                Event::Get(space, key, value) => {
                    assert_eq!(state[*space].get(key), value.as_ref(), "commit {}", one.seq);
                }
                Event::Scan(space, (low, high), pairs) => {
                    let range = state[*space].range(key(*low)..key(*high));
                    let expected: Vec<_> = range.map(|(k, v)| (k.clone(), v.clone())).collect();
                    assert_eq!(pairs, &expected, "commit {}, keys {low}..{high}", one.seq);
                }
                Event::Write(space, key, Some(value)) => {
                    state[*space].insert(key.clone(), value.clone());
                }
                Event::Write(space, key, None) => {
                    state[*space].remove(key);
                }
            }
        }
    }
    state
}

pub fn concurrent_transactions_are_serializable(fixture: &Fixture) {
    for (round, threads) in [2u64, 4, 8, 16].into_iter().enumerate() {
        let db = fixture.open();
        let spaces = [fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b")];
        spaces.iter().for_each(|space| space.clear().unwrap());
        let (history, conflicts) =
            run_history(&db, &spaces, &fixture.keyspace(&db, "markers"), threads, 1000 * round as u64);
        assert!(history.len() > 100, "{} committed, {conflicts} conflicts", history.len());
        let state = check_history(history);
        let seen = [0, 1].map(|space| sorted(&spaces[space]));
        assert_eq!(seen, state.map(|map| map.into_iter().collect::<Vec<_>>()));
        drop(spaces);
        db.close().unwrap();
    }
}
