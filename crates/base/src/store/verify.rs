//! # Verification: reads everything there is

use std::ops::ControlFlow;
use std::sync::Arc;

use super::image::ImageReader;
use super::{Store, VerifyReport};
use crate::engine::{Bounds, Want};
use crate::error::{Error, Result};
use crate::segment::Scan;
use crate::types::LogId;

/// Pairs between two looks at the watcher.
const PAIRS: u64 = 4096;

/// Who is told what a verification has read so far, and may end it.
pub type VerifyWatcher<'a> = dyn FnMut(&VerifyReport) -> ControlFlow<()> + 'a;

fn tell(watcher: &mut VerifyWatcher<'_>, summary: &VerifyReport) -> Result<()> {
    match watcher(summary) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(Error::Cancelled),
    }
}

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
            findings += 1;
            report(error);
        };
        self.slots.check(&mut found);
        for log in LogId::ALL {
            self.verify_log(log, &mut summary, &mut found, watcher)?;
            self.verify_images(log, &mut summary, &mut found);
        }
        summary.files.extend(self.ground.blobs.verify(&mut found));
        let view = self.view()?;
        for kept in view.keyspaces() {
            let walked = kept.engine().and_then(|engine| {
                engine.verify(&mut found)?;
                let mut cursor = Arc::clone(engine).cursor(view.seq(), Bounds::all(), Want::Pairs)?;
                while cursor.next()? {
                    summary.pairs += 1;
                    if summary.pairs.is_multiple_of(PAIRS) {
                        tell(watcher, &summary)?;
                    }
                }
                Ok(())
            });
            match walked {
                Ok(()) => tell(watcher, &summary)?,
                Err(Error::Cancelled) => return Err(Error::Cancelled),
                Err(error) => found(error),
            }
        }
        summary.findings = findings;
        Ok(summary)
    }

    /// A segment may be freed or appended to while it is read: it is held, and read to its end of now.
    fn verify_log(
        &self,
        log: LogId,
        summary: &mut VerifyReport,
        found: &mut impl FnMut(Error),
        watcher: &mut VerifyWatcher<'_>,
    ) -> Result<()> {
        for segment in self.log(log).list() {
            tell(watcher, summary)?;
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

    fn verify_images(&self, log: LogId, summary: &mut VerifyReport, found: &mut impl FnMut(Error)) {
        let m = self.maintenance.lock(); // no image goes meanwhile
        let checkpoint = &m.checkpoints[log.index()];
        for id in &checkpoint.keyspaces {
            let path = self.image_path(*id, checkpoint.number);
            summary.files.push(path.clone());
            let image = ImageReader::open(&*self.disk, path, self.id, *id, checkpoint.number, |_| None);
            match image.and_then(ImageReader::drain) {
                Ok(bytes) => summary.bytes += bytes,
                Err(error) => found(error),
            }
        }
    }
}
