//! Guarantees of the simulated disk, and the losses that it must produce.

mod random_steps;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

fn p(path: &str) -> &Path {
    Path::new(path)
}

/// Creates a file with `bytes`. Its name and content are durable.
fn durable(disk: &SimDisk, path: &str, bytes: &[u8]) -> Arc<dyn File> {
    let file = disk.open(p(path), OpenMode::Create).unwrap();
    file.write_at(0, bytes).unwrap();
    file.sync().unwrap();
    disk.sync_dir(p(path).parent().unwrap()).unwrap();
    assert!(disk.pending().is_empty());
    file
}

fn read(disk: &SimDisk, path: &str) -> Option<Vec<u8>> {
    disk.read_file(p(path)).ok()
}

/// Returns the possible contents of a file after a power cut now, for all subsets of pending units.
fn outcomes(disk: &SimDisk, path: &str) -> BTreeSet<Option<Vec<u8>>> {
    let keeps = disk.pending().keeps(12, 0, 0);
    keeps.iter().map(|keep| read(&disk.power_cut(keep), path)).collect()
}

fn errno<T>(answer: io::Result<T>) -> Option<i32> {
    answer.map(drop).unwrap_err().raw_os_error()
}

fn kind<T>(answer: io::Result<T>) -> io::ErrorKind {
    answer.map(drop).unwrap_err().kind()
}

/// Returns sectors, each filled with one byte of `fill`.
fn sectors(fill: &[u8]) -> Vec<u8> {
    fill.iter().flat_map(|&byte| [byte; 512]).collect()
}

#[test]
fn synced_bytes_survive_and_unsynced_may_not() {
    let disk = SimDisk::new();
    let file = durable(&disk, "/a", b"old");
    file.write_at(0, b"new").unwrap();
    assert_eq!(read(&disk, "/a").unwrap(), b"new");
    let expected = [Some(b"old".to_vec()), Some(b"new".to_vec())];
    assert_eq!(outcomes(&disk, "/a"), BTreeSet::from(expected));
    file.sync().unwrap();
    assert_eq!(outcomes(&disk, "/a"), BTreeSet::from([Some(b"new".to_vec())]));
}

#[test]
fn every_subset_of_sectors_can_survive() {
    let disk = SimDisk::new();
    let file = durable(&disk, "/a", &sectors(b"abc"));
    file.write_at(0, &sectors(b"ABC")).unwrap();
    assert_eq!(disk.pending().len(), 3);
    let expected = ["abc", "abC", "aBc", "aBC", "Abc", "AbC", "ABc", "ABC"];
    let expected = expected.map(|fill| Some(sectors(fill.as_bytes())));
    assert_eq!(outcomes(&disk, "/a"), BTreeSet::from(expected));
}

#[test]
fn length_and_data_are_independent() {
    let disk = SimDisk::new();
    let file = durable(&disk, "/a", b"");
    file.write_at(0, b"xy").unwrap();
    let expected = [vec![], vec![0, 0], b"xy".to_vec()].map(Some);
    assert_eq!(outcomes(&disk, "/a"), BTreeSet::from(expected));
}

#[test]
fn length_is_one_that_some_prefix_had() {
    let disk = SimDisk::new();
    let file = durable(&disk, "/a", b"0123");
    file.write_at(4, b"45").unwrap();
    file.set_len(2).unwrap();
    file.set_len(8).unwrap();
    let lens = outcomes(&disk, "/a").into_iter().map(|bytes| bytes.unwrap().len());
    assert_eq!(lens.collect::<BTreeSet<_>>(), BTreeSet::from([4, 6, 2, 8]));
}

#[test]
fn cut_bytes_never_come_back_once_the_cut_is_durable() {
    let disk = SimDisk::new();
    let file = durable(&disk, "/a", &sectors(b"ab"));
    file.set_len(0).unwrap();
    file.set_len(1024).unwrap();
    for outcome in outcomes(&disk, "/a") {
        let bytes = outcome.unwrap();
        assert!(bytes.is_empty() || bytes == sectors(b"ab") || bytes == sectors(b"\0\0"));
    }
    file.sync().unwrap();
    let zeros = Some(sectors(b"\0\0"));
    assert_eq!(outcomes(&disk, "/a"), BTreeSet::from([zeros]));
}

