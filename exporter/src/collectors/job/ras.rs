//! The status of a running job from NCCL's RAS threads: which ranks have not joined a collective
//! that the others wait in.
//!
//! When a job hangs, every GPU is busy and no log has a new line, but RAS has the number of
//! collectives that each rank has launched. It is polled at intervals, outside of scrapes, and only
//! by one node of a job, because every query goes to all its processes. An event is published if
//! counts do not change while ranks are apart (`watch`); RAS's status word is never used alone.
//! Jobs of one user on a node share the address, and any of them may answer (`jobs`): the series
//! cover all of them together.

mod client;
mod jobs;
mod json;
mod namespaces;
mod places;
mod status;
mod text;
mod unanswered;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use stepwatch_kit::config::Period;
use stepwatch_wire::conditions::NodeCondition;
use stepwatch_wire::names::hw;
use stepwatch_wire::{Event, Kind, Value};

use self::client::{Answer, PollError};
use self::jobs::Jobs;
use self::namespaces::Namespace;
use self::status::{Communicator, Format, Status};
use self::unanswered::{Silent, Unanswered};
use self::watch::Stuck;
use crate::clock::unix_now;
use crate::collector::{CollectError, Collector, Context, Mistakes, Rhythm, Support};
use crate::condition::Conditions;
use crate::family::Family;
use crate::family_filter::Metrics;
use crate::principal::Principal;
use crate::samples::Samples;

pub const ABOUT: &str = "hangs of collectives, from NCCL's RAS";
pub const NEEDS: &str = "the RAS port of NCCL 2.24 or later, on this node's loopback; any user; CAP_SYS_ADMIN and CAP_SYS_PTRACE for that of a container with a network of its own";
pub const COST: &str = "one question a job, answered by a thread of NCCL that no collective waits for";

const ADDRESS: &[&str] = &["address"];

pub static UP: Family = Family::gauge(
    "nccl_ras_up",
    "",
    ADDRESS,
    "Whether the last poll of the job's RAS gave an answer; absent where none listens",
);
pub static INFO: Family = Family::gauge(
    "nccl_ras_info",
    "",
    &["address", "nccl_version", "format"],
    "Job that RAS reports: its version of NCCL, and the format it answers in; always 1",
);
pub static POLLING: Family = Family::gauge(
    "nccl_ras_polling",
    "",
    ADDRESS,
    "Whether this node polls the job at the full rate; of a job's nodes the one with the lowest rank that answers does",
);
pub static COMMUNICATORS: Family = Family::gauge(
    "nccl_ras_communicators",
    "",
    ADDRESS,
    "Communicators of the job; like all numbers here, of all jobs that share the address",
);
pub static RANKS: Family =
    Family::gauge("nccl_ras_ranks", "", ADDRESS, "Ranks of the job's largest communicator");
pub static MISSING: Family = Family::gauge(
    "nccl_ras_missing_ranks",
    "",
    ADDRESS,
    "Ranks of the job's largest communicator that RAS got no answer from",
);
pub static DEAD: Family = Family::gauge(
    "nccl_ras_dead_ranks",
    "",
    ADDRESS,
    "Ranks of the job's largest communicator that RAS has given up",
);
pub static ERRORS: Family = Family::gauge(
    "nccl_ras_errored_ranks",
    "",
    ADDRESS,
    "Ranks that NCCL reports an error of, added up over communicators",
);
pub static LAUNCHED: Family = Family::gauge(
    "nccl_ras_collectives",
    "",
    &["address", "collective", "of"],
    "Collectives that ranks of the largest communicator have launched: the furthest of them, and the last; text contains them only while they differ",
);
pub static LAGGING: Family = Family::gauge(
    "nccl_ras_lagging_communicators",
    "",
    ADDRESS,
    "Communicators whose ranks are apart; normal while they change from poll to poll",
);
pub static STUCK: Family = Family::gauge(
    "nccl_ras_stuck_communicators",
    "",
    ADDRESS,
    "Communicators whose ranks are apart and have not moved for long: they hang",
);
pub static STUCK_RANKS: Family = Family::gauge(
    "nccl_ras_stuck_ranks",
    "",
    ADDRESS,
    "Ranks that have not joined the collective that the others wait in",
);
pub static STUCK_SECONDS: Family = Family::gauge(
    "nccl_ras_stuck_seconds",
    "seconds",
    ADDRESS,
    "How long the communicator that hangs has not moved; 0 when none does",
);
pub static COLLECTION: Family = Family::gauge(
    "nccl_ras_collection_seconds",
    "seconds",
    ADDRESS,
    "How long RAS took to collect the answers of all processes of the job",
);
pub static TIMEOUTS: Family = Family::gauge(
    "nccl_ras_timeouts",
    "",
    ADDRESS,
    "Connections between processes that RAS waited for in vain at the last poll",
);
pub static UNREACHABLE: Family = Family::gauge(
    "nccl_ras_unreachable",
    "",
    &["run"],
    "Run whose processes have a network namespace that this exporter may not enter, so that RAS is not asked; 1 while it is so",
);
pub static FAILURES: Family =
    Family::counter("nccl_ras_poll_failures_total", "", &["reason"], "Polls that gave no answer");

