//! # Survivors: copies of the live entries of victims
//!
//! Copies are collected in a buffer for each stream, written with one system call, and then the
//! engines are repointed to them. `gc` states the invariants.

use std::ops::Range;
use std::sync::Arc;

use crate::space::log::LogState;
use crate::space::root_writer::{RootState, SurvivorTail, SurvivorTails};
use crate::{KeyspaceState, Store};
use sheaf_engine::contract::{Engine, HashedKey, Liveness, StoreLogIndex};
use sheaf_engine::window::stripe_of;
use sheaf_log::frame::{ALIGN_BYTES, FIRST, FrameHeader, FrameKind, HEADER, LAST};
use sheaf_log::record::{Record, RecordContent};
use sheaf_log::segment::{Address, DATA_START, Segment};
use sheaf_log::types::Seq;
use sheaf_platform::error::{Error, IoContext, IoOp, PoisonCause, Result};
use sheaf_platform::sync::epoch;

use super::{SORTED_STREAM, prefetch_for_relocate};

/// Bytes of copies that are written with one system call.
const COPY_BUFFER_BYTES: usize = 64 << 10;
/// Copies of one group of overlapping index lookups during repointing.
const REPOINT_GROUP: usize = 16;

/// Entry that GC copies.
pub(crate) struct Survivor<'f, 'k> {
    pub(crate) keyspace: &'k Arc<KeyspaceState>,
    pub(crate) liveness: Liveness,
    pub(crate) from: Address,
    pub(crate) header: FrameHeader,
    /// Payload of the frame, and its checksum.
    pub(crate) body: &'f [u8],
    pub(crate) checksum: u32,
    /// Decoded payload.
    pub(crate) record: Record<'f>,
    pub(crate) hashed_key: HashedKey<'f>,
}

/// Copy to which the index does not point yet.
struct PendingMove<'k> {
    keyspace: &'k Arc<KeyspaceState>,
    from: Address,
    to: Address,
    span: u64,
    /// Range of the key in the buffer, and its hash.
    key: Range<usize>,
    hash: u64,
    is_tombstone: bool,
    /// Blob that the entry refers to.
    blob: Option<u64>,
}

impl PendingMove<'_> {
    /// Returns the key, read from `bytes`, the buffer of the copy.
    fn hashed_key<'b>(&self, bytes: &'b [u8]) -> HashedKey<'b> {
        HashedKey { key: &bytes[self.key.clone()], hash: self.hash }
    }
}

/// Copies collected for one stream.
#[derive(Default)]
pub(crate) struct SurvivorBuffer<'k> {
    bytes: Vec<u8>,
    moves: Vec<PendingMove<'k>>,
    /// Lowest and highest seq of the copies.
    seqs: Option<(Seq, Seq)>,
    /// First error of repointing. The victims of these copies must not be freed.
    failed: Option<Error>,
}

impl SurvivorBuffer<'_> {
    /// Returns the error if an engine could not be repointed to a copy.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.failed.take().map_or(Ok(()), Err)
    }
}

