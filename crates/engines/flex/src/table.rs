//! # Table: the committer's side of the sparse index
//!
//! Who changes the space and the index does it here, under one lock: an edit of the space, the same change of the tree,
//! then both are published together.
//!
//! ## Invariants
//!
//! 1. The tree and the space agree: an interval of the tree is, in the space, its runs and nothing else.
//! 2. A slot that no longer belongs to an interval is given out again when every index that names it is gone.
//! 3. The space's mark counts our edits, and says in its lowest bit whether a memtable was ever moved whole: before that,
//!    pairs may be in the image only. An image of the index with the same mark describes the space.

use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use sheaf_base::error::{Error, Result};
use sheaf_base::ground::Ground;
use sheaf_base::keys::common;
use sheaf_base::memory::{Memory, Part};
use sheaf_base::sync::atomic::AtomicU64;
use sheaf_base::sync::epoch::Guard;
use sheaf_base::types::{KeyspaceId, Seq};
use sheaf_base::views::Views;
use sheaf_flexspace::tree::ShiftTree;
use sheaf_flexspace::{FlexSpace, Options};

use crate::block::BlockRef;
use crate::changes::Batch;
use crate::hoard::Hoard;
use crate::image::Keep;
use crate::index::{Index, Interval, Shelf};
use crate::kept::Look;
use crate::prints::Prints;
use crate::slots::Figures;
use sheaf_base::memtable::prefix::{Prefix, Sep};
use smallvec::SmallVec;

/// An interval to be.
#[derive(Debug)]
pub(crate) struct Draft {
    /// Its separator; without one, that of the first interval it replaces.
    pub(crate) sep: Option<Vec<u8>>,
    /// Its runs, or the one that is added, in the plan's bytes.
    pub(crate) data: Range<usize>,
    pub(crate) figures: Figures,
    /// The whole interval, where it is known, ...
    pub(crate) block: Option<BlockRef>,
    /// ... or its prints.
    pub(crate) prints: Option<Prints>,
}

/// A change of a stretch of the space.
#[derive(Debug)]
pub(crate) struct Change {
    /// Where the stretch is, before all changes of the plan.
    pub(crate) at: u64,
    pub(crate) len: u64,
    /// The slots of its intervals.
    pub(crate) old: SmallVec<[u32; 2]>,
    /// The separator of its first interval.
    pub(crate) sep: Sep,
    /// What stands there stays, and the only draft goes behind it, into the same interval.
    pub(crate) appends: bool,
    pub(crate) drafts: SmallVec<[Draft; 2]>,
}

/// Changes of disjoint stretches, in order, and what becomes of staged values.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) changes: Vec<Change>,
    /// What the drafts consist of.
    pub(crate) bytes: Vec<u8>,
    /// Staged values that the space names from now on.
    pub(crate) named: Vec<u64>,
    /// Those it does not any more, and which commits superseded them.
    pub(crate) dead: Vec<(Seq, u64)>,
    /// Nothing is rewritten: the edit was too large, or the disk is full.
    pub(crate) appends: bool,
    /// The disk is nearly full: only what makes room is rewritten.
    pub(crate) is_tight: bool,
    /// Intervals that nothing changes may be rewritten, if that pays.
    pub(crate) has_leisure: bool,
    /// Of changes whose intervals were in memory: keys that were new, and all of them.
    pub(crate) sampled: [u64; 2],
    /// Looks at intervals to rewrite: with many of them the step is over, also if it writes nothing.
    pub(crate) looked: usize,
    pub(crate) counts: Counts,
}

/// What the committer chose, how often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// New intervals.
    pub(crate) inserted: u64,
    /// Runs appended to intervals.
    pub(crate) appended: u64,
    /// Intervals, or neighbours together, that were rewritten.
    pub(crate) rewritten: u64,
    /// Intervals that were rewritten though nothing changed in them.
    pub(crate) tidied: u64,
    /// Intervals that went into a neighbour.
    pub(crate) merged: u64,
    /// Changes that were superseded before they were moved.
    pub(crate) skipped: u64,
    /// Versions that rewrites went through.
    pub(crate) read: u64,
    /// Bytes of all this.
    pub(crate) bytes: u64,
}

impl Counts {
    /// By name.
    pub(crate) fn named(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("intervals inserted", self.inserted),
            ("intervals appended to", self.appended),
            ("intervals rewritten", self.rewritten),
            ("intervals tidied", self.tidied),
            ("intervals merged", self.merged),
            ("changes skipped", self.skipped),
            ("versions gone through", self.read),
            ("bytes committed", self.bytes),
        ]
    }
}

