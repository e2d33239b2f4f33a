//! # Rings: messages written into the peer's memory
//!
//! Each side of a connection has an *inbox*: memory that the peer writes and it reads. An inbox
//! holds the rings that come in, and for each ring that goes out the *credit*: how far the peer has
//! read it. So both directions need nothing but writes into the peer's memory, which is what RDMA
//! calls one-sided.
//!
//! ## Picture
//!
//! ```text
//!   our inbox  (the peer writes)                          the peer's inbox  (we write)
//!   ┌ tail of ring in 0 ┐ a cache line each               ┌ tail of ring in 0 ┐ <- Outgoing::push
//!   │ ...               │                                 │ ...               │
//!   │ head of ring out 0│ how far the peer read ours      │ head of ring out 0│ <- Incoming::credit
//!   │ ...               │                                 │ ...               │
//!   │ asleep            │ whether the peer waits          │ asleep            │
//!   ├ ring in 0 ────────┤                                 ├ ring in 0 ────────┤
//!   │ record record ..  │ -> Incoming::take               │ record record ..  │ <- Outgoing::push
//!   └───────────────────┘                                 └───────────────────┘
//!
//!   record = header word (length, more) + payload, filled up to whole words; it may wrap around
//! ```
//!
//! A message that does not fit into a quarter of a ring goes as several records. Heads and tails
//! count words from the start of the session and never wrap.
//!
//! ## Invariants
//!
//! 1. One writer and one reader a ring. Each keeps its own position in its own memory; what the
//!    peer says about its position is read once, and checked before it is used.
//! 2. The tail moves past a record after the record is written, over whole records only.
//! 3. A reader returns credit before a quarter of the ring is withheld, so a writer that waits for
//!    room for a record (at most a quarter) is never left waiting.
//!
//! ## Costs
//!
//! A push is a copy and two stores; a take is a load, a copy; every eighth of a ring a store for
//! the credit.

use std::io;

use crate::link::PeerLink;
use crate::memory::SharedMemory;

/// Words of a cache line: counters do not share one.
const CACHE_LINE_WORDS: usize = 8;
/// Smallest and largest ring, in words.
pub const MIN_RING: u64 = 64;
/// See [`MIN_RING`].
pub const MAX_RING: u64 = 1 << 22;
/// Most rings of an inbox.
pub const MAX_RINGS: usize = 64;
/// Bit of a record's header: the message goes on in the next record.
const CONTINUED: u64 = 1 << 32;

/// The peer broke the rules of the rings; nothing it says can be believed any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer broke the protocol: {0}")]
pub struct ProtocolViolation(pub &'static str);

impl From<ProtocolViolation> for io::Error {
    fn from(violation: ProtocolViolation) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, violation)
    }
}

/// Where things are in an inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InboxLayout {
    /// Rings that come in.
    incoming: usize,
    /// Rings that go out, whose credits come in.
    outgoing: usize,
    /// Words of a ring: a power of two.
    ring: u64,
}

impl InboxLayout {
    /// The layout for so many rings of `ring` words each; `None` beyond the limits.
    #[must_use]
    pub fn new(incoming: usize, outgoing: usize, ring: u64) -> Option<InboxLayout> {
        let counts = 1..=MAX_RINGS;
        let fits = counts.contains(&incoming) && counts.contains(&outgoing);
        let fits = fits && (MIN_RING..=MAX_RING).contains(&ring) && ring.is_power_of_two();
        fits.then_some(InboxLayout { incoming, outgoing, ring })
    }

    /// The layout of the peer's inbox.
    #[must_use]
    pub fn of_peer(self) -> InboxLayout {
        InboxLayout { incoming: self.outgoing, outgoing: self.incoming, ring: self.ring }
    }

    /// Words of the inbox.
    #[must_use]
    pub fn words(self) -> usize {
        self.data(self.incoming)
    }

    /// The ring whose tail the word at `at` is.
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

    /// Where the peer says that it waits for an event.
    #[must_use]
    pub fn sleep_flag(self) -> usize {
        (self.incoming + self.outgoing) * CACHE_LINE_WORDS
    }

    fn data(self, ring: usize) -> usize {
        let size = usize::try_from(self.ring).expect("checked in `new`");
        self.sleep_flag() + CACHE_LINE_WORDS + ring * size
    }
}

