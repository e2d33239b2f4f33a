//! One target for libFuzzer, guided by coverage: the first byte chooses which of testkit's.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use sheaf_testkit::fuzz::{Ground, Target};
use sheaf_testkit::stage::Subject;

struct Shared(Ground);

// SAFETY:
// * libFuzzer calls the target from one thread.
unsafe impl Sync for Shared {}
// SAFETY:
// * As above.
unsafe impl Send for Shared {}

static GROUND: OnceLock<Shared> = OnceLock::new();

fuzz_target!(|input: &[u8]| {
    let ground = &GROUND.get_or_init(|| Shared(Ground::new(&Subject::flat()))).0;
    if let Some((first, rest)) = input.split_first() {
        ground.feed(Target::ALL[usize::from(*first) % Target::ALL.len()], rest);
    }
});
