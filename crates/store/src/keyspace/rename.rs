//! # Rename: a keyspace gets another name
//!
//! One synced commit in the journal removes the old name and gives the new one to the same number,
//! with the index of expiry times. Data and handles stay. The change feed makes one change of both
//! records.

use smallvec::{SmallVec, smallvec};

use super::catalog::{CatalogCause, catalog_record, check_keyspace_name, entry_of};
use crate::expiry::index::{index_name, is_hidden_name};
use crate::{KeyspaceState, Store};
use sheaf_log::record::{Record, RecordContent};
use sheaf_log::types::{Durability, Seq};
use sheaf_platform::error::{Error, Result};

impl Store {
    /// Gives the keyspace `name` the name `to`, durably. Names that begin like those of indexes are
    /// reserved.
    ///
    /// # Errors
    ///
    /// Returns [`Error::KeyspaceNotFound`] if there is no keyspace `name`, and otherwise the errors
    /// of [`Store::rename_keyspace`].
    pub fn rename_keyspace_by_name(&self, name: &str, to: &str) -> Result<()> {
        self.check_writable()?;
        check_keyspace_name(to)?;
        let _changing = self.catalog.lock_changes();
        let found = self.catalog.map().get(name).filter(|_| !is_hidden_name(name)).cloned();
        match found {
            Some(keyspace) => self.commit_rename(&keyspace, to),
            None => Err(Error::KeyspaceNotFound { name: name.to_owned() }),
        }
    }

    /// Gives `keyspace` the name `to`, durably.
    ///
    /// # Errors
    ///
    /// Returns [`Error::KeyspaceNotFound`] if the keyspace was dropped or replaced,
    /// [`Error::KeyspaceExists`] if another keyspace, or this one, has the name `to`, and
    /// [`Error::InvalidArgument`] if `to` is not a valid name. Returns [`Error::Closed`],
    /// [`Error::ReadOnly`] or [`Error::Poisoned`] if writes are not possible, and errors of the
    /// commit.
    pub fn rename_keyspace(&self, keyspace: &KeyspaceState, to: &str) -> Result<()> {
        self.check_writable()?;
        check_keyspace_name(to)?;
        let _changing = self.catalog.lock_changes();
        if keyspace.is_dropped() {
            return Err(Error::KeyspaceNotFound { name: keyspace.name().to_string() });
        }
        self.commit_rename(keyspace, to)
    }

    /// Commits a rename. The caller holds `change_lock`.
    fn commit_rename(&self, keyspace: &KeyspaceState, to: &str) -> Result<()> {
        let map = self.catalog.map();
        if map.contains_key(to) {
            return Err(Error::KeyspaceExists { name: to.to_owned() });
        }
        let from = keyspace.name();
        let mut renames: SmallVec<[(String, String); 2]> = smallvec![(from.to_string(), to.to_owned())];
        if map.contains_key(&index_name(&from)) {
            renames.push((index_name(&from), index_name(to)));
        }
        let cause = self.changes.is_on().then_some(CatalogCause::Created);
        let entries: SmallVec<[Vec<u8>; 2]> =
            renames.iter().filter_map(|(from, _)| map.get(from)).map(|k| entry_of(k, cause)).collect();
        let records: SmallVec<[Record<'_>; 4]> = renames
            .iter()
            .zip(&entries)
            .flat_map(|((from, to), entry)| {
                [catalog_record(from, RecordContent::Remove), catalog_record(to, RecordContent::Put(entry))]
            })
            .collect();
        // ROOT and every view that exists or is registered later may need a name from there on.
        let needed = self.durable().min(self.current_views().oldest().unwrap_or(Seq::LATEST));
        let seq = self.commit_catalog(&records, |seq| {
            for (from, to) in &renames {
                if let Some(keyspace) = self.catalog.rename(from, to, seq, needed) {
                    self.note_keyspace_renamed(&keyspace, from, seq);
                }
            }
        })?;
        self.acknowledge_unreported(seq, Durability::Sync)
    }
}
