//! # Plain files: values in the file system, without a store
//!
//! A value is a file in one of 256 directories, named by its key in hexadecimal digits. There is no
//! log, no checksum and no order. A crash during a put can leave half a value, so this is not a
//! usable store. It shows the part of the file system in the figures of `delsm`: the speed of
//! creating, removing and recreating files.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use super::{BenchSession, BenchStore, ScanDirection, StoreSetting, read_value};
use crate::Result;
use crate::measure::write_back;

pub(super) struct PlainFiles {
    root: PathBuf,
    durable: bool,
}

impl PlainFiles {
    pub(super) fn open(dir: &Path, setting: StoreSetting) -> Result<PlainFiles> {
        for number in 0..=u8::MAX {
            fs::create_dir_all(dir.join(format!("{number:02x}")))?;
        }
        Ok(PlainFiles { root: dir.to_owned(), durable: setting.durable })
    }
}

impl BenchStore for PlainFiles {
    fn session(&self) -> Result<Box<dyn BenchSession + '_>> {
        Ok(Box::new(FilesSession { files: self, value: Vec::new() }))
    }

    fn sync(&self) -> Result<()> {
        write_back(&self.root)
    }

    fn is_ordered(&self) -> bool {
        false
    }
}

struct FilesSession<'a> {
    files: &'a PlainFiles,
    value: Vec<u8>,
}

impl FilesSession<'_> {
    /// Returns the directory and the file of a key. The last byte of the key chooses the directory,
    /// because it varies most.
    fn path(&self, key: &[u8]) -> (PathBuf, PathBuf) {
        let dir = self.files.root.join(format!("{:02x}", key.last().copied().unwrap_or(0)));
        let name: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        (dir.clone(), dir.join(name))
    }

    /// Syncs a directory after a change, if the store is durable.
    fn sync_dir_if_durable(&self, dir: &Path) -> Result<()> {
        if self.files.durable {
            File::open(dir)?.sync_all()?;
        }
        Ok(())
    }
}

impl BenchSession for FilesSession<'_> {
    fn get(&mut self, key: &[u8]) -> Result<Option<u64>> {
        let mut file = match File::open(self.path(key).1) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        self.value.clear();
        file.read_to_end(&mut self.value)?;
        Ok(Some(read_value(&self.value)))
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let (dir, path) = self.path(key);
        let mut file = File::create(path)?;
        file.write_all(value)?;
        if self.files.durable {
            file.sync_all()?;
        }
        self.sync_dir_if_durable(&dir)
    }

    fn remove(&mut self, key: &[u8]) -> Result<()> {
        let (dir, path) = self.path(key);
        match fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
            _ => self.sync_dir_if_durable(&dir),
        }
    }

    /// Counts files in no order: only a scan of all pairs is meaningful.
    fn scan(&mut self, _: &[u8], limit: u64, _: ScanDirection) -> Result<u64> {
        let mut seen = 0;
        for dir in fs::read_dir(&self.files.root)? {
            for file in fs::read_dir(dir?.path())? {
                file?;
                seen += 1;
            }
        }
        Ok(seen.min(limit))
    }
}
