//! # Sort: a store log in the order of keys, when asked
//!
//! Records stand in the log in the order of their arrival, so a scan reads each from another place. Sorting copies the newest
//! record of each key, in the order of keys, into a stream of survivors: a scan then reads the log from front to
//! back. It is the cleaner's work in another order, and has its rules: copies carry their own numbers, the engine is pointed at them
//! with the stripe of the key held, and the old records go with their segments.
//!
//! ## Picture
//!
//! ```text
//!  keys of a view, some hundred a step ─> locate, hold ─> in order already: left
//!                                                    └─> copied into stream 5, engine.moved(from -> to)
//! ```
//!
//! ## Invariants
//!
//! 1. Only records of durable commits are copied: recovery believes a copy (commit.md R15), and what it copies must not be cut.
//! 2. A step holds the maintenance lock: no segment is cleaned away between the look at a record and its copy.
//!
//! ## Threads
//!
//! The caller's. It waits as writers do when cleaning or the engine is behind, once a record. Writers and readers go on.
//!
//! ## Crash
//!
//! Copies beside what they are copies of, as the cleaner leaves them. What was sorted stays so as far as its copies were synced.
//!
//! ## Costs
//!
//! Each record that is not in its place is written once, and its old place is cleaned; while that is behind, the log takes
//! up to its space limit. Memory: a step's keys. The reserve for removals is not touched: on a full disk sorting ends with an error.

use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use super::clean::{Piece, SORTED, Survivor};
use super::stall::Waits;
use super::{Kept, Store};
use crate::engine::{Bounds, Hold, Want};
use crate::error::{Error, Result};
use crate::frame::body_sum;
use crate::record::Record;
use crate::segment::{Address, Frame};
use crate::sync::atomic::Ordering;
use crate::sync::epoch;
use crate::types::LogId;

/// Keys of a step, and about how many bytes it copies at most.
const STEP: usize = 512;
const STEP_BYTES: u64 = 1 << 20;
/// Copies are made durable after so many bytes.
const SYNC_BYTES: u64 = 64 << 20;
/// A record follows another one if it stands at most so many bytes behind it.
const NEAR: u64 = 256;
/// A step whose records follow each other but for one in this many is left as it is.
const SORTED_ENOUGH: usize = 8;

/// Result of a compaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Compacted {
    /// Pairs with records that were rewritten.
    pub moved: u64,
    /// Bytes of these records.
    pub bytes: u64,
    /// Pairs that were in order already or were written recently.
    pub left: u64,
}

impl Store {
    /// Whether the records of a keyspace stand in a log, and its keys in an order.
    pub(super) fn can_sort(&self, kept: &Kept) -> Result<bool> {
        let engine = kept.engine()?;
        Ok(engine.capabilities().ordered && engine.log() == LogId::Flat)
    }

    /// Puts the records of a keyspace in the order of its keys. For ordered engines of the store log.
    pub fn sort(self: &Arc<Store>, kept: &Arc<Kept>) -> Result<Compacted> {
        self.sort_watched(kept, &mut |_| ControlFlow::Continue(()))
    }

