//! # Changing the trie
//!
//! One writer for each shard, under the shard's lock. Before the first word changes that a reader of some hash may see, the version
//! of the hash's shard becomes odd, and even again when the change is done ([`Change`]).
//!
//! ## What a change does
//!
//! ```text
//!  insert: list has room -> one more entry | overflows, serves several digits -> two halves | one digit -> a node below
//!  remove: list stays half full | nearly empty -> one with its neighbour | alone in its node -> the node goes
//!  a list of an older version that serves digits of several shards: under all locks -> a list for each shard
//! ```
//!
//! ## Pages
//!
//! Other shards take lines of the same pages meanwhile, and pages that are clean may be evicted. So
//! a change writes only to words that [`Change::touch`] or [`Change::take`] returned. Words that it
//! found otherwise are read: they may be those of an evicted page, in which its own lines are as
//! they are.
//!
//! ## Failure
//!
//! Room ([`Trie::is_roomy`]) and the pages of the path are asked for before a commit has a number. A page that was evicted since
//! comes back from limbo (page.rs). What a change still meets is damage: it reads all it needs before it writes anything.

use super::*;

impl Trie {
    /// Begins a change of what `hash` leads to.
    fn change<'a>(&'a self, hash: u32, guard: &'a Guard) -> Tried<Change<'a>> {
        loop {
            let change = self.change_as_it_is(hash, guard);
            if !change.is_across(hash) {
                return Ok(change);
            }
            drop(change);
            self.narrow(hash, guard)?;
        }
    }

    /// The same, though a list of several shards may stand there.
    fn change_as_it_is<'a>(&'a self, hash: u32, guard: &'a Guard) -> Change<'a> {
        let shard = self.shards.of(hash);
        let held = (self.shards.lock(shard), Vec::new());
        Change { trie: self, shards: (shard, shard), held, guard, odd: None }
    }

    /// Begins a change of all shards.
    fn change_all<'a>(&'a self, guard: &'a Guard) -> Change<'a> {
        let first = self.shards.lock(0);
        let others = (1..self.shards.count()).map(|shard| self.shards.lock(shard)).collect();
        Change { trie: self, shards: (0, self.shards.count() - 1), held: (first, others), guard, odd: None }
    }

    /// Adds an entry. The way to it was seen in memory under a guard that is still pinned.
    pub(crate) fn insert(&self, entry: Entry, guard: &Guard) -> Tried<()> {
        if self.figures.0.is_scattered.load(Ordering::Relaxed) {
            self.press_one(guard)?;
        }
        self.change(entry.hash, guard)?.insert(entry)
    }

    /// Points the entry of `hash` at `from` to `to`. False if there is none.
    pub(crate) fn replace(&self, hash: u32, from: Address, to: Address, guard: &Guard) -> Tried<bool> {
        self.change(hash, guard)?.replace(hash, from.bits(), to.bits())
    }

    /// Takes the entry of `hash` at `address` out. False if there is none.
    pub(crate) fn remove(&self, hash: u32, address: Address, guard: &Guard) -> Tried<bool> {
        self.change(hash, guard)?.remove(hash, address.bits())
    }

    /// Forgets everything.
    pub(crate) fn clear(&self, guard: &Guard) {
        let mut change = self.change_all(guard);
        change.enter((0, u32::MAX));
        self.root.set(0, 1 << self.shape.root_bits, EMPTY);
        let (first, others) = &mut change.held;
        self.shards.set_counts(std::iter::once(first).chain(others), 0, &[]);
        let mut heap = self.heap();
        let pages = heap.highest();
        *heap = Heap::new(self.shape);
        (0..pages).for_each(|page| self.pages.take(page, guard));
    }

    /// Makes lists of one shard each of a list that serves several, as versions without shards left it.
    #[cold]
    fn narrow(&self, hash: u32, guard: &Guard) -> Tried<()> {
        let mut change = self.change_all(guard);
        let step = Step::new(EMPTY, 0, self.shape.root_bits, hash);
        let (child, digits) = (self.root.get(step.digit), self.digits(&step));
        let (first, len) = change.run(&step, child)?;
        if child == EMPTY || child & NODE != 0 || len <= digits {
            return Ok(()); // another thread was first
        }
        let list = change.checked(&step, (first, len), child, hash)?;
        let mut entries = Entries::new();
        change.gather(&list, &mut entries)?;
        entries.sort_unstable();
        change.enter(step.range(hash, first, len));
        change.give_all(child, &list)?;
        let mut rest = &mut entries[..];
        for part in (first..first + len).step_by(digits) {
            let (_, last) = step.range(hash, part, digits);
            let count = rest.partition_point(|entry| entry.hash <= last);
            let (own, later) = rest.split_at_mut(count);
            change.fill(&step, (part, digits), own)?;
            rest = later;
        }
        Ok(())
    }

