//! # Histories over the wire, with kills of the server and of clients
//!
//! Threads, each a client with its own address and mode, read, write and swap a few keys. The
//! server process is killed and restarted, and clients end with a request in flight. An operation
//! without a reply happened or not, at any time from its start to the end of the server. One order
//! must explain all replies, over all lives of the server.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sheaf::Database;
use sheaf_client::{Client, ClientBatch, ClientError, ClientKeyspace, Reply, ReplyMode, ServerAddress};
use sheaf_server::ServerBuilder;
use sheaf_testkit::linearizability::{HistoryOp, OpResult, is_linearizable};

use crate::support::{TRANSPORTS, limits, local, options};

const KEYS: u64 = 6;
const KILLS: usize = 3;

static TIME: AtomicU64 = AtomicU64::new(0);

fn now() -> u64 {
    TIME.fetch_add(1, Ordering::SeqCst)
}

/// Server process to be killed. Does nothing unless the test below starts it.
#[test]
fn helper_server_process() {
    let Ok(dir) = std::env::var("SHEAF_RPC_SERVER") else { return };
    let dir = Path::new(&dir);
    let db = Database::open(dir.join("db")).expect("a database");
    let shared = ServerAddress::SharedMemory(dir.join("sock"));
    let server = ServerBuilder::default()
        .insecure(true)
        .limits(limits(2))
        .listen(shared)
        .listen(local())
        .start(&db)
        .expect("a server");
    println!("\nready {}", server.addresses()[1]);
    let mut none = Vec::new();
    let _ = std::io::stdin().read_to_end(&mut none); // until the test ends or kills this process
    std::process::exit(0);
}

struct ServerProcess {
    child: Child,
    addresses: [ServerAddress; 2],
}

impl ServerProcess {
    fn start(dir: &Path) -> ServerProcess {
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "histories::helper_server_process", "--nocapture"])
            .env("SHEAF_RPC_SERVER", dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        let tcp = loop {
            line.clear();
            assert!(out.read_line(&mut line).expect("a line") > 0, "the server does not start");
            if let Some(address) = line.strip_prefix("ready ") {
                break address.trim().parse().expect("an address");
            }
        };
        ServerProcess { child, addresses: [ServerAddress::SharedMemory(dir.join("sock")), tcp] }
    }

    fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("dead");
    }
}

fn bytes(number: u64) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(8 + (number % 150) as usize, 7);
    bytes
}

fn number(value: &[u8]) -> u64 {
    value.first_chunk::<8>().map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes))
}

/// One thread of the history.
struct Actor {
    id: u64,
    state: u64,
    next: u64,
    may_vanish: bool,
    done: Vec<RecordedOp>,
}

/// Operation, and whether it got a reply. Without a reply it ends with the life of its server.
#[derive(Clone, Copy, Debug)]
struct RecordedOp {
    op: HistoryOp,
    answered: bool,
}

