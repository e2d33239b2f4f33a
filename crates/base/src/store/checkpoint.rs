//! # Checkpoints: what makes opening fast, and lets the journal end somewhere
//!
//! ## Picture
//!
//! ```text
//!  position c (seq, open segments, next number), freeze | engines move what is frozen, while commits go on
//!      | images, fuzzily | W >= c2 | ROOT
//! ```
//!
//! An image holds everything up to c and some of what came until c2; replay from c brings the rest
//! (engines compare numbers). Entries of segments freed later are dropped on restore: what lived in them
//! was moved after c, so replay brings it (commit.md, scenario 9). The journal's segments before c go.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use super::background::{Look, Step};
use super::idle::Pace;
use super::image::{self, ImageWriter};
use super::log::{Log, Unsaved};
use super::order::Write;
use super::ready::{HASTE, PATIENCE};
use super::rooting::{Dying, Maintenance};
use super::tail::log_of;
use super::{Kept, Store};
use crate::engine::Engine;
use crate::error::{Error, IoContext, Result};
use crate::root::{CheckpointRef, Position};
use crate::segment::DATA_START;
use crate::sync::atomic::Ordering;
use crate::sync::epoch;
use crate::types::{LogId, SegmentId, Seq};
use crate::views::Views;
use crate::work::each_at_once;
use crate::{event, span};

/// A checkpoint is due after this many times its own size was appended.
const TIMES_IMAGE: u64 = 20;
/// On a full disk a checkpoint is due after so many of the smallest segments.
const FULL: u64 = 4;
/// The pressure, in hundredths, of as much of the journal as makes a checkpoint due, if none of it is moved.
const PACE: u64 = 80;
/// Where keyspaces were dropped so many times [`Geometry::gain_bytes`](super::Geometry) must be theirs, and half of what was appended: no more
/// than that is moved.
const DROPPED: u64 = 2;
/// Threads that save images of many keyspaces: each waits for the device most of the time.
const SAVERS: usize = 8;
/// So many keyspaces are many.
const MANY: usize = 16;
/// An image is written for a caller who asks for space if it is no larger than so many times what was appended since the last one.
const ASKED: u64 = 1024;
/// Steps of engines' work between two looks at the rest of the maintenance.
const STEPS: usize = 16;
/// Steps of engines that are done for who finds no room or no memory; on a full disk so many without a gain.
const RELIEVING: usize = 8;

/// A checkpoint whose images cannot be saved is left alone by the background for so long, for twice as long after each further attempt, and
/// for [`MOST_REST`] at most: an attempt writes the images of all keyspaces, and what keeps it from ending does so for a while.
const REST: Duration = Duration::from_millis(50);
const MOST_REST: Duration = Duration::from_secs(5);

/// A checkpoint that has begun: its position is taken, and engines move what they froze there.
#[derive(Debug)]
pub(crate) struct Pending {
    reference: CheckpointRef,
    kepts: Vec<Arc<Kept>>,
    slots: Vec<(u32, SegmentId)>,
    unsaved: Unsaved,
    /// After an attempt to end it that failed: how long it is left alone, and until when.
    rest: Option<(Duration, Duration)>,
}

/// Whether these have taken in what the last start replayed.
fn is_caught_up(kepts: &[Arc<Kept>]) -> bool {
    kepts.iter().all(|kept| kept.engine().is_ok_and(|engine| engine.is_caught_up()))
}

impl Store {
    /// Bytes appended to `log` after which its checkpoint is due.
    fn due_after(&self, log: &Log) -> u64 {
        let asked =
            |k: &Arc<Kept>| k.engine().ok().filter(|_| k.log() == log.id).map(|e| e.checkpoint_after());
        let asked = self.catalogue.present().iter().filter_map(asked).max().unwrap_or(0);
        self.geometry.checkpoint_bytes.max(asked).max(TIMES_IMAGE * log.image_bytes.load(Ordering::Relaxed))
    }

