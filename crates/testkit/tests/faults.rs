//! Every disk call of a workload fails once, and for ever: nobody is misled, nothing promised is lost.
//!
//! CI takes every so-manieth call; the ignored `every_single_call` takes all.

use sheaf_base::disk::sim::{AfterFailedSync, Class, Failure};
use sheaf_testkit::crash::workload::{Shape, Step, generate};
use sheaf_testkit::faults::{Case, Report, every_call, run_case};

fn workload() -> Vec<Step> {
    generate(5, &Shape { steps: 150, busy: true, drops: true, keys: 8, large: 700, len: 100 })
}

fn all_right(what: &str, reports: impl IntoIterator<Item = Report>) {
    let mut wrong = Vec::new();
    for report in reports {
        println!("{what}: {report}");
        wrong.extend(report.failures);
    }
    assert!(wrong.is_empty(), "{what}: {} wrong\n{}", wrong.len(), wrong.join("\n"));
}

fn run(class: Class, failures: &[Failure], stride: u64) {
    let steps = workload();
    for failure in failures {
        for forever in [false, true] {
            let report = every_call(&steps, class, *failure, forever, stride);
            all_right(&format!("{class:?} {failure:?} forever: {forever}"), [report]);
        }
    }
}

#[test]
fn failed_writes_are_refusals_or_poison_and_lose_nothing() {
    run(Class::Write, &[Failure::Io, Failure::NoSpace, Failure::Torn { sectors: 1 }], 23);
}

#[test]
fn failed_syncs_poison_and_are_never_retried() {
    run(Class::Sync, &[Failure::Io], 7);
}

#[test]
fn failed_directory_syncs_lose_nothing() {
    run(Class::SyncDir, &[Failure::Io], 2);
}

#[test]
fn failed_reads_are_errors_and_no_damage() {
    run(Class::Read, &[Failure::Io], 61);
}

#[test]
fn a_full_disk_is_no_space_and_nothing_half_written() {
    run(Class::Allocate, &[Failure::NoSpace], 3);
    run(Class::Create, &[Failure::NoSpace], 3);
}

#[test]
fn too_many_open_files_is_an_error_and_nothing_lost() {
    run(Class::Open, &[Failure::TooManyOpen], 5);
    run(Class::Create, &[Failure::TooManyOpen], 5);
    run(Class::List, &[Failure::TooManyOpen], 3);
    run(Class::Lock, &[Failure::TooManyOpen], 2);
}

#[test]
fn failed_removals_and_creations_lose_nothing() {
    run(Class::Remove, &[Failure::Io], 3);
    run(Class::Create, &[Failure::Io], 5);
    run(Class::Allocate, &[Failure::Io], 5);
}

#[test]
#[ignore = "takes minutes"]
fn every_single_call() {
    let classes = [
        Class::Write,
        Class::Sync,
        Class::SyncDir,
        Class::Read,
        Class::Open,
        Class::Create,
        Class::Remove,
        Class::Rename,
        Class::Allocate,
        Class::SetLen,
        Class::List,
        Class::Lock,
    ];
    for class in classes {
        run(class, &[Failure::Io, Failure::NoSpace, Failure::TooManyOpen, Failure::Torn { sectors: 1 }], 1);
    }
}

/// `SHEAF_FAULT='Write 93 forever'`: one fault again, with the story.
#[test]
#[ignore = "replays SHEAF_FAULT"]
fn replay_a_fault() {
    let line = std::env::var("SHEAF_FAULT").expect("SHEAF_FAULT holds class, number, once or forever");
    let words: Vec<&str> = line.split_whitespace().collect();
    let classes = [
        Class::Write,
        Class::Sync,
        Class::SyncDir,
        Class::Read,
        Class::Open,
        Class::Create,
        Class::Remove,
        Class::Allocate,
        Class::List,
        Class::Lock,
    ];
    let class = classes.into_iter().find(|class| format!("{class:?}") == words[0]).expect("a class");
    let nth: u64 = words[1].parse().expect("a number");
    let failure = match words.get(3) {
        Some(&"NoSpace") => Failure::NoSpace,
        Some(&"Torn") => Failure::Torn { sectors: 1 },
        Some(&"TooManyOpen") => Failure::TooManyOpen,
        _ => Failure::Io,
    };
    let after = if nth.is_multiple_of(2) { AfterFailedSync::ShowsOld } else { AfterFailedSync::ShowsNew };
    let case = Case { class, nth, forever: words[2] == "forever", failure, after };
    println!("{:?}", run_case(&workload(), case));
}
