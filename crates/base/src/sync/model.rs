//! # The seam under a scheduler that decides every step
//!
//! Shuttle's locks, atomics and threads with the interface of the real ones. Epochs are the
//! strictest that the contract allows: what is deferred runs at the very moment the last guard that
//! was pinned before it goes, so a pointer that outlives its guard is dead at once.
//!
//! ## What it cannot see
//!
//! Weak memory: every execution is sequentially consistent. Arguments about orderings stay
//! arguments.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;
use std::time::Duration;

use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler};
use shuttle::{Config, Runner};

pub use shuttle::sync::atomic;
pub use shuttle::thread;
pub(crate) use shuttle::thread_local;

/// Preemptions that the directed half of the schedules has at most.
const DEPTH: usize = 3;

/// Runs `scenario` under as many schedules as asked, `SHEAF_SCHEDULES` before `schedules`: half of
/// them random, half with few preemptions, from `SHEAF_SEED` on. A failure prints its schedule;
/// with that in `SHEAF_SCHEDULE` it alone is run.
pub fn explore(schedules: u64, scenario: impl Fn() + Clone + Send + Sync + 'static) {
    let setting =
        |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().expect("a number"));
    let mut config = Config::new();
    config.stack_size = 512 << 10;
    config.silence_warnings = true;
    if let Ok(schedule) = std::env::var("SHEAF_SCHEDULE") {
        Runner::new(ReplayScheduler::new_from_encoded(&schedule), config).run(scenario);
        return;
    }
    let seed = setting("SHEAF_SEED", 1);
    let half = usize::try_from(setting("SHEAF_SCHEDULES", schedules) / 2).expect("small");
    let mut done =
        Runner::new(RandomScheduler::new_from_seed(seed, half), config.clone()).run(scenario.clone());
    done += Runner::new(PctScheduler::new_from_seed(seed, DEPTH, half), config).run(scenario);
    assert!(done > 0, "nothing was played");
    println!("{done} schedules");
}

/// Others may run here, or not. (A yield would be an offer, which the scheduler with few
/// preemptions always takes.)
pub fn step() {
    atomic::AtomicBool::new(false).load(atomic::Ordering::SeqCst);
}

/// Atomics that are their value and nothing else. Others may run before each access.
pub mod bare {
    pub use std::sync::atomic::Ordering;

    use super::step;

    macro_rules! bare {
        ($name:ident, $number:ty) => {
            /// As std's.
            #[derive(Debug, Default)]
            #[repr(transparent)]
            pub struct $name(std::sync::atomic::$name);

            impl $name {
                /// As std's.
                pub fn load(&self, order: Ordering) -> $number {
                    step();
                    self.0.load(order)
                }

                /// As std's.
                pub fn store(&self, value: $number, order: Ordering) {
                    step();
                    self.0.store(value, order);
                }

                /// As std's.
                ///
                /// # Errors
                ///
                /// The present value, if it is not `seen`.
                pub fn compare_exchange(
                    &self,
                    seen: $number,
                    next: $number,
                    done: Ordering,
                    failed: Ordering,
                ) -> Result<$number, $number> {
                    step();
                    self.0.compare_exchange(seen, next, done, failed)
                }
            }
        };
    }

    bare!(AtomicU32, u32);
    bare!(AtomicU64, u64);
}

/// As parking_lot's.
#[derive(Default)]
pub struct Mutex<T: ?Sized>(shuttle::sync::Mutex<T>);

/// As parking_lot's.
pub struct MutexGuard<'a, T: ?Sized> {
    of: &'a Mutex<T>,
    /// `None` while a condition is awaited.
    inner: Option<shuttle::sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    /// As parking_lot's.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex(shuttle::sync::Mutex::new(value))
    }

    /// As parking_lot's.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Mutex<T> {
    /// As parking_lot's.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { of: self, inner: Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)) }
    }

    /// As parking_lot's.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok().map(|guard| MutexGuard { of: self, inner: Some(guard) })
    }

    /// As parking_lot's.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mutex")
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.inner.as_ref().expect("only a wait takes it, and gives it back")
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect("only a wait takes it, and gives it back")
    }
}

/// As parking_lot's.
#[derive(Default)]
pub struct Condvar(shuttle::sync::Condvar);

impl Condvar {
    /// As parking_lot's.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let inner = guard.inner.take().expect("only a wait takes it, and gives it back");
        guard.inner = Some(self.0.wait(inner).unwrap_or_else(PoisonError::into_inner));
    }

    /// As parking_lot's. Time does not pass here: the wait ends at once, which is one of the things
    /// that may happen.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _: Duration) {
        guard.inner = None;
        thread::yield_now(); // others run, as they would
        guard.inner = guard.of.lock().inner.take();
    }

    /// As parking_lot's.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// As parking_lot's.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

impl fmt::Debug for Condvar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Condvar")
    }
}

/// As parking_lot's.
#[derive(Default)]
pub struct RwLock<T>(shuttle::sync::RwLock<T>);

/// As parking_lot's.
pub type RwLockReadGuard<'a, T> = shuttle::sync::RwLockReadGuard<'a, T>;
/// As parking_lot's.
pub type RwLockWriteGuard<'a, T> = shuttle::sync::RwLockWriteGuard<'a, T>;

