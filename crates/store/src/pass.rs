//! # Pass: extent and outcome of a round of background work

use sheaf_platform::error::{Error, PoisonCause, Result};

use crate::Store;

/// Extent of a maintenance pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MaintenanceMode {
    /// Commits continue: only work that is due.
    Busy,
    /// Commits have paused: also work that gains space.
    Idle,
    /// A caller waits for all work that gains space.
    Requested,
}

/// Result of a round over several logs or keyspaces. Keeps the first error, so that one failure
/// does not stop the others.
#[derive(Debug, Default)]
pub(crate) struct PassOutcome {
    pub(crate) has_progress: bool,
    pub(crate) first_error: Option<Error>,
}

impl PassOutcome {
    /// Adds the result of one step: `true` if it did something.
    pub(crate) fn add(&mut self, one: Result<bool>) {
        match one {
            Ok(did) => self.has_progress |= did,
            Err(error) => self.first_error = self.first_error.take().or(Some(error)),
        }
    }

    /// Adds the results of another round.
    pub(crate) fn merge(&mut self, others: PassOutcome) {
        self.has_progress |= others.has_progress;
        self.first_error = self.first_error.take().or(others.first_error);
    }

    /// Returns whether a step failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.first_error.is_some()
    }

    /// Returns whether a step did something. Returns the error only if no step did anything.
    pub(crate) fn progress_or_error(self) -> Result<bool> {
        if self.has_progress { Ok(true) } else { self.into_result() }
    }

    /// Returns whether a step did something, or the first error.
    pub(crate) fn into_result(self) -> Result<bool> {
        self.first_error.map_or(Ok(self.has_progress), Err)
    }
}

impl FromIterator<PassOutcome> for PassOutcome {
    fn from_iter<I: IntoIterator<Item = PassOutcome>>(rounds: I) -> PassOutcome {
        let mut outcome = PassOutcome::default();
        rounds.into_iter().for_each(|round| outcome.merge(round));
        outcome
    }
}

impl From<Result<bool>> for PassOutcome {
    fn from(one: Result<bool>) -> PassOutcome {
        let mut outcome = PassOutcome::default();
        outcome.add(one);
        outcome
    }
}

/// Guard of a step of background work. A panic in the step, in an engine or in the store, poisons
/// the store.
pub(crate) struct PoisonOnPanic<'a>(pub(crate) &'a Store);

impl Drop for PoisonOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            drop(self.0.poison(PoisonCause::BackgroundWork));
        }
    }
}
