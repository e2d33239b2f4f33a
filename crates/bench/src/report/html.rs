//! # HTML: one self-contained page with plots
//!
//! The page loads no script, font or picture, so that it can be sent as one file. It follows the
//! light or dark setting of the reader's system.

use std::fmt::Write;

use pulldown_cmark::Parser;

use super::plot::{PlotBar, PlotCurve, PlotScale, bars, curves, escaped};
use super::{ReportMetric, RunSummary, ScaleAxis, SummaryRow, TOLERANCE, markdown, pairs, threads};
use crate::promise_table::number;
use crate::subjects::BenchSubject;

const STYLE: &str = include_str!("page.css");

/// A section of the page: its anchor and its content.
struct HtmlSection {
    id: &'static str,
    heading: &'static str,
    body: String,
}

/// Returns the page of `summary`. The Markdown text `lead` precedes the other sections.
pub(super) fn page(summary: &RunSummary, lead: Option<&str>) -> String {
    let sections: Vec<HtmlSection> = [
        lead.map(papers),
        overview(summary),
        throughput(summary),
        latency(summary),
        bars_of(summary, ReportMetric::WriteAmplification, "writes"),
        bars_of(summary, ReportMetric::Cpu, "cpu"),
        scaling(summary, ScaleAxis::Threads, ReportMetric::Speed, "threads", "Scaling with threads"),
        scaling(
            summary,
            ScaleAxis::Threads,
            ReportMetric::Cpu,
            "threads-cpu",
            "CPU per operation by threads",
        ),
        scaling(summary, ScaleAxis::Pairs, ReportMetric::Speed, "size", "Scaling with size"),
        over_time(summary),
        bars_of(summary, ReportMetric::Disk, "disk"),
        bars_of(summary, ReportMetric::Memory, "memory"),
        notes(summary),
    ]
    .into_iter()
    .flatten()
    .collect();
    let mut body = String::new();
    for HtmlSection { id, heading, body: text } in &sections {
        let _ = write!(body, r#"<section id="{id}"><h2>{heading}</h2>{text}</section>"#);
    }
    let links: String = sections
        .iter()
        .map(|section| format!(r##"<a href="#{}">{}</a>"##, section.id, section.heading))
        .collect();
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>Sheaf compared with its peers</title><style>{STYLE}</style></head>\n<body>{}<nav>{links}</nav>\n{body}\n</body></html>\n",
        head(summary)
    )
}

fn head(summary: &RunSummary) -> String {
    let mut text = "<h1>Sheaf compared with its peers</h1>".to_owned();
    let sentence = escaped(&summary.agreement.sentence().replace("**", ""));
    let class = if summary.agreement.disagreeing.is_empty() { "soft" } else { "warn" };
    let _ = write!(text, r#"<p class="{class}">{sentence}</p>"#);
    for (place, run) in summary.runs.iter().enumerate() {
        let said = place.checked_sub(1).map(|before| &summary.runs[before]);
        text += r#"<div class="facts">"#;
        for line in run.machine.lines().filter(|line| said.is_none_or(|said| !said.machine.contains(line))) {
            let _ = write!(text, "{}<br>", escaped(line));
        }
        if said.is_none_or(|said| said.setting != run.setting) {
            let _ = write!(text, "Setting: {}.<br>", escaped(&run.setting));
        }
        let _ = write!(text, "Command: <code>sheaf-bench {}</code></div>", escaped(&run.command));
    }
    text
}

/// Returns the stores in the order of the run, without the null store.
fn stores(summary: &RunSummary) -> impl Iterator<Item = &crate::record::StoreNote> {
    summary.stores.iter().filter(|store| store.name != BenchSubject::NULL.name())
}

fn is_ours(name: &str) -> bool {
    BenchSubject::by_name(name).is_some_and(BenchSubject::is_ours)
}

fn legend(summary: &RunSummary) -> String {
    let item = |store: &crate::record::StoreNote| {
        format!(
            r#"<li><i style="background:var(--s-{})"></i>{}</li>"#,
            escaped(&store.name),
            escaped(&store.title)
        )
    };
    format!(r#"<ul class="legend">{}</ul>"#, stores(summary).map(item).collect::<String>())
}

/// Returns the section with published and measured figures of the papers, and the verdicts.
fn papers(markdown: &str) -> HtmlSection {
    let mut body = String::new();
    pulldown_cmark::html::push_html(
        &mut body,
        Parser::new_ext(markdown, pulldown_cmark::Options::ENABLE_TABLES),
    );
    let body =
        body.replace("<table>", r#"<div class="scroll"><table>"#).replace("</table>", "</table></div>");
    HtmlSection { id: "papers", heading: "The papers", body: format!(r#"<div class="papers">{body}</div>"#) }
}

/// Returns the section with all speeds in one table.
fn overview(summary: &RunSummary) -> Option<HtmlSection> {
    let rows = summary.rows_with(ReportMetric::Speed);
    let mut table = "<tr><th>workload</th><th>pairs</th><th>threads</th>".to_owned();
    for store in &summary.stores {
        let _ = write!(table, "<th>{}</th>", escaped(&store.title));
    }
    for row in &rows {
        let lead = format!("{}</td><td>{}</td><td>{}", escaped(&row.workload), pairs(row.pairs), row.threads);
        let _ = write!(table, r#"</tr><tr title="{}"><td>{lead}</td>"#, escaped(&row.about));
        let best = row.best(&summary.stores);
        for store in &summary.stores {
            let class = if best.as_ref() == Some(&store.name) { r#" class="best""# } else { "" };
            let _ = write!(table, "<td{class}>{}</td>", speed(row, &store.name));
        }
    }
    Some(HtmlSection {
        id: "overview",
        heading: "At a glance",
        body: format!(
            r#"<p>Thousand operations per second; milliseconds for openings. The best of a row is highlighted; ± marks rounds that differ by more than 10 %.</p><div class="scroll"><table>{table}</tr></table></div>"#
        ),
    })
}

fn speed(row: &SummaryRow, store: &str) -> String {
    let Some(figure) = row.figure(store, ReportMetric::Speed) else { return "–".to_owned() };
    let unit = if row.is_opening() { " ms" } else { "" };
    if figure.spread() > TOLERANCE / 2.0 {
        format!("{}{unit} <small>±{:.0} %</small>", number(figure.median), figure.spread() * 100.0)
    } else {
        format!("{}{unit}", number(figure.median))
    }
}

/// Returns a card with title, explanation and picture.
fn card(row: &SummaryRow, about: &str, picture: &str) -> String {
    format!(
        r#"<figure><h3>{} <span class="size">{} pairs, {}</span></h3><p>{}</p>{picture}</figure>"#,
        escaped(&row.workload),
        pairs(row.pairs),
        threads(row.threads),
        escaped(about)
    )
}

fn grid(cards: &[String]) -> String {
    format!(r#"<div class="grid">{}</div>"#, cards.concat())
}

fn bars_of_row(summary: &RunSummary, row: &SummaryRow, metric: ReportMetric, unit: &str) -> String {
    let made: Vec<PlotBar> = stores(summary)
        .filter_map(|store| {
            let figure = row.figure(&store.name, metric)?;
            Some(PlotBar {
                title: store.title.clone(),
                colour: store.name.clone(),
                value: figure.median,
                least: figure.least,
                most: figure.most,
                outline: row.unsynced(&store.name, metric),
                is_ours: is_ours(&store.name),
            })
        })
        .collect();
    bars(&made, unit)
}

fn throughput(summary: &RunSummary) -> Option<HtmlSection> {
    let cards: Vec<String> = summary
        .rows_with(ReportMetric::Speed)
        .into_iter()
        .map(|row| {
            let unit = if row.is_opening() { "ms" } else { "k/s" };
            let better =
                if row.is_opening() { "milliseconds, shorter is better" } else { "thousand a second" };
            let about = format!("{}; {better}", row.about.trim_end_matches("; seconds"));
            card(row, &about, &bars_of_row(summary, row, ReportMetric::Speed, unit))
        })
        .collect();
    Some(HtmlSection {
        id: "throughput",
        heading: "Throughput by engine",
        body: format!(
            "<p>Medians; the whiskers show the range of the rounds. A dashed outline is the same store without a sync every 100 ms, as in most published figures.</p>{}",
            grid(&cards)
        ),
    })
}

/// Returns the section with bars of a metric, for each row that has it.
fn bars_of(summary: &RunSummary, metric: ReportMetric, id: &'static str) -> Option<HtmlSection> {
    let (_, heading, meaning) = markdown::TABLES.into_iter().find(|table| table.0 == metric)?;
    let rows = summary.rows_with(metric);
    if rows.is_empty() {
        return None;
    }
    let cards: Vec<String> =
        rows.iter().map(|row| card(row, &row.about, &bars_of_row(summary, row, metric, ""))).collect();
    Some(HtmlSection { id, heading, body: format!("<p>{}</p>{}", escaped(meaning), grid(&cards)) })
}

/// Formats microseconds: `0.1 µs`, `10 µs`, `1 ms`, `1 s`.
fn micros(value: f64) -> String {
    match value {
        1e6.. => format!("{} s", number(value / 1e6)),
        1e3.. => format!("{} ms", number(value / 1e3)),
        _ => format!("{} µs", number(value)),
    }
}

fn latency(summary: &RunSummary) -> Option<HtmlSection> {
    let ticks = ["50 %", "95 %", "99 %", "99.9 %", "99.99 %", "longest"].map(str::to_owned);
    let mut cards = Vec::new();
    for row in summary.rows.iter().filter(|row| !row.is_opening() && !row.is_whole_scan()) {
        let made: Vec<PlotCurve> = stores(summary)
            .filter_map(|store| {
                let points = row.latency(&store.name)?;
                let points =
                    points.iter().enumerate().map(|(place, point)| (place as f64, point.1.max(0.01)));
                Some(PlotCurve {
                    title: store.title.clone(),
                    colour: store.name.clone(),
                    is_ours: is_ours(&store.name),
                    points: points.collect(),
                })
            })
            .collect();
        if !made.is_empty() {
            let picture =
                curves(&ticks, "share of operations within this latency", PlotScale::Log, micros, &made);
            cards.push(card(row, &row.about, &picture));
        }
    }
    (!cards.is_empty()).then(|| HtmlSection {
        id: "latency",
        heading: "Latency",
        body: format!(
            "<p>Lower is better; each gridline is ten times the one below. Medians of the rounds.</p>{}{}",
            legend(summary),
            grid(&cards)
        ),
    })
}

/// Formats a figure in thousands: `250 k`, `1.5 M`.
fn thousands(value: f64) -> String {
    match value {
        1e3.. => format!("{} M", number(value / 1e3)),
        0.0 => "0".to_owned(),
        _ => format!("{} k", number(value)),
    }
}

fn scaling(
    summary: &RunSummary,
    by: ScaleAxis,
    metric: ReportMetric,
    id: &'static str,
    heading: &'static str,
) -> Option<HtmlSection> {
    let (label, unit): (fn(f64) -> String, &str) = match metric {
        ReportMetric::Cpu => (micros, "CPU time of the whole process per operation; lower is better."),
        _ => (thousands, "Operations per second."),
    };
    let cards: Vec<String> = summary
        .families(by)
        .iter()
        .map(|family| {
            let tick = |row: &&SummaryRow| {
                if by == ScaleAxis::Pairs { pairs(row.pairs) } else { row.threads.to_string() }
            };
            let ticks: Vec<String> = family.iter().map(tick).collect();
            let made: Vec<PlotCurve> = stores(summary)
                .filter_map(|store| {
                    let point = |(place, row): (usize, &&SummaryRow)| {
                        Some((place as f64, row.figure(&store.name, metric)?.median))
                    };
                    let points: Vec<_> = family.iter().enumerate().filter_map(point).collect();
                    let (title, colour) = (store.title.clone(), store.name.clone());
                    let is_ours = is_ours(&store.name);
                    (!points.is_empty()).then_some(PlotCurve { title, colour, is_ours, points })
                })
                .collect();
            let fixed = match by {
                ScaleAxis::Pairs => threads(family[0].threads),
                ScaleAxis::Threads => format!("{} pairs", pairs(family[0].pairs)),
            };
            format!(
                r#"<figure><h3>{} <span class="size">{fixed}</span></h3><p>{}</p>{}</figure>"#,
                escaped(&family[0].workload),
                escaped(&family[0].about),
                curves(&ticks, by.name(), PlotScale::Linear, label, &made)
            )
        })
        .collect();
    (!cards.is_empty()).then(|| HtmlSection {
        id,
        heading,
        body: format!("<p>{unit}</p>{}{}", legend(summary), grid(&cards)),
    })
}

fn over_time(summary: &RunSummary) -> Option<HtmlSection> {
    let mut cards = Vec::new();
    for row in &summary.rows {
        let made: Vec<PlotCurve> = stores(summary)
            .filter_map(|store| {
                let record = row.rounds(&store.name, false).find(|r| r.outcome.timeline.len() > 2)?;
                let seconds = &record.outcome.timeline;
                let place = |second: usize| second as f64 * 4.0 / (seconds.len() - 1) as f64;
                let points = seconds
                    .iter()
                    .enumerate()
                    .map(|(at, s)| (place(at), s.operations as f64 / 1e3))
                    .collect();
                let (title, colour) = (store.title.clone(), store.name.clone());
                Some(PlotCurve { title, colour, is_ours: is_ours(&store.name), points })
            })
            .collect();
        let length = row.rounds_of_all().map(|record| record.outcome.timeline.len()).max().unwrap_or(0);
        if !made.is_empty() {
            let ticks: Vec<String> = (0..5).map(|part| (length * part / 4).to_string()).collect();
            cards.push(card(
                row,
                &row.about,
                &curves(&ticks, "seconds", PlotScale::Linear, thousands, &made),
            ));
        }
    }
    (!cards.is_empty()).then(|| HtmlSection {
        id: "time",
        heading: "Over time",
        body: format!("<p>Operations in each second.</p>{}{}", legend(summary), grid(&cards)),
    })
}

fn notes(summary: &RunSummary) -> Option<HtmlSection> {
    let mut text = "<h3>Settings of the stores</h3><ul class=\"notes\">".to_owned();
    for store in &summary.stores {
        let _ = write!(text, "<li><b>{}</b>: {}</li>", escaped(&store.title), escaped(&store.setting));
    }
    text += "</ul>";
    if !summary.absent.is_empty() {
        text += "<h3>Not measured</h3><ul class=\"notes\">";
        for absent in &summary.absent {
            let _ = write!(
                text,
                "<li>{}, {}: {}</li>",
                escaped(&absent.workload),
                escaped(&absent.subject),
                escaped(&absent.why)
            );
        }
        text += "</ul>";
    }
    if !summary.agreement.disagreeing.is_empty() {
        text += "<details><summary>Figures that differ by more than 10 %</summary><ul class=\"notes\">";
        for (store, what, apart) in &summary.agreement.disagreeing {
            let _ =
                write!(text, "<li>{}, {}: {:.0} % apart</li>", escaped(store), escaped(what), apart * 100.0);
        }
        text += "</ul></details>";
    }
    Some(HtmlSection { id: "notes", heading: "Settings and missing figures", body: text })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::stored;

    #[test]
    fn the_page_stands_alone_and_has_its_plots() {
        let html = page(&RunSummary::new(&[stored()]), None);
        for part in
            ["At a glance", "Throughput by engine", "Latency", "Write amplification", "Scaling with size"]
        {
            assert!(html.contains(part), "{part}");
        }
        assert!(html.matches("<svg").count() > 10);
        assert!(!html.contains("http://") && !html.contains("https://") && !html.contains("<script"));
        for tag in ["figure", "svg", "section", "table", "g", "ul"] {
            let (opened, closed) = (
                html.matches(&format!("<{tag}>")).count() + html.matches(&format!("<{tag} ")).count(),
                html.matches(&format!("</{tag}>")).count(),
            );
            assert_eq!(opened, closed, "{tag}");
        }
        assert!(!html.contains("NaN") && !html.contains("inf"), "a figure is no number");
    }

    #[test]
    fn a_papers_report_comes_first() {
        let lead = "## A paper\n\n| load | ours |\n|---|---|\n| get | 7 k/s |\n\n- **holds**: a < b\n";
        let html = page(&RunSummary::new(&[stored()]), Some(lead));
        let papers = html.find(r#"<section id="papers">"#).unwrap();
        assert!(papers < html.find(r#"<section id="overview">"#).unwrap());
        for part in ["<h2>A paper</h2>", "<td>7 k/s</td>", "<strong>holds</strong>: a &lt; b"] {
            assert!(html.contains(part), "{part}");
        }
    }
}
