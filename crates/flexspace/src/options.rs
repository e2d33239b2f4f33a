//! # Options and the sizes derived from them

use std::sync::Arc;

use sheaf_platform::clock::{Clock, SystemClock};
use sheaf_platform::memory::Memory;

use crate::extent::MAX_EXTENT;

/// Maximum number of reserved segments (paper, section 4.1).
const MAX_RESERVE: u64 = 64;
/// This part of a limit is reserved: 0.4 %. 64 segments of 4 MiB are reserved from 64 GiB on.
const RESERVE_DIVISOR: u64 = 256;

/// Options for opening a FlexSpace.
#[derive(Clone, Debug)]
pub struct SpaceOptions {
    /// Creates the space if it does not exist. Default: true.
    pub create: bool,
    /// Maximum size of the data files in bytes, without holes and metadata. `None`: only the disk
    /// limits it. The limit is rounded down to segments (4 MiB, or 1 MiB with `fine`) and is at
    /// least 24 of them. Of the limit, up to 15/16 can be live (see
    /// [`crate::SpaceStats::capacity`]).
    pub limit: Option<u64>,
    /// Opens without changing anything on disk; several processes may do so at once. Default:
    /// false.
    pub read_only: bool,
    /// Accounts the memory of the index (as [`sheaf_platform::memory::MemoryPart::Index`]) and of
    /// buffers. If the budget is used up, bytes can be removed but not added.
    pub memory: Arc<Memory>,
    /// Clock that paces background work and throttling. Default: the clock of the machine.
    pub clock: Arc<dyn Clock>,
    /// Writes and insertions directly behind the bytes of the one before extend their extent, up
    /// to its maximum length (paper, section 4.1). Appends of 100 bytes then take 1/1310 of an
    /// extent each, and 100.2 bytes instead of 112. In return, a checksum of 4 KiB covers several
    /// writes: a read of one verifies up to 4 KiB, and a damaged byte makes all of them
    /// unreadable. An extent in the middle of which bytes are removed or overwritten is split
    /// again, so that removals add extents. Default: true.
    pub merge_extents: bool,
    /// Starts no threads. Background work is then done by [`crate::FlexSpace::maintain`], and by
    /// writers that depend on it.
    pub inline: bool,
    /// Uses segments of 1 MiB (not 4 MiB) and extents of at most 32 KiB, for short extents on a
    /// small disk. Fixed when the space is created.
    pub fine: bool,
    /// Uses tiny sizes, so that every mechanism runs within 200 operations. For tests. Fixed when
    /// the space is created.
    pub tiny: bool,
}

impl Default for SpaceOptions {
    fn default() -> SpaceOptions {
        SpaceOptions {
            create: true,
            read_only: false,
            limit: None,
            memory: Arc::new(Memory::new(u64::MAX)),
            clock: Arc::new(SystemClock),
            merge_extents: true,
            inline: false,
            fine: false,
            tiny: false,
        }
    }
}

/// Set of sizes of a space, as stored in the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GeometryKind {
    Standard = 0,
    Tiny = 1,
    Fine = 2,
}

impl GeometryKind {
    pub(crate) fn from_options(options: &SpaceOptions) -> GeometryKind {
        match (options.tiny, options.fine) {
            (true, _) => GeometryKind::Tiny,
            (false, true) => GeometryKind::Fine,
            (false, false) => GeometryKind::Standard,
        }
    }

    /// Decodes a stored byte; `None` if it is unknown.
    pub(crate) fn from_bits(bits: u8) -> Option<GeometryKind> {
        [GeometryKind::Standard, GeometryKind::Tiny, GeometryKind::Fine]
            .into_iter()
            .find(|geometry_kind| *geometry_kind as u8 == bits)
    }
}

