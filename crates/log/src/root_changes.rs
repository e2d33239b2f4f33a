//! # ROOT: the part for the change feed
//!
//! A database that retains changes stores here the settings of the retention, the collected
//! segments that are kept for the feed, the lifetimes of keyspaces, and the named cursors. Only
//! format version 8 of ROOT has this part.
//!
//! ## Invariants
//!
//! 1. A retained segment is not in the list of live segments. Recovery never reads it.
//! 2. Every commit after `start` is in a live segment of stream 0 or in a retained segment.

use crate::root::{RootSegment, decode_segment, encode_segment, keyspace};
use crate::types::{KeyspaceId, LogId, Seq};
use sheaf_platform::codec::{FieldReader, FieldWriter, utf8};
use sheaf_platform::error::Damage;

/// Maximum number of named cursors.
pub const MAX_CURSORS: usize = 256;
/// Longest name of a cursor in bytes.
pub const MAX_CURSOR_NAME: usize = 255;

/// Highest flags of a keyspace.
const MAX_FLAGS: u8 = 3;

/// Limits of the retention of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionLimits {
    /// Maximum bytes of retained segments.
    pub bytes: u64,
    /// Seconds for which a collected segment is kept.
    pub seconds: u64,
    /// Whether a segment is also kept until all named cursors have passed it.
    pub until_cursors_pass: bool,
}

/// Collected segment that is kept for the change feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetainedSegment {
    /// Log of the segment.
    pub log: LogId,
    /// The segment as ROOT listed it when it was live.
    pub segment: RootSegment,
    /// Lower bound of the seqs in it.
    pub first_seq: Seq,
    /// Time of its collection, in seconds since 1970.
    pub collected_at: u64,
}

/// Lifetime of a keyspace, from the commit that gave it its name to the one that removed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyspaceLifetime {
    /// Number of the keyspace.
    pub id: KeyspaceId,
    /// Name of the keyspace.
    pub name: String,
    /// Whether its pairs may expire. Its values then begin with a header (docs/format/expiry.md).
    pub has_expiry: bool,
    /// Whether it has a codec. Its values then have a stored form (docs/format/compression.md).
    pub is_compressed: bool,
    /// The commit that created it; zero for a keyspace that is older than the feed.
    pub created: Seq,
    /// The commit that dropped or replaced it; [`Seq::LATEST`] while it is live.
    pub dropped: Seq,
}

/// Named cursor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedCursor {
    /// Name of the cursor.
    pub name: String,
    /// Last commit that its consumer has processed.
    pub seq: Seq,
}

/// The part of ROOT for the change feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootChanges {
    /// Identity of the feed, a part of its positions.
    pub feed: u128,
    /// Limits; `None` if changes are not retained any more.
    pub limits: Option<RetentionLimits>,
    /// The feed has every commit after this one.
    pub start: Seq,
    /// Retained segments.
    pub retained: Vec<RetainedSegment>,
    /// Keyspaces with a lifetime that began or ended after `start`.
    pub keyspaces: Vec<KeyspaceLifetime>,
    /// Named cursors, by name.
    pub cursors: Vec<NamedCursor>,
}

impl RootChanges {
    pub(crate) fn encode(&self, w: &mut FieldWriter) {
        w.u128(self.feed);
        w.u8(u8::from(self.limits.is_some()));
        let limits =
            self.limits.unwrap_or(RetentionLimits { bytes: 0, seconds: 0, until_cursors_pass: false });
        w.u64(limits.bytes);
        w.u64(limits.seconds);
        w.u8(u8::from(limits.until_cursors_pass));
        w.u64(self.start.0);
        w.list(&self.retained, |w, retained| {
            w.u8(retained.log as u8);
            encode_segment(w, &retained.segment);
            w.u64(retained.first_seq.0);
            w.u64(retained.collected_at);
        });
        w.list(&self.keyspaces, |w, keyspace| {
            w.u32(keyspace.id.0);
            w.bytes(keyspace.name.as_bytes());
            w.u8(u8::from(keyspace.has_expiry) | u8::from(keyspace.is_compressed) << 1);
            w.u64(keyspace.created.0);
            w.u64(keyspace.dropped.0);
        });
        w.list(&self.cursors, |w, cursor| {
            w.bytes(cursor.name.as_bytes());
            w.u64(cursor.seq.0);
        });
    }

