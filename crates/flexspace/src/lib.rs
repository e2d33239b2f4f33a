//! # FlexTree and FlexSpace: a file whose bytes can be inserted and removed anywhere
//!
//! [`FlexSpace`] is a storage for one address space: `read`, `write`, and also `insert` and
//! `collapse`, which move everything behind by any number of bytes in O(log N), without rewriting
//! it (after the FlexSpace paper, EuroSys'22). [`tree::ShiftTree`] is the index under it, usable on
//! its own.
//!
//! ## Picture
//!
//! ```text
//!      edits (one at a time)                              reads (any number, no lock)
//!        |  data, then log, then tree                       |
//!        v                                                  v
//!   writer ── publishes ──> version = tree nodes + buffers + data files ── checked bytes
//!     |    \                    ^
//!     |     └ log: one frame an operation      (log.rs)
//!     v
//!   buffers in memory       (placement.rs, buffer.rs)
//!     |  flush.rs
//!     v
//!   segments of 4 MiB in data files, filled front to back   (data_file.rs, extent.rs)
//!     ^
//!   collect: live extents out of the emptiest segments, a step at a time   (gc.rs)
//!   upkeep:  syncs, checkpoints, segments given back when nothing durable needs them (maintenance.rs)
//!   held:    what a reader keeps for long is not collected                    (pinned.rs)
//! ```
//!
//! ## Promises
//!
//! 1. After a crash the space is the result of a prefix of its operations that contains all before
//!    the last [`FlexSpace::sync`] that returned; each is there whole or not at all. An [`Edit`] is
//!    one operation.
//! 2. A read returns what was written or an error. Every byte is covered by a checksum, checked at
//!    every read; [`SpaceView::peek`] alone is for who checks by itself.
//! 3. Readers never wait for the writer, syncs, or garbage collection. A [`SpaceView`] stays as it
//!    is.
//! 4. A failed sync poisons: no change until it is opened again, reads go on. A full disk refuses
//!    what adds bytes; reading and removing go on.
//!
//! ## Costs
//!
//! An operation: a copy and a sum of its bytes, 40 to 60 bytes of log, no call of the system, some
//! microseconds. A read: a descent in memory, a sum and a copy out of a buffer or the page cache.
//! Memory: the index, 17 to 23 bytes an extent; buffers, at most eight segments.

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
