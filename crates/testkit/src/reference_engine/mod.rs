//! # Reference engine ("ledger")
//!
//! The smallest ordered engine that keeps every promise: keys, and values up to the blob threshold,
//! in one sorted map under one lock, with commits in the journal. Other engines are compared with
//! it. [`EngineFlaw`] switches on one deliberate bug, to prove that a harness finds it.
//!
//! ## Picture
//!
//! ```text
//!  map:                 key -> [ seq 5 "a" | seq 9 (removed) | seq 12 blob 7 ]     oldest first
//!                                pinned      pinned            newest, read by LATEST
//!  multi_version_keys:  keys with more than one version, so that `trim` need not scan the map
//! ```
//!
//! ## Invariants
//!
//! 1. The versions of a key ascend by seq. All but the last are kept because a view needs them.
//! 2. Views are registered at the newest state only, so a later view needs no dropped version.
//! 3. During replay a removed key keeps its tombstone, so that an older record replayed later does
//!    not restore the key. [`EngineRecovery::replay_finished`] drops the tombstones.
//! 4. No lock is held between two calls of a cursor, nor while a blob is read.
//!
//! ## Crash
//!
//! The image has the newest version of each key, read while commits continue, and no tombstones:
//! every removal after its start is replayed from the journal.
//!
//! ## Costs
//!
//! Memory per key: key + value + `table::ENTRY_COST`. A cursor step is a map lookup.

mod cursor;
mod flaw;
mod image;
mod table;

pub use flaw::EngineFlaw;

use std::sync::Arc;

use sheaf_engine::context::EngineContext;
use sheaf_engine::contract::{
    Action, Bounds, Capabilities, Cursor, Engine, EngineCheckpoint, EngineCommits, EngineFactory, EngineInfo,
    EngineOp, EnginePressure, EngineReads, EngineRecovery, EngineStats, FINDING_WORDS, Findings, ImageSink,
    ImageSource, Preparation, Projection, ReplayRecord,
};
use sheaf_engine::range_estimate::{KeySample, RangeSum};
use sheaf_engine::views::Views;
use sheaf_log::blob::BlobRef;
use sheaf_log::blob_reader::StoredValue as Seen;
use sheaf_log::options::EngineOptions;
use sheaf_log::record::RecordContent;
use sheaf_log::types::{KeyspaceId, LogId, Seq};
use sheaf_platform::error::{Error, Result};
use sheaf_platform::memory::MemoryPart;
use sheaf_platform::sync::RwLock;
use sheaf_platform::sync::atomic::{AtomicU64, Ordering};

use table::{ReferenceTable, TableChange, TableVersion, VersionContent};

/// Name of the engine in the catalog.
pub const NAME: &str = "ledger";

/// Factory of the reference engine.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReferenceEngineFactory {
    flaw: Option<EngineFlaw>,
}

impl ReferenceEngineFactory {
    /// Returns a factory for a reference engine with one deliberate bug.
    #[must_use]
    pub fn flawed(flaw: EngineFlaw) -> ReferenceEngineFactory {
        ReferenceEngineFactory { flaw: Some(flaw) }
    }
}

impl EngineFactory for ReferenceEngineFactory {
    fn name(&self) -> &'static str {
        NAME
    }

    fn create(&self, _: KeyspaceId, _: &EngineOptions, context: &Arc<EngineContext>) -> Arc<dyn Engine> {
        Arc::new(ReferenceEngine {
            context: Arc::clone(context),
            table: RwLock::default(),
            log_bytes: Default::default(),
            flaw: self.flaw,
        })
    }
}

/// One keyspace.
#[derive(Debug)]
pub struct ReferenceEngine {
    context: Arc<EngineContext>,
    table: RwLock<ReferenceTable>,
    /// Journal bytes since the last checkpoint began, and those between the last complete
    /// checkpoint and that one.
    log_bytes: [AtomicU64; 2],
    flaw: Option<EngineFlaw>,
}

impl ReferenceEngine {
    fn has_flaw(&self, flaw: EngineFlaw) -> bool {
        self.flaw == Some(flaw)
    }

    /// Reports the memory that a change of the table allocated or freed.
    fn account_change(&self, change: &TableChange) {
        let memory = &self.context.memory;
        for (part, (before, after)) in
            [(MemoryPart::Index, change.index), (MemoryPart::Versions, change.versions)]
        {
            if after > before {
                memory.take(part, after - before);
            } else {
                memory.give_back(part, before - after);
            }
        }
    }

