//! Links of one node or a few: RDMA, NVLink and Ethernet, and what NCCL makes of them.

use crate::ethernet::{bonds, ethernet, transceivers};
use crate::head::{self, mark};
use crate::layout::{Board, Chart, Row};
use crate::model::{Annotation, Unit, Variable};
use crate::node;
use crate::series::{Expr, gpu, of, port};

pub(crate) fn board() -> Board {
    Board {
        uid: "stepwatch-fabric",
        title: "Stepwatch / Fabric",
        description: "RDMA ports, NVLinks and Ethernet of one node or a few, and the collectives over them.",
        variables,
        annotations,
        rows: vec![
            ports(),
            port_errors(),
            nvlink(),
            nvlink_fabric(),
            nvlink_quality(),
            collectives(),
            transceivers(),
            ethernet(),
            bonds(),
            identity(),
        ],
    }
}

fn variables() -> Vec<Variable> {
    let mut all = head::of_nodes();
    all.push(node::gpu_choice());
    all.push(node::device_choice());
    all
}

fn annotations() -> Vec<Annotation> {
    vec![
        head::incidents(),
        mark(
            "Port went down",
            "orange",
            of("rdma_port_link_downed_total").increase_in("1m").max("instance, device, port").above(0.0),
            "{{instance}} {{device}}/{{port}}",
        ),
    ]
}

const PORT: &str = "{{instance}} {{device}}/{{port}}";
const LINK: &str = "{{instance}} GPU {{index}} link {{link}}";

fn of_port(name: &'static str) -> Expr {
    port(name).max("instance, device, port")
}

fn rate_of_port(name: &'static str) -> Expr {
    port(name).rate().max("instance, device, port")
}

fn ports() -> Row {
    Row::open(
        "Do the nodes reach each other?",
        vec![
            Chart::lines("Sent by port", "Does every port carry its share?", Unit::BytesPerSecond)
                .from_zero()
                .show(rate_of_port("rdma_port_transmit_bytes_total"), PORT),
            Chart::lines("Received by port", "Does every port carry its share?", Unit::BytesPerSecond)
                .from_zero()
                .show(rate_of_port("rdma_port_receive_bytes_total"), PORT),
            Chart::states(
                "Conditions of ports",
                "Which port is down, flapping, slow or bad, and since when?",
            )
            .word(1.0, "yes", "red")
            .show(
                port("rdma_port_condition").max("instance, device, port, condition").above(0.0),
                "{{instance}} {{device}}/{{port}} {{condition}}",
            ),
            Chart::lines("Rate", "Has a port negotiated less than it should?", Unit::BytesPerSecond)
                .from_zero()
                .show(of_port("rdma_port_rate_bytes_per_second"), PORT)
                .show(
                    port("rdma_port_expected_rate_bytes_per_second").max("instance"),
                    "{{instance}} fastest that is expected",
                ),
            Chart::states("State of ports", "How far did the port come up?")
                .word(1.0, "down", "red")
                .word(2.0, "initialising", "orange")
                .word(3.0, "armed", "yellow")
                .word(4.0, "active", "green")
                .show(port("rdma_port_state").min("instance, device, port"), PORT),
            Chart::states("Physical state of ports", "Is there a signal on the cable?")
                .word(1.0, "sleep", "blue")
                .word(2.0, "polling, no signal", "red")
                .word(3.0, "disabled", "orange")
                .word(4.0, "training", "yellow")
                .word(5.0, "link up", "green")
                .word(6.0, "recovering", "orange")
                .show(port("rdma_port_physical_state").min("instance, device, port"), PORT),
            Chart::lines("Went down", "Which port keeps going down?", Unit::Count)
                .bars()
                .from_zero()
                .show(port("rdma_port_link_downed_total").increase().max("instance, device, port"), PORT),
            Chart::states("Ports that pass traffic", "Which port can be used?")
                .word(1.0, "up", "green")
                .word(0.0, "down", "red")
                .show(port("rdma_port_up").min("instance, device, port"), PORT),
        ],
    )
}

