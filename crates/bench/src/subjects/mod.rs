//! # Subjects: the stores that are measured, behind one trait
//!
//! An adapter is a few dozen lines: open with the fair settings that stand beside its name in
//! [`PEERS`], and a session for each thread with what users of that store keep per thread (LMDB: a
//! read transaction). Engines of ours need no adapter: whatever name [`sheaf::engines`] answers is
//! a subject.
//!
//! ## Rules of fairness
//!
//! 1. A get looks at the value through the cheapest documented call, without a copy where there is
//!    one.
//! 2. A put is acknowledged when it would survive a killed process; a durable one when it would
//!    survive a power cut. A put is a commit of its own, except in `load`.
//! 3. `load` may gather a thousand puts into one transaction, where a put alone would cost a page
//!    write.
//! 4. Between durable points every store is synced each 100 ms: by itself, or by
//!    [`BenchStore::sync`].
//! 5. Every store that has a cache or a memory budget gets [`StoreSetting::memory`].

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::Result;

mod files;
mod null;
mod sheaf;

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

/// Memory budget or cache of every store that has one, if nothing else is said.
pub(crate) const MEMORY: u64 = 2 << 30;
/// How many operations share a transaction where a store has such sharing.
#[cfg(any(feature = "lmdb", feature = "redb"))]
const OPS_PER_TRANSACTION: u32 = 1000;

/// An open store.
pub(crate) trait BenchStore: Send + Sync {
    /// What one thread works with. Made in that thread.
    fn session(&self) -> Result<Box<dyn BenchSession + '_>>;
    /// Puts everything acknowledged on the device.
    fn sync(&self) -> Result<()>;
    /// Whether it syncs by itself every 100 ms.
    fn syncs_itself(&self) -> bool {
        false
    }
    /// Whether a get must find what was put.
    fn keeps_data(&self) -> bool {
        true
    }
    /// Whether it has scans.
    fn is_ordered(&self) -> bool {
        true
    }
    /// Figures that only the store itself can give.
    fn sheaf_figures(&self) -> Option<SheafFigures> {
        None
    }
    /// Closes it in order.
    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// One thread's way into a store.
pub(crate) trait BenchSession {
    /// Reads a value; answers what [`read_value`] saw.
    fn get(&mut self, key: &[u8]) -> Result<Option<u64>>;
    /// Sets a value, as a commit of its own.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()>;
    /// Removes a key, as a commit of its own.
    fn remove(&mut self, key: &[u8]) -> Result<()>;
    /// Looks at the pairs from `from` on, `limit` at most, in key order or against it; answers how
    /// many there were. An empty `from` is the end that the walk starts at.
    fn scan(&mut self, from: &[u8], limit: u64, way: ScanDirection) -> Result<u64>;
    /// Looks at all keys in order, and at no value where the store can do that; answers how many
    /// there were.
    fn keys(&mut self) -> Result<u64> {
        self.scan(b"", u64::MAX, ScanDirection::Up)
    }
    /// Brings what is stored into the order that is best for scans, where the store can be told to;
    /// answers how many pairs it went over, if it says so.
    fn compact(&mut self) -> Result<u64> {
        Ok(1)
    }
    /// Sets a value, perhaps together with others.
    fn load(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.put(key, value)
    }
    /// Commits what `load` gathered.
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Which way a scan goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScanDirection {
    Up,
    Down,
}

/// What Sheaf says of itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct SheafFigures {
    /// Bytes of volatile indexes.
    pub(crate) index_bytes: u64,
    /// Keys in them.
    pub(crate) keys: u64,
    /// Bytes of entries in the store log that something points to.
    pub(crate) live_bytes: u64,
    /// Bytes of the store log's files.
    pub(crate) log_bytes: u64,
    /// Bytes appended by commits since opening.
    pub(crate) appended: u64,
    /// Bytes appended by the cleaner since opening.
    pub(crate) gc_bytes: u64,
    /// Bytes of checkpoints written since opening.
    pub(crate) checkpoint_bytes: u64,
    /// Segments freed since opening.
    pub(crate) freed: u64,
    /// Times a writer was slowed down.
    pub(crate) throttles: u64,
    /// Records replayed at opening.
    pub(crate) replayed: u64,
    /// Frames read at opening.
    pub(crate) scanned: u64,
    /// What the engine counts of its own work.
    #[allow(dead_code, reason = "`run` shows it with the rest")]
    pub(crate) counters: Vec<(&'static str, u64)>,
}

/// How to open a store.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StoreSetting {
    /// Every put survives a power cut when it is acknowledged.
    pub(crate) durable: bool,
    /// Sheaf's bound on disk over live entries.
    pub(crate) space_limit: f64,
    /// Bytes of cache or memory budget.
    pub(crate) memory: u64,
}

impl StoreSetting {
    pub(crate) const BUFFERED: StoreSetting =
        StoreSetting { durable: false, space_limit: 1.6, memory: MEMORY };
    pub(crate) const DURABLE: StoreSetting = StoreSetting { durable: true, ..StoreSetting::BUFFERED };
}

/// Looks at both ends of a value, so that it must have been fetched; answers its first eight bytes
/// (of a shorter value those there are), which are the number of its pair.
pub(crate) fn read_value(value: &[u8]) -> u64 {
    std::hint::black_box(value.last());
    match value.first_chunk() {
        Some(head) => u64::from_le_bytes(*head),
        None => value.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)),
    }
}