    /// How far the journal has grown beyond twice what makes a checkpoint due, in hundredths; and what of it is not moved yet, beyond 1.25
    /// times that. So writers go at the pace of what is moved, from the begin of a checkpoint to its end, where engines say how far they are.
    pub(super) fn journal_pressure(&self) -> u64 {
        let log = self.log(LogId::Journal);
        let (appended, moving) = (log.since_checkpoint(), log.moving.load(Ordering::Relaxed));
        let left =
            |k: &Arc<Kept>| k.engine().ok().filter(|_| k.log() == log.id).map(|engine| engine.left_to_move());
        let left = self.catalogue.present().iter().filter_map(left).max().unwrap_or(0).min(100);
        let waits = appended.saturating_sub(moving / 100 * (100 - left));
        let pressure = (appended.saturating_mul(50)).min(waits.saturating_mul(PACE));
        pressure.checked_div(self.due_after(log)).unwrap_or(0)
    }

    /// Begins checkpoints of logs that are due at this pace, and moves on those that have begun.
    pub(super) fn checkpoint_if_due(&self, pace: Pace) -> Look {
        let mut look = Look::default();
        let wants_memory = self.signals.memory.swap(false, Ordering::Relaxed);
        for log in self.logs.iter().filter(|_| self.options.checkpoints) {
            if self.is_due(log, wants_memory, pace) {
                look.add(self.begin_checkpoint(&mut self.maintenance.lock(), log));
            }
            look.join(match self.rests(log) {
                true => self.work(&self.kepts_of(log)),
                false => self.advance_checkpoint(log),
            });
        }
        look
    }

    /// Whether the end of a checkpoint of `log` failed a moment ago. Who asks for a step has it tried at once.
    fn rests(&self, log: &Log) -> bool {
        let now = self.clock.now();
        let m = self.maintenance.lock();
        let rest = m.pending[log.id.index()].as_ref().and_then(|pending| pending.rest);
        rest.is_some_and(|(_, until)| now < until) && !self.options.inline
    }

    /// Whether a checkpoint of `log` is due.
    fn is_due(&self, log: &Log, wants_memory: bool, pace: Pace) -> bool {
        let appended = log.since_checkpoint();
        let wants = || {
            let wants = |e: &dyn Engine| e.wants_checkpoint() || (wants_memory && e.is_swollen());
            self.kepts_of(log).iter().any(|k| k.engine().is_ok_and(|e| wants(&**e)))
        };
        let is_full = self.full.load(Ordering::Relaxed) && log.id == LogId::Journal;
        appended >= self.due_after(log)
            || (is_full && appended >= FULL * self.geometry.min_segment && self.counted_on().is_some())
            || (appended > 0 && log.tombs_in_the_way.swap(false, Ordering::Relaxed))
            // An engine of the store log may wait for an image to give back what it moved since the last one.
            || ((appended > 0 || log.id == LogId::Flat) && wants())
            || self.gains_space(log, pace)
    }

    /// Whether a checkpoint of `log` gives back space that is worth its writes.
    fn gains_space(&self, log: &Log, pace: Pace) -> bool {
        let Unsaved { bytes, operations, removals, dropped } = log.unsaved();
        if bytes == 0 {
            return false;
        }
        // The next images are about as large as the last ones of the present keyspaces.
        let images = self.kepts_of(log).iter().map(|k| k.image_bytes.load(Ordering::Relaxed)).sum::<u64>();
        let least = self.geometry.gain_bytes.max(images);
        let mostly_removes = removals > 0 && removals * 3 >= operations * 2;
        match pace {
            _ if dropped >= (DROPPED * least).max(bytes / 2) => true,
            _ if bytes >= least && mostly_removes => true,
            Pace::Busy => false,
            Pace::Idle => bytes >= least && log.id == LogId::Journal,
            Pace::Asked => images / ASKED <= bytes,
        }
    }

