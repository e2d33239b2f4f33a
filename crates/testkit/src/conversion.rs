//! # Conversion harness: bulk loads and conversions compared with a map
//!
//! A seed creates a keyspace of one engine and converts it to another engine, with writes of all
//! kinds between the steps. Each result is compared with that of a `BTreeMap`: before, during and
//! after the conversion, after a close and after a kill. Snapshots taken before must still show the
//! old state. Some conversions are cancelled, interrupted by a clear, or by a kill.
//!
//! ## Blind spots
//!
//! Two threads at once (`tests/copies/conversion.rs` has some cases); power cuts and faults (the
//! `Moving` family of the crash explorer, and the fault harness).

use std::collections::BTreeMap;

use sheaf::{BulkLoadOptions, Database, Error, Keyspace, RunningConversion, Snapshot};

use crate::conformance::bytes;
use crate::crash::workload::TestRandom;
use crate::fixture::{DiskKind, Fixture, TestSetting, TestSubject};

/// A run, identified by its parameters.
#[derive(Clone, Copy, Debug)]
pub struct ConversionCase {
    /// Engine before the conversion.
    pub from: &'static str,
    /// Engine after the conversion.
    pub to: &'static str,
    /// Seed of the writes.
    pub seed: u64,
    /// Disk, geometry and threading.
    pub setting: TestSetting,
}

/// End of a conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConversionEnd {
    Done,
    Cancelled,
    Cleared,
    Killed,
}

type ExpectedPairs = BTreeMap<Vec<u8>, Vec<u8>>;

struct ConversionRunner {
    case: ConversionCase,
    fixture: Fixture,
    random: TestRandom,
    db: Option<Database>,
    ks: Option<Keyspace>,
    /// A keyspace that is not converted.
    unconverted_keyspace: Option<Keyspace>,
    maps: [ExpectedPairs; 2],
    value: u64,
}

/// Names of the two keyspaces.
const KEYSPACE_NAMES: [&str; 2] = ["moving", "beside"];

impl ConversionCase {
    /// Executes the run.
    ///
    /// # Panics
    ///
    /// Panics if a result differs from the map.
    pub fn run(self) {
        let fixture = Fixture::new(&TestSubject::by_name(self.from).expect("an engine"), self.setting);
        let random = TestRandom::new(self.seed);
        let mut player = ConversionRunner {
            case: self,
            fixture,
            random,
            db: None,
            ks: None,
            unconverted_keyspace: None,
            maps: Default::default(),
            value: 0,
        };
        player.open();
        player.fill();
        let fate = [
            ConversionEnd::Done,
            ConversionEnd::Done,
            ConversionEnd::Cancelled,
            ConversionEnd::Cleared,
            ConversionEnd::Killed,
        ];
        let fate = fate[usize::try_from(player.random.below(5)).expect("below five")];
        player.convert(fate);
        if player.ks().engine() != self.to {
            player.convert(ConversionEnd::Done);
        }
        (0..60).for_each(|_| player.write());
        player.compare();
        let in_order = player.random.one_in(2);
        player.reopen(in_order);
        player.compare();
        assert_eq!(player.ks().engine(), self.to, "{self:?}");
    }
}

impl ConversionRunner {
    fn db(&self) -> &Database {
        self.db.as_ref().expect("it is open")
    }

    fn ks(&self) -> &Keyspace {
        self.ks.as_ref().expect("it is open")
    }

    /// Opens the database and its keyspaces with their stored engines. Creates missing keyspaces.
    fn open(&mut self) {
        let db = self.fixture.open();
        let open = |name: &str, engine: &str| match db.open_keyspace(name).expect("it is open") {
            Some(ks) => ks,
            None => db.keyspace(name, sheaf::KeyspaceOptions::default().engine(engine)).expect("it is made"),
        };
        self.ks = Some(open(KEYSPACE_NAMES[0], self.case.from));
        self.unconverted_keyspace = Some(open(KEYSPACE_NAMES[1], self.fixture.subject.other_engine));
        self.db = Some(db);
    }

    /// Closes or kills the database, and opens it again.
    fn reopen(&mut self, in_order: bool) {
        (self.ks, self.unconverted_keyspace) = (None, None);
        let db = self.db.take().expect("it is open");
        match in_order {
            true => db.close().expect("it closes"),
            false => {
                self.fixture.kill();
                drop(db);
            }
        }
        self.open();
    }

    fn run_background(&self) {
        self.db().pump().expect("background work");
    }

