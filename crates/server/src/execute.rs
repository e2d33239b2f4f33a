//! # Execution: decodes a request, calls the database, encodes the reply
//!
//! Operations that may wait for the device become jobs of the waiter. All others run in the worker
//! that read the request.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sheaf::{Commit, Durability, Error, Iter, Keyspace, Result};
use sheaf_flatrpc::message::{Answer, Malformed, Pair, PairsAnswer, Range, Request};

use crate::commands::{Command, Job, Payload, Reader};
use crate::port::Ready;
use crate::session::Session;
use crate::worker::{Burst, Worker};

/// Bytes of a message besides its keys and values.
const AROUND: usize = 64;

fn garbage(malformed: Malformed) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, malformed)
}

/// Returns whether a request is a write that may be committed together with its neighbours.
pub(crate) fn joins_burst(bytes: &[u8]) -> bool {
    let decoded = Request::decode(bytes);
    matches!(decoded, Ok((_, Request::Write { durability: Durability::Buffer, .. })))
}

impl Worker {
    /// Commits the writes of a burst as one batch, and replies to each.
    pub(crate) fn commit_burst(&mut self, session: &Arc<Session>, burst: &mut Burst) -> io::Result<()> {
        let mut done = Ok(());
        match burst.messages() {
            [] => {}
            [message] => done = self.execute(session, message),
            messages => done = self.commit_together(session, messages),
        }
        burst.clear();
        done
    }

    fn commit_together(&mut self, session: &Arc<Session>, messages: &[Vec<u8>]) -> io::Result<()> {
        let mut ids = Vec::with_capacity(messages.len());
        let mut changes = Vec::with_capacity(messages.len());
        for message in messages {
            if let (id, Request::Write { pair, .. }) = Request::decode(message).map_err(garbage)? {
                ids.push(id);
                changes.push(pair);
            }
        }
        self.writing(session, |worker, gated| match worker.batch(Durability::Buffer, &[], &changes) {
            Ok(commit) => ids.iter().try_for_each(|id| {
                worker.reply.clear();
                worker.buffered(session, *id, commit.seq(), gated)
            }),
            // Nothing is committed. Alone each write gets its own result.
            Err(_) => messages.iter().try_for_each(|message| worker.execute(session, message)),
        })
    }

    /// Executes one request. An error is a violation by the client and ends its session.
    pub(crate) fn execute(&mut self, session: &Arc<Session>, bytes: &[u8]) -> io::Result<()> {
        let (id, request) = Request::decode(bytes).map_err(garbage)?;
        self.reply.clear();
        match request {
            Request::Ping => Answer::to(id, &mut self.reply).done(0),
            Request::Get { keyspace, snapshot, key } => {
                let got = self.get(session, id, keyspace, snapshot, key);
                self.or_failed(id, got);
            }
            Request::Write { pair, durability } => {
                return self.commit(session, id, durability, |worker| worker.write(&pair, durability));
            }
            Request::Batch { durability, expectations, changes } => {
                return self.commit(session, id, durability, |worker| {
                    worker.batch(durability, &expectations, &changes)
                });
            }
            Request::Range(range) => {
                let walked = self.range(session, id, &range);
                self.or_failed(id, walked);
            }
            Request::Snapshot => {
                let db = &self.shared.db;
                let kept = session.keep(self.shared.limits.snapshots, || db.snapshot());
                match kept {
                    Ok(Some((number, seq))) => Answer::to(id, &mut self.reply).snapshot(number, seq),
                    Ok(None) => self.busy(id),
                    Err(error) => Answer::to(id, &mut self.reply).failed(&error),
                }
            }
            Request::Release { snapshot } => {
                let released = session.release(snapshot);
                let answer = Answer::to(id, &mut self.reply);
                match released {
                    Ok(()) => answer.done(0),
                    Err(error) => answer.failed(&error),
                }
            }
            Request::Persist => return self.job(session, id, |to| Job::Persist { to, id }),
            Request::Keyspace { name, engine, create } => {
                let (name, engine) = (name.to_owned(), engine.to_owned());
                return self.job(session, id, |to| Job::Keyspace { to, id, name, engine, create });
            }
        }
        self.send(session)
    }

