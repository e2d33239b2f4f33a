//! # The image of a keyspace at a checkpoint
//!
//! ```text
//!  the index's | blobs: count 8, number 8 ...
//! ```
//!
//! Addresses are by slots of the time; the store's slot table translates. Images are fuzzy: what changed meanwhile
//! is replayed, which settles it.

use sheaf_base::engine::{ImageSink, ImageSource};
use sheaf_base::error::Result;

use crate::engine::FlatEngine;
use crate::index::{Image, Index};

/// Writes the image.
pub(crate) fn save<I: Index>(engine: &FlatEngine<I>, out: &mut dyn ImageSink) -> Result<()> {
    engine.index.save(out)?;
    let blobs = engine.accounts.named(&engine.versions);
    out.put(&(blobs.len() as u64).to_le_bytes())?;
    blobs.iter().try_for_each(|id| out.put(&id.to_le_bytes()))
}

/// Reads the image back.
pub(crate) fn restore<I: Index>(engine: &FlatEngine<I>, source: &mut dyn ImageSource) -> Result<()> {
    let mut image = Image::new(source);
    engine.index.load(&mut image)?;
    engine.set_keys(image.keys);
    image.account(&engine.ground);
    let count = image.u64()?;
    for _ in 0..count {
        let id = image.u64()?;
        engine.accounts.blobs.lock().insert(id);
    }
    Ok(())
}
