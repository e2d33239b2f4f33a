//! # Plot: bars and curves as SVG text
//!
//! The pictures are small and use the style of their page. Colours are CSS variables (`--s-NAME` of
//! a store), so that one picture serves light and dark pages. Coordinates are units of a `viewBox`
//! that is about as wide as the shown picture in pixels.

use std::fmt::Write;

use crate::promise_table::number;

/// Width of every picture.
const WIDTH: f64 = 440.0;

/// A horizontal bar.
pub(super) struct PlotBar {
    /// Label of the bar, and name of its colour.
    pub(super) title: String,
    pub(super) colour: String,
    pub(super) value: f64,
    /// Extremes of the values behind `value`.
    pub(super) least: f64,
    pub(super) most: f64,
    /// A second figure, drawn as an outline.
    pub(super) outline: Option<f64>,
    /// Whether the store is an engine of Sheaf, which is set in bold.
    pub(super) is_ours: bool,
}

/// Escapes text for attributes and elements.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Returns horizontal bars, one below the other, with their values at the ends.
pub(super) fn bars(bars: &[PlotBar], unit: &str) -> String {
    const ROW: f64 = 24.0;
    const LEFT: f64 = 104.0;
    const RIGHT: f64 = 78.0;
    let largest = bars.iter().map(|bar| bar.most.max(bar.outline.unwrap_or(0.0))).fold(0.0, f64::max);
    let scale = (WIDTH - LEFT - RIGHT) / if largest > 0.0 { largest } else { 1.0 };
    let height = ROW * bars.len() as f64 + 4.0;
    let mut svg = open(height);
    for (row, bar) in bars.iter().enumerate() {
        let (top, colour) = (row as f64 * ROW + 4.0, &bar.colour);
        let (middle, length) = (top + 8.5, bar.value * scale);
        let label = if bar.is_ours { "label ours" } else { "label" };
        let title = escaped(&bar.title);
        let mut tip = format!("{title}: {} {unit}", number(bar.value));
        if bar.most > bar.least {
            let _ = write!(tip, " ({} to {})", number(bar.least), number(bar.most));
        }
        if let Some(ghost) = bar.outline {
            let _ = write!(tip, "; unsynced {}", number(ghost));
        }
        let _ = write!(svg, "<g><title>{tip}</title>");
        let _ = write!(
            svg,
            r#"<text class="{label}" x="{:.1}" y="{:.1}">{title}</text>"#,
            LEFT - 8.0,
            middle + 4.0
        );
        let _ = write!(
            svg,
            r#"<rect x="{LEFT}" y="{top:.1}" width="{:.1}" height="17" rx="2" style="fill:var(--s-{colour})"/>"#,
            length.max(1.0)
        );
        let mut end = length;
        if let Some(ghost) = bar.outline.map(|ghost| ghost * scale) {
            let _ = write!(
                svg,
                r#"<rect class="ghost" x="{LEFT}" y="{:.1}" width="{:.1}" height="15" rx="2"/>"#,
                top + 1.0,
                ghost.max(1.0)
            );
            end = end.max(ghost);
        }
        if bar.most > bar.least {
            let (from, to) = (LEFT + bar.least * scale, LEFT + bar.most * scale);
            let _ = write!(
                svg,
                r#"<path class="whisker" d="M{from:.1} {middle:.1}H{to:.1}M{from:.1} {:.1}v6M{to:.1} {:.1}v6"/>"#,
                middle - 3.0,
                middle - 3.0
            );
            end = end.max(bar.most * scale);
        }
        let _ = write!(
            svg,
            r#"<text class="value" x="{:.1}" y="{:.1}">{}</text></g>"#,
            LEFT + end + 6.0,
            middle + 4.0,
            number(bar.value)
        );
    }
    svg + "</svg>"
}

/// A curve.
pub(super) struct PlotCurve {
    pub(super) title: String,
    pub(super) colour: String,
    pub(super) is_ours: bool,
    /// Points: the position of a tick, and a value.
    pub(super) points: Vec<(f64, f64)>,
}

/// Scale of the values.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PlotScale {
    /// Linear, from zero.
    Linear,
    /// Logarithmic, by decades.
    Log,
}

const LEFT: f64 = 52.0;
const TOP: f64 = 10.0;
const HEIGHT: f64 = 190.0;
const BOTTOM: f64 = 36.0;
const END: f64 = WIDTH - 28.0;

