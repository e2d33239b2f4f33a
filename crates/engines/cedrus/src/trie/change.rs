//! # Changes of the trie
//!
//! Each shard has one writer, under the shard's lock. Before the first word changes that a reader
//! of a hash may see, the version of the hash's shard becomes odd. It becomes even when the change
//! is complete ([`TrieChange`]).
//!
//! ## Picture
//!
//! ```text
//!  insert: list has room -> add entry | full, several digits -> two halves | one digit -> a node
//!  remove: list half full -> stays | nearly empty -> merged | alone in its node -> node is freed
//!  list of an older version for several shards: under all locks -> one list for each shard
//! ```
//!
//! ## Threads
//!
//! Other shards allocate lines of the same pages at the same time, and clean pages may be evicted.
//! So a change writes only to words that [`TrieChange::make_writable`], [`TrieChange::allocate`] or
//! [`TrieChange::extend`] returned. Words that it got in another way are only read: they may belong
//! to an evicted page, where its own lines still have the right content.
//!
//! ## Crash
//!
//! A change must not fail. `prepare` checks the free room ([`Trie::has_free_lines`]) and loads the
//! pages of the path before the commit has a seq. A page that was evicted since then is restored
//! (resident_pages.rs). A change that still fails has met damage. It reads all it needs before it
//! writes anything.

use super::*;

impl Trie {
    /// Starts a change of the entries of `hash`.
    fn begin_change<'a>(&'a self, hash: u32, guard: &'a Guard) -> TrieResult<TrieChange<'a>> {
        loop {
            let change = self.begin_unchecked_change(hash, guard);
            if !change.is_list_across_shards(hash) {
                return Ok(change);
            }
            drop(change);
            self.split_across_shards(hash, guard)?;
        }
    }

    /// Starts a change even if the list of `hash` belongs to several shards.
    fn begin_unchecked_change<'a>(&'a self, hash: u32, guard: &'a Guard) -> TrieChange<'a> {
        let shard = self.shards.shard_of(hash);
        let held = (self.shards.lock(shard), Vec::new());
        TrieChange { trie: self, shards: (shard, shard), held, guard, odd_shards: None }
    }

    /// Starts a change of all shards.
    fn begin_change_of_all<'a>(&'a self, guard: &'a Guard) -> TrieChange<'a> {
        let first = self.shards.lock(0);
        let others = (1..self.shards.count()).map(|shard| self.shards.lock(shard)).collect();
        TrieChange {
            trie: self,
            shards: (0, self.shards.count() - 1),
            held: (first, others),
            guard,
            odd_shards: None,
        }
    }

    /// Adds an entry. The caller has seen its path in memory under a guard that is still pinned.
    ///
    /// # Errors
    ///
    /// Returns an error if a page is damaged or cannot be allocated.
    pub(crate) fn insert(&self, entry: TrieEntry, guard: &Guard) -> TrieResult<()> {
        if self.heap_stats.0.is_fragmented.load(Ordering::Relaxed) {
            self.compact_one_page(guard)?;
        }
        self.begin_change(entry.hash, guard)?.insert(entry)
    }

    /// Changes the address of the entry of `hash` at `from` to `to`. Returns false if there is no
    /// such entry.
    ///
    /// # Errors
    ///
    /// Returns an error if a page on the path is damaged.
    pub(crate) fn replace(
        &self,
        hash: impl Into<KeyHash>,
        from: Address,
        to: Address,
        guard: &Guard,
    ) -> TrieResult<bool> {
        let hash = hash.into();
        self.begin_change(hash.path, guard)?.replace(hash, from.bits(), to.bits())
    }

    /// Removes the entry of `hash` at `address`. Returns false if there is no such entry.
    ///
    /// # Errors
    ///
    /// Returns an error if a page on the path is damaged.
    pub(crate) fn remove(
        &self,
        hash: impl Into<KeyHash>,
        address: Address,
        guard: &Guard,
    ) -> TrieResult<bool> {
        let hash = hash.into();
        self.begin_change(hash.path, guard)?.remove(hash, address.bits())
    }

