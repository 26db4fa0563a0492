//! Which run a process belongs to: the one rule, for the client, the launcher, tails, discovery and
//! telemetry.
//!
//! 1. A given name: `Run("name")`, `--run`, `run:` of a tail, `STEPWATCH_RUN`, or the id with which
//!    an experiment tracker was asked to resume a run.
//! 2. Else the id of its job behind the name of the job: `pretrain-101`.
//! 3. Else its script and when it was started: `train-20261122-223542-3fa9c1d2`. The suffix is made
//!    of the node, the process and its start.
//!
//! What restarts a process without making another job of it (a requeue, torchrun) changes neither,
//! so the run stays and its attempt rises. Every rank must find the same answer on its own, on
//! whatever node it is: by 1 and 2 it does. By 3, ranks that one process of this node started take
//! that process's start, and ranks of several nodes the address where they meet.
//!
//! `run_name/cases.json` holds this implementation and the Python client's to the same answers.

use core::fmt;
use std::collections::BTreeMap;

mod process;
mod schedulers;
mod script;
mod wrapper;

pub use process::Process;
pub use schedulers::Job;
pub use script::{is_python, script_of};
pub use wrapper::is_wrapper;

use process::{Env, NAME, NAMED_BY};

/// The rule in words, as the documentation prints it.
pub const RULE: &str = include_str!("run_name/rule.md");

/// Longest name of a run, in characters.
pub const MAX_CHARS: usize = 128;

/// Ids that trackers are asked to resume.
const TRACKERS: &[&str] = &["WANDB_RUN_ID", "MLFLOW_RUN_ID"];
/// A word in place of the script's.
const TITLE: &str = "WANDB_NAME";
/// Ids that one launch gives all its processes, on every node.
const LAUNCHES: &[&str] = &["TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE"];
/// Counts of what restarted the processes of a job; each begins anew when the one before it rises.
const RESTARTS: &[&str] = &["SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT"];
/// Variables of which a launcher gives every rank its own.
const RANKS: &[&str] = &[
    "RANK",
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_RANK",
    "MV2_COMM_WORLD_RANK",
    "PMI_RANK",
    "PMIX_RANK",
    "SLURM_PROCID",
];
const WORLDS: &[&str] =
    &["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE"];
/// `LOCAL_SIZE` is DeepSpeed's (`deepspeed/launcher/launch.py`), which sets `MASTER_ADDR` to the
/// node's own address also where there is one node.
const LOCAL_WORLDS: &[&str] = &[
    "LOCAL_WORLD_SIZE",
    "LOCAL_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MV2_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
];
/// The id that DeepSpeed's launcher gives every elastic training.
const SHARED_LAUNCH: &str = "123456789";
const MEETING: &[&str] = &["MASTER_ADDR", "MASTER_PORT", ENDPOINT];
/// Where the agents of torchrun meet, if a variable says it.
const ENDPOINT: &str = "PET_RDZV_ENDPOINT";
const NODES: &[&str] = &["SLURM_JOB_NUM_NODES", "SLURM_NNODES"];

/// Whether the rule asks for this variable. The rest of an environment holds people's secrets.
pub fn is_asked(variable: &str) -> bool {
    [NAME, NAMED_BY, TITLE].contains(&variable)
        || [TRACKERS, LAUNCHES, RESTARTS, RANKS, WORLDS, LOCAL_WORLDS, MEETING, NODES]
            .iter()
            .any(|of| of.contains(&variable))
        || schedulers::is_asked(variable)
}

/// By what a run has its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum By {
    /// A given name.
    Name,
    Job,
    /// `stepwatch run`, which passes on what it found.
    Launcher,
    /// An id that a launcher gave all its processes.
    Launch,
    /// Where ranks of several nodes meet.
    Meeting,
    Script,
}

/// The answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Named {
    pub run: String,
    pub by: By,
    pub job: Option<Job>,
    /// How often launchers and schedulers declare that they restarted it.
    pub restarts: Option<u32>,
    /// For people.
    pub why: String,
    /// The name that it would have without a given name: it joins the process to everything else of
    /// its job.
    pub unnamed: String,
    /// Whether it declares that it is on other nodes as well.
    pub several_nodes: bool,
}