#[test]
fn unsynced_bytes_that_were_cut_away_may_survive_with_the_old_length() {
    let disk = SimDisk::new();
    let file = durable(&disk, "/a", &sectors(b"ab"));
    file.write_at(512, &sectors(b"B")).unwrap();
    file.set_len(512).unwrap();
    let expected = ["ab", "aB", "a"].map(|fill| Some(sectors(fill.as_bytes())));
    assert_eq!(outcomes(&disk, "/a"), BTreeSet::from(expected));
}

#[test]
fn name_without_data_is_an_empty_file() {
    let disk = SimDisk::new();
    let file = disk.open(p("/a"), OpenMode::Create).unwrap();
    file.write_at(0, b"x").unwrap();
    disk.sync_dir(p("/")).unwrap();
    assert_eq!(read(&disk.power_cut(&KeepChoice::None), "/a").unwrap(), b"");
}

#[test]
fn data_without_name_is_gone() {
    let disk = SimDisk::new();
    let file = disk.open(p("/a"), OpenMode::Create).unwrap();
    file.write_at(0, b"x").unwrap();
    file.sync().unwrap();
    let expected = [None, Some(b"x".to_vec())];
    assert_eq!(outcomes(&disk, "/a"), BTreeSet::from(expected));
}

#[test]
fn new_directory_needs_a_sync_of_its_parent() {
    let disk = SimDisk::new();
    disk.create_dir(p("/db")).unwrap();
    let file = disk.open(p("/db/a"), OpenMode::Create).unwrap();
    file.sync().unwrap();
    disk.sync_dir(p("/db")).unwrap();
    assert!(disk.power_cut(&KeepChoice::None).files().is_empty());
    disk.sync_dir(p("/")).unwrap();
    assert_eq!(disk.power_cut(&KeepChoice::None).files(), [(PathBuf::from("/db/a"), 0)]);
}

#[test]
fn rename_is_kept_or_lost_whole() {
    let disk = SimDisk::new();
    durable(&disk, "/root", b"old");
    durable(&disk, "/tmp", b"new");
    disk.rename(p("/tmp"), p("/root")).unwrap();
    let seen = |keep: &KeepChoice| {
        let image = disk.power_cut(keep);
        (read(&image, "/root").unwrap(), read(&image, "/tmp"))
    };
    assert_eq!(seen(&KeepChoice::None), (b"old".to_vec(), Some(b"new".to_vec())));
    assert_eq!(seen(&KeepChoice::All), (b"new".to_vec(), None));
    disk.sync_dir(p("/")).unwrap();
    assert_eq!(seen(&KeepChoice::None), (b"new".to_vec(), None));
}

#[test]
fn file_renamed_into_a_synced_directory_is_not_in_the_old_one() {
    let disk = SimDisk::new();
    disk.create_dir(p("/d")).unwrap();
    disk.sync_dir(p("/")).unwrap();
    disk.open(p("/d/a"), OpenMode::Create).unwrap();
    disk.rename(p("/d/a"), p("/a")).unwrap();
    disk.sync_dir(p("/")).unwrap();
    assert_eq!(disk.power_cut(&KeepChoice::All).files(), [(PathBuf::from("/a"), 0)]);
    assert_eq!(disk.power_cut(&KeepChoice::None).files(), [(PathBuf::from("/a"), 0)]);
}