    /// Reads the value of a version without the table's lock. Returns `None` if the blob was
    /// removed.
    fn load_value(&self, stored: &VersionContent) -> Result<Option<Arc<[u8]>>> {
        match stored {
            VersionContent::Inline(value) => Ok(Some(Arc::clone(value))),
            VersionContent::Blob(blob) => Ok(self.context.blobs.read(blob)?.map(Arc::from)),
            VersionContent::Tombstone => Ok(None),
        }
    }

    fn missing_blob_error(&self, blob: &BlobRef) -> Error {
        self.context.blobs.missing_error(blob)
    }
}

/// Findings of `prepare`: the seq of the key's newest version; 0 if it has none.
#[derive(Clone, Copy)]
struct NewestSeq(u64);

impl Findings for NewestSeq {
    fn to_words(self) -> [u64; FINDING_WORDS] {
        let mut words = [0; FINDING_WORDS];
        words[0] = self.0;
        words
    }

    fn from_words(words: [u64; FINDING_WORDS]) -> NewestSeq {
        NewestSeq(words[0])
    }
}

impl EngineInfo for ReferenceEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { ordered: true }
    }

    fn log(&self) -> LogId {
        LogId::Journal
    }
}

impl EngineReads for ReferenceEngine {
    fn get_stored(&self, at: Seq, key: &[u8], found: &mut dyn FnMut(Seen<'_>)) -> Result<bool> {
        let mut missing = None;
        loop {
            let Some((seq, stored)) = self.table.read().at(at, key) else { return Ok(false) };
            if at == Seq::LATEST {
                self.context.wait_visible(seq)?;
            }
            match &stored {
                VersionContent::Inline(value) => found(Seen::Bytes(value)),
                VersionContent::Blob(blob)
                    if !self.context.blobs.read_stored(blob, &mut missing, found)? =>
                {
                    continue;
                }
                VersionContent::Blob(_) => {}
                VersionContent::Tombstone => return Ok(false),
            }
            return Ok(true);
        }
    }

    fn contains(&self, at: Seq, key: &[u8]) -> Result<bool> {
        let found = self.table.read().at(at, key).map(|(seq, _)| seq);
        if at == Seq::LATEST {
            found.map_or(Ok(()), |seq| self.context.wait_visible(seq))?;
        }
        Ok(found.is_some())
    }

    fn cursor<'e>(&'e self, at: Seq, bounds: Bounds, projection: Projection) -> Result<Box<dyn Cursor + 'e>> {
        Ok(Box::new(cursor::ReferenceCursor::new(self, at, bounds, projection)))
    }

    fn estimate_range(&self, first: &[u8], end: Option<&[u8]>) -> Result<RangeSum> {
        let mut cursor = self.cursor(Seq::LATEST, Bounds::between(first, end), Projection::Pairs)?;
        let mut sum = RangeSum::default();
        while cursor.next()? {
            let (key, value) = cursor.pair();
            sum.add_sample(KeySample::live((key.len() + value.len()) as u64), 1.0);
        }
        Ok(sum)
    }

    fn len(&self) -> Result<u64> {
        let table = self.table.read();
        Ok(if self.has_flaw(EngineFlaw::CountsTombstones) { table.entries() } else { table.live_keys() })
    }
}

impl EngineCommits for ReferenceEngine {
    fn prepare(&self, op: &mut EngineOp<'_>) -> Result<Preparation> {
        let newest = self.table.read().live_version_seq(op.key);
        op.prior = newest.unwrap_or(Seq::ZERO);
        op.findings.set(NewestSeq(op.prior.0));
        if self.has_flaw(EngineFlaw::IgnoresConcurrentChanges) && matches!(op.action, Action::Expect) {
            op.prior = Seq(1); // a fixed seq hides a concurrent change
        }
        let memory = &self.context.memory;
        match op.action {
            Action::Put(value) if newest.is_none() => {
                let cost = table::ENTRY_COST + op.key.len() as u64 + value.len() as u64;
                if !memory.has_room(cost) {
                    return Err(Error::MemoryBudgetExceeded { budget: memory.budget() });
                }
                Ok(Preparation::Record)
            }
            Action::Blob(_) if newest.is_none() => {
                if !memory.has_room(table::ENTRY_COST + op.key.len() as u64) {
                    return Err(Error::MemoryBudgetExceeded { budget: memory.budget() });
                }
                Ok(Preparation::Record)
            }
            Action::Put(_) | Action::Blob(_) => Ok(Preparation::Record),
            Action::Remove if newest.is_some() => Ok(Preparation::Record),
            Action::Remove | Action::RemoveRange(_) | Action::Expect => Ok(Preparation::NoChange),
        }
    }