impl By {
    pub const ALL: [Self; 6] =
        [Self::Name, Self::Job, Self::Launcher, Self::Launch, Self::Meeting, Self::Script];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Job => "job",
            Self::Launcher => "launcher",
            Self::Launch => "launch",
            Self::Meeting => "meeting",
            Self::Script => "script",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|by| by.as_str() == text)
    }
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The rule. `chain` is the process, its parent and so on, as far as they may be looked at.
pub fn name(chain: &[Process]) -> Named {
    if let Some(command) = chain.first().and_then(wrapper::unwrapped) {
        return name(&[&[command], &chain[1..]].concat());
    }
    let nothing = Process::default();
    let env = Env(&chain.first().unwrap_or(&nothing).env);
    let (job, restarts) = (schedulers::find(env), restarts(env));
    let unnamed = of_job(env, chain, job.as_ref())
        .or_else(|| of_launcher(env))
        .or_else(|| of_launch(env, chain))
        .or_else(|| of_meeting(env, chain))
        .unwrap_or_else(|| of_script(env, chain));
    let (run, by, why) = given(env).unwrap_or_else(|| unnamed.clone());
    let sizes = env.number(WORLDS).zip(env.number(LOCAL_WORLDS));
    let several_nodes =
        env.number(NODES).is_some_and(|n| n > 1) || sizes.is_some_and(|(world, here)| world > here);
    Named { run, by, job, restarts, why, unnamed: unnamed.0, several_nodes }
}

/// What an environment alone decides: a name or a job.
pub fn name_by_environment(env: &BTreeMap<String, String>) -> Option<Named> {
    let chain = [Process { env: env.clone(), ..Process::default() }];
    Some(name(&chain)).filter(|named| matches!(named.by, By::Name | By::Job | By::Launcher))
}

/// What distinguishes one training of a job from another at the same time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marks {
    /// Of the process, and of what it forked.
    pub process: String,
    /// Of what gave all ranks of this node theirs.
    pub ranks: String,
}

/// `None` where nothing is known of the process.
pub fn marks(chain: &[Process]) -> Option<Marks> {
    let mark = |at: usize| Some(format!("{:08x}", hash(&chain.get(at)?.mark)));
    Some(Marks { process: mark(first_of(chain, is_forked))?, ranks: mark(leader(chain))? })
}

/// The run of a training beside the one that has the run of their job.
pub fn beside(run: &str, mark: &str) -> String {
    let room = MAX_CHARS.saturating_sub(mark.chars().count() + 1);
    format!("{}.{mark}", clip(run, room))
}

/// The run of a job, by what is known of the job alone.
pub fn name_of_job(name: Option<&str>, id: &str) -> String {
    joined(name.unwrap_or("job"), id)
}

type Answer = (String, By, String);

fn given(env: Env<'_>) -> Option<Answer> {
    let own = env.get(NAME).filter(|_| env.get(NAMED_BY).is_none()).map(|name| (NAME, name));
    let (variable, name) =
        own.or_else(|| TRACKERS.iter().find_map(|variable| Some((*variable, env.get(variable)?))))?;
    Some((clip(&name, MAX_CHARS), By::Name, format!("named by {variable}")))
}

fn of_job(env: Env<'_>, chain: &[Process], job: Option<&Job>) -> Option<Answer> {
    let job = job?;
    let why = match &job.name {
        Some(name) => format!("job {} ({}), named {name}", job.id, job.variable),
        None => format!("job {} ({})", job.id, job.variable),
    };
    let name = job.name.clone().unwrap_or_else(|| title(env, chain));
    Some((joined(&name, &job.short), By::Job, why))
}

fn of_launcher(env: Env<'_>) -> Option<Answer> {
    let run = clip(&env.get(NAME)?, MAX_CHARS);
    Some((run, By::Launcher, "named by the stepwatch run that started it".to_owned()))
}

fn of_launch(env: Env<'_>, chain: &[Process]) -> Option<Answer> {
    let own = |variable: &&'static str| {
        let id = env.get(variable).filter(|id| id != SHARED_LAUNCH)?;
        Some((*variable, id))
    };
    let (variable, id) = LAUNCHES.iter().find_map(own)?;
    let why = format!("launch {id} ({variable})");
    Some((joined(&title(env, chain), &schedulers::short(&id)), By::Launch, why))
}

