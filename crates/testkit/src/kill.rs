//! # Kill: a process that dies in mid-write, on the real disk
//!
//! The test executable starts itself again as a child that writes as fast as it can from two threads,
//! over two keyspaces, alone and in batches, buffered and synced, and says on a pipe after every
//! acknowledged commit how far it is. The parent kills it (SIGKILL) after a moment, often while it is
//! still opening, opens the database itself and checks: the lock is free, each thread's commits are there
//! as a prefix, no acknowledged one is missing, every batch is whole. Then it closes or just lets go, and
//! the next child takes over.
//!
//! ## What it cannot see
//!
//! Anything a power cut would lose: the kernel survives. The order between the two threads' commits.
//! Which of the 40 ms a race needs: it is hit or not.

#![allow(clippy::cast_possible_truncation)] // numbers here are small by construction
#![expect(clippy::disallowed_methods, reason = "real processes, real time, real files")]

use std::collections::BTreeMap;
use std::fmt;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sheaf::{Database, Durability, Keyspace, KeyspaceOptions};

use crate::crash::workload::{Random, value_bytes};

const DIR: &str = "SHEAF_KILL_DIR";
const SEED: &str = "SHEAF_KILL_SEED";
const TINY: &str = "SHEAF_KILL_TINY";
const SPACES: [&str; 2] = ["alpha", "beta"];
const THREADS: u8 = 2;
/// Mark: the child has opened the database.
const OPENED: u8 = 0xff;
/// A mark is a thread and how many of its commits were acknowledged.
const MARK: usize = 5;

/// A keyspace, a key, and its new value.
type Change = (usize, Vec<u8>, Option<Vec<u8>>);

/// What one thread's keys hold: by keyspace and key.
type Pairs = BTreeMap<(usize, Vec<u8>), Vec<u8>>;

/// What the loop did.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Processes killed.
    pub kills: u64,
    /// Those that had not opened the database yet.
    pub during_open: u64,
    /// Commits acknowledged before the kills.
    pub commits: u64,
    /// Seconds it took.
    pub seconds: f64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.kills as f64 / self.seconds.max(1e-9);
        let Report { kills, during_open, commits, seconds } = self;
        write!(
            f,
            "{kills} kills ({during_open} while opening), {commits} commits, {seconds:.1} s, {rate:.0} kills/s"
        )
    }
}

/// Kills children for `seconds`, in fresh directories under `scratch`. `child` is the name of the test
/// that calls [`be_the_child`].
///
/// # Panics
///
/// If a promise is broken, with a line that says which one and where the database is.
pub fn kill_loop(scratch: &Path, child: &str, seconds: f64, seed: u64) -> Report {
    let started = Instant::now();
    let mut random = Random::new(seed);
    let mut report = Report::default();
    let mut round = 0;
    while started.elapsed().as_secs_f64() < seconds {
        round += 1;
        let dir = scratch.join(format!("kill-{}-{round}", std::process::id()));
        let is_tiny = !random.once_in(4);
        let mut victim = Victim { dir: dir.clone(), child, is_tiny, model: Default::default() };
        for _ in 0..25 {
            let life = random.next();
            let delay = if random.once_in(3) { random.below(9_000) } else { random.below(40_000) };
            victim.live_and_die(life, Duration::from_micros(delay), &mut report);
            if started.elapsed().as_secs_f64() > seconds {
                break;
            }
        }
        let _ = std::fs::remove_dir_all(&dir);
    }
    report.seconds = started.elapsed().as_secs_f64();
    report
}

struct Victim<'a> {
    dir: PathBuf,
    child: &'a str,
    is_tiny: bool,
    model: [Pairs; THREADS as usize],
}

