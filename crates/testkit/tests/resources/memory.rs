//! One memory budget for all engines: it is kept, it is used by caches, and caches grow where they
//! help.

#![expect(clippy::unwrap_used, reason = "a test's own steps work")]

use sheaf::{Database, Keyspace, KeyspaceOptions};
use sheaf_testkit::crash::workload::TestRandom;
use sheaf_testkit::fixture::{DiskKind, Fixture, TestSetting, TestSubject};

const NORMAL: TestSetting = TestSetting::new(DiskKind::Simulated, false, true);
const BUDGET: u64 = 4 << 20;
/// Names and engines of the keyspaces.
const KEYSPACES: [(&str, &str); 7] = [
    ("flat", "flat"),
    ("flat-ordered", "flat-ordered"),
    ("flex", "flex"),
    ("cedrus", "cedrus"),
    ("kreon", "kreon"),
    ("delsm", "delsm"),
    ("another", "flex"),
];
const ORDERED: usize = 1;
const FLEX: usize = 2;
const ANOTHER: usize = 6;
/// Operations between two steps of inline background work.
const OPS_PER_TICK: u64 = 50;

struct MemoryCase {
    fixture: Fixture,
    db: Database,
    keyspaces: Vec<(Keyspace, u64)>,
    random: TestRandom,
}

impl MemoryCase {
    fn new() -> MemoryCase {
        let fixture = Fixture::new(&TestSubject::flex(), NORMAL);
        let db = fixture.builder().memory(BUDGET).open(fixture.path()).unwrap();
        let open = |(name, engine): &(&str, &str)| {
            let pairs = if engine.starts_with("flat") { 4_000 } else { 12_000 };
            (db.keyspace(name, KeyspaceOptions::default().engine(engine)).unwrap(), pairs)
        };
        let keyspaces = KEYSPACES.iter().map(open).collect();
        MemoryCase { fixture, db, keyspaces, random: TestRandom::new(0) }
    }

    /// Runs some operations and then background work, and checks the budget.
    fn run_and_tick(&mut self, mut operate: impl FnMut(&mut MemoryCase)) {
        (0..OPS_PER_TICK).for_each(|_| operate(self));
        self.fixture.advance(std::time::Duration::from_millis(20));
        for _ in 0..20 {
            if !self.db.pump().unwrap() {
                break;
            }
        }
        let memory = self.db.stats().memory;
        assert!(memory.total() <= BUDGET / 100 * 105, "{memory:?}");
        // A thread of another test may free blocks of a cache between two looks.
        let cached = || self.db.stats().memory.cache;
        let parts = || self.db.stats().caches.iter().map(|cache| cache.bytes).sum::<u64>();
        let mut looks = std::iter::repeat_with(|| (cached(), parts(), cached())).take(1000);
        let steady = looks.find(|(before, _, after)| before == after);
        let (sum, parts, _) = steady.expect("blocks are freed now and then");
        assert_eq!(parts, sum, "the caches are the sum of themselves");
    }

    fn fill(&mut self) {
        for number in 0..self.keyspaces.len() {
            let (keyspace, pairs) = self.keyspaces[number].clone();
            for first in (0..pairs).step_by(usize::try_from(OPS_PER_TICK).unwrap()) {
                let mut index = first;
                self.run_and_tick(|_| {
                    keyspace.insert(index.to_be_bytes(), [7; 200]).unwrap();
                    index += 1;
                });
            }
        }
    }

    fn gets_from(&mut self, number: usize, strides: u64) {
        let (keyspace, pairs) = self.keyspaces[number].clone();
        for _ in 0..strides {
            self.run_and_tick(|case| {
                let index = case.random.below(pairs);
                assert!(keyspace.contains_key(index.to_be_bytes()).unwrap());
                assert!(keyspace.get(index.to_be_bytes()).unwrap().is_some());
            });
        }
    }

    fn cached(&self, name: &str) -> u64 {
        let stats = self.db.stats();
        stats
            .caches
            .iter()
            .filter(|cache| cache.keyspace.as_deref() == Some(name))
            .map(|cache| cache.bytes)
            .sum()
    }
}

#[test]
fn the_budget_holds_in_every_mix_and_is_used() {
    let mut case = MemoryCase::new();
    case.fill();
    for snapshots in [false, true] {
        let snapshot = snapshots.then(|| case.db.snapshot().unwrap());
        for _ in 0..200 {
            case.run_and_tick(|case| {
                let number = usize::try_from(case.random.below(7)).unwrap();
                let (keyspace, pairs) = case.keyspaces[number].clone();
                let index = case.random.below(pairs);
                match case.random.below(4) {
                    0 => keyspace.insert(index.to_be_bytes(), [8; 200]).unwrap(),
                    1 if keyspace.capabilities().unwrap().ordered => {
                        keyspace
                            .range(index.to_be_bytes()..)
                            .unwrap()
                            .take(20)
                            .for_each(|pair| drop(pair.unwrap()));
                    }
                    _ => assert!(keyspace.get(index.to_be_bytes()).unwrap().is_some()),
                }
            });
        }
        drop(snapshot);
    }
    for _ in 0..60 {
        case.gets_from(FLEX, 2);
        case.gets_from(ANOTHER, 2);
    }
    let memory = case.db.stats().memory;
    let used = memory.total() * 100 / BUDGET;
    assert!(used >= 85, "there is more data than memory: {memory:?}");
    assert!(used <= 95, "gaps between blocks are not for caches: {memory:?}");
}

#[test]
fn cache_memory_follows_the_load() {
    let mut case = MemoryCase::new();
    case.fill();
    for (used, idle) in [(FLEX, ANOTHER), (ANOTHER, FLEX), (FLEX, ANOTHER)] {
        case.gets_from(used, 200);
        let (used, idle) = (case.cached(KEYSPACES[used].0), case.cached(KEYSPACES[idle].0));
        assert!(used > BUDGET / 3 && used > 2 * idle, "{:?}", case.db.stats());
    }
}

#[test]
fn a_resident_index_shrinks_the_caches() {
    let mut case = MemoryCase::new();
    case.fill();
    case.gets_from(FLEX, 200);
    let before = case.db.stats().memory;
    assert!(before.cache > BUDGET / 3, "{before:?}");
    let keyspace = case.keyspaces[ORDERED].0.clone();
    // Without background work: commits must shrink the caches themselves, before they allocate too
    // much.
    let mut index = 1u64 << 40;
    let mut memory = before;
    while memory.index < BUDGET / 8 * 7 {
        keyspace.insert(index.to_be_bytes(), [7; 8]).unwrap();
        index += 1;
        memory = case.db.stats().memory;
        assert!(memory.total() <= BUDGET / 100 * 101, "{memory:?}");
    }
    assert!(memory.cache < before.cache / 2, "{memory:?}");
}

#[test]
fn caches_shrink_before_memtables_exceed_the_budget() {
    let mut case = MemoryCase::new();
    case.fill();
    case.gets_from(FLEX, 200);
    let before = case.db.stats().memory;
    assert!(before.total() > BUDGET / 100 * 85, "{before:?}");
    // Without background work, which may be busy with a long step.
    let mut taken = 0;
    for index in 0..1500u64 {
        for (keyspace, _) in &case.keyspaces[FLEX..] {
            keyspace.insert(index.to_be_bytes(), [9; 20]).unwrap();
        }
        let memory = case.db.stats().memory;
        taken = taken.max(memory.index.saturating_sub(before.index));
        assert!(memory.total() <= BUDGET, "{index}: {memory:?}");
    }
    assert!(taken > BUDGET / 16, "{taken}");
}
