//! # GC of a store log: survivors, tombstones, checkpoints and ROOT
//!
//! Models one store log with one frame per segment, GC, index checkpoints and the two slots of
//! ROOT. Commits put and delete one or two keys. The model compares the index with the true map
//! after every step and every recovery.
//!
//! ## Picture
//! ```text
//! pass:       BeginPass --> CopySurvivor --> Repoint -------> SyncSurvivor --> not in next ROOT
//!             (under the    (a frame with    (if the index    (Free: later, when F covers the
//!             lock: live?)  its own seq)     still agrees)    victim and both slots are past it)
//! checkpoint: StartCheckpoint (start, position) --> CheckpointKey ... --> published by a WriteRoot
//!             when W has reached its end and its survivors are synced
//! recovery:   cut = dense above F; index = image without entries in removed segments, then every
//!             frame from the start position of the image on; the highest seq wins
//! ```
//!
//! ## Invariants
//! Checks I2, I3, I4, I6 and I7. `GcModel::index` has the proof that replay from the start of the
//! image suffices.
//!
//! ## Simplifications
//! - A freed segment is destroyed at once.
//! - A segment is one frame. A victim with many frames is freed if each of them allows it.
//! - Recovery also finds segments that ROOT does not list yet. A real ROOT lists them before a
//!   frame in them is acknowledged.
//! - Seqs that were cut off are assigned again. `commit_order` is stricter.

mod recovery;
mod steps;

use crate::ProtocolRules;
use crate::disk::{self, CrashKind, CrashOutcomes, ModelPage};
use crate::explore::{BrokenInvariant, CheckedState, no_broken_invariant};
use stateright::{Model, Property};

/// Keys of the model.
const KEYS: usize = 2;

/// Seq of a commit.
pub type GcSeq = u8;

/// Bounds of an exploration.
#[derive(Clone, Debug)]
pub struct GcBounds {
    /// Keys that commits write (1 or 2).
    pub keys: usize,
    /// Commits in the whole run.
    pub commits: u8,
    /// Passes of GC.
    pub gc_passes: u8,
    /// Index checkpoints.
    pub checkpoints: u8,
    /// Writes of ROOT by the serving process.
    pub roots: u8,
    /// Power cuts in the whole run.
    pub power_cuts: u8,
    /// Kills in the whole run.
    pub kills: u8,
    /// ROOT slots that rot while the other slot is valid and the database is closed.
    pub slot_rots: u8,
}

/// Model of GC.
///
/// # Not modeled
/// - Segments that are preallocated. The start position of a checkpoint must treat a segment that
///   exists and is not used yet as lying behind it.
/// - A step for each part of a sync round or a recovery: `commit_order` has these steps.
#[derive(Clone, Debug)]
pub struct GcModel {
    /// Active rules.
    pub rules: ProtocolRules,
    /// Limits of the exploration.
    pub bounds: GcBounds,
}

/// Frame in a segment of its own. Its address is the index of that segment.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
struct GcFrame {
    /// True for a survivor, which is never part of the commit order.
    is_survivor: bool,
    seq: GcSeq,
    key: usize,
    tombstone: bool,
}

/// Address of the newest version of a key.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
struct GcEntry {
    seq: GcSeq,
    at: usize,
    tombstone: bool,
}

type GcIndex = [Option<GcEntry>; KEYS];

/// Index checkpoint.
#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
struct GcImage {
    /// Value of `visible`, and index of the first missing segment, at the start of the scan.
    start: GcSeq,
    start_at: usize,
    /// Both values at the end of the scan.
    end: GcSeq,
    end_at: usize,
    entries: GcIndex,
}

/// Content of a ROOT slot.
#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
struct GcRoot {
    generation: u8,
    floor: GcSeq,
    /// Set of segments that are not live, as bits. The real ROOT lists the live ones.
    removed_segments: u32,
    image: Option<GcImage>,
}

/// State of GC within a pass.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum GcPass {
    /// The victim is live and must be copied.
    Found { victim: usize },
    /// The copy is in the kernel. The index points to the victim or to a newer version.
    Copied { victim: usize, copy: usize },
    /// The index points to the copy or to a newer version. The copy is not synced.
    Pointed { victim: usize },
}

/// Index checkpoint in progress.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct ModelCheckpoint {
    image: GcImage,
    /// Number of scanned keys. When all are scanned, the checkpoint waits for its publication.
    scanned: usize,
}

/// Serving process.
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

/// State of the process.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
enum GcProcess {
    Down,
    /// Recovery has found the cut and synced the accepted frames. The last field has all other
    /// segments.
    Recovered {
        index: GcIndex,
        cut: GcSeq,
        gone: u32,
    },
    /// Recovery has written ROOT. `last` is false if it must write the other slot too.
    RootWritten {
        index: GcIndex,
        root: GcRoot,
        last: bool,
    },
    Serving(GcServing),
}

/// Disk, process, and the commits that must survive.
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

/// Steps of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GcAction {
    /// Puts (false) or deletes (true) a key. The commit gets its seq, is logged and applied, and is
    /// visible.
    Commit(usize, bool),
    /// Runs a sync round: syncs the segments of commits and moves W.
    Sync,
    /// Starts a pass: judges the frame of the victim under the commit lock.
    BeginPass(usize),
    /// Appends the survivor.
    CopySurvivor,
    /// Repoints the index under the commit lock.
    Repoint,
    /// Syncs the survivor. Afterwards the victim may leave ROOT.
    SyncSurvivor,
    /// Starts a checkpoint.
    StartCheckpoint,
    /// Scans the index entry of the next key for the checkpoint.
    CheckpointKey,
    /// Writes ROOT: F = W, without the collected segments, with the checkpoint if it is ready.
    WriteRoot,
    /// Syncs ROOT.
    SyncRoot,
    /// Deletes the file of a segment.
    Free(usize),
    /// Cuts the power. The number selects the content of the platter.
    PowerCut(usize),
    /// Kills the process.
    Kill,
    /// Damages a slot of ROOT.
    RotSlot(usize),
    /// Recovers: syncs ROOT, reads the log, finds the cut, syncs the accepted frames.
    /// `commit_order` has each of these as a step.
    Recover,
    /// Writes ROOT in recovery.
    WriteRecoveredRoot,
    /// Syncs ROOT in recovery and serves, or first writes the other slot.
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
