//! # Value prefetch: values of future changes, read in the order of the journal
//!
//! Changes are flushed in key order, but their frames are in the order of commits. If the journal
//! is not in the page cache, each frame costs a wait for the device. The page of the frame may be
//! evicted before another frame on that page is needed. If a frame of a sample is not cached, this
//! module reads *windows* of 128 KiB in the order of the journal. The values of as many changes as
//! there is room for stay in memory.
//!
//! ## Picture
//!
//! ```text
//!   frozen memtable   a ── b ── c ── d ── e ── f ── ...   the next changes; the first n are chosen
//!   journal           [..c....a.] [.......e.] [b.....d..] windows with their frames are requested
//!   values            c a e b d                           by address, until the change is flushed
//! ```
//!
//! ## Costs
//!
//! A part of the budget: 16 bytes per change, and its value. A device reads a window in about the
//! time of a page, so a window that contains a single frame costs nothing extra. A value that was
//! not prefetched is read from its frame.

use std::ops::Bound;

use sheaf_engine::context::EngineContext;
use sheaf_engine::memtable::{ArenaOffset, Memtable, VersionWord};
use sheaf_log::record::RecordContent;
use sheaf_log::segment::Address;
use sheaf_platform::memory::MemoryPart;
use sheaf_platform::sync::atomic::AtomicU64;
use sheaf_platform::sync::epoch::Guard;

/// Divisor of the budget that gives the memory for values.
const BUDGET_DIVISOR: u64 = 16;
/// Memory for values in tests of small geometries, which prefetch always.
const TINY_BYTES: u64 = 2 << 10;
/// Bytes of a segment that are requested at a time.
const READ_WINDOW: u64 = 128 << 10;
/// Number of windows that are requested before they are read.
const WINDOWS_AHEAD: usize = 8;
/// Number of frames that are checked for being cached. If one of them is missing, so many are that
/// waiting for each takes longer than a prefetch.
const CACHE_PROBES: usize = 16;
/// Number of records that are looked up at a time.
const RECORD_BATCH: usize = 256;

/// The word of a version, and the offset of its value.
type PrefetchedValue = (u64, usize);

/// Values of changes until they are flushed. The memory is kept while the journal is uncached,
/// because repeated allocation and freeing would fragment the allocator.
#[derive(Debug, Default)]
pub(crate) struct ValuePrefetch {
    /// Sorted by word.
    items: Vec<PrefetchedValue>,
    bytes: Vec<u8>,
    /// Last key of those changes; `None` if they include all that are left.
    last_key: Option<Box<[u8]>>,
    /// Bytes that the budget counts.
    accounted_bytes: AtomicU64,
}

impl ValuePrefetch {
    /// Returns the value of a version if it was prefetched.
    pub(crate) fn value(&self, word: VersionWord) -> Option<&[u8]> {
        let at = self.items.binary_search_by_key(&word.bits(), |item| item.0).ok()?;
        let end = self.items.get(at + 1).map_or(self.bytes.len(), |next| next.1);
        self.bytes.get(self.items[at].1..end)
    }

    /// Drops the values after their changes were flushed.
    pub(crate) fn clear(&mut self) {
        self.items.clear();
        self.bytes.clear();
        self.last_key = None;
    }

    /// Frees all memory.
    pub(crate) fn free_memory(&mut self, context: &EngineContext) {
        (self.items, self.bytes, self.last_key) = Default::default();
        self.account(context);
    }

    fn account(&self, context: &EngineContext) {
        let bytes = self.bytes.capacity() + self.items.capacity() * size_of::<PrefetchedValue>();
        context.memory.update_held(MemoryPart::Buffers, &self.accounted_bytes, bytes as u64);
    }