    pub(crate) fn decode(r: &mut FieldReader<'_>) -> Result<RootChanges, Damage> {
        let feed = r.u128()?;
        let is_on = r.u8()? != 0;
        let limits = RetentionLimits { bytes: r.u64()?, seconds: r.u64()?, until_cursors_pass: r.u8()? != 0 };
        let start = Seq(r.counter("start of the change feed")?);
        let retained = r.list(|r| {
            let log = r.u8()?;
            let Some(log) = LogId::ALL.into_iter().find(|id| *id as u8 == log) else {
                return Err(Damage::bad_field("log", 0..LogId::ALL.len() as u64, u64::from(log)));
            };
            let segment = decode_segment(r)?;
            let first_seq = Seq(r.counter("first commit of a retained segment")?);
            Ok(RetainedSegment { log, segment, first_seq, collected_at: r.u64()? })
        })?;
        let keyspaces = r.list(|r| {
            let id = keyspace(r)?;
            let name = utf8("name", r.bytes()?)?.to_owned();
            let flags = r.u8()?;
            if flags > MAX_FLAGS {
                return Err(Damage::bad_field(
                    "flags of a keyspace",
                    ..=u64::from(MAX_FLAGS),
                    u64::from(flags),
                ));
            }
            let (has_expiry, is_compressed) = (flags & 1 != 0, flags & 2 != 0);
            let (created, dropped) = (Seq(r.u64()?), Seq(r.u64()?));
            Ok(KeyspaceLifetime { id, name, has_expiry, is_compressed, created, dropped })
        })?;
        let cursors =
            r.list(|r| Ok(NamedCursor { name: utf8("cursor", r.bytes()?)?.to_owned(), seq: Seq(r.u64()?) }))?;
        Ok(RootChanges { feed, limits: is_on.then_some(limits), start, retained, keyspaces, cursors })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Incarnation, SegmentId};

    fn changes() -> RootChanges {
        let segment = RootSegment {
            id: SegmentId(9),
            stream: 0,
            incarnation: Incarnation(2),
            capacity: 4096,
            end: 1024,
            is_sealed: true,
            last_seq: Seq(70),
            frames: 5,
        };
        RootChanges {
            feed: u128::MAX / 5,
            limits: Some(RetentionLimits { bytes: 1, seconds: 2, until_cursors_pass: true }),
            start: Seq(60),
            retained: vec![RetainedSegment {
                log: LogId::ValueLog,
                segment,
                first_seq: Seq(61),
                collected_at: 3,
            }],
            keyspaces: vec![KeyspaceLifetime {
                id: KeyspaceId(4),
                name: "users".to_owned(),
                has_expiry: true,
                is_compressed: true,
                created: Seq(62),
                dropped: Seq::LATEST,
            }],
            cursors: vec![NamedCursor { name: "index".to_owned(), seq: Seq(65) }],
        }
    }

    fn decode(bytes: &[u8]) -> Result<RootChanges, Damage> {
        let mut r = FieldReader::new(bytes);
        let found = RootChanges::decode(&mut r)?;
        r.finish().map(|()| found)
    }

    #[test]
    fn the_feed_reads_back_and_no_part_of_it_does() {
        for changes in [changes(), RootChanges { limits: None, retained: Vec::new(), ..changes() }] {
            let mut w = FieldWriter::default();
            changes.encode(&mut w);
            assert_eq!(decode(&w.0), Ok(changes));
            for cut in 0..w.0.len() {
                assert!(decode(&w.0[..cut]).is_err(), "{cut} bytes");
            }
        }
    }

    #[test]
    fn flags_of_keyspaces_read_back_and_unknown_ones_are_damage() {
        let [keyspace] = changes().keyspaces.try_into().unwrap();
        for (has_expiry, is_compressed) in [(false, false), (true, false), (false, true), (true, true)] {
            let keyspaces = vec![KeyspaceLifetime { has_expiry, is_compressed, ..keyspace.clone() }];
            let changes = RootChanges { keyspaces, ..changes() };
            let mut w = FieldWriter::default();
            changes.encode(&mut w);
            assert_eq!(decode(&w.0), Ok(changes));
            // Behind the flags are two numbers, and the list with one cursor.
            let flags = w.0.len() - (8 + 8) - (4 + 4 + 5 + 8) - 1;
            w.0[flags] = 4;
            assert!(decode(&w.0).is_err());
        }
    }

    #[test]
    fn hostile_values_are_damage() {
        let mut w = FieldWriter::default();
        changes().encode(&mut w);
        // The start, the number of segments, the log, and the capacity of the segment.
        let start = 16 + 1 + 8 + 8 + 1;
        for at in [start, start + 8, start + 12, start + 12 + 1 + 8 + 1 + 8] {
            let mut bytes = w.0.clone();
            bytes[at..at + 8].copy_from_slice(&[0xff; 8]);
            assert!(decode(&bytes).is_err(), "byte {at}");
        }
    }
}
