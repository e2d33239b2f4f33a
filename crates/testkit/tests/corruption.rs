//! Damage to any byte, sector, length or file of a small database: the exact answer or an error.
//!
//! CI sweeps over places spread evenly; a campaign goes on for as long as wanted.

use sheaf_testkit::corrupt::{Damage, Fixture, Report, Walks, corrupt, inspect, walk};
use sheaf_testkit::crash::workload::{Shape, Step, generate, parse};
use sheaf_testkit::stage::Subject;

sheaf_testkit::every_engine!(corruption_suite);

/// `SHEAF_CORRUPT='flat Loaded 1 4711'`: the line a failure prints.
#[test]
#[ignore = "replays one line"]
fn replay() {
    let line = std::env::var("SHEAF_CORRUPT").expect("SHEAF_CORRUPT says what to replay");
    sheaf_testkit::corrupt::sweep::replay(&line).unwrap();
}

fn steps(seed: u64) -> Vec<Step> {
    let mut steps = parse("0.1=30 1.1=50 0.2=200 persist").expect("written by hand");
    steps.extend(generate(seed, &Shape { steps: 60, busy: true, ..Shape::default() }));
    steps.extend(parse("S[0.4=600,1.4=80] 0.5=33 1.5=44").expect("written by hand"));
    steps
}

fn all_right(what: &str, report: Report) {
    println!("{what}: {report}");
    assert!(report.failures.is_empty(), "{what}: {report}\n{}", report.failures.join("\n"));
    assert!(report.cases > 0, "{what}: nothing was damaged");
}

#[test]
fn flipped_bits_after_a_clean_close_are_never_wrong_answers() {
    let fixture = Fixture::closed(&steps(3));
    all_right("flips, closed", corrupt(&fixture, fixture.flips(13, 1)));
}

#[test]
fn flipped_bits_after_a_kill_take_at_most_the_unsynced_tail() {
    let fixture = Fixture::killed(&steps(4));
    all_right("flips, killed", corrupt(&fixture, fixture.flips(13, 2)));
}

#[test]
fn zeroed_swapped_and_stale_sectors_are_never_wrong_answers() {
    for (what, fixture, older) in [
        ("sectors, closed", Fixture::closed(&steps(3)), Fixture::killed(&steps(3)[..30])),
        ("sectors, killed", Fixture::killed(&steps(4)), Fixture::killed(&steps(4)[..30])),
    ] {
        all_right(what, corrupt(&fixture, fixture.sectors(Some(&older))));
    }
}

#[test]
fn files_cut_short_are_never_wrong_answers() {
    let fixture = Fixture::closed(&steps(3));
    all_right("lengths, closed", corrupt(&fixture, fixture.lengths(97)));
    // After a kill a newest segment that is cut short is a torn tail, synced or not: what said that more had
    // been durable is cut off with it. So any prefix is right here.
    let fixture = Fixture { from: 0, ..Fixture::killed(&steps(4)) };
    all_right("lengths, killed", corrupt(&fixture, fixture.lengths(97)));
}

#[test]
fn missing_foreign_and_doubled_files_are_never_wrong_answers() {
    let older = Fixture::closed(&steps(3)[..30]);
    let foreign = Fixture::closed(&steps(9));
    let fixture = Fixture::closed(&steps(3));
    all_right("files, closed", corrupt(&fixture, fixture.whole_files(&older, &foreign)));
    let fixture = Fixture::killed(&steps(4));
    all_right("files, killed", corrupt(&fixture, fixture.whole_files(&older, &foreign)));
}

#[test]
fn a_damaged_entry_leaves_the_other_keyspace_and_the_other_keys_alone() {
    // Values made of a step's number: found in the files, damaged, and nothing else may suffer.
    let steps = parse("0.2=60 1.2=60 0.3=60 1.3=60 0.4=60 1.4=60 persist").expect("written by hand");
    let fixture = Fixture::closed(&steps);
    let mut hit = 0;
    for (path, _) in fixture.files() {
        let bytes = fixture.sim.read_file(&path).expect("listed");
        for place in bytes.windows(5).enumerate().filter(|(_, w)| *w == b"<0.0>").map(|(at, _)| at as u64) {
            let answer = inspect(&fixture, &Damage::Flip(path.clone(), place, 3)).expect("no wrong answer");
            assert!(answer.error && !answer.unopened, "{} at {place}: {answer:?}", path.display());
            assert!(answer.whole_spaces >= 1, "the other keyspace suffers: {answer:?}");
            hit += 1;
        }
    }
    assert!(hit > 0, "the value stands nowhere");
}

/// A walk goes on behind damage: what a look-up finds, it shows, but for keys that a damaged block decides.
fn damage_hides_nothing_else(subject: &Subject, has_blocks: bool) {
    // More than engines keep in memory: each has blocks of its own on the disk.
    let round = |round: u32| (2..120).map(move |key| format!("0.{key}={} ", 60 + round + key % 50));
    let many: String = (0..3).flat_map(|number| round(number).chain(["persist work ".to_owned()])).collect();
    let fixture = Fixture::closed_of(subject, &parse(&many).expect("written by hand"));
    let mut walks = Walks::default();
    for damage in fixture.flips(97, 1) {
        walk(&fixture, &damage, &mut walks);
    }
    let Walks { damaged, went_on, hidden, beside } = walks;
    println!("{}: {damaged} damaged, {went_on} went on, {} beside", subject.name, beside.len());
    assert!(hidden.is_empty(), "{}: {}", subject.name, hidden.join("\n"));
    assert!(has_blocks || beside.is_empty(), "{}: {}", subject.name, beside.join("\n"));
    assert!(damaged > 20 && went_on > damaged / 4, "{}: {went_on} of {damaged} went on", subject.name);
}

#[test]
fn flat_walks_on_behind_damage() {
    damage_hides_nothing_else(&Subject::flat(), false);
    damage_hides_nothing_else(&Subject::flat_ordered(), false);
}

#[test]
fn flex_walks_on_behind_damage() {
    damage_hides_nothing_else(&Subject::flex(), true);
}

#[test]
fn delsm_walks_on_behind_damage() {
    damage_hides_nothing_else(&Subject::delsm(), true);
}

#[test]
fn cedrus_walks_on_behind_damage() {
    damage_hides_nothing_else(&Subject::cedrus(), false);
}

#[test]
fn kreon_walks_on_behind_damage() {
    damage_hides_nothing_else(&Subject::kreon(), true);
}
