//! # Image of a keyspace at a checkpoint
//!
//! ```text
//!  image of the index | blobs: count 8, id 8 and address of the record 5 ...
//! ```
//!
//! Addresses contain the slots of the time of the checkpoint; the slot table of the store
//! translates them. Images are fuzzy: commits may change the keyspace during the save. Replay of
//! these commits makes the result exact.

use sheaf_engine::contract::{ImageSink, ImageSource};
use sheaf_platform::error::Result;

use crate::engine::FlatEngine;
use crate::index::{Index, IndexImage};

/// Writes the image.
pub(crate) fn save<I: Index>(engine: &FlatEngine<I>, out: &mut dyn ImageSink) -> Result<()> {
    engine.index.save(out)?;
    engine.accounting.save(out)
}

/// Reads the image back.
pub(crate) fn restore<I: Index>(engine: &FlatEngine<I>, source: &mut dyn ImageSource) -> Result<()> {
    let mut image = IndexImage::new(source);
    engine.index.load(&mut image)?;
    engine.set_keys(image.keys);
    image.account_live(&engine.context);
    engine.accounting.restore(source)
}

#[cfg(test)]
mod tests {
    use sheaf_engine::contract::{
        EngineCheckpoint, EngineCommits, EngineReads, EngineRecovery, StoreLogIndex,
    };
    use std::collections::{HashMap, HashSet};
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::hash::HashIndex;
    use sheaf_engine::contract::{Action, Engine, EngineOp, ReplayRecord};
    use sheaf_engine::views::Views;
    use sheaf_log::blob::BlobRef;
    use sheaf_log::frame::{FIRST, FrameHeader, FrameKind, HEADER, LAST, body_sum, span};
    use sheaf_log::record::{Record, RecordContent};
    use sheaf_log::segment::{Address, DATA_START, Segment, SegmentIdentity};
    use sheaf_log::types::{Incarnation, KeyspaceId, LogId, SegmentId, Seq, StoreId};
    use sheaf_platform::disk::Disk;
    use sheaf_platform::error::{Damage, Error, Expected};
    use sheaf_sim::SimDisk;

    /// Two log segments with records of one key, and an engine over them.
    struct TestLog {
        engine: FlatEngine<HashIndex>,
        segments: [Arc<Segment>; 2],
        records: HashMap<Address, (Seq, RecordContent<'static>, u32)>,
    }

    const KEY: &[u8] = b"key";

    fn blob_content(number: u64) -> RecordContent<'static> {
        RecordContent::Blob(BlobRef { id: number, len: 5000, sum: 0 })
    }

    impl TestLog {
        fn new() -> TestLog {
            let engine = FlatEngine::new(crate::engine::tests::context(true));
            let disk = SimDisk::new();
            disk.create_dir(Path::new("/log")).unwrap();
            let segments = [3, 4].map(|id| {
                let (store, log, incarnation) = (StoreId(1), LogId::ValueLog, Incarnation(1));
                let id = SegmentId(id);
                let identity = SegmentIdentity { store, log, id, stream: 0, incarnation, capacity: 1 << 16 };
                let segment = Arc::new(Segment::create(&disk, Path::new("/log"), identity).unwrap());
                segment.publish(DATA_START);
                assert!(engine.context.segments.add(&segment).is_some());
                segment
            });
            TestLog { engine, segments, records: HashMap::new() }
        }

        /// Appends a record to a segment.
        fn write(&mut self, segment: usize, seq: u64, content: RecordContent<'static>) -> Address {
            let segment = &self.segments[segment];
            let mut body = Vec::new();
            Record { keyspace: KeyspaceId(1), key: KEY, content }.encode(&mut body);
            let (kind, flags, seq) = (FrameKind::Commit, FIRST | LAST, Seq(seq));
            let header =
                FrameHeader { check: 0, len: body.len(), kind, flags, seq, part: 0, parts: 1, gap: 0 };
            let mut frame = vec![0; usize::try_from(span(body.len())).unwrap()];
            frame[HEADER..HEADER + body.len()].copy_from_slice(&body);
            let at = segment.end();
            segment.seed().write_header(at, &header, body_sum(&body), &mut frame);
            segment.file().write_at(at, &frame).unwrap();
            segment.publish(at + frame.len() as u64);
            let address = Address::new(segment.slot(), at);
            self.records.insert(address, (seq, content, u32::try_from(frame.len()).unwrap()));
            address
        }

        /// Commits the record at `address`.
        fn commit(&self, address: Address) {
            let (seq, content, span) = self.records[&address];
            let action = match content {
                RecordContent::Put(value) => Action::Put(value),
                RecordContent::Blob(blob) => Action::Blob(blob),
                RecordContent::Remove => Action::Remove,
                RecordContent::RemoveRange(end) => Action::RemoveRange(end),
            };
            let mut op = EngineOp { address, span, ..EngineOp::new(KEY, action) };
            self.engine.prepare(&mut op).unwrap();
            self.engine.apply(seq, &op, &Views::default());
        }

        /// Returns an engine that has loaded `image` and replayed the records at the addresses
        /// `replayed`. The second argument is a segment that was freed before, if any.
        fn reopen(self, image: Vec<u8>, gone: Option<usize>, replayed: &[Address]) -> TestLog {
            let gone = gone.map(|segment| self.segments[segment].slot()).into_iter().collect();
            let engine = FlatEngine::new(Arc::clone(&self.engine.context));
            restore(&engine, &mut TestSource { image: image.into_iter().collect(), removed_slots: gone })
                .unwrap();
            for address in replayed.iter().copied() {
                let (seq, content, span) = self.records[&address];
                engine.replay(&ReplayRecord { seq, key: KEY, content, address, span }).unwrap();
            }
            engine.finish_replay(0, 1).unwrap();
            engine.replay_finished();
            TestLog { engine, ..self }
        }

