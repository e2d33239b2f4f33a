//! # Bytes: copied bytes whose memory is the system's again when they go
//!
//! Up to 32 KiB they are a piece, which the next one takes over; above they are [`Mapped`]. An allocator would keep both for a while, beside
//! what caches that took over their share of the budget have by then.

use std::fmt;
use std::ops::Deref;

use super::pieces::{self, Row};
use super::{Mapped, page_size};

/// See the module.
pub struct Bytes(Home);

enum Home {
    Piece(Row<u8>),
    Mapped { mapped: Mapped, len: usize },
}

impl Bytes {
    /// Copies them.
    #[must_use]
    pub fn copy(bytes: &[u8]) -> Bytes {
        if bytes.len() <= pieces::MOST {
            return Bytes(Home::Piece(Row::copy(bytes)));
        }
        let mapped = Mapped::new(bytes.len().next_multiple_of(page_size()), page_size());
        // SAFETY:
        // * Mapped just now, as long at least, and ours alone.
        unsafe { mapped.start().as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Bytes(Home::Mapped { mapped, len: bytes.len() })
    }

    /// Bytes of memory that so many take.
    #[must_use]
    pub fn taken(len: usize) -> u64 {
        if len <= pieces::MOST { pieces::taken(len) } else { len.next_multiple_of(page_size()) as u64 }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Home::Piece(row) => row,
            // SAFETY:
            // * So many were written in `copy`, nobody writes them again, and they are mapped as long as this is borrowed.
            Home::Mapped { mapped, len } => unsafe {
                std::slice::from_raw_parts(mapped.start().as_ptr(), *len)
            },
        }
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes of {}", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_all_lengths_are_what_was_copied() {
        for len in [0, 1, 256, 257, 4096, pieces::MOST, pieces::MOST + 1, 100_000, 3 << 20] {
            let from: Vec<u8> = (0..len).map(|at| (at % 251).to_le_bytes()[0]).collect();
            let bytes = Bytes::copy(&from);
            assert_eq!(*bytes, *from);
            assert!(Bytes::taken(len) >= len as u64);
            assert!(Bytes::taken(len) < len as u64 + 8192);
        }
    }
}
