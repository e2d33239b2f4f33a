//! # Manifest: BACKUP, the list of the files of a backup
//!
//! docs/format/backup.md specifies the bytes. The manifest is written and read as a stream, since a
//! database may have millions of files. The checksum of all bytes is verified before any of them is
//! used.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sheaf_log::double_slot::DoubleSlotState;
use sheaf_log::root::{FORMAT, Root};
use sheaf_platform::codec::{FieldReader, FieldWriter, u32_at, u64_at, utf8};
use sheaf_platform::disk::exported::is_inside;
use sheaf_platform::disk::{Disk, File, OpenMode};
use sheaf_platform::error::{Damage, Error, IoContext, IoOp, Result};

/// Name of the manifest.
pub const MANIFEST_FILE: &str = "BACKUP";
/// Name of the manifest until the backup is complete.
pub(crate) const MANIFEST_TEMP_FILE: &str = "BACKUP.new";

const MAGIC: &[u8; 8] = b"SHEAFBAK";
/// Bytes of the head: magic, format version, length of ROOT's body.
const HEAD_BYTES: usize = 16;
/// Bytes of the foot: entries, files, bytes, checksum.
const FOOT_BYTES: usize = 28;
/// Bytes that are written or read at a time.
const BUFFER_BYTES: usize = 64 << 10;
/// Longest entry: two names and the other fields.
const MAX_ENTRY_BYTES: usize = 2 * 4096 + 64;

const DIRECTORY: u8 = 1;
const FILE: u8 = 2;
const IMMUTABLE: u8 = 4;

/// Entry of the manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ManifestEntry {
    /// A directory of the database.
    Directory(PathBuf),
    /// A file.
    File(ManifestFile),
}

/// A file of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ManifestFile {
    /// Path relative to the backup's directory.
    pub(super) name: PathBuf,
    /// File of the database that contains the bytes.
    pub(super) database_name: PathBuf,
    /// Offset of the bytes in that file.
    pub(super) offset: u64,
    /// Least length of that file.
    pub(super) min_len: u64,
    /// Number of bytes, and their checksum.
    pub(super) len: u64,
    pub(super) checksum: u32,
    /// True if no other bytes ever get this name.
    pub(super) is_immutable: bool,
}

impl ManifestFile {
    /// Returns the least length of the file of the database with these bytes.
    pub(super) fn database_len(&self) -> u64 {
        self.min_len.max(self.offset + self.len)
    }
}

impl ManifestEntry {
    fn encode(&self, w: &mut FieldWriter) {
        let text = |w: &mut FieldWriter, path: &Path| w.bytes(path.to_str().unwrap_or_default().as_bytes());
        match self {
            ManifestEntry::Directory(name) => {
                w.u8(DIRECTORY);
                text(w, name);
            }
            ManifestEntry::File(file) => {
                w.u8(FILE | if file.is_immutable { IMMUTABLE } else { 0 });
                text(w, &file.name);
                text(w, if file.database_name == file.name { Path::new("") } else { &file.database_name });
                w.u64(file.offset);
                w.u64(file.min_len);
                w.u64(file.len);
                w.u32(file.checksum);
            }
        }
    }

    fn decode(r: &mut FieldReader<'_>) -> Result<ManifestEntry, Damage> {
        let path = |r: &mut FieldReader<'_>| {
            let bytes = r.bytes()?;
            let name = utf8("name", bytes)?;
            match name.is_empty() || is_inside(Path::new(name)) {
                true => Ok(PathBuf::from(name)),
                false => Err(Damage::bad_field("bytes of a name", "a path inside", bytes.len() as u64)),
            }
        };
        let kind = r.u8()?;
        let name = path(r)?;
        if name.as_os_str().is_empty() {
            return Err(Damage::bad_field("bytes of a name", 1.., 0));
        }
        match kind {
            DIRECTORY => Ok(ManifestEntry::Directory(name)),
            _ if kind & !IMMUTABLE == FILE => {
                let target = path(r)?;
                let target = if target.as_os_str().is_empty() { name.clone() } else { target };
                let (at, whole, len, sum) = (r.u64()?, r.u64()?, r.u64()?, r.u32()?);
                if at.checked_add(len).is_none() {
                    return Err(Damage::bad_field("offset", ..=u64::MAX - len, at));
                }
                Ok(ManifestEntry::File(ManifestFile {
                    name,
                    database_name: target,
                    offset: at,
                    min_len: whole,
                    len,
                    checksum: sum,
                    is_immutable: kind & IMMUTABLE != 0,
                }))
            }
            _ => Err(Damage::bad_field("kind", "a directory or a file", u64::from(kind))),
        }
    }
}

