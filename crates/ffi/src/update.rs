//! # Updates: writes that depend on the present value

use std::ffi::c_void;
use std::mem::MaybeUninit;

use sheaf::{ConflictKeys, Error};

use crate::batch::sheaf_ticket;
use crate::boundary::callback::{decide, sheaf_change_fn};
use crate::boundary::code::sheaf_code;
use crate::boundary::error::sheaf_error;
use crate::boundary::memory::{handle_out, sheaf_bytes, sheaf_value};
use crate::boundary::{Outcome, call, found, given};
use crate::keyspace::{sheaf_keyspace, writable};
use crate::options::chosen_durability;
use crate::read::write_pair;

/// Sets `key` to `value` if the key does not exist, atomically. Otherwise returns `SHEAF_CONFLICT`,
/// writes nothing, and writes the present value to `present` (may be NULL).
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_insert_if_absent(
    keyspace: Option<&sheaf_keyspace>,
    key: sheaf_bytes<'_>,
    value: sheaf_bytes<'_>,
    present: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let present = present.map(|present| present.write(std::ptr::null_mut()));
        let (keyspace, key) = (writable(keyspace)?, key.get("key")?);
        let old = keyspace.insert_if_absent(key, value.get("value")?)?;
        let Some(old) = old else { return Ok(()) };
        if let Some(present) = present {
            *present = sheaf_value::handle(old);
        }
        Err(Error::conflict(&keyspace.name(), ConflictKeys::Key(key.to_vec())).into())
    })
}

/// Replaces the value of `key` by the value that `change` decides, atomically. Writes the new value
/// to `new_value` (may be NULL); it is NULL if the key was removed. If another thread changes the
/// key in between, `change` is called again. No lock is held while it runs.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_update(
    keyspace: Option<&sheaf_keyspace>,
    key: sheaf_bytes<'_>,
    change: sheaf_change_fn,
    context: *mut c_void,
    new_value: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let new_value = new_value.map(|value| value.write(std::ptr::null_mut()));
        given(change, "change")?;
        let new = change_value(keyspace, key.get("key")?, change, context)?;
        if let (Some(place), Some(new)) = (new_value, new) {
            *place = sheaf_value::handle(new);
        }
        Ok(())
    })
}

/// Reads, decides and swaps until the key did not change in between. `Keyspace::update` has no way
/// to end without a write, which a callback may want.
fn change_value(
    keyspace: Option<&sheaf_keyspace>,
    key: &[u8],
    change: sheaf_change_fn,
    context: *mut c_void,
) -> Outcome<Option<Vec<u8>>> {
    let keyspace = writable(keyspace)?;
    loop {
        let old = keyspace.get(key)?;
        let new = decide(change, context, old.as_ref())?;
        if keyspace.compare_and_swap(key, old.as_deref(), new.as_deref())? {
            return Ok(new);
        }
    }
}

/// Lets the merge operator of the keyspace compute the value of `key` from its present value and
/// `operand`, atomically. Merges of one key by several threads share commits. Returns
/// `SHEAF_INVALID_ARGUMENT` and writes nothing if the operator refuses the operand, or if the
/// keyspace has no operator (`sheaf_keyspace_options_set_merge_operator`).
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_merge(
    keyspace: Option<&sheaf_keyspace>,
    key: sheaf_bytes<'_>,
    operand: sheaf_bytes<'_>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || Ok(writable(keyspace)?.merge(key.get("key")?, operand.get("operand")?)?))
}

/// Merges like `sheaf_merge` without waiting for the device, and returns a ticket that waits for
/// `durability` (`SHEAF_DURABILITY_BUFFER` or `SHEAF_DURABILITY_SYNC`).
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_submit_merge(
    keyspace: Option<&sheaf_keyspace>,
    key: sheaf_bytes<'_>,
    operand: sheaf_bytes<'_>,
    durability: i32,
    ticket: Option<&mut MaybeUninit<*mut sheaf_ticket>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let ticket = handle_out(ticket, "ticket")?;
        let durability = chosen_durability(durability)?;
        let keyspace = writable(keyspace)?;
        let submitted = keyspace.submit_merge(key.get("key")?, operand.get("operand")?, durability)?;
        ticket.write(sheaf_ticket::handle(submitted));
        Ok(())
    })
}

/// Removes the pair with the lowest key and returns it. Returns `SHEAF_NOT_FOUND` if there are no
/// keys. Each pair is returned to one caller only. Needs an ordered engine. One of `key` and
/// `value` may be NULL.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_pop_first(
    keyspace: Option<&sheaf_keyspace>,
    key: Option<&mut MaybeUninit<*mut sheaf_value>>,
    value: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || write_pair(key, value, || found(writable(keyspace)?.pop_first()?)))
}

/// Removes the pair with the highest key and returns it, like `sheaf_pop_first`.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_pop_last(
    keyspace: Option<&sheaf_keyspace>,
    key: Option<&mut MaybeUninit<*mut sheaf_value>>,
    value: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || write_pair(key, value, || found(writable(keyspace)?.pop_last()?)))
}
