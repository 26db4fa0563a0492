//! What Slurm's controller says: whether it answers, the states of its nodes and why they are out
//! of service, which jobs wait for what, and whether GPUs are idle meanwhile.
//!
//! It is for one exporter of a cluster, on a node that has Slurm's commands. They are run as
//! `scontrol ping`, `scontrol show nodes` and `squeue` with formats that are alike in all versions;
//! their JSON differs from version to version, and is ten times as long.

mod command;
mod gres;
mod nodes;
mod queue;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use stepwatch_kit::config::Period;
use stepwatch_wire::words;
use tokio::runtime::Runtime;

use self::command::{Ask, Failed};
use self::nodes::Nodes;
use self::queue::Queue;
use crate::clock::unix_now;
use crate::collector::{CollectError, Collector, Context, Mistakes, Rhythm, Support};
use crate::family::Family;
use crate::family_filter::Metrics;
use crate::samples::Samples;
use crate::scheduler::{self, Failure, Standing};

pub const ABOUT: &str = "Slurm's queue, the states of its nodes, and whether its controller answers";
pub const NEEDS: &str = "the commands scontrol and squeue of Slurm 20.02 or later, and its configuration; any user who may see all jobs; one exporter of the cluster";
pub const COST: &str =
    "three commands each minute, and two calls of Slurm's controller that list all nodes and jobs";

pub static UP: Family =
    Family::gauge("slurm_up", "", &[], "Whether Slurm's controller answered all questions of the last pass");
pub static CONTROLLER_UP: Family = Family::gauge(
    "slurm_controller_up",
    "",
    &["role", "host"],
    "Whether the controller answers to scontrol ping; one series for each that is configured",
);
pub static SILENT: Family = Family::gauge(
    "slurm_silent_seconds",
    "seconds",
    &[],
    "How long the controller has not answered all questions; 0 when it does",
);
pub static UNREADABLE: Family = Family::gauge(
    "slurm_unreadable_seconds",
    "seconds",
    &[],
    "How long this exporter has lacked what it needs to ask Slurm or to read it; 0 when it can",
);
pub static ANSWER: Family = Family::gauge(
    "slurm_answer_seconds",
    "seconds",
    &["command"],
    "How long the command took the last time that it succeeded",
);
pub static FAILURES: Family =
    Family::counter("slurm_failures_total", "", &["command", "reason"], "Commands that gave no answer");
pub static MALFORMED: Family = Family::counter(
    "slurm_malformed_lines_total",
    "",
    &["command"],
    "Lines of an answer that this version cannot read",
);
pub static NODES: Family = Family::gauge(
    "slurm_nodes",
    "",
    &["state", "gpus"],
    "Nodes by state; gpus says whether they have any (yes, no)",
);
pub static GPUS: Family = Family::gauge(
    "slurm_gpus",
    "",
    &["state"],
    "GPUs by state: allocated to a job, idle, powered_down, which are those of nodes that are off to save power, reboot or have not registered yet, or unavailable, which are those that no job has on other nodes that get none",
);
pub static OUT: Family = Family::gauge(
    "slurm_node_out_of_service_timestamp_seconds",
    "seconds",
    &["node", "state", "reason"],
    "Unix time since when the node is out of service: drained, down, failing, in maintenance or without response",
);
pub static LEFT_OUT: Family = Family::gauge(
    "slurm_nodes_left_out",
    "",
    &[],
    "Nodes out of service that have no series of their own, because they are too many",
);
pub static JOBS: Family =
    Family::gauge("slurm_jobs", "", &["state"], "Jobs by state; each element of an array is one");
pub static PENDING_JOBS: Family =
    Family::gauge("slurm_pending_jobs", "", &["reason"], "Jobs that wait, by reason");
pub static PENDING_GPUS: Family =
    Family::gauge("slurm_pending_gpus", "", &["reason"], "GPUs that waiting jobs ask for, by reason");
