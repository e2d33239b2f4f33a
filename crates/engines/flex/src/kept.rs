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
//! 1. A word owns what it names. Whoever exchanges it owns what was there, and lets it go only when the readers of that moment are gone.

use std::fmt;
use std::ptr::{self, NonNull};

use sheaf_base::sync::atomic::{AtomicPtr, Ordering};
use sheaf_base::sync::epoch::Guard;

use crate::block::{Block, BlockRef};
use crate::prints::{Prints, Shown};

/// The bit of an address that says that prints are there.
const PRINTS: usize = 1;

/// See the module.
pub(crate) struct Kept(AtomicPtr<Block>);

/// What is there, as long as a guard keeps it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Look<'g> {
    Nothing,
    Block(&'g Block),
    Prints(Shown<'g>),
}

/// What was there, or is to be.
#[derive(Debug)]
pub(crate) enum Own {
    Block(BlockRef),
    Prints(Prints),
}

impl Own {
    /// Bytes of the budget.
    pub(crate) fn size(&self) -> u64 {
        match self {
            Own::Block(block) => block.size(),
            Own::Prints(prints) => prints.show().size(),
        }
    }

    fn into_raw(self) -> *mut Block {
        match self {
            Own::Block(block) => block.into_raw(),
            Own::Prints(prints) => prints.into_raw().as_ptr().cast::<Block>().map_addr(|at| at | PRINTS),
        }
    }

    /// # Safety
    ///
    /// * `raw` comes from [`Own::into_raw`], once for each call.
    unsafe fn from_raw(raw: *mut Block) -> Option<Own> {
        match prints_of(raw) {
            // SAFETY:
            // * The caller's promise, passed on.
            Some(prints) => Some(Own::Prints(unsafe { Prints::from_raw(prints) })),
            // SAFETY:
            // * As above.
            None => unsafe { BlockRef::from_raw(raw) }.map(Own::Block),
        }
    }
}

/// The address of prints, if it is one.
#[inline]
fn prints_of(raw: *mut Block) -> Option<NonNull<u64>> {
    if raw.addr() & PRINTS == 0 { None } else { NonNull::new(raw.map_addr(|at| at & !PRINTS).cast()) }
}

impl Kept {
    pub(crate) const fn nothing() -> Kept {
        Kept(AtomicPtr::new(ptr::null_mut()))
    }

    /// What is there.
    #[inline]
    pub(crate) fn look<'g>(&self, _guard: &'g Guard) -> Look<'g> {
        let raw = self.0.load(Ordering::Acquire);
        if let Some(prints) = prints_of(raw) {
            // SAFETY:
            // * The word owns them; what is exchanged goes only after all guards of that moment (I1), and ours was there before this load.
            return Look::Prints(unsafe { Prints::show_raw(prints) });
        }
        // SAFETY:
        // * As above.
        unsafe { raw.as_ref() }.map_or(Look::Nothing, Look::Block)
    }

    /// The block, if it is there.
    #[inline]
    pub(crate) fn block<'g>(&self, guard: &'g Guard) -> Option<&'g Block> {
        match self.look(guard) {
            Look::Block(block) => Some(block),
            _ => None,
        }
    }

    /// Whether prints are there.
    pub(crate) fn is_prints(&self) -> bool {
        prints_of(self.0.load(Ordering::Relaxed)).is_some()
    }

    /// Where the block is, if it is there; nothing may be read there.
    #[inline]
    pub(crate) fn address(&self) -> Option<*const Block> {
        let raw = self.0.load(Ordering::Relaxed);
        (!raw.is_null() && prints_of(raw).is_none()).then_some(raw.cast_const())
    }

    /// Puts `new` there in place of what `seen` was; what was there, or `new` again if something else is there by now.
    pub(crate) fn exchange(&self, seen: &Look<'_>, new: Option<Own>) -> Result<Option<Own>, Option<Own>> {
        let seen = match seen {
            Look::Nothing => ptr::null_mut(),
            Look::Block(block) => ptr::from_ref(*block).cast_mut(),
            Look::Prints(prints) => prints.start().cast::<Block>().map_addr(|at| at | PRINTS),
        };
        let raw = new.map_or(ptr::null_mut(), Own::into_raw);
        match self.0.compare_exchange(seen, raw, Ordering::AcqRel, Ordering::Relaxed) {
            // SAFETY:
            // * The word's own, and nobody else's from now on (I1).
            Ok(was) => Ok(unsafe { Own::from_raw(was) }),
            // SAFETY:
            // * Given away just now, to nobody.
            Err(_) => Err(unsafe { Own::from_raw(raw) }),
        }
    }

    /// Takes out whatever is there.
    pub(crate) fn take(&self) -> Option<Own> {
        // SAFETY:
        // * The word's own, and nobody else's from now on (I1).
        unsafe { Own::from_raw(self.0.swap(ptr::null_mut(), Ordering::AcqRel)) }
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kept({:?})", self.0)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.take(); // nobody looks any more
    }
}
