//! # sheaf-testkit: what proves the other crates

pub mod corrupt;
pub mod crash;
pub mod faults;
pub mod kill;
pub mod tap;
