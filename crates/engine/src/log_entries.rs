//! # Log entries: common code of the engines of a store log
//!
//! Such an engine only has an index from keys to addresses. This module has the parts that do not
//! depend on the index: notes of operations, accounting of live bytes and blobs, and returning
//! values.
//!
//! ## Threads
//!
//! Threads may call in parallel; the caller holds the stripe of the entry's key. [`LiveAccounting`]
//! has its own lock for blobs. Counts of bytes are spread over cache lines if threads contend for
//! them.

use std::collections::HashMap;
use std::sync::Arc;

use crate::context::EngineContext;
use crate::contract::{EngineOp, FINDING_WORDS, Findings, ImageSink, ImageSource};
use crate::versions::{IndexPlace, OldVersion, OldVersions};
use crate::views::Views;
use sheaf_log::blob_reader::StoredValue;
use sheaf_log::record::RecordContent;
use sheaf_log::segment::{Address, DATA_START, Frame};
use sheaf_log::types::Seq;
use sheaf_platform::error::Result;
use sheaf_platform::sync::Mutex;
use sheaf_platform::sync::epoch::Guard;

/// Findings of `prepare`, as [`set_findings`] stores them.
#[derive(Clone, Copy, Debug)]
struct EntryFindings {
    hash: u64,
    /// The replaced entry, or [`Address::NONE`].
    prior: Address,
    /// Bytes of the frame of the replaced entry.
    prior_span: u64,
    /// Id of the blob of the replaced entry.
    prior_blob: Option<u64>,
    /// Hash of the set of entries that `prepare` read.
    entries: AddressSetHash,
}

impl Findings for EntryFindings {
    #[inline]
    fn to_words(self) -> [u64; FINDING_WORDS] {
        let blob = self.prior_blob.map_or(0, |id| id + 1);
        [self.hash, self.prior.bits(), self.prior_span, blob, self.entries.0]
    }

    #[inline]
    fn from_words([hash, prior, prior_span, blob, entries]: [u64; FINDING_WORDS]) -> EntryFindings {
        let (prior, entries) = (Address::from_bits(prior), AddressSetHash(entries));
        EntryFindings { hash, prior, prior_span, prior_blob: blob.checked_sub(1), entries }
    }
}

/// Bytes of an address in an image.
const ADDRESS: usize = 5;

/// Entry that a lookup found.
#[derive(Debug)]
pub struct LoggedEntry<'g> {
    /// Log address of the entry.
    pub address: Address,
    /// Frame of the entry.
    pub frame: Frame<'g>,
}

impl LoggedEntry<'_> {
    /// Returns the bytes of the frame.
    #[must_use]
    pub fn span(&self) -> u64 {
        self.frame.span()
    }

    /// Returns the seq of the entry's commit.
    #[must_use]
    pub fn seq(&self) -> Seq {
        self.frame.header.seq
    }
}

/// Hash of a set of addresses, independent of their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressSetHash(u64);

impl AddressSetHash {
    /// Adds an address to the set.
    #[inline]
    pub fn add(&mut self, address: Address) {
        let mixed = (address.bits() + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29) | 1;
        self.0 = self.0.wrapping_add(mixed);
    }

    /// Returns the hash of a set of addresses.
    #[must_use]
    pub fn of(addresses: &[Address]) -> AddressSetHash {
        let mut print = AddressSetHash::default();
        addresses.iter().for_each(|address| print.add(*address));
        print
    }
}

