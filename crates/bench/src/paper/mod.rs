//! # Papers: the experiments of five papers, rerun, with a verdict on each claim
//!
//! A table of `tables/papers/` names the workloads that reproduce an experiment, the printed
//! figures, and the claims as ratios of measured cells. Engines are found by name.
//!
//! ## Picture
//!
//! ```text
//!   tables/papers/NAME.toml -> jobs -> runner -> lines of the run, or of stored runs (`--from`)
//!                                                  |-> report: tables and verdicts of the run
//!                                                  |-> saved: DIR/NAME.tsv, merged (`--save`)
//!   NAME.toml + docs/papers/data/NAME.tsv -> page: the table of docs/papers/NAME.md (`--page`)
//! ```

mod claim;
mod page;
mod report;
mod saved;

use serde::Deserialize;

use crate::plan::{self, RunOptions, WorkloadJob};
use crate::record::{self, RecordLine};
use crate::report::{RunSummary, SummaryRow, write_with_intro};
use crate::subjects::BenchSubject;
use crate::workload::{self, Workload};
use crate::{Result, args, runner};

pub(crate) use claim::{ClaimFigures, PaperClaim, Verdict};

const TABLES: [&str; 5] = [
    include_str!("../../tables/papers/flexdb.toml"),
    include_str!("../../tables/papers/delsm.toml"),
    include_str!("../../tables/papers/cedrusdb.toml"),
    include_str!("../../tables/papers/kreon.toml"),
    include_str!("../../tables/papers/flatstore.toml"),
];

/// A paper with its experiments.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PaperSpec {
    pub(crate) name: String,
    pub(crate) title: String,
    /// Engine of Sheaf that implements the paper.
    pub(crate) engine: String,
    /// Machine of the paper's measurements.
    machine: String,
    /// Variants of our engine, and variants of peers that replace stores of the paper.
    extra: Vec<String>,
    #[serde(default)]
    absent: Vec<AbsentStore>,
    /// The experiment of `figures --only headline-NAME`: the main ratios, in minutes.
    pub(crate) headline: PaperExperiment,
    experiment: Vec<PaperExperiment>,
}

/// A store of a paper that cannot run here.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AbsentStore {
    name: String,
    why: String,
}

/// A figure or a table of a paper, with the workloads that rerun it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PaperExperiment {
    /// Name in `--only` and in saved data.
    pub(crate) name: String,
    /// Name in the paper.
    pub(crate) figure: String,
    what: String,
    #[serde(default)]
    loads: Vec<String>,
    #[serde(default)]
    pairs: u64,
    #[serde(default)]
    threads: Vec<u64>,
    #[serde(default)]
    published: Vec<PublishedFigure>,
    /// Another command that measures it, or `None` with `not_here` if none can.
    command: Option<String>,
    /// Reason why this command does not rerun it.
    not_here: Option<String>,
    #[serde(default)]
    pub(crate) claim: Vec<PaperClaim>,
}

/// A figure as the paper prints it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedFigure {
    #[serde(default)]
    load: String,
    store: String,
    value: String,
}

/// Returns all papers.
pub(crate) fn all() -> Result<Vec<PaperSpec>> {
    TABLES.into_iter().map(|table| Ok(toml::from_str(table)?)).collect()
}

/// Returns the paper of that name, or all papers for `all`.
pub(crate) fn select(name: &str) -> Result<Vec<PaperSpec>> {
    let all = all()?;
    let known: Vec<String> = all.iter().map(|paper| paper.name.clone()).collect();
    let chosen: Vec<PaperSpec> =
        all.into_iter().filter(|paper| name == "all" || paper.name == name).collect();
    if chosen.is_empty() {
        return Err(format!("unknown paper {name:?}; there are: {}, all", known.join(", ")).into());
    }
    Ok(chosen)
}

/// Keeps the experiments that `only` names, each as EXPERIMENT or EXPERIMENT/WORKLOAD. An empty
/// list keeps all experiments except the headline.
///
/// # Errors
///
/// Returns an error with the known names if a name is unknown.
pub(crate) fn keep_only(papers: &mut [PaperSpec], only: &[String]) -> Result<()> {
    if only.is_empty() {
        return Ok(());
    }
    let mut is_known = vec![false; only.len()];
    let mut known = Vec::new();
    for paper in papers {
        paper.experiment.insert(0, paper.headline.clone());
        known.extend(paper.experiment.iter().map(|experiment| experiment.name.clone()));
        let mut kept = Vec::new();
        for experiment in &paper.experiment {
            let mut loads: Vec<String> = Vec::new();
            let mut is_whole = false;
            for (name, is_known) in only.iter().zip(&mut is_known) {
                let (wanted, load) = name.split_once('/').map_or((&**name, None), |(n, l)| (n, Some(l)));
                if wanted != experiment.name {
                    continue;
                }
                match load {
                    None => is_whole = true,
                    Some(load) if !experiment.loads()?.iter().any(|known| known.name == load) => continue,
                    Some(load) => loads.push(load.to_owned()),
                }
                *is_known = true;
            }
            if is_whole {
                kept.push(experiment.clone());
            } else if !loads.is_empty() {
                kept.push(PaperExperiment { loads, ..experiment.clone() });
            }
        }
        paper.experiment = kept;
    }
    match only.iter().zip(is_known).find(|(_, is_known)| !is_known) {
        Some((name, _)) => {
            Err(format!("unknown experiment or workload {name:?}; there are: {}", known.join(", ")).into())
        }
        None => Ok(()),
    }
}

