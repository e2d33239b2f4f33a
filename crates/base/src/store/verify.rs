//! # Verification: reads everything there is

use std::sync::Arc;

use super::{Store, VerifyReport};
use crate::engine::{Bounds, Want};
use crate::error::{Error, Result};
use crate::segment::{Scan, Stop};
use crate::types::LogId;

impl Store {
    /// Reads every frame of every log, every image's keyspace and every pair; each damage goes to `report`.
    pub fn verify(self: &Arc<Store>, report: &mut dyn FnMut(Error)) -> Result<VerifyReport> {
        self.check_open()?;
        let mut summary = VerifyReport::default();
        let mut findings = 0;
        let mut found = |error: Error| {
            findings += 1;
            report(error);
        };
        for log in LogId::ALL {
            self.verify_log(log, &mut summary, &mut found);
        }
        let view = self.view()?;
        for kept in view.keyspaces() {
            let walked = kept.engine().and_then(|engine| {
                engine.verify(&mut found)?;
                let mut cursor = Arc::clone(engine).cursor(view.seq(), Bounds::all(), Want::Pairs)?;
                while cursor.next()? {
                    summary.pairs += 1;
                }
                Ok(())
            });
            if let Err(error) = walked {
                found(error);
            }
        }
        summary.findings = findings;
        Ok(summary)
    }

    /// A segment may be freed or appended to while it is read: it is held, and read to its end of now.
    fn verify_log(&self, log: LogId, summary: &mut VerifyReport, found: &mut impl FnMut(Error)) {
        for segment in self.log(log).list() {
            summary.files.push(segment.path().to_path_buf());
            let mut scan = Scan::new(&segment, 0, segment.end());
            for scanned in scan.by_ref() {
                summary.frames += 1;
                summary.bytes += scanned.frame.span();
            }
            if let Stop::Torn(_, error) = scan.stop() {
                found(error);
            }
        }
    }
}
