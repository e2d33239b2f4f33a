//! # Check: verification of everything on disk
//!
//! Runs concurrently with all other work. If a head is invalid, it is read again under the lock of
//! its writers. The data is read through a view, so its segments cannot be reused during the
//! verification. A checkpoint may be deleted while it is read. It counts as damaged only if a head
//! still names it afterwards.

use std::sync::Arc;

use sheaf_engine::checkpoint_file::ImageReader;
use sheaf_log::double_slot::DoubleSlot;
use sheaf_log::types::KeyspaceId;
use sheaf_platform::error::{Error, Result};

use crate::checkpoint::verify_nodes;
use crate::format::{self, SpaceHead};
use crate::read::view::SpaceView;
use crate::shared::SharedSpace;

/// A pending verification; see [`crate::FlexSpace::verification`].
#[derive(Debug)]
pub struct Verification {
    shared: Arc<SharedSpace>,
    view: SpaceView,
}

impl Verification {
    pub(crate) fn new(shared: Arc<SharedSpace>, view: SpaceView) -> Verification {
        Verification { shared, view }
    }

    /// Reads both heads, both checkpoints, and every byte. Calls `report` with damage. Calls `step`
    /// from time to time with the number of bytes read since the last call, and stops at its first
    /// error. Holds no lock during these calls.
    ///
    /// # Errors
    ///
    /// Returns errors of `step`, and errors of reading other than damage. Damage is only reported.
    pub fn run(&self, report: &mut dyn FnMut(Error), step: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        self.shared.verify_heads(report);
        self.shared.report_repaired_damage(report);
        self.shared.verify_checkpoints(report, step)?;
        self.view.verify_steps(report, step)
    }
}

impl SharedSpace {
    fn verify_heads(&self, report: &mut dyn FnMut(Error)) {
        let mut findings = Vec::new();
        DoubleSlot::new(Arc::clone(&self.disk), &self.dir)
            .check::<SpaceHead>(&mut |error| findings.push(error));
        if !findings.is_empty() {
            findings.clear();
            // A head may have been written at that moment. Under the lock none is.
            let m = self.head_state.lock();
            if !m.is_write_pending {
                // Otherwise a write that found no space tore a slot, and it will be written again.
                m.head_slots.check::<SpaceHead>(&mut |error| findings.push(error));
            }
        }
        findings.into_iter().for_each(report);
    }

    /// Reports the damaged checkpoint that opening repaired. An opening for writing has deleted it.
    fn report_repaired_damage(&self, report: &mut dyn FnMut(Error)) {
        if let (true, Some(Error::Corrupt { path, offset, structure, damage: what })) =
            (self.options.read_only, &self.repaired_damage)
        {
            report(Error::corrupt(path, *offset, structure, (**what).clone()));
        }
    }

    /// Returns the numbers of the checkpoints that heads name.
    pub(crate) fn named_checkpoints(&self) -> [u64; 2] {
        let m = self.head_state.lock();
        [m.head.newest.checkpoint, m.head.older.checkpoint]
    }

    fn verify_checkpoints(
        &self,
        report: &mut dyn FnMut(Error),
        step: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        for number in self.named_checkpoints().into_iter().filter(|number| *number > 0) {
            match self.verify_checkpoint(number) {
                Ok(bytes) => step(bytes)?,
                // Deleted while it was read.
                Err(_) if !self.named_checkpoints().contains(&number) => {}
                Err(error) if error.is_corrupt() => {
                    self.replace_nodes(number);
                    report(error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn verify_checkpoint(&self, number: u64) -> Result<u64> {
        let path = self.dir.join(format::checkpoint_name(number));
        let space = self.head_state.lock().head.space;
        let mut image = ImageReader::open(&*self.disk, path, space, KeyspaceId(0), number, |_| None)?;
        let (summary, root) = format::read_checkpoint(&mut image, |_, _| {})?;
        let nodes =
            root.map_or(Ok(0), |root| verify_nodes(&*self.disk, &self.dir, space, &root, summary.entries))?;
        Ok(image.finish()? + nodes)
    }

    /// Lets a later checkpoint write a new file instead of the damaged node file of a checkpoint.
    fn replace_nodes(&self, number: u64) {
        let mut state = self.checkpointing.lock();
        let m = self.head_state.lock();
        let named = [&m.head.newest, &m.head.older].into_iter().find(|named| named.checkpoint == number);
        named.into_iter().for_each(|named| state.abandon_file(named.nodes));
    }
}
