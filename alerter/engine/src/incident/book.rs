//! The open incidents: verdicts in, notifications out.
//!
//! A run has at most one open incident a cause. It opens with the first raised verdict, follows the most severe one, and
//! resolves when every kind that raised it has been clear for the hold time. Each return within the hold, and each incident that
//! follows a resolved one of the same cause within [`FLAP_MEMORY`], doubles the hold: a condition that comes and goes is one
//! incident, not twenty.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::escalation::Ladder;
use super::{IncidentRecord, State, id};
use crate::config::EngineConfig;
use crate::effect::{Action, Effect, Notification, TimelineEntry};
use crate::message::{self, RunSummary, Status};
use crate::route::Router;
use crate::time::{Span, Ts};
use crate::verdict::{Cause, Change, Kind, Severity, Verdict};

/// How long a resolved incident counts against the next one of its cause.
pub(crate) const FLAP_MEMORY: Span = Span::secs(3600);
/// The hold doubles at most this often.
const MAX_DOUBLINGS: u32 = 5;
/// A verdict about a step this long ago is read from a backlog, whose end may tell that it is over.
const LATE: Span = Span::secs(120);
/// How long such news waits for the end of the backlog before anyone is told.
const BACKLOG: Span = Span::secs(10);
/// How long a page that nobody answered outlives a run that ended by itself.
const UNANSWERED: Span = Span::secs(900);
/// Suspects kept an incident.
const MAX_SUSPECTS: usize = 8;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Incident {
    pub(crate) record: IncidentRecord,
    pub(crate) summary: RunSummary,
    raised: BTreeMap<Kind, Severity>,
    /// When it resolves if nothing comes back.
    resolve_at: Option<Ts>,
    ladder: Option<Ladder>,
    lanes: BTreeMap<String, Lane>,
}

/// What one receiver has been told.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Lane {
    seq: u32,
}

/// What is remembered of a cause of a run between incidents.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Memory {
    run: String,
    cause: Cause,
    at: Ts,
    flaps: u32,
    /// Kinds that a person closed by hand while they still held: quiet until they clear or get worse.
    closed: BTreeMap<Kind, Severity>,
}

/// The reason of the first message.
const NEW: &str = "new incident";

/// What survives apart from the incidents themselves.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Ledger {
    counter: u64,
    memory: Vec<Memory>,
}

