//! # Sheaf: an embedded key-value database
//!
//! Six engines behind one API; batches, snapshots and backups span all keyspaces. Linux only.
//!
//! ```no_run
//! use sheaf::{Database, KeyspaceOptions};
//!
//! fn main() -> sheaf::Result<()> {
//!     let db = Database::open("my.db")?;
//!     let users = db.keyspace("users", KeyspaceOptions::default())?;
//!     users.insert("ada", "lovelace")?;
//!     for pair in users.prefix("a")? {
//!         let (_name, _surname) = pair?;
//!     }
//!     let snapshot = db.snapshot()?;
//!     let mut batch = db.batch();
//!     batch.insert(&users, "alan", "turing").remove(&users, "ada");
//!     batch.commit()?;
//!     assert!(snapshot.keyspace("users")?.contains_key("ada")?);
//!     db.close()
//! }
//! ```
//!
//! # Features
//!
//! - `tracing`: publishes spans and events of openings, checkpoints, syncs and errors.
//! - `metrics`: adds the module `sheaf::metrics`, which publishes the statistics.
//! - `tokio`: adds the module `sheaf::asynchronous`, which has the verbs as async functions.
//!
//! All are off by default and use the crates of the same names.

#![doc = include_str!("engines.md")]
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

#[cfg(feature = "tokio")]
pub mod asynchronous;
mod batch;
mod bulk_load;
mod changes;
mod commit_ticket;
mod convert;
mod database;
mod expiry;
mod ipc;
mod iter;
pub mod keys;
mod keyspace;
mod lock_wait;
mod merge;
#[cfg(feature = "metrics")]
pub mod metrics;
mod open_database;
mod removed_range;
mod scan_scope;
mod snapshot;
mod transaction;
mod try_get;
mod value;
mod value_stream;
mod workload;

pub use batch::Batch;
pub use bulk_load::{BulkLoadOptions, BulkLoader};
pub use changes::{ChangeCursor, ChangeQuery, ChangeRetention, Changes, ChangesReady};
pub use commit_ticket::{CommitFuture, CommitTicket};
#[doc(hidden)]
pub use convert::RunningConversion;
pub use database::{
    Builder, DEFAULT_ENGINE, Database, OpenOutcome, check_new_keyspace, disk_formats, engine_options,
    engines, keyspace_options,
};
pub use expiry::Expiry;
pub use ipc::{AttachedOwner, DatabaseOverview, KeyspaceOverview};
#[doc(hidden)]
pub use ipc::{ExportedSnapshot, decode_and_reencode as fuzz_ipc_message};
pub use iter::{Iter, KeyRange, Keys};
pub use keyspace::{Keyspace, KeyspaceOptions, RangeEstimate};
pub use merge::{MergeOperator, MergeRefusal, decode_set, encode_set, merge_operators};
pub use sheaf_engine::contract::{Capabilities, EngineStats};
pub use sheaf_engine::workload::{Latency, LengthStats, Skewness, WorkloadStats};
pub use sheaf_log::compression::Codec;
#[doc(hidden)]
pub use sheaf_log::options::named_value as named_option_value;
pub use sheaf_log::options::{EngineOptions, OptionDomain, OptionSpec};
pub use sheaf_log::types::{Durability, KeyspaceId, MAX_BATCH, MAX_KEY, MAX_VALUE};
pub use sheaf_platform::disk::persistent::PersistenceMode;
pub use sheaf_platform::disk::{DescriptorStats, Permissions};
pub use sheaf_platform::error::{
    ConflictKeys, Damage, Error, Expected, IoOp, LockConflict, PoisonCause, Result,
};
pub use sheaf_store::{
    BackupOptions, BackupPhase, BackupProgress, BackupRate, BackupReport, BlobStats, BulkLoadReport,
    CacheStats, Change, ChangeKind, ChangePosition, ChangeStats, ChangeValue, CommittedChanges,
    CompactionReport, ConversionEstimate, ConversionPhase, ConversionProgress, ConversionReport, CursorInfo,
    DamagedFile, DatabaseStats, ExpiryStats, GroupCommitMode, KeyspaceInfo, KeyspaceRepair, LogStats,
    LostRecords, MemoryStats, OpeningStats, ProgressFn, RepairFinding, RepairOptions, RepairOutcome,
    RepairProgress, RepairReport, Stall, StallKind, StallStats, TransactionStats, UnreadableRange,
    VerifyReport,
};
pub use snapshot::{KeyspaceSelector, KeyspaceSnapshot, Snapshot};
pub use transaction::{RetryPolicy, Savepoint, Transaction, TransactionIter};
pub use try_get::TryGet;
pub use value::Value;
pub use value_stream::{ValueReader, ValueWriter};
