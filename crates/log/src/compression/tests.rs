//! Tests of the stored form of values: both decoders, headers, codecs, and hostile bytes.

use super::*;

/// Returns text with a compression ratio of about three.
fn text(len: usize) -> Vec<u8> {
    let words = ["commit ", "segment ", "of ", "the ", "keyspace ", "reads ", "a ", "value "];
    let mut state = 1u64;
    let mut out = Vec::new();
    while out.len() < len {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        out.extend_from_slice(words[(state >> 60) as usize % words.len()].as_bytes());
    }
    out.truncate(len);
    out
}

fn noise(len: usize) -> Vec<u8> {
    let mut state = 7u64;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_le_bytes()[6]
    };
    std::iter::repeat_with(next).take(len).collect()
}

fn stored(value: &[u8]) -> Vec<u8> {
    let mut stored = Vec::new();
    encode(Codec::Lz4, value, &mut stored);
    stored
}

fn decoded(stored: &[u8]) -> Result<Vec<u8>, DecodeError> {
    decode(stored, 0, &mut Vec::new()).map(<[u8]>::to_vec)
}

/// Returns the value as a reader of a file finds it, piece by piece.
fn by_layout(stored: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let slice = |at: u64, len: usize| &stored[usize::try_from(at).unwrap()..][..len];
    let layout = BlobLayout::read(
        stored.len() as u64,
        |error| error,
        |at, bytes| {
            bytes.copy_from_slice(slice(at, bytes.len()));
            Ok(())
        },
    )?;
    let BlobLayout::Pieces { codec, pieces, raw_len } = layout else {
        return Ok(stored[..stored.len() - 1].to_vec());
    };
    let (mut out, mut buffer) = (Vec::new(), Vec::new());
    for piece in pieces {
        piece.decode_to(codec, slice(piece.start.into(), piece.stored_len as usize), &mut buffer)?;
        out.extend_from_slice(&buffer);
    }
    assert_eq!(out.len(), raw_len as usize);
    Ok(out)
}

const LENGTHS: [usize; 12] = [
    0,
    1,
    MIN_RAW_BYTES - 1,
    MIN_RAW_BYTES,
    1000,
    PIECE_BYTES - 1,
    PIECE_BYTES,
    PIECE_BYTES + 1,
    2 * PIECE_BYTES,
    2 * PIECE_BYTES + 300,
    300_000,
    1 << 20,
];

#[test]
fn every_value_is_returned_by_both_decoders() {
    for len in LENGTHS {
        for value in [text(len), noise(len), [noise(len / 2), text(len - len / 2)].concat(), vec![0; len]] {
            let stored = stored(&value);
            assert!(stored.len() <= value.len() + 1);
            assert_eq!(decoded(&stored).as_ref(), Ok(&value), "{len}");
            assert_eq!(by_layout(&stored).as_ref(), Ok(&value), "{len}");
            assert_eq!(encoded_len(&stored).map(|len| len as usize), Ok(len));
        }
    }
}

#[test]
fn a_header_stays_in_front_of_every_form() {
    let header = [7; 12];
    let compression = ValueCompression::new(Codec::Lz4, 12);
    let form = ValueForm { header_len: 12, is_compressed: true };
    let mut buffer = Vec::new();
    for len in LENGTHS {
        for value in [text(len), noise(len)] {
            let whole = [&header[..], &value].concat();
            let stored = compression.encode_with_header(&whole);
            assert_eq!(stored, [&header[..], &compression.encode(&value)].concat(), "{len}");
            assert_eq!(form.decode(&stored, &mut buffer), Ok(&whole[..]), "{len}");
            for cut in 0..=12 {
                assert!(form.decode(&stored[..cut], &mut buffer).is_err(), "{cut} bytes");
            }
        }
    }
    assert_eq!(ValueForm::default().decode(b"value", &mut buffer), Ok(&b"value"[..]));
}

