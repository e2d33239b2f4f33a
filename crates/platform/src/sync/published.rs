//! # Published: a value that is replaced as a whole
//!
//! ```text
//!  reader:    pin the epoch, load the pointer
//!  replacer:  lock, derive the next value from the present one, swap the pointer
//!             └─> the old value is freed after all guards of that moment were dropped
//! ```
//!
//! A reader takes no lock and sees one consistent state of the value. A replacement allocates
//! memory.

use super::Mutex;
use super::atomic::{AtomicPtr, Ordering};
use super::epoch::Guard;

/// A value that is replaced and never changed, so readers always see a complete one.
#[derive(Debug)]
pub struct Published<T: Send + Sync + 'static> {
    current: AtomicPtr<T>,
    replace_lock: Mutex<()>,
}

impl<T: Send + Sync + 'static> Published<T> {
    /// Publishes the first value.
    #[must_use]
    pub fn new(first: T) -> Published<T> {
        Published { current: AtomicPtr::new(Box::into_raw(Box::new(first))), replace_lock: Mutex::new(()) }
    }

    /// Returns the present value, valid while the guard lives.
    #[inline]
    pub fn load<'g>(&'g self, _guard: &'g Guard) -> &'g T {
        // SAFETY:
        // * The pointer comes from a box. The value is freed only after all guards of the moment of
        //   its replacement were dropped, or with `self`.
        unsafe { &*self.current.load(Ordering::Acquire) }
    }

    /// Replaces the present value by the result of `next`. Replacements exclude each other.
    pub fn replace(&self, guard: &Guard, next: impl FnOnce(&T) -> T) {
        let _one = self.replace_lock.lock();
        let next = Box::into_raw(Box::new(next(self.load(guard))));
        let before = self.current.swap(next, Ordering::AcqRel) as usize;
        guard.defer(move || {
            // SAFETY:
            // * The pointer comes from a box and was just replaced. Every guard under which it may
            //   have been loaded was dropped.
            drop(unsafe { Box::from_raw(before as *mut T) });
        });
        // This thread may be idle from now on, while another one waits until the value is freed.
        guard.flush();
    }
}

impl<T: Send + Sync + 'static> Drop for Published<T> {
    fn drop(&mut self) {
        // SAFETY:
        // * The pointer comes from a box, and `&mut self` excludes readers.
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
