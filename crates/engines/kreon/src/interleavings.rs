//! The cache under a scheduler: readers who take no lock beside a page that gets another content, is evicted and comes back. And the cleaner's
//! question beside a step.
//!
//! Built with `--cfg shuttle` only. The knobs are those of `sheaf_base::sync::explore`.

use std::sync::Arc;

use sheaf_base::engine::{Engine, Hold};
use sheaf_base::memory::pieces::Piece;
use sheaf_base::segment::{Address, DATA_START};
use sheaf_base::sync::{Mutex, epoch, explore, thread};
use sheaf_base::types::Seq;
use sheaf_base::views::Views;

use crate::cache::Frame;
use crate::engine::KreonEngine;
use crate::memtable::Word;
use crate::node::{Entry, Pair, make};
use crate::tests::{engine_with_segment, say, shelf, spill_all, write};

fn frame(number: u64) -> Piece<Frame> {
    let entry = Entry::put(Address::from_bits(number), 64, 7, 0, 0);
    let (bytes, _) = make(&[Pair { key: b"k", entry, newest: Seq(1), value: &[] }], 0, 1, Seq(1), 512);
    Frame::new(&bytes, true, false)
}

fn number(frame: &Frame) -> u64 {
    frame.node().find(7, b"k").map_or(0, |slot| frame.node().entry(slot).address().bits())
}

#[test]
fn what_is_found_is_whole_and_of_its_page() {
    explore(2000, || {
        let shelf = shelf(true);
        shelf.cache.put(1, frame(10), &epoch::pin());
        let writer = {
            let shelf = Arc::clone(&shelf);
            thread::spawn(move || {
                let guard = &epoch::pin();
                shelf.cache.put(1, frame(11), guard);
                shelf.cache.forget(1, guard);
                shelf.cache.make_room(u64::MAX, guard);
            })
        };
        let reader = {
            let shelf = Arc::clone(&shelf);
            thread::spawn(move || {
                let guard = &epoch::pin();
                assert_eq!(number(shelf.cache.take_in(2, frame(20), guard)), 20);
                if let Some(found) = shelf.cache.get(2, guard) {
                    assert_eq!(number(found), 20);
                }
            })
        };
        let guard = &epoch::pin();
        let mut last = 10;
        for _ in 0..2 {
            if let Some(found) = shelf.cache.get(1, guard) {
                assert!(number(found) >= last && number(found) <= 11);
                last = number(found);
            }
        }
        assert_eq!(number(shelf.cache.take_in(2, frame(20), guard)), 20);
        writer.join().expect("it writes");
        reader.join().expect("it reads");
    });
}

#[test]
fn prints_are_of_what_the_page_has() {
    explore(2000, || {
        let shelf = shelf(true);
        shelf.cache.put(1, frame(10), &epoch::pin());
        shelf.cache.ask(1, &epoch::pin());
        let writer = {
            let shelf = Arc::clone(&shelf);
            thread::spawn(move || {
                let guard = &epoch::pin();
                shelf.cache.put(1, frame(11), guard);
                // Nobody looks anything up in this one.
                assert!(!shelf.cache.has_prints(1), "prints of what was there before");
                shelf.cache.forget(1, guard);
            })
        };
        shelf.cache.give_way(1, &epoch::pin());
        writer.join().expect("it writes");
        assert!(!shelf.cache.has(1) && !shelf.cache.has_prints(1), "something of what was forgotten");
    });
}

#[test]
fn the_newest_is_the_newest_while_a_step_brings_it_into_the_last_level() {
    explore(1000, || {
        let (engine, segment) = engine_with_segment();
        let (old, new) = (DATA_START, DATA_START + 256);
        for (seq, offset) in [(1, old), (2, new)] {
            let len = write(&segment, offset, b"k", &[7; 200], seq);
            say(&engine, b"k", Word::put(Address::new(segment.slot(), offset), len, false), seq);
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
                let is_newest = |offset| engine.is_first(b"k", Address::new(slot, offset), guard);
                assert!(!is_newest(old).expect("nothing is read"), "what was superseded");
                assert!(is_newest(new).expect("nothing is read"), "what superseded it");
            })
        };
        assert!(engine.step(&Views::default().copy_as_of(Seq(9))).expect("a step"));
        cleaner.join().expect("it asks");
    });
}

#[test]
fn what_is_moved_is_not_put_over_what_came_and_went_down_meanwhile() {
    explore(5000, || {
        let (engine, segment) = engine_with_segment();
        let (old, new, copy) = (DATA_START, DATA_START + 256, DATA_START + 512);
        let put = |engine: &KreonEngine, seq, offset| {
            let len = write(&segment, offset, b"k", &[7; 200], seq);
            say(engine, b"k", Word::put(Address::new(segment.slot(), offset), len, false), seq);
        };
        put(&engine, 1, old);
        spill_all(&engine);
        let (engine, order) = (Arc::new(engine), Arc::new(Mutex::new(())));
        let cleaner = {
            let (engine, order, slot) = (Arc::clone(&engine), Arc::clone(&order), segment.slot());
            thread::spawn(move || {
                let (guard, from, to) = (&epoch::pin(), Address::new(slot, old), Address::new(slot, copy));
                if engine.hold_at(b"k", from, guard).expect("nothing is read") == Hold::Head {
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