#[test]
fn only_values_that_shrink_are_compressed() {
    assert!(stored(&text(4000)).len() < 2000);
    assert!(stored(&text(400_000)).len() < 200_000);
    for value in [text(MIN_RAW_BYTES - 1), noise(5000), noise(200_000), Vec::new()] {
        assert_eq!(stored(&value), [&value[..], &[0]].concat());
    }
}

#[test]
fn a_missing_or_unknown_codec_is_named() {
    let mut bytes = stored(&text(1000));
    let at = bytes.len() - 1;
    for (codec, name) in [(9, "newer build"), (Codec::Zstd.id(), "zstd")] {
        bytes[at] = codec;
        match decoded(&bytes) {
            Err(DecodeError::MissingCodec(feature)) => assert!(feature.contains(name), "{feature}"),
            other => assert!(codec == Codec::Zstd.id() && Codec::Zstd.is_available(), "{codec}: {other:?}"),
        }
    }
}

#[test]
fn hostile_lengths_are_damage_and_allocate_nothing() {
    let mut buffer = Vec::new();
    let mut bytes = stored(&text(1000));
    let at = bytes.len() - 5;
    for raw_len in [(64 << 10) + 1, u32::MAX, 999, 1001, 0u32] {
        bytes[at..at + 4].copy_from_slice(&raw_len.to_le_bytes());
        assert!(matches!(decode(&bytes, 0, &mut buffer), Err(DecodeError::Damage(_))), "{raw_len}");
        assert!(buffer.capacity() <= PIECE_BYTES);
    }
    // Pieces that claim 4 GiB, with a valid checksum.
    for (table, raw_len) in [(1 << 16, u32::MAX), (1, u32::MAX), (1, 0), (0, 1), (3, 70_000)] {
        let lengths = vec![0u8; table * 4];
        let raw = raw_len.to_le_bytes();
        let sum = layout::table_sum(&lengths, raw, PIECES | 1).to_le_bytes();
        let hostile = [&lengths[..], &sum, &raw, &[PIECES | 1]].concat();
        let mut buffer = Vec::new();
        assert!(matches!(decode(&hostile, 0, &mut buffer), Err(DecodeError::Damage(_))), "{table} {raw_len}");
        assert!(buffer.capacity() <= 2 * PIECE_BYTES);
        assert!(by_layout(&hostile).is_err());
    }
    assert!(decoded(&[]).is_err() && by_layout(&[]).is_err());
}

#[test]
fn changed_bytes_never_panic_and_changed_tables_are_damage() {
    for len in [800, 2 * PIECE_BYTES + 300] {
        let good = stored(&text(len));
        let pieces = len.div_ceil(PIECE_BYTES);
        let trailer = good.len() - if pieces == 1 { 5 } else { 9 + 4 * pieces };
        let step = (good.len() / 300).max(1);
        for at in (0..trailer).step_by(step).chain(trailer..good.len()) {
            for bit in [1, 0x80] {
                let mut bytes = good.clone();
                bytes[at] ^= bit;
                let (whole, pieces) = (decoded(&bytes), by_layout(&bytes));
                let is_form = at == good.len() - 1; // the checksum of the stored bytes covers it
                let is_damage = whole.is_err() && pieces.is_err();
                assert!(at < trailer || is_form || is_damage, "byte {at} of {len}");
            }
        }
        for cut in (0..good.len()).step_by(step) {
            let _ = (decoded(&good[..cut]), by_layout(&good[..cut]));
        }
    }
}

#[cfg(feature = "zstd")]
#[test]
fn zstd_is_smaller_and_returns_the_value() {
    for len in LENGTHS {
        let value = text(len);
        let mut small = Vec::new();
        encode(Codec::Zstd, &value, &mut small);
        assert_eq!(decoded(&small).as_ref(), Ok(&value));
        assert_eq!(by_layout(&small).as_ref(), Ok(&value));
        assert!(len < 1000 || small.len() < stored(&value).len());
    }
}
