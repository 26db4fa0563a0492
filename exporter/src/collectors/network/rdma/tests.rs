use std::os::unix::fs::symlink;
use std::path::PathBuf;

use stepwatch_kit::config::Period;
use stepwatch_wire::{Event, Kind, Value};

use super::*;
use crate::roots::Roots;
use crate::testing;

mod ends;

/// A node with RDMA devices, and an exporter whose clock the test sets.
struct Node {
    dir: tempfile::TempDir,
    bench: testing::Bench,
    reader: RdmaReader,
    out: Samples,
}

impl Node {
    fn new(config: Config) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for sub in ["sys/class/infiniband", "sys/class/net", "proc/net", "state"] {
            std::fs::create_dir_all(dir.path().join(sub)).unwrap();
        }
        let roots = Roots {
            sysfs: dir.path().join("sys"),
            procfs: dir.path().join("proc"),
            state: Some(dir.path().join("state")),
            ..Roots::default()
        };
        Self {
            dir,
            bench: testing::Bench::new(roots),
            reader: RdmaReader::new(&config),
            out: Samples::default(),
        }
    }

    /// A node with eight ports that are up.
    fn of_eight(config: Config) -> Self {
        let node = Self::new(config);
        (0..8).for_each(|i| node.port(i, "InfiniBand", ""));
        node
    }

    fn pci(i: u32) -> String {
        format!("0000:{:02x}:00.0", 0x18 + 0x10 * i)
    }

    fn device(&self, i: u32) -> PathBuf {
        self.dir.path().join("sys/devices/pci0000:15").join(Self::pci(i))
    }

    fn port(&self, i: u32, layer: &str, netdev: &str) {
        let dir = self.device(i).join(format!("infiniband/mlx5_{i}"));
        std::fs::create_dir_all(dir.join("ports/1/counters")).unwrap();
        std::fs::create_dir_all(dir.join("ports/1/hw_counters")).unwrap();
        let _ = symlink(self.device(i), dir.join("device"));
        let _ = symlink(&dir, self.dir.path().join(format!("sys/class/infiniband/mlx5_{i}")));
        if !netdev.is_empty() {
            std::fs::create_dir_all(self.device(i).join("net").join(netdev)).unwrap();
        }
        self.set(i, "ports/1/link_layer", layer);
        self.set(i, "node_guid", &format!("b8ce:f603:0000:000{i}"));
        self.set(i, "ports/1/rate", "400 Gb/sec (4X NDR)");
        self.state(i, "4: ACTIVE", "5: LinkUp");
        for counter in ["link_downed", "symbol_error", "port_rcv_data", "port_xmit_data"] {
            self.count(i, counter, 0);
        }
    }

    fn set(&self, i: u32, file: &str, text: &str) {
        let path = self.device(i).join(format!("infiniband/mlx5_{i}")).join(file);
        std::fs::write(path, format!("{text}\n")).unwrap();
    }

    fn state(&self, i: u32, state: &str, physical: &str) {
        self.set(i, "ports/1/state", state);
        self.set(i, "ports/1/phys_state", physical);
    }

    fn count(&self, i: u32, counter: &str, value: u64) {
        self.set(i, &format!("ports/1/counters/{counter}"), &value.to_string());
    }

    fn remove(&self, i: u32) {
        std::fs::remove_file(self.dir.path().join(format!("sys/class/infiniband/mlx5_{i}"))).unwrap();
    }

    fn restart(&mut self, config: Config) {
        self.reader = RdmaReader::new(&config);
    }

    /// Runs a pass and returns the events of links, such as `mlx5_0/1 down 0`.
    fn look(&mut self, now: f64) -> Vec<String> {
        self.events(now).iter().filter(|e| e.kind == Kind::Link).map(short).collect()
    }

    fn events(&mut self, now: f64) -> Vec<Event> {
        self.out = Samples::default();
        self.reader.pass(now, &self.bench.context(), &mut self.out).unwrap();
        self.bench.published()
    }

    fn value(&self, family: &'static crate::family::Family, labels: &[&str]) -> Option<f64> {
        self.out.get(family, labels)
    }
}

