//! Workload statistics of keyspaces: they are recorded and kept over closes, and never cause an
//! error.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::path::Path;
use std::sync::Arc;

use sheaf::{Builder, Database, Durability, Keyspace, KeyspaceOptions, Result};
use sheaf_platform::clock::ManualClock;
use sheaf_sim::{KeepChoice, SimDisk};

const DIR: &str = "/db";
const WORKLOAD_FILE: &str = "/db/LOAD";

fn builder(disk: &SimDisk) -> Builder {
    let clock = Arc::new(ManualClock::new());
    Database::builder().inline(true).tiny(true).disk(Arc::new(disk.clone())).clock(clock)
}

fn open(disk: &SimDisk) -> (Database, Keyspace) {
    let db = builder(disk).open(DIR).unwrap();
    let keyspace = db.keyspace("used", KeyspaceOptions::default()).unwrap();
    (db, keyspace)
}

/// Runs some thousand operations of each kind. The statistics sample some of them.
fn used(db: &Database, keyspace: &Keyspace) {
    for n in 0..4_000u32 {
        let key = (n % 100).to_be_bytes();
        keyspace.insert(key, [1; 20]).unwrap();
        keyspace.get(key).unwrap();
        keyspace.get([9; 7]).unwrap();
        keyspace.contains_key(key).unwrap();
        keyspace.update(key, |old| Some(old.unwrap_or_default().to_vec())).unwrap();
        assert!(keyspace.iter().unwrap().take(7).count() <= 7);
        assert!(keyspace.iter().unwrap().rev().take(3).count() <= 3);
        let mut batch = db.batch();
        batch.insert(keyspace, key, "new").remove(keyspace, [9; 7]);
        batch.durability(Durability::Sync);
        batch.commit().unwrap();
        if n % 64 == 0 {
            db.pump().unwrap();
        }
    }
}

fn near(got: u64, wanted: u64) {
    let ratio = got as f64 / wanted as f64;
    assert!((0.5..1.7).contains(&ratio), "{got}, {wanted}");
}

#[test]
fn every_kind_of_operation_is_recorded() {
    let disk = SimDisk::new();
    let (db, keyspace) = open(&disk);
    used(&db, &keyspace);
    let load = keyspace.workload().unwrap();
    let kinds = [
        load.gets_found,
        load.gets_missing,
        load.contains,
        load.inserts,
        load.updates,
        load.batches,
        load.batch_inserts,
        load.batch_removes,
        load.scans,
        load.scans_reverse,
    ];
    kinds.iter().for_each(|count| near(*count, 4_000));
    near(load.pairs_scanned, 4_000 * 10);
    assert!((0.2..0.5).contains(&load.durable_share), "{load:?}");
    assert!((4.0..6.0).contains(&load.key_bytes.mean), "{load:?}");
    assert!(load.skew.is_some());
    assert_eq!(db.keyspace("other", KeyspaceOptions::default()).unwrap().workload().unwrap().samples, 0);
}

#[test]
fn new_keys_in_batches_are_recorded() {
    // These engines look up the old entry of each key that they put.
    for engine in ["flat", "flat-ordered", "cedrus"] {
        let disk = SimDisk::new();
        let db = builder(&disk).open(DIR).unwrap();
        let keyspace = db.keyspace("used", KeyspaceOptions::default().engine(engine)).unwrap();
        for n in 0..3_000u32 {
            let mut batch = db.batch();
            batch.insert(&keyspace, (n + 1_000).to_be_bytes(), "new").insert(&keyspace, [0; 4], "old");
            batch.commit().unwrap();
            if n % 64 == 0 {
                db.pump().unwrap();
            }
        }
        let load = keyspace.workload().unwrap();
        assert!((0.3..0.7).contains(&load.new_share), "{engine}: {load:?}");
    }
}

#[test]
fn statistics_survive_a_close_and_a_power_cut() {
    let disk = SimDisk::new();
    let (db, keyspace) = open(&disk);
    used(&db, &keyspace);
    let before = keyspace.workload().unwrap();
    drop(keyspace);
    db.close().unwrap();
    for disk in [disk.fork(), disk.power_cut(&KeepChoice::None), disk.kill()] {
        let (db, keyspace) = open(&disk);
        assert_eq!(keyspace.workload().unwrap(), before);
        drop((db, keyspace));
        let db = builder(&disk).read_only(true).open(DIR).unwrap();
        let keyspace = db.open_keyspace("used").unwrap().unwrap();
        assert_eq!(keyspace.workload().unwrap().inserts, before.inserts);
    }
}

#[test]
fn a_crash_loses_the_newest_part_at_most() {
    let disk = SimDisk::new();
    let (db, keyspace) = open(&disk);
    used(&db, &keyspace);
    let before = keyspace.workload().unwrap();
    drop(keyspace);
    db.close().unwrap();
    let (db, keyspace) = open(&disk);
    used(&db, &keyspace);
    let cut = disk.power_cut(&KeepChoice::None);
    drop((db, keyspace));
    assert_eq!(open(&cut).1.workload().unwrap(), before);
}

