//! Fault plans and damage: every disk call fails once, always, or every third time; disks fill up;
//! every byte is changed.

mod support;

use std::path::Path;
use std::sync::Arc;

use sheaf_flexspace::{FlexSpace, SpaceOptions};
use sheaf_platform::error::{Error, PoisonCause};
use sheaf_sim::{AfterFailedSync, CallClass, Fault, FaultKind, FaultPlan, FaultRepeat, KeepChoice, SimDisk};
use support::{SPACE_DIR, WorkloadStep, content, open, options, workload};

/// Result of a workload under a fault.
struct RunOutcome {
    /// All states, including those of all acknowledged operations.
    states: Vec<Vec<u8>>,
    /// Index of the last synced state.
    durable: usize,
    failed: Option<Error>,
}

/// Runs steps until one fails. The failed step must have no effect before the space is reopened.
/// Afterwards it may have happened or not.
fn run(disk: &SimDisk, steps: &[WorkloadStep]) -> RunOutcome {
    let mut outcome = RunOutcome { states: vec![Vec::new()], durable: 0, failed: None };
    let mut space = match open(Arc::new(disk.clone())) {
        Ok(space) => space,
        Err(error) => return RunOutcome { failed: Some(error), ..outcome },
    };
    for step in steps.iter().filter(|step| !matches!(step, WorkloadStep::Kill)) {
        let mut state = outcome.states.last().expect("never empty").clone();
        if matches!(step, WorkloadStep::Reopen) {
            match space.close().and_then(|()| open(Arc::new(disk.clone()))) {
                Ok(again) => space = again,
                Err(error) => {
                    outcome.failed = Some(error);
                    return outcome;
                }
            }
        } else if let Err(error) = step.run(&space) {
            disk.set_faults(FaultPlan::default());
            let served = content(&space).expect("reads go on after a failure");
            assert_eq!(served, state, "a step that failed changed something: {step:?}: {error}");
            step.apply(&mut state);
            outcome.states.push(state);
            outcome.failed = Some(error);
            return outcome;
        }
        step.apply(&mut state);
        outcome.states.push(state);
        if matches!(step, WorkloadStep::Sync | WorkloadStep::Reopen | WorkloadStep::Checkpoint) {
            outcome.durable = outcome.states.len() - 1;
        }
    }
    outcome.failed = space.close().err();
    outcome
}

/// Checks that the space opens and has one of the states since the last sync.
fn check_recovered(disk: SimDisk, outcome: &RunOutcome, context: &str) {
    let space = open(Arc::new(disk)).unwrap_or_else(|e| panic!("{context}: it does not open: {e}"));
    let now = content(&space).unwrap_or_else(|e| panic!("{context}: it cannot be read: {e}"));
    assert!(outcome.states[outcome.durable..].contains(&now), "{context}: {} bytes", now.len());
    space.insert(0, b"x").unwrap_or_else(|e| panic!("{context}: it takes nothing: {e}"));
    space.close().unwrap_or_else(|e| panic!("{context}: it does not close: {e}"));
}

/// Runs the workload with each call of each class failing. Returns the number of faults.
fn every_call_fails(repeat: FaultRepeat) -> u64 {
    let steps = workload(5, 60);
    let classes = [
        (CallClass::Write, FaultKind::Io),
        (CallClass::Write, FaultKind::Torn { sectors: 1 }),
        (CallClass::Write, FaultKind::NoSpace),
        (CallClass::Sync, FaultKind::Io),
        (CallClass::SyncDir, FaultKind::Io),
        (CallClass::Create, FaultKind::NoSpace),
        (CallClass::Allocate, FaultKind::NoSpace),
        (CallClass::Read, FaultKind::Io),
        (CallClass::SetLen, FaultKind::Io),
        (CallClass::Remove, FaultKind::Io),
    ];
    let mut struck = 0;
    for (class, failure) in classes {
        for nth in 1.. {
            let disk = SimDisk::with_seed(nth);
            disk.set_faults(Fault::new(class, failure).nth(nth).repeat(repeat));
            let outcome = run(&disk, &steps);
            if disk.injected() == 0 {
                break;
            }
            struck += 1;
            disk.set_faults(FaultPlan::default());
            let context = format!("{class:?} {failure:?} number {nth} {repeat:?}: {:?}", outcome.failed);
            for keep in [KeepChoice::None, KeepChoice::All] {
                check_recovered(disk.power_cut(&keep), &outcome, &format!("{context}, then the power"));
            }
            check_recovered(disk.kill(), &outcome, &context);
        }
    }
    println!("{struck} faults {repeat:?}");
    struck
}

