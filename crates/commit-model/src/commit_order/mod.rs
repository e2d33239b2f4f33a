//! # Order of commits: two logs, sync rounds, crashes and recovery
//!
//! Commits write to log X, log Y or both. A round takes S, syncs the logs one by one while commits
//! continue, and moves W to S. Syncs may fail. A kill or a power cut may come between any two
//! steps, also during recovery.
//!
//! ## Picture
//! ```text
//!   Down --Open--> SyncingRoot --Recover--> Rewritten --SyncRecoveredLog X, Y
//!          rewrites             syncs ROOT, reads the        |  syncs the logs
//!          newest ROOT          tails, finds the cut,        |
//!                               rewrites the tails           v
//!         Serving <--Serve-- RootWritten <--WriteRecoveredRoot
//!         new segments  syncs ROOT             writes ROOT: F = cut, seals
//!
//!   Down --Open--> Flushed --ReadThrough--> Rewritten --> ...     (ReopenMethod::ReadThrough)
//!          syncs            reads past the
//!          ROOT, logs       page cache
//!   failed sync, or commit lost after it got its seq --> Poisoned (only a crash follows)
//! ```
//!
//! ## Invariants
//! Checks I1, I2, I3, I5, I7, I8 and I9. `history` is the true order of commits. The state counts
//! how many of them must survive: up to `visible` in a kill, up to W in a power cut or after a
//! failed sync.
//!
//! ## Crash
//! A crash is one action per combination of possible page contents ([`crate::disk`]). A commit that
//! had its seq at the crash may survive or not. When recovery serves, it must keep all that it
//! found.

mod layout;
mod recovery;
mod steps;

use layout::{CommitSeq, FramePlace, ModelLog, OrderRoot};
use recovery::RecoveredCommits;

use crate::disk::{self, CrashKind, CrashOutcomes, ModelPage, TornSectors};
use crate::explore::{BrokenInvariant, CheckedState, no_broken_invariant};
use crate::{ProtocolRules, ReopenMethod};
use stateright::{Model, Property};

/// Seqs reserved for one incarnation.
const RESERVED_SEQS: CommitSeq = 8;

/// Bounds of an exploration.
#[derive(Clone, Debug)]
pub struct OrderBounds {
    /// Commits in the whole run.
    pub commits: u8,
    /// Commits that may be copied at the same time. With 1, commits hold a lock. A larger window
    /// models parallel commits (module `window`) and requires one frame per sector.
    pub window: usize,
    /// Kills in the whole run.
    pub kills: u8,
    /// Power cuts in the whole run.
    pub power_cuts: u8,
    /// Failed syncs of a log or of ROOT.
    pub failed_syncs: u8,
    /// Writes of ROOT by the serving process.
    pub roots: u8,
    /// Whether an engine makes its state durable without a record of it in the logs.
    pub checkpoints: bool,
    /// Clean closes in the whole run.
    pub closes: u8,
    /// Whether one durable sector of a log rots while the database is closed.
    pub rots: bool,
    /// Whether the second part of a commit may fail to be written, for example because its thread
    /// dies.
    pub late_failures: bool,
    /// Frames that fit into a sector.
    pub sector_frames: usize,
    /// Effect of a power cut on a sector that is being written.
    pub tears: TornSectors,
}

impl Default for OrderBounds {
    fn default() -> Self {
        Self {
            commits: 3,
            window: 1,
            kills: 0,
            power_cuts: 2,
            failed_syncs: 0,
            roots: 0,
            checkpoints: false,
            closes: 0,
            rots: false,
            late_failures: false,
            sector_frames: 1,
            tears: TornSectors::OldOrNewBytes,
        }
    }
}

