//! # Entries of the flat log, for the engines whose data they are
//!
//! Such an engine keeps an index from keys to addresses and nothing else; what it notes of an operation, which bytes and
//! staged values it counts as live, and how it hands a value out do not depend on the index.
//!
//! ## Threads
//!
//! Any; [`Accounts`] has a lock of its own for the staged values.

use std::collections::HashSet;
use std::sync::Arc;

use crate::engine::Op;
use crate::error::Result;
use crate::ground::Ground;
use crate::record::Content;
use crate::segment::{Address, Frame};
use crate::sync::Mutex;
use crate::sync::epoch::Guard;
use crate::types::Seq;
use crate::value::Stored;
use crate::versions::{Old, Place, Versions};
use crate::views::Views;

// The words of an operation's note.
const HASH: usize = 0;
/// Address of the entry it replaces; 0 for none.
const PRIOR: usize = 1;
/// Bytes of that entry's frame.
const PRIOR_SPAN: usize = 2;
/// Its staged value's number plus one; 0 for none.
const PRIOR_BLOB: usize = 3;
/// The print of the entries that were looked at.
const PRINT: usize = 4;

/// What a look-up found.
#[derive(Debug)]
pub struct Entry<'g> {
    /// Where it stands.
    pub address: Address,
    /// What stands there.
    pub frame: Frame<'g>,
}

impl Entry<'_> {
    /// Bytes of its frame.
    #[must_use]
    pub fn span(&self) -> u64 {
        self.frame.span()
    }

    /// Its commit.
    #[must_use]
    pub fn seq(&self) -> Seq {
        self.frame.header.seq
    }
}

/// Stands for a set of entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Print(u64);

impl Print {
    /// Puts an entry into the set.
    #[inline]
    pub fn add(&mut self, address: Address) {
        let mixed = (address.bits() + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29) | 1;
        self.0 = self.0.wrapping_add(mixed);
    }

    /// Stands for these.
    #[must_use]
    pub fn of(addresses: &[Address]) -> Print {
        let mut print = Print::default();
        addresses.iter().for_each(|address| print.add(*address));
        print
    }
}

/// Notes what `prepare` found out: the key's hash, the entry that `op` replaces and the staged value this names, the print of
/// all entries that were looked at.
#[inline]
pub fn note(op: &mut Op<'_>, hash: u64, prior: Option<(&Entry<'_>, Option<u64>)>, print: Print) {
    (op.note, op.prior) = ([hash, 0, 0, 0, print.0], Seq::ZERO);
    if let Some((entry, staged)) = prior {
        op.note[PRIOR] = entry.address.bits();
        op.note[PRIOR_SPAN] = entry.span();
        op.prior = entry.seq();
        op.note[PRIOR_BLOB] = staged.map_or(0, |blob| blob + 1);
    }
}

/// The hash that was noted.
#[must_use]
pub fn noted_hash(op: &Op<'_>) -> u64 {
    op.note[HASH]
}

/// The print that was noted.
#[must_use]
pub fn noted_print(op: &Op<'_>) -> Print {
    Print(op.note[PRINT])
}

/// Where the entry stands that `op` replaces, or [`Address::NONE`].
#[must_use]
pub fn noted_prior(op: &Op<'_>) -> Address {
    Address::from_bits(op.note[PRIOR])
}

/// The entry that `op` replaces, superseded by commit `died`.
#[must_use]
pub fn replaced(op: &Op<'_>, died: Seq) -> Option<Old> {
    let address = noted_prior(op);
    (address != Address::NONE).then(|| Old {
        address,
        span: u32::try_from(op.note[PRIOR_SPAN]).unwrap_or(u32::MAX),
        born: op.prior,
        died,
        blob: op.note[PRIOR_BLOB].checked_sub(1),
    })
}

/// What of the log is live for one keyspace: bytes of segments, staged values.
#[derive(Debug)]
pub struct Accounts {
    ground: Arc<Ground>,
    /// The staged values that live entries name.
    pub blobs: Mutex<HashSet<u64>>,
}

impl Accounts {
    /// Nothing yet.
    #[must_use]
    pub fn new(ground: Arc<Ground>) -> Accounts {
        Accounts { ground, blobs: Mutex::default() }
    }

    /// Counts the entry at `address` as live, or (negative) as dead.
    pub fn count(&self, address: Address, span: i64, guard: &Guard) {
        if let Some(segment) = self.ground.segments.at(address.slot(), guard) {
            segment.account(span);
        }
    }

    /// Counts the removal at `address`.
    pub fn count_tomb(&self, address: Address, span: u32, guard: &Guard) {
        if let Some(segment) = self.ground.segments.at(address.slot(), guard) {
            segment.account_tomb(u64::from(span));
        }
    }

    /// Numbers of the staged values that an image is to name, in order: those of entries. What only views need ends with them, and no
    /// opening has any.
    pub fn named<P: Place>(&self, versions: &Versions<P>) -> Vec<u64> {
        let pinned = versions.blobs();
        let mut named: Vec<u64> =
            self.blobs.lock().iter().copied().filter(|blob| !pinned.contains(blob)).collect();
        named.sort_unstable();
        named
    }

    /// The keyspace is gone, and so is who needed its old versions. Their staged values go with all others of it.
    pub fn forget<P: Place>(&self, versions: &Versions<P>, guard: &Guard) {
        for old in versions.trim(&Views::default(), Seq::LATEST) {
            self.count(old.address, -i64::from(old.span), guard);
        }
    }

    /// Nobody needs `old` any more.
    pub fn bury(&self, old: &Old, guard: &Guard) {
        self.count(old.address, -i64::from(old.span), guard);
        if let Some(blob) = old.blob {
            self.blobs.lock().remove(&blob);
            self.ground.blob_died(old.died, blob);
        }
    }

    /// Hands the value of a record to `found`. False if its staged value is gone, since the index let go of it a moment ago:
    /// look again. One that is named twice, as `missing` remembers, is lost.
    #[inline]
    pub fn give(
        &self,
        content: Content<'_>,
        missing: &mut Option<u64>,
        found: &mut dyn FnMut(Stored<'_>),
    ) -> Result<bool> {
        match content {
            Content::Put(value) => found(Stored::Bytes(value)),
            Content::Staged(blob) => return self.ground.blobs.give(&blob, missing, found),
            Content::Remove => {}
        }
        Ok(true)
    }
}
