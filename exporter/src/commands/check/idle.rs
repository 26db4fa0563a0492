//! Whether the node is idle: what `--active` asks before it puts load on it. It is no check by
//! itself, because a node with a job is as it should be.
//!
//! What cannot be seen counts as a job. So the sources of jobs and of GPU processes have to be
//! there and answer, and whether a node without them is idle is not known.

use std::collections::BTreeSet;
use std::fs;

use super::item::Check;
use super::node::Node;
use super::report::{Finding, Findings, Verdict};
use crate::collectors::gpu;
use crate::collectors::job::allocation;
use crate::node_tests::MARK;
use crate::processes::{self, Tree};
use crate::roots::Roots;
use crate::schedule::State;

pub(super) const CHECK: Check =
    Check { name: NAME, about: "no job has the node", needs: &["gpu", "job"], run };
/// The part that can be asked while a test computes on the GPUs.
pub(super) const JOBS: Check = Check { name: NAME, about: "no job began", needs: &["job"], run: jobs };

pub(super) const NAME: &str = "idle";
/// The job within which this process runs: it may test the node that it was given.
const OF_A_JOB: &[&str] = &["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"];
/// The name of the pod of this process, where that differs from its host name.
const OWN_POD: &str = "STEPWATCH_POD";
/// The most jobs and GPUs that are named.
const NAMED: usize = 4;
/// Users below it, and nobody, are those of the system: they have no jobs.
const FIRST_USER: u32 = 1000;
const NOBODY: u32 = 65_534;
/// The processes that compute on GPUs of AMD, each a directory.
const KFD: &str = "class/kfd/kfd/proc";

/// What this process was given.
struct Own {
    jobs: Vec<String>,
    pod: String,
}

impl Own {
    fn of_this_process() -> Self {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self {
            jobs: OF_A_JOB.iter().filter_map(|name| set(name)).collect(),
            pod: set(OWN_POD).unwrap_or_else(host),
        }
    }
}

fn run(node: &Node<'_>) -> Findings {
    let mut found = occupied(node, &Own::of_this_process());
    computes(node, &mut found);
    found.or_ok(|| "no job has the node, and no process computes on its GPUs".into())
}

fn jobs(node: &Node<'_>) -> Findings {
    occupied(node, &Own::of_this_process()).or_ok(|| "no job has the node".into())
}

/// The findings about jobs.
fn occupied(node: &Node<'_>, own: &Own) -> Findings {
    let mut found = Findings::default();
    // The GPUs of the pod of this process were given to it.
    let others = node.rows(&allocation::INFO).filter(|row| {
        let is_own_pod = row.label("scheduler") == "kubernetes" && row.label("name") == own.pod;
        !is_own_pod && !own.jobs.iter().any(|own| own == row.label("job"))
    });
    let others: Vec<&str> = others.map(|row| row.label("job")).collect();
    if !others.is_empty() {
        found.unknown(format!("a job is on the node: {}", some(&others)));
    }
    let pods = node.rows(&allocation::GPU_POD).map(|row| row.label("pod")).filter(|pod| *pod != own.pod);
    let pods: Vec<&str> = pods.collect::<BTreeSet<_>>().into_iter().collect();
    if !pods.is_empty() {
        found.unknown(format!("a pod has GPUs of the node: {}", some(&pods)));
    }
    if node.state("job") != Some(State::Healthy) {
        found.unknown("jobs cannot be seen on this node: neither Slurm's control groups nor a kubelet");
    }
    let down = node.rows(&allocation::SOURCE_UP).find(|row| row.value == 0.0);
    if let Some(source) = down {
        found.unknown(format!("jobs cannot be seen: {} does not answer", source.label("source")));
    }
    if node.set(&allocation::UNRESOLVED).next().is_some() {
        found.unknown("a job or a pod holds a device that is none of the known GPUs");
    }
    if let Some(why) = claimed(&node.roots, &own.jobs) {
        found.unknown(why);
    }
    found
}

/// Adds the findings about processes on GPUs.
fn computes(node: &Node<'_>, found: &mut Findings) {
    let busy: Vec<String> =
        node.set(&gpu::PROCESSES).map(|row| node.gpu(row.label("gpu"))).take(NAMED + 1).collect();
    if !busy.is_empty() {
        let busy: Vec<&str> = busy.iter().map(String::as_str).collect();
        found.unknown(format!("a process computes on {}", some(&busy)));
    }
    let amd = fs::read_dir(node.roots.sys(KFD)).ok().map(Iterator::count);
    if amd.is_some_and(|count| count > 0) {
        found.unknown("a process computes on a GPU of AMD");
    }
    let seen = match node.state("gpu") {
        Some(State::Healthy) => true,
        Some(State::Unsupported) => amd.is_some(),
        _ => false,
    };
    if !seen {
        found.unknown("processes on GPUs cannot be seen on this node");
    }
}