impl Victim<'_> {
    fn live_and_die(&mut self, life: u64, delay: Duration, report: &mut Report) {
        let mut child = self.start(life);
        let mut pipe = child.stderr.take().expect("stderr is piped");
        let mut told = Vec::new();
        std::thread::scope(|scope| {
            let reader = scope.spawn(move || {
                let mut told = Vec::new();
                pipe.read_to_end(&mut told).expect("a pipe can be read");
                told
            });
            std::thread::sleep(delay);
            child.kill().expect("our own child");
            child.wait().expect("our own child");
            told = reader.join().expect("the reader does not panic");
        });
        let (has_opened, acked) = marks(&told).unwrap_or_else(|| {
            panic!("the child failed in {}: {}", self.dir.display(), String::from_utf8_lossy(&told))
        });
        report.kills += 1;
        report.during_open += u64::from(!has_opened);
        report.commits += acked.iter().map(|k| u64::from(*k)).sum::<u64>();
        if let Err(what) = self.inspect(life, acked) {
            panic!(
                "{what}\n  acknowledged {acked:?}; replay: {DIR}={} {SEED}={life} {TINY}={} (killed after {delay:?})",
                self.dir.display(),
                self.is_tiny
            );
        }
    }

    fn start(&self, life: u64) -> Child {
        let executable = std::env::current_exe().expect("we run from a file");
        let mut command = Command::new(executable);
        command.args([self.child, "--exact", "--nocapture", "--test-threads=1"]);
        command.env(DIR, &self.dir).env(SEED, life.to_string()).env(TINY, self.is_tiny.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().expect("we can start ourselves")
    }

    /// Opens what the dead child left.
    fn inspect(&mut self, life: u64, acked: [u32; THREADS as usize]) -> Result<(), String> {
        let open = || Database::builder().tiny(self.is_tiny).open(&self.dir);
        let db = open().map_err(|e| format!("it does not open after the kill: {e}"))?;
        let found = read(&db)?;
        for thread in 0..THREADS {
            let number = usize::from(thread);
            let model = &mut self.model[number];
            for k in 0..acked[number] {
                apply(model, thread, life, k);
            }
            if found[number] != *model {
                let before = difference(&found[number], model);
                apply(model, thread, life, acked[number]);
                if found[number] != *model {
                    let after = difference(&found[number], model);
                    return Err(format!(
                        "thread {thread} is neither at commit {} ({before}) nor at the one after ({after})",
                        acked[number]
                    ));
                }
            }
        }
        let alpha = db.keyspace(SPACES[0], KeyspaceOptions::default()).map_err(|e| e.to_string())?;
        alpha.insert("the parent", life.to_le_bytes()).map_err(|e| format!("it takes no commit: {e}"))?;
        drop(alpha);
        if life.is_multiple_of(2) {
            db.close().map_err(|e| format!("it does not close: {e}"))?;
        }
        Ok(())
    }
}

/// Whether the child had opened the database, and how many commits of each thread it acknowledged.
/// `None` if it said anything else.
fn marks(told: &[u8]) -> Option<(bool, [u32; THREADS as usize])> {
    let mut acked = [0; THREADS as usize];
    let mut has_opened = false;
    for mark in told.as_chunks::<MARK>().0 {
        let count = u32::from_le_bytes([mark[1], mark[2], mark[3], mark[4]]);
        match mark[0] {
            OPENED if count == 0 => has_opened = true,
            thread if thread < THREADS => acked[usize::from(thread)] = count,
            _ => return None,
        }
    }
    Some((has_opened, acked))
}

/// The threads' pairs in the database.
fn read(db: &Database) -> Result<[Pairs; THREADS as usize], String> {
    let mut found: [Pairs; THREADS as usize] = Default::default();
    for (space, name) in SPACES.iter().enumerate() {
        let Some(keyspace) = db.existing_keyspace(name).map_err(|e| e.to_string())? else {
            continue;
        };
        for pair in keyspace.iter().map_err(|e| e.to_string())? {
            let (key, value) = pair.map_err(|e| format!("iteration: {e}"))?;
            if let Some(thread) = key.first().filter(|thread| **thread < THREADS) {
                found[usize::from(*thread)].insert((space, key.to_vec()), value.to_vec());
            }
        }
    }
    Ok(found)
}

