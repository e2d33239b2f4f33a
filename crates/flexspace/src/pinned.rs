//! # Held: what a reader keeps for long
//!
//! ## Picture
//!
//! ```text
//!  versions   H ·································· newest        segments   born before H, dead since: wait for H, leave the page cache
//!             └ held for a while: a backup, a view                           born before H, living:    are not collected
//!                                                                            born after H:             come and go as ever
//! ```
//!
//! To collect what H names would take room and give none before H goes; until then more of it dies
//! by itself. So its garbage is no reason to collect either: others would be emptied for it that
//! have little. And pages of what only H reads are worth less than those that the growth of the
//! space takes meanwhile.
//!
//! Only the oldest version counts, once it has been that for [`LONG_PIN`]: readers that come and go
//! hold nothing up.

use std::time::Duration;

use crate::writer::{SegmentMeta, SegmentState, SpaceWriter};

/// A version that is the oldest for so long stays longer, as a rule.
const LONG_PIN: Duration = Duration::from_millis(500);

/// Sealed segments that are not collected because a version is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PinnedSegments {
    pub(crate) segments: u64,
    /// Bytes that live in them.
    pub(crate) live: u64,
}

impl SpaceWriter {
    /// The oldest of the versions that are `read`, if somebody has held it for long and it is not
    /// the newest. Notes what that keeps from being collected.
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

    /// What a version that is held from `mark` on keeps from being collected.
    fn pinned_by(&self, mark: u64) -> PinnedSegments {
        let is_kept = |s: &&SegmentMeta| s.state == SegmentState::Sealed && s.open_seq < mark;
        self.segments.iter().filter(is_kept).fold(PinnedSegments::default(), |all, segment| PinnedSegments {
            segments: all.segments + 1,
            live: all.live + segment.live,
        })
    }

    /// Segments that only version `held` and readers of its time need, each of them once. What died
    /// after `durable` may not be on the device yet.
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
