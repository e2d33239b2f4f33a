//! # Interval list: the intervals of an image, with shared bytes of separators left out
//!
//! ```text
//!  block     bytes 4 | interval ..           0: the end
//!  interval  shared | further | bytes | length | versions | live + 1 | runs * 2 + blobs
//!            varints, except the bytes; `shared` counts bytes of the separator before
//! ```
//!
//! A separator of random keys shares bytes with the one before. An image is written for each
//! memtable, so that its length matters: docs/decisions/0050 has figures.

use sheaf_engine::contract::{ImageSink, ImageSource};
use sheaf_log::types::MAX_KEY;
use sheaf_platform::codec::{put_varint, take_varint};
use sheaf_platform::error::{Damage, Error, Result};

use super::{take, take_bytes};
use crate::index::slots::IntervalCounts;

/// Bytes after which a block ends.
const BLOCK_BYTES: usize = 4 << 10;
/// Maximum bytes of a block: one that is nearly full, and an interval with the longest separator.
const MAX_BLOCK_BYTES: usize = BLOCK_BYTES + MAX_KEY + 64;

/// Writer of a list.
#[derive(Debug, Default)]
pub(super) struct IntervalListWriter {
    block: Vec<u8>,
    /// Separator of the last interval.
    separator: Vec<u8>,
    /// Bytes of the list so far.
    pub(super) written: u64,
}

impl IntervalListWriter {
    /// Appends an interval of `len` bytes of the space.
    ///
    /// # Errors
    ///
    /// Returns the error of `out`.
    pub(super) fn put(
        &mut self,
        out: &mut dyn ImageSink,
        separator: &[u8],
        len: u64,
        counts: IntervalCounts,
    ) -> Result<()> {
        let shared = self.separator.iter().zip(separator).take_while(|(a, b)| a == b).count();
        let further = &separator[shared..];
        put_varint(&mut self.block, shared as u64);
        put_varint(&mut self.block, further.len() as u64);
        self.block.extend_from_slice(further);
        let live = counts.live.wrapping_add(1);
        let runs = counts.encoded_runs().rotate_left(1);
        put_varint(&mut self.block, len);
        [counts.entries, live, runs].iter().for_each(|count| put_varint(&mut self.block, u64::from(*count)));
        self.separator.truncate(shared);
        self.separator.extend_from_slice(further);
        if self.block.len() >= BLOCK_BYTES { self.flush(out) } else { Ok(()) }
    }

    fn flush(&mut self, out: &mut dyn ImageSink) -> Result<()> {
        out.put(&u32::try_from(self.block.len()).unwrap_or(u32::MAX).to_le_bytes())?;
        out.put(&self.block)?;
        self.written += 4 + self.block.len() as u64;
        self.block.clear();
        Ok(())
    }

    /// Ends the list.
    ///
    /// # Errors
    ///
    /// Returns the error of `out`.
    pub(super) fn finish(&mut self, out: &mut dyn ImageSink) -> Result<()> {
        if !self.block.is_empty() {
            self.flush(out)?;
        }
        self.flush(out)
    }
}

/// Reader of a list.
#[derive(Debug, Default)]
pub(super) struct IntervalListReader {
    block: Vec<u8>,
    at: usize,
    /// Number of intervals that were read.
    count: u64,
    /// Separator of the last interval.
    pub(super) separator: Vec<u8>,
}

impl IntervalListReader {
    /// Reads the next block. Returns false at the end.
    ///
    /// # Errors
    ///
    /// Returns `Corrupt` if the block is too long, and the errors of the image.
    pub(super) fn next_block(&mut self, image: &mut dyn ImageSource) -> Result<bool> {
        let len = u32::from_le_bytes(take(image)?) as usize;
        if len > MAX_BLOCK_BYTES {
            let most = MAX_BLOCK_BYTES as u64;
            return Err(image.invalid_field("bytes of a block", (..=most).into(), len as u64));
        }
        self.block = take_bytes(image, len)?;
        self.at = 0;
        Ok(len > 0)
    }

    /// Returns the next interval of the block: its length in the space and its counts. Sets
    /// `separator`. Returns `None` at the end of the block.
    ///
    /// # Errors
    ///
    /// Returns `Corrupt` if the interval is not valid.
    pub(super) fn next(&mut self, image: &dyn ImageSource) -> Result<Option<(u64, IntervalCounts)>> {
        if self.at == self.block.len() {
            return Ok(None);
        }
        let count = self.count;
        let invalid = |what| -> Error {
            match what {
                Damage::BadField { field, expected, got } => image.invalid_field(field, expected, got),
                _ => image.invalid_field("interval", "fields within the block".into(), count),
            }
        };
        let interval = self.decode().map_err(invalid)?;
        self.count += 1;
        Ok(Some(interval))
    }

