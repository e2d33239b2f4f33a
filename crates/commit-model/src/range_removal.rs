//! # Range removal: one commit that removes every key of a range
//!
//! One key in the range, a snapshot, and a crash at any time. The removal is one record, the *range
//! tombstone*. Jobs are puts of the key, a compare-and-swap of it, a transaction that read it,
//! removals of the range, replacements of its content by one batch, and gets of the key.
//!
//! ## Picture
//! ```text
//!   put, swap:  [Read] ─> Take the stripe ─> Reserve ─> Apply to the memtable, complete
//!   removal:    Take all stripes          ─> Reserve ─> Apply (tombstone), complete
//!   replacement: like a removal, but after the tombstone it applies a put of the same seq
//!   get:        Look ─> wait until the commit that it found is complete ─> Answer
//!   memtable ── Freeze ──> frozen ── Flush ──> files       log: records since the last freeze
//!   Crash ─> the log is replayed in any order ─> end
//! ```
//! A version is hidden if a tombstone of a higher seq, at most that of the view, covers its key.
//!
//! ## Invariants
//! - I4: a swap and a transaction commit only on the version right before them in the commit order.
//! - I6: while no commit is between its seq and its completion, the newest state has the last put,
//!   unless a removal follows it. A snapshot sees the state at its seq. A replay restores both.
//! - I7: a get returns the result of one of the commits between its begin and its end.
//!
//! ## Not modeled
//! Bytes of the log, and several memtables that are frozen at once (`memtable_queue`).

use crate::ProtocolRules;
use crate::explore::{BrokenInvariant, CheckedState, no_broken_invariant};
use stateright::{Model, Property};

/// Work of one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeJob {
    /// Puts the key.
    Put,
    /// Puts the key if it still has the version that was read.
    Swap,
    /// Puts another key if the key in the range is unchanged since the snapshot that was read.
    Transaction,
    /// Removes the range.
    Remove,
    /// Removes the range and puts the key, in one commit.
    Replace,
    /// Gets the key in the newest state.
    Get,
}

/// Model of range removals.
#[derive(Clone, Debug)]
pub struct RangeRemovalModel {
    /// Active rules.
    pub rules: ProtocolRules,
    /// Jobs, one thread each.
    pub jobs: Vec<RangeJob>,
}

/// Record of a commit: its seq, and whether it is a range tombstone.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
struct Record {
    seq: u8,
    removes: bool,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum RemovalPhase {
    Idle,
    /// A swap has read this version, or a transaction has read at this seq.
    Read(u8),
    /// Holds its stripes.
    Holding(u8),
    /// Has a seq.
    Reserved(u8),
    /// A replacement has applied its tombstone, and its put is to follow.
    HalfApplied(u8),
    /// A get waits for the commit of the entry that it found.
    Waiting(FoundEntry),
    Done,
}

/// Entry that a get has found.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
struct FoundEntry {
    /// Commit of the put, or of the tombstone that hides all puts.
    seq: u8,
    removed: bool,
    /// Last commit that was complete when the get began.
    since: u8,
    /// Commit of the tombstone after which the get has looked again.
    waited: u8,
}

/// Threads, log, memtables, files and the snapshot.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct RangeRemovalState {
    phases: Vec<RemovalPhase>,
    /// Commits that change the key, in the order of seqs.
    commits: Vec<Record>,
    last: u8,
    /// Records in the order in which they were applied.
    active: Vec<Record>,
    frozen: Option<Vec<Record>>,
    /// Versions and tombstones of the key in files. A flush writes a tombstone only for a view.
    files: Vec<Record>,
    /// Seq up to which the log is freed.
    freed: u8,
    /// Last seq in the frozen memtable.
    frozen_at: u8,
    /// The snapshot, if there is one.
    view: Option<u8>,
    /// Seqs that were recorded as changes of the key, for transactions.
    recorded: Vec<u8>,
    /// Records that a replay has still to apply. `None` before the crash.
    to_replay: Option<Vec<Record>>,
    broken_invariant: Option<BrokenInvariant>,
}

