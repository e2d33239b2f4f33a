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
use crate::machine::{Periods, queued_time};

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
/// Number of rounds that compare the old and the new database.
const ROUNDS: usize = 30;
/// Number of rounds before these.
const UNCOUNTED_ROUNDS: usize = 60;
/// A turn takes the length of the run divided by this: a new database that took its turns in the
/// uncounted rounds has run for a tenth of that length.
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
    /// changes the rates but not their ratio. A turn just after a turn of the other database is
    /// slower than the next one, so a round has two turns of each. After [`UNCOUNTED_ROUNDS`] the
    /// new database has had the load for a tenth of the time, and has flushed data too. In the
    /// median of the other rounds, the old database must reach [`MIN_STEADY_RATE`] of the rate of
    /// the new one. Returns the old database and the counts of the run.
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
        let mut ratios = Vec::new();
        for _ in 0..UNCOUNTED_ROUNDS + ROUNDS {
            let mut of_old = self.take_turn(&mut old, turn)?;
            let of_new = self.take_turn(&mut new, turn)? + self.take_turn(&mut new, turn)?;
            of_old += self.take_turn(&mut old, turn)?;
            ratios.push(of_old / of_new);
        }
        new.close()?;
        let ratio = median(&ratios[UNCOUNTED_ROUNDS..]);
        let steadiness = FieldFigure::new(format!("{name}: rate, old / new database"), ratio, "x");
        steadiness.at_least(MIN_STEADY_RATE).slack(2.0).report();
        Ok((old, counted))
    }

    /// Performs steps for `length`. Returns the number of steps for each second in which this
    /// thread did not wait for a processor: in one turn other programs may take the processor more
    /// often than in the next one.
    fn take_turn(&self, on: &mut SteadyDatabase, length: Duration) -> sheaf::Result<f64> {
        let (began, queued_before, before) = (Instant::now(), queued_time(), on.steps);
        while began.elapsed() < length || on.steps == before {
            self.step(on)?;
        }
        let queued = queued_time().saturating_sub(queued_before);
        let unqueued = began.elapsed().saturating_sub(queued).as_secs_f64();
        Ok((on.steps - before) as f64 / unqueued.max(f64::MIN_POSITIVE))
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