fn port_errors() -> Row {
    Row::open(
        "Do the ports work well?",
        vec![
            Chart::lines("Port errors", "Which errors does a link make?", Unit::PerSecond).from_zero().show(
                port("rdma_port_errors_total").rate().max("instance, device, port, kind").above(0.0),
                "{{instance}} {{device}}/{{port}} {{kind}}",
            ),
            Chart::lines("Congestion", "How long do ports wait to send?", Unit::PerSecond)
                .from_zero()
                .show(
                    rate_of_port("rdma_port_transmit_wait_ticks_total"),
                    "{{instance}} {{device}}/{{port}} ticks",
                )
                .show(
                    port("rdma_hw_counter_total")
                        .with(
                            r#"counter=~"np_cnp_sent|rp_cnp_handled|out_of_sequence|local_ack_timeout_err""#,
                        )
                        .rate()
                        .max("instance, device, port, counter"),
                    "{{instance}} {{device}}/{{port}} {{counter}}",
                ),
            Chart::lines("Packets", "How many packets go over a port?", Unit::PacketsPerSecond)
                .from_zero()
                .show(
                    rate_of_port("rdma_port_transmit_packets_total"),
                    "{{instance}} {{device}}/{{port}} sent",
                )
                .show(
                    rate_of_port("rdma_port_receive_packets_total"),
                    "{{instance}} {{device}}/{{port}} received",
                ),
            Chart::lines("Resources", "Does an adapter run out of what connections need?", Unit::Count)
                .from_zero()
                .show(
                    port("rdma_hw_resources").max("instance, device, port, resource"),
                    "{{instance}} {{device}} {{resource}}",
                ),
            Chart::states(
                "Left alone",
                "Of which adapter is not everything read, and which counter stands still?",
            )
            .word(1.0, "yes", "orange")
            .show(
                port("rdma_device_quarantined").max("instance, device").above(0.0),
                "{{instance}} {{device}} set aside",
            )
            .show(
                port("rdma_port_counter_saturated").max("instance, device, port, counter"),
                "{{instance}} {{device}}/{{port}} {{counter}} at its end",
            ),
        ],
    )
}

fn nvlink() -> Row {
    let traffic = |name| gpu(name).max("instance, gpu").named();
    Row::open(
        "Do the GPUs reach each other?",
        vec![
            Chart::lines("NVLink sent", "Does every GPU take part in the collectives?", Unit::BytesPerSecond)
                .from_zero()
                .show(traffic("gpu_nvlink_transmit_bytes_per_second"), "{{instance}} GPU {{index}}"),
            Chart::lines(
                "NVLink received",
                "Does every GPU take part in the collectives?",
                Unit::BytesPerSecond,
            )
            .from_zero()
            .show(traffic("gpu_nvlink_receive_bytes_per_second"), "{{instance}} GPU {{index}}"),
            Chart::lines("NVLinks up", "Has a GPU lost a link?", Unit::Count)
                .from_zero()
                .show(
                    gpu("gpu_nvlink_up").max("instance, gpu, link").sum("instance, gpu").named(),
                    "{{instance}} GPU {{index}}",
                )
                .show(gpu("gpu_expected_nvlinks").max("instance"), "{{instance}} most that are expected"),
            Chart::lines("NVLink errors", "Which link is bad?", Unit::Count).bars().from_zero().show(
                gpu("gpu_nvlink_errors_total")
                    .new_in("$__rate_interval")
                    .max("instance, gpu, link, kind")
                    .named(),
                "{{instance}} GPU {{index}} link {{link}} {{kind}}",
            ),
        ],
    )
}

