//! # Limits of a process: descriptors, memory, file size, file modes, other users

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sheaf::{BackupOptions, Database, KeyspaceOptions};

use crate::CaseResult;
use crate::case::{ALL_ENGINES, ALL_TOGETHER, CaseContext, FieldCase, RunSize, builder};
use crate::figure::FieldFigure;
use crate::machine::descriptors;
use crate::processes::HolderProcess;

/// Bytes of a value in the loads of this file.
const VALUE: usize = 1_000;
/// Id of the unprivileged user, which owns no file of the suite.
const NOBODY: u32 = 65_534;

pub(crate) fn cases() -> Vec<FieldCase> {
    let case = |name, engines, short, run| FieldCase { name, engines, short, deadline_s: 1_800, run };
    vec![
        case("descriptors-256", ALL_ENGINES, &["flat"], |context| growing_files(context, 256)),
        case("descriptors-1024", ALL_ENGINES, &[], |context| growing_files(context, 1_024)),
        case("descriptors-mixed", ALL_TOGETHER, ALL_TOGETHER, mixed_load),
        case("memory-budget", ALL_ENGINES, &["flex"], memory_budgets),
        case("memory-cgroup", ALL_ENGINES, &[], cgroup),
        case("file-size-limit", ALL_ENGINES, &["flex", "delsm"], file_size),
        case("umask", ALL_TOGETHER, ALL_TOGETHER, umask),
        case("other-user", ALL_TOGETHER, ALL_TOGETHER, other_user),
    ]
}

fn limit(resource: Resource, current: u64) -> io::Result<()> {
    let maximum = getrlimit(resource).maximum;
    Ok(setrlimit(resource, Rlimit { current: Some(current), maximum })?)
}

/// Writes 10 GB by single inserts under a soft limit of `soft` descriptors.
fn growing_files(context: &CaseContext, soft: u64) -> CaseResult {
    limit(Resource::Nofile, soft)?;
    let pairs = context.size(400_000_000, 10_000_000_000).min(10_000_000_000) / VALUE as u64;
    let (db, data) = context.open_data(1_024)?;
    let mut most = 0;
    for number in 0..pairs {
        data.insert(number.to_be_bytes(), [1; VALUE])?;
        if number % 4_096 == 0 {
            most = most.max(descriptors()?);
        }
    }
    most = most.max(descriptors()?);
    drop(data);
    db.close()?;
    let (db, data) = context.open_data(1_024)?;
    for number in (0..pairs).step_by(997) {
        let found = data.get(number.to_be_bytes())?;
        assert!(found.is_some_and(|value| value.len() == VALUE), "pair {number} is there");
        most = most.max(descriptors()?);
    }
    drop(data);
    db.close()?;
    report_descriptors(most, soft);
    Ok(())
}

fn report_descriptors(most: usize, soft: u64) {
    let figure = FieldFigure::new(format!("descriptors at most, soft limit {soft}"), most as f64, "");
    figure.at_most(soft as f64 / 2.0).report();
}

/// Uses 100 keyspaces of all engines with a snapshot, an iterator, a backup and an attached reader.
fn mixed_load(context: &CaseContext) -> CaseResult {
    const SOFT: u64 = 256;
    limit(Resource::Nofile, SOFT)?;
    let db = context.open(256)?;
    let mut all = Vec::new();
    for number in 0..100 {
        let engine = ALL_ENGINES[number % ALL_ENGINES.len()];
        let options = KeyspaceOptions::default().engine(engine);
        all.push(db.keyspace(&format!("k{number}"), options)?);
    }
    let mut most = 0;
    let pairs = context.size(50_000, 1_000_000).min(1_000_000);
    let write = |from: u64, most: &mut usize| -> CaseResult {
        for number in from..from + pairs {
            let data = &all[usize::try_from(number)? % all.len()];
            let len = if number % 1_000 == 0 { 200_000 } else { VALUE };
            data.insert(number.to_be_bytes(), vec![2; len])?;
            if number % 1_024 == 0 {
                *most = (*most).max(descriptors()?);
            }
        }
        Ok(())
    };
    write(0, &mut most)?;
    let snapshot = db.snapshot()?;
    let mut iterator = all[2].iter()?;
    assert!(iterator.next().transpose()?.is_some(), "the keyspace has pairs");
    let reader = HolderProcess::start("attach", &context.db(), "")?;
    write(pairs, &mut most)?;
    db.backup(context.dir.join("backup"), BackupOptions::default())?;
    most = most.max(descriptors()?);
    let seen = snapshot.keyspace("k2")?.iter()?.count();
    assert_eq!(seen as u64, pairs / 100, "the snapshot has the pairs of its time");
    assert_eq!(iterator.count() as u64 + 1, pairs / 100, "and so has the iterator");
    if !reader.close_stdin()?.success() {
        return Err("the attached reader failed".into());
    }
    drop(snapshot);
    drop(all);
    db.close()?;
    report_descriptors(most, SOFT);
    Ok(())
}

