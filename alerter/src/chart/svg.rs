//! The drawing itself.

use core::fmt::Write as _;

use super::scale::Scale;
use super::track::{Column, columns};
use super::{Chart, Mark, Panel, Tone};
use crate::markup::escape;

const WIDTH: f64 = 960.0;
/// Room for the numbers of the value axis, and beyond the last step.
const LEFT: f64 = 64.0;
const RIGHT: f64 = 14.0;
const INNER: f64 = WIDTH - LEFT - RIGHT;
const LEAD_HEIGHT: f64 = 200.0;
const OTHER_HEIGHT: f64 = 72.0;
/// Above a panel, for its name.
const NAME_HEIGHT: f64 = 20.0;
const AXIS_HEIGHT: f64 = 34.0;
/// Rows of captions of marks, and the height of one.
const MARK_ROWS: usize = 4;
const MARK_HEIGHT: f64 = 15.0;
/// Width of a character, about: there is no font to ask.
const CHARACTER: f64 = 6.3;
/// Two points a cell are as fine as a line of 1.5 can show.
const CELL: f64 = 2.0;
/// With fewer columns each gets a dot.
const DOTS_UP_TO: usize = 90;
/// Height of the strip that shows values which are not numbers.
const STRIP: f64 = 7.0;

const LINE: &str = "#1f66c1";
const SOFT: &str = "#5b6570";
const GRID: &str = "#d9dde2";
const BAND: &str = "#1f66c1";

/// The chart as one `<svg>` element, which is a document of its own too.
pub fn svg(chart: &Chart<'_>) -> String {
    let rows = Rows::arrange(chart);
    let top = 6.0 + MARK_HEIGHT * rows.used as f64;
    let heights = chart.panels.iter().map(|p| NAME_HEIGHT + height(p));
    let bottom = top + heights.sum::<f64>();
    let mut out = String::with_capacity(16 * 1024);
    let total = bottom + AXIS_HEIGHT;
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" viewBox=\"0 0 {WIDTH} {total}\" width=\"{WIDTH}\" height=\"{total}\" \
         role=\"img\" aria-label=\"{}\" font-family=\"system-ui, 'DejaVu Sans', sans-serif\" font-size=\"12\">\n<title>{}</title>\n<desc>{}</desc>\n",
        escape(&chart.title),
        escape(&chart.title),
        escape(&chart.description),
    );
    spans(&mut out, chart, top, bottom);
    let mut y = top;
    for panel in &chart.panels {
        draw_panel(&mut out, chart, panel, y + NAME_HEIGHT);
        y += NAME_HEIGHT + height(panel);
    }
    steps_axis(&mut out, chart, bottom);
    for (mark, place) in chart.marks.iter().zip(&rows.places) {
        mark_line(&mut out, chart, mark, place, bottom);
    }
    // Captions are above all lines.
    for (mark, place) in chart.marks.iter().zip(&rows.places) {
        mark_word(&mut out, chart, mark, place);
    }
    out.push_str("</svg>\n");
    out
}

fn height(panel: &Panel<'_>) -> f64 {
    if panel.leads { LEAD_HEIGHT } else { OTHER_HEIGHT }
}

/// The distance of a step from the left edge of the picture.
fn x_of(chart: &Chart<'_>, step: i64) -> f64 {
    let (from, to) = (chart.steps.0 as f64, chart.steps.1 as f64);
    LEFT + ((step as f64 - from) / (to - from).max(1.0)).clamp(0.0, 1.0) * INNER
}

fn spans(out: &mut String, chart: &Chart<'_>, top: f64, bottom: f64) {
    for span in chart.spans.iter().filter(|s| s.to >= chart.steps.0 && s.from <= chart.steps.1) {
        let (from, to) = (x_of(chart, span.from), x_of(chart, span.to));
        let _ = writeln!(
            out,
            "<rect class=\"span {}\" x=\"{from:.1}\" y=\"{top}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\" fill-opacity=\"0.09\"/>",
            span.tone.class(),
            (to - from).max(1.5),
            bottom - top,
            span.tone.colour(),
        );
    }
}

