//! # Output tree: a new directory that is filled file by file and made durable as a whole
//!
//! If the file system supports it, one sync of the volume makes everything durable. Otherwise each
//! file and each directory is synced.
//!
//! ## Costs
//!
//! - Writeback of a file starts after every [`WRITEBACK_BYTES`]. Otherwise the kernel would gather
//!   gigabytes of dirty pages, for which other syncs would have to wait.
//! - Long runs bypass the page cache: a backup is not read soon, and the cached pages of the
//!   database stay in memory.
//! - A block of zeros is not written: the copy of a file with holes has holes too.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{COPY_CHUNK, ProgressMeter};
use crate::backup::output_dir::OutputDir;
use sheaf_platform::disk::{Disk, File, OpenMode, PAGE, Volume};
use sheaf_platform::error::{Damage, Error, IoContext, IoOp, Result};

/// Writeback starts after this many bytes.
const WRITEBACK_BYTES: u64 = 8 << 20;
/// Minimum length of a direct write. Each direct write waits for the device, so short ones are too
/// slow.
const MIN_DIRECT_BYTES: usize = 256 << 10;
/// A run of zeros of this length becomes a hole, if its offset is a multiple of the length.
const HOLE_BYTES: usize = 64 << 10;
static ZEROS: [u8; HOLE_BYTES] = [0; HOLE_BYTES];

/// Directory that is being filled. If it is dropped before [`OutputTree::finish`], its content is
/// removed.
pub(super) struct OutputTree<'a> {
    disk: &'a dyn Disk,
    root: PathBuf,
    output_dir: OutputDir<'a>,
    volume: Option<Arc<dyn Volume>>,
    /// Directories that were created, relative to the root.
    dirs: BTreeSet<PathBuf>,
    buffer: AlignedBuffer,
}

/// Copy buffer, aligned to a page in memory.
struct AlignedBuffer {
    memory: Vec<u8>,
    from: usize,
}

impl AlignedBuffer {
    fn new() -> AlignedBuffer {
        let memory = vec![0; COPY_CHUNK + PAGE];
        let from = memory.as_ptr().align_offset(PAGE).min(PAGE);
        AlignedBuffer { memory, from }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.from..][..COPY_CHUNK]
    }
}

/// Range of bytes of a file.
pub(super) struct FileRange<'a> {
    pub(super) file: &'a dyn File,
    pub(super) path: &'a Path,
    pub(super) offset: u64,
    pub(super) len: u64,
}

