//! # Figures: everything the project demands of itself, measured in one run
//!
//! ## Order
//!
//! ```text
//!   fill-random    each round: fresh databases, one store after the other; those of the last round stay open
//!   get-*          rounds; all stores open, one working at a time
//!   update-zipf    warm until the log has wrapped, then rounds
//!   cpu memory tail  ours alone
//!   open           each round: a writer is killed, the database is opened
//!   durable        fresh databases; each round: the device's syncs, then each store
//!   device-bytes   ours alone, fresh, once for each bound on the disk
//!   empty
//! ```
//!
//! That is for `flat`; what is different for `flex` and `cedrus` stands in their modules. With `--keep` databases stay, and the next run opens
//! those it finds: so a long run can be done in pieces.
//!
//! The order of the stores is reversed in every other round. Between phases the process must have come
//! to rest (compactions, cleaners), so that no store works in another's time.

mod alone;
mod cedrus;
mod flex;
mod loads;
mod promises;
mod results;
mod side_by_side;

pub(crate) use side_by_side::percentiles;

use std::time::Duration;

use serde_json::json;

use crate::args::Figures;
use crate::keys::PAIR;
use crate::machine::Machine;
use crate::place::Place;
use crate::progress::say;
use crate::subjects::Subject;
use crate::table::{self, Row, number};
use crate::{Result, measure};

use results::Results;

/// Threads of everything that the issue states for 2.
const THREADS: u64 = 2;
/// How long background work may go on after a phase before the next one starts regardless.
const SETTLE: Duration = Duration::from_secs(60);

/// Figures that are measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    FillRandom,
    GetUniform,
    GetMiss,
    GetZipf,
    Scan,
    ScanDown,
    UpdateZipf,
    Ycsb,
    Mixes,
    Cpu,
    Memory,
    ReadTail,
    Tail,
    Open,
    Durable,
    DeviceBytes,
    Churn,
    Empty,
}

impl Group {
    pub(crate) const ALL: [Group; 18] = [
        Group::FillRandom,
        Group::GetUniform,
        Group::GetMiss,
        Group::GetZipf,
        Group::Scan,
        Group::ScanDown,
        Group::UpdateZipf,
        Group::Ycsb,
        Group::Mixes,
        Group::Cpu,
        Group::Memory,
        Group::ReadTail,
        Group::Tail,
        Group::Open,
        Group::Durable,
        Group::DeviceBytes,
        Group::Churn,
        Group::Empty,
    ];

    fn name(self) -> &'static str {
        match self {
            Group::FillRandom => "fill-random",
            Group::GetUniform => "get-uniform",
            Group::GetMiss => "get-miss",
            Group::GetZipf => "get-zipf",
            Group::Scan => "scan",
            Group::ScanDown => "scan-down",
            Group::UpdateZipf => "update-zipf",
            Group::Ycsb => "ycsb",
            Group::Mixes => "mixes",
            Group::Cpu => "cpu",
            Group::Memory => "memory",
            Group::ReadTail => "read-tail",
            Group::Tail => "tail",
            Group::Open => "open",
            Group::Durable => "durable",
            Group::DeviceBytes => "device-bytes",
            Group::Churn => "churn",
            Group::Empty => "empty",
        }
    }

    pub(crate) fn parse(name: &str) -> Result<Group> {
        Group::ALL.into_iter().find(|group| group.name() == name).ok_or_else(|| {
            format!("unknown group {name:?}; there are: {}", Group::ALL.map(Group::name).join(", ")).into()
        })
    }
}

/// A run in progress.
struct Bench<'a> {
    options: &'a Figures,
    place: Place,
    results: Results,
    rows: Vec<Row>,
}

