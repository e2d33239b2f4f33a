//! Trie with page loads and evictions, for tests of changes during checkpoints and evictions.

use std::collections::HashMap;

use sheaf_log::segment::Address;
use sheaf_platform::sync::{Mutex, epoch};

use crate::entry_list::TrieEntry;
use crate::trie::{FoundAddresses, Trie, TrieError};

/// Trie with a map in memory as its file.
pub(crate) struct PagedTrie {
    pub(crate) trie: Trie,
    disk: Mutex<HashMap<u32, Box<[u64]>>>,
    /// Held during a checkpoint: one runs at a time.
    checkpoint: Mutex<()>,
}

impl PagedTrie {
    /// Writes all pages of `trie` to the map and evicts them.
    pub(crate) fn new(trie: Trie) -> PagedTrie {
        let world = PagedTrie { trie, disk: Mutex::default(), checkpoint: Mutex::default() };
        world.checkpoint_and_evict();
        while !world.trie.pages().is_limbo_empty() {
            epoch::pin().flush();
        }
        world
    }

    /// Writes pages as a checkpoint does, then evicts pages that no look-up used for two rounds.
    pub(crate) fn checkpoint_and_evict(&self) {
        let _one = self.checkpoint.lock();
        let guard = &epoch::pin();
        self.trie.freeze();
        let next = || self.trie.heap().frozen.as_mut().and_then(|frozen| frozen.pages.pop());
        for page in std::iter::from_fn(next) {
            let content = self.trie.heap().thaw(page, self.trie.pages(), guard);
            self.disk.lock().extend(content.map(|content| (page, content)));
            self.trie.heap().mark_written(&[page]);
        }
        self.trie.heap().frozen = None;
        self.trie.evict(100, 0, guard, |_| {});
    }

    /// Returns the addresses of `hash`, with page loads as in the engine.
    pub(crate) fn find(&self, hash: u32, guard: &epoch::Guard) -> FoundAddresses {
        loop {
            match self.trie.find(hash, guard, |_| {}) {
                Ok(found) => return found,
                Err(TrieError::NotResident(page)) => {
                    // The page may have been freed between the look-up and the load.
                    let Some(content) = self.disk.lock().get(&page).cloned() else { continue };
                    let is_still = || self.disk.lock()[&page] == content;
                    match self.trie.add_loaded_page(page, &content, is_still, guard) {
                        Ok(()) | Err(TrieError::Invalid(_, "reference")) => {}
                        Err(trouble) => panic!("{trouble:?}"),
                    }
                }
                Err(trouble) => panic!("{trouble:?}"),
            }
        }
    }

    /// Loads every page that is only on disk.
    pub(crate) fn load_all(&self) {
        let guard = &epoch::pin();
        let end = self.trie.heap().end_page();
        for page in 0..end {
            if self.trie.heap().is_used(page) && self.trie.pages().get(page, guard).is_none() {
                let content = self.disk.lock()[&page].clone();
                self.trie.add_loaded_page(page, &content, || true, guard).expect("it is a page");
            }
        }
    }

    /// Adds an entry like a commit: looks up the hash under the same guard.
    pub(crate) fn insert(&self, hash: u32, at: Address) {
        let guard = &epoch::pin();
        assert!(!self.find(hash, guard).contains(&at));
        self.trie.insert(TrieEntry::new(hash, at), guard).expect("its path is in memory");
    }

    /// Changes the address of an entry.
    pub(crate) fn replace(&self, hash: u32, from: Address, to: Address) {
        let guard = &epoch::pin();
        assert!(self.find(hash, guard).contains(&from));
        assert_eq!(self.trie.replace(hash, from, to, guard), Ok(true));
    }

    /// Removes an entry.
    pub(crate) fn remove(&self, hash: u32, at: Address) {
        let guard = &epoch::pin();
        assert!(self.find(hash, guard).contains(&at));
        assert_eq!(self.trie.remove(hash, at, guard), Ok(true));
    }
}
