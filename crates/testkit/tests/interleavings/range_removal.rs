//! Removals of ranges next to other commits (decisions/0053, scenario W44).

use std::sync::Mutex;

use sheaf::Error;

use super::committing::open_on_a_slow_disk;
use super::*;

/// Seqs of the puts of a key, and of the removals of its range.
type Seqs = Arc<Mutex<[Vec<u64>; 2]>>;

/// Puts of a key next to removals of all keys, a swap and readers: the last commit decides.
fn the_last_commit_decides(engine: &str) {
    let machine = ModelMachine::default();
    let db = open_on_a_slow_disk(&machine);
    let keyspace = open_keyspace(&db, "a", engine);
    keyspace.insert("m", "0").expect("it inserts");
    let seqs = Seqs::default();
    let commit = |removes: bool| {
        let (db, keyspace, seqs) = (db.clone(), keyspace.clone(), Arc::clone(&seqs));
        spawn(move || {
            for turn in 0..2 {
                let mut batch = db.batch();
                match removes {
                    true => batch.remove_range::<&[u8]>(&keyspace, ..),
                    false => batch.insert(&keyspace, "m", [turn]).insert(&keyspace, "n", [turn]),
                };
                let seq = batch.submit().expect("it commits").seq();
                seqs.lock().expect("one holder")[usize::from(removes)].push(seq);
            }
        })
    };
    let reader = {
        let (db, keyspace) = (db.clone(), keyspace.clone());
        spawn(move || {
            for _ in 0..2 {
                let shown = db.snapshot().expect("it opens").keyspace("a").expect("it exists");
                let values: Vec<Vec<u8>> = ["m", "n"]
                    .iter()
                    .filter_map(|key| shown.get(key).expect("it reads"))
                    .map(|value| value.to_vec())
                    .collect();
                let is_first = values == [b"0".to_vec()];
                assert!(is_first || values.is_empty() || values.len() == 2 && values[0] == values[1]);
                keyspace.get("m").expect("it reads");
            }
        })
    };
    join([commit(false), commit(true), reader]);
    let [puts, removals] = std::mem::take(&mut *seqs.lock().expect("one holder"));
    let is_there = puts.iter().max() > removals.iter().max();
    for key in ["m", "n"] {
        let found = keyspace.contains_key(key).expect("it reads");
        assert_eq!(found, is_there, "{engine}: {key}, {puts:?}, {removals:?}");
    }
    assert_eq!(keyspace.len().expect("it counts"), if is_there { 2 } else { 0 });
}

/// A compare-and-swap next to a removal of its key: in any order, the key is missing in the end.
fn a_swap_does_not_survive_a_removal(engine: &str) {
    let machine = ModelMachine::default();
    let db = open_on_a_slow_disk(&machine);
    let keyspace = open_keyspace(&db, "a", engine);
    keyspace.insert("m", "0").expect("it inserts");
    let swap = {
        let keyspace = keyspace.clone();
        spawn(move || {
            let _was_swapped: bool =
                keyspace.compare_and_swap("m", Some(b"0"), Some(b"1")).expect("it answers");
        })
    };
    let removal = {
        let keyspace = keyspace.clone();
        spawn(move || match keyspace.remove_range::<&[u8]>(..) {
            Ok(()) | Err(Error::Conflict { .. }) => {}
            Err(other) => panic!("{other}"),
        })
    };
    join([swap, removal]);
    assert_eq!(keyspace.get("m").expect("it reads"), None, "{engine}");
}

/// A transaction that counts keys next to a removal of them: it commits only before the removal.
fn a_transaction_counts_before_a_removal(engine: &str) {
    let machine = ModelMachine::default();
    let db = open_on_a_slow_disk(&machine);
    let (keyspace, counts) = (open_keyspace(&db, "a", engine), open_keyspace(&db, "b", engine));
    keyspace.insert("m", "0").expect("it inserts");
    let seqs = Arc::new(Mutex::new([None, None]));
    let counter = {
        let (db, keyspace, counts, seqs) = (db.clone(), keyspace.clone(), counts.clone(), Arc::clone(&seqs));
        spawn(move || {
            let tx = db.transaction().expect("it begins");
            let count = tx.len(&keyspace).expect("it counts");
            tx.insert(&counts, "count", [u8::from(count > 0)]).expect("it inserts");
            match tx.submit() {
                Ok(ticket) => seqs.lock().expect("one holder")[0] = Some((ticket.seq(), count)),
                Err(Error::Conflict { .. }) => {}
                Err(other) => panic!("{other}"),
            }
        })
    };
    let removal = {
        let (db, keyspace, seqs) = (db.clone(), keyspace.clone(), Arc::clone(&seqs));
        spawn(move || {
            let mut batch = db.batch();
            batch.remove_range::<&[u8]>(&keyspace, ..);
            let seq = batch.submit().expect("it commits").seq();
            seqs.lock().expect("one holder")[1] = Some((seq, 0));
        })
    };
    join([counter, removal]);
    let [counted, removed] = *seqs.lock().expect("one holder");
    if let (Some((counted, count)), Some((removed, _))) = (counted, removed) {
        assert_eq!(count > 0, counted < removed, "{engine}");
    }
}

/// Batches that remove a range and put a key of it, next to a reader: the key is never missing.
fn a_replacing_batch_never_hides_its_key(engine: &str) {
    let engine_name = engine.to_owned();
    let machine = ModelMachine::default();
    let db = open_on_a_slow_disk(&machine);
    let keyspace = open_keyspace(&db, "a", engine);
    keyspace.insert("m", "0").expect("it inserts");
    let writer = {
        let (db, keyspace) = (db.clone(), keyspace.clone());
        spawn(move || {
            for turn in 0..2 {
                let mut batch = db.batch();
                batch.remove_range::<&[u8]>(&keyspace, ..).insert(&keyspace, "m", [turn]);
                batch.submit().expect("it commits");
            }
        })
    };
    let reader = {
        let keyspace = keyspace.clone();
        spawn(move || {
            for _ in 0..2 {
                assert!(keyspace.get("m").expect("it reads").is_some(), "{engine_name}: get");
                assert!(keyspace.contains_key("m").expect("it reads"), "{engine_name}: contains_key");
            }
        })
    };
    join([writer, reader]);
    assert_eq!(keyspace.get("m").expect("it reads").as_deref(), Some(&[1][..]), "{engine}");
}

#[test]
fn a_get_next_to_batches_that_replace_its_key() {
    on_every_engine(1_000, a_replacing_batch_never_hides_its_key);
}

#[test]
fn a_transaction_next_to_a_removal_of_its_range() {
    on_every_engine(1_000, a_transaction_counts_before_a_removal);
}

#[test]
fn puts_next_to_removals_of_their_range() {
    on_every_engine(300, the_last_commit_decides);
}

#[test]
fn a_swap_next_to_a_removal_of_its_range() {
    on_every_engine(1_000, a_swap_does_not_survive_a_removal);
}
