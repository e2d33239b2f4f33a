//! # Stripes: conditions, batches and GC under the locks of keys
//!
//! Each job is one thread: a batch of puts, a compare-and-swap, or GC of one entry. Key `k` has the
//! stripe `k % stripes`. A thread may panic in the window, and log space may run out.
//!
//! ## Picture
//! ```text
//!   batch, swap:  [ReadEntry] --> Take, Take --> Check (is_current) --> Reserve --> Apply, Apply
//!                    |               ^             |    |            --> complete, no stripes
//!                    |               +- no space --+    +-- refused  --> [visible >= seq] Finish
//!   GC:           ReadEntry (and copy the survivor) --> Take --> Repoint if the entry is unchanged
//! ```
//! The copy of the frame is part of the last `Apply`; `window` has it as a step.
//!
//! ## Invariants
//! - I4: a swap succeeds only on the version right before it in the commit order. No caller learns
//!   of a commit above `visible`, neither by a read nor by a refusal.
//! - I6: when no commit is in the window, each key has its newest version. Each address is counted
//!   dead at most once, and never while the index has it.
//! - I10: no thread waits forever.
//!
//! ## Threads
//! Order of acquisition: stripes in ascending order, then the reservation. A thread that holds
//! stripes waits only for other stripes. It does not wait for log space, since GC needs a stripe to
//! free space.
//!
//! ## Not modeled
//! Fairness of the stripes.

use crate::ProtocolRules;
use crate::explore::{BrokenInvariant, CheckedState, no_broken_invariant};
use stateright::{Model, Property};

/// Work of one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StripeJob {
    /// Puts these keys in one commit.
    Put(Vec<usize>),
    /// Puts a key if it still has the version that was read.
    Swap(usize),
    /// Moves the entry of a key, which frees log space for one commit.
    Relocate(usize),
}

/// Model of the stripes.
#[derive(Clone, Debug)]
pub struct StripesModel {
    /// Active rules.
    pub rules: ProtocolRules,
    /// Jobs, one thread each.
    pub jobs: Vec<StripeJob>,
    /// Number of stripes.
    pub stripes: usize,
    /// Maximum number of stripes that a batch takes one by one. A batch with more takes all in one
    /// step.
    pub limit: usize,
    /// Number of commits that fit into the log.
    pub log_space: u8,
    /// Whether `apply` counts the entry dead that it replaced, not the one that `is_current` noted.
    pub exchanges: bool,
    /// Commits that may panic in the window.
    pub panics: usize,
}

/// Keys of the model.
const KEYS: usize = 3;

/// Index entry: the seq of the version, and its address.
#[derive(Clone, Copy, Debug, Default, Hash, PartialEq, Eq)]
struct IndexEntry {
    seq: u8,
    address: u8,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum JobPhase {
    /// A swap or GC has not read its key yet.
    Idle,
    /// Takes stripes.
    TakingStripes,
    /// Waits for log space.
    WaitingForSpace,
    /// `is_current` has returned true.
    Checked,
    /// In the window; `applied` keys are applied.
    Reserved {
        seq: u8,
        applied: usize,
    },
    /// Waits until `visible` has reached this seq, then returns.
    Waiting {
        seq: u8,
        is_refused: bool,
    },
    Panicked,
    Done,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct JobThread {
    phase: JobPhase,
    /// Position in the list of needed stripes.
    next: usize,
    /// Held stripes: a set of bits.
    held_stripes: u8,
    /// Version that a swap or GC read.
    seen: IndexEntry,
    /// Entries that `is_current` saw.
    noted: [IndexEntry; KEYS],
}

/// Threads, index and window.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct StripesState {
    threads: Vec<JobThread>,
    index: [IndexEntry; KEYS],
    /// Newest seq that was reserved for each key.
    newest: [u8; KEYS],
    last: u8,
    /// Complete commits: a set of bits.
    complete: u32,
    next_address: u8,
    /// Addresses that were counted dead: a set of bits.
    dead: u64,
    room: u8,
    broken_invariant: Option<BrokenInvariant>,
}

/// Steps of the thread with this index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StripesAction {
    /// A swap or GC reads the entry of its key.
    ReadEntry(usize),
    /// Takes the next stripe, or all stripes.
    Take(usize),
    /// Calls `is_current`. A swap is refused if its version was superseded.
    Check(usize),
    /// Gets a seq and a place.
    Reserve(usize),
    /// Finds no log space and releases its stripes.
    FindNoSpace(usize),
    /// Starts again, since there is log space.
    Retry(usize),
    /// Changes the index for one key. After the last key the commit is complete.
    Apply(usize),
    /// Repoints the entry of GC if it is unchanged.
    Repoint(usize),
    /// Returns from the call.
    Finish(usize),
    /// Panics in the window.
    Panic(usize),
    /// Returns an error from the call, since another commit has poisoned the database.
    Refuse(usize),
}

