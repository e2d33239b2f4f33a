//! # Messages: requests and replies of the door
//!
//! A message is a kind (one byte) and its fields; docs/format/door.md lists them. Received bytes
//! are decoded into these types or rejected.

use std::num::NonZeroU64;
use std::path::PathBuf;

use sheaf_base::codec::{Reader, Writer};
use sheaf_base::disk::held::{Bytes, Item, Piece};
use sheaf_base::fault::{self, ReadTexts, Texts};

use super::figures::{KeyspaceOverview, decode_cache, decode_keyspace, decode_options, decode_stats};
use super::figures::{encode_cache, encode_keyspace, encode_options, encode_stats};
use crate::{
    BackupPace, BackupPhase, BackupProgress, BackupReport, CacheStats, Compacted, ConversionPhase,
    ConversionProgress, Converted, Damage, EngineOptions, Error, Estimate, Stats, VerifyReport,
};

/// A request of a guest. Its variants list the replies; `..` means any number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// Statistics: [`Reply::Stats`], [`Reply::Caches`] .., a [`Reply::Keyspace`] each,
    /// [`Reply::Done`].
    Overview,
    /// [`Reply::BackingUp`] .., [`Reply::BackedUp`].
    Backup { dir: PathBuf, base: Option<PathBuf>, verify: bool, pace: BackupPace },
    /// [`Reply::Converting`] .., [`Reply::Converted`].
    Convert { keyspace: String, engine: Option<String>, options: EngineOptions },
    /// [`Reply::Estimate`].
    Estimate { keyspace: String },
    /// Compacts one keyspace, or all: [`Reply::Compacting`] .., [`Reply::Compacted`].
    Compact { keyspace: Option<String> },
    /// [`Reply::Verifying`] and [`Reply::Finding`] .., [`Reply::Files`] .., [`Reply::Verified`].
    Verify,
    /// [`Reply::Done`].
    Persist,
    /// Exports a snapshot: [`Reply::Items`] .., [`Reply::Done`]; then the connection is the lease.
    Hold,
}

/// A reply. [`Reply::Failed`] may replace any reply.
#[derive(Debug)]
pub(super) enum Reply {
    Failed(Error),
    Done,
    Stats(Box<Stats>),
    Keyspace(Box<KeyspaceOverview>),
    BackingUp(BackupProgress),
    BackedUp(BackupReport),
    Converting(ConversionProgress),
    Converted(Converted),
    Estimate(Estimate),
    Compacting(Compacted),
    Compacted(Compacted),
    Verifying(VerifyReport),
    Finding(Error),
    Files(Vec<PathBuf>),
    Verified(VerifyReport),
    Items(Vec<Item>),
    Caches(Vec<CacheStats>),
    /// Sign of life during a long request.
    Working,
}

fn bad(field: &'static str, value: u8) -> Damage {
    Damage::BadField { field, value: u64::from(value) }
}

impl Request {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        match self {
            Request::Overview => w.u8(1),
            Request::Backup { dir, base, verify, pace } => {
                w.u8(2);
                w.path(dir);
                w.option(base.as_deref(), Writer::path);
                w.flag(*verify);
                w.u64(match pace {
                    BackupPace::GiveWay => 0,
                    BackupPace::AtMost(rate) => rate.get(),
                    BackupPace::Full => u64::MAX,
                });
            }
            Request::Convert { keyspace, engine, options } => {
                w.u8(3);
                w.text(keyspace);
                w.option(engine.as_deref(), Writer::text);
                encode_options(options, &mut w);
            }
            Request::Estimate { keyspace } => {
                w.u8(4);
                w.text(keyspace);
            }
            Request::Compact { keyspace } => {
                w.u8(5);
                w.option(keyspace.as_deref(), Writer::text);
            }
            Request::Verify => w.u8(6),
            Request::Persist => w.u8(7),
            Request::Hold => w.u8(8),
        }
        w.0
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Request, Damage> {
        let r = &mut Reader::new(bytes);
        let request = match r.u8()? {
            1 => Request::Overview,
            2 => Request::Backup {
                dir: r.path()?,
                base: r.option(|r| r.path())?,
                verify: r.flag()?,
                pace: match r.u64()? {
                    u64::MAX => BackupPace::Full,
                    rate => NonZeroU64::new(rate).map_or(BackupPace::GiveWay, BackupPace::AtMost),
                },
            },
            3 => Request::Convert {
                keyspace: r.text()?,
                engine: r.option(|r| r.text())?,
                options: decode_options(r)?,
            },
            4 => Request::Estimate { keyspace: r.text()? },
            5 => Request::Compact { keyspace: r.option(|r| r.text())? },
            6 => Request::Verify,
            7 => Request::Persist,
            8 => Request::Hold,
            other => return Err(bad("request", other)),
        };
        r.finish()?;
        Ok(request)
    }
}

