//! # Checkpoints: what makes opening fast, and lets the journal end somewhere
//!
//! ## Picture
//!
//! ```text
//!  position c (seq, open segments, next number) | images, fuzzily, while commits go on | W >= c2 | ROOT
//! ```
//!
//! An image holds everything up to c and some of what came until c2; replay from c brings the rest
//! (engines compare numbers). Entries of segments freed later are dropped on restore: what lived in them
//! was moved after c, so replay brings it (commit.md, scenario 9). The journal's segments before c go.

use std::sync::Arc;

use super::image::{self, ImageWriter};
use super::log::Log;
use super::rooting::{Dying, Maintenance};
use super::tail::log_of;
use super::{Kept, Store};
use crate::error::{IoContext, Result};
use crate::root::{CheckpointRef, Position};
use crate::segment::DATA_START;
use crate::sync::atomic::Ordering;
use crate::types::{KeyspaceId, LogId, SegmentId};

/// A checkpoint is due after this many times its own size was appended.
const TIMES_IMAGE: u64 = 20;

impl Store {
    /// Checkpoints logs that are due. True if there was one.
    pub(super) fn checkpoint_if_due(&self) -> Result<bool> {
        let mut any = false;
        for log in self.logs.iter().filter(|_| self.options.checkpoints) {
            let appended = log.since_checkpoint.load(Ordering::Relaxed);
            let image: u64 = log.image_bytes.load(Ordering::Relaxed);
            let due = self.geometry.checkpoint_bytes.max(TIMES_IMAGE * image);
            if appended >= due || (appended > 0 && log.tombs_in_the_way.swap(false, Ordering::Relaxed)) {
                any |= self.checkpoint(&mut self.maintenance.lock(), log)?;
            }
        }
        Ok(any)
    }

    /// Checkpoints the keyspaces of `log`. False if damage forbids it.
    pub(super) fn checkpoint(&self, m: &mut Maintenance, log: &Log) -> Result<bool> {
        let kepts: Vec<Arc<Kept>> =
            self.catalogue.map().values().filter(|k| k.log() == log.id).cloned().collect();
        if log.is_frozen() || kepts.iter().any(|k| k.engine().is_err()) {
            return Ok(false);
        }
        let mut reference = self.position(m, log);
        let slots: Vec<_> = log.list().iter().map(|s| (s.slot(), s.id())).collect();
        reference.number = m.next_image;
        m.next_image += 1;
        let appended = log.since_checkpoint.load(Ordering::Relaxed);
        let saved = self.save_images(&kepts, &mut reference, &slots);
        let bytes = match saved {
            Ok(bytes) => bytes,
            Err(error) => {
                for id in &reference.keyspaces {
                    let _ = self.disk.remove(&self.image_path(*id, reference.number)); // else swept
                }
                return Err(error);
            }
        };
        self.wait_durable(self.visible())?; // the images hold nothing beyond ...
        self.sync_survivors(m)?; // ... and point at no copy that could still go
        let old = std::mem::replace(&mut m.checkpoints[log.id.index()], reference);
        for id in old.keyspaces {
            m.dies(Dying::File(self.image_path(id, old.number)));
        }
        if log.id == LogId::Journal {
            self.cut_journal(m, log);
        }
        self.write_root(m, false)?;
        log.since_checkpoint.fetch_sub(appended, Ordering::Relaxed);
        log.image_bytes.store(bytes, Ordering::Relaxed);
        self.counters.checkpoints.fetch_add(1, Ordering::Relaxed);
        self.counters.checkpoint_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(true)
    }

    /// Where replay has to start for everything that is not applied now.
    fn position(&self, m: &Maintenance, log: &Log) -> CheckpointRef {
        let making = self.making.lock();
        let order = self.order.lock();
        let mut open: Vec<Position> = Vec::new();
        for (_, tail) in order.tails.iter().enumerate().filter(|(tail, _)| log_of(*tail) == log.id) {
            open.extend(tail.segment.iter().map(|s| Position { segment: s.id(), offset: tail.offset }));
        }
        open.extend(
            order.ready[log.id.index()].iter().map(|s| Position { segment: s.id(), offset: DATA_START }),
        );
        let survivors = m.survivors[log.id.index()].iter().flatten();
        open.extend(survivors.map(|s| Position { segment: s.segment.id(), offset: s.offset }));
        CheckpointRef {
            number: 0,
            seq: self.visible(),
            open,
            next_segment: SegmentId(*making),
            keyspaces: Vec::new(),
        }
    }

    fn save_images(
        &self,
        kepts: &[Arc<Kept>],
        to: &mut CheckpointRef,
        slots: &[(u32, SegmentId)],
    ) -> Result<u64> {
        let mut bytes = 0;
        for kept in kepts {
            let id: KeyspaceId = kept.id();
            let path = self.image_path(id, to.number);
            to.keyspaces.push(id);
            let mut writer = ImageWriter::create(&*self.disk, path, self.id, id, to.number, slots)?;
            kept.engine()?.save(&mut writer)?;
            bytes += writer.finish()?;
        }
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
