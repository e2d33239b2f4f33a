//! # The commit lock: conditional commits, the order of applying, what a reader may see
//!
//! Committers on one key: two that compare and swap (they read the key's seq, and commit only if it
//! is still that), one that puts blindly. A reader looks at any time. The process may be killed at
//! any time; recovery is then the longest dense prefix of what the kernel has.
//!
//! ## Picture
//! ```text
//!   read --> lock: check, seq --> log --> apply --> unlock        (all rules on)
//!   read --> check --> lock: seq --> ...                          check_inside_lock off
//!   read --> lock: check, seq --> log --> unlock ... apply        apply_inside_lock off
//!   read --> lock: check, seq --> apply --> log --> unlock        apply_only_logged off
//! ```
//!
//! ## Checked
//! I4: what a reader saw is there after a kill, and a swap succeeds only on the commit right before
//! it. I6: when all is applied, the key holds the highest seq.

use crate::Rules;
use crate::explore::{Broken, Verdict, nothing_is_broken};
use stateright::{Model, Property};

/// The model.
#[derive(Clone, Debug)]
pub struct Conditional {
    /// Which rules hold.
    pub rules: Rules,
    /// Committers that compare and swap.
    pub swappers: usize,
    /// Committers that put blindly.
    pub putters: usize,
}

/// Where a committer is.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum Committer {
    Idle,
    Read { seen: u8 },
    Numbered { seq: u8, logged: bool, applied: bool },
    Done,
}

/// All committers, the kernel, the key.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct State {
    committers: Vec<Committer>,
    lock: Option<usize>,
    last: u8,
    /// Which numbers the kernel has: a set of bits.
    logged: u32,
    applied: u8,
    /// The highest number that a reader saw.
    seen: u8,
    killed: bool,
    broken: Option<Broken>,
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A committer looks at the key.
    Read(usize),
    /// It takes the lock and a number, or finds that its expectation failed.
    Number(usize),
    /// Its frame goes to the kernel.
    Log(usize),
    /// The key is changed.
    Apply(usize),
    /// Somebody reads the key.
    Look,
    /// The process is killed.
    Kill,
}

impl Verdict for State {
    fn broken(&self) -> Option<Broken> {
        self.broken
    }
}

impl Model for Conditional {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            committers: vec![Committer::Idle; self.swappers + self.putters],
            lock: None,
            last: 0,
            logged: 0,
            applied: 0,
            seen: 0,
            killed: false,
            broken: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.killed || state.broken.is_some() {
            return;
        }
        actions.push(Action::Kill);
        if state.seen < state.applied {
            actions.push(Action::Look);
        }
        for (who, committer) in state.committers.iter().enumerate() {
            match *committer {
                Committer::Idle => actions.push(Action::Read(who)),
                Committer::Read { .. } if state.lock.is_none() => actions.push(Action::Number(who)),
                Committer::Numbered { logged, applied, .. } => {
                    if !logged && (applied || self.rules.apply_only_logged) {
                        actions.push(Action::Log(who));
                    }
                    if !applied && (logged || !self.rules.apply_only_logged) {
                        actions.push(Action::Apply(who));
                    }
                }
                Committer::Read { .. } | Committer::Done => {}
            }
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        self.step(&mut next, action);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        nothing_is_broken()
    }
}

impl Conditional {
    fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::Read(who) => state.committers[who] = Committer::Read { seen: state.applied },
            Action::Number(who) => self.number(state, who),
            Action::Log(who) => {
                if let Committer::Numbered { seq, logged, .. } = &mut state.committers[who] {
                    *logged = true;
                    state.logged |= 1 << *seq;
                }
                self.unlock(state, who);
            }
            Action::Apply(who) => {
                if let Committer::Numbered { seq, applied, .. } = &mut state.committers[who] {
                    *applied = true;
                    state.applied = *seq;
                }
                self.unlock(state, who);
            }
            Action::Look => state.seen = state.applied,
            Action::Kill => {
                state.killed = true;
                let recovered = (1..=state.last).take_while(|seq| state.logged & (1 << seq) != 0);
                if usize::from(state.seen) > recovered.count() {
                    state.broken = Some(Broken::Read);
                }
            }
        }
    }

    fn number(&self, state: &mut State, who: usize) {
        let Committer::Read { seen } = state.committers[who] else {
            return;
        };
        let swaps = who < self.swappers;
        if swaps && self.rules.check_inside_lock && seen != state.applied {
            state.committers[who] = Committer::Done;
            return;
        }
        if swaps && seen != state.last {
            state.broken = Some(Broken::Read);
        }
        state.last += 1;
        state.lock = Some(who);
        state.committers[who] = Committer::Numbered { seq: state.last, logged: false, applied: false };
    }

    fn unlock(&self, state: &mut State, who: usize) {
        let Committer::Numbered { logged, applied, .. } = state.committers[who] else {
            return;
        };
        if logged && applied {
            state.committers[who] = Committer::Done;
        }
        let unlocks = logged && (applied || !self.rules.apply_inside_lock);
        if unlocks && state.lock == Some(who) {
            state.lock = None;
        }
        let pending = |held: &Committer| matches!(held, Committer::Numbered { .. });
        if !state.committers.iter().any(pending) && state.applied != state.last {
            state.broken = Some(Broken::Index);
        }
    }
}