fn word<'a>(event: &'a Event, key: &str) -> &'a str {
    event.extra.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn short(event: &Event) -> String {
    format!("{} {} {}", event.name.as_deref().unwrap(), word(event, "state"), event.code.unwrap())
}

const DAY: f64 = 86_400.0;
const START: f64 = 1.8e9;

#[test]
fn a_port_that_goes_down_is_published_at_once_and_drops_after_a_while() {
    let mut node = Node::of_eight(Config::default());
    assert!(node.look(START).is_empty());
    assert_eq!((node.value(&PORTS_UP, &[]), node.value(&PORTS_EXPECTED, &[])), (Some(8.0), Some(8.0)));
    assert_eq!(node.value(&RATE, &["mlx5_3", "1"]), Some(50e9));
    node.state(3, "1: DOWN", "2: Polling");
    let events = node.events(START + 1.0);
    let [down] = &events[..] else { panic!("{events:?}") };
    assert_eq!(short(down), "mlx5_3/1 down 0");
    assert_eq!((word(down, "medium"), word(down, "pci")), ("infiniband", "0000:48:00.0"));
    assert_eq!(
        down.text.as_deref(),
        Some(
            "InfiniBand port mlx5_3/1 went down: no signal from the other end (Polling); look at cable, transceiver and switch port"
        )
    );
    assert_eq!((node.value(&RATE, &["mlx5_3", "1"]), node.value(&PORTS_UP, &[])), (None, Some(7.0)));
    assert_eq!(node.value(&CONDITION, &["mlx5_3", "1", "down"]), Some(1.0));
    assert!(node.look(START + 30.0).is_empty());
    assert_eq!(node.look(START + 31.0), ["mlx5_3/1 drop 0"]);
    node.state(3, "4: ACTIVE", "5: LinkUp");
    assert_eq!(node.look(START + 40.0), ["mlx5_3/1 up 1"]);
    assert_eq!(node.value(&CONDITION, &["mlx5_3", "1", "drop"]), Some(0.0));
}

#[test]
fn a_reboot_with_a_port_less_is_seen_after_the_grace_though_the_devices_are_numbered_anew() {
    let mut node = Node::of_eight(Config::default());
    node.look(START);
    // The second card is missing, and the names of the others moved up.
    let places: Vec<_> = (0..8).filter(|i| *i != 1).map(|i| node.device(i)).collect();
    (0..8).for_each(|i| node.remove(i));
    for (i, place) in places.iter().enumerate() {
        let old = std::fs::read_dir(place.join("infiniband")).unwrap().next().unwrap().unwrap().path();
        symlink(old, node.dir.path().join(format!("sys/class/infiniband/mlx5_{i}"))).unwrap();
    }
    node.restart(Config::default());
    assert!(node.look(START + 300.0).is_empty(), "links take their time after a boot");
    let events = node.events(START + 421.0);
    let [down] = &events[..].iter().filter(|e| e.kind == Kind::Link).collect::<Vec<_>>()[..] else {
        panic!("{events:?}")
    };
    assert_eq!((short(down).as_str(), word(down, "pci")), ("0000:28:00.0/1 down 0", "0000:28:00.0"));
    assert!(down.text.as_deref().unwrap().contains("the device is gone from the node"), "{:?}", down.text);
    assert_eq!((node.value(&PORTS_UP, &[]), node.value(&PORTS_EXPECTED, &[])), (Some(7.0), Some(8.0)));
    assert!(node.look(START + 15.0 * DAY).is_empty(), "it was reported for long enough");
    assert_eq!(node.value(&PORTS_EXPECTED, &[]), Some(7.0));
}

#[test]
fn a_card_that_was_taken_out_on_purpose_is_forgotten_when_the_node_is_complete_without_it() {
    let mut node = Node::of_eight(Config::default());
    node.look(START);
    node.remove(7);
    assert_eq!(node.look(START + 1.0), ["mlx5_7/1 down 0"]);
    let expected = Expectation { ports: Some(7), ..Expectation::default() };
    node.restart(Config { expected, ..Config::default() });
    assert!(node.look(START + 2.0).is_empty(), "it may still come up");
    assert_eq!(node.look(START + 122.0), ["mlx5_7/1 up 1"]);
    assert_eq!((node.value(&PORTS_UP, &[]), node.value(&PORTS_EXPECTED, &[])), (Some(7.0), Some(7.0)));
    assert!(node.look(START + 2000.0).is_empty());
}

