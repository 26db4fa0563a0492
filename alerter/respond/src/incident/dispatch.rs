//! Who is told of an incident, when, and again.
//!
//! One timing model. `batch_window`: how long the first word of a ticket waits for what else comes.
//! `update_min_interval`: how far apart news of it are. `remind_every`: how long a page may go
//! unanswered before it is told again. Pages, acknowledgements and ends wait for nothing.

use super::lane::News;
use crate::effect::Tx;

use super::escalation::{Due, Ladders, Pace, Round};
use super::manager::Manager;
use super::targets::Recipient;
use super::{Hidden, State};
use crate::advice;
use crate::config::Level;
use crate::effect::{Action, Effect, Notification, Path};
use crate::effect::{by_actor, timeline};
use crate::message::{self, About, Message, Reason, Status, Why};
use stepwatch_model::{Scope, Severity, Span, Ts};

/// A finding about a step this long ago is read from a backlog, whose end may tell that it is over.
const LATE: Span = Span::secs(120);
/// How long such news waits for the end of the backlog before anyone is told.
const BACKLOG: Span = Span::secs(10);
/// Rounds told at one moment: a ladder of waits of nothing has an end, and a mistake of ours too.
const MAX_ROUNDS: usize = 1000;

/// Why a storm takes its way.
const OF_STORM: &str = "that of the incidents in it";

impl Manager {
    /// Tells the people of its routes, from the first level on. Nobody is told of an annotation.
    pub(super) fn announce(&mut self, tx: &mut Tx<'_>, id: &str, at: Ts, why: &Why) {
        let now = tx.now;
        self.relabel(id);
        let Some(i) = self.open.get_mut(id) else { return };
        if i.record.severity == Severity::Info {
            return;
        }
        if i.record.quiet.as_ref().is_some_and(|q| q.why == Hidden::RolledUp) {
            // What it has become is counted for itself.
            self.set_suppressed(tx, id, None);
        }
        let Some(i) = self.open.get_mut(id) else { return };
        // Whoever was told of it hears at once that it is worse.
        let first = i.record.level == 0 && i.record.severity < Severity::Page;
        let wait = if first { self.config.batch_window } else { Span::ZERO };
        let from = now + if now - at > LATE { wait.max(BACKLOG) } else { wait };
        if let Some(advice) = advice::advise(&i.record, &i.summary, self.config.cost_per_gpu_hour) {
            tx.out.push(timeline(now, id, format!("what to do: {advice}")));
        }
        i.ladders = if i.storm.is_some() && !i.ladders.is_empty() {
            i.ladders.restarted(from)
        } else {
            let ways = self.router.ways(&self.config, &i.record.labels);
            for way in &ways {
                let levels = way.levels.len();
                let what = format!("route: {} ({}), levels: {levels}", way.route, way.because);
                tx.out.push(timeline(now, id, what));
            }
            Ladders::new(from, ways)
        };
        (i.counted, i.calm) = (false, false);
        self.climb(tx, id, why);
        // Hidden from the first moment on, also while its first word waits.
        if let Some(quiet) = self.suppressor.kept_quiet(self.view(now), id) {
            self.suppress(tx, id, quiet);
        }
    }

    /// Notifies every level that is due.
    pub(super) fn climb(&mut self, tx: &mut Tx<'_>, id: &str, why: &Why) {
        let now = tx.now;
        let pace = self.pace(id);
        let mut why = why.clone();
        let unheard = self.open.get(id).is_some_and(|i| i.record.level == 0);
        for _ in 0..MAX_ROUNDS {
            let Some(i) = self.open.get(id) else { return };
            if i.ladders.next_at().is_none_or(|at| at > now) {
                break;
            }
            // What a person asks for is told whatever hides it.
            if why.because != Reason::Escalated {
                match self.what_hides(tx, id) {
                    Some(quiet) => return self.suppress(tx, id, quiet),
                    None => why = self.reason_after_suppression(tx, id, why),
                }
            }
            let Some(i) = self.open.get_mut(id) else { return };
            let Some(due) = i.ladders.due(now, pace) else { break };
            self.round(tx, id, due, &why, unheard);
        }
        self.fall_back(tx, id, &why);
        if let Some(i) = self.open.get_mut(id) {
            i.record.next_at = i.ladders.next_at();
        }
    }

