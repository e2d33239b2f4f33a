//! # Feed: changes for another process, from the owner's side
//!
//! Sends commits until none is left, or, to a client that follows the feed, until the connection or
//! the database closes. A waiting thread polls the socket and a notifier. A sync round wakes it.
//! A client sends nothing during a request, so any event at the socket ends the request.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use rustix::event::{PollFd, PollFlags, poll};
use sheaf_platform::error::{IoContext, IoOp};
use sheaf_platform::unix_socket::Notifier;
use sheaf_store::{ChangeReader, ChangeWakerKey};

use super::connection::{MAX_CHUNK_BYTES, RequestHandler};
use super::message::IpcReply;
use super::wire;
use crate::{ChangeKind, ChangeQuery, CommittedChanges, Error, Result};

/// Wakes the thread that waits for changes.
struct FeedWaker(Notifier);

impl Wake for FeedWaker {
    fn wake(self: Arc<FeedWaker>) {
        self.0.notify();
    }
}

/// Registration of a waker, which ends when dropped.
struct Registration<'r> {
    reader: &'r ChangeReader,
    key: Option<ChangeWakerKey>,
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        self.reader.cancel_wait(&mut self.key);
    }
}

impl RequestHandler<'_> {
    /// Sends the changes that the client wants.
    pub(super) fn changes(&self, query: &ChangeQuery) -> Result<()> {
        let from = match query.from {
            Some(from) => from,
            None => self.store.oldest_change_position()?,
        };
        let mut reader = self.store.read_changes(from)?;
        let notifier = Notifier::new().during(IoOp::Create, self.store.path())?;
        let waker = Arc::new(FeedWaker(notifier));
        loop {
            while let Some(commit) = reader.try_next()? {
                if let Some(commit) = query.filter.wanted(commit) {
                    self.send_commit(&commit)?;
                }
                if wire::is_peer_closed(self.stream) {
                    return Err(Error::Cancelled);
                }
            }
            if !query.is_following {
                return self.send_or_cancel(&IpcReply::Done);
            }
            wait_for_changes(self.stream, &reader, &waker)?;
        }
    }

    fn send_commit(&self, commit: &CommittedChanges) -> Result<()> {
        for change in &commit.changes {
            let value = match &change.kind {
                ChangeKind::Put { value, .. } => value.read()?,
                _ => Vec::new(),
            };
            self.send_or_cancel(&IpcReply::Change(change.clone(), value.len() as u64))?;
            for part in value.chunks(MAX_CHUNK_BYTES) {
                self.send_or_cancel(&IpcReply::ValuePart(part.to_vec()))?;
            }
        }
        self.send_or_cancel(&IpcReply::Commit(commit.position))
    }
}

/// Waits until the reader may have a commit, or until the client or the owner closes the
/// connection.
fn wait_for_changes(stream: &UnixStream, reader: &ChangeReader, waker: &Arc<FeedWaker>) -> Result<()> {
    let mut registration = Registration { reader, key: None };
    let woken = Waker::from(Arc::clone(waker));
    if let Poll::Ready(ready) = reader.poll_ready(&mut registration.key, &Context::from_waker(&woken)) {
        return ready;
    }
    let mut polled = [PollFd::new(stream, PollFlags::IN), PollFd::new(&waker.0, PollFlags::IN)];
    let is_polled = poll(&mut polled, None).is_ok(); // otherwise the caller looks again
    let has_event = is_polled && !polled[0].revents().is_empty();
    waker.0.clear();
    if has_event { Err(Error::Cancelled) } else { Ok(()) }
}
