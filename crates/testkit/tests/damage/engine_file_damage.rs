//! Damage in files of the engines: its effect on reads, and the data that a repair still finds.

#![expect(clippy::unwrap_used, reason = "a test's own steps work")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sheaf::{Database, Error, RepairFinding, RepairOptions, RepairOutcome, RepairReport};
use sheaf_platform::disk::{Disk, remove_tree};
use sheaf_sim::SimDisk;
use sheaf_testkit::fixture::{DiskKind, Fixture, TestSetting, TestSubject};

/// Directory of the repaired database.
const REPAIRED_DIR: &str = "/new";

/// Returns a fixture with a simulated disk in normal geometry.
fn fixture(subject: &TestSubject) -> Fixture {
    Fixture::new(subject, TestSetting::new(DiskKind::Simulated, false, true))
}

fn sim(fixture: &Fixture) -> &SimDisk {
    fixture.sim_disk().expect("it is simulated")
}

/// Returns the files of the database with `part` in their names, and their lengths.
fn files(fixture: &Fixture, part: &str) -> Vec<(PathBuf, u64)> {
    let mut files = sim(fixture).files();
    let has_it = |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().contains(part));
    files.retain(|(path, _)| path.starts_with(fixture.path()) && has_it(path));
    files
}

fn flip(fixture: &Fixture, path: &Path, at: u64) {
    let bytes = sim(fixture).read_file(path).expect("it is there");
    let byte = bytes[usize::try_from(at).expect("a small file")];
    sim(fixture).overwrite(path, at, &[byte ^ 1]).expect("it can be written");
}

/// Repairs with doubtful pairs, and opens the new database.
fn repaired(fixture: &Fixture) -> (RepairReport, Database) {
    let options = RepairOptions::default().keep_doubtful(true);
    let report = fixture.builder().repair(fixture.path(), REPAIRED_DIR, options).expect("it is repaired");
    (report, fixture.builder().create(false).open(REPAIRED_DIR).expect("the new database opens"))
}

fn key(n: u32) -> [u8; 4] {
    n.to_be_bytes()
}

/// Fills a keyspace with `small` pairs and `large` ones of 20 KB, and closes the database.
fn fill(fixture: &Fixture, small: u32, large: u32) {
    let db = fixture.open();
    let keyspace = fixture.keyspace(&db, "a");
    (0..small).for_each(|n| keyspace.insert(key(n), n.to_string()).unwrap());
    (small..small + large).for_each(|n| keyspace.insert(key(n), vec![b'l'; 20_000]).unwrap());
    db.close().unwrap();
}

/// Case D1: marks in the files of engines are keyed with the secret in ROOT. Without ROOT a repair
/// must still find all pairs, as doubtful ones.
#[test]
fn without_root_all_pairs_are_found_as_doubtful() {
    for engine in sheaf::engines() {
        let subject = TestSubject::by_name(engine).expect("all have a subject");
        let fixture = fixture(&subject);
        fill(&fixture, 1000, 10);
        ["ROOT.0", "ROOT.1"]
            .iter()
            .for_each(|slot| sim(&fixture).remove_file(&fixture.path().join(slot)).unwrap());
        let (report, db) = repaired(&fixture);
        let [found] = &report.keyspaces[..] else { panic!("{subject:?}: {report:?}") };
        assert_eq!((found.certain, found.doubtful, found.lost), (0, 1010, 0), "{subject:?}: {report:?}");
        let keyspace = db.open_keyspace(&found.name).unwrap().unwrap();
        assert!((0..1010).all(|n| keyspace.contains_key(key(n)).unwrap()), "{subject:?}");
        assert_eq!(keyspace.get(key(7)).unwrap().as_deref(), Some(&b"7"[..]), "{subject:?}");
    }
}

/// A repair that skips a file of the engine reports a loss, with and without ROOT.
#[test]
fn a_repair_that_skips_a_file_reports_a_loss() {
    for is_rootless in [false, true] {
        for end in [".keys", "KEYS.", ".pack"] {
            let fixture = fixture(&TestSubject::delsm());
            fill(&fixture, 100, 0);
            let found = files(&fixture, end);
            assert!(!found.is_empty(), "{end}");
            for (path, len) in found {
                (0..len).step_by(9).for_each(|at| flip(&fixture, &path, at));
            }
            let roots = if is_rootless { files(&fixture, "ROOT.0") } else { Vec::new() };
            for (path, _) in roots {
                sim(&fixture).remove_file(&path).unwrap();
                sim(&fixture).remove_file(&path.with_extension("1")).unwrap();
            }
            let (report, _db) = repaired(&fixture);
            let [found] = &report.keyspaces[..] else { panic!("{end}, {is_rootless}: {report:?}") };
            assert!(!found.is_complete() && (found.lost > 0 || found.has_more_lost), "{end}: {report:?}");
            assert!(report.damage_count + found.lost > 0, "{end}, {is_rootless}: {report:?}");
        }
    }
}