/// Loads five times the budget and reads all pairs.
fn memory_budgets(context: &CaseContext) -> CaseResult {
    let budgets: &[u64] = if context.form == RunSize::Short { &[16] } else { &[16, 64] };
    for &mib in budgets {
        let (db, data) = context.open_data(mib)?;
        let pairs = (mib << 20) * 5 / VALUE as u64;
        let mut most = 0;
        for number in 0..pairs {
            data.insert(number.to_be_bytes(), [1; VALUE])?;
            if number % 1_000 == 0 {
                most = most.max(anonymous_kib()?);
            }
        }
        for number in 0..pairs {
            assert!(data.get(number.to_be_bytes())?.is_some(), "pair {number} is there");
            if number % 1_000 == 0 {
                most = most.max(anonymous_kib()?);
            }
        }
        drop(data);
        db.close()?;
        // Below 64 MiB the README guarantees twice the budget. The rest is for the process itself.
        let bound = (mib * 2 + 16) as f64;
        let figure =
            FieldFigure::new(format!("{mib} MiB: anonymous memory at most"), most as f64 / 1024.0, "MiB");
        figure.at_most(bound).report();
        fs::remove_dir_all(context.db())?;
    }
    Ok(())
}

/// Returns the anonymous resident memory of this process in KiB.
fn anonymous_kib() -> io::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| io::Error::other("no RssAnon in /proc/self/status"))
}

/// Loads and reads in a memory cgroup of 256 MiB, with the page cache.
fn cgroup(context: &CaseContext) -> CaseResult {
    const MIB: u64 = 256;
    let Some(group) = enter_cgroup(MIB << 20) else {
        println!("memory-cgroup is left out: this machine permits no memory cgroup");
        return Ok(());
    };
    let done = in_cgroup(context);
    leave_cgroup(&group)?;
    done
}

fn in_cgroup(context: &CaseContext) -> CaseResult {
    let (db, data) = context.open_data(64)?;
    let pairs = context.size(400_000, 2_000_000).min(2_000_000);
    for number in 0..pairs {
        data.insert(number.to_be_bytes(), [1; VALUE])?;
    }
    let missing = (0..pairs)
        .step_by(101)
        .map(|number| Ok(u64::from(data.get(number.to_be_bytes())?.is_none())))
        .sum::<sheaf::Result<u64>>()?;
    drop(data);
    db.close()?;
    FieldFigure::new("missing pairs", missing as f64, "").at_most(0.0).report();
    Ok(())
}