    fn is_current(&self, op: &EngineOp<'_>) -> bool {
        let newest = self.table.read().live_version_seq(op.key).map_or(0, |seq| seq.0);
        let NewestSeq(found) = op.findings.get();
        match op.action {
            Action::Put(_) | Action::Blob(_) | Action::RemoveRange(_) => true,
            Action::Remove => (newest == 0) == (found == 0),
            Action::Expect => newest == found || self.has_flaw(EngineFlaw::IgnoresConcurrentChanges),
        }
    }

    fn apply(&self, seq: Seq, op: &EngineOp<'_>, views: &Views) {
        let stored = match op.action {
            Action::Put(value) => VersionContent::Inline(value.into()),
            Action::Blob(blob) => VersionContent::Blob(blob),
            Action::Remove => VersionContent::Tombstone,
            Action::RemoveRange(_) | Action::Expect => return, // the engine accepts no ranges
        };
        assert!(
            !(self.has_flaw(EngineFlaw::PanicsInApply) && op.key == EngineFlaw::PANIC_KEY),
            "as it was told"
        );
        let keeps = !self.has_flaw(EngineFlaw::DropsPinned);
        let change = self
            .table
            .write()
            .push(op.key, TableVersion { seq, stored }, |born, died| keeps && views.needs(born, died));
        self.account_change(&change);
        self.log_bytes[0].fetch_add(u64::from(op.span), Ordering::Relaxed);
        for (seq, blob) in change.retired_blobs {
            self.context.retire_blob(seq, blob);
        }
    }

    fn trim(&self, views: &Views, visible: Seq) {
        // A view registered after `views` was copied may need a version superseded after `visible`.
        let needs = |born, died| died > visible || views.needs(born, died);
        let change = self.table.write().trim(needs);
        self.account_change(&change);
        for (seq, blob) in change.retired_blobs {
            self.context.retire_blob(seq, blob);
        }
    }
}

impl EngineCheckpoint for ReferenceEngine {
    fn freeze(&self) {
        self.log_bytes[1].fetch_add(self.log_bytes[0].swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }

    fn image_published(&self) {
        self.log_bytes[1].store(0, Ordering::Relaxed);
    }

    fn save(&self, out: &mut dyn ImageSink) -> Result<()> {
        assert!(!self.has_flaw(EngineFlaw::PanicsInSave), "as it was told");
        image::save(self, out)
    }
}

impl EnginePressure for ReferenceEngine {
    fn log_bytes_needed(&self) -> u64 {
        self.log_bytes.iter().map(|bytes| bytes.load(Ordering::Relaxed)).sum()
    }
}

impl EngineRecovery for ReferenceEngine {
    fn restore(&self, source: &mut dyn ImageSource) -> Result<()> {
        image::restore(self, source)
    }

    fn replay(&self, record: &ReplayRecord<'_>) -> Result<()> {
        let stored = match record.content {
            RecordContent::Put(value) => VersionContent::Inline(value.into()),
            RecordContent::Blob(blob) => VersionContent::Blob(blob),
            RecordContent::Remove if self.has_flaw(EngineFlaw::ForgetsRemovals) => return Ok(()),
            RecordContent::Remove | RecordContent::RemoveRange(_) => VersionContent::Tombstone,
        };
        let version = TableVersion { seq: record.seq, stored };
        let change = self.table.write().replay(record.key, version);
        self.account_change(&change);
        self.log_bytes[0].fetch_add(u64::from(record.span), Ordering::Relaxed);
        Ok(())
    }

    fn replay_finished(&self) {
        let change = self.table.write().drop_tombstones();
        self.account_change(&change);
    }
}

impl Engine for ReferenceEngine {
    fn blobs(&self, out: &mut Vec<u64>) -> Result<()> {
        out.extend(self.table.read().blobs().map(|(_, blob)| blob.id));
        Ok(())
    }

    fn stats(&self) -> EngineStats {
        let table = self.table.read();
        EngineStats {
            keys: table.live_keys(),
            index_bytes: table.index_bytes(),
            pinned_versions: table.pinned_versions(),
            ..EngineStats::default()
        }
    }

    fn verify(&self, report: &mut dyn FnMut(Error), step: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        let blobs: Vec<(Vec<u8>, BlobRef)> =
            self.table.read().blobs().map(|(key, blob)| (key.to_vec(), blob)).collect();
        for (key, blob) in blobs {
            step(u64::from(blob.len))?;
            match self.context.blobs.read(&blob) {
                Ok(Some(_)) => {}
                // Superseded since the list was made.
                Ok(None) if !self.table.read().references_blob(&key, blob.id) => {}
                Ok(None) => report(self.missing_blob_error(&blob)),
                Err(e) if e.is_corrupt() => report(e),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn drop_data(&self) {
        // The store has already asked for the blobs, and retires them itself.
        let change = self.table.write().clear();
        self.account_change(&change);
    }
}
