//! The dashboards on a real Prometheus that scrapes real programs: two exporters on nodes of one
//! name in two clusters, each by two jobs, one of them once more without a label `cluster`, and the
//! alerter that follows it. No query fails, and no panel is empty for want of a label.

use std::net::SocketAddr;
use std::path::Path;

use stepwatch_dashboards::promql;
use stepwatch_fake_nvml::{Script, Stage, library};
use stepwatch_tests::peers::{self, Prometheus, PrometheusOptions};
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::programs::Machine;
use stepwatch_tests::trainer::Rank;
use stepwatch_tests::{Exporter, Stack, StackOptions, exposition, trainer};

use crate::tree::{FLEET, Tree};

/// Metrics that the nodes and runs of this test do not have, by their beginning, and why. That the
/// queries about them are right is tested with made-up values (`tests/dashboards/`).
const ABSENT: &[(&str, &str)] = &[
    ("mount_", "no network file system is mounted"),
    ("nfs_", "no network file system is mounted"),
    ("nccl_ras_", "no job answers on the port of RAS"),
    ("job_", "no scheduler, and no process of the run, is in the tree of the node"),
    ("gpu_job_info", "no scheduler gave a GPU away"),
    ("gpu_pod_info", "no kubelet gave a GPU away"),
    ("train_job_info", "no scheduler knows the run"),
    ("disk_", "the tree has no drives, and a file system that is not the node's"),
    ("edac_module_errors_total", "the tree has controllers without modules"),
    ("edac_pci_parity_errors_total", "the tree has no such counter"),
    ("edac_unattributed_errors_total", "the tree has no such counter"),
    ("nic_module_", "the interfaces of the tree have no transceivers"),
    ("nic_bond_", "the tree has no bond"),
    ("service_", "no systemd runs the tree"),
    ("kernel_memory_f", "the memory of the tree is not used up"),
    ("lustre_", "no network file system is mounted"),
    ("nic_ethtool", "the interfaces of the tree have no driver to ask"),
    ("nic_driver_info", "the interfaces of the tree have no driver to ask"),
    ("pci_aer_errors_total", "no device had an error"),
    ("rdma_port_counter_saturated", "no counter is at its end"),
    ("config_last_change_timestamp_seconds", "no setting changed"),
    ("gpu_mig_", "no GPU is partitioned"),
    ("gpu_retired_pages", "these GPUs remap rows instead"),
    ("gpu_unusable_info", "every GPU can be opened"),
    ("gpu_last_reset_timestamp_seconds", "no GPU was reset"),
    ("gpu_nvml_", "the driver refuses nothing, and every call returns"),
    ("gpu_nvlink_symbol_ber", "these GPUs do not report it"),
    ("gpu_nvlink_effective_ber", "these GPUs do not report it"),
    ("gpu_nvlink_fec_history_total", "only where the configuration asks for it"),
    ("gpu_nvswitch_sxid_errors_total", "no NVSwitch had an error"),
    ("gpu_bad_pages", "of AMD's GPUs"),
    ("gpu_clock_max_hertz", "only where the configuration asks for it"),
    ("gpu_fabric_health", "the fabric is well"),
    ("gpu_fabric_manager_messages_total", "fabric manager has no log in the tree"),
    ("gpu_imex_channels", "the driver offers none"),
    ("gpu_module_power_watts", "these GPUs are no part of a larger module"),
    ("gpu_nvlink_errors_total", "no link had an error"),
    ("gpu_nvlink_re", "bytes of each link only where the configuration asks for them; none recovered"),
    ("gpu_nvlink_speed_bytes_per_second", "only where the configuration asks for it"),
    ("gpu_nvlink_transmit_bytes_total", "only where the configuration asks for it"),
    ("gpu_pcie_errors_total", "no GPU had an error"),
    ("gpu_pipe_active_ratio", "only where the configuration asks for it"),
    ("gpu_platform_info", "these GPUs do not know their rack"),
    ("gpu_recovery_action", "no GPU wants anything"),
    ("gpu_row_remap_banks", "only where the configuration asks for it"),
    ("gpu_sram_ecc_", "the memory on the chip had no error"),
    ("gpu_temperature_threshold_celsius", "only where the configuration asks for it"),
    ("gpu_temperature_margin_threshold_celsius", "only where the configuration asks for it"),
    ("gpu_throttled_seconds_total", "nothing held a clock down"),
    ("gpu_unresponsive", "every GPU answers"),
    ("gpu_xid_recovery_action", "no XID asks for anything"),
    ("kubernetes_", "no API of Kubernetes is read"),
    ("nic_condition", "every interface is well"),
    ("node_test_", "no test under load was made"),
    ("pci_link_", "only where the configuration asks for it, or a link is slow"),
    ("rdma_device_quarantined", "every adapter is read"),
    ("rdma_hw_counter_total", "no counter has moved"),
    ("rdma_hw_resources", "the tree has no such files"),
    ("rdma_port_condition", "every port is well"),
    ("slurm_", "no Slurm is read"),
    ("train_anomaly_score", "the run is too short for an expectation"),
    ("train_carbon_grams_total", "no carbon intensity is configured"),
    ("train_effective_training_time_ratio", "the steps of this test may all be of one millisecond"),
    ("train_energy_joules_total", "the GPUs of this test are read for less than ten seconds"),
    ("train_tokens_per_dollar", "the steps of this test may all be of one millisecond"),
    ("train_tokens_per_joule", "the GPUs of this test are read for less than ten seconds"),
    ("train_cost_dollars_total", "the steps of this test may all be of one millisecond"),
    ("train_goodput_ratio", "the steps of this test may all be of one millisecond"),
    ("train_gpu_seconds_total", "the steps of this test may all be of one millisecond"),
    ("train_expected", "the run is too short for an expectation"),
    ("stepwatch_exporter_collector_series_left_out", "no collector has too many series"),
    ("gpu_fabric_info", "these GPUs belong to no fabric"),
    ("gpu_xid_nonfatal_errors_total", "no such XID happened"),
    ("train_source_", "the run reports by a socket, not by a log"),
    ("train_log_resolution", "the run reports by a socket, not by a log"),
    ("train_heartbeat_page_", "the trainer of this test has no page in shared memory"),
    ("train_client_dropped_total", "the trainer of this test drops nothing"),
    ("train_mfu_", "the trainer of this test declares no model"),
    ("train_peak_flops_per_second", "the trainer of this test declares no GPU"),
    ("train_reported_flops_per_second_per_gpu", "the trainer of this test does not print it"),
    ("train_tokens_per_second_per_gpu", "the trainer of this test declares no GPUs"),
    ("train_checkpoints", "no directory of checkpoints is followed"),
    ("train_checkpoint_written_bytes", "no directory of checkpoints is followed"),
    ("stepwatch_exporter_textfile_", "no script leaves a file"),
    ("stepwatch_exporter_nvml_released_until_timestamp_seconds", "NVML is in use"),
    ("stepwatch_exporter_http_connections_refused_total", "no connection was refused"),
    ("stepwatch_exporter_ingest_refused_total", "nobody sends more than a share, or for another's run"),
    ("stepwatch_exporter_heartbeat_pages_dropped_total", "there are no pages in shared memory"),
    ("stepwatch_alerter_api_", "nobody is refused, and nobody has a token"),
    ("stepwatch_alerter_audit_", "nobody changed anything"),
    ("stepwatch_alerter_calendar_", "no schedule has a calendar"),
    ("stepwatch_alerter_callbacks_total", "nobody answered"),
    ("stepwatch_alerter_discovery_failures_total", "every list of targets was read"),
    ("stepwatch_alerter_heartbeats_total", "no watchdog is configured"),
    ("stepwatch_alerter_http_connections_refused_total", "no connection was refused"),
    ("stepwatch_alerter_malformed_records_total", "every record was read"),
    ("stepwatch_alerter_notification_retries_total", "every message was taken at once"),
    ("stepwatch_alerter_notifications_failed_total", "every message was taken"),
    ("stepwatch_alerter_notifications_left_out_total", "no budget was used up"),
    ("stepwatch_alerter_notifications_unrecorded_total", "the store refused nothing"),
    ("stepwatch_alerter_remote_write_", "no Prometheus writes to it"),
    ("stepwatch_alerter_requests_shed_total", "there was room for every request"),
    ("stepwatch_alerter_source_refused_total", "the exporter reports its own node"),
    ("stepwatch_alerter_template_failures_total", "no template is configured"),
];

