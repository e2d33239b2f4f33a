//! # Blobs: staged without a seq, named by a frame
//!
//! Each commit stages a payload into a freed slot that still has an older, valid record. Then it
//! writes a frame that names the payload. A round syncs payloads and log in either order; W moves
//! when both are synced. A power cut keeps any subset of the unsynced pages.
//!
//! A kill keeps the page cache. Recovery accepts the frames and payloads that it reads, makes them
//! durable, raises F and serves. Then the power may fail.
//!
//! ## Invariants
//! - I3: commits up to W survive with their payloads.
//! - I6: a recovered payload is the one that was committed.
//! - I8: a payload that never reached the disk is not reported as damage.

use crate::ProtocolRules;
use crate::disk::{self, CrashKind, CrashOutcomes, ModelPage, TornSectors};
use crate::explore::{BrokenInvariant, CheckedState, no_broken_invariant};
use stateright::{Model, Property};

/// Model of blobs.
#[derive(Clone, Debug)]
pub struct BlobModel {
    /// Active rules.
    pub rules: ProtocolRules,
    /// Commits, each with a payload.
    pub commits: usize,
}

/// Commit that wrote the record in a slot; `None` is the older record. The record's own checksum is
/// always valid.
type SlotRecord = Option<usize>;

/// Commit of a frame, and the W that the frame contains.
type BlobFrame = (usize, usize);

/// Slots, log and process.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct BlobState {
    payloads: Vec<ModelPage<SlotRecord>>,
    log: Vec<ModelPage<BlobFrame>>,
    staged: usize,
    /// Sync round in progress: its target, and whether payloads and log are synced.
    round: Option<(usize, bool, bool)>,
    durable: usize,
    /// F as raised by a recovery.
    floor: usize,
    process: BlobProcess,
    broken_invariant: Option<BrokenInvariant>,
}

/// State of the process.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum BlobProcess {
    Up,
    Poisoned,
    /// Killed: the page cache survived.
    Killed,
    /// Recovered after a kill, and serving.
    Reopened,
    /// Stopped by a power cut.
    PowerCut,
    /// Recovered after a power cut, which ends a run.
    Finished,
}

/// Steps of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlobAction {
    /// Stages the next payload.
    Stage,
    /// Assigns a seq to the next commit with a staged payload, and logs it.
    Commit,
    /// Starts a round.
    Round,
    /// Syncs the payloads for the round.
    SyncPayloads,
    /// Fails the sync of the payloads.
    FailPayloads,
    /// Syncs the log for the round.
    SyncLog,
    /// Kills the process. The number selects the clean pages that the kernel drops.
    Kill(usize),
    /// Cuts the power. The number selects the content of the platter.
    PowerCut(usize),
    /// Recovers.
    Recover,
}

impl CheckedState for BlobState {
    fn broken_invariant(&self) -> Option<BrokenInvariant> {
        self.broken_invariant
    }
}

impl Model for BlobModel {
    type State = BlobState;
    type Action = BlobAction;

    fn init_states(&self) -> Vec<BlobState> {
        let mut slot = ModelPage::empty();
        slot.write(None, false);
        slot.sync();
        vec![BlobState {
            payloads: vec![slot; self.commits],
            log: Vec::new(),
            staged: 0,
            round: None,
            durable: 0,
            floor: 0,
            process: BlobProcess::Up,
            broken_invariant: None,
        }]
    }

    fn actions(&self, state: &BlobState, actions: &mut Vec<BlobAction>) {
        if state.broken_invariant.is_some() || state.process == BlobProcess::Finished {
            return;
        }
        if let BlobProcess::Killed | BlobProcess::PowerCut = state.process {
            actions.push(BlobAction::Recover);
        }
        if state.process != BlobProcess::PowerCut {
            actions.extend((0..state.crash_outcome_count(CrashKind::PowerCut)).map(BlobAction::PowerCut));
        }
        if let BlobProcess::Up | BlobProcess::Poisoned = state.process {
            actions.extend((0..state.crash_outcome_count(CrashKind::Kill)).map(BlobAction::Kill));
        }
        if state.process != BlobProcess::Up {
            return;
        }
        if state.staged < self.commits {
            actions.push(BlobAction::Stage);
        }
        if state.log.len() < state.staged {
            actions.push(BlobAction::Commit);
        }
        match state.round {
            None if state.durable < state.log.len() => actions.push(BlobAction::Round),
            None => {}
            Some((_, payloads, log)) => {
                if !payloads {
                    actions.extend([BlobAction::SyncPayloads, BlobAction::FailPayloads]);
                }
                actions.extend((!log).then_some(BlobAction::SyncLog));
            }
        }
    }

