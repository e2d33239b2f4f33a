//! # Scope: the database and the keyspace of a scan

use std::ops::Deref;
use std::sync::Arc;

use sheaf_base::store::{KeepsKeyspace, Kept, Store, View};

use crate::handle::Handle;

/// The open database and one of its keyspaces.
#[derive(Clone)]
pub(crate) struct Scope {
    pub(crate) handle: Arc<Handle>,
    pub(crate) kept: Arc<Kept>,
    /// Keeps the snapshot that the scans of this scope read, if they read one.
    pub(crate) _view: Option<Arc<View>>,
}

impl KeepsKeyspace for Scope {
    fn kept(&self) -> &Kept {
        &self.kept
    }
}

/// Keeps the store open for a view.
pub(crate) struct Lease(pub(crate) Arc<Scope>);

impl Deref for Lease {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.0.handle
    }
}
