//! What readers of schedulers report to the stream: a controller that does not answer, one that
//! this program cannot read, nodes that the scheduler does not use, and jobs that wait although
//! GPUs are idle.
//!
//! A node out of service is another node than the one that reports it. The event says so in
//! [`hw::ABOUT`], and the alerter believes it only of sources that its configuration allows to
//! report several nodes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use stepwatch_wire::conditions::NodeCondition;
use stepwatch_wire::names::hw;
use stepwatch_wire::{Event, Kind, Value, words};
use tokio::runtime::Runtime;

use crate::clock::unix_now;
use crate::collector::{CollectError, Context};
use crate::condition::Conditions;

/// The most nodes out of service that are named; the others are counted.
pub(crate) const MAX_NAMED: usize = 200;
/// The most characters of a reason and of a name.
const MAX_REASON: usize = 120;
const MAX_NAME: usize = 253;

/// A node that the scheduler gives no job to.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Outage {
    pub(crate) node: String,
    pub(crate) state: &'static str,
    pub(crate) reason: String,
    /// Since when, in Unix seconds; `None` if the scheduler does not say.
    pub(crate) since: Option<f64>,
}

impl Outage {
    pub(crate) fn new(node: &str, state: &'static str, reason: &str, since: Option<f64>) -> Self {
        let clip = |text: &str, most| words::line(text).trim().chars().take(most).collect();
        Self { node: clip(node, MAX_NAME), state, reason: clip(reason, MAX_REASON), since }
    }

    fn is_same(&self, other: &Self) -> bool {
        self.state == other.state && self.reason == other.reason
    }
}

/// Why a pass has no answer, or only a part of it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Failure {
    /// The controller does not answer.
    Silent(String),
    /// This program lacks what it needs to ask, or cannot read the answer. The scheduler may work.
    Unreadable(String),
}

/// How long a scheduler has not answered, and how long it could not be read.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Failing {
    pub(crate) silent: Duration,
    pub(crate) unreadable: Duration,
}

/// A job that waits although idle nodes have what it asks for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Waiter {
    id: String,
    /// What people call it, with its partition or namespace.
    name: String,
}

impl Waiter {
    pub(crate) fn new(id: &str, name: &str) -> Self {
        let clip = |text: &str| words::line(text).trim().chars().take(MAX_NAME).collect();
        Self { id: clip(id), name: clip(name) }
    }
}

/// The jobs that wait beside idle GPUs.
#[derive(Debug, Default)]
struct Waiting {
    /// The names of those that did at every look, and since which look, by their ids.
    since: BTreeMap<String, (Instant, String)>,
    /// How many had for long at the last look, and the oldest of them with its time.
    long: u64,
    oldest: Option<(String, Duration)>,
}

impl Waiting {
    fn look(&mut self, (now, after): (Instant, Duration), found: Vec<Waiter>) {
        let had = std::mem::take(&mut self.since);
        for Waiter { id, name } in found {
            let since = had.get(&id).map_or(now, |(since, _)| *since);
            self.since.insert(id, (since, name));
        }
        let lasts = |since: Instant| now.saturating_duration_since(since);
        let long = self.since.values().filter(|(since, _)| lasts(*since) >= after);
        self.long = long.clone().count() as u64;
        self.oldest = long.min_by_key(|(since, _)| *since).map(|(since, name)| (name.clone(), lasts(*since)));
    }
}

/// What one scheduler was last found to do.
#[derive(Debug)]
pub(crate) struct Standing {
    /// The scheduler's name, as people write it.
    scheduler: &'static str,
    conditions: Conditions,
    silent: Option<(Instant, String)>,
    unreadable: Option<(Instant, String)>,
    waiting: Waiting,
    out: BTreeMap<String, Outage>,
    left_out: usize,
}

impl Standing {
    pub(crate) fn new(scheduler: &'static str) -> Self {
        Self {
            scheduler,
            conditions: Conditions::default(),
            silent: None,
            unreadable: None,
            waiting: Waiting::default(),
            out: BTreeMap::new(),
            left_out: 0,
        }
    }

