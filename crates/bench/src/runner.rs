//! # Runner: executes a plan, store by store, and records each result as a line
//!
//! If a measurement is impossible (scans in a hashed engine, a cap on memory without permission, a
//! store that failed), the runner records the reason and continues.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::Result;
use crate::data::DataSpec;
use crate::drive::PhaseLength;
use crate::machine::MachineInfo;
use crate::measure;
use crate::memory_cgroup::MemoryCgroup;
use crate::phase_spec::{KeyChoice, OperationMix, PairOperation, PhaseSpec};
use crate::plan::{JobPlan, RunOptions, SharedJobs, WorkloadJob, fill_estimate};
use crate::progress::{PlanProgress, print_status};
use crate::promise_table::number;
use crate::record::{AbsentResult, CellKey, PhaseOutcome, PhaseRecord, RecordLine, RunHeader, StoreNote};
use crate::run_dir::{RunDir, block_if_interrupted};
use crate::store_process::StoreProcess;
use crate::subjects::{BenchSubject, StoreSetting};
use crate::workload::{CloseMode, InitialState};

/// File of the run's lines.
pub(crate) const RESULTS_FILE: &str = "results.jsonl";
/// Files of a report.
pub(crate) const REPORT_FILES: [&str; 3] = [RESULTS_FILE, "report.md", "report.html"];

/// Runs the jobs. Returns the lines of the run, which are also in a file in `options.out`.
pub(crate) fn run(options: &RunOptions, jobs: Vec<WorkloadJob>) -> Result<Vec<RecordLine>> {
    let plan = JobPlan::new(jobs);
    let memory = memory_bytes();
    let estimate = plan.estimate(options);
    accept_output(&options.out)?;
    let place = RunDir::in_empty_parent(&options.dir, plan.disk_bytes_needed(options, memory))?;
    fs::create_dir_all(&options.out)?;
    print_status(&format!(
        "about {:.0} min; databases go to {} and are removed at the end",
        (estimate / 60.0).ceil(),
        place.path().display()
    ));
    let machine = MachineInfo::probe(place.path())?;
    let lines = fs::File::create(options.out.join(RESULTS_FILE))?;
    let progress = PlanProgress::new(estimate);
    let mut runner = PlanRunner { options, run_dir: place, progress, lines, written: Vec::new() };
    runner.write(RecordLine::Run(header(options, &machine)))?;
    for shared in &plan.shared {
        let mut subjects = options.subjects.clone();
        subjects.retain(|subject| shared.is_for(*subject));
        let at_once = if shared.fits(subjects.len(), memory) { subjects.len() } else { 1 };
        for subjects in subjects.chunks(at_once.max(1)) {
            runner.run_shared(shared, subjects)?;
        }
    }
    for job in &plan.single {
        runner.run_single(job, u64::from(plan.is_shared_fill(job)))?;
    }
    runner.progress.finish();
    Ok(runner.written)
}

/// Refuses a directory for the report that contains anything except an earlier report.
fn accept_output(out: &Path) -> Result<()> {
    let Ok(entries) = fs::read_dir(out) else { return Ok(()) };
    for entry in entries {
        let name = entry?.file_name();
        if !REPORT_FILES.iter().any(|file| name == *file) {
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

fn header(options: &RunOptions, machine: &MachineInfo) -> RunHeader {
    let synced = match options.sync_every {
        Some(every) => format!("peers synced every {} ms, as Sheaf syncs itself", every.as_millis()),
        None => "peers not synced (Sheaf: every 100 ms)".to_owned(),
    };
    RunHeader {
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
                setting: subject.setting(),
            })
            .collect(),
    }
}

struct PlanRunner<'a> {
    options: &'a RunOptions,
    run_dir: RunDir,
    progress: PlanProgress,
    lines: fs::File,
    written: Vec<RecordLine>,
}

/// A store that is open in a process of its own, with a database that several jobs use.
struct OpenStore {
    subject: BenchSubject,
    host: StoreProcess,
    is_ordered: bool,
}

