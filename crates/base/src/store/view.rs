//! # View: a registered past state
//!
//! Registration takes no lock (`crate::current_views`): the view waits for the commits that may
//! have missed it, and reads a state that includes them (commit.md R17, scenario 21).

use std::ops::Deref;
use std::sync::Arc;

use super::catalog::KeyspaceMap;
use super::{KeyspaceState, Store};
use crate::error::Result;
use crate::sync::atomic::Ordering;
use crate::types::Seq;
use crate::views::{ViewSlot, Views};

/// A consistent state of all keyspaces, pinned until it is dropped. `S` keeps the store.
pub struct View<S: Deref<Target = Store> = Arc<Store>> {
    store: S,
    seq: Seq,
    /// Taken when it is dropped.
    slot: Option<ViewSlot>,
}

/// The keyspaces that a view shows.
#[derive(Clone)]
pub struct ViewKeyspaces(Arc<KeyspaceMap>);

impl Store {
    /// A view of everything committed.
    ///
    /// # Errors
    ///
    /// As [`Store::check_open`].
    pub fn view(self: &Arc<Store>) -> Result<View> {
        View::new(Arc::clone(self))
    }

    /// Returns a view, and the result of `also`, which runs while no commit does.
    pub(super) fn view_with<T>(self: &Arc<Store>, also: impl FnOnce() -> T) -> Result<(View, T)> {
        self.check_open()?;
        let _alone = self.stripes.lock_exclusive();
        let seq = self.visible();
        let slot = Some(self.view_slots.register_exclusive(seq));
        Ok((View { store: Arc::clone(self), seq, slot }, also()))
    }

    /// Publishes the ends of the open segments as of now, once all commits up to there are
    /// complete.
    pub(super) fn publish_ends(&self) -> Result<()> {
        let (reserved, ends) = self.window.tail_ends();
        self.commit_progress.wait(reserved)?;
        ends.iter().for_each(|(segment, end)| segment.publish(*end));
        Ok(())
    }

    /// Returns a view, and the keyspaces that it shows.
    ///
    /// # Errors
    ///
    /// As [`Store::check_open`].
    pub fn snapshot(self: &Arc<Store>) -> Result<(View, ViewKeyspaces)> {
        loop {
            let view = self.view()?;
            let (map, changed) = self.catalog.map_and_changed_seq();
            if changed <= view.seq {
                return Ok((view, ViewKeyspaces(map)));
            }
        }
    }

    /// Returns the present views. A view that is missing reads the state that is visible now, or a
    /// newer state.
    pub(super) fn current_views(&self) -> Views {
        let visible = self.visible(); // before the slots
        self.view_slots.collect().copy_as_of(visible)
    }

    /// Lets engines drop what released views had pinned. True if there was anything to look at.
    pub(super) fn trim_old_versions(&self) -> bool {
        if !self.signals.is_trim_due.swap(false, Ordering::AcqRel) {
            return false;
        }
        let views = self.current_views();
        for keyspace in self.catalog.all() {
            if let Ok(engine) = keyspace.engine() {
                engine.trim(&views, views.as_of());
            }
        }
        true
    }
}

impl<S: Deref<Target = Store>> View<S> {
    /// A view of everything committed.
    ///
    /// # Errors
    ///
    /// As [`Store::check_open`].
    pub fn new(store: S) -> Result<View<S>> {
        store.check_open()?;
        let (slot, seq) = store.view_slots.register(&store.commit_progress, || store.window.reserved())?;
        Ok(View { store, seq, slot: Some(slot) })
    }

    /// The last commit it shows.
    #[must_use]
    pub fn seq(&self) -> Seq {
        self.seq
    }

    /// An error once the database is closed.
    #[inline]
    pub fn check_open(&self) -> Result<()> {
        self.store.check_open()
    }
}

impl<S: Deref<Target = Store>> Drop for View<S> {
    fn drop(&mut self) {
        let store = &*self.store;
        if store.fork.is_child() {
            return; // the lock may be held by a thread that exists in the parent only
        }
        if let Some(slot) = self.slot.take() {
            store.view_slots.release(slot);
        }
        // Only a later commit can have superseded a version that this view pinned. All views read
        // the cache line of the flag, so it is written as rarely as possible.
        if store.visible() > self.seq && !store.signals.is_trim_due.load(Ordering::Relaxed) {
            store.signals.is_trim_due.store(true, Ordering::Release);
        }
    }
}

impl ViewKeyspaces {
    /// The keyspaces, by name.
    pub fn keyspaces(&self) -> impl Iterator<Item = &Arc<KeyspaceState>> {
        self.0.values()
    }

    /// The keyspace `name`.
    #[must_use]
    pub fn keyspace(&self, name: &str) -> Option<&Arc<KeyspaceState>> {
        self.0.get(name)
    }
}
