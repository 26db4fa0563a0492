//! Handles overrides of on-call schedules by people.

use std::sync::Arc;

use stepwatch_respond::effect::Input;
use stepwatch_respond::oncall::{OverridePhase, OverrideRecord, OverrideRefusal, OverrideWanted};
use tokio::sync::oneshot;

use super::Runtime;

/// A command about overrides. It is answered when its effects are durable.
///
/// Their times are compared with those of the schedules, which the engine's clock decides, so they
/// are not converted to it.
#[derive(Debug)]
pub enum OverrideCommand {
    /// Makes an override. `fresh` is an unused id.
    Make { wanted: Box<OverrideWanted>, fresh: String, reply: oneshot::Sender<Overridden> },
    /// Ends an override. The answer is the override as it is then; `None` if there is none.
    Remove { id: String, by: String, reply: oneshot::Sender<Option<Arc<OverrideRecord>>> },
}

pub type Overridden = Result<Arc<OverrideRecord>, OverrideRefusal>;

impl Runtime {
    pub(super) fn override_schedule(&mut self, command: OverrideCommand) {
        match command {
            OverrideCommand::Make { wanted, fresh, reply } => {
                let planned = self.engine.oncall().plan_override(*wanted, &fresh, self.clock.now());
                match planned {
                    Err(refusal) => drop(reply.send(Err(refusal))),
                    Ok(record) => {
                        // A request that was made again changes nothing, and is answered when the
                        // first one is durable.
                        let same = self.engine.oncall().overrides().get(&record.id).cloned();
                        let record = same.unwrap_or_else(|| self.put_override(record));
                        self.pending.hold(reply, Ok(record));
                    }
                }
            }
            OverrideCommand::Remove { id, by, reply } => {
                let now = self.clock.now();
                let Some(had) = self.engine.oncall().overrides().get(&id).cloned() else {
                    let _ = reply.send(None);
                    return;
                };
                let over = had.phase(now) == OverridePhase::Over;
                let after = if over { had } else { self.put_override(had.removed_by(&by, now)) };
                self.pending.hold(reply, Some(after));
            }
        }
    }

    fn put_override(&mut self, record: OverrideRecord) -> Arc<OverrideRecord> {
        let record = Arc::new(record);
        let input = Input::Override { record: &record };
        self.engine.handle(self.clock.now(), input, &mut self.pending.effects);
        self.read_model.decide(self.engine.oncall().overrides());
        record
    }

    /// Warns of overrides that have no effect in this configuration: whoever made one counts on it.
    pub(super) fn warn_of_void_overrides(&self) {
        for record in self.engine.oncall().void_overrides(self.clock.now()) {
            let people: Vec<&str> = record.covers.iter().map(|cover| cover.user.as_str()).collect();
            tracing::warn!(
                id = record.id,
                schedule = record.schedule,
                people = people.join(", "),
                by = record.created_by,
                "an override of who is on call has no effect: the configuration lacks its schedule, a person, or \
                 a receiver of one"
            );
        }
    }
}
