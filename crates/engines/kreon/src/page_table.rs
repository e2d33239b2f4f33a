//! # Table: from a page's number to what memory has of it
//!
//! An array in chunks, each twice as large as the one before, that grows with the file: two loads,
//! no lock. What is in it was made from a piece and goes through the epoch.

use std::ptr;
use std::sync::Arc;

use sheaf_base::engine_context::EngineContext;
use sheaf_base::memory::block_alloc::BlockBox;
use sheaf_base::memory::{MemoryPart, chunk_position};
use sheaf_base::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use sheaf_base::sync::epoch::{Guard, note_deferred};

/// Pages in the first chunk; chunk k has `FIRST_CHUNK_PAGES << k`.
const FIRST_CHUNK_PAGES: u32 = 256;
const CHUNKS: usize = 25;

type PageSlot<T> = AtomicPtr<T>;

/// See the module.
#[derive(Debug)]
pub(crate) struct PageTable<T> {
    context: Arc<EngineContext>,
    chunks: [AtomicPtr<Box<[PageSlot<T>]>>; CHUNKS],
    /// Bytes of the chunks, which never go.
    bytes: AtomicU64,
}

impl<T: Send + 'static> PageTable<T> {
    pub(crate) fn new(context: Arc<EngineContext>) -> PageTable<T> {
        let chunks = [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS];
        PageTable { context, chunks, bytes: AtomicU64::new(0) }
    }

    /// Bytes of the table itself.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    #[inline]
    fn slot(&self, page: u32) -> Option<&PageSlot<T>> {
        let (chunk, index) = chunk_position(page, FIRST_CHUNK_PAGES);
        // SAFETY:
        // * Made from a box in `slot_or_create`, and freed only with `self`.
        let chunk = unsafe { self.chunks.get(chunk)?.load(Ordering::Acquire).as_ref() }?;
        chunk.get(index)
    }

    fn slot_or_create(&self, page: u32) -> Option<&PageSlot<T>> {
        let (chunk, _) = chunk_position(page, FIRST_CHUNK_PAGES);
        let place = self.chunks.get(chunk)?;
        if place.load(Ordering::Acquire).is_null() {
            let count = usize::try_from(u64::from(FIRST_CHUNK_PAGES) << chunk).ok()?;
            let slots: Box<[PageSlot<T>]> = (0..count).map(|_| PageSlot::default()).collect();
            let made = Box::into_raw(Box::new(slots));
            if place.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY:
                // * Made from a box above, and nobody else has seen it.
                drop(unsafe { Box::from_raw(made) });
            } else {
                self.context.memory.take(MemoryPart::Index, 8 * count as u64);
                self.bytes.fetch_add(8 * count as u64, Ordering::Relaxed);
            }
        }
        self.slot(page)
    }

    /// What is here of `page`.
    #[inline]
    pub(crate) fn get<'g>(&self, page: u32, _guard: &'g Guard) -> Option<&'g T> {
        // SAFETY:
        // * Made from a piece; freed only after all guards of the moment when it was taken out.
        unsafe { self.slot(page)?.load(Ordering::Acquire).as_ref() }
    }

    /// Whether there is anything of `page`.
    pub(crate) fn contains(&self, page: u32) -> bool {
        self.slot(page).is_some_and(|slot| !slot.load(Ordering::Acquire).is_null())
    }

    /// Puts `item` where nothing is. Gives it back if something is, or the table has no place for
    /// such a page.
    pub(crate) fn add<'g>(
        &self,
        page: u32,
        item: BlockBox<T>,
        _guard: &'g Guard,
    ) -> Result<&'g T, BlockBox<T>> {
        let Some(slot) = self.slot_or_create(page) else { return Err(item) };
        let made = item.into_raw();
        match slot.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY:
            // * In the table now, and taken out through the epoch only.
            Ok(_) => Ok(unsafe { &*made }),
            // SAFETY:
            // * Made from a piece above, and nobody else has seen it.
            Err(_) => Err(unsafe { BlockBox::from_raw(made) }),
        }
    }

    /// Puts `item` in the place of whatever is there. The answer is what was there, and whether
    /// there is a place.
    pub(crate) fn replace<'g>(
        &self,
        page: u32,
        item: BlockBox<T>,
        guard: &'g Guard,
    ) -> (Option<&'g T>, bool) {
        match self.slot_or_create(page) {
            Some(slot) => {
                (PageTable::free_removed(slot.swap(item.into_raw(), Ordering::AcqRel), guard), true)
            }
            None => (None, false),
        }
    }

    /// Takes out what is there.
    pub(crate) fn remove<'g>(&self, page: u32, guard: &'g Guard) -> Option<&'g T> {
        PageTable::free_removed(self.slot(page)?.swap(ptr::null_mut(), Ordering::AcqRel), guard)
    }

    /// Takes out `seen`, if it is still there; whether it was.
    pub(crate) fn remove_if_same(&self, page: u32, seen: &T, guard: &Guard) -> bool {
        let seen = ptr::from_ref(seen).cast_mut();
        let Some(slot) = self.slot(page) else { return false };
        let taken = slot.compare_exchange(seen, ptr::null_mut(), Ordering::AcqRel, Ordering::Acquire).is_ok();
        if taken {
            PageTable::free_removed(seen, guard);
        }
        taken
    }

    /// Takes out everything; each thing goes to `gone` first.
    pub(crate) fn clear(&self, guard: &Guard, mut gone: impl FnMut(&T)) {
        for chunk in &self.chunks {
            // SAFETY:
            // * As in `slot`.
            let slots = unsafe { chunk.load(Ordering::Acquire).as_ref() };
            for slot in slots.into_iter().flatten() {
                PageTable::free_removed(slot.swap(ptr::null_mut(), Ordering::AcqRel), guard)
                    .into_iter()
                    .for_each(&mut gone);
            }
        }
    }

    /// What was taken out of the table by the caller goes when no guard of now is left.
    fn free_removed(item: *mut T, guard: &Guard) -> Option<&T> {
        // SAFETY:
        // * Null, or made from a piece, and freed after `guard` only.
        let seen = unsafe { item.as_ref() }?;
        free_when_unpinned(item, guard);
        Some(seen)
    }
}

