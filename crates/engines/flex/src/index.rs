//! # Index: from keys to intervals
//!
//! The sparse index is the second shift tree beside the space's own (paper, section 5.1): an entry is an interval of the
//! space, its length is the interval's, and its pivot the separator below all its keys. So an interval that grows moves all
//! behind it by one number per level here as there.
//!
//! ## States
//!
//! ```text
//!  State ── active memtable        what commits go to
//!        ── frozen memtable        being moved into the space, if there is one
//!        ── Index ── tree of intervals ─┐ published together: offsets are of this view
//!                 ── view of the space ─┘
//! ```
//!
//! A reader pins the epoch and loads the state: one moment of everything. What is frozen stays in the state until all of
//! it is in the space, so a key is found in one of them, or in both alike.

use std::cmp::Ordering;
use std::ops::{Bound, Deref};
use std::path::PathBuf;
use std::sync::Arc;

use sheaf_base::error::{Damage, Error, Result};
use sheaf_base::ground::Ground;
use sheaf_base::memory::pieces::Row;
use sheaf_base::sync::atomic::{self, AtomicU64};
use sheaf_base::sync::epoch::Guard;
use sheaf_base::types::Seq;
use sheaf_flexspace::View;
use sheaf_flexspace::tree::{Content, Entry, Frozen};
use smallvec::SmallVec;

use crate::block::{Block, BlockRef, Sorted, print_of};
use crate::kept::Look;
use crate::prints::{Prints, Shown};
use crate::run::Pair;
use crate::slots::Slots;
use crate::wait::Wait;
use crate::warm::Warmth;
use sheaf_base::memtable::Memtables;
use sheaf_base::memtable::prefix::{Prefix, Sep};

/// An interval of the space.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interval {
    pub(crate) sep: Sep,
    pub(crate) slot: u32,
}

impl Interval {
    pub(crate) const NONE: Interval = Interval { sep: Sep::LOWEST, slot: 0 };
}

impl Content for Interval {
    type Pivot = Sep;
    fn pivot(&self) -> Sep {
        self.sep
    }
    fn tail(self, _: u64) -> Interval {
        self // intervals are cut out whole, never split
    }
    fn joins(&self, _: u64, _: &Interval) -> bool {
        false
    }
}

/// The sparse index as readers have it.
#[derive(Debug)]
pub(crate) struct Index {
    /// Tells one from all others of the keyspace.
    pub(crate) number: u64,
    pub(crate) prefix: Arc<Prefix>,
    pub(crate) tree: Arc<Frozen<Interval>>,
    pub(crate) view: Option<View>,
    /// Whoever has the index has this: the committer sees when nobody does.
    pub(crate) _token: Arc<()>,
}

/// One moment of a keyspace.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) memtables: Memtables,
    pub(crate) index: Arc<Index>,
    /// How often the active memtable was given what had been frozen: then it has versions that are older than what was looked up in
    /// it before.
    pub(crate) joined: u64,
}

/// A block that stays for as long as it is looked at.
pub(crate) enum Held<'g> {
    /// In its slot, or on its way out of there.
    Cached(&'g Block),
    /// Read just now.
    Own(BlockRef),
}

impl Deref for Held<'_> {
    type Target = Block;

    #[inline]
    fn deref(&self) -> &Block {
        match self {
            Held::Cached(block) => block,
            Held::Own(block) => block,
        }
    }
}

impl Held<'_> {
    /// A reference that outlives the guard.
    pub(crate) fn keep(&self) -> BlockRef {
        BlockRef::of(self)
    }
}

/// An interval that was read just now.
enum Read {
    /// Its block has a place in memory.
    Block(BlockRef),
    /// It was not worth one.
    Bytes(Row<u8>),
}

/// The bytes of a pair that is read alone. A short pair is on the stack, so that a read need not
/// wait for another thread in the allocator.
type PairBytes = SmallVec<[u8; 512]>;

/// What a look by prints came to.
#[expect(clippy::large_enum_variant, reason = "lives on the stack for one read")]
enum Single {
    /// The view shows this pair: its bytes.
    Pair(PairBytes),
    /// It shows none.
    Nothing,
    /// What stands there is not what was checked before, or cannot be looked at.
    Unclear,
}

