//! # Page table: from a page number to an item in memory
//!
//! An array of chunks, each twice as large as its predecessor, that grows with the file. A lookup
//! takes two loads and no lock. Items are allocated as blocks and freed through the epoch.

use std::ptr;
use std::sync::Arc;

use sheaf_engine::context::EngineContext;
use sheaf_platform::memory::block_alloc::BlockBox;
use sheaf_platform::memory::{MemoryPart, chunk_position};
use sheaf_platform::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use sheaf_platform::sync::epoch::{Guard, note_deferred};

/// Pages in the first chunk; chunk k has `FIRST_CHUNK_PAGES << k`.
const FIRST_CHUNK_PAGES: u32 = 256;
const CHUNKS: usize = 25;

type PageSlot<T> = AtomicPtr<T>;

/// A table of items by page; see the header of the module.
#[derive(Debug)]
pub(crate) struct PageTable<T: Send + Sync + 'static> {
    context: Arc<EngineContext>,
    chunks: [AtomicPtr<Box<[PageSlot<T>]>>; CHUNKS],
    /// Bytes of the chunks, which are freed only with the table.
    bytes: AtomicU64,
}

impl<T: Send + Sync + 'static> PageTable<T> {
    pub(crate) fn new(context: Arc<EngineContext>) -> PageTable<T> {
        let chunks = [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS];
        PageTable { context, chunks, bytes: AtomicU64::new(0) }
    }

    /// Returns the bytes of the table itself.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    #[inline]
    fn slot(&self, page: u32) -> Option<&PageSlot<T>> {
        let (chunk, index) = chunk_position(page, FIRST_CHUNK_PAGES);
        // SAFETY:
        // * `slot_or_create` made the chunk from a box, and only the drop of `self` frees it.
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
                // * `made` comes from the box above, and no other thread has seen it.
                drop(unsafe { Box::from_raw(made) });
            } else {
                self.context.memory.take(MemoryPart::Index, 8 * count as u64);
                self.bytes.fetch_add(8 * count as u64, Ordering::Relaxed);
            }
        }
        self.slot(page)
    }

    /// Returns the item of `page`.
    #[inline]
    pub(crate) fn get<'g>(&'g self, page: u32, _guard: &'g Guard) -> Option<&'g T> {
        // SAFETY:
        // * The item was made from a block. It is freed after all guards of the time of its
        //   removal, or with `self`, which is borrowed.
        unsafe { self.slot(page)?.load(Ordering::Acquire).as_ref() }
    }

    /// Whether there is an item of `page`.
    pub(crate) fn contains(&self, page: u32) -> bool {
        self.slot(page).is_some_and(|slot| !slot.load(Ordering::Acquire).is_null())
    }

    /// Adds an item where there is none.
    ///
    /// # Errors
    ///
    /// Returns `item` if there is one already, or if the page is beyond the capacity of the table.
    pub(crate) fn add<'g>(
        &'g self,
        page: u32,
        item: BlockBox<T>,
        _guard: &'g Guard,
    ) -> Result<&'g T, BlockBox<T>> {
        let Some(slot) = self.slot_or_create(page) else { return Err(item) };
        let made = item.into_raw();
        match slot.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY:
            // * As in `get`: the item is in the table now.
            Ok(_) => Ok(unsafe { &*made }),
            // SAFETY:
            // * `made` comes from the block above, and no other thread has seen it.
            Err(_) => Err(unsafe { BlockBox::from_raw(made) }),
        }
    }

    /// Replaces the item of `page`. Returns the old item, and whether the page is within the
    /// capacity of the table.
    pub(crate) fn replace<'g>(
        &'g self,
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

    /// Removes the item of `page` and returns it.
    pub(crate) fn remove<'g>(&'g self, page: u32, guard: &'g Guard) -> Option<&'g T> {
        PageTable::free_removed(self.slot(page)?.swap(ptr::null_mut(), Ordering::AcqRel), guard)
    }

    /// Removes `seen` if it is still the item of `page`. Returns whether it was.
    pub(crate) fn remove_if_same(&self, page: u32, seen: &T, guard: &Guard) -> bool {
        let seen = ptr::from_ref(seen).cast_mut();
        let Some(slot) = self.slot(page) else { return false };
        // Only the pointer in the slot may free the item: `seen` is that of a shared reference.
        match slot.compare_exchange(seen, ptr::null_mut(), Ordering::AcqRel, Ordering::Acquire) {
            Ok(item) => PageTable::free_removed(item, guard).is_some(),
            Err(_) => false,
        }
    }

    /// Removes all items, and calls the closure with each one first.
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

    /// Frees an item that the caller has removed from the table, after all current guards are
    /// released.
    fn free_removed(item: *mut T, guard: &Guard) -> Option<&T> {
        // SAFETY:
        // * The pointer is null, or was made from a block that is freed only after `guard` is
        //   released.
        let seen = unsafe { item.as_ref() }?;
        free_when_unpinned(item, guard);
        Some(seen)
    }
}

/// Frees an item that is in no table, after all current guards are released.
fn free_when_unpinned<T: Send + 'static>(item: *mut T, guard: &Guard) {
    let address = item as usize;
    guard.defer(move || {
        // SAFETY:
        // * The caller made the pointer from a block and removed it from the table, and all guards
        //   of that time are released.
        drop(unsafe { BlockBox::from_raw(address as *mut T) });
    });
    note_deferred(size_of::<T>());
}

/// Returns an item that is in no table; it lives as long as the guard.
pub(crate) fn borrow_until_unpin<T: Send + 'static>(item: BlockBox<T>, guard: &Guard) -> &T {
    let item = item.into_raw();
    free_when_unpinned(item, guard);
    // SAFETY:
    // * The item is freed only after `guard` is released.
    unsafe { &*item }
}

impl<T: Send + Sync + 'static> Drop for PageTable<T> {
    fn drop(&mut self) {
        for chunk in &self.chunks {
            let chunk = chunk.load(Ordering::Relaxed);
            if chunk.is_null() {
                continue;
            }
            // SAFETY:
            // * The chunk was made from a box, and `&mut self` excludes readers.
            let slots = unsafe { Box::from_raw(chunk) };
            for slot in &*slots {
                let item = slot.load(Ordering::Relaxed);
                if !item.is_null() {
                    // SAFETY:
                    // * The item was made from a block, and the table owns it.
                    drop(unsafe { BlockBox::from_raw(item) });
                }
            }
        }
        self.context.memory.give_back(MemoryPart::Index, self.bytes.load(Ordering::Relaxed));
    }
}