fn difference(found: &Pairs, model: &Pairs) -> String {
    let keys: std::collections::BTreeSet<_> = found.keys().chain(model.keys()).collect();
    let show = |value: Option<&Vec<u8>>| {
        let shown = value.map(|v| {
            let life = u64::from_le_bytes(v[..8].try_into().unwrap_or_default());
            format!("life {life} {:?} ({} bytes)", String::from_utf8_lossy(&v[8..v.len().min(24)]), v.len())
        });
        shown.unwrap_or_else(|| "nothing".to_owned())
    };
    let differing = keys.into_iter().filter(|key| found.get(*key) != model.get(*key));
    let lines =
        differing.map(|key| format!("{key:?}: {} instead of {}", show(found.get(key)), show(model.get(key))));
    lines.take(6).collect::<Vec<_>>().join("; ")
}

/// The changes of a thread's commit number `k` in the life `life`, and whether it is synced.
fn changes(thread: u8, life: u64, k: u32) -> (Vec<Change>, bool) {
    let mut random = Random::new(life ^ u64::from(k) << 8 ^ u64::from(thread));
    let count = if random.once_in(3) { 2 + random.below(5) } else { 1 };
    let mut changes: BTreeMap<(usize, Vec<u8>), Option<Vec<u8>>> = BTreeMap::new();
    for write in 0..count {
        let key = vec![thread, b'k', random.below(200) as u8];
        let len = if random.once_in(200) { 30_000 } else { random.below(300) as u32 };
        let value = (!random.once_in(5)).then(|| {
            let mut value = life.to_le_bytes().to_vec();
            value.extend(value_bytes(k as usize, write as usize, len));
            value
        });
        changes.insert((random.below(2) as usize, key), value);
    }
    let list = changes.into_iter().map(|((space, key), value)| (space, key, value)).collect();
    (list, random.once_in(12))
}

fn apply(model: &mut Pairs, thread: u8, life: u64, k: u32) {
    for (space, key, value) in changes(thread, life, k).0 {
        match value {
            Some(value) => model.insert((space, key), value),
            None => model.remove(&(space, key)),
        };
    }
}

/// In a child: writes until it is killed. Elsewhere: returns at once.
///
/// # Panics
///
/// If the database refuses anything.
pub fn be_the_child() {
    let Some(dir) = std::env::var_os(DIR) else {
        return;
    };
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let life = number(SEED).expect("the parent sets a seed");
    let is_tiny = std::env::var(TINY).is_ok_and(|text| text == "true");
    let db = Database::builder().tiny(is_tiny).open(PathBuf::from(dir)).expect("it opens");
    let spaces = SPACES.map(|name| db.keyspace(name, KeyspaceOptions::default()).expect("a keyspace"));
    tell(OPENED, 0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (db, spaces) = (&db, &spaces);
            scope.spawn(move || {
                for k in 0.. {
                    write(db, spaces, thread, life, k).expect("it takes every write");
                    tell(thread, k + 1);
                }
            });
        }
    });
}

fn write(db: &Database, spaces: &[Keyspace; 2], thread: u8, life: u64, k: u32) -> sheaf::Result<()> {
    let (changes, is_synced) = changes(thread, life, k);
    if let ([(space, key, value)], false) = (&changes[..], is_synced) {
        return match value {
            Some(value) => spaces[*space].insert(key, value),
            None => spaces[*space].remove(key),
        };
    }
    let mut batch = db.batch();
    for (space, key, value) in &changes {
        match value {
            Some(value) => batch.insert(&spaces[*space], key, value),
            None => batch.remove(&spaces[*space], key),
        };
    }
    batch.durability(if is_synced { Durability::Sync } else { Durability::Buffer });
    batch.commit()
}

/// One mark to the parent, in one write: it arrives whole or not at all.
fn tell(thread: u8, count: u32) {
    let mut mark = [thread; MARK];
    mark[1..].copy_from_slice(&count.to_le_bytes());
    std::io::stderr().write_all(&mark).expect("the parent listens");
}