impl<'a> OutputTree<'a> {
    /// Starts to fill `target`.
    pub(super) fn new(disk: &'a dyn Disk, target: OutputDir<'a>) -> OutputTree<'a> {
        let root = target.dir().to_path_buf();
        disk.spread_dirs(&root); // creating files is slow where an older backup was just removed
        let (volume, dirs, buffer) = (disk.volume(&root).ok(), BTreeSet::new(), AlignedBuffer::new());
        OutputTree { disk, root, output_dir: target, volume, dirs, buffer }
    }

    /// Returns the path of the directory.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Keeps the content: everything is written and durable.
    pub(super) fn finish(self) -> Result<()> {
        self.output_dir.finish()
    }

    /// Records that this process created the file `name`; a failure removes it.
    pub(super) fn note_created(&mut self, name: &Path) {
        self.output_dir.note_created(name);
    }

    /// Records that database files are created from now on; a failure removes them too.
    pub(super) fn begin_database(&mut self) {
        self.output_dir.begin_database();
    }

    /// Creates the directory `name` and its missing parents.
    pub(super) fn create_dir(&mut self, name: &Path) -> Result<()> {
        if name.as_os_str().is_empty() || self.dirs.contains(name) {
            return Ok(());
        }
        if let Some(above) = name.parent() {
            self.create_dir(above)?;
        }
        let path = self.root.join(name);
        self.disk.create_dir(&path).during(IoOp::Create, &path)?;
        self.output_dir.note_created(name);
        self.dirs.insert(name.to_path_buf());
        Ok(())
    }

    /// Creates the directory that contains `name`, and returns the path of `name`.
    pub(super) fn create_parent(&mut self, name: &Path) -> Result<PathBuf> {
        self.create_dir(name.parent().unwrap_or(Path::new("")))?;
        Ok(self.root.join(name))
    }

    /// Opens the file `name` for writing; creates it unless an earlier entry, a part of the same
    /// file, has created it. Returns it with its path.
    pub(super) fn open_file(&mut self, name: &Path) -> Result<(Arc<dyn File>, PathBuf)> {
        let path = self.create_parent(name)?;
        let file = match self.disk.open(&path, OpenMode::Create) {
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
                self.disk.open(&path, OpenMode::ReadWrite)
            }
            other => other.inspect(|_| self.note_created(name)),
        };
        Ok((file.during(IoOp::Create, &path)?, path))
    }

    /// Copies `from` to offset `to.offset` of `to`, extends the file to at least `to.len` bytes,
    /// and returns the checksum of the bytes.
    pub(super) fn copy_range(
        &mut self,
        from: &FileRange<'_>,
        to: &FileRange<'_>,
        meter: &mut ProgressMeter<'_>,
    ) -> Result<u32> {
        let (mut sent, mut written) = (0, 0);
        let sum = read_all(from, self.buffer.bytes(), |at, bytes| {
            written =
                to.offset + at + write_data(to.file, to.offset + at, bytes).during(IoOp::Write, to.path)?;
            if at + bytes.len() as u64 >= sent + WRITEBACK_BYTES {
                sent = at + bytes.len() as u64;
                to.file.start_sync();
            }
            meter.add_bytes(bytes.len() as u64)
        })?;
        if to.len > written && to.len > to.file.len().during(IoOp::Measure, to.path)? {
            to.file.set_len(to.len).during(IoOp::Extend, to.path)?;
        }
        self.finish_file(to.file, to.path)?;
        Ok(sum)
    }

    /// Returns the checksum of the bytes in `from`.
    pub(super) fn checksum(&mut self, from: &FileRange<'_>, meter: &mut ProgressMeter<'_>) -> Result<u32> {
        read_all(from, self.buffer.bytes(), |_, bytes| meter.add_bytes(bytes.len() as u64))
    }

    /// Syncs a file that is completely written, unless the volume is synced as a whole later.
    pub(super) fn finish_file(&self, file: &dyn File, path: &Path) -> Result<()> {
        match &self.volume {
            Some(_) => Ok(()),
            None => file.sync().during(IoOp::Sync, path),
        }
    }

    /// Makes everything durable.
    pub(super) fn sync_all(&self) -> Result<()> {
        if let Some(volume) = &self.volume {
            return volume.sync().during(IoOp::Sync, &self.root);
        }
        let inside = self.dirs.iter().map(|dir| self.root.join(dir));
        inside
            .chain([self.root.clone()])
            .try_for_each(|dir| self.disk.sync_dir(&dir).during(IoOp::SyncDirectory, &dir))
    }
}

/// Writes `bytes` except blocks of zeros. Returns the end of the last written block, relative to
/// `at`.
fn write_data(file: &dyn File, at: u64, bytes: &[u8]) -> std::io::Result<u64> {
    let (mut from, mut written) = (0, 0);
    while from < bytes.len() {
        let is_hole = |at: usize| {
            let block = &bytes[at..bytes.len().min(at + HOLE_BYTES)];
            *block == ZEROS[..block.len()]
        };
        let mut to = from;
        while to < bytes.len() && !is_hole(to) {
            to = bytes.len().min(to + HOLE_BYTES);
        }
        if to > from {
            let (at, bytes) = (at + from as u64, &bytes[from..to]);
            if bytes.len() < MIN_DIRECT_BYTES {
                file.write_at(at, bytes)?
            } else {
                file.write_direct(at, bytes)?
            }
            written = to as u64;
        }
        from = if to == from { from + HOLE_BYTES } else { to };
    }
    Ok(written)
}

/// Passes all bytes to `each`, piece by piece, with the offset within the range. Returns their
/// checksum.
fn read_all(
    from: &FileRange<'_>,
    buffer: &mut [u8],
    mut each: impl FnMut(u64, &[u8]) -> Result<()>,
) -> Result<u32> {
    let (mut at, mut sum) = (0, 0);
    while at < from.len {
        let len = usize::try_from(from.len - at).map_or(COPY_CHUNK, |left| left.min(COPY_CHUNK));
        let bytes = &mut buffer[..len];
        if let Some(got) = sheaf_platform::disk::read_up_to_end(from.file, from.offset + at, bytes)
            .during(IoOp::Read, from.path)?
        {
            let expected = from.offset + from.len;
            return Err(Error::corrupt(from.path, got, "file", Damage::Truncated { got, expected }));
        }
        sum = crc32c::crc32c_append(sum, bytes);
        each(at, bytes)?;
        at += len as u64;
    }
    Ok(sum)
}

/// Opens a file that must exist; a missing file is reported as damage.
pub(super) fn open(disk: &dyn Disk, path: &Path) -> Result<Arc<dyn File>> {
    match disk.open(path, OpenMode::Read) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Err(Error::missing_file(path, "file")),
        other => other.during(IoOp::Open, path),
    }
}