    /// Presses a page, if one is worth it and no other thread is at the heap.
    #[cold]
    fn press_one(&self, guard: &Guard) -> Tried<()> {
        let Some(heap) = self.heap.0.try_lock() else { return Ok(()) };
        let page = HeapRef { trie: self, heap }.choose_to_press(&self.pages, guard);
        page.map_or(Ok(()), |page| self.press(page, guard))
    }

    /// Presses a page of lists together, of which holes are many and small: its lists move to the
    /// front, one by one, and what is free comes together behind them. Other threads may change the
    /// page meanwhile, or use it for something else: a list moves only if the trie names it at its
    /// place.
    fn press(&self, page: u32, guard: &Guard) -> Tried<()> {
        let mut line = 1;
        while line < self.shape.page_lines {
            let Some(words) = self.pages.peek(page, guard) else { return Ok(()) };
            let used = words[0].load(Ordering::Relaxed) >> line;
            if used == 0 {
                return Ok(());
            }
            line += used.trailing_zeros() as usize;
            // A guess, which says what to lock.
            let Some(list) = List::open(words, line, self.blank) else { return Ok(()) };
            line += self.change_as_it_is(list.prefix, guard).move_up(page, line)?;
        }
        Ok(())
    }
}

/// A change under way: locks of shards, and which of them have odd versions.
struct Change<'a> {
    trie: &'a Trie,
    /// The first and the last shard that is locked, and their locks.
    shards: (usize, usize),
    held: (Held<'a>, Vec<Held<'a>>),
    guard: &'a Guard,
    /// Shards with odd versions.
    odd: Option<(usize, usize)>,
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if let Some((first, last)) = self.odd {
            (first..=last).for_each(|shard| self.trie.shards.turn(shard, Ordering::Release));
        }
    }
}

impl<'a> Change<'a> {
    /// From here on, readers of these hashes look again (I2). Ranges of one change contain one another.
    fn enter(&mut self, (first, last): (u32, u32)) {
        let (first, last) = (self.trie.shards.of(first), self.trie.shards.of(last));
        assert!(first >= self.shards.0 && last <= self.shards.1, "shards I1");
        let Some((from, to)) = self.odd else {
            (first..=last).for_each(|at| self.trie.shards.turn(at, Ordering::Relaxed));
            self.odd = Some((first, last));
            return fence(Ordering::Release);
        };
        for at in (first..=last).filter(|at| *at < from || *at > to) {
            self.trie.shards.turn(at, Ordering::Relaxed);
        }
        self.odd = Some((from.min(first), to.max(last)));
        fence(Ordering::Release);
    }

    /// Counts an entry of the shard in or out.
    fn count(&mut self, address: u64, is_more: bool) {
        let slot = Address::from_bits(address).slot();
        self.trie.shards.tell(self.shards.0, &mut self.held.0, slot, is_more);
    }

    /// The digits of a node that this change may change: the first one, and the one behind the last.
    fn bounds(&self, step: &Step) -> (usize, usize) {
        let digits = self.trie.digits(step);
        if step.is_root() { (self.shards.0 * digits, (self.shards.1 + 1) * digits) } else { (0, digits) }
    }

    /// Whether `hash` leads to a list that serves digits of other shards too. The references that say so change under the
    /// locks of all shards only.
    fn is_across(&self, hash: u32) -> bool {
        let root = &self.trie.root;
        let step = Step::new(EMPTY, 0, self.trie.shape.root_bits, hash);
        let child = root.get(step.digit);
        if child == EMPTY || child & NODE != 0 {
            return false;
        }
        let (first, end) = self.bounds(&step);
        first > 0 && root.get(first - 1) == child || end < 1 << step.bits && root.get(end) == child
    }

    /// The path to `hash`, its last step last, and the reference there.
    fn path(&self, hash: u32) -> Tried<(Path, u32)> {
        let mut path = Path::new();
        let (last, child) = self.trie.descend(hash, self.guard, |step| path.push(step))?;
        path.push(last);
        Ok((path, child))
    }

