//! # Freezing: checkpoints, pinned states and published names (the next commit path)
//!
//! One thread freezes: it takes a position P in the order, and a state that must be exactly the
//! commits at or below P. Commits check their target (memtable, keyspace of a name), reserve, are
//! copied and applied, and may panic. The frozen thing is one of three ([`Kind`]).
//!
//! ## Picture
//! ```text
//!   commit:  Check (note the target) --> Reserve --> Copy, Apply in any order --> complete
//!   freeze:  Stop --> [no commit is checked or reserved] Take (P, state, next target) --> go on
//! ```
//! In the store, Stop is one step: take all stripes, exclusively. A commit holds its stripes from
//! `is_current` to its publication, so the holder of all of them finds an empty window.
//!
//! ## Invariants
//! I6: a frozen memtable has exactly the commits up to P, and no commit is applied to it, or to a
//! keyspace that has lost its name, later. I2: a pinned state has all frames up to P. I10: no
//! thread waits for ever, even if a commit panics.
//!
//! ## Costs
//! All commits wait for a freeze, and the freeze waits for the slowest commit in the window: a
//! descheduled thread delays all of them (scenario 33). [`Freezing::targets_by_seq`] is the way
//! out for checkpoints: P is taken in a reservation step, each commit selects its memtable by its
//! seq when it is applied, and only the checkpoint waits until `visible` has reached P.

use crate::Rules;
use crate::explore::{Broken, Verdict, nothing_is_broken};
use stateright::{Model, Property};

/// The thing that is frozen.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum Kind {
    /// The active memtable, by a checkpoint.
    Memtable,
    /// The logs up to a position, by a backup or an attached reader.
    Pin,
    /// The content of a name, by a conversion or bulk load that publishes another keyspace.
    Name,
}

/// The model.
#[derive(Clone, Debug)]
pub struct Freezing {
    /// Which rules hold.
    pub rules: Rules,
    /// The thing that is frozen.
    pub kind: Kind,
    /// Commits, one thread each.
    pub commits: usize,
    /// Whether a commit selects its memtable by its seq when it is applied (no stop, no notes).
    pub targets_by_seq: bool,
    /// Commits that may panic in the window.
    pub panics: usize,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum Commit {
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
enum Freeze {
    Idle,
    /// Waits until the commits up to this seq are complete.
    Stopped(u8),
    Taken,
    Refused,
}

/// Commits, contents, the freeze.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct State {
    commits: Vec<Commit>,
    last: u8,
    /// Commits with copied frames: a set of bits.
    copied: u32,
    /// Commits that were applied to the first target and to the second one.
    applied: [u32; 2],
    complete: u32,
    freeze: Freeze,
    broken: Option<Broken>,
}

/// Steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A commit asks `is_current` and notes its target.
    Check(usize),
    /// A commit gets its seq.
    Reserve(usize),
    /// The frame of a commit is copied.
    Copy(usize),
    /// The index is changed.
    Apply(usize),
    /// The thread of a commit panics in the window.
    Panic(usize),
    /// A commit returns an error before its reservation, since another one has poisoned.
    Refuse(usize),
    /// The freeze begins.
    Stop,
    /// The position and the state are taken, and commits go on.
    Take,
    /// The freeze returns an error.
    RefuseFreeze,
}

impl Verdict for State {
    fn broken(&self) -> Option<Broken> {
        self.broken
    }
}

impl Model for Freezing {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            commits: vec![Commit::Idle; self.commits],
            last: 0,
            copied: 0,
            applied: [0; 2],
            complete: 0,
            freeze: Freeze::Idle,
            broken: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        self.going_on(state, actions);
        if state.freeze == Freeze::Idle && !is_poisoned(state) {
            actions.push(Action::Stop);
        }
        if state.commits.iter().filter(|commit| **commit == Commit::Panicked).count() < self.panics {
            let is_reserved = |who: &usize| matches!(state.commits[*who], Commit::Reserved { .. });
            actions.extend((0..self.commits).filter(is_reserved).map(Action::Panic));
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        self.step(&mut next, action);
        let mut left = Vec::new();
        self.going_on(&next, &mut left);
        let is_over = |commit: &Commit| matches!(commit, Commit::Panicked | Commit::Done);
        let waits = matches!(next.freeze, Freeze::Stopped(_)) || !next.commits.iter().all(is_over);
        if next.broken.is_none() && left.is_empty() && waits {
            next.broken = Some(Broken::Stuck);
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        nothing_is_broken()
    }
}

impl Freezing {
    fn going_on(&self, state: &State, actions: &mut Vec<Action>) {
        let is_stopped = matches!(state.freeze, Freeze::Stopped(_))
            && self.rules.freezing_stops_reservations
            && !self.targets_by_seq;
        let wakes = is_poisoned(state) && self.rules.poison_wakes_the_waiters;
        for (who, commit) in state.commits.iter().enumerate() {
            match *commit {
                Commit::Idle | Commit::Checked { .. } if is_poisoned(state) => {
                    actions.extend(wakes.then_some(Action::Refuse(who)));
                }
                Commit::Idle if !is_stopped => actions.push(Action::Check(who)),
                // A stop that waits for checked commits lets them reserve.
                Commit::Checked { .. } if !is_stopped || self.rules.freezing_waits_for_the_checked => {
                    actions.push(Action::Reserve(who));
                }
                Commit::Reserved { is_copied, is_applied, .. } => {
                    if !is_copied {
                        actions.push(Action::Copy(who));
                    }
                    if !is_applied {
                        actions.push(Action::Apply(who));
                    }
                }
                _ => {}
            }
        }
        if let Freeze::Stopped(reserved) = state.freeze {
            if self.may_take(state, reserved) {
                actions.push(Action::Take);
            } else if wakes {
                actions.push(Action::RefuseFreeze);
            }
        }
    }

