//! # Steps of the window
//!
//! Lists the possible steps and applies them. A thread is deadlocked under three conditions: it has
//! begun an operation, no step of [`WindowModel::enabled_actions`] is possible, and it does not
//! wait for the descheduled thread.

use super::recovery::check_recovery;
use super::{
    WindowAction, WindowCommit, WindowFrame, WindowModel, WindowPhase, WindowPlace, WindowRound,
    WindowSegment, WindowSeq, WindowState, seq,
};
use crate::disk::{self, ModelPage, TornSectors};
use stateright::Model;

impl WindowModel {
    /// Adds the steps that begin an operation, and those of the environment. No thread waits for
    /// them.
    pub(super) fn starting_actions(&self, state: &WindowState, actions: &mut Vec<WindowAction>) {
        let bounds = &self.bounds;
        let refuses = self.rules.failures_stop_visible && state.is_poisoned();
        if state.commits.len() < bounds.commits && !refuses {
            actions.extend(bounds.parts.iter().map(|&parts| WindowAction::Reserve(parts)));
        }
        let panicked = state.commits.iter().filter(|commit| commit.phase == WindowPhase::Panicked).count();
        for (index, commit) in state.commits.iter().enumerate() {
            let works = commit.phase == WindowPhase::Working && state.descheduled != Some(index);
            if works && panicked < usize::from(bounds.panics) {
                actions.push(WindowAction::Panic(index));
            }
            if works && bounds.has_descheduled_thread && state.descheduled.is_none() {
                actions.push(WindowAction::Deschedule(index));
            }
            if state.reads < bounds.reads && state.reader.is_none() && commit.is_applied {
                actions.push(WindowAction::ReadEntry(index));
            }
        }
        if state.rounds < bounds.rounds && state.round.is_none() && state.last() > state.durable {
            actions.push(WindowAction::Round);
        }
        for (at, log) in state.logs.iter().enumerate() {
            let used = log.segments.last().is_some_and(|open| !open.sectors.is_empty());
            if state.switches < bounds.switches && used {
                actions.push(WindowAction::Switch(at));
            }
            for segment in 0..log.segments.len() - 1 {
                let places =
                    |commit: &&WindowCommit| commit.places[at].is_some_and(|it| it.segment == segment);
                let mut reserved = state.commits.iter().filter(places);
                let is_complete = reserved.all(|commit| commit.copied & (1 << at) != 0);
                let may_sync = is_complete || !self.rules.sealed_segments_wait_for_copies;
                if may_sync && !log.segments[segment].is_synced_for_good {
                    actions.push(WindowAction::SyncSealed(at, segment));
                }
            }
        }
    }

    /// Adds the steps of threads that have begun an operation.
    pub(super) fn enabled_actions(&self, state: &WindowState, actions: &mut Vec<WindowAction>) {
        let visible = self.visible(state);
        let wakes = state.is_poisoned() && self.rules.poison_wakes_the_waiters;
        let has_latch = state.reader.is_some() && !self.rules.readers_wait_without_latches;
        for (index, commit) in state.commits.iter().enumerate() {
            if state.descheduled == Some(index) {
                continue;
            }
            match commit.phase {
                WindowPhase::Working => {
                    let mine = |log: &usize| commit.parts & (1 << log) != 0;
                    let is_placed =
                        [0, 1].iter().filter(|log| mine(log)).all(|&l| commit.places[l].is_some());
                    for log in [0, 1].into_iter().filter(mine) {
                        if commit.places[log].is_none() {
                            actions.push(WindowAction::ReservePlace(index, log));
                        } else if is_placed && commit.copied & (1 << log) == 0 {
                            actions.push(WindowAction::Copy(index, log));
                        }
                    }
                    if is_placed && !commit.is_applied && !has_latch {
                        actions.push(WindowAction::Apply(index));
                    }
                }
                WindowPhase::Complete if seq(index) <= visible || !self.rules.acknowledged_when_visible => {
                    actions.push(WindowAction::Acknowledge(index));
                }
                WindowPhase::Complete if wakes => actions.push(WindowAction::Refuse(index)),
                _ => {}
            }
        }
        match state.reader {
            Some(version) if version <= visible => actions.push(WindowAction::FinishRead),
            Some(_) if wakes => actions.push(WindowAction::RefuseRead),
            _ => {}
        }
        match state.round {
            Some(round) if round.has_open_log => actions.push(WindowAction::CloseOtherLog),
            Some(round) if round.awaited_seq <= visible || !self.rules.rounds_wait_for_the_window => {
                let left = |log: &usize| round.synced & (1 << log) == 0;
                actions.extend([0, 1].into_iter().filter(left).map(WindowAction::Sync));
            }
            Some(_) if wakes => actions.push(WindowAction::RefuseRound),
            _ => {}
        }
    }

