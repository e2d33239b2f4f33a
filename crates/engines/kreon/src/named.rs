//! # Named: which records the last level points at
//!
//! The cleaner asks of each record of a victim whether it is the newest of its key. Where neither memory nor an upper level has the key, the
//! last level decides, and for a record that was not touched for long that is a leaf to be read from the device: a read a record.
//! So what the last level points at is mirrored here, a bit for each place in the log where a record may begin.
//!
//! ## Picture
//!
//! ```text
//!  step into the last level ──> entries written: set, met: cleared ──┐
//!  after an opening, when the cleaner asks: leaf after leaf ──> set ──> slot: [bits of its segment] <── is this record named? (cleaner)
//! ```
//!
//! ## Invariants
//!
//! 1. Up to the key that has been reached: an entry of the last level that has any points at a record of a segment that is there exactly if
//!    the record's bit is set. Steps change bits of all keys, so that what is reached stays right.
//! 2. Bits change before the step is published. Who loaded the state of before finds there what supersedes a record whose
//!    bit went meanwhile, and what had a record whose bit came.
//! 3. Two records of the keyspace never share a bit: none is shorter than the places are long. If a shorter one comes, the places become
//!    shorter, and everything is gone over again.
//!
//! ## Threads, crash, costs
//!
//! Bits are changed under the lock of the steps, and read under a lock of their own. Nothing is on disk. A bit for each 128 bytes of the
//! log where records are so long, at most a [`SHARE`]th of the budget: a log that would take more is not mirrored, and the leaves are asked.

use std::collections::HashMap;
use std::sync::Arc;

use sheaf_base::error::Result;
use sheaf_base::ground::Ground;
use sheaf_base::memory::Part;
use sheaf_base::segment::{Address, Segment};
use sheaf_base::sync::Mutex;
use sheaf_base::sync::atomic::{AtomicU64, Ordering};
use sheaf_base::sync::epoch::Guard;

use crate::engine::KreonEngine;
use crate::tree::{Aim, Level, State};

/// Bytes of the log that share a bit, at first, ...
const LONGEST: u64 = 128;
/// ... and at least: no frame is shorter.
const SHORTEST: u64 = 16;
/// The part of the budget that all bits may take.
const SHARE: u64 = 32;

/// A record: in which segment it stands, of how many bytes, and how long it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    segment: u64,
    bytes: u64,
    address: Address,
    span: u64,
}

impl Spot {
    pub(crate) fn new(address: Address, span: u64, segment: &Segment) -> Spot {
        Spot { segment: segment.id().0, bytes: segment.identity().capacity, address, span }
    }

    /// Where it begins.
    pub(crate) fn address(&self) -> Address {
        self.address
    }
}

/// How far the mirror is right.
#[derive(Debug, PartialEq, Eq)]
enum Reach {
    /// It is right for all keys.
    All,
    /// Nobody has asked since the opening.
    Nothing,
    /// It took too much, or a leaf cannot be read: leaves are asked.
    Off,
    /// It is right below this key.
    Below(Vec<u8>),
}

/// The bits of one segment.
#[derive(Debug)]
struct Bits {
    segment: u64,
    words: Box<[u64]>,
}

#[derive(Debug)]
struct Inner {
    /// By slots.
    of_slots: Vec<Option<Bits>>,
    reach: Reach,
    /// Bytes that share a bit.
    place: u64,
    bytes: u64,
}

