//! # fjall: a log-structured merge tree in Rust, with default options except cache and compression
//!
//! Buffered stores use the default, which hands every insert to the kernel, and `persist` every 100
//! ms. Durable stores call `persist` with `SyncData` after each insert.

use std::path::Path;

use ::fjall::{Database, Guard, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, PersistMode};

use super::{BenchSession, BenchStore, ScanDirection, StoreSetting, read_value};
use crate::Result;

const SEPARATION_THRESHOLD: u32 = 512;

pub(super) struct Fjall {
    database: Database,
    keyspace: Keyspace,
    durable: bool,
}

impl Fjall {
    pub(super) fn open(dir: &Path, setting: StoreSetting, separated: bool) -> Result<Fjall> {
        // The bench builds fjall without its feature for compression.
        let database = Database::builder(dir).cache_size(setting.memory).open()?;
        let separation =
            separated.then(|| KvSeparationOptions::default().separation_threshold(SEPARATION_THRESHOLD));
        let keyspace = database
            .keyspace("bench", || KeyspaceCreateOptions::default().with_kv_separation(separation.clone()))?;
        Ok(Fjall { database, keyspace, durable: setting.durable })
    }

    fn written(&self) -> Result<()> {
        if self.durable { self.sync() } else { Ok(()) }
    }
}

impl BenchStore for Fjall {
    fn session(&self) -> Result<Box<dyn BenchSession + '_>> {
        Ok(Box::new(FjallSession { fjall: self }))
    }

    fn sync(&self) -> Result<()> {
        Ok(self.database.persist(PersistMode::SyncData)?)
    }
}

struct FjallSession<'a> {
    fjall: &'a Fjall,
}

impl BenchSession for FjallSession<'_> {
    fn get(&mut self, key: &[u8]) -> Result<Option<u64>> {
        Ok(self.fjall.keyspace.get(key)?.map(|value| read_value(&value)))
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.fjall.keyspace.insert(key, value)?;
        self.fjall.written()
    }

    fn remove(&mut self, key: &[u8]) -> Result<()> {
        self.fjall.keyspace.remove(key)?;
        self.fjall.written()
    }

    fn scan(&mut self, from: &[u8], limit: u64, way: ScanDirection) -> Result<u64> {
        let keyspace = &self.fjall.keyspace;
        let limit = usize::try_from(limit)?;
        let mut seen = 0;
        let mut note = |pair: Guard| -> Result<()> {
            read_value(&pair.into_inner()?.1);
            seen += 1;
            Ok(())
        };
        match way {
            ScanDirection::Up => keyspace.range(from..).take(limit).try_for_each(&mut note)?,
            ScanDirection::Down if from.is_empty() => {
                keyspace.iter().rev().take(limit).try_for_each(&mut note)?
            }
            ScanDirection::Down => keyspace.range(..=from).rev().take(limit).try_for_each(&mut note)?,
        }
        Ok(seen)
    }
}
