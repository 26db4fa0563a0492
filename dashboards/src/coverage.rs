//! Which families of the two programs are on a panel, and which are left out on purpose.

use std::collections::BTreeSet;

use crate::{boards, promql};

/// Families that no panel shows, and why. A family that is neither here nor on a panel fails a
/// test.
pub const LEFT_OUT: &[(&str, &str)] = &[
    ("clock_tai_offset_seconds", "a constant that changes with a leap second"),
    ("gpu_c2c_errors_total", "only superchips have it, and none has been read yet"),
    ("gpu_c2c_low_power", "only superchips have it, and none has been read yet"),
    ("gpu_c2c_speed_bytes_per_second", "only superchips have it, and none has been read yet"),
    ("gpu_c2c_up", "only superchips have it, and none has been read yet"),
    ("stepwatch_alerter_chart_render_seconds", "pictures delay no message; for who looks for their cost"),
    ("stepwatch_alerter_chart_renders", "pictures delay no message; for who looks for their cost"),
    ("stepwatch_alerter_chart_uploads", "the log says why a picture is left out"),
    ("disk_nvme_powered_seconds_total", "an age, whose rate says nothing; `nvme smart-log` shows it"),
    (
        "job_process_info",
        "process numbers and commands, for joins; the command line shows them to who looks for one",
    ),
    (
        "job_rendezvous_connections",
        "there for some minutes of a start; the incident of a start that hangs names the node",
    ),
    ("job_rendezvous_peers", "there for some minutes of a start; the incident says it"),
    ("job_rendezvous_ranks", "there for some minutes of a start; the incident names the ranks"),
    (
        "node_test_last_attempt_timestamp_seconds",
        "tells why the last run, which is shown, is older: the test was tried in vain since",
    ),
    (
        "rdma_port_receive_multicast_packets_total",
        "a part of rdma_port_receive_packets_total, which is shown",
    ),
    ("rdma_port_receive_unicast_packets_total", "a part of rdma_port_receive_packets_total, which is shown"),
    (
        "rdma_port_transmit_multicast_packets_total",
        "a part of rdma_port_transmit_packets_total, which is shown",
    ),
    (
        "rdma_port_transmit_unicast_packets_total",
        "a part of rdma_port_transmit_packets_total, which is shown",
    ),
];

/// The samples that the dashboards read, by the names that expressions use.
pub fn read() -> BTreeSet<String> {
    let boards = boards::all();
    let expressions = boards.iter().flat_map(|(_, board)| board.expressions());
    expressions
        .flat_map(|expr| promql::metrics(&expr).into_iter().map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

/// Whether one of the samples is of this family. A counter of the alerter is registered without the
/// suffix that its samples have.
pub fn has(samples: &BTreeSet<String>, family: &str) -> bool {
    let names = ["", "_total", "_info", "_bucket", "_sum", "_count"];
    names.iter().any(|suffix| samples.contains(&format!("{family}{suffix}")))
}

/// Why a family is on no panel, if that is meant to be.
pub fn reason(family: &str) -> Option<&'static str> {
    LEFT_OUT.iter().find(|(name, _)| *name == family).map(|(_, reason)| *reason)
}
