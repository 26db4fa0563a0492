//! Whose a run is: the first user's, and who is told if another reports a run of the same name.
//!
//! A hostile exporter may name a run before its owner does. It cannot be known which of two users
//! is the owner, and the records of the second are refused; so a person is told, once.

use std::collections::BTreeSet;

use super::admission::{RANK_HELD, Refusal};
use super::run::Run;
use super::{KEEP_ENDED, Key, Monitor, Record};
use stepwatch_model::time::Ts;
use stepwatch_model::{Change, Context, Detected, Finding, Kind, Origin, RunSummary, Scope, Severity};
use stepwatch_wire::Kind as EventKind;

/// Runs of others that one source disputes at once. It may invent as many as there are, and the
/// first say what it does.
const DISPUTES_OF_SOURCE: u32 = 8;

/// Whether these runs are of several users, as far as is known: one whose user nobody named is not
/// one of a user who was named, or whoever keeps silent of it would pass for anybody.
pub(super) fn of_several_users<'a>(runs: impl IntoIterator<Item = &'a Run>) -> bool {
    let mut users = runs.into_iter().map(|run| run.tellers.uid);
    let first = users.next();
    users.any(|user| Some(user) != first)
}

impl Run {
    /// Whether another user may have it. One that made steps and crashed stays its owner's: it may
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
    /// A run is that of the user whom the first source named, until it has been over for a while or
    /// nobody has spoken of it.
    pub(super) fn is_its_users(
        &mut self,
        record: Record<'_>,
        name: &str,
        out: &mut Vec<Detected>,
    ) -> Result<(), Refusal> {
        let Record { now, source, event } = record;
        let Some(run) = self.runs.get_mut(name) else { return Ok(()) };
        let told = event.uid.filter(|_| event.kind == EventKind::Hello);
        let (Some(uid), Some(had)) = (told.or(run.tellers.denied(source)), run.tellers.uid) else {
            return Ok(());
        };
        if uid == had {
            run.tellers.allow(source);
            if run.tellers.disputed_by.as_deref() == Some(source) {
                self.settle_dispute(now, name, "both name the same user", out);
            }
            return Ok(());
        }
        if !run.is_free(now) {
            if told.is_some() && !run.tellers.is_one(source) {
                run.tellers.deny(source, uid);
                self.dirty.insert(Key::Run(name.to_owned()));
            }
            if event.kind == EventKind::Step {
                self.dispute(record, name, uid, out);
            }
            return Err(Refusal::OtherUser);
        }
        self.settle_dispute(now, name, "the run is the other user's now", out);
        let Some(run) = self.runs.get_mut(name) else { return Ok(()) };
        let had = core::mem::take(&mut run.tellers);
        run.tellers.pass_on(now, source, uid);
        self.release(&had);
        Ok(())
    }

    /// Steps of another user are refused: whoever waits for a page of that run would wait in vain.
    /// The first user may be the liar, so those who look after the alerter are told, and not
    /// whoever the labels of the run name.
    fn dispute(&mut self, record: Record<'_>, name: &str, uid: u32, out: &mut Vec<Detected>) {
        let Record { now, source, .. } = record;
        let Some(run) = self.runs.get_mut(name).filter(|run| run.tellers.disputed_by.is_none()) else {
            return;
        };
        let few = self.sources.get_mut(source).filter(|s| s.disputes < DISPUTES_OF_SOURCE);
        let (Some(had), Some(s)) = (run.tellers.uid, few) else { return };
        s.disputes += 1;
        run.tellers.disputed_by = Some(source.to_owned());
        let first = run.tellers.first().unwrap_or_default();
        let why = format!(
            "two users report the run {name}: user {had} through {first} came first, and what user {uid} \
             reports through {source} is refused and pages nobody; rename one of the two runs, or find out who invents it"
        );
        out.push(finding(now, source, name, Change::Raise, &why));
        self.dirty.insert(Key::Run(name.to_owned()));
    }

    /// Nobody disputes whose the run is any more.
    pub(super) fn settle_dispute(&mut self, now: Ts, name: &str, why: &str, out: &mut Vec<Detected>) {
        let Some(run) = self.runs.get_mut(name) else { return };
        let Some(source) = run.tellers.disputed_by.take() else { return };
        if let Some(s) = self.sources.get_mut(&source) {
            s.disputes = s.disputes.saturating_sub(1);
        }
        out.push(finding(now, &source, name, Change::Clear, why));
        self.dirty.insert(Key::Run(name.to_owned()));
    }
}

fn finding(now: Ts, source: &str, name: &str, change: Change, why: &str) -> Detected {
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
