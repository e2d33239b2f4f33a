//! # Leaf: up to sixty keys and the addresses of their entries
//!
//! ## Picture
//!
//! ```text
//!  | counts, prefix, suffixes | slot 0 | slot 1 | ... sorted ... | unsorted |      16 cache lines
//!                               head 8, word 8: [position of the suffix | length | address 40]
//! ```
//!
//! ## Invariants
//!
//! 1. The head of a slot and its word, except for the address, never change once `slot_counts`
//!    counts the slot. The address is stored atomically. The address `NONE` marks a removed key,
//!    which may be restored.
//! 2. `slot_counts` has the number of slots and the number of sorted slots. Both only grow. New
//!    keys are appended; a key above all others in a sorted leaf extends the sorted part. Readers
//!    therefore need no lock, no version and no second check.
//! 3. The key range of a leaf never changes. All its keys begin with its prefix, which is the
//!    common prefix of both ends of the range. A full leaf is replaced by others.
//! 4. Keys are added and removed under the latch of the leaf. The owner of a key exchanges its
//!    address without the latch, if the key stays. A leaf is *closed* under its latch before it is
//!    copied, and stays latched until the copies have replaced it. A writer reads the flag after
//!    its exchange. If the leaf is closed, the copy may lack the address, and the writer repeats
//!    the exchange there. The exchange, the read of the flag, the close and the loads of the copy
//!    are in one total order.

use std::cmp::Ordering as Order;

use sheaf_log::segment::Address;
use sheaf_platform::memory::prefetch;
use sheaf_platform::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};
use sheaf_platform::sync::{Mutex, MutexGuard};

use super::key_encoding::{
    NODE_BITS_MASK, NodePrefix, SearchKey, append_key, has_suffix, suffix_pos, suffix_words, suffix_words_of,
    with_suffix_pos,
};
use super::key_list::KeyList;
use super::leaf_alloc::LeafBox;

/// Number of slots of a leaf. With the fields before them they take 1024 bytes.
pub(super) const SLOTS: usize = 60;
const COUNT_MASK: u16 = 0xff;
const SORTED_SHIFT: u32 = 8;
// Bits of `flags`:
/// Number of removed keys.
const REMOVED_MASK: u8 = 0x3f;
const CLOSED: u8 = 0x40;
/// Flag of a leaf in a chunk of `leaf_alloc`.
const IN_CHUNK: u8 = 0x80;

const _: () = assert!(SLOTS <= REMOVED_MASK as usize);
/// Number of cache lines that hold the head of a leaf and its first slots.
const PREFETCH_LINES: usize = 12;

#[derive(Debug, Default)]
struct LeafSlot {
    head: AtomicU64,
    word: AtomicU64,
}

/// Maximum number of slots, and of unsorted slots among them.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeafLimits {
    pub(super) slots: usize,
    pub(super) max_unsorted: usize,
}

/// Leaf of the tree.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct Leaf {
    slot_counts: AtomicU16,
    /// Written under the latch.
    flags: AtomicU8,
    latch: Mutex<()>,
    /// Words of suffixes in use. Written under the latch.
    suffix_words_used: AtomicU32,
    prefix: NodePrefix,
    suffixes: Box<[AtomicU64]>,
    slots: [LeafSlot; SLOTS],
}

#[cfg(not(shuttle))]
const _: () = assert!(size_of::<Leaf>() == 1024 || size_of::<usize>() != 8);

/// All slots in the order of their positions.
#[allow(clippy::cast_possible_truncation)] // there are few slots
const IDENTITY_ORDER: [u8; SLOTS] = {
    let (mut slots, mut at) = ([0; SLOTS], 0);
    while at < SLOTS {
        slots[at] = at as u8;
        at += 1;
    }
    slots
};

/// Slots of a leaf in the order of their keys.
pub(super) struct SortedSlots {
    slots: [u8; SLOTS],
    count: usize,
}

