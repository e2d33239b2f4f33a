//! # Naming: the segments that must be there
//!
//! A log is a row of segments. ROOT lists some; a segment that is full ends with a seal that names
//! its successor. What ROOT or a seal names must be there, and a segment that is there but is named
//! by neither was never used. So a segment that is deleted, or whose header rots, is reported, and
//! a segment that a power cut left half made is not. A ready segment that the log gives up is
//! deleted when neither slot of ROOT lists it: either slot may rot.
//!
//! ## Picture
//! ```text
//!   ROOT ──lists──> segment 0 | commit | seal ──names──> segment 1 | commit | seal ──names──> ...
//! ```
//!
//! ## Checked
//! I3, I8 and I9, for one log whose segments take one commit each.

use crate::Rules;
use crate::disk::{self, Crash, Fate, Page};
use crate::explore::{Broken, Verdict, nothing_is_broken};
use stateright::{Model, Property};

/// The model.
#[derive(Clone, Debug)]
pub struct Naming {
    /// Which rules hold.
    pub rules: Rules,
    /// Segments, and commits.
    pub segments: usize,
}

/// A file of the log: its name in the directory and its header, and what stands in it.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct Segment {
    name: Page<()>,
    header: Page<()>,
    frame: Page<()>,
    /// Names the next segment.
    seal: Page<()>,
}

impl Segment {
    fn pages(&self) -> [&dyn Fate; 4] {
        [&self.name, &self.header, &self.frame, &self.seal]
    }

    fn pages_mut(&mut self) -> [&mut dyn Fate; 4] {
        [&mut self.name, &mut self.header, &mut self.frame, &mut self.seal]
    }

    fn is_there(&self) -> bool {
        self.name.read().is_some() && self.header.read().is_some()
    }

    fn is_settled(&self) -> bool {
        self.is_there() && self.name.is_settled() && self.header.is_settled()
    }
}

/// Disk and process.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct State {
    /// The slots of ROOT: a generation, and how many segments it lists.
    roots: [Page<(u64, usize)>; 2],
    segments: Vec<Segment>,
    /// Segments that are in use or ready. The log has given up those after them.
    serving: usize,
    /// True after the log gave up a segment: it gives up one at most.
    has_given_up: bool,
    commits: usize,
    durable: usize,
    is_down: bool,
    broken: Option<Broken>,
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A file is made, with its header.
    Make,
    /// Name and header of every file are synced.
    Settle,
    /// The older slot of ROOT is written with the segments in service.
    WriteRoot,
    /// ROOT is synced.
    SyncRoot,
    /// The log gives up its last ready segment.
    GiveUp,
    /// The file of a segment that the log gave up is deleted.
    Delete,
    /// A commit goes to the next segment, behind a seal in the one before.
    Commit,
    /// A sync round.
    Sync,
    /// The power goes, or the process; then maybe a file is lost, or its header.
    Crash(Crash, usize, Option<Rot>),
}

/// What rots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rot {
    /// A file is deleted.
    File(usize),
    /// Its header is damaged.
    Header(usize),
    /// A slot of ROOT is damaged.
    Slot(usize),
}

impl State {
    fn pages(&self) -> impl Iterator<Item = &dyn Fate> {
        let roots = self.roots.iter().map(|slot| -> &dyn Fate { slot });
        roots.chain(self.segments.iter().flat_map(Segment::pages))
    }

    fn pages_mut(&mut self) -> impl Iterator<Item = &mut dyn Fate> {
        let roots = self.roots.iter_mut().map(|slot| -> &mut dyn Fate { slot });
        roots.chain(self.segments.iter_mut().flat_map(Segment::pages_mut))
    }

    /// The slot with the newest readable generation.
    fn newest(&self) -> usize {
        usize::from(self.roots[1].read() > self.roots[0].read())
    }

    fn listed_by(&self, slot: usize) -> usize {
        self.roots[slot].read().map_or(0, |(_, listed)| *listed)
    }

    fn listed(&self) -> usize {
        self.listed_by(self.newest())
    }

    fn is_root_synced(&self) -> bool {
        self.roots.iter().all(|slot| !slot.is_dirty())
    }
}

impl Verdict for State {
    fn broken(&self) -> Option<Broken> {
        self.broken
    }
}

