use std::io;
use std::sync::{Arc, Mutex};

use stepwatch_sys::ethtool::Driver;
use stepwatch_wire::{Event, Kind, Value};

use super::driver::Ask;
use super::*;
use crate::testing;
use std::fs;

fn interface(root: &Path, name: &str, physical: bool, files: &[(&str, &str)]) {
    let dir = root.join("class/net").join(name);
    fs::create_dir_all(dir.join("statistics")).unwrap();
    if physical {
        fs::create_dir_all(dir.join("device")).unwrap();
    }
    for (file, text) in [("type", "1"), ("flags", "0x1003"), ("operstate", "up")].iter().chain(files) {
        fs::write(dir.join(file), format!("{text}\n")).unwrap();
    }
}

#[test]
fn reads_what_is_there_and_leaves_out_what_is_not() {
    let dir = tempfile::tempdir().unwrap();
    interface(dir.path(), "eth0", true, &[("speed", "100000"), ("statistics/rx_bytes", "123")]);
    interface(dir.path(), "eth1", true, &[("operstate", "down"), ("speed", "-1"), ("flags", "0x1002")]);
    interface(dir.path(), "veth9", false, &[]);
    interface(dir.path(), "ib0", true, &[("type", "32")]);
    let bench = testing::Bench::new(Roots { sysfs: dir.path().into(), ..Roots::default() });
    let mut reader = NicReader::new(&Config::default());
    assert_eq!(reader.probe(&bench.context()).unwrap(), Support::Supported("eth0 eth1".into()));
    let page = bench.collect(&mut reader);
    assert_eq!(page.get(&SPEED, &["eth0"]), Some(12.5e9));
    assert_eq!(page.get(&RX_BYTES, &["eth0"]), Some(123.0));
    assert_eq!(page.get(&TX_BYTES, &["eth0"]), None);
    assert_eq!((page.get(&UP, &["eth0"]), page.get(&UP, &["eth1"])), (Some(1.0), Some(0.0)));
    assert_eq!((page.get(&ADMIN_UP, &["eth1"]), page.get(&SPEED, &["eth1"])), (Some(0.0), None));
    assert!(page.iter().all(|s| ["eth0", "eth1"].contains(&s.labels.get(0))), "{page:?}");
    let mut picky = NicReader::new(&Config { exclude: vec!["eth*".into()], ..Config::default() });
    assert!(matches!(picky.probe(&bench.context()), Ok(Support::Unsupported(_))));
}

#[test]
fn hundreds_of_interfaces_do_not_use_up_the_open_files() {
    let dir = tempfile::tempdir().unwrap();
    let count = MAX_KEPT_OPEN * 3;
    for n in 0..count {
        let counters = STATISTICS.iter().map(|(file, _)| (format!("statistics/{file}"), "7"));
        let counters: Vec<_> = counters.collect();
        let files: Vec<_> = counters.iter().map(|(file, text)| (file.as_str(), *text)).collect();
        interface(dir.path(), &format!("eth{n:03}"), true, &files);
    }
    let bench = testing::Bench::new(Roots { sysfs: dir.path().into(), ..Roots::default() });
    let mut reader = NicReader::new(&Config { ethtool: Vec::new(), ..Config::default() });
    let open = || {
        let files = fs::read_dir("/proc/self/fd").unwrap().flatten();
        files.filter(|f| fs::read_link(f.path()).is_ok_and(|to| to.starts_with(dir.path()))).count()
    };
    for _ in 0..2 {
        let page = bench.collect(&mut reader);
        assert_eq!(page.rows(&RX_BYTES).filter(|row| row.value == 7.0).count(), count);
        assert!(open() > MAX_KEPT_OPEN * STATISTICS.len(), "those of the first are kept: {}", open());
        assert!(open() <= MAX_KEPT_OPEN * (STATISTICS.len() + 8), "{} are open", open());
    }
}