    fn key(&mut self) -> Vec<u8> {
        match self.random.below(160) {
            0 => Vec::new(),
            1 => vec![0xff; 300],
            n if n % 3 == 0 => format!("k{n:03}").into_bytes(),
            n => format!("user/{n:03}").into_bytes(),
        }
    }

    fn bytes(&mut self) -> Vec<u8> {
        self.value += 1;
        let len = match self.random.below(30) {
            0 => 3_000,
            1 => 1_100,
            2 => 20_000,
            _ => self.random.below(150),
        };
        bytes(usize::try_from(len).expect("small"), self.value)
    }

    /// Fills the keyspace, by writes or by a bulk load.
    fn fill(&mut self) {
        if self.random.one_in(3) {
            let pairs: ExpectedPairs =
                (0..self.random.below(200)).map(|_| (self.key(), self.bytes())).collect();
            let mut loader =
                self.db().bulk_load(KEYSPACE_NAMES[0], BulkLoadOptions::default()).expect("it is empty");
            for (key, value) in &pairs {
                loader.push(key, value).expect("they ascend");
                if let Err(error) = loader.push(key, "again") {
                    assert!(matches!(error, Error::InvalidArgument { argument: "key", .. }), "{error}");
                }
            }
            assert!(self.ks().is_empty().expect("it is open"), "not before the end");
            assert_eq!(loader.finish().expect("it is published").pairs, pairs.len() as u64);
            self.maps[0] = pairs;
        }
        (0..self.random.below(300)).for_each(|_| self.write());
        self.compare();
    }

    /// Executes one write of any kind and checks its effect.
    fn write(&mut self) {
        let (key, value) = (self.key(), self.bytes());
        let (ks, beside) = (self.ks().clone(), self.unconverted_keyspace.clone().expect("it is open"));
        match self.random.below(12) {
            0..5 => {
                ks.insert(&key, &value).expect("a put");
                self.maps[0].insert(key.clone(), value);
            }
            5..7 => {
                ks.remove(&key).expect("a removal");
                self.maps[0].remove(&key);
            }
            7 => {
                let now = self.maps[0].get(&key).cloned();
                let right = !self.random.one_in(3);
                let expected = if right { now.as_deref() } else { Some(&b"something else"[..]) };
                let swapped = ks.compare_and_swap(&key, expected, Some(&value)).expect("a swap");
                assert_eq!(swapped, right);
                if right {
                    self.maps[0].insert(key.clone(), value);
                }
            }
            8 => {
                let other = self.key();
                let mut batch = self.db().batch();
                batch.insert(&ks, &key, &value).insert(&beside, &key, &value).remove(&ks, &other);
                batch.expect_value(&ks, &key, self.maps[0].get(&key).map(|now| &now[..]));
                batch.commit().expect("the expected value is present");
                self.maps[0].insert(key.clone(), value.clone());
                self.maps[1].insert(key.clone(), value);
                self.maps[0].remove(&other);
            }
            9 => {
                let new = ks.update(&key, |old| old.map(|old| [old, b"+"].concat())).expect("an update");
                assert_eq!(new.is_some(), self.maps[0].contains_key(&key));
                self.maps[0].entry(key.clone()).and_modify(|old| old.push(b'+'));
            }
            _ => self.run_background(),
        }
        assert_eq!(ks.get(&key).expect("a get").as_deref(), self.maps[0].get(&key).map(|now| &now[..]));
    }

    fn convert(&mut self, fate: ConversionEnd) {
        let (before, engine) = (self.maps[0].clone(), self.ks().engine());
        let snapshot = self.db().snapshot().expect("a snapshot");
        let mut conversion = self.start_conversion();
        let refused = self.db().begin_conversion(KEYSPACE_NAMES[0], self.case.to);
        assert!(
            matches!(refused, Err(Error::InvalidArgument { argument: "conversion", .. })),
            "one at a time"
        );
        let busy = self.random.below(4);
        for step in 0.. {
            let is_time = self.random.one_in(8);
            if fate != ConversionEnd::Done && is_time && step > 1 {
                return self.interrupt(fate, conversion, (snapshot, before));
            }
            if !conversion.step().expect("a step") {
                break;
            }
            assert_eq!(self.ks().engine(), engine, "until the end");
            // The conversion must end even if the keyspace is busy; without writes it ends sooner.
            (0..if step < 400 { self.random.below(busy * 4 + 1) } else { 0 }).for_each(|_| self.write());
        }
        assert_eq!(self.ks().engine(), self.case.to);
        self.compare();
        compare_snapshot(&snapshot, &before);
        (0..20).for_each(|_| self.run_background());
        compare_snapshot(&snapshot, &before);
    }

