//! # Model: random sequences of everything, against a sorted map
//!
//! A seed makes a sequence of steps over three keyspaces of two engines: writes of every kind,
//! snapshots and iterators that stay open meanwhile, background work, reopening in order and after
//! a kill. Each answer is compared with that of a `BTreeMap`, and everything with everything at
//! times. In inline mode the seed decides all that happens, so one line replays a failure; the
//! shrinker then drops steps for as long as it still fails.
//!
//! ## Picture
//!
//! ```text
//!  seed --generate--> [Step; n] --play--> Failure at step i --shrink--> a dozen steps, printed
//!                                   |
//!                 database on a stage  <=compare=>  map, copies of it for snapshots and iterators
//! ```
//!
//! ## What it cannot see
//!
//! Two threads at once; power cuts and faults (the crash explorer); keys and values near the limits
//! of the format (the conformance suite). It knows that a kill loses nothing acknowledged, so it
//! would not see a `Buffer` write that only a power cut loses.

mod execute;
mod run;
mod shrink;
mod steps;

pub use execute::ModelFailure;
pub use run::run;
pub use steps::{ModelStep, generate};

use std::fmt;
use std::str::FromStr;

use crate::fixture::{TestSetting, TestSubject};
use crate::reference_engine::EngineFlaw;

/// One run, by what determines it.
#[derive(Clone, Copy, Debug)]
pub struct ModelCase {
    /// The engine of the first and third keyspace.
    pub engine: &'static str,
    /// What is wrong with the ledger.
    pub flaw: Option<EngineFlaw>,
    /// Where and how.
    pub setting: TestSetting,
    /// What is drawn.
    pub seed: u64,
    /// How many steps.
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

    /// Plays it. A digest of what was observed.
    pub fn check(&self) -> Result<u32, ModelFailure> {
        execute::execute(&self.subject(), self.setting, &generate(self.seed, self.steps, self.setting))
    }

    /// Plays it on all engines in two geometries, which must agree.
    ///
    /// # Errors
    ///
    /// Where they part.
    pub fn check_all_engines(&self) -> Result<(), String> {
        run::check_all_engines(self)
    }

    /// The line that plays it again.
    #[must_use]
    pub fn replay(&self) -> String {
        format!(
            "SHEAF_MODEL='{self}' cargo test -p sheaf-testkit --test suites -- --ignored --nocapture model::replay"
        )
    }

    /// Plays it, and reports a failure: the line that replays it, and as few steps as still fail.
    ///
    /// # Panics
    ///
    /// If it fails.
    pub fn must_hold(&self) -> u32 {
        match self.check() {
            Ok(digest) => digest,
            Err(failure) => panic!("{}", self.report(&failure)),
        }
    }

    /// What to say of a failure.
    #[must_use]
    pub fn report(&self, failure: &ModelFailure) -> String {
        let (steps, why) = self.shrink(failure);
        let mut text = format!("{failure}\n{}\nin {} steps: {why}", self.replay(), steps.len());
        for step in &steps {
            text.push_str(&format!("\n    {step:?}"));
        }
        text
    }

    /// As few steps as the shrinker finds that still fail, and how.
    #[must_use]
    pub fn shrink(&self, failure: &ModelFailure) -> (Vec<ModelStep>, ModelFailure) {
        let steps = generate(self.seed, self.steps, self.setting);
        shrink::shrink(steps, failure.clone(), |steps| {
            execute::execute(&self.subject(), self.setting, steps).err()
        })
    }
}
