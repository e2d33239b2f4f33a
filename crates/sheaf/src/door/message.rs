//! # Messages: requests and replies of the door
//!
//! A message is a kind (one byte) and its fields; docs/format/door.md lists them. Received bytes
//! are decoded into these types or rejected.

use std::path::PathBuf;

use sheaf_base::codec::{Reader, Writer};
use sheaf_base::disk::held::{Bytes, Item, Piece};
use sheaf_base::fault::{self, ReadTexts, Texts};
use sheaf_base::store::wire;

use super::figures::{KeyspaceOverview, decode_keyspace, encode_keyspace};
use crate::{
    BackupPace, BackupProgress, BackupReport, CacheStats, Compacted, ConversionProgress, Converted, Damage,
    EngineOptions, Error, Estimate, Stats, VerifyReport,
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
                wire::encode_pace(*pace, &mut w);
            }
            Request::Convert { keyspace, engine, options } => {
                w.u8(3);
                w.text(keyspace);
                w.option(engine.as_deref(), Writer::text);
                wire::encode_options(options, &mut w);
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
                pace: wire::decode_pace(r)?,
            },
            3 => Request::Convert {
                keyspace: r.text()?,
                engine: r.option(|r| r.text())?,
                options: wire::decode_options(r)?,
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
                wire::encode_stats(stats, &mut w);
            }
            Reply::Keyspace(keyspace) => {
                w.u8(3);
                encode_keyspace(keyspace, &mut w);
            }
            Reply::BackingUp(progress) => {
                w.u8(4);
                wire::encode_backup_progress(progress, &mut w);
            }
            Reply::BackedUp(report) => {
                w.u8(5);
                wire::encode_backup(report, &mut w);
            }
            Reply::Converting(progress) => {
                w.u8(6);
                wire::encode_conversion(progress, &mut w);
            }
            Reply::Converted(done) => {
                w.u8(7);
                wire::encode_converted(done, &mut w);
            }
            Reply::Estimate(estimate) => {
                w.u8(8);
                wire::encode_estimate(estimate, &mut w);
            }
            Reply::Compacting(done) => {
                w.u8(9);
                wire::encode_compacted(done, &mut w);
            }
            Reply::Compacted(done) => {
                w.u8(10);
                wire::encode_compacted(done, &mut w);
            }
            Reply::Verifying(report) => {
                w.u8(11);
                wire::encode_verified(report, &mut w);
            }
            Reply::Finding(error) => {
                w.u8(12);
                fault::encode(error, &mut w);
            }
            Reply::Files(files) => {
                w.u8(13);
                w.list(files, |w, path| w.path(path));
            }
            Reply::Verified(report) => {
                w.u8(14);
                wire::encode_verified(report, &mut w);
            }
            Reply::Items(items) => {
                w.u8(15);
                w.list(items, encode_item);
            }
            Reply::Caches(caches) => {
                w.u8(16);
                w.list(caches, wire::encode_cache);
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
            2 => Reply::Stats(Box::new(wire::decode_stats(r)?)),
            3 => Reply::Keyspace(Box::new(decode_keyspace(r)?)),
            4 => Reply::BackingUp(wire::decode_backup_progress(r)?),
            5 => Reply::BackedUp(wire::decode_backup(r)?),
            6 => Reply::Converting(wire::decode_conversion(r)?),
            7 => Reply::Converted(wire::decode_converted(r)?),
            8 => Reply::Estimate(wire::decode_estimate(r)?),
            9 => Reply::Compacting(wire::decode_compacted(r)?),
            10 => Reply::Compacted(wire::decode_compacted(r)?),
            11 => Reply::Verifying(wire::decode_verified(r)?),
            12 => Reply::Finding(fault::decode(r)?),
            13 => Reply::Files(r.list(|r| r.path())?),
            14 => Reply::Verified(wire::decode_verified(r)?),
            15 => Reply::Items(r.list(decode_item)?),
            16 => Reply::Caches(r.list(wire::decode_cache)?),
            17 => Reply::Working,
            other => return Err(bad("reply", other)),
        };
        r.finish()?;
        Ok(reply)
    }
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
            w.u64s([whole, at, len]);
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
    use std::num::NonZeroU64;
    use std::time::Duration;

    use super::*;
    use crate::{EngineStats, InUse, LoadStats};

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
        // The encodings of the contents are tested next to the types (`sheaf_base::store::wire`).
        let mut stats = Stats::default();
        (stats.visible, stats.poisoned, stats.door) = (77, Some("sync"), true);
        let (load, mut report) = (LoadStats::default(), VerifyReport::default());
        (report.pairs, report.findings) = (1, 4);
        let mut w = Writer::default();
        w.text("k");
        w.u32(7);
        w.text("flex");
        wire::encode_options(&chosen(), &mut w);
        w.option(Some("bad"), |w, damage| w.text(damage));
        let keyspace = KeyspaceOverview {
            info: wire::decode_info(&mut Reader::new(&w.0)).unwrap(),
            ordered: true,
            stats: EngineStats { keys: 1, index_bytes: 2, pinned_versions: 3 },
            counters: vec![("moved", 4), ("read", 5)],
            load,
        };
        let mut copied = Converted::default();
        (copied.copied, copied.direct) = (1, true);
        let mut estimate = Estimate::default();
        (estimate.pairs, estimate.free) = (1, 4);
        let mut cache = CacheStats::default();
        (cache.keyspace, cache.share) = (Some("k".into()), Some(3));
        let mut w = Writer::default();
        w.flag(true);
        w.u64(1);
        w.u64(2);
        let backing_up = wire::decode_backup_progress(&mut Reader::new(&w.0)).unwrap();
        let piece =
            |bytes, len| Item::Piece(Piece { name: "journal/1.seg".into(), whole: 9, at: 2, len, bytes });
        let mut replies = vec![
            Reply::Done,
            Reply::Working,
            Reply::Stats(Box::new(stats)),
            Reply::Keyspace(Box::new(keyspace)),
            Reply::BackingUp(backing_up),
            Reply::BackedUp(BackupReport::default()),
            Reply::Converting(ConversionProgress::default()),
            Reply::Converted(copied),
            Reply::Estimate(estimate),
            Reply::Compacting(Compacted::default()),
            Reply::Compacted(Compacted::default()),
            Reply::Verifying(report.clone()),
            Reply::Files(vec!["/a".into(), "/b".into()]),
            Reply::Verified(report),
            Reply::Caches(vec![CacheStats::default(), cache]),
            Reply::Items(vec![
                Item::Directory("own/1".into()),
                piece(Bytes::File("images/held".into(), 5), 4),
                piece(Bytes::Here(b"head".to_vec()), 4),
            ]),
        ];
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