/// Steps of the model. An index is that of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeRemovalAction {
    /// A swap reads the key; a transaction takes its snapshot.
    Read(usize),
    /// Takes the stripes.
    Take(usize),
    /// Reserves a seq.
    Reserve(usize),
    /// Applies the record, or the next one of a replacement. After the last one the commit is
    /// complete.
    Apply(usize),
    /// A get looks the key up.
    Look(usize),
    /// A get has waited for the commit that it found. It returns, or looks again.
    Answer(usize),
    /// A snapshot is registered.
    TakeView,
    /// The memtable is frozen. No commit is running.
    Freeze,
    /// The frozen memtable is moved to the files, and its part of the log is freed.
    Flush,
    /// The process is killed.
    Crash,
    /// Replays the record at this index of those that are left.
    Replay(usize),
}

impl CheckedState for RangeRemovalState {
    fn broken_invariant(&self) -> Option<BrokenInvariant> {
        self.broken_invariant
    }
}

/// Returns the version of the key that a view at `at` sees after the commits in `records`, in the
/// order of seqs.
fn expected(records: &[Record], at: u8) -> Option<u8> {
    let last = records.iter().rev().find(|record| record.seq <= at)?;
    (!last.removes).then_some(last.seq)
}

impl RangeRemovalState {
    /// Returns the seqs of the commits that are not complete.
    fn running(&self) -> impl Iterator<Item = u8> {
        self.phases.iter().filter_map(|phase| match phase {
            RemovalPhase::Reserved(seq) | RemovalPhase::HalfApplied(seq) => Some(*seq),
            _ => None,
        })
    }

    fn has_running_commit(&self) -> bool {
        self.running().next().is_some()
    }

    fn has_stripe_holder(&self) -> bool {
        self.has_running_commit() || self.phases.iter().any(|phase| matches!(phase, RemovalPhase::Holding(_)))
    }

    /// Returns the last commit with no incomplete one up to it.
    fn visible(&self) -> u8 {
        self.running().min().map_or(self.last, |seq| seq - 1)
    }

    /// Returns the entry that a get finds now.
    fn look(&self, since: u8, waited: u8) -> FoundEntry {
        let frozen = self.frozen.iter().flatten();
        let all = || self.files.iter().chain(frozen.clone()).chain(&self.active);
        let newest =
            |removes| all().filter(|record| record.removes == removes).map(|record| record.seq).max();
        let (put, tombstone) = (newest(false).unwrap_or(0), newest(true).unwrap_or(0));
        FoundEntry { seq: put.max(tombstone), removed: put == 0 || put < tombstone, since, waited }
    }

    /// Returns the version that a reader at `at` finds.
    fn find(&self, at: u8, compares: bool) -> Option<u8> {
        let frozen = self.frozen.iter().flatten();
        let all: Vec<Record> = self.files.iter().chain(frozen).chain(&self.active).copied().collect();
        let seen = || all.iter().filter(|record| record.seq <= at);
        if !compares {
            // The record that was applied last decides.
            return seen().next_back().filter(|record| !record.removes).map(|record| record.seq);
        }
        let newest =
            |removes| seen().filter(|record| record.removes == removes).map(|record| record.seq).max();
        newest(false).filter(|put| newest(true).is_none_or(|tombstone| tombstone <= *put))
    }
}

impl Model for RangeRemovalModel {
    type State = RangeRemovalState;
    type Action = RangeRemovalAction;

    fn init_states(&self) -> Vec<RangeRemovalState> {
        // The files have a version of the key.
        let first = Record { seq: 1, removes: false };
        vec![RangeRemovalState {
            phases: vec![RemovalPhase::Idle; self.jobs.len()],
            commits: vec![first],
            last: 1,
            active: Vec::new(),
            frozen: None,
            files: vec![first],
            freed: 1,
            frozen_at: 1,
            view: None,
            recorded: Vec::new(),
            to_replay: None,
            broken_invariant: None,
        }]
    }

