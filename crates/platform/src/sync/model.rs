//! # Model: the facade under a scheduler that decides every step
//!
//! Provides the locks, atomics and threads of shuttle with the interface of the real ones. Epochs
//! are as strict as the contract allows: a deferred function runs as soon as the last guard that
//! was pinned before it is dropped. A pointer that outlives its guard is therefore invalid at once.
//!
//! Weak memory orders are not explored: every execution is sequentially consistent. The choice of
//! memory orders must be justified by argument.

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
pub use shuttle::thread_local;

/// Most preemptions of a schedule in the directed half.
const DEPTH: usize = 3;

/// Runs `scenario` under `schedules` schedules. Half of them are random, half have few preemptions.
/// Environment variables: `SHEAF_SCHEDULES` replaces their number, and `SHEAF_SEED` sets the seed.
/// A failure prints its schedule; `SHEAF_SCHEDULE` set to that text runs it alone.
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
    assert!(done > 0, "no schedule was explored");
    println!("{done} schedules");
}

/// Permits other threads to run here. (A yield would force a switch under the scheduler with few
/// preemptions.)
pub fn step() {
    atomic::AtomicBool::new(false).load(atomic::Ordering::SeqCst);
}

/// Atomics that consist of their value only. Other threads may run before each access.
pub mod bare {
    pub use std::sync::atomic::Ordering;

    use super::step;

    macro_rules! bare {
        ($name:ident, $number:ty) => {
            /// Equivalent of the type in std.
            #[derive(Debug, Default)]
            #[repr(transparent)]
            pub struct $name(std::sync::atomic::$name);

            impl $name {
                /// Equivalent of the method in std.
                pub fn load(&self, order: Ordering) -> $number {
                    step();
                    self.0.load(order)
                }

                /// Equivalent of the method in std.
                pub fn store(&self, value: $number, order: Ordering) {
                    step();
                    self.0.store(value, order);
                }

                /// Equivalent of the method in std.
                ///
                /// # Errors
                ///
                /// Returns the present value if it is not `seen`.
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

/// Equivalent of the type in parking_lot.
#[derive(Default)]
pub struct Mutex<T: ?Sized>(shuttle::sync::Mutex<T>);

/// Equivalent of the type in parking_lot.
pub struct MutexGuard<'a, T: ?Sized> {
    of: &'a Mutex<T>,
    /// `None` during a wait for a condition.
    inner: Option<shuttle::sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    /// Equivalent of the method in parking_lot.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex(shuttle::sync::Mutex::new(value))
    }

    /// Equivalent of the method in parking_lot.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Equivalent of the method in parking_lot.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { of: self, inner: Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)) }
    }

    /// Equivalent of the method in parking_lot.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok().map(|guard| MutexGuard { of: self, inner: Some(guard) })
    }

    /// Equivalent of the method in parking_lot.
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
        self.inner.as_ref().expect("only `Condvar::wait` takes the guard, and returns it")
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect("only `Condvar::wait` takes the guard, and returns it")
    }
}

/// Equivalent of the type in parking_lot.
#[derive(Default)]
pub struct Condvar(shuttle::sync::Condvar);

impl Condvar {
    /// Equivalent of the method in parking_lot.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let inner = guard.inner.take().expect("only `Condvar::wait` takes the guard, and returns it");
        guard.inner = Some(self.0.wait(inner).unwrap_or_else(PoisonError::into_inner));
    }

    /// Equivalent of the method in parking_lot, except that no time passes: the wait times out at
    /// once, which is one of the possible outcomes.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _: Duration) {
        guard.inner = None;
        thread::yield_now(); // other threads may run during the wait
        guard.inner = guard.of.lock().inner.take();
    }

    /// Equivalent of the method in parking_lot.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Equivalent of the method in parking_lot.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

impl fmt::Debug for Condvar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Condvar")
    }
}

/// Equivalent of the type in parking_lot.
#[derive(Default)]
pub struct RwLock<T>(shuttle::sync::RwLock<T>);

/// Equivalent of the type in parking_lot.
pub type RwLockReadGuard<'a, T> = shuttle::sync::RwLockReadGuard<'a, T>;
/// Equivalent of the type in parking_lot.
pub type RwLockWriteGuard<'a, T> = shuttle::sync::RwLockWriteGuard<'a, T>;

