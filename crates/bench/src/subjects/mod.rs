//! # Subjects: the measured stores, behind one trait
//!
//! An adapter opens a store with the settings that [`PEERS`] describes. Its session holds the state
//! that users of that store keep per thread (LMDB: a read transaction). Engines of Sheaf need no
//! adapter: every name that [`sheaf::engines`] returns is a subject, and so is such a name with
//! options of the engine: `delsm:file-bytes=256`.
//!
//! ## Rules of fairness
//!
//! 1. A get reads the value by the cheapest documented call, without a copy if possible.
//! 2. A put is acknowledged when it would survive a kill of the process, a durable put when it
//!    would survive a power cut. A put is a commit of its own, except in `load`.
//! 3. `load` may gather a thousand puts in one transaction if a single put would cost a page write.
//! 4. Between durable points every store is synced every 100 ms: by itself, or by
//!    [`BenchStore::sync`].
//! 5. Every store that has a cache or a memory budget gets [`StoreSetting::memory`].

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::Result;

mod files;
mod null;
mod sheaf;
mod variant;

#[cfg(any(feature = "leveldb", feature = "rocksdb"))]
mod c_api;
#[cfg(feature = "fjall")]
mod fjall;
#[cfg(feature = "leveldb")]
mod leveldb;
#[cfg(feature = "lmdb")]
mod lmdb;
#[cfg(feature = "redb")]
mod redb;
#[cfg(feature = "rocksdb")]
mod rocksdb;
#[cfg(feature = "sled")]
mod sled;

/// Memory budget or cache of every store that has one, unless the workload has another.
pub(crate) const MEMORY: u64 = 2 << 30;
/// Operations that share a transaction, in stores that have such transactions.
#[cfg(any(feature = "lmdb", feature = "redb"))]
const OPS_PER_TRANSACTION: u32 = 1000;

/// An open store.
pub(crate) trait BenchStore: Send + Sync {
    /// Opens a session for one thread, which must call this function itself.
    fn session(&self) -> Result<Box<dyn BenchSession + '_>>;
    /// Syncs all acknowledged writes to the device.
    fn sync(&self) -> Result<()>;
    /// Returns whether the store syncs itself every 100 ms.
    fn syncs_itself(&self) -> bool {
        false
    }
    /// Returns whether a get must find earlier puts.
    fn keeps_data(&self) -> bool {
        true
    }
    /// Returns whether the store supports scans.
    fn is_ordered(&self) -> bool {
        true
    }
    /// Returns figures that only Sheaf has.
    fn sheaf_figures(&self) -> Option<SheafFigures> {
        None
    }
    /// Closes the store and returns its last error.
    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// Access of one thread to a store.
pub(crate) trait BenchSession {
    /// Reads a value and returns the result of [`read_value`].
    fn get(&mut self, key: &[u8]) -> Result<Option<u64>>;
    /// Sets a value, as a commit of its own.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()>;
    /// Removes a key, as a commit of its own.
    fn remove(&mut self, key: &[u8]) -> Result<()>;
    /// Reads at most `limit` pairs from `from` on, in the direction `way`, and returns their
    /// number. An empty `from` is the end of the key space at which the scan starts.
    fn scan(&mut self, from: &[u8], limit: u64, way: ScanDirection) -> Result<u64>;
    /// Reads all keys in order and returns their number. Reads no values if the store supports
    /// that.
    fn keys(&mut self) -> Result<u64> {
        self.scan(b"", u64::MAX, ScanDirection::Up)
    }
    /// Makes the store sort its data for scans, if it has such a call. Returns the number of pairs
    /// that it processed, or 1 if the store does not report it.
    fn compact(&mut self) -> Result<u64> {
        Ok(1)
    }
    /// Sets a value. May gather several sets in one transaction.
    fn load(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.put(key, value)
    }
    /// Commits the sets that `load` gathered.
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Direction of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScanDirection {
    Up,
    Down,
}

/// Figures from the statistics of Sheaf.
#[derive(Clone, Debug, Default)]
pub(crate) struct SheafFigures {
    /// Bytes of volatile indexes.
    pub(crate) index_bytes: u64,
    /// Keys in these indexes.
    pub(crate) keys: u64,
    /// Bytes of the live entries in the store log.
    pub(crate) live_bytes: u64,
    /// Bytes of the store log's files.
    pub(crate) log_bytes: u64,
    /// Bytes appended by commits since opening.
    pub(crate) appended: u64,
    /// Bytes appended by GC since opening.
    pub(crate) gc_bytes: u64,
    /// Bytes of checkpoints written since opening.
    pub(crate) checkpoint_bytes: u64,
    /// Segments freed since opening.
    pub(crate) freed: u64,
    /// Number of writes that were throttled.
    pub(crate) throttles: u64,
    /// Records replayed at opening.
    pub(crate) replayed: u64,
    /// Frames read at opening.
    pub(crate) scanned: u64,
    /// Counters of the engine.
    #[allow(dead_code, reason = "read only through `Debug`")]
    pub(crate) counters: Vec<(&'static str, u64)>,
}

/// Settings of an open store.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StoreSetting {
    /// Whether a put survives a power cut as soon as it is acknowledged.
    pub(crate) durable: bool,
    /// Bound of Sheaf on disk space divided by live data, if it is set explicitly.
    pub(crate) space_limit: Option<f64>,
    /// Bytes of cache or memory budget.
    pub(crate) memory: u64,
}

impl StoreSetting {
    pub(crate) const BUFFERED: StoreSetting =
        StoreSetting { durable: false, space_limit: None, memory: MEMORY };
    pub(crate) const DURABLE: StoreSetting = StoreSetting { durable: true, ..StoreSetting::BUFFERED };
}

/// Reads both ends of a value, so that all of it must be available. Returns the first eight bytes,
/// or all bytes of a shorter value, as a number: they contain the number of the pair.
pub(crate) fn read_value(value: &[u8]) -> u64 {
    std::hint::black_box(value.last());
    match value.first_chunk() {
        Some(head) => u64::from_le_bytes(*head),
        None => value.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)),
    }
}