    fn actions(&self, state: &RangeRemovalState, actions: &mut Vec<RangeRemovalAction>) {
        if state.broken_invariant.is_some() {
            return;
        }
        if let Some(left) = &state.to_replay {
            actions.extend((0..left.len()).map(RangeRemovalAction::Replay));
            return;
        }
        for (who, phase) in state.phases.iter().enumerate() {
            let reads = matches!(self.jobs[who], RangeJob::Swap | RangeJob::Transaction);
            match phase {
                RemovalPhase::Idle if reads && !state.has_running_commit() => {
                    actions.push(RangeRemovalAction::Read(who));
                }
                RemovalPhase::Idle if reads => {}
                RemovalPhase::Idle if self.jobs[who] == RangeJob::Get => {
                    actions.push(RangeRemovalAction::Look(who));
                }
                RemovalPhase::Waiting(found) if found.seq <= state.visible() => {
                    actions.push(RangeRemovalAction::Answer(who));
                }
                RemovalPhase::Idle | RemovalPhase::Read(_) if self.may_take(state, who) => {
                    actions.push(RangeRemovalAction::Take(who));
                }
                RemovalPhase::Holding(_) => actions.push(RangeRemovalAction::Reserve(who)),
                RemovalPhase::Reserved(_) | RemovalPhase::HalfApplied(_) => {
                    actions.push(RangeRemovalAction::Apply(who));
                }
                RemovalPhase::Idle
                | RemovalPhase::Read(_)
                | RemovalPhase::Waiting(_)
                | RemovalPhase::Done => {}
            }
        }
        if !state.has_stripe_holder() {
            if state.view.is_none() {
                actions.push(RangeRemovalAction::TakeView);
            }
            if state.frozen.is_none() && !state.active.is_empty() {
                actions.push(RangeRemovalAction::Freeze);
            }
            actions.push(RangeRemovalAction::Crash);
        }
        if state.frozen.is_some() {
            actions.push(RangeRemovalAction::Flush);
        }
    }

    fn next_state(&self, state: &RangeRemovalState, action: RangeRemovalAction) -> Option<RangeRemovalState> {
        let mut next = state.clone();
        self.step(&mut next, action);
        if next.broken_invariant.is_none() && !self.is_sound(&next) {
            next.broken_invariant = Some(BrokenInvariant::Index);
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        no_broken_invariant()
    }
}

impl RangeRemovalModel {
    /// Returns whether a job finds its stripes free. A removal without the rule takes the stripe of
    /// another key, the start of its range. A transaction closes the window, which excludes all.
    fn may_take(&self, state: &RangeRemovalState, who: usize) -> bool {
        let takes_all = self.rules.range_removals_take_all_stripes;
        let holds = |phase: &RemovalPhase| {
            use RemovalPhase::{HalfApplied, Holding, Reserved};
            matches!(phase, Holding(_) | Reserved(_) | HalfApplied(_))
        };
        let conflicts = |(other, phase): (usize, &RemovalPhase)| {
            let is_apart = |who: usize| !takes_all && self.jobs[who] == RangeJob::Remove;
            let closes = |who: usize| self.jobs[who] == RangeJob::Transaction;
            holds(phase) && (closes(who) || closes(other) || (!is_apart(who) && !is_apart(other)))
        };
        !state.phases.iter().enumerate().any(conflicts)
    }

    fn is_sound(&self, state: &RangeRemovalState) -> bool {
        if state.has_running_commit() || state.to_replay.as_ref().is_some_and(|left| !left.is_empty()) {
            return true;
        }
        // A view does not survive a crash.
        let view = state.view.filter(|_| state.to_replay.is_none());
        [Some(u8::MAX), view].into_iter().flatten().all(|at| {
            state.find(at, self.rules.range_tombstones_hide_lower_seqs) == expected(&state.commits, at)
        })
    }

    fn step(&self, state: &mut RangeRemovalState, action: RangeRemovalAction) {
        match action {
            RangeRemovalAction::Read(who) => {
                let seen = match self.jobs[who] {
                    RangeJob::Transaction => state.last,
                    _ => expected(&state.commits, u8::MAX).unwrap_or(0),
                };
                state.phases[who] = RemovalPhase::Read(seen);
            }
            RangeRemovalAction::Take(who) => {
                let seen = if let RemovalPhase::Read(seen) = state.phases[who] { seen } else { 0 };
                let newest = state.find(u8::MAX, true).unwrap_or(0);
                let is_stale = match self.jobs[who] {
                    RangeJob::Swap => newest != seen,
                    RangeJob::Transaction => state.recorded.iter().any(|seq| *seq > seen),
                    _ => false,
                };
                state.phases[who] = if is_stale { RemovalPhase::Done } else { RemovalPhase::Holding(seen) };
            }
            RangeRemovalAction::Reserve(who) => self.reserve(state, who),
            RangeRemovalAction::Apply(who) => self.apply(state, who),
            RangeRemovalAction::Look(who) => {
                state.phases[who] = RemovalPhase::Waiting(state.look(state.visible(), 0));
            }
            RangeRemovalAction::Answer(who) => self.answer(state, who),
            RangeRemovalAction::TakeView => state.view = Some(state.last),
            RangeRemovalAction::Freeze => {
                state.frozen = Some(std::mem::take(&mut state.active));
                state.frozen_at = state.last;
            }
            RangeRemovalAction::Flush => self.flush(state),
            RangeRemovalAction::Crash => {
                let is_logged = |record: &&Record| record.seq > state.freed;
                state.to_replay = Some(state.commits.iter().filter(is_logged).copied().collect());
                (state.active, state.frozen) = (Vec::new(), None);
            }
            RangeRemovalAction::Replay(index) => {
                if let Some(left) = &mut state.to_replay {
                    let record = left.remove(index);
                    state.active.push(record);
                }
            }
        }
    }

