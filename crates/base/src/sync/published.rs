//! # Published: one value at a time, replaced as a whole
//!
//! ```text
//!  readers: pin the epoch, load the pointer           who replaces: lock, make the next from the present one, swap
//!                                                                    └─> the one before goes after the guards of then
//! ```
//!
//! A reader takes no lock and sees one moment of everything that is in the value. Replacing costs
//! an allocation.

use super::Mutex;
use super::atomic::{AtomicPtr, Ordering};
use super::epoch::Guard;

/// A value that readers see whole, and that is replaced, never changed.
#[derive(Debug)]
pub struct Published<T: Send + Sync + 'static> {
    current: AtomicPtr<T>,
    replace_lock: Mutex<()>,
}

impl<T: Send + Sync + 'static> Published<T> {
    /// With a first value.
    #[must_use]
    pub fn new(first: T) -> Published<T> {
        Published { current: AtomicPtr::new(Box::into_raw(Box::new(first))), replace_lock: Mutex::new(()) }
    }

    /// The present value, for as long as the guard lives.
    #[inline]
    pub fn load<'g>(&'g self, _guard: &'g Guard) -> &'g T {
        // SAFETY:
        // * Made from a box; freed only after all guards of the moment when it was replaced, or
        //   with `self`.
        unsafe { &*self.current.load(Ordering::Acquire) }
    }

    /// Makes what `next` makes of the present value the present one. One at a time.
    pub fn replace(&self, guard: &Guard, next: impl FnOnce(&T) -> T) {
        let _one = self.replace_lock.lock();
        let next = Box::into_raw(Box::new(next(self.load(guard))));
        let before = self.current.swap(next, Ordering::AcqRel) as usize;
        guard.defer(move || {
            // SAFETY:
            // * Made from a box, replaced just now; every guard that may have seen it is gone.
            drop(unsafe { Box::from_raw(before as *mut T) });
        });
        // Whoever waits for the value to go may be another thread, and this one rest from now on.
        guard.flush();
    }
}

impl<T: Send + Sync + 'static> Drop for Published<T> {
    fn drop(&mut self) {
        // SAFETY:
        // * Made from a box, and `&mut self`: nobody reads it.
        drop(unsafe { Box::from_raw(self.current.load(Ordering::Relaxed)) });
    }
}

#[cfg(test)]
mod tests {
    use super::super::epoch;
    use super::*;
    use std::sync::Arc;
    use std::time::Duration;

    #[test]
    fn a_loaded_value_lives_until_its_guard_is_dropped() {
        let (first, second) = (Arc::new(1), Arc::new(2));
        let published = Published::new(Arc::clone(&first));
        let guard = epoch::pin();
        let seen = published.load(&guard);
        published.replace(&guard, |_| Arc::clone(&second));
        assert_eq!((**seen, **published.load(&guard)), (1, 2));
        assert_eq!(Arc::strong_count(&first), 2);
        drop(guard);
        while Arc::strong_count(&first) > 1 {
            assert!(epoch::wait_for_guards(Duration::from_secs(60)), "a guard is held for ever");
        }
        drop(published);
        assert_eq!(Arc::strong_count(&second), 1);
    }
}