        fn blob_ids(&self) -> Vec<u64> {
            let mut named = Vec::new();
            self.engine.blobs(&mut named).unwrap();
            named
        }
    }

    /// Image being written, and a commit that runs once the part of the index is written.
    struct TestSink<'a> {
        image: Vec<u8>,
        on_index_saved: Option<&'a dyn Fn()>,
    }

    impl ImageSink for TestSink<'_> {
        fn put(&mut self, bytes: &[u8]) -> Result<()> {
            self.image.extend_from_slice(bytes);
            if bytes == [u8::MAX] {
                self.on_index_saved.take().into_iter().for_each(|commit| commit());
            }
            Ok(())
        }
    }

    struct TestSource {
        image: std::collections::VecDeque<u8>,
        removed_slots: HashSet<u32>,
    }

    impl ImageSource for TestSource {
        fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
            for byte in bytes {
                *byte = self.image.pop_front().ok_or_else(|| self.invalid_field("end", (1..).into(), 0))?;
            }
            Ok(())
        }
        fn invalid_field(&self, field: &'static str, expected: Expected, got: u64) -> Error {
            Error::corrupt(Path::new("image"), 0, "image", Damage::BadField { field, expected, got })
        }
        fn slot_of(&self, slot: u32) -> Option<u32> {
            (!self.removed_slots.contains(&slot)).then_some(slot)
        }
        fn seq(&self, stored: u64) -> Result<Seq> {
            Ok(Seq(stored))
        }
    }

    fn image_of(engine: &FlatEngine<HashIndex>, meanwhile: Option<&dyn Fn()>) -> Vec<u8> {
        let mut sink = TestSink { image: Vec::new(), on_index_saved: meanwhile };
        save(engine, &mut sink).unwrap();
        sink.image
    }

    /// Returns the image of an index with empty tables of these depths.
    fn image_of_empty_tables(buckets: usize, depths: &[u8]) -> Vec<u8> {
        let mut image = u32::try_from(buckets).unwrap().to_le_bytes().to_vec();
        for depth in depths {
            image.extend_from_slice(&[*depth, 0]);
            image.extend(std::iter::repeat_n(0, 2 * buckets));
        }
        image.push(255);
        image.extend_from_slice(&[0; 8]); // no blobs
        image
    }

    #[test]
    fn an_image_whose_tables_are_not_aligned_is_refused() {
        let restored = |depths: &[u8]| {
            let engine = TestLog::new().engine;
            let image = image_of_empty_tables(engine.index.buckets, depths).into();
            restore(&engine, &mut TestSource { image, removed_slots: HashSet::new() })
        };
        restored(&[2, 2, 1]).expect("each table begins at a multiple of its width");
        let error = restored(&[2, 1, 2]).expect_err("the second table begins at half its width");
        assert!(error.to_string().contains("begin of a table"), "{error}");
    }

    #[test]
    fn a_blob_is_dropped_with_the_segment_of_its_record() {
        let mut log = TestLog::new();
        let first = log.write(0, 1, blob_content(7));
        log.commit(first);
        log.engine.freeze();
        let image = image_of(&log.engine, None);
        let small = log.write(1, 2, RecordContent::Put(b"small"));
        let log = log.reopen(image.clone(), None, &[]);
        assert_eq!(log.blob_ids(), [7]);
        assert!(log.reopen(image, Some(0), &[small]).blob_ids().is_empty());
    }

    #[test]
    fn a_blob_follows_its_relocated_record() {
        let mut log = TestLog::new();
        let first = log.write(0, 1, blob_content(7));
        let copy = log.write(1, 1, blob_content(7));
        log.commit(first);
        assert!(log.engine.relocate(log.engine.hashed_key(KEY), first, copy, Some(7)));
        log.engine.freeze();
        let image = image_of(&log.engine, None);
        assert_eq!(log.reopen(image, Some(0), &[]).blob_ids(), [7]);
    }

    /// Replay meets the newer record first; the older one then has no effect.
    #[test]
    fn a_blob_written_during_a_save_is_not_in_the_image() {
        let mut log = TestLog::new();
        let [blob, small] = [log.write(0, 1, blob_content(7)), log.write(0, 2, RecordContent::Put(b"small"))];
        log.engine.freeze();
        let image = image_of(&log.engine, Some(&|| log.commit(blob)));
        assert_eq!(log.blob_ids(), [7]);
        let log = log.reopen(image.clone(), None, &[blob]);
        assert_eq!(log.blob_ids(), [7]);
        assert!(log.reopen(image, None, &[small, blob]).blob_ids().is_empty());
    }

    #[test]
    fn a_blob_lives_as_long_as_any_copy_of_its_record() {
        let mut log = TestLog::new();
        let before = log.write(0, 1, RecordContent::Put(b"before"));
        let first = log.write(0, 2, blob_content(7));
        let copy = log.write(1, 2, blob_content(7));
        log.commit(first);
        log.engine.accounting.add_blob(7, copy); // as if GC had moved it after the index was saved
        log.engine.freeze();
        let image = image_of(&log.engine, None);
        // The copy was copied again and its segment freed. The first record is still in its place.
        let again = log.write(0, 2, blob_content(7));
        let log = log.reopen(image, Some(1), &[again, before]);
        assert_eq!(log.blob_ids(), [7]);
        // An image may contain both copies.
        log.engine.index.insert(log.engine.hashed_key(KEY), again);
        let (seq, content, span) = log.records[&before];
        log.engine.set_keys(2);
        log.engine.replay(&ReplayRecord { seq, key: KEY, content, address: before, span }).unwrap();
        assert_eq!((log.blob_ids(), log.engine.len().unwrap()), (vec![7], 1));
    }
}
