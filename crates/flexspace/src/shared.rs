//! # Shared: what users, the keeper and garbage collection have in common
//!
//! ## Threads
//!
//! Any thread may call anything. Locks, in order: `collecting`, `checkpointing`, `maintenance`, `syncing`, `flushing`, `making`,
//! `writer`. Readers take none: they load the current version. Under `writer` there is no call of the system but the data's
//! `pwrite` when all buffers are in use. Two threads work in the background: one keeps house (`upkeep.rs`), one collects.
//!
//! Both let others run every 2 ms (`base::work`): with more threads than processors a writer that was asleep would else wait
//! for the clock's next tick, or for three.

use sheaf_base::sync::atomic::{AtomicU64, Ordering};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sheaf_base::disk::Disk;
use sheaf_base::error::{Error, Result};
use sheaf_base::memory::Part;
use sheaf_base::pair::Pair;
use sheaf_base::segment::Segment;
use sheaf_base::sync::{Mutex, MutexGuard};
use sheaf_base::types::Incarnation;
use sheaf_base::work::Waker;

use crate::area::Areas;
use crate::collect::Pass;
use crate::current::Current;
use crate::extent::Extent;
use crate::format::{Chapter, Head, Record};
use crate::options::{Geometry, Options};
use crate::pace::Pace;
use crate::tree::Frozen;
use crate::writer::Writer;

/// What an extent takes in the index.
pub(crate) const EXTENT_BYTES: u64 = 26;
/// How often a writer looks whether the lock is free before it sleeps: some 50 to 100 µs.
const SPINS: u32 = if cfg!(shuttle) { 0 } else { 2000 };
/// Background work looks around at least this often.
pub(crate) const INTERVAL: Duration = Duration::from_millis(50);

/// A state of the space that readers may have.
#[derive(Debug)]
pub(crate) struct Version {
    pub(crate) tree: Arc<Frozen<Extent>>,
    pub(crate) areas: Arc<Areas>,
    pub(crate) mark: u64,
}

#[derive(Debug)]
pub(crate) struct Maintenance {
    pub(crate) pair: Pair,
    /// As both slots are to have it.
    pub(crate) head: Head,
    /// They do not: writing failed. Nothing goes that one of them may name.
    pub(crate) is_behind: bool,
    /// Chapters that go when they do.
    pub(crate) leaving: Vec<Chapter>,
    /// A segment for the log that is its spare when they do.
    pub(crate) unnamed: Option<Arc<Segment>>,
    /// Size of the last checkpoint in bytes.
    pub(crate) checkpoint_bytes: u64,
    pub(crate) is_closed: bool,
    /// The last operation that housekeeping saw, and when it saw that first.
    pub(crate) seen: (u64, Duration),
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) dir: PathBuf,
    pub(crate) options: Options,
    pub(crate) geometry: Geometry,
    pub(crate) incarnation: Incarnation,
    pub(crate) current: Current,
    pub(crate) collecting: Mutex<Option<Pass>>,
    pub(crate) maintenance: Mutex<Maintenance>,
    /// One checkpoint, sync, flush, maker of segments at a time.
    pub(crate) checkpointing: Mutex<()>,
    pub(crate) syncing: Mutex<()>,
    pub(crate) flushing: Mutex<()>,
    pub(crate) making: Mutex<()>,
    pub(crate) writer: Mutex<Writer>,
    /// The operation whose version a checkpoint is written from: set, and taken back with the version, under the writer's lock.
    pub(crate) saved: AtomicU64,
    pub(crate) pace: Pace,
    /// What was damaged at opening and made again.
    pub(crate) healed: Option<Error>,
    pub(crate) durable: AtomicU64,
    pub(crate) poison: Mutex<Option<&'static str>>,
    pub(crate) waker: Waker,
    pub(crate) collector: Waker,
    pub(crate) counters: Counters,
    pub(crate) accounted: AtomicU64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) written: AtomicU64,
    pub(crate) moved: AtomicU64,
    pub(crate) freed: AtomicU64,
    pub(crate) checkpoints: AtomicU64,
    pub(crate) syncs: AtomicU64,
}

impl Shared {
    /// A space as its opening found it, with `tree` for readers.
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        options: Options,
        writer: Writer,
        tree: Arc<Frozen<Extent>>,
        maintenance: Maintenance,
        healed: Option<Error>,
    ) -> Shared {
        let first = Version { tree, areas: Arc::clone(&writer.areas), mark: writer.mark };
        Shared {
            dir: writer.dir.clone(),
            geometry: writer.areas.geometry,
            incarnation: Incarnation(maintenance.head.incarnation),
            current: Current::new(first),
            collecting: Mutex::new(None),
            checkpointing: Mutex::new(()),
            maintenance: Mutex::new(maintenance),
            syncing: Mutex::new(()),
            flushing: Mutex::new(()),
            making: Mutex::new(()),
            saved: AtomicU64::new(u64::MAX),
            pace: Pace::default(),
            healed,
            durable: AtomicU64::new(writer.seq),
            writer: Mutex::new(writer),
            poison: Mutex::new(None),
            waker: Waker::default(),
            collector: Waker::default(),
            counters: Counters::default(),
            accounted: AtomicU64::new(0),
            disk,
            options,
        }
    }

    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.options.read_only {
            return Err(Error::ReadOnly);
        }
        match *self.poison.lock() {
            Some(op) => Err(Error::Poisoned { op }),
            None => Ok(()),
        }
    }

    /// The writer's lock, for those who have to be quick. Others hold it for some microseconds; a thread that gave its
    /// processor up for that got it back a tick of the clock later, or three (4 to 13 ms on two busy cores).
    pub(crate) fn writer(&self) -> MutexGuard<'_, Writer> {
        for _ in 0..SPINS {
            if let Some(w) = self.writer.try_lock() {
                return w;
            }
            std::hint::spin_loop();
        }
        self.writer.lock()
    }

    /// From now on nothing is changed any more.
    pub(crate) fn poison<T>(&self, op: &'static str, answer: Result<T>) -> Result<T> {
        if answer.is_err() {
            self.poison.lock().get_or_insert(op);
        }
        answer
    }

    /// Logs, applies and publishes records whose data is written.
    pub(crate) fn finish(&self, w: &mut Writer, records: &[Record]) {
        w.log(self.durable.load(Ordering::Acquire), records);
        w.apply(records);
        let tree = w.tree.publish(w.seq);
        self.account(w.tree.held_bytes());
        let version = Version { tree, areas: Arc::clone(&w.areas), mark: w.mark };
        self.current.store(version);
    }

    fn account(&self, bytes: u64) {
        let before = self.accounted.swap(bytes, Ordering::Relaxed);
        if bytes > before {
            self.options.memory.take(Part::Index, bytes - before);
        } else if before > bytes {
            self.options.memory.give(Part::Index, before - bytes);
        }
    }
}
