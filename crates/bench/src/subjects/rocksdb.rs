//! # RocksDB, through the C interface of the system's library
//!
//! `apt-get install librocksdb-dev`. Bloom filters of 10 bits, 2 GiB block cache, hash index in data
//! blocks, 64 MiB write buffers, no compression, write-ahead log on; else RocksDB's defaults. Gets are
//! pinned: no copy. Buffered: the log is handed to the kernel at each put, and synced every 100 ms.
//!
//! The bindings are ours, copied from `rocksdb/c.h` of 7.8; the C interface is stable.

use std::ffi::{CStr, CString, c_char, c_int, c_uchar};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{NonNull, null_mut};

use super::{MEMORY, Session, Setting, Store, look};
use crate::Result;

macro_rules! opaque {
    ($($name:ident)*) => { $(#[repr(C)] struct $name { _private: [u8; 0] })* };
}

opaque!(Db Options TableOptions ReadOptions WriteOptions Cache FilterPolicy PinnableSlice);

#[link(name = "rocksdb")]
unsafe extern "C" {
    fn rocksdb_options_create() -> *mut Options;
    fn rocksdb_options_destroy(options: *mut Options);
    fn rocksdb_options_set_create_if_missing(options: *mut Options, yes: c_uchar);
    fn rocksdb_options_set_write_buffer_size(options: *mut Options, bytes: usize);
    fn rocksdb_options_set_compression(options: *mut Options, kind: c_int);
    fn rocksdb_options_set_block_based_table_factory(options: *mut Options, table: *mut TableOptions);
    fn rocksdb_block_based_options_create() -> *mut TableOptions;
    fn rocksdb_block_based_options_destroy(table: *mut TableOptions);
    fn rocksdb_block_based_options_set_filter_policy(table: *mut TableOptions, policy: *mut FilterPolicy);
    fn rocksdb_block_based_options_set_block_cache(table: *mut TableOptions, cache: *mut Cache);
    fn rocksdb_block_based_options_set_data_block_index_type(table: *mut TableOptions, kind: c_int);
    fn rocksdb_filterpolicy_create_bloom_full(bits_per_key: f64) -> *mut FilterPolicy;
    fn rocksdb_cache_create_lru(bytes: usize) -> *mut Cache;
    fn rocksdb_cache_destroy(cache: *mut Cache);
    fn rocksdb_readoptions_create() -> *mut ReadOptions;
    fn rocksdb_readoptions_destroy(options: *mut ReadOptions);
    fn rocksdb_writeoptions_create() -> *mut WriteOptions;
    fn rocksdb_writeoptions_destroy(options: *mut WriteOptions);
    fn rocksdb_writeoptions_set_sync(options: *mut WriteOptions, yes: c_uchar);
    fn rocksdb_open(options: *const Options, path: *const c_char, error: *mut *mut c_char) -> *mut Db;
    fn rocksdb_close(db: *mut Db);
    fn rocksdb_put(
        db: *mut Db,
        options: *const WriteOptions,
        key: *const u8,
        key_len: usize,
        value: *const u8,
        value_len: usize,
        error: *mut *mut c_char,
    );
    fn rocksdb_get_pinned(
        db: *mut Db,
        options: *const ReadOptions,
        key: *const u8,
        key_len: usize,
        error: *mut *mut c_char,
    ) -> *mut PinnableSlice;
    fn rocksdb_pinnableslice_value(slice: *const PinnableSlice, len: *mut usize) -> *const u8;
    fn rocksdb_pinnableslice_destroy(slice: *mut PinnableSlice);
    fn rocksdb_flush_wal(db: *mut Db, sync: c_uchar, error: *mut *mut c_char);
    fn rocksdb_free(memory: *mut std::ffi::c_void);
}

const NO_COMPRESSION: c_int = 0;
const BINARY_SEARCH_AND_HASH: c_int = 1;
const WRITE_BUFFER: usize = 64 << 20;

pub(super) struct Rocksdb {
    db: NonNull<Db>,
    read: *mut ReadOptions,
    write: *mut WriteOptions,
    cache: *mut Cache,
}

// SAFETY: RocksDB's handle may be used from any thread; the option objects are only read after open.
unsafe impl Send for Rocksdb {}
// SAFETY: as above.
unsafe impl Sync for Rocksdb {}

impl Rocksdb {
    pub(super) fn open(dir: &Path, setting: Setting) -> Result<Rocksdb> {
        let path = CString::new(dir.as_os_str().as_bytes())?;
        let cache_bytes = usize::try_from(MEMORY)?;
        let mut error = null_mut();
        // SAFETY: each object is made by its own create call, used while alive, and destroyed once;
        // the table takes over the filter policy, and the database its own references to the others.
        unsafe {
            let cache = rocksdb_cache_create_lru(cache_bytes);
            let table = rocksdb_block_based_options_create();
            rocksdb_block_based_options_set_block_cache(table, cache);
            rocksdb_block_based_options_set_filter_policy(
                table,
                rocksdb_filterpolicy_create_bloom_full(10.0),
            );
            rocksdb_block_based_options_set_data_block_index_type(table, BINARY_SEARCH_AND_HASH);
            let options = rocksdb_options_create();
            rocksdb_options_set_create_if_missing(options, 1);
            rocksdb_options_set_write_buffer_size(options, WRITE_BUFFER);
            rocksdb_options_set_compression(options, NO_COMPRESSION);
            rocksdb_options_set_block_based_table_factory(options, table);
            let db = rocksdb_open(options, path.as_ptr(), &mut error);
            rocksdb_options_destroy(options);
            rocksdb_block_based_options_destroy(table);
            let Some(db) = NonNull::new(db) else {
                rocksdb_cache_destroy(cache);
                return Err(take(error).into());
            };
            let write = rocksdb_writeoptions_create();
            rocksdb_writeoptions_set_sync(write, c_uchar::from(setting.durable));
            Ok(Rocksdb { db, read: rocksdb_readoptions_create(), write, cache })
        }
    }
}

/// The text of an error, whose memory is given back.
///
/// # Safety
///
/// `error` is null or came from RocksDB's error parameter and was not freed.
unsafe fn take(error: *mut c_char) -> String {
    if error.is_null() {
        return "RocksDB gave no reason".to_owned();
    }
    // SAFETY: not null, hence a C string allocated by RocksDB (the caller's promise).
    let text = unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned();
    // SAFETY: allocated by RocksDB, freed once.
    unsafe { rocksdb_free(error.cast()) };
    text
}

/// Turns RocksDB's error parameter into a result.
///
/// # Safety
///
/// As for [`take`].
unsafe fn check(error: *mut c_char) -> Result<()> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    Err(unsafe { take(error) }.into())
}

impl Store for Rocksdb {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(RocksdbSession { rocks: self }))
    }

    fn sync(&self) -> Result<()> {
        let mut error = null_mut();
        // SAFETY: the handle is open; the error parameter is checked at once.
        unsafe {
            rocksdb_flush_wal(self.db.as_ptr(), 1, &mut error);
            check(error)
        }
    }
}

