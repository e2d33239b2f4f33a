//! # Naming: the segments that must be there
//!
//! A log is a row of segments. ROOT lists some; a segment that is full ends with a seal that names
//! its successor. What ROOT or a seal names must be there, and a segment that is there but is named
//! by neither was never used. So a segment that is deleted, or whose header rots, is reported, and
//! a segment that a power cut left half made is not.
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
    /// How many segments ROOT lists.
    root: Page<usize>,
    segments: Vec<Segment>,
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
    /// ROOT is written with all segments, and synced.
    WriteRoot,
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
}

impl State {
    fn pages(&self) -> impl Iterator<Item = &dyn Fate> {
        let root: [&dyn Fate; 1] = [&self.root];
        root.into_iter().chain(self.segments.iter().flat_map(Segment::pages))
    }

    fn pages_mut(&mut self) -> impl Iterator<Item = &mut dyn Fate> {
        let root: [&mut dyn Fate; 1] = [&mut self.root];
        root.into_iter().chain(self.segments.iter_mut().flat_map(Segment::pages_mut))
    }

    fn listed(&self) -> usize {
        self.root.read().copied().unwrap_or(0)
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
        let mut root = Page::empty();
        root.write(0, false);
        root.sync();
        let segments = Vec::new();
        vec![State { root, segments, commits: 0, durable: 0, is_down: false, broken: None }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.is_down {
            return;
        }
        for crash in [Crash::PowerCut, Crash::Kill] {
            let rots = (0..state.segments.len()).flat_map(|at| [Rot::File(at), Rot::Header(at)]);
            let rots: Vec<Option<Rot>> = rots.map(Some).chain([None]).collect();
            for way in 0..disk::ways(state.pages(), crash) {
                actions.extend(rots.iter().map(|rot| Action::Crash(crash, way, *rot)));
            }
        }
        if state.segments.len() < self.segments {
            actions.push(Action::Make);
        }
        if state.segments.iter().any(|segment| !segment.is_settled()) {
            actions.push(Action::Settle);
        }
        if state.listed() < state.segments.len() && self.may_name(&state.segments) {
            actions.push(Action::WriteRoot);
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

    fn may_commit(&self, state: &State) -> bool {
        let at = state.commits;
        let Some(next) = state.segments.get(at) else { return false };
        let is_listed = state.listed() > at || !self.rules.first_segment_is_listed;
        (at > 0 || is_listed) && self.may_name(std::slice::from_ref(next))
    }

    fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::Make => {
                let (mut name, mut header) = (Page::empty(), Page::empty());
                name.write((), false);
                header.write((), true);
                state.segments.push(Segment { name, header, frame: Page::empty(), seal: Page::empty() });
            }
            Action::Settle => state.segments.iter_mut().for_each(settle),
            Action::WriteRoot => {
                state.root.write(state.segments.len(), false);
                state.root.sync();
            }
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
        return rot.is_none().then_some(Broken::FalseDamage);
    }
    let counts = |at: &usize| {
        let segment = &segments[*at];
        is_named(*at) && segment.is_there() && segment.frame.read().is_some()
    };
    let found = (0..segments.len()).take_while(counts).count();
    match rot {
        None if found < state.durable => Some(Broken::Durable),
        Some(_) if found < state.durable => Some(Broken::SilentRot),
        _ => None,
    }
}