/// Manifest that is being written.
pub(super) struct ManifestWriter {
    path: PathBuf,
    file: Arc<dyn File>,
    chunk: FieldWriter,
    offset: u64,
    checksum: u32,
    entries: u64,
    files: u64,
    bytes: u64,
}

impl ManifestWriter {
    /// Starts a manifest in `file`, which was created in `dir`. `root` is the content of ROOT after
    /// a restore.
    pub(super) fn new(file: Arc<dyn File>, dir: &Path, root: &Root) -> ManifestWriter {
        let path = dir.join(MANIFEST_TEMP_FILE);
        let body = root.encode();
        let mut chunk = FieldWriter::default();
        chunk.0.extend_from_slice(MAGIC);
        chunk.u32(root.version()); // version of the body that follows
        chunk.bytes(&body);
        ManifestWriter { path, file, chunk, offset: 0, checksum: 0, entries: 0, files: 0, bytes: 0 }
    }

    /// Appends an entry.
    pub(crate) fn add(&mut self, entry: &ManifestEntry) -> Result<()> {
        entry.encode(&mut self.chunk);
        self.entries += 1;
        if let ManifestEntry::File(file) = entry {
            self.files += 1;
            self.bytes += file.len;
        }
        if self.chunk.0.len() >= BUFFER_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        self.file.write_at(self.offset, &self.chunk.0).during(IoOp::Write, &self.path)?;
        self.checksum = crc32c::crc32c_append(self.checksum, &self.chunk.0);
        self.offset += self.chunk.0.len() as u64;
        self.chunk.0.clear();
        Ok(())
    }

    /// Writes the foot and syncs the file, which keeps its temporary name.
    pub(super) fn finish(mut self) -> Result<()> {
        self.chunk.u64(self.entries);
        self.chunk.u64(self.files);
        self.chunk.u64(self.bytes);
        self.flush()?;
        let sum = self.checksum;
        self.chunk.u32(sum);
        self.flush()?;
        self.file.sync().during(IoOp::Sync, &self.path)
    }
}

/// Manifest that was read completely and has a valid checksum.
pub(super) struct Manifest {
    path: PathBuf,
    file: Arc<dyn File>,
    pub(super) root: Root,
    /// Range of the entries in the file, and their number.
    from: u64,
    to: u64,
    entries: u64,
    pub(super) files: u64,
    pub(super) bytes: u64,
}

