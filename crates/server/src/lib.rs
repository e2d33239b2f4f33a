//! # A Sheaf database served to other processes
//!
//! FlatRPC (FlatStore §4.3) in front of any database: clients write requests straight into the buffers of
//! workers; each worker executes what is in its buffers; replies go back through the client's *agent*.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let db = sheaf::Database::open("my.db")?;
//! let server = sheaf_server::Builder::default().listen("shm:/run/user/1000/my.sock".parse()?).start(&db)?;
//! // ... until it is time to go
//! server.close()?;
//! db.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! ## Picture
//!
//! ```text
//!   door       listens; says hello; makes a session and gives each worker its lane of it
//!     │ mail
//!     v
//!   worker 0..n   lane = one ring of one client ─> copy out ─> decode ─> database ─> reply
//!     │   ^                                                                     │
//!     │   └── commands: replies of other workers for clients whose agent it is <┘
//!     │         └> gate: commits in the order of their numbers ─> ring of the client
//!     v jobs
//!   waiter     what waits for the device: durable commits, persist, new keyspaces
//! ```
//!
//! ## Invariants
//!
//! 1. Memory that a client can write is copied out, then checked, then believed. What breaks the rules ends that
//!    client's session and nothing else.
//! 2. A request is taken from a ring only if its reply has a place: what a session is owed is bounded by
//!    `outbox` plus one message a worker; what waits for the device by `window` a session and `waiting` in all.
//!    Beyond, requests stay in the ring, or are answered [`Busy`](sheaf_flatrpc::message::Reply::Busy).
//! 3. A reply is written after what it acknowledges has been acknowledged by the database.
//! 4. All writes into a client's memory are made by the owner of its port: the agent, or with all-to-all each
//!    worker into its own ring.
//! 5. Commits of one durability leave the agent in the order of their numbers (`gate`).
//! 6. Whoever sleeps has said so before looking once more; whoever has news has written it before looking who
//!    sleeps.
//!
//! ## Threads
//!
//! One door, `workers` workers, one waiter. Nothing is locked on the way of a request but by the database; a
//! panic in a worker ends the server (as one in a commit poisons the database), not the process.

#![forbid(unsafe_code)]

mod commands;
mod denials;
mod door;
mod execute;
mod gate;
#[cfg(all(test, shuttle))]
mod interleavings;
mod keyspaces;
mod port;
mod session;
mod shared;
mod waiter;
mod worker;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;
use std::time::Duration;

use sheaf::Database;
pub use sheaf_flatrpc::address::Address;
pub use sheaf_flatrpc::link::rdma;
use sheaf_flatrpc::ring::{MAX_RING, MAX_RINGS, MIN_RING};

use commands::{Command, Job};
pub use denials::Denied;
use shared::Shared;

/// Limits of a server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Threads that execute requests. Default: half of the processors, at least one: clients on the same
    /// machine need the other half.
    pub workers: usize,
    /// Clients at a time. Beyond, they are told that it is busy.
    pub clients: usize,
    /// Words of each ring: a power of two. Default 8,192 (64 KiB).
    pub ring: u64,
    /// Requests that a client may have in flight.
    pub window: u32,
    /// Bytes of the longest message, and so of a value with its key. Default 4 MiB.
    pub message: u32,
    /// Bytes of replies that a client is owed before its requests are left in their rings. Default 1 MiB.
    pub outbox: usize,
    /// Requests of all clients that may wait for the device.
    pub waiting: usize,
    /// Snapshots that a client may hold.
    pub snapshots: usize,
    /// A client that asks for nothing so long, and waits for nothing, is let go: its memory, its place, its snapshots. Default:
    /// never. (A machine that is gone is noticed in two minutes in any case.)
    pub idle: Option<Duration>,
}

impl Default for Limits {
    fn default() -> Limits {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Limits {
            workers: (processors / 2).clamp(1, MAX_RINGS),
            clients: 64,
            ring: 8192,
            window: 128,
            message: 4 << 20,
            outbox: 1 << 20,
            waiting: 4096,
            snapshots: 16,
            idle: None,
        }
    }
}

/// How to serve.
#[derive(Clone, Default)]
pub struct Builder {
    limits: Limits,
    token: Option<String>,
    is_insecure: bool,
    on_denied: Option<denials::Tell>,
    addresses: Vec<Address>,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Builder of a server at {:?}", self.addresses)
    }
}

impl Builder {
    /// One more address to listen at.
    #[must_use]
    pub fn listen(mut self, address: Address) -> Builder {
        self.addresses.push(address);
        self
    }

    /// What clients over TCP have to show. It goes over the wire as it is: beyond machines that you trust, put
    /// a tunnel around the connection.
    #[must_use]
    pub fn token(mut self, token: &str) -> Builder {
        self.token = Some(token.to_owned());
        self
    }

    /// Whether TCP is served without a token, to whoever can reach the address: on loopback every user of this machine. Default no.
    #[must_use]
    pub fn insecure(mut self, insecure: bool) -> Builder {
        self.is_insecure = insecure;
        self
    }

