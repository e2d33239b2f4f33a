//! # Sample without a violation

/// Returns the length of `text` in bytes.
pub fn len(text: &str) -> usize {
    text.len() // a String knows its length
}

/// Parses a number.
///
/// # Errors
///
/// Returns the parser's error if `text` is not a number.
#[must_use]
pub fn number(text: &str) -> Result<u64, std::num::ParseIntError> {
    text.parse()
}
