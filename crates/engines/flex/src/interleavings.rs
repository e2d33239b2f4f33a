//! Slots under a scheduler: readers who take no lock beside blocks and prints that come and go.
//!
//! Built with `--cfg shuttle` only. The knobs are those of `sheaf_base::sync::explore`.

use std::sync::Arc;

use sheaf_base::blob::Blobs;
use sheaf_base::disk::sim::SimDisk;
use sheaf_base::ground::Ground;
use sheaf_base::memory::Part;
use sheaf_base::record::Content;
use sheaf_base::sync::{epoch, explore, thread};
use sheaf_base::types::{Seq, StoreId};

use crate::block::{Block, BlockRef};
use crate::kept::Look;
use crate::run::{self, Pair};
use crate::slots::Slots;

const PRINT: u16 = 7;

/// A cache with one slot, and what belongs into it.
struct Stage {
    ground: Arc<Ground>,
    slots: Slots,
    data: Vec<u8>,
}

impl Stage {
    fn new() -> Arc<Stage> {
        let blobs = Blobs::new(Arc::new(SimDisk::new()), "blob".into(), 1, StoreId(1), true);
        let ground = Arc::new(Ground::new(blobs, 1 << 20, 7, true));
        let (slots, mut data) = (Slots::new(1 << 20), Vec::new());
        let pair = Pair { key: b"key", seq: Seq(1), content: Content::Put(b"value") };
        run::encode(true, [pair].into_iter(), &mut data, |_| {});
        assert_eq!(slots.add(), 0);
        Arc::new(Stage { ground, slots, data })
    }

    fn block(&self) -> BlockRef {
        Block::build(&self.data, |_| u64::from(PRINT) << 32).expect("well formed")
    }

    fn offer(&self) {
        self.slots.offer(0, &self.block(), &self.ground, &epoch::pin());
    }

    fn offer_prints(&self) {
        let prints = self.block().to_prints().expect("small");
        self.slots.offer_prints(0, prints, &self.ground, &epoch::pin());
    }

    /// Whatever is there says where the key is.
    fn read(&self) {
        let guard = &epoch::pin();
        match self.slots.get(0).look(guard) {
            Look::Nothing => {}
            Look::Block(block) => assert!(block.find(PRINT, b"key", Seq(1)).is_some()),
            Look::Prints(prints) => {
                let stand = prints.like(PRINT, self.data.len() as u64).next().expect("there is one");
                let from = usize::try_from(stand.bytes.start).expect("small");
                assert!(stand.pair(&self.data[from..]).is_some());
            }
        }
    }
}

#[test]
fn what_a_slot_keeps_is_whole_and_counted_once() {
    explore(3000, || {
        let stage = Stage::new();
        let run = |work: fn(&Stage)| {
            let stage = Arc::clone(&stage);
            thread::spawn(move || work(&stage))
        };
        let others = [
            run(|stage| {
                stage.offer();
                stage.read();
            }),
            run(|stage| {
                stage.offer_prints();
                stage.read();
            }),
        ];
        // The hand, three times around: what is used, a block, the prints that it left.
        for _ in 0..3 {
            stage.slots.give_way(u64::MAX, &stage.ground, &epoch::pin());
            stage.read();
        }
        others.into_iter().for_each(|other| other.join().expect("it ends"));
        stage.read();
        let guard = &epoch::pin();
        let kept = match stage.slots.get(0).look(guard) {
            Look::Nothing => 0,
            Look::Block(block) => block.size(),
            Look::Prints(prints) => prints.size(),
        };
        assert_eq!([stage.slots.account.bytes(), stage.ground.memory.used(Part::Cache)], [kept; 2]);
        stage.slots.take_back(0, &stage.ground, guard);
        assert_eq!([stage.slots.account.bytes(), stage.ground.memory.used(Part::Cache)], [0; 2]);
        assert!(!stage.slots.has_many_prints(), "prints that are gone count");
    });
}
