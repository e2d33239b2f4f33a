//! # LevelDB, through the C interface of the system's library
//!
//! `apt-get install libleveldb-dev`. The settings are bloom filters of 10 bits, a block cache of
//! the memory budget, a 64 MiB write buffer, and no compression. All others are the defaults of
//! LevelDB. A buffered put hands the log to the kernel. LevelDB has no call that syncs the log, so
//! that the bench writes an empty batch with `sync` every 100 ms.
//!
//! The declarations are written for this project, from `leveldb/c.h` of 1.23.

use std::ffi::{c_char, c_int, c_void};
use std::path::Path;

use super::c_api::{CErrorText, CObject, CStore, NO_COMPRESSION, calls, write_buffer};
use super::{StoreSetting, read_value};
use crate::Result;

calls! {
    "leveldb", CALLS, get: get, sync: sync,
    close = leveldb_close (CObject);
    put = leveldb_put (CObject, CObject, *const u8, usize, *const u8, usize, *mut CErrorText);
    delete = leveldb_delete (CObject, CObject, *const u8, usize, *mut CErrorText);
    compact_range = leveldb_compact_range (CObject, *const u8, usize, *const u8, usize);
    create_iterator = leveldb_create_iterator (CObject, CObject) -> CObject;
    iter_destroy = leveldb_iter_destroy (CObject);
    iter_valid = leveldb_iter_valid (CObject) -> u8;
    iter_seek_to_first = leveldb_iter_seek_to_first (CObject);
    iter_seek_to_last = leveldb_iter_seek_to_last (CObject);
    iter_seek = leveldb_iter_seek (CObject, *const u8, usize);
    iter_next = leveldb_iter_next (CObject);
    iter_prev = leveldb_iter_prev (CObject);
    iter_key = leveldb_iter_key (CObject, *mut usize) -> *const u8;
    iter_value = leveldb_iter_value (CObject, *mut usize) -> *const u8;
    iter_get_error = leveldb_iter_get_error (CObject, *mut CErrorText);
    free = leveldb_free (*mut c_void);
    readoptions_create = leveldb_readoptions_create () -> CObject;
    readoptions_destroy = leveldb_readoptions_destroy (CObject);
    writeoptions_create = leveldb_writeoptions_create () -> CObject;
    writeoptions_destroy = leveldb_writeoptions_destroy (CObject);
    writeoptions_set_sync = leveldb_writeoptions_set_sync (CObject, u8);
}

// SAFETY: the signatures are those of the header `leveldb/c.h`.
unsafe extern "C" {
    fn leveldb_options_create() -> CObject;
    fn leveldb_options_destroy(options: CObject);
    fn leveldb_options_set_create_if_missing(options: CObject, yes: u8);
    fn leveldb_options_set_write_buffer_size(options: CObject, bytes: usize);
    fn leveldb_options_set_compression(options: CObject, kind: c_int);
    fn leveldb_options_set_cache(options: CObject, cache: CObject);
    fn leveldb_options_set_filter_policy(options: CObject, policy: CObject);
    fn leveldb_filterpolicy_create_bloom(bits_per_key: c_int) -> CObject;
    fn leveldb_filterpolicy_destroy(policy: CObject);
    fn leveldb_cache_create_lru(bytes: usize) -> CObject;
    fn leveldb_cache_destroy(cache: CObject);
    fn leveldb_writebatch_create() -> CObject;
    fn leveldb_writebatch_destroy(batch: CObject);
    fn leveldb_open(options: CObject, path: *const c_char, error: *mut CErrorText) -> CObject;
    fn leveldb_write(db: CObject, options: CObject, batch: CObject, error: *mut CErrorText);
    fn leveldb_get(
        db: CObject,
        options: CObject,
        key: *const u8,
        key_len: usize,
        value_len: *mut usize,
        error: *mut CErrorText,
    ) -> *mut u8;
}

pub(super) fn open(dir: &Path, setting: StoreSetting) -> Result<CStore> {
    let cache_bytes = usize::try_from(setting.memory)?;
    // SAFETY: each object is created by its own call. Cache and filter outlive the database, and
    // the options are not used after the opening.
    unsafe {
        let cache = leveldb_cache_create_lru(cache_bytes);
        let filter = leveldb_filterpolicy_create_bloom(10);
        let options = leveldb_options_create();
        leveldb_options_set_create_if_missing(options, 1);
        leveldb_options_set_write_buffer_size(options, write_buffer(cache_bytes));
        leveldb_options_set_compression(options, NO_COMPRESSION);
        leveldb_options_set_cache(options, cache);
        leveldb_options_set_filter_policy(options, filter);
        let kept: Vec<(CObject, unsafe extern "C" fn(CObject))> =
            vec![(cache, leveldb_cache_destroy), (filter, leveldb_filterpolicy_destroy)];
        let store =
            CStore::open(&CALLS, dir, setting, kept, |path, error| leveldb_open(options, path, error));
        leveldb_options_destroy(options);
        store
    }
}

/// Reads a value. The library has only a call that copies it into an allocation.
///
/// # Safety
///
/// * As for the calls of [`CApi`](super::c_api::CApi); `key` must have `key_len` bytes.
unsafe fn get(
    db: CObject,
    read: CObject,
    key: *const u8,
    key_len: usize,
    error: *mut CErrorText,
) -> Option<u64> {
    let mut len = 0;
    // SAFETY: the caller provides valid objects and a valid key. The value is an allocation of
    // `len` bytes, and it is freed after the read.
    unsafe {
        let value = leveldb_get(db, read, key, key_len, &mut len, error);
        if value.is_null() {
            return None;
        }
        let seen = read_value(std::slice::from_raw_parts(value, len));
        leveldb_free(value.cast());
        Some(seen)
    }
}

/// Syncs the log to the device.
///
/// # Safety
///
/// * As for the calls of [`CApi`](super::c_api::CApi).
unsafe fn sync(db: CObject, write_synced: CObject, error: *mut CErrorText) {
    // SAFETY: the caller provides valid objects. The batch is created and destroyed here.
    unsafe {
        let batch = leveldb_writebatch_create();
        leveldb_write(db, write_synced, batch, error);
        leveldb_writebatch_destroy(batch);
    }
}
