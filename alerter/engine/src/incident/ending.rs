//! How incidents end: by themselves, with what they are about, or by hand.

use std::collections::BTreeSet;

use super::book::{Book, by_actor, timeline};
use super::places::Place;
use super::{Scope, State, Subject};
use crate::effect::{Action, Effect};
use crate::message::{Reason, Why};
use crate::time::{Span, Ts};
use crate::verdict::{Cause, Severity};

/// How long a page that nobody answered outlives a run that ended by itself.
const UNANSWERED: Span = Span::secs(900);

impl Book {
    pub(super) fn resolve(&mut self, now: Ts, id: &str, actor: &str, reason: &str, out: &mut Vec<Effect>) {
        let Some(i) = self.open.get_mut(id) else { return };
        i.record.state = State::Resolved;
        i.record.resolved_at = Some(now);
        i.record.next_at = None;
        if i.record.end_step.is_none() {
            i.record.end_step = i.summary.last_step;
        }
        let flaps = i.record.flaps;
        out.push(by_actor(now, id, actor, reason.to_owned()));
        self.tell_all(now, id, Action::Resolve, Why::new(Reason::Resolved, reason), out);
        self.finish(id, out);
        let Some(gone) = self.open.remove(id) else { return };
        for subject in gone.subjects {
            self.by_subject.remove(&subject);
            self.ledger.resolved(now, &subject, flaps);
        }
        if let Some(quiet) = &gone.record.quiet {
            self.no_longer_hidden(now, id, quiet, out);
        }
        self.inhibition.forget(id);
        self.places.forget(id);
        // Last: what it hid must not find it.
        self.release(now, id, out);
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
                    i.stop();
                    i.calm = true;
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
        let first = Subject { scope: scope.clone(), cause: Cause::FIRST };
        let of = self.by_subject.range(first..).take_while(|(s, _)| s.scope == *scope);
        // Each once, in the order of their ids.
        let ids: BTreeSet<String> = of.map(|(_, id)| id.clone()).collect();
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
        self.places.at(&Place::Run(run.to_owned())).cloned().collect()
    }
}
