//! # Sharded `Arc`: a shared value with several reference counts
//!
//! Cloning and dropping an [`Arc`] write to the cache line of its count. Threads that do so at the
//! same time wait for that line. With a [`ShardedArc`], threads clone an `Arc` of their own shard.

use std::sync::{Arc, OnceLock};

/// Number of shards. Threads are assigned in turn, so additional threads share them.
pub const THREAD_SHARDS: usize = 32;

super::thread_local! {
    static THREAD_SHARD: usize = next_shard();
}

fn next_shard() -> usize {
    if cfg!(shuttle) {
        return 0; // a schedule must be reproducible
    }
    static THREADS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    THREADS.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % THREAD_SHARDS
}

/// Returns the shard of this thread, below [`THREAD_SHARDS`].
pub fn thread_shard() -> usize {
    THREAD_SHARD.try_with(|place| *place).unwrap_or(0) // a thread that is ending
}

/// A value, and a reference-counted copy of it for each shard.
#[derive(Debug)]
pub struct ShardedArc<T> {
    value: T,
    copies: [OnceLock<Arc<T>>; THREAD_SHARDS],
}

impl<T: Clone> ShardedArc<T> {
    /// Creates a value without copies.
    pub fn new(value: T) -> ShardedArc<T> {
        ShardedArc { value, copies: [const { OnceLock::new() }; THREAD_SHARDS] }
    }

    /// Returns the value.
    pub fn value(&self) -> &T {
        &self.value
    }

    /// Returns the copy for the shard of this thread.
    pub fn get(&self) -> Arc<T> {
        Arc::clone(self.copies[thread_shard()].get_or_init(|| Arc::new(self.value.clone())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_threads_count_apart() {
        let spread = ShardedArc::new(7);
        let here = spread.get();
        let there = std::thread::scope(|scope| scope.spawn(|| spread.get()).join().expect("it gets"));
        assert_eq!((*here, *there), (7, 7));
        assert!(Arc::ptr_eq(&here, &spread.get()) && !Arc::ptr_eq(&here, &there));
        assert_eq!((Arc::strong_count(&here), Arc::strong_count(&there)), (2, 2));
    }
}
