//! # Mapping benchmark: cost of a cache hit compared with a read-only mapping
//!
//! The paper's code reads its trees through a kernel mapping; here a page is found through an
//! array. Both variants use the same pages and the same node code, with everything in memory, on
//! one thread. The cache is on huge pages if the system provides them:
//!
//!     cargo test --release -p sheaf-kreon mapping -- --ignored --nocapture

use std::path::PathBuf;
use std::sync::Arc;

use sheaf_log::segment::Address;
use sheaf_log::types::Seq;
use sheaf_platform::clock::{Clock, SystemClock};
use sheaf_platform::disk::real::RealDisk;
use sheaf_platform::disk::{Disk, File, OpenMode};
use sheaf_platform::memory::block_alloc;
use sheaf_platform::sync::epoch;

use crate::level_edit::LevelEdit;
use crate::lookup::fingerprint_of;
use crate::node::{LeafEntry, LeafPair, Node};
use crate::tests::{NewerWins, PageCost, level_store_on, publish};
use crate::tree::{Level, LevelStore, SeekTarget};

pub(crate) const PAIRS: u64 = 2_000_000;
/// Number of steps in which the keys are inserted, so that leaves are split and packed as in a
/// database that grew.
const STEPS: u64 = 20;
const ROUNDS: usize = 7;
/// Number of calls that move the whole cache to huge pages.
const HUGE_PAGE_CALLS: usize = 500;
const GETS: u64 = 500_000;
const SCANS: u64 = 50_000;
const SCAN: usize = 50;

pub(crate) fn key_of(number: u64) -> Vec<u8> {
    // The factor is odd, so each number occurs once, in no order.
    format!("{:027}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).into_bytes()
}

/// A directory that is removed when this is dropped.
pub(crate) struct BenchDir(PathBuf);

impl BenchDir {
    pub(crate) fn new(name: &str) -> BenchDir {
        BenchDir(std::env::temp_dir().join(format!("sheaf-kreon-{name}-{}", std::process::id())))
    }

    /// Returns a store in the directory for a level of some million keys.
    pub(crate) fn level_store(&self) -> Arc<LevelStore> {
        level_store_on(Arc::new(RealDisk::default()), &self.0, 2 << 30, false)
    }
}

#[allow(clippy::disallowed_methods, reason = "removes its own directory")]
impl Drop for BenchDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The pages of a file in a kernel mapping.
struct MappedLevels {
    file: Arc<dyn File>,
    page: usize,
}

impl MappedLevels {
    fn node(&self, page: u32) -> Node<'_> {
        // SAFETY:
        // * The pages were written before the file was opened, and have not been written since.
        let bytes = unsafe { self.file.mapped(u64::from(page) * self.page as u64, self.page) };
        Node::from_checked(bytes.expect("it is mapped"))
    }

    fn find(&self, level: &Level, hash: u64, key: &[u8]) -> Option<LeafEntry> {
        let (mut at, height) = level.root?;
        for _ in 0..height {
            let node = self.node(at.page);
            at = node.child(node.child_containing(key));
        }
        let node = self.node(at.page);
        node.find(fingerprint_of(hash), key).map(|slot| node.entry(slot))
    }

    /// Returns the sum of [`SCAN`] addresses from `key` on.
    fn scan(&self, level: &Level, key: &[u8]) -> u64 {
        let (mut from, mut seen, mut sum, mut name) = (key.to_vec(), 0, 0, Vec::new());
        while let Some((mut at, height)) = level.root {
            let mut high = None;
            for _ in 0..height {
                let node = self.node(at.page);
                let slot = node.child_containing(&from);
                if slot + 1 < node.len() {
                    let mut next = Vec::new();
                    node.key(slot + 1, &mut next);
                    high = Some(next);
                }
                at = node.child(slot);
            }
            let node = self.node(at.page);
            for slot in node.count_before(&from, false)..node.len() {
                name.clear();
                node.key(slot, &mut name);
                sum += node.entry(slot).address().bits() + name.len() as u64;
                seen += 1;
                if seen == SCAN {
                    return sum;
                }
            }
            match high {
                Some(next) => from = next,
                None => break,
            }
        }
        sum
    }
}

