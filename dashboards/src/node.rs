//! One node or a few: are GPUs, links, disks and host well, and which run does it hold back?

use crate::head::{self, NODE_PAGE, many, mark};
use crate::layout::{Board, Chart, Row};
use crate::model::{Annotation, Unit, Variable};
use crate::series::{Expr, exporters, gpu, of, port};

pub(crate) fn board() -> Board {
    Board {
        uid: "stepwatch-node",
        title: "Stepwatch / Node",
        description: "One training node: its GPUs, its links, its host, and what we see it through.",
        variables,
        annotations,
        rows: vec![
            at_a_glance(),
            gpus(),
            links(),
            host(),
            services(),
            memory(),
            pcie(),
            tests(),
            setup(),
            sight(),
        ],
    }
}

fn variables() -> Vec<Variable> {
    let mut all = head::of_nodes();
    all.push(gpu_choice());
    all.push(device_choice());
    all
}

/// The GPUs of the chosen nodes.
pub(crate) fn gpu_choice() -> Variable {
    many(
        "gpu",
        "GPU",
        r#"label_values(gpu_info{cluster=~"$cluster", job=~"$job", instance=~"$instance"}, gpu)"#,
    )
}

/// The adapters of the chosen nodes.
pub(crate) fn device_choice() -> Variable {
    many(
        "device",
        "Adapter",
        r#"label_values(rdma_info{cluster=~"$cluster", job=~"$job", instance=~"$instance"}, device)"#,
    )
}

fn annotations() -> Vec<Annotation> {
    let mut all = vec![head::incidents(), xids()];
    all.push(mark(
        "Port went down",
        "orange",
        of("rdma_port_link_downed_total").increase_in("1m").max("instance, device, port").above(0.0),
        "{{instance}} {{device}}/{{port}}",
    ));
    all.push(mark(
        "Reboot",
        "blue",
        of("kernel_boot_timestamp_seconds").changes_in("1m").max("instance").above(0.0),
        "{{instance}} booted",
    ));
    all
}

/// Where a driver reported an error.
pub(crate) fn xids() -> Annotation {
    mark(
        "XID",
        "red",
        of("gpu_xid_errors_total").new_in("1m").max("instance, gpu, xid").named_or_not("xid"),
        "XID {{xid}} of GPU {{index}} {{pci}} {{gpu}}",
    )
}

fn of_node(name: &'static str) -> Expr {
    of(name).max("instance")
}

/// What each GPU is or does.
fn of_gpus(name: &'static str) -> Expr {
    gpu(name).max("instance, gpu").named()
}

fn at_a_glance() -> Row {
    Row::open(
        "Is the node well?",
        vec![
            Chart::number("GPUs", "How many GPUs answer?", Unit::Count)
                .show(of_node("gpu_count"), "{{instance}} answer")
                .show(of_node("gpu_expected_count"), "{{instance}} expected")
                .link("The node in the alerter", NODE_PAGE),
            Chart::number("Ports", "How many ports of the fabric are up?", Unit::Count)
                .show(of_node("rdma_ports_up"), "{{instance}} up")
                .show(of_node("rdma_ports_expected"), "{{instance}} expected"),
            Chart::number("XIDs, 24 h", "Did the driver report errors?", Unit::Count)
                .threshold(1.0, "orange")
                .show(
                    of("gpu_xid_errors_total")
                        .new_in("24h")
                        .max("instance, gpu, xid")
                        .sum("instance")
                        .or_zero(&exporters("instance")),
                    "{{instance}}",
                ),
            Chart::number("Mounts", "Does every network file system answer?", Unit::Count)
                .threshold(1.0, "red")
                .show(
                    of("mount_responsive").min("instance, mount").is(0.0).sum("").or_zero(&exporters("")),
                    "do not answer",
                ),
            Chart::number("Room for checkpoints", "How many more checkpoints fit?", Unit::Count)
                .show(of("disk_checkpoints_left").min("instance"), "{{instance}}"),
            Chart::number("Ranks", "How many ranks run here?", Unit::Count)
                .show(of("train_rank_up").max("instance, run, rank").sum("instance"), "{{instance}}"),
        ],
    )
}

