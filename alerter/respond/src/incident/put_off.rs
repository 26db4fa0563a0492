//! A receiver that asks to be left alone for long. It will take the page, and somebody has to be
//! woken meanwhile.

use super::State;
use super::manager::Manager;
use crate::effect::Tx;
use crate::effect::by_actor;
use crate::message::{Reason, Why};
use stepwatch_model::Span;

impl Manager {
    /// The next level is due now, once a call; where there is none, whoever is nearest of those who
    /// had not been told is called.
    pub(crate) fn put_off(&mut self, tx: &mut Tx<'_>, id: &str, receiver: &str, wait: Span, error: &str) {
        let now = tx.now;
        let Some(i) = self.open.get_mut(id).filter(|i| i.record.state == State::Open) else { return };
        let quiet = i.record.quiet.is_some();
        let Some(lane) = i.lanes.get_mut(receiver).filter(|lane| lane.put_off < lane.seq) else { return };
        lane.put_off = lane.seq;
        let what = format!("wants no call for {wait}; others are called meanwhile: {error}");
        tx.out.push(by_actor(now, id, receiver, what));
        let why = Why::new(Reason::ReceiverFailed, format!("{receiver} takes no call for {wait}: {error}"));
        let stood_in = self.stood_in(now, id, receiver);
        let Some(i) = self.open.get_mut(id) else { return };
        if !stood_in && i.ladders.hurry(now) {
            self.climb(tx, id, &why);
        } else if !quiet {
            self.notify_fallback(tx, id, receiver, &why);
        }
        self.finish(id, tx.out);
    }
}
