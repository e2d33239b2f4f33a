//! # Sample: public functions that return `Result` without a section on errors

pub fn a() -> Result<(), String> {
    Ok(())
}

/// Does it.
#[must_use]
pub fn b(
    text: &str,
) -> std::io::Result<u64> {
    Ok(text.len() as u64)
}

/// Does it.
///
/// # Errors
///
/// Returns the error of `a`.
struct Between;

pub async fn c() -> Result<u64> {
    Ok(1)
}
