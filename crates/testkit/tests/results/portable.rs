//! The suites that run on every system: they start no process.

#[path = "conformance.rs"]
mod conformance;
#[path = "model.rs"]
mod model;
