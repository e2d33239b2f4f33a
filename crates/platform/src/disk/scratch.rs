//! # Scratch directory for one test of the real disk

#![allow(clippy::disallowed_methods, reason = "tests of the disk layer access files directly")]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::real::RealDisk;
use super::{Disk, File, OpenMode};

/// A new directory, removed on drop.
pub(crate) struct ScratchDir(pub(crate) PathBuf);

impl ScratchDir {
    pub(crate) fn new() -> ScratchDir {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("sheaf-disk-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir(&dir).unwrap();
        ScratchDir(dir)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(super) fn file(&self, name: &str, len: usize) -> Arc<dyn File> {
        let file = RealDisk::default().open(&self.path(name), OpenMode::Create).unwrap();
        file.write_at(0, &vec![7; len]).unwrap();
        file
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
