//! The open incidents: verdicts in, notifications out.
//!
//! A run, and a node, has at most one open incident a cause; what turns out to be one sickness of both is one incident
//! ([`super::kin`]). It opens with the first raised verdict, follows the most severe one, and resolves when every kind that raised
//! it has been clear for the hold time. Each return within the hold, and each incident that follows a resolved one of the same
//! cause within an hour, doubles the hold: a condition that comes and goes is one incident, not twenty.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::escalation::Ladder;
use super::ledger::{FLAP_MEMORY, Ledger};
use super::nature::is_news;
use super::record::worse;
use super::telling::NEW;
use super::{IncidentRecord, Scope, State, Subject, id};
use crate::config::EngineConfig;
use crate::effect::{Action, Effect, TimelineEntry};
use crate::message::RunSummary;
use crate::oncall::OnCall;
use crate::route::Router;
use crate::time::{Span, Ts};
use crate::verdict::{Cause, Change, Kind, Severity, Verdict};

/// The hold doubles at most this often.
const MAX_DOUBLINGS: u32 = 5;
/// How long a page that nobody answered outlives a run that ended by itself.
const UNANSWERED: Span = Span::secs(900);
/// Suspects kept an incident, and nodes.
pub(super) const MAX_SUSPECTS: usize = 8;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Incident {
    pub(crate) record: IncidentRecord,
    pub(crate) summary: RunSummary,
    /// What it answers for: what it was opened for, and what turned out to be the same sickness.
    pub(super) subjects: BTreeSet<Subject>,
    pub(super) raised: BTreeMap<(Subject, Kind), Severity>,
    /// Every kind that was ever raised in it, by its subject.
    known: BTreeMap<Subject, BTreeSet<Kind>>,
    /// When a node last had something new to say in it.
    pub(super) node_at: Option<Ts>,
    /// When it resolves if nothing comes back.
    resolve_at: Option<Ts>,
    pub(super) ladder: Option<Ladder>,
    pub(super) lanes: BTreeMap<String, Lane>,
}

/// What one receiver has been told.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Lane {
    pub(super) seq: u32,
}

/// Whom a verdict is about, and what there is to know of them.
#[derive(Debug, Clone)]
pub(crate) struct Party {
    pub(crate) scope: Scope,
    /// The run that is hit; without a name if none is.
    pub(crate) run: RunSummary,
    /// The nodes of the run, or the node.
    pub(crate) nodes: BTreeSet<String>,
    /// When it was last known to be well.
    pub(crate) well_at: Ts,
}

#[derive(Debug, Default)]
pub(crate) struct Book {
    pub(crate) config: EngineConfig,
    pub(super) router: Router,
    pub(crate) oncall: OnCall,
    pub(crate) open: BTreeMap<String, Incident>,
    pub(crate) ledger: Ledger,
    /// Incidents that changed since the last look; gone ones are not in `open`.
    pub(crate) touched: Vec<String>,
}

impl Book {
    pub(crate) fn new(config: EngineConfig) -> Self {
        let mut book = Self::default();
        book.configure(config);
        book
    }

    pub(crate) fn configure(&mut self, config: EngineConfig) {
        // The alerter refuses a configuration whose matchers do not parse; a route that slipped through matches nothing,
        // and what no route matches goes to every receiver.
        self.router = Router::new(&config.routes).unwrap_or_default();
        self.oncall.configure(config.oncall.clone());
        self.config = config;
    }

    /// Why a run stands still, or is slow, if it does: the kind that is raised of it.
    pub(crate) fn sickness(&self, run: &str) -> Option<Kind> {
        let causes = [Cause::Progress, Cause::Speed];
        let of_run =
            |s: &Subject| matches!(&s.scope, Scope::Run(name) if name == run) && causes.contains(&s.cause);
        let raised = self.open.values().flat_map(|i| i.raised.keys()).filter(|(s, _)| of_run(s));
        raised.map(|(s, kind)| (causes.iter().position(|c| *c == s.cause), *kind)).min().map(|(_, kind)| kind)
    }

