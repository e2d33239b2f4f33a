//! # Views: registration without a lock (the next commit path)
//!
//! Commits to two keys supersede versions while views register, read and end. The commits of one
//! key follow each other, since they hold its stripe; those of two keys overlap.
//!
//! ## Picture
//! ```text
//!   view:       V = visible --> slot = V, registering --> R = last reserved --> [visible >= R]
//!               --> S = visible, slot = S, exact --> reads at S --> slot empty
//!   committer:  Reserve --> Inspect the slots: keep the superseded version? --> Apply --> complete
//! ```
//! A version with the life `[born, died)` is kept for an exact slot if `born <= S < died`, and for
//! a slot that is registering if `V < died`.
//!
//! ## Invariants
//! I4: a view at S finds the newest version at or below S of each key, at any time.
//!
//! ## Memory order
//! Without its fence a view's store to its slot stays in a store buffer for any time; without
//! theirs committers read the slots before they reserve. Both pairs are `SeqCst` in the store: the
//! read-modify-write of the reservation and the loads of the slots, the store of the slot and the
//! load of the last reserved seq.
//!
//! ## Another sound rule
//! [`Views::inspects_late`]: every superseded version stays until `visible` has reached the commit
//! that superseded it, and only then are the slots inspected. Then no view has to wait.

use crate::Rules;
use crate::explore::{Broken, Verdict, nothing_is_broken};
use stateright::{Model, Property};

/// The model.
#[derive(Clone, Debug)]
pub struct Views {
    /// Which rules hold.
    pub rules: Rules,
    /// Commits over the whole run.
    pub commits: usize,
    /// Views over the whole run; they use two slots in turn.
    pub views: u8,
    /// Whether versions are judged after `visible` has passed them, not before `apply`.
    pub inspects_late: bool,
}

/// Keys, each with a stripe of its own.
const KEYS: usize = 2;
/// Slots.
const SLOTS: usize = 2;

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum Phase {
    /// Holds its stripe; the slots were inspected before the reservation (no fence).
    Early,
    Reserved,
    /// The slots were inspected.
    Inspected,
    /// Complete; the superseded version was not judged yet (`inspects_late`).
    Complete,
    /// Complete, and the slots were inspected (`inspects_late`).
    Judged,
    Done,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
struct Commit {
    key: usize,
    phase: Phase,
    /// Seq of the version that it supersedes.
    superseded: u8,
    keeps: bool,
}

/// The content of a slot: reads at `state`, or (registering) at `state` or later.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
struct Slot {
    state: u8,
    is_exact: bool,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum View {
    Empty,
    /// Has read V.
    Begun(u8),
    /// Has written its slot.
    Published,
    /// Has read R.
    Waits(u8),
    /// Reads at S.
    Reads(u8),
}

/// Commits, versions, slots, views.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct State {
    /// By seq; commits that have not reserved are in `early`.
    commits: Vec<Commit>,
    early: [Option<Commit>; KEYS],
    /// Seqs of the versions of each key that a reader finds.
    versions: [Vec<u8>; KEYS],
    views: [View; SLOTS],
    slots: [Option<Slot>; SLOTS],
    /// Stores to slots that other threads do not see yet.
    buffers: [Option<Slot>; SLOTS],
    begun: u8,
    broken: Option<Broken>,
}

/// Steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A commit to this key inspects the slots before it reserves (no fence).
    InspectEarly(usize),
    /// A commit to this key reserves its seq.
    Reserve(usize),
    /// A commit inspects the slots.
    Inspect(usize),
    /// A commit changes the index and is complete; the superseded version is freed or kept.
    Apply(usize),
    /// A commit frees the superseded version (`inspects_late`).
    Free(usize),
    /// A view reads V.
    Begin(usize),
    /// A view writes its slot.
    Publish(usize),
    /// The store to the slot is seen by all (no fence).
    Flush(usize),
    /// A view reads the last reserved seq.
    ReadReserved(usize),
    /// A view takes S, and makes its slot exact.
    TakeState(usize),
    /// A view ends.
    Release(usize),
}

impl Verdict for State {
    fn broken(&self) -> Option<Broken> {
        self.broken
    }
}

impl Model for Views {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            commits: Vec::new(),
            early: [None; KEYS],
            versions: [vec![0], vec![0]],
            views: [View::Empty; SLOTS],
            slots: [None; SLOTS],
            buffers: [None; SLOTS],
            begun: 0,
            broken: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        self.commit_actions(state, actions);
        let visible = visible(state);
        for (slot, view) in state.views.iter().enumerate() {
            match *view {
                View::Empty if state.begun < self.views && first_empty(state) == Some(slot) => {
                    actions.push(Action::Begin(slot));
                }
                View::Begun(_) => actions.push(Action::Publish(slot)),
                View::Published => actions.push(Action::ReadReserved(slot)),
                View::Waits(reserved) if self.may_take(reserved, visible) => {
                    actions.push(Action::TakeState(slot));
                }
                View::Reads(_) => actions.push(Action::Release(slot)),
                View::Empty | View::Waits(_) => {}
            }
            if state.buffers[slot].is_some() {
                actions.push(Action::Flush(slot));
            }
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        self.step(&mut next, action);
        if next.views.iter().any(|view| matches!(view, View::Reads(at) if misses(&next, *at))) {
            next.broken = Some(Broken::Read);
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        nothing_is_broken()
    }
}

impl Views {
    fn may_take(&self, reserved: u8, visible: u8) -> bool {
        let waits = self.rules.views_wait_for_the_reserved && self.rules.snapshots_are_at_visible;
        reserved <= visible || !waits
    }

