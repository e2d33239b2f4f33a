//! # Insertion: lists that grow, split and become nodes
//!
//! An insertion adds an entry to the list at the end of its path. A full list gets more lines, is
//! split in two by the next bit of the hash, or becomes a node if it serves one digit only. Entries
//! of one hash that exceed a list are in a chain of links.

use super::*;

impl TrieChange<'_> {
    pub(super) fn insert(&mut self, entry: TrieEntry) -> TrieResult<()> {
        let (path, child) = self.path(entry.hash)?;
        let step = path[path.len() - 1];
        let (first, len) = self.list_run(&step, child)?;
        let list = match child {
            EMPTY_REF => None,
            child => Some(self.checked_list(&step, (first, len), child, entry.hash)?),
        };
        list.map_or(Ok(()), |list| self.trie.for_each_link(&list, self.guard, |_, _| {}))?;
        self.invalidate_readers(step.range(entry.hash, first, len));
        self.count_entry(entry.address, true);
        let Some(list) = list else {
            // The largest aligned empty run around the digit.
            let mut size = 1;
            let starts = |size: usize| step.digit & !(size - 1);
            while size * 2 <= len && starts(2 * size) >= first && starts(2 * size) + 2 * size <= first + len {
                size *= 2;
            }
            return self.build_lists(&step, (starts(size), size), &mut [entry]);
        };
        let most = self.trie.shape.max_list_entries;
        let is_another = list.is_link && list.prefix != entry.hash;
        if !is_another && list.count < list.capacity && (list.is_link || list.count < most) {
            self.make_list_writable(child)?.push(entry);
            return Ok(());
        }
        if list.is_link && !is_another {
            let reference = self.link(entry.hash, child, &[entry])?;
            return self.set_children(&step, (first, len), reference);
        }
        let mut entries = TrieEntries::new();
        if !list.is_link && list.count < most {
            return self.grow_list(&step, (first, len), child, &list, entry);
        }
        self.collect_entries(&list, &mut entries)?;
        entries.push(entry);
        self.free_chain(child, &list)?;
        self.build_lists(&step, (first, len), &mut entries)
    }

    /// Moves a full list to more lines and adds an entry.
    fn grow_list(
        &mut self,
        step: &PathStep,
        run: (usize, usize),
        child: u32,
        list: &EntryList<'_>,
        entry: TrieEntry,
    ) -> TrieResult<()> {
        let mut entries: TrieEntries = list.entries().collect();
        entries.push(entry);
        assert!(
            entries.len() <= self.trie.shape.max_list_entries,
            "trie (I3): a list that grows has at most max_list_entries entries"
        );
        let (is, like) = (list.lines, (list.prefix, list.bits));
        let to = self.trie.shape.list_lines(list.bits, entries.len()).max(is + 1);
        if let Some(page) = self.extend(child, is, to)? {
            EntryList::write(page, line_of(child), to, like, self.trie.omitted_bytes, &entries);
            return Ok(());
        }
        let (at, page) = self.allocate(PageKind::Lists, to)?;
        EntryList::write(page, at.1, to, like, self.trie.omitted_bytes, &entries);
        self.set_children(step, run, reference(at, 0))?;
        self.free(child, is);
        Ok(())
    }

    /// Adds a new link in front of `next`.
    fn link(&mut self, hash: u32, next: u32, entries: &[TrieEntry]) -> TrieResult<u32> {
        let lines = self.trie.shape.link_lines();
        let (at, page) = self.allocate(PageKind::Lists, lines)?;
        EntryList::write_link(page, at.1, lines, (hash, self.trie.omitted_bytes), next, entries);
        Ok(reference(at, 0))
    }

    /// Builds the lists for `len` digits of a node, where `len` is a power of two. Splits the
    /// entries as often as needed.
    pub(super) fn build_lists(
        &mut self,
        step: &PathStep,
        (first, len): (usize, usize),
        entries: &mut [TrieEntry],
    ) -> TrieResult<()> {
        assert!(
            len.is_power_of_two() && first.is_multiple_of(len),
            "trie (I1): a list serves an aligned run of digits"
        );
        let bits = step.depth + step.bits - len.trailing_zeros();
        let Some(one) = entries.first().copied() else {
            return self.set_children(step, (first, len), EMPTY_REF);
        };
        let most = self.trie.shape.max_list_entries;
        if entries.len() <= most {
            let lines = self.trie.shape.list_lines(bits, entries.len());
            let (at, page) = self.allocate(PageKind::Lists, lines)?;
            EntryList::write(page, at.1, lines, (one.hash, bits), self.trie.omitted_bytes, entries);
            return self.set_children(step, (first, len), reference(at, 0));
        }
        if entries.iter().all(|entry| entry.hash == one.hash) {
            let mut head = EMPTY_REF;
            for part in entries.chunks(most) {
                head = self.link(one.hash, head, part)?;
            }
            return self.set_children(step, (first, len), head);
        }
        if len == 1 {
            let depth = step.depth + step.bits;
            let lines = self.trie.shape.node_lines();
            let (at, page) = self.allocate(PageKind::Nodes, lines)?;
            let words = &page[at.1 * LINE_WORDS..(at.1 + lines) * LINE_WORDS];
            words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
            let node = reference(at, NODE_FLAG);
            self.set_children(step, (first, 1), node)?;
            let below = PathStep::new(node, depth, self.trie.shape.digit_bits(depth), one.hash);
            return self.build_lists(&below, (0, 1 << below.bits), entries);
        }
        let bit = 1 << (HASH_BITS - 1 - bits);
        entries.sort_unstable_by_key(|entry| entry.hash & bit);
        let (low, high) = entries.split_at_mut(entries.partition_point(|entry| entry.hash & bit == 0));
        self.build_lists(step, (first, len / 2), low)?;
        self.build_lists(step, (first + len / 2, len / 2), high)
    }
}