/// The committer's side.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) space: Option<FlexSpace>,
    pub(crate) tree: ShiftTree<Interval>,
    pub(crate) prefix: Arc<Prefix>,
    pub(crate) mark: u64,
    /// The space had come so far when the image was made: with less it is damaged.
    pub(crate) least: u64,
    /// Staged values that the space names.
    pub(crate) blobs: HashSet<u64>,
    /// The last key of the frozen memtable that was moved.
    pub(crate) progress: Option<Vec<u8>>,
    /// Where the sweep goes on that is under way: see `sweep.rs`.
    pub(crate) sweep: Option<Vec<u8>>,
    /// What of a frozen memtable stays in memory: see `image.rs`.
    pub(crate) keep: Keep,
    /// The views when that was decided.
    pub(crate) views: Views,
    pub(crate) counts: Counts,
    /// Of the changes moved since the last look: see [`Plan::sampled`].
    pub(crate) sampled: [u64; 2],
    /// Memory of the last step, for the next one: its batch, and the bytes of its plan.
    pub(crate) spare: (Batch, Vec<u8>),
    /// Values of changes that are to be moved.
    pub(crate) hoard: Hoard,
    token: Arc<()>,
    /// Slots that the tree names no more since the last publication.
    buried: Vec<u32>,
    graves: VecDeque<(Arc<()>, Vec<u32>)>,
    free: Vec<u32>,
    /// What the space takes for itself, without a limit: it is accounted by us, its index with ours.
    space_memory: Arc<Memory>,
    /// Bytes of the indexes, and of the space's buffers, that the budget knows of.
    accounted: AtomicU64,
    buffered: AtomicU64,
    publications: u64,
    /// Steps that waited for readers, since one did not.
    waits: u32,
}

/// Steps that wait for readers before one goes on all the same: the reader may be the caller.
const PATIENCE: u32 = 64;

impl Table {
    pub(crate) fn new() -> Table {
        Table {
            space: None,
            tree: ShiftTree::new(Interval::NONE),
            prefix: Arc::default(),
            mark: 0,
            least: 0,
            blobs: HashSet::new(),
            progress: None,
            sweep: None,
            keep: Keep::default(),
            views: Views::default(),
            counts: Counts::default(),
            sampled: [0; 2],
            spare: Default::default(),
            hoard: Hoard::default(),
            token: Arc::default(),
            buried: Vec::new(),
            graves: VecDeque::new(),
            free: Vec::new(),
            space_memory: Arc::new(Memory::new(u64::MAX)),
            accounted: AtomicU64::new(0),
            buffered: AtomicU64::new(0),
            publications: 0,
            waits: 0,
        }
    }

