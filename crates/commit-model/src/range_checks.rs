//! # Range checks: transactions that read ranges
//!
//! Commits change keys inside and outside of one range. Transactions read the range at a snapshot
//! and commit a change of a key in it. A transaction must fail if another commit between its
//! snapshot and its own commit changed the range.
//!
//! ## Picture
//! ```text
//!   transaction: registers --> R = last reserved --> [visible >= R] --> A = visible, reads at A
//!                --> closes the window --> [visible = last reserved] --> check --> Reserve, open
//!   commit:      Reserve --> any readers? --> Record its key --> complete
//! ```
//! The check passes if no recorded commit above A changed the range.
//!
//! ## Invariants
//! I4: a commit C of a transaction that read at A follows no change of the range in (A, C).
//!
//! ## Not modeled
//! Keys that a transaction read one by one: it holds their stripes (model `stripes`, R16). Failed
//! commits: a wait for a failed commit returns an error.

use crate::ProtocolRules;
use crate::explore::{BrokenInvariant, CheckedState, no_broken_invariant};
use stateright::{Model, Property};

/// Model of range checks.
#[derive(Clone, Debug)]
pub struct RangeChecksModel {
    /// Active rules.
    pub rules: ProtocolRules,
    /// Commits in the whole run that are no transactions.
    pub commits: usize,
    /// Whether the record of recent commits may overflow once.
    pub overflows: bool,
}

/// Number of transactions.
const TRANSACTIONS: usize = 2;

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum RangeCommitPhase {
    Reserved,
    /// Has looked for readers. The flag tells whether it must record its key.
    Looked(bool),
    Recorded,
    /// Complete. The flag tells whether it must record its key (only if it records late).
    Complete(bool),
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
struct RangeCommit {
    is_in_range: bool,
    phase: RangeCommitPhase,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum TransactionPhase {
    Idle,
    /// Has read R without being registered (only without the rule).
    Unregistered(u8),
    Registered,
    /// Has read R.
    Waiting(u8),
    /// Reads at A; the flag tells whether its registration states A.
    Reading(u8, bool),
    /// Has closed the window, if the rule is on; with A.
    Closed(u8),
    /// Has passed the check.
    Checked(u8),
    /// Ends. It has a place among the readers.
    Ending,
    /// Was the last reader and has yet to clear the record (only without the rule).
    Clearing,
    Done,
}

/// Commits, transactions and the record of recent commits.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct RangeChecksState {
    /// Commits by seq.
    commits: Vec<RangeCommit>,
    /// A commit that looked for readers before it reserved: whether it must record its key.
    early: Option<(bool, bool)>,
    plain: usize,
    transactions: [TransactionPhase; TRANSACTIONS],
    /// Registered readers, each with the oldest snapshot that it may read at. `None` in a place
    /// means that the registration states no bound yet.
    readers: [Option<Option<u8>>; TRANSACTIONS],
    /// The transaction that has closed the window.
    closed_by: Option<usize>,
    /// Seqs of the recorded commits in the range.
    recorded: Vec<u8>,
    /// Commits up to this seq may be missing in the record.
    floor: u8,
    has_overflowed: bool,
    broken_invariant: Option<BrokenInvariant>,
}

/// Steps of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeChecksAction {
    /// A commit inside or outside of the range looks for readers before it reserves (only without
    /// the rule).
    LookEarly(bool),
    /// A commit inside or outside of the range reserves its seq.
    Reserve(bool),
    /// A commit looks for readers.
    Look(usize),
    /// A commit records its key.
    Record(usize),
    /// A commit is complete.
    Complete(usize),
    /// A transaction registers as a reader.
    Register(usize),
    /// A transaction reads the last reserved seq.
    ReadReserved(usize),
    /// A transaction takes its snapshot.
    TakeState(usize),
    /// The registration of a transaction states its snapshot.
    StateBound(usize),
    /// A transaction closes the window.
    Close(usize),
    /// A transaction checks its range.
    Check(usize),
    /// A transaction reserves its seq.
    ReserveChecked(usize),
    /// A transaction ends its registration.
    End(usize),
    /// The transaction that was the last reader clears the record (only without the rule).
    Clear(usize),
    /// The record drops commits that no reader needs.
    Trim,
    /// The record is too large and drops all commits.
    Overflow,
}

impl CheckedState for RangeChecksState {
    fn broken_invariant(&self) -> Option<BrokenInvariant> {
        self.broken_invariant
    }
}

impl RangeChecksState {
    fn reserved(&self) -> u8 {
        u8::try_from(self.commits.len()).unwrap_or(u8::MAX)
    }

    fn visible(&self) -> u8 {
        let is_complete = |commit: &&RangeCommit| matches!(commit.phase, RangeCommitPhase::Complete(_));
        u8::try_from(self.commits.iter().take_while(is_complete).count()).unwrap_or(u8::MAX)
    }

