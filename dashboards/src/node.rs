//! One node: are its GPUs, links and disks well, and which run does it hold back?

use crate::layout::{Board, Chart, Row, choice_of_prometheus, mark, variable};
use crate::model::{Annotation, Unit, Variable};

pub(crate) fn board() -> Board {
    Board {
        uid: "stepwatch-node",
        title: "Stepwatch / Node",
        description: "One training node: its GPUs, its links, its storage, and what we see it through.",
        variables,
        annotations,
        rows: vec![at_a_glance(), gpu_work(), gpu_health(), nvlink(), ports(), together(), host(), sight()],
    }
}

fn variables() -> Vec<Variable> {
    vec![
        choice_of_prometheus(),
        variable("instance", "Node", "label_values(stepwatch_exporter_build_info, instance)", false),
        variable("gpu", "GPU", r#"label_values(gpu_info{instance=~"$instance"}, gpu)"#, true),
        variable("device", "Adapter", r#"label_values(rdma_info{instance=~"$instance"}, device)"#, true),
    ]
}

fn annotations() -> Vec<Annotation> {
    vec![
        mark(
            "XID",
            "red",
            of_gpus(&xids(r#"instance=~"$instance""#, "1m")),
            "XID {{xid}} of GPU {{index}} {{pci}}",
        ),
        mark(
            "Port went down",
            "orange",
            r#"sum by (device, port) (increase(rdma_port_link_downed_total{instance=~"$instance"}[1m])) > 0"#,
            "{{device}}/{{port}}",
        ),
        mark(
            "Reboot",
            "blue",
            r#"changes(kernel_boot_timestamp_seconds{instance=~"$instance"}[1m]) > 0"#,
            "the node booted",
        ),
    ]
}

/// Series of GPUs with what people call them by: the index that `nvidia-smi` prints, and the slot.
/// What compares keeps its comparison.
fn of_gpus(expr: &str) -> String {
    let (expr, trouble_only) = expr.strip_suffix(" > 0").map_or((expr, ""), |expr| (expr, " > 0"));
    format!(r#"{expr} * on (gpu) group_left (index, pci) gpu_info{{instance=~"$instance"}}{trouble_only}"#)
}

/// How often each code was reported in a while. Its series starts with the first error, which
/// `increase()` does not see: it counts where the node was scraped before it.
fn xids(selector: &str, window: &str) -> String {
    let total = format!("gpu_xid_errors_total{{{selector}}}");
    let scraped = format!(r#"stepwatch_exporter_build_info{{instance=~"$instance"}} offset {window}"#);
    format!(
        "sum by (gpu, xid) (increase({total}[{window}]) > 0 or ({total} unless {total} offset {window}) \
         and on (instance) {scraped}) > 0"
    )
}

impl Chart {
    /// Shows series of GPUs, whose legend may name `index` and `pci`.
    fn gpus(self, expr: &str, legend: &'static str) -> Self {
        self.show(of_gpus(expr), legend)
    }
}

fn at_a_glance() -> Row {
    Row {
        title: "Is the node well?",
        charts: vec![
            Chart::number("GPUs", "How many GPUs answer?", Unit::Count)
                .show(r#"max(gpu_count{instance=~"$instance"})"#, "answer")
                .show(r#"max(gpu_expected_count{instance=~"$instance"})"#, "expected"),
            Chart::number("Ports", "How many ports of the fabric are up?", Unit::Count)
                .show(r#"max(rdma_ports_up{instance=~"$instance"})"#, "up")
                .show(r#"max(rdma_ports_expected{instance=~"$instance"})"#, "expected"),
            Chart::number("XIDs, 24 h", "Did the driver report errors?", Unit::Count)
                .threshold(1.0, "orange")
                .show(
                    r#"sum(increase(kernel_events_total{event="gpu_xid", instance=~"$instance"}[24h]))"#,
                    "XIDs",
                ),
            Chart::number("Mounts", "Does every network file system answer?", Unit::Count)
                .threshold(1.0, "red")
                .show(r#"count(mount_responsive{instance=~"$instance"} == 0) or vector(0)"#, "do not answer"),
            Chart::number("Room for checkpoints", "How many more checkpoints fit?", Unit::Count)
                .show(r#"min(disk_checkpoints_left{instance=~"$instance"})"#, "checkpoints"),
            Chart::number("Ranks", "How many ranks run here?", Unit::Count)
                .show(r#"sum(train_rank_up{instance=~"$instance"})"#, "ranks"),
        ],
    }
}

fn gpu_work() -> Row {
    Row {
        title: "What do the GPUs do?",
        charts: vec![
            Chart::lines("SM clock", "Is one GPU slower than its neighbours?", Unit::Hertz)
                .gpus(r#"gpu_clock_hertz{instance=~"$instance", gpu=~"$gpu", domain="sm"}"#, "GPU {{index}}"),
            Chart::states("Held down by", "Which reason holds which GPU down?").gpus(
                r#"max by (gpu, reason) (gpu_throttle_active{instance=~"$instance", gpu=~"$gpu", reason!="gpu_idle"}) > 0"#,
                "GPU {{index}} {{reason}}",
            ),
            Chart::lines("Busy", "Do all GPUs have the same work?", Unit::Ratio)
                .from_zero()
                .up_to(1.0)
                .gpus(r#"gpu_utilization_ratio{instance=~"$instance", gpu=~"$gpu"}"#, "GPU {{index}}"),
            Chart::lines("Tensor cores", "How much of the time do the tensor cores work?", Unit::Ratio)
                .from_zero()
                .gpus(r#"gpu_tensor_active_ratio{instance=~"$instance", gpu=~"$gpu"}"#, "GPU {{index}}"),
            Chart::lines("Power", "Does one GPU draw less, or hit its limit?", Unit::Watts)
                .from_zero()
                .gpus(r#"gpu_power_watts{instance=~"$instance", gpu=~"$gpu"}"#, "GPU {{index}}")
                .show(r#"max(gpu_power_limit_watts{instance=~"$instance", gpu=~"$gpu"})"#, "limit"),
            Chart::lines("Temperature", "Is one GPU hotter than its neighbours?", Unit::Celsius)
                .gpus(r#"gpu_temperature_celsius{instance=~"$instance", gpu=~"$gpu"}"#, "GPU {{index}} {{sensor}}"),
            Chart::lines("Memory", "Who is near the end of its memory?", Unit::Bytes)
                .from_zero()
                .gpus(r#"gpu_memory_used_bytes{instance=~"$instance", gpu=~"$gpu"}"#, "GPU {{index}}"),
            Chart::lines("PCIe", "How much goes over PCIe? From Hopper on", Unit::BytesPerSecond)
                .from_zero()
                .gpus(
                    r#"gpu_pcie_transmit_bytes_per_second{instance=~"$instance", gpu=~"$gpu"}"#,
                    "GPU {{index}} sent",
                )
                .gpus(
                    r#"gpu_pcie_receive_bytes_per_second{instance=~"$instance", gpu=~"$gpu"}"#,
                    "GPU {{index}} received",
                ),
        ],
    }
}

fn gpu_health() -> Row {
    Row {
        title: "Are the GPUs sick?",
        charts: vec![
            Chart::lines("XIDs", "Which errors did the driver report?", Unit::Count)
                .bars()
                .from_zero()
                .gpus(
                    &xids(r#"instance=~"$instance", gpu=~"$gpu""#, "$__rate_interval"),
                    "GPU {{index}} XID {{xid}}",
                ),
            Chart::states("Conditions", "What does the driver want, and since when?")
                .gpus(r#"gpu_lost{instance=~"$instance", gpu=~"$gpu"} > 0"#, "GPU {{index}} {{pci}} lost")
                .gpus(
                    r#"gpu_recovery_action{instance=~"$instance", gpu=~"$gpu", action!="none"} > 0"#,
                    "GPU {{index}} {{pci}} wants {{action}}",
                )
                .gpus(r#"gpu_row_remap_pending{instance=~"$instance", gpu=~"$gpu"} > 0"#, "GPU {{index}} {{pci}} remap pending")
                .gpus(r#"gpu_row_remap_failed{instance=~"$instance", gpu=~"$gpu"} > 0"#, "GPU {{index}} {{pci}} remap failed"),
            Chart::lines("Memory errors, corrected", "Does the memory of a GPU wear out?", Unit::Count)
                .from_zero()
                .gpus(
                    r#"sum by (gpu) (increase(gpu_ecc_errors_total{instance=~"$instance", gpu=~"$gpu", severity="corrected", lifetime="volatile"}[1h]))"#,
                    "GPU {{index}} an hour",
                ),
            Chart::lines("Memory errors, uncorrected", "Was data lost?", Unit::Count)
                .bars()
                .from_zero()
                .gpus(
                    r#"sum by (gpu) (increase(gpu_ecc_errors_total{instance=~"$instance", gpu=~"$gpu", severity="uncorrected", lifetime="volatile"}[$__rate_interval]))"#,
                    "GPU {{index}}",
                )
                .gpus(
                    r#"sum by (gpu, cause) (gpu_remapped_rows{instance=~"$instance", gpu=~"$gpu"})"#,
                    "GPU {{index}} {{pci}} rows remapped, {{cause}}",
                ),
            Chart::lines("PCIe errors", "Is a slot or a riser loose?", Unit::PerSecond)
                .from_zero()
                .gpus(
                    r#"sum by (gpu, kind) (rate(gpu_pcie_errors_total{instance=~"$instance", gpu=~"$gpu"}[$__rate_interval]))"#,
                    "GPU {{index}} {{kind}}",
                )
                .show(
                    r#"sum by (pci, severity) (rate(pci_aer_severity_errors_total{instance=~"$instance"}[$__rate_interval]))"#,
                    "{{pci}} {{severity}}",
                ),
            Chart::states("PCIe links below what they could", "Which device has lost lanes or speed?")
                .show(r#"pci_link_degraded{instance=~"$instance"} > 0"#, "{{pci}} {{what}}"),
        ],
    }
}

fn nvlink() -> Row {
    Row {
        title: "Do the GPUs reach each other?",
        charts: vec![
            Chart::lines("NVLink traffic", "Does every GPU take part in the collectives?", Unit::BytesPerSecond)
                .from_zero()
                .gpus(
                    r#"sum by (gpu) (gpu_nvlink_transmit_bytes_per_second{instance=~"$instance", gpu=~"$gpu"} or on (instance, gpu) rate(gpu_nvlink_transmit_bytes_total{instance=~"$instance", gpu=~"$gpu"}[$__rate_interval]))"#,
                    "GPU {{index}}",
                ),
            Chart::lines("NVLink errors", "Which link is bad?", Unit::PerSecond)
                .from_zero()
                .gpus(
                    r#"sum by (gpu, link, kind) (rate(gpu_nvlink_errors_total{instance=~"$instance", gpu=~"$gpu"}[$__rate_interval])) > 0"#,
                    "GPU {{index}} link {{link}} {{kind}}",
                ),
            Chart::lines("NVLink recoveries", "Which link goes down for a moment, and comes back?", Unit::Count)
                .bars()
                .from_zero()
                .gpus(
                    r#"sum by (gpu, link) (increase(gpu_nvlink_recoveries_total{instance=~"$instance", gpu=~"$gpu"}[$__rate_interval])) > 0"#,
                    "GPU {{index}} link {{link}}",
                ),
            Chart::lines("NVLink bit errors", "Whose symbols are wrong? A good link stays under 1e-12", Unit::Scientific)
                .log()
                .gpus(
                    r#"gpu_nvlink_symbol_ber{instance=~"$instance", gpu=~"$gpu"} > 1e-15"#,
                    "GPU {{index}} link {{link}}",
                )
                .gpus(
                    r#"gpu_nvlink_effective_ber{instance=~"$instance", gpu=~"$gpu"} > 1e-15"#,
                    "GPU {{index}} link {{link}} after correction",
                ),
            Chart::lines("NVLinks up", "Has a GPU lost a link?", Unit::Count)
                .from_zero()
                .gpus(r#"sum by (gpu) (gpu_nvlink_up{instance=~"$instance", gpu=~"$gpu"})"#, "GPU {{index}}"),
            Chart::states("NVLink fabric", "Is the fabric healthy?")
                .gpus(r#"gpu_fabric_health{instance=~"$instance", gpu=~"$gpu"} > 0"#, "GPU {{index}} {{condition}}"),
        ],
    }
}

fn ports() -> Row {
    Row {
        title: "Do the nodes reach each other?",
        charts: vec![
            Chart::lines("Sent by port", "Does every port carry its share?", Unit::BytesPerSecond)
                .from_zero()
                .show(
                    r#"rate(rdma_port_transmit_bytes_total{instance=~"$instance", device=~"$device"}[$__rate_interval])"#,
                    "{{device}}/{{port}}",
                ),
            Chart::lines("Received by port", "Does every port carry its share?", Unit::BytesPerSecond)
                .from_zero()
                .show(
                    r#"rate(rdma_port_receive_bytes_total{instance=~"$instance", device=~"$device"}[$__rate_interval])"#,
                    "{{device}}/{{port}}",
                ),
            Chart::states("Conditions of ports", "Which port is down, flapping, slow or bad, and since when?").show(
                r#"rdma_port_condition{instance=~"$instance", device=~"$device"} > 0"#,
                "{{device}}/{{port}} {{condition}}",
            ),
            Chart::lines("Port errors", "Which errors does a link make?", Unit::PerSecond)
                .from_zero()
                .show(
                    r#"sum by (device, port, kind) (rate(rdma_port_errors_total{instance=~"$instance", device=~"$device"}[$__rate_interval])) > 0"#,
                    "{{device}}/{{port}} {{kind}}",
                ),
            Chart::lines("Rate", "Has a port negotiated less than it should?", Unit::BytesPerSecond)
                .from_zero()
                .show(
                    r#"rdma_port_rate_bytes_per_second{instance=~"$instance", device=~"$device"}"#,
                    "{{device}}/{{port}}",
                ),
            Chart::lines("Congestion", "How long do ports wait to send?", Unit::PerSecond)
                .from_zero()
                .show(
                    r#"rate(rdma_port_transmit_wait_ticks_total{instance=~"$instance", device=~"$device"}[$__rate_interval])"#,
                    "{{device}}/{{port}} ticks",
                )
                .show(
                    r#"rate(rdma_hw_counter_total{instance=~"$instance", device=~"$device", counter=~"np_cnp_sent|rp_cnp_handled|out_of_sequence|local_ack_timeout_err"}[$__rate_interval])"#,
                    "{{device}}/{{port}} {{counter}}",
                ),
            Chart::lines("Ethernet", "What goes over the other network?", Unit::BytesPerSecond)
                .from_zero()
                .show(r#"rate(nic_receive_bytes_total{instance=~"$instance"}[$__rate_interval])"#, "{{device}} received")
                .show(r#"rate(nic_transmit_bytes_total{instance=~"$instance"}[$__rate_interval])"#, "{{device}} sent"),
            Chart::lines("Ethernet errors", "Does an interface drop, or come and go?", Unit::PerSecond)
                .from_zero()
                .show(r#"rate(nic_receive_errors_total{instance=~"$instance"}[$__rate_interval])"#, "{{device}} errors")
                .show(r#"rate(nic_receive_drops_total{instance=~"$instance"}[$__rate_interval])"#, "{{device}} drops")
                .show(
                    r#"increase(nic_carrier_changes_total{instance=~"$instance"}[$__rate_interval])"#,
                    "{{device}} link changes",
                ),
        ],
    }
}

fn together() -> Row {
    Row {
        title: "Do the ranks keep together?",
        charts: vec![
            Chart::states("Collectives that stand still", "Which job waits in a collective that not all ranks joined?")
                .show(r#"nccl_ras_stuck_ranks{instance=~"$instance"} > 0"#, "ranks that did not join"),
            Chart::lines("Ranks of the job", "Does NCCL still hear from every rank?", Unit::Count)
                .from_zero()
                .show(r#"nccl_ras_ranks{instance=~"$instance"}"#, "ranks")
                .show(r#"nccl_ras_missing_ranks{instance=~"$instance"}"#, "do not answer")
                .show(r#"nccl_ras_dead_ranks{instance=~"$instance"}"#, "given up")
                .show(r#"nccl_ras_errored_ranks{instance=~"$instance"}"#, "with an error"),
            Chart::lines("Changes of the setup", "Did a driver, a library or a setting change?", Unit::Count)
                .bars()
                .from_zero()
                .show(
                    r#"sum by (of) (increase(config_changes_total{instance=~"$instance"}[$__rate_interval]))"#,
                    "of the {{of}}",
                ),
        ],
    }
}

fn host() -> Row {
    Row {
        title: "Is the host well?",
        charts: vec![
            Chart::lines("Answer of mounts", "How long does a network file system take to answer?", Unit::Seconds)
                .from_zero()
                .show(r#"mount_response_seconds{instance=~"$instance"}"#, "{{mount}}"),
            Chart::lines("Room", "Which file system fills up?", Unit::Ratio)
                .from_zero()
                .up_to(1.0)
                .show(
                    r#"disk_free_bytes{instance=~"$instance"} / disk_size_bytes{instance=~"$instance"}"#,
                    "{{mount}}",
                )
                .show(
                    r#"mount_free_bytes{instance=~"$instance"} / mount_size_bytes{instance=~"$instance"}"#,
                    "{{mount}}",
                ),
            Chart::lines("Signs in the kernel log", "What does the kernel complain of?", Unit::Count)
                .bars()
                .from_zero()
                .show(
                    r#"sum by (event) (increase(kernel_events_total{instance=~"$instance"}[$__rate_interval])) > 0"#,
                    "{{event}}",
                ),
            Chart::lines("Messages never seen before", "Does the kernel say anything new?", Unit::Count)
                .bars()
                .from_zero()
                .show(
                    r#"sum by (priority) (increase(kernel_unknown_messages_total{instance=~"$instance"}[$__rate_interval]))"#,
                    "{{priority}}",
                ),
            Chart::lines("Host memory", "Is there memory left, and does it make errors?", Unit::Bytes)
                .from_zero()
                .show(r#"kernel_memory_available_bytes{instance=~"$instance"}"#, "available")
                .show(r#"kernel_memory_total_bytes{instance=~"$instance"}"#, "total"),
            Chart::lines("Host memory errors", "Which memory controller has errors?", Unit::Count)
                .from_zero()
                .show(
                    r#"sum by (controller, severity) (increase(edac_errors_total{instance=~"$instance"}[1h]))"#,
                    "{{controller}} {{severity}}",
                ),
            Chart::lines("Clock", "How far may the clock be off?", Unit::Seconds)
                .log()
                .show(r#"clock_max_error_seconds{instance=~"$instance"}"#, "at most")
                .show(r#"abs(clock_offset_seconds{instance=~"$instance"})"#, "offset"),
            Chart::lines("Killed and stuck processes", "Does the host run out of memory or of I/O?", Unit::Count)
                .from_zero()
                .show(
                    r#"increase(kernel_oom_kills_total{instance=~"$instance"}[$__rate_interval])"#,
                    "killed for want of memory",
                )
                .show(r#"kernel_blocked_processes{instance=~"$instance"}"#, "wait for I/O"),
        ],
    }
}

fn sight() -> Row {
    Row {
        title: "Can we see the node?",
        charts: vec![
            Chart::lines("Collectors", "Which collector does not return?", Unit::Seconds)
                .from_zero()
                .show(
                    r#"stepwatch_exporter_collector_stuck_seconds{instance=~"$instance"} > 0"#,
                    "{{collector}} over its deadline",
                )
                .show(
                    r#"topk(5, stepwatch_exporter_collector_duration_seconds{instance=~"$instance"})"#,
                    "{{collector}}",
                ),
            Chart::states("Failing", "Which collector fails?")
                .show(r#"stepwatch_exporter_collector_success{instance=~"$instance"} == 0"#, "{{collector}}"),
            Chart::lines("Calls of the driver", "Does the driver answer?", Unit::Seconds)
                .from_zero()
                .show(r#"topk(5, gpu_nvml_call_max_seconds{instance=~"$instance"})"#, "{{function}}, longest")
                .show(
                    r#"gpu_nvml_call_running_seconds{instance=~"$instance"}"#,
                    "{{function}}, not back yet",
                ),
            Chart::lines("Lost", "Did we miss anything of the kernel log?", Unit::Count).from_zero().show(
                r#"increase(kernel_log_lost_records_total{instance=~"$instance"}[$__rate_interval])"#,
                "records overwritten",
            ),
        ],
    }
}
