//! # LevelDB interface: the functions of `leveldb/c.h` on one keyspace of the engine `flex`
//!
//! A program that uses LevelDB through its C header links `libleveldb_sheaf` and stores its data in
//! a Sheaf database. `docs/guide/c.md` lists the differences.
//!
//! ## Invariants
//!
//! 1. No panic crosses the boundary: every function that can panic runs in `memory::guard`.
//! 2. Memory that C frees is allocated with `malloc`, in `memory`.
//! 3. As in LevelDB, pointers must be valid, and calls that change an iterator, a batch or options
//!    must not overlap with other calls on the same one. NULL as a handle is an error or has no
//!    effect. A database may be used by several threads at the same time.
//! 4. Every exported name begins with `leveldb_`, so it replaces no other symbol than LevelDB's.

#![allow(non_camel_case_types)] // the names are those of LevelDB's header
#![allow(unreachable_pub)] // the linker exports the functions
#![allow(missing_docs)] // LevelDB's header documents the functions

#[cfg(panic = "abort")]
compile_error!("libleveldb_sheaf catches panics: build it with panic = \"unwind\"");

mod batch;
mod database;
mod iterator;
mod management;
mod memory;
mod options;
mod snapshot;
