//! # Waiting: for a database that another process uses
//!
//! ```text
//!  writer: try ─ busy ─> first in the queue? ─ no ─> look again in 10 ms ─┐
//!                              │ yes: later readers give way              │
//!                              └─> try every 3 ms ──────────────────────> opened, or the time is up
//!  reader: a writer waits? ─ yes, for half a second at most ─> only beside the owner
//!          try, or read beside the owner, every 5 to 20 ms ─────────────> opened, or the time is up
//! ```
//!
//! The time counts from the last change of owner: a command that stands in line behind others waits as long as the line moves, and at
//! most [`TIMES`] times its time. A change shows in the number in `LOCK`.
//!
//! The lock is polled. `flock` has no form with a deadline, and no event tells of its release everywhere: inotify sees the last close of a
//! file, which a forked child delays, on local file systems, for at most 128 users of it. A try takes about 50 µs, so the first
//! in the queue takes two hundredths of a processor, and the others next to nothing.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sheaf_base::clock::{Clock, SystemClock};
use sheaf_base::disk::Share;
use sheaf_base::disk::holder::Turn;

use crate::Error;
use crate::door::lock_of;

/// Most times that the time begins anew.
const TIMES: u32 = 12;
/// How long a reader gives way to writers that wait.
const COURTESY: Duration = Duration::from_millis(500);
/// Between two tries of the writer that is first in the queue.
const FIRST: Duration = Duration::from_millis(3);
/// Between two looks of a writer that is not.
const QUEUED: Duration = Duration::from_millis(10);
/// Between two tries of a reader: at first, and at most.
const READER: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(20)];

/// One opening that waits.
pub(crate) struct Waiting {
    dir: PathBuf,
    is_reader: bool,
    limit: Duration,
    /// Since when it waits at all, and since when for this owner.
    began: Duration,
    since: Duration,
    /// What stood in the lock's file.
    said: Option<Vec<u8>>,
    turn: Option<Turn>,
    pause: Duration,
    is_last: bool,
}

impl Waiting {
    /// Begins to wait for the database in `dir`, for `limit` if its owner does not change.
    pub(crate) fn new(dir: &Path, is_reader: bool, limit: Duration) -> Waiting {
        let now = SystemClock.now();
        let said = if limit.is_zero() { None } else { lock_of(dir).ok() };
        let pause = if is_reader { READER[0] } else { FIRST };
        let dir = dir.to_path_buf();
        Waiting { dir, is_reader, limit, began: now, since: now, said, turn: None, pause, is_last: false }
    }

    /// Whether `error` may pass by itself.
    pub(crate) fn is_for(error: &Error) -> bool {
        matches!(error, Error::Locked { .. } | Error::OwnerGone { .. })
    }

    /// Whether this reader must not take the lock yet, since a writer waits for it.
    pub(crate) fn gives_way(&self) -> bool {
        self.is_reader
            && !self.limit.is_zero()
            && !self.is_last
            && SystemClock.now().saturating_sub(self.began) < COURTESY
            && Turn::is_taken(&self.dir)
    }

    /// Waits until it is time to try again. False if the time is up.
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
                return true; // once more, and that answer counts
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

/// Lets `time` pass.
fn pause(time: Duration) {
    let until = SystemClock.now() + time;
    loop {
        let left = until.saturating_sub(SystemClock.now());
        if left.is_zero() {
            return;
        }
        std::thread::park_timeout(left); // somebody may have unparked this thread for another reason
    }
}