#[test]
fn removed_file_may_come_back_until_its_directory_is_synced() {
    let disk = SimDisk::new();
    let file = durable(&disk, "/a", b"x");
    disk.remove(p("/a")).unwrap();
    let mut buf = [0];
    file.read_at(0, &mut buf).unwrap();
    assert_eq!(&buf, b"x");
    assert_eq!(outcomes(&disk, "/a"), BTreeSet::from([None, Some(b"x".to_vec())]));
    disk.sync_dir(p("/")).unwrap();
    assert_eq!(outcomes(&disk, "/a"), BTreeSet::from([None]));
    file.write_at(0, b"y").unwrap();
    file.sync().unwrap();
}

/// Returns a disk and its file `/a`. Its four sectors were synced as `abcd`, and a sync of `ABCD`
/// failed.
fn after_failed_sync(seed: u64, after: AfterFailedSync) -> (SimDisk, Arc<dyn File>) {
    let disk = SimDisk::with_seed(seed);
    disk.set_after_failed_sync(after);
    let file = durable(&disk, "/a", &sectors(b"abcd"));
    file.write_at(0, &sectors(b"ABCD")).unwrap();
    disk.set_faults(Fault::new(CallClass::Sync, FaultKind::Io));
    assert_eq!(errno(file.sync()), Some(libc::EIO));
    assert_eq!(disk.injected(), 1);
    (disk, file)
}

#[test]
fn failed_sync_drops_pages_and_a_later_sync_says_ok() {
    let mut platters = BTreeSet::new();
    for seed in 0..64 {
        let (disk, file) = after_failed_sync(seed, AfterFailedSync::ShowsNew);
        assert!(disk.pending().is_empty(), "the kernel takes it for clean");
        file.sync().unwrap();
        assert_eq!(read(&disk, "/a").unwrap(), sectors(b"ABCD"));
        let reopened = disk.kill();
        assert_eq!(read(&reopened, "/a").unwrap(), sectors(b"ABCD"));
        let again = reopened.open(p("/a"), OpenMode::ReadWrite).unwrap();
        again.sync().unwrap();
        platters.insert(read(&reopened.power_cut(&KeepChoice::All), "/a").unwrap());
    }
    assert!(platters.contains(&sectors(b"abcd")) && platters.contains(&sectors(b"ABCD")));
    assert_eq!(platters.len(), 16, "any subset");
}

#[test]
fn failed_sync_shows_the_platter_where_the_file_system_does() {
    for seed in 0..8 {
        let (disk, _file) = after_failed_sync(seed, AfterFailedSync::ShowsOld);
        let shown = read(&disk, "/a").unwrap();
        assert_eq!(shown, read(&disk.power_cut(&KeepChoice::All), "/a").unwrap());
    }
}

#[test]
fn rewriting_identical_bytes_saves_what_a_failed_sync_dropped() {
    for seed in 0..8 {
        let (disk, file) = after_failed_sync(seed, AfterFailedSync::ShowsNew);
        file.write_at(0, &sectors(b"AB")).unwrap();
        file.sync().unwrap();
        let platter = read(&disk.power_cut(&KeepChoice::None), "/a").unwrap();
        assert_eq!(platter[..1024], sectors(b"AB"));
    }
}

#[test]
fn sync_after_a_failed_one_saves_only_what_was_written_again() {
    for seed in 0..32 {
        let (disk, file) = after_failed_sync(seed, AfterFailedSync::ShowsNew);
        let before = read(&disk.power_cut(&KeepChoice::None), "/a").unwrap();
        file.write_at(1536, &sectors(b"x")).unwrap();
        file.sync().unwrap();
        let after = read(&disk.power_cut(&KeepChoice::None), "/a").unwrap();
        assert_eq!(before[..1536], after[..1536]);
        assert_eq!(after[1536..], sectors(b"x"));
    }
}

#[test]
fn failed_sync_may_drop_the_length() {
    let mut lens = BTreeSet::new();
    for seed in 0..16 {
        let disk = SimDisk::with_seed(seed);
        let file = durable(&disk, "/a", b"");
        file.write_at(0, b"xy").unwrap();
        disk.set_faults(Fault::new(CallClass::Sync, FaultKind::NoSpace));
        assert_eq!(kind(file.sync()), io::ErrorKind::StorageFull);
        file.sync().unwrap();
        assert_eq!(file.len().unwrap(), 2);
        lens.insert(read(&disk.power_cut(&KeepChoice::All), "/a").unwrap().len());
    }
    assert_eq!(lens, BTreeSet::from([0, 2]));
}

