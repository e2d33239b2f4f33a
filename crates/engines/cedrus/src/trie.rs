//! # The lazy-trie
//!
//! Hashes are read digit by digit. A node has a child for every value of its digit; a child is a node, a list of entries
//! (list.rs) or nothing. Only what lies below the last fork of a path is compressed, as in the paper (§2.2): a list stands
//! where its hashes first differ from all others, and inner nodes may have one child. Splitting is sluggish (§2.3): a list
//! is split when it overflows, and again until every part is within the limit.
//!
//! What the paper has not: a list may serve several digits of its node, two, four, up to all of them. It then splits bit by
//! bit, into halves, and becomes a node only when one digit is left. So lists stay half full or more at any number of keys,
//! where splits by the whole branching factor leave them nearly empty soon after each level is begun, and the footprint has
//! no cliff. Lists whose hashes are all equal are chained without limit.
//!
//! ## Picture
//!
//! ```text
//!  root  [ a a a a b b c d ... ]         a: a list for four digits     c: a node below
//!                      |
//!                 node [ e e e e e e e e f f f f g g h h ]
//!                                                    |
//!                                              node [ ... ]             reference: node? 1 | page 25 | line 6, 0 for nothing
//! ```
//!
//! ## Invariants
//!
//! 1. A list's references are a run of words of one node, as many as a power of two and aligned to it.
//! 2. Everything that a reader of some hash may see changes only while the versions of its domain are odd.
//! 3. Lists of different hashes have at most `most` entries. An emptied list is given back; neighbours that are nearly
//!    empty become one, and a node whose only child is a list gives way to it.
//!
//! ## Threads
//!
//! One writer at a time, under the heap's lock. Readers take no lock: they remember the version of their hash's domain,
//! look, and look again if it has moved. What they see meanwhile may be nonsense, so every step is checked. A reader that
//! finds a writer in its way several times waits for its lock, so that it never spins on a thread without a core.
//! The trie does no I/O: what is not in memory is an answer ([`Trouble::Absent`]) that the caller acts on.
//!
//! ## Costs
//!
//! A look-up: the root, a line a node (three of them at 5 million keys, the first two nearly always cached), a list of up to
//! five lines. A change: that, and bytes in one list; one in about twenty rewrites a list of a few lines, one in a hundred
//! splits one.

use sheaf_base::segment::Address;
use sheaf_base::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use sheaf_base::sync::epoch::Guard;
use sheaf_base::sync::{Mutex, MutexGuard};
use smallvec::{SmallVec, smallvec};

use crate::heap::{Heap, Kind};
use crate::list::{Entry, List, top};
use crate::page::Pages;
use crate::shape::{HASH_BITS, LINE_WORDS, LINK_HEAD, Shape};

/// Parts of the hashes that have a version each.
const DOMAIN_BITS: u32 = 6;
/// Looks of a reader before it waits for the writer.
const LOOKS: usize = 16;
/// Links of a chain that are believed in.
const MOST_LINKS: usize = 1 << 20;
/// A list that shrinks keeps room for so many.
const SLACK: usize = 1;

pub(crate) const NODE: u32 = 1 << 31;
const LINE_BITS: u32 = 6;
/// Nothing.
pub(crate) const EMPTY: u32 = 0;

/// Why a look did not work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// This page is not in memory.
    Absent(u32),
    /// What stands on this page cannot be.
    Nonsense(u32, &'static str),
    /// There are as many pages as there can be.
    Full,
}

type Tried<T> = Result<T, Trouble>;

pub(crate) fn page_of(reference: u32) -> u32 {
    (reference & !NODE) >> LINE_BITS
}

pub(crate) fn line_of(reference: u32) -> usize {
    (reference & ((1 << LINE_BITS) - 1)) as usize
}

fn reference((page, line): (u32, usize), kind: u32) -> u32 {
    kind | page << LINE_BITS | u32::try_from(line).unwrap_or(0)
}

