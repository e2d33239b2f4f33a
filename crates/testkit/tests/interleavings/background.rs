//! Background steps of several keyspaces on helper threads, next to writers.

use super::*;

/// Rounds of engine steps start helpers, end, and lose nothing.
fn steps_on_helpers(engine: &'static str) {
    let machine = ModelMachine::default();
    let db = machine.builder().background_threads(3).open("/db").expect("it opens");
    let write = move |db: &Database, name: &str| write_and_remove(&open_keyspace(db, name, engine), 24, 6);
    let first = write(&db, "b"); // there is work already
    let (sender, receiver) = std::sync::mpsc::channel();
    let writer = {
        let db = db.clone();
        spawn(move || sender.send(write(&db, "a")).expect("the test waits"))
    };
    for _ in 0..4 {
        db.pump().expect("it works");
    }
    join([writer]);
    let second = receiver.recv().expect("the writer has ended");
    while db.pump().expect("it works") {}
    for (name, expected) in [("a", &second), ("b", &first)] {
        assert_eq!(&pairs(&open_keyspace(&db, name, engine)), expected, "{engine}, keyspace {name}");
    }
    let after = ModelMachine { disk: machine.disk.kill(), ..ModelMachine::default() }.open();
    for (name, expected) in [("a", &second), ("b", &first)] {
        assert_eq!(&pairs(&open_keyspace(&after, name, engine)), expected, "{engine}, keyspace {name}");
    }
}

#[test]
fn steps_of_several_keyspaces_run_on_helpers() {
    on_every_engine(300, steps_on_helpers);
}
