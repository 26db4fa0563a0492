//! How the ranks of a run come together before their first step: which of them have a process on
//! this node, and whether this node is connected to the place where they meet.
//!
//! A run that hangs before its first step often hangs in the store of its process group: a process
//! was never started, or a node cannot reach the master. Neither has said `hello` then, so both are
//! read here from `/proc`. A run is looked at until it makes a step, or its processes have been
//! there for four hours. Nothing is read of a run that trains.

mod processes;
mod sockets;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use stepwatch_kit::config::Period;
use stepwatch_wire::names::{hw, rendezvous};
use stepwatch_wire::{Event, Kind, Value};

use self::processes::{Known, Process};
use self::sockets::{Master, Sockets};
use crate::clock::unix_now;
use crate::collector::{CollectError, Collector, Context, Mistakes, Rhythm, Support};
use crate::fair_share;
use crate::family::Family;
use crate::family_filter::Metrics;
use crate::origin::Origin;
use crate::principal::Principal;
use crate::samples::Samples;

pub const ABOUT: &str = "ranks that start: their processes, and their connections to the master";
pub const NEEDS: &str = "/proc; CAP_SYS_PTRACE for the environment of other users' processes";
pub const COST: &str = "a list of all processes, and the environment of each new one; the kernel's table of sockets while a run starts";

pub static RANKS: Family = Family::gauge(
    "job_rendezvous_ranks",
    "",
    &["run", "state"],
    "Ranks of this node in a run that starts: those that have a process (here), and those of the launcher that have none (absent)",
);
pub static CONNECTIONS: Family = Family::gauge(
    "job_rendezvous_connections",
    "",
    &["run", "state"],
    "Connections of this node to the master of a run that starts (established), and attempts that it has not answered (syn_sent)",
);
pub static PEERS: Family = Family::gauge(
    "job_rendezvous_peers",
    "",
    &["run"],
    "Other hosts that are connected to this node, which is the master of a run that starts",
);

pub static FAMILIES: &[&Family] = &[&RANKS, &CONNECTIONS, &PEERS];

/// How long after the start of its processes a run is looked at: past the page of a start that
/// hangs, which comes an hour after its last sign of progress, and later in a declared phase.
const WATCHED_SECONDS: f64 = 4.0 * 3600.0;
/// A launcher starts all ranks of a node within this time.
const LAUNCHED_SECONDS: f64 = 60.0;
/// An attempt that the master did not answer is repeated, and there is none for a moment.
const TRIES_AGAIN: Duration = Duration::from_mins(1);
/// How often what has not changed is published again.
const AGAIN: Duration = Duration::from_mins(1);
/// The most runs of one node that start at a time.
const MAX_RUNS: usize = 16;
/// The most ranks and addresses in a list of an event.
const MAX_LISTED: usize = 64;

#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// The families that are on the metrics page.
    pub metrics: Metrics,
    pub interval: Period,
}

impl Config {
    pub(crate) fn check(&self) -> Mistakes {
        Mistakes::default().period("interval", self.interval)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, metrics: Metrics::default(), interval: Period::secs(10) }
    }
}

pub fn rhythm(config: &Config) -> Rhythm {
    Rhythm { interval: config.interval.into(), deadline: Duration::from_secs(15) }
}

#[derive(Debug)]
pub struct RendezvousReader {
    known: Known,
    runs: BTreeMap<Key, Watched>,
}

/// The ranks of a run that share a network on this node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    uid: u32,
    run: String,
    master: Option<Master>,
    namespace: u64,
}

/// The first process of each rank: what a rank forks has its variables too.
type Ranks = BTreeMap<u32, Process>;

/// A run whose ranks have processes here.
#[derive(Debug)]
struct Watched {
    /// When the last of its ranks began, in clock ticks: another start has others.
    newest: u64,
    /// The last step that was known when this start was first seen.
    step: Option<i64>,
    /// It made a step, or its time is over.
    over: bool,
    link: Option<Link>,
    /// Since when it is connected, or not.
    since: Instant,
    /// When an attempt was last seen that the master had not answered.
    tried: Option<Instant>,
    published: Option<(Event, Instant)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    Established,
    SynSent,
    None,
}

