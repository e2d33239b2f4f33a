//! # Steps of the order model
//!
//! Applies each action to the disk, the process and the counts of commits that must survive.

use super::layout::{CommitFrame, CommitSeq, LiveSegment, LogSegment, ModelLog, OrderRoot, newest};
use super::recovery::{RecoveredCommits, recover};
use super::{
    CommitOrderModel, OrderAction, OrderCommit, OrderProcess, OrderRound, OrderServing, OrderSpent,
    OrderState, PendingFrame, RESERVED_SEQS,
};
use crate::ReopenMethod;
use crate::disk::{CrashKind, ModelPage, TornSectors};
use crate::explore::BrokenInvariant;

/// Returns a new database: both slots are valid, each log has one open segment, the process serves.
pub(super) fn created() -> OrderState {
    let live = |number| vec![LiveSegment { number, end: None }];
    let root = |generation| OrderRoot {
        generation,
        floor: 0,
        incarnation: 0,
        previous_seq: 0,
        start: 1,
        holes: Vec::new(),
        live: [live(1), live(2)],
        next_segment: 3,
    };
    let log = |number| ModelLog {
        segments: vec![LogSegment { number, incarnation: 0, sectors: Vec::new() }],
        at: 0,
        starts_sector: false,
    };
    OrderState {
        slots: [1, 2].map(|generation| {
            let mut slot = ModelPage::empty();
            slot.write(root(generation), true);
            slot.sync();
            slot
        }),
        logs: [log(1), log(2)],
        checkpoint: 0,
        process: OrderProcess::Serving(serving(root(2))),
        history: Vec::new(),
        durable_commits: 0,
        acknowledged_commits: 0,
        sync_failed: false,
        closed_clean: false,
        rotten: false,
        spent: OrderSpent::default(),
        broken_invariant: None,
    }
}

fn serving(root: OrderRoot) -> OrderServing {
    OrderServing {
        next: root.start,
        visible: root.floor,
        durable: root.floor,
        pending: Vec::new(),
        round: None,
        root,
        root_unsynced: false,
        closing: false,
    }
}

impl CommitOrderModel {
    pub(super) fn step(&self, state: &mut OrderState, action: OrderAction) {
        match action {
            OrderAction::PowerCut(way) => {
                state.spent.power_cuts += 1;
                state.apply_crash(CrashKind::PowerCut, way);
                state.acknowledged_commits = state.durable_commits;
                state.sync_failed = false;
                state.process = OrderProcess::Down;
            }
            OrderAction::Kill(way) => {
                state.spent.kills += 1;
                state.apply_crash(CrashKind::Kill, way);
                if state.sync_failed {
                    state.acknowledged_commits = state.acknowledged_commits.min(state.durable_commits);
                }
                state.process = OrderProcess::Down;
            }
            OrderAction::Rot(log, segment, sector) => {
                state.rotten = true;
                state.logs[log].segments[segment].sectors[sector].rot();
            }
            OrderAction::Open
            | OrderAction::FailOpen
            | OrderAction::ReadThrough(_)
            | OrderAction::Recover(_) => self.opening(state, action),
            OrderAction::SyncRecoveredLog(..) | OrderAction::WriteRecoveredRoot | OrderAction::Serve(_) => {
                self.reopening(state, action)
            }
            _ => {
                let OrderProcess::Serving(mut serving) = state.process.clone() else {
                    return;
                };
                let goes_on = self.serving(state, &mut serving, action);
                state.process = match goes_on {
                    ServingStatus::Continue => OrderProcess::Serving(serving),
                    ServingStatus::Poisoned => OrderProcess::Poisoned,
                    ServingStatus::Down => OrderProcess::Down,
                };
            }
        }
    }

