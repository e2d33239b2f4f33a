//! # Database: opening, and reads and writes of the keyspace

use std::ffi::{c_char, c_int};
use std::ops::Bound;
use std::path::Path;

use sheaf::{Builder, Database, Durability, Keyspace, KeyspaceSnapshot};

use crate::batch::leveldb_writebatch_t;
use crate::memory::{Failure, allocate, bytes, given, guard, path, report};
use crate::options::{leveldb_options_t, leveldb_readoptions_t, leveldb_writeoptions_t};

/// Name of the keyspace.
const KEYSPACE: &str = "leveldb";

/// Memory budget in addition to the cache and the write buffer, if the caller sets a cache.
const EXTRA_MEMORY: u64 = 64 << 20;

/// An open database.
pub struct leveldb_t {
    database: Database,
    keyspace: Keyspace,
}

impl leveldb_t {
    pub(crate) fn snapshot(&self) -> sheaf::Result<KeyspaceSnapshot> {
        self.database.snapshot()?.keyspace(&self.keyspace)
    }

    /// Returns the sum of the sizes of all pairs from `start` to before `limit`.
    fn size(&self, start: &[u8], limit: &[u8]) -> sheaf::Result<u64> {
        let mut pairs = self.keyspace.range((Bound::Included(start), Bound::Excluded(limit)))?;
        let mut size = 0;
        while let Some(pair) = pairs.next_with(|key, value| (key.len() + value.len()) as u64) {
            size += pair?;
        }
        Ok(size)
    }

    /// Returns the text of a property of LevelDB; `None` if its name is unknown.
    fn property(&self, name: &[u8]) -> Option<String> {
        let stats = self.database.stats();
        match name {
            b"leveldb.approximate-memory-usage" => Some(stats.memory.total().to_string()),
            b"leveldb.sstables" => Some(String::new()),
            b"leveldb.stats" => Some(format!("{stats:#?}\n")),
            _ => {
                let level = std::str::from_utf8(name).ok()?.strip_prefix("leveldb.num-files-at-level")?;
                level.parse::<u32>().is_ok_and(|level| level < 7).then(|| "0".to_owned())
            }
        }
    }
}

/// Returns the options as those of Sheaf.
pub(crate) fn builder(options: &leveldb_options_t) -> Builder {
    let mut builder = Database::builder();
    if let Some(cache) = options.cache_size {
        builder = builder.memory(EXTRA_MEMORY + cache as u64 + options.write_buffer_size as u64);
    }
    match u32::try_from(options.max_open_files) {
        Ok(files) if files > 0 => builder.open_files(files),
        _ => builder,
    }
}

/// Returns true if the directory contains a Sheaf database.
pub(crate) fn is_database(directory: &Path) -> bool {
    ["ROOT.0", "ROOT.1"].iter().any(|slot| directory.join(slot).exists())
}

fn open(options: &leveldb_options_t, directory: &Path) -> Result<leveldb_t, Failure> {
    if options.has_comparator {
        let message =
            "Not implemented: Sheaf orders keys by their bytes; a custom comparator is not possible";
        return Err(Failure(message.to_owned()));
    }
    if options.error_if_exists && is_database(directory) {
        let name = directory.display();
        return Err(Failure(format!("Invalid argument: {name}: exists (error_if_exists is true)")));
    }
    let database = builder(options).create(options.create_if_missing).open(directory)?;
    let keyspace = database.keyspace(KEYSPACE, "flex")?;
    Ok(leveldb_t { database, keyspace })
}

/// Opens a database.
///
/// # Safety
///
/// `name` must be NULL or a C string, and `errptr` valid for `report`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leveldb_open(
    options: Option<&leveldb_options_t>,
    name: *const c_char,
    errptr: *mut *mut c_char,
) -> Option<Box<leveldb_t>> {
    // SAFETY: the caller passes a text with a NUL byte at its end.
    let directory = unsafe { path(name) };
    let open = || Ok(Box::new(open(given(options, "options")?, given(directory, "name")?)?));
    // SAFETY: the caller passes NULL or a valid pointer.
    unsafe { report(errptr, open) }
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_close(db: Option<Box<leveldb_t>>) {
    guard(|| {
        if let Some(db) = db {
            // The function has no way to return an error; the next opening recovers the database.
            let _ = db.database.close();
        }
    });
}

fn durability(options: Option<&leveldb_writeoptions_t>) -> Durability {
    match options.is_some_and(|options| options.sync) {
        true => Durability::Sync,
        false => Durability::Buffer,
    }
}

/// Inserts a pair.
///
/// # Safety
///
/// `key` and `value` must have `key_size` and `value_size` bytes. `errptr` must be valid for
/// `report`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leveldb_put(
    db: Option<&leveldb_t>,
    options: Option<&leveldb_writeoptions_t>,
    key: *const c_char,
    key_size: usize,
    value: *const c_char,
    value_size: usize,
    errptr: *mut *mut c_char,
) {
    // SAFETY: the caller passes valid bytes.
    let (key, value) = unsafe { (bytes(key, key_size), bytes(value, value_size)) };
    let put = || Ok(given(db, "db")?.keyspace.submit_insert(key, value, durability(options))?.wait()?);
    // SAFETY: the caller passes NULL or a valid pointer.
    let _ = unsafe { report(errptr, put) };
}

