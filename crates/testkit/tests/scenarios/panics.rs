//! Panics where they hurt: in the middle of a commit, and in the background.

use std::panic::{AssertUnwindSafe, catch_unwind};

use sheaf::{Durability, Error};
use sheaf_testkit::ledger::Flaw;
use sheaf_testkit::stage::{Place, Setting, Stage, Subject};
use sheaf_testkit::trial::trial;

/// The first key of a batch is applied, the second one's engine panics, the third and fourth never see it. Nobody may
/// read the half, write behind it, or take its number; the next opening has the batch whole or not at all.
#[test]
fn a_panic_in_apply_poisons_and_leaves_no_half_commit() {
    let mut stage =
        Stage::new(&Subject::flawed(Flaw::PanicsInApply), Setting::new(Place::Simulated, true, true));
    let db = stage.open();
    let (ledger, flat) = (stage.keyspace(&db, "ledger"), stage.other(&db, "flat"));
    ledger.insert("before", "there").unwrap();
    let view = db.snapshot().unwrap();
    let mut iter = ledger.iter().unwrap();
    let seq = db.stats().visible;
    let panicked = trial("a panic in apply", || {
        let mut batch = db.batch();
        batch.insert(&flat, "first", "1").insert(&ledger, Flaw::PANICS_AT, "2");
        batch.insert(&ledger, "third", "3").insert(&flat, "fourth", "4").durability(Durability::Sync);
        Ok(batch.commit())
    });
    assert!(panicked.is_err(), "the caller whose engine panics sees the panic: {panicked:?}");

    let poisoned = |what: &str, answer: Result<(), Error>| match answer {
        Err(Error::Poisoned { op: "commit" }) => {}
        other => panic!("{what} answers {other:?}"),
    };
    poisoned("a write", ledger.insert("after", "x"));
    poisoned("a write to the other engine", flat.insert("after", "x"));
    poisoned("a get", flat.get("first").map(drop));
    poisoned("a get of the view", view.keyspace("ledger").and_then(|old| old.get("before").map(drop)));
    poisoned("an iterator", iter.next().expect("an answer").map(drop));
    poisoned("a new iterator", flat.iter().map(drop));
    poisoned("persist", db.persist());
    poisoned("a step of background work", db.pump().map(drop));
    drop((iter, view, ledger, flat));
    let closed = catch_unwind(AssertUnwindSafe(|| db.close())).expect("closing does not panic");
    poisoned("closing", closed);

    stage.subject = Subject::ledger();
    let db = stage.open();
    let (ledger, flat) = (stage.keyspace(&db, "ledger"), stage.other(&db, "flat"));
    let is_there = [
        flat.contains_key("first").unwrap(),
        ledger.contains_key(Flaw::PANICS_AT).unwrap(),
        ledger.contains_key("third").unwrap(),
        flat.contains_key("fourth").unwrap(),
    ];
    assert!(is_there == [true; 4] || is_there == [false; 4], "half a batch: {is_there:?}");
    assert!(ledger.contains_key("before").unwrap(), "what was acknowledged is lost");
    ledger.insert("after", "x").unwrap();
    assert!(db.stats().visible > seq + u64::from(is_there[0]), "a number is used again");
}

/// The thread that would clean and checkpoint is gone: nobody may go on as if it were there. What is there stays readable.
#[test]
fn a_panic_in_the_background_poisons() {
    let mut stage =
        Stage::new(&Subject::flawed(Flaw::PanicsInSave), Setting::new(Place::Simulated, true, false));
    let db = stage.open();
    let ledger = stage.keyspace(&db, "ledger");
    let mut there = 0_u32;
    let refused = loop {
        match ledger.insert(there.to_be_bytes(), [7; 100]) {
            Ok(()) if there < 1_000_000 => there += 1,
            other => break other,
        }
    };
    assert!(matches!(refused, Err(Error::Poisoned { op: "background work" })), "{refused:?} after {there}");
    assert!(ledger.contains_key(0_u32.to_be_bytes()).unwrap());
    drop(ledger);
    assert!(matches!(db.close(), Err(Error::Poisoned { .. })));

    stage.subject = Subject::ledger();
    let db = stage.open();
    assert_eq!(stage.keyspace(&db, "ledger").len().unwrap(), u64::from(there));
}