fn nvlink_fabric() -> Row {
    Row::open(
        "Is the NVLink fabric well?",
        vec![
            Chart::states("NVLink fabric", "Is the fabric healthy?").word(1.0, "yes", "red").show(
                gpu("gpu_fabric_health").max("instance, gpu, condition").above(0.0).named(),
                "{{instance}} GPU {{index}} {{condition}}",
            ),
            Chart::states("Registration with the fabric", "Does the GPU belong to a fabric?")
                .word(1.0, "yes", "green")
                .show(
                    gpu("gpu_fabric_state").max("instance, gpu, state").above(0.0).named(),
                    "{{instance}} GPU {{index}} {{state}}",
                ),
            Chart::lines("Recoveries", "Which link goes down for a moment and comes back?", Unit::Count)
                .bars()
                .from_zero()
                .show(
                    gpu("gpu_nvlink_recoveries_total")
                        .new_in("$__rate_interval")
                        .max("instance, gpu, link")
                        .named(),
                    LINK,
                ),
            Chart::lines("Messages of fabric manager", "What does fabric manager log?", Unit::Count)
                .bars()
                .from_zero()
                .show(
                    of("gpu_fabric_manager_messages_total").increase().max("instance, message").above(0.0),
                    "{{instance}} {{message}}",
                ),
            Chart::lines("SXIDs", "Which errors do NVSwitches have?", Unit::Count).bars().from_zero().show(
                of("gpu_nvswitch_sxid_errors_total")
                    .increase()
                    .max("instance, nvswitch, sxid, severity")
                    .above(0.0),
                "{{instance}} {{nvswitch}} SXID {{sxid}} {{severity}}",
            ),
            Chart::lines("XIDs of NVLink 5", "Which of the errors 144 to 150 were not fatal?", Unit::Count)
                .bars()
                .from_zero()
                .show(
                    gpu("gpu_xid_nonfatal_errors_total").increase().max("instance, gpu, xid").above(0.0),
                    "{{instance}} {{gpu}} XID {{xid}}",
                ),
        ],
    )
}

