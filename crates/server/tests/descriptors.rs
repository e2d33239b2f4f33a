//! A server in a process without free descriptors. The limit applies to the whole process, so this
//! is a separate test program.

#![allow(clippy::disallowed_methods, reason = "a test makes its directory itself")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sheaf::Database;
use sheaf_flatrpc::address::ServerAddress;
use sheaf_flatrpc::handshake::{ClientHello, HELLO_BYTES, HandshakeStatus, ReplyMode, ServerHello};
use sheaf_server::{ServerBuilder, ServerLimits};

/// Sets the limit of descriptors. Existing descriptors stay open.
fn limit(descriptors: u64) {
    let now = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(descriptors), maximum: now.maximum })
        .expect("a lower limit");
}

/// Returns the processor time of the acceptor thread in clock ticks. `stat` must be open already.
fn used(stat: &std::fs::File) -> u64 {
    use std::os::unix::fs::FileExt;
    let mut text = [0; 1024];
    let len = stat.read_at(&mut text, 0).expect("figures");
    let text = String::from_utf8_lossy(&text[..len]);
    let fields: Vec<&str> = text.rsplit(") ").next().expect("a name").split(' ').collect();
    let number = |at: usize| fields[at].parse::<u64>().expect("a number");
    number(11) + number(12)
}

/// Opens the `stat` file of the acceptor thread. The thread sets its name when it runs.
fn acceptor_stat() -> std::fs::File {
    let is_acceptor = |task: &std::path::Path| {
        std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == ACCEPTOR)
    };
    loop {
        let mut tasks = std::fs::read_dir("/proc/self/task").expect("threads").flatten();
        if let Some(task) = tasks.find(|task| is_acceptor(&task.path())) {
            return std::fs::File::open(task.path().join("stat")).expect("its figures");
        }
        std::thread::yield_now();
    }
}

/// Name of the thread. Linux keeps the first 15 bytes.
const ACCEPTOR: &str = "sheaf-rpc-accep";

fn welcome(mut socket: impl Read) -> Option<ServerHello> {
    let mut bytes = [0; HELLO_BYTES];
    socket.read_exact(&mut bytes).ok()?;
    ServerHello::decode(&bytes).ok()
}

#[test]
fn a_server_without_descriptors_uses_no_processor_time_and_continues_when_some_are_free() {
    let dir = tempfile::tempdir().expect("a directory");
    let before = getrlimit(Resource::Nofile).current.expect("a limit");
    let db = Database::open(dir.path().join("db")).expect("a database");
    let path = dir.path().join("sock");
    let server = ServerBuilder::default()
        .insecure(true)
        .limits(ServerLimits { workers: 1, ..ServerLimits::default() })
        .listen(ServerAddress::SharedMemory(path.clone()))
        .listen("tcp:127.0.0.1:0".parse().expect("an address"))
        .start(&db)
        .expect("a server");
    let ServerAddress::Tcp(tcp) = server.addresses()[1].clone() else { panic!("the second listens on TCP") };
    let socket = |family| -> OwnedFd {
        let flags = SocketFlags::CLOEXEC;
        rustix::net::socket_with(family, SocketType::STREAM, flags, None).expect("a socket")
    };
    let family = if tcp.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let (unix, internet) = (socket(AddressFamily::UNIX), socket(family));
    let stat = acceptor_stat();
    limit(3);
    rustix::net::connect(&unix, &SocketAddrUnix::new(path).expect("a short path")).expect("room to wait");
    rustix::net::connect(&internet, &tcp).expect("room to wait");
    let (mut unix, mut internet) = (UnixStream::from(unix), TcpStream::from(internet));
    let hello = ClientHello { mode: ReplyMode::Agent, join: None, token: Vec::new() }.encode();
    unix.write_all(&hello).expect("room");
    internet.write_all(&hello).expect("room");
    unix.set_read_timeout(Some(Duration::from_secs(1))).expect("a timeout");
    let started = used(&stat);
    assert!(welcome(&unix).is_none(), "the server cannot accept it");
    let ticks = used(&stat) - started;
    assert!(ticks < 25, "the acceptor took {ticks} hundredths of a second of that second");
    limit(before);
    unix.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    internet.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    assert_eq!(welcome(&unix).map(|said| said.status), Some(HandshakeStatus::Accepted));
    assert_eq!(welcome(&internet).map(|said| said.status), Some(HandshakeStatus::Accepted));
    drop((unix, internet));
    server.close().expect("an end");
    db.close().expect("an end");
}