    /// `told` is called when a client over TCP has shown a wrong token: at once for the first one from an address, then every ten seconds at
    /// most, with how many came. It is called by the thread that takes clients in, and must not wait.
    ///
    /// ```
    /// let builder = sheaf_server::Builder::default()
    ///     .on_denied(|denied| eprintln!("{} wrong tokens from {}", denied.count, denied.peer));
    /// # drop(builder);
    /// ```
    #[must_use]
    pub fn on_denied(mut self, told: impl Fn(&Denied) + Send + Sync + 'static) -> Builder {
        self.on_denied = Some(Arc::new(told));
        self
    }

    /// The limits.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Builder {
        self.limits = limits;
        self
    }

    /// Starts to serve `db`. It can be used in this process at the same time.
    ///
    /// # Errors
    ///
    /// An address of TCP without a token, unless [`Builder::insecure`] says that it is meant; an address in use; limits that make no sense.
    pub fn start(self, db: &Database) -> io::Result<Server> {
        let limits = &self.limits;
        let sound = (1..=MAX_RINGS).contains(&limits.workers)
            && limits.ring.is_power_of_two()
            && (MIN_RING..=MAX_RING).contains(&limits.ring)
            && (256..=1 << 30).contains(&limits.message)
            && limits.window > 0
            && (1..=4096).contains(&limits.clients)
            && limits.idle.is_none_or(|idle| !idle.is_zero());
        if !sound {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "limits that make no sense"));
        }
        if self.token.as_ref().is_some_and(|token| token.len() > sheaf_flatrpc::hello::MAX_TOKEN) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the token is longer than 256 bytes"));
        }
        if self.token.as_ref().is_none_or(String::is_empty)
            && !self.is_insecure
            && let Some(open) = self.addresses.iter().find(|address| matches!(address, Address::Tcp(_)))
        {
            let whom = if open.is_local() { "by every user of this machine" } else { "from other machines" };
            let what = format!("{open} can be reached {whom}: set a token, or serve it as insecure");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
        }
        Server::start(db, self)
    }
}

/// A database that is being served. Dropping it closes it.
pub struct Server {
    shared: Arc<Shared>,
    addresses: Vec<Address>,
    threads: Vec<JoinHandle<()>>,
    waiter: Option<JoinHandle<()>>,
    quiet: Receiver<()>,
}

/// What a server has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Clients that it has now.
    pub clients: usize,
    /// Connections taken since the start.
    pub accepted: u64,
    /// Connections that were not taken: too many, no token, no hello.
    pub refused: u64,
    /// Wrong tokens among them.
    pub denied: u64,
    /// Sessions ended because the client broke the protocol.
    pub violations: u64,
    /// Requests answered with Busy.
    pub busy: u64,
}

fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name).spawn(body)
}

impl Server {
    fn start(db: &Database, builder: Builder) -> io::Result<Server> {
        let workers = builder.limits.workers;
        let (shared, ends) = Shared::new(db.clone(), builder.limits, builder.token, builder.on_denied)?;
        let door = door::Door::open(Arc::clone(&shared), builder.addresses)?;
        let addresses = door.addresses();
        let (quiet_sender, quiet) = std::sync::mpsc::channel();
        // From here on a failure drops the server, which ends what was started.
        let mut server =
            Server { shared: Arc::clone(&shared), addresses, threads: Vec::new(), waiter: None, quiet };
        for (index, (commands, epoll)) in ends.workers.into_iter().enumerate() {
            let worker =
                worker::Worker::new(Arc::clone(&shared), index, commands, epoll, quiet_sender.clone())?;
            server.threads.push(spawn(format!("sheaf-rpc-{index}"), || worker.run())?);
        }
        assert_eq!(server.threads.len(), workers);
        let (jobs, of_waiter) = (ends.jobs, Arc::clone(&shared));
        server.waiter = Some(spawn("sheaf-rpc-wait".into(), move || waiter::run(&of_waiter, &jobs))?);
        server.threads.push(spawn("sheaf-rpc-door".into(), || door.run())?);
        Ok(server)
    }

    /// Where it listens; a port that was asked as 0 is the one it got.
    #[must_use]
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// What it has done so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// Takes no more requests, finishes those it has taken, and ends. What it acknowledged is in the database,
    /// which is not closed by this. An error tells of a panic in one of its threads.
    pub fn close(mut self) -> io::Result<()> {
        self.end()
    }

    fn end(&mut self) -> io::Result<()> {
        self.shared.draining.store(true, Ordering::SeqCst);
        self.shared.ring_all();
        if self.waiter.is_some() {
            for _ in 0..self.shared.limits.workers {
                if self.quiet.recv().is_err() {
                    break; // all workers are gone
                }
            }
            // One that became quiet early may still have durable commits of others to let out.
            let (done, flushed) = std::sync::mpsc::channel();
            for desk in &self.shared.desks {
                desk.send(Command::Flush(done.clone()));
                desk.wake.ring();
            }
            drop(done);
            let _ = flushed.recv(); // nothing is sent: all have dropped it, or are gone
            // What they handed over before is in front of this.
            let _ = self.shared.jobs.send(Job::End);
        }
        let mut whole = self.waiter.take().is_none_or(|waiter| waiter.join().is_ok());
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.ring_all();
        for thread in self.threads.drain(..) {
            whole &= thread.join().is_ok();
        }
        if whole { Ok(()) } else { Err(io::Error::other("a thread of the server panicked")) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.end(); // nobody is left to hear of an error
    }
}
