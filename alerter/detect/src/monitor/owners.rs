//! The first user that reports a run owns it. A person is notified if another user reports a run of
//! the same name.
//!
//! A hostile exporter may report a run of this name before its owner does. The alerter cannot find
//! out which of two users is the owner, and refuses the records of the second; so it notifies a
//! person, once.

use std::collections::BTreeSet;

use super::admission::RANK_HELD;
use super::refusal::Refusal;
use super::run::Run;
use super::{KEEP_ENDED, Key, Monitor, Record};
use stepwatch_model::time::Ts;
use stepwatch_model::{
    Change, Clause, Context, Detected, Fact, Finding, Kind, Origin, RunSummary, Scope, Severity, clause,
};
use stepwatch_wire::Kind as EventKind;

/// The most runs of other users that one source may dispute at once. It could dispute every run;
/// the first few suffice to notice.
const DISPUTES_OF_SOURCE: u32 = 8;

impl Run {
    /// Whether another user may own it. A run that made steps and crashed keeps its owner: it may
    /// be started again.
    fn is_free(&self, now: Ts) -> bool {
        match &self.state.ended {
            Some(ended) => {
                let completed = ended.code == 0 && !ended.silent;
                completed || self.state.total_steps == 0 || now - ended.at >= KEEP_ENDED
            }
            None => now - self.state.last_heard >= RANK_HELD,
        }
    }
}

impl Monitor {
    /// The user that the first source declared owns the run, until it has been over for a while or
    /// no source has reported it for a while.
    pub(super) fn is_its_users(
        &mut self,
        record: Record<'_>,
        name: &str,
        out: &mut Vec<Detected>,
    ) -> Result<(), Refusal> {
        let Record { now, source, event } = record;
        let Some(run) = self.runs.get_mut(name) else { return Ok(()) };
        // After the end of a run, a step is enough to give its name to another user.
        let goes_on = event.kind == EventKind::Step && run.state.ended.is_some() && run.is_free(now);
        let declared = event.uid.filter(|_| event.kind == EventKind::Hello || goes_on);
        let (Some(uid), Some(had)) = (declared.or(run.reporters.denied(source)), run.reporters.uid) else {
            return Ok(());
        };
        if uid == had {
            run.reporters.allow(source);
            if run.reporters.disputed_by.as_deref() == Some(source) {
                self.settle_dispute(now, name, clause!("both name the same user"), out);
            }
            return Ok(());
        }
        if !run.is_free(now) {
            if declared.is_some() && !run.reporters.is_one(source) {
                run.reporters.deny(source, uid);
                self.dirty.insert(Key::Run(name.to_owned()));
            }
            if event.kind == EventKind::Step {
                self.dispute(record, name, uid, out);
            }
            return Err(Refusal::OtherUser);
        }
        self.settle_dispute(now, name, clause!("the run is the other user's now"), out);
        let Some(run) = self.runs.get_mut(name) else { return Ok(()) };
        let had = core::mem::take(&mut run.reporters);
        run.reporters.pass_on(now, source, uid);
        self.release(&had);
        Ok(())
    }

    /// Steps of another user are refused, so that user's run would page nobody. The first user may
    /// be the wrong one, so the people who look after the alerter are notified, not those whom the
    /// labels of the run name.
    fn dispute(&mut self, record: Record<'_>, name: &str, uid: u32, out: &mut Vec<Detected>) {
        let Record { now, source, .. } = record;
        let Some(run) = self.runs.get_mut(name).filter(|run| run.reporters.disputed_by.is_none()) else {
            return;
        };
        let few = self.sources.get_mut(source).filter(|s| s.disputes < DISPUTES_OF_SOURCE);
        let (Some(had), Some(s)) = (run.reporters.uid, few) else { return };
        s.disputes += 1;
        run.reporters.disputed_by = Some(source.to_owned());
        let first = run.reporters.first().unwrap_or_default();
        let why = clause!(
            "two users report the run {run}: user {first_uid} through {first_source} came first, and what user {uid} \
             reports through {source} is refused and pages nobody; rename one of the two runs, or find out who invents it",
            run = Fact::text(name),
            first_uid = had,
            first_source = Fact::text(first),
            uid,
            source = Fact::text(source),
        );
        out.push(finding(now, source, name, Change::Raise, why));
        self.dirty.insert(Key::Run(name.to_owned()));
    }

    /// The owner of the run is not disputed any more.
    pub(super) fn settle_dispute(&mut self, now: Ts, name: &str, why: Clause, out: &mut Vec<Detected>) {
        let Some(run) = self.runs.get_mut(name) else { return };
        let Some(source) = run.reporters.disputed_by.take() else { return };
        if let Some(s) = self.sources.get_mut(&source) {
            s.disputes = s.disputes.saturating_sub(1);
        }
        out.push(finding(now, &source, name, Change::Clear, why));
        self.dirty.insert(Key::Run(name.to_owned()));
    }
}

fn finding(now: Ts, source: &str, name: &str, change: Change, why: Clause) -> Detected {
    let scope = Scope::Own(format!("owner of {name}"));
    let context = Context {
        origin: Some(Origin::of_exporter(source.to_owned(), None)),
        ..Context::new(scope, RunSummary::default(), BTreeSet::default(), now)
    };
    let finding = Finding {
        change,
        kind: Kind::AlerterFault,
        severity: Severity::Ticket,
        signal: "owner".into(),
        step: 0,
        ts: now,
        start_step: 0,
        value: f64::NAN,
        expected: f64::NAN,
        score: f64::NAN,
        why: why.into(),
        suspects: Vec::new(),
    };
    Detected::finding(&context, &finding)
}