    /// Prefetches values before `places`, the next changes of `memtable`, are flushed. Does so only
    /// if they are behind the changes prefetched before and their frames are not cached.
    pub(crate) fn prefetch_if_uncached(
        &mut self,
        memtable: &Memtable,
        places: &[ArenaOffset],
        context: &EngineContext,
        guard: &Guard,
    ) {
        let Some(first) = places.first().map(|place| memtable.entry(*place).key()) else { return };
        if !self.items.is_empty() && self.last_key.as_ref().is_none_or(|last_key| first <= &last_key[..]) {
            return;
        }
        let address = places.iter().find_map(|place| memtable.entry(*place).newest().word.address());
        let segment = address.and_then(|address| context.segments.at(address.slot(), guard));
        let Some(segment) = segment.filter(|_| is_uncached(memtable, places, context, guard)) else {
            self.free_memory(context);
            return;
        };
        let room = if context.tiny { TINY_BYTES } else { context.memory.budget() / BUDGET_DIVISOR };
        let each = segment.mean_frame() + size_of::<PrefetchedValue>() as u64;
        let most = usize::try_from(room / each).unwrap_or(usize::MAX);
        let room =
            usize::try_from(room).unwrap_or(usize::MAX).saturating_sub(most * size_of::<PrefetchedValue>());
        self.clear();
        self.items.reserve_exact(most);
        self.bytes.reserve_exact(room);
        self.account(context);
        self.select_records(memtable, first, most, guard);
        self.read(memtable, room, context, guard);
    }

    /// Selects up to `most` changes from `first` on.
    fn select_records(&mut self, memtable: &Memtable, first: &[u8], most: usize, guard: &Guard) {
        let (mut places, mut low): (Vec<ArenaOffset>, _) =
            (Vec::with_capacity(RECORD_BATCH), Bound::Included(first));
        loop {
            places.clear();
            memtable.ascend(low, RECORD_BATCH.min(most - self.items.len()), guard, &mut places);
            let Some(last) = places.last() else {
                self.last_key = None;
                return;
            };
            let last = memtable.entry(*last).key();
            low = Bound::Excluded(last);
            let words = places.iter().map(|place| memtable.entry(*place).newest().word);
            let framed = words.filter(|word| !word.is_blob() && word.address().is_some());
            self.items.extend(framed.map(|word| (word.bits(), 0)));
            if self.items.len() >= most {
                self.last_key = Some(last.into());
                return;
            }
        }
    }

    /// Reads the selected values in the order of the journal, as far as there is room.
    fn read(&mut self, memtable: &Memtable, room: usize, context: &EngineContext, guard: &Guard) {
        self.items.sort_unstable_by_key(|item| item.0);
        let window = |item: &PrefetchedValue| {
            let address = Address::from_bits(item.0);
            (address.slot(), address.offset() / READ_WINDOW)
        };
        let (mut asked, mut windows, mut read, mut kept) = (0, 0, 0, 0);
        let mut last = None;
        for at in 0..self.items.len() {
            let item = self.items[at];
            if last.replace(window(&item)) != Some(window(&item)) {
                read += 1;
            }
            while windows < read + WINDOWS_AHEAD && asked < self.items.len() {
                let (slot, number) = window(&self.items[asked]);
                if let Some(segment) = context.segments.at(slot, guard) {
                    segment.file().will_need(number * READ_WINDOW, READ_WINDOW);
                }
                windows += 1;
                asked += self.items[asked..].iter().take_while(|item| window(item) == (slot, number)).count();
            }
            let start = self.bytes.len();
            // The flush step reports damage when it reads the change.
            let _ = memtable.content(VersionWord::from_bits(item.0), context, guard, |content| {
                if let RecordContent::Put(value) = content
                    && start + value.len() <= room
                {
                    self.bytes.extend_from_slice(value);
                    self.items[kept] = (item.0, start);
                    kept += 1;
                }
                Ok(())
            });
        }
        self.items.truncate(kept);
    }
}

/// Whether the frames of `places` are not cached, as far as a sample tells.
fn is_uncached(memtable: &Memtable, places: &[ArenaOffset], context: &EngineContext, guard: &Guard) -> bool {
    let some = places.iter().step_by(places.len().div_ceil(CACHE_PROBES).max(1));
    let mut addresses = some.filter_map(|place| memtable.entry(*place).newest().word.address());
    context.tiny || addresses.any(|address| !context.segments.is_cached(address, guard))
}
