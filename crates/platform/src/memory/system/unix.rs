//! # Memory of Unix systems: `mmap`, `munmap` and `madvise`

use std::ffi::c_void;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Returns the page size in bytes.
pub(in crate::memory) fn page_size() -> usize {
    rustix::param::page_size()
}

/// Maps `len` bytes of zeros at a multiple of `align`. `None` if there is no memory.
pub(in crate::memory) fn map_aligned(len: usize, align: usize) -> Option<NonNull<u8>> {
    // The system places mappings of the same size next to each other, so the first address is
    // mostly aligned.
    let start = map(len)?;
    if start.addr().get().is_multiple_of(align) {
        return Some(start);
    }
    // SAFETY:
    // * The whole range was mapped just now, and no other code knows it.
    unsafe { unmap(start, len) };
    let start = map(len.checked_add(align)?)?;
    let before = start.addr().get().next_multiple_of(align) - start.addr().get();
    // SAFETY:
    // * `before <= align`, so all addresses are in the new mapping, which no other code knows. The
    //   unmapped parts are before or behind the part that stays.
    unsafe {
        let aligned = start.add(before);
        unmap(start, before);
        unmap(aligned.add(len), align - before);
        Some(aligned)
    }
}

fn map(len: usize) -> Option<NonNull<u8>> {
    // SAFETY:
    // * The call creates a new private mapping in an unused range.
    let mapped = unsafe {
        mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    };
    NonNull::new(mapped.ok()?.cast::<u8>())
}

/// Unmaps a range.
///
/// # Safety
///
/// The range consists of whole pages of a mapping that the caller owns. No code uses it any more.
pub(in crate::memory) unsafe fn unmap(start: NonNull<u8>, len: usize) {
    if len == 0 {
        return;
    }
    // SAFETY:
    // * The caller guarantees that the range is unused. If the system refuses (too many mappings),
    //   the range stays mapped, but its pages are released.
    unsafe {
        if munmap(start.as_ptr().cast::<c_void>(), len).is_err() {
            let _ = release(start, len);
        }
    }
}

/// Gives the memory of whole pages back to the system. The range reads as zeros or as before until
/// it is written again; on Linux as zeros. Returns false if the system refuses.
///
/// # Safety
///
/// The range belongs to the caller, no thread uses it during the call, and both contents are valid.
pub(in crate::memory) unsafe fn release(start: NonNull<u8>, len: usize) -> bool {
    #[cfg(target_os = "linux")]
    const ADVICE: libc::c_int = libc::MADV_DONTNEED;
    // MADV_DONTNEED of other systems keeps the memory.
    #[cfg(not(target_os = "linux"))]
    const ADVICE: libc::c_int = libc::MADV_FREE;
    // SAFETY:
    // * The range consists of whole pages that belong to the caller: no other memory changes.
    // * The caller guarantees that every content that it may have now is valid.
    unsafe { libc::madvise(start.as_ptr().cast(), len, ADVICE) == 0 }
}