#[test]
fn a_power_cut_during_close_leaves_the_old_or_the_new_statistics() {
    let disk = SimDisk::new();
    let (db, keyspace) = open(&disk);
    used(&db, &keyspace);
    let old = keyspace.workload().unwrap().samples;
    drop(keyspace);
    db.close().unwrap();
    let (db, keyspace) = open(&disk);
    used(&db, &keyspace);
    let new = keyspace.workload().unwrap().samples;
    drop(keyspace);
    let cuts = Arc::new(std::sync::Mutex::new(Vec::new()));
    let (seen, after) = (Arc::clone(&cuts), std::sync::atomic::AtomicBool::new(false));
    disk.set_hook(Some(Arc::new(move |disk: &SimDisk| {
        // Cuts the power while LOAD.new exists, and once afterwards.
        let is_there = disk.read_file(Path::new("/db/LOAD.new")).is_ok();
        if after.swap(is_there, std::sync::atomic::Ordering::Relaxed) || is_there {
            let some = (0..6).map(|seed| KeepChoice::Seeded { seed, percent: 50 });
            let cuts =
                [KeepChoice::None, KeepChoice::All].into_iter().chain(some).map(|keep| disk.power_cut(&keep));
            seen.lock().unwrap().extend(cuts);
        }
    })));
    db.close().unwrap();
    disk.set_hook(None);
    let mut found = std::collections::BTreeSet::new();
    for cut in cuts.lock().unwrap().iter() {
        let samples = open(cut).1.workload().unwrap().samples;
        assert!(samples == old || samples == new, "{samples}: neither {old} nor {new}");
        found.insert(samples);
    }
    assert_eq!(found.into_iter().collect::<Vec<_>>(), [old, new], "both were seen");
}

#[test]
fn a_damaged_or_unknown_statistics_file_is_ignored() -> Result<()> {
    let disk = SimDisk::new();
    let (db, keyspace) = open(&disk);
    used(&db, &keyspace);
    drop(keyspace);
    db.close()?;
    let whole = disk.read_file(Path::new(WORKLOAD_FILE)).unwrap();
    let mut newer = whole.clone();
    newer[8] = 2;
    let sum = crc(&newer);
    newer[16..20].copy_from_slice(&sum.to_le_bytes());
    for bytes in [&newer[..], &whole[..whole.len() / 2], &[], b"SHEAFLOD", &[0xff; 5000]] {
        let disk = disk.fork();
        disk.remove_file(Path::new(WORKLOAD_FILE)).unwrap();
        disk.put_file(Path::new(WORKLOAD_FILE), bytes).unwrap();
        let (db, keyspace) = open(&disk);
        assert_eq!(keyspace.workload()?.samples, 0);
        assert_eq!(keyspace.len()?, 100);
        db.verify(|damage| panic!("{damage}"))?;
        used(&db, &keyspace);
        drop(keyspace);
        db.close()?;
        assert!(open(&disk).1.workload()?.samples > 0, "it begins anew");
    }
    Ok(())
}

fn crc(file: &[u8]) -> u32 {
    let mut crc = !0u32;
    for byte in file[..16].iter().chain(&file[20..]) {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

#[test]
fn reading_writes_nothing() -> Result<()> {
    let disk = SimDisk::new();
    let (db, keyspace) = open(&disk);
    used(&db, &keyspace);
    drop(keyspace);
    db.close()?;
    let before = (disk.files(), disk.read_file(Path::new(WORKLOAD_FILE)).unwrap());
    let db = builder(&disk).read_only(true).open(DIR)?;
    let keyspace = db.open_keyspace("used")?.unwrap();
    for n in 0..1000u32 {
        keyspace.get((n % 100).to_be_bytes())?;
    }
    drop(keyspace);
    db.close()?;
    assert_eq!(before, (disk.files(), disk.read_file(Path::new(WORKLOAD_FILE)).unwrap()));
    Ok(())
}

#[test]
fn statistics_follow_clear_replacement_conversion_and_drop() -> Result<()> {
    let disk = SimDisk::new();
    let (db, keyspace) = open(&disk);
    used(&db, &keyspace);
    let before = keyspace.workload()?;
    keyspace.clear()?;
    assert_eq!(keyspace.workload()?.gets_found, before.gets_found, "clearing keeps the statistics");
    db.convert("used", "flat", |_| std::ops::ControlFlow::Continue(()))?;
    let after = keyspace.workload()?;
    assert_eq!(after.gets_found, before.gets_found, "conversion keeps the statistics");
    assert_eq!(after.read_latency.samples, 0, "but not the latencies of the old engine");
    db.drop_keyspace("used")?;
    assert_eq!(
        db.keyspace("used", KeyspaceOptions::default())?.workload()?.samples,
        0,
        "a new keyspace of the same name starts empty"
    );
    db.close()?;
    assert_eq!(open(&disk).1.workload()?.samples, 0);
    Ok(())
}

#[test]
fn a_backup_excludes_the_statistics() -> Result<()> {
    let disk = SimDisk::new();
    let (db, keyspace) = open(&disk);
    used(&db, &keyspace);
    drop(keyspace);
    db.close()?;
    let (db, _) = open(&disk);
    db.backup("/copy", sheaf::BackupOptions::default())?;
    builder(&disk).restore("/copy", "/again", None)?;
    let again = builder(&disk).open("/again")?;
    let keyspace = again.open_keyspace("used")?.unwrap();
    assert_eq!((keyspace.len()?, keyspace.workload()?.samples), (100, 0));
    Ok(())
}

#[test]
fn a_full_disk_does_not_prevent_close() -> Result<()> {
    let disk = SimDisk::new();
    let db = builder(&disk).open(DIR)?;
    let keyspace = db.keyspace("used", KeyspaceOptions::default().engine("flat"))?;
    for n in 0..4_000u32 {
        keyspace.insert((n % 100).to_be_bytes(), [1; 20])?;
        if n % 64 == 0 {
            db.pump()?;
        }
    }
    drop(keyspace);
    db.persist()?;
    disk.set_capacity(1);
    db.close()?;
    assert!(disk.read_file(Path::new("/db/LOAD.new")).is_err(), "nothing half written stays");
    disk.set_capacity(u64::MAX);
    let db = builder(&disk).open(DIR)?;
    assert_eq!(db.open_keyspace("used")?.unwrap().len()?, 100);
    Ok(())
}
