//! # Null: the store that does nothing, to weigh the harness

use super::{Session, Store, Way, look};
use crate::Result;

pub(super) struct Null;

impl Store for Null {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
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

impl Session for NullSession {
    fn get(&mut self, key: &[u8]) -> Result<Option<u64>> {
        std::hint::black_box(key);
        Ok(None)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        std::hint::black_box((key, look(value)));
        Ok(())
    }

    fn remove(&mut self, key: &[u8]) -> Result<()> {
        std::hint::black_box(key);
        Ok(())
    }

    fn scan(&mut self, from: &[u8], limit: u64, way: Way) -> Result<u64> {
        std::hint::black_box((from, limit, way));
        Ok(0)
    }
}
