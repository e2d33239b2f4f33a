//! # Error objects: code, message, and the fields of an error

use std::ffi::{CString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use sheaf::Error;

use crate::boundary;
use crate::boundary::code::sheaf_code::{self, *};
use crate::boundary::code::sheaf_error_field::{self, *};
use crate::boundary::memory::{Out, sheaf_bytes};

/// An error: a code, a message, and fields.
pub struct sheaf_error {
    code: sheaf_code,
    message: CString,
    texts: Vec<(i32, Vec<u8>)>,
    numbers: Vec<(i32, u64)>,
}

impl sheaf_error {
    /// Returns an error without fields.
    pub(crate) fn new(code: sheaf_code, message: &str) -> sheaf_error {
        let message = CString::new(message.replace('\0', "\\0")).unwrap_or_default();
        sheaf_error { code, message, texts: Vec::new(), numbers: Vec::new() }
    }

    pub(crate) fn code(&self) -> sheaf_code {
        self.code
    }

    fn text(mut self, field: sheaf_error_field, text: impl AsRef<[u8]>) -> sheaf_error {
        self.texts.push((field as i32, text.as_ref().to_vec()));
        self
    }

    fn path(self, path: &Path) -> sheaf_error {
        self.text(SHEAF_FIELD_PATH, path.as_os_str().as_bytes())
    }

    fn number(mut self, field: sheaf_error_field, number: impl Into<u64>) -> sheaf_error {
        self.numbers.push((field as i32, number.into()));
        self
    }

    fn process(mut self, pid: Option<u32>, program: Option<&str>) -> sheaf_error {
        if let Some(pid) = pid {
            self = self.number(SHEAF_FIELD_PID, pid);
        }
        if let Some(program) = program {
            self = self.text(SHEAF_FIELD_PROGRAM, program);
        }
        self
    }
}

/// Returns the code of an error.
fn code_of(error: &Error) -> sheaf_code {
    match error {
        Error::Io { .. } => SHEAF_IO,
        Error::Corrupt { .. } => SHEAF_CORRUPT,
        Error::NoSpace { .. } => SHEAF_NO_SPACE,
        Error::TooManyFiles { .. } => SHEAF_TOO_MANY_FILES,
        Error::FileSizeLimit { .. } => SHEAF_FILE_SIZE_LIMIT,
        Error::Locked { .. } => SHEAF_LOCKED,
        Error::OwnerUnresponsive { .. } => SHEAF_OWNER_UNRESPONSIVE,
        Error::OwnerClosed { .. } => SHEAF_OWNER_CLOSED,
        Error::Poisoned { .. } => SHEAF_POISONED,
        Error::TooLarge { .. } => SHEAF_TOO_LARGE,
        Error::UnsupportedVersion { .. } => SHEAF_UNSUPPORTED_VERSION,
        Error::NotADatabase { .. } => SHEAF_NOT_A_DATABASE,
        Error::NotABackup { .. } => SHEAF_NOT_A_BACKUP,
        Error::Cancelled => SHEAF_CANCELLED,
        Error::DatabaseNotFound { .. } => SHEAF_DATABASE_NOT_FOUND,
        Error::KeyspaceNotFound { .. } => SHEAF_KEYSPACE_NOT_FOUND,
        Error::KeyspaceExists { .. } => SHEAF_KEYSPACE_EXISTS,
        Error::EngineMismatch { .. } => SHEAF_ENGINE_MISMATCH,
        Error::Unsupported { .. } => SHEAF_UNSUPPORTED,
        Error::Conflict { .. } => SHEAF_CONFLICT,
        Error::MemoryBudgetExceeded { .. } => SHEAF_MEMORY_BUDGET_EXCEEDED,
        Error::Busy { .. } => SHEAF_BUSY,
        Error::ChangesTooOld { .. } => SHEAF_CHANGES_TOO_OLD,
        Error::ReadOnly => SHEAF_READ_ONLY,
        Error::Closed => SHEAF_CLOSED,
        Error::InvalidArgument { .. } => SHEAF_INVALID_ARGUMENT,
        _ => SHEAF_OTHER,
    }
}

impl From<&Error> for sheaf_error {
    fn from(error: &Error) -> sheaf_error {
        let object = sheaf_error::new(code_of(error), &error.to_string());
        match error {
            Error::Io { op, path, source } => {
                let object = object.path(path).text(SHEAF_FIELD_OPERATION, op.name());
                match source.raw_os_error().and_then(|number| u64::try_from(number).ok()) {
                    Some(number) => object.number(SHEAF_FIELD_OS_ERROR, number),
                    None => object,
                }
            }
            Error::Corrupt { path, offset, structure, .. } => {
                object.path(path).number(SHEAF_FIELD_OFFSET, *offset).text(SHEAF_FIELD_REASON, structure)
            }
            Error::TooManyFiles { path, limit: Some(limit) } => {
                object.path(path).number(SHEAF_FIELD_LIMIT, *limit)
            }
            Error::FileSizeLimit { path, size, limit } => {
                object.path(path).number(SHEAF_FIELD_FOUND, *size).number(SHEAF_FIELD_LIMIT, *limit)
            }
            Error::Locked { path, pid, program, .. } => object.path(path).process(*pid, program.as_deref()),
            Error::OwnerUnresponsive { path, pid, program, .. } => {
                object.path(path).process(*pid, program.as_deref())
            }
            Error::NoSpace { path }
            | Error::TooManyFiles { path, .. }
            | Error::OwnerClosed { path }
            | Error::DatabaseNotFound { path } => object.path(path),
            Error::UnsupportedVersion { path, found, supported } => {
                object.path(path).number(SHEAF_FIELD_FOUND, *found).number(SHEAF_FIELD_LIMIT, *supported)
            }
            Error::NotADatabase { path, reason } | Error::NotABackup { path, reason } => {
                object.path(path).text(SHEAF_FIELD_REASON, reason)
            }
            Error::Poisoned { cause } => object.text(SHEAF_FIELD_REASON, cause.name()),
            Error::Busy { waiting_for } => object.text(SHEAF_FIELD_REASON, waiting_for.name()),
            Error::TooLarge { object: name, got, max } => object
                .text(SHEAF_FIELD_NAME, name)
                .number(SHEAF_FIELD_FOUND, *got)
                .number(SHEAF_FIELD_LIMIT, *max),
            Error::KeyspaceNotFound { name } | Error::KeyspaceExists { name } => {
                object.text(SHEAF_FIELD_NAME, name)
            }
            Error::EngineMismatch { name, found, .. } => {
                object.text(SHEAF_FIELD_NAME, name).text(SHEAF_FIELD_ENGINE, found)
            }
            Error::Unsupported { engine, feature } => {
                object.text(SHEAF_FIELD_ENGINE, engine).text(SHEAF_FIELD_REASON, feature)
            }
            Error::ChangesTooOld { position, oldest } => {
                object.number(SHEAF_FIELD_FOUND, *position).number(SHEAF_FIELD_LIMIT, *oldest)
            }
            Error::MemoryBudgetExceeded { budget } => object.number(SHEAF_FIELD_LIMIT, *budget),
            Error::InvalidArgument { argument, reason } => {
                object.text(SHEAF_FIELD_NAME, argument).text(SHEAF_FIELD_REASON, reason)
            }
            _ => object,
        }
    }
}

/// Returns the code of an error; `SHEAF_OK` if `error` is NULL.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_error_code(error: Option<&sheaf_error>) -> sheaf_code {
    error.map_or(SHEAF_OK, sheaf_error::code)
}

