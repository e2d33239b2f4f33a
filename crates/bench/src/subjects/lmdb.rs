//! # LMDB: memory map, one writer, and a read transaction for each thread
//!
//! Buffered stores use `MDB_NOSYNC`, and `mdb_env_sync` every 100 ms. Durable stores use the
//! default of LMDB, a sync per commit. A read transaction is renewed after a thousand gets, as in
//! LMDB's own benchmark and in most programs: a renewal per get would slow LMDB down. Data larger
//! than the cache of the other stores is read without readahead, as LMDB's documentation
//! recommends.

use std::ops::Bound;
use std::path::Path;

use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions, RoTxn, RwTxn, WithTls};

use super::{BenchSession, BenchStore, OPS_PER_TRANSACTION, ScanDirection, StoreSetting, read_value};
use crate::Result;

/// Bytes of address space. The file grows only as pages are used.
const MAP_BYTES: usize = 128 << 30;

pub(super) struct Lmdb {
    env: Env<WithTls>,
    pairs: Database<Bytes, Bytes>,
}

impl Lmdb {
    pub(super) fn open(dir: &Path, setting: StoreSetting) -> Result<Lmdb> {
        let mut options = EnvOpenOptions::new();
        options.map_size(MAP_BYTES).max_readers(126);
        if !setting.durable {
            // SAFETY: NO_SYNC endangers the file only in a power cut, and the data of the bench is
            // discarded.
            unsafe { options.flags(EnvFlags::NO_SYNC) };
        }
        let has = std::fs::metadata(dir.join("data.mdb")).map_or(0, |data| data.len());
        if has > setting.memory {
            // SAFETY: the flag is only a hint to the kernel.
            unsafe { options.flags(EnvFlags::NO_READ_AHEAD) };
        }
        // SAFETY: the directory belongs to the bench, and no other process changes the mapped file.
        let env = unsafe { options.open(dir)? };
        let mut txn = env.write_txn()?;
        let pairs = env.create_database(&mut txn, None)?;
        txn.commit()?;
        Ok(Lmdb { env, pairs })
    }
}

impl BenchStore for Lmdb {
    fn session(&self) -> Result<Box<dyn BenchSession + '_>> {
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

/// Open transactions with the number of their operations. At most one is open, because LMDB allows
/// only one for a thread.
struct LmdbSession<'a> {
    lmdb: &'a Lmdb,
    reader: Option<(RoTxn<'a, WithTls>, u32)>,
    writer: Option<(RwTxn<'a>, u32)>,
}

impl<'a> LmdbSession<'a> {
    /// Returns a read transaction with less than its share of gets.
    fn reader(&mut self) -> Result<&RoTxn<'a, WithTls>> {
        if self.reader.as_ref().is_none_or(|(_, served)| *served == OPS_PER_TRANSACTION) {
            self.finish()?;
            self.reader = None;
            self.reader = Some((self.lmdb.env.read_txn()?, 0));
        }
        let Some((txn, served)) = &mut self.reader else { return Err("no read transaction".into()) };
        *served += 1;
        Ok(txn)
    }

    /// Commits one write in a transaction of its own.
    fn commit(
        &mut self,
        write: impl FnOnce(&Database<Bytes, Bytes>, &mut RwTxn<'_>) -> Result<()>,
    ) -> Result<()> {
        self.finish()?;
        self.reader = None;
        let mut txn = self.lmdb.env.write_txn()?;
        write(&self.lmdb.pairs, &mut txn)?;
        Ok(txn.commit()?)
    }
}

impl BenchSession for LmdbSession<'_> {
    fn get(&mut self, key: &[u8]) -> Result<Option<u64>> {
        let pairs = self.lmdb.pairs;
        Ok(pairs.get(self.reader()?, key)?.map(read_value))
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.commit(|pairs, txn| Ok(pairs.put(txn, key, value)?))
    }

    fn remove(&mut self, key: &[u8]) -> Result<()> {
        self.commit(|pairs, txn| Ok(pairs.delete(txn, key).map(|_| ())?))
    }

    fn scan(&mut self, from: &[u8], limit: u64, way: ScanDirection) -> Result<u64> {
        let pairs = self.lmdb.pairs;
        let txn = self.reader()?;
        let limit = usize::try_from(limit)?;
        let mut seen = 0;
        let mut note = |pair: heed::Result<(&[u8], &[u8])>| -> Result<()> {
            read_value(pair?.1);
            seen += 1;
            Ok(())
        };
        match way {
            ScanDirection::Up if from.is_empty() => pairs.iter(txn)?.take(limit).try_for_each(&mut note)?,
            ScanDirection::Up => pairs
                .range(txn, &(Bound::Included(from), Bound::Unbounded))?
                .take(limit)
                .try_for_each(&mut note)?,
            ScanDirection::Down if from.is_empty() => {
                pairs.rev_iter(txn)?.take(limit).try_for_each(&mut note)?
            }
            ScanDirection::Down => pairs
                .rev_range(txn, &(Bound::Unbounded, Bound::Included(from)))?
                .take(limit)
                .try_for_each(&mut note)?,
        }
        Ok(seen)
    }

    fn load(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.reader = None;
        if self.writer.is_none() {
            self.writer = Some((self.lmdb.env.write_txn()?, 0));
        }
        let Some((txn, gathered)) = &mut self.writer else { return Err("no write transaction".into()) };
        self.lmdb.pairs.put(txn, key, value)?;
        *gathered += 1;
        if *gathered == OPS_PER_TRANSACTION { self.finish() } else { Ok(()) }
    }

    fn finish(&mut self) -> Result<()> {
        match self.writer.take() {
            Some((txn, _)) => Ok(txn.commit()?),
            None => Ok(()),
        }
    }
}
