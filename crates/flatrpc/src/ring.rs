//! # Rings: messages written into the peer's memory
//!
//! Each side of a connection has an *inbox*: memory that the peer writes and this side reads. The
//! inbox contains the incoming rings and, for each outgoing ring, the *credit*: the position up to
//! which the peer has read it. Both directions therefore need only one-sided writes, as RDMA
//! provides them.
//!
//! ## Picture (our inbox; the peer writes it)
//!
//! ```text
//!   ┌ tail of incoming ring 0 ┐ <- peer's RingWriter; a cache line for each word
//!   │ head of outgoing ring 0 │ <- peer's RingCredit: how far the peer has read our ring
//!   │ sleep flag              │ not 0: the peer sleeps
//!   ├ incoming ring 0 ────────┤
//!   │ record record ...       │ <- peer's RingWriter; -> our RingReader
//!   └─────────────────────────┘
//!   record = header word (length, continued) + payload, padded to whole words; it may wrap around
//! ```
//!
//! A message longer than a quarter of a ring is split into several records. Heads and tails count
//! words from the start of the session and never wrap.
//!
//! ## Invariants
//!
//! 1. A ring has one writer and one reader. Each keeps its own position in private memory. It reads
//!    the position reported by the peer once, and checks it before use.
//! 2. The writer advances the tail after the record is written, and over whole records only.
//! 3. A reader sends credit as soon as it has read an eighth of the ring since the last credit.
//!    Once it has read everything, a writer that waits for room for a record (at most a quarter of
//!    the ring) therefore gets it.

use std::io;

use crate::link::PeerLink;
use crate::memory::SharedMemory;

/// Words of a cache line. Two counters never share one.
const CACHE_LINE_WORDS: usize = 8;
/// Smallest size of a ring in words.
pub const MIN_RING: u64 = 64;
/// Largest size of a ring in words.
pub const MAX_RING: u64 = 1 << 22;
/// Maximum number of rings in each direction.
pub const MAX_RINGS: usize = 64;
/// Header bit of a record: the message continues in the next record.
const CONTINUED: u64 = 1 << 32;

/// Violation of the ring protocol by the peer. The session must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer broke the protocol: {0}")]
pub struct ProtocolViolation(pub &'static str);

impl From<ProtocolViolation> for io::Error {
    fn from(violation: ProtocolViolation) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, violation)
    }
}

/// Positions of the parts of an inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InboxLayout {
    /// Number of incoming rings.
    incoming: usize,
    /// Number of outgoing rings. The peer writes their credits into this inbox.
    outgoing: usize,
    /// Words of a ring: a power of two.
    ring: u64,
}

impl InboxLayout {
    /// Returns the layout for the given numbers of rings of `ring` words each, or `None` if a limit
    /// is exceeded.
    #[must_use]
    pub fn new(incoming: usize, outgoing: usize, ring: u64) -> Option<InboxLayout> {
        let counts = 1..=MAX_RINGS;
        let fits = counts.contains(&incoming) && counts.contains(&outgoing);
        let fits = fits && (MIN_RING..=MAX_RING).contains(&ring) && ring.is_power_of_two();
        fits.then_some(InboxLayout { incoming, outgoing, ring })
    }

    /// Returns the layout of the peer's inbox.
    #[must_use]
    pub fn of_peer(self) -> InboxLayout {
        InboxLayout { incoming: self.outgoing, outgoing: self.incoming, ring: self.ring }
    }

    /// Returns the number of words of the inbox.
    #[must_use]
    pub fn words(self) -> usize {
        self.data(self.incoming)
    }

    /// Returns the incoming ring that has its tail at word `at`, if any.
    #[must_use]
    pub fn ring_of_tail(self, at: usize) -> Option<usize> {
        (at.is_multiple_of(CACHE_LINE_WORDS) && at / CACHE_LINE_WORDS < self.incoming)
            .then_some(at / CACHE_LINE_WORDS)
    }

    fn tail(self, ring: usize) -> usize {
        ring * CACHE_LINE_WORDS
    }

    fn head(self, ring: usize) -> usize {
        (self.incoming + ring) * CACHE_LINE_WORDS
    }

