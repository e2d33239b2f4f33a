//! # C API: the common part of the C interfaces of LevelDB and RocksDB
//!
//! The C interface of RocksDB is derived from that of LevelDB. Opening, options and gets differ,
//! and the other calls differ only in their prefix. [`CApi`] is a table of those calls, and this
//! module contains one adapter that uses it.
//!
//! ## Invariants
//!
//! 1. `db`, `read`, `write` and `write_synced` were created by the library of `calls`, and live
//!    until [`CStore`] is dropped.
//! 2. Error parameters are null before a call, and are freed by [`check`] after it.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{NonNull, null_mut};

use super::{BenchSession, BenchStore, ScanDirection, StoreSetting, read_value};
use crate::Result;

/// An object of the library, of any kind.
pub(super) type CObject = *mut c_void;
/// Error parameter: the library stores the text of an error there.
pub(super) type CErrorText = *mut c_char;

pub(super) const NO_COMPRESSION: c_int = 0;

/// Returns the bytes of a write buffer: 64 MiB, or less with a small cache.
pub(super) fn write_buffer(cache: usize) -> usize {
    (cache / 8).clamp(1 << 20, 64 << 20)
}

/// Calls that both libraries have, and two with an implementation for each library.
///
/// # Safety
///
/// * Objects must be alive and created by the library of the table; an error parameter must be
///   null. A pointer with a length must refer to as many bytes.
pub(super) struct CApi {
    pub(super) close: unsafe extern "C" fn(CObject),
    pub(super) put:
        unsafe extern "C" fn(CObject, CObject, *const u8, usize, *const u8, usize, *mut CErrorText),
    pub(super) delete: unsafe extern "C" fn(CObject, CObject, *const u8, usize, *mut CErrorText),
    pub(super) compact_range: unsafe extern "C" fn(CObject, *const u8, usize, *const u8, usize),
    pub(super) create_iterator: unsafe extern "C" fn(CObject, CObject) -> CObject,
    pub(super) iter_destroy: unsafe extern "C" fn(CObject),
    pub(super) iter_valid: unsafe extern "C" fn(CObject) -> u8,
    pub(super) iter_seek_to_first: unsafe extern "C" fn(CObject),
    pub(super) iter_seek_to_last: unsafe extern "C" fn(CObject),
    pub(super) iter_seek: unsafe extern "C" fn(CObject, *const u8, usize),
    pub(super) iter_next: unsafe extern "C" fn(CObject),
    pub(super) iter_prev: unsafe extern "C" fn(CObject),
    pub(super) iter_key: unsafe extern "C" fn(CObject, *mut usize) -> *const u8,
    pub(super) iter_value: unsafe extern "C" fn(CObject, *mut usize) -> *const u8,
    pub(super) iter_get_error: unsafe extern "C" fn(CObject, *mut CErrorText),
    pub(super) free: unsafe extern "C" fn(*mut c_void),
    pub(super) readoptions_create: unsafe extern "C" fn() -> CObject,
    pub(super) readoptions_destroy: unsafe extern "C" fn(CObject),
    pub(super) writeoptions_create: unsafe extern "C" fn() -> CObject,
    pub(super) writeoptions_destroy: unsafe extern "C" fn(CObject),
    pub(super) writeoptions_set_sync: unsafe extern "C" fn(CObject, u8),
    /// Reads a value. Parameters: database, read options, key, its length, error.
    pub(super) get: unsafe fn(CObject, CObject, *const u8, usize, *mut CErrorText) -> Option<u64>,
    /// Syncs the log to the device. Parameters: database, write options with sync, error.
    pub(super) sync: unsafe fn(CObject, CObject, *mut CErrorText),
}

/// An open database of either library.
pub(super) struct CStore {
    calls: &'static CApi,
    db: NonNull<c_void>,
    read: CObject,
    write: CObject,
    write_synced: CObject,
    /// Objects that must outlive the database, with the calls that destroy them.
    owned_objects: Vec<(CObject, unsafe extern "C" fn(CObject))>,
}

// SAFETY: both libraries allow any thread to use a database. The option objects are only read after
// the database is open.
unsafe impl Send for CStore {}
// SAFETY: the reasons for `Send` also cover shared references.
unsafe impl Sync for CStore {}

