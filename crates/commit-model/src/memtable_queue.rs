//! # Memtable queue: several frozen memtables, and the log that they need
//!
//! An engine freezes its active memtable for a checkpoint, and again while the flush is under way.
//! The flush writes frozen memtables to files. The end of a checkpoint frees the log before its
//! position. Commits are complete when a memtable is frozen (see [`crate::freeze`]).
//!
//! ## Picture
//! ```text
//!   commits  1 2 3 | 4 5 | 6 7 8 | 9      memtables, oldest first; the last one is active
//!            files   frozen        active
//!        position of the pending checkpoint: 5        log freed up to: 3
//! ```
//!
//! ## Invariants
//! - I2: recovery finds a prefix of the commits: the files, and the log behind them.
//! - I3: a crash loses no durable commit.
//! - I10: a checkpoint finds a place in the queue, so it does not wait for a flush to begin.
//!
//! ## Limits
//! One engine and one log. Keys do not matter: a memtable contains a range of seqs. A write to a
//! file, its manifest, and the new position in ROOT are durable at once.

use crate::ProtocolRules;
use crate::explore::{BrokenInvariant, CheckedState, no_broken_invariant};
use stateright::{Model, Property};

/// Model of a queue of frozen memtables.
#[derive(Clone, Debug)]
pub struct MemtableQueueModel {
    /// Active rules.
    pub rules: ProtocolRules,
    /// Commits, at most 30.
    pub commits: u8,
    /// Maximum number of frozen memtables.
    pub frozen: usize,
}

/// Seqs of the commits of a frozen memtable: behind the first, up to the second.
type SeqRange = (u8, u8);

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
struct PendingPosition {
    position: u8,
    /// Number of frozen memtables that must be flushed before it ends.
    covered: usize,
}

/// Commits, memtables, files and log.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct MemtableQueueState {
    last: u8,
    /// W: all commits up to this one are durable in the log.
    durable: u8,
    /// Commits up to this one may be in files.
    floor: u8,
    /// Frozen memtables, oldest first.
    frozen: Vec<SeqRange>,
    /// Commits in files: a set of bits.
    files: u32,
    /// Newest commit in files. Replay skips the log up to it.
    flushed: u8,
    pending: Option<PendingPosition>,
    /// The log up to this commit is freed.
    freed: u8,
    is_over: bool,
    broken_invariant: Option<BrokenInvariant>,
}

/// Steps of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemtableQueueAction {
    /// Commits to the active memtable.
    Commit,
    /// Runs a sync round.
    Sync,
    /// Begins a checkpoint: freezes the active memtable, makes its commits durable and takes the
    /// position.
    BeginCheckpoint,
    /// Freezes the active memtable while a checkpoint is pending.
    FreezeMore,
    /// Flushes this many frozen memtables, from this one on, to one set of files.
    Flush(usize, usize),
    /// Ends the checkpoint: frees the log.
    EndCheckpoint,
    /// Crashes. The number is the last commit of the log that survives. Then recovers.
    Crash(u8),
}

impl CheckedState for MemtableQueueState {
    fn broken_invariant(&self) -> Option<BrokenInvariant> {
        self.broken_invariant
    }
}

impl MemtableQueueState {
    /// Returns the newest commit that is not in the active memtable.
    fn newest_frozen(&self) -> u8 {
        self.frozen.iter().map(|(_, last)| *last).max().unwrap_or(0).max(self.flushed)
    }

    fn freeze(&mut self) {
        let first = self.newest_frozen();
        if first < self.last {
            self.frozen.push((first, self.last));
        }
    }
}

impl Model for MemtableQueueModel {
    type State = MemtableQueueState;
    type Action = MemtableQueueAction;

    fn init_states(&self) -> Vec<MemtableQueueState> {
        vec![MemtableQueueState {
            last: 0,
            durable: 0,
            floor: 0,
            frozen: Vec::new(),
            files: 0,
            flushed: 0,
            pending: None,
            freed: 0,
            is_over: false,
            broken_invariant: None,
        }]
    }

