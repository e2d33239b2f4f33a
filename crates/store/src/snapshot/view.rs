//! # View: a registered past state
//!
//! Registration takes no lock (`sheaf_engine::views`). The view waits for the commits that may have
//! missed it, and reads a state that includes them (commit.md R17, scenario 21).

use std::ops::Deref;
use std::sync::Arc;

use crate::expiry::index::is_hidden_name;
use crate::keyspace::catalog::KeyspaceMap;
use crate::{KeyspaceState, Store};
use sheaf_engine::views::{ViewSlot, Views};
use sheaf_log::types::Seq;
use sheaf_platform::error::Result;
use sheaf_platform::sync::atomic::Ordering;

/// Consistent state of all keyspaces, pinned until it is dropped. `S` keeps the store alive.
pub struct View<S: Deref<Target = Store> = Arc<Store>> {
    store: S,
    seq: Seq,
    /// `None` after it was released by the drop.
    slot: Option<ViewSlot>,
}

/// Keyspaces that a view shows.
#[derive(Clone)]
pub struct ViewKeyspaces(Arc<KeyspaceMap>);

impl Store {
    /// Returns a view of all commits that are visible.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Store::check_open`].
    pub fn view(self: &Arc<Store>) -> Result<View> {
        View::new(Arc::clone(self))
    }

    /// Returns a view and the result of `also`, which runs while no commit does.
    pub(crate) fn view_with<T>(self: &Arc<Store>, also: impl FnOnce() -> T) -> Result<(View, T)> {
        self.check_open()?;
        let _alone = self.pipeline.stripes.lock_exclusive();
        let seq = self.visible();
        let slot = Some(self.view_slots.register_exclusive(seq));
        Ok((View { store: Arc::clone(self), seq, slot }, also()))
    }

    /// Publishes the present ends of the open segments, after all commits up to there are complete.
    pub(crate) fn publish_ends(&self) -> Result<()> {
        let (reserved, ends) = self.pipeline.window.tail_ends();
        self.pipeline.progress.wait(reserved)?;
        ends.iter().for_each(|(segment, end)| segment.publish(*end));
        Ok(())
    }

    /// Returns a view and the keyspaces that it shows.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Store::check_open`].
    pub fn snapshot(self: &Arc<Store>) -> Result<(View, ViewKeyspaces)> {
        loop {
            let view = self.view()?;
            let (map, changed) = self.catalog.map_and_changed_seq();
            if changed <= view.seq {
                return Ok((view, ViewKeyspaces(map)));
            }
        }
    }

    /// Returns the registered views. A view that is missing reads the state that is visible now, or
    /// a newer one.
    pub(crate) fn current_views(&self) -> Views {
        let visible = self.visible(); // before the slots
        self.view_slots.collect().copy_as_of(visible)
    }

    /// Lets engines drop versions that released views had pinned. Returns true if a view was
    /// released since the last call.
    pub(crate) fn trim_old_versions(&self) -> bool {
        if !self.background.signals.is_trim_due.swap(false, Ordering::AcqRel) {
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
    /// Returns a view of all commits that are visible.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Store::check_open`].
    pub fn new(store: S) -> Result<View<S>> {
        store.check_open()?;
        let (slot, seq) =
            store.view_slots.register(&store.pipeline.progress, || store.pipeline.window.reserved())?;
        Ok(View { store, seq, slot: Some(slot) })
    }

    /// Returns the last commit that the view shows.
    #[must_use]
    pub fn seq(&self) -> Seq {
        self.seq
    }

    /// Returns the store of the view.
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Returns an error if the database is closed.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Store::check_open`].
    #[inline]
    pub fn check_open(&self) -> Result<()> {
        self.store.check_open()
    }
}

impl<S: Deref<Target = Store>> Drop for View<S> {
    fn drop(&mut self) {
        let store = &*self.store;
        if store.health.is_forked_child() {
            return; // a thread that exists only in the parent may hold the lock
        }
        if let Some(slot) = self.slot.take() {
            store.view_slots.release(slot);
        }
        // Only a later commit can have superseded a version that this view pinned. All views read
        // the cache line of the flag, so it is written as rarely as possible.
        if store.visible() > self.seq && !store.background.signals.is_trim_due.load(Ordering::Relaxed) {
            store.background.signals.is_trim_due.store(true, Ordering::Release);
        }
    }
}

impl ViewKeyspaces {
    /// Returns the names that the view shows, in order, without the hidden ones.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str).filter(|name| !is_hidden_name(name))
    }

    /// Returns all keyspaces, the hidden ones included.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<KeyspaceState>> {
        self.0.values()
    }

    /// Returns the keyspace `name`.
    #[must_use]
    pub fn keyspace(&self, name: &str) -> Option<&Arc<KeyspaceState>> {
        self.0.get(name).filter(|_| !is_hidden_name(name))
    }
}