    fn serving(
        &self,
        state: &mut OrderState,
        serving: &mut OrderServing,
        action: OrderAction,
    ) -> ServingStatus {
        match action {
            OrderAction::Begin(parts) => self.begin(state, serving, parts),
            OrderAction::Copy(at, log) => self.copy(state, serving, at, log),
            OrderAction::FailCopy(at) => return self.fail_copy(state, serving, at),
            OrderAction::Round => {
                let fresh = self.bounds.sector_frames > 1 && self.rules.fresh_sector_after_sync;
                state.logs.iter_mut().for_each(|log| log.starts_sector = fresh);
                let synced = if self.rules.a_round_syncs_all_logs { 0 } else { 2 };
                serving.round = Some(OrderRound { target: self.round_target(state, serving), synced });
            }
            OrderAction::Sync(log, ok) => return self.sync(state, serving, log, ok),
            OrderAction::WriteRoot => {
                state.spent.roots += 1;
                serving.root.generation += 1;
                let floor = if self.rules.floor_is_durable { serving.durable } else { serving.visible };
                serving.root.floor = floor;
                write_root(state, &serving.root);
                serving.root_unsynced = true;
            }
            OrderAction::SyncRoot(true) => {
                state.slots.iter_mut().for_each(ModelPage::sync);
                serving.root_unsynced = false;
                if serving.closing {
                    state.closed_clean = true;
                    return ServingStatus::Down;
                }
            }
            OrderAction::SyncRoot(false) => {
                return fail(state, |state| {
                    state.slots.iter_mut().for_each(ModelPage::fail_sync);
                });
            }
            OrderAction::Checkpoint => state.checkpoint = serving.durable,
            OrderAction::Close => self.close(state, serving),
            _ => {}
        }
        ServingStatus::Continue
    }

    fn begin(&self, state: &mut OrderState, serving: &mut OrderServing, parts: u8) {
        let id = state.spent.commits;
        state.spent.commits += 1;
        let commit = OrderCommit { seq: serving.next, parts, id };
        serving.next += 1;
        state.history.push(commit);
        let places = [0, 1].map(|log: usize| {
            let takes_part = parts & (1 << log) != 0;
            let log = &mut state.logs[log];
            takes_part.then(|| log.reserve(self.bounds.sector_frames)).flatten()
        });
        serving.pending.push(PendingFrame { commit, durable: serving.durable, places });
        if self.rules.copy_under_lock
            && self.bounds.window == 1
            && let Some(log) = places.iter().position(Option::is_some)
        {
            self.copy(state, serving, serving.pending.len() - 1, log);
        }
    }

    fn copy(&self, state: &mut OrderState, serving: &mut OrderServing, at: usize, log: usize) {
        let pending = &mut serving.pending[at];
        let Some(place) = pending.places[log].take() else {
            return;
        };
        let OrderCommit { seq, parts, id } = pending.commit;
        let frame = CommitFrame { segment: 0, incarnation: 0, seq, parts, id, durable: pending.durable };
        state.logs[log].copy(place, frame, self.bounds.tears);
        if pending.places.iter().all(Option::is_none) {
            serving.pending.remove(at);
            let first_pending = serving.pending.iter().map(|pending| pending.commit.seq).min();
            serving.visible = match self.bounds.window {
                1 => serving.visible.max(seq),
                _ => self.last_below(state, first_pending.unwrap_or(serving.next)),
            };
            state.acknowledged_commits = state.commits_up_to(serving.visible);
        }
    }

    /// Returns S of a round that starts now: `visible` under the lock, otherwise the last reserved
    /// seq.
    pub(super) fn round_target(&self, state: &OrderState, serving: &OrderServing) -> CommitSeq {
        if self.bounds.window == 1 { serving.visible } else { self.last_below(state, serving.next) }
    }

    /// Returns the seq of the last commit below `seq`.
    fn last_below(&self, state: &OrderState, seq: CommitSeq) -> CommitSeq {
        if !self.rules.marks_are_seqs_of_commits {
            return seq - 1;
        }
        state.history.iter().map(|commit| commit.seq).filter(|&held| held < seq).max().unwrap_or(0)
    }

