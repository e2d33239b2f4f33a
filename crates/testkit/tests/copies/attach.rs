//! Attached readers see one snapshot while the owner continues; their pins end with them.

use sheaf_testkit::attach;
use sheaf_testkit::backups::all_engines;
use sheaf_testkit::fixture::TestSubject;

sheaf_testkit::every_engine!(attach_suite);

#[test]
fn an_attached_reader_sees_one_snapshot_of_all_engines() {
    let (subject, engines) = all_engines();
    for seed in 0..3 {
        attach::snapshots_during_writes(&subject, &engines, seed)
            .unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
}

/// The harness detects a store that releases the files of an attached reader.
#[test]
fn an_unpinned_state_is_detected() {
    for subject in [TestSubject::flat(), TestSubject::cedrus(), TestSubject::kreon()] {
        assert!((0..10).any(|seed| attach::is_flaw_found(&subject, seed)), "{subject:?}: not found");
    }
}
