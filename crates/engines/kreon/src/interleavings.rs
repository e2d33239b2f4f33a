//! The cache under a scheduler: readers who take no lock beside a page that gets another content, is evicted and comes back.
//!
//! Built with `--cfg shuttle` only. The knobs are those of `sheaf_base::sync::explore`.

use std::sync::Arc;

use sheaf_base::memory::pieces::Piece;
use sheaf_base::segment::Address;
use sheaf_base::sync::{epoch, explore, thread};
use sheaf_base::types::Seq;

use crate::cache::Frame;
use crate::node::{Entry, Pair, make};
use crate::tests::shelf;

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
