//! # Client: requests out, replies in
//!
//! ```text
//!   submit ─> ring of the key's worker ─> .. server .. ─> ring of replies ─> done ─> wait, next
//!                     (link)                                  (inbox)
//! ```
//!
//! ## Invariants
//!
//! 1. At most a window of requests is unanswered; whoever submits beyond waits for one first.
//! 2. `done` holds replies in the order they came, until they are asked for.
//! 3. Waiting is looking for a while, then sleeping on the bell or the sockets, and the end of a socket wakes,
//!    too: a server that dies is noticed.

use std::collections::VecDeque;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec};
use sheaf_flatrpc::address::Address;
use sheaf_flatrpc::hello::Mode;
use sheaf_flatrpc::link::{Applied, Link};
use sheaf_flatrpc::memory::Memory;
use sheaf_flatrpc::message::{Range, Reply, Request};
use sheaf_flatrpc::ring::{Credit, Incoming, Outgoing};
use sheaf_flatrpc::spin::Spin;
use sheaf_flatrpc::wake::Asleep;
use sheaf_flatrpc::worker_of;

use crate::connect::{Connected, Events, Options, connect};
use crate::request::{Batch, Keyspace, Snapshot};
use crate::{Error, Result};

/// A request that was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(u64);

/// Replies of one ring.
struct Replies {
    ring: Incoming,
    credit: Credit,
    message: Vec<u8>,
}

/// A connection to a served database. One thread at a time; open one for each.
pub struct Client {
    inbox: Arc<Memory>,
    links: Vec<Box<dyn Link>>,
    events: Events,
    /// Where the server looks whether we sleep.
    asleep: usize,
    requests: Vec<Outgoing>,
    replies: Vec<Replies>,
    mode: Mode,
    agent: usize,
    window: usize,
    max_message: usize,
    timeout: Option<Timespec>,
    next: u64,
    unanswered: usize,
    done: VecDeque<(Ticket, Reply)>,
    scratch: Vec<u8>,
    spin: Spin,
    lost: bool,
}

impl Client {
    /// Connects to the server at `address`.
    pub fn connect(address: &Address, options: &Options) -> Result<Client> {
        let Connected { welcome, layout, inbox, links, events } = connect(address, options)?;
        let number = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
        let replies = |index| {
            let ring = Incoming::new(layout, index);
            Replies { credit: ring.credit(), ring, message: Vec::new() }
        };
        let lookers = match address {
            Address::Shared(_) => number(welcome.workers) + 1,
            Address::Tcp(_) => 1, // the workers may be on another machine
        };
        let rings = if options.mode == Mode::Agent { 1 } else { number(welcome.workers) };
        Ok(Client {
            inbox,
            links,
            events,
            asleep: layout.of_peer().asleep(),
            requests: (0..number(welcome.workers)).map(|index| Outgoing::new(layout, index)).collect(),
            replies: (0..rings).map(replies).collect(),
            mode: options.mode,
            agent: number(welcome.agent),
            window: number(welcome.window),
            max_message: number(welcome.max_message),
            timeout: options.timeout.and_then(|timeout| timeout.try_into().ok()),
            next: 1,
            unanswered: 0,
            done: VecDeque::new(),
            scratch: Vec::new(),
            spin: Spin::among(lookers),
            lost: false,
        })
    }