/// Case D2: values and blocks have their own checksums, so a damaged file header causes a finding
/// but no loss.
#[test]
fn a_damaged_pack_or_list_header_loses_no_value() {
    for end in [".pack", ".keys"] {
        for at in 0..32 {
            let fixture = fixture(&TestSubject::delsm());
            fill(&fixture, 100, 1);
            let [(path, _)] = &files(&fixture, end)[..] else { panic!("one {end}") };
            flip(&fixture, path, at);
            let (report, repaired) = repaired(&fixture);
            let [found] = &report.keyspaces[..] else { panic!("{end} {at}: {report:?}") };
            assert_eq!((found.certain, found.lost), (101, 0), "{end} {at}: {report:?}");
            drop(repaired);
            let db = fixture.open();
            let keyspace = fixture.keyspace(&db, "a");
            assert!((0..100).all(|n| keyspace.get(key(n)).unwrap().is_some()), "{end} {at}");
            keyspace.insert(key(1), "new").unwrap();
            let mut findings = Vec::new();
            db.verify(|finding| findings.push(finding)).unwrap();
            assert_eq!(findings.len(), 1, "{end} {at}: {findings:?}");
        }
    }
}

/// Case D3: a damaged page of the trie makes the keys below it unreadable, and damage to the file
/// header none. A repair finds all keys.
#[test]
fn a_damaged_trie_page_loses_only_its_subtree() {
    const KEYS: u32 = 20_000;
    let fixture = fixture(&TestSubject::cedrus());
    fill(&fixture, KEYS, 0);
    let [(path, _)] = &files(&fixture, "trie")[..] else { panic!("one trie") };
    let good = sim(&fixture).read_file(path).unwrap();
    for page in [0, 1, 2, 7] {
        let mut bytes = good.clone();
        bytes[page * 4096 + 3] ^= 1;
        sim(&fixture).put_file(path, &bytes).unwrap();
        let (report, _) = repaired(&fixture);
        let [found] = &report.keyspaces[..] else { panic!("{page}: {report:?}") };
        assert_eq!(found.certain + found.doubtful, u64::from(KEYS), "{page}: {report:?}");
        remove_tree(sim(&fixture), Path::new(REPAIRED_DIR)).unwrap();

        let db = fixture.builder_on(Arc::new(sim(&fixture).fork())).open(fixture.path()).unwrap();
        let keyspace = fixture.keyspace(&db, "a");
        let fails = |act: &dyn Fn(u32) -> sheaf::Result<()>| (0..KEYS).filter(|n| act(*n).is_err()).count();
        let gets = fails(&|n| keyspace.get(key(n)).map(drop));
        let most = if page == 0 { 0 } else { 500 };
        assert!(gets <= most && (gets > 0) == (page > 0), "{page}: {gets} keys cannot be read");
        assert_eq!(fails(&|n| keyspace.insert(key(n), "new")), gets, "{page}");
        assert_eq!(fails(&|n| keyspace.insert(key(KEYS + n), "new")) > 0, page > 0, "{page}");
        assert_eq!(fails(&|n| keyspace.remove(key(n))), gets, "{page}");
        let mut findings = Vec::new();
        db.verify(|finding| findings.push(finding)).unwrap();
        assert!(findings.iter().any(|finding| finding.to_string().contains("trie")), "{page}: {findings:?}");
    }
}

/// Fills a tiny database so that every kind of file exists: values of all sizes, keys that are
/// overwritten and removed, several openings. Closes it if `is_closed`, otherwise kills it.
fn fill_tiny(fixture: &Fixture, is_closed: bool) {
    for round in 0..3_u32 {
        let db = fixture.open();
        let keyspace = fixture.keyspace(&db, "a");
        for n in 0..60 {
            let len = if n % 20 == 0 { 3000 } else { usize::try_from(n % 7 * 20).unwrap() };
            keyspace.insert(key(n * 4 + round), vec![b'v'; len]).unwrap();
        }
        (0..9).for_each(|n| keyspace.remove(key(n * 24)).unwrap());
        match is_closed || round < 2 {
            true => db.close().unwrap(),
            false => {
                fixture.kill();
                drop(db);
            }
        }
    }
}

/// Returns the damaged places that a verification finds, by file and offset.
fn verified_damage(fixture: &Fixture, disk: &SimDisk) -> Vec<(PathBuf, u64)> {
    let mut findings = Vec::new();
    let mut note = |error| match error {
        Error::Corrupt { path, offset, .. } => findings.push((path, offset)),
        error => panic!("{error}"),
    };
    match fixture.builder_on(Arc::new(disk.clone())).read_only(true).open(fixture.path()) {
        Ok(db) => drop(db.verify(note).unwrap()),
        Err(error) => note(error),
    }
    findings
}

