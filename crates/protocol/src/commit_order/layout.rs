//! # What is on the disk: frames in sectors in segments in two logs, and ROOT in two slots

use crate::disk::{ModelPage, TornSectors};

/// The number of a commit. Small: a model has few.
pub(super) type CommitSeq = u8;

/// One commit's bytes in one log.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CommitFrame {
    /// Half of the salt: the number of the segment it was written for.
    pub(super) segment: u8,
    /// The other half: the incarnation that wrote it.
    pub(super) incarnation: u8,
    /// The commit's number.
    pub(super) seq: CommitSeq,
    /// In which logs the commit has parts (bit 0 is X, bit 1 is Y).
    pub(super) parts: u8,
    /// Which commit this really is: what a number alone cannot say.
    pub(super) id: u8,
    /// The durable watermark when it was written.
    pub(super) durable: CommitSeq,
}

/// What one sector holds.
pub(super) type FrameSector = Vec<CommitFrame>;

/// A numbered piece of a log.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(super) struct LogSegment {
    /// Never used twice.
    pub(super) number: u8,
    /// Who may write frames here.
    pub(super) incarnation: u8,
    /// Its sectors, in order of offset.
    pub(super) sectors: Vec<ModelPage<FrameSector>>,
}

/// X or Y.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(super) struct ModelLog {
    /// In order of number; the last is written to.
    pub(super) segments: Vec<LogSegment>,
    /// The sector of the last segment that is written next.
    pub(super) at: usize,
    /// A sync round started: the next frame does not join the last sector.
    pub(super) starts_sector: bool,
}

/// Where a frame goes.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) struct FramePlace {
    sector: usize,
    /// Behind the frames that the sector already holds.
    is_shared: bool,
}

impl ModelLog {
    /// Takes space for a frame.
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

    /// Copies a frame to its place. What the sector held stays the same byte for byte, so only a
    /// first write (or garbage) can leave neither the old sector nor the new one.
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

    /// A sync of this log.
    pub(super) fn sync(&mut self, ok: bool) {
        for sector in self.segments.iter_mut().flat_map(|segment| &mut segment.sectors) {
            if ok { sector.sync() } else { sector.fail_sync() }
        }
    }
}

/// A live segment as ROOT lists it.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LiveSegment {
    /// Which one.
    pub(super) number: u8,
    /// If sealed: how many of its frames count.
    pub(super) end: Option<u8>,
}

/// One slot of ROOT.
#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OrderRoot {
    /// The newer of two valid slots rules.
    pub(super) generation: u8,
    /// F: recovery never questions what lies at or below it.
    pub(super) floor: CommitSeq,
    /// Who serves under this ROOT.
    pub(super) incarnation: u8,
    /// The last commit of the incarnations before.
    pub(super) previous_seq: CommitSeq,
    /// The first number of this incarnation.
    pub(super) start: CommitSeq,
    /// Numbers that were reserved and never given, or given and cut off: (above, below).
    pub(super) holes: Vec<(CommitSeq, CommitSeq)>,
    /// The live segments of X and Y.
    pub(super) live: [Vec<LiveSegment>; 2],
    /// The number that the next segment of either log gets.
    pub(super) next_segment: u8,
}

impl OrderRoot {
    /// Whether this number was never given, or was cut off.
    #[must_use]
    pub(super) fn is_void(&self, seq: CommitSeq) -> bool {
        self.holes.iter().any(|&(above, below)| above < seq && seq < below)
    }
}

/// The slot that holds the newest valid ROOT.
#[must_use]
pub(super) fn newest(slots: &[ModelPage<OrderRoot>; 2]) -> Option<usize> {
    let generation = |slot: usize| slots[slot].read().map(|root| root.generation);
    let best = usize::from(generation(1) > generation(0));
    generation(best).map(|_| best)
}
