//! # Server: a Sheaf database for other processes
//!
//! FlatRPC (FlatStore §4.3) for any database. Clients write requests directly into the buffers of
//! workers, workers execute them, and replies return through the client's *agent*, which is one of
//! the workers. The module `server_state` lists the invariants.
//!
//! ```no_run
//! let db = sheaf::Database::open("my.db")?;
//! let address = "shm:/run/user/1000/my.sock".parse()?;
//! let server = sheaf_server::ServerBuilder::default().listen(address).start(&db)?;
//! // ... until the program ends
//! server.close()?;
//! db.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! ## Picture
//!
//! ```text
//!   acceptor  listens, says hello, makes a session, gives each worker its lane of the session
//!     │ mail
//!   worker 0..n   lane = one ring of one client ─> copy out ─> decode ─> database ─> reply
//!     │   ^── commands: replies of other workers for the clients of this agent
//!     │         └> gate: commits in the order of their numbers ─> ring of the client
//!     v jobs
//!   waiter    waits for the device: durable commits, persist, new keyspaces
//! ```

#![forbid(unsafe_code)]

mod commands;
mod commit_order;
mod execute;
#[cfg(all(test, shuttle))]
mod interleavings;
mod keyspaces;
mod reply_port;
mod server_state;
mod session;
mod session_acceptor;
mod token_failures;
mod waiter;
mod worker;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use sheaf::Database;
pub use sheaf_flatrpc::address::ServerAddress;
pub use sheaf_flatrpc::link::rdma;
use sheaf_flatrpc::ring::{MAX_RING, MAX_RINGS, MIN_RING};

use commands::{WaiterJob, WorkerCommand};
use server_state::ServerState;
pub use token_failures::DeniedClients;

/// Maximum number of workers of a server.
pub const MAX_WORKERS: usize = MAX_RINGS;

/// Limits of a server.
#[derive(Clone, Copy, Debug)]
pub struct ServerLimits {
    /// Number of threads that execute requests. Default: half of the processors, at least one,
    /// since clients on the same machine need the other half.
    pub workers: usize,
    /// Binds each worker to a processor of its own, of those that the process may use: the caches
    /// of a worker then keep its state. For a machine that runs one server and few other programs;
    /// two servers would bind their workers to the same processors. Default: false. With fewer
    /// processors than workers, no worker is bound.
    pub bind_workers: bool,
    /// Maximum number of clients. Default 64. A further client gets `Busy`.
    pub max_clients: usize,
    /// Words of each ring, a power of two. Default 8,192 (64 KiB).
    pub ring_words: u64,
    /// Maximum number of unanswered requests of a client. Default 128.
    pub window: u32,
    /// Bytes of the longest message, and so of a value with its key. Default 4 MiB.
    pub max_message_bytes: u32,
    /// Bytes of unsent replies to a client above which its requests stay in their rings. Default 1
    /// MiB.
    pub max_outbox_bytes: usize,
    /// Maximum number of requests of all clients that wait for the device. Default 4,096.
    pub max_waiting: usize,
    /// Maximum number of snapshots of a client. Default 16.
    pub max_snapshots: usize,
    /// Time after which a client is disconnected if it sends no request and waits for no reply; its
    /// memory and snapshots are released. Default: never. (TCP keepalive detects a failed machine
    /// in two minutes in any case.)
    pub idle_timeout: Option<Duration>,
}

impl Default for ServerLimits {
    fn default() -> ServerLimits {
        let processors = sheaf_platform::parallel::processors();
        ServerLimits {
            workers: (processors / 2).clamp(1, MAX_RINGS),
            bind_workers: false,
            max_clients: 64,
            ring_words: 8192,
            window: 128,
            max_message_bytes: 4 << 20,
            max_outbox_bytes: 1 << 20,
            max_waiting: 4096,
            max_snapshots: 16,
            idle_timeout: None,
        }
    }
}

impl ServerLimits {
    /// Returns the first limit that is out of range, with its range.
    fn out_of_range(&self) -> Option<String> {
        let ring = MIN_RING..=MAX_RING;
        [
            ("workers", (1..=MAX_WORKERS).contains(&self.workers), format!("from 1 to {MAX_WORKERS}")),
            (
                "ring",
                self.ring_words.is_power_of_two() && ring.contains(&self.ring_words),
                format!("a power of two from {MIN_RING} to {MAX_RING}"),
            ),
            ("message", (256..=1 << 30).contains(&self.max_message_bytes), "from 256 B to 1 GiB".to_owned()),
            ("window", self.window > 0, "at least 1".to_owned()),
            ("clients", (1..=4096).contains(&self.max_clients), "from 1 to 4096".to_owned()),
            ("idle", self.idle_timeout.is_none_or(|idle| !idle.is_zero()), "above zero".to_owned()),
        ]
        .into_iter()
        .find(|(_, is_sound, _)| !is_sound)
        .map(|(name, _, range)| format!("the limit `{name}` is out of range: it must be {range}"))
    }
}

