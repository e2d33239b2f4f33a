//! # Current: the version that readers get, without a lock
//!
//! Under the model of interleavings (`--cfg shuttle`) a switch of threads may come at each load and
//! store.

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};

use crate::shared::SpaceVersion;

/// The newest version.
#[derive(Debug)]
pub(crate) struct CurrentVersion(ArcSwap<SpaceVersion>);

/// Where others may run in between.
#[inline]
fn step() {
    #[cfg(shuttle)]
    sheaf_base::sync::step();
}

impl CurrentVersion {
    pub(crate) fn new(version: SpaceVersion) -> CurrentVersion {
        CurrentVersion(ArcSwap::from_pointee(version))
    }

    /// To read from at once.
    #[inline]
    pub(crate) fn load(&self) -> Guard<Arc<SpaceVersion>> {
        step();
        let version = self.0.load();
        step();
        version
    }

    /// To keep.
    pub(crate) fn load_full(&self) -> Arc<SpaceVersion> {
        step();
        let version = self.0.load_full();
        step();
        version
    }

    /// Readers get `version` from now on.
    pub(crate) fn store(&self, version: SpaceVersion) {
        step();
        self.0.store(Arc::new(version));
        step();
    }
}
