//! Engines with non-default options pass the suites at a small part of their length. Only the shape
//! of their data and the options in the catalog differ. Campaigns run them like any other engine.

use sheaf_testkit::backups;
use sheaf_testkit::crash::families::{WorkloadFamily, run_family};
use sheaf_testkit::fixture::TestSubject;
use sheaf_testkit::kill::{ChildLauncher, child_main, kill_loop};
use sheaf_testkit::totals::Budget;
use sheaf_testkit::{corruption, faults, fuzz, linearizability, model};

#[test]
fn child_of_the_kill_loop() {
    child_main();
}

/// Runs the suites for one of them.
fn run_suites(subject: &TestSubject) {
    model::run(subject, 3, Budget::cases(6_000)).must_hold(6_000);
    for family in WorkloadFamily::ALL.into_iter().filter(|family| *family != WorkloadFamily::Sorted) {
        let cases = if family == WorkloadFamily::Loaded { 20 } else { 60 };
        run_family(family, subject, 1, Budget::cases(cases)).must_hold(cases);
    }
    corruption::sweep::run(subject, 1, Budget::cases(300)).must_hold(300);
    fuzz::run(subject, 1, Budget::cases(300)).must_hold(300);
    linearizability::run(subject, 1, Budget::cases(2_000)).must_hold(2_000);
    let faults = faults::every_nth_call(subject, 5, 40, 37, Budget::seconds(f64::INFINITY));
    assert!(faults.failures.is_empty() && faults.runs > 30, "{faults}: {:?}", faults.failures);
    backups::backup_chain(subject, &subject.engines(), 1).unwrap_or_else(|why| panic!("{subject:?}: {why}"));
    let scratch = sheaf_testkit::fixture::scratch_dir(env!("CARGO_TARGET_TMPDIR"));
    let child = ChildLauncher::test(concat!(module_path!(), "::child_of_the_kill_loop"));
    let kills = kill_loop(subject, &scratch, &child, 1, Budget::cases(12).workers(2));
    assert!(kills.failures.is_empty(), "{kills}: {:?}", kills.failures);
}

/// Generates one module per engine: the conformance suite and the others.
macro_rules! geometry {
    ($($name:ident)*) => {
        $(
            mod $name {
                sheaf_testkit::conformance!(conformance, sheaf_testkit::fixture::TestSubject::$name());

                #[test]
                fn passes_the_suites() {
                    super::run_suites(&sheaf_testkit::fixture::TestSubject::$name());
                }
            }
        )*
    };
}

geometry!(cedrus_narrow cedrus_wide flex_wide flex_bounded delsm_steep);

// One decorator compresses the values of all engines. One engine of each kind of log passes the
// whole conformance suite with it; `compression` and its `features` run with all of them.
geometry!(flat_compressed flex_compressed);

#[test]
fn compressed_engines_pass_the_suites() {
    run_suites(&TestSubject::flat_ordered_compressed());
    run_suites(&TestSubject::delsm_compressed());
    run_suites(&TestSubject::cedrus_compressed());
    run_suites(&TestSubject::kreon_compressed());
}

/// Entries that `cedrus` defers at opening, removals included, are applied before GC removes their
/// segments: after a kill, GC runs before the first read. One step applies eight parts, so many
/// parts are deferred.
#[test]
fn removals_deferred_by_an_open_survive_their_segments() {
    for seed in 1..=300 {
        let mut random = sheaf_testkit::crash::workload::TestRandom::new(seed);
        let disk = sheaf_sim::SimDisk::new();
        let open = |disk: &sheaf_sim::SimDisk| {
            let builder = sheaf::Database::builder().disk(std::sync::Arc::new(disk.clone()));
            builder.tiny(true).inline(true).memory(16 << 20).open("/db").expect("it opens")
        };
        let options = || sheaf::KeyspaceOptions::default().engine("cedrus").option("branching", 256);
        let mut model = std::collections::BTreeMap::new();
        let db = open(&disk);
        let keyspace = db.keyspace("a", options()).expect("it is made");
        for _ in 0..200 + random.below(600) {
            let key = random.below(150).to_string();
            if random.below(3) > 0 {
                keyspace.remove(&key).expect("it removes");
                model.remove(&key);
            } else {
                let value = vec![b'v'; usize::try_from(40 + random.below(200)).expect("small")];
                keyspace.insert(&key, &value).expect("it inserts");
                model.insert(key, value);
            }
            if random.below(8) == 0 {
                db.pump().expect("it pumps");
            }
        }
        let db = open(&disk.kill());
        let keyspace = db.keyspace("a", options()).expect("it is there");
        for _ in 0..random.below(12) {
            db.pump().expect("it pumps");
        }
        for key in 0..150 {
            let key = key.to_string();
            let got = keyspace.get(&key).unwrap_or_else(|error| panic!("seed {seed}, key {key}: {error}"));
            assert_eq!(got.as_deref(), model.get(&key).map(Vec::as_slice), "seed {seed}, key {key}");
        }
    }
}