pub static FAMILIES: &[&Family] = &[
    &UP,
    &INFO,
    &POLLING,
    &COMMUNICATORS,
    &RANKS,
    &MISSING,
    &DEAD,
    &ERRORS,
    &LAUNCHED,
    &LAGGING,
    &STUCK,
    &STUCK_RANKS,
    &STUCK_SECONDS,
    &COLLECTION,
    &TIMEOUTS,
    &UNREACHABLE,
    &FAILURES,
];

const CONDITION: NodeCondition = NodeCondition::RasStuck;
/// The poll interval of a node that leaves polling to another one, in case that one has failed.
const SELDOM: Duration = Duration::from_mins(5);
/// The time that RAS may take at the first pass.
const FIRST: Duration = Duration::from_secs(1);
/// An answer older than this many intervals is not exported.
const STALE: u32 = 3;
/// A job without an answer for this many intervals is gone. If two share an address, either one
/// answers at random.
const KEEP: u32 = 12;
/// The most entries in a list of an event.
const MAX_LISTED: usize = 16;

#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// The families that are on the metrics page.
    pub metrics: Metrics,
    pub interval: Period,
    /// The time that RAS may take to collect the answers of all processes of the job.
    pub timeout: Period,
    /// A communicator hangs if its ranks are apart and have not moved for this long.
    pub stuck_after: Period,
    /// Addresses to poll, besides those in the environment of training processes.
    pub addresses: Vec<String>,
    /// Whether to poll at the full rate on every node, not only on that of the first rank.
    pub every_node: bool,
}

impl Config {
    pub(crate) fn check(&self) -> Mistakes {
        Mistakes::default()
            .period("interval", self.interval)
            .period("timeout", self.timeout)
            .period("stuck_after", self.stuck_after)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            metrics: Metrics::default(),
            interval: Period::secs(10),
            timeout: Period::secs(5),
            stuck_after: Period::secs(120),
            addresses: vec!["localhost:28028".into()],
            every_node: false,
        }
    }
}

pub fn rhythm(config: &Config) -> Rhythm {
    let timeout = config.timeout.as_duration();
    Rhythm { interval: config.interval.into(), deadline: timeout * 4 + Duration::from_secs(10) }
}

#[derive(Debug)]
pub struct RasReader {
    config: Config,
    started: bool,
    places: BTreeMap<String, Place>,
    failures: BTreeMap<&'static str, u64>,
    conditions: Conditions,
    unanswered: Unanswered,
    /// Runs whose network namespace this program may not enter.
    unreachable: BTreeSet<String>,
}

/// The destination of a poll.
#[derive(Debug, Clone)]
struct Target {
    /// The value of the label `address`.
    label: String,
    address: String,
    /// The network namespace, if it is not this program's own.
    namespace: Option<Namespace>,
}

/// The state of one address that has answered.
#[derive(Debug, Default)]
struct Place {
    asked: Option<Instant>,
    answered: Option<Instant>,
    up: bool,
    /// Whether another node polls.
    follows: bool,
    jobs: Jobs,
    samples: Samples,
}

impl RasReader {
    pub fn new(config: &Config) -> Self {
        let reasons = ["timeout", "too_long", "protocol", "io", "denied"];
        Self {
            config: config.clone(),
            started: false,
            places: BTreeMap::new(),
            failures: reasons.into_iter().map(|reason| (reason, 0)).collect(),
            conditions: Conditions::default(),
            unanswered: Unanswered::default(),
            unreachable: BTreeSet::new(),
        }
    }

