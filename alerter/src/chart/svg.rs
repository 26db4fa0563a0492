//! Draws the chart: the page, its heading, panels and axes.

use core::fmt::Write as _;

use super::line;
use super::look::{Ink, Look, Measures, width_of};
use super::marks::Rows;
use super::scale::Scale;
use super::track::{Column, columns};
use super::{Bar, Chart, Heading, Panel};
use crate::markup::escape;

/// The width of a cell in pixels: a finer one is not visible with a line of 1.5.
const CELL: f64 = 2.0;
/// How far a band may extend the scale on either side, as a share of the range of values.
const BAND_WIDENS: f64 = 0.5;
/// The most suspects that are drawn.
const MAX_BARS: usize = 3;
/// The most characters of the label of a bar.
const BAR_LABEL_MAX: usize = 40;

/// A drawing in progress.
pub(super) struct Canvas<'a> {
    pub(super) chart: &'a Chart<'a>,
    pub(super) m: &'static Measures,
    pub(super) ink: &'static Ink,
    pub(super) out: String,
}

/// The chart as one `<svg>` element, which is also a stand-alone document.
pub fn svg(chart: &Chart<'_>, look: Look) -> String {
    let (m, ink) = (look.size.measures(), look.theme.ink());
    let mut canvas = Canvas { chart, m, ink, out: String::with_capacity(16 * 1024) };
    canvas.draw();
    canvas.out
}

