//! # Huge pages: collapsing of fully used memory
//!
//! A read from a cache that is far larger than the processor's caches misses twice: for the line
//! and for its page table entry. The background therefore collapses halves of regions that are
//! fully resident to huge pages, a few at a time. A thread that loads a block never waits for the
//! system to find a huge page, and no memory is added.
//!
//! Callers must not use this while memory is short. Evictions split huge pages again, and their
//! memory stays with the process until the system reclaims it.
//!
//! ## Threads
//!
//! One thread at a time; a second caller returns at once. A reader of a half that is being
//! collapsed waits for the system. After a fork during a call the child cannot collapse any more.

use std::ffi::c_void;
use std::ptr::with_exposed_provenance_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use super::{CHUNK_BYTES, MIN_PAGE, REGION, SPARE, lock, page_bytes};
use crate::memory::HUGE_PAGE;

/// Maximum number of halves checked in one call.
const HALVES_CHECKED: usize = 64;
/// Maximum number of halves collapsed in one call: each takes milliseconds if the processors are
/// busy.
const MAX_COLLAPSED: usize = 8;
/// Number of calls that do nothing after the system had no huge page.
const BACKOFF_CALLS: u32 = 64;
/// Maximum number of pages of a half.
const PAGES: usize = HUGE_PAGE / MIN_PAGE;
const HALVES: usize = REGION / HUGE_PAGE;

/// A scan over all halves.
#[derive(Debug)]
pub(super) struct HalfScan {
    next: usize,
    has_found: bool,
    /// Number of further calls that do nothing.
    pub(super) backoff: u32,
}

impl HalfScan {
    /// Returns the next half. Returns `None` at the end of a round; the next call begins a new one.
    fn next(&mut self) -> Option<usize> {
        let half = lock(&SPARE)
            .regions
            .get(self.next / HALVES)
            .map(|region| region + self.next % HALVES * HUGE_PAGE);
        self.next = half.map_or(0, |_| self.next + 1);
        half
    }
}

pub(super) static HALF_SCAN: Mutex<HalfScan> = Mutex::new(HalfScan { next: 0, has_found: false, backoff: 0 });
/// Value of `CHUNK_BYTES` when a whole round found nothing. Pages that become resident later
/// without changing `CHUNK_BYTES` wait for its next change.
static UNCHANGED_BYTES: AtomicU64 = AtomicU64::new(u64::MAX);
/// Advice that collapses a range to huge pages. The libc crate does not define it for musl.
const MADV_COLLAPSE: libc::c_int = 25;
/// True if the system does not support the call.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Returns whether the administrator permits huge pages. (MADV_COLLAPSE itself ignores that
/// setting.)
pub(super) fn is_allowed() -> bool {
    static ALLOWED: OnceLock<bool> = OnceLock::new();
    *ALLOWED.get_or_init(|| {
        let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
        setting.is_ok_and(|setting| !setting.contains("[never]"))
    }) && !REFUSED.load(Ordering::Relaxed)
}

/// Returns true if every page of the half is resident.
fn is_fully_resident(half: usize) -> bool {
    let mut there = [0u8; PAGES];
    let pages = &mut there[..HUGE_PAGE / page_bytes()];
    let start = with_exposed_provenance_mut::<c_void>(half);
    // SAFETY:
    // * The call writes one byte for each page of the half, and `pages` has as many.
    let failed = unsafe { libc::mincore(start, HUGE_PAGE, pages.as_mut_ptr()) };
    failed == 0 && pages.iter().all(|page| page & 1 == 1)
}

/// Collapses the half to a huge page. Returns false if the system does not.
fn collapse(half: usize) -> bool {
    lock(&SPARE).collapsed.insert(half); // first: a release during the call removes it
    let start = with_exposed_provenance_mut::<c_void>(half);
    // SAFETY:
    // * The advice (which rustix lacks) changes how the half is backed, never its content.
    let failed = unsafe { libc::madvise(start, HUGE_PAGE, MADV_COLLAPSE) } != 0;
    if failed {
        let error = std::io::Error::last_os_error();
        REFUSED.fetch_or(error.raw_os_error() == Some(libc::EINVAL), Ordering::Relaxed);
        lock(&SPARE).collapsed.remove(&half);
    }
    !failed
}

/// Collapses some halves of regions that are fully resident to huge pages, if there are any.
pub fn collapse_some() {
    let held = CHUNK_BYTES.load(Ordering::Relaxed);
    if UNCHANGED_BYTES.load(Ordering::Relaxed) == held || !is_allowed() {
        return;
    }
    let Ok(mut round) = HALF_SCAN.try_lock() else { return };
    if round.backoff > 0 {
        round.backoff -= 1;
        return;
    }
    let mut gathered = 0;
    for _ in 0..HALVES_CHECKED {
        let Some(half) = round.next() else {
            if !std::mem::take(&mut round.has_found) {
                UNCHANGED_BYTES.store(held, Ordering::Relaxed);
            }
            return;
        };
        if lock(&SPARE).collapsed.contains(&half) || !is_fully_resident(half) {
            continue;
        }
        round.has_found = true;
        if !collapse(half) {
            round.backoff = BACKOFF_CALLS;
            return;
        }
        gathered += 1;
        if gathered == MAX_COLLAPSED {
            return;
        }
    }
}