/// Model of the commit order.
///
/// # Composition
///
/// The model shows two facts. Any set of logs recovers to a prefix that contains everything at or
/// below W, and a crash may interrupt each step of recovery. The other models rely on both: a sync
/// round is one step that moves W, and recovery up to the write of ROOT is one step.
/// - `gc` and `keyspace_drop` keep the writes of ROOT as separate steps, since their frees depend
///   on them.
/// - Survivors are not part of the order. GC adds frames that this model never counts. It frees
///   only frames at or below F that nothing needs.
/// - This model frees nothing and therefore requires every frame. A log that is cut or collected
///   requires the frames that ROOT lists as live.
/// - A blob is one more part of its commit.
///
/// # Not modeled
/// - Bytes: checksums are perfect, lengths are right, and content is a number. A frame is valid if
///   and only if its salt is right (R6).
/// - Logs with several open segments. A log has one open segment per incarnation. The cut needs
///   dense seqs, so a gap in an earlier segment ends the order in any case.
/// - Extension of the reserved bound, snapshots, pinned states (recovery ignores them), the
///   low-water mark of the journal, and more than one engine.
/// - Memory order between threads. The tests under shuttle cover it.
#[derive(Clone, Debug)]
pub struct CommitOrderModel {
    /// Active rules.
    pub rules: ProtocolRules,
    /// Limits of the exploration.
    pub bounds: OrderBounds,
}

/// Commit as its caller knows it.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
struct OrderCommit {
    seq: CommitSeq,
    parts: u8,
    id: u8,
}

/// Commit that has its seq and is not visible yet.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
struct PendingFrame {
    commit: OrderCommit,
    durable: CommitSeq,
    places: [Option<FramePlace>; 2],
}

/// Sync round.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
struct OrderRound {
    target: CommitSeq,
    synced: u8,
}

/// Memory of a serving process.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct OrderServing {
    next: CommitSeq,
    visible: CommitSeq,
    durable: CommitSeq,
    pending: Vec<PendingFrame>,
    round: Option<OrderRound>,
    /// ROOT as the process knows it. `root_unsynced` is true while its last write waits for the
    /// sync.
    root: OrderRoot,
    root_unsynced: bool,
    closing: bool,
}

/// State of the process.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
enum OrderProcess {
    /// No process: killed, power cut, or closed.
    Down,
    /// Recovery has read ROOT and must sync it.
    SyncingRoot,
    /// Recovery has synced everything and must read past the page cache (only with
    /// `ReopenMethod::ReadThrough`).
    Flushed,
    /// Recovery has read the tails and written them again. `synced` is the set of synced logs.
    Rewritten { found: RecoveredCommits, synced: u8 },
    /// Recovery has written ROOT and not synced it.
    RootWritten { root: OrderRoot, found: RecoveredCommits },
    /// Reads and writes.
    Serving(OrderServing),
    /// A sync failed, or a commit failed after it got its seq. Only a crash can follow.
    Poisoned,
    /// Open reported that the database is damaged.
    Damaged,
}

/// Disk, process, and the commits that must survive.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct OrderState {
    slots: [ModelPage<OrderRoot>; 2],
    logs: [ModelLog; 2],
    /// Last commit in the durable state of an engine.
    checkpoint: CommitSeq,
    process: OrderProcess,
    /// Order of all commits that may exist.
    history: Vec<OrderCommit>,
    /// Number of commits that must survive a power cut.
    durable_commits: usize,
    /// Number of commits that the next recovery must find after a kill.
    acknowledged_commits: usize,
    /// True after a failed sync: a kill may then lose data that only the page cache had.
    sync_failed: bool,
    closed_clean: bool,
    rotten: bool,
    spent: OrderSpent,
    broken_invariant: Option<BrokenInvariant>,
}

/// Used part of the bounds.
#[derive(Clone, Debug, Default, Hash, PartialEq, Eq)]
struct OrderSpent {
    commits: u8,
    kills: u8,
    power_cuts: u8,
    failures: u8,
    roots: u8,
    closes: u8,
}

