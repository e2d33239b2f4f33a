//! # Sessions: state of one client, shared by all threads

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sheaf::{Error, KeyspaceSnapshot, Result, Snapshot};
use sheaf_flatrpc::hello::Mode;
use sheaf_flatrpc::memory::Memory;
use sheaf_flatrpc::ring::Layout;

use crate::commands::Whom;
use crate::gate::Writing;

/// State of a worker for one client, in its own cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct LaneState {
    /// Position up to which the client's ring was read.
    pub(crate) head: AtomicU64,
    /// Set while the worker commits and has not handed over the reply (see `gate`).
    pub(crate) writing: Writing,
}

/// State of one client.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) whom: Whom,
    pub(crate) mode: Mode,
    pub(crate) agent: usize,
    /// Memory that the client writes.
    pub(crate) inbox: Arc<Memory>,
    /// Layout of `inbox`.
    pub(crate) layout: Layout,
    /// The session has ended: each worker must release its part.
    pub(crate) dead: AtomicBool,
    pub(crate) lanes: Box<[LaneState]>,
    /// Bytes of replies that are not in the client's ring yet.
    pub(crate) owed: AtomicUsize,
    /// Set if a worker left requests in a ring because `owed` was too high.
    pub(crate) paused: AtomicBool,
    /// Number of requests that wait for the device.
    pub(crate) waiting: AtomicU32,
    snapshots: Mutex<Snapshots>,
    slots: Arc<Slots>,
}

impl Session {
    pub(crate) fn new(
        whom: Whom,
        mode: Mode,
        agent: usize,
        workers: usize,
        layout: Layout,
        inbox: Arc<Memory>,
        slots: Arc<Slots>,
    ) -> Session {
        Session {
            whom,
            mode,
            agent,
            inbox,
            layout,
            dead: AtomicBool::new(false),
            lanes: (0..workers).map(|_| LaneState::default()).collect(),
            owed: AtomicUsize::new(0),
            paused: AtomicBool::new(false),
            waiting: AtomicU32::new(0),
            snapshots: Mutex::default(),
            slots,
        }
    }

    /// Returns the worker that owns the port for replies of `lane`.
    pub(crate) fn owner(&self, lane: usize) -> usize {
        match self.mode {
            Mode::Agent => self.agent,
            Mode::AllToAll => lane,
        }
    }

    /// Returns true if replies of several workers share one port.
    pub(crate) fn is_gated(&self) -> bool {
        self.mode == Mode::Agent && self.lanes.len() > 1
    }

    /// Returns the words of requests taken from the rings of the client.
    pub(crate) fn asked(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.head.load(Ordering::Relaxed)).sum()
    }

    /// Returns the writing flags of all workers.
    pub(crate) fn writing(&self) -> impl Iterator<Item = &Writing> {
        self.lanes.iter().map(|lane| &lane.writing)
    }

    fn snapshots(&self) -> std::sync::MutexGuard<'_, Snapshots> {
        self.snapshots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a snapshot under a number. Returns `None` if there are `most` already.
    pub(crate) fn keep(
        &self,
        most: usize,
        take: impl FnOnce() -> Result<Snapshot>,
    ) -> Result<Option<(u32, u64)>> {
        let mut snapshots = self.snapshots();
        if snapshots.held.len() >= most || snapshots.last == u32::MAX {
            return Ok(None);
        }
        let snapshot = take()?;
        let seq = snapshot.seq();
        snapshots.last += 1;
        let number = snapshots.last;
        snapshots.held.insert(number, Held { snapshot, spaces: HashMap::new() });
        Ok(Some((number, seq)))
    }

    /// Releases a snapshot.
    pub(crate) fn release(&self, number: u32) -> Result<()> {
        let held = self.snapshots().held.remove(&number);
        held.map(drop).ok_or_else(|| no_snapshot(number))
    }

    /// Returns a keyspace in a snapshot. Calls `name` at the first use only.
    pub(crate) fn space(
        &self,
        snapshot: u32,
        keyspace: u32,
        name: impl FnOnce() -> Result<String>,
    ) -> Result<KeyspaceSnapshot> {
        let mut snapshots = self.snapshots();
        let held = snapshots.held.get_mut(&snapshot).ok_or_else(|| no_snapshot(snapshot))?;
        if let Some(space) = held.spaces.get(&keyspace) {
            return Ok(space.clone());
        }
        let space = held.snapshot.keyspace(&name()?)?;
        held.spaces.insert(keyspace, space.clone());
        Ok(space)
    }
}

fn no_snapshot(number: u32) -> Error {
    Error::Invalid { what: "snapshot", why: format!("this connection has no snapshot number {number}") }
}

/// Snapshots of a client.
#[derive(Default)]
struct Snapshots {
    last: u32,
    held: HashMap<u32, Held>,
}

impl std::fmt::Debug for Snapshots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} snapshots", self.held.len())
    }
}

struct Held {
    snapshot: Snapshot,
    spaces: HashMap<u32, KeyspaceSnapshot>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.slots.give_back(self.whom.slot);
    }
}

/// Slots for sessions. A slot is free again when no thread references its session any more.
#[derive(Debug)]
pub(crate) struct Slots {
    free: Mutex<Vec<usize>>,
    total: usize,
}

impl Slots {
    pub(crate) fn new(count: usize) -> Slots {
        Slots { free: Mutex::new((0..count).rev().collect()), total: count }
    }

    pub(crate) fn take(&self) -> Option<usize> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    pub(crate) fn give_back(&self, slot: usize) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(slot);
    }

    pub(crate) fn used(&self) -> usize {
        self.total - self.free.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}
