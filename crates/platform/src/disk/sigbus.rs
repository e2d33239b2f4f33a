//! # SIGBUS handler: unreadable mapped pages show as zeros
//!
//! An access to a mapped page raises SIGBUS if the device cannot deliver the page, or if a program
//! truncated the file before it. By default that kills the process. The handler replaces the page
//! by a private page of zeros and lets the access repeat. The reader sees zeros, and its checksum
//! reports `Corrupt`.
//!
//! ## Picture
//!
//! ```text
//!   SLOTS  [start end state][start end state] ...     one per mapping, atomics only
//!   fault at A --> slot with start <= A < end ?  yes: state += 1, FAULTS += 1, zeros over A's page
//!                                                no:  the previous handler of SIGBUS
//! ```
//!
//! ## Invariants
//!
//! 1. A slot is free (`start` = 0), being filled (1) or published. `end` and `state` are written
//!    before `start` is published and stay until the mapping is about to be unmapped.
//! 2. The address range of a published slot is one mapping of this module, so no foreign memory is
//!    replaced. [`MappingRegistration`] is dropped before the range is unmapped.
//! 3. `state` is 0 while the mapping is intact. It counts faults, and has [`FORKED`] set in a
//!    forked child, where the mapping does not exist (MADV_DONTFORK). It never returns to 0: a
//!    mapping that is not [`MappingRegistration::is_intact`] is not used again.
//!
//! ## Threads
//!
//! All functions may be called from any thread, and the handler may interrupt all of them. See
//! [`on_sigbus`] for the proof that it is sound.

use std::mem;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// Number of slots: the default limit of mappings of a Linux process (`vm.max_map_count`).
const SLOT_COUNT: usize = 65_530;
/// `start` of a free slot.
const FREE: usize = 0;
/// `start` of a slot that is being filled.
const RESERVED: usize = 1;
/// Bit of `state` in a forked child: the slot was inherited, but the mapping was not.
const FORKED: u32 = 1 << 31;
/// Limit of the faults counted in `state`, so that the count never reaches [`FORKED`].
const FAULT_LIMIT: u32 = 1 << 30;

static SLOTS: [MappingSlot; SLOT_COUNT] = [const { MappingSlot::new() }; SLOT_COUNT];
/// End of the slots that were ever used.
static SLOTS_USED: AtomicUsize = AtomicUsize::new(0);
/// First slot of the search for a free one.
static FREE_HINT: AtomicUsize = AtomicUsize::new(0);
/// Number of faults handled since the process started.
static FAULTS: AtomicU64 = AtomicU64::new(0);
/// The previous handler; set before ours is installed.
static PREVIOUS: OnceLock<PreviousHandler> = OnceLock::new();

#[derive(Debug)]
struct MappingSlot {
    start: AtomicUsize,
    end: AtomicUsize,
    state: AtomicU32,
}

struct PreviousHandler {
    action: libc::sigaction,
    page_size: usize,
}

/// Returns the number of faults in mapped files that were turned into zeros since the process
/// started.
pub(super) fn faults() -> u64 {
    FAULTS.load(Ordering::Relaxed)
}

/// Slot of a mapping in the registry, freed on drop. It must be dropped *before* unmapping.
#[derive(Debug)]
pub(super) struct MappingRegistration {
    slot: &'static MappingSlot,
    index: usize,
}

impl MappingRegistration {
    /// Registers the mapped range `[start, start + span)`. The first call installs the handler.
    /// `None` if all slots are taken or the handler cannot be installed.
    pub(super) fn new(start: usize, span: usize) -> Option<MappingRegistration> {
        assert!(
            start > RESERVED && span > 0,
            "sigbus (I1): the address of a mapping is that of no free slot"
        );
        if !is_installed() {
            return None;
        }
        let hint = FREE_HINT.load(Ordering::Relaxed);
        let index =
            (hint..SLOT_COUNT).chain(0..hint.min(SLOT_COUNT)).find(|&index| SLOTS[index].reserve())?;
        FREE_HINT.store(index + 1, Ordering::Relaxed);
        SLOTS_USED.fetch_max(index + 1, Ordering::SeqCst);
        let slot = &SLOTS[index];
        slot.publish(start, start + span);
        Some(MappingRegistration { slot, index })
    }

    /// Returns true while no page of the mapping was replaced and the mapping belongs to this
    /// process.
    #[inline]
    pub(super) fn is_intact(&self) -> bool {
        self.slot.state.load(Ordering::Relaxed) == 0
    }

    /// Like [`MappingRegistration::is_intact`], ordered after all earlier stores of the caller.
    pub(super) fn is_intact_after_stores(&self) -> bool {
        fence(Ordering::SeqCst);
        self.slot.state.load(Ordering::SeqCst) == 0
    }
}

