//! # Client library of a served Sheaf database
//!
//! `sheaf serve my.db --flatrpc /run/user/1000/my.sock` serves a database. This crate accesses it
//! from another process, over shared memory or TCP.
//! ```
//! # mod served { include!("../doc/served.rs"); }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> { let (served, _) = served::start()?;
//! # let address = served.address.clone(); // or "/run/user/1000/my.sock".parse()?
//! use sheaf_client::{Client, ClientOptions};
//!
//! let mut client = Client::connect(&address, &ClientOptions::default())?;
//! let users = client.keyspace("users")?;
//! client.insert(users, "ada", "lovelace")?;
//! assert_eq!(client.get(users, "ada")?, Some(b"lovelace".to_vec()));
//!
//! // Pipelining: `submit` does not wait for the reply.
//! let first = client.submit(&users.insert(b"alan", b"turing"))?;
//! let second = client.submit(&users.get(b"ada"))?;
//! client.wait(second)?;
//! client.wait(first)?;
//! # Ok(()) }
//! ```
//!
//! ## Guarantees
//!
//! * An acknowledged commit has the requested durability, even if the client or the server ends.
//! * Commits of one durability are acknowledged in the order of their sequence numbers, across all
//!   workers. With [`ReplyMode::AllToAll`], the baseline for comparison, that holds within each
//!   worker. Buffered writes that follow each other may be one commit, with one sequence number.
//! * After [`ClientError::ConnectionLost`] each request without a reply was either executed or not.

#![forbid(unsafe_code)]

mod client;
mod connect;
mod error;
mod request;

pub use client::{Client, Ticket};
pub use connect::ClientOptions;
pub use error::{ClientError, Result};
pub use request::{ClientBatch, ClientKeyspace, ClientSnapshot};
pub use sheaf::Durability;
pub use sheaf_flatrpc::address::ServerAddress;
pub use sheaf_flatrpc::handshake::ReplyMode;
pub use sheaf_flatrpc::message::{Pair, RangeRequest, Reply, Request};
