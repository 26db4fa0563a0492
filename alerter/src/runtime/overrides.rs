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
                        let record = self.put_override(record);
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
        record
    }
}
