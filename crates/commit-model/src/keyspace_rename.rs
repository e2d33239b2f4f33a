//! # Rename of a keyspace: a commit that changes the catalog, and ROOT
//!
//! Two keyspaces and two names. A rename gives the first keyspace the other name; another commit
//! creates the second keyspace with the name that became free, or renames the first one back. ROOT
//! has the names at F; recovery starts with them and applies the commits after F.
//!
//! ## Picture
//! ```text
//!   Rename = [remove the old name, put the new name]   one frame, or two without the rule
//!   WriteRoot: F = W, names at F                       or the newest names without the rule
//!   PowerCut ─> names of ROOT, then the commits after F up to the cut
//! ```
//!
//! ## Invariants
//! - I1: recovery finds a rename completely or not at all.
//! - I3: a power cut loses no durable commit.
//! - I6: after recovery the names are those after exactly the commits up to the cut.

use crate::ProtocolRules;
use crate::disk::{self, CrashKind, CrashOutcomes, ModelPage};
use crate::explore::{BrokenInvariant, CheckedState, no_broken_invariant};
use stateright::{Model, Property};

/// Number of names and of keyspaces.
const NAMES: usize = 2;

/// Keyspace of each name.
type Names = [Option<u8>; NAMES];

/// Change of one name.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
struct NameRecord {
    name: usize,
    keyspace: Option<u8>,
}

/// Content of a ROOT slot: generation, F and the names.
type RenameRoot = (u8, usize, Names);

/// Model of renames.
#[derive(Clone, Debug)]
pub struct KeyspaceRenameModel {
    /// Active rules.
    pub rules: ProtocolRules,
    /// Most commits.
    pub commits: usize,
}

/// A commit: its frame, and the names after the change that the caller made with it.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct RenameCommit {
    frame: ModelPage<Vec<NameRecord>>,
    /// False if the frame has a part of a change only.
    is_whole: bool,
}

/// Disk and process.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct RenameState {
    slots: [ModelPage<RenameRoot>; 2],
    commits: Vec<RenameCommit>,
    generation: u8,
    durable: usize,
    is_down: bool,
    broken_invariant: Option<BrokenInvariant>,
}

/// Steps of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameAction {
    /// Gives the keyspace with this name the other name, which is free.
    Rename(usize),
    /// Creates the second keyspace with this name, which is free.
    Create(usize),
    /// Runs a sync round.
    Sync,
    /// Writes ROOT with F = W.
    WriteRoot,
    /// Syncs ROOT.
    SyncRoot,
    /// Cuts the power, then recovers. The number selects the content of the platter.
    PowerCut(usize),
}

/// Returns the names after some records.
fn applied<'r>(mut names: Names, records: impl IntoIterator<Item = &'r NameRecord>) -> Names {
    records.into_iter().for_each(|record| names[record.name] = record.keyspace);
    names
}

impl RenameState {
    fn pages(&self) -> impl Iterator<Item = &dyn CrashOutcomes> {
        let slots = self.slots.iter().map(|slot| -> &dyn CrashOutcomes { slot });
        slots.chain(self.commits.iter().map(|commit| -> &dyn CrashOutcomes { &commit.frame }))
    }

    fn pages_mut(&mut self) -> impl Iterator<Item = &mut dyn CrashOutcomes> {
        let slots = self.slots.iter_mut().map(|slot| -> &mut dyn CrashOutcomes { slot });
        slots.chain(self.commits.iter_mut().map(|commit| -> &mut dyn CrashOutcomes { &mut commit.frame }))
    }

    /// Returns the names after the first `count` commits, which must be in the page cache.
    fn names_after(&self, count: usize) -> Names {
        let records = self.commits[..count].iter().filter_map(|commit| commit.frame.read()).flatten();
        applied([Some(0), None], records)
    }

    fn newest(&self) -> Option<usize> {
        let newest = usize::from(self.slots[1].read() > self.slots[0].read());
        self.slots[newest].read().map(|_| newest)
    }

    fn append(&mut self, records: Vec<NameRecord>, is_whole: bool) {
        let mut frame = ModelPage::empty();
        frame.write(records, true);
        self.commits.push(RenameCommit { frame, is_whole });
    }
}