    fn has_readers(&self) -> bool {
        self.readers.iter().any(Option::is_some)
    }

    /// Returns the seq up to which no reader needs recorded commits.
    fn needless(&self) -> Option<u8> {
        self.readers.iter().flatten().filter_map(|bound| *bound).min()
    }

    fn reserve(&mut self, is_in_range: bool, phase: RangeCommitPhase) {
        self.commits.push(RangeCommit { is_in_range, phase });
    }

    fn record(&mut self, index: usize) {
        if self.commits[index].is_in_range {
            self.recorded.push(seq(index));
            self.recorded.sort_unstable();
        }
    }
}

fn seq(index: usize) -> u8 {
    u8::try_from(index + 1).unwrap_or(u8::MAX)
}

impl Model for RangeChecksModel {
    type State = RangeChecksState;
    type Action = RangeChecksAction;

    fn init_states(&self) -> Vec<RangeChecksState> {
        vec![RangeChecksState {
            commits: Vec::new(),
            early: None,
            plain: 0,
            transactions: [TransactionPhase::Idle; TRANSACTIONS],
            readers: [None; TRANSACTIONS],
            closed_by: None,
            recorded: Vec::new(),
            floor: 0,
            has_overflowed: false,
            broken_invariant: None,
        }]
    }

    fn actions(&self, state: &RangeChecksState, actions: &mut Vec<RangeChecksAction>) {
        if state.broken_invariant.is_some() {
            return;
        }
        self.commit_actions(state, actions);
        self.transaction_actions(state, actions);
        if state.needless().is_some_and(|upto| state.recorded.first().is_some_and(|first| *first <= upto)) {
            actions.push(RangeChecksAction::Trim);
        }
        if self.overflows && !state.has_overflowed && !state.recorded.is_empty() {
            actions.push(RangeChecksAction::Overflow);
        }
    }

    fn next_state(&self, state: &RangeChecksState, action: RangeChecksAction) -> Option<RangeChecksState> {
        let mut next = state.clone();
        self.step(&mut next, action);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        no_broken_invariant()
    }
}

impl RangeChecksModel {
    fn commit_actions(&self, state: &RangeChecksState, actions: &mut Vec<RangeChecksAction>) {
        let is_open = state.closed_by.is_none();
        match state.early {
            Some((is_in_range, _)) if is_open => actions.push(RangeChecksAction::Reserve(is_in_range)),
            Some(_) => {}
            None if state.plain < self.commits => {
                for is_in_range in [true, false] {
                    if !self.rules.commits_look_for_readers_after_reserving {
                        actions.push(RangeChecksAction::LookEarly(is_in_range));
                    } else if is_open {
                        actions.push(RangeChecksAction::Reserve(is_in_range));
                    }
                }
            }
            None => {}
        }
        let records_first = self.rules.commits_record_before_completion;
        for (index, commit) in state.commits.iter().enumerate() {
            match commit.phase {
                RangeCommitPhase::Reserved => actions.push(RangeChecksAction::Look(index)),
                RangeCommitPhase::Looked(true) if records_first => {
                    actions.push(RangeChecksAction::Record(index));
                }
                RangeCommitPhase::Looked(_) | RangeCommitPhase::Recorded => {
                    actions.push(RangeChecksAction::Complete(index));
                }
                RangeCommitPhase::Complete(true) => actions.push(RangeChecksAction::Record(index)),
                RangeCommitPhase::Complete(false) => {}
            }
        }
    }

    fn transaction_actions(&self, state: &RangeChecksState, actions: &mut Vec<RangeChecksAction>) {
        let (visible, reserved) = (state.visible(), state.reserved());
        let waits = self.rules.range_readers_wait_for_reserved_commits;
        let drains = self.rules.range_checks_wait_for_commits;
        for (index, phase) in state.transactions.iter().enumerate() {
            match *phase {
                TransactionPhase::Idle if self.rules.range_readers_register_first => {
                    actions.push(RangeChecksAction::Register(index));
                }
                TransactionPhase::Idle | TransactionPhase::Registered => {
                    actions.push(RangeChecksAction::ReadReserved(index));
                }
                TransactionPhase::Unregistered(_) => actions.push(RangeChecksAction::Register(index)),
                TransactionPhase::Waiting(upto) if visible >= upto || !waits => {
                    actions.push(RangeChecksAction::TakeState(index));
                }
                TransactionPhase::Reading(_, is_stated) => {
                    if !is_stated {
                        actions.push(RangeChecksAction::StateBound(index));
                    }
                    if state.closed_by.is_none() {
                        actions.push(RangeChecksAction::Close(index));
                    }
                }
                TransactionPhase::Closed(_) if visible == reserved || !drains => {
                    actions.push(RangeChecksAction::Check(index));
                }
                TransactionPhase::Checked(_) => actions.push(RangeChecksAction::ReserveChecked(index)),
                TransactionPhase::Ending => actions.push(RangeChecksAction::End(index)),
                TransactionPhase::Clearing => actions.push(RangeChecksAction::Clear(index)),
                TransactionPhase::Waiting(_) | TransactionPhase::Closed(_) | TransactionPhase::Done => {}
            }
        }
    }