    /// All addresses to poll: on this node, and in the network namespaces of training processes.
    fn targets(&self, cx: &Context<'_>) -> Vec<Target> {
        let addresses = places::addresses(cx, &self.config.addresses).into_iter();
        let own = addresses.map(|address| Target { label: address.clone(), address, namespace: None });
        let within = Namespace::all(cx, &self.config.addresses).into_iter().flat_map(|namespace| {
            let addresses: Vec<String> = namespace.addresses.iter().cloned().collect();
            addresses.into_iter().map(move |address| Target {
                label: namespace.label(&address),
                address,
                namespace: Some(namespace.clone()),
            })
        });
        own.chain(within).collect()
    }

    /// Polls one address if that is due.
    fn poll(&mut self, cx: &Context<'_>, target: &Target, now: Instant) {
        let address = target.label.as_str();
        let every =
            |place: &Place| if place.follows { SELDOM } else { self.config.interval.as_duration() / 2 };
        let due = |place: &Place| place.asked.is_none_or(|asked| now - asked >= every(place));
        if !self.places.get(address).is_none_or(due) {
            return;
        }
        // The start of the exporter must not wait long for a job.
        let first = FIRST.min(self.config.timeout.into());
        let timeout = if self.started { self.config.timeout.into() } else { first };
        let answer = match &target.namespace {
            Some(namespace) => namespace.poll(cx.roots, &target.address, timeout),
            None => client::poll(cx.roots, &places::resolve(&target.address), timeout, None),
        };
        match answer {
            Ok(answer) => self.answered(cx, target, answer, now),
            // No job runs here, or it has ended.
            Err(PollError::Refused) => {
                self.places.remove(address);
            }
            Err(PollError::Denied) => self.denied(target),
            Err(error) => {
                tracing::debug!(address, %error, "NCCL RAS gives no answer");
                *self.failures.entry(error.reason()).or_default() += 1;
                let place = self.places.entry(address.to_owned()).or_default();
                (place.asked, place.up) = (Some(now), false);
            }
        }
    }

    /// Counts the refusal, and logs once for each run that it cannot be polled.
    fn denied(&mut self, target: &Target) {
        *self.failures.entry(PollError::Denied.reason()).or_default() += 1;
        for run in target.namespace.iter().flat_map(|namespace| &namespace.runs) {
            if self.unreachable.insert(run.clone()) {
                let error = PollError::Denied.to_string();
                tracing::warn!(run, error, "NCCL RAS of a run in a container is not asked");
            }
        }
    }

    fn answered(&mut self, cx: &Context<'_>, target: &Target, answer: Answer, now: Instant) {
        let address = target.label.as_str();
        let leads = self.config.every_node || places::leads(cx, answer.first_is_here);
        let answer = (answer.status, answer.principal);
        for run in target.namespace.iter().flat_map(|namespace| &namespace.runs) {
            self.unreachable.remove(run);
        }
        let place = self.places.entry(address.to_owned()).or_default();
        (place.asked, place.answered, place.up) = (Some(now), Some(now), true);
        place.jobs.take(answer, leads, now, self.config.interval.as_duration() * KEEP);
        place.follows = !place.jobs.lead();
        let stuck = place.jobs.stuck(self.config.stuck_after.into());
        place.samples = samples(address, &place.jobs, &stuck);
        let mut worst = BTreeMap::new();
        for (job, stuck) in stuck.iter().filter(|(job, _)| job.is_reported()) {
            worst.entry(key_of(address, job.principal)).or_insert((job, stuck));
        }
        let runs = |principal: Principal| match &target.namespace {
            Some(namespace) => Some(listed(namespace.runs.iter().cloned())),
            None => runs_of(cx, principal),
        };
        let mut missing = BTreeMap::new();
        for job in place.jobs.iter().filter(|job| job.is_reported()) {
            let largest = job.status.communicators.first().filter(|c| c.missing.count > 0);
            if let Some(communicator) = largest {
                let (runs, is_new) = (runs(job.principal), job.answered_at(now));
                let silent = Silent { communicator, runs, is_new };
                missing.entry(key_of(address, job.principal)).or_insert(silent);
            }
        }
        self.unanswered.take(cx, now, address, &missing);
        for key in self.conditions.keys(CONDITION) {
            if address_of(&key) == address && !worst.contains_key(&key) {
                let over = || event(&key, "NCCL collectives move again".into());
                self.conditions.report(cx, CONDITION, &key, false, over);
            }
        }
        for (key, (job, stuck)) in worst {
            self.conditions.report(cx, CONDITION, &key, true, || {
                let mut event = stuck_event(&key, stuck, &job.status);
                event.extra.extend(runs(job.principal).map(|runs| (hw::RUNS.to_owned(), runs)));
                event
            });
        }
    }
}

