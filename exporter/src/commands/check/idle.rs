//! Whether the node is idle: what `--active` asks before it puts load on it. It is no check by
//! itself, because a node with a job is as it should be.

use std::collections::BTreeSet;

use super::item::Check;
use super::node::Node;
use super::report::{Finding, Findings, Verdict};
use crate::collectors::gpu;
use crate::collectors::job::allocation;

pub(super) const CHECK: Check =
    Check { name: "idle", about: "no job has the node", needs: &["gpu", "job"], run };

/// The job within which this process runs: it may test the node that it was given.
const OWN_JOB: &[&str] = &["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"];
/// The most jobs and GPUs that are named.
const NAMED: usize = 4;

fn run(node: &Node<'_>) -> Findings {
    let own: Vec<String> = OWN_JOB.iter().filter_map(|name| std::env::var(name).ok()).collect();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    occupied(node, &own, &host)
}

/// The findings, where `own` are the names of this process's job, and `host` is its host name,
/// which is that of its pod.
fn occupied(node: &Node<'_>, own: &[String], host: &str) -> Findings {
    let mut found = Findings::default();
    // The GPUs of the pod of this process were given to it.
    let others = node.rows(&allocation::INFO).filter(|row| {
        let is_own_pod = row.label("scheduler") == "kubernetes" && row.label("name") == host;
        !is_own_pod && !own.iter().any(|own| own == row.label("job"))
    });
    let others: Vec<&str> = others.map(|row| row.label("job")).collect();
    if !others.is_empty() {
        found.unknown(format!("a job is on the node: {}", some(&others)));
    }
    let pods = node.rows(&allocation::GPU_POD).map(|row| row.label("pod")).filter(|pod| *pod != host);
    let pods: Vec<&str> = pods.collect::<BTreeSet<_>>().into_iter().collect();
    if !pods.is_empty() {
        found.unknown(format!("a pod has GPUs of the node: {}", some(&pods)));
    }
    let busy: Vec<String> =
        node.set(&gpu::PROCESSES).map(|row| node.gpu(row.label("gpu"))).take(NAMED + 1).collect();
    if !busy.is_empty() {
        let busy: Vec<&str> = busy.iter().map(String::as_str).collect();
        found.unknown(format!("a process computes on {}", some(&busy)));
    }
    found.or_ok(|| "no job has the node, and no process computes on its GPUs".into())
}

fn some(names: &[&str]) -> String {
    let shown: Vec<&str> = names.iter().take(NAMED).copied().collect();
    let more = if names.len() > NAMED { " and others" } else { "" };
    format!("{}{more}", shown.join(", "))
}

/// Why the node may not be put under load; `None` if it is idle. What could not be determined
/// counts as a job.
pub(super) fn refusal(findings: &[Finding]) -> Option<String> {
    let of_it = |f: &&Finding| {
        let device = f.device.as_deref().unwrap_or_default();
        f.check == CHECK.name
            || (f.check == super::collectors::NAME
                && (CHECK.needs.contains(&device) || device.is_empty() || device.starts_with("GPU ")))
    };
    findings.iter().filter(of_it).find(|f| f.verdict != Verdict::Ok).map(|f| f.text.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::samples::Samples;

    const JOB: [&str; 9] = ["4711", "train", "al", "", "gpu", "", "", "", "slurm"];
    const POD: [&str; 9] = ["ns/me", "me", "", "", "ns", "", "", "", "kubernetes"];

    fn says(samples: Samples, own: &[&str]) -> Option<String> {
        let config = Config::default();
        let node = Node::seen(&config, None, samples, Vec::new());
        let own: Vec<String> = own.iter().map(|job| (*job).to_owned()).collect();
        let findings: Vec<Finding> = occupied(&node, &own, "me").named(CHECK.name).collect();
        refusal(&findings)
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
        for (findings, refused) in [
            (vec![finding("collectors", Verdict::Unhealthy, None)], true),
            (vec![finding("collectors", Verdict::Unknown, Some("gpu"))], true),
            (vec![finding("collectors", Verdict::Unhealthy, Some("GPU 3"))], true),
            (vec![finding("collectors", Verdict::Unknown, Some("edac"))], false),
            (vec![finding("ecc", Verdict::Unhealthy, Some("GPU-1"))], false),
            (vec![finding("idle", Verdict::Unknown, None)], true),
            (
                vec![finding("idle", Verdict::Ok, None), finding("collectors", Verdict::Ok, Some("job"))],
                false,
            ),
            (vec![], false),
        ] {
            assert_eq!(refusal(&findings).is_some(), refused, "{findings:?}");
        }
    }
}
