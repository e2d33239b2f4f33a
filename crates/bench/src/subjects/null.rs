//! # Null: a store without effect, which measures the harness

use super::{BenchSession, BenchStore, ScanDirection, read_value};
use crate::Result;

pub(super) struct NullStore;

impl BenchStore for NullStore {
    fn session(&self) -> Result<Box<dyn BenchSession + '_>> {
        Ok(Box::new(NullSession))
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn syncs_itself(&self) -> bool {
        true
    }

    fn keeps_data(&self) -> bool {
        false
    }
}

struct NullSession;

impl BenchSession for NullSession {
    fn get(&mut self, key: &[u8]) -> Result<Option<u64>> {
        std::hint::black_box(key);
        Ok(None)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        std::hint::black_box((key, read_value(value)));
        Ok(())
    }

    fn remove(&mut self, key: &[u8]) -> Result<()> {
        std::hint::black_box(key);
        Ok(())
    }

    fn scan(&mut self, from: &[u8], limit: u64, way: ScanDirection) -> Result<u64> {
        std::hint::black_box((from, limit, way));
        Ok(0)
    }
}
