//! # Order: how a commit gets its seq and becomes visible
//!
//! ## Picture
//!
//! ```text
//!  outside                 | stripes of the keys held     | outside
//!  limits, staging, hint,  | is_current, reserve seq and  | wait until visible,
//!  encode, body sums,      | places (one exchange), copy  | acknowledge: nothing,
//!  prepare                 | frames, apply, complete      | or a sync round
//! ```
//!
//! Commits with different stripes do this in parallel. One that exceeds the open segments, stages
//! values or has to write a note first reserves under the order lock, with the window closed.
//!
//! ## Invariants
//!
//! 1. A commit has a seq only when all its frames have places in ready segments. Only the copy can
//!    fail after that, and it poisons.
//! 2. A commit's frames are one unbroken run in each log; a segment that it fills ends with a seal.
//! 3. `apply` sees the commits of one key in the order of their seqs.
//! 4. A commit returns when it and all before it are complete, so that no kill removes it. If it
//!    fails or panics after its seq, it never completes: waits for it or a later one fail. A panic
//!    while it is being applied ends reads too: no reader sees half of it.
//! 5. A thread with stripes waits for nothing but earlier seqs; it takes the order lock after them.
//!
//! ## Costs
//!
//! One exchange of 16 bytes, one of each stripe, one of `visible`, and the copy (0.1 µs if mapped,
//! 0.6 µs by `pwrite`, for a small commit); no allocation for a single operation (decisions/0017).

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use smallvec::SmallVec;

use super::append::{Chunk, Chunks};
use super::encoded::{ENCODED, Encoded, Item, Run, encode_writes};
use super::log::RoomWanted;
use super::stall::{StallKind, Waits};
use super::tail::{MARK, Tail, tail_of};
use super::{Kept, Store};
use crate::blob::{Staged, Unsynced};
use crate::engine::{Action, Need, Op, Wanted};
use crate::error::{Error, Result};
use crate::frame::HEADER;
use crate::record::{Content, Record};
use crate::segment::{Address, Segment};
use crate::sync::atomic::Ordering;
use crate::sync::epoch::{self, Guard};
use crate::types::{KeyspaceId, LogId, MAX_KEY, MAX_VALUE, Seq};
use crate::window::{Alone, HeldStripes, Reserve, Shape, StripeList, TAILS, Word, stripe_of};

/// Times that one commit has memory taken back, and tries again.
const MOST_RELIEFS: usize = 2;

/// One operation of a commit.
#[derive(Debug)]
pub struct Write<'a> {
    /// Whose.
    pub kept: &'a Arc<Kept>,
    /// What.
    pub op: Op<'a>,
}

impl Write<'_> {
    /// Looks again at an expectation, under the guard that lasts until `apply`. The look it came with may be
    /// old, and what it noted may stand for something else by now: places are used again, numbers never.
    fn expects_what_is(&mut self) -> Result<bool> {
        let mut again = Op { hash: self.op.hash, ..Op::new(self.op.key, Action::Expect) };
        self.kept.engine()?.prepare(&mut again)?;
        let is_same = again.prior == self.op.prior;
        self.op = again;
        Ok(is_same)
    }
}

/// How a commit ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It has this number; one that changed nothing has the newest one's.
    Done(Seq),
    /// An expected key changed; nothing was written.
    Stale,
}

/// What the order lock guards.
#[derive(Debug, Default)]
pub(crate) struct Order {
    pub(crate) tails: [Tail; TAILS],
    /// Empty segments of each log in the order of their numbers.
    pub(crate) ready: [VecDeque<Arc<Segment>>; LogId::ALL.len()],
    /// Staged files of commits the device does not have.
    pub(crate) staged: Unsynced,
}

/// What came of an attempt to commit.
enum Turn {
    /// The outcome, once all readers see the commit `upto`.
    Done(Outcome, Seq),
    /// One of the keyspaces is held.
    Held,
    /// ROOT is to cover more numbers.
    WantsNumbers,
    /// ROOT is to list the first segment of a tail.
    WantsListing,
    /// A run does not fit into its log's segment; whether the background makes the next one.
    WantsRoom { run: Run, is_awaited: bool },
}

