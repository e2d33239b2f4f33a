//! # The C shape: what the C interfaces of LevelDB and RocksDB have in common
//!
//! RocksDB's C interface grew out of LevelDB's: opening, options and gets differ, the rest has the
//! same calls under another prefix. [`CApi`] is that rest as a table of functions; the adapter here
//! is written once over it.
//!
//! ## Invariants
//!
//! 1. `db`, `read`, `write` and `write_synced` were made by the library whose calls stand in
//!    `calls`, and live until [`CStore`] is dropped.
//! 2. Error parameters are null before a call, and are freed by [`check`] after it.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{NonNull, null_mut};

use super::{BenchSession, BenchStore, ScanDirection, StoreSetting, read_value};
use crate::Result;

/// An object of the library, of whatever kind.
pub(super) type CObject = *mut c_void;
/// Where the library puts the text of an error.
pub(super) type CErrorText = *mut c_char;

pub(super) const NO_COMPRESSION: c_int = 0;

/// Bytes of a write buffer: 64 MiB, less beside a small cache.
pub(super) fn write_buffer(cache: usize) -> usize {
    (cache / 8).clamp(1 << 20, 64 << 20)
}

/// Calls that both libraries have, and two that each does in its own way.
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
    /// Looks at a value: database, read options, key, its length, error.
    pub(super) get: unsafe fn(CObject, CObject, *const u8, usize, *mut CErrorText) -> Option<u64>,
    /// Puts the log on the device: database, write options that sync, error.
    pub(super) sync: unsafe fn(CObject, CObject, *mut CErrorText),
}

/// An open database of either library.
pub(super) struct CStore {
    calls: &'static CApi,
    db: NonNull<c_void>,
    read: CObject,
    write: CObject,
    write_synced: CObject,
    /// What must outlive the database, with the call that ends it.
    owned_objects: Vec<(CObject, unsafe extern "C" fn(CObject))>,
}

// SAFETY: both libraries' handles may be used from any thread; the option objects are only read after open.
unsafe impl Send for CStore {}
// SAFETY: as above.
unsafe impl Sync for CStore {}

impl CStore {
    /// Opens by `open`, which gets the path and an error parameter. `owned_objects` is destroyed
    /// after the database.
    ///
    /// # Safety
    ///
    /// `open` answers null or a database of the library of `calls`; each of `owned_objects` is
    /// alive and may be given to the call beside it once the database is closed.
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
        // SAFETY: the error parameter of the call before.
        let outcome = unsafe { check(calls, error) };
        let Some(db) = db else {
            // SAFETY: the caller's promise; there is no database.
            owned_objects.into_iter().for_each(|(object, destroy)| unsafe { destroy(object) });
            outcome?;
            return Err("the library gave no database and no reason".into());
        };
        // SAFETY: plain constructors, and setters on what they made.
        unsafe {
            let (write, write_synced) = ((calls.writeoptions_create)(), (calls.writeoptions_create)());
            (calls.writeoptions_set_sync)(write, u8::from(setting.durable));
            (calls.writeoptions_set_sync)(write_synced, 1);
            Ok(CStore { calls, db, read: (calls.readoptions_create)(), write, write_synced, owned_objects })
        }
    }
}

/// Turns an error parameter into a result and gives its memory back.
///
/// # Safety
///
/// `error` is null or came from the error parameter of a library call and was not freed.
unsafe fn check(calls: &CApi, error: CErrorText) -> Result<()> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: not null, hence a C string allocated by the library (the caller's promise).
    let text = unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned();
    // SAFETY: allocated by the library, freed once.
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
        // SAFETY: (1); each is destroyed here, once, the database first.
        unsafe {
            (self.calls.close)(self.db.as_ptr());
            (self.calls.readoptions_destroy)(self.read);
            (self.calls.writeoptions_destroy)(self.write);
            (self.calls.writeoptions_destroy)(self.write_synced);
        }
        for (object, destroy) in self.owned_objects.drain(..) {
            // SAFETY: the promise of `open`; the database is closed.
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
        // SAFETY: (1); null is the end of all keys, on either side.
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
        // SAFETY: (1); the iterator is destroyed before the database (it borrows the store).
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

    /// From the first key at or after `from` to the last one at or before it.
    fn seek_at_or_before(&self, from: &[u8]) {
        // SAFETY: the iterator is alive; a key is read while the iterator stands on it.
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

    /// Looks at the key; false at the end.
    fn read_key(&self) -> bool {
        // SAFETY: the iterator is alive; a key is read while it stands on it.
        unsafe {
            if (self.calls.iter_valid)(self.iterator) == 0 {
                return false;
            }
            let mut len = 0;
            std::hint::black_box((self.calls.iter_key)(self.iterator, &mut len));
        }
        true
    }

    /// Looks at key and value; false at the end.
    fn read_value(&self) -> bool {
        if !self.read_key() {
            return false;
        }
        // SAFETY: the iterator is alive and valid; a value is read while it stands on it.
        unsafe {
            let mut len = 0;
            let value = (self.calls.iter_value)(self.iterator, &mut len);
            read_value(std::slice::from_raw_parts(value, len));
        }
        true
    }

    fn step(&self, way: ScanDirection) {
        // SAFETY: the iterator is alive and valid: `read_value` said so.
        unsafe {
            match way {
                ScanDirection::Up => (self.calls.iter_next)(self.iterator),
                ScanDirection::Down => (self.calls.iter_prev)(self.iterator),
            }
        }
    }

    fn end(self) -> Result<()> {
        let mut error = null_mut();
        // SAFETY: the iterator is alive until `drop`; (2).
        unsafe {
            (self.calls.iter_get_error)(self.iterator, &mut error);
            check(self.calls, error)
        }
    }
}

impl Drop for CIterator<'_> {
    fn drop(&mut self) {
        // SAFETY: created in `begin`, destroyed here, once.
        unsafe { (self.calls.iter_destroy)(self.iterator) };
    }
}

/// The table of calls that differ in nothing but their prefix, declared and filled in.
macro_rules! calls {
    ($library:literal, $table:ident, get: $get:ident, sync: $sync:ident, $($field:ident = $name:ident ($($argument:ty),*) $(-> $answer:ty)?;)*) => {
        #[link(name = $library)]
        unsafe extern "C" {
            $(fn $name($(_: $argument),*) $(-> $answer)?;)*
        }
        static $table: $crate::subjects::c_api::CApi =
            $crate::subjects::c_api::CApi { $($field: $name,)* get: $get, sync: $sync };
    };
}
pub(super) use calls;
