//! The trie under a scheduler: writers of different keys, as the contract requires, and readers
//! without a lock.
//!
//! Built with `--cfg shuttle` only. `sheaf_platform::sync::explore` documents the settings.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use sheaf_engine::context::{EngineContext, EngineDir};
use sheaf_engine::contract::EngineCheckpoint;
use sheaf_engine::views::Views;
use sheaf_log::blob::Blobs;
use sheaf_log::options::EngineOptions;
use sheaf_log::segment::Address;
use sheaf_log::types::{KeyspaceId, Seq, StoreId};
use sheaf_platform::disk::Disk;
use sheaf_platform::sync::atomic::Ordering;
use sheaf_platform::sync::{epoch, explore, thread};
use sheaf_sim::SimDisk;

use crate::engine::CedrusEngine;
use crate::entry_list::TrieEntry;
use crate::heap::FrozenTrie;
use crate::paged_trie::PagedTrie;
use crate::resident_pages::ResidentPages;
use crate::shape::{LINE_WORDS, TrieShape};
use crate::trie::Trie;
use crate::trie_file::FrozenTable;

/// Returns hashes that share their first bits, so that insertions split the list and add a node
/// below it.
fn hash(n: u64) -> u32 {
    let n = u32::try_from(n).expect("small");
    0x4000_0000 | n.reverse_bits() >> 2
}

fn place(n: u64) -> Address {
    Address::from_bits((n + 1) * 64)
}

/// Returns a trie with these hashes. The address of each is derived from its index.
fn trie(shape: TrieShape, hashes: impl Iterator<Item = u32>) -> Trie {
    let trie = Trie::new(shape);
    let guard = &epoch::pin();
    let add = |(n, hash)| trie.insert(TrieEntry::new(hash, place(n)), guard).expect("it is in memory");
    (0..).zip(hashes).for_each(add);
    trie
}

fn filled(count: u64) -> Arc<Trie> {
    Arc::new(trie(TrieShape::TINY, (0..count).map(hash)))
}

fn holds(trie: &Trie, n: u64, address: Address) -> bool {
    trie.find(hash(n), &epoch::pin(), |_| {}).expect("it is in memory").contains(&address)
}

/// Adds entries, removes them and changes one address, so that lists split, merge and free their
/// lines.
fn change(trie: &Trie, from: u64, to: u64) {
    let guard = &epoch::pin();
    for n in from..to {
        trie.insert(TrieEntry::new(hash(n), place(n)), guard).expect("it is in memory");
    }
    for n in from..to {
        assert_eq!(trie.remove(hash(n), place(n), guard), Ok(true));
    }
    assert_eq!(trie.replace(hash(1), place(1), place(100), guard), Ok(true));
}

#[test]
fn unchanged_entries_are_found_during_splits_merges_and_relocations() {
    explore(2000, || {
        let trie = filled(3);
        let writer = {
            let trie = Arc::clone(&trie);
            thread::spawn(move || change(&trie, 3, 8))
        };
        for _ in 0..2 {
            assert!(holds(&trie, 0, place(0)) && holds(&trie, 2, place(2)));
            assert!(holds(&trie, 1, place(1)) || holds(&trie, 1, place(100)));
        }
        writer.join().expect("it changes");
        assert!(holds(&trie, 1, place(100)) && !holds(&trie, 5, place(5)));
    });
}

#[test]
fn a_walk_during_changes_yields_unchanged_entries_once() {
    explore(2000, || {
        let trie = filled(3);
        let writer = {
            let trie = Arc::clone(&trie);
            thread::spawn(move || change(&trie, 3, 8))
        };
        let (mut from, mut seen, mut piece) = (0, BTreeMap::new(), Vec::new());
        loop {
            let last = trie.visit(from, &epoch::pin(), &mut piece).expect("it is in memory");
            piece.iter().for_each(|entry| *seen.entry(entry.hash).or_insert(0) += 1);
            let Some(next) = last.checked_add(1) else { break };
            from = next;
        }
        assert!((0..3).all(|n| seen.get(&hash(n)) == Some(&1)), "{seen:?}");
        assert!(seen.values().all(|times| *times == 1), "{seen:?}");
        writer.join().expect("it changes");
    });
}

