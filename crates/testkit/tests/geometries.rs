//! Engines whose options were chosen pass the suites, at a small part of their length: what is theirs alone is the shape of what they
//! keep, and the options in the catalogue. Campaigns run them like any other.

use sheaf_testkit::backups;
use sheaf_testkit::crash::families::{Family, run_family};
use sheaf_testkit::kill::{Starter, be_the_child, kill_loop};
use sheaf_testkit::stage::Subject;
use sheaf_testkit::totals::Budget;
use sheaf_testkit::{corrupt, faults, fuzz, linear, model};

#[test]
fn child_of_the_kill_loop() {
    be_the_child();
}

/// The suites for one of them.
fn pass(subject: &Subject) {
    model::run(subject, 3, Budget::cases(8_000)).must_hold(8_000);
    for family in Family::ALL.into_iter().filter(|family| *family != Family::Sorted) {
        let cases = if family == Family::Loaded { 40 } else { 120 };
        run_family(family, subject, 1, Budget::cases(cases)).must_hold(cases);
    }
    corrupt::sweep::run(subject, 1, Budget::cases(300)).must_hold(300);
    fuzz::run(subject, 1, Budget::cases(300)).must_hold(300);
    linear::run(subject, 1, Budget::cases(2_000)).must_hold(2_000);
    let faults = faults::every_nth_call(subject, 5, 40, 23, Budget::seconds(f64::INFINITY));
    assert!(faults.failures.is_empty() && faults.runs > 50, "{faults}: {:?}", faults.failures);
    backups::chain(subject, &subject.engines(), 1).unwrap_or_else(|why| panic!("{subject:?}: {why}"));
    let scratch = sheaf_testkit::stage::scratch(env!("CARGO_TARGET_TMPDIR"));
    let child = Starter::test(concat!(module_path!(), "::child_of_the_kill_loop"));
    let kills = kill_loop(subject, &scratch, &child, 1, Budget::cases(12).workers(2));
    assert!(kills.failures.is_empty(), "{kills}: {:?}", kills.failures);
}

/// One engine a module: the conformance suite and the others.
macro_rules! geometry {
    ($($name:ident)*) => {
        $(
            mod $name {
                sheaf_testkit::conformance!(conformance, sheaf_testkit::stage::Subject::$name());

                #[test]
                fn passes_the_suites() {
                    super::pass(&sheaf_testkit::stage::Subject::$name());
                }
            }
        )*
    };
}

geometry!(cedrus_narrow cedrus_wide flex_wide delsm_steep);
