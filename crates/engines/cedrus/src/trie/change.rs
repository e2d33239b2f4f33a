//! # Changing the trie
//!
//! One writer at a time, under the heap's lock. Before the first word changes that a reader of some hash may see, the versions
//! of the hash's domain become odd, and even again when the change is done ([`Change`]).
//!
//! ## What a change does
//!
//! ```text
//!  insert: list has room -> one more entry | overflows, serves several digits -> two halves | one digit -> a node below
//!  remove: list stays half full | nearly empty -> one with its neighbour | alone in its node -> the node goes
//! ```
//!
//! ## Failure
//!
//! Room ([`Trie::is_roomy`]) and the pages of the path are asked for before a commit has a number. A page that was evicted since
//! comes back from limbo (page.rs): a change reads all it needs before it writes anything. What it still meets is damage.

use super::*;

impl Trie {
    fn change<'a>(&'a self, guard: &'a Guard) -> Change<'a> {
        Change { trie: self, heap: self.heap.0.lock(), guard, odd: None }
    }

    /// Makes a change whose way was seen in memory under a guard that is still pinned.
    fn changed<T>(&self, guard: &Guard, act: impl Fn(&mut Change<'_>) -> Tried<T>) -> Tried<T> {
        self.change(guard).made(act)
    }

    /// Adds an entry. One writer; the way to it was seen in memory under a guard that is still pinned.
    pub(crate) fn insert(&self, entry: Entry, guard: &Guard) -> Tried<()> {
        let mut change = self.change(guard);
        if let Some(page) = change.heap.choose_to_press(&self.pages, guard) {
            drop(change);
            self.press(page, guard)?;
            change = self.change(guard);
        }
        change.made(|change| change.insert(entry))
    }

    /// Points the entry of `hash` at `from` to `to`. False if there is none.
    pub(crate) fn replace(&self, hash: u32, from: Address, to: Address, guard: &Guard) -> Tried<bool> {
        self.changed(guard, |change| change.replace(hash, from.bits(), to.bits()))
    }

    /// Takes the entry of `hash` at `address` out. False if there is none.
    pub(crate) fn remove(&self, hash: u32, address: Address, guard: &Guard) -> Tried<bool> {
        self.changed(guard, |change| change.remove(hash, address.bits()))
    }

    /// Forgets everything.
    pub(crate) fn clear(&self, guard: &Guard) {
        let mut change = self.change(guard);
        change.enter((0, u32::MAX));
        self.root.set(0, 1 << self.shape.root_bits, EMPTY);
        let pages = change.heap.highest();
        *change.heap = Heap::new(self.shape);
        (0..pages).for_each(|page| self.pages.take(page, guard));
    }

    /// Presses a page of lists together, of which holes are many and small: its lists move to the
    /// front, one by one, and what is free comes together behind them. Others may change the page
    /// between two lists, or use it for something else: a list moves only if the trie names it at
    /// its place.
    fn press(&self, page: u32, guard: &Guard) -> Tried<()> {
        let mut line = 1;
        while line < self.shape.page_lines {
            let mut change = self.change(guard);
            let Some(words) = self.pages.peek(page, guard) else { return Ok(()) };
            let used = words[0].load(Ordering::Relaxed) >> line;
            if used == 0 {
                return Ok(());
            }
            line += used.trailing_zeros() as usize;
            let Some(list) = List::open(words, line, self.blank) else { return Ok(()) };
            let lines = list.lines;
            change.move_up(reference((page, line), 0), &list)?;
            line += lines;
        }
        Ok(())
    }
}

/// A change under way: the heap's lock, and the domains whose readers are told to look again.
struct Change<'a> {
    trie: &'a Trie,
    heap: MutexGuard<'a, Heap>,
    guard: &'a Guard,
    /// Domains with odd versions.
    odd: Option<(usize, usize)>,
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if let Some((first, last)) = self.odd {
            for Apart(version) in &self.trie.versions[first..=last] {
                version.store(version.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
            }
        }
        self.trie.publish(&self.heap);
    }
}

