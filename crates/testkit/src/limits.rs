//! # Full file systems: small real file systems without free space
//!
//! Mounting needs root and a kernel that allows it; otherwise these tests print a message and end.
//!
//! ## Blind spots
//!
//! A disk that other programs fill. The simulated disk covers it (`conformance/full_disk.rs`).

#![expect(clippy::unwrap_used, reason = "a test's own steps work")]
#![expect(clippy::disallowed_methods, reason = "creates a mount point")]

use std::path::{Path, PathBuf};
use std::process::Command;

use sheaf::{Database, Error, Keyspace};
use sheaf_platform::disk::Disk;
use sheaf_platform::disk::real::RealDisk;

use crate::fixture::{TestSubject, wait_epoch_garbage_freed};
use crate::totals::Stopwatch;

/// A small file system, unmounted and deleted when dropped.
struct TestMount {
    dir: PathBuf,
}

impl TestMount {
    /// Mounts it. Returns `None` and prints the reason if that is not possible here.
    fn new(parent: &str, name: &str, mount: impl Fn(&Path) -> Result<(), String>) -> Option<TestMount> {
        let dir = PathBuf::from(parent).join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("at")).unwrap();
        match mount(&dir) {
            Ok(()) => Some(TestMount { dir }),
            Err(why) => {
                println!("skipped: {name} cannot be mounted here: {why}");
                // It may have failed after the mount.
                let _ = run("umount", &["-l".as_ref(), dir.join("at").as_os_str()]);
                let _ = std::fs::remove_dir_all(&dir);
                None
            }
        }
    }

    fn path(&self) -> PathBuf {
        self.dir.join("at").join("db")
    }
}

