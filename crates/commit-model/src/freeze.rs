//! # Freezing: checkpoints, pinned states and published names
//!
//! One thread takes a position P in the commit order, and a state that must contain exactly the
//! commits at or below P. Commits check their target (memtable, or keyspace of a name), reserve,
//! are copied and applied, and may panic. [`FreezeKind`] lists the three kinds of frozen state.
//!
//! ## Picture
//! ```text
//!   commit:  Check (note the target) --> Reserve --> Copy, Apply in any order --> complete
//!   freeze:  Stop --> [no commit is checked or reserved] Take (P, state, next target) --> resume
//! ```
//! The store stops commits with `Stripes::lock_exclusive`, which waits for all stripes. A commit
//! holds its stripes from `is_current` until it is complete, so the window is then empty.
//!
//! ## Invariants
//! - I6: a frozen memtable has exactly the commits up to P. Afterwards no commit is applied to it,
//!   or to a keyspace that has lost its name.
//! - I2: a pinned state has all frames up to P.
//! - I10: no thread waits forever, even if a commit panics.
//!
//! ## Costs
//! All commits wait for a freeze, and the freeze waits for the slowest commit in the window. A
//! descheduled thread therefore delays all of them (scenario W33). [`FreezeModel::targets_by_seq`]
//! avoids this for checkpoints.

use crate::ProtocolRules;
use crate::explore::{BrokenInvariant, CheckedState, no_broken_invariant};
use stateright::{Model, Property};

/// Kind of the frozen state.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum FreezeKind {
    /// Active memtable, frozen by a checkpoint.
    Memtable,
    /// Logs up to a position, pinned by a backup or an attached reader.
    Pin,
    /// Content of a name. A conversion or bulk load publishes another keyspace under it.
    Name,
}

/// Model of a freeze.
///
/// Only a published name must stop commits. A pinned state takes its position in a reservation step
/// and waits until `visible` has reached it. A checkpoint can do the same with `targets_by_seq`.
#[derive(Clone, Debug)]
pub struct FreezeModel {
    /// Active rules.
    pub rules: ProtocolRules,
    /// Kind of the frozen state.
    pub kind: FreezeKind,
    /// Commits, one thread each.
    pub commits: usize,
    /// Whether a commit selects its memtable by its seq when it is applied. Then commits are not
    /// stopped and note no target. P is taken in a reservation step, and only the checkpoint waits.
    pub targets_by_seq: bool,
    /// Commits that may panic in the window.
    pub panics: usize,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum FreezeCommit {
    Idle,
    /// Has noted its target, and holds its stripes.
    Checked {
        target: u8,
    },
    Reserved {
        target: u8,
        seq: u8,
        is_copied: bool,
        is_applied: bool,
    },
    Panicked,
    Done,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum FreezeProgress {
    Idle,
    /// Waits until the commits up to this seq are complete.
    Stopped(u8),
    Taken,
    Refused,
}

/// Commits, contents and freeze.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct FreezeState {
    commits: Vec<FreezeCommit>,
    last: u8,
    /// Commits with copied frames: a set of bits.
    copied: u32,
    /// Commits that were applied to the first target and to the second one.
    applied: [u32; 2],
    complete: u32,
    freeze: FreezeProgress,
    broken_invariant: Option<BrokenInvariant>,
}

/// Steps of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreezeAction {
    /// A commit calls `is_current` and notes its target.
    Check(usize),
    /// A commit gets its seq.
    Reserve(usize),
    /// The frame of a commit is copied.
    Copy(usize),
    /// A commit is applied to its target.
    Apply(usize),
    /// The thread of a commit panics in the window.
    Panic(usize),
    /// A commit returns an error before its reservation, since another commit has poisoned the
    /// database.
    Refuse(usize),
    /// The freeze begins.
    Stop,
    /// The freeze takes the position and the state, and commits continue.
    Take,
    /// The freeze returns an error.
    RefuseFreeze,
}