impl<'a> Change<'a> {
    /// Makes the change that `act` makes.
    fn made<T>(mut self, act: impl Fn(&mut Change<'a>) -> Tried<T>) -> Tried<T> {
        loop {
            match act(&mut self) {
                // Evicted since; nothing is changed yet.
                Err(Trouble::Absent(page)) if self.heap.revive(page, &self.trie.pages, self.guard) => {}
                done => return done,
            }
        }
    }

    /// From here on, readers of these hashes look again (I2). Ranges of one change contain one another.
    fn enter(&mut self, (first, last): (u32, u32)) {
        let (first, last) = (domain(first), domain(last));
        let is_new = |at: usize| self.odd.is_none_or(|(from, to)| at < from || at > to);
        for at in (first..=last).filter(|at| is_new(*at)) {
            let version = &self.trie.versions[at].0;
            version.store(version.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
        self.odd = Some(match self.odd {
            Some((from, to)) => (from.min(first), to.max(last)),
            None => (first, last),
        });
        fence(Ordering::Release);
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
        let (mut first, mut end) = (step.digit, step.digit + 1);
        while first > 0 && same(first - 1)? {
            first -= 1;
        }
        while end < 1 << step.bits && same(end)? {
            end += 1;
        }
        Ok((first, end - first))
    }

    fn set_children(&mut self, step: &Step, (first, len): (usize, usize), to: u32) -> Tried<()> {
        if step.is_root() {
            self.trie.root.set(first, len, to);
            return Ok(());
        }
        let page = self.trie.page(step.node, self.guard)?;
        self.heap.touch(page_of(step.node), page);
        for digit in first..first + len {
            let (at, shift) = self.trie.child_at(step.node, digit);
            let word = page[at].load(Ordering::Relaxed) & !(u64::from(u32::MAX) << shift);
            page[at].store(word | u64::from(to) << shift, Ordering::Relaxed);
        }
        Ok(())
    }

    fn take(&mut self, kind: Kind, lines: usize) -> Tried<((u32, usize), &'a [AtomicU64])> {
        let at = self.heap.take(kind, lines, &self.trie.pages, self.guard).ok_or(Trouble::Full)?;
        let page = self.trie.pages.get(at.0, self.guard).ok_or(Trouble::Absent(at.0))?;
        Ok((at, page))
    }

    fn give(&mut self, reference: u32, lines: usize) {
        self.heap.give(page_of(reference), line_of(reference), lines, &self.trie.pages, self.guard);
    }

    fn touch(&mut self, reference: u32) -> Tried<()> {
        let page = self.trie.page(reference, self.guard)?;
        self.heap.touch(page_of(reference), page);
        Ok(())
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
        if child != EMPTY {
            let list = self.checked(&step, (first, len), child, entry.hash)?;
            self.trie.chain(&list, self.guard, |_, _| {})?;
        }
        self.enter(step.range(entry.hash, first, len));
        self.heap.count(entry.address, true);
        if child == EMPTY {
            // The largest aligned part of what is empty around the digit.
            let mut size = 1;
            let starts = |size: usize| step.digit & !(size - 1);
            while size * 2 <= len && starts(2 * size) >= first && starts(2 * size) + 2 * size <= first + len {
                size *= 2;
            }
            return self.fill(&step, (starts(size), size), &mut [entry]);
        }
        let list = self.trie.list(child, self.guard)?;
        let most = self.trie.shape.most;
        let is_another = list.is_link && list.prefix != entry.hash;
        if !is_another && list.count < list.capacity && (list.is_link || list.count < most) {
            self.touch(child)?;
            list.push(entry);
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
        let page = self.trie.page(child, self.guard)?;
        self.touch(child)?;
        if self.heap.extend(page_of(child), page, line_of(child), is, to) {
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

    /// The tree stays as it is, and so do all other entries: nobody looks again but readers of this hash's domain.
    fn replace(&mut self, hash: u32, from: u64, to: u64) -> Tried<bool> {
        let (_, child) = self.trie.descend(hash, self.guard, |_| {})?;
        let Some((holder, list, index)) = self.holder(child, hash, from)? else { return Ok(false) };
        self.enter((hash, hash));
        self.touch(holder)?;
        list.set_address(index, to);
        self.heap.count(from, false);
        self.heap.count(to, true);
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
        self.heap.count(address, false);
        self.touch(holder)?;
        list.remove(index);
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
            self.touch(before)?;
            self.trie.list(before, self.guard)?.set_next(link.next());
        }
        self.give(empty, link.lines);
        Ok(())
    }

    /// Moves a list to the first place of its page that it can have, if what names it is in memory.
    fn move_up(&mut self, at: u32, list: &List<'_>) -> Tried<()> {
        let (page, line, hash) = (page_of(at), line_of(at), list.prefix);
        let Ok((path, child)) = self.path(hash) else { return Ok(()) };
        let step = path[path.len() - 1];
        let Ok(run) = self.run(&step, child) else { return Ok(()) };
        let words = self.trie.page(at, self.guard)?;
        // In a chain, the link that names this one.
        let mut before = EMPTY;
        if child != at {
            if child == EMPTY || child & NODE != 0 || !list.is_link {
                return Ok(());
            }
            let Ok(head) = self.trie.list(child, self.guard) else { return Ok(()) };
            let mut last = child;
            let walked = self.trie.chain(&head, self.guard, |next, _| {
                if next == at {
                    before = last;
                }
                last = next;
            });
            if before == EMPTY || walked.is_err() {
                return Ok(());
            }
        }
        let lines = list.lines;
        let Some(to) = self.heap.before(words, line, lines) else { return Ok(()) };
        self.enter(step.range(hash, run.0, run.1));
        self.heap.shift(page, words, (line, to), lines);
        for word in 0..lines * LINE_WORDS {
            let value = words[line * LINE_WORDS + word].load(Ordering::Relaxed);
            words[to * LINE_WORDS + word].store(value, Ordering::Relaxed);
        }
        let moved = reference((page, to), 0);
        if before == EMPTY {
            self.set_children(&step, run, moved)
        } else {
            self.touch(before)?;
            self.trie.list(before, self.guard)?.set_next(moved);
            Ok(())
        }
    }

    /// Gives lines back that a list has no use for.
    fn shrink(&mut self, reference: u32, list: &List<'_>) -> Tried<()> {
        let count = list.count - 1;
        let lines = self.trie.shape.list_lines(list.bits, count + SLACK);
        if lines < list.lines {
            let page = self.trie.page(reference, self.guard)?;
            let Some(list) = List::open(page, line_of(reference), self.trie.blank) else { return Ok(()) };
            let entries: Entries = list.entries().collect();
            let (page_number, line) = (page_of(reference), line_of(reference));
            List::write(page, line, lines, (list.prefix, list.bits), self.trie.blank, &entries);
            let rest = list.lines - lines;
            self.heap.give(page_number, line + lines, rest, &self.trie.pages, self.guard);
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
            } else if run.1 < 1 << step.bits
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
