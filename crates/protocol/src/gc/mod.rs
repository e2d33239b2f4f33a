//! # Cleaning a store log: survivors, tombstones, index checkpoints, and what ROOT still needs
//!
//! One store log whose segments hold one frame each, a cleaner, index checkpoints, the two slots of
//! ROOT. Puts and deletes of one or two keys. The index is compared with the true map after every
//! step and every recovery. How a prefix comes about is `order`'s matter: here a sync round is one
//! step, and so is recovery up to its write of ROOT.
//!
//! ## Picture
//! ```text
//!   pass:        Judge -----> CopySurvivor ----> Repoint -----> SyncSurvivor --> gone from the next ROOT
//!                (under the   (its own kind,     (if the index   (then, with both ROOT slots past it
//!                lock: live?) its own number)    still agrees)    and F over it: Free)
//!   checkpoint:  StartDump (start, position) --> DumpKey ... --> published by a ROOT once W has reached
//!                                                                its end and its survivors are synced
//!   recovery:    cut = dense above F; index = image, less entries into segments that are gone, then
//!                every frame from the image's start position on, highest number wins
//! ```
//!
//! ## Why replay from the image's start is enough
//! Let k's newest version at the start be v. If the scan reads v, or anything newer, at an address that
//! is live and durable at recovery, it is right: all newer frames lie behind the start. If the address
//! is gone, it went in a pass that ended after the scan read it, hence (finding 4) a pass that copied
//! after the start, so that the survivor lies behind the start; or v was superseded by a commit, which
//! lies behind the start as well. A frame older than v behind the start could only be a survivor, and
//! a survivor is judged live and copied with no start in between: v came later and lies behind too, or
//! is a tombstone whose number lies above the start, which therefore is not dropped.
//!
//! ## Simplifications
//! A freed segment is destroyed at once. Segments that ROOT does not know yet are found by recovery.
//! A number that was cut off is given again (that `order` gives numbers above the bound is stricter).

mod recovery;
mod steps;

use crate::ProtocolRules;
use crate::disk::{self, CrashKind, CrashOutcomes, ModelPage};
use crate::explore::{BrokenInvariant, CheckedState, no_broken_invariant};
use stateright::{Model, Property};

/// Keys of the model.
const KEYS: usize = 2;

/// The number of a commit.
pub type GcSeq = u8;

/// How far an exploration goes.
#[derive(Clone, Debug)]
pub struct GcBounds {
    /// Keys that commits touch (1 or 2).
    pub keys: usize,
    /// Commits over the whole run.
    pub commits: u8,
    /// Passes of the cleaner.
    pub gc_passes: u8,
    /// Index checkpoints.
    pub checkpoints: u8,
    /// ROOT written while serving.
    pub roots: u8,
    /// Power cuts.
    pub power_cuts: u8,
    /// Kills.
    pub kills: u8,
    /// Slots of ROOT that rot while the other is whole and the database is down.
    pub slot_rots: u8,
}

/// The model.
#[derive(Clone, Debug)]
pub struct GcModel {
    /// Which rules hold.
    pub rules: ProtocolRules,
    /// How far to look.
    pub bounds: GcBounds,
}

/// A frame: a segment of its own here, so its address is its place in the list of all segments.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
struct GcFrame {
    /// A survivor: never part of the order.
    is_survivor: bool,
    seq: GcSeq,
    key: usize,
    tombstone: bool,
}

/// Where a key's newest version is.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
struct GcEntry {
    seq: GcSeq,
    at: usize,
    tombstone: bool,
}

type GcIndex = [Option<GcEntry>; KEYS];

/// An index checkpoint.
#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
struct GcImage {
    /// `visible` when the scan started, and the first segment that was not there yet.
    start: GcSeq,
    start_at: usize,
    /// The same when it ended.
    end: GcSeq,
    end_at: usize,
    entries: GcIndex,
}

/// A slot of ROOT.
#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
struct GcRoot {
    generation: u8,
    floor: GcSeq,
    /// Segments that are not live: a set of bits. (The real ROOT lists those that are.)
    removed_segments: u32,
    image: Option<GcImage>,
}

