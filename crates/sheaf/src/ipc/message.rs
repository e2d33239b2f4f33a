//! # Messages: requests and replies over the IPC socket
//!
//! A message is a kind (one byte) and its fields; docs/format/ipc.md lists them. Received bytes
//! are decoded into these types or rejected.

use std::path::PathBuf;

use sheaf_platform::codec::{FieldReader, FieldWriter};
use sheaf_platform::disk::exported::{ByteSource, ExportedExtent, ExportedItem};
use sheaf_platform::wire_error::{self, ReadWire, WriteWire};
use sheaf_store::change_wire;
use sheaf_store::stats::wire;

use super::overview::{KeyspaceOverview, decode_keyspace, encode_keyspace};
use crate::changes::ChangeFilter;
use crate::{
    BackupProgress, BackupRate, BackupReport, CacheStats, Change, ChangePosition, ChangeQuery,
    CompactionReport, ConversionEstimate, ConversionProgress, ConversionReport, Damage, DatabaseStats,
    EngineOptions, Error, VerifyReport,
};

/// A request of a client. Its variants list the replies; `..` means any number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum IpcRequest {
    /// Statistics: [`IpcReply::Stats`], [`IpcReply::Caches`] .., a [`IpcReply::Keyspace`] each,
    /// [`IpcReply::Done`].
    Overview,
    /// [`IpcReply::BackupProgress`] .., [`IpcReply::BackupDone`].
    Backup { dir: PathBuf, base: Option<PathBuf>, verify: bool, pace: BackupRate },
    /// [`IpcReply::ConversionProgress`] .., [`IpcReply::ConversionDone`].
    Convert { keyspace: String, engine: Option<String>, options: EngineOptions },
    /// [`IpcReply::Estimate`].
    Estimate { keyspace: String },
    /// Compacts one keyspace, or all: [`IpcReply::CompactionProgress`] ..,
    /// [`IpcReply::CompactionDone`].
    Compact { keyspace: Option<String> },
    /// [`IpcReply::VerifyProgress`] and [`IpcReply::Finding`] .., [`IpcReply::Files`] ..,
    /// [`IpcReply::VerifyDone`].
    Verify,
    /// [`IpcReply::Done`].
    Persist,
    /// Exports a snapshot: [`IpcReply::Items`] .., [`IpcReply::Done`]; then the connection is the
    /// lease.
    Export,
    /// For each commit: [`IpcReply::Change`] .., each with [`IpcReply::ValuePart`] .., and
    /// [`IpcReply::Commit`]. Then [`IpcReply::Done`], unless the client follows the feed.
    Changes(ChangeQuery),
}

/// A reply. [`IpcReply::Failed`] may replace any reply.
#[derive(Debug)]
pub(super) enum IpcReply {
    Failed(Error),
    Done,
    Stats(Box<DatabaseStats>),
    Keyspace(Box<KeyspaceOverview>),
    BackupProgress(BackupProgress),
    BackupDone(BackupReport),
    ConversionProgress(ConversionProgress),
    ConversionDone(ConversionReport),
    Estimate(ConversionEstimate),
    CompactionProgress(CompactionReport),
    CompactionDone(CompactionReport),
    VerifyProgress(VerifyReport),
    Finding(Error),
    Files(Vec<PathBuf>),
    VerifyDone(VerifyReport),
    Items(Vec<ExportedItem>),
    Caches(Vec<CacheStats>),
    /// Sign of life during a long request.
    Heartbeat,
    /// Change of a commit, without its value, and the length of the value.
    Change(Change, u64),
    /// Bytes of the value of the last change.
    ValuePart(Vec<u8>),
    /// End of a commit.
    Commit(ChangePosition),
}

fn bad_field(field: &'static str, max: u64, got: u8) -> Damage {
    Damage::bad_field(field, ..=max, u64::from(got))
}

