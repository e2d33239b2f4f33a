//! # Check: reads everything that a space has on disk
//!
//! Beside everything else. A head that is not right is read again under the lock of those who write
//! it. The data is read as any reader reads it: a version is held, so that no segment that it names
//! is written again, which takes space that long. A checkpoint may go while it is read; it is
//! damaged only if a head still names it afterwards.

use std::sync::Arc;

use sheaf_base::double_slot::DoubleSlot;
use sheaf_base::error::{Error, Result};
use sheaf_base::store::image::ImageReader;
use sheaf_base::types::KeyspaceId;

use crate::format::{self, SpaceHead};
use crate::shared::SharedSpace;
use crate::view::SpaceView;

/// A verification that is to be made; see [`crate::FlexSpace::verification`].
#[derive(Debug)]
pub struct Verification {
    shared: Arc<SharedSpace>,
    view: SpaceView,
}

impl Verification {
    pub(crate) fn new(shared: Arc<SharedSpace>, view: SpaceView) -> Verification {
        Verification { shared, view }
    }

    /// Reads both heads, both checkpoints, and every byte; damage goes to `report`. `step` is told
    /// now and then how many bytes were read since the last time, and its error ends it. No lock is
    /// held when either is called.
    ///
    /// # Errors
    ///
    /// Those of `step`. None of damage.
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
            let m = self.head_state.lock(); // one may have been written just then, and none is now
            if !m.is_write_pending {
                m.head_slots.check::<SpaceHead>(&mut |error| findings.push(error)); // else it is torn for want of room, and written again
            }
        }
        findings.into_iter().for_each(report);
    }

    /// Reports the checkpoint that this opening did without. One that may write has removed it.
    fn report_repaired_damage(&self, report: &mut dyn FnMut(Error)) {
        if let (true, Some(Error::Corrupt { path, offset, damage: what })) =
            (self.options.read_only, &self.repaired_damage)
        {
            report(Error::corrupt(path, *offset, what.clone()));
        }
    }

    /// Numbers of the checkpoints that heads name.
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
                Err(_) if !self.named_checkpoints().contains(&number) => {} // it went meanwhile
                Err(error) if error.is_corrupt() => report(error),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn verify_checkpoint(&self, number: u64) -> Result<u64> {
        let path = self.dir.join(format::checkpoint_name(number));
        let space = self.head_state.lock().head.space;
        let mut image = ImageReader::open(&*self.disk, path, space, KeyspaceId(0), number, |_| None)?;
        format::read_checkpoint(&mut image, |_, _| {})?;
        image.finish()
    }
}
