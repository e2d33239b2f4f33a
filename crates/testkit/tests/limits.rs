//! The machine's own limits: a small file system that is really full, and no descriptor left.
//!
//! Mounting needs root, and a kernel that lets us; without, those tests say so and end.

#![expect(clippy::unwrap_used, reason = "a test's own steps work")]
#![expect(clippy::disallowed_methods, reason = "makes a place to mount on")]

use std::path::{Path, PathBuf};
use std::process::Command;

use sheaf::{Database, Error, Keyspace, KeyspaceOptions};
use sheaf_testkit::stage::Subject;

/// A small file system of its own, unmounted and gone at the end.
struct Mount {
    dir: PathBuf,
}

impl Mount {
    /// `None`, with a message, where we may not mount.
    fn new(name: &str, mount: impl Fn(&Path) -> Result<(), String>) -> Option<Mount> {
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("at")).unwrap();
        match mount(&dir) {
            Ok(()) => Some(Mount { dir }),
            Err(why) => {
                println!("skipped: {name} cannot be mounted here: {why}");
                let _ = std::fs::remove_dir_all(&dir);
                None
            }
        }
    }

    fn path(&self) -> PathBuf {
        self.dir.join("at").join("db")
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if run("umount", &[self.dir.join("at").as_os_str()]).is_ok() {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

fn run(program: &str, arguments: &[&std::ffi::OsStr]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).output().map_err(|e| format!("{program}: {e}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

fn tmpfs(dir: &Path) -> Result<(), String> {
    let words = ["-t", "tmpfs", "-o", "size=8m", "tmpfs"].map(AsRef::as_ref);
    run("mount", &[&words[..], &[dir.join("at").as_os_str()]].concat())
}

fn ext4(dir: &Path) -> Result<(), String> {
    let image = dir.join("image");
    run("truncate", &["-s".as_ref(), "32M".as_ref(), image.as_os_str()])?;
    run("mkfs.ext4", &["-q".as_ref(), "-F".as_ref(), image.as_os_str()])?;
    run("mount", &["-o".as_ref(), "loop".as_ref(), image.as_os_str(), dir.join("at").as_os_str()])
}

fn open(path: &Path, subject: &Subject) -> (Database, Keyspace) {
    let builder = subject.factories.iter().cloned().fold(Database::builder(), sheaf::Builder::engine);
    // In the journal, room comes back with a checkpoint, which is due after 128 MiB in normal geometry.
    let tiny = subject.engine == "ledger";
    let db = builder.inline(true).tiny(tiny).open(path).unwrap();
    let keyspace = db.keyspace("k", KeyspaceOptions::default().engine(subject.engine)).unwrap();
    (db, keyspace)
}

fn value(number: u32) -> Vec<u8> {
    number.to_le_bytes().repeat(500 + number as usize % 500)
}

/// Puts keys from `from` on until the disk is full; answers the first one that was refused.
fn fill(db: &Database, keyspace: &Keyspace, from: u32) -> u32 {
    for number in from..from + 50_000 {
        match keyspace.insert(number.to_le_bytes(), value(number)) {
            Ok(()) => {}
            Err(Error::NoSpace { .. }) => return number,
            Err(other) => panic!("key {number} on a filling disk: {other}"),
        }
        if number.is_multiple_of(64) {
            settle(db);
        }
    }
    panic!("the disk never fills");
}

/// Background work until there is none, or no room for it.
fn settle(db: &Database) {
    for _ in 0..200 {
        match db.pump() {
            Ok(true) => {}
            Ok(false) | Err(Error::NoSpace { .. }) => return,
            Err(other) => panic!("background work: {other}"),
        }
    }
}

fn holds(keyspace: &Keyspace, numbers: impl Iterator<Item = u32>) {
    for number in numbers {
        let got = keyspace.get(number.to_le_bytes()).unwrap();
        assert_eq!(got.as_deref(), Some(&value(number)[..]), "key {number}");
    }
}

fn fills_and_goes_on(mount: &Mount, subject: &Subject) {
    let (db, keyspace) = open(&mount.path(), subject);
    let full = fill(&db, &keyspace, 0);
    assert!(full > 100, "full after {full} keys");
    holds(&keyspace, 0..full);
    drop(keyspace);
    match db.close() {
        Ok(()) | Err(Error::NoSpace { .. }) => {}
        Err(other) => panic!("closing on a full disk: {other}"),
    }
    let (db, keyspace) = open(&mount.path(), subject); // it opens while full
    holds(&keyspace, 0..full);
    for number in 0..full * 3 / 4 {
        keyspace.remove(number.to_le_bytes()).unwrap();
        if number.is_multiple_of(16) {
            settle(&db); // background work makes room for more removals
        }
    }
    for _ in 0..20 {
        settle(&db);
    }
    let again = fill(&db, &keyspace, 1_000_000) - 1_000_000; // and goes on without being reopened
    println!("{}: full after {full} keys, room for {again} after removing {}", subject.engine, full * 3 / 4);
    assert!(again > full / 8, "after removing {} keys there is room for {again}", full * 3 / 4);
    holds(&keyspace, full * 3 / 4..full);
    holds(&keyspace, 1_000_000..1_000_000 + again);
    let mut damage = None;
    db.verify(|error| damage = Some(error)).unwrap();
    assert!(damage.is_none(), "{damage:?}");
}

#[test]
fn a_full_tmpfs_refuses_and_goes_on_when_there_is_room() {
    for subject in [Subject::flat(), Subject::flat_ordered(), Subject::cedrus(), Subject::ledger()] {
        let Some(mount) = Mount::new(&format!("tmpfs-{}", subject.engine), tmpfs) else { return };
        fills_and_goes_on(&mount, &subject);
    }
}

#[test]
fn a_full_ext4_refuses_and_goes_on_when_there_is_room() {
    let Some(mount) = Mount::new("ext4", ext4) else { return };
    fills_and_goes_on(&mount, &Subject::flat());
}

const CHILD: &str = "SHEAF_LIMITS_DIR";

fn set_limit(descriptors: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY:
    // * Both calls are given a structure that lives on our stack.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        limit.rlim_cur = descriptors.min(limit.rlim_max);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
    }
}

/// The child: its limit is its own.
#[test]
fn child_with_few_descriptors() {
    let Some(dir) = std::env::var_os(CHILD) else { return };
    let dir = PathBuf::from(dir);
    let (db, keyspace) = open(&dir, &Subject::flat());
    (0..100u32).for_each(|number| keyspace.insert(number.to_le_bytes(), value(number)).unwrap());
    drop(keyspace);
    db.close().unwrap();
    let mut refused = 0;
    for limit in 3..40 {
        set_limit(limit);
        let opened = Database::builder().inline(true).open(&dir).map(drop);
        set_limit(1024);
        match opened {
            Err(Error::Io { source, .. }) if source.raw_os_error() == Some(libc::EMFILE) => refused += 1,
            Err(other) => panic!("with {limit} descriptors: {other:?}"),
            Ok(()) => {}
        }
    }
    assert!(refused > 3, "only {refused} openings were refused");
    let (db, keyspace) = open(&dir, &Subject::flat());
    holds(&keyspace, 0..100);
    set_limit(5);
    let mut written = 100u32;
    let ended = loop {
        match keyspace.insert(written.to_le_bytes(), value(written)) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 100_000, "no new file is ever needed");
    };
    assert!(
        matches!(&ended, Error::Io { source, .. } if source.raw_os_error() == Some(libc::EMFILE)),
        "{ended}"
    );
    holds(&keyspace, 0..written);
    set_limit(1024);
    keyspace.insert(written.to_le_bytes(), value(written)).unwrap();
    drop((keyspace, db));
    let (_db, keyspace) = open(&dir, &Subject::flat());
    holds(&keyspace, 0..=written);
}

#[test]
fn without_a_descriptor_it_refuses_and_goes_on_when_there_is_one() {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("limits-{}", std::process::id()));
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["limits::child_with_few_descriptors", "--exact", "--nocapture"]).env(CHILD, &dir);
    let output = child.output().unwrap();
    let _ = std::fs::remove_dir_all(&dir);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
