//! # Unpublished keyspaces: filled before they get their name
//!
//! ## Picture
//!
//! ```text
//!  begin_unpublished: an id below ROOT's next ──> filled, by files or by commits
//!        │                                             │
//!        │ dropped, or crash                           │ [change_lock, maybe commits are blocked]
//!        v                                             v
//!  no opening finds it: its records             publish: one durable catalog record gives it
//!  are dead, files in `own/` are removed        the name and drops the previous keyspace
//! ```
//!
//! ## Invariants
//!
//! 1. Before anything has its id, both slots of ROOT have a larger next id. So no later keyspace
//!    gets the id, and with it the data that was written for this one.
//! 2. The catalog record comes after all commits of the keyspace, and after its own files are
//!    durable. Commits count up to one seq, so an opening that finds the record finds all of the
//!    data.
//! 3. GC and checkpoints know the keyspace before its first commit.
//!
//! ## Crash
//!
//! Without the catalog record, an opening finds the previous keyspace with all its data; with the
//! record, the new one. The data of the other one is removed like that of a dropped keyspace. File
//! formats are not affected.

use std::sync::Arc;

use crate::expiry::index::{IndexPlan, is_hidden_name};
use crate::keyspace::catalog::{CatalogCause, check_keyspace_name};
use crate::{KeyspaceState, Store};
use sheaf_log::options::EngineOptions;
use sheaf_platform::error::Result;

/// Unpublished keyspace. Its owner fills it from one thread at a time. Dropping it before it is
/// published discards it.
pub(crate) struct UnpublishedKeyspace {
    pub(crate) store: Arc<Store>,
    pub(crate) keyspace: Arc<KeyspaceState>,
    is_registered: bool,
    is_published: bool,
}

impl Store {
    /// Creates an unpublished keyspace of `engine` for the later name `name`.
    pub(crate) fn begin_unpublished(
        self: &Arc<Store>,
        name: &str,
        engine: &str,
        options: &EngineOptions,
    ) -> Result<UnpublishedKeyspace> {
        self.check_writable()?;
        if !is_hidden_name(name) {
            check_keyspace_name(name)?; // others come from the store
        }
        let keyspace = Arc::new(self.new_keyspace_state(name, engine, options)?);
        let mut m = self.root.maintenance.lock();
        for _ in 0..2 {
            self.write_root(&mut m, false)?;
        }
        drop(m);
        let next = self.catalog.next_id();
        assert!(keyspace.id() < next, "unpublished (I1): both slots of ROOT have a larger next id");
        Ok(UnpublishedKeyspace {
            store: Arc::clone(self),
            keyspace,
            is_registered: false,
            is_published: false,
        })
    }
}

impl UnpublishedKeyspace {
    /// Registers the keyspace, so that it may take commits.
    pub(crate) fn register(&mut self) {
        if !self.is_registered {
            self.store.catalog.register_unpublished(Arc::clone(&self.keyspace));
            self.is_registered = true;
        }
    }

    /// Returns whether GC and checkpoints know the keyspace.
    pub(crate) fn is_registered(&self) -> bool {
        self.is_registered
    }

    /// Publishes the keyspace durably, with its index as `plan` says; it replaces `before`. The
    /// caller holds `change_lock`.
    pub(crate) fn publish(
        mut self,
        before: Option<&KeyspaceState>,
        plan: &IndexPlan,
        cause: CatalogCause,
    ) -> Result<Arc<KeyspaceState>> {
        self.register();
        let named = self.store.publish_keyspace(&self.keyspace, before, plan, cause);
        self.is_published = !self.keyspace.is_unpublished();
        named?;
        self.store.background.wake(); // a replaced keyspace must be reclaimed
        Ok(Arc::clone(&self.keyspace))
    }
}

impl Drop for UnpublishedKeyspace {
    fn drop(&mut self) {
        // An index is published with its keyspace.
        if self.is_published || !self.keyspace.is_unpublished() || self.store.health.is_forked_child() {
            return;
        }
        let alone = self.store.pipeline.stripes.lock_exclusive();
        self.store.catalog.discard(&self.keyspace, self.store.visible());
        drop(alone);
        self.store.background.wake();
    }
}

/// Blocks commits to a keyspace until it is dropped.
pub(crate) struct CommitBlock<'a> {
    store: &'a Store,
    keyspace: &'a KeyspaceState,
}

impl Store {
    /// Blocks commits to `keyspace`. All earlier commits to it are visible when this returns.
    pub(crate) fn block_commits<'a>(&'a self, keyspace: &'a KeyspaceState) -> CommitBlock<'a> {
        let _alone = self.pipeline.stripes.lock_exclusive();
        keyspace.change_tracker.block();
        CommitBlock { store: self, keyspace }
    }
}

impl Drop for CommitBlock<'_> {
    fn drop(&mut self) {
        if !self.store.health.is_forked_child() {
            self.keyspace.change_tracker.unblock();
        }
    }
}