#[test]
fn a_device_that_is_seen_before_its_ports_is_looked_up_again_before_they_drop() {
    // Counters may be read less often than that.
    for counters in [10, 300] {
        let config = Config { counters_interval: Period::secs(counters), ..Config::default() };
        let mut node = Node::of_eight(config);
        node.look(START);
        node.remove(3);
        let ports = node.device(3).join("infiniband/mlx5_3/ports");
        let later = ports.with_file_name("later");
        assert_eq!(node.look(START + 100.0), ["mlx5_3/1 down 0"]);
        std::fs::rename(&ports, &later).unwrap();
        node.port(3, "", "");
        std::fs::remove_dir_all(&ports).unwrap();
        assert!(node.look(START + 101.0).is_empty());
        std::fs::create_dir_all(ports.join("1")).unwrap();
        assert!(node.look(START + 102.0).is_empty());
        assert!(node.look(START + 111.0).is_empty(), "a port that reports nothing yet");
        std::fs::remove_dir_all(&ports).unwrap();
        std::fs::rename(&later, &ports).unwrap();
        assert_eq!(node.look(START + 121.0), ["mlx5_3/1 up 1"], "{counters}");
        let labels = ["mlx5_3", "1", "InfiniBand", "", "fabric"];
        assert_eq!(node.value(&PORT_INFO, &labels), Some(1.0));
        assert_eq!(node.reader.unsettled_at, None);
    }
}

#[test]
fn a_second_port_that_comes_after_the_first_and_a_device_that_never_has_any() {
    let mut node = Node::of_eight(Config::default());
    std::fs::remove_dir_all(node.device(7).join("infiniband/mlx5_7/ports")).unwrap();
    node.look(START);
    let ports = node.device(0).join("infiniband/mlx5_0/ports");
    std::fs::create_dir(ports.join("2")).unwrap();
    for file in ["state", "phys_state", "rate", "link_layer"] {
        std::fs::copy(ports.join("1").join(file), ports.join("2").join(file)).unwrap();
    }
    for second in 1..10 {
        node.look(START + f64::from(second));
        assert_eq!(node.reader.inventory_at, START, "not every second");
    }
    assert_eq!(node.value(&UP, &["mlx5_0", "2"]), None);
    node.look(START + 10.0);
    assert_eq!(node.value(&UP, &["mlx5_0", "2"]), Some(1.0));
    assert_eq!(node.value(&PORTS_EXPECTED, &[]), Some(8.0));
}

#[test]
fn roles_keep_nothing_open_of_devices_that_are_gone() {
    let mut node = Node::of_eight(Config::default());
    let count = |node: &mut Node| {
        let roles = node.reader.roles(&node.bench.context()).unwrap();
        (roles.len(), node.reader.dirs.len())
    };
    assert_eq!(count(&mut node), (8, 8));
    node.remove(3);
    assert_eq!(count(&mut node), (7, 7));
}

#[test]
fn a_node_without_its_driver_is_not_one_without_ports() {
    let mut node = Node::of_eight(Config::default());
    node.look(START);
    (0..8).for_each(|i| node.remove(i));
    node.restart(Config::default());
    let support = |node: &mut Node| node.reader.probe(&node.bench.context()).unwrap();
    assert!(matches!(support(&mut node), Support::Supported(_)));
    std::fs::remove_file(node.dir.path().join("state/learned-rdma.json")).unwrap();
    assert!(matches!(support(&mut node), Support::Unsupported(_)));
}

