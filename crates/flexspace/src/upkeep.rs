//! # Upkeep: syncs, the log's spare segments, checkpoints, giving segments back
//!
//! ## What is durable when
//!
//! ```text
//!  sync        data files ─┐
//!              log file   ─┴─> durable = n          (a frame is believed at recovery if it is at or below a
//!                                                     durable mark, or if all its data checks)
//!  release     sync, floor = n into both heads ──> segments dead at or before n are free
//!  checkpoint  log goes on in the next segment; index as of n to a file; sync; both heads name the
//!              file and the log's new segments ──> older files go
//! ```
//!
//! Data and log may become durable in any order: a frame whose data the power took is not believed. That is
//! safe to find out only while the data may not have been overwritten since, hence the floor in *both* heads
//! before a segment is used again: whichever head an opening finds, it does not question the frames that
//! name the segment's former bytes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sheaf_base::engine::ImageSink;
use sheaf_base::error::{Error, IoContext, Result};
use sheaf_base::segment::{Identity, Segment};
use sheaf_base::store::image::ImageWriter;
use sheaf_base::sync::MutexGuard;
use sheaf_base::types::{KeyspaceId, LogId, SegmentId};

use crate::area::{self, DIRECTORY};
use crate::format::{self, LOG, LogEntry, Summary, TREE};
use crate::log::Log;
use crate::space::{Maintenance, Shared};
use crate::writer::{Who, Writer};

impl Shared {
    pub(crate) fn sync(&self) -> Result<()> {
        let _one = self.syncing.lock();
        self.check_writable()?;
        let (target, areas, flushed, has_new_names) = {
            let mut w = self.writer.lock();
            if w.seq == self.durable.load(Ordering::Acquire) {
                return Ok(());
            }
            w.unsynced = 0;
            (w.seq, Arc::clone(&w.areas), w.log.flush(), std::mem::take(&mut w.has_new_names))
        };
        let synced = flushed.and_then(|logs| {
            for area in areas.files.iter().flatten() {
                if area.is_dirty.swap(false, Ordering::AcqRel) {
                    area.file.sync().during("sync", &area.path)?;
                }
            }
            if has_new_names {
                let dir = self.dir.join(DIRECTORY);
                self.disk.sync_dir(&dir).during("sync directory", &dir)?;
            }
            logs.into_iter().try_for_each(|(segment, end)| segment.sync(end))
        });
        self.poison("sync", synced)?;
        self.counters.syncs.fetch_add(1, Ordering::Relaxed);
        self.durable.fetch_max(target, Ordering::AcqRel);
        Ok(())
    }

    /// Writes the head into both slots: whichever an opening finds knows what must be known.
    fn put_heads(&self, m: &mut Maintenance) -> Result<()> {
        for _ in 0..2 {
            m.head.generation += 1;
            let written = m.pair.write(&m.head);
            self.poison("write of the head", written)?;
        }
        Ok(())
    }

    /// Makes a segment for the log to go on in, of at least `need` bytes for frames.
    pub(crate) fn make_spare(&self, need: u64) -> Result<()> {
        let mut m = self.maintenance.lock();
        self.spare(&mut m, need)
    }

