//! # Model checker: random operations compared with a sorted map
//!
//! A seed generates a sequence of steps over three keyspaces of two engines with merge operators,
//! one of them with expiry and an injected clock: writes of every kind, snapshots and iterators
//! that stay open, a replica that follows the change feed, background work, clean reopenings and
//! kills. Each result is compared with that of a `BTreeMap`, and at intervals the whole content is
//! compared. In inline mode the seed determines the whole run, so one line replays a failure. The
//! shrinker then removes steps as long as the rest still fails.
//!
//! ## Picture
//!
//! ```text
//!  seed --generate--> [ModelStep; n] --execute--> ModelFailure at step i --shrink--> a few steps
//!                                       |
//!               database of a Fixture  <=compare=>  map, with copies for snapshots and iterators
//! ```
//!
//! ## Blind spots
//!
//! Two threads at once; power cuts and faults (the crash explorer has them); keys and values near
//! the limits of the format (the conformance suite has them). A kill loses no acknowledged write,
//! so the model cannot see a `Buffer` write that only a power cut loses.

mod execute;
mod expiry;
mod feed;
mod merge;
mod range_removal;
mod run;
mod shrink;
mod steps;
mod transact;

pub use execute::ModelFailure;
pub use run::run;
pub use steps::{ModelStep, generate};

use std::fmt;
use std::str::FromStr;

use crate::fixture::{TestSetting, TestSubject};
use crate::reference_engine::EngineFlaw;

/// A run, identified by its parameters.
#[derive(Clone, Copy, Debug)]
pub struct ModelCase {
    /// Engine of the first and third keyspace.
    pub engine: &'static str,
    /// Bug switched on in the reference engine.
    pub flaw: Option<EngineFlaw>,
    /// Disk, geometry and threading.
    pub setting: TestSetting,
    /// Seed of the steps.
    pub seed: u64,
    /// Number of steps.
    pub steps: usize,
}

impl fmt::Display for ModelCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ModelCase { engine, setting, seed, steps, flaw } = self;
        write!(f, "{engine} {setting:?} {seed} {steps}")?;
        flaw.map_or(Ok(()), |flaw| write!(f, " {flaw:?}"))
    }
}

impl FromStr for ModelCase {
    type Err = String;

    fn from_str(text: &str) -> Result<ModelCase, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [engine, setting, seed, steps, flaw @ ..] = words.as_slice() else {
            return Err(format!("{text:?} is not ENGINE SETTING SEED STEPS [FLAW]"));
        };
        let number = |word: &str| word.parse::<u64>().map_err(|e| format!("{word}: {e}"));
        Ok(ModelCase {
            engine: TestSubject::by_name(engine).ok_or_else(|| format!("no engine {engine}"))?.name,
            flaw: flaw
                .first()
                .and_then(|name| EngineFlaw::ALL.into_iter().find(|f| format!("{f:?}") == **name)),
            setting: TestSetting::by_name(setting).ok_or_else(|| format!("no setting {setting}"))?,
            seed: number(seed)?,
            steps: usize::try_from(number(steps)?).map_err(|e| e.to_string())?,
        })
    }
}

impl ModelCase {
    fn subject(&self) -> TestSubject {
        match self.flaw {
            Some(flaw) => TestSubject::with_flaw(flaw),
            None => TestSubject::by_name(self.engine).unwrap_or_else(TestSubject::reference),
        }
    }

    /// Executes the sequence. Returns a digest of the observed values.
    ///
    /// # Errors
    ///
    /// Returns the first step at which the database differs from the map, returns an error, or
    /// panics.
    pub fn check(&self) -> Result<u32, ModelFailure> {
        execute::execute(&self.subject(), self.setting, &generate(self.seed, self.steps, self.setting))
    }

    /// Executes the sequence on all engines in two geometries, which must agree.
    ///
    /// # Errors
    ///
    /// Returns the first engine and geometry that fails or differs.
    pub fn check_all_engines(&self) -> Result<(), String> {
        run::check_all_engines(self)
    }

    /// Returns the shell command that executes the sequence again.
    #[must_use]
    pub fn replay(&self) -> String {
        format!(
            "SHEAF_MODEL='{self}' cargo test -p sheaf-testkit --test suites -- --ignored --nocapture model::replay"
        )
    }

    /// Executes the sequence. On a failure, reports the replay command and a shrunk sequence.
    ///
    /// # Panics
    ///
    /// Panics if the sequence fails.
    pub fn must_hold(&self) -> u32 {
        match self.check() {
            Ok(digest) => digest,
            Err(failure) => panic!("{}", self.report(&failure)),
        }
    }

    /// Returns the report of a failure.
    #[must_use]
    pub fn report(&self, failure: &ModelFailure) -> String {
        let (steps, why) = self.shrink(failure);
        let mut text = format!("{failure}\n{}\nin {} steps: {why}", self.replay(), steps.len());
        for step in &steps {
            text.push_str(&format!("\n    {step:?}"));
        }
        text
    }

    /// Returns the shortest sequence found that still fails, and its failure.
    #[must_use]
    pub fn shrink(&self, failure: &ModelFailure) -> (Vec<ModelStep>, ModelFailure) {
        let steps = generate(self.seed, self.steps, self.setting);
        shrink::shrink(steps, failure.clone(), |steps| {
            execute::execute(&self.subject(), self.setting, steps).err()
        })
    }
}
