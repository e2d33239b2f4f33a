//! The IPC socket of a process that has no free descriptor. The limit applies to the whole process,
//! so this test is a program of its own.

#![expect(clippy::unwrap_used, reason = "a test's own steps work")]
#![allow(clippy::disallowed_methods, reason = "a test makes its directory itself")]

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sheaf::{AttachedOwner, Database};

/// Limits the number of descriptors. Open descriptors stay open, and no new one is opened below the
/// limit.
fn limit(descriptors: u64) {
    let now = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(descriptors), maximum: now.maximum }).unwrap();
}

/// Returns the descriptors that are open on the null device.
fn open_nulls() -> Vec<u32> {
    let is_null = |fd: &u32| {
        std::fs::read_link(format!("/proc/self/fd/{fd}")).is_ok_and(|to| to.as_os_str() == "/dev/null")
    };
    (3..64).filter(is_null).collect()
}

#[test]
fn the_ipc_server_survives_a_shortage_of_descriptors() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let before = getrlimit(Resource::Nofile).current.unwrap();
    let others = open_nulls();
    let db = Database::open(&path).unwrap();
    drop(AttachedOwner::connect(&path).unwrap().unwrap()); // until the owner accepts connections
    let socket = || {
        let flags = SocketFlags::CLOEXEC;
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap()
    };
    let [first, second] = [socket(), socket()];
    let address = SocketAddrUnix::new(path.join("door")).unwrap();
    let files = 1; // the spare descriptor of the database files
    assert!(open_nulls().len() > others.len() + files, "the IPC server keeps a descriptor");
    limit(3);
    // The first connection gets a free descriptor. None is left for the next one, so that the owner
    // closes its spare descriptor for the IPC socket.
    rustix::net::connect(&first, &address).unwrap();
    while open_nulls().len() > others.len() + files {
        std::thread::yield_now();
    }
    rustix::net::connect(&second, &address).unwrap();
    let second = UnixStream::from(second);
    second.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    assert!((&second).read_exact(&mut [0; 16]).is_err(), "the connection is not accepted");
    assert!(db.stats().has_ipc, "the IPC socket is still open");
    limit(before);
    second.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut hello = [0; 16];
    (&second).read_exact(&mut hello).unwrap();
    assert!(hello.starts_with(b"SHEAFDOR"));
    AttachedOwner::connect(&path).unwrap().unwrap().persist().unwrap();
    db.close().unwrap();
}
