//! # Attached reader: reading a database that another process has open
//!
//! ```text
//!  reader: connect ── hold? ──> owner: pins the state, lists it   (sheaf_store: snapshot::export)
//!          listing <───────────
//!          Store on an ExportedDisk, read-only                    (sheaf_platform::disk::exported)
//!          the connection stays open: it is the lease
//! ```
//!
//! The reader takes no lock, sees one snapshot, and never blocks the owner. The owner keeps the
//! data of the snapshot until the reader closes or dies, which ends the connection.
//!
//! After each read the lease checks that the connection is open and that the lock file is
//! unchanged. An owner that closes ends the connection before it releases the snapshot. A new owner
//! after a crash first writes another number to the lock file. From then on, reads that the cache
//! cannot answer return [`Error::OwnerClosed`]; files that happen to remain are not used, since
//! they are not protected.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sheaf_engine::contract::EngineFactory;
use sheaf_platform::clock::Clock;
use sheaf_platform::disk::exported::{ExportLease, ExportedDisk, ExportedItem};
use sheaf_platform::disk::real::RealDisk;
use sheaf_platform::disk::{Disk, File, OpenMode};
use sheaf_platform::error::{IoContext, IoOp};
use sheaf_store::{LOCK, Store, StoreOptions};

use super::AttachedOwner;
use super::stream::Stream;
use crate::{Error, Result};

/// An exported snapshot that can be opened for reading.
#[doc(hidden)]
#[derive(Debug)]
pub struct ExportedSnapshot {
    dir: PathBuf,
    items: Vec<ExportedItem>,
    lease: Arc<dyn ExportLease>,
}

impl ExportedSnapshot {
    pub(crate) fn new(
        dir: PathBuf,
        items: Vec<ExportedItem>,
        lease: impl ExportLease + 'static,
    ) -> ExportedSnapshot {
        ExportedSnapshot { dir, items, lease: Arc::new(lease) }
    }

    /// Opens the snapshot for reading. Its bytes are on `beneath`.
    pub(crate) fn open(
        self,
        base_disk: Arc<dyn Disk>,
        options: StoreOptions,
        clock: Arc<dyn Clock>,
        engines: Vec<Arc<dyn EngineFactory>>,
    ) -> Result<Arc<Store>> {
        let ExportedSnapshot { dir, items, lease } = self;
        let disk =
            ExportedDisk::new(base_disk, &dir, items, lease).ok_or_else(|| Error::InvalidArgument {
                argument: "listing",
                reason: "it contains a name that no database has".to_owned(),
            })?;
        let options = StoreOptions { read_only: true, create: false, ..options };
        Store::open(&dir, options, Arc::new(disk), clock, engines)
    }
}

/// Attaches to the owner of the locked database in `path`. If the owner has no IPC socket or is
/// closing, calls `alone`.
pub(crate) fn open_attached(
    path: &Path,
    options: &StoreOptions,
    disk: Arc<dyn Disk>,
    clock: &Arc<dyn Clock>,
    engines: &[Arc<dyn EngineFactory>],
    open_locked: impl FnOnce() -> Result<Arc<Store>>,
) -> Result<Arc<Store>> {
    let held = match AttachedOwner::find(path)? {
        Some(owner) => match owner.export() {
            Err(Error::OwnerClosed { .. } | Error::Closed) => None,
            held => Some(held?),
        },
        None => None,
    };
    match held {
        Some(held) => held.open(disk, options.clone(), Arc::clone(clock), engines.to_vec()),
        None => open_locked(),
    }
}

/// The reader's side of a lease.
#[derive(Debug)]
pub(super) struct ConnectionLease {
    /// Nonblocking.
    stream: Stream,
    lock: Arc<dyn File>,
    /// Content of the lock file before the connection was made.
    lock_content: Vec<u8>,
}

impl ConnectionLease {
    pub(super) fn new(stream: Stream, dir: &Path, said: Vec<u8>) -> Result<ConnectionLease> {
        stream.set_nonblocking(true).during(IoOp::Communicate, dir)?;
        let path = dir.join(LOCK);
        let lock = RealDisk::default().open(&path, OpenMode::Read).during(IoOp::Open, &path)?;
        Ok(ConnectionLease { stream, lock, lock_content: said })
    }
}

impl ExportLease for ConnectionLease {
    fn is_held(&self) -> bool {
        // The owner sends nothing after the listing, so that any event means the end.
        let is_open = loop {
            match (&self.stream).read(&mut [0]) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                answer => break answer.is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock),
            }
        };
        let mut content = vec![0; self.lock_content.len()];
        is_open && self.lock.read_at(0, &mut content).is_ok() && content == self.lock_content
    }
}
