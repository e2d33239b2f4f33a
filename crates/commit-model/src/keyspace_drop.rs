//! # Drop of a keyspace: a commit, then the deletion of its files
//!
//! A keyspace has a log of its own (Z) in addition to the journal. Commits before the drop have a
//! part in one or both logs. The drop is a commit in the journal. When F in ROOT has passed the
//! drop, recovery no longer reads Z. The model lets an `unlink` reach the disk at once, which is
//! the worst case.
//!
//! ## Invariants
//! I3: the deletion of Z never removes a part of a commit that recovery still needs.

use crate::ProtocolRules;
use crate::disk::{self, CrashKind, CrashOutcomes, ModelPage};
use crate::explore::{BrokenInvariant, CheckedState, no_broken_invariant};
use stateright::{Model, Property};

/// Model of a drop.
#[derive(Clone, Debug)]
pub struct KeyspaceDropModel {
    /// Active rules.
    pub rules: ProtocolRules,
    /// Commits in addition to the drop.
    pub commits: usize,
    /// Whether a slot of ROOT may rot while the other slot is valid.
    pub slot_rots: bool,
}

/// Content of a ROOT slot: generation and F.
type DropRoot = (u8, usize);

/// Frames of one commit, one for each log that it writes to.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct DropCommit {
    journal: Option<ModelPage<()>>,
    engine_log: Option<ModelPage<()>>,
}

/// Disk and process.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct DropState {
    slots: [ModelPage<DropRoot>; 2],
    commits: Vec<DropCommit>,
    /// Seq of the drop.
    drop: Option<usize>,
    is_unlinked: bool,
    generation: u8,
    durable: usize,
    is_down: bool,
    broken_invariant: Option<BrokenInvariant>,
}

/// Steps of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropAction {
    /// Commits to the journal (first flag), to Z (second flag), or to both.
    Commit(bool, bool),
    /// Drops the keyspace.
    Drop,
    /// Runs a sync round.
    Sync,
    /// Writes ROOT with F = W.
    WriteRoot,
    /// Syncs ROOT.
    SyncRoot,
    /// Deletes the files of Z.
    Unlink,
    /// Cuts the power, damages a slot if one is given, then recovers. The number selects the
    /// content of the platter.
    PowerCut(usize, Option<usize>),
}

impl DropState {
    fn pages(&self) -> impl Iterator<Item = &dyn CrashOutcomes> {
        let slots = self.slots.iter().map(|slot| -> &dyn CrashOutcomes { slot });
        let frames = self.commits.iter().flat_map(|commit| [&commit.journal, &commit.engine_log]);
        slots.chain(frames.flatten().map(|page| -> &dyn CrashOutcomes { page }))
    }

    fn pages_mut(&mut self) -> impl Iterator<Item = &mut dyn CrashOutcomes> {
        let slots = self.slots.iter_mut().map(|slot| -> &mut dyn CrashOutcomes { slot });
        let frames = self.commits.iter_mut().flat_map(|held| [&mut held.journal, &mut held.engine_log]);
        slots.chain(frames.flatten().map(|page| -> &mut dyn CrashOutcomes { page }))
    }

    fn newest(&self) -> Option<usize> {
        let newest = usize::from(self.slots[1].read() > self.slots[0].read());
        self.slots[newest].read().map(|_| newest)
    }
}

impl CheckedState for DropState {
    fn broken_invariant(&self) -> Option<BrokenInvariant> {
        self.broken_invariant
    }
}

impl Model for KeyspaceDropModel {
    type State = DropState;
    type Action = DropAction;

    fn init_states(&self) -> Vec<DropState> {
        let slots = [1, 2].map(|generation| {
            let mut slot = ModelPage::empty();
            slot.write((generation, 0), true);
            slot.sync();
            slot
        });
        vec![DropState {
            slots,
            commits: Vec::new(),
            drop: None,
            is_unlinked: false,
            generation: 2,
            durable: 0,
            is_down: false,
            broken_invariant: None,
        }]
    }

