//! # Hostile clients do not affect other clients

use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use sheaf_client::{Client, ClientError, Durability, ReplyMode, Request, ServerAddress};
use sheaf_flatrpc::handshake::{
    ClientHello, HELLO_BYTES, HandshakeStatus, ServerHello, SessionJoin, VERSION,
};
use sheaf_flatrpc::link::{PeerLink, SharedLink, TcpLink};
use sheaf_flatrpc::memory::SharedMemory;
use sheaf_flatrpc::ring::{InboxLayout, RingWriter};
use sheaf_flatrpc::wake::PeerNotifier;
use sheaf_server::{ServerBuilder, ServerLimits, rdma};

use crate::support::{ServedDatabase, TRANSPORTS, limits, local, options, until};

fn hello(token: &str) -> Vec<u8> {
    ClientHello { mode: ReplyMode::Agent, join: None, token: token.into() }.encode()
}

fn welcome(mut socket: impl Read) -> Option<ServerHello> {
    let mut bytes = [0; HELLO_BYTES];
    socket.read_exact(&mut bytes).ok()?;
    Some(ServerHello::decode(&bytes).expect("a welcome"))
}

/// Client over shared memory that can write any bytes.
struct HostileClient {
    inbox: SharedMemory,
    ours: SharedMemory,
    /// Bell that the server rings.
    bell: OwnedFd,
    bells: Vec<OwnedFd>,
    out: RingWriter,
    _socket: UnixStream,
}

impl HostileClient {
    fn new(house: &ServedDatabase) -> HostileClient {
        let mut socket = UnixStream::connect(house.socket()).expect("a socket");
        socket.write_all(&hello("")).expect("room");
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(70))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; HELLO_BYTES];
        let got = rustix::net::recvmsg(
            &socket,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        );
        assert_eq!(got.expect("a message").bytes, HELLO_BYTES);
        let welcome = ServerHello::decode(&bytes).expect("a welcome");
        let mut files = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(handed) = message {
                files.extend(handed);
            }
        }
        let workers = welcome.workers as usize;
        let layout = InboxLayout::new(1, workers, u64::from(welcome.ring_words)).expect("a layout");
        assert!(
            SharedMemory::map(&files[2], workers * 8, false).is_err(),
            "only the server can write the board"
        );
        assert!(rustix::fs::ftruncate(&files[0], 0).is_err(), "no client can shrink the memory");
        HostileClient {
            inbox: SharedMemory::map(&files[0], layout.of_peer().words(), false).expect("memory"),
            ours: SharedMemory::map(&files[1], layout.words(), false).expect("memory"),
            bells: files.split_off(4),
            bell: files.remove(3),
            out: RingWriter::new(layout, 0),
            _socket: socket,
        }
    }

    fn ring(&self) {
        self.bells.iter().for_each(PeerNotifier::notify);
    }

    /// Writes a message into the ring of worker 0, as a client would.
    fn send(self, message: &[u8]) -> HostileClient {
        let inbox = Arc::new(self.inbox);
        let mut out = self.out;
        let mut link = SharedLink::<OwnedFd>::new(Arc::clone(&inbox), Vec::new());
        let mut from = 0;
        for _ in 0..2_000 {
            from = out
                .write_message(&self.ours, &mut link, message, from)
                .expect("no complaint")
                .unwrap_or(from);
            self.bells.iter().for_each(PeerNotifier::notify);
            if from == message.len() {
                break;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        drop(link);
        let inbox = Arc::into_inner(inbox).expect("the only reference");
        HostileClient { inbox, out, ..self }
    }
}

/// Checks that other clients are served.
fn assert_serving(house: &ServedDatabase) {
    for way in TRANSPORTS {
        let mut client = house.client(way);
        let keyspace = client.keyspace("well").expect("a keyspace");
        client.insert(keyspace, b"a", b"b").expect("an insert");
        assert_eq!(client.get(keyspace, b"a").expect("a get").as_deref(), Some(&b"b"[..]));
    }
}

fn ended(house: &ServedDatabase, before: u64) {
    until("the session of a client that breaks the rules ends", || {
        house.server.stats().violations > before && house.server.stats().clients == 0
    });
}

#[test]
fn garbage_in_a_ring_ends_only_that_session() {
    let house = ServedDatabase::new(limits(2));
    for seed in 1..60u64 {
        let rogue = HostileClient::new(&house);
        let mut state = seed;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 24
        };
        for at in 0..rogue.inbox.len() {
            if !seed.is_multiple_of(3) || at < 64 {
                let value = if seed.is_multiple_of(2) { random() % 50 } else { random() << 17 };
                rogue.inbox.writable_word(at).store(value, Ordering::Relaxed);
            }
        }
        rogue.ring();
        drop(rogue);
    }
    until("they are gone", || house.server.stats().clients == 0);
    assert!(house.server.stats().violations > 0);
    assert_serving(&house);
    house.server.close().expect("no thread has panicked");
}

