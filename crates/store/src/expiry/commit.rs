//! # Commits to keyspaces with expiry
//!
//! Adds the headers of values and the hints of the index to a commit. No old value is read.

use std::ops::Range;

use smallvec::SmallVec;

use super::header::{self, HEADER_BYTES};
use super::index::{HINT_TIME_BYTES, encode_hint};
use super::{EXPIRY_OPTION, Expires, KeyspaceExpiry};
use crate::commit::stall::CommitWaits;
use crate::commit::transaction::RangeReads;
use crate::commit::{CommitOutcome, CommitWrite};
use crate::{KeyspaceState, Store};
use sheaf_engine::contract::{Action, EngineOp};
use sheaf_log::blob::UncommittedBlob;
use sheaf_log::types::{MAX_KEY, MAX_VALUE};
use sheaf_platform::clock::UnixMillis;
use sheaf_platform::error::{Error, Result};
use sheaf_platform::sync::atomic::Ordering;

/// Part of a commit that needs bytes of its own.
#[derive(Debug, Default)]
struct ExpandedWrite {
    /// Header and value, in the buffer of the commit.
    value: Option<Range<usize>>,
    /// Time and key, in the buffer of the commit.
    hint: Option<(UnixMillis, Range<usize>)>,
}

impl CommitWrite<'_> {
    /// Returns whether the commit must pass [`Store::commit_with_expiry`].
    #[inline]
    pub(crate) fn needs_expiry(&self) -> bool {
        match self.expires {
            Expires::Default => self.keyspace.expiry().is_some(),
            Expires::Stored(None) => false,
            _ => true,
        }
    }

    /// Appends the header, value and hint of this write to `buffer`, and returns their places.
    fn expand(&self, buffer: &mut Vec<u8>) -> Result<ExpandedWrite> {
        let Some(expiry) = self.keyspace.expiry() else {
            return match self.expires {
                Expires::Default | Expires::Never | Expires::Stored(_) => Ok(ExpandedWrite::default()),
                _ => Err(no_expiry_error(self.keyspace)),
            };
        };
        let time = match self.op.action {
            Action::Put(_) | Action::Blob(_) => expiry.expiry_time(self.expires)?,
            Action::Remove | Action::RemoveRange(_) | Action::Expect => return Ok(ExpandedWrite::default()),
        };
        let value = match self.op.action {
            Action::Put(value) if !matches!(self.expires, Expires::Stored(_)) => {
                check_value(value)?;
                let start = buffer.len();
                buffer.extend_from_slice(&header::encode(time));
                buffer.extend_from_slice(value);
                Some(start..buffer.len())
            }
            _ => None, // it has its header
        };
        let hint = match time {
            Some(time) => Some((time, push_hint(buffer, time, self.op.key)?)),
            None => None,
        };
        Ok(ExpandedWrite { value, hint })
    }
}

/// Returns the error for an expiry time in a keyspace without expiry.
pub(crate) fn no_expiry_error(keyspace: &KeyspaceState) -> Error {
    let name = keyspace.name();
    let reason = format!(
        "keyspace {name:?} has no expiry; only a new keyspace can get it, by the option {EXPIRY_OPTION}=on"
    );
    Error::InvalidArgument { argument: "ttl", reason }
}

fn check_value(value: &[u8]) -> Result<()> {
    let max = MAX_VALUE - HEADER_BYTES;
    if value.len() > max {
        return Err(Error::TooLarge { object: "value", got: value.len() as u64, max: max as u64 });
    }
    Ok(())
}

fn push_hint(buffer: &mut Vec<u8>, time: UnixMillis, key: &[u8]) -> Result<Range<usize>> {
    let max = MAX_KEY - HINT_TIME_BYTES;
    if key.len() > max {
        return Err(Error::TooLarge {
            object: "key of a pair that expires",
            got: key.len() as u64,
            max: max as u64,
        });
    }
    let start = buffer.len();
    encode_hint(time, key, buffer);
    Ok(start..buffer.len())
}

impl KeyspaceExpiry {
    /// Records that a commit wrote a hint with this time. Called when the commit is visible.
    fn note_hint(&self, store: &Store, time: UnixMillis) {
        self.next_due.fetch_min(time.0, Ordering::AcqRel);
        store.expiry.next_due.fetch_min(time.0, Ordering::AcqRel);
    }
}

impl Store {
    /// Commits writes of which some need [`CommitWrite::needs_expiry`]. The indexes of conflicts
    /// are those of `writes`.
    #[cold]
    pub(crate) fn commit_with_expiry(
        &self,
        writes: &mut [CommitWrite<'_>],
        blobs: &mut SmallVec<[UncommittedBlob; 1]>,
        reads: RangeReads<'_>,
        waits: &mut CommitWaits,
    ) -> Result<CommitOutcome> {
        let mut buffer = Vec::new();
        let parts: SmallVec<[ExpandedWrite; 1]> =
            writes.iter().map(|write| write.expand(&mut buffer)).collect::<Result<_>>()?;
        let mut all: SmallVec<[CommitWrite<'_>; 2]> = SmallVec::with_capacity(2 * writes.len());
        for (write, part) in writes.iter().zip(&parts) {
            let op = match &part.value {
                Some(value) => EngineOp { action: Action::Put(&buffer[value.clone()]), ..write.op },
                None => write.op,
            };
            all.push(CommitWrite {
                keyspace: write.keyspace,
                op,
                check: write.check,
                expires: write.expires,
                is_encoded: write.is_encoded,
            });
        }
        for (write, part) in writes.iter().zip(&parts) {
            let index = write.keyspace.expiry().and_then(KeyspaceExpiry::index);
            if let (Some((_, hint)), Some(index)) = (&part.hint, index) {
                all.push(CommitWrite::new(index, EngineOp::new(&buffer[hint.clone()], Action::Put(&[]))));
            }
        }
        let outcome = self.commit_stored(&mut all, blobs, reads, waits)?;
        for (write, stored) in writes.iter_mut().zip(&all) {
            write.op.prior = stored.op.prior;
        }
        if let CommitOutcome::Committed(_) = outcome {
            for (write, part) in writes.iter().zip(&parts) {
                if let (Some((time, _)), Some(expiry)) = (&part.hint, write.keyspace.expiry()) {
                    expiry.note_hint(self, *time);
                }
            }
        }
        Ok(outcome)
    }
}