type OpenFn = fn(&Path, StoreSetting) -> Result<Box<dyn BenchStore>>;

/// A store of another project.
struct PeerStore {
    name: &'static str,
    title: &'static str,
    /// `None` if the build does not include it.
    open: Option<OpenFn>,
    /// Description of its settings, for the report.
    setting: &'static str,
}

macro_rules! opener {
    ($name:ident $feature:literal $open:expr) => {
        #[cfg(feature = $feature)]
        const $name: Option<OpenFn> = Some($open);
        #[cfg(not(feature = $feature))]
        const $name: Option<OpenFn> = None;
    };
}

opener!(LMDB "lmdb" |dir, setting| Ok(Box::new(lmdb::Lmdb::open(dir, setting)?)));
opener!(ROCKSDB "rocksdb" |dir, setting| Ok(Box::new(rocksdb::open(dir, setting, false)?)));
opener!(ROCKSDB_BLOB "rocksdb" |dir, setting| Ok(Box::new(rocksdb::open(dir, setting, true)?)));
opener!(LEVELDB "leveldb" |dir, setting| Ok(Box::new(leveldb::open(dir, setting)?)));
opener!(FJALL "fjall" |dir, setting| Ok(Box::new(fjall::Fjall::open(dir, setting, false)?)));
opener!(FJALL_KV "fjall" |dir, setting| Ok(Box::new(fjall::Fjall::open(dir, setting, true)?)));
opener!(REDB "redb" |dir, setting| Ok(Box::new(redb::Redb::open(dir, setting)?)));
opener!(SLED "sled" |dir, setting| Ok(Box::new(sled::Sled::open(dir, setting)?)));
const PLAIN_FILES: Option<OpenFn> = Some(|dir, setting| Ok(Box::new(files::PlainFiles::open(dir, setting)?)));

