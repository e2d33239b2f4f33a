//! # Query: the changes that a consumer wants

use sheaf_store::{Change, ChangeKind, ChangePosition, CommittedChanges};

/// Changes that [`AttachedOwner::changes`](crate::AttachedOwner::changes) delivers. The default is
/// all changes that the database retains.
///
/// ```
/// let query = sheaf::ChangeQuery::default().keyspace("users").prefix("a").follow();
/// # assert_ne!(query, sheaf::ChangeQuery::default());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangeQuery {
    pub(crate) from: Option<ChangePosition>,
    pub(crate) filter: ChangeFilter,
    pub(crate) is_following: bool,
}

impl ChangeQuery {
    /// Delivers the changes after this position, instead of the oldest ones.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # use sheaf::{ChangeRetention, Database};
    /// # let retention = ChangeRetention::new(1 << 30, std::time::Duration::from_secs(3600));
    /// let db = Database::builder().retain_changes(retention).open(dir.path())?;
    /// let query = sheaf::ChangeQuery::default().after(db.newest_change()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn after(mut self, position: ChangePosition) -> ChangeQuery {
        self.from = Some(position);
        self
    }

    /// Delivers only changes of this keyspace, and of those of further calls, like
    /// [`Changes::keyspace`](crate::Changes::keyspace).
    ///
    /// ```
    /// let query = sheaf::ChangeQuery::default().keyspace("users").keyspace("groups");
    /// ```
    #[must_use]
    pub fn keyspace(mut self, name: impl Into<String>) -> ChangeQuery {
        self.filter.keyspaces.push(name.into());
        self
    }

    /// Delivers only changes of keys with this prefix, and with those of further calls, like
    /// [`Changes::prefix`](crate::Changes::prefix).
    ///
    /// ```
    /// let query = sheaf::ChangeQuery::default().prefix("user:");
    /// ```
    #[must_use]
    pub fn prefix(mut self, prefix: impl AsRef<[u8]>) -> ChangeQuery {
        self.filter.prefixes.push(prefix.as_ref().to_vec());
        self
    }

    /// Waits for further commits after the present ones.
    ///
    /// ```
    /// let query = sheaf::ChangeQuery::default().follow();
    /// ```
    #[must_use]
    pub fn follow(mut self) -> ChangeQuery {
        self.is_following = true;
        self
    }
}

/// Keyspaces and keys of which a consumer wants the changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChangeFilter {
    /// Keyspaces to deliver; empty for all.
    pub(crate) keyspaces: Vec<String>,
    /// Prefixes of the keys to deliver; empty for all.
    pub(crate) prefixes: Vec<Vec<u8>>,
}

impl ChangeFilter {
    /// Removes the changes that the filter excludes. Returns `None` if none is left.
    pub(crate) fn wanted(&self, mut commit: CommittedChanges) -> Option<CommittedChanges> {
        commit.changes.retain(|change| self.is_wanted(change));
        (!commit.changes.is_empty()).then_some(commit)
    }

    pub(super) fn is_wanted(&self, change: &Change) -> bool {
        let is_keyspace = || {
            let selects = |keyspace: &str| self.keyspaces.iter().any(|name| name == keyspace);
            let is_new = matches!(&change.kind, ChangeKind::Renamed { to } if selects(to));
            is_new || selects(&change.keyspace)
        };
        if !self.keyspaces.is_empty() && !is_keyspace() {
            return false;
        }
        let has_prefix = |is_in: &dyn Fn(&[u8]) -> bool| {
            self.prefixes.is_empty() || self.prefixes.iter().any(|p| is_in(p))
        };
        match (&change.kind, change.kind.key()) {
            (ChangeKind::RangeRemoved { end, .. }, Some(start)) => has_prefix(&|prefix| {
                let begins = start <= prefix || start.starts_with(prefix);
                begins && end.as_ref().is_none_or(|end| *prefix < **end)
            }),
            (_, Some(key)) => has_prefix(&|prefix| key.starts_with(prefix)),
            (_, None) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range_removed(start: &str, end: Option<&str>) -> Change {
        let kind = ChangeKind::RangeRemoved { start: start.into(), end: end.map(Into::into) };
        Change { keyspace: "users".into(), kind }
    }

    #[test]
    fn a_prefix_excludes_removed_ranges_without_its_keys() {
        let filter = ChangeFilter { keyspaces: Vec::new(), prefixes: vec![b"mm".to_vec()] };
        for (start, end) in
            [("", None), ("mm", None), ("mmx", None), ("a", Some("mm\0")), ("mma", Some("mmb"))]
        {
            assert!(filter.is_wanted(&range_removed(start, end)), "{start} {end:?}");
        }
        for (start, end) in [("", Some("mm")), ("mn", None), ("a", Some("m")), ("n", Some("o"))] {
            assert!(!filter.is_wanted(&range_removed(start, end)), "{start} {end:?}");
        }
    }
}
