//! What Kubernetes says: whether its API answers, which nodes with GPUs get no pods and why, which
//! pods wait for GPUs, and whether GPUs are idle meanwhile.
//!
//! It is for one exporter of a cluster, such as the Deployment in `deploy/kubernetes/cluster.yml`.
//! Nodes and pods that wait are listed each minute; the pods that run, which are many, every five
//! minutes. GPUs of resource claims (DRA) are not counted.

mod client;
mod objects;
mod placed;
mod state;

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use stepwatch_kit::config::Period;
use tokio::runtime::Runtime;

use self::client::{Api, Failed, Place, Question};
use self::objects::{GpuResources, Node, Pod};
use self::placed::{Placed, Places};
use self::state::{Held, NodeStanding, Nodes, Queue, Reason};
use crate::clock::unix_now;
use crate::collector::{CollectError, Collector, Context, Mistakes, Rhythm, Support};
use crate::family::Family;
use crate::family_filter::Metrics;
use crate::samples::Samples;
use crate::scheduler::{self, Failure, Standing};

pub const ABOUT: &str =
    "Kubernetes' nodes with GPUs, the pods that wait for them, and whether its API answers";
pub const NEEDS: &str = "the API of Kubernetes, and an account that may list nodes and pods (`deploy/kubernetes/cluster.yml`); one exporter of the cluster";
pub const COST: &str = "two lists of the API each minute, and all pods every five minutes";

pub static UP: Family =
    Family::gauge("kubernetes_up", "", &[], "Whether the API answered all that it was last asked");
pub static SILENT: Family = Family::gauge(
    "kubernetes_silent_seconds",
    "seconds",
    &[],
    "How long the API has not answered all questions; 0 when it does",
);
pub static UNREADABLE: Family = Family::gauge(
    "kubernetes_unreadable_seconds",
    "seconds",
    &[],
    "How long this exporter has lacked what it needs to read all that it asks the API for; 0 when it can",
);
pub static ANSWER: Family = Family::gauge(
    "kubernetes_answer_seconds",
    "seconds",
    &["list"],
    "How long the list took the last time that it was read to its end",
);
pub static FAILURES: Family = Family::counter(
    "kubernetes_failures_total",
    "",
    &["list", "reason"],
    "Lists that were not read to their end",
);
pub static NODES: Family = Family::gauge(
    "kubernetes_gpu_nodes",
    "",
    &["state"],
    "Nodes with GPUs by state: ready, cordoned (ready, and closed to new pods) or not_ready",
);
pub static PROBLEMS: Family = Family::gauge(
    "kubernetes_gpu_node_problems",
    "",
    &["condition"],
    "Nodes with GPUs on which a condition says that something is wrong; also those of a problem detector",
);
pub static GPUS: Family = Family::gauge(
    "kubernetes_gpus",
    "",
    &["state"],
    "GPUs by state: allocated to a pod, idle, or unavailable, which are those that no pod has or gets; shares and instances count as the device plugin counts them",
);
pub static CAPACITY: Family =
    Family::gauge("kubernetes_gpus_capacity", "", &[], "GPUs that the nodes have, by their device plugins");
pub static ALLOCATABLE: Family = Family::gauge(
    "kubernetes_gpus_allocatable",
    "",
    &[],
    "GPUs that pods may have; fewer than the capacity where a device plugin found some unhealthy",
);
pub static OUT: Family = Family::gauge(
    "kubernetes_node_out_of_service_timestamp_seconds",
    "seconds",
    &["node", "state", "reason"],
    "Unix time since when the node gets no pods; of a cordoned one, when this was first seen",
);
pub static LEFT_OUT: Family = Family::gauge(
    "kubernetes_nodes_left_out",
    "",
    &[],
    "Nodes out of service that have no series of their own, because they are too many",
);
pub static PENDING_PODS: Family =
    Family::gauge("kubernetes_pending_pods", "", &["reason"], "Pods that ask for GPUs and wait, by reason");
pub static PENDING_GPUS: Family =
    Family::gauge("kubernetes_pending_gpus", "", &["reason"], "GPUs that waiting pods ask for, by reason");
pub static OLDEST: Family = Family::gauge(
    "kubernetes_pending_oldest_seconds",
    "seconds",
    &["reason"],
    "Age of the oldest pod that asks for GPUs and waits, by reason",
);
pub static FITTING: Family = Family::gauge(
    "kubernetes_fitting_pods",
    "",
    &[],
    "Pods that have been unschedulable for idle_after although a node that they may use had room for them at every look; those that start only with others are not compared",
);