impl Link {
    fn as_str(self) -> &'static str {
        match self {
            Self::Established => rendezvous::ESTABLISHED,
            Self::SynSent => rendezvous::SYN_SENT,
            Self::None => rendezvous::NONE,
        }
    }
}

impl RendezvousReader {
    pub fn new(_: &Config) -> Self {
        Self { known: Known::default(), runs: BTreeMap::new() }
    }

    fn look(&mut self, cx: &Context<'_>, now: Instant, out: &mut Samples) {
        let mut found = self.known.look(cx.roots);
        let groups = groups(cx, core::mem::take(&mut found.ranks));
        let gone: Vec<Key> = self.runs.keys().filter(|key| !groups.contains_key(*key)).cloned().collect();
        for (key, watched) in gone.iter().filter_map(|key| self.runs.remove_entry(key)) {
            watched.end(cx, &key);
        }
        let mut totals: BTreeMap<&str, Totals> = BTreeMap::new();
        for (key, ranks) in &groups {
            let newest = ranks.values().map(|rank| rank.ticks).max().unwrap_or(0);
            let step = last_step(cx, key, ranks);
            let watched = self.runs.entry(key.clone()).or_insert_with(|| Watched::new(newest, step, now));
            if watched.newest != newest {
                *watched = Watched { published: watched.published.take(), ..Watched::new(newest, step, now) };
            }
            let began = ranks.values().map(|rank| rank.began).fold(0.0, f64::max);
            watched.over |= watched.step != step || unix_now() - began > WATCHED_SECONDS;
            if watched.over {
                watched.end(cx, key);
                watched.published = None;
                continue;
            }
            let of_key = watched.take(cx, now, key, ranks, found.is_whole(key.uid));
            totals.entry(&key.run).or_default().add(&of_key);
        }
        totals.iter().for_each(|(run, totals)| totals.write(run, out));
    }
}

/// The numbers of a run on this node. Pods of one run have a network each.
#[derive(Debug, Default)]
struct Totals {
    here: usize,
    absent: usize,
    /// Connections that are established, and attempts that are not answered, if they are known.
    connections: Option<[u64; 2]>,
    peers: Option<usize>,
}

impl Totals {
    fn add(&mut self, more: &Self) {
        self.here += more.here;
        self.absent += more.absent;
        if let Some([established, syn_sent]) = more.connections {
            let had = self.connections.get_or_insert_default();
            *had = [had[0] + established, had[1] + syn_sent];
        }
        self.peers = self.peers.max(more.peers);
    }

    fn write(&self, run: &str, out: &mut Samples) {
        out.set(&RANKS, &[run, "here"], self.here);
        out.set(&RANKS, &[run, "absent"], self.absent);
        if let Some([established, syn_sent]) = self.connections {
            out.set(&CONNECTIONS, &[run, rendezvous::ESTABLISHED], established);
            out.set(&CONNECTIONS, &[run, rendezvous::SYN_SENT], syn_sent);
        }
        out.maybe(&PEERS, &[run], self.peers);
    }
}

fn numbers<'a>(ranks: impl Iterator<Item = &'a u32>) -> Value {
    Value::List(ranks.take(MAX_LISTED).map(|rank| Value::Number(f64::from(*rank))).collect())
}

