//! # View: a registered past state
//!
//! Registration and the state's number are one step under the commit lock, so no version the view needs
//! can go in between (commit.md, scenario 21).

use std::sync::Arc;

use super::catalogue::Map;
use super::{Kept, Store};
use crate::error::Result;
use crate::sync::atomic::Ordering;
use crate::types::Seq;

/// A consistent state of all keyspaces, for as long as it lives.
pub struct View {
    store: Arc<Store>,
    seq: Seq,
    map: Arc<Map>,
}

impl Store {
    /// A view of everything committed.
    pub fn view(self: &Arc<Store>) -> Result<View> {
        self.view_with(|| ()).map(|(view, ())| view)
    }

    /// The same, and what `also` answers at that very moment: under the commit lock.
    pub(super) fn view_with<T>(self: &Arc<Store>, also: impl FnOnce() -> T) -> Result<(View, T)> {
        self.check_open()?;
        let mut order = self.order.lock();
        let seq = self.visible();
        order.views.register(seq);
        let map = self.catalogue.map();
        let also = also();
        drop(order);
        Ok((View { store: Arc::clone(self), seq, map }, also))
    }

    /// Lets engines drop what released views had pinned. True if there was anything to look at.
    pub(super) fn trim(&self) -> bool {
        if !self.signals.trim.swap(false, Ordering::AcqRel) {
            return false;
        }
        let (views, visible) = {
            let order = self.order.lock();
            (order.views.clone(), self.visible())
        };
        for kept in self.catalogue.all() {
            if let Ok(engine) = kept.engine() {
                engine.trim(&views, visible);
            }
        }
        true
    }
}

impl View {
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

    /// The keyspaces it shows, by name.
    pub fn keyspaces(&self) -> impl Iterator<Item = &Arc<Kept>> {
        self.map.values()
    }
}

impl Drop for View {
    fn drop(&mut self) {
        if self.store.fork.is_child() {
            return; // the lock may be held by a thread that exists in the parent only
        }
        let last = self.store.order.lock().views.release(self.seq);
        if last {
            self.store.signals.trim.store(true, Ordering::Release);
        }
    }
}