/// Options of a server.
#[derive(Clone, Default)]
pub struct ServerBuilder {
    limits: ServerLimits,
    token: Option<String>,
    is_insecure: bool,
    on_denied: Option<token_failures::DenialCallback>,
    addresses: Vec<ServerAddress>,
}

impl fmt::Debug for ServerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Builder of a server at {:?}", self.addresses)
    }
}

impl ServerBuilder {
    /// Adds an address to listen at.
    #[must_use]
    pub fn listen(mut self, address: ServerAddress) -> ServerBuilder {
        self.addresses.push(address);
        self
    }

    /// Sets the token that clients over TCP must send. The token is sent unencrypted: use a tunnel
    /// beyond machines that you trust.
    #[must_use]
    pub fn token(mut self, token: &str) -> ServerBuilder {
        self.token = Some(token.to_owned());
        self
    }

    /// Sets whether TCP is served without a token, to every process that can reach the address; on
    /// loopback that is every user of this machine. Default: false.
    #[must_use]
    pub fn insecure(mut self, insecure: bool) -> ServerBuilder {
        self.is_insecure = insecure;
        self
    }

    /// Sets a callback for wrong tokens over TCP. It is called at once for the first wrong token
    /// from an address, then at most every ten seconds, with the number of wrong tokens since then.
    /// The thread that accepts clients calls it, so it must not block.
    ///
    /// ```
    /// let builder = sheaf_server::ServerBuilder::default()
    ///     .on_denied(|denied| eprintln!("{} wrong tokens from {}", denied.count, denied.peer));
    /// # drop(builder);
    /// ```
    #[must_use]
    pub fn on_denied(mut self, callback: impl Fn(&DeniedClients) + Send + Sync + 'static) -> ServerBuilder {
        self.on_denied = Some(Arc::new(callback));
        self
    }

    /// Sets the limits.
    #[must_use]
    pub fn limits(mut self, limits: ServerLimits) -> ServerBuilder {
        self.limits = limits;
        self
    }

    /// Starts to serve `db`. The database can be used in this process at the same time.
    ///
    /// # Errors
    ///
    /// Returns [`io::ErrorKind::PermissionDenied`] for a TCP address without a token, unless
    /// [`ServerBuilder::insecure`] allows it; [`io::ErrorKind::InvalidInput`] for limits out of
    /// range or a token above 256 bytes; and the error of the system if an address cannot be used.
    pub fn start(self, db: &Database) -> io::Result<Server> {
        if let Some(why) = self.limits.out_of_range() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        if self.token.as_ref().is_some_and(|token| token.len() > sheaf_flatrpc::handshake::MAX_TOKEN_BYTES) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the token is longer than 256 bytes"));
        }
        if self.token.as_ref().is_none_or(String::is_empty)
            && !self.is_insecure
            && let Some(open) = self.addresses.iter().find(|address| matches!(address, ServerAddress::Tcp(_)))
        {
            let peers = if open.is_local() { "by every user of this machine" } else { "from other machines" };
            let what = format!("{open} can be reached {peers}: set a token, or allow insecure access");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
        }
        Server::start(db, self)
    }
}

/// Database that is being served. Dropping it closes the server.
pub struct Server {
    shared: Arc<ServerState>,
    addresses: Vec<ServerAddress>,
    threads: Vec<JoinHandle<()>>,
    waiter: Option<JoinHandle<()>>,
    drained: Receiver<()>,
}

/// Statistics of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerStats {
    /// Number of connected clients.
    pub clients: usize,
    /// Connections accepted since the start.
    pub accepted: u64,
    /// Connections refused since the start: too many clients, a wrong token, no hello.
    pub refused: u64,
    /// Wrong tokens among the refused connections.
    pub denied: u64,
    /// Sessions ended because the client violated the protocol.
    pub violations: u64,
    /// Requests answered with `Busy`.
    pub busy: u64,
}

fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name).spawn(body)
}

