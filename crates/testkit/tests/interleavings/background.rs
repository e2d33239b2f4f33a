//! Background steps of several keyspaces on helper threads, next to writers.

use std::collections::BTreeMap;

use super::*;

/// Writes to `name` and returns its contents.
fn write(db: &Database, name: &str, engine: &str) -> BTreeMap<String, String> {
    let keyspace = open_keyspace(db, name, engine);
    let mut expected = BTreeMap::new();
    for n in 0..24 {
        let key = (n % 5).to_string();
        if n % 7 == 6 {
            keyspace.remove(&key).expect("it removes");
            expected.remove(&key);
        } else {
            keyspace.insert(&key, n.to_string()).expect("it inserts");
            expected.insert(key, n.to_string());
        }
    }
    expected
}

fn check(db: &Database, name: &str, engine: &str, expected: &BTreeMap<String, String>) {
    let keyspace = open_keyspace(db, name, engine);
    let pairs = keyspace.iter().expect("it begins").map(|pair| pair.expect("it reads"));
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    let found: BTreeMap<_, _> = pairs.map(|(key, value)| (text(&key), text(&value))).collect();
    assert_eq!(&found, expected, "{engine}, keyspace {name}");
}

/// Rounds of engine steps start helpers, end, and lose nothing.
fn steps_on_helpers(engine: &'static str) {
    let machine = ModelMachine::default();
    let db = machine.builder().background_threads(3).open("/db").expect("it opens");
    let first = write(&db, "b", engine); // there is work already
    let (sender, receiver) = std::sync::mpsc::channel();
    let writer = {
        let db = db.clone();
        spawn(move || sender.send(write(&db, "a", engine)).expect("the test waits"))
    };
    for _ in 0..4 {
        db.pump().expect("it works");
    }
    join([writer]);
    let second = receiver.recv().expect("the writer has ended");
    while db.pump().expect("it works") {}
    for (name, expected) in [("a", &second), ("b", &first)] {
        check(&db, name, engine, expected);
    }
    let after = ModelMachine { disk: machine.disk.kill(), ..ModelMachine::default() }.open();
    for (name, expected) in [("a", &second), ("b", &first)] {
        check(&after, name, engine, expected);
    }
}

#[test]
fn steps_of_several_keyspaces_run_on_helpers() {
    on_every_engine(300, steps_on_helpers);
}