impl IpcRequest {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut w = FieldWriter::default();
        match self {
            IpcRequest::Overview => w.u8(1),
            IpcRequest::Backup { dir, base, verify, pace } => {
                w.u8(2);
                w.path(dir);
                w.option(base.as_deref(), FieldWriter::path);
                w.flag(*verify);
                wire::encode_pace(*pace, &mut w);
            }
            IpcRequest::Convert { keyspace, engine, options } => {
                w.u8(3);
                w.text(keyspace);
                w.option(engine.as_deref(), FieldWriter::text);
                wire::encode_options(options, &mut w);
            }
            IpcRequest::Estimate { keyspace } => {
                w.u8(4);
                w.text(keyspace);
            }
            IpcRequest::Compact { keyspace } => {
                w.u8(5);
                w.option(keyspace.as_deref(), FieldWriter::text);
            }
            IpcRequest::Verify => w.u8(6),
            IpcRequest::Persist => w.u8(7),
            IpcRequest::Export => w.u8(8),
            IpcRequest::Changes(query) => {
                w.u8(9);
                w.option(query.from.as_ref(), |w, from| change_wire::encode_position(from, w));
                w.list(&query.filter.keyspaces, |w, name| w.text(name));
                w.list(&query.filter.prefixes, |w, prefix| w.bytes(prefix));
                w.flag(query.is_following);
            }
        }
        w.0
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<IpcRequest, Damage> {
        let r = &mut FieldReader::new(bytes);
        let request = match r.u8()? {
            1 => IpcRequest::Overview,
            2 => IpcRequest::Backup {
                dir: r.path()?,
                base: r.option(|r| r.path())?,
                verify: r.flag()?,
                pace: wire::decode_pace(r)?,
            },
            3 => IpcRequest::Convert {
                keyspace: r.text()?,
                engine: r.option(|r| r.text())?,
                options: wire::decode_options(r)?,
            },
            4 => IpcRequest::Estimate { keyspace: r.text()? },
            5 => IpcRequest::Compact { keyspace: r.option(|r| r.text())? },
            6 => IpcRequest::Verify,
            7 => IpcRequest::Persist,
            8 => IpcRequest::Export,
            9 => IpcRequest::Changes(ChangeQuery {
                from: r.option(change_wire::decode_position)?,
                filter: ChangeFilter {
                    keyspaces: r.list(|r| r.text())?,
                    prefixes: r.list(|r| Ok(r.bytes()?.to_vec()))?,
                },
                is_following: r.flag()?,
            }),
            other => return Err(bad_field("request", 9, other)),
        };
        r.finish()?;
        Ok(request)
    }
}

