//! # Texts: input of the demo
//!
//! The input is a file on the command line, or else the sources of the checkout around the current
//! directory, or else a few sources of this program, which are compiled into it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::failure::{Failure, Result};

/// Most bytes that are read, so that the demo ends within seconds.
const MAX_TEXT_BYTES: usize = 32 << 20;

/// Name and lines of a text.
pub(crate) struct Text {
    pub(crate) name: String,
    pub(crate) lines: Vec<Vec<u8>>,
}

impl Text {
    fn new(name: &str, content: &[u8]) -> Text {
        let content = content.strip_suffix(b"\n").unwrap_or(content);
        Text {
            name: name.to_owned(),
            lines: content.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect(),
        }
    }
}

/// Returns a description of the texts, and the texts: at least one, with at least one line.
#[expect(clippy::disallowed_methods, reason = "the user's file, not the database's")]
pub(crate) fn collect_texts(file: Option<&Path>) -> Result<(String, Vec<Text>)> {
    if let Some(file) = file {
        let mut content = fs::read(file).map_err(Failure::stream("read", file))?;
        content.truncate(MAX_TEXT_BYTES);
        let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy();
        return Ok((file.display().to_string(), vec![Text::new(&name, &content)]));
    }
    if let Some(root) = checkout()
        && let Ok(texts) = sources_of(&root)
        && !texts.is_empty()
    {
        return Ok(("the source files of this checkout".to_owned(), texts));
    }
    Ok(("a few source files of this program".to_owned(), embedded_texts()))
}

/// Returns the checkout around the current directory.
fn checkout() -> Option<PathBuf> {
    let here = std::env::current_dir().ok()?;
    here.ancestors().find(|dir| dir.join("crates/sheaf/src/lib.rs").is_file()).map(Path::to_path_buf)
}

#[expect(clippy::disallowed_methods, reason = "the checkout's sources, not the database's files")]
fn sources_of(root: &Path) -> io::Result<Vec<Text>> {
    let mut files = Vec::new();
    find_sources(root, &mut files)?;
    files.sort();
    let mut texts = Vec::new();
    let mut bytes = 0;
    for file in files {
        let content = fs::read(&file)?;
        bytes += content.len();
        if bytes > MAX_TEXT_BYTES {
            break;
        }
        let name = file.strip_prefix(root).unwrap_or(&file).to_string_lossy();
        texts.push(Text::new(&name, &content));
    }
    Ok(texts)
}

/// Finds Rust and Markdown files in `dir`, except hidden and built ones. Does not follow links.
#[expect(clippy::disallowed_methods, reason = "the checkout's sources, not the database's files")]
fn find_sources(dir: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let kind = entry.file_type()?;
        if kind.is_dir() && !name.starts_with('.') && name != "target" {
            find_sources(&entry.path(), files)?;
        } else if kind.is_file() && (name.ends_with(".rs") || name.ends_with(".md")) {
            files.push(entry.path());
        }
    }
    Ok(())
}

fn embedded_texts() -> Vec<Text> {
    [
        ("main.rs", include_str!("../main.rs")),
        ("args.rs", include_str!("../args.rs")),
        ("text_format.rs", include_str!("../text_format.rs")),
        ("demo/mod.rs", include_str!("mod.rs")),
        ("demo/library.rs", include_str!("library.rs")),
        ("demo/texts.rs", include_str!("texts.rs")),
        ("demo/crash.rs", include_str!("crash.rs")),
        ("demo/writer.rs", include_str!("writer.rs")),
    ]
    .map(|(name, content)| Text::new(name, content.as_bytes()))
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_text_without_a_checkout() {
        assert!(embedded_texts().iter().all(|text| text.lines.len() > 10));
    }

    #[test]
    fn an_empty_file_has_one_empty_line() {
        assert_eq!(Text::new("x", b"").lines, [b""]);
        assert_eq!(Text::new("x", b"a\nb\n").lines, [b"a", b"b"]);
    }
}
