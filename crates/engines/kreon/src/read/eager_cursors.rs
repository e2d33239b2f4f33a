//! # Eager cursors: cursors that record removed keys from their first key on
//!
//! A cursor normally begins to record removed keys after it has met many in a row, so the first
//! ones are missing from its records. After such a cursor, the next few cursors are eager.

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
