//! The page of a healthy node of each kind: every number that the driver gave, in base units, under
//! its name.

use stepwatch_fake_nvml::{Fault, Fleet, Quantity, Script, library};
use stepwatch_tests::exposition;

use crate::node::{EVERYTHING, Node, gpu_families, of_gpus};

const GIB: f64 = 1_073_741_824.0;

/// A second at which every counter is known.
const NOW: f64 = 100.0;

/// A family, its labels besides the GPU's, and its value.
type Row = (&'static str, &'static [(&'static str, &'static str)], f64);

/// What NVML's calls cost differs from run to run.
const COSTS: &str = "gpu_nvml_call_";

/// The page once all has been read that is read at all: profiling takes two passes.
async fn settled(node: &Node, profiles: bool, gpus: usize) -> String {
    let whole = |page: &str| {
        let family = if profiles { "gpu_sm_active_ratio" } else { "gpu_power_limit_watts" };
        of_gpus(page).lines().filter(|l| l.starts_with(family)).count() >= gpus
    };
    node.page_where("the GPUs are on the page", whole).await
}

fn check(page: &str, gpu: &str, rows: &[Row]) {
    for (name, labels, want) in rows {
        let labels: Vec<_> = [("gpu", gpu)].iter().chain(*labels).copied().collect();
        let value = exposition::value(page, name, &labels);
        let near = value.is_some_and(|v| (v - want).abs() <= want.abs() * 1e-9);
        assert!(near, "{name} {labels:?}: {value:?}, expected {want}\n{}", of_gpus(page));
    }
}

fn absent(page: &str, gpu: &str, names: &[&str]) {
    for name in names {
        let value = exposition::value(page, name, &[("gpu", gpu)]);
        assert_eq!(value, None, "{name} of {gpu}");
    }
}

/// The page without what differs from run to run, and without the name that is on every line.
fn golden(page: &str, gpu: &str) -> String {
    let lines = of_gpus(page).replace(gpu, "GPU");
    lines.split_inclusive('\n').filter(|l| !l.starts_with(COSTS)).collect()
}

/// Of every GPU of the fleets with Hopper's features.
const COMMON: &[Row] = &[
    ("gpu_persistence_mode", &[], 1.0),
    ("gpu_performance_state", &[], 0.0),
    ("gpu_throttle_active", &[("reason", "sw_power_cap")], 1.0),
    ("gpu_throttle_active", &[("reason", "hw_slowdown")], 0.0),
    ("gpu_throttle_active", &[("reason", "gpu_idle")], 0.0),
    // Five thousand seconds, and a tenth of each of a hundred.
    ("gpu_throttled_seconds_total", &[("reason", "sw_power_cap")], 5010.0),
    (
        "gpu_ecc_errors_total",
        &[("severity", "corrected"), ("lifetime", "volatile"), ("location", "dram")],
        0.0,
    ),
    (
        "gpu_ecc_errors_total",
        &[("severity", "uncorrected"), ("lifetime", "aggregate"), ("location", "sram")],
        0.0,
    ),
    ("gpu_sram_ecc_threshold_exceeded", &[], 0.0),
    ("gpu_remapped_rows", &[("cause", "correctable")], 0.0),
    ("gpu_remapped_rows", &[("cause", "uncorrectable")], 0.0),
    ("gpu_row_remap_pending", &[], 0.0),
    ("gpu_row_remap_failed", &[], 0.0),
    ("gpu_row_remap_banks", &[("availability", "max")], 2560.0),
    ("gpu_recovery_action", &[("action", "none")], 1.0),
    ("gpu_recovery_action", &[("action", "gpu_reset")], 0.0),
    ("gpu_pcie_link_width", &[], 16.0),
    ("gpu_pcie_link_max_width", &[], 16.0),
    ("gpu_processes", &[], 1.0),
];

