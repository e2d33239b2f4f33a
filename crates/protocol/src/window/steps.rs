//! # Steps of the window: which are possible, and their effects
//!
//! A thread is stuck if it has begun something, no step of [`Window::going_on`] is possible, and
//! the wait is not one for the descheduled thread.

use super::recovery::judge;
use super::{Action, Commit, Frame, Phase, Place, Round, Segment, Seq, State, Window, seq};
use crate::disk::{self, Page, Tears};
use stateright::Model;

impl Window {
    /// Steps that begin something or that the environment takes: no thread waits for them.
    pub(super) fn beginning(&self, state: &State, actions: &mut Vec<Action>) {
        let bounds = &self.bounds;
        let refuses = self.rules.failures_stop_visible && state.is_poisoned();
        if state.commits.len() < bounds.commits && !refuses {
            actions.extend(bounds.parts.iter().map(|&parts| Action::Reserve(parts)));
        }
        let panicked = state.commits.iter().filter(|commit| commit.phase == Phase::Panicked).count();
        for (index, commit) in state.commits.iter().enumerate() {
            let works = commit.phase == Phase::Working && state.asleep != Some(index);
            if works && panicked < usize::from(bounds.panics) {
                actions.push(Action::Panic(index));
            }
            if works && bounds.sleeps && state.asleep.is_none() {
                actions.push(Action::Sleep(index));
            }
            if state.reads < bounds.reads && state.reader.is_none() && commit.is_applied {
                actions.push(Action::Look(index));
            }
        }
        if state.rounds < bounds.rounds && state.round.is_none() && state.last() > state.durable {
            actions.push(Action::Round);
        }
        for (at, log) in state.logs.iter().enumerate() {
            let used = log.segments.last().is_some_and(|open| !open.sectors.is_empty());
            if state.switches < bounds.switches && used {
                actions.push(Action::Switch(at));
            }
            for segment in 0..log.segments.len() - 1 {
                let places = |commit: &&Commit| commit.places[at].is_some_and(|it| it.segment == segment);
                let mut reserved = state.commits.iter().filter(places);
                let is_complete = reserved.all(|commit| commit.copied & (1 << at) != 0);
                let may_sync = is_complete || !self.rules.sealed_segments_wait_for_copies;
                if may_sync && !log.segments[segment].is_done {
                    actions.push(Action::SyncSealed(at, segment));
                }
            }
        }
    }

    /// Steps of threads that have begun something.
    pub(super) fn going_on(&self, state: &State, actions: &mut Vec<Action>) {
        let visible = self.visible(state);
        let wakes = state.is_poisoned() && self.rules.poison_wakes_the_waiters;
        let has_latch = state.reader.is_some() && !self.rules.readers_wait_without_latches;
        for (index, commit) in state.commits.iter().enumerate() {
            if state.asleep == Some(index) {
                continue;
            }
            match commit.phase {
                Phase::Working => {
                    let mine = |log: &usize| commit.parts & (1 << log) != 0;
                    let is_placed =
                        [0, 1].iter().filter(|log| mine(log)).all(|&l| commit.places[l].is_some());
                    for log in [0, 1].into_iter().filter(mine) {
                        if commit.places[log].is_none() {
                            actions.push(Action::Place(index, log));
                        } else if is_placed && commit.copied & (1 << log) == 0 {
                            actions.push(Action::Copy(index, log));
                        }
                    }
                    if is_placed && !commit.is_applied && !has_latch {
                        actions.push(Action::Apply(index));
                    }
                }
                Phase::Complete if seq(index) <= visible || !self.rules.acknowledged_when_visible => {
                    actions.push(Action::Acknowledge(index));
                }
                Phase::Complete if wakes => actions.push(Action::Refuse(index)),
                _ => {}
            }
        }
        match state.reader {
            Some(version) if version <= visible => actions.push(Action::Read),
            Some(_) if wakes => actions.push(Action::RefuseRead),
            _ => {}
        }
        match state.round {
            Some(round) if round.is_open => actions.push(Action::CloseRest),
            Some(round) if round.awaited <= visible || !self.rules.rounds_wait_for_the_window => {
                let left = |log: &usize| round.synced & (1 << log) == 0;
                actions.extend([0, 1].into_iter().filter(left).map(Action::Sync));
            }
            Some(_) if wakes => actions.push(Action::RefuseRound),
            _ => {}
        }
    }

    fn visible(&self, state: &State) -> Seq {
        let is_passed = |commit: &&Commit| match commit.phase {
            Phase::Working => false,
            Phase::Panicked => !self.rules.failures_stop_visible,
            Phase::Complete | Phase::Acknowledged | Phase::Refused => true,
        };
        seq(state.commits.iter().take_while(is_passed).count()) - 1
    }

    /// Whether a thread waits, no thread can go on, and the wait is not one for the thread asleep.
    pub(super) fn is_stuck(&self, state: &State) -> bool {
        let mut actions = Vec::new();
        self.going_on(state, &mut actions);
        if !actions.is_empty() {
            return false;
        }
        let asleep = state.asleep.map_or(Seq::MAX, seq);
        let waits = |(index, commit): (usize, &Commit)| match commit.phase {
            Phase::Working => state.asleep != Some(index),
            Phase::Complete => seq(index) < asleep,
            _ => false,
        };
        state.commits.iter().enumerate().any(waits)
            || state.reader.is_some_and(|version| version < asleep)
            || state.round.is_some_and(|round| round.awaited < asleep)
    }

