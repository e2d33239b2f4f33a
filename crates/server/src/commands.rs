//! # Commands: messages between the threads of a server
//!
//! A command is the *verb command* of the paper. A worker that is not the agent of a client leaves
//! the reply with the agent, in memory, and the agent writes it to the client. Small replies (every
//! acknowledgement) are part of the command.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;

use sheaf::CommitTicket;

use crate::server_state::ServerState;
use crate::session::Session;

/// Longest reply that is stored in the command itself.
const MAX_INLINE_REPLY: usize = 38;

/// Encoded reply.
#[derive(Debug)]
pub(crate) enum EncodedReply {
    Small(u8, [u8; MAX_INLINE_REPLY]),
    Large(Box<[u8]>),
}

impl EncodedReply {
    pub(crate) fn new(bytes: &[u8]) -> EncodedReply {
        match u8::try_from(bytes.len()) {
            Ok(len) if bytes.len() <= MAX_INLINE_REPLY => {
                let mut small = [0; MAX_INLINE_REPLY];
                small[..bytes.len()].copy_from_slice(bytes);
                EncodedReply::Small(len, small)
            }
            _ => EncodedReply::Large(bytes.into()),
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            EncodedReply::Small(len, bytes) => &bytes[..usize::from(*len)],
            EncodedReply::Large(bytes) => bytes,
        }
    }
}

/// Identifier of a session: its slot, and its number, since slots are reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recipient {
    pub(crate) slot: usize,
    pub(crate) session: u64,
}

/// Command to a worker that owns a port.
pub(crate) enum WorkerCommand {
    /// A reply that may leave at once.
    Reply { recipient: Recipient, payload: EncodedReply },
    /// A reply that leaves in the order of commits.
    Commit { recipient: Recipient, lane: usize, seq: u64, payload: EncodedReply },
    /// A commit that must be durable before the reply. Enters the waiter's queue in the order of
    /// commits.
    Durable { to: PendingReply, lane: usize, id: u64, commit: CommitTicket },
    /// A ring was read, and the client must be told.
    Credit { recipient: Recipient },
    /// Sender that is dropped after all earlier commands have left the gates. No worker writes by
    /// then.
    Flush(Sender<()>),
}

impl WorkerCommand {
    /// Returns the session that the command is for.
    pub(crate) fn recipient(&self) -> Option<Recipient> {
        match self {
            WorkerCommand::Reply { recipient: whom, .. }
            | WorkerCommand::Commit { recipient: whom, .. }
            | WorkerCommand::Credit { recipient: whom } => Some(*whom),
            WorkerCommand::Durable { to, .. } => Some(to.session.recipient),
            WorkerCommand::Flush(_) => None,
        }
    }
}

/// Job for the waiter.
pub(crate) enum WaiterJob {
    /// Reply when the commit is on the device.
    Durable { to: PendingReply, id: u64, commit: CommitTicket },
    /// Reply when all commits are on the device.
    Persist { to: PendingReply, id: u64 },
    /// Open a keyspace, which may require a durable creation.
    Keyspace { to: PendingReply, id: u64, name: String, engine: String, create: bool },
    /// No more jobs follow.
    End,
}

/// Receiver of the reply to a job, and the worker that owns its port. Counts as waiting for the
/// device until it is dropped.
pub(crate) struct PendingReply {
    pub(crate) session: Arc<Session>,
    pub(crate) owner: usize,
    waiting: Arc<AtomicUsize>,
}

impl PendingReply {
    /// Returns a reader, unless the client or the server has its maximum number of waiting
    /// requests.
    pub(crate) fn new(session: &Arc<Session>, owner: usize, shared: &ServerState) -> Option<PendingReply> {
        let waiting = Arc::clone(&shared.waiting_requests);
        let mine = session.waiting_requests.fetch_add(1, Ordering::SeqCst) < shared.limits.window;
        let all = waiting.fetch_add(1, Ordering::SeqCst) < shared.limits.max_waiting;
        let reader = PendingReply { session: Arc::clone(session), owner, waiting };
        (mine && all).then_some(reader) // a drop undoes the counts
    }
}

impl Drop for PendingReply {
    fn drop(&mut self) {
        let mine = self.session.waiting_requests.fetch_sub(1, Ordering::SeqCst);
        let all = self.waiting.fetch_sub(1, Ordering::SeqCst);
        assert!(mine > 0 && all > 0, "server_state (I2): each request that waits is counted");
    }
}
