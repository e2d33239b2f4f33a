//! # Making: keyspaces that have no name yet
//!
//! ## Picture
//!
//! ```text
//!  begin_making: a number, below ROOT's next ──> filled, straight into files or by commits
//!        │                                             │
//!        │ dropped, crash                              │ [changing, maybe nobody commits to the old one]
//!        v                                             v
//!  no opening finds it: its records             one record of the catalogue, durable: it has the name,
//!  are dead, `own/` is swept                    and the one that had it before is dropped
//! ```
//!
//! ## Invariants
//!
//! 1. Its number is below the next one that both slots of ROOT name before anything bears it: no later keyspace gets it, so
//!    nobody takes up what was written for it.
//! 2. The record that names it comes after all its commits, and after what it has in files of its own is durable. Commits count up to one
//!    number: an opening that finds the record finds all of it.
//! 3. It is known to the cleaner and to checkpoints before its first commit.
//!
//! ## Threads
//!
//! Its owner fills it from one thread at a time. Naming takes `changing`.
//!
//! ## Crash
//!
//! The record is a creation's or a clearing's (`catalogue`): before it, the old keyspace with all its data; with it, the new
//! one. What is left of the other goes as that of a dropped keyspace does. No format knows of this.

use std::sync::Arc;

use super::catalog::check_name;
use super::{KeyspaceState, Store};
use crate::error::Result;
use crate::options::EngineOptions;

/// A keyspace in the making: discarded if it is dropped before it has its name.
pub(super) struct UnpublishedKeyspace {
    pub(super) store: Arc<Store>,
    pub(super) keyspace: Arc<KeyspaceState>,
    is_registered: bool,
    is_published: bool,
}

impl Store {
    /// Begins a keyspace of `engine` that is to be `name`.
    pub(super) fn begin_unpublished(
        self: &Arc<Store>,
        name: &str,
        engine: &str,
        options: &EngineOptions,
    ) -> Result<UnpublishedKeyspace> {
        self.check_writable()?;
        check_name(name)?;
        let keyspace = Arc::new(self.new_keyspace_state(name, engine, options)?);
        let mut m = self.maintenance.lock();
        for _ in 0..2 {
            self.write_root(&mut m, false)?; // I1
        }
        drop(m);
        Ok(UnpublishedKeyspace {
            store: Arc::clone(self),
            keyspace,
            is_registered: false,
            is_published: false,
        })
    }
}

impl UnpublishedKeyspace {
    /// From now on it takes commits.
    pub(super) fn register(&mut self) {
        if !self.is_registered {
            self.store.catalog.register_unpublished(Arc::clone(&self.keyspace));
            self.is_registered = true;
        }
    }

    /// Durably gives it its name, in place of `before` if that has it. The caller holds `changing`.
    pub(super) fn publish(mut self, before: Option<&KeyspaceState>) -> Result<Arc<KeyspaceState>> {
        self.register();
        let named = self.store.publish_keyspace(&self.keyspace, before);
        self.is_published = !self.keyspace.is_unpublished();
        named?;
        self.store.signals.wake(); // somebody may have to be buried
        Ok(Arc::clone(&self.keyspace))
    }
}

impl Drop for UnpublishedKeyspace {
    fn drop(&mut self) {
        if self.is_published || self.store.fork.is_child() {
            return;
        }
        let alone = self.store.stripes.lock_exclusive();
        self.store.catalog.discard(&self.keyspace, self.store.visible());
        drop(alone);
        self.store.signals.wake();
    }
}

/// Nobody commits to a keyspace as long as this is there.
pub(super) struct CommitBlock<'a> {
    store: &'a Store,
    keyspace: &'a KeyspaceState,
}

impl Store {
    /// Has commits to `kept` wait. What was committed before is visible.
    pub(super) fn block_commits<'a>(&'a self, keyspace: &'a KeyspaceState) -> CommitBlock<'a> {
        let _alone = self.stripes.lock_exclusive();
        keyspace.change_tracker.block();
        CommitBlock { store: self, keyspace }
    }
}

impl Drop for CommitBlock<'_> {
    fn drop(&mut self) {
        if !self.store.fork.is_child() {
            self.keyspace.change_tracker.unblock();
        }
    }
}
