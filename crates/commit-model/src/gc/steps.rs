//! # Steps of commits, GC, checkpoints, ROOT and crashes

use super::{
    GcAction, GcEntry, GcFrame, GcImage, GcModel, GcPass, GcProcess, GcRoot, GcSeq, GcServing, GcSpent,
    GcState, KEYS, ModelCheckpoint,
};
use crate::disk::ModelPage;
use crate::explore::BrokenInvariant;

/// Decision of a pass about a victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VictimDecision {
    /// A version that is still needed: GC copies it.
    Live,
    /// A tombstone that no recovery needs: GC drops it, and its index entry too.
    DroppableTombstone,
    /// A dead version: GC drops it.
    Dead,
}

/// Returns a new, empty store that serves.
pub(super) fn created() -> GcState {
    let root = |generation| GcRoot { generation, floor: 0, removed_segments: 0, image: None };
    GcState {
        slots: [1, 2].map(|generation| {
            let mut slot = ModelPage::empty();
            slot.write(root(generation), true);
            slot.sync();
            slot
        }),
        segments: Vec::new(),
        process: GcProcess::Serving(serving([None; KEYS], root(2))),
        history: Vec::new(),
        durable_seq: 0,
        acknowledged_seq: 0,
        spent: GcSpent::default(),
        broken_invariant: None,
    }
}

fn serving(index: super::GcIndex, root: GcRoot) -> GcServing {
    GcServing {
        index,
        visible: root.floor,
        durable: root.floor,
        root,
        root_unsynced: false,
        pass: None,
        checkpoint: None,
    }
}

fn is_removed(gone: u32, at: usize) -> bool {
    gone & (1 << at) != 0
}

impl GcModel {
    /// Returns whether recovery writes both slots. A slot that may rot is only useful if the other
    /// slot has the same content.
    fn writes_both_slots(&self) -> bool {
        self.bounds.slot_rots > 0 && self.rules.recovery_writes_both_slots
    }

    /// Returns the decision of a pass about a segment; `None` if the segment is not a victim yet.
    pub(super) fn decide_victim(
        &self,
        state: &GcState,
        serving: &GcServing,
        at: usize,
    ) -> Option<VictimDecision> {
        let frame = *state.segments[at].read()?;
        let is_sealed = frame.seq <= serving.durable && !state.segments[at].is_dirty();
        if is_removed(serving.root.removed_segments, at) || !is_sealed {
            return None;
        }
        let entry = serving.index[frame.key];
        let unneeded = !frame.tombstone
            || !self.rules.tombstones_wait_for_checkpoints
            || frame.seq <= self.covered_seq(state);
        match entry {
            Some(entry) if entry.at == at && frame.tombstone && unneeded => {
                Some(VictimDecision::DroppableTombstone)
            }
            Some(entry) if entry.at == at => Some(VictimDecision::Live),
            Some(entry) => {
                let durably = entry.seq <= serving.durable;
                (durably || !self.rules.dead_means_durably_superseded).then_some(VictimDecision::Dead)
            }
            None => unneeded.then_some(VictimDecision::Dead),
        }
    }

    /// Returns the lower start of the checkpoints in the two slots. A slot that a power cut may
    /// still change counts as a slot without a checkpoint.
    fn covered_seq(&self, state: &GcState) -> GcSeq {
        let by_start = self.rules.tombstones_wait_for_the_start;
        let bound = |image: &GcImage| if by_start { image.start } else { image.end };
        let of = |slot: &ModelPage<GcRoot>| {
            let root = slot.read().filter(|_| slot.is_on_platter());
            root.and_then(|root| root.image.as_ref()).map_or(0, bound)
        };
        of(&state.slots[0]).min(of(&state.slots[1]))
    }

