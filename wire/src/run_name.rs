//! The run that a process belongs to. The client, the launcher, tails, discovery and telemetry use
//! this one rule.
//!
//! 1. A given name: `Run("name")`, `--run`, `run:` of a tail, `STEPWATCH_RUN`, or the id that an
//!    experiment tracker resumes.
//! 2. Otherwise the name and id of its job: `pretrain-101`.
//! 3. Otherwise its script and start time: `train-20261122-223542-3fa9c1d2`. The suffix is a hash
//!    of the node, the process and its start.
//!
//! A restart without a new job (a requeue, torchrun) changes neither name nor job, so the run stays
//! and its attempt rises. Every rank must find the same answer by itself, on any node. By 1 and 2
//! it does. By 3, ranks that one process of this node started use that process's start, and ranks
//! of several nodes use the address where they meet.
//!
//! `run_name/cases.json` tests that this implementation and the Python client agree.

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

/// The rule in words, for the documentation.
pub const RULE: &str = include_str!("run_name/rule.md");

/// The most characters of a run name.
pub const MAX_CHARS: usize = 128;

/// Variables with the id of a run that a tracker resumes.
const TRACKERS: &[&str] = &["WANDB_RUN_ID", "MLFLOW_RUN_ID"];
/// A variable that replaces the name of the script.
const TITLE: &str = "WANDB_NAME";
/// Variables with an id that one launch gives to all its processes, on every node.
const LAUNCHES: &[&str] = &["TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE"];
/// Variables that count restarts of a job's processes. Each restarts at 0 when the one before it
/// rises.
const RESTARTS: &[&str] = &["SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT"];
/// Variables that a launcher sets to a different value for every rank.
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
/// `LOCAL_SIZE` is set by DeepSpeed (`deepspeed/launcher/launch.py`), which sets `MASTER_ADDR` to
/// the node's own address even for a single node.
const LOCAL_WORLDS: &[&str] = &[
    "LOCAL_WORLD_SIZE",
    "LOCAL_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MV2_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
];
/// The constant id that DeepSpeed's launcher gives to every elastic training.
const SHARED_LAUNCH: &str = "123456789";
const MEETING: &[&str] = &["MASTER_ADDR", "MASTER_PORT", ENDPOINT];
/// A variable with the rendezvous endpoint of torchrun's agents.
const ENDPOINT: &str = "PET_RDZV_ENDPOINT";
const NODES: &[&str] = &["SLURM_JOB_NUM_NODES", "SLURM_NNODES"];

/// Whether the rule reads this variable. Other variables may contain secrets and are not read.
pub fn is_asked(variable: &str) -> bool {
    [NAME, NAMED_BY, TITLE].contains(&variable)
        || [TRACKERS, LAUNCHES, RESTARTS, RANKS, WORLDS, LOCAL_WORLDS, MEETING, NODES]
            .iter()
            .any(|of| of.contains(&variable))
        || schedulers::is_asked(variable)
}

/// The part of the rule that named a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum By {
    /// By a given name.
    Name,
    Job,
    /// By `stepwatch run`, which passes its own result on.
    Launcher,
    /// By an id that a launcher gave to all its processes.
    Launch,
    /// By the address where ranks of several nodes meet.
    Meeting,
    Script,
}

/// The result of the rule.
#[derive(Debug, Clone, PartialEq)]
pub struct Named {
    pub run: String,
    pub by: By,
    pub job: Option<Job>,
    /// The number of restarts that launchers and schedulers declare.
    pub restarts: Option<u32>,
    /// The reason, for people.
    pub why: String,
    /// The name without a given name, which connects the process to the other processes of its job.
    pub unnamed: String,
    /// Whether the process declares that its run uses other nodes as well.
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

/// Applies the rule. `chain` is the process, its parent and so on, as far as they are readable.
pub fn name(chain: &[Process]) -> Named {
    // Once, as the Python client does: a user can write `stepwatch run` before it again and again.
    let unwrapped = chain.first().and_then(wrapper::unwrapped);
    let unwrapped = unwrapped.map(|command| [&[command], &chain[1..]].concat());
    let chain = unwrapped.as_deref().unwrap_or(chain);
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

/// The result of an environment alone, if it has a name or a job.
pub fn name_by_environment(env: &BTreeMap<String, String>) -> Option<Named> {
    let chain = [Process { env: env.clone(), ..Process::default() }];
    Some(name(&chain)).filter(|named| matches!(named.by, By::Name | By::Job | By::Launcher))
}

/// Hashes that distinguish concurrent trainings of one job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marks {
    /// The hash of the process, or of the ancestor that forked it.
    pub process: String,
    /// The hash of the process that started all ranks on this node.
    pub ranks: String,
}

/// Returns the hashes of a process; `None` if `chain` is empty.
pub fn marks(chain: &[Process]) -> Option<Marks> {
    let mark = |at: usize| Some(format!("{:08x}", hash(&chain.get(at)?.mark)));
    Some(Marks { process: mark(first_of(chain, is_forked))?, ranks: mark(leader(chain))? })
}

/// The run name of a training when another training already has the run of the job.
pub fn beside(run: &str, mark: &str) -> String {
    let room = MAX_CHARS.saturating_sub(mark.chars().count() + 1);
    format!("{}.{mark}", clip(run, room))
}

/// The run name of a job, from the name and id of the job alone.
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

/// Ranks of several nodes share no process, but all have the address where they meet.
fn of_meeting(env: Env<'_>, chain: &[Process]) -> Option<Answer> {
    let world = env.number(WORLDS)?;
    let here = env.number(LOCAL_WORLDS).unwrap_or(1);
    let address = env.get("MASTER_ADDR").filter(|a| !is_loopback(a)).filter(|_| world > here)?;
    // Agents that restart their ranks may give them another port.
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

/// The word in a run name that otherwise contains only a number.
fn title(env: Env<'_>, chain: &[Process]) -> String {
    let script = || chain.iter().take(leader(chain) + 1).find_map(|p| script_of(&p.argv));
    env.get(TITLE).or_else(script).unwrap_or_else(|| "run".to_owned())
}

/// The index of the process that started every process of this run on this node: this one, or an
/// ancestor that gave it its rank or forked it.
fn leader(chain: &[Process]) -> usize {
    first_of(chain, |process, parent| is_forked(process, parent) || is_ranked(process, parent))
}

/// The index of the last ancestor for which `one` holds with its child, and for all in between.
fn first_of(chain: &[Process], one: impl Fn(&Process, &Process) -> bool) -> usize {
    chain.iter().zip(chain.iter().skip(1)).take_while(|(process, parent)| one(process, parent)).count()
}

/// Whether this is a worker of `multiprocessing`, or a fork, which has its parent's command line.
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
/// started only one process, unless the process declares more.
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

/// Joins `name-id`. Only the name is cut to the limit; the id keeps half of it.
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

/// FNV-1a, folded to 32 bits, so that two processes are unlikely to share a suffix.
fn hash(text: &str) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in text.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    (hash ^ (hash >> 32)) & 0xffff_ffff
}

/// Formats a Unix time in UTC: `20261122-223542`.
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
