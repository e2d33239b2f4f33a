//! # Views: registration without a lock
//!
//! Commits to two keys supersede versions while views register, read and end. Commits to one key
//! follow each other, since they hold its stripe. Commits to different keys overlap.
//!
//! ## Picture
//! ```text
//!   view:       V = visible --> slot = V, registering --> R = last reserved --> [visible >= R]
//!               --> S = visible, slot = S, exact --> reads at S --> slot empty
//!   committer:  Reserve --> Inspect the slots: keep the superseded version? --> Apply --> complete
//! ```
//! A version has the life `[begin, end)`. It is kept for an exact slot if `begin <= S < end`, and
//! for a slot that is registering if `V < end`.
//!
//! Sheaf has a shortcut that is not modeled: a slot is exact at once if no seq above V is reserved.
//!
//! ## Invariants
//! I4: a view at S finds the newest version at or below S of each key, at any time.
//!
//! ## Memory order
//! Without its fence, the store of a view to its slot may stay in a store buffer for any time.
//! Without their fence, committers read the slots before they reserve. Sheaf uses `SeqCst` for both
//! pairs of accesses: the read-modify-write of the reservation and the loads of the slots; the
//! store to the slot and the load of the last reserved seq.
//!
//! ## Not modeled
//! A full table of slots, and versions that are freed later than by the commit that superseded
//! them. GC must inspect the slots after the reservation of that commit, too.

use crate::ProtocolRules;
use crate::explore::{BrokenInvariant, CheckedState, no_broken_invariant};
use stateright::{Model, Property};

/// Model of views.
#[derive(Clone, Debug)]
pub struct ViewsModel {
    /// Active rules.
    pub rules: ProtocolRules,
    /// Commits in the whole run.
    pub commits: usize,
    /// Views in the whole run. They share two slots.
    pub views: u8,
    /// Whether a version is judged only after `visible` has reached the commit that superseded it.
    /// Until then the version is kept. This is sound as well, and then no view has to wait.
    pub inspects_late: bool,
}

/// Keys, each with a stripe of its own.
const KEYS: usize = 2;
/// Number of slots.
const SLOTS: usize = 2;

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum ViewCommitPhase {
    /// Holds its stripe. It has inspected the slots before its reservation (only without the
    /// fence).
    InspectedEarly,
    Reserved,
    /// Has inspected the slots.
    Inspected,
    /// Complete. The superseded version is not judged yet (`inspects_late`).
    Complete,
    /// Complete, and the slots were inspected (`inspects_late`).
    Judged,
    Done,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
struct ViewCommit {
    key: usize,
    phase: ViewCommitPhase,
    /// Seq of the superseded version.
    superseded: u8,
    keeps: bool,
}

/// Content of a slot: its view reads at `state` if `is_exact`, otherwise at `state` or later.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
struct ViewSlotState {
    state: u8,
    is_exact: bool,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum ViewPhase {
    Empty,
    /// Has read V.
    Begun(u8),
    /// Has written its slot.
    Published,
    /// Has read R.
    Waiting(u8),
    /// Reads at S.
    Reading(u8),
}

/// Commits, versions, slots and views.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct ViewsState {
    /// Commits by seq. Commits that have not reserved are in `early`.
    commits: Vec<ViewCommit>,
    early: [Option<ViewCommit>; KEYS],
    /// Seqs of the versions of each key that a reader finds.
    versions: [Vec<u8>; KEYS],
    views: [ViewPhase; SLOTS],
    slots: [Option<ViewSlotState>; SLOTS],
    /// Stores to slots that other threads do not see yet.
    buffers: [Option<ViewSlotState>; SLOTS],
    begun: u8,
    broken_invariant: Option<BrokenInvariant>,
}

/// Steps of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViewsAction {
    /// A commit to this key inspects the slots before it reserves (only without the fence).
    InspectEarly(usize),
    /// A commit to this key reserves its seq.
    Reserve(usize),
    /// A commit inspects the slots.
    Inspect(usize),
    /// A commit changes the index and is complete. The superseded version is freed or kept.
    Apply(usize),
    /// A commit frees the superseded version (`inspects_late`).
    Free(usize),
    /// A view reads V.
    Begin(usize),
    /// A view writes its slot.
    Publish(usize),
    /// All threads see the store to the slot (only without the fence).
    Flush(usize),
    /// A view reads the last reserved seq.
    ReadReserved(usize),
    /// A view takes S and makes its slot exact.
    TakeState(usize),
    /// A view ends.
    Release(usize),
}

