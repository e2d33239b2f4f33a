//! # Sheaf: one keyspace of the chosen engine
//!
//! Memory and space limit are those of the setting, options of the engine those of its name. All
//! other options have their defaults.

use std::path::Path;

use ::sheaf::{Database, Durability, Error, Keyspace};

use super::{BenchSession, BenchStore, ScanDirection, SheafFigures, StoreSetting, read_value, variant};
use crate::Result;

pub(super) struct SheafStore {
    database: Database,
    keyspace: Keyspace,
}

impl SheafStore {
    pub(super) fn open(dir: &Path, name: &str, setting: StoreSetting) -> Result<SheafStore> {
        let durability = if setting.durable { Durability::Sync } else { Durability::Buffer };
        let builder = Database::builder().memory(setting.memory).durability(durability);
        let builder = match setting.space_limit {
            Some(times) => builder.space_limit(times),
            None => builder,
        };
        let database = builder.open(dir)?;
        let keyspace = database.keyspace("bench", variant::keyspace_options(name)?)?;
        Ok(SheafStore { database, keyspace })
    }
}

impl BenchStore for SheafStore {
    fn session(&self) -> Result<Box<dyn BenchSession + '_>> {
        Ok(Box::new(SheafSession { keyspace: &self.keyspace }))
    }

    fn sync(&self) -> Result<()> {
        Ok(self.database.persist()?)
    }

    fn syncs_itself(&self) -> bool {
        true
    }

    fn is_ordered(&self) -> bool {
        self.keyspace.capabilities().is_ok_and(|capabilities| capabilities.ordered)
    }

    fn sheaf_figures(&self) -> Option<SheafFigures> {
        let stats = self.database.stats();
        // The log of the only keyspace is the largest: the other log is nearly empty.
        let log = stats.logs.iter().max_by_key(|log| log.disk_bytes).cloned().unwrap_or_default();
        Some(SheafFigures {
            index_bytes: stats.memory.index,
            keys: self.keyspace.stats().map_or(0, |engine| engine.keys),
            live_bytes: log.live_bytes,
            log_bytes: log.disk_bytes,
            appended: log.appended_bytes,
            gc_bytes: log.relocated_bytes,
            checkpoint_bytes: stats.checkpoint_bytes,
            freed: log.freed_segments,
            throttles: stats.throttles,
            replayed: stats.opening.records_replayed,
            scanned: stats.opening.frames_scanned,
            counters: self.keyspace.counters().unwrap_or_default(),
        })
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.database.close()?)
    }
}

struct SheafSession<'a> {
    keyspace: &'a Keyspace,
}

impl BenchSession for SheafSession<'_> {
    fn get(&mut self, key: &[u8]) -> Result<Option<u64>> {
        Ok(self.keyspace.get_with(key, read_value)?)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.keyspace.insert(key, value)?)
    }

    fn remove(&mut self, key: &[u8]) -> Result<()> {
        Ok(self.keyspace.remove(key)?)
    }

    fn scan(&mut self, from: &[u8], limit: u64, way: ScanDirection) -> Result<u64> {
        let mut pairs = match way {
            _ if from.is_empty() => self.keyspace.iter()?,
            ScanDirection::Up => self.keyspace.range(from..)?,
            ScanDirection::Down => self.keyspace.range(..=from)?,
        };
        let mut seen = 0;
        while seen < limit {
            let see = |_: &[u8], value: &[u8]| {
                read_value(value);
            };
            let Some(pair) =
                (if way == ScanDirection::Up { pairs.next_with(see) } else { pairs.next_back_with(see) })
            else {
                break;
            };
            pair?;
            seen += 1;
        }
        Ok(seen)
    }

    fn compact(&mut self) -> Result<u64> {
        match self.keyspace.compact() {
            Ok(done) => Ok((done.rewritten_pairs + done.skipped_pairs).max(1)),
            Err(Error::Unsupported { .. }) => Ok(1),
            Err(error) => Err(error.into()),
        }
    }

    fn keys(&mut self) -> Result<u64> {
        self.keyspace.keys()?.try_fold(0, |seen, key| {
            std::hint::black_box(key?);
            Ok(seen + 1)
        })
    }
}