    /// Replaces the reply by an error.
    fn or_failed(&mut self, id: u64, result: Result<()>) {
        if let Err(error) = result {
            self.reply.clear();
            Answer::to(id, &mut self.reply).failed(&error);
        }
    }

    fn busy(&mut self, id: u64) {
        self.shared.busy.fetch_add(1, Ordering::Relaxed);
        Answer::to(id, &mut self.reply).busy();
    }

    /// Sends the current reply, without an order.
    fn send(&mut self, session: &Arc<Session>) -> io::Result<()> {
        let owner = session.owner(self.index);
        let reply = std::mem::take(&mut self.reply);
        let sent = if owner == self.index {
            self.port(session.whom).map_or(Ok(()), |port| port.reply(&reply))
        } else {
            session.owed.fetch_add(reply.len(), Ordering::SeqCst);
            let desk = &self.shared.desks[owner];
            desk.send(Command::Reply { whom: session.whom, payload: Payload::new(&reply) });
            desk.wake.ring();
            Ok(())
        };
        self.reply = reply;
        sent
    }

    /// Sends a job to the waiter, or replies `Busy`.
    fn job(&mut self, session: &Arc<Session>, id: u64, job: impl FnOnce(Reader) -> Job) -> io::Result<()> {
        let Some(to) = Reader::new(session, session.owner(self.index), &self.shared) else {
            self.busy(id);
            return self.send(session);
        };
        // Fails only if the server ends, and the session with it.
        let _ = self.shared.jobs.send(job(to));
        Ok(())
    }

    /// Commits, and sends the reply in the order of commits.
    fn commit(
        &mut self,
        session: &Arc<Session>,
        id: u64,
        durability: Durability,
        change: impl FnOnce(&mut Worker) -> Result<Commit>,
    ) -> io::Result<()> {
        let owner = session.owner(self.index);
        let mut to = None;
        if durability == Durability::Sync {
            to = Reader::new(session, owner, &self.shared);
            if to.is_none() {
                self.busy(id);
                return self.send(session);
            }
        }
        self.writing(session, |worker, gated| match (change(worker), to) {
            (Ok(commit), Some(to)) => {
                worker.durable(to, id, commit, gated);
                Ok(())
            }
            (Ok(commit), None) => worker.buffered(session, id, commit.seq(), gated),
            (Err(error), _) => {
                worker.reply.clear();
                Answer::to(id, &mut worker.reply).failed(&error);
                worker.send(session)
            }
        })
    }

    /// Runs `commit`, which commits and replies, and says so to the agent of the session if its
    /// commits pass a gate.
    fn writing(
        &mut self,
        session: &Session,
        commit: impl FnOnce(&mut Worker, bool) -> io::Result<()>,
    ) -> io::Result<()> {
        let (gated, writing) = (session.is_gated(), &session.lanes[self.index].writing);
        if gated {
            writing.begin();
        }
        let done = commit(self, gated);
        if gated {
            writing.end();
            let owner = session.owner(self.index);
            if owner != self.index {
                self.shared.desks[owner].wake.ring();
            }
        }
        done
    }

    /// Replies to a commit that is acknowledged.
    fn buffered(&mut self, session: &Arc<Session>, id: u64, seq: u64, gated: bool) -> io::Result<()> {
        Answer::to(id, &mut self.reply).done(seq);
        if !gated {
            return self.send(session);
        }
        session.owed.fetch_add(self.reply.len(), Ordering::SeqCst);
        let (lane, whom, payload) = (self.index, session.whom, Payload::new(&self.reply));
        let owner = session.owner(lane);
        if owner != lane {
            self.shared.desks[owner].send(Command::Commit { whom, lane, seq, payload });
        } else if let Some(port) = self.port(session.whom) {
            port.gate.hold(lane, seq, Ready::Reply(payload));
        }
        Ok(())
    }

