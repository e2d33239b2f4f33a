//! # Concurrency: many threads on one database

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use super::{bytes, get, key, pairs, sorted};
use crate::fixture::Fixture;
use crate::recording_disk::RecordingDisk;
use sheaf::{CommitTicket, Database, Durability, Error, Keyspace, Snapshot};

fn decode_number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

pub fn concurrent_pops_take_each_pair_once(fixture: &Fixture) {
    const PAIRS: usize = 200;
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "queue");
    if !ks.capabilities().unwrap().ordered {
        return;
    }
    (0..PAIRS).for_each(|n| ks.insert(key(n), "job").unwrap());
    let mut taken: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let ks = &ks;
                scope.spawn(move || {
                    let pop = || if thread % 2 == 0 { ks.pop_first() } else { ks.pop_last() };
                    std::iter::from_fn(|| pop().unwrap()).map(|(key, _)| key.to_vec()).collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    taken.sort();
    taken.dedup();
    assert_eq!(taken.len(), PAIRS);
    assert!(ks.is_empty().unwrap());
}

pub fn concurrent_updates_are_all_counted(fixture: &Fixture) {
    let db = fixture.open();
    let keyspaces = [fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b")];
    thread::scope(|scope| {
        for thread in 0..4usize {
            let keyspaces = &keyspaces;
            scope.spawn(move || {
                for index in 0..400 {
                    let add =
                        |old: Option<&[u8]>| Some((old.map_or(0, decode_number) + 1).to_le_bytes().to_vec());
                    keyspaces[index % 2].update(key((index / 2 + thread) % 3), add).unwrap();
                }
            });
        }
    });
    for ks in &keyspaces {
        let sum: u64 = sorted(ks).iter().map(|(_, value)| decode_number(value)).sum();
        assert_eq!(sum, 800);
    }
    drop(keyspaces);
    let db = fixture.kill_and_reopen(db);
    let sum: u64 = sorted(&fixture.keyspace(&db, "a")).iter().map(|(_, value)| decode_number(value)).sum();
    assert_eq!(sum, 800);
}

pub fn concurrent_swaps_are_all_counted(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    let failed = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..250 {
                    loop {
                        let old = get(&ks, "k");
                        // The first swap expects an absent key.
                        let new = old.as_deref().map_or(0, decode_number) + 1;
                        if ks.compare_and_swap("k", old.as_deref(), Some(&new.to_le_bytes())).unwrap() {
                            break;
                        }
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(decode_number(&get(&ks, "k").unwrap()), 1000, "{failed:?} swaps had to be tried again");
    // Every second successful swap of another key removes it: each inserted value is removed once.
    let (inserted, removed) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for worker in 0..4u64 {
            let (ks, inserted, removed) = (&ks, &inserted, &removed);
            scope.spawn(move || {
                for number in (0..100).map(|n| worker * 100 + n) {
                    loop {
                        let old = get(ks, "absent");
                        let bytes = number.to_le_bytes();
                        let new = old.is_none().then_some(&bytes[..]);
                        if ks.compare_and_swap("absent", old.as_deref(), new).unwrap() {
                            let (list, number) =
                                old.map_or((inserted, number), |old| (removed, decode_number(&old)));
                            list.lock().unwrap().push(number);
                            break;
                        }
                    }
                }
            });
        }
    });
    assert_eq!(get(&ks, "absent"), None);
    let numbers = [inserted, removed].map(|list| {
        let mut numbers = list.into_inner().unwrap();
        numbers.sort_unstable();
        numbers
    });
    assert_eq!(numbers[0].len(), 200);
    assert_eq!(numbers[0], numbers[1]);
}

pub fn transfers_keep_their_sum_in_every_snapshot(fixture: &Fixture) {
    const ACCOUNTS: usize = 8;
    let db = fixture.open();
    let banks = [fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b")];
    for account in 0..ACCOUNTS {
        banks[account % 2].insert(key(account), 100u64.to_le_bytes()).unwrap();
    }
    let sum = |snapshot: &Snapshot| -> (u64, u64) {
        let banks = ["a", "b"].map(|name| snapshot.keyspace(name).unwrap());
        let by_iter =
            banks.iter().flat_map(|bank| pairs(bank.iter().unwrap())).map(|(_, v)| decode_number(&v)).sum();
        let by_get =
            (0..ACCOUNTS).map(|a| banks[a % 2].get_with(key(a), decode_number).unwrap().unwrap()).sum();
        (by_iter, by_get)
    };
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let writers: Vec<_> = (0..3usize)
            .map(|thread| {
                let (db, banks) = (&db, &banks);
                scope.spawn(move || {
                    let mut conflicts = 0;
                    for round in 0..200usize {
                        let (from, to) = ((round + thread) % ACCOUNTS, (round * 3 + thread + 1) % ACCOUNTS);
                        if from == to {
                            continue;
                        }
                        loop {
                            let [a, b] =
                                [from, to].map(|account| get(&banks[account % 2], key(account)).unwrap());
                            let amount = decode_number(&a).min(7);
                            let mut batch = db.batch();
                            batch.expect_value(&banks[from % 2], key(from), Some(&a));
                            batch.expect_value(&banks[to % 2], key(to), Some(&b));
                            batch.insert(
                                &banks[from % 2],
                                key(from),
                                (decode_number(&a) - amount).to_le_bytes(),
                            );
                            batch.insert(&banks[to % 2], key(to), (decode_number(&b) + amount).to_le_bytes());
                            match batch.commit() {
                                Ok(()) => break,
                                Err(Error::Conflict { .. }) => conflicts += 1,
                                Err(other) => panic!("{other}"),
                            }
                        }
                    }
                    conflicts
                })
            })
            .collect();
        let reader = scope.spawn(|| {
            let mut checks = 0;
            while !done.load(Ordering::Relaxed) || checks < 20 {
                let snapshot = db.snapshot().unwrap();
                let expected = ACCOUNTS as u64 * 100;
                assert_eq!(sum(&snapshot), (expected, expected), "at {}", snapshot.seq());
                thread::yield_now();
                assert_eq!(sum(&snapshot), (expected, expected), "at {}, a second time", snapshot.seq());
                checks += 1;
            }
        });
        for writer in writers {
            let conflicts: u64 = writer.join().unwrap();
            assert!(conflicts < 1_000_000);
        }
        done.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
}

pub fn reads_of_one_thread_are_monotonic(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    ks.insert("k", 0u64.to_le_bytes()).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for reader in 0..2 {
            let (ks, db, done) = (&ks, &db, &done);
            scope.spawn(move || {
                let mut last = 0;
                while !done.load(Ordering::Relaxed) {
                    let seen = match reader {
                        0 => decode_number(&get(ks, "k").unwrap()),
                        _ => decode_number(
                            &db.snapshot().unwrap().keyspace("a").unwrap().get("k").unwrap().unwrap(),
                        ),
                    };
                    assert!(seen >= last, "{seen} after {last}");
                    last = seen;
                }
            });
        }
        for value in 1..3000u64 {
            ks.insert("k", value.to_le_bytes()).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
}

pub fn tickets_of_many_threads_become_durable_in_order(fixture: &Fixture) {
    let db = fixture.open();
    let keyspaces = [fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b")];
    let submit = |thread: usize| -> Vec<CommitTicket> {
        let mut tickets: Vec<CommitTicket> = Vec::new();
        for index in 0..100 {
            let mut batch = db.batch();
            batch.insert(&keyspaces[(index + thread) % 2], key(index), thread.to_le_bytes());
            let ticket = batch.submit().unwrap();
            assert!(tickets.last().is_none_or(|last| last.seq() < ticket.seq()));
            tickets.push(ticket);
        }
        tickets
    };
    let mut tickets: Vec<CommitTicket> = thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|thread| scope.spawn(move || submit(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    tickets.sort_by_key(CommitTicket::seq);
    assert!(tickets.windows(2).all(|pair| pair[0].seq() < pair[1].seq()), "every commit has its own number");
    tickets[199].wait_durable().unwrap();
    assert!(tickets[..200].iter().all(CommitTicket::is_durable));
    tickets[399].wait_durable().unwrap();
    assert!(tickets.iter().all(CommitTicket::is_durable));
}

pub fn durable_writers_share_sync_rounds(fixture: &Fixture) {
    let db = fixture.builder().durability(Durability::Sync).open(fixture.path()).unwrap();
    let ks = fixture.keyspace(&db, "a");
    thread::scope(|scope| {
        for thread in 0..8 {
            let ks = &ks;
            scope.spawn(move || {
                for index in 0..25 {
                    ks.insert(format!("{thread}-{index}"), "v").unwrap();
                }
            });
        }
    });
    let stats = db.stats();
    assert_eq!(ks.len().unwrap(), 200);
    assert!(stats.durable_seq >= stats.visible_seq, "everything acknowledged is durable");
    assert!(stats.sync_rounds > 0 && stats.sync_waits > 0, "{stats:?}");
}

pub fn iterators_are_not_affected_by_concurrent_writes(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    for index in 0..200 {
        ks.insert(key(index), 0u64.to_le_bytes()).unwrap();
    }
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            // A commit writes one number to every key, so that a consistent view has one number.
            for round in 1..60u64 {
                let mut batch = db.batch();
                for index in 0..200 {
                    batch.insert(&ks, key(index), round.to_le_bytes());
                }
                batch.commit().unwrap();
            }
            done.store(true, Ordering::Relaxed);
        });
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let mut all: Vec<u64> =
                        pairs(ks.iter().unwrap()).iter().map(|(_, v)| decode_number(v)).collect();
                    assert_eq!(all.len(), 200);
                    all.dedup();
                    assert_eq!(all.len(), 1, "numbers of several commits in one view: {all:?}");
                }
            });
        }
    });
}