fn draw_panel(out: &mut String, chart: &Chart<'_>, panel: &Panel<'_>, top: f64) {
    let height = height(panel);
    let drawn = columns(panel.points, chart.steps, INNER, CELL);
    let scale = scale_of(panel, &drawn);
    let y_of = |v: f64| top + (1.0 - scale.at(v)) * height;
    let log = if scale.is_log() { " (logarithmic)" } else { "" };
    let _ = writeln!(
        out,
        "<text class=\"name\" x=\"{LEFT}\" y=\"{:.1}\" font-weight=\"600\" fill=\"{SOFT}\">{}{log}</text>",
        top - 6.0,
        escape(&panel.label),
    );
    // Without a number there is nothing to measure by.
    let empty = !drawn.iter().any(|c| c.low <= c.high);
    let about = if panel.leads { 5 } else { 2 };
    for (v, text) in if empty { Vec::new() } else { scale.ticks(about) } {
        let y = y_of(v);
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"{GRID}\"/>\
             <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" font-size=\"11\" fill=\"{SOFT}\">{text}</text>",
            LEFT + INNER,
            LEFT - 7.0,
            y + 4.0,
        );
    }
    if let Some((low, high)) = panel.usual {
        let (top, bottom) = (y_of(high), y_of(low));
        let _ = writeln!(
            out,
            "<rect class=\"usual\" x=\"{LEFT}\" y=\"{top:.1}\" width=\"{INNER}\" height=\"{:.1}\" fill=\"{BAND}\" fill-opacity=\"0.10\"/>",
            (bottom - top).max(1.0),
        );
    }
    let _ = writeln!(
        out,
        "<rect class=\"frame\" x=\"{LEFT}\" y=\"{top}\" width=\"{INNER}\" height=\"{height}\" fill=\"none\" stroke=\"{GRID}\"/>"
    );
    line(out, &drawn, &y_of);
    strip(out, &drawn, top);
    if empty {
        let words = if drawn.is_empty() { "nothing was reported here" } else { "no finite value" };
        let _ = writeln!(
            out,
            "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"{SOFT}\">{words}</text>",
            LEFT + INNER / 2.0,
            top + height / 2.0 + 4.0,
        );
    }
    if let Some(expected) = panel.expected.filter(|e| e.value.is_finite()) {
        let (from, y) = (x_of(chart, expected.from), y_of(expected.value));
        let _ = writeln!(
            out,
            "<line class=\"expected\" x1=\"{from:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#22272e\" stroke-width=\"1.5\" stroke-dasharray=\"5 4\"/>",
            LEFT + INNER,
        );
    }
}

/// Everything that is drawn, and what was expected if that is not out of all proportion.
fn scale_of(panel: &Panel<'_>, drawn: &[Column]) -> Scale {
    let values = drawn.iter().flat_map(|c| [c.low, c.high]);
    Scale::over(values.chain(panel.expected.map(|e| e.value)))
}

/// The line of the signal, broken where an attempt ends and where there was no number.
fn line(out: &mut String, drawn: &[Column], y_of: &dyn Fn(f64) -> f64) {
    let newest = drawn.last().map_or(0, |c| c.attempt);
    for attempt in drawn.chunk_by(|a, b| a.attempt == b.attempt) {
        let mut path = String::new();
        let mut pen_down = false;
        for c in attempt {
            if c.low > c.high {
                pen_down = false;
                continue;
            }
            let command = if pen_down { 'L' } else { 'M' };
            let (x, low, high) = (LEFT + c.x, y_of(c.low), y_of(c.high));
            // The line runs through the last value; what else was there hangs on it.
            let last = if c.last.is_finite() { y_of(c.last) } else { high };
            let _ = write!(path, "{command}{x:.1},{last:.1}");
            if (low - high).abs() >= 0.1 {
                let _ = write!(path, "V{low:.1}V{high:.1}V{last:.1}");
            }
            pen_down = true;
        }
        if path.is_empty() {
            continue;
        }
        // An attempt that was given up is still there, and paler.
        let opacity = if attempt.first().is_some_and(|c| c.attempt == newest) { "1" } else { "0.45" };
        let _ = writeln!(
            out,
            "<path class=\"line\" d=\"{path}\" fill=\"none\" stroke=\"{LINE}\" stroke-width=\"1.5\" stroke-linejoin=\"round\" stroke-opacity=\"{opacity}\"/>"
        );
    }
    if drawn.len() <= DOTS_UP_TO {
        for c in drawn.iter().filter(|c| c.low <= c.high) {
            let _ = write!(
                out,
                "<circle class=\"dot\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.2\" fill=\"{LINE}\"/>",
                LEFT + c.x,
                y_of(c.last)
            );
        }
        out.push('\n');
    }
}