    /// Returns the position of the word in which the peer announces that it sleeps.
    #[must_use]
    pub fn sleep_flag(self) -> usize {
        (self.incoming + self.outgoing) * CACHE_LINE_WORDS
    }

    fn data(self, ring: usize) -> usize {
        let size = usize::try_from(self.ring).expect("checked in `new`");
        self.sleep_flag() + CACHE_LINE_WORDS + ring * size
    }
}

/// Writing end of a ring.
#[derive(Debug)]
pub struct RingWriter {
    tail_at: usize,
    data_at: usize,
    credit_at: usize,
    size: u64,
    tail: u64,
    /// Last known position up to which the peer has read.
    head: u64,
    record: Vec<u8>,
}

impl RingWriter {
    /// Returns the writer of outgoing ring `index`. `ours` is the layout of our own inbox.
    #[must_use]
    pub fn new(ours: InboxLayout, index: usize) -> RingWriter {
        assert!(index < ours.outgoing);
        let theirs = ours.of_peer();
        RingWriter {
            tail_at: theirs.tail(index),
            data_at: theirs.data(index),
            credit_at: ours.head(index),
            size: ours.ring,
            tail: 0,
            head: 0,
            record: Vec::new(),
        }
    }

    /// Maximum payload of one record in bytes.
    fn max_payload(&self) -> usize {
        usize::try_from(self.size / 4 - 1).expect("rings are small") * 8
    }

    /// Returns true if a record of `words` fits now. Reads the credit again if necessary.
    fn has_room(&mut self, inbox: &SharedMemory, words: u64) -> Result<bool, ProtocolViolation> {
        if self.tail - self.head + words <= self.size {
            return Ok(true);
        }
        let head = inbox.observe(self.credit_at);
        if head < self.head || head > self.tail {
            return Err(ProtocolViolation("a credit for words that were not sent"));
        }
        self.head = head;
        Ok(self.tail - self.head + words <= self.size)
    }

    /// Writes as many bytes of `message` as fit, starting at byte `from`. Returns the position
    /// reached: the message is complete once it equals the length. Returns `None` if nothing fits
    /// now.
    ///
    /// # Errors
    ///
    /// Returns a [`ProtocolViolation`] as `InvalidData` if the peer's credit is invalid, and the
    /// errors of the link.
    pub fn write_message(
        &mut self,
        inbox: &SharedMemory,
        link: &mut dyn PeerLink,
        message: &[u8],
        from: usize,
    ) -> io::Result<Option<usize>> {
        let mut from = from;
        let mut written = None;
        loop {
            let part = &message[from..message.len().min(from + self.max_payload())];
            let words = 1 + part.len().div_ceil(8) as u64;
            if !self.has_room(inbox, words)? {
                break;
            }
            let more = from + part.len() < message.len();
            self.write_record(link, part, words, more)?;
            from += part.len();
            written = Some(from);
            if !more {
                break;
            }
        }
        if written.is_some() {
            link.write(self.tail_at, &self.tail.to_le_bytes())?;
        }
        Ok(written)
    }

    fn write_record(
        &mut self,
        link: &mut dyn PeerLink,
        part: &[u8],
        words: u64,
        more: bool,
    ) -> io::Result<()> {
        self.record.clear();
        let header = part.len() as u64 | if more { CONTINUED } else { 0 };
        self.record.extend_from_slice(&header.to_le_bytes());
        self.record.extend_from_slice(part);
        assert!(
            self.tail - self.head + words <= self.size,
            "ring (I1): a record overwrites no word that the peer may still read"
        );
        assert!(
            self.record.len().div_ceil(8) as u64 == words,
            "ring (I2): the tail advances over whole records"
        );
        let (first, until_end) = ring_position(self.tail, self.size);
        let cut = self.record.len().min(until_end * 8);
        link.write(self.data_at + first, &self.record[..cut])?;
        if cut < self.record.len() {
            link.write(self.data_at, &self.record[cut..])?;
        }
        self.tail += words;
        Ok(())
    }

    /// Returns true if a record of any length fits.
    ///
    /// # Errors
    ///
    /// Returns [`ProtocolViolation`] if the peer's credit is invalid.
    pub fn has_room_for_any_record(&mut self, inbox: &SharedMemory) -> Result<bool, ProtocolViolation> {
        self.has_room(inbox, self.size / 4)
    }
}