/// Returns curves over equally spaced ticks. `value` formats a figure on the axis.
pub(super) fn curves(
    ticks: &[String],
    along: &str,
    scale: PlotScale,
    value: fn(f64) -> String,
    curves: &[PlotCurve],
) -> String {
    let values = || curves.iter().flat_map(|curve| curve.points.iter().map(|point| point.1));
    let lines = grid(scale, values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
    let (low, high) = (lines.first().copied().unwrap_or(0.0), lines.last().copied().unwrap_or(1.0));
    let up = |value: f64| {
        let share = match scale {
            PlotScale::Linear => (value - low) / (high - low),
            PlotScale::Log => (value.max(low) / low).log10() / (high / low).log10(),
        };
        TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - share)
    };
    let step = (END - LEFT) / (ticks.len().max(2) - 1) as f64;
    let mut svg = open(HEIGHT);
    for line in &lines {
        let y = up(*line);
        let _ = write!(svg, r#"<path class="grid" d="M{LEFT} {y:.1}H{END}"/>"#);
        let _ = write!(
            svg,
            r#"<text class="tick y" x="{:.1}" y="{:.1}">{}</text>"#,
            LEFT - 6.0,
            y + 3.5,
            value(*line)
        );
    }
    for (place, tick) in ticks.iter().enumerate() {
        let _ = write!(
            svg,
            r#"<text class="tick x" x="{:.1}" y="{:.1}">{}</text>"#,
            LEFT + place as f64 * step,
            HEIGHT - BOTTOM + 15.0,
            escaped(tick)
        );
    }
    let _ = write!(
        svg,
        r#"<text class="tick x" x="{:.1}" y="{:.1}">{}</text>"#,
        f64::midpoint(LEFT, END),
        HEIGHT - 5.0,
        escaped(along)
    );
    // Our curves are drawn last, so that they are on top.
    for curve in curves.iter().filter(|c| !c.is_ours).chain(curves.iter().filter(|c| c.is_ours)) {
        let points: Vec<(f64, f64)> = curve.points.iter().map(|(x, y)| (LEFT + x * step, up(*y))).collect();
        let path: String = points.iter().map(|(x, y)| format!("{x:.1} {y:.1} ")).collect();
        let class = if curve.is_ours { "curve ours" } else { "curve" };
        let (title, colour) = (escaped(&curve.title), &curve.colour);
        let _ =
            write!(svg, r#"<g style="--c:var(--s-{colour})"><polyline class="{class}" points="{path}"/>"#);
        if points.len() <= 12 {
            for ((x, y), (place, figure)) in points.iter().zip(&curve.points) {
                let tick = ticks.get(nearest(*place)).map_or("", String::as_str);
                let tip = format!("{title}, {}: {}", escaped(tick), value(*figure));
                let _ = write!(svg, r#"<circle cx="{x:.1}" cy="{y:.1}" r="3"><title>{tip}</title></circle>"#);
            }
        }
        svg += "</g>";
    }
    svg + "</svg>"
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the place of a tick")]
fn nearest(place: f64) -> usize {
    place.round() as usize
}

fn open(height: f64) -> String {
    format!(r#"<svg viewBox="0 0 {WIDTH} {height}" role="img">"#)
}

/// Returns grid lines that enclose all values from `least` to `most`: decades, or about five round
/// steps.
fn grid(scale: PlotScale, least: f64, most: f64) -> Vec<f64> {
    if scale == PlotScale::Log {
        let low = if least.is_finite() && least > 0.0 { least.log10().floor() } else { 0.0 };
        let high = most.max(1e-9).log10().ceil().max(low + 1.0);
        let mut lines = Vec::new();
        let mut exponent = low;
        while exponent <= high {
            lines.push(10f64.powf(exponent));
            exponent += 1.0;
        }
        return lines;
    }
    let most = if most > 0.0 { most } else { 1.0 };
    let power = 10f64.powf((most / 4.0).log10().floor());
    let step =
        [1.0, 2.0, 2.5, 5.0, 10.0].map(|times| times * power).into_iter().find(|step| step * 5.0 >= most);
    let step = step.unwrap_or(most);
    let mut lines = vec![0.0];
    while lines.last().is_some_and(|line| *line < most) {
        lines.push(lines.len() as f64 * step);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(value: f64, ghost: Option<f64>) -> PlotBar {
        let (title, colour) = ("A & B".to_owned(), "flat".to_owned());
        PlotBar { title, colour, value, least: value * 0.9, most: value * 1.1, outline: ghost, is_ours: true }
    }

    #[test]
    fn bars_keep_within_the_picture_and_escape_their_titles() {
        let svg = bars(&[bar(5.0, None), bar(50.0, Some(70.0)), bar(0.0, None)], "k/s");
        assert!(svg.contains("A &amp; B") && !svg.contains("A & B"));
        assert!(svg.contains("unsynced 70"));
        for part in svg.split("width=\"").skip(1) {
            let width: f64 = part.split('"').next().unwrap().parse().unwrap();
            assert!(width <= WIDTH, "{width}");
        }
    }

    #[test]
    fn grids_hold_what_they_are_for() {
        assert_eq!(grid(PlotScale::Log, 0.3, 450.0), [0.1, 1.0, 10.0, 100.0, 1000.0]);
        assert_eq!(grid(PlotScale::Linear, 0.0, 430.0), [0.0, 100.0, 200.0, 300.0, 400.0, 500.0]);
        assert_eq!(grid(PlotScale::Log, f64::INFINITY, 0.0).len(), 2);
        assert_eq!(grid(PlotScale::Linear, 0.0, 0.0).first(), Some(&0.0));
    }

    #[test]
    fn curves_stay_within_the_picture() {
        let points = vec![(0.0, 1.0), (1.0, 900.0), (2.0, 0.2)];
        let curve = PlotCurve { title: "x".to_owned(), colour: "lmdb".to_owned(), is_ours: false, points };
        let ticks = ["a", "b", "c"].map(str::to_owned);
        let svg = curves(&ticks, "quantile", PlotScale::Log, number, &[curve]);
        for part in svg.split("cy=\"").skip(1) {
            let y: f64 = part.split('"').next().unwrap().parse().unwrap();
            assert!((0.0..=HEIGHT).contains(&y), "{y}");
        }
        assert_eq!(svg.matches("<circle").count(), 3);
    }
}
