//! # Block box and block slice: a box and a boxed slice in memory of the block allocator

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;

use super::{SMALL_ALIGN, allocate, block_align, free};

/// A box in memory of the block allocator.
pub struct BlockBox<T>(NonNull<T>);

// SAFETY:
// * It owns its value, like a `Box`.
unsafe impl<T: Send> Send for BlockBox<T> {}
// SAFETY:
// * As above.
unsafe impl<T: Sync> Sync for BlockBox<T> {}

impl<T> BlockBox<T> {
    /// Moves `value` into a block.
    pub fn new(value: T) -> BlockBox<T> {
        const { assert!(align_of::<T>() <= block_align(size_of::<T>())) };
        let start = allocate(size_of::<T>()).cast::<T>();
        // SAFETY:
        // * The block has the size and alignment of `T`, and no other code knows it.
        unsafe { start.write(value) };
        BlockBox(start)
    }

    /// Gives the value to the caller, like [`Box::into_raw`].
    #[must_use]
    pub fn into_raw(self) -> *mut T {
        std::mem::ManuallyDrop::new(self).0.as_ptr()
    }

    /// Takes the value back.
    ///
    /// # Safety
    ///
    /// `raw` comes from [`BlockBox::into_raw`] and is passed here only once.
    #[must_use]
    pub unsafe fn from_raw(raw: *mut T) -> BlockBox<T> {
        BlockBox(NonNull::new(raw).expect("a pointer to a block"))
    }
}

impl<T> Deref for BlockBox<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY:
        // * `new` wrote the value, and `self` owns it.
        unsafe { self.0.as_ref() }
    }
}

impl<T: fmt::Debug> fmt::Debug for BlockBox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T> Drop for BlockBox<T> {
    fn drop(&mut self) {
        // SAFETY:
        // * `new` allocated the block for this type, and `self` owns it. It is not used after this
        //   point.
        unsafe {
            self.0.drop_in_place();
            free(self.0.cast(), size_of::<T>());
        }
    }
}

/// A boxed slice in memory of the block allocator.
pub struct BlockSlice<T> {
    start: NonNull<T>,
    count: usize,
}

// SAFETY:
// * It owns its items, like a `Box`.
unsafe impl<T: Send> Send for BlockSlice<T> {}
// SAFETY:
// * As above.
unsafe impl<T: Sync> Sync for BlockSlice<T> {}

impl<T> BlockSlice<T> {
    /// Creates a slice of `count` items, each returned by `item`.
    pub fn new(count: usize, item: impl Fn() -> T) -> BlockSlice<T> {
        const { assert!(align_of::<T>() <= SMALL_ALIGN) };
        let bytes = count.checked_mul(size_of::<T>()).expect("an array is far below the half of all memory");
        let start = allocate(bytes).cast::<T>();
        for index in 0..count {
            // SAFETY:
            // * The block has room for `count` items with their alignment, and no other code knows
            //   it. (If `item` panics, the previous items are leaked.)
            unsafe { start.add(index).write(item()) };
        }
        BlockSlice { start, count }
    }
}

impl BlockSlice<u8> {
    /// Copies `bytes`.
    #[must_use]
    pub fn copy(bytes: &[u8]) -> BlockSlice<u8> {
        let (start, count) = (allocate(bytes.len()), bytes.len());
        // SAFETY:
        // * The block has room for `count` bytes, and no other code knows it.
        unsafe { start.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), count) };
        BlockSlice { start, count }
    }
}

impl<T> std::ops::DerefMut for BlockSlice<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY:
        // * `new` or `copy` wrote `count` items, and `self` owns them. This is the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.count) }
    }
}

impl<T> Deref for BlockSlice<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY:
        // * `new` or `copy` wrote `count` items, and `self` owns them.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

impl<T: fmt::Debug> fmt::Debug for BlockSlice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T> Drop for BlockSlice<T> {
    fn drop(&mut self) {
        // SAFETY:
        // * The block was allocated for `count` items, and `self` owns them. They are not used
        //   after this point.
        unsafe {
            NonNull::slice_from_raw_parts(self.start, self.count).drop_in_place();
            free(self.start.cast(), self.count * size_of::<T>());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_block_box_drops_its_value() {
        let counted = Arc::new(());
        let raw = BlockBox::new((Arc::clone(&counted), [7u8; 3000])).into_raw();
        // SAFETY:
        // * `raw` comes from `into_raw` just now.
        let piece = unsafe { BlockBox::from_raw(raw) };
        assert_eq!((piece.1[2999], Arc::strong_count(&counted)), (7, 2));
        let row = BlockSlice::new(100, || Arc::clone(&counted));
        assert_eq!((row.len(), Arc::strong_count(&counted)), (100, 102));
        drop((piece, row));
        assert_eq!(Arc::strong_count(&counted), 1);
    }

    #[test]
    fn zero_sized_values_take_no_memory() {
        let counted = Arc::new(());
        let (unit, none) = (BlockBox::new(()), BlockSlice::<u64>::new(0, || 0));
        let units = BlockSlice::new(3, || ());
        assert_eq!((*unit, none.len(), units.len()), ((), 0, 3));
        let rows = BlockSlice::new(0, || Arc::clone(&counted));
        drop(rows);
        assert_eq!(Arc::strong_count(&counted), 1);
    }
}
