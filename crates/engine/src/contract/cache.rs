//! # Role: a cache of an engine

use sheaf_platform::memory::cache_arbiter::CacheShare;

/// Cache of a keyspace. The store balances its memory against the other caches.
pub trait EngineCache: Send + Sync {
    /// Returns the cache's share of the memory budget.
    fn cache_share(&self) -> &CacheShare;
    /// Evicts about `bytes` bytes of the cache, least recently used entries first.
    fn evict(&self, bytes: u64);
}
