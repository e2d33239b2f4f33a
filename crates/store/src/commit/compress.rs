//! # Values of a commit in their stored form
//!
//! Values of keyspaces with a codec are encoded before the commit is checked and prepared. So all
//! limits (of a batch, of values in the log) apply to the stored bytes. The header of a keyspace
//! with expiry stays in front of the stored form: it is added later, unless the value has it
//! already.

use std::sync::Arc;

use smallvec::SmallVec;

use super::transaction::RangeReads;
use super::{CommitOutcome, CommitWrite, check_sizes};
use crate::commit::stall::CommitWaits;
use crate::expiry::Expires;
use crate::{KeyspaceState, Store};
use sheaf_engine::contract::{Action, EngineOp};
use sheaf_log::blob::UncommittedBlob;
use sheaf_platform::error::Result;

impl<'a> CommitWrite<'a> {
    /// Returns a put of a value that is in the stored form of a keyspace with a codec. In a
    /// keyspace with expiry, the commit adds the header.
    #[doc(hidden)]
    pub fn encoded(keyspace: &'a Arc<KeyspaceState>, key: &'a [u8], stored: &'a [u8]) -> CommitWrite<'a> {
        let op = EngineOp::new(key, Action::Put(stored));
        CommitWrite { is_encoded: true, ..CommitWrite::new(keyspace, op) }
    }

    /// Returns true if the operation has a value that is not in its stored form.
    #[inline]
    pub(super) fn needs_encoding(&self) -> bool {
        self.keyspace.compression().is_some() && !self.is_encoded && matches!(self.op.action, Action::Put(_))
    }
}

impl Store {
    /// Like [`Store::commit_with_waits`], for operations of which some need encoding.
    #[inline(never)]
    pub(super) fn commit_compressed(
        &self,
        writes: &mut [CommitWrite<'_>],
        blobs: &mut SmallVec<[UncommittedBlob; 1]>,
        reads: RangeReads<'_>,
        waits: &mut CommitWaits,
    ) -> Result<CommitOutcome> {
        let mut values: SmallVec<[Option<Vec<u8>>; 1]> = SmallVec::new();
        for write in &*writes {
            values.push(match (write.op.action, write.keyspace.compression()) {
                (Action::Put(value), Some(compression)) if !write.is_encoded => {
                    let has_header = matches!(write.expires, Expires::Stored(_));
                    let added = if has_header { 0 } else { compression.header_len() as usize };
                    check_sizes(write.op.key, value.len().saturating_add(added))?;
                    Some(match has_header {
                        true => compression.encode_with_header(value),
                        false => compression.encode(value),
                    })
                }
                _ => None,
            });
        }
        let mut encoded: SmallVec<[CommitWrite<'_>; 1]> = SmallVec::new();
        for (write, value) in writes.iter().zip(&values) {
            let mut op = write.op;
            if let Some(value) = value {
                op.action = Action::Put(value);
            }
            let CommitWrite { keyspace, check, expires, .. } = *write;
            encoded.push(CommitWrite { keyspace, op, check, expires, is_encoded: true });
        }
        let outcome = self.commit_with_waits(&mut encoded, blobs, reads, waits);
        for (write, encoded) in writes.iter_mut().zip(&encoded) {
            write.op.prior = encoded.op.prior; // callers tell by it whether the key is new
        }
        outcome
    }
}