/// Steps of the model. A `bool` tells whether a sync succeeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderAction {
    /// A commit over these logs takes its seq and its places. With one lock it is also copied to
    /// its first log.
    Begin(u8),
    /// A commit (first number) is copied to a log. After its last copy it becomes visible once all
    /// earlier commits are.
    Copy(usize, usize),
    /// The copy of a commit to its next log fails, or its thread dies.
    FailCopy(usize),
    /// A sync round starts.
    Round,
    /// The round syncs a log. After the last log, W moves.
    Sync(usize, bool),
    /// The process writes ROOT with F = W.
    WriteRoot,
    /// The process syncs ROOT.
    SyncRoot(bool),
    /// The durable state of an engine reaches W.
    Checkpoint,
    /// A clean close writes ROOT.
    Close,
    /// A power cut. The number selects the content of the platter.
    PowerCut(usize),
    /// A kill. The number selects the clean pages that the kernel drops.
    Kill(usize),
    /// A sector of a log rots: (log, segment, sector).
    Rot(usize, usize, usize),
    /// Open reads ROOT and makes it dirty again, or syncs all files (`ReopenMethod::ReadThrough`).
    Open,
    /// The first sync of an open with `ReopenMethod::ReadThrough` fails.
    FailOpen,
    /// Recovery reads past the page cache. The number selects the content of the platter.
    ReadThrough(usize),
    /// Recovery syncs ROOT, reads the tails, finds the cut, and writes the accepted frames again.
    Recover(bool),
    /// Recovery syncs a log.
    SyncRecoveredLog(usize, bool),
    /// Recovery writes ROOT.
    WriteRecoveredRoot,
    /// Recovery syncs ROOT and serves.
    Serve(bool),
}

fn pages<'a>(
    slots: &'a [ModelPage<OrderRoot>; 2],
    logs: &'a [ModelLog; 2],
) -> impl Iterator<Item = &'a dyn CrashOutcomes> {
    let slots = slots.iter().map(|slot| -> &dyn CrashOutcomes { slot });
    let sectors = logs.iter().flat_map(|log| &log.segments).flat_map(|segment| &segment.sectors);
    slots.chain(sectors.map(|sector| -> &dyn CrashOutcomes { sector }))
}

impl OrderState {
    fn crash_outcomes(&self, crash: CrashKind) -> std::ops::Range<usize> {
        0..disk::outcome_count(pages(&self.slots, &self.logs), crash)
    }

    fn apply_crash(&mut self, crash: CrashKind, way: usize) {
        let slots = self.slots.iter_mut().map(|slot| -> &mut dyn CrashOutcomes { slot });
        let segments = self.logs.iter_mut().flat_map(|log| &mut log.segments);
        let sectors = segments.flat_map(|segment| &mut segment.sectors);
        disk::apply_crash(
            slots.chain(sectors.map(|sector| -> &mut dyn CrashOutcomes { sector })),
            crash,
            way,
        );
    }

    fn commits_up_to(&self, seq: CommitSeq) -> usize {
        self.history.iter().filter(|commit| commit.seq <= seq).count()
    }
}

impl CheckedState for OrderState {
    fn broken_invariant(&self) -> Option<BrokenInvariant> {
        self.broken_invariant
    }
}

impl Model for CommitOrderModel {
    type State = OrderState;
    type Action = OrderAction;

    fn init_states(&self) -> Vec<OrderState> {
        vec![steps::created()]
    }

    fn actions(&self, state: &OrderState, actions: &mut Vec<OrderAction>) {
        if state.broken_invariant.is_some() || state.process == OrderProcess::Damaged {
            return;
        }
        self.crashes(state, actions);
        let fails = state.spent.failures < self.bounds.failed_syncs;
        let both = |ok: bool| ok || fails;
        let outcomes = [true, false].into_iter().filter(|&ok| both(ok));
        match &state.process {
            OrderProcess::Down => {
                actions.push(OrderAction::Open);
                if fails && self.rules.reopen == ReopenMethod::ReadThrough {
                    actions.push(OrderAction::FailOpen);
                }
            }
            OrderProcess::SyncingRoot => actions.extend(outcomes.map(OrderAction::Recover)),
            OrderProcess::Flushed => {
                actions.extend(state.crash_outcomes(CrashKind::ReadThrough).map(OrderAction::ReadThrough));
            }
            OrderProcess::Rewritten { synced: 3, .. } => actions.push(OrderAction::WriteRecoveredRoot),
            OrderProcess::Rewritten { synced, .. } => {
                let log = usize::from(*synced == 1);
                actions.extend(outcomes.map(|ok| OrderAction::SyncRecoveredLog(log, ok)));
            }
            OrderProcess::RootWritten { .. } => actions.extend(outcomes.map(OrderAction::Serve)),
            OrderProcess::Serving(serving) => self.serving_actions(state, serving, fails, actions),
            OrderProcess::Poisoned | OrderProcess::Damaged => {}
        }
    }

