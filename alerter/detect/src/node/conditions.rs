//! Faults and conditions that an exporter reports of its node. A condition holds until the exporter
//! reports its end.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
pub use stepwatch_model::Topic;
use stepwatch_model::{Action, Slowed, Target};
use stepwatch_wire::conditions::{NodeCondition, Row};
use stepwatch_wire::names::hw;
use stepwatch_wire::{Event, Kind, Value};

use super::liveness::Liveness;
use stepwatch_model::time::{Span, Ts};

/// The most conditions kept for a node. Those that are over are dropped first; a condition without
/// room is counted.
const MAX_CONDITIONS: usize = 256;
/// How long a condition that is over stays as evidence.
const KEEP: Span = Span::secs(3600);
/// Exporters publish a condition that holds again every 10 minutes. A condition that was not
/// published again for this long, while the node was reporting without a gap, has lapsed: it ended
/// while its exporter was away.
const LEASE: Span = Span::secs(1500);
/// As `LEASE`, after a restart of the exporter: an exporter publishes all conditions that hold at
/// its start.
const REPUBLISH: Span = Span::secs(300);

/// The most ranks, and the most hosts, named of those that an event blames.
const MAX_BLAMED: usize = 8;
/// States of a link that say whether it is up.
const PRESENCE: [&str; 5] = ["", "up", "down", "drop", "flap"];
/// GPU conditions whose end means that the GPU was reset, which ends its XIDs.
const MENDED: [NodeCondition; 2] = [NodeCondition::GpuLost, NodeCondition::GpuRecoveryAction];
/// The condition that the driver itself reports of a reset.
const RESET: &str = NodeCondition::GpuReset.name();
/// The condition that another exporter reports, which reads the scheduler.
const OUT_OF_SERVICE: &str = NodeCondition::NodeOutOfService.name();

/// Severity as the exporter judged it. The exporter does not consider runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Level {
    Info,
    Warn,
    Error,
}

/// Two events with the same key are about the same condition.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    pub topic: Topic,
    /// `xid`, `mlx5_0/1`, `gpu_lost`.
    pub name: String,
    /// The number of an XID; 0 for other topics.
    pub number: i64,
    /// `errors` or `degraded` for a link. Empty for its presence: up, down, dropped and flapping
    /// exclude each other.
    pub aspect: String,
    /// GPU, device, mount or process.
    pub place: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    pub level: Level,
    /// `None` if the exporter names no action.
    pub action: Option<Action>,
    /// The exporter's sentence.
    pub text: String,
    /// For an XID: its name in the vendor's catalogue, and the catalogue's advice.
    pub known_as: String,
    pub hint: String,
    /// For a GPU that its hardware slows down: why.
    pub slowed: Option<Slowed>,
    /// The UUID of the GPU, if known.
    pub gpu: String,
    pub pci: String,
    pub medium: String,
    /// For a link: `down`, `drop`, `flap`, `errors`, `degraded`.
    pub state: String,
    pub process: String,
    pub caused_by: Option<i64>,
    /// Ranks or nodes that it blames: `ranks 5, 6 on gpu-7`.
    pub blames: Option<Target>,
    /// The runs that it is about; `None` if it is about every run of the node.
    #[serde(default)]
    pub runs: Option<Vec<String>>,
    /// By the node's clock: when it began, and when it was last published.
    pub began: Ts,
    #[serde(default)]
    pub last_published: Ts,
    /// By the alerter's clock: when it first and last arrived.
    pub first: Ts,
    pub last: Ts,
    pub times: u32,
    /// It is an event without an end.
    pub once: bool,
    pub over: Option<Ts>,
    /// The end was not reported: the node stopped publishing the condition.
    pub lapsed: bool,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Conditions {
    all: BTreeMap<Key, Condition>,
    /// The boot id of the exporter that published the last of them, and since when it is received.
    life: Option<(String, Ts)>,
    pub dropped: u64,
}

impl Level {
    fn parse(text: Option<&str>) -> Self {
        match text.unwrap_or("info").to_ascii_lowercase().as_str() {
            "error" | "critical" | "fatal" => Self::Error,
            "warn" | "warning" => Self::Warn,
            _ => Self::Info,
        }
    }
}

