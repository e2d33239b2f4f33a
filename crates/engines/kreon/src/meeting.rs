//! # Meeting: what comes into a level, side by side with what it has
//!
//! Whoever puts entries into leaves asks at each key what becomes of the old entry: it is dead, it is kept for a view, or it is
//! not accounted any more (`spill.rs` says when). What that comes to is settled when the step has been published.

use std::collections::HashMap;

use sheaf_base::error::Result;
use sheaf_base::segment::{Address, Segment};
use sheaf_base::sync::epoch::Guard;
use sheaf_base::types::Seq;
use sheaf_base::versions::Old;
use sheaf_base::views::Views;

use crate::change::{Meet, flags_over};
use crate::engine::KreonEngine;
use crate::named::Spot;
use crate::node::{BELOW, Entry, Pair, STAGED};
use crate::spill::Spill;
use crate::tree::{Level, seq_in};

/// The segments that entries of leaves point into, by slots, as they were when the leaves were read.
pub(crate) type Sources<'g> = HashMap<u32, &'g Segment>;

/// Puts keys side by side with what the level has.
pub(crate) struct Meeting<'a> {
    engine: &'a KreonEngine,
    pub(crate) views: &'a Views,
    guard: &'a Guard,
    is_last: bool,
    /// Where what comes was found, by slots. `None`: it is from a memtable, and its numbers are exact.
    sources: Option<&'a Sources<'a>>,
    /// Bytes by slot that the levels account for more, or less.
    counts: HashMap<u32, i64>,
    /// What is dead once the step is published.
    pub(crate) dead: Vec<(Address, u64)>,
    pub(crate) blobs: Vec<(Seq, u64)>,
    /// Records that the last level points at no more, and those that it points at now.
    left: Vec<Spot>,
    named: Vec<Spot>,
}

impl Meeting<'_> {
    pub(crate) fn count(&mut self, entry: &Entry, sign: i64) {
        if !entry.is_tomb() {
            let span = i64::try_from(entry.span()).unwrap_or(0);
            *self.counts.entry(entry.address().slot()).or_insert(0) += sign * span;
        }
    }

    /// The number of what comes.
    fn seq_of(&self, new: &Pair<'_>) -> Result<Seq> {
        if new.entry.is_tomb() {
            return Ok(new.entry.tomb_seq());
        }
        let Some(sources) = self.sources else { return Ok(new.newest) };
        let address = new.entry.address();
        match sources.get(&address.slot()) {
            Some(segment) => seq_in(segment, address),
            None => Err(self.engine.lost(address)),
        }
    }

    /// The last level is going to point at the record of `entry`.
    fn name(&mut self, entry: &Entry) {
        let address = entry.address();
        let there = match self.sources {
            Some(sources) => sources.get(&address.slot()).copied(),
            None => self.engine.ground.segments.at(address.slot(), self.guard),
        };
        self.named.extend(there.map(|segment| Spot::new(address, entry.span(), segment)));
    }

    /// Whether both are one version, which was copied: the cleaner has accounted for the old place. What comes may have lost that on its way
    /// down, with its segment: then it meets an older version, which views may need.
    fn is_same(&self, new: &Pair<'_>, old: &Entry, there: Option<&Segment>) -> Result<bool> {
        match there {
            Some(there) if !new.entry.is_tomb() => Ok(self.seq_of(new)? == seq_in(there, old.address())?),
            _ => Ok(false),
        }
    }

    /// Whether `old`, superseded by `new`, is kept for a view.
    fn keep_for_views(&mut self, new: &Pair<'_>, old: &Entry, there: Option<&Segment>) -> Result<bool> {
        // It died no later than the newest that comes with `new`.
        if !self.views.may_need_before(new.newest) {
            return Ok(false);
        }
        let died = self.seq_of(new)?;
        if !self.views.may_need_before(died) {
            return Ok(false);
        }
        let may_need = |born, died| self.views.may_need(born, died);
        let born = match there {
            Some(there) => seq_in(there, old.address())?,
            None => old.tomb_seq(),
        };
        let blob = (old.flags & STAGED != 0).then_some(old.blob);
        let (address, span) = match old.is_tomb() {
            true => (Address::NONE, 0),
            false => (old.address(), u32::try_from(old.span()).unwrap_or(u32::MAX)),
        };
        let old = Old { address, span, born, died, blob };
        Ok(self.engine.keep_version(&mut self.engine.candidates.lock(), new.key, old, may_need))
    }
}

