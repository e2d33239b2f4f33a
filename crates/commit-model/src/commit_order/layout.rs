//! # Disk layout of the order model
//!
//! Has two logs of segments of sectors of frames, and ROOT in two slots.

use crate::disk::{ModelPage, TornSectors};

/// Seq of a commit. One byte suffices, since a model has few commits.
pub(super) type CommitSeq = u8;

/// Bytes of one commit in one log.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CommitFrame {
    /// First half of the salt: the segment that the frame was written for.
    pub(super) segment: u8,
    /// Second half of the salt: the incarnation that wrote the frame.
    pub(super) incarnation: u8,
    /// Seq of the commit.
    pub(super) seq: CommitSeq,
    /// Set of logs in which the commit has parts (bit 0 is X, bit 1 is Y).
    pub(super) parts: u8,
    /// Identity of the commit. It distinguishes two commits with the same seq.
    pub(super) id: u8,
    /// W at the time of the write. The store writes W only to the first frame after a round.
    /// Recovery uses W only to distinguish rot from a torn tail, so an older W is never wrong, only
    /// less precise.
    pub(super) durable: CommitSeq,
}

/// Frames of one sector.
pub(super) type FrameSector = Vec<CommitFrame>;

/// Segment of a log.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(super) struct LogSegment {
    /// Number of the segment. It is never used again.
    pub(super) number: u8,
    /// Incarnation that may write frames here.
    pub(super) incarnation: u8,
    /// Sectors in the order of their offsets.
    pub(super) sectors: Vec<ModelPage<FrameSector>>,
}

/// Log X or Y.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(super) struct ModelLog {
    /// Segments in ascending order. Frames are written to the last one.
    pub(super) segments: Vec<LogSegment>,
    /// Index of the next new sector in the last segment.
    pub(super) at: usize,
    /// True after a sync round has started: the next frame must not share the last sector.
    pub(super) starts_sector: bool,
}

/// Position of a frame.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) struct FramePlace {
    sector: usize,
    /// The frame follows other frames in its sector.
    is_shared: bool,
}

impl ModelLog {
    /// Reserves the place of a frame.
    pub(super) fn reserve(&mut self, sector_frames: usize) -> Option<FramePlace> {
        let open = self.segments.last_mut()?;
        let last = self.at.checked_sub(1).map(|last| &open.sectors[last]);
        let has_room =
            |last: &ModelPage<FrameSector>| last.read().is_some_and(|held| held.len() < sector_frames);
        let shared = !self.starts_sector && last.is_some_and(has_room);
        self.starts_sector = false;
        if shared {
            return Some(FramePlace { sector: self.at - 1, is_shared: shared });
        }
        if self.at == open.sectors.len() {
            open.sectors.push(ModelPage::empty());
        }
        self.at += 1;
        Some(FramePlace { sector: self.at - 1, is_shared: shared })
    }

    /// Copies a frame to its place. The earlier bytes of a shared sector do not change. Therefore
    /// only a first write, or a disk that leaves garbage, can lose both the old and the new sector.
    pub(super) fn copy(&mut self, place: FramePlace, mut frame: CommitFrame, tears: TornSectors) {
        let Some(open) = self.segments.last_mut() else {
            return;
        };
        frame.segment = open.number;
        frame.incarnation = open.incarnation;
        let sector = &mut open.sectors[place.sector];
        let mut held = if place.is_shared { sector.read().cloned() } else { None }.unwrap_or_default();
        held.push(frame);
        sector.write(held, !place.is_shared || tears == TornSectors::Garbage);
    }

    /// Syncs this log; the sync fails if `ok` is false.
    pub(super) fn sync(&mut self, ok: bool) {
        for sector in self.segments.iter_mut().flat_map(|segment| &mut segment.sectors) {
            if ok { sector.sync() } else { sector.fail_sync() }
        }
    }
}

/// Live segment as ROOT lists it.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LiveSegment {
    /// Number of the segment.
    pub(super) number: u8,
    /// Number of accepted frames if the segment is sealed.
    pub(super) end: Option<u8>,
}

/// Content of one slot of ROOT.
#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OrderRoot {
    /// Generation. Of two valid slots the higher one counts.
    pub(super) generation: u8,
    /// F: recovery expects every commit up to it. A missing one is damage.
    pub(super) floor: CommitSeq,
    /// Incarnation that serves under this ROOT.
    pub(super) incarnation: u8,
    /// Last commit of the previous incarnations.
    pub(super) previous_seq: CommitSeq,
    /// First seq of this incarnation.
    pub(super) start: CommitSeq,
    /// Seqs between `above` and `below` that were never assigned or were cut off: (above, below).
    pub(super) holes: Vec<(CommitSeq, CommitSeq)>,
    /// Live segments of X and Y.
    pub(super) live: [Vec<LiveSegment>; 2],
    /// Number of the next segment of either log.
    pub(super) next_segment: u8,
}

impl OrderRoot {
    /// Returns whether this seq was never assigned or was cut off.
    #[must_use]
    pub(super) fn is_void(&self, seq: CommitSeq) -> bool {
        self.holes.iter().any(|&(above, below)| above < seq && seq < below)
    }
}

/// Returns the slot that has the newest valid ROOT.
#[must_use]
pub(super) fn newest(slots: &[ModelPage<OrderRoot>; 2]) -> Option<usize> {
    let generation = |slot: usize| slots[slot].read().map(|root| root.generation);
    let best = usize::from(generation(1) > generation(0));
    generation(best).map(|_| best)
}
