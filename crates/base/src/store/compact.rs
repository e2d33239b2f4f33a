//! # Sort: a store log in the order of keys, when asked
//!
//! Records stand in the log in the order of their arrival, so a scan reads each from another place.
//! Sorting copies the newest record of each key, in the order of keys, into a stream of survivors:
//! a scan then reads the log from front to back. It is the cleaner's work in another order, and has
//! its rules: copies carry their own numbers, the engine is pointed at them with the stripe of the
//! key held, and the old records go with their segments.
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
//! 1. Only records of durable commits are copied: recovery believes a copy (commit.md R15), and
//!    what it copies must not be cut.
//! 2. A step holds the maintenance lock: no segment is cleaned away between the look at a record
//!    and its copy.
//!
//! ## Threads
//!
//! The caller's. It waits as writers do when cleaning or the engine is behind, once a record.
//! Writers and readers go on.
//!
//! ## Crash
//!
//! Copies beside what they are copies of, as the cleaner leaves them. What was sorted stays so as
//! far as its copies were synced.
//!
//! ## Costs
//!
//! Each record that is not in its place is written once, and its old place is cleaned; while that
//! is behind, the log takes up to its space limit. Memory: a step's keys. The reserve for removals
//! is not touched: on a full disk sorting ends with an error.

use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use super::gc::{SORTED_STREAM, Survivor, SurvivorBuffer};
use super::stall::CommitWaits;
use super::{KeyspaceState, Store};
use crate::engine::{Bounds, Liveness, Projection};
use crate::error::{Error, Result};
use crate::frame::body_sum;
use crate::record::Record;
use crate::segment::{Address, Frame};
use crate::sync::atomic::Ordering;
use crate::sync::epoch;
use crate::types::LogId;

/// Keys of a step, and about how many bytes it copies at most.
const STEP_KEYS: usize = 512;
const STEP_BYTES: u64 = 1 << 20;
/// Copies are made durable after so many bytes.
const SYNC_BYTES: u64 = 64 << 20;
/// A record follows another one if it stands at most so many bytes behind it.
const ADJACENT_BYTES: u64 = 256;
/// A step whose records follow each other but for one in this many is left as it is.
const SORTED_DIVISOR: usize = 8;

/// Result of a compaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompactionReport {
    /// Pairs with records that were rewritten.
    pub rewritten_pairs: u64,
    /// Bytes of these records.
    pub rewritten_bytes: u64,
    /// Pairs that were in order already or were written recently.
    pub skipped_pairs: u64,
}

impl Store {
    /// Whether the records of a keyspace stand in a log, and its keys in an order.
    pub(super) fn can_sort(&self, keyspace: &KeyspaceState) -> Result<bool> {
        let engine = keyspace.engine()?;
        Ok(engine.capabilities().ordered && engine.log() == LogId::ValueLog)
    }

    /// Puts the records of a keyspace in the order of its keys. For ordered engines of the store
    /// log.
    pub fn sort_log(self: &Arc<Store>, keyspace: &Arc<KeyspaceState>) -> Result<CompactionReport> {
        self.sort_with_progress(keyspace, &mut |_| ControlFlow::Continue(()))
    }

