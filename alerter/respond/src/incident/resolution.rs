//! Resolves incidents: when they clear, when their run or node is gone, or when a person does it.

use crate::effect::Tx;
use std::collections::{BTreeMap, BTreeSet};

use super::manager::Manager;
use super::open::Incident;
use super::{End, Ended, IncidentRecord, State};
use crate::effect::Action;
use crate::effect::{by_actor, timeline};
use crate::message::{Holds, Reason, Why};
use stepwatch_model::{Cause, Kind, RunSummary, Scope, Severity, Span, Subject, Ts};

/// How long a page that nobody answered outlives a run that ended by itself.
const UNANSWERED: Span = Span::secs(900);
/// How long the report of a run or node is kept after the state of its detectors was lost.
/// Exporters publish every ten minutes what still holds.
const REPEATED_WITHIN: Span = Span::secs(900);

impl Manager {
    /// Resolves an incident, notifies the people who know of it, and returns it.
    pub(super) fn resolve(&mut self, tx: &mut Tx<'_>, id: &str, end: End, reason: &str) -> Option<Incident> {
        let now = tx.now;
        let i = self.open.get_mut(id)?;
        let actor = end.by.as_deref().unwrap_or("engine");
        tx.out.push(by_actor(now, id, actor, reason.to_owned()));
        i.record.end = Some(end);
        i.record.state = State::Resolved;
        i.record.resolved_at = Some(now);
        i.record.next_at = None;
        if i.record.end_step.is_none() {
            i.record.end_step = i.summary.last_step;
        }
        self.notify_all(tx, id, Action::Resolve, Why::new(Reason::Resolved, reason));
        self.finish(id, tx.out);
        let gone = self.open.remove(id)?;
        self.correlator.remove(now, id, &gone);
        if let Some(suppression) = &gone.record.suppression {
            self.suppression_ended(tx, id, suppression);
        }
        self.suppressor.remove(id);
        // Last, because the incidents that it suppressed must not find it any more.
        self.release(tx, id);
        Some(gone)
    }

    /// Resolves the incidents of a run that ended. A page that nobody answered stays for a while,
    /// because somebody must look at an idle cluster too, unless a person stopped the run. The
    /// fault of a node is reported for the next run on that node, which `heirs` has by node.
    pub(crate) fn run_ended(
        &mut self,
        tx: &mut Tx<'_>,
        run: &str,
        by_hand: bool,
        heirs: &BTreeMap<String, RunSummary>,
    ) {
        let now = tx.now;
        let scope = Scope::Run(run.to_owned());
        for id in self.correlator.of_run(run) {
            let Some(i) = self.open.get_mut(&id) else { continue };
            let unanswered = i.record.severity == Severity::Page && i.record.state == State::Open;
            if i.outlives(&scope) {
                if let Some(heir) = i.heir(heirs).cloned() {
                    self.hand_over(tx, &id, run, &heir);
                    continue;
                }
                if by_hand {
                    i.stop();
                    i.calm = true;
                }
                // Nobody is called for a run that has ended.
                i.resolve_at = i.resolve_at.or((!by_hand && i.falls()).then_some(now + UNANSWERED));
                let calm = if by_hand { ": escalation stops" } else { "" };
                tx.out.push(timeline(now, &id, format!("the run ended, what ails the node did not{calm}")));
                self.finish(&id, tx.out);
            } else if unanswered && !by_hand {
                i.resolve_at = Some(now + UNANSWERED);
                i.raised.clear();
                i.outlived_its_run = true;
                tx.out.push(timeline(
                    now,
                    &id,
                    format!("the run ended; resolves in {UNANSWERED} if nobody answers"),
                ));
                self.finish(&id, tx.out);
            } else {
                let reason = if by_hand { "the run was stopped" } else { "the run ended" };
                self.resolve(tx, &id, End::of(Ended::RunEnded), reason);
            }
        }
        let why = if by_hand { "the run was stopped" } else { "the run ended" };
        self.closed_without(tx, why, |s| s.scope == scope);
        self.correlator.flap_history_mut().forget(&scope);
    }

    /// When a run ends, its node's fault moves to the next run there. That run's on-call is
    /// notified unless the incident is acknowledged.
    fn hand_over(&mut self, tx: &mut Tx<'_>, id: &str, from: &str, to: &RunSummary) {
        let now = tx.now;
        let Some(i) = self.open.get_mut(id) else { return };
        i.record.run.clear();
        if i.subjects.iter().all(|s| !matches!(s.scope, Scope::Alert(_))) {
            i.summary.labels.clear();
        }
        i.learn(to);
        i.shared |= to.name.is_empty();
        let at = to.last_step.unwrap_or_default();
        (i.record.start_step, i.record.opened_step, i.record.detected_step) = (at, at, at);
        i.resolve_at = i.resolve_at.or(i.falls().then_some(now + UNANSWERED));
        let words = match to.name.as_str() {
            "" => format!("run {from} ended, runs of other users are on the node too"),
            run => format!("run {from} ended, run {run} is on the node too"),
        };
        tx.out.push(timeline(now, id, words.clone()));
        // A ticket calls nobody.
        let calls = i.record.severity == Severity::Page && i.record.state == State::Open && !i.falls();
        if calls {
            self.announce(tx, id, now, &Why::new(Reason::News, words));
        }
        self.finish(id, tx.out);
    }

