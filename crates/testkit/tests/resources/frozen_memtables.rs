//! Frozen memtables of `delsm` that wait for the flush: readers see all of them, a crash loses
//! none, and the journal stays until the oldest is flushed.

#![expect(clippy::unwrap_used, reason = "a test's own steps work")]

use std::collections::BTreeMap;
use std::sync::Arc;

use sheaf::{Database, Keyspace};
use sheaf_sim::KeepChoice;
use sheaf_testkit::fixture::{DiskKind, Fixture, TestSetting, TestSubject};

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// Commits between two steps of the background: more than a memtable of tiny geometry should have.
const COMMITS: u64 = 10;

/// Returns `delsm` with at most `frozen` frozen memtables.
fn subject(frozen: usize) -> TestSubject {
    const OPTIONS: [&[(&str, u64)]; 4] = [
        &[("frozen-memtables", 1)],
        &[("frozen-memtables", 2)],
        &[("frozen-memtables", 3)],
        &[("frozen-memtables", 4)],
    ];
    TestSubject { chosen_options: OPTIONS[frozen - 1], ..TestSubject::delsm() }
}

fn counter(keyspace: &Keyspace, name: &str) -> u64 {
    keyspace.counters().unwrap().iter().find(|(counted, _)| *counted == name).expect("it is counted").1
}

/// Changes some keys of the keyspace and of `pairs`. Every fourth change is a removal, and every
/// third value is packed.
fn change(keyspace: &Keyspace, pairs: &mut Pairs, round: u64) {
    for at in 0..COMMITS {
        let n = round * COMMITS + at;
        let key = (n * 37 % 211).to_be_bytes().to_vec();
        if n.is_multiple_of(4) {
            keyspace.remove(&key).unwrap();
            pairs.remove(&key);
        } else {
            let len = if n.is_multiple_of(3) { 40 } else { 300 };
            let value: Vec<u8> = (n..n + len).map(|byte| byte.to_le_bytes()[0]).collect();
            keyspace.insert(&key, &value).unwrap();
            pairs.insert(key, value);
        }
    }
}

fn pairs_of(iter: sheaf::Iter) -> Pairs {
    iter.map(|pair| pair.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap()).collect()
}

/// Compares gets, and iterations in both directions.
fn check(keyspace: &Keyspace, pairs: &Pairs, place: &str) {
    assert!(pairs_of(keyspace.iter().unwrap()) == *pairs, "{place}: iteration");
    let back: Vec<Vec<u8>> = keyspace.iter().unwrap().rev().map(|pair| pair.unwrap().0.to_vec()).collect();
    assert!(back.iter().rev().eq(pairs.keys()), "{place}: iteration backwards");
    for n in 0..211u64 {
        let key = n.to_be_bytes().to_vec();
        let found = keyspace.get(&key).unwrap().map(|value| value.to_vec());
        assert!(found.as_ref() == pairs.get(&key), "{place}: get of {n}");
    }
}

/// Cuts the power, with everything written so far on the disk, and compares the recovered pairs. A
/// journal that was freed too early is missing there.
fn check_after_crash(fixture: &Fixture, pairs: &Pairs, place: &str) {
    let disk = fixture.sim_disk().unwrap().power_cut(&KeepChoice::All);
    let db = fixture.builder_on(Arc::new(disk)).open(fixture.path()).unwrap();
    check(&db.open_keyspace("files").unwrap().unwrap(), pairs, place);
}

/// Runs rounds of commits with one background step each, so that the flush falls behind. Returns
/// the numbers of queued memtables and of flushes that wrote several.
fn run(frozen: usize) -> [u64; 2] {
    let fixture = Fixture::new(&subject(frozen), TestSetting::new(DiskKind::Simulated, true, true));
    let db: Database = fixture.open();
    let keyspace = fixture.keyspace(&db, "files");
    let (mut pairs, mut views) = (Pairs::new(), Vec::new());
    for round in 0..90 {
        change(&keyspace, &mut pairs, round);
        if round % 7 == 0 {
            views.push((db.snapshot().unwrap(), pairs.clone()));
        }
        db.pump().unwrap();
        let place = format!("{frozen} frozen, round {round}");
        check(&keyspace, &pairs, &place);
        if round % 2 == 0 {
            check_after_crash(&fixture, &pairs, &place);
        }
        for (view, seen) in &views {
            let iter = view.keyspace("files").unwrap().iter().unwrap();
            assert!(pairs_of(iter) == *seen, "{place}: a snapshot changed");
        }
        if views.len() > 3 {
            views.remove(0);
        }
    }
    views.clear();
    while db.pump().unwrap() {}
    check(&keyspace, &pairs, "at rest");
    check_after_crash(&fixture, &pairs, "at rest");
    ["memtables queued", "flushes of several memtables"].map(|name| counter(&keyspace, name))
}

#[test]
fn one_frozen_memtable_is_never_queued_behind() {
    assert_eq!(run(1), [0, 0]);
}

#[test]
fn queued_memtables_are_read_and_survive_crashes() {
    for frozen in 2..=4 {
        let [queued, merged] = run(frozen);
        assert!(queued > 0 && merged > 0, "{frozen} frozen: {queued} queued, {merged} flushed together");
    }
}

/// Prints the waits of a fill of 300 MB by the number of frozen memtables. The budget of 64 MiB is
/// small, so a memtable is full after 11 MiB.
#[test]
#[ignore = "prints figures, and takes a minute"]
fn waits_of_a_fill_by_frozen_memtables() {
    for frozen in [1, 2, 3, 1, 2, 3] {
        let fixture = Fixture::new(&subject(frozen), TestSetting::new(DiskKind::Real, false, false));
        let db = fixture.builder().memory(64 << 20).open(fixture.path()).unwrap();
        let keyspace = fixture.keyspace(&db, "files");
        for n in 0..2_600_000u64 {
            keyspace.insert(n.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes(), [7; 100]).unwrap();
        }
        let stats = db.stats();
        let waits: Vec<String> = stats
            .stalls
            .iter()
            .filter(|stall| stall.count > 0)
            .map(|stall| {
                let ms = [stall.total, stall.longest].map(|time| time.as_millis());
                format!("{:?}: {} waits, {} ms, longest {} ms", stall.kind, stall.count, ms[0], ms[1])
            })
            .collect();
        let queued =
            ["memtables queued", "flushes of several memtables"].map(|name| counter(&keyspace, name));
        println!("{frozen} frozen, {} checkpoints, {queued:?} queued, merged: {waits:?}", stats.checkpoints);
    }
}
