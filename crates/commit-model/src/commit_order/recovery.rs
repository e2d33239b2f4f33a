//! # Recovery of the order model: accepted frames, cut and damage
//!
//! Computes the result of recovery from ROOT and the bytes that reads return; changes nothing. A
//! sealed segment counts up to its end and must be complete. In an open segment the first bad frame
//! ends the replayable part; recovery searches the rest only for values of W.
//!
//! The cut is the last seq before the first seq, or part of a commit, that is missing. A cut below
//! the commits that are known to be durable is damage.

use super::layout::{CommitFrame, CommitSeq, LiveSegment, ModelLog, OrderRoot};
use crate::ProtocolRules;

/// Result of recovery.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(super) struct RecoveredCommits {
    /// Last accepted commit.
    pub(super) cut: CommitSeq,
    /// Accepted commits: (seq, logs with a part of it, identity).
    pub(super) commits: Vec<(CommitSeq, u8, u8)>,
    /// Number of accepted frames in each live segment.
    pub(super) ends: [Vec<u8>; 2],
    /// A commit that is known to be durable is missing.
    pub(super) is_damaged: bool,
    /// One log has two valid frames of one seq, or the parts of a seq belong to two different
    /// commits.
    pub(super) repeated: bool,
}

/// Content of one log.
struct LogScan {
    /// For each live segment: whether it is sealed, and its replayable frames.
    segments: Vec<(bool, Vec<CommitFrame>)>,
    durable: CommitSeq,
    is_damaged: bool,
}

fn scan(log: &ModelLog, live: &[LiveSegment], rules: &ProtocolRules) -> LogScan {
    let mut scan = LogScan { segments: Vec::new(), durable: 0, is_damaged: false };
    for listed in live {
        let mut frames = Vec::new();
        let Some(segment) = log.segments.iter().find(|held| held.number == listed.number) else {
            // An earlier recovery listed the segment in ROOT and crashed before it served. No frame
            // was written to it.
            scan.is_damaged |= listed.end.is_some();
            scan.segments.push((false, Vec::new()));
            continue;
        };
        let limit = listed.end.map(usize::from);
        let mut replayable = true;
        for sector in &segment.sectors {
            if limit == Some(frames.len()) {
                break;
            }
            let valid = sector.read().filter(|held| {
                held.iter()
                    .all(|frame| (frame.segment, frame.incarnation) == (segment.number, segment.incarnation))
            });
            let Some(valid) = valid else {
                replayable = false;
                continue;
            };
            if replayable || rules.resync_searches_for_w {
                let said = valid.iter().map(|frame| frame.durable);
                scan.durable = said.fold(scan.durable, CommitSeq::max);
            }
            if replayable {
                frames.extend_from_slice(valid);
            }
        }
        if let Some(end) = limit {
            scan.is_damaged |= frames.len() < end;
            frames.truncate(end);
        }
        scan.segments.push((limit.is_some(), frames));
    }
    scan
}

/// Collects the commits up to `limit`. The second result tells whether one seq has two contents.
fn gather(scans: &[LogScan; 2], root: &OrderRoot, limit: CommitSeq) -> (Vec<(CommitSeq, u8, u8)>, bool) {
    let mut commits: Vec<(CommitSeq, u8, u8)> = Vec::new();
    let mut repeated = false;
    for (log, scan) in scans.iter().enumerate() {
        for (sealed, frames) in &scan.segments {
            for frame in frames.iter().filter(|frame| is_replayable(frame, *sealed, root, limit)) {
                match commits.iter_mut().find(|held| held.0 == frame.seq) {
                    Some(held) => {
                        repeated |= held.2 != frame.id;
                        held.1 |= 1 << log;
                    }
                    None => commits.push((frame.seq, 1 << log, frame.id)),
                }
            }
        }
    }
    commits.sort_unstable();
    (commits, repeated)
}

fn is_replayable(frame: &CommitFrame, sealed: bool, root: &OrderRoot, limit: CommitSeq) -> bool {
    frame.seq <= limit && (sealed || !root.is_void(frame.seq))
}

/// Returns the logs in which a commit has parts, as recorded in each of its frames.
fn parts(scans: &[LogScan; 2], seq: CommitSeq) -> u8 {
    let frames = scans.iter().flat_map(|scan| &scan.segments).flat_map(|(_, frames)| frames);
    frames.filter(|frame| frame.seq == seq).fold(0, |parts, frame| parts | frame.parts)
}

/// Reads the logs and returns the accepted commits. `checkpoint` is the last commit in the durable
/// state of an engine.
#[must_use]
pub(super) fn recover(
    root: &OrderRoot,
    logs: &[ModelLog; 2],
    checkpoint: CommitSeq,
    rules: &ProtocolRules,
) -> RecoveredCommits {
    let scans = [0, 1].map(|log: usize| scan(&logs[log], &root.live[log], rules));
    let (seen, _) = gather(&scans, root, CommitSeq::MAX);
    let is_whole = |seq| seen.iter().any(|held| held.0 == seq && held.1 == parts(&scans, seq));
    // This model frees nothing. All frames of this incarnation are therefore needed, also below F.
    let below = if rules.needed_frames_below_the_floor_are_checked { root.previous_seq } else { root.floor };
    let first = root.start.max(below + 1);
    let cut = (first..).take_while(|&seq| is_whole(seq)).last().unwrap_or(below);
    let mut known = root.floor.max(scans[0].durable).max(scans[1].durable);
    if rules.checkpoint_is_known_durable {
        known = known.max(checkpoint);
    }
    let ends = [0, 1].map(|log: usize| {
        let end = |(sealed, frames): &(bool, Vec<CommitFrame>)| {
            frames.iter().take_while(|frame| is_replayable(frame, *sealed, root, cut)).map(|_| 1).sum()
        };
        scans[log].segments.iter().map(end).collect()
    });
    let is_damaged = cut < known || scans.iter().any(|scan| scan.is_damaged);
    let (commits, repeated) = gather(&scans, root, cut);
    RecoveredCommits { cut, commits, ends, is_damaged, repeated }
}
