//! Sessions of a web site: read by their token at each request, renewed, and removed at their end.
//! A batch changes two keyspaces of two engines together: by token, and by the time of the end.
//!
//! `cargo run -p sheaf-db --example sessions [DIR]`

use std::path::Path;

use sheaf::{Batch, Database, Error, Keyspace, KeyspaceOptions, Result};

/// Seconds from the last use of a session to its end.
const LIFE: u64 = 1_800;
/// Number of sessions that one commit removes.
const AT_ONCE: usize = 500;

struct Sessions {
    db: Database,
    /// Token, with end and user as the value: whole keys only, no order.
    by_token: Keyspace,
    /// End and token, without a value: in order, so that ended sessions are the first.
    by_end: Keyspace,
}

fn end_key(end: u64, token: &[u8]) -> Vec<u8> {
    [&end.to_be_bytes(), token].concat()
}

/// Decodes the end and the user of a session.
fn read(stored: &[u8]) -> Option<(u64, &[u8])> {
    let (end, user) = stored.split_first_chunk()?;
    Some((u64::from_be_bytes(*end), user))
}

impl Sessions {
    fn open(dir: &Path) -> Result<Sessions> {
        let db = Database::open(dir)?;
        let by_token = db.keyspace("by-token", KeyspaceOptions::default().engine("cedrus"))?;
        let by_end = db.keyspace("by-end", KeyspaceOptions::default().engine("flex"))?;
        Ok(Sessions { db, by_token, by_end })
    }

    fn set(&self, batch: &mut Batch, token: &[u8], user: &[u8], end: u64) {
        batch.insert(&self.by_token, token, [&end.to_be_bytes(), user].concat());
        batch.insert(&self.by_end, end_key(end, token), "");
    }

    fn log_in(&self, token: &[u8], user: &str, now: u64) -> Result<()> {
        let mut batch = self.db.batch();
        self.set(&mut batch, token, user.as_bytes(), now + LIFE);
        batch.commit()
    }

    /// Extends a session and returns its user, or `None` if it has ended.
    fn renew(&self, token: &[u8], now: u64) -> Result<Option<String>> {
        loop {
            let Some(stored) = self.by_token.get(token)? else { return Ok(None) };
            let Some((end, user)) = read(&stored).filter(|(end, _)| *end > now) else { return Ok(None) };
            let mut batch = self.db.batch();
            batch
                .expect_value(&self.by_token, token, Some(&stored))
                .remove(&self.by_end, end_key(end, token));
            self.set(&mut batch, token, user, now + LIFE);
            match batch.commit() {
                Err(Error::Conflict { .. }) => {} // another request of this session committed first
                done => return done.map(|()| Some(String::from_utf8_lossy(user).into_owned())),
            }
        }
    }

    /// Removes ended sessions and returns their number.
    fn sweep(&self, now: u64) -> Result<usize> {
        let mut removed = 0;
        loop {
            let mut batch = self.db.batch();
            for pair in self.by_end.range(..end_key(now, &[]))?.take(AT_ONCE) {
                let (key, _) = pair?;
                batch.remove(&self.by_token, &key[8..]).remove(&self.by_end, &key);
            }
            if batch.is_empty() {
                return Ok(removed);
            }
            removed += batch.len() / 2;
            batch.commit()?;
        }
    }
}

/// Simulates an hour of a site. Returns the number of remaining sessions by token and by end.
fn run(dir: &Path) -> Result<(u64, u64)> {
    let sessions = Sessions::open(dir)?;
    let (mut ended, mut renewed) = (0, 0);
    for now in (0..3_600u64).step_by(2) {
        sessions.log_in(format!("token-{now}").as_bytes(), &format!("user-{}", now % 97), now)?;
        // Half of the users return some minutes later.
        let before = now.saturating_sub(600) / 4 * 4;
        renewed += u64::from(sessions.renew(format!("token-{before}").as_bytes(), now)?.is_some());
        if now % 300 == 0 {
            ended += sessions.sweep(now)?;
        }
    }
    let left = (sessions.by_token.len()?, sessions.by_end.len()?);
    println!("renewed {renewed} times, {ended} ended, {} go on", left.0);
    sessions.db.close()?;
    Ok(left)
}

fn main() -> Result<()> {
    let mine = std::env::temp_dir().join("sheaf-example-sessions");
    run(std::env::args_os().nth(1).as_deref().map_or(&mine, Path::new)).map(drop)
}

#[cfg(test)]
mod tests {
    #[test]
    fn both_keyspaces_always_have_the_same_sessions() {
        let dir = tempfile::tempdir().unwrap();
        let (by_token, by_end) = super::run(dir.path()).unwrap();
        assert_eq!(by_token, by_end);
        assert!((900..1_300).contains(&by_token), "{by_token}");
    }
}
