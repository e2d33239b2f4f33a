//! # Execution: decodes a request, calls the database, encodes the reply
//!
//! Operations that may wait for the device become jobs of the waiter. All others run in the worker
//! that read the request.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sheaf::{CommitTicket, Durability, Error, Iter, Keyspace, Result};
use sheaf_flatrpc::message::{MalformedMessage, Pair, PairsEncoder, RangeRequest, ReplyEncoder, Request};

use crate::commands::{EncodedReply, PendingReply, WaiterJob, WorkerCommand};
use crate::reply_port::ReadyReply;
use crate::session::Session;
use crate::worker::{Worker, WriteBurst};

/// Bytes of a message besides its keys and values.
const MESSAGE_OVERHEAD: usize = 64;

fn malformed_error(malformed: MalformedMessage) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, malformed)
}

/// Returns whether a request is a write that may be committed together with its neighbours.
pub(crate) fn can_join_batch(bytes: &[u8]) -> bool {
    let decoded = Request::decode(bytes);
    matches!(decoded, Ok((_, Request::Write { durability: Durability::Buffer, .. })))
}

impl Worker {
    /// Commits the writes of a burst as one batch, and replies to each.
    pub(crate) fn commit_burst(&mut self, session: &Arc<Session>, burst: &mut WriteBurst) -> io::Result<()> {
        let mut done = Ok(());
        match burst.messages() {
            [] => {}
            [message] => done = self.execute(session, message),
            messages => done = self.commit_as_batch(session, messages),
        }
        burst.clear();
        done
    }

    fn commit_as_batch(&mut self, session: &Arc<Session>, messages: &[Vec<u8>]) -> io::Result<()> {
        let mut ids = Vec::with_capacity(messages.len());
        let mut changes = Vec::with_capacity(messages.len());
        for message in messages {
            if let (id, Request::Write { pair, .. }) = Request::decode(message).map_err(malformed_error)? {
                ids.push(id);
                changes.push(pair);
            }
        }
        self.with_writing_flag(session, |worker, gated| {
            match worker.batch(Durability::Buffer, &[], &changes) {
                Ok(commit) => ids.iter().try_for_each(|id| {
                    worker.reply.clear();
                    worker.reply_committed(session, *id, commit.seq(), gated)
                }),
                // Nothing is committed. Alone each write gets its own result.
                Err(_) => messages.iter().try_for_each(|message| worker.execute(session, message)),
            }
        })
    }

    /// Executes one request. An error is a violation by the client and ends its session.
    pub(crate) fn execute(&mut self, session: &Arc<Session>, bytes: &[u8]) -> io::Result<()> {
        let (id, request) = Request::decode(bytes).map_err(malformed_error)?;
        self.reply.clear();
        match request {
            Request::Ping => ReplyEncoder::new(id, &mut self.reply).done(0),
            Request::Get { keyspace, snapshot, key } => {
                let got = self.get(session, id, keyspace, snapshot, key);
                self.reply_on_error(id, got);
            }
            Request::Write { pair, durability } => {
                return self
                    .commit_and_reply(session, id, durability, |worker| worker.write(&pair, durability));
            }
            Request::Batch { durability, expectations, changes } => {
                return self.commit_and_reply(session, id, durability, |worker| {
                    worker.batch(durability, &expectations, &changes)
                });
            }
            Request::Range(range) => {
                let result = self.range(session, id, &range);
                self.reply_on_error(id, result);
            }
            Request::Snapshot => {
                let db = &self.shared.db;
                let stored = session.store_snapshot(self.shared.limits.max_snapshots, || db.snapshot());
                match stored {
                    Ok(Some((number, seq))) => ReplyEncoder::new(id, &mut self.reply).snapshot(number, seq),
                    Ok(None) => self.reply_busy(id),
                    Err(error) => ReplyEncoder::new(id, &mut self.reply).failed(&error),
                }
            }
            Request::Release { snapshot } => {
                let released = session.release(snapshot);
                let answer = ReplyEncoder::new(id, &mut self.reply);
                match released {
                    Ok(()) => answer.done(0),
                    Err(error) => answer.failed(&error),
                }
            }
            Request::Persist => return self.send_job(session, id, |to| WaiterJob::Persist { to, id }),
            Request::Keyspace { name, engine, create } => {
                let (name, engine) = (name.to_owned(), engine.to_owned());
                return self.send_job(session, id, |to| WaiterJob::Keyspace { to, id, name, engine, create });
            }
        }
        self.send_reply(session)
    }

    /// Replaces the reply by an error.
    fn reply_on_error(&mut self, id: u64, result: Result<()>) {
        if let Err(error) = result {
            self.reply.clear();
            ReplyEncoder::new(id, &mut self.reply).failed(&error);
        }
    }