impl Drop for Rocksdb {
    fn drop(&mut self) {
        // SAFETY: each was created in `open` and is destroyed here, once, the database first.
        unsafe {
            rocksdb_close(self.db.as_ptr());
            rocksdb_readoptions_destroy(self.read);
            rocksdb_writeoptions_destroy(self.write);
            rocksdb_cache_destroy(self.cache);
        }
    }
}

struct RocksdbSession<'a> {
    rocks: &'a Rocksdb,
}

impl Session for RocksdbSession<'_> {
    fn get(&mut self, key: &[u8]) -> Result<Option<u64>> {
        let mut error = null_mut();
        // SAFETY: handle and options are alive; key pointer and length are of one slice; the value is
        // read before its pin is destroyed.
        unsafe {
            let slice = rocksdb_get_pinned(
                self.rocks.db.as_ptr(),
                self.rocks.read,
                key.as_ptr(),
                key.len(),
                &mut error,
            );
            check(error)?;
            if slice.is_null() {
                return Ok(None);
            }
            let mut len = 0;
            let value = rocksdb_pinnableslice_value(slice, &mut len);
            let seen = look(std::slice::from_raw_parts(value, len));
            rocksdb_pinnableslice_destroy(slice);
            Ok(Some(seen))
        }
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut error = null_mut();
        // SAFETY: handle and options are alive; pointers and lengths are of one slice each.
        unsafe {
            rocksdb_put(
                self.rocks.db.as_ptr(),
                self.rocks.write,
                key.as_ptr(),
                key.len(),
                value.as_ptr(),
                value.len(),
                &mut error,
            );
            check(error)
        }
    }
}