/// Returns `count` offsets of bytes that are not zero, spread over the file.
fn nonzero_offsets(bytes: &[u8], count: usize) -> Vec<usize> {
    let used: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
    (0..count).filter_map(|n| used.get((used.len() * n + used.len() / 2) / count).copied()).collect()
}

/// Returns the first and the last file of each directory, without the lock: a reader needs it, and
/// it has no data.
fn few_of_each_kind(fixture: &Fixture) -> Vec<PathBuf> {
    let mut kinds: BTreeMap<PathBuf, Vec<PathBuf>> = BTreeMap::new();
    for (path, _) in files(fixture, "").into_iter().filter(|(path, _)| !path.ends_with("LOCK")) {
        // All directories with values of a keyspace count as one.
        let mut dir = path.parent().unwrap();
        if dir.parent().is_some_and(|above| above.ends_with("blob")) {
            dir = dir.parent().unwrap();
        }
        kinds.entry(dir.to_path_buf()).or_default().push(path);
    }
    let ends = |files: Vec<PathBuf>| {
        let last = files.last().filter(|_| files.len() > 1).cloned();
        files.into_iter().take(1).chain(last).collect::<Vec<_>>()
    };
    kinds.into_values().flat_map(ends).collect()
}

/// Returns whether the report contains the damaged place.
fn has_place(report: &RepairReport, (path, offset): &(PathBuf, u64)) -> bool {
    let mut same = report.damaged_files.iter().filter(|harm| harm.path == *path);
    same.any(|harm| harm.start == *offset || harm.end.is_some_and(|to| (harm.start..to).contains(offset)))
}

/// Flips a byte of, or removes, files of every engine's database: the report of a repair must
/// contain all damage that a verification reports.
#[test]
fn repair_reports_all_damage_that_verify_reports() {
    for (engine, is_closed) in sheaf::engines().into_iter().flat_map(|e| [(e, true), (e, false)]) {
        let subject = TestSubject::by_name(engine).expect("all have a subject");
        let fixture = Fixture::new(&subject, TestSetting::new(DiskKind::Simulated, true, true));
        fill_tiny(&fixture, is_closed);
        assert_eq!(verified_damage(&fixture, &sim(&fixture).fork()), [], "{engine}");
        let (mut found, mut unsaid) = (0, Vec::new());
        for path in few_of_each_kind(&fixture) {
            let bytes = sim(&fixture).read_file(&path).unwrap();
            for at in nonzero_offsets(&bytes, 2).into_iter().map(Some).chain([None]) {
                let disk = sim(&fixture).fork();
                match at {
                    Some(at) => disk.overwrite(&path, at as u64, &[bytes[at] ^ 1]).unwrap(),
                    None => disk.remove_file(&path).unwrap(),
                }
                let findings = verified_damage(&fixture, &disk);
                found += findings.len();
                let builder = fixture.builder_on(Arc::new(disk));
                let report = builder.repair(fixture.path(), REPAIRED_DIR, RepairOptions::default()).unwrap();
                let missing = findings.into_iter().filter(|place| !has_place(&report, place));
                unsaid.extend(missing.map(|place| (path.clone(), at, place)));
            }
        }
        assert!(unsaid.is_empty(), "{engine}, closed {is_closed}: not reported: {unsaid:#?}");
        assert!(found > 10, "{engine}, closed {is_closed}: {found} places");
    }
}

/// Removes a file of the log or flips one of its bytes. The report must contain every lost pair: by
/// key, or by file if only the lost records had the keys. For an ordered engine it also has the
/// neighboring keys.
#[test]
fn each_lost_pair_is_reported_by_key_or_by_file() {
    for engine in ["flat", "flat-ordered", "cedrus", "kreon"] {
        let subject = TestSubject::by_name(engine).expect("all have a subject");
        let fixture = Fixture::new(&subject, TestSetting::new(DiskKind::Simulated, true, true));
        fill_tiny(&fixture, true);
        let logs = files(&fixture, ".seg").into_iter().map(|(path, _)| path);
        let mut seen = 0;
        for path in logs.filter(|path| path.parent().unwrap().ends_with("flat")) {
            let bytes = sim(&fixture).read_file(&path).unwrap();
            for at in nonzero_offsets(&bytes, 1).into_iter().map(Some).chain([None]) {
                let disk = sim(&fixture).fork();
                match at {
                    Some(at) => disk.overwrite(&path, at as u64, &[bytes[at] ^ 1]).unwrap(),
                    None => disk.remove_file(&path).unwrap(),
                }
                let mut named = 0;
                let mut listener = |finding: &RepairFinding<'_>| {
                    named += u64::from(matches!(finding.outcome, RepairOutcome::Lost { .. }));
                };
                let options = RepairOptions::default().on_finding(&mut listener);
                let report =
                    fixture.builder_on(Arc::new(disk)).repair(fixture.path(), REPAIRED_DIR, options).unwrap();
                let found = report.keyspaces.iter().find(|found| found.name == "a").unwrap();
                assert_eq!(found.lost, named + found.lost_without_key, "{engine}: {report:?}");
                let placed = found.lost_records.iter().map(|lost| lost.pairs).sum::<u64>();
                assert_eq!(placed, found.lost_without_key, "{engine}: {report:?}");
                assert!(found.lost_records.iter().all(|lost| lost.path == path), "{engine}: {report:?}");
                let has_gap = subject.ordered && found.lost_without_key > 0;
                assert_eq!(!found.unreadable_ranges.is_empty(), has_gap, "{engine}: {report:?}");
                // The index of `kreon` has whole keys and small values, so their pairs are not
                // lost.
                assert!(engine != "kreon" || found.lost_without_key == 0, "{report:?}");
                seen += found.lost;
            }
        }
        assert!(seen > 20, "{engine}: {seen} pairs");
    }
}