fn domain(hash: u32) -> usize {
    (hash >> (HASH_BITS - DOMAIN_BITS)) as usize
}

/// A node on a path, and the digit that the path takes there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// Its reference; `EMPTY` for the root.
    node: u32,
    /// Bits above it.
    pub(crate) depth: u32,
    /// Bits of its digit.
    pub(crate) bits: u32,
    digit: usize,
}

impl Step {
    pub(crate) fn new(node: u32, depth: u32, bits: u32, hash: u32) -> Step {
        let below = hash.checked_shl(depth).unwrap_or(0);
        Step { node, depth, bits, digit: below.checked_shr(HASH_BITS - bits).unwrap_or(0) as usize }
    }

    fn is_root(&self) -> bool {
        self.depth == 0
    }

    /// The hashes below `len` digits from `digit` on, of which `hash` shares the bits above.
    pub(crate) fn range(&self, hash: u32, digit: usize, len: usize) -> (u32, u32) {
        let below = HASH_BITS - self.depth - self.bits;
        let at = |digit: usize| u64::from(top(hash, self.depth)) + ((digit as u64) << below);
        let cut = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        (cut(at(digit)), cut(at(digit + len) - 1))
    }
}

type Path = SmallVec<[Step; 8]>;
/// Entries that were gathered.
type Entries = SmallVec<[Entry; 36]>;
/// Addresses that may be a key's.
pub(crate) type Found = SmallVec<[Address; 4]>;

/// See the module.
pub(crate) struct Trie {
    shape: Shape,
    root: Box<[AtomicU32]>,
    pages: Pages,
    versions: [AtomicU32; 1 << DOMAIN_BITS],
    heap: Mutex<Heap>,
    /// What the heap has, for those who do not want its lock.
    resident: AtomicU64,
    free_lines: AtomicU64,
    entries: AtomicU64,
}

impl Trie {
    pub(crate) fn new(shape: Shape) -> Trie {
        Trie {
            shape,
            root: (0..1 << shape.root_bits).map(|_| AtomicU32::new(EMPTY)).collect(),
            pages: Pages::new(shape.page_lines),
            versions: std::array::from_fn(|_| AtomicU32::new(0)),
            heap: Mutex::new(Heap::new(shape)),
            resident: AtomicU64::new(0),
            free_lines: AtomicU64::new(0),
            entries: AtomicU64::new(0),
        }
    }

    pub(crate) fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Bytes of pages in memory.
    pub(crate) fn bytes(&self) -> u64 {
        (self.resident.load(Ordering::Relaxed) * self.shape.page_lines as u64 + self.root.len() as u64 / 16)
            * 64
    }

    /// Whether so many lines are free in pages in memory that entries find room without a page more, once it is pressed
    /// together.
    pub(crate) fn is_roomy(&self) -> bool {
        let lines = self.resident.load(Ordering::Relaxed) * self.shape.page_lines as u64;
        self.free_lines.load(Ordering::Relaxed) * 8 > lines
    }

    /// The part of the lines in memory that is used.
    #[allow(clippy::cast_precision_loss)]
    pub(crate) fn fill(&self) -> f64 {
        let lines = self.resident.load(Ordering::Relaxed) * (self.shape.page_lines as u64 - 1);
        1.0 - self.free_lines.load(Ordering::Relaxed) as f64 / lines.max(1) as f64
    }

    pub(crate) fn len(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }

    // Looking.

