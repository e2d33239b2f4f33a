//! # Check: what must be true of a machine after a crash
//!
//! 1. The database opens without help, and its state is one of the prefixes that were promised.
//! 2. It takes a commit, whose number is above every number seen before the crash.
//! 3. Closed (or cut off from its power) and opened again, it holds exactly that: nothing that was
//!    dropped comes back, nothing that was served goes.
//!
//! With a *probe*, the disk is forked before every call of all this, for a second crash.

#![allow(clippy::cast_possible_truncation)] // numbers here are small by construction

use std::sync::Arc;

use sheaf::{Database, Durability, KeyspaceOptions};
use sheaf_base::disk::sim::{Keep, SimDisk};
use sheaf_base::sync::Mutex;

use super::history::{Change, History, Marks, NAMES, State};
use super::world::World;
use crate::trial::trial;

/// No recovery in tiny geometry takes this many disk calls.
const FUSE: u64 = 200_000;

/// What a machine may hold: a prefix of `history` between two lengths.
#[derive(Clone, Copy)]
pub struct Claim<'a> {
    /// The commits.
    pub history: &'a History,
    /// At least so many of them.
    pub from: usize,
    /// At least so many of them if the power fails before it is served.
    pub durable: usize,
    /// At most so many.
    pub to: usize,
    /// Numbers up to here were seen.
    pub seq: u64,
}

/// What a machine turned out to hold.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// The print of its state.
    pub print: u64,
    /// The number of the first commit after.
    pub seq: u64,
}

/// A moment of the check at which the power may fail again.
pub struct Moment {
    /// The disk at that moment.
    pub image: SimDisk,
    /// `None` while the database is opening; later how far the commits after the crash have come.
    pub marks: Option<Marks>,
}

/// Forks taken during a check.
#[derive(Default)]
pub struct Probe {
    /// The moments, in order.
    pub moments: Vec<Moment>,
    /// The state served after the first crash and the commit on top of it.
    pub aftermath: Option<History>,
}

/// How the first life after the crash goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It is closed in order.
    Close,
    /// The power fails.
    Cut,
    /// Before the commit it is closed and opened once more, with nothing done; then the power fails.
    Idle,
}

impl End {
    /// One that a number chooses.
    #[must_use]
    pub fn of(number: u64) -> End {
        [End::Close, End::Cut, End::Cut, End::Idle][(number >> 1 & 3) as usize]
    }
}

/// Opens the database on `world` and checks everything.
pub fn check(world: &World, claim: Claim<'_>, end: End, probe: Option<&mut Probe>) -> Result<Found, String> {
    let shared: Arc<Mutex<Probe>> = Arc::default();
    if probe.is_some() {
        let (sim, shared) = (world.sim.clone(), Arc::clone(&shared));
        world.tap.watch(move |_, _| {
            let mut shared = shared.lock();
            let marks = shared.aftermath.as_ref().map(|history| history.marks);
            shared.moments.push(Moment { image: sim.fork(), marks });
        });
    }
    world.tap.set_fuse(FUSE);
    let found = trial("the check of a crash state", || {
        let (found, state) = first_life(world, claim, &shared, end)?;
        world.tap.unwatch();
        let next = if end == End::Close { world.clone() } else { world.cut(&Keep::None) };
        second_life(&next, &state, found.seq)?;
        Ok(found)
    });
    world.tap.unwatch();
    if let Some(probe) = probe {
        *probe = std::mem::take(&mut *shared.lock());
    }
    found
}

fn first_life(
    world: &World,
    claim: Claim<'_>,
    shared: &Mutex<Probe>,
    end: End,
) -> Result<(Found, State), String> {
    let mut db = world.open().map_err(|e| format!("it does not open: {e}"))?;
    let mut state = State::read(&db).map_err(|e| format!("it cannot be read: {e}"))?;
    let print = state.print();
    if claim.history.find(print, claim.from, claim.to).is_none() {
        return Err(claim.history.explain(&state, claim.from, claim.to));
    }
    shared.lock().aftermath = Some(History::after(state.clone()));
    if end == End::Idle {
        db.close().map_err(|e| format!("it does not close: {e}"))?;
        db = world.open().map_err(|e| format!("closed again, it does not open: {e}"))?;
    }
    if state.spaces[0].is_none() {
        note(shared, vec![Change::Create(0)], &mut state);
        db.keyspace(NAMES[0], world.subject.options_of(world.subject.engines()[0]))
            .map_err(|e| format!("no keyspace can be made: {e}"))?;
        settle(shared);
    }
    let changes = probe_commit(&state);
    note(shared, changes.clone(), &mut state);
    let seq = commit(&db, &changes).map_err(|e| format!("it takes no commit: {e}"))?;
    settle(shared);
    if seq <= claim.seq {
        return Err(format!("commit number {seq} is used again: {} was seen before the crash", claim.seq));
    }
    if end == End::Close {
        db.close().map_err(|e| format!("it does not close: {e}"))?;
    }
    Ok((Found { print, seq }, state))
}

fn second_life(world: &World, state: &State, seq: u64) -> Result<(), String> {
    let db = world.open().map_err(|e| format!("it does not open a second time: {e}"))?;
    let again = State::read(&db).map_err(|e| format!("it cannot be read a second time: {e}"))?;
    if again != *state {
        return Err(format!("opened again it differs: {}", again.difference(state)));
    }
    let visible = db.stats().visible;
    if visible < seq {
        return Err(format!("opened again it is at commit {visible}, before {seq}"));
    }
    Ok(())
}

fn note(shared: &Mutex<Probe>, changes: Vec<Change>, state: &mut State) {
    for change in &changes {
        state.apply(change);
    }
    if let Some(history) = shared.lock().aftermath.as_mut() {
        history.issue(changes);
    }
}

fn settle(shared: &Mutex<Probe>) {
    if let Some(history) = shared.lock().aftermath.as_mut() {
        history.acknowledge(true);
    }
}

/// A batch over all keyspaces there are: a key of its own and, in each, a key of the workload.
fn probe_commit(state: &State) -> Vec<Change> {
    let there = state.spaces.iter().enumerate().filter(|(_, pairs)| pairs.is_some());
    there
        .flat_map(|(space, _)| {
            [
                Change::Put(space, b"after the crash".to_vec(), vec![space as u8; 20]),
                Change::Put(space, b"key2".to_vec(), b"written after the crash".to_vec()),
                Change::Remove(space, b"key3".to_vec()),
            ]
        })
        .collect()
}

fn commit(db: &Database, changes: &[Change]) -> sheaf::Result<u64> {
    let mut batch = db.batch();
    batch.durability(Durability::Sync);
    for change in changes {
        let (Change::Put(space, key, _) | Change::Remove(space, key)) = change else {
            continue;
        };
        let keyspace = db.keyspace(NAMES[*space], KeyspaceOptions::default())?;
        match change {
            Change::Put(_, _, value) => batch.insert(&keyspace, key, value),
            _ => batch.remove(&keyspace, key),
        };
    }
    let ticket = batch.submit()?;
    ticket.wait()?;
    Ok(ticket.seq())
}