    fn actions(&self, state: &MemtableQueueState, actions: &mut Vec<MemtableQueueAction>) {
        if state.is_over {
            return;
        }
        if state.last < self.commits {
            actions.push(MemtableQueueAction::Commit);
        }
        if state.durable < state.last {
            actions.push(MemtableQueueAction::Sync);
        }
        let has_more = state.newest_frozen() < state.last;
        match state.pending {
            None if has_more || !state.frozen.is_empty() => {
                actions.push(MemtableQueueAction::BeginCheckpoint);
            }
            Some(PendingPosition { covered: 0, .. }) => actions.push(MemtableQueueAction::EndCheckpoint),
            Some(_) if has_more && state.frozen.len() < self.frozen => {
                actions.push(MemtableQueueAction::FreezeMore);
            }
            _ => {}
        }
        let firsts = if self.rules.memtables_are_flushed_in_order { 1 } else { state.frozen.len() };
        for first in 0..firsts.min(state.frozen.len()) {
            let is_allowed = |(_, last): &&SeqRange| *last <= state.floor;
            let allowed = state.frozen[first..].iter().take_while(is_allowed).count();
            actions.extend((1..=allowed).map(|count| MemtableQueueAction::Flush(first, count)));
        }
        actions.extend((state.durable..=state.last).map(MemtableQueueAction::Crash));
    }

    fn next_state(
        &self,
        state: &MemtableQueueState,
        action: MemtableQueueAction,
    ) -> Option<MemtableQueueState> {
        let mut next = state.clone();
        match action {
            MemtableQueueAction::Commit => next.last += 1,
            MemtableQueueAction::Sync => next.durable = next.last,
            MemtableQueueAction::BeginCheckpoint => self.begin(&mut next),
            MemtableQueueAction::FreezeMore => next.freeze(),
            MemtableQueueAction::Flush(first, count) => {
                for (after, last) in next.frozen.drain(first..first + count) {
                    next.files |= up_to(last) & !up_to(after);
                    next.flushed = next.flushed.max(last);
                }
                if let Some(pending) = &mut next.pending {
                    pending.covered = pending.covered.saturating_sub(count);
                }
            }
            MemtableQueueAction::EndCheckpoint => {
                let pending = next.pending.take()?;
                let moved = next.newest_frozen();
                let is_fixed = self.rules.queued_memtables_move_no_position;
                next.freed = if is_fixed { pending.position } else { moved };
            }
            MemtableQueueAction::Crash(end) => {
                next.is_over = true;
                next.broken_invariant = recovered(state, end);
            }
        }
        if next.frozen.len() > self.frozen {
            next.broken_invariant = Some(BrokenInvariant::Deadlock);
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        no_broken_invariant()
    }
}

impl MemtableQueueModel {
    fn begin(&self, state: &mut MemtableQueueState) {
        state.freeze();
        (state.durable, state.floor) = (state.last, state.last);
        let all = state.frozen.len();
        let covered = if self.rules.checkpoints_wait_for_all_memtables { all } else { all.min(1) };
        state.pending = Some(PendingPosition { position: state.last, covered });
    }
}

/// Returns the set of the seqs from 1 to `seq`.
fn up_to(seq: u8) -> u32 {
    (1 << (seq + 1)) - 2
}

/// Recovers the log up to `end`. Returns the invariant that the result breaks.
fn recovered(state: &MemtableQueueState, end: u8) -> Option<BrokenInvariant> {
    let log = up_to(end) & !up_to(state.freed.min(end));
    let found = state.files | (log & !up_to(state.flushed));
    let is_prefix = (found >> 1) & ((found >> 1) + 1) == 0;
    if found & up_to(state.durable) != up_to(state.durable) {
        Some(BrokenInvariant::Durable)
    } else if !is_prefix {
        Some(BrokenInvariant::Prefix)
    } else {
        None
    }
}