#[test]
fn every_failing_call_is_an_error_and_loses_nothing_that_was_synced() {
    assert!(every_call_fails(FaultRepeat::Once) > 250);
}

#[test]
fn calls_that_fail_for_ever_lose_nothing_that_was_synced() {
    assert!(every_call_fails(FaultRepeat::Forever) > 250);
}

#[test]
fn calls_that_fail_now_and_then_lose_nothing_that_was_synced() {
    assert!(every_call_fails(FaultRepeat::Every(3)) > 250);
}

/// Except for syncs, a call that failed once succeeds when it is repeated, without reopening the
/// space.
#[test]
fn a_space_continues_after_one_failed_call() {
    let steps = workload(5, 60);
    let mut went_on = 0;
    for class in
        [CallClass::Write, CallClass::Create, CallClass::Allocate, CallClass::SetLen, CallClass::Read]
    {
        for nth in 1.. {
            let disk = SimDisk::with_seed(nth);
            let space = open(Arc::new(disk.clone())).expect("a new space");
            disk.set_faults(Fault::new(class, FaultKind::NoSpace).nth(nth));
            let mut model = Vec::new();
            for step in steps.iter().filter(|step| !matches!(step, WorkloadStep::Kill | WorkloadStep::Reopen))
            {
                let context = || format!("{class:?} number {nth}, {step:?}");
                let mut done = step.run(&space);
                if done.is_err() && disk.injected() > 0 {
                    done = step.run(&space);
                }
                done.unwrap_or_else(|e| panic!("{}: {e}", context()));
                step.apply(&mut model);
            }
            if disk.injected() == 0 {
                break;
            }
            went_on += 1;
            space.sync().expect("nothing fails any more");
            let image = disk.power_cut(&KeepChoice::None);
            let again = open(Arc::new(image)).expect("it opens");
            assert_eq!(content(&again).expect("readable"), model, "{class:?} number {nth}");
        }
    }
    println!("{went_on} went on");
    assert!(went_on > 60);
}

/// A failed creation is repaired by the next attempt, also if a failed sync has lost names that the
/// kernel still shows.
#[test]
fn a_creation_that_failed_once_is_made_whole_by_the_next() {
    for (class, after) in [
        (CallClass::SyncDir, AfterFailedSync::ShowsNew),
        (CallClass::SyncDir, AfterFailedSync::ShowsOld),
        (CallClass::Sync, AfterFailedSync::ShowsNew),
        (CallClass::Create, AfterFailedSync::ShowsNew),
        (CallClass::Write, AfterFailedSync::ShowsNew),
    ] {
        for nth in 1.. {
            let disk = SimDisk::with_seed(nth);
            disk.set_after_failed_sync(after);
            disk.set_faults(Fault::new(class, FaultKind::Io).nth(nth));
            let first = open(Arc::new(disk.clone()));
            if disk.injected() == 0 {
                assert!(nth > 1, "{class:?} was never called");
                break;
            }
            drop(first);
            let space = open(Arc::new(disk.clone())).expect("nothing fails any more");
            space.insert(0, &[7; 5000]).expect("a sound space");
            space.sync().expect("synced");
            let again = open(Arc::new(disk.power_cut(&KeepChoice::None)));
            let again = again.unwrap_or_else(|e| panic!("{class:?} number {nth}, {after:?}: {e}"));
            assert_eq!(content(&again).expect("readable"), [7; 5000], "{class:?} number {nth}");
        }
    }
}