/// Frees what was made from a piece, and is in no table, when no guard of now is left.
fn free_when_unpinned<T: Send + 'static>(item: *mut T, guard: &Guard) {
    let address = item as usize;
    guard.defer(move || {
        // SAFETY:
        // * Made from a piece by the caller, in no table; all guards of then are gone.
        drop(unsafe { BlockBox::from_raw(address as *mut T) });
    });
    note_deferred(size_of::<T>());
}

/// A thing that is in no table, for as long as the guard lives.
pub(crate) fn borrow_until_unpin<T: Send + 'static>(item: BlockBox<T>, guard: &Guard) -> &T {
    let item = item.into_raw();
    free_when_unpinned(item, guard);
    // SAFETY:
    // * Freed after `guard` only.
    unsafe { &*item }
}

impl<T> Drop for PageTable<T> {
    fn drop(&mut self) {
        for chunk in &self.chunks {
            let chunk = chunk.load(Ordering::Relaxed);
            if chunk.is_null() {
                continue;
            }
            // SAFETY:
            // * Made from a box, and `&mut self`: nobody reads it.
            let slots = unsafe { Box::from_raw(chunk) };
            for slot in &*slots {
                let item = slot.load(Ordering::Relaxed);
                if !item.is_null() {
                    // SAFETY:
                    // * Made from a piece, in the table, so owned by it.
                    drop(unsafe { BlockBox::from_raw(item) });
                }
            }
        }
        self.context.memory.give_back(MemoryPart::Index, self.bytes.load(Ordering::Relaxed));
    }
}
