//! # A database, a server in front of it, clients

use std::path::PathBuf;
use std::time::{Duration, Instant};

use sheaf::Database;
use sheaf_client::{Client, ClientOptions, ReplyMode, ServerAddress};
use sheaf_server::{Server, ServerBuilder, ServerLimits};
use tempfile::TempDir;

pub(crate) struct ServedDatabase {
    pub(crate) dir: TempDir,
    pub(crate) db: Database,
    pub(crate) server: Server,
}

/// Index of the address, and mode.
pub(crate) const TRANSPORTS: [(usize, ReplyMode); 4] =
    [(0, ReplyMode::Agent), (0, ReplyMode::AllToAll), (1, ReplyMode::Agent), (1, ReplyMode::AllToAll)];

pub(crate) fn limits(workers: usize) -> ServerLimits {
    ServerLimits { workers, ..ServerLimits::default() }
}

pub(crate) fn local() -> ServerAddress {
    "tcp:127.0.0.1:0".parse().expect("an address")
}

impl ServedDatabase {
    /// Serves an empty database at both kinds of address.
    pub(crate) fn new(limits: ServerLimits) -> ServedDatabase {
        ServedDatabase::with(limits, |builder| builder)
    }

    pub(crate) fn with(
        limits: ServerLimits,
        set: impl FnOnce(ServerBuilder) -> ServerBuilder,
    ) -> ServedDatabase {
        let dir = tempfile::tempdir().expect("a directory");
        let db = Database::open(dir.path().join("db")).expect("a database");
        let shared = ServerAddress::SharedMemory(dir.path().join("sock"));
        let builder =
            set(ServerBuilder::default().insecure(true).limits(limits).listen(shared).listen(local()));
        let server = builder.start(&db).expect("a server");
        ServedDatabase { dir, db, server }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("sock")
    }

    pub(crate) fn address(&self, index: usize) -> &ServerAddress {
        &self.server.addresses()[index]
    }

    pub(crate) fn client(&self, way: (usize, ReplyMode)) -> Client {
        Client::connect(self.address(way.0), &options(way.1)).expect("a client")
    }
}

/// Returns options with a timeout, so that no test waits forever.
pub(crate) fn options(mode: ReplyMode) -> ClientOptions {
    ClientOptions::default().mode(mode).timeout(Some(Duration::from_secs(20)))
}

/// Waits until the condition holds; panics after ten seconds.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
