//! # Tree: one level, a full index
//!
//! A copy-on-write B+-tree: a root, and nodes that never change once it is published. Who has a root under a guard sees one
//! moment of the level, whatever becomes of it.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use sheaf_base::error::{Damage, Result};
use sheaf_base::ground::Ground;
use sheaf_base::segment::Address;
use sheaf_base::sync::epoch::Guard;
use sheaf_base::types::Seq;

use crate::cache::{Cache, Frame};
use crate::node::{Entry, Ref};
use crate::space::Space;

/// A tree higher than this is damaged.
pub(crate) const MOST_HEIGHT: u8 = 24;

/// Bits of a stamp that are a segment's number; those above are the life's.
const ID_BITS: u32 = 40;

/// Openings with levels: segments that an image does not know may get slots at an opening that others had before, though their
/// numbers are lower than the stamps of leaves that mean those.
#[derive(Debug)]
pub(crate) struct Lives {
    /// The present one; the first is 1.
    pub(crate) now: u64,
    /// Slots that got another segment at an opening, and the life that began with it.
    pub(crate) renewed: BTreeMap<u32, u64>,
}

impl Default for Lives {
    fn default() -> Lives {
        Lives { now: 1, renewed: BTreeMap::new() }
    }
}

/// A level: its root and the root's height, if there is any key. A leaf has height 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Level {
    pub(crate) root: Option<(Ref, u8)>,
}

impl Level {
    /// Entries in it.
    pub(crate) fn count(&self) -> u64 {
        self.root.map_or(0, |(root, _)| u64::from(root.count))
    }
}

/// What a level says of a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) entry: Entry,
    pub(crate) stamp: u64,
    /// Its commit is not later.
    pub(crate) newest: Seq,
}

/// Which leaf of a level is meant.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Aim<'a> {
    /// The one whose range has the key.
    At(&'a [u8]),
    /// The one that has the highest keys before this one.
    Before(&'a [u8]),
    First,
    Last,
}

/// A leaf's place in its level.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) at: Ref,
    /// Where it begins; nothing of the first one.
    pub(crate) low: Vec<u8>,
    /// Where the next one begins.
    pub(crate) high: Option<Vec<u8>>,
}

/// What trees stand on.
#[derive(Debug)]
pub(crate) struct Shelf {
    pub(crate) ground: Arc<Ground>,
    pub(crate) cache: Cache,
    pub(crate) space: Space,
    pub(crate) lives: OnceLock<Lives>,
}

impl Shelf {
    /// The node at `at`, from memory or read.
    #[inline]
    pub(crate) fn node<'g>(&self, at: Ref, level: u8, guard: &'g Guard) -> Result<&'g Frame> {
        match self.cache.get(at.page, guard) {
            Some(frame) if frame.bytes().get(1) == Some(&level) => Ok(frame),
            Some(_) => Err(self.space.paged.damaged(
                at.page,
                Damage::BadField { field: "reference to a level", value: u64::from(level) },
            )),
            None => Ok(self.cache.take_in(at.page, self.space.read(at, level)?, guard)),
        }
    }

    /// What `level` says of `key`, whose hash has the byte `print`.
    #[inline]
    pub(crate) fn find(&self, level: &Level, print: u8, key: &[u8], guard: &Guard) -> Result<Option<Seen>> {
        let Some((mut at, mut height)) = level.root else { return Ok(None) };
        loop {
            let node = self.node(at, height, guard)?.node();
            if height == 0 {
                let seen = |entry| Seen { entry, stamp: node.stamp(), newest: node.newest() };
                return Ok(node.find(print, key).map(seen));
            }
            at = node.child(node.child_of(key));
            height -= 1;
        }
    }

    /// The leaf that is meant, not looked at.
    pub(crate) fn locate(&self, level: &Level, aim: Aim<'_>, guard: &Guard) -> Result<Option<Found>> {
        let Some((root, height)) = level.root else { return Ok(None) };
        let mut found = Found { at: root, low: Vec::new(), high: None };
        for height in (1..=height).rev() {
            let node = self.node(found.at, height, guard)?.node();
            let slot = match aim {
                Aim::At(key) => node.child_of(key),
                Aim::Before(key) => node.child_before(key),
                Aim::First => 0,
                Aim::Last => node.len() - 1,
            };
            if slot > 0 {
                found.low.clear();
                node.key(slot, &mut found.low);
            }
            if slot + 1 < node.len() {
                let mut high = Vec::new();
                node.key(slot + 1, &mut high);
                found.high = Some(high);
            }
            found.at = node.child(slot);
        }
        Ok(Some(found))
    }

    /// The lives of the levels.
    pub(crate) fn lives(&self) -> &Lives {
        self.lives.get_or_init(Lives::default)
    }

    /// The stamp of a leaf that is written now.
    pub(crate) fn stamp(&self, guard: &Guard) -> u64 {
        self.lives().now << ID_BITS | self.ground.segments.next_id(guard)
    }

    /// Whether the segment that an entry of a leaf with `stamp` pointed into is gone: the key has a newer entry elsewhere.
    /// What has its slot now was made after the leaf, or got the slot at an opening after it.
    pub(crate) fn is_dangling(&self, address: Address, stamp: u64, guard: &Guard) -> bool {
        let (life, id) = (stamp >> ID_BITS, stamp & ((1 << ID_BITS) - 1));
        let slot = address.slot();
        self.ground.segments.at(slot, guard).is_none_or(|segment| segment.id().0 >= id)
            || self.lives().renewed.get(&slot).is_some_and(|since| life < *since)
    }
}