    fn spare(&self, m: &mut Maintenance, need: u64) -> Result<()> {
        self.check_writable()?;
        let (has_spare, bytes) = {
            let w = self.writer.lock();
            let fits = |spare: &Arc<Segment>| spare.identity().capacity >= need + 512;
            (w.log.spare.as_ref().is_some_and(fits), w.log.bytes)
        };
        if has_spare {
            return Ok(());
        }
        let [least, most] = self.geometry.log;
        let capacity = bytes.next_power_of_two().clamp(least, most).max((need + 1024).next_power_of_two());
        let id = SegmentId(m.head.next_number);
        let dir = self.dir.join(LOG);
        let identity = Identity {
            store: m.head.space,
            log: LogId::Journal,
            id,
            stream: 0,
            incarnation: self.incarnation,
            capacity,
        };
        let segment = Segment::create(&*self.disk, &dir, identity)?;
        let named = segment.sync(segment.end());
        let named = named.and_then(|()| self.disk.sync_dir(&dir).during("sync directory", &dir));
        self.poison("sync", named)?;
        m.head.next_number += 1;
        let end = segment.end();
        let mut w = self.writer.lock();
        // A spare that was too small stays empty and goes with the next checkpoint.
        let replaced = w.log.spare.take();
        drop(w);
        if let Some(small) = replaced {
            m.head.logs.retain(|log| log.id != small.id());
        }
        m.head.logs.push(LogEntry { id, end, is_final: false });
        self.put_heads(m)?;
        self.writer.lock().log.spare = Some(Arc::new(segment));
        Ok(())
    }

    /// Frees the segments that died durably and that nobody reads any more. How many.
    pub(crate) fn release(&self) -> Result<u64> {
        // Before the lock: a writer that needs a spare waits for that, and shall not wait for a sync.
        self.sync()?;
        let mut m = self.maintenance.lock();
        self.check_writable()?;
        if m.head.floor < self.durable.load(Ordering::Acquire) {
            self.raise_floor(&mut m)?;
        }
        let mut w = self.writer.lock();
        let released = w.release(m.head.floor);
        self.counters.freed.fetch_add(released, Ordering::Relaxed);
        self.give_back(&mut w);
        Ok(released)
    }

    /// Both heads learn what is durable.
    fn raise_floor(&self, m: &mut Maintenance) -> Result<()> {
        m.head.floor = self.durable.load(Ordering::Acquire);
        self.put_heads(m)
    }

    /// Removes data files that are all free, as long as many segments are left free.
    fn give_back(&self, w: &mut Writer) {
        let per_area = self.geometry.area_segments;
        let keep = u64::from(per_area) + self.geometry.reserve;
        for number in (0..w.areas.files.len()).rev() {
            let first = u32::try_from(number).unwrap_or(u32::MAX) * per_area;
            let all_free = w.free.range(first..first + per_area).count() == per_area as usize;
            if !all_free || (w.free.len() as u64) < keep + u64::from(per_area) {
                continue;
            }
            let path = self.dir.join(DIRECTORY).join(area::file_name(number));
            // If the file stays for now, it is full of free segments: nothing is lost either way.
            if self.disk.remove(&path).is_ok() {
                w.forget_area(number);
            }
        }
    }

