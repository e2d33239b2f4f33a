//! Slots under a scheduler: readers without locks, concurrent with changing blocks and
//! fingerprints.
//!
//! Built with `--cfg shuttle` only. The settings are those of `sheaf_platform::sync::explore`.

use std::sync::Arc;

use sheaf_engine::context::EngineContext;
use sheaf_log::blob::Blobs;
use sheaf_log::record::RecordContent;
use sheaf_log::types::{Seq, StoreId};
use sheaf_platform::memory::MemoryPart;
use sheaf_platform::sync::{epoch, explore, thread};
use sheaf_sim::SimDisk;

use crate::index::slot_state::SlotView;
use crate::index::slots::IntervalSlots;
use crate::interval::block::{Block, BlockRef};
use crate::interval::run::{self, StoredPair};

const FINGERPRINT: u16 = 7;

/// A cache with one slot, and its content.
struct Fixture {
    context: Arc<EngineContext>,
    slots: IntervalSlots,
    data: Vec<u8>,
}

impl Fixture {
    fn new() -> Arc<Fixture> {
        let blobs = Blobs::new(Arc::new(SimDisk::new()), "blob".into(), 1, StoreId(1), true);
        let context = Arc::new(EngineContext::new(blobs, 1 << 20, 7, true));
        let (slots, mut data) = (IntervalSlots::new(1 << 20), Vec::new());
        let pair = StoredPair { key: b"key", seq: Seq(1), content: RecordContent::Put(b"value") };
        run::encode(true, [pair].into_iter(), &mut data, |_| {});
        assert_eq!(slots.add(), 0);
        Arc::new(Fixture { context, slots, data })
    }

    fn block(&self) -> BlockRef {
        Block::build(&self.data, |_| u64::from(FINGERPRINT) << 32).expect("well formed")
    }

    fn insert_block(&self) {
        self.slots.insert_block(0, &self.block(), &self.context, &epoch::pin());
    }

    fn insert_fingerprints(&self) {
        let fingerprints = self.block().to_fingerprints().expect("small");
        self.slots.insert_fingerprints(0, fingerprints, &self.context, &epoch::pin());
    }

    /// Checks that the content of the slot, if there is any, leads to the key.
    fn read(&self) {
        let guard = &epoch::pin();
        match self.slots.get(0).view(guard) {
            SlotView::Empty => {}
            SlotView::Block(block) => assert!(block.find(FINGERPRINT, b"key", Seq(1)).is_some()),
            SlotView::Fingerprints(fingerprints) => {
                let candidate = fingerprints
                    .candidates(FINGERPRINT, self.data.len() as u64)
                    .next()
                    .expect("there is one");
                let from = usize::try_from(candidate.bytes.start).expect("small");
                assert!(candidate.pair(&self.data[from..]).is_some());
            }
        }
    }
}

#[test]
fn slot_content_is_valid_and_counted_once() {
    explore(3000, || {
        let fixture = Fixture::new();
        let run = |work: fn(&Fixture)| {
            let fixture = Arc::clone(&fixture);
            thread::spawn(move || work(&fixture))
        };
        let others = [
            run(|fixture| {
                fixture.insert_block();
                fixture.read();
            }),
            run(|fixture| {
                fixture.insert_fingerprints();
                fixture.read();
            }),
        ];
        // The hand moves around three times: it clears the mark, evicts a block, and evicts the
        // fingerprints left of it.
        for _ in 0..3 {
            fixture.slots.evict(u64::MAX, &fixture.context, &epoch::pin());
            fixture.read();
        }
        others.into_iter().for_each(|other| other.join().expect("it ends"));
        fixture.read();
        let guard = &epoch::pin();
        let kept = match fixture.slots.get(0).view(guard) {
            SlotView::Empty => 0,
            SlotView::Block(block) => block.size(),
            SlotView::Fingerprints(fingerprints) => fingerprints.size(),
        };
        assert_eq!(
            [fixture.slots.cache_share.bytes(), fixture.context.memory.used(MemoryPart::Cache)],
            [kept; 2]
        );
        fixture.slots.recycle(0, &fixture.context, guard);
        assert_eq!(
            [fixture.slots.cache_share.bytes(), fixture.context.memory.used(MemoryPart::Cache)],
            [0; 2]
        );
        assert!(!fixture.slots.is_fingerprint_limit_reached(), "freed fingerprints are still counted");
    });
}