/// Writes zeros over the start of both heads of the space of a `flex` keyspace.
fn lose_heads(fixture: &Fixture, disk: &SimDisk) {
    for (path, _) in files(fixture, "HEAD.") {
        disk.overwrite(&path, 0, &[0; 200]).unwrap();
    }
}

/// Files of a space contain the id of the space and a number, so all pairs are found without both
/// heads. They are doubtful, because the heads may have named newer files.
#[test]
fn without_the_heads_of_a_space_all_pairs_are_found_as_doubtful() {
    for is_tiny in [true, false] {
        for is_closed in [true, false] {
            let fixture =
                Fixture::new(&TestSubject::flex(), TestSetting::new(DiskKind::Simulated, is_tiny, true));
            match is_tiny {
                true => fill_tiny(&fixture, is_closed),
                false => fill(&fixture, 3000, 10),
            }
            let disk = Arc::new(sim(&fixture).fork());
            let opened = fixture.builder_on(Arc::new(sim(&fixture).fork())).open(fixture.path()).unwrap();
            let expected = read_all(&fixture.keyspace(&opened, "a"));
            lose_heads(&fixture, &disk);
            let builder = fixture.builder_on(Arc::clone(&disk) as Arc<dyn Disk>);
            let options = RepairOptions::default().keep_doubtful(true);
            let report = builder.repair(fixture.path(), REPAIRED_DIR, options).unwrap();
            let [found] = &report.keyspaces[..] else { panic!("{report:?}") };
            assert_eq!((found.certain, found.lost), (0, 0), "{report:?}");
            assert!(!found.is_complete() && has_place(&report, &(files(&fixture, "HEAD.0")[0].0.clone(), 0)));
            let db = fixture.builder_on(disk).create(false).open(REPAIRED_DIR).unwrap();
            let what = format!("tiny {is_tiny}, closed {is_closed}: {report:?}");
            assert!(read_all(&fixture.keyspace(&db, "a")) == expected, "{what}");
        }
    }
}

fn read_all(keyspace: &sheaf::Keyspace) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let pairs = keyspace.iter().unwrap().map(|pair| pair.map(|(key, value)| (key.to_vec(), value.to_vec())));
    pairs.collect::<sheaf::Result<_>>().unwrap()
}

/// With a flipped byte in the data in addition: only the pairs of its interval are lost.
#[test]
fn without_heads_damage_loses_only_its_interval() {
    let fixture = fixture(&TestSubject::flex());
    fill(&fixture, 5000, 0);
    let [(area, _)] = &files(&fixture, ".area")[..] else { panic!("one area") };
    let bytes = sim(&fixture).read_file(area).unwrap();
    let expected = read_all(&fixture.keyspace(&fixture.open(), "a"));
    for at in nonzero_offsets(&bytes, 8) {
        let disk = Arc::new(sim(&fixture).fork());
        lose_heads(&fixture, &disk);
        disk.overwrite(area, at as u64, &[bytes[at] ^ 1]).unwrap();
        let builder = fixture.builder_on(Arc::clone(&disk) as Arc<dyn Disk>);
        let options = RepairOptions::default().keep_doubtful(true);
        let report = builder.repair(fixture.path(), REPAIRED_DIR, options).unwrap();
        assert!(report.damaged_files.iter().any(|harm| harm.path == *area), "{at}: {report:?}");
        let db = fixture.builder_on(disk).create(false).open(REPAIRED_DIR).unwrap();
        let found = read_all(&fixture.keyspace(&db, "a"));
        assert!((4800..5000).contains(&found.len()), "{at}: {} pairs", found.len());
        assert!(found.iter().all(|(key, value)| expected.get(key) == Some(value)), "{at}");
    }
}
