//! # Window: reserve, copy, publish
//!
//! Commits to two logs get their seqs and places in one step, are copied and applied in parallel,
//! and are acknowledged in order. Rounds, segment switches, a reader, panics, a descheduled thread
//! and one crash may come at any step. Each commit has keys of its own; `stripes` models shared
//! keys.
//!
//! ## Picture
//! ```text
//!   Reserve --> Copy X, Copy Y, Apply in any order --> Complete --> [visible >= seq] Acknowledge
//!   Round (close sectors, S = last reserved) --> [visible >= S] Sync X, Y --> mark = S, tickets
//!   Switch (close the segment) --> [its reservations complete] SyncSealed: rounds skip it
//!   ReadEntry (entry above visible) --> [visible has reached it] FinishRead
//!   Panic --> poisoned: no commit begins, and all waiting threads are refused
//! ```
//! `visible` is the end of the dense prefix of complete commits.
//!
//! ## Invariants
//! - I3 and I4 hold after a kill and after a power cut.
//! - I6: if all commits also put one common key, replay finds its newest record.
//! - I8: no crash looks like damage.
//! - I10: no thread waits forever, except for a descheduled thread (scenario W33). Only
//!   acknowledgements of later seqs, rounds with an S not below it, and reads of entries not below
//!   it may wait for it.
//!
//! ## Crash
//! A crash ends a run. A power cut leaves the same holes in the middle of a log in `commit_order`.
//! That model with a [`window`](crate::commit_order::OrderBounds::window) above one explores
//! recovery.

mod recovery;
mod steps;

use crate::ProtocolRules;
use crate::disk::{self, CrashKind, CrashOutcomes, ModelPage, TornSectors};
use crate::explore::{BrokenInvariant, CheckedState, no_broken_invariant};
use stateright::{Model, Property};

/// Seq of a commit. The commit at index 0 has seq 1.
type WindowSeq = u8;

/// Bounds of an exploration.
#[derive(Clone, Debug)]
pub struct WindowBounds {
    /// Commits in the whole run.
    pub commits: usize,
    /// Sets of logs that a commit may write to (bit 0 is X, bit 1 is Y).
    pub parts: Vec<u8>,
    /// Frames that fit into a sector.
    pub sector_frames: u8,
    /// Effect of a power cut on a sector that is being written.
    pub tears: TornSectors,
    /// Rounds in the whole run.
    pub rounds: u8,
    /// Segment switches in the whole run.
    pub switches: u8,
    /// Reads in the whole run.
    pub reads: u8,
    /// Commits that panic after their reservation.
    pub panics: u8,
    /// Whether a round waits for the last seq that was reserved when all sectors were closed.
    pub waits_past_last_close: bool,
    /// Whether one commit may be descheduled forever after its reservation.
    pub has_descheduled_thread: bool,
    /// Crash that ends a run.
    pub crash: CrashKind,
}

impl Default for WindowBounds {
    fn default() -> Self {
        Self {
            commits: 2,
            parts: vec![1],
            sector_frames: 1,
            tears: TornSectors::OldOrNewBytes,
            rounds: 0,
            switches: 0,
            reads: 0,
            panics: 0,
            waits_past_last_close: false,
            has_descheduled_thread: false,
            crash: CrashKind::Kill,
        }
    }
}

/// Model of the window.
///
/// # Descheduled threads
///
/// The model shows the acknowledgements, rounds and reads that wait for a descheduled thread
/// (scenario W33). In the store, commits that need its stripes, views that register and a freeze
/// wait too. During a freeze that stops commits, all commits wait for it.
///
/// # Fork (scenario W39, rule W13)
///
/// Window, view slots and stripes are private memory: a forked child has copies, and its writes do
/// not reach the parent. The child does not inherit the mappings of the logs (R4). A thread in the
/// window does not exist in the child. Therefore no path of the child may wait for the window:
/// neither an operation, which the process id refuses, nor the drop of the database.
///
/// # Not modeled
/// - The ring that computes `visible`: its capacity and the reuse of its entries.
/// - Lost wake-ups.
/// - The seal that a switch writes.
/// - Failed syncs: `commit_order` has them.
#[derive(Clone, Debug)]
pub struct WindowModel {
    /// Active rules.
    pub rules: ProtocolRules,
    /// Limits of the exploration.
    pub bounds: WindowBounds,
}

/// Bytes of one commit in one log.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
struct WindowFrame {
    at: u8,
    seq: WindowSeq,
    parts: u8,
    /// W at the time of the copy.
    durable: WindowSeq,
}