fn nvlink_quality() -> Row {
    let links = |name| gpu(name).rate().max("instance, gpu, link").top().named();
    let worst = |name| gpu(name).max("instance, gpu, link").top().named();
    Row::folded(
        "How good are the NVLinks?",
        vec![
            Chart::lines("Bit errors before correction", "Which link is noisy?", Unit::Scientific)
                .log()
                .show(worst("gpu_nvlink_symbol_ber"), LINK),
            Chart::lines("Bit errors after correction", "Which link repeats itself?", Unit::Scientific)
                .log()
                .show(worst("gpu_nvlink_effective_ber"), LINK),
            Chart::lines(
                "Corrected symbols",
                "How many symbols of a block had to be corrected?",
                Unit::PerSecond,
            )
            .from_zero()
            .show(
                gpu("gpu_nvlink_fec_history_total")
                    .with(r#"errors!="0""#)
                    .rate()
                    .max("instance, gpu, link, errors")
                    .sum("instance, gpu, errors")
                    .top()
                    .named(),
                "{{instance}} GPU {{index}} {{errors}}",
            ),
            Chart::lines(
                "Busiest links",
                "Does every link carry its share? Only where the configuration asks for it.",
                Unit::BytesPerSecond,
            )
            .from_zero()
            .show(links("gpu_nvlink_transmit_bytes_total"), "{{instance}} GPU {{index}} link {{link}} sent")
            .show(
                links("gpu_nvlink_receive_bytes_total"),
                "{{instance}} GPU {{index}} link {{link}} received",
            ),
            Chart::lines(
                "Slowest links",
                "Did a link come up slower than the others? Only where the configuration asks for it.",
                Unit::BytesPerSecond,
            )
            .from_zero()
            .show(gpu("gpu_nvlink_speed_bytes_per_second").max("instance, gpu, link").bottom().named(), LINK),
            Chart::table("Fabric of the GPUs", "Which GPUs are in which NVLink domain?", Unit::Count)
                .facts(gpu("gpu_fabric_info").max("instance, gpu, cluster_uuid, clique_id")),
            Chart::lines("IMEX channels", "Can GPUs share memory with other nodes?", Unit::Count)
                .from_zero()
                .show(of("gpu_imex_channels").max("instance"), "{{instance}}"),
            Chart::table(
                "Links lead to",
                "Do the NVLinks lead to switches (1) or to other GPUs (0)?",
                Unit::Count,
            )
            .word(1.0, "switches", "text")
            .word(0.0, "GPUs", "text")
            .show(gpu("gpu_nvlink_switched").max("instance, gpu"), "lead to"),
        ],
    )
}

fn collectives() -> Row {
    let of_job = |name| of(name).max("instance, address");
    Row::open(
        "Do the ranks keep together?",
        vec![
            Chart::states(
                "Collectives that stand still",
                "Which job waits in a collective that not all ranks joined?",
            )
            .show(
                of_job("nccl_ras_stuck_ranks").above(0.0),
                "{{instance}} {{address}} ranks that did not join",
            )
            .show(
                of_job("nccl_ras_stuck_communicators").above(0.0),
                "{{instance}} {{address}} communicators",
            ),
            Chart::lines("Stands still for", "How long has a communicator not moved?", Unit::Seconds)
                .from_zero()
                .show(of_job("nccl_ras_stuck_seconds"), "{{instance}} {{address}}"),
            Chart::lines("Ranks of the job", "Does NCCL still hear from every rank?", Unit::Count)
                .from_zero()
                .show(of_job("nccl_ras_ranks"), "{{instance}} {{address}} ranks")
                .show(of_job("nccl_ras_missing_ranks"), "{{instance}} {{address}} do not answer")
                .show(of_job("nccl_ras_dead_ranks"), "{{instance}} {{address}} given up")
                .show(of_job("nccl_ras_errored_ranks"), "{{instance}} {{address}} with an error"),
            Chart::lines(
                "Communicators",
                "Are communicators apart? It is normal while they change.",
                Unit::Count,
            )
            .from_zero()
            .show(of_job("nccl_ras_communicators"), "{{instance}} {{address}} all")
            .show(of_job("nccl_ras_lagging_communicators"), "{{instance}} {{address}} apart"),
            Chart::lines(
                "Collectives",
                "How far apart are the ranks of the largest communicator?",
                Unit::Count,
            )
            .show(
                of("nccl_ras_collectives").max("instance, address, collective, of").top(),
                "{{instance}} {{collective}} {{of}}",
            ),
            Chart::lines("Answers of RAS", "Does RAS itself answer?", Unit::Seconds)
                .from_zero()
                .show(of_job("nccl_ras_collection_seconds"), "{{instance}} {{address}} takes")
                .show(of_job("nccl_ras_timeouts"), "{{instance}} {{address}} connections in vain"),
            Chart::lines("Failed polls", "Why did a poll give no answer?", Unit::PerSecond).from_zero().show(
                of("nccl_ras_poll_failures_total").rate().max("instance, reason"),
                "{{instance}} {{reason}}",
            ),
            Chart::table("Runs without RAS", "Which runs does RAS not answer for?", Unit::Count)
                .facts(of("nccl_ras_unreachable").max("instance, run").above(0.0)),
            Chart::table("Jobs with RAS", "Which jobs are asked, and in which version?", Unit::Count)
                .facts(of("nccl_ras_info").max("instance, address, nccl_version, format")),
            Chart::states("Polling", "Which node asks the job, and does it get an answer?")
                .word(1.0, "yes", "green")
                .word(0.0, "no", "transparent")
                .show(of_job("nccl_ras_polling"), "{{instance}} {{address}} asks")
                .show(of("nccl_ras_up").min("instance, address"), "{{instance}} {{address}} answers"),
        ],
    )
}

fn identity() -> Row {
    Row::folded(
        "Which adapters are they?",
        vec![
            Chart::table("Adapters", "Which adapter is where, with which firmware?", Unit::Count).facts(
                port("rdma_info")
                    .max("instance, device, firmware, board_id, hca_type, netdev, pci, numa_node"),
            ),
            Chart::table("Ports", "Which ports belong to the fabric?", Unit::Count)
                .facts(port("rdma_port_info").max("instance, device, port, link_layer, netdev, role")),
            Chart::table("Rails", "Which adapter is on which rail?", Unit::Count)
                .facts(port("rdma_rail_info").max("instance, device, rail, pci, numa_node")),
            Chart::table("Interfaces", "Which interface is what?", Unit::Count)
                .facts(of("nic_info").max("instance, device, driver, pci, numa_node").top()),
            Chart::table(
                "Drivers of interfaces",
                "Which driver and firmware has which interface?",
                Unit::Count,
            )
            .facts(of("nic_driver_info").max("instance, device, driver, version, firmware").top()),
        ],
    )
}
