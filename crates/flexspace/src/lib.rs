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
//!    |    └ log: one frame for each operation  (write/)
//!    v
//!  buffers in memory                         (segments/)
//!    | write/flush.rs
//!    v
//!  segments in data files, filled in order   (segments/, extent.rs)
//!    ^ maintenance/gc.rs  copies live extents out of the emptiest segments
//!    ^ maintenance/       syncs, checkpoints, frees segments
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

mod checkpoint;
mod extent;
mod format;
mod maintenance;
mod options;
mod read;
mod recovery;
mod segments;
mod shared;
mod space;
pub mod tree;
mod write;

pub use options::SpaceOptions;
pub use read::check::Verification;
pub use read::pinned_space::PinnedSpace;
pub use read::view::{ExtentBytes, SpaceView, ViewReader};
pub use space::{FlexSpace, SpaceStats};
pub use write::edit::{Edit, SpaceCursor};
