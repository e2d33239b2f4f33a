//! An opening by several threads has the same result as an opening by one thread: state, commit
//! numbers, figures and reports of damage.
//!
//! Blind spots: a machine with one core uses one thread in both openings. The order in which
//! threads run is that of the operating system; the model of the replay explores others.

#![expect(clippy::unwrap_used, reason = "a test's own steps work")]

use std::path::PathBuf;
use std::sync::Arc;

use sheaf::{Database, Durability, Error, Keyspace, KeyspaceOptions};
use sheaf_sim::SimDisk;
use sheaf_testkit::crash::workload::{CONVERSION_ENGINES, TestRandom};

/// Commits of a database.
const COMMITS: u64 = 500;
const KEYS: u64 = 60;
/// Numbers of the keyspaces of `flex` and `delsm`.
const JOURNAL_KEYSPACES: [usize; 4] = [4, 5, 10, 11];

fn builder(sim: &SimDisk) -> sheaf::Builder {
    Database::builder().disk(Arc::new(sim.clone())).tiny(true).inline(true).memory(64 << 20)
}

/// Returns the disk of a killed database with two keyspaces of each engine, and one that was
/// dropped. Without checkpoints an opening replays all records; with some, those behind the last.
fn killed_database(random: &mut TestRandom, checkpoints: bool) -> SimDisk {
    let sim = SimDisk::with_seed(random.next());
    let db = builder(&sim).checkpoints(checkpoints).open("/db").unwrap();
    let keyspaces: Vec<Keyspace> = (0..2 * CONVERSION_ENGINES.len())
        .map(|n| {
            let options = KeyspaceOptions::default().engine(CONVERSION_ENGINES[n / 2]);
            db.keyspace(&format!("k{n}"), options).unwrap()
        })
        .collect();
    let dropped = db.keyspace("dropped", KeyspaceOptions::default().engine("flex")).unwrap();
    for commit in 0..COMMITS {
        let mut batch = db.batch();
        for _ in 0..=random.below(6) {
            // At least half of the operations change the two engines of the journal.
            let keyspace = match random.one_in(2) {
                true => &keyspaces[JOURNAL_KEYSPACES[random.index_below(JOURNAL_KEYSPACES.len())]],
                false => &keyspaces[random.index_below(keyspaces.len())],
            };
            // A few keys are changed often, so that their records are in all segments.
            let most = if random.one_in(3) { 3 } else { KEYS };
            let key = format!("key{}", random.below(most));
            // The largest values are blobs.
            let len = if random.one_in(20) { 2_000 } else { random.index_below(150) };
            match random.one_in(4) {
                true => batch.remove(keyspace, key),
                false => batch.insert(keyspace, key, vec![commit.to_le_bytes()[0]; len]),
            };
        }
        batch.commit().unwrap();
        if commit == COMMITS / 2 {
            dropped.insert("key", "value").unwrap();
            assert!(db.drop_keyspace("dropped").unwrap());
        }
        if random.one_in(25) {
            db.pump().unwrap();
        }
    }
    let mut batch = db.batch();
    batch.durability(Durability::Sync).insert(&keyspaces[0], "last", "durable");
    batch.commit().unwrap();
    sim.kill()
}

/// Returns everything that an opening of the disk shows, or its error. `inline` means one thread.
fn shown_by_opening(sim: &SimDisk, inline: bool) -> Result<Vec<String>, Error> {
    let db = builder(&sim.fork()).inline(inline).read_only(true).open("/db")?;
    let stats = db.stats();
    let mut all = vec![
        format!("visible {}, durable {}", stats.visible_seq, stats.durable_seq),
        format!("replayed {} of {}", stats.opening.records_replayed, stats.opening.frames_scanned),
        format!("discarded {}", stats.opening.discarded_bytes),
    ];
    for info in db.keyspaces() {
        let pairs = || -> Result<String, Error> {
            let Some(keyspace) = db.open_keyspace(&info.name)? else { return Ok("missing".to_owned()) };
            let mut pairs = Vec::new();
            for pair in keyspace.iter()? {
                let (key, value) = pair?;
                pairs.push((key.to_vec(), value.to_vec()));
            }
            pairs.sort();
            Ok(format!("{} keys: {pairs:?}", keyspace.len()?))
        };
        all.push(format!("{}: {:?}", info.name, pairs()));
    }
    if !all.iter().any(|shown| shown.contains("Corrupt")) {
        all.push(format!("{:?}", stats.logs)); // a damaged log has no meaningful figures
    }
    Ok(all)
}

fn check_same(sim: &SimDisk, context: &str) -> bool {
    let [one, several] = [true, false].map(|inline| format!("{:?}", shown_by_opening(sim, inline)));
    assert!(one == several, "{context}\n one thread: {one}\n several:    {several}");
    one.contains("Corrupt")
}

#[test]
fn several_threads_open_a_killed_database_as_one_does() {
    for seed in 0..24 {
        let mut random = TestRandom::new(seed);
        let sim = killed_database(&mut random, seed % 4 == 3);
        assert!(!check_same(&sim, &format!("seed {seed}")));
        // And both can be written to: the next commit has the same number.
        let next = [true, false].map(|inline| {
            let db = builder(&sim.fork()).inline(inline).open("/db").unwrap();
            db.open_keyspace("k4").unwrap().unwrap().insert("next", "value").unwrap();
            db.stats().visible_seq
        });
        assert_eq!(next[0], next[1], "seed {seed}");
    }
}

#[test]
fn several_threads_report_the_damage_that_one_reports() {
    let mut damaged = 0;
    for seed in 100..106 {
        let mut random = TestRandom::new(seed);
        let sim = killed_database(&mut random, false);
        let segments: Vec<(PathBuf, u64)> = sim
            .files()
            .into_iter()
            .filter(|(path, _)| path.extension().is_some_and(|e| e == "seg"))
            .collect();
        for _ in 0..60 {
            let sim = sim.fork();
            // Two damages, so that the first one must be reported.
            let mut context = format!("seed {seed}");
            for _ in 0..2 {
                let (path, len) = &segments[random.index_below(segments.len())];
                let at = random.below(*len);
                sim.overwrite(path, at, &random.next().to_le_bytes()[..1]).unwrap();
                context += &format!(", {} at {at}", path.display());
            }
            damaged += u32::from(check_same(&sim, &context));
        }
    }
    assert!(damaged > 30, "only {damaged} of 360 openings found damage");
}
