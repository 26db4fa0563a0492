//! Draws the signal of a panel: its line, and values that are not finite.

use core::fmt::Write as _;

use super::look::Tone;
use super::svg::Canvas;
use super::track::Column;

/// Up to this number of columns, each gets a dot.
const DOTS_UP_TO: usize = 90;
/// The factor of the usual distance from which two columns are not joined, because nothing was
/// reported between them.
const GAP: f64 = 8.0;
/// The number of distances from which there is a usual one.
const GAP_FROM: usize = 12;

/// Draws the line of the signal. It is broken where an attempt ends, where no value was finite, and
/// where nothing was reported.
pub(super) fn draw(canvas: &mut Canvas<'_>, drawn: &[Column], y_of: &dyn Fn(f64) -> f64) {
    let (left, width, colour) = (canvas.m.left, canvas.m.line, canvas.ink.line);
    let newest = drawn.last().map_or(0, |c| c.attempt);
    let gap = gap(drawn);
    for attempt in drawn.chunk_by(|a, b| a.attempt == b.attempt) {
        let mut path = String::new();
        let mut pen: Option<f64> = None;
        for c in attempt {
            if c.low > c.high {
                pen = None;
                continue;
            }
            let joined = pen.is_some_and(|before| c.begins - before <= gap);
            let command = if joined { 'L' } else { 'M' };
            let (x, low, high) = (left + c.x, y_of(c.low), y_of(c.high));
            // The line runs through the last value; the range of the column is a vertical stroke on
            // it.
            let last = if c.last.is_finite() { y_of(c.last) } else { high };
            let _ = write!(path, "{command}{x:.1},{last:.1}");
            if (low - high).abs() >= 0.1 {
                let _ = write!(path, "V{low:.1}V{high:.1}V{last:.1}");
            }
            pen = Some(c.x);
        }
        if path.is_empty() {
            continue;
        }
        // Earlier attempts are drawn paler.
        let opacity = if attempt.first().is_some_and(|c| c.attempt == newest) { "1" } else { "0.45" };
        let _ = writeln!(
            canvas.out,
            "<path class=\"line\" d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\" stroke-linejoin=\"round\" stroke-opacity=\"{opacity}\"/>"
        );
    }
    if drawn.len() <= DOTS_UP_TO {
        let r = 1.0 + 0.8 * width;
        for c in drawn.iter().filter(|c| c.low <= c.high) {
            let _ = write!(
                canvas.out,
                "<circle class=\"dot\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"{r:.1}\" fill=\"{colour}\"/>",
                left + c.x,
                y_of(c.last)
            );
        }
        canvas.out.push('\n');
    }
}

/// The distance from which two neighbours are not joined.
fn gap(drawn: &[Column]) -> f64 {
    let within = |pair: &[Column]| (pair[0].attempt == pair[1].attempt).then(|| pair[1].begins - pair[0].x);
    let mut apart: Vec<f64> = drawn.windows(2).filter_map(within).collect();
    if apart.len() < GAP_FROM {
        return f64::INFINITY;
    }
    let middle = apart.len() / 2;
    let (_, usual, _) = apart.select_nth_unstable_by(middle, f64::total_cmp);
    GAP * *usual
}

/// Draws non-finite values, which have no height, at the upper edge.
pub(super) fn strip(canvas: &mut Canvas<'_>, drawn: &[Column], top: f64) {
    let (m, ink) = (canvas.m, canvas.ink);
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
    let (height, wider) = (m.strip(), m.line);
    for (from, to, samples) in &runs {
        let _ = writeln!(
            canvas.out,
            "<rect class=\"bad\" x=\"{:.1}\" y=\"{top}\" width=\"{:.1}\" height=\"{height}\" fill=\"{}\"><title>{samples} NaN or infinite</title></rect>",
            m.left + from - wider,
            (to - from) + 2.0 * wider,
            ink.mark(Tone::Page),
        );
    }
    if let Some((from, ..)) = runs.first() {
        let right = *from > m.inner() - 7.0 * m.small;
        let (anchor, x) = if right { ("end", from - m.line - 4.0) } else { ("start", *from) };
        let y = if right { top + m.small } else { top + height + m.small };
        let _ = writeln!(
            canvas.out,
            "<text class=\"bad\" x=\"{:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{}\" fill=\"{}\">NaN / inf</text>",
            m.left + x,
            m.small,
            ink.word(Tone::Page),
        );
    }
}
