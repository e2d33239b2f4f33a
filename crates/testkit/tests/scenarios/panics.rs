//! Panics in the middle of a commit, and in background work.

use std::panic::{AssertUnwindSafe, catch_unwind};

use sheaf::{Durability, Error, PoisonCause};
use sheaf_testkit::fixture::{DiskKind, Fixture, TestSetting, TestSubject};
use sheaf_testkit::reference_engine::EngineFlaw;
use sheaf_testkit::supervise::run_supervised;

/// The first key of a batch is applied, and the engine of the second key panics. No reader may see
/// a part of the batch, and no commit may follow or use its number. The next opening shows the
/// batch completely or not at all.
#[test]
fn a_panic_in_apply_poisons_and_leaves_no_partial_commit() {
    let mut fixture = Fixture::new(
        &TestSubject::with_flaw(EngineFlaw::PanicsInApply),
        TestSetting::new(DiskKind::Simulated, true, true),
    );
    let db = fixture.open();
    let (ledger, flat) = (fixture.keyspace(&db, "ledger"), fixture.other_keyspace(&db, "flat"));
    ledger.insert("before", "there").unwrap();
    let view = db.snapshot().unwrap();
    let mut iter = ledger.iter().unwrap();
    let seq = db.stats().visible_seq;
    let panicked = run_supervised("a panic in apply", || {
        let mut batch = db.batch();
        batch.insert(&flat, "first", "1").insert(&ledger, EngineFlaw::PANIC_KEY, "2");
        batch.insert(&ledger, "third", "3").insert(&flat, "fourth", "4").durability(Durability::Sync);
        Ok(batch.commit())
    });
    assert!(panicked.is_err(), "the caller must see the panic of the engine: {panicked:?}");

    let poisoned = |what: &str, answer: Result<(), Error>| match answer {
        Err(Error::Poisoned { cause: PoisonCause::Commit }) => {}
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
    drop((iter, view, ledger));
    let closed = catch_unwind(AssertUnwindSafe(|| db.close())).expect("closing does not panic");
    poisoned("closing", closed);
    // A handle that is still alive must not keep the database locked.
    let old = flat;
    assert!(matches!(old.get("first"), Err(Error::Closed)));

    fixture.subject = TestSubject::reference();
    let db = fixture.open();
    let (ledger, flat) = (fixture.keyspace(&db, "ledger"), fixture.other_keyspace(&db, "flat"));
    let is_there = [
        flat.contains_key("first").unwrap(),
        ledger.contains_key(EngineFlaw::PANIC_KEY).unwrap(),
        ledger.contains_key("third").unwrap(),
        flat.contains_key("fourth").unwrap(),
    ];
    assert!(is_there == [true; 4] || is_there == [false; 4], "half a batch: {is_there:?}");
    assert!(ledger.contains_key("before").unwrap(), "an acknowledged commit is lost");
    ledger.insert("after", "x").unwrap();
    assert!(db.stats().visible_seq > seq + u64::from(is_there[0]), "a number is used again");
}

/// The thread for GC and checkpoints has ended, so the database must be poisoned. Its data stays
/// readable.
#[test]
fn a_panic_in_the_background_poisons() {
    let mut fixture = Fixture::new(
        &TestSubject::with_flaw(EngineFlaw::PanicsInSave),
        TestSetting::new(DiskKind::Simulated, true, false),
    );
    let db = fixture.open();
    let ledger = fixture.keyspace(&db, "ledger");
    let mut there = 0_u32;
    let refused = loop {
        match ledger.insert(there.to_be_bytes(), [7; 100]) {
            Ok(()) if there < 1_000_000 => there += 1,
            other => break other,
        }
    };
    assert!(
        matches!(refused, Err(Error::Poisoned { cause: PoisonCause::BackgroundWork })),
        "{refused:?} after {there}"
    );
    assert!(ledger.contains_key(0_u32.to_be_bytes()).unwrap());
    drop(ledger);
    assert!(matches!(db.close(), Err(Error::Poisoned { .. })));

    fixture.subject = TestSubject::reference();
    let db = fixture.open();
    assert_eq!(fixture.keyspace(&db, "ledger").len().unwrap(), u64::from(there));
}
