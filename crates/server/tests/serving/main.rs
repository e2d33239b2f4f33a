//! Tests of a served database with correct clients, hostile clients, and kills of server and
//! clients.
//!
//! Blind spots: two machines; a slow network; RDMA.

#![allow(clippy::disallowed_methods, reason = "tests start threads and processes, and have deadlines")]
#![allow(clippy::cast_possible_truncation, reason = "numbers here are small, or cut on purpose")]

mod closing;
mod histories;
mod hostile;
mod round_trips;
mod support;