pub fn writers_continue_during_a_clear(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let work = |ks: Keyspace| {
            let mut count = 0usize;
            while !done.load(Ordering::Relaxed) {
                let name = key(count % 10);
                ks.insert(&name, "v").expect("insert during a clear");
                ks.get(&name).expect("get during a clear");
                ks.update(&name, |_| Some(b"w".to_vec())).expect("update during a clear");
                let mut batch = db.batch();
                batch.insert(&ks, &name, "x").expect_value(&ks, "never there", None);
                batch.commit().expect("batch during a clear");
                assert!(ks.iter().expect("iterator during a clear").all(|pair| pair.is_ok()));
                ks.remove(&name).expect("remove during a clear");
                count += 1;
            }
        };
        for _ in 0..2 {
            let ks = fixture.keyspace(&db, "a");
            scope.spawn(move || work(ks));
        }
        for _ in 0..30 {
            let cleared = ks.clear();
            if cleared.is_err() {
                done.store(true, Ordering::Relaxed);
            }
            cleared.expect("clear during writes");
        }
        done.store(true, Ordering::Relaxed);
    });
}

pub fn readers_and_writers_survive_a_drop(fixture: &Fixture) {
    let db = fixture.open();
    thread::scope(|scope| {
        for round in 0..10 {
            let ks = fixture.keyspace(&db, "a");
            for index in 0..50 {
                ks.insert(key(index), "v").unwrap();
            }
            let reader = scope.spawn({
                let ks = ks.clone();
                move || loop {
                    match ks.iter().map(pairs) {
                        Ok(all) => assert_eq!(all.len(), 50, "a view shows all of it or nothing"),
                        Err(Error::KeyspaceNotFound { .. }) => break,
                        Err(other) => panic!("{other}"),
                    }
                }
            });
            let writer = scope.spawn(move || {
                loop {
                    match ks.insert(key(7), "w") {
                        Ok(()) => {}
                        Err(Error::KeyspaceNotFound { .. }) => break,
                        Err(other) => panic!("{other}"),
                    }
                }
            });
            thread::yield_now();
            assert!(db.drop_keyspace("a").unwrap(), "round {round}");
            reader.join().unwrap();
            writer.join().unwrap();
        }
    });
    assert!(db.keyspaces().is_empty());
}

