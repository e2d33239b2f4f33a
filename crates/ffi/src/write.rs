//! # Writes of single keys, ranges, and all keys

use std::mem::MaybeUninit;
use std::ops::Bound;
use std::time::Duration;

use crate::batch::sheaf_ticket;
use crate::boundary::code::sheaf_code;
use crate::boundary::error::sheaf_error;
use crate::boundary::memory::{handle_out, sheaf_bytes};
use crate::boundary::{Outcome, call};
use crate::keyspace::{sheaf_keyspace, writable};
use crate::options::chosen_durability;

/// Sets `key` to `value` with the default durability of the database.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_insert(
    keyspace: Option<&sheaf_keyspace>,
    key: sheaf_bytes<'_>,
    value: sheaf_bytes<'_>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || Ok(writable(keyspace)?.insert(key.get("key")?, value.get("value")?)?))
}

/// Sets `key` to `value` for `ttl_ms` milliseconds. Afterwards the key is missing for every read.
/// The keyspace must have the option `expiry`; otherwise, and if `ttl_ms` is zero, returns
/// `SHEAF_INVALID_ARGUMENT`.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_insert_with_ttl(
    keyspace: Option<&sheaf_keyspace>,
    key: sheaf_bytes<'_>,
    value: sheaf_bytes<'_>,
    ttl_ms: u64,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    let ttl = Duration::from_millis(ttl_ms);
    call(error, || Ok(writable(keyspace)?.insert_with_ttl(key.get("key")?, value.get("value")?, ttl)?))
}

/// Removes `key` with the default durability of the database. A missing key is no error.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_remove(
    keyspace: Option<&sheaf_keyspace>,
    key: sheaf_bytes<'_>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || Ok(writable(keyspace)?.remove(key.get("key")?)?))
}

/// Sets `key` to `value` like `sheaf_insert`, but returns `SHEAF_BUSY` if the write would have to
/// wait for background work; nothing is written then.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_try_insert(
    keyspace: Option<&sheaf_keyspace>,
    key: sheaf_bytes<'_>,
    value: sheaf_bytes<'_>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || Ok(writable(keyspace)?.try_insert(key.get("key")?, value.get("value")?)?))
}

/// Removes `key` like `sheaf_remove`, but returns `SHEAF_BUSY` if the write would have to wait for
/// background work.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_try_remove(
    keyspace: Option<&sheaf_keyspace>,
    key: sheaf_bytes<'_>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || Ok(writable(keyspace)?.try_remove(key.get("key")?)?))
}

/// Sets `key` to `value` without waiting for the device, and returns a ticket that waits for
/// `durability` (`SHEAF_DURABILITY_BUFFER` or `SHEAF_DURABILITY_SYNC`).
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_submit_insert(
    keyspace: Option<&sheaf_keyspace>,
    key: sheaf_bytes<'_>,
    value: sheaf_bytes<'_>,
    durability: i32,
    ticket: Option<&mut MaybeUninit<*mut sheaf_ticket>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let ticket = handle_out(ticket, "ticket")?;
        let durability = chosen_durability(durability)?;
        let keyspace = writable(keyspace)?;
        let submitted = keyspace.submit_insert(key.get("key")?, value.get("value")?, durability)?;
        ticket.write(sheaf_ticket::handle(submitted));
        Ok(())
    })
}

/// Removes `key` without waiting for the device, and returns a ticket like `sheaf_submit_insert`.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_submit_remove(
    keyspace: Option<&sheaf_keyspace>,
    key: sheaf_bytes<'_>,
    durability: i32,
    ticket: Option<&mut MaybeUninit<*mut sheaf_ticket>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let ticket = handle_out(ticket, "ticket")?;
        let durability = chosen_durability(durability)?;
        let submitted = writable(keyspace)?.submit_remove(key.get("key")?, durability)?;
        ticket.write(sheaf_ticket::handle(submitted));
        Ok(())
    })
}

/// Removes all pairs atomically and durably. The cost does not depend on the number of keys.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_clear(
    keyspace: Option<&sheaf_keyspace>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || Ok(writable(keyspace)?.clear()?))
}

/// Removes the pairs with keys from `start` (included; NULL: the first key) to `end` (excluded;
/// NULL: all following keys) in one commit. Needs an ordered engine, unless both are NULL.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_remove_range(
    keyspace: Option<&sheaf_keyspace>,
    start: Option<&sheaf_bytes<'_>>,
    end: Option<&sheaf_bytes<'_>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        match bounds(start, end)? {
            (Bound::Unbounded, Bound::Unbounded) => writable(keyspace)?.remove_range::<&[u8]>(..)?,
            range => writable(keyspace)?.remove_range(range)?,
        }
        Ok(())
    })
}

/// Bounds of a range of keys.
pub(crate) type KeyBounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// Returns the range from `start` to before `end`. NULL has no bound.
pub(crate) fn bounds<'a>(
    start: Option<&sheaf_bytes<'a>>,
    end: Option<&sheaf_bytes<'a>>,
) -> Outcome<KeyBounds<'a>> {
    let start = start.map(|start| start.get("start")).transpose()?;
    let end = end.map(|end| end.get("end")).transpose()?;
    Ok((start.map_or(Bound::Unbounded, Bound::Included), end.map_or(Bound::Unbounded, Bound::Excluded)))
}

/// Sets `key` to `new_value` if its value is `expected`, atomically. NULL for `expected` means that
/// the key does not exist; NULL for `new_value` removes it. Returns `SHEAF_CONFLICT`, and changes
/// nothing, if the key has another value.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_compare_and_swap(
    keyspace: Option<&sheaf_keyspace>,
    key: sheaf_bytes<'_>,
    expected: Option<&sheaf_bytes<'_>>,
    new_value: Option<&sheaf_bytes<'_>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let keyspace = writable(keyspace)?;
        let expected = expected.map(|value| value.get("expected")).transpose()?;
        let new_value = new_value.map(|value| value.get("new_value")).transpose()?;
        let key = key.get("key")?;
        match keyspace.compare_and_swap(key, expected, new_value)? {
            true => Ok(()),
            false => {
                Err(sheaf::Error::conflict(&keyspace.name(), sheaf::ConflictKeys::Key(key.to_vec())).into())
            }
        }
    })
}
