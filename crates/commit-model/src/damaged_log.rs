//! # Recovery with a damaged log: the commits of the other log
//!
//! Commits have parts in one or both logs. A crash keeps the page cache or cuts the power. After it
//! one log may be damaged, and recovery knows it: no frame of this log is read. Recovery serves the
//! other log and reports the damage.
//!
//! ## Picture
//! ```text
//!   order        1      2      3      4
//!   journal      part   .      .      part      frames, in order
//!   value log    part   all    all    part      damaged: 2 and 3 are known from the gap
//!   recovery     1 and 4 count in the journal; keyspaces of the value log are closed
//! ```
//!
//! ## Invariants
//! - I1: without a damaged log, recovery finds a commit completely or not at all.
//! - I2: each log that is served has the frames of a prefix of the commit order.
//! - I3: the log that is served has all its frames of durable commits, and after a kill all frames.

use crate::ProtocolRules;
use crate::disk::{self, CrashKind, CrashOutcomes, ModelPage};
use crate::explore::{BrokenInvariant, CheckedState, no_broken_invariant};
use stateright::{Model, Property};

/// Number of logs.
const LOGS: usize = 2;

/// Part of a commit in one log.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
struct PartFrame {
    seq: usize,
    /// Logs with parts of the commit, a bit for each.
    logs: u8,
    /// W when the frame was written.
    durable: usize,
}

/// Model of recoveries with a damaged log.
#[derive(Clone, Debug)]
pub struct DamagedLogModel {
    /// Active rules.
    pub rules: ProtocolRules,
    /// Most commits.
    pub commits: usize,
}

/// Disk and process.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct DamagedLogState {
    logs: [Vec<ModelPage<PartFrame>>; LOGS],
    /// Logs of each commit, in order.
    commits: Vec<u8>,
    durable: usize,
    is_down: bool,
    broken_invariant: Option<BrokenInvariant>,
}

/// Steps of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DamagedLogAction {
    /// Appends a commit with parts in these logs.
    Commit(u8),
    /// Runs a sync round.
    Sync,
    /// Crashes, damages a log if one is given, then recovers. The number selects the content of the
    /// platter.
    Crash(CrashKind, Option<usize>, usize),
}

impl DamagedLogState {
    fn pages(&self) -> impl Iterator<Item = &dyn CrashOutcomes> {
        self.logs.iter().flatten().map(|page| -> &dyn CrashOutcomes { page })
    }

    fn pages_mut(&mut self) -> impl Iterator<Item = &mut dyn CrashOutcomes> {
        self.logs.iter_mut().flatten().map(|page| -> &mut dyn CrashOutcomes { page })
    }

    /// Returns the seqs of the first `count` commits with a part in `log`.
    fn history(&self, log: usize, count: usize) -> Vec<usize> {
        let seqs = (1..).zip(&self.commits[..count]);
        seqs.filter(|(_, logs)| *logs & 1 << log != 0).map(|(seq, _)| seq).collect()
    }
}

impl CheckedState for DamagedLogState {
    fn broken_invariant(&self) -> Option<BrokenInvariant> {
        self.broken_invariant
    }
}

impl Model for DamagedLogModel {
    type State = DamagedLogState;
    type Action = DamagedLogAction;

    fn init_states(&self) -> Vec<DamagedLogState> {
        vec![DamagedLogState {
            logs: [Vec::new(), Vec::new()],
            commits: Vec::new(),
            durable: 0,
            is_down: false,
            broken_invariant: None,
        }]
    }

    fn actions(&self, state: &DamagedLogState, actions: &mut Vec<DamagedLogAction>) {
        if state.is_down {
            return;
        }
        for damaged in [None, Some(0), Some(1)] {
            for crash in [CrashKind::Kill, CrashKind::PowerCut] {
                let ways = disk::outcome_count(state.pages(), crash);
                actions.extend((0..ways).map(|way| DamagedLogAction::Crash(crash, damaged, way)));
            }
        }
        if state.commits.len() < self.commits {
            actions.extend((1..1 << LOGS).map(DamagedLogAction::Commit));
        }
        if state.durable < state.commits.len() {
            actions.push(DamagedLogAction::Sync);
        }
    }