/// Values that are not numbers have no height: they are drawn at the upper edge.
fn strip(out: &mut String, drawn: &[Column], top: f64) {
    let mut runs: Vec<(f64, f64, u32)> = Vec::new();
    let mut before = false;
    for c in drawn {
        let bad = c.nonfinite > 0;
        match runs.last_mut().filter(|_| bad && before) {
            Some(run) => (run.1, run.2) = (c.x, run.2.saturating_add(c.nonfinite)),
            None if bad => runs.push((c.x, c.x, c.nonfinite)),
            None => {}
        }
        before = bad;
    }
    for (from, to, samples) in &runs {
        let _ = writeln!(
            out,
            "<rect class=\"bad\" x=\"{:.1}\" y=\"{top}\" width=\"{:.1}\" height=\"{STRIP}\" fill=\"{}\"><title>{samples} NaN or infinite</title></rect>",
            LEFT + from - 1.5,
            (to - from) + 3.0,
            Tone::Page.colour(),
        );
    }
    if let Some((from, ..)) = runs.first() {
        let right = *from > INNER - 60.0;
        let (anchor, x) = if right { ("end", from - 5.0) } else { ("start", *from) };
        let _ = writeln!(
            out,
            "<text class=\"bad\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" font-size=\"10\" fill=\"{}\">NaN / inf</text>",
            LEFT + x,
            top + STRIP + 11.0,
            Tone::Page.colour(),
        );
    }
}

fn steps_axis(out: &mut String, chart: &Chart<'_>, y: f64) {
    let (from, to) = (chart.steps.0 as f64, chart.steps.1 as f64);
    let ticks = Scale::steps(from, to).ticks(8);
    for (step, _) in ticks.iter().filter(|(step, _)| step.fract() == 0.0) {
        let x = x_of(chart, *step as i64);
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{y:.1}\" y2=\"{:.1}\" stroke=\"{SOFT}\"/>\
             <text class=\"tick\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"11\" fill=\"{SOFT}\">{}</text>",
            y + 4.0,
            y + 16.0,
            *step as i64,
        );
    }
    let _ = writeln!(
        out,
        "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" font-size=\"11\" fill=\"{SOFT}\">step</text>",
        LEFT + INNER,
        y + 30.0
    );
}

/// The place of a mark's caption; none if all rows are taken.
#[derive(Debug, Clone, Copy)]
struct Place {
    row: Option<usize>,
    x: f64,
    ends_here: bool,
}

#[derive(Debug)]
struct Rows {
    places: Vec<Place>,
    used: usize,
}

impl Rows {
    /// From left to right, each caption in the first row where it has room.
    fn arrange(chart: &Chart<'_>) -> Self {
        let mut order: Vec<usize> = (0..chart.marks.len()).collect();
        order.sort_by_key(|i| chart.marks[*i].step);
        let mut taken = [f64::NEG_INFINITY; MARK_ROWS];
        let mut places = vec![Place { row: None, x: 0.0, ends_here: false }; chart.marks.len()];
        let mut used = 0;
        for i in order {
            let mark = &chart.marks[i];
            let x = x_of(chart, mark.step);
            let width = mark.label.chars().count() as f64 * CHARACTER + 8.0;
            let ends_here = x + width > WIDTH;
            let (from, to) = if ends_here { (x - width, x) } else { (x, x + width) };
            let row = taken.iter().position(|end| *end <= from);
            if let Some(row) = row {
                taken[row] = to + 4.0;
                used = used.max(row + 1);
            }
            places[i] = Place { row, x, ends_here };
        }
        Self { places, used }
    }
}

/// The baseline of a row.
fn base(row: usize) -> f64 {
    4.0 + MARK_HEIGHT * (row + 1) as f64
}

fn is_shown(chart: &Chart<'_>, mark: &Mark) -> bool {
    (chart.steps.0..=chart.steps.1).contains(&mark.step)
}

fn mark_line(out: &mut String, chart: &Chart<'_>, mark: &Mark, place: &Place, bottom: f64) {
    if !is_shown(chart, mark) {
        return;
    }
    let top = base(place.row.unwrap_or(MARK_ROWS - 1)) - 10.0;
    let dash = if mark.tone == Tone::Onset { " stroke-dasharray=\"3 3\"" } else { "" };
    let _ = writeln!(
        out,
        "<line class=\"mark {}\" x1=\"{2:.1}\" x2=\"{2:.1}\" y1=\"{top:.1}\" y2=\"{bottom:.1}\" stroke=\"{1}\" stroke-width=\"1.3\"{dash}/>",
        mark.tone.class(),
        mark.tone.colour(),
        place.x,
    );
}

fn mark_word(out: &mut String, chart: &Chart<'_>, mark: &Mark, place: &Place) {
    let Some(row) = place.row.filter(|_| is_shown(chart, mark)) else { return };
    let (open, close) = match &mark.href {
        Some(href) => (format!("<a href=\"{}\">", escape(href)), "</a>"),
        None => (String::new(), ""),
    };
    let (anchor, at) = if place.ends_here { ("end", place.x - 4.0) } else { ("start", place.x + 4.0) };
    let _ = writeln!(
        out,
        "{open}<text class=\"word {}\" x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" font-size=\"11\" font-weight=\"600\" fill=\"{}\">{}</text>{close}",
        mark.tone.class(),
        base(row),
        mark.tone.colour(),
        escape(&mark.label)
    );
}