/// Operations of a batch whose look-ups overlap.
const TOGETHER: usize = 16;

impl Store {
    /// Commits `writes` as one. On return it is in the kernel and visible. The caller holds no lock
    /// and no guard.
    pub fn commit(&self, writes: &mut [Write<'_>]) -> Result<Outcome> {
        self.commit_staged(writes, &mut SmallVec::new())
    }

    /// The same, or [`Error::Busy`] if it would have to wait for more than other commits: nothing is left of it then.
    pub fn try_commit(&self, writes: &mut [Write<'_>]) -> Result<Outcome> {
        self.commit_waiting(writes, &mut SmallVec::new(), &mut Waits::impatient())
    }

    /// As [`Store::commit`] for `writes` whose values are `staged` already, as far as they are. What is committed is taken.
    pub fn commit_staged(
        &self,
        writes: &mut [Write<'_>],
        staged: &mut SmallVec<[Staged; 1]>,
    ) -> Result<Outcome> {
        let mut waits = Waits::patient();
        let done = self.commit_waiting(writes, staged, &mut waits);
        self.tell_waits(waits);
        done
    }

    /// The same; what it waited for is noted in `waits`.
    pub(super) fn commit_waiting(
        &self,
        writes: &mut [Write<'_>],
        staged: &mut SmallVec<[Staged; 1]>,
        waits: &mut Waits,
    ) -> Result<Outcome> {
        self.check_writable()?;
        self.brake(writes, waits)?;
        self.delay_for_conversions(writes, waits)?;
        self.stage(writes, staged)?;
        let (mut may_relieve, mut reliefs) = (true, 0..MOST_RELIEFS);
        let mut may_wait = waits.may_wait() && self.options.checkpoints;
        writes.iter_mut().for_each(|write| write.op.may_wait = may_wait);
        let kept = writes.first().map(|write| write.kept);
        loop {
            // What makes room does so without the guard: it would keep what is freed from going.
            match self.commit_pinned(writes, staged, waits) {
                Err(
                    refused @ (Error::NoSpace { .. } | Error::FileLimit { .. } | Error::OverBudget { .. }),
                ) if !waits.may_wait() => {
                    return Err(self.busy_instead(refused, writes));
                }
                Err(refused @ (Error::NoSpace { .. } | Error::FileLimit { .. }))
                    if mem::take(&mut may_relieve) =>
                {
                    let only_removes = removes_only(writes);
                    if !self.waiting(waits, StallKind::Space, kept, || self.relieve(only_removes))? {
                        return Err(refused);
                    }
                }
                Err(Error::OverBudget { .. }) if mem::take(&mut may_wait) => {
                    writes.iter_mut().for_each(|write| write.op.may_wait = false);
                    self.waiting(waits, StallKind::Memory, kept, || self.await_checkpoint(writes))?;
                }
                Err(Error::OverBudget { .. }) if reliefs.next().is_some() => {
                    self.waiting(waits, StallKind::Memory, kept, || self.reclaim_memory(writes))?;
                }
                // It may be another keyspace afterwards, which is found out at the next attempt.
                Ok(None) => self.waiting(waits, StallKind::Conversion, kept, || {
                    writes.iter().for_each(|w| w.kept.watch.wait());
                    Ok(())
                })?,
                Ok(Some(done)) => {
                    if self.ground.memory.total() > self.ground.memory.shed_limit() {
                        self.relieve_after(writes, waits);
                    }
                    return Ok(done);
                }
                Err(refused) => return Err(refused),
            }
        }
    }

    #[cold]
    fn relieve_after(&self, writes: &[Write<'_>], waits: &mut Waits) {
        if !self.ground.memory.is_exceeded() {
            return self.shed_a_little();
        }
        match writes.iter().find(|w| w.kept.engine().is_ok_and(|e| e.is_swollen())) {
            // The commit stands; the next one has the trouble.
            Some(write) if waits.may_wait() => {
                drop(self.waiting(waits, StallKind::Memory, Some(write.kept), || self.relieve_memory(writes)))
            }
            Some(_) => self.want_memory(),
            None => {}
        }
    }

    /// What a commit that may not wait answers in place of `refused`, where one that may would have something done about it.
    #[cold]
    fn busy_instead(&self, refused: Error, writes: &[Write<'_>]) -> Error {
        let is_swollen = || writes.iter().any(|w| w.kept.engine().is_ok_and(|e| e.is_swollen()));
        match refused {
            Error::OverBudget { .. } if self.options.checkpoints && is_swollen() => {
                self.want_memory();
                Error::Busy { with: StallKind::Memory.name() }
            }
            // Trying again helps if something gave way; pages that have to stay do not.
            Error::OverBudget { .. } if self.shed_for_commit() => {
                Error::Busy { with: StallKind::Memory.name() }
            }
            other => {
                self.signals.wake();
                other
            }
        }
    }

    /// Slows down commits that are too far ahead of a conversion.
    fn delay_for_conversions(&self, writes: &[Write<'_>], waits: &mut Waits) -> Result<()> {
        for write in writes.iter().filter(|w| w.kept.watch.is_on() && w.kept.watch.is_ahead()) {
            self.waiting(waits, StallKind::Conversion, Some(write.kept), || {
                write.kept.watch.delay();
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Returns `None` if one of the keyspaces is held. Waits without the guard: memory that others
    /// free during the wait would stay.
    fn commit_pinned(
        &self,
        writes: &mut [Write<'_>],
        staged: &mut SmallVec<[Staged; 1]>,
        waits: &mut Waits,
    ) -> Result<Option<Outcome>> {
        // Between making a segment and using it, the commit is prepared again, which may take long.
        let mut wanted: [Option<RoomWanted<'_>>; LogId::ALL.len()] = Default::default();
        loop {
            let turn = {
                let pin = epoch::pin(); // engines' notes hold addresses until apply
                let mut commit = |encoded: &mut Encoded| self.commit_encoded(writes, staged, encoded, &pin);
                ENCODED.with(|encoded| commit(&mut encoded.borrow_mut()))?
            };
            match turn {
                Turn::Done(outcome, upto) => {
                    self.progress.wait(upto)?;
                    return Ok(Some(outcome));
                }
                Turn::Held => return Ok(None),
                Turn::WantsNumbers => self.numbers_for(waits)?,
                // No background task does this ahead of writers, so a writer that may not wait does it, too.
                Turn::WantsListing => self.extend_bounds()?,
                Turn::WantsRoom { run, is_awaited } => {
                    wanted[run.log.index()].get_or_insert_with(|| self.log(run.log).want_room());
                    ENCODED
                        .with(|encoded| self.room_for(run, is_awaited, writes, &encoded.borrow(), waits))?;
                }
            }
        }
    }

    /// Checks limits and stages large values.
    fn stage(&self, writes: &mut [Write<'_>], staged: &mut SmallVec<[Staged; 1]>) -> Result<()> {
        let too_large =
            |what, got: usize, max: usize| Err(Error::TooLarge { what, got: got as u64, max: max as u64 });
        let (mut total, mut stages) = (0u64, false);
        for write in writes.iter() {
            let op = &write.op;
            let value = match op.action {
                Action::Put(value) => value.len(),
                _ => 0,
            };
            if op.key.len() > MAX_KEY {
                return too_large("key", op.key.len(), MAX_KEY);
            }
            if value > MAX_VALUE {
                return too_large("value", value, MAX_VALUE);
            }
            let is_staged = value > self.stages_above(write.kept.stages_above());
            stages |= is_staged;
            total += (op.key.len() + if is_staged { 64 } else { value } + HEADER) as u64;
        }
        if total > self.geometry.max_batch {
            return Err(Error::TooLarge { what: "batch", got: total, max: self.geometry.max_batch });
        }
        if stages { self.stage_values(writes, staged) } else { Ok(()) }
    }

    #[cold]
    fn stage_values(&self, writes: &mut [Write<'_>], staged: &mut SmallVec<[Staged; 1]>) -> Result<()> {
        for write in writes.iter_mut() {
            if let Action::Put(value) = write.op.action
                && value.len() > self.stages_above(write.kept.stages_above())
            {
                let adopts = write.kept.engine()?.adopts_files();
                let new = self.stage_value(value, adopts)?;
                write.op.action = Action::Staged(new.blob);
                staged.push(new);
            }
        }
        Ok(())
    }

    /// Asks the engines about the operations before the commit has a number, and makes their
    /// frames. Returns false if an expected key changed.
    fn prepare(&self, writes: &mut [Write<'_>], encoded: &mut Encoded) -> Result<bool> {
        encoded.needs.clear();
        if let [write] = writes
            && !matches!(write.op.action, Action::Expect)
        {
            // The frame is made while the memory that the look-up reads is on its way.
            let engine = write.kept.engine()?;
            let wanted = engine.wanted(write.op.key);
            engine.hint(wanted);
            write.op.hash = Some(wanted.hash);
            encoded.needs.push(Need::Record);
            encode_writes(std::slice::from_ref(write), encoded);
            let need = engine.prepare(&mut write.op)?;
            if need != Need::Record {
                encoded.needs[0] = need;
                encode_writes(writes, encoded);
            }
            return Ok(true);
        }
        for first in (0..writes.len()).step_by(TOGETHER) {
            let end = writes.len().min(first + TOGETHER);
            prefetch(&mut writes[first..end])?;
            for (index, write) in (first..).zip(&mut writes[first..end]) {
                write.op.ahead = u32::try_from(index).unwrap_or(u32::MAX);
                encoded.needs.push(match write.op.action {
                    Action::Expect => match write.expects_what_is()? {
                        true => Need::Nothing,
                        false => return Ok(false),
                    },
                    _ => write.kept.engine()?.prepare(&mut write.op)?,
                });
            }
        }
        encode_writes(writes, encoded);
        Ok(true)
    }

    fn commit_encoded(
        &self,
        writes: &mut [Write<'_>],
        staged: &mut SmallVec<[Staged; 1]>,
        encoded: &mut Encoded,
        guard: &Guard,
    ) -> Result<Turn> {
        let stripes = stripes_of(writes);
        if !self.prepare(writes, encoded)? {
            return Ok(Turn::Done(Outcome::Stale, self.last_of(&stripes)));
        }
        let is_outdated = |w: &Write<'_>| !w.kept.engine().is_ok_and(|engine| engine.is_current(&w.op));
        loop {
            let held = self.stripes.hold(&stripes);
            self.check_writable()?;
            if let Some(gone) = writes.iter().find(|w| w.kept.is_gone()) {
                return Err(Error::NoKeyspace { name: gone.kept.name().to_owned() });
            }
            if writes.iter().any(|w| w.kept.watch.is_held()) {
                return Ok(Turn::Held);
            }
            if let Some(first) = writes.iter().position(is_outdated) {
                // A checkpoint outdates a whole batch at once, so all are found in one pass.
                let outdated: SmallVec<[usize; 1]> =
                    (first..writes.len()).filter(|index| is_outdated(&writes[*index])).collect();
                let last = held.last();
                drop(held);
                if !prepare_again(writes, encoded, &outdated)? {
                    return Ok(Turn::Done(Outcome::Stale, last));
                }
                continue;
            }
            if encoded.runs.is_empty() {
                let last = held.last();
                return Ok(Turn::Done(Outcome::Done(self.visible().max(last)), last));
            }
            let placed = match self.place(writes, encoded, staged, guard)? {
                Place::Refused(turn) => return Ok(turn),
                Place::Taken(placed) => placed,
            };
            let seq = self.carry_out(placed, writes, encoded, &held)?;
            return Ok(Turn::Done(Outcome::Done(seq), seq));
        }
    }

    /// Returns the last commit that may have changed a key of these stripes.
    fn last_of(&self, stripes: &[u16]) -> Seq {
        stripes.iter().map(|stripe| self.stripes.last(*stripe)).max().unwrap_or(Seq::ZERO)
    }

    /// Waits until the commit is visible that may have removed `key`, which a reader of the newest
    /// state did not find: until then a kill of the process could bring the key back.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Poisoned`] if that commit failed.
    #[inline]
    pub fn reveal_missing(&self, kept: &Kept, key: &[u8]) -> Result<()> {
        self.progress.wait(self.stripes.last(stripe_of(kept.id(), key)))
    }

    /// Segments that a commit may not use up: none if it only removes, which makes room.
    fn reserve(&self, only_removes: bool) -> usize {
        if only_removes { 0 } else { self.geometry.reserve }
    }

    /// Has ROOT cover more numbers, which the background does ahead of writers.
    #[cold]
    fn numbers_for(&self, waits: &mut Waits) -> Result<()> {
        if !waits.may_wait() {
            self.signals.wake();
            if self.options.inline {
                return self.extend_bounds();
            }
        }
        self.waiting(waits, StallKind::Segment, None, || self.extend_bounds())
    }

    /// Makes a segment for a run that does not fit. One that the background keeps ready is waited for, and may not be waited for;
    /// one that only this commit needs is made by it.
    #[cold]
    fn room_for(
        &self,
        run: Run,
        is_awaited: bool,
        writes: &[Write<'_>],
        encoded: &Encoded,
        waits: &mut Waits,
    ) -> Result<()> {
        let wanted = encoded.wanted(run, self.geometry.max_segment);
        let reserve = self.reserve(removes_only(writes));
        let make = || self.make_room(run.log, wanted, |order| self.is_cramped(order, encoded, reserve));
        if !waits.may_wait() {
            if !is_awaited {
                return make();
            }
            self.signals.wake();
        }
        let kept = writes.iter().find(|write| write.kept.log() == run.log).map(|write| write.kept);
        self.waiting(waits, StallKind::Segment, kept, make)
    }

    /// Returns whether all that a commit to the flat log replaces was written lately. While
    /// committers wait for syncs, all commits use one tail: a second file would cost each round a
    /// second sync.
    fn is_hot(&self, next: Seq, writes: &[Write<'_>]) -> bool {
        let lifespan = self.lifespan.load(Ordering::Relaxed);
        let lately = |op: &Op<'_>| op.prior != Seq::ZERO && next.0.saturating_sub(op.prior.0) <= lifespan;
        !self.round.is_busy() && writes.iter().all(|w| w.kept.log() != LogId::Flat || lately(&w.op))
    }

    /// Reserves the seq and the places of a commit.
    #[inline]
    fn place<'g>(
        &'g self,
        writes: &[Write<'_>],
        encoded: &mut Encoded,
        staged: &mut SmallVec<[Staged; 1]>,
        guard: &'g Guard,
    ) -> Result<Place<'g>> {
        let is_plain = staged.is_empty()
            && encoded.runs.iter().all(|run| !self.log(run.log).water_due.load(Ordering::Relaxed));
        if is_plain {
            let hot = self.is_hot(self.visible().next(), writes);
            encoded.hot = hot;
            let runs = &encoded.runs;
            let reserved = self.window.reserve(guard, |shape, word| self.fit(shape, word, runs, hot));
            if let Some((Some((seq, offsets)), shape)) = reserved {
                return Ok(Place::Taken(Placed::Within { seq, offsets, shape }));
            }
        }
        self.place_slowly(writes, encoded, staged)
    }

    /// Reserves in the open segments, if the runs fit into them.
    #[inline]
    fn fit(
        &self,
        shape: &Shape,
        word: &mut Word,
        runs: &[Run],
        hot: bool,
    ) -> Reserve<Option<(Seq, [u64; LogId::ALL.len()])>> {
        let mut offsets = [0; LogId::ALL.len()];
        for run in runs {
            let tail = tail_of(run.log, hot);
            let offset = word.offset(tail);
            match &shape.tails[tail] {
                Some(open) if offset + run.bytes <= open.limit => {}
                _ => return Reserve::No(None),
            }
            offsets[run.log.index()] = offset;
            word.set_offset(tail, offset + run.bytes);
        }
        if word.next().0 >= self.seq_bound.load(Ordering::Relaxed) {
            return Reserve::No(None);
        }
        Reserve::Yes(Some((word.take_seq(), offsets)))
    }

    /// Reserves under the order lock, with the window closed.
    #[cold]
    fn place_slowly<'g>(
        &self,
        writes: &[Write<'_>],
        encoded: &mut Encoded,
        staged: &mut SmallVec<[Staged; 1]>,
    ) -> Result<Place<'g>> {
        let reserve = self.reserve(removes_only(writes));
        let mut order = self.order.lock();
        self.check_writable()?;
        let mut closed = self.window.close();
        let next = closed.word.next();
        encoded.hot = self.is_hot(next, writes);
        if next.0 >= self.seq_bound.load(Ordering::Relaxed) {
            return Ok(Place::Refused(Turn::WantsNumbers));
        }
        if let Some(run) = order.cramped(encoded, reserve, closed.word) {
            let is_awaited = self.is_awaited(&order, run.log, encoded.wanted(run, u64::MAX));
            return Ok(Place::Refused(Turn::WantsRoom { run, is_awaited }));
        }
        if order.begins_unlisted(encoded) {
            return Ok(Place::Refused(Turn::WantsListing));
        }
        let (seq, chunks, rolled) = self.place_across(&mut order, &mut closed, encoded)?;
        staged.drain(..).for_each(|one| order.staged.add(one));
        drop(closed);
        drop(order);
        if rolled {
            self.set_brake(); // the keeper may not get to run for a while
            self.signals.wake();
        }
        Ok(Place::Taken(Placed::Across { seq, chunks }))
    }

    /// Copies a commit that has a seq to the logs, applies it and completes it.
    #[inline]
    fn carry_out(
        &self,
        placed: Placed<'_>,
        writes: &mut [Write<'_>],
        encoded: &mut Encoded,
        held: &HeldStripes<'_>,
    ) -> Result<Seq> {
        let seq = placed.seq();
        let mut whole = Whole::begin(self, seq, |last| held.set_last(last));
        let copied = self.copy_frames(&placed, encoded, |index, address, span| {
            writes[index].op.address = address;
            writes[index].op.span = span;
        });
        if copied.is_err() {
            return whole.give_up();
        }
        whole.is_begun = true;
        let views = self.view_slots.collect();
        let mut counts = [(0, 0); LogId::ALL.len()];
        for write in writes.iter() {
            if write.op.address != Address::NONE
                && let Ok(engine) = write.kept.engine()
            {
                let (operations, removals) = &mut counts[write.kept.log().index()];
                *operations += 1;
                *removals += u64::from(matches!(write.op.action, Action::Remove));
                engine.apply(seq, &write.op, &views);
                if write.kept.watch.is_on() {
                    write.kept.watch.note(write.op.key);
                }
            }
        }
        for (log, (operations, removals)) in self.logs.iter().zip(counts).filter(|(_, (some, _))| *some > 0) {
            log.note_operations(operations, removals);
        }
        self.note_unsynced();
        let completed = self.progress.complete(seq);
        whole.reached();
        completed?;
        Ok(seq)
    }

    /// Copies the frames of a commit to their places.
    #[inline]
    fn copy_frames(
        &self,
        placed: &Placed<'_>,
        encoded: &mut Encoded,
        mut noted: impl FnMut(usize, Address, u32),
    ) -> std::io::Result<()> {
        match placed {
            Placed::Within { seq, offsets, shape } => {
                for part in 0..encoded.runs.len() {
                    let run = encoded.runs[part];
                    let offset = offsets[run.log.index()];
                    let Some(open) = &shape.tails[tail_of(run.log, encoded.hot)] else { continue };
                    let (segment, gap) = (&*open.segment, open.gap_at(offset));
                    let part = u8::try_from(part).unwrap_or(u8::MAX);
                    let chunk = Chunk { segment, offset, gap, part, from: run.first, to: run.end };
                    Store::copy_chunk(*seq, encoded, &chunk, &mut noted)?;
                }
            }
            Placed::Across { seq, chunks } => {
                for chunk in chunks {
                    let Chunk { segment, offset, gap, part, from, to } = chunk;
                    let (offset, gap, part, from, to) = (*offset, *gap, *part, *from, *to);
                    let chunk = Chunk { segment: &**segment, offset, gap, part, from, to };
                    Store::copy_chunk(*seq, encoded, &chunk, &mut noted)?;
                }
            }
        }
        encoded.runs.iter().for_each(|run| self.log(run.log).note_appended(run.bytes));
        Ok(())
    }

    /// There is a commit that the device does not have.
    #[inline]
    fn note_unsynced(&self) {
        if self.unsynced_since.load(Ordering::Relaxed) == 0 {
            let now = u64::try_from(self.clock.now().as_nanos()).unwrap_or(u64::MAX - 1);
            self.unsynced_since.store(now + 1, Ordering::Relaxed);
        }
    }

    /// Closes the window for good, as the frames of commit `seq` could not be copied or it
    /// panicked. If no later commit has a seq, this one is taken back: it was never visible.
    fn fail_commit(&self, seq: Seq, reason: &'static str) -> Error {
        let error = self.poison(reason);
        self.progress.fail(seq, reason);
        let _order = self.order.lock();
        let mut closed = self.window.close();
        if closed.word.reserved() == seq {
            closed.word.give_back_seq();
        }
        closed.end();
        error
    }

    /// Commits records that belong to no engine: the catalogue's. `apply` runs while no other
    /// commit does.
    pub(crate) fn commit_catalogue(&self, records: &[Record<'_>], apply: impl FnOnce(Seq)) -> Result<Seq> {
        debug_assert!(records.iter().all(|r| r.keyspace == KeyspaceId::CATALOGUE));
        let mut encoded = Encoded::default();
        encoded.encode(records.iter().map(|record| Item { log: LogId::Journal, record: *record, write: 0 }));
        loop {
            let alone = self.stripes.alone();
            let mut order = self.order.lock();
            self.check_writable()?;
            let mut closed = self.window.close();
            if closed.word.next().0 >= self.seq_bound.load(Ordering::Relaxed) {
                drop((closed, order, alone));
                self.extend_bounds()?;
                continue;
            }
            let reserve = self.reserve(records.iter().all(|record| record.content == Content::Remove));
            if let Some(run) = order.cramped(&encoded, reserve, closed.word) {
                drop((closed, order, alone));
                let wanted = encoded.wanted(run, self.geometry.max_segment);
                self.make_room(run.log, wanted, |order| self.is_cramped(order, &encoded, reserve))?;
                continue;
            }
            if order.begins_unlisted(&encoded) {
                drop((closed, order, alone));
                self.extend_bounds()?;
                continue;
            }
            let (seq, chunks, _) = self.place_across(&mut order, &mut closed, &encoded)?;
            drop((closed, order));
            self.carry_out_catalogue(seq, chunks, &mut encoded, &alone, apply)?;
            return Ok(seq);
        }
    }

    fn carry_out_catalogue(
        &self,
        seq: Seq,
        chunks: Chunks,
        encoded: &mut Encoded,
        alone: &Alone<'_>,
        apply: impl FnOnce(Seq),
    ) -> Result<()> {
        let mut whole = Whole::begin(self, seq, |last| alone.set_last(last));
        if self.copy_frames(&Placed::Across { seq, chunks }, encoded, |_, _, _| {}).is_err() {
            return whole.give_up();
        }
        whole.is_begun = true;
        apply(seq);
        self.note_unsynced();
        let completed = self.progress.complete(seq);
        whole.reached();
        completed?;
        Ok(())
    }

    /// Returns whether a run does not fit into the ready segments.
    fn is_cramped(&self, order: &Order, encoded: &Encoded, reserve: usize) -> bool {
        order.cramped(encoded, reserve, self.window.word()).is_some()
    }
}

/// The place of a commit, if it got one.
enum Place<'g> {
    Taken(Placed<'g>),
    Refused(Turn),
}

/// The seq of a commit, and the places of its frames.
enum Placed<'g> {
    /// In the open segments: the offset in each log.
    Within { seq: Seq, offsets: [u64; LogId::ALL.len()], shape: &'g Shape },
    /// Reserved under the order lock.
    Across { seq: Seq, chunks: Chunks },
}

impl Placed<'_> {
    fn seq(&self) -> Seq {
        match self {
            Placed::Within { seq, .. } | Placed::Across { seq, .. } => *seq,
        }
    }
}

/// Returns the stripes of the keys of a commit, ascending and each once.
#[inline]
fn stripes_of(writes: &[Write<'_>]) -> StripeList {
    let mut stripes: StripeList =
        writes.iter().map(|write| stripe_of(write.kept.id(), write.op.key)).collect();
    if stripes.len() > 1 {
        stripes.sort_unstable();
        stripes.dedup();
    }
    stripes
}

/// Represents a commit between its seq and its end. A panic in between, an engine's or ours, leaves
/// half of it in the indexes: no reader may see that, and no other commit may take the seq.
struct Whole<'a, S: Fn(Seq)> {
    store: &'a Store,
    seq: Seq,
    /// The engines have begun to see it.
    is_begun: bool,
    /// Sets the last commit that may have changed a key of the stripes.
    set_last: S,
}

impl<'a, S: Fn(Seq)> Whole<'a, S> {
    #[inline]
    fn begin(store: &'a Store, seq: Seq, set_last: S) -> Whole<'a, S> {
        set_last(seq);
        Whole { store, seq, is_begun: false, set_last }
    }

    /// The commit is complete.
    fn reached(self) {
        mem::forget(self);
    }

    /// Ends a commit with frames that could not be copied; nothing was applied.
    fn give_up<T>(self) -> Result<T> {
        let error = self.not_begun();
        mem::forget(self);
        Err(error)
    }

    /// Ends a commit that no index has seen: reads go on.
    fn not_begun(&self) -> Error {
        (self.set_last)(Seq(self.seq.0 - 1));
        self.store.fail_commit(self.seq, "append")
    }
}

impl<S: Fn(Seq)> Drop for Whole<'_, S> {
    fn drop(&mut self) {
        if self.is_begun {
            self.store.poison_reads("commit");
            drop(self.store.fail_commit(self.seq, "commit"));
        } else {
            drop(self.not_begun());
        }
    }
}

/// Prepares the operations at these indexes again, and encodes the commit again if the needs of one
/// changed. Returns false if an expected key changed.
#[cold]
fn prepare_again(writes: &mut [Write<'_>], encoded: &mut Encoded, outdated: &[usize]) -> Result<bool> {
    let mut is_changed = false;
    for index in outdated {
        let write = &mut writes[*index];
        if matches!(write.op.action, Action::Expect) {
            return Ok(false);
        }
        let need = write.kept.engine()?.prepare(&mut write.op)?;
        is_changed |= need != encoded.needs[*index];
        encoded.needs[*index] = need;
    }
    if is_changed {
        encode_writes(writes, encoded);
    }
    Ok(true)
}

/// What the engines look up for several operations is loaded together.
fn prefetch(writes: &mut [Write<'_>]) -> Result<()> {
    for run in writes.chunk_by_mut(|a, b| Arc::ptr_eq(a.kept, b.kept)) {
        let engine = run[0].kept.engine()?;
        let wanted: SmallVec<[Wanted<'_>; TOGETHER]> =
            run.iter().map(|write| engine.wanted(write.op.key)).collect();
        if run.len() > 1 {
            engine.prefetch(&wanted, true);
        }
        for (write, wanted) in run.iter_mut().zip(wanted) {
            write.op.hash = Some(wanted.hash);
        }
    }
    Ok(())
}

/// Commits that only remove may use the reserve.
fn removes_only(writes: &[Write<'_>]) -> bool {
    writes.iter().all(|w| !matches!(w.op.action, Action::Put(_) | Action::Staged(_)))
}

impl Order {
    /// A run that does not fit into what is ready, without the reserve.
    fn cramped(&self, encoded: &Encoded, reserve: usize, word: Word) -> Option<Run> {
        let takes = |run: &Run| {
            let index = tail_of(run.log, encoded.hot);
            let (tail, offset) = (&self.tails[index], word.offset(index));
            run.bytes + MARK <= tail.room(offset)
                || tail.takes(offset, encoded.bodies(*run), &self.ready[run.log.index()], reserve)
        };
        encoded.runs.iter().copied().find(|run| !takes(run))
    }

    /// Whether a run would be the first in its tail, in a segment that ROOT does not list: no seal would name it, so that nobody
    /// could tell if it went (protocol, `naming`).
    fn begins_unlisted(&self, encoded: &Encoded) -> bool {
        encoded.runs.iter().any(|run| {
            let is_first = self.tails[tail_of(run.log, encoded.hot)].segment.is_none();
            is_first && self.ready[run.log.index()].front().is_some_and(|next| !next.is_listed())
        })
    }
}
