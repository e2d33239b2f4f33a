//! # Recovery of the GC model: the cut, and the index from an image and the frames behind it

use super::{GcEntry, GcIndex, GcModel, GcProcess, GcRoot, GcSeq, GcState, KEYS};
use crate::disk::TornSectors;
use crate::explore::BrokenInvariant;

impl GcModel {
    pub(super) fn recover(&self, state: &mut GcState) {
        if let Some(slot) = state.newest() {
            state.slots[slot].rewrite(TornSectors::OldOrNewBytes);
        }
        state.slots.iter_mut().for_each(super::ModelPage::sync);
        let Some(root) = state.newest().and_then(|slot| state.slots[slot].read().cloned()) else {
            state.broken_invariant = Some(BrokenInvariant::Durable);
            return;
        };
        let cut = cut(state, &root);
        let index = self.index(state, &root, cut);
        state.broken_invariant = check(state, &root, cut, &index);
        let mut gone = 0;
        for (at, page) in state.segments.iter_mut().enumerate() {
            match page.read() {
                Some(frame) if frame.is_survivor && !self.rules.recovery_syncs_survivors => {}
                Some(frame) if frame.is_survivor || frame.seq <= cut => page.sync(),
                _ => gone |= 1 << at,
            }
        }
        state.process = GcProcess::Recovered { index, cut, gone };
    }

    /// Builds the index: the image without entries in removed segments, then every frame from the
    /// start position of the image on. For each key the highest seq wins. A survivor may create an
    /// entry.
    ///
    /// # Proof that replay from the start of the image suffices
    ///
    /// Let `v` be the newest version of a key at the start. The scan reads `v` or a newer version.
    /// - Its address is live and durable at recovery: the entry is correct, since all newer frames
    ///   lie behind the start.
    /// - Its address is no longer live because a commit superseded the version: that commit lies
    ///   behind the start.
    /// - Its address is no longer live because a pass moved the version. The pass repointed the
    ///   index after the scan had read it. No checkpoint starts between the liveness check of a
    ///   survivor and its repoint (`checkpoints_wait_for_judged_survivors`,
    ///   `checkpoints_wait_for_copied_survivors`). The check and the copy therefore came after the
    ///   start, and the survivor lies behind it.
    /// - An older frame `u` behind the start can only be a survivor. No checkpoint starts between
    ///   its liveness check and its copy, so `u` was live after the start. Every newer version was
    ///   therefore committed after the start and lies behind it too. If the newer version is a
    ///   tombstone, its seq is above the start, so it is not dropped.
    fn index(&self, state: &GcState, root: &GcRoot, cut: GcSeq) -> GcIndex {
        let mut index = [None; KEYS];
        let mut from = 0;
        if let Some(image) = &root.image {
            let keeps =
                |entry: &GcEntry| !is_removed(root, entry.at) || !self.rules.stale_image_entries_are_dropped;
            index = image.entries.map(|entry| entry.filter(keeps));
            let exact = self.rules.replay_from_the_start;
            from = if exact { image.start_at } else { image.end_at };
        }
        for (at, page) in state.segments.iter().enumerate().skip(from) {
            let Some(frame) = page.read().filter(|_| !is_removed(root, at)) else {
                continue;
            };
            let ties = self.rules.ties_go_to_the_later_frame;
            let older = |entry: GcEntry| entry.seq < frame.seq || ties && entry.seq == frame.seq;
            if frame.seq <= cut && index[frame.key].is_none_or(older) {
                index[frame.key] = Some(GcEntry { seq: frame.seq, at, tombstone: frame.tombstone });
            }
        }
        index
    }
}

fn is_removed(root: &GcRoot, at: usize) -> bool {
    root.removed_segments & (1 << at) != 0
}

/// Returns the last commit before the first missing one.
fn cut(state: &GcState, root: &GcRoot) -> GcSeq {
    let is_there = |seq: GcSeq| {
        let mut live = state.segments.iter().enumerate().filter(|(at, _)| !is_removed(root, *at));
        live.any(|(_, page)| page.read().is_some_and(|frame| !frame.is_survivor && frame.seq == seq))
    };
    (root.floor + 1..).take_while(|&seq| is_there(seq)).last().unwrap_or(root.floor)
}

/// Compares the index with the map at the recovered prefix.
fn check(state: &GcState, root: &GcRoot, cut: GcSeq, index: &GcIndex) -> Option<BrokenInvariant> {
    if usize::from(cut) > state.history.len() {
        return Some(BrokenInvariant::Prefix);
    }
    if cut < state.acknowledged_seq {
        return Some(BrokenInvariant::Durable);
    }
    let history = &state.history[..usize::from(cut)];
    let is_right = |key: usize, entry: &Option<GcEntry>| {
        let newest = history.iter().rposition(|&(touched, _)| touched == key);
        match (newest.filter(|&at| !history[at].1), entry) {
            (Some(at), Some(entry)) => {
                let frame = state.segments[entry.at].read().filter(|_| !is_removed(root, entry.at));
                usize::from(entry.seq) == at + 1
                    && !entry.tombstone
                    && frame.is_some_and(|frame| (frame.key, frame.seq) == (key, entry.seq))
            }
            (None, entry) => entry.is_none_or(|entry| entry.tombstone),
            (Some(_), None) => false,
        }
    };
    let right = index.iter().enumerate().all(|(key, entry)| is_right(key, entry));
    (!right).then_some(BrokenInvariant::Index)
}