    /// Opens the keyspace's space, and makes it if there is none and `create` says so.
    pub(crate) fn open(&mut self, ground: &Ground, id: KeyspaceId, create: bool) -> Result<()> {
        let Some(home) = &ground.home else { return Ok(()) };
        if self.space.is_some() || (!create && !home.exists(id)?) {
            return Ok(());
        }
        let options = self.options(ground, create, home.read_only);
        match FlexSpace::open_on(Arc::clone(&home.disk), home.of(id), options) {
            Ok(space) => {
                self.mark = space.view().mark();
                self.space = Some(space);
                Ok(())
            }
            // A creation that was cut short: there never was anything in it.
            Err(Error::NotFound { .. }) if !create => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Opens the readable part of the keyspace's space. False if it has none.
    pub(crate) fn open_rest(
        &mut self,
        ground: &Ground,
        id: KeyspaceId,
        skipped: &mut dyn FnMut(Error),
    ) -> Result<bool> {
        let Some(home) = ground.home.as_ref().filter(|home| home.read_only) else { return Ok(false) };
        if !home.has_files(id)? {
            return Ok(false);
        }
        let options = self.options(ground, false, true);
        let space = FlexSpace::open_rest(Arc::clone(&home.disk), home.of(id), options, skipped)?;
        self.mark = space.view().mark();
        self.space = Some(space);
        Ok(true)
    }

    fn options(&self, ground: &Ground, create: bool, read_only: bool) -> Options {
        Options {
            create,
            read_only,
            memory: Arc::clone(&self.space_memory),
            inline: true,
            fine: true,
            tiny: ground.tiny,
            ..Options::default()
        }
    }

    /// Whether a memtable was ever moved whole into the space.
    pub(crate) fn is_complete(&self) -> bool {
        self.mark & 1 == 1
    }

    /// Does what is planned: in the space, then in the tree. `is_last` of a memtable.
    pub(crate) fn commit(&mut self, plan: &Plan, is_last: bool, shelf: &Shelf, guard: &Guard) -> Result<()> {
        if plan.changes.is_empty() && (self.is_complete() || !is_last) {
            return Ok(());
        }
        let mark = (self.mark + 2) | u64::from(is_last);
        self.edit(plan, mark)?;
        self.mark = mark;
        let mut shift = 0u64; // wrapped
        for change in &plan.changes {
            let at = change.at.wrapping_add(shift);
            if change.drafts.is_empty() {
                self.tree.collapse(at, change.len, |_, _| {});
            }
            self.buried.extend_from_slice(&change.old);
            let is_asked = change.old.iter().any(|slot| shelf.slots.is_asked(*slot));
            let (mut to, mut less) = (at, change.len);
            for draft in &change.drafts {
                let before = if change.appends { change.len } else { 0 };
                let len = before + draft.data.len() as u64;
                let item = self.interval(change, draft, shelf);
                if is_asked {
                    shelf.slots.expect_gets(item.slot);
                }
                if let Some(block) = &draft.block {
                    shelf.slots.offer(item.slot, block, &shelf.ground, guard);
                } else if let Some(prints) = &draft.prints {
                    shelf.slots.offer_prints(item.slot, prints.clone(), &shelf.ground, guard);
                }
                self.tree.replace(to, less, len, item, |_, _| {});
                (to, less) = (to + len, 0);
            }
            shift = shift.wrapping_add(to - at).wrapping_sub(change.len);
        }
        self.blobs.extend(plan.named.iter().copied());
        for (_, id) in &plan.dead {
            self.blobs.remove(id);
        }
        self.sampled[0] += plan.sampled[0];
        self.sampled[1] += plan.sampled[1];
        let counts = &mut self.counts;
        counts.inserted += plan.counts.inserted;
        counts.appended += plan.counts.appended;
        counts.rewritten += plan.counts.rewritten;
        counts.tidied += plan.counts.tidied;
        counts.merged += plan.counts.merged;
        counts.skipped += plan.counts.skipped;
        counts.read += plan.counts.read;
        counts.bytes += plan.counts.bytes;
        Ok(())
    }

    fn edit(&self, plan: &Plan, mark: u64) -> Result<()> {
        let Some(space) = &self.space else { return Ok(()) };
        let mut edit = space.edit();
        let mut shift = 0u64; // wrapped
        for change in &plan.changes {
            let at = change.at.wrapping_add(shift);
            let mut to = at;
            if change.appends {
                to += change.len;
            } else if change.len > 0 {
                edit = edit.collapse(at, change.len);
                shift = shift.wrapping_sub(change.len);
            }
            for draft in &change.drafts {
                edit = edit.insert(to, &plan.bytes[draft.data.clone()]);
                to += draft.data.len() as u64;
                shift = shift.wrapping_add(draft.data.len() as u64);
            }
        }
        edit.mark(mark).commit()
    }

    /// The slot and separator of a new interval.
    fn interval(&mut self, change: &Change, draft: &Draft, shelf: &Shelf) -> Interval {
        match &draft.sep {
            Some(bytes) => self.new_interval(bytes, draft.figures, shelf),
            None if change.sep.is_long() => {
                self.new_interval(&change.sep.bytes(&self.prefix), draft.figures, shelf)
            }
            None => Interval { sep: change.sep, slot: self.new_slot(draft.figures, shelf) },
        }
    }

    fn new_slot(&mut self, figures: Figures, shelf: &Shelf) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| shelf.slots.add());
        shelf.slots.get(slot).set_figures(figures);
        slot
    }

    /// An interval with a slot of its own.
    pub(crate) fn new_interval(&mut self, sep: &[u8], figures: Figures, shelf: &Shelf) -> Interval {
        let slot = self.new_slot(figures, shelf);
        let kept = shelf.slots.get(slot);
        let sep = Sep::inline(&self.prefix, sep).unwrap_or_else(|| {
            // SAFETY:
            // * The slot keeps the bytes until no index that names it is left (slots I1), and whoever has a copy of
            //   the separator has such an index.
            unsafe { Sep::outside(&self.prefix, kept.keep_sep(sep)) }
        });
        Interval { sep, slot }
    }

    /// The present state for readers. The caller makes it known.
    pub(crate) fn publish(&mut self, shelf: &Shelf, guard: &Guard) -> Arc<Index> {
        // Also without a slot: whoever has an older index than the next grave's must be waited for too.
        let before = std::mem::take(&mut self.token);
        self.graves.push_back((before, std::mem::take(&mut self.buried)));
        self.publications += 1;
        let tree = self.tree.publish(self.publications);
        let view = self.space.as_ref().map(FlexSpace::view);
        self.reclaim(shelf, guard);
        self.account(shelf);
        Arc::new(Index {
            number: self.publications,
            prefix: Arc::clone(&self.prefix),
            tree,
            view,
            _token: Arc::clone(&self.token),
        })
    }

    /// Takes back what versions that are gone held.
    pub(crate) fn settle(&mut self, shelf: &Shelf, guard: &Guard) {
        self.tree.settle();
        self.reclaim(shelf, guard);
        self.account(shelf);
    }

