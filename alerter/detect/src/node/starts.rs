//! What a node shows of runs that start there: which ranks have a process, whether the node is
//! connected to the place where they meet, and which ranks NCCL's RAS gets no answer from.
//! Exporters repeat it each minute, so it is not stored.

use std::collections::BTreeMap;

use stepwatch_wire::names::{ras, rendezvous};
use stepwatch_wire::{Event, Value};

use super::conditions::runs;
use stepwatch_model::MasterLink;
use stepwatch_model::time::{Span, Ts};

/// The most of each that are kept for a node: those of as many runs.
const MAX_KEPT: usize = 16;
/// The most ranks of a list.
const MAX_RANKS: usize = 64;
/// The most bytes of a key and of the address of a master. Exporters send shorter ones.
const MAX_BYTES: usize = 1024;
/// What was not repeated for this long does not count.
const FRESH: Span = Span::secs(180);
/// The longest time that is believed.
const LONGEST: Span = Span::secs(86_400);

#[derive(Debug, Clone, Default)]
pub(crate) struct Starts {
    meetings: BTreeMap<String, Meeting>,
    unanswered: BTreeMap<String, Unanswered>,
}

/// The ranks of a run on a node, and their way to where all of them meet.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Meeting {
    pub(crate) runs: Vec<String>,
    pub(crate) uid: Option<u32>,
    /// The address and the port; empty if they are unknown.
    pub(crate) master: String,
    /// The ranks that have a process, and those that should have one and have none.
    pub(crate) ranks: Vec<u32>,
    pub(crate) absent: Vec<u32>,
    /// How many ranks there are by their launcher.
    pub(crate) world: Option<u32>,
    /// The node is where they meet.
    pub(crate) listens: bool,
    pub(crate) link: Link,
    /// Since when it is connected or not, by our clock.
    pub(crate) since: Ts,
    /// The other hosts that are connected to it, if ranks meet there.
    pub(crate) peers: u64,
    last: Ts,
}

/// Whether a node is connected to the master.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Link {
    Unknown,
    Connected,
    Lacking(MasterLink),
}

/// Ranks of a communicator that do not answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Unanswered {
    /// The runs that they may be of; `None` for every run of the node.
    pub(crate) runs: Option<Vec<String>>,
    /// The ranks of the communicator, and how many of them do not answer.
    pub(crate) size: u32,
    pub(crate) count: u64,
    /// Some of those, with the address of their host, or an empty text.
    pub(crate) ranks: Vec<(u32, String)>,
    last: Ts,
}

impl Starts {
    pub(crate) fn take(&mut self, now: Ts, e: &Event) {
        let text = |key: &str| e.extra.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let is_over = e.code == Some(0);
        let is_short = |key: &str| text(key).len() <= MAX_BYTES;
        if ![rendezvous::KEY, rendezvous::MASTER].into_iter().all(is_short) {
            return;
        }
        match e.name.as_deref() {
            Some(rendezvous::NAME) => {
                let new = (!is_over).then(|| Meeting::from_event(now, e));
                put(&mut self.meetings, text(rendezvous::KEY), new, |had| had.last);
            }
            Some(ras::NAME) => {
                let new = (!is_over).then(|| Unanswered::from_event(now, e)).flatten();
                put(&mut self.unanswered, text(ras::KEY), new, |had| had.last);
            }
            _ => {}
        }
    }

    /// The meetings that were told of lately.
    pub(crate) fn meetings(&self, now: Ts) -> impl Iterator<Item = &Meeting> {
        self.meetings.values().filter(move |one| now - one.last < FRESH)
    }

    pub(crate) fn unanswered(&self, now: Ts) -> impl Iterator<Item = &Unanswered> {
        self.unanswered.values().filter(move |one| now - one.last < FRESH)
    }
}

fn put<T>(all: &mut BTreeMap<String, T>, key: String, new: Option<T>, last: impl Fn(&T) -> Ts) {
    let Some(new) = new else {
        all.remove(&key);
        return;
    };
    all.insert(key, new);
    if all.len() > MAX_KEPT {
        let oldest = all.iter().min_by_key(|(_, had)| last(had)).map(|(key, _)| key.clone());
        oldest.map(|key| all.remove(&key));
    }
}