/// Names of data files are also repaired whenever a sync of their directory fails: during
/// operation, or at an opening after a kill.
#[test]
fn names_lost_by_a_failed_sync_are_recreated() {
    let mut struck = 0;
    // The seed of the disk decides which names a failed sync loses.
    for (killed_after, seed) in [0, 1, 40].into_iter().flat_map(|n| (0..6).map(move |seed| (n, seed))) {
        for nth in 1.. {
            let disk = SimDisk::with_seed(seed);
            let space = open(Arc::new(disk.clone())).expect("a new space");
            let mut model = Vec::new();
            let mut insert = |space: &FlexSpace| {
                let bytes = [u8::try_from(model.len() % 251).expect("small"); 900];
                let done = space.insert(0, &bytes).or_else(|_| space.insert(0, &bytes));
                if done.is_ok() {
                    model.splice(0..0, bytes);
                }
                done
            };
            (0..killed_after).for_each(|_| insert(&space).expect("nothing fails yet"));
            space.maintain().expect("in the kernel");
            let disk = disk.kill();
            drop(space);
            disk.set_after_failed_sync(AfterFailedSync::ShowsNew);
            disk.set_faults(Fault::new(CallClass::SyncDir, FaultKind::Io).nth(nth));
            let space = open(Arc::new(disk.clone())).or_else(|_| open(Arc::new(disk.clone())));
            let space = space.expect("nothing fails any more");
            if (0..60).any(|_| matches!(insert(&space), Err(Error::Poisoned { .. }))) {
                struck += 1;
                // The space is poisoned and makes no promise.
                continue;
            }
            if disk.injected() == 0 {
                break;
            }
            struck += 1;
            space.sync().expect("synced");
            let again = open(Arc::new(disk.power_cut(&KeepChoice::None)));
            let again =
                again.unwrap_or_else(|e| panic!("after {killed_after}, number {nth}, seed {seed}: {e}"));
            assert_eq!(
                content(&again).expect("readable"),
                model,
                "after {killed_after}, number {nth}, seed {seed}"
            );
        }
    }
    assert!(struck > 10, "{struck}");
}

#[test]
fn a_full_disk_refuses_added_bytes_and_recovers_when_space_returns() {
    let disk = SimDisk::new();
    disk.set_capacity(60 * 4096);
    let space = open(Arc::new(disk.clone())).expect("room for an empty space");
    let mut len = 0u64;
    let error = loop {
        match space.insert(len, &[3; 700]) {
            Ok(()) => len += 700,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::NoSpace { .. }), "{error}");
    assert_eq!(content(&space).expect("reads go on"), vec![3; usize::try_from(len).expect("small")]);
    for _ in 0..10 {
        space.collapse(0, 700).expect("removing goes on");
        len -= 700;
    }
    disk.set_capacity(600 * 4096);
    space.insert(0, &[4; 700]).expect("there is room again");
    space.sync().expect("synced");
    let full = disk.power_cut(&KeepChoice::None);
    full.set_capacity(0);
    let again = open(Arc::new(full)).expect("opening needs no new block");
    assert_eq!(content(&again).expect("readable").len() as u64, len + 700);
}