/// What reading a block needs beside the index.
#[derive(Debug)]
pub(crate) struct Shelf {
    pub(crate) slots: Slots,
    pub(crate) ground: Arc<Ground>,
    /// Where the space is, for errors.
    pub(crate) path: PathBuf,
    pub(crate) warmth: Warmth,
    pub(crate) wait: Wait,
    /// Gets that read one pair, or none, of an interval that is not in memory.
    pub(crate) spared: AtomicU64,
}

impl Shelf {
    /// The hash of a key, by the database's secret.
    #[inline]
    pub(crate) fn hash(&self, key: &[u8]) -> u64 {
        self.ground.hash(key)
    }

    /// The block of an interval's bytes.
    pub(crate) fn block_of(&self, data: &[u8]) -> Result<BlockRef, Damage> {
        Block::build(data, |key| self.hash(key))
    }
}

impl Index {
    /// The interval that `key` belongs to.
    #[inline]
    pub(crate) fn find(&self, key: &[u8]) -> Option<Entry<Interval>> {
        let (head, prefix) = (self.prefix.head(key), &*self.prefix);
        self.tree.find(|sep| sep.cmp(head, key, prefix) != Ordering::Greater)
    }

    /// The last interval that has keys at or before the upper bound, if any can be there.
    pub(crate) fn find_last(&self, high: Bound<&[u8]>) -> Option<Entry<Interval>> {
        match high {
            Bound::Included(key) => self.find(key),
            Bound::Excluded(key) => {
                let (head, prefix) = (self.prefix.head(key), &*self.prefix);
                self.tree.find(|sep| sep.cmp(head, key, prefix) == Ordering::Less)
            }
            Bound::Unbounded => self.tree.get(self.tree.len().checked_sub(1)?),
        }
    }

    /// Whether `key` belongs to an interval before `entry`.
    #[inline]
    pub(crate) fn is_before(&self, key: &[u8], entry: &Entry<Interval>) -> bool {
        entry.item.sep.cmp(self.prefix.head(key), key, &self.prefix) == Ordering::Greater
    }

    /// The interval behind `entry`.
    pub(crate) fn next(&self, entry: &Entry<Interval>) -> Option<Entry<Interval>> {
        self.tree.get(entry.start + entry.len)
    }

    /// The interval before `entry`.
    pub(crate) fn previous(&self, entry: &Entry<Interval>) -> Option<Entry<Interval>> {
        self.tree.get(entry.start.checked_sub(1)?)
    }

    /// The separator's bytes of an interval.
    pub(crate) fn sep(&self, interval: &Interval) -> Vec<u8> {
        interval.sep.bytes(&self.prefix)
    }