    #[inline]
    fn page<'g>(&self, reference: u32, guard: &'g Guard) -> Tried<&'g [AtomicU64]> {
        let page = page_of(reference);
        self.pages.get(page, guard).ok_or(Trouble::Absent(page))
    }

    /// The word of a node's child `digit`, in a page, and which half of it.
    fn child_at(&self, node: u32, digit: usize) -> (usize, usize) {
        (line_of(node) * LINE_WORDS + digit / 2, 32 * (digit % 2))
    }

    #[inline]
    fn child(&self, node: u32, digit: usize, guard: &Guard) -> Tried<u32> {
        let page = self.page(node, guard)?;
        let (word, shift) = self.child_at(node, digit);
        let word = page.get(word).ok_or(Trouble::Nonsense(page_of(node), "node"))?;
        Ok(u32::try_from(word.load(Ordering::Relaxed) >> shift & u64::from(u32::MAX)).unwrap_or(0))
    }

    pub(crate) fn child_of(&self, step: &Step, digit: usize, guard: &Guard) -> Tried<u32> {
        if step.is_root() {
            Ok(self.root[digit].load(Ordering::Relaxed))
        } else {
            self.child(step.node, digit, guard)
        }
    }

    /// The way to the list of `hash`, if there is one: its last node, and the reference there.
    #[inline]
    fn descend(&self, hash: u32, guard: &Guard, mut each: impl FnMut(Step)) -> Tried<(Step, u32)> {
        let mut step = Step::new(EMPTY, 0, self.shape.root_bits, hash);
        let mut child = self.root[step.digit].load(Ordering::Relaxed);
        while child & NODE != 0 {
            each(step);
            let depth = step.depth + step.bits;
            if depth >= HASH_BITS {
                return Err(Trouble::Nonsense(page_of(child), "depth of a node"));
            }
            step = Step::new(child, depth, self.shape.digit_bits(depth), hash);
            child = self.child(child, step.digit, guard)?;
        }
        Ok((step, child))
    }

    /// The list that `reference` names.
    #[inline]
    pub(crate) fn list<'g>(&self, reference: u32, guard: &'g Guard) -> Tried<List<'g>> {
        let page = self.page(reference, guard)?;
        List::open(page, line_of(reference)).ok_or(Trouble::Nonsense(page_of(reference), "list"))
    }

    /// Calls `each` with the links behind the first.
    pub(crate) fn chain<'g>(
        &self,
        first: &List<'g>,
        guard: &'g Guard,
        mut each: impl FnMut(u32, &List<'g>),
    ) -> Tried<()> {
        let (mut next, mut count) = (first.next(), 0);
        while next != EMPTY {
            let link = self.list(next, guard)?;
            count += 1;
            if !link.is_link || link.prefix != first.prefix || count > MOST_LINKS {
                return Err(Trouble::Nonsense(page_of(next), "link"));
            }
            each(next, &link);
            next = link.next();
        }
        Ok(())
    }

    /// What `look` sees of the domain of `hash` while no writer changes it.
    #[inline]
    fn read<T>(&self, hash: u32, mut look: impl FnMut() -> Tried<T>) -> Tried<T> {
        let version = &self.versions[domain(hash)];
        for _ in 0..LOOKS {
            let before = version.load(Ordering::Acquire);
            if before.is_multiple_of(2) {
                let seen = look();
                fence(Ordering::Acquire);
                if version.load(Ordering::Relaxed) == before {
                    return seen;
                }
            }
            std::hint::spin_loop();
        }
        let _heap = self.heap.lock();
        look()
    }

    /// The addresses of all entries of `hash`. `ask` is told of each as soon as it is seen, right or not.
    #[inline]
    pub(crate) fn find(&self, hash: u32, guard: &Guard, ask: impl Fn(Address)) -> Tried<Found> {
        self.read(hash, || {
            let mut found = Found::new();
            let (_, child) = self.descend(hash, guard, |_| {})?;
            if child == EMPTY {
                return Ok(found);
            }
            let list = self.list(child, guard)?;
            if !list.is_for(hash) {
                let there =
                    if list.is_link { Ok(found) } else { Err(Trouble::Nonsense(page_of(child), "prefix")) };
                return there;
            }
            let mut gather = |list: &List<'_>| {
                list.matches(hash, |index| {
                    let address = Address::from_bits(list.address(index));
                    ask(address);
                    found.push(address);
                    true
                });
            };
            gather(&list);
            self.chain(&list, guard, |_, link| gather(link))?;
            Ok(found)
        })
    }

    /// Asks for what a look-up of `hash` reads.
    pub(crate) fn prefetch(&self, hash: u32, guard: &Guard) {
        if let Ok((_, child)) = self.descend(hash, guard, |_| {})
            && child != EMPTY
            && let Ok(page) = self.page(child, guard)
        {
            (0..4).filter_map(|line| page.get((line_of(child) + line) * LINE_WORDS)).for_each(prefetch_word);
        }
    }

    /// The entries of hashes from `from` on that stand together, in `out`, and the last hash that these could have.
    pub(crate) fn visit(&self, from: u32, guard: &Guard, out: &mut Vec<Entry>) -> Tried<u32> {
        self.visit_at(from, guard, out).map(|(last, _)| last)
    }

    /// The same, and how many nodes are on the way.
    pub(crate) fn visit_at(&self, from: u32, guard: &Guard, out: &mut Vec<Entry>) -> Tried<(u32, usize)> {
        self.read(from, || {
            out.clear();
            let mut level = 1;
            let (step, child) = self.descend(from, guard, |_| level += 1)?;
            let mut end = step.digit + 1;
            while end < 1 << step.bits && self.child_of(&step, end, guard)? == child {
                end += 1;
            }
            let (_, last) = step.range(from, step.digit, end - step.digit);
            if child != EMPTY {
                let list = self.list(child, guard)?;
                let wanted = |entry: &Entry| entry.hash >= from;
                out.extend(list.entries().filter(wanted));
                self.chain(&list, guard, |_, link| out.extend(link.entries().filter(wanted)))?;
                if out.iter().any(|entry| entry.hash > last) {
                    return Err(Trouble::Nonsense(page_of(child), "prefix"));
                }
            }
            // Every domain in the piece counts, not only that of its first hash.
            let is_one = domain(last) == domain(from);
            Ok((if is_one { last } else { self.cut_piece(from, last, out) }, level))
        })
    }

    /// Cuts a piece at the end of its first domain, whose version is the one that is looked at.
    fn cut_piece(&self, from: u32, last: u32, out: &mut Vec<Entry>) -> u32 {
        let end = last.min(from | u32::MAX >> DOMAIN_BITS);
        out.retain(|entry| entry.hash <= end);
        end
    }

    // Changing.

    fn change<'a>(&'a self, guard: &'a Guard) -> Change<'a> {
        Change { trie: self, heap: self.heap.lock(), guard, odd: None }
    }

    /// Adds an entry. One writer; the pages on the way are in memory.
    pub(crate) fn insert(&self, entry: Entry, guard: &Guard) -> Tried<()> {
        self.press(guard)?;
        self.change(guard).insert(entry)
    }

    /// Points the entry of `hash` at `from` to `to`. False if there is none.
    pub(crate) fn replace(&self, hash: u32, from: Address, to: Address, guard: &Guard) -> Tried<bool> {
        self.change(guard).replace(hash, from.bits(), to.bits())
    }

    /// Takes the entry of `hash` at `address` out. False if there is none.
    pub(crate) fn remove(&self, hash: u32, address: Address, guard: &Guard) -> Tried<bool> {
        self.change(guard).remove(hash, address.bits())
    }

    /// Presses a page of lists together, if holes are many and small: its lists move to the front, one by one, and what is
    /// free comes together behind them.
    fn press(&self, guard: &Guard) -> Tried<()> {
        let mut heap = self.heap();
        let Some(page) = heap.choose_to_press(&self.pages, guard) else { return Ok(()) };
        drop(heap);
        let mut line = 1;
        while line < self.shape.page_lines {
            let mut change = self.change(guard);
            let Some(words) = self.pages.get(page, guard) else { return Ok(()) };
            let used = words[0].load(Ordering::Relaxed) >> line;
            if used == 0 {
                return Ok(());
            }
            line += used.trailing_zeros() as usize;
            let Some(list) = List::open(words, line) else { return Ok(()) };
            let lines = list.lines;
            change.move_up(reference((page, line), 0), &list)?;
            line += lines;
        }
        Ok(())
    }

    // Pages come and go.

    /// The heap, while nothing changes.
    pub(crate) fn heap(&self) -> HeapRef<'_> {
        HeapRef { trie: self, heap: self.heap.lock() }
    }

    /// A page came from disk. What was put in meanwhile stays.
    pub(crate) fn arrive(&self, page: u32, content: &[u64], guard: &Guard) -> Tried<()> {
        let nonsense = Err(Trouble::Nonsense(page, "head of a page"));
        let &[used, head, ..] = content else { return nonsense };
        let Some(kind) = Kind::of(head, page) else { return nonsense };
        let most = u64::MAX >> (64 - self.shape.page_lines.min(64));
        if used & 1 == 0 || used > most || content.len() != self.shape.page_lines * LINE_WORDS {
            return nonsense;
        }
        let mut heap = self.heap();
        if !heap.is_used(page) {
            return Err(Trouble::Nonsense(page, "reference"));
        }
        if self.pages.get(page, guard).is_none() {
            let fresh = self.pages.fresh();
            fresh.words().iter().zip(content).for_each(|(word, value)| word.store(*value, Ordering::Relaxed));
            self.pages.put(page, fresh);
            if let Some(words) = self.pages.get(page, guard) {
                heap.heap.arrived(page, kind, words);
            }
        }
        Ok(())
    }

    /// The root as it is.
    pub(crate) fn root(&self) -> Vec<u32> {
        self.root.iter().map(|word| word.load(Ordering::Relaxed)).collect()
    }

    /// Takes up a root, in an empty trie that nobody reads.
    pub(crate) fn set_root(&self, words: &[u32]) {
        self.root.iter().zip(words).for_each(|(word, value)| word.store(*value, Ordering::Relaxed));
    }

    pub(crate) fn pages(&self) -> &Pages {
        &self.pages
    }

    /// Forgets everything.
    pub(crate) fn clear(&self, guard: &Guard) {
        let mut change = self.change(guard);
        change.enter((0, u32::MAX));
        self.root.iter().for_each(|word| word.store(EMPTY, Ordering::Relaxed));
        let pages = change.heap.highest();
        *change.heap = Heap::new(self.shape);
        (0..pages).for_each(|page| self.pages.take(page, guard));
    }
}

