//! # Commands: what threads of the server hand to each other
//!
//! The *verb command* of the paper: a worker that is not the agent of a client leaves the reply with the agent,
//! through memory, and the agent writes it to the client. Small replies (every acknowledgement) travel in the
//! command itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;

use sheaf::Commit;

use crate::session::Session;
use crate::shared::Shared;

/// Longest reply that a command holds itself.
const INLINE: usize = 38;

/// An encoded reply.
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

/// A session as others know it: its place, and its number, for the place is used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Whom {
    pub(crate) slot: usize,
    pub(crate) session: u64,
}

/// To a worker, the owner of a port.
pub(crate) enum Command {
    /// A reply that waits for nothing.
    Reply { whom: Whom, payload: Payload },
    /// A reply that leaves in the order of commits.
    Commit { whom: Whom, lane: usize, seq: u64, payload: Payload },
    /// A commit that is to be durable before it is answered; joins the waiter's line in the order of commits.
    Durable { to: Reader, lane: usize, id: u64, commit: Commit },
    /// A ring was read: the client wants to hear.
    Credit { whom: Whom },
    /// To be dropped when what was handed over before has left the gates. Nobody is writing any more.
    Flush(Sender<()>),
}

impl Command {
    /// Whose port it is for.
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

/// To the waiter.
pub(crate) enum Job {
    /// Answer when it is on the device.
    Durable { to: Reader, id: u64, commit: Commit },
    /// Answer when everything is.
    Persist { to: Reader, id: u64 },
    /// Open a keyspace, which may have to be created durably.
    Keyspace { to: Reader, id: u64, name: String, engine: String, create: bool },
    /// There is no more to come.
    End,
}

/// Who gets a job's answer, and through which port. Counts as waiting for the device for as long as it lives.
pub(crate) struct Reader {
    pub(crate) session: Arc<Session>,
    pub(crate) owner: usize,
    waiting: Arc<AtomicUsize>,
}

impl Reader {
    /// A place in the line, if the client and the server have one left.
    pub(crate) fn new(session: &Arc<Session>, owner: usize, shared: &Shared) -> Option<Reader> {
        let waiting = Arc::clone(&shared.waiting);
        let mine = session.waiting.fetch_add(1, Ordering::SeqCst) < shared.limits.window;
        let all = waiting.fetch_add(1, Ordering::SeqCst) < shared.limits.waiting;
        let reader = Reader { session: Arc::clone(session), owner, waiting };
        (mine && all).then_some(reader) // dropped, it gives back what it took
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.session.waiting.fetch_sub(1, Ordering::SeqCst);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}