fn scan(level_store: &LevelStore, level: &Level, key: &[u8]) -> u64 {
    let guard = &epoch::pin();
    let (mut seen, mut sum, mut name) = (0, 0, Vec::new());
    let mut leaf = level_store.locate(level, SeekTarget::Containing(key), guard).unwrap();
    let mut from = Some(key);
    while let Some(now) = leaf {
        let node = level_store.node(now.at, 0, guard).unwrap().node();
        for slot in from.take().map_or(0, |key| node.count_before(key, false))..node.len() {
            name.clear();
            node.key(slot, &mut name);
            sum += node.entry(slot).address().bits() + name.len() as u64;
            seen += 1;
            if seen == SCAN {
                return sum;
            }
        }
        leaf = now
            .high
            .and_then(|high| level_store.locate(level, SeekTarget::Containing(&high), guard).unwrap());
    }
    sum
}

/// Returns a level of all pairs.
pub(crate) fn fill(level_store: &LevelStore) -> Level {
    let mut level = Level::default();
    for step in 0..STEPS {
        let mut keys: Vec<(Vec<u8>, u64)> =
            (step..PAIRS).step_by(usize::try_from(STEPS).unwrap()).map(|n| (key_of(n), n)).collect();
        keys.sort_unstable();
        level = apply_keys(level_store, &level, &keys, None).0;
    }
    level
}

/// Returns the level after sorted keys with their numbers were inserted; merges always, never, or
/// by the rule.
pub(crate) fn apply_keys(
    level_store: &LevelStore,
    level: &Level,
    keys: &[(Vec<u8>, u64)],
    merges: Option<bool>,
) -> (Level, PageCost) {
    let guard = &epoch::pin();
    let entry = |(key, number): &(Vec<u8>, u64)| {
        let print = fingerprint_of(level_store.hash(key));
        LeafEntry::put(Address::from_bits(number * 8), 64, print, 0, 0)
    };
    let pair = |item| -> LeafPair<'_> {
        let (key, _): &(Vec<u8>, u64) = item;
        LeafPair { key, entry: entry(item), max_seq: Seq(1), value: &[] }
    };
    let pairs: Vec<LeafPair<'_>> = keys.iter().map(pair).collect();
    let mut meet = NewerWins;
    let mut change = LevelEdit::new(level_store, guard, 1 << 40, &mut meet);
    change.forced_merge = merges;
    let level = change.apply(level, &pairs).unwrap();
    let cost = publish(level_store, change, |_| true, guard);
    (level, cost)
}

fn nanoseconds(count: u64, mut each: impl FnMut(u64)) -> f64 {
    let began = SystemClock.now();
    (0..count).for_each(|n| each(n.wrapping_mul(0x2545_f491_4f6c_dd1d) % PAIRS));
    (SystemClock.now() - began).as_secs_f64() * 1e9 / count as f64
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

#[test]
#[ignore = "a measurement, for a quiet machine and a release build"]
fn a_hit_costs_little_more_than_a_mapping() {
    let place = BenchDir::new("mapping");
    let level_store = place.level_store();
    let level = fill(&level_store);
    // As the database does while there is room, a few pages at a time.
    (0..HUGE_PAGE_CALLS).for_each(|_| block_alloc::collapse_some());
    let file = RealDisk::default().open(&level_store.space.page_file.path, OpenMode::Read).unwrap();
    file.map(file.len().unwrap());
    let mapped = MappedLevels { file, page: level_store.space.page_file.page };
    let (mut gets, mut scans) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for round in 0..2 * ROUNDS {
        let ours = round % 2 == 0;
        let get = nanoseconds(GETS, |n| {
            let key = key_of(n);
            let hash = level_store.hash(&key);
            let found = match ours {
                true => level_store.find(&level, hash, &key, &epoch::pin()).unwrap().map(|seen| seen.entry),
                false => mapped.find(&level, hash, &key),
            };
            assert_eq!(found.map(|entry| entry.address().bits()), Some(n * 8));
        });
        let mut sum = 0u64;
        let walk = nanoseconds(SCANS, |n| {
            let key = key_of(n);
            sum = sum.wrapping_add(if ours {
                scan(&level_store, &level, &key)
            } else {
                mapped.scan(&level, &key)
            });
        });
        std::hint::black_box(sum);
        gets[round % 2].push(get);
        scans[round % 2].push(walk);
    }
    for (operation, [ours, theirs]) in [("get", gets), ("scan of 50", scans)] {
        let (ours, theirs) = (median(ours), median(theirs));
        println!("{operation}: {ours:.0} ns, over a mapping {theirs:.0} ns: {:.2} x", ours / theirs);
    }
}
