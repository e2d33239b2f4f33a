//! # Checks of a machine after a crash
//!
//! 1. The database opens without help, and its state is one of the allowed prefixes.
//! 2. It accepts a commit with a number above every number seen before the crash.
//! 3. If pairs may expire, the background removes all that do, and no other.
//! 4. After a close (or a power cut) and another opening it holds exactly that state: nothing
//!    dropped returns, and nothing that a reader could see is lost.
//!
//! With a *recording*, the disk is forked before each of these disk calls, for a second crash.

#![allow(clippy::cast_possible_truncation)] // numbers here are small by construction

use std::sync::Arc;

use sheaf::{Database, Durability, KeyspaceOptions};
use sheaf_platform::clock::{Clock, UnixMillis};
use sheaf_platform::sync::Mutex;
use sheaf_sim::{KeepChoice, SimDisk};

use super::history::{CommitHistory, ExpectedState, HistoryChange, HistoryMarks, KEYSPACE_NAMES};
use super::machine::TestMachine;
use crate::replica::{Replica, read_snapshot};
use crate::supervise::run_supervised;

/// No recovery in tiny geometry makes this many disk calls.
const CALL_LIMIT: u64 = 200_000;

/// States that a machine may have: a prefix of `history` between two lengths.
#[derive(Clone, Copy)]
pub struct ExpectedPrefix<'a> {
    /// The commits.
    pub history: &'a CommitHistory,
    /// Minimum number of commits.
    pub min_commits: usize,
    /// Minimum number of commits if the power fails again before the database has opened.
    pub min_after_power_cut: usize,
    /// Maximum number of commits.
    pub max_commits: usize,
    /// Highest commit number seen before the crash.
    pub seen_seq: u64,
    /// Time of the crash, if pairs may expire.
    pub now: Option<UnixMillis>,
}

impl ExpectedPrefix<'_> {
    /// Whether a state with this fingerprint is allowed.
    #[must_use]
    pub fn is_allowed(&self, fingerprint: u64) -> bool {
        let now = self.now.unwrap_or_default();
        self.history.find_prefix(fingerprint, self.min_commits, self.max_commits, now).is_some()
    }
}

/// State found on a machine.
#[derive(Clone, Copy, Debug)]
pub struct RecoveredState {
    /// Fingerprint of the state.
    pub fingerprint: u64,
    /// Number of the first commit after the crash.
    pub next_seq: u64,
}

/// Point of the check at which the power may fail again.
pub struct SecondCrashPoint {
    /// Disk at that point.
    pub image: SimDisk,
    /// Progress of the commits after the crash; `None` while the database is opening.
    pub marks: Option<HistoryMarks>,
    /// Time, if pairs may expire.
    pub now: Option<UnixMillis>,
}

/// Forks of the disk taken during a check.
#[derive(Default)]
pub struct RecoveryRecording {
    /// The points, in order.
    pub crash_points: Vec<SecondCrashPoint>,
    /// State after the first recovery, and the commits on top of it.
    pub after_recovery: Option<CommitHistory>,
}

/// End of the first opening after the crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterRecovery {
    /// The database is closed.
    Close,
    /// The power fails.
    PowerCut,
    /// The database is closed and opened again without a commit; then a commit, and the power
    /// fails.
    IdleReopen,
}

impl AfterRecovery {
    /// Returns the end that a number selects.
    #[must_use]
    pub fn from_number(number: u64) -> AfterRecovery {
        [AfterRecovery::Close, AfterRecovery::PowerCut, AfterRecovery::PowerCut, AfterRecovery::IdleReopen]
            [(number >> 1 & 3) as usize]
    }
}

/// Opens the database on `machine` and checks everything. Fills `recording`, if there is one.
///
/// # Errors
///
/// Returns a description of the first violation, or of a panic.
pub fn check(
    machine: &TestMachine,
    expected: ExpectedPrefix<'_>,
    end: AfterRecovery,
    recording: Option<&mut RecoveryRecording>,
) -> Result<RecoveredState, String> {
    let shared: Arc<Mutex<RecoveryRecording>> = Arc::default();
    if let Some(now) = expected.now {
        machine.clock.set_unix_millis(now);
    }
    if recording.is_some() {
        let (sim, shared) = (machine.sim.clone(), Arc::clone(&shared));
        let (clock, has_expiry) = (Arc::clone(&machine.clock), expected.now.is_some());
        machine.recording_disk.set_observer(move |_, _| {
            let mut shared = shared.lock();
            let marks = shared.after_recovery.as_ref().map(|history| history.marks);
            shared.crash_points.push(SecondCrashPoint {
                image: sim.fork(),
                marks,
                now: has_expiry.then(|| clock.unix_millis()),
            });
        });
    }
    machine.recording_disk.set_call_limit(CALL_LIMIT);
    let found = run_supervised("the check of a crash state", || {
        let (found, state) = check_first_open(machine, expected, &shared, end)?;
        machine.recording_disk.clear_observer();
        let next = if end == AfterRecovery::Close {
            machine.clone()
        } else {
            machine.after_power_cut(&KeepChoice::None)
        };
        check_second_open(&next, &state, found.next_seq)?;
        Ok(found)
    });
    machine.recording_disk.clear_observer();
    if let Some(recording) = recording {
        *recording = std::mem::take(&mut *shared.lock());
    }
    found
}

