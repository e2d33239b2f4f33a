//! Damage to any byte, sector, length or file of a small database: the exact result or an error.
//!
//! CI samples damages that are spread evenly; a campaign has no limit.

use std::path::Path;

use sheaf_testkit::corruption::{
    CorruptionReport, InjectedDamage, ScanReport, StoredDatabase, inspect, inspect_all, scan_damaged,
};
use sheaf_testkit::crash::workload::{CrashStep, WorkloadShape, generate, parse_steps};
use sheaf_testkit::fixture::TestSubject;

sheaf_testkit::every_engine!(corruption_suite);

/// Replays a line that a failure prints: `SHEAF_CORRUPT='flat Loaded 1 4711'`.
#[test]
#[ignore = "replays one line"]
fn replay() {
    let line = std::env::var("SHEAF_CORRUPT").expect("SHEAF_CORRUPT holds the line");
    sheaf_testkit::corruption::sweep::replay(&line).unwrap();
}

fn steps(seed: u64) -> Vec<CrashStep> {
    let mut steps = parse_steps("0.1=30 1.1=50 0.2=200 persist").expect("written by hand");
    steps.extend(generate(
        seed,
        &WorkloadShape { steps: 60, has_background_work: true, ..WorkloadShape::default() },
    ));
    steps.extend(parse_steps("S[0.4=600,1.4=80] 0.5=33 1.5=44").expect("written by hand"));
    steps
}

fn assert_no_failures(name: &str, report: CorruptionReport) {
    println!("{name}: {report}");
    assert!(report.failures.is_empty(), "{name}: {report}\n{}", report.failures.join("\n"));
    assert!(report.cases > 0, "{name}: nothing was damaged");
}

#[test]
fn flipped_bits_after_a_clean_close_are_never_wrong_answers() {
    let stored_db = StoredDatabase::closed(&steps(3));
    assert_no_failures("flips, closed", inspect_all(&stored_db, stored_db.bit_flips(13, 1)));
}

#[test]
fn flipped_bits_after_a_kill_take_at_most_the_unsynced_tail() {
    let stored_db = StoredDatabase::killed(&steps(4));
    assert_no_failures("flips, killed", inspect_all(&stored_db, stored_db.bit_flips(13, 2)));
}

#[test]
fn zeroed_swapped_and_stale_sectors_are_never_wrong_answers() {
    for (name, stored_db, older) in [
        ("sectors, closed", StoredDatabase::closed(&steps(3)), StoredDatabase::killed(&steps(3)[..30])),
        ("sectors, killed", StoredDatabase::killed(&steps(4)), StoredDatabase::killed(&steps(4)[..30])),
    ] {
        assert_no_failures(name, inspect_all(&stored_db, stored_db.sector_damages(Some(&older))));
    }
}

#[test]
fn files_cut_short_are_never_wrong_answers() {
    let stored_db = StoredDatabase::closed(&steps(3));
    assert_no_failures("lengths, closed", inspect_all(&stored_db, stored_db.length_damages(97)));
    // After a kill, a truncated newest segment is a torn tail, synced or not: the cut also removes
    // the proof that more was durable. So any prefix is right here.
    let stored_db = StoredDatabase { min_commits: 0, ..StoredDatabase::killed(&steps(4)) };
    assert_no_failures("lengths, killed", inspect_all(&stored_db, stored_db.length_damages(97)));
}

#[test]
fn missing_foreign_and_doubled_files_are_never_wrong_answers() {
    let older = StoredDatabase::closed(&steps(3)[..30]);
    let foreign = StoredDatabase::closed(&steps(9));
    let stored_db = StoredDatabase::closed(&steps(3));
    assert_no_failures("files, closed", inspect_all(&stored_db, stored_db.file_damages(&older, &foreign)));
    let stored_db = StoredDatabase::killed(&steps(4));
    assert_no_failures("files, killed", inspect_all(&stored_db, stored_db.file_damages(&older, &foreign)));
}

