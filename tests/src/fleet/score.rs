//! Assigns incidents to faults, and scores the engine.
//!
//! An incident that was announced (as a ticket or a page) during a fault of its run or node belongs
//! to that fault; an incident that becomes a page after it was a ticket is announced twice. Of
//! several, the first counts for the time, and the first page, or else the first ticket, for the
//! culprit, with its text half a minute after the announcement, when a person has opened it. A page
//! that belongs to no fault is false.

use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Severity, Suspect};
use stepwatch_respond::incident::IncidentRecord;

use super::Volume;
use super::kind::Kind;
use super::truth::{Culprit, Truth};
use super::watch::{Course, Watch};

/// The time after a fault within which its consequences may still be notified.
const AFTER: Span = Span::secs(120);
/// The time until a person opens a message.
const OPENED: Span = Span::secs(30);

/// A fault, and its notifications.
#[derive(Debug, Clone)]
pub struct Found {
    pub truth: Truth,
    /// The seconds from the onset to the first ticket or page, and to the first page.
    pub noticed: Option<f64>,
    pub paged: Option<f64>,
    /// The position of the culprit among the suspects, from 1.
    pub place: Option<usize>,
    /// The same position at the announcement, and at the end.
    pub place_at_once: Option<usize>,
    pub place_at_last: Option<usize>,
    pub pages: usize,
    pub tickets: usize,
    /// For a missed fault: earlier notifications about the run that were still open.
    pub before: Vec<String>,
    /// The content of the message.
    pub says: Option<(&'static str, Vec<Suspect>)>,
}

#[derive(Debug, Clone)]
pub struct Score {
    pub found: Vec<Found>,
    /// Pages and tickets that belong to no fault.
    pub false_pages: Vec<IncidentRecord>,
    pub other_tickets: Vec<IncidentRecord>,
    pub volume: Volume,
}

impl Truth {
    fn covers(&self, at: Ts, record: &IncidentRecord) -> bool {
        let whose = self.run == record.run
            || match &self.culprit {
                Culprit::Node { node, .. } => record.run.is_empty() && record.nodes.contains(node),
                Culprit::Switch { nodes } => {
                    record.run.is_empty() && record.nodes.iter().any(|n| nodes.contains(n))
                }
                _ => false,
            };
        whose && at >= self.onset && at <= self.until + AFTER
    }

    fn place(&self, record: Option<&IncidentRecord>) -> Option<usize> {
        record?.suspects.iter().position(|s| self.culprit.is(s)).map(|i| i + 1)
    }
}

impl Score {
    pub fn from_watch(truths: Vec<Truth>, watch: Watch, volume: Volume) -> Self {
        let announced: Vec<(Ts, &Course)> =
            watch.incidents.values().flat_map(Course::announcements).collect();
        let mut taken = vec![false; announced.len()];
        let found = truths.into_iter().map(|t| find(t, &announced, &mut taken)).collect();
        let (mut false_pages, mut other_tickets) = (Vec::new(), Vec::new());
        for ((at, course), _) in announced.iter().zip(&taken).filter(|(_, taken)| !**taken) {
            let Some(record) = course.at(*at) else { continue };
            let list = if record.severity == Severity::Page { &mut false_pages } else { &mut other_tickets };
            list.push(record.clone());
        }
        Self { found, false_pages, other_tickets, volume }
    }

    /// Merges the results of several fleets.
    pub fn merge(mut self, other: Self) -> Self {
        self.found.extend(other.found);
        self.false_pages.extend(other.false_pages);
        self.other_tickets.extend(other.other_tickets);
        self.volume.events += other.volume.events;
        self.volume.run_hours += other.volume.run_hours;
        self
    }

    pub fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &Found> {
        self.found.iter().filter(move |f| f.truth.kind == kind)
    }

    pub fn noticed(&self) -> f64 {
        share(&self.found, |f| f.noticed.is_some())
    }

