//! # Headlines: the main ratio of each paper, with the same peer and the same work, in minutes
//!
//! The tables of the papers define them. Each store has a process of its own, as in `compare`, so
//! that memory can be capped.

use serde_json::json;

use super::FigureGroup;
use crate::Result;
use crate::args::{self, FiguresArgs};
use crate::paper::{self, HeadlineRow};
use crate::promise_table::{markdown, number};

/// Runs the headlines of `groups` and prints their verdicts.
///
/// # Errors
///
/// Returns an error if `groups` has others too, or if a database cannot be written.
pub(super) fn run(options: &FiguresArgs, groups: &[FigureGroup]) -> Result<()> {
    let mut papers = Vec::new();
    for group in groups {
        let Some(name) = group.headline() else {
            return Err(format!("{} and headlines are runs of their own", group.name()).into());
        };
        papers.extend(paper::select(name)?);
    }
    let scale = options.pairs as f64 / args::PAIRS as f64;
    let rows = paper::headlines(&papers, options.run_options(), &options.peers(), scale)?;
    if options.json {
        println!("{:#}", json!({ "headlines": rows.iter().map(row_json).collect::<Vec<_>>() }));
    } else {
        println!("{}", table(&rows, scale));
    }
    Ok(())
}

fn table(rows: &[HeadlineRow], scale: f64) -> String {
    let head = ["paper", "headline", "the paper", "holds from", "measured", "verdict"].map(str::to_owned);
    let body: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let measured = match &row.figures {
                Ok(figures) => {
                    format!(
                        "{} ({} : {})",
                        number(figures.ratio),
                        number(figures.left),
                        number(figures.right)
                    )
                }
                Err(missing) => missing.clone(),
            };
            vec![
                row.paper.clone(),
                row.claim.says.clone(),
                row.claim.paper.clone(),
                number(row.claim.holds),
                measured,
                row.verdict.words().to_owned(),
            ]
        })
        .collect();
    let pairs = if (scale - 1.0).abs() < 1e-9 {
        "the pairs of tables/papers".to_owned()
    } else {
        format!("{} × the pairs of tables/papers: ratios mean little", number(scale))
    };
    let file = format!("{}/{}", args::REPORT_DIR, crate::runner::RESULTS_FILE);
    format!("{}\nRatios of medians; {pairs}. All measurements: {file}.\n", markdown(&head, &body))
}

fn row_json(row: &HeadlineRow) -> serde_json::Value {
    let ratio = row.figures.as_ref().ok().map(|figures| figures.ratio);
    json!({
        "paper": row.paper,
        "what": row.claim.says,
        "published": row.claim.paper,
        "must": row.claim.holds,
        "measured": ratio,
        "verdict": row.verdict.words(),
    })
}
