//! Workers without a thread, with clients of all kinds.

use sheaf::Durability;
use sheaf_flatrpc::handshake::ReplyMode;
use sheaf_flatrpc::link::SharedLink;
use sheaf_flatrpc::memory::SharedMemory;
use sheaf_flatrpc::message::{Pair, Reply, Request};
use sheaf_flatrpc::ring::{InboxLayout, RingWriter};
use sheaf_flatrpc::wake::PeerWaker;

use super::*;
use crate::ServerLimits;
use crate::commands::EncodedReply;
use crate::reply_port::PortTransport;
use crate::server_state::new_notifier;

/// Returns a worker without a thread.
fn idle() -> (tempfile::TempDir, Worker) {
    let dir = tempfile::tempdir().expect("a directory");
    let db = sheaf::Database::open(dir.path().join("db")).expect("a database");
    let limits = ServerLimits { workers: 1, ..ServerLimits::default() };
    let (shared, ends) = ServerState::new(db, limits, None, None).expect("shared state");
    let (quiet, _) = std::sync::mpsc::channel();
    let (commands, epoll) = ends.workers.into_iter().next().expect("one worker");
    let worker = Worker::new(shared, 0, commands, epoll, quiet).expect("a worker");
    (dir, worker)
}

/// Returns the first worker's part of a session over shared memory, and the client's inbox.
fn arrival(shared: &ServerState) -> (SessionPart, Arc<SharedMemory>, InboxLayout) {
    let workers = shared.limits.workers;
    let layout = InboxLayout::new(workers, 1, shared.limits.ring_words).expect("a layout");
    let [inbox, theirs] =
        [layout, layout.of_peer()].map(|layout| Arc::new(SharedMemory::heap(layout.words())));
    let whom = Recipient { slot: shared.slots.allocate().expect("a place"), session: 1 };
    let slots = Arc::clone(&shared.slots);
    let session = Session::new(whom, ReplyMode::Agent, 0, workers, layout, Arc::clone(&inbox), slots);
    let session = Arc::new(session);
    let wake = PeerWaker {
        sleep_flags: inbox,
        flag: layout.sleep_flag(),
        notifier: new_notifier().expect("a bell"),
    };
    let wire = PortTransport {
        link: Box::new(SharedLink::new(Arc::clone(&theirs), vec![wake])),
        applier: None,
        socket: Arc::new(new_notifier().expect("anything that can be waited for")),
    };
    let port = ReplyPort::new(&session, RingWriter::new(layout, 0), Vec::new(), wire);
    let arrival = SessionPart { session, ring: RingReader::new(layout, 0), notifier: None, port: Some(port) };
    (arrival, theirs, layout.of_peer())
}

#[test]
fn a_pass_that_consumed_a_notification_is_not_followed_by_sleep() {
    let (_dir, mut worker) = idle();
    assert!(!worker.run_pass(), "there is nothing to do");
    let shared = Arc::clone(&worker.shared);
    let asleep =
        SleepGuard::set(&shared.worker_handles[0].wake.sleep_flags, shared.worker_handles[0].wake.flag);
    shared.worker_handles[0].wake.wake();
    drop(asleep);
    worker.passes = EPOLL_INTERVAL - 1; // the next pass polls the epoll
    assert!(worker.run_pass(), "the reason of the ring is checked in the next pass");
    assert!(!worker.run_pass());
}

#[test]
fn a_reply_arrives_before_its_port_was_taken_over() {
    let (_dir, mut worker) = idle();
    let (arrival, theirs, layout) = arrival(&worker.shared);
    let (whom, desk) = (arrival.session.recipient, &worker.shared.worker_handles[0]);
    arrival.session.unsent_bytes.fetch_add(3, Ordering::SeqCst);
    desk.deliver(arrival);
    desk.send(WorkerCommand::Reply { recipient: whom, payload: EncodedReply::new(b"abc") });
    assert!(worker.take_commands(), "as after a pass that took the mail too early");
    let mut message = Vec::new();
    let whole = RingReader::new(layout, 0).read_record(&theirs, &mut message).expect("no violation");
    assert_eq!((whole, &message[..]), (Some(true), &b"abc"[..]));
}

#[test]
fn a_reply_for_a_session_that_has_ended_is_dropped() {
    let (_dir, mut worker) = idle();
    let (arrival, ..) = arrival(&worker.shared);
    let session = Arc::clone(&arrival.session);
    worker.add_session(arrival).expect("admitted");
    worker.shared.end_session(&session);
    assert!(worker.run_pass(), "its parts are released");
    worker.shared.worker_handles[0]
        .send(WorkerCommand::Reply { recipient: session.recipient, payload: EncodedReply::new(b"abc") });
    assert!(worker.take_commands());
    assert!(worker.port(session.recipient).is_none());
}

