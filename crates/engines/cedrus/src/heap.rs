//! # Heap: the allocator of lines in the trie's pages, and the states of pages
//!
//! Nodes and lists are runs of lines within a page; nodes have pages of their own. A run is taken
//! from the page in memory that fits best. A page with many small holes is compacted.
//!
//! ## Picture
//!
//! ```text
//!  page states:   clean ── first change ──> dirty ── freeze ──> frozen ── written ──> clean
//!                                             ^                   | changed before it was written:
//!                                             └── copy set aside ─┘ the copy is written
//! ```
//!
//! ## Invariants
//!
//! 1. A page is changed only after [`PageHeap::make_writable`]: a checkpoint writes the frozen
//!    state.
//! 2. A page without entries is freed. Its number is reused before a new one.
//! 3. An evicted page is neither dirty nor frozen, and its last write is complete.
//! 4. A page is writable (resident_pages.rs) exactly if it is dirty and not frozen. A writer may
//!    use the words of a writable page until its change ends.
//! 5. The mask of used lines changes under the lock. A line belongs to the writer that allocated
//!    it.
//!
//! ## Threads
//!
//! One lock serves all shards (shard.rs). It is held while lines or pages are allocated, freed or
//! made writable, and while a page is copied. Shards share pages, so that small keyspaces need no
//! more pages. Each writer changes its own lines without the lock. [`PageHeap::freeze`] needs all
//! writers stopped.

use std::collections::HashMap;

use sheaf_platform::sync::atomic::{AtomicU64, Ordering};
use sheaf_platform::sync::epoch::Guard;

use crate::resident_pages::{MAX_PAGES, ResidentPages};
use crate::shape::TrieShape;

/// Pages are compacted while more than this fraction of all lines is free.
const FRAGMENTED_DIVISOR: u64 = 16;
/// Maximum number of pages examined for a page to compact.
const COMPACT_CANDIDATES: usize = 16;
/// Number that no page has.
const NO_PAGE: u32 = u32::MAX;

/// Content of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageKind {
    Lists,
    Nodes,
}

const KINDS: usize = 2;

impl PageKind {
    /// The second word of a page's head.
    fn head(self, page: u32) -> u64 {
        (self as u64) << 32 | u64::from(page)
    }

    /// Returns the kind in the head of page `page`; `None` if the head belongs to another page or
    /// is invalid.
    pub(crate) fn of(head: u64, page: u32) -> Option<PageKind> {
        [PageKind::Lists, PageKind::Nodes].into_iter().find(|kind| kind.head(page) == head)
    }
}

/// State of a page. Pages with the same longest free run form a linked list.
#[derive(Clone, Copy, Debug)]
struct PageMeta {
    is_used: bool,
    is_dirty: bool,
    is_frozen: bool,
    /// A checkpoint is writing the present content.
    is_being_written: bool,
    /// Content of the page.
    kind: PageKind,
    /// Longest free run, capped at the largest list; 0 if the page is in no linked list.
    longest_free_run: u8,
    prev: u32,
    next: u32,
    /// Number of the last eviction if the page was not restored or loaded since; otherwise 0.
    eviction_id: u64,
}

const UNUSED: PageMeta = PageMeta {
    is_used: false,
    is_dirty: false,
    is_frozen: false,
    is_being_written: false,
    kind: PageKind::Lists,
    longest_free_run: 0,
    prev: NO_PAGE,
    next: NO_PAGE,
    eviction_id: 0,
};

/// State that a checkpoint froze.
#[derive(Debug, Default)]
pub(crate) struct FrozenTrie {
    /// Pages to write, the next one last.
    pub(crate) pages: Vec<u32>,
    /// Content at the freeze of pages that were changed later.
    copies: HashMap<u32, Box<[u64]>>,
    /// Pages freed since the previous freeze.
    pub(crate) freed: Vec<u32>,
    /// Highest page number ever used plus 1.
    pub(crate) page_count: u32,
    /// References of the root, each with its number of digits in a row.
    pub(crate) root: Vec<(u32, u32)>,
    pub(crate) entries: u64,
    /// Entries in each slot's segment.
    pub(crate) counts: Vec<u64>,
}

impl FrozenTrie {
    /// Returns the frozen state of a trie without pages.
    pub(crate) fn empty(root: Vec<(u32, u32)>) -> FrozenTrie {
        FrozenTrie::new(root, 0, Vec::new())
    }

