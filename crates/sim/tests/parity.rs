//! # Parity of the simulated and the real disk
//!
//! Makes the same random calls on both disks. Every result, and at the end every byte, must be the
//! same. The effects of a crash are not compared.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sheaf_platform::disk::real::RealDisk;
use sheaf_platform::disk::{Disk, File, OpenMode};
use sheaf_sim::SimDisk;

/// A disk under test: its root directory and its open files.
struct TestDisk<'a> {
    disk: &'a dyn Disk,
    root: PathBuf,
    files: Vec<Arc<dyn File>>,
}

/// Random numbers from a seed (xorshift64*).
struct Xorshift(u64);

impl Xorshift {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }
}

const PATHS: [&str; 6] = ["a", "b", "d", "d/a", "d/b", "d/e"];

/// Makes one call and returns a description of its result.
fn step(side: &mut TestDisk<'_>, call: [u64; 5]) -> String {
    let [kind, one, two, offset, len] = call;
    let path = |n: u64| side.root.join(PATHS[usize::try_from(n % 6).unwrap()]);
    let (path, other) = (path(one), path(two));
    let answer = match kind {
        0 => side.disk.create_dir(&path),
        1 => side.disk.remove(&path),
        2 => side.disk.remove_dir(&path),
        3 if one != two && len % 3 == 0 => side.disk.link(&path, &other),
        3 => side.disk.rename(&path, &other),
        4 => side.disk.sync_dir(&path),
        5 => return shown(side.disk.list(&path)),
        6 | 7 => {
            let open_mode = if kind == 6 { OpenMode::Create } else { OpenMode::ReadWrite };
            side.disk.open(&path, open_mode).map(|file| side.files.push(file))
        }
        _ => return file_step(side.files.last(), [kind, one, two, offset, len]),
    };
    shown(answer)
}

fn file_step(file: Option<&Arc<dyn File>>, call: [u64; 5]) -> String {
    let [kind, fill, _, offset, len] = call;
    let Some(file) = file else {
        return "no file".into();
    };
    let mut bytes = vec![fill.to_le_bytes()[0]; usize::try_from(len).unwrap()];
    match kind {
        8 => shown(file.set_len(offset)),
        9 => shown(file.allocate(offset)),
        10 => shown(file.sync()),
        11 => shown(file.read_at(offset, &mut bytes).map(|()| bytes)),
        12 => shown(file.append_at(offset, &bytes)),
        13 => shown(file.len()),
        _ => shown(file.write_at(offset, &bytes)),
    }
}

/// Formats a result. Of errors only the kind is compared.
fn shown<T: std::fmt::Debug>(answer: io::Result<T>) -> String {
    match answer {
        Ok(value) => format!("{value:?}"),
        Err(error) => format!("{:?}", error.kind()),
    }
}

#[test]
fn simulated_and_real_disk_answer_alike() {
    for seed in 1..30 {
        let scratch = tempfile::tempdir().expect("a temporary directory");
        let sim = SimDisk::new();
        let (files, root) = (Vec::new(), PathBuf::from("/"));
        let mut one = TestDisk { disk: &sim, root, files };
        let (files, root) = (Vec::new(), scratch.path().to_path_buf());
        let mut two = TestDisk { disk: &RealDisk::default(), root, files };
        let mut numbers = Xorshift(seed);
        for number in 0..150 {
            let bounds = [18, 6, 6, 9000, 3000];
            let call = bounds.map(|bound| numbers.below(bound));
            let answers = (step(&mut one, call), step(&mut two, call));
            let same = answers.0 == answers.1;
            let brief = |answer: &str| answer.chars().take(80).collect::<String>();
            let (sim, real) = (brief(&answers.0), brief(&answers.1));
            assert!(same, "seed {seed} call {number} {call:?}: sim {sim}, real {real}");
        }
        for (path, len) in sim.files() {
            let real = scratch.path().join(path.strip_prefix("/").unwrap());
            assert!(bytes_of(&RealDisk::default(), &real, len) == bytes_of(&sim, &path, len), "seed {seed}");
        }
    }
}

fn bytes_of(disk: &dyn Disk, path: &Path, len: u64) -> Vec<u8> {
    let file = disk.open(path, OpenMode::Read).unwrap();
    assert_eq!(file.len().unwrap(), len);
    let mut bytes = vec![0; usize::try_from(len).unwrap()];
    file.read_at(0, &mut bytes).unwrap();
    bytes
}
