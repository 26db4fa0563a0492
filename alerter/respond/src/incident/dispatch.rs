//! Who is notified of an incident, when, and when again.
//!
//! One timing model. `batch_window`: how long the first message of a ticket waits for what else
//! comes. `update_min_interval`: how far apart updates of it are. `remind_every`: how long a page
//! may go unanswered before it is notified again. Pages, acknowledgements and ends wait for
//! nothing.

use std::collections::BTreeSet;

use super::dispatcher::escalation::{Due, Ladders, Pace};
use super::dispatcher::lane::News;
use super::dispatcher::{Call, Recipient, Word};
use super::manager::Manager;
use super::{State, SuppressionReason};
use crate::config::{Level, ResponderConfig};
use crate::effect::{Action, Effect, Notification, Path, Tx, timeline};
use crate::message::{Message, Reason, Why, advice};
use crate::plan;
use crate::route::{Way, WayName};
use stepwatch_model::{Kind, Severity, Span, Ts};

/// A finding about a step longer ago than this comes from a backlog, whose end may clear it.
const LATE: Span = Span::secs(120);
/// How long such a finding waits for the end of the backlog before anyone is notified.
const BACKLOG: Span = Span::secs(10);
/// The most rounds at one moment. It bounds ladders whose waits are all zero, and loops by a bug.
const MAX_ROUNDS: usize = 1000;

impl Manager {
    /// Notifies the people of its routes, from the first level on. An annotation notifies nobody.
    pub(super) fn announce(&mut self, tx: &mut Tx<'_>, id: &str, at: Ts, why: &Why) {
        let now = tx.now;
        self.relabel(id);
        let ours = self.open.get(id).is_some_and(|i| i.record.kind == Kind::AlerterFault);
        let failing = if ours { self.failing() } else { BTreeSet::new() };
        let Some(i) = self.open.get_mut(id) else { return };
        if i.record.severity == Severity::Info {
            return;
        }
        if i.record.suppressed_as(SuppressionReason::RolledUp).is_some() {
            // An incident that is announced again leaves its storm, and is counted again.
            self.set_suppressed(tx, id, None);
        }
        let Some(i) = self.open.get_mut(id) else { return };
        // Only the first message of a ticket waits; later announcements are sent at once.
        let first = i.record.level == 0 && i.record.severity < Severity::Page;
        if why.because == Reason::Reopened {
            // Escalation restarts at the first level.
            i.record.level = 0;
        }
        let wait = if first { self.config.batch_window } else { Span::ZERO };
        let from = now + if now - at > LATE { wait.max(BACKLOG) } else { wait };
        if let Some(plan) = plan::plan(&i.record, &i.summary, self.config.cost_per_gpu_hour) {
            tx.out.push(timeline(now, id, format!("what to do: {}", advice(&plan))));
        }
        i.ladders = if i.storm.is_some() && !i.ladders.is_empty() {
            i.ladders.restarted(from)
        } else {
            let mut ways = self.dispatcher.ways(&self.config, &i.record.labels);
            ways.iter_mut().for_each(|way| choose_one(&self.config, &failing, way));
            for way in &ways {
                let levels = way.levels.len();
                let what = format!("route: {} ({}), levels: {levels}", way.name, way.because);
                tx.out.push(timeline(now, id, what));
            }
            Ladders::new(from, ways)
        };
        (i.counted, i.calm) = (false, false);
        self.climb(tx, id, why);
        self.notify_others(tx, id, why);
        // The suppression holds at once, also while the first notification waits.
        if let Some(suppression) = self.suppressor.suppression_of(self.view(now), id) {
            self.suppress(tx, id, suppression);
        }
    }

    /// An incident of the alerter may be about the very receivers on its route. If all of them
    /// fail, others are notified at once.
    fn notify_others(&mut self, tx: &mut Tx<'_>, id: &str, why: &Why) {
        let Some(i) = self.open.get(id).filter(|i| i.record.kind == Kind::AlerterFault) else { return };
        let failing = self.failing();
        let fails = |name: &String| failing.contains(name) || !self.config.calls(name);
        let page = i.record.severity == Severity::Page && i.record.suppression.is_none();
        let called = i.lanes.keys().find(|name| self.config.calls(name)).cloned();
        if let Some(called) = called.filter(|_| page && i.lanes.keys().all(fails)) {
            self.notify_fallback(tx, id, &called, why);
        }
    }

