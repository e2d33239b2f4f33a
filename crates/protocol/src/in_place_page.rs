//! # In-place pages: no state above W is handed to the kernel
//!
//! An engine keeps one page in place. Commits go to a journal; now and then the engine writes the
//! page, which then holds everything up to some commit. The kernel writes page and frames back in
//! any order. After a power cut the page must not know a commit that the journal lost.
//!
//! ## Checked
//! I2: the page is at or below the cut (replay does the rest).

use crate::ProtocolRules;
use crate::disk::{self, CrashKind, CrashOutcomes, ModelPage};
use crate::explore::{BrokenInvariant, CheckedState, no_broken_invariant};
use stateright::{Model, Property};

/// The model.
#[derive(Clone, Debug)]
pub struct InPlacePageModel {
    /// Which rules hold.
    pub rules: ProtocolRules,
    /// Commits.
    pub commits: usize,
}

/// Journal, page, process.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct InPlaceState {
    journal: Vec<ModelPage<()>>,
    page: ModelPage<usize>,
    durable: usize,
    is_down: bool,
    broken_invariant: Option<BrokenInvariant>,
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InPlaceAction {
    /// The next commit is logged and applied.
    Commit,
    /// A sync round of the journal.
    Sync,
    /// The engine hands its page, with this commit as its last, to the kernel.
    WritePage(usize),
    /// The power goes, and recovery looks.
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
            // Torn pages are another matter (checksums, full page images): here it is whole.
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