impl Meet for Meeting<'_> {
    fn meet(&mut self, new: &Pair<'_>, old: Option<(&Entry, u64, Seq)>) -> Result<Option<Entry>> {
        let mut flags = new.entry.flags;
        if let Some((old, stamp, _)) = old {
            let is_below = new.entry.flags & BELOW != 0;
            // Looked up once: it may leave its slot at any time. None of a removal, which is never gone.
            let segment = || self.engine.shelf.segment_of(old.address(), stamp, self.guard);
            let there = if old.is_tomb() { None } else { segment() };
            let is_gone = !old.is_tomb() && there.is_none();
            let is_itself = is_below && self.is_same(new, old, there)?;
            let is_kept = !is_gone && !is_itself && self.keep_for_views(new, old, there)?;
            // After a crash the same version may come again, from where the cleaner had copied it to.
            let is_lost = old.is_staged() && !(new.entry.is_staged() && new.entry.blob == old.blob);
            // What a view needs of what is gone was copied, and is among the versions, which account for its value.
            let names = || self.engine.versions.names(&new.key.to_vec(), old.blob);
            if is_gone && !is_below && is_lost && !names() {
                self.blobs.push((new.newest, old.blob));
            }
            if let Some(there) = there.filter(|_| self.is_last) {
                self.left.push(Spot::new(old.address(), old.span(), there));
            }
            if !is_gone {
                self.count(old, -1);
                if !old.is_tomb() && !is_itself && !is_kept {
                    self.dead.push((old.address(), old.span()));
                    if is_lost {
                        self.blobs.push((new.newest, old.blob));
                    }
                }
            }
            flags = flags_over(flags, Some(old.flags), self.is_last);
        } else {
            flags = flags_over(flags, None, self.is_last);
        }
        if new.entry.is_tomb() && self.is_last {
            return Ok(None);
        }
        self.count(&new.entry, 1);
        if self.is_last {
            self.name(&new.entry);
        }
        Ok(Some(new.entry.with(flags)))
    }

    fn keep(&mut self, old: &Entry, stamp: u64) -> Option<Entry> {
        if old.is_tomb() {
            return (!self.is_last).then_some(*old);
        }
        match self.engine.shelf.is_dangling(old.address(), stamp, self.guard) {
            false => Some(*old),
            // Its value is for whoever meets it. The leaf gets another stamp, which would believe what has the slot now.
            true if old.is_staged() => Some(old.nowhere()),
            true => None,
        }
    }

    fn is_last(&self) -> bool {
        self.is_last
    }

    fn publishes(&mut self) {
        self.engine.named.change(&self.left, &self.named, self.guard);
    }
}

impl KreonEngine {
    /// For a step into the level above the `lower` ones. `sources`: what comes is from leaves; else it is from a memtable.
    pub(crate) fn meeting<'a, 'l>(
        &'a self,
        views: &'a Views,
        mut lower: impl Iterator<Item = &'l Level>,
        sources: Option<&'a Sources<'a>>,
        guard: &'a Guard,
    ) -> Meeting<'a> {
        Meeting {
            engine: self,
            views,
            guard,
            is_last: lower.all(|level| level.root.is_none()),
            sources,
            counts: HashMap::new(),
            dead: Vec::new(),
            blobs: Vec::new(),
            left: Vec::new(),
            named: Vec::new(),
        }
    }

    /// Accounts for what a published step has superseded.
    pub(crate) fn settle(&self, spill: &mut Spill, meeting: Meeting<'_>, guard: &Guard) {
        for (slot, bytes) in meeting.counts {
            spill.count(self, slot, bytes, guard);
        }
        for (address, span) in meeting.dead {
            self.accounts.count(address, -i64::try_from(span).unwrap_or(0), guard);
        }
        for (died, blob) in meeting.blobs {
            if self.accounts.unname(blob) {
                self.ground.blob_died(died, blob);
            }
        }
    }
}
