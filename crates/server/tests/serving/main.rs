//! A served database from outside: clients that behave, clients that do not, servers that are killed.
//!
//! What this cannot see: two machines; a slow network; RDMA.

#![allow(clippy::disallowed_methods, reason = "tests start threads and processes, and have deadlines")]
#![allow(clippy::cast_possible_truncation, reason = "numbers here are small, or cut on purpose")]

mod closing;
mod histories;
mod hostile;
mod support;
mod trips;