    /// One level is due: told, or passed over if its condition does not hold.
    fn round(&mut self, tx: &mut Tx<'_>, id: &str, due: Due, why: &Why, unheard: bool) {
        let now = tx.now;
        let Some(i) = self.open.get(id) else { return };
        let (level, asked) = match &due.what {
            Round::Level(level) => {
                let (holds, asked) = self.may_tell(now, i, &level.condition);
                if !holds {
                    let what =
                        format!("level {} of {} passed over: {}", due.level, due.route, asked.join(", "));
                    tx.out.push(timeline(now, id, what));
                    let pace = self.pace(id);
                    if let Some(i) = self.open.get_mut(id) {
                        i.ladders.pass_over(now, &due.route, pace);
                    }
                    return;
                }
                (level.clone(), asked)
            }
            Round::Reminder(levels) => {
                let may = levels.iter().rev().find(|l| self.may_tell(now, i, &l.condition).0);
                let Some(level) = may.or(levels.last()) else { return };
                (level.clone(), self.may_tell(now, i, &level.condition).1)
            }
        };
        let told = due.level > i.record.level || due.is_again();
        let says_more =
            [Reason::Escalated, Reason::ReceiverFailed, Reason::SilenceEnded, Reason::InhibitionEnded];
        let own = unheard || !told || says_more.contains(&why.because);
        let why = if own { why.clone() } else { due.why(now - i.record.opened_at) };
        let path = self.path(id, due.level, due.repeat, &due.route, asked);
        self.notify_level(tx, id, &level, path, &why);
    }

    /// How a level is reached, but for whom it names.
    fn path(&self, id: &str, level: u32, again: u32, route: &str, asked: Vec<String>) -> Path {
        let labels = self.open.get(id).map(|i| &i.record.labels);
        // A reload may have taken the route away since.
        let way =
            labels.and_then(|l| self.router.ways(&self.config, l).into_iter().find(|w| w.route == route));
        // A storm takes the way of what is in it, which its own labels need not lead to.
        let storm = self.open.get(id).is_some_and(|i| i.storm.is_some());
        let of_others = || (if storm { OF_STORM.to_owned() } else { String::new() }, None);
        let (matched, policy) = way.map_or_else(of_others, |way| (way.because, way.policy));
        Path { route: route.to_owned(), matched, policy, level, again, chosen: Vec::new(), asked }
    }

    fn notify_level(&mut self, tx: &mut Tx<'_>, id: &str, level: &Level, mut path: Path, why: &Why) {
        let now = tx.now;
        let Some(i) = self.open.get(id) else { return };
        let (recipients, found) = self.recipients(now, i, level);
        let Some(i) = self.open.get_mut(id) else { return };
        i.record.level = i.record.level.max(path.level);
        let silences = self.suppressor.active_silences(now);
        if silences > 0 {
            path.asked.push(format!("silences that do not match: {silences}"));
        }
        let asked =
            if path.asked.is_empty() { String::new() } else { format!("; {}", path.asked.join(", ")) };
        let found = found.join(", ");
        let left = recipients.iter().filter_map(|r| Some((&r.receiver, self.left_to(id, &r.receiver, why)?)));
        let left: Vec<String> = left.map(|(receiver, who)| format!("; {receiver}: {who} repeats")).collect();
        let left = left.concat();
        let what = format!("level {} notified ({found}): {}{left}{asked}", path.level, why.words);
        tx.out.push(timeline(now, id, what));
        let called: Vec<String> = recipients.iter().map(|r| r.receiver.clone()).collect();
        for mut recipient in recipients {
            let chosen = recipient.path.take().unwrap_or_default().chosen;
            recipient.path = Some(Path { chosen, ..path.clone() });
            self.send(tx, id, recipient, Action::Trigger, why);
        }
        self.show(tx, id, &called, &format!("{}; told now: {found}", why.words), why.because);
    }

    /// Shows a call in the threads of those whom it is not for.
    pub(super) fn show(
        &mut self,
        tx: &mut Tx<'_>,
        id: &str,
        called: &[String],
        words: &str,
        because: Reason,
    ) {
        let Some(i) = self.open.get(id) else { return };
        let shows = |receiver: &String| self.config.threads.contains(receiver) && !called.contains(receiver);
        let lanes = i.lanes.iter().filter(|(receiver, _)| shows(receiver));
        let lanes: Vec<_> = lanes.map(|(receiver, lane)| (receiver.clone(), lane.users.clone())).collect();
        for (receiver, users) in lanes {
            let to = Recipient::known(receiver, users);
            self.send(tx, id, to, Action::Update, &Why::new(because, words));
        }
    }

