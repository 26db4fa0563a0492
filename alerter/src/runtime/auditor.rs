//! Checks that every open incident will be notified again. What it finds is a bug of the alerter:
//! those people are notified now, and so is whoever operates the alerter.

use core::time::Duration;

use stepwatch_model::Severity;
use stepwatch_model::time::Ts;
use stepwatch_respond::effect::Input;
use tokio::time::Instant;

use super::Runtime;

/// Between two looks.
const EVERY: Duration = Duration::from_mins(1);
/// The name under which it reports.
const CHECK: &str = "auditor";
/// Incidents that it names.
const NAMED: usize = 5;

/// When it looks next.
#[derive(Debug)]
pub(super) struct Auditor {
    due: Instant,
}

impl Auditor {
    pub(super) fn new() -> Self {
        Self { due: Instant::now() + EVERY }
    }
}

impl Runtime {
    /// To be called when everything that was due has been done.
    pub(super) fn audit(&mut self, now: Ts) {
        if Instant::now() < self.auditor.due {
            return;
        }
        self.auditor.due = Instant::now() + EVERY;
        let flaws = self.engine.audit(now);
        self.metrics.flawed_incidents.set(flaws.len() as i64);
        let named = flaws.iter().take(NAMED).map(|flaw| format!("{}: {}", flaw.incident, flaw.what));
        let words = named.collect::<Vec<_>>().join("; ");
        if !flaws.is_empty() {
            tracing::error!(count = flaws.len(), %words, "incidents that nobody would have been notified of again: notified now; please report this");
            self.engine.mend(now, &flaws);
        }
        let fault = (!words.is_empty()).then_some(words.as_str());
        let before = self.pending.effects.len();
        self.engine.handle(
            now,
            Input::Own { check: CHECK, severity: Severity::Page, fault },
            &mut self.pending.effects,
        );
        let homeless = self.engine.homeless();
        let named = homeless.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
        let words = format!(
            "nobody may be notified of {} pages, because their team names nobody and there is no `fallback`: {named}",
            homeless.len()
        );
        let alone = (!homeless.is_empty()).then_some(words.as_str());
        let own = Input::Own { check: "teams", severity: Severity::Page, fault: alone };
        self.engine.handle(now, own, &mut self.pending.effects);
        if self.pending.effects.len() > before || fault.is_some() {
            self.schedule.changed();
        }
    }
}
