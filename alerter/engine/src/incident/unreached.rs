//! A receiver that does not take a page: nobody knows yet whether it ever will, and somebody has to be woken all the same.

use super::State;
use super::book::{Book, by_actor};
use super::targets::Recipient;
use crate::config::Level;
use crate::effect::{Action, Effect};
use crate::message::{Reason, Why};
use crate::time::{Span, Ts};

impl Book {
    /// Whoever had not been told yet is called.
    pub(crate) fn unreached(
        &mut self,
        now: Ts,
        id: &str,
        receiver: &str,
        waited: Span,
        error: &str,
        out: &mut Vec<Effect>,
    ) {
        let Some(i) = self.open.get(id).filter(|i| i.record.state == State::Open) else { return };
        let (quiet, told) = (i.record.quiet.is_some(), i.lanes.keys().cloned().collect::<Vec<_>>());
        let cause = if error.is_empty() { String::new() } else { format!(": {error}") };
        out.push(by_actor(now, id, receiver, format!("has not taken this page for {waited}{cause}")));
        let words = format!("{receiver} could not be told for {waited}{cause}");
        let why = Why::new(Reason::ReceiverFailed, words);
        let untold = self.config.receivers.iter().filter(|other| !quiet && !told.contains(other));
        for receiver in untold.cloned().collect::<Vec<_>>() {
            let to = Recipient::instead(receiver, "everybody who had not been told");
            self.send(now, id, to, Action::Trigger, &why, out);
        }
        self.finish(id, out);
    }

    /// Whether it was told in the place of another: no level that was due means it. All others were told together with it, so that
    /// nobody has to be called sooner because it does not exist.
    pub(super) fn stood_in(&self, now: Ts, id: &str, receiver: &str) -> bool {
        let Some(i) = self.open.get(id) else { return false };
        let of_nobody = i.lanes.get(receiver).is_some_and(|lane| lane.users.is_empty());
        let means_it = |level: &Level| self.recipients(now, level).0.iter().any(|to| to.receiver == receiver);
        let mut levels = i.ladders.told().peekable();
        of_nobody && levels.peek().is_some() && !levels.any(means_it)
    }
}
