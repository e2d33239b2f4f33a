//! # Hoard: values of changes to come, read in the order in which the journal has them
//!
//! Changes are moved in the order of keys; their frames stand in the order of commits, about six of
//! a page. Where memory has lost the journal each is a wait for the device, and its page is gone
//! again when the next of its frames is due. So, if a look at some of them says that they are not
//! in memory, the journal is read in its own order, and the values of as many changes as there is
//! room for are kept.
//!
//! ## Picture
//!
//! ```text
//!   frozen memtable   a ── b ── c ── d ── e ── f ── ...          the next changes, of which the first n are hoarded
//!   journal           [..c....a.] [.......e.] [b.....d..]        asked for window by window, as far as they have frames of those
//!   hoard             c a e b d                                  by address: who moves a change finds its value here
//! ```
//!
//! ## Costs
//!
//! A part of the budget: 16 bytes a change, and its value. A window takes the device about as long
//! as a page does, so that one with a single frame loses nothing. What the hoard lacks is read
//! where it stands.

use std::ops::Bound;

use sheaf_base::engine_context::EngineContext;
use sheaf_base::memory::MemoryPart;
use sheaf_base::memtable::{ArenaOffset, Memtable, VersionWord};
use sheaf_base::record::RecordContent;
use sheaf_base::segment::Address;
use sheaf_base::sync::atomic::AtomicU64;
use sheaf_base::sync::epoch::Guard;

/// It may take this part of the budget, ...
const BUDGET_DIVISOR: u64 = 16;
/// ... and so many bytes in tests of small geometries, where all is hoarded.
const TINY_BYTES: u64 = 2 << 10;
/// So many bytes of a segment are asked for at a time, ...
const READ_WINDOW: u64 = 128 << 10;
/// ... so many windows before they are read.
const WINDOWS_AHEAD: usize = 8;
/// Frames that are looked for in memory: if one of them is missing, as many are that a wait for
/// each takes longer than all this.
const CACHE_PROBES: usize = 16;
/// Records whose places are fetched at a time.
const RECORD_BATCH: usize = 256;

/// The word of a version, and where its value begins.
type PrefetchedValue = (u64, usize);

/// Values of changes, until they are moved. Its memory is kept as long as memtables are not in
/// memory, since what is taken and freed again and again stays with the allocator, in many places.
#[derive(Debug, Default)]
pub(crate) struct ValuePrefetch {
    /// In the order of words.
    items: Vec<PrefetchedValue>,
    bytes: Vec<u8>,
    /// The last key of those changes; none if it has those of all that are left.
    last_key: Option<Vec<u8>>,
    /// Bytes that the budget knows of.
    accounted_bytes: AtomicU64,
}

impl ValuePrefetch {
    /// The value of a version, if it is here.
    pub(crate) fn value(&self, word: VersionWord) -> Option<&[u8]> {
        let at = self.items.binary_search_by_key(&word.bits(), |item| item.0).ok()?;
        let end = self.items.get(at + 1).map_or(self.bytes.len(), |next| next.1);
        self.bytes.get(self.items[at].1..end)
    }

    /// The changes it has values of are moved.
    pub(crate) fn clear(&mut self) {
        self.items.clear();
        self.bytes.clear();
        self.last_key = None;
    }

    /// Lets go of its memory.
    pub(crate) fn free_memory(&mut self, context: &EngineContext) {
        (self.items, self.bytes, self.last_key) = Default::default();
        self.account(context);
    }

    fn account(&self, context: &EngineContext) {
        let bytes = self.bytes.capacity() + self.items.capacity() * size_of::<PrefetchedValue>();
        context.memory.update_held(MemoryPart::Buffers, &self.accounted_bytes, bytes as u64);
    }

    /// Before the changes of `places`, the next ones of `memtable`, are moved: if they are behind
    /// those that were hoarded, and memory does not have them, they and those behind them are.
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

    /// Takes down up to `most` changes from `first` on.
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
                self.last_key = Some(last.to_vec());
                return;
            }
        }
    }

    /// Reads their values in the order in which they stand in the journal, as far as there is room.
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
            // Damage is told by who moves the change.
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

/// Whether memory lacks what `places` name, as far as some of them say.
fn is_uncached(memtable: &Memtable, places: &[ArenaOffset], context: &EngineContext, guard: &Guard) -> bool {
    let some = places.iter().step_by(places.len().div_ceil(CACHE_PROBES).max(1));
    let mut addresses = some.filter_map(|place| memtable.entry(*place).newest().word.address());
    context.tiny || addresses.any(|address| !context.segments.is_cached(address, guard))
}