    /// Fails a commit: its remaining parts are never copied.
    fn fail_copy(&self, state: &mut OrderState, serving: &mut OrderServing, at: usize) -> ServingStatus {
        if self.rules.failure_after_seq_poisons {
            return ServingStatus::Poisoned;
        }
        let lost = serving.pending.remove(at);
        state.history.retain(|commit| commit.id != lost.commit.id);
        ServingStatus::Continue
    }

    fn sync(
        &self,
        state: &mut OrderState,
        serving: &mut OrderServing,
        log: usize,
        ok: bool,
    ) -> ServingStatus {
        state.logs[log].sync(ok);
        if !ok && self.rules.failed_sync_poisons {
            return fail(state, |_| {});
        }
        if !ok {
            state.spent.failures += 1;
        }
        let Some(mut round) = serving.round else {
            return ServingStatus::Continue;
        };
        round.synced |= 1 << log;
        serving.round = Some(round);
        if round.synced == 3 {
            serving.round = None;
            let now = serving.visible;
            let before = self.rules.s_is_taken_before_the_syncs;
            serving.durable = if before { round.target } else { now };
            state.durable_commits = state.commits_up_to(serving.durable);
        }
        ServingStatus::Continue
    }

    fn close(&self, state: &mut OrderState, serving: &mut OrderServing) {
        state.spent.closes += 1;
        serving.closing = true;
        if self.rules.clean_close_is_recorded {
            serving.root.generation += 1;
            serving.root.floor = serving.durable;
            for (live, log) in serving.root.live.iter_mut().zip(&state.logs) {
                let frames = log.segments.last().map_or(0, |open| {
                    open.sectors.iter().filter_map(ModelPage::read).flatten().map(|_| 1).sum()
                });
                if let Some(open) = live.last_mut() {
                    open.end = Some(frames);
                }
            }
            write_root(state, &serving.root);
        }
    }

    fn opening(&self, state: &mut OrderState, action: OrderAction) {
        match action {
            OrderAction::Open if self.rules.reopen == ReopenMethod::ReadThrough => {
                // Sync ROOT and the logs first. Only then does a clean page agree with the platter,
                // unless an earlier sync of it failed. A killed process may leave dirty pages. The
                // model does not rely on the moment at which the kernel writes them.
                state.slots.iter_mut().for_each(ModelPage::sync);
                state.logs.iter_mut().for_each(|log| log.sync(true));
                state.process = OrderProcess::Flushed;
            }
            OrderAction::Open => {
                if let Some(slot) = newest(&state.slots)
                    && self.rules.root_is_synced
                {
                    state.slots[slot].rewrite(self.bounds.tears);
                }
                state.process = OrderProcess::SyncingRoot;
            }
            OrderAction::FailOpen => {
                state.slots.iter_mut().for_each(ModelPage::fail_sync);
                state.logs.iter_mut().for_each(|log| log.sync(false));
                fail(state, |_| {});
                state.process = OrderProcess::Poisoned;
            }
            OrderAction::ReadThrough(way) => {
                state.apply_crash(CrashKind::ReadThrough, way);
                self.read(state);
            }
            OrderAction::Recover(false) => {
                fail(state, |state| state.slots.iter_mut().for_each(ModelPage::fail_sync));
                state.process = OrderProcess::Poisoned;
            }
            _ => {
                if self.rules.root_is_synced {
                    state.slots.iter_mut().for_each(ModelPage::sync);
                }
                self.read(state);
            }
        }
    }