impl<T> RwLock<T> {
    /// Equivalent of the method in parking_lot.
    pub const fn new(value: T) -> RwLock<T> {
        RwLock(shuttle::sync::RwLock::new(value))
    }

    /// Equivalent of the method in parking_lot.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Equivalent of the method in parking_lot.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RwLock")
    }
}

/// An atomic of 16 bytes. Other threads may run before each access.
#[derive(Debug)]
pub struct AtomicWide(std::sync::Mutex<u128>);

impl AtomicWide {
    /// Creates the atomic with a value.
    #[must_use]
    pub const fn new(value: u128) -> AtomicWide {
        AtomicWide(std::sync::Mutex::new(value))
    }

    fn access<T>(&self, access: impl FnOnce(&mut u128) -> T) -> T {
        step();
        access(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the value.
    pub fn load(&self, _: atomic::Ordering) -> u128 {
        self.access(|value| *value)
    }

    /// Sets the value.
    pub fn store(&self, new: u128, _: atomic::Ordering) {
        self.access(|value| *value = new);
    }

    /// Replaces `before` by `after`.
    ///
    /// # Errors
    ///
    /// Returns the present value if it is not `before`.
    pub fn exchange(&self, before: u128, after: u128) -> Result<(), u128> {
        self.access(|value| match *value == before {
            true => {
                *value = after;
                Ok(())
            }
            false => Err(*value),
        })
    }
}

/// Model of the futex of the kernel: comparing the word and falling asleep are one step.
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

/// Epochs in their strictest form.
pub mod epoch {
    use super::{BTreeSet, RefCell, fmt};

    type DeferredCall = (BTreeSet<u64>, Box<dyn FnOnce()>);

    /// Number of yields before a guard counts as held.
    const TURNS: usize = 8;

    #[derive(Default)]
    struct EpochPins {
        next: u64,
        live: BTreeSet<u64>,
        deferred: Vec<DeferredCall>,
    }

    // One model runs in one thread of the system, which executes all threads of the model.
    std::thread_local! {
        static PINS: RefCell<EpochPins> = RefCell::default();
    }

    /// Delays functions that are deferred from now on.
    pub struct Guard(u64);

    /// Pins the epoch.
    #[must_use]
    pub fn pin() -> Guard {
        PINS.with_borrow_mut(|pins| {
            pins.next += 1;
            let number = pins.next;
            pins.live.insert(number);
            Guard(number)
        })
    }

    /// Does nothing: deferred functions run as soon as possible.
    pub fn note_deferred(_bytes: usize) {}

    /// Does nothing, like [`note_deferred`].
    pub fn free_deferred(_guard: &Guard) {}

    /// Returns 0: no memory waits for long.
    #[must_use]
    pub fn deferred_bytes() -> u64 {
        0
    }

    /// Yields until every present guard was dropped, or until a number of yields that always
    /// suffices.
    pub fn wait_for_guards(_limit: std::time::Duration) -> bool {
        let present = PINS.with_borrow(|pins| pins.live.clone());
        (0..TURNS).any(|_| {
            shuttle::thread::yield_now();
            PINS.with_borrow(|pins| pins.live.is_disjoint(&present))
        })
    }

    impl Guard {
        /// Runs `work` after every present guard was dropped.
        pub fn defer<R>(&self, work: impl FnOnce() -> R + Send + 'static) {
            PINS.with_borrow_mut(|pins| {
                let present = pins.live.clone();
                pins.deferred.push((present, Box::new(|| drop(work()))));
            });
        }

        /// Like [`Guard::defer`], for functions that borrow.
        ///
        /// # Safety
        ///
        /// * All values that `work` captures must live until it ran.
        pub unsafe fn defer_unchecked<R>(&self, work: impl FnOnce() -> R) {
            let work: Box<dyn FnOnce() + '_> = Box::new(|| drop(work()));
            // SAFETY:
            // * The caller promises that the captured values live until `work` ran.
            let work: Box<dyn FnOnce()> = unsafe { std::mem::transmute(work) };
            PINS.with_borrow_mut(|pins| {
                let present = pins.live.clone();
                pins.deferred.push((present, work));
            });
        }

        /// Does nothing: due functions have already run.
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
