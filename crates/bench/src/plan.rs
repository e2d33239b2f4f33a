//! # Plan: the jobs of a run, and the order of their execution
//!
//! ## Order
//!
//! ```text
//!   shared   per kind of data: fill every store once; then workload by workload, round by round,
//!            store by store over the same databases; openings last
//!   single   round by round, store by store: an empty database for each phase, or a database of
//!            its own that is filled and prepared first
//! ```
//!
//! Every other round takes the stores in reverse order.

use std::path::PathBuf;
use std::time::Duration;

use crate::data::DataSpec;
use crate::drive::PhaseLength;
use crate::phase_spec::{OperationMix, PairOperation, PhaseSpec};
use crate::subjects::{BenchSubject, MEMORY, StoreSetting};
use crate::workload::{DataKind, InitialState, Workload};

/// Options that all comparisons share.
#[derive(Clone, Debug)]
pub(crate) struct RunOptions {
    pub(crate) subjects: Vec<BenchSubject>,
    pub(crate) rounds: u64,
    pub(crate) seconds: f64,
    pub(crate) sync_every: Option<Duration>,
    /// Longest wait until a store is idle after writes.
    pub(crate) max_quiesce: Duration,
    pub(crate) dir: PathBuf,
    pub(crate) out: PathBuf,
    pub(crate) command: String,
}

/// A workload with its numbers.
#[derive(Clone, Debug)]
pub(crate) struct WorkloadJob {
    pub(crate) workload: Workload,
    pub(crate) data: DataSpec,
    pub(crate) threads: u64,
    /// Length of the phase, if it is timed.
    pub(crate) seconds: f64,
    /// Whether only peers run, without a sync every 100 ms, and for one round.
    pub(crate) unsynced: bool,
    /// The only stores that run it; empty for all stores of the run.
    pub(crate) subjects: Vec<BenchSubject>,
}

/// All jobs of a run, divided by the origin of their databases.
#[derive(Debug, Default)]
pub(crate) struct JobPlan {
    pub(crate) shared: Vec<SharedJobs>,
    /// Jobs that begin with an empty database or one of their own.
    pub(crate) single: Vec<WorkloadJob>,
}

/// Jobs over the same databases.
#[derive(Debug)]
pub(crate) struct SharedJobs {
    pub(crate) kind: DataKind,
    pub(crate) data: DataSpec,
    /// Job of the fill, if it was requested. Then the fill is measured, as the first round of that
    /// job.
    pub(crate) fill: Option<WorkloadJob>,
    pub(crate) jobs: Vec<WorkloadJob>,
}

/// Returns the jobs for `loads`, each over each number of pairs. If `threads` is not empty, it
/// replaces the threads of the table, except where those are fixed.
pub(crate) fn jobs(loads: &[Workload], pairs: &[u64], threads: &[u64], seconds: f64) -> Vec<WorkloadJob> {
    let mut jobs = Vec::new();
    for pairs in pairs {
        for load in loads {
            let is_fixed = load.threads == [1] || load.open.is_some();
            for threads in if threads.is_empty() || is_fixed { &load.threads } else { threads } {
                let seconds = load.seconds.unwrap_or(seconds);
                let job = WorkloadJob {
                    workload: load.clone(),
                    data: load.data.of(*pairs),
                    threads: *threads,
                    seconds,
                    unsynced: false,
                    subjects: Vec::new(),
                };
                if load.unsynced {
                    jobs.push(WorkloadJob { unsynced: true, ..job.clone() });
                }
                jobs.push(job);
            }
        }
    }
    jobs
}

impl JobPlan {
    pub(crate) fn new(jobs: Vec<WorkloadJob>) -> JobPlan {
        let mut plan = JobPlan::default();
        let (fills, others): (Vec<WorkloadJob>, Vec<WorkloadJob>) =
            jobs.into_iter().partition(WorkloadJob::is_fill);
        for job in others {
            if job.workload.start != InitialState::Full {
                plan.single.push(job);
                continue;
            }
            match plan.shared.iter_mut().find(|shared| shared.data == job.data) {
                Some(shared) => shared.jobs.push(job),
                None => {
                    let (kind, data) = (job.workload.data.clone(), job.data.clone());
                    plan.shared.push(SharedJobs { kind, data, fill: None, jobs: vec![job] });
                }
            }
        }
        for job in fills {
            let shared = plan.shared.iter_mut().find(|shared| shared.data == job.data && !job.unsynced);
            if let Some(shared) = shared.filter(|shared| shared.fill.is_none()) {
                shared.fill = Some(job.clone());
            }
            plan.single.push(job);
        }
        for shared in &mut plan.shared {
            shared.jobs.sort_by_key(|job| (job.workload.open.is_some(), job.workload.mix.writes()));
        }
        plan
    }

