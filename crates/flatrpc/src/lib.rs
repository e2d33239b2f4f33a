//! # FlatRPC: the protocol between a Sheaf server and its clients
//!
//! Contains the parts that `sheaf-server` and `sheaf-client` share. The design follows FlatStore
//! (§4.3): a client writes a request directly into the buffer of the worker that the key's hash
//! selects. Its replies arrive through one connection, to its *agent* worker. Other workers pass
//! replies to the agent.
//!
//! ```text
//!   client A            server
//!   ┌──────────┐  write  ┌───────── worker 0 (A's agent) ──┐
//!   │ ring ────┼────────>│ A's ring -> execute -> reply ───┼──┐
//!   │ ring ────┼──┐      └──────────────^──────────────────┘  │ write
//!   │ replies <┼──┼─────────────────────┼─────────────────────┘
//!   └──────────┘  │      ┌──────────────┴─ worker 1 ───────┐
//!                 └─────>│ A's ring -> execute -> reply    │
//!                        └─────────────────────────────────┘
//! ```
//!
//! [`handshake::ReplyMode::AllToAll`] is the baseline: each worker writes replies into a ring of
//! its own.
//!
//! | module | content |
//! |---|---|
//! | [`memory`] | words that a peer may write at any time |
//! | [`ring`] | messages written into the peer's memory |
//! | [`wake`] | sleeping without lost wake-ups |
//! | [`link`] | transports: shared memory and TCP |
//! | [`message`] | requests, replies and database errors |
//!
//! docs/format/flatrpc.md specifies every byte; docs/decisions/0014 has the reasons.

pub mod address;
pub mod handshake;
#[cfg(all(test, shuttle))]
mod interleavings;
pub mod link;
pub mod memory;
pub mod message;
pub mod ring;
pub mod spin;
pub mod wake;

/// Returns the worker for a request with `key`. Any worker can execute any request. The hash only
/// spreads the load and sends equal keys to the same worker, which avoids contention on a key.
#[must_use]
pub fn worker_for_key(key: &[u8], workers: usize) -> usize {
    // FNV-1a over words: a few multiplications. Only the load balance depends on its quality.
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let (words, rest) = key.as_chunks::<8>();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for word in words {
        hash = (hash ^ u64::from_le_bytes(*word)).wrapping_mul(PRIME);
        hash ^= hash >> 32;
    }
    for byte in rest {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(PRIME);
    }
    let spread = u128::from(hash.wrapping_mul(0x9e37_79b9_7f4a_7c15)) * workers as u128;
    usize::try_from(spread >> 64).expect("below the number of workers")
}
