//! # Appending: a commit's frames at the ends of the logs
//!
//! Under the commit lock; what there is room for was looked at before (order I1), so that only the kernel can refuse. Where a run
//! crosses into the next segment the full one ends with a seal (order I2, tail I1).

use super::Store;
use super::encoded::{Encoded, Run};
use super::order::Order;
use super::tail::{HOT, MARK, Tail, log_of, tail_of};
use crate::error::Result;
use crate::frame::{FIRST, HEADER, Header, Kind, LAST, WATER, body_sum};
use crate::segment::{Address, DATA_START};
use crate::sync::atomic::Ordering;
use crate::types::Seq;

impl Store {
    /// Appends the encoded runs as commit `seq`. Any failure poisons.
    pub(super) fn append(
        &self,
        order: &mut Order,
        seq: Seq,
        encoded: &mut Encoded,
        mut placed: impl FnMut(usize, Address, u32),
    ) -> Result<bool> {
        let mut rolled = false;
        let parts = u8::try_from(encoded.runs.len()).unwrap_or(u8::MAX);
        for part in 0..parts {
            let run = encoded.runs[usize::from(part)];
            let log = self.log(run.log);
            let tail = tail_of(run.log, encoded.hot);
            // Set by rounds, taken under the commit lock only: what is set meanwhile is for the next commit.
            if log.water_due.load(Ordering::Relaxed) && log.water_due.swap(false, Ordering::Relaxed) {
                rolled |= self.append_note(order, tail)?;
            }
            let mut chunk = run.first;
            while chunk < run.end {
                let end = match &order.tails[tail] {
                    tail if chunk == run.first && run.bytes <= tail.room() => run.end,
                    tail => chunk + tail.fitting(encoded.bodies(Run { first: chunk, ..run })),
                };
                if end == chunk {
                    self.roll(order, tail)?;
                    rolled = true;
                    continue;
                }
                let header = |index: usize, len: usize| Header {
                    check: 0,
                    len,
                    kind: Kind::Commit,
                    flags: if index == run.first { FIRST } else { 0 }
                        | if index + 1 == run.end { LAST } else { 0 },
                    seq,
                    part,
                    parts,
                    gap: 0,
                };
                append_chunk(&mut order.tails[tail], encoded, (chunk, end), header, &mut placed)
                    .map_err(|_| self.poison("append"))?;
                chunk = end;
            }
            log.note_appended(run.bytes);
        }
        Ok(rolled)
    }

    /// Appends a note of the durable watermark.
    pub(crate) fn append_note(&self, order: &mut Order, tail: usize) -> Result<bool> {
        let mut rolled = false;
        if order.tails[tail].segment.is_none() || order.tails[tail].room() < MARK {
            if order.ready[log_of(tail).index()].is_empty() {
                return Ok(false); // a note is a help to recovery, not a promise
            }
            self.roll(order, tail)?;
            rolled = true;
        }
        let body = self.durable().0.to_le_bytes();
        self.append_mark(&mut order.tails[tail], Kind::Note, WATER, body)?;
        Ok(rolled)
    }

    /// Appends a frame that is no operation.
    fn append_mark(&self, tail: &mut Tail, kind: Kind, flags: u8, body: [u8; 8]) -> Result<()> {
        let Some(segment) = tail.segment.as_ref() else { return Ok(()) };
        let mut bytes = [0; HEADER + 8];
        bytes[HEADER..].copy_from_slice(&body);
        let flags = FIRST | LAST | flags;
        let gap = segment.gap(tail.offset);
        let header =
            Header { check: 0, len: body.len(), kind, flags, seq: self.visible(), part: 0, parts: 0, gap };
        segment.seed().seal(tail.offset, &header, body_sum(&body), &mut bytes);
        segment.file().append_at(tail.offset, &bytes).map_err(|_| self.poison("append"))?;
        tail.offset += MARK;
        tail.dirty = true;
        segment.publish(tail.offset);
        Ok(())
    }

    /// Seals the present segment, naming the next ready one, and goes on there.
    fn roll(&self, order: &mut Order, tail: usize) -> Result<()> {
        let log = self.log(log_of(tail));
        let Some(next) = order.ready[log.id.index()].pop_front() else {
            return Err(self.poison("log rotation"));
        };
        let hot = tail == HOT;
        let tail = &mut order.tails[tail];
        if tail.segment.as_ref().is_some_and(|full| tail.offset + MARK <= full.identity().capacity) {
            self.append_mark(tail, Kind::Seal, 0, next.id().0.to_le_bytes())?;
        }
        if let Some(full) = tail.segment.take() {
            full.seal(log.clock());
            self.sealed.fetch_add(1, Ordering::Relaxed);
            tail.unsynced.push(full);
        }
        next.set_hot(hot);
        (tail.offset, tail.segment, tail.dirty) = (DATA_START, Some(next), true);
        Ok(())
    }
}

/// Seals, places and appends the pieces `from..to`, which fit into the present segment.
fn append_chunk(
    tail: &mut Tail,
    encoded: &mut Encoded,
    (from, to): (usize, usize),
    header: impl Fn(usize, usize) -> Header,
    placed: &mut impl FnMut(usize, Address, u32),
) -> std::io::Result<()> {
    let Some(segment) = tail.segment.as_ref() else { return Err(std::io::Error::other("no open segment")) };
    let base = encoded.pieces[from].start;
    let mut end = base;
    for index in from..to {
        let piece = encoded.pieces[index];
        let gap = if index == from { segment.gap(tail.offset) } else { 0 };
        let header = Header { gap, ..header(index, piece.body) };
        let offset = tail.offset + (piece.start - base) as u64;
        segment.seed().seal(offset, &header, piece.sum, &mut encoded.bytes[piece.start..]);
        let span = header.span();
        end = piece.start + usize::try_from(span).unwrap_or(0);
        placed(piece.write, Address::new(segment.slot(), offset), u32::try_from(span).unwrap_or(u32::MAX));
    }
    segment.file().append_at(tail.offset, &encoded.bytes[base..end])?;
    let seq = header(from, 0).seq;
    tail.offset += (end - base) as u64;
    tail.dirty = true;
    segment.note_frames(u32::try_from(to - from).unwrap_or(u32::MAX), seq);
    segment.publish(tail.offset);
    Ok(())
}