impl<T> RwLock<T> {
    /// As parking_lot's.
    pub const fn new(value: T) -> RwLock<T> {
        RwLock(shuttle::sync::RwLock::new(value))
    }

    /// As parking_lot's.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// As parking_lot's.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RwLock")
    }
}

/// An atomic of 16 bytes. Others may run before each access.
#[derive(Debug)]
pub(crate) struct AtomicWide(std::sync::Mutex<u128>);

impl AtomicWide {
    pub(crate) const fn new(value: u128) -> AtomicWide {
        AtomicWide(std::sync::Mutex::new(value))
    }

    fn access<T>(&self, access: impl FnOnce(&mut u128) -> T) -> T {
        step();
        access(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn load(&self, _: atomic::Ordering) -> u128 {
        self.access(|value| *value)
    }

    pub(crate) fn store(&self, new: u128, _: atomic::Ordering) {
        self.access(|value| *value = new);
    }

    /// Replaces `before` by `after`, or returns the present value.
    pub(crate) fn exchange(&self, before: u128, after: u128) -> Result<(), u128> {
        self.access(|value| match *value == before {
            true => {
                *value = after;
                Ok(())
            }
            false => Err(*value),
        })
    }
}

/// The kernel's futex: comparing and going to sleep are one step.
#[derive(Debug, Default)]
pub(super) struct Futex {
    queue: Mutex<()>,
    sleepers: Condvar,
}

impl Futex {
    pub(super) fn wait(&self, word: &atomic::AtomicU32, seen: u32) {
        let mut queue = self.queue.lock();
        if word.load(atomic::Ordering::SeqCst) == seen {
            self.sleepers.wait(&mut queue);
        }
    }

    pub(super) fn wake(&self, _: &atomic::AtomicU32) {
        let _queue = self.queue.lock();
        self.sleepers.notify_all();
    }
}

/// Epochs, at their strictest.
pub mod epoch {
    use super::{BTreeSet, RefCell, fmt};

    type DeferredCall = (BTreeSet<u64>, Box<dyn FnOnce()>);

    /// Turns that are given away before a guard counts as held.
    const TURNS: usize = 8;

    #[derive(Default)]
    struct EpochPins {
        next: u64,
        live: BTreeSet<u64>,
        deferred: Vec<DeferredCall>,
    }

    // One model runs in one thread of the system, whatever threads it plays.
    std::thread_local! {
        static PINS: RefCell<EpochPins> = RefCell::default();
    }

    /// Keeps what is deferred from now on.
    pub struct Guard(u64);

    /// A guard.
    #[must_use]
    pub fn pin() -> Guard {
        PINS.with_borrow_mut(|pins| {
            pins.next += 1;
            let number = pins.next;
            pins.live.insert(number);
            Guard(number)
        })
    }

    /// What is deferred runs as soon as it may.
    pub fn note_deferred(_bytes: usize) {}

    /// As above.
    pub fn free_deferred(_guard: &Guard) {}

    /// As above: nothing waits for long.
    #[must_use]
    pub fn deferred_bytes() -> u64 {
        0
    }

    /// Gives others turns until every guard of this moment is gone, or there were as many as nobody
    /// needs.
    pub fn wait_for_guards(_limit: std::time::Duration) -> bool {
        let present = PINS.with_borrow(|pins| pins.live.clone());
        (0..TURNS).any(|_| {
            shuttle::thread::yield_now();
            PINS.with_borrow(|pins| pins.live.is_disjoint(&present))
        })
    }

    impl Guard {
        /// Runs `work` once every present guard is gone.
        pub fn defer<R>(&self, work: impl FnOnce() -> R + Send + 'static) {
            PINS.with_borrow_mut(|pins| {
                let present = pins.live.clone();
                pins.deferred.push((present, Box::new(|| drop(work()))));
            });
        }

        /// As [`Guard::defer`].
        ///
        /// # Safety
        ///
        /// * What `work` captures lives until it ran.
        pub unsafe fn defer_unchecked<R>(&self, work: impl FnOnce() -> R) {
            let work: Box<dyn FnOnce() + '_> = Box::new(|| drop(work()));
            // SAFETY:
            // * The caller's promise.
            let work: Box<dyn FnOnce()> = unsafe { std::mem::transmute(work) };
            PINS.with_borrow_mut(|pins| {
                let present = pins.live.clone();
                pins.deferred.push((present, work));
            });
        }

        /// Nothing: what is due ran already.
        pub fn flush(&self) {}
    }

    impl fmt::Debug for Guard {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "Guard {}", self.0)
        }
    }

    impl Drop for Guard {
        fn drop(&mut self) {
            let due = PINS.with_borrow_mut(|pins| {
                pins.live.remove(&self.0);
                for (waits, _) in &mut pins.deferred {
                    waits.remove(&self.0);
                }
                let (due, later): (Vec<_>, Vec<_>) =
                    std::mem::take(&mut pins.deferred).into_iter().partition(|(waits, _)| waits.is_empty());
                pins.deferred = later;
                due
            });
            due.into_iter().for_each(|(_, work)| work());
        }
    }
}