/// The cleaner, within a pass.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum GcPass {
    /// The victim was found live and is to be copied.
    Found { victim: usize },
    /// The copy is in the kernel; the index still points to the victim (or has moved on).
    Copied { victim: usize, copy: usize },
    /// The index was asked to point to the copy; the copy is not synced.
    Pointed { victim: usize },
}

/// An index checkpoint under way.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct ModelCheckpoint {
    image: GcImage,
    /// Keys scanned so far; all of them: it waits to be published.
    scanned: usize,
}

/// A serving process.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct GcServing {
    index: GcIndex,
    visible: GcSeq,
    durable: GcSeq,
    root: GcRoot,
    root_unsynced: bool,
    pass: Option<GcPass>,
    checkpoint: Option<ModelCheckpoint>,
}

/// Where the process is.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
enum GcProcess {
    Down,
    /// Recovery has decided and synced what it accepted.
    Recovered {
        index: GcIndex,
        cut: GcSeq,
        gone: u32,
    },
    /// And has written ROOT.
    RootWritten {
        index: GcIndex,
        root: GcRoot,
        last: bool,
    },
    Serving(GcServing),
}

/// Disk, process, debts.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct GcState {
    slots: [ModelPage<GcRoot>; 2],
    segments: Vec<ModelPage<GcFrame>>,
    process: GcProcess,
    /// All commits that may exist, in order: (key, whether it deletes).
    history: Vec<(usize, bool)>,
    durable_seq: GcSeq,
    acknowledged_seq: GcSeq,
    spent: GcSpent,
    broken_invariant: Option<BrokenInvariant>,
}

#[derive(Clone, Debug, Default, Hash, PartialEq, Eq)]
struct GcSpent {
    commits: u8,
    passes: u8,
    dumps: u8,
    roots: u8,
    power_cuts: u8,
    kills: u8,
    slot_rots: u8,
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GcAction {
    /// A put (false) or a delete (true) of a key: numbered, logged, applied, visible.
    Commit(usize, bool),
    /// A sync round: all commit segments, then W.
    Sync,
    /// A pass begins: the victim's frame is judged under the commit lock.
    BeginPass(usize),
    /// The survivor is appended.
    CopySurvivor,
    /// The index is re-pointed under the commit lock.
    Repoint,
    /// The survivor is synced, and the victim may leave ROOT.
    SyncSurvivor,
    /// A checkpoint begins.
    StartCheckpoint,
    /// It reads the entry of the next key.
    CheckpointKey,
    /// ROOT is written: F = W, without the cleaned segments, with the checkpoint if it is ready.
    WriteRoot,
    /// And synced.
    SyncRoot,
    /// The file of a segment is destroyed.
    Free(usize),
    /// The power goes.
    PowerCut(usize),
    /// The process goes.
    Kill,
    /// A slot of ROOT rots.
    RotSlot(usize),
    /// Recovery: ROOT settled, logs read, decided, the accepted synced (each step by itself is in
    /// model `order`).
    Recover,
    /// Recovery writes ROOT.
    WriteRecoveredRoot,
    /// Recovery syncs ROOT and serves.
    Serve,
}

impl GcState {
    fn crash_outcome_count(&self) -> usize {
        let slots = self.slots.iter().map(|slot| -> &dyn CrashOutcomes { slot });
        let segments = self.segments.iter().map(|segment| -> &dyn CrashOutcomes { segment });
        disk::outcome_count(slots.chain(segments), CrashKind::PowerCut)
    }

    fn cut_power(&mut self, way: usize) {
        let slots = self.slots.iter_mut().map(|slot| -> &mut dyn CrashOutcomes { slot });
        let segments = self.segments.iter_mut().map(|segment| -> &mut dyn CrashOutcomes { segment });
        disk::apply_crash(slots.chain(segments), CrashKind::PowerCut, way);
    }

