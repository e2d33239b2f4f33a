//! # Value writer: values that are written in parts
//!
//! Parts are collected in a buffer. A value that exceeds the buffer gets a blob file of its own
//! (commit.md R9), to which the full buffer is written repeatedly. A smaller one is written like
//! any other value. The file is synced from time to time. So the sync round of its commit, for
//! which other commits wait, has little to do.
//!
//! ## Crash
//!
//! Until the value is committed, its file is an orphan, which the next opening removes. Dropping
//! the value removes its file.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use crate::expiry::header::{self, HEADER_BYTES};
use crate::expiry::{Expires, commit::no_expiry_error, value_form};
use crate::{KeyspaceState, Store};
use sheaf_engine::contract::Action;
use sheaf_log::blob::UncommittedBlob;
use sheaf_log::blob_reader::{BlobReader, OpenBlob};
use sheaf_log::compression::{PIECE_BYTES, PieceEncoder, ValueCompression, decode};
use sheaf_log::types::MAX_VALUE;
use sheaf_platform::error::{Error, Result};
use sheaf_platform::sync::atomic::Ordering;

/// Size of the buffer, as a multiple of the blob threshold of the store.
const BUFFER_FACTOR: usize = 4;
/// Number of buffers that are written before the file is synced.
const BUFFERS_PER_SYNC: u64 = 128;

/// Value that is incomplete so far.
#[derive(Debug)]
pub struct PartialValue {
    takes_blob_files: bool,
    limit: usize,
    capacity: usize,
    buffer: Vec<u8>,
    blob: Option<UncommittedBlob>,
    /// Bytes of header and value that left the buffer.
    flushed: u64,
    encoder: Option<PartialEncoder>,
    unsynced: u64,
    has_failed: bool,
    /// Bytes of the header in front of the value.
    header_len: u64,
    /// Expiry time in the header.
    expires: Expires,
}

/// Encoder of a value for a keyspace with a codec. The buffer then has whole pieces, the first time
/// behind the header.
#[derive(Debug)]
struct PartialEncoder {
    compression: Arc<ValueCompression>,
    pieces: PieceEncoder,
}

/// Value that is complete and not committed.
#[derive(Debug)]
pub struct FinishedValue {
    bytes: Vec<u8>,
    /// Blob of the value, if it has one.
    pub blobs: SmallVec<[UncommittedBlob; 1]>,
    action: Option<sheaf_log::blob::BlobRef>,
    /// Expiry time of the value, which has its header.
    pub expires: Expires,
    /// True if the blob has the stored form of a keyspace with a codec.
    is_encoded: bool,
}

impl FinishedValue {
    fn of_bytes(bytes: Vec<u8>, expires: Expires) -> FinishedValue {
        FinishedValue { bytes, blobs: SmallVec::new(), action: None, expires, is_encoded: false }
    }

    /// Returns the operation that puts the value.
    #[must_use]
    pub fn action(&self) -> Action<'_> {
        match self.action {
            Some(blob) => Action::Blob(blob),
            None => Action::Put(&self.bytes),
        }
    }

    /// Takes the blobs back from a commit that failed. A blob that the commit created for a small
    /// value is dropped. The engine of the next attempt may not need it, and nothing would refer to
    /// it.
    pub fn restore_blobs(&mut self, mut blobs: SmallVec<[UncommittedBlob; 1]>) {
        blobs.retain(|one| self.action == Some(one.blob));
        self.blobs = blobs;
    }
}