    /// Notes whether the controller answers and can be read, and reports the condition if it has
    /// not for `after`. The log says so when that changes. Returns for how long.
    pub(crate) fn answers(
        &mut self,
        cx: &Context<'_>,
        (now, after): (Instant, Duration),
        failure: Option<&Failure>,
    ) -> Failing {
        self.note(now, failure);
        let lasts = |since: Option<&(Instant, String)>| {
            since.map_or(Duration::ZERO, |(since, _)| now.saturating_duration_since(*since))
        };
        let failing =
            Failing { silent: lasts(self.silent.as_ref()), unreadable: lasts(self.unreadable.as_ref()) };
        let scheduler = self.scheduler;
        let is_silent = self.silent.is_some() && failing.silent >= after;
        self.conditions.report(cx, NodeCondition::SchedulerDown, "", is_silent, || {
            let minutes = failing.silent.as_secs() / 60;
            let text = match &self.silent {
                Some((_, why)) => format!("{scheduler} has not answered for {minutes} min: {why}"),
                None => format!("{scheduler} answers again"),
            };
            event("warn", text)
        });
        let is_unreadable = self.unreadable.is_some() && failing.unreadable >= after;
        self.conditions.report(cx, NodeCondition::SchedulerUnreadable, "", is_unreadable, || {
            let minutes = failing.unreadable.as_secs() / 60;
            let text = match &self.unreadable {
                Some((_, why)) => {
                    format!("{scheduler} may work, but could not be read for {minutes} min: {why}")
                }
                None => format!("{scheduler} can be read again"),
            };
            event("warn", text)
        });
        if is_silent || is_unreadable {
            // Nobody knows what waited meanwhile.
            self.waiting = Waiting::default();
        }
        failing
    }

    /// Notes since when what fails.
    fn note(&mut self, now: Instant, failure: Option<&Failure>) {
        let scheduler = self.scheduler;
        let again = |had: Option<&(Instant, String)>, why: &str| {
            Some((had.map_or(now, |(since, _)| *since), why.to_owned()))
        };
        match failure {
            Some(Failure::Silent(why)) => {
                if self.silent.is_none() {
                    tracing::warn!(scheduler, why, "the scheduler does not answer");
                }
                self.silent = again(self.silent.as_ref(), why);
            }
            Some(Failure::Unreadable(why)) => {
                if self.unreadable.is_none() {
                    tracing::warn!(scheduler, why, "the scheduler cannot be read");
                }
                self.unreadable = again(self.unreadable.as_ref(), why);
                self.silent = None;
            }
            None => {
                if self.silent.is_some() || self.unreadable.is_some() {
                    tracing::info!(scheduler, "the scheduler answers again");
                }
                (self.silent, self.unreadable) = (None, None);
            }
        }
    }

    /// Notes which jobs wait although idle nodes have the GPUs that they ask for, and reports it if
    /// some have at every look for `after`. Nothing changes without a look. Returns how many have.
    pub(crate) fn waits(
        &mut self,
        cx: &Context<'_>,
        time: (Instant, Duration),
        found: Option<Vec<Waiter>>,
    ) -> u64 {
        if let Some(found) = found {
            self.waiting.look(time, found);
        }
        let scheduler = self.scheduler;
        self.conditions.report(cx, NodeCondition::JobsWaitBesideIdle, "", self.waiting.long > 0, || {
            let oldest = self.waiting.oldest.as_ref().map(|(name, lasts)| (name, lasts.as_secs() / 60));
            let text = match (self.waiting.long, oldest) {
                (0, _) | (_, None) => format!("no job of {scheduler} waits long for GPUs that are idle"),
                (1, Some((name, minutes))) => {
                    format!("{scheduler}: {name} has waited for {minutes} min beside as many idle GPUs")
                }
                (jobs, Some((name, minutes))) => format!(
                    "{scheduler}: {jobs} jobs wait beside as many idle GPUs, {name} for {minutes} min"
                ),
            };
            event("warn", text)
        });
        self.waiting.long
    }

