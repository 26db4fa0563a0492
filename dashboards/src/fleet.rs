//! All nodes and runs: what is wrong, how much of it, and where to look first?
//!
//! A thousand nodes fit: every panel shows counts, a distribution, or the twenty worst.

use crate::head::{
    self, INCIDENTS_PAGE, NODE_BOARD_OF_ROW, NODE_PAGE_OF_ROW, RUN_BOARD_OF_ROW, RUN_PAGE_OF_ROW,
};
use crate::layout::{Board, Chart, Row};
use crate::model::{Annotation, Unit};
use crate::series::{Expr, Series, alerter, exporters, of};

pub(crate) fn board() -> Board {
    Board {
        uid: "stepwatch-fleet",
        title: "Stepwatch / Fleet",
        description: "All nodes and all runs of one or more clusters, worst first.",
        variables: head::of_fleet,
        annotations: || -> Vec<Annotation> { vec![head::incidents()] },
        rows: vec![at_a_glance(), devices(), hosts(), worst(), runs(), work(), inventory()],
    }
}

/// How many of a device of the chosen nodes have this condition.
fn with_condition(series: &Series, device: &str) -> Expr {
    series.max(&format!("instance, {device}")).is(1.0).sum("")
}

impl Chart {
    /// Rows that lead to the node, here and in the alerter.
    fn nodes(self, expr: &Expr, value: &'static str) -> Self {
        self.show(expr.with_node(), value)
            .link("Dashboard of the node", NODE_BOARD_OF_ROW)
            .link("The node in the alerter", NODE_PAGE_OF_ROW)
    }

    fn runs(self, expr: &Expr, value: &'static str) -> Self {
        self.show(expr.clone(), value)
            .link("Dashboard of the run", RUN_BOARD_OF_ROW)
            .link("The run in the alerter", RUN_PAGE_OF_ROW)
    }
}