    pub(super) fn step(&self, state: &mut State, action: Action) {
        let rules = &self.rules;
        match action {
            Action::Reserve(parts) => {
                let commit =
                    Commit { parts, places: [None; 2], copied: 0, is_applied: false, phase: Phase::Working };
                state.commits.push(commit);
                let mine = [0, 1].into_iter().filter(|log| parts & (1 << log) != 0);
                let at_once = if rules.several_logs_stop_reservations { 2 } else { 1 };
                if rules.reservation_is_one_step {
                    mine.take(at_once).for_each(|log| self.place(state, state.commits.len() - 1, log));
                }
            }
            Action::Place(index, log) => self.place(state, index, log),
            Action::Copy(index, log) => self.copy(state, index, log),
            Action::Apply(index) => {
                state.commits[index].is_applied = true;
                completes(&mut state.commits[index]);
            }
            Action::Acknowledge(index) => state.commits[index].phase = Phase::Acknowledged,
            Action::Refuse(index) => state.commits[index].phase = Phase::Refused,
            Action::Panic(index) => state.commits[index].phase = Phase::Panicked,
            Action::Sleep(index) => state.asleep = Some(index),
            Action::Round => {
                state.rounds += 1;
                let at_once = if rules.rounds_close_all_logs_at_once { 2 } else { 1 };
                let logs = state.logs.iter_mut().take(at_once);
                logs.for_each(|log| log.is_closed = rules.rounds_close_the_sector);
                let target = if rules.rounds_cover_the_reserved { state.last() } else { self.visible(state) };
                let is_open = at_once == 1;
                state.round = Some(Round { target, awaited: target, is_open, synced: 0, complete: 0 });
            }
            Action::CloseRest => {
                state.logs[1].is_closed = rules.rounds_close_the_sector;
                let last = state.last();
                if let Some(round) = &mut state.round {
                    round.is_open = false;
                    round.awaited = if self.bounds.waits_past_closing { last } else { round.target };
                }
            }
            Action::Sync(log) => self.sync(state, log),
            Action::RefuseRound => state.round = None,
            Action::Switch(log) => {
                state.switches += 1;
                state.logs[log].is_closed = false;
                state.logs[log].segments.push(Segment::default());
            }
            Action::SyncSealed(log, segment) => {
                let segment = &mut state.logs[log].segments[segment];
                segment.sectors.iter_mut().for_each(Page::sync);
                segment.is_done = true;
            }
            Action::Look(index) => {
                state.reads += 1;
                if rules.readers_wait_for_visible && seq(index) > self.visible(state) {
                    state.reader = Some(seq(index));
                } else {
                    state.seen = state.seen.max(seq(index));
                }
            }
            Action::Read => state.seen = state.reader.take().map_or(state.seen, |it| it.max(state.seen)),
            Action::RefuseRead => state.reader = None,
            Action::Crash(way) => {
                let crash = self.bounds.crash;
                disk::suffer(state.pages_mut(), crash, way);
                let broken = judge(state, crash, rules);
                // All that a crash leaves is judged: the rest would only tell equal ends apart.
                *state = self.init_states().remove(0);
                (state.is_down, state.broken) = (true, broken);
            }
        }
    }

    fn place(&self, state: &mut State, index: usize, log: usize) {
        let held = &mut state.logs[log];
        let segment = held.segments.len() - 1;
        let open = &mut held.segments[segment];
        if open.sectors.is_empty() || held.is_closed || open.taken == self.bounds.sector_frames {
            open.sectors.push(Page::empty());
            open.taken = 0;
        }
        held.is_closed = false;
        let place = Place { segment, sector: open.sectors.len() - 1, at: open.taken };
        open.taken += 1;
        state.commits[index].places[log] = Some(place);
    }

    fn copy(&self, state: &mut State, index: usize, log: usize) {
        let commit = &mut state.commits[index];
        let Some(place) = commit.places[log] else { return };
        let frame = Frame { at: place.at, seq: seq(index), parts: commit.parts, durable: state.durable };
        let page = &mut state.logs[log].segments[place.segment].sectors[place.sector];
        let mut held = page.read().cloned().unwrap_or_default();
        held.push(frame);
        held.sort_unstable();
        let torn = held.len() == 1 || self.bounds.tears == Tears::Garbage;
        page.write(held, torn);
        commit.copied |= 1 << log;
        completes(commit);
    }

    fn sync(&self, state: &mut State, log: usize) {
        let segments = state.logs[log].segments.iter_mut().filter(|segment| !segment.is_done);
        segments.flat_map(|segment| &mut segment.sectors).for_each(Page::sync);
        let Some(mut round) = state.round.take() else { return };
        if round.synced == 0 && !self.rules.tickets_follow_the_mark {
            let complete = state.commits.iter().enumerate().filter(|(_, it)| it.phase != Phase::Working);
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
fn completes(commit: &mut Commit) {
    if commit.copied == commit.parts && commit.is_applied {
        commit.phase = Phase::Complete;
    }
}