    /// Reports the nodes that are out of service, all of them each time. Over the limit, those that
    /// are named stay so while they are out of service.
    pub(crate) fn out_of_service(&mut self, cx: &Context<'_>, found: Vec<Outage>) {
        let now = unix_now();
        let mut had = std::mem::take(&mut self.out);
        let named = found.iter().filter(|outage| had.contains_key(&outage.node)).count();
        let mut room = MAX_NAMED.saturating_sub(named);
        let all = found.len();
        for mut outage in found {
            match had.remove(&outage.node) {
                Some(had) if had.is_same(&outage) => outage.since = outage.since.or(had.since),
                Some(had) => self.back(cx, &had),
                None if room == 0 => continue,
                None => room -= 1,
            }
            outage.since.get_or_insert(now);
            let scheduler = self.scheduler;
            self.conditions.report(cx, NodeCondition::NodeOutOfService, &outage.node, true, || {
                of_node(scheduler, &outage)
            });
            self.out.insert(outage.node.clone(), outage);
        }
        self.left_out = all.saturating_sub(self.out.len());
        for outage in had.into_values() {
            self.back(cx, &outage);
        }
    }

    fn back(&mut self, cx: &Context<'_>, outage: &Outage) {
        let over = Outage { state: "in service", reason: String::new(), since: None, ..outage.clone() };
        let scheduler = self.scheduler;
        self.conditions
            .report(cx, NodeCondition::NodeOutOfService, &outage.node, false, || of_node(scheduler, &over));
    }

    /// The nodes that are out of service, with the times since when.
    pub(crate) fn outages(&self) -> impl Iterator<Item = &Outage> {
        self.out.values()
    }

    /// The number of nodes out of service over the limit.
    pub(crate) fn left_out(&self) -> usize {
        self.left_out
    }
}

/// The runtime of a collector that runs commands or asks over the network: the one that it has, or
/// a new one on its own thread.
pub(crate) fn runtime(kept: Option<Runtime>) -> Result<Runtime, CollectError> {
    if let Some(runtime) = kept {
        return Ok(runtime);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|e| CollectError::Other(format!("cannot start a runtime: {e}")))
}

fn event(level: &str, text: String) -> Event {
    Event { ts: Some(unix_now()), level: Some(level.to_owned()), text: Some(text), ..Event::new(Kind::Hw) }
}