    fn actions(&self, state: &DropState, actions: &mut Vec<DropAction>) {
        if state.is_down {
            return;
        }
        let ways = disk::outcome_count(state.pages(), CrashKind::PowerCut);
        actions.extend((0..ways).map(|way| DropAction::PowerCut(way, None)));
        if self.slot_rots {
            let rots = |slot| (0..ways).map(move |way| DropAction::PowerCut(way, Some(slot)));
            actions.extend([0, 1].into_iter().flat_map(rots));
        }
        if state.commits.len() <= self.commits {
            actions.push(DropAction::Commit(true, false));
            if state.drop.is_none() {
                actions.extend([
                    DropAction::Commit(true, true),
                    DropAction::Commit(false, true),
                    DropAction::Drop,
                ]);
            }
        }
        if state.durable < state.commits.len() {
            actions.push(DropAction::Sync);
        }
        if state.slots.iter().any(ModelPage::is_dirty) {
            actions.push(DropAction::SyncRoot);
        } else if state.generation < 6 {
            actions.push(DropAction::WriteRoot);
        }
        if !state.is_unlinked && self.may_unlink(state) {
            actions.push(DropAction::Unlink);
        }
    }

    fn next_state(&self, state: &DropState, action: DropAction) -> Option<DropState> {
        let mut next = state.clone();
        self.step(&mut next, action);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        no_broken_invariant()
    }
}

impl KeyspaceDropModel {
    fn may_unlink(&self, state: &DropState) -> bool {
        let past = |slot: &ModelPage<DropRoot>| {
            let floor = slot.read().filter(|_| slot.is_on_platter()).map(|root| root.1);
            floor >= state.drop
        };
        state.drop.is_some()
            && match (self.rules.unlink_after_floor, self.rules.unlink_after_both_slots) {
                (false, _) => true,
                (true, false) => state.slots.iter().any(past),
                (true, true) => state.slots.iter().all(past),
            }
    }

    fn step(&self, state: &mut DropState, action: DropAction) {
        let frame = |takes_part: bool| {
            takes_part.then(|| {
                let mut page = ModelPage::empty();
                page.write((), true);
                page
            })
        };
        match action {
            DropAction::Commit(journal, own) => {
                state.commits.push(DropCommit { journal: frame(journal), engine_log: frame(own) });
            }
            DropAction::Drop => {
                state.commits.push(DropCommit { journal: frame(true), engine_log: None });
                state.drop = Some(state.commits.len());
            }
            DropAction::Sync => {
                for commit in &mut state.commits {
                    [&mut commit.journal, &mut commit.engine_log]
                        .into_iter()
                        .flatten()
                        .for_each(ModelPage::sync);
                }
                state.durable = state.commits.len();
            }
            DropAction::WriteRoot => {
                state.generation += 1;
                let Some(newest) = state.newest() else { return };
                state.slots[1 - newest].write((state.generation, state.durable), true);
            }
            DropAction::SyncRoot => state.slots.iter_mut().for_each(ModelPage::sync),
            DropAction::Unlink => {
                state.is_unlinked = true;
                state.commits.iter_mut().filter_map(|held| held.engine_log.as_mut()).for_each(ModelPage::rot);
            }
            DropAction::PowerCut(way, rots) => {
                disk::apply_crash(state.pages_mut(), CrashKind::PowerCut, way);
                let whole = state.slots.iter().all(|slot| slot.read().is_some());
                if let Some(slot) = rots.filter(|_| whole) {
                    state.slots[slot].rot();
                }
                state.is_down = true;
                state.broken_invariant = recover(state);
            }
        }
    }
}

/// Recovers and checks the result. The commits up to F are accepted without a check. Above F every
/// part of a commit must exist.
fn recover(state: &DropState) -> Option<BrokenInvariant> {
    let Some(&(_, floor)) = state.newest().and_then(|slot| state.slots[slot].read()) else {
        return Some(BrokenInvariant::Durable);
    };
    let is_there = |page: &Option<ModelPage<()>>| page.as_ref().is_none_or(|page| page.read().is_some());
    let whole = |commit: &&DropCommit| is_there(&commit.journal) && is_there(&commit.engine_log);
    let cut = floor + state.commits[floor..].iter().take_while(whole).count();
    // Z must exist unless the drop was accepted too.
    let needs_own = state.drop.is_none_or(|drop| drop > cut);
    if cut < state.durable || needs_own && state.is_unlinked {
        return Some(BrokenInvariant::Durable);
    }
    None
}
