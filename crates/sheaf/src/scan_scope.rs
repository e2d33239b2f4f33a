//! # Scope: the database and the keyspace of a scan

use std::ops::Deref;
use std::sync::Arc;

use sheaf_store::{KeyspaceOwner, KeyspaceState, Store, View};

use crate::open_database::OpenDatabase;

/// The open database and one of its keyspaces.
#[derive(Clone)]
pub(crate) struct ScanScope {
    pub(crate) handle: Arc<OpenDatabase>,
    pub(crate) keyspace: Arc<KeyspaceState>,
    /// Keeps the snapshot that the scans of this scope read, if they read one.
    pub(crate) _view: Option<Arc<View>>,
}

impl KeyspaceOwner for ScanScope {
    fn keyspace(&self) -> &KeyspaceState {
        &self.keyspace
    }
}

/// Keeps the store open for a view.
pub(crate) struct ScopedStore(pub(crate) Arc<ScanScope>);

impl Deref for ScopedStore {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.0.handle
    }
}
