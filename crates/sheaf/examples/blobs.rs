//! A cache of large objects, written and read as streams, with a limit on their bytes. It evicts
//! the least recently used object first.
//!
//! `cargo run -p sheaf-db --example blobs [DIR]`

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use sheaf::{Database, Keyspace, KeyspaceOptions, Result};

/// Limit on the bytes in the cache.
const LIMIT: u64 = 8 << 20;
const PIECE: usize = 64 << 10;

struct Cache {
    db: Database,
    /// Values above 8 KiB are separate files.
    objects: Keyspace,
    /// Turn of the last use and name, in order: the oldest is the first.
    turns: Keyspace,
    /// Name, with turn and bytes as the value.
    facts: Keyspace,
    turn: u64,
    bytes: u64,
}

fn turn_key(turn: u64, name: &str) -> Vec<u8> {
    [&turn.to_be_bytes(), name.as_bytes()].concat()
}

fn read_facts(stored: &[u8]) -> (u64, u64) {
    let number = |bytes: Option<&[u8]>| bytes.and_then(|b| b.try_into().ok()).map_or(0, u64::from_be_bytes);
    (number(stored.get(..8)), number(stored.get(8..)))
}

impl Cache {
    fn open(dir: &Path) -> Result<Cache> {
        let db = Database::open(dir)?;
        let of = |name, engine| db.keyspace(name, KeyspaceOptions::default().engine(engine));
        let (objects, turns, facts) = (of("objects", "delsm")?, of("turns", "flex")?, of("facts", "flat")?);
        let mut bytes = 0;
        for pair in facts.iter()? {
            bytes += read_facts(&pair?.1).1;
        }
        let turn = match turns.last()? {
            Some((key, _)) => read_facts(&key).0 + 1,
            None => 0,
        };
        Ok(Cache { db, objects, turns, facts, turn, bytes })
    }

    /// Stores the bytes of `source` piece by piece. Memory contains one piece at a time.
    fn put(&mut self, name: &str, mut source: impl Read) -> Result<()> {
        let mut writer = self.objects.writer(name)?;
        let mut piece = vec![0; PIECE];
        loop {
            match source.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => writer.write_all(&piece[..count]).expect("the disk has room"),
                Err(error) => panic!("the source: {error}"),
            }
        }
        let len = writer.len();
        writer.commit()?; // the whole object or nothing
        self.note(name, Some(len))?;
        while self.bytes > LIMIT {
            self.evict()?;
        }
        Ok(())
    }

    /// Records a use of an object, and its length if it is new.
    fn note(&mut self, name: &str, len: Option<u64>) -> Result<()> {
        let before = self.facts.get(name)?.map(|stored| read_facts(&stored));
        let mut batch = self.db.batch();
        if let Some((turn, _)) = before {
            batch.remove(&self.turns, turn_key(turn, name));
        }
        let old = before.map_or(0, |(_, len)| len);
        let len = len.unwrap_or(old);
        self.turn += 1;
        batch.insert(&self.turns, turn_key(self.turn, name), "");
        batch.insert(&self.facts, name, [self.turn.to_be_bytes(), len.to_be_bytes()].concat());
        batch.commit()?;
        self.bytes = self.bytes + len - old;
        Ok(())
    }

    /// Removes the least recently used object.
    fn evict(&mut self) -> Result<()> {
        let Some((key, _)) = self.turns.first()? else { return Ok(()) };
        let name = &key[8..];
        let len = self.facts.get(name)?.map_or(0, |stored| read_facts(&stored).1);
        let mut batch = self.db.batch();
        batch.remove(&self.objects, name).remove(&self.turns, &key).remove(&self.facts, name);
        batch.commit()?;
        self.bytes -= len;
        Ok(())
    }

    /// Returns the last `count` bytes of an object without reading the others.
    fn tail(&mut self, name: &str, count: i64) -> Result<Option<Vec<u8>>> {
        let Some(mut reader) = self.objects.reader(name)? else { return Ok(None) };
        let mut bytes = Vec::new();
        let read = reader.seek(SeekFrom::End(-count)).and_then(|_| reader.read_to_end(&mut bytes));
        read.expect("it was verified when it was opened");
        self.note(name, None)?;
        Ok(Some(bytes))
    }
}

/// Returns a source of `len` bytes of the same letter.
fn object(len: u64, letter: u8) -> impl Read {
    io::repeat(letter).take(len)
}

/// Puts more than the limit, and uses `first` after each put. Returns the remaining objects and
/// their bytes.
fn run(dir: &Path) -> Result<(Vec<String>, u64)> {
    let mut cache = Cache::open(dir)?;
    cache.put("first", object(1 << 20, b'*'))?;
    for number in 0..20u8 {
        cache.put(&format!("object-{number:02}"), object(700_000 + u64::from(number), b'a' + number))?;
        assert_eq!(cache.tail("first", 3)?.as_deref(), Some(&b"***"[..]));
    }
    let names = cache.objects.keys()?.map(|name| Ok(String::from_utf8_lossy(&name?).into_owned()));
    let there = names.collect::<Result<Vec<_>>>()?;
    if let Some(path) = cache.objects.blob_path("first")? {
        println!("`first` is the file {}", path.display());
    }
    println!("{} objects, {} bytes of at most {LIMIT}", there.len(), cache.bytes);
    let bytes = cache.bytes;
    cache.db.close()?;
    Ok((there, bytes))
}

fn main() -> Result<()> {
    let mine = std::env::temp_dir().join("sheaf-example-blobs");
    run(std::env::args_os().nth(1).as_deref().map_or(&mine, Path::new)).map(drop)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_cache_stays_within_its_limit_and_keeps_recently_used_blobs() {
        let dir = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            let (there, bytes) = super::run(dir.path()).unwrap();
            assert!(bytes <= super::LIMIT && bytes > super::LIMIT / 2, "{bytes}");
            assert_eq!(there.first().map(String::as_str), Some("first"));
            assert_eq!(there.last().map(String::as_str), Some("object-19"));
            assert_eq!(there.len(), 11);
        }
    }
}