#[test]
fn a_link_that_goes_down_is_an_event_at_once() {
    let dir = tempfile::tempdir().unwrap();
    interface(dir.path(), "eth0", true, &[]);
    let bench = testing::Bench::new(Roots { sysfs: dir.path().into(), ..Roots::default() });
    let mut reader = NicReader::new(&Config::default());
    bench.collect(&mut reader);
    assert_eq!(bench.published(), Vec::<Event>::new());
    interface(dir.path(), "eth0", true, &[("operstate", "down")]);
    bench.collect(&mut reader);
    bench.collect(&mut reader);
    let [event] = &bench.published()[..] else { panic!() };
    assert_eq!((event.kind, event.name.as_deref(), event.code), (Kind::Link, Some("eth0"), Some(0)));
}

/// Each event in short form, such as `eth0 down 0`.
fn short(events: &[Event]) -> Vec<String> {
    let state = |e: &Event| e.extra.get("state").and_then(Value::as_str).unwrap_or_default().to_owned();
    events
        .iter()
        .map(|e| format!("{} {} {}", e.name.as_deref().unwrap(), state(e), e.code.unwrap()))
        .collect()
}

struct Node {
    dir: tempfile::TempDir,
    bench: testing::Bench,
    reader: NicReader,
    out: Samples,
}

impl Node {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("state")).unwrap();
        let state = Some(dir.path().join("state"));
        let bench = testing::Bench::new(Roots { sysfs: dir.path().into(), state, ..Roots::default() });
        Self { dir, bench, reader: NicReader::new(&Config::default()), out: Samples::default() }
    }

    fn set(&self, files: &[(&str, &str)]) {
        interface(self.dir.path(), "eth0", true, files);
    }

    fn look(&mut self, now: f64) -> Vec<String> {
        self.out = Samples::default();
        self.reader.pass(now, &self.bench.context(), &mut self.out).unwrap();
        short(&self.bench.published())
    }

    fn holds(&self, condition: &str) -> Option<f64> {
        self.out.get(&CONDITION, &["eth0", condition])
    }
}

const START: f64 = 1.8e9;

#[test]
fn a_link_drops_flaps_over_a_restart_and_slows_down() {
    let mut node = Node::new();
    node.set(&[("speed", "100000"), ("carrier_changes", "2")]);
    assert!(node.look(START).is_empty());
    assert_eq!(node.holds("drop"), Some(0.0));
    node.set(&[("operstate", "down"), ("carrier_changes", "3")]);
    assert_eq!(node.look(START + 1.0), ["eth0 down 0"]);
    assert!(node.look(START + 240.0).is_empty());
    assert_eq!(node.look(START + 241.0), ["eth0 drop 0"]);
    node.reader = NicReader::new(&Config::default());
    node.set(&[("carrier_changes", "4")]);
    assert_eq!(node.look(START + 300.0), ["eth0 up 1"]);
    node.set(&[("carrier_changes", "8")]);
    assert!(node.look(START + 301.0).is_empty(), "it may just be going down");
    assert_eq!(
        node.look(START + 302.0),
        ["eth0 down 0", "eth0 up 1", "eth0 flap 0"],
        "twice between two looks"
    );
    assert_eq!(node.holds("flap"), Some(1.0));
    node.set(&[("speed", "25000")]);
    assert!(
        node.look(START + 303.0).is_empty(),
        "without a change of the carrier, which it never is, it is seen a little later"
    );
    assert!(node.look(START + 311.0).is_empty());
    assert_eq!(node.look(START + 321.0), ["eth0 degraded 0"]);
    assert_eq!(node.holds("degraded"), Some(1.0));
}

#[test]
fn an_interface_set_down_or_removed_on_purpose_is_not_reported() {
    let mut node = Node::new();
    node.set(&[("operstate", "down")]);
    assert!(node.look(START).is_empty(), "never cabled");
    assert_eq!(node.holds("down"), None);
    node.set(&[]);
    node.look(START + 1.0);
    node.set(&[("operstate", "down")]);
    assert_eq!(node.look(START + 2.0), ["eth0 down 0"]);
    node.set(&[("operstate", "down"), ("flags", "0x1002")]);
    assert_eq!(node.look(START + 3.0), ["eth0 up 1"], "what was open is closed");
    assert!(node.look(START + 4.0).is_empty());
    node.set(&[]);
    assert!(node.look(START + 5.0).is_empty());
    fs::remove_dir_all(node.dir.path().join("class/net/eth0")).unwrap();
    assert!(node.look(START + 6.0).is_empty());
}

