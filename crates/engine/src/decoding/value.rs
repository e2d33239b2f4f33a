//! # Cached value: one decompressed value in one allocation
//!
//! ```text
//!  seq | keyspace | bytes of the key | bytes of the value | key | value
//! ```
//!
//! ## Invariants
//!
//! 1. The bytes never change, so readers need no lock. The owner frees them after all readers of
//!    that time are done.

use std::marker::PhantomData;
use std::ptr::NonNull;

use sheaf_log::types::{KeyspaceId, Seq};
use sheaf_platform::memory::block_alloc;

/// Largest cached value in bytes, with its key. Larger ones are no blocks of the allocator, and a
/// copy of so many bytes takes nearly as long as their decompression.
pub(super) const MAX_BYTES: usize = block_alloc::MAX_BLOCK - HEADER_BYTES;

/// Identity of a version within a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CachedVersion<'k> {
    pub(super) keyspace: KeyspaceId,
    pub(super) seq: Seq,
    pub(super) key: &'k [u8],
}

/// Start of the allocation.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Header {
    seq: Seq,
    keyspace: KeyspaceId,
    key_len: u32,
    value_len: u32,
}

const HEADER_BYTES: usize = size_of::<Header>();

impl Header {
    fn size(&self) -> usize {
        HEADER_BYTES + self.key_len as usize + self.value_len as usize
    }
}

/// A value and the version that it belongs to. Frees its memory when dropped.
#[derive(Debug)]
pub(super) struct CachedValue(NonNull<u8>);

// SAFETY:
// * It owns its memory, which is not written any more (I1).
unsafe impl Send for CachedValue {}

/// A value that a guard protects.
#[derive(Clone, Copy, Debug)]
pub(super) struct CachedValueRef<'g> {
    start: NonNull<u8>,
    header: Header,
    lifetime: PhantomData<&'g [u8]>,
}

impl CachedValue {
    /// Copies key and value. Returns `None` if they are longer than [`MAX_BYTES`].
    pub(super) fn copy(version: CachedVersion<'_>, value: &[u8]) -> Option<CachedValue> {
        let CachedVersion { keyspace, seq, key } = version;
        CachedValue::memory_bytes(key, value)?;
        let (key_len, value_len) = (u32::try_from(key.len()).ok()?, u32::try_from(value.len()).ok()?);
        let header = Header { seq, keyspace, key_len, value_len };
        const { assert!(align_of::<Header>() <= block_alloc::block_align(0)) };
        let start = block_alloc::allocate(header.size());
        // SAFETY:
        // * The allocation has room for header, key and value in this order, with the alignment of
        //   the header, and no other code knows it.
        unsafe {
            start.cast::<Header>().write(header);
            let at = start.add(HEADER_BYTES);
            at.copy_from_nonoverlapping(NonNull::from(key).cast(), key.len());
            at.add(key.len()).copy_from_nonoverlapping(NonNull::from(value).cast(), value.len());
        }
        Some(CachedValue(start))
    }

    /// Returns the bytes that a value takes from the memory budget. Returns `None` if key and value
    /// are longer than [`MAX_BYTES`].
    pub(super) fn memory_bytes(key: &[u8], value: &[u8]) -> Option<u64> {
        let len = key.len() + value.len();
        (len <= MAX_BYTES).then(|| block_alloc::memory_bytes(HEADER_BYTES + len))
    }

    /// Returns the bytes that this value takes from the memory budget.
    pub(super) fn size(&self) -> u64 {
        // SAFETY:
        // * `self` owns the allocation, which starts with a header.
        block_alloc::memory_bytes(unsafe { self.0.cast::<Header>().read() }.size())
    }

    /// Returns the address and gives up the ownership.
    pub(super) fn into_raw(self) -> *mut u8 {
        let start = self.0.as_ptr();
        std::mem::forget(self);
        start
    }

    /// # Safety
    ///
    /// * `raw` must be null, or come from [`CachedValue::into_raw`] and be used by only one call.
    pub(super) unsafe fn from_raw(raw: *mut u8) -> Option<CachedValue> {
        NonNull::new(raw).map(CachedValue)
    }
}

impl<'g> CachedValueRef<'g> {
    /// # Safety
    ///
    /// * `raw` must be null or come from [`CachedValue::into_raw`]. The value must not be freed
    ///   within `'g`.
    pub(super) unsafe fn from_raw(raw: *mut u8) -> Option<CachedValueRef<'g>> {
        let start = NonNull::new(raw)?;
        // SAFETY:
        // * The caller promises that the value is there. It starts with a header.
        let header = unsafe { start.cast::<Header>().read() };
        Some(CachedValueRef { start, header, lifetime: PhantomData })
    }

    fn bytes(self, at: usize, len: u32) -> &'g [u8] {
        // SAFETY:
        // * `copy` wrote `key_len` and `value_len` bytes behind the header. They live as long as
        //   `'g`, as the caller of `from_raw` promised, and never change (I1).
        unsafe { std::slice::from_raw_parts(self.start.add(HEADER_BYTES + at).as_ptr(), len as usize) }
    }

    /// Returns the value if it belongs to `version`.
    #[inline]
    pub(super) fn value_of(self, version: CachedVersion<'_>) -> Option<&'g [u8]> {
        let Header { seq, keyspace, key_len, value_len } = self.header;
        let is_same = (seq, keyspace) == (version.seq, version.keyspace);
        (is_same && self.bytes(0, key_len) == version.key).then(|| self.bytes(key_len as usize, value_len))
    }
}

impl Drop for CachedValue {
    fn drop(&mut self) {
        // SAFETY:
        // * `self` owns the allocation, which starts with a header. `copy` allocated it with the
        //   size that the header gives.
        unsafe {
            let size = self.0.cast::<Header>().read().size();
            block_alloc::free(self.0, size);
        }
    }
}
