//! # A client of a served Sheaf database
//!
//! `sheaf serve my.db --flatrpc /run/user/1000/my.sock` serves a database; this reaches it from another process, over
//! shared memory or TCP.
//!
//! ```no_run
//! use sheaf_client::{Batch, Client, Options};
//!
//! # fn main() -> sheaf_client::Result<()> {
//! let mut client = Client::connect(&"/run/user/1000/my.sock".parse().unwrap(), &Options::default())?;
//! let users = client.keyspace("users")?;
//! client.insert(users, "ada", "lovelace")?;
//! assert_eq!(client.get(users, "ada")?.as_deref(), Some(&b"lovelace"[..]));
//!
//! // Many at once: nothing is waited for until it is asked for.
//! let first = client.submit(&users.insert(b"alan", b"turing"))?;
//! let second = client.submit(&users.get(b"ada"))?;
//! client.wait(second)?;
//! client.wait(first)?;
//!
//! // Together or not at all, and only if `ada` is what she was.
//! let mut batch = Batch::default();
//! batch.expect(users, b"ada", Some(b"lovelace")).insert(users, b"grace", b"hopper").remove(users, b"alan");
//! client.commit(&batch)?;
//! # Ok(())
//! # }
//! ```
//!
//! A client belongs to one thread at a time; open one for each thread. It has no threads of its own.
//!
//! ## Promises
//!
//! * What was answered was done, with the durability asked, whatever becomes of the client or the server.
//! * Commits of one durability are answered in the order of their sequence numbers, over all workers
//!   ([`Mode::Agent`]; with [`Mode::AllToAll`], the baseline, that holds for each worker alone).
//! * After [`Error::Lost`] each request that was not answered was done or was not: as after any crash.

#![forbid(unsafe_code)]

mod client;
mod connect;
mod error;
mod request;

pub use client::{Client, Ticket};
pub use connect::Options;
pub use error::{Error, Result};
pub use request::{Batch, Keyspace, Snapshot};
pub use sheaf::Durability;
pub use sheaf_flatrpc::address::Address;
pub use sheaf_flatrpc::hello::Mode;
pub use sheaf_flatrpc::message::{Pair, Range, Reply, Request};