impl Canvas<'_> {
    fn draw(&mut self) {
        let (m, chart) = (self.m, self.chart);
        let rows = Rows::arrange(self);
        let headed = chart.heading.as_ref().map_or(0.0, |heading| heading_height(m, heading));
        let top = m.top + headed + m.mark_height() * rows.used as f64;
        let panels = || chart.panels.iter().take(m.panels);
        let fixed = m.height.map(|all| all - top - m.axis_height() - m.name_height());
        let height = |p: &Panel<'_>| match fixed {
            Some(height) => height.max(1.0),
            None if p.leads => m.lead_height,
            None => m.other_height,
        };
        let bottom = top + panels().map(|p| m.name_height() + height(p)).sum::<f64>();
        let positive = |bar: &&Bar| {
            (f64::MIN_POSITIVE..f64::MAX).contains(&bar.value)
                && (f64::MIN_POSITIVE..f64::MAX).contains(&bar.expected)
        };
        let bars: Vec<&Bar> =
            chart.bars.iter().filter(positive).take(if m.bars { MAX_BARS } else { 0 }).collect();
        let total = bottom + m.axis_height() + bars_height(m, bars.len());
        self.open(total);
        if let Some(heading) = &chart.heading {
            self.heading(heading);
        }
        self.spans(top, bottom);
        let mut y = top;
        for panel in panels() {
            self.panel(panel, y + m.name_height(), height(panel));
            y += m.name_height() + height(panel);
        }
        self.steps_axis(bottom);
        self.marks(&rows, m.top + headed, bottom);
        self.bars(&bars, bottom + m.axis_height());
        self.out.push_str("</svg>\n");
    }

    fn open(&mut self, total: f64) {
        let (m, ink, chart) = (self.m, self.ink, self.chart);
        let width = m.width;
        let _ = write!(
            self.out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" viewBox=\"0 0 {width} {total}\" width=\"{width}\" height=\"{total}\" \
             role=\"img\" aria-label=\"{0}\" font-family=\"system-ui, 'DejaVu Sans', sans-serif\" font-size=\"{2}\">\n<title>{0}</title>\n<desc>{1}</desc>\n\
             <rect class=\"paper\" width=\"{width}\" height=\"{total}\" fill=\"{3}\"/>\n",
            escape(&chart.title),
            escape(&chart.description),
            m.text,
            ink.paper,
        );
    }

    /// Draws a tag in the colour of the severity, and the sentence of the incident below it.
    fn heading(&mut self, heading: &Heading) {
        let (m, ink) = (self.m, self.ink);
        let room = m.width - 2.0 * m.right;
        let mut y = m.top + m.text;
        let tag = cut(&heading.tag, room, m.text);
        self.text("word", m.right, y, ink.word(heading.tone), &tag, "start", true);
        for line in wrapped(&heading.sentence, room, m.text, m.title_lines) {
            y += 1.25 * m.text;
            self.text("name", m.right, y, ink.text, &line, "start", false);
        }
    }

    /// Draws escaped text at a position; `bold` for names.
    #[expect(clippy::too_many_arguments, reason = "attributes of one element")]
    pub(super) fn text(
        &mut self,
        class: &str,
        x: f64,
        y: f64,
        fill: &str,
        text: &str,
        anchor: &str,
        bold: bool,
    ) {
        let size = if class == "tick" { self.m.small } else { self.m.text };
        let weight = if bold { " font-weight=\"600\"" } else { "" };
        let _ = writeln!(
            self.out,
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\"{weight} fill=\"{fill}\">{}</text>",
            escape(text),
        );
    }

    /// The distance of a step from the left edge of the picture.
    pub(super) fn x_of(&self, step: i64) -> f64 {
        let (from, to) = (self.chart.steps.0 as f64, self.chart.steps.1 as f64);
        self.m.left + ((step as f64 - from) / (to - from).max(1.0)).clamp(0.0, 1.0) * self.m.inner()
    }

    fn spans(&mut self, top: f64, bottom: f64) {
        let steps = self.chart.steps;
        for span in self.chart.spans.iter().filter(|s| s.to >= steps.0 && s.from <= steps.1) {
            let (from, to) = (self.x_of(span.from), self.x_of(span.to));
            let _ = writeln!(
                self.out,
                "<rect class=\"span {}\" x=\"{from:.1}\" y=\"{top}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\" fill-opacity=\"0.09\"/>",
                span.tone.class(),
                (to - from).max(1.5),
                bottom - top,
                self.ink.mark(span.tone),
            );
        }
    }

    fn panel(&mut self, panel: &Panel<'_>, top: f64, height: f64) {
        let (m, ink) = (self.m, self.ink);
        let inner = m.inner();
        let drawn = columns(&panel.points, self.chart.steps, inner, CELL.max(m.line));
        let scale = scale_of(panel, &drawn);
        let y_of = |v: f64| top + (1.0 - scale.at(v)) * height;
        let log = if scale.is_log() { " (logarithmic)" } else { "" };
        let name = format!("{}{log}", panel.label);
        self.text("name", m.left, top - 0.35 * m.text, ink.soft, &name, "start", true);
        // Without a finite value there is no scale.
        let empty = !drawn.iter().any(|c| c.low <= c.high);
        let about = if panel.leads { m.ticks.0 } else { m.ticks.1 };
        for (v, text) in if empty { Vec::new() } else { scale.ticks(about) } {
            let y = y_of(v);
            let right = m.left + inner;
            let _ = writeln!(
                self.out,
                "<line class=\"grid\" x1=\"{}\" x2=\"{right:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"{}\"/>",
                m.left, ink.grid
            );
            self.text("tick", m.left - 7.0, y + 0.36 * m.small, ink.soft, &text, "end", false);
        }
        self.band(panel, &y_of);
        let _ = writeln!(
            self.out,
            "<rect class=\"frame\" x=\"{}\" y=\"{top}\" width=\"{inner}\" height=\"{height:.1}\" fill=\"none\" stroke=\"{}\"/>",
            m.left, ink.grid
        );
        line::draw(self, &drawn, &y_of);
        line::strip(self, &drawn, top);
        if empty {
            let words = if drawn.is_empty() { "nothing was reported here" } else { "no finite value" };
            let (x, y) = (m.left + inner / 2.0, top + height / 2.0 + 0.36 * m.small);
            self.text("tick", x, y, ink.soft, words, "middle", false);
        }
        if let Some(expected) = panel.expected.filter(|e| e.value.is_finite()) {
            let (from, y) = (self.x_of(expected.from), y_of(expected.value));
            let _ = writeln!(
                self.out,
                "<line class=\"expected\" x1=\"{from:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"{}\" stroke-width=\"{}\" \
                 stroke-dasharray=\"{} {}\"/>",
                m.left + inner,
                ink.expected,
                m.line,
                3.4 * m.line,
                2.6 * m.line,
            );
        }
    }

    /// The legend for shades and dashes, if the chart stands alone.
    fn key(&self) -> &'static str {
        let panels = || self.chart.panels.iter().take(self.m.panels);
        let band = panels().any(|p| p.usual.is_some() || !p.band.is_empty());
        let expected = panels().any(|p| p.expected.is_some_and(|e| e.value.is_finite()));
        match (band, expected) {
            _ if self.chart.heading.is_none() => "",
            (true, true) => "shaded: usual, dashed: expected",
            (true, false) => "shaded: usual",
            (false, true) => "dashed: expected",
            (false, false) => "",
        }
    }

    /// Draws the usual range: by step if that is known, else over the whole width.
    fn band(&mut self, panel: &Panel<'_>, y_of: &dyn Fn(f64) -> f64) {
        let (m, ink) = (self.m, self.ink);
        let steps = self.chart.steps;
        let shown = || panel.band.iter().filter(|b| (steps.0..=steps.1).contains(&b.step));
        if shown().nth(1).is_some() {
            let mut path = String::new();
            for (i, b) in shown().enumerate() {
                let command = if i == 0 { 'M' } else { 'L' };
                let _ = write!(path, "{command}{:.1},{:.1}", self.x_of(b.step), y_of(b.high));
            }
            for b in panel.band.iter().rev().filter(|b| (steps.0..=steps.1).contains(&b.step)) {
                let _ = write!(path, "L{:.1},{:.1}", self.x_of(b.step), y_of(b.low));
            }
            let _ = writeln!(
                self.out,
                "<path class=\"usual\" d=\"{path}Z\" fill=\"{}\" fill-opacity=\"0.16\"/>",
                ink.line
            );
        } else if let Some((low, high)) = panel.usual {
            let (top, bottom) = (y_of(high), y_of(low));
            let _ = writeln!(
                self.out,
                "<rect class=\"usual\" x=\"{}\" y=\"{top:.1}\" width=\"{}\" height=\"{:.1}\" fill=\"{}\" fill-opacity=\"0.14\"/>",
                m.left,
                m.inner(),
                (bottom - top).max(1.0),
                ink.line
            );
        }
    }

    fn steps_axis(&mut self, y: f64) {
        let (m, ink, steps) = (self.m, self.ink, self.chart.steps);
        let ticks = Scale::steps(steps.0 as f64, steps.1 as f64).ticks(m.ticks.2);
        let under = y + 5.0 + m.small;
        for (step, _) in ticks.iter().filter(|(step, _)| step.fract() == 0.0) {
            let x = self.x_of(*step as i64);
            let _ = writeln!(
                self.out,
                "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{y:.1}\" y2=\"{:.1}\" stroke=\"{}\"/>",
                y + 4.0,
                ink.soft
            );
            let text = (*step as i64).to_string();
            // A label at an edge would be cut off.
            let half = width_of(&text, m.small, false) / 2.0;
            let x = x.min(m.width - half - 2.0);
            self.text("tick", x, under, ink.soft, &text, "middle", false);
        }
        let right = m.left + m.inner();
        let last = under + m.small + 3.0;
        self.text("tick", right, last, ink.soft, "step", "end", false);
        let key = self.key();
        if !key.is_empty() {
            self.text("tick", m.left, last, ink.soft, key, "start", false);
        }
    }

    /// Draws suspects, each with a bar for its value and a stroke at the expected value.
    fn bars(&mut self, bars: &[&Bar], top: f64) {
        let (m, ink) = (self.m, self.ink);
        if bars.is_empty() {
            return;
        }
        let mut y = top + m.name_height();
        self.text(
            "name",
            m.left,
            y - 0.35 * m.text,
            ink.soft,
            "Suspects beside what was expected of them",
            "start",
            true,
        );
        let most = bars.iter().map(|b| b.value.max(b.expected)).fold(f64::MIN_POSITIVE, f64::max);
        let (label, words) = (0.30 * m.inner(), 0.16 * m.inner());
        let room = m.inner() - label - words;
        for bar in bars {
            let at = |v: f64| m.left + label + (v / most).clamp(0.0, 1.0) * room;
            let baseline = y + m.text;
            let name: String = bar.label.chars().take(BAR_LABEL_MAX).collect();
            let name = cut(&name, label - 8.0, m.text);
            self.text("tick", m.left, baseline, ink.text, &name, "start", false);
            let (zero, value, expected) = (at(0.0), at(bar.value), at(bar.expected));
            let _ = writeln!(
                self.out,
                "<rect class=\"dot\" x=\"{zero:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{}\" fill=\"{}\"/>\
                 <line class=\"expected\" x1=\"{expected:.1}\" x2=\"{expected:.1}\" y1=\"{y:.1}\" y2=\"{:.1}\" stroke=\"{}\" stroke-width=\"2\"/>",
                y + 2.0,
                (value - zero).max(1.0),
                m.text,
                ink.line,
                y + m.text + 4.0,
                ink.expected,
            );
            self.text("tick", value.max(expected) + 8.0, baseline, ink.text, &bar.text, "start", false);
            y += m.text + 10.0;
        }
    }
}

