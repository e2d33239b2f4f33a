//! # fjall: log-structured merge tree in Rust, at defaults but cache and compression
//!
//! Buffered: its default, every insert handed to the kernel; `persist` every 100 ms. Durable: `persist`
//! with `SyncData` after each insert.

use std::path::Path;

use ::fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use super::{MEMORY, Session, Setting, Store, look};
use crate::Result;

pub(super) struct Fjall {
    database: Database,
    keyspace: Keyspace,
    durable: bool,
}

impl Fjall {
    pub(super) fn open(dir: &Path, setting: Setting) -> Result<Fjall> {
        // Built without its compression feature.
        let database = Database::builder(dir).cache_size(MEMORY).open()?;
        let keyspace = database.keyspace("bench", KeyspaceCreateOptions::default)?;
        Ok(Fjall { database, keyspace, durable: setting.durable })
    }
}

impl Store for Fjall {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(FjallSession { fjall: self }))
    }

    fn sync(&self) -> Result<()> {
        Ok(self.database.persist(PersistMode::SyncData)?)
    }
}

struct FjallSession<'a> {
    fjall: &'a Fjall,
}

impl Session for FjallSession<'_> {
    fn get(&mut self, key: &[u8]) -> Result<Option<u64>> {
        Ok(self.fjall.keyspace.get(key)?.map(|value| look(&value)))
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.fjall.keyspace.insert(key, value)?;
        if self.fjall.durable {
            self.fjall.sync()?;
        }
        Ok(())
    }
}
