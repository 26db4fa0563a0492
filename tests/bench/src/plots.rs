//! The pictures of a report.

use crate::curves::{Curve, Point};
use crate::label::Urgency;
use crate::score::{RUN_WEEK, Tally, share};
use crate::svg::{Anchor, FAINT, GREY, INK, Svg};

const NOTICED: &str = "#0969da";
const PAGED: &str = "#cf222e";
/// Behind the sizes that a person would have looked at, and acted on.
const WARN: &str = "#fff8c5";
const ACT: &str = "#ffebe9";

const COLUMNS: usize = 4;
const PANEL: (f64, f64) = (300.0, 190.0);
const TOP: f64 = 70.0;

/// Small multiples: of each fault, the share of runs in which it was noticed and paged, over its
/// size.
pub fn faults(curves: &[Curve]) -> String {
    let rows = curves.len().div_ceil(COLUMNS) as f64;
    let mut svg = Svg::new(PANEL.0 * COLUMNS as f64 + 20.0, TOP + PANEL.1 * rows + 10.0);
    svg.text(
        (20.0, 24.0),
        17.0,
        INK,
        Anchor::Start,
        "Injected faults: share of runs in which each was noticed, by its size",
    );
    svg.line((20.0, 44.0), (44.0, 44.0), NOTICED, 2.5);
    svg.text((50.0, 48.0), 12.0, INK, Anchor::Start, "page or ticket");
    svg.line((150.0, 44.0), (174.0, 44.0), PAGED, 2.5);
    svg.text((180.0, 48.0), 12.0, INK, Anchor::Start, "page");
    for (x, colour, words) in [(240.0, WARN, "should be noticed"), (400.0, ACT, "should be a page")] {
        svg.area((x, 36.0), (x + 24.0, 52.0), colour);
        svg.text((x + 30.0, 48.0), 12.0, INK, Anchor::Start, words);
    }
    svg.text(
        (560.0, 48.0),
        12.0,
        GREY,
        Anchor::Start,
        "grey numbers: median samples from onset to the first word",
    );
    for (i, curve) in curves.iter().enumerate() {
        let at = ((i % COLUMNS) as f64 * PANEL.0, TOP + (i / COLUMNS) as f64 * PANEL.1);
        panel(&mut svg, at, curve);
    }
    svg.finish()
}

fn panel(svg: &mut Svg, at: (f64, f64), curve: &Curve) {
    let (left, right) = (at.0 + 46.0, at.0 + PANEL.0 - 14.0);
    let (top, bottom) = (at.1 + 30.0, at.1 + PANEL.1 - 36.0);
    let step = (right - left) / curve.points.len() as f64;
    let x = |i: usize| left + step * (i as f64 + 0.5);
    let y = |share: f64| bottom - (bottom - top) * share;
    for (i, point) in curve.points.iter().enumerate() {
        let colour = match point.urgency {
            Urgency::Info => continue,
            Urgency::Warn => WARN,
            Urgency::Page => ACT,
        };
        svg.area((left + step * i as f64, top), (left + step * (i + 1) as f64, bottom), colour);
    }
    svg.text((left, at.1 + 20.0), 13.0, INK, Anchor::Start, curve.fault);
    for share in [0.0, 0.5, 1.0] {
        svg.line((left, y(share)), (right, y(share)), FAINT, 1.0);
        let percent = format!("{:.0} %", share * 100.0);
        svg.text((left - 6.0, y(share) + 4.0), 10.0, GREY, Anchor::End, &percent);
    }
    for (colour, count) in [(NOTICED, (|p| p.noticed) as fn(&Point) -> usize), (PAGED, |p| p.paged)] {
        let line: Vec<_> =
            curve.points.iter().enumerate().map(|(i, p)| (x(i), y(share(count(p), p.runs)))).collect();
        svg.path(&line, colour, 2.0);
        line.iter().for_each(|at| svg.dot(*at, 3.0, colour));
    }
    for (i, point) in curve.points.iter().enumerate() {
        svg.text((x(i), bottom + 14.0), 10.0, INK, Anchor::Middle, &point.size.to_string());
        if let Some(delay) = point.delay {
            let delay = format!("{delay:.0}");
            svg.text((x(i), bottom + 26.0), 9.0, GREY, Anchor::Middle, &delay);
        }
    }
    svg.text((right, at.1 + 20.0), 10.0, GREY, Anchor::End, curve.unit);
}

