//! # sheaf-testkit: what proves the other crates
//!
//! One module a harness; each says in its header what it cannot see.

pub mod alloc;
pub mod conformance;
pub mod corrupt;
pub mod crash;
pub mod faults;
pub mod fuzz;
pub mod kill;
pub mod ledger;
pub mod linear;
pub mod model;
pub mod mortal;
pub mod reseal;
pub mod stage;
pub mod tap;
pub mod totals;
