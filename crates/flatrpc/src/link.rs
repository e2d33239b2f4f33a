//! # Links: writes into the peer's memory
//!
//! The primitive of every transport is one-sided: *put these words at this place of the peer's
//! inbox*. The peer's processor is not asked. Everything above (rings, credits, sleeping) is made
//! of such writes, so that a network card's RDMA write would fit behind the same trait: `write`
//! posts a verb, `flush` rings the card, and waking the peer is a write with an immediate value.
//!
//! | link | a write is | waking is |
//! |---|---|---|
//! | [`SharedLink`] | stores into memory that both have mapped | a ring of its bell, if it says that it sleeps |
//! | [`TcpLink`] | a frame that the peer's socket reader applies ([`FrameApplier`]) | the frame |
//! | RDMA | (not built: see [`rdma`]) | |
//!
//! ## Invariants
//!
//! 1. Writes arrive in the order they were made; a write is seen only after those before it.
//! 2. What comes from a socket is checked against the inbox before it is applied: at worst a peer
//!    spoils its own inbox.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use sheaf_base::sync::atomic::{Ordering, fence};

use crate::memory::SharedMemory;
use crate::wake::{Notifier, PeerWaker};

/// One end of a connection.
pub trait PeerLink: Send {
    /// Writes `bytes`, filled up to whole words, from word `at` of the peer's inbox on.
    fn write(&mut self, at: usize, bytes: &[u8]) -> io::Result<()>;

    /// A message for the peer's `reader` is complete: it may go on its way, if that is cheap.
    fn post(&mut self, reader: usize) -> io::Result<()>;

    /// What was written and posted must be on its way. False: the rest waits until the peer takes
    /// what it has.
    fn flush(&mut self) -> io::Result<bool>;
}

/// A link to a peer with whom memory is shared. One waker for each reader behind the inbox.
#[derive(Debug)]
pub struct SharedLink<B = OwnedFd> {
    peer: Arc<SharedMemory>,
    wakes: Vec<PeerWaker<B>>,
}

impl<B> SharedLink<B> {
    /// A link that writes `peer`'s inbox and wakes its readers.
    #[must_use]
    pub fn new(peer: Arc<SharedMemory>, wakes: Vec<PeerWaker<B>>) -> SharedLink<B> {
        SharedLink { peer, wakes }
    }
}

impl<B: Notifier + Send> PeerLink for SharedLink<B> {
    #[inline]
    fn write(&mut self, at: usize, bytes: &[u8]) -> io::Result<()> {
        fence(Ordering::Release);
        self.peer.store(at, bytes);
        Ok(())
    }

    #[inline]
    fn post(&mut self, reader: usize) -> io::Result<()> {
        self.wakes[reader].wake();
        Ok(())
    }

    fn flush(&mut self) -> io::Result<bool> {
        Ok(true)
    }
}

/// Bytes of a frame before its words: place and count, 32 bits each.
const FRAME_HEADER: usize = 8;
/// Sent without being asked beyond this.
const SEND_THRESHOLD: usize = 32 << 10;

/// A link over a stream socket that does not block.
#[derive(Debug)]
pub struct TcpLink {
    socket: Arc<OwnedFd>,
    buffer: Vec<u8>,
    sent: usize,
}

impl TcpLink {
    /// A link that sends on `socket`.
    #[must_use]
    pub fn new(socket: Arc<OwnedFd>) -> TcpLink {
        TcpLink { socket, buffer: Vec::new(), sent: 0 }
    }
}

impl PeerLink for TcpLink {
    fn write(&mut self, at: usize, bytes: &[u8]) -> io::Result<()> {
        let words = bytes.len().div_ceil(8);
        let small = |number: usize| u32::try_from(number).map_err(|_| io::ErrorKind::InvalidInput);
        self.buffer.extend_from_slice(&small(at)?.to_le_bytes());
        self.buffer.extend_from_slice(&small(words)?.to_le_bytes());
        self.buffer.extend_from_slice(bytes);
        self.buffer.resize(self.buffer.len() + words * 8 - bytes.len(), 0);
        Ok(())
    }

