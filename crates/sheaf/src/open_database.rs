//! # Handle: owner of an open database, shared by all public types

use std::ops::Deref;
use std::sync::{Arc, PoisonError, RwLock};

use sheaf_platform::fork::ForkGuard;
use sheaf_store::Store;

use crate::ipc::IpcServer;
use crate::merge::MergeRegistry;
use crate::merge::groups::MergeGroups;
use crate::{KeyspaceOptions, Result};

/// State shared by all handles of one open database. Background threads and the threads of the IPC
/// server hold the store and never this type, so that the database closes in the thread that drops
/// the last handle.
pub(crate) struct OpenDatabase {
    store: Arc<Store>,
    /// Present until the end, if the database has an IPC socket. A forked child leaves it and its
    /// lock to the parent.
    ipc: RwLock<Option<IpcServer>>,
    fork: ForkGuard,
    merge_registry: MergeRegistry,
    merge_groups: MergeGroups,
}

impl OpenDatabase {
    pub(crate) fn new(
        store: Arc<Store>,
        ipc_server: Option<IpcServer>,
        merge_registry: MergeRegistry,
    ) -> Arc<OpenDatabase> {
        Arc::new(OpenDatabase {
            store,
            ipc: RwLock::new(ipc_server),
            fork: ForkGuard::new(),
            merge_registry,
            merge_groups: MergeGroups::default(),
        })
    }

    pub(crate) fn merge_registry(&self) -> &MergeRegistry {
        &self.merge_registry
    }

    /// Checks the merge operator that `options` choose for keyspace `name`: this process must have
    /// it, unless it is that of the keyspace already.
    pub(crate) fn check_operator(&self, name: &str, options: &KeyspaceOptions) -> Result<()> {
        self.merge_registry.check_options(&self.store, name, options)
    }

    pub(crate) fn merge_groups(&self) -> &MergeGroups {
        &self.merge_groups
    }

    pub(crate) fn store(&self) -> &Arc<Store> {
        &self.store
    }

    pub(crate) fn has_ipc(&self) -> bool {
        let is_open = |server: &Option<IpcServer>| server.as_ref().is_some_and(IpcServer::is_open);
        // While the server ends, `ipc` is locked until the last connection thread has ended. That
        // thread may be the caller, so the lock must not be awaited.
        !self.fork.is_child() && self.ipc.try_read().is_ok_and(|server| is_open(&server))
    }

    /// Ends the requests of other processes, and closes the database.
    pub(crate) fn close(&self) -> Result<()> {
        self.close_ipc();
        self.store.close()
    }

    /// Ends the IPC server. A second caller waits for the first.
    fn close_ipc(&self) {
        if !self.fork.is_child() {
            drop(self.ipc.write().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

impl Deref for OpenDatabase {
    type Target = Store;

    #[inline]
    fn deref(&self) -> &Store {
        &self.store
    }
}

impl Drop for OpenDatabase {
    fn drop(&mut self) {
        self.close_ipc();
        // The database is closed already, or the error has no receiver: recovery handles it.
        let _ = self.store.close();
    }
}