#[test]
fn an_open_condition_is_closed_over_a_restart_and_flaps_are_not_forgiven() {
    let mut node = Node::of_eight(Config::default());
    let mut now = START;
    node.look(now);
    for _ in 0..2 {
        node.state(0, "1: DOWN", "2: Polling");
        now += 100.0;
        assert_eq!(node.look(now), ["mlx5_0/1 down 0"]);
        node.restart(Config::default());
        node.state(0, "4: ACTIVE", "5: LinkUp");
        now += 5.0;
        assert_eq!(node.look(now), ["mlx5_0/1 up 1"]);
    }
    // Only the counter shows the third outage.
    node.look(now + 11.0);
    node.count(0, "link_downed", 1);
    assert!(node.look(now + 22.0).is_empty());
    assert_eq!(node.look(now + 33.0), ["mlx5_0/1 down 0", "mlx5_0/1 up 1", "mlx5_0/1 flap 0"]);
    assert_eq!(node.value(&CONDITION, &["mlx5_0", "1", "flap"]), Some(1.0));
}

#[test]
fn slower_than_before_or_than_configured_is_degraded() {
    let mut node = Node::of_eight(Config::default());
    node.look(START);
    node.set(2, "ports/1/rate", "200 Gb/sec (4X HDR)");
    assert!(node.look(START + 10.0).is_empty(), "it may still be settling");
    assert_eq!(node.look(START + 20.0), ["mlx5_2/1 degraded 0"]);
    assert_eq!(node.value(&EXPECTED_RATE, &["mlx5_2", "1"]), Some(50e9));
    assert!(node.look(START + 30.0).is_empty());
    assert_eq!(node.look(START + 621.0), ["mlx5_2/1 degraded 0"], "again");
    node.set(2, "ports/1/rate", "400 Gb/sec (4X NDR)");
    assert_eq!(node.look(START + 640.0), ["mlx5_2/1 degraded 1"]);

    let expected =
        Expectation { rate_gbps: Some(800.0), devices: vec!["mlx5_[01]".into()], ..Expectation::default() };
    let mut node = Node::of_eight(Config { expected, ..Config::default() });
    node.look(START);
    let events = node.events(START + 10.0);
    let published: Vec<_> = events.iter().filter(|e| e.kind == Kind::Link).collect();
    assert_eq!(
        published.iter().map(|e| short(e)).collect::<Vec<_>>(),
        ["mlx5_0/1 degraded 0", "mlx5_1/1 degraded 0"]
    );
    assert_eq!(
        published[0].text.as_deref(),
        Some("InfiniBand port mlx5_0/1 runs at 400 Gb/s, 800 Gb/s is expected")
    );
}

/// The events of the ports of a node with these rates in Gb/s, from the start to well after two
/// windows.
fn moving(node: &mut Node, gigabits: &[u64]) -> Vec<Event> {
    let mut events = Vec::new();
    for pass in 0..100 {
        for (i, rate) in (0..).zip(gigabits) {
            // The counter is in words of four bytes.
            node.count(i, "port_rcv_data", pass * 10 * rate * 125_000_000 / 4);
        }
        events.extend(node.events(START + pass as f64 * 10.0));
    }
    events.retain(|e| e.kind == Kind::Link);
    events
}

#[test]
fn ports_that_move_less_than_configured_while_the_node_is_busy() {
    let expected = Expectation { bandwidth_gbps: Some((300.0, 390.0)), ..Expectation::default() };
    let config = Config { expected, ..Config::default() };
    let says = |gigabits: &[u64]| {
        let mut node = Node::new(config.clone());
        (0..).zip(gigabits).for_each(|(i, _)| node.port(i, "InfiniBand", ""));
        moving(&mut node, gigabits)
    };
    let events = says(&[360, 360, 360, 360, 360, 360, 360, 200]);
    let [published] = &events[..] else { panic!("{events:?}") };
    assert_eq!(
        (short(published).as_str(), published.level.as_deref()),
        ("mlx5_7/1 degraded 0", Some("warn"))
    );
    assert_eq!(
        published.text.as_deref(),
        Some("InfiniBand port mlx5_7/1 moves at most 200 Gb/s on a busy node, where 300 to 390 are expected")
    );
    assert_eq!(says(&[100; 8]).len(), 8, "all of them");
    assert_eq!(says(&[100]).len(), 1, "the only one");
    assert!(says(&[0; 8]).is_empty() && says(&[310; 8]).is_empty(), "idle, and as they should be");
}

