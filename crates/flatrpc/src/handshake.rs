//! # Handshake: the first bytes of a connection
//!
//! The client sends [`ClientHello`]. The server answers with [`ServerHello`] and, over a Unix
//! socket, passes the descriptors of the shared memory. Both messages have a fixed length. Only the
//! token has a variable length, of at most [`MAX_TOKEN_BYTES`]. No read depends on an unchecked
//! length.
//!
//! ```text
//!   client                               server
//!   ClientHello { mode, token } ->       checks version, token, capacity
//!           <- ServerHello { session, secret, workers, agent, ring, window } (+ descriptors)
//!   all-to-all over TCP, for every other worker:
//!   ClientHello { join: session, secret, worker } ->
//!           <- ServerHello
//! ```

use crate::message::MalformedMessage;

/// First bytes of both messages.
pub const MAGIC: [u8; 8] = *b"SHEAFRPC";
/// Version of everything in docs/format/flatrpc.md. The server rejects a client of another version
/// and answers with its own version.
pub const VERSION: u32 = 3;
/// Bytes of either message without the token.
pub const HELLO_BYTES: usize = 64;
/// Maximum length of a token in bytes.
pub const MAX_TOKEN_BYTES: usize = 256;

/// Path of the replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplyMode {
    /// All replies arrive through one connection, to the agent: FlatRPC.
    #[default]
    Agent,
    /// Every worker replies through a connection of its own: the baseline.
    AllToAll,
}

/// First message of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientHello {
    /// Path of the replies.
    pub mode: ReplyMode,
    /// Session that this connection joins; `None` opens a new session.
    pub join: Option<SessionJoin>,
    /// Secret that a server with a token requires from clients over TCP.
    pub token: Vec<u8>,
}

/// Session that a further connection joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionJoin {
    /// Number of the session.
    pub session: u64,
    /// Secret of the session, which only its client received.
    pub secret: u128,
    /// Worker that serves the new connection.
    pub worker: u32,
}

/// Result of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum HandshakeStatus {
    /// The server accepts the connection.
    Accepted = 0,
    /// The server has no capacity for another session.
    Busy = 1,
    /// The token, the user or the session's secret is wrong.
    Denied = 2,
    /// The server has another version, which its answer contains.
    Version = 3,
    /// The received bytes are not a valid [`ClientHello`].
    Malformed = 4,
}

/// Answer of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerHello {
    /// Version of the server.
    pub version: u32,
    /// Result of the handshake. If it is not `Accepted`, all further fields are 0.
    pub status: HandshakeStatus,
    /// Number of workers, and therefore of request rings.
    pub workers: u32,
    /// Number of the worker that is the agent.
    pub agent: u32,
    /// Size of each ring in words.
    pub ring_words: u32,
    /// Maximum number of requests in flight.
    pub window: u32,
    /// Maximum length of a message in bytes.
    pub max_message: u32,
    /// Number of the session. With `secret` it lets further connections join.
    pub session: u64,
    /// Secret of the session; see `session`.
    pub secret: u128,
}

impl ServerHello {
    /// Returns an answer that has only a status.
    #[must_use]
    pub fn refused(status: HandshakeStatus) -> ServerHello {
        ServerHello {
            version: VERSION,
            status,
            workers: 0,
            agent: 0,
            ring_words: 0,
            window: 0,
            max_message: 0,
            session: 0,
            secret: 0,
        }
    }

