//! # Random bits from the operating system

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

/// Returns 128 unpredictable bits. The operating system provides the hash keys of std.
#[must_use]
pub fn random_bits() -> u128 {
    if cfg!(shuttle) {
        return 42; // the schedule must be reproducible
    }
    let word = || u128::from(RandomState::new().hash_one(std::process::id()));
    word() << 64 | word()
}