    fn post(&mut self, _reader: usize) -> io::Result<()> {
        if self.buffer.len() - self.sent >= SEND_THRESHOLD {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<bool> {
        while self.sent < self.buffer.len() {
            match rustix::net::send(&*self.socket, &self.buffer[self.sent..], SendFlags::NOSIGNAL) {
                Ok(count) => self.sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.buffer.drain(..self.sent);
                    self.sent = 0;
                    return Ok(false);
                }
                Err(other) => return Err(other.into()),
            }
        }
        self.buffer.clear();
        self.sent = 0;
        Ok(true)
    }
}

/// What a look at a socket came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplyOutcome {
    /// The socket has no more for now.
    Drained,
    /// There may be more: others first.
    More,
    /// The peer has closed.
    Closed,
}

/// Reads a socket and applies the frames in it to an inbox: what a network card does for RDMA.
#[derive(Debug)]
pub struct FrameApplier {
    socket: Arc<OwnedFd>,
    inbox: Arc<SharedMemory>,
    buffer: Box<[u8]>,
    /// Bytes in the buffer.
    filled: usize,
    /// Where the words of the frame that is being read go, and how many are still to come.
    next_word: usize,
    words_left: usize,
    /// Where the frame began.
    frame_start: usize,
}

impl FrameApplier {
    /// From `socket`, which does not block, into `inbox`.
    #[must_use]
    pub fn new(socket: Arc<OwnedFd>, inbox: Arc<SharedMemory>) -> FrameApplier {
        FrameApplier {
            socket,
            inbox,
            buffer: vec![0; 64 << 10].into(),
            filled: 0,
            next_word: 0,
            words_left: 0,
            frame_start: 0,
        }
    }

    /// Reads once and applies what came. `wrote` hears the first word of every frame that is there.
    pub fn apply(&mut self, wrote: &mut dyn FnMut(usize)) -> io::Result<ApplyOutcome> {
        let got = match rustix::net::recv(&*self.socket, &mut self.buffer[self.filled..], RecvFlags::empty())
        {
            Ok((_, 0)) => return Ok(ApplyOutcome::Closed),
            Ok((_, count)) => count,
            Err(Errno::AGAIN) => return Ok(ApplyOutcome::Drained),
            Err(Errno::INTR) => return Ok(ApplyOutcome::More),
            Err(other) => return Err(other.into()),
        };
        self.filled += got;
        let is_all = self.filled < self.buffer.len();
        let mut from = 0;
        loop {
            let bytes = &self.buffer[from..self.filled];
            if self.words_left == 0 {
                let Some((frame, _)) = bytes.split_first_chunk::<FRAME_HEADER>() else { break };
                let [a, b, c, d, e, f, g, h] = *frame;
                let number =
                    |bytes: [u8; 4]| usize::try_from(u32::from_le_bytes(bytes)).unwrap_or(usize::MAX);
                let (at, count) = (number([a, b, c, d]), number([e, f, g, h]));
                if count == 0 || at >= self.inbox.len() || count > self.inbox.len() - at {
                    return Err(crate::ring::ProtocolViolation("a write beyond the inbox").into());
                }
                (self.frame_start, self.next_word, self.words_left) = (at, at, count);
                from += FRAME_HEADER;
            } else {
                let words = (bytes.len() / 8).min(self.words_left);
                if words == 0 {
                    break;
                }
                fence(Ordering::Release);
                self.inbox.store(self.next_word, &bytes[..words * 8]);
                self.next_word += words;
                self.words_left -= words;
                from += words * 8;
                if self.words_left == 0 {
                    wrote(self.frame_start);
                }
            }
        }
        self.buffer.copy_within(from..self.filled, 0);
        self.filled -= from;
        Ok(if is_all { ApplyOutcome::Drained } else { ApplyOutcome::More })
    }
}

/// RDMA: found out about, not used.
pub mod rdma {
    /// Names of the network cards that can do RDMA, as the kernel lists them. There is no link for
    /// them: none could be run where this was written, and what was not run is not claimed to work.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the kernel's list of devices, not a file of a database")]
    pub fn devices() -> Vec<String> {
        let Ok(entries) = std::fs::read_dir("/sys/class/infiniband") else { return Vec::new() };
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
    }
}
