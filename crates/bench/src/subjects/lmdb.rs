//! # LMDB: memory map, one writer, read transactions kept per thread
//!
//! Buffered: `MDB_NOSYNC`, and `mdb_env_sync` every 100 ms. Durable: LMDB's default, a sync per commit.
//! A read transaction serves a thousand gets before it is renewed, as LMDB's own benchmark and
//! most users do; one renewal per get would cost LMDB some 15 %.

use std::path::Path;

use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions, RoTxn, RwTxn, WithTls};

use super::{Session, Setting, Store, TRANSACTION, look};
use crate::Result;

/// Address space, not disk: the file grows as pages are used.
const MAP: usize = 32 << 30;

pub(super) struct Lmdb {
    env: Env<WithTls>,
    pairs: Database<Bytes, Bytes>,
}

impl Lmdb {
    pub(super) fn open(dir: &Path, setting: Setting) -> Result<Lmdb> {
        let mut options = EnvOpenOptions::new();
        options.map_size(MAP).max_readers(126);
        if !setting.durable {
            // SAFETY: NO_SYNC risks the file in a power cut only; bench data is thrown away.
            unsafe { options.flags(EnvFlags::NO_SYNC) };
        }
        // SAFETY: the directory is ours; nobody changes the file beneath the map.
        let env = unsafe { options.open(dir)? };
        let mut txn = env.write_txn()?;
        let pairs = env.create_database(&mut txn, None)?;
        txn.commit()?;
        Ok(Lmdb { env, pairs })
    }
}

impl Store for Lmdb {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(LmdbSession { lmdb: self, reader: None, writer: None }))
    }

    fn sync(&self) -> Result<()> {
        Ok(self.env.force_sync()?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.env.prepare_for_closing().wait();
        Ok(())
    }
}

/// Transactions with the number of operations they served. At most one is open: LMDB allows a thread
/// no more.
struct LmdbSession<'a> {
    lmdb: &'a Lmdb,
    reader: Option<(RoTxn<'a, WithTls>, u32)>,
    writer: Option<(RwTxn<'a>, u32)>,
}

impl Session for LmdbSession<'_> {
    fn get(&mut self, key: &[u8]) -> Result<Option<u64>> {
        if self.reader.as_ref().is_none_or(|(_, served)| *served == TRANSACTION) {
            self.finish()?;
            self.reader = None;
            self.reader = Some((self.lmdb.env.read_txn()?, 0));
        }
        let Some((txn, served)) = &mut self.reader else { return Err("no read transaction".into()) };
        *served += 1;
        Ok(self.lmdb.pairs.get(txn, key)?.map(look))
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.finish()?;
        self.reader = None;
        let mut txn = self.lmdb.env.write_txn()?;
        self.lmdb.pairs.put(&mut txn, key, value)?;
        Ok(txn.commit()?)
    }

    fn load(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.reader = None;
        if self.writer.is_none() {
            self.writer = Some((self.lmdb.env.write_txn()?, 0));
        }
        let Some((txn, gathered)) = &mut self.writer else { return Err("no write transaction".into()) };
        self.lmdb.pairs.put(txn, key, value)?;
        *gathered += 1;
        if *gathered == TRANSACTION { self.finish() } else { Ok(()) }
    }

    fn finish(&mut self) -> Result<()> {
        match self.writer.take() {
            Some((txn, _)) => Ok(txn.commit()?),
            None => Ok(()),
        }
    }
}