    fn visible(&self, state: &WindowState) -> WindowSeq {
        let is_passed = |commit: &&WindowCommit| match commit.phase {
            WindowPhase::Working => false,
            WindowPhase::Panicked => !self.rules.failures_stop_visible,
            WindowPhase::Complete | WindowPhase::Acknowledged | WindowPhase::Refused => true,
        };
        seq(state.commits.iter().take_while(is_passed).count()) - 1
    }

    /// Returns whether a thread waits, no thread can continue, and the wait is not for the
    /// descheduled thread.
    pub(super) fn is_deadlocked(&self, state: &WindowState) -> bool {
        let mut actions = Vec::new();
        self.enabled_actions(state, &mut actions);
        if !actions.is_empty() {
            return false;
        }
        let asleep = state.descheduled.map_or(WindowSeq::MAX, seq);
        let waits = |(index, commit): (usize, &WindowCommit)| match commit.phase {
            WindowPhase::Working => state.descheduled != Some(index),
            WindowPhase::Complete => seq(index) < asleep,
            _ => false,
        };
        state.commits.iter().enumerate().any(waits)
            || state.reader.is_some_and(|version| version < asleep)
            || state.round.is_some_and(|round| round.awaited_seq < asleep)
    }

    pub(super) fn step(&self, state: &mut WindowState, action: WindowAction) {
        let rules = &self.rules;
        match action {
            WindowAction::Reserve(parts) => {
                let commit = WindowCommit {
                    parts,
                    places: [None; 2],
                    copied: 0,
                    is_applied: false,
                    phase: WindowPhase::Working,
                };
                state.commits.push(commit);
                let mine = [0, 1].into_iter().filter(|log| parts & (1 << log) != 0);
                let at_once = if rules.several_logs_stop_reservations { 2 } else { 1 };
                if rules.reservation_is_one_step {
                    mine.take(at_once).for_each(|log| self.place(state, state.commits.len() - 1, log));
                }
            }
            WindowAction::ReservePlace(index, log) => self.place(state, index, log),
            WindowAction::Copy(index, log) => self.copy(state, index, log),
            WindowAction::Apply(index) => {
                state.commits[index].is_applied = true;
                mark_complete(&mut state.commits[index]);
            }
            WindowAction::Acknowledge(index) => state.commits[index].phase = WindowPhase::Acknowledged,
            WindowAction::Refuse(index) => state.commits[index].phase = WindowPhase::Refused,
            WindowAction::Panic(index) => state.commits[index].phase = WindowPhase::Panicked,
            WindowAction::Deschedule(index) => state.descheduled = Some(index),
            WindowAction::Round => self.start_round(state),
            WindowAction::CloseOtherLog => {
                state.logs[1].is_closed = rules.rounds_close_the_sector;
                let last = state.last();
                if let Some(round) = &mut state.round {
                    round.has_open_log = false;
                    round.awaited_seq = if self.bounds.waits_past_last_close { last } else { round.target };
                }
            }
            WindowAction::Sync(log) => self.sync(state, log),
            WindowAction::RefuseRound => state.round = None,
            WindowAction::Switch(log) => {
                state.switches += 1;
                state.logs[log].is_closed = false;
                state.logs[log].segments.push(WindowSegment::default());
            }
            WindowAction::SyncSealed(log, segment) => {
                let segment = &mut state.logs[log].segments[segment];
                segment.sectors.iter_mut().for_each(ModelPage::sync);
                segment.is_synced_for_good = true;
            }
            WindowAction::ReadEntry(index) => {
                state.reads += 1;
                if rules.readers_wait_for_visible && seq(index) > self.visible(state) {
                    state.reader = Some(seq(index));
                } else {
                    state.seen = state.seen.max(seq(index));
                }
            }
            WindowAction::FinishRead => {
                state.seen = state.reader.take().map_or(state.seen, |it| it.max(state.seen))
            }
            WindowAction::RefuseRead => state.reader = None,
            WindowAction::Crash(way) => {
                let crash = self.bounds.crash;
                disk::apply_crash(state.pages_mut(), crash, way);
                let broken_invariant = check_recovery(state, crash, rules);
                // The whole outcome of the crash is judged. Keeping more would only separate equal
                // end states.
                *state = self.init_states().remove(0);
                (state.is_down, state.broken_invariant) = (true, broken_invariant);
            }
        }
    }

