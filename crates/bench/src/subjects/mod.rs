//! # Subjects: the stores that are measured, behind one trait
//!
//! An adapter is a few dozen lines: open with the fair settings of docs/bench.md, and a session for
//! each thread with what users of that store keep per thread (LMDB: a read transaction).
//!
//! ## Rules of fairness
//!
//! 1. A get looks at the value through the cheapest documented call, without a copy where there is one.
//! 2. A put is acknowledged when it would survive a killed process; a durable one when it would survive a
//!    power cut. A put is a commit of its own, except in `load`.
//! 3. `load` may gather a thousand puts into one transaction, where a put alone would cost a page write.
//! 4. Between durable points every store is synced each 100 ms: by itself, or by [`Store::sync`].

use std::path::Path;

use crate::Result;

mod null;
mod sheaf;

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

/// Memory budget or cache of every store that has one.
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
    /// Sets a value, perhaps together with others.
    fn load(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.put(key, value)
    }
    /// Commits what `load` gathered.
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

/// What Sheaf says of itself.
#[derive(Clone, Copy, Debug, Default)]
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
}

/// How to open a store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    /// Every put survives a power cut when it is acknowledged.
    pub(crate) durable: bool,
    /// Sheaf's bound on disk over live entries.
    pub(crate) space_limit: f64,
}

impl Setting {
    pub(crate) const BUFFERED: Setting = Setting { durable: false, space_limit: 1.6 };
    pub(crate) const DURABLE: Setting = Setting { durable: true, space_limit: 1.6 };
}

/// Looks at both ends of a value, so that it must have been fetched; answers its first eight bytes,
/// which are the number of its pair.
pub(crate) fn look(value: &[u8]) -> u64 {
    std::hint::black_box(value.last());
    value.first_chunk().map_or(u64::MAX, |head| u64::from_le_bytes(*head))
}

/// A store that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Subject {
    /// Does nothing: shows what the harness costs.
    Null,
    /// Ours, with the engine `flat`.
    Flat,
    /// LMDB, through heed.
    Lmdb,
    /// RocksDB, the system's library.
    Rocksdb,
    /// LevelDB, the system's library.
    Leveldb,
    /// fjall.
    Fjall,
    /// redb.
    Redb,
}

impl Subject {
    /// The stores we compare with, in the order of the tables.
    pub(crate) const PEERS: [Subject; 5] =
        [Subject::Lmdb, Subject::Rocksdb, Subject::Leveldb, Subject::Fjall, Subject::Redb];