#[test]
fn a_durable_commit_made_while_the_server_closes_is_answered() {
    let dir = tempfile::tempdir().expect("a directory");
    let db = sheaf::Database::open(dir.path().join("db")).expect("a database");
    let limits = ServerLimits { workers: 2, ..ServerLimits::default() };
    let (shared, ends) = ServerState::new(db, limits, None, None).expect("shared state");
    let (sender, quiet) = std::sync::mpsc::channel();
    let mut ends_of_workers = ends.workers.into_iter().enumerate();
    let mut worker = || {
        let (index, (commands, epoll)) = ends_of_workers.next().expect("two of them");
        Worker::new(Arc::clone(&shared), index, commands, epoll, sender.clone()).expect("a worker")
    };
    let [mut agent, mut other] = [worker(), worker()];
    let (jobs, of_waiter) = (ends.jobs, Arc::clone(&shared));
    let waiter = crate::spawn("waiter".into(), move || crate::waiter::run(&of_waiter, &jobs));
    let waiter = Some(waiter.expect("a thread"));
    let threads = Vec::new();
    let server =
        crate::Server { shared: Arc::clone(&shared), addresses: Vec::new(), threads, waiter, drained: quiet };
    let (first, theirs, layout) = arrival(&shared);
    let session = Arc::clone(&first.session);
    let ring = RingReader::new(session.layout, 1);
    let second = SessionPart { session: Arc::clone(&session), ring, notifier: None, port: None };
    agent.add_session(first).expect("admitted");
    other.add_session(second).expect("admitted");
    shared.keyspaces.open(&shared.db, "k", "", true).expect("a keyspace, with the number 0");

    // The other worker is in a pass that began before the end of the server, the agent in a later
    // one.
    shared.is_draining.store(true, Ordering::SeqCst);
    agent.run_pass();
    let pair = Pair { keyspace: 0, key: b"a", value: Some(b"b") };
    let mut request = Vec::new();
    Request::Write { pair, durability: Durability::Sync }.encode(7, &mut request);
    other.execute(&session, &request).expect("executed");
    other.run_pass();
    let closing =
        crate::spawn("closing".into(), || server.close().expect("an orderly end")).expect("a thread");
    // The agent was asleep, and wakes after the server has continued to close.
    while !other.has_work() && !shared.is_stopping.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    while !closing.is_finished() {
        agent.run_pass();
        other.run_pass();
    }
    agent.run_pass(); // as `run` does at its end
    closing.join().expect("no panic");
    let mut message = Vec::new();
    let whole = RingReader::new(layout, 0).read_record(&theirs, &mut message).expect("no violation");
    assert_eq!(whole, Some(true), "the commit was made, but its client got no reply");
    assert!(matches!(Reply::decode(&message), Ok((7, Reply::Done { .. }))));
}

/// Returns the replies that a worker without a thread gives to these requests, all of which are in
/// the ring before it looks.
fn replies(worker: &mut Worker, requests: &[Request<'_>]) -> Vec<(u64, Reply)> {
    let (arrival, theirs, layout) = arrival(&worker.shared);
    let session = Arc::clone(&arrival.session);
    worker.add_session(arrival).expect("admitted");
    let mut ring = RingWriter::new(layout, 0);
    let mut link = SharedLink::new(Arc::clone(&session.inbox), Vec::<PeerWaker<OwnedFd>>::new());
    for (id, request) in (0..).zip(requests) {
        let mut message = Vec::new();
        request.encode(id, &mut message);
        let pushed = ring.write_message(&theirs, &mut link, &message, 0).expect("no violation");
        assert_eq!(pushed, Some(message.len()), "the ring has room");
    }
    while worker.run_pass() {}
    let (mut incoming, mut message, mut replies) = (RingReader::new(layout, 0), Vec::new(), Vec::new());
    while incoming.read_record(&theirs, &mut message).expect("no violation") == Some(true) {
        replies.push(Reply::decode(&message).expect("a reply"));
        message.clear();
    }
    replies
}

fn write<'a>(key: &'a [u8], value: Option<&'a [u8]>, durability: Durability) -> Request<'a> {
    Request::Write { pair: Pair { keyspace: 0, key, value }, durability }
}

fn seq_of(reply: &(u64, Reply)) -> u64 {
    match reply.1 {
        Reply::Done { seq } => seq,
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn writes_of_a_burst_are_one_commit_and_later_requests_see_them() {
    let (_dir, mut worker) = idle();
    worker.shared.keyspaces.open(&worker.shared.db, "k", "", true).expect("a keyspace");
    let buffered = |key, value| write(key, value, Durability::Buffer);
    let get = |key| Request::Get { keyspace: 0, snapshot: 0, key };
    let replies = replies(
        &mut worker,
        &[
            buffered(b"a", Some(b"1")),
            buffered(b"b", Some(b"2")),
            buffered(b"a", Some(b"3")),
            get(b"a"),
            buffered(b"b", None),
            get(b"b"),
        ],
    );
    assert_eq!(replies.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    let first = seq_of(&replies[0]);
    assert_eq!([&replies[1], &replies[2], &replies[4]].map(seq_of), [first, first, first + 1]);
    assert!(matches!(&replies[3].1, Reply::Value(Some(value)) if value == b"3"), "{:?}", replies[3]);
    assert!(matches!(replies[5].1, Reply::Value(None)), "{:?}", replies[5]);
}

#[test]
fn a_refused_write_of_a_burst_fails_alone() {
    let (_dir, mut worker) = idle();
    worker.shared.keyspaces.open(&worker.shared.db, "k", "", true).expect("a keyspace");
    let unknown = Pair { keyspace: 7, key: b"b", value: Some(b"2") };
    let replies = replies(
        &mut worker,
        &[
            write(b"a", Some(b"1"), Durability::Buffer),
            Request::Write { pair: unknown, durability: Durability::Buffer },
            write(b"c", Some(b"3"), Durability::Buffer),
        ],
    );
    assert!(matches!(replies[1].1, Reply::Failed(_)), "{:?}", replies[1]);
    assert!(seq_of(&replies[0]) < seq_of(&replies[2]));
}
