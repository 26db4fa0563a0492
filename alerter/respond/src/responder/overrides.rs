//! Takes in overrides of on-call schedules that people make or remove at run time.
//!
//! Nothing is due when one begins or ends: who is on call is asked when a level is notified.

use std::sync::Arc;

use super::Responder;
use crate::effect::{Effect, Tx};
use crate::oncall::OverrideRecord;
use stepwatch_model::Ts;

impl Responder {
    /// Restores stored overrides. Must be called before the engine gets any input.
    pub fn restore_overrides(&mut self, now: Ts, stored: impl IntoIterator<Item = OverrideRecord>) {
        let oncall = self.manager.dispatcher.oncall_mut();
        stored.into_iter().for_each(|record| oncall.put_override(Arc::new(record), now));
    }

    pub(super) fn put_override(&mut self, tx: &mut Tx<'_>, record: &Arc<OverrideRecord>) {
        self.manager.dispatcher.oncall_mut().put_override(Arc::clone(record), tx.now);
        tx.out.push(Effect::Override(Arc::clone(record)));
    }
}
