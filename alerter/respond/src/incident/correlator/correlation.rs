//! Finds the open incident that a new finding belongs to although their subjects differ. A GPU that
//! fell off the bus, the rank that died of it and the run that stands still are one fault,
//! whichever is reported first.
//!
//! The result does not depend on the order of the two findings. They are one fault if the node was
//! faulty shortly before the run stopped, or was reported faulty while the run stood still.

use std::collections::BTreeSet;

use super::Correlator;
use super::index::Place;
use crate::incident::has_a_say;
use crate::incident::open::Incident;
use crate::incident::report::{Report, View};
use crate::matcher::Labels;
use stepwatch_model::{
    Cause, Context, Finding, Kind, Observation, Origin, Reporter, Scope, Severity, Span, Subject, Suspect, Ts,
};

/// How long before a run stopped its node may have been faulty for that to be the reason.
const BEFORE_STANDSTILL: Span = Span::secs(600);
/// The same for a slow run, which is detected later than one that stands still.
const BEFORE_SLOWNESS: Span = Span::secs(1800);
/// Nodes of one run that become faulty within this time of each other have one reason.
const TOGETHER: Span = Span::secs(600);
/// The most subjects that one incident may collect by the labels of `group_by`.
const MAX_SUBJECTS: usize = 256;

impl Correlator {
    /// The open incident that has the same fault as the report. `labels` computes the labels that a
    /// new incident for the report would have.
    pub(in crate::incident) fn correlated(
        &self,
        view: View<'_>,
        report: Report<'_>,
        labels: &dyn Fn() -> Labels,
    ) -> Option<String> {
        let candidates = self.candidates(report);
        if candidates.is_empty() {
            return None;
        }
        let labels = labels();
        let mut correlated: Vec<&Incident> = candidates
            .into_iter()
            .filter_map(|id| view.open.get(id))
            .filter(|i| i.is_correlated(view.now, report) && may_be_one(i, report.subject, &labels))
            .collect();
        // The most severe incident first, then the oldest.
        correlated.sort_by_key(|i| (core::cmp::Reverse(i.record.severity), i.record.opened_at));
        correlated.first().map(|i| i.record.id.clone())
    }

    /// The open incidents that can have the same fault as the report, in order of their ids. The
    /// indexes keep their number small even if many incidents are open.
    fn candidates(&self, report: Report<'_>) -> BTreeSet<&String> {
        let Report { context, finding: v, .. } = report;
        let run = (!context.run.name.is_empty()).then(|| Place::Run(context.run.name.clone()));
        let links = (v.kind == Kind::LinkFault).then_some(Place::Links);
        let nodes = context.nodes.iter().cloned().map(Place::Node);
        let places = run.into_iter().chain(links).chain(nodes);
        let mut ids: BTreeSet<&String> = places.flat_map(|place| self.index.at(&place)).collect();
        // A node may hit several runs, but its incident names only one of them.
        let scopes = context.nodes.iter().cloned().map(Scope::Node);
        let scopes = scopes.chain([Scope::Run(context.run.name.clone())]);
        let cause = v.kind.cause();
        ids.extend(scopes.filter_map(|scope| self.by_subject.get(&Subject { scope, cause })));
        ids
    }

    /// The oldest open incident that has all labels of `group_by` in common with what the report
    /// would open.
    pub(in crate::incident) fn grouped(
        &self,
        view: View<'_>,
        report: Report<'_>,
        labels: &dyn Fn() -> Labels,
    ) -> Option<String> {
        let names = &view.config.group_by;
        let own = matches!(report.context.scope, Scope::Own(_));
        if names.is_empty() || report.finding.severity == Severity::Info || own {
            return None;
        }
        let labels = labels();
        let same = |i: &&Incident| {
            let equal =
                |name: &String| labels.get(name).is_some_and(|v| i.record.labels.get(name) == Some(v));
            let room = i.subjects.len() < MAX_SUBJECTS;
            room && may_be_one(i, report.subject, &labels)
                && i.storm.is_none()
                && !i.is_of_another_user(report.context)
                && i.record.severity > Severity::Info
                && names.iter().all(equal)
        };
        let values = names.iter().map(|name| labels.get(name).cloned()).collect::<Option<Vec<_>>>()?;
        let mut alike = self.index.at(&Place::Group(values)).filter_map(|id| view.open.get(id));
        alike.find(same).map(|i| i.record.id.clone())
    }
}

impl Incident {
    /// Whether both are about runs of different users. The labels that one user's run declares must
    /// not absorb the page of another user. Runs whose exporters name no user count as one user's.
    fn is_of_another_user(&self, context: &Context) -> bool {
        let uid = |origin: Option<&Origin>| match origin?.reporter {
            Reporter::Exporter { uid, .. } => uid,
            Reporter::Sender { .. } => None,
        };
        let of_run = |scope: &Scope| matches!(scope, Scope::Run(_));
        let both = of_run(&context.scope) && self.subjects.iter().any(|s| of_run(&s.scope));
        both && uid(self.origin.as_ref()) != uid(context.origin.as_ref())
    }

