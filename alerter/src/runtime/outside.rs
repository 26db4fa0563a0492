//! Handles input other than the streams: silences by people, and alerts of other programs.

use std::sync::Arc;

use stepwatch_respond::effect::{Effect, Input};
use stepwatch_respond::external::PostedAlert;
use stepwatch_respond::oncall::OverridePhase;
use stepwatch_respond::silence::{Phase, Refusal, Silence, Wanted};
use tokio::sync::oneshot;

use super::{Command, Runtime};
use crate::audit::{Entry, Outcome};
use crate::metrics::{StateLabel, Word};
use crate::store;

/// A command about silences. It is answered when its effects are durable.
#[derive(Debug)]
pub enum Outside {
    /// Creates or changes a silence. `fresh` is an unused id.
    Silence { wanted: Box<Wanted>, fresh: String, reply: oneshot::Sender<Silenced> },
    /// Ends a silence. The answer is the silence as it was before; `None` if there is none.
    Expire { id: String, reply: oneshot::Sender<Option<Box<Silence>>> },
}

/// Alerts that another program sent together. They are answered when what is new in them is
/// durable.
#[derive(Debug)]
pub struct AlertBatch {
    pub alerts: Vec<PostedAlert>,
    /// The audit entry. Repeated alerts that change nothing are not recorded.
    pub entry: Option<Box<Entry>>,
    pub reply: oneshot::Sender<Heard>,
}

pub type Silenced = Result<Box<Silence>, Refusal>;

/// The result of a batch of alerts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Heard {
    pub refused: u64,
}

/// An unused silence id: a random UUID, as `amtool` requires.
pub fn fresh_id() -> Result<String, getrandom::Error> {
    let mut bytes = [0u8; 16];
    getrandom::fill(&mut bytes)?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex = hex::encode(bytes);
    Ok(format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]))
}

impl Runtime {
    /// Restores the stored silences, overrides and alerts into the engine and the read model.
    pub(super) async fn recall(&mut self) -> store::Result<()> {
        let now = self.clock.now();
        let (silences, alerts) = (self.store.load_silences().await?, self.store.load_alerts().await?);
        let overrides = self.store.load_overrides().await?;
        let known = silences.iter().map(|s| Effect::Silence(Box::new(s.clone())));
        let made = overrides.iter().map(|o| Effect::Override(Arc::new(o.clone())));
        self.read_model.apply(&known.chain(made).collect::<Vec<_>>());
        self.engine.restore_overrides(now, overrides);
        self.read_model.decide(self.engine.oncall().overrides());
        self.warn_of_void_overrides();
        self.engine.restore_silences(now, silences);
        self.engine.restore_alerts(now, alerts);
        self.read_model.saw(self.engine.alerts().all().cloned().collect());
        Ok(())
    }

    /// Applies a command, and notes in its audit entry whether it changed anything.
    pub(super) fn audited(&mut self, mut entry: Entry, command: Command) {
        let known = self.pending.effects.len();
        self.command(command);
        if self.pending.effects.len() == known {
            entry.outcome = Outcome::Unchanged;
        }
        self.note(entry);
    }

    fn note(&mut self, entry: Entry) {
        self.metrics.audit.wrote(core::slice::from_ref(&entry));
        self.pending.audit.push(entry);
    }

    pub(super) fn outside(&mut self, command: Outside) {
        match command {
            Outside::Silence { wanted, fresh, reply } => self.silence(*wanted, &fresh, reply),
            Outside::Expire { id, reply } => self.expire(&id, reply),
        }
    }

    pub(super) fn count_outside(&mut self) {
        let now = self.clock.now();
        self.metrics.alerts.set(self.engine.alerts().count() as i64);
        for (phase, state) in
            [(Phase::Pending, "pending"), (Phase::Active, "active"), (Phase::Expired, "expired")]
        {
            let count = self.engine.silences().all().filter(|s| s.phase(now) == phase).count();
            self.metrics.silences.get_or_create(&StateLabel { state: Word(state) }).set(count as i64);
        }
        let oncall = self.engine.oncall();
        let in_phase = |phase: OverridePhase| {
            let all = oncall.overrides().all();
            all.filter(|o| o.phase(now) == phase && oncall.is_effective(o)).count()
        };
        for (state, count) in [
            ("coming", in_phase(OverridePhase::Coming)),
            ("active", in_phase(OverridePhase::Active)),
            ("void", oncall.void_overrides(now).count()),
        ] {
            let label = StateLabel { state: Word(state) };
            self.metrics.oncall_overrides.get_or_create(&label).set(count as i64);
        }
    }

    fn silence(&mut self, mut wanted: Wanted, fresh: &str, reply: oneshot::Sender<Silenced>) {
        let now = self.clock.now();
        let skew = self.clock.skew();
        wanted.starts_at = wanted.starts_at.map(|at| at.earlier(skew));
        wanted.ends_at = wanted.ends_at.earlier(skew);
        match self.engine.plan_silence(now, wanted, fresh) {
            Err(refusal) => drop(reply.send(Err(refusal))),
            Ok(plan) => {
                self.engine.handle(now, Input::Silence { plan: &plan }, &mut self.pending.effects);
                self.pending.hold(reply, Ok(Box::new(plan.silence.moved(skew))));
            }
        }
    }

    fn expire(&mut self, id: &str, reply: oneshot::Sender<Option<Box<Silence>>>) {
        let now = self.clock.now();
        let Some(had) = self.engine.silences().get(id).cloned().map(Box::new) else {
            let _ = reply.send(None);
            return;
        };
        if had.phase(now) != Phase::Expired {
            self.engine.handle(now, Input::ExpireSilence { id }, &mut self.pending.effects);
        }
        let had = Box::new(had.moved(self.clock.skew()));
        self.pending.hold(reply, Some(had));
    }

    pub(super) fn apply_alerts(&mut self, batch: AlertBatch) {
        let AlertBatch { mut alerts, entry, reply } = batch;
        let (now, known) = (self.clock.now(), self.pending.effects.len());
        let skew = self.clock.skew();
        for one in &mut alerts {
            one.ends_at = one.ends_at.map(|at| at.earlier(skew));
        }
        let refused = self.engine.alerts().refused();
        self.metrics.alerts_received.inc_by(alerts.len() as u64);
        self.engine.handle(now, Input::Alerts { posted: &alerts }, &mut self.pending.effects);
        let heard = Heard { refused: self.engine.alerts().refused() - refused };
        self.metrics.alerts_refused.inc_by(heard.refused);
        if let Some(entry) = entry.filter(|_| self.pending.effects.len() > known) {
            self.note(*entry);
        }
        let seen = alerts.iter().filter_map(|t| self.engine.alerts().get(t.alert.fingerprint).cloned());
        // A batch without news needs no commit. It is answered at once, unless pending changes may
        // still be about to commit.
        if self.pending.is_urgent() {
            self.pending.seen.extend(seen);
            self.pending.hold(reply, heard);
        } else {
            self.read_model.saw(seen.collect());
            let _ = reply.send(heard);
        }
    }
}
