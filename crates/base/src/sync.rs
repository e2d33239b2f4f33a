//! # Locks and waiting, behind one seam
//!
//! parking_lot under it, so that thread sanitizers understand it; the only place to change for a
//! model checker of interleavings.

pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
