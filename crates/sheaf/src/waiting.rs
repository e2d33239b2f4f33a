//! # Waiting: for a database that another process uses
//!
//! ```text
//!  writer: try ─ busy ─> first in the queue? ─ no ─> check again in 10 ms ─┐
//!                              │ yes: later readers wait                   │
//!                              └─> try every 3 ms ───────────────────────> opened, or timeout
//!  reader: a writer waits? ─ yes, for half a second at most ─> only attach to the owner
//!          try, or attach to the owner, every 5 to 20 ms ───────────────> opened, or timeout
//! ```
//!
//! The timeout counts from the last change of the owner, so that a command in a queue waits as long
//! as the queue moves, and at most [`TIMES`] times its timeout. A change shows in the number in
//! `LOCK`.
//!
//! The lock is polled. `flock` has no variant with a deadline, and no event reports its release
//! everywhere: inotify reports the last close of a file, which a forked child delays, only on local
//! file systems, and for at most 128 instances per user. An attempt takes about 50 µs, so that the
//! first process in the queue uses about 2 % of a processor, and the others almost nothing.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sheaf_base::clock::{Clock, SystemClock};
use sheaf_base::disk::Share;
use sheaf_base::disk::holder::Turn;

use crate::Error;
use crate::door::lock_of;

/// Most times that the timeout is extended, as a multiple of itself.
const TIMES: u32 = 12;
/// Longest time that a reader lets waiting writers go first.
const COURTESY: Duration = Duration::from_millis(500);
/// Interval between attempts of the first writer in the queue.
const FIRST: Duration = Duration::from_millis(3);
/// Interval between checks of the other writers.
const QUEUED: Duration = Duration::from_millis(10);
/// Interval between attempts of a reader: the first, and the longest.
const READER: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(20)];

/// An opening that waits.
pub(crate) struct Waiting {
    dir: PathBuf,
    is_reader: bool,
    limit: Duration,
    /// Start of the wait, and of the wait for the present owner.
    began: Duration,
    since: Duration,
    /// Last known content of the lock file.
    said: Option<Vec<u8>>,
    turn: Option<Turn>,
    pause: Duration,
    is_last: bool,
}

impl Waiting {
    /// Begins to wait for the database in `dir`, for at most `limit` while the owner stays the
    /// same.
    pub(crate) fn new(dir: &Path, is_reader: bool, limit: Duration) -> Waiting {
        let now = SystemClock.now();
        let said = if limit.is_zero() { None } else { lock_of(dir).ok() };
        let pause = if is_reader { READER[0] } else { FIRST };
        let dir = dir.to_path_buf();
        Waiting { dir, is_reader, limit, began: now, since: now, said, turn: None, pause, is_last: false }
    }

    /// Returns true if `error` may disappear without intervention.
    pub(crate) fn is_for(error: &Error) -> bool {
        matches!(error, Error::Locked { .. } | Error::OwnerGone { .. })
    }

    /// Returns true if this reader must not take the lock yet because a writer waits for it.
    pub(crate) fn gives_way(&self) -> bool {
        self.is_reader
            && !self.limit.is_zero()
            && !self.is_last
            && SystemClock.now().saturating_sub(self.began) < COURTESY
            && Turn::is_taken(&self.dir)
    }

    /// Waits until the next attempt. Returns false after the timeout.
    pub(crate) fn again(&mut self) -> bool {
        if self.limit.is_zero() || self.is_last {
            return false;
        }
        loop {
            let (now, says) = (SystemClock.now(), lock_of(&self.dir).ok());
            if says != self.said {
                (self.said, self.since) = (says, now);
            }
            let left = (self.since + self.limit).min(self.began + self.limit.saturating_mul(TIMES));
            let left = left.saturating_sub(now);
            self.is_last = left.is_zero();
            if self.is_last {
                return true; // one last attempt
            }
            pause(self.pause.min(left));
            if self.is_reader {
                self.pause = (self.pause + READER[0]).min(READER[1]);
                return true;
            }
            self.turn = self.turn.take().or_else(|| Turn::take(&self.dir, Share::Exclusive));
            self.pause = if self.turn.is_some() { FIRST } else { QUEUED };
            if self.turn.is_some() {
                return true;
            }
        }
    }
}

/// Sleeps for `time`.
fn pause(time: Duration) {
    let until = SystemClock.now() + time;
    loop {
        let left = until.saturating_sub(SystemClock.now());
        if left.is_zero() {
            return;
        }
        std::thread::park_timeout(left); // may return early: this thread may be unparked
    }
}
