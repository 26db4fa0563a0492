//! Incidents on virtual time, without detectors: who is notified of what, when and why, and that
//! nothing else is sent.

mod alerts;
mod answers;
mod calls;
mod closed;
mod correlation;
mod ends;
mod escalation;
mod fallback;
mod heard_again;
mod model;
mod replicas;
mod storms;
mod suppression;
mod unrecorded;

use std::collections::{BTreeMap, BTreeSet};

use super::{IncidentRecord, State};
use crate::Responder;
use crate::config::{Level, Policy, ResponderConfig, Route};
use crate::effect::{Action, Effect, IncidentAction, Input, Notification};
use crate::matcher::Matcher;
use crate::message::Reason;
use crate::responder::NoDirectory;
use crate::silence::{Phase, Silence, SilenceConfig, Wanted};
use stepwatch_model::{Change, Context, Finding, Kind, RunSummary, Scope, Severity, Span, Ts, clause};

pub(super) const START: Ts = Ts(1_795_227_416_000);
/// The most deadlines at one moment; more mean that a deadline does not advance.
const MAX_AT_ONCE: usize = 1000;

/// A responder, a clock that only tests move, and all effects.
pub(super) struct World {
    pub(super) engine: Responder,
    config: ResponderConfig,
    pub(super) now: Ts,
    sent: Vec<Notification>,
    pub(super) records: BTreeMap<String, IncidentRecord>,
    history: Vec<String>,
    parts: BTreeMap<String, Vec<u8>>,
    silences: BTreeMap<String, Silence>,
}

/// A policy with two levels: the chat at once, then the phone after five minutes, which is repeated
/// once.
pub(super) fn two_levels() -> ResponderConfig {
    let level = |after, to: &str, repeat| Level {
        after: Span::secs(after),
        notify: vec![to.into()],
        repeat,
        ..Level::default()
    };
    let levels = vec![level(0, "chat", 0), level(300, "phone", 1)];
    let to = |severity: &str| vec![format!("severity=\"{severity}\"")];
    ResponderConfig {
        receivers: vec!["chat".into(), "phone".into()],
        policies: vec![Policy { name: "p".into(), levels }],
        routes: vec![
            Route { matchers: to("page"), policy: Some("p".into()), ..Route::default() },
            Route { matchers: to("ticket"), notify: vec!["chat".into()], ..Route::default() },
        ],
        // Reminders have tests of their own.
        silences: SilenceConfig { remind_before: Span::ZERO, ..SilenceConfig::default() },
        ..ResponderConfig::default()
    }
}

/// The finding of a detector that raises a kind.
pub(super) fn raised(ts: Ts, kind: Kind, severity: Severity) -> Finding {
    Finding {
        change: Change::Raise,
        kind,
        severity,
        signal: "x".into(),
        step: 1,
        ts,
        start_step: 1,
        value: 0.0,
        expected: 0.0,
        score: 0.0,
        why: clause!("why").into(),
        suspects: Vec::new(),
    }
}

impl World {
    pub(super) fn new(config: ResponderConfig) -> Self {
        Self {
            engine: Responder::new(config.clone()),
            config,
            now: START,
            sent: Vec::new(),
            records: BTreeMap::new(),
            history: Vec::new(),
            parts: BTreeMap::new(),
            silences: BTreeMap::new(),
        }
    }

    /// Feeds a finding about a run.
    pub(super) fn said(&mut self, run: &str, change: Change, kind: Kind, severity: Severity) {
        self.said_of(Scope::Run(run.into()), run, change, kind, severity);
    }

    pub(super) fn said_of(
        &mut self,
        scope: Scope,
        run: &str,
        change: Change,
        kind: Kind,
        severity: Severity,
    ) {
        let run = RunSummary { name: run.into(), gpus: Some(8), ..RunSummary::default() };
        let context = Context::new(scope, run, BTreeSet::new(), self.now);
        self.said_by(&context, change, kind, severity);
    }

    fn said_by(&mut self, context: &Context, change: Change, kind: Kind, severity: Severity) {
        let v = Finding { change, ..raised(self.now, kind, severity) };
        let mut out = Vec::new();
        self.engine.judge(self.now, context, &v, &mut out);
        self.absorb(out);
    }

    pub(super) fn raise(&mut self, run: &str, kind: Kind, severity: Severity) -> String {
        self.said(run, Change::Raise, kind, severity);
        self.id(run, kind)
    }