    fn may_take(&self, state: &State, reserved: u8) -> bool {
        let drains = match self.kind {
            Kind::Memtable => self.rules.freezing_drains_the_window,
            Kind::Pin => self.rules.pins_drain_the_window,
            Kind::Name => self.rules.publishing_drains_the_window,
        };
        let by_position = self.targets_by_seq || !self.rules.freezing_stops_reservations;
        let awaited = if by_position { reserved } else { state.last };
        let is_checked = |commit: &Commit| matches!(commit, Commit::Checked { .. });
        let waits_for_checked = self.rules.freezing_waits_for_the_checked && !by_position;
        let is_drained = state.complete & up_to(awaited) == up_to(awaited);
        !(drains && !is_drained || waits_for_checked && state.commits.iter().any(is_checked))
    }

    fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::Check(who) => {
                let target = u8::from(state.freeze == Freeze::Taken);
                state.commits[who] = Commit::Checked { target };
            }
            Action::Reserve(who) => {
                let Commit::Checked { target } = state.commits[who] else { return };
                state.last += 1;
                state.commits[who] =
                    Commit::Reserved { target, seq: state.last, is_copied: false, is_applied: false };
            }
            Action::Copy(who) => {
                if let Commit::Reserved { seq, is_copied, .. } = &mut state.commits[who] {
                    *is_copied = true;
                    state.copied |= 1 << *seq;
                }
                completes(state, who);
            }
            Action::Apply(who) => {
                if let Commit::Reserved { target, seq, is_applied, .. } = &mut state.commits[who] {
                    *is_applied = true;
                    let by_seq = match state.freeze {
                        Freeze::Stopped(position) => u8::from(*seq > position),
                        _ => *target,
                    };
                    let target = if self.targets_by_seq { by_seq } else { *target };
                    let is_closed = state.freeze == Freeze::Taken && self.kind != Kind::Pin && target == 0;
                    if is_closed {
                        state.broken = Some(Broken::Index);
                    }
                    state.applied[usize::from(target)] |= 1 << *seq;
                }
                completes(state, who);
            }
            Action::Panic(who) => state.commits[who] = Commit::Panicked,
            Action::Refuse(who) => state.commits[who] = Commit::Done,
            Action::Stop => state.freeze = Freeze::Stopped(state.last),
            Action::Take => self.take(state),
            Action::RefuseFreeze => state.freeze = Freeze::Refused,
        }
    }

    fn take(&self, state: &mut State) {
        let Freeze::Stopped(reserved) = state.freeze else { return };
        let by_position = self.targets_by_seq || !self.rules.freezing_stops_reservations;
        let position = if by_position { reserved } else { state.last };
        state.freeze = Freeze::Taken;
        state.broken = match self.kind {
            Kind::Pin => (state.copied & up_to(position) != up_to(position)).then_some(Broken::Prefix),
            Kind::Memtable | Kind::Name => (state.applied[0] != up_to(position)).then_some(Broken::Index),
        };
        if self.targets_by_seq {
            // From here on every commit above P has the next memtable as its target.
            for commit in &mut state.commits {
                if let Commit::Checked { target } | Commit::Reserved { target, .. } = commit {
                    *target = 1;
                }
            }
        }
    }
}

/// The set of the seqs from 1 to `seq`.
fn up_to(seq: u8) -> u32 {
    (1 << (seq + 1)) - 2
}

fn is_poisoned(state: &State) -> bool {
    state.commits.contains(&Commit::Panicked)
}

fn completes(state: &mut State, who: usize) {
    if let Commit::Reserved { seq, is_copied: true, is_applied: true, .. } = state.commits[who] {
        state.complete |= 1 << seq;
        state.commits[who] = Commit::Done;
    }
}