    /// Which digits of the node have the same child as the path's: the first one, and how many.
    fn run(&self, step: &Step, child: u32) -> Tried<(usize, usize)> {
        let same = |digit: usize| Ok(self.trie.child_of(step, digit, self.guard)? == child);
        let (low, high) = self.bounds(step);
        let (mut first, mut end) = (step.digit, step.digit + 1);
        while first > low && same(first - 1)? {
            first -= 1;
        }
        while end < high && same(end)? {
            end += 1;
        }
        Ok((first, end - first))
    }

    fn set_children(&mut self, step: &Step, (first, len): (usize, usize), to: u32) -> Tried<()> {
        if step.is_root() {
            self.trie.root.set(first, len, to);
            return Ok(());
        }
        let page = self.touch(step.node)?;
        for digit in first..first + len {
            let (at, shift) = self.trie.child_at(step.node, digit);
            let word = page[at].load(Ordering::Relaxed) & !(u64::from(u32::MAX) << shift);
            page[at].store(word | u64::from(to) << shift, Ordering::Relaxed);
        }
        Ok(())
    }

    fn take(&mut self, kind: Kind, lines: usize) -> Tried<((u32, usize), &'a [AtomicU64])> {
        let taken = self.trie.heap().take(kind, lines, &self.trie.pages, self.guard).ok_or(Trouble::Full);
        // Lines that another shard gave back: readers that see what is written there now see that its version moved before.
        fence(Ordering::Release);
        taken
    }

