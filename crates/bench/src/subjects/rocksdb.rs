//! # RocksDB, through the C interface of the system's library
//!
//! `apt-get install librocksdb-dev`. The settings are bloom filters of 10 bits, a block cache of
//! the memory budget, a hash index in data blocks, and 64 MiB write buffers. Compression is off,
//! and the write-ahead log is on. All others are the defaults of RocksDB. Gets are pinned, without
//! a copy. A buffered put hands the log to the kernel, and the bench syncs it every 100 ms. With
//! `blobs`, values of at least 512 bytes are stored in blob files with garbage collection.
//!
//! The declarations are written for this project, from `rocksdb/c.h` of 7.8; the C interface is
//! stable.

use std::ffi::{c_char, c_int, c_void};
use std::path::Path;

use super::c_api::{CErrorText, CObject, CStore, NO_COMPRESSION, calls, write_buffer};
use super::{StoreSetting, read_value};
use crate::Result;

calls! {
    "rocksdb", CALLS, get: get, sync: sync,
    close = rocksdb_close (CObject);
    put = rocksdb_put (CObject, CObject, *const u8, usize, *const u8, usize, *mut CErrorText);
    delete = rocksdb_delete (CObject, CObject, *const u8, usize, *mut CErrorText);
    compact_range = rocksdb_compact_range (CObject, *const u8, usize, *const u8, usize);
    create_iterator = rocksdb_create_iterator (CObject, CObject) -> CObject;
    iter_destroy = rocksdb_iter_destroy (CObject);
    iter_valid = rocksdb_iter_valid (CObject) -> u8;
    iter_seek_to_first = rocksdb_iter_seek_to_first (CObject);
    iter_seek_to_last = rocksdb_iter_seek_to_last (CObject);
    iter_seek = rocksdb_iter_seek (CObject, *const u8, usize);
    iter_next = rocksdb_iter_next (CObject);
    iter_prev = rocksdb_iter_prev (CObject);
    iter_key = rocksdb_iter_key (CObject, *mut usize) -> *const u8;
    iter_value = rocksdb_iter_value (CObject, *mut usize) -> *const u8;
    iter_get_error = rocksdb_iter_get_error (CObject, *mut CErrorText);
    free = rocksdb_free (*mut c_void);
    readoptions_create = rocksdb_readoptions_create () -> CObject;
    readoptions_destroy = rocksdb_readoptions_destroy (CObject);
    writeoptions_create = rocksdb_writeoptions_create () -> CObject;
    writeoptions_destroy = rocksdb_writeoptions_destroy (CObject);
    writeoptions_set_sync = rocksdb_writeoptions_set_sync (CObject, u8);
}

// SAFETY: the signatures are those of the header `rocksdb/c.h`.
unsafe extern "C" {
    fn rocksdb_options_create() -> CObject;
    fn rocksdb_options_destroy(options: CObject);
    fn rocksdb_options_set_create_if_missing(options: CObject, yes: u8);
    fn rocksdb_options_set_write_buffer_size(options: CObject, bytes: usize);
    fn rocksdb_options_set_compression(options: CObject, kind: c_int);
    fn rocksdb_options_set_block_based_table_factory(options: CObject, table: CObject);
    fn rocksdb_options_set_enable_blob_files(options: CObject, yes: u8);
    fn rocksdb_options_set_min_blob_size(options: CObject, bytes: u64);
    fn rocksdb_options_set_enable_blob_gc(options: CObject, yes: u8);
    fn rocksdb_block_based_options_create() -> CObject;
    fn rocksdb_block_based_options_destroy(table: CObject);
    fn rocksdb_block_based_options_set_filter_policy(table: CObject, policy: CObject);
    fn rocksdb_block_based_options_set_block_cache(table: CObject, cache: CObject);
    fn rocksdb_block_based_options_set_data_block_index_type(table: CObject, kind: c_int);
    fn rocksdb_filterpolicy_create_bloom_full(bits_per_key: f64) -> CObject;
    fn rocksdb_cache_create_lru(bytes: usize) -> CObject;
    fn rocksdb_cache_destroy(cache: CObject);
    fn rocksdb_open(options: CObject, path: *const c_char, error: *mut CErrorText) -> CObject;
    fn rocksdb_get_pinned(
        db: CObject,
        options: CObject,
        key: *const u8,
        key_len: usize,
        error: *mut CErrorText,
    ) -> CObject;
    fn rocksdb_pinnableslice_value(slice: CObject, len: *mut usize) -> *const u8;
    fn rocksdb_pinnableslice_destroy(slice: CObject);
    fn rocksdb_flush_wal(db: CObject, sync: u8, error: *mut CErrorText);
}

const BINARY_SEARCH_AND_HASH: c_int = 1;
const MIN_BLOB: u64 = 512;

pub(super) fn open(dir: &Path, setting: StoreSetting, blobs: bool) -> Result<CStore> {
    let cache_bytes = usize::try_from(setting.memory)?;
    // SAFETY: each object is created by its own call, used while it is alive, and destroyed once.
    // The table takes over the filter policy, and the database has its own references to the
    // others.
    unsafe {
        let cache = rocksdb_cache_create_lru(cache_bytes);
        let table = rocksdb_block_based_options_create();
        rocksdb_block_based_options_set_block_cache(table, cache);
        rocksdb_block_based_options_set_filter_policy(table, rocksdb_filterpolicy_create_bloom_full(10.0));
        rocksdb_block_based_options_set_data_block_index_type(table, BINARY_SEARCH_AND_HASH);
        let options = rocksdb_options_create();
        rocksdb_options_set_create_if_missing(options, 1);
        rocksdb_options_set_write_buffer_size(options, write_buffer(cache_bytes));
        rocksdb_options_set_compression(options, NO_COMPRESSION);
        rocksdb_options_set_block_based_table_factory(options, table);
        if blobs {
            rocksdb_options_set_enable_blob_files(options, 1);
            rocksdb_options_set_min_blob_size(options, MIN_BLOB);
            rocksdb_options_set_enable_blob_gc(options, 1);
        }
        let kept: Vec<(CObject, unsafe extern "C" fn(CObject))> = vec![(cache, rocksdb_cache_destroy)];
        let store =
            CStore::open(&CALLS, dir, setting, kept, |path, error| rocksdb_open(options, path, error));
        rocksdb_options_destroy(options);
        rocksdb_block_based_options_destroy(table);
        store
    }
}

/// Reads a value by a pin, without a copy.
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
    // SAFETY: the caller provides valid objects and a valid key. The value is read before its pin
    // is destroyed.
    unsafe {
        let slice = rocksdb_get_pinned(db, read, key, key_len, error);
        if slice.is_null() {
            return None;
        }
        let mut len = 0;
        let value = rocksdb_pinnableslice_value(slice, &mut len);
        let seen = read_value(std::slice::from_raw_parts(value, len));
        rocksdb_pinnableslice_destroy(slice);
        Some(seen)
    }
}

/// Syncs the log to the device.
///
/// # Safety
///
/// * As for the calls of [`CApi`](super::c_api::CApi).
unsafe fn sync(db: CObject, _write_synced: CObject, error: *mut CErrorText) {
    // SAFETY: the caller provides valid objects.
    unsafe { rocksdb_flush_wal(db, 1, error) };
}