pub static OLDEST: Family = Family::gauge(
    "slurm_pending_oldest_seconds",
    "seconds",
    &["reason"],
    "How long the oldest job that waits for GPUs has been eligible to start, by reason",
);
pub static FITTING: Family = Family::gauge(
    "slurm_fitting_jobs",
    "",
    &[],
    "Jobs that have waited for resources for idle_after although idle nodes of their partition had the GPUs and the features that they ask for at every look; those that ask for certain nodes, for a reservation or for one of several features, and parts of heterogeneous jobs are not compared",
);

pub static FAMILIES: &[&Family] = &[
    &UP,
    &CONTROLLER_UP,
    &SILENT,
    &UNREADABLE,
    &ANSWER,
    &FAILURES,
    &MALFORMED,
    &NODES,
    &GPUS,
    &OUT,
    &LEFT_OUT,
    &JOBS,
    &PENDING_JOBS,
    &PENDING_GPUS,
    &OLDEST,
    &FITTING,
];

const PING: &str = "ping";
const SHOW_NODES: &str = "nodes";
const SHOW_JOBS: &str = "jobs";
/// What is asked, in this order, and what each is called in labels.
const COMMANDS: [&str; 3] = [PING, SHOW_NODES, SHOW_JOBS];
/// The most controllers: a primary one and its backups.
const MAX_CONTROLLERS: usize = 16;
/// The most characters of a controller's role and host.
const MAX_NAME: usize = 64;

#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// The families that are on the metrics page.
    pub metrics: Metrics,
    pub interval: Period,
    /// How long one command may take.
    pub timeout: Period,
    /// The commands, looked for in PATH if they are no paths.
    pub scontrol: PathBuf,
    pub squeue: PathBuf,
    /// Slurm's configuration, if it is not where the commands look for it.
    pub conf: Option<PathBuf>,
    /// How long the controller must not have answered to be reported.
    pub silent_after: Period,
    /// How long jobs must have waited beside idle GPUs to be reported.
    pub idle_after: Period,
}

impl Config {
    pub(crate) fn check(&self) -> Mistakes {
        Mistakes::default()
            .period("interval", self.interval)
            .period("timeout", self.timeout)
            .unless(!self.scontrol.as_os_str().is_empty(), "scontrol: must not be empty")
            .unless(!self.squeue.as_os_str().is_empty(), "squeue: must not be empty")
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: false,
            metrics: Metrics::default(),
            interval: Period::secs(60),
            timeout: Period::secs(30),
            scontrol: "scontrol".into(),
            squeue: "squeue".into(),
            conf: None,
            silent_after: Period::secs(300),
            idle_after: Period::secs(1800),
        }
    }
}

pub fn rhythm(config: &Config) -> Rhythm {
    let commands = config.timeout.as_duration() * COMMANDS.len() as u32;
    Rhythm { interval: config.interval.into(), deadline: commands + Duration::from_secs(10) }
}

#[derive(Debug)]
pub struct SlurmReader {
    config: Config,
    /// The runtime, created for the first command.
    runtime: Option<Runtime>,
    standing: Standing,
    failures: BTreeMap<(&'static str, &'static str), u64>,
    malformed: BTreeMap<&'static str, u64>,
    took: BTreeMap<&'static str, Duration>,
}

/// All nodes and jobs, or the command that gave no answer.
type Answer = Result<(Nodes, Queue), (&'static str, Failed)>;

/// A controller of the answer to `scontrol ping`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Controller {
    role: String,
    host: String,
    is_up: bool,
}

impl SlurmReader {
    pub fn new(config: &Config) -> Self {
        Self {
            config: config.clone(),
            runtime: None,
            standing: Standing::new("Slurm"),
            failures: BTreeMap::new(),
            malformed: COMMANDS.into_iter().map(|command| (command, 0)).collect(),
            took: BTreeMap::new(),
        }
    }

    fn runtime(&mut self) -> Result<&Runtime, CollectError> {
        let runtime = scheduler::runtime(self.runtime.take())?;
        Ok(self.runtime.insert(runtime))
    }

