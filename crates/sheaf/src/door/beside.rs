//! # Beside: reading a database that somebody else has open
//!
//! ```text
//!  reader: connect ── hold? ──> owner: a Still, listed          (sheaf_base::store::still, hold)
//!          listing <───────────
//!          Store on a HeldDisk, read-only                       (sheaf_base::disk::held)
//!          the connection stays: it is the lease
//! ```
//!
//! The reader takes no lock, sees one moment, and neither waits for writers nor stops them. What it holds takes space at the owner until it
//! closes, or dies: then the connection ends, and the owner lets it go.
//!
//! ## When the owner goes
//!
//! Every read of the disk asks afterwards whether the connection is open and whether the lock's file says what it said: an owner that closes
//! ends the connection before it lets go, and whoever becomes the owner after a crash writes another number into that file before
//! anything else. So a reader answers [`Error::OwnerGone`] from then on, for what it does not have in its caches. It does not go on with files that
//! happen to be there: nobody holds them.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sheaf_base::clock::Clock;
use sheaf_base::disk::held::{HeldDisk, Item, Lease};
use sheaf_base::disk::real::RealDisk;
use sheaf_base::disk::{Disk, File, How};
use sheaf_base::engine::EngineFactory;
use sheaf_base::error::IoContext;
use sheaf_base::store::{LOCK, Options, Store};

use super::Owner;
use crate::{Error, Result};

/// A state that somebody holds, to be opened.
#[doc(hidden)]
#[derive(Debug)]
pub struct Held {
    dir: PathBuf,
    items: Vec<Item>,
    lease: Arc<dyn Lease>,
}

impl Held {
    pub(crate) fn new(dir: PathBuf, items: Vec<Item>, lease: impl Lease + 'static) -> Held {
        Held { dir, items, lease: Arc::new(lease) }
    }

    /// Opens it for reading. Its bytes are on `beneath`.
    pub(crate) fn open(
        self,
        beneath: Arc<dyn Disk>,
        options: Options,
        clock: Arc<dyn Clock>,
        engines: Vec<Arc<dyn EngineFactory>>,
    ) -> Result<Arc<Store>> {
        let Held { dir, items, lease } = self;
        let disk = HeldDisk::new(beneath, &dir, items, lease).ok_or_else(|| Error::Invalid {
            what: "listing",
            why: "it names what cannot be in a database".to_owned(),
        })?;
        let options = Options { read_only: true, create: false, ..options };
        Store::open(&dir, options, Arc::new(disk), clock, engines)
    }
}

/// Opens the database in `path`, which is locked, beside its owner. If that has no door, or is busy with closing, it is tried `alone`.
pub(crate) fn open_beside(
    path: &Path,
    options: &Options,
    disk: Arc<dyn Disk>,
    clock: &Arc<dyn Clock>,
    engines: &[Arc<dyn EngineFactory>],
    alone: impl FnOnce() -> Result<Arc<Store>>,
) -> Result<Arc<Store>> {
    let held = match Owner::connect(path)? {
        Some(owner) => match owner.hold() {
            Err(Error::OwnerGone { .. } | Error::Closed) => None,
            held => Some(held?),
        },
        None => None,
    };
    match held {
        Some(held) => held.open(disk, options.clone(), Arc::clone(clock), engines.to_vec()),
        None => alone(),
    }
}

/// The reader's end of a hold through the door.
#[derive(Debug)]
pub(super) struct Leased {
    /// Does not wait.
    stream: UnixStream,
    lock: Arc<dyn File>,
    /// What the lock's file said before the connection was made.
    said: Vec<u8>,
}

impl Leased {
    pub(super) fn new(stream: UnixStream, dir: &Path, said: Vec<u8>) -> Result<Leased> {
        stream.set_nonblocking(true).during("hold", dir)?;
        let path = dir.join(LOCK);
        let lock = RealDisk::default().open(&path, How::Read).during("open", &path)?;
        Ok(Leased { stream, lock, said })
    }
}

impl Lease for Leased {
    fn is_held(&self) -> bool {
        // The owner says nothing any more: whatever comes is the end.
        let is_open = loop {
            match (&self.stream).read(&mut [0]) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                answer => break answer.is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock),
            }
        };
        let mut says = vec![0; self.said.len()];
        is_open && self.lock.read_at(0, &mut says).is_ok() && says == self.said
    }
}