fn check_first_open(
    machine: &TestMachine,
    expected: ExpectedPrefix<'_>,
    shared: &Mutex<RecoveryRecording>,
    end: AfterRecovery,
) -> Result<(RecoveredState, ExpectedState), String> {
    let mut db = machine.open().map_err(|e| format!("it does not open: {e}"))?;
    let mut state = ExpectedState::read(&db).map_err(|e| format!("it cannot be read: {e}"))?;
    let print = state.fingerprint();
    if !expected.is_allowed(print) {
        let now = expected.now.unwrap_or_default();
        return Err(expected.history.explain(&state, expected.min_commits, expected.max_commits, now));
    }
    shared.lock().after_recovery = Some(CommitHistory::starting_at(state.clone()));
    if let Some(now) = expected.now {
        check_removal(machine, &db, &mut state, now)?;
    }
    check_feed(machine, &db)?;
    if end == AfterRecovery::IdleReopen {
        db.close().map_err(|e| format!("it does not close: {e}"))?;
        db = machine.open().map_err(|e| format!("closed again, it does not open: {e}"))?;
    }
    if state.keyspaces[0].is_none() {
        record_commit(shared, vec![HistoryChange::Create(0)], &mut state);
        db.keyspace(KEYSPACE_NAMES[0], machine.keyspace_options(0))
            .map_err(|e| format!("no keyspace can be made: {e}"))?;
        record_durable(shared);
    }
    let changes = probe_commit(&state);
    record_commit(shared, changes.clone(), &mut state);
    let seq = commit(&db, &changes).map_err(|e| format!("it takes no commit: {e}"))?;
    record_durable(shared);
    if seq <= expected.seen_seq {
        return Err(format!(
            "commit number {seq} is used again: {} was seen before the crash",
            expected.seen_seq
        ));
    }
    if end == AfterRecovery::Close {
        db.close().map_err(|e| format!("it does not close: {e}"))?;
    }
    Ok((RecoveredState { fingerprint: print, next_seq: seq }, state))
}

/// Lets every pair with a time expire, and requires that the background removes exactly these.
fn check_removal(
    machine: &TestMachine,
    db: &Database,
    state: &mut ExpectedState,
    now: UnixMillis,
) -> Result<(), String> {
    let last = state.expiry_times.values().max().copied().unwrap_or_default().max(now);
    machine.clock.set_unix_millis(last);
    machine.remove_expired(db).map_err(|e| format!("expired pairs are not removed: {e}"))?;
    state.expire(last);
    // A pair that has expired, but is still there, exists again if the clock goes back.
    machine.clock.set_unix_millis(UnixMillis(0));
    let left = ExpectedState::read(db).map_err(|e| format!("after a removal it cannot be read: {e}"))?;
    machine.clock.set_unix_millis(last);
    match left == *state {
        true => Ok(()),
        false => Err(format!("the removal of expired pairs leaves {}", left.difference(state))),
    }
}

fn check_second_open(machine: &TestMachine, state: &ExpectedState, seq: u64) -> Result<(), String> {
    let db = machine.open().map_err(|e| format!("it does not open a second time: {e}"))?;
    let again = ExpectedState::read(&db).map_err(|e| format!("it cannot be read a second time: {e}"))?;
    if again != *state {
        return Err(format!("opened again it differs: {}", again.difference(state)));
    }
    let visible = db.stats().visible_seq;
    if visible < seq {
        return Err(format!("opened again it is at commit {visible}, before {seq}"));
    }
    Ok(())
}

/// Requires that the change feed, from its oldest position, leads to the state of the database.
fn check_feed(machine: &TestMachine, db: &Database) -> Result<(), String> {
    if !machine.subject.retains_changes {
        return Ok(());
    }
    let fed = db.oldest_change().and_then(|oldest| {
        let mut replica = Replica::empty_at(oldest);
        replica.catch_up(db)?;
        Ok((replica.keyspaces, read_snapshot(&db.snapshot()?)?))
    });
    let (replica, original) = fed.map_err(|e| format!("the change feed cannot be read: {e}"))?;
    match replica == original {
        true => Ok(()),
        false => Err(format!("the change feed leads to {replica:?} instead of {original:?}")),
    }
}

fn record_commit(shared: &Mutex<RecoveryRecording>, changes: Vec<HistoryChange>, state: &mut ExpectedState) {
    for change in &changes {
        state.apply(change);
    }
    if let Some(history) = shared.lock().after_recovery.as_mut() {
        history.begin_commit(changes);
    }
}

fn record_durable(shared: &Mutex<RecoveryRecording>) {
    if let Some(history) = shared.lock().after_recovery.as_mut() {
        history.acknowledge(true);
    }
}

/// Returns a batch over all present keyspaces: in each a new key and two keys of the workload.
fn probe_commit(state: &ExpectedState) -> Vec<HistoryChange> {
    let there = state.keyspaces.iter().enumerate().filter(|(_, pairs)| pairs.is_some());
    there
        .flat_map(|(space, _)| {
            [
                HistoryChange::Put(space, b"after the crash".to_vec(), vec![space as u8; 20]),
                HistoryChange::Put(space, b"key2".to_vec(), b"written after the crash".to_vec()),
                HistoryChange::Remove(space, b"key3".to_vec()),
            ]
        })
        .collect()
}

fn commit(db: &Database, changes: &[HistoryChange]) -> sheaf::Result<u64> {
    let mut batch = db.batch();
    batch.durability(Durability::Sync);
    for change in changes {
        let (HistoryChange::Put(space, key, _) | HistoryChange::Remove(space, key)) = change else {
            continue;
        };
        let keyspace = db.keyspace(KEYSPACE_NAMES[*space], KeyspaceOptions::default())?;
        match change {
            HistoryChange::Put(_, _, value) => batch.insert(&keyspace, key, value),
            _ => batch.remove(&keyspace, key),
        };
    }
    let ticket = batch.submit()?;
    ticket.wait()?;
    Ok(ticket.seq())
}