/// Reruns the experiments or reads stored runs, writes the report, and saves the figures. With
/// `--page`, only writes the tables of the pages.
pub(crate) fn run(asked: &args::PaperRun) -> Result<()> {
    if asked.page {
        return asked.papers.iter().try_for_each(|paper| page::write(paper, &asked.docs));
    }
    let is_saved = |file: &&std::path::PathBuf| file.extension().is_some_and(|kind| kind == "tsv");
    let runs: Vec<Vec<RecordLine>> = if asked.from.is_empty() {
        vec![rerun(asked)?]
    } else {
        asked
            .from
            .iter()
            .filter(|file| !is_saved(file))
            .map(|file| record::read(file))
            .collect::<Result<_>>()?
    };
    if let Some(dir) = &asked.save {
        for paper in &asked.papers {
            let mut table = saved::SavedTable::open(&dir.join(format!("{}.tsv", paper.name)))?;
            for run in &runs {
                table.add(paper, run, asked.scale, asked.quick)?;
            }
            for file in asked.from.iter().filter(is_saved) {
                table.merge(paper, saved::SavedTable::open(file)?);
            }
            table.write()?;
        }
    }
    if runs.is_empty() {
        return Ok(());
    }
    let mut text = String::new();
    let summary = RunSummary::new(&runs);
    for paper in &asked.papers {
        text += &paper.report(&summary, asked.scale)?;
    }
    std::fs::create_dir_all(&asked.options.out)?;
    write_with_intro(&asked.options.out, &runs, Some(&text))
}

fn rerun(asked: &args::PaperRun) -> Result<Vec<RecordLine>> {
    let mut options = asked.options.clone();
    let mut jobs: Vec<WorkloadJob> = Vec::new();
    for paper in &asked.papers {
        for experiment in &paper.experiment {
            let subjects = match experiment.name == paper.headline.name {
                _ if asked.only_stores => Vec::new(), // named stores run everything
                true => paper.headline_subjects(&paper.peers(&options))?,
                false => paper.subjects(&options)?,
            };
            add_jobs(&mut jobs, experiment.jobs(options.seconds, asked.scale)?, &subjects);
        }
    }
    if !asked.only_stores {
        options.subjects.clear();
        for subject in jobs.iter().flat_map(|job| &job.subjects) {
            if !options.subjects.contains(subject) {
                options.subjects.push(*subject);
            }
        }
    }
    runner::run(&options, jobs)
}

/// Adds jobs for `subjects`. A job that is already in the list gets these subjects too.
fn add_jobs(jobs: &mut Vec<WorkloadJob>, more: Vec<WorkloadJob>, subjects: &[BenchSubject]) {
    for job in more {
        let is_it = |other: &&mut WorkloadJob| {
            (&other.workload.name, other.data.pairs, other.threads)
                == (&job.workload.name, job.data.pairs, job.threads)
        };
        match jobs.iter_mut().find(is_it) {
            Some(other) => {
                let new: Vec<BenchSubject> =
                    subjects.iter().copied().filter(|subject| !other.subjects.contains(subject)).collect();
                other.subjects.extend(new);
            }
            None => jobs.push(WorkloadJob { subjects: subjects.to_vec(), ..job }),
        }
    }
}

/// A headline with its figures, as `figures` prints it.
pub(crate) struct HeadlineRow {
    pub(crate) paper: String,
    pub(crate) claim: PaperClaim,
    pub(crate) figures: std::result::Result<ClaimFigures, String>,
    pub(crate) verdict: Verdict,
}

