//! Detection as a function of the size of a fault.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::faults::{self, Fault};
use crate::label::{Truth, Truths, Urgency};
use crate::recording;
use crate::replay::{self, Incidents, Severity};
use crate::score::{self, Tally, share};

/// What became of one size of one fault, over all seeds.
#[derive(Debug, Clone, Serialize)]
pub struct Point {
    pub size: f64,
    pub urgency: Urgency,
    pub runs: usize,
    /// Runs in which a page or ticket, or a page, reported the fault.
    pub noticed: usize,
    pub paged: usize,
    /// Median and 90th percentile of the samples from the onset to the first notification.
    pub delay: Option<f64>,
    pub delay_p90: Option<f64>,
    /// Incidents that people were notified of, within the label, for each run in which it was
    /// noticed.
    pub incidents_each: f64,
    pub samples: usize,
    pub false_pages: usize,
    pub false_tickets: usize,
    #[serde(skip)]
    pub tally: Tally,
}

#[derive(Debug, Clone, Serialize)]
pub struct Curve {
    pub fault: &'static str,
    pub about: &'static str,
    pub unit: &'static str,
    pub points: Vec<Point>,
}

/// Steps of every recording, by name: read once, used for every detector.
#[derive(Debug)]
pub struct Runs {
    pub steps: BTreeMap<String, Vec<i64>>,
    pub truths: Truths,
}

impl Runs {
    pub fn read(files: &[PathBuf], labels: &Path) -> anyhow::Result<Self> {
        let truths = crate::label::read(labels)?;
        let mut steps = BTreeMap::new();
        for file in files {
            steps.insert(replay::name(file), recording::steps(file)?);
        }
        Ok(Self { steps, truths })
    }

    /// The tally of the incidents of the recordings that were replayed.
    pub fn judge(&self, found: &Incidents) -> Tally {
        let mut all = Tally::default();
        for run in self.steps.keys().filter(|run| found.contains_key(*run)) {
            all.add(self.one(run, found));
        }
        all
    }

    fn one(&self, run: &str, found: &Incidents) -> Tally {
        let none = Truth::default();
        let truth = self.truths.get(run).unwrap_or(&none);
        score::judge(run, &self.steps[run], &truth.events, found.get(run).map_or(&[], Vec::as_slice))
    }

    /// The curves of the faults that were injected, each over its sizes.
    pub fn curves(&self, found: &Incidents) -> Vec<Curve> {
        faults::all().iter().map(|fault| self.curve(fault, found)).collect()
    }

    fn curve(&self, fault: &Fault, found: &Incidents) -> Curve {
        let points = fault.sizes.iter().map(|size| self.point(fault, *size, found)).collect();
        Curve { fault: fault.name, about: fault.about, unit: fault.unit, points }
    }

    fn point(&self, fault: &Fault, size: f64, found: &Incidents) -> Point {
        let mut point = Point {
            size,
            urgency: fault.urgency(size),
            runs: 0,
            noticed: 0,
            paged: 0,
            delay: None,
            delay_p90: None,
            incidents_each: 0.0,
            samples: 0,
            false_pages: 0,
            false_tickets: 0,
            tally: Tally::default(),
        };
        let (mut notified, mut heard) = (0, Tally::default());
        for (run, truth) in &self.truths {
            let of = truth.injected.as_ref().is_some_and(|i| i.fault == fault.name && i.size == size);
            let (Some(steps), Some(incidents)) = (self.steps.get(run).filter(|_| of), found.get(run)) else {
                continue;
            };
            // Whether it was seen at all is asked as if a person had wanted it at every size.
            let mut wanted = truth.events.clone();
            wanted.iter_mut().for_each(|e| e.severity = Urgency::Warn);
            let seen = score::judge(run, steps, &wanted, incidents);
            wanted.iter_mut().for_each(|e| e.severity = Urgency::Page);
            let paging: Vec<_> = incidents.iter().filter(|i| i.severity == Severity::Page).cloned().collect();
            point.runs += 1;
            point.noticed += seen.noticed;
            point.paged += score::judge(run, steps, &wanted, &paging).paged;
            notified += seen.pages + seen.tickets - seen.false_pages - seen.false_tickets;
            heard.add(seen);
            point.tally.add(self.one(run, found));
        }
        let t = &point.tally;
        (point.samples, point.false_pages, point.false_tickets) = (t.samples, t.false_pages, t.false_tickets);
        point.delay = heard.delay(None, 0.5);
        point.delay_p90 = heard.delay(None, 0.9);
        point.incidents_each = share(notified, point.noticed);
        point
    }
}

impl Curve {
    /// The smallest size that is noticed in 9 of 10 runs, as are all larger ones.
    pub fn resolution(&self) -> Option<f64> {
        let blind = self.points.iter().rposition(|p| p.noticed * 10 < p.runs * 9);
        self.points.get(blind.map_or(0, |i| i + 1)).map(|p| p.size)
    }

    /// All sizes together.
    pub fn tally(&self) -> Tally {
        let mut all = Tally::default();
        self.points.iter().for_each(|p| all.add(p.tally.clone()));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(size: f64, noticed: usize) -> Point {
        Point {
            size,
            urgency: Urgency::Warn,
            runs: 20,
            noticed,
            paged: 0,
            delay: None,
            delay_p90: None,
            incidents_each: 1.0,
            samples: 0,
            false_pages: 0,
            false_tickets: 0,
            tally: Tally::default(),
        }
    }

    #[test]
    fn resolution_is_where_nothing_larger_is_missed() {
        let curve = |noticed: &[usize]| Curve {
            fault: "f",
            about: "",
            unit: "",
            points: noticed.iter().enumerate().map(|(i, n)| point(i as f64, *n)).collect(),
        };
        assert_eq!(curve(&[0, 18, 20]).resolution(), Some(1.0));
        assert_eq!(curve(&[20, 17, 20]).resolution(), Some(2.0));
        assert_eq!(curve(&[20, 20, 17]).resolution(), None);
    }
}
