//! # Background work: threads, idle work, expiry, verification and the balance of caches

pub(crate) mod cache_balance;
pub(crate) mod expiry;
pub(crate) mod idle;
pub(crate) mod threads;
pub(crate) mod verify;