/// The ranks by run. Where a launcher and what it starts both look like ranks, only the latter are.
fn groups(cx: &Context<'_>, processes: Vec<Process>) -> BTreeMap<Key, Ranks> {
    let mut nearest: BTreeMap<(u32, String), usize> = BTreeMap::new();
    for p in &processes {
        let launcher = nearest.entry((p.uid, p.run.clone())).or_insert(p.place.launcher);
        *launcher = p.place.launcher.min(*launcher);
    }
    let mut theirs: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    let mut groups: BTreeMap<Key, Ranks> = BTreeMap::new();
    for p in processes {
        let is_rank = nearest.get(&(p.uid, p.run.clone())) == Some(&p.place.launcher);
        if !is_rank || p.place.world == Some(1) {
            continue;
        }
        let run = cx.hub.canonical(&p.run).into_owned();
        // A user who gives a process the name of another user's run does not get that run.
        let own = || cx.hub.runs_of(Principal::from_uid(Some(p.uid)));
        if cx.hub.follows(&run) && !theirs.entry(p.uid).or_insert_with(own).contains(&run) {
            continue;
        }
        let master = p.place.master.clone();
        let key = Key { uid: p.uid, run, master, namespace: p.namespace };
        let ranks = groups.entry(key).or_default();
        match ranks.get(&p.place.rank) {
            Some(had) if had.ticks <= p.ticks => {}
            _ => {
                ranks.insert(p.place.rank, p);
            }
        }
    }
    let newest = |(_, ranks): &(Key, Ranks)| ranks.values().map(|rank| rank.ticks).max();
    let all: Vec<(Key, Ranks)> = groups.into_iter().collect();
    let (kept, _) = fair_share::fair(all, MAX_RUNS, |(key, _)| key.uid, newest);
    kept.into_iter().collect()
}

fn last_step(cx: &Context<'_>, key: &Key, ranks: &Ranks) -> Option<i64> {
    ranks.keys().filter_map(|rank| cx.hub.last_step(&key.run, *rank)).max()
}

/// Ranks that the launcher of this node has no process of, where its ranks are neighbours.
fn absent(ranks: &Ranks) -> BTreeSet<u32> {
    let first = |p: &Process| p.place.rank.checked_sub(p.place.local_rank?);
    let firsts: BTreeSet<Option<u32>> = ranks.values().map(first).collect();
    let counts: BTreeSet<Option<u32>> = ranks.values().map(|p| p.place.on_node).collect();
    let only = |of: &BTreeSet<Option<u32>>| of.first().copied().flatten().filter(|_| of.len() == 1);
    let (Some(first), Some(count)) = (only(&firsts), only(&counts)) else { return BTreeSet::new() };
    let most = u32::try_from(MAX_LISTED).unwrap_or(u32::MAX);
    let all = first..first.saturating_add(count.min(most));
    all.filter(|rank| !ranks.contains_key(rank)).collect()
}

impl Watched {
    fn new(newest: u64, step: Option<i64>, now: Instant) -> Self {
        Self { newest, step, over: false, link: None, since: now, tried: None, published: None }
    }

    /// Looks at the ranks, and publishes what is new. `whole`: all ranks with a process are known.
    fn take(&mut self, cx: &Context<'_>, now: Instant, key: &Key, ranks: &Ranks, whole: bool) -> Totals {
        let began = ranks.values().map(|rank| rank.began).fold(0.0, f64::max);
        let is_launched = unix_now() - began >= LAUNCHED_SECONDS;
        let absent = if is_launched && whole { absent(ranks) } else { BTreeSet::new() };
        let here = ranks.values().next();
        let leaves = key.master.as_ref().filter(|master| !master.is_loopback());
        let sockets = here.zip(leaves).and_then(|(p, master)| Sockets::read(cx.roots, p.pid, p.uid, master));
        self.connected(now, sockets.as_ref());
        let event = self.event(key, ranks, &absent, sockets.as_ref());
        let last = self.published.as_ref();
        let is_due = |(had, at): &(Event, Instant)| *had != event || now.duration_since(*at) >= AGAIN;
        if last.is_none_or(is_due) {
            let mut published = event.clone();
            published.ts = Some(unix_now());
            if self.link.is_some() {
                let seconds = now.duration_since(self.since).as_secs_f64().round();
                published.extra.insert(rendezvous::SECONDS.into(), Value::Number(seconds));
            }
            cx.hub.publish(Origin::Node, published);
            self.published = Some((event, now));
        }
        let sockets = sockets.as_ref();
        Totals {
            here: ranks.len(),
            absent: absent.len(),
            connections: sockets.map(|sockets| [sockets.established, sockets.syn_sent]),
            peers: sockets.filter(|sockets| sockets.listens).map(|sockets| sockets.peers.len()),
        }
    }