pub static FAMILIES: &[&Family] = &[
    &UP,
    &SILENT,
    &UNREADABLE,
    &ANSWER,
    &FAILURES,
    &NODES,
    &PROBLEMS,
    &GPUS,
    &CAPACITY,
    &ALLOCATABLE,
    &OUT,
    &LEFT_OUT,
    &PENDING_PODS,
    &PENDING_GPUS,
    &OLDEST,
    &FITTING,
];

const ALL_NODES: Question = Question { list: "nodes", path: "/api/v1/nodes", selector: "", cached: false };
/// Few of many pods: from its store, the server would read all of them each minute.
const PENDING: Question =
    Question { list: "pending", path: "/api/v1/pods", selector: "status.phase=Pending", cached: true };
const RUNNING: Question =
    Question { list: "running", path: "/api/v1/pods", selector: "status.phase=Running", cached: false };
/// What is read, in this order.
const LISTS: [Question; 3] = [ALL_NODES, PENDING, RUNNING];
/// The list of the pods that run may take so many times as long as another: of 5,000 nodes there
/// are 100,000.
const RUNNING_TIMES: u32 = 3;
/// After a list of the pods that run that failed, the next one is so many times as far away as it
/// took, so that a server that is slow has less to do and not more.
const REST_TIMES: u32 = 4;
/// How often a list is begun anew that became too old while it was read.
const BEGINNINGS: usize = 3;
/// Where a pod finds its account.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// The families that are on the metrics page.
    pub metrics: Metrics,
    pub interval: Period,
    /// How long one list may take; that of the pods that run three times as long.
    pub timeout: Period,
    /// How often the pods that run are listed.
    pub running_interval: Period,
    /// The address of the API. Without it, that of the cluster in which this program is a pod.
    pub url: Option<String>,
    /// The token and the certificates of the API. Without `url`, those of the pod's account.
    pub token_file: Option<PathBuf>,
    pub ca_file: Option<PathBuf>,
    /// Patterns with `*` of the resources that are GPUs.
    pub resources: Vec<String>,
    /// How long the API must not have answered to be reported.
    pub silent_after: Period,
    /// How long pods must have waited beside idle GPUs to be reported.
    pub idle_after: Period,
}

impl Config {
    pub(crate) fn check(&self) -> Mistakes {
        let mistakes = Mistakes::default()
            .period("interval", self.interval)
            .period("timeout", self.timeout)
            .period("running_interval", self.running_interval)
            .patterns("resources", &self.resources);
        match self.url.as_ref().map(|url| client::check(url, self.token_file.is_some())) {
            Some(Err(why)) => mistakes.unless(false, &format!("url: {why}")),
            Some(Ok(_)) | None => mistakes,
        }
    }

    /// Where the API is; `None` if nothing says so. `env` looks up variables of the environment.
    fn place(&self, env: impl Fn(&str) -> Option<String>) -> Option<Place> {
        let own = |name: &str| Some(Path::new(ACCOUNT).join(name));
        if let Some(url) = &self.url {
            let url = client::check(url, self.token_file.is_some()).ok()?;
            return Some(Place { url, token_file: self.token_file.clone(), ca_file: self.ca_file.clone() });
        }
        let host = env("KUBERNETES_SERVICE_HOST").filter(|host| !host.is_empty())?;
        let port = env("KUBERNETES_SERVICE_PORT").unwrap_or_else(|| "443".into());
        let host = if host.parse::<Ipv6Addr>().is_ok() { format!("[{host}]") } else { host };
        Some(Place {
            url: format!("https://{host}:{port}").parse().ok()?,
            token_file: self.token_file.clone().or_else(|| own("token")),
            ca_file: self.ca_file.clone().or_else(|| own("ca.crt")),
        })
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: false,
            metrics: Metrics::default(),
            interval: Period::secs(60),
            timeout: Period::secs(30),
            running_interval: Period::secs(300),
            url: None,
            token_file: None,
            ca_file: None,
            // Other names of `nvidia.com` are network cards.
            resources: ["nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-*", "amd.com/gpu"]
                .map(String::from)
                .to_vec(),
            silent_after: Period::secs(300),
            idle_after: Period::secs(1800),
        }
    }
}

pub fn rhythm(config: &Config) -> Rhythm {
    let lists = LISTS.iter().map(|question| limit(config, *question)).sum::<Duration>();
    Rhythm { interval: config.interval.into(), deadline: lists + Duration::from_secs(10) }
}

fn limit(config: &Config, question: Question) -> Duration {
    let times = if question.list == RUNNING.list { RUNNING_TIMES } else { 1 };
    config.timeout.as_duration().saturating_mul(times)
}

/// The last list of the pods that run.
#[derive(Debug)]
struct Running {
    /// When they are listed again.
    again: Instant,
    held: Result<Held, Failure>,
}

