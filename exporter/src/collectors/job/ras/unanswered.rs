//! Streams which ranks RAS gets no answer from, so that a start that hangs can name them. A poll
//! may miss a process that is busy, so two in a row must agree that some are missing.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use stepwatch_wire::names::{hw, ras};
use stepwatch_wire::{Event, Kind, Value};

use super::status::Communicator;
use super::{MAX_LISTED, address_of};
use crate::clock::unix_now;
use crate::collector::Context;
use crate::origin::Origin;

/// How often what has not changed is published again.
const AGAIN: Duration = Duration::from_mins(1);

/// The jobs some of whose ranks did not answer at the last poll, by the key of a hang.
#[derive(Debug, Default)]
pub(super) struct Unanswered(BTreeMap<String, Missing>);

/// A job some of whose ranks have not answered.
#[derive(Debug)]
pub(super) struct Silent<'a> {
    /// Its largest communicator.
    pub(super) communicator: &'a Communicator,
    /// The runs that it may be; `None` for all.
    pub(super) runs: Option<Value>,
    /// The last answer was about it, and not about another job at the address.
    pub(super) is_new: bool,
}

#[derive(Debug)]
struct Missing {
    since: Instant,
    published: Option<(Event, Instant)>,
}

impl Unanswered {
    /// Takes in an answer at an address: the jobs there that lack ranks, by key.
    pub(super) fn take(
        &mut self,
        cx: &Context<'_>,
        now: Instant,
        address: &str,
        jobs: &BTreeMap<String, Silent<'_>>,
    ) {
        self.end(cx, |key| address_of(key) == address && !jobs.contains_key(key));
        for (key, silent) in jobs.iter().filter(|(_, silent)| silent.is_new) {
            let Some(missing) = self.0.get_mut(key) else {
                self.0.insert(key.clone(), Missing { since: now, published: None });
                continue;
            };
            let event = event(key, silent.communicator, silent.runs.as_ref());
            let is_due = |(had, at): &(Event, Instant)| *had != event || now.duration_since(*at) >= AGAIN;
            if missing.published.as_ref().is_none_or(is_due) {
                let mut published = event.clone();
                published.ts = Some(unix_now());
                let seconds = now.duration_since(missing.since).as_secs_f64().round();
                published.extra.insert(ras::SECONDS.into(), Value::Number(seconds));
                cx.hub.publish(Origin::Node, published);
                missing.published = Some((event, now));
            }
        }
    }

    /// Forgets those that are over, and publishes the end of those that were published.
    pub(super) fn end(&mut self, cx: &Context<'_>, is_over: impl Fn(&str) -> bool) {
        let over: Vec<(String, Missing)> = self.0.extract_if(.., |key, _| is_over(key)).collect();
        for (key, _) in over.iter().filter(|(_, missing)| missing.published.is_some()) {
            let mut event = Event {
                ts: Some(unix_now()),
                name: Some(ras::NAME.into()),
                code: Some(0),
                ..Event::new(Kind::Health)
            };
            event.extra.insert(ras::KEY.into(), Value::Text(key.clone()));
            cx.hub.publish(Origin::Node, event);
        }
    }
}

fn event(key: &str, communicator: &Communicator, runs: Option<&Value>) -> Event {
    let mut event = Event { name: Some(ras::NAME.into()), code: Some(1), ..Event::new(Kind::Health) };
    let named = || communicator.missing.named.iter().take(MAX_LISTED);
    let ranks = named().map(|member| Value::Number(f64::from(member.rank))).collect();
    let hosts = named().map(|member| Value::Text(member.host.clone())).collect();
    for (key, value) in [
        (ras::KEY, Value::Text(key.to_owned())),
        (ras::SIZE, Value::Number(f64::from(communicator.size))),
        (ras::UNANSWERED, Value::Number(communicator.missing.count as f64)),
        (ras::RANKS, Value::List(ranks)),
        (ras::HOSTS, Value::List(hosts)),
    ] {
        event.extra.insert(key.to_owned(), value);
    }
    event.extra.extend(runs.map(|runs| (hw::RUNS.to_owned(), runs.clone())));
    event
}
