//! A file of sorted records that stays sorted. Each record is inserted at its position and found by
//! bisection over the addresses, without an additional index.
//!
//! `cargo run -p sheaf-flexspace --example records`

use sheaf_flexspace::{FlexSpace, SpaceOptions, SpaceView};
use sheaf_platform::error::Result;

/// Encodes a record: key length, value length, key, value. Each record is inserted in one call, so
/// it starts an extent. `read_extent` therefore finds the start of a record from any address.
fn encode(key: &str, value: &str) -> Vec<u8> {
    let len = |text: &str| u8::try_from(text.len()).unwrap_or(u8::MAX);
    [&[len(key), len(value)], key.as_bytes(), value.as_bytes()].concat()
}

/// Returns the record that contains the byte at `at`: start, end and key.
fn record(view: &SpaceView, at: u64) -> Result<Option<(u64, u64, Vec<u8>)>> {
    let Some(extent) = view.read_extent(at, 2 + 255)? else { return Ok(None) };
    let key_len = usize::from(extent.bytes[0]);
    Ok(Some((extent.start, extent.start + extent.len, extent.bytes[2..2 + key_len].to_vec())))
}

/// Returns the start of the first record with a key of at least `key`.
fn place(view: &SpaceView, key: &[u8]) -> Result<u64> {
    let (mut low, mut high) = (0, view.len());
    while low < high {
        let Some((start, end, found)) = record(view, low + (high - low) / 2)? else { break };
        if found.as_slice() < key {
            low = end;
        } else {
            high = start;
        }
    }
    Ok(low)
}

fn put(space: &FlexSpace, key: &str, value: &str) -> Result<()> {
    let view = space.view();
    let at = place(&view, key.as_bytes())?;
    let bytes = encode(key, value);
    match record(&view, at)? {
        Some((_, end, found)) if found == key.as_bytes() => {
            space.edit().collapse(at, end - at).insert(at, &bytes).commit()
        }
        _ => space.insert(at, &bytes),
    }
}

fn main() -> Result<()> {
    let dir = std::env::temp_dir().join(format!("flexspace-records-{}", std::process::id()));
    let space = FlexSpace::open(&dir, SpaceOptions::default())?;
    for word in include_str!("../README.md").split(|c: char| !c.is_alphanumeric()).filter(|w| w.len() > 3) {
        put(&space, &word.to_lowercase(), word)?;
    }
    space.sync()?;

    let view = space.view();
    let (mut at, mut count, mut last) = (0, 0, Vec::new());
    while let Some((_, end, key)) = record(&view, at)? {
        assert!(last < key, "the file is sorted");
        if count < 10 {
            println!("{}", String::from_utf8_lossy(&key));
        }
        (at, count, last) = (end, count + 1, key);
    }
    println!("... {count} records, {} bytes", view.len());
    drop(view);
    space.close()?;
    remove(&dir);
    Ok(())
}

#[allow(clippy::disallowed_methods, reason = "an example cleans up after itself")]
fn remove(dir: &std::path::Path) {
    let _ = std::fs::remove_dir_all(dir);
}