    /// The same; `watcher` is told after each step, and may end it ([`Error::Cancelled`]): what is done stays done.
    pub fn sort_watched(
        self: &Arc<Store>,
        kept: &Arc<Kept>,
        watcher: &mut dyn FnMut(&Compacted) -> ControlFlow<()>,
    ) -> Result<Compacted> {
        self.check_writable()?;
        if !self.can_sort(kept)? {
            return Err(Error::Unsupported { engine: kept.engine_name(), feature: "sorting records by key" });
        }
        self.wait_durable(self.newest())?; // I1
        let mut sorted = Compacted::default();
        let mut low = Bound::Unbounded;
        let mut unsynced = 0;
        loop {
            self.check_writable()?;
            if kept.is_gone() {
                return Err(Error::NoKeyspace { name: kept.name().to_owned() });
            }
            if self.full.load(Ordering::Relaxed) {
                return Err(Error::NoSpace { path: self.dir.clone() });
            }
            let keys = self.keys_from(kept, low)?;
            let before = sorted;
            let count = self.sort_step(kept, &keys, &mut sorted)?;
            let Some(last) = count.checked_sub(1).and_then(|last| keys.into_iter().nth(last)) else { break };
            low = Bound::Excluded(last);
            if watcher(&sorted).is_break() {
                return Err(Error::Cancelled);
            }
            unsynced += sorted.bytes - before.bytes;
            if unsynced > SYNC_BYTES {
                unsynced = 0;
                self.sync_survivors(&mut self.maintenance.lock())?;
            }
            (before.moved..sorted.moved).for_each(|_| drop(self.brake(&[], &mut Waits::patient())));
        }
        self.sync_survivors(&mut self.maintenance.lock())?;
        Ok(sorted)
    }

    /// The keys of a step.
    fn keys_from(self: &Arc<Store>, kept: &Kept, low: Bound<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
        let view = self.view()?;
        let bounds = Bounds { low, high: Bound::Unbounded };
        let mut cursor = kept.engine()?.cursor(view.seq(), bounds, Want::Keys)?;
        let mut keys = Vec::with_capacity(STEP);
        while keys.len() < STEP && cursor.next()? {
            keys.push(cursor.key().to_vec());
        }
        Ok(keys)
    }

    /// Copies the newest records of as many of `keys` as a step takes; how many.
    fn sort_step(&self, kept: &Arc<Kept>, keys: &[Vec<u8>], sorted: &mut Compacted) -> Result<usize> {
        let engine = kept.engine()?;
        let log = self.log(LogId::Flat);
        let mut m = self.maintenance.lock();
        let durable = self.durable();
        let guard = &epoch::pin();
        let (mut count, mut bytes) = (0, 0);
        let mut found: Vec<(Address, Frame<'_>)> = Vec::with_capacity(keys.len());
        for key in keys {
            if bytes >= STEP_BYTES {
                break;
            }
            count += 1;
            let Some(address) = engine.locate(key)? else { continue };
            let frame = self.ground.segments.frame(address, guard)?;
            bytes += frame.span();
            match frame.header.seq <= durable {
                true => found.push((address, frame)),
                false => sorted.left += 1, // I1
            }
        }
        if is_in_order(&found) {
            sorted.left += found.len() as u64;
            return Ok(count);
        }
        let (mut piece, tails) = (Piece::default(), &mut m.survivors_of(log.id, 1)[0]);
        for (address, frame) in &found {
            let body = frame.payload();
            let damaged = |what| self.ground.segments.damaged(*address, what, guard);
            let record = Record::decode(body).map_err(damaged)?;
            let wanted = engine.wanted(record.key);
            if engine.hold(wanted, *address)? != Hold::Head {
                continue; // superseded meanwhile
            }
            let (header, sum) = (frame.header, body_sum(body));
            let hold = Hold::Head;
            let survivor = Survivor { kept, hold, from: *address, header, body, sum, record, wanted };
            self.copy(tails, log, &survivor, SORTED, &mut piece)?;
            sorted.moved += 1;
            sorted.bytes += frame.span();
        }
        self.flush(tails, log, SORTED, &mut piece)?;
        piece.check()?;
        Ok(count)
    }
}

/// Whether a scan would read these one behind the other.
fn is_in_order(found: &[(Address, Frame<'_>)]) -> bool {
    let follows = |pair: &[(Address, Frame<'_>)]| {
        let [(a, frame), (b, _)] = pair else { return true };
        let end = a.offset() + frame.span();
        a.slot() == b.slot() && (end..=end + NEAR).contains(&b.offset())
    };
    let breaks = found.windows(2).filter(|pair| !follows(pair)).count();
    breaks <= found.len() / SORTED_ENOUGH
}
