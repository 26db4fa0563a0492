//! Jobs of the schedulers: who has which GPUs, do their processes run, and do limits hold them
//! back?

use crate::head::{self, RUN_BOARD_OF_ROW, many};
use crate::layout::{Board, Chart, Row};
use crate::model::{Unit, Variable};
use crate::schedulers;
use crate::series::{Expr, of, scheduled};

pub(crate) fn board() -> Board {
    Board {
        uid: "stepwatch-jobs",
        title: "Stepwatch / Jobs",
        description: "Jobs of Slurm, Kubernetes, PBS and LSF, their GPUs, their processes and their limits; queues and nodes as Slurm and Kubernetes see them.",
        variables,
        annotations: || vec![head::incidents()],
        rows: vec![
            jobs(),
            users(),
            processes(),
            limits(),
            schedulers::slurm(),
            schedulers::kubernetes(),
            sight(),
        ],
    }
}

fn variables() -> Vec<Variable> {
    let mut all = head::of_fleet();
    all.push(many(
        "scheduled",
        "Scheduled job",
        r#"label_values(job_info{cluster=~"$cluster", instance=~"$instance"}, job)"#,
    ));
    all
}

/// GPUs of a job: one for each GPU, and each job that it was given to.
fn gpus_of_jobs() -> Expr {
    scheduled("gpu_job_info").max("instance, gpu, job")
}

/// What the GPUs of each job do.
fn on_gpus_of_jobs(name: &'static str) -> Expr {
    gpus_of_jobs().times("instance, gpu", &of(name).max("instance, gpu"))
}

/// With the name and the user of the job.
fn of_whom(expr: &Expr) -> Expr {
    expr.join("job", "name, user", &scheduled("job_info"))
}

fn jobs() -> Row {
    Row::open(
        "Which jobs run?",
        vec![
            Chart::number("Jobs", "How many jobs run?", Unit::Count)
                .width(6)
                .show(scheduled("job_info").max("job").count(""), "{{cluster}}"),
            Chart::number("GPUs of jobs", "How many GPUs were given to jobs?", Unit::Count)
                .width(6)
                .show(gpus_of_jobs().max("instance, gpu").count(""), "{{cluster}} given")
                .show(of("gpu_count").max("instance").sum(""), "{{cluster}} there"),
            Chart::number("Nodes of jobs", "How many nodes have a job?", Unit::Count)
                .width(6)
                .show(scheduled("job_info").max("instance").count(""), "{{cluster}}"),
            Chart::number("Runs found", "How many runs were found without configuration?", Unit::Count)
                .width(6)
                .show(of("job_discovered_processes").max("run").count(""), "{{cluster}}"),
            Chart::table("Largest jobs", "Who has the most GPUs?", Unit::Count)
                .show(of_whom(&scheduled("job_gpus").max("instance, job").sum("job").top()), "GPUs"),
            Chart::table("Longest jobs", "Which jobs have run for longest?", Unit::Seconds).show(
                of_whom(&scheduled("job_start_timestamp_seconds").min("job").age().top()),
                "running for",
            ),
            Chart::table("Jobs near their end", "Which jobs does the scheduler end soon?", Unit::Seconds)
                .show(scheduled("job_time_limit_timestamp_seconds").min("job").until().bottom(), "ends in"),
            Chart::table("Runs of jobs", "Which run belongs to which job?", Unit::Count)
                .facts(scheduled("train_job_info").max("run, job").top())
                .link("Dashboard of the run", RUN_BOARD_OF_ROW),
        ],
    )
}

fn users() -> Row {
    Row::open(
        "Who uses what?",
        vec![
            Chart::lines("GPUs by user", "Who has how many GPUs?", Unit::Count).stacked().from_zero().show(
                gpus_of_jobs().join("job", "user", &scheduled("job_info")).count("user").top(),
                "{{cluster}} {{user}}",
            ),
            Chart::lines(
                "Power by job",
                "Which job draws the most? Of a shared GPU each is shown all.",
                Unit::Watts,
            )
            .from_zero()
            .show(on_gpus_of_jobs("gpu_power_watts").sum("job").top(), "{{cluster}} {{job}}"),
            Chart::table(
                "Idle GPUs of jobs",
                "Which jobs leave their GPUs unused? The lowest means.",
                Unit::Ratio,
            )
            .show(of_whom(&on_gpus_of_jobs("gpu_utilization_ratio").avg("job").bottom()), "busy"),
            Chart::table("GPUs of pods", "Which container has which GPU?", Unit::Count)
                .facts(of("gpu_pod_info").max("instance, gpu, gi, namespace, pod, container").top()),
        ],
    )
}

