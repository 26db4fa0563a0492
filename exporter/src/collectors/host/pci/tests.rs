use std::os::unix::fs::symlink;

use stepwatch_wire::{Event, Value};

use super::*;
use crate::origin::{Origin, Peer};
use crate::testing;

const ROOT: &str = "pci0000:15/0000:15:01.0";
const SWITCH: &str = "pci0000:15/0000:15:01.0/0000:16:00.0";
const GPU_PORT: &str = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0";
const GPU: &str = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0";
const SECOND_PORT: &str = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0";
const SECOND_GPU: &str = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:1a:00.0";
const NIC_PORT: &str = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0";
const NIC: &str = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0";
const NIC_SECOND: &str = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.1";
const VIDEO: &str = "pci0000:00/0000:00:1c.0/0000:02:00.0";

struct Node {
    dir: tempfile::TempDir,
    bench: testing::Bench,
    reader: PciReader,
}

impl Node {
    /// A GPU and a card with two ports behind a switch, and the graphics of a management board.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let roots =
            Roots { sysfs: dir.path().join("sys"), procfs: dir.path().join("proc"), ..Roots::default() };
        let node =
            Self { dir, bench: testing::Bench::new(roots), reader: PciReader::new(&Config::default()) };
        for (path, class, vendor) in [
            (ROOT, "0x060400", "0x8086"),
            (SWITCH, "0x060400", "0x1000"),
            (GPU_PORT, "0x060400", "0x1000"),
            (GPU, "0x030200", "0x10de"),
            (NIC_PORT, "0x060400", "0x1000"),
            (NIC, "0x020700", "0x15b3"),
            (NIC_SECOND, "0x020700", "0x15b3"),
            (VIDEO, "0x030000", "0x1a03"),
        ] {
            node.add(path, class, vendor);
        }
        node
    }

    fn add(&self, path: &str, class: &str, vendor: &str) {
        self.set(path, "class", class);
        self.set(path, "vendor", vendor);
        for side in ["current", "max"] {
            self.set(path, &format!("{side}_link_speed"), "32.0 GT/s PCIe");
            self.set(path, &format!("{side}_link_width"), "16");
        }
        self.set(path, "aer_dev_correctable", "BadTLP 0\nTOTAL_ERR_COR 0");
        self.set(path, "aer_dev_fatal", "TOTAL_ERR_FATAL 0");
        self.set(path, "aer_dev_nonfatal", "TOTAL_ERR_NONFATAL 0");
        let devices = self.dir.path().join("sys/bus/pci/devices");
        std::fs::create_dir_all(&devices).unwrap();
        let address = path.rsplit('/').next().unwrap();
        symlink(format!("../../../devices/{path}"), devices.join(address)).unwrap();
    }

    /// Adds a second GPU beside the switch.
    fn add_second_gpu(&self) {
        self.add(SECOND_PORT, "0x060400", "0x1000");
        self.add(SECOND_GPU, "0x030200", "0x10de");
    }

    fn set(&self, path: &str, file: &str, text: &str) {
        let dir = self.dir.path().join("sys/devices").join(path);
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join(file), format!("{text}\n")).unwrap();
    }

    fn look(&mut self, now: f64) -> (Samples, Vec<Event>) {
        let mut out = Samples::default();
        self.reader.pass(now, &self.bench.context(), &mut out).unwrap();
        (out, self.bench.published())
    }

    /// The events of a pass, such as `0000:18:00.0 degraded 0 error`.
    fn published(&mut self, now: f64) -> Vec<String> {
        let events = self.look(now).1;
        let short = |e: &Event| {
            let state = e.extra.get("state").and_then(Value::as_str).or(e.name.as_deref()).unwrap();
            let pci = e.extra.get("pci").and_then(Value::as_str).unwrap();
            format!("{pci} {state} {} {}", e.code.unwrap(), e.level.as_deref().unwrap())
        };
        events.iter().filter(|e| e.run.is_none()).map(short).collect()
    }

    /// Adds a process that trains on the first GPU, which is the second by its device file.
    fn train(&self) {
        for (address, minor) in [("0000:18:00.0", 1), ("0000:1a:00.0", 0)] {
            let dir = self.dir.path().join("proc/driver/nvidia/gpus").join(address);
            std::fs::create_dir_all(&dir).unwrap();
            let text = format!("GPU UUID: GPU-{minor}\nBus Location: {address}\nDevice Minor: {minor}\n");
            std::fs::write(dir.join("information"), text).unwrap();
        }
        let fds = self.dir.path().join(format!("proc/{}/fd", std::process::id()));
        std::fs::create_dir_all(&fds).unwrap();
        for (fd, target) in [("3", "/dev/nvidiactl"), ("4", "/dev/nvidia1"), ("5", "/dev/null")] {
            symlink(target, fds.join(fd)).unwrap();
        }
        let uid = rustix::process::getuid().as_raw();
        let peer = Origin::Peer(Peer { connection: 1, pid: Some(std::process::id()), uid });
        let event = Event::parse(br#"{"k":"step","run":"r","rank":0,"step":1,"loss":2.0}"#).unwrap();
        self.bench.hub.publish(peer, event);
        assert!(!self.bench.hub.processes(&Roots::default()).is_empty());
    }
}

