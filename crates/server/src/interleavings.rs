//! The gate under a scheduler: workers commit for one session; its agent releases commits and
//! sleeps.
//!
//! Built with `--cfg shuttle` only, with the options of `sheaf_base::sync::explore`. Blind spot:
//! weak memory.

use std::sync::Arc;

use sheaf_base::sync::{Mutex, explore, thread};
use sheaf_flatrpc::memory::Memory;
use sheaf_flatrpc::wake::{Asleep, Bells, Wake};

use crate::gate::{Gate, Writing};

/// Workers besides the agent, and commits of each worker.
const WORKERS: usize = 2;
const COMMITS: u64 = 2;

/// Shared state: the last number, the flags, the agent's queue and bell.
struct Desk {
    seq: Mutex<u64>,
    writing: [Writing; WORKERS],
    queue: Mutex<Vec<(usize, u64)>>,
    wake: Wake<Bells>,
}

impl Desk {
    fn commit(&self, lane: usize) {
        self.writing[lane].begin();
        let seq = {
            let mut last = self.seq.lock();
            *last += 1;
            *last
        };
        self.queue.lock().push((lane, seq));
        self.writing[lane].end();
        self.wake.ring();
    }
}

/// Agent, correct or with a seeded bug.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Agent {
    Sound,
    /// Reads the flags after it has emptied its queue.
    LooksLate,
    /// Also releases commits that it received after it read the flags.
    LetsOutAll,
    /// Takes a ring after it has checked its queue, and sleeps.
    ForgetsRings,
}

fn let_out(agent: Agent) {
    let board = Arc::new(Memory::heap(1));
    let desk = Arc::new(Desk {
        seq: Mutex::new(0),
        writing: Default::default(),
        queue: Mutex::default(),
        wake: Wake { board: Arc::clone(&board), at: 0, bell: Bells::default() },
    });
    let workers = [0, 1].map(|lane| {
        let desk = Arc::clone(&desk);
        thread::spawn(move || (0..COMMITS).for_each(|_| desk.commit(lane)))
    });
    let mut gate = Gate::new(WORKERS);
    let mut last = 0;
    let mut pass = |last: &mut u64| {
        let take = |gate: &mut Gate<u64>| {
            let heard = std::mem::take(&mut *desk.queue.lock());
            heard.iter().for_each(|(lane, seq)| gate.hold(*lane, *seq, *seq));
            !heard.is_empty()
        };
        let mut worked = take(&mut gate);
        let rung = desk.wake.bell.take(); // as a poll of the sockets does
        worked |= rung && agent != Agent::ForgetsRings;
        if agent == Agent::LooksLate {
            worked |= take(&mut gate);
        }
        let mut look = gate.look(desk.writing.iter());
        if agent != Agent::LooksLate && !gate.is_empty() {
            worked |= take(&mut gate);
        }
        if agent == Agent::LetsOutAll {
            look.highest = u64::MAX;
        }
        while let Some(seq) = gate.release(look) {
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
        let asleep = Asleep::say(&board, 0);
        if !pass(&mut last) {
            desk.wake.bell.wait();
        }
        drop(asleep);
    }
    workers.into_iter().for_each(|worker| worker.join().expect("it commits"));
}

#[test]
fn commits_leave_in_the_order_of_their_numbers_and_none_stays() {
    explore(20_000, || let_out(Agent::Sound));
}

#[test]
#[should_panic(expected = "out of order")]
fn an_agent_that_reads_the_flags_too_late_is_found() {
    explore(20_000, || let_out(Agent::LooksLate));
}

#[test]
#[should_panic(expected = "out of order")]
fn an_agent_that_releases_commits_received_after_the_flags_is_found() {
    explore(20_000, || let_out(Agent::LetsOutAll));
}

#[test]
#[should_panic(expected = "deadlock")]
fn an_agent_that_sleeps_after_a_ring_is_found() {
    explore(20_000, || let_out(Agent::ForgetsRings));
}