    /// The share of noticed faults with the culprit among the first `n` suspects.
    pub fn top(&self, n: usize) -> f64 {
        let noticed: Vec<_> = self.found.iter().filter(|f| f.noticed.is_some()).cloned().collect();
        share(&noticed, |f| f.place.is_some_and(|p| p <= n))
    }

    /// A true positive names the culprit first. Naming another suspect first, and a page without a
    /// fault, are false positives; a fault that was not noticed, or whose culprit was not named
    /// first, is a miss.
    pub fn precision_and_recall(&self) -> (f64, f64) {
        let right = self.found.iter().filter(|f| f.place == Some(1)).count() as f64;
        let announced = self.found.iter().filter(|f| f.noticed.is_some()).count() + self.false_pages.len();
        (right / (announced as f64).max(1.0), right / (self.found.len() as f64).max(1.0))
    }

    /// A quantile of the seconds to the first ticket or page.
    pub fn delay(&self, q: f64) -> Option<f64> {
        quantile(self.found.iter().filter_map(|f| f.noticed), q)
    }

    pub fn page_delay(&self, q: f64) -> Option<f64> {
        quantile(self.found.iter().filter_map(|f| f.paged), q)
    }

    pub fn false_pages_a_week(&self) -> f64 {
        self.false_pages.len() as f64 / (self.volume.run_hours / 168.0).max(1e-9)
    }
}

fn find(truth: Truth, announced: &[(Ts, &Course)], taken: &mut [bool]) -> Found {
    let mut of: Vec<(Ts, &Course)> = Vec::new();
    for (i, (at, course)) in announced.iter().enumerate() {
        if course.at(*at).is_some_and(|r| truth.covers(*at, r)) {
            taken[i] = true;
            of.push((*at, course));
        }
    }
    of.sort_by_key(|(at, _)| *at);
    let is_page = |at: Ts, c: &Course| c.at(at).is_some_and(|r| r.severity == Severity::Page);
    let page = of.iter().find(|(at, c)| is_page(*at, c)).copied();
    let main = page.or(of.first().copied());
    let since = |at: Ts| (at - truth.onset).as_secs_f64();
    let opened = main.and_then(|(at, c)| c.at(at + OPENED));
    Found {
        noticed: of.first().map(|(at, _)| since(*at)),
        paged: page.map(|(at, _)| since(at)),
        place: truth.place(opened),
        place_at_once: truth.place(main.and_then(|(at, c)| c.at(at))),
        place_at_last: truth.place(main.and_then(|(_, c)| c.at(truth.until))),
        pages: of.iter().filter(|(at, c)| is_page(*at, c)).count(),
        tickets: of.iter().filter(|(at, c)| !is_page(*at, c)).count(),
        before: main.map_or_else(|| open_before(&truth, announced), |_| Vec::new()),
        says: opened.map(|r| (r.kind.as_str(), r.suspects.clone())),
        truth,
    }
}

fn open_before(truth: &Truth, announced: &[(Ts, &Course)]) -> Vec<String> {
    let of_run = announced.iter().filter_map(|(_, c)| Some((c, c.at(truth.onset)?)));
    let open = of_run.filter(|(_, r)| r.run == truth.run && r.resolved_at.is_none());
    let mut open: Vec<String> = open
        .map(|(c, r)| {
            let over =
                c.last().and_then(|r| r.resolved_at).map_or_else(|| "never".to_owned(), |at| at.to_string());
            format!("{} since {}, resolved {over}: {}", r.kind.as_str(), r.opened_at, r.summary)
        })
        .collect();
    open.dedup();
    open
}

pub(super) fn share(of: &[Found], what: impl Fn(&Found) -> bool) -> f64 {
    of.iter().filter(|f| what(f)).count() as f64 / (of.len() as f64).max(1.0)
}

pub(super) fn quantile(values: impl Iterator<Item = f64>, q: f64) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    values.get((q * last as f64).round() as usize).copied()
}
