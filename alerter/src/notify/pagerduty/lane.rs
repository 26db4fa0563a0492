//! The alerts of one incident: their keys, which of them are open, and the effect of a message on
//! them.
//!
//! PagerDuty notifies people once per alert, so each call is a separate alert. Its number is stored
//! before it is sent: a call that is repeated after a crash has the same key, and a call that may
//! have arrived is answered with the others.

use std::fmt;

use serde_json::{Value, json};
use stepwatch_model::time::{Span, Ts};
use stepwatch_respond::message::Message;

use crate::notify::attempt::Ring;
use crate::notify::text::shorten;

/// The service's limit of a key, in characters.
const DEDUP_KEY_MAX: usize = 255;
const TICKET_SUFFIX: &str = "-ticket";
/// The longest suffix of the incident's id: the one above, and a dash with a number.
const SUFFIXES_MAX: usize = TICKET_SUFFIX.len() + 11;

/// The most open alerts of one incident. The next call resolves the oldest, because each open alert
/// needs an answer.
const OPEN_MAX: usize = 10;

/// The effect of a repeated call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Repeats {
    /// Each call is a separate alert.
    #[default]
    Rings,
    /// PagerDuty's own escalation policy repeats the call for the open alert.
    Service,
}

/// The chart of an incident, for the page of its alert. PagerDuty accepts only HTTPS.
pub(super) fn images(m: &Message) -> Vec<Value> {
    let chart = m.chart.iter().filter(|src| src.starts_with("https://"));
    chart.map(|src| json!({"src": src, "href": src, "alt": "Chart of the incident"})).collect()
}

/// The effect of a message on this service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Intent {
    /// A call, which notifies people.
    Call(Ring),
    /// An update for readers of the alert; `own` is its number if there is no alert. `back`: the
    /// acknowledgement was taken back, and the service calls by itself.
    News {
        own: Option<Ring>,
        back: bool,
    },
    /// An acknowledgement. `there`: it was given in this service.
    Ack {
        there: bool,
    },
    Resolve,
    Nothing,
}

/// An event to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) action: &'static str,
    pub(super) ring: Ring,
}

/// The alerts of an incident at one receiver: the notifier's memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Lane {
    /// The open alerts, oldest first.
    open: Vec<Ring>,
    /// Whether the alerts are acknowledged.
    taken: bool,
    /// When the last alert was triggered.
    rang: Option<Ts>,
    /// The time of the message that is about to be sent.
    now: Ts,
    /// Whether the service may have resolved the alerts by itself since.
    expired: bool,
}

impl Lane {
    pub(super) fn read(memory: Option<&str>) -> Self {
        let mut lane = Self::default();
        for word in memory.unwrap_or_default().split_whitespace() {
            if let Some(millis) = word.strip_prefix('@') {
                lane.rang = millis.parse().ok().map(Ts);
                continue;
            }
            let (number, page) = word.strip_suffix('t').map_or((word, true), |number| (number, false));
            match number.parse() {
                Ok(number) if number > 0 => lane.open.push(Ring { number, page }),
                _ => lane.taken |= word == "taken",
            }
        }
        lane
    }

    /// The lane at `now`, for a service that resolves alerts after `auto_resolve`.
    pub(super) fn at(self, now: Ts, auto_resolve: Span) -> Self {
        let expired = auto_resolve > Span::ZERO && self.rang.is_some_and(|rang| now - rang >= auto_resolve);
        Self { now, expired, ..self }
    }

    /// The events to send, in order, and the lane after them. They depend only on the stored state,
    /// so that a repetition has the same keys. The calls in `unsure` may not have arrived; they are
    /// answered as if they had.
    pub(super) fn after(&self, intent: Intent, repeats: Repeats, unsure: &[Ring]) -> (Vec<Step>, Self) {
        let unsure = unsure.iter().filter(|ring| !self.open.contains(ring));
        let all = self.open.iter().chain(unsure).copied().collect::<Vec<_>>();
        let each = |action| all.iter().rev().map(move |ring| Step { action, ring: *ring }).collect();
        match intent {
            Intent::Nothing => (Vec::new(), self.clone()),
            Intent::Call(ring) => self.call(ring, repeats, all),
            // The update would open another alert, and notify people.
            Intent::News { .. } if self.expired => (Vec::new(), self.clone()),
            Intent::News { own, back } => {
                // The update goes to the last alert, if there is one, because another would notify
                // people.
                let Some(ring) = self.open.iter().max_by_key(|ring| ring.page).copied().or(own) else {
                    return (Vec::new(), self.clone());
                };
                let lane = if self.open.is_empty() {
                    Self { open: vec![ring], rang: Some(self.now), ..self.clone() }
                } else {
                    self.clone()
                };
                (vec![Step { action: "trigger", ring }], Self { taken: self.taken && !back, ..lane })
            }
            // The person who acknowledged the only alert there may have taken that back since.
            Intent::Ack { there } => {
                let steps = if there && all.len() <= 1 { Vec::new() } else { each("acknowledge") };
                (steps, Self { open: all.clone(), taken: true, ..self.clone() })
            }
            Intent::Resolve => (each("resolve"), Self::default()),
        }
    }