    /// Gives a list the lines behind it, if they are free. Returns the words of its page then.
    fn extend(&mut self, reference: u32, lines: usize, to: usize) -> Tried<Option<&'a [AtomicU64]>> {
        let page = self.touch(reference)?;
        let is_free = self.trie.heap().extend(page_of(reference), page, line_of(reference), lines, to);
        fence(Ordering::Release); // as in `take`
        Ok(is_free.then_some(page))
    }

    fn give(&mut self, reference: u32, lines: usize) {
        let mut heap = self.trie.heap();
        heap.give(page_of(reference), line_of(reference), lines, &self.trie.pages, self.guard);
    }

    /// The words of a page, to be changed.
    fn touch(&mut self, reference: u32) -> Tried<&'a [AtomicU64]> {
        let (page, pages) = (page_of(reference), &self.trie.pages);
        match pages.get_open(page, self.guard) {
            Some(words) => Ok(words),
            None => self.trie.heap().touch(page, pages, self.guard).ok_or(Trouble::Absent(page)),
        }
    }

    /// A list, to be changed.
    fn touch_list(&mut self, reference: u32) -> Tried<List<'a>> {
        let page = self.touch(reference)?;
        let list = List::open(page, line_of(reference), self.trie.blank);
        list.ok_or(Trouble::Nonsense(page_of(reference), "list"))
    }

    /// The entries of a list and of all links behind it, added to `out`.
    fn gather(&self, first: &List<'_>, out: &mut Entries) -> Tried<()> {
        out.extend(first.entries());
        self.trie.chain(first, self.guard, |_, link| out.extend(link.entries()))
    }

    /// Gives back a list and all links behind it.
    fn give_all(&mut self, reference: u32, first: &List<'_>) -> Tried<()> {
        let mut all: SmallVec<[(u32, usize); 4]> = smallvec![(reference, first.lines)];
        self.trie.chain(first, self.guard, |link, list| all.push((link, list.lines)))?;
        all.into_iter().for_each(|(reference, lines)| self.give(reference, lines));
        Ok(())
    }

    fn insert(&mut self, entry: Entry) -> Tried<()> {
        let (path, child) = self.path(entry.hash)?;
        let step = path[path.len() - 1];
        let (first, len) = self.run(&step, child)?;
        let list = match child {
            EMPTY => None,
            child => Some(self.checked(&step, (first, len), child, entry.hash)?),
        };
        list.map_or(Ok(()), |list| self.trie.chain(&list, self.guard, |_, _| {}))?;
        self.enter(step.range(entry.hash, first, len));
        self.count(entry.address, true);
        let Some(list) = list else {
            // The largest aligned part of what is empty around the digit.
            let mut size = 1;
            let starts = |size: usize| step.digit & !(size - 1);
            while size * 2 <= len && starts(2 * size) >= first && starts(2 * size) + 2 * size <= first + len {
                size *= 2;
            }
            return self.fill(&step, (starts(size), size), &mut [entry]);
        };
        let most = self.trie.shape.most;
        let is_another = list.is_link && list.prefix != entry.hash;
        if !is_another && list.count < list.capacity && (list.is_link || list.count < most) {
            self.touch_list(child)?.push(entry);
            return Ok(());
        }
        if list.is_link && !is_another {
            let reference = self.link(entry.hash, child, &[entry])?;
            return self.set_children(&step, (first, len), reference);
        }
        let mut entries = Entries::new();
        if !list.is_link && list.count < most {
            return self.grow(&step, (first, len), child, &list, entry);
        }
        self.gather(&list, &mut entries)?;
        entries.push(entry);
        self.give_all(child, &list)?;
        self.fill(&step, (first, len), &mut entries)
    }

    /// Gives a full list more lines, and adds an entry.
    fn grow(
        &mut self,
        step: &Step,
        run: (usize, usize),
        child: u32,
        list: &List<'_>,
        entry: Entry,
    ) -> Tried<()> {
        let mut entries: Entries = list.entries().collect();
        entries.push(entry);
        let (is, like) = (list.lines, (list.prefix, list.bits));
        let to = self.trie.shape.list_lines(list.bits, entries.len()).max(is + 1);
        if let Some(page) = self.extend(child, is, to)? {
            List::write(page, line_of(child), to, like, self.trie.blank, &entries);
            return Ok(());
        }
        let (at, page) = self.take(Kind::Lists, to)?;
        List::write(page, at.1, to, like, self.trie.blank, &entries);
        self.set_children(step, run, reference(at, 0))?;
        self.give(child, is);
        Ok(())
    }

    /// A new link in front of `next`.
    fn link(&mut self, hash: u32, next: u32, entries: &[Entry]) -> Tried<u32> {
        let lines = self.trie.shape.link_lines();
        let (at, page) = self.take(Kind::Lists, lines)?;
        List::write_link(page, at.1, lines, (hash, self.trie.blank), next, entries);
        Ok(reference(at, 0))
    }

    /// Puts entries below `len` digits of a node, which is a power of two: in one list, or split as often as it takes.
    fn fill(&mut self, step: &Step, (first, len): (usize, usize), entries: &mut [Entry]) -> Tried<()> {
        let bits = step.depth + step.bits - len.trailing_zeros();
        let Some(one) = entries.first().copied() else { return self.set_children(step, (first, len), EMPTY) };
        let most = self.trie.shape.most;
        if entries.len() <= most {
            let lines = self.trie.shape.list_lines(bits, entries.len());
            let (at, page) = self.take(Kind::Lists, lines)?;
            List::write(page, at.1, lines, (one.hash, bits), self.trie.blank, entries);
            return self.set_children(step, (first, len), reference(at, 0));
        }
        if entries.iter().all(|entry| entry.hash == one.hash) {
            let mut head = EMPTY;
            for part in entries.chunks(most) {
                head = self.link(one.hash, head, part)?;
            }
            return self.set_children(step, (first, len), head);
        }
        if len == 1 {
            let depth = step.depth + step.bits;
            let lines = self.trie.shape.node_lines();
            let (at, page) = self.take(Kind::Nodes, lines)?;
            let words = &page[at.1 * LINE_WORDS..(at.1 + lines) * LINE_WORDS];
            words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
            let node = reference(at, NODE);
            self.set_children(step, (first, 1), node)?;
            let below = Step::new(node, depth, self.trie.shape.digit_bits(depth), one.hash);
            return self.fill(&below, (0, 1 << below.bits), entries);
        }
        let bit = 1 << (HASH_BITS - 1 - bits);
        entries.sort_unstable_by_key(|entry| entry.hash & bit);
        let (low, high) = entries.split_at_mut(entries.partition_point(|entry| entry.hash & bit == 0));
        self.fill(step, (first, len / 2), low)?;
        self.fill(step, (first + len / 2, len / 2), high)
    }

    /// The tree stays as it is, and so do all other entries: no reader looks again but those of this hash's shard.
    fn replace(&mut self, hash: u32, from: u64, to: u64) -> Tried<bool> {
        let (_, child) = self.trie.descend(hash, self.guard, |_| {})?;
        let Some((holder, _, index)) = self.holder(child, hash, from)? else { return Ok(false) };
        self.enter((hash, hash));
        self.touch_list(holder)?.set_address(index, to);
        self.count(from, false);
        self.count(to, true);
        Ok(true)
    }

    /// The list or link at `child` or behind it that has the entry, its reference, and the entry's place.
    fn holder(&self, child: u32, hash: u32, address: u64) -> Tried<Option<(u32, List<'a>, usize)>> {
        if child == EMPTY {
            return Ok(None);
        }
        let list = self.trie.list(child, self.guard)?;
        if let Some(index) = list.find(hash, address) {
            return Ok(Some((child, list, index)));
        }
        let mut holder = None;
        if list.is_link && list.prefix == hash {
            self.trie.chain(&list, self.guard, |link, list| {
                holder = holder.or_else(|| list.find(hash, address).map(|index| (link, *list, index)));
            })?;
        }
        Ok(holder)
    }

    /// The list that a run of digits names, if it makes sense there.
    fn checked(&self, step: &Step, run: (usize, usize), child: u32, hash: u32) -> Tried<List<'a>> {
        let list = self.trie.list(child, self.guard)?;
        check_list(step, run, &list, hash).map_err(|what| Trouble::Nonsense(page_of(child), what))?;
        Ok(list)
    }

    fn enter_run(&mut self, path: &Path, child: u32, hash: u32) -> Tried<(usize, usize)> {
        let step = path[path.len() - 1];
        let (first, len) = self.run(&step, child)?;
        self.checked(&step, (first, len), child, hash)?;
        self.enter(step.range(hash, first, len));
        Ok((first, len))
    }

    fn remove(&mut self, hash: u32, address: u64) -> Tried<bool> {
        let (path, child) = self.path(hash)?;
        let Some((holder, list, index)) = self.holder(child, hash, address)? else { return Ok(false) };
        let run = self.enter_run(&path, child, hash)?;
        self.count(address, false);
        self.touch_list(holder)?.remove(index);
        let left = list.count - 1;
        let step = path[path.len() - 1];
        if list.is_link && left == 0 {
            self.unchain(&step, run, child, holder, &list)?;
        } else if left == 0 {
            self.set_children(&step, run, EMPTY)?;
            self.give(holder, list.lines);
        } else if !list.is_link {
            self.shrink(holder, &list)?;
        }
        if left * 2 <= self.trie.shape.room() {
            self.tidy(path, run, hash)?;
        }
        Ok(true)
    }

    /// Takes an emptied link out of its chain.
    fn unchain(
        &mut self,
        step: &Step,
        run: (usize, usize),
        first: u32,
        empty: u32,
        link: &List<'_>,
    ) -> Tried<()> {
        if first == empty {
            self.set_children(step, run, link.next())?;
        } else {
            let (mut before, mut at) = (EMPTY, first);
            let head = self.trie.list(first, self.guard)?;
            self.trie.chain(&head, self.guard, |next, _| {
                if next == empty {
                    before = at;
                }
                at = next;
            })?;
            self.touch_list(before)?.set_next(link.next());
        }
        self.give(empty, link.lines);
        Ok(())
    }

    /// Moves the list at a line of a page to the first place of the page that it can have, if it is of this shard and what
    /// names it is in memory. Returns how many lines it has; one if there is no list.
    fn move_up(&mut self, page: u32, line: usize) -> Tried<usize> {
        let at = reference((page, line), 0);
        let Some(words) = self.trie.pages.peek(page, self.guard) else { return Ok(1) };
        let Some(list) = List::open(words, line, self.trie.blank) else { return Ok(1) };
        if self.trie.shards.of(list.prefix) != self.shards.0 || self.is_across(list.prefix) {
            return Ok(1);
        }
        let (hash, lines) = (list.prefix, list.lines);
        let Ok((path, child)) = self.path(hash) else { return Ok(1) };
        let step = path[path.len() - 1];
        let Ok(run) = self.run(&step, child) else { return Ok(1) };
        let before = if child == at { EMPTY } else { self.link_before(child, at) };
        if child != at && before == EMPTY {
            return Ok(1);
        }
        let taken = self.trie.heap().take_before(page, line, lines, &self.trie.pages, self.guard);
        let Some((to, words)) = taken else { return Ok(lines) };
        self.enter(step.range(hash, run.0, run.1)); // and what `take` says
        for word in 0..lines * LINE_WORDS {
            let value = words[line * LINE_WORDS + word].load(Ordering::Relaxed);
            words[to * LINE_WORDS + word].store(value, Ordering::Relaxed);
        }
        let moved = reference((page, to), 0);
        if before == EMPTY {
            self.set_children(&step, run, moved)?;
        } else {
            self.touch_list(before)?.set_next(moved);
        }
        let rest = line.max(to + lines);
        self.give(reference((page, rest), 0), line + lines - rest);
        Ok(lines)
    }

    /// The link of the chain at `first` that names `link`; `EMPTY` if there is none, or the chain is not in memory.
    fn link_before(&self, first: u32, link: u32) -> u32 {
        if first == EMPTY || first & NODE != 0 {
            return EMPTY;
        }
        let Ok(head) = self.trie.list(first, self.guard) else { return EMPTY };
        let (mut before, mut last) = (EMPTY, first);
        let walked = self.trie.chain(&head, self.guard, |next, _| {
            if next == link {
                before = last;
            }
            last = next;
        });
        if walked.is_ok() { before } else { EMPTY }
    }

    /// Gives lines back that a list has no use for.
    fn shrink(&mut self, reference: u32, list: &List<'_>) -> Tried<()> {
        let count = list.count - 1;
        let lines = self.trie.shape.list_lines(list.bits, count + SLACK);
        if lines < list.lines {
            let (page, line) = (self.touch(reference)?, line_of(reference));
            let Some(list) = List::open(page, line, self.trie.blank) else { return Ok(()) };
            let entries: Entries = list.entries().collect();
            List::write(page, line, lines, (list.prefix, list.bits), self.trie.blank, &entries);
            self.give(self::reference((page_of(reference), line + lines), 0), list.lines - lines);
        }
        Ok(())
    }

    /// A list beside `run` that could be one with what stands there: its reference and entries, or nothing there.
    fn neighbour(&self, step: &Step, (first, len): (usize, usize), hash: u32, room: usize) -> Option<u32> {
        let other = first ^ len;
        let child = self.trie.child_of(step, other, self.guard).ok()?;
        let is_one = (other..other + len)
            .all(|digit| self.trie.child_of(step, digit, self.guard).is_ok_and(|there| there == child));
        if !is_one || child & NODE != 0 {
            return None;
        }
        if child == EMPTY {
            return Some(EMPTY);
        }
        let list = self.trie.list(child, self.guard).ok()?;
        let (there, _) = step.range(hash, other, len);
        let is_sound = check_list(step, (other, len), &list, there).is_ok();
        (is_sound && list.count <= room && list.next() == EMPTY).then_some(child)
    }

    /// Makes one list of neighbours that have nearly nothing, and lets nodes go that have one child only. What is not in
    /// memory stays as it is.
    fn tidy(&mut self, mut path: Path, mut run: (usize, usize), hash: u32) -> Tried<()> {
        let room = self.trie.shape.room();
        let mut entries = Entries::new();
        let mut step = path[path.len() - 1];
        let child = self.trie.child_of(&step, run.0, self.guard)?;
        if child != EMPTY {
            let list = self.trie.list(child, self.guard)?;
            if list.next() != EMPTY || list.count > room {
                return Ok(());
            }
            entries.extend(list.entries());
        }
        // `own` is what the entries stand in; it goes with the first step.
        let mut own = child;
        let mut is_moved = false;
        loop {
            if run.1 == 1 << step.bits && !step.is_root() {
                let above = path[path.len() - 2];
                self.enter(above.range(hash, above.digit, 1));
                self.drop_own(&mut own)?;
                self.set_children(&above, (above.digit, 1), EMPTY)?;
                self.give(step.node, self.trie.shape.node_lines());
                path.pop();
                (step, run) = (above, (above.digit, 1));
            } else if run.1 < self.trie.digits(&step)
                && let Some(other) = self.neighbour(&step, run, hash, room - entries.len())
            {
                let both = (run.0 & !run.1, run.1 * 2);
                self.enter(step.range(hash, both.0, both.1));
                if other != EMPTY {
                    let list = self.trie.list(other, self.guard)?;
                    entries.extend(list.entries());
                    self.set_children(&step, (run.0 ^ run.1, run.1), EMPTY)?;
                    self.give(other, list.lines);
                }
                self.drop_own(&mut own)?;
                run = both;
            } else {
                break;
            }
            is_moved = true;
        }
        if is_moved { self.fill(&step, run, &mut entries) } else { Ok(()) }
    }

    fn drop_own(&mut self, own: &mut u32) -> Tried<()> {
        let reference = std::mem::replace(own, EMPTY);
        if reference != EMPTY {
            let lines = self.trie.list(reference, self.guard)?.lines;
            self.give(reference, lines);
        }
        Ok(())
    }
}
