//! The cache under a scheduler: readers without locks, concurrent with a page that is replaced,
//! evicted and read again. Also GC's question, concurrent with a step.
//!
//! Built with `--cfg shuttle` only. The settings are those of `sheaf_platform::sync::explore`.

use std::sync::Arc;

use sheaf_engine::contract::{Action, EngineCheckpoint, EngineCommits, EngineOp, Liveness};
use sheaf_engine::views::Views;
use sheaf_log::segment::{Address, DATA_START};
use sheaf_log::types::Seq;
use sheaf_platform::memory::block_alloc::BlockBox;
use sheaf_platform::sync::{Mutex, epoch, explore, thread};

use super::fixture::{engine_with_segment, level_store, set_version, spill_all, write};
use crate::engine::KreonEngine;
use crate::memtable::RecordWord;
use crate::tree::cache::CachedNode;
use crate::tree::node::{LeafEntry, LeafPair, build_node};

fn frame(number: u64) -> BlockBox<CachedNode> {
    let entry = LeafEntry::put(Address::from_bits(number), 64, 7, 0, 0);
    let (bytes, _) =
        build_node(&[LeafPair { key: b"k", entry, max_seq: Seq(1), value: &[] }], 0, 1, Seq(1), 512);
    CachedNode::new(&bytes, true, false)
}

fn number(frame: &CachedNode) -> u64 {
    frame.node().find(7, b"k").map_or(0, |slot| frame.node().entry(slot).address().bits())
}

#[test]
fn a_cached_node_is_complete_and_belongs_to_its_page() {
    explore(2000, || {
        let level_store = level_store(true);
        level_store.cache.replace(1, frame(10), &epoch::pin());
        let writer = {
            let level_store = Arc::clone(&level_store);
            thread::spawn(move || {
                let guard = &epoch::pin();
                level_store.cache.replace(1, frame(11), guard);
                level_store.cache.remove(1, guard);
                level_store.cache.evict_until_room(u64::MAX, guard);
            })
        };
        let reader = {
            let level_store = Arc::clone(&level_store);
            thread::spawn(move || {
                let guard = &epoch::pin();
                assert_eq!(number(level_store.cache.insert_read(2, frame(20), guard)), 20);
                if let Some(found) = level_store.cache.get(2, guard) {
                    assert_eq!(number(found), 20);
                }
            })
        };
        let guard = &epoch::pin();
        let mut last = 10;
        for _ in 0..2 {
            if let Some(found) = level_store.cache.get(1, guard) {
                assert!(number(found) >= last && number(found) <= 11);
                last = number(found);
            }
        }
        assert_eq!(number(level_store.cache.insert_read(2, frame(20), guard)), 20);
        writer.join().expect("it writes");
        reader.join().expect("it reads");
    });
}

#[test]
fn fingerprints_match_the_content_of_the_page() {
    explore(2000, || {
        let level_store = level_store(true);
        level_store.cache.replace(1, frame(10), &epoch::pin());
        level_store.cache.get_for_lookup(1, &epoch::pin());
        let writer = {
            let level_store = Arc::clone(&level_store);
            thread::spawn(move || {
                let guard = &epoch::pin();
                level_store.cache.replace(1, frame(11), guard);
                // No lookup uses this content.
                assert!(!level_store.cache.has_fingerprints(1), "fingerprints of the old content");
                level_store.cache.remove(1, guard);
            })
        };
        level_store.cache.evict(1, &epoch::pin());
        writer.join().expect("it writes");
        assert!(
            !level_store.cache.contains(1) && !level_store.cache.has_fingerprints(1),
            "a removed page is still cached"
        );
    });
}