impl Drop for TestMount {
    fn drop(&mut self) {
        if run("umount", &["-l".as_ref(), self.dir.join("at").as_os_str()]).is_ok() {
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

/// Mounts 8 MiB of memory below `dir`.
///
/// # Errors
///
/// Returns the error message of `mount`.
pub fn tmpfs(dir: &Path) -> Result<(), String> {
    let words = ["-t", "tmpfs", "-o", "size=8m", "tmpfs"].map(AsRef::as_ref);
    run("mount", &[&words[..], &[dir.join("at").as_os_str()]].concat())
}

/// Mounts an ext4 file system of 32 MiB in a file below `dir`.
///
/// # Errors
///
/// Returns the error message of the first command that fails.
pub fn ext4(dir: &Path) -> Result<(), String> {
    mount_image_file(dir, "32M", "mkfs.ext4", &["-q", "-F"])
}

/// Mounts an XFS file system of 320 MiB, about the smallest that `mkfs.xfs` accepts, and fills all
/// but 32 MiB of it.
///
/// # Errors
///
/// Returns the error message of the first command that fails.
pub fn xfs(dir: &Path) -> Result<(), String> {
    mount_image_file(dir, "320M", "mkfs.xfs", &["-q", "-f"])?;
    fill_except(dir, 32)
}

fn mount_image_file(dir: &Path, size: &str, mkfs: &str, options: &[&str]) -> Result<(), String> {
    let (image, at) = (dir.join("image"), dir.join("at"));
    run("truncate", &["-s".as_ref(), size.as_ref(), image.as_os_str()])?;
    let options: Vec<_> = options.iter().map(AsRef::as_ref).chain([image.as_os_str()]).collect();
    run(mkfs, &options)?;
    run("mount", &["-o".as_ref(), "loop".as_ref(), image.as_os_str(), at.as_os_str()])
}

/// Allocates all free space of the mounted file system except for `mib` MiB.
fn fill_except(dir: &Path, mib: u64) -> Result<(), String> {
    let at = dir.join("at");
    let free = RealDisk::default().free_space(&at).map_err(|e| e.to_string())?;
    let taken = free.saturating_sub(mib << 20).to_string();
    run("fallocate", &["-l".as_ref(), taken.as_ref(), at.join("taken").as_os_str()])
}

/// Opens the database at `path`.
pub fn open(path: &Path, subject: &TestSubject) -> (Database, Keyspace) {
    let builder = subject.configure(Database::builder());
    // A checkpoint frees the journal. In normal geometry it is due after more bytes than fit here.
    let tiny = subject.engine == "ledger";
    let db = builder.inline(true).tiny(tiny).open(path).unwrap();
    let keyspace = db.keyspace("k", subject.options()).unwrap();
    (db, keyspace)
}

/// Returns the value of key `number`.
#[must_use]
pub fn value(number: u32) -> Vec<u8> {
    number.to_le_bytes().repeat(500 + number as usize % 500)
}

/// Inserts keys from `from` on, until an insert fails even after background work. Returns the first
/// key that was refused.
fn fill(db: &Database, keyspace: &Keyspace, from: u32) -> u32 {
    for number in from..from + 50_000 {
        let insert = || match keyspace.insert(number.to_le_bytes(), value(number)) {
            Ok(()) => true,
            Err(Error::NoSpace { .. }) => false,
            Err(other) => panic!("key {number} on a filling disk: {other}"),
        };
        let again = || {
            run_background(db);
            insert()
        };
        if !insert() && !(0..3).any(|_| again()) {
            return number;
        }
        if number.is_multiple_of(64) {
            run_background(db);
        }
    }
    panic!("the disk never fills");
}

/// Removes key `number`. The freed space may still be pinned by a reader of any database of the
/// process, also of another test. A refusal therefore counts only if it persists.
fn remove(db: &Database, keyspace: &Keyspace, number: u32) {
    let mut again = 0..3;
    while let Err(error) = keyspace.remove(number.to_le_bytes()) {
        assert!(
            matches!(error, Error::NoSpace { .. }) && again.next().is_some(),
            "removing {number}: {error}"
        );
        run_background(db);
    }
}

/// Runs background work until none is left, or none has enough space.
fn run_background(db: &Database) {
    for _ in 0..200 {
        match db.pump() {
            Ok(true) => {}
            Ok(false) | Err(Error::NoSpace { .. }) => return wait_epoch_garbage_freed(),
            Err(other) => panic!("background work: {other}"),
        }
    }
}

/// Asserts that the keys `numbers` have their values.
pub fn assert_readable(keyspace: &Keyspace, numbers: impl Iterator<Item = u32>) {
    for number in numbers {
        let got = keyspace.get(number.to_le_bytes()).unwrap();
        assert_eq!(got.as_deref(), Some(&value(number)[..]), "key {number}");
    }
}

/// Fills a file system that `make` mounts below `parent`. Then reopens the database, removes keys,
/// and fills the file system again.
///
/// # Errors
///
/// Returns none: if `make` fails, prints the reason and skips the test.
pub fn run_full(subject: &TestSubject, parent: &str, name: &str, make: fn(&Path) -> Result<(), String>) {
    let Some(mount) = TestMount::new(parent, &format!("{name}-{}", subject.name), make) else { return };
    let (db, keyspace) = open(&mount.path(), subject);
    let full = fill(&db, &keyspace, 0);
    assert!(full > 100, "full after {full} keys");
    assert_readable(&keyspace, 0..full);
    drop(keyspace);
    match db.close() {
        Ok(()) | Err(Error::NoSpace { .. }) => {}
        Err(other) => panic!("closing on a full disk: {other}"),
    }
    let (db, keyspace) = open(&mount.path(), subject); // a full disk does not prevent opening
    assert_readable(&keyspace, 0..full);
    for number in 0..full * 3 / 4 {
        remove(&db, &keyspace, number);
        if number.is_multiple_of(16) {
            run_background(&db); // background work makes room for more removals
        }
    }
    for _ in 0..20 {
        run_background(&db);
    }
    let mut next = fill(&db, &keyspace, 1_000_000); // writes continue without reopening
    let watch = Stopwatch::start();
    while next - 1_000_000 <= full / 8 && watch.seconds() < 30.0 {
        // A thread of another test may still be removing the freed files.
        run_background(&db);
        next = fill(&db, &keyspace, next);
    }
    let again = next - 1_000_000;
    println!("{}: full after {full} keys, room for {again} after removing {}", subject.name, full * 3 / 4);
    assert!(again > full / 8, "after removing {} keys there is room for {again}", full * 3 / 4);
    assert_readable(&keyspace, full * 3 / 4..full);
    assert_readable(&keyspace, 1_000_000..1_000_000 + again);
    let mut damage = None;
    db.verify(|error| damage = Some(error)).unwrap();
    assert!(damage.is_none(), "{damage:?}");
}

/// Generates the tests for one engine.
#[macro_export]
macro_rules! limits_suite {
    ($module:ident, $subject:expr) => {
        mod $module {
            #[test]
            fn a_full_tmpfs_refuses_writes_until_space_is_freed() {
                let parent = env!("CARGO_TARGET_TMPDIR");
                $crate::limits::run_full(&$subject, parent, "tmpfs", $crate::limits::tmpfs);
            }

            #[test]
            fn a_full_ext4_refuses_writes_until_space_is_freed() {
                let parent = env!("CARGO_TARGET_TMPDIR");
                $crate::limits::run_full(&$subject, parent, "ext4", $crate::limits::ext4);
            }

            #[test]
            fn a_full_xfs_refuses_writes_until_space_is_freed() {
                let parent = env!("CARGO_TARGET_TMPDIR");
                $crate::limits::run_full(&$subject, parent, "xfs", $crate::limits::xfs);
            }
        }
    };
}