impl Meeting {
    fn from_event(now: Ts, e: &Event) -> Self {
        let text = |key: &str| e.extra.get(key).and_then(Value::as_str).unwrap_or_default();
        let number = |key: &str| e.extra.get(key).and_then(Value::as_f64);
        let seconds = number(rendezvous::SECONDS).filter(|secs| secs.is_finite() && *secs > 0.0);
        let lasts = Span::from_secs_f64(seconds.unwrap_or(0.0).min(LONGEST.as_secs_f64()));
        Self {
            runs: some_runs(e).unwrap_or_default(),
            uid: e.uid,
            master: text(rendezvous::MASTER).to_owned(),
            ranks: numbers(e, rendezvous::RANKS),
            absent: numbers(e, rendezvous::ABSENT),
            world: number(rendezvous::WORLD).filter(|n| *n > 0.0).map(|n| n as u32),
            listens: e.extra.get(rendezvous::LISTENS) == Some(&Value::Bool(true)),
            link: match text(rendezvous::LINK) {
                rendezvous::ESTABLISHED => Link::Connected,
                rendezvous::SYN_SENT => Link::Lacking(MasterLink::Unanswered),
                rendezvous::NONE => Link::Lacking(MasterLink::Nothing),
                _ => Link::Unknown,
            },
            since: now.earlier(lasts),
            peers: number(rendezvous::PEERS).filter(|n| *n > 0.0).map_or(0, |n| n as u64),
            last: now,
        }
    }
}

impl Unanswered {
    fn from_event(now: Ts, e: &Event) -> Option<Self> {
        let number = |key: &str| e.extra.get(key).and_then(Value::as_f64).filter(|n| *n >= 0.0);
        let host = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let hosts: Vec<String> = match e.extra.get(ras::HOSTS) {
            Some(Value::List(hosts)) => hosts.iter().take(MAX_RANKS).map(host).collect(),
            _ => Vec::new(),
        };
        let of_rank = |(at, rank)| (rank, hosts.get(at).cloned().unwrap_or_default());
        Some(Self {
            runs: some_runs(e),
            size: number(ras::SIZE)? as u32,
            count: number(ras::UNANSWERED)? as u64,
            ranks: numbers(e, ras::RANKS).into_iter().enumerate().map(of_rank).collect(),
            last: now,
        })
    }
}

/// The first runs that an event names.
fn some_runs(e: &Event) -> Option<Vec<String>> {
    runs(e).map(|all| all.into_iter().take(MAX_RANKS).collect())
}

/// A list of small numbers; whatever else is in it is left out.
fn numbers(e: &Event, key: &str) -> Vec<u32> {
    let Some(Value::List(items)) = e.extra.get(key) else { return Vec::new() };
    let number = |v: &Value| v.as_f64().filter(|n| (0.0..4e9).contains(n) && n.fract() == 0.0);
    items.iter().filter_map(number).take(MAX_RANKS).map(|n| n as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(json: &str) -> Event {
        Event::parse(format!(r#"{{"k":"health",{json}}}"#).as_bytes()).unwrap()
    }

    #[test]
    fn what_is_over_or_old_does_not_count_and_there_is_a_limit() {
        let mut starts = Starts::default();
        let of = |key: &str, more: &str| told(&format!(r#""name":"rendezvous","key":"{key}",{more}"#));
        starts.take(Ts(1_000_000), &of("a", r#""code":1,"runs":["r"],"link":"syn_sent","seconds":60"#));
        let one = starts.meetings(Ts(1_000_000)).next().unwrap();
        assert_eq!((one.link, one.since), (Link::Lacking(MasterLink::Unanswered), Ts(940_000)));
        assert_eq!(starts.meetings(Ts(1_180_000)).count(), 0, "not repeated");
        starts.take(Ts(1_010_000), &of("a", r#""code":0"#));
        assert_eq!(starts.meetings(Ts(1_010_000)).count(), 0, "over");
        for i in 0..2 * MAX_KEPT {
            starts.take(Ts(2_000_000 + i as i64), &of(&format!("{i:02}"), r#""code":1"#));
        }
        assert_eq!(starts.meetings(Ts(2_001_000)).count(), MAX_KEPT);
        let mut starts = Starts::default();
        starts.take(Ts(0), &of(&"a".repeat(MAX_BYTES + 1), r#""code":1"#));
        assert_eq!(starts.meetings(Ts(0)).count(), 0, "no exporter sends such a key");
    }

    proptest::proptest! {
        #[test]
        fn any_event_is_taken(value in ".{0,40}", n: f64, name in "rendezvous|ras") {
            let mut e = told(&format!(r#""name":"{name}","key":"k","code":1"#));
            for key in ["seconds", "peers", "world_size", "comm_size", "unanswered", "ranks", "absent"] {
                e.extra.insert(key.into(), Value::List(vec![Value::Number(n), Value::Text(value.clone())]));
                Starts::default().take(Ts(0), &e);
                e.extra.insert(key.into(), Value::Number(n));
                Starts::default().take(Ts(0), &e);
            }
        }
    }
}