#[test]
fn a_false_tail_record_or_message_ends_only_that_session() {
    let house = ServedDatabase::new(ServerLimits { max_message_bytes: 1 << 16, ..limits(1) });
    let lies: [&dyn Fn(&HostileClient); 3] = [
        &|rogue| rogue.inbox.publish(0, u64::MAX),
        &|rogue| rogue.inbox.publish(0, 8193),
        // A record of 4 GiB − 1 where two words were written.
        &|rogue| {
            let data = InboxLayout::new(1, 1, 8192).expect("a layout").words() - 8192;
            rogue.inbox.writable_word(data).store(u64::from(u32::MAX), Ordering::Relaxed);
            rogue.inbox.publish(0, 2);
        },
    ];
    for lie in lies {
        let before = house.server.stats().violations;
        let rogue = HostileClient::new(&house);
        lie(&rogue);
        rogue.ring();
        ended(&house, before);
        assert_serving(&house);
    }
    // A message without an end; an invalid message; a count above the number of items.
    for message in [vec![0; 1 << 20], vec![200; 40], [&[0; 8][..], &[5, 0, 255, 255, 255, 255]].concat()] {
        let before = house.server.stats().violations;
        let rogue = HostileClient::new(&house).send(&message);
        ended(&house, before);
        drop(rogue);
        assert_serving(&house);
    }
    house.server.close().expect("no thread has panicked");
}

#[test]
fn credits_for_unsent_bytes_end_only_that_session() {
    let house = ServedDatabase::new(ServerLimits { ring_words: 64, ..limits(1) });
    let before = house.server.stats().violations;
    let rogue = HostileClient::new(&house);
    rogue.inbox.writable_word(8).store(u64::MAX / 2, Ordering::Relaxed);
    let mut rogue = rogue;
    for id in 0..40 {
        let mut ping = Vec::new();
        Request::Ping.encode(id, &mut ping);
        rogue = rogue.send(&ping);
        if house.server.stats().violations > before {
            break;
        }
    }
    ended(&house, before);
    assert_serving(&house);
}

#[test]
fn garbage_and_huge_lengths_over_tcp_end_only_that_session() {
    let house = ServedDatabase::new(limits(2));
    let ServerAddress::Tcp(at) = house.address(1).clone() else { panic!("the second is TCP") };
    let frames: [Vec<u8>; 5] = [
        vec![255; 4000],
        [0u32.to_le_bytes(), u32::MAX.to_le_bytes()].concat(),
        [u32::MAX.to_le_bytes(), 1u32.to_le_bytes()].concat(),
        [0u32.to_le_bytes(), 0u32.to_le_bytes()].concat(),
        [&0u32.to_le_bytes()[..], &1u32.to_le_bytes(), &u64::MAX.to_le_bytes()].concat(),
    ];
    for frame in frames {
        let before = house.server.stats().violations;
        let mut socket = TcpStream::connect(at).expect("a socket");
        socket.write_all(&hello("")).expect("room");
        assert_eq!(welcome(&socket).expect("an answer").status, HandshakeStatus::Accepted);
        socket.write_all(&frame).expect("room");
        ended(&house, before);
        assert_serving(&house);
    }
    house.server.close().expect("no thread has panicked");
}

