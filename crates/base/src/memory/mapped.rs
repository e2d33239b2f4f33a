//! # Mapped: large memory straight from the system, and straight back
//!
//! An allocator keeps what is freed, in case it is wanted again: for seconds, for as long as the
//! thread that freed it has nothing to do, or for ever. What is large and goes at once, such as a
//! memtable's, would so be in memory twice: under the budget as the next one, and beside it as what
//! the allocator kept of the last one. This goes back when it is dropped.
//!
//! ## Costs
//!
//! Two system calls, four if the first place is not aligned; and a fault and a page of zeros for
//! each page that is touched.

use std::alloc::{Layout, handle_alloc_error};
use std::ffi::c_void;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::{HUGE_PAGE, prefer_huge_pages};

/// Memory of zeros that takes nothing until it is written. Gives no access: its owner knows what is
/// where.
#[derive(Debug)]
pub struct MappedMemory {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY:
// * Memory of the process; this keeps it mapped and gives no access.
unsafe impl Send for MappedMemory {}
// SAFETY:
// * As above: `&MappedMemory` gives no access.
unsafe impl Sync for MappedMemory {}

impl MappedMemory {
    /// `len` bytes at a multiple of `align`, both of whole pages, `align` a power of two. From the
    /// size of a huge page on backed by such, if the system has some to give. The process ends if
    /// there is no memory, as for a box.
    #[must_use]
    pub fn new(len: usize, align: usize) -> MappedMemory {
        let mapped = MappedMemory::with_base_pages(len, align);
        if len >= HUGE_PAGE && align >= HUGE_PAGE {
            prefer_huge_pages(mapped.start, len);
        }
        mapped
    }

    /// The same, on usual pages unless the system gives huge ones unasked.
    #[must_use]
    pub fn with_base_pages(len: usize, align: usize) -> MappedMemory {
        let page = rustix::param::page_size();
        assert!(len > 0 && len.is_multiple_of(page) && align.is_power_of_two(), "whole pages");
        // Neighbours of the same size lie one below the other: mostly the first place is good.
        let mut start = map(len);
        if !start.addr().get().is_multiple_of(align) {
            // SAFETY:
            // * Mapped just now, all of it, and nobody knows it.
            unsafe { unmap(start, len) };
            start = map_aligned(len, align);
        }
        MappedMemory { start, len }
    }

    /// Where it begins.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Hands it to the caller, who keeps the address and the length only.
    #[must_use]
    pub fn into_start(self) -> NonNull<u8> {
        std::mem::ManuallyDrop::new(self).start
    }

    /// Takes it up again.
    ///
    /// # Safety
    ///
    /// `start` is of [`MappedMemory::into_start`], once, of memory of `len` bytes; nobody touches
    /// what lies there once this is dropped.
    #[must_use]
    pub unsafe fn from_start(start: NonNull<u8>, len: usize) -> MappedMemory {
        MappedMemory { start, len }
    }
}

impl Drop for MappedMemory {
    fn drop(&mut self) {
        // SAFETY:
        // * Mapped in `new`, these bytes, and owned.
        unsafe { unmap(self.start, self.len) }
    }
}

fn map(len: usize) -> NonNull<u8> {
    // SAFETY:
    // * A new private mapping, where nothing is.
    let mapped = unsafe {
        mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    };
    match mapped.ok().and_then(|start| NonNull::new(start.cast::<u8>())) {
        Some(start) => start,
        None => handle_alloc_error(Layout::from_size_align(len, 1).unwrap_or(Layout::new::<u8>())),
    }
}

/// Maps more, and gives back what is too much before and behind.
fn map_aligned(len: usize, align: usize) -> NonNull<u8> {
    let start = map(len + align);
    let before = start.addr().get().next_multiple_of(align) - start.addr().get();
    // SAFETY:
    // * `before <= align`, so all is in the new mapping, which nobody knows; what is unmapped is
    //   before or behind what stays.
    unsafe {
        let aligned = start.add(before);
        unmap(start, before);
        unmap(aligned.add(len), align - before);
        aligned
    }
}

/// # Safety
///
/// Whole pages of a mapping of ours, which nobody touches any more.
unsafe fn unmap(start: NonNull<u8>, len: usize) {
    if len > 0 {
        // SAFETY:
        // * The caller's promise.
        // A refusal (too many mappings) leaves it mapped; what it holds is given back at least.
        unsafe {
            if munmap(start.as_ptr().cast::<c_void>(), len).is_err() {
                let _ = super::release_pages(start, len);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_aligned_of_zeros_and_can_be_handed_on() {
        let page = rustix::param::page_size();
        for (len, align) in
            [(page, page), (3 * page, 64 * page), (HUGE_PAGE, HUGE_PAGE), (2 * HUGE_PAGE, HUGE_PAGE)]
        {
            let mapped = MappedMemory::new(len, align);
            assert!(mapped.start().addr().get().is_multiple_of(align));
            let start = mapped.into_start();
            // SAFETY:
            // * Mapped just now, so many bytes, ours alone.
            unsafe {
                assert_eq!((*start.as_ptr(), *start.add(len - 1).as_ptr()), (0, 0));
                start.as_ptr().write_bytes(7, len);
                drop(MappedMemory::from_start(start, len));
            }
        }
    }
}