/// Returns databases of killed processes with keyspaces in both logs, each with the name of a case
/// and the damages that remove one file, except those of large values. Such a file may be missing
/// after a crash if its commit is above the durable mark, so its loss does not look like damage.
pub(crate) fn killed_databases_without_a_file()
-> impl Iterator<Item = (String, StoredDatabase, Vec<InjectedDamage>)> {
    (0..TestSubject::flat().ci_cases(30)).map(|seed| {
        let shape = WorkloadShape {
            has_background_work: seed % 2 == 0,
            has_drops: seed % 3 == 0,
            has_renames_and_merges: true,
            ..WorkloadShape::default()
        };
        let stored_db = StoredDatabase::killed(&generate(seed, &shape));
        let files = stored_db.files().into_iter().map(|(path, _)| path);
        let is_value = |path: &Path| path.components().any(|part| part.as_os_str() == "blob");
        let damages = files.filter(|path| !is_value(path)).map(InjectedDamage::Missing).collect();
        (format!("seed {seed}"), stored_db, damages)
    })
}

/// Regression: a commit had parts in both logs, and later commits were in the value log only. After
/// a kill and the loss of that log, recovery dropped the part in the journal, without an error. It
/// took the commit for one that the kill had interrupted.
#[test]
fn missing_files_after_a_kill_are_never_wrong_answers() {
    for (case, stored_db, damages) in killed_databases_without_a_file() {
        assert_no_failures(&case, inspect_all(&stored_db, damages));
    }
}

#[test]
fn a_damaged_entry_leaves_the_other_keyspace_and_the_other_keys_alone() {
    // Values contain the number of their step. Each is found in the files and damaged, and only
    // that value may be affected.
    let steps = parse_steps("0.2=60 1.2=60 0.3=60 1.3=60 0.4=60 1.4=60 persist").expect("written by hand");
    let stored_db = StoredDatabase::closed(&steps);
    let mut hit = 0;
    for (path, _) in stored_db.files() {
        let bytes = stored_db.sim.read_file(&path).expect("listed");
        for place in bytes.windows(5).enumerate().filter(|(_, w)| *w == b"<0.0>").map(|(at, _)| at as u64) {
            let answer =
                inspect(&stored_db, &InjectedDamage::Flip(path.clone(), place, 3)).expect("no wrong answer");
            assert!(answer.has_error && !answer.open_failed, "{} at {place}: {answer:?}", path.display());
            assert!(answer.intact_keyspaces >= 1, "the other keyspace suffers: {answer:?}");
            hit += 1;
        }
    }
    assert!(hit > 0, "the value is in no file");
}

/// Checks that an iteration continues after damage: it must return each key that a lookup finds,
/// except keys next to a damaged block.
fn scans_continue_after_damage(subject: &TestSubject, has_blocks: bool) {
    // More data than engines keep in memory, so that each has blocks on the disk.
    let round = |round: u32| (2..120).map(move |key| format!("0.{key}={} ", 60 + round + key % 50));
    let many: String = (0..3).flat_map(|number| round(number).chain(["persist work ".to_owned()])).collect();
    let stored_db = StoredDatabase::closed_with(subject, &parse_steps(&many).expect("written by hand"));
    let mut walks = ScanReport::default();
    for damage in stored_db.bit_flips(97, 1) {
        scan_damaged(&stored_db, &damage, &mut walks);
    }
    let ScanReport {
        damaged_scans: damaged,
        continued_scans: went_on,
        hidden_keys: hidden,
        hidden_near_damage: near_damage,
    } = walks;
    println!("{}: {damaged} damaged, {went_on} went on, {} near", subject.name, near_damage.len());
    assert!(hidden.is_empty(), "{}: {}", subject.name, hidden.join("\n"));
    assert!(has_blocks || near_damage.is_empty(), "{}: {}", subject.name, near_damage.join("\n"));
    assert!(damaged > 20 && went_on > damaged / 4, "{}: {went_on} of {damaged} went on", subject.name);
}

#[test]
fn flat_scans_continue_after_damage() {
    scans_continue_after_damage(&TestSubject::flat(), false);
    scans_continue_after_damage(&TestSubject::flat_ordered(), false);
}

#[test]
fn flex_scans_continue_after_damage() {
    scans_continue_after_damage(&TestSubject::flex(), true);
}

#[test]
fn delsm_scans_continue_after_damage() {
    scans_continue_after_damage(&TestSubject::delsm(), true);
}

#[test]
fn cedrus_scans_continue_after_damage() {
    scans_continue_after_damage(&TestSubject::cedrus(), false);
}

#[test]
fn kreon_scans_continue_after_damage() {
    scans_continue_after_damage(&TestSubject::kreon(), true);
}
