//! # Verification: reads everything there is
//!
//! Beside everything else: no lock is held while files are read. What must not go is held as readers hold it (segments, a view), or
//! what went wrong is looked at again: a slot of ROOT, which is short, under the lock of those who write it; and an image that a
//! checkpoint let go meanwhile is nobody's damage.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::image::ImageReader;
use super::{Store, VerifyReport};
use crate::engine::{Bounds, Want};
use crate::error::{Error, Result};
use crate::segment::Scan;
use crate::sync::atomic::Ordering;
use crate::types::LogId;

/// Pairs between two looks at the watcher.
const PAIRS: u64 = 4096;
/// Bytes of files between two looks at it.
const BYTES: u64 = 4 << 20;

/// Who is told what a verification has read so far, and may end it.
pub type VerifyWatcher<'a> = dyn FnMut(&VerifyReport) -> ControlFlow<()> + 'a;

impl Store {
    /// Reads both slots of ROOT, every frame of every log, every image, the head of every chunk, and every pair; each damage goes to
    /// `report`, and reading goes on behind it.
    pub fn verify(self: &Arc<Store>, report: &mut dyn FnMut(Error)) -> Result<VerifyReport> {
        self.verify_watched(report, &mut |_| ControlFlow::Continue(()))
    }

    /// The same; `watcher` is told now and then what was read, and may end it ([`Error::Cancelled`]).
    pub fn verify_watched(
        self: &Arc<Store>,
        report: &mut dyn FnMut(Error),
        watcher: &mut VerifyWatcher<'_>,
    ) -> Result<VerifyReport> {
        self.check_open()?;
        let mut summary = VerifyReport::default();
        let mut findings = 0;
        let mut found = |error: Error| {
            // Once it is closed the files may be the next life's.
            if !self.flags.closed.load(Ordering::Acquire) {
                findings += 1;
                report(error);
            }
        };
        self.verify_root(&mut found);
        for log in LogId::ALL {
            self.verify_log(log, &mut summary, &mut found, watcher)?;
            self.verify_images(log, &mut summary, &mut found, watcher)?;
        }
        summary.files.extend(self.ground.blobs.verify(&mut found));
        let (view, shown) = self.snapshot()?;
        for kept in shown.keyspaces() {
            let walked = kept.engine().and_then(|engine| {
                engine.verify(&mut found, &mut self.steps(&summary, watcher))?;
                let mut cursor = engine.cursor(view.seq(), Bounds::all(), Want::Pairs)?;
                while cursor.next()? {
                    summary.pairs += 1;
                    if summary.pairs.is_multiple_of(PAIRS) {
                        self.tell_watcher(watcher, &summary)?;
                    }
                }
                Ok(())
            });
            match walked {
                Ok(()) => self.tell_watcher(watcher, &summary)?,
                Err(error @ (Error::Cancelled | Error::Closed)) => return Err(error),
                Err(error) => found(error),
            }
        }
        summary.findings = findings;
        Ok(summary)
    }

    /// An error if it is to end: the watcher says so, or the database was closed.
    fn tell_watcher(&self, watcher: &mut VerifyWatcher<'_>, summary: &VerifyReport) -> Result<()> {
        self.check_open()?;
        match watcher(summary) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::Cancelled),
        }
    }

    /// What is called with bytes that were read, and tells the watcher once they are many.
    fn steps<'a>(
        &'a self,
        summary: &'a VerifyReport,
        watcher: &'a mut VerifyWatcher<'_>,
    ) -> impl FnMut(u64) -> Result<()> + 'a {
        let enough = if self.options.tiny { 0 } else { BYTES };
        let mut untold = 0;
        move |bytes| {
            untold += bytes;
            if untold < enough {
                return Ok(());
            }
            untold = 0;
            self.tell_watcher(watcher, summary)
        }
    }

    fn verify_root(&self, found: &mut impl FnMut(Error)) {
        let mut findings = Vec::new();
        self.slots.check(&mut |error| findings.push(error));
        if !findings.is_empty() {
            findings.clear();
            let _m = self.maintenance.lock(); // a slot may have been written just then, and none is now
            self.slots.check(&mut |error| findings.push(error));
        }
        findings.into_iter().for_each(found);
    }

    /// A segment may be freed or appended to while it is read: it is held, and read to its end of now.
    fn verify_log(
        &self,
        log: LogId,
        summary: &mut VerifyReport,
        found: &mut impl FnMut(Error),
        watcher: &mut VerifyWatcher<'_>,
    ) -> Result<()> {
        self.publish_ends()?;
        for segment in self.log(log).list() {
            self.tell_watcher(watcher, summary)?;
            summary.files.push(segment.path().to_path_buf());
            let mut scan = Scan::new(&segment, 0, segment.end());
            loop {
                for scanned in scan.by_ref() {
                    summary.frames += 1;
                    summary.bytes += scanned.frame.span();
                }
                if let Some(error) = scan.take_error() {
                    found(error);
                }
                if !scan.resume(self.visible()) {
                    break;
                }
            }
        }
        Ok(())
    }

    fn verify_images(
        &self,
        log: LogId,
        summary: &mut VerifyReport,
        found: &mut impl FnMut(Error),
        watcher: &mut VerifyWatcher<'_>,
    ) -> Result<()> {
        let newest = || self.maintenance.lock().checkpoints[log.index()].clone();
        let checkpoint = newest();
        for id in &checkpoint.keyspaces {
            let path = self.image_path(*id, checkpoint.number);
            summary.files.push(path.clone());
            let image = ImageReader::open(&*self.disk, path, self.id, *id, checkpoint.number, |_| None);
            let drained = image.and_then(|image| image.drain(&mut self.steps(summary, watcher)));
            match drained {
                Ok(bytes) => summary.bytes += bytes,
                Err(error @ (Error::Cancelled | Error::Closed)) => return Err(error),
                // A later checkpoint has let it go meanwhile.
                Err(_) if newest().number != checkpoint.number => {}
                Err(error) => found(error),
            }
        }
        Ok(())
    }
}