    fn call(&self, ring: Ring, repeats: Repeats, all: Vec<Ring>) -> (Vec<Step>, Self) {
        let resolve = |ring| Step { action: "resolve", ring };
        let others = |rings: &[Ring]| rings.iter().copied().filter(|had| *had != ring).collect::<Vec<_>>();
        let (mut open, mut steps) = (others(&self.open), Vec::new());
        if self.taken {
            // The old alerts are resolved first: a service that groups alerts would add the new one
            // to the acknowledged incident.
            steps.extend(others(&all).into_iter().map(resolve));
            open.clear();
        }
        let standing = open.iter().rev().find(|had| had.page == ring.page).copied();
        let ring = standing.filter(|_| repeats == Repeats::Service).unwrap_or(ring);
        steps.push(Step { action: "trigger", ring });
        if ring.page {
            // The ticket has become a page. The new alert is sent first; if the other event fails,
            // repeating both is harmless.
            steps.extend(open.extract_if(.., |had| !had.page).map(resolve));
        }
        if !open.contains(&ring) {
            open.push(ring);
        }
        let over = open.len().saturating_sub(OPEN_MAX);
        steps.extend(open.drain(..over).map(resolve));
        (steps, Self { open, taken: false, rang: Some(self.now), ..self.clone() })
    }
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let open = self.open.iter().map(|r| format!("{}{}", r.number, if r.page { "" } else { "t" }));
        let taken = self.taken.then(|| "taken".to_owned());
        let rang = self.rang.map(|rang| format!("@{}", rang.0));
        f.write_str(&open.chain(taken).chain(rang).collect::<Vec<_>>().join(" "))
    }
}

/// The key of an alert of an incident.
pub(crate) fn key(incident: &str, ring: Ring) -> String {
    let id = shorten(incident, DEDUP_KEY_MAX - SUFFIXES_MAX);
    let suffix = if ring.page { "" } else { TICKET_SUFFIX };
    if ring.number > 1 { format!("{id}{suffix}-{}", ring.number) } else { format!("{id}{suffix}") }
}

/// The incident of a key, and the alert within it. An incident's id has no dash.
pub(crate) fn ring_of(key: &str) -> (&str, Ring) {
    let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?;
    let numbered = key.rsplit_once('-').and_then(|(first, last)| Some((first, number(last)?)));
    let (key, number) = numbered.unwrap_or((key, 1));
    let (id, page) = key.strip_suffix(TICKET_SUFFIX).map_or((key, true), |id| (id, false));
    (id, Ring { number, page })
}

