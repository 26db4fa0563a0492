//! Draws marks: a line through all panels, and a caption above.

use core::fmt::Write as _;

use super::Mark;
use super::look::{Measures, Tone, width_of};
use super::svg::Canvas;
use crate::markup::escape;

/// The place of a mark's caption. `row` is `None` if there is no room.
#[derive(Debug, Clone, Copy)]
struct Place {
    row: Option<usize>,
    x: f64,
    ends_here: bool,
}

#[derive(Debug)]
pub(super) struct Rows {
    places: Vec<Place>,
    pub(super) used: usize,
}

impl Rows {
    /// Places the captions in order of importance, each in the first row with room to the right or
    /// left of its line.
    pub(super) fn arrange(canvas: &Canvas<'_>) -> Self {
        let (m, marks) = (canvas.m, &canvas.chart.marks);
        let mut order: Vec<usize> = (0..marks.len()).filter(|i| is_shown(canvas, &marks[*i])).collect();
        order.sort_by_key(|i| (rank(marks[*i].tone), marks[*i].step));
        let mut taken: Vec<Vec<(f64, f64)>> = vec![Vec::new(); m.mark_rows];
        let mut places = vec![Place { row: None, x: 0.0, ends_here: false }; marks.len()];
        let mut used = 0;
        for i in order {
            let x = canvas.x_of(marks[i].step);
            let width = width_of(&marks[i].label, m.small, true) + 8.0;
            let sides = [(false, x, x + width + 4.0), (true, x - width - 4.0, x)];
            let within = sides.iter().filter(|(_, from, to)| *from >= 0.0 && *to <= m.width + 4.0);
            let places_of = |(ends_here, from, to): &(bool, f64, f64)| {
                let free = |row: &Vec<(f64, f64)>| row.iter().all(|(a, b)| to <= a || from >= b);
                taken.iter().position(free).map(|row| (row, *ends_here, *from, *to))
            };
            let found = within.filter_map(places_of).min_by_key(|(row, ..)| *row);
            if let Some((row, _, from, to)) = found {
                taken[row].push((from, to));
                used = used.max(row + 1);
            }
            let ends_here = found.is_some_and(|(_, ends_here, ..)| ends_here);
            places[i] = Place { row: found.map(|(row, ..)| row), x, ends_here };
        }
        Self { places, used }
    }
}

/// The priority of captions; the least important are the first to have no room.
fn rank(tone: Tone) -> u8 {
    match tone {
        Tone::Page => 0,
        Tone::Onset => 1,
        Tone::Over => 2,
        Tone::Ticket | Tone::Info => 3,
        Tone::Note => 4,
    }
}

fn is_shown(canvas: &Canvas<'_>, mark: &Mark) -> bool {
    (canvas.chart.steps.0..=canvas.chart.steps.1).contains(&mark.step)
}

/// The baseline of a row of captions.
fn base(m: &Measures, top: f64, row: usize) -> f64 {
    top - 2.0 + m.mark_height() * (row + 1) as f64
}

impl Canvas<'_> {
    /// Draws the lines first, so that captions are above all of them.
    pub(super) fn marks(&mut self, rows: &Rows, top: f64, bottom: f64) {
        let chart = self.chart;
        for (mark, place) in chart.marks.iter().zip(&rows.places) {
            self.mark_line(mark, *place, rows.used, top, bottom);
        }
        for (mark, place) in chart.marks.iter().zip(&rows.places) {
            self.mark_word(mark, *place, top);
        }
    }

    fn mark_line(&mut self, mark: &Mark, place: Place, used: usize, top: f64, bottom: f64) {
        // A note without room for its caption is left out.
        if !is_shown(self, mark) || mark.tone == Tone::Note && place.row.is_none() {
            return;
        }
        let m = self.m;
        // Without a caption, the line begins at the top of the panels.
        let from =
            place.row.map_or(top + m.mark_height() * used as f64, |row| base(m, top, row) - 0.9 * m.small);
        let dash = match mark.tone {
            Tone::Onset => format!(" stroke-dasharray=\"{0} {0}\"", 2.0 * m.line),
            Tone::Note => format!(" stroke-dasharray=\"{} {}\"", m.line, 2.0 * m.line),
            _ => String::new(),
        };
        let _ = writeln!(
            self.out,
            "<line class=\"mark {}\" x1=\"{2:.1}\" x2=\"{2:.1}\" y1=\"{from:.1}\" y2=\"{bottom:.1}\" stroke=\"{1}\" stroke-width=\"{3}\"{dash}/>",
            mark.tone.class(),
            self.ink.mark(mark.tone),
            place.x,
            0.85 * m.line,
        );
    }

    fn mark_word(&mut self, mark: &Mark, place: Place, top: f64) {
        let Some(row) = place.row.filter(|_| is_shown(self, mark)) else { return };
        let (open, close) = match &mark.href {
            Some(href) => (format!("<a href=\"{}\">", escape(href)), "</a>"),
            None => (String::new(), ""),
        };
        let (m, ink) = (self.m, self.ink);
        let (anchor, at) = if place.ends_here { ("end", place.x - 4.0) } else { ("start", place.x + 4.0) };
        // The outline keeps the caption readable above other lines.
        let _ = writeln!(
            self.out,
            "{open}<text class=\"word {}\" x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" font-size=\"{}\" font-weight=\"600\" fill=\"{}\" \
             stroke=\"{}\" stroke-width=\"3\" stroke-linejoin=\"round\" paint-order=\"stroke\">{}</text>{close}",
            mark.tone.class(),
            base(m, top, row),
            m.small,
            ink.word(mark.tone),
            ink.paper,
            escape(&mark.label)
        );
    }
}