fn heading_height(m: &Measures, heading: &Heading) -> f64 {
    let lines = wrapped(&heading.sentence, m.width - 2.0 * m.right, m.text, m.title_lines).len();
    m.text * (1.0 + 1.25 * lines as f64) + 0.5 * m.text
}

fn bars_height(m: &Measures, bars: usize) -> f64 {
    if bars == 0 { 0.0 } else { m.name_height() + bars as f64 * (m.text + 10.0) + 6.0 }
}

/// The scale for all drawn and expected values. A band extends it only as far as the signal stays
/// readable.
fn scale_of(panel: &Panel<'_>, drawn: &[Column]) -> Scale {
    let values: Vec<f64> =
        drawn.iter().flat_map(|c| [c.low, c.high]).chain(panel.expected.map(|e| e.value)).collect();
    let finite = || values.iter().copied().filter(|v| v.is_finite());
    let (low, high) = (finite().fold(f64::INFINITY, f64::min), finite().fold(f64::NEG_INFINITY, f64::max));
    let room = BAND_WIDENS * (high - low);
    let band =
        panel.band.iter().flat_map(|b| [b.low, b.high]).filter(|v| (low - room..=high + room).contains(v));
    Scale::over(finite().chain(band))
}

/// Truncates a line to the available width, with an ellipsis.
fn cut(text: &str, room: f64, size: f64) -> String {
    if width_of(text, size, false) <= room {
        return text.to_owned();
    }
    let mut out = String::new();
    for c in text.chars() {
        out.push(c);
        if width_of(&out, size, false) + size > room {
            break;
        }
    }
    format!("{}…", out.trim_end())
}