    /// Returns the frozen state of a trie, without its pages.
    pub(crate) fn new(root: Vec<(u32, u32)>, entries: u64, counts: Vec<u64>) -> FrozenTrie {
        FrozenTrie { root, entries, counts, ..FrozenTrie::default() }
    }
}

/// Allocator of the pages of one trie.
pub(crate) struct PageHeap {
    shape: TrieShape,
    metas: Vec<PageMeta>,
    unused_pages: Vec<u32>,
    /// First page of each linked list, by kind and longest free run.
    free_run_lists: [Vec<u32>; KINDS],
    dirty: Vec<u32>,
    freed_pages: Vec<u32>,
    /// Page last examined for compaction.
    compact_hand: u32,
    /// Page last examined for eviction.
    clock_hand: u32,
    pub(crate) frozen: Option<FrozenTrie>,
    /// Number of pages in memory, and of free lines in them.
    pub(crate) resident: u64,
    pub(crate) free_lines: u64,
}

/// Returns the mask of the free lines of a page. The head is never free.
fn free_lines_of(words: &[AtomicU64], shape: &TrieShape) -> u64 {
    let all = u64::MAX >> (64 - shape.page_lines.min(64));
    !words[0].load(Ordering::Relaxed) & all & !1
}

/// Returns the length of the longest run of ones, at most `most`.
fn longest_run(mut bits: u64, most: usize) -> usize {
    let mut run = 0;
    while bits != 0 && run < most {
        bits &= bits >> 1;
        run += 1;
    }
    run
}

/// Returns the first position of a run of `len` ones.
fn first_run(bits: u64, len: usize) -> Option<usize> {
    let starts = (1..len).fold(bits, |starts, by| starts & bits >> by);
    (starts != 0).then(|| starts.trailing_zeros() as usize)
}

fn run_mask(line: usize, lines: usize) -> u64 {
    (u64::MAX >> (64 - lines)) << line
}

impl PageHeap {
    pub(crate) fn new(shape: TrieShape) -> PageHeap {
        PageHeap {
            shape,
            metas: Vec::new(),
            unused_pages: Vec::new(),
            free_run_lists: [(); KINDS].map(|()| vec![NO_PAGE; shape.max_lines() + 1]),
            dirty: Vec::new(),
            freed_pages: Vec::new(),
            compact_hand: 0,
            clock_hand: 0,
            frozen: None,
            resident: 0,
            free_lines: 0,
        }
    }

    /// Adopts pages that are on disk. The heap must be empty.
    pub(crate) fn restore(&mut self, is_used: impl Iterator<Item = bool>) {
        self.metas = is_used.map(|is_used| PageMeta { is_used, ..UNUSED }).collect();
        self.unused_pages =
            (0..).zip(&self.metas).filter(|(_, meta)| !meta.is_used).map(|(page, _)| page).collect();
    }

    /// Returns whether the page exists, in memory or on disk.
    pub(crate) fn is_used(&self, page: u32) -> bool {
        self.metas.get(page as usize).is_some_and(|meta| meta.is_used)
    }

    /// Returns the highest page number ever used plus 1.
    pub(crate) fn end_page(&self) -> u32 {
        u32::try_from(self.metas.len()).unwrap_or(NO_PAGE)
    }

    /// Returns the number of pages, in memory or on disk.
    pub(crate) fn page_count(&self) -> u64 {
        (self.metas.len() - self.unused_pages.len()) as u64
    }

    // Linked lists of pages by their longest free run.

    fn unlink(&mut self, page: u32) {
        let PageMeta { longest_free_run: run, prev: before, next: after, kind, .. } =
            self.metas[page as usize];
        if run == 0 {
            return;
        }
        match before {
            NO_PAGE => self.free_run_lists[kind as usize][usize::from(run)] = after,
            before => self.metas[before as usize].next = after,
        }
        if after != NO_PAGE {
            self.metas[after as usize].prev = before;
        }
        let meta = &mut self.metas[page as usize];
        (meta.longest_free_run, meta.prev, meta.next) = (0, NO_PAGE, NO_PAGE);
    }

