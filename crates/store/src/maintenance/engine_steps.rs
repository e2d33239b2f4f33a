//! # Engine steps: background steps of several keyspaces at the same time
//!
//! A round gives each keyspace a *turn* of up to [`STEPS_PER_TURN`] steps. Turns run on the calling
//! thread and on helper threads. A step may take long, for example because it waits for the device.
//! While first turns run, idle helpers give the other keyspaces further turns, so that one long
//! step never blocks the steps of other keyspaces. The round ends when the first turns are over.
//!
//! A round without commits since the previous one usually finds no work. It asks each keyspace for
//! one step on the calling thread, and starts helpers only for those with more to do.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::maintenance::threads::ThreadSignals;
use crate::pass::{PassOutcome, PoisonOnPanic};
use crate::span;
use crate::{KeyspaceState, Store};
use sheaf_engine::contract::Engine;
use sheaf_engine::views::Views;
use sheaf_log::types::Seq;
use sheaf_platform::error::{Error, Result};
use sheaf_platform::parallel::run_threads;
use sheaf_platform::sync::Mutex;
use sheaf_platform::sync::atomic::Ordering;

/// Maximum number of steps of a keyspace in one turn.
const STEPS_PER_TURN: usize = 16;

/// Turns of a round, shared by its threads. Keyspaces are named by their index.
#[derive(Debug)]
struct TurnQueue {
    keyspaces: usize,
    /// The next keyspace that gets its first turn.
    next: usize,
    /// First turns that are running.
    first_turns: usize,
    /// Keyspaces that are not in a turn and may have work. Those that reported more come first.
    due: VecDeque<usize>,
    /// Keyspaces whose last turn ended without more to do.
    idle: Vec<usize>,
    /// Number of signals of new work that the queue has seen. `None` if all keyspaces may be due.
    seen_signals: Option<u64>,
    /// A step has panicked.
    has_panicked: bool,
}

/// The turn that a thread of a round begins.
#[derive(Debug, PartialEq, Eq)]
enum NextTurn {
    Begin(Turn),
    Wait,
    RoundIsOver,
}

/// A turn of a keyspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Turn {
    keyspace: usize,
    is_first: bool,
}

impl TurnQueue {
    fn new(keyspaces: usize) -> TurnQueue {
        let (due, idle) = (VecDeque::new(), Vec::new());
        TurnQueue { keyspaces, next: 0, first_turns: 0, due, idle, seen_signals: None, has_panicked: false }
    }

    /// Begins a turn, if one is due. `signals` is the number of signals of new work so far.
    fn begin(&mut self, signals: u64) -> NextTurn {
        if self.has_panicked {
            return NextTurn::RoundIsOver;
        }
        if self.next < self.keyspaces {
            self.seen_signals.get_or_insert(signals);
            (self.next, self.first_turns) = (self.next + 1, self.first_turns + 1);
            return NextTurn::Begin(Turn { keyspace: self.next - 1, is_first: true });
        }
        if self.first_turns == 0 {
            return NextTurn::RoundIsOver;
        }
        if self.seen_signals.replace(signals) != Some(signals) {
            self.due.extend(self.idle.drain(..));
        }
        let next = self.due.pop_front();
        next.map_or(NextTurn::Wait, |keyspace| NextTurn::Begin(Turn { keyspace, is_first: false }))
    }

    /// Makes all keyspaces due that are not in a turn: time has passed.
    fn recheck(&mut self) {
        self.seen_signals = None;
    }

    /// Ends `turn`. Returns whether the round is over.
    fn end(&mut self, turn: Turn, has_more: bool) -> bool {
        self.first_turns -= usize::from(turn.is_first);
        if has_more {
            self.due.push_back(turn.keyspace);
        } else {
            self.idle.push(turn.keyspace);
        }
        self.has_panicked |= std::thread::panicking();
        self.first_turns == 0 || self.has_panicked
    }
}

/// Commits that a step may move to files, and views that may need old versions.
struct StepInput {
    durable_seq: Seq,
    views: Views,
}

