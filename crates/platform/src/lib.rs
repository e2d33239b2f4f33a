//! # sheaf-platform: access to the operating system
//!
//! Files, memory, threads, locks and clocks, without a notion of a database. All other crates of
//! the library access the operating system through this one, so that tests can replace the disk
//! (crate `sheaf-sim`), the clock and the scheduler (`--cfg shuttle`).
//!
//! ## Picture
//!
//! ```text
//!  disk      files, directories, locks, mappings, bound on descriptors
//!  memory    budget, block allocator, huge pages
//!  sync      locks, atomics, epochs, threads; parallel: steps on several threads; fork: guard
//!  codec     fields of messages and files        error: errors of the database
//!  accept    loop of a server socket             trace: spans and events     random: seeds
//!  unix_socket   sockets, peers and notifications
//! ```

#[cfg(unix)]
pub mod accept;
pub mod clock;
pub mod codec;
pub mod disk;
pub mod error;
pub mod fork;
pub mod memory;
pub mod parallel;
pub mod random;
pub mod sync;
pub mod trace;
#[cfg(unix)]
pub mod unix_socket;
pub mod wire_error;