impl CheckedState for FreezeState {
    fn broken_invariant(&self) -> Option<BrokenInvariant> {
        self.broken_invariant
    }
}

impl Model for FreezeModel {
    type State = FreezeState;
    type Action = FreezeAction;

    fn init_states(&self) -> Vec<FreezeState> {
        vec![FreezeState {
            commits: vec![FreezeCommit::Idle; self.commits],
            last: 0,
            copied: 0,
            applied: [0; 2],
            complete: 0,
            freeze: FreezeProgress::Idle,
            broken_invariant: None,
        }]
    }

    fn actions(&self, state: &FreezeState, actions: &mut Vec<FreezeAction>) {
        if state.broken_invariant.is_some() {
            return;
        }
        self.enabled_actions(state, actions);
        if state.freeze == FreezeProgress::Idle && !is_poisoned(state) {
            actions.push(FreezeAction::Stop);
        }
        if state.commits.iter().filter(|commit| **commit == FreezeCommit::Panicked).count() < self.panics {
            let is_reserved = |who: &usize| matches!(state.commits[*who], FreezeCommit::Reserved { .. });
            actions.extend((0..self.commits).filter(is_reserved).map(FreezeAction::Panic));
        }
    }

    fn next_state(&self, state: &FreezeState, action: FreezeAction) -> Option<FreezeState> {
        let mut next = state.clone();
        self.step(&mut next, action);
        let mut left = Vec::new();
        self.enabled_actions(&next, &mut left);
        let is_over = |commit: &FreezeCommit| matches!(commit, FreezeCommit::Panicked | FreezeCommit::Done);
        let waits = matches!(next.freeze, FreezeProgress::Stopped(_)) || !next.commits.iter().all(is_over);
        if next.broken_invariant.is_none() && left.is_empty() && waits {
            next.broken_invariant = Some(BrokenInvariant::Deadlock);
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        no_broken_invariant()
    }
}

impl FreezeModel {
    fn enabled_actions(&self, state: &FreezeState, actions: &mut Vec<FreezeAction>) {
        let is_stopped = matches!(state.freeze, FreezeProgress::Stopped(_))
            && self.rules.freezing_stops_reservations
            && !self.targets_by_seq;
        let wakes = is_poisoned(state) && self.rules.poison_wakes_the_waiters;
        for (who, commit) in state.commits.iter().enumerate() {
            match *commit {
                FreezeCommit::Idle | FreezeCommit::Checked { .. } if is_poisoned(state) => {
                    actions.extend(wakes.then_some(FreezeAction::Refuse(who)));
                }
                FreezeCommit::Idle if !is_stopped => actions.push(FreezeAction::Check(who)),
                // A stop that waits for checked commits allows them to reserve.
                FreezeCommit::Checked { .. }
                    if !is_stopped || self.rules.freezing_waits_for_checked_commits =>
                {
                    actions.push(FreezeAction::Reserve(who));
                }
                FreezeCommit::Reserved { is_copied, is_applied, .. } => {
                    if !is_copied {
                        actions.push(FreezeAction::Copy(who));
                    }
                    if !is_applied {
                        actions.push(FreezeAction::Apply(who));
                    }
                }
                _ => {}
            }
        }
        if let FreezeProgress::Stopped(reserved) = state.freeze {
            if self.may_take(state, reserved) {
                actions.push(FreezeAction::Take);
            } else if wakes {
                actions.push(FreezeAction::RefuseFreeze);
            }
        }
    }

