//! # Journal replay: the records of each key in order, on several threads
//!
//! Threads read pieces of segments and replay them, partition by partition (decisions/0039). Each
//! task has two steps, so that tasks overlap in every way. Key `k` belongs to partition
//! `k % partitions`. Records with a number of `damaged` are errors of the reader.
//!
//! ## Invariants
//! - I6: each key gets its records in the order of the journal.
//! - I8: the error that is reported is the first one in the journal.
//! - I10: as long as a record is left, a thread has a task.
//!
//! ## Not modeled
//! Errors of engines, which end a partition as damage ends a segment.

use crate::ProtocolRules;
use crate::explore::{BrokenInvariant, CheckedState, no_broken_invariant};
use stateright::{Model, Property};
use std::cmp::Ordering;

/// Model of the replay.
#[derive(Clone, Debug)]
pub struct JournalReplayModel {
    /// Active rules.
    pub rules: ProtocolRules,
    /// Pieces of each segment: the keys of their records, in order.
    pub segments: Vec<Vec<Vec<usize>>>,
    /// Number of partitions.
    pub partitions: usize,
    /// Maximum number of pieces in memory.
    pub most_pieces: usize,
    /// Numbers of the damaged records, counted over all segments.
    pub damaged: Vec<usize>,
}

/// Number of keys.
const KEYS: usize = 3;

#[derive(Clone, Debug, Default, Hash, PartialEq, Eq)]
struct PartitionState {
    segment: usize,
    piece: usize,
    /// Pieces that threads replay at present.
    running: Vec<(usize, usize)>,
}

/// Progress of readers and partitions.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct JournalReplayState {
    /// Pieces read of each segment, and whether a thread reads the next one.
    read: Vec<(usize, bool)>,
    partitions: Vec<PartitionState>,
    /// Number of the last record of each key that was replayed, from 1 on.
    last: [usize; KEYS],
    /// Reported error: the number of a record.
    failure: Option<usize>,
    broken_invariant: Option<BrokenInvariant>,
}

/// Steps of the threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalReplayAction {
    /// A thread begins to read the next piece of a segment.
    BeginRead(usize),
    /// The piece is read.
    EndRead(usize),
    /// A thread begins to replay the next piece of a partition.
    BeginReplay(usize),
    /// A thread has replayed the piece with this position among the running ones of a partition.
    EndReplay(usize, usize),
}

impl CheckedState for JournalReplayState {
    fn broken_invariant(&self) -> Option<BrokenInvariant> {
        self.broken_invariant
    }
}

impl Model for JournalReplayModel {
    type State = JournalReplayState;
    type Action = JournalReplayAction;

    fn init_states(&self) -> Vec<JournalReplayState> {
        vec![JournalReplayState {
            read: vec![(0, false); self.segments.len()],
            partitions: vec![PartitionState::default(); self.partitions],
            last: [0; KEYS],
            failure: None,
            broken_invariant: None,
        }]
    }

    fn actions(&self, state: &JournalReplayState, actions: &mut Vec<JournalReplayAction>) {
        if state.broken_invariant.is_none() {
            self.enabled_actions(state, actions);
        }
    }

    fn next_state(
        &self,
        before: &JournalReplayState,
        action: JournalReplayAction,
    ) -> Option<JournalReplayState> {
        let mut state = before.clone();
        self.step(&mut state, action);
        state.broken_invariant = state.broken_invariant.or_else(|| self.check_end(&state));
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        no_broken_invariant()
    }
}

impl JournalReplayModel {
    /// Returns the numbers and keys of the records of a piece.
    fn records(&self, segment: usize, piece: usize) -> Vec<(usize, usize)> {
        let before: usize = self.segments[..segment].iter().flatten().map(Vec::len).sum();
        let before = before + self.segments[segment][..piece].iter().map(Vec::len).sum::<usize>();
        (before..).zip(self.segments[segment][piece].iter().copied()).collect()
    }

    fn first_record(&self, segment: usize, piece: usize) -> usize {
        self.records(segment, piece)[0].0
    }

    fn is_behind_failure(&self, state: &JournalReplayState, segment: usize, piece: usize) -> bool {
        state.failure.is_some_and(|failed| {
            !self.rules.errors_wait_for_earlier_records || failed < self.first_record(segment, piece)
        })
    }

