//! How alarms are counted against labels: no look ahead, no adjustment of points.
//!
//! * An alarm belongs to a label from 5 samples before its start to 20 samples, or a tenth of its
//!   length, after its end, if its kind is of the label's family. `backtest --tune` takes the same
//!   samples. What counts is the one at which it was decided: of a page the one at which it became
//!   a page.
//! * A label is *noticed* by a page or a ticket; one that a person would have acted on at once is
//!   *paged* by a page.
//! * An alarm that was right once and is still open at a later label of its family counts there
//!   too: the person is already there. One that was wrong earns nothing by staying open.
//! * A page is *false* if it touches nothing that anybody would have acted on or looked at,
//!   whatever its family; a ticket if it touches no label at all.
//! * The *delay* runs from the label's start to the alarm, in samples; early is 0.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use stepwatch_alerter::backtest::{EARLY, LATE, LATE_PART};

use crate::label::{Family, Label, Urgency};
use crate::replay::{Incident, Severity};

/// A week of steps that take 5 seconds.
pub const RUN_WEEK: f64 = 7.0 * 86_400.0 / 5.0;

/// Counts of one or more runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Tally {
    pub samples: usize,
    pub labels: usize,
    pub noticed: usize,
    pub page_labels: usize,
    pub paged: usize,
    pub pages: usize,
    pub false_pages: usize,
    pub tickets: usize,
    pub false_tickets: usize,
    /// Samples between the notification of an incident and that of its end: during labels, and
    /// outside of them.
    pub alarmed_within: usize,
    pub alarmed_outside: usize,
    /// Samples within labels that anybody would have looked at.
    pub labelled: usize,
    /// Of every label that was noticed, in samples.
    pub delays: BTreeMap<Family, Vec<usize>>,
    /// Noticed and all, of each class.
    pub classes: BTreeMap<String, (usize, usize)>,
    pub missed: Vec<String>,
    /// Noticed, and should have been paged.
    pub unpaged: Vec<String>,
    pub false_pages_at: Vec<String>,
}

/// A label in rows.
#[derive(Debug)]
struct Span<'a> {
    label: &'a Label,
    start: usize,
    from: usize,
    to: usize,
}

/// An alarm in rows.
#[derive(Debug)]
struct Alarm<'a> {
    kind: &'a str,
    severity: Severity,
    opened: usize,
    detected: usize,
    end: usize,
    step: i64,
}

/// Judges the incidents of one run.
pub fn judge(run: &str, steps: &[i64], labels: &[Label], incidents: &[Incident]) -> Tally {
    let mut tally = Tally { samples: steps.len(), ..Tally::default() };
    let mut spans: Vec<Span<'_>> = labels.iter().map(|l| Span::from_label(l, steps)).collect();
    spans.sort_by_key(|s| s.from);
    let alarms: Vec<Alarm<'_>> =
        incidents.iter().filter(|i| i.is_loud()).map(|i| Alarm::from_incident(i, steps)).collect();
    let mut right = BTreeSet::new();
    for span in spans.iter().filter(|s| s.label.severity != Urgency::Info) {
        tally.label(run, span, &alarms, &mut right);
    }
    for alarm in &alarms {
        tally.alarm(run, alarm, &spans);
    }
    tally.time(steps.len(), &alarms, &spans);
    tally
}

fn row(steps: &[i64], step: i64) -> usize {
    steps.partition_point(|s| *s < step)
}

impl<'a> Span<'a> {
    fn from_label(label: &'a Label, steps: &[i64]) -> Self {
        let (start, end) = (row(steps, label.start), row(steps, label.end));
        let late = LATE.max(end.saturating_sub(start) / LATE_PART);
        Self { label, start, from: start.saturating_sub(EARLY), to: end + late }
    }

    fn has(&self, row: usize) -> bool {
        (self.from..=self.to).contains(&row)
    }
}

impl<'a> Alarm<'a> {
    fn from_incident(incident: &'a Incident, steps: &[i64]) -> Self {
        let detected = row(steps, incident.detected_step);
        let opened = incident.opened_step.map_or(detected, |s| row(steps, s).min(detected));
        let end = incident.end_step.map_or(steps.len().saturating_sub(1), |s| row(steps, s).max(detected));
        let Incident { kind, severity, detected_step, .. } = incident;
        Self { kind, severity: *severity, opened, detected, end, step: *detected_step }
    }
}

