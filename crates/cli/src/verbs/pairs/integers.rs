//! # Integers: values that a merge operator computes, as decimal numbers
//!
//! `add` has 8 bytes, little-endian. The other operators compare bytes, so their numbers have the
//! encoding of `sheaf::keys`.

use std::ffi::OsStr;

use sheaf::{Keyspace, keys};

use crate::failure::{Failure, Result};

/// Returns whether the merge operator of the keyspace adds numbers.
pub(crate) fn is_added(keyspace: &Keyspace) -> bool {
    keyspace.options().merge_operator() == Some("add")
}

/// Returns the number of an argument.
pub(crate) fn parse(argument: &OsStr) -> Result<i64> {
    let number = argument.to_str().and_then(|text| text.parse().ok());
    let range = format!("{} to {}", i64::MIN, i64::MAX);
    number.ok_or_else(|| Failure::Usage(format!("{argument:?} is no integer from {range}")))
}

/// Returns the bytes of a number in the keyspace.
pub(crate) fn encode(keyspace: &Keyspace, number: i64) -> Vec<u8> {
    match is_added(keyspace) {
        true => number.to_le_bytes().to_vec(),
        false => keys::encode(&number),
    }
}

/// Returns the number that a value in the keyspace contains, or `None` if it has not 8 bytes.
pub(crate) fn decode(keyspace: &Keyspace, value: &[u8]) -> Option<i64> {
    match is_added(keyspace) {
        true => value.try_into().ok().map(i64::from_le_bytes),
        false => keys::decode(value).ok(),
    }
}