fn processes() -> Row {
    let of_rank = |name| of(name).max("instance, run, rank");
    const RANK: &str = "{{run}} rank {{rank}} {{instance}}";
    Row::open(
        "Do their processes run?",
        vec![
            Chart::states(
                "Cannot be killed",
                "Which ranks wait in the kernel for a disk, a mount or a driver?",
            )
            .word(1.0, "waits", "orange")
            .show(of_rank("job_process_uninterruptible").above(0.0).top(), RANK),
            Chart::lines(
                "Threads that cannot be killed",
                "How many of their threads wait in the kernel?",
                Unit::Count,
            )
            .from_zero()
            .show(of_rank("job_process_uninterruptible_threads").top(), RANK),
            Chart::lines("Memory of ranks", "Whose host memory grows?", Unit::Bytes)
                .from_zero()
                .show(of_rank("job_process_resident_memory_bytes").top(), RANK)
                .show(
                    of_rank("job_process_swapped_memory_bytes").above(0.0).top(),
                    "{{run}} rank {{rank}} swapped out",
                ),
            Chart::lines("CPU of ranks", "Which ranks use the most CPU time?", Unit::Ratio).from_zero().show(
                of("job_process_cpu_seconds_total")
                    .rate()
                    .max("instance, run, rank, mode")
                    .sum("instance, run, rank")
                    .top(),
                RANK,
            ),
            Chart::lines(
                "Page faults",
                "Which ranks wait for memory to be read from a disk?",
                Unit::PerSecond,
            )
            .from_zero()
            .show(of("job_process_major_page_faults_total").rate().max("instance, run, rank").top(), RANK),
            Chart::lines("Open files", "Who runs out of files?", Unit::Ratio).from_zero().show(
                of_rank("job_process_open_files").over(&of_rank("job_process_max_open_files")).top(),
                RANK,
            ),
            Chart::lines("Threads", "Whose number of threads grows?", Unit::Count)
                .from_zero()
                .show(of_rank("job_process_threads").top(), RANK),
            Chart::lines("Next to be killed", "Whom would the kernel kill if memory ran out?", Unit::Count)
                .from_zero()
                .show(of_rank("job_process_oom_score").top(), RANK),
            Chart::table("Youngest processes", "Which ranks were started last?", Unit::Seconds)
                .show(of_rank("job_process_start_timestamp_seconds").age().bottom(), "running for"),
            Chart::table("Processes of jobs", "How many processes has a job on a node?", Unit::Count)
                .show(scheduled("job_processes").max("instance, job").top(), "processes"),
        ],
    )
}

fn limits() -> Row {
    let rate = |name| of(name).rate().max("instance, run, cgroup");
    let now = |name| of(name).max("instance, run, cgroup");
    const GROUP: &str = "{{run}} {{instance}}";
    Row::folded(
        "Do limits hold them back?",
        vec![
            Chart::lines(
                "Throttled",
                "In which share of the periods did the CPU limit stop a job?",
                Unit::Ratio,
            )
            .from_zero()
            .show(
                rate("job_cgroup_cpu_throttled_periods_total")
                    .over(&rate("job_cgroup_cpu_periods_total"))
                    .top(),
                GROUP,
            ),
            Chart::lines("Time throttled", "How much CPU time did the limit cost?", Unit::Ratio)
                .from_zero()
                .show(rate("job_cgroup_cpu_throttled_seconds_total").top(), GROUP),
            Chart::lines("Memory and its limit", "Who is near the memory limit?", Unit::Ratio)
                .from_zero()
                .show(
                    now("job_cgroup_memory_bytes").over(&now("job_cgroup_memory_limit_bytes")).top(),
                    GROUP,
                ),
            Chart::lines("Memory held", "How much host memory does a job hold?", Unit::Bytes)
                .from_zero()
                .show(now("job_cgroup_memory_bytes").top(), GROUP),
            Chart::lines(
                "Limit reached",
                "Who reached the memory limit, and was anybody killed?",
                Unit::Count,
            )
            .bars()
            .from_zero()
            .show(
                of("job_cgroup_memory_limit_hits_total").increase().max("instance, run, cgroup").top(),
                "{{run}} {{instance}} reached",
            )
            .show(
                of("job_cgroup_oom_kills_total").increase().max("instance, run, cgroup").top(),
                "{{run}} {{instance}} killed",
            ),
            Chart::lines("Pressure", "What do the processes of a job wait for?", Unit::Ratio)
                .from_zero()
                .show(
                    of("job_cgroup_pressure_seconds_total")
                        .rate()
                        .max("instance, run, cgroup, resource, of")
                        .top(),
                    "{{run}} {{instance}} {{resource}}, {{of}}",
                ),
        ],
    )
}

fn sight() -> Row {
    Row::folded(
        "Can we see the jobs?",
        vec![
            Chart::lines(
                "Sources of jobs",
                "From how many nodes can which source be read, or not?",
                Unit::Count,
            )
            .from_zero()
            .show(
                of("job_source_up").min("instance, source").is(1.0).sum("source"),
                "{{cluster}} {{source}} read",
            )
            .show(
                of("job_source_up").min("instance, source").is(0.0).sum("source"),
                "{{cluster}} {{source}} not read",
            ),
            Chart::lines("Failures of sources", "Why can a source not be read?", Unit::PerSecond)
                .from_zero()
                .show(
                    of("job_source_failures_total")
                        .rate()
                        .max("instance, source, reason")
                        .sum("source, reason"),
                    "{{cluster}} {{source}} {{reason}}",
                ),
            Chart::lines("Not seen", "What of the jobs is not looked at?", Unit::Count)
                .from_zero()
                .show(
                    of("job_unreadable_processes").max("instance").sum(""),
                    "{{cluster}} processes of others",
                )
                .show(
                    of("job_unresolved_devices").max("instance, source").sum("source"),
                    "{{cluster}} {{source}}: unknown devices",
                )
                .show(
                    of("job_dropped_total").increase().max("instance, what").sum("what"),
                    "{{cluster}} {{what}} left out",
                ),
            Chart::lines(
                "Discovery",
                "How much is followed because a training process writes it?",
                Unit::Count,
            )
            .from_zero()
            .show(of("job_discovered_processes").max("instance, run").sum(""), "{{cluster}} processes")
            .show(of("job_discovered_files").max("instance").sum(""), "{{cluster}} files"),
        ],
    )
}
