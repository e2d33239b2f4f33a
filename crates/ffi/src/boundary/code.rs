//! # Codes: results of functions, and constants of arguments

/// Result of a function. Codes from 10 on are errors with an error object; the codes below are not.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum sheaf_code {
    /// Success.
    SHEAF_OK = 0,
    /// The key, the keyspace or the next pair does not exist. No error object is made.
    SHEAF_NOT_FOUND = 1,
    /// The buffer of the caller is smaller than the value; nothing was copied. No error object is
    /// made.
    SHEAF_BUFFER_TOO_SMALL = 2,
    /// An argument is NULL, out of range, or does not fit to the others.
    SHEAF_INVALID_ARGUMENT = 10,
    /// The database was closed, or the process is a forked child.
    SHEAF_CLOSED = 11,
    /// The database was opened for reading only, or the keyspace belongs to a snapshot.
    SHEAF_READ_ONLY = 12,
    /// An expectation does not hold. Nothing was written.
    SHEAF_CONFLICT = 13,
    /// The write would have to wait for background work. Nothing was written.
    SHEAF_BUSY = 14,
    /// A callback cancelled the operation.
    SHEAF_CANCELLED = 15,
    /// A key, a value or a batch exceeds its limit.
    SHEAF_TOO_LARGE = 16,
    /// The engine does not support the operation.
    SHEAF_UNSUPPORTED = 17,
    /// The keyspace does not exist.
    SHEAF_KEYSPACE_NOT_FOUND = 18,
    /// The keyspace exists already.
    SHEAF_KEYSPACE_EXISTS = 19,
    /// The keyspace has another engine, or another value of an option.
    SHEAF_ENGINE_MISMATCH = 20,
    /// There is no database at the path.
    SHEAF_DATABASE_NOT_FOUND = 21,
    /// The directory contains other files.
    SHEAF_NOT_A_DATABASE = 22,
    /// The directory is not a complete backup.
    SHEAF_NOT_A_BACKUP = 23,
    /// This build does not support the format version.
    SHEAF_UNSUPPORTED_VERSION = 24,
    /// Another process or handle has the database open.
    SHEAF_LOCKED = 25,
    /// The process that has the database open closed it or ended.
    SHEAF_OWNER_CLOSED = 26,
    /// The process that has the database open does not answer.
    SHEAF_OWNER_UNRESPONSIVE = 27,
    /// The memory budget has no room for more keys.
    SHEAF_MEMORY_BUDGET_EXCEEDED = 28,
    /// The changes after a position of the change feed are no longer retained.
    SHEAF_CHANGES_TOO_OLD = 29,
    /// The operating system failed an operation.
    SHEAF_IO = 40,
    /// The disk is full.
    SHEAF_NO_SPACE = 41,
    /// No file descriptor is left.
    SHEAF_TOO_MANY_FILES = 42,
    /// A file would exceed the limit of the process on the size of files.
    SHEAF_FILE_SIZE_LIMIT = 43,
    /// Stored bytes are damaged.
    SHEAF_CORRUPT = 44,
    /// The database refuses writes after a failed sync. Close it and open it again.
    SHEAF_POISONED = 45,
    /// Another call uses the handle, in another thread or around a callback.
    SHEAF_HANDLE_IN_USE = 60,
    /// A bug: the library panicked. The message has the reason. Close the database.
    SHEAF_PANIC = 61,
    /// An error without a code of its own; the message has the reason.
    SHEAF_OTHER = 62,
}

/// Moment when a commit is acknowledged.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum sheaf_durability {
    /// When the commit survives the end of the process. The device has it about 100 ms later.
    SHEAF_DURABILITY_BUFFER = 1,
    /// When the commit is on the device.
    SHEAF_DURABILITY_SYNC = 2,
}