    /// Checkpoints the keyspaces of `log` as of now. False if damage forbids it.
    pub(super) fn checkpoint(&self, log: &Log) -> Result<bool> {
        while self.maintenance.lock().pending[log.id.index()].is_some() {
            self.advance_checkpoint(log).end()?;
        }
        let kepts = self.kepts_of(log);
        while !is_caught_up(&kepts) && self.work(&kepts).end()? {}
        if !self.begin_checkpoint(&mut self.maintenance.lock(), log)? {
            return Ok(false);
        }
        while self.maintenance.lock().pending[log.id.index()].is_some() {
            self.advance_checkpoint(log).end()?;
        }
        Ok(true)
    }

    /// The budget is used up: what engines that `writes` go to hold until a checkpoint comes back by one. The caller holds
    /// no guard.
    pub(super) fn relieve_memory(&self, writes: &[Write<'_>]) -> Result<()> {
        let swollen = writes.iter().find(|w| w.kept.engine().is_ok_and(|e| e.is_swollen()));
        let Some(write) = swollen.filter(|_| self.options.checkpoints) else { return Ok(()) };
        match self.checkpoint(self.log(write.kept.log())) {
            Err(Error::NoSpace { .. } | Error::FileLimit { .. }) => Ok(()),
            other => other.map(drop),
        }
    }

    /// As [`Store::relieve_memory`], by the checkpoint that is under way, if there is one.
    pub(super) fn await_checkpoint(&self, writes: &[Write<'_>]) -> Result<()> {
        let Some(write) = writes.iter().find(|w| w.kept.engine().is_ok_and(|e| e.is_swollen())) else {
            return Ok(());
        };
        let log = self.log(write.kept.log());
        let is_pending = || self.maintenance.lock().pending[log.id.index()].is_some();
        if !is_pending() {
            return self.relieve_memory(writes);
        }
        while is_pending() {
            match self.advance_checkpoint(log).end() {
                Err(Error::NoSpace { .. } | Error::FileLimit { .. }) => return Ok(()),
                other => other?,
            };
        }
        Ok(())
    }

    /// The disk is full: a checkpoint, if there is anything in the journal that would go, and what engines have let go, but
    /// may still be seen by somebody. True if there was a checkpoint. The caller holds no guard.
    pub(super) fn settle_journal(&self) -> Result<bool> {
        let log = self.log(LogId::Journal);
        let is_pending = self.maintenance.lock().pending[log.id.index()].is_some();
        let appended = log.since_checkpoint();
        if !self.options.checkpoints {
            return Ok(false);
        }
        let settled = (|| {
            let is_worth_it = is_pending || appended > 0;
            let is_settled = is_worth_it && self.checkpoint(log)?;
            let kepts = self.kepts_of(log);
            let mut waits = true; // for readers, as long as they are not too long
            let (mut left, mut counted_on) = (RELIEVING, self.counted_on());
            while left > 0 {
                self.work(&kepts).end()?;
                let now = self.counted_on();
                left = if now < counted_on { RELIEVING } else { left - 1 };
                counted_on = now;
                waits = waits && epoch::settle(PATIENCE);
            }
            Ok(is_settled)
        })();
        match settled {
            Err(Error::NoSpace { .. } | Error::FileLimit { .. }) => Ok(false),
            other => other,
        }
    }

    /// As [`Store::relieve_memory`], has caches give way, and waits for what has been let go, but may still be seen by somebody.
    pub(super) fn reclaim_memory(&self, writes: &[Write<'_>]) -> Result<()> {
        let _ = self.shed_for_commit(); // what else there is is tried in any case
        self.relieve_memory(writes)?;
        let mut kepts: Vec<Arc<Kept>> = writes.iter().map(|w| Arc::clone(w.kept)).collect();
        kepts.dedup_by_key(|kept| kept.id());
        let mut waits = true;
        for _ in 0..RELIEVING {
            self.work(&kepts).end()?;
            waits = waits && epoch::settle(HASTE);
        }
        Ok(())
    }

    /// The keyspaces of `log` that can be used, dropped ones that a view still shows among them: their records go with
    /// the log as well.
    pub(super) fn kepts_of(&self, log: &Log) -> Vec<Arc<Kept>> {
        let mut kepts = self.catalogue.all();
        kepts.retain(|kept| kept.log() == log.id && kept.engine().is_ok());
        kepts
    }

    /// Takes the position of a checkpoint, and has engines freeze what is in memory. False if one is under way, an engine has
    /// not caught up with the last replay, or damage forbids it.
    fn begin_checkpoint(&self, m: &mut Maintenance, log: &Log) -> Result<bool> {
        self.check_open()?; // who waited for the lock may find that the end has come
        let is_damaged = |k: &Arc<Kept>| k.log() == log.id && k.engine().is_err();
        if m.pending[log.id.index()].is_some()
            || log.is_frozen()
            || self.catalogue.map().values().any(is_damaged)
        {
            return Ok(false);
        }
        if !is_caught_up(&self.kepts_of(log)) {
            return Ok(false);
        }
        let (mut reference, kepts) = self.position(m, log);
        let slots: Vec<_> = log.list().iter().map(|s| (s.slot(), s.id())).collect();
        reference.number = m.next_image;
        m.next_image += 1;
        let (unsaved, frozen) = (log.unsaved(), reference.seq);
        let appended = unsaved.bytes;
        event!(DEBUG, "a checkpoint begins", log = log.id.directory(), commit = frozen.0, bytes = appended);
        m.pending[log.id.index()] = Some(Pending { reference, kepts, slots, unsaved, rest: None });
        log.moving.store(appended, Ordering::Relaxed);
        self.make_certain(m, log, frozen)?;
        Ok(true)
    }

    /// What engines move to files of their own is durable first, and ROOT says so: no recovery ends before it.
    fn make_certain(&self, m: &mut Maintenance, log: &Log, frozen: Seq) -> Result<()> {
        if log.id == LogId::Journal {
            self.wait_durable(frozen)?;
            self.write_root(m, false)?;
            self.certain.store(frozen.0, Ordering::Release);
        }
        Ok(())
    }

    /// Some steps of the engines' work, and the end of the checkpoint once all is moved.
    fn advance_checkpoint(&self, log: &Log) -> Look {
        let pending = match self.pending_kepts(log) {
            Ok(pending) => pending,
            Err(error) => return Look::from(Err(error)),
        };
        let Some(kepts) = pending else { return self.work(&self.kepts_of(log)) };
        let mut look = self.work(&kepts);
        let is_under_way = !look.has_failed(); // and there is more to do
        let ended = self.end_if_settled(log); // who failed may have moved what it froze, and failed at something else
        look.add(ended.map(|is_over| is_over || is_under_way));
        look
    }

    /// Whose checkpoint of `log` is under way, if one is: it is certain by now.
    fn pending_kepts(&self, log: &Log) -> Result<Option<Vec<Arc<Kept>>>> {
        let mut m = self.maintenance.lock();
        let Some(pending) = m.pending[log.id.index()].as_ref() else { return Ok(None) };
        let (frozen, kepts) = (pending.reference.seq, pending.kepts.clone());
        if log.id == LogId::Journal && self.certain.load(Ordering::Acquire) < frozen.0 {
            self.make_certain(&mut m, log, frozen)?; // the first attempt failed
        }
        Ok(Some(kepts))
    }

    /// Ends the checkpoint of `log` that is under way now, if its engines have moved all: another thread may have ended the one that the
    /// caller looked at, and begun the next.
    fn end_if_settled(&self, log: &Log) -> Result<bool> {
        self.check_sound()?;
        let mut m = self.maintenance.lock();
        let is_settled = |p: &Pending| p.kepts.iter().all(|k| k.engine().is_ok_and(|e| e.is_settled()));
        let is_over = m.pending[log.id.index()].as_ref().is_some_and(is_settled);
        if is_over {
            self.end_checkpoint(&mut m, log)?;
        }
        Ok(is_over)
    }

    /// Steps of the engines' own work: what one cannot do holds up no other. Something was done if there is more.
    pub(super) fn work(&self, kepts: &[Arc<Kept>]) -> Look {
        self.engine_steps(kepts, |engine, views, certain| engine.work(views, certain))
    }

    /// Steps of what engines can do while nothing else happens, as [`Store::work`].
    pub(super) fn tidy_engines(&self, kepts: &[Arc<Kept>]) -> Look {
        self.engine_steps(kepts, |engine, views, certain| engine.tidy(views, certain))
    }

    fn engine_steps(
        &self,
        kepts: &[Arc<Kept>],
        step: impl Fn(&dyn Engine, &Views, Seq) -> Result<bool> + Sync,
    ) -> Look {
        let _at_work = self.at_work.read();
        if let Err(closed) = self.check_open() {
            return Look::from(Err(closed)); // or their files are closed, and somebody else's
        }
        let certain = Seq(self.certain.load(Ordering::Acquire));
        let views = self.views();
        // Some steps of a keyspace, as long as it has more to do, and whether that is so. An engine
        // that has just moved all that it froze goes on in its next turn: a merge takes longer than
        // the end of the checkpoint, which frees the journal.
        let steps = |kept: &Arc<Kept>, count: usize| {
            let mut look = Look::default();
            let Ok(engine) = kept.engine() else { return (look, false) };
            let _span = span!(TRACE, "engine work", engine = engine.name(), keyspace = kept.name());
            for _ in 0..count {
                let was_settled = engine.is_settled();
                let more = match step(&**engine, &views, certain) {
                    Err(Error::Poisoned { op }) => Err(self.poison(op)),
                    other => other,
                };
                let is_over = !matches!(more, Ok(true));
                look.add(more);
                if is_over || (!was_settled && engine.is_settled()) {
                    return (look, false);
                }
            }
            (look, true)
        };
        let (mut look, mut busy) = (Look::default(), Vec::new());
        for kept in kepts {
            let (first, has_more) = steps(kept, 1);
            look.join(first);
            if look.has_failed() && self.check_sound().is_err() {
                return look;
            }
            busy.extend(has_more.then_some(kept));
        }
        if !self.options.inline || cfg!(shuttle) {
            let helpers = self.helpers(busy.len());
            let more = |index: usize| {
                let _step = Step(self);
                Ok::<_, Infallible>(steps(busy[index], STEPS - 1).0)
            };
            let Ok(others) = each_at_once(helpers.threads(), busy.len(), more);
            others.into_iter().for_each(|other| look.join(other));
        }
        look
    }

    /// Saves the images of a checkpoint whose engines have moved what they froze, and lets the log before it go.
    fn end_checkpoint(&self, m: &mut Maintenance, log: &Log) -> Result<()> {
        self.check_open()?;
        let Some(mut pending) = m.pending[log.id.index()].take() else { return Ok(()) };
        let _span =
            span!(DEBUG, "save a checkpoint", log = log.id.directory(), commit = pending.reference.seq.0);
        let mut reference = pending.reference.clone();
        let saved = self
            .save_images(&pending.kepts, &mut reference, &pending.slots)
            // The images hold nothing beyond what is durable ...
            .and_then(|bytes| self.wait_durable(self.newest()).map(|()| bytes))
            // ... and point at no copy that could still go.
            .and_then(|bytes| self.sync_survivors(m).map(|()| bytes));
        let bytes = match saved {
            Ok(bytes) => bytes,
            Err(error) => {
                for id in &reference.keyspaces {
                    let _ = self.disk.remove(&self.image_path(*id, reference.number)); // else swept
                }
                // The next attempt has names of its own: these may be in the way still.
                pending.reference.number = m.next_image;
                m.next_image += 1;
                let rest = pending.rest.map_or(REST, |(rest, _)| MOST_REST.min(2 * rest));
                pending.rest = Some((rest, self.clock.now() + rest));
                m.pending[log.id.index()] = Some(pending); // what is frozen stays so
                return Err(match error {
                    Error::Poisoned { op } => self.poison(op),
                    other => other,
                });
            }
        };
        let old = std::mem::replace(&mut m.checkpoints[log.id.index()], reference);
        for id in old.keyspaces {
            m.dies(Dying::Image(id, old.number));
        }
        for kept in &pending.kepts {
            m.dies(Dying::Before(Arc::clone(kept)));
        }
        {
            let _alone = self.stripes.alone();
            pending.kepts.iter().filter_map(|k| k.engine().ok()).for_each(|engine| engine.saved());
        }
        if log.id == LogId::Journal {
            self.cut_journal(m, log);
        }
        self.write_root(m, false)?;
        log.saved(pending.unsaved);
        log.moving.store(0, Ordering::Relaxed);
        log.image_bytes.store(bytes, Ordering::Relaxed);
        self.counters.checkpoints.fetch_add(1, Ordering::Relaxed);
        self.counters.checkpoint_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the position where replay has to start for everything that is not applied now, and
    /// the keyspaces, which it freezes. Keyspaces are created while no commit runs: a list from
    /// before commits are stopped could lack a keyspace that has records before the position.
    fn position(&self, m: &Maintenance, log: &Log) -> (CheckpointRef, Vec<Arc<Kept>>) {
        let making = self.making.lock();
        let _alone = self.stripes.alone();
        let order = self.order.lock();
        let word = self.window.word();
        let kepts = self.kepts_of(log);
        let mut open: Vec<Position> = Vec::new();
        for (index, tail) in order.tails.iter().enumerate().filter(|(tail, _)| log_of(*tail) == log.id) {
            let offset = word.offset(index);
            open.extend(tail.segment.iter().map(|s| Position { segment: s.id(), offset }));
        }
        open.extend(
            order.ready[log.id.index()].iter().map(|s| Position { segment: s.id(), offset: DATA_START }),
        );
        let survivors = m.survivors[log.id.index()].iter().flat_map(|tails| tails.streams.iter().flatten());
        open.extend(survivors.map(|s| Position { segment: s.segment.id(), offset: s.offset }));
        kepts.iter().filter_map(|k| k.engine().ok()).for_each(|engine| engine.freeze());
        let (seq, next_segment) = (self.visible(), SegmentId(*making));
        (CheckpointRef { number: 0, seq, open, next_segment, keyspaces: Vec::new() }, kepts)
    }

    fn save_images(
        &self,
        kepts: &[Arc<Kept>],
        to: &mut CheckpointRef,
        slots: &[(u32, SegmentId)],
    ) -> Result<u64> {
        to.keyspaces = kepts.iter().map(|kept| kept.id()).collect();
        let save = |index: usize| {
            let kept: &Arc<Kept> = &kepts[index];
            let path = self.image_path(kept.id(), to.number);
            let mut writer = ImageWriter::create(&*self.disk, path, self.id, kept.id(), to.number, slots)?;
            kept.engine()?.save(&mut writer)?;
            let bytes = writer.finish()?;
            kept.image_bytes.store(bytes, Ordering::Relaxed);
            Ok(bytes)
        };
        let threads = if self.options.inline || kepts.len() < MANY { 1 } else { SAVERS };
        let bytes = each_at_once(threads, kepts.len(), save)?.into_iter().sum();
        let dir = self.dir.join(image::DIRECTORY);
        self.disk.sync_dir(&dir).during("sync directory", &dir)?;
        Ok(bytes)
    }

    /// Lets the journal's segments go that hold nothing the checkpoint lacks.
    fn cut_journal(&self, m: &mut Maintenance, log: &Log) {
        let checkpoint = m.checkpoints[log.id.index()].clone();
        let durable = self.durable();
        let mut segments = log.segments.lock();
        let done: Vec<_> = segments
            .values()
            .filter(|s| s.is_sealed() && s.id() < checkpoint.next_segment && s.last_seq() <= durable)
            .filter(|s| checkpoint.open.iter().all(|p| p.segment != s.id()))
            .cloned()
            .collect();
        for segment in done {
            segments.remove(&segment.id());
            m.dies(Dying::Segment(log.id, segment));
        }
    }
}
