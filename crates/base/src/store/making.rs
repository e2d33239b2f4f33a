//! # Making: keyspaces that have no name yet
//!
//! ## Picture
//!
//! ```text
//!  begin_making: a number, below ROOT's next ──> filled, straight into files or by commits
//!        │                                             │
//!        │ dropped, crash                              │ [changing, maybe nobody commits to the old one]
//!        v                                             v
//!  no opening finds it: its records             one record of the catalogue, durable: it has the name,
//!  are dead, `own/` is swept                    and the one that had it before is dropped
//! ```
//!
//! ## Invariants
//!
//! 1. Its number is below the next one that both slots of ROOT name before anything bears it: no later keyspace gets it, so
//!    nobody takes up what was written for it.
//! 2. The record that names it comes after all its commits, and after what it has in files of its own is durable. Commits count up to one
//!    number: an opening that finds the record finds all of it.
//! 3. It is known to the cleaner and to checkpoints before its first commit.
//!
//! ## Threads
//!
//! Its owner fills it from one thread at a time. Naming takes `changing`.
//!
//! ## Crash
//!
//! The record is a creation's or a clearing's (`catalogue`): before it, the old keyspace with all its data; with it, the new
//! one. What is left of the other goes as that of a dropped keyspace does. No format knows of this.

use std::sync::Arc;

use super::catalogue::check_name;
use super::{Kept, Store};
use crate::error::Result;
use crate::options::EngineOptions;

/// A keyspace in the making: discarded if it is dropped before it has its name.
pub(super) struct Making {
    pub(super) store: Arc<Store>,
    pub(super) kept: Arc<Kept>,
    is_enrolled: bool,
    is_named: bool,
}

impl Store {
    /// Begins a keyspace of `engine` that is to be `name`.
    pub(super) fn begin_making(
        self: &Arc<Store>,
        name: &str,
        engine: &str,
        options: &EngineOptions,
    ) -> Result<Making> {
        self.check_writable()?;
        check_name(name)?;
        let kept = Arc::new(self.unnamed(name, engine, options)?);
        let mut m = self.maintenance.lock();
        for _ in 0..2 {
            self.write_root(&mut m, false)?; // I1
        }
        drop(m);
        Ok(Making { store: Arc::clone(self), kept, is_enrolled: false, is_named: false })
    }
}

impl Making {
    /// From now on it takes commits.
    pub(super) fn enroll(&mut self) {
        if !self.is_enrolled {
            self.store.catalogue.enroll(Arc::clone(&self.kept));
            self.is_enrolled = true;
        }
    }

    /// Durably gives it its name, in place of `before` if that has it. The caller holds `changing`.
    pub(super) fn publish(mut self, before: Option<&Kept>) -> Result<Arc<Kept>> {
        self.enroll();
        let named = self.store.give_name(&self.kept, before);
        self.is_named = !self.kept.is_unborn();
        named?;
        self.store.signals.wake(); // somebody may have to be buried
        Ok(Arc::clone(&self.kept))
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        if self.is_named || self.store.fork.is_child() {
            return;
        }
        let alone = self.store.stripes.alone();
        self.store.catalogue.discard(&self.kept, self.store.visible());
        drop(alone);
        self.store.signals.wake();
    }
}

/// Nobody commits to a keyspace as long as this is there.
pub(super) struct Held<'a> {
    store: &'a Store,
    kept: &'a Kept,
}

impl Store {
    /// Has commits to `kept` wait. What was committed before is visible.
    pub(super) fn hold<'a>(&'a self, kept: &'a Kept) -> Held<'a> {
        let _alone = self.stripes.alone();
        kept.watch.hold();
        Held { store: self, kept }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if !self.store.fork.is_child() {
            self.kept.watch.let_go();
        }
    }
}
