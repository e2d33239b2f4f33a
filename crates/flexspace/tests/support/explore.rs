//! # Crash explorer: a power cut after every disk operation
//!
//! The disk is forked after each of its operations. Each fork gets several power cuts and a kill,
//! and is then opened and checked. It must have the result of a prefix of the operations that
//! includes all before the last sync. It must accept a write and keep it through the next power
//! cut. For a sample of the images, recovery is interrupted by a second crash.
//!
//! Blind spots: interleavings of threads, bugs that depend on size, a third crash.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::Mutex;

use sheaf_platform::disk::Disk;
use sheaf_sim::{KeepChoice, SimDisk};

use super::buggy_disk::{BuggyDisk, SeededBug};
use super::{WorkloadStep, content, open, workload};

/// Progress of the workload.
#[derive(Clone, Copy, Debug)]
struct ProgressMarks {
    /// Last state that was synced, or served after an opening.
    durable: usize,
    /// Last state that was started.
    issued: usize,
}

struct CrashPoint {
    image: SimDisk,
    marks: ProgressMarks,
}

/// Counts of the exploration.
#[derive(Default)]
pub(crate) struct Totals {
    pub(crate) points: usize,
    pub(crate) images: usize,
    pub(crate) recovery_images: usize,
}

/// Runs the steps on a disk that is forked after each operation of the steps from number `from` on.
/// Returns the states and the forks.
fn record(
    steps: &[WorkloadStep],
    from: usize,
    is_paranoid: bool,
    bug: SeededBug,
) -> (Vec<Vec<u8>>, Vec<CrashPoint>) {
    let points: Arc<Mutex<Vec<CrashPoint>>> = Arc::default();
    let marks = Arc::new(Mutex::new(ProgressMarks { durable: 0, issued: 0 }));
    let watch = |disk: &SimDisk| {
        disk.set_paranoid(is_paranoid);
        let (points, marks) = (Arc::clone(&points), Arc::clone(&marks));
        disk.set_hook(Some(Arc::new(move |disk: &SimDisk| {
            let marks = *marks.lock().expect("no test fails here");
            points.lock().expect("no test fails here").push(CrashPoint { image: disk.fork(), marks });
        })));
    };
    let lying = |disk: &SimDisk| -> Arc<dyn Disk> { Arc::new(BuggyDisk::new(disk.clone(), bug)) };
    let mut disk = SimDisk::new();
    if from == 0 {
        watch(&disk);
    }
    let mut space = open(lying(&disk)).expect("a new space");
    let mut states = vec![Vec::new()];
    for (number, step) in steps.iter().enumerate() {
        if number == from && from > 0 {
            watch(&disk);
        }
        let mut state = states.last().expect("never empty").clone();
        let step = step.clamp_to(state.len() as u64);
        step.apply(&mut state);
        if state != *states.last().expect("never empty") {
            states.push(state);
            marks.lock().expect("no test fails here").issued = states.len() - 1;
        }
        match step {
            WorkloadStep::Reopen => {
                space.close().expect("nothing fails here");
                space = open(lying(&disk)).expect("it opens");
            }
            WorkloadStep::Kill => {
                let killed = disk.kill();
                disk.set_hook(None);
                drop(space);
                disk = killed;
                watch(&disk);
                space = open(lying(&disk)).expect("it opens");
                // A killed process loses bytes that were not flushed to the kernel.
                let now = content(&space).expect("readable");
                let durable = marks.lock().expect("no test fails here").durable;
                assert!(states[durable..].contains(&now), "a kill leaves a state since the last sync");
                states.push(now);
            }
            ref other => other.run(&space).expect("nothing fails here"),
        }
        if matches!(
            step,
            WorkloadStep::Sync | WorkloadStep::Reopen | WorkloadStep::Kill | WorkloadStep::Checkpoint
        ) {
            let last = states.len() - 1;
            *marks.lock().expect("no test fails here") = ProgressMarks { durable: last, issued: last };
        }
    }
    disk.set_hook(None);
    drop(space);
    let points = std::mem::take(&mut *points.lock().expect("no test fails here"));
    (states, points)
}

