//! # Change feed: committed changes in commit order, and named cursors
//!
//! A feed handle holds one commit and moves through its changes. Positions are texts.

use std::fmt::Display;
use std::mem::MaybeUninit;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::json;
use sheaf::{Change, ChangeCursor, ChangeKind, ChangePosition, Changes, CommittedChanges};

use crate::boundary::code::{sheaf_change_kind, sheaf_code};
use crate::boundary::error::sheaf_error;
use crate::boundary::json;
use crate::boundary::memory::{handle_out, sheaf_bytes, sheaf_value};
use crate::boundary::{self, Exclusive, Outcome, call, found, given, invalid};
use crate::database::sheaf_db;
use crate::snapshot::sheaf_snapshot;

/// Longest single wait of a call without a limit.
const WAIT: Duration = Duration::from_secs(3600);

/// The changes after a position, commit by commit.
pub struct sheaf_changes(Exclusive<Feed>);

struct Feed {
    /// `None` only while a filter is added.
    changes: Option<Changes>,
    commit: Option<CommittedChanges>,
    /// Number of changes of the commit that were returned. The last of them is the current one.
    returned: usize,
}

impl Feed {
    fn handle(changes: Changes) -> *mut sheaf_changes {
        let feed = Feed { changes: Some(changes), commit: None, returned: 0 };
        Box::into_raw(Box::new(sheaf_changes(Exclusive::new(feed))))
    }

    fn changes(&mut self) -> Outcome<&mut Changes> {
        self.changes.as_mut().ok_or_else(|| invalid("changes", "an earlier call failed; free it"))
    }

    fn filter(&mut self, add: impl FnOnce(Changes) -> Changes) -> Outcome<()> {
        self.changes()?;
        self.changes = self.changes.take().map(add);
        Ok(())
    }

    /// Returns the change that the last call returned.
    fn current(&self) -> Outcome<&Change> {
        let index = self.returned.checked_sub(1);
        let change = self.commit.as_ref().and_then(|commit| commit.changes.get(index?));
        change.ok_or_else(|| invalid("changes", "no change was returned yet"))
    }
}

/// Returns the position of a text.
fn position_of(text: &sheaf_bytes<'_>) -> Outcome<ChangePosition> {
    Ok(text.text("position")?.parse::<ChangePosition>()?)
}

/// Writes a position, which `find` returns, to `place` as a text.
fn write_position<T: Display>(
    place: Option<&mut MaybeUninit<*mut sheaf_value>>,
    find: impl FnOnce() -> Outcome<T>,
) -> Outcome<()> {
    let place = handle_out(place, "position")?;
    place.write(sheaf_value::handle(find()?.to_string()));
    Ok(())
}

/// Returns the position before the oldest change that is retained, as a text. Returns
/// `SHEAF_INVALID_ARGUMENT` if the database retains no changes.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_db_oldest_change(
    db: Option<&sheaf_db>,
    position: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || write_position(position, || Ok(given(db, "db")?.0.oldest_change()?)))
}

/// Returns the position after the newest commit, as a text. Waits until that commit is on the
/// device. Returns `SHEAF_INVALID_ARGUMENT` if the database retains no changes.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_db_newest_change(
    db: Option<&sheaf_db>,
    position: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || write_position(position, || Ok(given(db, "db")?.0.newest_change()?)))
}

/// Returns the position after the newest commit that the snapshot shows, as a text. Copy the
/// snapshot, and read the changes after this position, without a gap.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_snapshot_change_position(
    snapshot: Option<&sheaf_snapshot>,
    position: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || write_position(position, || Ok(given(snapshot, "snapshot")?.0.change_position()?)))
}