/// Stores the findings of `prepare` in `op.findings`. These are the hash of the key, the
/// replaced entry with its blob, and the hash of the set of entries that `prepare` read.
#[inline]
pub fn set_findings(
    op: &mut EngineOp<'_>,
    hash: u64,
    prior: Option<(&LoggedEntry<'_>, Option<u64>)>,
    entries: AddressSetHash,
) {
    op.prior = prior.map_or(Seq::ZERO, |(entry, _)| entry.seq());
    op.findings.set(EntryFindings {
        hash,
        prior: prior.map_or(Address::NONE, |(entry, _)| entry.address),
        prior_span: prior.map_or(0, |(entry, _)| entry.span()),
        prior_blob: prior.and_then(|(_, blob)| blob),
        entries,
    });
}

/// Returns the hash of the key in the findings.
#[must_use]
pub fn found_hash(op: &EngineOp<'_>) -> u64 {
    op.findings.get::<EntryFindings>().hash
}

/// Returns the hash of the set of entries in the findings.
#[must_use]
pub fn found_set_hash(op: &EngineOp<'_>) -> AddressSetHash {
    op.findings.get::<EntryFindings>().entries
}

/// Returns the address of the entry that `op` replaces, or [`Address::NONE`].
#[must_use]
pub fn found_prior(op: &EngineOp<'_>) -> Address {
    op.findings.get::<EntryFindings>().prior
}

/// Returns the entry that `op` replaces, superseded by commit `end_seq`.
#[must_use]
pub fn replaced_version(op: &EngineOp<'_>, end_seq: Seq) -> Option<OldVersion> {
    let found: EntryFindings = op.findings.get();
    (found.prior != Address::NONE).then(|| OldVersion {
        address: found.prior,
        span: u32::try_from(found.prior_span).unwrap_or(u32::MAX),
        begin_seq: op.prior,
        end_seq,
        blob: found.prior_blob,
    })
}

/// A blob that an entry or a view needs.
#[derive(Clone, Copy, Debug)]
struct BlobUse {
    /// Address of the record that refers to it.
    at: Address,
    /// Number of checkpoints that had taken their position before the blob was added.
    since: u32,
    /// True if the record is superseded and a view needs it.
    is_pinned: bool,
}

#[derive(Debug, Default)]
struct BlobUses {
    by_number: HashMap<u64, BlobUse>,
    checkpoints: u32,
}

/// Accounting of the live data of one keyspace in the log: bytes of segments, and blobs.
///
/// ## Blobs in an image
///
/// 1. An image contains the blobs to which entries referred at the checkpoint's position, and still
///    do. Blobs added later are replayed. They must not be in the image: if such a blob is
///    superseded before the crash, a replay may meet the newer record first. It would then not
///    notice that the blob is dead.
/// 2. An image has the address of the record with each blob. An opening treats both like an entry
///    of the index: if the segment was freed, it drops the reference. A copy of the record, which
///    is replayed, restores it.
#[derive(Debug)]
pub struct LiveAccounting {
    context: Arc<EngineContext>,
    blob_uses: Mutex<BlobUses>,
}

impl LiveAccounting {
    /// Returns an empty accounting.
    #[must_use]
    pub fn new(context: Arc<EngineContext>) -> LiveAccounting {
        LiveAccounting { context, blob_uses: Mutex::default() }
    }

    /// Records that a live entry at `at` refers to `blob`.
    pub fn add_blob(&self, blob: u64, at: Address) {
        let mut named = self.blob_uses.lock();
        let fresh = BlobUse { at, since: named.checkpoints, is_pinned: false };
        named.by_number.entry(blob).or_insert(fresh).at = at;
    }

    /// Records that no entry refers to `blob` any more. Returns false if none did.
    pub fn remove_blob(&self, blob: u64) -> bool {
        self.blob_uses.lock().by_number.remove(&blob).is_some()
    }

    /// Records that the entry that refers to `blob` was copied to `to`.
    pub fn move_blob(&self, blob: Option<u64>, to: Address) {
        let Some(blob) = blob else { return };
        if let Some(naming) = self.blob_uses.lock().by_number.get_mut(&blob) {
            naming.at = to;
        }
    }

    /// Records that `old` is superseded and kept for a view: only views need its blob.
    pub fn pin_blob(&self, old: &OldVersion) {
        let Some(blob) = old.blob else { return };
        if let Some(naming) = self.blob_uses.lock().by_number.get_mut(&blob) {
            naming.is_pinned = true;
        }
    }

    /// Returns the number of blobs.
    #[must_use]
    pub fn blob_count(&self) -> usize {
        self.blob_uses.lock().by_number.len()
    }

    /// Appends the ids of all blobs to `out`.
    pub fn list_blobs(&self, out: &mut Vec<u64>) {
        out.extend(self.blob_uses.lock().by_number.keys());
    }

    /// Notes that a checkpoint takes its position. No commit is being applied during the call.
    pub fn freeze(&self) {
        self.blob_uses.lock().checkpoints += 1;
    }

    /// Returns the blobs for an image, sorted by id, with the addresses of their records. Blobs
    /// that only views need are left out: an opening has no views.
    pub fn image_blobs(&self) -> Vec<(u64, Address)> {
        let named = self.blob_uses.lock();
        let is_due = |naming: &BlobUse| !naming.is_pinned && naming.since < named.checkpoints;
        let all = named.by_number.iter().filter(|(_, naming)| is_due(naming));
        let mut frozen: Vec<(u64, Address)> = all.map(|(blob, naming)| (*blob, naming.at)).collect();
        frozen.sort_unstable_by_key(|(blob, _)| *blob);
        frozen
    }

    /// Writes [`LiveAccounting::image_blobs`] to an image.
    ///
    /// # Errors
    ///
    /// Returns the error of the image's writer.
    pub fn save(&self, out: &mut dyn ImageSink) -> Result<()> {
        let frozen = self.image_blobs();
        out.put(&(frozen.len() as u64).to_le_bytes())?;
        frozen.iter().try_for_each(|(blob, at)| {
            out.put(&blob.to_le_bytes())?;
            out.put(&at.bits().to_le_bytes()[..ADDRESS])
        })
    }

    /// Loads the blobs that [`LiveAccounting::save`] wrote.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`](sheaf_platform::error::Error::Corrupt) if the blobs are not
    /// sorted or an address is invalid, and the errors of reading the image.
    pub fn restore(&self, image: &mut dyn ImageSource) -> Result<()> {
        let mut count = [0; 8];
        image.fill(&mut count)?;
        let mut last = None;
        for _ in 0..u64::from_le_bytes(count) {
            let (mut blob, mut at) = ([0; 8], [0; 8]);
            image.fill(&mut blob)?;
            image.fill(&mut at[..ADDRESS])?;
            let (blob, at) = (u64::from_le_bytes(blob), Address::from_bits(u64::from_le_bytes(at)));
            if let Some(last) = last.replace(blob).filter(|last| *last >= blob) {
                return Err(image.invalid_field("blob number", (last.saturating_add(1)..).into(), blob));
            }
            if at.offset() < DATA_START {
                return Err(image.invalid_field("offset of a blob", (DATA_START..).into(), at.offset()));
            }
            if let Some(slot) = image.slot_of(at.slot()) {
                self.add_blob(blob, Address::new(slot, at.offset()));
            }
        }
        Ok(())
    }

    /// Adds `span` to the live bytes of the segment at `address`. A negative `span` counts dead
    /// bytes.
    pub fn count_live(&self, address: Address, span: i64, guard: &Guard) {
        if let Some(segment) = self.context.segments.at(address.slot(), guard) {
            segment.add_live(span);
        }
    }

    /// Counts the tombstone at `address`.
    pub fn count_tombstone(&self, address: Address, span: u32, guard: &Guard) {
        if let Some(segment) = self.context.segments.at(address.slot(), guard) {
            segment.add_tombstone(u64::from(span));
        }
    }

    /// Removes the old versions of a dropped keyspace, which has no views any more. Their blobs are
    /// freed together with the keyspace's other blobs.
    pub fn drop_versions<P: IndexPlace>(&self, versions: &OldVersions<P>, guard: &Guard) {
        for old in versions.trim(&Views::default(), Seq::LATEST) {
            self.count_live(old.address, -i64::from(old.span), guard);
        }
    }

    /// Frees `old`, which is not needed any more.
    pub fn free_version(&self, old: &OldVersion, guard: &Guard) {
        self.count_live(old.address, -i64::from(old.span), guard);
        if let Some(blob) = old.blob {
            self.remove_blob(blob);
            self.context.retire_blob(old.end_seq, blob);
        }
    }

    /// Passes the value of a record to `found`. Returns false if its blob was just freed: the
    /// caller must look up the key again. `missing` remembers the blob of the last failure.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`](sheaf_platform::error::Error::Corrupt) if the same blob is
    /// missing again, and the errors of opening it.
    #[inline]
    pub fn read_stored(
        &self,
        content: RecordContent<'_>,
        missing: &mut Option<u64>,
        found: &mut dyn FnMut(StoredValue<'_>),
    ) -> Result<bool> {
        match content {
            RecordContent::Put(value) => found(StoredValue::Bytes(value)),
            RecordContent::Blob(blob) => return self.context.blobs.read_stored(&blob, missing, found),
            RecordContent::Remove | RecordContent::RemoveRange(_) => {}
        }
        Ok(true)
    }
}