    fn start_round(&self, state: &mut WindowState) {
        let rules = &self.rules;
        state.rounds += 1;
        let at_once = if rules.rounds_close_all_logs_at_once { 2 } else { 1 };
        let logs = state.logs.iter_mut().take(at_once);
        logs.for_each(|log| log.is_closed = rules.rounds_close_the_sector);
        let target = if rules.rounds_cover_reserved_seqs { state.last() } else { self.visible(state) };
        let is_open = at_once == 1;
        state.round =
            Some(WindowRound { target, awaited_seq: target, has_open_log: is_open, synced: 0, complete: 0 });
    }

    fn place(&self, state: &mut WindowState, index: usize, log: usize) {
        let held = &mut state.logs[log];
        let segment = held.segments.len() - 1;
        let open = &mut held.segments[segment];
        if open.sectors.is_empty() || held.is_closed || open.taken == self.bounds.sector_frames {
            open.sectors.push(ModelPage::empty());
            open.taken = 0;
        }
        held.is_closed = false;
        let place = WindowPlace { segment, sector: open.sectors.len() - 1, at: open.taken };
        open.taken += 1;
        state.commits[index].places[log] = Some(place);
    }

    fn copy(&self, state: &mut WindowState, index: usize, log: usize) {
        let commit = &mut state.commits[index];
        let Some(place) = commit.places[log] else { return };
        let frame =
            WindowFrame { at: place.at, seq: seq(index), parts: commit.parts, durable: state.durable };
        let page = &mut state.logs[log].segments[place.segment].sectors[place.sector];
        let mut held = page.read().cloned().unwrap_or_default();
        held.push(frame);
        held.sort_unstable();
        let torn = held.len() == 1 || self.bounds.tears == TornSectors::Garbage;
        page.write(held, torn);
        commit.copied |= 1 << log;
        mark_complete(commit);
    }

    fn sync(&self, state: &mut WindowState, log: usize) {
        let segments = state.logs[log].segments.iter_mut().filter(|segment| !segment.is_synced_for_good);
        segments.flat_map(|segment| &mut segment.sectors).for_each(ModelPage::sync);
        let Some(mut round) = state.round.take() else { return };
        if round.synced == 0 && !self.rules.tickets_follow_the_mark {
            let complete =
                state.commits.iter().enumerate().filter(|(_, it)| it.phase != WindowPhase::Working);
            round.complete = complete.fold(0, |set, (index, _)| set | 1 << index);
        }
        round.synced |= 1 << log;
        if round.synced < 3 {
            state.round = Some(round);
            return;
        }
        state.durable = state.durable.max(round.target);
        state.tickets |= ((1 << state.durable) - 1) | round.complete;
    }
}

/// Marks a commit complete that is copied and applied.
fn mark_complete(commit: &mut WindowCommit) {
    if commit.copied == commit.parts && commit.is_applied {
        commit.phase = WindowPhase::Complete;
    }
}
