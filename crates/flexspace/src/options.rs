//! # Options: the few numbers a user sets, and those that follow

use std::sync::Arc;

use sheaf_base::memory::Memory;

use crate::extent::MAX_EXTENT;

/// How to open a FlexSpace.
#[derive(Clone, Debug)]
pub struct SpaceOptions {
    /// Make one if there is none. Default: yes.
    pub create: bool,
    /// Most bytes of data files, holes and bookkeeping aside; at least a few dozen segments of 4
    /// MiB. Without a limit the disk is it. Of a limit 15/16 can be used (see
    /// [`crate::SpaceStats::capacity`]).
    pub limit: Option<u64>,
    /// Change nothing on disk: nothing can be written, and several may read at a time. Default: no.
    pub read_only: bool,
    /// Where the index in memory is accounted (as [`sheaf_base::memory::MemoryPart::Index`]); with
    /// the budget used up, bytes can be removed but not added.
    pub memory: Arc<Memory>,
    /// No thread: background work is done when [`crate::FlexSpace::maintain`] is called, and by
    /// writers that need it.
    pub inline: bool,
    /// Segments of 1 MiB instead of 4, and extents of at most 32 KiB: a space that keeps short
    /// runs, and is to get on with a small disk. Fixed when a space is made.
    pub fine: bool,
    /// Sizes so small that everything happens within 200 operations. For tests; fixed when a space
    /// is made.
    pub tiny: bool,
}

impl Default for SpaceOptions {
    fn default() -> SpaceOptions {
        SpaceOptions {
            create: true,
            read_only: false,
            limit: None,
            memory: Arc::new(Memory::new(u64::MAX)),
            inline: false,
            fine: false,
            tiny: false,
        }
    }
}

/// Which sizes a space has, as the head says it.
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

    /// From a stored byte; `None` if it is no grain.
    pub(crate) fn from_bits(bits: u8) -> Option<GeometryKind> {
        [GeometryKind::Standard, GeometryKind::Tiny, GeometryKind::Fine]
            .into_iter()
            .find(|geometry_kind| *geometry_kind as u8 == bits)
    }
}

/// Sizes in bytes, unless said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpaceGeometry {
    /// What garbage collection empties and reuses.
    pub(crate) segment: u64,
    /// What a checksum covers.
    pub(crate) checksum_block: u64,
    /// Longest extent: 1/32 of a segment (paper, section 4.1).
    pub(crate) max_extent: u64,
    /// Segments in a data file.
    pub(crate) segments_per_file: u32,
    /// First and largest segment of the log.
    pub(crate) log_segment_bytes: [u64; 2],
    /// A checkpoint is due after this much log; of a small index after less, down to a fourth.
    pub(crate) checkpoint_log_bytes: u64,
    /// Segments that only garbage collection may take.
    pub(crate) reserve: u64,
    /// Bytes that garbage collection moves in one step.
    pub(crate) gc_step_bytes: u64,
    /// Entries that it looks at in one step.
    pub(crate) gc_step_entries: usize,
    /// Bytes in memory after which background work hands them to the kernel.
    pub(crate) backlog: u64,
    /// Bytes of log in memory after which writers do that themselves.
    pub(crate) log_backlog: u64,
    /// Bytes written after which background work syncs, so that no sync has much to do.
    pub(crate) max_unsynced: u64,
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
        }
    }

    /// Bytes of records that one frame may hold: half of the largest log segment.
    pub(crate) fn max_body(&self) -> usize {
        usize::try_from(self.log_segment_bytes[1] / 2).unwrap_or(usize::MAX)
    }
}
