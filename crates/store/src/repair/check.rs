//! # Check: damage in files that no pair needs
//!
//! Examples are a damaged slot of ROOT if the other one is valid, an image that is not needed, and
//! the head of a chunk. They cost no pair now, but the next damage may. The report of a repair
//! therefore contains all damage that [`Store::verify`] reports. Damage of logs and pairs is
//! recorded already.

use super::open::{SourceDatabase, into_damage};
use super::output::RepairOutput;
use crate::Store;
use sheaf_engine::checkpoint_file::ImageReader;
use sheaf_log::root::Root;
use sheaf_platform::error::{Error, Result};

/// Reads images, heads of chunks, and all files of the engines that are open.
pub(super) fn check_unread_files(
    store: &Store,
    root: &Root,
    opened: &SourceDatabase,
    out: &mut RepairOutput<'_, '_>,
) -> Result<()> {
    check_images(store, root, out)?;
    for engine in opened.sources.iter().filter_map(|source| source.engine.as_ref()) {
        // Directly into the list, which is bounded: an engine may report any number.
        let mut damages = std::mem::take(&mut out.damages);
        let verified = engine.verify(&mut |error| damages.note_error(&error), &mut |_| out.add_done(0));
        out.damages = damages;
        note_damage(out, verified)?;
    }
    let mut blobs = Vec::new();
    for engine in opened.sources.iter().filter_map(|source| source.engine.as_ref()) {
        let _ = engine.blobs(&mut blobs); // the other keyspaces report lost blobs by key
    }
    store.context.blobs.mark_used(&blobs.into_iter().collect(), true);
    store.context.blobs.verify(&mut |error| out.damages.note_error(&error));
    Ok(())
}

/// Reads the images that ROOT refers to.
fn check_images(store: &Store, root: &Root, out: &mut RepairOutput<'_, '_>) -> Result<()> {
    for checkpoint in root.logs.iter().map(|log| &log.checkpoint) {
        for id in &checkpoint.keyspaces {
            let path = store.image_path(*id, checkpoint.number);
            let image =
                ImageReader::open(&*store.disk, path, store.identity.id, *id, checkpoint.number, |_| None);
            let drained = image.and_then(|image| image.verify_rest(&mut |_| out.add_done(0)));
            note_damage(out, drained.map(drop))?;
        }
    }
    Ok(())
}

/// Records damage.
fn note_damage(out: &mut RepairOutput<'_, '_>, result: Result<()>) -> Result<()> {
    match result {
        Err(error @ Error::Cancelled) => Err(error),
        Err(error) => {
            out.damages.note_error(&into_damage(error)?);
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}
