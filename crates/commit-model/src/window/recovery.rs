//! # Recovery after a crash in the window: the longest dense prefix
//!
//! Reads as `commit_order` does. In each segment the frames before the first hole count. The order
//! ends before the first seq that does not exist with all its parts.

use super::{WindowCommit, WindowFrame, WindowPhase, WindowSeq, WindowState, seq};
use crate::ProtocolRules;
use crate::disk::CrashKind;
use crate::explore::BrokenInvariant;

/// Returns the frames of a log that recovery accepts, in the order of their places.
fn scan(state: &WindowState, log: usize) -> Vec<WindowFrame> {
    let mut frames = Vec::new();
    for segment in &state.logs[log].segments {
        for sector in &segment.sectors {
            let held = sector.read().into_iter().flatten();
            let whole = held.zip(0..).take_while(|(frame, at)| frame.at == *at).map(|(frame, _)| *frame);
            let before = frames.len();
            frames.extend(whole);
            if frames.len() == before {
                break;
            }
        }
    }
    frames
}

/// Compares the recovered prefix with the acknowledgements and reads of the crashed process.
pub(super) fn check_recovery(
    state: &WindowState,
    crash: CrashKind,
    rules: &ProtocolRules,
) -> Option<BrokenInvariant> {
    let logs = [scan(state, 0), scan(state, 1)];
    let is_whole = |&wanted: &WindowSeq| {
        let part = |log: usize| logs[log].iter().find(|frame| frame.seq == wanted);
        let parts = [0, 1].into_iter().filter_map(|log| part(log).map(|frame| (log, frame.parts)));
        let (found, all) = parts.fold((0, 0), |(found, all), (log, parts)| (found | 1 << log, all | parts));
        found != 0 && found == all
    };
    let cut = (1..).take_while(is_whole).last().unwrap_or(0);
    let sectors = state.logs.iter().flat_map(|log| &log.segments).flat_map(|segment| &segment.sectors);
    let known = sectors.filter_map(|sector| sector.read()).flatten().map(|frame| frame.durable).max();
    if known > Some(cut) {
        return Some(BrokenInvariant::FalseDamage);
    }
    let is_lost = |index: usize, commit: &WindowCommit| match crash {
        CrashKind::PowerCut => state.tickets & (1 << index) != 0,
        CrashKind::Kill | CrashKind::ReadThrough => commit.phase == WindowPhase::Acknowledged,
    };
    if (state.commits.iter().enumerate()).any(|(index, commit)| seq(index) > cut && is_lost(index, commit)) {
        return Some(BrokenInvariant::Durable);
    }
    if crash == CrashKind::Kill && state.seen > cut {
        return Some(BrokenInvariant::UnexplainedRead);
    }
    let mut replayed = logs.iter().flatten().map(|frame| frame.seq).filter(|&seq| seq <= cut);
    let kept = if rules.replay_compares_seqs { replayed.max() } else { replayed.next_back() };
    (kept.unwrap_or(0) != cut).then_some(BrokenInvariant::Index)
}
