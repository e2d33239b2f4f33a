//! # Memory of Windows: `VirtualAlloc` and `VirtualFree`

use std::ptr::{self, NonNull};

use windows_sys::Win32::System::Memory::{
    MEM_COMMIT, MEM_RELEASE, MEM_RESERVE, PAGE_READWRITE, VirtualAlloc, VirtualFree,
};
use windows_sys::Win32::System::SystemInformation::{GetSystemInfo, SYSTEM_INFO};

/// Attempts to allocate at an aligned address before another thread takes it.
const ATTEMPTS: usize = 64;

/// Returns the page size in bytes.
pub(in crate::memory) fn page_size() -> usize {
    let mut info = SYSTEM_INFO::default();
    // SAFETY:
    // * `info` is a valid place for the answer.
    unsafe { GetSystemInfo(&raw mut info) };
    usize::try_from(info.dwPageSize).unwrap_or(4096)
}

/// Allocates `len` bytes of zeros at a multiple of `align`. `None` if there is no memory.
pub(in crate::memory) fn map_aligned(len: usize, align: usize) -> Option<NonNull<u8>> {
    for _ in 0..ATTEMPTS {
        let start = allocate(ptr::null_mut(), len)?;
        if start.addr().get().is_multiple_of(align) {
            return Some(start);
        }
        // SAFETY:
        // * The range was allocated just now, and no other code knows it.
        unsafe { unmap(start, len) };
        // Windows frees only whole allocations: find an address with space around it, free it, and
        // allocate the aligned part before another thread does.
        let found = reserve(len.checked_add(align)?)?;
        let before = found.addr().get().next_multiple_of(align) - found.addr().get();
        let aligned = found.as_ptr().wrapping_add(before);
        // SAFETY:
        // * As above.
        unsafe { unmap(found, len) };
        if let Some(start) = allocate(aligned, len) {
            return Some(start);
        }
    }
    None
}

/// Allocates `len` bytes at `address`, or anywhere if it is null.
fn allocate(address: *mut u8, len: usize) -> Option<NonNull<u8>> {
    // SAFETY:
    // * The call allocates only unused addresses.
    let start = unsafe { VirtualAlloc(address.cast(), len, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE) };
    NonNull::new(start.cast())
}

/// Reserves `len` bytes of addresses.
fn reserve(len: usize) -> Option<NonNull<u8>> {
    // SAFETY:
    // * The call reserves only unused addresses.
    let start = unsafe { VirtualAlloc(ptr::null(), len, MEM_RESERVE, PAGE_READWRITE) };
    NonNull::new(start.cast())
}

/// Frees an allocation.
///
/// # Safety
///
/// `start` is that of an allocation of this module. No code uses the memory any more.
pub(in crate::memory) unsafe fn unmap(start: NonNull<u8>, _len: usize) {
    // SAFETY:
    // * The caller guarantees it. With MEM_RELEASE the length must be 0.
    let freed = unsafe { VirtualFree(start.as_ptr().cast(), 0, MEM_RELEASE) };
    debug_assert!(freed != 0, "a whole allocation can be freed");
}

/// Returns false: Windows has no call that releases pages and cannot fail to return them later.
///
/// # Safety
///
/// The range belongs to the caller.
pub(in crate::memory) unsafe fn release(_start: NonNull<u8>, _len: usize) -> bool {
    false
}
