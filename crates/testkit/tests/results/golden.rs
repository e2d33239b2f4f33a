//! # Golden databases: files of earlier versions that this version must read
//!
//! `tests/golden/VERSION/ENGINE-STATE.golden` is a database of one engine, made by the version that
//! its directory names: `closed`, or `killed` (the files of a process that ended without closing).
//! `ENGINE-lz4` has a keyspace with the codec `lz4`: blocks of `flex`, values of `flat`.
//! All were made on x86-64; processors of either byte order must read them. `cargo xtask golden`
//! makes those of the present format. Those of a released format are never made again.
//!
//! ```text
//!  golden:   SHEAFGLD | file | file | ...        file: path length, path, length, extents
//!  extent:   offset, length, bytes; an extent of length 0 ends the file; zeros have no extent
//!  the path of a directory ends with `/`
//! ```
//!
//! All numbers are u64, little-endian.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test that packs and unpacks files")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use sheaf::{Codec, Database, KeyspaceOptions};

const MAGIC: &[u8; 8] = b"SHEAFGLD";
/// Directory of the format that may still change. A release renames it to its version.
const UNRELEASED: &str = "unreleased";
/// Bytes that are left out together if they are zeros.
const BLOCK: usize = 64;
const STATES: [&str; 2] = ["closed", "killed"];
/// End of the name of a database with a codec.
const LZ4: &str = "-lz4";
/// Engines of the databases with a codec.
const COMPRESSED: [&str; 2] = ["flat", "flex"];
/// Copies of the noise in a value that is compressed.
const REPEATS: usize = 8;

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

fn golden_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// A directory that is removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("sheaf-golden-{}-{number}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        Scratch(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns bytes that depend on a seed only.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    };
    (0..len).map(|_| next()).collect()
}

/// Key of pair `n`: numbers in big-endian order, and keys of every length and byte.
fn key(n: u64) -> Vec<u8> {
    match n {
        0 => Vec::new(),
        1 => vec![0],
        2 => vec![0xff; 300],
        3 => "schlüssel".as_bytes().to_vec(),
        _ => [b"key-".as_slice(), &n.to_be_bytes()].concat(),
    }
}

/// Returns the names of the databases: those of the engines, and those with a codec.
fn subjects() -> Vec<String> {
    let compressed = COMPRESSED.iter().map(|engine| format!("{engine}{LZ4}"));
    sheaf::engines().iter().map(|engine| (*engine).to_owned()).chain(compressed).collect()
}

fn options(subject: &str) -> KeyspaceOptions {
    match subject.strip_suffix(LZ4) {
        Some(engine) => KeyspaceOptions::from(engine).compression(Codec::Lz4),
        None => KeyspaceOptions::from(subject),
    }
}

fn value(subject: &str, n: u64, round: u64) -> Vec<u8> {
    let len = match n % 50 {
        0 => 0,
        7 => 2000, // a blob in a tiny database
        _ => 10 + n % 40,
    };
    let noise = noise(n + 1000 * round, usize::try_from(len).unwrap());
    noise.repeat(if subject.ends_with(LZ4) { REPEATS } else { 1 })
}

/// Writes the pairs in three rounds, with removals, and returns those that must be there.
fn fill(db: &Database, subject: &str) -> Pairs {
    let keyspace = db.keyspace("golden", options(subject)).unwrap();
    let mut pairs = Pairs::new();
    for round in 0..3 {
        for n in (0..240).filter(|n| n % (round + 1) == 0) {
            keyspace.insert(key(n), value(subject, n, round)).unwrap();
            pairs.insert(key(n), value(subject, n, round));
        }
        for n in (0..240).filter(|n| n % 7 == round + 1) {
            keyspace.remove(key(n)).unwrap();
            pairs.remove(&key(n));
        }
        db.persist().unwrap();
        while db.pump().unwrap() {}
    }
    for n in 300..310 {
        keyspace.insert(key(n), value(subject, n, 3)).unwrap(); // only in the log
        pairs.insert(key(n), value(subject, n, 3));
    }
    db.persist().unwrap();
    if subject.ends_with(LZ4) {
        let stats = keyspace.stats().unwrap();
        assert!(stats.encoded_bytes * 2 < stats.encoded_raw_bytes, "{subject} is not compressed: {stats:?}");
    }
    pairs
}