/// On a copy-on-write file system or under a quota a head write may find no space, or may fail in
/// the middle. Operations that need the head then fail, whichever slot is affected. No file that
/// either slot needs is deleted, and everything works again once there is space.
#[test]
fn an_unwritable_head_refuses_dependent_operations_and_recovers() {
    for (failure, nth) in
        [(FaultKind::NoSpace, 1), (FaultKind::NoSpace, 2), (FaultKind::Torn { sectors: 1 }, 1)]
    {
        let disk = SimDisk::new();
        let space = open(Arc::new(disk.clone())).expect("a new space");
        let mut model: Vec<u8> = Vec::new();
        for round in 0..8u8 {
            let context = || format!("{failure:?} number {nth}, round {round}");
            // Either every second head write fails or all do. The slot that was written then names
            // files that the other slot does not.
            let fault = Fault::new(CallClass::Write, failure).on("HEAD").nth(nth);
            disk.set_faults(fault.repeat(if nth == 1 {
                FaultRepeat::Forever
            } else {
                FaultRepeat::Every(2)
            }));
            let mut refused = 0;
            for step in 0..60 {
                let bytes = vec![round; 700];
                let done = match step % 3 {
                    0 => space.insert(model.len() as u64, &bytes).map(|()| model.extend(&bytes)),
                    1 if model.len() > 4000 => space.collapse(0, 500).map(|()| drop(model.drain(..500))),
                    _ => space.maintain().map(drop),
                };
                match done {
                    Ok(()) => {}
                    Err(Error::NoSpace { .. } | Error::Io { .. }) => refused += 1,
                    Err(other) => panic!("{}: {other}", context()),
                }
            }
            let checkpoint = space.checkpoint();
            assert!(
                refused > 0 || matches!(checkpoint, Err(Error::NoSpace { .. } | Error::Io { .. })),
                "{}: {checkpoint:?}",
                context()
            );
            assert_eq!(content(&space).expect("reads go on"), model, "{}", context());
            space.sync().unwrap_or_else(|e| panic!("{}: {e}", context()));
            for keep in [KeepChoice::None, KeepChoice::All] {
                let again = open(Arc::new(disk.power_cut(&keep))).expect("either head is whole");
                assert_eq!(content(&again).expect("readable"), model, "{} {keep:?}", context());
            }
            disk.set_faults(FaultPlan::default());
            space.insert(0, &[round; 300]).unwrap_or_else(|e| panic!("{}: {e}", context()));
            model.splice(..0, [round; 300]);
            space.checkpoint().unwrap_or_else(|e| panic!("{}: {e}", context()));
            space.maintain().unwrap_or_else(|e| panic!("{}: {e}", context()));
            space.verify(|finding| panic!("{}: {finding}", context())).expect("readable");
        }
        space.close().expect("closed in order");
        let again = open(Arc::new(disk.power_cut(&KeepChoice::None))).expect("it opens");
        assert_eq!(content(&again).expect("readable"), model);
    }
}

#[test]
fn a_failed_sync_poisons_and_reads_go_on() {
    let disk = SimDisk::new();
    let space = open(Arc::new(disk.clone())).expect("a new space");
    space.insert(0, b"kept").expect("room");
    space.sync().expect("synced");
    space.insert(0, b"lost? ").expect("room");
    disk.set_faults(Fault::new(CallClass::Sync, FaultKind::Io));
    assert!(space.sync().is_err());
    disk.set_faults(FaultPlan::default());
    assert!(matches!(space.sync(), Err(Error::Poisoned { cause: PoisonCause::Sync })));
    assert!(matches!(space.insert(0, b"x"), Err(Error::Poisoned { .. })));
    assert_eq!(content(&space).expect("reads go on"), b"lost? kept");
    assert!(matches!(space.close(), Err(Error::Poisoned { .. })));
    let served = content(&open(Arc::new(disk.clone())).expect("it opens")).expect("readable");
    let after = open(Arc::new(disk.power_cut(&KeepChoice::None))).expect("it opens");
    assert_eq!(content(&after).expect("readable"), served, "the state served after reopening is durable");
}

/// Returns a space with a checkpoint, a log after it, and dead and live segments, closed or not.
fn fixture(is_closed: bool) -> (SimDisk, Vec<u8>) {
    let disk = SimDisk::new();
    let space = open(Arc::new(disk.clone())).expect("a new space");
    let mut model = Vec::new();
    for (n, step) in workload(11, 80).iter().enumerate() {
        let step = step.clamp_to(model.len() as u64);
        step.run(&space).expect("nothing fails here");
        step.apply(&mut model);
        if n == 50 {
            space.checkpoint().expect("nothing fails here");
        }
    }
    space.sync().expect("synced");
    // An idle space writes the durable mark. Before that, damage to recently synced data may go
    // unnoticed.
    while space.maintain().expect("nothing fails here") {}
    let image = disk.kill();
    if is_closed {
        space.close().expect("closed");
        return (disk.kill(), model);
    }
    (image, model)
}