    /// Who goes on about the call that this receiver had, if calling it once more rings nobody:
    /// nobody has answered since, and it is about the same.
    fn left_to(&self, id: &str, receiver: &str, why: &Why) -> Option<&String> {
        let again = [
            Reason::Escalated,
            Reason::Repeated,
            Reason::StillFiring,
            Reason::ReceiverFailed,
            Reason::SilenceEnded,
            Reason::InhibitionEnded,
        ];
        let lane = self.open.get(id)?.lanes.get(receiver)?;
        let stands = lane.seq > 0 && !lane.answered && again.contains(&why.because);
        self.config.repeated_by.get(receiver).filter(|_| stands)
    }

    /// A page whose every level was passed over is told all the same; of anything else it is said
    /// where it waits.
    fn fall_back(&mut self, tx: &mut Tx<'_>, id: &str, why: &Why) {
        let now = tx.now;
        let Some(i) = self.open.get(id) else { return };
        let unheard = i.record.level == 0 && i.record.state == State::Open;
        if !unheard || i.ladders.is_empty() || !i.ladders.is_exhausted() {
            return;
        }
        if i.record.severity != Severity::Page {
            let what =
                "no level is for what is not a page: told to nobody, it waits in the list of incidents";
            tx.out.push(timeline(now, id, what.to_owned()));
            return;
        }
        let notify = i.ladders.last().flat_map(|l| l.notify.clone()).collect();
        let level = Level { notify, ..Level::default() };
        let nobody = vec!["no condition of any level holds: the last level is told all the same".to_owned()];
        let path = self.path(id, 1, 0, &i.ladders.routes(), nobody);
        self.notify_level(tx, id, &level, path, why);
    }

    pub(super) fn pace(&self, id: &str) -> Pace {
        let page = self.open.get(id).is_some_and(|i| i.record.severity == Severity::Page);
        Pace { page, remind_every: self.config.remind_every }
    }

    pub(super) fn send(&mut self, tx: &mut Tx<'_>, id: &str, to: Recipient, action: Action, why: &Why) {
        let now = tx.now;
        let Recipient { receiver, users, path } = to;
        let left_to = self.left_to(id, &receiver, why).filter(|_| action == Action::Trigger).cloned();
        let mut why = why.clone();
        if let Some(who) = &left_to {
            why.words = format!("{}; {who} repeats", why.words);
        }
        let slack_ids = users.iter().filter_map(|name| self.oncall.user(name)?.slack_id.clone()).collect();
        let Some(i) = self.open.get_mut(id) else { return };
        i.told_at = Some(now);
        let lane = i.lanes.entry(receiver.clone()).or_default();
        lane.seq += 1;
        let news = action == Action::Update && why.because != Reason::Unacknowledged;
        lane.answered = action == Action::Ack || lane.answered && news;
        if !users.is_empty() {
            lane.users.clone_from(&users);
        }
        let seq = lane.seq;
        let (page, despite_quiet) = (i.record.severity == Severity::Page, i.record.quiet.is_some());
        let Some(message) = self.words(now, id, action, &why) else { return };
        tx.out.push(Effect::Notify(Box::new(Notification {
            incident: id.to_owned(),
            seq,
            action,
            idem_key: format!("{id}/{receiver}/{seq}"),
            page,
            users,
            slack_ids,
            path,
            despite_quiet,
            left_to,
            message,
            receiver,
        })));
    }

    /// What is to be said of an open incident as it is at `now`.
    pub(crate) fn words(&self, now: Ts, id: &str, action: Action, why: &Why) -> Option<Message> {
        let i = self.open.get(id)?;
        let status = match action {
            Action::Resolve => Status::Resolved,
            _ if i.record.state == State::Acknowledged => Status::Acknowledged,
            _ => Status::Firing,
        };
        let alert = i.subjects.iter().find_map(|subject| match &subject.scope {
            Scope::Alert(key) => self.external.spokesman(key),
            _ => None,
        });
        let alert = alert.map(AsRef::as_ref);
        let about = About { record: &i.record, run: &i.summary, alert, holds: i.holds() };
        Some(message::compose(now, about, status, why, &self.config))
    }

