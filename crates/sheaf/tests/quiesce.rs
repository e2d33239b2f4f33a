//! Files and mappings that remain after a database is closed or idle.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sheaf::{Database, KeyspaceOptions};
use sheaf_platform::sync::epoch;

/// Maximum number of waits for the guards of all threads, and the limit of one wait.
const MAX_ROUNDS: u32 = 20;
const GUARD_LIMIT: Duration = Duration::from_secs(60);

struct TestDir(PathBuf);

impl TestDir {
    fn new(name: &str) -> TestDir {
        TestDir(std::env::temp_dir().join(format!("sheaf-rest-{name}-{}", std::process::id())))
    }
}

impl Drop for TestDir {
    #[allow(clippy::disallowed_methods, reason = "removes its own directory")]
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the number of mappings of files below `dir` in this process.
#[allow(clippy::disallowed_methods, reason = "reads /proc of this process")]
fn mappings(dir: &Path) -> usize {
    let all = std::fs::read_to_string("/proc/self/maps").expect("the kernel says");
    all.lines().filter(|line| line.contains(&*dir.to_string_lossy())).count()
}

/// Returns the files of the engines, in the directory `own`.
#[allow(clippy::disallowed_methods, reason = "lists the files of the database")]
fn engine_files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir.join("own")).into_iter().flatten();
    entries.map(|entry| entry.expect("it is read").path()).collect()
}

#[test]
fn a_closed_database_has_no_file_mapped() {
    for engine in sheaf::engines() {
        let place = TestDir::new(engine);
        let db = Database::builder().memory(8 << 20).open(&place.0).expect("it opens");
        let all = db.keyspace("all", KeyspaceOptions::default().engine(engine)).expect("it is made");
        for number in 0..30_000_u64 {
            all.insert(number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes(), [7; 100])
                .expect("it is put");
        }
        assert!(mappings(&place.0) > 0);
        drop(all);
        db.close().expect("it closes");
        // Threads of the other tests may have held guards when the mappings were given up.
        let rounds = (0..MAX_ROUNDS).take_while(|_| mappings(&place.0) > 0);
        rounds.for_each(|_| assert!(epoch::wait_for_guards(GUARD_LIMIT), "a guard is held for ever"));
        assert_eq!(mappings(&place.0), 0, "{engine}");
    }
}

#[test]
fn a_kreon_keyspace_of_a_few_keys_survives_a_reopen_without_a_file() {
    let place = TestDir::new("few");
    let open = || Database::open(&place.0).expect("it opens");
    let few =
        |db: &Database| db.keyspace("few", KeyspaceOptions::default().engine("kreon")).expect("it is made");
    let db = open();
    for number in 0..10_u8 {
        few(&db).insert([number], [number; 30]).expect("it is put");
    }
    few(&db).remove([3]).expect("it is removed");
    db.close().expect("it closes");
    for round in 1..4 {
        let db = open();
        let all = few(&db);
        let keys: Vec<u8> =
            all.keys().expect("it is ordered").map(|key| key.expect("it is read")[0]).collect();
        let expected: Vec<u8> =
            (0..10).filter(|number| *number != 3 && !(1..round).contains(number)).collect();
        assert_eq!(keys, expected);
        assert_eq!(all.get([9]).expect("it is read").as_deref(), Some(&[8 + round; 30][..]));
        all.remove([round]).expect("it is removed");
        if round == 3 {
            all.remove([4]).expect("it is removed");
        }
        all.insert([9], [9 + round; 30]).expect("it is put");
        db.verify(|error| panic!("{error}")).expect("it is read");
        drop(all);
        db.close().expect("it closes");
        assert_eq!(engine_files(&place.0), Vec::<PathBuf>::new());
    }
}

/// Commits large batches to new databases while another thread calls `quiesce` repeatedly. A large
/// commit changes the size of new segments, and `quiesce` removes preallocated segments that exceed
/// the present size.
#[test]
fn a_large_batch_during_quiesce_ends_and_creates_few_segments() {
    const DATABASES: u32 = 10;
    const BATCHES: u32 = 2;
    const MOST_BYTES: u64 = 256 << 20;
    for _ in 0..DATABASES {
        let place = TestDir::new("batch");
        let db = Database::open(&place.0).expect("it opens");
        let keyspace = db.keyspace("pairs", KeyspaceOptions::default()).expect("it can be made");
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let rests = scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    db.quiesce().expect("it is open");
                    let taken: u64 = db.stats().logs.iter().map(|log| log.disk_bytes).sum();
                    assert!(taken < MOST_BYTES, "{taken} bytes of segments");
                }
            });
            for round in 0..BATCHES {
                let mut batch = db.batch();
                for key in 0..40_000u32 {
                    batch.insert(&keyspace, key.to_be_bytes(), [round.to_le_bytes(); 16].as_flattened());
                }
                batch.commit().expect("it finds room");
            }
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            rests.join().expect("it ends");
        });
        drop(keyspace);
        db.close().expect("it closes");
    }
}