/// Why a process on this node is of another job: the variables of its scheduler say so, also where
/// the scheduler uses no control groups, and in prologs and epilogs. So do those of the tools of
/// another test, which has another lock if it has another configuration.
fn claimed(roots: &Roots, own: &[String]) -> Option<String> {
    let mut hidden = false;
    let tester = rustix::process::getppid().map_or(0, |parent| parent.as_raw_nonzero().get());
    let own_tools = format!("{tester}-");
    for pid in Tree::read(roots).pids() {
        let Ok(environ) = processes::environ(roots, pid) else {
            let user = processes::user(roots, pid);
            hidden |= user.is_some_and(|user| user >= FIRST_USER && user != NOBODY);
            continue;
        };
        for variable in environ.split(|byte| *byte == 0) {
            let Some((name, job)) = std::str::from_utf8(variable).ok().and_then(|v| v.split_once('=')) else {
                continue;
            };
            if name == MARK && !job.starts_with(&own_tools) {
                return Some("another test runs on this node".to_owned());
            }
            if OF_A_JOB.contains(&name) && !job.is_empty() && !own.iter().any(|own| own == job) {
                return Some(format!("a process of job {job} is on the node"));
            }
        }
    }
    hidden.then(|| "processes of other users cannot be looked at: run the check as root".to_owned())
}

fn some(names: &[&str]) -> String {
    let shown: Vec<&str> = names.iter().take(NAMED).copied().collect();
    let more = if names.len() > NAMED { " and others" } else { "" };
    format!("{}{more}", shown.join(", "))
}

