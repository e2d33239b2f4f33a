//! A text buffer. Lines are inserted, replaced and removed in the middle. After a crash each edit
//! is complete or absent.
//!
//! `cargo run -p sheaf-flexspace --example text`

use std::io::{Read, Seek, SeekFrom};

use sheaf_flexspace::{FlexSpace, SpaceOptions};
use sheaf_platform::error::Result;

/// Returns the position of `needle`.
fn find(space: &FlexSpace, needle: &str) -> Option<u64> {
    let mut text = String::new();
    space.view().reader().read_to_string(&mut text).ok()?;
    text.find(needle).map(|at| at as u64)
}

fn main() -> Result<()> {
    let dir = std::env::temp_dir().join(format!("flexspace-text-{}", std::process::id()));
    let space = FlexSpace::open(&dir, SpaceOptions::default())?;
    space.write(0, b"The quick fox\njumps over\nthe dog.\n")?;

    // An insertion moves everything behind it.
    let fox = find(&space, "fox").unwrap_or(0);
    space.insert(fox, b"brown ")?;

    // A replacement by a longer text is one atomic operation.
    let dog = find(&space, "the dog").unwrap_or(0);
    let before = space.view();
    space.edit().collapse(dog, 7).insert(dog, b"the lazy dog").commit()?;

    // A cursor inserts at its position and moves on.
    let mut cursor = space.cursor(0);
    cursor.seek(SeekFrom::Start(0)).unwrap_or(0);
    cursor.insert(b"# A fable\n")?;
    cursor.insert(b"\n")?;
    space.sync()?;

    let mut text = String::new();
    for (name, view) in [("before the last edits", before), ("now", space.view())] {
        text.clear();
        view.reader().read_to_string(&mut text).unwrap_or(0);
        println!("--- {name}, {} bytes in {} extents\n{text}", view.len(), view.fragments(0, view.len()));
    }
    space.close()?;
    remove(&dir);
    Ok(())
}

#[allow(clippy::disallowed_methods, reason = "an example cleans up after itself")]
fn remove(dir: &std::path::Path) {
    let _ = std::fs::remove_dir_all(dir);
}
