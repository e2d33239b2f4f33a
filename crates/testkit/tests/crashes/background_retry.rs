//! Failed background work is retried with growing delays until it succeeds.

use std::time::Duration;

use sheaf_platform::clock::{Clock, SystemClock};
use sheaf_sim::{CallClass, Fault, FaultKind, FaultPlan};
use sheaf_testkit::fixture::{DiskKind, Fixture, TestSetting, TestSubject};

const TINY: TestSetting = TestSetting::new(DiskKind::Simulated, true, false);
/// Enough pairs for a checkpoint of a tiny database.
const KEYS: u32 = 1000;

/// Yields until background work, which sends no notification, has made the condition true.
fn yield_until(mut is_so: impl FnMut() -> bool) {
    let begun = SystemClock.now();
    while !is_so() {
        assert!(SystemClock.now() - begun < Duration::from_secs(60), "it does not come");
        std::thread::yield_now();
    }
}

/// An attempt writes the images of all keyspaces. Without a delay between attempts they would
/// occupy a full or failing disk permanently.
#[test]
fn a_failing_checkpoint_is_retried_with_backoff() {
    let fixture = Fixture::new(&TestSubject::flex(), TINY);
    let disk = fixture.sim_disk().unwrap();
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "people");
    disk.set_faults(Fault::new(CallClass::Create, FaultKind::Io).on("images/").forever());
    let (begun, before) = (SystemClock.now(), disk.injected());
    for index in 0..KEYS {
        ks.insert(index.to_be_bytes(), [7; 100]).unwrap();
    }
    yield_until(|| disk.injected() - before >= 4);
    let rests = Duration::from_millis(50 + 100 + 200);
    let took = SystemClock.now() - begun;
    assert!(took >= rests, "four attempts within {took:?}");
    let ended = db.stats().checkpoints;
    disk.set_faults(FaultPlan::default());
    yield_until(|| db.stats().checkpoints > ended);
    assert_eq!(ks.len().unwrap(), u64::from(KEYS));
}
