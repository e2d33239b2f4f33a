//! Readers beside an owner see one moment, whatever the owner does; what they hold goes with them.

use sheaf_testkit::backups::all_engines;
use sheaf_testkit::beside;
use sheaf_testkit::stage::Subject;

sheaf_testkit::every_engine!(beside_suite);

#[test]
fn a_moment_is_one_of_all_engines_together() {
    let (subject, engines) = all_engines();
    for seed in 0..3 {
        beside::moments(&subject, &engines, seed).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
}

/// A store that lets go what a reader holds is noticed.
#[test]
fn a_state_that_does_not_stay_is_found() {
    for subject in [Subject::flat(), Subject::cedrus(), Subject::kreon()] {
        assert!((0..10).any(|seed| beside::is_flaw_seen(&subject, seed)), "{subject:?}: not found");
    }
}
