//! # Expiry times of a state
//!
//! A pair that expires has its time in the fingerprint of the state, besides its key and value. So
//! a crash that changes or loses a time is found while the pair still exists.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use sheaf::{Error, Expiry, Keyspace};
use sheaf_platform::clock::UnixMillis;

use super::history::{ExpectedState, Fnv, KeyspacePairs, pair_fingerprint};

impl ExpectedState {
    /// Removes the pairs of which the time is not after `now`.
    pub fn expire(&mut self, now: UnixMillis) {
        let expired = self.expiry_times.iter().filter(|(_, time)| **time <= now);
        for (space, key) in expired.map(|(place, _)| place.clone()).collect::<Vec<_>>() {
            self.set_time(space, &key, None);
            if let Some(pairs) = &mut self.keyspaces[space] {
                Arc::make_mut(pairs).remove(&key);
            }
        }
    }

    /// Returns the part of the fingerprint that [`ExpectedState::expire`] would remove.
    pub(super) fn expired_fingerprint(&self, now: UnixMillis) -> u64 {
        let expired = self.expiry_times.iter().filter(|(_, time)| **time <= now);
        expired.fold(0, |print: u64, ((space, key), time)| {
            let value = self.keyspaces[*space].as_ref().and_then(|pairs| pairs.get(key));
            let pair = value.map_or(0, |value| pair_fingerprint(*space, Some(key), value));
            print.wrapping_add(pair).wrapping_add(time_fingerprint(*space, key, *time))
        })
    }

    /// Returns the value of a key and its time, if it exists at the time `now`.
    #[must_use]
    pub fn get_at(&self, space: usize, key: &[u8], now: UnixMillis) -> Option<(&[u8], Option<UnixMillis>)> {
        let value = self.keyspaces[space].as_ref()?.get(key)?;
        let time = self.expiry_times.get(&(space, key.to_vec())).copied();
        time.is_none_or(|time| time > now).then_some((value, time))
    }

    /// Sets or removes the time of a pair. Returns the difference to add to the fingerprint.
    pub(super) fn set_time(&mut self, space: usize, key: &[u8], time: Option<UnixMillis>) -> u64 {
        if time.is_none() && self.expiry_times.is_empty() {
            return 0;
        }
        let times = Arc::make_mut(&mut self.expiry_times);
        let before = match time {
            Some(time) => times.insert((space, key.to_vec()), time),
            None => times.remove(&(space, key.to_vec())),
        };
        let print = |time: Option<UnixMillis>| time.map_or(0, |time| time_fingerprint(space, key, time));
        print(time).wrapping_sub(print(before))
    }

    /// Removes the times of a keyspace.
    pub(super) fn forget_times(&mut self, space: usize) {
        if !self.expiry_times.is_empty() {
            Arc::make_mut(&mut self.expiry_times).retain(|(of, _), _| *of != space);
        }
    }

    /// Gives the times of keyspace `from` to keyspace `to`.
    pub(super) fn rename_times(&mut self, from: usize, to: usize) {
        if !self.expiry_times.is_empty() {
            let times = std::mem::take(Arc::make_mut(&mut self.expiry_times)).into_iter();
            let renamed =
                times.map(|((space, key), time)| ((if space == from { to } else { space }, key), time));
            self.expiry_times = Arc::new(renamed.collect());
        }
    }

    /// Returns the part of the fingerprint for the times of a keyspace.
    pub(super) fn times_fingerprint(&self, space: usize) -> u64 {
        let times = self.expiry_times.iter().filter(|((of, _), _)| *of == space);
        times.fold(0, |print: u64, ((_, key), time)| print.wrapping_add(time_fingerprint(space, key, *time)))
    }

    /// Reads the times of `pairs`.
    ///
    /// # Errors
    ///
    /// Returns the error of the first call that fails.
    pub(super) fn read_times(
        &mut self,
        space: usize,
        keyspace: &Keyspace,
        pairs: &KeyspacePairs,
    ) -> Result<(), Error> {
        for key in pairs.keys() {
            if let Some(Expiry::At(time)) = keyspace.expires_at(key)? {
                self.set_time(space, key, Some(unix_millis(time)));
            }
        }
        Ok(())
    }
}

fn unix_millis(time: SystemTime) -> UnixMillis {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixMillis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

fn time_fingerprint(space: usize, key: &[u8], time: UnixMillis) -> u64 {
    let mut hash = Fnv::default();
    hash.update(b"expires");
    hash.update(&(space as u64).to_le_bytes());
    hash.update(key);
    hash.update(&time.0.to_le_bytes());
    hash.finish()
}

#[cfg(test)]
mod tests {
    use super::super::history::{CommitHistory, HistoryChange};
    use super::*;

    fn put(key: &[u8], value: &[u8], time: u64) -> HistoryChange {
        HistoryChange::PutExpiring(0, key.to_vec(), value.to_vec(), UnixMillis(time))
    }

    #[test]
    fn fingerprints_follow_the_times() {
        let mut state = ExpectedState::default();
        let mut print = state.fingerprint();
        let changes = [
            HistoryChange::Create(0),
            put(b"a", b"1", 10),
            put(b"b", b"2", 20),
            put(b"a", b"1", 30),
            HistoryChange::Put(0, b"b".to_vec(), b"2".to_vec()),
            put(b"b", b"2", 20),
            HistoryChange::Rename(0, 1),
        ];
        for change in changes {
            let before = print;
            print = print.wrapping_add(state.apply(&change));
            assert_eq!(print, state.fingerprint(), "after {change:?}");
            assert_ne!(print, before, "{change:?}");
        }
        assert_eq!(state.get_at(1, b"b", UnixMillis(19)), Some((&b"2"[..], Some(UnixMillis(20)))));
        assert_eq!(state.get_at(1, b"b", UnixMillis(20)), None);
        let gone = state.expired_fingerprint(UnixMillis(20));
        state.expire(UnixMillis(20));
        assert_eq!(state.fingerprint(), print.wrapping_sub(gone));
        assert_eq!(state.expired_fingerprint(UnixMillis(29)), 0);
        state.apply(&HistoryChange::Clear(1));
        assert!(state.expiry_times.is_empty());
    }

    #[test]
    fn a_prefix_is_found_by_its_state_at_a_time() {
        let mut history = CommitHistory::default();
        history.begin_commit(vec![HistoryChange::Create(0), put(b"a", b"1", 10)]);
        let mut found = history.newest().clone();
        let find =
            |state: &ExpectedState, now| history.find_prefix(state.fingerprint(), 1, 1, UnixMillis(now));
        assert_eq!((find(&found, 9), find(&found, 10)), (Some(1), None));
        found.expire(UnixMillis(10));
        assert_eq!((find(&found, 9), find(&found, 10)), (None, Some(1)));
    }
}