impl CheckedState for StripesState {
    fn broken_invariant(&self) -> Option<BrokenInvariant> {
        self.broken_invariant
    }
}

impl Model for StripesModel {
    type State = StripesState;
    type Action = StripesAction;

    fn init_states(&self) -> Vec<StripesState> {
        let entry = |address| IndexEntry { seq: 0, address };
        let thread = |job: &StripeJob| JobThread {
            phase: if matches!(job, StripeJob::Put(_)) { JobPhase::TakingStripes } else { JobPhase::Idle },
            next: 0,
            held_stripes: 0,
            seen: IndexEntry::default(),
            noted: [IndexEntry::default(); KEYS],
        };
        vec![StripesState {
            threads: self.jobs.iter().map(thread).collect(),
            index: [entry(0), entry(1), entry(2)],
            newest: [0; KEYS],
            last: 0,
            complete: 0,
            next_address: 3,
            dead: 0,
            room: self.log_space,
            broken_invariant: None,
        }]
    }

    fn actions(&self, state: &StripesState, actions: &mut Vec<StripesAction>) {
        if state.broken_invariant.is_some() {
            return;
        }
        self.enabled_actions(state, actions);
        let is_panicked = |thread: &&JobThread| thread.phase == JobPhase::Panicked;
        if state.threads.iter().filter(is_panicked).count() < self.panics {
            let works = |who: &usize| matches!(state.threads[*who].phase, JobPhase::Reserved { .. });
            actions.extend((0..self.jobs.len()).filter(works).map(StripesAction::Panic));
        }
    }

    fn next_state(&self, state: &StripesState, action: StripesAction) -> Option<StripesState> {
        let mut next = state.clone();
        self.step(&mut next, action);
        if next.broken_invariant.is_none() {
            next.broken_invariant = self.check_end(&next);
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        no_broken_invariant()
    }
}

impl StripesModel {
    fn keys(&self, who: usize) -> &[usize] {
        match &self.jobs[who] {
            StripeJob::Put(keys) => keys,
            StripeJob::Swap(key) | StripeJob::Relocate(key) => std::slice::from_ref(key),
        }
    }

    /// Returns the stripes that a job takes, in the order in which it takes them.
    fn needed_stripes(&self, who: usize) -> Vec<u8> {
        if !self.rules.repoints_take_the_stripe && matches!(self.jobs[who], StripeJob::Relocate(_)) {
            return Vec::new();
        }
        let mut wanted: Vec<u8> = Vec::new();
        for key in self.keys(who) {
            let stripe = 1 << (key % self.stripes);
            if !self.rules.each_stripe_once || !wanted.contains(&stripe) {
                wanted.push(stripe);
            }
        }
        if wanted.len() > self.limit {
            let all = (1 << self.stripes) - 1;
            return if self.rules.large_batches_take_all_stripes { vec![all] } else { Vec::new() };
        }
        if self.rules.stripes_in_ascending_order {
            wanted.sort_unstable();
        }
        wanted
    }