#[test]
fn failed_sync_of_a_directory_drops_names() {
    let mut survivors = BTreeSet::new();
    for seed in 0..16 {
        let disk = SimDisk::with_seed(seed);
        disk.open(p("/a"), OpenMode::Create).unwrap();
        disk.open(p("/b"), OpenMode::Create).unwrap();
        disk.set_faults(Fault::new(CallClass::SyncDir, FaultKind::Io));
        assert_eq!(errno(disk.sync_dir(p("/"))), Some(libc::EIO));
        disk.sync_dir(p("/")).unwrap();
        assert_eq!(disk.files().len(), 2);
        survivors.insert(disk.power_cut(&KeepChoice::All).files());
    }
    assert_eq!(survivors.len(), 4);
}

#[test]
fn torn_write_leaves_the_first_sectors_in_the_cache() {
    let disk = SimDisk::new();
    let file = durable(&disk, "/a", &sectors(b"abc"));
    disk.set_faults(Fault::new(CallClass::Write, FaultKind::Torn { sectors: 2 }).nth(2));
    file.write_at(0, b"1").unwrap();
    assert_eq!(errno(file.write_at(100, &sectors(b"XYZ"))), Some(libc::EIO));
    let mut expected = sectors(b"aXc");
    expected[0] = b'1';
    expected[100..512].fill(b'X');
    expected[512..612].fill(b'X');
    expected[612..1024].fill(b'Y');
    assert_eq!(read(&disk, "/a").unwrap(), expected);
    assert_eq!(disk.injected(), 1);
}

#[test]
fn full_disk_refuses_new_blocks_only() {
    let disk = SimDisk::new();
    disk.set_capacity(4 * 4096 + 100);
    let file = durable(&disk, "/a", &[1; 4096]);
    assert_eq!(disk.free_space(p("/")).unwrap(), 3 * 4096);
    file.allocate(3 * 4096).unwrap();
    file.sync().unwrap();
    assert_eq!(disk.free_space(p("/")).unwrap(), 4096);
    assert_eq!(kind(file.allocate(5 * 4096)), io::ErrorKind::StorageFull);
    let other = durable(&disk, "/b", b"last block");
    assert_eq!(kind(other.write_at(4000, &[2; 200])), io::ErrorKind::StorageFull);
    assert_eq!(other.len().unwrap(), 4096, "the part that fits is written");
    file.write_at(4096, &[3; 8192]).unwrap();
    other.write_at(0, b"LAST").unwrap();
    disk.remove(p("/b")).unwrap();
    assert_eq!(disk.free_space(p("/")).unwrap(), 0, "still open");
    drop(other);
    assert_eq!(disk.free_space(p("/")).unwrap(), 4096);
    file.set_len(1).unwrap();
    assert_eq!(disk.free_space(p("/")).unwrap(), 3 * 4096);
}

#[test]
fn reservation_survives_only_if_synced() {
    let disk = SimDisk::new();
    disk.set_capacity(4 * 4096);
    let file = durable(&disk, "/a", b"");
    file.allocate(2 * 4096).unwrap();
    assert_eq!(disk.power_cut(&KeepChoice::None).free_space(p("/")).unwrap(), 4 * 4096);
    assert_eq!(disk.power_cut(&KeepChoice::All).free_space(p("/")).unwrap(), 2 * 4096);
    file.sync().unwrap();
    assert_eq!(disk.power_cut(&KeepChoice::None).free_space(p("/")).unwrap(), 2 * 4096);
}

