//! # Options: the few numbers a user sets, and those that follow

use std::sync::Arc;

use sheaf_base::memory::Memory;

use crate::extent::MAX_EXTENT;

/// How to open a FlexSpace.
#[derive(Clone, Debug)]
pub struct Options {
    /// Make one if there is none. Default: yes.
    pub create: bool,
    /// Most bytes of data files, holes and bookkeeping aside; at least a few dozen segments of 4 MiB. Without
    /// a limit the disk is it. Of a limit 15/16 can be used (see [`crate::Stats::capacity`]).
    pub limit: Option<u64>,
    /// Change nothing on disk: nothing can be written, and several may read at a time. Default: no.
    pub read_only: bool,
    /// Where the index in memory is accounted (as [`sheaf_base::memory::Part::Index`]); with the budget used up, bytes
    /// can be removed but not added.
    pub memory: Arc<Memory>,
    /// No thread: background work is done when [`crate::FlexSpace::pump`] is called, and by writers that need it.
    pub inline: bool,
    /// Segments of 1 MiB instead of 4, and extents of at most 32 KiB: a space that keeps short runs, and is to get on with a
    /// small disk. Fixed when a space is made.
    pub fine: bool,
    /// Sizes so small that everything happens within 200 operations. For tests; fixed when a space is made.
    pub tiny: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
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
pub(crate) enum Grain {
    Usual = 0,
    Tiny = 1,
    Fine = 2,
}

impl Grain {
    pub(crate) fn of(options: &Options) -> Grain {
        match (options.tiny, options.fine) {
            (true, _) => Grain::Tiny,
            (false, true) => Grain::Fine,
            (false, false) => Grain::Usual,
        }
    }

    /// From a stored byte; `None` if it is no grain.
    pub(crate) fn from_bits(bits: u8) -> Option<Grain> {
        [Grain::Usual, Grain::Tiny, Grain::Fine].into_iter().find(|grain| *grain as u8 == bits)
    }
}

/// Sizes in bytes, unless said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// What garbage collection empties and reuses.
    pub(crate) segment: u64,
    /// What a checksum covers.
    pub(crate) piece: u64,
    /// Longest extent: 1/32 of a segment (paper, section 4.1).
    pub(crate) max_extent: u64,
    /// Segments in a data file.
    pub(crate) area_segments: u32,
    /// First and largest segment of the log.
    pub(crate) log: [u64; 2],
    /// A checkpoint is due after this much log; of a small index after less, down to a fourth.
    pub(crate) checkpoint: u64,
    /// Segments that only garbage collection may take.
    pub(crate) reserve: u64,
    /// Bytes that garbage collection moves in one step.
    pub(crate) step: u64,
    /// Entries that it looks at in one step.
    pub(crate) look: usize,
    /// Bytes in memory after which background work hands them to the kernel.
    pub(crate) backlog: u64,
    /// Bytes of log in memory after which writers do that themselves.
    pub(crate) log_backlog: u64,
    /// Bytes written after which background work syncs, so that no sync has much to do.
    pub(crate) unsynced: u64,
}

impl Geometry {
    pub(crate) fn new(grain: Grain) -> Geometry {
        if grain == Grain::Tiny {
            return Geometry {
                segment: 4 << 10,
                piece: 128,
                max_extent: 512,
                area_segments: 4,
                log: [2 << 10, 8 << 10],
                checkpoint: 6 << 10,
                reserve: 2,
                step: 1 << 10,
                look: 16,
                backlog: 1 << 10,
                log_backlog: 4 << 10,
                unsynced: 8 << 10,
            };
        }
        let fine = grain == Grain::Fine;
        Geometry {
            segment: if fine { 1 << 20 } else { 4 << 20 },
            piece: 4 << 10,
            max_extent: if fine { MAX_EXTENT / 4 } else { MAX_EXTENT },
            area_segments: if fine { 256 } else { 64 },
            log: [if fine { 64 << 10 } else { 256 << 10 }, 16 << 20],
            checkpoint: if fine { 16 << 20 } else { 64 << 20 },
            reserve: 8,
            step: 256 << 10,
            look: 2048,
            backlog: 512 << 10,
            log_backlog: 4 << 20,
            unsynced: 8 << 20,
        }
    }

    /// Bytes of records that one frame may hold: half of the largest log segment.
    pub(crate) fn max_body(&self) -> usize {
        usize::try_from(self.log[1] / 2).unwrap_or(usize::MAX)
    }
}