    fn enabled_actions(&self, state: &StripesState, actions: &mut Vec<StripesAction>) {
        let visible = visible(state);
        let is_poisoned = state.threads.iter().any(|thread| thread.phase == JobPhase::Panicked);
        let wakes = is_poisoned && self.rules.poison_wakes_the_waiters;
        let held = state.threads.iter().fold(0, |held, thread| held | thread.held_stripes);
        for (who, thread) in state.threads.iter().enumerate() {
            let wanted = self.needed_stripes(who);
            let collects = matches!(self.jobs[who], StripeJob::Relocate(_));
            let may_check = thread.next == wanted.len() || !self.rules.stripes_precede_the_check;
            match thread.phase {
                JobPhase::Idle if collects => actions.push(StripesAction::ReadEntry(who)),
                // The caller of a swap has read its key and waited for `visible` (W4).
                JobPhase::Idle if state.index[self.keys(who)[0]].seq <= visible => {
                    actions.push(StripesAction::ReadEntry(who))
                }
                JobPhase::TakingStripes if collects && may_check => actions.push(StripesAction::Repoint(who)),
                JobPhase::TakingStripes if may_check => actions.push(StripesAction::Check(who)),
                JobPhase::TakingStripes | JobPhase::Checked if thread.next < wanted.len() => {
                    let is_free = held & wanted[thread.next] == 0;
                    actions.extend(is_free.then_some(StripesAction::Take(who)));
                }
                JobPhase::Checked if is_poisoned => {}
                JobPhase::Checked if state.room > 0 => actions.push(StripesAction::Reserve(who)),
                JobPhase::Checked if self.rules.log_space_is_awaited_without_stripes => {
                    actions.push(StripesAction::FindNoSpace(who));
                }
                JobPhase::WaitingForSpace if state.room > 0 && !is_poisoned => {
                    actions.push(StripesAction::Retry(who))
                }
                JobPhase::Reserved { .. } => actions.push(StripesAction::Apply(who)),
                JobPhase::Waiting { seq, is_refused } => {
                    let waits = !is_refused || self.rules.refusals_wait_for_visible;
                    actions.extend((seq <= visible || !waits).then_some(StripesAction::Finish(who)));
                }
                _ => {}
            }
            if wakes
                && !matches!(thread.phase, JobPhase::Reserved { .. } | JobPhase::Panicked | JobPhase::Done)
            {
                actions.push(StripesAction::Refuse(who));
            }
        }
    }

    fn check_end(&self, state: &StripesState) -> Option<BrokenInvariant> {
        let mut actions = Vec::new();
        self.enabled_actions(state, &mut actions);
        let is_over = |thread: &JobThread| matches!(thread.phase, JobPhase::Done | JobPhase::Panicked);
        if actions.is_empty() && !state.threads.iter().all(is_over) {
            return Some(BrokenInvariant::Deadlock);
        }
        let in_window =
            |thread: &JobThread| matches!(thread.phase, JobPhase::Reserved { .. } | JobPhase::Panicked);
        let is_lost = |(entry, newest): (&IndexEntry, &u8)| entry.seq != *newest;
        let lost = state.index.iter().zip(&state.newest).any(is_lost);
        let is_dead = state.index.iter().any(|entry| state.dead & (1 << entry.address) != 0);
        (is_dead || lost && !state.threads.iter().any(in_window)).then_some(BrokenInvariant::Index)
    }