impl Model for Naming {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut roots = [Page::empty(), Page::empty()];
        for (generation, slot) in (0..).zip(&mut roots) {
            slot.write((generation, 0), false);
            slot.sync();
        }
        let segments = Vec::new();
        vec![State {
            roots,
            segments,
            serving: 0,
            has_given_up: false,
            commits: 0,
            durable: 0,
            is_down: false,
            broken: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.is_down {
            return;
        }
        for crash in [Crash::PowerCut, Crash::Kill] {
            let rots = (0..state.segments.len()).flat_map(|at| [Rot::File(at), Rot::Header(at)]);
            let rots = rots.chain([Rot::Slot(0), Rot::Slot(1)]);
            let rots: Vec<Option<Rot>> = rots.map(Some).chain([None]).collect();
            for way in 0..disk::ways(state.pages(), crash) {
                actions.extend(rots.iter().map(|rot| Action::Crash(crash, way, *rot)));
            }
        }
        if state.segments.len() < self.segments && state.serving == state.segments.len() {
            actions.push(Action::Make);
        }
        if state.serving > state.commits && !state.has_given_up {
            actions.push(Action::GiveUp);
        }
        if state.serving < state.segments.len() && state.is_root_synced() && self.may_delete(state) {
            actions.push(Action::Delete);
        }
        if state.segments.iter().any(|segment| !segment.is_settled()) {
            actions.push(Action::Settle);
        }
        let is_new = (0..2).any(|slot| state.listed_by(slot) != state.serving);
        if is_new && state.is_root_synced() && self.may_name(&state.segments[..state.serving]) {
            actions.push(Action::WriteRoot);
        }
        if !state.is_root_synced() {
            actions.push(Action::SyncRoot);
        }
        if self.may_commit(state) {
            actions.push(Action::Commit);
        }
        if state.durable < state.commits {
            actions.push(Action::Sync);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        self.step(&mut next, action);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        nothing_is_broken()
    }
}

impl Naming {
    /// Whether what is named now is there after a power cut.
    fn may_name(&self, segments: &[Segment]) -> bool {
        !self.rules.named_segments_are_settled || segments.iter().all(Segment::is_settled)
    }

    /// Whether no slot of ROOT lists the last segment.
    fn may_delete(&self, state: &State) -> bool {
        let last = state.segments.len() - 1;
        match self.rules.given_up_segments_are_in_no_slot {
            true => (0..2).all(|slot| state.listed_by(slot) <= last),
            false => state.listed() <= last,
        }
    }

    fn may_commit(&self, state: &State) -> bool {
        let at = state.commits;
        let Some(next) = state.segments.get(at).filter(|_| at < state.serving) else { return false };
        let is_durably_listed = state.listed() > at && state.is_root_synced();
        let is_listed = is_durably_listed || !self.rules.first_segment_is_listed;
        (at > 0 || is_listed) && self.may_name(std::slice::from_ref(next))
    }

    fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::Make => {
                let (mut name, mut header) = (Page::empty(), Page::empty());
                name.write((), false);
                header.write((), true);
                state.segments.push(Segment { name, header, frame: Page::empty(), seal: Page::empty() });
                state.serving += 1;
            }
            Action::GiveUp => {
                state.serving -= 1;
                state.has_given_up = true;
            }
            Action::Delete => drop(state.segments.pop()),
            Action::Settle => state.segments.iter_mut().for_each(settle),
            Action::WriteRoot => {
                let newest = state.newest();
                let generation = state.roots[newest].read().map_or(0, |(generation, _)| *generation);
                state.roots[1 - newest].write((generation + 1, state.serving), true);
            }
            Action::SyncRoot => state.roots.iter_mut().for_each(Page::sync),
            Action::Commit => {
                let at = state.commits;
                if at > 0 && self.rules.every_segment_ends_with_a_seal {
                    state.segments[at - 1].seal.write((), true);
                }
                state.segments[at].frame.write((), true);
                state.commits += 1;
            }
            Action::Sync => {
                for segment in &mut state.segments[..state.commits] {
                    settle(segment);
                    segment.frame.sync();
                    segment.seal.sync();
                }
                state.durable = state.commits;
            }
            Action::Crash(crash, way, rot) => {
                disk::suffer(state.pages_mut(), crash, way);
                match rot {
                    Some(Rot::File(at)) => {
                        let segment = &mut state.segments[at];
                        [&mut segment.name, &mut segment.header].into_iter().for_each(Page::rot);
                        [&mut segment.frame, &mut segment.seal].into_iter().for_each(Page::rot);
                    }
                    Some(Rot::Header(at)) => state.segments[at].header.rot(),
                    Some(Rot::Slot(slot)) => state.roots[slot].rot(),
                    None => {}
                }
                state.is_down = true;
                state.broken = judge(state, rot);
            }
        }
    }
}

fn settle(segment: &mut Segment) {
    segment.name.sync();
    segment.header.sync();
}

/// Recovers, and compares with what the world is owed.
fn judge(state: &State, rot: Option<Rot>) -> Option<Broken> {
    let segments = &state.segments;
    let is_sealed = |at: usize| segments[at].is_there() && segments[at].seal.read().is_some();
    let is_named = |at: usize| at < state.listed() || at > 0 && is_sealed(at - 1);
    if (0..segments.len()).any(|at| is_named(at) && !segments[at].is_there()) {
        let is_false = matches!(rot, None | Some(Rot::Slot(_))); // the other slot is whole
        return is_false.then_some(Broken::FalseDamage);
    }
    // Segments that are newer than ROOT are read as well.
    let counts = |at: &usize| segments[*at].is_there() && segments[*at].frame.read().is_some();
    let found = (0..segments.len()).take_while(counts).count();
    match rot {
        None if found < state.durable => Some(Broken::Durable),
        Some(_) if found < state.durable => Some(Broken::SilentRot),
        _ => None,
    }
}