/// Reserved place in a log.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
struct WindowPlace {
    segment: usize,
    sector: usize,
    at: u8,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum WindowPhase {
    /// Has its seq.
    Working,
    /// Copied and applied; waits for `visible`.
    Complete,
    Acknowledged,
    /// Complete. Poison woke its thread.
    Refused,
    Panicked,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct WindowCommit {
    parts: u8,
    places: [Option<WindowPlace>; 2],
    copied: u8,
    is_applied: bool,
    phase: WindowPhase,
}

#[derive(Clone, Debug, Default, Hash, PartialEq, Eq)]
struct WindowSegment {
    sectors: Vec<ModelPage<Vec<WindowFrame>>>,
    /// Number of reserved frames in the last sector.
    taken: u8,
    /// True after the final sync: rounds skip the segment.
    is_synced_for_good: bool,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct WindowLog {
    segments: Vec<WindowSegment>,
    /// True if the next frame begins a sector.
    is_closed: bool,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
struct WindowRound {
    target: WindowSeq,
    /// Seq that `visible` must reach before the syncs.
    awaited_seq: WindowSeq,
    /// True until the sectors of Y are closed.
    has_open_log: bool,
    synced: u8,
    /// Commits that were complete when the syncs began.
    complete: u32,
}

/// Commits, logs, a round and a reader.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct WindowState {
    commits: Vec<WindowCommit>,
    logs: [WindowLog; 2],
    round: Option<WindowRound>,
    durable: WindowSeq,
    /// Commits with complete tickets: a set of bits.
    tickets: u32,
    /// Version for which the reader waits.
    reader: Option<WindowSeq>,
    seen: WindowSeq,
    descheduled: Option<usize>,
    rounds: u8,
    switches: u8,
    reads: u8,
    is_down: bool,
    broken_invariant: Option<BrokenInvariant>,
}

/// Steps of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowAction {
    /// A commit to these logs gets its seq and its places.
    Reserve(u8),
    /// A commit gets its place in a log (only without the rules of W1).
    ReservePlace(usize, usize),
    /// A frame is copied to its log.
    Copy(usize, usize),
    /// A commit changes the index.
    Apply(usize),
    /// The call returns.
    Acknowledge(usize),
    /// The call returns an error, since another commit has poisoned the database.
    Refuse(usize),
    /// The thread of a commit panics.
    Panic(usize),
    /// The thread of a commit is descheduled forever.
    Deschedule(usize),
    /// A round closes the sectors and takes S.
    Round,
    /// The round closes the sectors of Y (only without the rule that it closes all at once).
    CloseOtherLog,
    /// The round syncs a log.
    Sync(usize),
    /// The round ends with an error.
    RefuseRound,
    /// A log begins its next segment.
    Switch(usize),
    /// The final sync of a sealed segment (log, index). Rounds skip it from now on.
    SyncSealed(usize, usize),
    /// The reader finds the entry of a commit.
    ReadEntry(usize),
    /// The reader has waited and returns the version.
    FinishRead,
    /// The reader gets an error.
    RefuseRead,
    /// A crash. The number selects the content of the platter.
    Crash(usize),
}

impl WindowState {
    fn pages(&self) -> impl Iterator<Item = &dyn CrashOutcomes> {
        let segments = self.logs.iter().flat_map(|log| &log.segments);
        segments.flat_map(|segment| &segment.sectors).map(|page| -> &dyn CrashOutcomes { page })
    }

    fn pages_mut(&mut self) -> impl Iterator<Item = &mut dyn CrashOutcomes> {
        let segments = self.logs.iter_mut().flat_map(|log| &mut log.segments);
        segments.flat_map(|segment| &mut segment.sectors).map(|page| -> &mut dyn CrashOutcomes { page })
    }

    fn last(&self) -> WindowSeq {
        seq(self.commits.len()) - 1
    }

    fn is_poisoned(&self) -> bool {
        self.commits.iter().any(|commit| commit.phase == WindowPhase::Panicked)
    }
}

/// Returns the seq of the commit at an index.
fn seq(index: usize) -> WindowSeq {
    WindowSeq::try_from(index + 1).unwrap_or(WindowSeq::MAX)
}

impl CheckedState for WindowState {
    fn broken_invariant(&self) -> Option<BrokenInvariant> {
        self.broken_invariant
    }
}

impl Model for WindowModel {
    type State = WindowState;
    type Action = WindowAction;

    fn init_states(&self) -> Vec<WindowState> {
        let log = || WindowLog { segments: vec![WindowSegment::default()], is_closed: false };
        vec![WindowState {
            commits: Vec::new(),
            logs: [log(), log()],
            round: None,
            durable: 0,
            tickets: 0,
            reader: None,
            seen: 0,
            descheduled: None,
            rounds: 0,
            switches: 0,
            reads: 0,
            is_down: false,
            broken_invariant: None,
        }]
    }

    fn actions(&self, state: &WindowState, actions: &mut Vec<WindowAction>) {
        if state.is_down || state.broken_invariant.is_some() {
            return;
        }
        actions.extend((0..disk::outcome_count(state.pages(), self.bounds.crash)).map(WindowAction::Crash));
        self.enabled_actions(state, actions);
        self.starting_actions(state, actions);
    }

    fn next_state(&self, state: &WindowState, action: WindowAction) -> Option<WindowState> {
        let mut next = state.clone();
        self.step(&mut next, action);
        if !next.is_down && next.broken_invariant.is_none() && self.is_deadlocked(&next) {
            next.broken_invariant = Some(BrokenInvariant::Deadlock);
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        no_broken_invariant()
    }
}