/// Two writers of different keys split and merge lists and change addresses.
#[test]
fn two_writers_of_different_keys_lose_nothing() {
    explore(2000, || {
        let trie = filled(3);
        let writers = [0, 1].map(|writer| {
            let trie = Arc::clone(&trie);
            thread::spawn(move || {
                let guard = &epoch::pin();
                let own = || (3..11).filter(|n| n % 2 == writer);
                for n in own() {
                    trie.insert(TrieEntry::new(hash(n), place(n)), guard).expect("it is in memory");
                    assert!(holds(&trie, n, place(n)));
                }
                let from = place(writer);
                assert_eq!(trie.replace(hash(writer), from, place(100 + writer), guard), Ok(true));
                for n in own().filter(|n| *n > 4) {
                    assert_eq!(trie.remove(hash(n), place(n), guard), Ok(true));
                }
            })
        });
        assert!(holds(&trie, 2, place(2)));
        assert!(holds(&trie, 1, place(1)) || holds(&trie, 1, place(101)));
        writers.into_iter().for_each(|writer| writer.join().expect("it changes"));
        assert!((0..11).all(|n| holds(&trie, n, place(n)) == (2..5).contains(&n)));
        assert!((0..2).all(|n| holds(&trie, n, place(100 + n))));
        assert_eq!(trie.len(), 5);
    });
}

/// Returns a trie with no page in memory.
fn paged_trie() -> Arc<PagedTrie> {
    Arc::new(PagedTrie::new(trie(TrieShape::TINY, (0..6).map(hash))))
}

#[test]
fn a_visited_page_can_be_changed_during_evictions() {
    explore(2000, || {
        let world = paged_trie();
        let others = [(), ()].map(|()| {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                world.checkpoint_and_evict();
                assert_eq!(world.find(hash(5), &epoch::pin())[..], [place(5)]);
            })
        });
        for n in 0..3 {
            world.replace(hash(n), place(n), place(n + 50));
        }
        others.into_iter().for_each(|other| other.join().expect("it finds"));
        (0..3).for_each(|n| assert_eq!(world.find(hash(n), &epoch::pin())[..], [place(n + 50)]));
    });
}

#[test]
fn an_outdated_read_of_a_page_is_discarded() {
    explore(2000, || {
        let world = paged_trie();
        let reader = {
            let world = Arc::clone(&world);
            thread::spawn(move || drop(world.find(hash(0), &epoch::pin())))
        };
        world.replace(hash(0), place(0), place(50));
        world.checkpoint_and_evict();
        reader.join().expect("it finds");
        assert_eq!(world.find(hash(0), &epoch::pin())[..], [place(50)]);
    });
}

/// Returns a hash in the other shard than [`hash`] does.
fn other_hash(n: u64) -> u32 {
    hash(n) | 0x8000_0000
}

/// Writers of two shards allocate and free lines of the same pages, while a checkpoint copies and
/// evicts the pages and readers load them again.
#[test]
fn writers_of_two_shards_share_pages_during_evictions() {
    explore(2000, || {
        let hashes = (0..3).map(hash).chain((3..6).map(other_hash));
        let world = Arc::new(PagedTrie::new(trie(TrieShape::TINY, hashes)));
        let writers = [(hash as fn(u64) -> u32, 0), (other_hash as fn(u64) -> u32, 3)].map(|(hash, from)| {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                (from + 10..from + 13).for_each(|n| world.insert(hash(n), place(n)));
                world.replace(hash(from), place(from), place(from + 50));
                (from + 10..from + 12).for_each(|n| world.remove(hash(n), place(n)));
            })
        });
        let mover = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.checkpoint_and_evict())
        };
        assert_eq!(world.find(hash(2), &epoch::pin())[..], [place(2)]);
        assert_eq!(world.find(other_hash(5), &epoch::pin())[..], [place(5)]);
        writers.into_iter().for_each(|writer| writer.join().expect("it changes"));
        mover.join().expect("it moves");
        let guard = &epoch::pin();
        for (n, at) in [(0, Some(50)), (1, Some(1)), (2, Some(2)), (10, None), (11, None), (12, Some(12))] {
            let at = at.map(place);
            assert_eq!(world.find(hash(n), guard).first().copied(), at);
            let at = at.map(|at| place(at.bits() / 64 + 2));
            assert_eq!(world.find(other_hash(n + 3), guard).first().copied(), at);
        }
        assert_eq!(world.trie.len(), 8);
        crate::check::check_trie(&world.trie);
    });
}