    /// Removes all entries and pages.
    pub(crate) fn clear(&self, guard: &Guard) {
        let mut change = self.begin_change_of_all(guard);
        change.invalidate_readers((0, u32::MAX));
        self.root.set(0, 1 << self.shape.root_bits, EMPTY_REF);
        let (first, others) = &mut change.held;
        self.shards.set_counts(std::iter::once(first).chain(others), 0, &[]);
        let mut heap = self.heap();
        let pages = heap.end_page();
        *heap = PageHeap::new(self.shape);
        (0..pages).for_each(|page| self.pages.remove(page, guard));
    }

    /// Splits a list of several shards, as versions without shards wrote it, into lists of one
    /// shard each.
    #[cold]
    fn split_across_shards(&self, hash: u32, guard: &Guard) -> TrieResult<()> {
        let mut change = self.begin_change_of_all(guard);
        let step = PathStep::new(EMPTY_REF, 0, self.shape.root_bits, hash);
        let (child, digits) = (self.root.get(step.digit), self.max_list_digits(&step));
        let (first, len) = change.list_run(&step, child)?;
        if child == EMPTY_REF || child & NODE_FLAG != 0 || len <= digits {
            return Ok(()); // another thread was first
        }
        let list = change.checked_list(&step, (first, len), child, hash)?;
        let mut entries = TrieEntries::new();
        change.collect_entries(&list, &mut entries)?;
        entries.sort_unstable();
        change.invalidate_readers(step.range(hash, first, len));
        change.free_chain(child, &list)?;
        let mut rest = &mut entries[..];
        for part in (first..first + len).step_by(digits) {
            let (_, last) = step.range(hash, part, digits);
            let count = rest.partition_point(|entry| entry.hash <= last);
            let (own, later) = rest.split_at_mut(count);
            change.build_lists(&step, (part, digits), own)?;
            rest = later;
        }
        Ok(())
    }

    /// Compacts one page if a page is worth it and no other thread holds the heap.
    #[cold]
    fn compact_one_page(&self, guard: &Guard) -> TrieResult<()> {
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

/// Change in progress: locks of shards, and the shards with odd versions.
struct TrieChange<'a> {
    trie: &'a Trie,
    /// First and last locked shard, and their locks.
    shards: (usize, usize),
    held: (ShardGuard<'a>, Vec<ShardGuard<'a>>),
    guard: &'a Guard,
    /// First and last shard with an odd version.
    odd_shards: Option<(usize, usize)>,
}

impl Drop for TrieChange<'_> {
    fn drop(&mut self) {
        if let Some((first, last)) = self.odd_shards {
            (first..=last).for_each(|shard| self.trie.shards.end_change(shard));
        }
    }
}

impl<'a> TrieChange<'a> {
    /// Makes the readers of these hashes retry from now on (I2). Of the ranges of one change, each
    /// contains the earlier ones.
    fn invalidate_readers(&mut self, (first, last): (u32, u32)) {
        let (first, last) = (self.trie.shards.shard_of(first), self.trie.shards.shard_of(last));
        assert!(
            first >= self.shards.0 && last <= self.shards.1,
            "shard (I1): a change holds the locks of its shards"
        );
        let Some((from, to)) = self.odd_shards else {
            (first..=last).for_each(|at| self.trie.shards.begin_change(at));
            self.odd_shards = Some((first, last));
            return fence(Ordering::Release);
        };
        for at in (first..=last).filter(|at| *at < from || *at > to) {
            self.trie.shards.begin_change(at);
        }
        self.odd_shards = Some((from.min(first), to.max(last)));
        fence(Ordering::Release);
    }

    /// Adds an entry to the count of the shard, or removes it.
    fn count_entry(&mut self, address: u64, is_more: bool) {
        let slot = Address::from_bits(address).slot();
        self.trie.shards.count_entry(self.shards.0, &mut self.held.0, slot, is_more);
    }