    /// Notifies every level that is due.
    pub(super) fn climb(&mut self, tx: &mut Tx<'_>, id: &str, why: &Why) {
        let now = tx.now;
        let mut why = why.clone();
        let unheard = self.open.get(id).is_some_and(|i| i.record.level == 0);
        for _ in 0..MAX_ROUNDS {
            let Some(i) = self.open.get(id) else { return };
            if i.ladders.next_at().is_none_or(|at| at > now) {
                break;
            }
            // A level that a person asks for is notified even if the incident is suppressed.
            if why.because != Reason::Escalated {
                match self.find_suppression(tx, id) {
                    Some(suppression) => return self.suppress(tx, id, suppression),
                    None => why = self.reason_after_suppression(tx, id, why),
                }
            }
            let Some(i) = self.open.get_mut(id) else { return };
            let pace = Pace::of(i, &self.config);
            let Some(due) = i.ladders.due(now, pace) else { break };
            let reason = if unheard { why.clone() } else { due.reason(now, i, &why) };
            self.round(tx, id, &due, &reason);
        }
        self.fall_back(tx, id, &why);
        if let Some(i) = self.open.get_mut(id) {
            i.record.next_at = i.ladders.next_at();
        }
    }

    /// Runs a round that is due: notifies its level, or passes it over if its condition is false.
    fn round(&mut self, tx: &mut Tx<'_>, id: &str, due: &Due, why: &Why) {
        let now = tx.now;
        let Some(i) = self.open.get(id) else { return };
        match self.dispatcher.call(self.view(now), i, due) {
            Ok(call) => self.notify_level(tx, id, call, why),
            Err(asked) => {
                let words = format!("level {} of {} passed over: {}", due.level, due.way, asked.join(", "));
                tx.out.push(timeline(now, id, words));
                if let Some(i) = self.open.get_mut(id) {
                    let pace = Pace::of(i, &self.config);
                    i.ladders.pass_over(now, &due.way, pace);
                }
            }
        }
    }

    fn notify_level(&mut self, tx: &mut Tx<'_>, id: &str, call: Call, why: &Why) {
        let now = tx.now;
        let Call { level, mut path } = call;
        let Some(i) = self.open.get(id) else { return };
        let (recipients, found) = self.dispatcher.recipients(self.view(now), i, &level);
        let Some(i) = self.open.get_mut(id) else { return };
        i.record.level = i.record.level.max(path.level);
        let silences = self.suppressor.active_silences(now);
        if silences > 0 {
            path.asked.push(format!("silences that do not match: {silences}"));
        }
        let asked =
            if path.asked.is_empty() { String::new() } else { format!("; {}", path.asked.join(", ")) };
        let found = i.notified_of(&recipients, &found);
        let repeats = |to: &Recipient| {
            let who = i.left_to(&self.config, &to.receiver, why)?;
            Some(format!("; {}: {who} repeats", to.receiver))
        };
        let left: Vec<String> = recipients.iter().filter_map(repeats).collect();
        let (nobody, left) = (!left.is_empty() && left.len() == recipients.len(), left.concat());
        let shown = match &found {
            // The services of all these receivers repeat the calls by themselves.
            Ok(_) if nobody => left.clone(),
            Ok(found) => format!("; notified now: {found}{left}"),
            Err(words) => format!("; {words}{left}"),
        };
        let what = match &found {
            Ok(found) => format!("level {} notified ({found}): {}{left}{asked}", path.level, why.words),
            Err(words) => format!("level {}: {words}: {}{left}{asked}", path.level, why.words),
        };
        tx.out.push(timeline(now, id, what));
        let called: Vec<String> = recipients.iter().map(|r| r.receiver.clone()).collect();
        for mut recipient in recipients {
            let chosen = recipient.path.take().unwrap_or_default().chosen;
            recipient.path = Some(Path { chosen, ..path.clone() });
            self.send(tx, id, recipient, Word { action: Action::Trigger, why });
        }
        self.show(tx, id, &called, &Why::new(why.because, why.words.clone() + &shown));
    }

    /// Posts a call to the threads of the receivers that it is not for.
    pub(super) fn show(&mut self, tx: &mut Tx<'_>, id: &str, called: &[String], why: &Why) {
        let Some(i) = self.open.get(id) else { return };
        let shows = |receiver: &String| self.config.threads.contains(receiver) && !called.contains(receiver);
        for to in i.notified(shows) {
            self.send(tx, id, to, Word { action: Action::Update, why });
        }
    }

    /// Notifies the last level of a page although the conditions passed every level over. For
    /// anything else, the timeline records that it waits in the list of incidents.
    fn fall_back(&mut self, tx: &mut Tx<'_>, id: &str, why: &Why) {
        let now = tx.now;
        let Some(i) = self.open.get(id) else { return };
        let unheard = i.record.level == 0 && i.record.state == State::Open;
        if !unheard || i.ladders.is_empty() || !i.ladders.is_exhausted() {
            return;
        }
        if i.record.severity != Severity::Page {
            let what =
                "no level is for what is not a page: nobody is notified, it waits in the list of incidents";
            tx.out.push(timeline(now, id, what.to_owned()));
            return;
        }
        let notify = i.ladders.last().flat_map(|l| l.notify.clone()).collect();
        let level = Level { notify, ..Level::default() };
        let asked =
            vec!["no condition of any level holds: the last level is notified all the same".to_owned()];
        let path = self.dispatcher.path(&self.config, i, &i.ladders.ways());
        let path = Path { level: 1, again: 0, asked, ..path };
        self.notify_level(tx, id, Call { level, path }, why);
    }