/// Wraps a sentence into at most `lines` lines; the rest is truncated with an ellipsis.
fn wrapped(sentence: &str, room: f64, size: f64, lines: usize) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let mut words = sentence.split_whitespace().peekable();
    while let Some(first) = words.next() {
        let mut line = first.to_owned();
        if out.len() + 1 == lines {
            words.by_ref().for_each(|word| line = format!("{line} {word}"));
        }
        while let Some(word) = words.next_if(|word| width_of(&format!("{line} {word}"), size, false) <= room)
        {
            line = format!("{line} {word}");
        }
        out.push(cut(&line, room, size));
        if out.len() == lines {
            break;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_sentence_is_wrapped_at_words_and_cut_at_the_end() {
        let text = "the loss rose from 2.31 to 9.7 within two steps and has not come back for forty steps since then";
        let lines = wrapped(text, 400.0, 20.0, 2);
        assert_eq!(lines.len(), 2);
        assert!(lines[0].starts_with("the loss rose") && !lines[0].ends_with('…'), "{lines:?}");
        assert!(lines[1].ends_with('…'), "{lines:?}");
        assert!(lines.iter().all(|line| width_of(line, 20.0, false) <= 400.0), "{lines:?}");
        assert_eq!(wrapped("short", 400.0, 20.0, 2), ["short"]);
        assert_eq!(wrapped("", 400.0, 20.0, 2), [""; 0]);
    }

    proptest! {
        #[test]
        fn no_line_is_wider_than_its_room(text in ".{0,200}", lines in 1usize..4) {
            let wrapped = wrapped(&text, 300.0, 12.0, lines);
            prop_assert!(wrapped.len() <= lines);
            prop_assert!(wrapped.iter().all(|line| width_of(line, 12.0, false) <= 300.0 + 12.0));
        }
    }
}