impl Reply {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        match self {
            Reply::Failed(error) => {
                w.u8(0);
                fault::encode(error, &mut w);
            }
            Reply::Done => w.u8(1),
            Reply::Stats(stats) => {
                w.u8(2);
                encode_stats(stats, &mut w);
            }
            Reply::Keyspace(keyspace) => {
                w.u8(3);
                encode_keyspace(keyspace, &mut w);
            }
            Reply::BackingUp(BackupProgress { phase, done, total }) => {
                w.u8(4);
                w.flag(*phase == BackupPhase::Verifying);
                numbers(&mut w, [done, total]);
            }
            Reply::BackedUp(BackupReport { seq, files, copied, linked }) => {
                w.u8(5);
                numbers(&mut w, [seq, files, copied, linked]);
            }
            Reply::Converting(ConversionProgress { phase, pairs, copied, bytes, passes }) => {
                w.u8(6);
                w.u8(match phase {
                    ConversionPhase::Copying => 0,
                    ConversionPhase::CatchingUp => 1,
                    ConversionPhase::Done => 2,
                });
                numbers(&mut w, [pairs, copied, bytes]);
                w.u32(*passes);
            }
            Reply::Converted(Converted { copied, bytes, passes, direct }) => {
                w.u8(7);
                numbers(&mut w, [copied, bytes]);
                w.u32(*passes);
                w.flag(*direct);
            }
            Reply::Estimate(Estimate { pairs, data, bytes, free }) => {
                w.u8(8);
                numbers(&mut w, [pairs, data, bytes, free]);
            }
            Reply::Compacting(done) => encode_compacted(9, done, &mut w),
            Reply::Compacted(done) => encode_compacted(10, done, &mut w),
            Reply::Verifying(report) => encode_verified(11, report, &mut w),
            Reply::Finding(error) => {
                w.u8(12);
                fault::encode(error, &mut w);
            }
            Reply::Files(files) => {
                w.u8(13);
                w.list(files, |w, path| w.path(path));
            }
            Reply::Verified(report) => encode_verified(14, report, &mut w),
            Reply::Items(items) => {
                w.u8(15);
                w.list(items, encode_item);
            }
            Reply::Caches(caches) => {
                w.u8(16);
                w.list(caches, encode_cache);
            }
            Reply::Working => w.u8(17),
        }
        w.0
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Reply, Damage> {
        let r = &mut Reader::new(bytes);
        let reply = match r.u8()? {
            0 => Reply::Failed(fault::decode(r)?),
            1 => Reply::Done,
            2 => Reply::Stats(Box::new(decode_stats(r)?)),
            3 => Reply::Keyspace(Box::new(decode_keyspace(r)?)),
            4 => {
                let phase = if r.flag()? { BackupPhase::Verifying } else { BackupPhase::Copying };
                Reply::BackingUp(BackupProgress { phase, done: r.u64()?, total: r.u64()? })
            }
            5 => Reply::BackedUp(BackupReport {
                seq: r.u64()?,
                files: r.u64()?,
                copied: r.u64()?,
                linked: r.u64()?,
            }),
            6 => Reply::Converting(ConversionProgress {
                phase: match r.u8()? {
                    0 => ConversionPhase::Copying,
                    1 => ConversionPhase::CatchingUp,
                    2 => ConversionPhase::Done,
                    other => return Err(bad("phase", other)),
                },
                pairs: r.u64()?,
                copied: r.u64()?,
                bytes: r.u64()?,
                passes: r.u32()?,
            }),
            7 => Reply::Converted(Converted {
                copied: r.u64()?,
                bytes: r.u64()?,
                passes: r.u32()?,
                direct: r.flag()?,
            }),
            8 => {
                Reply::Estimate(Estimate { pairs: r.u64()?, data: r.u64()?, bytes: r.u64()?, free: r.u64()? })
            }
            9 => Reply::Compacting(decode_compacted(r)?),
            10 => Reply::Compacted(decode_compacted(r)?),
            11 => Reply::Verifying(decode_verified(r)?),
            12 => Reply::Finding(fault::decode(r)?),
            13 => Reply::Files(r.list(|r| r.path())?),
            14 => Reply::Verified(decode_verified(r)?),
            15 => Reply::Items(r.list(decode_item)?),
            16 => Reply::Caches(r.list(decode_cache)?),
            17 => Reply::Working,
            other => return Err(bad("reply", other)),
        };
        r.finish()?;
        Ok(reply)
    }
}