    fn step(&self, state: &mut StripesState, action: StripesAction) {
        match action {
            StripesAction::ReadEntry(who) => {
                state.threads[who].seen = state.index[self.keys(who)[0]];
                state.threads[who].phase = JobPhase::TakingStripes;
            }
            StripesAction::Take(who) => {
                let wanted = self.needed_stripes(who);
                let thread = &mut state.threads[who];
                thread.held_stripes |= wanted[thread.next];
                thread.next += 1;
            }
            StripesAction::Check(who) => self.check(state, who),
            StripesAction::Reserve(who) => self.reserve(state, who),
            StripesAction::FindNoSpace(who) => {
                let thread = &mut state.threads[who];
                (thread.phase, thread.held_stripes, thread.next) = (JobPhase::WaitingForSpace, 0, 0);
            }
            StripesAction::Retry(who) => state.threads[who].phase = JobPhase::TakingStripes,
            StripesAction::Apply(who) => self.apply(state, who),
            StripesAction::Repoint(who) => {
                let (key, seen) = (self.keys(who)[0], state.threads[who].seen);
                if state.index[key] == seen || !self.rules.repointing_compares {
                    state.index[key] = IndexEntry { seq: seen.seq, address: take_address(state) };
                    count_dead(state, seen.address);
                }
                state.room += 1;
                (state.threads[who].phase, state.threads[who].held_stripes) = (JobPhase::Done, 0);
            }
            StripesAction::Finish(who) => {
                if let JobPhase::Waiting { seq, .. } = state.threads[who].phase
                    && seq > visible(state)
                {
                    // A kill now would take back the commit that caused the refusal.
                    state.broken_invariant = Some(BrokenInvariant::UnexplainedRead);
                }
                state.threads[who].phase = JobPhase::Done;
            }
            // The thread keeps its stripes.
            StripesAction::Panic(who) => state.threads[who].phase = JobPhase::Panicked,
            StripesAction::Refuse(who) => {
                (state.threads[who].phase, state.threads[who].held_stripes) = (JobPhase::Done, 0)
            }
        }
    }

    fn check(&self, state: &mut StripesState, who: usize) {
        let index = state.index;
        let thread = &mut state.threads[who];
        let now = index[self.keys(who)[0]].seq;
        if matches!(self.jobs[who], StripeJob::Swap(_)) && now != thread.seen.seq {
            (thread.phase, thread.held_stripes) = (JobPhase::Waiting { seq: now, is_refused: true }, 0);
            return;
        }
        thread.noted = index;
        thread.phase = JobPhase::Checked;
    }

    fn reserve(&self, state: &mut StripesState, who: usize) {
        let swaps = matches!(self.jobs[who], StripeJob::Swap(_));
        if swaps && state.newest[self.keys(who)[0]] != state.threads[who].seen.seq {
            state.broken_invariant = Some(BrokenInvariant::UnexplainedRead);
        }
        state.room -= 1;
        state.last += 1;
        self.keys(who).iter().for_each(|&key| state.newest[key] = state.last);
        state.threads[who].phase = JobPhase::Reserved { seq: state.last, applied: 0 };
        if !self.rules.stripes_are_held_until_publication {
            state.threads[who].held_stripes = 0;
        }
    }

    fn apply(&self, state: &mut StripesState, who: usize) {
        let JobPhase::Reserved { seq, applied } = state.threads[who].phase else { return };
        let key = self.keys(who)[applied];
        // If a batch has a key twice, only its last operation counts (R2).
        if !self.keys(who)[..applied].contains(&key) {
            let replaced = if self.exchanges { state.index[key] } else { state.threads[who].noted[key] };
            count_dead(state, replaced.address);
            state.index[key] = IndexEntry { seq, address: take_address(state) };
        }
        let applied = applied + 1;
        state.threads[who].phase = JobPhase::Reserved { seq, applied };
        if applied == self.keys(who).len() {
            state.complete |= 1 << seq;
            let thread = &mut state.threads[who];
            (thread.phase, thread.held_stripes) = (JobPhase::Waiting { seq, is_refused: false }, 0);
        }
    }
}

fn visible(state: &StripesState) -> u8 {
    (1..=state.last).take_while(|seq| state.complete & (1 << seq) != 0).last().unwrap_or(0)
}

fn take_address(state: &mut StripesState) -> u8 {
    state.next_address += 1;
    state.next_address - 1
}

fn count_dead(state: &mut StripesState, address: u8) {
    if state.dead & (1 << address) != 0 {
        state.broken_invariant = Some(BrokenInvariant::Index);
    }
    state.dead |= 1 << address;
}
