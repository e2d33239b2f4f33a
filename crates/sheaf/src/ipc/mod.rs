//! # IPC socket: the Unix socket through which other processes reach the owner of a database
//!
//! Serves statistics, backups, conversions, the change feed, and snapshots to attached readers.
//! docs/format/ipc.md specifies every byte. `server`, `connection` and `feed` serve,
//! `attached_owner` is the client; other modules encode. Windows has no IPC socket.
//!
//! ```text
//!  owner                                            client process
//!  Handle ── IpcServer ── accept thread             AttachedOwner::connect ── socket `door`
//!              │        └ connection threads <── hello, requests ──┘
//!              │             └ Weak<Store>  ── replies: progress, a result, or an error ──>
//!              └ end: sockets shut, threads joined; then the store closes
//! ```
//!
//! ## Invariants
//!
//! 1. The socket is created under the lock with mode 0600 before it gets its name. The kernel must
//!    identify the peer as the owner's user or root.
//! 2. A database works without an IPC socket; `DatabaseStats::has_ipc` shows whether it has one.
//! 3. Connection threads hold the store, never a handle, and end before the store closes.
//! 4. The owner shuts a connection before it releases the snapshot exported through it. If a reader
//!    finds the connection open *after* a read, the read is valid.
//! 5. Client input never makes the owner panic, wait at close, or allocate more than a message.
//! 6. A client that sends no hello within `HELLO_TIMEOUT`, or does not read for
//!    `SEND_TIMEOUT`, is disconnected. At the connection limit, so is the longest idle one.
//! 7. During a request the client receives a message at least every `HEARTBEAT_INTERVAL`.
//! 8. An open socket stays open: errors of `accept` are retried (`sheaf_platform::accept`).
//!
//! Threads: one accepts and sends signs of life; at most `MAX_CONNECTIONS` serve. `shutdown` and
//! `unpark` wake them. After a crash the stale socket refuses connections until the next owner.

mod attach;
mod attached_owner;
#[cfg(unix)]
mod connection;
#[cfg(unix)]
mod connection_state;
#[cfg(unix)]
mod feed;
mod message;
mod overview;
mod received_commit;
#[cfg(unix)]
mod server;
mod stream;
#[cfg(not(unix))]
mod unsupported;
mod wire;

pub use attach::ExportedSnapshot;
pub(crate) use attach::open_attached;
pub use attached_owner::AttachedOwner;
pub(crate) use attached_owner::{pid_in, read_lock_file};
#[doc(hidden)]
pub use message::decode_and_reencode;
pub(crate) use overview::overview;
pub use overview::{DatabaseOverview, KeyspaceOverview};
#[cfg(unix)]
pub(crate) use server::IpcServer;
#[cfg(not(unix))]
pub(crate) use unsupported::IpcServer;
