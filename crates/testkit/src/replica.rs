//! # Replica: a copy of a database in memory, built from a snapshot and the change feed
//!
//! The consumer of the harnesses. After a change of a whole keyspace by a bulk load the replica
//! copies that keyspace from a new snapshot, as a real consumer must.

use std::collections::BTreeMap;
use std::time::Duration;

use sheaf::{ChangeKind, ChangePosition, ChangeRetention, CommittedChanges, Database, Result, Snapshot};

/// Pairs by keyspace and key.
pub type ReplicaPairs = BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>;

/// Returns the retention that frees nothing.
#[must_use]
pub fn keep_all_changes() -> ChangeRetention {
    ChangeRetention::new(u64::MAX, Duration::from_secs(u64::MAX))
}

/// Replica of a database.
#[derive(Clone, Debug)]
pub struct Replica {
    /// The content.
    pub keyspaces: ReplicaPairs,
    /// Position of the last commit that was applied.
    pub position: ChangePosition,
}

impl Replica {
    /// Returns a replica without content that starts at `position`.
    #[must_use]
    pub fn empty_at(position: ChangePosition) -> Replica {
        Replica { keyspaces: ReplicaPairs::new(), position }
    }

    /// Returns a copy of the present state.
    ///
    /// # Errors
    ///
    /// Returns the error of the first call that fails.
    pub fn copy_of(db: &Database) -> Result<Replica> {
        let snapshot = db.snapshot()?;
        Ok(Replica { keyspaces: read_snapshot(&snapshot)?, position: snapshot.change_position()? })
    }

    /// Applies all durable commits after the position. Returns their number.
    ///
    /// # Errors
    ///
    /// Returns the error of the first call that fails.
    pub fn catch_up(&mut self, db: &Database) -> Result<usize> {
        let (mut changes, mut count) = (db.changes(self.position)?, 0);
        while let Some(commit) = changes.try_next()? {
            self.apply(db, &commit)?;
            count += 1;
        }
        self.position = changes.resume_position();
        Ok(count)
    }

    /// Applies one commit.
    ///
    /// # Errors
    ///
    /// Returns the error of a read of a large value or of a snapshot.
    pub fn apply(&mut self, db: &Database, commit: &CommittedChanges) -> Result<()> {
        for change in &commit.changes {
            let name = change.keyspace.to_string();
            match &change.kind {
                ChangeKind::Put { key, value, .. } => {
                    self.keyspaces.entry(name).or_default().insert(key.clone(), value.read()?);
                }
                ChangeKind::Removed { key } | ChangeKind::Expired { key } => {
                    self.keyspaces.entry(name).or_default().remove(key);
                }
                ChangeKind::RangeRemoved { start, end } => {
                    let is_removed = |key: &Vec<u8>| key >= start && end.as_ref().is_none_or(|end| key < end);
                    self.keyspaces.entry(name).or_default().retain(|key, _| !is_removed(key));
                }
                ChangeKind::Created { .. } | ChangeKind::Cleared => {
                    self.keyspaces.insert(name, BTreeMap::new());
                }
                ChangeKind::Loaded { .. } => {
                    let snapshot = db.snapshot()?;
                    snapshot.change_position()?; // a power cut must not take back the copy
                    let mut now = read_snapshot(&snapshot)?;
                    self.keyspaces.insert(name.clone(), now.remove(&name).unwrap_or_default());
                }
                ChangeKind::Renamed { to } => {
                    let pairs = self.keyspaces.remove(&name).unwrap_or_default();
                    self.keyspaces.insert(to.to_string(), pairs);
                }
                ChangeKind::Dropped => {
                    self.keyspaces.remove(&name);
                }
                _ => {} // a conversion changes no pair
            }
        }
        self.position = commit.position;
        Ok(())
    }
}

/// Returns the content of a snapshot.
///
/// # Errors
///
/// Returns the error of the first call that fails.
pub fn read_snapshot(snapshot: &Snapshot) -> Result<ReplicaPairs> {
    let mut found = ReplicaPairs::new();
    for name in snapshot.keyspaces() {
        let pairs = snapshot.keyspace(&name)?.iter()?.map(|pair| {
            let (key, value) = pair?;
            Ok((key.to_vec(), value.to_vec()))
        });
        found.insert(name, pairs.collect::<Result<_>>()?);
    }
    Ok(found)
}
