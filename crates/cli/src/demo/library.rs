//! # Library: texts in a database, and queries

use std::collections::BTreeMap;
use std::path::Path;

use sheaf::{Database, Keyspace, KeyspaceOptions};

use super::page::DemoPage;
use super::texts::Text;
use crate::failure::Result;
use crate::output::{Stopwatch, time};
use crate::text_format::{count, escape, many, size};

/// Number of random reads.
const READS: usize = 50_000;
/// Number of words in a commit.
const WORDS: usize = 1000;

pub(crate) struct Library {
    db: Database,
    files: Keyspace,
    lines: Keyspace,
    words: Keyspace,
}

impl Library {
    /// Opens a new database and loads `texts`.
    pub(crate) fn load(page: &mut DemoPage, database: &Path, texts: &[Text]) -> Result<Library> {
        let db = Database::open(database)?;
        let keyspace = |name| db.keyspace(name, KeyspaceOptions::default());
        let (files, lines, words) = (keyspace("files")?, keyspace("lines")?, keyspace("words")?);
        let library = Library { db, files, lines, words };
        page.step("load")?;

        let watch = Stopwatch::start();
        for text in texts {
            library.load_text(text)?;
        }
        let took = watch.elapsed();
        let line_count: usize = texts.iter().map(|text| text.lines.len()).sum();
        let bytes: usize = texts.iter().flat_map(|text| &text.lines).map(Vec::len).sum();
        let (files, lines) = (many(texts.len() as u64, "file"), count(line_count as u64));
        page.line(
            &format!("{lines} lines ({}) of {files}, one commit per file", size(bytes as u64)),
            Some(took),
        )?;

        let index = index(texts);
        let watch = Stopwatch::start();
        library.load_index(&index)?;
        let took = watch.elapsed();
        page.line(&format!("{} words with their positions", count(index.len() as u64)), Some(took))?;
        Ok(library)
    }

    /// Loads a file with all its lines in one commit.
    fn load_text(&self, text: &Text) -> Result {
        let mut batch = self.db.batch();
        batch.insert(&self.files, &text.name, text.lines.len().to_string());
        for (number, line) in (1..).zip(&text.lines) {
            batch.insert(&self.lines, line_key(text, number), line);
        }
        Ok(batch.commit()?)
    }

    fn load_index(&self, index: &BTreeMap<String, Vec<String>>) -> Result {
        let entries: Vec<_> = index.iter().collect();
        for chunk in entries.chunks(WORDS) {
            let mut batch = self.db.batch();
            for (word, places) in chunk {
                batch.insert(&self.words, word, places.join("\n"));
            }
            batch.commit()?;
        }
        Ok(())
    }

    /// Reads by line and by word, and scans all lines.
    pub(crate) fn query(&self, page: &mut DemoPage, texts: &[Text]) -> Result {
        page.step("query")?;
        let text = longest(texts);
        let key = line_key(text, 1);
        let watch = Stopwatch::start();
        let line = self.lines.get(&key)?;
        let took = watch.elapsed();
        page.line(
            &format!("get lines {key} = {}", excerpt(line.as_deref().unwrap_or_default())),
            Some(took),
        )?;
        let as_loaded = line.as_deref() == text.lines.first().map(Vec::as_slice);
        page.verdict(as_loaded, "correct reads", "the value is the line that was loaded")?;

        let word = ["snapshot", "durable", "the"].into_iter().find(|word| self.has_word(word)).unwrap_or("a");
        let watch = Stopwatch::start();
        let places = self.words.get(word)?.unwrap_or_else(|| sheaf::Value::new(b""));
        let took = watch.elapsed();
        let number = places.split(|byte| *byte == b'\n').filter(|place| !place.is_empty()).count();
        page.line(&format!("get words {word} = {} positions", count(number as u64)), Some(took))?;
        self.read_at_random(page, texts)?;

        let watch = Stopwatch::start();
        let mut pairs = 0;
        for pair in self.lines.iter()? {
            pair?;
            pairs += 1;
        }
        page.line(&format!("scan of all {} lines", count(pairs)), Some(watch.elapsed()))
    }

