//! # Codec: compression method of a value

use super::DecodeError;
use sheaf_platform::error::Damage;

/// Compression method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Codec {
    /// LZ4 blocks: fast.
    Lz4,
    /// Zstandard frames: smaller. Needs a build with the feature `zstd`.
    Zstd,
}

const LZ4: u8 = 1;
const ZSTD: u8 = 2;
/// Level of `zstd`: its default.
#[cfg(feature = "zstd")]
const ZSTD_LEVEL: i32 = 3;
/// Text of the error for a missing `zstd`.
const ZSTD_MISSING: &str = "values compressed with zstd: this build lacks the feature `zstd`";

#[cfg(feature = "zstd")]
sheaf_platform::sync::thread_local! {
    static ZSTD_CONTEXTS: std::cell::RefCell<Option<ZstdContexts>> = const { std::cell::RefCell::new(None) };
}

/// State of `zstd` of a thread. Its creation costs more than the work on a small value.
#[cfg(feature = "zstd")]
struct ZstdContexts {
    compressor: zstd::bulk::Compressor<'static>,
    decompressor: zstd::bulk::Decompressor<'static>,
}

#[cfg(feature = "zstd")]
fn with_zstd<R>(run: impl FnOnce(&mut ZstdContexts) -> std::io::Result<R>) -> std::io::Result<R> {
    ZSTD_CONTEXTS.with(|contexts| {
        let mut contexts = contexts.borrow_mut();
        if contexts.is_none() {
            let compressor = zstd::bulk::Compressor::new(ZSTD_LEVEL)?;
            *contexts = Some(ZstdContexts { compressor, decompressor: zstd::bulk::Decompressor::new()? });
        }
        match contexts.as_mut() {
            Some(contexts) => run(contexts),
            None => Err(std::io::ErrorKind::OutOfMemory.into()),
        }
    })
}

impl Codec {
    /// Returns the number of the codec in stored values and in options.
    #[must_use]
    pub fn id(self) -> u8 {
        match self {
            Codec::Lz4 => LZ4,
            Codec::Zstd => ZSTD,
        }
    }

    /// Returns the name of the codec, as in the option `compression`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Codec::Lz4 => "lz4",
            Codec::Zstd => "zstd",
        }
    }

    /// Returns the codec with this number.
    ///
    /// # Errors
    ///
    /// Returns [`DecodeError::MissingCodec`] if this build does not know the number.
    pub fn from_id(id: u8) -> Result<Codec, DecodeError> {
        match id {
            LZ4 => Ok(Codec::Lz4),
            ZSTD => Ok(Codec::Zstd),
            _ => Err(DecodeError::MissingCodec("the codec of a value, which a newer build wrote")),
        }
    }

    /// Returns whether this build can compress and decompress with the codec.
    #[must_use]
    pub fn is_available(self) -> bool {
        match self {
            Codec::Lz4 => true,
            Codec::Zstd => cfg!(feature = "zstd"),
        }
    }

    /// Appends the compressed `raw` to `out`. Returns false if this build lacks the codec.
    pub(super) fn compress(self, raw: &[u8], out: &mut Vec<u8>) -> bool {
        let start = out.len();
        let written = match self {
            Codec::Lz4 => {
                out.resize(start + lz4_flex::block::get_maximum_output_size(raw.len()), 0);
                lz4_flex::block::compress_into(raw, &mut out[start..]).ok()
            }
            Codec::Zstd => compress_zstd(raw, out),
        };
        out.truncate(start + written.unwrap_or(0));
        written.is_some()
    }

    /// Fills `out` with the bytes that `payload` decompresses to.
    pub(super) fn decompress(self, payload: &[u8], out: &mut [u8]) -> Result<(), DecodeError> {
        if !self.is_available() {
            return Err(DecodeError::MissingCodec(ZSTD_MISSING));
        }
        let raw_len = out.len();
        let got = match self {
            Codec::Lz4 => lz4_flex::block::decompress_into(payload, out).ok(),
            Codec::Zstd => decompress_zstd(payload, out),
        };
        match got {
            Some(got) if got == raw_len => Ok(()),
            Some(got) => Err(Damage::bad_field("raw length", got as u64, raw_len as u64).into()),
            None => Err(Damage::bad_field("payload", "bytes of the codec", payload.len() as u64).into()),
        }
    }
}

#[cfg(feature = "zstd")]
fn compress_zstd(raw: &[u8], out: &mut Vec<u8>) -> Option<usize> {
    let start = out.len();
    out.resize(start + zstd::zstd_safe::compress_bound(raw.len()), 0);
    with_zstd(|zstd| zstd.compressor.compress_to_buffer(raw, &mut out[start..])).ok()
}

#[cfg(not(feature = "zstd"))]
fn compress_zstd(_: &[u8], _: &mut Vec<u8>) -> Option<usize> {
    None
}

#[cfg(feature = "zstd")]
fn decompress_zstd(payload: &[u8], out: &mut [u8]) -> Option<usize> {
    with_zstd(|zstd| zstd.decompressor.decompress_to_buffer(payload, out)).ok()
}

#[cfg(not(feature = "zstd"))]
fn decompress_zstd(_: &[u8], _: &mut [u8]) -> Option<usize> {
    None
}