/// Returns the word of a position in the ring, and the number of words from there to its end.
fn ring_position(position: u64, size: u64) -> (usize, usize) {
    let first = position & (size - 1);
    (
        usize::try_from(first).expect("rings are small"),
        usize::try_from(size - first).expect("rings are small"),
    )
}

/// Reading end of a ring.
#[derive(Debug)]
pub struct RingReader {
    tail_at: usize,
    data_at: usize,
    credit_at: usize,
    size: u64,
    head: u64,
    /// Last known position up to which the peer has written.
    tail: u64,
}

impl RingReader {
    /// Returns the reader of incoming ring `index`. `ours` is the layout of our own inbox.
    #[must_use]
    pub fn new(ours: InboxLayout, index: usize) -> RingReader {
        assert!(index < ours.incoming);
        RingReader {
            tail_at: ours.tail(index),
            data_at: ours.data(index),
            credit_at: ours.of_peer().head(index),
            size: ours.ring,
            head: 0,
            tail: 0,
        }
    }

    /// Returns true if there is a record to read.
    #[inline]
    #[must_use]
    pub fn has_record(&self, inbox: &SharedMemory) -> bool {
        self.tail != self.head || inbox.observe(self.tail_at) != self.head
    }

    /// Appends the payload of the next record to `message`. Returns `None` if there is no record,
    /// `Some(true)` if the message is complete, and `Some(false)` if it continues in the next
    /// record.
    ///
    /// # Errors
    ///
    /// Returns [`ProtocolViolation`] if the tail is beyond the ring, or if a record exceeds the
    /// tail or a quarter of the ring.
    #[inline]
    pub fn read_record(
        &mut self,
        inbox: &SharedMemory,
        message: &mut Vec<u8>,
    ) -> Result<Option<bool>, ProtocolViolation> {
        if self.tail == self.head {
            let tail = inbox.observe(self.tail_at);
            if tail == self.head {
                return Ok(None);
            }
            if tail < self.head || tail - self.head > self.size {
                return Err(ProtocolViolation("a tail beyond the ring"));
            }
            self.tail = tail;
        }
        let (first, until_end) = ring_position(self.head, self.size);
        let header = inbox.load_word(self.data_at + first);
        let len = header & !CONTINUED;
        let words = 1 + len.div_ceil(8);
        if len >= CONTINUED || words > self.tail - self.head || words > self.size / 4 {
            return Err(ProtocolViolation("a record longer than the written words"));
        }
        let len = usize::try_from(len).expect("checked against the ring");
        let old = message.len();
        message.resize(old + len, 0);
        let cut = len.min((until_end - 1) * 8);
        let (near, far) = message[old..].split_at_mut(cut);
        inbox.load(self.data_at + if cut == 0 { 0 } else { first + 1 }, near);
        inbox.load(self.data_at, far);
        self.head += words;
        Ok(Some(header & CONTINUED == 0))
    }

    /// Returns the position up to which this side has read.
    #[must_use]
    pub fn head(&self) -> u64 {
        self.head
    }

    /// Returns the credit of this ring, with nothing sent yet.
    #[must_use]
    pub fn credit(&self) -> RingCredit {
        RingCredit { at: self.credit_at, interval: self.size / 8, sent_head: 0 }
    }
}

/// Last reported read position of a ring.
#[derive(Debug)]
pub struct RingCredit {
    at: usize,
    interval: u64,
    sent_head: u64,
}

impl RingCredit {
    /// Returns true if the peer must be told the position `head`.
    #[must_use]
    pub fn is_due(&self, head: u64) -> bool {
        head - self.sent_head >= self.interval
    }

    /// Sends the position `head` to the peer if it is due. Returns true if it was sent.
    ///
    /// # Errors
    ///
    /// Returns the errors of the link.
    pub fn send_if_due(&mut self, link: &mut dyn PeerLink, head: u64) -> io::Result<bool> {
        assert!(head >= self.sent_head, "ring (I3): the credit is not beyond the words that were read");
        if !self.is_due(head) {
            return Ok(false);
        }
        link.write(self.at, &head.to_le_bytes())?;
        self.sent_head = head;
        Ok(true)
    }
}
