//! # Sessions: state of one client, shared by all threads

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sheaf::{Error, KeyspaceSnapshot, Result, Snapshot};
use sheaf_flatrpc::handshake::ReplyMode;
use sheaf_flatrpc::memory::SharedMemory;
use sheaf_flatrpc::ring::InboxLayout;

use crate::commands::Recipient;
use crate::commit_order::WritingFlag;

/// State of a worker for one client, in its own cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct LaneState {
    /// Position up to which the client's ring was read.
    pub(crate) head: AtomicU64,
    /// Set while the worker commits and has not handed over the reply (see `commit_order`).
    pub(crate) writing: WritingFlag,
}

/// State of one client.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) recipient: Recipient,
    pub(crate) mode: ReplyMode,
    pub(crate) agent: usize,
    /// Memory that the client writes.
    pub(crate) inbox: Arc<SharedMemory>,
    /// Layout of `inbox`.
    pub(crate) layout: InboxLayout,
    /// The session has ended: each worker must release its part.
    pub(crate) is_ended: AtomicBool,
    pub(crate) lanes: Box<[LaneState]>,
    /// Bytes of replies that are not in the client's ring yet.
    pub(crate) unsent_bytes: AtomicUsize,
    /// Set if a worker left requests in a ring because `unsent_bytes` was too high.
    pub(crate) is_paused: AtomicBool,
    /// Number of requests that wait for the device.
    pub(crate) waiting_requests: AtomicU32,
    snapshots: Mutex<SessionSnapshots>,
    slots: Arc<SessionSlots>,
}

impl Session {
    pub(crate) fn new(
        whom: Recipient,
        mode: ReplyMode,
        agent: usize,
        workers: usize,
        layout: InboxLayout,
        inbox: Arc<SharedMemory>,
        slots: Arc<SessionSlots>,
    ) -> Session {
        Session {
            recipient: whom,
            mode,
            agent,
            inbox,
            layout,
            is_ended: AtomicBool::new(false),
            lanes: (0..workers).map(|_| LaneState::default()).collect(),
            unsent_bytes: AtomicUsize::new(0),
            is_paused: AtomicBool::new(false),
            waiting_requests: AtomicU32::new(0),
            snapshots: Mutex::default(),
            slots,
        }
    }

    /// Returns the worker that owns the port for replies of `lane`.
    pub(crate) fn owner(&self, lane: usize) -> usize {
        match self.mode {
            ReplyMode::Agent => self.agent,
            ReplyMode::AllToAll => lane,
        }
    }

    /// Returns true if replies of several workers share one port.
    pub(crate) fn needs_ordering(&self) -> bool {
        self.mode == ReplyMode::Agent && self.lanes.len() > 1
    }

    /// Returns the words of requests taken from the rings of the client.
    pub(crate) fn request_words(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.head.load(Ordering::Relaxed)).sum()
    }

    /// Returns the writing flags of all workers.
    pub(crate) fn writing_flags(&self) -> impl Iterator<Item = &WritingFlag> {
        self.lanes.iter().map(|lane| &lane.writing)
    }

    fn snapshots(&self) -> std::sync::MutexGuard<'_, SessionSnapshots> {
        self.snapshots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a snapshot under a number. Returns `None` if there are `most` already.
    pub(crate) fn store_snapshot(
        &self,
        most: usize,
        take: impl FnOnce() -> Result<Snapshot>,
    ) -> Result<Option<(u32, u64)>> {
        let mut snapshots = self.snapshots();
        if snapshots.by_number.len() >= most || snapshots.last_number == u32::MAX {
            return Ok(None);
        }
        let snapshot = take()?;
        let seq = snapshot.seq();
        snapshots.last_number += 1;
        let number = snapshots.last_number;
        snapshots.by_number.insert(number, SessionSnapshot { snapshot, keyspaces: HashMap::new() });
        Ok(Some((number, seq)))
    }

    /// Releases a snapshot.
    pub(crate) fn release(&self, number: u32) -> Result<()> {
        let held = self.snapshots().by_number.remove(&number);
        held.map(drop).ok_or_else(|| unknown_snapshot(number))
    }

    /// Returns a keyspace in a snapshot. Calls `name` at the first use only.
    pub(crate) fn snapshot_keyspace(
        &self,
        snapshot: u32,
        keyspace: u32,
        name: impl FnOnce() -> Result<String>,
    ) -> Result<KeyspaceSnapshot> {
        let mut snapshots = self.snapshots();
        let held = snapshots.by_number.get_mut(&snapshot).ok_or_else(|| unknown_snapshot(snapshot))?;
        if let Some(space) = held.keyspaces.get(&keyspace) {
            return Ok(space.clone());
        }
        let space = held.snapshot.keyspace(&name()?)?;
        held.keyspaces.insert(keyspace, space.clone());
        Ok(space)
    }
}

fn unknown_snapshot(number: u32) -> Error {
    Error::InvalidArgument {
        argument: "snapshot",
        reason: format!("this connection has no snapshot number {number}"),
    }
}

/// Snapshots of a client.
#[derive(Default)]
struct SessionSnapshots {
    last_number: u32,
    by_number: HashMap<u32, SessionSnapshot>,
}

impl std::fmt::Debug for SessionSnapshots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} snapshots", self.by_number.len())
    }
}

struct SessionSnapshot {
    snapshot: Snapshot,
    keyspaces: HashMap<u32, KeyspaceSnapshot>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.slots.free(self.recipient.slot);
    }
}

/// Slots for sessions. A slot is free again when no thread references its session any more.
#[derive(Debug)]
pub(crate) struct SessionSlots {
    free: Mutex<Vec<usize>>,
    total: usize,
}

impl SessionSlots {
    pub(crate) fn new(count: usize) -> SessionSlots {
        SessionSlots { free: Mutex::new((0..count).rev().collect()), total: count }
    }

    pub(crate) fn allocate(&self) -> Option<usize> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    pub(crate) fn free(&self, slot: usize) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(slot);
    }

    pub(crate) fn used_count(&self) -> usize {
        self.total - self.free.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}