    /// The block of an interval.
    #[inline]
    pub(crate) fn block<'g>(
        &self,
        entry: &Entry<Interval>,
        shelf: &Shelf,
        guard: &'g Guard,
    ) -> Result<Held<'g>> {
        match shelf.slots.get(entry.item.slot).block(guard) {
            Some(block) => Ok(Held::Cached(block)),
            None => {
                shelf.warmth.note_miss();
                self.load(entry, shelf, guard).map(Held::Own)
            }
        }
    }

    /// Calls `with` with what the view at `at` shows of `key` in its interval. Of one that is not in memory, and not worth another's place
    /// there, only what its prints say is read; without prints all of it, and prints are left: no block is made of it.
    #[inline]
    pub(crate) fn look_into<R>(
        &self,
        entry: &Entry<Interval>,
        shelf: &Shelf,
        (print, key, at): (u16, &[u8], Seq),
        guard: &Guard,
        with: impl FnOnce(Option<Pair<'_>>) -> Result<R>,
    ) -> Result<R> {
        match shelf.slots.get(entry.item.slot).look(guard) {
            Look::Block(block) => with(block.find(print, key, at)),
            missed => self.look_outside(entry, shelf, (print, key, at), (missed, guard), with),
        }
    }

    #[cold]
    fn look_outside<R>(
        &self,
        entry: &Entry<Interval>,
        shelf: &Shelf,
        (print, key, at): (u16, &[u8], Seq),
        (missed, guard): (Look<'_>, &Guard),
        with: impl FnOnce(Option<Pair<'_>>) -> Result<R>,
    ) -> Result<R> {
        shelf.warmth.note_miss();
        let is_wanted = shelf.slots.wants(entry.item.slot, entry.len, &shelf.ground);
        if let Look::Prints(prints) = missed
            && !is_wanted
        {
            let single = self.read_single(entry, shelf, (print, key, at), prints);
            if !matches!(single, Single::Unclear) {
                shelf.spared.fetch_add(1, atomic::Ordering::Relaxed);
            }
            match single {
                Single::Pair(bytes) => return with(Some(self.decoded(entry, &bytes, shelf)?)),
                Single::Nothing => return with(None),
                Single::Unclear => {}
            }
        }
        shelf.slots.expect_gets(entry.item.slot);
        match self.read(entry, shelf, is_wanted, guard)? {
            Read::Block(block) => with(block.find(print, key, at)),
            Read::Bytes(data) => {
                let found =
                    Sorted::of(&data).map_err(|what| Error::corrupt(&shelf.path, entry.start, what))?.found;
                if !shelf.slots.has_many_prints() {
                    let printed =
                        found.iter().map(|(stands, pair)| (print_of(shelf.hash(pair.key)), *stands));
                    if let Some(prints) = Prints::of(&data, printed) {
                        shelf.slots.offer_prints(entry.item.slot, prints, &shelf.ground, guard);
                    }
                }
                let mut versions = found.iter().map(|(_, pair)| *pair);
                with(versions.find(|pair| pair.key == key && pair.seq <= at))
            }
        }
    }

    /// Reads what of an interval may be the version of `key` that a view at `at` shows.
    fn read_single(
        &self,
        entry: &Entry<Interval>,
        shelf: &Shelf,
        (print, key, at): (u16, &[u8], Seq),
        prints: Shown<'_>,
    ) -> Single {
        let Some(view) = &self.view else { return Single::Unclear };
        let mut newest: Option<(Seq, PairBytes)> = None;
        for stand in prints.like(print, entry.len) {
            let len = usize::try_from(stand.bytes.end - stand.bytes.start).unwrap_or(0);
            let mut bytes = PairBytes::from_elem(0, len);
            let from = entry.start + stand.bytes.start;
            let count = shelf.wait.around(|| {}, || view.peek(from, &mut bytes));
            bytes.truncate(count);
            let Some(pair) = stand.pair(&bytes) else { return Single::Unclear };
            if pair.key == key && pair.seq <= at && newest.as_ref().is_none_or(|(seq, _)| *seq < pair.seq) {
                newest = Some((pair.seq, bytes));
                if prints.is_ordered() {
                    break;
                }
            }
        }
        newest.map_or(Single::Nothing, |(_, bytes)| Single::Pair(bytes))
    }

    fn decoded<'b>(&self, entry: &Entry<Interval>, bytes: &'b [u8], shelf: &Shelf) -> Result<Pair<'b>> {
        let decoded = Pair::decode(bytes, 0);
        decoded.map(|(pair, _)| pair).map_err(|what| Error::corrupt(&shelf.path, entry.start, what))
    }

    /// Reads the block of an interval from the space, and puts it into its slot if it is worth that.
    #[cold]
    pub(crate) fn load(&self, entry: &Entry<Interval>, shelf: &Shelf, guard: &Guard) -> Result<BlockRef> {
        let is_wanted = shelf.slots.wants(entry.item.slot, entry.len, &shelf.ground);
        match self.read(entry, shelf, is_wanted, guard)? {
            Read::Block(block) => Ok(block),
            Read::Bytes(data) => self.built(entry, &data, shelf),
        }
    }

    /// Reads an interval from the space. Its block is made, and put into its slot, if it `is_wanted` there.
    #[cold]
    fn read(&self, entry: &Entry<Interval>, shelf: &Shelf, is_wanted: bool, guard: &Guard) -> Result<Read> {
        let mut data = Row::new(usize::try_from(entry.len).unwrap_or(usize::MAX), || 0);
        if let Some(view) = &self.view {
            let ask = || view.will_need(entry.start, entry.len);
            shelf.wait.around(ask, || view.read(entry.start, &mut data))?;
        }
        if !is_wanted {
            return Ok(Read::Bytes(data));
        }
        let block = self.built(entry, &data, shelf)?;
        shelf.slots.offer(entry.item.slot, &block, &shelf.ground, guard);
        Ok(Read::Block(block))
    }

    fn built(&self, entry: &Entry<Interval>, data: &[u8], shelf: &Shelf) -> Result<BlockRef> {
        let block = shelf.block_of(data).map_err(|what| Error::corrupt(&shelf.path, entry.start, what))?;
        shelf.slots.get(entry.item.slot).learn_live(block.live());
        Ok(block)
    }
}
