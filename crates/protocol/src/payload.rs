//! # Large payloads: staged without a number, named by the frame
//!
//! Each commit stages a payload into a slot of its own that holds an older, valid record (the slot
//! was freed and is used again), then writes a frame that names it. A round syncs payloads and log
//! in either order; W moves when both are done. A power cut keeps any subset. After a kill the page
//! cache is there: recovery counts what it sees, settles it, raises F and serves; then the power goes.
//!
//! ## Checked
//! I3: what W covered is there, payload included. I6: a recovered payload is the one that was
//! committed. I8: a payload that never got to the disk is not called damage.

use crate::Rules;
use crate::disk::{self, Crash, Fate, Page, Tears};
use crate::explore::{Broken, Verdict, nothing_is_broken};
use stateright::{Model, Property};

/// The model.
#[derive(Clone, Debug)]
pub struct Payload {
    /// Which rules hold.
    pub rules: Rules,
    /// Commits, each with a payload.
    pub commits: usize,
}

/// A record in a slot: whose it is. Its own checksum is good; nobody is the older one.
type Record = Option<usize>;

/// A frame and the W that it carries.
type Frame = (usize, usize);

/// Slots, log, process.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct State {
    payloads: Vec<Page<Record>>,
    log: Vec<Page<Frame>>,
    staged: usize,
    /// What the round under way covers, and what of it is synced (payloads, log).
    round: Option<(usize, bool, bool)>,
    durable: usize,
    /// What a recovery has raised F to.
    floor: usize,
    process: Process,
    broken: Option<Broken>,
}

/// Where the process is.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum Process {
    Up,
    Poisoned,
    /// Killed: the page cache is there.
    Killed,
    /// Recovered after a kill, and serving.
    Reopened,
    /// Cut off.
    Cut,
    /// Recovered after a power cut: nothing more to see.
    Over,
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The next payload is staged.
    Stage,
    /// The next commit, its payload staged, is numbered and logged.
    Commit,
    /// A round starts.
    Round,
    /// It syncs the payloads.
    SyncPayloads,
    /// Which fails.
    FailPayloads,
    /// It syncs the log.
    SyncLog,
    /// The process is killed.
    Kill(usize),
    /// The power goes.
    PowerCut(usize),
    /// Recovery.
    Recover,
}

impl Verdict for State {
    fn broken(&self) -> Option<Broken> {
        self.broken
    }
}

impl Model for Payload {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut slot = Page::empty();
        slot.write(None, false);
        slot.sync();
        vec![State {
            payloads: vec![slot; self.commits],
            log: Vec::new(),
            staged: 0,
            round: None,
            durable: 0,
            floor: 0,
            process: Process::Up,
            broken: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() || state.process == Process::Over {
            return;
        }
        if let Process::Killed | Process::Cut = state.process {
            actions.push(Action::Recover);
        }
        if state.process != Process::Cut {
            actions.extend((0..state.ways(Crash::PowerCut)).map(Action::PowerCut));
        }
        if let Process::Up | Process::Poisoned = state.process {
            actions.extend((0..state.ways(Crash::Kill)).map(Action::Kill));
        }
        if state.process != Process::Up {
            return;
        }
        if state.staged < self.commits {
            actions.push(Action::Stage);
        }
        if state.log.len() < state.staged {
            actions.push(Action::Commit);
        }
        match state.round {
            None if state.durable < state.log.len() => actions.push(Action::Round),
            None => {}
            Some((_, payloads, log)) => {
                if !payloads {
                    actions.extend([Action::SyncPayloads, Action::FailPayloads]);
                }
                actions.extend((!log).then_some(Action::SyncLog));
            }
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        self.step(&mut next, action);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        nothing_is_broken()
    }
}

impl Payload {
    fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::Stage => {
                state.payloads[state.staged].write(Some(state.staged), true);
                state.staged += 1;
            }
            Action::Commit => {
                let mut page = Page::empty();
                page.write((state.log.len(), state.durable), true);
                state.log.push(page);
            }
            Action::Round => {
                state.round = Some((state.log.len(), !self.rules.payload_before_w, false));
            }
            Action::SyncPayloads => {
                state.payloads.iter_mut().for_each(Page::sync);
                state.round = state.round.map(|(target, _, log)| (target, true, log));
            }
            Action::SyncLog => {
                state.log.iter_mut().for_each(Page::sync);
                state.round = state.round.map(|(target, payloads, _)| (target, payloads, true));
            }
            Action::FailPayloads => {
                state.payloads.iter_mut().for_each(Page::fail_sync);
                state.process = Process::Poisoned;
            }
            Action::Kill(way) => {
                state.suffer(Crash::Kill, way);
                state.process = Process::Killed;
            }
            Action::PowerCut(way) => {
                state.suffer(Crash::PowerCut, way);
                state.process = Process::Cut;
            }
            Action::Recover => self.recover(state),
        }
        if let Some((target, true, true)) = state.round {
            state.durable = target;
            state.round = None;
        }
    }

    fn recover(&self, state: &mut State) {
        let known = state.log.iter().filter_map(Page::read).map(|frame| frame.1).max();
        let mut cut = 0;
        for (slot, page) in state.payloads.iter().zip(&state.log) {
            let (Some(&(id, _)), Some(&record)) = (page.read(), slot.read()) else {
                break;
            };
            if record != Some(id) {
                if self.rules.frame_names_payload {
                    break;
                }
                state.broken = Some(Broken::Index);
            }
            cut += 1;
        }
        if cut < known.unwrap_or(0) {
            state.broken = Some(Broken::FalseDamage);
        }
        if cut < state.durable.max(state.floor) {
            state.broken = Some(Broken::Durable);
        }
        if state.process == Process::Cut {
            state.process = Process::Over;
            return;
        }
        settle(&mut state.log[..cut]);
        if self.rules.recovery_settles_payloads {
            settle(&mut state.payloads[..cut]);
        }
        state.floor = cut;
        state.round = None;
        state.process = Process::Reopened;
    }
}

/// Writes the same bytes again, and syncs.
fn settle<T: Clone + Ord>(pages: &mut [Page<T>]) {
    pages.iter_mut().for_each(|page| {
        page.rewrite(Tears::Mix);
        page.sync();
    });
}

impl State {
    fn ways(&self, crash: Crash) -> usize {
        let payloads = self.payloads.iter().map(|page| -> &dyn Fate { page });
        let log = self.log.iter().map(|page| -> &dyn Fate { page });
        disk::ways(payloads.chain(log), crash)
    }

    fn suffer(&mut self, crash: Crash, way: usize) {
        let payloads = self.payloads.iter_mut().map(|page| -> &mut dyn Fate { page });
        let log = self.log.iter_mut().map(|page| -> &mut dyn Fate { page });
        disk::suffer(payloads.chain(log), crash, way);
    }
}