/// Sizes of a space, in bytes unless another unit is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpaceGeometry {
    /// Unit that garbage collection empties and reuses.
    pub(crate) segment: u64,
    /// Bytes covered by one checksum.
    pub(crate) checksum_block: u64,
    /// Maximum length of an extent: 1/32 of a segment (paper, section 4.1).
    pub(crate) max_extent: u64,
    /// Segments in a data file.
    pub(crate) segments_per_file: u32,
    /// Sizes of the smallest and the largest log segment.
    pub(crate) log_segment_bytes: [u64; 2],
    /// Length of log after which a checkpoint is due. For a small index less, down to a fourth.
    pub(crate) checkpoint_log_bytes: u64,
    /// Number of segments that only garbage collection may take. With a limit, see
    /// [`SpaceGeometry::with_limit`].
    pub(crate) reserve: u64,
    /// Bytes that garbage collection moves in one step.
    pub(crate) gc_step_bytes: u64,
    /// Index entries that garbage collection examines in one step.
    pub(crate) gc_step_entries: usize,
    /// Bytes in memory after which background work flushes them.
    pub(crate) backlog: u64,
    /// Bytes of log in memory after which writers flush themselves.
    pub(crate) log_backlog: u64,
    /// Bytes written after which background work syncs. Keeps each sync short.
    pub(crate) max_unsynced: u64,
    /// Block of a node file. A block with a node that recovery may need is not written.
    pub(crate) node_block: u64,
    /// Entries up to which a checkpoint is a list in one file: 4 KiB, one read at the opening.
    pub(crate) list_entries: u64,
}

impl SpaceGeometry {
    pub(crate) fn new(geometry_kind: GeometryKind) -> SpaceGeometry {
        if geometry_kind == GeometryKind::Tiny {
            return SpaceGeometry {
                segment: 4 << 10,
                checksum_block: 128,
                max_extent: 512,
                segments_per_file: 4,
                log_segment_bytes: [2 << 10, 8 << 10],
                checkpoint_log_bytes: 6 << 10,
                reserve: 2,
                gc_step_bytes: 1 << 10,
                gc_step_entries: 16,
                backlog: 1 << 10,
                log_backlog: 4 << 10,
                max_unsynced: 8 << 10,
                node_block: 512,
                list_entries: 4,
            };
        }
        let fine = geometry_kind == GeometryKind::Fine;
        SpaceGeometry {
            segment: if fine { 1 << 20 } else { 4 << 20 },
            checksum_block: 4 << 10,
            max_extent: if fine { MAX_EXTENT / 4 } else { MAX_EXTENT },
            segments_per_file: if fine { 256 } else { 64 },
            log_segment_bytes: [if fine { 64 << 10 } else { 256 << 10 }, 16 << 20],
            checkpoint_log_bytes: if fine { 16 << 20 } else { 64 << 20 },
            reserve: 8,
            gc_step_bytes: 256 << 10,
            gc_step_entries: 2048,
            backlog: 512 << 10,
            log_backlog: 4 << 20,
            max_unsynced: 8 << 20,
            node_block: 4 << 10,
            list_entries: 256,
        }
    }

    /// Returns the sizes of a space with at most `segments` segments. A part of a limit is reserved
    /// for garbage collection, up to the 64 segments of the paper (section 4.1). A pass walks the
    /// whole index and copies at most as much as the reserve holds. With a long index and a small
    /// reserve, most of its work would be walking (docs/decisions/0033).
    pub(crate) fn with_limit(self, segments: u64) -> SpaceGeometry {
        let most = self.reserve.max(MAX_RESERVE);
        SpaceGeometry { reserve: (segments / RESERVE_DIVISOR).clamp(self.reserve, most), ..self }
    }

    /// Maximum bytes of records in one frame: half of the largest log segment.
    pub(crate) fn max_body(&self) -> usize {
        usize::try_from(self.log_segment_bytes[1] / 2).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_grows_with_the_limit_up_to_that_of_the_paper() {
        let reserve = |kind, segments| SpaceGeometry::new(kind).with_limit(segments).reserve;
        let standard = [24, 2048, 4096, 8192, 16_384, 1 << 30];
        let expected = [8, 8, 16, 32, 64, 64];
        assert_eq!(standard.map(|segments| reserve(GeometryKind::Standard, segments)), expected);
        assert_eq!(standard.map(|segments| reserve(GeometryKind::Fine, segments)), expected);
        assert_eq!(reserve(GeometryKind::Tiny, 64), 2);
    }
}
