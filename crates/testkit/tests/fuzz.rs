//! Bytes nobody wrote: the stored inputs, then mutations for a few seconds.

use sheaf_testkit::fuzz::{replay, run};
use sheaf_testkit::stage::Subject;
use sheaf_testkit::totals::Budget;

#[global_allocator]
static COUNTING: sheaf_testkit::alloc::Counting = sheaf_testkit::alloc::Counting(std::alloc::System);

#[test]
fn no_bytes_make_flat_panic_hang_or_ask_for_the_moon() {
    run(&Subject::flat(), 1, Budget::cases(30_000)).must_hold(30_000);
}

#[test]
fn no_bytes_make_flat_ordered_panic_hang_or_ask_for_the_moon() {
    run(&Subject::flat_ordered(), 3, Budget::cases(15_000)).must_hold(15_000);
}

#[test]
fn no_bytes_make_the_ledger_panic_hang_or_ask_for_the_moon() {
    run(&Subject::ledger(), 2, Budget::cases(15_000)).must_hold(15_000);
}

/// `SHEAF_FUZZ='flat Database 0012ff'`: the line a failure prints.
#[test]
#[ignore = "replays one line"]
fn a_line_again() {
    replay(&std::env::var("SHEAF_FUZZ").expect("SHEAF_FUZZ says what to replay")).unwrap();
}