    /// Reads ROOT and the tails, compares the result with the commits that must survive, and writes
    /// the accepted frames again.
    fn read(&self, state: &mut OrderState) {
        let Some(root) = newest(&state.slots).and_then(|slot| state.slots[slot].read().cloned()) else {
            state.broken_invariant = Some(BrokenInvariant::Durable);
            return;
        };
        let found = recover(&root, &state.logs, state.checkpoint, &self.rules);
        if found.is_damaged {
            state.broken_invariant = (!state.rotten).then_some(BrokenInvariant::FalseDamage);
            state.process = OrderProcess::Damaged;
            return;
        }
        state.broken_invariant = check_recovery(state, &found);
        if self.rules.tail_is_synced && self.rules.reopen == ReopenMethod::Rewrite {
            rewrite_tail(state, &root, &found, self.bounds.tears);
        }
        let dirty =
            |log: &ModelLog| log.segments.iter().flat_map(|held| &held.sectors).any(ModelPage::is_dirty);
        let clean = |log: usize| u8::from(!dirty(&state.logs[log])) << log;
        // A clean log needs no sync. This saves a step and reaches the same states.
        state.process = OrderProcess::Rewritten { found, synced: clean(0) | clean(1) };
    }

    fn reopening(&self, state: &mut OrderState, action: OrderAction) {
        let process = state.process.clone();
        match (action, process) {
            (OrderAction::SyncRecoveredLog(log, ok), OrderProcess::Rewritten { found, synced }) => {
                state.logs[log].sync(ok);
                state.process = OrderProcess::Rewritten { found, synced: synced | 1 << log };
                if !ok {
                    fail(state, |_| {});
                    state.process = OrderProcess::Poisoned;
                }
            }
            (OrderAction::WriteRecoveredRoot, OrderProcess::Rewritten { found, .. }) => {
                let Some(slot) = newest(&state.slots) else {
                    return;
                };
                let Some(old) = state.slots[slot].read().cloned() else {
                    return;
                };
                let root = self.next_root(&old, &found);
                write_root(state, &root);
                state.process = OrderProcess::RootWritten { root, found };
            }
            (OrderAction::Serve(true), OrderProcess::RootWritten { root, found }) => {
                state.slots.iter_mut().for_each(ModelPage::sync);
                self.serve(state, root, &found);
            }
            (OrderAction::Serve(false), _) => {
                fail(state, |state| state.slots.iter_mut().for_each(ModelPage::fail_sync));
                state.process = OrderProcess::Poisoned;
            }
            _ => {}
        }
    }

    /// Returns the ROOT of the next incarnation.
    fn next_root(&self, old: &OrderRoot, found: &RecoveredCommits) -> OrderRoot {
        let rules = &self.rules;
        let mut root = old.clone();
        root.generation += 1;
        root.floor = found.cut;
        root.previous_seq = found.cut;
        root.start = found.cut + 1;
        if rules.numbers_start_above_the_bound {
            root.start = old.start + RESERVED_SEQS;
            root.holes.push((found.cut, root.start));
        }
        if rules.fresh_segments {
            root.incarnation += 1;
            for (live, ends) in root.live.iter_mut().zip(&found.ends) {
                if rules.old_segments_are_sealed {
                    live.iter_mut().zip(ends).for_each(|(live, &end)| live.end = Some(end));
                    live.retain(|live| live.end != Some(0));
                }
                live.push(LiveSegment { number: root.next_segment, end: None });
                root.next_segment += 1;
            }
        }
        root
    }

    fn serve(&self, state: &mut OrderState, root: OrderRoot, found: &RecoveredCommits) {
        for (log, live) in state.logs.iter_mut().zip(&root.live) {
            if self.rules.fresh_segments {
                let number = live.last().map_or(0, |live| live.number);
                let incarnation = root.incarnation;
                // Remove segments that ROOT no longer lists from the model.
                log.segments.retain(|held| live.iter().any(|live| live.number == held.number));
                log.segments.push(LogSegment { number, incarnation, sectors: Vec::new() });
                log.at = 0;
                log.starts_sector = false;
            }
        }
        if !self.rules.fresh_segments {
            for (log, ends) in state.logs.iter_mut().zip(&found.ends) {
                log.at = ends.last().map_or(0, |&end| usize::from(end));
            }
        }
        state.history.truncate(found.commits.len());
        state.acknowledged_commits = state.history.len();
        state.durable_commits = state.history.len();
        state.closed_clean = false;
        state.sync_failed = false;
        let mut serving = serving(root);
        serving.next = serving.next.max(found.cut + 1);
        state.process = OrderProcess::Serving(serving);
    }
}

