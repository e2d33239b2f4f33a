//! # Page advice: hints about the pages of a mapped file
//!
//! Linux has all of them (`madvise`). On other systems the hints about page tables are refused;
//! then a mapping never becomes resident, and appends use writes.

use std::io;

/// Advice about pages of a shared mapping of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageAdvice {
    /// A forked child does not get the mapping.
    NotInChildren,
    /// The pages are about to be stored to: makes them writable.
    PopulateWrite,
    /// The pages are about to be read: maps them.
    PopulateRead,
    /// Drops the page table entries. The bytes stay in the file.
    UnmapPages,
    /// The pages are read soon.
    WillNeed,
    /// The pages are read in random order.
    Random,
}

/// Passes the advice to the system.
///
/// # Safety
///
/// The range belongs to a shared mapping of a file that the caller owns. No advice changes bytes.
#[cfg(target_os = "linux")]
pub(super) unsafe fn advise(start: *mut u8, len: usize, advice: PageAdvice) -> io::Result<()> {
    use rustix::mm::{Advice, madvise};
    let advice = match advice {
        PageAdvice::NotInChildren => Advice::LinuxDontFork,
        PageAdvice::PopulateWrite => Advice::LinuxPopulateWrite,
        PageAdvice::PopulateRead => Advice::LinuxPopulateRead,
        PageAdvice::UnmapPages => Advice::LinuxDontNeed,
        PageAdvice::WillNeed => Advice::WillNeed,
        PageAdvice::Random => Advice::Random,
    };
    // SAFETY:
    // * The caller owns the range. No advice value in use changes bytes of a shared file mapping.
    Ok(unsafe { madvise(start.cast(), len, advice) }?)
}

/// Passes the advice to the system.
///
/// # Errors
///
/// `Unsupported` for advice that the system does not have.
///
/// # Safety
///
/// The range belongs to a shared mapping of a file that the caller owns. No advice changes bytes.
#[cfg(not(target_os = "linux"))]
pub(super) unsafe fn advise(start: *mut u8, len: usize, advice: PageAdvice) -> io::Result<()> {
    #[cfg(target_vendor = "apple")]
    const NOT_INHERITED: libc::c_int = libc::VM_INHERIT_NONE;
    #[cfg(not(target_vendor = "apple"))]
    const NOT_INHERITED: libc::c_int = libc::INHERIT_NONE;
    // SAFETY:
    // * The caller owns the range. Neither call changes its bytes.
    let answer = unsafe {
        match advice {
            PageAdvice::NotInChildren => libc::minherit(start.cast(), len, NOT_INHERITED),
            PageAdvice::WillNeed => libc::madvise(start.cast(), len, libc::MADV_WILLNEED),
            PageAdvice::Random => libc::madvise(start.cast(), len, libc::MADV_RANDOM),
            PageAdvice::PopulateWrite | PageAdvice::PopulateRead | PageAdvice::UnmapPages => {
                return Err(io::ErrorKind::Unsupported.into());
            }
        }
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
