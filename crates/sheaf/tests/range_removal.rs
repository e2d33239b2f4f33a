//! The removal of a range is one record for any number of pairs.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::{Duration, Instant};

use sheaf::{Database, Keyspace, KeyspaceOptions};

fn key(index: usize) -> [u8; 8] {
    (index as u64).to_be_bytes()
}

/// Inserts pairs with the keys `from..to`.
fn fill(db: &Database, pairs: &Keyspace, from: usize, to: usize) {
    for first in (from..to).step_by(1000) {
        let mut batch = db.batch();
        for index in first..to.min(first + 1000) {
            batch.insert(pairs, key(index), b"a value of some bytes");
        }
        batch.commit().unwrap();
    }
}

fn journal_bytes(db: &Database) -> u64 {
    db.stats().logs.iter().map(|log| log.appended_bytes).sum()
}

#[test]
fn one_record_removes_any_number_of_pairs() {
    for engine in ["flex", "kreon", "delsm"] {
        let dir = tempfile::tempdir().unwrap();
        let db = Database::builder().memory(64 << 20).open(dir.path()).unwrap();
        let pairs = db.keyspace("pairs", KeyspaceOptions::default().engine(engine)).unwrap();
        fill(&db, &pairs, 0, 60_000);
        db.quiesce().unwrap();
        let mut costs = Vec::new();
        for (from, to) in [(100, 110), (1_000, 50_000)] {
            let before = (journal_bytes(&db), db.seq());
            pairs.remove_range(key(from)..key(to)).unwrap();
            assert_eq!(db.seq(), before.1 + 1, "one commit");
            costs.push(journal_bytes(&db) - before.0);
        }
        assert_eq!(costs[0], costs[1], "{engine}: bytes of the journal");
        assert_eq!(pairs.len().unwrap(), 60_000 - 10 - 49_000);
        db.quiesce().unwrap();
        assert_eq!(pairs.len().unwrap(), 60_000 - 10 - 49_000);
        db.close().unwrap();
    }
}

/// Prints the time of a removal of 1,000 and of 1,000,000 pairs, in turns, and of the first scan
/// behind each.
#[test]
#[ignore = "measures: cargo test -p sheaf-db --test range_removal -- --ignored --nocapture"]
#[allow(clippy::disallowed_methods, reason = "measures")]
fn time_of_removals() {
    const TURNS: usize = 3;
    for engine in ["flex", "kreon", "delsm"] {
        let dir = tempfile::tempdir().unwrap();
        let db = Database::builder().open(dir.path()).unwrap();
        let pairs = db.keyspace("pairs", KeyspaceOptions::default().engine(engine)).unwrap();
        let counts = [1_000, 1_000_000];
        let mut times = [[Duration::ZERO; 2]; 2];
        for turn in 0..TURNS {
            for (which, count) in counts.into_iter().enumerate() {
                let base = (2 * turn + which) * 10_000_000;
                fill(&db, &pairs, base, base + count + 2);
                db.quiesce().unwrap();
                let begun = Instant::now();
                pairs.remove_range(key(base + 1)..key(base + 1 + count)).unwrap();
                times[which][0] += begun.elapsed();
                let begun = Instant::now();
                let next = pairs.range(key(base + 1)..).unwrap().next().unwrap().unwrap();
                times[which][1] += begun.elapsed();
                assert_eq!(next.0, key(base + 1 + count));
            }
        }
        for (count, [removal, scan]) in counts.into_iter().zip(times) {
            let turns = u32::try_from(TURNS).unwrap();
            println!("{engine}: {count} pairs: removal {:?}, first pair {:?}", removal / turns, scan / turns);
        }
        db.close().unwrap();
    }
}
