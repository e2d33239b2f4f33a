//! # Asynchronous: the verbs of the facade as async functions on tokio
//!
//! ```
//! use sheaf::KeyspaceOptions;
//! use sheaf::asynchronous::AsyncDatabase;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! let db = AsyncDatabase::open(dir.path()).await?;
//! let users = db.keyspace("users", KeyspaceOptions::default()).await?;
//! users.insert("ada", "lovelace").await?;
//! assert_eq!(users.get("ada").await?, Some("lovelace".into()));
//! db.close().await?;
//! # Ok(())
//! # }
//! ```
//!
//! [`AsyncDatabase`] states the rules that all functions follow.

mod changes;
mod database;
mod expiry;
mod iter;
mod keyspace;
mod snapshot;

pub use self::changes::AsyncChanges;
pub use self::database::AsyncDatabase;
pub use self::iter::AsyncIter;
pub use self::keyspace::AsyncKeyspace;
pub use self::snapshot::{AsyncKeyspaceSnapshot, AsyncSnapshot};

use crate::{Error, Result};

/// The examples of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/guide/async.md")]
struct Guide;

/// Runs `work` on the blocking pool. After the first poll, `work` runs also if the future is
/// dropped, unless the runtime shuts down before.
async fn on_pool<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    returned(::tokio::task::spawn_blocking(work).await)
}

/// Returns the result of a task of the blocking pool.
fn returned<T>(joined: Result<Result<T>, ::tokio::task::JoinError>) -> Result<T> {
    match joined {
        Ok(result) => result,
        Err(failed) if failed.is_panic() => std::panic::resume_unwind(failed.into_panic()),
        Err(_) => Err(Error::Cancelled), // the runtime shuts down
    }
}