impl Store {
    /// Appends a copy of a live entry to the buffer.
    pub(crate) fn copy_survivor<'k>(
        &self,
        tails: &mut SurvivorTails,
        log: &LogState,
        survivor: &Survivor<'_, 'k>,
        stream: u8,
        piece: &mut SurvivorBuffer<'k>,
    ) -> Result<()> {
        let &Survivor { keyspace, liveness, from, header, body, checksum: sum, record, hashed_key } =
            survivor;
        let copy = FrameHeader {
            check: 0,
            len: body.len(),
            kind: if liveness == Liveness::Pinned { FrameKind::Pinned } else { FrameKind::Relocated },
            flags: FIRST | LAST,
            seq: header.seq,
            part: 0,
            parts: 0,
            gap: 0,
        };
        let span = copy.span();
        self.ensure_tail(tails, log, stream, span, piece)?;
        let Some(tail) = tails.streams[usize::from(stream)].as_ref() else { return Ok(()) };
        let start = piece.bytes.len();
        let to = tail.offset + start as u64;
        let copy = FrameHeader { gap: if start == 0 { tail.segment.gap(to) } else { 0 }, ..copy };
        piece.bytes.extend_from_slice(&[0; HEADER]);
        piece.bytes.extend_from_slice(body);
        let padding = start + usize::try_from(span).unwrap_or(0) - piece.bytes.len();
        piece.bytes.extend_from_slice(&[0; ALIGN_BYTES][..padding]);
        tail.segment.seed().write_header(to, &copy, sum, &mut piece.bytes[start..]);
        let (low, high) = piece.seqs.unwrap_or((header.seq, header.seq));
        piece.seqs = Some((low.min(header.seq), high.max(header.seq)));
        let to = Address::new(tail.segment.slot(), to);
        let key = start + HEADER + (hashed_key.key.as_ptr().addr() - body.as_ptr().addr());
        let is_removal = matches!(record.content, RecordContent::Remove | RecordContent::RemoveRange(_));
        let is_tomb = is_removal && liveness == Liveness::Newest;
        let key = key..key + hashed_key.key.len();
        let (hash, blob) = (hashed_key.hash, record.content.blob_id());
        piece.moves.push(PendingMove { keyspace, from, to, span, key, hash, is_tombstone: is_tomb, blob });
        if piece.bytes.len() >= COPY_BUFFER_BYTES {
            self.flush_survivors(tails, log, stream, piece)?;
        }
        Ok(())
    }

    /// Ensures that `span` more bytes fit behind the buffer in the segment of the stream.
    fn ensure_tail(
        &self,
        tails: &mut SurvivorTails,
        log: &LogState,
        stream: u8,
        span: u64,
        piece: &mut SurvivorBuffer<'_>,
    ) -> Result<()> {
        if let Some(tail) = &tails.streams[usize::from(stream)] {
            if tail.offset + piece.bytes.len() as u64 + span <= tail.segment.identity().capacity {
                return Ok(());
            }
            self.flush_survivors(tails, log, stream, piece)?;
            if let Some(full) = tails.streams[usize::from(stream)].take() {
                full.segment.seal(full.segment.sealed_at());
                tails.unsynced.push(full.segment);
            }
        }
        let segment = self.survivor_segment(log, stream, span)?;
        tails.streams[usize::from(stream)] = Some(SurvivorTail { segment, offset: DATA_START });
        Ok(())
    }

    /// Creates a survivor segment. On a full disk it takes a preallocated one, except for sorting,
    /// which frees no space.
    fn survivor_segment(&self, log: &LogState, stream: u8, span: u64) -> Result<Arc<Segment>> {
        let made = self.create_segment(&mut self.root.next_segment.lock(), log.id, stream, span);
        match made {
            Err(full) if full.is_no_space() && stream != SORTED_STREAM => {
                let mut commit_state = self.pipeline.commit_state.lock();
                let ready = &mut commit_state.preallocated[log.id.index()];
                let fits = |s: &Arc<Segment>| s.identity().capacity >= DATA_START + span;
                // Half of the reserve stays for removals, which free space in the end.
                if ready.len() <= self.geometry.reserve_segments / 2 {
                    return Err(full);
                }
                // From the back: a segment in front may be next in the order of numbers.
                match ready.back().filter(|s| fits(s)).is_some().then(|| ready.pop_back()).flatten() {
                    Some(segment) => Ok(segment),
                    None => Err(full),
                }
            }
            other => other,
        }
    }

    /// Writes the buffer to the file and repoints the engines to the copies.
    pub(crate) fn flush_survivors(
        &self,
        tails: &mut SurvivorTails,
        log: &LogState,
        stream: u8,
        piece: &mut SurvivorBuffer<'_>,
    ) -> Result<()> {
        let Some((lowest, highest)) = piece.seqs.take() else { return Ok(()) };
        let Some(tail) = tails.streams[usize::from(stream)].as_mut() else { return Ok(()) };
        let segment = &tail.segment;
        if let Err(error) =
            segment.file().write_at(tail.offset, &piece.bytes).during(IoOp::Write, segment.path())
        {
            // Part of the buffer may be in the file, even whole frames. A later write over or
            // behind them would be read together with them. So the segment ends at its old end.
            segment.seal(segment.sealed_at());
            tails.unsynced.push(Arc::clone(segment));
            tails.streams[usize::from(stream)] = None;
            return Err(error);
        }
        segment.note_frames(0, lowest);
        segment.note_frames(u32::try_from(piece.moves.len()).unwrap_or(u32::MAX), highest);
        tail.offset += piece.bytes.len() as u64;
        segment.publish(tail.offset);
        log.note_relocated_bytes(piece.bytes.len() as u64);
        for moves in piece.moves.chunks(REPOINT_GROUP) {
            let pin = epoch::pin();
            let bytes = &piece.bytes;
            if let Err(error) =
                moves.iter().try_for_each(|copy| prefetch_for_relocate(copy.keyspace, copy.hashed_key(bytes)))
            {
                piece.failed.get_or_insert(error);
                continue;
            }
            for of_victim in moves.chunk_by(|a, b| a.from.slot() == b.from.slot()) {
                self.repoint(segment, &piece.bytes, of_victim, &pin);
            }
        }
        piece.moves.clear();
        piece.bytes.clear();
        Ok(())
    }

    /// Repoints the engines to copies, all from one victim. Holds the stripe of the key for each,
    /// so that a commit that supersedes the entry is applied either before or after.
    fn repoint(&self, to: &Segment, bytes: &[u8], moves: &[PendingMove<'_>], pin: &epoch::Guard) {
        let Some(first) = moves.first() else { return };
        let from = self.context.segments.at(first.from.slot(), pin);
        to.inherit_age(from.map_or(0, Segment::sealed_at));
        let (mut live, mut tombstone_bytes) = (0, 0);
        for copy in moves {
            if copy.is_tombstone {
                tombstone_bytes += copy.span;
                continue;
            }
            let hashed_key = copy.hashed_key(bytes);
            let stripe = [stripe_of(copy.keyspace.id(), hashed_key.key)];
            let _held = self.pipeline.stripes.lock(&stripe);
            let relocate =
                |index: &dyn StoreLogIndex| index.relocate(hashed_key, copy.from, copy.to, copy.blob);
            let moved = |engine: &Arc<dyn Engine>| engine.store_log_index().is_some_and(relocate);
            if copy.keyspace.engine().is_ok_and(moved) {
                live += copy.span;
            }
        }
        let live = i64::try_from(live).unwrap_or(0);
        to.add_tombstone(tombstone_bytes);
        to.add_live(live);
        if let Some(from) = from {
            from.add_live(-live);
        }
    }

    /// Makes all survivors durable.
    pub(crate) fn sync_survivors(&self, m: &mut RootState) -> Result<()> {
        let mut segments = Vec::new();
        for tails in m.survivors.iter_mut().flatten() {
            segments.append(&mut tails.unsynced);
            segments.extend(tails.streams.iter().flatten().map(|tail| Arc::clone(&tail.segment)));
        }
        segments.retain(|segment| segment.synced() < segment.end());
        let segments: Vec<_> = segments.into_iter().map(|segment| (segment.end(), segment)).collect();
        let helpers = self.take_helpers(segments.len());
        match self.sync_segments(&segments, helpers.threads()) {
            Ok(()) => {}
            Err(error @ Error::TooManyFiles { .. }) => {
                for (_, segment) in segments {
                    m.survivors_of(segment.identity().log, 1)[0].unsynced.push(segment);
                }
                return Err(error); // no sync was lost
            }
            Err(_) => return Err(self.poison(PoisonCause::Sync)),
        }
        for tail in m.survivors.iter_mut().flatten().flat_map(|tails| tails.streams.iter_mut().flatten()) {
            // Later copies must not share a sector with synced bytes.
            tail.offset = tail
                .offset
                .next_multiple_of(sheaf_platform::disk::SECTOR)
                .min(tail.segment.identity().capacity);
        }
        Ok(())
    }
}
