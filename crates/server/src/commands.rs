//! # Commands: messages between the threads of a server
//!
//! A command is the *verb command* of the paper. A worker that is not the agent of a client leaves
//! the reply with the agent, in memory, and the agent writes it to the client. Small replies (every
//! acknowledgement) are part of the command.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;

use sheaf::Commit;

use crate::session::Session;
use crate::shared::Shared;

/// Longest reply that is stored in the command itself.
const INLINE: usize = 38;

/// Encoded reply.
#[derive(Debug)]
pub(crate) enum Payload {
    Small(u8, [u8; INLINE]),
    Large(Box<[u8]>),
}

impl Payload {
    pub(crate) fn new(bytes: &[u8]) -> Payload {
        match u8::try_from(bytes.len()) {
            Ok(len) if bytes.len() <= INLINE => {
                let mut small = [0; INLINE];
                small[..bytes.len()].copy_from_slice(bytes);
                Payload::Small(len, small)
            }
            _ => Payload::Large(bytes.into()),
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Payload::Small(len, bytes) => &bytes[..usize::from(*len)],
            Payload::Large(bytes) => bytes,
        }
    }
}

/// Identifier of a session: its slot, and its number, since slots are reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Whom {
    pub(crate) slot: usize,
    pub(crate) session: u64,
}

/// Command to a worker that owns a port.
pub(crate) enum Command {
    /// A reply that may leave at once.
    Reply { whom: Whom, payload: Payload },
    /// A reply that leaves in the order of commits.
    Commit { whom: Whom, lane: usize, seq: u64, payload: Payload },
    /// A commit that must be durable before the reply. Enters the waiter's queue in the order of
    /// commits.
    Durable { to: Reader, lane: usize, id: u64, commit: Commit },
    /// A ring was read, and the client must be told.
    Credit { whom: Whom },
    /// Sender that is dropped after all earlier commands have left the gates. No worker writes by
    /// then.
    Flush(Sender<()>),
}

impl Command {
    /// Returns the session that the command is for.
    pub(crate) fn whom(&self) -> Option<Whom> {
        match self {
            Command::Reply { whom, .. } | Command::Commit { whom, .. } | Command::Credit { whom } => {
                Some(*whom)
            }
            Command::Durable { to, .. } => Some(to.session.whom),
            Command::Flush(_) => None,
        }
    }
}

/// Job for the waiter.
pub(crate) enum Job {
    /// Reply when the commit is on the device.
    Durable { to: Reader, id: u64, commit: Commit },
    /// Reply when all commits are on the device.
    Persist { to: Reader, id: u64 },
    /// Open a keyspace, which may require a durable creation.
    Keyspace { to: Reader, id: u64, name: String, engine: String, create: bool },
    /// No more jobs follow.
    End,
}

/// Receiver of the reply to a job, and the worker that owns its port. Counts as waiting for the
/// device until it is dropped.
pub(crate) struct Reader {
    pub(crate) session: Arc<Session>,
    pub(crate) owner: usize,
    waiting: Arc<AtomicUsize>,
}

impl Reader {
    /// Returns a reader, unless the client or the server has its maximum number of waiting
    /// requests.
    pub(crate) fn new(session: &Arc<Session>, owner: usize, shared: &Shared) -> Option<Reader> {
        let waiting = Arc::clone(&shared.waiting);
        let mine = session.waiting.fetch_add(1, Ordering::SeqCst) < shared.limits.window;
        let all = waiting.fetch_add(1, Ordering::SeqCst) < shared.limits.waiting;
        let reader = Reader { session: Arc::clone(session), owner, waiting };
        (mine && all).then_some(reader) // a drop undoes the counts
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.session.waiting.fetch_sub(1, Ordering::SeqCst);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}
