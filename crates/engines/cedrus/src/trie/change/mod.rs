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

mod compaction;
mod insert;
mod remove;

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
}
