//! # Fill: what a keyspace in the making is filled with
//!
//! ```text
//!  in order, engine with files of its own, more than a commit ──> ingest: straight into them          ┐ then commits
//!  else ──────────────────────────────────────────────────────> commits of some hundred operations    ┘ for what changed meanwhile
//! ```
//!
//! Of engines whose data is the flat log there is nothing to skip: their records go where they
//! stay, each once. Those of the journal would write everything twice, and more where it is moved
//! again.
//!
//! ## Invariants
//!
//! 1. A staged value that is ingested is durable before the engine hears of it: no record names it,
//!    so no opening would notice.
//! 2. A commit has no key twice.
//!
//! ## Costs
//!
//! Memory: one commit. A large value goes through a buffer into the place where it is staged.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use smallvec::SmallVec;

use super::commit::CommitWrite;
use super::unpublished::UnpublishedKeyspace;
use super::value_writer::PartialValue;
use super::{CommitOutcome, KeyspaceState, Store};
use crate::blob::{BlobRef, UncommittedBlob, UnsyncedBlobs};
use crate::blob_reader::{OpenBlob, StoredValue};
use crate::engine::{Action, EngineOp, Ingest};
use crate::error::{Error, Result};
use crate::record::RecordContent;
use crate::types::{MAX_KEY, MAX_VALUE, Seq};

/// Bytes of one piece of a value on its way.
const VALUE_CHUNK: usize = 64 << 10;

/// Limits of a commit.
#[derive(Clone, Copy, Debug)]
struct CommitLimits {
    operations: usize,
    bytes: usize,
    /// Files that stay open until it is done.
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

/// What an operation does.
#[derive(Clone, Debug)]
enum IngestOp {
    Put(Range<usize>),
    Blob(BlobRef),
    Remove,
}

/// A keyspace in the making, and what is on its way into it.
pub(super) struct IngestWriter {
    // Goes before what it fills.
    ingest: Option<Box<dyn Ingest>>,
    unpublished: UnpublishedKeyspace,
    /// The engine has made files: there is more than one commit of it.
    has_files: bool,
    limits: CommitLimits,
    bytes: Vec<u8>,
    operations: Vec<(Range<usize>, IngestOp)>,
    blobs: SmallVec<[UncommittedBlob; 1]>,
}

impl IngestWriter {
    /// Fills what is being made; in the order of keys if `is_sorted`.
    pub(super) fn new(mut unpublished: UnpublishedKeyspace, is_sorted: bool) -> Result<IngestWriter> {
        let store = Arc::clone(&unpublished.store);
        let mut ingest = None;
        if is_sorted {
            // A commit that exists once the keyspace has its name.
            let seq = store.visible().max(Seq(1));
            ingest = Arc::clone(unpublished.keyspace.engine()?).ingest(seq)?;
        }
        if ingest.is_none() {
            unpublished.register();
        }
        let limits = CommitLimits::new(store.options.tiny);
        let (bytes, operations, blobs) = (Vec::new(), Vec::new(), SmallVec::new());
        Ok(IngestWriter { unpublished, ingest, has_files: false, limits, bytes, operations, blobs })
    }

    pub(super) fn store(&self) -> &Arc<Store> {
        &self.unpublished.store
    }

    pub(super) fn keyspace(&self) -> &Arc<KeyspaceState> {
        &self.unpublished.keyspace
    }

    /// Whether pairs can go past the log: until the end of that they must come in the order of
    /// their keys.
    pub(super) fn needs_key_order(&self) -> bool {
        self.ingest.is_some()
    }

    /// Whether they went there.
    pub(super) fn is_direct(&self) -> bool {
        self.has_files
    }

    /// Sets `key` to `value`.
    pub(super) fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        check_pair(key, value.len())?;
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

    /// Sets `key` to what was found for it somewhere.
    pub(super) fn put_stored(&mut self, key: &[u8], stored: StoredValue<'_>) -> Result<()> {
        match stored {
            StoredValue::Bytes(value) => self.put(key, value),
            StoredValue::Blob(file) => self.copy_blob(key, file),
        }
    }

    /// Sets `key` to the value in `file`, piece by piece.
    fn copy_blob(&mut self, key: &[u8], file: OpenBlob) -> Result<()> {
        let store = Arc::clone(self.store());
        let mut pieces = store.blob_reader(file)?;
        let mut incoming = store.begin_value(self.keyspace())?;
        let mut piece = vec![0; VALUE_CHUNK];
        let mut at = 0;
        loop {
            let got = pieces.read_at(at, &mut piece)?;
            if got == 0 {
                break;
            }
            store.append_value(&mut incoming, &piece[..got])?;
            at += got as u64;
        }
        self.put_partial_value(key, incoming)
    }