/// Compares all pairs, by gets and by a scan if the engine has one, and verifies every checksum.
fn check(dir: &Path, subject: &str, label: &str) {
    let expected = fill_reference(subject);
    let open = || Database::builder().create(false).tiny(true).open(dir);
    let db = open().unwrap_or_else(|e| panic!("{label}: {e}"));
    let keyspace = db.open_keyspace("golden").unwrap().expect("the keyspace exists");
    let codec = subject.ends_with(LZ4).then_some(1);
    assert_eq!(keyspace.options().get("compression"), codec, "{label}: the codec");
    for (key, value) in &expected {
        assert_eq!(keyspace.get(key).unwrap().as_deref(), Some(&value[..]), "{label}: key {key:?}");
    }
    for n in 0..310 {
        assert_eq!(keyspace.contains_key(key(n)).unwrap(), expected.contains_key(&key(n)), "{label}: {n}");
    }
    let mut found: Vec<(Vec<u8>, Vec<u8>)> = keyspace
        .iter()
        .unwrap()
        .map(|pair| pair.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap())
        .collect();
    found.sort();
    assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{label}: the pairs of a scan");
    let report = db.verify(|damage| panic!("{label}: {damage}")).unwrap();
    assert_eq!(report.findings, 0, "{label}");
    keyspace.insert("new", "pair").unwrap();
    db.close().unwrap();
    let db = open().unwrap();
    let keyspace = db.open_keyspace("golden").unwrap().expect("the keyspace exists");
    assert_eq!(keyspace.get("new").unwrap().as_deref(), Some(&b"pair"[..]), "{label}: after a write");
    db.close().unwrap();
}

/// Returns the pairs that [`fill`] leaves, from a map.
fn fill_reference(subject: &str) -> Pairs {
    let mut pairs = Pairs::new();
    for round in 0..3 {
        for n in (0..240).filter(|n| n % (round + 1) == 0) {
            pairs.insert(key(n), value(subject, n, round));
        }
        for n in (0..240).filter(|n| n % 7 == round + 1) {
            pairs.remove(&key(n));
        }
    }
    pairs.extend((300..310).map(|n| (key(n), value(subject, n, 3))));
    pairs
}

fn number(bytes: &mut Vec<u8>, number: usize) {
    bytes.extend((number as u64).to_le_bytes());
}

/// Adds the files below `dir`, without sockets.
fn pack(dir: &Path, below: &Path, packed: &mut Vec<u8>) {
    let mut names: Vec<_> = fs::read_dir(dir.join(below)).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    for name in names {
        let path = below.join(&name);
        let kind = fs::symlink_metadata(dir.join(&path)).unwrap().file_type();
        if kind.is_dir() {
            let name = format!("{}/", path.to_str().unwrap());
            number(packed, name.len());
            packed.extend(name.as_bytes());
            (0..3).for_each(|_| number(packed, 0));
            pack(dir, &path, packed);
        } else if kind.is_file() {
            let content = fs::read(dir.join(&path)).unwrap();
            let name = path.to_str().unwrap();
            number(packed, name.len());
            packed.extend(name.as_bytes());
            number(packed, content.len());
            let mut at = 0;
            for run in content.chunks(BLOCK).collect::<Vec<_>>().chunk_by(|a, b| is_zero(a) == is_zero(b)) {
                let bytes = run.concat();
                if !is_zero(run[0]) {
                    number(packed, at);
                    number(packed, bytes.len());
                    packed.extend(&bytes);
                }
                at += bytes.len();
            }
            number(packed, at);
            number(packed, 0);
        }
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// Writes the files of a golden database to `dir`.
fn unpack(packed: &[u8], dir: &Path) {
    let mut rest = packed.strip_prefix(MAGIC).expect("a golden database");
    fn take<'a>(rest: &mut &'a [u8], len: usize) -> &'a [u8] {
        let (bytes, after) = rest.split_at(len);
        *rest = after;
        bytes
    }
    fn next(rest: &mut &[u8]) -> usize {
        usize::try_from(u64::from_le_bytes(take(rest, 8).try_into().unwrap())).unwrap()
    }
    while !rest.is_empty() {
        let len = next(&mut rest);
        let name = std::str::from_utf8(take(&mut rest, len)).unwrap();
        let path = dir.join(name);
        let mut content = vec![0; next(&mut rest)];
        loop {
            let (at, len) = (next(&mut rest), next(&mut rest));
            if len == 0 {
                break;
            }
            content[at..at + len].copy_from_slice(take(&mut rest, len));
        }
        fs::create_dir_all(if name.ends_with('/') { &path } else { path.parent().unwrap() }).unwrap();
        if !name.ends_with('/') {
            fs::write(path, content).unwrap();
        }
    }
}