impl Manifest {
    /// Opens the manifest of the backup in `dir`.
    pub(super) fn open(disk: &dyn Disk, dir: &Path) -> Result<Manifest> {
        let why = |why: &str| Error::NotABackup { path: dir.to_path_buf(), reason: why.to_owned() };
        match disk.open(&dir.join(MANIFEST_FILE), OpenMode::Read) {
            Err(e)
                if matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) =>
            {
                match disk.open(&dir.join(MANIFEST_TEMP_FILE), OpenMode::Read) {
                    Ok(_) => Err(why(
                        "it is an unfinished backup; if no backup is running, remove it and make a new one",
                    )),
                    Err(_) if disk.list(dir).is_err() => Err(why("there is no directory with this name")),
                    Err(_) => Err(why("there is no file BACKUP in it")),
                }
            }
            file => {
                Manifest::read(file.during(IoOp::Open, &dir.join(MANIFEST_FILE))?, dir.join(MANIFEST_FILE))
            }
        }
    }

    /// Opens the manifest of a backup that is about to be completed.
    pub(super) fn open_unfinished(disk: &dyn Disk, dir: &Path) -> Result<Manifest> {
        let path = dir.join(MANIFEST_TEMP_FILE);
        Manifest::read(disk.open(&path, OpenMode::Read).during(IoOp::Open, &path)?, path)
    }

    fn read(file: Arc<dyn File>, path: PathBuf) -> Result<Manifest> {
        let len = file.len().during(IoOp::Measure, &path)?;
        let least = (HEAD_BYTES + FOOT_BYTES) as u64;
        if len < least {
            return Err(Error::corrupt(
                &path,
                0,
                "manifest",
                Damage::Truncated { got: len, expected: least },
            ));
        }
        let mut input = ManifestInput::new(&*file, &path, 0, len - 4);
        while input.read_more(BUFFER_BYTES)? {
            input.consume(input.rest().len());
        }
        let mut foot = [0; FOOT_BYTES];
        file.read_at(len - FOOT_BYTES as u64, &mut foot).during(IoOp::Read, &path)?;
        let (expected, got) = (u32_at(&foot, FOOT_BYTES - 4), input.checksum);
        if expected != got {
            return Err(Error::corrupt(&path, len - 4, "manifest", Damage::BadChecksum { expected, got }));
        }
        let mut head = [0; HEAD_BYTES];
        file.read_at(0, &mut head).during(IoOp::Read, &path)?;
        if &head[..8] != MAGIC {
            return Err(Error::corrupt(&path, 0, "manifest header", Damage::bad_magic(MAGIC, &head)));
        }
        let found = u32_at(&head, 8);
        if !(FORMAT..=Root::NEWEST_VERSION).contains(&found) {
            return Err(Error::UnsupportedVersion { path, found, supported: Root::NEWEST_VERSION });
        }
        let (from, to) = (HEAD_BYTES as u64 + u64::from(u32_at(&head, 12)), len - FOOT_BYTES as u64);
        if from > to {
            return Err(Error::corrupt(
                &path,
                12,
                "manifest header",
                Damage::BadLength { got: from, max: to },
            ));
        }
        let mut body = vec![0; usize::try_from(from).unwrap_or(usize::MAX) - HEAD_BYTES];
        file.read_at(HEAD_BYTES as u64, &mut body).during(IoOp::Read, &path)?;
        let root = Root::decode(&body)
            .map_err(|what| Error::corrupt(&path, HEAD_BYTES as u64, "manifest body", what))?;
        let [entries, files, bytes] = [0, 8, 16].map(|at| u64_at(&foot, at));
        Ok(Manifest { path, file, root, from, to, entries, files, bytes })
    }

    /// Passes all entries to `each`, in order.
    pub(super) fn for_each(&self, mut each: impl FnMut(ManifestEntry) -> Result<()>) -> Result<()> {
        let mut input = ManifestInput::new(&*self.file, &self.path, self.from, self.to);
        for _ in 0..self.entries {
            while input.rest().len() < MAX_ENTRY_BYTES && input.read_more(BUFFER_BYTES)? {}
            let mut r = FieldReader::new(input.rest());
            let entry = ManifestEntry::decode(&mut r)
                .map_err(|what| Error::corrupt(&self.path, input.position(), "manifest entry", what))?;
            let taken = input.rest().len() - r.rest().len();
            input.consume(taken);
            each(entry)?;
        }
        match input.rest().len() {
            0 if input.offset == self.to => Ok(()),
            left => {
                let what = Damage::bad_field("bytes behind the entries", 0, left as u64);
                Err(Error::corrupt(&self.path, input.position(), "manifest entry", what))
            }
        }
    }
}

/// Sequential reader of a file.
struct ManifestInput<'a> {
    file: &'a dyn File,
    path: &'a Path,
    offset: u64,
    end: u64,
    buffer: Vec<u8>,
    consumed: usize,
    checksum: u32,
}

