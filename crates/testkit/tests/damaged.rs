//! Damage in files of the engines' own: what it costs, and what a repair finds in spite of it.

#![expect(clippy::unwrap_used, reason = "a test's own steps work")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sheaf::{Database, RepairOptions, RepairReport};
use sheaf_base::disk::remove_tree;
use sheaf_base::disk::sim::SimDisk;
use sheaf_testkit::stage::{Place, Setting, Stage, Subject};

/// Where the repaired database goes.
const NEW: &str = "/new";

/// A stage of a simulated disk in usual geometry.
fn stage(subject: &Subject) -> Stage {
    Stage::new(subject, Setting::new(Place::Simulated, false, true))
}

fn sim(stage: &Stage) -> &SimDisk {
    stage.simulated().expect("it is simulated")
}

/// Returns the files of the database whose names have `part` in them, with their lengths.
fn files(stage: &Stage, part: &str) -> Vec<(PathBuf, u64)> {
    let mut files = sim(stage).files();
    let has_it = |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().contains(part));
    files.retain(|(path, _)| path.starts_with(stage.path()) && has_it(path));
    files
}

fn flip(stage: &Stage, path: &Path, at: u64) {
    let bytes = sim(stage).read_file(path).expect("it is there");
    let byte = bytes[usize::try_from(at).expect("a small file")];
    sim(stage).overwrite(path, at, &[byte ^ 1]).expect("it can be written");
}

/// Repairs with what is doubtful, and opens the new database.
fn repaired(stage: &Stage) -> (RepairReport, Database) {
    let options = RepairOptions::default().doubtful(true);
    let report = stage.builder().repair(stage.path(), NEW, options).expect("it is repaired");
    (report, stage.builder().create(false).open(NEW).expect("the new database opens"))
}

fn key(n: u32) -> [u8; 4] {
    n.to_be_bytes()
}

/// Fills a keyspace with `small` pairs and `large` ones of 20 KB, and closes the database.
fn fill(stage: &Stage, small: u32, large: u32) {
    let db = stage.open();
    let keyspace = stage.keyspace(&db, "a");
    (0..small).for_each(|n| keyspace.insert(key(n), n.to_string()).unwrap());
    (small..small + large).for_each(|n| keyspace.insert(key(n), vec![b'l'; 20_000]).unwrap());
    db.close().unwrap();
}

/// Case D1: the marks of the files of an engine's own were keyed with the secret that stood in
/// ROOT.
#[test]
fn without_root_all_pairs_are_found_as_doubtful() {
    for engine in sheaf::engines() {
        let subject = Subject::named(engine).expect("all have a subject");
        let stage = stage(&subject);
        fill(&stage, 1000, 10);
        ["ROOT.0", "ROOT.1"]
            .iter()
            .for_each(|slot| sim(&stage).remove_file(&stage.path().join(slot)).unwrap());
        let (report, db) = repaired(&stage);
        let [found] = &report.keyspaces[..] else { panic!("{subject:?}: {report:?}") };
        assert_eq!((found.certain, found.doubtful, found.lost), (0, 1010, 0), "{subject:?}: {report:?}");
        let keyspace = db.existing_keyspace(&found.name).unwrap().unwrap();
        assert!((0..1010).all(|n| keyspace.contains_key(key(n)).unwrap()), "{subject:?}");
        assert_eq!(keyspace.get(key(7)).unwrap().as_deref(), Some(&b"7"[..]), "{subject:?}");
    }
}

/// A repair that leaves a file of the engine out says that something is lost, with ROOT and without
/// it.
#[test]
fn a_repair_that_skips_a_file_never_says_that_all_is_there() {
    for is_rootless in [false, true] {
        for end in [".keys", "KEYS.", ".pack"] {
            let stage = stage(&Subject::delsm());
            fill(&stage, 100, 0);
            let found = files(&stage, end);
            assert!(!found.is_empty(), "{end}");
            for (path, len) in found {
                (0..len).step_by(9).for_each(|at| flip(&stage, &path, at));
            }
            let roots = if is_rootless { files(&stage, "ROOT.0") } else { Vec::new() };
            for (path, _) in roots {
                sim(&stage).remove_file(&path).unwrap();
                sim(&stage).remove_file(&path.with_extension("1")).unwrap();
            }
            let (report, _db) = repaired(&stage);
            let [found] = &report.keyspaces[..] else { panic!("{end}, {is_rootless}: {report:?}") };
            assert!(!found.is_whole() && (found.lost > 0 || found.and_more), "{end}: {report:?}");
            assert!(report.damage_count + found.lost > 0, "{end}, {is_rootless}: {report:?}");
        }
    }
}

/// Case D2: values and blocks have checksums of their own, so that a damaged head costs nothing but
/// a finding.
#[test]
fn a_damaged_head_of_a_pack_or_a_list_costs_no_value() {
    for end in [".pack", ".keys"] {
        for at in 0..32 {
            let stage = stage(&Subject::delsm());
            fill(&stage, 100, 1);
            let [(path, _)] = &files(&stage, end)[..] else { panic!("one {end}") };
            flip(&stage, path, at);
            let (report, repaired) = repaired(&stage);
            let [found] = &report.keyspaces[..] else { panic!("{end} {at}: {report:?}") };
            assert_eq!((found.certain, found.lost), (101, 0), "{end} {at}: {report:?}");
            drop(repaired);
            let db = stage.open();
            let keyspace = stage.keyspace(&db, "a");
            assert!((0..100).all(|n| keyspace.get(key(n)).unwrap().is_some()), "{end} {at}");
            keyspace.insert(key(1), "new").unwrap();
            let mut findings = Vec::new();
            db.verify(|finding| findings.push(finding)).unwrap();
            assert_eq!(findings.len(), 1, "{end} {at}: {findings:?}");
        }
    }
}

/// Case D3: a damaged page of the trie costs the keys below it, the head of the file none, and a
/// repair finds all.
#[test]
fn a_damaged_page_of_a_trie_costs_only_what_is_below_it() {
    const KEYS: u32 = 20_000;
    let stage = stage(&Subject::cedrus());
    fill(&stage, KEYS, 0);
    let [(path, _)] = &files(&stage, "trie")[..] else { panic!("one trie") };
    let good = sim(&stage).read_file(path).unwrap();
    for page in [0, 1, 2, 7] {
        let mut bytes = good.clone();
        bytes[page * 4096 + 3] ^= 1;
        sim(&stage).put_file(path, &bytes).unwrap();
        let (report, _) = repaired(&stage);
        let [found] = &report.keyspaces[..] else { panic!("{page}: {report:?}") };
        assert_eq!(found.certain + found.doubtful, u64::from(KEYS), "{page}: {report:?}");
        remove_tree(sim(&stage), Path::new(NEW)).unwrap();

        let db = stage.builder_on(Arc::new(sim(&stage).fork())).open(stage.path()).unwrap();
        let keyspace = stage.keyspace(&db, "a");
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
