//! # The exploration: run a model to its end and say what it found
//!
//! A thin layer over stateright's breadth-first checker. Every model keeps the verdict in its state
//! (`broken`), set by the transition that saw an invariant fail; the one property of every model is
//! that no reachable state is broken. Breadth first, so a counterexample is a shortest one; on
//! one thread, so it is the same one every time (tests run side by side anyway).

use stateright::{Checker, HasDiscoveries, Model, Property};
use std::fmt;

/// The invariant that a counterexample breaks.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum BrokenInvariant {
    /// I1: a commit over several logs came back in part, or mixed with another.
    Atomic,
    /// I2: what came back is not a prefix of the commit order.
    Prefix,
    /// I3: a power cut took a Sync-acknowledged commit (or one before it), or a kill took an
    /// acknowledged one.
    Durable,
    /// I4: a value was read that a later kill took back, or that no order of commits explains.
    UnexplainedRead,
    /// I5: one number, two contents, both valid.
    DuplicateSeq,
    /// I6: the index after recovery is not the map at the recovered prefix: a key came back, went
    /// away or points at bytes that are not its own.
    Index,
    /// I8: damage is reported and nothing rotted.
    FalseDamage,
    /// I9: something rotted that was known durable, and nothing is reported.
    SilentRot,
    /// I10: no thread can go on, and one of them has not finished.
    Deadlock,
}

/// A state that carries its own verdict.
pub trait CheckedState {
    /// The invariant this state breaks, if any.
    fn broken_invariant(&self) -> Option<BrokenInvariant>;
}

/// The single property of every model.
#[must_use]
pub fn no_broken_invariant<M: Model>() -> Vec<Property<M>>
where
    M::State: CheckedState,
{
    vec![Property::always("nothing is broken", |_, state: &M::State| state.broken_invariant().is_none())]
}

/// What an exploration found.
#[derive(Clone, Debug)]
pub struct Exploration {
    /// Distinct states reached.
    pub states: usize,
    /// The longest of the shortest paths to a state.
    pub depth: usize,
    /// The invariant that fails, if one does.
    pub broken_invariant: Option<BrokenInvariant>,
    /// The shortest way there: one action a line.
    pub path: Vec<String>,
}

impl Exploration {
    /// Panics unless the model was explored to its end, nothing broke, and there was something to
    /// explore.
    pub fn must_hold(&self, what: &str, at_least: usize) {
        println!("{what}: {} states, depth {}", self.states, self.depth);
        assert!(self.broken_invariant.is_none(), "{what}: {self}");
        assert!(self.states >= at_least, "{what}: only {} states: vacuous", self.states);
    }

    /// Panics unless a counterexample was found and it breaks this invariant.
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

/// Explores a model until nothing is left or the first broken state is found.
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