    /// Returns whether the ROOT slots no longer need a segment (R13).
    pub(super) fn may_free(&self, state: &GcState, serving: &GcServing, at: usize) -> bool {
        let past = |slot: &ModelPage<GcRoot>| {
            slot.is_on_platter() && slot.read().is_some_and(|root| is_removed(root.removed_segments, at))
        };
        let slots = if self.rules.both_slots_are_past_freed_files {
            state.slots.iter().all(past)
        } else {
            state.slots.iter().any(past)
        };
        is_removed(serving.root.removed_segments, at) && slots && state.segments[at].read().is_some()
    }

    pub(super) fn apply_action(&self, state: &mut GcState, action: GcAction) {
        match action {
            GcAction::PowerCut(way) => {
                state.spent.power_cuts += 1;
                state.cut_power(way);
                state.acknowledged_seq = state.durable_seq;
                state.process = GcProcess::Down;
            }
            GcAction::Kill => {
                state.spent.kills += 1;
                state.process = GcProcess::Down;
            }
            GcAction::RotSlot(slot) => {
                state.spent.slot_rots += 1;
                state.slots[slot].rot();
            }
            GcAction::Recover => self.recover(state),
            GcAction::WriteRecoveredRoot => {
                let GcProcess::Recovered { index, cut, gone } = state.process.clone() else {
                    return;
                };
                let Some(slot) = state.newest() else { return };
                let Some(mut root) = state.slots[slot].read().cloned() else {
                    return;
                };
                root.generation += 1;
                root.floor = cut;
                root.removed_segments |= gone;
                state.slots[1 - slot].write(root.clone(), true);
                state.process = GcProcess::RootWritten { index, root, last: !self.writes_both_slots() };
            }
            GcAction::Serve if matches!(state.process, GcProcess::RootWritten { last: false, .. }) => {
                let GcProcess::RootWritten { index, mut root, .. } = state.process.clone() else {
                    return;
                };
                state.slots.iter_mut().for_each(ModelPage::sync);
                let Some(slot) = state.newest() else { return };
                root.generation += 1;
                state.slots[1 - slot].write(root.clone(), true);
                state.process = GcProcess::RootWritten { index, root, last: true };
            }
            GcAction::Serve => {
                let GcProcess::RootWritten { index, root, .. } = state.process.clone() else {
                    return;
                };
                state.slots.iter_mut().for_each(ModelPage::sync);
                state.history.truncate(usize::from(root.floor));
                (state.durable_seq, state.acknowledged_seq) = (root.floor, root.floor);
                state.process = GcProcess::Serving(serving(index, root));
            }
            _ => {
                let GcProcess::Serving(mut serving) = state.process.clone() else {
                    return;
                };
                self.serve(state, &mut serving, action);
                if !reads_are_valid(state, &serving) {
                    state.broken_invariant = Some(BrokenInvariant::UnexplainedRead);
                }
                state.process = GcProcess::Serving(serving);
            }
        }
    }

    fn serve(&self, state: &mut GcState, serving: &mut GcServing, action: GcAction) {
        match action {
            GcAction::Commit(key, tombstone) => {
                state.spent.commits += 1;
                serving.visible += 1;
                let seq = serving.visible;
                let at = append(state, GcFrame { is_survivor: false, seq, key, tombstone });
                serving.index[key] = Some(GcEntry { seq, at, tombstone });
                state.history.push((key, tombstone));
                state.acknowledged_seq = seq;
            }
            GcAction::Sync => {
                let is_commit =
                    |page: &&mut ModelPage<GcFrame>| page.read().is_some_and(|held| !held.is_survivor);
                state.segments.iter_mut().filter(is_commit).for_each(ModelPage::sync);
                serving.durable = serving.visible;
                state.durable_seq = serving.durable;
            }
            GcAction::BeginPass(victim) => self.begin_pass(state, serving, victim),
            GcAction::CopySurvivor | GcAction::Repoint | GcAction::SyncSurvivor => {
                self.pass(state, serving);
            }
            GcAction::StartCheckpoint => {
                state.spent.dumps += 1;
                let (now, at) = (serving.visible, state.segments.len());
                let entries = [None; KEYS];
                let image = GcImage { start: now, start_at: at, end: now, end_at: at, entries };
                serving.checkpoint = Some(ModelCheckpoint { image, scanned: 0 });
            }
            GcAction::CheckpointKey => {
                if let Some(dump) = &mut serving.checkpoint {
                    dump.image.entries[dump.scanned] = serving.index[dump.scanned];
                    dump.scanned += 1;
                    dump.image.end = serving.visible;
                    dump.image.end_at = state.segments.len();
                }
            }
            GcAction::WriteRoot => self.write_root(state, serving),
            GcAction::SyncRoot => {
                state.slots.iter_mut().for_each(ModelPage::sync);
                serving.root_unsynced = false;
            }
            GcAction::Free(at) => state.segments[at].rot(),
            _ => {}
        }
    }

