//! # Workloads: typical writes, reads and removals of real programs

mod expiry;
mod keyspaces;
mod overwrite;
mod queue;
mod reads;
mod removal;
mod snapshot;
mod values;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use sheaf::{Database, Keyspace};

use crate::case::{CaseContext, FieldCase, RunSize, builder};
use crate::figure::FieldFigure;
use crate::machine::Periods;

/// Minimum rate of an old database as a fraction of that of a new one, and of the last period as a
/// fraction of that of the first.
const MIN_STEADY_RATE: f64 = 0.9;
/// Relaxation of wall times in the short form: CI shares its machine with other work.
const SHORT_RUN_SLACK: f64 = 5.0;

pub(crate) fn cases() -> Vec<FieldCase> {
    let mut cases = removal::cases();
    cases.extend(queue::cases());
    cases.extend(overwrite::cases());
    cases.extend(expiry::cases());
    cases.extend(keyspaces::cases());
    cases.extend(snapshot::cases());
    cases.extend(values::cases());
    cases.extend(reads::cases());
    cases
}

/// Returns the key of `number`: 8 bytes in the order of the numbers.
fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// Inserts the pairs of `numbers` with values of `len` bytes.
fn fill(data: &Keyspace, numbers: impl Iterator<Item = u64>, len: usize) -> sheaf::Result<()> {
    let mut value = vec![0x5a; len];
    for number in numbers {
        let stamp = number.to_le_bytes();
        let count = stamp.len().min(len);
        value[..count].copy_from_slice(&stamp[..count]);
        data.insert(key(number), &value)?;
    }
    Ok(())
}

/// Number of parts of a run with compared rates.
const TENTHS: usize = 10;
/// Number of parts of a run with counted operations: a part is one second in the full form.
const PERIODS: u32 = 60;
/// Number of turns of the old and of the new database.
const TURNS: u32 = 60;
/// A turn takes the length of the run divided by this.
const TURN_DIVISOR: u32 = 1_200;

/// A load with live data of constant size.
struct SteadyLoad<'l> {
    name: &'l str,
    seconds: u64,
    /// Writes the live data.
    fill: &'l dyn Fn(&Keyspace) -> sheaf::Result<()>,
    /// Performs the step with this number: one operation, or one pair of operations.
    step: &'l dyn Fn(&Keyspace, u64) -> sheaf::Result<()>,
}

/// Database with a steady load.
struct SteadyDatabase {
    db: Database,
    data: Keyspace,
    /// Number of steps.
    steps: u64,
}

impl SteadyLoad<'_> {
    fn start(&self, dir: PathBuf, context: &CaseContext) -> sheaf::Result<SteadyDatabase> {
        let db = builder(64).open(dir)?;
        let data = db.keyspace("data", context.options())?;
        (self.fill)(&data)?;
        Ok(SteadyDatabase { db, data, steps: 0 })
    }

    /// Performs the next step of `on`.
    fn step(&self, on: &mut SteadyDatabase) -> sheaf::Result<()> {
        (self.step)(&on.data, on.steps)?;
        on.steps += 1;
        Ok(())
    }

    /// Runs the load and reports its rate. Then compares the database with a new one in turns: both
    /// have the same load on the same machine at the same time, so that other work on the machine
    /// changes the rates but not their ratio. The old database must reach [`MIN_STEADY_RATE`] of
    /// the rate of the new one. Returns the old database and the counts of the run.
    ///
    /// # Errors
    ///
    /// Returns the error of the first step that fails.
    fn run(&self, context: &CaseContext) -> sheaf::Result<(SteadyDatabase, Periods)> {
        let mut old = self.start(context.db(), context)?;
        let mut counted = Periods::new(Duration::from_secs(self.seconds), PERIODS);
        while counted.count() {
            self.step(&mut old)?;
        }
        let rates = counted.rates(TENTHS);
        let thousands: Vec<String> = rates.iter().map(|rate| format!("{:.0}", rate / 1000.0)).collect();
        let name = self.name;
        println!("{name}: thousands a second in each tenth of the time: {}", thousands.join(" "));
        FieldFigure::new(format!("{name}: rate in the last tenth"), rates[TENTHS - 1], "/s").report();
        let mut new = self.start(context.dir.join("new"), context)?;
        let turn = Duration::from_secs(self.seconds) / TURN_DIVISOR;
        let (mut old_steps, mut new_steps) = (Vec::new(), Vec::new());
        for turns in 0..TURNS {
            let (first, second) = if turns % 2 == 0 { (&mut old, &mut new) } else { (&mut new, &mut old) };
            let (one, two) = (self.take_turn(first, turn)?, self.take_turn(second, turn)?);
            let (of_old, of_new) = if turns % 2 == 0 { (one, two) } else { (two, one) };
            old_steps.push(of_old);
            new_steps.push(of_new);
        }
        new.close()?;
        let ratio = median(&old_steps) / median(&new_steps).max(1.0);
        let steadiness = FieldFigure::new(format!("{name}: rate, old / new database"), ratio, "x");
        steadiness.at_least(MIN_STEADY_RATE).slack(2.0).report();
        Ok((old, counted))
    }

    /// Returns the number of steps that fit into `length`.
    fn take_turn(&self, on: &mut SteadyDatabase, length: Duration) -> sheaf::Result<f64> {
        let (began, before) = (Instant::now(), on.steps);
        while began.elapsed() < length {
            self.step(on)?;
        }
        Ok((on.steps - before) as f64)
    }
}

impl SteadyDatabase {
    fn close(self) -> sheaf::Result<()> {
        drop(self.data);
        self.db.close()
    }
}

/// Returns the median; 0 without numbers.
fn median(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

/// Reports the rate of the last period of a run. In the short and the full form it must be at least
/// `least`; the long form takes hours, compares databases in turns, and may share the machine.
fn report_last_period(context: &CaseContext, name: &str, counted: &Periods, least: f64) {
    let last = counted.rates(PERIODS as usize).pop().unwrap_or(0.0);
    let rate = FieldFigure::new(format!("{name}: rate in the last period"), last, "/s");
    let rate = if context.form == RunSize::Long { rate } else { rate.at_least(least) };
    rate.slack(SHORT_RUN_SLACK).report();
}