impl IpcReply {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut w = FieldWriter::default();
        match self {
            IpcReply::Failed(error) => {
                w.u8(0);
                wire_error::encode(error, &mut w);
            }
            IpcReply::Done => w.u8(1),
            IpcReply::Stats(stats) => {
                w.u8(2);
                wire::encode_stats(stats, &mut w);
            }
            IpcReply::Keyspace(keyspace) => {
                w.u8(3);
                encode_keyspace(keyspace, &mut w);
            }
            IpcReply::BackupProgress(progress) => {
                w.u8(4);
                wire::encode_backup_progress(progress, &mut w);
            }
            IpcReply::BackupDone(report) => {
                w.u8(5);
                wire::encode_backup_report(report, &mut w);
            }
            IpcReply::ConversionProgress(progress) => {
                w.u8(6);
                wire::encode_conversion_progress(progress, &mut w);
            }
            IpcReply::ConversionDone(done) => {
                w.u8(7);
                wire::encode_conversion_report(done, &mut w);
            }
            IpcReply::Estimate(estimate) => {
                w.u8(8);
                wire::encode_estimate(estimate, &mut w);
            }
            IpcReply::CompactionProgress(done) => {
                w.u8(9);
                wire::encode_compaction_report(done, &mut w);
            }
            IpcReply::CompactionDone(done) => {
                w.u8(10);
                wire::encode_compaction_report(done, &mut w);
            }
            IpcReply::VerifyProgress(report) => {
                w.u8(11);
                wire::encode_verify_report(report, &mut w);
            }
            IpcReply::Finding(error) => {
                w.u8(12);
                wire_error::encode(error, &mut w);
            }
            IpcReply::Files(files) => {
                w.u8(13);
                w.list(files, |w, path| w.path(path));
            }
            IpcReply::VerifyDone(report) => {
                w.u8(14);
                wire::encode_verify_report(report, &mut w);
            }
            IpcReply::Items(items) => {
                w.u8(15);
                w.list(items, encode_item);
            }
            IpcReply::Caches(caches) => {
                w.u8(16);
                w.list(caches, wire::encode_cache);
            }
            IpcReply::Heartbeat => w.u8(17),
            IpcReply::Change(..) | IpcReply::ValuePart(_) | IpcReply::Commit(_) => self.encode_feed(&mut w),
        }
        w.0
    }

    /// Encodes a reply of the change feed.
    fn encode_feed(&self, w: &mut FieldWriter) {
        match self {
            IpcReply::Change(change, value_len) => {
                w.u8(18);
                change_wire::encode_change(change, w);
                w.u64(*value_len);
            }
            IpcReply::ValuePart(bytes) => {
                w.u8(19);
                w.bytes(bytes);
            }
            IpcReply::Commit(position) => {
                w.u8(20);
                change_wire::encode_position(position, w);
            }
            _ => unreachable!("the caller selects the replies of the feed"),
        }
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<IpcReply, Damage> {
        let r = &mut FieldReader::new(bytes);
        let reply = match r.u8()? {
            0 => IpcReply::Failed(wire_error::decode(r)?),
            1 => IpcReply::Done,
            2 => IpcReply::Stats(Box::new(wire::decode_stats(r)?)),
            3 => IpcReply::Keyspace(Box::new(decode_keyspace(r)?)),
            4 => IpcReply::BackupProgress(wire::decode_backup_progress(r)?),
            5 => IpcReply::BackupDone(wire::decode_backup_report(r)?),
            6 => IpcReply::ConversionProgress(wire::decode_conversion_progress(r)?),
            7 => IpcReply::ConversionDone(wire::decode_conversion_report(r)?),
            8 => IpcReply::Estimate(wire::decode_estimate(r)?),
            9 => IpcReply::CompactionProgress(wire::decode_compaction_report(r)?),
            10 => IpcReply::CompactionDone(wire::decode_compaction_report(r)?),
            11 => IpcReply::VerifyProgress(wire::decode_verify_report(r)?),
            12 => IpcReply::Finding(wire_error::decode(r)?),
            13 => IpcReply::Files(r.list(|r| r.path())?),
            14 => IpcReply::VerifyDone(wire::decode_verify_report(r)?),
            15 => IpcReply::Items(r.list(decode_item)?),
            16 => IpcReply::Caches(r.list(wire::decode_cache)?),
            17 => IpcReply::Heartbeat,
            18 => IpcReply::Change(change_wire::decode_change(r)?, r.u64()?),
            19 => IpcReply::ValuePart(r.bytes()?.to_vec()),
            20 => IpcReply::Commit(change_wire::decode_position(r)?),
            other => return Err(bad_field("reply", 20, other)),
        };
        r.finish()?;
        Ok(reply)
    }
}

fn encode_item(w: &mut FieldWriter, item: &ExportedItem) {
    match item {
        ExportedItem::Directory(name) => {
            w.u8(0);
            w.path(name);
        }
        ExportedItem::Extent(ExportedExtent { name, file_len: whole, offset: at, len, bytes }) => {
            w.u8(if matches!(bytes, ByteSource::Inline(_)) { 2 } else { 1 });
            w.path(name);
            w.u64s([whole, at, len]);
            match bytes {
                ByteSource::Inline(bytes) => w.bytes(bytes),
                ByteSource::File(path, from) => {
                    w.path(path);
                    w.u64(*from);
                }
            }
        }
    }
}

