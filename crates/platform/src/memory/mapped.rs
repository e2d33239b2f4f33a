//! # Mapped memory: large memory directly from the system
//!
//! An allocator keeps freed memory for reuse, sometimes for ever. Large memory that is freed at
//! once, such as a memtable, would then exist twice: in its successor, and uncounted in the
//! allocator. Mapped memory is unmapped when it is dropped.
//!
//! ## Costs
//!
//! Two system calls, four if the first address is not aligned. Each page costs a fault and zeroing
//! at the first access.

use std::alloc::{Layout, handle_alloc_error};
use std::ptr::NonNull;

use super::{HUGE_PAGE, prefer_huge_pages, system};

/// Memory of zeros. It uses no pages until it is written. Gives no access: its owner knows the
/// layout.
#[derive(Debug)]
pub struct MappedMemory {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY:
// * The memory belongs to the process, not to a thread. `MappedMemory` keeps it mapped and gives no
//   access.
unsafe impl Send for MappedMemory {}
// SAFETY:
// * As above: `&MappedMemory` gives no access.
unsafe impl Sync for MappedMemory {}

impl MappedMemory {
    /// Maps `len` bytes at a multiple of `align`. `len` must be a multiple of the page size,
    /// `align` a power of two. With the length and alignment of a huge page or more, the memory is
    /// backed by huge pages if the system has some. Aborts the process if there is no memory, like
    /// [`Box::new`].
    #[must_use]
    pub fn new(len: usize, align: usize) -> MappedMemory {
        let mapped = MappedMemory::with_base_pages(len, align);
        if len >= HUGE_PAGE && align >= HUGE_PAGE {
            prefer_huge_pages(mapped.start, len);
        }
        mapped
    }

    /// Like [`MappedMemory::new`], but does not ask for huge pages.
    #[must_use]
    pub fn with_base_pages(len: usize, align: usize) -> MappedMemory {
        let page = system::page_size();
        assert!(len > 0 && len.is_multiple_of(page) && align.is_power_of_two(), "whole pages");
        match system::map_aligned(len, align) {
            Some(start) => MappedMemory { start, len },
            None => handle_alloc_error(Layout::from_size_align(len, 1).unwrap_or(Layout::new::<u8>())),
        }
    }

    /// Returns the start of the memory.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Gives the memory to the caller, which keeps only the address and the length.
    #[must_use]
    pub fn into_start(self) -> NonNull<u8> {
        std::mem::ManuallyDrop::new(self).start
    }

    /// Takes the memory back.
    ///
    /// # Safety
    ///
    /// `start` comes from [`MappedMemory::into_start`] and is passed here only once. The memory has
    /// `len` bytes. No other code uses it after the result is dropped.
    #[must_use]
    pub unsafe fn from_start(start: NonNull<u8>, len: usize) -> MappedMemory {
        MappedMemory { start, len }
    }
}

impl Drop for MappedMemory {
    fn drop(&mut self) {
        // SAFETY:
        // * `new` mapped exactly these bytes, and `self` owns them.
        unsafe { system::unmap(self.start, self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_aligned_of_zeros_and_can_be_handed_on() {
        let page = system::page_size();
        for (len, align) in
            [(page, page), (3 * page, 64 * page), (HUGE_PAGE, HUGE_PAGE), (2 * HUGE_PAGE, HUGE_PAGE)]
        {
            let mapped = MappedMemory::new(len, align);
            assert!(mapped.start().addr().get().is_multiple_of(align));
            let start = mapped.into_start();
            // SAFETY:
            // * The memory was mapped just now with `len` bytes, and no other code knows it.
            unsafe {
                assert_eq!((*start.as_ptr(), *start.add(len - 1).as_ptr()), (0, 0));
                start.as_ptr().write_bytes(7, len);
                drop(MappedMemory::from_start(start, len));
            }
        }
    }
}
