//! # Steps of expiry
//!
//! The map has no times. A put with a time is recorded with the pointer of its value. When the
//! clock has reached the time, the pair leaves the map if it still has that pointer: any later
//! write of the key has another one.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use sheaf::Expiry;

use super::execute::{ModelRunner, StepResult, expect_ok, same};
use super::steps::{EXPIRING, ValueSpec, key_of};

/// Calls of `pump` within which all expired pairs are removed.
const MOST_STEPS: usize = 10_000;

impl ModelRunner<'_> {
    pub(super) fn put_expiring(&mut self, key: u16, value: ValueSpec, ttl_ms: u64) -> StepResult {
        let (name, bytes) = (key_of(key), value.bytes());
        let ttl = Duration::from_millis(ttl_ms);
        expect_ok("insert_with_ttl", self.space(EXPIRING).insert_with_ttl(&name, &bytes, ttl))?;
        let (value, time): (Arc<[u8]>, u64) = (bytes.into(), self.now_ms() + ttl_ms);
        self.map(EXPIRING).insert(name.clone(), Arc::clone(&value));
        self.expiring.push((time, name, value));
        self.check_expiry(key)?;
        self.check_get(EXPIRING, key)
    }

    pub(super) fn persist_key(&mut self, key: u16) -> StepResult {
        let name = key_of(key);
        let persisted = expect_ok("persist_key", self.space(EXPIRING).persist_key(&name))?;
        let value = self.map(EXPIRING).get(&name).map(|value| Arc::from(&**value));
        same("persist_key", &persisted, &value.is_some())?;
        if let Some(value) = value {
            self.map(EXPIRING).insert(name, value); // another pointer
        }
        self.check_expiry(key)?;
        self.check_get(EXPIRING, key)
    }

    fn now_ms(&self) -> u64 {
        self.fixture.unix_millis().0
    }

    fn check_expiry(&mut self, key: u16) -> StepResult {
        let name = key_of(key);
        let got = expect_ok("expires_at", self.space(EXPIRING).expires_at(&name))?;
        let value = self.map(EXPIRING).get(&name).cloned();
        let of_value = |value: &Arc<[u8]>| {
            let put = self.expiring.iter().find(|(_, _, put)| Arc::ptr_eq(put, value));
            put.map_or(Expiry::Never, |(time, ..)| Expiry::At(UNIX_EPOCH + Duration::from_millis(*time)))
        };
        same("expires_at", &got, &value.as_ref().map(of_value))
    }

    /// Removes the pairs from the map that have expired.
    pub(super) fn expire(&mut self) {
        let now = self.now_ms();
        for (_, key, value) in self.expiring.extract_if(.., |(time, ..)| *time <= now) {
            let map = &mut self.maps[usize::from(EXPIRING)];
            if map.get(&key).is_some_and(|present| Arc::ptr_eq(present, &value)) {
                map.remove(&key);
            }
        }
    }

    /// Waits until the background has removed all expired pairs.
    pub(super) fn remove_expired(&mut self) -> StepResult {
        for _ in 0..MOST_STEPS {
            let stats = self.db().stats().expiry;
            if stats.next_due_ms.is_none_or(|due| due > self.now_ms()) {
                return Ok(());
            }
            expect_ok("pump", self.db().pump())?;
        }
        Err("the background does not remove expired pairs".to_owned())
    }
}
