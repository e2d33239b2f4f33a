//! # Pinned engine files: an engine's files at one time
//!
//! [`EngineCheckpoint::pin_files`](crate::contract::EngineCheckpoint::pin_files) returns the files
//! that a recovery from the current state would read. They are in the keyspace's directory
//! ([`crate::context::EngineDir`]). A backup copies them; an attached reader opens them.
//!
//! ## Invariants
//!
//! 1. The files are a state that a killed process could have left at that time. They contain no
//!    commit that was not durable then, and all data that the store's newest image requires.
//! 2. The files can be read, and do not change, while the value exists. The engine writes new data
//!    elsewhere.
//! 3. A *fixed* name always has the same bytes. If two pinned states of this keyspace contain the
//!    name with the same length, the content is equal.

use std::path::PathBuf;

use sheaf_platform::disk::Disk;
use sheaf_platform::error::Result;

/// Source of the bytes of a [`PinnedFile`].
pub enum FileSource<'a> {
    /// An empty directory.
    Directory,
    /// The bytes `[at, at + len)` of a file.
    File {
        /// Path of the file.
        path: PathBuf,
        /// Offset of the first byte.
        at: u64,
        /// Number of bytes.
        len: u64,
    },
    /// Bytes in memory.
    Bytes(&'a [u8]),
    /// A function that writes the bytes to a new file with the given path.
    WrittenBy(&'a dyn Fn(&dyn Disk, PathBuf) -> Result<()>),
}

/// Position of a file that is a part of another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePart {
    /// Name of the whole file below the keyspace's directory.
    pub of: String,
    /// Offset of the part in bytes.
    pub offset: u64,
    /// Minimum length of the whole file in bytes.
    pub len: u64,
}

/// One file, or a part of one.
pub struct PinnedFile<'a> {
    /// Name below the keyspace's directory, or the name under which the part is stored.
    pub name: String,
    /// Position in the whole file, if this is a part.
    pub part: Option<FilePart>,
    /// True if the name is fixed (I3).
    pub is_fixed: bool,
    /// Source of the bytes.
    pub source: FileSource<'a>,
}

impl PinnedFile<'_> {
    /// Returns a directory.
    #[must_use]
    pub fn directory(name: impl Into<String>) -> PinnedFile<'static> {
        PinnedFile { name: name.into(), part: None, is_fixed: false, source: FileSource::Directory }
    }
}

/// Pinned files of a keyspace. Dropping the value releases the pin.
pub trait PinnedFiles: Send {
    /// Returns the approximate size of the files in bytes.
    fn bytes(&self) -> u64;
    /// Calls `each` for each file.
    ///
    /// # Errors
    ///
    /// Returns the first error of `each`, and the error of reading the list of files.
    fn for_each(&self, each: &mut dyn FnMut(PinnedFile<'_>) -> Result<()>) -> Result<()>;
    /// Returns true if blob `id` is among the files: a backup need not copy it separately.
    fn has_blob(&self, id: u64) -> bool {
        let _ = id;
        false
    }
}

/// One file up to a length, for engines that never overwrite data that an image refers to.
#[derive(Debug)]
pub struct FilePrefix {
    /// Name in the keyspace's directory.
    pub name: String,
    /// Path of the file.
    pub path: PathBuf,
    /// Number of bytes.
    pub len: u64,
}

impl PinnedFiles for FilePrefix {
    fn bytes(&self) -> u64 {
        self.len
    }

    fn for_each(&self, each: &mut dyn FnMut(PinnedFile<'_>) -> Result<()>) -> Result<()> {
        let source = FileSource::File { path: self.path.clone(), at: 0, len: self.len };
        each(PinnedFile { name: self.name.clone(), part: None, is_fixed: false, source })
    }
}
