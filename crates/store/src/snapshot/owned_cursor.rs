//! # Owned cursor: a cursor with the owner of its keyspace
//!
//! A cursor borrows its engine, because a reference count that all scans write would limit scans on
//! many cores. A caller that cannot borrow owns a count per thread
//! ([`sheaf_platform::sync::ShardedArc`]).

use std::sync::Arc;

use self_cell::self_cell;

use crate::{KeyspaceState, ReadPoint};
use sheaf_engine::contract::{Bounds, Cursor, Projection};
use sheaf_log::types::Seq;
use sheaf_platform::error::Result;

/// Owner of a keyspace, shared or not.
pub trait KeyspaceOwner: Send + Sync {
    /// Returns the keyspace.
    fn keyspace(&self) -> &KeyspaceState;
}

impl KeyspaceOwner for KeyspaceState {
    fn keyspace(&self) -> &KeyspaceState {
        self
    }
}

type InnerCursor<'e> = Box<dyn Cursor + 'e>;

self_cell! {
    /// Cursor with the owner of its keyspace.
    pub struct OwnedCursor {
        owner: Arc<dyn KeyspaceOwner>,
        #[covariant]
        dependent: InnerCursor,
    }
}

impl OwnedCursor {
    /// Opens a cursor over the pairs that have not expired.
    ///
    /// # Errors
    ///
    /// Returns the errors of
    /// [`EngineReads::cursor`](sheaf_engine::contract::EngineReads::cursor), and
    /// [`Error::Corrupt`](sheaf_platform::error::Error::Corrupt) if the keyspace is unusable.
    pub fn open(
        owner: Arc<dyn KeyspaceOwner>,
        at: ReadPoint,
        bounds: Bounds,
        projection: Projection,
    ) -> Result<OwnedCursor> {
        OwnedCursor::try_new(owner, |owner| owner.keyspace().cursor(at, bounds, projection))
    }

    /// Opens a cursor over all stored pairs. In a keyspace with expiry, values include their
    /// headers.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`OwnedCursor::open`].
    pub(crate) fn open_stored(
        owner: Arc<dyn KeyspaceOwner>,
        at: Seq,
        bounds: Bounds,
        projection: Projection,
    ) -> Result<OwnedCursor> {
        OwnedCursor::try_new(owner, |owner| owner.keyspace().engine()?.cursor(at, bounds, projection))
    }
}

impl Cursor for OwnedCursor {
    fn next(&mut self) -> Result<bool> {
        self.with_dependent_mut(|_, cursor| cursor.next())
    }

    fn prev(&mut self) -> Result<bool> {
        self.with_dependent_mut(|_, cursor| cursor.prev())
    }

    fn expect_pairs(&mut self, pairs: usize) {
        self.with_dependent_mut(|_, cursor| cursor.expect_pairs(pairs));
    }

    fn key(&self) -> &[u8] {
        self.borrow_dependent().key()
    }

    fn value(&self) -> &[u8] {
        self.borrow_dependent().value()
    }

    fn pair(&self) -> (&[u8], &[u8]) {
        self.borrow_dependent().pair()
    }

    fn step(&mut self, forward: bool) -> Result<Option<(&[u8], &[u8])>> {
        self.with_dependent_mut(|_, cursor| cursor.step(forward))
    }
}