    /// Returns the number of pieces that were read, or are being read, and that some partition has
    /// not replayed.
    fn pieces(&self, state: &JournalReplayState, segments: usize) -> usize {
        let kept = |segment: usize| {
            let passed = state.partitions.iter().map(|progress| match progress.segment.cmp(&segment) {
                Ordering::Less => 0,
                Ordering::Equal => progress.piece,
                Ordering::Greater => usize::MAX,
            });
            let (read, is_reading) = state.read[segment];
            let replayed = passed.min().unwrap_or(0).min(read);
            read + usize::from(is_reading) - replayed
        };
        (0..segments).map(kept).sum()
    }

    fn enabled_actions(&self, state: &JournalReplayState, actions: &mut Vec<JournalReplayAction>) {
        let first = (0..self.segments.len()).find(|s| state.read[*s].0 < self.segments[*s].len());
        for (segment, (read, is_reading)) in state.read.iter().copied().enumerate() {
            if is_reading {
                actions.push(JournalReplayAction::EndRead(segment));
            } else if read < self.segments[segment].len() {
                let is_needed = first == Some(segment)
                    && self.rules.the_first_unread_segment_has_room
                    && self.pieces(state, segment + 1) == 0;
                let has_room = self.pieces(state, state.read.len()) < self.most_pieces || is_needed;
                if has_room && !self.is_behind_failure(state, segment, read) {
                    actions.push(JournalReplayAction::BeginRead(segment));
                }
            }
        }
        for (partition, progress) in state.partitions.iter().enumerate() {
            let running = 0..progress.running.len();
            actions.extend(running.map(|at| JournalReplayAction::EndReplay(partition, at)));
            let is_taken = self.rules.a_partition_has_one_thread && !progress.running.is_empty();
            let (segment, piece) = (progress.segment, progress.piece);
            if !is_taken
                && segment < state.read.len()
                && piece < state.read[segment].0
                && !self.is_behind_failure(state, segment, piece)
            {
                actions.push(JournalReplayAction::BeginReplay(partition));
            }
        }
    }

    fn check_end(&self, state: &JournalReplayState) -> Option<BrokenInvariant> {
        let mut actions = Vec::new();
        self.enabled_actions(state, &mut actions);
        if !actions.is_empty() {
            return None;
        }
        if state.failure != self.damaged.iter().copied().min() {
            return Some(BrokenInvariant::FalseDamage);
        }
        let is_left = state.partitions.iter().any(|p| p.segment < self.segments.len());
        (state.failure.is_none() && is_left).then_some(BrokenInvariant::Deadlock)
    }

    fn step(&self, state: &mut JournalReplayState, action: JournalReplayAction) {
        match action {
            JournalReplayAction::BeginRead(segment) => state.read[segment].1 = true,
            JournalReplayAction::EndRead(segment) => {
                let piece = state.read[segment].0;
                let bad = self.records(segment, piece).into_iter().map(|(number, _)| number);
                let bad = bad.filter(|number| self.damaged.contains(number)).min();
                state.failure = state.failure.into_iter().chain(bad).min();
                state.read[segment] = (piece + 1, false);
            }
            JournalReplayAction::BeginReplay(partition) => {
                let progress = &mut state.partitions[partition];
                progress.running.push((progress.segment, progress.piece));
                if !self.rules.a_partition_has_one_thread {
                    self.pass(progress);
                }
            }
            JournalReplayAction::EndReplay(partition, at) => {
                let (segment, piece) = state.partitions[partition].running.remove(at);
                for (number, key) in self.records(segment, piece) {
                    if key % self.partitions == partition && !self.damaged.contains(&number) {
                        if state.last[key] > number + 1 {
                            state.broken_invariant = Some(BrokenInvariant::Index);
                        }
                        state.last[key] = number + 1;
                    }
                }
                if self.rules.a_partition_has_one_thread {
                    self.pass(&mut state.partitions[partition]);
                }
            }
        }
    }

    /// Advances a partition by one piece.
    fn pass(&self, progress: &mut PartitionState) {
        progress.piece += 1;
        if progress.piece == self.segments[progress.segment].len() {
            (progress.segment, progress.piece) = (progress.segment + 1, 0);
        }
    }
}
