//! # Long-pinned versions
//!
//! ## Picture
//!
//! ```text
//!  versions   H ·························· newest
//!             └ pinned for a while, by a backup or a view
//!  segments   taken before H, dead since:  wait for H, and leave the page cache
//!             taken before H, live:        are not collected
//!             taken after H:               are collected as usual
//! ```
//!
//! Collecting a segment that H references would take space and free none before H is released;
//! until then more of it dies. Garbage in such segments also does not trigger collection, which
//! would then empty other segments with little garbage. Pages that only H reads are worth less than
//! the pages that the growing space needs.
//!
//! Only the oldest version counts, after it has been the oldest for [`LONG_PIN`]. Short reads
//! therefore have no effect.

use std::time::Duration;

use crate::write::writer::{SegmentMeta, SegmentState, SpaceWriter};

/// Time after which the oldest version is likely to remain pinned.
const LONG_PIN: Duration = Duration::from_millis(500);

/// Sealed segments that are not collected because a version is pinned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PinnedSegments {
    pub(crate) segments: u64,
    /// Live bytes in these segments.
    pub(crate) live: u64,
}

impl SpaceWriter {
    /// Returns the oldest of the versions in use (`read`) if it has been the oldest for long and is
    /// not the newest. Updates [`SpaceWriter::pinned`].
    pub(crate) fn find_long_pinned(&mut self, read: &[u64], now: Duration) -> Option<u64> {
        let oldest = read.first().copied().filter(|_| read.len() > 1);
        if self.oldest.is_none_or(|(mark, _)| Some(mark) != oldest) {
            self.oldest = oldest.map(|mark| (mark, now));
        }
        let held =
            self.oldest.filter(|(_, since)| now.saturating_sub(*since) >= LONG_PIN).map(|(mark, _)| mark);
        self.pinned = held.map(|mark| self.pinned_by(mark)).unwrap_or_default();
        held
    }

    /// Returns the segments that a version pinned at `mark` excludes from collection.
    fn pinned_by(&self, mark: u64) -> PinnedSegments {
        let is_kept = |s: &&SegmentMeta| s.state == SegmentState::Sealed && s.open_seq < mark;
        self.segments.iter().filter(is_kept).fold(PinnedSegments::default(), |all, segment| PinnedSegments {
            segments: all.segments + 1,
            live: all.live + segment.live,
        })
    }

    /// Returns segments that only version `held` and readers of the same age need, each segment
    /// once. Segments that died after `durable` are excluded, because they may not be on the device
    /// yet.
    pub(crate) fn take_pinned_dead(&mut self, held: u64, durable: u64) -> Vec<u32> {
        let mut taken = Vec::new();
        for (number, segment) in (0..).zip(self.segments.iter_mut()) {
            let is_dead = matches!(segment.state, SegmentState::Dead(died) if held < died && died <= durable);
            if is_dead && segment.open_seq < held && !segment.is_cache_dropped {
                segment.is_cache_dropped = true;
                taken.push(number);
            }
        }
        taken
    }
}
