//! # Sheaf: an embedded key-value database
//!
//! Five storage engines behind one contract: each keyspace is kept by the engine that suits its data;
//! one atomic commit and one snapshot span them all. Linux only until further notice.
//!
//! ```
//! # fn main() -> sheaf::Result<()> {
//! # let dir = std::env::temp_dir().join(format!("sheaf-doc-{}", std::process::id()));
//! use sheaf::{Database, KeyspaceOptions};
//!
//! let db = Database::open(&dir)?;
//! let users = db.keyspace("users", KeyspaceOptions::default())?;
//! users.insert("ada", "lovelace")?;
//! assert_eq!(users.get("ada")?.as_deref(), Some(&b"lovelace"[..]));
//!
//! // Many operations over several keyspaces, there whole or not at all.
//! let visits = db.keyspace("visits", KeyspaceOptions::default())?;
//! let mut batch = db.batch();
//! batch.insert(&users, "alan", "turing").insert(&visits, "alan", "1");
//! batch.commit()?;
//!
//! // A past state, consistent over all keyspaces, in nobody's way.
//! let snapshot = db.snapshot()?;
//! users.remove("ada")?;
//! assert!(snapshot.keyspace("users")?.contains_key("ada")?);
//! db.close()?;
//! # std::fs::remove_dir_all(&dir).ok();
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

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
    ConversionPhase, ConversionProgress, Converted, Estimate, Fate, Harm, KeyspaceInfo, KeyspaceRepair,
    Loaded, LogStats, MemoryStats, RepairFinding, RepairOptions, RepairProgress, RepairReport, StagedStats,
    Stall, StallKind, StallStats, Stats, VerifyReport, Watcher,
};
pub use sheaf_base::types::{Durability, MAX_BATCH, MAX_KEY, MAX_VALUE};
pub use snapshot::{KeyspaceSnapshot, Named, Snapshot};
pub use stream::{ValueReader, ValueWriter};
pub use value::Value;
