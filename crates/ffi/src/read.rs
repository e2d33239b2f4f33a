//! # Reads of single keys, for keyspaces of databases and of snapshots

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::time::UNIX_EPOCH;

use sheaf::{Expiry, Value};

use crate::boundary::callback::sheaf_read_fn;
use crate::boundary::code::sheaf_code;
use crate::boundary::error::sheaf_error;
use crate::boundary::memory::{handle_out, sheaf_buffer, sheaf_bytes, sheaf_value};
use crate::boundary::{Failure, Outcome, call, found, given, invalid};
use crate::keyspace::{Source, readable, sheaf_keyspace};

impl Source {
    #[inline]
    fn get_with<R>(&self, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Outcome<R> {
        let result = match self {
            Source::Live(keyspace) => keyspace.get_with(key, read),
            Source::Snapshot(keyspace) => keyspace.get_with(key, read),
        };
        found(result?)
    }

    fn get(&self, key: &[u8]) -> Outcome<Value> {
        self.get_with(key, Value::new)
    }

    fn get_range(&self, key: &[u8], range: Range<u64>) -> Outcome<Value> {
        let result = match self {
            Source::Live(keyspace) => keyspace.get_range(key, range),
            Source::Snapshot(keyspace) => keyspace.get_range(key, range),
        };
        found(result?)
    }

    fn multi_get(&self, keys: &[&[u8]]) -> Outcome<Vec<Option<Value>>> {
        Ok(match self {
            Source::Live(keyspace) => keyspace.multi_get(keys)?,
            Source::Snapshot(keyspace) => keyspace.multi_get(keys)?,
        })
    }

    fn end(&self, is_first: bool) -> Outcome<(Value, Value)> {
        let pair = match (self, is_first) {
            (Source::Live(keyspace), true) => keyspace.first(),
            (Source::Live(keyspace), false) => keyspace.last(),
            (Source::Snapshot(keyspace), true) => keyspace.first(),
            (Source::Snapshot(keyspace), false) => keyspace.last(),
        };
        found(pair?)
    }
}

/// Copies the value of `key` to `buffer`, and writes its size to `value_size` (may be NULL).
/// Returns `SHEAF_NOT_FOUND` if the key does not exist, and `SHEAF_BUFFER_TOO_SMALL` if the value
/// does not fit; `value_size` then has the needed size, and nothing is copied. A missing key has
/// size 0. This is the fastest read.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_get_into(
    keyspace: Option<&sheaf_keyspace>,
    key: sheaf_bytes<'_>,
    mut buffer: sheaf_buffer<'_>,
    value_size: Option<&mut MaybeUninit<usize>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let mut size = 0;
        let copied = readable(keyspace).and_then(|keyspace| {
            keyspace.get_with(key.get("key")?, |value| {
                size = value.len();
                buffer.write(value)
            })
        });
        if let Some(value_size) = value_size {
            value_size.write(size);
        }
        match copied?? {
            true => Ok(()),
            false => Err(Failure::Plain(sheaf_code::SHEAF_BUFFER_TOO_SMALL)),
        }
    })
}

/// Returns the value of `key`. Returns `SHEAF_NOT_FOUND` if the key does not exist.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_get(
    keyspace: Option<&sheaf_keyspace>,
    key: sheaf_bytes<'_>,
    value: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let value = handle_out(value, "value")?;
        value.write(sheaf_value::handle(readable(keyspace)?.get(key.get("key")?)?));
        Ok(())
    })
}

/// Calls `read` with the value of `key`, without a copy if the engine has it in memory. Returns
/// `SHEAF_NOT_FOUND` without a call if the key does not exist.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_read_with(
    keyspace: Option<&sheaf_keyspace>,
    key: sheaf_bytes<'_>,
    read: sheaf_read_fn,
    context: *mut c_void,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let read = given(read, "read")?;
        readable(keyspace)?.get_with(key.get("key")?, |value| read(context, sheaf_bytes::of(value)))
    })
}

/// Returns at most `size` bytes of the value of `key` from `offset` on. Positions after its end are
/// ignored. Does not load the rest of a large value.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_get_range(
    keyspace: Option<&sheaf_keyspace>,
    key: sheaf_bytes<'_>,
    offset: u64,
    size: u64,
    value: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let value = handle_out(value, "value")?;
        let range = offset..offset.saturating_add(size);
        value.write(sheaf_value::handle(readable(keyspace)?.get_range(key.get("key")?, range)?));
        Ok(())
    })
}

/// Returns the values of `count` keys in `values`, an array of `count` places. A missing key has
/// the value NULL. Faster than single calls of `sheaf_get`. After an error all places are NULL.
///
/// Threads: any, also at the same time.
///
/// # Safety
///
/// `keys` and `values` must be arrays of `count` elements, or NULL if `count` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sheaf_multi_get(
    keyspace: Option<&sheaf_keyspace>,
    keys: *const sheaf_bytes<'_>,
    count: usize,
    values: *mut *mut sheaf_value,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        if count == 0 {
            readable(keyspace)?;
            return Ok(());
        }
        let is_too_many = count > isize::MAX.unsigned_abs() / size_of::<sheaf_bytes<'_>>();
        if keys.is_null() || values.is_null() || is_too_many {
            return Err(invalid("keys", &format!("{count} keys at {keys:?}, values at {values:?}")));
        }
        // SAFETY: the caller passes `count` pointers, of which NULL is valid.
        unsafe { std::ptr::write_bytes(values, 0, count) };
        // SAFETY: all `count` places have just been initialized.
        let places = unsafe { std::slice::from_raw_parts_mut(values, count) };
        // SAFETY: the caller passes `count` ranges.
        let keys = unsafe { std::slice::from_raw_parts(keys, count) };
        let keys = keys.iter().map(|key| key.get("key")).collect::<Outcome<Vec<_>>>()?;
        let found = readable(keyspace)?.multi_get(&keys)?;
        for (place, value) in places.iter_mut().zip(found) {
            *place = value.map_or(std::ptr::null_mut(), sheaf_value::handle);
        }
        Ok(())
    })
}