/// Creates a feed of the changes of all commits after `position`, over all keyspaces and engines.
/// The database must retain changes (`sheaf_options_set_retain_changes`). Returns
/// `SHEAF_CHANGES_TOO_OLD` if the changes after `position` are no longer retained.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_db_changes(
    db: Option<&sheaf_db>,
    position: sheaf_bytes<'_>,
    changes: Option<&mut MaybeUninit<*mut sheaf_changes>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let changes = handle_out(changes, "changes")?;
        changes.write(Feed::handle(given(db, "db")?.0.changes(position_of(&position)?)?));
        Ok(())
    })
}

/// Delivers only changes of the keyspace `name`, and of those of further calls.
///
/// Threads: one at a time for each feed.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_changes_add_keyspace(
    changes: Option<&sheaf_changes>,
    name: sheaf_bytes<'_>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let name = name.text("name")?;
        given(changes, "changes")?.0.lock("feed")?.filter(|changes| changes.keyspace(name))
    })
}

/// Delivers only changes of keys that start with `prefix`, and with those of further calls. Changes
/// of ranges and of whole keyspaces are delivered nevertheless.
///
/// Threads: one at a time for each feed.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_changes_add_prefix(
    changes: Option<&sheaf_changes>,
    prefix: sheaf_bytes<'_>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let prefix = prefix.get("prefix")?;
        given(changes, "changes")?.0.lock("feed")?.filter(|changes| changes.prefix(prefix))
    })
}

/// Delivers commits as soon as they are visible, and not only when they are on the device. After a
/// power failure the database may lack a commit that was delivered.
///
/// Threads: one at a time for each feed.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_changes_include_unsynced(
    changes: Option<&sheaf_changes>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || given(changes, "changes")?.0.lock("feed")?.filter(Changes::include_unsynced))
}

/// Moves to the next commit, and writes the number of its changes to `count`, unless that is NULL.
/// Waits up to `timeout_ms` milliseconds; `UINT64_MAX` sets no limit. Returns `SHEAF_NOT_FOUND` if
/// there is no commit within this time, and `SHEAF_CHANGES_TOO_OLD` if the consumer was too slow.
///
/// Threads: one at a time for each feed. `sheaf_db_close` in another thread ends the wait.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_changes_next_commit(
    changes: Option<&sheaf_changes>,
    timeout_ms: u64,
    count: Option<&mut MaybeUninit<usize>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let mut feed = given(changes, "changes")?.0.lock("feed")?;
        (feed.commit, feed.returned) = (None, 0);
        let mut left = Duration::from_millis(timeout_ms);
        let commit = loop {
            let wait = left.min(WAIT);
            let commit = feed.changes()?.next_within(wait)?;
            left -= if timeout_ms == u64::MAX { Duration::ZERO } else { wait };
            if commit.is_some() || left.is_zero() {
                break found(commit)?;
            }
        };
        if let Some(count) = count {
            count.write(commit.changes.len());
        }
        feed.commit = Some(commit);
        Ok(())
    })
}

/// Moves to the next change of the commit. Writes its kind (`SHEAF_CHANGE_KIND_*`), its keyspace,
/// its key and its end (each may be NULL). The key of a removed range is its first key, and `end`
/// is the key after it, or has NULL as its data if the range has no end. A change of a whole
/// keyspace has no key; the end of a rename is the new name. The bytes are valid until the next
/// call of `sheaf_changes_next_commit`.
/// Returns `SHEAF_NOT_FOUND` after the last change of the commit.
///
/// Threads: one at a time for each feed.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_changes_next_change<'a>(
    changes: Option<&'a sheaf_changes>,
    kind: Option<&mut MaybeUninit<i32>>,
    keyspace: Option<&mut MaybeUninit<sheaf_bytes<'a>>>,
    key: Option<&mut MaybeUninit<sheaf_bytes<'a>>>,
    end: Option<&mut MaybeUninit<sheaf_bytes<'a>>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let keyspace = keyspace.map(|keyspace| keyspace.write(sheaf_bytes::empty()));
        let key = key.map(|key| key.write(sheaf_bytes::empty()));
        let end = end.map(|end| end.write(sheaf_bytes::empty()));
        let mut feed = given(changes, "changes")?.0.lock("feed")?;
        let returned = feed.returned;
        let change = found(feed.commit.as_ref().and_then(|commit| commit.changes.get(returned)))?;
        if let Some(kind) = kind {
            kind.write(code_of(&change.kind) as i32);
        }
        if let Some(keyspace) = keyspace {
            *keyspace = sheaf_bytes::lent(change.keyspace.as_bytes());
        }
        if let (Some(key), Some(bytes)) = (key, change.kind.key()) {
            *key = sheaf_bytes::lent(bytes);
        }
        match (end, &change.kind) {
            (Some(end), ChangeKind::RangeRemoved { end: Some(bytes), .. }) => {
                *end = sheaf_bytes::lent(bytes);
            }
            (Some(end), ChangeKind::Renamed { to }) => *end = sheaf_bytes::lent(to.as_bytes()),
            _ => {}
        }
        feed.returned += 1;
        Ok(())
    })
}

