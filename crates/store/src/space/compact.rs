//! # Compaction: the store log in the order of keys
//!
//! The log has records in the order of their arrival, so that a scan reads each one from another
//! place. Compaction copies the newest record of each key, in key order, into a stream of
//! survivors. Copies follow the rules of GC. They keep their seq, the engine is updated with the
//! stripe of the key held, and old records are freed with their segments.
//!
//! ## Picture
//!
//! ```text
//!  keys of a view, some hundred per step ─> locate ─> in order already: skip
//! └─> copy into SORTED_STREAM, StoreLogIndex::relocate
//! ```
//!
//! ## Invariants
//!
//! 1. Only records of durable commits are copied: recovery accepts every copy (commit.md R15), so a
//!    copied commit must not be cut.
//! 2. A step holds the maintenance lock, so that no segment is freed between reading a record and
//!    copying it.
//!
//! ## Threads
//!
//! The caller's. After each step it is throttled like the writers, once per record. Writers and
//! readers continue.
//!
//! ## Crash
//!
//! Recovery finds copies and originals, as after a crash of GC. Synced copies remain sorted.

use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use crate::commit::stall::CommitWaits;
use crate::space::gc::{SORTED_STREAM, Survivor, SurvivorBuffer};
use crate::{KeyspaceState, Store};
use sheaf_engine::contract::{Bounds, Liveness, Projection};
use sheaf_log::frame::body_sum;
use sheaf_log::record::Record;
use sheaf_log::segment::{Address, Frame};
use sheaf_log::types::LogId;
use sheaf_platform::error::{Error, Result};
use sheaf_platform::sync::epoch;

/// Keys per step, and the bytes after which it ends early.
const STEP_KEYS: usize = 512;
const STEP_BYTES: u64 = 1 << 20;
/// Copies are made durable after this many bytes.
const SYNC_BYTES: u64 = 64 << 20;
/// A record is adjacent to another one if it starts at most this many bytes behind it.
const ADJACENT_BYTES: u64 = 256;
/// A step is skipped if at most one in this many records is not adjacent to its predecessor.
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
    /// Returns true if the keyspace keeps its records in the store log and is ordered.
    pub(crate) fn can_sort(&self, keyspace: &KeyspaceState) -> Result<bool> {
        let engine = keyspace.engine()?;
        Ok(engine.capabilities().ordered && engine.log() == LogId::ValueLog)
    }

    /// Sorts the records of a keyspace by key, for ordered engines over the store log. While GC is
    /// behind, the log grows up to its space limit. The reserve for removals is not used.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Store::sort_with_progress`], except [`Error::Cancelled`].
    pub fn sort_log(self: &Arc<Store>, keyspace: &Arc<KeyspaceState>) -> Result<CompactionReport> {
        self.sort_with_progress(keyspace, &mut |_| ControlFlow::Continue(()))
    }

    /// Like [`Store::sort_log`]. Calls `watcher` after each step; `Break` ends the compaction,
    /// which keeps its completed work.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unsupported`] if the engine is not ordered or does not use the store log.
    /// Returns [`Error::KeyspaceNotFound`] if the keyspace was dropped, and [`Error::NoSpace`] if
    /// the disk is full. Returns [`Error::Cancelled`] if `watcher` ends it, and errors of a read or
    /// write.
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
                return Err(Error::KeyspaceNotFound { name: keyspace.name().to_string() });
            }
            if self.disk_state.is_full() {
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
                self.sync_survivors(&mut self.root.maintenance.lock())?;
            }
            (before.rewritten_pairs..sorted.rewritten_pairs)
                .for_each(|_| drop(self.throttle(&[], &mut CommitWaits::blocking())));
        }
        self.sync_survivors(&mut self.root.maintenance.lock())?;
        Ok(sorted)
    }

    /// Returns the keys of a step.
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

    /// Copies the newest records of as many `keys` as a step permits. Returns the number of keys
    /// done.
    fn sort_step(
        &self,
        keyspace: &Arc<KeyspaceState>,
        keys: &[Vec<u8>],
        sorted: &mut CompactionReport,
    ) -> Result<usize> {
        let engine = keyspace.engine()?;
        let Some(index) = engine.store_log_index() else { return Ok(keys.len()) };
        let log = self.log(LogId::ValueLog);
        let mut m = self.root.maintenance.lock();
        let durable = self.durable();
        let guard = &epoch::pin();
        let (mut count, mut bytes) = (0, 0);
        let mut found: Vec<(Address, Frame<'_>)> = Vec::with_capacity(keys.len());
        for key in keys {
            if bytes >= STEP_BYTES {
                break;
            }
            count += 1;
            let Some(address) = index.locate(key)? else { continue };
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
            if index.liveness(hashed_key, *address)? != Liveness::Newest {
                continue; // superseded since
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

/// Returns true if a scan would read almost all of these records sequentially.
fn is_in_order(found: &[(Address, Frame<'_>)]) -> bool {
    let follows = |pair: &[(Address, Frame<'_>)]| {
        let [(a, frame), (b, _)] = pair else { return true };
        let end = a.offset() + frame.span();
        a.slot() == b.slot() && (end..=end + ADJACENT_BYTES).contains(&b.offset())
    };
    let breaks = found.windows(2).filter(|pair| !follows(pair)).count();
    breaks <= found.len() / SORTED_DIVISOR
}
