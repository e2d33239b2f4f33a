//! # Retained changes: segments that outlive GC
//!
//! GC and checkpoints collect a segment of commits. If the change feed still needs it, the segment
//! moves from the live list of ROOT to the retained list. A trim frees the retained segments that
//! all cursors have passed, the oldest first, and raises the start of the feed.
//!
//! ## Picture
//! ```text
//!   commit --> live --Collect--> retained --Trim--> in no list --two ROOTs--> deleted
//!                 \--Copy--> survivor (same seq, live)        start >= seq of the trimmed segment
//! ```
//!
//! ## Invariants
//! Checks I6 and I8 for the index and the files that ROOT lists, and I2 for the feed: the cursor in
//! ROOT is not below the start, and every commit after it is in a file of one of the two lists.
//!
//! ## Simplifications
//! - Every commit writes one key and has a segment of its own, which is durable at once.
//! - Recovery writes both slots of ROOT in one step, and then deletes the files in no list.

use crate::ProtocolRules;
use crate::disk::{self, CrashKind, CrashOutcomes, ModelPage};
use crate::explore::{BrokenInvariant, CheckedState, no_broken_invariant};
use stateright::{Model, Property};

/// Model of retained segments.
#[derive(Clone, Debug)]
pub struct RetentionModel {
    /// Active rules.
    pub rules: ProtocolRules,
    /// Number of commits, at most 6.
    pub commits: u8,
    /// Maximum number of crashes.
    pub crashes: u8,
    /// Maximum number of writes of ROOT.
    pub roots: u8,
}

/// Content of a slot of ROOT. Sets of files are bits: commit `n` is in file `n - 1`, and the
/// survivor of the last commit is in the file after all commits.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
struct RetentionRoot {
    generation: u8,
    live: u8,
    retained: u8,
    start: u8,
    cursor: u8,
    /// Number of commits when ROOT was written. Recovery finds later ones by itself.
    commits: u8,
}

/// Serving process.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
struct RetentionServing {
    root: RetentionRoot,
    /// Collected files that the next ROOT moves to the retained list, if the rule is off.
    moving: u8,
    /// File to which the index points.
    index: Option<u8>,
}

/// Disk and process.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct RetentionState {
    slots: [ModelPage<RetentionRoot>; 2],
    files: u8,
    commits: u8,
    serving: RetentionServing,
    crashes: u8,
    roots: u8,
    broken_invariant: Option<BrokenInvariant>,
}

/// Steps of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetentionAction {
    /// Commits, in a new segment.
    Commit,
    /// Copies the newest entry to a survivor and points the index to it.
    Copy,
    /// Collects a segment to which the index does not point.
    Collect(u8),
    /// Moves the cursor over one commit.
    MoveCursor,
    /// Frees the oldest retained segment that the cursor has passed.
    Trim,
    /// Writes ROOT.
    WriteRoot,
    /// Syncs ROOT.
    SyncRoot,
    /// Deletes a file.
    Delete(u8),
    /// Crashes and recovers. The number selects the outcome of the crash.
    Crash(CrashKind, usize),
    /// Kills the process, damages a slot of ROOT, and recovers from the other slot.
    RotSlot(usize),
}

impl RetentionState {
    fn pages(&self) -> impl Iterator<Item = &dyn CrashOutcomes> {
        self.slots.iter().map(|slot| -> &dyn CrashOutcomes { slot })
    }

    fn newest(&self) -> usize {
        let generation = |slot: usize| self.slots[slot].read().map(|root| root.generation);
        usize::from(generation(1) > generation(0))
    }

    fn is_root_synced(&self) -> bool {
        self.slots.iter().all(|slot| !slot.is_dirty())
    }

    /// Returns the cursor that a crash may bring back.
    fn durable_cursor(&self) -> u8 {
        self.slots.iter().filter_map(|slot| slot.read()).map(|root| root.cursor).min().unwrap_or(0)
    }
}

impl CheckedState for RetentionState {
    fn broken_invariant(&self) -> Option<BrokenInvariant> {
        self.broken_invariant
    }
}