    fn newest(&self) -> Option<usize> {
        let generation = |slot: usize| self.slots[slot].read().map(|root| root.generation);
        let best = usize::from(generation(1) > generation(0));
        generation(best).map(|_| best)
    }
}

impl CheckedState for GcState {
    fn broken_invariant(&self) -> Option<BrokenInvariant> {
        self.broken_invariant
    }
}

impl Model for GcModel {
    type State = GcState;
    type Action = GcAction;

    fn init_states(&self) -> Vec<GcState> {
        vec![steps::created()]
    }

    fn actions(&self, state: &GcState, actions: &mut Vec<GcAction>) {
        if state.broken_invariant.is_some() {
            return;
        }
        if state.spent.power_cuts < self.bounds.power_cuts {
            actions.extend((0..state.crash_outcome_count()).map(GcAction::PowerCut));
        }
        if state.process != GcProcess::Down && state.spent.kills < self.bounds.kills {
            actions.push(GcAction::Kill);
        }
        match &state.process {
            GcProcess::Down => {
                let whole =
                    |slot: usize| state.slots[slot].is_on_platter() && state.slots[slot].read().is_some();
                if state.spent.slot_rots < self.bounds.slot_rots && whole(0) && whole(1) {
                    actions.extend([0, 1].map(GcAction::RotSlot));
                }
                actions.push(GcAction::Recover);
            }
            GcProcess::Recovered { .. } => actions.push(GcAction::WriteRecoveredRoot),
            GcProcess::RootWritten { .. } => actions.push(GcAction::Serve),
            GcProcess::Serving(serving) => {
                self.foreground(state, serving, actions);
                self.background(state, serving, actions);
            }
        }
    }

    fn next_state(&self, state: &GcState, action: GcAction) -> Option<GcState> {
        let mut next = state.clone();
        self.apply_action(&mut next, action);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        no_broken_invariant()
    }
}

impl GcModel {
    fn foreground(&self, state: &GcState, serving: &GcServing, actions: &mut Vec<GcAction>) {
        if state.spent.commits < self.bounds.commits {
            for key in 0..self.bounds.keys {
                actions.push(GcAction::Commit(key, false));
                if serving.index[key].is_some_and(|entry| !entry.tombstone) {
                    actions.push(GcAction::Commit(key, true));
                }
            }
        }
        if serving.visible > serving.durable {
            actions.push(GcAction::Sync);
        }
    }

    fn background(&self, state: &GcState, serving: &GcServing, actions: &mut Vec<GcAction>) {
        match serving.pass {
            None if state.spent.passes < self.bounds.gc_passes => {
                let victims = 0..state.segments.len();
                let fit = victims.filter(|&at| self.decide_victim(state, serving, at).is_some());
                actions.extend(fit.map(GcAction::BeginPass));
            }
            None => {}
            Some(GcPass::Found { .. }) => actions.push(GcAction::CopySurvivor),
            Some(GcPass::Copied { .. }) => actions.push(GcAction::Repoint),
            Some(GcPass::Pointed { .. }) => actions.push(GcAction::SyncSurvivor),
        }
        match &serving.checkpoint {
            None => {
                let may_start = match serving.pass {
                    Some(GcPass::Found { .. }) => !self.rules.checkpoints_wait_for_judged_survivors,
                    Some(GcPass::Copied { .. }) => !self.rules.checkpoints_wait_for_copied_survivors,
                    None | Some(GcPass::Pointed { .. }) => true,
                };
                if may_start && state.spent.dumps < self.bounds.checkpoints {
                    actions.push(GcAction::StartCheckpoint);
                }
            }
            Some(dump) if dump.scanned < self.bounds.keys => actions.push(GcAction::CheckpointKey),
            Some(_) => {}
        }
        if serving.root_unsynced {
            actions.push(GcAction::SyncRoot);
        } else if state.spent.roots < self.bounds.roots {
            actions.push(GcAction::WriteRoot);
        }
        let segments = 0..state.segments.len();
        let free = segments.filter(|&at| self.may_free(state, serving, at));
        actions.extend(free.map(GcAction::Free));
    }
}
