//! # The order of commits: two logs, sync rounds, crashes, recovery, crashes within recovery
//!
//! Commits touch X, Y or both. A round takes S, syncs the logs one by one while commits go on, and
//! moves W to S. Syncs may fail. The process may be killed and the power cut between any two steps,
//! those of recovery included.
//!
//! ## Picture
//! ```text
//!   Down --Open--> Settling --Recover--> Rewritten --Settle X, Y--> --Announce--> Announced --Serve-->
//!          newest           sync ROOT,              sync the logs    write ROOT    sync      Serving
//!          ROOT is          read tails, cut,                         (F = cut,               new segments
//!          written again    write the tail again                     seals)
//!
//!   Down --Open--> Flushed --ReadThrough--> Rewritten --Announce--> ...     (Reopen::ReadThrough)
//!          sync             read past the
//!          ROOT, logs       page cache
//!
//!   a failed sync, or a commit lost after it got its number:  -> Poisoned; only a crash helps
//! ```
//!
//! ## Debts
//! The state keeps the true order of commits (`history`) and how many of them the world is owed: up
//! to `visible` if the next crash is a kill, up to W if it is a power cut (or if a sync failed). A
//! recovery that has decided is compared with them; one that serves raises both to what it found.
//!
//! ## Crash
//! A crash is one action per combination of what each page may hold ([`crate::disk`]). A commit
//! that had its number when the crash came may be there or not.

mod layout;
mod recovery;
mod steps;

use layout::{CommitSeq, FramePlace, ModelLog, OrderRoot};
use recovery::RecoveredCommits;

use crate::disk::{self, CrashKind, CrashOutcomes, ModelPage, TornSectors};
use crate::explore::{BrokenInvariant, CheckedState, no_broken_invariant};
use crate::{ProtocolRules, ReopenMethod};
use stateright::{Model, Property};

/// Numbers reserved for one incarnation.
const RESERVED_SEQS: CommitSeq = 8;

/// How far an exploration goes.
#[derive(Clone, Debug)]
pub struct OrderBounds {
    /// Commits over the whole run.
    pub commits: u8,
    /// Commits that may be copied at the same time. One: the commit lock. More: the next commit
    /// path (module `window`; only with one frame a sector).
    pub window: usize,
    /// Kills over the whole run.
    pub kills: u8,
    /// Power cuts over the whole run.
    pub power_cuts: u8,
    /// Syncs (of a log or of ROOT) that fail.
    pub failed_syncs: u8,
    /// ROOT written while serving.
    pub roots: u8,
    /// An engine makes its state durable and says so nowhere in the logs.
    pub checkpoints: bool,
    /// Clean closes over the whole run.
    pub closes: u8,
    /// One settled sector of a log rots while the database is down.
    pub rots: bool,
    /// The second part of a commit may fail to be written (or its writer may die).
    pub late_failures: bool,
    /// Frames that fit into a sector.
    pub sector_frames: usize,
    /// What a power cut does to a sector in flight.
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

/// The model.
#[derive(Clone, Debug)]
pub struct CommitOrderModel {
    /// Which rules hold.
    pub rules: ProtocolRules,
    /// How far to look.
    pub bounds: OrderBounds,
}

/// A commit as the outside knows it.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
struct OrderCommit {
    seq: CommitSeq,
    parts: u8,
    id: u8,
}

/// A commit that has its number and is not visible yet.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
struct PendingFrame {
    commit: OrderCommit,
    durable: CommitSeq,
    places: [Option<FramePlace>; 2],
}

/// A sync round.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
struct OrderRound {
    target: CommitSeq,
    synced: u8,
}

/// What a serving process has in memory.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct OrderServing {
    next: CommitSeq,
    visible: CommitSeq,
    durable: CommitSeq,
    pending: Vec<PendingFrame>,
    round: Option<OrderRound>,
    /// ROOT as the process knows it, and whether the last write of it waits for its sync.
    root: OrderRoot,
    root_unsynced: bool,
    closing: bool,
}

/// Where the process is.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
enum OrderProcess {
    /// There is none: killed, cut off, or closed.
    Down,
    /// Recovery, step by step. ROOT was read and is being settled.
    SyncingRoot,
    /// Recovery read past the page cache (`ReopenMethod::ReadThrough` only): everything was synced.
    Flushed,
    /// The tail was read and written again; logs in the set are synced.
    Rewritten { found: RecoveredCommits, synced: u8 },
    /// ROOT was written and not synced.
    RootWritten { root: OrderRoot, found: RecoveredCommits },
    /// Reads and writes.
    Serving(OrderServing),
    /// A sync failed, or a commit after it had its number: only a crash helps.
    Poisoned,
    /// Open answered that the database is damaged.
    Damaged,
}

/// Disk, process, and what is owed to the world.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct OrderState {
    slots: [ModelPage<OrderRoot>; 2],
    logs: [ModelLog; 2],
    /// What an engine's own durable state covers.
    checkpoint: CommitSeq,
    process: OrderProcess,
    /// The order of all commits that may exist.
    history: Vec<OrderCommit>,
    /// So many of them must survive a power cut.
    durable_commits: usize,
    /// So many must be there when the database is next opened, if nothing worse happens.
    acknowledged_commits: usize,
    /// After a failed sync a kill may take what only the page cache had.
    sync_failed: bool,
    closed_clean: bool,
    rotten: bool,
    spent: OrderSpent,
    broken_invariant: Option<BrokenInvariant>,
}

/// What of the bounds is used up.
#[derive(Clone, Debug, Default, Hash, PartialEq, Eq)]
struct OrderSpent {
    commits: u8,
    kills: u8,
    power_cuts: u8,
    failures: u8,
    roots: u8,
    closes: u8,
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderAction {
    /// A commit over these logs takes its number and its places, and is copied to its first log.
    Begin(u8),
    /// It is copied to this log; with the last copy it is visible and acknowledged.
    Copy(usize, usize),
    /// Its copy to the next log fails, or its writer dies.
    FailCopy(usize),
    /// A sync round starts.
    Round,
    /// The round syncs this log; with the last one W moves.
    Sync(usize, bool),
    /// ROOT is written with F = W.
    WriteRoot,
    /// And synced.
    SyncRoot(bool),
    /// An engine's durable state reaches W.
    Checkpoint,
    /// A clean close writes ROOT.
    Close,
    /// The power goes; the number says what the platter kept.
    PowerCut(usize),
    /// The process is killed; the number says which clean pages the kernel drops.
    Kill(usize),
    /// A sector of this log rots: (log, segment, sector).
    Rot(usize, usize, usize),
    /// Open: reads ROOT, settles it.
    Open,
    /// Open by reading through: its first sync fails.
    FailOpen,
    /// Recovery reads past the page cache; the number says what was there.
    ReadThrough(usize),
    /// Recovery syncs ROOT, reads the tails, decides, writes what it accepted once more.
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
