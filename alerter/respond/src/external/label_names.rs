//! The names of labels that say what an alert is about.

/// Labels that say which run an alert is about.
pub const RUN_LABELS: &[&str] = &["run", "run_name", "run_id"];
/// Labels that say which node an alert is about. `instance` is where something was scraped, which
/// is on the node unless another label is more precise.
pub const NODE_LABELS: &[&str] =
    &["node", "nodename", "kubernetes_node", "node_name", "Hostname", "hostname", "instance"];
/// Labels that say which job of the scheduler an alert is about, as in `gpu_job_info` and series
/// joined with it. Prometheus' own `job` is not among them: it is the name of a scrape.
pub const JOB_LABELS: &[&str] = &["exported_job", "job_id", "slurm_job_id", "slurm_job", "jobid"];
