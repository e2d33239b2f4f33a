//! Rings and sleeping under a scheduler.
//!
//! Built with `--cfg shuttle` only. The knobs are those of `sheaf_base::sync::explore`. What it cannot see: weak memory;
//! the kernel's bells, which [`Bells`] stand for.

use std::sync::Arc;

use sheaf_base::sync::{explore, thread};

use crate::link::{Link, SharedLink};
use crate::memory::Memory;
use crate::ring::{Incoming, Layout, MIN_RING, Outgoing};
use crate::wake::{Asleep, Bells, Wake};

/// One side: its inbox, the word in the peer's inbox where it says that it sleeps, its bell.
struct Side {
    inbox: Arc<Memory>,
    peer: Arc<Memory>,
    asleep: usize,
    bell: Bells,
    link: SharedLink<Bells>,
}

impl Side {
    /// Sleeps unless `is_awake`. Without the second look it is the mistake that is to be found.
    fn sleep(&self, looks_twice: bool, mut is_awake: impl FnMut() -> bool) {
        if is_awake() {
            return;
        }
        let asleep = Asleep::say(&self.peer, self.asleep);
        if !(looks_twice && is_awake()) {
            self.bell.wait();
        }
        drop(asleep);
    }
}

fn pair() -> (Side, Side, Layout) {
    let layout = Layout::new(1, 1, MIN_RING).expect("a layout");
    let [a, b] = [(); 2].map(|()| Arc::new(Memory::heap(layout.words())));
    let [a_bell, b_bell] = [(); 2].map(|()| Bells::default());
    let at = layout.asleep();
    let side = |inbox: &Arc<Memory>, peer: &Arc<Memory>, bell: &Bells, other: &Bells| Side {
        inbox: Arc::clone(inbox),
        peer: Arc::clone(peer),
        asleep: at,
        bell: bell.clone(),
        link: SharedLink::new(
            Arc::clone(peer),
            vec![Wake { board: Arc::clone(inbox), at, bell: other.clone() }],
        ),
    };
    (side(&a, &b, &a_bell, &b_bell), side(&b, &a, &b_bell, &a_bell), layout)
}

/// Messages of `len` bytes from one side to the other, each filled with its number: with long ones the writer has to wait for
/// room, too.
fn talk(count: u8, len: usize, looks_twice: bool) {
    let (mut writer, mut reader, layout) = pair();
    let writing = thread::spawn(move || {
        let mut ring = Outgoing::new(layout, 0);
        for number in 0..count {
            let (message, mut from) = (vec![number; len], 0);
            while from < len {
                match ring.push(&writer.inbox, &mut writer.link, &message, from).expect("no violation") {
                    Some(to) => {
                        from = to;
                        writer.link.post(0).expect("a ring");
                    }
                    None => writer
                        .sleep(looks_twice, || ring.has_room_for_any(&writer.inbox).expect("no violation")),
                }
            }
        }
    });
    let mut ring = Incoming::new(layout, 0);
    let mut credit = ring.credit();
    let (mut number, mut message) = (0, Vec::new());
    while number < count {
        match ring.take(&reader.inbox, &mut message).expect("no violation") {
            Some(whole) => {
                if credit.tell(&mut reader.link, ring.head()).expect("a write") {
                    reader.link.post(0).expect("a ring");
                }
                if whole {
                    assert_eq!(message, vec![number; len]);
                    message.clear();
                    number += 1;
                }
            }
            None => reader.sleep(looks_twice, || ring.has_any(&reader.inbox)),
        }
    }
    writing.join().expect("it writes");
}

#[test]
fn short_messages_arrive_whole_and_in_order_whoever_sleeps() {
    explore(2000, || talk(3, 8, true));
}

#[test]
fn a_writer_that_waits_for_room_is_woken() {
    explore(500, || talk(3, 300, true));
}

#[test]
#[should_panic(expected = "deadlock")]
fn who_does_not_look_once_more_sleeps_for_ever() {
    explore(2000, || talk(3, 8, false));
}
