mod reader;

use super::events::Watcher;
use super::pass::GpuReading;
use super::*;
use crate::clock::unix_now;
use crate::roots::Roots;
use crate::testing;
use stepwatch_wire::{Event, Kind, Value};

const LONG: Duration = Duration::from_secs(20);

fn gpu_of(index: u32) -> Identity {
    Identity {
        index,
        uuid: format!("GPU-{index}"),
        name: "NVIDIA H100 80GB HBM3".into(),
        pci: format!("0000:{index}b:00.0"),
        ..Identity::default()
    }
}

pub(super) fn read(index: u32) -> GpuReading {
    GpuReading {
        id: Arc::new(gpu_of(index)),
        at: Instant::now(),
        time: unix_now(),
        lost: false,
        lost_with: None,
        needs_reset: false,
        aside: None,
        failures: 0,
        fast: Samples::default(),
        slow: None,
    }
}

pub(super) fn reading(gpus: Vec<GpuReading>) -> Reading {
    Reading {
        at: Instant::now(),
        time: unix_now(),
        driver: "570.1".into(),
        cuda: "12.8".into(),
        gpus,
        unusable: Vec::new(),
        heard: None,
    }
}

/// Collects the events of a watcher over several readings.
struct Stage {
    bench: testing::Bench,
    watcher: Watcher,
    known: GpuHistory,
    seen: BTreeMap<String, Arc<Identity>>,
    expected: usize,
}

impl Stage {
    fn new() -> Self {
        let seen = [gpu_of(0), gpu_of(1)].map(|id| (id.uuid.clone(), Arc::new(id))).into();
        Self {
            bench: testing::Bench::new(Roots::default()),
            watcher: Watcher::default(),
            known: GpuHistory::default(),
            seen,
            expected: 2,
        }
    }

    fn look(&mut self, reading: &Reading, slow: &[(&str, &Samples)], listed: &[&str]) -> Vec<Event> {
        let slow = slow.iter().map(|(uuid, samples)| ((*uuid).to_owned(), (*samples).clone())).collect();
        let listed: Vec<String> = listed.iter().map(|pci| (*pci).to_owned()).collect();
        let cx = self.bench.context();
        let inventory = Inventory { seen: self.seen.clone(), listed, expected: self.expected };
        self.watcher.look(&cx, reading, &inventory);
        self.watcher.look_closely(&cx, reading, &slow, &mut self.known);
        self.bench.published()
    }
}

fn described(events: &[Event]) -> Vec<(&str, Option<i64>, Option<&str>)> {
    let gpu = |e: &Event| e.extra.get("gpu").and_then(Value::as_str).map(str::to_owned);
    assert!(
        events.iter().all(|e| gpu(e).is_none_or(|g| e.text.as_deref().is_some_and(|t| t.contains(&g[4..]))))
    );
    events.iter().map(|e| (e.name.as_deref().unwrap(), e.code, e.level.as_deref())).collect()
}

#[test]
fn a_gpu_that_falls_off_the_bus_is_reported_and_the_others_stay() {
    let mut stage = Stage::new();
    assert!(stage.look(&reading(vec![read(0), read(1)]), &[], &[]).is_empty());
    let lost = GpuReading { lost: true, ..read(1) };
    let events = stage.look(&reading(vec![read(0), lost]), &[], &[]);
    assert_eq!(described(&events), [("gpu_lost", Some(1), Some("error"))]);
    assert_eq!(events[0].extra["gpu"], Value::Text("GPU-1".into()));
    assert_eq!(events[0].extra["pci"], Value::Text("0000:1b:00.0".into()));
    assert!(stage.look(&reading(vec![read(0)]), &[], &[]).is_empty(), "it is still lost");
    let events = stage.look(&reading(vec![read(0), read(1)]), &[], &[]);
    assert_eq!(described(&events), [("gpu_lost", Some(0), Some("info"))]);
}