pub fn compaction_during_writes_loses_no_data(fixture: &Fixture) {
    const KEYS: usize = 200;
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let writers: Vec<_> = (0..2usize)
            .map(|thread| {
                let ks = &ks;
                scope.spawn(move || {
                    for index in 0..1500usize {
                        let add = |old: Option<&[u8]>| {
                            Some((old.map_or(0, decode_number) + 1).to_le_bytes().to_vec())
                        };
                        ks.update(key((index * 37 + thread) % KEYS), add).unwrap();
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                match ks.compact() {
                    Ok(_) => {}
                    Err(Error::Unsupported { .. }) => return,
                    Err(error) => panic!("{error}"),
                }
            }
        });
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        is_over.store(true, Ordering::Relaxed);
    });
    let sum = |ks: &Keyspace| -> u64 { sorted(ks).iter().map(|(_, value)| decode_number(value)).sum() };
    assert_eq!(sum(&ks), 3000);
    drop(ks);
    let db = fixture.kill_and_reopen(db);
    assert_eq!(sum(&fixture.keyspace(&db, "a")), 3000);
}

/// Writes values of all kinds: in the log, in packs, and as blobs.
fn churn(ks: &Keyspace, fixture: &Fixture, round: usize) -> sheaf::Result<()> {
    for index in 0..60usize {
        let number = round * 60 + index;
        let len = if number.is_multiple_of(23) {
            fixture.setting.blob_threshold() + number % 400
        } else {
            number % 300
        };
        match number % 17 {
            0 => ks.remove(key(number * 7 % 400))?,
            _ => ks.insert(key(number * 7 % 400), bytes(len, number as u64))?,
        };
    }
    Ok(())
}