impl Key {
    /// Its row in the table of conditions. `None` for links, XIDs, and conditions that this version
    /// does not have.
    pub(crate) fn row(&self) -> Option<&'static Row> {
        (self.topic == Topic::Hw).then(|| NodeCondition::parse(&self.name))?.map(NodeCondition::row)
    }

    /// Whether the condition of a link is that it is down.
    pub(crate) fn is_link_down(&self, c: &Condition) -> bool {
        self.aspect.is_empty() && c.state != "flap"
    }

    fn from_event(e: &Event, gpu: &str) -> Option<Self> {
        let first =
            |keys: &[&str]| keys.iter().map(|k| word(e, k)).find(|v| !v.is_empty()).unwrap_or_default();
        let topic = match e.kind {
            Kind::Xid => Topic::Xid,
            Kind::Link => Topic::Link,
            Kind::Hw => Topic::Hw,
            _ => return None,
        };
        let (number, aspect) = match topic {
            Topic::Xid => (e.code?, String::new()),
            Topic::Link if !PRESENCE.contains(&word(e, "state").as_str()) => (0, word(e, "state")),
            Topic::Link | Topic::Hw => (0, String::new()),
        };
        let place = match topic {
            Topic::Link => String::new(),
            _ if !gpu.is_empty() => gpu.to_owned(),
            _ => first(&["pci", "device", "mount", "server", "cgroup", "key", "pid"]),
        };
        let name = e.name.clone().unwrap_or_else(|| e.kind.as_str().to_owned());
        Some(Self { topic, name, number, aspect, place })
    }
}

impl Condition {
    /// Whether it still holds; an event without an end never does.
    pub fn holds(&self) -> bool {
        !self.once && self.over.is_none()
    }

    /// Updates the condition from a later event. True if that is news.
    fn update(&mut self, new: Self, again: bool) -> bool {
        let (over, times) = (self.over.is_some(), self.times);
        // A condition that holds outranks one that only happened.
        let anew = over || self.once && !new.once || new.state == "down" && self.state != "down";
        let news = anew || !again || new.level > self.level;
        let once = self.once && new.once;
        if anew {
            *self = new;
        } else if news {
            *self = Self { began: self.began, first: self.first, once, ..new };
        } else {
            (self.last, self.last_published) = (new.last, new.last_published);
        }
        self.times = times + u32::from(news);
        news
    }

    /// Whether it is about this run: it names the run, or no runs.
    pub fn concerns(&self, run: &str) -> bool {
        self.runs.as_ref().is_none_or(|runs| runs.iter().any(|of| of == run))
    }

    /// Whether it held, or happened, at or after `since`, by the alerter's clock.
    pub fn touches(&self, since: Ts) -> bool {
        self.holds() || self.over.is_some_and(|at| at >= since) || self.last >= since
    }
}

impl Conditions {
    pub fn iter(&self) -> impl Iterator<Item = (&Key, &Condition)> {
        self.all.iter()
    }

    /// Handles an event. True if it has something new. `gpu` is the UUID of the GPU that it is
    /// about, or empty.
    pub(crate) fn take(&mut self, now: Ts, e: &Event, gpu: &str) -> bool {
        let Some(key) = Key::from_event(e, gpu) else { return false };
        let holds = match key.topic {
            Topic::Xid => true,
            Topic::Link => e.code == Some(0),
            Topic::Hw => e.code.unwrap_or(1) != 0,
        };
        if !holds {
            return self.end(now, &key, e.ts.map_or(now, Ts::from_secs_f64));
        }
        let again = matches!(e.extra.get("again"), Some(Value::Bool(true)));
        let new = Condition::from_event(now, e, &key, gpu);
        if key.topic == Topic::Hw && key.name == RESET {
            self.mend(now, &new.gpu, &new.pci, new.began);
        }
        if let Some(c) = self.all.get_mut(&key) {
            return c.update(new, again);
        }
        if self.all.len() >= MAX_CONDITIONS && !self.make_room() {
            self.dropped += 1;
            return false;
        }
        self.all.insert(key, new);
        true
    }

    fn end(&mut self, now: Ts, key: &Key, at: Ts) -> bool {
        let Some(c) = self.all.get_mut(key).filter(|c| c.over.is_none()) else { return false };
        c.over = Some(now);
        let (gpu, pci) = (c.gpu.clone(), c.pci.clone());
        if key.topic == Topic::Hw && MENDED.iter().any(|mended| mended.name() == key.name) {
            self.mend(now, &gpu, &pci, at);
        }
        true
    }