    fn decode(&mut self) -> Result<(u64, IntervalCounts), Damage> {
        let IntervalListReader { block, at, separator, count } = self;
        let small = |value: u64, most: usize, field| match usize::try_from(value) {
            Ok(small) if small <= most => Ok(small),
            _ => Err(Damage::bad_field(field, ..=most as u64, value)),
        };
        let shared = small(take_varint(block, at)?, separator.len(), "shared bytes of a separator")?;
        let further = small(take_varint(block, at)?, MAX_KEY - shared, "further bytes of a separator")?;
        let short = Damage::BadLength { got: further as u64, max: (block.len() - *at) as u64 };
        let bytes = block.get(*at..*at + further).ok_or(short)?;
        *at += further;
        // The bytes before are equal, so these decide the order. The first separator is empty.
        let ascends = if *count == 0 { bytes.is_empty() } else { *bytes > separator[shared..] };
        if !ascends {
            return Err(Damage::bad_field("interval", "separators in ascending order", *count));
        }
        separator.truncate(shared);
        separator.extend_from_slice(bytes);
        let len = take_varint(block, at)?;
        let mut word = |field| {
            let value = take_varint(block, at)?;
            u32::try_from(value).map_err(|_| Damage::bad_field(field, ..=u64::from(u32::MAX), value))
        };
        let (versions, live, runs) = (word("versions")?, word("live keys")?, word("runs")?);
        Ok((len, IntervalCounts::from_encoded(versions, live.wrapping_sub(1), runs.rotate_right(1))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheaf_log::types::Seq;
    use sheaf_platform::error::Expected;

    #[derive(Default)]
    struct Bytes(Vec<u8>);

    impl ImageSink for Bytes {
        fn put(&mut self, bytes: &[u8]) -> Result<()> {
            self.0.extend_from_slice(bytes);
            Ok(())
        }
    }

    /// Image of these bytes.
    struct Source<'a>(&'a [u8]);

    impl ImageSource for Source<'_> {
        fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
            let Some((now, rest)) = self.0.split_at_checked(bytes.len()) else {
                return Err(self.invalid_field("bytes", (bytes.len() as u64..).into(), self.0.len() as u64));
            };
            bytes.copy_from_slice(now);
            self.0 = rest;
            Ok(())
        }
        fn invalid_field(&self, field: &'static str, expected: Expected, got: u64) -> Error {
            let what = Damage::BadField { field, expected, got };
            Error::corrupt(std::path::Path::new("image"), 0, "image", what)
        }
        fn slot_of(&self, _: u32) -> Option<u32> {
            None
        }
        fn seq(&self, stored: u64) -> Result<Seq> {
            Ok(Seq(stored))
        }
    }

    type Listed = (Vec<u8>, u64, [u32; 3]);

    fn words(counts: IntervalCounts) -> [u32; 3] {
        [counts.entries, counts.live, counts.encoded_runs()]
    }

    fn read(bytes: &[u8]) -> Result<Vec<Listed>> {
        let (mut image, mut list, mut found) = (Source(bytes), IntervalListReader::default(), Vec::new());
        while list.next_block(&mut image)? {
            while let Some((len, counts)) = list.next(&image)? {
                found.push((list.separator.clone(), len, words(counts)));
            }
        }
        Ok(found)
    }

    fn listed() -> Vec<Listed> {
        let mut all = vec![(Vec::new(), 1, [0, u32::MAX, 1 << 31])];
        for n in 0..3000u32 {
            let key = format!("user{:08}", n * 7).into_bytes();
            all.push((key, (u64::from(n) << 20) | 1, [n, n / 2, (n % 5) | ((n % 2) << 31)]));
        }
        all.push((vec![b'v'; MAX_KEY], u64::MAX, [u32::MAX, u32::MAX - 1, u32::MAX]));
        all
    }

    fn write(all: &[Listed]) -> Vec<u8> {
        let (mut bytes, mut list) = (Bytes::default(), IntervalListWriter::default());
        for (separator, len, [entries, live, runs]) in all {
            let counts = IntervalCounts::from_encoded(*entries, *live, *runs);
            list.put(&mut bytes, separator, *len, counts).unwrap();
        }
        list.finish(&mut bytes).unwrap();
        assert_eq!(list.written, bytes.0.len() as u64);
        bytes.0
    }

    #[test]
    fn a_list_is_read_as_it_was_written() {
        let all = listed();
        assert_eq!(read(&write(&all)).unwrap(), all);
        assert_eq!(read(&write(&[])).unwrap(), []);
        let ascending = write(&all[..3000]);
        assert!(ascending.len() < 3000 * 14, "{} bytes an interval", ascending.len() / 3000);
    }

    #[test]
    fn a_list_out_of_order_is_damage() {
        let all = listed();
        for (first, second) in [(1, 2), (2, 1), (0, 0)] {
            let wrong = [all[0].clone(), all[first].clone(), all[second].clone()];
            assert_eq!(read(&write(&wrong)).is_err(), first != 1, "{first} {second}");
        }
        assert!(read(&write(&all[1..])).is_err(), "the first separator is empty");
    }

    #[test]
    fn changed_and_short_lists_never_panic() {
        let bytes = write(&listed()[..120]);
        for at in 0..bytes.len() {
            assert!(read(&bytes[..at]).is_err());
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                if let Ok(found) = read(&changed) {
                    assert!(found.is_sorted_by(|a, b| a.0 < b.0));
                }
            }
        }
        assert!(read(&u32::MAX.to_le_bytes()).is_err());
    }
}