/// Field of an error object.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum sheaf_error_field {
    /// Text: path of the file or directory.
    SHEAF_FIELD_PATH = 1,
    /// Text: name of the keyspace, the argument, or the object that is too large.
    SHEAF_FIELD_NAME = 2,
    /// Text: the failed operation, for example `read` or `sync`.
    SHEAF_FIELD_OPERATION = 3,
    /// Text: the damaged structure, the missing feature, the cause or the reason.
    SHEAF_FIELD_REASON = 4,
    /// Text: name of the engine.
    SHEAF_FIELD_ENGINE = 5,
    /// Text: name of the program that has the database open.
    SHEAF_FIELD_PROGRAM = 6,
    /// Number: offset of the damage in bytes.
    SHEAF_FIELD_OFFSET = 32,
    /// Number: error number of the operating system (`errno`).
    SHEAF_FIELD_OS_ERROR = 33,
    /// Number: id of the process that has the database open.
    SHEAF_FIELD_PID = 34,
    /// Number: the size or version that was found, or the commit of the position.
    SHEAF_FIELD_FOUND = 35,
    /// Number: the largest permitted size, the limit, the supported version, or the commit of the
    /// oldest position.
    SHEAF_FIELD_LIMIT = 36,
}

/// Files in persistent memory.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum sheaf_persistent_memory {
    /// Files on a disk (default).
    SHEAF_PERSISTENT_MEMORY_OFF = 0,
    /// Files on a DAX file system in persistent memory.
    SHEAF_PERSISTENT_MEMORY_DAX = 1,
    /// Any file system, with the same code; for tests.
    SHEAF_PERSISTENT_MEMORY_SUBSTITUTE = 2,
}

/// Pairs that a keyspace has before a bulk load.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum sheaf_load_mode {
    /// The keyspace must not exist, or must be empty (default).
    SHEAF_LOAD_EMPTY = 0,
    /// The load discards the pairs of the keyspace.
    SHEAF_LOAD_REPLACE = 1,
    /// The keyspace keeps its pairs; a loaded pair replaces the one with the same key.
    SHEAF_LOAD_KEEP = 2,
}

/// Phase of a long operation, for its progress callback.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum sheaf_phase {
    /// Copies data. Backup, restore and repair count bytes, a conversion counts pairs.
    SHEAF_PHASE_COPYING = 0,
    /// Reads the copy back and verifies it; counts bytes.
    SHEAF_PHASE_VERIFYING = 1,
    /// Copies the pairs that were written during the conversion; counts pairs.
    SHEAF_PHASE_CATCHING_UP = 2,
    /// Finished.
    SHEAF_PHASE_DONE = 3,
}

/// Answer of a callback of `sheaf_update`.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum sheaf_change {
    /// Sets the key to the bytes that were appended to the new value.
    SHEAF_CHANGE_SET = 0,
    /// Removes the key.
    SHEAF_CHANGE_REMOVE = 1,
    /// Changes nothing; the call returns `SHEAF_CANCELLED`.
    SHEAF_CHANGE_CANCEL = 2,
}

/// Kind of a change in the change feed.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum sheaf_change_kind {
    /// A kind that this version of the interface does not know.
    SHEAF_CHANGE_KIND_OTHER = 0,
    /// A key got a value.
    SHEAF_CHANGE_KIND_PUT = 1,
    /// A key was removed.
    SHEAF_CHANGE_KIND_REMOVED = 2,
    /// All keys of a range were removed.
    SHEAF_CHANGE_KIND_RANGE_REMOVED = 3,
    /// An expired pair was removed.
    SHEAF_CHANGE_KIND_EXPIRED = 4,
    /// The keyspace was created.
    SHEAF_CHANGE_KIND_CREATED = 5,
    /// All pairs of the keyspace were removed.
    SHEAF_CHANGE_KIND_CLEARED = 6,
    /// A bulk load replaced the pairs. They are not in the feed: copy them from a snapshot.
    SHEAF_CHANGE_KIND_LOADED = 7,
    /// The keyspace was moved to another engine or other options. The pairs are the same.
    SHEAF_CHANGE_KIND_CONVERTED = 8,
    /// The keyspace was dropped.
    SHEAF_CHANGE_KIND_DROPPED = 9,
    /// The keyspace got another name, the end of the change.
    SHEAF_CHANGE_KIND_RENAMED = 10,
}
