//! # Compaction: lists of a page with many small holes move together
//!
//! The lists move towards the front one by one, and the free lines form one run behind them. A list
//! moves under the lock of its shard, and only if the trie refers to it at its place.

use super::*;

impl Trie {
    /// Compacts one page if a page is worth it and no other thread holds the heap.
    #[cold]
    pub(super) fn compact_one_page(&self, guard: &Guard) -> TrieResult<()> {
        let Some(heap) = self.heap.0.try_lock() else { return Ok(()) };
        let page = HeapGuard { trie: self, heap }.choose_page_to_compact(&self.pages, guard);
        page.map_or(Ok(()), |page| self.compact_page(page, guard))
    }

    /// Compacts a page of lists that has many small holes. The lists move towards the front one by
    /// one, and the free lines form one run behind them. Other threads may change or reuse the page
    /// at the same time. So a list moves only if the trie refers to it at its place.
    fn compact_page(&self, page: u32, guard: &Guard) -> TrieResult<()> {
        let mut line = 1;
        while line < self.shape.page_lines {
            let Some(words) = self.pages.peek(page, guard) else { return Ok(()) };
            let used = words[0].load(Ordering::Relaxed) >> line;
            if used == 0 {
                return Ok(());
            }
            line += used.trailing_zeros() as usize;
            // The prefix selects the shard to lock; it may be wrong, and is checked under the lock.
            let Some(list) = EntryList::parse(words, line, self.omitted_bytes) else { return Ok(()) };
            line += self.begin_unchecked_change(list.prefix, guard).move_list_forward(page, line)?;
        }
        Ok(())
    }
}

impl TrieChange<'_> {
    /// Moves the list at a line of a page to the first free place in front of it. Does nothing if
    /// the list does not belong to this shard, or if the reference to it is not in memory. Returns
    /// the number of lines to skip: those of the list, or one.
    fn move_list_forward(&mut self, page: u32, line: usize) -> TrieResult<usize> {
        let at = reference((page, line), 0);
        let Some(words) = self.trie.pages.peek(page, self.guard) else { return Ok(1) };
        let Some(list) = EntryList::parse(words, line, self.trie.omitted_bytes) else { return Ok(1) };
        if self.trie.shards.shard_of(list.prefix) != self.shards.0 || self.is_list_across_shards(list.prefix)
        {
            return Ok(1);
        }
        let (hash, lines) = (list.prefix, list.lines);
        let Ok((path, child)) = self.path(hash) else { return Ok(1) };
        let step = path[path.len() - 1];
        let Ok(run) = self.list_run(&step, child) else { return Ok(1) };
        let before = if child == at { EMPTY_REF } else { self.link_before(child, at) };
        if child != at && before == EMPTY_REF {
            return Ok(1);
        }
        let taken = self.trie.heap().allocate_before(page, line, lines, &self.trie.pages, self.guard);
        let Some((to, words)) = taken else { return Ok(lines) };
        self.invalidate_readers(step.range(hash, run.0, run.1)); // a fence too, as in `allocate`
        for word in 0..lines * LINE_WORDS {
            let value = words[line * LINE_WORDS + word].load(Ordering::Relaxed);
            words[to * LINE_WORDS + word].store(value, Ordering::Relaxed);
        }
        let moved = reference((page, to), 0);
        if before == EMPTY_REF {
            self.set_children(&step, run, moved)?;
        } else {
            self.make_list_writable(before)?.set_next(moved);
        }
        let rest = line.max(to + lines);
        self.free(reference((page, rest), 0), line + lines - rest);
        Ok(lines)
    }

    /// Returns the link in the chain at `first` that refers to `link`. Returns `EMPTY_REF` if there
    /// is none or the chain is not in memory.
    fn link_before(&self, first: u32, link: u32) -> u32 {
        if first == EMPTY_REF || first & NODE_FLAG != 0 {
            return EMPTY_REF;
        }
        let Ok(head) = self.trie.list(first, self.guard) else { return EMPTY_REF };
        let (mut before, mut last) = (EMPTY_REF, first);
        let walked = self.trie.for_each_link(&head, self.guard, |next, _| {
            if next == link {
                before = last;
            }
            last = next;
        });
        if walked.is_ok() { before } else { EMPTY_REF }
    }
}
