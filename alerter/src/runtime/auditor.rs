//! Checks that every open incident will notify again. A violation is a bug of the alerter: the
//! incident's people and the operator of the alerter are notified at once.

use core::time::Duration;

use stepwatch_model::Severity;
use stepwatch_model::time::Ts;
use stepwatch_respond::effect::Input;
use tokio::time::Instant;

use super::Runtime;

/// The interval of checks.
const EVERY: Duration = Duration::from_mins(1);
/// The name of the check in its reports.
const CHECK: &str = "auditor";
/// The most incidents that a report names.
const NAMED: usize = 5;

/// The schedule of the check.
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
    /// Runs the check if it is due. Must be called after all due timers have run.
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
