//! Model tests of rings and sleeping under a scheduler.
//!
//! Built with `--cfg shuttle` only; `sheaf_platform::sync::explore` has the settings. Blind spots:
//! weak memory order, and the notifiers of the kernel, which [`ModelNotifier`] replaces.

use std::sync::Arc;

use sheaf_platform::sync::{explore, thread};

use crate::link::{PeerLink, SharedLink};
use crate::memory::SharedMemory;
use crate::ring::{InboxLayout, MIN_RING, RingReader, RingWriter};
use crate::wake::{ModelNotifier, PeerWaker, SleepGuard};

/// One side: its inbox, its sleep flag in the peer's inbox, and its notifier.
struct RingPeer {
    inbox: Arc<SharedMemory>,
    peer: Arc<SharedMemory>,
    sleep_flag: usize,
    notifier: ModelNotifier,
    link: SharedLink<ModelNotifier>,
}

impl RingPeer {
    /// Sleeps unless `is_awake`. With `rechecks` false it omits the second poll: the seeded bug.
    fn sleep(&self, rechecks: bool, mut is_awake: impl FnMut() -> bool) {
        if is_awake() {
            return;
        }
        let asleep = SleepGuard::set(&self.peer, self.sleep_flag);
        if !(rechecks && is_awake()) {
            self.notifier.wait();
        }
        drop(asleep);
    }
}

fn pair() -> (RingPeer, RingPeer, InboxLayout) {
    let layout = InboxLayout::new(1, 1, MIN_RING).expect("a layout");
    let [a, b] = [(); 2].map(|()| Arc::new(SharedMemory::heap(layout.words())));
    let [a_bell, b_bell] = [(); 2].map(|()| ModelNotifier::default());
    let at = layout.sleep_flag();
    let side = |inbox: &Arc<SharedMemory>,
                peer: &Arc<SharedMemory>,
                bell: &ModelNotifier,
                other: &ModelNotifier| RingPeer {
        inbox: Arc::clone(inbox),
        peer: Arc::clone(peer),
        sleep_flag: at,
        notifier: bell.clone(),
        link: SharedLink::new(
            Arc::clone(peer),
            vec![PeerWaker { sleep_flags: Arc::clone(inbox), flag: at, notifier: other.clone() }],
        ),
    };
    (side(&a, &b, &a_bell, &b_bell), side(&b, &a, &b_bell, &a_bell), layout)
}

/// Sends messages of `len` bytes from one side to the other, each filled with its number. With long
/// messages the writer must also wait for room.
fn send_messages(count: u8, len: usize, looks_twice: bool) {
    let (mut writer, mut reader, layout) = pair();
    let writing = thread::spawn(move || {
        let mut ring = RingWriter::new(layout, 0);
        for number in 0..count {
            let (message, mut from) = (vec![number; len], 0);
            while from < len {
                match ring
                    .write_message(&writer.inbox, &mut writer.link, &message, from)
                    .expect("no violation")
                {
                    Some(to) => {
                        from = to;
                        writer.link.post(0).expect("a ring");
                    }
                    None => writer.sleep(looks_twice, || {
                        ring.has_room_for_any_record(&writer.inbox).expect("no violation")
                    }),
                }
            }
        }
    });
    let mut ring = RingReader::new(layout, 0);
    let mut credit = ring.credit();
    let (mut number, mut message) = (0, Vec::new());
    while number < count {
        match ring.read_record(&reader.inbox, &mut message).expect("no violation") {
            Some(whole) => {
                if credit.send_if_due(&mut reader.link, ring.head()).expect("a write") {
                    reader.link.post(0).expect("a ring");
                }
                if whole {
                    assert_eq!(message, vec![number; len]);
                    message.clear();
                    number += 1;
                }
            }
            None => reader.sleep(looks_twice, || ring.has_record(&reader.inbox)),
        }
    }
    writing.join().expect("it writes");
}

#[test]
fn short_messages_arrive_complete_and_in_order() {
    explore(2000, || send_messages(3, 8, true));
}

#[test]
fn a_writer_that_waits_for_room_is_woken() {
    explore(500, || send_messages(3, 300, true));
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_sleeper_that_does_not_recheck_is_found() {
    explore(2000, || send_messages(3, 8, false));
}