#[test]
fn ports_that_are_not_meant_to_be_used_are_not_judged() {
    let mut node = Node::new(Config { management: vec!["mlx5_4".into()], ..Config::default() });
    for (i, netdev) in [(0, "eth0"), (1, "eth1"), (2, "eth2"), (3, "eth3"), (4, "eth4")] {
        node.port(i, "Ethernet", netdev);
    }
    node.state(2, "1: DOWN", "3: Disabled");
    std::fs::create_dir(node.device(3).join("physfn")).unwrap();
    let routes = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n\
        eth1 00000000 0101000A 0003 0 0 100 00000000 0 0 0\n";
    std::fs::write(node.dir.path().join("proc/net/route"), routes).unwrap();
    assert!(node.look(START).is_empty());
    for (i, role) in ["fabric", "management", "unprovisioned", "auxiliary", "management"].iter().enumerate() {
        let labels = [&*format!("mlx5_{i}"), "1", "Ethernet", &*format!("eth{i}"), role];
        assert_eq!(node.value(&PORT_INFO, &labels), Some(1.0), "{labels:?}");
    }
    assert_eq!((node.value(&PORTS_UP, &[]), node.value(&PORTS_EXPECTED, &[])), (Some(1.0), Some(1.0)));
    for i in [1, 3, 4] {
        node.state(i, "1: DOWN", "2: Polling");
    }
    assert!(node.look(START + 1000.0).is_empty());
    // The port is provisioned after all, so it is expected from now on.
    node.state(2, "4: ACTIVE", "5: LinkUp");
    assert!(node.look(START + 1001.0).is_empty());
    node.state(2, "1: DOWN", "3: Disabled");
    assert_eq!(node.look(START + 1002.0), ["mlx5_2/1 down 0"]);
    // The configuration excludes it, so its open condition ends.
    node.restart(Config { exclude: vec!["mlx5_2".into()], ..Config::default() });
    assert_eq!(node.look(START + 1003.0), ["mlx5_2/1 up 1"]);
}

#[test]
fn the_port_of_the_default_route_is_judged_where_there_is_no_other() {
    let mut node = Node::new(Config::default());
    node.port(0, "Ethernet", "eth0");
    let routes = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n\
        eth0 00000000 0101000A 0003 0 0 100 00000000 0 0 0\n";
    std::fs::write(node.dir.path().join("proc/net/route"), routes).unwrap();
    node.look(START);
    assert_eq!(node.value(&PORTS_EXPECTED, &[]), Some(1.0));
}

#[test]
fn fewer_ports_than_configured() {
    let expected = Expectation { ports: Some(8), ..Expectation::default() };
    let mut node = Node::of_eight(Config { expected, ..Config::default() });
    node.state(5, "1: DOWN", "2: Polling");
    assert!(node.look(START).is_empty());
    let events = node.events(START + 120.0);
    let published = events.iter().find(|e| e.kind == Kind::Link).unwrap();
    assert_eq!(short(published), "rdma down 0");
    assert_eq!(
        published.text.as_deref(),
        Some("RDMA ports of this node are incomplete: 7 of 8 have been up; never up were mlx5_5/1")
    );
    assert_eq!(node.look(START + 150.0), ["rdma drop 0"]);
    node.state(5, "4: ACTIVE", "5: LinkUp");
    assert_eq!(node.look(START + 160.0), ["rdma up 1"]);
    node.state(5, "1: DOWN", "2: Polling");
    assert_eq!(node.look(START + 170.0), ["mlx5_5/1 down 0"], "a known port is reported by itself");
}

#[test]
fn errors_are_published_if_they_are_more_than_a_good_link_has() {
    let mut node = Node::of_eight(Config::default());
    node.count(1, "symbol_error", 1_000_000);
    node.look(START);
    node.count(1, "symbol_error", 1_000_100);
    assert!(node.look(START + 10.0).is_empty());
    node.count(1, "symbol_error", 1_000_200);
    let events = node.events(START + 20.0);
    let published = events.iter().find(|e| e.kind == Kind::Link).unwrap();
    assert_eq!((short(published).as_str(), published.level.as_deref()), ("mlx5_1/1 errors 0", Some("warn")));
    assert_eq!(
        published.text.as_deref(),
        Some(
            "InfiniBand port mlx5_1/1 has errors: symbol_error rose by 200 within 60 min (a good link stays under 120); clean or replace cable and transceiver"
        )
    );
    node.count(1, "symbol_error", 1_001_200);
    assert_eq!(node.look(START + 30.0), ["mlx5_1/1 errors 0"], "worse");
    assert_eq!(node.look(START + 8000.0), ["mlx5_1/1 errors 1"]);
}