#[test]
fn a_gpu_that_never_worked_and_one_that_is_not_there() {
    let mut stage = Stage::new();
    let all = || reading(vec![read(0), read(1)]);
    let events = stage.look(&all(), &[], &["0000:0b:00.0", "0000:1b:00.0", "0000:2b:00.0"]);
    assert_eq!(described(&events), [("gpu_lost", Some(1), Some("error"))]);
    assert_eq!(events[0].extra["pci"], Value::Text("0000:2b:00.0".into()));
    let events = stage.look(&all(), &[], &["0000:0b:00.0", "0000:1b:00.0"]);
    assert_eq!(described(&events), [("gpu_lost", Some(0), Some("info"))]);
    stage.expected = 8;
    let events = stage.look(&all(), &[], &[]);
    assert_eq!(described(&events), [("gpu_lost", Some(1), Some("error"))]);
    assert_eq!(events[0].text.as_deref(), Some("2 of 8 GPUs are there"));
}

#[test]
fn what_the_driver_reports_of_memory_and_recovery() {
    let mut stage = Stage::new();
    let now = || reading(vec![read(0), read(1)]);
    let mut slow = Samples::default();
    let errors = |slow: &mut Samples, count: u64| {
        slow.set(&ECC, &["GPU-0", "uncorrected", "volatile", "dram"], count);
        slow.set(&ECC, &["GPU-0", "uncorrected", "aggregate", "dram"], 1000 + count);
    };
    slow.set(&RECOVERY, &["GPU-0", "none"], true);
    slow.set(&REMAP_PENDING, &["GPU-0"], false);
    errors(&mut slow, 3);
    assert!(stage.look(&now(), &[("GPU-0", &slow)], &[]).is_empty(), "what was there before is no news");
    let mut slow = Samples::default();
    slow.set(&RECOVERY, &["GPU-0", "none"], false);
    slow.set(&RECOVERY, &["GPU-0", "node_reboot"], true);
    slow.set(&REMAP_PENDING, &["GPU-0"], true);
    slow.set(&REMAP_FAILED, &["GPU-0"], true);
    slow.set(&SRAM_THRESHOLD, &["GPU-0"], true);
    errors(&mut slow, 5);
    let events = stage.look(&now(), &[("GPU-0", &slow)], &[]);
    assert_eq!(
        described(&events),
        [
            ("gpu_recovery_action", Some(1), Some("error")),
            ("row_remap_pending", Some(1), Some("warn")),
            ("row_remap_failed", Some(1), Some("error")),
            ("sram_threshold", Some(1), Some("error")),
            ("ecc_uncorrected", Some(1), Some("error")),
        ]
    );
    assert_eq!(events[0].extra["action"], Value::Text("reboot_node".into()));
    assert_eq!(events[4].extra["once"], Value::Bool(true));
    assert!(stage.look(&now(), &[("GPU-0", &slow)], &[]).is_empty(), "published once");
    let mut other = Samples::default();
    other.set(&RECOVERY, &["GPU-1", "drain_and_reset"], true);
    let events = stage.look(&now(), &[("GPU-0", &slow), ("GPU-1", &other)], &[]);
    let may_wait = ("gpu_recovery_action", Some(1), Some("warn"));
    assert!(described(&events).contains(&may_wait), "the job may end first: {events:?}");
    let mut slow = Samples::default();
    slow.set(&RECOVERY, &["GPU-0", "none"], true);
    errors(&mut slow, 0);
    let events = stage.look(&now(), &[("GPU-0", &slow)], &[]);
    assert!(events.iter().all(|e| e.code == Some(0)), "the driver was loaded anew: {events:?}");
    // The exporter was restarted.
    stage.watcher = Watcher::default();
    let mut slow = Samples::default();
    errors(&mut slow, 2);
    let events = stage.look(&now(), &[("GPU-0", &slow)], &[]);
    assert_eq!(described(&events), [("ecc_uncorrected", Some(1), Some("error"))]);
    let text = events[0].text.as_deref().unwrap();
    assert!(text.contains("had 2 more uncorrected memory errors, 1002 ever"), "{text}");
    assert!(stage.look(&now(), &[("GPU-0", &slow)], &[]).is_empty(), "published once");
}