    /// Resolves the incidents of a run or node as stale, because nothing has reported it since
    /// `heard`.
    pub(crate) fn forgotten(&mut self, tx: &mut Tx<'_>, scope: &Scope, heard: Ts) {
        let now = tx.now;
        let what = if matches!(scope, Scope::Run(_)) { "run" } else { "node" };
        let silent = format!("nothing has been heard of the {what} since {heard}");
        for id in self.correlator.of_scope(scope) {
            if let Some(i) = self.open.get_mut(&id)
                && i.outlives(scope)
            {
                i.resolve_at = i.resolve_at.or(i.falls().then_some(now + UNANSWERED));
                tx.out.push(timeline(now, &id, silent.clone()));
                self.finish(&id, tx.out);
            } else {
                let reason = format!("stale: {silent}; it may still hold");
                self.resolve(tx, &id, End::stale(heard), &reason);
            }
        }
        self.closed_without(tx, &silent, |s| s.scope == *scope);
        self.correlator.flap_history_mut().forget(scope);
    }

    /// Handles runs and nodes whose stored state could not be read: no detector will report the end
    /// of what they raised. A run that stood still is taken to stand until it reports a step,
    /// because the hang detector needs to see a step before it can raise again.
    pub(crate) fn unread(&mut self, tx: &mut Tx<'_>, of: &BTreeSet<Scope>) {
        let why = "what was known of it is lost with the upgrade";
        self.closed_without(tx, why, |s| of.contains(&s.scope) && !s.is_standstill());
        for id in self.open.keys().cloned().collect::<Vec<_>>() {
            let Some(i) = self.open.get(&id) else { continue };
            let unread = i.raised.keys().map(|(s, _)| s).filter(|s| of.contains(&s.scope));
            let (stand, lost): (Vec<Subject>, Vec<Subject>) =
                unread.cloned().partition(Subject::is_standstill);
            let what = |subjects: &[Subject]| {
                let names: BTreeSet<&str> = subjects.iter().map(|s| s.scope.name()).collect();
                names.into_iter().collect::<Vec<_>>().join(", ")
            };
            if !stand.is_empty() {
                let run = what(&stand);
                let words = format!(
                    "what was known of {run} is lost with the upgrade: it is taken to stand until a step is heard; look at the run"
                );
                self.notify_lost(tx, &id, words);
            }
            if !lost.is_empty() {
                let words = format!("what was known of {} is lost with the upgrade", what(&lost));
                self.ends_unless_repeated(tx, &id, &words, |subject| lost.contains(subject));
            }
        }
    }

    /// Handles a run that steps again, or ends, after its state was lost. Its standstill is over
    /// unless it is reported again.
    pub(crate) fn heard_again(&mut self, tx: &mut Tx<'_>, run: &str) {
        let subject = Subject { scope: Scope::Run(run.to_owned()), cause: Cause::Progress };
        self.closed_without(tx, &format!("{run} is heard again"), |s| *s == subject);
        if let Some(id) = self.correlator.find(&subject) {
            self.ends_unless_repeated(tx, &id, &format!("{run} is heard again"), |s| *s == subject);
        }
    }

    /// The runs for which a standstill is raised, and when the incident opened.
    pub(crate) fn standstills(&self) -> impl Iterator<Item = (&str, Ts)> {
        let all = self.open.values().chain(self.closed.iter().map(|(_, i)| i));
        let raised = all.flat_map(|i| i.raised.keys().map(|(s, _)| (s, i.record.opened_at)));
        raised.filter(|(s, _)| s.is_standstill()).map(|(s, at)| (s.scope.name(), at))
    }

    /// Ends the subjects for which `goes` holds unless they are reported again within
    /// `REPEATED_WITHIN`, because no detector will report their end.
    fn ends_unless_repeated(
        &mut self,
        tx: &mut Tx<'_>,
        id: &str,
        why: &str,
        goes: impl Fn(&Subject) -> bool,
    ) {
        let now = tx.now;
        let Some(i) = self.open.get_mut(id) else { return };
        if !i.raised.keys().any(|(s, _)| goes(s)) {
            return;
        }
        let others = i.raised.keys().any(|(s, _)| !goes(s));
        i.silent.extend(i.raised.keys().filter(|(s, _)| goes(s)).map(|key| (key.clone(), now)));
        // If nobody has been notified of the incident yet, that happens first.
        if others || i.record.level > 0 {
            i.raised.retain(|(s, _), _| !goes(s));
        }
        if !others || i.falls() {
            i.resolve_at = Some(now + REPEATED_WITHIN);
        }
        let what = if others { "a part of it is over" } else { "it is over" };
        let words = format!("{why}: {what} unless it is reported again within {REPEATED_WITHIN}; look at it");
        self.notify_lost(tx, id, words);
    }

