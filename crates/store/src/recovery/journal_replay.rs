//! # Journal replay: the records of the journal on several threads
//!
//! Threads verify the segments, and pass their records to the engines by *partitions* of stripes.
//!
//! ## Picture
//!
//! ```text
//!  segment 1: piece | piece ─┐  places of the     ┌─> partition 0 ─> engines
//!  segment 2: piece | piece ─┼─ records, by ──────┼─> partition 1 ─> engines
//!  segment 3: piece          ┘  partition         └─> ...
//! ```
//!
//! ## Invariants
//!
//! 1. A partition has all records of its keys. One thread at a time replays a partition, in the
//!    order of the journal. So each key gets its records as with one thread.
//! 2. Of several errors, the first one in the order of the journal is returned. Everything before
//!    it is read and replayed.
//! 3. At most `most_pieces` pieces are in memory, and one more of the first segment that is not
//!    read yet.
//!
//! ## Threads
//!
//! A thread takes the next task: replay a piece of a partition, or else verify a piece. It waits if
//! there is none, and leaves when no thread has a task. No task holds the lock of the state.
//!
//! ## Costs
//!
//! A record is verified twice, by its reader and when it is replayed, because its page may have
//! left memory in between. A piece takes 8 bytes for each of its records.

use std::collections::VecDeque;
use std::sync::Arc;

use super::replay::{
    LogPlace, LogReplay, PlacedError, REPLAY_GROUP, RecordGroup, ReplayCounts, decode_record,
};
use sheaf_engine::window::stripe_of;
use sheaf_log::segment::{Frame, ScanEnd, Segment, SegmentScan};
use sheaf_log::types::Seq;
use sheaf_platform::error::{Error, Result};
use sheaf_platform::parallel::run_parallel;
use sheaf_platform::sync::{Condvar, Mutex};

/// Frames of a piece.
const PIECE_FRAMES: usize = 1 << 14;
const TINY_PIECE_FRAMES: usize = 8;
/// Partitions for each thread. More partitions than threads even out the load.
const PARTITIONS_PER_THREAD: usize = 2;
/// Pieces in memory for each thread.
const PIECES_PER_THREAD: usize = 4;

/// Sizes of a replay.
#[derive(Clone, Copy, Debug)]
pub(super) struct JournalReplaySizes {
    pub(super) threads: usize,
    partitions: usize,
    piece_frames: usize,
    most_pieces: usize,
}

impl JournalReplaySizes {
    pub(super) fn new(threads: usize, tiny: bool) -> JournalReplaySizes {
        JournalReplaySizes {
            threads,
            partitions: threads * PARTITIONS_PER_THREAD,
            piece_frames: if tiny { TINY_PIECE_FRAMES } else { PIECE_FRAMES },
            most_pieces: threads * PIECES_PER_THREAD,
        }
    }
}

/// Verified frames in a row of one segment.
struct JournalPiece {
    /// Offset of the first frame.
    start: u64,
    /// Offsets of the records of each partition, ascending.
    places: Vec<Vec<u64>>,
}

/// Progress in one segment.
struct SegmentProgress<'a> {
    /// `None` while a thread reads the next piece, and at the end.
    scan: Option<SegmentScan<'a>>,
    /// Offset from which the scan continues.
    next: u64,
    is_read: bool,
    /// Pieces that some partitions have not replayed, with the number of these partitions.
    pieces: VecDeque<(Arc<JournalPiece>, usize)>,
    /// Number of pieces that all partitions have replayed.
    replayed: usize,
}

/// Next piece of a partition.
#[derive(Clone, Copy, Default)]
struct PartitionProgress {
    segment: usize,
    piece: usize,
    /// True while a thread replays a piece of the partition.
    is_taken: bool,
}

struct ReplayState<'a> {
    segments: Vec<SegmentProgress<'a>>,
    partitions: Vec<PartitionProgress>,
    /// Pieces in memory, and those that threads read.
    pieces: usize,
    /// Threads with a task.
    active: usize,
    /// First error so far, and its place.
    failure: Option<(LogPlace, Error)>,
    /// True if a thread panicked.
    is_abandoned: bool,
    counts: ReplayCounts,
}

enum ReplayTask<'a> {
    Read { segment: usize, scan: SegmentScan<'a> },
    Replay { segment: usize, partition: usize, piece: Arc<JournalPiece> },
}

impl<'a> ReplayState<'a> {
    /// Returns true if an error before `place` makes the rest superfluous.
    fn is_behind_failure(&self, place: LogPlace) -> bool {
        self.failure.as_ref().is_some_and(|(failed, _)| *failed < place)
    }

