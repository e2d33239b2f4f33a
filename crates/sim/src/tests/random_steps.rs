//! Random operations: a cut that keeps everything loses nothing, and free space is exact.

use super::super::random::SimRandom;
use super::*;

/// Makes one random operation. Names and lengths come from small sets, so that they collide.
fn step(disk: &SimDisk, files: &mut Vec<Arc<dyn File>>, random: &mut SimRandom) {
    let paths = ["/a", "/b", "/d/a", "/d/b"];
    let path = |random: &mut SimRandom| p(paths[content::index(random.below(4))]);
    let offset = random.below(6000);
    match random.below(12) {
        0 => files.extend(disk.open(path(random), OpenMode::Create)),
        1 => drop(disk.remove(path(random))),
        2 => drop(disk.rename(path(random), path(random))),
        3 => drop(disk.sync_dir(p(["/", "/d"][content::index(random.below(2))]))),
        4 => files.extend(disk.open(path(random), OpenMode::ReadWrite)),
        5 if !files.is_empty() => drop(files.swap_remove(content::index(random.below(files.len() as u64)))),
        kind => {
            let Some(file) = files.last() else {
                return;
            };
            match kind {
                6 => file.set_len(offset).unwrap(),
                7 => file.allocate(offset).unwrap(),
                8 => file.sync().unwrap(),
                _ => {
                    let fill = random.next().to_le_bytes()[0];
                    let len = content::index(random.below(2000));
                    file.write_at(offset, &vec![fill; len]).unwrap();
                }
            }
        }
    }
}

/// Returns path, length and hash of each file.
fn contents(disk: &SimDisk) -> Vec<(PathBuf, u64, u64)> {
    let files = disk.files().into_iter();
    let hash = |path: &Path| siphasher::sip::SipHasher13::new().hash(&disk.read_file(path).unwrap());
    files.map(|(path, len)| (path.clone(), len, hash(&path))).collect()
}

#[test]
fn keeping_everything_loses_nothing_and_synced_disks_cannot_lose() {
    for seed in 0..200 {
        let mut random = SimRandom::new(seed);
        let disk = SimDisk::with_seed(seed);
        disk.log_ops(true);
        disk.create_dir(p("/d")).unwrap();
        let mut files = Vec::new();
        for _ in 0..120 {
            step(&disk, &mut files, &mut random);
            let kept = contents(&disk.power_cut(&KeepChoice::All));
            assert_eq!(kept, contents(&disk), "seed {seed}: {:?}", disk.op_log());
            assert_eq!(contents(&disk.kill()), contents(&disk), "seed {seed}");
        }
        for (path, _) in disk.files() {
            disk.open(&path, OpenMode::Read).unwrap().sync().unwrap();
        }
        disk.sync_dir(p("/")).unwrap();
        disk.sync_dir(p("/d")).unwrap();
        files.clear();
        assert!(disk.pending().is_empty(), "seed {seed}: {}", disk.pending().describe(&KeepChoice::None));
        assert_eq!(contents(&disk.power_cut(&KeepChoice::None)), contents(&disk), "seed {seed}");
    }
}

#[test]
fn space_is_accounted_for_exactly() {
    for seed in 0..100 {
        let mut random = SimRandom::new(seed);
        let disk = SimDisk::new();
        disk.set_capacity(1 << 20);
        disk.create_dir(p("/d")).unwrap();
        let mut files = Vec::new();
        for _ in 0..100 {
            step(&disk, &mut files, &mut random);
        }
        files.clear();
        assert_eq!(disk.free_space(p("/")).unwrap(), disk.fork().free_space(p("/")).unwrap());
    }
}
