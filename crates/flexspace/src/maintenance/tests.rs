//! Tests of maintenance: with concurrent views, and on a full disk.

use std::fmt;
use std::io;
use std::path::Path;

use sheaf_platform::disk::{DirEntry, Disk, File, LockMode, LockOutcome, OpenMode};
use sheaf_platform::sync::Mutex;
use sheaf_sim::{CallClass, Fault, FaultKind, FaultPlan, KeepChoice, SimDisk};

use super::*;
use crate::{FlexSpace, SpaceOptions};

type Hook = Box<dyn FnOnce() + Send>;

/// Disk that runs a hook once, while the directory of checkpoints is synced.
struct HookDisk {
    disk: SimDisk,
    hook: Mutex<Option<Hook>>,
}

impl fmt::Debug for HookDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HookDisk").finish_non_exhaustive()
    }
}

impl Disk for HookDisk {
    fn open(&self, path: &Path, open_mode: OpenMode) -> io::Result<Arc<dyn File>> {
        self.disk.open(path, open_mode)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.disk.list(dir)
    }
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.create_dir(dir)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }
    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.remove_dir(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.link(from, to)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let deed = if dir.ends_with(TREE_DIR) { self.hook.lock().take() } else { None };
        if let Some(deed) = deed {
            deed();
        }
        self.disk.sync_dir(dir)
    }
    fn lock(&self, path: &Path, share: LockMode) -> io::Result<LockOutcome> {
        self.disk.lock(path, share)
    }
    fn lock_existing(&self, path: &Path, share: LockMode) -> io::Result<LockOutcome> {
        self.disk.lock_existing(path, share)
    }
    fn free_space(&self, path: &Path) -> io::Result<u64> {
        self.disk.free_space(path)
    }
}

fn open(disk: Arc<dyn Disk>) -> FlexSpace {
    let options = SpaceOptions { inline: true, tiny: true, ..SpaceOptions::default() };
    FlexSpace::open_on(disk, "/space", options).unwrap()
}

fn content(space: &FlexSpace) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(space.len()).unwrap()];
    assert_eq!(space.read(0, &mut bytes).unwrap(), bytes.len());
    bytes
}

/// The version from which a checkpoint is written may also be a reader's. Its segments must not be
/// reused while the checkpoint is made durable, when the checkpoint no longer needs the index.
#[test]
fn a_view_stays_while_the_checkpoint_of_its_state_ends() {
    let disk = Arc::new(HookDisk { disk: SimDisk::new(), hook: Mutex::new(None) });
    let space = Arc::new(open(Arc::clone(&disk) as Arc<dyn Disk>));
    space.insert(0, &[1; 9000]).unwrap();
    let view = space.view();
    let writer = Arc::clone(&space);
    *disk.hook.lock() = Some(Box::new(move || {
        for n in 2..12 {
            writer.write(0, &[n; 9000]).unwrap();
            writer.shared().release().unwrap();
        }
    }));
    space.checkpoint().unwrap();
    assert!(disk.hook.lock().is_none(), "the hook has run");
    let mut bytes = vec![0; 9000];
    view.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 1), "the view changed");
    drop(view);
    assert!(space.shared().release().unwrap() > 0, "without the view its segments are free");
}

/// Dead segments that a reader pins cause neither syncs nor more collection: neither would free
/// them.
#[test]
fn held_segments_cost_no_syncs() {
    let space = open(Arc::new(SimDisk::new()));
    space.insert(0, &[1; 90_000]).unwrap();
    let view = space.view();
    space.write(0, &[2; 90_000]).unwrap();
    space.maintain().unwrap();
    let before = space.stats();
    assert!(before.dead_segments > 10, "{before:?}");
    for n in 0..50 {
        space.write(0, &[n; 10]).unwrap();
        space.maintain_busy().unwrap();
    }
    let after = space.stats();
    assert!(after.syncs - before.syncs <= 3, "{before:?} {after:?}");
    assert_eq!(after.moved_bytes, before.moved_bytes);
    drop(view);
    assert!(space.shared().release().unwrap() >= before.dead_segments);
}

/// Segments that are written and die after a view was taken are reused while the view exists.
#[test]
fn segments_written_after_a_view_are_reused() {
    let space = open(Arc::new(SimDisk::new()));
    space.insert(0, &[0; 90_000]).unwrap();
    let view = space.view();
    let mut used = Vec::new();
    for n in 1..40 {
        space.write(0, &[n; 90_000]).unwrap();
        space.shared().release().unwrap();
        let stats = space.stats();
        used.push(stats.segments - stats.free_segments);
    }
    assert!(used[38] <= used[4], "it grows: {used:?}");
    let mut bytes = vec![1; 90_000];
    view.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0), "the view changed");
}