impl PlanRunner<'_> {
    fn write(&mut self, line: RecordLine) -> Result<()> {
        writeln!(self.lines, "{}", serde_json::to_string(&line)?)?;
        self.written.push(line);
        Ok(())
    }

    fn record_phase(
        &mut self,
        job: &WorkloadJob,
        subject: BenchSubject,
        round: u64,
        outcome: PhaseOutcome,
    ) -> Result<()> {
        let record = PhaseRecord {
            cell: CellKey {
                workload: job.workload.name.clone(),
                subject: subject.name().to_owned(),
                pairs: job.data.pairs,
                threads: job.threads,
                unsynced: job.unsynced,
            },
            group: job.workload.group.clone(),
            about: job.workload.about.clone(),
            round,
            data_bytes: job.data.bytes(),
            cap_bytes: job.cap_bytes(),
            outcome,
        };
        self.write(RecordLine::Sample(record))
    }

    /// Records once why a measurement is absent. Never returns if a signal interrupted the run.
    fn record_absent(&mut self, workload: &str, subject: BenchSubject, why: &str) -> Result<()> {
        block_if_interrupted();
        let line = RecordLine::Absent(AbsentResult {
            workload: workload.to_owned(),
            subject: subject.name().to_owned(),
            why: why.to_owned(),
        });
        if self.written.contains(&line) {
            return Ok(());
        }
        print_status(&format!("{workload}: {}: {why}", subject.title()));
        self.write(line)
    }

    /// Records the outcome of a phase, and adds `estimate` seconds to the progress.
    fn finish_phase(
        &mut self,
        job: &WorkloadJob,
        subject: BenchSubject,
        round: u64,
        outcome: Result<PhaseOutcome>,
        estimate: f64,
    ) -> Result<()> {
        let lead =
            format!("{} ({}), round {}, {}:", job.workload.name, job.threads, round + 1, subject.title());
        let said = match outcome {
            Ok(outcome) => {
                let (operations, seconds) = (outcome.operations as f64, outcome.seconds);
                self.record_phase(job, subject, round, outcome)?;
                let is_opening = job.workload.open.is_some();
                if is_opening {
                    format!("{lead} {} s", number(seconds))
                } else {
                    format!("{lead} {} k/s", number(operations / seconds / 1e3))
                }
            }
            Err(error) => {
                self.record_absent(&job.workload.name, subject, &error.to_string())?;
                format!("{lead} not measured")
            }
        };
        self.progress.done(estimate, &said);
        Ok(())
    }

    /// Runs all jobs over the same data, with all of `subjects` open at once.
    fn run_shared(&mut self, shared: &SharedJobs, subjects: &[BenchSubject]) -> Result<()> {
        let mut stores = Vec::new();
        for subject in subjects {
            let what = format!("filling {} with {}", subject.title(), shared.kind.name);
            self.progress.next(&what);
            match self.fill_store(shared, *subject) {
                Ok(open) => stores.push(open),
                Err(error) => {
                    for job in shared.jobs.iter().filter(|job| job.is_for(*subject)) {
                        self.record_absent(&job.workload.name, *subject, &error.to_string())?;
                    }
                }
            }
            self.progress.done(fill_estimate(&shared.data), &what);
        }
        for job in &shared.jobs {
            for round in 0..job.rounds(self.options) {
                self.run_round(shared, job, round, &mut stores)?;
            }
        }
        for open in stores {
            let name = open.subject.name();
            if let Err(error) = open.host.close() {
                self.record_absent("closing", open.subject, &error.to_string())?;
            }
            self.run_dir.clear(name)?;
        }
        Ok(())
    }

    fn run_round(
        &mut self,
        shared: &SharedJobs,
        job: &WorkloadJob,
        round: u64,
        stores: &mut [OpenStore],
    ) -> Result<()> {
        self.progress.next(&format!("{}, round {}", job.workload.name, round + 1));
        let count = stores.len();
        for turn in 0..count {
            let at = if round % 2 == 1 { count - 1 - turn } else { turn };
            let Some(open) = stores.get_mut(at) else { continue };
            let subject = open.subject;
            if !job.is_for(subject) {
                continue;
            }
            let outcome = if job.workload.mix.scans() && !open.is_ordered {
                Err("has no key order, hence no scans".into())
            } else if let Some(end) = job.workload.open {
                self.reopen_store(open, end, &shared.data, round)
            } else {
                open.host.run(&job.phase_spec(self.options, round), self.options.max_quiesce)
            };
            self.finish_phase(job, subject, round, outcome, job.estimate())?;
        }
        Ok(())
    }

    /// Creates a database with all pairs. Records the fill as a measurement if that was requested.
    fn fill_store(&mut self, shared: &SharedJobs, subject: BenchSubject) -> Result<OpenStore> {
        let dir = self.run_dir.fresh(subject.name())?;
        let mut host = StoreProcess::start(None)?;
        let opened = host.open(subject, &dir, StoreSetting::BUFFERED, None)?;
        let fill = match &shared.fill {
            Some(job) => job.phase_spec(self.options, 0),
            None => fill(&shared.data),
        };
        let outcome = host.run(&fill, self.options.max_quiesce)?;
        if let Some(job) = &shared.fill {
            self.record_phase(job, subject, 0, outcome)?;
        }
        host.check(&shared.data)?;
        Ok(OpenStore { subject, host, is_ordered: opened.is_ordered })
    }

    /// Ends the store's process as `end` says, and opens its database in a new process.
    fn reopen_store(
        &self,
        open: &mut OpenStore,
        end: CloseMode,
        data: &DataSpec,
        round: u64,
    ) -> Result<PhaseOutcome> {
        let dir = self.run_dir.path().join(open.subject.name());
        let before = std::mem::replace(&mut open.host, StoreProcess::start(None)?);
        match end {
            CloseMode::Closed => before.close()?,
            CloseMode::Killed | CloseMode::KilledCold => {
                before.kill_during_writes(data, kill_delay(round))?;
            }
        }
        if end == CloseMode::KilledCold {
            measure::drop_page_cache(&dir)?;
        }
        let opened = open.host.open(open.subject, &dir, StoreSetting::BUFFERED, Some(data))?;
        Ok(PhaseOutcome {
            operations: 1,
            seconds: opened.seconds,
            memory_bytes: opened.memory_bytes,
            ..PhaseOutcome::default()
        })
    }

    /// Runs a job with databases that no other job uses.
    fn run_single(&mut self, job: &WorkloadJob, first: u64) -> Result<()> {
        for round in first..job.rounds(self.options).max(first) {
            let mut subjects = self.options.subjects.clone();
            if round % 2 == 1 {
                subjects.reverse();
            }
            for subject in subjects {
                if !job.is_for(subject) {
                    continue;
                }
                self.progress.next(&format!("{}, round {}", job.workload.name, round + 1));
                let outcome = self.run_alone(job, subject, round);
                self.run_dir.clear(subject.name())?;
                let fill =
                    if job.workload.start == InitialState::Own { fill_estimate(&job.data) } else { 0.0 };
                self.finish_phase(job, subject, round, outcome, fill + job.estimate())?;
            }
        }
        Ok(())
    }

    /// Runs one phase over a database created for it.
    fn run_alone(&self, job: &WorkloadJob, subject: BenchSubject, round: u64) -> Result<PhaseOutcome> {
        let dir = self.run_dir.fresh(subject.name())?;
        let cap = job.cap_bytes().map(MemoryCgroup::new).transpose()?;
        let mut host = StoreProcess::start(None)?;
        let is_filled = job.workload.start == InitialState::Own;
        // A durable store is filled without a sync for each pair, and opened again.
        let first = StoreSetting {
            memory: StoreSetting::BUFFERED.memory,
            durable: job.workload.durable && !is_filled,
            ..job.setting()
        };
        let opened = host.open(subject, &dir, first, None)?;
        if job.workload.mix.scans() && !opened.is_ordered {
            return Err("has no key order, hence no scans".into());
        }
        if is_filled {
            self.prepare(job, &mut host)?;
        }
        if is_filled && job.workload.durable && cap.is_none() {
            host.close()?;
            host = StoreProcess::start(None)?;
            host.open(subject, &dir, job.setting(), None)?;
        }
        if let Some(cap) = &cap {
            host.close()?;
            return self.run_capped(job, subject, &dir, round, cap).map_err(|error| {
                format!("with {} MiB of memory: {error}", job.cap_bytes().unwrap_or(0) >> 20).into()
            });
        }
        let outcome = host.run(&job.phase_spec(self.options, round), self.options.max_quiesce)?;
        host.close()?;
        Ok(outcome)
    }

    /// Runs the phase in a process with a cap on its memory. The page cache is dropped first, so
    /// that the cap counts every page of the data that the process reads.
    fn run_capped(
        &self,
        job: &WorkloadJob,
        subject: BenchSubject,
        dir: &Path,
        round: u64,
        cap: &MemoryCgroup,
    ) -> Result<PhaseOutcome> {
        measure::drop_page_cache(dir)?;
        let mut host = StoreProcess::start(Some(cap))?;
        host.open(subject, dir, job.setting(), None)?;
        let outcome = host.run(&job.phase_spec(self.options, round), self.options.max_quiesce)?;
        host.close()?;
        Ok(outcome)
    }

    /// Fills, ages, removes and compacts, as the job requires.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "shares of a count")]
    fn prepare(&self, job: &WorkloadJob, host: &mut StoreProcess) -> Result<()> {
        let share = |share: f64| PhaseLength::Operations((job.data.pairs as f64 * share) as u64);
        host.run(&fill(&job.data), self.options.max_quiesce)?;
        let mut change = |op, choice, length| {
            let phase_spec = PhaseSpec::new(job.data.clone(), OperationMix::only(op), choice, 1, length);
            host.run(&phase_spec, self.options.max_quiesce).map(|_| ())
        };
        if job.workload.aged > 0.0 {
            change(PairOperation::Update, KeyChoice::Zipf, share(job.workload.aged))?;
        }
        if job.workload.removed > 0.0 {
            change(PairOperation::Remove, KeyChoice::Permuted, share(job.workload.removed))?;
        }
        if job.workload.compacted {
            change(PairOperation::Compact, KeyChoice::Sequential, PhaseLength::Operations(1))?;
        }
        Ok(())
    }
}

/// Returns a phase in which one thread loads all pairs.
fn fill(data: &DataSpec) -> PhaseSpec {
    let length = PhaseLength::Operations(data.pairs);
    let choice = if data.keys.ordered { KeyChoice::Sequential } else { KeyChoice::Permuted };
    PhaseSpec {
        final_sync: true,
        ..PhaseSpec::new(data.clone(), OperationMix::only(PairOperation::Load), choice, 1, length)
    }
}

/// Returns the time between the first second of writes and the kill, by round.
pub(crate) fn kill_delay(round: u64) -> Duration {
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
