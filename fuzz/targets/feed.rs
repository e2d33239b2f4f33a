//! One program for libFuzzer, guided by coverage. `SHEAF_FUZZ_TARGET` selects the target of testkit
//! that it runs, and `SHEAF_FUZZ_ENGINE` the engine of the databases (default: `flat`).
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use sheaf_testkit::fuzz::{Ground, Target};
use sheaf_testkit::fixture::Subject;

struct Shared(Ground, Target);

// SAFETY:
// * libFuzzer calls the target from one thread, so the value is never shared.
unsafe impl Sync for Shared {}
// SAFETY:
// * libFuzzer calls the target from one thread, so the value never moves to another one.
unsafe impl Send for Shared {}

static SHARED: OnceLock<Shared> = OnceLock::new();

fn shared() -> Shared {
    let name = std::env::var("SHEAF_FUZZ_TARGET").unwrap_or_else(|_| "database".to_owned());
    let named = |target: &Target| format!("{target:?}").eq_ignore_ascii_case(&name);
    let target = Target::ALL.into_iter().find(named).unwrap_or_else(|| panic!("there is no target {name}"));
    let engine = std::env::var("SHEAF_FUZZ_ENGINE").unwrap_or_else(|_| "flat".to_owned());
    let subject = Subject::named(&engine).unwrap_or_else(|| panic!("there is no engine {engine}"));
    Shared(Ground::new(&subject), target)
}

fuzz_target!(|input: &[u8]| {
    let Shared(ground, target) = SHARED.get_or_init(shared);
    ground.feed(*target, input);
});
