//! # Conditional commits, order of application and reads under the commit lock
//!
//! Committers write to one key. Some compare and swap: they read the seq of the key and commit only
//! if it has not changed. Others put unconditionally. A reader may read at any time, and a kill may
//! come at any time. Recovery then finds the longest dense prefix of the logged commits.
//!
//! The store applies commits in parallel under the locks of keys (module `stripes`). This model
//! shows which anomalies each relaxation of a single lock allows.
//!
//! ## Picture
//! ```text
//!   read --> lock: check, seq --> log --> apply --> unlock        (all rules on)
//!   read --> check --> lock: seq --> ...                          check_inside_lock off
//!   read --> lock: check, seq --> log --> unlock ... apply        apply_inside_lock off
//!   read --> lock: check, seq --> apply --> log --> unlock        apply_only_logged off
//! ```
//!
//! ## Invariants
//! - I4: a kill never takes back a version that a reader saw. A swap succeeds only on the version
//!   of the commit right before it.
//! - I6: when all commits are applied, the key has the highest seq.

use crate::ProtocolRules;
use crate::explore::{BrokenInvariant, CheckedState, no_broken_invariant};
use stateright::{Model, Property};

/// Model of conditional commits.
#[derive(Clone, Debug)]
pub struct ConditionalCommitModel {
    /// Active rules.
    pub rules: ProtocolRules,
    /// Committers that compare and swap.
    pub swappers: usize,
    /// Committers that put unconditionally.
    pub putters: usize,
}

/// State of a committer.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum CommitterState {
    Idle,
    Read { seen: u8 },
    Numbered { seq: u8, logged: bool, applied: bool },
    Done,
}

/// Committers, kernel and key.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct ConditionalState {
    committers: Vec<CommitterState>,
    lock: Option<usize>,
    last: u8,
    /// Set of logged seqs, as bits.
    logged: u32,
    applied: u8,
    /// Highest seq that a reader saw.
    seen: u8,
    killed: bool,
    broken_invariant: Option<BrokenInvariant>,
}

/// Steps of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionalAction {
    /// A committer reads the key.
    Read(usize),
    /// A committer takes the lock and a seq, or finds that its expectation failed.
    TakeNumber(usize),
    /// A committer writes its frame to the kernel.
    Log(usize),
    /// A committer changes the key.
    Apply(usize),
    /// A reader reads the key.
    ReadKey,
    /// The process is killed.
    Kill,
}

impl CheckedState for ConditionalState {
    fn broken_invariant(&self) -> Option<BrokenInvariant> {
        self.broken_invariant
    }
}

impl Model for ConditionalCommitModel {
    type State = ConditionalState;
    type Action = ConditionalAction;

    fn init_states(&self) -> Vec<ConditionalState> {
        vec![ConditionalState {
            committers: vec![CommitterState::Idle; self.swappers + self.putters],
            lock: None,
            last: 0,
            logged: 0,
            applied: 0,
            seen: 0,
            killed: false,
            broken_invariant: None,
        }]
    }

    fn actions(&self, state: &ConditionalState, actions: &mut Vec<ConditionalAction>) {
        if state.killed || state.broken_invariant.is_some() {
            return;
        }
        actions.push(ConditionalAction::Kill);
        if state.seen < state.applied {
            actions.push(ConditionalAction::ReadKey);
        }
        for (who, committer) in state.committers.iter().enumerate() {
            match *committer {
                CommitterState::Idle => actions.push(ConditionalAction::Read(who)),
                CommitterState::Read { .. } if state.lock.is_none() => {
                    actions.push(ConditionalAction::TakeNumber(who))
                }
                CommitterState::Numbered { logged, applied, .. } => {
                    if !logged && (applied || self.rules.apply_only_logged) {
                        actions.push(ConditionalAction::Log(who));
                    }
                    if !applied && (logged || !self.rules.apply_only_logged) {
                        actions.push(ConditionalAction::Apply(who));
                    }
                }
                CommitterState::Read { .. } | CommitterState::Done => {}
            }
        }
    }

    fn next_state(&self, state: &ConditionalState, action: ConditionalAction) -> Option<ConditionalState> {
        let mut next = state.clone();
        self.step(&mut next, action);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        no_broken_invariant()
    }
}

impl ConditionalCommitModel {
    fn step(&self, state: &mut ConditionalState, action: ConditionalAction) {
        match action {
            ConditionalAction::Read(who) => {
                state.committers[who] = CommitterState::Read { seen: state.applied }
            }
            ConditionalAction::TakeNumber(who) => self.number(state, who),
            ConditionalAction::Log(who) => {
                if let CommitterState::Numbered { seq, logged, .. } = &mut state.committers[who] {
                    *logged = true;
                    state.logged |= 1 << *seq;
                }
                self.unlock(state, who);
            }
            ConditionalAction::Apply(who) => {
                if let CommitterState::Numbered { seq, applied, .. } = &mut state.committers[who] {
                    *applied = true;
                    state.applied = *seq;
                }
                self.unlock(state, who);
            }
            ConditionalAction::ReadKey => state.seen = state.applied,
            ConditionalAction::Kill => {
                state.killed = true;
                let recovered = (1..=state.last).take_while(|seq| state.logged & (1 << seq) != 0);
                if usize::from(state.seen) > recovered.count() {
                    state.broken_invariant = Some(BrokenInvariant::UnexplainedRead);
                }
            }
        }
    }

    fn number(&self, state: &mut ConditionalState, who: usize) {
        let CommitterState::Read { seen } = state.committers[who] else {
            return;
        };
        let swaps = who < self.swappers;
        if swaps && self.rules.check_inside_lock && seen != state.applied {
            state.committers[who] = CommitterState::Done;
            return;
        }
        if swaps && seen != state.last {
            state.broken_invariant = Some(BrokenInvariant::UnexplainedRead);
        }
        state.last += 1;
        state.lock = Some(who);
        state.committers[who] = CommitterState::Numbered { seq: state.last, logged: false, applied: false };
    }

    fn unlock(&self, state: &mut ConditionalState, who: usize) {
        let CommitterState::Numbered { logged, applied, .. } = state.committers[who] else {
            return;
        };
        if logged && applied {
            state.committers[who] = CommitterState::Done;
        }
        let unlocks = logged && (applied || !self.rules.apply_inside_lock);
        if unlocks && state.lock == Some(who) {
            state.lock = None;
        }
        let pending = |held: &CommitterState| matches!(held, CommitterState::Numbered { .. });
        if !state.committers.iter().any(pending) && state.applied != state.last {
            state.broken_invariant = Some(BrokenInvariant::Index);
        }
    }
}
