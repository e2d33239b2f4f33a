//! Files of two moments of one database, mixed: a copy or a restore that was made in parts.

#![cfg(unix)]
#![allow(clippy::disallowed_methods, reason = "another program copies the files")]

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use sheaf::{Database, Error, Keyspace, KeyspaceOptions};

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// Parts of a database that are copied separately.
const PARTS: [&[&str]; 5] = [&["ROOT.0", "ROOT.1"], &["journal"], &["flat"], &["images"], &["own"]];
/// Pairs at the first moment. `flex` makes files of its own for more than 64 KiB.
const PAIRS: usize = 2000;

fn key(number: usize) -> String {
    format!("key{number:06}")
}

/// Makes a database in `dir` of links to files of `old` and `new`: to those of `new` for the parts
/// with a bit in `parts`.
fn link_mixed(dir: &Path, [old, new]: [&Path; 2], parts: u32) -> io::Result<()> {
    std::fs::create_dir(dir)?;
    std::fs::write(dir.join("LOCK"), "")?;
    for (bit, names) in PARTS.iter().enumerate() {
        let from = if parts & 1 << bit == 0 { old } else { new };
        for name in names.iter().filter(|name| from.join(name).exists()) {
            std::os::unix::fs::symlink(from.join(name), dir.join(name))?;
        }
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::create_dir(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy(&entry.path(), &target)?,
            false => drop(std::fs::copy(entry.path(), target)?),
        }
    }
    Ok(())
}

/// Returns the pairs of the database, or the error of an opening or a read.
fn read_pairs(dir: &Path) -> sheaf::Result<Pairs> {
    let db = Database::builder().read_only(true).open(dir)?;
    let keyspace = db.open_keyspace("k")?.ok_or(Error::KeyspaceNotFound { name: "k".into() })?;
    keyspace.iter()?.map(|pair| pair.map(|(key, value)| (key.to_vec(), value.to_vec()))).collect()
}

/// Mixes the parts of two moments in all ways. Each mixture must have the pairs of one of
/// `moments`, or be damaged. Returns the number of damaged ones.
fn check_mixtures(scratch: &Path, dirs: [&Path; 2], moments: &[Pairs], engine: &str) -> usize {
    let mixed = scratch.join("mixed");
    let mut refused = 0;
    for parts in 0..1 << PARTS.len() {
        link_mixed(&mixed, dirs, parts).expect("the links are new");
        let read = read_pairs(&mixed);
        std::fs::remove_dir_all(&mixed).expect("the links exist");
        match read {
            Ok(pairs) => {
                assert!(moments.contains(&pairs), "{engine}: parts {parts:05b} have the pairs of no moment")
            }
            Err(error) => {
                assert!(matches!(error, Error::Corrupt { .. }), "{engine}: parts {parts:05b}: {error}");
                refused += 1;
            }
        }
    }
    refused
}

fn write(keyspace: &Keyspace, numbers: impl Iterator<Item = usize>, word: &str) {
    for number in numbers {
        keyspace
            .insert(key(number), format!("{word} value {number} {}", "y".repeat(60)))
            .expect("the disk has space");
    }
}

/// Regression: an opening accepted newer files of `flex` and `delsm` with an older log, and older
/// ones with a newer log if an image was missing. The pairs were those of no moment.
#[test]
fn files_of_two_moments_are_damage_or_one_moment() {
    for engine in ["flat", "flat-ordered", "flex", "cedrus", "kreon", "delsm"] {
        let scratch = tempfile::tempdir().unwrap();
        let [old, new, unclean] = ["old", "new", "unclean"].map(|name| scratch.path().join(name));
        let open = || {
            let db = Database::builder().ipc(false).open(&new).unwrap();
            let keyspace = db.keyspace("k", KeyspaceOptions::default().engine(engine)).unwrap();
            (db, keyspace)
        };
        for numbers in [0..PAIRS / 2, PAIRS / 2..PAIRS] {
            let (db, keyspace) = open();
            write(&keyspace, numbers, "old");
            drop(keyspace);
            db.close().unwrap();
        }
        copy(&new, &old).unwrap();
        let (db, keyspace) = open();
        write(&keyspace, (0..PAIRS).step_by(4), "new");
        (100..150).for_each(|number| keyspace.remove(key(number)).unwrap());
        drop(keyspace);
        db.close().unwrap();
        let mut moments = vec![read_pairs(&old).unwrap(), read_pairs(&new).unwrap()];
        assert_eq!([moments[0].len(), moments[1].len()], [PAIRS, PAIRS - 50]);
        assert!(check_mixtures(scratch.path(), [&old, &new], &moments, engine) > 0, "{engine}");

        // As after a kill: ROOT, the checkpoint, and commits behind it.
        let (db, keyspace) = open();
        write(&keyspace, (1..PAIRS).step_by(4), "last");
        db.quiesce().unwrap(); // the files stay as they are during the copy
        write(&keyspace, (2..40).step_by(4), "last");
        db.persist().unwrap();
        copy(&new, &unclean).unwrap();
        drop(keyspace);
        db.close().unwrap();
        moments.push(read_pairs(&unclean).unwrap());
        assert!(check_mixtures(scratch.path(), [&old, &unclean], &moments, engine) > 0, "{engine}");
    }
}
