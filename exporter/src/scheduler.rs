//! What readers of schedulers report to the stream: a controller that does not answer, nodes that
//! the scheduler does not use, and jobs that wait although GPUs are idle.
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

/// What one scheduler was last found to do.
#[derive(Debug)]
pub(crate) struct Standing {
    /// The scheduler's name, as people write it.
    scheduler: &'static str,
    conditions: Conditions,
    silent_since: Option<Instant>,
    waits_since: Option<Instant>,
    out: BTreeMap<String, Outage>,
    left_out: usize,
}

impl Standing {
    pub(crate) fn new(scheduler: &'static str) -> Self {
        Self {
            scheduler,
            conditions: Conditions::default(),
            silent_since: None,
            waits_since: None,
            out: BTreeMap::new(),
            left_out: 0,
        }
    }

    /// Notes whether the controller answers, and reports `condition` if it has not for `after`. The
    /// log says so when that changes. Returns how long it has been silent.
    pub(crate) fn answers(
        &mut self,
        cx: &Context<'_>,
        condition: NodeCondition,
        (now, after): (Instant, Duration),
        failure: Option<&str>,
    ) -> Duration {
        let was_silent = self.silent_since.is_some();
        self.silent_since = failure.map(|_| self.silent_since.unwrap_or(now));
        match (was_silent, failure) {
            (false, Some(why)) => {
                tracing::warn!(scheduler = self.scheduler, why, "the scheduler does not answer")
            }
            (true, None) => tracing::info!(scheduler = self.scheduler, "the scheduler answers again"),
            (true, Some(_)) | (false, None) => {}
        }
        let lasts = self.silent_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        let scheduler = self.scheduler;
        self.conditions.report(cx, condition, "", failure.is_some() && lasts >= after, || {
            event(
                "warn",
                match failure {
                    Some(why) => {
                        format!("{scheduler} has not answered for {} min: {why}", lasts.as_secs() / 60)
                    }
                    None => format!("{scheduler} answers again"),
                },
            )
        });
        lasts
    }

    /// Notes how many jobs wait although idle nodes have the GPUs that they ask for, and reports
    /// `condition` if some have for `after`.
    pub(crate) fn waits(
        &mut self,
        cx: &Context<'_>,
        condition: NodeCondition,
        (now, after): (Instant, Duration),
        jobs: u64,
    ) {
        self.waits_since = (jobs > 0).then(|| self.waits_since.unwrap_or(now));
        let lasts = self.waits_since.is_some_and(|since| now.saturating_duration_since(since) >= after);
        let scheduler = self.scheduler;
        self.conditions.report(cx, condition, "", lasts, || {
            event(
                "warn",
                match jobs {
                    0 => format!("no job of {scheduler} waits for GPUs that are idle"),
                    1 => format!("a job of {scheduler} waits for GPUs, and idle nodes have as many"),
                    _ => format!("{jobs} jobs of {scheduler} wait for GPUs, and idle nodes have as many"),
                },
            )
        });
    }

    /// Reports the nodes that are out of service, all of them each time.
    pub(crate) fn out_of_service(&mut self, cx: &Context<'_>, condition: NodeCondition, found: Vec<Outage>) {
        let now = unix_now();
        let mut had = std::mem::take(&mut self.out);
        self.left_out = found.len().saturating_sub(MAX_NAMED);
        for mut outage in found.into_iter().take(MAX_NAMED) {
            match had.remove(&outage.node) {
                Some(had) if had.is_same(&outage) => outage.since = outage.since.or(had.since),
                Some(had) => self.back(cx, condition, &had),
                None => {}
            }
            outage.since.get_or_insert(now);
            let scheduler = self.scheduler;
            self.conditions.report(cx, condition, &outage.node, true, || of_node(scheduler, &outage));
            self.out.insert(outage.node.clone(), outage);
        }
        for outage in had.into_values() {
            self.back(cx, condition, &outage);
        }
    }

    fn back(&mut self, cx: &Context<'_>, condition: NodeCondition, outage: &Outage) {
        let over = Outage { state: "in service", reason: String::new(), since: None, ..outage.clone() };
        let scheduler = self.scheduler;
        self.conditions.report(cx, condition, &outage.node, false, || of_node(scheduler, &over));
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
        let mut at = |seconds, failure| {
            let time = (start + Duration::from_secs(seconds), Duration::from_mins(5));
            standing.answers(&bench.context(), NodeCondition::SchedulerDown, time, failure)
        };
        let log = logged(|| {
            assert_eq!(at(0, Some("refused")), Duration::ZERO);
            assert_eq!(at(299, Some("refused")), Duration::from_secs(299));
            assert_eq!(at(301, None), Duration::ZERO);
            assert_eq!(at(400, Some("refused")), Duration::ZERO);
        });
        assert_eq!(log.lines().count(), 3, "{log}");
        assert_eq!(texts(&bench), [], "it answered in between");
        assert_eq!(at(700, Some("no answer within 30s")), Duration::from_secs(300));
        at(760, Some("refused"));
        let silent = "Slurm has not answered for 5 min: no answer within 30s";
        assert_eq!(texts(&bench), [(1, String::new(), silent.into())]);
        at(800, None);
        assert_eq!(texts(&bench), [(0, String::new(), "Slurm answers again".into())]);
    }

    #[test]
    fn jobs_that_wait_beside_idle_gpus_are_reported_if_it_lasts() {
        let bench = Bench::new(Roots::default());
        let (mut standing, start) = (Standing::new("Slurm"), Instant::now());
        for (minutes, jobs) in [(0, 2), (29, 1), (29, 0), (30, 3), (59, 3), (60, 2), (61, 0)] {
            let time = (start + Duration::from_mins(minutes), Duration::from_mins(30));
            standing.waits(&bench.context(), NodeCondition::JobsWaitBesideIdle, time, jobs);
        }
        let waits = "2 jobs of Slurm wait for GPUs, and idle nodes have as many";
        let over = "no job of Slurm waits for GPUs that are idle";
        assert_eq!(texts(&bench), [(1, String::new(), waits.into()), (0, String::new(), over.into())]);
    }

    #[test]
    fn a_node_is_reported_by_its_name_its_state_and_its_reason() {
        let bench = Bench::new(Roots::default());
        let mut standing = Standing::new("Slurm");
        let mut pass = |found: &[(&str, &'static str, &str, Option<f64>)]| {
            let found = found.iter().map(|&(n, s, r, t)| Outage::new(n, s, r, t)).collect();
            standing.out_of_service(&bench.context(), NodeCondition::NodeOutOfService, found);
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
        standing.out_of_service(&bench.context(), NodeCondition::NodeOutOfService, found);
        assert_eq!((standing.outages().count(), standing.left_out()), (200, 4800));
        assert_eq!(bench.published().len(), 200);
    }
}