    /// Returns the digits of a node that this change may change: the first one, and the one behind
    /// the last.
    fn digit_bounds(&self, step: &PathStep) -> (usize, usize) {
        let digits = self.trie.max_list_digits(step);
        if step.is_root() { (self.shards.0 * digits, (self.shards.1 + 1) * digits) } else { (0, digits) }
    }

    /// Returns whether `hash` leads to a list that serves digits of other shards too. The
    /// references that show this change only under the locks of all shards.
    fn is_list_across_shards(&self, hash: u32) -> bool {
        let root = &self.trie.root;
        let step = PathStep::new(EMPTY_REF, 0, self.trie.shape.root_bits, hash);
        let child = root.get(step.digit);
        if child == EMPTY_REF || child & NODE_FLAG != 0 {
            return false;
        }
        let (first, end) = self.digit_bounds(&step);
        first > 0 && root.get(first - 1) == child || end < 1 << step.bits && root.get(end) == child
    }

    /// Returns the path to `hash`, its last step last, and the reference there.
    fn path(&self, hash: u32) -> TrieResult<(TriePath, u32)> {
        let mut path = TriePath::new();
        let (last, child) = self.trie.descend(hash, self.guard, |step| path.push(step))?;
        path.push(last);
        Ok((path, child))
    }

    /// Returns the digits of the node that have the child of the path: the first digit, and their
    /// number.
    fn list_run(&self, step: &PathStep, child: u32) -> TrieResult<(usize, usize)> {
        let same = |digit: usize| Ok(self.trie.child_of(step, digit, self.guard)? == child);
        let (low, high) = self.digit_bounds(step);
        let (mut first, mut end) = (step.digit, step.digit + 1);
        while first > low && same(first - 1)? {
            first -= 1;
        }
        while end < high && same(end)? {
            end += 1;
        }
        Ok((first, end - first))
    }

    fn set_children(&mut self, step: &PathStep, (first, len): (usize, usize), to: u32) -> TrieResult<()> {
        self.assert_version_odd();
        if step.is_root() {
            self.trie.root.set(first, len, to);
            return Ok(());
        }
        let page = self.make_writable(step.node)?;
        for digit in first..first + len {
            let (at, shift) = self.trie.child_at(step.node, digit);
            let word = page[at].load(Ordering::Relaxed) & !(u64::from(u32::MAX) << shift);
            page[at].store(word | u64::from(to) << shift, Ordering::Relaxed);
        }
        Ok(())
    }

    fn allocate(&mut self, kind: PageKind, lines: usize) -> TrieResult<((u32, usize), &'a [AtomicU64])> {
        let taken =
            self.trie.heap().allocate(kind, lines, &self.trie.pages, self.guard).ok_or(TrieError::OutOfPages);
        // Another shard may have freed these lines. Readers that see the new content must also see
        // the earlier change of that shard's version.
        fence(Ordering::Release);
        taken
    }