#[test]
fn nth_open_runs_out_of_descriptors() {
    let disk = SimDisk::new();
    durable(&disk, "/db1", b"");
    disk.set_faults(Fault::new(CallClass::Open, FaultKind::TooManyOpen).on("db").nth(2));
    assert!(disk.open(p("/db1"), OpenMode::Read).is_ok());
    assert_eq!(errno(disk.open(p("/db1"), OpenMode::Read)), Some(libc::EMFILE));
    assert!(disk.open(p("/db1"), OpenMode::Read).is_ok());
}

#[test]
fn faults_reach_every_class_and_change_nothing() {
    let disk = SimDisk::new();
    disk.create_dir(p("/d")).unwrap();
    disk.sync_dir(p("/")).unwrap();
    let file = durable(&disk, "/d/a", b"x");
    let before = disk.hash();
    disk.set_faults(Fault::new(CallClass::Any, FaultKind::Io).forever());
    let mut buf = [0];
    assert!(file.read_at(0, &mut buf).is_err());
    assert!(file.write_at(0, b"y").is_err());
    assert!(file.set_len(0).is_err());
    assert!(file.allocate(9).is_err());
    assert!(disk.open(p("/d/a"), OpenMode::Read).is_err());
    assert!(disk.open(p("/d/b"), OpenMode::Create).is_err());
    assert!(disk.create_dir(p("/d/c")).is_err());
    assert!(disk.remove(p("/d/a")).is_err());
    assert!(disk.remove_dir(p("/d")).is_err());
    assert!(disk.rename(p("/d/a"), p("/d/b")).is_err());
    assert!(disk.list(p("/d")).is_err());
    assert!(disk.lock(p("/d/LOCK"), LockMode::Exclusive).is_err());
    assert!(file.sync().is_err());
    assert!(disk.sync_dir(p("/d")).is_err());
    assert_eq!(disk.injected(), 14);
    disk.set_faults(FaultPlan::default());
    assert!(disk.pending().is_empty());
    assert_eq!((disk.hash(), read(&disk, "/d/a").unwrap()), (before, b"x".to_vec()));
}

#[test]
fn injected_panic_leaves_the_disk_usable() {
    let disk = SimDisk::new();
    let file = durable(&disk, "/a", b"x");
    disk.set_faults(Fault::new(CallClass::Write, FaultKind::Panic));
    assert!(catch_unwind(AssertUnwindSafe(|| file.write_at(0, b"y"))).is_err());
    assert_eq!(read(&disk, "/a").unwrap(), b"x");
    file.write_at(0, b"z").unwrap();
}

#[test]
fn power_cut_after_a_reopen_in_the_same_boot_still_loses() {
    let disk = SimDisk::new();
    let file = durable(&disk, "/a", b"old");
    file.write_at(0, b"new").unwrap();
    let next = disk.kill();
    assert_eq!(read(&next, "/a").unwrap(), b"new");
    assert_eq!(read(&next.power_cut(&KeepChoice::None), "/a").unwrap(), b"old");
    next.open(p("/a"), OpenMode::ReadWrite).unwrap().sync().unwrap();
    assert_eq!(read(&next.power_cut(&KeepChoice::None), "/a").unwrap(), b"new");
}

#[test]
fn forks_do_not_see_each_other() {
    let disk = SimDisk::new();
    let file = durable(&disk, "/a", b"1");
    file.write_at(0, b"2").unwrap();
    let fork = disk.fork();
    assert_eq!(fork.pending().len(), disk.pending().len());
    let other = fork.open(p("/a"), OpenMode::ReadWrite).unwrap();
    other.write_at(0, b"3").unwrap();
    fork.open(p("/b"), OpenMode::Create).unwrap();
    file.write_at(1, b"4").unwrap();
    assert_eq!(read(&disk, "/a").unwrap(), b"24");
    assert_eq!(read(&fork, "/a").unwrap(), b"3");
    assert_eq!((disk.files().len(), fork.files().len()), (1, 2));
    assert_eq!(read(&disk.clone(), "/a"), read(&disk, "/a"));
}