/// One dot a detector: what it finds, and how often it cries wolf.
pub fn detectors(title: &str, tallies: &[(String, Tally)]) -> String {
    let (width, height) = (760.0, 420.0);
    let (left, right, top, bottom) = (60.0, width - 30.0, 56.0, height - 56.0);
    /// False alarms a run-week at the left and right end, as powers of ten; none at all stands at
    /// the left end.
    const POWERS: (f64, f64) = (-1.0, 5.0);
    let mut svg = Svg::new(width, height);
    svg.text((20.0, 28.0), 15.0, INK, Anchor::Start, title);
    let x = |alarms: f64| {
        let power = alarms.max(1e-9).log10().clamp(POWERS.0, POWERS.1);
        left + (right - left) * (power - POWERS.0) / (POWERS.1 - POWERS.0)
    };
    let y = |share: f64| bottom - (bottom - top) * share;
    for tenth in [0.0, 0.25, 0.5, 0.75, 1.0] {
        svg.line((left, y(tenth)), (right, y(tenth)), FAINT, 1.0);
        svg.text((left - 6.0, y(tenth) + 4.0), 11.0, GREY, Anchor::End, &format!("{:.0} %", tenth * 100.0));
    }
    for power in POWERS.0 as i32..=POWERS.1 as i32 {
        let alarms = 10f64.powi(power);
        svg.line((x(alarms), top), (x(alarms), bottom), FAINT, 1.0);
        svg.text((x(alarms), bottom + 16.0), 11.0, GREY, Anchor::Middle, &alarms.to_string());
    }
    svg.text(
        (left, bottom + 40.0),
        12.0,
        INK,
        Anchor::Start,
        "false pages and tickets a run-week (120,960 samples)",
    );
    svg.text((left, top - 10.0), 12.0, INK, Anchor::Start, "labels noticed");
    let dots: Vec<_> = tallies
        .iter()
        .map(|(_, t)| {
            let alarms = share(t.false_pages + t.false_tickets, t.samples) * RUN_WEEK;
            (x(alarms), y(t.recall()))
        })
        .collect();
    let mut taken: Vec<Area> = dots.iter().map(|(x, y)| (x - 5.0, y - 5.0, x + 5.0, y + 5.0)).collect();
    for (i, ((name, _), at)) in tallies.iter().zip(&dots).enumerate() {
        svg.dot(*at, if i == 0 { 6.0 } else { 4.0 }, if i == 0 { PAGED } else { NOTICED });
        let (words, area) = place(name, *at, right, &taken);
        taken.push(area);
        svg.text(words, 12.0, INK, Anchor::Start, name);
    }
    svg.finish()
}

/// Left, top, right and bottom.
type Area = (f64, f64, f64, f64);

/// Where the name of a dot covers nothing: beside it, above it or below it.
fn place(name: &str, at: (f64, f64), right: f64, taken: &[Area]) -> ((f64, f64), Area) {
    /// Of a letter, on average.
    const WIDTH: f64 = 7.2;
    let width = WIDTH * name.len() as f64;
    let area = |(x, y): (f64, f64)| (x, y - 10.0, x + width, y + 3.0);
    let free =
        |a: &Area| a.2 <= right && taken.iter().all(|t| a.2 < t.0 || t.2 < a.0 || a.3 < t.1 || t.3 < a.1);
    let beside = (at.0 + 9.0, at.1 + 4.0);
    let above = |n: f64| (at.0 - width / 2.0, at.1 - 9.0 - 13.0 * n);
    let below = |n: f64| (at.0 - width / 2.0, at.1 + 17.0 + 13.0 * n);
    let places = [beside, (at.0 - 9.0 - width, at.1 + 4.0), above(0.0), below(0.0), above(1.0), below(1.0)];
    let best = places.into_iter().find(|p| free(&area(*p))).unwrap_or(beside);
    (best, area(best))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_cover_each_other() {
        let tally =
            |noticed| Tally { samples: 100_000, false_tickets: 10, labels: 100, noticed, ..Tally::default() };
        let tallies: Vec<_> = [50, 51, 52].map(|n| (format!("detector {n}"), tally(n))).into();
        let picture = detectors("title", &tallies);
        let at = |name: &str| {
            let line = picture.lines().find(|l| l.contains(name)).unwrap();
            let number =
                |key: &str| line.split(key).nth(1).unwrap().split('"').next().unwrap().parse().unwrap();
            (number(" x=\""), number(" y=\""))
        };
        let places: Vec<(f64, f64)> = tallies.iter().map(|(n, _)| at(n)).collect();
        for (i, a) in places.iter().enumerate() {
            assert!(
                places[..i].iter().all(|b| (a.0 - b.0).abs() > 80.0 || (a.1 - b.1).abs() > 12.0),
                "{places:?}"
            );
        }
    }
}