    fn begin_pass(&self, state: &mut GcState, serving: &mut GcServing, victim: usize) {
        state.spent.passes += 1;
        let Some(frame) = state.segments[victim].read() else {
            return;
        };
        match self.decide_victim(state, serving, victim) {
            Some(VictimDecision::Live) => serving.pass = Some(GcPass::Found { victim }),
            Some(VictimDecision::DroppableTombstone) => {
                serving.index[frame.key] = None;
                serving.root.removed_segments |= 1 << victim;
            }
            Some(VictimDecision::Dead) => serving.root.removed_segments |= 1 << victim,
            None => {}
        }
    }

    fn pass(&self, state: &mut GcState, serving: &mut GcServing) {
        serving.pass = match serving.pass {
            Some(GcPass::Found { victim }) => {
                let Some(&frame) = state.segments[victim].read() else {
                    return;
                };
                let copy = append(state, GcFrame { is_survivor: true, ..frame });
                Some(GcPass::Copied { victim, copy })
            }
            Some(GcPass::Copied { victim, copy }) => {
                let Some(&frame) = state.segments[victim].read() else {
                    return;
                };
                let entry = &mut serving.index[frame.key];
                if entry.is_some_and(|entry| entry.at == victim) || !self.rules.repointing_compares {
                    let GcFrame { seq, tombstone, .. } = frame;
                    *entry = Some(GcEntry { seq, at: copy, tombstone });
                }
                Some(GcPass::Pointed { victim })
            }
            Some(GcPass::Pointed { victim }) => {
                if self.rules.survivors_are_synced {
                    state.segments.iter_mut().for_each(|page| {
                        if page.read().is_some_and(|held| held.is_survivor) {
                            page.sync();
                        }
                    });
                }
                serving.root.removed_segments |= 1 << victim;
                None
            }
            None => None,
        };
    }

    fn write_root(&self, state: &mut GcState, serving: &mut GcServing) {
        state.spent.roots += 1;
        let root = &mut serving.root;
        root.generation += 1;
        if self.rules.floor_covers_the_victim {
            root.floor = serving.durable;
        }
        if let Some(dump) = &serving.checkpoint
            && self.is_publishable(state, dump, serving.durable)
        {
            root.image = Some(dump.image.clone());
            serving.checkpoint = None;
        }
        let Some(slot) = state.newest() else { return };
        state.slots[1 - slot].write(root.clone(), true);
        serving.root_unsynced = true;
    }

    fn is_publishable(&self, state: &GcState, dump: &ModelCheckpoint, durable: GcSeq) -> bool {
        let unsynced =
            |page: &ModelPage<GcFrame>| page.is_dirty() && page.read().is_some_and(|frame| frame.is_survivor);
        dump.scanned >= self.bounds.keys
            && (durable >= dump.image.end || !self.rules.checkpoint_waits_for_w)
            && !(self.rules.checkpoint_waits_for_survivors
                && state.segments[..dump.image.end_at].iter().any(unsynced))
    }
}

fn append(state: &mut GcState, frame: GcFrame) -> usize {
    let mut page = ModelPage::empty();
    page.write(frame, true);
    state.segments.push(page);
    state.segments.len() - 1
}

/// Returns whether every index entry points to an existing frame with the right key and seq.
fn reads_are_valid(state: &GcState, serving: &GcServing) -> bool {
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