impl CheckedState for RenameState {
    fn broken_invariant(&self) -> Option<BrokenInvariant> {
        self.broken_invariant
    }
}

impl Model for KeyspaceRenameModel {
    type State = RenameState;
    type Action = RenameAction;

    fn init_states(&self) -> Vec<RenameState> {
        let slots = [1, 2].map(|generation| {
            let mut slot = ModelPage::empty();
            slot.write((generation, 0, [Some(0), None]), true);
            slot.sync();
            slot
        });
        vec![RenameState {
            slots,
            commits: Vec::new(),
            generation: 2,
            durable: 0,
            is_down: false,
            broken_invariant: None,
        }]
    }

    fn actions(&self, state: &RenameState, actions: &mut Vec<RenameAction>) {
        if state.is_down {
            return;
        }
        let ways = disk::outcome_count(state.pages(), CrashKind::PowerCut);
        actions.extend((0..ways).map(RenameAction::PowerCut));
        let names = state.names_after(state.commits.len());
        if state.commits.len() < self.commits {
            for name in (0..NAMES).filter(|name| names[*name].is_none()) {
                actions.extend(names[1 - name].map(|_| RenameAction::Rename(1 - name)));
                if !names.contains(&Some(1)) {
                    actions.push(RenameAction::Create(name));
                }
            }
        }
        if state.durable < state.commits.len() {
            actions.push(RenameAction::Sync);
        }
        if state.slots.iter().any(ModelPage::is_dirty) {
            actions.push(RenameAction::SyncRoot);
        } else if state.generation < 5 {
            actions.push(RenameAction::WriteRoot);
        }
    }

    fn next_state(&self, state: &RenameState, action: RenameAction) -> Option<RenameState> {
        let mut next = state.clone();
        self.step(&mut next, action);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        no_broken_invariant()
    }
}

impl KeyspaceRenameModel {
    fn step(&self, state: &mut RenameState, action: RenameAction) {
        match action {
            RenameAction::Rename(name) => {
                let keyspace = state.names_after(state.commits.len())[name];
                let remove = NameRecord { name, keyspace: None };
                let put = NameRecord { name: 1 - name, keyspace };
                if self.rules.renames_are_one_commit {
                    state.append(vec![remove, put], true);
                } else {
                    state.append(vec![remove], false);
                    state.append(vec![put], true);
                }
            }
            RenameAction::Create(name) => {
                state.append(vec![NameRecord { name, keyspace: Some(1) }], true);
            }
            RenameAction::Sync => {
                state.commits.iter_mut().for_each(|commit| commit.frame.sync());
                state.durable = state.commits.len();
            }
            RenameAction::WriteRoot => {
                state.generation += 1;
                let Some(newest) = state.newest() else { return };
                let at = if self.rules.root_has_the_names_at_its_floor {
                    state.durable
                } else {
                    state.commits.len()
                };
                let root = (state.generation, state.durable, state.names_after(at));
                state.slots[1 - newest].write(root, true);
            }
            RenameAction::SyncRoot => state.slots.iter_mut().for_each(ModelPage::sync),
            RenameAction::PowerCut(way) => {
                let written: Vec<Names> =
                    (0..=state.commits.len()).map(|count| state.names_after(count)).collect();
                disk::apply_crash(state.pages_mut(), CrashKind::PowerCut, way);
                state.is_down = true;
                state.broken_invariant = recover(state, &written);
            }
        }
    }
}

/// Recovers and checks the result; `written` has the names after each number of commits.
fn recover(state: &RenameState, written: &[Names]) -> Option<BrokenInvariant> {
    let Some(&(_, floor, names)) = state.newest().and_then(|slot| state.slots[slot].read()) else {
        return Some(BrokenInvariant::Durable);
    };
    let found = state.commits[floor..].iter().map_while(|commit| commit.frame.read());
    let records: Vec<&Vec<NameRecord>> = found.collect();
    let cut = floor + records.len();
    if cut < state.durable {
        return Some(BrokenInvariant::Durable);
    }
    let is_whole = cut == 0 || state.commits[cut - 1].is_whole;
    let is_exact = applied(names, records.into_iter().flatten()) == written[cut];
    if !is_whole {
        return Some(BrokenInvariant::Atomic);
    }
    (!is_exact).then_some(BrokenInvariant::Index)
}
