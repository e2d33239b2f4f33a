//! # sled: a B-link tree over a log in Rust
//!
//! The flusher of sled is off: the bench flushes every 100 ms, as it syncs the other stores. A put
//! may wait in a buffer of sled, and is then lost if the process is killed. This is an advantage
//! over the other stores. A flush of sled ends with `sync_file_range`, which does not empty the
//! cache of the device. The bench therefore also syncs the file of sled, so that a sync has the
//! same meaning for all stores.

use std::fs::File;
use std::path::Path;

use ::sled::{Config, Db};

use super::{BenchSession, BenchStore, ScanDirection, StoreSetting, read_value};
use crate::Result;

pub(super) struct Sled {
    db: Db,
    file: File,
    durable: bool,
}

impl Sled {
    pub(super) fn open(dir: &Path, setting: StoreSetting) -> Result<Sled> {
        let config = Config::new().path(dir).cache_capacity(setting.memory).flush_every_ms(None);
        let db = config.open()?;
        Ok(Sled { db, file: File::open(dir.join("db"))?, durable: setting.durable })
    }

    fn written(&self) -> Result<()> {
        if self.durable { self.sync() } else { Ok(()) }
    }
}

impl BenchStore for Sled {
    fn session(&self) -> Result<Box<dyn BenchSession + '_>> {
        Ok(Box::new(SledSession { sled: self }))
    }

    fn sync(&self) -> Result<()> {
        self.db.flush()?;
        Ok(self.file.sync_data()?)
    }
}

struct SledSession<'a> {
    sled: &'a Sled,
}

impl BenchSession for SledSession<'_> {
    fn get(&mut self, key: &[u8]) -> Result<Option<u64>> {
        Ok(self.sled.db.get(key)?.map(|value| read_value(&value)))
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.sled.db.insert(key, value)?;
        self.sled.written()
    }

    fn remove(&mut self, key: &[u8]) -> Result<()> {
        self.sled.db.remove(key)?;
        self.sled.written()
    }

    fn scan(&mut self, from: &[u8], limit: u64, way: ScanDirection) -> Result<u64> {
        let limit = usize::try_from(limit)?;
        let mut seen = 0;
        let mut note = |pair: ::sled::Result<(::sled::IVec, ::sled::IVec)>| -> Result<()> {
            read_value(&pair?.1);
            seen += 1;
            Ok(())
        };
        match way {
            ScanDirection::Up => self.sled.db.range(from..).take(limit).try_for_each(&mut note)?,
            ScanDirection::Down if from.is_empty() => {
                self.sled.db.iter().rev().take(limit).try_for_each(&mut note)?
            }
            ScanDirection::Down => self.sled.db.range(..=from).rev().take(limit).try_for_each(&mut note)?,
        }
        Ok(seen)
    }
}