    fn commit_actions(&self, state: &State, actions: &mut Vec<Action>) {
        let begun = state.commits.len() + state.early.iter().flatten().count();
        for key in 0..KEYS {
            let holds = |commit: &Commit| {
                commit.key == key && matches!(commit.phase, Phase::Reserved | Phase::Inspected)
            };
            if state.early[key].is_some() {
                actions.push(Action::Reserve(key));
            } else if begun < self.commits && !state.commits.iter().any(holds) {
                match self.rules.committers_fence {
                    true => actions.push(Action::Reserve(key)),
                    false => actions.push(Action::InspectEarly(key)),
                }
            }
        }
        for (index, commit) in state.commits.iter().enumerate() {
            match commit.phase {
                Phase::Reserved if self.inspects_late => actions.push(Action::Apply(index)),
                Phase::Reserved => actions.push(Action::Inspect(index)),
                Phase::Inspected => actions.push(Action::Apply(index)),
                Phase::Complete if index < usize::from(visible(state)) => {
                    actions.push(Action::Inspect(index));
                }
                Phase::Judged => actions.push(Action::Free(index)),
                Phase::Early | Phase::Complete | Phase::Done => {}
            }
        }
    }

    /// Whether a slot needs a version.
    fn needs(&self, slot: Slot, born: u8, died: u8) -> bool {
        let keeps_all = !slot.is_exact && self.rules.registering_slots_keep_every_version;
        slot.state < died && (keeps_all || born <= slot.state)
    }

    fn inspects(&self, state: &State, born: u8, died: u8) -> bool {
        state.slots.iter().flatten().any(|&slot| self.needs(slot, born, died))
    }

    fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::InspectEarly(key) => {
                let superseded = newest(&state.versions[key]);
                // It will be above all seqs that are known now.
                let keeps = self.inspects(state, superseded, u8::MAX);
                state.early[key] = Some(Commit { key, phase: Phase::Early, superseded, keeps });
            }
            Action::Reserve(key) => {
                let superseded = newest(&state.versions[key]);
                let new = Commit { key, phase: Phase::Reserved, superseded, keeps: true };
                let early = state.early[key].take().map(|early| Commit { phase: Phase::Inspected, ..early });
                state.commits.push(early.unwrap_or(new));
            }
            Action::Inspect(index) => {
                let Commit { superseded, phase, .. } = state.commits[index];
                state.commits[index].keeps = self.inspects(state, superseded, seq(index));
                let is_late = phase == Phase::Complete;
                state.commits[index].phase = if is_late { Phase::Judged } else { Phase::Inspected };
            }
            Action::Apply(index) => {
                let key = state.commits[index].key;
                state.versions[key].push(seq(index));
                if self.inspects_late {
                    state.commits[index].phase = Phase::Complete;
                } else {
                    free(state, index);
                }
            }
            Action::Free(index) => free(state, index),
            Action::Begin(slot) => {
                state.begun += 1;
                state.views[slot] = View::Begun(visible(state));
            }
            Action::Publish(slot) => {
                if let View::Begun(from) = state.views[slot] {
                    let registering = Some(Slot { state: from, is_exact: false });
                    match self.rules.views_fence {
                        true => state.slots[slot] = registering,
                        false => state.buffers[slot] = registering,
                    }
                }
                state.views[slot] = View::Published;
            }
            Action::Flush(slot) => state.slots[slot] = state.buffers[slot].take(),
            Action::ReadReserved(slot) => state.views[slot] = View::Waits(last(state)),
            Action::TakeState(slot) => {
                let View::Waits(reserved) = state.views[slot] else { return };
                let at = if self.rules.snapshots_are_at_visible { visible(state) } else { reserved };
                state.views[slot] = View::Reads(at);
                // Behind the first store in the buffer, if that one is still there.
                match &mut state.buffers[slot] {
                    Some(buffered) => *buffered = Slot { state: at, is_exact: true },
                    None => state.slots[slot] = Some(Slot { state: at, is_exact: true }),
                }
            }
            Action::Release(slot) => {
                state.views[slot] = View::Empty;
                (state.slots[slot], state.buffers[slot]) = (None, None);
            }
        }
    }
}

fn seq(index: usize) -> u8 {
    u8::try_from(index + 1).unwrap_or(u8::MAX)
}

fn last(state: &State) -> u8 {
    seq(state.commits.len()) - 1
}

fn visible(state: &State) -> u8 {
    let is_complete =
        |commit: &&Commit| matches!(commit.phase, Phase::Complete | Phase::Judged | Phase::Done);
    seq(state.commits.iter().take_while(is_complete).count()) - 1
}

fn newest(versions: &[u8]) -> u8 {
    versions.iter().copied().max().unwrap_or(0)
}

fn first_empty(state: &State) -> Option<usize> {
    state.views.iter().position(|view| *view == View::Empty)
}

/// Removes the version that a commit superseded, unless a view needs it.
fn free(state: &mut State, index: usize) {
    let commit = &mut state.commits[index];
    commit.phase = Phase::Done;
    if !commit.keeps {
        state.versions[commit.key].retain(|&version| version != commit.superseded);
    }
}

/// Whether a view at a state finds another version of a key than the order has there.
fn misses(state: &State, at: u8) -> bool {
    (0..KEYS).any(|key| {
        let commits = state.commits.iter().enumerate().filter(|(_, commit)| commit.key == key);
        let wanted = commits.map(|(index, _)| seq(index)).filter(|&seq| seq <= at).max().unwrap_or(0);
        let found = state.versions[key].iter().copied().filter(|&version| version <= at).max();
        found != Some(wanted)
    })
}