/// Returns a space with a spare segment and a log that is long relative to its index. The index has
/// stopped changing.
fn space_with_long_log(disk: &SimDisk) -> FlexSpace {
    let space = open(Arc::new(disk.clone()));
    space.insert(0, &[1; 900]).unwrap();
    space.checkpoint().unwrap();
    for n in 0..=255 {
        space.write(300, &[n; 100]).unwrap();
    }
    space.shared().ensure_spare(0).unwrap();
    space
}

fn log_bytes(disk: &SimDisk) -> u64 {
    let logs =
        disk.files().into_iter().filter(|(path, _)| path.parent().is_some_and(|p| p.ends_with(LOG_DIR)));
    logs.map(|(_, len)| len).sum()
}

#[test]
fn two_checkpoints_shorten_a_long_log() {
    let disk = SimDisk::new();
    let space = space_with_long_log(&disk);
    let (before, model) = (log_bytes(&disk), content(&space));
    assert!(space.shared().shorten_log().unwrap());
    assert!(log_bytes(&disk) < before / 2, "{before} bytes of log, then {}", log_bytes(&disk));
    assert!(!space.shared().shorten_log().unwrap(), "it is short now");
    // Each of the two checkpoints is sufficient alone.
    let newest = disk.files().into_iter().filter(|(path, _)| path.extension().is_some_and(|e| e == "img"));
    let (path, _) = newest.max().unwrap();
    for damaged in [false, true] {
        let after = disk.power_cut(&KeepChoice::None);
        if damaged {
            after.remove_file(&path).unwrap();
        }
        let again = open(Arc::new(after));
        assert_eq!(content(&again), model);
        again.insert(0, b"more").unwrap();
        again.close().unwrap();
    }
    space.insert(0, b"more").unwrap();
    space.close().unwrap();
    assert_eq!(content(&open(Arc::new(disk.kill()))), [b"more", &model[..]].concat());
}

#[test]
fn a_checkpoint_that_found_no_room_is_tried_again_once_there_is() {
    let disk = SimDisk::new();
    let space = space_with_long_log(&disk);
    disk.set_faults(Fault::new(CallClass::Create, FaultKind::NoSpace).on(".img"));
    assert!(!space.shared().shorten_log().unwrap());
    assert_eq!(disk.injected(), 1);
    disk.set_faults(FaultPlan::default());
    space.shared().ensure_spare(0).unwrap();
    let before = log_bytes(&disk);
    assert!(space.shared().shorten_log().unwrap(), "the log is as long as it was");
    assert!(log_bytes(&disk) < before / 2, "{before} bytes of log, then {}", log_bytes(&disk));
}

/// A checkpoint that fails after the index was written leaves no file that no head names. The
/// length of the log is unchanged.
#[test]
fn a_checkpoint_that_finds_no_room_at_its_end_leaves_no_file() {
    let disk = SimDisk::new();
    let space = space_with_long_log(&disk);
    let (before, model) = (space.shared().writer.lock().log.bytes, content(&space));
    disk.set_faults(Fault::new(CallClass::Write, FaultKind::NoSpace).on(".area"));
    assert!(matches!(space.checkpoint(), Err(Error::NoSpace { .. })));
    assert_eq!(disk.injected(), 1);
    disk.set_faults(FaultPlan::default());
    let named = space.shared().named_checkpoints().map(format::checkpoint_name);
    for DirEntry { name, .. } in disk.list(&space.shared().dir.join(TREE_DIR)).unwrap() {
        assert!(named.contains(&Path::new(TREE_DIR).join(&name)), "no head names {name}");
    }
    assert_eq!(space.shared().writer.lock().log.bytes, before);
    space.checkpoint().unwrap();
    assert_eq!(content(&open(Arc::new(disk.power_cut(&KeepChoice::None)))), model);
}

/// A checkpoint begins only once both heads name the one before it. Otherwise it could write blocks
/// of a root that a head on disk still names.
#[test]
fn a_checkpoint_waits_for_the_heads_of_the_one_before() {
    let disk = SimDisk::new();
    let space = open(Arc::new(disk.clone()));
    (0..300u64).for_each(|n| space.insert(n * 2 % (n + 1), &[3; 3]).unwrap());
    let model = content(&space);
    let shared = space.shared();
    let checkpoint = || shared.write_checkpoint(&mut shared.checkpointing.lock(), CheckpointPolicy::Always);
    checkpoint().unwrap();
    checkpoint().unwrap();
    disk.set_faults(Fault::new(CallClass::Write, FaultKind::NoSpace).on("HEAD.").forever());
    let files = || disk.list(&shared.dir.join(TREE_DIR)).unwrap();
    assert!(matches!(checkpoint(), Err(Error::NoSpace { .. })));
    let after_first = files();
    for _ in 0..3 {
        assert!(matches!(checkpoint(), Err(Error::NoSpace { .. })));
        assert_eq!(files(), after_first, "nothing was written");
    }
    assert_eq!(content(&open(Arc::new(disk.power_cut(&KeepChoice::None)))), model);
    disk.set_faults(FaultPlan::default());
    checkpoint().unwrap();
    assert_eq!(files().len(), 4, "two images and two node files");
    space.verify(|finding| panic!("{finding}")).unwrap();
}