    /// How replies come back.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// How many workers the server has.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.requests.len()
    }

    /// Most requests that can be unanswered at a time.
    #[must_use]
    pub fn window(&self) -> usize {
        self.window
    }

    /// How many requests are unanswered now.
    #[must_use]
    pub fn unanswered(&self) -> usize {
        self.unanswered
    }

    /// The keyspace `name`, created with the default engine if there is none.
    pub fn keyspace(&mut self, name: &str) -> Result<Keyspace> {
        self.open(&Request::Keyspace { name, engine: "", create: true })
    }

    /// The keyspace `name`, created with `engine` if there is none; one that is there must have that engine.
    pub fn keyspace_of(&mut self, name: &str, engine: &str) -> Result<Keyspace> {
        self.open(&Request::Keyspace { name, engine, create: true })
    }

    /// The keyspace `name`, or [`sheaf::Error::NoKeyspace`].
    pub fn existing_keyspace(&mut self, name: &str) -> Result<Keyspace> {
        self.open(&Request::Keyspace { name, engine: "", create: false })
    }

    fn open(&mut self, request: &Request<'_>) -> Result<Keyspace> {
        match self.call(request)? {
            Reply::Keyspace { number, ordered } => Ok(Keyspace { number, ordered }),
            _ => Err(unexpected()),
        }
    }

    /// The value of `key`.
    pub fn get(&mut self, keyspace: Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        self.value(&keyspace.get(key.as_ref()))
    }

    /// The value of `key` in a snapshot.
    pub fn get_at(
        &mut self,
        snapshot: &Snapshot,
        keyspace: Keyspace,
        key: impl AsRef<[u8]>,
    ) -> Result<Option<Vec<u8>>> {
        self.value(&keyspace.get_at(snapshot, key.as_ref()))
    }

    fn value(&mut self, request: &Request<'_>) -> Result<Option<Vec<u8>>> {
        match self.call(request)? {
            Reply::Value(value) => Ok(value),
            _ => Err(unexpected()),
        }
    }

    /// Sets `key` to `value`; the number of the commit.
    pub fn insert(
        &mut self,
        keyspace: Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<u64> {
        self.seq(&keyspace.insert(key.as_ref(), value.as_ref()))
    }

    /// Removes `key`; the number of the commit.
    pub fn remove(&mut self, keyspace: Keyspace, key: impl AsRef<[u8]>) -> Result<u64> {
        self.seq(&keyspace.remove(key.as_ref()))
    }

    /// Commits a batch; the number of the commit.
    pub fn commit(&mut self, batch: &Batch<'_>) -> Result<u64> {
        self.seq(&batch.request())
    }

    /// Waits until everything acknowledged before the call is on the device.
    pub fn persist(&mut self) -> Result<()> {
        self.seq(&Request::Persist).map(drop)
    }

    /// Asks for an answer and nothing else.
    pub fn ping(&mut self) -> Result<()> {
        self.seq(&Request::Ping).map(drop)
    }

    fn seq(&mut self, request: &Request<'_>) -> Result<u64> {
        match self.call(request)? {
            Reply::Done { seq } => Ok(seq),
            _ => Err(unexpected()),
        }
    }

    /// The database as of now. The server holds it until [`Client::release`] or the end of the connection; it
    /// allows a client a few.
    pub fn snapshot(&mut self) -> Result<Snapshot> {
        match self.call(&Request::Snapshot)? {
            Reply::Snapshot { number, seq } => Ok(Snapshot { number, seq }),
            _ => Err(unexpected()),
        }
    }

    /// Lets go of a snapshot.
    pub fn release(&mut self, snapshot: Snapshot) -> Result<()> {
        self.seq(&Request::Release { snapshot: snapshot.number }).map(drop)
    }

    /// The pairs within `range`, at most `limit`, in key order. Needs an ordered engine unless the range is
    /// everything. It is asked for in parts, each as of its own moment unless a snapshot is named.
    pub fn range<K: AsRef<[u8]>>(
        &mut self,
        keyspace: Keyspace,
        snapshot: Option<&Snapshot>,
        range: impl RangeBounds<K>,
        reverse: bool,
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let own = |bound: Bound<&K>| bound.map(|key| key.as_ref().to_vec());
        let (mut low, mut high) = (own(range.start_bound()), own(range.end_bound()));
        let mut all: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        loop {
            let request = Request::Range(Range {
                keyspace: keyspace.number,
                snapshot: snapshot.map_or(0, |snapshot| snapshot.number),
                low: low.as_ref().map(Vec::as_slice),
                high: high.as_ref().map(Vec::as_slice),
                reverse,
                limit: u32::try_from(limit - all.len()).unwrap_or(u32::MAX),
            });
            let Reply::Pairs { pairs, more } = self.call(&request)? else { return Err(unexpected()) };
            all.extend(pairs);
            match all.last() {
                Some((last, _)) if more && all.len() < limit && keyspace.ordered => {
                    *(if reverse { &mut high } else { &mut low }) = Bound::Excluded(last.clone());
                }
                _ => return Ok(all),
            }
        }
    }

    /// Submits a request and waits for its reply.
    pub fn call(&mut self, request: &Request<'_>) -> Result<Reply> {
        let ticket = self.submit(request)?;
        self.wait(ticket)
    }

    /// Submits a request. It is on its way when the ring has room for it; waits if it has none, or if a window
    /// of requests is unanswered.
    pub fn submit(&mut self, request: &Request<'_>) -> Result<Ticket> {
        while self.unanswered >= self.window {
            self.collect()?;
        }
        let ticket = Ticket(self.next);
        self.scratch.clear();
        request.encode(ticket.0, &mut self.scratch);
        if self.scratch.len() > self.max_message {
            let (got, max) = (self.scratch.len() as u64, self.max_message as u64);
            return Err(sheaf::Error::TooLarge { what: "message", got, max }.into());
        }
        self.check()?;
        let message = std::mem::take(&mut self.scratch);
        let pushed = self.push(worker_for(request, self.requests.len(), self.agent), &message);
        self.scratch = message;
        pushed?;
        self.next += 1;
        self.unanswered += 1;
        Ok(ticket)
    }

    fn push(&mut self, worker: usize, message: &[u8]) -> Result<()> {
        let link = if self.links.len() == 1 { 0 } else { worker };
        let mut from = 0;
        loop {
            let pushed = self.requests[worker].push(&self.inbox, &mut *self.links[link], message, from);
            if let Some(to) = self.hold(pushed)? {
                from = to;
                let posted = self.links[link].post(worker);
                self.hold(posted)?;
            }
            if from == message.len() {
                return Ok(());
            }
            // Part of a message is out: only the end of the connection may keep the rest from following.
            self.sleep(Some(worker), None)?;
            self.take_all()?;
        }
    }

    /// Remembers that the connection is of no use any more.
    fn hold<T>(&mut self, result: io::Result<T>) -> Result<T> {
        result.map_err(|error| {
            self.lost = true;
            Error::Lost(error)
        })
    }

    fn check(&self) -> Result<()> {
        if self.lost {
            return Err(Error::Lost(io::ErrorKind::NotConnected.into()));
        }
        Ok(())
    }

    /// Sends on its way what was submitted. Waiting does so, too.
    pub fn flush(&mut self) -> Result<bool> {
        let mut all = true;
        for link in 0..self.links.len() {
            let flushed = self.links[link].flush();
            all &= self.hold(flushed)?;
        }
        Ok(all)
    }

    /// Waits for the reply to a request.
    pub fn wait(&mut self, ticket: Ticket) -> Result<Reply> {
        loop {
            if let Some(at) = self.done.iter().position(|(done, _)| *done == ticket)
                && let Some((_, reply)) = self.done.remove(at)
            {
                return answer(reply);
            }
            if self.unanswered == 0 {
                let why = "nothing with this ticket is to come".to_owned();
                return Err(sheaf::Error::Invalid { what: "ticket", why }.into());
            }
            self.collect()?;
        }
    }

    /// Waits for any reply and answers which request it is to. `None`: nothing is unanswered. Replies come in
    /// the order in which the server sent them.
    #[expect(clippy::should_implement_trait, reason = "an iterator would end for good")]
    pub fn next(&mut self) -> Result<Option<(Ticket, Result<Reply>)>> {
        loop {
            if let Some((ticket, reply)) = self.done.pop_front() {
                return Ok(Some((ticket, answer(reply))));
            }
            if self.unanswered == 0 {
                return Ok(None);
            }
            self.collect()?;
        }
    }

    /// Waits until a reply came.
    fn collect(&mut self) -> Result<()> {
        while !self.take_all()? {
            self.sleep(None, self.timeout)?;
        }
        Ok(())
    }

    /// Takes the replies that are there; whether there were any.
    fn take_all(&mut self) -> Result<bool> {
        if let Events::Tcp { appliers, .. } = &mut self.events
            && !self.replies.iter().any(|replies| replies.ring.has_any(&self.inbox))
        {
            for applier in appliers {
                match applier.apply(&mut |_| {}) {
                    Ok(Applied::End) => self.lost = true,
                    Ok(_) => {}
                    Err(error) => {
                        self.lost = true;
                        return Err(Error::Lost(error));
                    }
                }
            }
        }
        let mut any = false;
        for index in 0..self.replies.len() {
            while let Some(whole) = self.take(index)? {
                if whole {
                    any = true;
                }
            }
        }
        if !any {
            self.check()?;
        }
        Ok(any)
    }

    /// Takes a record of a ring; whether a message is whole with it.
    fn take(&mut self, index: usize) -> Result<Option<bool>> {
        let replies = &mut self.replies[index];
        let taken = replies.ring.take(&self.inbox, &mut replies.message).map_err(io::Error::from);
        let Some(whole) = self.hold(taken)? else { return Ok(None) };
        let replies = &mut self.replies[index];
        if replies.message.len() > self.max_message {
            self.lost = true;
            return Err(Error::Lost(io::ErrorKind::InvalidData.into()));
        }
        let link = if self.links.len() == 1 { 0 } else { index };
        let told = replies.credit.tell(&mut *self.links[link], replies.ring.head());
        if whole {
            let decoded = Reply::decode(&replies.message);
            replies.message.clear();
            let (id, reply) = decoded.inspect_err(|_| self.lost = true)?;
            self.unanswered = self.unanswered.saturating_sub(1);
            self.done.push_back((Ticket(id), reply));
        }
        if self.hold(told)? {
            let reader = if self.replies.len() == 1 { self.agent } else { index };
            let posted = self.links[link].post(reader);
            self.hold(posted)?;
            self.flush()?;
        }
        Ok(Some(whole))
    }

    /// Whether there is a reason not to sleep: a reply, or room in the ring of `worker`.
    fn is_awake(&mut self, worker: Option<usize>) -> bool {
        let room = worker.is_some_and(|worker| {
            self.requests[worker].has_room_for_any(&self.inbox).unwrap_or(true) // found out by the push
        });
        room || self.replies.iter().any(|replies| replies.ring.has_any(&self.inbox))
    }

    /// Waits until the server wrote something. May return early.
    fn sleep(&mut self, worker: Option<usize>, timeout: Option<Timespec>) -> Result<()> {
        let flushed = self.flush()?;
        if matches!(self.events, Events::Tcp { .. }) {
            return self.poll_sockets(flushed, timeout);
        }
        let mut spin = std::mem::take(&mut self.spin);
        let seen = spin.until(|| self.is_awake(worker));
        self.spin = spin;
        if seen {
            return Ok(());
        }
        let Events::Shared { peer, .. } = &self.events else { return Ok(()) };
        let peer = Arc::clone(peer);
        let asleep = Asleep::say(&peer, self.asleep);
        let polled = if self.is_awake(worker) { Ok(()) } else { self.poll_bell(timeout) };
        drop(asleep);
        self.spin.slept();
        polled
    }

    fn poll_bell(&mut self, timeout: Option<Timespec>) -> Result<()> {
        let Events::Shared { bell, socket, .. } = &self.events else { return Ok(()) };
        let mut polled = [PollFd::new(bell, PollFlags::IN), PollFd::new(socket, PollFlags::RDHUP)];
        let count = poll(&mut polled, timeout)?;
        if polled[1].revents().intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR) {
            self.lost = true; // what was written before is still taken
            return Ok(());
        }
        let mut count_of_rings = [0; 8];
        let _ = rustix::io::read(bell, &mut count_of_rings); // it does not block; there may be none
        if count == 0 { Err(Error::TimedOut) } else { Ok(()) }
    }

    fn poll_sockets(&mut self, flushed: bool, timeout: Option<Timespec>) -> Result<()> {
        let Events::Tcp { sockets, .. } = &self.events else { return Ok(()) };
        let what = if flushed { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
        let mut polled: Vec<PollFd<'_>> = sockets.iter().map(|socket| PollFd::new(&**socket, what)).collect();
        match poll(&mut polled, timeout)? {
            0 => Err(Error::TimedOut),
            _ => Ok(()),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if !self.lost {
            let _ = self.flush(); // nobody is left to hear of an error
        }
    }
}

/// How many are ready; an interruption is none too few.
fn poll(polled: &mut [PollFd<'_>], timeout: Option<Timespec>) -> Result<usize> {
    match rustix::event::poll(polled, timeout.as_ref()) {
        Err(rustix::io::Errno::INTR) => Ok(1),
        other => Ok(other?),
    }
}

fn answer(reply: Reply) -> Result<Reply> {
    match reply {
        Reply::Busy => Err(Error::Busy),
        Reply::Failed(error) => Err(Error::Database(error)),
        other => Ok(other),
    }
}

fn unexpected() -> Error {
    Error::Lost(io::Error::new(io::ErrorKind::InvalidData, "the reply is to something else"))
}

/// The worker that a request goes to.
fn worker_for(request: &Request<'_>, workers: usize, agent: usize) -> usize {
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
    key.map_or(agent, |key| worker_of(key, workers))
}
