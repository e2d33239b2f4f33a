//! # Iterators: pairs of a keyspace in one snapshot, from both ends
//!
//! The handle copies each pair into two buffers that it reuses, so that C gets pointers which stay
//! valid until the next call.

use std::mem::MaybeUninit;
use std::ops::Bound;

use sheaf::{Iter, Keys, TransactionIter};

use crate::boundary::code::sheaf_code;
use crate::boundary::error::sheaf_error;
use crate::boundary::memory::{handle_out, sheaf_bytes};
use crate::boundary::{self, Exclusive, Failure, Outcome, call, found, given};
use crate::keyspace::{Source, readable, sheaf_keyspace};
use crate::write::bounds;

/// Iterator over the pairs or the keys of a keyspace.
pub struct sheaf_iter(Exclusive<Cursor>);

struct Cursor {
    items: Items,
    key: Vec<u8>,
    value: Vec<u8>,
}

enum Items {
    Pairs(Box<Iter>),
    Keys(Box<Keys>),
    Transaction(Box<TransactionIter>),
}

impl sheaf_iter {
    pub(crate) fn of_transaction(pairs: TransactionIter) -> *mut sheaf_iter {
        new_handle(Items::Transaction(Box::new(pairs)))
    }
}

fn new_handle(items: Items) -> *mut sheaf_iter {
    let cursor = Cursor { items, key: Vec::new(), value: Vec::new() };
    Box::into_raw(Box::new(sheaf_iter(Exclusive::new(cursor))))
}

fn set(buffer: &mut Vec<u8>, bytes: &[u8]) {
    buffer.clear();
    buffer.extend_from_slice(bytes);
}

impl Cursor {
    /// Moves one pair from one end to the buffers.
    fn step(&mut self, is_forward: bool) -> Outcome<()> {
        let Cursor { items, key, value } = self;
        let mut copy = |k: &[u8], v: &[u8]| {
            set(key, k);
            set(value, v);
        };
        let stepped = match (items, is_forward) {
            (Items::Pairs(pairs), true) => pairs.next_with(copy),
            (Items::Pairs(pairs), false) => pairs.next_back_with(copy),
            (Items::Keys(keys), true) => keys.next().map(|key| key.map(|key| copy(&key, &[]))),
            (Items::Keys(keys), false) => keys.next_back().map(|key| key.map(|key| copy(&key, &[]))),
            (Items::Transaction(pairs), true) => pairs.next().map(|pair| pair.map(|(k, v)| copy(&k, &v))),
            (Items::Transaction(pairs), false) => {
                pairs.next_back().map(|pair| pair.map(|(k, v)| copy(&k, &v)))
            }
        };
        found(stepped)?.map_err(Failure::from)
    }

    fn pairs(&mut self) -> Outcome<&mut Iter> {
        match &mut self.items {
            Items::Pairs(pairs) => Ok(pairs),
            Items::Keys(_) => Err(boundary::invalid("iter", "an iterator over keys cannot seek")),
            Items::Transaction(_) => {
                Err(boundary::invalid("iter", "an iterator of a transaction cannot seek"))
            }
        }
    }
}

/// Creates an iterator over the pairs with keys from `start` (included; NULL: the first key) to
/// `end` (excluded; NULL: all following keys), in key order. It shows the state at the call. Needs
/// an ordered engine, unless both are NULL; an unordered engine returns the pairs in any order.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_range(
    keyspace: Option<&sheaf_keyspace>,
    start: Option<&sheaf_bytes<'_>>,
    end: Option<&sheaf_bytes<'_>>,
    iter: Option<&mut MaybeUninit<*mut sheaf_iter>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let iter = handle_out(iter, "iter")?;
        let pairs = match (readable(keyspace)?, bounds(start, end)?) {
            (Source::Live(keyspace), (Bound::Unbounded, Bound::Unbounded)) => keyspace.iter()?,
            (Source::Live(keyspace), range) => keyspace.range(range)?,
            (Source::Snapshot(keyspace), (Bound::Unbounded, Bound::Unbounded)) => keyspace.iter()?,
            (Source::Snapshot(keyspace), range) => keyspace.range(range)?,
        };
        iter.write(new_handle(Items::Pairs(Box::new(pairs))));
        Ok(())
    })
}

