//! # Huge: pieces that stay come to stand on huge pages
//!
//! Whoever reads from a cache far larger than the processor's misses twice for a line: the line,
//! and where its page is. Halves of regions that have all of their memory are brought together on
//! huge pages, a few at a time, by the background: nobody who loads a block waits for the system to
//! find one, and nothing is taken that was not there before.
//!
//! Where memory is short this is not for: what a cache lets go then takes a huge page apart again,
//! and its memory is the process's until the system wants it. Callers see to that.
//!
//! ## Threads
//!
//! One at a time; who comes second goes away. A reader of a half that is on its way waits until it
//! is there. After a fork in the midst of it the child has none.

use std::ffi::c_void;
use std::ptr::with_exposed_provenance_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use super::{CHUNK_BYTES, MIN_PAGE, REGION, SPARE, lock, page_bytes};
use crate::memory::HUGE_PAGE;

/// Halves looked at in a call.
const HALVES_CHECKED: usize = 64;
/// Halves brought together in a call: some milliseconds each where the processors are busy (5 in
/// the middle, 8 at most, of 183).
const MAX_COLLAPSED: usize = 8;
/// Calls that do nothing after the system had no huge page to give.
const BACKOFF_CALLS: u32 = 64;
/// Pages of a half at most.
const PAGES: usize = HUGE_PAGE / MIN_PAGE;
const HALVES: usize = REGION / HUGE_PAGE;

/// A walk over all halves.
#[derive(Debug)]
pub(super) struct HalfScan {
    next: usize,
    has_found: bool,
    /// Calls that do nothing.
    pub(super) backoff: u32,
}

impl HalfScan {
    /// The next half; none at the end of a round, and the next one begins.
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
/// The memory there was when a whole round found nothing: what is written later into chunks of then
/// waits for the next change.
static UNCHANGED_BYTES: AtomicU64 = AtomicU64::new(u64::MAX);
/// The system cannot do it.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Whether whoever runs the system lets programs have huge pages. (The call itself would not ask.)
pub(super) fn is_allowed() -> bool {
    static ALLOWED: OnceLock<bool> = OnceLock::new();
    *ALLOWED.get_or_init(|| {
        let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
        setting.is_ok_and(|setting| !setting.contains("[never]"))
    }) && !REFUSED.load(Ordering::Relaxed)
}

/// Every page of the half has its memory.
fn is_fully_resident(half: usize) -> bool {
    let mut there = [0u8; PAGES];
    let pages = &mut there[..HUGE_PAGE / page_bytes()];
    let start = with_exposed_provenance_mut::<c_void>(half);
    // SAFETY:
    // * It writes a byte for each page of the half, and there are so many.
    let failed = unsafe { libc::mincore(start, HUGE_PAGE, pages.as_mut_ptr()) };
    failed == 0 && pages.iter().all(|page| page & 1 == 1)
}

/// Has the system bring the half together. False if it does not.
fn collapse(half: usize) -> bool {
    lock(&SPARE).collapsed.insert(half); // before: whoever gives some of it back meanwhile takes it out again
    let start = with_exposed_provenance_mut::<c_void>(half);
    // SAFETY:
    // * The advice (which rustix does not have) changes how the half is backed, never what it
    //   holds.
    let failed = unsafe { libc::madvise(start, HUGE_PAGE, libc::MADV_COLLAPSE) } != 0;
    if failed {
        let error = std::io::Error::last_os_error();
        REFUSED.fetch_or(error.raw_os_error() == Some(libc::EINVAL), Ordering::Relaxed);
        lock(&SPARE).collapsed.remove(&half);
    }
    !failed
}

/// Brings some halves of regions together on huge pages, if there are any that have all of their
/// memory.
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