/// Returns the constant of a kind.
fn code_of(kind: &ChangeKind) -> sheaf_change_kind {
    use sheaf_change_kind::*;
    match kind {
        ChangeKind::Put { .. } => SHEAF_CHANGE_KIND_PUT,
        ChangeKind::Removed { .. } => SHEAF_CHANGE_KIND_REMOVED,
        ChangeKind::RangeRemoved { .. } => SHEAF_CHANGE_KIND_RANGE_REMOVED,
        ChangeKind::Expired { .. } => SHEAF_CHANGE_KIND_EXPIRED,
        ChangeKind::Created { .. } => SHEAF_CHANGE_KIND_CREATED,
        ChangeKind::Cleared => SHEAF_CHANGE_KIND_CLEARED,
        ChangeKind::Loaded { .. } => SHEAF_CHANGE_KIND_LOADED,
        ChangeKind::Converted { .. } => SHEAF_CHANGE_KIND_CONVERTED,
        ChangeKind::Dropped => SHEAF_CHANGE_KIND_DROPPED,
        ChangeKind::Renamed { .. } => SHEAF_CHANGE_KIND_RENAMED,
        _ => SHEAF_CHANGE_KIND_OTHER,
    }
}

/// Returns the value of the current change, which must be `SHEAF_CHANGE_KIND_PUT`. Reads a large
/// value from its file. Writes the milliseconds since 1970 at which the pair expires to
/// `expires_at_ms`, unless that is NULL; 0 if it does not expire. Returns `SHEAF_CHANGES_TOO_OLD`
/// if the value is no longer retained.
///
/// Threads: one at a time for each feed.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_changes_value(
    changes: Option<&sheaf_changes>,
    value: Option<&mut MaybeUninit<*mut sheaf_value>>,
    expires_at_ms: Option<&mut MaybeUninit<u64>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let place = handle_out(value, "value")?;
        let feed = given(changes, "changes")?.0.lock("feed")?;
        let ChangeKind::Put { value, expires_at, .. } = &feed.current()?.kind else {
            return Err(invalid("changes", "the change has no value"));
        };
        if let Some(expires_at_ms) = expires_at_ms {
            let since = expires_at.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            let ms = since.map_or(0, |since| since.as_millis());
            expires_at_ms.write(u64::try_from(ms).unwrap_or(u64::MAX));
        }
        place.write(sheaf_value::handle(value.read()?));
        Ok(())
    })
}