    fn reply_busy(&mut self, id: u64) {
        self.shared.busy.fetch_add(1, Ordering::Relaxed);
        ReplyEncoder::new(id, &mut self.reply).busy();
    }

    /// Sends the current reply, without an order.
    fn send_reply(&mut self, session: &Arc<Session>) -> io::Result<()> {
        let owner = session.owner(self.index);
        let reply = std::mem::take(&mut self.reply);
        let sent = if owner == self.index {
            self.port(session.recipient).map_or(Ok(()), |port| port.reply(&reply))
        } else {
            session.unsent_bytes.fetch_add(reply.len(), Ordering::SeqCst);
            let desk = &self.shared.worker_handles[owner];
            desk.send(WorkerCommand::Reply {
                recipient: session.recipient,
                payload: EncodedReply::new(&reply),
            });
            desk.wake.wake();
            Ok(())
        };
        self.reply = reply;
        sent
    }

    /// Sends a job to the waiter, or replies `Busy`.
    fn send_job(
        &mut self,
        session: &Arc<Session>,
        id: u64,
        job: impl FnOnce(PendingReply) -> WaiterJob,
    ) -> io::Result<()> {
        let Some(to) = PendingReply::new(session, session.owner(self.index), &self.shared) else {
            self.reply_busy(id);
            return self.send_reply(session);
        };
        // Fails only if the server ends, and the session with it.
        let _ = self.shared.jobs.send(job(to));
        Ok(())
    }

    /// Commits, and sends the reply in the order of commits.
    fn commit_and_reply(
        &mut self,
        session: &Arc<Session>,
        id: u64,
        durability: Durability,
        change: impl FnOnce(&mut Worker) -> Result<CommitTicket>,
    ) -> io::Result<()> {
        let owner = session.owner(self.index);
        let mut to = None;
        if durability == Durability::Sync {
            to = PendingReply::new(session, owner, &self.shared);
            if to.is_none() {
                self.reply_busy(id);
                return self.send_reply(session);
            }
        }
        self.with_writing_flag(session, |worker, gated| match (change(worker), to) {
            (Ok(commit), Some(to)) => {
                worker.reply_when_durable(to, id, commit, gated);
                Ok(())
            }
            (Ok(commit), None) => worker.reply_committed(session, id, commit.seq(), gated),
            (Err(error), _) => {
                worker.reply.clear();
                ReplyEncoder::new(id, &mut worker.reply).failed(&error);
                worker.send_reply(session)
            }
        })
    }

    /// Runs `commit`, which commits and replies, and says so to the agent of the session if its
    /// commits pass a gate.
    fn with_writing_flag(
        &mut self,
        session: &Session,
        commit: impl FnOnce(&mut Worker, bool) -> io::Result<()>,
    ) -> io::Result<()> {
        let (gated, writing) = (session.needs_ordering(), &session.lanes[self.index].writing);
        if gated {
            writing.set();
        }
        let done = commit(self, gated);
        if gated {
            writing.clear();
            let owner = session.owner(self.index);
            if owner != self.index {
                self.shared.worker_handles[owner].wake.wake();
            }
        }
        done
    }

    /// Replies to a commit that is acknowledged.
    fn reply_committed(&mut self, session: &Arc<Session>, id: u64, seq: u64, gated: bool) -> io::Result<()> {
        ReplyEncoder::new(id, &mut self.reply).done(seq);
        if !gated {
            return self.send_reply(session);
        }
        session.unsent_bytes.fetch_add(self.reply.len(), Ordering::SeqCst);
        let (lane, whom, payload) = (self.index, session.recipient, EncodedReply::new(&self.reply));
        let owner = session.owner(lane);
        if owner != lane {
            self.shared.worker_handles[owner].send(WorkerCommand::Commit {
                recipient: whom,
                lane,
                seq,
                payload,
            });
        } else if let Some(port) = self.port(session.recipient) {
            port.commit_order.push(lane, seq, ReadyReply::Reply(payload));
        }
        Ok(())
    }

    /// Has the waiter reply to a commit when it is durable.
    fn reply_when_durable(&mut self, to: PendingReply, id: u64, commit: CommitTicket, gated: bool) {
        let lane = self.index;
        if !gated {
            // Fails only if the server ends.
            let _ = self.shared.jobs.send(WaiterJob::Durable { to, id, commit });
        } else if to.owner != lane {
            let owner = to.owner;
            self.shared.worker_handles[owner].send(WorkerCommand::Durable { to, lane, id, commit });
        } else if let Some(port) = self.port(to.session.recipient) {
            port.commit_order.push(lane, commit.seq(), ReadyReply::Durable { to, id, commit });
        }
    }