#[tokio::test(flavor = "multi_thread")]
async fn eight_h100() {
    // This driver has power smoothing where later ones count throttling.
    let smoothing = Script::for_fleet(Fleet::H100)
        .at(NOW)
        .all("smoothing.enabled", 1u64)
        .all("smoothing.privilege", 2u64);
    let node = Node::start(&smoothing).await;
    let page = settled(&node, true, 8).await;
    let gpu = Fleet::H100.uuid(3);
    check(&page, &gpu, COMMON);
    for reason in ["sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"] {
        let labels = [("gpu", gpu.as_str()), ("reason", reason)];
        assert_eq!(exposition::value(&page, "gpu_throttled_seconds_total", &labels), None, "{reason}");
    }
    let rows: &[Row] = &[
        ("gpu_utilization_ratio", &[], 0.93),
        ("gpu_memory_controller_utilization_ratio", &[], 0.43),
        ("gpu_memory_used_bytes", &[], 63.0 * GIB),
        ("gpu_memory_total_bytes", &[], 81_559.0 * 1_048_576.0),
        ("gpu_memory_reserved_bytes", &[], 552.0 * 1_048_576.0),
        ("gpu_temperature_celsius", &[("sensor", "gpu")], 43.0),
        ("gpu_temperature_celsius", &[("sensor", "memory")], 63.0),
        ("gpu_temperature_margin_celsius", &[], 42.0),
        ("gpu_temperature_threshold_celsius", &[("kind", "slowdown")], 89.0),
        ("gpu_temperature_threshold_celsius", &[("kind", "shutdown")], 92.0),
        ("gpu_power_watts", &[], 503.0),
        ("gpu_power_instant_watts", &[], 603.0),
        ("gpu_power_limit_watts", &[], 700.0),
        // Millijoules: 10^12, and half a kilowatt for a hundred seconds.
        ("gpu_energy_joules_total", &[], 1_000_050_300.0),
        ("gpu_clock_hertz", &[("domain", "sm")], 1.752e9),
        ("gpu_clock_hertz", &[("domain", "memory")], 2.619e9),
        ("gpu_clock_max_hertz", &[("domain", "sm")], 1.98e9),
        ("gpu_pcie_link_generation", &[], 5.0),
        ("gpu_pcie_errors_total", &[("kind", "replay")], 3.0),
        // MiB a second: NVML counts bytes in 32 bits, which had wrapped dozens of times by now.
        ("gpu_pcie_transmit_bytes_per_second", &[], 1907.0 * 1_048_576.0),
        ("gpu_pcie_receive_bytes_per_second", &[], 2861.0 * 1_048_576.0),
        ("gpu_nvlink_up", &[("link", "0")], 1.0),
        ("gpu_nvlink_up", &[("link", "17")], 1.0),
        ("gpu_nvlink_speed_bytes_per_second", &[("link", "4")], 26_562e6),
        // KiB.
        ("gpu_nvlink_transmit_bytes_total", &[("link", "0")], (1e6 + 3.0 + 1e9) * 1024.0),
        ("gpu_nvlink_receive_bytes_total", &[("link", "17")], (2e6 + 3.0 + 1e9) * 1024.0),
        ("gpu_nvlink_errors_total", &[("link", "3"), ("kind", "replay")], 0.0),
        ("gpu_nvlink_errors_total", &[("link", "3"), ("kind", "recovery")], 0.0),
        ("gpu_fabric_state", &[("state", "completed")], 1.0),
        ("gpu_fabric_health", &[("condition", "degraded_bandwidth")], 0.0),
        ("gpu_fabric_health", &[("condition", "incorrect_configuration")], 0.0),
        ("gpu_sm_active_ratio", &[], 0.9125),
        ("gpu_sm_occupancy_ratio", &[], 0.435),
        ("gpu_tensor_active_ratio", &[], 0.6475),
        ("gpu_dram_active_ratio", &[], 0.375),
    ];
    check(&page, &gpu, rows);
    assert_eq!(exposition::value(&page, "gpu_nvlink_up", &[("gpu", &gpu), ("link", "18")]), None);
    let info = [
        ("index", "3"),
        ("pci", "0000:61:00.0"),
        ("name", "NVIDIA H100 80GB HBM3"),
        ("driver", "570.172.08"),
    ];
    let info: Vec<_> =
        info.into_iter().chain([("gpu", &*gpu), ("cuda", "12.8"), ("vbios", "96.00.89.00.01")]).collect();
    assert_eq!(exposition::value(&page, "gpu_info", &info), Some(1.0), "{page}");
    let gpus = |family: &str| page.lines().filter(|l| l.starts_with(&format!("{family}{{"))).count();
    assert_eq!((gpus("gpu_power_watts"), gpus("gpu_nvlink_up")), (8, 144));
    // Two calls that must never be made of a GPU under load.
    for dear in ["nvmlDeviceGetPcieThroughput", "nvmlDeviceGetGraphicsRunningProcesses_v3"] {
        assert_eq!(node.calls().count(dear), 0, "{dear}");
    }
    node.decent();
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_b200_count_nvlink_otherwise() {
    let mut script = Script::for_fleet(Fleet::B200).at(NOW);
    // 3e-12 on one link, which has also lost symbols.
    script = script.one(2, "nvlink.symbol_ber.5", 0x30c_u64).one(2, "nvlink.symbol_errors.5", 77u64);
    // It may answer to the counters of the generation before, and have no value in them.
    script = script.all("nvlink.transmit_kib", 0u64).all("nvlink.receive_kib", 0u64);
    let node = Node::start(&script).await;
    let page = settled(&node, true, 8).await;
    let gpu = Fleet::B200.uuid(2);
    check(&page, &gpu, COMMON);
    let rows: &[Row] = &[
        ("gpu_throttled_seconds_total", &[("reason", "hw_thermal_slowdown")], 0.0),
        ("gpu_throttled_seconds_total", &[("reason", "hw_power_brake_slowdown")], 0.0),
        ("gpu_power_watts", &[], 802.0),
        ("gpu_power_limit_watts", &[], 1000.0),
        ("gpu_nvlink_speed_bytes_per_second", &[("link", "0")], 53_125e6),
        ("gpu_nvlink_transmit_bytes_total", &[("link", "0")], 1e9 + 2.0 + 2e12),
        ("gpu_nvlink_receive_bytes_total", &[("link", "17")], 2e9 + 2.0 + 2e12),
        ("gpu_nvlink_errors_total", &[("link", "5"), ("kind", "symbol")], 77.0),
        ("gpu_nvlink_errors_total", &[("link", "6"), ("kind", "symbol")], 0.0),
        ("gpu_nvlink_errors_total", &[("link", "5"), ("kind", "effective")], 0.0),
        ("gpu_nvlink_symbol_ber", &[("link", "5")], 3e-12),
        (
            "gpu_fabric_info",
            &[("cluster_uuid", "5f1c2d3e-4a5b-4c6d-8e7f-908172635445"), ("clique_id", "1")],
            1.0,
        ),
    ];
    check(&page, &gpu, rows);
    node.decent();
}

#[tokio::test(flavor = "multi_thread")]
async fn histories_of_error_correction_are_published_on_request() {
    let script = Script::for_fleet(Fleet::B200).at(NOW).one(2, "nvlink.fec.3.17", 44u64);
    let node = Node::start_with(
        &script,
        &library().unwrap(),
        "collectors:\n  gpu: {metrics: {include: ['*']}, fec_history: true}\n",
    )
    .await;
    let page = settled(&node, false, 8).await;
    let rows: &[Row] = &[("gpu_nvlink_fec_history_total", &[("link", "17"), ("errors", "3")], 44.0)];
    check(&page, &Fleet::B200.uuid(2), rows);
    let published =
        |page: &str| page.lines().filter(|l| l.starts_with("gpu_nvlink_fec_history_total")).count();
    assert_eq!(published(&page), 8 * 18 * 16);
    let reserved = Node::start(&script).await;
    assert_eq!(published(&settled(&reserved, false, 8).await), 0, "too many to be published unasked");
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_of_an_h200() {
    let node = Node::start(&Script::for_fleet(Fleet::H200Mig).at(NOW)).await;
    let sampled = |page: &str| {
        let of = |family: &str| page.lines().filter(|l| l.starts_with(family)).count();
        of("gpu_sm_active_ratio{") == 6 && of("gpu_mig_sm_active_ratio{") == 5
    };
    let page = node.page_where("parts and wholes are profiled", sampled).await;
    let (cut, whole) = (Fleet::H200Mig.uuid(0), Fleet::H200Mig.uuid(2));
    let rows: &[Row] = &[
        ("gpu_mig_info", &[("gi", "1"), ("ci", "0"), ("profile", "3g.71gb")], 1.0),
        ("gpu_mig_info", &[("gi", "2"), ("mig_uuid", "MIG-00000000-0000-5000-8000-000000000002")], 1.0),
        ("gpu_mig_memory_total_bytes", &[("gi", "1"), ("ci", "0")], 71_424.0 * 1_048_576.0),
        ("gpu_mig_sm_active_ratio", &[("gi", "2")], 0.77),
        ("gpu_mig_tensor_active_ratio", &[("gi", "1")], 0.55),
        ("gpu_power_watts", &[], 500.0),
    ];
    check(&page, &cut, rows);
    absent(&page, &cut, &["gpu_utilization_ratio", "gpu_sm_active_ratio", "gpu_remapped_rows"]);
    check(&page, &whole, COMMON);
    absent(&page, &whole, &["gpu_mig_info"]);
    assert_eq!(page.lines().filter(|l| l.starts_with("gpu_mig_info{")).count(), 5);
    node.decent();
}

/// A compute tray of an NVL72 rack: what nvml.h has of platform, links to the CPU and scopes of
/// power (`nvmlPlatformInfo_v2_t`, `NVML_FI_DEV_C2C_LINK_*`, `NVML_POWER_SCOPE_*`).
#[tokio::test(flavor = "multi_thread")]
async fn a_tray_of_a_rack() {
    let node = Node::start(&Script::for_fleet(Fleet::Nvl72).at(NOW)).await;
    let page = settled(&node, true, 4).await;
    let gpu = Fleet::Nvl72.uuid(2);
    let place: &[(&str, &str)] = &[
        ("chassis", "1821025191057"),
        ("slot", "14"),
        ("tray", "8"),
        ("host", "1"),
        ("module", "3"),
        ("ib_guid", "2c5eab0300289a40"),
    ];
    let fabric: &[(&str, &str)] =
        &[("cluster_uuid", "2c5eab03-0028-9a40-8e7f-908172635445"), ("clique_id", "32766")];
    let rows: &[Row] = &[
        ("gpu_platform_info", place, 1.0),
        ("gpu_fabric_info", fabric, 1.0),
        ("gpu_module_power_watts", &[("scope", "module")], 1502.0),
        ("gpu_module_power_watts", &[("scope", "memory")], 152.0),
        ("gpu_power_instant_watts", &[], 602.0),
        ("gpu_c2c_up", &[("link", "4")], 1.0),
        ("gpu_c2c_speed_bytes_per_second", &[("link", "0")], 45e9),
        ("gpu_c2c_low_power", &[("link", "0")], 0.0),
        ("gpu_c2c_errors_total", &[("link", "3"), ("kind", "replay")], 0.0),
        ("gpu_nvlink_up", &[("link", "17")], 1.0),
        ("gpu_graphics_active_ratio", &[], 0.925),
    ];
    check(&page, &gpu, rows);
    assert_eq!(exposition::value(&page, "gpu_c2c_up", &[("gpu", &gpu), ("link", "5")]), None);
    assert_eq!(exposition::value(&page, "gpu_count", &[]), Some(4.0));
    node.decent();
}

/// `NVML_NVLINK_MAX_LINKS` is 36 in nvml.h (NVIDIA/go-nvml).
#[tokio::test(flavor = "multi_thread")]
async fn a_link_beyond_the_eighteenth_that_is_down() {
    let script = Script { count: Some(4), ..Script::for_fleet(Fleet::B200).at(NOW) };
    let script = script.all("nvlink.links", 36u64).one(1, "nvlink.state.30", 0u64);
    let node = Node::start(&script).await;
    let page = settled(&node, true, 4).await;
    let up = |gpu: usize, link: &str| {
        exposition::value(&page, "gpu_nvlink_up", &[("gpu", &Fleet::B200.uuid(gpu)), ("link", link)])
    };
    assert_eq!([up(0, "30"), up(1, "30"), up(1, "35"), up(1, "36")], [Some(1.0), Some(0.0), Some(1.0), None]);
    let name = format!("{}/nvlink30", Fleet::B200.uuid(1));
    let is_down = |event: &serde_json::Value| event["name"] == name.as_str() && event["state"] == "down";
    node.event("the link is reported", is_down).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_a100_lacks_what_came_later() {
    let node = Node::start(&Script::for_fleet(Fleet::A100).at(NOW)).await;
    let page = settled(&node, false, 8).await;
    let gpu = Fleet::A100.uuid(7);
    let rows: &[Row] = &[
        ("gpu_power_watts", &[], 357.0),
        ("gpu_pcie_link_generation", &[], 4.0),
        ("gpu_nvlink_up", &[("link", "11")], 1.0),
        ("gpu_nvlink_speed_bytes_per_second", &[("link", "11")], 25_781e6),
        ("gpu_remapped_rows", &[("cause", "uncorrectable")], 0.0),
    ];
    check(&page, &gpu, rows);
    assert_eq!(exposition::value(&page, "gpu_nvlink_up", &[("gpu", &gpu), ("link", "12")]), None);
    let later = [
        "gpu_sm_active_ratio",
        "gpu_temperature_margin_celsius",
        "gpu_fabric_state",
        "gpu_pcie_transmit_bytes_per_second",
    ];
    absent(&page, &gpu, &later);
    node.decent();
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_that_older_gpus_retired() {
    let script = Script { count: Some(1), ..Script::for_fleet(Fleet::A100) };
    let script = script.all("retired.single", 3u64).all("retired.double", 1u64).all("retired.pending", 1u64);
    let node = Node::start(&script).await;
    let page = settled(&node, false, 1).await;
    let rows: &[Row] = &[
        ("gpu_retired_pages", &[("cause", "single_bit")], 3.0),
        ("gpu_retired_pages", &[("cause", "double_bit")], 1.0),
        ("gpu_retired_pages_pending", &[], 1.0),
    ];
    check(&page, &Fleet::A100.uuid(0), rows);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_without_a_gpu_and_a_node_without_a_driver() {
    let node = Node::start(&Script::default()).await;
    node.state("gpu", "unsupported").await;
    assert_eq!(gpu_families(&node.page().await).iter().filter(|f| f.starts_with("gpu_power")).count(), 0);
    let missing = node.dir.path().join("libnvidia-ml.so.1");
    let other = Node::start_with(&Script::default(), &missing, "").await;
    other.state("gpu", "unsupported").await;
    assert!(other.value("nic_up", &[("device", "eth0")]).await.is_some());
}

/// Everything that a GPU may publish, of one GPU of each kind: look at it when it changes.
#[tokio::test(flavor = "multi_thread")]
async fn golden_pages() {
    let fleets =
        [(Fleet::A100, "a100"), (Fleet::H100, "h100"), (Fleet::H200Mig, "h200_mig"), (Fleet::B200, "b200")];
    for (fleet, name) in fleets {
        // All links are alike.
        let script = Script { count: Some(1), ..Script::for_fleet(fleet).at(NOW) }.all("nvlink.links", 2u64);
        let node = Node::start(&script).await;
        let family = match fleet {
            Fleet::A100 => "gpu_power_limit_watts{",
            Fleet::H200Mig => "gpu_mig_sm_active_ratio{",
            _ => "gpu_sm_active_ratio{",
        };
        let page = node.page_where(name, |page| page.lines().any(|l| l.starts_with(family))).await;
        insta::assert_snapshot!(name, golden(&page, &fleet.uuid(0)));
    }
}

/// Values with which a driver answers that a number is unknown.
const SENTINELS: &[u64] = &[0xFFFF_FFFF, u64::MAX, i64::MAX as u64, 0x7FFF_FFFF_FFFF_FFF0];

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_known_is_absent() {
    // One GPU for each way; the numbers are of 32 bits or of 64, and are cut to the type in which
    // they are given.
    let names = [
        "power.usage",
        "power.instant",
        "power.limit",
        "energy",
        "temperature",
        "temperature.memory",
        "utilization.gpu",
        "utilization.memory",
        "memory.used",
        "memory.free",
        "memory.reserved",
        "clock.sm",
        "clock.max.sm",
        "pcie.replay",
        "pcie.generation",
        "pcie.width",
        "throttled.power",
        // Of drivers from 575 on.
        "throttled.hw_thermal",
        "nvlink.transmit_kib",
        "nvlink.replay",
        "nvlink.speed",
        "ecc.corrected.volatile",
        "ecc.corrected.volatile.dram",
        "ecc.uncorrected.aggregate.sram",
        "remapped.correctable",
        "banks.max",
        "sram.volatile.corrected",
        "gpm.2",
    ];
    let mut script = Script {
        count: Some(SENTINELS.len() + 1),
        driver: Some("575.57.08".into()),
        ..Script::for_fleet(Fleet::H100).at(NOW)
    };
    for (gpu, sentinel) in SENTINELS.iter().enumerate() {
        for name in names {
            let quantity =
                if name == "gpm.2" { Quantity::Float(9.223_372_036_854_775e18) } else { (*sentinel).into() };
            script = script.one(gpu, name, quantity);
        }
    }
    // And one whose every value is an error.
    let last = SENTINELS.len();
    for name in names {
        script.gpus.entry(last.to_string()).or_default().insert(name.to_owned(), None);
    }
    let node = Node::start(&script).await;
    let dram = |page: &str| {
        page.lines().filter(|l| l.starts_with("gpu_dram_active_ratio{")).count() == SENTINELS.len() + 1
    };
    let page = node.page_where("the GPUs are profiled", dram).await;
    for line in of_gpus(&page).lines().filter(|l| !l.starts_with(COSTS)) {
        let value: f64 = line.rsplit_once(' ').unwrap().1.parse().unwrap();
        assert!(value < 1e15, "{line}");
        for wrong in [4_294_967_295.0, 4_294_967_280.0] {
            // As it came, or as a share, from milli-units, megahertz or nanoseconds.
            for scale in [1.0, 1e-2, 1e-3, 1e6, 1e-9, 1024.0] {
                assert!((value - wrong * scale).abs() > wrong * scale * 1e-6, "{line}");
            }
        }
    }
    for gpu in (0..=last).map(|i| Fleet::H100.uuid(i)) {
        let gone =
            ["gpu_power_watts", "gpu_energy_joules_total", "gpu_utilization_ratio", "gpu_memory_used_bytes"];
        absent(&page, &gpu, &gone);
        absent(&page, &gpu, &["gpu_sm_active_ratio", "gpu_pcie_link_width"]);
        absent(&page, &gpu, &["gpu_nvlink_transmit_bytes_total", "gpu_nvlink_speed_bytes_per_second"]);
        // What is known stays.
        check(&page, &gpu, &[("gpu_performance_state", &[], 0.0), ("gpu_dram_active_ratio", &[], 0.375)]);
        check(&page, &gpu, &[("gpu_clock_hertz", &[("domain", "memory")], 2.619e9)]);
    }
    node.decent();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_field_that_fails_costs_itself() {
    use stepwatch_fake_nvml::{Code, Effect};
    let mut script = Script { count: Some(1), ..Script::for_fleet(Fleet::H100).at(NOW) };
    script.faults.push(Fault::field(186, Effect::Fail(Code::Unknown)));
    script.faults.push(Fault::new("nvmlDeviceGetFabric*", Effect::Fail(Code::NoPermission)));
    script.faults.push(Fault::new("nvmlDeviceGetGpuFabric*", Effect::Fail(Code::NoPermission)));
    let node = Node::start(&script).await;
    let page = settled(&node, true, 1).await;
    let gpu = Fleet::H100.uuid(0);
    absent(&page, &gpu, &["gpu_power_instant_watts", "gpu_fabric_state"]);
    let refused = [("gpu", &*gpu), ("function", "nvmlDeviceGetGpuFabricInfoV")];
    assert_eq!(exposition::value(&page, "gpu_nvml_no_permission", &refused), Some(1.0), "{page}");
    check(
        &page,
        &gpu,
        &[("gpu_temperature_celsius", &[("sensor", "memory")], 60.0), ("gpu_power_watts", &[], 500.0)],
    );
    node.state("gpu", "healthy").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_driver_lacks_functions() {
    let dir = tempfile::tempdir().unwrap();
    let lacks = [
        "nvmlDeviceGetMarginTemperature",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetGpuFabricInfoV",
    ];
    let old = stepwatch_fake_nvml::library_without(dir.path(), &lacks).unwrap();
    let node = Node::start_with(
        &Script { count: Some(1), ..Script::for_fleet(Fleet::H100).at(NOW) },
        &old,
        EVERYTHING,
    )
    .await;
    let page = settled(&node, true, 1).await;
    let gpu = Fleet::H100.uuid(0);
    absent(&page, &gpu, &["gpu_temperature_margin_celsius"]);
    // Under its older name it is there, and the fabric without its health.
    let rows: &[Row] = &[
        ("gpu_throttle_active", &[("reason", "sw_power_cap")], 1.0),
        ("gpu_fabric_state", &[("state", "completed")], 1.0),
        ("gpu_fabric_health", &[("condition", "registration_failed")], 0.0),
    ];
    check(&page, &gpu, rows);
    for condition in ["degraded_bandwidth", "unhealthy"] {
        let labels = [("gpu", gpu.as_str()), ("condition", condition)];
        assert_eq!(exposition::value(&page, "gpu_fabric_health", &labels), None, "{condition}");
    }
    node.decent();
}