    fn next_state(&self, state: &DamagedLogState, action: DamagedLogAction) -> Option<DamagedLogState> {
        let mut next = state.clone();
        self.step(&mut next, action);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        no_broken_invariant()
    }
}

impl DamagedLogModel {
    fn step(&self, state: &mut DamagedLogState, action: DamagedLogAction) {
        match action {
            DamagedLogAction::Commit(logs) => {
                state.commits.push(logs);
                let part = PartFrame { seq: state.commits.len(), logs, durable: state.durable };
                for (log, pages) in state.logs.iter_mut().enumerate() {
                    if logs & 1 << log != 0 {
                        let mut page = ModelPage::empty();
                        page.write(part, true);
                        pages.push(page);
                    }
                }
            }
            DamagedLogAction::Sync => {
                state.logs.iter_mut().flatten().for_each(ModelPage::sync);
                state.durable = state.commits.len();
            }
            DamagedLogAction::Crash(crash, damaged, way) => {
                disk::apply_crash(state.pages_mut(), crash, way);
                state.is_down = true;
                let promised = match crash {
                    CrashKind::PowerCut => state.durable,
                    CrashKind::Kill | CrashKind::ReadThrough => state.commits.len(),
                };
                state.broken_invariant = self.recover(state, damaged, promised);
            }
        }
    }

    /// Recovers and checks the result. Commits up to `promised` must not be lost.
    fn recover(
        &self,
        state: &DamagedLogState,
        damaged: Option<usize>,
        promised: usize,
    ) -> Option<BrokenInvariant> {
        let scan = |log: usize| -> Vec<PartFrame> {
            let pages = if damaged == Some(log) { &[][..] } else { &state.logs[log][..] };
            pages.iter().map_while(|page| page.read().copied()).collect()
        };
        let scans = [scan(0), scan(1)];
        let parts = |seq: usize| {
            let found = |log: &usize| scans[*log].iter().any(|frame| frame.seq == seq);
            (0..LOGS).filter(found).fold(0, |found, log| found | 1 << log)
        };
        let frames = || scans.iter().flatten();
        let is_whole = |seq: usize| {
            let logs = frames().find(|frame| frame.seq == seq).map(|frame| frame.logs);
            logs.is_some_and(|logs| logs == parts(seq))
        };
        let follow = |cut: usize| (cut + 1..).take_while(|seq| is_whole(*seq)).last().unwrap_or(cut);
        let known = frames().map(|frame| frame.durable).max().unwrap_or(0);
        let mut cut = follow(0);
        if cut < known {
            if damaged.is_none() {
                return Some(BrokenInvariant::FalseDamage);
            }
            cut = follow(known);
        }
        let explains_gaps = match damaged {
            Some(_) => self.rules.all_commits_beside_a_damaged_log_count,
            None => !self.rules.gaps_end_the_order_of_whole_logs,
        };
        if explains_gaps {
            cut = frames().map(|frame| frame.seq).max().unwrap_or(0).max(cut);
        }
        let mut served = (0..LOGS).filter(|log| damaged != Some(*log));
        served.find_map(|log| {
            let seqs = scans[log].iter().map(|frame| frame.seq);
            let counted: Vec<usize> = seqs.filter(|seq| *seq <= cut).collect();
            let is_prefix = counted == state.history(log, cut.min(state.commits.len()));
            let is_split = counted.iter().any(|seq| damaged.is_none() && !is_whole(*seq));
            if counted.len() < state.history(log, promised).len() {
                return Some(BrokenInvariant::Durable);
            }
            if is_split {
                return Some(BrokenInvariant::Atomic);
            }
            (!is_prefix).then_some(BrokenInvariant::Prefix)
        })
    }
}
