//! # redb: a copy-on-write B-tree in Rust
//!
//! Buffered stores use `Durability::None`, and an empty immediate commit every 100 ms. Such a put
//! does not survive a kill of the process, an advantage over the other stores. Durable stores use
//! `Durability::Immediate`. A read transaction serves a thousand gets, as for LMDB.

use std::ops::Bound;
use std::path::Path;

use ::redb::{Database, Durability, ReadOnlyTable, ReadableDatabase, Table, TableDefinition};

use super::{BenchSession, BenchStore, OPS_PER_TRANSACTION, ScanDirection, StoreSetting, read_value};
use crate::Result;

const PAIRS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("bench");

pub(super) struct Redb {
    database: Database,
    durability: Durability,
}

impl Redb {
    pub(super) fn open(dir: &Path, setting: StoreSetting) -> Result<Redb> {
        let cache = usize::try_from(setting.memory)?;
        let database = Database::builder().set_cache_size(cache).create(dir.join("redb"))?;
        let redb = Redb {
            database,
            durability: if setting.durable { Durability::Immediate } else { Durability::None },
        };
        redb.write(Durability::Immediate, |_| Ok(()))?; // creates the table
        Ok(redb)
    }

    fn write(
        &self,
        durability: Durability,
        change: impl FnOnce(&mut Table<'_, &'static [u8], &'static [u8]>) -> Result<()>,
    ) -> Result<()> {
        let mut txn = self.database.begin_write()?;
        txn.set_durability(durability)?;
        change(&mut txn.open_table(PAIRS)?)?;
        Ok(txn.commit()?)
    }
}

impl BenchStore for Redb {
    fn session(&self) -> Result<Box<dyn BenchSession + '_>> {
        Ok(Box::new(RedbSession { redb: self, reader: None, gathered: Vec::new() }))
    }

    fn sync(&self) -> Result<()> {
        self.write(Durability::Immediate, |_| Ok(()))
    }
}

type RedbTable = ReadOnlyTable<&'static [u8], &'static [u8]>;

struct RedbSession<'a> {
    redb: &'a Redb,
    /// Table in a read transaction, and number of gets that it served.
    reader: Option<(RedbTable, u32)>,
    gathered: Vec<(Vec<u8>, Vec<u8>)>,
}

impl RedbSession<'_> {
    /// Returns the table in a read transaction with less than its share of gets.
    fn table(&mut self) -> Result<&RedbTable> {
        if self.reader.as_ref().is_none_or(|(_, served)| *served == OPS_PER_TRANSACTION) {
            self.reader = Some((self.redb.database.begin_read()?.open_table(PAIRS)?, 0));
        }
        let Some((table, served)) = &mut self.reader else { return Err("no read transaction".into()) };
        *served += 1;
        Ok(table)
    }

    /// Commits one change in a transaction of its own.
    fn commit(
        &mut self,
        change: impl FnOnce(&mut Table<'_, &'static [u8], &'static [u8]>) -> Result<()>,
    ) -> Result<()> {
        self.finish()?;
        self.reader = None;
        self.redb.write(self.redb.durability, change)
    }
}

impl BenchSession for RedbSession<'_> {
    fn get(&mut self, key: &[u8]) -> Result<Option<u64>> {
        Ok(self.table()?.get(key)?.map(|value| read_value(value.value())))
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.commit(|table| Ok(table.insert(key, value).map(|_| ())?))
    }

    fn remove(&mut self, key: &[u8]) -> Result<()> {
        self.commit(|table| Ok(table.remove(key).map(|_| ())?))
    }

    fn scan(&mut self, from: &[u8], limit: u64, way: ScanDirection) -> Result<u64> {
        let (low, high) = match way {
            _ if from.is_empty() => (Bound::Unbounded, Bound::Unbounded),
            ScanDirection::Up => (Bound::Included(from), Bound::Unbounded),
            ScanDirection::Down => (Bound::Unbounded, Bound::Included(from)),
        };
        let mut pairs = self.table()?.range::<&[u8]>((low, high))?;
        let mut seen = 0;
        while seen < limit {
            let Some(pair) = (if way == ScanDirection::Up { pairs.next() } else { pairs.next_back() }) else {
                break;
            };
            read_value(pair?.1.value());
            seen += 1;
        }
        Ok(seen)
    }

    fn load(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.gathered.push((key.to_vec(), value.to_vec()));
        if self.gathered.len() == OPS_PER_TRANSACTION as usize { self.finish() } else { Ok(()) }
    }

    fn finish(&mut self) -> Result<()> {
        if self.gathered.is_empty() {
            return Ok(());
        }
        self.reader = None;
        self.redb.write(self.redb.durability, |table| {
            for (key, value) in &self.gathered {
                table.insert(&key[..], &value[..])?;
            }
            Ok(())
        })?;
        self.gathered.clear();
        Ok(())
    }
}
