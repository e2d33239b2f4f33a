//! # Damage: difference between stored bytes and the bytes that a structure of the format must have
//!
//! ```text
//!  Error::Corrupt   path, offset, structure ("segment header", for display only)
//!   └ Damage        expected value and value found
//! ```

use std::fmt;
use std::ops::{Range, RangeFrom, RangeInclusive, RangeToInclusive};

/// Values that a field may have, for [`Damage::BadField`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Expected {
    /// The numbers from `min` to `max`, both included.
    Range {
        /// Smallest valid value.
        min: u64,
        /// Largest valid value.
        max: u64,
    },
    /// The values that the text describes.
    Text(&'static str),
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Expected::Range { min, max } if min == max => write!(f, "{min}"),
            Expected::Range { min, max: u64::MAX } => write!(f, "at least {min}"),
            Expected::Range { min: 0, max } => write!(f, "at most {max}"),
            Expected::Range { min, max } => write!(f, "{min} to {max}"),
            Expected::Text(text) => f.write_str(text),
        }
    }
}

impl From<u64> for Expected {
    fn from(only: u64) -> Expected {
        Expected::Range { min: only, max: only }
    }
}

impl From<RangeInclusive<u64>> for Expected {
    fn from(range: RangeInclusive<u64>) -> Expected {
        let (min, max) = range.into_inner();
        if min <= max { Expected::Range { min, max } } else { Expected::Text("no value") }
    }
}

impl From<Range<u64>> for Expected {
    fn from(range: Range<u64>) -> Expected {
        match range.end.checked_sub(1) {
            Some(last) => Expected::from(range.start..=last),
            None => Expected::Text("no value"),
        }
    }
}

impl From<RangeToInclusive<u64>> for Expected {
    fn from(range: RangeToInclusive<u64>) -> Expected {
        Expected::Range { min: 0, max: range.end }
    }
}

impl From<RangeFrom<u64>> for Expected {
    fn from(range: RangeFrom<u64>) -> Expected {
        Expected::Range { min: range.start, max: u64::MAX }
    }
}

impl From<&'static str> for Expected {
    fn from(text: &'static str) -> Expected {
        Expected::Text(text)
    }
}

/// Kind of damage in stored bytes, with the expected value and the value found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// The checksum does not match.
    #[error("checksum {got:08x}, expected {expected:08x}")]
    BadChecksum {
        /// The stored checksum.
        expected: u32,
        /// The checksum of the bytes.
        got: u32,
    },
    /// A length does not fit its container.
    #[error("invalid length {got} (limit {max})")]
    BadLength {
        /// The stored length.
        got: u64,
        /// Size of the container.
        max: u64,
    },
    /// The file has the wrong magic number.
    #[error("wrong magic number \"{}\", expected \"{}\"", got.escape_ascii(), expected.escape_ascii())]
    BadMagic {
        /// The magic number of the format.
        expected: [u8; 8],
        /// The first bytes of the file.
        got: [u8; 8],
    },
    /// A field has a value that no version writes.
    #[error("invalid value {got} of field {field:?}, expected {expected}")]
    BadField {
        /// The field.
        field: &'static str,
        /// The valid values.
        expected: Expected,
        /// The stored value.
        got: u64,
    },
    /// Items that must be stored in ascending order are not.
    #[error("{item} {index} is out of order, expected one above its predecessor")]
    BadOrder {
        /// Noun for one item.
        item: &'static str,
        /// Index of the first item that is not above its predecessor.
        index: u64,
    },
    /// The file belongs to another database, segment or generation.
    #[error("file belongs elsewhere: wrong {field} {got:x}, expected {expected:x}")]
    Foreign {
        /// The field that differs.
        field: &'static str,
        /// The expected value.
        expected: u128,
        /// The stored value.
        got: u128,
    },
    /// Commits that were durable are missing.
    #[error("commit {first_missing} is missing, but all commits up to {durable} were durable")]
    MissingCommits {
        /// Number of the first missing commit.
        first_missing: u64,
        /// Number of the newest commit known to be durable.
        durable: u64,
    },
    /// The file is shorter than its expected content, or missing.
    #[error("{}", truncated_text(*got, *expected))]
    Truncated {
        /// Actual size in bytes.
        got: u64,
        /// Expected size in bytes.
        expected: u64,
    },
}

/// Describes a file that is too short. A missing file has `got` 0 and `expected` 1.
fn truncated_text(got: u64, expected: u64) -> String {
    match (got, expected) {
        (0, 1) => "file is missing or empty".to_owned(),
        _ => format!("file is truncated: {got} bytes, expected {expected}"),
    }
}

impl Damage {
    /// Returns the damage of a field with the value `got`.
    #[doc(hidden)]
    #[cold]
    pub fn bad_field(field: &'static str, expected: impl Into<Expected>, got: u64) -> Damage {
        Damage::BadField { field, expected: expected.into(), got }
    }

    /// Returns the damage of a file that begins with `got` and not with `expected`.
    #[doc(hidden)]
    #[cold]
    pub fn bad_magic(expected: &[u8; 8], got: &[u8]) -> Damage {
        let mut found = [0; 8];
        let len = got.len().min(found.len());
        found[..len].copy_from_slice(&got[..len]);
        Damage::BadMagic { expected: *expected, got: found }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::error::Error;

    #[test]
    fn a_corruption_names_file_offset_structure_and_both_values() {
        let text = |damage| Error::corrupt(Path::new("/db/f"), 16, "segment header", damage).to_string();
        let start = "/db/f is damaged at offset 16 (segment header): ";
        for (damage, rest) in [
            (
                Damage::bad_magic(b"SHEAFSEG", b"\0HEAF\n"),
                r#"wrong magic number "\x00HEAF\n\x00\x00", expected "SHEAFSEG""#,
            ),
            (Damage::bad_field("log", 0..3, 7), r#"invalid value 7 of field "log", expected at most 2"#),
            (Damage::bad_field("log", 1..3, 7), r#"invalid value 7 of field "log", expected 1 to 2"#),
            (Damage::bad_field("log", 5.., 4), r#"invalid value 4 of field "log", expected at least 5"#),
            (Damage::bad_field("log", 5, 4), r#"invalid value 4 of field "log", expected 5"#),
            (Damage::bad_field("log", 0..0, 4), r#"invalid value 4 of field "log", expected no value"#),
            (Damage::bad_field("name", "UTF-8", 255), r#"invalid value 255 of field "name", expected UTF-8"#),
            (
                Damage::BadOrder { item: "key", index: 3 },
                "key 3 is out of order, expected one above its predecessor",
            ),
        ] {
            assert_eq!(text(damage), format!("{start}{rest}"));
        }
    }
}