    fn apply(&self, state: &mut RangeRemovalState, who: usize) {
        let (seq, removes, phase) = match state.phases[who] {
            RemovalPhase::Reserved(seq) if self.jobs[who] == RangeJob::Replace => {
                (seq, true, RemovalPhase::HalfApplied(seq))
            }
            RemovalPhase::Reserved(seq) => (seq, self.jobs[who] == RangeJob::Remove, RemovalPhase::Done),
            RemovalPhase::HalfApplied(seq) => (seq, false, RemovalPhase::Done),
            _ => return,
        };
        state.active.push(Record { seq, removes });
        if !removes || self.rules.range_removals_record_their_range {
            state.recorded.push(seq); // without the rule: only the start of the range
        }
        state.phases[who] = phase;
    }

    /// Ends a get after the commit of its entry is complete, or lets it look again.
    fn answer(&self, state: &mut RangeRemovalState, who: usize) {
        let RemovalPhase::Waiting(found) = state.phases[who] else { return };
        let looks_again = self.rules.gets_look_again_behind_range_tombstones;
        if found.removed && looks_again && found.seq != found.waited {
            state.phases[who] = RemovalPhase::Waiting(state.look(found.since, found.seq));
            return;
        }
        let result = (!found.removed).then_some(found.seq);
        if !(found.since..=state.last).any(|at| expected(&state.commits, at) == result) {
            state.broken_invariant = Some(BrokenInvariant::UnexplainedRead);
        }
        state.phases[who] = RemovalPhase::Done;
    }

    fn reserve(&self, state: &mut RangeRemovalState, who: usize) {
        let RemovalPhase::Holding(seen) = state.phases[who] else { return };
        let newest = state.commits.last().map_or(0, |record| record.seq);
        let is_missed = match self.jobs[who] {
            RangeJob::Swap => expected(&state.commits, u8::MAX).unwrap_or(0) != seen,
            RangeJob::Transaction => newest > seen,
            _ => false,
        };
        if is_missed {
            state.broken_invariant = Some(BrokenInvariant::UnexplainedRead);
        }
        state.last += 1;
        if self.jobs[who] == RangeJob::Transaction {
            state.phases[who] = RemovalPhase::Done; // its own key is not modeled
            return;
        }
        let (seq, job) = (state.last, self.jobs[who]);
        if matches!(job, RangeJob::Remove | RangeJob::Replace) {
            state.commits.push(Record { seq, removes: true });
        }
        if job != RangeJob::Remove {
            state.commits.push(Record { seq, removes: false });
        }
        state.phases[who] = RemovalPhase::Reserved(state.last);
    }

    /// Moves the frozen memtable to the files. The range tombstone is dropped with the memtable.
    fn flush(&self, state: &mut RangeRemovalState) {
        let Some(frozen) = state.frozen.take() else { return };
        let tombstone = frozen.iter().filter(|record| record.removes).map(|record| record.seq).max();
        let tombstones: Vec<Record> = frozen.iter().filter(|record| record.removes).copied().collect();
        state.files.extend(frozen.iter().filter(|record| !record.removes));
        state.freed = state.frozen_at;
        let Some(tombstone) = tombstone.filter(|_| self.rules.flushes_apply_range_tombstones) else { return };
        let keeps = self.rules.flushes_keep_versions_of_views;
        let view = state.view.filter(|view| *view < tombstone && keeps);
        // A put of the tombstone's commit came after it.
        state.files.retain(|record| record.seq >= tombstone || view.is_some());
        if view.is_some() {
            state.files.extend(tombstones); // a tombstone of each key that still has versions
        }
    }
}