/// Commits until a checkpoint that began after this call has ended, then reads the figures.
fn commit_until_checkpoint(db: &Database, ks: &Keyspace, fixture: &Fixture, round: usize) {
    let two_more = db.stats().checkpoints + 2;
    for step in 0.. {
        churn(ks, fixture, round * 1000 + step).unwrap();
        if db.stats().checkpoints >= two_more {
            break;
        }
        db.persist().unwrap();
    }
    ks.stats().unwrap();
}

pub fn commits_and_checkpoints_continue_during_verification(fixture: &Fixture) {
    let recording_disk = RecordingDisk::new(Arc::clone(fixture.disk()));
    let open = || fixture.builder_on(Arc::new(recording_disk.clone())).open(fixture.path()).unwrap();
    let db = open();
    let ks = fixture.keyspace(&db, "a");
    (0..40).for_each(|round| churn(&ks, fixture, round).unwrap());
    drop(ks);
    db.close().unwrap();
    let db = open(); // with cold caches
    let ks = fixture.keyspace(&db, "a");
    commit_until_checkpoint(&db, &ks, fixture, 1);

    // The verifying thread's first read of each kind of file waits until the other thread has
    // continued.
    let (reads, read) = mpsc::channel();
    let verifying = thread::current().id();
    let seen: Mutex<BTreeSet<String>> = Mutex::default();
    recording_disk.on_read(move |path| {
        let kind: String = path.to_string_lossy().chars().filter(|c| !c.is_ascii_hexdigit()).collect();
        if thread::current().id() == verifying && seen.lock().unwrap().insert(kind) {
            let (goes_on, gone_on) = mpsc::channel();
            if reads.send(goes_on).is_err() {
                return; // the other thread has ended
            }
            let waited = gone_on.recv_timeout(Duration::from_secs(60));
            assert!(waited.is_ok(), "no progress while {} is read", path.display());
        }
    });
    let (theirs, others) = (db.clone(), ks.clone());
    thread::scope(|scope| {
        scope.spawn(move || {
            for (round, goes_on) in read.iter().enumerate() {
                commit_until_checkpoint(&theirs, &others, fixture, 2 + round);
                if goes_on.send(()).is_err() {
                    return; // the verifying thread timed out and reports it
                }
            }
        });
        let report = db.verify(|finding| panic!("{finding}"));
        recording_disk.on_read(|_| ()); // drops the sender, which ends the other thread
        assert_eq!(report.unwrap().findings, 0);
    });
}

pub fn verification_during_writes_finds_no_damage(fixture: &Fixture) {
    let db = fixture.open();
    let keyspaces = [fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b")];
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for (number, ks) in keyspaces.iter().enumerate() {
            let is_over = &is_over;
            scope.spawn(move || {
                for round in 0.. {
                    churn(ks, fixture, round * 3 + number).unwrap();
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        let verified = (0..20).try_for_each(|_| {
            let mut found = Ok(());
            db.verify(|finding| found = Err(finding)).and(found)
        });
        is_over.store(true, Ordering::Relaxed);
        verified.unwrap();
    });
}
