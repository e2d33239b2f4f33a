//! # Slot state: the cached content of an interval, in one word
//!
//! ```text
//!  0          nothing
//!  address    the block
//!  address+1  the fingerprints
//! ```
//!
//! ## Invariants
//!
//! 1. A word owns the content that it points to. An exchange transfers the ownership of the old
//!    content to its caller, which must free it only after all readers of that time are done.

use std::fmt;
use std::ptr::{self, NonNull};

use sheaf_platform::sync::atomic::{AtomicPtr, Ordering};
use sheaf_platform::sync::epoch::Guard;

use crate::interval::block::{Block, BlockRef};
use crate::interval::fingerprints::{Fingerprints, FingerprintsRef};

/// Bit of an address that marks fingerprints.
const FINGERPRINTS_BIT: usize = 1;

/// The word of a slot; see the header of the module.
pub(crate) struct SlotState(AtomicPtr<Block>);

/// The content of a slot, protected by a guard.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SlotView<'g> {
    Empty,
    Block(&'g Block),
    Fingerprints(FingerprintsRef<'g>),
}

/// Owned content of a slot.
#[derive(Debug)]
pub(crate) enum SlotContent {
    Block(BlockRef),
    Fingerprints(Fingerprints),
}

impl SlotContent {
    /// Returns the bytes that are charged to the budget.
    pub(crate) fn size(&self) -> u64 {
        match self {
            SlotContent::Block(block) => block.size(),
            SlotContent::Fingerprints(fingerprints) => fingerprints.view().size(),
        }
    }

    fn into_raw(self) -> *mut Block {
        match self {
            SlotContent::Block(block) => block.into_raw(),
            SlotContent::Fingerprints(fingerprints) => {
                fingerprints.into_raw().as_ptr().cast::<Block>().map_addr(|at| at | FINGERPRINTS_BIT)
            }
        }
    }

    /// # Safety
    ///
    /// * `raw` must come from [`SlotContent::into_raw`], and is used by only one call.
    unsafe fn from_raw(raw: *mut Block) -> Option<SlotContent> {
        match fingerprints_address(raw) {
            Some(fingerprints) => {
                // SAFETY:
                // * The caller's promise is passed on.
                let fingerprints = unsafe { Fingerprints::from_raw(fingerprints) };
                Some(SlotContent::Fingerprints(fingerprints))
            }
            // SAFETY:
            // * As above.
            None => unsafe { BlockRef::from_raw(raw) }.map(SlotContent::Block),
        }
    }
}

/// Returns the address of the fingerprints, if `raw` points to some.
#[inline]
fn fingerprints_address(raw: *mut Block) -> Option<NonNull<u64>> {
    if raw.addr() & FINGERPRINTS_BIT == 0 {
        None
    } else {
        NonNull::new(raw.map_addr(|at| at & !FINGERPRINTS_BIT).cast())
    }
}

impl SlotState {
    pub(crate) const fn empty() -> SlotState {
        SlotState(AtomicPtr::new(ptr::null_mut()))
    }

    /// Returns the content.
    #[inline]
    pub(crate) fn view<'g>(&'g self, _guard: &'g Guard) -> SlotView<'g> {
        let raw = self.0.load(Ordering::Acquire);
        if let Some(fingerprints) = fingerprints_address(raw) {
            // SAFETY:
            // * The word owns the fingerprints. Exchanged content is freed only after all guards of
            //   that time are released (I1), and ours was pinned before this load.
            return SlotView::Fingerprints(unsafe { Fingerprints::view_raw(fingerprints) });
        }
        // SAFETY:
        // * As above.
        unsafe { raw.as_ref() }.map_or(SlotView::Empty, SlotView::Block)
    }

    /// Returns the block, if there is one.
    #[inline]
    pub(crate) fn block<'g>(&'g self, guard: &'g Guard) -> Option<&'g Block> {
        match self.view(guard) {
            SlotView::Block(block) => Some(block),
            _ => None,
        }
    }

    /// Whether there is no content.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Relaxed).is_null()
    }

    /// Whether the content is fingerprints.
    pub(crate) fn is_fingerprints(&self) -> bool {
        fingerprints_address(self.0.load(Ordering::Relaxed)).is_some()
    }

    /// Returns the address of the block, if there is one. It must not be dereferenced.
    #[inline]
    pub(crate) fn address(&self) -> Option<*const Block> {
        let raw = self.0.load(Ordering::Relaxed);
        (!raw.is_null() && fingerprints_address(raw).is_none()).then_some(raw.cast_const())
    }

    /// Replaces the content `seen` by `new`. Returns the old content.
    ///
    /// # Errors
    ///
    /// Returns `new` if the content has changed.
    pub(crate) fn exchange(
        &self,
        seen: &SlotView<'_>,
        new: Option<SlotContent>,
    ) -> Result<Option<SlotContent>, Option<SlotContent>> {
        let seen = match seen {
            SlotView::Empty => ptr::null_mut(),
            SlotView::Block(block) => ptr::from_ref(*block).cast_mut(),
            SlotView::Fingerprints(fingerprints) => {
                fingerprints.start().cast::<Block>().map_addr(|at| at | FINGERPRINTS_BIT)
            }
        };
        let raw = new.map_or(ptr::null_mut(), SlotContent::into_raw);
        match self.0.compare_exchange(seen, raw, Ordering::AcqRel, Ordering::Relaxed) {
            // SAFETY:
            // * The word owned the old content, and the exchange transfers it to this call (I1).
            Ok(was) => Ok(unsafe { SlotContent::from_raw(was) }),
            // SAFETY:
            // * `raw` was converted above, and no other thread has seen it.
            Err(_) => Err(unsafe { SlotContent::from_raw(raw) }),
        }
    }

    /// Takes the content out.
    pub(crate) fn take(&self) -> Option<SlotContent> {
        // SAFETY:
        // * The word owned the content, and the swap transfers it to this call (I1).
        unsafe { SlotContent::from_raw(self.0.swap(ptr::null_mut(), Ordering::AcqRel)) }
    }
}

impl fmt::Debug for SlotState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SlotState({:?})", self.0)
    }
}

impl Drop for SlotState {
    fn drop(&mut self) {
        self.take(); // there are no readers any more
    }
}