#[test]
fn errors_in_a_row_that_is_out_of_use_can_wait() {
    let look = |pending: bool, failed: bool, sram: u64| {
        let mut stage = Stage::new();
        let now = || reading(vec![read(0)]);
        let slow = |errors: u64| {
            let mut slow = Samples::default();
            slow.set(&ECC, &["GPU-0", "uncorrected", "volatile", "dram"], errors);
            slow.set(&ECC, &["GPU-0", "uncorrected", "volatile", "sram"], sram);
            slow.set(&REMAP_PENDING, &["GPU-0"], pending);
            slow.set(&REMAP_FAILED, &["GPU-0"], failed);
            slow
        };
        stage.look(&now(), &[("GPU-0", &slow(0))], &[]);
        let events = stage.look(&now(), &[("GPU-0", &slow(1))], &[]);
        let errors = events.into_iter().find(|e| e.name.as_deref() == Some("ecc_uncorrected")).unwrap();
        errors.level.unwrap()
    };
    assert_eq!(look(true, false, 0), "warn");
    assert_eq!([look(false, false, 0), look(true, true, 0), look(true, false, 1)], ["error"; 3]);
}

#[test]
fn links_that_go_and_come_but_none_that_lead_nowhere() {
    let mut stage = Stage::new();
    let now = || reading(vec![read(0), read(1)]);
    let links = |up: bool| {
        let mut slow = Samples::default();
        slow.set(&NVLINK_UP, &["GPU-0", "3"], up);
        slow.set(&NVLINK_UP, &["GPU-0", "4"], false);
        slow
    };
    assert!(stage.look(&now(), &[("GPU-0", &links(true))], &[]).is_empty());
    let events = stage.look(&now(), &[("GPU-0", &links(false))], &[]);
    assert_eq!(described(&events), [("GPU-0/nvlink3", Some(0), Some("error"))]);
    assert_eq!((events[0].kind, &events[0].extra["state"]), (Kind::Link, &Value::Text("down".into())));
    assert!(stage.look(&now(), &[("GPU-0", &links(false))], &[]).is_empty());
    let events = stage.look(&now(), &[("GPU-0", &links(true))], &[]);
    assert_eq!(described(&events), [("GPU-0/nvlink3", Some(1), Some("info"))]);
}

#[test]
fn a_link_that_was_down_before_the_first_look_is_missed_among_its_peers() {
    let mut stage = Stage::new();
    let now = || reading((0..4).map(read).collect());
    let links = |gpu: &str, up: [bool; 3]| {
        let mut slow = Samples::default();
        for (link, up) in ["0", "1", "2"].iter().zip(up) {
            slow.set(&NVLINK_UP, &[gpu, link], up);
        }
        slow
    };
    let all = [true, true, false];
    let well = ["GPU-0", "GPU-1", "GPU-2"].map(|gpu| (gpu, links(gpu, all)));
    let link_events = |stage: &mut Stage, last: [bool; 3], peers: usize| {
        let last = links("GPU-3", last);
        let mut slow: Vec<_> = well.iter().take(peers).map(|(gpu, links)| (*gpu, links)).collect();
        slow.push(("GPU-3", &last));
        stage.look(&now(), &slow, &[]).iter().map(|e| (e.name.clone().unwrap(), e.code)).collect::<Vec<_>>()
    };
    assert_eq!(link_events(&mut stage, [true, false, false], 1), [], "too few to determine what is usual");
    assert_eq!(link_events(&mut Stage::new(), [false, false, false], 3), [], "it is joined to nobody");
    let down = [("GPU-3/nvlink1".to_owned(), Some(0))];
    assert_eq!(link_events(&mut stage, [true, false, false], 3), down);
    assert_eq!(link_events(&mut stage, [true, false, false], 3), [], "published once");
    assert_eq!(link_events(&mut stage, all, 3), [("GPU-3/nvlink1".to_owned(), Some(1))]);
}