    fn step(&self, state: &mut RangeChecksState, action: RangeChecksAction) {
        match action {
            RangeChecksAction::LookEarly(is_in_range) => {
                state.early = Some((is_in_range, state.has_readers()));
                state.plain += 1;
            }
            RangeChecksAction::Reserve(is_in_range) => match state.early.take() {
                Some((_, records)) => state.reserve(is_in_range, RangeCommitPhase::Looked(records)),
                None => {
                    state.plain += 1;
                    state.reserve(is_in_range, RangeCommitPhase::Reserved);
                }
            },
            RangeChecksAction::Look(index) => {
                state.commits[index].phase = RangeCommitPhase::Looked(state.has_readers());
            }
            RangeChecksAction::Record(index) => {
                state.record(index);
                let was_complete = matches!(state.commits[index].phase, RangeCommitPhase::Complete(_));
                state.commits[index].phase =
                    if was_complete { RangeCommitPhase::Complete(false) } else { RangeCommitPhase::Recorded };
            }
            RangeChecksAction::Complete(index) => {
                let records_late = state.commits[index].phase == RangeCommitPhase::Looked(true);
                state.commits[index].phase = RangeCommitPhase::Complete(records_late);
            }
            RangeChecksAction::Trim => {
                let upto = state.needless().unwrap_or(0);
                state.recorded.retain(|seq| *seq > upto);
            }
            RangeChecksAction::Overflow => {
                state.has_overflowed = true;
                if self.rules.forgotten_commits_raise_the_floor {
                    state.floor = state.recorded.last().copied().unwrap_or(0).max(state.floor);
                }
                state.recorded.clear();
            }
            other => self.transaction_step(state, other),
        }
    }

    fn transaction_step(&self, state: &mut RangeChecksState, action: RangeChecksAction) {
        match action {
            RangeChecksAction::Register(index) => {
                let has_bound = self.rules.registering_readers_have_a_bound;
                state.readers[index] = Some(has_bound.then(|| state.visible()));
                state.transactions[index] = match state.transactions[index] {
                    TransactionPhase::Unregistered(upto) => TransactionPhase::Waiting(upto),
                    _ => TransactionPhase::Registered,
                };
            }
            RangeChecksAction::ReadReserved(index) => {
                state.transactions[index] = match state.transactions[index] {
                    TransactionPhase::Registered => TransactionPhase::Waiting(state.reserved()),
                    _ => TransactionPhase::Unregistered(state.reserved()),
                };
            }
            RangeChecksAction::TakeState(index) => {
                state.transactions[index] = TransactionPhase::Reading(state.visible(), false);
            }
            RangeChecksAction::StateBound(index) => {
                let TransactionPhase::Reading(at, _) = state.transactions[index] else { return };
                state.readers[index] = Some(Some(at));
                state.transactions[index] = TransactionPhase::Reading(at, true);
            }
            RangeChecksAction::Close(index) => {
                let TransactionPhase::Reading(at, _) = state.transactions[index] else { return };
                state.closed_by = self.rules.range_checks_stop_reservations.then_some(index);
                state.transactions[index] = TransactionPhase::Closed(at);
            }
            RangeChecksAction::Check(index) => {
                let TransactionPhase::Closed(at) = state.transactions[index] else { return };
                let fails = at < state.floor || state.recorded.last().is_some_and(|last| *last > at);
                state.transactions[index] =
                    if fails { TransactionPhase::Ending } else { TransactionPhase::Checked(at) };
                if fails {
                    state.closed_by = None;
                }
            }
            RangeChecksAction::ReserveChecked(index) => {
                let TransactionPhase::Checked(at) = state.transactions[index] else { return };
                if state.commits[usize::from(at)..].iter().any(|commit| commit.is_in_range) {
                    state.broken_invariant = Some(BrokenInvariant::UnexplainedRead);
                }
                state.reserve(true, RangeCommitPhase::Reserved);
                state.closed_by = None;
                state.transactions[index] = TransactionPhase::Ending;
            }
            RangeChecksAction::End(index) => {
                state.readers[index] = None;
                let clears = !state.has_readers();
                let clears_later = clears && !self.rules.the_last_reader_clears_at_once;
                if clears && !clears_later {
                    state.recorded.clear();
                }
                state.transactions[index] =
                    if clears_later { TransactionPhase::Clearing } else { TransactionPhase::Done };
            }
            RangeChecksAction::Clear(index) => {
                state.recorded.clear();
                state.transactions[index] = TransactionPhase::Done;
            }
            _ => {}
        }
    }
}
