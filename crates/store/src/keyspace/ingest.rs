//! # Ingest: filling an unpublished keyspace
//!
//! ## Picture
//!
//! ```text
//!  sorted, engine with own files, more than one commit ──> Engine::ingest  ┐ then commits
//!  otherwise ────────────────────────────────────────────> commits         ┘ of the changes
//! ```
//!
//! Engines that keep their data in the store log gain nothing from `Engine::ingest`: each record is
//! written once anyway. Engines over the journal would write everything to the log and again to
//! their files.
//!
//! ## Invariants
//!
//! 1. A blob is durable before it is passed to [`Ingest::push`]: no record refers to it, so an
//!    opening would not notice that it is missing.
//! 2. A commit contains no key twice.
//!
//! ## Costs
//!
//! Memory: one commit. A large value is copied through a buffer.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::commit::CommitWrite;
use crate::commit::value_writer::PartialValue;
use crate::expiry::Expires;
use crate::expiry::index::{IndexPlan, encode_hint};
use crate::keyspace::catalog::CatalogCause;
use crate::keyspace::unpublished::UnpublishedKeyspace;
use crate::{CommitOutcome, KeyspaceState, Store};
use sheaf_engine::contract::{Action, EngineOp, Ingest};
use sheaf_log::blob::{BlobRef, UncommittedBlob, UnsyncedBlobs};
use sheaf_log::blob_reader::{BlobChecksums, BlobReader, OpenBlob, StoredValue};
use sheaf_log::record::RecordContent;
use sheaf_log::types::{MAX_KEY, MAX_VALUE, Seq};
use sheaf_platform::clock::UnixMillis;
use sheaf_platform::error::{Error, IoOp, PoisonCause, Result};

/// Bytes of a piece of a large value.
const VALUE_CHUNK: usize = 64 << 10;

/// Limits of a commit.
#[derive(Clone, Copy, Debug)]
struct CommitLimits {
    operations: usize,
    bytes: usize,
    /// Blob files, which stay open until the commit is done.
    blobs: usize,
}

impl CommitLimits {
    fn new(tiny: bool) -> CommitLimits {
        match tiny {
            true => CommitLimits { operations: 5, bytes: 2 << 10, blobs: 2 },
            false => CommitLimits { operations: 512, bytes: 256 << 10, blobs: 64 },
        }
    }
}

/// Content of an operation.
#[derive(Clone, Debug)]
enum IngestOp {
    Put(Range<usize>),
    Blob(BlobRef),
    Remove,
}

/// Writer into an unpublished keyspace, with the operations that are not written yet.
pub(crate) struct IngestWriter {
    // Declared first, so that it is dropped before the keyspace that it fills.
    ingest: Option<Box<dyn Ingest>>,
    unpublished: UnpublishedKeyspace,
    /// Whether the engine has created files: there was more than one commit.
    has_files: bool,
    limits: CommitLimits,
    bytes: Vec<u8>,
    operations: Vec<(Range<usize>, IngestOp)>,
    blobs: SmallVec<[UncommittedBlob; 1]>,
    /// Writer of the index on expiry times, if the keyspace gets a new one with its name.
    index: Option<Box<IngestWriter>>,
    /// Buffer of a hint.
    hint: Vec<u8>,
}

impl IngestWriter {
    /// Starts to fill `unpublished`; in the order of keys if `is_sorted`.
    pub(crate) fn new(mut unpublished: UnpublishedKeyspace, is_sorted: bool) -> Result<IngestWriter> {
        let store = Arc::clone(&unpublished.store);
        let mut ingest = None;
        if is_sorted {
            // Must be a commit that exists when the keyspace gets its name.
            let seq = store.visible().max(Seq(1));
            ingest = Arc::clone(unpublished.keyspace.engine()?).ingest(seq)?;
        }
        if ingest.is_none() {
            unpublished.register();
        }
        let limits = CommitLimits::new(store.options.tiny);
        let (bytes, operations, blobs) = (Vec::new(), Vec::new(), SmallVec::new());
        let (has_files, index, hint) = (false, None, Vec::new());
        Ok(IngestWriter { unpublished, ingest, has_files, limits, bytes, operations, blobs, index, hint })
    }

    /// Lets the keyspace get a new index on expiry times, which `index` fills.
    pub(crate) fn set_index(&mut self, index: Option<IngestWriter>) {
        self.index = index.map(Box::new);
    }

    /// Adds the hint of a pair to the new index, if there is one. A hint needs no pair.
    pub(crate) fn add_hint(&mut self, key: &[u8], time: Option<UnixMillis>) -> Result<()> {
        let (Some(index), Some(time)) = (&mut self.index, time) else { return Ok(()) };
        self.hint.clear();
        encode_hint(time, key, &mut self.hint);
        index.put(&self.hint, &[])
    }

    /// Writes all hints. Returns the plan for the index.
    pub(crate) fn finish_index(&mut self) -> Result<IndexPlan> {
        let Some(index) = &mut self.index else { return Ok(IndexPlan::Keep) };
        index.end_key_order()?;
        Ok(IndexPlan::New(Arc::clone(index.keyspace())))
    }