/// A spare log segment that is too small for an operation is replaced. The file of the small one is
/// deleted, but not before both heads are written.
#[test]
fn a_spare_that_is_too_small_is_deleted_once_no_head_names_it() {
    let disk = SimDisk::new();
    let space = open(Arc::new(disk.clone()));
    space.insert(0, &[1; 900]).unwrap();
    space.sync().unwrap();
    let model = content(&space);
    let spare = |need| {
        space.shared().ensure_spare(need)?;
        Ok::<_, Error>(space.shared().writer.lock().log.spare.as_ref().map(|spare| spare.id()))
    };
    let exists = |id: Option<SegmentId>| {
        let name = sheaf_log::segment::file_name(id.unwrap());
        disk.read_file(&Path::new("/space").join(LOG_DIR).join(name)).is_ok()
    };
    let small = spare(0).unwrap();
    for nth in [1, 2] {
        disk.set_faults(Fault::new(CallClass::Write, FaultKind::NoSpace).on("HEAD.").nth(nth));
        assert!(matches!(spare(20_000 * nth), Err(Error::NoSpace { .. })), "head {nth}");
        assert_eq!(disk.injected(), nth);
        assert!(exists(small), "a head may name it");
        for after in [disk.kill(), disk.power_cut(&KeepChoice::None)] {
            assert_eq!(content(&open(Arc::new(after))), model);
        }
    }
    disk.set_faults(FaultPlan::default());
    let large = spare(40_000).unwrap();
    assert!(exists(large) && !exists(small));
    let logs = disk.list(&Path::new("/space").join(LOG_DIR)).unwrap();
    assert_eq!(logs.len(), space.shared().head_state.lock().head.newest.logs.len(), "{logs:?}");
    for after in [disk.kill(), disk.power_cut(&KeepChoice::None)] {
        assert_eq!(content(&open(Arc::new(after))), model);
    }
    space.insert(0, b"more").unwrap();
    space.close().unwrap();
    assert_eq!(content(&open(Arc::new(disk.kill()))), [b"more", &model[..]].concat());
}

/// A checkpoint of a small index is cheap, so the log before it is kept short.
#[test]
fn the_log_of_a_small_index_stays_short() {
    let options = SpaceOptions { inline: true, fine: true, ..SpaceOptions::default() };
    let space = FlexSpace::open_on(Arc::new(SimDisk::new()), "/space", options).unwrap();
    space.insert(0, &[1; 4096]).unwrap();
    let mut longest = 0;
    for n in 0..120_000_u64 {
        space.write(n % 4000, &n.to_le_bytes()).unwrap();
        if n % 64 == 0 {
            space.maintain().unwrap();
        }
        longest = longest.max(space.shared().writer.lock().log.bytes);
    }
    assert!(space.stats().checkpoints > 0, "{longest} bytes of log and no checkpoint");
    assert!(longest < 5 << 20, "{longest} bytes of log");
    space.close().unwrap();
}

/// Some free segments keep their blocks for the next writes. The others release them, and get new
/// blocks when they are reused.
#[test]
fn idle_free_segments_return_their_blocks() {
    let options = SpaceOptions { inline: true, tiny: true, ..SpaceOptions::default() };
    let space = FlexSpace::open_on(Arc::new(SimDisk::new()), "/space", options).unwrap();
    (0..800u64).for_each(|n| space.insert(n * 300, &[3; 300]).unwrap());
    // A live pair in each data file keeps the file.
    (0..10u64).rev().for_each(|n| space.collapse(n * 80 * 300 + 300, 79 * 300).unwrap());
    let shared = space.shared();
    shared.release().unwrap();
    let room = || {
        let w = shared.writer.lock();
        (w.allocator.free.len(), w.allocator.without_blocks.len())
    };
    let before = room();
    assert!(before.0 > 8, "{before:?}");
    while shared.punch_free_segments() {}
    let after = room();
    assert!(after.0 <= 4 && after.0 + after.1 == before.0 + before.1, "{before:?}, {after:?}");
    (1..150u64).for_each(|n| space.insert(n * 300, &[4; 300]).unwrap());
    let mut bytes = vec![0; 150 * 300];
    assert_eq!(space.read(0, &mut bytes).unwrap(), bytes.len());
    assert!(bytes[..300].iter().all(|byte| *byte == 3) && bytes[300..].iter().all(|byte| *byte == 4));
    space.verify(|finding| panic!("{finding}")).unwrap();
    space.close().unwrap();
}