type OpenFn = fn(&Path, StoreSetting) -> Result<Box<dyn BenchStore>>;

/// A store that is not ours.
struct PeerStore {
    name: &'static str,
    title: &'static str,
    /// `None` if it was not built in.
    open: Option<OpenFn>,
    /// How it is set, for the report.
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

/// In the order of the tables.
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
        setting: "as RocksDB, values of 512 bytes and more in blob files, blob garbage collection on: stands in \
                  for WiscKey",
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

/// A store that can be asked for, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct BenchSubject(&'static str);

impl BenchSubject {
    /// Does nothing: shows what the harness costs.
    pub(crate) const NULL: BenchSubject = BenchSubject("null");
    pub(crate) const FLAT: BenchSubject = BenchSubject("flat");
    pub(crate) const FLEX: BenchSubject = BenchSubject("flex");
    pub(crate) const CEDRUS: BenchSubject = BenchSubject("cedrus");
    pub(crate) const LMDB: BenchSubject = BenchSubject("lmdb");
    pub(crate) const ROCKSDB: BenchSubject = BenchSubject("rocksdb");
    pub(crate) const LEVELDB: BenchSubject = BenchSubject("leveldb");

    /// Engines of ours.
    pub(crate) fn own_engines() -> Vec<BenchSubject> {
        ::sheaf::engines().into_iter().map(BenchSubject).collect()
    }

    /// All stores we compare with, built in or not.
    pub(crate) fn peers() -> impl Iterator<Item = BenchSubject> {
        PEERS.iter().map(|peer| BenchSubject(peer.name))
    }

    /// The peers of [`figures`](crate::figures) if nobody says which: those built in, without the
    /// variants and without the two whose random writes (22 thousand a second) or fills would take
    /// most of the run.
    pub(crate) fn usual_peers() -> Vec<BenchSubject> {
        let usual = ["lmdb", "rocksdb", "leveldb", "fjall"];
        BenchSubject::peers().filter(|peer| peer.is_built_in() && usual.contains(&peer.0)).collect()
    }

    /// The peers of a comparison if nobody says which: those built in, without the variants.
    pub(crate) fn main_peers() -> Vec<BenchSubject> {
        BenchSubject::peers().filter(|peer| peer.is_built_in() && !peer.0.contains('-')).collect()
    }

    pub(crate) fn name(self) -> &'static str {
        self.0
    }

    /// The name in prose.
    pub(crate) fn title(self) -> String {
        match self.peer() {
            Some(peer) => peer.title.to_owned(),
            None if self == BenchSubject::NULL => "harness alone".to_owned(),
            None => format!("Sheaf {}", self.0),
        }
    }

    /// How it is set, in words.
    pub(crate) fn setting(self) -> &'static str {
        match self.peer() {
            Some(peer) => peer.setting,
            None if self == BenchSubject::NULL => "no store: measures the cost of the harness",
            None => OURS_SETTING,
        }
    }

    pub(crate) fn is_peer(self) -> bool {
        self.peer().is_some()
    }

    pub(crate) fn is_ours(self) -> bool {
        !self.is_peer() && self != BenchSubject::NULL
    }

    /// Whether nobody but the bench syncs it.
    pub(crate) fn is_synced_by_us(self) -> bool {
        self.is_peer()
    }

    fn peer(self) -> Option<&'static PeerStore> {
        PEERS.iter().find(|peer| peer.name == self.0)
    }

    /// The subject of that name, if it was built in.
    pub(crate) fn parse(name: &str) -> Result<BenchSubject> {
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

    /// The subject of that name, built in or not.
    pub(crate) fn by_name(name: &str) -> Option<BenchSubject> {
        BenchSubject::own_engines()
            .into_iter()
            .chain(BenchSubject::peers())
            .chain([BenchSubject::NULL])
            .find(|subject| subject.0 == name)
    }

    pub(crate) fn is_built_in(self) -> bool {
        self.peer().is_none_or(|peer| peer.open.is_some())
    }

    /// Opens or creates its database in directory `dir`, which is there.
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

    /// Every store that was built in keeps what it is given, also over a close, and scans it in
    /// order.
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
                // The durable one finds what the other left: a thousand syncs would only take time.
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

    /// Of 2500 pairs, from the middle and over all, both ways.
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
