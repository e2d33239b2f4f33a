//! # Real disk of Windows
//!
//! [`RealDisk`] implements the disk with positioned reads and writes and `FlushFileBuffers`. Files
//! are not mapped: Windows has no counterpart of the handler of SIGBUS, so a page that the device
//! cannot read would end the process. Every read is a call.
//!
//! Experimental: tested under Wine, never on Windows.
//!
//! ## Differences to Unix
//!
//! 1. Files have no modes. They inherit the access rights of their directory.
//! 2. Files are opened with all sharing modes, so that an open file can be removed and renamed. A
//!    name that another program keeps open without FILE_SHARE_DELETE cannot be.
//! 3. `punch_hole` is `Unsupported`: a sparse file would not keep the blocks of `allocate`.
//! 4. The number of handles is not limited.

#![expect(clippy::disallowed_methods, reason = "this is the disk")]

mod lock;

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io;
use std::mem;
use std::os::windows::ffi::OsStrExt;
use std::os::windows::fs::{FileExt, OpenOptionsExt};
use std::os::windows::io::AsRawHandle;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;

use windows_sys::Win32::Foundation::{
    ERROR_CALL_NOT_IMPLEMENTED, ERROR_INVALID_FUNCTION, ERROR_NOT_SUPPORTED, GENERIC_WRITE, HANDLE,
};
use windows_sys::Win32::Storage::FileSystem::{
    BY_HANDLE_FILE_INFORMATION, FILE_ALLOCATION_INFO, FILE_FLAG_BACKUP_SEMANTICS, FileAllocationInfo,
    GetDiskFreeSpaceExW, GetFileInformationByHandle, SetFileInformationByHandle,
};

use super::{DirEntry, Disk, File, FileIdentity, LockMode, LockOutcome, OpenMode, cached_reads, write_zeros};

/// The file systems of the machine. Paths are those of the process.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct RealDisk {}

impl RealDisk {
    /// Returns 0: files are not mapped.
    #[must_use]
    pub fn mapped_read_faults() -> u64 {
        0
    }
}

/// Returns whether files in `dir` are in persistent memory: always false on Windows.
///
/// # Errors
///
/// `NotFound` if the directory is missing.
pub fn maps_synchronously(dir: &Path) -> io::Result<bool> {
    fs::metadata(dir).map(|_| false)
}

/// Returns the usual limit of open files. The disk does not enforce one.
#[must_use]
pub fn usual_open_files() -> u32 {
    1024
}

impl Disk for RealDisk {
    fn open(&self, path: &Path, open_mode: OpenMode) -> io::Result<Arc<dyn File>> {
        cached_reads::check_may_wait()?;
        let mut options = OpenOptions::new();
        match open_mode {
            OpenMode::Read => options.read(true),
            OpenMode::ReadWrite => options.read(true).write(true),
            OpenMode::Create => options.read(true).write(true).create_new(true),
        };
        let file = options.open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let opened_len = file.metadata()?.len();
        Ok(Arc::new(WindowsFile { file, path: path.to_path_buf(), opened_len }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        for found in fs::read_dir(dir)? {
            let found = found?;
            let name = found.file_name().to_string_lossy().into_owned();
            let kind = found.file_type()?;
            let is_dir = kind.is_dir() || (kind.is_symlink() && found.path().is_dir());
            entries.push(DirEntry { name, is_dir });
        }
        entries.sort();
        Ok(entries)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir(dir)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        fs::remove_dir(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::hard_link(from, to)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
        // A directory opens only with backup semantics, and is flushed only with write access.
        let mut options = OpenOptions::new();
        options.access_mode(GENERIC_WRITE).custom_flags(FILE_FLAG_BACKUP_SEMANTICS);
        options.open(dir)?.sync_all()
    }

    fn lock_existing(&self, path: &Path, share: LockMode) -> io::Result<LockOutcome> {
        lock::lock_existing(path, share)
    }

    fn lock(&self, path: &Path, share: LockMode) -> io::Result<LockOutcome> {
        lock::lock(path, share)
    }

    fn free_space(&self, path: &Path) -> io::Result<u64> {
        let dir = if path.is_dir() { path } else { path.parent().unwrap_or(path) };
        let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
        let name: Vec<u16> = dir.as_os_str().encode_wide().chain([0]).collect();
        let mut free = 0;
        // SAFETY:
        // * `name` ends with a zero, and `free` is a valid place for the answer. Null pointers ask
        //   for no other answers.
        let answer =
            unsafe { GetDiskFreeSpaceExW(name.as_ptr(), &raw mut free, ptr::null_mut(), ptr::null_mut()) };
        if answer == 0 { Err(io::Error::last_os_error()) } else { Ok(free) }
    }
}

/// An open file.
struct WindowsFile {
    file: fs::File,
    path: PathBuf,
    opened_len: u64,
}

impl fmt::Debug for WindowsFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WindowsFile({})", self.path.display())
    }
}

impl File for WindowsFile {
    fn read_at(&self, mut offset: u64, mut buf: &mut [u8]) -> io::Result<()> {
        cached_reads::check_may_wait()?; // nothing tells which bytes are in memory
        while !buf.is_empty() {
            match self.file.seek_read(buf, offset) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    buf = &mut buf[count..];
                    offset += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn write_at(&self, mut offset: u64, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.file.seek_write(bytes, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    bytes = &bytes[count..];
                    offset += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn opened_len(&self) -> io::Result<u64> {
        Ok(self.opened_len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    /// Allocates clusters behind the end of the file, and extends it. A file without the sparse
    /// attribute has clusters for all bytes below its end.
    fn allocate(&self, len: u64) -> io::Result<()> {
        if len <= self.len()? {
            return Ok(());
        }
        let size = i64::try_from(len).map_err(io::Error::other)?;
        let info = FILE_ALLOCATION_INFO { AllocationSize: size };
        let bytes = u32::try_from(mem::size_of_val(&info)).map_err(io::Error::other)?;
        // SAFETY:
        // * The handle is open, and `info` has the type and the length of this request.
        let answer = unsafe {
            SetFileInformationByHandle(
                handle_of(&self.file),
                FileAllocationInfo,
                (&raw const info).cast(),
                bytes,
            )
        };
        if answer != 0 {
            return self.file.set_len(len);
        }
        let error = io::Error::last_os_error();
        let unsupported = [ERROR_CALL_NOT_IMPLEMENTED, ERROR_INVALID_FUNCTION, ERROR_NOT_SUPPORTED];
        match error.raw_os_error() {
            // Wine, and some file systems of other machines.
            Some(code) if unsupported.map(u32::cast_signed).contains(&code) => {
                write_zeros(self, self.len()?, len)
            }
            _ => Err(error),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    fn identity(&self) -> Option<FileIdentity> {
        identity_of(&self.file).ok()
    }
}

fn handle_of(file: &fs::File) -> HANDLE {
    file.as_raw_handle()
}

/// Returns the number of the volume, and that of the file on it.
fn identity_of(file: &fs::File) -> io::Result<FileIdentity> {
    let mut info = BY_HANDLE_FILE_INFORMATION::default();
    // SAFETY:
    // * The handle is open, and `info` is a valid place for the answer.
    if unsafe { GetFileInformationByHandle(handle_of(file), &raw mut info) } == 0 {
        return Err(io::Error::last_os_error());
    }
    let inode = u64::from(info.nFileIndexHigh) << 32 | u64::from(info.nFileIndexLow);
    Ok(FileIdentity { device: u64::from(info.dwVolumeSerialNumber), inode })
}
