//! # Kept: what memory has of an interval, in one word
//!
//! ```text
//!  0          nothing
//!  address    its block
//!  address+1  its prints
//! ```
//!
//! ## Invariants
//!
//! 1. A word owns what it names. Whoever exchanges it owns what was there, and lets it go only when
//!    the readers of that moment are gone.

use std::fmt;
use std::ptr::{self, NonNull};

use sheaf_base::sync::atomic::{AtomicPtr, Ordering};
use sheaf_base::sync::epoch::Guard;

use crate::block::{Block, BlockRef};
use crate::fingerprints::{Fingerprints, FingerprintsRef};

/// The bit of an address that says that prints are there.
const FINGERPRINTS_BIT: usize = 1;

/// See the module.
pub(crate) struct SlotState(AtomicPtr<Block>);

/// What is there, as long as a guard keeps it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SlotView<'g> {
    Empty,
    Block(&'g Block),
    Fingerprints(FingerprintsRef<'g>),
}

/// What was there, or is to be.
#[derive(Debug)]
pub(crate) enum SlotContent {
    Block(BlockRef),
    Fingerprints(Fingerprints),
}

impl SlotContent {
    /// Bytes of the budget.
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
    /// * `raw` comes from [`SlotContent::into_raw`], once for each call.
    unsafe fn from_raw(raw: *mut Block) -> Option<SlotContent> {
        match fingerprints_address(raw) {
            Some(fingerprints) => {
                // SAFETY:
                // * The caller's promise, passed on.
                let fingerprints = unsafe { Fingerprints::from_raw(fingerprints) };
                Some(SlotContent::Fingerprints(fingerprints))
            }
            // SAFETY:
            // * As above.
            None => unsafe { BlockRef::from_raw(raw) }.map(SlotContent::Block),
        }
    }
}

/// The address of prints, if it is one.
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

    /// What is there.
    #[inline]
    pub(crate) fn view<'g>(&self, _guard: &'g Guard) -> SlotView<'g> {
        let raw = self.0.load(Ordering::Acquire);
        if let Some(fingerprints) = fingerprints_address(raw) {
            // SAFETY:
            // * The word owns them; what is exchanged goes only after all guards of that moment
            //   (I1), and ours was there before this load.
            return SlotView::Fingerprints(unsafe { Fingerprints::view_raw(fingerprints) });
        }
        // SAFETY:
        // * As above.
        unsafe { raw.as_ref() }.map_or(SlotView::Empty, SlotView::Block)
    }

    /// The block, if it is there.
    #[inline]
    pub(crate) fn block<'g>(&self, guard: &'g Guard) -> Option<&'g Block> {
        match self.view(guard) {
            SlotView::Block(block) => Some(block),
            _ => None,
        }
    }

    /// Whether prints are there.
    pub(crate) fn is_fingerprints(&self) -> bool {
        fingerprints_address(self.0.load(Ordering::Relaxed)).is_some()
    }

    /// Where the block is, if it is there; nothing may be read there.
    #[inline]
    pub(crate) fn address(&self) -> Option<*const Block> {
        let raw = self.0.load(Ordering::Relaxed);
        (!raw.is_null() && fingerprints_address(raw).is_none()).then_some(raw.cast_const())
    }

    /// Puts `new` there in place of what `seen` was; what was there, or `new` again if something
    /// else is there by now.
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
            // * The word's own, and nobody else's from now on (I1).
            Ok(was) => Ok(unsafe { SlotContent::from_raw(was) }),
            // SAFETY:
            // * Given away just now, to nobody.
            Err(_) => Err(unsafe { SlotContent::from_raw(raw) }),
        }
    }

    /// Takes out whatever is there.
    pub(crate) fn take(&self) -> Option<SlotContent> {
        // SAFETY:
        // * The word's own, and nobody else's from now on (I1).
        unsafe { SlotContent::from_raw(self.0.swap(ptr::null_mut(), Ordering::AcqRel)) }
    }
}

impl fmt::Debug for SlotState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kept({:?})", self.0)
    }
}

impl Drop for SlotState {
    fn drop(&mut self) {
        self.take(); // nobody looks any more
    }
}
