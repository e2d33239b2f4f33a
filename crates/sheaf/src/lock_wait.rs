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
//! as the queue moves, and at most [`MAX_EXTENSION_FACTOR`] times its timeout. A change shows in
//! the process id in `LOCK`. An attempt that gets the lock of `LOCK`, but not that of ROOT, writes
//! the id of its process, which is then no change of the owner.
//!
//! The lock is polled. `flock` has no variant with a deadline, and no event reports its release
//! everywhere: inotify reports the last close of a file, which a forked child delays, only on local
//! file systems, and for at most 128 instances per user. An attempt takes about 50 µs, so that the
//! first process in the queue uses about 2 % of a processor, and the others almost nothing.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sheaf_platform::clock::{Clock, SystemClock};
use sheaf_platform::disk::LockMode;
use sheaf_platform::disk::lock_holder::LockQueueTurn;

use crate::Error;
use crate::ipc::{pid_in, read_lock_file};

/// Most times that the timeout is extended, as a multiple of itself.
const MAX_EXTENSION_FACTOR: u32 = 12;
/// Longest time that a reader lets waiting writers go first.
const MAX_READER_DELAY: Duration = Duration::from_millis(500);
/// Interval between attempts of the first writer in the queue.
const FIRST_WRITER_INTERVAL: Duration = Duration::from_millis(3);
/// Interval between checks of the other writers.
const QUEUED_WRITER_INTERVAL: Duration = Duration::from_millis(10);
/// Interval between attempts of a reader: the first, and the longest.
const READER_INTERVALS: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(20)];

/// An opening that waits.
pub(crate) struct LockWait {
    dir: PathBuf,
    is_reader: bool,
    limit: Duration,
    /// Start of the wait, and of the wait for the present owner.
    started: Duration,
    owner_since: Duration,
    /// Last known content of the lock file.
    lock_content: Option<Vec<u8>>,
    queue_turn: Option<LockQueueTurn>,
    interval: Duration,
    is_last: bool,
}

impl LockWait {
    /// Begins to wait for the database in `dir`, for at most `limit` while the owner stays the
    /// same.
    pub(crate) fn new(dir: &Path, is_reader: bool, limit: Duration) -> LockWait {
        let now = SystemClock.now();
        let said = if limit.is_zero() { None } else { read_lock_file(dir).ok() };
        let pause = if is_reader { READER_INTERVALS[0] } else { FIRST_WRITER_INTERVAL };
        let dir = dir.to_path_buf();
        LockWait {
            dir,
            is_reader,
            limit,
            started: now,
            owner_since: now,
            lock_content: said,
            queue_turn: None,
            interval: pause,
            is_last: false,
        }
    }

    /// Returns true if `error` may disappear without intervention.
    pub(crate) fn is_retryable(error: &Error) -> bool {
        matches!(error, Error::Locked { .. } | Error::OwnerClosed { .. })
    }

    /// Returns true if this reader must not take the lock yet because a writer waits for it.
    pub(crate) fn must_yield_to_writer(&self) -> bool {
        self.is_reader
            && !self.limit.is_zero()
            && !self.is_last
            && SystemClock.now().saturating_sub(self.started) < MAX_READER_DELAY
            && LockQueueTurn::is_writer_waiting(&self.dir)
    }

    /// Waits until the next attempt. Returns false after the timeout.
    pub(crate) fn wait_for_retry(&mut self) -> bool {
        if self.limit.is_zero() || self.is_last {
            return false;
        }
        loop {
            let (now, content) = (SystemClock.now(), read_lock_file(&self.dir).ok());
            if content != self.lock_content {
                let owner = content.as_deref().and_then(pid_in);
                if owner != Some(std::process::id()) && owner != self.lock_content.as_deref().and_then(pid_in)
                {
                    self.owner_since = now;
                }
                self.lock_content = content;
            }
            let left = (self.owner_since + self.limit)
                .min(self.started + self.limit.saturating_mul(MAX_EXTENSION_FACTOR));
            let left = left.saturating_sub(now);
            self.is_last = left.is_zero();
            if self.is_last {
                return true; // one last attempt
            }
            sleep(self.interval.min(left));
            if self.is_reader {
                self.interval = (self.interval + READER_INTERVALS[0]).min(READER_INTERVALS[1]);
                return true;
            }
            self.queue_turn =
                self.queue_turn.take().or_else(|| LockQueueTurn::try_take(&self.dir, LockMode::Exclusive));
            self.interval =
                if self.queue_turn.is_some() { FIRST_WRITER_INTERVAL } else { QUEUED_WRITER_INTERVAL };
            if self.queue_turn.is_some() {
                return true;
            }
        }
    }
}

/// Sleeps for `time`.
pub(crate) fn sleep(time: Duration) {
    let until = SystemClock.now() + time;
    loop {
        let left = until.saturating_sub(SystemClock.now());
        if left.is_zero() {
            return;
        }
        std::thread::park_timeout(left); // may return early: this thread may be unparked
    }
}