    fn is_correlated(&self, now: Ts, report: Report<'_>) -> bool {
        let Report { context, finding: v, .. } = report;
        let cause = v.kind.cause();
        if self.belongs_to_an_alert(context, cause) {
            return true;
        }
        match &context.scope {
            Scope::Alert(_) => self.covers(context, cause) || physical(cause) && self.hits(now, context, v),
            Scope::Run(_) if self.went_dark(context, cause) || self.is_of_the_drift(context, v) => true,
            Scope::Run(run) => {
                let before = match cause {
                    Cause::Progress => BEFORE_STANDSTILL,
                    Cause::Speed => BEFORE_SLOWNESS,
                    _ => return false,
                };
                let recent = self.node_at.is_some_and(|at| at + before >= context.well_at);
                let free = self.record.run == *run || self.record.run.is_empty() && !self.shared;
                recent
                    && free
                    && self.is_physical()
                    && context.nodes.iter().any(|n| self.record.nodes.contains(n))
            }
            Scope::Own(_) | Scope::Storm(_) | Scope::Series(_) => false,
            Scope::Node(_) if !physical(cause) => false,
            Scope::Node(_) => self.hits(now, context, v) || self.shares_a_switch(now, context, v),
        }
    }

    /// Whether an external alert reported the fault before our own detectors did.
    fn belongs_to_an_alert(&self, context: &Context, cause: Cause) -> bool {
        let alert = self.subjects.iter().any(|s| s.cause == cause && matches!(s.scope, Scope::Alert(_)));
        let same = match &context.scope {
            Scope::Run(run) => self.record.run == *run,
            Scope::Node(node) => self.record.nodes.contains(node),
            _ => false,
        };
        alert && same
    }

    /// Whether our detectors already report the problem that this external alert describes.
    fn covers(&self, context: &Context, cause: Cause) -> bool {
        self.subjects.iter().any(|s| {
            s.cause == cause
                && match &s.scope {
                    Scope::Run(run) => *run == context.run.name,
                    Scope::Node(node) => context.nodes.contains(node),
                    _ => false,
                }
        })
    }

    /// Whether the incident already covers the run of this node: the run stands still or is slow,
    /// or another device or node of it became faulty recently.
    fn hits(&self, now: Ts, context: &Context, v: &Finding) -> bool {
        if context.run.name.is_empty() || self.record.run != context.run.name {
            return false;
        }
        let of_run = |cause| Subject { scope: Scope::Run(context.run.name.clone()), cause };
        let stands = self.subjects.contains(&of_run(Cause::Progress));
        let slow = self.subjects.contains(&of_run(Cause::Speed)) && v.kind != Kind::NodeFault;
        let others = self.is_physical() && self.node_at.is_some_and(|at| now - at <= TOGETHER);
        stands || slow && now - self.record.opened_at <= BEFORE_SLOWNESS || others
    }

    /// Whether a node stopped reporting when the run stopped.
    fn went_dark(&self, context: &Context, cause: Cause) -> bool {
        let of_run =
            |cause| self.raised.keys().any(|(s, kind)| s.scope == context.scope && kind.cause() == cause);
        let of_the_dark = || self.record.nodes.iter().any(|n| context.dark.contains(n));
        match cause {
            _ if context.dark.is_empty() => false,
            // An exporter that stopped long before the run did has another cause.
            Cause::Progress => of_run(Cause::Telemetry) && of_the_dark(),
            Cause::Telemetry => {
                let faulty = self.is_physical() && self.record.run == context.run.name;
                of_run(Cause::Progress) || faulty && of_the_dark()
            }
            _ => false,
        }
    }

    /// Whether the run is slow because its nodes are set up differently: of the two, one is
    /// reported here, and the other one now. They are about the same setting.
    fn is_of_the_drift(&self, context: &Context, v: &Finding) -> bool {
        let mut of_run = self.raised.keys().filter(|(s, _)| s.scope == context.scope).map(|(_, kind)| *kind);
        let (here, now) = (&self.record, &v.suspects);
        match v.kind.cause() {
            Cause::Speed => {
                let many = if here.kind == Kind::ConfigDrift { here.value } else { f64::INFINITY };
                of_run.any(|kind| kind == Kind::ConfigDrift) && explains(&here.suspects, many, now)
            }
            Cause::Config if v.kind == Kind::ConfigDrift => {
                let is_slow = of_run.any(|kind| kind.cause() == Cause::Speed);
                is_slow && explains(now, v.value, &here.suspects)
            }
            _ => false,
        }
    }

    fn is_physical(&self) -> bool {
        self.subjects.iter().any(|s| physical(s.cause))
    }
}

/// Whether the reporters of the incident and of the subject may each act on the other's labels.
pub(crate) fn may_be_one(i: &Incident, subject: &Subject, labels: &Labels) -> bool {
    has_a_say(subject, &i.record.labels) && i.has_a_say(labels)
}

/// Whether the first suspect of a slow run is a setting that makes some of its nodes slower, and
/// that is one of so many differences of the drift. A drift names a few of many. A setting that may
/// differ is no part of it.
fn explains(drift: &[Suspect], differences: f64, slow: &[Suspect]) -> bool {
    let slower = slow.first().into_iter().flat_map(Suspect::observations).find_map(|seen| match seen {
        Observation::SettingComputesLonger { key, .. } => Some(key),
        _ => None,
    });
    let keys = drift.iter().flat_map(Suspect::observations).filter_map(|seen| match seen {
        Observation::SettingComputesLonger { key, .. } | Observation::Setting { key, .. } => Some(key),
        _ => None,
    });
    let named: BTreeSet<&String> = keys.collect();
    slower.is_some_and(|key| named.contains(key) || (named.len() as f64) < differences)
}

fn physical(cause: Cause) -> bool {
    matches!(cause, Cause::Hardware | Cause::Node)
}
