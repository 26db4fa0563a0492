//! The common part of the detectors of reports. Each report makes one finding, and the incident
//! ends when the run has made more steps, has ended, or no more reports came for a while.

use serde::{Deserialize, Serialize};

use crate::detector::RunAt;
use crate::run::{Report, RunState, Topic};
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{
    Change, Clause, Fact, Finding, Kind, Observation, Sentence, Severity, Suspect, clause,
};

/// The number of samples after a report that prove that the run goes on in spite of it.
const PROOF_STEPS: u64 = 3;
/// The most suspects named one by one.
const NAMED: usize = 3;

/// The differences between the detectors of reports.
#[derive(Debug, Clone, Copy)]
pub(super) struct About {
    pub(super) topic: Topic,
    pub(super) kind: Kind,
    pub(super) ends: Ends,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Ends {
    /// When the run has made more steps.
    WithProgress,
    /// This long after the last report.
    After(Span),
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Reported {
    /// When the last report that made a finding arrived.
    last_report: Option<Ts>,
    raised: bool,
}

impl Reported {
    pub(super) fn look(
        &mut self,
        view: RunAt<'_>,
        about: About,
        severity: impl Fn(&Report) -> Severity,
        out: &mut Vec<Finding>,
    ) {
        let f = view.run;
        let last = self.last_report;
        for report in f.reports.about(about.topic).filter(|r| last.is_none_or(|last| r.at > last)) {
            self.last_report = Some(report.at);
            let severity = severity(report);
            let change = if severity == Severity::Info { Change::Note } else { Change::Raise };
            self.raised |= change == Change::Raise;
            let mut v = finding(view, about.kind, change, severity);
            v.why = sentence(f, about, report);
            v.suspects = suspects(f, about.topic);
            out.push(v);
        }
        if self.raised && self.is_over(view, about) {
            self.raised = false;
            let ended = f.ended.is_some();
            let silent = self.last_report.filter(|_| !ended && matches!(about.ends, Ends::After(_)));
            let mut v = finding(view, about.kind, Change::Clear, Severity::Info);
            v.why = match silent {
                Some(since) => clause!("nothing more was said of it since {since}", since),
                None if ended => clause!("the run ended"),
                None => clause!("the run goes on"),
            }
            .into();
            if let Some(since) = silent {
                (v.change, v.ts) = (Change::Lapse, since);
            }
            out.push(v);
        }
    }

    fn is_over(&self, view: RunAt<'_>, about: About) -> bool {
        let RunAt { now, run: f } = view;
        if f.ended.as_ref().is_some_and(|e| e.well() && !e.silent) {
            return true;
        }
        match about.ends {
            Ends::After(quiet) => self.last_report.is_none_or(|last| now >= last + quiet),
            Ends::WithProgress => {
                let last = f.reports.about(about.topic).next_back();
                last.is_none_or(|r| f.total_steps >= r.steps + PROOF_STEPS)
            }
        }
    }

    pub(super) fn deadline(&self, about: About) -> Option<Ts> {
        match about.ends {
            Ends::After(quiet) if self.raised => Some(self.last_report? + quiet),
            _ => None,
        }
    }
}

fn sentence(f: &RunState, about: About, report: &Report) -> Sentence {
    match about.ends {
        Ends::After(_) => Clause::words(report.text.as_str()).into(),
        Ends::WithProgress => {
            let said = |r: &Report| clause!("{place}: {text}", place = r.place(), text = r.text.clone());
            let first = f.reports.about(about.topic).next();
            let first = first.filter(|first| first.at < report.at && first.steps == report.steps);
            let mut why = Sentence::from(said(report)).naming(report.place());
            if let Some(first) = first {
                why.add(clause!("first was {first}", first = said(first)));
                why.name(first.place());
            }
            let step = f.last_step.map(Fact::Step);
            why.and_perhaps(step.map(|step| clause!("the run stands at step {step}", step)))
        }
    }
}

/// The first places that were reported since the run last made a step: the others mostly follow
/// from them.
fn suspects(f: &RunState, topic: Topic) -> Vec<Suspect> {
    if topic == Topic::UserAlert {
        return Vec::new();
    }
    let last = f.reports.about(topic).next_back().map_or(0, |r| r.steps);
    let first = f.reports.about(topic).filter(|r| r.steps == last).take(NAMED);
    first.map(|r| Suspect::new(r.place(), reported(r))).collect()
}

fn reported(r: &Report) -> Observation {
    Observation::Reported { words: r.text.clone(), course: r.course() }
}

fn finding(view: RunAt<'_>, kind: Kind, change: Change, severity: Severity) -> Finding {
    Finding { value: 1.0, score: 1.0, ..view.finding(kind, "report", change, severity) }
}
