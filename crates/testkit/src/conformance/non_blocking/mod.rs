//! # Calls that do not wait: `try_get`, `try_insert` and their siblings

pub mod gets;
pub mod writes;
