//! # Positions in the change feed
//!
//! ```text
//!  bytes:  feed 16 | seq 8 | crc32c of these 4
//!  text:   feed in 32 hexadecimal digits - seq in decimal digits
//! ```

use std::fmt;
use std::str::FromStr;

use sheaf_log::frame::MAX_SEQ;
use sheaf_log::types::Seq;
use sheaf_platform::codec::{u32_at, u64_at};
use sheaf_platform::error::Error;

/// Bytes before the checksum.
const CHECKSUMMED: usize = 24;

/// A position in the change feed of one database: after a commit, and before the next one.
///
/// Positions of one feed are ordered. A position can be stored as bytes or as text
/// ([`Display`](fmt::Display) and [`FromStr`]). It names the feed, so that another database refuses
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChangePosition {
    feed: u128,
    seq: u64,
}

impl ChangePosition {
    /// Length of the bytes of a position.
    pub const BYTES: usize = CHECKSUMMED + 4;

    pub(super) fn new(feed: u128, seq: Seq) -> ChangePosition {
        ChangePosition { feed, seq: seq.0 }
    }

    pub(super) fn feed(&self) -> u128 {
        self.feed
    }

    /// Returns the commit that the position follows.
    #[doc(hidden)]
    #[must_use]
    pub fn seq(&self) -> Seq {
        Seq(self.seq)
    }

    /// Returns the number of the commit that the position follows; 0 before the first one.
    #[must_use]
    pub fn commit(&self) -> u64 {
        self.seq
    }

    /// Returns the position as bytes, with a checksum.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; ChangePosition::BYTES] {
        let mut bytes = [0; ChangePosition::BYTES];
        bytes[..16].copy_from_slice(&self.feed.to_le_bytes());
        bytes[16..CHECKSUMMED].copy_from_slice(&self.seq.to_le_bytes());
        let sum = crc32c::crc32c(&bytes[..CHECKSUMMED]);
        bytes[CHECKSUMMED..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Returns the position that [`ChangePosition::to_bytes`] has encoded.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidArgument`] for any other bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<ChangePosition, Error> {
        let is_whole = bytes.len() == ChangePosition::BYTES
            && crc32c::crc32c(&bytes[..CHECKSUMMED]) == u32_at(bytes, CHECKSUMMED);
        if !is_whole || u64_at(bytes, 16) > MAX_SEQ {
            return Err(invalid("the bytes are not those of a position"));
        }
        let feed = u128::from(u64_at(bytes, 0)) | u128::from(u64_at(bytes, 8)) << 64;
        Ok(ChangePosition { feed, seq: u64_at(bytes, 16) })
    }
}

fn invalid(reason: &str) -> Error {
    Error::InvalidArgument { argument: "change position", reason: reason.to_owned() }
}

impl fmt::Display for ChangePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}-{}", self.feed, self.seq)
    }
}

impl FromStr for ChangePosition {
    type Err = Error;

    fn from_str(text: &str) -> Result<ChangePosition, Error> {
        let parse = || {
            let (feed, seq) = text.split_once('-')?;
            let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
            if feed.len() != 32 || !is_plain(feed) || !seq.bytes().all(|byte| byte.is_ascii_digit()) {
                return None;
            }
            let seq = seq.parse().ok().filter(|seq| *seq <= MAX_SEQ)?;
            Some(ChangePosition { feed: u128::from_str_radix(feed, 16).ok()?, seq })
        };
        parse().ok_or_else(|| invalid("must be 32 hexadecimal digits, `-`, and the number of a commit"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_round_trip_and_changed_ones_are_refused() {
        let position = ChangePosition::new(u128::MAX / 3, Seq(MAX_SEQ));
        assert_eq!(ChangePosition::from_bytes(&position.to_bytes()).unwrap(), position);
        assert_eq!(position.to_string().parse::<ChangePosition>().unwrap(), position);
        for at in 0..ChangePosition::BYTES {
            let mut bytes = position.to_bytes();
            bytes[at] ^= 1;
            assert!(ChangePosition::from_bytes(&bytes).is_err(), "byte {at}");
            assert!(ChangePosition::from_bytes(&bytes[..at]).is_err(), "{at} bytes");
        }
        for text in [
            "",
            "-",
            "1-2",
            "+0000000000000000000000000000001-2",
            "0123456789abcdef0123456789abcdef-",
            "0123456789abcdef0123456789abcdef-+1",
            "0123456789abcdef0123456789abcdef-999999999999999999999",
        ] {
            assert!(text.parse::<ChangePosition>().is_err(), "{text}");
        }
    }
}
