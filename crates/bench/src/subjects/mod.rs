//! # Subjects: the stores that are measured, behind one trait
//!
//! An adapter is a few dozen lines: open with the fair settings that stand beside its name in [`PEERS`],
//! and a session for each thread with what users of that store keep per thread (LMDB: a read
//! transaction). Engines of ours need no adapter: whatever name [`sheaf::engines`] answers is a subject.
//!
//! ## Rules of fairness
//!
//! 1. A get looks at the value through the cheapest documented call, without a copy where there is one.
//! 2. A put is acknowledged when it would survive a killed process; a durable one when it would survive a
//!    power cut. A put is a commit of its own, except in `load`.
//! 3. `load` may gather a thousand puts into one transaction, where a put alone would cost a page write.
//! 4. Between durable points every store is synced each 100 ms: by itself, or by [`Store::sync`].
//! 5. Every store that has a cache or a memory budget gets [`Setting::memory`].

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::Result;

mod files;
mod null;
mod sheaf;

#[cfg(any(feature = "leveldb", feature = "rocksdb"))]
mod c_shape;
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
const TRANSACTION: u32 = 1000;

/// An open store.
pub(crate) trait Store: Send + Sync {
    /// What one thread works with. Made in that thread.
    fn session(&self) -> Result<Box<dyn Session + '_>>;
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
    fn inner(&self) -> Option<Inner> {
        None
    }
    /// Closes it in order.
    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// One thread's way into a store.
pub(crate) trait Session {
    /// Reads a value; answers what [`look`] saw.
    fn get(&mut self, key: &[u8]) -> Result<Option<u64>>;
    /// Sets a value, as a commit of its own.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()>;
    /// Removes a key, as a commit of its own.
    fn remove(&mut self, key: &[u8]) -> Result<()>;
    /// Looks at the pairs from `from` on, `limit` at most, in key order or against it; answers how many
    /// there were. An empty `from` is the end that the walk starts at.
    fn scan(&mut self, from: &[u8], limit: u64, way: Way) -> Result<u64>;
    /// Looks at all keys in order, and at no value where the store can do that; answers how many there were.
    fn keys(&mut self) -> Result<u64> {
        self.scan(b"", u64::MAX, Way::Up)
    }
    /// Brings what is stored into the order that is best for scans, where the store can be told to; answers how many pairs
    /// it went over, if it says so.
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
pub(crate) enum Way {
    Up,
    Down,
}

/// What Sheaf says of itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inner {
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
    pub(crate) moved: u64,
    /// Bytes of checkpoints written since opening.
    pub(crate) checkpoint_bytes: u64,
    /// Segments freed since opening.
    pub(crate) freed: u64,
    /// Times a writer was slowed down.
    pub(crate) brakes: u64,
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
pub(crate) struct Setting {
    /// Every put survives a power cut when it is acknowledged.
    pub(crate) durable: bool,
    /// Sheaf's bound on disk over live entries.
    pub(crate) space_limit: f64,
    /// Bytes of cache or memory budget.
    pub(crate) memory: u64,
}

impl Setting {
    pub(crate) const BUFFERED: Setting = Setting { durable: false, space_limit: 1.6, memory: MEMORY };
    pub(crate) const DURABLE: Setting = Setting { durable: true, ..Setting::BUFFERED };
}

/// Looks at both ends of a value, so that it must have been fetched; answers its first eight bytes (of
/// a shorter value those there are), which are the number of its pair.
pub(crate) fn look(value: &[u8]) -> u64 {
    std::hint::black_box(value.last());
    match value.first_chunk() {
        Some(head) => u64::from_le_bytes(*head),
        None => value.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)),
    }
}

type Open = fn(&Path, Setting) -> Result<Box<dyn Store>>;

/// A store that is not ours.
struct Peer {
    name: &'static str,
    title: &'static str,
    /// `None` if it was not built in.
    open: Option<Open>,
    /// How it is set, for the report.
    setting: &'static str,
}

