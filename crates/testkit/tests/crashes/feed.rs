//! A replica that is built from a snapshot and the change feed equals the original after a crash at
//! any disk call of a workload.

use std::sync::Arc;

use sheaf::Database;
use sheaf_platform::sync::Mutex;
use sheaf_sim::{KeepChoice, SimDisk};
use sheaf_testkit::crash::explore::{ExplorePlan, explore};
use sheaf_testkit::crash::machine::TestMachine;
use sheaf_testkit::crash::run::WorkloadRun;
use sheaf_testkit::crash::workload::{WorkloadShape, generate};
use sheaf_testkit::fixture::TestSubject;
use sheaf_testkit::replica::{Replica, read_snapshot};

/// Disk before a call, and the replica as it was then.
type Point = (SimDisk, Option<Replica>);

fn shape(steps: usize) -> WorkloadShape {
    WorkloadShape {
        steps,
        large: 1500,
        has_background_work: true,
        has_drops: true,
        has_compactions: true,
        has_loads_and_conversions: true,
        has_renames_and_merges: true,
        ..WorkloadShape::default()
    }
}

/// Runs a workload while a replica follows it. Returns the disk before every changing call.
fn record(subject: &TestSubject, seed: u64) -> Vec<Point> {
    let machine = TestMachine::for_subject(subject, SimDisk::new());
    let mut run = WorkloadRun::new(machine.clone());
    let points: Arc<Mutex<Vec<Point>>> = Arc::default();
    let replica: Arc<Mutex<Option<Replica>>> = Arc::default();
    let (sim, out, now) = (machine.sim.clone(), Arc::clone(&points), Arc::clone(&replica));
    machine.recording_disk.set_observer(move |_, _| {
        let replica = now.lock().clone();
        out.lock().push((sim.fork(), replica));
    });
    for (number, step) in generate(seed, &shape(30)).iter().enumerate() {
        run.run_step(number, step).expect("the workload runs");
        let db = run.db().expect("the database is open");
        let mut present = replica.lock().take();
        match &mut present {
            Some(replica) => drop(replica.catch_up(&db).expect("the feed is readable")),
            None if number == 8 => present = Some(Replica::copy_of(&db).expect("the snapshot is readable")),
            None => {}
        }
        *replica.lock() = present;
    }
    machine.recording_disk.clear_observer();
    std::mem::take(&mut *points.lock())
}

fn follow(db: &Database, mut replica: Replica) -> Result<(), String> {
    replica.catch_up(db).map_err(|error| format!("the feed cannot be read: {error}"))?;
    let original = db.snapshot().and_then(|snapshot| read_snapshot(&snapshot));
    let original = original.map_err(|error| error.to_string())?;
    match replica.keyspaces == original {
        true => Ok(()),
        false => Err(format!("the replica has {:?} instead of {original:?}", replica.keyspaces)),
    }
}

fn a_replica_survives_every_crash(subject: &TestSubject, seeds: std::ops::Range<u64>) {
    let subject = subject.clone().with_changes();
    for seed in seeds {
        for (number, (image, replica)) in record(&subject, seed).into_iter().enumerate() {
            let Some(replica) = replica else { continue };
            let keeps = [
                None,
                Some(KeepChoice::None),
                Some(KeepChoice::All),
                Some(KeepChoice::Seeded { seed: number as u64, percent: 50 }),
            ];
            for keep in keeps {
                let crashed = match &keep {
                    Some(keep) => image.power_cut(keep),
                    None => image.kill(),
                };
                let machine = TestMachine::for_subject(&subject, crashed);
                let db = machine.open().expect("it opens");
                if let Err(mismatch) = follow(&db, replica.clone()) {
                    panic!("{} seed {seed} call {number} {keep:?}: {mismatch}", subject.name);
                }
            }
        }
    }
}

/// The states of the crash explorer, with a check that the feed leads to each state.
fn the_feed_leads_to_every_recovered_state(subject: &TestSubject, seeds: std::ops::Range<u64>) {
    let subject = subject.clone().with_changes();
    for seed in seeds {
        let plan = ExplorePlan { subject: subject.clone(), max_states: 400, ..ExplorePlan::default() };
        let report = explore(&generate(1000 + seed, &shape(24)), &plan);
        if let Some(failure) = report.failure {
            panic!("{failure}");
        }
    }
}

macro_rules! feed_suite {
    ($module:ident, $subject:expr) => {
        mod $module {
            use super::*;

            #[test]
            fn a_replica_survives_every_crash() {
                super::a_replica_survives_every_crash(&$subject, 0..3);
            }

            #[test]
            fn the_feed_leads_to_every_recovered_state() {
                super::the_feed_leads_to_every_recovered_state(&$subject, 0..3);
            }
        }
    };
}

feed_suite!(flat, TestSubject::flat());
feed_suite!(flat_ordered, TestSubject::flat_ordered());
feed_suite!(flex, TestSubject::flex());
feed_suite!(cedrus, TestSubject::cedrus());
feed_suite!(kreon, TestSubject::kreon());
feed_suite!(delsm, TestSubject::delsm());
feed_suite!(across, TestSubject::all_engines());
