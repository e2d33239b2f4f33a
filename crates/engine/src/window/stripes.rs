//! # Stripes: mutual exclusion of commits to the same key
//!
//! A commit holds the stripe of each of its keys from the check of the entries that it replaces
//! until it is complete. Hence at most one commit at a time changes a key. Different keys rarely
//! share a stripe.
//!
//! ## Picture
//!
//! ```text
//!   stripe:     last seq of a commit that held it | held?
//!   commit:     takes its stripes in ascending order ─> gate closed? releases them and waits
//!   exclusive:  closes the gate ─> waits until every stripe was seen free once
//! ```
//!
//! ## Invariants
//!
//! 1. A commit takes each stripe once, in ascending order, so no two commits wait for each other.
//!    While it holds them, it waits only for earlier seqs.
//! 2. A commit takes its stripes and then reads the gate. [`Stripes::lock_exclusive`] closes the
//!    gate and then reads the stripes. All these accesses are sequentially consistent, so at least
//!    one of the two sees the other.
//! 3. The last seq of a stripe is stored before the commit changes an index. A reader that does not
//!    find a key can therefore determine from its stripe which commit may have removed it.

use smallvec::SmallVec;

use crossbeam_utils::CachePadded;

use sheaf_log::types::{KeyspaceId, Seq};
use sheaf_platform::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sheaf_platform::sync::{self, Mutex, MutexGuard, WaitWord, WaitWords};

/// Number of stripes.
const STRIPES: u16 = if cfg!(shuttle) { 4 } else { 4096 };
/// Most stripes of a commit. A commit with more stripes takes exclusive access.
const MAX_STRIPES: usize = if cfg!(shuttle) { 2 } else { 128 };
/// Number of polls of a stripe before a waiting thread yields.
const SPINS: u32 = if cfg!(shuttle) { 0 } else { 200 };
/// Number of yields before it sleeps.
const YIELDS: u32 = if cfg!(shuttle) { 1 } else { 8 };
/// Bit of a stripe that is held.
const HELD: u64 = 1;

/// The stripes of all keys.
#[derive(Debug)]
pub struct Stripes {
    words: Box<[AtomicU64]>,
    /// Whether the gate is closed: a thread has exclusive access or waits for it.
    is_closed: CachePadded<AtomicBool>,
    /// The last seq of an exclusive commit.
    last_exclusive: CachePadded<AtomicU64>,
    /// Wakes threads that wait for a stripe.
    released: WaitWords,
    /// Wakes threads that wait for the gate.
    opened: CachePadded<WaitWord>,
    exclusive_lock: Mutex<()>,
}

impl Default for Stripes {
    fn default() -> Stripes {
        Stripes {
            words: (0..STRIPES).map(|_| AtomicU64::new(0)).collect(),
            is_closed: CachePadded::default(),
            last_exclusive: CachePadded::default(),
            released: WaitWords::default(),
            opened: CachePadded::default(),
            exclusive_lock: Mutex::new(()),
        }
    }
}

/// Stripes of a commit, in ascending order without duplicates.
pub type StripeList = SmallVec<[u16; 4]>;

/// Returns the stripe of a key.
#[inline]
#[allow(clippy::cast_possible_truncation, reason = "any bits of a hash")]
pub fn stripe_of(keyspace: KeyspaceId, key: &[u8]) -> u16 {
    let hash = rapidhash::v3::rapidhash_v3(key) ^ u64::from(keyspace.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash >> 40) as u16 % STRIPES
}

/// Waits until `is_over` returns true: spins, yields, then sleeps. Usually it is true at once.
#[inline]
fn wait_on(word: &WaitWord, is_over: impl Fn() -> bool) {
    let mut looks = 0;
    while !is_over() {
        if looks < SPINS {
            std::hint::spin_loop();
        } else if looks < SPINS + YIELDS {
            sync::thread::yield_now();
        } else {
            word.sleep_unless(word.load(), &is_over);
        }
        looks += 1;
    }
}

impl Stripes {
    /// Takes the stripes in `list`, or exclusive access if there are too many.
    #[inline]
    pub fn lock<'s>(&'s self, list: &'s [u16]) -> StripesGuard<'s> {
        debug_assert!(list.is_sorted_by(|a, b| a < b), "stripes (I1): each stripe once, in ascending order");
        if list.len() > MAX_STRIPES {
            return self.lock_all();
        }
        loop {
            list.iter().for_each(|stripe| self.take(*stripe));
            let held = StripesGuard { stripes: self, list, alone: None };
            if !self.is_closed.load(Ordering::SeqCst) {
                return held;
            }
            drop(held);
            wait_on(&self.opened, || !self.is_closed.load(Ordering::SeqCst));
        }
    }

