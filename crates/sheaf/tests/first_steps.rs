//! Shortest complete uses of a database, on the real disk. The large suites are in sheaf-testkit.

use sheaf::{Database, Durability, KeyspaceOptions};

struct FirstStepsDir(std::path::PathBuf);

impl FirstStepsDir {
    fn new(name: &str) -> FirstStepsDir {
        let dir = std::env::temp_dir().join(format!("sheaf-{name}-{}", std::process::id()));
        std::fs::remove_dir_all(&dir).ok();
        FirstStepsDir(dir)
    }
}

impl Drop for FirstStepsDir {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

fn key(n: u32) -> Vec<u8> {
    format!("key-{n:08}").into_bytes()
}

#[test]
fn written_pairs_survive_a_reopen() {
    let dir = FirstStepsDir::new("reopen");
    {
        let db = Database::open(&dir.0).unwrap();
        let ks = db.keyspace("default", KeyspaceOptions::default()).unwrap();
        for n in 0..20_000 {
            ks.insert(key(n), vec![(n % 251) as u8; 100]).unwrap();
        }
        for n in (0..20_000).step_by(3) {
            ks.remove(key(n)).unwrap();
        }
        ks.insert("big", vec![7; 3 << 20]).unwrap();
        db.close().unwrap();
    }
    for round in 0..2 {
        let db = Database::open(&dir.0).unwrap();
        let ks = db.open_keyspace("default").unwrap().unwrap();
        for n in 0..20_000 {
            let want = (n % 3 != 0).then(|| vec![(n % 251) as u8; 100]);
            assert_eq!(ks.get(key(n)).unwrap().map(Vec::from), want, "key {n}, round {round}");
        }
        assert_eq!(ks.get("big").unwrap().unwrap().len(), 3 << 20);
        assert_eq!(ks.iter().unwrap().filter(Result::is_ok).count() as u64, ks.len().unwrap());
        assert_eq!(db.verify(|e| panic!("{e}")).unwrap().findings, 0);
        db.close().unwrap();
    }
}

#[test]
fn gc_reclaims_updates_far_beyond_the_space_limit() {
    let dir = FirstStepsDir::new("clean");
    let db = Database::open(&dir.0).unwrap();
    let ks = db.keyspace("default", KeyspaceOptions::default().engine("flat")).unwrap();
    for round in 0..40u32 {
        for n in 0..10_000 {
            ks.insert(key(n), format!("{round} {}", "x".repeat(100))).unwrap();
        }
    }
    let stats = db.stats();
    let log = stats.logs.iter().find(|l| l.name == "flat").unwrap();
    assert!(log.freed_segments > 0 && log.disk_bytes < 8 * log.live_bytes, "{log:?}");
    for n in 0..10_000 {
        assert!(ks.get(key(n)).unwrap().unwrap().starts_with(b"39 "));
    }
    drop((ks, db));
    let db = Database::open(&dir.0).unwrap();
    let ks = db.open_keyspace("default").unwrap().unwrap();
    assert!((0..10_000).all(|n| ks.get(key(n)).unwrap().unwrap().starts_with(b"39 ")));
}

#[test]
fn a_snapshot_does_not_change() {
    let dir = FirstStepsDir::new("snapshot");
    let db = Database::open(&dir.0).unwrap();
    let ks = db.keyspace("a", KeyspaceOptions::default()).unwrap();
    (0..1000).for_each(|n| ks.insert(key(n), "old").unwrap());
    let snapshot = db.snapshot().unwrap();
    for round in 0..50 {
        (0..1000).for_each(|n| ks.insert(key(n), format!("new {round}")).unwrap());
    }
    (0..500).for_each(|n| ks.remove(key(n)).unwrap());
    let old = snapshot.keyspace("a").unwrap();
    assert!((0..1000).all(|n| old.get(key(n)).unwrap().unwrap() == b"old"));
    let pairs: Vec<_> = old.iter().unwrap().map(|p| p.unwrap()).collect();
    assert!(pairs.len() == 1000 && pairs.iter().all(|(_, v)| *v == b"old"));
    assert_eq!(ks.len().unwrap(), 500);
}

#[test]
fn synced_batches_over_keyspaces_are_atomic_after_a_reopen() {
    let dir = FirstStepsDir::new("batch");
    {
        let db = Database::open(&dir.0).unwrap();
        let (a, b) = (
            db.keyspace("a", KeyspaceOptions::default()).unwrap(),
            db.keyspace("b", KeyspaceOptions::default()).unwrap(),
        );
        for n in 0..300 {
            let mut batch = db.batch();
            batch.insert(&a, key(n), "1").insert(&b, key(n), "2").durability(Durability::Sync);
            batch.commit().unwrap();
        }
        std::mem::forget(db.snapshot().unwrap()); // never dropped, so no destructor runs
        std::mem::forget((db, a, b));
    }
    assert!(matches!(Database::open(&dir.0), Err(sheaf::Error::Locked { .. })));
}

#[test]
fn the_readme_example_equals_the_compiled_one() {
    let readme = include_str!("../../../README.md");
    let example = readme.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let docs: String = include_str!("../src/lib.rs")
        .lines()
        .map_while(|line| line.strip_prefix("//!"))
        .map(|line| format!("{}\n", line.strip_prefix(' ').unwrap_or(line)))
        .collect();
    assert!(docs.contains(example), "the example of the crate docs differs from that in README.md");
}
