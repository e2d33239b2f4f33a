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
//!
//! Both are off by default and use the crates of the same names.

#![doc = include_str!("engines.md")]
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

pub mod advise;
mod batch;
mod convert;
mod database;
mod door;
mod handle;
mod iter;
mod keyspace;
mod load;
#[cfg(feature = "metrics")]
pub mod metrics;
mod observe;
mod scope;
mod snapshot;
mod stream;
mod value;
mod waiting;

pub use batch::{Batch, Commit};
#[doc(hidden)]
pub use convert::Conversion;
pub use database::{Builder, DEFAULT_ENGINE, Database, Reached, engine_options, engines};
#[doc(hidden)]
pub use door::{Held, feed as feed_door};
pub use door::{KeyspaceOverview, Overview, Owner};
pub use iter::{Iter, KeyRange, Keys};
pub use keyspace::{Keyspace, KeyspaceOptions};
pub use load::{LoadOptions, Loader};
pub use sheaf_base::disk::{DescriptorStats, Permissions};
pub use sheaf_base::engine::{Capabilities, EngineStats};
pub use sheaf_base::error::{Damage, Error, InUse, Result};
pub use sheaf_base::load::{Latency, LoadStats, Skewness, Spread};
pub use sheaf_base::options::{EngineOptions, OptionSpec, Values};
pub use sheaf_base::store::{
    BackupOptions, BackupPace, BackupPhase, BackupProgress, BackupReport, Batching, CacheStats, Compacted,
    ConversionPhase, ConversionProgress, Converted, Estimate, Fate, Harm, KeyGap, KeyspaceInfo,
    KeyspaceRepair, Loaded, LogStats, LostRecords, MemoryStats, OpeningStats, RepairFinding, RepairOptions,
    RepairProgress, RepairReport, StagedStats, Stall, StallKind, StallStats, Stats, VerifyReport, Watcher,
};
pub use sheaf_base::types::{Durability, KeyspaceId, MAX_BATCH, MAX_KEY, MAX_VALUE};
pub use snapshot::{KeyspaceSnapshot, Named, Snapshot};
pub use stream::{ValueReader, ValueWriter};
pub use value::Value;