    /// Returns whether the first round of a job is the fill of databases that other jobs share.
    pub(crate) fn is_shared_fill(&self, job: &WorkloadJob) -> bool {
        let fills = self.shared.iter().filter_map(|shared| shared.fill.as_ref());
        fills
            .into_iter()
            .any(|fill| fill.data == job.data && fill.workload.name == job.workload.name && !job.unsynced)
    }

    /// Returns the estimated seconds of the whole plan.
    pub(crate) fn estimate(&self, options: &RunOptions) -> f64 {
        let stores = |is_for: &dyn Fn(BenchSubject) -> bool| {
            options.subjects.iter().filter(|subject| is_for(**subject)).count() as f64
        };
        let shared = self.shared.iter().map(|shared| {
            let jobs = shared.jobs.iter().map(|job| {
                stores(&|subject| job.is_for(subject)) * job.estimate() * job.rounds(options) as f64
            });
            stores(&|subject| shared.is_for(subject)) * fill_estimate(&shared.data) + jobs.sum::<f64>()
        });
        let single = self.single.iter().map(|job| {
            let fill = if job.workload.start == InitialState::Own { fill_estimate(&job.data) } else { 0.0 };
            stores(&|subject| job.is_for(subject)) * job.rounds(options) as f64 * (fill + job.estimate())
        });
        shared.chain(single).sum()
    }

    /// Returns the bytes of disk needed at the peak. Three times the data of each store that is
    /// open covers half-full trees, a log at its bound, and the copy of a compaction.
    pub(crate) fn disk_bytes_needed(&self, options: &RunOptions, memory: u64) -> u64 {
        let shared = self.shared.iter().map(|shared| {
            let at_once =
                if shared.fits(options.subjects.len(), memory) { options.subjects.len() } else { 1 };
            shared.data.bytes() * 3 * at_once as u64
        });
        let single = self.single.iter().map(|job| job.data.bytes() * 4);
        (1 << 30) + shared.chain(single).max().unwrap_or(0)
    }
}

impl SharedJobs {
    /// Returns whether `subject` runs any of the jobs.
    pub(crate) fn is_for(&self, subject: BenchSubject) -> bool {
        self.jobs.iter().chain(&self.fill).any(|job| job.is_for(subject))
    }

    /// Returns whether all stores may be open at once. A store needs its budget and its data in
    /// memory, but never more than twice the data.
    pub(crate) fn fits(&self, stores: usize, memory: u64) -> bool {
        let each = (self.data.bytes() * 2).min(MEMORY + self.data.bytes()) + (256 << 20);
        each * stores as u64 <= memory / 10 * 7
    }
}

/// Returns a rough estimate of the seconds to load, check and settle the pairs.
pub(crate) fn fill_estimate(data: &DataSpec) -> f64 {
    0.5 + data.pairs as f64 * (4e-6 + data.pair_bytes() * 1e-8)
}

impl WorkloadJob {
    fn is_fill(&self) -> bool {
        self.workload.mix == OperationMix::only(PairOperation::Load)
            && self.workload.start == InitialState::Empty
            && self.workload.cap.is_none()
    }

    /// Returns whether `subject` runs the job.
    pub(crate) fn is_for(&self, subject: BenchSubject) -> bool {
        (self.subjects.is_empty() || self.subjects.contains(&subject))
            && (!self.unsynced || subject.is_synced_by_us())
    }

    pub(crate) fn rounds(&self, options: &RunOptions) -> u64 {
        if self.unsynced { 1 } else { options.rounds }
    }

    /// Number of operations, if it ends the job.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a multiple of a count")]
    fn operations(&self) -> Option<u64> {
        self.workload.length.map(|length| (self.data.pairs as f64 * length) as u64)
    }

    /// Returns the estimated seconds of one phase over one store, including the wait until it is
    /// idle.
    pub(crate) fn estimate(&self) -> f64 {
        let phase = match self.operations() {
            Some(_) => fill_estimate(&self.data) * self.workload.length.unwrap_or(1.0),
            None if self.workload.open.is_some() => 2.0,
            None => self.seconds,
        };
        phase + if self.workload.mix.writes() { 0.7 } else { 0.05 }
    }