    fn find(&self, subject: &Subject) -> Option<String> {
        self.open.values().find(|i| i.subjects.contains(subject)).map(|i| i.record.id.clone())
    }

    pub(crate) fn verdict(&mut self, now: Ts, party: &Party, v: &Verdict, out: &mut Vec<Effect>) {
        let subject = Subject { scope: party.scope.clone(), cause: v.kind.cause() };
        let own = self.find(&subject);
        match v.change {
            Change::Clear => {
                self.ledger.reopen(&subject, v.kind);
                if let Some(id) = own {
                    self.clear(now, &id, &subject, party, v, out);
                }
            }
            Change::Raise => {
                if let Some(id) = own.filter(|id| !self.makes_room(now, id, &subject, v, out)) {
                    return self.update(now, &id, &subject, party, v, out);
                }
                if let Some(id) = self.hang_that_was(party, v) {
                    out.push(timeline(now, &id, format!("also {}: {}", v.kind.title(), v.why)));
                } else if self.ledger.is_closed(&subject, v) {
                    // Somebody knows.
                } else if let Some(id) = self.kin(now, party, v) {
                    self.join(now, &id, &subject, party, v, out);
                } else {
                    self.create(now, subject, party, v, out);
                }
            }
            Change::Note => {
                match own.or_else(|| self.hang_that_was(party, v)).or_else(|| self.kin(now, party, v)) {
                    Some(id) => {
                        out.push(timeline(now, &id, format!("also seen: {}", v.why)));
                        if let Some(i) = self.open.get_mut(&id).filter(|_| !v.suspects.is_empty()) {
                            i.record.suspect(v);
                        }
                        self.finish(&id, out);
                    }
                    None => self.annotate(now, party, v, out),
                }
            }
        }
    }

    /// The step that ends a hang is a long one: that is the hang, not a second sickness.
    fn hang_that_was(&self, party: &Party, v: &Verdict) -> Option<String> {
        let stall = v.kind == Kind::Stall && v.change != Change::Clear;
        let hang = Subject { scope: party.scope.clone(), cause: Cause::Progress };
        if stall { self.find(&hang) } else { None }
    }

    fn create(&mut self, now: Ts, subject: Subject, party: &Party, v: &Verdict, out: &mut Vec<Effect>) {
        let flaps = self.ledger.flaps(now, &subject);
        let record = self.record(now, party, v, flaps);
        let id = record.id.clone();
        let again = if flaps > 0 {
            format!(" (came back {flaps} times within {FLAP_MEMORY})")
        } else {
            String::new()
        };
        out.push(timeline(now, &id, format!("opened as {}: {}{again}", v.severity.as_str(), v.why)));
        let incident = Incident {
            record,
            summary: party.run.clone(),
            raised: BTreeMap::from([((subject.clone(), v.kind), v.severity)]),
            known: BTreeMap::from([(subject.clone(), BTreeSet::from([v.kind]))]),
            subjects: BTreeSet::from([subject]),
            node_at: party.is_node().then_some(now),
            resolve_at: None,
            ladder: None,
            lanes: BTreeMap::new(),
        };
        self.open.insert(id.clone(), incident);
        self.announce(now, &id, v.ts, NEW, out);
        self.finish(&id, out);
    }

    /// An incident that is over and only waits whether it comes back gives way to another trouble that is as severe: nobody who was told
    /// of the first knows of the second. True if it did.
    fn makes_room(
        &mut self,
        now: Ts,
        id: &str,
        subject: &Subject,
        v: &Verdict,
        out: &mut Vec<Effect>,
    ) -> bool {
        let Some(i) = self.open.get(id) else { return false };
        let gives_way = i.resolve_at.is_some()
            && i.raised.is_empty()
            && i.is_news(subject, v.kind)
            && v.severity >= i.record.severity.max(Severity::Ticket);
        if gives_way {
            self.resolve(now, id, "engine", &format!("over; {} is another trouble", v.kind.title()), out);
        }
        gives_way
    }