/// Removes a key.
///
/// # Safety
///
/// `key` must have `key_size` bytes, and `errptr` must be valid for `report`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leveldb_delete(
    db: Option<&leveldb_t>,
    options: Option<&leveldb_writeoptions_t>,
    key: *const c_char,
    key_size: usize,
    errptr: *mut *mut c_char,
) {
    // SAFETY: the caller passes valid bytes.
    let key = unsafe { bytes(key, key_size) };
    let delete = || Ok(given(db, "db")?.keyspace.submit_remove(key, durability(options))?.wait()?);
    // SAFETY: the caller passes NULL or a valid pointer.
    let _ = unsafe { report(errptr, delete) };
}

/// Commits a batch.
///
/// # Safety
///
/// `errptr` must be valid for `report`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leveldb_write(
    db: Option<&leveldb_t>,
    options: Option<&leveldb_writeoptions_t>,
    batch: Option<&leveldb_writebatch_t>,
    errptr: *mut *mut c_char,
) {
    let write = || {
        let db = given(db, "db")?;
        let mut operations = db.database.batch();
        given(batch, "batch")?.apply(&db.keyspace, &mut operations);
        operations.durability(durability(options));
        Ok(operations.commit()?)
    };
    // SAFETY: the caller passes NULL or a valid pointer.
    let _ = unsafe { report(errptr, write) };
}

/// Returns a copy of a value, or NULL.
///
/// # Safety
///
/// `key` must have `key_size` bytes. `value_size` must be NULL or valid, and `errptr` valid for
/// `report`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leveldb_get(
    db: Option<&leveldb_t>,
    options: Option<&leveldb_readoptions_t>,
    key: *const c_char,
    key_size: usize,
    value_size: *mut usize,
    errptr: *mut *mut c_char,
) -> *mut c_char {
    // SAFETY: the caller passes valid bytes.
    let key = unsafe { bytes(key, key_size) };
    let copy = |value: &[u8]| (allocate(value), value.len());
    let get = || {
        Ok(match options.and_then(|options| options.snapshot.as_ref()) {
            Some(snapshot) => snapshot.0.get_with(key, copy)?,
            None => given(db, "db")?.keyspace.get_with(key, copy)?,
        })
    };
    // SAFETY: the caller passes NULL or a valid pointer.
    let found = unsafe { report(errptr, get) }.flatten();
    let (value, size) = found.unwrap_or((std::ptr::null_mut(), 0));
    if !value_size.is_null() {
        // SAFETY: the caller passes a valid pointer.
        unsafe { value_size.write(size) };
    }
    value
}

/// Returns a copy of a property, or NULL.
///
/// # Safety
///
/// `name` must be NULL or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leveldb_property_value(db: Option<&leveldb_t>, name: *const c_char) -> *mut c_char {
    use std::os::unix::ffi::OsStrExt;
    // SAFETY: the caller passes a text with a NUL byte at its end.
    let name = unsafe { path(name) };
    let value = guard(|| db?.property(name?.as_os_str().as_bytes()));
    value.map_or(std::ptr::null_mut(), |value| allocate(value.as_bytes()))
}

/// Reads all pairs of the ranges, unlike LevelDB.
///
/// # Safety
///
/// All arrays must have `count` elements, and each key as many bytes as its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leveldb_approximate_sizes(
    db: Option<&leveldb_t>,
    count: c_int,
    start_keys: *const *const c_char,
    start_sizes: *const usize,
    limit_keys: *const *const c_char,
    limit_sizes: *const usize,
    sizes: *mut u64,
) {
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the caller passes arrays of `count` keys and sizes.
        let start = unsafe { bytes(*start_keys.add(index), *start_sizes.add(index)) };
        // SAFETY: the caller passes arrays of `count` keys and sizes.
        let limit = unsafe { bytes(*limit_keys.add(index), *limit_sizes.add(index)) };
        let size = guard(|| db.and_then(|db| db.size(start, limit).ok()).unwrap_or(0));
        // SAFETY: the caller passes an array of `count` places.
        unsafe { sizes.add(index).write(size) };
    }
}

/// Compacts the whole keyspace: Sheaf has no compaction of ranges.
#[unsafe(no_mangle)]
pub extern "C" fn leveldb_compact_range(
    db: Option<&leveldb_t>,
    _start: *const c_char,
    _start_size: usize,
    _limit: *const c_char,
    _limit_size: usize,
) {
    // The function has no way to return an error; all pairs are intact after one.
    guard(|| drop(db.map(|db| db.keyspace.compact())));
}
