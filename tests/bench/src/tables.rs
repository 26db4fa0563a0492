//! The tables of a report, in Markdown.

// Writing to a string cannot fail.
use std::fmt::Write as _;

use crate::curves::Curve;
use crate::label::Family;
use crate::score::{Tally, share};

/// One row a detector.
pub fn detectors(tallies: &[(String, Tally)]) -> String {
    let mut out = String::from(
        "| detector | page labels paged | labels noticed | precision | false pages a run-week | false tickets per 10k samples | time in alarm outside labels | median delay, samples: loss / gradients / NaN / speed |\n|---|---|---|---|---|---|---|---|\n",
    );
    for (name, t) in tallies {
        let delay = |family| t.delay(Some(family), 0.5).map_or_else(|| "-".into(), short);
        let delays = [Family::Loss, Family::Grad, Family::Nonfinite, Family::Speed].map(delay).join(" / ");
        let _ = writeln!(
            out,
            "| {name} | {} of {} | {} of {} | {:.2} | {} | {:.2} | {} | {delays} |",
            t.paged,
            t.page_labels,
            t.noticed,
            t.labels,
            t.precision(),
            short(t.false_pages_a_week()),
            t.false_tickets_per_10k(),
            percent(t.alarmed_outside, t.samples - t.labelled),
        );
    }
    out
}

/// One row a fault: what the first detector makes of it.
pub fn faults(curves: &[Curve]) -> String {
    let mut out = String::from(
        "| fault | sizes | noticed in 9 of 10 from | labels noticed | pages paged | precision | delay, samples: median, 90 % | false pages a run-week | time in alarm, of the label | outside it | incidents each |\n|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for curve in curves {
        let t = curve.tally();
        let sizes: Vec<_> = curve.points.iter().map(|p| p.size.to_string()).collect();
        let delay = |q| t.delay(None, q).map_or_else(|| "-".into(), short);
        let (noticed, each) = curve
            .points
            .iter()
            .fold((0, 0.0), |(n, e), p| (n + p.noticed, e + p.incidents_each * p.noticed as f64));
        let _ = writeln!(
            out,
            "| `{}`: {} | {} {} | {} | {} | {} | {:.2} | {}, {} | {} | {} | {} | {} |",
            curve.fault,
            curve.about,
            sizes.join(", "),
            curve.unit,
            curve.resolution().map_or_else(|| "-".into(), |r| r.to_string()),
            part_of(t.noticed, t.labels),
            part_of(t.paged, t.page_labels),
            t.precision(),
            delay(0.5),
            delay(0.9),
            short(t.false_pages_a_week()),
            if t.labelled == 0 { "-".into() } else { percent(t.alarmed_within, t.labelled) },
            percent(t.alarmed_outside, t.samples - t.labelled),
            if noticed == 0 { "-".into() } else { format!("{:.2}", each / noticed as f64) },
        );
    }
    out
}

/// One row a fault, one column a detector: the share of labels noticed.
pub fn matrix(detectors: &[(String, Vec<Curve>)]) -> String {
    let names: Vec<_> = detectors.iter().map(|(name, _)| name.as_str()).collect();
    let mut out =
        format!("| labels noticed | {} |\n|---|{}\n", names.join(" | "), "---|".repeat(names.len()));
    let Some((_, first)) = detectors.first() else { return out };
    for (i, curve) in first.iter().enumerate() {
        let cells: Vec<_> = detectors
            .iter()
            .map(|(_, curves)| {
                let t = curves[i].tally();
                // Of faults that nobody should be notified of, the count of notifications is what
                // matters.
                if t.samples == 0 {
                    "-".into()
                } else if t.labels == 0 {
                    let paged: usize = curves[i].points.iter().map(|p| p.paged).sum();
                    let runs: usize = curves[i].points.iter().map(|p| p.runs).sum();
                    format!("{} paged", percent(paged, runs))
                } else {
                    percent(t.noticed, t.labels)
                }
            })
            .collect();
        let _ = writeln!(out, "| `{}` | {} |", curve.fault, cells.join(" | "));
    }
    out
}

fn part_of(part: usize, all: usize) -> String {
    if all == 0 { "none due".into() } else { format!("{part} of {all}") }
}

fn percent(part: usize, all: usize) -> String {
    let p = share(part, all) * 100.0;
    if p > 0.0 && p < 0.95 { format!("{p:.1} %") } else { format!("{p:.0} %") }
}

/// Three digits, and no decimals that are none.
pub(crate) fn short(v: f64) -> String {
    if v == 0.0 || v >= 100.0 || v.fract() == 0.0 {
        format!("{v:.0}")
    } else if v >= 10.0 {
        format!("{v:.1}")
    } else {
        format!("{v:.2}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!([0.0, 2.0, 0.375, 12.34, 1293.4].map(short), ["0", "2", "0.38", "12.3", "1293"]);
        assert_eq!(
            (percent(1, 1000), percent(1, 3), percent(0, 0)),
            ("0.1 %".into(), "33 %".into(), "0 %".into())
        );
    }
}