#[test]
fn slowed_down_by_the_hardware_for_a_while_and_under_load() {
    let mut stage = Stage::new();
    let now = |reason: &str, busy: f64| {
        let mut gpu = read(0);
        gpu.fast.set(&THROTTLE, &["GPU-0", reason], true);
        gpu.fast.set(&UTILIZATION, &["GPU-0"], busy);
        gpu.fast.set(&CLOCK, &["GPU-0", "sm"], 1.2e9);
        reading(vec![gpu, read(1)])
    };
    for (reason, busy) in [("sw_power_cap", 1.0), ("gpu_idle", 0.0), ("hw_thermal_slowdown", 0.1)] {
        for _ in 0..2 {
            assert!(stage.look(&now(reason, busy), &[], &[]).is_empty(), "{reason}");
            stage.watcher.age(Duration::from_secs(11));
        }
    }
    assert!(stage.look(&now("hw_thermal_slowdown", 0.9), &[], &[]).is_empty(), "not yet");
    stage.watcher.age(Duration::from_secs(11));
    let events = stage.look(&now("hw_thermal_slowdown", 0.9), &[], &[]);
    assert_eq!(described(&events), [("gpu_throttled", Some(1), Some("warn"))]);
    assert_eq!(
        events[0].text.as_deref(),
        Some(
            "GPU 0 (NVIDIA H100 80GB HBM3, 0000:0b:00.0) is slowed down to 1.20 GHz by its hardware: hw_thermal_slowdown"
        )
    );
    assert!(
        stage.look(&now("hw_thermal_slowdown", 0.0), &[], &[]).is_empty(),
        "the job pauses, the heat stays"
    );
    let events = stage.look(&now("sw_power_cap", 0.9), &[], &[]);
    assert_eq!(described(&events), [("gpu_throttled", Some(0), Some("info"))]);
}

#[test]
fn a_fabric_that_is_faulty_and_one_that_is_only_starting() {
    let mut stage = Stage::new();
    let now = || reading(vec![read(0), read(1)]);
    let fabric = |state: &str, degraded: bool| {
        let mut slow = Samples::default();
        slow.set(&FABRIC_STATE, &["GPU-0", state], true);
        slow.set(&FABRIC_HEALTH, &["GPU-0", "degraded_bandwidth"], degraded);
        slow
    };
    assert!(stage.look(&now(), &[("GPU-0", &fabric("in_progress", false))], &[]).is_empty());
    stage.watcher.age(Duration::from_secs(61));
    let events = stage.look(&now(), &[("GPU-0", &fabric("in_progress", false))], &[]);
    assert_eq!(described(&events), [("fabric_unhealthy", Some(1), Some("error"))]);
    let events = stage.look(&now(), &[("GPU-0", &fabric("completed", false))], &[]);
    assert_eq!(described(&events), [("fabric_unhealthy", Some(0), Some("info"))]);
    let events = stage.look(&now(), &[("GPU-0", &fabric("completed", true))], &[]);
    assert!(
        events[0].text.as_deref().is_some_and(|t| t.ends_with("not healthy: degraded bandwidth")),
        "{events:?}"
    );
}

#[test]
fn a_fabric_that_a_gpu_has_left_and_one_that_it_never_had() {
    let mut stage = Stage::new();
    let now = || reading(vec![read(0), read(1)]);
    let fabric = |state: &str, unmanaged: bool| {
        let mut slow = Samples::default();
        slow.set(&FABRIC_STATE, &["GPU-0", state], true);
        slow.set(&FABRIC_HEALTH, &["GPU-0", "gfm_disconnected"], unmanaged);
        slow
    };
    let none = fabric("not_supported", false);
    for _ in 0..2 {
        assert!(stage.look(&now(), &[("GPU-0", &none)], &[]).is_empty(), "it never had one");
        stage.watcher.age(Duration::from_secs(61));
    }
    assert!(stage.look(&now(), &[("GPU-0", &fabric("completed", false))], &[]).is_empty());
    assert!(stage.look(&now(), &[("GPU-0", &none)], &[]).is_empty(), "it may come back");
    stage.watcher.age(Duration::from_secs(61));
    let mut partitioned = none.clone();
    partitioned.set(&MIG_INFO, &["GPU-0", "1", "0", "1g.10gb", "MIG-1"], 1u64);
    assert!(stage.look(&now(), &[("GPU-0", &partitioned)], &[]).is_empty(), "it has no use for it");
    stage.look(&now(), &[("GPU-0", &none)], &[]);
    stage.watcher.age(Duration::from_secs(61));
    let events = stage.look(&now(), &[("GPU-0", &none)], &[]);
    assert_eq!(described(&events), [("fabric_unhealthy", Some(1), Some("error"))]);
    assert!(
        events[0].text.as_deref().is_some_and(|t| t.contains("has left its NVLink fabric")),
        "{events:?}"
    );
    let events = stage.look(&now(), &[("GPU-0", &fabric("completed", true))], &[]);
    assert_eq!(
        described(&events),
        [("fabric_unhealthy", Some(0), Some("info"))],
        "its manager may be restarting"
    );
    stage.watcher.age(Duration::from_secs(61));
    let events = stage.look(&now(), &[("GPU-0", &fabric("completed", true))], &[]);
    assert!(events[0].text.as_deref().is_some_and(|t| t.ends_with("gfm disconnected")), "{events:?}");
}

