//! # Memory of the system: pages, on each operating system
//!
//! Calls that map and release memory, for `MappedMemory` and the block allocator. Only Linux has
//! huge pages here; the advice does nothing elsewhere.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub(super) use self::unix::{map_aligned, page_size, release, unmap};
#[cfg(windows)]
pub(super) use self::windows::{map_aligned, page_size, release, unmap};

use std::ptr::NonNull;

/// Preferred backing of a range.
#[derive(Clone, Copy, Debug)]
pub(super) enum PagePreference {
    Huge,
    Base,
}

/// Advises the system how to back a range of the caller. A refusal only costs time.
#[cfg(target_os = "linux")]
pub(super) fn prefer(start: NonNull<u8>, len: usize, preference: PagePreference) {
    use rustix::mm::{Advice, madvise};
    let advice = match preference {
        PagePreference::Huge => Advice::LinuxHugepage,
        PagePreference::Base => Advice::LinuxNoHugepage,
    };
    // SAFETY:
    // * The advice changes how the range is backed, never its content. The system refuses it for a
    //   range that is not mapped.
    let _ = unsafe { madvise(start.as_ptr().cast(), len, advice) };
}

/// Does nothing: this system has no such advice.
#[cfg(not(target_os = "linux"))]
pub(super) fn prefer(start: NonNull<u8>, len: usize, preference: PagePreference) {
    let _ = (start, len, preference);
}