#[test]
fn unknown_clients_are_refused_and_delay_no_other() {
    let house = ServedDatabase::with(limits(1), |builder| builder.token("open sesame"));
    let ServerAddress::Tcp(at) = house.address(1).clone() else { panic!("the second is TCP") };
    let silent: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(at).expect("a socket")).collect();
    let mut half = TcpStream::connect(at).expect("a socket");
    half.write_all(&hello("open sesame")[..30]).expect("room");
    let say = |bytes: &[u8]| {
        let mut socket = TcpStream::connect(at).expect("a socket");
        socket.write_all(bytes).expect("room");
        welcome(&socket).map(|welcome| (welcome.status, welcome.version))
    };
    assert_eq!(say(b"GET / HTTP/1.1\r\n\r\n"), Some((HandshakeStatus::Malformed, VERSION)));
    assert_eq!(say(&hello("")), Some((HandshakeStatus::Denied, VERSION)));
    assert_eq!(say(&hello("open sesam")), Some((HandshakeStatus::Denied, VERSION)));
    let mut newer = hello("open sesame");
    newer[8] += 1;
    assert_eq!(say(&newer), Some((HandshakeStatus::Version, VERSION)));
    let join = Some(SessionJoin { session: 1, secret: 0, worker: 0 });
    let join = ClientHello { mode: ReplyMode::AllToAll, join, token: "open sesame".into() }.encode();
    assert_eq!(say(&join), Some((HandshakeStatus::Denied, VERSION)));
    assert!(matches!(
        Client::connect(&ServerAddress::Tcp(at), &options(ReplyMode::Agent)),
        Err(ClientError::Denied)
    ));
    let token = options(ReplyMode::Agent).token("open sesame");
    Client::connect(&ServerAddress::Tcp(at), &token).expect("it knows the token").ping().expect("an answer");
    // Over the Unix socket the kernel reports the user.
    house.client(TRANSPORTS[0]).ping().expect("an answer");
    half.write_all(&hello("open sesame")[30..]).expect("room");
    assert_eq!(welcome(&half).expect("an answer").status, HandshakeStatus::Accepted);
    drop(silent);
}

#[test]
fn tcp_requires_a_token_unless_insecure_is_set() {
    let house = ServedDatabase::new(limits(1));
    let error = ServerBuilder::default().listen(local()).start(&house.db).err().expect("refused");
    assert!(error.to_string().contains("every user of this machine"), "{error}");
    ServerBuilder::default().listen(local()).insecure(true).start(&house.db).expect("a server");
    let far: ServerAddress = "tcp:0.0.0.0:0".parse().expect("an address");
    let error = ServerBuilder::default().listen(far.clone()).start(&house.db).err().expect("refused");
    assert!(error.to_string().contains("set a token"), "{error}");
    ServerBuilder::default().listen(far.clone()).token("").start(&house.db).err().expect("refused");
    let server = ServerBuilder::default().listen(far).token("t").start(&house.db).expect("a server");
    server.close().expect("an orderly end");
    let _ = rdma::devices(); // works with or without cards
}

/// Tries a wrong token and returns the time until the answer.
fn guess(at: std::net::SocketAddr) -> Duration {
    let began = Instant::now();
    let mut socket = TcpStream::connect(at).expect("a socket");
    socket.write_all(&hello("guess")).expect("room");
    if let Some(welcome) = welcome(&socket) {
        assert_eq!(welcome.status, HandshakeStatus::Denied);
    }
    began.elapsed()
}