/// Measures the headlines of papers, each with our engine and the peers that its claims name.
/// `peers` are the stores among which `best` chooses.
///
/// # Errors
///
/// Returns an error if a database or the report cannot be written.
pub(crate) fn headlines(
    papers: &[PaperSpec],
    mut options: RunOptions,
    peers: &[BenchSubject],
    scale: f64,
) -> Result<Vec<HeadlineRow>> {
    let mut jobs = Vec::new();
    options.subjects.clear();
    for paper in papers {
        let subjects = paper.headline_subjects(peers)?;
        add_jobs(&mut jobs, paper.headline.jobs(options.seconds, scale)?, &subjects);
        for subject in subjects {
            if !options.subjects.contains(&subject) {
                options.subjects.push(subject);
            }
        }
    }
    let summary = RunSummary::new(&[runner::run(&options, jobs)?]);
    let mut headlines = Vec::new();
    for paper in papers {
        let rows = paper.headline.rows(&summary, scale)?;
        for claim in &paper.headline.claim {
            let figures = claim.measure(paper, &summary, &rows);
            let verdict = claim.verdict(figures.as_ref().ok(), claim::cores(&summary));
            headlines.push(HeadlineRow { paper: paper.name.clone(), claim: claim.clone(), figures, verdict });
        }
    }
    Ok(headlines)
}

impl PaperExperiment {
    /// Returns the workloads.
    fn loads(&self) -> Result<Vec<Workload>> {
        let names: Vec<&str> = self.loads.iter().map(String::as_str).collect();
        if names.is_empty() { Ok(Vec::new()) } else { workload::select(&names) }
    }

    fn jobs(&self, seconds: f64, scale: f64) -> Result<Vec<WorkloadJob>> {
        let mut jobs = plan::jobs(&self.loads()?, &[self.pairs.max(1)], &self.threads, seconds);
        jobs.retain(|job| !job.unsynced);
        for job in &mut jobs {
            job.data = job.workload.data.exactly(self.pairs as f64 * scale);
            // The scale also shortens phases with a length of their own.
            job.seconds = job.workload.seconds.map_or(seconds, |seconds| (seconds * scale).max(2.0));
        }
        Ok(jobs)
    }

    /// Returns the rows of `summary` that belong to the experiment.
    fn rows<'a>(&self, summary: &'a RunSummary, scale: f64) -> Result<Vec<&'a SummaryRow>> {
        let loads = self.loads()?;
        let is_its = |row: &&SummaryRow| {
            loads.iter().any(|load| {
                let counts = if self.threads.is_empty() || load.threads == [1] || load.open.is_some() {
                    &load.threads
                } else {
                    &self.threads
                };
                let pairs = load.data.exactly(self.pairs as f64 * scale).pairs;
                load.name == row.workload && pairs == row.pairs && counts.contains(&row.threads)
            })
        };
        Ok(summary.rows.iter().filter(is_its).collect())
    }
}

impl PaperSpec {
    /// Returns the experiments of the page: the headline first.
    fn with_headline(&self) -> impl Iterator<Item = &PaperExperiment> {
        [&self.headline].into_iter().chain(&self.experiment)
    }

    /// Returns our engine, the variants in the build, and the peers of a run.
    fn subjects(&self, options: &RunOptions) -> Result<Vec<BenchSubject>> {
        let mut subjects = vec![BenchSubject::parse(&self.engine)?];
        for subject in self.peers(options) {
            if !subjects.contains(&subject) {
                subjects.push(subject);
            }
        }
        Ok(subjects)
    }

    /// Returns the variants and stores of the paper that are in the build, and the peers of a run.
    fn peers(&self, options: &RunOptions) -> Vec<BenchSubject> {
        let extra = self.extra.iter().filter_map(|name| BenchSubject::by_name(name));
        let extra = extra.filter(|subject| subject.is_built_in());
        extra.chain(options.subjects.iter().copied().filter(|subject| subject.is_peer())).collect()
    }

