//! # Recent block: the decoded entries of one block of a table
//!
//! Calls of `first` and `last`, and ranges near one key, always begin in the same block of a table.
//! Decoding the entries of this block would cost more than the rest of such a call.
//!
//! ## Invariants
//!
//! 1. A block is kept once two walks in a row began in it. Walks that begin at random keys keep
//!    none. At most one block of a table is kept, with at most [`MOST`] bytes.
//! 2. The bytes of a kept block are taken from the budget until the block is replaced or dropped.
//!
//! ## Threads
//!
//! Any thread. The lock is only tried: a walk that does not get it decodes the block.

use std::sync::Arc;

use sheaf_platform::error::Result;
use sheaf_platform::memory::{Memory, MemoryPart};
use sheaf_platform::sync::Mutex;
use sheaf_platform::sync::atomic::{AtomicUsize, Ordering};

use crate::files::list::{BlockEntries, KeyList};

/// Maximum bytes of a kept block. A block has more only if a key has very many versions.
const MOST: u64 = 64 << 10;

/// Decoded block that is kept for the next walk.
#[derive(Debug, Default)]
pub(crate) struct RecentBlock {
    /// Block in which the last walk began, plus one.
    last: AtomicUsize,
    kept: Mutex<Option<(usize, Arc<BlockEntries>)>>,
}

impl RecentBlock {
    /// Returns the entries of `block` of `list`, in which a walk begins.
    ///
    /// # Errors
    ///
    /// Returns `Error::Corrupt` if the block is damaged, and `Error::Io` if it cannot be read.
    pub(crate) fn entries(&self, list: &KeyList, block: usize, memory: &Memory) -> Result<Arc<BlockEntries>> {
        let is_again = self.last.load(Ordering::Relaxed) == block + 1;
        if is_again
            && let Some(kept) = self.kept.try_lock()
            && let Some((number, entries)) = &*kept
            && *number == block
        {
            return Ok(Arc::clone(entries));
        }
        let mut entries = BlockEntries::default();
        list.read(block, &mut entries)?;
        let entries = Arc::new(entries);
        if is_again {
            self.keep(block, &entries, memory);
        } else {
            self.last.store(block + 1, Ordering::Relaxed);
        }
        Ok(entries)
    }

    fn keep(&self, block: usize, entries: &Arc<BlockEntries>, memory: &Memory) {
        let bytes = entries.memory();
        let Some(mut kept) = self.kept.try_lock() else { return };
        if bytes > MOST || !memory.has_room_without_caches(bytes) {
            return;
        }
        memory.take(MemoryPart::Index, bytes); // before the block is kept: `forget` returns it
        let before = kept.replace((block, Arc::clone(entries)));
        drop(kept);
        give_back(before, memory);
    }

    /// Drops the kept block.
    pub(crate) fn forget(&self, memory: &Memory) {
        give_back(self.kept.lock().take(), memory);
    }
}

fn give_back(kept: Option<(usize, Arc<BlockEntries>)>, memory: &Memory) {
    if let Some((_, entries)) = kept {
        assert!(entries.memory() <= MOST, "recent (I1): a kept block has at most MOST bytes");
        memory.give_back(MemoryPart::Index, entries.memory());
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use sheaf_log::types::Seq;
    use sheaf_sim::SimDisk;

    use super::*;
    use crate::files::list::{KeyListWriter, ListEntry, ValueRef};

    fn list() -> KeyList {
        let mut writer = KeyListWriter::new(1, 2, false);
        for number in 0..5_000_u64 {
            let key = number.to_be_bytes().to_vec();
            writer.add(number, &ListEntry { key, seq: Seq(1), value: ValueRef::Removed });
        }
        let disk = SimDisk::new();
        disk.put_file(Path::new("/keys"), &writer.finish()).unwrap();
        KeyList::open(&disk, "/keys".into(), 1, 2).unwrap()
    }

    #[test]
    fn a_block_is_kept_if_two_walks_in_a_row_begin_in_it() {
        let (list, recent, memory) = (list(), RecentBlock::default(), Memory::new(1 << 20));
        assert!(list.block_count() > 2);
        let read = |block| recent.entries(&list, block, &memory).unwrap();
        (0..9).for_each(|at| drop(read(at % 2)));
        assert_eq!(memory.total(), 0, "walks in turn keep nothing");
        let (decoded, again) = (read(0), read(0));
        assert!(!Arc::ptr_eq(&read(1), &again));
        assert!(!Arc::ptr_eq(&decoded, &read(0)), "another walk was between");
        assert!(Arc::ptr_eq(&read(0), &read(0)));
        assert_eq!(memory.total(), read(0).memory());
        assert_eq!((read(0).key(0), read(1).key(0)), (list.first_key(), list.start_of(1).unwrap()));
        recent.forget(&memory);
        assert_eq!(memory.total(), 0);
    }

    #[test]
    fn without_budget_no_block_is_kept() {
        let (list, recent, memory) = (list(), RecentBlock::default(), Memory::new(100));
        (0..4).for_each(|_| drop(recent.entries(&list, 0, &memory).unwrap()));
        assert_eq!(memory.total(), 0);
    }
}