    /// The same; `watcher` is told after each step, and may end it ([`Error::Cancelled`]): what is
    /// done stays done.
    pub fn sort_with_progress(
        self: &Arc<Store>,
        keyspace: &Arc<KeyspaceState>,
        watcher: &mut dyn FnMut(&CompactionReport) -> ControlFlow<()>,
    ) -> Result<CompactionReport> {
        self.check_writable()?;
        if !self.can_sort(keyspace)? {
            return Err(Error::Unsupported {
                engine: keyspace.engine_name(),
                feature: "sorting records by key",
            });
        }
        self.wait_durable(self.newest())?; // I1
        let mut sorted = CompactionReport::default();
        let mut low = Bound::Unbounded;
        let mut unsynced = 0;
        loop {
            self.check_writable()?;
            if keyspace.is_dropped() {
                return Err(Error::KeyspaceNotFound { name: keyspace.name().to_owned() });
            }
            if self.is_disk_full.load(Ordering::Relaxed) {
                return Err(Error::NoSpace { path: self.dir.clone() });
            }
            let keys = self.keys_from(keyspace, low)?;
            let before = sorted;
            let count = self.sort_step(keyspace, &keys, &mut sorted)?;
            let Some(last) = count.checked_sub(1).and_then(|last| keys.into_iter().nth(last)) else { break };
            low = Bound::Excluded(last);
            if watcher(&sorted).is_break() {
                return Err(Error::Cancelled);
            }
            unsynced += sorted.rewritten_bytes - before.rewritten_bytes;
            if unsynced > SYNC_BYTES {
                unsynced = 0;
                self.sync_survivors(&mut self.maintenance.lock())?;
            }
            (before.rewritten_pairs..sorted.rewritten_pairs)
                .for_each(|_| drop(self.throttle(&[], &mut CommitWaits::blocking())));
        }
        self.sync_survivors(&mut self.maintenance.lock())?;
        Ok(sorted)
    }

    /// The keys of a step.
    fn keys_from(self: &Arc<Store>, keyspace: &KeyspaceState, low: Bound<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
        let view = self.view()?;
        let bounds = Bounds { low, high: Bound::Unbounded };
        let mut cursor = keyspace.engine()?.cursor(view.seq(), bounds, Projection::Keys)?;
        let mut keys = Vec::with_capacity(STEP_KEYS);
        while keys.len() < STEP_KEYS && cursor.next()? {
            keys.push(cursor.key().to_vec());
        }
        Ok(keys)
    }

    /// Copies the newest records of as many of `keys` as a step takes; how many.
    fn sort_step(
        &self,
        keyspace: &Arc<KeyspaceState>,
        keys: &[Vec<u8>],
        sorted: &mut CompactionReport,
    ) -> Result<usize> {
        let engine = keyspace.engine()?;
        let log = self.log(LogId::ValueLog);
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
            let frame = self.context.segments.frame(address, guard)?;
            bytes += frame.span();
            match frame.header.seq <= durable {
                true => found.push((address, frame)),
                false => sorted.skipped_pairs += 1, // I1
            }
        }
        if is_in_order(&found) {
            sorted.skipped_pairs += found.len() as u64;
            return Ok(count);
        }
        let (mut piece, tails) = (SurvivorBuffer::default(), &mut m.survivors_of(log.id, 1)[0]);
        for (address, frame) in &found {
            let body = frame.payload();
            let damaged = |what| self.context.segments.damage_error(*address, what, guard);
            let record = Record::decode(body).map_err(damaged)?;
            let hashed_key = engine.hashed_key(record.key);
            if engine.liveness(hashed_key, *address)? != Liveness::Newest {
                continue; // superseded meanwhile
            }
            let (header, sum) = (frame.header, body_sum(body));
            let liveness = Liveness::Newest;
            let survivor = Survivor {
                keyspace,
                liveness,
                from: *address,
                header,
                body,
                checksum: sum,
                record,
                hashed_key,
            };
            self.copy_survivor(tails, log, &survivor, SORTED_STREAM, &mut piece)?;
            sorted.rewritten_pairs += 1;
            sorted.rewritten_bytes += frame.span();
        }
        self.flush_survivors(tails, log, SORTED_STREAM, &mut piece)?;
        piece.check()?;
        Ok(count)
    }
}

/// Whether a scan would read these one behind the other.
fn is_in_order(found: &[(Address, Frame<'_>)]) -> bool {
    let follows = |pair: &[(Address, Frame<'_>)]| {
        let [(a, frame), (b, _)] = pair else { return true };
        let end = a.offset() + frame.span();
        a.slot() == b.slot() && (end..=end + ADJACENT_BYTES).contains(&b.offset())
    };
    let breaks = found.windows(2).filter(|pair| !follows(pair)).count();
    breaks <= found.len() / SORTED_DIVISOR
}
