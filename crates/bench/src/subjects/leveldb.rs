//! # LevelDB, through the C interface of the system's library
//!
//! `apt-get install libleveldb-dev`. Bloom filters of 10 bits, 2 GiB block cache, 64 MiB write buffer, no
//! compression; else LevelDB's defaults. Buffered: the log is handed to the kernel at each put; LevelDB has
//! no call to sync it, so that every 100 ms an empty batch is written with `sync`.
//!
//! The bindings are ours, copied from `leveldb/c.h` of 1.23.

use std::ffi::{CStr, CString, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{NonNull, null_mut};

use super::{MEMORY, Session, Setting, Store, look};
use crate::Result;

macro_rules! opaque {
    ($($name:ident)*) => { $(#[repr(C)] struct $name { _private: [u8; 0] })* };
}

opaque!(Db Options ReadOptions WriteOptions WriteBatch Cache FilterPolicy);

#[link(name = "leveldb")]
unsafe extern "C" {
    fn leveldb_options_create() -> *mut Options;
    fn leveldb_options_destroy(options: *mut Options);
    fn leveldb_options_set_create_if_missing(options: *mut Options, yes: u8);
    fn leveldb_options_set_write_buffer_size(options: *mut Options, bytes: usize);
    fn leveldb_options_set_compression(options: *mut Options, kind: c_int);
    fn leveldb_options_set_cache(options: *mut Options, cache: *mut Cache);
    fn leveldb_options_set_filter_policy(options: *mut Options, policy: *mut FilterPolicy);
    fn leveldb_filterpolicy_create_bloom(bits_per_key: c_int) -> *mut FilterPolicy;
    fn leveldb_filterpolicy_destroy(policy: *mut FilterPolicy);
    fn leveldb_cache_create_lru(bytes: usize) -> *mut Cache;
    fn leveldb_cache_destroy(cache: *mut Cache);
    fn leveldb_readoptions_create() -> *mut ReadOptions;
    fn leveldb_readoptions_destroy(options: *mut ReadOptions);
    fn leveldb_writeoptions_create() -> *mut WriteOptions;
    fn leveldb_writeoptions_destroy(options: *mut WriteOptions);
    fn leveldb_writeoptions_set_sync(options: *mut WriteOptions, yes: u8);
    fn leveldb_writebatch_create() -> *mut WriteBatch;
    fn leveldb_writebatch_destroy(batch: *mut WriteBatch);
    fn leveldb_open(options: *const Options, path: *const c_char, error: *mut *mut c_char) -> *mut Db;
    fn leveldb_close(db: *mut Db);
    fn leveldb_put(
        db: *mut Db,
        options: *const WriteOptions,
        key: *const u8,
        key_len: usize,
        value: *const u8,
        value_len: usize,
        error: *mut *mut c_char,
    );
    fn leveldb_write(
        db: *mut Db,
        options: *const WriteOptions,
        batch: *mut WriteBatch,
        error: *mut *mut c_char,
    );
    fn leveldb_get(
        db: *mut Db,
        options: *const ReadOptions,
        key: *const u8,
        key_len: usize,
        value_len: *mut usize,
        error: *mut *mut c_char,
    ) -> *mut u8;
    fn leveldb_free(memory: *mut std::ffi::c_void);
}

const NO_COMPRESSION: c_int = 0;
const WRITE_BUFFER: usize = 64 << 20;

pub(super) struct Leveldb {
    db: NonNull<Db>,
    read: *mut ReadOptions,
    write: *mut WriteOptions,
    cache: *mut Cache,
    filter: *mut FilterPolicy,
}

// SAFETY: LevelDB's handle may be used from any thread; the option objects are only read after open.
unsafe impl Send for Leveldb {}
// SAFETY: as above.
unsafe impl Sync for Leveldb {}

impl Leveldb {
    pub(super) fn open(dir: &Path, setting: Setting) -> Result<Leveldb> {
        let path = CString::new(dir.as_os_str().as_bytes())?;
        let cache_bytes = usize::try_from(MEMORY)?;
        let mut error = null_mut();
        // SAFETY: each object is made by its own create call; cache and filter outlive the database,
        // the options do not need to.
        unsafe {
            let cache = leveldb_cache_create_lru(cache_bytes);
            let filter = leveldb_filterpolicy_create_bloom(10);
            let options = leveldb_options_create();
            leveldb_options_set_create_if_missing(options, 1);
            leveldb_options_set_write_buffer_size(options, WRITE_BUFFER);
            leveldb_options_set_compression(options, NO_COMPRESSION);
            leveldb_options_set_cache(options, cache);
            leveldb_options_set_filter_policy(options, filter);
            let db = leveldb_open(options, path.as_ptr(), &mut error);
            leveldb_options_destroy(options);
            let Some(db) = NonNull::new(db) else {
                leveldb_cache_destroy(cache);
                leveldb_filterpolicy_destroy(filter);
                return Err(take(error).into());
            };
            let write = leveldb_writeoptions_create();
            leveldb_writeoptions_set_sync(write, u8::from(setting.durable));
            Ok(Leveldb { db, read: leveldb_readoptions_create(), write, cache, filter })
        }
    }
}

/// The text of an error, whose memory is given back.
///
/// # Safety
///
/// `error` is null or came from LevelDB's error parameter and was not freed.
unsafe fn take(error: *mut c_char) -> String {
    if error.is_null() {
        return "LevelDB gave no reason".to_owned();
    }
    // SAFETY: not null, hence a C string allocated by LevelDB (the caller's promise).
    let text = unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned();
    // SAFETY: allocated by LevelDB, freed once.
    unsafe { leveldb_free(error.cast()) };
    text
}

/// Turns LevelDB's error parameter into a result.
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

impl Store for Leveldb {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(LeveldbSession { level: self }))
    }

    fn sync(&self) -> Result<()> {
        let mut error = null_mut();
        // SAFETY: the handle is open; options and batch are created and destroyed here.
        unsafe {
            let options = leveldb_writeoptions_create();
            leveldb_writeoptions_set_sync(options, 1);
            let batch = leveldb_writebatch_create();
            leveldb_write(self.db.as_ptr(), options, batch, &mut error);
            leveldb_writebatch_destroy(batch);
            leveldb_writeoptions_destroy(options);
            check(error)
        }
    }
}

impl Drop for Leveldb {
    fn drop(&mut self) {
        // SAFETY: each was created in `open` and is destroyed here, once, the database first.
        unsafe {
            leveldb_close(self.db.as_ptr());
            leveldb_readoptions_destroy(self.read);
            leveldb_writeoptions_destroy(self.write);
            leveldb_cache_destroy(self.cache);
            leveldb_filterpolicy_destroy(self.filter);
        }
    }
}

struct LeveldbSession<'a> {
    level: &'a Leveldb,
}

impl Session for LeveldbSession<'_> {
    fn get(&mut self, key: &[u8]) -> Result<Option<u64>> {
        let (mut error, mut len) = (null_mut(), 0);
        // SAFETY: handle and options are alive; key pointer and length are of one slice; the value is an
        // allocation of `len` bytes, freed after it was read.
        unsafe {
            let value = leveldb_get(
                self.level.db.as_ptr(),
                self.level.read,
                key.as_ptr(),
                key.len(),
                &mut len,
                &mut error,
            );
            check(error)?;
            if value.is_null() {
                return Ok(None);
            }
            let seen = look(std::slice::from_raw_parts(value, len));
            leveldb_free(value.cast());
            Ok(Some(seen))
        }
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut error = null_mut();
        // SAFETY: handle and options are alive; pointers and lengths are of one slice each.
        unsafe {
            leveldb_put(
                self.level.db.as_ptr(),
                self.level.write,
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
