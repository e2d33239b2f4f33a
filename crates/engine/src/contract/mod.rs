//! # Contract of an engine
//!
//! An engine stores the pairs of a keyspace, or an index of them. It receives operations, records
//! and images; the store syncs the logs and runs the background work. An engine may have files of
//! its own below [`crate::context::EngineDir`], which it syncs itself. It reads time from the clock
//! of its context, and may run threads within a call. With `EngineContext::inline`, neither that
//! clock nor threads may affect its results.
//!
//! ## Roles
//!
//! ```text
//!   Engine ─┬─ EngineInfo                           name, features, log
//!           ├─ EngineReads       reads.rs           gets, cursors, counts
//!           ├─ EngineCommits     commits.rs op.rs   prepare, is_current, apply
//!           ├─ EngineCheckpoint  checkpoint.rs      freeze, maintain, save; images
//!           ├─ EnginePressure    checkpoint.rs      when a checkpoint is due; throttling
//!           ├─ EngineRecovery    recovery.rs        restore, replay
//!           ├─ StoreLogIndex     store_log.rs       optional: liveness, relocation by GC
//!           └─ EngineCache       cache.rs           optional: eviction
//! ```

mod cache;
mod checkpoint;
mod commits;
mod op;
mod reads;
mod recovery;
mod store_log;

use std::sync::Arc;

use sheaf_log::compression::ValueCompression;
use sheaf_log::options::{EngineOptions, OptionSpec};
use sheaf_log::record::RecordContent;
use sheaf_log::types::{KeyspaceId, LogId, Seq};
use sheaf_platform::error::{Error, Result};

pub use cache::EngineCache;
pub use checkpoint::{EngineCheckpoint, EnginePressure, ImageSink, ImageSource};
pub use commits::EngineCommits;
pub use op::{Action, EngineOp, FINDING_WORDS, Findings, HashedKey, OpaqueFindings, Preparation};
pub use reads::{Bounds, Cursor, EngineReads, Projection};
pub use recovery::{EngineRecovery, ReplayRecord};
pub use store_log::{Liveness, StoreLogIndex};

/// Features of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// True if the engine supports ranges, prefixes, first and last, and iteration in key order
    /// from both ends. Without it, `iter` returns every pair once in no particular order, and the
    /// other calls return `Unsupported`.
    pub ordered: bool,
}

/// Loader for the initial pairs of a keyspace, which bypass the log ([`Engine::ingest`]). During
/// the load no commit writes to the keyspace and no checkpoint includes it. A loader that is
/// dropped before `finish` leaves files behind. [`Engine::drop_data`] or the sweep of the next
/// opening removes them.
pub trait Ingest: Send {
    /// Adds the next pair: a put of inline bytes or of a durable blob. Keys must be strictly
    /// ascending.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] if a write fails, and the engine's error if memory or disk space runs
    /// out.
    fn push(&mut self, key: &[u8], content: RecordContent<'_>) -> Result<()>;
    /// Ends the load. On return all pairs are durable, recovery finds them without an image, and
    /// the engine accepts commits.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] if a write or a sync fails.
    fn finish(self: Box<Self>) -> Result<()>;
}

/// Statistics of a keyspace that its engine provides.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineStats {
    /// Number of live keys.
    pub keys: u64,
    /// Bytes of the index in memory.
    pub index_bytes: u64,
    /// Number of old versions that snapshots and iterators pin.
    pub pinned_versions: u64,
    /// Bytes of the values that were written since the opening, if the keyspace has a codec.
    /// Without a codec zero.
    pub encoded_raw_bytes: u64,
    /// Bytes of the stored form of these values.
    pub encoded_bytes: u64,
}

/// Name and features of an engine.
pub trait EngineInfo: Send + Sync {
    /// Returns the name of the engine, as in the catalog.
    fn name(&self) -> &'static str;
    /// Returns the features of the engine.
    fn capabilities(&self) -> Capabilities;
    /// Returns the log that receives the commits of the keyspace.
    fn log(&self) -> LogId;
}

/// Engine instance of one keyspace.
pub trait Engine:
    EngineInfo + EngineReads + EngineCommits + EngineCheckpoint + EnginePressure + EngineRecovery
{
    /// Returns the codec of the keyspace, if it has one. The store then passes values in their
    /// stored form to the engine, and reads decode them.
    fn compression(&self) -> Option<&Arc<ValueCompression>> {
        None
    }
    /// Returns the engine that reads values in their stored form. Returns `None` if this engine
    /// does: then it has no codec.
    fn stored_form(&self) -> Option<&dyn Engine> {
        None
    }
    /// Returns the engine's index over its store log. Returns `None` if the data of the engine is
    /// not in a store log.
    fn store_log_index(&self) -> Option<&dyn StoreLogIndex> {
        None
    }
    /// Returns the engine's cache, if it has one.
    fn cache(&self) -> Option<&dyn EngineCache> {
        None
    }
    /// Appends to `out` the blobs that live entries refer to.
    ///
    /// # Errors
    ///
    /// Returns the error of a failed read. `out` may then be incomplete, and the caller must not
    /// treat any blob as unreferenced.
    fn blobs(&self, out: &mut Vec<u64>) -> Result<()>;
    /// Returns a loader that writes pairs in key order directly to the engine's own files, without
    /// the log, as versions of commit `seq`. The keyspace must be empty and not yet published.
    /// Returns `None` if commits are as good: the log is the data, or there is no engine directory.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] if a file cannot be created.
    fn ingest(self: Arc<Self>, seq: Seq) -> Result<Option<Box<dyn Ingest>>> {
        let _ = seq;
        Ok(None)
    }
    /// Returns statistics of the keyspace.
    fn stats(&self) -> EngineStats;
    /// Returns counters of the engine's work since opening, each with its name, for diagnosis.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
    /// Reads all data of the engine and calls `report` for each finding. The engine calls `step`
    /// regularly with the number of bytes read since the last call.
    ///
    /// No lock that commits, maintenance or statistics take may be held while a device is read or
    /// `report` runs. Data that moves during the verification must not be reported as a finding.
    ///
    /// # Errors
    ///
    /// Returns the error of `step`, which ends the verification.
    fn verify(&self, report: &mut dyn FnMut(Error), step: &mut dyn FnMut(u64) -> Result<()>) -> Result<()>;
    /// Frees the memory of a dropped keyspace and accounts its entries as dead. No reader uses the
    /// keyspace any more.
    fn drop_data(&self);
    /// Closes the engine's own files. The store calls this before it releases the lock of the
    /// database.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] if a final sync or a close fails.
    fn close(&self) -> Result<()> {
        Ok(())
    }
}

/// Constructor for the keyspaces of one engine.
pub trait EngineFactory: Send + Sync {
    /// Returns the name of the engine.
    fn name(&self) -> &'static str;
    /// Returns the options that can be set when a keyspace is created.
    fn options(&self) -> &'static [OptionSpec] {
        &[]
    }
    /// Returns true if the engine creates files of this name in the directory of a keyspace. Repair
    /// recognizes the engine of a keyspace by them if the catalog is lost.
    fn owns_file(&self, _name: &str) -> bool {
        false
    }
    /// Creates the engine instance of a new keyspace, or of one that is about to be restored.
    /// `options` contains valid values only.
    fn create(
        &self,
        id: KeyspaceId,
        options: &EngineOptions,
        context: &Arc<crate::context::EngineContext>,
    ) -> Arc<dyn Engine>;
}
