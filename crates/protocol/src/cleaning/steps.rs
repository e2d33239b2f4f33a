//! # The steps of commits, the cleaner, checkpoints, ROOT and crashes

use super::{
    Action, Cleaning, Dump, Entry, Frame, Image, KEYS, Pass, Process, Root, Seq, Serving, Spent, State,
};
use crate::disk::Page;
use crate::explore::Broken;

/// What a pass does with a victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    /// Something still needs it: it moves.
    Lives,
    /// It goes; the index holds it and forgets it (a tombstone that no recovery can miss).
    Forgotten,
    /// It goes.
    Dead,
}

/// A new store: empty, serving.
pub(super) fn created() -> State {
    let root = |generation| Root { generation, floor: 0, gone: 0, image: None };
    State {
        slots: [1, 2].map(|generation| {
            let mut slot = Page::empty();
            slot.write(root(generation), true);
            slot.sync();
            slot
        }),
        segments: Vec::new(),
        process: Process::Serving(serving([None; KEYS], root(2))),
        history: Vec::new(),
        owed_to_power_cut: 0,
        owed: 0,
        spent: Spent::default(),
        broken: None,
    }
}

fn serving(index: super::Index, root: Root) -> Serving {
    Serving {
        index,
        visible: root.floor,
        durable: root.floor,
        root,
        root_unsynced: false,
        pass: None,
        dump: None,
    }
}

fn is_gone(gone: u32, at: usize) -> bool {
    gone & (1 << at) != 0
}

impl Cleaning {
    /// A slot that may rot is only worth something if the other says the same.
    fn announces_twice(&self) -> bool {
        self.bounds.slot_rots > 0 && self.rules.recovery_writes_both_slots
    }

    /// What a pass would do with this segment; `None`: it is no victim (yet).
    pub(super) fn judge(&self, state: &State, serving: &Serving, at: usize) -> Option<Judgement> {
        let frame = *state.segments[at].read()?;
        let is_sealed = frame.seq <= serving.durable && !state.segments[at].is_dirty();
        if is_gone(serving.root.gone, at) || !is_sealed {
            return None;
        }
        let entry = serving.index[frame.key];
        let unneeded = !frame.tombstone
            || !self.rules.tombstones_wait_for_checkpoints
            || frame.seq <= self.covered(state);
        match entry {
            Some(entry) if entry.at == at && frame.tombstone && unneeded => Some(Judgement::Forgotten),
            Some(entry) if entry.at == at => Some(Judgement::Lives),
            Some(entry) => {
                let durably = entry.seq <= serving.durable;
                (durably || !self.rules.dead_means_durably_superseded).then_some(Judgement::Dead)
            }
            None => unneeded.then_some(Judgement::Dead),
        }
    }

    /// The older start of the two slots' checkpoints, whatever a power cut leaves of them.
    fn covered(&self, state: &State) -> Seq {
        let by_start = self.rules.tombstones_wait_for_the_start;
        let bound = |image: &Image| if by_start { image.start } else { image.end };
        let of = |slot: &Page<Root>| {
            let root = slot.read().filter(|_| slot.is_settled());
            root.and_then(|root| root.image.as_ref()).map_or(0, bound)
        };
        of(&state.slots[0]).min(of(&state.slots[1]))
    }

    /// R13, the part about ROOT: its slots are past the segment.
    pub(super) fn may_free(&self, state: &State, serving: &Serving, at: usize) -> bool {
        let past =
            |slot: &Page<Root>| slot.is_settled() && slot.read().is_some_and(|root| is_gone(root.gone, at));
        let slots = if self.rules.both_slots_are_past {
            state.slots.iter().all(past)
        } else {
            state.slots.iter().any(past)
        };
        is_gone(serving.root.gone, at) && slots && state.segments[at].read().is_some()
    }