impl CheckedState for ViewsState {
    fn broken_invariant(&self) -> Option<BrokenInvariant> {
        self.broken_invariant
    }
}

impl Model for ViewsModel {
    type State = ViewsState;
    type Action = ViewsAction;

    fn init_states(&self) -> Vec<ViewsState> {
        vec![ViewsState {
            commits: Vec::new(),
            early: [None; KEYS],
            versions: [vec![0], vec![0]],
            views: [ViewPhase::Empty; SLOTS],
            slots: [None; SLOTS],
            buffers: [None; SLOTS],
            begun: 0,
            broken_invariant: None,
        }]
    }

    fn actions(&self, state: &ViewsState, actions: &mut Vec<ViewsAction>) {
        if state.broken_invariant.is_some() {
            return;
        }
        self.commit_actions(state, actions);
        let visible = visible(state);
        for (slot, view) in state.views.iter().enumerate() {
            match *view {
                ViewPhase::Empty if state.begun < self.views && first_empty(state) == Some(slot) => {
                    actions.push(ViewsAction::Begin(slot));
                }
                ViewPhase::Begun(_) => actions.push(ViewsAction::Publish(slot)),
                ViewPhase::Published => actions.push(ViewsAction::ReadReserved(slot)),
                ViewPhase::Waiting(reserved) if self.may_take(reserved, visible) => {
                    actions.push(ViewsAction::TakeState(slot));
                }
                ViewPhase::Reading(_) => actions.push(ViewsAction::Release(slot)),
                ViewPhase::Empty | ViewPhase::Waiting(_) => {}
            }
            if state.buffers[slot].is_some() {
                actions.push(ViewsAction::Flush(slot));
            }
        }
    }

    fn next_state(&self, state: &ViewsState, action: ViewsAction) -> Option<ViewsState> {
        let mut next = state.clone();
        self.step(&mut next, action);
        if next
            .views
            .iter()
            .any(|view| matches!(view, ViewPhase::Reading(at) if reads_wrong_version(&next, *at)))
        {
            next.broken_invariant = Some(BrokenInvariant::UnexplainedRead);
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        no_broken_invariant()
    }
}

impl ViewsModel {
    fn may_take(&self, reserved: u8, visible: u8) -> bool {
        let waits = self.rules.views_wait_for_reserved_seqs && self.rules.snapshots_are_at_visible;
        reserved <= visible || !waits
    }

    fn commit_actions(&self, state: &ViewsState, actions: &mut Vec<ViewsAction>) {
        let begun = state.commits.len() + state.early.iter().flatten().count();
        for key in 0..KEYS {
            let holds = |commit: &ViewCommit| {
                commit.key == key
                    && matches!(commit.phase, ViewCommitPhase::Reserved | ViewCommitPhase::Inspected)
            };
            if state.early[key].is_some() {
                actions.push(ViewsAction::Reserve(key));
            } else if begun < self.commits && !state.commits.iter().any(holds) {
                match self.rules.committers_fence {
                    true => actions.push(ViewsAction::Reserve(key)),
                    false => actions.push(ViewsAction::InspectEarly(key)),
                }
            }
        }
        for (index, commit) in state.commits.iter().enumerate() {
            match commit.phase {
                ViewCommitPhase::Reserved if self.inspects_late => actions.push(ViewsAction::Apply(index)),
                ViewCommitPhase::Reserved => actions.push(ViewsAction::Inspect(index)),
                ViewCommitPhase::Inspected => actions.push(ViewsAction::Apply(index)),
                ViewCommitPhase::Complete if index < usize::from(visible(state)) => {
                    actions.push(ViewsAction::Inspect(index));
                }
                ViewCommitPhase::Judged => actions.push(ViewsAction::Free(index)),
                ViewCommitPhase::InspectedEarly | ViewCommitPhase::Complete | ViewCommitPhase::Done => {}
            }
        }
    }

    /// Returns whether a slot needs a version.
    fn needs(&self, slot: ViewSlotState, begin: u8, end: u8) -> bool {
        let keeps_all = !slot.is_exact && self.rules.registering_slots_keep_every_version;
        slot.state < end && (keeps_all || begin <= slot.state)
    }

    fn must_keep(&self, state: &ViewsState, begin: u8, end: u8) -> bool {
        state.slots.iter().flatten().any(|&slot| self.needs(slot, begin, end))
    }

