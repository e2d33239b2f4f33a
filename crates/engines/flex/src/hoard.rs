//! # Hoard: values of changes to come, read in the order in which the journal has them
//!
//! Changes are moved in the order of keys; their frames stand in the order of commits, about six of a page. Where memory has lost the
//! journal each is a wait for the device, and its page is gone again when the next of its frames is due. So, if a look at some of them
//! says that they are not in memory, the journal is read in its own order, and the values of as many changes as there is room for are kept.
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
//! A part of the budget: 16 bytes a change, and its value. A window takes the device about as long as a page does, so that one with a single
//! frame loses nothing. What the hoard lacks is read where it stands.

use std::ops::Bound;

use sheaf_base::ground::Ground;
use sheaf_base::memory::Part;
use sheaf_base::memtable::{Memtable, Place, Word};
use sheaf_base::record::Content;
use sheaf_base::segment::Address;
use sheaf_base::sync::atomic::AtomicU64;
use sheaf_base::sync::epoch::Guard;

/// It may take this part of the budget, ...
const SHARE: u64 = 16;
/// ... and so many bytes in tests of small geometries, where all is hoarded.
const TINY: u64 = 2 << 10;
/// So many bytes of a segment are asked for at a time, ...
const WINDOW: u64 = 128 << 10;
/// ... so many windows before they are read.
const AHEAD: usize = 8;
/// Frames that are looked for in memory: if one of them is missing, as many are that a wait for each takes longer than all this.
const LOOKS: usize = 16;
/// Records whose places are fetched at a time.
const STEP: usize = 256;

/// The word of a version, and where its value begins.
type Item = (u64, usize);

/// Values of changes, until they are moved. Its memory is kept as long as memtables are not in memory, since what is taken and freed again and again
/// stays with the allocator, in many places.
#[derive(Debug, Default)]
pub(crate) struct Hoard {
    /// In the order of words.
    items: Vec<Item>,
    bytes: Vec<u8>,
    /// The last key of those changes; none if it has those of all that are left.
    through: Option<Vec<u8>>,
    /// Bytes that the budget knows of.
    held: AtomicU64,
}

impl Hoard {
    /// The value of a version, if it is here.
    pub(crate) fn value(&self, word: Word) -> Option<&[u8]> {
        let at = self.items.binary_search_by_key(&word.bits(), |item| item.0).ok()?;
        let end = self.items.get(at + 1).map_or(self.bytes.len(), |next| next.1);
        self.bytes.get(self.items[at].1..end)
    }

    /// The changes it has values of are moved.
    pub(crate) fn clear(&mut self) {
        self.items.clear();
        self.bytes.clear();
        self.through = None;
    }

    /// Lets go of its memory.
    pub(crate) fn give_back(&mut self, ground: &Ground) {
        (self.items, self.bytes, self.through) = Default::default();
        self.account(ground);
    }

    fn account(&self, ground: &Ground) {
        let bytes = self.bytes.capacity() + self.items.capacity() * size_of::<Item>();
        ground.memory.settle(Part::Buffers, &self.held, bytes as u64);
    }

    /// Before the changes of `places`, the next ones of `memtable`, are moved: if they are behind those that were hoarded, and memory
    /// does not have them, they and those behind them are.
    pub(crate) fn look_ahead(
        &mut self,
        memtable: &Memtable,
        places: &[Place],
        ground: &Ground,
        guard: &Guard,
    ) {
        let Some(first) = places.first().map(|place| memtable.entry(*place).key()) else { return };
        if !self.items.is_empty() && self.through.as_ref().is_none_or(|through| first <= &through[..]) {
            return;
        }
        let address = places.iter().find_map(|place| memtable.entry(*place).newest().word.address());
        let segment = address.and_then(|address| ground.segments.at(address.slot(), guard));
        let Some(segment) = segment.filter(|_| is_absent(memtable, places, ground, guard)) else {
            self.give_back(ground);
            return;
        };
        let room = if ground.tiny { TINY } else { ground.memory.budget() / SHARE };
        let each = segment.mean_frame() + size_of::<Item>() as u64;
        let most = usize::try_from(room / each).unwrap_or(usize::MAX);
        let room = usize::try_from(room).unwrap_or(usize::MAX).saturating_sub(most * size_of::<Item>());
        self.clear();
        self.items.reserve_exact(most);
        self.bytes.reserve_exact(room);
        self.account(ground);
        self.choose(memtable, first, most, guard);
        self.read(memtable, room, ground, guard);
    }

    /// Takes down up to `most` changes from `first` on.
    fn choose(&mut self, memtable: &Memtable, first: &[u8], most: usize, guard: &Guard) {
        let (mut places, mut low): (Vec<Place>, _) = (Vec::with_capacity(STEP), Bound::Included(first));
        loop {
            places.clear();
            memtable.ascend(low, STEP.min(most - self.items.len()), guard, &mut places);
            let Some(last) = places.last() else {
                self.through = None;
                return;
            };
            let last = memtable.entry(*last).key();
            low = Bound::Excluded(last);
            let words = places.iter().map(|place| memtable.entry(*place).newest().word);
            let framed = words.filter(|word| !word.is_staged() && word.address().is_some());
            self.items.extend(framed.map(|word| (word.bits(), 0)));
            if self.items.len() >= most {
                self.through = Some(last.to_vec());
                return;
            }
        }
    }

    /// Reads their values in the order in which they stand in the journal, as far as there is room.
    fn read(&mut self, memtable: &Memtable, room: usize, ground: &Ground, guard: &Guard) {
        self.items.sort_unstable_by_key(|item| item.0);
        let window = |item: &Item| {
            let address = Address::from_bits(item.0);
            (address.slot(), address.offset() / WINDOW)
        };
        let (mut asked, mut windows, mut read, mut kept) = (0, 0, 0, 0);
        let mut last = None;
        for at in 0..self.items.len() {
            let item = self.items[at];
            if last.replace(window(&item)) != Some(window(&item)) {
                read += 1;
            }
            while windows < read + AHEAD && asked < self.items.len() {
                let (slot, number) = window(&self.items[asked]);
                if let Some(segment) = ground.segments.at(slot, guard) {
                    segment.file().will_need(number * WINDOW, WINDOW);
                }
                windows += 1;
                asked += self.items[asked..].iter().take_while(|item| window(item) == (slot, number)).count();
            }
            let start = self.bytes.len();
            // Damage is told by who moves the change.
            let _ = memtable.content(Word::from_bits(item.0), ground, guard, |content| {
                if let Content::Put(value) = content
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
fn is_absent(memtable: &Memtable, places: &[Place], ground: &Ground, guard: &Guard) -> bool {
    let some = places.iter().step_by(places.len().div_ceil(LOOKS).max(1));
    let mut addresses = some.filter_map(|place| memtable.entry(*place).newest().word.address());
    ground.tiny || addresses.any(|address| !ground.segments.is_cached(address, guard))
}
