//! # Tree: a new directory, filled file by file and made durable as a whole
//!
//! Where the volume can be synced as a whole it is, once; elsewhere each file and each directory. What is written goes on its way
//! in the midst, so that the kernel does not gather gigabytes that other syncs would have to wait for.
//!
//! Long runs go past the page cache: nobody reads a backup soon, and what the database reads stays there.
//!
//! A block of zeros is not written: the copy of a file with holes has them too.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Meter, PIECE};
use crate::disk::{Disk, File, How, PAGE, Volume};
use crate::error::{Damage, Error, IoContext, Result};
use crate::target::Target;

/// What is written goes on its way after so many bytes.
const SENT: u64 = 8 << 20;
/// From this length on a run is written directly: each such write waits for the device.
const DIRECT: usize = 256 << 10;
/// Zeros of this length, at a multiple of it, become a hole.
const BLOCK: usize = 64 << 10;
static ZEROS: [u8; BLOCK] = [0; BLOCK];

/// A directory on its way. What was made in it goes if this is dropped before it is kept.
pub(super) struct Tree<'a> {
    disk: &'a dyn Disk,
    root: PathBuf,
    target: Target<'a>,
    volume: Option<Arc<dyn Volume>>,
    /// Those made, below the root.
    dirs: BTreeSet<PathBuf>,
    buffer: Buffer,
}

/// A piece of a file on its way, at a multiple of a page in memory.
struct Buffer {
    memory: Vec<u8>,
    from: usize,
}

impl Buffer {
    fn new() -> Buffer {
        let memory = vec![0; PIECE + PAGE];
        let from = memory.as_ptr().align_offset(PAGE).min(PAGE);
        Buffer { memory, from }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.from..][..PIECE]
    }
}

/// Bytes of a file.
pub(super) struct Range<'a> {
    pub(super) file: &'a dyn File,
    pub(super) path: &'a Path,
    pub(super) at: u64,
    pub(super) len: u64,
}

impl<'a> Tree<'a> {
    /// Begins to fill `target`.
    pub(super) fn new(disk: &'a dyn Disk, target: Target<'a>) -> Tree<'a> {
        let root = target.dir().to_path_buf();
        disk.spread(&root); // an older backup may have been removed a moment ago
        let (volume, dirs, buffer) = (disk.volume(&root).ok(), BTreeSet::new(), Buffer::new());
        Tree { disk, root, target, volume, dirs, buffer }
    }

    /// The directory.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// All of it is there.
    pub(super) fn keep(self) -> Result<()> {
        self.target.keep()
    }

    /// A file of that name was made just now.
    pub(super) fn made(&mut self, name: &Path) {
        self.target.made(name);
    }

    /// What it has is a database's from now on.
    pub(super) fn becomes_database(&mut self) {
        self.target.becomes_database();
    }

    /// Makes the directory `name` and those above it, if they are not there.
    pub(super) fn dir(&mut self, name: &Path) -> Result<()> {
        if name.as_os_str().is_empty() || self.dirs.contains(name) {
            return Ok(());
        }
        if let Some(above) = name.parent() {
            self.dir(above)?;
        }
        let path = self.root.join(name);
        self.disk.create_dir(&path).during("create", &path)?;
        self.target.made(name);
        self.dirs.insert(name.to_path_buf());
        Ok(())
    }

    /// Where `name` is, with its directory made.
    pub(super) fn place(&mut self, name: &Path) -> Result<PathBuf> {
        self.dir(name.parent().unwrap_or(Path::new("")))?;
        Ok(self.root.join(name))
    }

    /// Copies `from` to `at` of `to`; what the bytes sum to.
    pub(super) fn pour(&mut self, from: &Range<'_>, to: &Range<'_>, meter: &mut Meter<'_>) -> Result<u32> {
        let (mut sent, mut written) = (0, 0);
        let sum = read_all(from, self.buffer.bytes(), |at, bytes| {
            written = to.at + at + write_data(to.file, to.at + at, bytes).during("write", to.path)?;
            if at + bytes.len() as u64 >= sent + SENT {
                sent = at + bytes.len() as u64;
                to.file.start_sync();
            }
            meter.tick(bytes.len() as u64)
        })?;
        if to.len > written && to.len > to.file.len().during("measure", to.path)? {
            to.file.set_len(to.len).during("extend", to.path)?;
        }
        self.written(to.file, to.path)?;
        Ok(sum)
    }

    /// What a file's bytes sum to.
    pub(super) fn sum(&mut self, from: &Range<'_>, meter: &mut Meter<'_>) -> Result<u32> {
        read_all(from, self.buffer.bytes(), |_, bytes| meter.tick(bytes.len() as u64))
    }

    /// A file is written, in the kernel.
    pub(super) fn written(&self, file: &dyn File, path: &Path) -> Result<()> {
        match &self.volume {
            Some(_) => Ok(()),
            None => file.sync().during("sync", path),
        }
    }

    /// Makes everything durable.
    pub(super) fn settle(&self) -> Result<()> {
        if let Some(volume) = &self.volume {
            return volume.sync().during("sync", &self.root);
        }
        let inside = self.dirs.iter().map(|dir| self.root.join(dir));
        inside
            .chain([self.root.clone()])
            .try_for_each(|dir| self.disk.sync_dir(&dir).during("sync directory", &dir))
    }
}

/// Writes `bytes` but for blocks of zeros; how many bytes reach to the end of the last block written.
fn write_data(file: &dyn File, at: u64, bytes: &[u8]) -> std::io::Result<u64> {
    let (mut from, mut written) = (0, 0);
    while from < bytes.len() {
        let is_hole = |at: usize| {
            let block = &bytes[at..bytes.len().min(at + BLOCK)];
            *block == ZEROS[..block.len()]
        };
        let mut to = from;
        while to < bytes.len() && !is_hole(to) {
            to = bytes.len().min(to + BLOCK);
        }
        if to > from {
            let (at, bytes) = (at + from as u64, &bytes[from..to]);
            if bytes.len() < DIRECT {
                file.write_at(at, bytes)?
            } else {
                file.write_direct(at, bytes)?
            }
            written = to as u64;
        }
        from = if to == from { from + BLOCK } else { to };
    }
    Ok(written)
}

/// Hands all bytes to `each`, piece by piece, with where they stand in the range; their sum.
fn read_all(
    from: &Range<'_>,
    buffer: &mut [u8],
    mut each: impl FnMut(u64, &[u8]) -> Result<()>,
) -> Result<u32> {
    let (mut at, mut sum) = (0, 0);
    while at < from.len {
        let len = usize::try_from(from.len - at).map_or(PIECE, |left| left.min(PIECE));
        let bytes = &mut buffer[..len];
        if let Some(got) = crate::disk::fill(from.file, from.at + at, bytes).during("read", from.path)? {
            let expected = from.at + from.len;
            return Err(Error::corrupt(from.path, got, Damage::Short { got, expected }));
        }
        sum = crc32c::crc32c_append(sum, bytes);
        each(at, bytes)?;
        at += len as u64;
    }
    Ok(sum)
}

/// Opens a file that must be there.
pub(super) fn open(disk: &dyn Disk, path: &Path) -> Result<Arc<dyn File>> {
    match disk.open(path, How::Read) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            Err(Error::corrupt(path, 0, Damage::Short { got: 0, expected: 1 }))
        }
        other => other.during("open", path),
    }
}
