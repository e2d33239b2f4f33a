//! # Decoding engine: the engine of a keyspace with compressed values
//!
//! The store encodes values before it passes them to the engine (`ValueCompression`). This wrapper
//! decodes the results of reads. So the engine inside, its files, its images and its log records
//! have the stored form, and need no knowledge of it. A keyspace without compression has no
//! wrapper.
//!
//! ```text
//!   store ── encoded ──> prepare, apply, replay, ingest ──┐
//!                                                         engine
//!   reader <── decoded ── get, cursor ── DecodingEngine <─┘
//! ```
//!
//! ## Invariants
//!
//! 1. Each value in the engine, inline or in a blob, has the form of `sheaf_log::compression`. In
//!    a keyspace with expiry, the header of the value is in front of it in both forms.
//! 2. Every method that has no value in its result is passed on. A method that is added to a role
//!    of an engine must be added here, even if it has a default.
//!
//! ## Costs
//!
//! One more indirect call for each read. A compressed value is decompressed into a buffer of the
//! thread, unless [`DecodedValues`] has it.

mod cache;
#[cfg(all(test, shuttle))]
mod interleavings;
#[cfg(all(test, not(shuttle)))]
mod tests;
mod value;

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;

use crate::backup_files::PinnedFiles;
use crate::context::EngineContext;
use crate::contract::{
    Bounds, Capabilities, Cursor, Engine, EngineCache, EngineCheckpoint, EngineCommits, EngineInfo, EngineOp,
    EnginePressure, EngineReads, EngineRecovery, EngineStats, HashedKey, ImageSink, ImageSource, Ingest,
    Preparation, Projection, ReplayRecord, StoreLogIndex,
};
use crate::range_estimate::RangeSum;
use crate::views::Views;
use sheaf_log::blob_reader::{OpenBlob, StoredValue};
use sheaf_log::compression::{Codec, DecodeError, ValueCompression, decode, is_compressed};
use sheaf_log::options::{COMPRESSION, EngineOptions};
use sheaf_log::types::{KeyspaceId, LogId, Seq};
use sheaf_platform::error::{Error, Result};
use sheaf_platform::sync::epoch;

pub use cache::DecodedValues;

use value::CachedVersion;

/// Largest buffer that a thread keeps, in bytes.
const MAX_KEPT_BUFFER: usize = 256 << 10;

sheaf_platform::sync::thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Wrapper of an engine that decodes the values that reads return.
struct DecodingEngine {
    inner: Arc<dyn Engine>,
    compression: Arc<ValueCompression>,
    id: KeyspaceId,
    context: Arc<EngineContext>,
    /// Directory of the keyspace, for errors.
    dir: PathBuf,
}

/// Returns `engine` such that reads decode values, if the keyspace `id` was created with a codec.
/// The first `header_len` bytes of each value are not compressed.
#[must_use]
pub fn with_compression(
    engine: Arc<dyn Engine>,
    id: KeyspaceId,
    options: &EngineOptions,
    header_len: u32,
    context: &Arc<EngineContext>,
) -> Arc<dyn Engine> {
    let codec = u8::try_from(options.value(&COMPRESSION)).ok().and_then(|id| Codec::from_id(id).ok());
    match codec {
        None => engine,
        Some(codec) => Arc::new(DecodingEngine {
            inner: engine,
            compression: Arc::new(ValueCompression::new(codec, header_len)),
            id,
            context: Arc::clone(context),
            dir: context.dir_of(id),
        }),
    }
}

impl DecodingEngine {
    fn error(&self, error: DecodeError) -> Error {
        error.into_error(self.inner.name(), &self.dir, 0)
    }