impl Tally {
    /// Looks for the alarms that match a label; `right` are those that were right about an earlier
    /// one of a family.
    fn label(
        &mut self,
        run: &str,
        span: &Span<'_>,
        alarms: &[Alarm<'_>],
        right: &mut BTreeSet<(usize, Family)>,
    ) {
        let (family, urgent) = (Family::from_class(&span.label.class), span.label.severity == Urgency::Page);
        let (mut first, mut paged) = (None, false);
        for (i, a) in alarms.iter().enumerate().filter(|(_, a)| family.covers(a.kind)) {
            let there_already = right.contains(&(i, family)) && a.detected < span.from && span.from <= a.end;
            if !(span.has(a.opened) || span.has(a.detected) || there_already) {
                continue;
            }
            right.insert((i, family));
            let pages = a.severity == Severity::Page && (span.has(a.detected) || there_already);
            paged |= pages;
            let at = if urgent && pages { a.detected } else { a.opened };
            first = Some(first.map_or(at, |f: usize| f.min(at)));
        }
        let class = self.classes.entry(span.label.class.clone()).or_default();
        class.1 += 1;
        self.labels += 1;
        if let Some(first) = first {
            class.0 += 1;
            self.noticed += 1;
            self.delays.entry(family).or_default().push(first.saturating_sub(span.start));
        } else {
            let Label { class, start, end, .. } = span.label;
            self.missed.push(format!("{run}: {class} {start}-{end}"));
        }
        if urgent && !paged && first.is_some() {
            let Label { class, start, end, .. } = span.label;
            self.unpaged.push(format!("{run}: {class} {start}-{end}"));
        }
        self.page_labels += usize::from(urgent);
        self.paged += usize::from(urgent && paged);
    }

    fn alarm(&mut self, run: &str, alarm: &Alarm<'_>, spans: &[Span<'_>]) {
        let mut touched = spans.iter().filter(|s| s.has(alarm.detected)).peekable();
        if alarm.severity == Severity::Page {
            self.pages += 1;
            if !touched.any(|s| s.label.severity != Urgency::Info) {
                self.false_pages += 1;
                self.false_pages_at.push(format!("{run}: {} at {}", alarm.kind, alarm.step));
            }
        } else {
            self.tickets += 1;
            self.false_tickets += usize::from(touched.peek().is_none());
        }
    }

    fn time(&mut self, samples: usize, alarms: &[Alarm<'_>], spans: &[Span<'_>]) {
        let within = |ranges: &mut dyn Iterator<Item = (usize, usize)>| {
            let mut rows = vec![false; samples];
            for (from, to) in ranges {
                let to = (to + 1).min(samples);
                rows[from.min(to)..to].fill(true);
            }
            rows
        };
        let wanted = spans.iter().filter(|s| s.label.severity != Urgency::Info);
        let labelled = within(&mut wanted.map(|s| (s.start, s.to)));
        let alarmed = within(&mut alarms.iter().map(|a| (a.opened, a.end)));
        for (labelled, alarmed) in labelled.into_iter().zip(alarmed) {
            self.labelled += usize::from(labelled);
            self.alarmed_within += usize::from(alarmed && labelled);
            self.alarmed_outside += usize::from(alarmed && !labelled);
        }
    }

    pub fn add(&mut self, other: Self) {
        self.samples += other.samples;
        self.labels += other.labels;
        self.noticed += other.noticed;
        self.page_labels += other.page_labels;
        self.paged += other.paged;
        self.pages += other.pages;
        self.false_pages += other.false_pages;
        self.tickets += other.tickets;
        self.false_tickets += other.false_tickets;
        self.alarmed_within += other.alarmed_within;
        self.alarmed_outside += other.alarmed_outside;
        self.labelled += other.labelled;
        for (family, delays) in other.delays {
            self.delays.entry(family).or_default().extend(delays);
        }
        for (class, (noticed, all)) in other.classes {
            let of = self.classes.entry(class).or_default();
            (of.0, of.1) = (of.0 + noticed, of.1 + all);
        }
        self.missed.extend(other.missed);
        self.unpaged.extend(other.unpaged);
        self.false_pages_at.extend(other.false_pages_at);
    }

    pub fn recall(&self) -> f64 {
        share(self.noticed, self.labels)
    }

    pub fn page_recall(&self) -> f64 {
        share(self.paged, self.page_labels)
    }

    /// Pages and tickets that touch what they should, of all; 1 of none.
    pub fn precision(&self) -> f64 {
        let loud = self.pages + self.tickets;
        if loud == 0 { 1.0 } else { 1.0 - share(self.false_pages + self.false_tickets, loud) }
    }

    pub fn false_pages_a_week(&self) -> f64 {
        share(self.false_pages, self.samples) * RUN_WEEK
    }

    pub fn false_tickets_per_10k(&self) -> f64 {
        share(self.false_tickets, self.samples) * 1e4
    }

    /// The delay that this share of the noticed labels of a family, or of all, stays within.
    pub fn delay(&self, family: Option<Family>, share: f64) -> Option<f64> {
        let of = self.delays.iter().filter(|(f, _)| family.is_none_or(|family| **f == family));
        quantile(of.flat_map(|(_, d)| d.iter().copied()).collect(), share)
    }
}

pub fn share(of: usize, all: usize) -> f64 {
    of as f64 / all.max(1) as f64
}

