//! # Handle: what every public type holds, and what closes the database when the last one goes

use std::ops::Deref;
use std::sync::Arc;

use sheaf_base::store::Store;

/// Shared by all clones of all handles of one open database. Background threads hold the store, never
/// this, so the database closes in the thread that drops the last handle and not at some later time.
pub(crate) struct Handle(Arc<Store>);

impl Handle {
    pub(crate) fn new(store: Arc<Store>) -> Arc<Handle> {
        Arc::new(Handle(store))
    }

    pub(crate) fn store(&self) -> &Arc<Store> {
        &self.0
    }
}

impl Deref for Handle {
    type Target = Store;

    #[inline]
    fn deref(&self) -> &Store {
        &self.0
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Closed already, or an error that nobody is left to hear: recovery makes up for it.
        let _ = self.0.close();
    }
}
