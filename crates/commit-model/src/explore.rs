//! # Exploration of a model
//!
//! Runs stateright's breadth-first checker on a model until no state is left or one is broken.
//! Every model has the same single property: no reachable state is broken. The transition that sees
//! an invariant fail records it in the state.
//!
//! Breadth-first search yields a shortest counterexample. One thread makes it the same in every
//! run; tests run in parallel with each other instead.

use stateright::{Checker, HasDiscoveries, Model, Property};
use std::fmt;

/// Invariant that a counterexample breaks. The crate documentation lists I1 to I10.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum BrokenInvariant {
    /// I1: recovery found part of a commit over several logs, or mixed it with another commit.
    Atomic,
    /// I2: the recovered commits are not a prefix of the commit order.
    Prefix,
    /// I3: a power cut lost a commit at or below W, or a kill lost an acknowledged one.
    Durable,
    /// I4: a kill took back a value that was read, or no commit order explains the read.
    UnexplainedRead,
    /// I5: one seq has two valid contents.
    DuplicateSeq,
    /// I6: after recovery the index differs from the map at the recovered prefix. A key reappeared,
    /// was lost, or points to bytes of another version.
    Index,
    /// I8: recovery reports damage although nothing rotted.
    FalseDamage,
    /// I9: data that was known to be durable rotted, and recovery does not report it.
    SilentRot,
    /// I10: no thread can continue, and at least one has not finished.
    Deadlock,
}

/// State that records a broken invariant.
pub trait CheckedState {
    /// Returns the invariant that this state breaks.
    fn broken_invariant(&self) -> Option<BrokenInvariant>;
}

/// Returns the single property of every model.
#[must_use]
pub fn no_broken_invariant<M: Model>() -> Vec<Property<M>>
where
    M::State: CheckedState,
{
    vec![Property::always("nothing is broken", |_, state: &M::State| state.broken_invariant().is_none())]
}

/// Result of an exploration.
#[derive(Clone, Debug)]
pub struct Exploration {
    /// Number of distinct states reached.
    pub states: usize,
    /// Length of the longest shortest path to a state.
    pub depth: usize,
    /// Broken invariant, if one was found.
    pub broken_invariant: Option<BrokenInvariant>,
    /// Shortest path to the broken state, one action per line.
    pub path: Vec<String>,
}

impl Exploration {
    /// Asserts that the exploration found no broken state. At least `at_least` states must exist,
    /// so that the check is not vacuous.
    pub fn must_hold(&self, name: &str, at_least: usize) {
        println!("{name}: {} states, depth {}", self.states, self.depth);
        assert!(self.broken_invariant.is_none(), "{name}: {self}");
        assert!(self.states >= at_least, "{name}: only {} states: vacuous", self.states);
    }

    /// Asserts that the exploration found a counterexample that breaks this invariant.
    pub fn must_break(&self, what: BrokenInvariant) {
        println!("{self}");
        assert_eq!(self.broken_invariant, Some(what), "{self}");
    }
}

impl fmt::Display for Exploration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} states, depth {}, broken: {:?}", self.states, self.depth, self.broken_invariant)?;
        self.path.iter().try_for_each(|step| writeln!(f, "    {step}"))
    }
}

/// Explores a model until no state is left or the first broken state is found.
#[must_use]
pub fn explore<M>(model: M) -> Exploration
where
    M: Model + Send + Sync + 'static,
    M::State: CheckedState + Clone + fmt::Debug + PartialEq + std::hash::Hash + Send + Sync + 'static,
    M::Action: fmt::Debug + Clone + PartialEq + Send + Sync + 'static,
{
    let checker = model.checker().threads(1).finish_when(HasDiscoveries::Any).spawn_bfs().join();
    let found = checker.discovery("nothing is broken");
    Exploration {
        states: checker.unique_state_count(),
        depth: checker.max_depth(),
        broken_invariant: found.as_ref().and_then(|path| path.last_state().broken_invariant()),
        path: found
            .map(|path| path.into_actions().iter().map(|step| format!("{step:?}")).collect())
            .unwrap_or_default(),
    }
}