/// Returns the size of the value of `key` in bytes. Does not read a large value. Returns
/// `SHEAF_NOT_FOUND` if the key does not exist.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_size_of(
    keyspace: Option<&sheaf_keyspace>,
    key: sheaf_bytes<'_>,
    value_size: Option<&mut MaybeUninit<u64>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let size = match readable(keyspace)? {
            Source::Live(keyspace) => found(keyspace.size_of(key.get("key")?)?)?,
            Source::Snapshot(keyspace) => found(keyspace.reader(key.get("key")?)?)?.len(),
        };
        given(value_size, "value_size")?.write(size);
        Ok(())
    })
}

/// Returns `SHEAF_OK` if `key` exists, and `SHEAF_NOT_FOUND` if not. Does not copy the value.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_contains_key(
    keyspace: Option<&sheaf_keyspace>,
    key: sheaf_bytes<'_>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let has_key = match readable(keyspace)? {
            Source::Live(keyspace) => keyspace.contains_key(key.get("key")?)?,
            Source::Snapshot(keyspace) => keyspace.contains_key(key.get("key")?)?,
        };
        found(has_key.then_some(()))
    })
}

/// Returns the time at which `key` expires, in milliseconds since 1970, or 0 if it never does.
/// Returns `SHEAF_NOT_FOUND` if the key does not exist or has expired.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_expires_at(
    keyspace: Option<&sheaf_keyspace>,
    key: sheaf_bytes<'_>,
    expires_at_ms: Option<&mut MaybeUninit<u64>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let expiry = found(match readable(keyspace)? {
            Source::Live(keyspace) => keyspace.expires_at(key.get("key")?)?,
            Source::Snapshot(keyspace) => keyspace.expires_at(key.get("key")?)?,
        })?;
        let ms = match expiry {
            Expiry::At(time) => time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis(),
            Expiry::Never => 0,
        };
        given(expires_at_ms, "expires_at_ms")?.write(u64::try_from(ms).unwrap_or(u64::MAX));
        Ok(())
    })
}

/// Returns the path of the file that contains exactly the value of `key`. Returns
/// `SHEAF_NOT_FOUND` if the value has no file of its own. The file must not be modified. Not for
/// keyspaces of snapshots (`SHEAF_READ_ONLY`).
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_blob_path(
    keyspace: Option<&sheaf_keyspace>,
    key: sheaf_bytes<'_>,
    path: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    use std::os::unix::ffi::OsStrExt;
    call(error, || {
        let path = handle_out(path, "path")?;
        let file = found(crate::keyspace::writable(keyspace)?.blob_path(key.get("key")?)?)?;
        path.write(sheaf_value::handle(file.as_os_str().as_bytes()));
        Ok(())
    })
}

/// Returns the number of keys. Engines without a counter, and snapshots, count all keys.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_len(
    keyspace: Option<&sheaf_keyspace>,
    count: Option<&mut MaybeUninit<u64>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let len = match readable(keyspace)? {
            Source::Live(keyspace) => keyspace.len()?,
            Source::Snapshot(keyspace) => keyspace.len()?,
        };
        given(count, "count")?.write(len);
        Ok(())
    })
}

/// Writes true to `is_empty` if there are no keys, and false otherwise. Reads at most one key.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_is_empty(
    keyspace: Option<&sheaf_keyspace>,
    is_empty: Option<&mut MaybeUninit<bool>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let answer = match readable(keyspace)? {
            Source::Live(keyspace) => keyspace.is_empty()?,
            Source::Snapshot(keyspace) => keyspace.is_empty()?,
        };
        given(is_empty, "is_empty")?.write(answer);
        Ok(())
    })
}

/// Returns the pair with the lowest key. Returns `SHEAF_NOT_FOUND` if there are no keys. Needs an
/// ordered engine.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_first(
    keyspace: Option<&sheaf_keyspace>,
    key: Option<&mut MaybeUninit<*mut sheaf_value>>,
    value: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || write_pair(key, value, || readable(keyspace)?.end(true)))
}

/// Returns the pair with the highest key. Returns `SHEAF_NOT_FOUND` if there are no keys. Needs an
/// ordered engine.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_last(
    keyspace: Option<&sheaf_keyspace>,
    key: Option<&mut MaybeUninit<*mut sheaf_value>>,
    value: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || write_pair(key, value, || readable(keyspace)?.end(false)))
}

/// Writes a pair as two values. Each place may be NULL, unless both are.
pub(crate) fn write_pair(
    key: Option<&mut MaybeUninit<*mut sheaf_value>>,
    value: Option<&mut MaybeUninit<*mut sheaf_value>>,
    find: impl FnOnce() -> Outcome<(Value, Value)>,
) -> Outcome<()> {
    if key.is_none() && value.is_none() {
        return Err(invalid("key", "it is NULL, and so is value"));
    }
    let mut places = [key, value];
    places.iter_mut().flatten().for_each(|place| _ = place.write(std::ptr::null_mut()));
    let pair = find()?;
    for (place, bytes) in places.into_iter().zip([pair.0, pair.1]) {
        if let Some(place) = place {
            place.write(sheaf_value::handle(bytes));
        }
    }
    Ok(())
}