#[test]
fn what_newer_drivers_want_done() {
    for (wanted, action) in [
        ("bus_reset", "reset_gpu"),
        ("system_reboot", "reboot_node"),
        ("recover_imex_domain", "contact_support"),
        ("action_9", "contact_support"),
    ] {
        let mut slow = Samples::default();
        slow.set(&RECOVERY, &["GPU-0", wanted], true);
        let events = Stage::new().look(&reading(vec![read(0), read(1)]), &[("GPU-0", &slow)], &[]);
        assert_eq!(described(&events), [("gpu_recovery_action", Some(1), Some("error"))]);
        assert_eq!(events[0].extra["action"], Value::Text(action.into()), "{wanted}");
    }
}

#[test]
fn xids_of_nvml_where_the_log_cannot_be_read() {
    let bench = testing::Bench::new(Roots::default());
    let mut xids = xid::Xids::default();
    let of = |gpu: Option<u32>, code: u64| crate::nvml::Xid {
        gpu: gpu.map(|index| Arc::new(gpu_of(index))),
        code,
        gpu_instance: Some(1),
        compute_instance: None,
    };
    xids.report(&bench.context(), vec![of(Some(0), 79), of(Some(0), 79), of(None, u64::MAX)]);
    let mut out = Samples::default();
    xids.write(&mut out);
    assert_eq!(out.get(&kernel::XIDS, &["GPU-0", "79"]), Some(2.0));
    assert_eq!(out.get(&kernel::MIG_XIDS, &["GPU-0", "1", "", "79"]), Some(2.0));
    assert_eq!(out.iter().count(), 2, "a number that no XID has is none");
    // Counts start at zero for GPUs whose events NVML delivers.
    xids.hear(["GPU-0", "GPU-1"].into_iter());
    let mut out = Samples::default();
    xids.write(&mut out);
    let of = |gpu, code| out.get(&kernel::XIDS, &[gpu, code]);
    assert_eq!((of("GPU-0", "79"), of("GPU-0", "48"), of("GPU-1", "79")), (Some(2.0), Some(0.0), Some(0.0)));
    let events = bench.published();
    assert_eq!(described(&events), [("xid", Some(79), Some("error")), ("xid", Some(79), Some("error"))]);
    assert_eq!(events[0].extra["gi"], Value::Number(1.0));
    assert_eq!(events[0].extra["pci"], Value::Text("0000:0b:00.0".into()));
    assert!(events[0].extra.contains_key("action"));
}

#[test]
fn a_sample_for_the_peers() {
    let mut now = read(3);
    now.fast.set(&CLOCK, &["GPU-3", "sm"], 1.755e9);
    now.fast.set(&THROTTLE, &["GPU-3", "sw_power_cap"], true);
    now.fast.set(&THROTTLED, &["GPU-3", "sw_power_cap"], 12.5);
    let mut slow = Samples::default();
    slow.set(&ECC, &["GPU-3", "corrected", "volatile", "dram"], 2u64);
    slow.set(&ECC, &["GPU-3", "corrected", "volatile", "sram"], 3u64);
    slow.set(&ECC, &["GPU-3", "corrected", "aggregate", "sram"], 70u64);
    let event = health::sample(&now, Some(&slow), 17.0);
    assert_eq!((event.kind, event.name.as_deref(), event.ts), (Kind::Health, Some("gpu"), Some(17.0)));
    let m: Vec<_> = event.m.iter().collect();
    assert_eq!(
        m,
        [
            ("sm_clock_hertz", 1.755e9),
            ("throttle_sw_power_cap", 1.0),
            ("throttled_sw_power_cap_seconds", 12.5),
            ("ecc_corrected", 5.0)
        ]
    );
    assert_eq!(event.extra["gpu"], Value::Text("GPU-3".into()));
}
