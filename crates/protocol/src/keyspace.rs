//! # Dropping a keyspace: the drop is a commit, the files go later
//!
//! A keyspace with a log of its own (Z) and the journal. Commits before the drop have a part in each,
//! or in one of them; the drop is a commit in the journal. Once F in ROOT is past the drop, recovery
//! asks Z for nothing. `unlink` gets to the disk whenever the file system likes: at once, here.
//!
//! ## Checked
//! I3 and I8: unlinking Z never takes away a part of a commit that recovery still counts.

use crate::Rules;
use crate::disk::{self, Crash, Fate, Page};
use crate::explore::{Broken, Verdict, nothing_is_broken};
use stateright::{Model, Property};

/// The model.
#[derive(Clone, Debug)]
pub struct Drops {
    /// Which rules hold.
    pub rules: Rules,
    /// Commits, the drop not counted.
    pub commits: usize,
    /// Whether a slot of ROOT may rot while the other is whole.
    pub slot_rots: bool,
}

/// ROOT: its generation and F.
type Root = (u8, usize);

/// One commit: in which logs, and its frames.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct Commit {
    journal: Option<Page<()>>,
    own: Option<Page<()>>,
}

/// Disk and process.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct State {
    slots: [Page<Root>; 2],
    commits: Vec<Commit>,
    /// The number of the drop.
    drop: Option<usize>,
    is_unlinked: bool,
    generation: u8,
    durable: usize,
    is_down: bool,
    broken: Option<Broken>,
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A commit to (the journal, Z).
    Commit(bool, bool),
    /// The keyspace is dropped.
    Drop,
    /// A sync round.
    Sync,
    /// ROOT is written with F = W.
    WriteRoot,
    /// And synced.
    SyncRoot,
    /// Z's files go.
    Unlink,
    /// The power goes; maybe this slot rots; recovery looks.
    PowerCut(usize, Option<usize>),
}

impl State {
    fn pages(&self) -> impl Iterator<Item = &dyn Fate> {
        let slots = self.slots.iter().map(|slot| -> &dyn Fate { slot });
        let frames = self.commits.iter().flat_map(|commit| [&commit.journal, &commit.own]);
        slots.chain(frames.flatten().map(|page| -> &dyn Fate { page }))
    }

    fn pages_mut(&mut self) -> impl Iterator<Item = &mut dyn Fate> {
        let slots = self.slots.iter_mut().map(|slot| -> &mut dyn Fate { slot });
        let frames = self.commits.iter_mut().flat_map(|held| [&mut held.journal, &mut held.own]);
        slots.chain(frames.flatten().map(|page| -> &mut dyn Fate { page }))
    }

    fn newest(&self) -> Option<usize> {
        let newest = usize::from(self.slots[1].read() > self.slots[0].read());
        self.slots[newest].read().map(|_| newest)
    }
}

impl Verdict for State {
    fn broken(&self) -> Option<Broken> {
        self.broken
    }
}

impl Model for Drops {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let slots = [1, 2].map(|generation| {
            let mut slot = Page::empty();
            slot.write((generation, 0), true);
            slot.sync();
            slot
        });
        vec![State {
            slots,
            commits: Vec::new(),
            drop: None,
            is_unlinked: false,
            generation: 2,
            durable: 0,
            is_down: false,
            broken: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.is_down {
            return;
        }
        let ways = disk::ways(state.pages(), Crash::PowerCut);
        actions.extend((0..ways).map(|way| Action::PowerCut(way, None)));
        if self.slot_rots {
            let rots = |slot| (0..ways).map(move |way| Action::PowerCut(way, Some(slot)));
            actions.extend([0, 1].into_iter().flat_map(rots));
        }
        if state.commits.len() <= self.commits {
            actions.push(Action::Commit(true, false));
            if state.drop.is_none() {
                actions.extend([Action::Commit(true, true), Action::Commit(false, true), Action::Drop]);
            }
        }
        if state.durable < state.commits.len() {
            actions.push(Action::Sync);
        }
        if state.slots.iter().any(Page::is_dirty) {
            actions.push(Action::SyncRoot);
        } else if state.generation < 6 {
            actions.push(Action::WriteRoot);
        }
        if !state.is_unlinked && self.may_unlink(state) {
            actions.push(Action::Unlink);
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

impl Drops {
    fn may_unlink(&self, state: &State) -> bool {
        let past = |slot: &Page<Root>| {
            let floor = slot.read().filter(|_| slot.is_settled()).map(|root| root.1);
            floor >= state.drop
        };
        state.drop.is_some()
            && match (self.rules.unlink_after_floor, self.rules.unlink_after_both_slots) {
                (false, _) => true,
                (true, false) => state.slots.iter().any(past),
                (true, true) => state.slots.iter().all(past),
            }
    }

    fn step(&self, state: &mut State, action: Action) {
        let frame = |takes_part: bool| {
            takes_part.then(|| {
                let mut page = Page::empty();
                page.write((), true);
                page
            })
        };
        match action {
            Action::Commit(journal, own) => {
                state.commits.push(Commit { journal: frame(journal), own: frame(own) });
            }
            Action::Drop => {
                state.commits.push(Commit { journal: frame(true), own: None });
                state.drop = Some(state.commits.len());
            }
            Action::Sync => {
                for commit in &mut state.commits {
                    [&mut commit.journal, &mut commit.own].into_iter().flatten().for_each(Page::sync);
                }
                state.durable = state.commits.len();
            }
            Action::WriteRoot => {
                state.generation += 1;
                let Some(newest) = state.newest() else { return };
                state.slots[1 - newest].write((state.generation, state.durable), true);
            }
            Action::SyncRoot => state.slots.iter_mut().for_each(Page::sync),
            Action::Unlink => {
                state.is_unlinked = true;
                state.commits.iter_mut().filter_map(|held| held.own.as_mut()).for_each(Page::rot);
            }
            Action::PowerCut(way, rots) => {
                disk::suffer(state.pages_mut(), Crash::PowerCut, way);
                let whole = state.slots.iter().all(|slot| slot.read().is_some());
                if let Some(slot) = rots.filter(|_| whole) {
                    state.slots[slot].rot();
                }
                state.is_down = true;
                state.broken = recover(state);
            }
        }
    }
}

/// Commits at or below F are not questioned; above it every part counts.
fn recover(state: &State) -> Option<Broken> {
    let Some(&(_, floor)) = state.newest().and_then(|slot| state.slots[slot].read()) else {
        return Some(Broken::Durable);
    };
    let is_there = |page: &Option<Page<()>>| page.as_ref().is_none_or(|page| page.read().is_some());
    let whole = |commit: &&Commit| is_there(&commit.journal) && is_there(&commit.own);
    let cut = floor + state.commits[floor..].iter().take_while(whole).count();
    // Below F the keyspace must still be whole, unless its drop is below F too.
    let needs_own = state.drop.is_none_or(|drop| drop > cut);
    if cut < state.durable || needs_own && state.is_unlinked {
        return Some(Broken::Durable);
    }
    None
}