/// State of a process after a step of serving.
enum ServingStatus {
    Continue,
    Poisoned,
    Down,
}

fn fail(state: &mut OrderState, what: impl Fn(&mut OrderState)) -> ServingStatus {
    state.spent.failures += 1;
    state.sync_failed = true;
    what(state);
    ServingStatus::Poisoned
}

/// Writes ROOT to the older slot. ROOT spans several sectors: a power cut during the write may
/// leave a mix that no checksum accepts.
fn write_root(state: &mut OrderState, root: &OrderRoot) {
    let slot = newest(&state.slots).map_or(0, |newest| 1 - newest);
    state.slots[slot].write(root.clone(), true);
}

/// Makes the accepted frames above F dirty again, since they may exist only in the page cache.
fn rewrite_tail(state: &mut OrderState, root: &OrderRoot, found: &RecoveredCommits, tears: TornSectors) {
    for ((log, live), ends) in state.logs.iter_mut().zip(&root.live).zip(&found.ends) {
        for (live, &end) in live.iter().zip(ends).filter(|(live, _)| live.end.is_none()) {
            let open = log.segments.iter_mut().find(|held| held.number == live.number);
            let sectors = open.into_iter().flat_map(|open| &mut open.sectors);
            let mut frames = 0;
            for sector in sectors {
                let Some(held) = sector.read() else { break };
                frames += held.len();
                if frames > usize::from(end) {
                    break;
                }
                if held.iter().any(|frame| frame.seq > root.floor) {
                    sector.rewrite(tears);
                }
            }
        }
    }
}

/// Compares the result of recovery with the commits that must survive.
fn check_recovery(state: &OrderState, found: &RecoveredCommits) -> Option<BrokenInvariant> {
    let owes_engine = state.commits_up_to(state.checkpoint) > found.commits.len();
    let expected = |&(seq, parts, id): &(CommitSeq, u8, u8), commit: &OrderCommit| {
        (seq, parts, id) == (commit.seq, commit.parts, commit.id)
    };
    let mut pairs = found.commits.iter().zip(&state.history);
    if found.repeated {
        return Some(BrokenInvariant::DuplicateSeq);
    }
    if let Some((seen, commit)) = pairs.find(|(seen, commit)| !expected(seen, commit)) {
        let in_part = (seen.0, seen.2) == (commit.seq, commit.id);
        return Some(if in_part { BrokenInvariant::Atomic } else { BrokenInvariant::Prefix });
    }
    if found.commits.len() > state.history.len() || owes_engine {
        return Some(BrokenInvariant::Prefix);
    }
    if found.commits.len() >= state.acknowledged_commits {
        return None;
    }
    if !state.rotten {
        return Some(BrokenInvariant::Durable);
    }
    // Rot may pass without a report only if nothing on the disk proves that the lost commit was
    // durable.
    let lost = state.history.get(found.commits.len()).map(|commit| commit.seq);
    let said = lost.is_some_and(|seq| seq <= durable_evidence(state));
    (state.closed_clean || said).then_some(BrokenInvariant::SilentRot)
}

/// Returns the highest W recorded on the disk: F in a ROOT slot, or W in any frame.
fn durable_evidence(state: &OrderState) -> CommitSeq {
    let segments = state.logs.iter().flat_map(|log| &log.segments);
    let frames = segments.flat_map(|held| &held.sectors).filter_map(ModelPage::read).flatten();
    let floors = state.slots.iter().filter_map(ModelPage::read).map(|root| root.floor);
    frames.map(|frame| frame.durable).chain(floors).max().unwrap_or(0)
}