/// The memory of a lane with an alert that a person reopened.
pub(crate) fn with_open(memory: Option<&str>, ring: Ring) -> String {
    let mut lane = Lane::read(memory);
    if !lane.open.contains(&ring) {
        lane.open.push(ring);
    }
    lane.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEWS: Intent = Intent::News { own: None, back: false };

    fn page(number: u32) -> Ring {
        Ring { number, page: true }
    }

    fn steps(lane: &Lane, intent: Intent, repeats: Repeats) -> (Vec<String>, Lane) {
        unsure(lane, intent, repeats, &[])
    }

    fn unsure(lane: &Lane, intent: Intent, repeats: Repeats, unsure: &[Ring]) -> (Vec<String>, Lane) {
        let (steps, now) = lane.after(intent, repeats, unsure);
        (steps.iter().map(|s| format!("{} {}", s.action, key("I", s.ring))).collect(), now)
    }

    #[test]
    fn a_key_leads_back_to_its_incident() {
        for is_page in [false, true] {
            for number in [1, 2, u32::MAX] {
                let key = key("01J9ZC7Q3F8D2V4X", Ring { number, page: is_page });
                let ring = Ring { number, page: is_page };
                assert_eq!(ring_of(&key), ("01J9ZC7Q3F8D2V4X", ring), "{key}");
            }
        }
        assert_eq!(key("01J9ZC", page(1)), "01J9ZC");
        assert_eq!(key("01J9ZC", Ring { number: 3, page: false }), "01J9ZC-ticket-3");
        assert!(
            key(&"x".repeat(999), Ring { number: u32::MAX, page: false }).chars().count() <= DEDUP_KEY_MAX
        );
        assert_eq!(ring_of("of somebody else-"), ("of somebody else-", page(1)));
        assert_eq!(ring_of("other-99999999999").0, "other-99999999999", "no number of ours");
    }

    #[test]
    fn no_news_go_under_what_the_service_may_have_resolved() {
        let (_, lane) =
            steps(&Lane::default().at(Ts(1_000), Span::secs(60)), Intent::Call(page(1)), Repeats::Rings);
        let lane = Lane::read(Some(&lane.to_string()));
        let at = |secs: i64, after: Span| lane.clone().at(Ts(1_000 + secs * 1_000), after);
        assert_eq!(steps(&at(59, Span::secs(60)), NEWS, Repeats::Rings).0, ["trigger I"]);
        let (sent, later) = steps(&at(60, Span::secs(60)), NEWS, Repeats::Rings);
        assert_eq!(sent, [""; 0]);
        assert_eq!(steps(&at(60, Span::ZERO), NEWS, Repeats::Rings).0, ["trigger I"], "it never does");
        // A call still notifies people, and later updates go to its alert.
        let (sent, later) = steps(&later, Intent::Call(page(2)), Repeats::Rings);
        assert_eq!(sent, ["trigger I-2"]);
        let later = Lane::read(Some(&later.to_string())).at(Ts(62_000), Span::secs(60));
        assert_eq!(steps(&later, NEWS, Repeats::Rings).0, ["trigger I-2"]);
    }

    #[test]
    fn what_is_remembered_reads_back() {
        for text in ["", "1", "1t", "1t 1 2 taken", "7", "7 @1795227416000"] {
            assert_eq!(Lane::read(Some(text)).to_string(), text);
        }
        assert_eq!(Lane::read(None), Lane::default());
        assert_eq!(Lane::read(Some("- 0 words nobody knows")), Lane::default());
    }

    #[test]
    fn what_a_person_opened_again_ends_with_the_others() {
        assert_eq!(with_open(None, page(1)), "1");
        assert_eq!(with_open(Some("1 taken @5"), page(1)), "1 taken @5");
        let lane = Lane::read(Some(&with_open(Some(""), page(1))));
        let (_, lane) = steps(&lane, Intent::Call(page(2)), Repeats::Rings);
        assert_eq!(steps(&lane, Intent::Resolve, Repeats::Rings).0, ["resolve I-2", "resolve I"]);
    }

    #[test]
    fn each_call_rings_and_an_answer_is_of_all() {
        let mut lane = Lane::default();
        for n in 1..=3 {
            let (sent, now) = steps(&lane, Intent::Call(page(n)), Repeats::Rings);
            assert_eq!(sent, [format!("trigger {}", key("I", page(n)))]);
            lane = now;
        }
        assert_eq!(steps(&lane, NEWS, Repeats::Rings).0, ["trigger I-3"]);
        let (sent, taken) = steps(&lane, Intent::Ack { there: true }, Repeats::Rings);
        assert_eq!(sent, ["acknowledge I-3", "acknowledge I-2", "acknowledge I"]);
        assert_eq!(
            steps(&taken, Intent::Resolve, Repeats::Rings).0,
            ["resolve I-3", "resolve I-2", "resolve I"]
        );
        let (sent, again) = steps(&taken, Intent::Call(page(4)), Repeats::Rings);
        assert_eq!(sent, ["resolve I", "resolve I-2", "resolve I-3", "trigger I-4"]);
        assert_eq!(steps(&again, Intent::Ack { there: true }, Repeats::Rings).0, [""; 0], "only one is open");
    }

    #[test]
    fn a_call_of_which_nobody_knows_is_answered_with_the_others() {
        let lane = Lane::read(Some("1"));
        let maybe = [page(1), page(2)];
        assert_eq!(unsure(&lane, Intent::Resolve, Repeats::Rings, &maybe).0, ["resolve I-2", "resolve I"]);
        let (sent, taken) = unsure(&lane, Intent::Ack { there: true }, Repeats::Rings, &maybe);
        assert_eq!(
            (sent, taken.to_string()),
            (vec!["acknowledge I-2".into(), "acknowledge I".into()], "1 2 taken".into())
        );
        // The call is repeated under its own key: an update must not go to an alert that may not
        // exist.
        assert_eq!(unsure(&lane, Intent::Call(page(2)), Repeats::Rings, &maybe).0, ["trigger I-2"]);
        assert_eq!(unsure(&lane, NEWS, Repeats::Rings, &maybe).0, ["trigger I"]);
    }

    #[test]
    fn so_many_are_open_and_no_more() {
        let lane =
            (1..=25).fold(Lane::default(), |lane, n| steps(&lane, Intent::Call(page(n)), Repeats::Rings).1);
        assert_eq!(lane.open, (16..=25).map(page).collect::<Vec<_>>());
        let (sent, _) = steps(&lane, Intent::Call(page(26)), Repeats::Rings);
        assert_eq!(sent, ["trigger I-26", "resolve I-16"]);
    }

    #[test]
    fn where_the_service_repeats_there_is_one_alert() {
        let (_, lane) = steps(&Lane::default(), Intent::Call(page(1)), Repeats::Service);
        let (sent, lane) = steps(&lane, Intent::Call(page(2)), Repeats::Service);
        assert_eq!((sent, lane.to_string()), (vec!["trigger I".to_owned()], "1 @0".to_owned()));
        let (_, taken) = steps(&lane, Intent::Ack { there: false }, Repeats::Service);
        let (sent, lane) = steps(&taken, Intent::Call(page(3)), Repeats::Service);
        assert_eq!(
            (sent, lane.to_string()),
            (vec!["resolve I".to_owned(), "trigger I-3".to_owned()], "3 @0".into())
        );
    }
}