/// All peers, in the order of the tables.
static PEERS: [PeerStore; 9] = [
    PeerStore {
        name: "lmdb",
        title: "LMDB",
        open: LMDB,
        setting: "memory map; a read transaction serves 1000 gets; a put is a transaction with NO_SYNC (1000 \
                  puts in fills), synced by mdb_env_sync; no readahead if data is beyond the budget; durable: LMDB's \
                  default",
    },
    PeerStore {
        name: "rocksdb",
        title: "RocksDB",
        open: ROCKSDB,
        setting: "bloom filters of 10 bits, block cache of the memory budget, hash index in data blocks, 64 MiB \
                  write buffers, pinned gets, log to the kernel at each put, synced by FlushWAL(sync); durable: \
                  sync = true",
    },
    PeerStore {
        name: "rocksdb-blob",
        title: "RocksDB blobs",
        open: ROCKSDB_BLOB,
        setting: "as RocksDB, values of 512 bytes and more in blob files, blob garbage collection on: replaces \
                  WiscKey",
    },
    PeerStore {
        name: "leveldb",
        title: "LevelDB",
        open: LEVELDB,
        setting: "bloom filters of 10 bits, block cache of the memory budget, 64 MiB write buffer, log to the \
                  kernel at each put, synced by an empty batch with sync; durable: sync = true",
    },
    PeerStore {
        name: "fjall",
        title: "fjall",
        open: FJALL,
        setting: "cache of the memory budget, else its defaults; synced by persist(SyncData); durable: that \
                  after each put",
    },
    PeerStore {
        name: "fjall-kv",
        title: "fjall separated",
        open: FJALL_KV,
        setting: "as fjall, with its key-value separation from 512 bytes on: replaces WiscKey",
    },
    PeerStore {
        name: "redb",
        title: "redb",
        open: REDB,
        setting: "cache of the memory budget; a read transaction serves 1000 gets; a put is a transaction with \
                  Durability::None (1000 puts in fills), which does not survive a killed process; synced by an \
                  empty immediate commit; durable: Immediate",
    },
    PeerStore {
        name: "sled",
        title: "sled",
        open: SLED,
        setting: "cache of the memory budget, background flusher off; a put may sit in its own buffer, which does \
                  not survive a killed process; synced by flush and fdatasync (its flush alone leaves the device's cache \
                  full); durable: both after each put",
    },
    PeerStore {
        name: "plain-files",
        title: "plain files",
        open: PLAIN_FILES,
        setting: "no store: a file for each value in one of 256 directories, without log, checksum or order; synced by \
                  syncfs; durable: fsync of file and directory after each put",
    },
];

const OURS_SETTING: &str = "one keyspace at default options, memory budget, space limit 1.6; get_with (no copy), \
                            checksum verified at every get; syncs itself every 100 ms; durable: Durability::Sync";

/// A store, identified by its name: a peer, an engine, or an engine with options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct BenchSubject(&'static str);

impl BenchSubject {
    /// A store without effect, which shows the costs of the harness.
    pub(crate) const NULL: BenchSubject = BenchSubject("null");
    pub(crate) const FLAT: BenchSubject = BenchSubject("flat");
    pub(crate) const FLEX: BenchSubject = BenchSubject("flex");
    pub(crate) const CEDRUS: BenchSubject = BenchSubject("cedrus");
    pub(crate) const LMDB: BenchSubject = BenchSubject("lmdb");
    pub(crate) const ROCKSDB: BenchSubject = BenchSubject("rocksdb");
    pub(crate) const LEVELDB: BenchSubject = BenchSubject("leveldb");

    /// Returns the engines of Sheaf.
    pub(crate) fn own_engines() -> Vec<BenchSubject> {
        ::sheaf::engines().into_iter().map(BenchSubject).collect()
    }

    /// Returns all peers, whether the build includes them or not.
    pub(crate) fn peers() -> impl Iterator<Item = BenchSubject> {
        PEERS.iter().map(|peer| BenchSubject(peer.name))
    }

    /// Returns the default peers of [`figures`](crate::figures): those in the build, without the
    /// variants, and without two with slow random writes or fills, which take most of a run.
    pub(crate) fn usual_peers() -> Vec<BenchSubject> {
        let usual = ["lmdb", "rocksdb", "leveldb", "fjall"];
        BenchSubject::peers().filter(|peer| peer.is_built_in() && usual.contains(&peer.0)).collect()
    }

    /// Returns the default peers of a comparison: those in the build, without the variants.
    pub(crate) fn main_peers() -> Vec<BenchSubject> {
        BenchSubject::peers().filter(|peer| peer.is_built_in() && !peer.0.contains('-')).collect()
    }

