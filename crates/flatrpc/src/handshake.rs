//! # Hello: the first bytes of a connection
//!
//! The client says [`ClientHello`], the server answers [`HandshakeStatus::Accepted`] and, over a
//! Unix socket, hands over the memory. Both have a fixed length, so that nothing is read by a
//! length that somebody claims (but the token's, which is at most [`MAX_TOKEN_BYTES`]).
//!
//! ```text
//!   client                          server
//!   Hello { open, mode, token } ->  version, token, room?
//!                               <-  Welcome { session, secret, workers, agent, ring, window }  (+ descriptors)
//!   all-to-all over TCP, for every other worker:
//!   Hello { join, session, secret, worker } ->
//!                               <-  Welcome
//! ```

use crate::message::MalformedMessage;

/// First bytes of both.
pub const MAGIC: [u8; 8] = *b"SHEAFRPC";
/// The version of everything in docs/format/flatrpc.md. Another one is refused, and told ours.
pub const VERSION: u32 = 2;
/// Bytes of either message, without the token.
pub const HELLO_BYTES: usize = 64;
/// Longest token.
pub const MAX_TOKEN_BYTES: usize = 256;

/// How responses come back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplyMode {
    /// Through one connection, to the agent: FlatRPC.
    #[default]
    Agent,
    /// From every worker through a connection of its own: the baseline.
    AllToAll,
}

/// What a client opens a connection with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientHello {
    /// How responses come back.
    pub mode: ReplyMode,
    /// One more connection of a session, in place of a new one.
    pub join: Option<SessionJoin>,
    /// What a server that is reachable from elsewhere wants to see.
    pub token: Vec<u8>,
}

/// The session that a connection joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionJoin {
    /// Its number.
    pub session: u64,
    /// What its client alone was told.
    pub secret: u128,
    /// The worker at the other end.
    pub worker: u32,
}

/// Whether the server takes the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum HandshakeStatus {
    /// It does.
    Accepted = 0,
    /// It has as many as it may have.
    Busy = 1,
    /// Token, owner or secret are not right.
    Denied = 2,
    /// It speaks another version: the one in the answer.
    Version = 3,
    /// What it got is no hello.
    Malformed = 4,
}

/// What the server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerHello {
    /// The server's version.
    pub version: u32,
    /// Whether it takes the client; if not the rest is 0.
    pub status: HandshakeStatus,
    /// How many workers there are, and so rings for requests.
    pub workers: u32,
    /// Which of them is the agent.
    pub agent: u32,
    /// Words of each ring.
    pub ring_words: u32,
    /// Most requests in flight.
    pub window: u32,
    /// Bytes of the longest message.
    pub max_message: u32,
    /// The session's number and what lets further connections join it.
    pub session: u64,
    /// See `session`.
    pub secret: u128,
}

impl ServerHello {
    /// A refusal.
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

    /// Its bytes.
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

    /// What a server answered.
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
    /// Its bytes.
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

    /// The hello at the start of `bytes`. `Ok(None)`: it goes on. The status says why not.
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

/// Whether two secrets are the same, in a time that tells nothing about where they differ.
#[must_use]
pub fn constant_time_eq(ours: &[u8], theirs: &[u8]) -> bool {
    // As long for any two, so that not even a length shows.
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