#[test]
fn killed_process_frees_the_lock_and_unnamed_files() {
    let disk = SimDisk::new();
    disk.set_capacity(10 * 4096);
    let held = disk.lock(p("/LOCK"), LockMode::Exclusive).unwrap();
    assert!(matches!(held, LockOutcome::Acquired(_)));
    let file = disk.open(p("/a"), OpenMode::Create).unwrap();
    file.write_at(0, &[1; 4096]).unwrap();
    disk.remove(p("/a")).unwrap();
    assert!(matches!(disk.lock(p("/LOCK"), LockMode::Shared).unwrap(), LockOutcome::Busy(Some(OWNER_PID))));
    let next = disk.kill();
    assert_eq!(next.free_space(p("/")).unwrap(), 10 * 4096);
    assert!(matches!(next.lock(p("/LOCK"), LockMode::Exclusive).unwrap(), LockOutcome::Acquired(_)));
}

#[test]
fn locks_exclude_as_flock_does() {
    let disk = SimDisk::new();
    assert_eq!(kind(disk.lock(p("/L"), LockMode::Shared)), io::ErrorKind::NotFound);
    drop(disk.lock(p("/L"), LockMode::Exclusive).unwrap());
    let one = disk.lock(p("/L"), LockMode::Shared).unwrap();
    let two = disk.lock(p("/L"), LockMode::Shared).unwrap();
    assert!(matches!(disk.lock(p("/L"), LockMode::Exclusive).unwrap(), LockOutcome::Busy(None)));
    drop(one);
    assert!(matches!(disk.lock(p("/L"), LockMode::Exclusive).unwrap(), LockOutcome::Busy(None)));
    drop(two);
    assert!(matches!(disk.lock(p("/L"), LockMode::Exclusive).unwrap(), LockOutcome::Acquired(_)));
    assert_eq!(disk.ops(), 1, "only the creation changed the disk");
}

#[test]
fn operations_are_counted_logged_and_hooked() {
    let disk = SimDisk::new();
    disk.log_ops(true);
    let seen = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&seen);
    disk.set_hook(Some(Arc::new(move |disk: &SimDisk| {
        assert_eq!(disk.fork().ops(), disk.ops());
        count.fetch_add(1, Ordering::Relaxed);
    })));
    let file = disk.open(p("/a"), OpenMode::Create).unwrap();
    disk.set_faults(Fault::new(CallClass::Write, FaultKind::Io).nth(2));
    file.append_at(0, b"xyz").unwrap();
    assert!(file.write_at(3, b"!").is_err());
    file.len().unwrap();
    file.read_at(0, &mut [0; 3]).unwrap();
    file.sync().unwrap();
    let expected = ["#1 /a: create", "#2 /a: write 3 at 0", "#3 /a: write 1 at 3 !Io", "#4 /a: sync"];
    assert_eq!(disk.op_log(), expected);
    assert_eq!((disk.ops(), seen.load(Ordering::Relaxed)), (4, 4));
    assert_eq!(disk.pending().describe(&KeepChoice::None), "✗ #1 /a: create\n");
}

#[test]
fn names_obey_the_rules() {
    let disk = SimDisk::new();
    disk.create_dir(p("/d")).unwrap();
    assert_eq!(kind(disk.create_dir(p("/d"))), io::ErrorKind::AlreadyExists);
    assert_eq!(kind(disk.create_dir(p("/x/y"))), io::ErrorKind::NotFound);
    let file = disk.open(p("d/a"), OpenMode::Create).unwrap();
    assert_eq!(kind(disk.open(p("/d/a"), OpenMode::Create)), io::ErrorKind::AlreadyExists);
    assert_eq!(kind(disk.open(p("/d"), OpenMode::Read)), io::ErrorKind::IsADirectory);
    assert_eq!(kind(disk.open(p("/d/a/b"), OpenMode::Read)), io::ErrorKind::NotADirectory);
    assert_eq!(kind(disk.remove_dir(p("/d"))), io::ErrorKind::DirectoryNotEmpty);
    assert_eq!(kind(disk.remove(p("/d"))), io::ErrorKind::IsADirectory);
    let reader = disk.open(p("/d/../d/./a"), OpenMode::Read).unwrap();
    assert!(reader.write_at(0, b"x").is_err());
    file.write_at(0, b"x").unwrap();
    assert_eq!(kind(reader.read_at(0, &mut [0; 2])), io::ErrorKind::UnexpectedEof);
    let entry = |name: &str, is_dir| DirEntry { name: name.into(), is_dir };
    disk.open(p("/b"), OpenMode::Create).unwrap();
    assert_eq!(disk.list(p("/")).unwrap(), [entry("b", false), entry("d", true)]);
    disk.remove(p("/d/a")).unwrap();
    disk.remove_dir(p("/d")).unwrap();
    assert_eq!(disk.list(p("/")).unwrap(), [entry("b", false)]);
}