impl SortedSlots {
    pub(super) fn slots(&self) -> &[u8] {
        &self.slots[..self.count]
    }
}

/// Returns the number of spare words for suffixes of new keys: the mean of the present keys,
/// rounded up, plus one, for each of `fresh` keys.
fn suffix_headroom(used: usize, keys: usize, fresh: usize) -> usize {
    if used == 0 { 0 } else { (used.div_ceil(keys.max(1)) + 1) * fresh }
}

impl Leaf {
    /// Returns a leaf with the keys `from..to` of `list`, which begin with `prefix`. The leaf is in
    /// a chunk if the index is `large`.
    pub(super) fn from_list(
        list: &KeyList<Address>,
        (from, to): (usize, usize),
        prefix: &[u8],
        limits: LeafLimits,
        large: bool,
    ) -> LeafBox {
        debug_assert!(to - from <= limits.slots);
        let used: usize = (from..to).map(|i| suffix_words(list.key(i).len() - prefix.len())).sum();
        let room = used + suffix_headroom(used, to - from, limits.max_unsorted);
        let leaf = LeafBox::new(Leaf::empty(NodePrefix::new(prefix), room, large));
        for index in from..to {
            debug_assert!(
                list.key(index).starts_with(prefix),
                "leaf (I3): the keys of a leaf begin with its prefix"
            );
            leaf.write_slot(index - from, SearchKey::new(list.key(index), prefix.len()), list.item(index));
        }
        leaf.set_sorted_count(to - from);
        leaf
    }

    pub(super) fn empty(prefix: NodePrefix, rests: usize, large: bool) -> Leaf {
        Leaf {
            slot_counts: AtomicU16::new(0),
            flags: AtomicU8::new(if large { IN_CHUNK } else { 0 }),
            latch: Mutex::new(()),
            suffix_words_used: AtomicU32::new(0),
            prefix,
            suffixes: (0..rests).map(|_| AtomicU64::new(0)).collect(),
            slots: std::array::from_fn(|_| LeafSlot::default()),
        }
    }

    /// Returns true if the leaf is in a chunk.
    pub(super) fn is_in_chunk(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & IN_CHUNK != 0
    }

