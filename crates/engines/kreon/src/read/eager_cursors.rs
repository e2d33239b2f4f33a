//! # Eager cursors: the next cursors after one that met many removed keys
//!
//! That cursor has not recorded the first removed keys that it passed. So a few of the next cursors
//! record removed keys from their first key on.

use sheaf_platform::sync::atomic::{AtomicU32, Ordering};

/// Number of cursors that record from their first key on.
const EAGER_CURSORS: u32 = 4;

/// Number of eager cursors that are left.
#[derive(Debug, Default)]
pub(crate) struct EagerCursors(AtomicU32);

impl EagerCursors {
    /// Records that a cursor met many removed keys.
    pub(crate) fn set(&self) {
        self.0.store(EAGER_CURSORS, Ordering::Relaxed);
    }

    /// Returns true if a new cursor must record removed keys from its first key on.
    pub(crate) fn take(&self) -> bool {
        let left = self.0.load(Ordering::Relaxed);
        if left > 0 {
            self.0.store(left - 1, Ordering::Relaxed); // approximate under races
        }
        left > 0
    }
}