    fn note_failure(&mut self, place: LogPlace, error: Error) {
        if self.failure.as_ref().is_none_or(|(first, _)| place < *first) {
            self.failure = Some((place, error));
        }
    }

    /// Takes a piece that a partition can replay, else a piece to read.
    fn take_task(&mut self, most_pieces: usize) -> Option<ReplayTask<'a>> {
        if self.is_abandoned {
            return None;
        }
        (0..self.partitions.len())
            .find_map(|partition| self.take_replay(partition))
            .or_else(|| self.take_read(most_pieces))
    }

    fn take_replay(&mut self, partition: usize) -> Option<ReplayTask<'a>> {
        if self.partitions[partition].is_taken {
            return None;
        }
        loop {
            let PartitionProgress { segment, piece, .. } = self.partitions[partition];
            let progress = self.segments.get(segment)?;
            let index = piece - progress.replayed;
            let Some((next, _)) = progress.pieces.get(index) else {
                if !progress.is_read {
                    return None;
                }
                self.partitions[partition] = PartitionProgress { segment: segment + 1, ..Default::default() };
                continue;
            };
            if self.is_behind_failure(LogPlace::new(segment, next.start)) {
                return None;
            }
            if !next.places[partition].is_empty() {
                let piece = Arc::clone(next);
                self.partitions[partition].is_taken = true;
                return Some(ReplayTask::Replay { segment, partition, piece });
            }
            self.finish_piece(partition);
        }
    }

    /// Records that a partition has replayed its next piece.
    fn finish_piece(&mut self, partition: usize) {
        let of_partition = &mut self.partitions[partition];
        let progress = &mut self.segments[of_partition.segment];
        progress.pieces[of_partition.piece - progress.replayed].1 -= 1;
        of_partition.piece += 1;
        of_partition.is_taken = false;
        while progress.pieces.front().is_some_and(|(_, left)| *left == 0) {
            progress.pieces.pop_front();
            progress.replayed += 1;
            self.pieces -= 1;
        }
    }

    fn is_empty_up_to(&self, segment: usize) -> bool {
        self.segments[..=segment].iter().all(|progress| progress.pieces.is_empty())
    }

    fn take_read(&mut self, most_pieces: usize) -> Option<ReplayTask<'a>> {
        let first = self.segments.iter().position(|progress| !progress.is_read)?;
        for segment in first..self.segments.len() {
            let progress = &self.segments[segment];
            // If no earlier piece is left, all partitions wait for this segment (I3).
            let has_room = self.pieces < most_pieces || segment == first && self.is_empty_up_to(segment);
            if !has_room || self.is_behind_failure(LogPlace::new(segment, progress.next)) {
                return None;
            }
            if let Some(scan) = self.segments[segment].scan.take() {
                self.pieces += 1;
                assert!(self.pieces <= most_pieces + 1, "journal_replay (I3): the pieces in memory are few");
                return Some(ReplayTask::Read { segment, scan });
            }
        }
        None
    }
}

/// Replay of the journal by several threads.
pub(super) struct JournalReplay<'a> {
    due: &'a [(&'a Segment, u64)],
    targets: &'a LogReplay<'a>,
    cut: Seq,
    sizes: JournalReplaySizes,
    state: Mutex<ReplayState<'a>>,
    changed: Condvar,
}

