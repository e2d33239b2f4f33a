//! # Pipeline: requests that are sent without waiting for earlier replies

use std::io;
use std::ops::Bound;

use sheaf_flatrpc::link::ApplyOutcome;
use sheaf_flatrpc::message::{Reply, Request};
use sheaf_flatrpc::worker_for_key;

use super::{Client, Ticket};
#[cfg(doc)]
use crate::ClientOptions;
use crate::connect::WakeupSource;
use crate::{ClientError, Result};

impl Client {
    /// Submits a request without waiting for its reply. Waits if [`Client::window`] requests are
    /// unanswered or the ring of the request is full. Over TCP the request may stay in the client
    /// until [`Client::flush`] or the next call that waits.
    ///
    /// # Errors
    ///
    /// Returns [`ClientError::Database`] with [`sheaf::Error::TooLarge`] if the request is longer
    /// than a message of the server, [`ClientError::TimedOut`] if no unanswered request got its
    /// reply within [`ClientOptions::timeout`], and [`ClientError::ConnectionLost`] if the
    /// connection ended. After the first two nothing was submitted.
    ///
    /// ```
    /// # mod served { include!("../../doc/served.rs"); }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_served, mut client) = served::start()?;
    /// let users = client.keyspace("users")?;
    /// let insert = client.submit(&users.insert(b"ada", b"lovelace"))?;
    /// let get = client.submit(&users.get(b"alan"))?;
    /// client.wait(get)?; // in any order
    /// client.wait(insert)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn submit(&mut self, request: &Request<'_>) -> Result<Ticket> {
        while self.unanswered >= self.window {
            self.wait_for_any()?;
        }
        assert!(self.unanswered < self.window, "client (I1): at most `window` requests are unanswered");
        let ticket = Ticket(self.next_ticket);
        self.scratch.clear();
        request.encode(ticket.0, &mut self.scratch);
        if self.scratch.len() > self.max_message {
            let (got, max) = (self.scratch.len() as u64, self.max_message as u64);
            return Err(sheaf::Error::TooLarge { object: "message", got, max }.into());
        }
        self.check_connected()?;
        let message = std::mem::take(&mut self.scratch);
        let pushed = self.push(worker_for_request(request, self.requests.len(), self.agent), &message);
        self.scratch = message;
        pushed?;
        self.next_ticket += 1;
        self.unanswered += 1;
        Ok(ticket)
    }

    fn push(&mut self, worker: usize, message: &[u8]) -> Result<()> {
        let link = if self.links.len() == 1 { 0 } else { worker };
        let mut from = 0;
        loop {
            let pushed =
                self.requests[worker].write_message(&self.inbox, &mut *self.links[link], message, from);
            if let Some(to) = self.mark_lost_on_error(pushed)? {
                from = to;
                let posted = self.links[link].post(worker);
                self.mark_lost_on_error(posted)?;
            }
            if from == message.len() {
                return Ok(());
            }
            // Part of the message is in the ring: only the end of the connection may stop the rest.
            self.sleep(Some(worker), None)?;
            self.take_replies()?;
        }
    }

    /// Sends the submitted requests as far as the connection accepts bytes without blocking.
    /// Returns true if nothing is left to send. All calls that wait do this too.
    ///
    /// # Errors
    ///
    /// Returns [`ClientError::ConnectionLost`] if the connection ended.
    ///
    /// ```
    /// # mod served { include!("../../doc/served.rs"); }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_served, mut client) = served::start()?;
    /// let users = client.keyspace("users")?;
    /// let ticket = client.submit(&users.insert(b"ada", b"lovelace"))?;
    /// client.flush()?;
    /// // ... other work, while the server executes the request ...
    /// client.wait(ticket)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn flush(&mut self) -> Result<bool> {
        let mut all = true;
        for link in 0..self.links.len() {
            let flushed = self.links[link].flush();
            all &= self.mark_lost_on_error(flushed)?;
        }
        Ok(all)
    }

    /// Waits for the reply to a request and returns it. Replies to other requests are kept for
    /// later calls.
    ///
    /// # Errors
    ///
    /// Returns [`ClientError::Database`] if the reply is an error of the database or if no request
    /// with this ticket is unanswered, [`ClientError::Busy`] if the server is overloaded,
    /// [`ClientError::TimedOut`] if no reply arrived within [`ClientOptions::timeout`] (the call
    /// may be repeated), and [`ClientError::ConnectionLost`] if the connection ended.
    ///
    /// ```
    /// # mod served { include!("../../doc/served.rs"); }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_served, mut client) = served::start()?;
    /// use sheaf_client::Reply;
    ///
    /// let users = client.keyspace("users")?;
    /// let ticket = client.submit(&users.get(b"ada"))?;
    /// assert!(matches!(client.wait(ticket)?, Reply::Value(None)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait(&mut self, ticket: Ticket) -> Result<Reply> {
        loop {
            if let Some(at) = self.completed.iter().position(|(done, _)| *done == ticket)
                && let Some((_, reply)) = self.completed.remove(at)
            {
                return into_result(reply);
            }
            if self.unanswered == 0 {
                let why = "no request with this ticket is unanswered".to_owned();
                return Err(sheaf::Error::InvalidArgument { argument: "ticket", reason: why }.into());
            }
            self.wait_for_any()?;
        }
    }

    /// Waits for any reply and returns it with the ticket of its request, or `None` if no request
    /// is unanswered. Replies come in the order in which the server sent them.
    ///
    /// # Errors
    ///
    /// Returns [`ClientError::TimedOut`] if no reply arrived within [`ClientOptions::timeout`], and
    /// [`ClientError::ConnectionLost`] if the connection ended. The inner result is that of
    /// [`Client::wait`].
    ///
    /// ```
    /// # mod served { include!("../../doc/served.rs"); }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_served, mut client) = served::start()?;
    /// let users = client.keyspace("users")?;
    /// let keys: Vec<[u8; 4]> = (0..100u32).map(u32::to_be_bytes).collect();
    /// for key in &keys {
    ///     client.submit(&users.insert(key, b"value"))?;
    /// }
    /// let mut replies = 0;
    /// while let Some((_ticket, reply)) = client.next_reply()? {
    ///     reply?;
    ///     replies += 1;
    /// }
    /// assert_eq!(replies, 100);
    /// # Ok(())
    /// # }
    /// ```
    pub fn next_reply(&mut self) -> Result<Option<(Ticket, Result<Reply>)>> {
        loop {
            if let Some((ticket, reply)) = self.completed.pop_front() {
                return Ok(Some((ticket, into_result(reply))));
            }
            if self.unanswered == 0 {
                return Ok(None);
            }
            self.wait_for_any()?;
        }
    }

    /// Takes all replies that have arrived. Returns whether there were any.
    pub(super) fn take_replies(&mut self) -> Result<bool> {
        if let WakeupSource::Tcp { appliers, .. } = &mut self.events
            && !self.replies.iter().any(|replies| replies.ring.has_record(&self.inbox))
        {
            for applier in appliers {
                match applier.apply(&mut |_| {}) {
                    Ok(ApplyOutcome::Closed) => self.is_lost = true,
                    Ok(_) => {}
                    Err(error) => {
                        self.is_lost = true;
                        return Err(ClientError::ConnectionLost(error));
                    }
                }
            }
        }
        let mut any = false;
        for index in 0..self.replies.len() {
            while let Some(whole) = self.read_record(index)? {
                if whole {
                    any = true;
                }
            }
        }
        if !any {
            self.check_connected()?;
        }
        Ok(any)
    }

    /// Takes a record of a ring. Returns whether it completes a message, or `None` if there is
    /// none.
    fn read_record(&mut self, index: usize) -> Result<Option<bool>> {
        let replies = &mut self.replies[index];
        let taken = replies.ring.read_record(&self.inbox, &mut replies.message).map_err(io::Error::from);
        let Some(whole) = self.mark_lost_on_error(taken)? else { return Ok(None) };
        let replies = &mut self.replies[index];
        if replies.message.len() > self.max_message {
            self.is_lost = true;
            return Err(ClientError::ConnectionLost(io::ErrorKind::InvalidData.into()));
        }
        let link = if self.links.len() == 1 { 0 } else { index };
        let told = replies.credit.send_if_due(&mut *self.links[link], replies.ring.head());
        if whole {
            let decoded = Reply::decode(&replies.message);
            replies.message.clear();
            let (id, reply) = decoded.inspect_err(|_| self.is_lost = true)?;
            self.unanswered = self.unanswered.saturating_sub(1);
            self.completed.push_back((Ticket(id), reply));
        }
        if self.mark_lost_on_error(told)? {
            let reader = if self.replies.len() == 1 { self.agent } else { index };
            let posted = self.links[link].post(reader);
            self.mark_lost_on_error(posted)?;
            self.flush()?;
        }
        Ok(Some(whole))
    }
}

fn into_result(reply: Reply) -> Result<Reply> {
    match reply {
        Reply::Busy => Err(ClientError::Busy),
        Reply::Failed(error) => Err(ClientError::Database(error)),
        other => Ok(other),
    }
}

/// Returns the worker that executes a request.
fn worker_for_request(request: &Request<'_>, workers: usize, agent: usize) -> usize {
    let key = match request {
        Request::Get { key, .. } => Some(*key),
        Request::Write { pair, .. } => Some(pair.key),
        Request::Batch { expectations, changes, .. } => {
            changes.first().or(expectations.first()).map(|pair| pair.key)
        }
        Request::Range(range) => match range.low {
            Bound::Included(key) | Bound::Excluded(key) => Some(key),
            Bound::Unbounded => None,
        },
        _ => None,
    };
    key.map_or(agent, |key| worker_for_key(key, workers))
}