fn gpus() -> Row {
    Row::open(
        "Are the GPUs well?",
        vec![
            Chart::lines("SM clock", "Is one GPU slower than its neighbours?", Unit::Hertz).show(
                gpu("gpu_clock_hertz").with(r#"domain="sm""#).max("instance, gpu").named(),
                "{{instance}} GPU {{index}}",
            ),
            Chart::lines("Busy", "Do all GPUs have the same work?", Unit::Ratio)
                .from_zero()
                .up_to(1.0)
                .show(of_gpus("gpu_utilization_ratio"), "{{instance}} GPU {{index}}"),
            Chart::lines("XIDs", "Which errors did the driver report?", Unit::Count).bars().from_zero().show(
                gpu("gpu_xid_errors_total")
                    .new_in("$__rate_interval")
                    .max("instance, gpu, xid")
                    .named_or_not("xid"),
                "{{instance}} GPU {{index}} XID {{xid}} {{gpu}}",
            ),
            Chart::states("Conditions", "What is wrong with which GPU, and since when?")
                .show(
                    gpu("gpu_lost").max("instance, gpu").above(0.0).named_or_not(""),
                    "{{instance}} GPU {{index}} {{gpu}} lost",
                )
                .show(
                    gpu("gpu_unresponsive").max("instance, gpu").above(0.0).named_or_not(""),
                    "{{instance}} GPU {{index}} {{gpu}} hardly answers",
                )
                .show(
                    gpu("gpu_recovery_action")
                        .with(r#"action!="none""#)
                        .max("instance, gpu, action")
                        .above(0.0)
                        .named_or_not("action"),
                    "{{instance}} GPU {{index}} {{gpu}} wants {{action}}",
                )
                .show(
                    gpu("gpu_throttle_active")
                        .with(r#"reason!="gpu_idle""#)
                        .max("instance, gpu, reason")
                        .above(0.0)
                        .named(),
                    "{{instance}} GPU {{index}} held down by {{reason}}",
                ),
            Chart::table(
                "GPUs that cannot be opened",
                "Which GPU does NVML count but not open, and why?",
                Unit::Count,
            )
            .facts(of("gpu_unusable_info").max("instance, gpu, index, pci, error").top()),
            Chart::lines("Last reset", "When was which GPU reset?", Unit::Seconds)
                .show(of_gpus("gpu_last_reset_timestamp_seconds").age(), "{{instance}} GPU {{index}}"),
        ],
    )
}

fn links() -> Row {
    Row::open(
        "Do the links hold?",
        vec![
            Chart::states(
                "Conditions of ports",
                "Which port is down, flapping, slow or bad, and since when?",
            )
            .show(
                port("rdma_port_condition").max("instance, device, port, condition").above(0.0),
                "{{instance}} {{device}}/{{port}} {{condition}}",
            )
            .show(
                of("nic_condition").max("instance, device, condition").above(0.0),
                "{{instance}} {{device}} {{condition}}",
            ),
            Chart::lines("Sent by port", "Does every port carry its share?", Unit::BytesPerSecond)
                .from_zero()
                .show(
                    port("rdma_port_transmit_bytes_total").rate().max("instance, device, port"),
                    "{{instance}} {{device}}/{{port}}",
                ),
        ],
    )
}

fn host() -> Row {
    Row::open(
        "Is the host well?",
        vec![
            Chart::lines("Signs in the kernel log", "What does the kernel complain of?", Unit::Count)
                .bars()
                .from_zero()
                .show(
                    of("kernel_events_total").increase().max("instance, event").above(0.0),
                    "{{instance}} {{event}}",
                ),
            Chart::lines("Messages never seen before", "Does the kernel say anything new?", Unit::Count)
                .bars()
                .from_zero()
                .show(
                    of("kernel_unknown_messages_total").increase().max("instance, priority"),
                    "{{instance}} {{priority}}",
                ),
            Chart::lines("Load", "Do more processes want to run than usual?", Unit::Short)
                .from_zero()
                .show(of("kernel_load_average").max("instance, window"), "{{instance}} {{window}}"),
            Chart::lines(
                "Killed and stuck processes",
                "Does the host run out of memory or of I/O?",
                Unit::Count,
            )
            .from_zero()
            .show(
                of("kernel_oom_kills_total").increase().max("instance"),
                "{{instance}} killed for want of memory",
            )
            .show(of("kernel_hung_tasks_total").increase().max("instance"), "{{instance}} hung tasks")
            .show(of_node("kernel_blocked_processes"), "{{instance}} wait for I/O"),
            Chart::lines("Clock", "How far may the clock be off?", Unit::Seconds)
                .log()
                .show(of_node("clock_max_error_seconds"), "{{instance}} at most")
                .show(of_node("clock_estimated_error_seconds"), "{{instance}} estimated")
                .show(of_node("clock_offset_seconds").abs(), "{{instance}} offset"),
            Chart::states("Clock is disciplined", "Does something keep the clock right?")
                .word(1.0, "yes", "green")
                .word(0.0, "no", "red")
                .show(of("clock_synced").min("instance"), "{{instance}}"),
            Chart::lines("Adjustment of the clock", "Is the oscillator broken?", Unit::Ratio)
                .width(8)
                .show(of_node("clock_frequency_adjustment_ratio"), "{{instance}}"),
            Chart::table("Source of time", "What does the kernel read the time from?", Unit::Count)
                .width(8)
                .facts(of("clock_source_info").max("instance, source").top()),
            Chart::number("Up since", "When did the node boot?", Unit::FromNow)
                .width(8)
                .show(of_node("kernel_boot_timestamp_seconds").in_milliseconds(), "{{instance}}"),
        ],
    )
}

fn services() -> Row {
    Row::folded(
        "Do its services run?",
        vec![
            Chart::states("Services", "Which service has no process?")
                .word(1.0, "runs", "green")
                .word(0.0, "does not run", "red")
                .show(of("service_active").min("instance, service"), "{{instance}} {{service}}"),
            Chart::lines("Starts", "Which service was started anew?", Unit::Count).bars().from_zero().show(
                of("service_starts_total").increase().max("instance, service"),
                "{{instance}} {{service}}",
            ),
            Chart::table("Services that are to run", "Which services start with the node?", Unit::Count)
                .facts(of("service_enabled").max("instance, service").equal(1.0)),
        ],
    )
}

fn memory() -> Row {
    let errors = |name, labels| of(name).increase_in("1h").max(labels);
    Row::folded(
        "Is the memory of the host well?",
        vec![
            Chart::lines("Host memory", "Is there memory left?", Unit::Bytes)
                .from_zero()
                .show(of_node("kernel_memory_available_bytes"), "{{instance}} available")
                .show(of_node("kernel_memory_total_bytes"), "{{instance}} total"),
            Chart::lines("Memory used up by", "How fast is the memory used up?", Unit::BytesPerSecond)
                .width(6)
                .show(of_node("kernel_memory_fill_bytes_per_second"), "{{instance}}"),
            Chart::lines(
                "Time until the memory is full",
                "When does the kernel begin to kill?",
                Unit::Seconds,
            )
            .width(6)
            .log()
            .show(of_node("kernel_memory_full_seconds"), "{{instance}}"),
            Chart::lines("Errors by controller", "Which memory controller has errors?", Unit::Count)
                .from_zero()
                .show(
                    errors("edac_errors_total", "instance, controller, severity"),
                    "{{instance}} {{controller}} {{severity}} an hour",
                )
                .show(
                    errors("edac_unattributed_errors_total", "instance, controller, severity"),
                    "{{instance}} {{controller}} {{severity}}, of no known module",
                ),
            Chart::lines("Errors by module", "Which module is to be replaced?", Unit::Count)
                .from_zero()
                .show(
                    errors("edac_module_errors_total", "instance, controller, module, label, severity")
                        .above(0.0),
                    "{{instance}} {{label}} {{controller}}/{{module}} {{severity}} an hour",
                ),
            Chart::table("Memory controllers", "Which controllers watch how much memory?", Unit::Bytes).show(
                of("edac_controller_size_bytes").max("instance, controller").join(
                    "instance, controller",
                    "type",
                    &of("edac_controller_info"),
                ),
                "memory",
            ),
            Chart::lines("Parity errors on buses", "Does a bus of the node lose data?", Unit::Count)
                .from_zero()
                .show(errors("edac_pci_parity_errors_total", "instance"), "{{instance}} an hour"),
        ],
    )
}

fn tests() -> Row {
    let bandwidth = |name| of(name).max("instance, test, measure, device");
    Row::folded(
        "Is the node as fast under load as it should be?",
        vec![
            Chart::lines(
                "Bandwidth in tests",
                "What did check --active measure, and is it less than before?",
                Unit::BytesPerSecond,
            )
            .from_zero()
            .show(bandwidth("node_test_bandwidth_bytes_per_second"), "{{instance}} {{measure}} {{device}}")
            .show(
                bandwidth("node_test_reference_bytes_per_second"),
                "{{instance}} {{measure}} {{device}}, reference",
            ),
            Chart::states("Verdicts of tests", "Which test failed, and which was not run?").show(
                of("node_test_info").max("instance, test, verdict"),
                "{{instance}} {{test}} {{verdict}}",
            ),
            Chart::table("Age of tests", "Which nodes have not been tested for longest?", Unit::Seconds)
                .show(
                    of("node_test_last_run_timestamp_seconds").max("instance, test").age().top(),
                    "since the last run",
                ),
        ],
    )
}

fn pcie() -> Row {
    Row::folded(
        "Are the PCIe links well?",
        vec![
            Chart::states("Links below what they could", "Which device has lost lanes or speed?").show(
                of("pci_link_degraded").max("instance, pci, what").above(0.0),
                "{{instance}} {{pci}} {{what}}",
            ),
            Chart::lines("Errors by severity", "Is a slot or a riser loose?", Unit::PerSecond)
                .from_zero()
                .show(
                    of("pci_aer_severity_errors_total").rate().max("instance, pci, severity").top(),
                    "{{instance}} {{pci}} {{severity}}",
                ),
            Chart::lines("Errors by name", "What kind of errors are they?", Unit::PerSecond)
                .from_zero()
                .show(
                    of("pci_aer_errors_total").rate().max("instance, pci, severity, error").above(0.0).top(),
                    "{{instance}} {{pci}} {{error}}",
                ),
            Chart::table("Lanes", "Which devices have fewer lanes than they could have? Only where the configuration asks for it.", Unit::Count).show(
                of("pci_link_max_width")
                    .max("instance, pci")
                    .minus(&of("pci_link_width").max("instance, pci"))
                    .top(),
                "lanes fewer",
            ),
            Chart::table("Speed", "At which share of their speed do the links run? Only where the configuration asks for it.", Unit::Ratio).show(
                of("pci_link_speed_transfers_per_second")
                    .max("instance, pci")
                    .over(&of("pci_link_max_speed_transfers_per_second").max("instance, pci"))
                    .bottom(),
                "of its speed",
            ),
            Chart::table("Devices", "What is at which address?", Unit::Count)
                .facts(of("pci_info").max("instance, pci, kind, driver, numa_node, upstream, gpu").top()),
        ],
    )
}

fn setup() -> Row {
    Row::folded(
        "Did the setup change?",
        vec![
            Chart::lines("Changes of the setup", "Did a driver, a library or a setting change?", Unit::Count)
                .bars()
                .from_zero()
                .show(
                    of("config_changes_total").increase().max("instance, of"),
                    "{{instance}} of the {{of}}",
                ),
            Chart::lines("Since the last change", "How long has the setup been as it is?", Unit::Seconds)
                .show(
                    of("config_last_change_timestamp_seconds").max("instance, of").age(),
                    "{{instance}} of the {{of}}",
                ),
            Chart::table("Fingerprints", "Do nodes of one run have the same setup?", Unit::Count)
                .facts(of("config_fingerprint_info").max("instance, run, fingerprint").top()),
            Chart::table("Settings of the node", "How is the node set up?", Unit::Count)
                .facts(of("config_value_info").with(r#"run="""#).max("instance, key, value")),
            Chart::lines("Not compared", "Which settings and processes are not looked at?", Unit::Count)
                .from_zero()
                .show(of("config_left_out").max("instance, reason"), "{{instance}} {{reason}}")
                .show(of_node("config_unreadable_processes"), "{{instance}} processes of others"),
        ],
    )
}

fn sight() -> Row {
    Row::folded(
        "Can we see the node?",
        vec![
            Chart::lines("Collectors", "Which collector does not return?", Unit::Seconds)
                .from_zero()
                .show(
                    of("stepwatch_exporter_collector_stuck_seconds").max("instance, collector").above(0.0),
                    "{{instance}} {{collector}} over its deadline",
                )
                .show(
                    of("stepwatch_exporter_collector_duration_seconds").max("instance, collector").top(),
                    "{{instance}} {{collector}}",
                ),
            Chart::states("Failing", "Which collector fails?").word(0.0, "fails", "red").show(
                of("stepwatch_exporter_collector_success").min("instance, collector").equal(0.0),
                "{{instance}} {{collector}}",
            ),
            Chart::lines("Kernel log", "Did we miss anything of the kernel log?", Unit::Count)
                .from_zero()
                .show(
                    of("kernel_log_lost_records_total").increase().max("instance"),
                    "{{instance}} records overwritten",
                )
                .show(
                    of("kernel_log_malformed_records_total").increase().max("instance"),
                    "{{instance}} records malformed",
                )
                .show(
                    of("stepwatch_exporter_kernel_events_suppressed_total").increase().max("instance"),
                    "{{instance}} events counted and not streamed",
                ),
            Chart::lines(
                "Reading of the kernel log",
                "Does the log come in, and how much of it is known?",
                Unit::Count,
            )
            .from_zero()
            .show(of("kernel_log_records_total").increase().max("instance"), "{{instance}} records")
            .show(of_node("kernel_known_messages"), "{{instance}} messages learned"),
        ],
    )
}