#[test]
fn damage_reaches_cache_and_platter() {
    let disk = SimDisk::new();
    durable(&disk, "/a", b"abc");
    let before = disk.hash();
    disk.overwrite(p("/a"), 1, b"X").unwrap();
    assert_ne!(disk.hash(), before);
    disk.copy_file(p("/a"), p("/b")).unwrap();
    disk.truncate_file(p("/a"), 2).unwrap();
    disk.put_file(p("/c"), b"new").unwrap();
    for image in [disk.clone(), disk.power_cut(&KeepChoice::None)] {
        assert_eq!(read(&image, "/a").unwrap(), b"aX");
        assert_eq!(read(&image, "/b").unwrap(), b"aXc");
        assert_eq!(read(&image, "/c").unwrap(), b"new");
    }
    disk.remove_file(p("/b")).unwrap();
    assert_eq!(disk.power_cut(&KeepChoice::None).files().len(), 2);
    assert!(disk.pending().is_empty());
}

#[test]
fn zeros_ahead_are_written_on_request_only() {
    let disk = SimDisk::new();
    let file = durable(&disk, "/a", &sectors(b"ab"));
    file.make_resident(512, 1024);
    assert_eq!(read(&disk, "/a").unwrap(), sectors(b"ab"));
    disk.set_zeroes_ahead(true);
    file.make_resident(512, 1024);
    assert_eq!(read(&disk, "/a").unwrap(), sectors(b"a\0"));
}

#[test]
fn paranoid_cuts_show_older_versions_tears_odd_lengths_and_garbage() {
    let disk = SimDisk::new();
    disk.set_paranoid(true);
    let file = durable(&disk, "/a", &sectors(b"a"));
    file.write_at(0, &sectors(b"b")).unwrap();
    file.write_at(0, &sectors(b"c")).unwrap();
    file.write_at(1024, &sectors(b"d")).unwrap();
    let seeds = (0..400).map(|seed| KeepChoice::Seeded { seed, percent: 50 });
    let seen: Vec<_> = seeds.map(|keep| read(&disk.power_cut(&keep), "/a").unwrap()).collect();
    let any = |holds: &dyn Fn(&[u8]) -> bool| seen.iter().any(|bytes| holds(bytes));
    assert!(any(&|bytes| bytes.starts_with(&sectors(b"b"))), "an older version");
    assert!(any(&|bytes| bytes.len() >= 512 && bytes[0] != bytes[511]), "a tear");
    assert!(any(&|bytes| bytes.len() == 1024), "a length that never was");
    let is_garbage = |byte: &u8| !b"\0abcd".contains(byte);
    assert!(any(&|bytes| bytes.iter().any(is_garbage)), "garbage");
    file.sync().unwrap();
    assert_eq!(outcomes(&disk, "/a").len(), 1);
}

