//! Rows about what schedulers say, where an exporter reads one: of their nodes, GPUs and queues.

use crate::layout::{Chart, Row};
use crate::model::Unit;
use crate::series::{Expr, Series, of};

/// A metric of the exporter that reads the scheduler, added up over the clusters' schedulers.
fn sum_of(name: &'static str, labels: &str) -> Expr {
    let comma = if labels.is_empty() { "" } else { ", " };
    of(name).max(&format!("instance{comma}{labels}")).sum(labels)
}

/// The same where it is not zero.
fn some_of(name: &'static str, labels: &str) -> Expr {
    sum_of(name, labels).above(0.0).top()
}

fn answers(up: &Series) -> Chart {
    Chart::states("It answers", "Does the scheduler answer all questions?")
        .word(1.0, "answers", "green")
        .word(0.0, "does not", "red")
        .show(up.min("instance").top(), "{{cluster}} {{instance}}")
}

fn out_of_service(name: &'static str) -> Chart {
    Chart::table("Nodes out of service", "Which nodes get no jobs, why, and for how long?", Unit::Seconds)
        .show(of(name).min("node, state, reason").age().top(), "for")
}

pub(crate) fn slurm() -> Row {
    const REASON: &str = "{{cluster}} {{reason}}";
    let failures = |name| of(name).rate().max("instance, command, reason").sum("command, reason").top();
    let malformed = of("slurm_malformed_lines_total").rate().max("instance, command").sum("command").top();
    Row::folded(
        "What does Slurm say?",
        vec![
            answers(&of("slurm_up"))
                .show(of("slurm_controller_up").min("role, host").top(), "{{cluster}} {{role}} {{host}}"),
            Chart::lines("Time of answers", "How long does Slurm take, or not answer?", Unit::Seconds)
                .from_zero()
                .show(of("slurm_answer_seconds").max("command").top(), "{{cluster}} {{command}}")
                .show(of("slurm_silent_seconds").max("").above(0.0).top(), "{{cluster}} no answer for")
                .show(of("slurm_unreadable_seconds").max("").above(0.0).top(), "{{cluster}} unreadable for"),
            Chart::lines("GPUs", "Which GPUs have a job, are idle, or cannot be given?", Unit::Count)
                .stacked()
                .from_zero()
                .show(sum_of("slurm_gpus", "state").top(), "{{cluster}} {{state}}"),
            Chart::lines("Nodes", "In which states are the nodes?", Unit::Count).stacked().from_zero().show(
                of("slurm_nodes").max("instance, state, gpus").sum("state").above(0.0).top(),
                "{{cluster}} {{state}}",
            ),
            out_of_service("slurm_node_out_of_service_timestamp_seconds"),
            Chart::lines("Jobs", "How many jobs run, and how many wait?", Unit::Count)
                .from_zero()
                .show(some_of("slurm_jobs", "state"), "{{cluster}} {{state}}"),
            Chart::lines("GPUs waited for", "How many GPUs do waiting jobs ask for?", Unit::Count)
                .stacked()
                .from_zero()
                .show(some_of("slurm_pending_gpus", "reason"), REASON),
            Chart::lines("Waiting jobs", "What do jobs wait for?", Unit::Count)
                .stacked()
                .from_zero()
                .show(some_of("slurm_pending_jobs", "reason"), REASON),
            Chart::lines("Longest wait", "How long has the oldest job waited for GPUs?", Unit::Seconds)
                .from_zero()
                .show(of("slurm_pending_oldest_seconds").max("reason").above(0.0).top(), REASON),
            Chart::lines("Wait beside idle GPUs", "Which jobs could idle nodes take?", Unit::Count)
                .from_zero()
                .show(sum_of("slurm_fitting_jobs", "").top(), "{{cluster}}"),
            Chart::lines("Failures", "What could not be asked or read?", Unit::PerSecond)
                .from_zero()
                .show(failures("slurm_failures_total"), "{{cluster}} {{command}} {{reason}}")
                .show(malformed, "{{cluster}} {{command}}: unknown lines"),
            Chart::lines("Not listed", "How many nodes out of service are not listed?", Unit::Count)
                .from_zero()
                .show(sum_of("slurm_nodes_left_out", "").top(), "{{cluster}}"),
        ],
    )
}

pub(crate) fn kubernetes() -> Row {
    const REASON: &str = "{{cluster}} {{reason}}";
    let failures = of("kubernetes_failures_total").rate().max("instance, list, reason").sum("list, reason");
    Row::folded(
        "What does Kubernetes say?",
        vec![
            answers(&of("kubernetes_up")),
            Chart::lines("Time of answers", "How long does the API take, or not answer?", Unit::Seconds)
                .from_zero()
                .show(of("kubernetes_answer_seconds").max("list").top(), "{{cluster}} {{list}}")
                .show(of("kubernetes_silent_seconds").max("").above(0.0).top(), "{{cluster}} no answer for")
                .show(
                    of("kubernetes_unreadable_seconds").max("").above(0.0).top(),
                    "{{cluster}} unreadable for",
                ),
            Chart::lines("GPUs", "Which GPUs have a pod, are idle, or cannot be given?", Unit::Count)
                .stacked()
                .from_zero()
                .show(sum_of("kubernetes_gpus", "state").top(), "{{cluster}} {{state}}"),
            Chart::lines("GPUs that are there", "Did device plugins take GPUs out?", Unit::Count)
                .from_zero()
                .show(sum_of("kubernetes_gpus_capacity", "").top(), "{{cluster}} there")
                .show(sum_of("kubernetes_gpus_allocatable", "").top(), "{{cluster}} allocatable"),
            Chart::lines("Nodes with GPUs", "Which are ready, cordoned or not ready?", Unit::Count)
                .stacked()
                .from_zero()
                .show(sum_of("kubernetes_gpu_nodes", "state").top(), "{{cluster}} {{state}}"),
            Chart::lines("Conditions", "What is reported to be wrong with nodes?", Unit::Count)
                .from_zero()
                .show(some_of("kubernetes_gpu_node_problems", "condition"), "{{cluster}} {{condition}}"),
            out_of_service("kubernetes_node_out_of_service_timestamp_seconds"),
            Chart::lines("GPUs waited for", "How many GPUs do waiting pods ask for?", Unit::Count)
                .stacked()
                .from_zero()
                .show(some_of("kubernetes_pending_gpus", "reason"), REASON),
            Chart::lines("Waiting pods", "What do pods wait for?", Unit::Count)
                .stacked()
                .from_zero()
                .show(some_of("kubernetes_pending_pods", "reason"), REASON),
            Chart::lines("Longest wait", "How old is the oldest pod that waits for GPUs?", Unit::Seconds)
                .from_zero()
                .show(of("kubernetes_pending_oldest_seconds").max("reason").above(0.0).top(), REASON),
            Chart::lines("Wait beside idle GPUs", "Which pods could idle nodes take?", Unit::Count)
                .from_zero()
                .show(sum_of("kubernetes_fitting_pods", "").top(), "{{cluster}}"),
            Chart::lines("Failures", "Which lists could not be read, and why?", Unit::PerSecond)
                .from_zero()
                .show(failures.top(), "{{cluster}} {{list}} {{reason}}"),
            Chart::lines("Not listed", "How many nodes out of service are not listed?", Unit::Count)
                .from_zero()
                .show(sum_of("kubernetes_nodes_left_out", "").top(), "{{cluster}}"),
        ],
    )
}
