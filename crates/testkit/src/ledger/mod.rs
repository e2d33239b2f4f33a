//! # Ledger: the reference engine
//!
//! The smallest ordered engine that keeps every promise: all keys, and values up to the staging
//! limit, in one sorted map under one lock; commits to the journal. It exists so that the contract,
//! batches over two logs, ranges both ways, the bounding of the journal and its checkpoints have a
//! user before the ordered engines do, and an oracle afterwards. It is written to be obviously
//! right, not to be fast: [`Flaw`] makes it obviously wrong, one way at a time, to prove that a
//! harness sees.
//!
//! ## Picture
//!
//! ```text
//!   map:   key -> [ version seq 5 "a" | version seq 9 (gone) | version seq 12 blob 7 ]     oldest first
//!                   needed by a view    needed by a view       the newest, what LATEST reads
//!   aged:  keys with more than one version, so that `trim` need not walk the map
//! ```
//!
//! ## Invariants
//!
//! 1. A key's versions ascend by seq; all but the last are there because a view falls in their life.
//! 2. Views are only ever registered at the newest state, so a version that went because nobody
//!    needed it leaves no gap that a later view could look into.
//! 3. While records are replayed a removed key keeps its tombstone's seq, so that an older record
//!    that comes later does not bring it back; [`Engine::replayed`] drops them.
//! 4. No lock is held between two calls of a cursor, nor while a blob is read.
//!
//! ## Crash
//!
//! The image holds each key's newest version, key by key, while commits go on. It holds no
//! tombstones: the journal is replayed from where the image was begun, whole and in order, so every
//! removal the image may have missed or anticipated comes by again.
//!
//! ## Costs
//!
//! Memory: key + value + `table::ENTRY_COST` a key. A cursor's step is a look-up.

mod cursor;
mod flaw;
mod image;
mod table;

pub use flaw::Flaw;

use std::any::Any;
use std::sync::Arc;

use sheaf_base::blob::BlobRef;
use sheaf_base::engine::{
    Action, Bounds, Capabilities, Cursor, Engine, EngineFactory, EngineStats, ImageSink, ImageSource, Need,
    Op, Replay, Want,
};
use sheaf_base::error::{Error, Result};
use sheaf_base::ground::Ground;
use sheaf_base::memory::Part;
use sheaf_base::options::EngineOptions;
use sheaf_base::record::Content;
use sheaf_base::sync::RwLock;
use sheaf_base::sync::atomic::{AtomicU64, Ordering};
use sheaf_base::types::{KeyspaceId, LogId, Seq};
use sheaf_base::value::Stored as Seen;
use sheaf_base::views::Views;

use table::{Change, Stored, Table, Version};

/// The name in the catalogue.
pub const NAME: &str = "ledger";

/// Makes ledgers.
#[derive(Clone, Copy, Debug, Default)]
pub struct LedgerFactory {
    flaw: Option<Flaw>,
}

impl LedgerFactory {
    /// Makes ledgers that are wrong in one way.
    #[must_use]
    pub fn flawed(flaw: Flaw) -> LedgerFactory {
        LedgerFactory { flaw: Some(flaw) }
    }
}

impl EngineFactory for LedgerFactory {
    fn name(&self) -> &'static str {
        NAME
    }

    fn create(&self, _: KeyspaceId, _: &EngineOptions, ground: &Arc<Ground>) -> Arc<dyn Engine> {
        Arc::new(Ledger {
            ground: Arc::clone(ground),
            table: RwLock::default(),
            logged: Default::default(),
            flaw: self.flaw,
        })
    }
}

/// One keyspace.
#[derive(Debug)]
pub struct Ledger {
    ground: Arc<Ground>,
    table: RwLock<Table>,
    /// Bytes in the journal since the last checkpoint began, and between its begin and that of the
    /// last complete one.
    logged: [AtomicU64; 2],
    flaw: Option<Flaw>,
}