#[test]
fn what_is_watched_and_what_is_judged() {
    let mut node = Node::new();
    let found = node.reader.probe(&node.bench.context()).unwrap();
    assert_eq!(found, Support::Supported("1 gpu, 2 nic, 4 bridge".into()));
    let (page, events) = node.look(0.0);
    assert!(events.is_empty());
    assert_eq!(page.get(&SPEED, &["0000:18:00.0"]), Some(32e9));
    assert_eq!(page.get(&MAX_WIDTH, &["0000:15:01.0"]), Some(16.0));
    assert_eq!(page.get(&INFO, &["0000:19:00.0", "nic", "", "", "0000:17:01.0", ""]), Some(1.0));
    assert_eq!(page.get(&AER_TOTAL, &["0000:18:00.0", "fatal"]), Some(0.0));
    let judged: Vec<_> =
        page.rows(&DEGRADED).filter(|r| r.label("what") == "width").map(|r| r.label("pci")).collect();
    assert_eq!(judged, ["0000:16:00.0", "0000:18:00.0", "0000:19:00.0"], "one end of each link");
    assert_eq!(page.get(&WIDTH, &["0000:02:00.0"]), None, "a management board");
}

#[test]
fn fewer_lanes_are_a_fault_whatever_the_load() {
    let mut node = Node::new();
    node.set(GPU, "current_link_width", "8");
    assert!(node.published(0.0).is_empty());
    assert!(node.published(45.0).is_empty());
    let (page, events) = node.look(60.0);
    assert_eq!(events[0].text.as_deref(), Some("PCIe link of 0000:18:00.0 runs at x8 of x16"));
    assert_eq!(page.get(&DEGRADED, &["0000:18:00.0", "width"]), Some(1.0));
    assert_eq!(page.get(&DEGRADED, &["0000:18:00.0", "speed"]), Some(0.0));
    node.set(GPU, "current_link_width", "63");
    assert!(node.published(75.0).len() == 1, "an unknown width is no fault");
    node.set(GPU, "current_link_width", "16");
    assert!(node.published(90.0).is_empty());
}

#[test]
fn a_slot_that_can_do_no_more_is_no_fault() {
    let mut node = Node::new();
    for file in ["current_link_width", "max_link_width"] {
        node.set(NIC_PORT, file, "8");
    }
    node.set(NIC, "current_link_width", "8");
    node.set(GPU_PORT, "max_link_speed", "16.0 GT/s PCIe");
    node.set(GPU, "current_link_speed", "16.0 GT/s PCIe");
    node.train();
    assert!(node.published(0.0).is_empty() && node.published(100.0).is_empty());
}

#[test]
fn a_gpu_that_rests_may_be_slow_a_card_may_not() {
    let mut node = Node::new();
    node.set(GPU, "current_link_speed", "2.5 GT/s PCIe");
    assert!(node.published(0.0).is_empty() && node.published(1000.0).is_empty());
    node.train();
    assert!(node.published(1015.0).is_empty(), "it takes a moment to speed up");
    assert_eq!(node.published(1075.0), ["0000:18:00.0 degraded 0 error"]);
    node.set(GPU, "current_link_speed", "32.0 GT/s PCIe");
    assert_eq!(node.published(1090.0), ["0000:18:00.0 degraded 1 info"]);

    let mut node = Node::new();
    node.set(NIC, "current_link_speed", "16.0 GT/s PCIe");
    node.set(SWITCH, "current_link_speed", "16.0 GT/s PCIe");
    assert!(node.published(0.0).is_empty());
    assert_eq!(node.published(60.0), ["0000:16:00.0 degraded 0 error", "0000:19:00.0 degraded 0 error"]);
}

