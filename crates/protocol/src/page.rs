//! # In-place pages: no state above W is handed to the kernel
//!
//! An engine keeps one page in place. Commits go to a journal; now and then the engine writes the
//! page, which then holds everything up to some commit. The kernel writes page and frames back in
//! any order. After a power cut the page must not know a commit that the journal lost.
//!
//! ## Checked
//! I2: the page is at or below the cut (replay does the rest).

use crate::Rules;
use crate::disk::{self, Crash, Fate, Page};
use crate::explore::{Broken, Verdict, nothing_is_broken};
use stateright::{Model, Property};

/// The model.
#[derive(Clone, Debug)]
pub struct InPlace {
    /// Which rules hold.
    pub rules: Rules,
    /// Commits.
    pub commits: usize,
}

/// Journal, page, process.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct State {
    journal: Vec<Page<()>>,
    page: Page<usize>,
    durable: usize,
    is_down: bool,
    broken: Option<Broken>,
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The next commit is logged and applied.
    Commit,
    /// A sync round of the journal.
    Sync,
    /// The engine hands its page, with this commit as its last, to the kernel.
    WritePage(usize),
    /// The power goes, and recovery looks.
    PowerCut(usize),
}

impl Verdict for State {
    fn broken(&self) -> Option<Broken> {
        self.broken
    }
}

impl Model for InPlace {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut page = Page::empty();
        page.write(0, false);
        page.sync();
        vec![State { journal: Vec::new(), page, durable: 0, is_down: false, broken: None }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.is_down {
            return;
        }
        let journal = state.journal.iter().map(|page| -> &dyn Fate { page });
        let page: &dyn Fate = &state.page;
        let ways = disk::ways(journal.chain([page]), Crash::PowerCut);
        actions.extend((0..ways).map(Action::PowerCut));
        if state.journal.len() < self.commits {
            actions.push(Action::Commit);
        }
        if state.durable < state.journal.len() {
            actions.push(Action::Sync);
        }
        let visible = state.journal.len();
        let last = if self.rules.pages_stay_below_w { state.durable } else { visible };
        let held = state.page.read().copied().unwrap_or(0);
        actions.extend((held + 1..=last).map(Action::WritePage));
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Commit => {
                let mut page = Page::empty();
                page.write((), true);
                next.journal.push(page);
            }
            Action::Sync => {
                next.journal.iter_mut().for_each(Page::sync);
                next.durable = next.journal.len();
            }
            // Torn pages are another matter (checksums, full page images): here it is whole.
            Action::WritePage(last) => next.page.write(last, false),
            Action::PowerCut(way) => {
                let journal = next.journal.iter_mut().map(|page| -> &mut dyn Fate { page });
                let page: &mut dyn Fate = &mut next.page;
                disk::suffer(journal.chain([page]), Crash::PowerCut, way);
                next.is_down = true;
                let cut = next.journal.iter().take_while(|page| page.read().is_some()).count();
                if cut < next.durable {
                    next.broken = Some(Broken::Durable);
                }
                if next.page.read().is_none_or(|&last| last > cut) {
                    next.broken = Some(Broken::Prefix);
                }
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        nothing_is_broken()
    }
}
