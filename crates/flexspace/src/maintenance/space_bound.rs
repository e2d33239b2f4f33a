//! # Space bound: a soft bound of the data files, set and moved by the owner of a space
//!
//! [`SpaceOptions::limit`](crate::SpaceOptions::limit) is a fixed number of segments, and a write
//! beyond it fails. A bound follows the live data and never fails a write: garbage is collected
//! earlier, fewer free segments keep their blocks, and the log stays short. The owner must throttle
//! its own writes if the space exceeds the bound.
//!
//! ## Costs
//!
//! Collecting a segment with the live share v copies v / (1 - v) bytes for each byte that it frees.
//! Below [`GARBAGE_DIVISOR`] nothing is collected even if the bound is exceeded, so a bound that
//! live bytes cannot meet costs at most about 12 copies of each written byte.

use sheaf_platform::sync::atomic::Ordering;

use crate::segments::segment_allocator::GC_FREE_SEGMENTS;
use crate::shared::SharedSpace;
use crate::space::FlexSpace;
use crate::write::writer::SpaceWriter;

/// Free segments that keep their blocks in a bounded space: those of garbage collection, and the
/// next two of writers.
pub(crate) const BOUNDED_FREE_SEGMENTS: u64 = GC_FREE_SEGMENTS as u64 + 2;
/// This part of the live bytes may be garbage in a bounded space under load, in addition to
/// [`GARBAGE_SLACK`] segments.
const GARBAGE_DIVISOR: u64 = 12;
/// Open segments and the ends of sealed ones.
const GARBAGE_SLACK: u64 = 2;
/// Like [`GARBAGE_DIVISOR`], for an idle space.
const IDLE_GARBAGE_DIVISOR: u64 = 32;
/// Lower limit of the log of a bounded space, as a part of the usual upper limit.
const LOG_DIVISOR: u64 = 16;

impl FlexSpace {
    /// Sets the bound of the disk space of data files in bytes, or removes it with `None`. Takes
    /// effect with the next step of maintenance. Without a call a space has no bound.
    ///
    /// ```
    /// use sheaf_flexspace::{FlexSpace, SpaceOptions};
    /// # fn main() -> sheaf_platform::error::Result<()> {
    /// # let disk = std::sync::Arc::new(sheaf_sim::SimDisk::new());
    /// let options = SpaceOptions { inline: true, ..SpaceOptions::default() };
    /// let space = FlexSpace::open_on(disk, "/text", options)?;
    /// space.set_bound(Some(64 << 20));
    /// space.write(0, b"hello world")?;
    /// assert!(space.disk_bytes().0 <= 64 << 20);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_bound(&self, bytes: Option<u64>) {
        let shared = self.shared();
        shared.is_bounded.store(bytes.is_some(), Ordering::Relaxed);
        shared.writer.lock().allocator.bound = bytes.map(|bytes| bytes / shared.geometry.segment);
    }

    /// Returns the disk space of data files, and an estimate of that of the log and the
    /// checkpoints, in bytes.
    #[must_use]
    pub fn disk_bytes(&self) -> (u64, u64) {
        let shared = self.shared();
        let checkpoint = shared.head_state.lock().checkpoint_bytes;
        let w = shared.writer.lock();
        let log = w.log.bytes + w.log.previous_bytes;
        (w.segments_with_blocks() * shared.geometry.segment, 2 * checkpoint + log)
    }
}

impl SpaceWriter {
    /// Returns the number of segments that have disk blocks.
    fn segments_with_blocks(&self) -> u64 {
        self.allocator.with_file.saturating_sub(self.allocator.without_blocks.len() as u64)
    }

    /// Returns whether a bounded space must be collected; `None` without a bound.
    pub(crate) fn is_bounded_gc_due(&self) -> Option<bool> {
        let bound = self.allocator.bound?;
        let (used, _) = self.used_and_live();
        Some(used + BOUNDED_FREE_SEGMENTS > bound && self.has_garbage(GARBAGE_DIVISOR))
    }

    /// Returns whether an idle bounded space must be collected; `None` without a bound.
    pub(crate) fn is_bounded_idle_gc_due(&self) -> Option<bool> {
        self.allocator.bound.map(|_| self.has_garbage(IDLE_GARBAGE_DIVISOR))
    }

    fn has_garbage(&self, divisor: u64) -> bool {
        let segment = self.data_files.geometry.segment;
        let (used, live) = self.used_and_live();
        used * segment > live + live / divisor + GARBAGE_SLACK * segment
    }
}

impl SharedSpace {
    /// Returns whether the segments with blocks exceed the bound.
    pub(crate) fn is_over_bound(&self) -> bool {
        self.is_bounded.load(Ordering::Relaxed) && {
            let w = self.writer.lock();
            w.allocator.bound.is_some_and(|bound| w.segments_with_blocks() > bound)
        }
    }

    /// Returns the limit of the log of a bounded space: the size of a checkpoint, because the disk
    /// has up to four times as much log.
    pub(crate) fn bounded_log_limit(&self, checkpoint_bytes: u64) -> u64 {
        checkpoint_bytes.max(self.geometry.checkpoint_log_bytes / LOG_DIVISOR)
    }
}