/// Opens a damaged image. Each result must be exact or an error that names a file of the space.
/// Returns true if all results were exact.
fn check_damaged(disk: &SimDisk, model: &[u8], context: &str) -> bool {
    let named = |error: &Error| {
        let path = match error {
            Error::Corrupt { path, .. } | Error::UnsupportedVersion { path, .. } => path,
            other => panic!("{context}: damage is answered by {other:?}"),
        };
        assert!(path.starts_with(SPACE_DIR), "{context}: {error}");
    };
    let space = match open(Arc::new(disk.clone())) {
        Ok(space) => space,
        Err(error) => {
            named(&error);
            return false;
        }
    };
    let len = space.len();
    assert_eq!(len, model.len() as u64, "{context}: another length");
    let mut is_exact = true;
    for at in (0..len).step_by(97) {
        let mut part = [0; 97];
        let from = usize::try_from(at).expect("small");
        match space.read(at, &mut part) {
            Ok(count) => {
                assert_eq!(part[..count], model[from..from + count], "{context}: a wrong answer at {at}")
            }
            Err(error) => {
                named(&error);
                is_exact = false;
            }
        }
    }
    let mut findings = 0;
    space
        .verify(|finding| {
            named(&finding);
            findings += 1;
        })
        .unwrap_or_else(|e| panic!("{context}: {e}"));
    assert!(is_exact || findings > 0, "{context}: reading fails and verify finds nothing");
    is_exact
}

#[test]
fn no_changed_byte_gives_a_wrong_result() {
    let (mut exact, mut cases) = (0u32, 0u32);
    for is_closed in [false, true] {
        let (disk, model) = fixture(is_closed);
        assert!(check_damaged(&disk.fork(), &model, "undamaged"));
        for (path, len) in disk.files().iter().filter(|(path, _)| !path.ends_with("LOCK")) {
            let bytes = disk.read_file(path).expect("it is there");
            let written = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            for (at, byte) in bytes[..written].iter().enumerate() {
                let bit = 1u8 << (at % 8);
                let image = disk.fork();
                image.overwrite(path, at as u64, &[byte ^ bit]).expect("within");
                cases += 1;
                exact += u32::from(check_damaged(&image, &model, &format!("{} at {at}", path.display())));
            }
            for at in (0..written).step_by(512) {
                for fill in [0, 0xff] {
                    let image = disk.fork();
                    let sector = vec![fill; 512.min(bytes.len() - at)];
                    image.overwrite(path, at as u64, &sector).expect("within");
                    cases += 1;
                    exact +=
                        u32::from(check_damaged(&image, &model, &format!("{} sector {at}", path.display())));
                }
            }
            for cut in (0..*len).step_by(1000) {
                let image = disk.fork();
                image.truncate_file(path, cut).expect("it is there");
                cases += 1;
                exact +=
                    u32::from(check_damaged(&image, &model, &format!("{} cut to {cut}", path.display())));
            }
            let image = disk.fork();
            image.remove_file(path).expect("it is there");
            cases += 1;
            exact += u32::from(check_damaged(&image, &model, &format!("{} removed", path.display())));
        }
    }
    println!("{cases} damages, {exact} of them without effect");
    assert!(cases > 10_000 && exact < cases);
}

#[test]
fn bytes_of_a_segments_earlier_use_do_not_pass() {
    let disk = SimDisk::new();
    let space = open(Arc::new(disk.clone())).expect("a new space");
    space.insert(0, &[1; 100]).expect("room");
    space.sync().expect("synced");
    let data_file = Path::new(SPACE_DIR).join("data/00000000.area");
    let old = disk.read_file(&data_file).expect("it is there");
    // The segment is emptied, freed and taken again for other bytes of the same length.
    for n in 0..200u8 {
        space.write(0, &[n | 2; 100]).expect("room");
        space.insert(100, &[n; 3000]).expect("room");
        space.collapse(100, 3000).expect("within");
        while space.maintain().expect("nothing fails here") {}
    }
    space.close().expect("closed");
    disk.overwrite(&data_file, 0, &old[..4096]).expect("within");
    let space = open(Arc::new(disk)).expect("it opens");
    let mut bytes = [0; 100];
    match space.read(0, &mut bytes) {
        Ok(_) => assert_eq!(bytes, [199 | 2; 100]),
        Err(error) => assert!(error.is_corrupt(), "{error}"),
    }
}