fn has(files: u8, file: u8) -> bool {
    files & (1 << file) != 0
}

impl Model for RetentionModel {
    type State = RetentionState;
    type Action = RetentionAction;

    fn init_states(&self) -> Vec<RetentionState> {
        let root = RetentionRoot { generation: 0, live: 0, retained: 0, start: 0, cursor: 0, commits: 0 };
        let mut slots = [ModelPage::empty(), ModelPage::empty()];
        for (generation, slot) in (0..).zip(&mut slots) {
            slot.write(RetentionRoot { generation, ..root }, true);
            slot.sync();
        }
        vec![RetentionState {
            slots,
            files: 0,
            commits: 0,
            serving: RetentionServing {
                root: RetentionRoot { generation: 1, ..root },
                moving: 0,
                index: None,
            },
            crashes: 0,
            roots: 0,
            broken_invariant: None,
        }]
    }

    fn actions(&self, state: &RetentionState, actions: &mut Vec<RetentionAction>) {
        if state.broken_invariant.is_some() {
            return;
        }
        let RetentionServing { root, index, .. } = state.serving;
        if state.commits < self.commits {
            actions.push(RetentionAction::Commit);
        }
        let survivor = self.commits;
        if state.commits == self.commits && index == Some(self.commits - 1) && !has(state.files, survivor) {
            actions.push(RetentionAction::Copy);
        }
        let dead = (0..state.commits).filter(|&file| has(root.live, file) && index != Some(file));
        actions.extend(dead.map(RetentionAction::Collect));
        if root.cursor < state.commits {
            actions.push(RetentionAction::MoveCursor);
        }
        if self.oldest_trimmable(state).is_some() {
            actions.push(RetentionAction::Trim);
        }
        match state.is_root_synced() {
            false => actions.push(RetentionAction::SyncRoot),
            true if state.roots < self.roots => actions.push(RetentionAction::WriteRoot),
            true => {}
        }
        let deletable =
            (0..state.commits).filter(|&file| has(state.files, file) && self.may_delete(state, file));
        actions.extend(deletable.map(RetentionAction::Delete));
        if state.crashes < self.crashes {
            for crash in [CrashKind::PowerCut, CrashKind::Kill] {
                let ways = 0..disk::outcome_count(state.pages(), crash);
                actions.extend(ways.map(|way| RetentionAction::Crash(crash, way)));
            }
            if state.is_root_synced() {
                actions.extend([0, 1].map(RetentionAction::RotSlot));
            }
        }
    }

    fn next_state(&self, state: &RetentionState, action: RetentionAction) -> Option<RetentionState> {
        let mut next = state.clone();
        self.step(&mut next, action);
        if next.broken_invariant.is_none() {
            next.broken_invariant = check(&next);
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        no_broken_invariant()
    }
}

impl RetentionModel {
    /// Returns the oldest retained file, if the cursor has passed its commit.
    fn oldest_trimmable(&self, state: &RetentionState) -> Option<u8> {
        let root = state.serving.root;
        let oldest = (0..state.commits).find(|&file| has(root.retained, file))?;
        let cursor = match self.rules.trims_follow_durable_cursors {
            true => state.durable_cursor(),
            false => root.cursor,
        };
        (cursor > oldest).then_some(oldest)
    }

    /// Returns whether the lists permit the deletion of a file.
    fn may_delete(&self, state: &RetentionState, file: u8) -> bool {
        let RetentionServing { root, moving, .. } = state.serving;
        let lists = |root: &RetentionRoot| has(root.live | root.retained, file) || root.commits <= file;
        let in_slots = match self.rules.trimmed_segments_leave_both_slots {
            true => state.slots.iter().any(|slot| slot.read().is_some_and(lists)),
            false => state.slots[state.newest()].read().is_some_and(lists),
        };
        !has(root.live | root.retained | moving, file) && !in_slots && state.is_root_synced()
    }