/// Returns the engine and the options of the current change as a JSON object with `engine` and
/// `options`. It must be `SHEAF_CHANGE_KIND_CREATED`, `SHEAF_CHANGE_KIND_LOADED` or
/// `SHEAF_CHANGE_KIND_CONVERTED`.
///
/// Threads: one at a time for each feed.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_changes_engine(
    changes: Option<&sheaf_changes>,
    description: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let place = handle_out(description, "description")?;
        let feed = given(changes, "changes")?.0.lock("feed")?;
        let Some((engine, options)) = feed.current()?.kind.engine() else {
            return Err(invalid("changes", "the change has no engine"));
        };
        let options: serde_json::Value = options.iter().map(|(name, value)| (name.clone(), *value)).collect();
        place.write(json::handle(&json!({ "engine": engine, "options": options })));
        Ok(())
    })
}

/// Returns the position after the commits that were delivered or filtered out, as a text.
/// `sheaf_db_changes` continues there.
///
/// Threads: one at a time for each feed.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_changes_position(
    changes: Option<&sheaf_changes>,
    position: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        write_position(position, || {
            Ok(given(changes, "changes")?.0.lock("feed")?.changes()?.resume_position())
        })
    })
}

/// Frees a feed. NULL is allowed.
///
/// Threads: any. No other call may use the feed.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_changes_free(changes: Option<Box<sheaf_changes>>) {
    boundary::release(changes);
}

/// Named, durable position of a consumer of the change feed.
pub struct sheaf_change_cursor(ChangeCursor);

/// Opens the named cursor `name` (UTF-8, 1 to 255 bytes); creates it durably, before the oldest
/// change that is retained, if it does not exist.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_db_change_cursor(
    db: Option<&sheaf_db>,
    name: sheaf_bytes<'_>,
    cursor: Option<&mut MaybeUninit<*mut sheaf_change_cursor>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let place = handle_out(cursor, "cursor")?;
        let opened = given(db, "db")?.0.change_cursor(name.text("name")?)?;
        place.write(Box::into_raw(Box::new(sheaf_change_cursor(opened))));
        Ok(())
    })
}

/// Returns the named cursors as a JSON array of objects with `name`, `position` and `commit`,
/// sorted by name.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_db_change_cursors(
    db: Option<&sheaf_db>,
    cursors: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let place = handle_out(cursors, "cursors")?;
        let cursors = given(db, "db")?.0.change_cursors()?;
        let entries = cursors.iter().map(|cursor| {
            let (position, commit) = (cursor.position.to_string(), cursor.position.commit());
            json!({ "name": cursor.name, "position": position, "commit": commit })
        });
        place.write(json::handle(&entries.collect()));
        Ok(())
    })
}

/// Removes the named cursor `name` durably. Returns `SHEAF_NOT_FOUND` if it does not exist.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_db_remove_change_cursor(
    db: Option<&sheaf_db>,
    name: sheaf_bytes<'_>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let is_removed = given(db, "db")?.0.remove_change_cursor(name.text("name")?)?;
        found(is_removed.then_some(()))
    })
}

/// Returns the position that was committed last, as a text.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_change_cursor_position(
    cursor: Option<&sheaf_change_cursor>,
    position: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || write_position(position, || Ok(given(cursor, "cursor")?.0.position()?)))
}

/// Creates a feed of the changes after the position of the cursor, like `sheaf_db_changes`.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_change_cursor_changes(
    cursor: Option<&sheaf_change_cursor>,
    changes: Option<&mut MaybeUninit<*mut sheaf_changes>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let place = handle_out(changes, "changes")?;
        place.write(Feed::handle(given(cursor, "cursor")?.0.changes()?));
        Ok(())
    })
}

/// Moves the cursor to `position`, durably. Costs a write and a sync, so a consumer should commit
/// after many changes and not after each.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_change_cursor_commit(
    cursor: Option<&sheaf_change_cursor>,
    position: sheaf_bytes<'_>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || Ok(given(cursor, "cursor")?.0.commit(position_of(&position)?)?))
}

/// Frees the handle of a cursor. The cursor stays in the database. NULL is allowed.
///
/// Threads: any. No other call may use the handle.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_change_cursor_free(cursor: Option<Box<sheaf_change_cursor>>) {
    boundary::release(cursor);
}
