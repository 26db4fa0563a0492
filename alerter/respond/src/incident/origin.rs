//! Where an incident comes from. A flood from one origin is counted, and rolled up, by itself.

use super::open::Incident;
use stepwatch_model::{Context, OldestRun, Scope, Severity, Span, Subject, Ts};

/// A page of a run that was first seen longer ago than this is notified by itself in every storm.
const KNOWN_AFTER: Span = Span::secs(600);

impl Incident {
    /// Takes over the origin of a run, unless one of a run is known, and keeps the oldest run of a
    /// node.
    pub(super) fn follow_origin(&mut self, context: &Context) {
        let of_run = context.origin.as_ref().is_some_and(|origin| origin.since.is_some());
        let of_run = of_run || matches!(context.scope, Scope::Run(_));
        if of_run && self.origin.as_ref().is_none_or(|o| o.since.is_none()) {
            self.origin.clone_from(&context.origin);
        }
        let older = |oldest: &&OldestRun| self.oldest.as_ref().is_none_or(|had| oldest.since < had.since);
        if let Some(oldest) = context.oldest.as_ref().filter(older) {
            self.oldest = Some(oldest.clone());
        }
    }

    /// Whether it is a page of a run that was known before any flood that the page could be part
    /// of.
    pub(super) fn is_page_of_known_run(&self, now: Ts) -> bool {
        let since = self.origin.as_ref().and_then(|origin| origin.since);
        // Only a sender without limits may name the run of an alert.
        let pages = |(subject, _): &(Subject, _)| matches!(subject.scope, Scope::Run(_) | Scope::Alert(_));
        let of_run = self.raised.iter().any(|(key, severity)| pages(key) && *severity == Severity::Page);
        of_run && since.is_some_and(|since| now - since > KNOWN_AFTER)
    }

    /// The run that was on its node before any flood, if it is a page of a node. The alerter has
    /// checked which ranks the node has; the fault is only reported by the node's exporter.
    pub(super) fn known_run_of_node(&self, now: Ts) -> Option<&str> {
        let of_node = |(subject, _): &(Subject, _)| matches!(subject.scope, Scope::Node(_));
        let pages = self.raised.iter().any(|(key, severity)| of_node(key) && *severity == Severity::Page);
        let known = self.oldest.as_ref().filter(|oldest| now - oldest.since > KNOWN_AFTER);
        known.filter(|_| pages).map(|oldest| oldest.name.as_str())
    }
}