    /// Those that are measured if nobody says which: all that were built in but redb, whose random
    /// writes (22 thousand a second) would take most of the run.
    pub(crate) fn usual_peers() -> Vec<Subject> {
        Subject::PEERS.into_iter().filter(|peer| peer.is_built_in() && *peer != Subject::Redb).collect()
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Subject::Null => "null",
            Subject::Flat => "flat",
            Subject::Lmdb => "lmdb",
            Subject::Rocksdb => "rocksdb",
            Subject::Leveldb => "leveldb",
            Subject::Fjall => "fjall",
            Subject::Redb => "redb",
        }
    }

    /// The name in prose.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Subject::Null => "harness alone",
            Subject::Flat => "Sheaf flat",
            Subject::Lmdb => "LMDB",
            Subject::Rocksdb => "RocksDB",
            Subject::Leveldb => "LevelDB",
            Subject::Fjall => "fjall",
            Subject::Redb => "redb",
        }
    }

    /// The subject of that name, if it was built in.
    pub(crate) fn parse(name: &str) -> Result<Subject> {
        let every = [Subject::Null, Subject::Flat].into_iter().chain(Subject::PEERS);
        let known: Vec<&str> = every.clone().map(Subject::name).collect();
        let subject = every
            .into_iter()
            .find(|subject| subject.name() == name)
            .ok_or_else(|| format!("unknown store {name:?}; there are: {}", known.join(", ")))?;
        if subject.is_built_in() {
            return Ok(subject);
        }
        Err(format!(
            "{name} was not built in: apt-get install librocksdb-dev libleveldb-dev, then \
             cargo run --release -p sheaf-bench --features rocksdb,leveldb -- …"
        )
        .into())
    }

    fn is_built_in(self) -> bool {
        match self {
            Subject::Null | Subject::Flat => true,
            Subject::Lmdb => cfg!(feature = "lmdb"),
            Subject::Rocksdb => cfg!(feature = "rocksdb"),
            Subject::Leveldb => cfg!(feature = "leveldb"),
            Subject::Fjall => cfg!(feature = "fjall"),
            Subject::Redb => cfg!(feature = "redb"),
        }
    }

    /// Opens or creates its database in directory `dir`, which is there.
    pub(crate) fn open(self, dir: &Path, setting: Setting) -> Result<Box<dyn Store>> {
        match self {
            Subject::Null => Ok(Box::new(null::Null)),
            Subject::Flat => Ok(Box::new(sheaf::Sheaf::open(dir, "flat", setting)?)),
            #[cfg(feature = "lmdb")]
            Subject::Lmdb => Ok(Box::new(lmdb::Lmdb::open(dir, setting)?)),
            #[cfg(feature = "rocksdb")]
            Subject::Rocksdb => Ok(Box::new(rocksdb::Rocksdb::open(dir, setting)?)),
            #[cfg(feature = "leveldb")]
            Subject::Leveldb => Ok(Box::new(leveldb::Leveldb::open(dir, setting)?)),
            #[cfg(feature = "fjall")]
            Subject::Fjall => Ok(Box::new(fjall::Fjall::open(dir, setting)?)),
            #[cfg(feature = "redb")]
            Subject::Redb => Ok(Box::new(redb::Redb::open(dir, setting)?)),
            #[allow(unreachable_patterns, reason = "reached when a feature is off")]
            absent => Err(format!("{} was not built in", absent.name()).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_unknown_ones_are_refused_with_the_list() {
        for subject in Subject::usual_peers() {
            assert_eq!(Subject::parse(subject.name()).unwrap(), subject);
        }
        let refusal = Subject::parse("rocks").unwrap_err().to_string();
        assert!(refusal.contains("rocksdb"), "{refusal}");
    }

    #[test]
    fn a_look_answers_the_number_of_the_pair() {
        assert_eq!(look(crate::keys::Values::new().make(42, 5, 127)), 42);
        assert_eq!(look(b"short"), u64::MAX);
    }

    /// Every peer that was built in keeps what it is given, also over a close.
    #[test]
    fn each_peer_gives_back_what_it_was_given() {
        for peer in Subject::PEERS.into_iter().filter(|peer| peer.is_built_in()) {
            let dir =
                std::env::temp_dir().join(format!("sheaf-bench-test-{}-{}", peer.name(), std::process::id()));
            std::fs::create_dir_all(&dir).unwrap();
            for durable in [false, true] {
                let store = peer.open(&dir, Setting { durable, space_limit: 1.6 }).unwrap();
                let mut session = store.session().unwrap();
                for index in 0..2500u64 {
                    session
                        .load(&crate::keys::key(index), crate::keys::Values::new().make(index, 0, 127))
                        .unwrap();
                }
                session.finish().unwrap();
                session.put(&crate::keys::key(1), crate::keys::Values::new().make(9, 0, 127)).unwrap();
                assert_eq!(session.get(&crate::keys::key(1)).unwrap(), Some(9), "{}", peer.name());
                assert_eq!(session.get(&crate::keys::key(2499)).unwrap(), Some(2499), "{}", peer.name());
                assert_eq!(session.get(&crate::keys::key(2500)).unwrap(), None, "{}", peer.name());
                drop(session);
                store.sync().unwrap();
                store.close().unwrap();
            }
            std::fs::remove_dir_all(&dir).unwrap();
        }
    }
}