    /// Returns our engine and the stores that the headline names.
    fn headline_subjects(&self, peers: &[BenchSubject]) -> Result<Vec<BenchSubject>> {
        let mut subjects = vec![BenchSubject::parse(&self.engine)?];
        for cell in self.headline.claim.iter().flat_map(PaperClaim::cells) {
            let named: Vec<BenchSubject> = match claim::store_of(cell) {
                Some("best") => peers.to_vec(),
                Some(name) => BenchSubject::by_name(name).into_iter().collect(),
                None => Vec::new(),
            };
            for subject in named.into_iter().filter(|subject| subject.is_built_in()) {
                if !subjects.contains(&subject) {
                    subjects.push(subject);
                }
            }
        }
        Ok(subjects)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_workload_of_the_tables_is_there_and_every_name_is_unique() {
        for paper in all().unwrap() {
            let mut names = HashSet::new();
            assert!(BenchSubject::parse(&paper.engine).is_ok(), "{}", paper.engine);
            assert!(paper.extra.iter().all(|name| BenchSubject::by_name(name).is_some()), "{}", paper.name);
            for experiment in paper.with_headline() {
                assert!(names.insert(experiment.name.clone()), "{}: {}", paper.name, experiment.name);
                assert!(!experiment.name.contains(['/', ',']), "{}", experiment.name);
                let loads = experiment.loads().unwrap();
                assert_eq!(loads.is_empty(), experiment.not_here.is_some(), "{}", experiment.name);
                assert!(!experiment.claim.is_empty(), "{}: no claim", experiment.name);
                for published in experiment.published.iter().filter(|published| !published.load.is_empty()) {
                    let is_known = loads.iter().any(|load| load.name == published.load);
                    assert!(is_known, "{}: {}", experiment.name, published.load);
                }
            }
        }
    }

    /// A claim must name cells that its experiment measures: a workload, and threads of the list.
    #[test]
    fn every_claim_names_cells_that_its_experiment_measures() {
        for paper in all().unwrap() {
            for experiment in paper.with_headline() {
                let loads = experiment.loads().unwrap();
                for claim in &experiment.claim {
                    assert_eq!(
                        claim.ratio.is_none(),
                        loads.is_empty(),
                        "{}: {}",
                        experiment.name,
                        claim.says
                    );
                    for cell in claim.cells().filter(|cell| claim::constant(cell).is_none()) {
                        let (store, load, count) = claim::split(cell).unwrap();
                        let is_store = ["ours", "ours-early", "ours-late", "best"].contains(&store)
                            || BenchSubject::by_name(store).is_some();
                        assert!(is_store, "{}: {cell}", experiment.name);
                        let load = loads.iter().find(|known| known.name == load);
                        let load = load.unwrap_or_else(|| panic!("{}: {cell}", experiment.name));
                        let is_fixed = load.threads == [1] || load.open.is_some();
                        let counts = if experiment.threads.is_empty() || is_fixed {
                            &load.threads
                        } else {
                            &experiment.threads
                        };
                        assert!(count.is_none_or(|count| counts.contains(&count)), "{cell}");
                        assert!(count.is_some() || counts.len() == 1, "{}: {cell}: which?", experiment.name);
                    }
                }
            }
        }
    }

    #[test]
    fn experiments_and_single_workloads_can_be_chosen() {
        let chosen = |only: &[&str]| {
            let mut papers = select("flexdb").unwrap();
            let only: Vec<String> = only.iter().map(|name| (*name).to_owned()).collect();
            keep_only(&mut papers, &only).map(|()| papers.remove(0).experiment)
        };
        let both = chosen(&["table-6/capped-ycsb-f:1/4", "recovery"]).unwrap();
        assert_eq!(both.len(), 2);
        assert_eq!(both[0].jobs(1.0, 0.01).unwrap().len(), 1);
        assert_eq!(both[0].jobs(1.0, 0.01).unwrap()[0].workload.name, "capped-ycsb-f:1/4");
        assert_eq!(chosen(&["headline"]).unwrap()[0].name, "headline");
        assert!(chosen(&[]).unwrap().iter().all(|experiment| experiment.name != "headline"));
        for wrong in ["fig-99", "recovery/ycsb-a"] {
            assert!(chosen(&[wrong]).unwrap_err().to_string().contains("table-6"), "{wrong}");
        }
    }

    #[test]
    fn a_paper_runs_its_engine_its_variants_and_no_other_engine() {
        let paper = select("delsm").unwrap().remove(0);
        let ours = paper.headline_subjects(&[]).unwrap();
        assert!(ours.contains(&BenchSubject::parse("delsm:file-bytes=256").unwrap()));
        let subjects = ours.iter().filter(|subject| subject.is_ours());
        assert!(subjects.into_iter().all(|subject| subject.name().starts_with("delsm")));
    }

    #[test]
    fn a_job_of_two_papers_runs_once_with_the_stores_of_both() {
        let (mut jobs, flat) = (Vec::new(), BenchSubject::FLAT);
        let experiment = select("flexdb").unwrap().remove(0).experiment.remove(0);
        let own = experiment.jobs(1.0, 0.01);
        let experiment_jobs = || experiment.jobs(1.0, 0.01).unwrap();
        add_jobs(&mut jobs, experiment_jobs(), &[flat]);
        let count = jobs.len();
        add_jobs(&mut jobs, experiment_jobs(), &[flat, BenchSubject::FLEX]);
        assert_eq!((jobs.len(), own.map_or(0, |own| own.len())), (count, count));
        assert!(jobs.iter().all(|job| job.subjects == [flat, BenchSubject::FLEX]));
    }

    #[test]
    fn unknown_papers_are_refused_with_the_list() {
        let refusal = select("bigtable").unwrap_err().to_string();
        assert!(refusal.contains("flatstore") && refusal.contains("kreon"), "{refusal}");
        assert_eq!(select("all").unwrap().len(), 5);
    }
}
