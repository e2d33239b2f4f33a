//! # Sheaf: one keyspace of the engine asked for, at default options but memory and space

use std::path::Path;

use ::sheaf::{Database, Durability, Error, Keyspace, KeyspaceOptions};

use super::{Inner, Session, Setting, Store, Way, look};
use crate::Result;

pub(super) struct Sheaf {
    database: Database,
    keyspace: Keyspace,
}

impl Sheaf {
    pub(super) fn open(dir: &Path, engine: &str, setting: Setting) -> Result<Sheaf> {
        let durability = if setting.durable { Durability::Sync } else { Durability::Buffer };
        let database = Database::builder()
            .memory(setting.memory)
            .space_limit(setting.space_limit)
            .durability(durability)
            .open(dir)?;
        let keyspace = database.keyspace("bench", KeyspaceOptions::default().engine(engine))?;
        Ok(Sheaf { database, keyspace })
    }
}

impl Store for Sheaf {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
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

    fn inner(&self) -> Option<Inner> {
        let stats = self.database.stats();
        // The log of the only keyspace: the other one has next to nothing.
        let log = stats.logs.iter().max_by_key(|log| log.disk_bytes).cloned().unwrap_or_default();
        Some(Inner {
            index_bytes: stats.memory.index,
            keys: self.keyspace.stats().map_or(0, |engine| engine.keys),
            live_bytes: log.live_bytes,
            log_bytes: log.disk_bytes,
            appended: log.appended,
            moved: log.moved,
            checkpoint_bytes: stats.checkpoint_bytes,
            freed: log.freed,
            brakes: stats.brakes,
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

impl Session for SheafSession<'_> {
    fn get(&mut self, key: &[u8]) -> Result<Option<u64>> {
        Ok(self.keyspace.get_with(key, look)?)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.keyspace.insert(key, value)?)
    }

    fn remove(&mut self, key: &[u8]) -> Result<()> {
        Ok(self.keyspace.remove(key)?)
    }

    fn scan(&mut self, from: &[u8], limit: u64, way: Way) -> Result<u64> {
        let mut pairs = match way {
            _ if from.is_empty() => self.keyspace.iter()?,
            Way::Up => self.keyspace.range(from..)?,
            Way::Down => self.keyspace.range(..=from)?,
        };
        let mut seen = 0;
        while seen < limit {
            let see = |_: &[u8], value: &[u8]| {
                look(value);
            };
            let Some(pair) = (if way == Way::Up { pairs.next_with(see) } else { pairs.next_back_with(see) })
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
            Ok(done) => Ok((done.moved + done.left).max(1)),
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
