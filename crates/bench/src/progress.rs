//! # Progress: lines on standard error, with the time since the start

use std::sync::OnceLock;
use std::time::Instant;

static START: OnceLock<Instant> = OnceLock::new();

/// Says what is being done.
pub(crate) fn say(text: &str) {
    let seconds = START.get_or_init(Instant::now).elapsed().as_secs();
    eprintln!("[{:>3}:{:02}] {text}", seconds / 60, seconds % 60);
}