    /// Runs one command. `take` gets its lines.
    fn run(
        &mut self,
        command: &'static str,
        args: &[&str],
        take: &mut dyn FnMut(&str),
    ) -> Result<Result<(), Failed>, CollectError> {
        let config = self.config.clone();
        let program: &Path = if command == SHOW_JOBS { &config.squeue } else { &config.scontrol };
        let limit = config.timeout.as_duration();
        let ask = Ask { what: command, program, args, conf: config.conf.as_deref(), limit };
        let began = Instant::now();
        let result = self.runtime()?.block_on(ask.run(take));
        if result.is_ok() {
            self.took.insert(command, began.elapsed());
        }
        Ok(result)
    }

    /// Asks for the controllers. A version that answers in other words is no failure.
    fn ping(&mut self) -> Result<(Vec<Controller>, Option<Failed>), CollectError> {
        let mut found: Vec<Controller> = Vec::new();
        let result = self.run(PING, &["ping"], &mut |line| {
            let room = MAX_CONTROLLERS.saturating_sub(found.len());
            found.extend(controllers(line).into_iter().take(room));
        })?;
        found.sort();
        // It fails too where it found all of them down.
        let failure = match result {
            // It calls controllers down that it could not ask.
            Err(failed) if failed.is_not_admitted() => {
                found.clear();
                Some(failed)
            }
            _ if !found.is_empty() => (!found.iter().any(|c| c.is_up)).then_some(Failed::Controller),
            result => result.err(),
        };
        Ok((found, failure))
    }

    /// Asks for nodes and jobs; neither counts without the other.
    fn ask(&mut self) -> Result<Answer, CollectError> {
        let (mut nodes, mut queue) = (Nodes::default(), Queue::default());
        // `--local`: where a federation is shown by default, its other clusters have exporters of
        // their own.
        let show = ["--all", "--local", "--details", "--oneliner", "show", "nodes"];
        let answer = self.run(SHOW_NODES, &show, &mut |line| nodes.take(line))?;
        self.count_malformed(SHOW_NODES, nodes.malformed);
        if let Err(failure) = known(SHOW_NODES, answer, nodes.all.len(), nodes.malformed) {
            return Ok(Err((SHOW_NODES, failure)));
        }
        let list = ["--all", "--local", "--noheader", "--Format", queue::FORMAT];
        let answer = self.run(SHOW_JOBS, &list, &mut |line| queue.take(line))?;
        self.count_malformed(SHOW_JOBS, queue.malformed);
        let jobs = usize::try_from(queue.jobs()).unwrap_or(usize::MAX);
        if let Err(failure) = known(SHOW_JOBS, answer, jobs, queue.malformed) {
            return Ok(Err((SHOW_JOBS, failure)));
        }
        Ok(Ok((nodes, queue)))
    }

    fn count_malformed(&mut self, command: &'static str, lines: u64) {
        *self.malformed.entry(command).or_default() += lines;
    }
}

/// An answer of which no line is known is none.
fn known(
    command: &'static str,
    answer: Result<(), Failed>,
    records: usize,
    malformed: u64,
) -> Result<(), Failed> {
    answer?;
    if records == 0 && malformed > 0 { Err(Failed::Malformed(command)) } else { Ok(()) }
}

/// `Slurmctld(primary) at head1 is UP`; before 18.08 `Slurmctld(primary/backup) at a/b are
/// UP/DOWN`.
fn controllers(line: &str) -> Vec<Controller> {
    let parts = || {
        let (roles, rest) = line.strip_prefix("Slurmctld(")?.split_once(") at ")?;
        let (hosts, states) = rest.split_once(" is ").or_else(|| rest.split_once(" are "))?;
        Some((roles, hosts, states))
    };
    let Some((roles, hosts, states)) = parts() else { return Vec::new() };
    let clip = |text: &str| -> String { words::line(text).chars().take(MAX_NAME).collect() };
    let all = roles.split('/').zip(hosts.split('/')).zip(states.split('/'));
    let all = all.take(MAX_CONTROLLERS).map(|((role, host), state)| Controller {
        role: clip(role),
        host: clip(host),
        is_up: state.trim() == "UP",
    });
    all.collect()
}