/// There are two checkpoints, and the older one still has its log. Any damage to one of them is
/// repaired.
#[test]
fn a_damaged_checkpoint_is_rebuilt_from_the_previous_one() {
    for is_closed in [false, true] {
        let (disk, model) = fixture(is_closed);
        let newest =
            disk.files().into_iter().filter(|(path, _)| path.extension().is_some_and(|e| e == "img"));
        let (path, _) = newest.max().expect("there is a checkpoint");
        let bytes = disk.read_file(&path).expect("it is there");
        let written = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        for at in (0..written).step_by(7) {
            let image = disk.fork();
            image.overwrite(&path, at as u64, &[bytes[at] ^ 1 << (at % 8)]).expect("within");
            let mut findings = Vec::new();
            reader(&image).verify(|error| findings.push(error)).expect("it is read");
            assert!(matches!(&findings[..], [Error::Corrupt { path: p, .. }] if *p == path), "{findings:?}");
            let space = open(Arc::new(image.clone())).unwrap_or_else(|e| panic!("byte {at}: {e}"));
            assert!(space.repaired_damage().is_some_and(Error::is_corrupt), "byte {at}");
            assert_eq!(content(&space).expect("readable"), model, "byte {at}");
            space.insert(0, b"on it goes").expect("room");
            space.close().expect("closed");
            let again = open(Arc::new(image)).expect("it opens");
            assert!(again.repaired_damage().is_none() && again.len() == model.len() as u64 + 10, "byte {at}");
        }
        let image = disk.fork();
        image.remove_file(&path).expect("it is there");
        assert_eq!(
            content(&open(Arc::new(image)).expect("it opens")).expect("readable"),
            model,
            "none at all"
        );
    }
}

fn reader(disk: &SimDisk) -> FlexSpace {
    let options = SpaceOptions { read_only: true, ..options() };
    FlexSpace::open_on(Arc::new(disk.clone()), SPACE_DIR, options).expect("it can be read")
}

/// Opens spaces without heads after several processes, each of which ended with a power cut. The
/// content must be a state that the space had. Usually it is the last one: only the heads show that
/// operations and checkpoints which a power cut left do not count.
#[test]
fn without_heads_a_space_opens_in_a_former_state() {
    let mut same = 0;
    for seed in 0..60 {
        let mut states = Vec::new();
        let mut disk = SimDisk::new();
        for life in 0..4 {
            let space = open(Arc::new(disk.clone())).expect("it opens");
            let mut len = space.len();
            let mut model = content(&space).expect("readable");
            for (n, step) in workload(seed * 4 + life, 60).iter().enumerate() {
                let step = step.clamp_to(len);
                step.run(&space).expect("nothing fails here");
                step.apply(&mut model);
                len = space.len();
                states.push(model.clone());
                if n == 40 {
                    space.sync().expect("synced");
                }
                space.maintain().expect("nothing fails here");
            }
            let percent = [0, 30, 70, 95][usize::try_from(seed % 4).expect("small")];
            disk = disk.power_cut(&KeepChoice::Seeded { seed: seed + life, percent });
            std::mem::forget(space); // The space must not be closed.
        }
        let before = content(&reader(&disk)).expect("readable");
        for slot in ["HEAD.0", "HEAD.1"] {
            disk.overwrite(&Path::new(SPACE_DIR).join(slot), 0, &[0; 200]).expect("it is there");
        }
        let options = SpaceOptions { read_only: true, ..options() };
        let mut skipped = Vec::new();
        let rest = FlexSpace::open_partial(Arc::new(disk), SPACE_DIR, options, &mut |e| skipped.push(e))
            .expect("it opens");
        let found = match content(&rest) {
            Ok(found) => found,
            // Caused by a checkpoint that no head named.
            Err(error) if error.is_corrupt() => continue,
            Err(error) => panic!("seed {seed}: {error}"),
        };
        same += u64::from(found == before);
        assert!(found == before || states.contains(&found), "seed {seed}: {skipped:?}");
    }
    assert!(same > 30, "{same} of 60");
}
