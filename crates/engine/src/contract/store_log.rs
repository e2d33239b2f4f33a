//! # Role: an index over a store log

use sheaf_log::segment::Address;
use sheaf_platform::error::Result;

use super::HashedKey;

/// Liveness of an entry of the log, as GC asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// The entry is the newest version of its key.
    Newest,
    /// The entry is an older version that a view needs.
    Pinned,
    /// The index does not refer to the entry.
    Dead,
}

/// Index over a store log. GC moves the entries of the log. Only engines that keep their data in a
/// store log have this role.
pub trait StoreLogIndex: Send + Sync {
    /// Returns whether the entry at `address` is still needed.
    ///
    /// # Errors
    ///
    /// Returns `Error::Io` or `Error::Corrupt` if the engine must read to decide and the read
    /// fails.
    fn liveness(&self, hashed_key: HashedKey<'_>, address: Address) -> Result<Liveness>;
    /// Returns whether the entry at `address` is the newest version of its key. Changes nothing.
    ///
    /// # Errors
    ///
    /// Same as [`StoreLogIndex::liveness`].
    fn is_newest(&self, hashed_key: HashedKey<'_>, address: Address) -> Result<bool> {
        Ok(self.liveness(hashed_key, address)? == Liveness::Newest)
    }
    /// Returns the address of the newest record of `key`. Returns `None` if there is none, or if
    /// the engine cannot tell.
    ///
    /// # Errors
    ///
    /// Same as [`StoreLogIndex::liveness`].
    fn locate(&self, key: &[u8]) -> Result<Option<Address>> {
        let _ = key;
        Ok(None)
    }
    /// Reads from disk the part of the index that [`StoreLogIndex::relocate`] needs to find the
    /// key. The caller keeps its epoch guard until then.
    ///
    /// # Errors
    ///
    /// Returns `Error::Io` or `Error::Corrupt` if the read fails.
    fn prefetch_for_relocate(&self, hashed_key: HashedKey<'_>) -> Result<()> {
        let _ = hashed_key;
        Ok(())
    }
    /// Repoints the index from the entry at `from` to its copy at `to`. `blob` is the blob that
    /// the entry refers to, if any. Returns false if the entry is no longer needed. The caller
    /// holds the stripe of the key, as for `EngineCommits::apply`.
    fn relocate(&self, hashed_key: HashedKey<'_>, from: Address, to: Address, blob: Option<u64>) -> bool;
}
