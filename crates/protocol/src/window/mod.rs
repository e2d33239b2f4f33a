//! # Window: reserve, copy, publish
//!
//! Commits to two logs get their seqs and places in one step, are copied and applied in parallel,
//! and are acknowledged in order. Rounds, segment switches, a reader, panics, a descheduled thread
//! and one crash come at any step. Each commit has keys of its own (same keys: `stripes`).
//!
//! ## Picture
//! ```text
//!   Reserve --> Copy X, Copy Y, Apply in any order --> Complete --> [visible >= seq] Acknowledge
//!   Round (close sectors, S = last reserved) --> [visible >= S] Sync X, Y --> mark = S, tickets
//!   Switch (close the segment) --> [its reservations complete] SyncSealed: rounds skip it
//!   Look (entry above visible) --> [visible has reached it] Read
//!   Panic --> poisoned: nothing new begins, and all that wait are refused
//! ```
//! `visible` is computed: the end of the dense prefix of complete commits.
//!
//! ## Invariants
//! I3 and I4 after a kill and after a power cut. I8: no crash looks like damage. I6: replay finds
//! the newest record of the key that all commits put. I10: no thread waits for ever, except for a
//! descheduled thread, and then only for these: an acknowledgement of a later seq, a round with an
//! S not below it, a read of an entry not below it. All others go on (scenario 33).
//!
//! ## Crash
//! Terminal here. A hole in the middle of a log is a state that a power cut leaves in `order` too;
//! `order` with [`crate::commit_order::OrderBounds::window`] above one explores recovery and
//! crashes in it.

mod recovery;
mod steps;

use crate::ProtocolRules;
use crate::disk::{self, CrashKind, CrashOutcomes, ModelPage, TornSectors};
use crate::explore::{BrokenInvariant, CheckedState, no_broken_invariant};
use stateright::{Model, Property};

/// A seq. Commit number 0 of a list has seq 1.
type WindowSeq = u8;

/// How far an exploration goes.
#[derive(Clone, Debug)]
pub struct WindowBounds {
    /// Commits over the whole run.
    pub commits: usize,
    /// Sets of logs that a commit may write to (bit 0 is X, bit 1 is Y).
    pub parts: Vec<u8>,
    /// Frames that fit into a sector.
    pub sector_frames: u8,
    /// Effect of a power cut on a sector in flight.
    pub tears: TornSectors,
    /// Rounds over the whole run.
    pub rounds: u8,
    /// Segment switches over the whole run.
    pub switches: u8,
    /// Reads over the whole run.
    pub reads: u8,
    /// Commits that panic after their reservation.
    pub panics: u8,
    /// Whether a round waits for the last seq that was reserved when all sectors were closed.
    pub waits_past_last_close: bool,
    /// Whether one commit may be descheduled for ever after its reservation.
    pub has_descheduled_thread: bool,
    /// The crash that ends a run.
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

/// The model.
#[derive(Clone, Debug)]
pub struct WindowModel {
    /// Which rules hold.
    pub rules: ProtocolRules,
    /// How far to look.
    pub bounds: WindowBounds,
}

/// One commit's bytes in one log.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
struct WindowFrame {
    at: u8,
    seq: WindowSeq,
    parts: u8,
    /// The durable mark when it was copied.
    durable: WindowSeq,
}

/// Reserved bytes.
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
    /// Complete; its thread was woken by poison.
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
    /// Frames reserved in the last sector.
    taken: u8,
    /// Rounds skip it.
    is_synced_for_good: bool,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct WindowLog {
    segments: Vec<WindowSegment>,
    /// The next frame begins a sector.
    is_closed: bool,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
struct WindowRound {
    target: WindowSeq,
    /// The syncs wait until `visible` has reached this seq.
    awaited_seq: WindowSeq,
    /// The sectors of Y are not closed yet.
    has_open_log: bool,
    synced: u8,
    /// Commits that were complete when its syncs began.
    complete: u32,
}

/// Commits, logs, a round, a reader.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct WindowState {
    commits: Vec<WindowCommit>,
    logs: [WindowLog; 2],
    round: Option<WindowRound>,
    durable: WindowSeq,
    /// Commits with complete tickets: a set of bits.
    tickets: u32,
    /// The version for which the reader waits.
    reader: Option<WindowSeq>,
    seen: WindowSeq,
    descheduled: Option<usize>,
    rounds: u8,
    switches: u8,
    reads: u8,
    is_down: bool,
    broken_invariant: Option<BrokenInvariant>,
}

/// Steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowAction {
    /// A commit over these logs gets its seq and its places.
    Reserve(u8),
    /// A commit gets its place in a log (only without the rules of W1).
    ReservePlace(usize, usize),
    /// A frame is copied to its log.
    Copy(usize, usize),
    /// The index is changed.
    Apply(usize),
    /// The call returns.
    Acknowledge(usize),
    /// The call returns an error, since another commit has poisoned.
    Refuse(usize),
    /// The thread of a commit panics.
    Panic(usize),
    /// The thread of a commit is descheduled for ever.
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
    /// A sealed segment (log, index) is synced, and rounds skip it from now on.
    SyncSealed(usize, usize),
    /// The reader meets the entry of a commit.
    ReadEntry(usize),
    /// The reader has waited.
    FinishRead,
    /// The reader gets an error.
    RefuseRead,
    /// A crash; the number selects the content of the platter.
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

/// The seq of the commit at an index.
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