/// Opens an image and checks everything. With `deep`, also crashes again during the opening.
fn check(
    image: &SimDisk,
    states: &[Vec<u8>],
    marks: ProgressMarks,
    deep: Option<u64>,
) -> Result<usize, String> {
    let moments: Arc<Mutex<Vec<SimDisk>>> = Arc::default();
    if deep.is_some() {
        let moments = Arc::clone(&moments);
        image.set_hook(Some(Arc::new(move |disk: &SimDisk| {
            moments.lock().expect("no test fails here").push(disk.fork());
        })));
    }
    let space = open(Arc::new(image.clone())).map_err(|e| format!("it does not open: {e}"))?;
    image.set_hook(None);
    let mut now = content(&space).map_err(|e| format!("it cannot be read: {e}"))?;
    if !(marks.durable..=marks.issued).any(|index| states[index] == now) {
        let elsewhere = states.iter().position(|state| *state == now);
        return Err(format!("{} bytes, which is state {elsewhere:?} and not one of {marks:?}", now.len()));
    }
    let served = now.clone();
    space.insert(0, b"after the crash").map_err(|e| format!("it takes nothing: {e}"))?;
    space.sync().map_err(|e| format!("it does not sync: {e}"))?;
    now.splice(0..0, b"after the crash".iter().copied());
    let next = image.power_cut(&KeepChoice::None);
    drop(space);
    for again in [next, image.fork()] {
        let space = open(Arc::new(again)).map_err(|e| format!("it does not open again: {e}"))?;
        let bytes = content(&space).map_err(|e| format!("it cannot be read again: {e}"))?;
        if bytes != now {
            return Err(format!("opened again it has {} bytes instead of {}", bytes.len(), now.len()));
        }
        let mut finding = None;
        space.verify(|found| finding = Some(found)).map_err(|e| format!("it cannot be verified: {e}"))?;
        if let Some(finding) = finding {
            return Err(format!("verify finds {finding}"));
        }
    }
    let mut opened = 1;
    if let Some(seed) = deep {
        // Nothing was acknowledged during the opening. After a second crash each state is valid
        // that was valid after the first.
        let moments = std::mem::take(&mut *moments.lock().expect("no test fails here"));
        for (number, moment) in moments.iter().enumerate() {
            for keep in moment.pending().keeps(3, 3, seed ^ number as u64) {
                opened += check(&moment.power_cut(&keep), states, marks, None)
                    .map_err(|failure| format!("second crash at moment {number}, {keep:?}: {failure}"))?;
            }
        }
        let _ = served;
    }
    Ok(opened)
}

/// Explores the workload of `seed` on a disk with `bug`. Returns the first failure.
pub(crate) fn explore(
    seed: u64,
    count: usize,
    is_paranoid: bool,
    bug: SeededBug,
    totals: &mut Totals,
) -> Result<(), String> {
    let mut steps = workload(seed, count);
    if bug != SeededBug::None {
        // A kill also loses writes that the buggy disk delays. That would be found without any
        // power cut.
        steps.retain(|step| !matches!(step, WorkloadStep::Kill));
    }
    explore_steps((seed, &steps), 0, is_paranoid, bug, totals)
}

/// Explores crashes after each disk operation of the steps from number `from` on. The first
/// operations of a long preparation are left out.
pub(crate) fn explore_steps(
    (seed, steps): (u64, &[WorkloadStep]),
    from: usize,
    is_paranoid: bool,
    bug: SeededBug,
    totals: &mut Totals,
) -> Result<(), String> {
    let (states, points) = record(steps, from, is_paranoid, bug);
    let count = steps.len();
    let mut seen = HashSet::new();
    for (number, point) in points.iter().enumerate() {
        totals.points += 1;
        let keeps = point.image.pending().keeps(4, 4, seed ^ number as u64);
        let cuts = keeps.into_iter().map(|keep| (point.image.power_cut(&keep), format!("{keep:?}")));
        for (image, crash) in cuts.chain([(point.image.kill(), "killed".to_owned())]) {
            let is_kill = crash == "killed";
            if !seen.insert((image.hash(), is_kill, point.marks.durable, point.marks.issued)) && !is_kill {
                continue;
            }
            totals.images += 1;
            let deep = totals.images.is_multiple_of(499).then_some(seed);
            let opened = check(&image, &states, point.marks, deep).map_err(|error| {
                format!(
                    "seed {seed} of {count} steps (paranoid: {is_paranoid}), after disk operation {number}, {crash}: {error}"
                )
            })?;
            totals.recovery_images += opened - 1;
        }
    }
    Ok(())
}