/// The median is the mean of the two in the middle; any other quantile is a value that occurred.
fn quantile(mut values: Vec<usize>, share: f64) -> Option<f64> {
    values.sort_unstable();
    let last = values.len().checked_sub(1)?;
    if share == 0.5 {
        return Some((values[last / 2] + values[values.len() / 2]) as f64 / 2.0);
    }
    let at = ((share * values.len() as f64).ceil() as usize).saturating_sub(1);
    Some(values[at.min(last)] as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn label(class: &str, start: i64, end: i64, severity: Urgency) -> Label {
        Label { class: class.into(), start, end, severity }
    }

    fn incident(kind: &str, severity: Severity, opened: i64, detected: i64, end: Option<i64>) -> Incident {
        let (file, kind) = ("run.csv".into(), kind.into());
        Incident { file, kind, severity, opened_step: Some(opened), detected_step: detected, end_step: end }
    }

    /// Steps 0, 10, 20, ... : a row is ten steps.
    fn steps() -> Vec<i64> {
        (0..1000).map(|i| i * 10).collect()
    }

    #[test]
    fn a_page_within_the_window_pages_and_its_delay_is_in_samples() {
        let labels = [label("loss_spike", 5000, 5100, Urgency::Page)];
        let t =
            judge("r", &steps(), &labels, &[incident("loss_spike", Severity::Page, 4990, 5030, Some(5200))]);
        assert_eq!((t.noticed, t.paged, t.false_pages), (1, 1, 0));
        assert_eq!(t.delay(Some(Family::Loss), 0.5), Some(3.0), "to the page, not to the ticket before");
        assert_eq!((t.alarmed_within, t.alarmed_outside), (21, 1));
    }

    #[test]
    fn a_page_label_that_got_a_ticket_is_noticed_and_not_paged() {
        let labels = [label("loss_spike", 5000, 5100, Urgency::Page)];
        let t = judge("r", &steps(), &labels, &[incident("divergence", Severity::Ticket, 5010, 5010, None)]);
        assert_eq!((t.noticed, t.paged, t.page_labels, t.false_tickets), (1, 0, 1, 0));
    }

    #[test]
    fn the_wrong_family_notices_nothing_and_is_not_false() {
        let labels = [label("droop", 5000, 5100, Urgency::Page)];
        let t = judge("r", &steps(), &labels, &[incident("loss_spike", Severity::Page, 5000, 5000, None)]);
        assert_eq!((t.noticed, t.false_pages, t.missed.len()), (0, 0, 1));
    }

    #[test]
    fn outside_of_every_window_an_alarm_is_false() {
        let labels =
            [label("loss_spike", 5000, 5100, Urgency::Page), label("loss_blip", 100, 100, Urgency::Info)];
        let said = [
            incident("loss_spike", Severity::Page, 4940, 4940, Some(4945)),
            incident("loss_spike", Severity::Page, 5310, 5310, None),
            incident("loss_spike", Severity::Page, 100, 100, Some(110)),
            incident("loss_spike", Severity::Ticket, 100, 100, Some(110)),
            incident("loss_spike", Severity::Ticket, 3000, 3000, Some(3010)),
            incident("loss_spike", Severity::Info, 3000, 3000, Some(3010)),
        ];
        let t = judge("r", &steps(), &labels, &said);
        assert_eq!((t.false_pages, t.false_tickets, t.pages, t.tickets), (3, 1, 3, 2));
        assert!((t.precision() - 0.2).abs() < 1e-12);
    }

    #[test]
    fn an_alarm_that_was_right_and_stays_open_matches_the_next_one_too() {
        let labels = [label("stall", 2000, 2000, Urgency::Warn), label("stall", 6000, 6000, Urgency::Warn)];
        let right = incident("stall", Severity::Ticket, 2000, 2000, None);
        let wrong = incident("stall", Severity::Ticket, 1000, 1000, None);
        assert_eq!(judge("r", &steps(), &labels, &[right]).noticed, 2);
        assert_eq!(judge("r", &steps(), &labels, &[wrong]).noticed, 0);
    }

    #[test]
    fn medians_and_quantiles() {
        assert_eq!(quantile(vec![], 0.5), None);
        assert_eq!(quantile(vec![4, 1], 0.5), Some(2.5));
        assert_eq!(quantile(vec![3, 1, 2], 0.5), Some(2.0));
        assert_eq!(quantile((1..=10).collect(), 0.9), Some(9.0));
    }

    proptest! {
        #[test]
        fn counts_agree_whatever_was_said(said in proptest::collection::vec((0i64..12_000, 0i64..500, any::<bool>()), 0..20)) {
            let labels = [label("loss_spike", 5000, 5100, Urgency::Page), label("droop", 8000, 9000, Urgency::Warn)];
            let said: Vec<_> = said.iter().map(|(at, late, page)| {
                let severity = if *page { Severity::Page } else { Severity::Ticket };
                incident("loss_spike", severity, *at, at + late, None)
            }).collect();
            let t = judge("r", &steps(), &labels, &said);
            prop_assert!(t.noticed <= t.labels && t.paged <= t.page_labels && t.paged <= t.noticed);
            prop_assert_eq!(t.pages + t.tickets, said.len());
            prop_assert!(t.false_pages <= t.pages && t.false_tickets <= t.tickets);
            prop_assert_eq!(t.missed.len(), t.labels - t.noticed);
        }
    }
}