impl CStore {
    /// Opens a database with `open`, which gets the path and an error parameter. `owned_objects`
    /// are destroyed after the database.
    ///
    /// # Safety
    ///
    /// `open` must return null or a database of the library of `calls`. Each of `owned_objects`
    /// must be alive, and its call must be allowed once the database is closed.
    pub(super) unsafe fn open(
        calls: &'static CApi,
        dir: &Path,
        setting: StoreSetting,
        owned_objects: Vec<(CObject, unsafe extern "C" fn(CObject))>,
        open: impl FnOnce(*const c_char, *mut CErrorText) -> CObject,
    ) -> Result<CStore> {
        let path = CString::new(dir.as_os_str().as_bytes())?;
        let mut error = null_mut();
        let db = NonNull::new(open(path.as_ptr(), &mut error));
        // SAFETY: (2) `error` is the error parameter of the call above.
        let outcome = unsafe { check(calls, error) };
        let Some(db) = db else {
            // SAFETY: the caller allows each call as soon as there is no database, and none was
            // opened.
            owned_objects.into_iter().for_each(|(object, destroy)| unsafe { destroy(object) });
            outcome?;
            return Err("the library gave no database and no reason".into());
        };
        // SAFETY: constructors without conditions, and setters on the objects that they returned.
        unsafe {
            let (write, write_synced) = ((calls.writeoptions_create)(), (calls.writeoptions_create)());
            (calls.writeoptions_set_sync)(write, u8::from(setting.durable));
            (calls.writeoptions_set_sync)(write_synced, 1);
            Ok(CStore { calls, db, read: (calls.readoptions_create)(), write, write_synced, owned_objects })
        }
    }
}

/// Converts an error parameter to a result, and frees its memory.
///
/// # Safety
///
/// `error` must be null, or the error parameter of a library call that was not freed yet.
unsafe fn check(calls: &CApi, error: CErrorText) -> Result<()> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: it is not null, and so by the contract a C string that the library allocated.
    let text = unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned();
    // SAFETY: the library allocated it, and it is freed only here.
    unsafe { (calls.free)(error.cast()) };
    Err(text.into())
}

impl BenchStore for CStore {
    fn session(&self) -> Result<Box<dyn BenchSession + '_>> {
        Ok(Box::new(CSession { store: self }))
    }

    fn sync(&self) -> Result<()> {
        let mut error = null_mut();
        // SAFETY: (1), (2).
        unsafe {
            (self.calls.sync)(self.db.as_ptr(), self.write_synced, &mut error);
            check(self.calls, error)
        }
    }
}

impl Drop for CStore {
    fn drop(&mut self) {
        // SAFETY: (1), and each object is destroyed once, only here, and the database first.
        unsafe {
            (self.calls.close)(self.db.as_ptr());
            (self.calls.readoptions_destroy)(self.read);
            (self.calls.writeoptions_destroy)(self.write);
            (self.calls.writeoptions_destroy)(self.write_synced);
        }
        for (object, destroy) in self.owned_objects.drain(..) {
            // SAFETY: the contract of `open` allows the call, as the database is closed.
            unsafe { destroy(object) };
        }
    }
}

struct CSession<'a> {
    store: &'a CStore,
}

impl BenchSession for CSession<'_> {
    fn get(&mut self, key: &[u8]) -> Result<Option<u64>> {
        let CStore { calls, db, read, .. } = self.store;
        let mut error = null_mut();
        // SAFETY: (1), (2); pointer and length are of one slice.
        unsafe {
            let seen = (calls.get)(db.as_ptr(), *read, key.as_ptr(), key.len(), &mut error);
            check(calls, error)?;
            Ok(seen)
        }
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let CStore { calls, db, write, .. } = self.store;
        let mut error = null_mut();
        // SAFETY: (1), (2); pointers and lengths are of one slice each.
        unsafe {
            let (value, value_len) = (value.as_ptr(), value.len());
            (calls.put)(db.as_ptr(), *write, key.as_ptr(), key.len(), value, value_len, &mut error);
            check(calls, error)
        }
    }

    fn remove(&mut self, key: &[u8]) -> Result<()> {
        let CStore { calls, db, write, .. } = self.store;
        let mut error = null_mut();
        // SAFETY: (1), (2); pointer and length are of one slice.
        unsafe {
            (calls.delete)(db.as_ptr(), *write, key.as_ptr(), key.len(), &mut error);
            check(calls, error)
        }
    }

    fn compact(&mut self) -> Result<u64> {
        let CStore { calls, db, .. } = self.store;
        // SAFETY: (1). Null is the end of the key space in both directions.
        unsafe { (calls.compact_range)(db.as_ptr(), std::ptr::null(), 0, std::ptr::null(), 0) };
        Ok(1)
    }

    fn scan(&mut self, from: &[u8], limit: u64, way: ScanDirection) -> Result<u64> {
        let walk = CIterator::begin(self.store, from, way);
        let mut seen = 0;
        while seen < limit && walk.read_value() {
            seen += 1;
            walk.step(way);
        }
        walk.end()?;
        Ok(seen)
    }

    fn keys(&mut self) -> Result<u64> {
        let walk = CIterator::begin(self.store, b"", ScanDirection::Up);
        let mut seen = 0;
        while walk.read_key() {
            seen += 1;
            walk.step(ScanDirection::Up);
        }
        walk.end()?;
        Ok(seen)
    }
}