/// Makes a database in a state, and returns its files in one.
fn make(subject: &str, state: &str) -> Vec<u8> {
    let scratch = Scratch::new();
    let dir = scratch.0.join("db");
    let db = Database::builder().tiny(true).inline(true).open(&dir).unwrap();
    assert_eq!(fill(&db, subject), fill_reference(subject));
    let mut packed = MAGIC.to_vec();
    match state {
        "closed" => {
            db.close().unwrap();
            pack(&dir, Path::new(""), &mut packed);
        }
        _ => {
            pack(&dir, Path::new(""), &mut packed);
            db.close().unwrap();
        }
    }
    packed
}

/// Returns the content of all files below `dir` except the lock, which each opening writes.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.file_name().is_some_and(|name| name != "LOCK") {
            found.insert(path.clone(), fs::read(path).unwrap());
        }
    }
    found
}

/// Every golden database opens, verifies, and has its pairs.
#[test]
fn databases_of_every_earlier_version_are_read() {
    let mut names = Vec::new();
    for version in fs::read_dir(golden_dir()).unwrap() {
        let version = version.unwrap().path();
        let mut engines = Vec::new();
        for file in fs::read_dir(&version).unwrap() {
            let file = file.unwrap().path();
            let label = file.display().to_string();
            let scratch = Scratch::new();
            unpack(&fs::read(&file).unwrap(), &scratch.0.join("db"));
            let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
            let (subject, _) = name.rsplit_once('-').expect("a name and a state");
            let label = format!("{label} (`cargo xtask golden` makes an unreleased one)");
            check(&scratch.0.join("db"), subject, &label);
            engines.push(name);
        }
        engines.sort();
        names.push((version, engines));
    }
    let mut all: Vec<String> =
        subjects().iter().flat_map(|e| STATES.map(|state| format!("{e}-{state}"))).collect();
    all.sort();
    let (_, newest) = names.iter().max().expect("there are golden databases");
    assert_eq!(*newest, all, "the newest format has golden databases of every engine in both states");
}

/// A golden database with a higher number of the format of ROOT is refused, and no file changes.
#[test]
fn a_golden_database_of_a_newer_format_is_refused() {
    for engine in sheaf::engines() {
        let scratch = Scratch::new();
        let dir = scratch.0.join("db");
        unpack(&make(engine, "closed"), &dir);
        for slot in ["ROOT.0", "ROOT.1"] {
            let mut bytes = fs::read(dir.join(slot)).unwrap();
            let body = usize::try_from(u32::from_le_bytes(bytes[12..16].try_into().unwrap())).unwrap();
            let newer = u32::from_le_bytes(bytes[8..12].try_into().unwrap()) + 1;
            bytes[8..12].copy_from_slice(&newer.max(77).to_le_bytes());
            let sum = crc32c::crc32c_append(crc32c::crc32c(&bytes[..16]), &bytes[20..20 + body]);
            bytes[16..20].copy_from_slice(&sum.to_le_bytes());
            fs::write(dir.join(slot), bytes).unwrap();
        }
        let before = files(&dir);
        let refused = Database::open(&dir).map(drop).unwrap_err();
        assert!(matches!(refused, sheaf::Error::UnsupportedVersion { .. }), "{engine}: {refused}");
        assert!(files(&dir) == before, "{engine}: a file changed");
    }
}

/// Makes the golden databases of the present format. Run by `cargo xtask golden`.
#[test]
#[ignore = "writes into the source tree"]
fn make_golden_databases() {
    let dir = golden_dir().join(UNRELEASED);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    for subject in subjects() {
        for state in STATES {
            let packed = make(&subject, state);
            println!("{subject}-{state}: {} bytes", packed.len());
            fs::write(dir.join(format!("{subject}-{state}.golden")), packed).unwrap();
        }
    }
}
