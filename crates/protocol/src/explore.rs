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
pub enum Broken {
    /// I1: a commit over several logs came back in part, or mixed with another.
    Atomic,
    /// I2: what came back is not a prefix of the commit order.
    Prefix,
    /// I3: a power cut took a Sync-acknowledged commit (or one before it), or a kill took an
    /// acknowledged one.
    Durable,
    /// I4: a value was read that a later kill took back, or that no order of commits explains.
    Read,
    /// I5: one number, two contents, both valid.
    Repeated,
    /// I6: the index after recovery is not the map at the recovered prefix: a key came back, went
    /// away or points at bytes that are not its own.
    Index,
    /// I8: damage is reported and nothing rotted.
    FalseDamage,
    /// I9: something rotted that was known durable, and nothing is reported.
    SilentRot,
    /// I10: no thread can go on, and one of them has not finished.
    Stuck,
}

/// A state that carries its own verdict.
pub trait Verdict {
    /// The invariant this state breaks, if any.
    fn broken(&self) -> Option<Broken>;
}

/// The single property of every model.
#[must_use]
pub fn nothing_is_broken<M: Model>() -> Vec<Property<M>>
where
    M::State: Verdict,
{
    vec![Property::always("nothing is broken", |_, state: &M::State| state.broken().is_none())]
}

/// What an exploration found.
#[derive(Clone, Debug)]
pub struct Explored {
    /// Distinct states reached.
    pub states: usize,
    /// The longest of the shortest paths to a state.
    pub depth: usize,
    /// The invariant that fails, if one does.
    pub broken: Option<Broken>,
    /// The shortest way there: one action a line.
    pub path: Vec<String>,
}

impl Explored {
    /// Panics unless the model was explored to its end, nothing broke, and there was something to
    /// explore.
    pub fn must_hold(&self, what: &str, at_least: usize) {
        println!("{what}: {} states, depth {}", self.states, self.depth);
        assert!(self.broken.is_none(), "{what}: {self}");
        assert!(self.states >= at_least, "{what}: only {} states: vacuous", self.states);
    }

    /// Panics unless a counterexample was found and it breaks this invariant.
    pub fn must_break(&self, what: Broken) {
        println!("{self}");
        assert_eq!(self.broken, Some(what), "{self}");
    }
}

impl fmt::Display for Explored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} states, depth {}, broken: {:?}", self.states, self.depth, self.broken)?;
        self.path.iter().try_for_each(|step| writeln!(f, "    {step}"))
    }
}

/// Explores a model until nothing is left or the first broken state is found.
#[must_use]
pub fn explore<M>(model: M) -> Explored
where
    M: Model + Send + Sync + 'static,
    M::State: Verdict + Clone + fmt::Debug + PartialEq + std::hash::Hash + Send + Sync + 'static,
    M::Action: fmt::Debug + Clone + PartialEq + Send + Sync + 'static,
{
    let checker = model.checker().threads(1).finish_when(HasDiscoveries::Any).spawn_bfs().join();
    let found = checker.discovery("nothing is broken");
    Explored {
        states: checker.unique_state_count(),
        depth: checker.max_depth(),
        broken: found.as_ref().and_then(|path| path.last_state().broken()),
        path: found
            .map(|path| path.into_actions().iter().map(|step| format!("{step:?}")).collect())
            .unwrap_or_default(),
    }
}