    fn relink(&mut self, page: u32, free: u64) {
        let run = longest_run(free, self.shape.max_lines());
        let small = u8::try_from(run).unwrap_or(u8::MAX);
        let PageMeta { longest_free_run: was, kind, .. } = self.metas[page as usize];
        if was == small {
            return;
        }
        self.unlink(page);
        if run > 0 {
            let first = std::mem::replace(&mut self.free_run_lists[kind as usize][run], page);
            let meta = &mut self.metas[page as usize];
            (meta.longest_free_run, meta.next) = (small, first);
            if first != NO_PAGE {
                self.metas[first as usize].prev = page;
            }
        }
    }

    // Pages.

    /// Registers a page that was loaded from disk.
    pub(crate) fn add_loaded(&mut self, page: u32, kind: PageKind, words: &[AtomicU64]) {
        let free = free_lines_of(words, &self.shape);
        let meta = &mut self.metas[page as usize];
        assert!(
            !(meta.is_dirty || meta.is_frozen || meta.is_being_written),
            "heap (I3): an evicted page is clean and written"
        );
        (meta.kind, meta.eviction_id) = (kind, 0);
        self.resident += 1;
        self.free_lines += u64::from(free.count_ones());
        self.relink(page, free);
    }

    /// Evicts up to `most` clean pages by CLOCK, but keeps at least `least` pages. CLOCK selects
    /// pages without a look-up since its last pass. Returns the number of evicted pages, and calls
    /// `went` with each of them.
    pub(crate) fn evict(
        &mut self,
        most: usize,
        least: u64,
        pages: &ResidentPages,
        guard: &Guard,
        mut went: impl FnMut(u32),
    ) -> usize {
        let mut gone = 0;
        // The first round clears the marks of recent use, the second one evicts.
        for _ in 0..2 * self.metas.len() {
            if gone == most || self.resident <= least {
                break;
            }
            self.clock_hand = (self.clock_hand + 1) % self.end_page().max(1);
            let page = self.clock_hand;
            let meta = &self.metas[page as usize];
            if !meta.is_used || meta.is_dirty || meta.is_frozen || meta.is_being_written {
                continue;
            }
            let Some(words) = pages.peek(page, guard) else { continue };
            if let Some(number) = pages.evict(page, guard) {
                self.unlink(page);
                self.metas[page as usize].eviction_id = number;
                self.resident -= 1;
                self.free_lines -= u64::from(free_lines_of(words, &self.shape).count_ones());
                gone += 1;
                went(page);
            }
        }
        gone
    }