    fn step(&self, state: &mut ViewsState, action: ViewsAction) {
        match action {
            ViewsAction::InspectEarly(key) => {
                let superseded = newest(&state.versions[key]);
                // The seq of the commit will be above all seqs that are known now.
                let keeps = self.must_keep(state, superseded, u8::MAX);
                state.early[key] =
                    Some(ViewCommit { key, phase: ViewCommitPhase::InspectedEarly, superseded, keeps });
            }
            ViewsAction::Reserve(key) => {
                let superseded = newest(&state.versions[key]);
                let new = ViewCommit { key, phase: ViewCommitPhase::Reserved, superseded, keeps: true };
                let early = state.early[key]
                    .take()
                    .map(|early| ViewCommit { phase: ViewCommitPhase::Inspected, ..early });
                state.commits.push(early.unwrap_or(new));
            }
            ViewsAction::Inspect(index) => {
                let ViewCommit { superseded, phase, .. } = state.commits[index];
                state.commits[index].keeps = self.must_keep(state, superseded, seq(index));
                let is_late = phase == ViewCommitPhase::Complete;
                state.commits[index].phase =
                    if is_late { ViewCommitPhase::Judged } else { ViewCommitPhase::Inspected };
            }
            ViewsAction::Apply(index) => {
                let key = state.commits[index].key;
                state.versions[key].push(seq(index));
                if self.inspects_late {
                    state.commits[index].phase = ViewCommitPhase::Complete;
                } else {
                    free(state, index);
                }
            }
            ViewsAction::Free(index) => free(state, index),
            ViewsAction::Begin(slot) => {
                state.begun += 1;
                state.views[slot] = ViewPhase::Begun(visible(state));
            }
            ViewsAction::Publish(slot) => {
                if let ViewPhase::Begun(from) = state.views[slot] {
                    let registering = Some(ViewSlotState { state: from, is_exact: false });
                    match self.rules.views_fence {
                        true => state.slots[slot] = registering,
                        false => state.buffers[slot] = registering,
                    }
                }
                state.views[slot] = ViewPhase::Published;
            }
            ViewsAction::Flush(slot) => state.slots[slot] = state.buffers[slot].take(),
            ViewsAction::ReadReserved(slot) => state.views[slot] = ViewPhase::Waiting(last(state)),
            ViewsAction::TakeState(slot) => {
                let ViewPhase::Waiting(reserved) = state.views[slot] else { return };
                let at = if self.rules.snapshots_are_at_visible { visible(state) } else { reserved };
                state.views[slot] = ViewPhase::Reading(at);
                // If the first store is still in the buffer, this store follows it there.
                match &mut state.buffers[slot] {
                    Some(buffered) => *buffered = ViewSlotState { state: at, is_exact: true },
                    None => state.slots[slot] = Some(ViewSlotState { state: at, is_exact: true }),
                }
            }
            ViewsAction::Release(slot) => {
                state.views[slot] = ViewPhase::Empty;
                (state.slots[slot], state.buffers[slot]) = (None, None);
            }
        }
    }
}

fn seq(index: usize) -> u8 {
    u8::try_from(index + 1).unwrap_or(u8::MAX)
}

fn last(state: &ViewsState) -> u8 {
    seq(state.commits.len()) - 1
}

fn visible(state: &ViewsState) -> u8 {
    let is_complete = |commit: &&ViewCommit| {
        matches!(commit.phase, ViewCommitPhase::Complete | ViewCommitPhase::Judged | ViewCommitPhase::Done)
    };
    seq(state.commits.iter().take_while(is_complete).count()) - 1
}

fn newest(versions: &[u8]) -> u8 {
    versions.iter().copied().max().unwrap_or(0)
}

fn first_empty(state: &ViewsState) -> Option<usize> {
    state.views.iter().position(|view| *view == ViewPhase::Empty)
}

/// Removes the version that a commit superseded, unless a view needs it.
fn free(state: &mut ViewsState, index: usize) {
    let commit = &mut state.commits[index];
    commit.phase = ViewCommitPhase::Done;
    if !commit.keeps {
        state.versions[commit.key].retain(|&version| version != commit.superseded);
    }
}

/// Returns whether a view at a state finds a version that differs from the commit order.
fn reads_wrong_version(state: &ViewsState, at: u8) -> bool {
    (0..KEYS).any(|key| {
        let commits = state.commits.iter().enumerate().filter(|(_, commit)| commit.key == key);
        let wanted = commits.map(|(index, _)| seq(index)).filter(|&seq| seq <= at).max().unwrap_or(0);
        let found = state.versions[key].iter().copied().filter(|&version| version <= at).max();
        found != Some(wanted)
    })
}