    /// What was two things is one sickness: whoever knows of the incident learns of the other.
    fn join(
        &mut self,
        now: Ts,
        id: &str,
        subject: &Subject,
        party: &Party,
        v: &Verdict,
        out: &mut Vec<Effect>,
    ) {
        let Some(i) = self.open.get_mut(id) else { return };
        i.subjects.insert(subject.clone());
        let told = |i: &Incident| i.lanes.values().map(|l| l.seq).sum::<u32>();
        let before = told(i);
        out.push(timeline(now, id, format!("{} of {}: one sickness", v.kind.title(), subject.scope.name())));
        self.update(now, id, subject, party, v, out);
        if self.open.get(id).is_some_and(|i| before > 0 && told(i) == before) {
            let reason = format!("also {} of {}: {}", v.kind.title(), subject.scope.name(), v.why);
            self.tell_all(now, id, Action::Update, &reason, out);
            self.finish(id, out);
        }
    }

    fn annotate(&mut self, now: Ts, party: &Party, v: &Verdict, out: &mut Vec<Effect>) {
        let mut record = self.record(now, party, v, 0);
        record.state = State::Resolved;
        record.resolved_at = Some(now);
        record.end_step = Some(v.step);
        // It is not open, but its number is used up.
        self.touched.push(record.id.clone());
        out.push(timeline(now, &record.id, format!("noted: {}", v.why)));
        out.push(Effect::Incident(Box::new(record)));
    }

    fn record(&mut self, now: Ts, party: &Party, v: &Verdict, flaps: u32) -> IncidentRecord {
        self.ledger.counter += 1;
        let mut suspects = v.suspects.clone();
        suspects.truncate(MAX_SUSPECTS);
        IncidentRecord {
            id: id::new(now, party.scope.name(), v.kind.cause(), self.ledger.counter),
            run: party.run.name.clone(),
            nodes: if party.is_node() { vec![party.scope.name().to_owned()] } else { Vec::new() },
            cause: v.kind.cause(),
            kind: v.kind,
            severity: v.severity,
            state: State::Open,
            signal: v.signal.clone().into_owned(),
            start_step: v.start_step,
            opened_step: v.step,
            detected_step: v.step,
            end_step: None,
            value: v.value,
            expected: v.expected,
            score: v.score,
            summary: v.why.clone(),
            suspects,
            opened_at: now,
            resolved_at: None,
            acked_by: None,
            acked_at: None,
            level: 0,
            next_at: None,
            flaps,
        }
    }

    fn update(
        &mut self,
        now: Ts,
        id: &str,
        subject: &Subject,
        party: &Party,
        v: &Verdict,
        out: &mut Vec<Effect>,
    ) {
        let Some(i) = self.open.get_mut(id) else { return };
        i.meet(now, party);
        if i.resolve_at.take().is_some() {
            i.record.flaps += 1;
            out.push(timeline(now, id, format!("came back: {}", v.why)));
            if i.record.state == State::Acknowledged {
                self.tell_all(now, id, Action::Update, "it came back", out);
            }
        }
        let Some(i) = self.open.get_mut(id) else { return };
        let news = i.is_news(subject, v.kind);
        i.raised.insert((subject.clone(), v.kind), v.severity);
        i.known.entry(subject.clone()).or_default().insert(v.kind);
        let (had_severity, had_kind) = (i.record.severity, i.record.kind);
        let leads = (v.severity, worse(v.kind)) >= (had_severity, worse(had_kind));
        i.record.suspect(v);
        if leads {
            i.record.follow(v);
        } else if v.kind != had_kind {
            out.push(timeline(now, id, format!("also {}: {}", v.kind.title(), v.why)));
        }
        if v.severity > had_severity {
            out.push(timeline(
                now,
                id,
                format!("raised from {} to {}: {}", had_severity.as_str(), v.severity.as_str(), v.why),
            ));
            // Worse than what was acknowledged: someone has to look again.
            i.record.reopen();
            if had_severity == Severity::Info {
                i.record.opened_step = v.step;
            }
            let reason = format!("raised from {} to {}", had_severity.as_str(), v.severity.as_str());
            self.announce(now, id, v.ts, &reason, out);
        } else if news && v.severity == Severity::Page && i.record.state == State::Acknowledged {
            // An acknowledgement covers what was known, and this was not.
            i.record.reopen();
            let reason = format!("after it was acknowledged: {}", v.kind.title());
            self.announce(now, id, v.ts, &reason, out);
        } else if news && !leads && v.severity == had_severity {
            self.tell_all(now, id, Action::Update, &format!("also {}: {}", v.kind.title(), v.why), out);
        } else if leads && v.kind != had_kind {
            out.push(timeline(now, id, format!("{} became {}: {}", had_kind.title(), v.kind.title(), v.why)));
            self.tell_all(
                now,
                id,
                Action::Update,
                &format!("{} became {}", had_kind.title(), v.kind.title()),
                out,
            );
        } else if leads {
            out.push(timeline(now, id, v.why.clone()));
        }
        self.finish(id, out);
    }