    fn step(&self, state: &mut RetentionState, action: RetentionAction) {
        let serving = &mut state.serving;
        match action {
            RetentionAction::Commit => {
                let file = state.commits;
                state.files |= 1 << file;
                serving.root.live |= 1 << file;
                serving.index = Some(file);
                state.commits += 1;
            }
            RetentionAction::Copy => {
                state.files |= 1 << self.commits;
                serving.root.live |= 1 << self.commits;
                serving.index = Some(self.commits);
            }
            RetentionAction::Collect(file) => {
                serving.root.live &= !(1 << file);
                match self.rules.collected_segments_move_in_one_root {
                    true if file < serving.root.start => {}
                    true => serving.root.retained |= 1 << file,
                    false => serving.moving |= 1 << file,
                }
            }
            RetentionAction::MoveCursor => serving.root.cursor += 1,
            RetentionAction::Trim => {
                if let Some(file) = self.oldest_trimmable(state) {
                    let root = &mut state.serving.root;
                    root.retained &= !(1 << file);
                    if self.rules.trims_raise_the_start {
                        root.start = root.start.max(file + 1);
                    }
                }
            }
            RetentionAction::WriteRoot => {
                let to = 1 - state.newest();
                let serving = &mut state.serving;
                serving.root.generation += 1;
                serving.root.commits = state.commits;
                state.slots[to].write(serving.root, true);
                serving.root.retained |= std::mem::take(&mut serving.moving);
                state.roots += 1;
            }
            RetentionAction::SyncRoot => state.slots.iter_mut().for_each(ModelPage::sync),
            RetentionAction::Delete(file) => state.files &= !(1 << file),
            RetentionAction::Crash(crash, way) => {
                let pages = state.slots.iter_mut().map(|slot| -> &mut dyn CrashOutcomes { slot });
                disk::apply_crash(pages, crash, way);
                state.crashes += 1;
                self.recover(state);
            }
            RetentionAction::RotSlot(slot) => {
                state.slots[slot].rot();
                state.crashes += 1;
                self.recover(state);
            }
        }
    }

    fn recover(&self, state: &mut RetentionState) {
        let newest = state.newest();
        let Some(mut root) = state.slots[newest].read().copied() else {
            state.broken_invariant = Some(BrokenInvariant::FalseDamage);
            return;
        };
        if root.live & !state.files != 0 || root.retained & !state.files != 0 {
            state.broken_invariant = Some(BrokenInvariant::FalseDamage);
            return;
        }
        root.live |= (root.commits..state.commits).map(|file| 1 << file).sum::<u8>();
        root.commits = state.commits;
        let replayed = match self.rules.retained_segments_are_not_replayed {
            true => root.live,
            false => root.live | root.retained,
        };
        // The highest seq wins; of a commit and its survivor, the one that is found first.
        let newest_commit = (0..state.commits).rev().find(|&file| has(replayed, file));
        let index = match newest_commit {
            Some(file) if file + 1 == self.commits => Some(file),
            _ if has(replayed, self.commits) => Some(self.commits),
            other => other,
        };
        for slot in &mut state.slots {
            root.generation += 1;
            slot.write(root, true);
            slot.sync();
        }
        state.files &= root.live | root.retained;
        state.serving = RetentionServing { root, moving: 0, index };
    }
}

/// Checks the index and the feed of the process, and the lists of ROOT.
fn check(state: &RetentionState) -> Option<BrokenInvariant> {
    let RetentionServing { root, moving, index } = state.serving;
    let newest = state.commits.checked_sub(1);
    let is_newest = index == newest || index.is_some_and(|file| file >= state.commits);
    if !is_newest || index.is_some_and(|file| !has(state.files, file)) {
        return Some(BrokenInvariant::Index);
    }
    let listed = (root.live | root.retained | moving) & state.files;
    let first = state.durable_cursor().max(root.start);
    let is_whole = (first..state.commits).all(|file| has(listed, file));
    let is_held = root.start <= state.durable_cursor();
    // Without a raised start the feed claims to have the commits after it.
    let is_honest = (root.start..state.commits).all(|file| has(listed, file));
    (!is_whole || !is_held || !is_honest).then_some(BrokenInvariant::Prefix)
}