impl Drop for MappingRegistration {
    fn drop(&mut self) {
        self.slot.start.store(FREE, Ordering::SeqCst);
        FREE_HINT.store(self.index, Ordering::Relaxed);
    }
}

impl MappingSlot {
    const fn new() -> MappingSlot {
        MappingSlot { start: AtomicUsize::new(FREE), end: AtomicUsize::new(0), state: AtomicU32::new(0) }
    }

    fn reserve(&self) -> bool {
        // The load avoids writes to the cache lines of taken slots during a search.
        let is_free = self.start.load(Ordering::Relaxed) == FREE;
        let (success, failure) = (Ordering::SeqCst, Ordering::Relaxed);
        is_free && self.start.compare_exchange(FREE, RESERVED, success, failure).is_ok()
    }

    /// Publishes a slot that this thread has reserved.
    fn publish(&self, start: usize, end: usize) {
        let is_reserved = self.start.load(Ordering::SeqCst) == RESERVED;
        assert!(is_reserved, "sigbus (I1): a slot is being filled until it is published");
        self.state.store(0, Ordering::SeqCst);
        self.end.store(end, Ordering::SeqCst);
        self.start.store(start, Ordering::SeqCst);
    }

    /// Returns the range of the slot if it is published and contains `address`.
    fn range_around(&self, address: usize) -> Option<(usize, usize)> {
        let start = self.start.load(Ordering::SeqCst);
        let end = self.end.load(Ordering::SeqCst);
        let is_stable = start > RESERVED && self.start.load(Ordering::SeqCst) == start;
        (is_stable && start <= address && address < end).then_some((start, end))
    }

    fn count_fault(&self) {
        let add = |state: u32| (state & !FORKED < FAULT_LIMIT).then_some(state + 1);
        // At the limit the state stays non-zero, which is all that matters.
        let _ = self.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add);
    }
}

/// Installs the handler once. Returns false if the system refused.
fn is_installed() -> bool {
    static INSTALLED: OnceLock<bool> = OnceLock::new();
    *INSTALLED.get_or_init(install)
}

fn install() -> bool {
    // SAFETY:
    // * `sigaction` is a plain C struct for which all zeros is a value (SIG_DFL, no flags).
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY:
    // * With a null action the call only queries; `action` is a valid place for the answer.
    let asked = unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut action) };
    if asked != 0 {
        return false;
    }
    let page_size = rustix::param::page_size();
    // Only `install` sets it, once.
    let _ = PREVIOUS.set(PreviousHandler { action, page_size });
    // SAFETY:
    // * `entered_child` is a function of this program and only accesses atomics.
    if unsafe { libc::pthread_atfork(None, None, Some(entered_child)) } != 0 {
        return false;
    }
    let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = on_sigbus;
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY:
    // * `action.sa_mask` is a valid set to be emptied.
    unsafe { libc::sigemptyset(&raw mut action.sa_mask) };
    // SAFETY: `on_sigbus` has the signature that SA_SIGINFO requires and is async-signal-safe (see
    // there). `PREVIOUS` is set, so the handler finds it.
    let installed = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) };
    installed == 0
}

/// Marks all mappings in a forked child, where none of them exists.
extern "C" fn entered_child() {
    for slot in &SLOTS[..SLOTS_USED.load(Ordering::SeqCst)] {
        if slot.start.load(Ordering::SeqCst) != FREE {
            slot.state.fetch_or(FORKED, Ordering::SeqCst);
        }
    }
}

/// Handles SIGBUS. Why this is sound:
///
/// - The handler is async-signal-safe: it loads and adds to atomics, calls `mmap` (a bare system
///   call) and `sigaction`, and restores `errno`. It takes no lock and allocates nothing.
/// - The fault is synchronous. The faulting thread is inside an access that borrows a live mapping,
///   so its slot is published and does not change. Other slots may change during the search.
///   `start` is read before and after `end`; a wrong match would only mark a mapping as broken,
///   which is always allowed.
/// - Replacing the page changes no Rust object: the slices of a mapping are `&[u8]`, for which all
///   bytes are valid. Only their *content* changes, once, while borrowed. Hence no code may rely
///   for memory safety on bytes that it read twice. Parsers of these bytes only use bounds checks.
/// - A *store* that hits the zero page succeeds and is lost. Hence stores only target pages that
///   were written and made resident (invariant 3 of [`super`]), and the storing thread calls
///   `is_intact_after_stores` afterwards. `state` is changed *before* the page is replaced, so a
///   thread that stores into the replacement is bound to see the change.
extern "C" fn on_sigbus(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let Some(previous) = PREVIOUS.get() else {
        return; // Not installed yet, so not called.
    };
    // SAFETY:
    // * The kernel passes a valid siginfo to an SA_SIGINFO handler.
    let code = unsafe { (*info).si_code };
    let is_access = ACCESS_CODES.contains(&code);
    if is_access {
        // SAFETY:
        // * `info` is valid, and for these codes of SIGBUS its address field is set.
        let address = unsafe { (*info).si_addr() } as usize;
        if replace_page(address, previous.page_size) {
            return;
        }
    }
    pass_on(previous, signal, info, context, is_access);
}