fn numbers<const N: usize>(w: &mut Writer, numbers: [&u64; N]) {
    numbers.into_iter().for_each(|number| w.u64(*number));
}

fn encode_compacted(kind: u8, done: &Compacted, w: &mut Writer) {
    w.u8(kind);
    numbers(w, [&done.moved, &done.bytes, &done.left]);
}

fn decode_compacted(r: &mut Reader<'_>) -> Result<Compacted, Damage> {
    let mut done = Compacted::default();
    (done.moved, done.bytes, done.left) = (r.u64()?, r.u64()?, r.u64()?);
    Ok(done)
}

/// Encodes all but the files, which have messages of their own.
fn encode_verified(kind: u8, report: &VerifyReport, w: &mut Writer) {
    let VerifyReport { pairs, frames, bytes, findings, files: _ } = report;
    w.u8(kind);
    numbers(w, [pairs, frames, bytes, findings]);
}

fn decode_verified(r: &mut Reader<'_>) -> Result<VerifyReport, Damage> {
    let (pairs, frames, bytes, findings) = (r.u64()?, r.u64()?, r.u64()?, r.u64()?);
    Ok(VerifyReport { pairs, frames, bytes, findings, files: Vec::new() })
}

fn encode_item(w: &mut Writer, item: &Item) {
    match item {
        Item::Directory(name) => {
            w.u8(0);
            w.path(name);
        }
        Item::Piece(Piece { name, whole, at, len, bytes }) => {
            w.u8(if matches!(bytes, Bytes::Here(_)) { 2 } else { 1 });
            w.path(name);
            numbers(w, [whole, at, len]);
            match bytes {
                Bytes::Here(bytes) => w.bytes(bytes),
                Bytes::File(path, from) => {
                    w.path(path);
                    w.u64(*from);
                }
            }
        }
    }
}

fn decode_item(r: &mut Reader<'_>) -> Result<Item, Damage> {
    let kind = r.u8()?;
    let name = r.path()?;
    let item = match kind {
        0 => Item::Directory(name),
        1 | 2 => {
            let (whole, at, len) = (r.u64()?, r.u64()?, r.u64()?);
            let bytes = match kind {
                1 => Bytes::File(r.path()?, r.u64()?),
                _ => Bytes::Here(r.bytes()?.to_vec()),
            };
            Item::Piece(Piece { name, whole, at, len, bytes })
        }
        other => return Err(bad("item", other)),
    };
    match item.is_sound() {
        true => Ok(item),
        false => Err(bad("item", kind)),
    }
}

