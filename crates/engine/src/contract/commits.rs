//! # Role: commits
//!
//! ```text
//!   prepare (any thread, may fail)
//!        -> [stripes of the keys: is_current? -> seq -> bytes to the log -> apply] -> acknowledged
//!        ^                           | no
//!        +---------------------------+  (prepares again)
//! ```
//!
//! Everything that can fail happens in [`EngineCommits::prepare`], before a commit has a seq. From
//! then until the end of the commit, no call of the engine may fail or wait for the disk.
//!
//! ## Threads
//!
//! The store holds the stripe of each key of a commit from `is_current` to the end of `apply`. An
//! engine sees the applies of one key one at a time, in the order of their seqs. The applies of
//! different keys run in parallel, in any order. `EngineCheckpoint::freeze` and
//! `EngineCheckpoint::image_published` run *alone*: no commit is between `is_current` and the end
//! of its `apply`.

use sheaf_log::types::Seq;
use sheaf_platform::error::Result;

use super::{EngineInfo, EngineOp, Preparation};
use crate::views::Views;

/// Commits of a keyspace.
pub trait EngineCommits: EngineInfo {
    /// Returns the size in bytes above which a value must be a blob, if the engine's limit is below
    /// the store's. The result must be constant.
    fn blob_threshold(&self) -> usize {
        usize::MAX
    }
    /// Returns whether the engine takes over blob files. Each of its blobs then needs a file of its
    /// own.
    fn takes_blob_files(&self) -> bool {
        false
    }
    /// Returns whether the engine accepts [`Action::RemoveRange`](super::Action::RemoveRange). For
    /// other engines a range is removed key by key, in one commit. The result must be constant.
    fn removes_ranges(&self) -> bool {
        false
    }
    /// Does everything for `op` that can fail: checks limits, takes memory, reads the version that
    /// the operation replaces. Any thread may call this.
    ///
    /// # Errors
    ///
    /// Returns `Error::MemoryBudgetExceeded` if the operation does not fit into the budget, and
    /// `Error::Io` or `Error::Corrupt` if the replaced version cannot be read.
    fn prepare(&self, op: &mut EngineOp<'_>) -> Result<Preparation>;
    /// Returns whether the state that `prepare` saw still holds. The caller holds the stripe of the
    /// key. Other commits may run `is_current` and `apply` at the same time, but only for other
    /// keys. Must not fail or wait for the disk. May rarely return false without a reason: the
    /// store then prepares the commit again.
    fn is_current(&self, op: &EngineOp<'_>) -> bool;
    /// Prefetches the memory that the apply of `op` will use. The store calls it a few operations
    /// ahead in a commit with several, after `is_current` returned true for all of them. May
    /// change the findings. Must not fail or wait.
    fn prefetch_apply(&self, op: &mut EngineOp<'_>) {
        let _ = op;
    }
    /// Applies `op` of commit `seq` to the index, after the bytes of its own commit are in the
    /// kernel. The caller holds the stripe of the key, so the applies of one key come in the order
    /// of their seqs. Other keys are applied at the same time, in any order. `views` was collected
    /// after `seq` was assigned: a view that is missing there reads this commit.
    ///
    /// Bytes of an earlier commit may still be missing. A reader that finds the new entry therefore
    /// calls [`EngineContext::wait_visible`](crate::context::EngineContext::wait_visible)
    /// before it returns the value (decisions/0027).
    fn apply(&self, seq: Seq, op: &EngineOp<'_>, views: &Views);
    /// Tells the engine that views were released. It may free versions that were superseded at or
    /// before `visible` and that none of `views` needs. `views` is a copy of the registry as of
    /// `visible`; later views cannot need such versions.
    fn trim(&self, views: &Views, visible: Seq);
}
