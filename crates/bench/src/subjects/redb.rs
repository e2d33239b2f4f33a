//! # redb: copy-on-write B-tree in Rust
//!
//! Buffered: `Durability::None` (it does not survive a killed process: kinder to redb than to the others),
//! and an empty immediate commit every 100 ms. Durable: `Durability::Immediate`. Read transactions serve a
//! thousand gets, as for LMDB.

use std::path::Path;

use ::redb::{Database, Durability, ReadOnlyTable, ReadableDatabase, TableDefinition};

use super::{MEMORY, Session, Setting, Store, TRANSACTION, look};
use crate::Result;

const PAIRS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("bench");

pub(super) struct Redb {
    database: Database,
    durability: Durability,
}

impl Redb {
    pub(super) fn open(dir: &Path, setting: Setting) -> Result<Redb> {
        let cache = usize::try_from(MEMORY)?;
        let database = Database::builder().set_cache_size(cache).create(dir.join("redb"))?;
        let redb = Redb {
            database,
            durability: if setting.durable { Durability::Immediate } else { Durability::None },
        };
        redb.write(std::iter::empty(), Durability::Immediate)?; // makes the table
        Ok(redb)
    }

    fn write<'a>(
        &self,
        pairs: impl Iterator<Item = (&'a [u8], &'a [u8])>,
        durability: Durability,
    ) -> Result<()> {
        let mut txn = self.database.begin_write()?;
        txn.set_durability(durability)?;
        {
            let mut table = txn.open_table(PAIRS)?;
            for (key, value) in pairs {
                table.insert(key, value)?;
            }
        }
        Ok(txn.commit()?)
    }
}

impl Store for Redb {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(RedbSession { redb: self, reader: None, gathered: Vec::new() }))
    }

    fn sync(&self) -> Result<()> {
        self.write(std::iter::empty(), Durability::Immediate)
    }
}

type Table = ReadOnlyTable<&'static [u8], &'static [u8]>;

struct RedbSession<'a> {
    redb: &'a Redb,
    /// A table as one transaction sees it, and how many gets it served.
    reader: Option<(Table, u32)>,
    gathered: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Session for RedbSession<'_> {
    fn get(&mut self, key: &[u8]) -> Result<Option<u64>> {
        if self.reader.as_ref().is_none_or(|(_, served)| *served == TRANSACTION) {
            self.reader = Some((self.redb.database.begin_read()?.open_table(PAIRS)?, 0));
        }
        let Some((table, served)) = &mut self.reader else { return Err("no read transaction".into()) };
        *served += 1;
        Ok(table.get(key)?.map(|value| look(value.value())))
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.finish()?;
        self.reader = None;
        self.redb.write(std::iter::once((key, value)), self.redb.durability)
    }

    fn load(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.gathered.push((key.to_vec(), value.to_vec()));
        if self.gathered.len() == TRANSACTION as usize { self.finish() } else { Ok(()) }
    }

    fn finish(&mut self) -> Result<()> {
        if self.gathered.is_empty() {
            return Ok(());
        }
        self.reader = None;
        let pairs = self.gathered.iter().map(|(key, value)| (&key[..], &value[..]));
        self.redb.write(pairs, self.redb.durability)?;
        self.gathered.clear();
        Ok(())
    }
}
