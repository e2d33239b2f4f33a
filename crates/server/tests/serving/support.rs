//! # A database, a server in front of it, clients

use std::path::PathBuf;
use std::time::{Duration, Instant};

use sheaf::Database;
use sheaf_client::{Address, Client, Mode, Options};
use sheaf_server::{Builder, Limits, Server};
use tempfile::TempDir;

pub(crate) struct House {
    pub(crate) dir: TempDir,
    pub(crate) db: Database,
    pub(crate) server: Server,
}

/// Index of the address, and mode.
pub(crate) const WAYS: [(usize, Mode); 4] =
    [(0, Mode::Agent), (0, Mode::AllToAll), (1, Mode::Agent), (1, Mode::AllToAll)];

pub(crate) fn limits(workers: usize) -> Limits {
    Limits { workers, ..Limits::default() }
}

pub(crate) fn local() -> Address {
    "tcp:127.0.0.1:0".parse().expect("an address")
}

impl House {
    /// Serves an empty database at both kinds of address.
    pub(crate) fn new(limits: Limits) -> House {
        House::with(limits, |builder| builder)
    }

    pub(crate) fn with(limits: Limits, set: impl FnOnce(Builder) -> Builder) -> House {
        let dir = tempfile::tempdir().expect("a directory");
        let db = Database::open(dir.path().join("db")).expect("a database");
        let shared = Address::Shared(dir.path().join("sock"));
        let builder = set(Builder::default().insecure(true).limits(limits).listen(shared).listen(local()));
        let server = builder.start(&db).expect("a server");
        House { dir, db, server }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("sock")
    }

    pub(crate) fn address(&self, index: usize) -> &Address {
        &self.server.addresses()[index]
    }

    pub(crate) fn client(&self, way: (usize, Mode)) -> Client {
        Client::connect(self.address(way.0), &options(way.1)).expect("a client")
    }
}

/// Returns options with a timeout, so that no test waits forever.
pub(crate) fn options(mode: Mode) -> Options {
    Options::default().mode(mode).timeout(Some(Duration::from_secs(20)))
}

/// Waits until the condition holds; panics after ten seconds.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