/// The key of a hang. Each user has a separate one, because any user may listen at an address.
fn key_of(address: &str, principal: Principal) -> String {
    match principal.uid().filter(|_| !principal.is_trusted()) {
        Some(uid) => format!("{address} of uid {uid}"),
        None => address.to_owned(),
    }
}

fn address_of(key: &str) -> &str {
    key.split(' ').next().unwrap_or(key)
}

/// The runs that an answer may be about. Any user of the node may listen at the address of RAS, so
/// it is only about the runs of that user. `None` means all runs.
fn runs_of(cx: &Context<'_>, principal: Principal) -> Option<Value> {
    let runs = (!principal.is_trusted()).then(|| cx.hub.runs_of(principal))?;
    Some(listed(runs.into_iter()))
}

fn listed(runs: impl Iterator<Item = String>) -> Value {
    Value::List(runs.take(MAX_LISTED).map(Value::Text).collect())
}

fn samples(address: &str, jobs: &Jobs, stuck: &[(&jobs::Job, Stuck<'_>)]) -> Samples {
    let mut out = Samples::default();
    let labels: &[&str] = &[address];
    let all = || jobs.iter().map(|job| &job.status);
    let kinds: BTreeSet<_> = all().map(|s| (s.version.as_str(), s.format == Format::Json)).collect();
    for (version, json) in kinds {
        out.set(&INFO, &[address, version, if json { "json" } else { "text" }], 1u64);
    }
    let sum = |of: fn(&Communicator) -> u64| all().flat_map(|s| &s.communicators).map(of).sum::<u64>();
    out.set(&COMMUNICATORS, labels, sum(|_| 1));
    out.set(&ERRORS, labels, sum(|c| c.errors));
    out.set(&LAGGING, labels, sum(|c| u64::from(c.lagging() > 0)));
    let largest: Vec<&Communicator> = all().filter_map(|s| s.communicators.first()).collect();
    // If two have the same size, the one known first is exported, so that the series do not
    // alternate.
    if let Some(first) = largest.iter().rev().max_by_key(|c| c.size) {
        let sum = |of: fn(&Communicator) -> u64| largest.iter().map(|c| of(c)).sum::<u64>();
        out.set(&RANKS, labels, sum(|c| c.size.into()));
        out.set(&MISSING, labels, sum(|c| c.missing.count));
        out.set(&DEAD, labels, sum(|c| c.dead));
        for (collective, spread) in &first.spreads {
            out.set(&LAUNCHED, &[address, collective, "furthest"], spread.most);
            out.set(&LAUNCHED, &[address, collective, "last"], spread.least);
        }
    }
    out.set(&STUCK, labels, stuck.len());
    out.set(&STUCK_RANKS, labels, stuck.first().map_or(0, |(_, s)| s.communicator.lagging()));
    out.set(&STUCK_SECONDS, labels, stuck.first().map_or(Duration::ZERO, |(_, s)| s.still));
    out.maybe(&COLLECTION, labels, all().filter_map(|s| s.seconds).max_by(f64::total_cmp));
    out.set(&TIMEOUTS, labels, all().map(|s| s.timeouts).fold(0, u64::saturating_add));
    out
}

fn event(key: &str, text: String) -> Event {
    let mut event =
        Event { ts: Some(unix_now()), level: Some("error".into()), text: Some(text), ..Event::new(Kind::Hw) };
    event.extra.insert("address".into(), Value::Text(address_of(key).to_owned()));
    event.extra.insert("key".into(), Value::Text(key.to_owned()));
    event
}

fn stuck_event(key: &str, stuck: &Stuck<'_>, status: &Status) -> Event {
    let communicator = stuck.communicator;
    let (apart, seconds) = (communicator.apart(), stuck.still.as_secs_f64());
    let named: Vec<_> = communicator.named().take(MAX_LISTED).collect();
    let who = named.iter().take(3).map(|m| m.text()).collect::<Vec<_>>().join("; ");
    let (ranks, verb) = if communicator.lagging() == 1 { ("rank", "has") } else { ("ranks", "have") };
    let joined = match apart {
        Some((name, spread)) => format!("{verb} not joined {name} {} of", spread.most),
        None => format!("{verb} stopped answering in"),
    };
    let text = format!(
        "NCCL hangs: nothing moved for {seconds:.0} s, and {} {ranks} {joined} a communicator of {} ({who})",
        communicator.lagging(),
        communicator.size
    );
    let mut event = event(key, text);
    let list = |values: Vec<Value>| Value::List(values);
    let numbers = named.iter().map(|m| Value::Number(f64::from(m.rank))).collect();
    let mut hosts: Vec<_> = named.iter().map(|m| m.host.clone()).filter(|h| !h.is_empty()).collect();
    hosts.dedup();
    for (key, value) in [
        ("comm", Value::Text(communicator.id.clone())),
        ("comm_size", Value::Number(f64::from(communicator.size))),
        ("ranks", list(numbers)),
        ("hosts", list(hosts.into_iter().map(Value::Text).collect())),
        ("pids", list(named.iter().filter_map(|m| m.pid).map(|pid| Value::Number(f64::from(pid))).collect())),
        ("lagging", Value::Number(communicator.lagging() as f64)),
        ("unanswered", Value::Number(communicator.missing.count as f64)),
        ("seconds", Value::Number(seconds.round())),
        ("nccl", Value::Text(status.version.clone())),
    ] {
        event.extra.insert(key.into(), value);
    }
    if let Some((name, spread)) = apart {
        event.extra.insert("collective".into(), Value::Text(name.to_owned()));
        event.extra.insert("operation".into(), Value::Number(spread.most as f64));
    }
    event
}

impl Collector for RasReader {
    fn probe(&mut self, cx: &Context<'_>) -> Result<Support, CollectError> {
        let addresses = places::addresses(cx, &self.config.addresses);
        let within = Namespace::all(cx, &[]).len();
        Ok(match addresses.iter().find(|a| places::listens(a)) {
            Some(address) => Support::Supported(format!("RAS at {address}")),
            None if within > 0 => Support::Supported(format!("processes in {within} network namespaces")),
            None => Support::Unsupported(format!("no NCCL RAS listens at {}", addresses.join(", "))),
        })
    }

    fn collect(&mut self, cx: &Context<'_>, out: &mut Samples) -> Result<(), CollectError> {
        let targets = self.targets(cx);
        for target in &targets {
            self.poll(cx, target, Instant::now());
        }
        self.started = true;
        self.places.retain(|label, _| targets.iter().any(|target| target.label == *label));
        let inside = targets.iter().filter_map(|target| target.namespace.as_ref());
        let inside: BTreeSet<&String> = inside.flat_map(|namespace| &namespace.runs).collect();
        self.unreachable.retain(|run| inside.contains(run));
        for run in &self.unreachable {
            out.set(&UNREACHABLE, &[run], true);
        }
        let stale = self.config.interval.as_duration() * STALE;
        for (address, place) in &self.places {
            out.set(&UP, &[address], place.up);
            out.set(&POLLING, &[address], !place.follows);
            // A job that another node polls is on the metrics page of that node.
            let fresh = place
                .answered
                .is_some_and(|at| at.elapsed() <= stale.max(self.config.timeout.as_duration() * 2));
            if fresh {
                out.extend(&place.samples);
            }
        }
        for (reason, count) in &self.failures {
            out.set(&FAILURES, &[reason], *count);
        }
        let places = &self.places;
        self.unanswered.end(cx, |key| !places.contains_key(address_of(key)));
        for key in self.conditions.keys(CONDITION) {
            if !self.places.contains_key(address_of(&key)) {
                let over = || event(&key, "the job whose NCCL collectives hung is gone".into());
                self.conditions.report(cx, CONDITION, &key, false, over);
            }
        }
        Ok(())
    }
}

#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn fuzz(data: &[u8]) -> Vec<Event> {
    let _ = text::parse(data);
    let (mut jobs, mut events, now) = (Jobs::default(), Vec::new(), Instant::now());
    let Ok(status) = json::parse(data) else { return events };
    for second in 0..4 {
        jobs.take(
            (status.clone(), Principal::Exporter),
            true,
            now + Duration::from_secs(second),
            Duration::from_secs(9),
        );
        let stuck = jobs.stuck(Duration::from_secs(2));
        let _ = samples("a", &jobs, &stuck);
        events.extend(stuck.iter().map(|(_, stuck)| stuck_event("a", stuck, &status)));
    }
    events
}

#[cfg(test)]
mod tests;