    fn start_conversion(&self) -> RunningConversion {
        let begun = self.db().begin_conversion(KEYSPACE_NAMES[0], self.case.to).expect("it begins");
        begun.expect("it is another engine")
    }

    fn interrupt(
        &mut self,
        fate: ConversionEnd,
        mut conversion: RunningConversion,
        (snapshot, before): (Snapshot, ExpectedPairs),
    ) {
        let engine = self.ks().engine();
        match fate {
            ConversionEnd::Cleared => {
                self.ks().clear().expect("a clear");
                self.maps[0].clear();
                assert!(matches!(conversion.step(), Err(Error::KeyspaceNotFound { .. })));
                drop(conversion);
                self.write();
                compare_snapshot(&snapshot, &before);
            }
            ConversionEnd::Killed => {
                self.fixture.kill();
                drop((conversion, snapshot));
                self.reopen(false);
            }
            ConversionEnd::Cancelled | ConversionEnd::Done => {
                drop(conversion);
                compare_snapshot(&snapshot, &before);
            }
        }
        assert_eq!(self.ks().engine(), engine);
        self.compare();
    }

    /// Compares the whole content, through each read call.
    fn compare(&mut self) {
        let both = [self.ks().clone(), self.unconverted_keyspace.clone().expect("it is open")];
        for (ks, map) in both.iter().zip(&self.maps) {
            let case = self.case;
            let mut pairs: Vec<(Vec<u8>, Vec<u8>)> = ks
                .iter()
                .expect("an iterator")
                .map(|pair| pair.map(|(key, value)| (key.to_vec(), value.to_vec())).expect("a pair"))
                .collect();
            let is_ordered = ks.capabilities().expect("it is open").ordered;
            assert!(!is_ordered || pairs.is_sorted(), "{case:?}");
            pairs.sort();
            let lost = map.keys().find(|key| !pairs.iter().any(|(other, _)| other == *key));
            assert!(
                pairs.iter().map(|(k, v)| (k, v)).eq(map),
                "{case:?}: {} pairs, not {}; lost {lost:?}",
                pairs.len(),
                map.len()
            );
            assert_eq!(ks.len().expect("a length"), map.len() as u64, "{case:?}");
            for (key, value) in map {
                assert_eq!(ks.get(key).expect("a get").as_deref(), Some(&value[..]), "{case:?}");
            }
            let range = ks.range("k".."l").map(Iterator::count);
            match is_ordered {
                true => assert_eq!(range.expect("a range"), map.range(b"k".to_vec()..b"l".to_vec()).count()),
                false => assert!(matches!(range, Err(Error::Unsupported { .. })), "{case:?}"),
            }
        }
    }
}

fn compare_snapshot(snapshot: &Snapshot, map: &ExpectedPairs) {
    let ks = snapshot.keyspace(KEYSPACE_NAMES[0]).expect("it was there");
    let mut pairs: ExpectedPairs = ExpectedPairs::new();
    for pair in ks.iter().expect("an iterator") {
        let (key, value) = pair.expect("a pair");
        assert_eq!(ks.get(&key).expect("a get").as_deref(), Some(&value[..]));
        assert!(pairs.insert(key.to_vec(), value.to_vec()).is_none(), "once");
    }
    let keys = |of: &ExpectedPairs, without: &ExpectedPairs| -> Vec<String> {
        let other = of.iter().filter(|(key, value)| without.get(*key) != Some(value));
        other.map(|(key, _)| key.escape_ascii().to_string()).take(9).collect()
    };
    let (lost, added) = (keys(map, &pairs), keys(&pairs, map));
    assert!(pairs == *map, "the snapshot at {} lacks {lost:?} and has {added:?}", snapshot.seq());
}

/// Returns pairs in key order, as a bulk load requires.
#[must_use]
pub fn sorted_pairs(count: u64) -> Vec<(Vec<u8>, Vec<u8>)> {
    let value = |n: u64| bytes(usize::try_from(n * 7 % 300).expect("small"), n);
    (0..count).map(|n| (format!("key{n:06}").into_bytes(), value(n))).collect()
}

/// Returns a fixture for this engine, tiny and without threads.
#[must_use]
pub fn fixture_of(engine: &str) -> Fixture {
    let setting = TestSetting::new(DiskKind::Simulated, true, true);
    Fixture::new(&TestSubject::by_name(engine).expect("an engine"), setting)
}
