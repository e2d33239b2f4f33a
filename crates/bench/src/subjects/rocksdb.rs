//! # RocksDB, through the C interface of the system's library
//!
//! `apt-get install librocksdb-dev`. Bloom filters of 10 bits, block cache of the memory budget, hash index in
//! data blocks, 64 MiB write buffers, no compression, write-ahead log on; else RocksDB's defaults. Gets are
//! pinned: no copy. Buffered: the log is handed to the kernel at each put, and synced every 100 ms. With
//! `blobs`, values of 512 bytes and more go to blob files, which are garbage-collected.
//!
//! The declarations are ours, after `rocksdb/c.h` of 7.8; the C interface is stable.

use std::ffi::{c_char, c_int, c_void};
use std::path::Path;

use super::c_shape::{CStore, ErrorText, NO_COMPRESSION, Object, calls, write_buffer};
use super::{Setting, look};
use crate::Result;

calls! {
    "rocksdb", CALLS, get: get, sync: sync,
    close = rocksdb_close (Object);
    put = rocksdb_put (Object, Object, *const u8, usize, *const u8, usize, *mut ErrorText);
    delete = rocksdb_delete (Object, Object, *const u8, usize, *mut ErrorText);
    compact_range = rocksdb_compact_range (Object, *const u8, usize, *const u8, usize);
    create_iterator = rocksdb_create_iterator (Object, Object) -> Object;
    iter_destroy = rocksdb_iter_destroy (Object);
    iter_valid = rocksdb_iter_valid (Object) -> u8;
    iter_seek_to_first = rocksdb_iter_seek_to_first (Object);
    iter_seek_to_last = rocksdb_iter_seek_to_last (Object);
    iter_seek = rocksdb_iter_seek (Object, *const u8, usize);
    iter_next = rocksdb_iter_next (Object);
    iter_prev = rocksdb_iter_prev (Object);
    iter_key = rocksdb_iter_key (Object, *mut usize) -> *const u8;
    iter_value = rocksdb_iter_value (Object, *mut usize) -> *const u8;
    iter_get_error = rocksdb_iter_get_error (Object, *mut ErrorText);
    free = rocksdb_free (*mut c_void);
    readoptions_create = rocksdb_readoptions_create () -> Object;
    readoptions_destroy = rocksdb_readoptions_destroy (Object);
    writeoptions_create = rocksdb_writeoptions_create () -> Object;
    writeoptions_destroy = rocksdb_writeoptions_destroy (Object);
    writeoptions_set_sync = rocksdb_writeoptions_set_sync (Object, u8);
}

unsafe extern "C" {
    fn rocksdb_options_create() -> Object;
    fn rocksdb_options_destroy(options: Object);
    fn rocksdb_options_set_create_if_missing(options: Object, yes: u8);
    fn rocksdb_options_set_write_buffer_size(options: Object, bytes: usize);
    fn rocksdb_options_set_compression(options: Object, kind: c_int);
    fn rocksdb_options_set_block_based_table_factory(options: Object, table: Object);
    fn rocksdb_options_set_enable_blob_files(options: Object, yes: u8);
    fn rocksdb_options_set_min_blob_size(options: Object, bytes: u64);
    fn rocksdb_options_set_enable_blob_gc(options: Object, yes: u8);
    fn rocksdb_block_based_options_create() -> Object;
    fn rocksdb_block_based_options_destroy(table: Object);
    fn rocksdb_block_based_options_set_filter_policy(table: Object, policy: Object);
    fn rocksdb_block_based_options_set_block_cache(table: Object, cache: Object);
    fn rocksdb_block_based_options_set_data_block_index_type(table: Object, kind: c_int);
    fn rocksdb_filterpolicy_create_bloom_full(bits_per_key: f64) -> Object;
    fn rocksdb_cache_create_lru(bytes: usize) -> Object;
    fn rocksdb_cache_destroy(cache: Object);
    fn rocksdb_open(options: Object, path: *const c_char, error: *mut ErrorText) -> Object;
    fn rocksdb_get_pinned(
        db: Object,
        options: Object,
        key: *const u8,
        key_len: usize,
        error: *mut ErrorText,
    ) -> Object;
    fn rocksdb_pinnableslice_value(slice: Object, len: *mut usize) -> *const u8;
    fn rocksdb_pinnableslice_destroy(slice: Object);
    fn rocksdb_flush_wal(db: Object, sync: u8, error: *mut ErrorText);
}

const BINARY_SEARCH_AND_HASH: c_int = 1;
const MIN_BLOB: u64 = 512;

pub(super) fn open(dir: &Path, setting: Setting, blobs: bool) -> Result<CStore> {
    let cache_bytes = usize::try_from(setting.memory)?;
    // SAFETY: each object is made by its own create call, used while alive, and destroyed once; the table
    // takes over the filter policy, and the database its own references to the others.
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
        let kept: Vec<(Object, unsafe extern "C" fn(Object))> = vec![(cache, rocksdb_cache_destroy)];
        let store =
            CStore::open(&CALLS, dir, setting, kept, |path, error| rocksdb_open(options, path, error));
        rocksdb_options_destroy(options);
        rocksdb_block_based_options_destroy(table);
        store
    }
}

/// Pins the value where it lies: no copy.
unsafe fn get(
    db: Object,
    read: Object,
    key: *const u8,
    key_len: usize,
    error: *mut ErrorText,
) -> Option<u64> {
    // SAFETY: the caller's objects and key; the value is read before its pin is destroyed.
    unsafe {
        let slice = rocksdb_get_pinned(db, read, key, key_len, error);
        if slice.is_null() {
            return None;
        }
        let mut len = 0;
        let value = rocksdb_pinnableslice_value(slice, &mut len);
        let seen = look(std::slice::from_raw_parts(value, len));
        rocksdb_pinnableslice_destroy(slice);
        Some(seen)
    }
}

unsafe fn sync(db: Object, _write_synced: Object, error: *mut ErrorText) {
    // SAFETY: the caller's objects.
    unsafe { rocksdb_flush_wal(db, 1, error) };
}
