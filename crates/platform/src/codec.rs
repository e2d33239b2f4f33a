//! # Codec: little-endian fields, encoded and decoded with bounds checks
//!
//! Used for ROOT, checkpoints and file headers. Decoded bytes are not trusted: every read is
//! bounded, and a count is limited by the number of remaining bytes.

use crate::error::Damage;

/// Upper limit of counters (incarnations, files, generations). No database reaches it, and one that
/// started there would run out of numbers.
pub const COUNT_LIMIT: u64 = 1 << 62;

/// Shift of the tenth byte of a number in base 128, which contributes one bit.
const LAST_SHIFT: u32 = 63;

/// Appends a number in base 128: seven bits per byte, lowest first.
#[inline]
pub fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

/// Decodes the number in base 128 at `at`, and advances `at` beyond it.
///
/// # Errors
///
/// Returns [`Damage::BadLength`] if the bytes end early, and [`Damage::BadField`] if the number has
/// more than ten bytes or exceeds 64 bits. [`put_varint`] writes neither.
#[inline]
pub fn take_varint(bytes: &[u8], at: &mut usize) -> Result<u64, Damage> {
    let short = |at: usize| Damage::BadLength { got: at as u64 + 1, max: bytes.len() as u64 };
    let first = *bytes.get(*at).ok_or_else(|| short(*at))?;
    *at += 1;
    if first < 0x80 {
        return Ok(u64::from(first));
    }
    let mut number = u64::from(first & 0x7f);
    for shift in (7..64).step_by(7) {
        let byte = *bytes.get(*at).ok_or_else(|| short(*at))?;
        *at += 1;
        if shift == LAST_SHIFT && byte > 1 {
            break;
        }
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err(Damage::bad_field("varint", "at most 64 bits in ten bytes", number))
}

/// Returns `bytes` as the text of `field`.
///
/// # Errors
///
/// Returns [`Damage::BadField`] with the first byte that is not UTF-8.
pub fn utf8<'a>(field: &'static str, bytes: &'a [u8]) -> Result<&'a str, Damage> {
    let invalid = |at: usize| u64::from(bytes.get(at).copied().unwrap_or_default());
    std::str::from_utf8(bytes).map_err(|e| Damage::bad_field(field, "UTF-8", invalid(e.valid_up_to())))
}

/// Encoder that appends fields to a buffer.
#[derive(Debug, Default)]
pub struct FieldWriter(pub Vec<u8>);

impl FieldWriter {
    /// Appends one byte.
    pub fn u8(&mut self, value: u8) {
        self.0.push(value);
    }
    /// Appends four bytes.
    pub fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    /// Appends eight bytes.
    pub fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    /// Appends numbers of eight bytes each.
    pub fn u64s<const N: usize>(&mut self, values: [&u64; N]) {
        values.into_iter().for_each(|value| self.u64(*value));
    }
    /// Appends sixteen bytes.
    pub fn u128(&mut self, value: u128) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    /// Appends a length (4 bytes) and that many bytes.
    pub fn bytes(&mut self, value: &[u8]) {
        self.u32(u32::try_from(value.len()).unwrap_or(u32::MAX));
        self.0.extend_from_slice(value);
    }
    /// Appends a count (4 bytes) and each item.
    pub fn list<T>(&mut self, items: &[T], mut each: impl FnMut(&mut FieldWriter, &T)) {
        self.u32(u32::try_from(items.len()).unwrap_or(u32::MAX));
        for item in items {
            each(self, item);
        }
    }
}

/// Decoder of fields.
#[derive(Debug)]
pub struct FieldReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> FieldReader<'a> {
    /// Creates a decoder at the start of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> FieldReader<'a> {
        FieldReader { bytes, at: 0 }
    }
    /// Returns the next `len` bytes.
    ///
    /// # Errors
    ///
    /// Returns [`Damage::BadLength`] if fewer bytes remain.
    #[inline]
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], Damage> {
        let left = self.bytes.len() - self.at;
        if len > left {
            return Err(Damage::BadLength { got: len as u64, max: left as u64 });
        }
        self.at += len;
        Ok(&self.bytes[self.at - len..self.at])
    }
    /// Decodes one byte.
    ///
    /// # Errors
    ///
    /// Returns [`Damage::BadLength`] if no byte remains.
    #[inline]
    pub fn u8(&mut self) -> Result<u8, Damage> {
        Ok(self.take(1)?[0])
    }
    /// Decodes four bytes.
    ///
    /// # Errors
    ///
    /// Returns [`Damage::BadLength`] if fewer bytes remain.
    #[inline]
    pub fn u32(&mut self) -> Result<u32, Damage> {
        Ok(u32_at(self.take(4)?, 0))
    }
    /// Decodes eight bytes.
    ///
    /// # Errors
    ///
    /// Returns [`Damage::BadLength`] if fewer bytes remain.
    #[inline]
    pub fn u64(&mut self) -> Result<u64, Damage> {
        Ok(u64_at(self.take(8)?, 0))
    }
    /// Decodes a counter of eight bytes, which must be below [`COUNT_LIMIT`].
    ///
    /// # Errors
    ///
    /// Returns [`Damage::BadField`] with `field` if the counter is not below the limit, and
    /// [`Damage::BadLength`] if fewer bytes remain.
    pub fn counter(&mut self, field: &'static str) -> Result<u64, Damage> {
        match self.u64()? {
            value if value < COUNT_LIMIT => Ok(value),
            value => Err(Damage::bad_field(field, 0..COUNT_LIMIT, value)),
        }
    }
    /// Decodes a number in base 128.
    ///
    /// # Errors
    ///
    /// Like [`take_varint`].
    #[inline]
    pub fn varint(&mut self) -> Result<u64, Damage> {
        take_varint(self.bytes, &mut self.at)
    }
    /// Decodes sixteen bytes.
    ///
    /// # Errors
    ///
    /// Returns [`Damage::BadLength`] if fewer bytes remain.
    pub fn u128(&mut self) -> Result<u128, Damage> {
        let mut word = [0; 16];
        word.copy_from_slice(self.take(16)?);
        Ok(u128::from_le_bytes(word))
    }
    /// Decodes a length and that many bytes.
    ///
    /// # Errors
    ///
    /// Returns [`Damage::BadLength`] if fewer bytes remain.
    pub fn bytes(&mut self) -> Result<&'a [u8], Damage> {
        let len = self.u32()? as usize;
        self.take(len)
    }
    /// Decodes a count and that many items. An item must have at least one byte.
    ///
    /// # Errors
    ///
    /// Returns [`Damage::BadLength`] if the count exceeds the number of remaining bytes, and errors
    /// of `each`.
    pub fn list<T>(
        &mut self,
        mut each: impl FnMut(&mut FieldReader<'a>) -> Result<T, Damage>,
    ) -> Result<Vec<T>, Damage> {
        let count = self.u32()? as usize;
        let left = self.bytes.len() - self.at;
        if count > left {
            return Err(Damage::BadLength { got: count as u64, max: left as u64 });
        }
        (0..count).map(|_| each(self)).collect()
    }
    /// Returns the bytes that were not decoded yet.
    #[inline]
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }
    /// Checks that all bytes were decoded.
    ///
    /// # Errors
    ///
    /// Returns [`Damage::BadLength`] if bytes remain.
    pub fn finish(&self) -> Result<(), Damage> {
        match self.bytes.len() - self.at {
            0 => Ok(()),
            left => {
                Err(Damage::BadLength { got: self.bytes.len() as u64, max: (self.bytes.len() - left) as u64 })
            }
        }
    }
}