    /// Whether the budget is exceeded, and what earlier publications left behind comes back as soon as readers are gone: each
    /// one more would take as much again.
    pub(crate) fn must_wait(&mut self, shelf: &Shelf, guard: &Guard) -> bool {
        let is_held = |table: &Table| table.graves.iter().any(|(_, slots)| !slots.is_empty());
        if self.waits >= PATIENCE || !shelf.ground.memory.is_exceeded() || !is_held(self) {
            self.waits = 0;
            return false;
        }
        guard.flush();
        self.settle(shelf, guard);
        self.waits += 1;
        true
    }

    /// Takes slots back that no index names any more.
    pub(crate) fn reclaim(&mut self, shelf: &Shelf, guard: &Guard) {
        while let Some((token, _)) = self.graves.front()
            && Arc::strong_count(token) == 1
            && let Some((_, slots)) = self.graves.pop_front()
        {
            for slot in slots {
                shelf.slots.take_back(slot, &shelf.ground, guard);
                self.free.push(slot);
            }
        }
    }

    /// Bytes of the space that are not superseded, as far as that is known.
    pub(crate) fn live_bytes(&self, shelf: &Shelf) -> u64 {
        let mut live = 0;
        self.tree.read(|tree| {
            for entry in tree.range(0) {
                let figures = shelf.slots.get(entry.item.slot).figures();
                live += match figures.live {
                    crate::slots::UNKNOWN => entry.len / 4 * 3,
                    known => entry.len * u64::from(known) / u64::from(figures.entries.max(1)),
                };
            }
        });
        live
    }

    /// Bytes of the indexes: ours and the space's.
    pub(crate) fn index_bytes(&self, shelf: &Shelf) -> u64 {
        let space = self.space.as_ref().map_or(0, FlexSpace::index_bytes);
        if self.tree.is_empty() && space == 0 {
            return 0;
        }
        // What is free is room for keys to come.
        let free = (self.free.len() * size_of::<crate::slots::Slot>()) as u64;
        self.tree.bytes() + shelf.slots.bytes() - free + space
    }

    /// The keyspace is gone: nothing is indexed.
    pub(crate) fn forget(&mut self) {
        (self.tree, self.progress, self.keep) = (ShiftTree::new(Interval::NONE), None, Keep::default());
        self.sweep = None;
        (self.blobs, self.spare) = (HashSet::new(), Default::default());
        // Readers may have the old one's buffers for a while.
        self.space_memory = Arc::new(Memory::new(u64::MAX));
    }

    fn account(&mut self, shelf: &Shelf) {
        let memory = &shelf.ground.memory;
        memory.settle(Part::Index, &self.accounted, self.index_bytes(shelf));
        memory.settle(Part::Buffers, &self.buffered, self.space_memory.used(Part::Buffers));
    }

    /// Cuts separators' heads anew, if too many do not fit into two words.
    pub(crate) fn look_at_heads(&mut self, shelf: &Shelf, guard: &Guard) {
        let (mut long, mut first, mut last) = (0u64, None, None);
        self.tree.read(|tree| {
            for entry in tree.range(0) {
                long += u64::from(entry.item.sep.is_long());
                if first.is_none() && !entry.item.sep.is_lowest() {
                    first = Some(entry.item.sep);
                }
                last = Some(entry.item.sep);
            }
        });
        let (Some(first), Some(last)) = (first, last) else { return };
        let (first, last) = (first.bytes(&self.prefix), last.bytes(&self.prefix));
        let shared = common(&first, &last);
        let prefix = Prefix::new(&first[..shared.min(first.len().saturating_sub(1))]);
        let is_worse = long * 4 > self.tree.entries();
        let is_longer = self.prefix.len() < prefix.len() && self.tree.entries() > 1;
        if (!is_worse && !is_longer) || prefix == *self.prefix {
            return;
        }
        self.prefix_by(prefix, shelf, guard);
    }

    fn prefix_by(&mut self, prefix: Prefix, shelf: &Shelf, guard: &Guard) {
        let mut entries = Vec::new();
        self.tree.read(|tree| entries.extend(tree.range(0)));
        let before = std::mem::replace(&mut self.prefix, Arc::new(prefix));
        let mut tree = ShiftTree::new(Interval::NONE);
        for entry in entries {
            let bytes = entry.item.sep.bytes(&before);
            let old = shelf.slots.get(entry.item.slot);
            let item = self.new_interval(&bytes, old.figures(), shelf);
            match old.look(guard) {
                Look::Block(block) => {
                    shelf.slots.offer(item.slot, &BlockRef::of(block), &shelf.ground, guard);
                }
                Look::Prints(prints) => {
                    shelf.slots.offer_prints(item.slot, prints.copy(), &shelf.ground, guard);
                }
                Look::Nothing => {}
            }
            self.buried.push(entry.item.slot);
            tree.insert(entry.start, entry.len, item);
        }
        self.tree = tree;
    }
}