impl Bench<'_> {
    fn wants(&self, group: Group) -> bool {
        self.options.only().contains(&group)
    }

    fn wants_any(&self, groups: &[Group]) -> bool {
        groups.iter().any(|group| self.wants(*group))
    }

    /// Ours and the peers, in the order of this round.
    fn subjects(&self, round: u64) -> Vec<Subject> {
        let mut subjects = vec![self.options.engine];
        subjects.extend(self.options.peers());
        if round % 2 == 1 {
            subjects.reverse();
        }
        subjects
    }

    /// Notes a value and says it.
    fn note(&mut self, row: &'static str, subject: Subject, round: u64, value: f64, unit: &str) {
        let (round, rounds, name) = (round + 1, self.options.rounds, subject.name());
        say(&format!("{row}, round {round}/{rounds}: {name} {} {unit}", number(value)));
        self.results.add(row, subject, value);
    }

    /// The row of a figure without peers, and why it is what it is.
    fn figure(&mut self, promise: table::Promise, value: Option<f64>, detail: impl Into<String>) {
        self.rows.push(promise.measured(value, detail));
    }

    /// The row of a ratio to the best of `peers`.
    fn ratio(&mut self, promise: table::Promise, row: &'static str, peers: &[Subject]) {
        let row = match self.results.ratio(row, peers) {
            Some(ratio) => promise.measured(Some(ratio.value), ratio.detail),
            None => {
                let ours = self
                    .results
                    .median(row, self.options.engine)
                    .map_or("not run".to_owned(), |v| number(v) + " k/s");
                promise.measured(None, format!("{ours}; no such peer in this run"))
            }
        };
        self.rows.push(row);
    }
}

/// What the run may take on disk: three times the data for each store covers trees half full, a log at
/// its bound, and a compaction's copy.
fn need(options: &Figures) -> u64 {
    (1 << 30) + options.pairs * PAIR * 3 * (1 + options.peers().len() as u64)
}

/// Measures and prints.
pub(crate) fn run(options: &Figures) -> Result<()> {
    let place = if options.keep {
        Place::kept(&options.dir.path)?
    } else {
        Place::new(&options.dir.path, need(options))?
    };
    let fate = if options.keep { "are kept" } else { "are removed at the end" };
    say(&format!("databases go to {} and {fate}", place.path().display()));
    let machine = Machine::probe(place.path())?;
    for line in machine.markdown().lines() {
        say(line);
    }
    if machine.filesystem.starts_with("tmpfs") {
        say(
            "this is not a disk: figures of durable writes, device bytes and openings mean nothing; set --dir",
        );
    }
    let mut bench = Bench { options, place, results: Results::new(options.engine), rows: Vec::new() };
    if options.engine == Subject::FLEX {
        flex::run(&mut bench)?;
    } else if options.engine == Subject::CEDRUS {
        cedrus::run(&mut bench)?;
    } else {
        side_by_side::run(&mut bench)?;
        alone::open_after_kill(&mut bench, promises::OPEN)?;
        alone::durable(&mut bench)?;
        alone::device_bytes(&mut bench)?;
        alone::empty(&mut bench)?;
    }
    say(&format!("done; at the end {} MiB were on disk", measure::disk_bytes(bench.place.path()) >> 20));
    if options.json {
        println!("{:#}", report_json(&bench, &machine));
    } else {
        println!("{}", report_markdown(&bench, &machine));
    }
    Ok(())
}

fn setting(options: &Figures) -> String {
    let synced = match options.sync_every {
        Some(every) => format!("every {} ms", every.as_millis()),
        None => "never (Sheaf: every 100 ms)".to_owned(),
    };
    format!(
        "{} pairs of 27 + 127 bytes, {} rounds of {} s phases, stores synced {synced}.",
        options.pairs,
        options.rounds,
        options.phase.as_secs_f64(),
    )
}

fn report_markdown(bench: &Bench<'_>, machine: &Machine) -> String {
    format!(
        "{}Run: {}\n\n{}\nThousand operations per second (open: seconds); medians (lowest–highest round).\n\n{}",
        machine.markdown(),
        setting(bench.options),
        table::figures(&bench.rows),
        bench.results.markdown(),
    )
}

fn report_json(bench: &Bench<'_>, machine: &Machine) -> serde_json::Value {
    json!({
        "machine": machine.json(),
        "pairs": bench.options.pairs,
        "rounds": bench.options.rounds,
        "setting": setting(bench.options),
        "figures": bench.rows.iter().map(Row::json).collect::<Vec<_>>(),
        "stores": bench.results.json(),
    })
}