/// Creates a memory cgroup and moves this process into it. Returns `None` if that is not permitted.
fn enter_cgroup(bytes: u64) -> Option<PathBuf> {
    let name = format!("sheaf-field-{}", std::process::id());
    let places = [
        (Path::new("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path::new("/sys/fs/cgroup"), "memory.max"),
    ];
    for (parent, file) in places {
        let group = parent.join(&name);
        if fs::create_dir(&group).is_err() {
            continue;
        }
        let enter = || {
            fs::write(group.join(file), bytes.to_string())?;
            fs::write(group.join("cgroup.procs"), std::process::id().to_string())
        };
        match enter() {
            Ok(()) => return Some(group),
            Err(_) => drop(fs::remove_dir(&group)),
        }
    }
    None
}

fn leave_cgroup(group: &Path) -> io::Result<()> {
    if let Some(parent) = group.parent() {
        fs::write(parent.join("cgroup.procs"), std::process::id().to_string())?;
    }
    fs::remove_dir(group)
}

/// Writes under `RLIMIT_FSIZE` until an error. Reads must still work, and no pair may be lost.
fn file_size(context: &CaseContext) -> CaseResult {
    const LIMIT: u64 = 1 << 20;
    let (db, data) = context.open_data(64)?;
    data.insert(b"before", b"limit")?;
    let unlimited = getrlimit(Resource::Fsize);
    limit(Resource::Fsize, LIMIT)?;
    let mut written = 0_u64;
    let refusal = loop {
        match data.insert(written.to_be_bytes(), [1; VALUE]) {
            Ok(()) if written < 100_000 => written += 1,
            Ok(()) => break None,
            Err(refusal) => break Some(refusal),
        }
    };
    if let Some(refusal) = &refusal {
        println!("after {written} pairs: {refusal}");
    }
    let is_named = refusal.is_none_or(|refusal| matches!(refusal, sheaf::Error::FileSizeLimit { .. }));
    FieldFigure::new("a refusal is that of the file size", f64::from(u8::from(is_named)), "")
        .at_least(1.0)
        .report();
    assert_eq!(data.get(b"before")?.as_deref(), Some(&b"limit"[..]), "reads go on");
    setrlimit(Resource::Fsize, unlimited)?;
    data.insert(b"after", b"limit")?;
    drop(data);
    db.close()?;
    let (db, data) = context.open_data(64)?;
    let count = (0..written).try_fold(0_u64, |count, number| {
        Ok::<_, sheaf::Error>(count + u64::from(data.get(number.to_be_bytes())?.is_some()))
    })?;
    assert!(data.get(b"after")?.is_some(), "writes go on once the limit is raised");
    FieldFigure::new("pairs lost", (written - count) as f64, "").at_most(0.0).report();
    drop(data);
    Ok(db.close()?)
}

/// Checks the modes of files under umask 022 and 077: only the owner may have access.
fn umask(context: &CaseContext) -> CaseResult {
    for mask in [0o022, 0o077] {
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(mask));
        let dir = context.dir.join(format!("{mask:03o}"));
        fs::create_dir(&dir)?;
        let (path, backup, restored) = (dir.join("db"), dir.join("backup"), dir.join("restored"));
        let db = builder(64).open(&path)?;
        for engine in ALL_ENGINES {
            let data = db.keyspace(engine, KeyspaceOptions::default().engine(engine))?;
            data.insert(b"key", vec![1; 100_000])?;
        }
        let mut wide = group_or_other_accessible(&path)?;
        db.backup(&backup, BackupOptions::default())?;
        db.close()?;
        Database::restore(&backup, &restored)?;
        for dir in [&path, &backup, &restored] {
            wide += group_or_other_accessible(dir)?;
        }
        let figure = FieldFigure::new(format!("umask {mask:03o}: names open to others"), wide as f64, "");
        figure.at_most(0.0).report();
    }
    Ok(())
}

/// Counts the files and directories below `path` that group or others may access.
fn group_or_other_accessible(path: &Path) -> io::Result<u64> {
    let meta = fs::symlink_metadata(path)?;
    let is_wide = meta.permissions().mode() & 0o077 != 0;
    if is_wide && path.extension().is_none() {
        println!("{} has mode {:o}", path.display(), meta.mode() & 0o777);
    }
    let mut count = u64::from(is_wide);
    if meta.is_dir() {
        for entry in fs::read_dir(path)? {
            count += group_or_other_accessible(&entry?.path())?;
        }
    }
    Ok(count)
}

/// Checks that another user can neither read the database nor hold its lock.
fn other_user(context: &CaseContext) -> CaseResult {
    if !rustix::process::geteuid().is_root() {
        println!("other-user is left out: it needs root");
        return Ok(());
    }
    let place = std::env::temp_dir().join(format!("sheaf-field-user-{}", std::process::id()));
    fs::create_dir(&place)?;
    fs::set_permissions(&place, fs::Permissions::from_mode(0o755))?;
    let done = as_nobody(context, &place);
    fs::remove_dir_all(&place)?;
    done
}

fn as_nobody(context: &CaseContext, place: &Path) -> CaseResult {
    let (program, path) = (place.join("sheaf"), place.join("db"));
    fs::copy(&context.sheaf, &program)?;
    let db = builder(64).open(&path)?;
    db.keyspace("default", KeyspaceOptions::default())?.insert(b"key", b"value")?;
    db.close()?;
    let is_let_in = |program: &Path, words: &[&str]| -> io::Result<bool> {
        let mut command = Command::new(program);
        command.args(words).arg(&path).arg("key").uid(NOBODY).gid(NOBODY).current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(command.status()?.success())
    };
    let reads = is_let_in(&program, &["get"])?;
    let mut hold = Command::new("flock");
    hold.args(["-n"]).arg(path.join("LOCK")).arg("true").uid(NOBODY).gid(NOBODY);
    hold.current_dir("/").stderr(Stdio::null());
    let holds = hold.status().is_ok_and(|status| status.success());
    let count = u64::from(reads) + u64::from(holds);
    FieldFigure::new("ways in for another user", count as f64, "").at_most(0.0).report();
    Ok(())
}