/// The end of a ring that writes.
#[derive(Debug)]
pub struct RingWriter {
    tail_at: usize,
    data_at: usize,
    credit_at: usize,
    size: u64,
    tail: u64,
    /// As far as the peer is known to have read.
    head: u64,
    record: Vec<u8>,
}

impl RingWriter {
    /// The ring `index` that goes out, where `ours` is the layout of our inbox.
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

    /// Longest payload of one record.
    fn max_payload(&self) -> usize {
        usize::try_from(self.size / 4 - 1).expect("rings are small") * 8
    }

    /// Whether a record of `words` fits now, after another look at the credit if need be.
    fn has_room(&mut self, inbox: &SharedMemory, words: u64) -> Result<bool, ProtocolViolation> {
        if self.tail - self.head + words <= self.size {
            return Ok(true);
        }
        let head = inbox.observe(self.credit_at);
        if head < self.head || head > self.tail {
            return Err(ProtocolViolation("a credit for what was not sent"));
        }
        self.head = head;
        Ok(self.tail - self.head + words <= self.size)
    }

    /// Writes as much of `message` from byte `from` on as there is room for, and returns how far it
    /// came: the message is out once that is its length. `None`: there is no room for any of it
    /// now.
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
        let (first, until_end) = ring_position(self.tail, self.size);
        let cut = self.record.len().min(until_end * 8);
        link.write(self.data_at + first, &self.record[..cut])?;
        if cut < self.record.len() {
            link.write(self.data_at, &self.record[cut..])?;
        }
        self.tail += words;
        Ok(())
    }

    /// Whether there is room for any record.
    pub fn has_room_for_any_record(&mut self, inbox: &SharedMemory) -> Result<bool, ProtocolViolation> {
        self.has_room(inbox, self.size / 4)
    }
}

/// Word in the ring, and how many words are left to its end.
fn ring_position(position: u64, size: u64) -> (usize, usize) {
    let first = position & (size - 1);
    (
        usize::try_from(first).expect("rings are small"),
        usize::try_from(size - first).expect("rings are small"),
    )
}

/// The end of a ring that reads.
#[derive(Debug)]
pub struct RingReader {
    tail_at: usize,
    data_at: usize,
    credit_at: usize,
    size: u64,
    head: u64,
    /// As far as the peer is known to have written.
    tail: u64,
}

impl RingReader {
    /// The ring `index` that comes in, where `ours` is the layout of our inbox.
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

    /// Whether there is something to take.
    #[inline]
    #[must_use]
    pub fn has_record(&self, inbox: &SharedMemory) -> bool {
        self.tail != self.head || inbox.observe(self.tail_at) != self.head
    }

    /// Appends the payload of the next record to `message`. `None`: there is none. True: the
    /// message is whole; false: it goes on in the next record.
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
        let header = inbox.word(self.data_at + first).load(std::sync::atomic::Ordering::Relaxed);
        let len = header & !CONTINUED;
        let words = 1 + len.div_ceil(8);
        if len >= CONTINUED || words > self.tail - self.head || words > self.size / 4 {
            return Err(ProtocolViolation("a record longer than what was written"));
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

    /// How far it was read.
    #[must_use]
    pub fn head(&self) -> u64 {
        self.head
    }

    /// Where the peer wants to hear how far.
    #[must_use]
    pub fn credit(&self) -> RingCredit {
        RingCredit { at: self.credit_at, interval: self.size / 8, sent_head: 0 }
    }
}

/// What the peer was told about how far its ring was read.
#[derive(Debug)]
pub struct RingCredit {
    at: usize,
    interval: u64,
    sent_head: u64,
}

impl RingCredit {
    /// Whether the peer should hear of `head`.
    #[must_use]
    pub fn is_due(&self, head: u64) -> bool {
        head - self.sent_head >= self.interval
    }

    /// Tells the peer if it is due; whether it did.
    pub fn send_if_due(&mut self, link: &mut dyn PeerLink, head: u64) -> io::Result<bool> {
        if !self.is_due(head) {
            return Ok(false);
        }
        link.write(self.at, &head.to_le_bytes())?;
        self.sent_head = head;
        Ok(true)
    }
}
