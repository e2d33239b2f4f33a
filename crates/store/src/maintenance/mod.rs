//! # Background work: threads, engine steps, idle work, expiry, verification, balance of caches

pub(crate) mod cache_balance;
mod engine_steps;
pub(crate) mod expiry;
pub(crate) mod idle;
pub(crate) mod threads;
pub(crate) mod verify;