    fn next_state(&self, state: &OrderState, action: OrderAction) -> Option<OrderState> {
        let mut next = state.clone();
        self.step(&mut next, action);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        no_broken_invariant()
    }
}

impl CommitOrderModel {
    fn crashes(&self, state: &OrderState, actions: &mut Vec<OrderAction>) {
        if state.spent.power_cuts < self.bounds.power_cuts {
            actions.extend(state.crash_outcomes(CrashKind::PowerCut).map(OrderAction::PowerCut));
        }
        if state.process == OrderProcess::Down {
            if self.bounds.rots && !state.rotten {
                for (log, held) in state.logs.iter().enumerate() {
                    for (segment, held) in held.segments.iter().enumerate() {
                        let sectors = held.sectors.iter().enumerate();
                        let settled =
                            sectors.filter(|(_, page)| page.is_on_platter() && page.read().is_some());
                        actions.extend(settled.map(|(at, _)| OrderAction::Rot(log, segment, at)));
                    }
                }
            }
        } else if state.spent.kills < self.bounds.kills {
            actions.extend(state.crash_outcomes(CrashKind::Kill).map(OrderAction::Kill));
        }
    }

    fn serving_actions(
        &self,
        state: &OrderState,
        serving: &OrderServing,
        fails: bool,
        actions: &mut Vec<OrderAction>,
    ) {
        if serving.closing {
            actions.push(OrderAction::SyncRoot(true));
            return;
        }
        let window = if self.rules.copy_under_lock { self.bounds.window } else { 2 };
        let may_begin = serving.pending.len() < window;
        if may_begin && state.spent.commits < self.bounds.commits {
            actions.extend([1, 2, 3].map(OrderAction::Begin));
        }
        for (at, pending) in serving.pending.iter().enumerate() {
            if let Some(log) = pending.places.iter().position(Option::is_some) {
                actions.push(OrderAction::Copy(at, log));
                if self.bounds.late_failures {
                    actions.push(OrderAction::FailCopy(at));
                }
            }
        }
        match serving.round {
            None => {
                let has_lock = serving.pending.is_empty() || !self.rules.rounds_start_under_the_lock;
                let may_start = has_lock || self.bounds.window > 1;
                if self.round_target(state, serving) > serving.durable && may_start {
                    actions.push(OrderAction::Round);
                }
            }
            Some(round) if round.target > serving.visible => {}
            Some(round) => {
                for log in [0, 1].into_iter().filter(|log| round.synced & (1 << log) == 0) {
                    actions.push(OrderAction::Sync(log, true));
                    if fails {
                        actions.push(OrderAction::Sync(log, false));
                    }
                }
            }
        }
        if serving.root_unsynced {
            actions.push(OrderAction::SyncRoot(true));
            if fails {
                actions.push(OrderAction::SyncRoot(false));
            }
        } else if state.spent.roots < self.bounds.roots {
            actions.push(OrderAction::WriteRoot);
        }
        if self.bounds.checkpoints && serving.durable > state.checkpoint {
            actions.push(OrderAction::Checkpoint);
        }
        let idle = serving.pending.is_empty() && serving.round.is_none() && !serving.root_unsynced;
        if state.spent.closes < self.bounds.closes && idle && serving.durable == serving.visible {
            actions.push(OrderAction::Close);
        }
    }
}