    fn notify_lost(&mut self, tx: &mut Tx<'_>, id: &str, words: String) {
        let now = tx.now;
        tx.out.push(timeline(now, id, words.clone()));
        self.notify_all(tx, id, Action::Update, words);
        self.finish(id, tx.out);
    }

    /// Resolves a page of which only less than a page is left, and opens a ticket for that.
    pub(super) fn fall(&mut self, tx: &mut Tx<'_>, id: &str) {
        let now = tx.now;
        let Some((had, (subject, kind, severity))) =
            self.open.get(id).and_then(|i| Some((i.clone(), i.worst_left()?)))
        else {
            return;
        };
        let over = had.record.kind.title();
        let reason = format!("{over} over; {} becomes a ticket", had.left());
        self.resolve(tx, id, End::of(Ended::Replaced), &reason);
        let new = self.correlator.next_id(now, &subject);
        let incident = had.without_its_page(now, new.clone(), kind, severity);
        let words = format!("opened as {}: {}", severity.as_str(), incident.record.summary);
        tx.out.push(timeline(now, &new, words));
        self.restore(new.clone(), incident);
        self.announce(tx, &new, now, &Why::first());
        self.finish(&new, tx.out);
    }

    /// Lets a new attempt notify again, whatever a person closed by hand before.
    pub(crate) fn run_restarted(&mut self, run: &str) {
        self.correlator.flap_history_mut().reopen_all(&Scope::Run(run.to_owned()));
    }
}

impl Incident {
    /// Whether it is a page, and nothing is left in it that is one.
    pub(super) fn falls(&self) -> bool {
        self.record.severity == Severity::Page
            && self.storm.is_none()
            && self.worst_left().is_some_and(|(.., severity)| severity < Severity::Page)
    }

    /// Whether what it reports still holds.
    pub(super) fn holds(&self) -> Holds {
        let ended = self.record.end.as_ref().map(|end| end.how);
        if self.outlived_its_run || ended == Some(Ended::RunEnded) {
            return Holds::RunEnded;
        }
        let over = self.raised.is_empty() && self.record.end_step.is_some() && self.storm.is_none();
        match over {
            false => Holds::Yes,
            true if self.record.is_stale() || !self.silent.is_empty() => Holds::Silent,
            true => Holds::Over,
        }
    }

    /// How it ends if no measurement shows its end: as stale, with its run, or by its sender.
    pub(super) fn end(&self) -> Option<End> {
        if let Some(since) = self.silent.values().max() {
            return Some(End::stale(*since));
        }
        let of_alerts = self.subjects.iter().all(|s| matches!(s.scope, Scope::Alert(_)));
        let how = if self.outlived_its_run { Ended::RunEnded } else { Ended::Sender };
        (of_alerts || self.outlived_its_run).then(|| End::of(how))
    }

    /// The run that now uses a node that is faulty in this incident.
    fn heir<'a>(&self, heirs: &'a BTreeMap<String, RunSummary>) -> Option<&'a RunSummary> {
        self.raised.keys().find_map(|(s, _)| match &s.scope {
            Scope::Node(node) => heirs.get(node),
            _ => None,
        })
    }

    fn worst_left(&self) -> Option<(Subject, Kind, Severity)> {
        let worst = self.raised.iter().max_by_key(|((_, kind), severity)| (**severity, kind.precedence()));
        worst.map(|((subject, kind), severity)| (subject.clone(), *kind, *severity))
    }

    /// What still holds, in words.
    pub(super) fn left(&self) -> String {
        let left = self.raised.keys().map(|(subject, kind)| match &subject.scope {
            Scope::Alert(_) => kind.title().to_owned(),
            scope => format!("{} of {}", kind.title(), scope.name()),
        });
        left.collect::<Vec<_>>().join(", ")
    }

    /// A new incident, of which nobody has been notified, for what is left of this one.
    fn without_its_page(self, now: Ts, id: String, kind: Kind, severity: Severity) -> Self {
        let subjects: BTreeSet<Subject> = self.raised.keys().map(|(subject, _)| subject.clone()).collect();
        let (summary, suspects) = self.what_is_left();
        let mut nodes = self.record.nodes;
        if subjects.iter().all(|s| matches!(s.scope, Scope::Node(_))) {
            nodes.retain(|node| subjects.iter().any(|s| s.scope.name() == node));
        }
        let record = IncidentRecord {
            run: self.record.run,
            nodes,
            start_step: self.record.start_step,
            opened_step: self.record.opened_step,
            detected_step: self.record.detected_step,
            summary,
            suspects,
            labels: self.record.labels,
            ..IncidentRecord::new(id, now, kind, severity)
        };
        let known = self.known.into_iter().filter(|(subject, _)| subjects.contains(subject)).collect();
        Self {
            raised: self.raised,
            known,
            node_at: self.node_at,
            alerts: self.alerts,
            ..Self::new(record, self.summary, subjects)
        }
    }
}