    fn next_state(&self, state: &BlobState, action: BlobAction) -> Option<BlobState> {
        let mut next = state.clone();
        self.step(&mut next, action);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        no_broken_invariant()
    }
}

impl BlobModel {
    fn step(&self, state: &mut BlobState, action: BlobAction) {
        match action {
            BlobAction::Stage => {
                state.payloads[state.staged].write(Some(state.staged), true);
                state.staged += 1;
            }
            BlobAction::Commit => {
                let mut page = ModelPage::empty();
                page.write((state.log.len(), state.durable), true);
                state.log.push(page);
            }
            BlobAction::Round => {
                state.round = Some((state.log.len(), !self.rules.payload_before_w, false));
            }
            BlobAction::SyncPayloads => {
                state.payloads.iter_mut().for_each(ModelPage::sync);
                state.round = state.round.map(|(target, _, log)| (target, true, log));
            }
            BlobAction::SyncLog => {
                state.log.iter_mut().for_each(ModelPage::sync);
                state.round = state.round.map(|(target, payloads, _)| (target, payloads, true));
            }
            BlobAction::FailPayloads => {
                state.payloads.iter_mut().for_each(ModelPage::fail_sync);
                state.process = BlobProcess::Poisoned;
            }
            BlobAction::Kill(way) => {
                state.apply_crash(CrashKind::Kill, way);
                state.process = BlobProcess::Killed;
            }
            BlobAction::PowerCut(way) => {
                state.apply_crash(CrashKind::PowerCut, way);
                state.process = BlobProcess::PowerCut;
            }
            BlobAction::Recover => self.recover(state),
        }
        if let Some((target, true, true)) = state.round {
            state.durable = target;
            state.round = None;
        }
    }

    fn recover(&self, state: &mut BlobState) {
        let known = state.log.iter().filter_map(ModelPage::read).map(|frame| frame.1).max();
        let mut cut = 0;
        for (slot, page) in state.payloads.iter().zip(&state.log) {
            let (Some(&(id, _)), Some(&record)) = (page.read(), slot.read()) else {
                break;
            };
            if record != Some(id) {
                if self.rules.frame_names_payload {
                    break;
                }
                state.broken_invariant = Some(BrokenInvariant::Index);
            }
            cut += 1;
        }
        if cut < known.unwrap_or(0) {
            state.broken_invariant = Some(BrokenInvariant::FalseDamage);
        }
        if cut < state.durable.max(state.floor) {
            state.broken_invariant = Some(BrokenInvariant::Durable);
        }
        if state.process == BlobProcess::PowerCut {
            state.process = BlobProcess::Finished;
            return;
        }
        rewrite_and_sync(&mut state.log[..cut]);
        if self.rules.recovery_syncs_payloads {
            rewrite_and_sync(&mut state.payloads[..cut]);
        }
        state.floor = cut;
        state.round = None;
        state.process = BlobProcess::Reopened;
    }
}

/// Writes the same bytes again and syncs them.
fn rewrite_and_sync<T: Clone + Ord>(pages: &mut [ModelPage<T>]) {
    pages.iter_mut().for_each(|page| {
        page.rewrite(TornSectors::OldOrNewBytes);
        page.sync();
    });
}

impl BlobState {
    fn crash_outcome_count(&self, crash: CrashKind) -> usize {
        let payloads = self.payloads.iter().map(|page| -> &dyn CrashOutcomes { page });
        let log = self.log.iter().map(|page| -> &dyn CrashOutcomes { page });
        disk::outcome_count(payloads.chain(log), crash)
    }

    fn apply_crash(&mut self, crash: CrashKind, way: usize) {
        let payloads = self.payloads.iter_mut().map(|page| -> &mut dyn CrashOutcomes { page });
        let log = self.log.iter_mut().map(|page| -> &mut dyn CrashOutcomes { page });
        disk::apply_crash(payloads.chain(log), crash, way);
    }
}