    fn decode(&self, stored: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<()> {
        // Taken out, not borrowed: `found` may read another value.
        let mut buffer = BUFFER.with(RefCell::take);
        let decoded = decode(stored, self.compression.header_len(), &mut buffer).map(found);
        if buffer.capacity() <= MAX_KEPT_BUFFER {
            BUFFER.with(|kept| kept.replace(buffer));
        }
        decoded.map_err(|error| self.error(error))
    }

    /// Passes the value of a version to `found`: that of the cache, or `stored` decoded.
    fn decode_version(
        &self,
        seq: Option<Seq>,
        HashedKey { key, hash }: HashedKey<'_>,
        stored: &[u8],
        found: &mut dyn FnMut(&[u8]),
    ) -> Result<()> {
        let Some(seq) = seq.filter(|_| is_compressed(stored)) else { return self.decode(stored, found) };
        let (guard, context) = (&epoch::pin(), &*self.context);
        let version = CachedVersion { keyspace: self.id, seq, key };
        if let Some(value) = context.decoded_values.get(version, hash, guard) {
            found(value);
            return Ok(());
        }
        self.decode(stored, &mut |value| {
            context.decoded_values.insert(version, hash, value, &context.memory, guard);
            found(value);
        })
    }

    /// Hashes a key for [`EngineReads::get_version`], and prefetches its decoded value.
    fn prefetch_decoded<'k>(&self, key: &'k [u8]) -> HashedKey<'k> {
        let hash = self.context.hash(key);
        self.context.decoded_values.prefetch(hash);
        HashedKey { key, hash }
    }

    fn decode_blob(&self, blob: OpenBlob) -> Result<OpenBlob> {
        blob.with_decoding(self.inner.name(), self.compression.header_len())
    }
}

impl EngineInfo for DecodingEngine {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn log(&self) -> LogId {
        self.inner.log()
    }
}

impl EngineReads for DecodingEngine {
    fn hashed_key<'k>(&self, key: &'k [u8]) -> HashedKey<'k> {
        self.inner.hashed_key(key)
    }

    fn prefetch_index(&self, hashed_key: HashedKey<'_>) {
        self.inner.prefetch_index(hashed_key);
    }

    fn prefetch(&self, keys: &[HashedKey<'_>], entries: bool) {
        self.inner.prefetch(keys, entries);
    }

    fn get_stored(&self, at: Seq, key: &[u8], found: &mut dyn FnMut(StoredValue<'_>)) -> Result<bool> {
        let (mut outcome, mut file) = (Ok(()), None);
        let hashed_key = match self.inner.knows_versions() {
            true => self.prefetch_decoded(key),
            false => HashedKey { key, hash: 0 },
        };
        let is_there = self.inner.get_version(at, hashed_key, &mut |seq, stored| match stored {
            StoredValue::Bytes(stored) => {
                let found = &mut |value: &[u8]| found(StoredValue::Bytes(value));
                outcome = self.decode_version(seq, hashed_key, stored, found);
            }
            StoredValue::Blob(blob) => file = Some(blob),
        })?;
        outcome?;
        if let Some(blob) = file {
            found(StoredValue::Blob(self.decode_blob(blob)?));
        }
        Ok(is_there)
    }

    fn get(&self, at: Seq, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let mut outcome = Ok(());
        if !self.inner.knows_versions() {
            let is_there = self.inner.get(at, key, &mut |stored| outcome = self.decode(stored, found))?;
            outcome?;
            return Ok(is_there);
        }
        let (mut file, hashed_key) = (None, self.prefetch_decoded(key));
        let is_there = self.inner.get_version(at, hashed_key, &mut |seq, stored| match stored {
            StoredValue::Bytes(stored) => outcome = self.decode_version(seq, hashed_key, stored, found),
            StoredValue::Blob(blob) => file = Some(blob),
        })?;
        outcome?;
        if let Some(blob) = file {
            self.decode_blob(blob)?.read(found)?;
        }
        Ok(is_there)
    }

    fn contains(&self, at: Seq, key: &[u8]) -> Result<bool> {
        self.inner.contains(at, key)
    }

    fn cursor<'e>(&'e self, at: Seq, bounds: Bounds, projection: Projection) -> Result<Box<dyn Cursor + 'e>> {
        let inner = self.inner.cursor(at, bounds, projection)?;
        Ok(match projection {
            Projection::Keys => inner,
            Projection::Pairs => Box::new(DecodingCursor {
                engine: self,
                inner,
                buffer: Vec::new(),
                value: CursorValue::None,
                is_ended: false,
            }),
        })
    }

    fn estimate_range(&self, first: &[u8], end: Option<&[u8]>) -> Result<RangeSum> {
        self.inner.estimate_range(first, end)
    }

    fn len(&self) -> Result<u64> {
        self.inner.len()
    }

    fn is_empty(&self) -> Result<bool> {
        self.inner.is_empty()
    }
}