    pub(super) fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::PowerCut(way) => {
                state.spent.power_cuts += 1;
                state.cut_power(way);
                state.owed = state.owed_to_power_cut;
                state.process = Process::Down;
            }
            Action::Kill => {
                state.spent.kills += 1;
                state.process = Process::Down;
            }
            Action::RotSlot(slot) => {
                state.spent.slot_rots += 1;
                state.slots[slot].rot();
            }
            Action::Recover => self.recover(state),
            Action::Announce => {
                let Process::Recovered { index, cut, gone } = state.process.clone() else {
                    return;
                };
                let Some(slot) = state.newest() else { return };
                let Some(mut root) = state.slots[slot].read().cloned() else {
                    return;
                };
                root.generation += 1;
                root.floor = cut;
                root.gone |= gone;
                state.slots[1 - slot].write(root.clone(), true);
                state.process = Process::Announced { index, root, last: !self.announces_twice() };
            }
            Action::Serve if matches!(state.process, Process::Announced { last: false, .. }) => {
                let Process::Announced { index, mut root, .. } = state.process.clone() else {
                    return;
                };
                state.slots.iter_mut().for_each(Page::sync);
                let Some(slot) = state.newest() else { return };
                root.generation += 1;
                state.slots[1 - slot].write(root.clone(), true);
                state.process = Process::Announced { index, root, last: true };
            }
            Action::Serve => {
                let Process::Announced { index, root, .. } = state.process.clone() else {
                    return;
                };
                state.slots.iter_mut().for_each(Page::sync);
                state.history.truncate(usize::from(root.floor));
                (state.owed_to_power_cut, state.owed) = (root.floor, root.floor);
                state.process = Process::Serving(serving(index, root));
            }
            _ => {
                let Process::Serving(mut serving) = state.process.clone() else {
                    return;
                };
                self.serve(state, &mut serving, action);
                if !reads_are_whole(state, &serving) {
                    state.broken = Some(Broken::Read);
                }
                state.process = Process::Serving(serving);
            }
        }
    }

    fn serve(&self, state: &mut State, serving: &mut Serving, action: Action) {
        match action {
            Action::Commit(key, tombstone) => {
                state.spent.commits += 1;
                serving.visible += 1;
                let seq = serving.visible;
                let at = append(state, Frame { moved: false, seq, key, tombstone });
                serving.index[key] = Some(Entry { seq, at, tombstone });
                state.history.push((key, tombstone));
                state.owed = seq;
            }
            Action::Sync => {
                let is_commit = |page: &&mut Page<Frame>| page.read().is_some_and(|held| !held.moved);
                state.segments.iter_mut().filter(is_commit).for_each(Page::sync);
                serving.durable = serving.visible;
                state.owed_to_power_cut = serving.durable;
            }
            Action::Judge(victim) => self.begin_pass(state, serving, victim),
            Action::CopySurvivor | Action::Repoint | Action::SyncSurvivor => {
                self.pass(state, serving);
            }
            Action::StartDump => {
                state.spent.dumps += 1;
                let (now, at) = (serving.visible, state.segments.len());
                let entries = [None; KEYS];
                let image = Image { start: now, start_at: at, end: now, end_at: at, entries };
                serving.dump = Some(Dump { image, scanned: 0 });
            }
            Action::DumpKey => {
                if let Some(dump) = &mut serving.dump {
                    dump.image.entries[dump.scanned] = serving.index[dump.scanned];
                    dump.scanned += 1;
                    dump.image.end = serving.visible;
                    dump.image.end_at = state.segments.len();
                }
            }
            Action::WriteRoot => self.write_root(state, serving),
            Action::SyncRoot => {
                state.slots.iter_mut().for_each(Page::sync);
                serving.root_unsynced = false;
            }
            Action::Free(at) => state.segments[at].rot(),
            _ => {}
        }
    }

    fn begin_pass(&self, state: &mut State, serving: &mut Serving, victim: usize) {
        state.spent.passes += 1;
        let Some(frame) = state.segments[victim].read() else {
            return;
        };
        match self.judge(state, serving, victim) {
            Some(Judgement::Lives) => serving.pass = Some(Pass::Found { victim }),
            Some(Judgement::Forgotten) => {
                serving.index[frame.key] = None;
                serving.root.gone |= 1 << victim;
            }
            Some(Judgement::Dead) => serving.root.gone |= 1 << victim,
            None => {}
        }
    }

    fn pass(&self, state: &mut State, serving: &mut Serving) {
        serving.pass = match serving.pass {
            Some(Pass::Found { victim }) => {
                let Some(&frame) = state.segments[victim].read() else {
                    return;
                };
                let copy = append(state, Frame { moved: true, ..frame });
                Some(Pass::Copied { victim, copy })
            }
            Some(Pass::Copied { victim, copy }) => {
                let Some(&frame) = state.segments[victim].read() else {
                    return;
                };
                let entry = &mut serving.index[frame.key];
                if entry.is_some_and(|entry| entry.at == victim) || !self.rules.repointing_compares {
                    let Frame { seq, tombstone, .. } = frame;
                    *entry = Some(Entry { seq, at: copy, tombstone });
                }
                Some(Pass::Pointed { victim })
            }
            Some(Pass::Pointed { victim }) => {
                if self.rules.survivors_are_synced {
                    state.segments.iter_mut().for_each(|page| {
                        if page.read().is_some_and(|held| held.moved) {
                            page.sync();
                        }
                    });
                }
                serving.root.gone |= 1 << victim;
                None
            }
            None => None,
        };
    }

    fn write_root(&self, state: &mut State, serving: &mut Serving) {
        state.spent.roots += 1;
        let root = &mut serving.root;
        root.generation += 1;
        if self.rules.floor_covers_the_victim {
            root.floor = serving.durable;
        }
        if let Some(dump) = &serving.dump
            && self.is_publishable(state, dump, serving.durable)
        {
            root.image = Some(dump.image.clone());
            serving.dump = None;
        }
        let Some(slot) = state.newest() else { return };
        state.slots[1 - slot].write(root.clone(), true);
        serving.root_unsynced = true;
    }

    fn is_publishable(&self, state: &State, dump: &Dump, durable: Seq) -> bool {
        let unsynced = |page: &Page<Frame>| page.is_dirty() && page.read().is_some_and(|frame| frame.moved);
        dump.scanned >= self.bounds.keys
            && (durable >= dump.image.end || !self.rules.checkpoint_waits_for_w)
            && !(self.rules.checkpoint_waits_for_survivors
                && state.segments[..dump.image.end_at].iter().any(unsynced))
    }
}

fn append(state: &mut State, frame: Frame) -> usize {
    let mut page = Page::empty();
    page.write(frame, true);
    state.segments.push(page);
    state.segments.len() - 1
}

/// What the index points to is there and is the key's own.
fn reads_are_whole(state: &State, serving: &Serving) -> bool {
    serving.index.iter().enumerate().all(|(key, entry)| {
        let newest = state.history.iter().rposition(|&(touched, _)| touched == key);
        let expected = newest.filter(|&at| !state.history[at].1).map(|at| at + 1);
        match (entry, expected) {
            (Some(entry), Some(seq)) => {
                let frame = state.segments[entry.at].read();
                usize::from(entry.seq) == seq
                    && frame.is_some_and(|frame| (frame.key, frame.seq) == (key, entry.seq))
            }
            (Some(entry), None) => entry.tombstone,
            (None, expected) => expected.is_none(),
        }
    })
}
