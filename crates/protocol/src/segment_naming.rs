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

use crate::ProtocolRules;
use crate::disk::{self, CrashKind, CrashOutcomes, ModelPage};
use crate::explore::{BrokenInvariant, CheckedState, no_broken_invariant};
use stateright::{Model, Property};

/// The model.
#[derive(Clone, Debug)]
pub struct SegmentNamingModel {
    /// Which rules hold.
    pub rules: ProtocolRules,
    /// Segments, and commits.
    pub segments: usize,
}

/// A file of the log: its name in the directory and its header, and what stands in it.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct NamedSegment {
    name: ModelPage<()>,
    header: ModelPage<()>,
    frame: ModelPage<()>,
    /// Names the next segment.
    seal: ModelPage<()>,
}

impl NamedSegment {
    fn pages(&self) -> [&dyn CrashOutcomes; 4] {
        [&self.name, &self.header, &self.frame, &self.seal]
    }

    fn pages_mut(&mut self) -> [&mut dyn CrashOutcomes; 4] {
        [&mut self.name, &mut self.header, &mut self.frame, &mut self.seal]
    }

    fn exists(&self) -> bool {
        self.name.read().is_some() && self.header.read().is_some()
    }

    fn is_durable(&self) -> bool {
        self.exists() && self.name.is_on_platter() && self.header.is_on_platter()
    }
}

/// Disk and process.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct NamingState {
    /// The slots of ROOT: a generation, and how many segments it lists.
    roots: [ModelPage<(u64, usize)>; 2],
    segments: Vec<NamedSegment>,
    /// Segments that are in use or ready. The log has given up those after them.
    in_service: usize,
    /// True after the log gave up a segment: it gives up one at most.
    has_released: bool,
    commits: usize,
    durable: usize,
    is_down: bool,
    broken_invariant: Option<BrokenInvariant>,
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamingAction {
    /// A file is made, with its header.
    Create,
    /// Name and header of every file are synced.
    SyncNames,
    /// The older slot of ROOT is written with the segments in service.
    WriteRoot,
    /// ROOT is synced.
    SyncRoot,
    /// The log gives up its last ready segment.
    Release,
    /// The file of a segment that the log gave up is deleted.
    Delete,
    /// A commit goes to the next segment, behind a seal in the one before.
    Commit,
    /// A sync round.
    Sync,
    /// The power goes, or the process; then maybe a file is lost, or its header.
    Crash(CrashKind, usize, Option<NamingRot>),
}

/// What rots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamingRot {
    /// A file is deleted.
    File(usize),
    /// Its header is damaged.
    Header(usize),
    /// A slot of ROOT is damaged.
    Slot(usize),
}

impl NamingState {
    fn pages(&self) -> impl Iterator<Item = &dyn CrashOutcomes> {
        let roots = self.roots.iter().map(|slot| -> &dyn CrashOutcomes { slot });
        roots.chain(self.segments.iter().flat_map(NamedSegment::pages))
    }