    /// Returns the settings that its store is opened with.
    pub(crate) fn setting(&self) -> StoreSetting {
        let memory = self.share_of_cap(self.workload.budget).map_or(MEMORY, |budget| budget.max(1 << 20));
        StoreSetting { durable: self.workload.durable, space_limit: self.workload.space_limit, memory }
    }

    /// Returns the bound on the memory of its process.
    pub(crate) fn cap_bytes(&self) -> Option<u64> {
        self.share_of_cap(1.0)
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of bytes")]
    fn share_of_cap(&self, share: f64) -> Option<u64> {
        self.workload.cap.map(|cap| (self.data.bytes() as f64 * cap * share) as u64)
    }

    /// Returns the phase that a store process runs in this round.
    pub(crate) fn phase_spec(&self, options: &RunOptions, round: u64) -> PhaseSpec {
        let length = match self.operations() {
            Some(operations) => PhaseLength::Operations(operations.max(1)),
            None => PhaseLength::Time(Duration::from_secs_f64(self.seconds)),
        };
        let sync_every = options.sync_every.filter(|_| !self.unsynced && !self.workload.durable);
        PhaseSpec {
            seed: 1 + round,
            sync_every,
            final_sync: self.workload.mix.writes() && self.workload.length.is_some() && !self.unsynced,
            latencies: true,
            timeline: self.workload.timeline,
            full: self.workload.start != InitialState::Empty && self.workload.removed <= 0.0,
            ..PhaseSpec::new(
                self.data.clone(),
                self.workload.mix.clone(),
                self.workload.choice,
                self.threads,
                length,
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload;

    fn options() -> RunOptions {
        RunOptions {
            subjects: vec![BenchSubject::FLAT, BenchSubject::LMDB],
            rounds: 2,
            seconds: 1.0,
            sync_every: Some(Duration::from_millis(100)),
            max_quiesce: Duration::from_secs(1),
            dir: PathBuf::new(),
            out: PathBuf::new(),
            command: String::new(),
        }
    }

    fn plan(names: &[&str], pairs: &[u64], threads: &[u64]) -> JobPlan {
        JobPlan::new(jobs(&workload::select(names).unwrap(), pairs, threads, 1.0))
    }

    #[test]
    fn workloads_over_the_same_data_share_its_databases_and_its_fill() {
        let plan = plan(&["get-zipf", "update-zipf", "open-killed", "fill-random"], &[10_000], &[]);
        let udb = plan.shared.iter().find(|shared| shared.kind.name == "udb").unwrap();
        let names: Vec<&str> = udb.jobs.iter().map(|job| &*job.workload.name).collect();
        assert_eq!(names, ["get-zipf", "update-zipf", "update-zipf", "open-killed"]);
        assert!(plan.is_shared_fill(udb.fill.as_ref().unwrap()));
        let own_fills = plan.single.iter().filter(|job| plan.is_shared_fill(job)).count();
        assert_eq!(own_fills, 1);
    }

    #[test]
    fn sizes_and_threads_multiply() {
        let plan = plan(&["get-zipf"], &[10_000, 100_000], &[1, 2, 4]);
        assert_eq!(plan.shared.len(), 2);
        assert!(plan.shared.iter().all(|shared| shared.jobs.len() == 3));
    }

    #[test]
    fn unsynced_runs_sync_nothing_and_durable_ones_need_no_other_sync() {
        let jobs = jobs(&workload::select(&["update-zipf", "durable"]).unwrap(), &[10_000], &[], 1.0);
        for job in jobs {
            let phase_spec = job.phase_spec(&options(), 0);
            assert_eq!(
                phase_spec.sync_every.is_none(),
                job.unsynced || job.workload.durable,
                "{}",
                job.workload.name
            );
            assert_eq!(job.setting().durable, job.workload.durable);
        }
    }

    #[test]
    fn stores_that_do_not_fit_in_memory_together_run_one_by_one_and_need_less_disk() {
        let large = plan(&["get-zipf"], &[50_000_000], &[]);
        assert!(!large.shared[0].fits(7, 24 << 30) && large.shared[0].fits(1, 24 << 30));
        assert!(large.disk_bytes_needed(&options(), 24 << 30) < large.disk_bytes_needed(&options(), 1 << 40));
        let small = plan(&["get-zipf"], &[200_000], &[]);
        assert!(small.shared[0].fits(7, 24 << 30));
    }
}