    pub(crate) fn store(&self) -> &Arc<Store> {
        &self.unpublished.store
    }

    pub(crate) fn keyspace(&self) -> &Arc<KeyspaceState> {
        &self.unpublished.keyspace
    }

    /// Returns true if pairs bypass the log. In that case they must come in the order of their
    /// keys, until [`IngestWriter::end_key_order`].
    pub(crate) fn needs_key_order(&self) -> bool {
        self.ingest.is_some()
    }

    /// Returns true if pairs bypassed the log.
    pub(crate) fn is_direct(&self) -> bool {
        self.has_files
    }

    /// Sets `key` to `value`, which begins with its header in a keyspace with expiry.
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        check_pair(key, value.len())?;
        match self.keyspace().compression().cloned() {
            None => self.put_encoded(key, value),
            Some(compression) => self.put_encoded(key, &compression.encode_with_header(value)),
        }
    }

    /// Sets `key` to a value in its stored form.
    fn put_encoded(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        if value.len() > self.store().effective_blob_threshold(self.keyspace().blob_threshold()) {
            let adopts = self.keyspace().engine()?.takes_blob_files();
            let blob = self.store().write_blob(value, adopts)?;
            return self.put_blob(key, blob);
        }
        self.flush_if_full()?;
        let (key, value) = (self.buffer_bytes(key), self.buffer_bytes(value));
        self.operations.push((key, IngestOp::Put(value)));
        Ok(())
    }

    /// Sets `key` to a value that an engine found in another keyspace, with its hint.
    pub(crate) fn put_copy(&mut self, key: &[u8], stored: StoredValue<'_>) -> Result<()> {
        if self.index.is_some()
            && let Some(expiry) = self.keyspace().expiry()
        {
            let time = expiry.time_of(&stored)?;
            self.add_hint(key, time)?;
        }
        self.put_stored(key, stored)
    }

    /// Sets `key` to a value that an engine found.
    pub(crate) fn put_stored(&mut self, key: &[u8], stored: StoredValue<'_>) -> Result<()> {
        match stored {
            StoredValue::Bytes(value) => self.put(key, value),
            StoredValue::Blob(file) => self.copy_blob(key, file),
        }
    }

    /// Sets `key` to the value in `file`, which is copied in pieces.
    fn copy_blob(&mut self, key: &[u8], file: OpenBlob) -> Result<()> {
        let store = Arc::clone(self.store());
        let mut pieces = store.blob_reader(file)?;
        let mut incoming = store.begin_stored_value(self.keyspace())?;
        self.append_blob(&mut pieces, &mut incoming)?;
        self.put_partial_value(key, incoming)
    }

    /// Appends the value that `pieces` reads.
    fn append_blob(&self, pieces: &mut BlobReader, incoming: &mut PartialValue) -> Result<()> {
        let (mut piece, mut at) = (vec![0; VALUE_CHUNK], 0);
        loop {
            let got = pieces.read_at(at, &mut piece)?;
            if got == 0 {
                return Ok(());
            }
            self.store().append_value(incoming, &piece[..got])?;
            at += got as u64;
        }
    }

    /// Sets `key` to the value in `file`, which belongs to another database and was checked. The
    /// value is copied in pieces.
    pub(crate) fn copy_foreign_blob(&mut self, key: &[u8], file: &OpenBlob) -> Result<()> {
        check_pair(key, usize::try_from(file.len()).unwrap_or(usize::MAX))?;
        let store = Arc::clone(self.store());
        let mut incoming = store.begin_stored_value(self.keyspace())?;
        // Checksums of blobs are cached by number, and this number is of another database.
        let mut reader = BlobChecksums::default().reader(file.clone())?;
        self.append_blob(&mut reader, &mut incoming)?;
        self.put_partial_value(key, incoming)
    }

    /// Sets `key` to `header` and all bytes that `value` returns, which are copied in pieces.
    /// Returns the number of the latter.
    pub(crate) fn put_reader(&mut self, key: &[u8], header: &[u8], value: &mut dyn io::Read) -> Result<u64> {
        check_pair(key, 0)?;
        let store = Arc::clone(self.store());
        let mut incoming = store.begin_stored_value(self.keyspace())?;
        store.append_value(&mut incoming, header)?;
        let mut piece = vec![0; VALUE_CHUNK];
        loop {
            match value.read(&mut piece) {
                Ok(0) => break,
                Ok(got) => store.append_value(&mut incoming, &piece[..got])?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io(IoOp::Read, Path::new("a value"), error)),
            }
        }
        let bytes = incoming.len() - header.len() as u64;
        self.put_partial_value(key, incoming)?;
        Ok(bytes)
    }

    fn put_partial_value(&mut self, key: &[u8], incoming: PartialValue) -> Result<()> {
        let mut whole = self.store().finish_value(incoming)?;
        match whole.blobs.pop() {
            Some(blob) => self.put_blob(key, blob),
            None => match whole.action() {
                Action::Put(value) => self.put(key, value),
                _ => Ok(()),
            },
        }
    }

    fn put_blob(&mut self, key: &[u8], blob: UncommittedBlob) -> Result<()> {
        self.flush_if_full()?;
        let key = self.buffer_bytes(key);
        self.operations.push((key, IngestOp::Blob(blob.blob)));
        self.blobs.push(blob);
        Ok(())
    }

    /// Removes `key`.
    pub(crate) fn remove(&mut self, key: &[u8]) -> Result<()> {
        self.flush_if_full()?;
        let key = self.buffer_bytes(key);
        self.operations.push((key, IngestOp::Remove));
        Ok(())
    }

    fn buffer_bytes(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len()
    }

    /// Called before an operation is added, so that an operation that fails is not added.
    fn flush_if_full(&mut self) -> Result<()> {
        let CommitLimits { operations, bytes, blobs: max_blobs } = self.limits;
        let is_full =
            self.operations.len() >= operations || self.bytes.len() >= bytes || self.blobs.len() >= max_blobs;
        if is_full { self.flush() } else { Ok(()) }
    }

    /// Writes the collected operations.
    pub(crate) fn flush(&mut self) -> Result<()> {
        if self.operations.is_empty() {
            return Ok(());
        }
        match self.ingest.is_some() {
            true => self.ingest_all()?,
            false => self.commit_all()?,
        }
        self.operations.clear();
        self.bytes.clear();
        Ok(())
    }

    fn ingest_all(&mut self) -> Result<()> {
        let Some(ingest) = &mut self.ingest else { return Ok(()) };
        let store = &self.unpublished.store;
        store.check_writable()?; // after closing, the next owner may use the files
        self.has_files = true;
        store.check_disk_reserve(2 * self.bytes.len() as u64)?;
        let _at_work = store.background.engine_steps_lock.read();
        store.check_writable()?; // checked again under the lock: closing waits for its holders
        let mut unsynced = UnsyncedBlobs::default();
        self.blobs.drain(..).for_each(|uncommitted| unsynced.add(uncommitted));
        store.context.blobs.sync(&unsynced).map_err(|_| store.poison(PoisonCause::Sync))?; // I1
        for (key, what) in &self.operations {
            let content = match what {
                IngestOp::Put(value) => RecordContent::Put(&self.bytes[value.clone()]),
                IngestOp::Blob(blob) => RecordContent::Blob(*blob),
                IngestOp::Remove => continue, // the keyspace has no such key
            };
            match ingest.push(&self.bytes[key.clone()], content) {
                Err(Error::Poisoned { cause }) => return Err(store.poison(cause)),
                other => other?,
            }
        }
        Ok(())
    }

    fn commit_all(&mut self) -> Result<()> {
        let is_known = self.unpublished.is_registered();
        assert!(is_known, "unpublished (I3): GC knows the keyspace before its first commit");
        let (keyspace, bytes) = (&self.unpublished.keyspace, &self.bytes);
        let write = |(key, what): &(Range<usize>, IngestOp)| {
            let action = match what {
                IngestOp::Put(value) => Action::Put(&bytes[value.clone()]),
                IngestOp::Blob(blob) => Action::Blob(*blob),
                IngestOp::Remove => Action::Remove,
            };
            let op = EngineOp::new(&bytes[key.clone()], action);
            let (expires, is_encoded) = (Expires::Stored(None), true);
            CommitWrite { expires, is_encoded, ..CommitWrite::new(keyspace, op) }
        };
        let mut writes: Vec<CommitWrite<'_>> = self.operations.iter().map(write).collect();
        match self.unpublished.store.commit_with_blobs(&mut writes, &mut self.blobs)? {
            CommitOutcome::Committed(_) => Ok(()),
            CommitOutcome::Conflict(_) => unreachable!("there are no expectations"),
        }
    }

    /// Ends the sorted part: later operations are committed, in any order. If there was at most one
    /// commit, it is not worth files, and is committed too.
    pub(crate) fn end_key_order(&mut self) -> Result<()> {
        if self.has_files {
            self.flush()?;
            if let Some(ingest) = self.ingest.take() {
                match ingest.finish() {
                    Err(Error::Poisoned { cause }) => return Err(self.store().poison(cause)),
                    other => other?,
                }
            }
        }
        self.ingest = None;
        self.unpublished.register();
        self.flush()
    }

    /// Publishes the keyspace with [`UnpublishedKeyspace::publish`].
    pub(crate) fn publish(
        mut self,
        before: Option<&KeyspaceState>,
        plan: &IndexPlan,
        cause: CatalogCause,
    ) -> Result<Arc<KeyspaceState>> {
        self.end_key_order()?;
        self.unpublished.publish(before, plan, cause)
    }
}

fn check_pair(key: &[u8], value: usize) -> Result<()> {
    for (what, got, max) in [("key", key.len(), MAX_KEY), ("value", value, MAX_VALUE)] {
        if got > max {
            return Err(Error::TooLarge { object: what, got: got as u64, max: max as u64 });
        }
    }
    Ok(())
}