impl Ledger {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    /// Accounts what a change of the table took or gave back.
    fn settle(&self, change: &Change) {
        let memory = &self.ground.memory;
        for (part, (before, after)) in [(Part::Index, change.index), (Part::Versions, change.versions)] {
            if after > before {
                memory.take(part, after - before);
            } else {
                memory.give(part, before - after);
            }
        }
    }

    /// The bytes of what was found in the table, read without its lock. `None`: the blob is gone.
    fn bytes_of(&self, stored: &Stored) -> Result<Option<Arc<[u8]>>> {
        match stored {
            Stored::Inline(value) => Ok(Some(Arc::clone(value))),
            Stored::Blob(blob) => Ok(self.ground.blobs.read(blob)?.map(Arc::from)),
            Stored::Gone => Ok(None),
        }
    }

    fn missing(&self, blob: &BlobRef) -> Error {
        self.ground.blobs.missing(blob)
    }
}

impl Engine for Ledger {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { ordered: true }
    }

    fn log(&self) -> LogId {
        LogId::Journal
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn prepare(&self, op: &mut Op<'_>) -> Result<Need> {
        let newest = self.table.read().live_seq(op.key);
        op.prior = newest.unwrap_or(Seq::ZERO);
        op.note[0] = op.prior.0;
        if self.has(Flaw::SwapsUnchecked) && matches!(op.action, Action::Expect) {
            op.prior = Seq(1); // whatever comes in between, it is what was expected
        }
        let memory = &self.ground.memory;
        match op.action {
            Action::Put(value) if newest.is_none() => {
                let cost = table::ENTRY_COST + op.key.len() as u64 + value.len() as u64;
                if !memory.has_room(cost) {
                    return Err(Error::OverBudget { budget: memory.budget() });
                }
                Ok(Need::Record)
            }
            Action::Staged(_) if newest.is_none() => {
                if !memory.has_room(table::ENTRY_COST + op.key.len() as u64) {
                    return Err(Error::OverBudget { budget: memory.budget() });
                }
                Ok(Need::Record)
            }
            Action::Put(_) | Action::Staged(_) => Ok(Need::Record),
            Action::Remove if newest.is_some() => Ok(Need::Record),
            Action::Remove | Action::Expect => Ok(Need::Nothing),
        }
    }

    fn is_current(&self, op: &Op<'_>) -> bool {
        let newest = self.table.read().live_seq(op.key).map_or(0, |seq| seq.0);
        match op.action {
            Action::Put(_) | Action::Staged(_) => true,
            Action::Remove => (newest == 0) == (op.note[0] == 0),
            Action::Expect => newest == op.note[0] || self.has(Flaw::SwapsUnchecked),
        }
    }

    fn apply(&self, seq: Seq, op: &Op<'_>, views: &Views) {
        let stored = match op.action {
            Action::Put(value) => Stored::Inline(value.into()),
            Action::Staged(blob) => Stored::Blob(blob),
            Action::Remove => Stored::Gone,
            Action::Expect => return,
        };
        assert!(!(self.has(Flaw::PanicsInApply) && op.key == Flaw::PANICS_AT), "as it was told");
        let keeps = !self.has(Flaw::DropsPinned);
        let change = self
            .table
            .write()
            .push(op.key, Version { seq, stored }, |born, died| keeps && views.needs(born, died));
        self.settle(&change);
        self.logged[0].fetch_add(u64::from(op.span), Ordering::Relaxed);
        for (seq, blob) in change.dead_blobs {
            self.ground.blob_died(seq, blob);
        }
    }

    fn look(&self, at: Seq, key: &[u8], found: &mut dyn FnMut(Seen<'_>)) -> Result<bool> {
        let mut missing = None;
        loop {
            let Some((seq, stored)) = self.table.read().at(at, key) else { return Ok(false) };
            if at == Seq::LATEST {
                self.ground.reveal(seq)?;
            }
            match &stored {
                Stored::Inline(value) => found(Seen::Bytes(value)),
                Stored::Blob(blob) if !self.ground.blobs.give(blob, &mut missing, found)? => continue,
                Stored::Blob(_) => {}
                Stored::Gone => return Ok(false),
            }
            return Ok(true);
        }
    }

    fn contains(&self, at: Seq, key: &[u8]) -> Result<bool> {
        let found = self.table.read().at(at, key).map(|(seq, _)| seq);
        if at == Seq::LATEST {
            found.map_or(Ok(()), |seq| self.ground.reveal(seq))?;
        }
        Ok(found.is_some())
    }

    fn cursor<'e>(&'e self, at: Seq, bounds: Bounds, want: Want) -> Result<Box<dyn Cursor + 'e>> {
        Ok(Box::new(cursor::LedgerCursor::new(self, at, bounds, want)))
    }

    fn len(&self) -> Result<u64> {
        let table = self.table.read();
        Ok(if self.has(Flaw::CountsTombstones) { table.entries() } else { table.live() })
    }

    fn trim(&self, views: &Views, visible: Seq) {
        // A view younger than the copy may need what was superseded after it.
        let needs = |born, died| died > visible || views.needs(born, died);
        let change = self.table.write().trim(needs);
        self.settle(&change);
        for (seq, blob) in change.dead_blobs {
            self.ground.blob_died(seq, blob);
        }
    }

    fn freeze(&self) {
        self.logged[1].fetch_add(self.logged[0].swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }

    fn saved(&self) {
        self.logged[1].store(0, Ordering::Relaxed);
    }

    fn logged(&self) -> u64 {
        self.logged.iter().map(|bytes| bytes.load(Ordering::Relaxed)).sum()
    }

    fn save(&self, out: &mut dyn ImageSink) -> Result<()> {
        assert!(!self.has(Flaw::PanicsInSave), "as it was told");
        image::save(self, out)
    }

    fn restore(&self, source: &mut dyn ImageSource) -> Result<()> {
        image::restore(self, source)
    }

    fn replay(&self, record: &Replay<'_>) -> Result<()> {
        let stored = match record.content {
            Content::Put(value) => Stored::Inline(value.into()),
            Content::Staged(blob) => Stored::Blob(blob),
            Content::Remove if self.has(Flaw::ForgetsRemovals) => return Ok(()),
            Content::Remove => Stored::Gone,
        };
        let version = Version { seq: record.seq, stored };
        let change = self.table.write().replay(record.key, version);
        self.settle(&change);
        self.logged[0].fetch_add(u64::from(record.span), Ordering::Relaxed);
        Ok(())
    }

    fn replayed(&self) {
        let change = self.table.write().drop_tombstones();
        self.settle(&change);
    }

    fn blobs(&self, out: &mut Vec<u64>) -> Result<()> {
        out.extend(self.table.read().blobs().map(|(_, blob)| blob.id));
        Ok(())
    }

    fn stats(&self) -> EngineStats {
        let table = self.table.read();
        EngineStats { keys: table.live(), index_bytes: table.index_bytes(), pinned_versions: table.pinned() }
    }

    fn verify(&self, report: &mut dyn FnMut(Error), step: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        let blobs: Vec<(Vec<u8>, BlobRef)> =
            self.table.read().blobs().map(|(key, blob)| (key.to_vec(), blob)).collect();
        for (key, blob) in blobs {
            step(u64::from(blob.len))?;
            match self.ground.blobs.read(&blob) {
                Ok(Some(_)) => {}
                Ok(None) if !self.table.read().names(&key, blob.id) => {} // superseded meanwhile
                Ok(None) => report(self.missing(&blob)),
                Err(e) if e.is_corrupt() => report(e),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn retire(&self) {
        // Its blobs are the store's business: it asked for them just before.
        let change = self.table.write().clear();
        self.settle(&change);
    }
}