/// Why the node may not be put under load; `None` if it is idle. It has to be found idle: what
/// could not be determined counts as a job.
pub(super) fn refusal(findings: &[Finding]) -> Option<String> {
    let of_it = |f: &&Finding| {
        let device = f.device.as_deref().unwrap_or_default();
        f.check == NAME
            || (f.check == super::collectors::NAME
                && (CHECK.needs.contains(&device) || device.is_empty() || device.starts_with("GPU ")))
    };
    if let Some(wrong) = findings.iter().filter(of_it).find(|f| f.verdict != Verdict::Ok) {
        return Some(wrong.text.clone());
    }
    let idle = findings.iter().any(|f| f.check == NAME && f.verdict == Verdict::Ok);
    (!idle).then(|| "neither jobs nor processes on GPUs can be seen on this node".to_owned())
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::config::Config;
    use crate::samples::Samples;

    const JOB: [&str; 9] = ["4711", "train", "al", "", "gpu", "", "", "", "slurm"];
    const POD: [&str; 9] = ["ns/me", "me", "", "", "ns", "", "", "", "kubernetes"];

    const BOTH: &[(&str, State)] = &[("gpu", State::Healthy), ("job", State::Healthy)];

    fn says(samples: Samples, own: &[&str]) -> Option<String> {
        let nowhere = tempfile::tempdir().unwrap();
        looked(samples, own, BOTH, nowhere.path())
    }

    /// What is said of a node whose system files are in `at`.
    fn looked(samples: Samples, own: &[&str], states: &[(&'static str, State)], at: &Path) -> Option<String> {
        let config = Config::default();
        let roots = Roots { sysfs: at.into(), procfs: at.into(), ..Roots::default() };
        let mut node = Node::seen(&config, None, samples, Vec::new());
        node.roots = Arc::new(roots);
        for (name, state) in states {
            node.set_state(name, *state);
        }
        let jobs = own.iter().map(|job| (*job).to_owned()).collect();
        let mut found = occupied(&node, &Own { jobs, pod: "me".to_owned() });
        computes(&node, &mut found);
        let findings: Vec<Finding> = found.or_ok(|| "idle".into()).named(NAME).collect();
        refusal(&findings)
    }

    #[test]
    fn a_source_that_is_not_there_or_down_counts_as_a_job() {
        let nowhere = tempfile::tempdir().unwrap();
        let at = nowhere.path();
        let none = Samples::default;
        for states in [
            &[][..],
            &[("gpu", State::Healthy)],
            &[("gpu", State::Healthy), ("job", State::Unsupported)],
            &[("gpu", State::Healthy), ("job", State::Disabled)],
            &[("gpu", State::Disabled), ("job", State::Healthy)],
            &[("gpu", State::Unsupported), ("job", State::Healthy)],
        ] {
            assert!(looked(none(), &[], states, at).unwrap().contains("cannot be seen"), "{states:?}");
        }
        let mut samples = Samples::default();
        samples.set(&allocation::SOURCE_UP, &["kubelet"], false);
        assert_eq!(says(samples, &[]).unwrap(), "jobs cannot be seen: kubelet does not answer");
        let mut samples = Samples::default();
        samples.set(&allocation::UNRESOLVED, &["kubelet"], 1u64);
        assert!(says(samples, &[]).unwrap().contains("none of the known GPUs"));
        // GPUs of AMD.
        let amd = &[("gpu", State::Unsupported), ("job", State::Healthy)];
        fs::create_dir_all(at.join(KFD)).unwrap();
        assert_eq!(looked(none(), &[], amd, at), None);
        fs::create_dir(at.join(KFD).join("4711")).unwrap();
        assert_eq!(looked(none(), &[], amd, at).unwrap(), "a process computes on a GPU of AMD");
    }

    #[test]
    fn the_variables_of_a_scheduler_in_any_process_are_a_job() {
        let proc = tempfile::tempdir().unwrap();
        let at = proc.path().join("77");
        fs::create_dir(&at).unwrap();
        // The time at which it started is the 22nd field.
        let stat = format!("77 (python) S 1 {}\n", "0 ".repeat(17) + "5 0 0");
        fs::write(at.join("stat"), stat).unwrap();
        fs::write(at.join("status"), "Name:\tpython\nUid:\t1001\t1001\t1001\t1001\n").unwrap();
        let roots = Roots { procfs: proc.path().into(), ..Roots::default() };
        let own = ["4711".to_owned()];
        for (environ, job) in [
            ("PATH=/bin\0SLURM_JOB_ID=4712\0", Some("4712")),
            ("PBS_JOBID=9.head\0", Some("9.head")),
            ("LSB_JOBID=5\0", Some("5")),
            ("SLURM_JOB_ID=4711\0", None),
            ("SLURM_JOB_ID=\0MY_SLURM_JOB_ID=3\0", None),
        ] {
            fs::write(at.join("environ"), environ).unwrap();
            let said = job.map(|job| format!("a process of job {job} is on the node"));
            assert_eq!(claimed(&roots, &own), said, "{environ}");
        }
        for (tester, other) in [(0, true), (std::os::unix::process::parent_id(), false)] {
            fs::write(at.join("environ"), format!("STEPWATCH_NODE_TEST={tester}-1-00ff\0")).unwrap();
            assert_eq!(claimed(&roots, &own).is_some(), other, "{tester}");
        }
        fs::remove_file(at.join("environ")).unwrap();
        assert!(claimed(&roots, &own).unwrap().contains("run the check as root"));
    }

    #[test]
    fn a_job_a_pod_or_a_process_is_not_disturbed() {
        assert_eq!(says(Samples::default(), &[]), None);
        let mut samples = Samples::default();
        samples.set(&allocation::INFO, &JOB, true);
        samples.set(&gpu::PROCESSES, &["GPU-1"], 0u64);
        assert_eq!(says(samples.clone(), &[]).unwrap(), "a job is on the node: 4711");
        assert_eq!(says(samples.clone(), &["4711"]), None, "a job may test its own node");
        samples.set(&gpu::PROCESSES, &["GPU-2"], 3u64);
        assert_eq!(
            says(samples, &["4711"]).unwrap(),
            "a process computes on GPU GPU-2",
            "but not while it trains"
        );
        let mut samples = Samples::default();
        samples.set(&allocation::INFO, &POD, true);
        samples.set(&allocation::GPU_POD, &["GPU-1", "", "ns", "me", "check"], true);
        assert_eq!(says(samples.clone(), &[]), None, "the pod of the test");
        samples.set(&allocation::GPU_POD, &["GPU-2", "", "ns", "other", "train"], true);
        assert_eq!(says(samples, &[]).unwrap(), "a pod has GPUs of the node: other");
    }

    #[test]
    fn what_could_not_be_seen_counts_as_a_job() {
        let finding = |check: &'static str, verdict, device: Option<&str>| Finding {
            device: device.map(str::to_owned),
            ..Finding::new(check, verdict, "why")
        };
        let idle = || finding("idle", Verdict::Ok, None);
        for (findings, refused) in [
            (vec![finding("collectors", Verdict::Unhealthy, None)], true),
            (vec![finding("collectors", Verdict::Unknown, Some("gpu"))], true),
            (vec![finding("collectors", Verdict::Unhealthy, Some("GPU 3"))], true),
            (vec![idle(), finding("collectors", Verdict::Unknown, Some("edac"))], false),
            (vec![idle(), finding("ecc", Verdict::Unhealthy, Some("GPU-1"))], false),
            (vec![finding("ecc", Verdict::Ok, None)], true),
            (vec![finding("idle", Verdict::Unknown, None)], true),
            (
                vec![finding("idle", Verdict::Ok, None), finding("collectors", Verdict::Ok, Some("job"))],
                false,
            ),
            (vec![], true),
        ] {
            assert_eq!(refusal(&findings).is_some(), refused, "{findings:?}");
        }
    }
}