/// An iterator of the library.
struct CIterator<'a> {
    calls: &'a CApi,
    iterator: CObject,
}

impl CIterator<'_> {
    fn begin<'a>(store: &'a CStore, from: &[u8], way: ScanDirection) -> CIterator<'a> {
        let calls = store.calls;
        // SAFETY: (1). The iterator borrows the store, so it is destroyed before the database.
        let iterator = unsafe { (calls.create_iterator)(store.db.as_ptr(), store.read) };
        let walk = CIterator { calls, iterator };
        // SAFETY: the iterator is alive; pointer and length are of one slice.
        unsafe {
            match (from.is_empty(), way) {
                (true, ScanDirection::Up) => (calls.iter_seek_to_first)(iterator),
                (true, ScanDirection::Down) => (calls.iter_seek_to_last)(iterator),
                (false, _) => (calls.iter_seek)(iterator, from.as_ptr(), from.len()),
            }
        }
        if way == ScanDirection::Down && !from.is_empty() {
            walk.seek_at_or_before(from);
        }
        walk
    }

    /// Moves from the first key at or after `from` to the last one at or before it.
    fn seek_at_or_before(&self, from: &[u8]) {
        // SAFETY: the iterator is alive, and the key is read before the iterator moves.
        unsafe {
            if (self.calls.iter_valid)(self.iterator) == 0 {
                return (self.calls.iter_seek_to_last)(self.iterator);
            }
            let mut len = 0;
            let key = (self.calls.iter_key)(self.iterator, &mut len);
            if std::slice::from_raw_parts(key, len) != from {
                (self.calls.iter_prev)(self.iterator);
            }
        }
    }

    /// Reads the key. Returns false at the end.
    fn read_key(&self) -> bool {
        // SAFETY: the iterator is alive, and the key is read before the iterator moves.
        unsafe {
            if (self.calls.iter_valid)(self.iterator) == 0 {
                return false;
            }
            let mut len = 0;
            std::hint::black_box((self.calls.iter_key)(self.iterator, &mut len));
        }
        true
    }

    /// Reads key and value. Returns false at the end.
    fn read_value(&self) -> bool {
        if !self.read_key() {
            return false;
        }
        // SAFETY: the iterator is alive and valid, and the value is read before the iterator moves.
        unsafe {
            let mut len = 0;
            let value = (self.calls.iter_value)(self.iterator, &mut len);
            read_value(std::slice::from_raw_parts(value, len));
        }
        true
    }

    fn step(&self, way: ScanDirection) {
        // SAFETY: the iterator is alive, and valid because `read_key` or `read_value` returned
        // true.
        unsafe {
            match way {
                ScanDirection::Up => (self.calls.iter_next)(self.iterator),
                ScanDirection::Down => (self.calls.iter_prev)(self.iterator),
            }
        }
    }

    fn end(self) -> Result<()> {
        let mut error = null_mut();
        // SAFETY: (2), and the iterator is alive until `drop`.
        unsafe {
            (self.calls.iter_get_error)(self.iterator, &mut error);
            check(self.calls, error)
        }
    }
}

impl Drop for CIterator<'_> {
    fn drop(&mut self) {
        // SAFETY: `begin` created it, and it is destroyed once, only here.
        unsafe { (self.calls.iter_destroy)(self.iterator) };
    }
}

/// Declares the calls that differ only in their prefix, and fills in a table of them.
macro_rules! calls {
    ($library:literal, $table:ident, get: $get:ident, sync: $sync:ident, $($field:ident = $name:ident ($($argument:ty),*) $(-> $answer:ty)?;)*) => {
        // SAFETY: the callers of the macro pass the signatures of the library's header `c.h`.
        #[link(name = $library)]
        unsafe extern "C" {
            $(fn $name($(_: $argument),*) $(-> $answer)?;)*
        }
        static $table: $crate::subjects::c_api::CApi =
            $crate::subjects::c_api::CApi { $($field: $name,)* get: $get, sync: $sync };
    };
}
pub(super) use calls;
