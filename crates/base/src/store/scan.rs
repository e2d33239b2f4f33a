//! # Scan: a cursor and its owner
//!
//! A cursor borrows its engine: with many cores a reference count that all scans write would limit
//! them. A caller that cannot borrow owns a count per thread ([`crate::sync::Spread`]).

use std::sync::Arc;

use self_cell::self_cell;

use super::Kept;
use crate::engine::{Bounds, Cursor, Want};
use crate::error::Result;
use crate::types::Seq;

/// Owner of a keyspace, shared or not.
pub trait KeepsKeyspace: Send + Sync {
    /// Returns the keyspace.
    fn kept(&self) -> &Kept;
}

impl KeepsKeyspace for Kept {
    fn kept(&self) -> &Kept {
        self
    }
}

type Inner<'e> = Box<dyn Cursor + 'e>;

self_cell! {
    /// A cursor, and the owner of its keyspace.
    pub struct OwnedCursor {
        owner: Arc<dyn KeepsKeyspace>,
        #[covariant]
        dependent: Inner,
    }
}

impl OwnedCursor {
    /// Opens the cursor that [`Engine::cursor`](crate::engine::Engine::cursor) returns.
    ///
    /// # Errors
    ///
    /// Returns the errors of that function, and
    /// [`Error::Corrupt`](crate::error::Error::Corrupt) if the keyspace is unusable.
    pub fn open(owner: Arc<dyn KeepsKeyspace>, at: Seq, bounds: Bounds, want: Want) -> Result<OwnedCursor> {
        OwnedCursor::try_new(owner, |owner| owner.kept().engine()?.cursor(at, bounds, want))
    }
}

impl Cursor for OwnedCursor {
    fn next(&mut self) -> Result<bool> {
        self.with_dependent_mut(|_, cursor| cursor.next())
    }

    fn prev(&mut self) -> Result<bool> {
        self.with_dependent_mut(|_, cursor| cursor.prev())
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
