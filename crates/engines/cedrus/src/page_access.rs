//! # Page access: loads the pages that an operation needs, and evicts others
//!
//! Look-ups in the trie do no I/O: they report a page that is not in memory. This module loads the
//! page, evicts pages beyond the memory budget, and accounts for the memory of the trie. It also
//! records the first change that failed.

use sheaf_engine::read_ahead::request_absent;
use sheaf_log::segment::{Address, FIRST_READ};
use sheaf_platform::error::{Error, Result};
use sheaf_platform::memory::MemoryPart;
use sheaf_platform::sync::atomic::Ordering;
use sheaf_platform::sync::epoch::Guard;
use smallvec::SmallVec;

use crate::engine::CedrusEngine;
use crate::entry_list::{KeyHash, TrieEntry};
use crate::trie::{FoundAddresses, TrieError};

/// Page numbers that are reserved for changes of existing keys. New keys are rejected before they
/// are used.
const RESERVED_PAGES: u64 = 1024;
/// Maximum number of new pages that the insertion of one key needs.
const PAGES_PER_CHANGE: u64 = 4;
/// Maximum number of pages evicted at a time.
const EVICT_BATCH: usize = 16;
const TINY_EVICT_BATCH: usize = 4;
/// Minimum number of pages in memory, even if the budget is smaller. In tiny geometry
/// `TINY_MAX_RESIDENT_PAGES` is also the maximum, so that every test suite loads and evicts pages.
const MIN_RESIDENT_PAGES: u64 = 64;
const TINY_MIN_RESIDENT_PAGES: u64 = 8;
const TINY_MAX_RESIDENT_PAGES: u64 = 24;

/// Bytes of a page of the kernel. Only the cost of a look-up depends on it.
const KERNEL_PAGE: u64 = 4096;

/// Addresses of the records of a batch of keys.
type FoundBatch = SmallVec<[Address; 32]>;

impl CedrusEngine {
    /// Returns the result of `look`. Loads each page that `look` reports as missing, and calls
    /// `look` again.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] or [`Error::Corrupt`] if a page cannot be read or has invalid content.
    #[inline]
    pub(crate) fn with_pages<T>(
        &self,
        guard: &Guard,
        mut look: impl FnMut() -> Result<T, TrieError>,
    ) -> Result<T> {
        let (mut missed, mut has_room) = (None, false);
        loop {
            match look() {
                Ok(seen) => return Ok(seen),
                Err(TrieError::NotResident(page)) => {
                    // Evicts only once per call. Otherwise a path with more pages than may stay in
                    // memory would never be complete.
                    if !std::mem::replace(&mut has_room, true) && !self.has_cache_room() {
                        let (most, least) = self.evict_limits();
                        self.evict_pages(most, least, guard);
                    }
                    self.cache_share.record_miss(u64::from(page), self.page_bytes());
                    // Another thread may free an empty page between `look` and the load. If the
                    // same page fails twice, it is damaged.
                    if let Err(error) = self.trie_file.load(page, &self.trie, guard)
                        && (!error.is_corrupt() || missed.replace(page) == Some(page))
                    {
                        return Err(error);
                    }
                    self.update_accounting();
                }
                Err(trouble) => return Err(self.trie_file.damage_error(trouble)),
            }
        }
    }

    /// Returns the addresses of the records of `hash`.
    ///
    /// # Errors
    ///
    /// Same as [`CedrusEngine::with_pages`].
    #[inline]
    pub(crate) fn find_addresses(&self, hash: KeyHash, guard: &Guard) -> Result<FoundAddresses> {
        if self.has_failed.load(Ordering::Relaxed) {
            return Err(self.failure_error());
        }
        self.ensure_replayed(hash.path)?;
        let ask = |address| self.context.segments.prefetch_entry(address, guard);
        self.with_pages(guard, || self.trie.find(hash, guard, ask))
    }

    /// Prefetches the records of several hashes. Requests absent pages of the trie, and records
    /// that are probably absent, from the device before it waits for the first of them. Errors are
    /// ignored: the operation that follows reports them.
    pub(crate) fn prefetch_records(&self, hashes: &[KeyHash], guard: &Guard) {
        let ask = |address| self.context.segments.prefetch_entry(address, guard);
        let (mut found, mut absent) = (FoundBatch::new(), SmallVec::<[(KeyHash, u32); 32]>::new());
        for hash in hashes.iter().copied() {
            match self.trie.find(hash, guard, ask) {
                Ok(addresses) => found.extend(addresses),
                Err(TrieError::NotResident(page)) => absent.push((hash, page)),
                Err(_) => {}
            }
        }
        let request = |found: &FoundBatch| {
            request_absent(found, (&self.context.segments, guard), |address| Some(*address));
        };
        if absent.len() > 1 {
            absent.iter().for_each(|(_, page)| self.trie_file.will_need(*page));
        }
        request(&found);
        if absent.is_empty() {
            return;
        }
        found.clear();
        for (hash, _) in absent {
            found.extend(self.find_addresses(hash, guard).unwrap_or_default());
        }
        request(&found);
    }

