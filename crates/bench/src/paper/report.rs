//! # Report of papers: published figures, ours and the peers', with the verdicts of one run

use super::claim::{self, ClaimMetric, PaperClaim};
use super::{PaperExperiment, PaperSpec};
use crate::Result;
use crate::promise_table::{markdown, number};
use crate::report::{ReportMetric, RunSummary, SummaryRow, pairs};
use crate::subjects::BenchSubject;

impl PaperSpec {
    /// Returns the report of all chosen experiments in Markdown.
    pub(super) fn report(&self, summary: &RunSummary, scale: f64) -> Result<String> {
        let engine = BenchSubject::parse(&self.engine)?.title();
        let mut text = format!(
            "\n## {}\n\nEngine: {engine}. Machine of the paper: {}. Pairs: {} in tables/papers/{}.toml.\n",
            self.title,
            self.machine,
            if (scale - 1.0).abs() < 1e-9 { "as".to_owned() } else { format!("{} × those", number(scale)) },
            self.name,
        );
        for experiment in &self.experiment {
            text += &experiment.report(self, summary, scale)?;
        }
        if !self.absent.is_empty() {
            text += "\n### Stores of the paper that cannot run here\n\nTheir figures above are the published ones.\n\n";
            text += &self.absent_list();
        }
        Ok(text)
    }

    /// Returns the stores that cannot run here, one a line.
    pub(super) fn absent_list(&self) -> String {
        self.absent.iter().map(|store| format!("- {}: {}\n", store.name, store.why)).collect()
    }
}

impl PaperExperiment {
    fn report(&self, paper: &PaperSpec, summary: &RunSummary, scale: f64) -> Result<String> {
        let mut text = format!("\n### {}: {}\n", self.figure, self.what);
        for published in self.published.iter().filter(|published| published.load.is_empty()) {
            text += &format!("\nPublished figure of {}: {}.\n", published.store, published.value);
        }
        if let Some(why) = &self.not_here {
            let command = self.command.as_ref().map_or(String::new(), |command| format!(": `{command}`"));
            return Ok(text + &format!("\nNot rerun: {why}{command}.\n"));
        }
        let rows = self.rows(summary, scale)?;
        text += &format!("\n{}\n", self.table(paper, summary, &rows));
        for claim in &self.claim {
            text += &format!("- {}\n", claim.sentence(paper, summary, &rows));
        }
        Ok(text)
    }

    /// Returns the table of the paper's figures (marked as published), ours, and those of the
    /// peers.
    fn table(&self, paper: &PaperSpec, summary: &RunSummary, rows: &[&SummaryRow]) -> String {
        let has_run = |name: &str| rows.iter().any(|row| row.rounds(name, false).next().is_some());
        let mut stores: Vec<(String, String)> = summary
            .stores
            .iter()
            .filter(|store| has_run(&store.name) || store.name == paper.engine)
            .map(|store| (store.name.clone(), store.title.clone()))
            .collect();
        if !stores.iter().any(|(name, _)| *name == paper.engine) {
            stores.insert(0, (paper.engine.clone(), format!("Sheaf {}", paper.engine)));
        }
        let head: Vec<String> = ["workload", "pairs", "threads", "published"]
            .map(str::to_owned)
            .into_iter()
            .chain(stores.iter().map(|(_, title)| title.clone()))
            .collect();
        let body: Vec<Vec<String>> = rows
            .iter()
            .map(|row| {
                let printed: Vec<String> = self
                    .published
                    .iter()
                    .filter(|published| published.load == row.workload)
                    .map(|published| format!("{}: {}", published.store, published.value))
                    .collect();
                let lead =
                    [row.workload.clone(), pairs(row.pairs), row.threads.to_string(), printed.join("; ")];
                let cells = stores.iter().map(|(name, _)| self.cell(row, name));
                lead.into_iter().chain(cells).collect()
            })
            .collect();
        markdown(&head, &body)
    }

    /// Returns the speed, and the other metrics that claims compare.
    fn cell(&self, row: &SummaryRow, store: &str) -> String {
        let Some(speed) = row.figure(store, ReportMetric::Speed) else { return "–".to_owned() };
        let unit = if row.is_opening() { "ms" } else { "k/s" };
        let mut text = format!("{} {unit}", number(speed.median));
        for (measure, metric, unit) in [
            (ClaimMetric::Write, ReportMetric::WriteAmplification, "× written"),
            (ClaimMetric::Cpu, ReportMetric::Cpu, "µs CPU"),
            (ClaimMetric::P99, ReportMetric::P99, "µs p99"),
            (ClaimMetric::Disk, ReportMetric::Disk, "× disk"),
            (ClaimMetric::Memory, ReportMetric::Memory, "MiB"),
        ] {
            if let Some(figure) = row.figure(store, metric).filter(|_| self.claims_on(measure)) {
                text += &format!(", {} {unit}", number(figure.median));
            }
        }
        text
    }

    /// Returns whether a claim compares this metric.
    pub(super) fn claims_on(&self, metric: ClaimMetric) -> bool {
        self.claim.iter().any(|claim| claim.metric == metric)
    }
}

impl PaperClaim {
    /// Returns the verdict with the measured ratio.
    fn sentence(&self, paper: &PaperSpec, summary: &RunSummary, rows: &[&SummaryRow]) -> String {
        let (says, published) = (&self.says, &self.paper);
        match self.measure(paper, summary, rows) {
            Err(why) => format!("**not measured**: {says}; paper: {published} ({why})"),
            Ok(figures) => format!(
                "**{}**: {says}; paper: {published}; measured {} (holds from {} on)",
                self.verdict(Some(&figures), claim::cores(summary)).words(),
                number(figures.ratio),
                number(self.holds)
            ),
        }
    }
}
