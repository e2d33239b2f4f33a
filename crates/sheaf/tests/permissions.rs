//! Modes of files and directories on the real disk: of databases, of their copies, and of the lock.

#![expect(clippy::unwrap_used, reason = "a test's own steps work")]
#![allow(clippy::disallowed_methods, reason = "a test looks at files from outside")]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use sheaf::{BackupOptions, Database, Error, KeyspaceOptions, Permissions, RepairOptions};

struct PermissionsDir(PathBuf);

impl PermissionsDir {
    fn new(name: &str) -> PermissionsDir {
        let dir = std::env::temp_dir().join(format!("sheaf-modes-{name}-{}", std::process::id()));
        fs::remove_dir_all(&dir).ok();
        fs::create_dir_all(&dir).unwrap();
        PermissionsDir(dir)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for PermissionsDir {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Returns the modes of all directories, including `dir`, and of all files.
fn modes(dir: &Path) -> (BTreeSet<u32>, BTreeSet<u32>) {
    let (mut directories, mut files) = (BTreeSet::from([mode(dir)]), BTreeSet::new());
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            let below = modes(&path);
            directories.extend(below.0);
            files.extend(below.1);
        } else {
            files.insert(mode(&path));
        }
    }
    (directories, files)
}

fn only(directories: u32, files: u32) -> (BTreeSet<u32>, BTreeSet<u32>) {
    (BTreeSet::from([directories]), BTreeSet::from([files]))
}

/// Fills keyspaces of all engines. Some values are large enough for blob files.
fn fill(db: &Database) {
    for engine in sheaf::engines() {
        let keyspace = db.keyspace(engine, KeyspaceOptions::default().engine(engine)).unwrap();
        for n in 0..200u32 {
            let len = if n.is_multiple_of(50) { 100_000 } else { 300 };
            keyspace.insert(n.to_be_bytes(), vec![7; len]).unwrap();
        }
    }
    db.persist().unwrap();
}

/// Changes the modes of all files and directories in `dir`.
fn chmod(dir: &Path, directories: u32, files: u32) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => chmod(&path, directories, files),
            false => set_mode(&path, files),
        }
    }
    set_mode(dir, directories);
}

#[test]
fn a_new_database_is_accessible_to_its_owner_only() {
    let dir = PermissionsDir::new("new");
    let db = Database::open(dir.at("above/db")).unwrap();
    fill(&db);
    assert_eq!(modes(&dir.at("above")), only(0o700, 0o600), "open, with its IPC socket");
    db.close().unwrap();
    assert_eq!(modes(&dir.at("above")), only(0o700, 0o600), "closed");
    // In a directory of the user, the files are nevertheless accessible only to the owner.
    fs::create_dir(dir.at("own")).unwrap();
    set_mode(&dir.at("own"), 0o755);
    fill(&Database::open(dir.at("own")).unwrap());
    let (directories, files) = modes(&dir.at("own"));
    assert_eq!((directories, files), (BTreeSet::from([0o700, 0o755]), BTreeSet::from([0o600])));
}

#[test]
fn requested_modes_survive_reopening_and_copying() {
    let dir = PermissionsDir::new("chosen");
    let (db, backup) = (dir.at("db"), dir.at("backup"));
    let open = Database::builder().permissions(Permissions::GROUP).open(&db).unwrap();
    fill(&open);
    open.close().unwrap();
    assert_eq!(modes(&db), only(0o750, 0o640));
    let open = Database::open(&db).unwrap(); // keeps the modes without the option
    open.drop_keyspace("flex").unwrap();
    fill(&open);
    open.backup(&backup, BackupOptions::default()).unwrap();
    open.close().unwrap();
    assert_eq!((modes(&db), modes(&backup)), (only(0o750, 0o640), only(0o750, 0o640)));
    Database::restore(&backup, dir.at("restored")).unwrap();
    Database::repair(&db, dir.at("repaired"), RepairOptions::default()).unwrap();
    fill(&Database::open(dir.at("restored")).unwrap());
    for copy in ["restored", "repaired"] {
        assert_eq!(modes(&dir.at(copy)), only(0o750, 0o640), "{copy}");
    }
    let alone = Database::builder().permissions(Permissions::OWNER);
    alone.restore(&backup, dir.at("alone"), None).unwrap();
    assert_eq!(modes(&dir.at("alone")), only(0o700, 0o600));
}

#[test]
fn a_copy_grants_no_access_that_its_source_denied() {
    let dir = PermissionsDir::new("copies");
    let (db, base) = (dir.at("db"), dir.at("base"));
    let open = Database::open(&db).unwrap();
    fill(&open);
    open.backup(&base, BackupOptions::default()).unwrap();
    open.close().unwrap();
    // An older build made such modes, inside of a directory that only the owner could open.
    chmod(&db, 0o755, 0o644);
    set_mode(&db, 0o700);
    chmod(&base, 0o755, 0o644);
    set_mode(&base, 0o700);
    for target in ["copy", "repaired", "restored"] {
        fs::create_dir(dir.at(target)).unwrap();
        set_mode(&dir.at(target), 0o755); // other users could read it
    }
    let open = Database::open(&db).unwrap();
    open.backup(dir.at("copy"), BackupOptions::default().base(&base)).unwrap();
    open.close().unwrap();
    Database::restore(&base, dir.at("restored")).unwrap();
    Database::repair(&db, dir.at("repaired"), RepairOptions::default()).unwrap();
    for copy in ["copy", "repaired", "restored"] {
        let (_, files) = modes(&dir.at(copy));
        assert_eq!(files, BTreeSet::from([0o600]), "{copy}");
    }
}

#[test]
fn invalid_modes_create_nothing() {
    let dir = PermissionsDir::new("bad");
    for bad in [Permissions::of_files(0o400), Permissions::new(0o600, 0o600), Permissions::of_files(0o777)] {
        let refused = Database::builder().permissions(bad).open(dir.at("db")).map(drop);
        assert!(
            matches!(refused, Err(Error::InvalidArgument { argument: "permissions", .. })),
            "{refused:?}"
        );
    }
    assert!(!dir.at("db").exists());
}

#[test]
fn a_lock_file_that_is_a_link_or_missing_is_an_error() {
    let dir = PermissionsDir::new("lock");
    let db = dir.at("db");
    fill(&Database::open(&db).unwrap());
    let lock = db.join("LOCK");
    fs::remove_file(&lock).unwrap();
    let reader = || Database::builder().read_only(true).open(&db).map(drop);
    let missing = reader().unwrap_err().to_string();
    assert!(missing.contains("LOCK") && missing.contains("create an empty file"), "{missing}");
    fs::write(dir.at("target"), b"bytes").unwrap();
    symlink(dir.at("target"), &lock).unwrap();
    for refused in [reader(), Database::open(&db).map(drop)] {
        let why = refused.unwrap_err().to_string();
        assert!(why.contains("LOCK") && why.contains("it is a symbolic link"), "{why}");
    }
    assert_eq!(fs::read(dir.at("target")).unwrap(), b"bytes");
    fs::remove_file(&lock).unwrap();
    fs::write(&lock, b"").unwrap();
    reader().unwrap();
    fs::remove_file(&lock).unwrap();
    drop(Database::open(&db).unwrap()); // a writer creates the lock file
    assert_eq!(mode(&lock), 0o600);
}