/// A driver whose counters a test sets.
#[derive(Debug, Clone, Default)]
struct Fake(Arc<Mutex<Vec<(String, u64)>>>);

impl Fake {
    fn count(&self, stats: &[(&str, u64)]) {
        *self.0.lock().unwrap() = stats.iter().map(|(n, v)| ((*n).to_owned(), *v)).collect();
    }
}

impl Ask for Fake {
    fn index(&self, _: &str) -> io::Result<u32> {
        Ok(7)
    }

    fn driver(&self, _: &str) -> io::Result<Driver> {
        Ok(Driver { name: "mlx5_core".into(), version: "6.8.0".into(), firmware: "28.39.1002".into() })
    }

    fn stats(&self, _: &str) -> io::Result<Vec<(String, u64)>> {
        Ok(self.0.lock().unwrap().clone())
    }
}

#[test]
fn a_host_that_pauses_its_switch() {
    let (mut node, fake) = (Node::new(), Fake::default());
    let allowed = Config::default().ethtool;
    node.reader.drivers = Drivers::new(&allowed, Some(Box::new(fake.clone())));
    node.set(&[("ifindex", "7")]);
    let pauses = |micros: u64, storms: u64| {
        fake.count(&[
            ("rx_prio3_pause", 5),
            ("tx_prio3_pause_duration", micros),
            ("tx_prio4_pause_duration", 1_000_000),
            ("tx_pause_storm_error_events", storms),
            ("rx_queue_17_bytes", 9),
        ]);
    };
    pauses(0, 0);
    assert!(node.look(START).is_empty());
    assert_eq!(node.out.get(&STATS, &["eth0", "rx_prio3_pause"]), Some(5.0));
    assert_eq!(node.out.get(&STATS, &["eth0", "rx_queue_17_bytes"]), None, "not on the list");
    assert_eq!(node.out.get(&DRIVER, &["eth0", "mlx5_core", "6.8.0", "28.39.1002"]), Some(1.0));
    pauses(5_000_000, 0);
    assert!(node.look(START + 5.0).is_empty(), "drivers are asked every ten seconds");
    assert!(node.look(START + 10.0).is_empty());
    pauses(13_000_000, 0);
    assert_eq!(node.look(START + 20.0), ["eth0 errors 0"], "thirteen of twenty seconds");
    pauses(13_000_000, 1);
    assert_eq!(node.look(START + 30.0), ["eth0 errors 0"], "worse");
    assert_eq!(node.look(START + 640.0), ["eth0 errors 1"]);
}

/// The level and text for a link whose counters stood at 7 and rose by this much within ten
/// seconds.
fn said_of(rises: &[(&str, u64)]) -> Option<(String, String)> {
    let (mut node, fake) = (Node::new(), Fake::default());
    node.reader.drivers = Drivers::new(&Config::default().ethtool, Some(Box::new(fake.clone())));
    node.set(&[("ifindex", "7")]);
    fake.count(&rises.iter().map(|(name, _)| (*name, 7)).collect::<Vec<_>>());
    assert!(node.look(START).is_empty());
    fake.count(&rises.iter().map(|(name, n)| (*name, 7 + n)).collect::<Vec<_>>());
    let looked = node.reader.pass(START + 10.0, &node.bench.context(), &mut node.out);
    looked.unwrap();
    let published = node.bench.published().into_iter().next()?;
    Some((published.level.unwrap(), published.text.unwrap()))
}