/// Writers of two shards change a list that an older version wrote for both.
#[test]
fn two_writers_split_a_list_of_both_shards() {
    explore(2000, || {
        let entries = [(0, hash(0)), (1, hash(1)), (2, other_hash(2))].map(|(n, hash)| (hash, place(n)));
        let trie = Arc::new(Trie::without_shards(TrieShape::TINY, entries));
        let writers = [(hash as fn(u64) -> u32, 0), (other_hash as fn(u64) -> u32, 2)].map(|(hash, n)| {
            let trie = Arc::clone(&trie);
            thread::spawn(move || {
                let guard = &epoch::pin();
                assert_eq!(trie.replace(hash(n), place(n), place(n + 50), guard), Ok(true));
                trie.insert(TrieEntry::new(hash(n + 10), place(n + 10)), guard).expect("it is in memory");
            })
        });
        assert!(holds(&trie, 1, place(1)));
        writers.into_iter().for_each(|writer| writer.join().expect("it changes"));
        assert!(holds(&trie, 0, place(50)) && holds(&trie, 1, place(1)) && holds(&trie, 10, place(10)));
        let guard = &epoch::pin();
        for (n, at) in [(2, 52), (12, 12)] {
            assert_eq!(trie.find(other_hash(n), guard, |_| {}).expect("it is in memory")[..], [place(at)]);
        }
        assert_eq!(crate::check::check_trie(&trie).entries.len(), 5);
    });
}

/// A reader that found a page under a guard reads consistent content, while other threads evict the
/// page and release its memory to the system.
#[test]
fn memory_is_released_after_its_readers() {
    const WORDS: usize = 512;
    let put = |pages: &ResidentPages, stamp| {
        let fresh = pages.new_page();
        [0, WORDS - 1].into_iter().for_each(|word| fresh.words()[word].store(stamp, Ordering::Relaxed));
        pages.put(3, fresh);
    };
    explore(300, move || {
        let pages = Arc::new(ResidentPages::new(WORDS / LINE_WORDS));
        put(&pages, 1);
        let readers = [(), ()].map(|()| {
            let pages = Arc::clone(&pages);
            thread::spawn(move || {
                let guard = epoch::pin();
                let Some(words) = pages.get(3, &guard) else { return };
                let seen = [0, WORDS - 1, 0].map(|word| words[word].load(Ordering::Relaxed));
                assert!(seen[0] > 0 && seen == [seen[0]; 3], "{seen:?}");
            })
        });
        for stamp in [2, 3] {
            let guard = epoch::pin();
            while pages.evict(3, &guard).is_none() {}
            drop(guard);
            pages.release();
            put(&pages, stamp);
        }
        readers.into_iter().for_each(|reader| reader.join().expect("it reads"));
    });
}

/// Returns an engine in a new directory on a simulated disk.
fn engine() -> Arc<CedrusEngine> {
    let (disk, dir): (Arc<dyn Disk>, _) = (Arc::new(SimDisk::new()), Path::new("/db"));
    disk.create_dir(dir).expect("it is made");
    disk.create_dir(&dir.join("blobs")).expect("it is made");
    let blobs = Blobs::new(Arc::clone(&disk), dir.join("blobs"), 1, StoreId(1), true);
    let engine_dir = EngineDir::new(disk, dir, false);
    let context = EngineContext::new(blobs, 1 << 22, 7, true).with_engine_dir(engine_dir, true);
    Arc::new(CedrusEngine::new(Arc::new(context), KeyspaceId(1), &EngineOptions::default()))
}

/// The store ends a checkpoint when the engine reports that all pages are written. Any thread may
/// ask for this, even one that waits for room while the background is writing.
#[test]
fn a_checkpoint_is_not_flushed_while_a_thread_writes() {
    explore(500, || {
        let engine = engine();
        let guard = &epoch::pin();
        (0..40)
            .for_each(|n| engine.trie.insert(TrieEntry::new(hash(n), place(n)), guard).expect("it is new"));
        engine.freeze();
        let movers = [(), ()].map(|()| {
            let engine = Arc::clone(&engine);
            thread::spawn(move || {
                while engine.maintain(&Views::default(), Seq(1)).expect("it writes") {}
                if engine.is_flushed() {
                    let frozen =
                        FrozenTable::of(engine.trie.heap().frozen.as_ref().unwrap_or(&FrozenTrie::default()));
                    let table = engine.trie_file.finish_checkpoint(&frozen).expect("it is synced");
                    assert!(table.len() > 1 && table.iter().all(|place| place.at > 0), "{table:?}");
                }
            })
        });
        movers.into_iter().for_each(|mover| mover.join().expect("it moves"));
        assert!(engine.is_flushed());
    });
}
