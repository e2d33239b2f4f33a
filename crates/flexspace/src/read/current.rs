//! # Current version: the state that readers load without a lock
//!
//! With `--cfg shuttle` the model checker may switch threads at each load and store.

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};

use crate::shared::SpaceVersion;

/// Newest version.
#[derive(Debug)]
pub(crate) struct CurrentVersion(ArcSwap<SpaceVersion>);

/// Point at which the model checker may switch threads.
#[inline]
fn step() {
    #[cfg(shuttle)]
    sheaf_platform::sync::step();
}

impl CurrentVersion {
    pub(crate) fn new(version: SpaceVersion) -> CurrentVersion {
        CurrentVersion(ArcSwap::from_pointee(version))
    }

    /// Returns the newest version for immediate use.
    #[inline]
    pub(crate) fn load(&self) -> Guard<Arc<SpaceVersion>> {
        step();
        let version = self.0.load();
        step();
        version
    }

    /// Returns the newest version to be kept.
    pub(crate) fn load_full(&self) -> Arc<SpaceVersion> {
        step();
        let version = self.0.load_full();
        step();
        version
    }

    /// Makes `version` the newest one.
    pub(crate) fn store(&self, version: SpaceVersion) {
        step();
        self.0.store(Arc::new(version));
        step();
    }
}