#[test]
fn a_gpu_that_rests_beside_one_that_trains_may_be_slow() {
    let mut node = Node::new();
    node.add_second_gpu();
    node.train();
    node.set(SECOND_GPU, "current_link_speed", "2.5 GT/s PCIe");
    for now in [0.0, 60.0, 120.0, 600.0] {
        let (page, events) = node.look(now);
        assert!(events.iter().all(|e| e.run.is_some()), "{events:?}");
        assert_eq!(page.get(&DEGRADED, &["0000:1a:00.0", "speed"]), Some(0.0));
    }
    node.set(GPU, "current_link_speed", "2.5 GT/s PCIe");
    assert!(node.published(615.0).is_empty());
    assert_eq!(node.published(675.0), ["0000:18:00.0 degraded 0 error"]);
}

#[test]
fn nvml_decides_before_open_files_which_gpu_works() {
    let mut node = Node::new();
    node.add_second_gpu();
    node.train();
    node.reader.work.ask = |_| [("0000:18:00.0".to_owned(), false), ("0000:1a:00.0".to_owned(), true)].into();
    node.set(GPU, "current_link_speed", "2.5 GT/s PCIe");
    node.set(SECOND_GPU, "current_link_speed", "2.5 GT/s PCIe");
    assert!(node.published(0.0).is_empty());
    assert_eq!(
        node.published(60.0),
        ["0000:1a:00.0 degraded 0 error"],
        "held open and used are not the same"
    );
    node.reader.work.ask = |_| [("0000:1a:00.0".to_owned(), false)].into();
    assert_eq!(node.published(75.0), ["0000:1a:00.0 degraded 1 info"]);
}

#[test]
fn a_gpu_whose_users_cannot_be_seen_rests() {
    let mut node = Node::new();
    node.train();
    let fds = node.dir.path().join(format!("proc/{}/fd", std::process::id()));
    std::fs::remove_dir_all(fds).unwrap();
    node.set(GPU, "current_link_speed", "2.5 GT/s PCIe");
    assert!(node.published(0.0).is_empty() && node.published(60.0).is_empty());
}

#[test]
fn uncorrected_errors_are_published_and_corrected_ones_when_they_are_many() {
    let mut node = Node::new();
    node.set(GPU, "aer_dev_fatal", "DLP 7\nTOTAL_ERR_FATAL 7");
    assert!(node.published(0.0).is_empty(), "from before");
    node.set(GPU, "aer_dev_fatal", "DLP 8\nTOTAL_ERR_FATAL 8");
    node.set(NIC, "aer_dev_nonfatal", "CmpltTO 2\nTOTAL_ERR_NONFATAL 2");
    node.set(NIC, "aer_dev_correctable", "BadTLP 500\nTOTAL_ERR_COR 500");
    assert_eq!(node.published(15.0), ["0000:18:00.0 aer_fatal 1 error", "0000:19:00.0 aer_nonfatal 1 warn"]);
    node.set(NIC, "aer_dev_nonfatal", "CmpltTO 5\nTOTAL_ERR_NONFATAL 5");
    node.set(NIC, "aer_dev_correctable", "BadTLP 700\nTOTAL_ERR_COR 700");
    assert_eq!(node.published(30.0), ["0000:19:00.0 errors 0 warn"]);
    let (page, events) = node.look(620.0);
    assert_eq!(page.get(&AER, &["0000:19:00.0", "correctable", "BadTLP"]), Some(700.0));
    let texts: Vec<_> = events.iter().filter_map(|e| e.text.as_deref()).collect();
    assert_eq!(
        texts,
        [
            "PCIe link of 0000:19:00.0 has few errors again",
            "nic 0000:19:00.0 had 3 PCIe errors that lost a transaction"
        ]
    );
}

#[test]
fn a_device_that_sleeps_is_not_woken() {
    let mut node = Node::new();
    node.set(&format!("{GPU}/power"), "runtime_status", "suspended");
    let (page, _) = node.look(0.0);
    assert_eq!(
        (page.get(&SPEED, &["0000:18:00.0"]), page.get(&SPEED, &["0000:19:00.0"])),
        (None, Some(32e9))
    );
}

#[test]
fn speeds_and_widths() {
    for (text, speed) in
        [("32.0 GT/s PCIe", Some(32e9)), ("8 GT/s", Some(8e9)), ("2.5 GT/s PCIe", Some(2.5e9))]
    {
        assert_eq!(parse_speed(text), speed, "{text}");
    }
    for text in ["Unknown", "", "32.0", "-1 GT/s", "nan GT/s"] {
        assert_eq!(parse_speed(text), None, "{text}");
    }
    assert_eq!(["16", "0", "63", "255", "x16"].map(parse_width), [Some(16), None, None, None, None]);
}

proptest::proptest! {
    #[test]
    fn never_panics(text: String) {
        let _ = (parse_speed(&text), parse_width(&text));
    }
}
