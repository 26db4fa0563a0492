//! Families of jobs.

use crate::family::Family;

const JOB: &[&str] = &["job"];

pub static INFO: Family = Family::gauge(
    "job_info",
    "",
    &["job", "name", "user", "account", "partition", "qos", "nodes", "array", "scheduler"],
    "Job of a scheduler that has processes or GPUs on this node; always 1",
);
pub(super) static GPU_JOB: Family = Family::gauge(
    "gpu_job_info",
    "",
    &["gpu", "gi", "job"],
    "GPU, or GPU instance of MIG, that a job was given; always 1",
);
pub static GPU_POD: Family = Family::gauge(
    "gpu_pod_info",
    "",
    &["gpu", "gi", "namespace", "pod", "container"],
    "GPU, or GPU instance of MIG, that a container of Kubernetes was given; always 1",
);
pub(super) static RUN_JOB: Family =
    Family::gauge("train_job_info", "", &["run", "job"], "Job that the run is part of; always 1");
pub(super) static START: Family = Family::gauge(
    "job_start_timestamp_seconds",
    "seconds",
    JOB,
    "Unix time at which the job started, as the scheduler reports it, or else at which its oldest process on this node did",
);
pub(super) static LIMIT: Family = Family::gauge(
    "job_time_limit_timestamp_seconds",
    "seconds",
    JOB,
    "Unix time at which the scheduler will end the job",
);
pub(super) static PROCESSES: Family =
    Family::gauge("job_processes", "", JOB, "Processes of the job on this node, by its control group");
pub(super) static GPUS: Family =
    Family::gauge("job_gpus", "", JOB, "GPUs, or parts of GPUs, of this node that the job was given");
pub(super) static RUNNING: Family =
    Family::gauge("job_running", "", &["scheduler"], "Jobs on this node, by their scheduler");
pub static SOURCE_UP: Family = Family::gauge(
    "job_source_up",
    "",
    &["source"],
    "Whether a source of job identity could be read; absent where it is not used",
);
pub(super) static SOURCE_FAILURES: Family = Family::counter(
    "job_source_failures_total",
    "",
    &["source", "reason"],
    "Failures to read a source of job identity",
);
pub(super) static UNREADABLE: Family = Family::gauge(
    "job_unreadable_processes",
    "",
    &[],
    "Processes of jobs whose environment this exporter may not read: it needs CAP_SYS_PTRACE for those of others",
);
pub static UNRESOLVED: Family = Family::gauge(
    "job_unresolved_devices",
    "",
    &["source"],
    "Devices that jobs or pods hold under a name that is none of a GPU of this node",
);
pub(super) static DROPPED: Family = Family::counter(
    "job_dropped_total",
    "",
    &["what"],
    "Jobs and containers left out because there were too many at a time, and forgotten claims of jobs that only processes name",
);

pub static FAMILIES: &[&Family] = &[
    &INFO,
    &GPU_JOB,
    &GPU_POD,
    &RUN_JOB,
    &START,
    &LIMIT,
    &PROCESSES,
    &GPUS,
    &RUNNING,
    &SOURCE_UP,
    &SOURCE_FAILURES,
    &UNREADABLE,
    &UNRESOLVED,
    &DROPPED,
];