#[test]
fn wrong_tokens_are_delayed_and_reported_and_a_correct_one_is_accepted_at_once() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = Arc::clone(&told);
    let house = ServedDatabase::with(limits(1), |builder| {
        builder.token("open sesame").on_denied(move |denied| tell.lock().expect("whole").push(*denied))
    });
    let ServerAddress::Tcp(at) = house.address(1).clone() else { panic!("the second is TCP") };
    let right = options(ReplyMode::Agent).token("open sesame");
    let come_in = || Client::connect(&ServerAddress::Tcp(at), &right).expect("it knows the token");
    assert!(guess(at) >= Duration::from_millis(250));
    assert!(guess(at) >= Duration::from_millis(500), "each further answer takes longer");
    let began = Instant::now();
    come_in().ping().expect("an answer");
    assert!(began.elapsed() < Duration::from_millis(250), "mistakes of others do not delay it");
    // More guesses than places: they replace each other and delay no other client.
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..200 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    guess(at);
                }
            });
        }
        until("there are many", || house.server.stats().denied > 200);
        let (began, before) = (Instant::now(), house.server.stats().denied);
        for _ in 0..3 {
            come_in().ping().expect("an answer");
        }
        let rate = (house.server.stats().denied - before) as f64 / began.elapsed().as_secs_f64();
        assert!(rate < 1000.0, "{rate} guesses a second");
        is_over.store(true, Ordering::Relaxed);
    });
    let told = told.lock().expect("whole");
    assert!(told.len() <= 3 && told[0].count == 1 && told[0].peer.is_loopback(), "{told:?}");
}

#[test]
fn silent_connections_are_replaced_by_others() {
    let house = ServedDatabase::new(limits(1));
    let ServerAddress::Tcp(at) = house.address(1).clone() else { panic!("the second is TCP") };
    let silent: Vec<TcpStream> = (0..150).map(|_| TcpStream::connect(at).expect("a socket")).collect();
    let began = Instant::now();
    house.client(TRANSPORTS[2]).ping().expect("an answer");
    house.client(TRANSPORTS[0]).ping().expect("an answer");
    assert!(began.elapsed() < Duration::from_secs(4), "before their timeout");
    drop(silent);
}

#[test]
fn a_second_server_takes_over_the_socket_of_a_dead_server_only() {
    let house = ServedDatabase::new(limits(1));
    let at = ServerAddress::SharedMemory(house.socket());
    assert!(ServerBuilder::default().listen(at.clone()).start(&house.db).is_err());
    let left = house.dir.path().join("left");
    drop(std::os::unix::net::UnixListener::bind(&left).expect("a socket"));
    let second = ServerBuilder::default()
        .listen(ServerAddress::SharedMemory(left.clone()))
        .start(&house.db)
        .expect("a server");
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&left).expect("there").permissions());
    assert_eq!(mode & 0o777, 0o600);
    second.close().expect("an orderly end");
    assert!(!left.exists());
    assert_serving(&house);
}

#[test]
fn a_file_that_is_not_a_socket_is_neither_replaced_nor_removed() {
    let house = ServedDatabase::new(limits(1));
    let [file, link, dead] = ["notes", "link", "dead"].map(|name| house.dir.path().join(name));
    std::fs::write(&file, b"bytes").expect("a file");
    drop(std::os::unix::net::UnixListener::bind(&dead).expect("a socket"));
    for target in [&file, &dead] {
        std::os::unix::fs::symlink(target, &link).expect("a link");
        for path in [&file, &link] {
            let start =
                ServerBuilder::default().listen(ServerAddress::SharedMemory(path.clone())).start(&house.db);
            let error = start.err().expect("refused");
            assert!(error.to_string().contains("not a socket"), "{error}");
        }
        assert_eq!(std::fs::read_link(&link).expect("still there"), **target);
        std::fs::remove_file(&link).expect("gone");
    }
    assert_eq!(std::fs::read(&file).expect("still there"), b"bytes");
    // A file that replaced the socket is kept at the end.
    let own = house.dir.path().join("own");
    let server = ServerBuilder::default()
        .listen(ServerAddress::SharedMemory(own.clone()))
        .start(&house.db)
        .expect("a server");
    std::fs::rename(&file, &own).expect("in its place");
    server.close().expect("an orderly end");
    assert_eq!(std::fs::read(&own).expect("still there"), b"bytes");
    assert_serving(&house);
}