#[test]
fn no_paranoid_cut_makes_a_file_shorter_than_it_ever_was() {
    let disk = SimDisk::new();
    disk.set_paranoid(true);
    let file = durable(&disk, "/a", &[b'x'; 1573]);
    sheaf_platform::disk::set_len_dirty(&*file, 1573).unwrap();
    let seeds = (0..100).map(|seed| KeepChoice::Seeded { seed, percent: 50 });
    let lengths: BTreeSet<_> = seeds.map(|keep| read(&disk.power_cut(&keep), "/a").unwrap().len()).collect();
    assert_eq!(lengths, BTreeSet::from([1573, 2048, 2560]));
}

#[test]
fn paranoid_rename_across_directories_may_be_half_way() {
    let disk = SimDisk::new();
    disk.set_paranoid(true);
    disk.create_dir(p("/d")).unwrap();
    disk.sync_dir(p("/")).unwrap();
    durable(&disk, "/a", b"x");
    disk.rename(p("/a"), p("/d/a")).unwrap();
    let cut = |seed| disk.power_cut(&KeepChoice::Seeded { seed, percent: 100 });
    let seen = |image: SimDisk| (read(&image, "/a").is_some(), read(&image, "/d/a").is_some());
    let seen: BTreeSet<_> = (0..40).map(|seed| seen(cut(seed))).collect();
    assert_eq!(seen, BTreeSet::from([(false, true), (false, false), (true, true)]));
}

#[test]
fn equal_images_hash_alike_whatever_their_history() {
    let disk = SimDisk::new();
    durable(&disk, "/a", &sectors(b"ab"));
    let other = SimDisk::new();
    let file = durable(&other, "/a", &sectors(b"xx"));
    assert_ne!(disk.hash(), other.hash());
    file.write_at(0, &sectors(b"ab")).unwrap();
    assert_ne!(disk.hash(), other.hash());
    assert_eq!(disk.hash(), other.power_cut(&KeepChoice::All).hash());
    assert_ne!(disk.hash(), other.power_cut(&KeepChoice::Only(0)).hash());
}

/// Prints how many crash images of a small database can be made, opened and read per second.
#[test]
#[ignore = "a measurement"]
fn measure_crash_images() {
    use sheaf_platform::clock::{Clock, SystemClock};
    let disk = SimDisk::new();
    let file = durable(&disk, "/log", &vec![7; 1 << 20]);
    for n in 0..20 {
        file.write_at(n * 50_000, &[9; 700]).unwrap();
    }
    let mut read = vec![0; 64 * 1024];
    let (start, rounds) = (SystemClock.now(), 20_000);
    let mut hashes = 0;
    for seed in 0..rounds {
        let image = disk.power_cut(&KeepChoice::Seeded { seed, percent: 50 });
        hashes ^= image.hash();
        let file = image.open(p("/log"), OpenMode::ReadWrite).unwrap();
        file.read_at(0, &mut read).unwrap();
        file.write_at(0, b"recovered").unwrap();
        file.sync().unwrap();
    }
    let took = SystemClock.now() - start;
    println!("{:.0} images/s ({hashes:x})", f64::from(20_000) / took.as_secs_f64());
}

#[test]
fn a_dropped_page_cache_counts_reads_of_the_device_and_refuses_them_in_the_cached_mode() {
    use sheaf_platform::disk::cached_reads::read_cached;

    let disk = SimDisk::new();
    let file = durable(&disk, "/a", &[7; 20_000]);
    let mut bytes = [0; 10];
    let mut read = |offset| file.read_at(offset, &mut bytes);
    read(0).unwrap();
    assert_eq!(disk.device_reads(), 0);
    disk.drop_page_cache();
    assert!(read_cached(|| read(0)).is_none());
    assert_eq!(disk.device_reads(), 0);
    read(4090).unwrap(); // two blocks
    assert_eq!(disk.device_reads(), 1);
    assert!(read_cached(|| read(0)).is_some() && read_cached(|| read(8000)).is_some());
    assert!(read_cached(|| read(12_000)).is_none());
    file.write_at(12_000, &[1; 500]).unwrap();
    assert!(read_cached(|| read(12_000)).is_some());
    assert_eq!(disk.device_reads(), 1);
}