/// Asks for the line of a word.
fn prefetch_word(word: &AtomicU64) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY:
        // * A prefetch never faults; every x86-64 has the instruction.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(word).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = word;
}

/// Whether a list that `run` digits of a node name can be what stands there for `hash`: if so, its entries can be split
/// among these digits.
pub(crate) fn check_list(
    step: &Step,
    (first, len): (usize, usize),
    list: &List<'_>,
    hash: u32,
) -> Result<(), &'static str> {
    if !len.is_power_of_two() || !first.is_multiple_of(len) {
        return Err("references to a list");
    }
    let bits = step.depth + step.bits - len.trailing_zeros();
    if list.bits != bits && !list.is_link || top(list.prefix, bits) != top(hash, bits) {
        return Err("prefix");
    }
    Ok(())
}

/// The heap, locked; its figures are published when it is given back.
pub(crate) struct HeapRef<'a> {
    trie: &'a Trie,
    heap: MutexGuard<'a, Heap>,
}

impl std::ops::Deref for HeapRef<'_> {
    type Target = Heap;

    fn deref(&self) -> &Heap {
        &self.heap
    }
}

impl std::ops::DerefMut for HeapRef<'_> {
    fn deref_mut(&mut self) -> &mut Heap {
        &mut self.heap
    }
}