impl Actor {
    fn below(&mut self, limit: u64) -> u64 {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) % limit
    }

    fn value(&mut self) -> u64 {
        self.next += 1;
        self.id << 32 | self.next
    }

    fn note(&mut self, key: u64, did: OpResult, began: u64, answered: bool) {
        let ended = if answered { now() } else { u64::MAX };
        self.done.push(RecordedOp { op: HistoryOp { key: (0, key), result: did, began, ended }, answered });
    }

    /// Sends requests until the server or this client ends.
    fn live(&mut self, mut client: Client) {
        let Ok(keyspace) = client.keyspace("h") else { return };
        loop {
            if self.may_vanish && self.below(150) == 0 {
                self.may_vanish = false;
                return self.vanish(client, keyspace);
            }
            let (key, began) = (self.below(KEYS), now());
            let name = key.to_le_bytes();
            let gone = match self.below(10) {
                0..4 => match client.get(keyspace, name) {
                    Ok(value) => {
                        self.note(key, OpResult::Read(value.as_deref().map(number)), began, true);
                        None
                    }
                    Err(error) => Some(error),
                },
                4..7 => {
                    let value = self.value();
                    let done = client.insert(keyspace, name, bytes(value));
                    self.note(key, OpResult::Written(value), began, done.is_ok());
                    done.err()
                }
                7 => {
                    let done = client.remove(keyspace, name);
                    self.note(key, OpResult::Removed, began, done.is_ok());
                    done.err()
                }
                _ => self.swap(&mut client, keyspace, key),
            };
            match gone {
                None => {}
                Some(ClientError::ConnectionLost(_)) => return,
                Some(other) => panic!("{other}"),
            }
        }
    }

    /// Replaces a value by another if it has not changed since it was read.
    fn swap(&mut self, client: &mut Client, keyspace: ClientKeyspace, key: u64) -> Option<ClientError> {
        let (name, began) = (key.to_le_bytes(), now());
        let old = match client.get(keyspace, name) {
            Ok(old) => old,
            Err(error) => return Some(error),
        };
        let expected = old.as_deref().map(number);
        self.note(key, OpResult::Read(expected), began, true);
        let (new, began) = (self.value(), now());
        let value = bytes(new);
        let mut batch = ClientBatch::default();
        batch.expect_value(keyspace, &name, old.as_deref()).insert(keyspace, &name, &value);
        match client.commit(&batch) {
            Ok(_) => self.note(key, OpResult::Swapped(expected, Some(new), true), began, true),
            Err(ClientError::Database(sheaf::Error::Conflict { .. })) => {
                self.note(key, OpResult::Swapped(expected, Some(new), false), began, true);
            }
            Err(error) => {
                self.note(key, OpResult::Swapped(expected, Some(new), true), began, false);
                return Some(error);
            }
        }
        None
    }

    /// Ends the client with a request in flight.
    fn vanish(&mut self, mut client: Client, keyspace: ClientKeyspace) {
        let (key, value, began) = (self.below(KEYS), self.value(), now());
        let _ = client.submit(&keyspace.insert(&key.to_le_bytes(), &bytes(value)));
        let _ = client.flush();
        self.note(key, OpResult::Written(value), began, false);
    }
}

/// Returns true if one order explains the operations on one key. Operations without a reply
/// happened or not.
fn is_explained(ops: &[RecordedOp]) -> bool {
    let open: Vec<usize> = (0..ops.len()).filter(|at| !ops[*at].answered).collect();
    assert!(open.len() <= 16, "kills are few");
    // Most operations without a reply did not happen: try that first.
    (0..1u32 << open.len()).any(|happened| {
        let is_in = |at: usize| open.iter().position(|o| *o == at).is_none_or(|bit| happened & 1 << bit != 0);
        let mut kept: Vec<HistoryOp> = (0..ops.len()).filter(|at| is_in(*at)).map(|at| ops[at].op).collect();
        is_linearizable(&mut kept, None)
    })
}

#[test]
fn histories_are_linearizable_through_kills_of_server_and_clients() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut actors: Vec<Actor> =
        (0..4).map(|id| Actor { id: id + 1, state: id, next: 0, may_vanish: true, done: vec![] }).collect();
    for kill in 0..KILLS {
        let life = ServerProcess::start(dir.path());
        let addresses = life.addresses.clone();
        std::thread::scope(|scope| {
            for (index, actor) in actors.iter_mut().enumerate() {
                let (address, mode) = (addresses[TRANSPORTS[index].0].clone(), TRANSPORTS[index].1);
                scope.spawn(move || {
                    // Repeat until the server ends.
                    while let Ok(client) = Client::connect(&address, &options(mode)) {
                        actor.live(client);
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(150 + 70 * kill as u64));
            life.kill();
        });
        let end = now();
        for actor in &mut actors {
            actor.may_vanish = true;
            actor.done.iter_mut().for_each(|known| known.op.ended = known.op.ended.min(end));
        }
    }
    let life = ServerProcess::start(dir.path());
    let mut last = Client::connect(&life.addresses[0], &options(ReplyMode::Agent)).expect("a client");
    let keyspace = last.keyspace("h").expect("a keyspace");
    let mut ops: Vec<RecordedOp> = actors.into_iter().flat_map(|actor| actor.done).collect();
    for key in 0..KEYS {
        let began = now();
        let Reply::Value(value) = last.call(&keyspace.get(&key.to_le_bytes())).expect("a get") else {
            panic!("not a value")
        };
        let did = OpResult::Read(value.as_deref().map(number));
        ops.push(RecordedOp {
            op: HistoryOp { key: (0, key), result: did, began, ended: now() },
            answered: true,
        });
    }
    life.kill();
    assert!(ops.len() > 200, "{} operations are no history", ops.len());
    for key in 0..KEYS {
        let of_key: Vec<RecordedOp> = ops.iter().filter(|known| known.op.key.1 == key).copied().collect();
        assert!(is_explained(&of_key), "no order explains key {key}: {of_key:#?}");
    }
}