fn decode_item(r: &mut FieldReader<'_>) -> Result<ExportedItem, Damage> {
    let kind = r.u8()?;
    let name = r.path()?;
    let item = match kind {
        0 => ExportedItem::Directory(name),
        1 | 2 => {
            let (whole, at, len) = (r.u64()?, r.u64()?, r.u64()?);
            let bytes = match kind {
                1 => ByteSource::File(r.path()?, r.u64()?),
                _ => ByteSource::Inline(r.bytes()?.to_vec()),
            };
            ExportedItem::Extent(ExportedExtent { name, file_len: whole, offset: at, len, bytes })
        }
        other => return Err(bad_field("item", 2, other)),
    };
    match item.is_valid() {
        true => Ok(item),
        false => Err(Damage::bad_field("item", "an item inside the database", u64::from(kind))),
    }
}

/// Decodes and re-encodes the bytes with the decoders of both sides. For fuzzers.
#[doc(hidden)]
pub fn decode_and_reencode(bytes: &[u8]) {
    if let Ok(request) = IpcRequest::decode(bytes) {
        let encoded = request.encode();
        assert_eq!(IpcRequest::decode(&encoded).ok().map(|again| again.encode()), Some(encoded));
    }
    if let Ok(reply) = IpcReply::decode(bytes) {
        let encoded = reply.encode();
        assert_eq!(IpcReply::decode(&encoded).ok().map(|again| again.encode()), Some(encoded));
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::time::Duration;

    use sheaf_platform::error::{IoOp, PoisonCause};

    use super::*;
    use std::ops::Bound;

    use crate::{ChangeKind, ConflictKeys, EngineStats, LockConflict, WorkloadStats};

    fn chosen() -> EngineOptions {
        let mut options = EngineOptions::default();
        options.set("branching", 64);
        options
    }

    fn position() -> ChangePosition {
        format!("{:032x}-7", u128::MAX / 3).parse().unwrap()
    }

    fn requests() -> Vec<IpcRequest> {
        let name = || "näme".to_owned();
        vec![
            IpcRequest::Overview,
            IpcRequest::Backup {
                dir: "/a/b".into(),
                base: Some("/c".into()),
                verify: true,
                pace: BackupRate::Unlimited,
            },
            IpcRequest::Backup {
                dir: "/a".into(),
                base: None,
                verify: false,
                pace: BackupRate::YieldToCommits,
            },
            IpcRequest::Backup {
                dir: "/a".into(),
                base: None,
                verify: false,
                pace: BackupRate::BytesPerSecond(NonZeroU64::MIN),
            },
            IpcRequest::Convert { keyspace: name(), engine: Some("flex".into()), options: chosen() },
            IpcRequest::Convert { keyspace: name(), engine: None, options: EngineOptions::default() },
            IpcRequest::Estimate { keyspace: name() },
            IpcRequest::Compact { keyspace: Some(name()) },
            IpcRequest::Compact { keyspace: None },
            IpcRequest::Verify,
            IpcRequest::Persist,
            IpcRequest::Export,
            IpcRequest::Changes(ChangeQuery::default()),
            IpcRequest::Changes(
                ChangeQuery::default().after(position()).keyspace(name()).prefix([0xff]).follow(),
            ),
        ]
    }

    fn errors() -> Vec<Error> {
        let path = || PathBuf::from("/a/file");
        let corrupt = |what| Error::corrupt("/x".as_ref(), 9, "structure", what);
        vec![
            Error::Io { op: IoOp::Open, path: path(), source: std::io::Error::from_raw_os_error(5) },
            Error::Io { op: IoOp::Open, path: path(), source: std::io::Error::other("why") },
            corrupt(Damage::BadChecksum { expected: 1, got: 2 }),
            corrupt(Damage::BadLength { got: 3, max: 4 }),
            corrupt(Damage::bad_magic(b"SHEAFXYZ", b"\0\xffbcdefg")),
            corrupt(Damage::bad_field("field", 1..5, 5)),
            corrupt(Damage::bad_field("field", "a text", u64::MAX)),
            corrupt(Damage::BadOrder { item: "key", index: 6 }),
            corrupt(Damage::Foreign { field: "store", expected: u128::MAX, got: 6 }),
            corrupt(Damage::MissingCommits { first_missing: 7, durable: 8 }),
            corrupt(Damage::Truncated { got: 9, expected: 10 }),
            Error::NoSpace { path: path() },
            Error::Locked {
                path: path(),
                pid: Some(3),
                program: Some("p".into()),
                is_stopped: true,
                cause: LockConflict::Readers,
            },
            Error::locked(&path(), None, LockConflict::NoIpc),
            Error::OwnerUnresponsive {
                path: path(),
                pid: Some(3),
                program: None,
                is_stopped: false,
                waited: Duration::from_millis(7),
            },
            Error::TooManyFiles { path: path(), limit: Some(1024) },
            Error::TooManyFiles { path: path(), limit: None },
            Error::FileSizeLimit { path: path(), size: 1 << 28, limit: 1 << 20 },
            Error::Poisoned { cause: PoisonCause::Sync },
            Error::TooLarge { object: "key", got: 11, max: 12 },
            Error::UnsupportedVersion { path: path(), found: 13, supported: 14 },
            Error::NotADatabase { path: path(), reason: "no".into() },
            Error::NotABackup { path: path(), reason: "no".into() },
            Error::Cancelled,
            Error::DatabaseNotFound { path: path() },
            Error::KeyspaceNotFound { name: "k".into() },
            Error::KeyspaceExists { name: "k".into() },
            Error::EngineMismatch { name: "k".into(), found: "a".into(), requested: "b".into() },
            Error::Unsupported { engine: "flat", feature: "ranges" },
            Error::conflict("users", ConflictKeys::Key(b"ada".to_vec())),
            Error::conflict("users", ConflictKeys::Keyspace),
            Error::conflict("users", ConflictKeys::TooManyChanges),
            Error::conflict(
                "users",
                ConflictKeys::Range { low: Bound::Excluded(b"a".to_vec()), high: Bound::Unbounded },
            ),
            Error::conflict(
                "users",
                ConflictKeys::Range { low: Bound::Unbounded, high: Bound::Included(b"z".to_vec()) },
            ),
            Error::MemoryBudgetExceeded { budget: 15 },
            Error::ReadOnly,
            Error::Closed,
            Error::InvalidArgument { argument: "target", reason: "so".into() },
            Error::OwnerClosed { path: path() },
        ]
    }

    fn replies() -> Vec<IpcReply> {
        // The encodings of the contents are tested next to the types (`sheaf_store::stats::wire`).
        let mut stats = DatabaseStats::default();
        (stats.visible_seq, stats.poisoned, stats.has_ipc) = (77, Some(PoisonCause::Sync), true);
        let (load, mut report) = (WorkloadStats::default(), VerifyReport::default());
        (report.pairs, report.findings) = (1, 4);
        let mut w = FieldWriter::default();
        w.text("k");
        w.u32(7);
        w.text("flex");
        wire::encode_options(&chosen(), &mut w);
        w.option(Some("bad"), |w, damage| w.text(damage));
        let keyspace = KeyspaceOverview {
            info: wire::decode_keyspace_info(&mut FieldReader::new(&w.0)).unwrap(),
            ordered: true,
            stats: EngineStats {
                keys: 1,
                index_bytes: 2,
                pinned_versions: 3,
                encoded_raw_bytes: 5,
                encoded_bytes: 4,
            },
            counters: vec![("moved", 4), ("read", 5)],
            workload: load,
        };
        let mut copied = ConversionReport::default();
        (copied.copied_pairs, copied.is_direct) = (1, true);
        let mut estimate = ConversionEstimate::default();
        (estimate.pairs, estimate.free_bytes) = (1, 4);
        let mut cache = CacheStats::default();
        (cache.keyspace, cache.limit_bytes) = (Some("k".into()), Some(3));
        let mut w = FieldWriter::default();
        w.flag(true);
        w.u64(1);
        w.u64(2);
        let backing_up = wire::decode_backup_progress(&mut FieldReader::new(&w.0)).unwrap();
        let piece = |bytes, len| {
            ExportedItem::Extent(ExportedExtent {
                name: "journal/1.seg".into(),
                file_len: 9,
                offset: 2,
                len,
                bytes,
            })
        };
        let mut replies = vec![
            IpcReply::Done,
            IpcReply::Heartbeat,
            IpcReply::Change(Change { keyspace: "users".into(), kind: ChangeKind::Cleared }, 1 << 40),
            IpcReply::ValuePart(b"part".to_vec()),
            IpcReply::Commit(position()),
            IpcReply::Stats(Box::new(stats)),
            IpcReply::Keyspace(Box::new(keyspace)),
            IpcReply::BackupProgress(backing_up),
            IpcReply::BackupDone(BackupReport::default()),
            IpcReply::ConversionProgress(ConversionProgress::default()),
            IpcReply::ConversionDone(copied),
            IpcReply::Estimate(estimate),
            IpcReply::CompactionProgress(CompactionReport::default()),
            IpcReply::CompactionDone(CompactionReport::default()),
            IpcReply::VerifyProgress(report.clone()),
            IpcReply::Files(vec!["/a".into(), "/b".into()]),
            IpcReply::VerifyDone(report),
            IpcReply::Caches(vec![CacheStats::default(), cache]),
            IpcReply::Items(vec![
                ExportedItem::Directory("own/1".into()),
                piece(ByteSource::File("images/held".into(), 5), 4),
                piece(ByteSource::Inline(b"head".to_vec()), 4),
            ]),
        ];
        replies.extend(errors().into_iter().map(IpcReply::Failed));
        replies.extend(errors().into_iter().map(IpcReply::Finding));
        replies
    }

    #[test]
    fn every_message_survives_a_round_trip() {
        for request in requests() {
            assert_eq!(IpcRequest::decode(&request.encode()).unwrap(), request);
        }
        for reply in replies() {
            let again = IpcReply::decode(&reply.encode()).unwrap();
            assert_eq!(format!("{again:?}"), format!("{reply:?}"));
        }
    }

    #[test]
    fn no_bytes_make_a_decoder_panic() {
        let mut encoded: Vec<_> = requests().iter().map(IpcRequest::encode).collect();
        encoded.extend(replies().iter().map(IpcReply::encode));
        let mut random = 1u64;
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(random >> 33).unwrap()
        };
        for bytes in encoded {
            (0..bytes.len()).for_each(|len| decode_and_reencode(&bytes[..len]));
            decode_and_reencode(&[&bytes[..], b"more"].concat());
            for _ in 0..300 {
                let mut changed = bytes.clone();
                for _ in 0..1 + next() % 3 {
                    let at = next() % changed.len();
                    changed[at] = next().to_le_bytes()[0];
                }
                decode_and_reencode(&changed);
            }
        }
        for kind in 0..=u8::MAX {
            // A count that is larger than the message.
            decode_and_reencode(&[kind, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
        }
    }

    /// An exported listing contains only paths inside the database.
    #[test]
    fn a_listing_with_a_path_outside_the_database_is_rejected() {
        for name in ["..", "/etc/passwd", "a/../../b", ""] {
            let outside = IpcReply::Items(vec![ExportedItem::Directory(name.into())]);
            assert!(IpcReply::decode(&outside.encode()).is_err(), "{name:?}");
        }
    }
}
