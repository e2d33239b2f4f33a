//! # Runner: a plan, carried out store by store, written down line by line
//!
//! What cannot be measured (no scans in a hashed engine, no cap on memory, a store that failed) is noted
//! with its reason, and the run goes on.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::Result;
use crate::cap::Cap;
use crate::data::Data;
use crate::drive::Length;
use crate::host::Host;
use crate::machine::Machine;
use crate::measure;
use crate::place::{Place, stay_if_interrupted};
use crate::plan::{Job, Options, Plan, Shared, fill_estimate};
use crate::progress::{Progress, say};
use crate::record::{Absent, Cell, Line, Outcome, Record, Run, StoreNote};
use crate::spec::{End, Start};
use crate::stage::{Choice, Mix, Op, Stage};
use crate::subjects::{Setting, Subject};
use crate::table::number;

/// The run's lines.
pub(crate) const LINES: &str = "results.jsonl";
/// The files a report consists of.
pub(crate) const FILES: [&str; 3] = [LINES, "report.md", "report.html"];

/// Carries out the jobs and answers the run's lines, which are also in `options.out`.
pub(crate) fn run(options: &Options, jobs: Vec<Job>) -> Result<Vec<Line>> {
    let plan = Plan::new(jobs);
    let memory = memory_bytes();
    let estimate = plan.estimate(options);
    accept_output(&options.out)?;
    let place = Place::in_empty(&options.dir, plan.need(options, memory))?;
    fs::create_dir_all(&options.out)?;
    say(&format!(
        "about {:.0} min; databases go to {} and are removed at the end",
        (estimate / 60.0).ceil(),
        place.path().display()
    ));
    let machine = Machine::probe(place.path())?;
    let lines = fs::File::create(options.out.join(LINES))?;
    let progress = Progress::new(estimate);
    let mut runner = Runner { options, place, progress, lines, written: Vec::new() };
    runner.write(Line::Run(header(options, &machine)))?;
    for shared in &plan.shared {
        let at_once = if shared.fits(options.subjects.len(), memory) { options.subjects.len() } else { 1 };
        for subjects in options.subjects.chunks(at_once.max(1)) {
            runner.shared(shared, subjects)?;
        }
    }
    for job in &plan.single {
        runner.single(job, u64::from(plan.is_shared_fill(job)))?;
    }
    runner.progress.finish();
    Ok(runner.written)
}

/// Refuses a directory for the report that holds anything but an earlier report.
fn accept_output(out: &Path) -> Result<()> {
    let Ok(entries) = fs::read_dir(out) else { return Ok(()) };
    for entry in entries {
        let name = entry?.file_name();
        if !FILES.iter().any(|file| name == *file) {
            return Err(format!(
                "{} holds {name:?}, which is no part of a report; give --out another directory",
                out.display()
            )
            .into());
        }
    }
    Ok(())
}

fn memory_bytes() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    kib.and_then(|kib| kib.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) << 10
}

fn header(options: &Options, machine: &Machine) -> Run {
    let synced = match options.sync_every {
        Some(every) => format!("peers synced every {} ms, as Sheaf syncs itself", every.as_millis()),
        None => "peers not synced (Sheaf: every 100 ms)".to_owned(),
    };
    Run {
        command: options.command.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        began: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        machine: machine.markdown(),
        probes: machine.json(),
        setting: format!(
            "{} interleaved rounds, medians; timed phases of {} s; {synced}; compression off; 2 GiB of cache or \
             memory budget for each store; each store in a process of its own, jemalloc",
            options.rounds, options.seconds
        ),
        stores: options
            .subjects
            .iter()
            .map(|subject| StoreNote {
                name: subject.name().to_owned(),
                title: subject.title(),
                setting: subject.setting().to_owned(),
            })
            .collect(),
    }
}

struct Runner<'a> {
    options: &'a Options,
    place: Place,
    progress: Progress,
    lines: fs::File,
    written: Vec<Line>,
}

/// A store in its process, over a database that stays there.
struct Open {
    subject: Subject,
    host: Host,
    is_ordered: bool,
}