    fn keyspace(&mut self, number: u32) -> Result<&Keyspace> {
        let unknown = || {
            let why = format!("number {number} was not given out by this server");
            Error::InvalidArgument { argument: "keyspace", reason: why }
        };
        let at = usize::try_from(number).map_err(|_| unknown())?;
        if self.keyspaces.get(at).is_none_or(Option::is_none) {
            let keyspace = self.shared.keyspaces.get(number).ok_or_else(unknown)?;
            if self.keyspaces.len() <= at {
                self.keyspaces.resize_with(at + 1, || None);
            }
            self.keyspaces[at] = Some(keyspace);
        }
        self.keyspaces[at].as_ref().ok_or_else(unknown)
    }

    fn get(&mut self, session: &Session, id: u64, keyspace: u32, snapshot: u32, key: &[u8]) -> Result<()> {
        let mut reply = std::mem::take(&mut self.reply);
        let most = self.shared.limits.max_message_bytes as usize - MESSAGE_OVERHEAD;
        let mut too_large = None;
        let write = |value: &[u8]| {
            if value.len() > most {
                too_large = Some(value.len());
                return;
            }
            ReplyEncoder::new(id, &mut reply).value(value);
        };
        let found = if snapshot == 0 {
            self.keyspace(keyspace).and_then(|keyspace| keyspace.get_with(key, write))
        } else {
            let space = session.snapshot_keyspace(snapshot, keyspace, || Ok(self.keyspace(keyspace)?.name()));
            space.and_then(|space| space.get_with(key, write))
        };
        self.reply = reply;
        if let Some(got) = too_large {
            return Err(Error::TooLarge { object: "reply", got: got as u64, max: most as u64 });
        }
        if found?.is_none() {
            ReplyEncoder::new(id, &mut self.reply).missing();
        }
        Ok(())
    }

    fn write(&mut self, pair: &Pair<'_>, durability: Durability) -> Result<CommitTicket> {
        let keyspace = self.keyspace(pair.keyspace)?;
        match pair.value {
            Some(value) => keyspace.submit_insert(pair.key, value, durability),
            None => keyspace.submit_remove(pair.key, durability),
        }
    }

    fn batch(
        &mut self,
        durability: Durability,
        expectations: &[Pair<'_>],
        changes: &[Pair<'_>],
    ) -> Result<CommitTicket> {
        let mut batch = self.shared.db.batch();
        batch.durability(durability);
        for pair in expectations {
            batch.expect_value(self.keyspace(pair.keyspace)?, pair.key, pair.value);
        }
        for pair in changes {
            let keyspace = self.keyspace(pair.keyspace)?;
            match pair.value {
                Some(value) => batch.insert(keyspace, pair.key, value),
                None => batch.remove(keyspace, pair.key),
            };
        }
        batch.submit()
    }

    fn range(&mut self, session: &Session, id: u64, range: &RangeRequest<'_>) -> Result<()> {
        let most = self.shared.limits.max_message_bytes as usize - MESSAGE_OVERHEAD;
        let bounds = (range.low, range.high);
        let ordered = self.keyspace(range.keyspace)?.capabilities()?.ordered;
        let pairs = if range.snapshot == 0 {
            self.keyspace(range.keyspace)?.range::<&[u8]>(bounds)?
        } else {
            let space = session.snapshot_keyspace(range.snapshot, range.keyspace, || {
                Ok(self.keyspace(range.keyspace)?.name())
            })?;
            space.range::<&[u8]>(bounds)?
        };
        let answer = ReplyEncoder::new(id, &mut self.reply).pairs();
        if range.reverse {
            write_pairs(&mut ReverseIter(pairs), answer, range.limit, most, ordered)
        } else {
            write_pairs(&mut { pairs }, answer, range.limit, most, ordered)
        }
    }
}

struct ReverseIter(Iter);

impl Iterator for ReverseIter {
    type Item = <Iter as Iterator>::Item;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next_back()
    }
}

/// Writes pairs until the limit, the end, or a full message. Without an order a client could not
/// continue after the last pair, so all pairs must fit into one message.
fn write_pairs(
    pairs: &mut dyn Iterator<Item = <Iter as Iterator>::Item>,
    mut answer: PairsEncoder<'_>,
    limit: u32,
    most: usize,
    ordered: bool,
) -> Result<()> {
    while answer.count() < limit {
        let Some(pair) = pairs.next() else {
            answer.finish(false);
            return Ok(());
        };
        let (key, value) = pair?;
        let size = answer.message_bytes() + PairsEncoder::pair_size(&key, &value);
        if size > most {
            if answer.count() == 0 || !ordered {
                let what = if ordered { "reply with a pair" } else { "reply with a scan without order" };
                return Err(Error::TooLarge { object: what, got: size as u64, max: most as u64 });
            }
            break;
        }
        answer.push(&key, &value);
    }
    answer.finish(true);
    Ok(())
}