    /// Encodes the answer.
    #[must_use]
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&self.version.to_le_bytes());
        bytes[12] = self.status as u8;
        let numbers = [self.workers, self.agent, self.ring_words, self.window, self.max_message];
        for (place, number) in bytes[16..36].as_chunks_mut::<4>().0.iter_mut().zip(numbers) {
            *place = number.to_le_bytes();
        }
        bytes[40..48].copy_from_slice(&self.session.to_le_bytes());
        bytes[48..64].copy_from_slice(&self.secret.to_le_bytes());
        bytes
    }

    /// Decodes the answer of a server.
    ///
    /// # Errors
    ///
    /// Returns [`MalformedMessage`] if the magic number or the status is unknown.
    pub fn decode(bytes: &[u8; HELLO_BYTES]) -> Result<ServerHello, MalformedMessage> {
        if bytes[..8] != MAGIC {
            return Err(MalformedMessage("not a Sheaf server"));
        }
        let status = match bytes[12] {
            0 => HandshakeStatus::Accepted,
            1 => HandshakeStatus::Busy,
            2 => HandshakeStatus::Denied,
            3 => HandshakeStatus::Version,
            4 => HandshakeStatus::Malformed,
            _ => return Err(MalformedMessage("an unknown status")),
        };
        Ok(ServerHello {
            version: u32_at(bytes, 8),
            status,
            workers: u32_at(bytes, 16),
            agent: u32_at(bytes, 20),
            ring_words: u32_at(bytes, 24),
            window: u32_at(bytes, 28),
            max_message: u32_at(bytes, 32),
            session: u64_at(bytes, 40),
            secret: u128_at(bytes, 48),
        })
    }
}

impl ClientHello {
    /// Encodes the message. A token longer than [`MAX_TOKEN_BYTES`] is truncated.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12] = u8::from(self.join.is_some());
        bytes[13] = u8::from(self.mode == ReplyMode::AllToAll);
        let token = &self.token[..self.token.len().min(MAX_TOKEN_BYTES)];
        let len = u16::try_from(token.len()).expect("cut above");
        bytes[14..16].copy_from_slice(&len.to_le_bytes());
        if let Some(join) = self.join {
            bytes[16..20].copy_from_slice(&join.worker.to_le_bytes());
            bytes[40..48].copy_from_slice(&join.session.to_le_bytes());
            bytes[48..64].copy_from_slice(&join.secret.to_le_bytes());
        }
        bytes.extend_from_slice(token);
        bytes
    }

    /// Decodes the message in `bytes`. Returns `Ok(None)` if it is still incomplete.
    ///
    /// # Errors
    ///
    /// Returns [`HandshakeStatus::Version`] for another version, and [`HandshakeStatus::Malformed`]
    /// if the bytes cannot be the start of a valid message.
    pub fn decode(bytes: &[u8]) -> Result<Option<ClientHello>, HandshakeStatus> {
        let seen = bytes.len().min(MAGIC.len());
        if bytes[..seen] != MAGIC[..seen] {
            return Err(HandshakeStatus::Malformed);
        }
        let Some((fixed, rest)) = bytes.split_first_chunk::<HELLO_BYTES>() else { return Ok(None) };
        if u32_at(fixed, 8) != VERSION {
            return Err(HandshakeStatus::Version);
        }
        let len = usize::from(u16::from_le_bytes([fixed[14], fixed[15]]));
        if fixed[12] > 1 || fixed[13] > 1 || len > MAX_TOKEN_BYTES || rest.len() > len {
            return Err(HandshakeStatus::Malformed);
        }
        if rest.len() < len {
            return Ok(None);
        }
        let join =
            SessionJoin { worker: u32_at(fixed, 16), session: u64_at(fixed, 40), secret: u128_at(fixed, 48) };
        Ok(Some(ClientHello {
            mode: if fixed[13] == 1 { ReplyMode::AllToAll } else { ReplyMode::Agent },
            join: (fixed[12] == 1).then_some(join),
            token: rest.to_vec(),
        }))
    }
}

/// Compares two secrets. The run time does not depend on the position of a difference.
#[must_use]
pub fn constant_time_eq(ours: &[u8], theirs: &[u8]) -> bool {
    // Always the same number of steps: not even the length affects the time.
    let byte = |bytes: &[u8], at: usize| bytes.get(at).copied().unwrap_or(0);
    let differ = (0..MAX_TOKEN_BYTES).fold(0, |differ, at| differ | (byte(ours, at) ^ byte(theirs, at)));
    std::hint::black_box(differ) == 0 && ours.len() == theirs.len() && ours.len() <= MAX_TOKEN_BYTES
}

fn array_at<const N: usize>(bytes: &[u8; HELLO_BYTES], at: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[at + i])
}

fn u32_at(bytes: &[u8; HELLO_BYTES], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

fn u64_at(bytes: &[u8; HELLO_BYTES], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

fn u128_at(bytes: &[u8; HELLO_BYTES], at: usize) -> u128 {
    u128::from_le_bytes(array_at(bytes, at))
}