    fn clear(
        &mut self,
        now: Ts,
        id: &str,
        subject: &Subject,
        party: &Party,
        v: &Verdict,
        out: &mut Vec<Effect>,
    ) {
        let hold_base = self.config.resolve_after;
        let Some(i) = self.open.get_mut(id) else { return };
        if i.raised.remove(&(subject.clone(), v.kind)).is_none() {
            return;
        }
        // Not before: what is learned is stored only with an incident that changes.
        i.learn(&party.run);
        if i.raised.is_empty() && i.resolve_at.is_none() {
            let hold = Span(hold_base.0 << i.record.flaps.min(MAX_DOUBLINGS));
            i.resolve_at = Some(now + hold);
            i.record.end_step = Some(v.step);
            out.push(timeline(
                now,
                id,
                format!("{} over: {}; resolves if it stays so for {hold}", v.kind.title(), v.why),
            ));
        }
        self.finish(id, out);
    }

    pub(crate) fn ack(&mut self, now: Ts, id: &str, by: &str, out: &mut Vec<Effect>) {
        let Some(i) = self.open.get_mut(id) else { return };
        if i.record.state == State::Acknowledged {
            return;
        }
        i.record.state = State::Acknowledged;
        i.record.acked_by = Some(by.to_owned());
        i.record.acked_at = Some(now);
        i.record.next_at = None;
        i.ladder = None;
        let after = now - i.record.opened_at;
        out.push(by_actor(now, id, by, format!("acknowledged after {after}; escalation stops")));
        self.tell_all(now, id, Action::Ack, &format!("acknowledged by {by} after {after}"), out);
        self.finish(id, out);
    }

    pub(crate) fn resolve_by_hand(&mut self, now: Ts, id: &str, by: &str, out: &mut Vec<Effect>) {
        let Some(i) = self.open.get(id) else { return };
        let raised = i.raised.clone();
        self.resolve(now, id, by, &format!("resolved by {by}"), out);
        for ((subject, kind), severity) in raised {
            self.ledger.close(now, &subject, kind, severity);
        }
    }

    fn resolve(&mut self, now: Ts, id: &str, actor: &str, reason: &str, out: &mut Vec<Effect>) {
        let Some(i) = self.open.get_mut(id) else { return };
        i.record.state = State::Resolved;
        i.record.resolved_at = Some(now);
        i.record.next_at = None;
        if i.record.end_step.is_none() {
            i.record.end_step = i.summary.last_step;
        }
        let flaps = i.record.flaps;
        out.push(by_actor(now, id, actor, reason.to_owned()));
        self.tell_all(now, id, Action::Resolve, reason, out);
        self.finish(id, out);
        for subject in self.open.remove(id).map(|i| i.subjects).unwrap_or_default() {
            self.ledger.resolved(now, &subject, flaps);
        }
    }