/// What the scheduler says of a node. Nobody is called for it: operators drain nodes on purpose.
fn of_node(scheduler: &str, outage: &Outage) -> Event {
    let state = outage.state.replace('_', " ");
    let reason = if outage.reason.is_empty() { String::new() } else { format!(" ({})", outage.reason) };
    let mut event = event("info", format!("{scheduler}: {state}{reason}"));
    event.ts = outage.since.or(event.ts);
    event.extra.insert(hw::ABOUT.into(), Value::Text(outage.node.clone()));
    event
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roots::Roots;
    use crate::testing::{Bench, logged};

    fn texts(bench: &Bench) -> Vec<(i64, String, String)> {
        let about = |e: &Event| e.extra.get(hw::ABOUT).and_then(Value::as_str).unwrap_or_default().to_owned();
        let events = bench.published().into_iter();
        events.map(|e| (e.code.unwrap(), about(&e), e.text.unwrap())).collect()
    }

    #[test]
    fn a_controller_that_is_silent_for_long_is_reported_once() {
        let bench = Bench::new(Roots::default());
        let (mut standing, start) = (Standing::new("Slurm"), Instant::now());
        let mut at = |seconds, failure: Option<&str>| {
            let time = (start + Duration::from_secs(seconds), Duration::from_mins(5));
            let failure = failure.map(|why| Failure::Silent(why.into()));
            standing.answers(&bench.context(), time, failure.as_ref()).silent
        };
        let log = logged(|| {
            assert_eq!(at(0, Some("refused")), Duration::ZERO);
            assert_eq!(at(299, Some("refused")), Duration::from_secs(299));
            assert_eq!(at(301, None), Duration::ZERO);
            assert_eq!(at(400, Some("refused")), Duration::ZERO);
        });
        assert_eq!(log.lines().count(), 3, "{log}");
        assert_eq!(texts(&bench), [], "it answered in between");
        assert_eq!(at(700, Some("no answer within 30s")), Duration::from_mins(5));
        at(760, Some("refused"));
        let silent = "Slurm has not answered for 5 min: no answer within 30s";
        assert_eq!(texts(&bench), [(1, String::new(), silent.into())]);
        at(800, None);
        assert_eq!(texts(&bench), [(0, String::new(), "Slurm answers again".into())]);
    }

    #[test]
    fn one_that_cannot_be_read_may_work() {
        let bench = Bench::new(Roots::default());
        let (mut standing, start) = (Standing::new("Kubernetes"), Instant::now());
        let mut at = |minutes, failure: Option<Failure>| {
            let time = (start + Duration::from_mins(minutes), Duration::from_mins(5));
            standing.answers(&bench.context(), time, failure.as_ref())
        };
        let refused = || Some(Failure::Unreadable("pods: the account may not (403)".into()));
        let lasts = |silent, unreadable| Failing {
            silent: Duration::from_mins(silent),
            unreadable: Duration::from_mins(unreadable),
        };
        assert_eq!(at(0, Some(Failure::Silent("refused".into()))), lasts(0, 0));
        assert_eq!(at(1, refused()), lasts(0, 0), "whoever refuses answers");
        // That it does not answer once does not mean that it could be read.
        assert_eq!(at(5, Some(Failure::Silent("no answer".into()))), lasts(0, 4));
        assert_eq!(texts(&bench), []);
        assert_eq!(at(6, refused()), lasts(0, 5));
        let unreadable =
            "Kubernetes may work, but could not be read for 5 min: pods: the account may not (403)";
        let events = bench.published();
        assert_eq!((events.len(), events[0].text.as_deref()), (1, Some(unreadable)));
        assert_eq!(events[0].name.as_deref(), Some("scheduler_unreadable"));
        assert_eq!(at(7, None), lasts(0, 0));
        assert_eq!(texts(&bench), [(0, String::new(), "Kubernetes can be read again".into())]);
    }

    #[test]
    fn jobs_that_wait_beside_idle_gpus_are_reported_if_the_same_do_at_every_look() {
        let bench = Bench::new(Roots::default());
        let (mut standing, start) = (Standing::new("Slurm"), Instant::now());
        let mut at = |minutes, jobs: Option<&[&str]>| {
            let time = (start + Duration::from_mins(minutes), Duration::from_mins(30));
            let waiter = |id: &&str| Waiter::new(id, &format!("job {id} of main"));
            let found = jobs.map(|jobs| jobs.iter().map(waiter).collect());
            standing.waits(&bench.context(), time, found)
        };
        // A busy queue: always some job, and none for long.
        for (minutes, job) in [(0, "1"), (10, "2"), (20, "3"), (30, "4"), (40, "5")] {
            assert_eq!(at(minutes, Some(&[job])), 0, "{minutes}");
        }
        assert_eq!(at(50, Some(&["6", "7"])), 0);
        assert_eq!(at(60, Some(&["7", "8"])), 0);
        assert_eq!(at(70, Some(&["6", "7", "8"])), 0, "6 did not fit in between");
        assert_eq!(at(80, None), 0, "nobody looked");
        assert_eq!(texts(&bench), []);
        assert_eq!(at(81, Some(&["6", "7", "8"])), 1);
        let waits = "Slurm: job 7 of main has waited for 31 min beside as many idle GPUs";
        assert_eq!(texts(&bench), [(1, String::new(), waits.into())]);
        assert_eq!(at(90, Some(&["7", "8"])), 2);
        assert_eq!(at(91, None), 2);
        assert_eq!(at(92, Some(&["9"])), 0);
        let over = "no job of Slurm waits long for GPUs that are idle";
        assert_eq!(texts(&bench), [(0, String::new(), over.into())]);
    }

    #[test]
    fn of_several_the_oldest_is_named() {
        let bench = Bench::new(Roots::default());
        let (mut standing, start) = (Standing::new("Kubernetes"), Instant::now());
        for (minutes, pods) in [(0, &["b"][..]), (15, &["a", "b"][..]), (45, &["a", "b"][..])] {
            let time = (start + Duration::from_mins(minutes), Duration::from_mins(30));
            let found = pods.iter().map(|id| Waiter::new(id, &format!("pod team/{id}"))).collect();
            // The first that is old enough is reported at the last look.
            standing.waits(&bench.context(), time, Some(found));
        }
        let waits = "Kubernetes: 2 jobs wait beside as many idle GPUs, pod team/b for 45 min";
        assert_eq!(texts(&bench), [(1, String::new(), waits.into())]);
    }

    #[test]
    fn what_waited_before_nobody_could_look_begins_anew() {
        let bench = Bench::new(Roots::default());
        let (mut standing, start) = (Standing::new("Slurm"), Instant::now());
        let time = |minutes, after| (start + Duration::from_mins(minutes), Duration::from_mins(after));
        let found = || Some(vec![Waiter::new("1", "job 1 of main")]);
        standing.waits(&bench.context(), time(0, 30), found());
        let silent = Failure::Silent("refused".into());
        for minutes in [1, 20] {
            standing.answers(&bench.context(), time(minutes, 5), Some(&silent));
        }
        assert_eq!(standing.waits(&bench.context(), time(40, 30), found()), 0);
        assert_eq!(standing.waits(&bench.context(), time(70, 30), found()), 1);
    }

    #[test]
    fn a_node_is_reported_by_its_name_its_state_and_its_reason() {
        let bench = Bench::new(Roots::default());
        let mut standing = Standing::new("Slurm");
        let mut pass = |found: &[(&str, &'static str, &str, Option<f64>)]| {
            let found = found.iter().map(|&(n, s, r, t)| Outage::new(n, s, r, t)).collect();
            standing.out_of_service(&bench.context(), found);
            standing.outages().map(|o| (o.node.clone(), o.since.unwrap() < 2e9)).collect::<Vec<_>>()
        };
        let drained = ("n1", "drained", "Kill task\nfailed", Some(1_796_058_494.0));
        assert_eq!(pass(&[drained, ("n2", "not_responding", "", None)]).len(), 2);
        let events = bench.published();
        assert_eq!((events[0].ts, events[0].level.as_deref()), (Some(1_796_058_494.0), Some("info")));
        assert_eq!(events[0].text.as_deref(), Some("Slurm: drained (Kill task failed)"));
        assert_eq!(events[1].text.as_deref(), Some("Slurm: not responding"));
        // The same is no news, and another state is the end of the one before.
        pass(&[drained, ("n2", "down", "reboot", None)]);
        let said = |code, node: &str, text: &str| (code, node.to_owned(), text.to_owned());
        assert_eq!(
            texts(&bench),
            [said(0, "n2", "Slurm: in service"), said(1, "n2", "Slurm: down (reboot)")]
        );
        assert_eq!(pass(&[]), []);
        assert_eq!(texts(&bench), [said(0, "n1", "Slurm: in service"), said(0, "n2", "Slurm: in service")]);
    }

    #[test]
    fn nodes_over_the_limit_are_counted() {
        let bench = Bench::new(Roots::default());
        let mut standing = Standing::new("Slurm");
        let found = (0..5000).map(|i| Outage::new(&format!("n{i:04}"), "down", "power", None)).collect();
        standing.out_of_service(&bench.context(), found);
        assert_eq!((standing.outages().count(), standing.left_out()), (200, 4800));
        assert_eq!(bench.published().len(), 200);
    }

    #[test]
    fn over_the_limit_a_named_node_is_back_only_if_it_is_not_out_of_service() {
        let bench = Bench::new(Roots::default());
        let mut standing = Standing::new("Slurm");
        let mut pass = |nodes: std::ops::Range<u32>| {
            let found = nodes.map(|i| Outage::new(&format!("n{i:04}"), "down", "power", None)).collect();
            standing.out_of_service(&bench.context(), found);
            (standing.outages().count(), standing.left_out())
        };
        assert_eq!(pass(10..210), (200, 0));
        assert_eq!(bench.published().len(), 200);
        // Ten more, which come first.
        assert_eq!(pass(0..210), (200, 10));
        assert_eq!(texts(&bench), []);
        // The last five are in service, and leave room.
        assert_eq!(pass(0..205), (200, 5));
        let events = texts(&bench);
        let named = |code| {
            let of_code = events.iter().filter(move |(of, ..)| *of == code);
            of_code.map(|(_, node, _)| node.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(named(0), ["n0205", "n0206", "n0207", "n0208", "n0209"]);
        assert_eq!(named(1), ["n0000", "n0001", "n0002", "n0003", "n0004"]);
    }
}