    /// Takes the latch. Returns `None` if the leaf was replaced: the tree then has another one.
    pub(super) fn latch(&self) -> Option<MutexGuard<'_, ()>> {
        let latch = self.latch.lock();
        (self.flags.load(Ordering::Relaxed) & CLOSED == 0).then_some(latch)
    }

    /// Takes the latch if no other thread holds it. The leaf must be in the tree, and the caller
    /// holds the lock of the tree.
    pub(super) fn try_latch(&self) -> Option<MutexGuard<'_, ()>> {
        let latch = self.latch.try_lock()?;
        let is_open = self.flags.load(Ordering::Relaxed) & CLOSED == 0;
        assert!(is_open, "leaf (I4): a closed leaf stays latched");
        Some(latch)
    }

    /// Marks the leaf as about to be copied (I4). The caller holds the latch until the copies have
    /// replaced the leaf.
    pub(super) fn close(&self) {
        self.flags.store(self.flags.load(Ordering::Relaxed) | CLOSED, Ordering::SeqCst);
        fence(Ordering::SeqCst); // before the addresses are read
    }

    /// Returns true if an exchange that was made before this call will be in all copies of the
    /// leaf. Otherwise waits until the copies have replaced the leaf and returns false.
    pub(super) fn confirm_change(&self) -> bool {
        let is_open = self.flags.load(Ordering::SeqCst) & CLOSED == 0;
        if !is_open {
            drop(self.latch.lock());
        }
        is_open
    }

    /// Returns the number of removed keys.
    fn removed_count(&self) -> u8 {
        self.flags.load(Ordering::Relaxed) & REMOVED_MASK
    }

    fn set_sorted_count(&self, count: usize) {
        self.set_counts(count, count);
    }

    fn set_counts(&self, sorted: usize, count: usize) {
        assert!(sorted <= count && count <= SLOTS, "leaf (I2): the sorted slots are among all slots");
        let byte = |count: usize| u16::from(u8::try_from(count).unwrap_or(u8::MAX));
        self.slot_counts.store(byte(sorted) << SORTED_SHIFT | byte(count), Ordering::Release);
    }

    /// Returns a sorted leaf of the same range, without the removed keys and with `text` added.
    pub(super) fn rebuilt_with(
        &self,
        text: &SearchKey<'_>,
        address: Address,
        limits: LeafLimits,
        large: bool,
    ) -> LeafBox {
        let sorted = self.sorted();
        let words = |slot: u8| {
            let word = self.slots[usize::from(slot)].word.load(Ordering::Relaxed);
            if has_suffix(word) { suffix_words_of(self.suffix_word(suffix_pos(word))) } else { 0 }
        };
        let used = sorted.slots().iter().map(|slot| words(*slot)).sum::<usize>() + suffix_words(text.len);
        let room = suffix_headroom(used, sorted.count + 1, limits.max_unsorted);
        let leaf = LeafBox::new(Leaf::empty(self.prefix.clone(), used + room, large));
        let mut count = 0;
        let mut is_in = false;
        for slot in sorted.slots().iter().map(|slot| usize::from(*slot)) {
            if !is_in && self.compare(slot, text) == Order::Greater {
                leaf.write_slot(count, *text, address);
                (count, is_in) = (count + 1, true);
            }
            if self.address(slot) != Address::NONE {
                leaf.copy_slot(count, self, slot);
                count += 1;
            }
        }
        if !is_in {
            leaf.write_slot(count, *text, address);
            count += 1;
        }
        leaf.set_sorted_count(count);
        leaf
    }

    fn suffix_word(&self, at: usize) -> u64 {
        // Within bounds by I1: a position is stored together with its words.
        self.suffixes.get(at).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    fn allocate_suffix(&self, words: usize) -> usize {
        let place = self.suffix_words_used.load(Ordering::Relaxed);
        self.suffix_words_used.store(place + u32::try_from(words).unwrap_or(u32::MAX), Ordering::Relaxed);
        place as usize
    }

    /// Fills a slot that `slot_counts` does not count yet.
    fn write_slot(&self, slot: usize, text: SearchKey<'_>, address: Address) {
        debug_assert!(slot >= self.counts().1, "leaf (I1): a slot is written before it is counted");
        let place = self.allocate_suffix(suffix_words(text.len));
        let mut at = place;
        text.for_each_suffix_word(|word| {
            self.suffixes[at].store(word, Ordering::Relaxed);
            at += 1;
        });
        self.slots[slot].head.store(text.head, Ordering::Relaxed);
        self.slots[slot].word.store(text.word(place) | address.bits(), Ordering::Relaxed);
    }

    /// Like [`Leaf::write_slot`], but copies a slot of a leaf with the same prefix.
    fn copy_slot(&self, slot: usize, from: &Leaf, other: usize) {
        // Acquire: a reader of the copy sees the record at an address that another thread exchanged
        // in.
        let mut word = from.slots[other].word.load(Ordering::Acquire);
        if has_suffix(word) {
            let at = suffix_pos(word);
            let count = suffix_words_of(from.suffix_word(at));
            let place = self.allocate_suffix(count);
            for index in 0..count {
                self.suffixes[place + index].store(from.suffix_word(at + index), Ordering::Relaxed);
            }
            word = with_suffix_pos(word, place);
        }
        self.slots[slot].head.store(from.slots[other].head.load(Ordering::Relaxed), Ordering::Relaxed);
        self.slots[slot].word.store(word, Ordering::Relaxed);
    }

    /// Returns the number of sorted slots and the number of all slots.
    #[inline]
    fn counts(&self) -> (usize, usize) {
        let slot_counts = self.slot_counts.load(Ordering::Acquire);
        (usize::from(slot_counts >> SORTED_SHIFT), usize::from(slot_counts & COUNT_MASK))
    }

    /// Prefetches the first lines of a leaf.
    #[inline]
    pub(super) fn prefetch(leaf: *const Leaf) {
        prefetch(leaf.cast(), PREFETCH_LINES);
    }

    /// Returns the part of `key` behind the prefix. The key must be in the range of the leaf.
    #[inline]
    pub(super) fn search_key<'k>(&self, key: &'k [u8]) -> SearchKey<'k> {
        SearchKey::new(key, self.prefix.len())
    }

    /// Returns the number of live keys. Without the latch the result is approximate.
    pub(super) fn live_keys(&self) -> usize {
        self.counts().1.saturating_sub(usize::from(self.removed_count()))
    }

    /// Returns true if keys were removed from the leaf.
    pub(super) fn has_removed(&self) -> bool {
        self.removed_count() > 0
    }

    /// Returns the bytes of the leaf in memory.
    pub(super) fn bytes(&self) -> u64 {
        (size_of::<Leaf>() + self.prefix.bytes() + 8 * self.suffixes.len()) as u64
    }

    /// Returns the number of suffix words in use.
    pub(super) fn suffix_words(&self) -> usize {
        self.suffix_words_used.load(Ordering::Relaxed) as usize
    }

    /// Returns true if all keys are in the sorted part, as if each had been appended in order.
    pub(super) fn is_ascending(&self) -> bool {
        let (sorted, count) = self.counts();
        sorted == count
    }

    fn head(&self, slot: usize) -> u64 {
        self.slots[slot].head.load(Ordering::Relaxed)
    }

    /// Compares the key in `slot` with `text`.
    fn compare(&self, slot: usize, text: &SearchKey<'_>) -> Order {
        self.head(slot).cmp(&text.head).then_with(|| self.compare_suffix(slot, text))
    }

    fn compare_suffix(&self, slot: usize, text: &SearchKey<'_>) -> Order {
        text.compare_suffix(self.slots[slot].word.load(Ordering::Relaxed), |at| self.suffix_word(at))
    }

    /// Returns the first of the sorted slots with a key that is not less than `text`.
    #[inline]
    fn lower_bound(&self, sorted: usize, text: &SearchKey<'_>) -> usize {
        let mut low = first_where(0, sorted, |slot| self.head(slot) >= text.head);
        if low < sorted && self.head(low) == text.head && self.compare_suffix(low, text) == Order::Less {
            let end = first_where(low, sorted, |slot| self.head(slot) > text.head);
            low = first_where(low, end, |slot| self.compare_suffix(slot, text) != Order::Less);
        }
        low
    }

    /// Returns the slot of a key, removed or not.
    #[inline]
    pub(super) fn find(&self, text: &SearchKey<'_>) -> Option<usize> {
        let (sorted, count) = self.counts();
        let slot = self.lower_bound(sorted, text);
        let is_it =
            |slot: &usize| self.head(*slot) == text.head && self.compare_suffix(*slot, text) == Order::Equal;
        Some(slot).filter(|slot| *slot < sorted && is_it(slot)).or_else(|| (sorted..count).find(is_it))
    }

    /// Returns the slot of a key if the leaf has it. Otherwise may return the slot of another key:
    /// if only one key has this head, its suffix is not compared, because that would read another
    /// cache line. The caller compares the key with the entry in the log.
    #[inline]
    pub(super) fn find_likely(&self, text: &SearchKey<'_>) -> Option<usize> {
        let (sorted, count) = self.counts();
        let slot = first_where(0, sorted, |slot| self.head(slot) >= text.head);
        let has_head = |slot: usize| self.head(slot) == text.head;
        let mut all = (sorted..count).filter(|slot| has_head(*slot));
        let found = match (slot < sorted && has_head(slot), all.next()) {
            (true, None) if slot + 1 == sorted || !has_head(slot + 1) => slot,
            (false, None) => return None,
            (false, Some(fresh)) if all.next().is_none() => fresh,
            _ => return self.find(text),
        };
        text.has_len_of(self.slots[found].word.load(Ordering::Relaxed)).then_some(found)
    }

    /// Returns the slot of a key if its entry has the address `address`.
    pub(super) fn find_at(&self, text: &SearchKey<'_>, address: Address) -> Option<usize> {
        let (sorted, count) = self.counts();
        let first = first_where(0, sorted, |slot| self.head(slot) >= text.head);
        let run = (first..sorted).take_while(|slot| self.head(*slot) == text.head);
        let fresh = (sorted..count).filter(|slot| self.head(*slot) == text.head);
        run.chain(fresh).find(|slot| self.address(*slot) == address)
    }

    /// Returns the address of the entry of `slot`.
    #[inline]
    pub(super) fn address(&self, slot: usize) -> Address {
        Address::from_bits(self.slots[slot].word.load(Ordering::Acquire))
    }

    /// Exchanges the address of `slot`. The caller owns the key. Neither address is `NONE`.
    pub(super) fn exchange(&self, slot: usize, address: Address) {
        let word = &self.slots[slot].word;
        word.swap(word.load(Ordering::Relaxed) & !NODE_BITS_MASK | address.bits(), Ordering::SeqCst);
    }

    /// Stores `address` in `slot`; the old or the new address may be `NONE`. The caller owns the
    /// key and holds the latch.
    pub(super) fn set(&self, slot: usize, address: Address) {
        let word = &self.slots[slot].word;
        let before = word.load(Ordering::Relaxed);
        let dead = i8::from(address == Address::NONE) - i8::from(Address::from_bits(before) == Address::NONE);
        self.flags.store(self.flags.load(Ordering::Relaxed).wrapping_add_signed(dead), Ordering::Relaxed);
        word.store(before & !NODE_BITS_MASK | address.bits(), Ordering::Release);
    }

    /// Returns true if a key with `len` bytes behind the prefix fits into this leaf.
    fn has_room(&self, len: usize, limits: LeafLimits) -> bool {
        let (sorted, count) = self.counts();
        count < limits.slots
            && count - sorted < limits.max_unsorted
            && self.suffix_words() + suffix_words(len) <= self.suffixes.len()
    }

    /// Adds a key that the leaf does not have. Returns false if a new leaf is needed. The caller
    /// holds the latch.
    pub(super) fn add(&self, text: &SearchKey<'_>, address: Address, limits: LeafLimits) -> bool {
        if !self.has_room(text.len, limits) {
            return false;
        }
        let (sorted, count) = self.counts();
        let follows = sorted == count && (count == 0 || self.compare(count - 1, text) == Order::Less);
        self.write_slot(count, *text, address);
        self.set_counts(if follows { sorted + 1 } else { sorted }, count + 1);
        true
    }

    /// Returns all slots in the order of their keys.
    pub(super) fn sorted(&self) -> SortedSlots {
        let (sorted, count) = self.counts();
        let mut all = SortedSlots { slots: IDENTITY_ORDER, count: sorted };
        for slot in sorted..count {
            let head = self.head(slot);
            let mut at = all.slots().partition_point(|other| self.head(usize::from(*other)) < head);
            // Few keys share a head.
            let same = &all.slots()[at..];
            if same.first().is_some_and(|other| self.head(usize::from(*other)) == head) {
                at += same
                    .partition_point(|other| self.compare_slots(usize::from(*other), slot) == Order::Less);
            }
            all.slots.copy_within(at..all.count, at + 1);
            all.slots[at] = u8::try_from(slot).unwrap_or(u8::MAX);
            all.count += 1;
        }
        all
    }

    fn compare_slots(&self, a: usize, b: usize) -> Order {
        self.head(a).cmp(&self.head(b)).then_with(|| {
            let mut key = Vec::new();
            self.append_unprefixed_key_to(b, &mut key);
            self.compare_suffix(a, &SearchKey::new(&key, 0))
        })
    }

    fn append_unprefixed_key_to(&self, slot: usize, out: &mut Vec<u8>) {
        append_key(
            self.head(slot),
            self.slots[slot].word.load(Ordering::Relaxed),
            |at| self.suffix_word(at),
            out,
        );
    }

    /// Prefetches the suffix that [`Leaf::append_key_to`] reads.
    pub(super) fn prefetch_suffix(&self, slot: usize) {
        let word = self.slots[slot].word.load(Ordering::Relaxed);
        if has_suffix(word) {
            prefetch(self.suffixes.as_ptr().wrapping_add(suffix_pos(word)).cast(), 1);
        }
    }

    /// Appends the key of `slot` to `out`.
    pub(super) fn append_key_to(&self, slot: usize, out: &mut Vec<u8>) {
        self.prefix.append_to(out);
        self.append_unprefixed_key_to(slot, out);
    }

    /// Appends the live keys from `from` on to `list`, in order.
    pub(super) fn list_from(&self, from: &[u8], list: &mut KeyList<Address>) {
        let sorted = self.sorted();
        let first = self.count_below(&sorted, from, false);
        for slot in sorted.slots()[first..].iter().map(|slot| usize::from(*slot)) {
            let address = self.address(slot);
            if address != Address::NONE {
                list.push_with(address, |bytes| self.append_key_to(slot, bytes));
            }
        }
    }

    /// Appends all live keys and `key`, which the leaf does not have, to `list`. Returns the
    /// position of `key` in the list.
    pub(super) fn list_with(&self, key: &[u8], address: Address, list: &mut KeyList<Address>) -> usize {
        let text = self.search_key(key);
        let mut place = None;
        for slot in self.sorted().slots().iter().map(|slot| usize::from(*slot)) {
            if place.is_none() && self.compare(slot, &text) == Order::Greater {
                place = Some(list.len());
                list.push(key, address);
            }
            let at = self.address(slot);
            if at != Address::NONE {
                list.push_with(at, |bytes| self.append_key_to(slot, bytes));
            }
        }
        place.unwrap_or_else(|| {
            list.push(key, address);
            list.len() - 1
        })
    }

    /// Returns the number of keys in `sorted` that are less than `key`, or at most `key` if
    /// `or_equal`.
    pub(super) fn count_below(&self, sorted: &SortedSlots, key: &[u8], or_equal: bool) -> usize {
        // The limit of a walk may be outside of the range of the leaf.
        match self.prefix.compare(key) {
            Order::Less => return 0,
            Order::Greater => return sorted.count,
            Order::Equal => {}
        }
        let text = self.search_key(key);
        let at = sorted.slots().partition_point(|slot| self.head(usize::from(*slot)) < text.head);
        let rest = &sorted.slots()[at..];
        if rest.first().is_none_or(|slot| self.head(usize::from(*slot)) > text.head) {
            return at;
        }
        at + rest.partition_point(|slot| match self.compare(usize::from(*slot), &text) {
            Order::Less => true,
            Order::Equal => or_equal,
            Order::Greater => false,
        })
    }
}

/// Returns the first of `from..to` for which `wanted` holds; it must hold for all that follow.
#[inline]
fn first_where(from: usize, to: usize, wanted: impl Fn(usize) -> bool) -> usize {
    let (mut from, mut len) = (from, to - from);
    while len > 0 {
        let half = len / 2;
        if wanted(from + half) {
            len = half;
        } else {
            from += half + 1;
            len -= half + 1;
        }
    }
    from
}