    fn pages_mut(&mut self) -> impl Iterator<Item = &mut dyn CrashOutcomes> {
        let roots = self.roots.iter_mut().map(|slot| -> &mut dyn CrashOutcomes { slot });
        roots.chain(self.segments.iter_mut().flat_map(NamedSegment::pages_mut))
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

impl CheckedState for NamingState {
    fn broken_invariant(&self) -> Option<BrokenInvariant> {
        self.broken_invariant
    }
}

impl Model for SegmentNamingModel {
    type State = NamingState;
    type Action = NamingAction;

    fn init_states(&self) -> Vec<NamingState> {
        let mut roots = [ModelPage::empty(), ModelPage::empty()];
        for (generation, slot) in (0..).zip(&mut roots) {
            slot.write((generation, 0), false);
            slot.sync();
        }
        let segments = Vec::new();
        vec![NamingState {
            roots,
            segments,
            in_service: 0,
            has_released: false,
            commits: 0,
            durable: 0,
            is_down: false,
            broken_invariant: None,
        }]
    }

    fn actions(&self, state: &NamingState, actions: &mut Vec<NamingAction>) {
        if state.is_down {
            return;
        }
        for crash in [CrashKind::PowerCut, CrashKind::Kill] {
            let rots = (0..state.segments.len()).flat_map(|at| [NamingRot::File(at), NamingRot::Header(at)]);
            let rots = rots.chain([NamingRot::Slot(0), NamingRot::Slot(1)]);
            let rots: Vec<Option<NamingRot>> = rots.map(Some).chain([None]).collect();
            for way in 0..disk::outcome_count(state.pages(), crash) {
                actions.extend(rots.iter().map(|rot| NamingAction::Crash(crash, way, *rot)));
            }
        }
        if state.segments.len() < self.segments && state.in_service == state.segments.len() {
            actions.push(NamingAction::Create);
        }
        if state.in_service > state.commits && !state.has_released {
            actions.push(NamingAction::Release);
        }
        if state.in_service < state.segments.len() && state.is_root_synced() && self.may_delete(state) {
            actions.push(NamingAction::Delete);
        }
        if state.segments.iter().any(|segment| !segment.is_durable()) {
            actions.push(NamingAction::SyncNames);
        }
        let is_new = (0..2).any(|slot| state.listed_by(slot) != state.in_service);
        if is_new && state.is_root_synced() && self.may_name(&state.segments[..state.in_service]) {
            actions.push(NamingAction::WriteRoot);
        }
        if !state.is_root_synced() {
            actions.push(NamingAction::SyncRoot);
        }
        if self.may_commit(state) {
            actions.push(NamingAction::Commit);
        }
        if state.durable < state.commits {
            actions.push(NamingAction::Sync);
        }
    }

    fn next_state(&self, state: &NamingState, action: NamingAction) -> Option<NamingState> {
        let mut next = state.clone();
        self.step(&mut next, action);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        no_broken_invariant()
    }
}

impl SegmentNamingModel {
    /// Whether what is named now is there after a power cut.
    fn may_name(&self, segments: &[NamedSegment]) -> bool {
        !self.rules.named_segments_are_durable || segments.iter().all(NamedSegment::is_durable)
    }

    /// Whether no slot of ROOT lists the last segment.
    fn may_delete(&self, state: &NamingState) -> bool {
        let last = state.segments.len() - 1;
        match self.rules.released_segments_are_in_no_slot {
            true => (0..2).all(|slot| state.listed_by(slot) <= last),
            false => state.listed() <= last,
        }
    }

    fn may_commit(&self, state: &NamingState) -> bool {
        let at = state.commits;
        let Some(next) = state.segments.get(at).filter(|_| at < state.in_service) else { return false };
        let is_durably_listed = state.listed() > at && state.is_root_synced();
        let is_listed = is_durably_listed || !self.rules.first_segment_is_listed;
        (at > 0 || is_listed) && self.may_name(std::slice::from_ref(next))
    }

    fn step(&self, state: &mut NamingState, action: NamingAction) {
        match action {
            NamingAction::Create => {
                let (mut name, mut header) = (ModelPage::empty(), ModelPage::empty());
                name.write((), false);
                header.write((), true);
                state.segments.push(NamedSegment {
                    name,
                    header,
                    frame: ModelPage::empty(),
                    seal: ModelPage::empty(),
                });
                state.in_service += 1;
            }
            NamingAction::Release => {
                state.in_service -= 1;
                state.has_released = true;
            }
            NamingAction::Delete => drop(state.segments.pop()),
            NamingAction::SyncNames => state.segments.iter_mut().for_each(sync_segment),
            NamingAction::WriteRoot => {
                let newest = state.newest();
                let generation = state.roots[newest].read().map_or(0, |(generation, _)| *generation);
                state.roots[1 - newest].write((generation + 1, state.in_service), true);
            }
            NamingAction::SyncRoot => state.roots.iter_mut().for_each(ModelPage::sync),
            NamingAction::Commit => {
                let at = state.commits;
                if at > 0 && self.rules.every_segment_ends_with_a_seal {
                    state.segments[at - 1].seal.write((), true);
                }
                state.segments[at].frame.write((), true);
                state.commits += 1;
            }
            NamingAction::Sync => {
                for segment in &mut state.segments[..state.commits] {
                    sync_segment(segment);
                    segment.frame.sync();
                    segment.seal.sync();
                }
                state.durable = state.commits;
            }
            NamingAction::Crash(crash, way, rot) => {
                disk::apply_crash(state.pages_mut(), crash, way);
                match rot {
                    Some(NamingRot::File(at)) => {
                        let segment = &mut state.segments[at];
                        [&mut segment.name, &mut segment.header].into_iter().for_each(ModelPage::rot);
                        [&mut segment.frame, &mut segment.seal].into_iter().for_each(ModelPage::rot);
                    }
                    Some(NamingRot::Header(at)) => state.segments[at].header.rot(),
                    Some(NamingRot::Slot(slot)) => state.roots[slot].rot(),
                    None => {}
                }
                state.is_down = true;
                state.broken_invariant = check_recovery(state, rot);
            }
        }
    }
}

fn sync_segment(segment: &mut NamedSegment) {
    segment.name.sync();
    segment.header.sync();
}

/// Recovers, and compares with what the world is owed.
fn check_recovery(state: &NamingState, rot: Option<NamingRot>) -> Option<BrokenInvariant> {
    let segments = &state.segments;
    let is_sealed = |at: usize| segments[at].exists() && segments[at].seal.read().is_some();
    let is_named = |at: usize| at < state.listed() || at > 0 && is_sealed(at - 1);
    if (0..segments.len()).any(|at| is_named(at) && !segments[at].exists()) {
        let is_false = matches!(rot, None | Some(NamingRot::Slot(_))); // the other slot is whole
        return is_false.then_some(BrokenInvariant::FalseDamage);
    }
    // Segments that are newer than ROOT are read as well.
    let counts = |at: &usize| segments[*at].exists() && segments[*at].frame.read().is_some();
    let found = (0..segments.len()).take_while(counts).count();
    match rot {
        None if found < state.durable => Some(BrokenInvariant::Durable),
        Some(_) if found < state.durable => Some(BrokenInvariant::SilentRot),
        _ => None,
    }
}