/// Ends a turn when it is dropped, also by a panic: no other thread may wait for it.
struct RunningTurn<'a> {
    signals: &'a ThreadSignals,
    queue: &'a Mutex<TurnQueue>,
    turn: Turn,
    has_more: bool,
}

impl Drop for RunningTurn<'_> {
    fn drop(&mut self) {
        if self.queue.lock().end(self.turn, self.has_more) {
            self.signals.signal_helpers();
        }
    }
}

/// Begins the next turn, or waits until one is due. Returns `None` if the round is over.
fn begin_turn<'a>(signals: &'a ThreadSignals, queue: &'a Mutex<TurnQueue>) -> Option<RunningTurn<'a>> {
    loop {
        let mut next = NextTurn::Wait;
        signals.wait_for_work(|count| {
            next = queue.lock().begin(count);
            next == NextTurn::Wait
        });
        match next {
            NextTurn::Begin(turn) => return Some(RunningTurn { signals, queue, turn, has_more: false }),
            NextTurn::RoundIsOver => return None,
            NextTurn::Wait => queue.lock().recheck(),
        }
    }
}

impl Store {
    /// Runs steps of maintenance of the engines. The failure of one engine does not stop the
    /// others. The result is progress if there is more to do.
    pub(crate) fn maintain_engines(&self, keyspaces: &[Arc<KeyspaceState>]) -> PassOutcome {
        self.engine_steps(keyspaces, |engine, views, durable_seq| engine.maintain(views, durable_seq))
    }

    /// Like [`Store::maintain_engines`], for work that engines do only while the database is idle.
    pub(crate) fn reclaim_engines(&self, keyspaces: &[Arc<KeyspaceState>]) -> PassOutcome {
        self.engine_steps(keyspaces, |engine, views, durable_seq| engine.reclaim(views, durable_seq))
    }

    fn engine_steps(
        &self,
        keyspaces: &[Arc<KeyspaceState>],
        step: impl Fn(&dyn Engine, &Views, Seq) -> Result<bool> + Sync,
    ) -> PassOutcome {
        let _at_work = self.background.engine_steps_lock.read();
        if let Err(closed) = self.check_open() {
            // After `close` the files may belong to another process.
            return PassOutcome::from(Err(closed));
        }
        let may_use_helpers = !self.options.inline || cfg!(shuttle);
        if may_use_helpers && keyspaces.len() > 1 && self.has_commits_since_last_round(keyspaces) {
            let helpers = self.take_helpers(keyspaces.len());
            if helpers.threads() > 1 {
                return self.run_turns(keyspaces, helpers.threads(), STEPS_PER_TURN, &step);
            }
        }
        let (mut outcome, mut busy) = (PassOutcome::default(), Vec::new());
        let input = self.step_input();
        for keyspace in keyspaces {
            let (first, has_more) = self.engine_turn(keyspace, &input, 1, &step);
            outcome.merge(first);
            if outcome.has_failed() && self.health.check_not_poisoned().is_err() {
                return outcome;
            }
            busy.extend(has_more.then(|| Arc::clone(keyspace)));
        }
        if may_use_helpers {
            let helpers = self.take_helpers(busy.len());
            outcome.merge(self.run_turns(&busy, helpers.threads(), STEPS_PER_TURN - 1, &step));
        }
        outcome
    }

    /// Returns whether the database had commits since the last round over keyspaces of this log.
    fn has_commits_since_last_round(&self, keyspaces: &[Arc<KeyspaceState>]) -> bool {
        let Some(log) = keyspaces.first().map(|keyspace| keyspace.log()) else { return false };
        let visible = self.visible().0;
        self.background.stepped_seqs[log.index()].swap(visible, Ordering::Relaxed) != visible
    }

    fn step_input(&self) -> StepInput {
        StepInput { durable_seq: self.root.published.floor(), views: self.current_views() }
    }

