//! # Merges: values that the operator of the keyspace computes

use super::Keyspace;
#[cfg(doc)]
use crate::Error;
use crate::{CommitTicket, Durability, Result};
use std::sync::Arc;

impl Keyspace {
    /// Lets the merge operator of the keyspace compute the value of `key` from its present value
    /// and `operand`, atomically, with the default durability of the database. Costs a get and an
    /// insert. Merges of one key that run at the same time share one commit. The value keeps the
    /// expiry time of the present pair; a new pair gets the default time to live.
    ///
    /// The keyspace must have been created with
    /// [`KeyspaceOptions::merge_operator`](crate::KeyspaceOptions::merge_operator).
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// let options = sheaf::KeyspaceOptions::default().merge_operator("add");
    /// let counters = db.keyspace("counters", options)?;
    /// counters.merge("logins", 2_i64.to_le_bytes())?;
    /// counters.merge("logins", (-1_i64).to_le_bytes())?;
    /// assert_eq!(counters.get("logins")?, Some(1_i64.to_le_bytes().into()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidArgument`] if the operator refuses the operand, if the keyspace has
    /// no merge operator, or if this process did not register it; the error names the operator.
    /// Otherwise the [read errors](Keyspace#read-errors) and [write errors](Keyspace#write-errors).
    /// Nothing is written then.
    pub fn merge(&self, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>) -> Result<()> {
        let durability = self.store().durability();
        let seq = self.store().merge_groups().merge(self, key.as_ref(), operand.as_ref())?;
        self.store().acknowledge(seq, durability)
    }

    /// Merges like [`Keyspace::merge`] without waiting for the device. On return the value is
    /// visible and survives the death of the process. The ticket waits for `durability`.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// let log = db.keyspace("log", sheaf::KeyspaceOptions::default().merge_operator("append"))?;
    /// log.submit_merge("today", "started;", sheaf::Durability::Sync)?.wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Keyspace::merge`].
    pub fn submit_merge(
        &self,
        key: impl AsRef<[u8]>,
        operand: impl AsRef<[u8]>,
        durability: Durability,
    ) -> Result<CommitTicket> {
        let seq = self.store().merge_groups().merge(self, key.as_ref(), operand.as_ref())?;
        Ok(CommitTicket::new(Arc::clone(self.store()), seq, durability))
    }
}