impl Drop for HeapRef<'_> {
    fn drop(&mut self) {
        self.trie.publish(&self.heap);
    }
}

impl Trie {
    fn publish(&self, heap: &Heap) {
        self.resident.store(heap.resident, Ordering::Relaxed);
        self.free_lines.store(heap.free_lines, Ordering::Relaxed);
        self.entries.store(heap.entries, Ordering::Relaxed);
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
            for version in &self.trie.versions[first..=last] {
                version.store(version.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
            }
        }
        self.trie.publish(&self.heap);
    }
}

impl<'a> Change<'a> {
    /// From here on, readers of these hashes look again (I2). Ranges of one change contain one another.
    fn enter(&mut self, (first, last): (u32, u32)) {
        let (first, last) = (domain(first), domain(last));
        let is_new = |at: usize| self.odd.is_none_or(|(from, to)| at < from || at > to);
        for at in (first..=last).filter(|at| is_new(*at)) {
            let version = &self.trie.versions[at];
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
            self.trie.root[first..first + len].iter().for_each(|word| word.store(to, Ordering::Relaxed));
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
            self.checked(&step, (first, len), child, entry.hash)?;
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
        let to = Shape::list_lines(list.bits, entries.len()).max(is + 1);
        let page = self.trie.page(child, self.guard)?;
        self.touch(child)?;
        if self.heap.extend(page_of(child), page, line_of(child), is, to) {
            List::write(page, line_of(child), to, like, &entries);
            return Ok(());
        }
        let (at, page) = self.take(Kind::Lists, to)?;
        List::write(page, at.1, to, like, &entries);
        self.set_children(step, run, reference(at, 0))?;
        self.give(child, is);
        Ok(())
    }

    /// A new link in front of `next`.
    fn link(&mut self, hash: u32, next: u32, entries: &[Entry]) -> Tried<u32> {
        let lines = (LINK_HEAD + self.trie.shape.most * 6).div_ceil(64);
        let (at, page) = self.take(Kind::Lists, lines)?;
        List::write_link(page, at.1, lines, hash, next, entries);
        Ok(reference(at, 0))
    }

    /// Puts entries below `len` digits of a node, which is a power of two: in one list, or split as often as it takes.
    fn fill(&mut self, step: &Step, (first, len): (usize, usize), entries: &mut [Entry]) -> Tried<()> {
        let bits = step.depth + step.bits - len.trailing_zeros();
        let Some(one) = entries.first().copied() else { return self.set_children(step, (first, len), EMPTY) };
        let most = self.trie.shape.most;
        if entries.len() <= most {
            let lines = Shape::list_lines(bits, entries.len());
            let (at, page) = self.take(Kind::Lists, lines)?;
            List::write(page, at.1, lines, (one.hash, bits), entries);
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

    fn replace(&mut self, hash: u32, from: u64, to: u64) -> Tried<bool> {
        let Some((path, child, holder)) = self.holder(hash, from)? else { return Ok(false) };
        self.enter_run(&path, child, hash)?;
        let list = self.trie.list(holder, self.guard)?;
        let Some(index) = list.find(hash, from) else { return Ok(false) };
        self.touch(holder)?;
        list.set_address(index, to);
        self.heap.count(from, false);
        self.heap.count(to, true);
        Ok(true)
    }

    /// The path to the list that serves `hash`, its reference, and the link of its chain that has the entry.
    fn holder(&self, hash: u32, address: u64) -> Tried<Option<(Path, u32, u32)>> {
        let (path, child) = self.path(hash)?;
        if child == EMPTY {
            return Ok(None);
        }
        let list = self.trie.list(child, self.guard)?;
        let mut holder = list.find(hash, address).map(|_| child);
        if holder.is_none() && list.is_link && list.prefix == hash {
            self.trie.chain(&list, self.guard, |link, list| {
                if holder.is_none() && list.find(hash, address).is_some() {
                    holder = Some(link);
                }
            })?;
        }
        Ok(holder.map(|holder| (path, child, holder)))
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
        let Some((path, child, holder)) = self.holder(hash, address)? else { return Ok(false) };
        let run = self.enter_run(&path, child, hash)?;
        let list = self.trie.list(holder, self.guard)?;
        let Some(index) = list.find(hash, address) else { return Ok(false) };
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
            let head = self.trie.list(child, self.guard)?;
            let mut last = child;
            self.trie.chain(&head, self.guard, |next, _| {
                if next == at {
                    before = last;
                }
                last = next;
            })?;
            if before == EMPTY {
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
        let lines = Shape::list_lines(list.bits, count + SLACK);
        if lines < list.lines {
            let page = self.trie.page(reference, self.guard)?;
            let Some(list) = List::open(page, line_of(reference)) else { return Ok(()) };
            let entries: Entries = list.entries().collect();
            let (page_number, line) = (page_of(reference), line_of(reference));
            List::write(page, line, lines, (list.prefix, list.bits), &entries);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::survey;
    use sheaf_base::sync::epoch;

    /// Numbers that a seed decides.
    struct Dice(u64);

    impl Dice {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
            z ^ z >> 31
        }

        fn below(&mut self, n: usize) -> usize {
            usize::try_from(self.next() % n as u64).unwrap()
        }
    }

    fn place(n: u64) -> Address {
        Address::from_bits((n + 1) * 64 % (1 << 34))
    }

    fn all(trie: &Trie) -> Vec<Entry> {
        let guard = &epoch::pin();
        let (mut from, mut all, mut piece) = (0, Vec::new(), Vec::new());
        loop {
            let last = trie.visit(from, guard, &mut piece).unwrap();
            assert!(piece.iter().all(|entry| (from..=last).contains(&entry.hash)));
            all.append(&mut piece);
            match last.checked_add(1) {
                Some(next) => from = next,
                None => break,
            }
        }
        all.sort_unstable();
        all
    }

    fn agree(trie: &Trie, model: &[Entry]) {
        let guard = &epoch::pin();
        let mut model = model.to_vec();
        model.sort_unstable();
        let mut seen = survey(trie).entries;
        seen.sort_unstable();
        assert!(seen == model && all(trie) == model);
        for same in model.chunk_by(|a, b| a.hash == b.hash) {
            let mut found = trie.find(same[0].hash, guard, |_| {}).unwrap();
            found.sort_unstable_by_key(|address| address.bits());
            assert!(found.iter().map(|address| address.bits()).eq(same.iter().map(|entry| entry.address)));
        }
    }

    const SHAPES: [Shape; 6] = [
        Shape::TINY,
        Shape::NORMAL,
        Shape { node_bits: 7, most: 8, root_bits: 7, ..Shape::NORMAL },
        Shape { node_bits: 8, most: 16, root_bits: 8, ..Shape::NORMAL },
        Shape { hash_bits: 8, ..Shape::TINY },
        Shape { hash_bits: 8, ..Shape::NORMAL },
    ];

    #[test]
    fn any_changes_leave_what_a_list_of_entries_would_have() {
        for (seed, shape) in (0u64..).zip(SHAPES.iter().cycle().take(18)) {
            let (trie, mut dice, mut model) = (Trie::new(*shape), Dice(seed), Vec::<Entry>::new());
            let guard = &epoch::pin();
            let mut number = 0;
            for phase in 0..6 {
                // It grows, holds, shrinks, and is emptied in the end.
                let adds = [90, 50, 10, 70, 45, 0][phase];
                for _ in 0..600 {
                    if dice.below(100) < adds || model.is_empty() {
                        // Some hashes share many bits with one that is there, or all.
                        let mut hash = shape.cut(dice.next());
                        if dice.below(4) == 0 && !model.is_empty() {
                            let like = model[dice.below(model.len())].hash;
                            hash = like
                                ^ (hash
                                    .checked_shr(20 + u32::try_from(dice.below(13)).unwrap())
                                    .unwrap_or(0));
                        }
                        number += 1;
                        let entry = Entry::new(hash, place(number));
                        trie.insert(entry, guard).unwrap();
                        model.push(entry);
                    } else if dice.below(4) == 0 {
                        let at = dice.below(model.len());
                        number += 1;
                        let Entry { hash, address } = model[at];
                        let (from, to) = (Address::from_bits(address), place(number));
                        assert!(trie.replace(hash, from, to, guard).unwrap());
                        assert!(!trie.replace(hash, from, to, guard).unwrap());
                        model[at].address = to.bits();
                    } else {
                        let Entry { hash, address } = model.swap_remove(dice.below(model.len()));
                        assert!(trie.remove(hash, Address::from_bits(address), guard).unwrap());
                        assert!(!trie.remove(hash, Address::from_bits(address), guard).unwrap());
                    }
                }
                agree(&trie, &model);
            }
            for Entry { hash, address } in model.drain(..) {
                assert!(trie.remove(hash, Address::from_bits(address), guard).unwrap());
            }
            agree(&trie, &[]);
            assert_eq!((trie.heap().resident, trie.len()), (0, 0), "an empty trie has no page");
        }
    }

    #[test]
    fn equal_hashes_are_chained_without_limit() {
        for shape in [Shape { hash_bits: 8, ..Shape::NORMAL }, Shape { hash_bits: 8, ..Shape::TINY }] {
            let (trie, guard) = (Trie::new(shape), &epoch::pin());
            let mut model = Vec::new();
            for n in 0..20_000 {
                let entry = Entry::new(shape.cut(Dice(n).next()), place(n));
                trie.insert(entry, guard).unwrap();
                model.push(entry);
            }
            agree(&trie, &model);
            assert!(survey(&trie).path <= 4 * 20_000, "no nodes below the last bit that differs");
            for entry in model.split_off(200) {
                assert!(trie.remove(entry.hash, Address::from_bits(entry.address), guard).unwrap());
            }
            agree(&trie, &model);
        }
    }

    #[test]
    fn churn_of_ten_times_the_entries_takes_no_more_space() {
        for count in [20_000, 30_000] {
            churn(count);
        }
    }

    fn churn(count: u64) {
        let (trie, guard) = (Trie::new(Shape::NORMAL), &epoch::pin());
        let hash = |n: u64| Shape::NORMAL.cut(Dice(n).next());
        (0..count).for_each(|n| trie.insert(Entry::new(hash(n), place(n)), guard).unwrap());
        let before = trie.bytes();
        let mut live: Vec<u64> = (0..count).collect();
        let mut dice = Dice(7);
        for n in count..11 * count {
            let at = dice.below(live.len());
            let gone = std::mem::replace(&mut live[at], n);
            assert!(trie.remove(hash(gone), place(gone), guard).unwrap());
            trie.insert(Entry::new(hash(n), place(n)), guard).unwrap();
        }
        let model: Vec<Entry> = live.iter().map(|n| Entry::new(hash(*n), place(*n))).collect();
        agree(&trie, &model);
        assert!(trie.bytes() * 10 <= before * 11, "{} bytes, then {}", before, trie.bytes());
    }

    #[test]
    fn a_key_takes_few_bytes_at_every_size() {
        let (trie, guard) = (Trie::new(Shape::NORMAL), &epoch::pin());
        let (mut worst, mut step) = (0.0f64, 100_000u64);
        for n in 0..1_200_000 {
            trie.insert(Entry::new(Shape::NORMAL.cut(Dice(n).next()), place(n)), guard).unwrap();
            if n == step {
                worst = worst.max(trie.bytes() as f64 / n as f64);
                step += step / 8;
            }
        }
        assert!(worst < 13.0, "{worst} bytes a key");
    }
}