    fn connected(&mut self, now: Instant, sockets: Option<&Sockets>) {
        let tries = sockets.is_some_and(|sockets| sockets.syn_sent > 0);
        self.tried = if tries { Some(now) } else { self.tried };
        let has_tried = self.tried.is_some_and(|at| now.duration_since(at) < TRIES_AGAIN);
        let without = if has_tried { Link::SynSent } else { Link::None };
        let link = sockets.map(|sockets| if sockets.established > 0 { Link::Established } else { without });
        let is_connected = |link: Option<Link>| link.map(|link| link == Link::Established);
        if is_connected(self.link) != is_connected(link) {
            self.since = now;
        }
        self.link = link;
    }

    fn event(&self, key: &Key, ranks: &Ranks, absent: &BTreeSet<u32>, sockets: Option<&Sockets>) -> Event {
        let mut event = Event {
            name: Some(rendezvous::NAME.into()),
            uid: Some(key.uid),
            code: Some(1),
            ..Event::new(Kind::Health)
        };
        let mut say = |key: &str, value: Value| {
            event.extra.insert(key.to_owned(), value);
        };
        say(rendezvous::KEY, Value::Text(key.text()));
        say(hw::RUNS, Value::List(vec![Value::Text(key.run.clone())]));
        say(rendezvous::RANKS, numbers(ranks.keys()));
        if let Some(world) = ranks.values().find_map(|rank| rank.place.world) {
            say(rendezvous::WORLD, Value::Number(f64::from(world)));
        }
        if !absent.is_empty() {
            say(rendezvous::ABSENT, numbers(absent.iter()));
        }
        if let Some(master) = key.master.as_ref().filter(|master| !master.is_loopback()) {
            say(rendezvous::MASTER, Value::Text(master.label()));
        }
        if let Some(link) = self.link {
            say(rendezvous::LINK, Value::Text(link.as_str().into()));
        }
        if let Some(sockets) = sockets.filter(|sockets| sockets.listens) {
            say(rendezvous::LISTENS, Value::Bool(true));
            say(rendezvous::PEERS, Value::Number(sockets.peers.len() as f64));
            let some = sockets.peers.iter().take(MAX_LISTED);
            say(rendezvous::ADDRESSES, Value::List(some.map(|ip| Value::Text(ip.to_string())).collect()));
        }
        event
    }

    /// Publishes that it is over, if it was published.
    fn end(&self, cx: &Context<'_>, key: &Key) {
        if self.published.is_none() {
            return;
        }
        let mut event = Event {
            ts: Some(unix_now()),
            name: Some(rendezvous::NAME.into()),
            uid: Some(key.uid),
            code: Some(0),
            ..Event::new(Kind::Health)
        };
        event.extra.insert(rendezvous::KEY.into(), Value::Text(key.text()));
        cx.hub.publish(Origin::Node, event);
    }
}

impl Key {
    fn text(&self) -> String {
        let master = self.master.as_ref().map(Master::label).unwrap_or_default();
        format!("{} {} {master} {}", self.uid, self.run, self.namespace)
    }
}

impl Collector for RendezvousReader {
    fn probe(&mut self, cx: &Context<'_>) -> Result<Support, CollectError> {
        let own = cx.roots.proc("net/tcp");
        Ok(match std::fs::metadata(&own) {
            Ok(_) => Support::Supported("processes and sockets of ranks that start".into()),
            Err(_) => Support::Unsupported(format!("no {}", own.display())),
        })
    }

    fn collect(&mut self, cx: &Context<'_>, out: &mut Samples) -> Result<(), CollectError> {
        self.look(cx, Instant::now(), out);
        Ok(())
    }
}

#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn fuzz(bytes: &[u8]) {
    let _ = processes::Place::parse(bytes);
    sockets::fuzz(bytes);
}

#[cfg(test)]
mod tests;