/// Decodes and re-encodes the bytes with the decoders of both sides. For fuzzers.
#[doc(hidden)]
pub fn feed(bytes: &[u8]) {
    if let Ok(request) = Request::decode(bytes) {
        let said = request.encode();
        assert_eq!(Request::decode(&said).ok().map(|again| again.encode()), Some(said));
    }
    if let Ok(reply) = Reply::decode(bytes) {
        let said = reply.encode();
        assert_eq!(Reply::decode(&said).ok().map(|again| again.encode()), Some(said));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sheaf_base::types::KeyspaceId;

    use super::*;
    use crate::{EngineStats, InUse, KeyspaceInfo, LoadStats, LogStats, MemoryStats, StallKind, StallStats};

    fn chosen() -> EngineOptions {
        let mut options = EngineOptions::default();
        options.set("branching", 64);
        options
    }

    fn requests() -> Vec<Request> {
        let name = || "näme".to_owned();
        vec![
            Request::Overview,
            Request::Backup {
                dir: "/a/b".into(),
                base: Some("/c".into()),
                verify: true,
                pace: BackupPace::Full,
            },
            Request::Backup { dir: "/a".into(), base: None, verify: false, pace: BackupPace::GiveWay },
            Request::Backup {
                dir: "/a".into(),
                base: None,
                verify: false,
                pace: BackupPace::AtMost(NonZeroU64::MIN),
            },
            Request::Convert { keyspace: name(), engine: Some("flex".into()), options: chosen() },
            Request::Convert { keyspace: name(), engine: None, options: EngineOptions::default() },
            Request::Estimate { keyspace: name() },
            Request::Compact { keyspace: Some(name()) },
            Request::Compact { keyspace: None },
            Request::Verify,
            Request::Persist,
            Request::Hold,
        ]
    }

    fn errors() -> Vec<Error> {
        let path = || PathBuf::from("/a/file");
        let corrupt = |what| Error::Corrupt { path: "/x".into(), offset: 9, what };
        vec![
            Error::Io { op: "open", path: path(), source: std::io::Error::from_raw_os_error(5) },
            Error::Io { op: "open", path: path(), source: std::io::Error::other("why") },
            corrupt(Damage::BadChecksum { expected: 1, got: 2 }),
            corrupt(Damage::BadLength { got: 3, max: 4 }),
            corrupt(Damage::BadMagic),
            corrupt(Damage::BadField { field: "field", value: 5 }),
            corrupt(Damage::Foreign { field: "store", expected: u128::MAX, got: 6 }),
            corrupt(Damage::MissingCommits { first_missing: 7, durable: 8 }),
            corrupt(Damage::Short { got: 9, expected: 10 }),
            Error::NoSpace { path: path() },
            Error::Locked {
                path: path(),
                pid: Some(3),
                program: Some("p".into()),
                is_stopped: true,
                cause: InUse::Readers,
            },
            Error::locked(&path(), None, InUse::NoDoor),
            Error::OwnerSilent {
                path: path(),
                pid: Some(3),
                program: None,
                is_stopped: false,
                waited: Duration::from_millis(7),
            },
            Error::TooManyFiles { path: path(), limit: Some(1024) },
            Error::TooManyFiles { path: path(), limit: None },
            Error::FileLimit { path: path(), size: 1 << 28, limit: 1 << 20 },
            Error::Poisoned { op: "sync" },
            Error::TooLarge { what: "key", got: 11, max: 12 },
            Error::Format { path: path(), found: 13, supported: 14 },
            Error::NotADatabase { path: path(), why: "no".into() },
            Error::NotABackup { path: path(), why: "no".into() },
            Error::Cancelled,
            Error::NotFound { path: path() },
            Error::NoKeyspace { name: "k".into() },
            Error::KeyspaceExists { name: "k".into() },
            Error::EngineMismatch { name: "k".into(), found: "a".into(), asked: "b".into() },
            Error::Unsupported { engine: "flat", feature: "ranges" },
            Error::Conflict,
            Error::OverBudget { budget: 15 },
            Error::ReadOnly,
            Error::Closed,
            Error::Invalid { what: "target", why: "so".into() },
            Error::OwnerGone { path: path() },
        ]
    }

    fn replies() -> Vec<Reply> {
        let log = LogStats { name: "journal", segments: 1, disk_bytes: 2, ..LogStats::default() };
        let stats = Stats {
            visible: 77,
            unsynced_age: Duration::from_nanos(5),
            oldest_view: Some(4),
            stalls: vec![StallStats {
                kind: StallKind::Brake,
                count: 3,
                total: Duration::from_nanos(9),
                longest: Duration::from_nanos(4),
            }],
            poisoned: Some("sync"),
            memory: MemoryStats { budget: 6, index: 4, versions: 2, buffers: 1, cache: 3 },
            logs: vec![log.clone(), LogStats { name: "flat", damaged: 3, ..log }],
            door: true,
            descriptors: crate::DescriptorStats { limit: 64, in_use: 9, reopened: 3 },
            ..Stats::default()
        };
        let keyspace = KeyspaceOverview {
            info: KeyspaceInfo {
                name: "k".into(),
                id: KeyspaceId(7),
                engine: "flex",
                options: chosen(),
                damage: Some("bad".into()),
            },
            ordered: true,
            stats: EngineStats { keys: 1, index_bytes: 2, pinned_versions: 3 },
            counters: vec![("moved", 4), ("read", 5)],
            load: LoadStats::default(),
        };
        let report = VerifyReport { pairs: 1, frames: 2, bytes: 3, findings: 4, files: Vec::new() };
        let piece =
            |bytes, len| Item::Piece(Piece { name: "journal/1.seg".into(), whole: 9, at: 2, len, bytes });
        let progress = ConversionProgress { pairs: 3, passes: 2, ..ConversionProgress::default() };
        let mut replies = vec![
            Reply::Done,
            Reply::Working,
            Reply::Stats(Box::new(stats)),
            Reply::Keyspace(Box::new(keyspace)),
            Reply::BackingUp(BackupProgress { phase: BackupPhase::Verifying, done: 1, total: 2 }),
            Reply::BackedUp(BackupReport { seq: 1, files: 2, copied: 3, linked: 4 }),
            Reply::Converted(Converted { copied: 1, bytes: 2, passes: 3, direct: true }),
            Reply::Estimate(Estimate { pairs: 1, data: 2, bytes: 3, free: 4 }),
            Reply::Compacting(Compacted::default()),
            Reply::Compacted(Compacted::default()),
            Reply::Verifying(report.clone()),
            Reply::Files(vec!["/a".into(), "/b".into()]),
            Reply::Verified(report),
            Reply::Caches(vec![
                CacheStats { keyspace: None, bytes: 1, share: None },
                CacheStats { keyspace: Some("k".into()), bytes: 2, share: Some(3) },
            ]),
            Reply::Items(vec![
                Item::Directory("own/1".into()),
                piece(Bytes::File("images/held".into(), 5), 4),
                piece(Bytes::Here(b"head".to_vec()), 4),
            ]),
        ];
        for phase in [ConversionPhase::Copying, ConversionPhase::CatchingUp, ConversionPhase::Done] {
            replies.push(Reply::Converting(ConversionProgress { phase, ..progress }));
        }
        replies.extend(errors().into_iter().map(Reply::Failed));
        replies.extend(errors().into_iter().map(Reply::Finding));
        replies
    }

    #[test]
    fn what_is_said_is_understood() {
        for request in requests() {
            assert_eq!(Request::decode(&request.encode()).unwrap(), request);
        }
        for reply in replies() {
            let again = Reply::decode(&reply.encode()).unwrap();
            assert_eq!(format!("{again:?}"), format!("{reply:?}"));
        }
    }

    #[test]
    fn no_bytes_make_a_decoder_panic() {
        let mut said: Vec<_> = requests().iter().map(Request::encode).collect();
        said.extend(replies().iter().map(Reply::encode));
        let mut random = 1u64;
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(random >> 33).unwrap()
        };
        for bytes in said {
            (0..bytes.len()).for_each(|len| feed(&bytes[..len]));
            feed(&[&bytes[..], b"more"].concat());
            for _ in 0..300 {
                let mut changed = bytes.clone();
                for _ in 0..1 + next() % 3 {
                    let at = next() % changed.len();
                    changed[at] = next().to_le_bytes()[0];
                }
                feed(&changed);
            }
        }
        for kind in 0..=u8::MAX {
            // A count that is larger than the message.
            feed(&[kind, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
        }
    }

    /// An exported listing contains only paths inside the database.
    #[test]
    fn a_listing_cannot_lead_out_of_the_database() {
        for name in ["..", "/etc/passwd", "a/../../b", ""] {
            let outside = Reply::Items(vec![Item::Directory(name.into())]);
            assert!(Reply::decode(&outside.encode()).is_err(), "{name:?}");
        }
    }
}
