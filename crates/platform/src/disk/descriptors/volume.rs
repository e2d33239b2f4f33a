//! # Bounded volume: a sync of the file system that the cache of descriptors learns of

use std::io;
use std::sync::Arc;

use super::Descriptors;
use crate::disk::Volume;

/// A file system. Its sync covers every open file.
#[derive(Debug)]
pub struct BoundedVolume {
    /// The volume without the bound.
    pub beneath: Arc<dyn Volume>,
    /// The bound.
    pub descriptors: Arc<Descriptors>,
}

impl Volume for BoundedVolume {
    fn sync(&self) -> io::Result<()> {
        self.descriptors.check_syncs()?;
        let covered = self.descriptors.all_marks();
        self.beneath.sync()?;
        covered.iter().for_each(|(handle, marks)| handle.note_sync(*marks));
        Ok(())
    }
}