    fn has_word(&self, word: &str) -> bool {
        matches!(self.words.contains_key(word), Ok(true))
    }

    fn read_at_random(&self, page: &mut DemoPage, texts: &[Text]) -> Result {
        let keys: Vec<String> = texts
            .iter()
            .flat_map(|text| (1..=text.lines.len()).map(|number| line_key(text, number)))
            .collect();
        // Steps of the golden ratio visit the keys in an order that no cache can predict.
        let step = |i: u64| i.wrapping_mul(0x9E37_79B9_7F4A_7C15) % keys.len() as u64;
        let order: Vec<usize> = (0..READS as u64).map(|i| usize::try_from(step(i)).unwrap_or(0)).collect();
        let watch = Stopwatch::start();
        let mut found = 0;
        for index in order {
            if self.lines.get_with(&keys[index], |_| ())?.is_some() {
                found += 1;
            }
        }
        let took = watch.elapsed();
        let each = took / u32::try_from(READS).unwrap_or(u32::MAX);
        page.line(&format!("{} random gets, {} each", count(READS as u64), format_short(each)), Some(took))?;
        page.verdict(found == READS, "correct reads", "every get found its line")
    }

    /// Appends a line to the longest file while a snapshot exists.
    pub(crate) fn batch_during_snapshot(&self, page: &mut DemoPage, texts: &[Text]) -> Result {
        page.step("batch")?;
        let text = longest(texts);
        let (old, new) = (text.lines.len().to_string(), (text.lines.len() + 1).to_string());
        let added = line_key(text, text.lines.len() + 1);
        let snapshot = self.db.snapshot()?;

        let watch = Stopwatch::start();
        let mut batch = self.db.batch();
        batch.expect_value(&self.files, &text.name, Some(old.as_bytes()));
        batch.insert(&self.files, &text.name, &new).insert(&self.lines, &added, "one more line");
        batch.commit()?;
        let took = watch.elapsed();
        let what = format!("one commit: line {new} in `lines`, the line count {old} -> {new} in `files`");
        page.line(&what, Some(took))?;

        let (then_files, then_lines) = (snapshot.keyspace("files")?, snapshot.keyspace("lines")?);
        let is_now = self.files.get(&text.name)?.as_deref() == Some(new.as_bytes());
        let both = is_now && self.lines.contains_key(&added)?;
        page.verdict(both, "atomic batches", "the database contains both changes")?;
        let is_then = then_files.get(&text.name)?.as_deref() == Some(old.as_bytes());
        let neither = is_then && !then_lines.contains_key(&added)?;
        page.step("snapshot")?;
        page.verdict(neither, "snapshots", "a snapshot taken before contains neither change")
    }

    pub(crate) fn close(self) -> Result {
        Ok(self.db.close()?)
    }
}

/// Returns the key of a line.
fn line_key(text: &Text, number: usize) -> String {
    format!("{}:{number}", text.name)
}

fn longest(texts: &[Text]) -> &Text {
    texts.iter().max_by_key(|text| text.lines.len()).expect("texts::gather gives at least one")
}

/// Returns each word with the keys of the lines that contain it.
fn index(texts: &[Text]) -> BTreeMap<String, Vec<String>> {
    let mut index: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for text in texts {
        for (number, line) in (1..).zip(&text.lines) {
            for word in String::from_utf8_lossy(line).split(|c: char| !c.is_alphanumeric() && c != '_') {
                if word.is_empty() || word.len() > 64 {
                    continue;
                }
                let places = index.entry(word.to_lowercase()).or_default();
                let place = line_key(text, number);
                if places.last() != Some(&place) {
                    places.push(place);
                }
            }
        }
    }
    index
}

/// Returns the beginning of a line, escaped for a terminal.
fn excerpt(line: &[u8]) -> String {
    let mut text = String::new();
    escape(line, &mut text);
    match text.char_indices().nth(32) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

/// Like [`time`], with two decimal places below ten microseconds.
fn format_short(took: std::time::Duration) -> String {
    match took.as_nanos() {
        nanos @ 0..10_000 => format!("{}.{:02} µs", nanos / 1000, nanos % 1000 / 10),
        _ => time(took),
    }
}
