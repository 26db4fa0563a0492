//! Finds the job of a process in the variables that schedulers set.

use super::process::Env;

/// A scheduler's job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// The scheduler's id, which all processes of the job share.
    pub id: String,
    /// The form of the id in the name of the run.
    pub short: String,
    pub name: Option<String>,
    /// The variable that contains the id.
    pub variable: &'static str,
}

/// Variables that a submitter sets for other schedulers, for example from the labels of a pod.
const OURS: &[&str] = &["STEPWATCH_JOB_ID", "STEPWATCH_JOB_NAME"];
/// The id of a heterogeneous job, which all its components share, then the id of the job.
const SLURM: &[&str] = &["SLURM_HET_JOB_ID", "SLURM_JOB_ID_HET_GROUP_0", "SLURM_JOB_ID", "SLURM_JOBID"];
const SLURM_ARRAY: &[&str] = &["SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"];
const SLURM_NAME: &[&str] = &["SLURM_JOB_NAME_HET_GROUP_0", "SLURM_JOB_NAME"];
const PBS: &[&str] = &["PBS_JOBID", "PBS_JOBNAME"];
const LSF: &[&str] = &["LSB_JOBID", "LSB_JOBINDEX", "LSB_JOBNAME"];
/// Grid Engine. Others also set `JOB_ID`, but only Grid Engine sets the task (or `undefined`).
const SGE: &[&str] = &["JOB_ID", "SGE_TASK_ID", "JOB_NAME"];

pub(super) fn is_asked(variable: &str) -> bool {
    [OURS, SLURM, SLURM_ARRAY, SLURM_NAME, PBS, LSF, SGE].iter().any(|of| of.contains(&variable))
}

pub(super) fn find(env: Env<'_>) -> Option<Job> {
    ours(env).or_else(|| slurm(env)).or_else(|| pbs(env)).or_else(|| lsf(env)).or_else(|| sge(env))
}

fn ours(env: Env<'_>) -> Option<Job> {
    let id = env.get("STEPWATCH_JOB_ID")?;
    Some(Job { short: short(&id), id, name: env.get("STEPWATCH_JOB_NAME"), variable: "STEPWATCH_JOB_ID" })
}

fn slurm(env: Env<'_>) -> Option<Job> {
    let (variable, id) = SLURM.iter().find_map(|variable| Some((*variable, env.get(variable)?)))?;
    let name = SLURM_NAME.iter().find_map(|variable| env.get(variable));
    let array = env.get("SLURM_ARRAY_JOB_ID").zip(env.get("SLURM_ARRAY_TASK_ID"));
    let short = array.map_or_else(|| id.clone(), |(job, task)| format!("{job}_{task}"));
    Some(Job { id, short, name, variable })
}

/// PBS: the id is `1234.server`, or `1234[7].server` for a task of an array.
fn pbs(env: Env<'_>) -> Option<Job> {
    let id = env.get("PBS_JOBID")?;
    let number = id.split('.').next().unwrap_or_default();
    let short = number.replace('[', "_").replace(']', "");
    Some(Job { short, id, name: env.get("PBS_JOBNAME"), variable: "PBS_JOBID" })
}

/// LSF: the name of an array is `name[1-10]`.
fn lsf(env: Env<'_>) -> Option<Job> {
    let id = env.get("LSB_JOBID")?;
    let index = env.get("LSB_JOBINDEX").filter(|i| i != "0");
    let short = index.map_or_else(|| id.clone(), |index| format!("{id}_{index}"));
    let name = env.get("LSB_JOBNAME").and_then(|n| Some(n.split('[').next()?.to_owned()));
    Some(Job { id: short.clone(), short, name: name.filter(|n| !n.is_empty()), variable: "LSB_JOBID" })
}

fn sge(env: Env<'_>) -> Option<Job> {
    let (id, task) = (env.get("JOB_ID")?, env.get("SGE_TASK_ID")?);
    let short = if task == "undefined" { id } else { format!("{id}_{task}") };
    Some(Job { id: short.clone(), short, name: env.get("JOB_NAME"), variable: "JOB_ID" })
}

/// The first part of a UUID, which is enough after a name; any other id as it is.
pub(super) fn short(id: &str) -> String {
    let parts: Vec<&str> = id.split('-').collect();
    let uuid = parts.iter().map(|p| p.len()).eq([8, 4, 4, 4, 12])
        && parts.iter().all(|p| p.bytes().all(|b| b.is_ascii_hexdigit()));
    if uuid { parts[0].to_owned() } else { id.to_owned() }
}