impl Runner<'_> {
    fn write(&mut self, line: Line) -> Result<()> {
        writeln!(self.lines, "{}", serde_json::to_string(&line)?)?;
        self.written.push(line);
        Ok(())
    }

    fn note(&mut self, job: &Job, subject: Subject, round: u64, outcome: Outcome) -> Result<()> {
        let record = Record {
            cell: Cell {
                workload: job.load.name.clone(),
                subject: subject.name().to_owned(),
                pairs: job.data.pairs,
                threads: job.threads,
                unsynced: job.unsynced,
            },
            group: job.load.group.clone(),
            about: job.load.about.clone(),
            round,
            data_bytes: job.data.bytes(),
            cap_bytes: job.cap_bytes(),
            outcome,
        };
        self.write(Line::Sample(record))
    }

    /// Notes why something could not be measured, once; never returns if we were interrupted.
    fn absent(&mut self, workload: &str, subject: Subject, why: &str) -> Result<()> {
        stay_if_interrupted();
        let line = Line::Absent(Absent {
            workload: workload.to_owned(),
            subject: subject.name().to_owned(),
            why: why.to_owned(),
        });
        if self.written.contains(&line) {
            return Ok(());
        }
        say(&format!("{workload}: {}: {why}", subject.title()));
        self.write(line)
    }

    /// Notes what came of a phase that was estimated at so many seconds.
    fn came(
        &mut self,
        job: &Job,
        subject: Subject,
        round: u64,
        outcome: Result<Outcome>,
        estimate: f64,
    ) -> Result<()> {
        let lead = format!("{} ({}), round {}, {}:", job.load.name, job.threads, round + 1, subject.title());
        let said = match outcome {
            Ok(outcome) => {
                let (operations, seconds) = (outcome.operations as f64, outcome.seconds);
                self.note(job, subject, round, outcome)?;
                let is_opening = job.load.open.is_some();
                if is_opening {
                    format!("{lead} {} s", number(seconds))
                } else {
                    format!("{lead} {} k/s", number(operations / seconds / 1e3))
                }
            }
            Err(error) => {
                self.absent(&job.load.name, subject, &error.to_string())?;
                format!("{lead} not measured")
            }
        };
        self.progress.done(estimate, &said);
        Ok(())
    }

    /// All jobs over the same data, with these stores open at once.
    fn shared(&mut self, shared: &Shared, subjects: &[Subject]) -> Result<()> {
        let mut stores = Vec::new();
        for subject in subjects {
            let what = format!("filling {} with {}", subject.title(), shared.kind.name);
            self.progress.next(&what);
            match self.filled(shared, *subject) {
                Ok(open) => stores.push(open),
                Err(error) => {
                    for job in &shared.jobs {
                        self.absent(&job.load.name, *subject, &error.to_string())?;
                    }
                }
            }
            self.progress.done(fill_estimate(&shared.data), &what);
        }
        for job in &shared.jobs {
            for round in 0..job.rounds(self.options) {
                self.round(shared, job, round, &mut stores)?;
            }
        }
        for open in stores {
            let name = open.subject.name();
            if let Err(error) = open.host.close() {
                self.absent("closing", open.subject, &error.to_string())?;
            }
            self.place.clear(name)?;
        }
        Ok(())
    }

    fn round(&mut self, shared: &Shared, job: &Job, round: u64, stores: &mut [Open]) -> Result<()> {
        self.progress.next(&format!("{}, round {}", job.load.name, round + 1));
        let count = stores.len();
        for turn in 0..count {
            let at = if round % 2 == 1 { count - 1 - turn } else { turn };
            let Some(open) = stores.get_mut(at) else { continue };
            let subject = open.subject;
            if job.unsynced && !subject.is_synced_by_us() {
                continue;
            }
            let outcome = if job.load.mix.scans() && !open.is_ordered {
                Err("has no key order, hence no scans".into())
            } else if let Some(end) = job.load.open {
                self.reopened(open, end, &shared.data, round)
            } else {
                open.host.run(&job.stage(self.options, round), self.options.settle)
            };
            self.came(job, subject, round, outcome, job.estimate())?;
        }
        Ok(())
    }

    /// A fresh database with all pairs. The fill is measured if that was asked for.
    fn filled(&mut self, shared: &Shared, subject: Subject) -> Result<Open> {
        let dir = self.place.fresh(subject.name())?;
        let mut host = Host::start(None)?;
        let opened = host.open(subject, &dir, Setting::BUFFERED, None)?;
        let fill = match &shared.fill {
            Some(job) => job.stage(self.options, 0),
            None => fill(&shared.data),
        };
        let outcome = host.run(&fill, self.options.settle)?;
        if let Some(job) = &shared.fill {
            self.note(job, subject, 0, outcome)?;
        }
        host.check(&shared.data)?;
        Ok(Open { subject, host, is_ordered: opened.is_ordered })
    }

    /// Ends the store's process in this way and opens its database in another.
    fn reopened(&self, open: &mut Open, end: End, data: &Data, round: u64) -> Result<Outcome> {
        let dir = self.place.path().join(open.subject.name());
        let before = std::mem::replace(&mut open.host, Host::start(None)?);
        match end {
            End::Closed => before.close()?,
            End::Killed => before.kill_in_mid_write(data, moment(round))?,
        }
        let opened = open.host.open(open.subject, &dir, Setting::BUFFERED, Some(data))?;
        Ok(Outcome {
            operations: 1,
            seconds: opened.seconds,
            memory_bytes: opened.memory_bytes,
            ..Outcome::default()
        })
    }

    /// A job whose databases nobody shares.
    fn single(&mut self, job: &Job, first: u64) -> Result<()> {
        for round in first..job.rounds(self.options).max(first) {
            let mut subjects = self.options.subjects.clone();
            if round % 2 == 1 {
                subjects.reverse();
            }
            for subject in subjects {
                if job.unsynced && !subject.is_synced_by_us() {
                    continue;
                }
                self.progress.next(&format!("{}, round {}", job.load.name, round + 1));
                let outcome = self.alone(job, subject, round);
                self.place.clear(subject.name())?;
                let fill = if job.load.start == Start::Own { fill_estimate(&job.data) } else { 0.0 };
                self.came(job, subject, round, outcome, fill + job.estimate())?;
            }
        }
        Ok(())
    }

    /// One phase over a database made for it.
    fn alone(&self, job: &Job, subject: Subject, round: u64) -> Result<Outcome> {
        let dir = self.place.fresh(subject.name())?;
        let cap = job.cap_bytes().map(Cap::new).transpose()?;
        let mut host = Host::start(None)?;
        let opened =
            host.open(subject, &dir, Setting { memory: Setting::BUFFERED.memory, ..job.setting() }, None)?;
        if job.load.mix.scans() && !opened.is_ordered {
            return Err("has no key order, hence no scans".into());
        }
        if job.load.start == Start::Own {
            self.prepare(job, &mut host)?;
        }
        if let Some(cap) = &cap {
            host.close()?;
            return self.capped(job, subject, &dir, round, cap).map_err(|error| {
                format!("with {} MiB of memory: {error}", job.cap_bytes().unwrap_or(0) >> 20).into()
            });
        }
        let outcome = host.run(&job.stage(self.options, round), self.options.settle)?;
        host.close()?;
        Ok(outcome)
    }

    /// The phase in a process with a cap on its memory, which counts all of the data's pages that it brings in.
    fn capped(&self, job: &Job, subject: Subject, dir: &Path, round: u64, cap: &Cap) -> Result<Outcome> {
        measure::forget_cached(dir)?;
        let mut host = Host::start(Some(cap))?;
        host.open(subject, dir, job.setting(), None)?;
        let outcome = host.run(&job.stage(self.options, round), self.options.settle)?;
        host.close()?;
        Ok(outcome)
    }

    /// Fills, ages, removes, compacts, as the job wants it.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "shares of a count")]
    fn prepare(&self, job: &Job, host: &mut Host) -> Result<()> {
        let share = |share: f64| Length::Operations((job.data.pairs as f64 * share) as u64);
        host.run(&fill(&job.data), self.options.settle)?;
        let mut change = |op, choice, length| {
            let stage = Stage::new(job.data.clone(), Mix::only(op), choice, 1, length);
            host.run(&stage, self.options.settle).map(|_| ())
        };
        if job.load.aged > 0.0 {
            change(Op::Update, Choice::Zipf, share(job.load.aged))?;
        }
        if job.load.removed > 0.0 {
            change(Op::Remove, Choice::Permuted, share(job.load.removed))?;
        }
        if job.load.compacted {
            change(Op::Compact, Choice::Sequential, Length::Operations(1))?;
        }
        Ok(())
    }
}

/// Loads all pairs, by one thread.
fn fill(data: &Data) -> Stage {
    let length = Length::Operations(data.pairs);
    let choice = if data.keys.ordered { Choice::Sequential } else { Choice::Permuted };
    Stage { final_sync: true, ..Stage::new(data.clone(), Mix::only(Op::Load), choice, 1, length) }
}

/// How long a killed writer wrote beyond its first second, by round.
pub(crate) fn moment(round: u64) -> Duration {
    Duration::from_millis(300 + 370 * (round % 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_goes_nowhere_but_into_an_empty_directory_or_over_a_report() {
        let out = std::env::temp_dir().join(format!("sheaf-bench-out-{}", std::process::id()));
        accept_output(&out).unwrap();
        fs::create_dir_all(&out).unwrap();
        fs::write(out.join("report.md"), "").unwrap();
        accept_output(&out).unwrap();
        fs::write(out.join("thesis.tex"), "").unwrap();
        let refusal = accept_output(&out).unwrap_err().to_string();
        assert!(refusal.contains("thesis.tex"), "{refusal}");
        fs::remove_dir_all(&out).unwrap();
    }
}