impl PartialValue {
    /// Returns the bytes of the value so far.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.whole_len() - self.header_len
    }

    /// Returns the bytes so far, the header included.
    fn whole_len(&self) -> u64 {
        self.flushed + self.buffer.len() as u64
    }

    /// Returns the bytes at the start of the buffer that the encoder does not compress.
    fn header_in_buffer(&self) -> usize {
        match &self.encoder {
            Some(encoder) if self.flushed == 0 => encoder.compression.header_len() as usize,
            _ => 0,
        }
    }

    /// Returns true if there are no bytes so far.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Store {
    /// Returns a reader of the value in `file`.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`OpenBlob::check`].
    pub fn blob_reader(&self, file: OpenBlob) -> Result<BlobReader> {
        self.context.blobs.reader(file)
    }

    /// Starts a value for `keyspace`, which expires as `expires` says. A time to live begins with
    /// this call.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidArgument`] if the keyspace cannot have this expiry time, and the
    /// errors of a stored value.
    pub fn begin_value(&self, keyspace: &KeyspaceState, expires: Expires) -> Result<PartialValue> {
        let Some(expiry) = keyspace.expiry() else {
            return match expires {
                Expires::Default | Expires::Never => self.begin_stored_value(keyspace),
                _ => Err(no_expiry_error(keyspace)),
            };
        };
        let time = expiry.expiry_time(expires)?;
        let mut value = self.begin_stored_value(keyspace)?;
        value.buffer.extend_from_slice(&header::encode(time));
        value.header_len = HEADER_BYTES as u64;
        value.expires = Expires::Stored(time);
        Ok(value)
    }

    /// Starts a value for `keyspace`. In a keyspace with expiry, the header must be appended first.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Closed`], [`Error::ReadOnly`] or [`Error::Poisoned`] if writes are not
    /// possible, and [`Error::Corrupt`] if the keyspace is unusable.
    pub(crate) fn begin_stored_value(&self, keyspace: &KeyspaceState) -> Result<PartialValue> {
        self.check_writable()?;
        let adopts = keyspace.engine()?.takes_blob_files();
        let limit = self.effective_blob_threshold(keyspace.engine()?.blob_threshold());
        let room = limit.max(self.geometry.blob_threshold * BUFFER_FACTOR);
        let encoder = keyspace.compression().map(|compression| PartialEncoder {
            compression: Arc::clone(compression),
            pieces: PieceEncoder::new(compression.codec()),
        });
        let unit = if encoder.is_some() { PIECE_BYTES } else { 1 };
        Ok(PartialValue {
            takes_blob_files: adopts,
            limit,
            capacity: room.next_multiple_of(unit),
            buffer: Vec::new(),
            blob: None,
            flushed: 0,
            encoder,
            unsynced: 0,
            has_failed: false,
            header_len: 0,
            expires: Expires::Stored(None),
        })
    }

    /// Appends bytes. After an error of a write the value must be dropped.
    ///
    /// # Errors
    ///
    /// Returns [`Error::TooLarge`] if the value would exceed its limit, in which case nothing is
    /// appended. Returns [`Error::InvalidArgument`] if an earlier part failed, and errors of a
    /// write or sync.
    pub fn append_value(&self, incoming: &mut PartialValue, bytes: &[u8]) -> Result<()> {
        let got = incoming.whole_len() + bytes.len() as u64;
        if got > MAX_VALUE as u64 {
            return Err(Error::TooLarge { object: "value", got, max: MAX_VALUE as u64 });
        }
        if incoming.has_failed {
            return Err(Error::InvalidArgument {
                argument: "value",
                reason: "an earlier part could not be written; write the value again".into(),
            });
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let capacity = incoming.capacity + incoming.header_in_buffer();
            let (now, later) = rest.split_at(rest.len().min(capacity - incoming.buffer.len()));
            incoming.buffer.extend_from_slice(now);
            rest = later;
            if incoming.buffer.len() == capacity {
                self.flush_value_buffer(incoming)?;
            }
        }
        Ok(())
    }

    /// Completes the value.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidArgument`] if a part failed, and errors of a write.
    pub fn finish_value(&self, mut incoming: PartialValue) -> Result<FinishedValue> {
        if incoming.has_failed {
            return Err(Error::InvalidArgument {
                argument: "value",
                reason: "a part of it could not be written; write the value again".into(),
            });
        }
        let expires = incoming.expires;
        // A commit to a keyspace with a codec encodes the value, and decides then about a blob.
        if incoming.blob.is_none() && (incoming.encoder.is_some() || incoming.buffer.len() <= incoming.limit)
        {
            return Ok(FinishedValue::of_bytes(incoming.buffer, expires));
        }
        let is_encoded = incoming.encoder.is_some();
        let blob = match incoming.blob.is_some() {
            true => {
                self.flush_value_buffer(&mut incoming)?;
                self.finish_encoding(&mut incoming)?;
                incoming.blob.take()
            }
            false => {
                self.check_writable()?;
                Some(self.write_blob(&incoming.buffer, incoming.takes_blob_files)?)
            }
        };
        Ok(match blob {
            Some(blob) => {
                let action = Some(blob.blob);
                FinishedValue { bytes: Vec::new(), action, blobs: smallvec![blob], expires, is_encoded }
            }
            None => FinishedValue::of_bytes(incoming.buffer, expires),
        })
    }

    /// Writes a blob again if `keyspace` needs another one: in a file of its own instead of a slot,
    /// or in the stored form instead of the value, or the reverse. The keyspace may have been
    /// converted since the value was started.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`] if the keyspace is unusable or the value is damaged, and errors
    /// of a read or write.
    pub fn adapt_value(&self, whole: &mut FinishedValue, keyspace: &KeyspaceState) -> Result<()> {
        let Some(blob) = whole.action else { return Ok(()) };
        let (engine, compression) = (keyspace.engine()?, keyspace.compression());
        let is_file_missing = engine.takes_blob_files() && self.context.blobs.is_slot(&blob);
        let is_other_form = whole.is_encoded != compression.is_some();
        if !is_file_missing && !is_other_form {
            return Ok(());
        }
        let mut bytes =
            self.context.blobs.read(&blob)?.ok_or_else(|| self.context.blobs.missing_error(&blob))?;
        if is_other_form {
            let mut buffer = Vec::new();
            let header_len = value_form(keyspace.options()).header_len;
            bytes = match compression {
                Some(compression) => compression.encode_with_header(&bytes),
                None => decode(&bytes, header_len, &mut buffer)
                    .map_err(|error| error.into_error(engine.name(), &self.dir, 0))?
                    .to_vec(),
            };
        }
        let blob = self.write_blob(&bytes, engine.takes_blob_files())?;
        (whole.action, whole.blobs) = (Some(blob.blob), smallvec![blob]);
        whole.is_encoded = compression.is_some();
        Ok(())
    }

    /// Appends the table of the pieces to the file of a value that is encoded.
    fn finish_encoding(&self, incoming: &mut PartialValue) -> Result<()> {
        let (Some(encoder), Some(blob)) = (&incoming.encoder, &mut incoming.blob) else { return Ok(()) };
        let mut table = Vec::new();
        encoder.pieces.finish(&mut table);
        self.check_disk_reserve(table.len() as u64)?;
        blob.append(&table)?;
        self.counters.blob_bytes_written.fetch_add(table.len() as u64, Ordering::Relaxed);
        let header_len = u64::from(encoder.compression.header_len());
        encoder.compression.count(incoming.flushed - header_len, u64::from(blob.blob.len) - header_len);
        Ok(())
    }

    /// Writes the buffer to the file.
    fn flush_value_buffer(&self, incoming: &mut PartialValue) -> Result<()> {
        incoming.has_failed = true;
        self.check_writable()?;
        let header_len = incoming.header_in_buffer().min(incoming.buffer.len());
        incoming.flushed += incoming.buffer.len() as u64;
        if let Some(encoder) = &mut incoming.encoder {
            let (header, value) = incoming.buffer.split_at(header_len);
            let mut stored = header.to_vec();
            value.chunks(PIECE_BYTES).for_each(|piece| encoder.pieces.push(piece, &mut stored));
            incoming.buffer = stored;
        }
        let bytes = incoming.buffer.len() as u64;
        let blob = match &mut incoming.blob {
            Some(blob) => {
                self.check_disk_reserve(bytes)?;
                blob
            }
            none => none.insert(self.create_blob(bytes)?),
        };
        blob.append(&incoming.buffer)?;
        self.counters.blob_bytes_written.fetch_add(bytes, Ordering::Relaxed);
        incoming.buffer.clear();
        incoming.unsynced += 1;
        if incoming.unsynced == BUFFERS_PER_SYNC {
            blob.sync()?;
            incoming.unsynced = 0;
        }
        incoming.has_failed = false;
        Ok(())
    }
}
