//! # Iterators: a position that moves in both directions
//!
//! Sheaf iterates from both ends of a range. When the direction changes, the handle opens a new
//! range that starts at the present key; this costs as much as a seek.

use std::ffi::{c_char, c_uchar};
use std::ops::Bound;

use sheaf::{Iter, KeyspaceSnapshot};

use crate::database::leveldb_t;
use crate::memory::{Failure, bytes, given, guard, report};
use crate::options::leveldb_readoptions_t;

/// Iterator over the keyspace in one snapshot.
#[derive(Default)]
pub struct leveldb_iterator_t {
    /// `None` if the database cannot be read; then there is an error.
    source: Option<KeyspaceSnapshot>,
    pairs: Option<(Iter, Direction)>,
    pair: Option<Pair>,
    error: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Forward,
    Backward,
}

type Pair = (Vec<u8>, Vec<u8>);

type Range = (Bound<Vec<u8>>, Bound<Vec<u8>>);

impl leveldb_iterator_t {
    /// Opens a range and moves to its first pair in this direction.
    fn start(&mut self, range: Range, direction: Direction) {
        self.pairs = None;
        let Some(source) = &self.source else { return };
        match source.range(range) {
            Ok(pairs) => {
                self.pairs = Some((pairs, direction));
                self.error = None;
                self.step();
            }
            Err(error) => self.fail(error),
        }
    }

    /// Moves by one pair in the direction of the open range.
    fn step(&mut self) {
        let Some((pairs, direction)) = &mut self.pairs else { return };
        let stepped = match direction {
            Direction::Forward => pairs.next(),
            Direction::Backward => pairs.next_back(),
        };
        match stepped {
            Some(Ok((key, value))) => self.pair = Some((key.into(), value.into())),
            Some(Err(error)) => self.fail(error),
            None => self.pair = None,
        }
    }

    /// Moves by one pair. Has no effect without a present pair.
    fn advance(&mut self, direction: Direction) {
        let Some((key, _)) = &self.pair else { return };
        if self.pairs.as_ref().is_some_and(|pairs| pairs.1 == direction) {
            return self.step();
        }
        let key = Bound::Excluded(key.clone());
        let range = match direction {
            Direction::Forward => (key, Bound::Unbounded),
            Direction::Backward => (Bound::Unbounded, key),
        };
        self.start(range, direction);
    }

    fn fail(&mut self, error: sheaf::Error) {
        self.pair = None;
        self.error = Some(Failure::from(error).0);
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_create_iterator(
    db: Option<&leveldb_t>,
    options: Option<&leveldb_readoptions_t>,
) -> Box<leveldb_iterator_t> {
    guard(|| {
        let mut iterator = Box::<leveldb_iterator_t>::default();
        let given = options.and_then(|options| options.snapshot.clone());
        match (given, db) {
            (Some(snapshot), _) => iterator.source = Some(snapshot.0),
            (None, Some(db)) => match db.snapshot() {
                Ok(snapshot) => iterator.source = Some(snapshot),
                Err(error) => iterator.fail(error),
            },
            (None, None) => iterator.error = Some("Invalid argument: db is NULL".to_owned()),
        }
        iterator
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_iter_destroy(iterator: Option<Box<leveldb_iterator_t>>) {
    guard(|| drop(iterator));
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_iter_valid(iterator: Option<&leveldb_iterator_t>) -> c_uchar {
    iterator.is_some_and(|iterator| iterator.pair.is_some()).into()
}

/// Runs a move on an iterator.
fn change(iterator: Option<&mut leveldb_iterator_t>, change: impl FnOnce(&mut leveldb_iterator_t)) {
    guard(|| iterator.map(change).unwrap_or_default());
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_iter_seek_to_first(iterator: Option<&mut leveldb_iterator_t>) {
    change(iterator, |iterator| iterator.start((Bound::Unbounded, Bound::Unbounded), Direction::Forward));
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_iter_seek_to_last(iterator: Option<&mut leveldb_iterator_t>) {
    change(iterator, |iterator| iterator.start((Bound::Unbounded, Bound::Unbounded), Direction::Backward));
}

/// Moves to the first key at or after `key`.
///
/// # Safety
///
/// `key` must have `key_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leveldb_iter_seek(
    iterator: Option<&mut leveldb_iterator_t>,
    key: *const c_char,
    key_size: usize,
) {
    // SAFETY: the caller passes valid bytes.
    let key = unsafe { bytes(key, key_size) }.to_vec();
    change(iterator, |iterator| iterator.start((Bound::Included(key), Bound::Unbounded), Direction::Forward));
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_iter_next(iterator: Option<&mut leveldb_iterator_t>) {
    change(iterator, |iterator| iterator.advance(Direction::Forward));
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_iter_prev(iterator: Option<&mut leveldb_iterator_t>) {
    change(iterator, |iterator| iterator.advance(Direction::Backward));
}

/// Writes the size of `part` of the present pair, and returns its first byte; NULL without a pair.
///
/// # Safety
///
/// `size` must be NULL or valid.
unsafe fn part_of(
    iterator: Option<&leveldb_iterator_t>,
    part: fn(&Pair) -> &Vec<u8>,
    size: *mut usize,
) -> *const c_char {
    let bytes = iterator.and_then(|iterator| iterator.pair.as_ref()).map(part);
    if !size.is_null() {
        // SAFETY: the caller passes a valid pointer.
        unsafe { size.write(bytes.map_or(0, Vec::len)) };
    }
    bytes.map_or(std::ptr::null(), |bytes| bytes.as_ptr().cast())
}

/// Returns the present key, or NULL.
///
/// # Safety
///
/// `size` must be NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leveldb_iter_key(
    iterator: Option<&leveldb_iterator_t>,
    size: *mut usize,
) -> *const c_char {
    // SAFETY: the caller passes NULL or a valid pointer.
    unsafe { part_of(iterator, |pair| &pair.0, size) }
}

/// Returns the present value, or NULL.
///
/// # Safety
///
/// `size` must be NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leveldb_iter_value(
    iterator: Option<&leveldb_iterator_t>,
    size: *mut usize,
) -> *const c_char {
    // SAFETY: the caller passes NULL or a valid pointer.
    unsafe { part_of(iterator, |pair| &pair.1, size) }
}

/// Reports the error of the iterator.
///
/// # Safety
///
/// `errptr` must be valid for `report`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leveldb_iter_get_error(
    iterator: Option<&leveldb_iterator_t>,
    errptr: *mut *mut c_char,
) {
    let error = || match given(iterator, "iterator")?.error.clone() {
        Some(message) => Err(Failure(message)),
        None => Ok(()),
    };
    // SAFETY: the caller passes NULL or a valid pointer.
    let _ = unsafe { report(errptr, error) };
}