    /// Takes all stripes, for a commit that may change any keys.
    pub fn lock_all(&self) -> StripesGuard<'_> {
        StripesGuard { stripes: self, list: &[], alone: Some(self.lock_exclusive()) }
    }

    #[inline]
    fn take(&self, stripe: u16) {
        let word = &self.words[usize::from(stripe)];
        let seen = word.load(Ordering::Relaxed);
        if seen & HELD != 0
            || word.compare_exchange(seen, seen | HELD, Ordering::SeqCst, Ordering::Relaxed).is_err()
        {
            self.take_long(stripe);
        }
    }

    #[cold]
    fn take_long(&self, stripe: u16) {
        while self.words[usize::from(stripe)].fetch_or(HELD, Ordering::SeqCst) & HELD != 0 {
            self.wait_released(stripe);
        }
    }

    fn wait_released(&self, stripe: u16) {
        let word = &self.words[usize::from(stripe)];
        wait_on(self.released.of(u64::from(stripe)), || word.load(Ordering::SeqCst) & HELD == 0);
    }

    /// Waits until no commit holds a stripe, and keeps commits from taking one while the guard
    /// lives. All earlier commits are then complete. The caller must hold neither stripes nor the
    /// order lock.
    pub fn lock_exclusive(&self) -> ExclusiveGuard<'_> {
        let one = self.exclusive_lock.lock();
        self.is_closed.store(true, Ordering::SeqCst);
        let alone = ExclusiveGuard { stripes: self, _one: one };
        (0..STRIPES).for_each(|stripe| self.wait_released(stripe));
        alone
    }

    /// Returns the last commit that may have changed a key of this stripe.
    #[inline]
    pub fn last(&self, stripe: u16) -> Seq {
        let alone = self.last_exclusive.load(Ordering::SeqCst);
        Seq((self.words[usize::from(stripe)].load(Ordering::SeqCst) >> 1).max(alone))
    }
}

/// Stripes that a commit holds.
pub struct StripesGuard<'s> {
    stripes: &'s Stripes,
    list: &'s [u16],
    alone: Option<ExclusiveGuard<'s>>,
}

impl StripesGuard<'_> {
    /// Records that commit `seq` is about to change keys of these stripes.
    #[inline]
    pub fn set_last(&self, seq: Seq) {
        for stripe in self.list {
            self.stripes.words[usize::from(*stripe)].store(seq.0 << 1 | HELD, Ordering::Release);
        }
        if let Some(alone) = &self.alone {
            alone.set_last(seq);
        }
    }

    /// Returns the last commit that may have changed a key of these stripes.
    pub fn last(&self) -> Seq {
        let alone = Seq(self.stripes.last_exclusive.load(Ordering::SeqCst));
        match self.alone {
            Some(_) => {
                let words = self.stripes.words.iter().map(|word| Seq(word.load(Ordering::SeqCst) >> 1));
                words.max().unwrap_or(alone).max(alone)
            }
            None => self.list.iter().map(|stripe| self.stripes.last(*stripe)).max().unwrap_or(alone),
        }
    }
}

impl Drop for StripesGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        for stripe in self.list {
            // Only the holder changes the word. Waiting threads set the bit that is already set.
            self.stripes.words[usize::from(*stripe)].fetch_and(!HELD, Ordering::SeqCst);
            self.stripes.released.of(u64::from(*stripe)).wake();
        }
    }
}

/// Exclusive access: no commit holds a stripe while this lives.
pub struct ExclusiveGuard<'s> {
    stripes: &'s Stripes,
    _one: MutexGuard<'s, ()>,
}

impl ExclusiveGuard<'_> {
    /// Records that commit `seq` is about to change any keys.
    pub fn set_last(&self, seq: Seq) {
        self.stripes.last_exclusive.store(seq.0, Ordering::SeqCst);
    }
}

impl Drop for ExclusiveGuard<'_> {
    fn drop(&mut self) {
        self.stripes.is_closed.store(false, Ordering::SeqCst);
        self.stripes.opened.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_stripe_tells_the_last_commit_that_held_it() {
        let stripes = Stripes::default();
        let held = stripes.lock(&[1, 3]);
        held.set_last(Seq(7));
        assert_eq!([1, 2, 3].map(|stripe| stripes.last(stripe)), [Seq(7), Seq(0), Seq(7)]);
        assert_eq!(held.last(), Seq(7));
        drop(held);
        let all: StripeList = (0..=u16::try_from(MAX_STRIPES).unwrap()).collect();
        let held = stripes.lock(&all);
        held.set_last(Seq(9));
        drop(held);
        assert_eq!([1, 2].map(|stripe| stripes.last(stripe)), [Seq(9); 2]);
    }

    #[test]
    fn an_exclusive_thread_waits_for_commits_and_excludes_them() {
        const WHILE: Duration = Duration::from_millis(20);
        let (stripes, (done, ended)) = (&Stripes::default(), mpsc::channel());
        std::thread::scope(|scope| {
            let held = stripes.lock(&[5]);
            let tell = done.clone();
            scope.spawn(move || {
                drop(stripes.lock_exclusive());
                tell.send("alone").unwrap();
            });
            assert!(ended.recv_timeout(WHILE).is_err(), "a commit is under way");
            drop(held);
            assert_eq!(ended.recv(), Ok("alone"));
            let alone = stripes.lock_exclusive();
            scope.spawn(move || {
                drop(stripes.lock(&[5]));
                done.send("held").unwrap();
            });
            assert!(ended.recv_timeout(WHILE).is_err(), "a thread is alone");
            drop(alone);
            assert_eq!(ended.recv(), Ok("held"));
        });
    }

    #[test]
    fn commits_to_the_same_keys_take_turns() {
        let (stripes, inside) = (Stripes::default(), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..4u16 {
                let (stripes, inside) = (&stripes, &inside);
                scope.spawn(move || {
                    for round in 0..5_000u16 {
                        let list: StripeList = SmallVec::from_slice(&[0, 1 + thread, 9 + round % 3]);
                        let held = stripes.lock(&list);
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(held);
                        if round % 500 == 0 {
                            let alone = stripes.lock_exclusive();
                            assert_eq!(inside.load(Ordering::SeqCst), 0);
                            drop(alone);
                        }
                    }
                });
            }
        });
    }
}
