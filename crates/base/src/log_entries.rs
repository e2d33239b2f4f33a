//! # Entries of the flat log, for the engines whose data they are
//!
//! Such an engine keeps an index from keys to addresses and nothing else; what it notes of an
//! operation, which bytes and staged values it counts as live, and how it hands a value out do not
//! depend on the index.
//!
//! ## Threads
//!
//! Any, side by side: the caller has the stripe of the key that an entry is of. [`LiveAccounting`]
//! has a lock of its own for the staged values. Counts of bytes are spread over cache lines if
//! threads collide at them.

use std::collections::HashMap;
use std::sync::Arc;

use crate::blob_reader::StoredValue;
use crate::engine::{EngineOp, ImageSink, ImageSource};
use crate::engine_context::EngineContext;
use crate::error::Result;
use crate::record::RecordContent;
use crate::segment::{Address, DATA_START, Frame};
use crate::sync::Mutex;
use crate::sync::epoch::Guard;
use crate::types::Seq;
use crate::versions::{IndexPlace, OldVersion, OldVersions};
use crate::views::Views;

// The words of an operation's note.
const HASH: usize = 0;
/// Address of the entry it replaces; 0 for none.
const PRIOR: usize = 1;
/// Bytes of that entry's frame.
const PRIOR_SPAN: usize = 2;
/// Its staged value's number plus one; 0 for none.
const PRIOR_BLOB: usize = 3;
/// The print of the entries that were looked at.
const VERSIONS_HASH: usize = 4;

/// Bytes of an address in an image.
const ADDRESS: usize = 5;

/// What a look-up found.
#[derive(Debug)]
pub struct LoggedEntry<'g> {
    /// Where it stands.
    pub address: Address,
    /// What stands there.
    pub frame: Frame<'g>,
}

impl LoggedEntry<'_> {
    /// Bytes of its frame.
    #[must_use]
    pub fn span(&self) -> u64 {
        self.frame.span()
    }

    /// Its commit.
    #[must_use]
    pub fn seq(&self) -> Seq {
        self.frame.header.seq
    }
}

/// Stands for a set of entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressSetHash(u64);

impl AddressSetHash {
    /// Puts an entry into the set.
    #[inline]
    pub fn add(&mut self, address: Address) {
        let mixed = (address.bits() + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29) | 1;
        self.0 = self.0.wrapping_add(mixed);
    }

    /// Stands for these.
    #[must_use]
    pub fn of(addresses: &[Address]) -> AddressSetHash {
        let mut print = AddressSetHash::default();
        addresses.iter().for_each(|address| print.add(*address));
        print
    }
}