    /// Sets `key` to the value in `file`, which is another database's and was checked: piece by
    /// piece.
    pub(super) fn copy_foreign_blob(&mut self, key: &[u8], file: &OpenBlob) -> Result<()> {
        check_pair(key, usize::try_from(file.len()).unwrap_or(usize::MAX))?;
        let store = Arc::clone(self.store());
        let mut incoming = store.begin_value(self.keyspace())?;
        file.for_each_stride(|_, bytes| store.append_value(&mut incoming, bytes))?;
        self.put_partial_value(key, incoming)
    }

    /// Sets `key` to what `value` gives until its end, piece by piece; returns the bytes of it.
    pub(super) fn put_reader(&mut self, key: &[u8], value: &mut dyn io::Read) -> Result<u64> {
        check_pair(key, 0)?;
        let store = Arc::clone(self.store());
        let mut incoming = store.begin_value(self.keyspace())?;
        let mut piece = vec![0; VALUE_CHUNK];
        loop {
            match value.read(&mut piece) {
                Ok(0) => break,
                Ok(got) => store.append_value(&mut incoming, &piece[..got])?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io("read", Path::new("a value"), error)),
            }
        }
        let bytes = incoming.len();
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
    pub(super) fn remove(&mut self, key: &[u8]) -> Result<()> {
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

    /// Before anything is added, so that an operation which was refused is not there.
    fn flush_if_full(&mut self) -> Result<()> {
        let CommitLimits { operations, bytes, blobs: max_blobs } = self.limits;
        let is_full =
            self.operations.len() >= operations || self.bytes.len() >= bytes || self.blobs.len() >= max_blobs;
        if is_full { self.flush() } else { Ok(()) }
    }

    /// Hands over what is there.
    pub(super) fn flush(&mut self) -> Result<()> {
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
        store.check_writable()?; // once it is closed, the files belong to whoever opens it next
        self.has_files = true;
        store.check_disk_reserve(2 * self.bytes.len() as u64)?;
        let _at_work = store.engine_steps_lock.read();
        store.check_writable()?; // not a moment later: the end waits for who is at work
        let mut unsynced = UnsyncedBlobs::default();
        self.blobs.drain(..).for_each(|staged| unsynced.add(staged));
        store.context.blobs.sync(&unsynced).map_err(|_| store.poison("sync"))?; // I1
        for (key, what) in &self.operations {
            let content = match what {
                IngestOp::Put(value) => RecordContent::Put(&self.bytes[value.clone()]),
                IngestOp::Blob(blob) => RecordContent::Blob(*blob),
                IngestOp::Remove => continue, // nothing is there
            };
            match ingest.push(&self.bytes[key.clone()], content) {
                Err(Error::Poisoned { op }) => return Err(store.poison(op)),
                other => other?,
            }
        }
        Ok(())
    }

    fn commit_all(&mut self) -> Result<()> {
        let (keyspace, bytes) = (&self.unpublished.keyspace, &self.bytes);
        let write = |(key, what): &(Range<usize>, IngestOp)| {
            let action = match what {
                IngestOp::Put(value) => Action::Put(&bytes[value.clone()]),
                IngestOp::Blob(blob) => Action::Blob(*blob),
                IngestOp::Remove => Action::Remove,
            };
            CommitWrite { keyspace, op: EngineOp::new(&bytes[key.clone()], action) }
        };
        let mut writes: Vec<CommitWrite<'_>> = self.operations.iter().map(write).collect();
        match self.unpublished.store.commit_with_blobs(&mut writes, &mut self.blobs)? {
            CommitOutcome::Committed(_) => Ok(()),
            CommitOutcome::Conflict => Err(Error::Conflict), // nothing is expected
        }
    }

    /// The end of what comes in order: from now on all goes by commits, in any order. What is no
    /// more than one commit was not worth files.
    pub(super) fn end_key_order(&mut self) -> Result<()> {
        if self.has_files {
            self.flush()?;
            if let Some(ingest) = self.ingest.take() {
                match ingest.finish() {
                    Err(Error::Poisoned { op }) => return Err(self.store().poison(op)),
                    other => other?,
                }
            }
        }
        self.ingest = None;
        self.unpublished.register();
        self.flush()
    }

    /// All is there: see [`UnpublishedKeyspace::publish`].
    pub(super) fn publish(mut self, before: Option<&KeyspaceState>) -> Result<Arc<KeyspaceState>> {
        self.end_key_order()?;
        self.unpublished.publish(before)
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
