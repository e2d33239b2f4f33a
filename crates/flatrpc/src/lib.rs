//! # FlatRPC: how a Sheaf database is reached from other processes
//!
//! What `sheaf-server` and `sheaf-client` have in common: messages, rings, links, the first bytes
//! of a connection. After FlatStore (§4.3), whose RPC over RDMA has one idea: a client writes its
//! request straight into the buffer of the worker that its key's hash selects, but has a connection
//! to one worker only, its *agent*; the others hand the agent what is to be written back.
//!
//! ## Picture
//!
//! ```text
//!   client A            server
//!   ┌──────────┐  write  ┌───────── worker 0 (A's agent) ──┐
//!   │ ring ────┼────────>│ A's ring -> execute -> reply ───┼──┐
//!   │ ring ────┼──┐      └──────────────^──────────────────┘  │ write
//!   │          │  │                     │ verb command        │
//!   │ replies <┼──┼─────────────────────┼─────────────────────┘
//!   └──────────┘  │      ┌───────── worker 1 ──────────────┐
//!                 └─────>│ A's ring -> execute -> reply    │
//!                        └─────────────────────────────────┘
//! ```
//!
//! With [`handshake::ReplyMode::AllToAll`], the baseline, every worker writes its replies itself,
//! into a ring of its own.
//!
//! | module | what |
//! |---|---|
//! | [`memory`] | words that a peer may write at any time |
//! | [`ring`] | messages written into the peer's memory |
//! | [`wake`] | sleeping without missing what comes meanwhile |
//! | [`link`] | writes into the peer's memory: shared memory, TCP; RDMA is found out about |
//! | [`message`] | what a client asks, what it is told; the database's errors as they are |
//! | [`handshake`] | the first bytes of a connection |
//! | [`spin`] | how long to look before sleeping |
//!
//! docs/format/flatrpc.md has every byte, docs/decisions/0014 why it is so.

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

/// The worker that a request for `key` goes to. Any worker can do any request: this spreads the
/// load, and sends the same key to the same worker, where nobody contends for it.
#[must_use]
pub fn worker_for_key(key: &[u8], workers: usize) -> usize {
    // FNV-1a over words: a few multiplications, and nothing rests on its quality but the balance.
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
