//! # Handle: what every public type holds, and what closes the database when the last one goes

use std::ops::Deref;
use std::sync::{Arc, PoisonError, RwLock};

use sheaf_base::fork::ForkGuard;
use sheaf_base::store::Store;

use crate::Result;
use crate::door::Door;

/// Shared by all clones of all handles of one open database. Background threads, and those of the door, hold the store, never
/// this, so the database closes in the thread that drops the last handle and not at some later time.
pub(crate) struct Handle {
    store: Arc<Store>,
    /// Until the end, if there is one. A forked child leaves it, and its lock, to the parent.
    door: RwLock<Option<Door>>,
    fork: ForkGuard,
}

impl Handle {
    pub(crate) fn new(store: Arc<Store>, door: Option<Door>) -> Arc<Handle> {
        Arc::new(Handle { store, door: RwLock::new(door), fork: ForkGuard::new() })
    }

    pub(crate) fn store(&self) -> &Arc<Store> {
        &self.store
    }

    pub(crate) fn has_door(&self) -> bool {
        let is_open = |door: &Option<Door>| door.as_ref().is_some_and(Door::is_open);
        // While it is ending, it is locked until the last guest's thread has gone, which may be the one that asks.
        !self.fork.is_child() && self.door.try_read().is_ok_and(|door| is_open(&door))
    }

    /// Ends what others ask for through the door, and closes.
    pub(crate) fn close(&self) -> Result<()> {
        self.end_door();
        self.store.close()
    }

    /// Who comes second waits for the first.
    fn end_door(&self) {
        if !self.fork.is_child() {
            drop(self.door.write().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

impl Deref for Handle {
    type Target = Store;

    #[inline]
    fn deref(&self) -> &Store {
        &self.store
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.end_door();
        // Closed already, or an error that nobody is left to hear: recovery makes up for it.
        let _ = self.store.close();
    }
}