/// Place of the value of the current pair.
#[derive(Clone, Copy)]
enum CursorValue {
    None,
    /// The first bytes of the stored form.
    Stored(usize),
    /// The buffer.
    Decoded,
}

/// Cursor that decodes values.
struct DecodingCursor<'e> {
    engine: &'e DecodingEngine,
    inner: Box<dyn Cursor + 'e>,
    buffer: Vec<u8>,
    value: CursorValue,
    /// True after an error that is not damage: every later call reports the end.
    is_ended: bool,
}

impl DecodingCursor<'_> {
    /// Decodes the value of the pair to which the inner cursor moved.
    fn decode(&mut self) -> Result<bool> {
        let stored = self.inner.value();
        let header_len = self.engine.compression.header_len();
        let is_decoded = decode(stored, header_len, &mut self.buffer).map(|value| {
            // A value that is not compressed is at the start of the stored form.
            if std::ptr::eq(value.as_ptr(), stored.as_ptr()) {
                CursorValue::Stored(value.len())
            } else {
                CursorValue::Decoded
            }
        });
        match is_decoded {
            Ok(value) => {
                self.value = value;
                Ok(true)
            }
            Err(error) => {
                self.value = CursorValue::None;
                self.is_ended = matches!(error, DecodeError::MissingCodec(_));
                Err(self.engine.error(error))
            }
        }
    }
}

impl Cursor for DecodingCursor<'_> {
    fn next(&mut self) -> Result<bool> {
        if self.is_ended || !self.inner.next()? {
            return Ok(false);
        }
        self.decode()
    }

    fn prev(&mut self) -> Result<bool> {
        if self.is_ended || !self.inner.prev()? {
            return Ok(false);
        }
        self.decode()
    }

    fn expect_pairs(&mut self, pairs: usize) {
        self.inner.expect_pairs(pairs);
    }

    fn key(&self) -> &[u8] {
        self.inner.key()
    }

    fn value(&self) -> &[u8] {
        match self.value {
            CursorValue::None => &[],
            CursorValue::Stored(len) => self.inner.value().get(..len).unwrap_or_default(),
            CursorValue::Decoded => &self.buffer,
        }
    }
}

impl EngineCommits for DecodingEngine {
    fn blob_threshold(&self) -> usize {
        self.inner.blob_threshold()
    }

    fn takes_blob_files(&self) -> bool {
        self.inner.takes_blob_files()
    }

    fn removes_ranges(&self) -> bool {
        self.inner.removes_ranges()
    }

    fn prepare(&self, op: &mut EngineOp<'_>) -> Result<Preparation> {
        self.inner.prepare(op)
    }

    fn is_current(&self, op: &EngineOp<'_>) -> bool {
        self.inner.is_current(op)
    }

    fn prefetch_apply(&self, op: &mut EngineOp<'_>) {
        self.inner.prefetch_apply(op);
    }

    fn apply(&self, seq: Seq, op: &EngineOp<'_>, views: &Views) {
        self.inner.apply(seq, op, views);
    }

    fn trim(&self, views: &Views, visible: Seq) {
        self.inner.trim(views, visible);
    }
}

impl EngineCheckpoint for DecodingEngine {
    fn freeze(&self) {
        self.inner.freeze();
    }

    fn wants_freeze(&self) -> bool {
        self.inner.wants_freeze()
    }

    fn freeze_more(&self) {
        self.inner.freeze_more();
    }

    fn maintain(&self, views: &Views, durable_seq: Seq) -> Result<bool> {
        self.inner.maintain(views, durable_seq)
    }