#[derive(Debug)]
pub struct KubernetesReader {
    config: Config,
    gpus: GpuResources,
    /// The runtime, created for the first list.
    runtime: Option<Runtime>,
    standing: Standing,
    running: Option<Running>,
    /// A list that the server has in memory was too large for one answer.
    is_paged: bool,
    places: Places,
    /// The server asked to be left alone until then.
    not_before: Option<Instant>,
    failures: BTreeMap<(&'static str, &'static str), u64>,
    took: BTreeMap<&'static str, Duration>,
}

/// A list that was not read.
type Missing = (&'static str, Failed);

/// What a pass finds.
#[derive(Debug)]
struct Found {
    nodes: Nodes,
    queue: Queue,
    /// Whether the pods that run were listed anew, or why not.
    running: Result<bool, Missing>,
}

/// The API answers if all but the pods that run was read.
fn failure((list, failed): &Missing) -> Failure {
    let why = format!("{list}: {failed}");
    let silent = *list != RUNNING.list && failed.is_silence();
    if silent { Failure::Silent(why) } else { Failure::Unreadable(why) }
}

impl KubernetesReader {
    pub fn new(config: &Config) -> Self {
        Self {
            config: config.clone(),
            gpus: GpuResources::new(&config.resources),
            runtime: None,
            standing: Standing::new("Kubernetes"),
            running: None,
            is_paged: false,
            places: Places::default(),
            not_before: None,
            failures: BTreeMap::new(),
            took: BTreeMap::new(),
        }
    }

    fn place(&self) -> Option<Place> {
        self.config.place(|name| std::env::var(name).ok())
    }

    /// Asks for nodes and pods; neither nodes nor pods that wait count without the other.
    async fn ask(&mut self, now: Instant) -> Result<Found, Missing> {
        if let Some(left) =
            self.not_before.map(|at| at.saturating_duration_since(now)).filter(|d| !d.is_zero())
        {
            return Err((ALL_NODES.list, Failed::Throttled(left)));
        }
        let no_place = || Failed::File("neither `url` is set nor is this a pod of a cluster".into());
        let place = self.place().ok_or_else(no_place).map_err(|e| (ALL_NODES.list, e))?;
        let api = Api::open(&place).map_err(|e| (ALL_NODES.list, e))?;
        let gpus = self.gpus.clone();
        let nodes: Nodes =
            self.list(&api, ALL_NODES, |nodes: &mut Nodes, node: Node| nodes.take(&gpus, node)).await?;
        let mut queue: Queue =
            self.list(&api, PENDING, |queue: &mut Queue, pod: Pod| queue.take(&gpus, pod)).await?;
        let is_due = self.running.as_ref().is_none_or(|running| now >= running.again);
        // A list that failed rests, whatever has begun.
        let rests = self.running.as_ref().is_some_and(|running| running.held.is_err());
        let is_due = is_due || !rests && self.places.have_begun(&queue.placed);
        let mut placed = core::mem::take(&mut queue.placed);
        let running = if is_due { self.list_running(&api, now, &mut placed).await } else { Ok(false) };
        self.places.take(placed, matches!(running, Ok(true)));
        Ok(Found { nodes, queue, running })
    }

    /// Lists the pods that run, and adds their times to those that are `placed`.
    async fn list_running(
        &mut self,
        api: &Api,
        now: Instant,
        placed: &mut Vec<Placed>,
    ) -> Result<bool, Missing> {
        let gpus = self.gpus.clone();
        let take = |(held, placed): &mut (Held, Vec<Placed>), pod: Pod| {
            held.take(&pod);
            placed.extend(Placed::of(&gpus, &pod).map(Placed::running));
        };
        let (began, every) = (Instant::now(), self.config.running_interval.as_duration());
        let read: Result<(Held, Vec<Placed>), Missing> = self.list(api, RUNNING, take).await;
        let rest = if read.is_ok() { every } else { every.min(began.elapsed() * REST_TIMES) };
        let again = now + rest;
        let (held, is_new) = match read {
            Ok((held, begun)) => {
                placed.extend(begun);
                (Ok(held), Ok(true))
            }
            Err(missing) => (Err(failure(&missing)), Err(missing)),
        };
        self.running = Some(Running { again, held });
        is_new
    }

    /// Reads one list into a new `S`, and begins anew if the server has forgotten where it was.
    async fn list<T: serde::de::DeserializeOwned, S: Default>(
        &mut self,
        api: &Api,
        question: Question,
        take: impl Fn(&mut S, T),
    ) -> Result<S, Missing> {
        let (began, limit) = (Instant::now(), limit(&self.config, question));
        let Question { list, cached, .. } = question;
        let mut asked = Question { cached: cached && !self.is_paged, ..question };
        let whole = async {
            for _ in 0..BEGINNINGS {
                let mut state = S::default();
                let read = api.list(asked, &mut |object| take(&mut state, object)).await;
                match read {
                    Ok(()) => return Ok(state),
                    Err(Failed::Gone) => {}
                    Err(Failed::TooLarge) if asked.cached => asked.cached = false,
                    Err(other) => return Err(other),
                }
            }
            Err(Failed::Gone)
        };
        let result = tokio::time::timeout(limit, whole).await.unwrap_or(Err(Failed::Timeout(limit)));
        self.is_paged |= cached && !asked.cached;
        if let Err(Failed::Throttled(wait)) = &result {
            self.not_before = Some(Instant::now() + *wait);
        }
        self.took.extend(result.is_ok().then(|| (list, began.elapsed())));
        result.map_err(|failure| (list, failure))
    }

    fn write(&self, nodes: &Nodes, queue: &Queue, out: &mut Samples) {
        for standing in NodeStanding::ALL {
            out.set(&NODES, &[standing.as_str()], nodes.by_standing(standing));
        }
        for (condition, count) in &nodes.problems {
            out.set(&PROBLEMS, &[condition], *count);
        }
        let (capacity, allocatable) = nodes.there();
        out.set(&CAPACITY, &[], capacity);
        out.set(&ALLOCATABLE, &[], allocatable);
        let now = unix_now();
        for reason in Reason::ALL {
            let pending = queue.pending.get(&reason).copied().unwrap_or_default();
            let labels: &[&str] = &[reason.as_str()];
            out.set(&PENDING_PODS, labels, pending.pods);
            out.set(&PENDING_GPUS, labels, pending.gpus);
            out.set(&OLDEST, labels, pending.since.map_or(0.0, |since| (now - since).max(0.0)));
        }
        for outage in self.standing.outages() {
            out.maybe(&OUT, &[&outage.node, outage.state, &outage.reason], outage.since);
        }
        out.set(&LEFT_OUT, &[], self.standing.left_out() as u64 + nodes.left_out);
    }

    /// Writes what is known only with the pods that run.
    fn compare(&mut self, cx: &Context<'_>, now: Instant, found: Found, out: &mut Samples) {
        let Some(Running { held: Ok(running), .. }) = &self.running else { return };
        let Found { nodes, mut queue, running: is_new } = found;
        let held = std::mem::take(&mut queue.held).with(running);
        let gpus = nodes.gpus(&held);
        for (state, count) in
            [("allocated", gpus.allocated), ("idle", gpus.idle), ("unavailable", gpus.unavailable)]
        {
            out.set(&GPUS, &[state], count);
        }
        // Pods that began to run since they were listed would leave their nodes idle.
        let fitting = is_new.is_ok_and(|is_new| is_new).then(|| queue.fitting(&nodes, &held));
        let idle_after = (now, self.config.idle_after.into());
        let long = self.standing.waits(cx, idle_after, fitting);
        out.set(&FITTING, &[], long);
    }
}

impl Collector for KubernetesReader {
    fn probe(&mut self, _: &Context<'_>) -> Result<Support, CollectError> {
        Ok(match self.place() {
            Some(place) => Support::Supported(place.url.origin().ascii_serialization()),
            None => Support::Unsupported("`url` is not set, and this is no pod of a cluster".into()),
        })
    }

    fn collect(&mut self, cx: &Context<'_>, out: &mut Samples) -> Result<(), CollectError> {
        let runtime = scheduler::runtime(self.runtime.take())?;
        let answer = runtime.block_on(self.ask(Instant::now()));
        self.runtime = Some(runtime);
        let missing = answer.as_ref().map_or_else(Some, |found| found.running.as_ref().err());
        if let Some((list, failed)) = missing {
            *self.failures.entry((*list, failed.reason())).or_default() += 1;
        }
        // That of the pods that run stands until they are listed again.
        let kept = self.running.as_ref().and_then(|running| running.held.as_ref().err());
        let failure = missing.map(failure).or_else(|| kept.cloned());
        let now = Instant::now();
        let silent_after = (now, self.config.silent_after.into());
        let failing = self.standing.answers(cx, silent_after, failure.as_ref());
        out.set(&SILENT, &[], failing.silent);
        out.set(&UNREADABLE, &[], failing.unreadable);
        out.set(&UP, &[], failure.is_none());
        if let Ok(found) = answer {
            self.standing.out_of_service(cx, found.nodes.outages());
            self.write(&found.nodes, &found.queue, out);
            self.compare(cx, now, found, out);
            self.places.publish(cx);
        }
        for Question { list, .. } in LISTS {
            out.maybe(&ANSWER, &[list], self.took.get(list).copied());
            for reason in Failed::REASONS {
                let count = self.failures.get(&(list, reason)).copied().unwrap_or(0);
                out.set(&FAILURES, &[list, reason], count);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
