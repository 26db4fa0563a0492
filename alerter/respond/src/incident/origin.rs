//! Where an incident comes from. A flood from one origin is counted, and rolled up, by itself.

use super::open::Incident;
use stepwatch_model::{Context, Scope, Severity, Span, Subject, Ts};

/// A page of a run that was first seen longer ago than this is notified by itself in every storm.
const KNOWN_AFTER: Span = Span::secs(600);

impl Incident {
    /// A page of a run is that of a run, whatever it is part of.
    pub(super) fn follow_origin(&mut self, context: &Context) {
        let of_run = context.origin.as_ref().is_some_and(|origin| origin.since.is_some());
        let of_run = of_run || matches!(context.scope, Scope::Run(_));
        if of_run && self.origin.as_ref().is_none_or(|o| o.since.is_none()) {
            self.origin.clone_from(&context.origin);
        }
    }

    /// It pages of a run that was there before any flood that it could be part of.
    pub(super) fn is_page_of_known_run(&self, now: Ts) -> bool {
        let since = self.origin.as_ref().and_then(|origin| origin.since);
        // Only a sender without limits says of an alert which run it is about.
        let pages = |(subject, _): &(Subject, _)| matches!(subject.scope, Scope::Run(_) | Scope::Alert(_));
        let of_run = self.raised.iter().any(|(key, severity)| pages(key) && *severity == Severity::Page);
        of_run && since.is_some_and(|since| now - since > KNOWN_AFTER)
    }
}