#[test]
fn a_client_above_the_limit_gets_busy() {
    let house = ServedDatabase::new(ServerLimits { max_clients: 2, max_snapshots: 2, ..limits(1) });
    let (mut one, two) = (house.client(TRANSPORTS[0]), house.client(TRANSPORTS[2]));
    for way in TRANSPORTS {
        let third = Client::connect(house.address(way.0), &options(way.1));
        assert!(matches!(third, Err(ClientError::Busy)));
    }
    drop(two);
    until("a place is free", || house.server.stats().clients == 1);
    house.client(TRANSPORTS[2]).ping().expect("an answer");
    let first = one.snapshot().expect("a snapshot");
    let _ = one.snapshot().expect("a snapshot");
    assert!(matches!(one.snapshot(), Err(ClientError::Busy)));
    one.release(first).expect("released");
    let _ = one.snapshot().expect("there is room again");
}

#[test]
fn an_idle_client_is_disconnected_and_an_active_one_stays() {
    for way in TRANSPORTS {
        let house =
            ServedDatabase::new(ServerLimits { idle_timeout: Some(Duration::from_millis(300)), ..limits(2) });
        let (mut silent, mut lively) = (house.client(way), house.client(way));
        let _held = silent.snapshot().expect("a snapshot");
        until("the silent client is disconnected", || {
            lively.ping().expect("it is served");
            house.server.stats().clients == 1
        });
        assert!(matches!(silent.ping(), Err(ClientError::ConnectionLost(_))));
        lively.ping().expect("it stays");
        assert_eq!(house.server.stats().violations, 0);
    }
    let never =
        ServerBuilder::default().limits(ServerLimits { idle_timeout: Some(Duration::ZERO), ..limits(1) });
    let db = sheaf::Database::open(tempfile::tempdir().expect("a directory").path()).expect("a database");
    assert!(never.start(&db).is_err(), "this would disconnect every client");
}

#[test]
fn more_waiting_requests_than_allowed_get_busy() {
    let house = ServedDatabase::new(ServerLimits { max_waiting: 4, ..limits(2) });
    for way in TRANSPORTS {
        let mut client = house.client(way);
        let keyspace = client.keyspace("k").expect("a keyspace");
        let (mut done, mut busy) = (0, 0);
        for number in 0..100u32 {
            let key = number.to_be_bytes();
            client.submit(&keyspace.write(&key, Some(b"v"), Durability::Sync)).expect("submitted");
        }
        while let Some((_, reply)) = client.next_reply().expect("a reply") {
            match reply {
                Ok(_) => done += 1,
                Err(ClientError::Busy) => busy += 1,
                Err(other) => panic!("{other}"),
            }
        }
        // A place becomes free shortly after its reply: the first request may find one still taken.
        assert!(done > 0 && busy > 0 && done + busy == 100, "{done} done, {busy} busy");
        client.persist().expect("the places are free again");
    }
    assert!(house.server.stats().busy > 0);
}

#[test]
fn a_client_that_takes_no_replies_uses_bounded_memory_and_delays_no_other() {
    let house =
        ServedDatabase::new(ServerLimits { ring_words: 256, max_outbox_bytes: 16 << 10, ..limits(2) });
    for way in TRANSPORTS {
        let mut hanging = house.client(way);
        let keyspace = hanging.keyspace("hang").expect("a keyspace");
        hanging.insert(keyspace, b"v", vec![1; 1000]).expect("an insert");
        // Takes no replies: 75 of 1,000 bytes for an outbox of 16 KiB.
        let tickets: Vec<_> =
            (0..75).map(|_| hanging.submit(&keyspace.get(b"v")).expect("submitted")).collect();
        hanging.flush().expect("sent");
        assert_serving(&house);
        for ticket in tickets {
            hanging.wait(ticket).expect("it still has its answer");
        }
    }
}

