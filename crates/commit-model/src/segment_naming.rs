//! # Names of segments: files that must exist
//!
//! ROOT lists some segments of a log. A full segment ends with a seal that names its successor. A
//! named segment must exist. A segment that exists without being named was never used. Recovery
//! therefore reports a deleted segment or a damaged header, and accepts a file that a power cut
//! left incomplete.
//!
//! A log may release a ready segment. Its file is deleted when neither slot of ROOT lists it, since
//! either slot may rot.
//!
//! ## Picture
//! ```text
//!   ROOT ──lists──> segment 0 | commit | seal ──names──> segment 1 | commit | seal ──names──> ...
//! ```
//!
//! ## Invariants
//! Checks I3, I8 and I9, for one log with one commit per segment.
//!
//! ## Simplifications
//! The model has one log and one incarnation.

use crate::ProtocolRules;
use crate::disk::{self, CrashKind, CrashOutcomes, ModelPage};
use crate::explore::{BrokenInvariant, CheckedState, no_broken_invariant};
use stateright::{Model, Property};

/// Model of named segments.
#[derive(Clone, Debug)]
pub struct SegmentNamingModel {
    /// Active rules.
    pub rules: ProtocolRules,
    /// Maximum number of segments, and of commits.
    pub segments: usize,
}

/// File of the log: its name in the directory, its header and its content.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct NamedSegment {
    name: ModelPage<()>,
    header: ModelPage<()>,
    frame: ModelPage<()>,
    /// Seal, which names the next segment.
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
    /// Slots of ROOT: a generation, and the number of listed segments.
    roots: [ModelPage<(u64, usize)>; 2],
    segments: Vec<NamedSegment>,
    /// Segments in use or ready. The log has released the segments after them.
    in_service: usize,
    /// True after the log has released a segment. It releases at most one.
    has_released: bool,
    commits: usize,
    durable: usize,
    is_down: bool,
    broken_invariant: Option<BrokenInvariant>,
}

/// Steps of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamingAction {
    /// Creates a file with its header.
    Create,
    /// Syncs the name and the header of every file.
    SyncNames,
    /// Writes the segments in service to the older slot of ROOT.
    WriteRoot,
    /// Syncs ROOT.
    SyncRoot,
    /// Releases the last ready segment.
    Release,
    /// Deletes the file of a released segment.
    Delete,
    /// Writes a commit to the next segment, after a seal in the segment before.
    Commit,
    /// Runs a sync round.
    Sync,
    /// Crashes, then applies the damage if there is one. The number selects the outcome of the
    /// crash.
    Crash(CrashKind, usize, Option<NamingRot>),
}

/// Damage of stored data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamingRot {
    /// Deletes a file.
    File(usize),
    /// Damages the header of a file.
    Header(usize),
    /// Damages a slot of ROOT.
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

    /// Returns the slot with the newest readable generation.
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
    /// Returns whether these segments exist after a power cut, so that they may be named.
    fn may_name(&self, segments: &[NamedSegment]) -> bool {
        !self.rules.named_segments_are_durable || segments.iter().all(NamedSegment::is_durable)
    }

    /// Returns whether no slot of ROOT lists the last segment.
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

/// Recovers and compares the result with the commits that must survive.
fn check_recovery(state: &NamingState, rot: Option<NamingRot>) -> Option<BrokenInvariant> {
    let segments = &state.segments;
    let is_sealed = |at: usize| segments[at].exists() && segments[at].seal.read().is_some();
    let is_named = |at: usize| at < state.listed() || at > 0 && is_sealed(at - 1);
    if (0..segments.len()).any(|at| is_named(at) && !segments[at].exists()) {
        let is_false = matches!(rot, None | Some(NamingRot::Slot(_))); // the other slot is valid
        return is_false.then_some(BrokenInvariant::FalseDamage);
    }
    // Recovery also reads segments that are newer than ROOT.
    let counts = |at: &usize| segments[*at].exists() && segments[*at].frame.read().is_some();
    let found = (0..segments.len()).take_while(counts).count();
    match rot {
        None if found < state.durable => Some(BrokenInvariant::Durable),
        Some(_) if found < state.durable => Some(BrokenInvariant::SilentRot),
        _ => None,
    }
}