    /// The run came to its end. Its incidents are over, but a page that nobody answered stays for a while: an idle cluster is
    /// somebody's business too, unless a person stopped the run.
    pub(crate) fn run_ended(&mut self, now: Ts, run: &str, by_hand: bool, out: &mut Vec<Effect>) {
        let scope = Scope::Run(run.to_owned());
        for id in self.of_run(run) {
            let Some(i) = self.open.get_mut(&id) else { continue };
            let unanswered = i.record.severity == Severity::Page && i.record.state == State::Open;
            if i.outlives(&scope) {
                if by_hand {
                    (i.ladder, i.record.next_at) = (None, None);
                }
                let calm = if by_hand { ": escalation stops" } else { "" };
                out.push(timeline(now, &id, format!("the run ended, what ails the node did not{calm}")));
                self.finish(&id, out);
            } else if unanswered && !by_hand {
                i.resolve_at = Some(now + UNANSWERED);
                i.raised.clear();
                out.push(timeline(
                    now,
                    &id,
                    format!("the run ended; resolves in {UNANSWERED} if nobody answers"),
                ));
                self.finish(&id, out);
            } else {
                let reason = if by_hand { "the run was stopped" } else { "the run ended" };
                self.resolve(now, &id, "engine", reason, out);
            }
        }
        self.ledger.forget(&scope);
    }

    /// Nothing was heard of it for so long that it is forgotten.
    pub(crate) fn forgotten(&mut self, now: Ts, scope: &Scope, out: &mut Vec<Effect>) {
        let of = |i: &Incident| i.subjects.iter().any(|s| s.scope == *scope);
        let ids: Vec<String> = self.open.values().filter(|i| of(i)).map(|i| i.record.id.clone()).collect();
        let what = if matches!(scope, Scope::Run(_)) { "run" } else { "node" };
        for id in ids {
            if self.open.get_mut(&id).is_some_and(|i| i.outlives(scope)) {
                out.push(timeline(now, &id, format!("nothing was heard of the {what} any more")));
                self.finish(&id, out);
            } else {
                let reason = format!("nothing was heard of the {what} any more");
                self.resolve(now, &id, "engine", &reason, out);
            }
        }
        self.ledger.forget(scope);
    }

    /// A new attempt is judged afresh, whatever was closed by hand before.
    pub(crate) fn run_restarted(&mut self, run: &str) {
        self.ledger.reopen_all(&Scope::Run(run.to_owned()));
    }

    fn of_run(&self, run: &str) -> Vec<String> {
        self.open.values().filter(|i| i.record.run == run).map(|i| i.record.id.clone()).collect()
    }

    pub(crate) fn tick(&mut self, now: Ts, id: &str, out: &mut Vec<Effect>) {
        let Some(i) = self.open.get(id) else { return };
        if i.resolve_at.is_some_and(|at| at <= now) {
            let lasted = now - i.record.opened_at;
            self.resolve(now, id, "engine", &format!("resolved by itself after {lasted}"), out);
        } else if i.record.next_at.is_some_and(|at| at <= now) {
            self.climb_if_it_holds(now, id, out);
            self.finish(id, out);
        }
    }

    pub(crate) fn deadline(&self, id: &str) -> Option<(Ts, &'static str)> {
        let i = self.open.get(id)?;
        let resolve = i.resolve_at.map(|at| (at, "resolve hold"));
        let climb = i.record.next_at.map(|at| (at, "escalation"));
        [resolve, climb].into_iter().flatten().min()
    }

    pub(super) fn finish(&mut self, id: &str, out: &mut Vec<Effect>) {
        if let Some(i) = self.open.get(id) {
            out.push(Effect::Incident(Box::new(i.record.clone())));
        }
        self.touched.push(id.to_owned());
    }
}

impl Incident {
    /// Whether `kind` is another trouble than any that this incident has been about.
    fn is_news(&self, subject: &Subject, kind: Kind) -> bool {
        self.known.get(subject).is_some_and(|known| is_news(kind, known))
    }
}

impl Party {
    pub(super) fn is_node(&self) -> bool {
        matches!(self.scope, Scope::Node(_))
    }
}

pub(crate) fn timeline(at: Ts, incident: &str, what: String) -> Effect {
    by_actor(at, incident, "engine", what)
}

pub(crate) fn by_actor(at: Ts, incident: &str, actor: &str, what: String) -> Effect {
    Effect::Timeline(TimelineEntry { incident: incident.to_owned(), at, actor: actor.to_owned(), what })
}
