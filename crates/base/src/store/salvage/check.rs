//! # Check: the damage that a verification reports and that no pair needs
//!
//! A damaged slot of a pair of which the other one was used, a damaged image that its engine did
//! without, a head of a chunk: none of them costs a pair, and the next damage may. So the report of
//! a repair has all that [`Store::verify`] reports. Damage that its reading of logs and pairs met
//! is there already.

use super::open::{Opened, damage};
use super::output::Output;
use crate::error::{Error, Result};
use crate::root::Root;
use crate::store::Store;
use crate::store::image::ImageReader;

/// Reads images, heads of chunks, and all files of the engines that were brought up.
pub(super) fn check(store: &Store, root: &Root, opened: &Opened, out: &mut Output<'_, '_>) -> Result<()> {
    images(store, root, out)?;
    for engine in opened.spaces.iter().filter_map(|space| space.engine.as_ref()) {
        // Straight into the list, which has a limit: an engine may report any number.
        let mut harms = std::mem::take(&mut out.harms);
        let verified = engine.verify(&mut |error| harms.error(&error), &mut |_| out.read(0));
        out.harms = harms;
        note(out, verified)?;
    }
    let mut staged = Vec::new();
    for engine in opened.spaces.iter().filter_map(|space| space.engine.as_ref()) {
        let _ = engine.blobs(&mut staged); // others are lost by key
    }
    store.ground.blobs.found(&staged.into_iter().collect(), true);
    store.ground.blobs.verify(&mut |error| out.harms.error(&error));
    Ok(())
}

/// Reads the images that ROOT names.
fn images(store: &Store, root: &Root, out: &mut Output<'_, '_>) -> Result<()> {
    for checkpoint in root.logs.iter().map(|log| &log.checkpoint) {
        for id in &checkpoint.keyspaces {
            let path = store.image_path(*id, checkpoint.number);
            let image = ImageReader::open(&*store.disk, path, store.id, *id, checkpoint.number, |_| None);
            let drained = image.and_then(|image| image.drain(&mut |_| out.read(0)));
            note(out, drained.map(drop))?;
        }
    }
    Ok(())
}

/// Takes note of damage.
fn note(out: &mut Output<'_, '_>, result: Result<()>) -> Result<()> {
    match result {
        Err(error @ Error::Cancelled) => Err(error),
        Err(error) => {
            out.harms.error(&damage(error)?);
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}
