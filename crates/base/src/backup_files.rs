//! # Own: an engine's files as of one moment
//!
//! What [`Engine::pin_files`](crate::engine::Engine::pin_files) gives a backup: the files of the
//! keyspace's directory ([`crate::engine_context::EngineDir`]) that a recovery from this moment
//! would read, and nothing else.
//!
//! ## Invariants
//!
//! 1. What is handed out is a state that a killed process could have left at that moment. It holds
//!    nothing that the store was not certain of then, and everything that the store's newest image
//!    says it holds.
//! 2. It can be read, and stays as it is, while the value lives. What else the engine writes
//!    meanwhile goes elsewhere.
//! 3. A name that is *fixed* means these bytes for ever, in whatever later moment of this keyspace
//!    it is handed out again with the same length.

use std::path::PathBuf;

use crate::disk::Disk;
use crate::error::Result;

/// Where the bytes of an [`PinnedFile`] are.
pub enum FileSource<'a> {
    /// It is a directory, and need not be more.
    Directory,
    /// A file's bytes `[at, at + len)`.
    File {
        /// Of which file.
        path: PathBuf,
        /// From where on.
        at: u64,
        /// How many.
        len: u64,
    },
    /// These.
    Bytes(&'a [u8]),
    /// They are written to the new file of that name, by whoever is called.
    WrittenBy(&'a dyn Fn(&dyn Disk, PathBuf) -> Result<()>),
}

/// That a file is a part of another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePart {
    /// Of which one, below the keyspace's directory.
    pub of: String,
    /// Where in it.
    pub offset: u64,
    /// How long that is at least.
    pub len: u64,
}

/// One file, or a part of one.
pub struct PinnedFile<'a> {
    /// Its name below the keyspace's directory, or the name that the part is kept under.
    pub name: String,
    /// If it is a part.
    pub part: Option<FilePart>,
    /// The name is fixed (own I3).
    pub is_fixed: bool,
    /// Its bytes.
    pub source: FileSource<'a>,
}

impl PinnedFile<'_> {
    /// A directory.
    #[must_use]
    pub fn directory(name: impl Into<String>) -> PinnedFile<'static> {
        PinnedFile { name: name.into(), part: None, is_fixed: false, source: FileSource::Directory }
    }
}

/// The files of a keyspace as of one moment. Dropped, it lets go what it held.
pub trait PinnedFiles: Send {
    /// About how many bytes they have.
    fn bytes(&self) -> u64;
    /// Hands each of them to `each`.
    fn for_each(&self, each: &mut dyn FnMut(PinnedFile<'_>) -> Result<()>) -> Result<()>;
    /// Whether staged value `id` is among them: it need not be looked for among the others.
    fn has_blob(&self, id: u64) -> bool {
        let _ = id;
        false
    }
}

/// One file, up to a length: for engines that never write again what an image names.
#[derive(Debug)]
pub struct FilePrefix {
    /// Its name in the keyspace's directory.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// How many bytes.
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
