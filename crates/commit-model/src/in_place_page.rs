//! # In-place pages: no state above W is handed to the kernel
//!
//! An engine keeps one page in place and logs commits in a journal. At times it writes the page,
//! which then contains all commits up to one. The kernel writes page and frames to the disk in any
//! order.
//!
//! ## Invariants
//! - I2: after a power cut the page has no commit that the journal lost. Replay adds later commits.
//! - I3: commits up to W survive.

use crate::ProtocolRules;
use crate::disk::{self, CrashKind, CrashOutcomes, ModelPage};
use crate::explore::{BrokenInvariant, CheckedState, no_broken_invariant};
use stateright::{Model, Property};

/// Model of an in-place page.
#[derive(Clone, Debug)]
pub struct InPlacePageModel {
    /// Active rules.
    pub rules: ProtocolRules,
    /// Commits in the whole run.
    pub commits: usize,
}

/// Journal, page and process.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct InPlaceState {
    journal: Vec<ModelPage<()>>,
    page: ModelPage<usize>,
    durable: usize,
    is_down: bool,
    broken_invariant: Option<BrokenInvariant>,
}

/// Steps of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InPlaceAction {
    /// Logs and applies the next commit.
    Commit,
    /// Syncs the journal.
    Sync,
    /// Writes the page with all commits up to this one to the kernel.
    WritePage(usize),
    /// Cuts the power, then recovers. The number selects the content of the platter.
    PowerCut(usize),
}

impl CheckedState for InPlaceState {
    fn broken_invariant(&self) -> Option<BrokenInvariant> {
        self.broken_invariant
    }
}

impl Model for InPlacePageModel {
    type State = InPlaceState;
    type Action = InPlaceAction;

    fn init_states(&self) -> Vec<InPlaceState> {
        let mut page = ModelPage::empty();
        page.write(0, false);
        page.sync();
        vec![InPlaceState { journal: Vec::new(), page, durable: 0, is_down: false, broken_invariant: None }]
    }

    fn actions(&self, state: &InPlaceState, actions: &mut Vec<InPlaceAction>) {
        if state.is_down {
            return;
        }
        let journal = state.journal.iter().map(|page| -> &dyn CrashOutcomes { page });
        let page: &dyn CrashOutcomes = &state.page;
        let ways = disk::outcome_count(journal.chain([page]), CrashKind::PowerCut);
        actions.extend((0..ways).map(InPlaceAction::PowerCut));
        if state.journal.len() < self.commits {
            actions.push(InPlaceAction::Commit);
        }
        if state.durable < state.journal.len() {
            actions.push(InPlaceAction::Sync);
        }
        let visible = state.journal.len();
        let last = if self.rules.pages_stay_below_w { state.durable } else { visible };
        let held = state.page.read().copied().unwrap_or(0);
        actions.extend((held + 1..=last).map(InPlaceAction::WritePage));
    }

    fn next_state(&self, state: &InPlaceState, action: InPlaceAction) -> Option<InPlaceState> {
        let mut next = state.clone();
        match action {
            InPlaceAction::Commit => {
                let mut page = ModelPage::empty();
                page.write((), true);
                next.journal.push(page);
            }
            InPlaceAction::Sync => {
                next.journal.iter_mut().for_each(ModelPage::sync);
                next.durable = next.journal.len();
            }
            // The write is not torn here. Checksums and full page images handle torn pages.
            InPlaceAction::WritePage(last) => next.page.write(last, false),
            InPlaceAction::PowerCut(way) => {
                let journal = next.journal.iter_mut().map(|page| -> &mut dyn CrashOutcomes { page });
                let page: &mut dyn CrashOutcomes = &mut next.page;
                disk::apply_crash(journal.chain([page]), CrashKind::PowerCut, way);
                next.is_down = true;
                let cut = next.journal.iter().take_while(|page| page.read().is_some()).count();
                if cut < next.durable {
                    next.broken_invariant = Some(BrokenInvariant::Durable);
                }
                if next.page.read().is_none_or(|&last| last > cut) {
                    next.broken_invariant = Some(BrokenInvariant::Prefix);
                }
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        no_broken_invariant()
    }
}
