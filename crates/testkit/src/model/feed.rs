//! # Steps of the change feed
//!
//! A replica follows the feed from the step [`follow`](ModelRunner::follow) on, across reopenings
//! and kills. When it has caught up, it must equal the maps.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sheaf::{ChangeRetention, Error};

use super::execute::{ModelRunner, StepResult, expect_ok, same};
use super::steps::SPACES;
use crate::replica::{Replica, keep_all_changes};

impl ModelRunner<'_> {
    /// Reopens the database with this limit of retained changes and copies a new replica.
    pub(super) fn follow(&mut self, retained_bytes: u64) -> StepResult {
        self.retention = Some(ChangeRetention::new(retained_bytes, Duration::from_secs(u64::MAX)));
        self.reopen(true)?;
        self.replica = Some(expect_ok("a copy of the database", Replica::copy_of(self.db()))?);
        self.catch_up()
    }

    /// Applies the new changes to the replica, if there is one, and compares it with the maps. A
    /// replica that is too old is copied again.
    pub(super) fn catch_up(&mut self) -> StepResult {
        let Some(mut replica) = self.replica.take() else { return Ok(()) };
        self.remove_expired()?;
        expect_ok("persist", self.db().persist())?;
        match replica.catch_up(self.db()) {
            Err(Error::ChangesTooOld { .. }) if self.retention != Some(keep_all_changes()) => {
                replica = expect_ok("a copy of the database", Replica::copy_of(self.db()))?;
            }
            caught_up => drop(expect_ok("the change feed", caught_up)?),
        }
        for (space, map) in (0..SPACES).zip(&self.maps) {
            let name = self.name(space);
            let found = replica.keyspaces.get(name).cloned().unwrap_or_default();
            let found: BTreeMap<Vec<u8>, Arc<[u8]>> =
                found.into_iter().map(|(key, value)| (key, value.into())).collect();
            same(format_args!("the replica of {name:?}"), &found, map)?;
        }
        self.replica = Some(replica);
        Ok(())
    }
}
