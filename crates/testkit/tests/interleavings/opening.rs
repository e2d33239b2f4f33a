//! Opening: several threads replay the logs, and the first operations apply deferred entries.

use super::*;

/// Versions and removals of two keys are in several segments, which two threads replay alternately:
/// the newest commit must win. With the least `memory` each record is replayed alone. (Fails if a
/// replay thread does not check again, when its turn comes, that the key still has the entry that
/// it looked up.)
fn replay_by_several_threads(engine: &str, memory: u64) {
    let machine = ModelMachine::default();
    let db = machine.open();
    let keyspace = open_keyspace(&db, "a", engine);
    for n in 0..16u32 {
        keyspace.insert(format!("{}", n % 2), vec![b'x'; 900]).expect("it inserts");
        if n % 3 == 0 {
            keyspace.remove(format!("{}", n % 2)).expect("it removes");
        }
    }
    let states = |db: &Database| {
        let keyspace = open_keyspace(db, "a", engine);
        let state = ["0", "1"].map(|key| keyspace.contains_key(key).expect("it reads"));
        (state, keyspace.iter().expect("it begins").count(), keyspace.len().expect("it counts"))
    };
    let expected = states(&db);
    // Read-only: the store of a database with background threads, but without the threads.
    let after = ModelMachine { disk: machine.disk.kill(), ..ModelMachine::default() };
    let again = after.builder().memory(memory).inline(false).read_only(true).open("/db").expect("it opens");
    assert_eq!(states(&again), expected, "replayed in another order it is something else");
}

#[test]
fn parallel_replay_of_the_same_keys_is_correct() {
    explore(500, || replay_by_several_threads("flat", 1));
}

#[test]
fn parallel_replay_with_buffers_misses_nothing() {
    explore(100, || replay_by_several_threads("flat", 16 << 20));
}

#[test]
fn parallel_replay_into_memtables_is_correct() {
    for engine in ["flex", "delsm", "kreon"] {
        explore(100, move || replay_by_several_threads(engine, 16 << 20));
    }
}

/// Threads read and replay several pieces of the journal. Each key has records in all of them.
fn replay_of_the_journal(engine: &str) {
    let machine = ModelMachine::default();
    let db = machine.builder().checkpoints(false).open("/db").expect("it opens");
    let keyspace = open_keyspace(&db, "a", engine);
    let expected = write_and_remove(&keyspace, 70, 7);
    let after = ModelMachine { disk: machine.disk.kill(), ..ModelMachine::default() };
    let again = after.builder().inline(false).read_only(true).open("/db").expect("it opens");
    let keyspace = open_keyspace(&again, "a", engine);
    assert_eq!(pairs(&keyspace), expected, "{engine}");
}

#[test]
fn parallel_replay_of_the_journal_is_correct() {
    for engine in ["flex", "delsm"] {
        explore(100, move || replay_of_the_journal(engine));
    }
}

/// After a kill, the first reader, the first updater and background work run at the same time. They
/// must find all commits, and so must the next opening.
fn first_users_after_a_kill(engine: &str) {
    let machine = ModelMachine::default();
    let db = machine.open();
    let keyspace = open_keyspace(&db, "a", engine);
    let mut expected = write_and_remove(&keyspace, 24, 9);
    let after = ModelMachine { disk: machine.disk.kill(), ..ModelMachine::default() };
    let again = after.open();
    let keyspace = open_keyspace(&again, "a", engine);
    let updater = {
        let (keyspace, mut before) = (keyspace.clone(), expected.clone());
        spawn(move || {
            for key in ["0", "1", "2"] {
                let old = before.remove(key);
                let append = |seen: Option<&[u8]>| {
                    assert_eq!(seen, old.as_deref().map(str::as_bytes));
                    Some(b"new".to_vec())
                };
                keyspace.update(key, append).expect("it updates");
            }
        })
    };
    let background = {
        let again = again.clone();
        spawn(move || while again.pump().expect("it works") {})
    };
    for key in ["8", "7", "6", "5"] {
        assert_eq!(text(keyspace.get(key).expect("it reads")).as_ref(), expected.get(key), "{key}");
    }
    join([updater, background]);
    expected.extend(["0", "1", "2"].map(|key| (key.to_owned(), "new".to_owned())));
    let check = |db: &Database| {
        let keyspace = open_keyspace(db, "a", engine);
        let shown = (0..9)
            .filter_map(|n| Some((n.to_string(), text(keyspace.get(n.to_string()).expect("it reads"))?)));
        assert_eq!(shown.collect::<BTreeMap<_, _>>(), expected);
        assert_eq!(keyspace.len().expect("it counts"), expected.len() as u64);
    };
    check(&again);
    check(&ModelMachine { disk: after.disk.kill(), ..ModelMachine::default() }.open());
}

#[test]
fn commits_are_visible_to_the_first_operations_after_a_kill() {
    on_every_engine(100, first_users_after_a_kill);
    explore(200, || first_users_after_a_kill("cedrus"));
}