/// Returns the little-endian number at `at`. The range must be in bounds.
#[inline]
#[must_use]
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// Returns the little-endian number at `at`. The range must be in bounds.
#[inline]
#[must_use]
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_round_trip_and_malformed_ones_are_damage() {
        for number in [0, 1, 127, 128, 16_383, 16_384, u64::from(u32::MAX), u64::MAX] {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, number);
            let mut reader = FieldReader::new(&bytes);
            assert_eq!(reader.varint(), Ok(number));
            reader.finish().unwrap();
            for short in 0..bytes.len() {
                assert!(FieldReader::new(&bytes[..short]).varint().is_err(), "{number} cut at {short}");
            }
        }
        assert!(FieldReader::new(&[0x80; 20]).varint().is_err(), "without end");
    }

    #[test]
    fn a_text_that_is_not_utf8_is_damage_with_the_invalid_byte() {
        assert_eq!(utf8("name", "name \u{e4}".as_bytes()), Ok("name \u{e4}"));
        assert_eq!(utf8("name", b"ab\xff\xfe"), Err(Damage::bad_field("name", "UTF-8", 0xff)));
    }

    #[test]
    fn a_varint_beyond_64_bits_is_damage() {
        for tenth in 0..=u8::MAX {
            let mut bytes = [0xff; 11];
            bytes[9] = tenth;
            let read = FieldReader::new(&bytes).varint();
            match tenth {
                0 => assert_eq!(read, Ok(u64::MAX >> 1)),
                1 => assert_eq!(read, Ok(u64::MAX)),
                _ => assert!(matches!(read, Err(Damage::BadField { field: "varint", .. })), "{tenth:#x}"),
            }
        }
    }
}
