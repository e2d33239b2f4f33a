//! # Recovery of a store log: the cut, and the index from an image and the frames behind it

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

    /// The image, less what points nowhere, then every frame from its start on: the highest number
    /// of a key wins, and a survivor may create.
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

/// The last commit before the first that is missing.
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
