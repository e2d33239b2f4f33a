//! A trie whose pages come and go, for tests of changes beside checkpoints and evictions.

use std::collections::HashMap;

use sheaf_base::segment::Address;
use sheaf_base::sync::{Mutex, epoch};

use crate::list::Entry;
use crate::trie::{Found, Trie, Trouble};

/// A trie, and what stands in for its file.
pub(crate) struct Paged {
    pub(crate) trie: Trie,
    disk: Mutex<HashMap<u32, Box<[u64]>>>,
    /// One checkpoint at a time.
    checkpoint: Mutex<()>,
}

impl Paged {
    /// None of it is in memory.
    pub(crate) fn new(trie: Trie) -> Paged {
        let world = Paged { trie, disk: Mutex::default(), checkpoint: Mutex::default() };
        world.turn_over();
        while !world.trie.pages().is_limbo_empty() {
            epoch::pin().flush();
        }
        world
    }

    /// A checkpoint's writes, then an eviction of what no look-up used for two rounds.
    pub(crate) fn turn_over(&self) {
        let _one = self.checkpoint.lock();
        let guard = &epoch::pin();
        self.trie.freeze();
        let next = || self.trie.heap().frozen.as_mut().and_then(|frozen| frozen.pages.pop());
        for page in std::iter::from_fn(next) {
            let content = self.trie.heap().thaw(page, self.trie.pages(), guard);
            self.disk.lock().extend(content.map(|content| (page, content)));
            self.trie.heap().written(&[page]);
        }
        self.trie.heap().frozen = None;
        self.trie.evict(100, 0, guard, |_| {});
    }

    /// The addresses of `hash`, as a look-up of the engine finds them.
    pub(crate) fn find(&self, hash: u32, guard: &epoch::Guard) -> Found {
        loop {
            match self.trie.find(hash, guard, |_| {}) {
                Ok(found) => return found,
                Err(Trouble::Absent(page)) => {
                    // It may have gone, empty, between the look and the load.
                    let Some(content) = self.disk.lock().get(&page).cloned() else { continue };
                    let is_still = || self.disk.lock()[&page] == content;
                    match self.trie.arrive(page, &content, is_still, guard) {
                        Ok(()) | Err(Trouble::Nonsense(_, "reference")) => {}
                        Err(trouble) => panic!("{trouble:?}"),
                    }
                }
                Err(trouble) => panic!("{trouble:?}"),
            }
        }
    }

    /// Reads every page that is on disk only.
    pub(crate) fn load_all(&self) {
        let guard = &epoch::pin();
        let end = self.trie.heap().highest();
        for page in 0..end {
            if self.trie.heap().is_used(page) && self.trie.pages().get(page, guard).is_none() {
                let content = self.disk.lock()[&page].clone();
                self.trie.arrive(page, &content, || true, guard).expect("it is a page");
            }
        }
    }

    /// Adds an entry, as a commit does: it looks for the hash under the same guard.
    pub(crate) fn insert(&self, hash: u32, at: Address) {
        let guard = &epoch::pin();
        assert!(!self.find(hash, guard).contains(&at));
        self.trie.insert(Entry::new(hash, at), guard).expect("its way is in memory");
    }

    /// Points an entry elsewhere.
    pub(crate) fn replace(&self, hash: u32, from: Address, to: Address) {
        let guard = &epoch::pin();
        assert!(self.find(hash, guard).contains(&from));
        assert_eq!(self.trie.replace(hash, from, to, guard), Ok(true));
    }

    /// Takes an entry out.
    pub(crate) fn remove(&self, hash: u32, at: Address) {
        let guard = &epoch::pin();
        assert!(self.find(hash, guard).contains(&at));
        assert_eq!(self.trie.remove(hash, at, guard), Ok(true));
    }
}