    /// To everyone who was told of the incident. News wait until the last word is old enough, and
    /// are not told while it is hidden; an answer and an end are told at once.
    pub(super) fn notify_all(&mut self, tx: &mut Tx<'_>, id: &str, action: Action, why: impl Into<Why>) {
        let now = tx.now;
        let why = why.into();
        self.relabel(id);
        let Some(i) = self.open.get_mut(id) else { return };
        if action == Action::Update && why.because != Reason::Unacknowledged {
            let at = i.told_at.map_or(now, |at| at + self.config.update_min_interval);
            if i.record.quiet.is_some() || at > now {
                i.news = (!i.lanes.is_empty()).then_some(News { at: at.max(now), why });
                return;
            }
        }
        i.news = None;
        let lanes = i.lanes.iter().map(|(receiver, lane)| (receiver.clone(), lane.users.clone()));
        for (receiver, users) in lanes.collect::<Vec<_>>() {
            self.send(tx, id, Recipient::known(receiver, users), action, &why);
        }
    }

    /// News that have waited long enough; those of a hidden incident wait for its end.
    pub(super) fn notify_news(&mut self, tx: &mut Tx<'_>, id: &str) {
        let now = tx.now;
        let Some(i) = self.open.get_mut(id) else { return };
        if let Some(news) = i.news.take_if(|news| news.at <= now) {
            self.notify_all(tx, id, Action::Update, news.why);
        }
    }

    /// What was over before anyone was told is told to nobody.
    pub(super) fn climb_if_it_holds(&mut self, tx: &mut Tx<'_>, id: &str) {
        let now = tx.now;
        let Some(i) = self.open.get_mut(id) else { return };
        if i.record.level == 0 && i.raised.is_empty() {
            i.ladders = Ladders::default();
            i.record.next_at = None;
            self.set_suppressed(tx, id, None);
            tx.out.push(timeline(now, id, "over before anyone was told: nobody was told".into()));
            return;
        }
        let why =
            if i.record.level == 0 { Why::first() } else { Why::new(Reason::StillFiring, "still firing") };
        self.climb(tx, id, &why);
    }

    /// A receiver will never take it: the next level is due now, unless it only stood in for
    /// another, or would wake somebody for what is not a page.
    pub(crate) fn failed(&mut self, tx: &mut Tx<'_>, id: &str, receiver: &str, action: Action, error: &str) {
        let now = tx.now;
        tx.out.push(by_actor(now, id, receiver, format!("{} failed for good: {error}", action.as_str())));
        let Some(i) = self.open.get(id) else { return };
        if action != Action::Trigger || i.record.state != State::Open {
            return;
        }
        let why = Why::new(Reason::ReceiverFailed, format!("{receiver} could not be reached: {error}"));
        let page = i.record.severity == Severity::Page;
        let wakes = i.ladders.upcoming().flat_map(|l| &l.notify).any(|item| self.config.wakes(item));
        // A page that rang elsewhere need not ring sooner because a chat does not show it.
        let rang =
            !self.config.wakes(receiver) && i.lanes.keys().any(|o| o != receiver && self.config.wakes(o));
        let may_hurry = (page && !rang || !page && !wakes) && !self.stood_in(now, id, receiver);
        let Some(i) = self.open.get_mut(id) else { return };
        if may_hurry && i.ladders.hurry(now) {
            self.climb(tx, id, &why);
        } else if i.record.quiet.is_none() {
            self.notify_fallback(tx, id, receiver, &why);
        }
        self.finish(id, tx.out);
    }
}

impl Due {
    fn why(&self, waited: Span) -> Why {
        let level = self.level;
        match (&self.what, self.repeat) {
            (_, 0) => {
                Why::new(Reason::Escalated, format!("escalated to level {level}: no answer for {waited}"))
            }
            (Round::Level(_), n) => {
                Why::new(Reason::Repeated, format!("level {level} again ({n}): no answer for {waited}"))
            }
            (Round::Reminder(_), n) => {
                Why::new(Reason::StillFiring, format!("level {level} again ({n}): no answer for {waited}"))
            }
        }
    }
}

impl Why {
    /// Of the first message.
    pub(super) fn first() -> Self {
        Self::new(Reason::First, "new incident")
    }

    /// Of the first message after something hid the incident.
    pub(super) fn after(hidden: Hidden, by: &str, over: bool) -> Self {
        let since = if over { "is over" } else { "does not explain it any more" };
        match hidden {
            Hidden::Silenced => Self::new(Reason::SilenceEnded, format!("still firing: silence {by} ended")),
            Hidden::Inhibited => Self::new(
                Reason::InhibitionEnded,
                format!("still firing: incident {by}, which hid it, {since}"),
            ),
            Hidden::RolledUp => Self::new(Reason::First, format!("left the storm of incident {by}")),
        }
    }
}

impl<T: Into<String>> From<T> for Why {
    fn from(words: T) -> Self {
        Self::new(Reason::News, words)
    }
}