    fn reclaim(&self, views: &Views, durable_seq: Seq) -> Result<bool> {
        self.inner.reclaim(views, durable_seq)
    }

    fn is_flushed(&self) -> bool {
        self.inner.is_flushed()
    }

    fn save(&self, out: &mut dyn ImageSink) -> Result<()> {
        self.inner.save(out)
    }

    fn image_published(&self) {
        self.inner.image_published();
    }

    fn image_superseded(&self) {
        self.inner.image_superseded();
    }

    fn pin_files(self: Arc<Self>) -> Result<Option<Box<dyn PinnedFiles>>> {
        Arc::clone(&self.inner).pin_files()
    }
}

impl EnginePressure for DecodingEngine {
    fn wants_checkpoint(&self) -> bool {
        self.inner.wants_checkpoint()
    }

    fn checkpoint_after(&self) -> u64 {
        self.inner.checkpoint_after()
    }

    fn log_bytes_needed(&self) -> u64 {
        self.inner.log_bytes_needed()
    }

    fn flush_remaining_percent(&self) -> u64 {
        self.inner.flush_remaining_percent()
    }

    fn pressure_percent(&self) -> u64 {
        self.inner.pressure_percent()
    }

    fn is_memory_high(&self) -> bool {
        self.inner.is_memory_high()
    }

    fn disk_reserve(&self) -> Option<u64> {
        self.inner.disk_reserve()
    }
}

impl EngineRecovery for DecodingEngine {
    fn restore(&self, image: &mut dyn ImageSource) -> Result<()> {
        self.inner.restore(image)
    }

    fn restore_without_image(&self, damage: Option<Error>) -> Result<()> {
        self.inner.restore_without_image(damage)
    }

    fn newest_in_files(&self) -> Seq {
        self.inner.newest_in_files()
    }

    fn restore_partial(&self, skipped: &mut dyn FnMut(Error)) -> Result<()> {
        self.inner.restore_partial(skipped)
    }

    fn image_entries(&self, image: &mut dyn ImageSource) -> Result<Vec<(u32, u64)>> {
        self.inner.image_entries(image)
    }

    fn replay(&self, record: &ReplayRecord<'_>) -> Result<()> {
        self.inner.replay(record)
    }

    fn replay_run(&self, records: &[ReplayRecord<'_>]) -> Result<()> {
        self.inner.replay_run(records)
    }

    fn finish_replay(&self, part: usize, parts: usize) -> Result<()> {
        self.inner.finish_replay(part, parts)
    }

    fn replay_finished(&self) {
        self.inner.replay_finished();
    }

    fn is_replay_finished(&self) -> bool {
        self.inner.is_replay_finished()
    }
}

impl Engine for DecodingEngine {
    fn compression(&self) -> Option<&Arc<ValueCompression>> {
        Some(&self.compression)
    }

    fn stored_form(&self) -> Option<&dyn Engine> {
        Some(&*self.inner)
    }

    fn store_log_index(&self) -> Option<&dyn StoreLogIndex> {
        self.inner.store_log_index()
    }

    fn cache(&self) -> Option<&dyn EngineCache> {
        self.inner.cache()
    }

    fn blobs(&self, out: &mut Vec<u64>) -> Result<()> {
        self.inner.blobs(out)
    }

    fn ingest(self: Arc<Self>, seq: Seq) -> Result<Option<Box<dyn Ingest>>> {
        Arc::clone(&self.inner).ingest(seq)
    }

    fn stats(&self) -> EngineStats {
        let (encoded_raw_bytes, encoded_bytes) = self.compression.encoded_bytes();
        EngineStats { encoded_raw_bytes, encoded_bytes, ..self.inner.stats() }
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.inner.counters()
    }

    fn verify(&self, report: &mut dyn FnMut(Error), step: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        self.inner.verify(report, step)
    }

    fn drop_data(&self) {
        self.inner.drop_data();
    }

    fn close(&self) -> Result<()> {
        self.inner.close()
    }
}