    /// Has the waiter reply to a commit when it is durable.
    fn durable(&mut self, to: Reader, id: u64, commit: Commit, gated: bool) {
        let lane = self.index;
        if !gated {
            // Fails only if the server ends.
            let _ = self.shared.jobs.send(Job::Durable { to, id, commit });
        } else if to.owner != lane {
            let owner = to.owner;
            self.shared.desks[owner].send(Command::Durable { to, lane, id, commit });
        } else if let Some(port) = self.port(to.session.whom) {
            port.gate.hold(lane, commit.seq(), Ready::Durable { to, id, commit });
        }
    }

    fn keyspace(&mut self, number: u32) -> Result<&Keyspace> {
        let unknown = || {
            let why = format!("number {number} was not given out by this server");
            Error::Invalid { what: "keyspace", why }
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
        let most = self.shared.limits.message as usize - AROUND;
        let mut too_large = None;
        let write = |value: &[u8]| {
            if value.len() > most {
                too_large = Some(value.len());
                return;
            }
            Answer::to(id, &mut reply).value(value);
        };
        let found = if snapshot == 0 {
            self.keyspace(keyspace).and_then(|keyspace| keyspace.get_with(key, write))
        } else {
            let space = session.space(snapshot, keyspace, || Ok(self.keyspace(keyspace)?.name()));
            space.and_then(|space| space.get_with(key, write))
        };
        self.reply = reply;
        if let Some(got) = too_large {
            return Err(Error::TooLarge { what: "reply", got: got as u64, max: most as u64 });
        }
        if found?.is_none() {
            Answer::to(id, &mut self.reply).missing();
        }
        Ok(())
    }

    fn write(&mut self, pair: &Pair<'_>, durability: Durability) -> Result<Commit> {
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
    ) -> Result<Commit> {
        let mut batch = self.shared.db.batch();
        batch.durability(durability);
        for pair in expectations {
            batch.expect(self.keyspace(pair.keyspace)?, pair.key, pair.value);
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

    fn range(&mut self, session: &Session, id: u64, range: &Range<'_>) -> Result<()> {
        let most = self.shared.limits.message as usize - AROUND;
        let bounds = (range.low, range.high);
        let ordered = self.keyspace(range.keyspace)?.capabilities()?.ordered;
        let pairs = if range.snapshot == 0 {
            self.keyspace(range.keyspace)?.range::<&[u8]>(bounds)?
        } else {
            let space = session
                .space(range.snapshot, range.keyspace, || Ok(self.keyspace(range.keyspace)?.name()))?;
            space.range::<&[u8]>(bounds)?
        };
        let answer = Answer::to(id, &mut self.reply).pairs();
        if range.reverse {
            walk(&mut Backwards(pairs), answer, range.limit, most, ordered)
        } else {
            walk(&mut { pairs }, answer, range.limit, most, ordered)
        }
    }
}

struct Backwards(Iter);

impl Iterator for Backwards {
    type Item = <Iter as Iterator>::Item;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next_back()
    }
}

/// Writes pairs until the limit, the end, or a full message. Without an order a client could not
/// continue after the last pair, so all pairs must fit into one message.
fn walk(
    pairs: &mut dyn Iterator<Item = <Iter as Iterator>::Item>,
    mut answer: PairsAnswer<'_>,
    limit: u32,
    most: usize,
    ordered: bool,
) -> Result<()> {
    while answer.count() < limit {
        let Some(pair) = pairs.next() else {
            answer.end(false);
            return Ok(());
        };
        let (key, value) = pair?;
        let size = answer.size() + PairsAnswer::cost(&key, &value);
        if size > most {
            if answer.count() == 0 || !ordered {
                let what = if ordered { "reply with a pair" } else { "reply with a scan without order" };
                return Err(Error::TooLarge { what, got: size as u64, max: most as u64 });
            }
            break;
        }
        answer.push(&key, &value);
    }
    answer.end(true);
    Ok(())
}