    /// The open incident of a run and the cause of a kind.
    pub(super) fn id(&self, run: &str, kind: Kind) -> String {
        let is = |r: &&IncidentRecord| r.run == run && r.cause == kind.cause() && r.state != State::Resolved;
        self.records.values().find(is).map(|r| r.id.clone()).unwrap_or_default()
    }

    pub(super) fn input(&mut self, input: Input<'_>) {
        let mut out = Vec::new();
        self.engine.handle(self.now, input, &NoDirectory, &mut out);
        self.absorb(out);
    }

    /// Silences what these matchers match (`run="r", severity="ticket"`) for `lasts` from now on,
    /// and returns the id of the silence.
    pub(super) fn silence(&mut self, matchers: &str, lasts: Span) -> String {
        let wanted = Wanted {
            id: None,
            matchers: matchers.split(", ").map(|m| Matcher::parse(m).unwrap()).collect(),
            starts_at: None,
            ends_at: self.now + lasts,
            created_by: "alice".into(),
            comment: "new switch".into(),
            expire_on_resolve: false,
        };
        let fresh = format!("s{}", self.silences.len());
        let plan = self.engine.plan_silence(self.now, wanted, &fresh).unwrap();
        self.input(Input::Silence { plan: &plan });
        fresh
    }

    pub(super) fn absorb(&mut self, effects: Vec<Effect>) {
        for e in effects {
            match e {
                Effect::Notify(n) => self.sent.push(*n),
                Effect::Incident(r) => drop(self.records.insert(r.id.clone(), *r)),
                Effect::Timeline(t) => self.history.push(format!("{} {} {}", t.at, t.incident, t.what)),
                Effect::Silence(s) => drop(self.silences.insert(s.id.clone(), *s)),
                Effect::Override(_) | Effect::Alert(_) | Effect::AlertOver(_) => {}
            }
        }
        for (key, bytes) in self.engine.take_dirty() {
            match bytes {
                Some(b) => self.parts.insert(key, b),
                None => self.parts.remove(&key),
            };
        }
        assert_eq!(self.engine.audit(self.now), [], "{:#?}", self.history);
    }

    /// Advances the clock, and handles every deadline on the way.
    pub(super) fn forward(&mut self, by: Span) {
        let until = self.now + by;
        while let Some((at, why)) = self.engine.next_deadline().filter(|(at, _)| *at <= until) {
            assert!(at >= self.now, "a deadline that lies behind: {at} at {}", self.now);
            self.now = at;
            let (mut out, mut at_once) = (Vec::new(), 0);
            while self.engine.tick_one(self.now, &NoDirectory, &mut out) {
                at_once += 1;
                assert!(at_once < MAX_AT_ONCE, "time stands still at {at} ({why}): {:#?}", self.history);
            }
            self.absorb(out);
        }
        self.now = until;
    }

    /// Restarts the process: only stored state survives, and what the store restores by itself.
    pub(super) fn restore(&mut self) {
        let (engine, unusable) = Responder::restore(self.config.clone(), self.parts.clone());
        assert_eq!(unusable, [""; 0]);
        self.engine = engine;
        let now = self.now;
        let stored = self.silences.values().filter(|s| s.phase(now) != Phase::Expired);
        self.engine.restore_silences(now, stored.cloned());
    }

    pub(super) fn reload(&mut self) {
        self.engine.reconfigure(self.config.clone());
        let mut out = Vec::new();
        self.engine.reconsider(self.now, &mut out);
        self.absorb(out);
    }

    /// The notifications since the last call: to whom, what, why.
    pub(super) fn news(&mut self) -> Vec<(String, Action, Reason)> {
        let notified = |n: Notification| (n.receiver, n.action, n.message.because);
        core::mem::take(&mut self.sent).into_iter().map(notified).collect()
    }

    /// Fails unless exactly these notifications were sent since the last call.
    pub(super) fn expect(&mut self, want: &[(&str, Action, Reason)]) {
        let want: Vec<_> = want.iter().map(|(to, action, why)| ((*to).to_owned(), *action, *why)).collect();
        assert_eq!(self.news(), want, "{:#?}", self.history);
    }

    pub(super) fn has_said(&self, part: &str) -> bool {
        self.history.iter().any(|h| h.contains(part))
    }
}
