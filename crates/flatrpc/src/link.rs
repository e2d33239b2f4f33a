//! # Links: transports that write into the peer's memory
//!
//! Each transport offers one one-sided operation: store words at a position of the peer's inbox.
//! The peer's processor does not take part. Rings, credits and sleeping use only such writes. An
//! RDMA transport would fit the same trait: `write` posts a verb, `flush` rings the doorbell of the
//! card, and a wake-up is a write with an immediate value.
//!
//! | link | write | wake-up |
//! |---|---|---|
//! | [`SharedLink`] | stores into memory that both processes map | notifies a sleeping peer |
//! | [`TcpLink`] | a frame that the peer's reader applies ([`FrameApplier`]) | the frame |
//! | RDMA | not implemented: see [`rdma`] | |
//!
//! ## Invariants
//!
//! 1. The peer sees writes in the order in which they were made.
//! 2. A frame from a socket is checked against the bounds of the inbox before it is applied. A
//!    hostile peer can therefore corrupt only its own inbox.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use sheaf_platform::sync::atomic::{Ordering, fence};

use crate::memory::SharedMemory;
use crate::wake::{PeerNotifier, PeerWaker};

/// One end of a connection.
pub trait PeerLink: Send {
    /// Writes `bytes`, padded to whole words, at word `at` of the peer's inbox.
    ///
    /// # Errors
    ///
    /// Returns `InvalidInput` if the position or the length does not fit into a frame.
    fn write(&mut self, at: usize, bytes: &[u8]) -> io::Result<()>;

    /// Marks a message for the peer's `reader` as complete. The link may deliver it now if that is
    /// cheap.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`PeerLink::flush`].
    fn post(&mut self, reader: usize) -> io::Result<()>;

    /// Delivers all writes. Returns false if the socket is full: the rest stays buffered until the
    /// peer has read.
    ///
    /// # Errors
    ///
    /// Returns the error of the socket.
    fn flush(&mut self) -> io::Result<bool>;
}

/// Link to a peer over shared memory. It has one waker for each reader of the inbox.
#[derive(Debug)]
pub struct SharedLink<B = OwnedFd> {
    peer: Arc<SharedMemory>,
    wakes: Vec<PeerWaker<B>>,
}

impl<B> SharedLink<B> {
    /// Returns a link that writes to the inbox `peer` and wakes its readers.
    #[must_use]
    pub fn new(peer: Arc<SharedMemory>, wakes: Vec<PeerWaker<B>>) -> SharedLink<B> {
        SharedLink { peer, wakes }
    }
}

impl<B: PeerNotifier + Send> PeerLink for SharedLink<B> {
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

/// Bytes of a frame header: position and word count, 32 bits each.
const FRAME_HEADER: usize = 8;
/// Buffered bytes from which [`TcpLink::post`] sends without waiting for a flush.
const SEND_THRESHOLD: usize = 32 << 10;

/// Link over a non-blocking stream socket.
#[derive(Debug)]
pub struct TcpLink {
    socket: Arc<OwnedFd>,
    buffer: Vec<u8>,
    sent: usize,
}

impl TcpLink {
    /// Returns a link that sends on `socket`.
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

/// Result of one read from a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplyOutcome {
    /// The socket is empty for now.
    Drained,
    /// The socket may have more data. The caller should serve other connections first.
    More,
    /// The peer has closed the connection.
    Closed,
}

/// Reads frames from a socket and applies them to an inbox, as a network card does for RDMA.
#[derive(Debug)]
pub struct FrameApplier {
    socket: Arc<OwnedFd>,
    inbox: Arc<SharedMemory>,
    buffer: Box<[u8]>,
    /// Number of valid bytes in the buffer.
    filled: usize,
    /// Position of the next word of the current frame, and the number of words still missing.
    next_word: usize,
    words_left: usize,
    /// Position of the first word of the current frame.
    frame_start: usize,
}

impl FrameApplier {
    /// Returns an applier of frames from `socket`, which must be non-blocking, to `inbox`.
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

    /// Reads once from the socket and applies the received words. Calls `wrote` with the first word
    /// of each complete frame.
    ///
    /// # Errors
    ///
    /// Returns the error of the socket, or `InvalidData` if a frame is empty or exceeds the inbox.
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
                assert!(
                    self.next_word + self.words_left <= self.inbox.len(),
                    "link (I2): a frame that is applied is within the inbox"
                );
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

/// RDMA: detection of devices only.
pub mod rdma {
    /// Returns the names of the network cards with RDMA, as listed by the kernel. No link uses
    /// them, because the project had no such hardware to test one.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the kernel's list of devices, not a file of a database")]
    pub fn devices() -> Vec<String> {
        let Ok(entries) = std::fs::read_dir("/sys/class/infiniband") else { return Vec::new() };
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
    }
}
