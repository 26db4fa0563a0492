//! Runs the engine in virtual time, and records the course of its incidents.

use std::collections::BTreeMap;
use stepwatch_engine::{AnyInput, Engine, SourceInput};
use stepwatch_model::Severity;
use stepwatch_model::time::Ts;
use stepwatch_respond::config::ResponderConfig;
use stepwatch_respond::effect::{Effect, IncidentAction, Input};
use stepwatch_respond::incident::IncidentRecord;
use stepwatch_wire::Event;

use super::world::Listener;

/// The course of an incident over time.
#[derive(Debug, Clone)]
pub struct Course {
    /// A version for each change of what a person reads.
    pub versions: Vec<(Ts, IncidentRecord)>,
}

impl Course {
    /// When the incident first had at least this severity.
    pub fn reached(&self, severity: Severity) -> Option<Ts> {
        self.versions.iter().find(|(_, r)| r.severity >= severity).map(|(at, _)| *at)
    }

    /// When it became a ticket and when it became a page; once, if it began as a page.
    pub fn announcements(&self) -> impl Iterator<Item = (Ts, &Self)> {
        let (ticket, page) = (self.reached(Severity::Ticket), self.reached(Severity::Page));
        ticket.into_iter().chain(page.filter(|at| Some(*at) != ticket)).map(move |at| (at, self))
    }

    /// The incident as it was at a time.
    pub fn at(&self, at: Ts) -> Option<&IncidentRecord> {
        self.versions.iter().rev().find(|(since, _)| *since <= at).map(|(_, r)| r)
    }

    pub fn last(&self) -> Option<&IncidentRecord> {
        self.versions.last().map(|(_, r)| r)
    }
}

/// A listener that feeds the engine.
#[derive(Debug)]
pub struct Watch {
    engine: Engine,
    now: Ts,
    out: Vec<Effect>,
    pub incidents: BTreeMap<String, Course>,
}

impl Watch {
    pub fn new() -> Self {
        let config = ResponderConfig {
            receivers: vec!["chat".into()],
            cost_per_gpu_hour: Some(2.5),
            ..ResponderConfig::default()
        };
        Self { engine: Engine::new(config), now: Ts(0), out: Vec::new(), incidents: BTreeMap::new() }
    }

    fn due(&mut self, until: Ts) {
        while let Some((due, _)) = self.engine.next_deadline().filter(|(due, _)| *due <= until) {
            self.now = self.now.max(due);
            self.engine.tick(self.now, &mut self.out);
            self.absorb();
        }
        self.now = self.now.max(until);
    }

    fn feed<'a>(&mut self, at: Ts, input: impl Into<AnyInput<'a>>) {
        self.due(at);
        self.engine.handle(self.now, input, &mut self.out);
        if !self.out.is_empty() {
            self.absorb();
        }
    }

    fn absorb(&mut self) {
        for effect in self.out.drain(..) {
            let Effect::Incident(record) = effect else { continue };
            let course =
                self.incidents.entry(record.id.clone()).or_insert_with(|| Course { versions: Vec::new() });
            let same = |had: &IncidentRecord| {
                (had.severity, had.kind, &had.suspects, had.resolved_at)
                    == (record.severity, record.kind, &record.suspects, record.resolved_at)
            };
            if !course.last().is_some_and(same) {
                course.versions.push((self.now, *record));
            }
        }
    }
}

impl Default for Watch {
    fn default() -> Self {
        Self::new()
    }
}

impl Listener for Watch {
    fn receive(&mut self, at: Ts, source: &str, event: &Event) {
        self.feed(at, SourceInput::Event { source, event });
    }

    fn lost(&mut self, at: Ts, source: &str, reason: &str) {
        self.feed(at, SourceInput::SourceDown { source, reason });
    }

    fn found(&mut self, at: Ts, source: &str) {
        self.feed(at, SourceInput::SourceUp { source, many_nodes: false });
    }

    fn mended(&mut self, at: Ts, run: &str) {
        let open = self
            .incidents
            .iter()
            .filter(|(_, c)| c.last().is_some_and(|r| r.run == run && r.resolved_at.is_none()));
        for id in open.map(|(id, _)| id.clone()).collect::<Vec<_>>() {
            self.feed(at, Input::Act { incident: &id, by: "operator", action: &IncidentAction::Resolve });
        }
    }

    fn pass(&mut self, at: Ts) {
        self.due(at);
    }
}
