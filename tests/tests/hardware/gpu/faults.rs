//! GPUs and drivers that fail: reported at once and once, without harm to the rest, and over when
//! the fault is over.

use std::time::Duration;

use serde_json::Value;
use stepwatch_fake_nvml::{Code, Effect, Fault, Fleet, NvmlEvent, Quantity, Script, calls, library};
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::{bins, daemon, exposition, poll_until};

use crate::node::{Node, of_gpus};

/// Quick enough for a test, and with both rhythms.
const QUICK: &str = "collectors:\n  gpu: {metrics: {include: ['*']}, interval: 100ms, slow_interval: 500ms, stuck_after: 1s}\n";

const FLEET: Fleet = Fleet::H100;

async fn start(script: &Script) -> Node {
    let node = Node::start_with(script, &library().unwrap(), QUICK).await;
    node.page_where("the GPUs are on the page", |page| powered(page) > 0).await;
    node
}

fn script() -> Script {
    Script { count: Some(4), ..Script::for_fleet(FLEET) }
}

/// How many GPUs publish their power.
fn powered(page: &str) -> usize {
    of_gpus(page).lines().filter(|l| l.starts_with("gpu_power_watts{")).count()
}

/// An event of this name and code about this GPU, where one is named.
fn is(event: &Value, name: &str, code: i64, gpu: Option<&str>) -> bool {
    event["k"] == "hw"
        && event["name"] == name
        && event["code"] == code
        && gpu.is_none_or(|g| event["gpu"] == g)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_that_is_lost() {
    let node = start(&script()).await;
    let gpu = FLEET.uuid(2);
    node.stage.set(&Script { lost: vec![2], ..script() }).unwrap();
    let event = node.event("the GPU is lost", |e| is(e, "gpu_lost", 1, Some(&gpu))).await;
    assert_eq!(
        (&event["level"], &event["pci"]),
        (&Value::from("error"), &Value::from(FLEET.pci(2))),
        "{event}"
    );
    assert!(event["ts"].is_number() && event["node"].is_string() && event["run"].is_null(), "{event}");
    assert!(event["text"].as_str().is_some_and(|t| t.contains(&gpu) || t.contains(&FLEET.pci(2))), "{event}");
    let page = node.page_where("the others stay", |page| powered(page) == 3).await;
    assert_eq!(exposition::value(&page, "gpu_lost", &[("gpu", &gpu)]), Some(1.0));
    assert_eq!(exposition::value(&page, "gpu_count", &[]), Some(3.0));
    assert_eq!(exposition::value(&page, "gpu_expected_count", &[]), Some(4.0));
    // It was reset.
    node.stage.set(&script()).unwrap();
    node.event("the GPU is back", |e| is(e, "gpu_lost", 0, Some(&gpu))).await;
    node.page_where("all are on the page", |page| powered(page) == 4).await;
    let events = node.events().await;
    assert_eq!(events.iter().filter(|e| is(e, "gpu_lost", 1, None)).count(), 1, "{events:#?}");
    node.decent();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_that_falls_off_the_bus_and_is_gone_when_the_driver_is_loaded_again() {
    let node = start(&script()).await;
    let gpu = FLEET.uuid(1);
    let fallen = Script { fallen: vec![1], ..script() };
    node.stage.set(&fallen).unwrap();
    node.event("the GPU is lost", |e| is(e, "gpu_lost", 1, Some(&gpu))).await;
    assert_eq!(node.post("/-/nvml/release").await.0, 200);
    assert_eq!(node.post("/-/nvml/acquire").await.0, 200);
    let page = node.page_where("three are left", |page| powered(page) == 3).await;
    assert_eq!(exposition::value(&page, "gpu_power_watts", &[("gpu", &gpu)]), None);
    assert_eq!(exposition::value(&page, "gpu_lost", &[("gpu", &gpu)]), Some(1.0), "{page}");
    let later = FLEET.uuid(3);
    let moved = exposition::value(&page, "gpu_info", &[("gpu", &later), ("index", "2")]);
    assert_eq!(moved, Some(1.0), "those behind it move up: {page}");
    assert_eq!(exposition::value(&page, "gpu_expected_count", &[]), Some(4.0), "one is missing");
    node.decent();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_that_does_not_come_back_from_a_restart() {
    let mut node = start(&script()).await;
    let gpu = FLEET.uuid(1);
    node.exporter.daemon.kill().await.unwrap();
    node.stage.set(&Script { fallen: vec![1], ..script() }).unwrap();
    node.exporter.restart().await.unwrap();
    let event = node.event("the GPU is missed", |e| is(e, "gpu_lost", 1, Some(&gpu))).await;
    assert_eq!(event["pci"], FLEET.pci(1), "{event}");
    let page = node.page_where("the others are there", |page| powered(page) == 3).await;
    assert_eq!(exposition::value(&page, "gpu_lost", &[("gpu", &gpu)]), Some(1.0));
    let slot = [("gpu", &*gpu), ("pci", &*FLEET.pci(1))];
    assert_eq!(exposition::value(&page, "gpu_info", &slot), Some(1.0), "{page}");
    assert_eq!(exposition::value(&page, "gpu_expected_count", &[]), Some(4.0));
    node.stage.set(&script()).unwrap();
    assert_eq!(node.post("/-/nvml/release").await.0, 200);
    assert_eq!(node.post("/-/nvml/acquire").await.0, 200);
    node.event("the GPU is back", |e| is(e, "gpu_lost", 0, Some(&gpu))).await;
    node.decent();
}

/// Only the counter of energy shows it.
#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_that_is_reset_is_well_again() {
    let node = start(&script()).await;
    let (gpu, other) = (FLEET.uuid(2), FLEET.uuid(1));
    let lines = [1, 2].map(|i| {
        let place = FLEET.pci(i);
        let place = place.trim_end_matches(".0");
        let line = |n, text: &str| format!("4,{n},1000000,-;NVRM: {text}\n");
        line(2 * i, &format!("GPU at PCI:{place}: {}", FLEET.uuid(i)))
            + &line(2 * i + 1, &format!("Xid (PCI:{place}): 95, Uncontained: FBHUB"))
    });
    // The check reads the log by itself, and has to recognise that it is not from just now.
    std::fs::write(node.dir.path().join("proc/uptime"), "86400.00 1.00\n").unwrap();
    std::fs::write(node.dir.path().join("kmsg"), lines.concat()).unwrap();
    let counted = |page: &str, gpu: &str| {
        exposition::value(page, "gpu_xid_errors_total", &[("gpu", gpu), ("xid", "95")]) == Some(1.0)
    };
    node.page_where("the errors are counted", |page| counted(page, &gpu) && counted(page, &other)).await;
    let check = async || {
        let mut check = daemon::command(bins::path(bins::EXPORTER).unwrap());
        let machine = node.exporter.machine();
        check.args(["check", "--quiet", "--only=gpus,kernel", "--timeout=20s", "--config"]);
        check.arg(node.dir.path().join("exporter/exporter.yml")).args(&machine.args);
        check.envs(machine.env.iter().map(|(name, value)| (name, value)));
        let output = check.output().await.unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (status, said) = check().await;
    assert!(status == Some(1) && said.matches("unhealthy kernel").count() == 2, "{said}");
    // It is seen to be as it was for as long as the errors are old.
    let asked = || node.calls().count("nvmlDeviceGetTotalEnergyConsumption");
    let before = asked();
    poll_until("all are read twice more", PATIENCE, async || (asked() >= before + 12).then_some(()))
        .await
        .unwrap();
    let anew = Quantity::Growing { at: 20_000.0, per_second: 0.0, per_read: 700.0 };
    node.stage.set(&script().one(2, "energy", anew)).unwrap();
    let event = node.event("the GPU was reset", |e| is(e, "gpu_reset", 1, None)).await;
    assert_eq!(
        (&event["gpu"], &event["level"], &event["once"]),
        (&gpu.clone().into(), &"info".into(), &true.into())
    );
    let reset = |page: &str, gpu: &str| {
        exposition::value(page, "gpu_last_reset_timestamp_seconds", &[("gpu", gpu)]).is_some()
    };
    let page = node.page_where("when it was reset", |page| reset(page, &gpu)).await;
    assert!(!reset(&page, &other), "{page}");
    let (status, said) = check().await;
    assert!(status == Some(1) && said.matches("unhealthy kernel").count() == 1, "{said}");
    assert!(said.contains(&format!("warning   kernel GPU 2 ({})", FLEET.pci(2))), "{said}");
    assert!(said.contains("XID 95 (Uncontained ECC error); it was reset since"), "{said}");
    node.decent();
}

/// A driver refuses the fields of a link that is down, and answers when it is up.
#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_comes_up_publishes_everything() {
    let gpu = FLEET.uuid(0);
    let published = |page: &str| {
        let counter = |family: &str| {
            let kind = ("kind", "replay");
            let labels = [("gpu", gpu.as_str()), ("link", "7"), kind];
            exposition::value(page, family, &labels[..if family.contains("errors") { 3 } else { 2 }])
        };
        let families =
            ["speed_bytes_per_second", "transmit_bytes_total", "receive_bytes_total", "errors_total"];
        families.map(|family| counter(&format!("gpu_nvlink_{family}")).is_some())
    };
    let down = ["speed", "transmit_kib", "receive_kib", "replay", "recovery"]
        .iter()
        .fold(script().one(0, "nvlink.state.7", 0u64), |script, name| {
            script.absent(0, &format!("nvlink.{name}.7"))
        });
    let node = start(&down).await;
    let up = |page: &str| exposition::value(page, "gpu_nvlink_up", &[("gpu", &gpu), ("link", "7")]);
    let page = node.page_where("the link is down", |page| up(page) == Some(0.0)).await;
    assert_eq!(published(&page)[..3], [false; 3]);
    for _ in 0..2 {
        node.stage.set(&script()).unwrap();
        node.page_where("it is up and publishes all", |page| {
            up(page) == Some(1.0) && published(page) == [true; 4]
        })
        .await;
        node.stage.set(&down).unwrap();
        node.page_where("it is down again", |page| up(page) == Some(0.0)).await;
    }
}

/// What a GPU reports of itself, the name of the event, and what ends it.
#[tokio::test(flavor = "multi_thread")]
async fn conditions_begin_and_end() {
    let node = start(&script()).await;
    let cases: &[(&str, u64, &str)] = &[
        ("remapped.pending", 1, "row_remap_pending"),
        ("remapped.failed", 1, "row_remap_failed"),
        ("sram.threshold", 1, "sram_threshold"),
        ("recovery_action", 1, "gpu_recovery_action"),
        // Bandwidth is degraded.
        ("fabric.health", 1 | 2 << 2 | 2 << 4 | 2 << 6 | 1 << 8, "fabric_unhealthy"),
    ];
    for (gpu, (quantity, value, name)) in cases.iter().enumerate().map(|(i, case)| (i % 4, case)) {
        let uuid = FLEET.uuid(gpu);
        node.stage.set(&script().one(gpu, quantity, *value)).unwrap();
        node.event(&format!("{name} began"), |e| is(e, name, 1, Some(&uuid))).await;
        node.stage.set(&script()).unwrap();
        node.event(&format!("{name} is over"), |e| is(e, name, 0, Some(&uuid))).await;
    }
    for (_, _, name) in cases {
        let events = node.events().await;
        assert_eq!(events.iter().filter(|e| is(e, name, 1, None)).count(), 1, "{name}: {events:#?}");
    }
    node.decent();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_memory_errors_is_counted_and_blocks_nothing() {
    let storm = script().one(0, "ecc.corrected.volatile", Quantity::growing(0.0, 17_600.0)).one(
        0,
        "ecc.corrected.volatile.dram",
        Quantity::growing(0.0, 17_600.0),
    );
    let mut slow = storm.clone();
    // A driver that is busy with a storm answers late.
    slow.faults.push(Fault::new("nvmlDeviceGet*", Effect::DelayMs(5)).on(0));
    let node = start(&slow).await;
    let gpu = FLEET.uuid(0);
    let errors = |page: &str| {
        let labels =
            [("gpu", &*gpu), ("severity", "corrected"), ("lifetime", "volatile"), ("location", "dram")];
        exposition::value(page, "gpu_ecc_errors_total", &labels)
    };
    let first = errors(&node.page_where("errors are counted", |page| errors(page) > Some(0.0)).await);
    node.page_where("they grow", |page| errors(page) > first).await;
    assert_eq!(node.value("nic_up", &[("device", "eth0")]).await, Some(1.0));
    let clean = |e: &Value| is(e, "ecc_uncorrected", 1, None);
    assert!(!node.events().await.iter().any(clean), "corrected errors lose nothing");
    let mut worse = storm;
    worse = worse.one(0, "ecc.uncorrected.volatile", 1u64).one(0, "ecc.uncorrected.volatile.dram", 1u64);
    node.stage.set(&worse).unwrap();
    node.event("an error that was not corrected", |e| is(e, "ecc_uncorrected", 1, Some(&gpu))).await;
    node.decent();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_nvlink_that_goes_down() {
    let node = start(&script()).await;
    let name = format!("{}/nvlink7", FLEET.uuid(3));
    let link = |state: &'static str| {
        let name = name.clone();
        move |e: &Value| e["k"] == "link" && e["name"] == *name && e["state"] == state
    };
    let up = |page: &str| exposition::value(page, "gpu_nvlink_up", &[("gpu", &FLEET.uuid(3)), ("link", "7")]);
    node.page_where("links are on the page", |page| up(page) == Some(1.0)).await;
    node.stage.set(&script().one(3, "nvlink.state.7", 0u64)).unwrap();
    let event = node.event("the link is down", link("down")).await;
    assert_eq!((&event["medium"], &event["code"]), (&Value::from("nvlink"), &Value::from(0)), "{event}");
    node.page_where("the page says so", |page| up(page) == Some(0.0)).await;
    node.stage.set(&script()).unwrap();
    node.event("the link is up", link("up")).await;
    node.decent();
}

/// Whether the exporter has something of the driver open.
fn holds(node: &Node) -> bool {
    let fds = std::fs::read_dir(format!("/proc/{}/fd", node.exporter.daemon.pid().unwrap())).unwrap();
    fds.flatten().any(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == node.stage.device()))
}

#[tokio::test(flavor = "multi_thread")]
async fn released_nothing_of_the_driver_is_held() {
    let node = start(&script()).await;
    node.page_where("samples are held", |page| page.contains("gpu_sm_active_ratio{")).await;
    assert!(holds(&node));
    let (status, text) = node.post("/-/nvml/release").await;
    assert_eq!(status, 200, "{text}");
    // When the answer comes it is so already: a reset may follow at once.
    let counts = node.calls();
    assert_eq!(
        (counts.count(calls::OPEN), counts.count(calls::SAMPLES), counts.count(calls::SETS)),
        (0, 0, 0),
        "{counts:?}"
    );
    assert_eq!(counts.count("nvmlShutdown"), counts.count("nvmlInit_v2") + counts.count("nvmlInitWithFlags"));
    assert!(!holds(&node));
    let page = node.page_where("the GPUs leave the page", |page| powered(page) == 0).await;
    assert_eq!(exposition::value(&page, "stepwatch_exporter_nvml_released", &[]), Some(1.0));
    assert_eq!(exposition::value(&page, "gpu_sm_active_ratio", &[]), None);
    // Passes go by, and the driver is left alone.
    let passes = |page: &str| {
        exposition::value(
            page,
            "stepwatch_exporter_collector_last_success_timestamp_seconds",
            &[("collector", "gpu")],
        )
    };
    let before = passes(&page).unwrap();
    node.page_where("passes go by", |page| passes(page).unwrap() > before + 1.0).await;
    assert_eq!(node.calls(), counts);
    node.state("gpu", "healthy").await;
    assert!(!node.events().await.iter().any(|e| is(e, "gpu_lost", 1, None)), "nobody is missed");
    assert_eq!(node.post("/-/nvml/acquire").await.0, 200);
    let page = node.page_where("the GPUs are back", |page| powered(page) == 4).await;
    assert_eq!(exposition::value(&page, "stepwatch_exporter_nvml_released", &[]), Some(0.0));
    assert!(holds(&node));
    node.decent();
}

#[tokio::test(flavor = "multi_thread")]
async fn another_driver_is_loaded() {
    let mut node = start(&script()).await;
    let version = |page: &str, version: &str| {
        exposition::value(page, "gpu_driver_info", &[("version", version)]).is_some()
    };
    node.page_where("the driver's version", |page| version(page, "570.172.08")).await;
    assert_eq!(node.post("/-/nvml/release").await.0, 200);
    let gone = script().fault("nvmlInit*", Effect::Fail(Code::DriverNotLoaded));
    node.stage.set(&gone).unwrap();
    assert_eq!(node.post("/-/nvml/acquire").await.0, 200);
    node.state("gpu", "failed").await;
    assert_eq!(powered(&node.page().await), 0);
    node.stage.set(&Script { driver: Some("580.95.05".to_owned()), ..script() }).unwrap();
    let page = node.page_within(PATIENCE * 2, "the GPUs are back", |page| powered(page) == 4).await;
    assert!(version(&page, "580.95.05") && !version(&page, "570.172.08"), "{page}");
    node.state("gpu", "healthy").await;
    // The fields of throttling have other numbers now.
    let reason = [("reason", "hw_thermal_slowdown")];
    assert_eq!(exposition::value(&page, "gpu_throttled_seconds_total", &reason), Some(0.0));
    node.decent();
    assert!(node.exporter.daemon.terminate().await.unwrap().success());
    assert_eq!(node.calls().count(calls::OPEN), 0, "it was closed before the end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_comes_late() {
    let late = script().fault("nvmlInit*", Effect::Fail(Code::DriverNotLoaded));
    let extra = "collectors:\n  gpu: {metrics: {include: ['*']}, interval: 100ms, slow_interval: 500ms, expected: 4}\n";
    let node = Node::start_with(&late, &library().unwrap(), extra).await;
    node.state("gpu", "failed").await;
    assert_eq!(node.value("gpu_expected_count", &[]).await, Some(4.0));
    assert_eq!(node.value("nic_up", &[("device", "eth0")]).await, Some(1.0));
    node.stage.set(&script()).unwrap();
    node.page_within(PATIENCE * 2, "the GPUs come", |page| powered(page) == 4).await;
    node.state("gpu", "healthy").await;
}

/// The health of every GPU is published for its peers to be compared with.
#[tokio::test(flavor = "multi_thread")]
async fn samples_of_health() {
    let node = start(&script().at(100.0)).await;
    let gpu = FLEET.uuid(1);
    let health = |e: &Value| {
        e["k"] == "health"
            && e["name"] == "gpu"
            && e["gpu"] == *gpu
            && e["m"]["tensor_active_ratio"].is_number()
    };
    let found = poll_until("health of a GPU", Duration::from_mins(1), async || {
        node.events().await.into_iter().find(|e| health(e))
    });
    let event = found.await.unwrap();
    let m = |name: &str| event["m"][name].as_f64();
    assert_eq!((m("sm_clock_hertz"), m("sm_clock_max_hertz")), (Some(1.754e9), Some(1.98e9)), "{event}");
    assert_eq!(
        (m("temperature_celsius"), m("memory_temperature_celsius")),
        (Some(41.0), Some(61.0)),
        "{event}"
    );
    assert_eq!(
        (m("power_watts"), m("power_limit_watts"), m("utilization_ratio")),
        (Some(501.0), Some(700.0), Some(0.91))
    );
    assert_eq!(
        (m("throttle_sw_power_cap"), m("throttled_sw_power_cap_seconds")),
        (Some(1.0), Some(5010.0)),
        "{event}"
    );
    assert_eq!(
        (m("ecc_corrected"), m("nvlink_errors"), m("pcie_replays")),
        (Some(0.0), Some(0.0), Some(1.0)),
        "{event}"
    );
}

/// Watches the page until it has seen `passes` more calls of a function that is asked of every GPU;
/// every page must be so.
async fn all_pages(node: &Node, passes: u64, so: impl Fn(&str)) {
    let made = || node.calls().count("nvmlDeviceGetPowerUsage");
    let enough = made() + passes;
    let watched = poll_until("passes go by", PATIENCE, async || {
        so(&node.page().await);
        (made() >= enough).then_some(())
    });
    watched.await.unwrap();
}

/// A GPU whose system processor is dead answers, and each answer takes long.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_gpu_is_set_aside_and_the_others_stay() {
    let gpu = FLEET.uuid(2);
    let unresponsive = |page: &str| exposition::value(page, "gpu_unresponsive", &[("gpu", &gpu)]);
    // One call that takes too long, and many that do together.
    for delay in [1500, 300] {
        let node = start(&script()).await;
        node.page_where("all are on the page", |page| powered(page) == 4).await;
        let mut slow = script();
        slow.faults.push(Fault::new("nvmlDevice*", Effect::DelayMs(delay)).on(2));
        node.stage.set(&slow).unwrap();
        let event = node.event("it is reported", |e| is(e, "nvml_stuck", 1, Some(&gpu))).await;
        assert!(event["text"].as_str().is_some_and(|t| t.starts_with("GPU 2 (")), "{event}");
        let page = node.page_where("it is set aside", |page| unresponsive(page) == Some(1.0)).await;
        assert_eq!((powered(&page), exposition::value(&page, "gpu_count", &[])), (3, Some(3.0)), "{page}");
        all_pages(&node, 60, |page| {
            assert_eq!(
                (powered(page), unresponsive(page)),
                (3, Some(1.0)),
                "the others stay, and it stays away"
            );
        })
        .await;
        node.stage.set(&script()).unwrap();
        node.event("it is quick again", |e| is(e, "nvml_stuck", 0, Some(&gpu))).await;
        node.page_where("all are on the page again", |page| {
            powered(page) == 4 && unresponsive(page) == Some(0.0)
        })
        .await;
        let events = node.events().await;
        let stuck = |code| events.iter().filter(|e| is(e, "nvml_stuck", code, None)).count();
        assert_eq!((stuck(1), stuck(0)), (1, 1), "reported once: {events:#?}");
        node.decent();
    }
}

/// It fell off the bus in the pass that was to show whether it is quick again.
#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_that_is_lost_is_not_slow_as_well() {
    let node = start(&script()).await;
    let gpu = FLEET.uuid(2);
    let is = |page: &str, family: &str| exposition::value(page, family, &[("gpu", &gpu)]);
    let mut slow = script();
    slow.faults.push(Fault::new("nvmlDevice*", Effect::DelayMs(1500)).on(2));
    node.stage.set(&slow).unwrap();
    node.page_where("it is set aside", |page| is(page, "gpu_unresponsive") == Some(1.0)).await;
    let mut gone = script();
    // All but the sign of life.
    for call in ["nvmlDeviceGetPower*", "nvmlDeviceGetField*", "nvmlDeviceGetMemory*", "nvmlDeviceGetClock*"]
    {
        gone.faults.push(Fault::new(call, Effect::Fail(Code::GpuIsLost)).on(2));
    }
    node.stage.set(&gone).unwrap();
    node.page_where("it is lost", |page| is(page, "gpu_lost") == Some(1.0)).await;
    all_pages(&node, 20, |page| {
        assert_eq!((is(page, "gpu_lost"), is(page, "gpu_unresponsive")), (Some(1.0), Some(0.0)));
    })
    .await;
    node.stage.set(&script()).unwrap();
    node.page_where("it is back", |page| powered(page) == 4 && is(page, "gpu_lost") == Some(0.0)).await;
    node.decent();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_that_answers_nothing_but_errors_does_not_answer() {
    let node = start(&script()).await;
    let gpu = FLEET.uuid(2);
    let mut mad = script();
    mad.faults.push(Fault::new("nvmlDevice*", Effect::Fail(Code::Unknown)).on(2));
    node.stage.set(&mad).unwrap();
    let event = node.event("the GPU is lost", |e| is(e, "gpu_lost", 1, Some(&gpu))).await;
    assert!(event["text"].as_str().is_some_and(|t| t.contains("unknown error of the driver")), "{event}");
    let page = node.page_where("the others stay", |page| powered(page) == 3).await;
    assert_eq!(exposition::value(&page, "gpu_lost", &[("gpu", &gpu)]), Some(1.0));
    assert_eq!(exposition::value(&page, "gpu_count", &[]), Some(3.0));
    node.stage.set(&script()).unwrap();
    node.event("the GPU is back", |e| is(e, "gpu_lost", 0, Some(&gpu))).await;
    node.page_where("all are on the page", |page| powered(page) == 4).await;
    // Some errors among answers are none of that.
    let some = script().fault("nvmlDeviceGetTemperature", Effect::Fail(Code::Unknown));
    node.stage.set(&some).unwrap();
    all_pages(&node, 40, |page| assert_eq!(exposition::value(page, "gpu_count", &[]), Some(4.0))).await;
    node.decent();
}

#[tokio::test(flavor = "multi_thread")]
async fn xids_are_heard_from_every_gpu_that_is_there() {
    let quiet = "collectors:\n  kernel: {enabled: false}\n  gpu: {metrics: {include: ['*']}, interval: 100ms, slow_interval: 500ms}\n";
    // One GPU cannot be used at first.
    let mut now = Script { lost: vec![1], ..script() };
    let node = Node::start_with(&now, &library().unwrap(), quiet).await;
    let counted = |page: &str, gpu: usize, xid: &str| {
        exposition::value(page, "gpu_xid_errors_total", &[("gpu", &FLEET.uuid(gpu)), ("xid", xid)])
    };
    node.page_where("the others are heard", |page| counted(page, 3, "48") == Some(0.0)).await;
    now.events.extend([NvmlEvent::xid(3, 48), NvmlEvent::xid(3, 63)]);
    node.stage.set(&now).unwrap();
    let both = |page: &str| counted(page, 3, "48") == Some(1.0) && counted(page, 3, "63") == Some(1.0);
    node.page_where("two that came at once", both).await;
    now.lost = Vec::new();
    node.stage.set(&now).unwrap();
    node.page_where("it is back, and heard", |page| counted(page, 1, "48") == Some(0.0)).await;
    now.events.push(NvmlEvent::xid(1, 31));
    node.stage.set(&now).unwrap();
    node.page_where("its own XID", |page| counted(page, 1, "31") == Some(1.0)).await;
    // One that is lost spoils the set for all.
    now.events.push(NvmlEvent::xid(2, 79));
    now.lost = vec![2];
    node.stage.set(&now).unwrap();
    let failures = |page: &str| exposition::value(page, "gpu_nvml_event_failures_total", &[]);
    node.page_where("it is counted", |page| failures(page) > Some(0.0)).await;
    now.events.push(NvmlEvent::xid(0, 13));
    node.stage.set(&now).unwrap();
    let last = |page: &str| counted(page, 0, "13") == Some(1.0) && counted(page, 2, "79") == Some(1.0);
    let page = node.page_where("the others are heard still", last).await;
    assert!(failures(&page) < Some(3.0), "the set was made anew, and not with every pass");
    node.decent();
}

/// How long a pass takes before a sample is no matter of how far samples are apart.
#[tokio::test(flavor = "multi_thread")]
async fn samples_are_as_far_apart_as_they_must_be() {
    let node = start(&script()).await;
    node.page_where("samples are taken", |page| page.contains("gpu_sm_active_ratio{")).await;
    let mut late = script();
    late.faults.push(Fault::new("nvmlDeviceGetTemperature", Effect::DelayMs(150)).on(0));
    for _ in 0..10 {
        for script in [&late, &script()] {
            node.stage.set(script).unwrap();
            all_pages(&node, 9, |_| ()).await;
        }
    }
    let failures = node.value("gpu_nvml_failures_total", &[("gpu", &FLEET.uuid(0))]).await;
    assert_eq!(failures, Some(0.0), "two samples were too close");
    node.decent();
}
