//! The names of labels that say what an alert is about.

/// Labels that say which run an alert is about.
pub const RUN_LABELS: &[&str] = &["run", "run_name", "run_id"];
/// Labels that say which node. `instance` is where something was scraped, which is on the node
/// unless another label knows better.
pub const NODE_LABELS: &[&str] =
    &["node", "nodename", "kubernetes_node", "node_name", "Hostname", "hostname", "instance"];
/// Labels that say which job of the scheduler, as `gpu_job_info` and what is joined with it has
/// them. Prometheus' own `job` is none: it is the name of a scrape.
pub const JOB_LABELS: &[&str] = &["exported_job", "job_id", "slurm_job_id", "slurm_job", "jobid"];