    pub(super) fn send(&mut self, tx: &mut Tx<'_>, id: &str, to: Recipient, word: Word<'_>) {
        let Word { action, why } = word;
        let Some(i) = self.open.get_mut(id) else { return };
        let left_to = i.left_to(&self.config, &to.receiver, why).filter(|_| action == Action::Trigger);
        let left_to = left_to.cloned();
        i.note_sent(tx.now, &to, word);
        let mut why = why.clone();
        if let Some(who) = &left_to {
            why.words = format!("{}; {who} repeats", why.words);
        }
        let Some(i) = self.open.get(id) else { return };
        let word = Word { action, why: &why };
        let notification = self.dispatcher.notification(self.view(tx.now), i, to, word);
        tx.out.push(Effect::Notify(Box::new(Notification { left_to, ..notification })));
    }

    /// Composes the message about an open incident as it is at `now`.
    pub(crate) fn words(&self, now: Ts, id: &str, action: Action, why: &Why) -> Option<Message> {
        let i = self.open.get(id)?;
        Some(i.message(self.view(now), Word { action, why }))
    }

    /// Sends `action` to everyone who was notified of the incident. Updates wait until the last
    /// message is old enough and the suppression is over; acknowledgements and ends are sent at
    /// once.
    pub(super) fn notify_all(&mut self, tx: &mut Tx<'_>, id: &str, action: Action, why: impl Into<Why>) {
        let now = tx.now;
        let why = why.into();
        self.relabel(id);
        let Some(i) = self.open.get_mut(id) else { return };
        if action == Action::Update && why.because != Reason::Unacknowledged {
            let at = i.told_at.map_or(now, |at| at + self.config.update_min_interval);
            if i.record.suppression.is_some() || at > now {
                i.news = (!i.lanes.is_empty()).then_some(News { at: at.max(now), why });
                return;
            }
        }
        i.news = None;
        for to in i.notified(|_| true) {
            self.send(tx, id, to, Word { action, why: &why });
        }
    }

    /// Sends an update that has waited long enough. If the incident is suppressed, the update waits
    /// on.
    pub(super) fn notify_news(&mut self, tx: &mut Tx<'_>, id: &str) {
        let now = tx.now;
        let Some(i) = self.open.get_mut(id) else { return };
        if let Some(news) = i.news.take_if(|news| news.at <= now) {
            self.notify_all(tx, id, Action::Update, news.why);
        }
    }

    /// Notifies the levels that are due. An incident that ended before its first notification sends
    /// none.
    pub(super) fn climb_if_it_holds(&mut self, tx: &mut Tx<'_>, id: &str) {
        let now = tx.now;
        let Some(i) = self.open.get_mut(id) else { return };
        if i.record.level == 0 && i.raised.is_empty() {
            i.ladders = Ladders::default();
            i.record.next_at = None;
            self.set_suppressed(tx, id, None);
            tx.out.push(timeline(now, id, "over before anyone was notified: nobody was".into()));
            return;
        }
        let why =
            if i.record.level == 0 { Why::first() } else { Why::new(Reason::StillFiring, "still firing") };
        self.climb(tx, id, &why);
    }
}

/// For a way to a single receiver: chooses the first receiver that wakes and does not fail, if any.
fn choose_one(config: &ResponderConfig, failing: &BTreeSet<String>, way: &mut Way) {
    if way.name != WayName::OneReceiver {
        return;
    }
    let well = |name: &&String| config.wakes(name) && !failing.contains(*name);
    if let Some(one) = config.receivers.iter().find(well) {
        way.levels.iter_mut().for_each(|level| level.notify = vec![one.clone()]);
    }
}

impl Why {
    /// The reason of the first message.
    pub(super) fn first() -> Self {
        Self::new(Reason::First, "new incident")
    }

    /// The reason of the first message after a suppression ended.
    pub(super) fn after(suppression: SuppressionReason, by: &str, over: bool) -> Self {
        let since = if over { "is over" } else { "does not explain it any more" };
        match suppression {
            SuppressionReason::Silenced => {
                Self::new(Reason::SilenceEnded, format!("still firing: silence {by} ended"))
            }
            SuppressionReason::Inhibited => Self::new(
                Reason::InhibitionEnded,
                format!("still firing: incident {by}, which hid it, {since}"),
            ),
            SuppressionReason::RolledUp => {
                Self::new(Reason::First, format!("left the storm of incident {by}"))
            }
        }
    }
}

impl<T: Into<String>> From<T> for Why {
    fn from(words: T) -> Self {
        Self::new(Reason::News, words)
    }
}