#[derive(Debug, Default)]
pub(crate) struct Book {
    pub(crate) config: EngineConfig,
    router: Router,
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
        self.config = config;
    }

    fn is_of(&self, id: &str, kind: Kind) -> bool {
        self.open.get(id).is_some_and(|i| i.record.cause == kind.cause())
    }

    fn find(&self, run: &str, cause: Cause) -> Option<String> {
        self.open
            .values()
            .find(|i| i.record.run == run && i.record.cause == cause)
            .map(|i| i.record.id.clone())
    }

    pub(crate) fn verdict(&mut self, now: Ts, run: &RunSummary, v: &Verdict, out: &mut Vec<Effect>) {
        let open = self.find(&run.name, v.kind.cause()).or_else(|| self.hang_that_was(run, v));
        match (v.change, open) {
            (Change::Raise, Some(id)) if self.is_of(&id, v.kind) => self.update(now, &id, run, v, out),
            (Change::Raise, Some(id)) => {
                out.push(timeline(now, &id, format!("also {}: {}", v.kind.title(), v.why)))
            }
            (Change::Raise, None) if self.closed_by_hand(&run.name, v) => {}
            (Change::Raise, None) => self.create(now, run, v, out),
            (Change::Note, Some(id)) => {
                self.touched.push(id.clone());
                out.push(timeline(now, &id, format!("also seen: {}", v.why)));
            }
            (Change::Note, None) => self.annotate(now, run, v, out),
            (Change::Clear, open) => {
                self.forget_closed(&run.name, v.kind);
                if let Some(id) = open {
                    self.clear(now, &id, run, v, out);
                }
            }
        }
    }

    /// The step that ends a hang is a long one: that is the hang, not a second sickness.
    fn hang_that_was(&self, run: &RunSummary, v: &Verdict) -> Option<String> {
        let stall = v.kind == Kind::Stall && v.change != Change::Clear;
        if stall { self.find(&run.name, Cause::Progress) } else { None }
    }

    fn create(&mut self, now: Ts, run: &RunSummary, v: &Verdict, out: &mut Vec<Effect>) {
        let flaps = self.memory(now, &run.name, v.kind.cause()).map_or(0, |m| m.flaps + 1);
        let record = self.record(now, run, v, flaps);
        let id = record.id.clone();
        let again = if flaps > 0 {
            format!(" (came back {flaps} times within {FLAP_MEMORY})")
        } else {
            String::new()
        };
        out.push(timeline(now, &id, format!("opened as {}: {}{again}", v.severity.as_str(), v.why)));
        let incident = Incident {
            record,
            summary: run.clone(),
            raised: BTreeMap::from([(v.kind, v.severity)]),
            resolve_at: None,
            ladder: None,
            lanes: BTreeMap::new(),
        };
        self.open.insert(id.clone(), incident);
        self.announce(now, &id, v.ts, NEW, out);
        self.finish(&id, out);
    }

    fn annotate(&mut self, now: Ts, run: &RunSummary, v: &Verdict, out: &mut Vec<Effect>) {
        let mut record = self.record(now, run, v, 0);
        record.state = State::Resolved;
        record.resolved_at = Some(now);
        record.end_step = Some(v.step);
        // It is not open, but its number is used up.
        self.touched.push(record.id.clone());
        out.push(timeline(now, &record.id, format!("noted: {}", v.why)));
        out.push(Effect::Incident(Box::new(record)));
    }

    fn record(&mut self, now: Ts, run: &RunSummary, v: &Verdict, flaps: u32) -> IncidentRecord {
        self.ledger.counter += 1;
        let mut suspects = v.suspects.clone();
        suspects.truncate(MAX_SUSPECTS);
        IncidentRecord {
            id: id::new(now, &run.name, v.kind.cause(), self.ledger.counter),
            run: run.name.clone(),
            cause: v.kind.cause(),
            kind: v.kind,
            severity: v.severity,
            state: State::Open,
            signal: v.signal.to_owned(),
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

    fn update(&mut self, now: Ts, id: &str, run: &RunSummary, v: &Verdict, out: &mut Vec<Effect>) {
        let Some(i) = self.open.get_mut(id) else { return };
        i.summary = run.clone();
        if i.resolve_at.take().is_some() {
            i.record.flaps += 1;
            out.push(timeline(now, id, format!("came back: {}", v.why)));
            if i.record.state == State::Acknowledged {
                self.tell_all(now, id, Action::Update, "it came back", out);
            }
        }
        let Some(i) = self.open.get_mut(id) else { return };
        i.raised.insert(v.kind, v.severity);
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
            i.record.state = State::Open;
            (i.record.acked_by, i.record.acked_at) = (None, None);
            if had_severity == Severity::Info {
                i.record.opened_step = v.step;
            }
            let reason = format!("raised from {} to {}", had_severity.as_str(), v.severity.as_str());
            self.announce(now, id, v.ts, &reason, out);
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

    fn clear(&mut self, now: Ts, id: &str, run: &RunSummary, v: &Verdict, out: &mut Vec<Effect>) {
        let hold_base = self.config.resolve_after;
        let Some(i) = self.open.get_mut(id) else { return };
        i.summary = run.clone();
        if i.raised.remove(&v.kind).is_none() {
            return;
        }
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

    /// Tells the people of its route, from the first level on. Nobody is told of an annotation.
    fn announce(&mut self, now: Ts, id: &str, at: Ts, reason: &str, out: &mut Vec<Effect>) {
        let Some(i) = self.open.get_mut(id) else { return };
        if i.record.severity == Severity::Info {
            return;
        }
        let from = if now - at > LATE { now + BACKLOG } else { now };
        i.ladder = Some(Ladder::new(from, self.router.levels(&self.config, &i.record)));
        self.climb(now, id, reason, out);
    }

    /// Notifies every level that is due.
    fn climb(&mut self, now: Ts, id: &str, reason: &str, out: &mut Vec<Effect>) {
        while let Some(i) = self.open.get_mut(id) {
            let page = i.record.severity == Severity::Page;
            let Some(due) = i.ladder.as_mut().and_then(|l| l.due(now, page)) else { break };
            let told = due.level > i.record.level || due.repeat > 0;
            let reason = if i.record.level == 0 || !told {
                reason.to_owned()
            } else {
                due.reason(i.record.opened_at, now)
            };
            i.record.level = due.level;
            out.push(timeline(
                now,
                id,
                format!("level {} notified ({}): {reason}", due.level, due.notify.join(", ")),
            ));
            for receiver in due.notify {
                self.send(now, id, &receiver, Action::Trigger, &reason, out);
            }
        }
        if let Some(i) = self.open.get_mut(id) {
            i.record.next_at = i.ladder.as_ref().and_then(Ladder::next_at);
        }
    }

    fn send(
        &mut self,
        now: Ts,
        id: &str,
        receiver: &str,
        action: Action,
        reason: &str,
        out: &mut Vec<Effect>,
    ) {
        let Some(i) = self.open.get_mut(id) else { return };
        let lane = i.lanes.entry(receiver.to_owned()).or_default();
        lane.seq += 1;
        let seq = lane.seq;
        let status = match action {
            Action::Resolve => Status::Resolved,
            _ if i.record.state == State::Acknowledged => Status::Acknowledged,
            _ => Status::Firing,
        };
        out.push(Effect::Notify(Box::new(Notification {
            incident: id.to_owned(),
            receiver: receiver.to_owned(),
            seq,
            action,
            idem_key: format!("{id}/{receiver}/{seq}"),
            page: i.record.severity == Severity::Page,
            message: message::compose(now, &i.record, &i.summary, status, reason, &self.config),
        })));
    }

    /// News for everyone who was told of the incident.
    fn tell_all(&mut self, now: Ts, id: &str, action: Action, reason: &str, out: &mut Vec<Effect>) {
        let receivers: Vec<String> =
            self.open.get(id).map(|i| i.lanes.keys().cloned().collect()).unwrap_or_default();
        for receiver in receivers {
            self.send(now, id, &receiver, action, reason, out);
        }
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
        let (run, cause, raised) = (i.record.run.clone(), i.record.cause, i.raised.clone());
        self.resolve(now, id, by, &format!("resolved by {by}"), out);
        let m = self.memory_mut(now, &run, cause);
        m.closed = raised;
    }

    fn resolve(&mut self, now: Ts, id: &str, actor: &str, reason: &str, out: &mut Vec<Effect>) {
        let Some(i) = self.open.get_mut(id) else { return };
        i.record.state = State::Resolved;
        i.record.resolved_at = Some(now);
        i.record.next_at = None;
        if i.record.end_step.is_none() {
            i.record.end_step = i.summary.last_step;
        }
        let (run, cause, flaps) = (i.record.run.clone(), i.record.cause, i.record.flaps);
        out.push(by_actor(now, id, actor, reason.to_owned()));
        self.tell_all(now, id, Action::Resolve, reason, out);
        self.finish(id, out);
        self.open.remove(id);
        self.memory_mut(now, &run, cause).flaps = flaps;
    }

    /// The run came to its end. Its incidents are over, but a page that nobody answered stays for a while: an idle cluster is
    /// somebody's business too, unless a person stopped the run.
    pub(crate) fn run_ended(&mut self, now: Ts, run: &str, by_hand: bool, out: &mut Vec<Effect>) {
        let ids: Vec<String> = self.of_run(run);
        for id in ids {
            let Some(i) = self.open.get_mut(&id) else { continue };
            let unanswered = i.record.severity == Severity::Page && i.record.state == State::Open;
            if unanswered && !by_hand {
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
        self.ledger.memory.retain(|m| m.run != run);
    }

    /// Nothing was heard of the run for so long that it is forgotten.
    pub(crate) fn run_forgotten(&mut self, now: Ts, run: &str, out: &mut Vec<Effect>) {
        for id in self.of_run(run) {
            self.resolve(now, &id, "engine", "nothing was heard of the run any more", out);
        }
        self.ledger.memory.retain(|m| m.run != run);
    }

    /// A new attempt is judged afresh, whatever was closed by hand before.
    pub(crate) fn run_restarted(&mut self, run: &str) {
        self.ledger.memory.iter_mut().filter(|m| m.run == run).for_each(|m| m.closed.clear());
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

    /// What was over before anyone was told is told to nobody.
    fn climb_if_it_holds(&mut self, now: Ts, id: &str, out: &mut Vec<Effect>) {
        let Some(i) = self.open.get_mut(id) else { return };
        if i.record.level == 0 && i.raised.is_empty() {
            i.ladder = None;
            i.record.next_at = None;
            out.push(timeline(now, id, "over before the backlog was read: nobody was told".into()));
            return;
        }
        let reason = if i.record.level == 0 { NEW } else { "still firing" };
        self.climb(now, id, reason, out);
    }

    pub(crate) fn deadline(&self, id: &str) -> Option<(Ts, &'static str)> {
        let i = self.open.get(id)?;
        let resolve = i.resolve_at.map(|at| (at, "resolve hold"));
        let climb = i.record.next_at.map(|at| (at, "escalation"));
        [resolve, climb].into_iter().flatten().min()
    }

    /// A receiver will never take it: the next level is due now.
    pub(crate) fn failed(
        &mut self,
        now: Ts,
        id: &str,
        receiver: &str,
        action: Action,
        error: &str,
        out: &mut Vec<Effect>,
    ) {
        out.push(by_actor(now, id, receiver, format!("{} failed for good: {error}", action.as_str())));
        let Some(i) = self.open.get_mut(id) else { return };
        if action != Action::Trigger || i.record.state != State::Open {
            return;
        }
        if i.ladder.as_mut().is_some_and(|l| l.hurry(now)) {
            self.climb(now, id, "escalated", out);
        } else {
            // Nobody left above: everyone who has not been told yet.
            let told: Vec<String> = i.lanes.keys().cloned().collect();
            for other in self.config.receivers.clone() {
                if !told.contains(&other) {
                    self.send(
                        now,
                        id,
                        &other,
                        Action::Trigger,
                        &format!("{receiver} could not be reached: {error}"),
                        out,
                    );
                }
            }
        }
        self.finish(id, out);
    }

    fn finish(&mut self, id: &str, out: &mut Vec<Effect>) {
        if let Some(i) = self.open.get(id) {
            out.push(Effect::Incident(Box::new(i.record.clone())));
        }
        self.touched.push(id.to_owned());
    }

    fn memory(&mut self, now: Ts, run: &str, cause: Cause) -> Option<&Memory> {
        self.ledger.memory.retain(|m| now - m.at < FLAP_MEMORY || !m.closed.is_empty());
        self.ledger.memory.iter().find(|m| m.run == run && m.cause == cause && now - m.at < FLAP_MEMORY)
    }

    fn memory_mut(&mut self, now: Ts, run: &str, cause: Cause) -> &mut Memory {
        let memory = &mut self.ledger.memory;
        let at = memory.iter().position(|m| m.run == run && m.cause == cause).unwrap_or_else(|| {
            memory.push(Memory { run: run.to_owned(), cause, at: now, flaps: 0, closed: BTreeMap::new() });
            memory.len() - 1
        });
        memory[at].at = now;
        &mut memory[at]
    }

    fn closed_by_hand(&self, run: &str, v: &Verdict) -> bool {
        let closed = |m: &Memory| m.closed.get(&v.kind).is_some_and(|s| v.severity <= *s);
        self.ledger.memory.iter().any(|m| m.run == run && m.cause == v.kind.cause() && closed(m))
    }

    fn forget_closed(&mut self, run: &str, kind: Kind) {
        for m in self.ledger.memory.iter_mut().filter(|m| m.run == run) {
            m.closed.remove(&kind);
        }
    }
}

impl IncidentRecord {
    /// Takes over what the leading verdict says. The onset stays the earliest.
    fn follow(&mut self, v: &Verdict) {
        if v.severity > self.severity {
            self.severity = v.severity;
            self.detected_step = v.step;
        }
        self.kind = v.kind;
        self.start_step = self.start_step.min(v.start_step);
        // What was usual before the sickness began says more than the last number before the NaN.
        if v.value.is_finite() || v.signal != self.signal {
            self.expected = v.expected;
        }
        v.signal.clone_into(&mut self.signal);
        (self.value, self.score) = (v.value, v.score);
        self.summary.clone_from(&v.why);
        self.end_step = None;
    }

    /// Whoever is suspected stays so, whichever kind names the incident.
    fn suspect(&mut self, v: &Verdict) {
        for s in &v.suspects {
            if self.suspects.len() < MAX_SUSPECTS && !self.suspects.iter().any(|had| had.what == s.what) {
                self.suspects.push(s.clone());
            }
        }
    }
}

/// Which of two kinds of one severity names the incident: where a sickness leads, not where it began.
fn worse(kind: Kind) -> u8 {
    match kind {
        Kind::Nonfinite => 6,
        Kind::Divergence => 5,
        Kind::LossSpike | Kind::RankDead => 4,
        Kind::GradInstability | Kind::Hang => 3,
        Kind::LossShift | Kind::ThroughputDrop => 2,
        Kind::GradSpike | Kind::MfuDroop => 1,
        _ => 0,
    }
}

pub(crate) fn timeline(at: Ts, incident: &str, what: String) -> Effect {
    by_actor(at, incident, "engine", what)
}

pub(crate) fn by_actor(at: Ts, incident: &str, actor: &str, what: String) -> Effect {
    Effect::Timeline(TimelineEntry { incident: incident.to_owned(), at, actor: actor.to_owned(), what })
}
