//! # Pace: writers slow down before they would have to stop
//!
//! Segments become free in batches: a pass of garbage collection, a sync, two heads. A writer that runs at full speed until
//! none is left would then stand still for a whole round. Instead, when little is left, each write waits a
//! little, so that what is left lasts about one round: a write of `b` bytes is to take `round × b / left`. The less there is
//! the slower it gets, so nothing is used up as long as rounds come to an end; and with more given back in a
//! round than is used in it, nobody waits.
//!
//! Without a background thread nobody waits: writers do the work themselves (`collect.rs`).

use std::time::Duration;

use sheaf_base::clock::{Clock, SystemClock};
use sheaf_base::sync::{Condvar, Mutex};

/// A wait shorter than this is put on the next writers' account.
const LEAST: Duration = Duration::from_micros(500);
/// No write waits longer.
const MOST: Duration = Duration::from_millis(6);
/// How long a round is thought to take at first, and at most.
const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct State {
    /// When segments were given back last, and the longest time between two such events of late.
    released: Duration,
    round: Duration,
    owed: Duration,
}

/// Who waits, and for how long.
#[derive(Debug)]
pub(crate) struct Pace {
    state: Mutex<State>,
    given_back: Condvar,
}

impl Default for Pace {
    fn default() -> Pace {
        let state = State { released: SystemClock.now(), round: FIRST, owed: Duration::ZERO };
        Pace { state: Mutex::new(state), given_back: Condvar::default() }
    }
}

impl Pace {
    /// Segments were given back.
    pub(crate) fn note_release(&self) {
        let now = SystemClock.now();
        let mut state = self.state.lock();
        let round = now.saturating_sub(state.released).min(LONGEST);
        state.round = round.max(state.round * 7 / 8);
        state.released = now;
        drop(state);
        self.given_back.notify_all();
    }

    /// After a write of `bytes`, with room for `left` more: waits as long as it should have taken.
    pub(crate) fn wait(&self, bytes: u64, left: u64) {
        let mut state = self.state.lock();
        let round = state.round.max(SystemClock.now().saturating_sub(state.released)).min(LONGEST);
        let share = bytes as f64 / (left as f64).max(1.0);
        state.owed = (state.owed + round.mul_f64(share.min(1.0))).min(MOST);
        if state.owed < LEAST {
            return;
        }
        let time = std::mem::take(&mut state.owed);
        self.given_back.wait_for(&mut state, time);
    }
}