/// Creates an iterator over the pairs with keys that start with `prefix`, like `sheaf_range`.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_prefix(
    keyspace: Option<&sheaf_keyspace>,
    prefix: sheaf_bytes<'_>,
    iter: Option<&mut MaybeUninit<*mut sheaf_iter>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let iter = handle_out(iter, "iter")?;
        let pairs = match readable(keyspace)? {
            Source::Live(keyspace) => keyspace.prefix(prefix.get("prefix")?)?,
            Source::Snapshot(keyspace) => keyspace.prefix(prefix.get("prefix")?)?,
        };
        iter.write(new_handle(Items::Pairs(Box::new(pairs))));
        Ok(())
    })
}

/// Creates an iterator over all keys. Its values are empty, and it cannot seek. Does not read
/// values that the engine stores apart from the keys.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_keys(
    keyspace: Option<&sheaf_keyspace>,
    iter: Option<&mut MaybeUninit<*mut sheaf_iter>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let iter = handle_out(iter, "iter")?;
        let keys = match readable(keyspace)? {
            Source::Live(keyspace) => keyspace.keys()?,
            Source::Snapshot(keyspace) => keyspace.keys()?,
        };
        iter.write(new_handle(Items::Keys(Box::new(keys))));
        Ok(())
    })
}

/// Moves to the next pair and writes it to `key` and `value` (each may be NULL). The bytes are
/// valid until the next call with this iterator. Returns `SHEAF_NOT_FOUND` at the end. After
/// `SHEAF_CORRUPT` the next call continues after the damage; after any other error the iterator
/// ends.
///
/// Threads: one at a time for each iterator; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_iter_next<'a>(
    iter: Option<&'a sheaf_iter>,
    key: Option<&mut MaybeUninit<sheaf_bytes<'a>>>,
    value: Option<&mut MaybeUninit<sheaf_bytes<'a>>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || advance(iter, true, key, value))
}

/// Moves to the next pair from the end, in descending key order. Otherwise like `sheaf_iter_next`.
/// Both ends may be used; each pair is returned once. Needs an ordered engine.
///
/// Threads: one at a time for each iterator; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_iter_next_back<'a>(
    iter: Option<&'a sheaf_iter>,
    key: Option<&mut MaybeUninit<sheaf_bytes<'a>>>,
    value: Option<&mut MaybeUninit<sheaf_bytes<'a>>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || advance(iter, false, key, value))
}

fn advance<'a>(
    iter: Option<&'a sheaf_iter>,
    is_forward: bool,
    key: Option<&mut MaybeUninit<sheaf_bytes<'a>>>,
    value: Option<&mut MaybeUninit<sheaf_bytes<'a>>>,
) -> Outcome<()> {
    let key = key.map(|key| key.write(sheaf_bytes::empty()));
    let value = value.map(|value| value.write(sheaf_bytes::empty()));
    let mut cursor = given(iter, "iter")?.0.lock("iterator")?;
    cursor.step(is_forward)?;
    if let Some(key) = key {
        *key = sheaf_bytes::lent(&cursor.key);
    }
    if let Some(value) = value {
        *value = sheaf_bytes::lent(&cursor.value);
    }
    Ok(())
}

/// Moves the front to the first key at or above `key`, within the range of the iterator. Pairs that
/// were taken from the back are not returned again. Needs an ordered engine.
///
/// Threads: one at a time for each iterator; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_iter_seek(
    iter: Option<&sheaf_iter>,
    key: sheaf_bytes<'_>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || Ok(given(iter, "iter")?.0.lock("iterator")?.pairs()?.seek(key.get("key")?)?))
}

/// Moves the back to the last key at or below `key`, within the range of the iterator. Otherwise
/// like `sheaf_iter_seek`.
///
/// Threads: one at a time for each iterator; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_iter_seek_back(
    iter: Option<&sheaf_iter>,
    key: sheaf_bytes<'_>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || Ok(given(iter, "iter")?.0.lock("iterator")?.pairs()?.seek_back(key.get("key")?)?))
}

/// Frees an iterator. Disk space of data that was overwritten since its creation is reclaimed after
/// that. NULL is allowed.
///
/// Threads: any. No other call may use the iterator.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_iter_free(iter: Option<Box<sheaf_iter>>) {
    boundary::release(iter);
}