fn at_a_glance() -> Row {
    let last_step = of("train_last_step_timestamp_seconds").max("run").age();
    Row::open(
        "Is the fleet well?",
        vec![
            Chart::number("Nodes", "How many exporters answer Prometheus, and how many do not?", Unit::Count)
                .show(of("stepwatch_exporter_build_info").max("instance").count(""), "{{cluster}} answer")
                .show(of("up").max("instance").is(0.0).sum(""), "{{cluster}} do not"),
            Chart::number("GPUs", "How many GPUs answer, of those that there should be?", Unit::Count)
                .show(of("gpu_count").max("instance").sum(""), "{{cluster}} answer")
                .show(of("gpu_expected_count").max("instance").sum(""), "{{cluster}} expected"),
            Chart::number(
                "Fabric ports",
                "How many ports of the fabric are up, of those that should be?",
                Unit::Count,
            )
            .show(of("rdma_ports_up").max("instance").sum(""), "{{cluster}} up")
            .show(of("rdma_ports_expected").max("instance").sum(""), "{{cluster}} expected"),
            Chart::number(
                "Runs",
                "How many runs made a step within 10 minutes, and how many did not?",
                Unit::Count,
            )
            .show(last_step.is_below(600.0).sum(""), "{{cluster}} step")
            .show(last_step.count(""), "{{cluster}} known"),
            Chart::number("Open incidents", "What waits for somebody in the alerter?", Unit::Count)
                .threshold(1.0, "orange")
                .show(
                    alerter("stepwatch_alerter_incidents")
                        .with(r#"severity=~"page|ticket""#)
                        .max("instance, state, severity")
                        .sum("state, severity"),
                    "{{severity}} {{state}}",
                )
                .link("Incidents", INCIDENTS_PAGE),
            Chart::number("XIDs, 24 h", "How many errors did the NVIDIA drivers report?", Unit::Count)
                .threshold(1.0, "orange")
                .show(
                    of("gpu_xid_errors_total")
                        .new_in("24h")
                        .max("instance, gpu, xid")
                        .sum("")
                        .or_zero(&exporters("")),
                    "{{cluster}} XIDs",
                ),
        ],
    )
}

fn devices() -> Row {
    Row::open(
        "Which devices are not well, and how many?",
        vec![
            Chart::lines("GPUs with faults", "How many GPUs have which fault?", Unit::Count)
                .from_zero()
                .show(with_condition(&of("gpu_lost"), "gpu"), "{{cluster}} lost")
                .show(with_condition(&of("gpu_unresponsive"), "gpu"), "{{cluster}} hardly answer")
                .show(with_condition(&of("gpu_row_remap_failed"), "gpu"), "{{cluster}} row remap failed")
                .show(with_condition(&of("gpu_row_remap_pending"), "gpu"), "{{cluster}} row remap pending")
                .show(
                    with_condition(&of("gpu_recovery_action").with(r#"action!="none""#), "gpu"),
                    "{{cluster}} want recovery",
                )
                .show(
                    of("gpu_fabric_health").max("instance, gpu").is(1.0).sum(""),
                    "{{cluster}} NVLink fabric unhealthy",
                ),
            Chart::lines("GPUs held down", "How many GPUs are slowed down, and by what?", Unit::Count)
                .from_zero()
                .show(
                    of("gpu_throttle_active")
                        .with(r#"reason!="gpu_idle""#)
                        .max("instance, gpu, reason")
                        .sum("reason"),
                    "{{cluster}} {{reason}}",
                ),
            Chart::lines(
                "Fabric ports by condition",
                "How many ports are down, flap, are slow or make errors?",
                Unit::Count,
            )
            .from_zero()
            .show(
                of("rdma_port_condition").max("instance, device, port, condition").sum("condition"),
                "{{cluster}} {{condition}}",
            ),
            Chart::lines(
                "Ethernet by condition",
                "How many interfaces that were up are not well?",
                Unit::Count,
            )
            .from_zero()
            .show(
                of("nic_condition").max("instance, device, condition").sum("condition"),
                "{{cluster}} {{condition}}",
            ),
        ],
    )
}

fn hosts() -> Row {
    Row::open(
        "What do the hosts report?",
        vec![
            Chart::lines(
                "File systems",
                "How many file systems do not answer or went read-only?",
                Unit::Count,
            )
            .from_zero()
            .show(
                of("mount_responsive").min("instance, mount").is(0.0).sum(""),
                "{{cluster}} mounts do not answer",
            )
            .show(with_condition(&of("disk_read_only"), "mount"), "{{cluster}} disks read-only"),
            Chart::lines("XIDs", "Which errors do the drivers report, on all nodes together?", Unit::Count)
                .bars()
                .from_zero()
                .show(
                    of("gpu_xid_errors_total")
                        .new_in("$__rate_interval")
                        .max("instance, gpu, xid")
                        .sum("xid")
                        .above(0.0)
                        .top(),
                    "{{cluster}} XID {{xid}}",
                ),
            Chart::lines("Kernel log", "What do the kernels complain of?", Unit::Count)
                .bars()
                .from_zero()
                .show(
                    of("kernel_events_total").increase().max("instance, event").sum("event").above(0.0).top(),
                    "{{cluster}} {{event}}",
                ),
            Chart::lines(
                "PCIe links below what they could",
                "How many devices lost lanes or speed?",
                Unit::Count,
            )
            .from_zero()
            .show(of("pci_link_degraded").max("instance, pci, what").sum("what"), "{{cluster}} {{what}}"),
        ],
    )
}

fn worst() -> Row {
    let missing = |have, want| of(want).max("instance").minus(&of(have).max("instance")).above(0.0).top();
    Row::open(
        "Which nodes first?",
        vec![
            Chart::table(
                "Exporters that do not answer",
                "Which nodes can Prometheus not reach?",
                Unit::Count,
            )
            .width(8)
            .facts(of("up").max("instance").equal(0.0).top().with_node())
            .link("Dashboard of the node", NODE_BOARD_OF_ROW)
            .link("The node in the alerter", NODE_PAGE_OF_ROW),
            Chart::table("GPUs missing", "Which nodes have fewer GPUs than they should?", Unit::Count)
                .width(8)
                .nodes(&missing("gpu_count", "gpu_expected_count"), "missing"),
            Chart::table("Ports missing", "Which nodes have ports of the fabric that are down?", Unit::Count)
                .width(8)
                .nodes(&missing("rdma_ports_up", "rdma_ports_expected"), "missing"),
            Chart::table("XIDs, 24 h", "Which GPUs had the most errors?", Unit::Count)
                .nodes(&of("gpu_xid_errors_total").new_in("24h").max("instance, gpu, xid").top(), "errors"),
            Chart::table("Corrected memory errors, 24 h", "Whose memory wears out?", Unit::Count).nodes(
                &of("gpu_ecc_errors_total")
                    .with(r#"severity="corrected", lifetime="volatile""#)
                    .increase_in("24h")
                    .max("instance, gpu, location")
                    .sum("instance, gpu")
                    .above(0.0)
                    .top(),
                "errors",
            ),
        ],
    )
}

fn runs() -> Row {
    Row::open(
        "How do the runs do?",
        vec![
            Chart::table("Silent runs", "Which runs have made no step for longest?", Unit::Seconds)
                .runs(&of("train_last_step_timestamp_seconds").max("run").age().top(), "since the last step"),
            Chart::table("Work at risk", "Which runs would lose the most by a crash now?", Unit::Seconds)
                .runs(
                    &of("train_checkpoint_last_success_timestamp_seconds").max("run").age().top(),
                    "since the last checkpoint",
                ),
            Chart::table(
                "Farthest from what is expected",
                "Which signals leave their band? 1 is its edge.",
                Unit::Short,
            )
            .runs(&alerter("train_anomaly_score").max("run, signal").top(), "score"),
            Chart::lines("MFU", "Which runs use their hardware badly? The twenty lowest.", Unit::Ratio)
                .from_zero()
                .show(
                    of("train_mfu_ratio").max("run, convention").bottom(),
                    "{{cluster}} {{run}} {{convention}}",
                ),
            Chart::lines("Tokens per second", "What do the largest runs get done?", Unit::Short)
                .from_zero()
                .show(of("train_tokens_per_second").max("run").top(), "{{cluster}} {{run}}"),
        ],
    )
}

fn work() -> Row {
    let gpus = |name| of(name).max("instance, gpu");
    let sm = |name| of(name).with(r#"domain="sm""#).max("instance, gpu");
    Row::open(
        "What do the GPUs do?",
        vec![
            Chart::heatmap("Busy", "How many GPUs are busy for how much of the time?", Unit::Ratio)
                .show(gpus("gpu_utilization_ratio").spread(&[0.05, 0.25, 0.5, 0.75, 0.9, 0.95]), "{{le}}"),
            Chart::heatmap("Temperature", "How many GPUs are how warm?", Unit::Celsius).show(
                of("gpu_temperature_celsius")
                    .with(r#"sensor="gpu""#)
                    .max("instance, gpu")
                    .spread(&[30.0, 40.0, 50.0, 60.0, 65.0, 70.0, 75.0, 80.0, 85.0, 90.0]),
                "{{le}}",
            ),
            Chart::heatmap("SM clock", "How many GPUs run at which clock?", Unit::Hertz).show(
                sm("gpu_clock_hertz").spread(&[3e8, 6e8, 9e8, 1.2e9, 1.4e9, 1.6e9, 1.8e9, 1.9e9, 2e9]),
                "{{le}}",
            ),
            Chart::lines("Power", "How much do all GPUs draw, as samples and as energy?", Unit::Watts)
                .from_zero()
                .show(gpus("gpu_power_watts").sum(""), "{{cluster}} power")
                .show(
                    of("gpu_energy_joules_total").rate().max("instance, gpu").sum(""),
                    "{{cluster}} energy used",
                ),
            Chart::table("Slowest clocks under load", "Which GPU holds back its job?", Unit::Hertz).nodes(
                &sm("gpu_clock_hertz")
                    .only_where("instance, gpu", &gpus("gpu_utilization_ratio").above(0.5))
                    .bottom(),
                "clock",
            ),
            Chart::table("Least margin", "Which GPUs are nearest to slowing down for heat?", Unit::Celsius)
                .nodes(&gpus("gpu_temperature_margin_celsius").bottom(), "margin"),
        ],
    )
}

fn inventory() -> Row {
    let kinds = |name, labels: &str| of(name).max(&format!("instance, {labels}")).count(labels).top();
    Row::folded(
        "What is there?",
        vec![
            Chart::table("GPU models", "Which GPUs are there?", Unit::Count)
                .width(8)
                .show(of("gpu_info").max("instance, gpu, name").count("name").top(), "GPUs"),
            Chart::table("Drivers", "Which driver versions run?", Unit::Count)
                .width(8)
                .show(kinds("gpu_driver_info", "version"), "nodes"),
            Chart::table("Exporters", "Which versions of the exporter run?", Unit::Count)
                .width(8)
                .show(kinds("stepwatch_exporter_build_info", "version, revision"), "nodes"),
            Chart::table("Adapter firmware", "Which adapters with which firmware are there?", Unit::Count)
                .width(8)
                .show(
                    of("rdma_info")
                        .max("instance, device, hca_type, firmware")
                        .count("hca_type, firmware")
                        .top(),
                    "adapters",
                ),
            Chart::table("Frameworks", "What do the runs train with?", Unit::Count).width(8).show(
                of("train_run_info").max("run, framework, version").count("framework, version").top(),
                "runs",
            ),
            Chart::table(
                "Jobs",
                "How many jobs of which scheduler run on the nodes, counted once a node?",
                Unit::Count,
            )
            .width(8)
            .show(of("job_running").max("instance, scheduler").sum("scheduler").top(), "jobs"),
        ],
    )
}
