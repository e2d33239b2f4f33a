//! # Replay of a whole log: gathered, put into order, made into an index at once
//!
//! An index that grows key by key costs misses of the caches, splits, and a turn under a lock for each record. So records that are
//! replayed into an empty one are gathered; at the end they are brought into the order of the index, of each key the newest
//! counts, and the index is made of what is left, part by part, side by side.
//!
//! | index | gathers | order |
//! |---|---|---|
//! | `hash` | hash, address, span: 16 bytes a record | of hashes |
//! | `ordered` | key, address, span, number: 32 bytes and the key | of keys |
//! | `plain` | nothing | |
//!
//! ## Invariants
//!
//! 1. While records are gathered the index is empty and no removal is remembered: so what was gathered says all.
//!    If that ends, because more was gathered than memory has room for, everything goes one by one.
//!
//! ## Threads
//!
//! Threads that replay take turns by row; each works on one segment at a time, whose slot says which row, so they rarely meet.

use std::sync::Arc;

use sheaf_base::engine::Replay;
use sheaf_base::entries::Accounts;
use sheaf_base::error::Result;
use sheaf_base::ground::Ground;
use sheaf_base::memory::{Memory, Part};
use sheaf_base::record::Content;
use sheaf_base::segment::Address;
use sheaf_base::sync::{Mutex, epoch};

/// Rows that threads gather into.
const ROWS: usize = 4;
/// What is gathered takes at most this part of the memory budget.
const SHARE: u64 = 4;

/// Replays one record by itself.
pub(crate) type One<'a> = dyn FnMut(&Replay<'_>) -> Result<()> + 'a;

/// What an index gathers.
pub(crate) trait Gather<I>: Default + Send + Sync {
    /// Takes up records of one segment. What is too much goes to `one`.
    fn push(&self, index: &I, records: &[Replay<'_>], ground: &Ground, one: &mut One<'_>) -> Result<()>;
    /// Makes one of so many parts of `index` from what was gathered.
    fn make(&self, index: &I, part_of: (usize, usize), ground: &Ground) -> Result<Tally>;
    /// Puts the parts together: they are the index now.
    fn join(&self, index: &I);
    /// Hands one of so many parts of what was gathered to `one`.
    fn give_back(&self, part_of: (usize, usize), ground: &Ground, one: &mut One<'_>) -> Result<()>;
    /// Forgets everything.
    fn clear(&self, memory: &Memory);
}

/// What threads gather into, by rows of `R`, with the memory they take; and `P`, what is to be done with all of it in the end.
pub(crate) struct Rows<R, P> {
    rows: [Mutex<Row<R>>; ROWS],
    plan: Mutex<Option<Planned<P>>>,
}

#[derive(Default)]
struct Row<R> {
    items: R,
    /// Bytes it takes.
    taken: u64,
}

struct Planned<P> {
    plan: Arc<P>,
    /// Bytes of the rows it was made of.
    taken: u64,
}

impl<R: Default, P> Default for Rows<R, P> {
    fn default() -> Rows<R, P> {
        Rows { rows: Default::default(), plan: Mutex::new(None) }
    }
}

impl<R: Default, P> Rows<R, P> {
    /// Has `add` put `records`, which are of one segment, into a row, and say how many bytes more that takes. A row that
    /// became too large comes back.
    pub(crate) fn add(
        &self,
        records: &[Replay<'_>],
        memory: &Memory,
        add: impl FnOnce(&mut R) -> u64,
    ) -> Option<R> {
        let first = records.first()?;
        let mut row = self.rows[first.address.slot() as usize % ROWS].lock();
        let grown = add(&mut row.items);
        memory.take(Part::Buffers, grown);
        row.taken += grown;
        if row.taken < memory.budget() / SHARE / ROWS as u64 {
            return None;
        }
        memory.give(Part::Buffers, row.taken);
        Some(std::mem::take(&mut *row).items)
    }

    /// What is to be done with all rows, as `make` says once. The same for all who ask.
    pub(crate) fn plan(&self, make: impl FnOnce(Vec<R>) -> P) -> Arc<P> {
        let mut planned = self.plan.lock();
        let first = || {
            let rows: Vec<Row<R>> = self.rows.iter().map(|row| std::mem::take(&mut *row.lock())).collect();
            let taken = rows.iter().map(|row| row.taken).sum();
            Planned { plan: Arc::new(make(rows.into_iter().map(|row| row.items).collect())), taken }
        };
        Arc::clone(&planned.get_or_insert_with(first).plan)
    }

    /// The plan, if it was made.
    pub(crate) fn planned(&self) -> Option<Arc<P>> {
        self.plan.lock().as_ref().map(|planned| Arc::clone(&planned.plan))
    }

    /// Shows every row to `see`.
    #[cfg(test)]
    pub(crate) fn each(&self, mut see: impl FnMut(&mut R)) {
        self.rows.iter().for_each(|row| see(&mut row.lock().items));
    }

    /// Forgets everything.
    pub(crate) fn clear(&self, memory: &Memory) {
        let planned = self.plan.lock().take().map_or(0, |planned| planned.taken);
        let left: u64 = self.rows.iter().map(|row| std::mem::take(&mut *row.lock()).taken).sum();
        memory.give(Part::Buffers, planned + left);
    }
}

/// Nothing is gathered.
impl<I> Gather<I> for () {
    fn push(&self, _index: &I, records: &[Replay<'_>], _ground: &Ground, one: &mut One<'_>) -> Result<()> {
        records.iter().try_for_each(one)
    }

    fn make(&self, _index: &I, _part_of: (usize, usize), _ground: &Ground) -> Result<Tally> {
        Ok(Tally::default())
    }

    fn join(&self, _index: &I) {}

    fn give_back(&self, _part_of: (usize, usize), _ground: &Ground, _one: &mut One<'_>) -> Result<()> {
        Ok(())
    }

    fn clear(&self, _memory: &Memory) {}
}

/// What a part of an index holds.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) keys: u64,
    /// Bytes of live entries and of removals, by slot of their segments.
    bytes: Vec<(u64, u64)>,
    /// Staged values, and the entries that name them.
    staged: Vec<(u64, Address)>,
}

impl Tally {
    /// Counts the newest entry of a key, or any removal.
    pub(crate) fn count(&mut self, address: Address, span: u32, content: Content<'_>) {
        let slot = address.slot() as usize; // of 16 bits
        if slot >= self.bytes.len() {
            self.bytes.resize(slot + 1, (0, 0));
        }
        let (live, tombs) = &mut self.bytes[slot];
        match content {
            Content::Remove => *tombs += u64::from(span),
            _ => {
                *live += u64::from(span);
                self.keys += 1;
            }
        }
        if let Content::Staged(blob) = content {
            self.staged.push((blob.id, address));
        }
    }

    /// Adds it to what is live.
    pub(crate) fn book(&self, accounts: &Accounts, ground: &Ground) {
        let guard = &epoch::pin();
        for (slot, (live, tombs)) in (0..).zip(&self.bytes) {
            if let Some(segment) = ground.segments.at(slot, guard) {
                segment.account(i64::try_from(*live).unwrap_or(0));
                segment.account_tomb(*tombs);
            }
        }
        self.staged.iter().for_each(|(blob, address)| accounts.name(*blob, *address));
    }
}
