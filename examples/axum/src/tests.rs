//! Requests over the loopback device, from threads of their own.

#![allow(clippy::disallowed_methods, reason = "clients need threads")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;

use tokio::net::TcpListener;

/// Sends a request and returns status and body.
fn send(address: SocketAddr, request: &str, headers: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("the service listens");
    let len = body.len();
    let head = format!("{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len}\r\n");
    write!(stream, "{head}{headers}\r\n{body}").expect("it takes the request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, answer.split_once("\r\n\r\n").expect("a head").1.to_owned())
}

/// Runs `client` against a service on `dir`, which ends afterwards.
fn with_service(dir: &str, client: impl FnOnce(SocketAddr) + Send + 'static) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(super::POOL_THREADS)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (over, is_over) = mpsc::channel::<()>();
        let client = std::thread::spawn(move || {
            let _over = over; // dropped also after a panic
            client(address);
        });
        let stop = async { drop(tokio::task::spawn_blocking(move || is_over.recv()).await) };
        super::serve(dir, listener, stop).await.expect("it serves");
        client.join().expect("the client succeeds");
    });
}

#[test]
fn pairs_are_written_read_listed_and_removed() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().to_str().expect("text").to_owned();
    with_service(&path, |address| {
        assert_eq!(send(address, "GET /keys/ada", "", "").0, 404);
        assert_eq!(send(address, "PUT /keys/ada", "", "lovelace").0, 204);
        assert_eq!(send(address, "GET /keys/ada", "", ""), (200, "lovelace".to_owned()));
        let absent = "If-None-Match: *\r\n";
        assert_eq!(send(address, "PUT /keys/ada", absent, "king").0, 412);
        assert_eq!(send(address, "PUT /keys/alan", absent, "turing").0, 204);
        assert_eq!(send(address, "POST /batch", "", "put grace hopper\ndel alan\n").0, 204);
        assert_eq!(send(address, "POST /batch", "", "put x y\nget x\n").0, 400);
        assert_eq!(send(address, "GET /keys", "", "").1, "ada\ngrace\n");
        assert_eq!(send(address, "GET /keys?prefix=g&limit=5", "", "").1, "grace\n");
        assert_eq!(send(address, "DELETE /keys/grace", "", "").0, 204);
    });
    with_service(&path, |address| {
        assert_eq!(send(address, "GET /keys", "", "").1, "ada\n", "the service was closed and opened");
    });
}

#[test]
fn one_of_many_clients_creates_a_key() {
    let dir = tempfile::tempdir().expect("a directory");
    with_service(dir.path().to_str().expect("text"), |address| {
        let create = move |name: u32| {
            send(address, "PUT /keys/leader", "If-None-Match: *\r\n", &name.to_string()).0 == 204
        };
        let clients: Vec<_> = (0..20).map(|name| std::thread::spawn(move || create(name))).collect();
        let won = clients.into_iter().map(|client| client.join().expect("an answer"));
        assert_eq!(won.filter(|won| *won).count(), 1);
    });
}