    fn may_take(&self, state: &FreezeState, reserved: u8) -> bool {
        let drains = match self.kind {
            FreezeKind::Memtable => self.rules.freezing_drains_the_window,
            FreezeKind::Pin => self.rules.pins_drain_the_window,
            FreezeKind::Name => self.rules.publishing_drains_the_window,
        };
        let by_position = self.targets_by_seq || !self.rules.freezing_stops_reservations;
        let awaited = if by_position { reserved } else { state.last };
        let is_checked = |commit: &FreezeCommit| matches!(commit, FreezeCommit::Checked { .. });
        let waits_for_checked = self.rules.freezing_waits_for_checked_commits && !by_position;
        let is_drained = state.complete & up_to(awaited) == up_to(awaited);
        !(drains && !is_drained || waits_for_checked && state.commits.iter().any(is_checked))
    }

    fn step(&self, state: &mut FreezeState, action: FreezeAction) {
        match action {
            FreezeAction::Check(who) => {
                let target = u8::from(state.freeze == FreezeProgress::Taken);
                state.commits[who] = FreezeCommit::Checked { target };
            }
            FreezeAction::Reserve(who) => {
                let FreezeCommit::Checked { target } = state.commits[who] else { return };
                state.last += 1;
                state.commits[who] =
                    FreezeCommit::Reserved { target, seq: state.last, is_copied: false, is_applied: false };
            }
            FreezeAction::Copy(who) => {
                if let FreezeCommit::Reserved { seq, is_copied, .. } = &mut state.commits[who] {
                    *is_copied = true;
                    state.copied |= 1 << *seq;
                }
                mark_complete(state, who);
            }
            FreezeAction::Apply(who) => {
                if let FreezeCommit::Reserved { target, seq, is_applied, .. } = &mut state.commits[who] {
                    *is_applied = true;
                    let by_seq = match state.freeze {
                        FreezeProgress::Stopped(position) => u8::from(*seq > position),
                        _ => *target,
                    };
                    let target = if self.targets_by_seq { by_seq } else { *target };
                    let is_closed =
                        state.freeze == FreezeProgress::Taken && self.kind != FreezeKind::Pin && target == 0;
                    if is_closed {
                        state.broken_invariant = Some(BrokenInvariant::Index);
                    }
                    state.applied[usize::from(target)] |= 1 << *seq;
                }
                mark_complete(state, who);
            }
            FreezeAction::Panic(who) => state.commits[who] = FreezeCommit::Panicked,
            FreezeAction::Refuse(who) => state.commits[who] = FreezeCommit::Done,
            FreezeAction::Stop => state.freeze = FreezeProgress::Stopped(state.last),
            FreezeAction::Take => self.take(state),
            FreezeAction::RefuseFreeze => state.freeze = FreezeProgress::Refused,
        }
    }

    fn take(&self, state: &mut FreezeState) {
        let FreezeProgress::Stopped(reserved) = state.freeze else { return };
        let by_position = self.targets_by_seq || !self.rules.freezing_stops_reservations;
        let position = if by_position { reserved } else { state.last };
        state.freeze = FreezeProgress::Taken;
        state.broken_invariant = match self.kind {
            FreezeKind::Pin => {
                (state.copied & up_to(position) != up_to(position)).then_some(BrokenInvariant::Prefix)
            }
            FreezeKind::Memtable | FreezeKind::Name => {
                (state.applied[0] != up_to(position)).then_some(BrokenInvariant::Index)
            }
        };
        if self.targets_by_seq {
            // From here on every commit above P has the next memtable as its target.
            for commit in &mut state.commits {
                if let FreezeCommit::Checked { target } | FreezeCommit::Reserved { target, .. } = commit {
                    *target = 1;
                }
            }
        }
    }
}

/// Returns the set of the seqs from 1 to `seq`.
fn up_to(seq: u8) -> u32 {
    (1 << (seq + 1)) - 2
}

fn is_poisoned(state: &FreezeState) -> bool {
    state.commits.contains(&FreezeCommit::Panicked)
}

fn mark_complete(state: &mut FreezeState, who: usize) {
    if let FreezeCommit::Reserved { seq, is_copied: true, is_applied: true, .. } = state.commits[who] {
        state.complete |= 1 << seq;
        state.commits[who] = FreezeCommit::Done;
    }
}
