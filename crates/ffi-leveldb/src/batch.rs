//! # Write batches

use std::ffi::{c_char, c_void};

use sheaf::{Batch, Keyspace};

use crate::memory::{bytes, guard};

/// Operations that become one atomic commit.
#[derive(Default)]
pub struct leveldb_writebatch_t {
    operations: Vec<Operation>,
}

#[derive(Clone)]
enum Operation {
    Put { key: Vec<u8>, value: Vec<u8> },
    Delete { key: Vec<u8> },
}

impl leveldb_writebatch_t {
    /// Adds all operations to `batch`.
    pub(crate) fn apply(&self, keyspace: &Keyspace, batch: &mut Batch) {
        for operation in &self.operations {
            match operation {
                Operation::Put { key, value } => batch.insert(keyspace, key, value),
                Operation::Delete { key } => batch.remove(keyspace, key),
            };
        }
    }
}

type PutFn = extern "C" fn(*mut c_void, *const c_char, usize, *const c_char, usize);
type DeleteFn = extern "C" fn(*mut c_void, *const c_char, usize);

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_writebatch_create() -> Box<leveldb_writebatch_t> {
    Box::default()
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_writebatch_destroy(batch: Option<Box<leveldb_writebatch_t>>) {
    drop(batch);
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_writebatch_clear(batch: Option<&mut leveldb_writebatch_t>) {
    if let Some(batch) = batch {
        batch.operations.clear();
    }
}

/// Adds a put.
///
/// # Safety
///
/// `key` and `value` must have `key_size` and `value_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leveldb_writebatch_put(
    batch: Option<&mut leveldb_writebatch_t>,
    key: *const c_char,
    key_size: usize,
    value: *const c_char,
    value_size: usize,
) {
    // SAFETY: the caller passes valid bytes.
    let (key, value) = unsafe { (bytes(key, key_size).to_vec(), bytes(value, value_size).to_vec()) };
    if let Some(batch) = batch {
        batch.operations.push(Operation::Put { key, value });
    }
}

/// Adds a removal.
///
/// # Safety
///
/// `key` must have `key_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leveldb_writebatch_delete(
    batch: Option<&mut leveldb_writebatch_t>,
    key: *const c_char,
    key_size: usize,
) {
    // SAFETY: the caller passes valid bytes.
    let key = unsafe { bytes(key, key_size) }.to_vec();
    if let Some(batch) = batch {
        batch.operations.push(Operation::Delete { key });
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_writebatch_iterate(
    batch: Option<&leveldb_writebatch_t>,
    state: *mut c_void,
    put: Option<PutFn>,
    deleted: Option<DeleteFn>,
) {
    for operation in batch.map(|batch| &batch.operations[..]).unwrap_or_default() {
        match (operation, put, deleted) {
            (Operation::Put { key, value }, Some(put), _) => {
                put(state, key.as_ptr().cast(), key.len(), value.as_ptr().cast(), value.len());
            }
            (Operation::Delete { key }, _, Some(deleted)) => {
                deleted(state, key.as_ptr().cast(), key.len());
            }
            _ => {}
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_writebatch_append(
    destination: Option<&mut leveldb_writebatch_t>,
    source: Option<&leveldb_writebatch_t>,
) {
    guard(|| {
        if let (Some(destination), Some(source)) = (destination, source) {
            destination.operations.extend(source.operations.iter().cloned());
        }
    });
}