/// Client process to be killed. Does nothing unless the test below starts it.
#[test]
fn helper_client_process() {
    let Ok(at) = std::env::var("SHEAF_RPC_VICTIM") else { return };
    let address: ServerAddress = at.parse().expect("an address");
    let mut client = Client::connect(&address, &options(ReplyMode::Agent)).expect("a client");
    let keyspace = client.keyspace("victim").expect("a keyspace");
    println!("\nready");
    let mut number = 0u64;
    loop {
        let key = number.to_be_bytes();
        client.submit(&keyspace.insert(&key, &[0; 200])).expect("submitted");
        number += 1;
    }
}

fn victim(address: &ServerAddress) -> Child {
    let mut child = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "hostile::helper_client_process", "--nocapture"])
        .env("SHEAF_RPC_VICTIM", address.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let mut out = std::io::BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    while !line.starts_with("ready") {
        line.clear();
        assert!(
            std::io::BufRead::read_line(&mut out, &mut line).expect("a line") > 0,
            "it did not get ready"
        );
    }
    child
}

#[test]
fn a_full_notifier_delays_no_other_client() {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

    let house = ServedDatabase::new(limits(1));
    let mut rogue = HostileClient::new(&house);
    let flags = fcntl_getfl(&rogue.bell).expect("flags");
    fcntl_setfl(&rogue.bell, flags - OFlags::NONBLOCK).expect("it waits now");
    rustix::io::write(&rogue.bell, &(u64::MAX - 1).to_le_bytes()).expect("as much as a counter holds");
    let asleep = InboxLayout::new(1, 1, 8192).expect("a layout").sleep_flag();
    rogue.inbox.writable_word(asleep).store(1, Ordering::SeqCst);
    for id in 0..2_000 {
        let mut ping = Vec::new();
        Request::Ping.encode(id, &mut ping);
        rogue = rogue.send(&ping);
    }
    assert_serving(&house);
    house.server.close().expect("no thread has panicked");
}

#[test]
fn clients_killed_in_the_middle_leave_no_session_behind() {
    let house = ServedDatabase::new(limits(2));
    for round in 0..6 {
        let mut child = victim(house.address(round % 2));
        let mut other = house.client(TRANSPORTS[round % 4]);
        let keyspace = other.keyspace("other").expect("a keyspace");
        for number in 0..50u32 {
            other.insert(keyspace, number.to_be_bytes(), b"v").expect("an insert");
        }
        child.kill().expect("killed");
        child.wait().expect("dead");
        other.ping().expect("the server still works");
        drop(other);
        until("the place of a dead client is free", || house.server.stats().clients == 0);
    }
    assert_eq!(house.server.stats().violations, 0);
    house.server.close().expect("no thread has panicked");
}

#[test]
fn a_link_without_a_reader_stays_within_its_ring() {
    // A TCP link without a reader stays within its ring: the rest waits with the sender.
    let (ours, _theirs) = UnixStream::pair().expect("sockets");
    ours.set_nonblocking(true).expect("a socket");
    let layout = InboxLayout::new(1, 1, 64).expect("a layout");
    let inbox = SharedMemory::heap(layout.words());
    let mut out = RingWriter::new(layout, 0);
    let mut link = TcpLink::new(Arc::new(ours.into()));
    let mut from = 0;
    while let Some(to) = out.write_message(&inbox, &mut link, &[1; 10_000], from).expect("no complaint") {
        from = to;
        link.flush().expect("sent, or kept");
    }
    assert!(from < 64 * 8);
}
