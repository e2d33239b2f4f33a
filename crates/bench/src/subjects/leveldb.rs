//! # LevelDB, through the C interface of the system's library
//!
//! `apt-get install libleveldb-dev`. Bloom filters of 10 bits, block cache of the memory budget, 64 MiB write
//! buffer, no compression; else LevelDB's defaults. Buffered: the log is handed to the kernel at each put;
//! LevelDB has no call to sync it, so that every 100 ms an empty batch is written with `sync`.
//!
//! The declarations are ours, after `leveldb/c.h` of 1.23.

use std::ffi::{c_char, c_int, c_void};
use std::path::Path;

use super::c_shape::{CStore, ErrorText, NO_COMPRESSION, Object, calls, write_buffer};
use super::{Setting, look};
use crate::Result;

calls! {
    "leveldb", CALLS, get: get, sync: sync,
    close = leveldb_close (Object);
    put = leveldb_put (Object, Object, *const u8, usize, *const u8, usize, *mut ErrorText);
    delete = leveldb_delete (Object, Object, *const u8, usize, *mut ErrorText);
    compact_range = leveldb_compact_range (Object, *const u8, usize, *const u8, usize);
    create_iterator = leveldb_create_iterator (Object, Object) -> Object;
    iter_destroy = leveldb_iter_destroy (Object);
    iter_valid = leveldb_iter_valid (Object) -> u8;
    iter_seek_to_first = leveldb_iter_seek_to_first (Object);
    iter_seek_to_last = leveldb_iter_seek_to_last (Object);
    iter_seek = leveldb_iter_seek (Object, *const u8, usize);
    iter_next = leveldb_iter_next (Object);
    iter_prev = leveldb_iter_prev (Object);
    iter_key = leveldb_iter_key (Object, *mut usize) -> *const u8;
    iter_value = leveldb_iter_value (Object, *mut usize) -> *const u8;
    iter_get_error = leveldb_iter_get_error (Object, *mut ErrorText);
    free = leveldb_free (*mut c_void);
    readoptions_create = leveldb_readoptions_create () -> Object;
    readoptions_destroy = leveldb_readoptions_destroy (Object);
    writeoptions_create = leveldb_writeoptions_create () -> Object;
    writeoptions_destroy = leveldb_writeoptions_destroy (Object);
    writeoptions_set_sync = leveldb_writeoptions_set_sync (Object, u8);
}

unsafe extern "C" {
    fn leveldb_options_create() -> Object;
    fn leveldb_options_destroy(options: Object);
    fn leveldb_options_set_create_if_missing(options: Object, yes: u8);
    fn leveldb_options_set_write_buffer_size(options: Object, bytes: usize);
    fn leveldb_options_set_compression(options: Object, kind: c_int);
    fn leveldb_options_set_cache(options: Object, cache: Object);
    fn leveldb_options_set_filter_policy(options: Object, policy: Object);
    fn leveldb_filterpolicy_create_bloom(bits_per_key: c_int) -> Object;
    fn leveldb_filterpolicy_destroy(policy: Object);
    fn leveldb_cache_create_lru(bytes: usize) -> Object;
    fn leveldb_cache_destroy(cache: Object);
    fn leveldb_writebatch_create() -> Object;
    fn leveldb_writebatch_destroy(batch: Object);
    fn leveldb_open(options: Object, path: *const c_char, error: *mut ErrorText) -> Object;
    fn leveldb_write(db: Object, options: Object, batch: Object, error: *mut ErrorText);
    fn leveldb_get(
        db: Object,
        options: Object,
        key: *const u8,
        key_len: usize,
        value_len: *mut usize,
        error: *mut ErrorText,
    ) -> *mut u8;
}

pub(super) fn open(dir: &Path, setting: Setting) -> Result<CStore> {
    let cache_bytes = usize::try_from(setting.memory)?;
    // SAFETY: each object is made by its own create call; cache and filter outlive the database, the
    // options do not need to.
    unsafe {
        let cache = leveldb_cache_create_lru(cache_bytes);
        let filter = leveldb_filterpolicy_create_bloom(10);
        let options = leveldb_options_create();
        leveldb_options_set_create_if_missing(options, 1);
        leveldb_options_set_write_buffer_size(options, write_buffer(cache_bytes));
        leveldb_options_set_compression(options, NO_COMPRESSION);
        leveldb_options_set_cache(options, cache);
        leveldb_options_set_filter_policy(options, filter);
        let kept: Vec<(Object, unsafe extern "C" fn(Object))> =
            vec![(cache, leveldb_cache_destroy), (filter, leveldb_filterpolicy_destroy)];
        let store =
            CStore::open(&CALLS, dir, setting, kept, |path, error| leveldb_open(options, path, error));
        leveldb_options_destroy(options);
        store
    }
}

/// Copies the value into an allocation: the only call there is.
unsafe fn get(
    db: Object,
    read: Object,
    key: *const u8,
    key_len: usize,
    error: *mut ErrorText,
) -> Option<u64> {
    let mut len = 0;
    // SAFETY: the caller's objects and key; the value is an allocation of `len` bytes, freed after it was
    // read.
    unsafe {
        let value = leveldb_get(db, read, key, key_len, &mut len, error);
        if value.is_null() {
            return None;
        }
        let seen = look(std::slice::from_raw_parts(value, len));
        leveldb_free(value.cast());
        Some(seen)
    }
}

unsafe fn sync(db: Object, write_synced: Object, error: *mut ErrorText) {
    // SAFETY: the caller's objects; the batch is created and destroyed here.
    unsafe {
        let batch = leveldb_writebatch_create();
        leveldb_write(db, write_synced, batch, error);
        leveldb_writebatch_destroy(batch);
    }
}