    pub(crate) fn name(self) -> &'static str {
        self.0
    }

    /// Returns the name for prose.
    pub(crate) fn title(self) -> String {
        match self.peer() {
            Some(peer) => peer.title.to_owned(),
            None if self == BenchSubject::NULL => "harness alone".to_owned(),
            None => match self.0.split_once(':') {
                Some((engine, options)) => format!("Sheaf {engine} ({})", options.replace(':', ", ")),
                None => format!("Sheaf {}", self.0),
            },
        }
    }

    /// Returns the description of its settings.
    pub(crate) fn setting(self) -> String {
        match self.peer() {
            Some(peer) => peer.setting.to_owned(),
            None if self == BenchSubject::NULL => "no store: measures the cost of the harness".to_owned(),
            None => match self.0.split_once(':') {
                Some((_, options)) => OURS_SETTING.replace("default options", &options.replace(':', ", ")),
                None => OURS_SETTING.to_owned(),
            },
        }
    }

    pub(crate) fn is_peer(self) -> bool {
        self.peer().is_some()
    }

    pub(crate) fn is_ours(self) -> bool {
        !self.is_peer() && self != BenchSubject::NULL
    }

    /// Returns whether only the bench syncs it.
    pub(crate) fn is_synced_by_us(self) -> bool {
        self.is_peer()
    }

    fn peer(self) -> Option<&'static PeerStore> {
        PEERS.iter().find(|peer| peer.name == self.0)
    }

    /// Returns the subject of that name, or an error if the name is unknown or not in the build.
    pub(crate) fn parse(name: &str) -> Result<BenchSubject> {
        if name.contains(':') {
            return variant::intern(name).map(BenchSubject);
        }
        let known: Vec<BenchSubject> = [BenchSubject::NULL]
            .into_iter()
            .chain(BenchSubject::own_engines())
            .chain(BenchSubject::peers())
            .collect();
        let Some(subject) = known.iter().copied().find(|subject| subject.0 == name) else {
            let names: Vec<&str> = known.iter().map(|subject| subject.0).collect();
            return Err(format!("unknown store {name:?}; there are: {}", names.join(", ")).into());
        };
        if subject.is_built_in() {
            return Ok(subject);
        }
        Err(format!(
            "{name} was not built in: apt-get install librocksdb-dev libleveldb-dev, then \
             cargo run --release -p sheaf-bench --features rocksdb,leveldb -- …"
        )
        .into())
    }

    /// Returns the subject of that name, whether the build includes it or not.
    pub(crate) fn by_name(name: &str) -> Option<BenchSubject> {
        if name.contains(':') {
            return variant::intern(name).ok().map(BenchSubject);
        }
        BenchSubject::own_engines()
            .into_iter()
            .chain(BenchSubject::peers())
            .chain([BenchSubject::NULL])
            .find(|subject| subject.0 == name)
    }

    pub(crate) fn is_built_in(self) -> bool {
        self.peer().is_none_or(|peer| peer.open.is_some())
    }

    /// Returns whether it is an engine of Sheaf with options.
    pub(crate) fn has_options(self) -> bool {
        self.0.contains(':')
    }

    /// Opens or creates its database in the existing directory `dir`.
    pub(crate) fn open(self, dir: &Path, setting: StoreSetting) -> Result<Box<dyn BenchStore>> {
        match self.peer() {
            Some(peer) => match peer.open {
                Some(open) => open(dir, setting),
                None => Err(format!("{} was not built in", peer.name).into()),
            },
            None if self == BenchSubject::NULL => Ok(Box::new(null::NullStore)),
            None => Ok(Box::new(sheaf::SheafStore::open(dir, self.0, setting)?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{ValueGenerator, key};

    #[test]
    fn names_round_trip_and_unknown_ones_are_refused_with_the_list() {
        for subject in BenchSubject::main_peers().into_iter().chain(BenchSubject::own_engines()) {
            assert_eq!(BenchSubject::parse(subject.name()).unwrap(), subject);
        }
        let refusal = BenchSubject::parse("rocks").unwrap_err().to_string();
        assert!(refusal.contains("rocksdb"), "{refusal}");
    }

    #[test]
    fn an_engine_with_options_is_a_subject_that_keeps_its_values_in_its_way() {
        let subject = BenchSubject::parse("delsm:file-bytes=256").unwrap();
        assert_eq!(Some(subject), BenchSubject::by_name("delsm:file-bytes=256"));
        assert_ne!(Some(subject), BenchSubject::by_name("delsm"));
        assert_eq!(subject.title(), "Sheaf delsm (file-bytes=256)");
        assert!(subject.is_ours() && subject.setting().contains("file-bytes=256"));
        let dir = std::env::temp_dir().join(format!("sheaf-bench-variant-{}", std::process::id()));
        let value_files = |subject: BenchSubject| {
            std::fs::create_dir_all(&dir).unwrap();
            let setting = StoreSetting { memory: 64 << 20, ..StoreSetting::BUFFERED };
            let store = subject.open(&dir, setting).unwrap();
            let mut session = store.session().unwrap();
            for index in 0..200u64 {
                session.put(&key(index), ValueGenerator::new().make(index, 0, 1024)).unwrap();
            }
            drop(session);
            store.sync().unwrap();
            store.close().unwrap();
            let count = file_count(&dir);
            std::fs::remove_dir_all(&dir).unwrap();
            count
        };
        assert!(value_files(subject) >= 200);
        assert!(value_files(BenchSubject::parse("delsm").unwrap()) < 100);
    }

    /// Counts the files below a directory.
    fn file_count(dir: &Path) -> usize {
        let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        entries.map(|path| if path.is_dir() { file_count(&path) } else { 1 }).sum()
    }

    #[test]
    fn own_engines_are_those_of_sheaf() {
        assert!(BenchSubject::own_engines().contains(&BenchSubject::FLAT));
        assert!(BenchSubject::own_engines().iter().all(|subject| subject.is_ours()));
    }

    #[test]
    fn reading_a_value_returns_the_pair_index() {
        assert_eq!(read_value(ValueGenerator::new().make(42, 5, 127)), 42);
        assert_eq!(read_value(&[7, 1]), 263);
        assert_eq!(read_value(b""), 0);
    }

    /// Every store of the build keeps its values, also across a close, and scans them in order.
    #[test]
    fn each_store_returns_the_values_that_were_put() {
        let stores =
            BenchSubject::peers().filter(|peer| peer.is_built_in()).chain(BenchSubject::own_engines());
        for subject in stores {
            let name = subject.name();
            let dir = std::env::temp_dir().join(format!("sheaf-bench-test-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&dir).unwrap();
            for durable in [false, true] {
                let setting = StoreSetting { durable, memory: 64 << 20, ..StoreSetting::BUFFERED };
                let store = subject.open(&dir, setting).unwrap();
                let mut session = store.session().unwrap();
                // The second pass finds the pairs of the first: 2500 durable puts would only take
                // time.
                for index in 0..if durable { 0 } else { 2500u64 } {
                    session.load(&key(index), ValueGenerator::new().make(index, 0, 127)).unwrap();
                }
                session.finish().unwrap();
                session.put(&key(1), ValueGenerator::new().make(9, 0, 127)).unwrap();
                session.put(&key(3000), ValueGenerator::new().make(3000, 0, 127)).unwrap();
                session.remove(&key(3000)).unwrap();
                for (index, found) in [(1, Some(9)), (2499, Some(2499)), (2500, None), (3000, None)] {
                    assert_eq!(session.get(&key(index)).unwrap(), found, "{name}");
                }
                if store.is_ordered() {
                    scans(&mut *session, name);
                }
                drop(session);
                store.sync().unwrap();
                store.close().unwrap();
            }
            std::fs::remove_dir_all(&dir).unwrap();
        }
    }

    /// Scans 2500 pairs in both directions, from several keys and over all of them.
    fn scans(session: &mut dyn BenchSession, name: &str) {
        let mut keys: Vec<_> = (0..2500).map(key).collect();
        keys.sort_unstable();
        for (from, limit, way, count) in [
            (&keys[1000][..], 50, ScanDirection::Up, 50),
            (&keys[1000], 50, ScanDirection::Down, 50),
            (&keys[2480], 50, ScanDirection::Up, 20),
            (&keys[19], 50, ScanDirection::Down, 20),
            (b"", u64::MAX, ScanDirection::Up, 2500),
            (b"", u64::MAX, ScanDirection::Down, 2500),
            (b"", 7, ScanDirection::Down, 7),
            (b"zzz", 7, ScanDirection::Up, 0),
            (b"zzz", 7, ScanDirection::Down, 7),
            (b"aaa", 7, ScanDirection::Down, 0),
        ] {
            assert_eq!(session.scan(from, limit, way).unwrap(), count, "{name}: {from:?} {limit} {way:?}");
        }
    }
}