#[test]
fn what_cannot_be_read_is_neither_down_nor_read_for_ever() {
    let mut node = Node::of_eight(Config::default());
    node.look(START);
    for file in ["state", "phys_state", "rate"] {
        let path = node.device(0).join("infiniband/mlx5_0/ports/1").join(file);
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
    }
    node.count(1, "port_rcv_data", 25);
    node.set(1, "ports/1/counters/symbol_error", "N/A (no PMA)");
    for i in 1..12 {
        let events = node.events(START + f64::from(i));
        assert!(events.iter().all(|e| e.kind != Kind::Link), "{events:?}");
        if let Some(published) = events.iter().find(|e| e.kind == Kind::Hw) {
            assert_eq!(
                (published.name.as_deref(), word(published, "device")),
                (Some("rdma_unreadable"), "mlx5_0")
            );
            assert_eq!(i, 10);
        }
    }
    assert_eq!((node.value(&QUARANTINED, &["mlx5_0"]), node.value(&UP, &["mlx5_0", "1"])), (Some(1.0), None));
    assert_eq!(node.value(&RECEIVE_BYTES, &["mlx5_1", "1"]), Some(100.0));
    assert_eq!(node.value(&ERRORS, &["mlx5_1", "1", "symbol_error"]), None);
    assert_eq!(node.value(&RECEIVE_BYTES, &["mlx5_0", "1"]), Some(0.0), "its counters can be read");
}

#[test]
fn a_sample_for_peers_every_half_minute() {
    let mut node = Node::of_eight(Config::default());
    node.count(0, "port_rcv_data", 1000);
    let health =
        |events: &[Event]| events.iter().filter(|e| e.kind == Kind::Health).cloned().collect::<Vec<_>>();
    let published = health(&node.events(START));
    assert_eq!(published.len(), 8);
    assert_eq!((published[0].name.as_deref(), word(&published[0], "device")), (Some("rdma"), "mlx5_0"));
    let values: Vec<_> = published[0].m.iter().collect();
    assert_eq!(
        values,
        [
            ("errors", 0.0),
            ("link_downed", 0.0),
            ("rate_bytes_per_second", 50e9),
            ("receive_bytes", 4000.0),
            ("symbol_errors", 0.0),
            ("transmit_bytes", 0.0),
            ("up", 1.0)
        ]
    );
    assert!(health(&node.events(START + 29.0)).is_empty());
    assert_eq!(health(&node.events(START + 30.0)).len(), 8);
}

#[test]
fn a_port_that_moves_much_less_than_it_used_to_while_the_others_do_not() {
    let mut node = Node::of_eight(Config { counters_interval: Period::secs(150), ..Config::default() });
    let (mut now, mut words) = (START, [0u64; 8]);
    // Windows of traffic at these rates in Gb/s, two passes each; the counter counts words.
    let mut run = |node: &mut Node, windows: u32, gigabits: &dyn Fn(usize) -> u64| -> Vec<String> {
        (0..2 * windows)
            .flat_map(|_| {
                for (i, counter) in words.iter_mut().enumerate() {
                    *counter += gigabits(i) * 125_000_000 * 150 / 4;
                    node.count(i as u32, "port_rcv_data", *counter);
                }
                now += 150.0;
                node.look(now)
            })
            .collect()
    };
    assert!(run(&mut node, 14, &|_| 360).is_empty());
    assert!(run(&mut node, 3, &|_| 100).is_empty(), "another job");
    assert!(run(&mut node, 30, &|_| 360).is_empty());
    let published = run(&mut node, 4, &|i| if i == 6 { 40 } else { 360 });
    assert_eq!(published, ["mlx5_6/1 degraded 0"]);
    let published = run(&mut node, 3, &|_| 360);
    assert_eq!(published, ["mlx5_6/1 degraded 1"]);
}