    /// Writes the index to a file, so that the log before can go.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        let mut m = self.maintenance.lock();
        self.check_writable()?;
        self.write_checkpoint(&mut m)
    }

    fn write_checkpoint(&self, m: &mut Maintenance) -> Result<()> {
        self.spare(m, 0)?;
        let (version, serials, keep) = {
            let mut w = self.writer.lock();
            if w.seq == m.head.checkpoint_seq {
                return Ok(());
            }
            let rotated = w.log.rotate();
            self.poison("write to the log", rotated)?;
            w.log.bytes = 0;
            let keep = w.log.tail.as_ref().map(|tail| tail.segment.id());
            (self.current.load_full(), w.serials(), keep)
        };
        let (seq, entries) = (version.tree.mark(), version.tree.entries());
        let number = m.head.next_number;
        m.head.next_number += 1;
        let path = self.dir.join(format::checkpoint_name(number));
        let saved = (|| {
            let mut image =
                ImageWriter::create(&*self.disk, path.clone(), m.head.space, KeyspaceId(0), number, &[])?;
            let summary = Summary { seq, mark: version.mark, entries, serials };
            format::save_summary(&summary, &mut image as &mut dyn ImageSink)?;
            for entry in version.tree.range(0) {
                format::save_entry(entry.len, entry.item, &mut image)?;
            }
            image.finish()
        })();
        let bytes = match saved {
            Ok(bytes) => bytes,
            Err(error) => {
                let _ = self.disk.remove(&path); // else it is swept at the next opening
                return Err(error);
            }
        };
        let dir = self.dir.join(TREE);
        let named = self.disk.sync_dir(&dir).during("sync directory", &dir);
        self.poison("sync", named)?;
        self.sync()?;
        let old = (m.head.checkpoint, std::mem::take(&mut m.head.logs));
        let is_new = |log: &LogEntry| keep.is_some_and(|keep| log.id >= keep);
        m.head.logs = old.1.iter().copied().filter(is_new).collect();
        (m.head.checkpoint, m.head.checkpoint_seq) = (number, seq);
        self.raise_floor(m)?;
        m.checkpoint_bytes = bytes;
        self.counters.checkpoints.fetch_add(1, Ordering::Relaxed);
        self.discard(old.0, old.1.into_iter().filter(|log| !is_new(log)));
        Ok(())
    }

    /// Removes files that neither head names. What stays is swept at the next opening.
    fn discard(&self, checkpoint: u64, logs: impl Iterator<Item = LogEntry>) {
        if checkpoint > 0 {
            let _ = self.disk.remove(&self.dir.join(format::checkpoint_name(checkpoint)));
        }
        for log in logs {
            let name = sheaf_base::segment::file_name(log.id);
            let _ = self.disk.remove(&self.dir.join(LOG).join(name));
        }
    }

    /// Whether the log is long: longer than a tenth of the index, and at least a fixed length.
    fn is_log_long(&self, w: &Writer, m: &Maintenance) -> bool {
        w.log.bytes > self.geometry.checkpoint.max(m.checkpoint_bytes / 10)
    }

    /// A guess, made often: is there anything to do in the background?
    pub(crate) fn is_work_due(&self, w: &Writer) -> bool {
        w.unsynced > self.geometry.unsynced
            || w.log.bytes > self.geometry.checkpoint
            || w.is_tight()
            || w.log.spare.is_none()
    }

    pub(crate) fn pump(&self) -> Result<bool> {
        if self.options.read_only {
            return Ok(false);
        }
        self.check_writable()?;
        let mut m = self.maintenance.lock();
        if m.is_closed {
            return Ok(false);
        }
        let (is_unsynced, is_long, has_spare, dead) = {
            let w = self.writer.lock();
            let is_unsynced = w.unsynced > self.geometry.unsynced;
            (is_unsynced, self.is_log_long(&w, &m), w.log.spare.is_some() || w.seq == 0, w.dead())
        };
        if is_long {
            return self.write_checkpoint(&mut m).map(|()| true);
        }
        if !has_spare {
            self.spare(&mut m, 0)?;
        }
        drop(m);
        if is_unsynced {
            self.sync()?;
        } else {
            let noted = self.writer.lock().log.note(self.durable.load(Ordering::Acquire));
            self.poison("append to the log", noted)?;
        }
        let is_due = dead >= self.geometry.reserve / 2 || (dead > 0 && self.writer.lock().is_tight());
        let released = if is_due { self.release()? } else { 0 };
        let collected = self.collect_if_due()?;
        Ok(is_unsynced || released > 0 || collected)
    }

    pub(crate) fn close(&self) -> Result<()> {
        let mut m: MutexGuard<'_, Maintenance> = self.maintenance.lock();
        if m.is_closed || self.options.read_only {
            return Ok(());
        }
        self.check_writable()?;
        self.write_checkpoint(&mut m)?;
        {
            let mut w = self.writer.lock();
            w.close_cursor(Who::User);
            w.close_cursor(Who::Collector);
            w.log = Log::default(); // the checkpoint has everything, and nobody can change anything any more
        }
        let logs = std::mem::take(&mut m.head.logs);
        self.raise_floor(&mut m)?;
        self.discard(0, logs.into_iter());
        m.is_closed = true;
        Ok(())
    }

    pub(crate) fn no_space<T>(&self) -> Result<T> {
        Err(Error::NoSpace { path: self.dir.clone() })
    }
}