/// What a run reports beside its steps.
const EVENTS: &[&str] = &[
    r#""k":"step","step":51,"m":{"loss":2.2,"grad_norm":0.3,"lr":3e-4,"step_time":0.1,"tokens":1000,"mfu":0.4,"loss_scale":4096,"params_norm":30,"epoch":0.5,"router_entropy":1.5},"t":{"data":0.01,"fwd_bwd":0.08}"#,
    r#""k":"step","step":52,"m":{"loss":2.2,"grad_norm":0.3,"step_time":0.1,"tokens":1000,"mfu":0.4},"t":{"data":0.01,"fwd_bwd":0.08}"#,
    r#""k":"eval","step":52,"name":"c4","m":{"loss":2.3}"#,
    r#""k":"phase","name":"ckpt","phase":"begin""#,
    r#""k":"ckpt","phase":"start","step":52"#,
    r#""k":"ckpt","phase":"end","step":52,"bytes":5e9"#,
    r#""k":"phase","name":"ckpt","phase":"end""#,
];

/// A run that has reported all of that, and one whose loss is not a number any more, which pages.
fn runs(ingest: &Path) -> [Rank; 2] {
    let busy = trainer::warm_run(ingest, "busy", 50).unwrap();
    for event in EVENTS {
        let head = format!(r#"{{"v":1,"ts":{},"run":"busy","rank":0,"world":1,"#, trainer::now());
        busy.send_raw(format!("{head}{event}}}").as_bytes()).unwrap();
    }
    let sick = trainer::warm_run(ingest, "sick", 50).unwrap();
    sick.step(51, &[("loss", f64::NAN), ("grad_norm", f64::NAN)]).unwrap();
    [busy, sick]
}

/// A panel may show nothing because nothing is wrong: it shows only what is above or at a value.
fn shows_trouble_only(expr: &str) -> bool {
    let filters = [" > 0)", " > 0 or ", " == 0)", " == 1)", " > 0.5)", r#"action!="none""#];
    filters.iter().any(|filter| expr.contains(filter))
}

/// Those that stand for themselves in a legend. `cluster` is empty where there is one.
fn labels(legend: &str) -> impl Iterator<Item = &str> {
    let names = legend.split("{{").skip(1).filter_map(|rest| Some(rest.split_once("}}")?.0));
    names.filter(|name| *name != "cluster")
}

/// `node` is the address of each cluster's node; they have one name.
fn jobs(nodes: [SocketAddr; 2], alerter: SocketAddr) -> String {
    let job = |name: &str| {
        let target = |addr: SocketAddr, cluster: &str| {
            format!("      - {{targets: ['{addr}'], labels: {{cluster: {cluster}, instance: 'n1:9765'}}}}\n")
        };
        format!(
            "  - job_name: {name}\n    honor_labels: true\n    static_configs:\n{}{}",
            target(nodes[0], "east"),
            target(nodes[1], "west")
        )
    };
    let of_alerter = format!(
        "  - job_name: stepwatch-alerter\n    static_configs: [{{targets: ['{alerter}'], labels: {{cluster: east}}}}]\n"
    );
    [job("stepwatch-exporter"), job("other"), of_alerter].concat()
}

fn machine(dir: &Path, stage: &Stage) -> Machine {
    let tree = Tree::new(&dir.join("tree"));
    let slot = FLEET.pci(0);
    let xid =
        format!("4,1,1000000,-;NVRM: Xid (PCI:{}): 31, pid=7, name=python3", slot.trim_end_matches(".0"));
    tree.write("kmsg", &xid);
    let mut machine = tree.machine();
    machine.args.extend(["--nvml-library".into(), library().unwrap().into()]);
    machine.env.push((stepwatch_fake_nvml::SCRIPT.to_owned(), stage.path().into()));
    machine
}

#[tokio::test(flavor = "multi_thread")]
async fn every_panel_has_something_to_show() {
    let Some(program) = peers::prometheus() else { return };
    let dir = tempfile::tempdir().unwrap();
    let stage = Stage::new(dir.path(), &Script::for_fleet(FLEET)).unwrap();
    let machine = machine(dir.path(), &stage);
    let options = StackOptions { machine: machine.clone(), ..StackOptions::default() };
    let stack = Stack::start_with(options).await.unwrap();
    let west = Exporter::start_on(machine, &dir.path().join("west"), "", "").await.unwrap();
    let ranks = [stack.ingest(), west.ingest()].map(|at| runs(&at));
    stack.pagerduty.wait_for(|pd| !pd.pages.is_empty(), PATIENCE).await.unwrap();
    let nodes = [stack.exporter.addr, west.addr];
    let more = jobs(nodes, stack.alerter.addr);
    let options = PrometheusOptions { more, ..PrometheusOptions::default() };
    let prometheus = Prometheus::start_with(&program, dir.path(), &nodes[..1], "1s", options).await.unwrap();
    // A rate needs two scrapes of what the slow cadence publishes.
    prometheus.wait_for("count_over_time(gpu_ecc_errors_total{job=\"other\"}[1m]) >= 12").await.unwrap();

    let mut families = exposition::families(&stack.exporter.metrics().await.unwrap());
    families.extend(exposition::families(&stack.alerter.metrics().await.unwrap()));
    families.insert("up".to_owned());
    let has = |m: &&str| families.contains(*m) || families.contains(promql::family(m));
    let absent = |m: &&str| ABSENT.iter().any(|(beginning, _)| m.starts_with(beginning));
    let (mut shown, mut wrong) = (0, Vec::new());
    for (file, board) in stepwatch_dashboards::all() {
        for (expr, legend) in board.queries() {
            let query = promql::of_everything(&expr, "10s");
            let series = match prometheus.query(&query).await {
                Ok(series) => series,
                Err(why) => {
                    wrong.push(format!("{file}: {why:#}"));
                    continue;
                }
            };
            shown += usize::from(!series.is_empty());
            let names = promql::metrics(&expr);
            if let Some(missing) = names.iter().find(|name| !has(name) && !absent(name)) {
                wrong.push(format!("{file}: {missing} is not on the page: {query}"));
            } else if series.is_empty() && names.iter().all(has) && !shows_trouble_only(&expr) {
                wrong.push(format!("{file}: shows nothing: {query}"));
            }
            for one in &series {
                if let Some(label) = labels(legend).find(|label| !one["metric"][*label].is_string()) {
                    // A GPU that nothing else is known of any more has its UUID alone.
                    if !legend.contains("{{gpu}}") {
                        wrong.push(format!("{file}: no label {label} for {legend}: {query}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong: {wrong:#?}", wrong.len());
    assert!(shown > 250, "only {shown} of the panels' queries gave something");
    drop(ranks);
}
