//! # FlexTree and FlexSpace: a file with insertion and removal at any position
//!
//! [`FlexSpace`] stores one address space. Besides `read` and `write` it has `insert` and
//! `collapse`. They shift all following bytes in O(log N), without rewriting them (FlexSpace paper,
//! EuroSys'22). [`tree::ShiftTree`] is its index and can be used alone.
//!
//! ```text
//!     edits (one at a time): data, then log, then tree       reads (any number, no lock)
//!       v                                                       v
//!  writer ── publishes ──> version = tree nodes + buffers + data files ── checksum per block
//!    |    └ log: one frame for each operation  (log.rs)
//!    v
//!  buffers in memory                         (placement.rs, buffer.rs)
//!    | flush.rs
//!    v
//!  segments in data files, filled in order   (data_file.rs, extent.rs)
//!    ^ gc.rs           copies live extents out of the emptiest segments
//!    ^ maintenance.rs  syncs, checkpoints, frees segments
//! ```
//!
//! 1. After a crash the space has the result of a prefix of its operations, including all before
//!    the last [`FlexSpace::sync`] that returned. Each operation, also an [`Edit`], is atomic.
//! 2. A read returns the written bytes or an error: it verifies checksums ([`SpaceView::peek`] does
//!    not).
//! 3. Readers never wait for the writer, syncs or garbage collection. A [`SpaceView`] is immutable.
//! 4. A failed sync poisons the space: until it is reopened, changes fail and reads work. On a full
//!    disk, operations that add bytes fail; reads and removals work.
//!
//! An operation costs a copy, checksums, 40 to 60 bytes of log, and no system call. A read costs a
//! tree descent, checksums and a copy. Memory: the index, and at most eight segment buffers.

#![warn(missing_docs)]

mod buffer;
mod check;
mod commit;
mod current;
mod data_file;
mod edit;
mod extent;
mod finish_recovery;
mod flush;
mod format;
mod gc;
mod log;
mod maintenance;
mod open_partial;
mod options;
mod pinned;
mod pinned_space;
mod placement;
mod preallocate;
mod recover;
mod replay;
mod segment_allocator;
mod shared;
mod space;
mod throttle;
pub mod tree;
mod view;
mod writer;

pub use check::Verification;
pub use edit::{Edit, SpaceCursor};
pub use options::SpaceOptions;
pub use pinned_space::PinnedSpace;
pub use space::{FlexSpace, SpaceStats};
pub use view::{ExtentBytes, SpaceView, ViewReader};
