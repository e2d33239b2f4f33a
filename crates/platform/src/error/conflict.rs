//! # Keys of [`Error::Conflict`](super::Error::Conflict)

use std::fmt;
use std::ops::Bound;

/// Bytes of a key that an error message shows.
const SHOWN: usize = 64;

/// Keys on which a commit conflicts with others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConflictKeys {
    /// A key that the commit expected or that its transaction read. Its value is another one.
    Key(Vec<u8>),
    /// A range that a transaction read. Another commit changed a key in it.
    Range {
        /// Lower end.
        low: Bound<Vec<u8>>,
        /// Upper end.
        high: Bound<Vec<u8>>,
    },
    /// The keyspace was created, cleared, converted, replaced or dropped while a transaction that
    /// uses it was running.
    Keyspace,
    /// Other commits changed more keys than the database records for its running transactions. One
    /// of them may be in a range that the transaction read. Shorter transactions avoid this.
    TooManyChanges,
}

/// Shows the beginning of a key, with escapes for bytes that are not printable.
struct ShownKey<'k>(&'k [u8]);

impl fmt::Display for ShownKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shown, more) = (&self.0[..self.0.len().min(SHOWN)], self.0.len() > SHOWN);
        write!(f, "\"{}\"{}", shown.escape_ascii(), if more { "..." } else { "" })
    }
}

impl fmt::Display for ConflictKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConflictKeys::Key(key) => write!(f, "key {} has changed", ShownKey(key)),
            ConflictKeys::Range { low, high } => {
                f.write_str("a key has changed in the range from ")?;
                match low {
                    Bound::Included(key) => write!(f, "{}", ShownKey(key))?,
                    Bound::Excluded(key) => write!(f, "after {}", ShownKey(key))?,
                    Bound::Unbounded => f.write_str("the first key")?,
                }
                match high {
                    Bound::Included(key) => write!(f, " to {}", ShownKey(key)),
                    Bound::Excluded(key) => write!(f, " to before {}", ShownKey(key)),
                    Bound::Unbounded => f.write_str(" to the last key"),
                }
            }
            ConflictKeys::Keyspace => f.write_str("the keyspace was created, replaced or dropped"),
            ConflictKeys::TooManyChanges => f.write_str("too many keys have changed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_shows_the_keys() {
        let long = ConflictKeys::Key([b'k'; 100].to_vec()).to_string();
        assert_eq!(long, format!("key \"{}\"... has changed", "k".repeat(SHOWN)));
        let range = ConflictKeys::Range { low: Bound::Excluded(b"a\0".to_vec()), high: Bound::Unbounded };
        let text = "a key has changed in the range from after \"a\\x00\" to the last key";
        assert_eq!(range.to_string(), text);
    }
}