    /// Ends the XIDs that a GPU had before it was reset. Times are compared by the node's clock: a
    /// reset is often reported much later.
    fn mend(&mut self, now: Ts, gpu: &str, pci: &str, reset: Ts) {
        let same = |c: &Condition| !gpu.is_empty() && c.gpu == gpu || !pci.is_empty() && c.pci == pci;
        let xids = self
            .all
            .iter_mut()
            .filter(|(key, c)| key.topic == Topic::Xid && same(c) && c.last_published <= reset);
        xids.for_each(|(_, c)| c.over = Some(now));
    }

    fn make_room(&mut self) -> bool {
        let done = self.all.iter().filter(|(_, c)| !c.holds()).min_by_key(|(_, c)| c.last);
        let Some(key) = done.map(|(key, _)| key.clone()) else { return false };
        self.all.remove(&key).is_some()
    }

    /// Records a restart of the exporter.
    pub(crate) fn life(&mut self, boot: Option<&str>, now: Ts) {
        let Some(boot) = boot else { return };
        if self.life.as_ref().is_none_or(|(had, _)| had != boot) {
            self.life = Some((boot.to_owned(), now));
        }
    }

    /// When the first event since the exporter's last start arrived.
    pub(crate) fn born(&self) -> Option<Ts> {
        self.life.as_ref().map(|(_, at)| *at)
    }

    /// Ends conditions that the node stopped publishing, and forgets those that are long over.
    pub(crate) fn age(&mut self, now: Ts, heard: &Liveness) {
        let born = self.born();
        for (key, c) in self.all.iter_mut().filter(|(_, c)| c.holds()) {
            // What a scheduler says of the node is not repeated by the node's own exporter.
            let born = born.filter(|_| key.name != OUT_OF_SERVICE);
            if is_dropped(born, c.last, heard) {
                (c.over, c.lapsed) = (Some(now), true);
            }
        }
        self.all.retain(|_, c| c.holds() || now - c.over.unwrap_or(c.last).max(c.last) < KEEP);
    }
}

/// Whether the node stopped publishing a condition that was last published at `last`.
pub(crate) fn is_dropped(born: Option<Ts>, last: Ts, heard: &Liveness) -> bool {
    let orphan = born.is_some_and(|at| last < at && heard.without(at) > REPUBLISH);
    orphan || heard.without(last) > LEASE
}

impl Condition {
    fn from_event(now: Ts, e: &Event, key: &Key, gpu: &str) -> Self {
        let caused_by = e.extra.get("caused_by").and_then(Value::as_f64).map(|n| n as i64);
        let once = matches!(e.extra.get("once"), Some(Value::Bool(true)));
        Self {
            level: Level::parse(e.level.as_deref()),
            action: Action::parse(&word(e, "action")),
            text: e.text.clone().unwrap_or_default(),
            known_as: word(e, hw::KNOWN_AS),
            hint: word(e, hw::HINT),
            slowed: Slowed::first(&word(e, hw::REASON).split(',').collect::<Vec<_>>()),
            gpu: gpu.to_owned(),
            pci: word(e, "pci"),
            medium: word(e, "medium"),
            state: word(e, "state"),
            process: word(e, "process"),
            caused_by,
            blames: blames(e),
            runs: runs(e),
            began: e.ts.map_or(now, Ts::from_secs_f64),
            last_published: e.ts.map_or(now, Ts::from_secs_f64),
            first: now,
            last: now,
            times: 1,
            once: once || key.topic == Topic::Xid,
            over: None,
            lapsed: false,
        }
    }
}

/// The runs that an event is about, if it is not about all of its node.
pub(crate) fn runs(e: &Event) -> Option<Vec<String>> {
    let Some(Value::List(names)) = e.extra.get(hw::RUNS) else { return None };
    Some(names.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect())
}

/// The ranks that an event names, and where they are.
fn blames(e: &Event) -> Option<Target> {
    let list = |key: &str| -> Vec<String> {
        let Some(Value::List(items)) = e.extra.get(key) else { return Vec::new() };
        let words = items.iter().filter_map(|v| match v {
            Value::Text(text) => Some(text.clone()),
            Value::Number(n) => Some(n.to_string()),
            _ => None,
        });
        words.take(MAX_BLAMED).collect()
    };
    let (ranks, hosts) = (list("ranks"), list("hosts"));
    (!ranks.is_empty()).then_some(Target::Ranks { ranks, hosts })
}

/// A text, or a number as one.
pub(crate) fn word(e: &Event, key: &str) -> String {
    match e.extra.get(key) {
        Some(Value::Text(text)) => text.clone(),
        Some(Value::Number(n)) => n.to_string(),
        _ => String::new(),
    }
}