/// Returns the message of an error as UTF-8 with a NUL byte at its end; an empty text if `error` is
/// NULL. Writes the number of bytes before the NUL byte to `size`, unless that is NULL. The text is
/// valid until the error is freed.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_error_message(
    error: Option<&sheaf_error>,
    size: Option<&mut std::mem::MaybeUninit<usize>>,
) -> *const c_char {
    let message = error.map_or(c"", |error| &error.message);
    if let Some(size) = size {
        size.write(message.to_bytes().len());
    }
    message.as_ptr()
}

/// Returns true and writes the text of a field (`SHEAF_FIELD_*`, 1 to 31), or returns false if the
/// error does not have this field. The text is valid until the error is freed; a path may have any
/// bytes.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_error_text<'a>(
    error: Option<&'a sheaf_error>,
    field: i32,
    text: Option<&mut std::mem::MaybeUninit<sheaf_bytes<'a>>>,
) -> bool {
    let found = error.and_then(|error| error.texts.iter().find(|entry| entry.0 == field));
    write_field(found.map(|entry| sheaf_bytes::of(&entry.1)), text)
}

/// Returns true and writes the number of a field (`SHEAF_FIELD_*`, from 32 on), or returns false if
/// the error does not have this field.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_error_number(
    error: Option<&sheaf_error>,
    field: i32,
    number: Option<&mut std::mem::MaybeUninit<u64>>,
) -> bool {
    let found = error.and_then(|error| error.numbers.iter().find(|entry| entry.0 == field));
    write_field(found.map(|entry| entry.1), number)
}

fn write_field<T>(field: Option<T>, out: Out<'_, T>) -> bool {
    match (field, out) {
        (Some(value), Some(out)) => {
            out.write(value);
            true
        }
        (found, _) => found.is_some(),
    }
}

/// Frees an error. NULL is allowed.
///
/// Threads: any. No other call may use the error.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_error_free(error: Option<Box<sheaf_error>>) {
    boundary::release(error);
}