    /// Restores an evicted page if a guard still keeps its frame. Returns `None` otherwise.
    pub(crate) fn restore_evicted<'g>(
        &mut self,
        page: u32,
        pages: &'g ResidentPages,
        guard: &'g Guard,
    ) -> Option<&'g [AtomicU64]> {
        if let Some(words) = pages.get(page, guard) {
            return Some(words); // another thread was first
        }
        let number = self.metas.get(page as usize).map_or(0, |meta| meta.eviction_id);
        if number == 0 || !pages.restore_evicted(page, number) {
            return None;
        }
        let words = pages.get(page, guard)?;
        self.add_loaded(page, self.metas[page as usize].kind, words);
        Some(words)
    }

    /// Returns the approximate number of pages that differ from their copy on disk.
    pub(crate) fn dirty_pages(&self) -> u64 {
        (self.dirty.len() + self.frozen.as_ref().map_or(0, |frozen| frozen.pages.len())) as u64
    }

    /// Must be called before a page is changed (I1). Returns the words of the page, which the
    /// caller may use until its change ends. Returns `None` if the page is not in memory.
    pub(crate) fn make_writable<'g>(
        &mut self,
        page: u32,
        pages: &'g ResidentPages,
        guard: &'g Guard,
    ) -> Option<&'g [AtomicU64]> {
        let words = self.restore_evicted(page, pages, guard)?;
        let meta = self.metas.get_mut(page as usize).filter(|meta| meta.is_used)?;
        if meta.is_frozen {
            meta.is_frozen = false;
            let copy = words.iter().map(|word| word.load(Ordering::Relaxed)).collect();
            if let Some(frozen) = &mut self.frozen {
                frozen.copies.insert(page, copy);
            }
        }
        if !meta.is_dirty {
            meta.is_dirty = true;
            self.dirty.push(page);
        }
        pages.set_writable(page, true);
        Some(words)
    }

    /// Adds a page. Returns `None` if the maximum number of pages is reached.
    fn add_page(&mut self, kind: PageKind, pages: &ResidentPages) -> Option<u32> {
        let page = match self.unused_pages.pop() {
            Some(page) => page,
            None => {
                let page = u32::try_from(self.metas.len()).ok().filter(|page| *page < MAX_PAGES)?;
                self.metas.push(UNUSED);
                page
            }
        };
        let fresh = pages.new_page();
        for (word, value) in fresh.words().iter().zip([1, kind.head(page)]) {
            word.store(value, Ordering::Relaxed);
        }
        pages.put(page, fresh);
        let meta = &mut self.metas[page as usize];
        assert!(!meta.is_used, "heap (I2): a page number is reused only after its page was freed");
        (meta.is_used, meta.kind, meta.eviction_id) = (true, kind, 0);
        self.resident += 1;
        self.free_lines += self.shape.page_lines as u64 - 1;
        Some(page)
    }

    /// Returns a page with a free run of at least `lines` lines: the one with the shortest such
    /// run.
    fn with_run(&self, kind: PageKind, lines: usize) -> Option<u32> {
        self.free_run_lists[kind as usize].iter().skip(lines).copied().find(|first| *first != NO_PAGE)
    }

    /// Returns whether pages have many free lines but no run that is long enough for the largest
    /// list.
    pub(crate) fn is_fragmented(&self) -> bool {
        self.free_lines * FRAGMENTED_DIVISOR > self.resident * self.shape.page_lines as u64
            && self.with_run(PageKind::Lists, self.shape.max_lines()).is_none()
    }

    /// Returns a page of lists that has enough free lines for the largest list, but in several
    /// runs. Returns `None` if the heap is not fragmented.
    pub(crate) fn choose_page_to_compact(&mut self, pages: &ResidentPages, guard: &Guard) -> Option<u32> {
        if !self.is_fragmented() {
            return None;
        }
        for _ in 0..COMPACT_CANDIDATES {
            self.compact_hand = (self.compact_hand + 1) % self.end_page().max(1);
            let meta = &self.metas[self.compact_hand as usize];
            if !meta.is_used || meta.kind != PageKind::Lists {
                continue;
            }
            let free =
                pages.peek(self.compact_hand, guard).map_or(0, |words| free_lines_of(words, &self.shape));
            if free.count_ones() as usize > self.shape.max_lines() {
                return Some(self.compact_hand);
            }
        }
        None
    }

    /// Allocates a run of `lines` lines. Returns its page and first line, and the words of the
    /// page.
    pub(crate) fn allocate<'g>(
        &mut self,
        kind: PageKind,
        lines: usize,
        pages: &'g ResidentPages,
        guard: &'g Guard,
    ) -> Option<((u32, usize), &'g [AtomicU64])> {
        let page = match self.with_run(kind, lines) {
            Some(page) => page,
            None => self.add_page(kind, pages)?,
        };
        let words = self.make_writable(page, pages, guard)?;
        let line = first_run(free_lines_of(words, &self.shape), lines)?;
        self.set_used(page, words, run_mask(line, lines), true);
        Some(((page, line), words))
    }

    /// Allocates the lines behind a run if they are free. The page must be writable.
    pub(crate) fn extend(
        &mut self,
        page: u32,
        words: &[AtomicU64],
        line: usize,
        lines: usize,
        to: usize,
    ) -> bool {
        if line + to > self.shape.page_lines {
            return false;
        }
        let more = run_mask(line + lines, to - lines);
        let is_free = free_lines_of(words, &self.shape) & more == more;
        if is_free {
            self.set_used(page, words, more, true);
        }
        is_free
    }

    /// Frees lines, and the page if it was their last one.
    pub(crate) fn free(
        &mut self,
        page: u32,
        line: usize,
        lines: usize,
        pages: &ResidentPages,
        guard: &Guard,
    ) {
        let Some(words) = self.make_writable(page, pages, guard) else { return };
        self.set_used(page, words, run_mask(line, lines), false);
        if words[0].load(Ordering::Relaxed) == 1 {
            self.unlink(page);
            self.resident -= 1;
            self.free_lines -= self.shape.page_lines as u64 - 1;
            let meta = &mut self.metas[page as usize];
            (meta.is_used, meta.is_dirty) = (false, false);
            self.freed_pages.push(page);
            self.unused_pages.push(page);
            pages.remove(page, guard);
        }
    }

    /// Allocates the lines that a run needs to start further in front in its page. The run's own
    /// lines count as free. Returns the new first line and the words of the page, or `None` if
    /// there is no such place. The run keeps its present lines until the caller frees them.
    pub(crate) fn allocate_before<'g>(
        &mut self,
        page: u32,
        line: usize,
        lines: usize,
        pages: &'g ResidentPages,
        guard: &'g Guard,
    ) -> Option<(usize, &'g [AtomicU64])> {
        let own = run_mask(line, lines);
        let free = free_lines_of(pages.peek(page, guard)?, &self.shape) | own;
        let to = first_run(free, lines).filter(|first| *first < line)?;
        let words = self.make_writable(page, pages, guard)?;
        self.set_used(page, words, run_mask(to, lines) & !own, true);
        Some((to, words))
    }

    fn set_used(&mut self, page: u32, words: &[AtomicU64], mask: u64, is_used: bool) {
        let lines = u64::from(mask.count_ones());
        let used = words[0].load(Ordering::Relaxed);
        if is_used {
            words[0].store(used | mask, Ordering::Relaxed);
            self.free_lines -= lines;
        } else {
            words[0].store(used & !mask, Ordering::Relaxed);
            self.free_lines += lines;
        }
        self.relink(page, free_lines_of(words, &self.shape));
    }

    // Checkpoints.

    /// Freezes the dirty pages and adds them to `frozen`. No change may be in progress.
    pub(crate) fn freeze(&mut self, frozen: FrozenTrie, pages: &ResidentPages) {
        if self.frozen.is_some() {
            return;
        }
        let mut dirty = std::mem::take(&mut self.dirty);
        // A page that was freed and reused is listed twice. It is no longer dirty the second time.
        dirty.retain(|page| {
            let meta = &mut self.metas[*page as usize];
            let counts = meta.is_used && meta.is_dirty;
            (meta.is_frozen, meta.is_dirty) = (meta.is_frozen || counts, false);
            pages.set_writable(*page, false);
            counts
        });
        dirty.sort_unstable_by(|a, b| b.cmp(a));
        self.frozen = Some(FrozenTrie {
            pages: dirty,
            freed: std::mem::take(&mut self.freed_pages),
            page_count: u32::try_from(self.metas.len()).unwrap_or(NO_PAGE),
            ..frozen
        });
    }

    /// Returns the frozen content of a page, to be written.
    pub(crate) fn thaw(&mut self, page: u32, pages: &ResidentPages, guard: &Guard) -> Option<Box<[u64]>> {
        if let Some(copy) = self.frozen.as_mut()?.copies.remove(&page) {
            return Some(copy);
        }
        let words = pages.peek(page, guard)?;
        assert!(pages.get_writable(page, guard).is_none(), "heap (I4): a frozen page is not writable");
        let meta = &mut self.metas[page as usize];
        assert!(meta.is_frozen, "heap (I1): a page without a copy is unchanged since the freeze");
        (meta.is_frozen, meta.is_being_written) = (false, true);
        Some(words.iter().map(|word| word.load(Ordering::Relaxed)).collect())
    }

    /// Marks a page as equal to its copy on disk.
    #[cfg(test)]
    pub(crate) fn mark_clean(&mut self, page: u32) {
        self.metas[page as usize].is_frozen = false;
    }

    /// Marks thawed pages as written.
    pub(crate) fn mark_written(&mut self, pages: &[u32]) {
        for page in pages {
            self.metas[*page as usize].is_being_written = false;
        }
    }

    /// Returns a thawed page to the frozen state, after a failed write.
    pub(crate) fn refreeze(&mut self, page: u32, content: Box<[u64]>) {
        if let Some(frozen) = &mut self.frozen {
            frozen.copies.insert(page, content);
            frozen.pages.push(page);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheaf_platform::sync::epoch;

    #[test]
    fn runs_are_found_and_measured() {
        assert_eq!([longest_run(0b1110_1100, 64), longest_run(u64::MAX, 9), longest_run(0, 9)], [3, 9, 0]);
        assert_eq!([first_run(0b1110_1100, 3), first_run(0b1110_1100, 2)], [Some(5), Some(2)]);
        assert_eq!(first_run(0b1110_1100, 4), None);
    }

    /// Returns the frozen state of a trie without a root.
    fn nothing() -> FrozenTrie {
        FrozenTrie::empty(Vec::new())
    }

    #[test]
    fn freed_lines_are_reused() {
        let (pages, mut heap) = (ResidentPages::new(64), PageHeap::new(TrieShape::NORMAL));
        let guard = &epoch::pin();
        let mut taken: Vec<(u32, usize, usize)> = Vec::new();
        for round in 0..2000usize {
            let lines = 1 + round % 5;
            let ((page, line), _) = heap.allocate(PageKind::Lists, lines, &pages, guard).unwrap();
            let overlaps = |(p, l, n): &(u32, usize, usize)| *p == page && line < l + n && *l < line + lines;
            assert!(line > 0 && line + lines <= 64 && !taken.iter().any(overlaps));
            taken.push((page, line, lines));
            if round % 3 == 2 {
                let (page, line, lines) = taken.swap_remove(round * 7919 % taken.len());
                heap.free(page, line, lines, &pages, guard);
            }
        }
        let used: usize = taken.iter().map(|(_, _, lines)| lines).sum();
        assert!(heap.resident * 63 < used as u64 * 11 / 10, "{} pages for {used} lines", heap.resident);
        for (page, line, lines) in taken {
            heap.free(page, line, lines, &pages, guard);
        }
        assert_eq!((heap.resident, heap.free_lines, heap.page_count()), (0, 0, 0));
    }

    #[test]
    fn a_frozen_page_is_written_unchanged() {
        let (pages, mut heap) = (ResidentPages::new(64), PageHeap::new(TrieShape::NORMAL));
        let guard = &epoch::pin();
        let ((page, line), _) = heap.allocate(PageKind::Lists, 1, &pages, guard).unwrap();
        heap.freeze(nothing(), &pages);
        let then = pages.get(page, guard).unwrap()[0].load(Ordering::Relaxed);
        heap.free(page, line, 1, &pages, guard); // frees the page too
        let ((again, _), _) = heap.allocate(PageKind::Lists, 2, &pages, guard).unwrap();
        assert_eq!((again, heap.frozen.as_ref().unwrap().pages.clone()), (page, vec![page]));
        assert_eq!(heap.thaw(page, &pages, guard).unwrap()[0], then);
        heap.frozen = None;
        heap.freeze(nothing(), &pages);
        assert_eq!(heap.frozen.as_ref().unwrap().pages, [page]);
        assert_ne!(heap.thaw(page, &pages, guard).unwrap()[0], then);
    }

    #[test]
    fn a_page_is_writable_while_it_is_dirty_and_not_frozen() {
        let (pages, mut heap) = (ResidentPages::new(64), PageHeap::new(TrieShape::NORMAL));
        let guard = &epoch::pin();
        let ((page, line), _) = heap.allocate(PageKind::Lists, 1, &pages, guard).unwrap();
        let is_open = || pages.get_writable(page, guard).is_some();
        assert!(is_open() && pages.get(page, guard).is_some());
        heap.freeze(nothing(), &pages);
        assert!(!is_open());
        heap.thaw(page, &pages, guard).unwrap();
        assert!(!is_open());
        heap.make_writable(page, &pages, guard).unwrap();
        assert!(is_open(), "it was changed while it was written");
        heap.mark_written(&[page]);
        heap.frozen = None;
        heap.freeze(nothing(), &pages);
        heap.make_writable(page, &pages, guard).unwrap();
        assert!(is_open() && heap.frozen.as_ref().unwrap().copies.contains_key(&page));
        heap.free(page, line, 1, &pages, guard);
        assert!(!is_open() && heap.make_writable(page, &pages, guard).is_none());
    }

    #[test]
    fn a_moved_run_keeps_its_old_lines_until_they_are_freed() {
        let (pages, mut heap) = (ResidentPages::new(64), PageHeap::new(TrieShape::NORMAL));
        let guard = &epoch::pin();
        let [first, run, last] =
            [2, 3, 1].map(|lines| heap.allocate(PageKind::Lists, lines, &pages, guard).unwrap().0);
        assert_eq!([first.1, run.1, last.1], [1, 3, 6]);
        heap.free(first.0, first.1, 2, &pages, guard);
        let (to, words) = heap.allocate_before(run.0, run.1, 3, &pages, guard).unwrap();
        let used = || words[0].load(Ordering::Relaxed);
        assert_eq!((to, used()), (1, 0b111_1111));
        heap.free(run.0, to + 3, 2, &pages, guard);
        assert_eq!(used(), 0b100_1111);
        assert!(heap.allocate_before(run.0, to, 3, &pages, guard).is_none());
        assert_eq!(heap.free_lines, 63 - 4);
    }
}
