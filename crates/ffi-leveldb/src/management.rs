//! # Management: destruction and repair of databases, and the version

use std::ffi::{OsString, c_char, c_int};
use std::path::{Path, PathBuf};

use sheaf::{Database, Error, IoOp, RepairOptions};

use crate::database::{builder, is_database};
use crate::memory::{Failure, given, path, report};
use crate::options::leveldb_options_t;

fn io(op: IoOp, path: &Path, outcome: std::io::Result<()>) -> Result<(), Failure> {
    outcome.map_err(|source| Error::Io { op, path: path.to_path_buf(), source }.into())
}

/// Removes a database. A directory with other files is left as it is; a missing one is no error.
fn destroy(directory: &Path) -> Result<(), Failure> {
    if !directory.exists() {
        return Ok(());
    }
    if !is_database(directory) {
        // An empty directory, as LevelDB leaves it.
        return io(IoOp::Remove, directory, std::fs::remove_dir(directory));
    }
    // No process may use it. Damage is no reason to keep it.
    let closed = Database::builder().create(false).open(directory).and_then(Database::close);
    if let Err(error @ Error::Locked { .. }) = closed {
        return Err(error.into());
    }
    io(IoOp::Remove, directory, std::fs::remove_dir_all(directory))
}

fn with_suffix(directory: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(directory);
    name.push(suffix);
    PathBuf::from(name)
}

/// Opens and verifies a database. If it is damaged, salvages it into a new directory that gets its
/// name; the damaged one gets the suffix `.damaged`.
#[expect(clippy::disallowed_methods, reason = "directories of the caller, before the database is opened")]
fn repair(options: &leveldb_options_t, directory: &Path) -> Result<(), Failure> {
    let opened = builder(options).create(false).open(directory).and_then(|database| {
        let report = database.verify(|_| {})?;
        database.close()?;
        Ok(report.findings == 0)
    });
    match opened {
        Ok(true) => return Ok(()),
        Err(error @ (Error::Locked { .. } | Error::DatabaseNotFound { .. } | Error::NotADatabase { .. })) => {
            return Err(error.into());
        }
        Ok(false) | Err(_) => {}
    }
    let (repaired, damaged) = (with_suffix(directory, ".repaired"), with_suffix(directory, ".damaged"));
    builder(options).repair(directory, &repaired, RepairOptions::default().keep_doubtful(true))?;
    io(IoOp::Rename, directory, std::fs::rename(directory, &damaged))?;
    io(IoOp::Rename, &repaired, std::fs::rename(&repaired, directory))
}

/// Removes a database.
///
/// # Safety
///
/// `name` must be NULL or a C string, and `errptr` valid for `report`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leveldb_destroy_db(
    _options: Option<&leveldb_options_t>,
    name: *const c_char,
    errptr: *mut *mut c_char,
) {
    // SAFETY: the caller passes a text with a NUL byte at its end.
    let directory = unsafe { path(name) };
    // SAFETY: the caller passes NULL or a valid pointer.
    let _ = unsafe { report(errptr, || destroy(given(directory, "name")?)) };
}

/// Repairs a database.
///
/// # Safety
///
/// `name` must be NULL or a C string, and `errptr` valid for `report`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leveldb_repair_db(
    options: Option<&leveldb_options_t>,
    name: *const c_char,
    errptr: *mut *mut c_char,
) {
    // SAFETY: the caller passes a text with a NUL byte at its end.
    let directory = unsafe { path(name) };
    let repair = || repair(given(options, "options")?, given(directory, "name")?);
    // SAFETY: the caller passes NULL or a valid pointer.
    let _ = unsafe { report(errptr, repair) };
}

/// Returns the version of the LevelDB header that the library implements.
#[unsafe(no_mangle)]
pub extern "C" fn leveldb_major_version() -> c_int {
    1
}

/// Returns the version of the LevelDB header that the library implements.
#[unsafe(no_mangle)]
pub extern "C" fn leveldb_minor_version() -> c_int {
    23
}