#[test]
fn a_record_stays_newest_while_a_step_moves_it_into_the_last_level() {
    explore(1000, || {
        let (engine, segment) = engine_with_segment();
        let (old, new) = (DATA_START, DATA_START + 256);
        for (seq, offset) in [(1, old), (2, new)] {
            let len = write(&segment, offset, b"k", &[7; 200], seq);
            set_version(
                &engine,
                b"k",
                RecordWord::put(Address::new(segment.slot(), offset), len, false),
                seq,
            );
            match seq {
                1 => spill_all(&engine),
                _ => engine.freeze(),
            }
        }
        let engine = Arc::new(engine);
        let cleaner = {
            let (engine, slot) = (Arc::clone(&engine), segment.slot());
            thread::spawn(move || {
                let guard = &epoch::pin();
                let is_newest = |offset| engine.is_newest_record(b"k", Address::new(slot, offset), guard);
                assert!(!is_newest(old).expect("nothing is read"), "what was superseded");
                assert!(is_newest(new).expect("nothing is read"), "what superseded it");
            })
        };
        assert!(engine.step(&Views::default().copy_as_of(Seq(9))).expect("a step"));
        cleaner.join().expect("it asks");
    });
}

#[test]
fn a_relocated_record_does_not_replace_a_newer_one_spilled_concurrently() {
    explore(5000, || {
        let (engine, segment) = engine_with_segment();
        let (old, new, copy) = (DATA_START, DATA_START + 256, DATA_START + 512);
        let put = |engine: &KreonEngine, seq, offset| {
            let len = write(&segment, offset, b"k", &[7; 200], seq);
            set_version(engine, b"k", RecordWord::put(Address::new(segment.slot(), offset), len, false), seq);
        };
        put(&engine, 1, old);
        spill_all(&engine);
        let (engine, order) = (Arc::new(engine), Arc::new(Mutex::new(())));
        let cleaner = {
            let (engine, order, slot) = (Arc::clone(&engine), Arc::clone(&order), segment.slot());
            thread::spawn(move || {
                let (guard, from, to) = (&epoch::pin(), Address::new(slot, old), Address::new(slot, copy));
                if engine.liveness_at(b"k", from, guard).expect("nothing is read") == Liveness::Newest {
                    let _order = order.lock();
                    engine.repoint(b"k", from, to, guard);
                }
            })
        };
        {
            let _order = order.lock();
            put(&engine, 2, new);
        }
        engine.freeze();
        assert!(engine.step(&Views::default().copy_as_of(Seq(9))).expect("a step"));
        cleaner.join().expect("it asks");
        let guard = &epoch::pin();
        let found = engine.find_at(Seq::LATEST, b"k", guard).expect("nothing is read");
        assert_eq!(found.map(|shown| shown.address), Some(Address::new(segment.slot(), new)));
    });
}

/// A step applies the range tombstone of a frozen memtable while readers and GC look for a key in
/// its range. The newest state never shows the key, and an older view always does.
#[test]
fn a_removed_range_stays_removed_while_a_step_applies_it() {
    explore(1000, || {
        let (engine, segment) = engine_with_segment();
        let address = Address::new(segment.slot(), DATA_START);
        let len = write(&segment, DATA_START, b"k", &[7; 200], 1);
        set_version(&engine, b"k", RecordWord::put(address, len, false), 1);
        spill_all(&engine);
        let mut views = Views::default();
        views.register(Seq(1));
        let removal = EngineOp::new(b"a", Action::RemoveRange(Some(b"z")));
        engine.apply(Seq(2), &removal, &views);
        engine.freeze();
        let engine = Arc::new(engine);
        let reader = {
            let engine = Arc::clone(&engine);
            thread::spawn(move || {
                for _ in 0..2 {
                    let guard = &epoch::pin();
                    let shown = |at| engine.find_at(at, b"k", guard).expect("nothing is read");
                    assert!(shown(Seq::LATEST).is_none(), "a removed key");
                    assert_eq!(shown(Seq(1)).map(|shown| shown.address), Some(address));
                }
            })
        };
        let cleaner = {
            let engine = Arc::clone(&engine);
            thread::spawn(move || {
                let guard = &epoch::pin();
                let liveness = engine.liveness_at(b"k", address, guard).expect("nothing is read");
                assert_eq!(liveness, Liveness::Pinned);
            })
        };
        while engine.step(&views.copy_as_of(Seq(2))).expect("a step") {}
        reader.join().expect("it reads");
        cleaner.join().expect("it asks");
        assert_eq!(engine.state(&epoch::pin()).last_nonempty_level(), None);
    });
}