/// Ranks of several nodes share no process, but all of them are given the address where they meet.
fn of_meeting(env: Env<'_>, chain: &[Process]) -> Option<Answer> {
    let world = env.number(WORLDS)?;
    let here = env.number(LOCAL_WORLDS).unwrap_or(1);
    let address = env.get("MASTER_ADDR").filter(|a| !is_loopback(a)).filter(|_| world > here)?;
    // Agents that start their ranks again may give them another port.
    let agents = || chain.iter().take(leader(chain) + 1).skip(1).find_map(|p| wrapper::port(&p.argv));
    let lasting = env.get(ENDPOINT).map(|place| wrapper::port_of(&place).to_owned()).or_else(agents);
    let place = match lasting.or_else(|| env.get("MASTER_PORT")) {
        Some(port) => format!("{address}-{port}"),
        None => address,
    };
    let why = format!("{world} ranks of several nodes that meet at {place} (MASTER_ADDR, MASTER_PORT)");
    Some((joined(&title(env, chain), &place), By::Meeting, why))
}

fn of_script(env: Env<'_>, chain: &[Process]) -> Answer {
    let nothing = Process::default();
    let leader = chain.get(leader(chain)).unwrap_or(&nothing);
    let started = stamp(leader.started);
    let id = format!("{started}-{:08x}", hash(&leader.mark));
    let script = title(env, chain);
    let why = format!("{script}, started {started} UTC, with no name and no job");
    (joined(&script, &id), By::Script, why)
}

/// What the run is called where nothing but a number would distinguish it from others.
fn title(env: Env<'_>, chain: &[Process]) -> String {
    let script = || chain.iter().take(leader(chain) + 1).find_map(|p| script_of(&p.argv));
    env.get(TITLE).or_else(script).unwrap_or_else(|| "run".to_owned())
}

/// The process that started every process of this run on this node: the one itself, or an ancestor
/// that gave it its rank or forked it.
fn leader(chain: &[Process]) -> usize {
    first_of(chain, |process, parent| is_forked(process, parent) || is_ranked(process, parent))
}

/// The last ancestor that is `one` with its child, as all between are.
fn first_of(chain: &[Process], one: impl Fn(&Process, &Process) -> bool) -> usize {
    chain.iter().zip(chain.iter().skip(1)).take_while(|(process, parent)| one(process, parent)).count()
}

/// A worker of `multiprocessing`, or a fork, which has its parent's command line.
fn is_forked(process: &Process, parent: &Process) -> bool {
    let worker = |word: &String| {
        word == "--multiprocessing-fork"
            || word.contains("multiprocessing.forkserver")
            || word.contains("multiprocessing.spawn")
    };
    process.argv.iter().any(worker)
        || (!process.argv.is_empty() && process.argv == parent.argv && is_python(&process.argv))
}

/// Whether the parent made this process one of its ranks. A shell in which a user set a rank has
/// started one process, unless it declares more.
fn is_ranked(process: &Process, parent: &Process) -> bool {
    let has_own = |rank: &&str| {
        let own = process.env.get(*rank).filter(|v| !v.is_empty());
        own.is_some() && own != parent.env.get(*rank)
    };
    let several = || Env(&process.env).number(WORLDS).is_some_and(|n| n > 1);
    RANKS.iter().any(has_own) && (!script::is_host(&parent.argv) || several())
}

fn restarts(env: Env<'_>) -> Option<u32> {
    let counts = RESTARTS.iter().filter_map(|variable| env.get(variable)?.parse::<u32>().ok());
    counts.reduce(u32::saturating_add)
}

/// `name-id`, of which the end is never cut.
fn joined(name: &str, id: &str) -> String {
    let id = clip(id, MAX_CHARS / 2);
    let room = MAX_CHARS.saturating_sub(id.chars().count() + 1);
    format!("{}-{id}", clip(name, room))
}

fn clip(text: &str, limit: usize) -> String {
    text.chars().filter(|c| !c.is_control()).take(limit).collect()
}

fn is_loopback(address: &str) -> bool {
    address.starts_with("127.") || matches!(address, "localhost" | "::1" | "0.0.0.0" | "::")
}

/// FNV-1a, folded to 32 bits: a few characters that two processes do not share by accident.
fn hash(text: &str) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in text.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    (hash ^ (hash >> 32)) & 0xffff_ffff
}

/// `20261122-223542`, in UTC.
fn stamp(unix: f64) -> String {
    let seconds = if unix.is_finite() { unix.clamp(0.0, 253_402_300_799.0) as i64 } else { 0 };
    let (day, time) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days since 0000-03-01, in eras of 400 years: the proleptic Gregorian calendar.
    let days = day + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let date = of_year - (153 * month + 2) / 5 + 1;
    let (month, carried) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year + era * 400 + carried;
    let (hour, minute, second) = (time / 3_600, time / 60 % 60, time % 60);
    format!("{year:04}{month:02}{date:02}-{hour:02}{minute:02}{second:02}")
}

#[cfg(test)]
mod tests;