    /// Extends a list by the lines behind it if they are free. Returns the words of its page in
    /// that case.
    fn extend(&mut self, reference: u32, lines: usize, to: usize) -> TrieResult<Option<&'a [AtomicU64]>> {
        let page = self.make_writable(reference)?;
        let is_free = self.trie.heap().extend(page_of(reference), page, line_of(reference), lines, to);
        fence(Ordering::Release); // as in `allocate`
        Ok(is_free.then_some(page))
    }

    fn free(&mut self, reference: u32, lines: usize) {
        let mut heap = self.trie.heap();
        heap.free(page_of(reference), line_of(reference), lines, &self.trie.pages, self.guard);
    }

    /// Must hold before each change of data that readers may see.
    #[inline]
    fn assert_version_odd(&self) {
        assert!(self.odd_shards.is_some(), "trie (I2): data changes while the version of its shard is odd");
    }

    /// Makes a page writable and returns its words.
    fn make_writable(&mut self, reference: u32) -> TrieResult<&'a [AtomicU64]> {
        self.assert_version_odd();
        let (page, pages) = (page_of(reference), &self.trie.pages);
        match pages.get_writable(page, self.guard) {
            Some(words) => Ok(words),
            None => {
                self.trie.heap().make_writable(page, pages, self.guard).ok_or(TrieError::NotResident(page))
            }
        }
    }

    /// Makes the page of a list writable and returns the list.
    fn make_list_writable(&mut self, reference: u32) -> TrieResult<EntryList<'a>> {
        let page = self.make_writable(reference)?;
        let list = EntryList::parse(page, line_of(reference), self.trie.omitted_bytes);
        list.ok_or(TrieError::Invalid(page_of(reference), "list"))
    }

    /// Appends the entries of a list and of all later links to `out`.
    fn collect_entries(&self, first: &EntryList<'_>, out: &mut TrieEntries) -> TrieResult<()> {
        out.extend(first.entries());
        self.trie.for_each_link(first, self.guard, |_, link| out.extend(link.entries()))
    }

    /// Frees a list and all later links.
    fn free_chain(&mut self, reference: u32, first: &EntryList<'_>) -> TrieResult<()> {
        let mut all: SmallVec<[(u32, usize); 4]> = smallvec![(reference, first.lines)];
        self.trie.for_each_link(first, self.guard, |link, list| all.push((link, list.lines)))?;
        all.into_iter().for_each(|(reference, lines)| self.free(reference, lines));
        Ok(())
    }

    fn insert(&mut self, entry: TrieEntry) -> TrieResult<()> {
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
    fn build_lists(
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

    /// Changes an address in place. The structure and all other entries stay, so only readers of
    /// this hash's shard retry.
    fn replace(&mut self, hash: KeyHash, from: u64, to: u64) -> TrieResult<bool> {
        let (_, child) = self.trie.descend(hash.path, self.guard, |_| {})?;
        let Some((holder, _, index)) = self.find_holder(child, hash, from)? else { return Ok(false) };
        self.invalidate_readers((hash.path, hash.path));
        self.make_list_writable(holder)?.set_address(index, to);
        self.count_entry(from, false);
        self.count_entry(to, true);
        Ok(true)
    }

    /// Returns the list or link in the chain at `child` that contains the entry, its reference, and
    /// the index of the entry.
    fn find_holder(
        &self,
        child: u32,
        hash: KeyHash,
        address: u64,
    ) -> TrieResult<Option<(u32, EntryList<'a>, usize)>> {
        if child == EMPTY_REF {
            return Ok(None);
        }
        let list = self.trie.list(child, self.guard)?;
        if let Some(index) = list.find(hash, address) {
            return Ok(Some((child, list, index)));
        }
        let mut holder = None;
        if list.is_link && list.prefix == hash.path {
            self.trie.for_each_link(&list, self.guard, |link, list| {
                holder = holder.or_else(|| list.find(hash, address).map(|index| (link, *list, index)));
            })?;
        }
        Ok(holder)
    }

    /// Returns the list of a run of digits, if it is valid there.
    fn checked_list(
        &self,
        step: &PathStep,
        run: (usize, usize),
        child: u32,
        hash: u32,
    ) -> TrieResult<EntryList<'a>> {
        let list = self.trie.list(child, self.guard)?;
        check_list(step, run, &list, hash).map_err(|what| TrieError::Invalid(page_of(child), what))?;
        Ok(list)
    }

    fn invalidate_run(&mut self, path: &TriePath, child: u32, hash: u32) -> TrieResult<(usize, usize)> {
        let step = path[path.len() - 1];
        let (first, len) = self.list_run(&step, child)?;
        self.checked_list(&step, (first, len), child, hash)?;
        self.invalidate_readers(step.range(hash, first, len));
        Ok((first, len))
    }

    fn remove(&mut self, hash: KeyHash, address: u64) -> TrieResult<bool> {
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