#[test]
fn pauses_and_errors_of_bnxt_and_ice_are_published_too() {
    let paused = said_of(&[("pfc_pri3_rx_duration_us", 8_000_000), ("pfc_pri0_rx_duration_us", 5_000_000)]);
    let expected = "Ethernet link eth0 has errors: rx_pause_duration rose by 13000000 within 60 s (a good link stays under 12000000); \
        in microseconds: the fabric holds this host back; look for congestion ahead";
    assert_eq!(paused, Some(("warn".into(), expected.into())));
    assert_eq!(said_of(&[("pfc_pri3_rx_duration_us", 11_000_000)]), None, "less than a fifth of a minute");
    let frames = said_of(&[("tx_priority_3_xoff.nic", 40_000), ("link_xoff_tx.nic", 30_000)]);
    let expected = "Ethernet link eth0 has errors: tx_xoff_frames rose by 70000 within 60 s (a good link stays under 60000); \
        in pause frames: this host takes what it is sent too slowly; look at its PCIe link";
    assert_eq!(frames, Some(("warn".into(), expected.into())));
    for counter in ["rx_pcs_symbol_err", "rx_fcs_err_frames", "rx_crc_errors.nic", "illegal_bytes.nic"] {
        let (level, text) = said_of(&[(counter, 121)]).unwrap();
        assert!(
            level == "warn" && text.contains(counter) && text.ends_with("cable and transceiver"),
            "{text}"
        );
        assert_eq!(said_of(&[(counter, 120)]), None);
    }
    for (counter, n) in
        [("continuous_roce_pause_events", 1), ("continuous_pause_events", 1), ("rx_dropped.nic", 6001)]
    {
        assert!(said_of(&[(counter, n)]).is_some(), "{counter}");
    }
}

#[test]
fn a_driver_is_not_asked_of_an_interface_that_has_the_name_elsewhere() {
    let (mut node, fake) = (Node::new(), Fake::default());
    fake.count(&[("rx_prio3_pause", 5)]);
    node.reader.drivers = Drivers::new(&["*".into()], Some(Box::new(fake)));
    node.set(&[("ifindex", "8")]);
    node.look(START);
    assert_eq!(node.out.rows(&STATS).count() + node.out.rows(&DRIVER).count(), 0);
}

#[test]
fn counters_without_room_are_left_out_and_counted() {
    let (mut node, fake) = (Node::new(), Fake::default());
    let names: Vec<String> = (0..200).map(|i| format!("s{i}")).collect();
    fake.count(&names.iter().map(|n| (n.as_str(), 1)).collect::<Vec<_>>());
    node.reader.drivers = Drivers::new(&["s*".into()], Some(Box::new(fake)));
    node.set(&[("ifindex", "7")]);
    node.look(START);
    assert_eq!((node.out.rows(&STATS).count(), node.out.get(&LEFT_OUT, &["eth0"])), (128, Some(72.0)));
}

#[test]
fn the_interfaces_that_send_most_are_published_with_their_speed() {
    let dir = tempfile::tempdir().unwrap();
    let sent: Vec<String> = (0..12).map(|n| (1000 * n).to_string()).collect();
    for (n, sent) in sent.iter().enumerate() {
        let files =
            [("speed", "100000"), ("statistics/tx_bytes", sent.as_str()), ("statistics/rx_bytes", "7")];
        interface(dir.path(), &format!("eth{n:02}"), true, &files);
    }
    interface(dir.path(), "eth98", true, &[("statistics/tx_bytes", "99999")]);
    let down = [("operstate", "down"), ("speed", "100000"), ("statistics/tx_bytes", "99999")];
    interface(dir.path(), "eth99", true, &down);
    let bench = testing::Bench::new(Roots { sysfs: dir.path().into(), ..Roots::default() });
    let mut reader = NicReader::new(&Config { ethtool: Vec::new(), ..Config::default() });
    bench.collect(&mut reader);
    bench.collect(&mut reader);
    let published = bench.published();
    let device = |e: &Event| e.extra.get("device").and_then(Value::as_str).unwrap_or_default().to_owned();
    let names: Vec<String> = published.iter().map(device).collect();
    let busiest = ["eth11", "eth10", "eth09", "eth08", "eth07", "eth06", "eth05", "eth04"];
    assert_eq!(names, busiest, "once in half a minute");
    assert!(published.iter().all(|e| e.kind == Kind::Health && e.name.as_deref() == Some("nic")));
    let values: Vec<_> = published[0].m.iter().collect();
    assert_eq!(
        values,
        [("rate_bytes_per_second", 12.5e9), ("receive_bytes", 7.0), ("transmit_bytes", 11_000.0)]
    );
}