fn write(nodes: &Nodes, queue: &Queue, out: &mut Samples) {
    let by_state = nodes.by_state();
    for state in nodes::State::ALL {
        for (has_gpus, label) in [(true, "yes"), (false, "no")] {
            let count = by_state.get(&(state, has_gpus)).copied().unwrap_or(0);
            out.set(&NODES, &[state.as_str(), label], count);
        }
    }
    let gpus = nodes.gpus();
    out.set(&GPUS, &["allocated"], gpus.allocated);
    out.set(&GPUS, &["idle"], gpus.idle);
    out.set(&GPUS, &["powered_down"], gpus.powered_down);
    out.set(&GPUS, &["unavailable"], gpus.unavailable);
    for state in queue::STATES {
        out.set(&JOBS, &[state], queue.by_state.get(state).copied().unwrap_or(0));
    }
    let now = unix_now();
    for reason in queue::Reason::ALL {
        let pending = queue.pending.get(&reason).copied().unwrap_or_default();
        let labels: &[&str] = &[reason.as_str()];
        out.set(&PENDING_JOBS, labels, pending.jobs);
        out.set(&PENDING_GPUS, labels, pending.gpus);
        out.set(&OLDEST, labels, pending.since.map_or(0.0, |since| (now - since).max(0.0)));
    }
}

impl Collector for SlurmReader {
    fn probe(&mut self, _: &Context<'_>) -> Result<Support, CollectError> {
        let (scontrol, squeue) = (self.config.scontrol.display(), self.config.squeue.display());
        Ok(Support::Supported(format!("{scontrol} and {squeue}")))
    }

    fn collect(&mut self, cx: &Context<'_>, out: &mut Samples) -> Result<(), CollectError> {
        let (controllers, refused) = self.ping()?;
        for controller in &controllers {
            out.set(&CONTROLLER_UP, &[&controller.role, &controller.host], controller.is_up);
        }
        // The other commands would wait for the controller, for longer than they may.
        let answer = match refused {
            Some(failure) => Err((PING, failure)),
            None => self.ask()?,
        };
        if let Err((command, failure)) = &answer {
            *self.failures.entry((*command, failure.reason())).or_default() += 1;
        }
        let now = Instant::now();
        let failure = answer.as_ref().err().map(|(_, failure)| {
            let silent = failure.is_silence();
            if silent {
                Failure::Silent(failure.to_string())
            } else {
                Failure::Unreadable(failure.to_string())
            }
        });
        let silent_after = (now, self.config.silent_after.into());
        let failing = self.standing.answers(cx, silent_after, failure.as_ref());
        out.set(&SILENT, &[], failing.silent);
        out.set(&UNREADABLE, &[], failing.unreadable);
        out.set(&UP, &[], answer.is_ok());
        if let Ok((nodes, queue)) = &answer {
            write(nodes, queue, out);
            self.standing.out_of_service(cx, nodes.outages());
            let idle_after = (now, self.config.idle_after.into());
            let fitting = Some(queue.fitting(nodes));
            let long = self.standing.waits(cx, idle_after, fitting);
            out.set(&FITTING, &[], long);
            for outage in self.standing.outages() {
                out.maybe(&OUT, &[&outage.node, outage.state, &outage.reason], outage.since);
            }
            out.set(&LEFT_OUT, &[], self.standing.left_out());
        }
        for command in COMMANDS {
            out.maybe(&ANSWER, &[command], self.took.get(command).copied());
            out.maybe(&MALFORMED, &[command], self.malformed.get(command).copied());
            for reason in Failed::REASONS {
                let count = self.failures.get(&(command, reason)).copied().unwrap_or(0);
                out.set(&FAILURES, &[command, reason], count);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