impl<'a> ManifestInput<'a> {
    fn new(file: &'a dyn File, path: &'a Path, at: u64, end: u64) -> ManifestInput<'a> {
        ManifestInput { file, path, offset: at, end, buffer: Vec::new(), consumed: 0, checksum: 0 }
    }

    /// Reads at most `most` more bytes. Returns false at the end.
    fn read_more(&mut self, most: usize) -> Result<bool> {
        let len = usize::try_from(self.end - self.offset).map_or(most, |left| left.min(most));
        self.buffer.drain(..self.consumed);
        self.consumed = 0;
        let from = self.buffer.len();
        self.buffer.resize(from + len, 0);
        self.file.read_at(self.offset, &mut self.buffer[from..]).during(IoOp::Read, self.path)?;
        self.checksum = crc32c::crc32c_append(self.checksum, &self.buffer[from..]);
        self.offset += len as u64;
        Ok(len > 0)
    }

    fn rest(&self) -> &[u8] {
        &self.buffer[self.consumed..]
    }

    fn consume(&mut self, len: usize) {
        self.consumed += len;
    }

    /// Returns the offset in the file of the first byte that is not consumed.
    fn position(&self) -> u64 {
        self.offset - self.rest().len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheaf_log::types::{Incarnation, KeyspaceId, SegmentId, Seq, StoreId};
    use sheaf_sim::SimDisk;

    fn root() -> Root {
        Root {
            generation: 4,
            store: StoreId(7),
            hash_key: 8,
            incarnation: Incarnation(3),
            is_clean: false,
            floor: Seq(99),
            first_seq: Seq(50),
            seq_bound: Seq(200),
            next_segment: SegmentId(5),
            next_keyspace: KeyspaceId(2),
            blob_bound: 9,
            keyspaces: Vec::new(),
            has_options: false,
            logs: Default::default(),
            changes: None,
        }
    }

    fn entries() -> Vec<ManifestEntry> {
        let file = |number: u64| {
            let name = PathBuf::from(format!("own/00000001/part-{number}"));
            let target =
                if number.is_multiple_of(2) { name.clone() } else { PathBuf::from("own/00000001/whole") };
            ManifestEntry::File(ManifestFile {
                name,
                database_name: target,
                offset: 8 * number,
                min_len: 1 << 40,
                len: number,
                checksum: 5,
                is_immutable: number > 9,
            })
        };
        // More than one read.
        [ManifestEntry::Directory("own/00000001".into())].into_iter().chain((0..3000).map(file)).collect()
    }

    fn written(entries: &[ManifestEntry]) -> SimDisk {
        let disk = SimDisk::new();
        let file = disk.open(&Path::new("/").join(MANIFEST_TEMP_FILE), OpenMode::Create).unwrap();
        let mut writer = ManifestWriter::new(file, Path::new("/"), &root());
        entries.iter().for_each(|entry| writer.add(entry).unwrap());
        writer.finish().unwrap();
        disk
    }

    #[test]
    fn a_written_manifest_is_read_back() {
        let disk = written(&entries());
        let manifest = Manifest::open_unfinished(&disk, Path::new("/")).unwrap();
        let mut found = Vec::new();
        manifest
            .for_each(|entry| {
                found.push(entry);
                Ok(())
            })
            .unwrap();
        assert_eq!((found, manifest.root, manifest.files), (entries(), root(), 3000));
        assert_eq!(manifest.bytes, (0..3000).sum::<u64>());
        assert!(matches!(Manifest::open(&disk, Path::new("/")), Err(Error::NotABackup { .. })));
    }

    #[test]
    fn changed_bytes_are_damage() {
        let few = &entries()[..4];
        let disk = written(few);
        let path = Path::new("/BACKUP.new");
        let bytes = disk.read_file(path).unwrap();
        for at in 0..bytes.len() as u64 {
            let byte = bytes[usize::try_from(at).unwrap()];
            disk.overwrite(path, at, &[byte ^ 4]).unwrap();
            assert!(Manifest::open_unfinished(&disk, Path::new("/")).is_err(), "byte {at}");
            disk.overwrite(path, at, &[byte]).unwrap();
        }
        for len in (0..bytes.len() as u64).rev() {
            disk.truncate_file(path, len).unwrap();
            assert!(Manifest::open_unfinished(&disk, Path::new("/")).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn names_outside_the_directory_are_damage() {
        for name in ["..", "a/../../b", "/etc/passwd", ".", ""] {
            let disk = written(&[ManifestEntry::Directory(name.into())]);
            let manifest = Manifest::open_unfinished(&disk, Path::new("/")).unwrap();
            let read = manifest.for_each(|_| Ok(()));
            assert!(matches!(read, Err(Error::Corrupt { .. })), "{name:?}: {read:?}");
        }
    }
}