/// Binds this thread to the `index`-th processor that the process may use, if there is one for each
/// of `count` threads. A refusal by the system changes nothing but speed.
fn bind_to_processor(index: usize, count: usize) {
    let Ok(all) = sched_getaffinity(None) else { return };
    let processors: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)).collect();
    if processors.len() < count {
        return;
    }
    let mut one = CpuSet::new();
    one.set(processors[index]);
    let _ = sched_setaffinity(None, &one);
}

impl Server {
    fn start(db: &Database, builder: ServerBuilder) -> io::Result<Server> {
        let workers = builder.limits.workers;
        let (shared, ends) = ServerState::new(db.clone(), builder.limits, builder.token, builder.on_denied)?;
        let acceptor = session_acceptor::SessionAcceptor::bind_all(Arc::clone(&shared), builder.addresses)?;
        let addresses = acceptor.addresses();
        let (quiet_sender, quiet) = std::sync::mpsc::channel();
        // From here on a failure drops the server, which ends the threads that were started.
        let mut server = Server {
            shared: Arc::clone(&shared),
            addresses,
            threads: Vec::new(),
            waiter: None,
            drained: quiet,
        };
        for (index, (commands, epoll)) in ends.workers.into_iter().enumerate() {
            let worker =
                worker::Worker::new(Arc::clone(&shared), index, commands, epoll, quiet_sender.clone())?;
            let is_bound = builder.limits.bind_workers;
            let run = move || {
                if is_bound {
                    bind_to_processor(index, workers);
                }
                worker.run();
            };
            server.threads.push(spawn(format!("sheaf-rpc-{index}"), run)?);
        }
        assert_eq!(server.threads.len(), workers);
        let (jobs, of_waiter) = (ends.jobs, Arc::clone(&shared));
        server.waiter = Some(spawn("sheaf-rpc-wait".into(), move || waiter::run(&of_waiter, &jobs))?);
        server.threads.push(spawn("sheaf-rpc-accept".into(), || acceptor.run())?);
        Ok(server)
    }

    /// Returns the addresses of the server. Port 0 is replaced by the port that the system chose.
    #[must_use]
    pub fn addresses(&self) -> &[ServerAddress] {
        &self.addresses
    }

    /// Returns the statistics since the start.
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        self.shared.stats()
    }

    /// Stops taking requests, finishes those that were taken, and ends. Acknowledged commits are in
    /// the database, which stays open.
    ///
    /// # Errors
    ///
    /// Returns an error if a thread of the server panicked.
    pub fn close(mut self) -> io::Result<()> {
        self.shut_down()
    }

    fn shut_down(&mut self) -> io::Result<()> {
        self.shared.is_draining.store(true, Ordering::SeqCst);
        self.shared.notify_all();
        if self.waiter.is_some() {
            for _ in 0..self.shared.limits.workers {
                if self.drained.recv().is_err() {
                    break; // all workers have ended
                }
            }
            // A worker that became quiet early may still have to release durable commits of others.
            let (done, flushed) = std::sync::mpsc::channel();
            for desk in &self.shared.worker_handles {
                desk.send(WorkerCommand::Flush(done.clone()));
                desk.wake.wake();
            }
            drop(done);
            // No message is sent: all workers drop the sender, or have ended.
            let _ = flushed.recv();
            // Jobs that the workers sent before are ahead of this one in the queue.
            let _ = self.shared.jobs.send(WaiterJob::End);
        }
        let mut whole = self.waiter.take().is_none_or(|waiter| waiter.join().is_ok());
        self.shared.is_stopping.store(true, Ordering::SeqCst);
        self.shared.notify_all();
        for thread in self.threads.drain(..) {
            whole &= thread.join().is_ok();
        }
        if whole { Ok(()) } else { Err(io::Error::other("a thread of the server panicked")) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.shut_down(); // drop cannot report an error
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    fn allowed() -> Vec<usize> {
        let all = sched_getaffinity(None).expect("the system tells");
        (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)).collect()
    }

    #[test]
    fn workers_are_bound_to_different_processors_if_there_are_enough() {
        let before = allowed();
        let bound = |index: usize, count: usize| {
            let run = move || {
                bind_to_processor(index, count);
                allowed()
            };
            std::thread::scope(|scope| scope.spawn(run).join().expect("no panic"))
        };
        for index in 0..before.len() {
            assert_eq!(bound(index, before.len()), [before[index]]);
        }
        assert_eq!(bound(0, before.len() + 1), before, "there are too few processors");
    }
}
