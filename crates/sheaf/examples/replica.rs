//! # Replica: a copy of a database that follows its change feed
//!
//! The program opens a shop with two keyspaces and a replica of it, which is a database of its own.
//! A thread follows the feed and applies each commit to the replica as one batch, together with its
//! position. So the replica continues at the right place after any stop, and no commit is applied
//! twice or by half.
//!
//! ```text
//!   shop ── commits ──> logs ── changes(position) ──> follower ── batch + position ──> replica
//!     └── snapshot, if the replica is new or too old ──────────────────────────────────┘
//! ```
//!
//! Run it twice: the second run continues with the position that the first one stored.

#![expect(clippy::disallowed_methods, reason = "a program, not the library")]

use std::ops::Bound;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use sheaf::{
    ChangeKind, ChangePosition, ChangeRetention, CommittedChanges, Database, Error, Expiry, Keyspace,
    KeyspaceOptions, Result,
};

/// Keyspace of the replica that stores the position, and its only key.
const PROGRESS: (&str, &str) = ("replica progress", "position");

/// A database that follows another one.
struct Replica {
    db: Database,
    progress: Keyspace,
}

impl Replica {
    fn open(path: &Path) -> Result<Replica> {
        let db = Database::open(path)?;
        let progress = db.keyspace(PROGRESS.0, "flat")?;
        Ok(Replica { db, progress })
    }

    /// Returns the position that was stored with the last commit.
    fn position(&self) -> Result<Option<ChangePosition>> {
        let stored = self.progress.get(PROGRESS.1)?;
        stored.map(|bytes| ChangePosition::from_bytes(&bytes)).transpose()
    }

    /// Opens or creates a keyspace. In each one pairs may expire, so it can copy any other.
    fn keyspace(&self, name: &str) -> Result<Keyspace> {
        self.db.keyspace(name, KeyspaceOptions::default().expiry())
    }

    /// Copies a snapshot of `source`. The position is stored at the end, so a copy that was
    /// interrupted begins again.
    fn copy_from(&self, source: &Database) -> Result<ChangePosition> {
        let snapshot = source.snapshot()?;
        let position = snapshot.change_position()?;
        for info in self.db.keyspaces() {
            if info.name != PROGRESS.0 {
                self.db.drop_keyspace(&info.name)?;
            }
        }
        for name in snapshot.keyspaces() {
            let copy = self.keyspace(&name)?;
            let shown = snapshot.keyspace(&name)?;
            for pair in shown.iter()? {
                let (key, value) = pair?;
                let expiry = shown.expires_at(&key)?.unwrap_or(Expiry::Never);
                copy.insert_with_expiry(key, value, expiry)?;
            }
        }
        self.db.persist()?;
        self.progress.insert(PROGRESS.1, position.to_bytes())?;
        Ok(position)
    }

    /// Applies a commit of the source and its position as one commit.
    fn apply(&self, source: &Database, commit: &CommittedChanges) -> Result<()> {
        let mut batch = self.db.batch();
        for change in &commit.changes {
            match &change.kind {
                ChangeKind::Put { key, value, expires_at } => {
                    let expiry = expires_at.map_or(Expiry::Never, Expiry::At);
                    batch.insert_with_expiry(&self.keyspace(&change.keyspace)?, key, value.read()?, expiry);
                }
                ChangeKind::Removed { key } | ChangeKind::Expired { key } => {
                    batch.remove(&self.keyspace(&change.keyspace)?, key);
                }
                ChangeKind::RangeRemoved { start, end } => {
                    let range =
                        (Bound::Included(start), end.as_ref().map_or(Bound::Unbounded, Bound::Excluded));
                    batch.remove_range(&self.keyspace(&change.keyspace)?, range);
                }
                // These are the only changes of their commits. Applied twice they do no harm.
                ChangeKind::Created { .. } => drop(self.keyspace(&change.keyspace)?),
                ChangeKind::Cleared => drop(self.keyspace(&change.keyspace)?.clear()?),
                ChangeKind::Renamed { to } => match self.db.rename_keyspace(&change.keyspace, to) {
                    Err(Error::KeyspaceNotFound { .. }) => {} // it was renamed before
                    renamed => renamed?,
                },
                ChangeKind::Dropped => drop(self.db.drop_keyspace(&change.keyspace)?),
                ChangeKind::Converted { .. } => {} // the pairs are the same
                // The feed does not have the pairs of a bulk load.
                _ => drop(self.copy_from(source)?),
            }
        }
        batch.insert(&self.progress, PROGRESS.1, commit.position.to_bytes());
        batch.commit()
    }

    /// Follows `source` until it is closed or its position has reached `end`.
    fn follow(&self, source: &Database, end: impl Fn(ChangePosition) -> bool) -> Result<u64> {
        let mut count = 0;
        let mut position = match self.position()? {
            Some(position) => position,
            None => self.copy_from(source)?,
        };
        loop {
            let mut changes = match source.changes(position) {
                Err(Error::ChangesTooOld { .. }) => {
                    position = self.copy_from(source)?;
                    continue;
                }
                changes => changes?,
            };
            while !end(changes.resume_position()) {
                match changes.next_within(Duration::from_millis(200)) {
                    Ok(Some(commit)) => {
                        self.apply(source, &commit)?;
                        count += 1;
                    }
                    Ok(None) => {}
                    Err(Error::ChangesTooOld { .. }) => break,
                    Err(error) => return Err(error),
                }
            }
            position = changes.resume_position();
            if end(position) {
                return Ok(count);
            }
        }
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let scratch = tempfile::tempdir()?;
    let dir = std::env::args_os().nth(1).map_or_else(|| scratch.path().to_path_buf(), Into::into);
    let retention = ChangeRetention::new(1 << 30, Duration::from_secs(24 * 3600));
    let shop = Database::builder().retain_changes(retention).open(dir.join("shop"))?;
    let replica = Replica::open(&dir.join("replica"))?;
    let (stock, orders) = (shop.keyspace("stock", "flex")?, shop.keyspace("orders", "flat")?);

    let end = Arc::new(OnceLock::new());
    let writer = {
        let (shop, end) = (shop.clone(), Arc::clone(&end));
        thread::spawn(move || -> Result<()> {
            for number in 0..1000_u32 {
                let mut order = shop.batch();
                order.insert(&orders, number.to_be_bytes(), "one cup");
                order.insert(&stock, "cups", (1000 - number).to_string());
                order.commit()?;
            }
            let last = shop.newest_change()?;
            end.set(last).expect("it is set once");
            Ok(())
        })
    };
    let count = replica.follow(&shop, |position| end.get().is_some_and(|end| position >= *end))?;
    writer.join().expect("the writer does not panic")?;

    let left = replica.keyspace("stock")?.get("cups")?.expect("the stock was replicated");
    println!("the replica applied {count} commits and has {} cups", String::from_utf8_lossy(&left));
    assert_eq!(replica.keyspace("orders")?.len()?, shop.keyspace("orders", "flat")?.len()?);
    replica.db.close()?;
    Ok(shop.close()?)
}
