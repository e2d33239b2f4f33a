//! The gate under a scheduler: workers commit for one session; its agent releases commits and
//! sleeps.
//!
//! Built with `--cfg shuttle` only, with the options of `sheaf_platform::sync::explore`. Blind
//! spot: weak memory.

use std::sync::Arc;

use sheaf_flatrpc::memory::SharedMemory;
use sheaf_flatrpc::wake::{ModelNotifier, PeerWaker, SleepGuard};
use sheaf_platform::sync::{Mutex, explore, thread};

use crate::commit_order::{CommitOrder, WritingFlag};

/// Workers besides the agent, and commits of each worker.
const WORKERS: usize = 2;
const COMMITS: u64 = 2;

/// Shared state: the last number, the flags, the agent's queue and bell.
struct ModelWorkers {
    seq: Mutex<u64>,
    writing: [WritingFlag; WORKERS],
    queue: Mutex<Vec<(usize, u64)>>,
    wake: PeerWaker<ModelNotifier>,
}

impl ModelWorkers {
    fn commit(&self, lane: usize) {
        self.writing[lane].set();
        let seq = {
            let mut last = self.seq.lock();
            *last += 1;
            *last
        };
        self.queue.lock().push((lane, seq));
        self.writing[lane].clear();
        self.wake.wake();
    }
}

/// Agent, correct or with a seeded bug.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ModelAgent {
    Correct,
    /// Reads the flags after it has emptied its queue.
    ReadsFlagsLate,
    /// Also releases commits that it received after it read the flags.
    ReleasesAll,
    /// Takes a ring after it has checked its queue, and sleeps.
    LosesWakeups,
}

fn run_agent(agent: ModelAgent) {
    let board = Arc::new(SharedMemory::heap(1));
    let desk = Arc::new(ModelWorkers {
        seq: Mutex::new(0),
        writing: Default::default(),
        queue: Mutex::default(),
        wake: PeerWaker { sleep_flags: Arc::clone(&board), flag: 0, notifier: ModelNotifier::default() },
    });
    let workers = [0, 1].map(|lane| {
        let desk = Arc::clone(&desk);
        thread::spawn(move || (0..COMMITS).for_each(|_| desk.commit(lane)))
    });
    let mut gate = CommitOrder::new(WORKERS);
    let mut last = 0;
    let mut pass = |last: &mut u64| {
        let take = |gate: &mut CommitOrder<u64>| {
            let heard = std::mem::take(&mut *desk.queue.lock());
            heard.iter().for_each(|(lane, seq)| gate.push(*lane, *seq, *seq));
            !heard.is_empty()
        };
        let mut worked = take(&mut gate);
        let rung = desk.wake.notifier.take(); // as a poll of the sockets does
        worked |= rung && agent != ModelAgent::LosesWakeups;
        if agent == ModelAgent::ReadsFlagsLate {
            worked |= take(&mut gate);
        }
        let mut look = gate.read_flags(desk.writing.iter());
        if agent != ModelAgent::ReadsFlagsLate && !gate.is_empty() {
            worked |= take(&mut gate);
        }
        if agent == ModelAgent::ReleasesAll {
            look.highest = u64::MAX;
        }
        while let Some(seq) = gate.pop_ready(look) {
            assert_eq!(seq, *last + 1, "out of order");
            *last = seq;
            worked = true;
        }
        worked
    };
    while last < WORKERS as u64 * COMMITS {
        if pass(&mut last) {
            continue;
        }
        let asleep = SleepGuard::set(&board, 0);
        if !pass(&mut last) {
            desk.wake.notifier.wait();
        }
        drop(asleep);
    }
    workers.into_iter().for_each(|worker| worker.join().expect("it commits"));
}

#[test]
fn commits_leave_in_order_and_none_is_held_forever() {
    explore(20_000, || run_agent(ModelAgent::Correct));
}

#[test]
#[should_panic(expected = "out of order")]
fn an_agent_that_reads_the_flags_too_late_is_found() {
    explore(20_000, || run_agent(ModelAgent::ReadsFlagsLate));
}

#[test]
#[should_panic(expected = "out of order")]
fn an_agent_that_releases_commits_received_after_the_flags_is_found() {
    explore(20_000, || run_agent(ModelAgent::ReleasesAll));
}

#[test]
#[should_panic(expected = "deadlock")]
fn an_agent_that_loses_a_wakeup_is_found() {
    explore(20_000, || run_agent(ModelAgent::LosesWakeups));
}
