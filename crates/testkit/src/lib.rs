//! # sheaf-testkit: what every engine is tested by
//!
//! One module a harness; each says in its header what it cannot see.

pub mod conformance;
pub mod ledger;
pub mod mortal;
pub mod stage;