impl Inner {
    /// A word of the bits of the segment that a record stands in, if there are any.
    #[inline]
    fn word_of(&mut self, spot: &Spot, word: usize) -> Option<&mut u64> {
        let bits = self.of_slots.get_mut(spot.address.slot() as usize)?.as_mut()?;
        (bits.segment == spot.segment).then(|| bits.words.get_mut(word))?
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Named {
    ground: Arc<Ground>,
    inner: Mutex<Inner>,
    /// Look-ups that were spared.
    spared: AtomicU64,
}

impl Named {
    /// Of levels that have nothing.
    pub(crate) fn new(ground: Arc<Ground>) -> Named {
        let inner = Inner { of_slots: Vec::new(), reach: Reach::All, place: LONGEST, bytes: 0 };
        Named { ground, inner: Mutex::new(inner), spared: AtomicU64::new(0) }
    }

    /// Whether the last level points at the record at `spot`. None if that is not known (yet).
    pub(crate) fn names(&self, spot: &Spot) -> Option<bool> {
        let known = self.known(spot);
        self.spared.fetch_add(u64::from(known.is_some()), Ordering::Relaxed);
        known
    }

    /// The same, not counted as a look-up.
    pub(crate) fn known(&self, spot: &Spot) -> Option<bool> {
        let mut inner = self.inner.lock();
        if inner.reach == Reach::Nothing {
            inner.reach = Reach::Below(Vec::new());
        }
        if inner.reach != Reach::All || self.is_shortened(&mut inner, spot.span) {
            return None;
        }
        let (word, bit) = bit_of(spot.address, inner.place);
        Some(inner.word_of(spot, word).is_some_and(|word| *word & bit != 0))
    }

    /// Look-ups in leaves that were spared since the opening.
    pub(crate) fn spared(&self) -> u64 {
        self.spared.load(Ordering::Relaxed)
    }

    /// From which key on the last level is to be gone over, if it is.
    pub(crate) fn is_to_be_read(&self) -> Option<Vec<u8>> {
        match &self.inner.lock().reach {
            Reach::Below(key) => Some(key.clone()),
            _ => None,
        }
    }

    /// The last level was gone over up to `key`, or to its end, and points at these.
    pub(crate) fn was_read(&self, spots: &[Spot], key: Option<Vec<u8>>, guard: &Guard) {
        let mut inner = self.inner.lock();
        let is_anew = self.change_in(&mut inner, &[], spots, guard);
        if !is_anew && let Reach::Below(_) = &inner.reach {
            inner.reach = key.map_or(Reach::All, Reach::Below);
        }
    }

    /// A step is about to be published with which the last level points no more at the ones, and at the others instead.
    pub(crate) fn change(&self, cleared: &[Spot], set: &[Spot], guard: &Guard) {
        self.change_in(&mut self.inner.lock(), cleared, set, guard);
    }

    /// Whether everything is to be gone over from the begin.
    fn change_in(&self, inner: &mut Inner, cleared: &[Spot], set: &[Spot], guard: &Guard) -> bool {
        if matches!(inner.reach, Reach::Nothing | Reach::Off) {
            return false;
        }
        let least = set.iter().map(|spot| spot.span).min();
        let is_anew = least.is_some_and(|least| self.is_shortened(inner, least));
        let place = inner.place;
        for at in cleared {
            let (word, bit) = bit_of(at.address, place);
            if let Some(word) = inner.word_of(at, word) {
                *word &= !bit;
            }
        }
        for at in set {
            let (word, bit) = bit_of(at.address, place);
            if inner.word_of(at, word).is_none() {
                self.make(inner, at, guard);
            }
            if let Some(word) = inner.word_of(at, word) {
                *word |= bit;
            }
        }
        if !self.may_take(inner.bytes) {
            self.start_again(inner, Reach::Off);
        }
        is_anew
    }

    /// Leaves are asked from now on, until the next opening.
    pub(crate) fn give_up(&self) {
        self.start_again(&mut self.inner.lock(), Reach::Off);
    }

    /// Another level is the last one that has anything, or none is.
    pub(crate) fn reset(&self, is_any: bool) {
        let mut inner = self.inner.lock();
        self.start_again(&mut inner, if is_any { Reach::Nothing } else { Reach::All });
    }

    /// Whether a record of so many bytes is shorter than all before, so that everything is gone over again (I3).
    fn is_shortened(&self, inner: &mut Inner, span: u64) -> bool {
        let is = span < inner.place;
        if is {
            // No frame is shorter than the shortest: who says so is not to be believed.
            self.start_again(inner, if span < SHORTEST { Reach::Off } else { Reach::Below(Vec::new()) });
            inner.place = 1 << span.max(SHORTEST).ilog2();
        }
        is
    }

    fn start_again(&self, inner: &mut Inner, reach: Reach) {
        inner.of_slots.clear();
        self.ground.memory.give(Part::Index, inner.bytes);
        (inner.bytes, inner.reach) = (0, reach);
    }

    /// Bits for a segment that has none, and room for them where segments have gone.
    fn make(&self, inner: &mut Inner, at: &Spot, guard: &Guard) {
        for (slot, bits) in (0..).zip(&mut inner.of_slots) {
            let there = self.ground.segments.at(slot, guard).map(|segment| segment.id().0);
            bits.take_if(|bits| Some(bits.segment) != there);
        }
        let slot = at.address.slot() as usize;
        inner.of_slots.resize_with(inner.of_slots.len().max(slot + 1), || None);
        let words = usize::try_from((at.bytes / inner.place).div_ceil(64) + 1).unwrap_or(0);
        inner.of_slots[slot] = Some(Bits { segment: at.segment, words: vec![0; words].into_boxed_slice() });
        let bytes = inner.of_slots.iter().flatten().map(|bits| 8 * bits.words.len() as u64).sum();
        self.ground.memory.take(Part::Index, bytes);
        self.ground.memory.give(Part::Index, std::mem::replace(&mut inner.bytes, bytes));
    }

    fn may_take(&self, bytes: u64) -> bool {
        bytes <= self.ground.memory.budget() / SHARE
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        self.ground.memory.give(Part::Index, self.inner.lock().bytes);
    }
}

impl KreonEngine {
    /// A step goes over `most` more leaves of the last level, if the cleaner wants to know what it points at. Whether it did.
    pub(crate) fn read_names(&self, state: &State, most: usize, guard: &Guard) -> bool {
        let Some((from, level)) = self.named.is_to_be_read().zip(state.lowest()) else { return false };
        match self.names_from(&state.levels[level], &from, most, guard) {
            Ok((places, next)) => self.named.was_read(&places, next, guard),
            Err(_) => self.named.give_up(), // who asks for what the leaf has is told
        }
        true
    }

    /// What some leaves of `level` point at, and where the next one begins.
    fn names_from(
        &self,
        level: &Level,
        from: &[u8],
        most: usize,
        guard: &Guard,
    ) -> Result<(Vec<Spot>, Option<Vec<u8>>)> {
        let (mut leaves, mut next) = (Vec::new(), Some(from.to_vec()));
        while let Some(key) = next.take_if(|_| leaves.len() < most) {
            let Some(found) = self.shelf.locate(level, Aim::At(&key), guard)? else { break };
            leaves.push(found.at);
            next = found.high;
        }
        let mut loaded = HashMap::new();
        self.shelf.read_leaves(&leaves, &mut loaded)?;
        let mut places = Vec::new();
        for leaf in leaves {
            let node = match loaded.get(&leaf.page) {
                Some(frame) => frame.node(),
                None => self.shelf.node(leaf, 0, guard)?.node(),
            };
            for entry in (0..node.len()).map(|slot| node.entry(slot)).filter(|entry| !entry.is_tomb()) {
                let there = self.shelf.segment_of(entry.address(), node.stamp(), guard);
                places.extend(there.map(|segment| Spot::new(entry.address(), entry.span(), segment)));
            }
        }
        Ok((places, next))
    }
}

/// Where an address has its bit.
fn bit_of(address: Address, place: u64) -> (usize, u64) {
    let at = address.offset() / place;
    (usize::try_from(at / 64).unwrap_or(usize::MAX), 1 << (at % 64))
}