    /// Runs up to `count` steps of a keyspace. Returns whether it has more to do. An engine that
    /// has just flushed its frozen data continues in its next turn: a merge takes longer than the
    /// end of the checkpoint, which frees the journal.
    fn engine_turn(
        &self,
        keyspace: &KeyspaceState,
        input: &StepInput,
        count: usize,
        step: impl Fn(&dyn Engine, &Views, Seq) -> Result<bool>,
    ) -> (PassOutcome, bool) {
        let mut outcome = PassOutcome::default();
        let Ok(engine) = keyspace.engine() else { return (outcome, false) };
        let _span = span!(TRACE, "engine work", engine = engine.name(), keyspace = &*keyspace.name());
        for _ in 0..count {
            let was_settled = engine.is_flushed();
            let more = match step(&**engine, &input.views, input.durable_seq) {
                Err(Error::Poisoned { cause }) => Err(self.poison(cause)),
                other => other,
            };
            let is_over = !matches!(more, Ok(true));
            outcome.add(more);
            if is_over || (!was_settled && engine.is_flushed()) {
                return (outcome, false);
            }
        }
        (outcome, true)
    }

    /// Runs the turns of a round on up to `threads` threads.
    fn run_turns(
        &self,
        keyspaces: &[Arc<KeyspaceState>],
        threads: usize,
        steps: usize,
        step: &(impl Fn(&dyn Engine, &Views, Seq) -> Result<bool> + Sync),
    ) -> PassOutcome {
        let (queue, signals) = (Mutex::new(TurnQueue::new(keyspaces.len())), &self.background.signals);
        let at_start = self.step_input();
        let run = || {
            let (_step, mut outcome) = (PoisonOnPanic(self), PassOutcome::default());
            while let Some(mut running) = begin_turn(signals, &queue) {
                let keyspace = &keyspaces[running.turn.keyspace];
                // The round may be long, so later turns see the views and commits of their time.
                let later = (!running.turn.is_first).then(|| self.step_input());
                let input = later.as_ref().unwrap_or(&at_start);
                let (turn, has_more) = self.engine_turn(keyspace, input, steps, step);
                outcome.merge(turn);
                running.has_more = has_more;
            }
            outcome
        };
        let outcomes = run_threads(threads.min(keyspaces.len()), run);
        outcomes.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(queue: &mut TurnQueue, signals: u64) -> Option<(usize, bool)> {
        match queue.begin(signals) {
            NextTurn::Begin(turn) => Some((turn.keyspace, turn.is_first)),
            _ => None,
        }
    }

    fn end(queue: &mut TurnQueue, keyspace: usize, is_first: bool, has_more: bool) -> bool {
        queue.end(Turn { keyspace, is_first }, has_more)
    }

    #[test]
    fn keyspaces_get_further_turns_while_a_first_turn_runs() {
        let mut queue = TurnQueue::new(3);
        assert_eq!([0; 3].map(|_| begin(&mut queue, 0)), [0, 1, 2].map(|index| Some((index, true))));
        assert!(!end(&mut queue, 1, true, true));
        assert!(!end(&mut queue, 2, true, false));
        assert_eq!(begin(&mut queue, 0), Some((1, false)), "it reported more");
        assert!(!end(&mut queue, 1, false, false));
        assert_eq!(queue.begin(0), NextTurn::Wait);
        assert_eq!(begin(&mut queue, 1), Some((2, false)), "a signal makes idle keyspaces due");
        assert_eq!(begin(&mut queue, 1), Some((1, false)));
        assert!(!end(&mut queue, 2, false, false));
        assert_eq!(queue.begin(1), NextTurn::Wait);
        queue.recheck();
        assert_eq!(begin(&mut queue, 1), Some((2, false)));
        assert!(end(&mut queue, 0, true, true), "the last first turn ends the round");
        assert_eq!(queue.begin(2), NextTurn::RoundIsOver);
    }

    #[test]
    fn a_single_thread_gives_each_keyspace_one_turn() {
        let mut queue = TurnQueue::new(2);
        for index in 0..2 {
            assert_eq!(begin(&mut queue, 0), Some((index, true)));
            end(&mut queue, index, true, true);
        }
        assert_eq!(queue.begin(0), NextTurn::RoundIsOver);
    }
}