macro_rules! opener {
    ($name:ident $feature:literal $open:expr) => {
        #[cfg(feature = $feature)]
        const $name: Option<Open> = Some($open);
        #[cfg(not(feature = $feature))]
        const $name: Option<Open> = None;
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
const PLAIN_FILES: Option<Open> = Some(|dir, setting| Ok(Box::new(files::Files::open(dir, setting)?)));

/// In the order of the tables.
static PEERS: [Peer; 9] = [
    Peer {
        name: "lmdb",
        title: "LMDB",
        open: LMDB,
        setting: "memory map; a read transaction serves 1000 gets; a put is a transaction with NO_SYNC (1000 \
                  puts in fills), synced by mdb_env_sync; no readahead if data is beyond the budget; durable: LMDB's \
                  default",
    },
    Peer {
        name: "rocksdb",
        title: "RocksDB",
        open: ROCKSDB,
        setting: "bloom filters of 10 bits, block cache of the memory budget, hash index in data blocks, 64 MiB \
                  write buffers, pinned gets, log to the kernel at each put, synced by FlushWAL(sync); durable: \
                  sync = true",
    },
    Peer {
        name: "rocksdb-blob",
        title: "RocksDB blobs",
        open: ROCKSDB_BLOB,
        setting: "as RocksDB, values of 512 bytes and more in blob files, blob garbage collection on: stands in \
                  for WiscKey",
    },
    Peer {
        name: "leveldb",
        title: "LevelDB",
        open: LEVELDB,
        setting: "bloom filters of 10 bits, block cache of the memory budget, 64 MiB write buffer, log to the \
                  kernel at each put, synced by an empty batch with sync; durable: sync = true",
    },
    Peer {
        name: "fjall",
        title: "fjall",
        open: FJALL,
        setting: "cache of the memory budget, else its defaults; synced by persist(SyncData); durable: that \
                  after each put",
    },
    Peer {
        name: "fjall-kv",
        title: "fjall separated",
        open: FJALL_KV,
        setting: "as fjall, with its key-value separation from 512 bytes on: replaces WiscKey",
    },
    Peer {
        name: "redb",
        title: "redb",
        open: REDB,
        setting: "cache of the memory budget; a read transaction serves 1000 gets; a put is a transaction with \
                  Durability::None (1000 puts in fills), which does not survive a killed process; synced by an \
                  empty immediate commit; durable: Immediate",
    },
    Peer {
        name: "sled",
        title: "sled",
        open: SLED,
        setting: "cache of the memory budget, background flusher off; a put may sit in its own buffer, which does \
                  not survive a killed process; synced by flush and fdatasync (its flush alone leaves the device's cache \
                  full); durable: both after each put",
    },
    Peer {
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
pub(crate) struct Subject(&'static str);

impl Subject {
    /// Does nothing: shows what the harness costs.
    pub(crate) const NULL: Subject = Subject("null");
    pub(crate) const FLAT: Subject = Subject("flat");
    pub(crate) const FLEX: Subject = Subject("flex");
    pub(crate) const CEDRUS: Subject = Subject("cedrus");
    pub(crate) const LMDB: Subject = Subject("lmdb");
    pub(crate) const ROCKSDB: Subject = Subject("rocksdb");
    pub(crate) const LEVELDB: Subject = Subject("leveldb");

    /// Engines of ours.
    pub(crate) fn ours() -> Vec<Subject> {
        ::sheaf::engines().into_iter().map(Subject).collect()
    }

    /// All stores we compare with, built in or not.
    pub(crate) fn peers() -> impl Iterator<Item = Subject> {
        PEERS.iter().map(|peer| Subject(peer.name))
    }

    /// The peers of [`figures`](crate::figures) if nobody says which: those built in, without the
    /// variants and without the two whose random writes (22 thousand a second) or fills would take most
    /// of the run.
    pub(crate) fn usual_peers() -> Vec<Subject> {
        let usual = ["lmdb", "rocksdb", "leveldb", "fjall"];
        Subject::peers().filter(|peer| peer.is_built_in() && usual.contains(&peer.0)).collect()
    }

    /// The peers of a comparison if nobody says which: those built in, without the variants.
    pub(crate) fn main_peers() -> Vec<Subject> {
        Subject::peers().filter(|peer| peer.is_built_in() && !peer.0.contains('-')).collect()
    }

    pub(crate) fn name(self) -> &'static str {
        self.0
    }

    /// The name in prose.
    pub(crate) fn title(self) -> String {
        match self.peer() {
            Some(peer) => peer.title.to_owned(),
            None if self == Subject::NULL => "harness alone".to_owned(),
            None => format!("Sheaf {}", self.0),
        }
    }

    /// How it is set, in words.
    pub(crate) fn setting(self) -> &'static str {
        match self.peer() {
            Some(peer) => peer.setting,
            None if self == Subject::NULL => "no store: measures the cost of the harness",
            None => OURS_SETTING,
        }
    }

    pub(crate) fn is_peer(self) -> bool {
        self.peer().is_some()
    }

    pub(crate) fn is_ours(self) -> bool {
        !self.is_peer() && self != Subject::NULL
    }

    /// Whether nobody but the bench syncs it.
    pub(crate) fn is_synced_by_us(self) -> bool {
        self.is_peer()
    }

    fn peer(self) -> Option<&'static Peer> {
        PEERS.iter().find(|peer| peer.name == self.0)
    }

    /// The subject of that name, if it was built in.
    pub(crate) fn parse(name: &str) -> Result<Subject> {
        let known: Vec<Subject> =
            [Subject::NULL].into_iter().chain(Subject::ours()).chain(Subject::peers()).collect();
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
    pub(crate) fn known(name: &str) -> Option<Subject> {
        Subject::ours()
            .into_iter()
            .chain(Subject::peers())
            .chain([Subject::NULL])
            .find(|subject| subject.0 == name)
    }

    pub(crate) fn is_built_in(self) -> bool {
        self.peer().is_none_or(|peer| peer.open.is_some())
    }

    /// Opens or creates its database in directory `dir`, which is there.
    pub(crate) fn open(self, dir: &Path, setting: Setting) -> Result<Box<dyn Store>> {
        match self.peer() {
            Some(peer) => match peer.open {
                Some(open) => open(dir, setting),
                None => Err(format!("{} was not built in", peer.name).into()),
            },
            None if self == Subject::NULL => Ok(Box::new(null::Null)),
            None => Ok(Box::new(sheaf::Sheaf::open(dir, self.0, setting)?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{Values, key};

    #[test]
    fn names_round_trip_and_unknown_ones_are_refused_with_the_list() {
        for subject in Subject::main_peers().into_iter().chain(Subject::ours()) {
            assert_eq!(Subject::parse(subject.name()).unwrap(), subject);
        }
        let refusal = Subject::parse("rocks").unwrap_err().to_string();
        assert!(refusal.contains("rocksdb"), "{refusal}");
    }

    #[test]
    fn our_engines_come_from_the_facade() {
        assert!(Subject::ours().contains(&Subject::FLAT));
        assert!(Subject::ours().iter().all(|subject| subject.is_ours()));
    }

    #[test]
    fn a_look_answers_the_number_of_the_pair() {
        assert_eq!(look(Values::new().make(42, 5, 127)), 42);
        assert_eq!(look(&[7, 1]), 263);
        assert_eq!(look(b""), 0);
    }

    /// Every store that was built in keeps what it is given, also over a close, and scans it in order.
    #[test]
    fn each_store_gives_back_what_it_was_given() {
        let stores = Subject::peers().filter(|peer| peer.is_built_in()).chain(Subject::ours());
        for subject in stores {
            let name = subject.name();
            let dir = std::env::temp_dir().join(format!("sheaf-bench-test-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&dir).unwrap();
            for durable in [false, true] {
                let setting = Setting { durable, memory: 64 << 20, ..Setting::BUFFERED };
                let store = subject.open(&dir, setting).unwrap();
                let mut session = store.session().unwrap();
                // The durable one finds what the other left: a thousand syncs would only take time.
                for index in 0..if durable { 0 } else { 2500u64 } {
                    session.load(&key(index), Values::new().make(index, 0, 127)).unwrap();
                }
                session.finish().unwrap();
                session.put(&key(1), Values::new().make(9, 0, 127)).unwrap();
                session.put(&key(3000), Values::new().make(3000, 0, 127)).unwrap();
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
    fn scans(session: &mut dyn Session, name: &str) {
        let mut keys: Vec<_> = (0..2500).map(key).collect();
        keys.sort_unstable();
        for (from, limit, way, count) in [
            (&keys[1000][..], 50, Way::Up, 50),
            (&keys[1000], 50, Way::Down, 50),
            (&keys[2480], 50, Way::Up, 20),
            (&keys[19], 50, Way::Down, 20),
            (b"", u64::MAX, Way::Up, 2500),
            (b"", u64::MAX, Way::Down, 2500),
            (b"", 7, Way::Down, 7),
            (b"zzz", 7, Way::Up, 0),
            (b"zzz", 7, Way::Down, 7),
            (b"aaa", 7, Way::Down, 0),
        ] {
            assert_eq!(session.scan(from, limit, way).unwrap(), count, "{name}: {from:?} {limit} {way:?}");
        }
    }
}