/// Notes what `prepare` found out: the key's hash, the entry that `op` replaces and the staged
/// value this names, the print of all entries that were looked at.
#[inline]
pub fn note(
    op: &mut EngineOp<'_>,
    hash: u64,
    prior: Option<(&LoggedEntry<'_>, Option<u64>)>,
    print: AddressSetHash,
) {
    (op.note, op.prior) = ([hash, 0, 0, 0, print.0], Seq::ZERO);
    if let Some((entry, staged)) = prior {
        op.note[PRIOR] = entry.address.bits();
        op.note[PRIOR_SPAN] = entry.span();
        op.prior = entry.seq();
        op.note[PRIOR_BLOB] = staged.map_or(0, |blob| blob + 1);
    }
}

/// The hash that was noted.
#[must_use]
pub fn noted_hash(op: &EngineOp<'_>) -> u64 {
    op.note[HASH]
}

/// The print that was noted.
#[must_use]
pub fn noted_set_hash(op: &EngineOp<'_>) -> AddressSetHash {
    AddressSetHash(op.note[VERSIONS_HASH])
}

/// Where the entry stands that `op` replaces, or [`Address::NONE`].
#[must_use]
pub fn noted_prior(op: &EngineOp<'_>) -> Address {
    Address::from_bits(op.note[PRIOR])
}

/// The entry that `op` replaces, superseded by commit `died`.
#[must_use]
pub fn replaced_version(op: &EngineOp<'_>, died: Seq) -> Option<OldVersion> {
    let address = noted_prior(op);
    (address != Address::NONE).then(|| OldVersion {
        address,
        span: u32::try_from(op.note[PRIOR_SPAN]).unwrap_or(u32::MAX),
        begin_seq: op.prior,
        end_seq: died,
        blob: op.note[PRIOR_BLOB].checked_sub(1),
    })
}

/// A staged value that somebody needs.
#[derive(Clone, Copy, Debug)]
struct BlobUse {
    /// Where the record stands that names it.
    at: Address,
    /// How many checkpoints had taken their position by then.
    since: u32,
    /// The record is superseded, and a view needs it.
    is_pinned: bool,
}

#[derive(Debug, Default)]
struct BlobUses {
    by_number: HashMap<u64, BlobUse>,
    checkpoints: u32,
}

/// What of the log is live for one keyspace: bytes of segments, staged values.
///
/// ## Staged values in an image
///
/// 1. An image has those that entries named at the checkpoint's position, and do so still. What was
///    named later is replayed: were it in the image, and superseded later still, a replay that
///    meets the newer record first would not know that it died.
/// 2. With each goes the address of its record. Whoever takes up the image treats both as the
///    index's own word there: if its segment is gone, so is the name, and a copy of the record that
///    is replayed brings it back.
#[derive(Debug)]
pub struct LiveAccounting {
    context: Arc<EngineContext>,
    blob_uses: Mutex<BlobUses>,
}

impl LiveAccounting {
    /// Nothing yet.
    #[must_use]
    pub fn new(context: Arc<EngineContext>) -> LiveAccounting {
        LiveAccounting { context, blob_uses: Mutex::default() }
    }

    /// A live entry at `at` names the staged value `blob`.
    pub fn add_blob(&self, blob: u64, at: Address) {
        let mut named = self.blob_uses.lock();
        let fresh = BlobUse { at, since: named.checkpoints, is_pinned: false };
        named.by_number.entry(blob).or_insert(fresh).at = at;
    }

    /// No entry names `blob` any more. False if none did.
    pub fn remove_blob(&self, blob: u64) -> bool {
        self.blob_uses.lock().by_number.remove(&blob).is_some()
    }

    /// The entry that names `blob` was copied to `to`.
    pub fn move_blob(&self, blob: Option<u64>, to: Address) {
        let Some(blob) = blob else { return };
        if let Some(naming) = self.blob_uses.lock().by_number.get_mut(&blob) {
            naming.at = to;
        }
    }

    /// `old` is superseded, and stays for a view: nobody else needs its staged value.
    pub fn pin_blob(&self, old: &OldVersion) {
        let Some(blob) = old.blob else { return };
        if let Some(naming) = self.blob_uses.lock().by_number.get_mut(&blob) {
            naming.is_pinned = true;
        }
    }

    /// How many staged values are named.
    #[must_use]
    pub fn blob_count(&self) -> usize {
        self.blob_uses.lock().by_number.len()
    }

    /// Adds the numbers of all staged values that are named to `out`.
    pub fn list_blobs(&self, out: &mut Vec<u64>) {
        out.extend(self.blob_uses.lock().by_number.keys());
    }

    /// Notes that a checkpoint takes its position. No commit is being applied.
    pub fn freeze(&self) {
        self.blob_uses.lock().checkpoints += 1;
    }

    /// The staged values that an image is to name, by number, and where the records stand that name
    /// them. What only views need ends with them, and no opening has any.
    pub fn image_blobs(&self) -> Vec<(u64, Address)> {
        let named = self.blob_uses.lock();
        let is_due = |naming: &BlobUse| !naming.is_pinned && naming.since < named.checkpoints;
        let all = named.by_number.iter().filter(|(_, naming)| is_due(naming));
        let mut frozen: Vec<(u64, Address)> = all.map(|(blob, naming)| (*blob, naming.at)).collect();
        frozen.sort_unstable_by_key(|(blob, _)| *blob);
        frozen
    }

    /// Writes [`LiveAccounting::image_blobs`] into an image.
    pub fn save(&self, out: &mut dyn ImageSink) -> Result<()> {
        let frozen = self.image_blobs();
        out.put(&(frozen.len() as u64).to_le_bytes())?;
        frozen.iter().try_for_each(|(blob, at)| {
            out.put(&blob.to_le_bytes())?;
            out.put(&at.bits().to_le_bytes()[..ADDRESS])
        })
    }

    /// Takes up what [`LiveAccounting::save`] wrote.
    pub fn restore(&self, image: &mut dyn ImageSource) -> Result<()> {
        let mut count = [0; 8];
        image.fill(&mut count)?;
        let mut last = None;
        for _ in 0..u64::from_le_bytes(count) {
            let (mut blob, mut at) = ([0; 8], [0; 8]);
            image.fill(&mut blob)?;
            image.fill(&mut at[..ADDRESS])?;
            let (blob, at) = (u64::from_le_bytes(blob), Address::from_bits(u64::from_le_bytes(at)));
            if last.replace(blob).is_some_and(|last| last >= blob) {
                return Err(image.invalid_field("blob number", blob));
            }
            if at.offset() < DATA_START {
                return Err(image.invalid_field("address", at.bits()));
            }
            if let Some(slot) = image.slot_of(at.slot()) {
                self.add_blob(blob, Address::new(slot, at.offset()));
            }
        }
        Ok(())
    }

    /// Counts the entry at `address` as live, or (negative) as dead.
    pub fn count_live(&self, address: Address, span: i64, guard: &Guard) {
        if let Some(segment) = self.context.segments.at(address.slot(), guard) {
            segment.add_live(span);
        }
    }

    /// Counts the removal at `address`.
    pub fn count_tombstone(&self, address: Address, span: u32, guard: &Guard) {
        if let Some(segment) = self.context.segments.at(address.slot(), guard) {
            segment.add_tombstone(u64::from(span));
        }
    }

    /// The keyspace is gone, and so is who needed its old versions. Their staged values go with all
    /// others of it.
    pub fn drop_versions<P: IndexPlace>(&self, versions: &OldVersions<P>, guard: &Guard) {
        for old in versions.trim(&Views::default(), Seq::LATEST) {
            self.count_live(old.address, -i64::from(old.span), guard);
        }
    }

    /// Nobody needs `old` any more.
    pub fn free_version(&self, old: &OldVersion, guard: &Guard) {
        self.count_live(old.address, -i64::from(old.span), guard);
        if let Some(blob) = old.blob {
            self.remove_blob(blob);
            self.context.retire_blob(old.end_seq, blob);
        }
    }

    /// Hands the value of a record to `found`. False if its staged value is gone, since the index
    /// let go of it a moment ago: look again. One that is named twice, as `missing` remembers, is
    /// lost.
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
            RecordContent::Remove => {}
        }
        Ok(true)
    }
}
