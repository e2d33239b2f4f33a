//! # C interface: the library `libsheaf` and its header `sheaf.h`
//!
//! Exports the API of the crate `sheaf` as C functions. The header is generated from this crate;
//! `tests/header.rs` compares it with the committed one.
//!
//! ## Invariants
//!
//! 1. No panic crosses the boundary: every function that can panic runs in `boundary::call` or
//!    `boundary::release`, the only callers of `catch_unwind`.
//! 2. C memory is accessed only through the types of `memory`. Handles are references, which are
//!    null or valid by the contract of the header.
//! 3. A handle that one call changes is locked during the call. A second call at the same time
//!    returns `SHEAF_HANDLE_IN_USE`.
//! 4. Every handle keeps the database alive. A freed database handle therefore does not invalidate
//!    its keyspaces, iterators and batches.
//! 5. Every exported name begins with `sheaf_`, so it replaces no symbol of another library.
//!
//! ## Threads
//!
//! The doc comment of each function has a paragraph `Threads:`; the test of the header requires it.

#![allow(non_camel_case_types)] // the names are those of the C header
#![allow(unreachable_pub)] // the linker exports the functions
#![allow(clippy::too_many_arguments)] // C has neither default arguments nor builders
#![warn(missing_docs)]

#[cfg(panic = "abort")]
compile_error!("libsheaf catches panics: build it with panic = \"unwind\"");

mod batch;
mod boundary;
mod bulk_load;
mod changes;
mod database;
mod estimate;
mod iter;
mod keyspace;
mod keyspace_options;
mod maintenance;
mod options;
mod owner;
mod read;
mod snapshot;
mod stream;
mod transaction;
mod update;
mod write;
