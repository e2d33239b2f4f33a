//! # Removal: lists that shrink and merge
//!
//! A removal takes an entry out of its list. A list frees the lines that it no longer needs. Lists
//! of neighbouring runs that are nearly empty are merged, and a node with one child is freed.

use super::*;

impl TrieChange<'_> {
    pub(super) fn remove(&mut self, hash: KeyHash, address: u64) -> TrieResult<bool> {
        let (path, child) = self.path(hash.path)?;
        let Some((holder, list, index)) = self.find_holder(child, hash, address)? else { return Ok(false) };
        let run = self.invalidate_run(&path, child, hash.path)?;
        self.count_entry(address, false);
        self.make_list_writable(holder)?.remove(index);
        let left = list.count - 1;
        let step = path[path.len() - 1];
        if list.is_link && left == 0 {
            self.remove_link(&step, run, child, holder, &list)?;
        } else if left == 0 {
            self.set_children(&step, run, EMPTY_REF)?;
            self.free(holder, list.lines);
        } else if !list.is_link {
            self.shrink_list(holder, &list)?;
        }
        if left * 2 <= self.trie.shape.merge_limit() {
            self.merge_neighbours(path, run, hash.path)?;
        }
        Ok(true)
    }

    fn invalidate_run(&mut self, path: &TriePath, child: u32, hash: u32) -> TrieResult<(usize, usize)> {
        let step = path[path.len() - 1];
        let (first, len) = self.list_run(&step, child)?;
        self.checked_list(&step, (first, len), child, hash)?;
        self.invalidate_readers(step.range(hash, first, len));
        Ok((first, len))
    }

    /// Removes an empty link from its chain.
    fn remove_link(
        &mut self,
        step: &PathStep,
        run: (usize, usize),
        first: u32,
        empty: u32,
        link: &EntryList<'_>,
    ) -> TrieResult<()> {
        if first == empty {
            self.set_children(step, run, link.next())?;
        } else {
            let (mut before, mut at) = (EMPTY_REF, first);
            let head = self.trie.list(first, self.guard)?;
            self.trie.for_each_link(&head, self.guard, |next, _| {
                if next == empty {
                    before = at;
                }
                at = next;
            })?;
            self.make_list_writable(before)?.set_next(link.next());
        }
        self.free(empty, link.lines);
        Ok(())
    }

    /// Frees the lines that a list no longer needs.
    fn shrink_list(&mut self, reference: u32, list: &EntryList<'_>) -> TrieResult<()> {
        let count = list.count - 1;
        let lines = self.trie.shape.list_lines(list.bits, count + SLACK);
        if lines < list.lines {
            let (page, line) = (self.make_writable(reference)?, line_of(reference));
            let Some(list) = EntryList::parse(page, line, self.trie.omitted_bytes) else { return Ok(()) };
            let entries: TrieEntries = list.entries().collect();
            EntryList::write(page, line, lines, (list.prefix, list.bits), self.trie.omitted_bytes, &entries);
            self.free(self::reference((page_of(reference), line + lines), 0), list.lines - lines);
        }
        Ok(())
    }

    /// Returns the list in the neighbouring run that can be merged with `run`, or `EMPTY_REF` if
    /// that run is empty. Returns `None` if they cannot be merged.
    fn mergeable_neighbour(
        &self,
        step: &PathStep,
        (first, len): (usize, usize),
        hash: u32,
        room: usize,
    ) -> Option<u32> {
        let other = first ^ len;
        let child = self.trie.child_of(step, other, self.guard).ok()?;
        let is_one = (other..other + len)
            .all(|digit| self.trie.child_of(step, digit, self.guard).is_ok_and(|there| there == child));
        if !is_one || child & NODE_FLAG != 0 {
            return None;
        }
        if child == EMPTY_REF {
            return Some(EMPTY_REF);
        }
        let list = self.trie.list(child, self.guard).ok()?;
        let (there, _) = step.range(hash, other, len);
        let is_sound = check_list(step, (other, len), &list, there).is_ok();
        (is_sound && list.count <= room && list.next() == EMPTY_REF).then_some(child)
    }

    /// Merges neighbouring lists that are nearly empty, and frees nodes that have only one child.
    /// Lists that are not in memory are not merged.
    fn merge_neighbours(&mut self, mut path: TriePath, mut run: (usize, usize), hash: u32) -> TrieResult<()> {
        let room = self.trie.shape.merge_limit();
        let mut entries = TrieEntries::new();
        let mut step = path[path.len() - 1];
        let child = self.trie.child_of(&step, run.0, self.guard)?;
        if child != EMPTY_REF {
            let list = self.trie.list(child, self.guard)?;
            if list.next() != EMPTY_REF || list.count > room {
                return Ok(());
            }
            entries.extend(list.entries());
        }
        // `own` is the list that held the entries. The first step frees it.
        let mut own = child;
        let mut is_moved = false;
        loop {
            if run.1 == 1 << step.bits && !step.is_root() {
                let above = path[path.len() - 2];
                self.invalidate_readers(above.range(hash, above.digit, 1));
                self.free_own_list(&mut own)?;
                self.set_children(&above, (above.digit, 1), EMPTY_REF)?;
                self.free(step.node, self.trie.shape.node_lines());
                path.pop();
                (step, run) = (above, (above.digit, 1));
            } else if run.1 < self.trie.max_list_digits(&step)
                && let Some(other) = self.mergeable_neighbour(&step, run, hash, room - entries.len())
            {
                let both = (run.0 & !run.1, run.1 * 2);
                self.invalidate_readers(step.range(hash, both.0, both.1));
                if other != EMPTY_REF {
                    let list = self.trie.list(other, self.guard)?;
                    entries.extend(list.entries());
                    self.set_children(&step, (run.0 ^ run.1, run.1), EMPTY_REF)?;
                    self.free(other, list.lines);
                }
                self.free_own_list(&mut own)?;
                run = both;
            } else {
                break;
            }
            is_moved = true;
        }
        if is_moved { self.build_lists(&step, run, &mut entries) } else { Ok(()) }
    }

    fn free_own_list(&mut self, own: &mut u32) -> TrieResult<()> {
        let reference = std::mem::replace(own, EMPTY_REF);
        if reference != EMPTY_REF {
            let lines = self.trie.list(reference, self.guard)?.lines;
            self.free(reference, lines);
        }
        Ok(())
    }
}