    /// Requests both pages of a record that may extend into a second page, if records tend to be
    /// absent. Otherwise the kernel would read the second page only after the first has arrived. A
    /// request for a record in one page would not be earlier than the read of the record.
    #[inline]
    pub(crate) fn request_both_pages(&self, address: Address, guard: &Guard) {
        if address.offset() % KERNEL_PAGE > KERNEL_PAGE - FIRST_READ as u64 {
            request_absent(&[address], (&self.context.segments, guard), |address| Some(*address));
        }
    }

    /// Reads the entries of a range of hashes that begins at `from`. Returns the last hash of the
    /// range.
    ///
    /// # Errors
    ///
    /// Same as [`CedrusEngine::with_pages`].
    pub(crate) fn visit(&self, from: u32, guard: &Guard, out: &mut Vec<TrieEntry>) -> Result<u32> {
        if self.has_failed.load(Ordering::Relaxed) {
            return Err(self.failure_error());
        }
        let end = self.ensure_replayed_from(from)?;
        let last = self.with_pages(guard, || self.trie.visit(from, guard, out))?;
        if last > end {
            out.retain(|entry| entry.hash <= end);
        }
        Ok(last.min(end))
    }

    /// Returns the first hash behind the list or node at `from` that cannot be read. Returns `None`
    /// at the end of the trie, or if the whole keyspace has failed.
    pub(crate) fn next_readable_hash(&self, from: u32, guard: &Guard) -> Option<u32> {
        if self.has_failed.load(Ordering::Relaxed) {
            return None;
        }
        let mut last = from;
        // The walk ends at the page that cannot be read; its error is expected.
        let _ = self.with_pages(guard, || self.trie.find_subtree_end(from, guard, &mut last));
        last.checked_add(1)
    }

    /// Updates the memory budget with the present size of the trie.
    pub(crate) fn update_accounting(&self) {
        let memory = &self.context.memory;
        let clean = self.trie.clean_bytes();
        self.cache_share.set(clean, memory);
        memory.update_held(MemoryPart::Index, &self.accounted_bytes, self.trie.bytes().saturating_sub(clean));
    }

    /// Returns whether `bytes` more bytes fit into the budget.
    fn has_room(&self, bytes: u64) -> bool {
        let is_small = !self.context.tiny || self.trie.bytes() < TINY_MAX_RESIDENT_PAGES * self.page_bytes();
        is_small && self.context.memory.has_room(bytes)
    }

    pub(crate) fn page_bytes(&self) -> u64 {
        self.trie.shape().page_bytes() as u64
    }

    /// Evicts pages if there is no room for `pages` more. Returns true if there is room now.
    pub(crate) fn evict_for_pages(&self, pages: u64, guard: &Guard) -> bool {
        let bytes = pages * self.page_bytes();
        if self.has_room(bytes) {
            return true;
        }
        let (most, least) = self.evict_limits();
        self.evict_pages(most, least, guard);
        self.context.memory.has_room(bytes)
    }

    /// Returns the maximum number of pages to evict at once, and the minimum to keep.
    pub(crate) fn evict_limits(&self) -> (usize, u64) {
        if self.context.tiny {
            (TINY_EVICT_BATCH, TINY_MIN_RESIDENT_PAGES)
        } else {
            (EVICT_BATCH, MIN_RESIDENT_PAGES)
        }
    }

    pub(crate) fn evict_pages(&self, most: usize, least: u64, guard: &Guard) {
        let went = |page| self.cache_share.record_eviction(u64::from(page), self.page_bytes());
        self.trie.evict(most, least, guard, went);
        self.update_accounting();
    }

    /// Returns whether one more page fits into the cache share.
    fn has_cache_room(&self) -> bool {
        let bytes = self.page_bytes();
        self.has_room(bytes) && self.cache_share.has_room(bytes, &self.context.memory)
    }

    pub(crate) fn failure_error(&self) -> Error {
        self.trie_file.damage_error((*self.failure.lock()).unwrap_or(TrieError::OutOfPages))
    }

    /// Records the error of a change that must not fail. From then on the keyspace rejects all
    /// operations.
    pub(crate) fn note_change_result<T>(&self, changed: Result<T, TrieError>) -> Option<T> {
        self.update_accounting();
        match changed {
            Ok(done) => Some(done),
            Err(trouble) => {
                self.failure.lock().get_or_insert(trouble);
                self.has_failed.store(true, Ordering::Relaxed);
                None
            }
        }
    }

    /// Returns whether a new key fits: the budget has room or can be given room, or free lines
    /// suffice.
    pub(crate) fn has_room_for_key(&self, guard: &Guard) -> bool {
        (self.evict_for_pages(PAGES_PER_CHANGE, guard) || self.trie.has_free_lines())
            && self.trie.can_grow_by(RESERVED_PAGES)
    }
}