/// Codes of a failed access to a page. The last one of Linux (`BUS_MCEERR_AR`) is a memory failure
/// detected by an access; the libc crate does not define it for every target.
#[cfg(target_os = "linux")]
const ACCESS_CODES: [i32; 3] = [libc::BUS_ADRERR, libc::BUS_OBJERR, 4];
#[cfg(not(target_os = "linux"))]
const ACCESS_CODES: [i32; 3] = [libc::BUS_ADRALN, libc::BUS_ADRERR, libc::BUS_OBJERR];

/// Returns the place of `errno` of the thread.
fn errno_place() -> *mut libc::c_int {
    // SAFETY:
    // * The call has no conditions; the returned place lives as long as the thread.
    #[cfg(target_os = "linux")]
    return unsafe { libc::__errno_location() };
    // SAFETY:
    // * As above.
    #[cfg(not(target_os = "linux"))]
    return unsafe { libc::__error() };
}

/// Replaces the page at `address` if it belongs to a registered mapping, or the whole mapping if
/// the system cannot split it. Returns false if no mapping has the address, or if both fail.
fn replace_page(address: usize, page_size: usize) -> bool {
    let mut found = None;
    for slot in &SLOTS[..SLOTS_USED.load(Ordering::SeqCst)] {
        if let Some(range) = slot.range_around(address) {
            slot.count_fault();
            found = Some(range);
        }
    }
    let Some((start, end)) = found else {
        return false;
    };
    FAULTS.fetch_add(1, Ordering::SeqCst);
    let page = address & !(page_size - 1);
    map_zeros(page, page_size) || map_zeros(start, end - start)
}

/// Maps private zeros over `[start, start + span)`, which must lie in a registered mapping.
fn map_zeros(start: usize, span: usize) -> bool {
    let errno = errno_place();
    // SAFETY:
    // * `errno` is valid (above) and only this thread uses it.
    let saved = unsafe { errno.read() };
    // SAFETY: the range lies in a published slot, so it is a live mapping of this module (invariant
    // 2). The new page permits at least the same accesses. References into it are to plain bytes,
    // for which every value is valid.
    let mapped = unsafe {
        libc::mmap(
            start as *mut libc::c_void,
            span,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    // SAFETY:
    // * As for the read above.
    unsafe { errno.write(saved) };
    mapped != libc::MAP_FAILED
}

/// Passes the signal to the previous handler, or does the default action.
fn pass_on(
    previous: &PreviousHandler,
    signal: i32,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
    is_access: bool,
) {
    match previous.action.sa_sigaction {
        libc::SIG_IGN if !is_access => {}
        // For an access that it cannot resolve, the kernel kills the process even if the signal is
        // ignored.
        libc::SIG_DFL | libc::SIG_IGN => reraise(signal, is_access),
        handler if previous.action.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY:
            // * The handler was installed with SA_SIGINFO, so it has this signature.
            let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                unsafe { mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY:
            // * The handler was installed without SA_SIGINFO, so it has this signature.
            let handler: extern "C" fn(i32) = unsafe { mem::transmute(handler) };
            handler(signal);
        }
    }
}

/// Restores the default action. A faulting access repeats and kills the process; a sent signal is
/// raised again.
fn reraise(signal: i32, is_access: bool) {
    // SAFETY:
    // * As in `install`: all zeros is SIG_DFL without flags.
    let action: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY:
    // * `action` is valid; the old action is not requested.
    unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) };
    if !is_access {
        // SAFETY:
        // * `raise` has no conditions. The signal is blocked here and delivered on return.
        unsafe { libc::raise(signal) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_reused_and_lookup_respects_bounds() {
        let first = MappingRegistration::new(0x7000_0000_0000, 4096).expect("a free slot");
        let slot = first.slot;
        assert!(first.is_intact());
        assert!(slot.range_around(0x7000_0000_0000).is_some());
        assert!(slot.range_around(0x7000_0000_0fff).is_some());
        assert!(slot.range_around(0x7000_0000_1000).is_none());
        slot.count_fault();
        assert!(!first.is_intact());
        drop(first);
        assert!(slot.range_around(0x7000_0000_0000).is_none());
    }

    #[test]
    fn fault_count_never_reaches_the_fork_bit() {
        let slot = MappingSlot::new();
        slot.state.store(FAULT_LIMIT, Ordering::Relaxed);
        slot.count_fault();
        assert_eq!(slot.state.load(Ordering::Relaxed), FAULT_LIMIT);
    }
}