impl<'a> JournalReplay<'a> {
    /// Returns the replay of the segments `due`, each from an offset on.
    pub(super) fn new(
        due: &'a [(&'a Segment, u64)],
        targets: &'a LogReplay<'a>,
        cut: Seq,
        sizes: JournalReplaySizes,
    ) -> JournalReplay<'a> {
        let begin = |(segment, from): &(&'a Segment, u64)| SegmentProgress {
            scan: Some(SegmentScan::new(segment, *from, segment.end())),
            next: *from,
            is_read: false,
            pieces: VecDeque::new(),
            replayed: 0,
        };
        let state = ReplayState {
            segments: due.iter().map(begin).collect(),
            partitions: vec![PartitionProgress::default(); sizes.partitions],
            pieces: 0,
            active: 0,
            failure: None,
            is_abandoned: false,
            counts: ReplayCounts::default(),
        };
        JournalReplay { due, targets, cut, sizes, state: Mutex::new(state), changed: Condvar::default() }
    }

    /// Replays all records. Returns the first error in the order of the journal (I2).
    pub(super) fn run(self) -> Result<ReplayCounts> {
        run_parallel(self.sizes.threads, || {
            while let Some(task) = self.next_task() {
                let finished = TaskEnd(&self);
                match task {
                    ReplayTask::Read { segment, scan } => self.read(segment, scan),
                    ReplayTask::Replay { segment, partition, piece } => {
                        self.replay(segment, partition, &piece);
                    }
                }
                drop(finished);
            }
        });
        let state = self.state.into_inner();
        let is_whole = state.failure.is_some() || state.pieces == 0;
        assert!(is_whole, "journal_replay (I1): every partition has replayed every piece");
        match state.failure {
            Some((_, error)) => Err(error),
            None => Ok(state.counts),
        }
    }

    /// Returns the next task. Waits while other threads may create one. Returns `None` at the end.
    fn next_task(&self) -> Option<ReplayTask<'a>> {
        let mut state = self.state.lock();
        loop {
            if let Some(task) = state.take_task(self.sizes.most_pieces) {
                state.active += 1;
                return Some(task);
            }
            if state.active == 0 || state.is_abandoned {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }

    /// Verifies the next piece of a segment.
    fn read(&self, segment: usize, mut scan: SegmentScan<'a>) {
        let mut places = vec![Vec::new(); self.sizes.partitions];
        let (mut frames, mut start, mut end, mut failure) = (0, None, 0, None);
        for scanned in scan.by_ref().take(self.sizes.piece_frames) {
            frames += 1;
            start.get_or_insert(scanned.offset);
            end = scanned.offset + scanned.frame.span();
            match decode_record(self.due[segment].0, scanned.offset, &scanned.frame, self.cut) {
                Ok(Some(record)) => {
                    let partition = usize::from(stripe_of(record.keyspace, record.key)) % places.len();
                    places[partition].push(scanned.offset);
                }
                Ok(None) => {}
                Err(error) => {
                    failure = Some((scanned.offset, error));
                    break;
                }
            }
        }
        let is_read = failure.is_some() || frames < self.sizes.piece_frames;
        let mut rest = Some(scan);
        if is_read
            && failure.is_none()
            && let Some(ScanEnd::Torn(offset, error)) = rest.take().map(SegmentScan::stop)
        {
            failure = Some((offset, error));
        }
        let mut state = self.state.lock();
        state.counts.frames += frames as u64;
        if let Some((offset, error)) = failure {
            state.note_failure(LogPlace::new(segment, offset), error);
        }
        let progress = &mut state.segments[segment];
        (progress.is_read, progress.scan) = (is_read, rest.filter(|_| !is_read));
        match start {
            Some(start) => {
                progress.next = end;
                progress.pieces.push_back((Arc::new(JournalPiece { start, places }), self.sizes.partitions));
            }
            None => state.pieces -= 1,
        }
    }

    /// Passes the records of a piece that belong to a partition to the engines.
    fn replay(&self, segment: usize, partition: usize, piece: &JournalPiece) {
        let mut counts = ReplayCounts::default();
        let places = piece.places[partition].chunks(REPLAY_GROUP);
        let failure =
            places.map(|places| self.replay_group(segment, places, &mut counts)).find_map(Result::err);
        let mut state = self.state.lock();
        state.counts.add(&counts);
        match failure {
            // The partition stays taken: it must not get further.
            Some(failure) => state.note_failure(failure.0, failure.1),
            None => state.finish_piece(partition),
        }
    }

    fn replay_group(
        &self,
        segment: usize,
        places: &[u64],
        counts: &mut ReplayCounts,
    ) -> Result<(), PlacedError> {
        let file = self.due[segment].0;
        let at = |place: u64, error: Error| Box::new((LogPlace::new(segment, place), error));
        let mut unreadable = None;
        let mut frames: Vec<(u64, Frame<'_>)> = Vec::with_capacity(places.len());
        for place in places {
            match file.frame(*place, file.end()) {
                Ok(frame) => frames.push((*place, frame)),
                Err(error) => {
                    unreadable = Some(at(*place, error));
                    break;
                }
            }
        }
        let mut group = RecordGroup::new(segment, file);
        let mut pushes = frames.iter().map(|(place, frame)| {
            group.push(file, *place, frame, self.cut).map_err(|error| at(*place, error))
        });
        let unreadable = pushes.find_map(Result::err).or(unreadable);
        counts.add(&group.replay(self.targets)?); // also if a record behind them is damaged (I2)
        unreadable.map_or(Ok(()), Err)
    }
}

/// Ends a task when it is dropped, also after a panic.
struct TaskEnd<'r, 'a>(&'r JournalReplay<'a>);

impl Drop for TaskEnd<'_, '_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.active -= 1;
        state.is_abandoned |= std::thread::panicking();
        drop(state);
        self.0.changed.notify_all();
    }
}
