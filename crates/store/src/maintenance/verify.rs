//! # Verification: reads all data and reports damage
//!
//! Runs concurrently with all other operations; no lock is held while files are read. Segments and
//! versions are pinned, as by a reader. Other findings are checked again. A slot of ROOT is read
//! again under the lock of its writers. Damage of an image is ignored if a checkpoint has
//! superseded the image.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::expiry::index::is_hidden_name;
use crate::expiry::reads::stored_form;
use crate::{Store, VerifyReport};
use sheaf_engine::checkpoint_file::ImageReader;
use sheaf_engine::contract::{Bounds, Projection};
use sheaf_log::compression::ValueCompression;
use sheaf_log::segment::SegmentScan;
use sheaf_log::types::LogId;
use sheaf_platform::error::{Error, Result};

/// Pairs between two calls of the progress callback.
const PAIRS_PER_CALL: u64 = 4096;
/// Bytes of files between two calls of the progress callback.
const BYTES_PER_CALL: u64 = 4 << 20;

/// Progress callback of a verification; `Break` ends it.
pub type VerifyProgressFn<'a> = dyn FnMut(&VerifyReport) -> ControlFlow<()> + 'a;

impl Store {
    /// Reads both slots of ROOT, all frames of all logs, all images, the heads of all chunks, and
    /// all pairs. Passes each damage to `report` and continues behind it.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Closed`] if the database is closed, and [`Error::Poisoned`] after a panic
    /// in a commit. Damage is reported, not returned.
    pub fn verify(self: &Arc<Store>, report: &mut dyn FnMut(Error)) -> Result<VerifyReport> {
        self.verify_with_progress(report, &mut |_| ControlFlow::Continue(()))
    }

    /// Like [`Store::verify`]. Calls `watcher` regularly; `Break` ends the verification.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Store::verify`], and [`Error::Cancelled`] if `watcher` ends it.
    pub fn verify_with_progress(
        self: &Arc<Store>,
        report: &mut dyn FnMut(Error),
        watcher: &mut VerifyProgressFn<'_>,
    ) -> Result<VerifyReport> {
        self.check_open()?;
        let mut summary = VerifyReport::default();
        let mut findings = 0;
        let mut found = |error: Error| {
            // After closing, the files may belong to the next opening.
            if !self.health.is_closed() {
                findings += 1;
                report(error);
            }
        };
        self.verify_root(&mut found);
        for log in LogId::ALL {
            self.verify_log(log, &mut summary, &mut found, watcher)?;
            self.verify_images(log, &mut summary, &mut found, watcher)?;
        }
        self.verify_retained(&mut found, &mut summary.frames, &mut summary.bytes);
        summary.files.extend(self.context.blobs.verify(&mut found));
        let (view, shown) = self.snapshot()?;
        for keyspace in shown.all() {
            let walked = keyspace.engine().and_then(|engine| {
                engine.verify(&mut found, &mut self.byte_steps(&summary, watcher))?;
                // Without the codec, values are checked in their stored form.
                let is_codec_missing = |it: &Arc<ValueCompression>| !it.codec().is_available();
                let walked = match keyspace.compression().is_some_and(is_codec_missing) {
                    true => stored_form(&**engine),
                    false => &**engine,
                };
                let mut cursor = walked.cursor(view.seq(), Bounds::all(), Projection::Pairs)?;
                let is_hidden = is_hidden_name(&keyspace.name());
                while cursor.next()? {
                    if let Some(expiry) = keyspace.expiry() {
                        expiry.check_value(cursor.value())?;
                    }
                    summary.pairs += u64::from(!is_hidden);
                    if summary.pairs.is_multiple_of(PAIRS_PER_CALL) {
                        self.report_progress(watcher, &summary)?;
                    }
                }
                Ok(())
            });
            match walked {
                Ok(()) => self.report_progress(watcher, &summary)?,
                Err(error @ (Error::Cancelled | Error::Closed)) => return Err(error),
                Err(error) => found(error),
            }
        }
        summary.findings = findings;
        Ok(summary)
    }

    /// Calls `watcher`. Returns an error if it ends the verification, or if the database was
    /// closed.
    fn report_progress(&self, watcher: &mut VerifyProgressFn<'_>, summary: &VerifyReport) -> Result<()> {
        self.check_open()?;
        match watcher(summary) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::Cancelled),
        }
    }

    /// Returns a callback that is given the bytes read, and calls `watcher` after
    /// [`BYTES_PER_CALL`].
    fn byte_steps<'a>(
        &'a self,
        summary: &'a VerifyReport,
        watcher: &'a mut VerifyProgressFn<'_>,
    ) -> impl FnMut(u64) -> Result<()> + 'a {
        let enough = if self.options.tiny { 0 } else { BYTES_PER_CALL };
        let mut untold = 0;
        move |bytes| {
            untold += bytes;
            if untold < enough {
                return Ok(());
            }
            untold = 0;
            self.report_progress(watcher, summary)
        }
    }

    fn verify_root(&self, found: &mut impl FnMut(Error)) {
        let mut findings = Vec::new();
        self.root.slots.check(&mut |error| findings.push(error));
        if !findings.is_empty() {
            findings.clear();
            // a slot may have been written at that time; none is written now
            let _m = self.root.maintenance.lock();
            self.root.slots.check(&mut |error| findings.push(error));
        }
        findings.into_iter().for_each(found);
    }

    /// Reads the segments of a log. The list pins a segment that is freed; a segment that grows is
    /// read up to its present end.
    fn verify_log(
        &self,
        log: LogId,
        summary: &mut VerifyReport,
        found: &mut impl FnMut(Error),
        watcher: &mut VerifyProgressFn<'_>,
    ) -> Result<()> {
        self.publish_ends()?;
        for segment in self.log(log).list() {
            self.report_progress(watcher, summary)?;
            summary.files.push(segment.path().to_path_buf());
            let mut scan = SegmentScan::new(&segment, 0, segment.end());
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
        watcher: &mut VerifyProgressFn<'_>,
    ) -> Result<()> {
        let newest = || self.root.maintenance.lock().checkpoints[log.index()].clone();
        let checkpoint = newest();
        for id in &checkpoint.keyspaces {
            let path = self.image_path(*id, checkpoint.number);
            summary.files.push(path.clone());
            let image =
                ImageReader::open(&*self.disk, path, self.identity.id, *id, checkpoint.number, |_| None);
            let drained = image.and_then(|image| image.verify_rest(&mut self.byte_steps(summary, watcher)));
            match drained {
                Ok(bytes) => summary.bytes += bytes,
                Err(error @ (Error::Cancelled | Error::Closed)) => return Err(error),
                // A later checkpoint has superseded the image.
                Err(_) if newest().number != checkpoint.number => {}
                Err(error) => found(error),
            }
        }
        Ok(())
    }
}
