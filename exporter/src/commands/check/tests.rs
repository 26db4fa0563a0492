use stepwatch_wire::Event;
use stepwatch_wire::conditions::NodeCondition;

use super::item::listed;
use super::report::Findings;
use super::*;
use crate::samples::Samples;

/// A node whose system files are in a directory.
pub(super) struct Tree {
    dir: tempfile::TempDir,
    pub(super) roots: Roots,
    pub(super) config: Config,
    pub(super) options: Options,
}

impl Tree {
    pub(super) fn new(files: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |part: &str| dir.path().join(part);
        let roots = Roots {
            sysfs: at("sys"),
            procfs: at("proc"),
            shm: at("shm"),
            dev: at("dev"),
            kmsg: at("kmsg"),
            nvml_library: Some(at("no-such-library.so")),
            state: None,
        };
        let config = Config { state_dir: at("not/there/yet"), node: Some("n1".into()), ..Config::default() };
        let tree = Self { dir, roots, config, options: Options::default() };
        let base = [
            ("proc/stat", "btime 1"),
            ("proc/self/mountinfo", "22 1 0:21 / / rw - ext4 /dev/sda1 rw"),
            ("sys/class/net/eth0/type", "1"),
        ];
        for (path, text) in base.iter().chain(files) {
            tree.write(path, text);
        }
        tree
    }

    pub(super) fn write(&self, path: &str, text: &str) {
        let path = self.dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, format!("{text}\n")).unwrap();
    }

    /// Selects these checks.
    pub(super) fn only(mut self, checks: &[&str]) -> Self {
        self.options.only = checks.iter().map(|c| (*c).to_owned()).collect();
        self
    }

    pub(super) fn check(&self) -> Report {
        run(&self.config, &self.roots, &self.options)
    }

    /// The output of the check on a healthy node, or all findings that are not healthy.
    pub(super) fn says(&self) -> String {
        let report = self.check();
        report.text(report.verdict != Verdict::Ok)
    }
}

/// The output of a check with these values of the collectors.
pub(super) fn output(check: &Check, samples: Samples) -> String {
    says(check, samples, Vec::new())
}

/// The output of a check with these events of the collectors.
pub(super) fn heard(check: &Check, events: Vec<Event>) -> String {
    says(check, Samples::default(), events)
}

/// The output of a check with these values and events.
pub(super) fn says(check: &Check, samples: Samples, events: Vec<Event>) -> String {
    let (config, options) = (Config::default(), Options::default());
    let node = Node::seen(&config, options.reference.as_deref(), samples, events);
    let findings: Vec<Finding> = (check.run)(&node).named(check.name).collect();
    Report::new("n1".into(), 0.0, 0.0, findings, options.strictness()).text(false)
}

const UP: &[(&str, &str)] = &[
    ("sys/class/net/eth0/device/x", ""),
    ("sys/class/net/eth0/operstate", "up"),
    ("sys/class/net/eth0/flags", "0x1003"),
];

#[test]
fn a_healthy_node() {
    let tree = Tree::new(UP).only(&["disk", "nic"]);
    let report = tree.check();
    let text = report.text(false);
    assert_eq!(report.exit, 0, "{text}");
    assert!(text.contains("ok        nic        eth0 up\n"), "{text}");
    let wrong = report.text(true);
    assert!(wrong.lines().all(|l| l.starts_with("warning   disk")), "how full this machine is: {wrong}");
    assert!(!tree.config.state_dir.exists(), "looking changes nothing");
}

#[test]
fn a_link_that_is_down_and_one_that_may_be() {
    let tree = Tree::new(&[
        ("sys/class/net/eth0/device/x", ""),
        ("sys/class/net/eth0/operstate", "down"),
        ("sys/class/net/eth0/flags", "0x1003"),
        ("sys/class/net/eth1/type", "1"),
        ("sys/class/net/eth1/device/x", ""),
        ("sys/class/net/eth1/operstate", "down"),
        ("sys/class/net/eth1/flags", "0x1002"),
    ])
    .only(&["nic"]);
    let what_to_do = "; check its cable and switch port, or set it down if it is not used\n";
    let report = tree.check();
    assert_eq!(report.exit, 0);
    assert_eq!(
        report.text(true),
        format!("warning   nic eth0 is set up and has no carrier, as far as is known since ever{what_to_do}")
    );
    assert_eq!(report.findings.last().unwrap().device.as_deref(), Some("eth0"));
    // The exporter of this node has seen it up.
    std::fs::create_dir_all(&tree.config.state_dir).unwrap();
    let known = serde_json::json!({"eth0": {"up_at": unix_now(), "pace": {"best": 0.0, "slower_since": null},
        "watch": {"open": null, "down_since": null, "outages": []}}});
    std::fs::write(tree.config.state_dir.join("learned-nic.json"), known.to_string()).unwrap();
    let report = tree.check();
    assert_eq!(report.exit, 1);
    assert_eq!(report.text(true), format!("unhealthy nic eth0 was up and is down{what_to_do}"));
}

#[test]
fn a_node_that_cannot_be_read_or_lost_its_clock() {
    let tree = Tree::new(UP).only(&["clock"]);
    tree.write("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet");
    let report = tree.check();
    assert_eq!(report.exit, 1);
    assert!(report.text(true).contains("hpet is slow"), "{}", report.text(false));
    // The path cannot be listed as a directory, which differs from an empty one.
    let tree = Tree::new(&[]).only(&["nic"]);
    std::fs::remove_dir_all(tree.roots.sys("class/net")).unwrap();
    tree.write("sys/class/net", "");
    let report = tree.check();
    assert_eq!((report.verdict, report.exit), (Verdict::Unknown, 2), "{}", report.text(false));
    assert!(report.text(true).contains("nothing is known of nic"), "{}", report.text(false));
}

#[test]
fn nothing_that_hangs_is_waited_for() {
    let tree = Tree::new(&[]).only(&["disk"]);
    let node = Node::look(&tree.config, &tree.roots, tree.options.reference.as_deref(), &[], Instant::now());
    let (sender, never) = std::sync::mpsc::channel::<()>();
    assert_eq!(node.in_time(move || never.recv().is_err()), None);
    assert_eq!(node.in_time(|| 1), Some(1), "what is quick is done, however late it is");
    drop(sender);
}

#[test]
fn clocks() {
    use crate::collectors::host::clock::{MAX_ERROR, OFFSET, SOURCE, SYNCED};
    let clock = |synced: bool, offset: f64, source: &str| {
        let mut samples = Samples::default();
        samples.set(&SYNCED, &[], synced);
        samples.set(&OFFSET, &[], offset);
        samples.set(&MAX_ERROR, &[], 16.0);
        samples.set(&SOURCE, &[source], 1u64);
        output(&clock::CHECK, samples)
    };
    insta::assert_snapshot!(clock(true, -0.0004, "tsc"), @"ok        clock disciplined, 0.4 ms off");
    insta::assert_snapshot!(clock(true, 0.25, "tsc"), @"warning   clock the clock is 250 ms off; see chronyc tracking");
    insta::assert_snapshot!(clock(false, 0.0, "kvm-clock"), @"warning   clock nothing disciplines the clock; it may be 16 s off by now; start chronyd, ntpd or systemd-timesyncd");
    insta::assert_snapshot!(clock(true, 3.0, "hpet"), @r"
    unhealthy clock clock source hpet is slow: the kernel found the processor's counter unstable; reboot the node; if it comes back, have its firmware and board looked at
    unhealthy clock the clock is 3.0 s off; see why the time daemon does not correct it: chronyc tracking
    ");
}

#[test]
fn memory_of_the_host() {
    use crate::collectors::host::edac::{ERRORS, MODULE_ERRORS};
    let memory = |corrected: u64, uncorrected: u64| {
        let mut samples = Samples::default();
        for (severity, count) in [("corrected", corrected), ("uncorrected", uncorrected)] {
            samples.set(&ERRORS, &["mc0", severity], count);
            samples.set(&MODULE_ERRORS, &["mc0", "dimm3", "CPU0_DIMM_B1", severity], count);
            samples.set(&MODULE_ERRORS, &["mc0", "dimm4", "", severity], 0u64);
        }
        output(&memory::CHECK, samples)
    };
    insta::assert_snapshot!(memory(3, 0), @"ok        memory 3 corrected errors of host memory, none uncorrected");
    insta::assert_snapshot!(memory(20_000, 1), @r"
    warning   memory 20000 corrected errors of host memory (CPU0_DIMM_B1); have the module replaced at the next chance
    unhealthy memory 1 uncorrected errors of host memory (CPU0_DIMM_B1); drain the node and have the module replaced
    ");
}

#[test]
fn the_registry_keeps_its_rules() {
    let mut seen = BTreeSet::from([collectors::NAME]);
    for check in CHECKS {
        assert!(seen.insert(check.name), "{} is there twice", check.name);
        assert!(!check.about.is_empty() && !check.about.ends_with('.'), "{}", check.name);
        for need in check.needs {
            assert!(crate::collectors::COLLECTORS.iter().any(|c| c.name == *need), "{need}");
        }
    }
    for condition in NodeCondition::ALL {
        let row = condition.row();
        assert!(
            CHECKS.iter().any(|check| check.name == row.check),
            "{} is judged by {}",
            row.name,
            row.check
        );
    }
}

#[test]
fn lists_read_well() {
    let shown = |names: &[&'static str]| listed(names.iter().copied());
    assert_eq!([shown(&[]), shown(&["a"]), shown(&["a", "b", "c"])], ["anything", "a", "a, b and c"]);
}

const PAGE: &str = include_str!("../../../../docs/check.md");

#[test]
fn the_page_of_the_documentation_has_every_check_and_every_key() {
    for name in CHECKS.iter().map(|check| check.name).chain([collectors::NAME]) {
        assert!(PAGE.contains(&format!("| `{name}` |")), "{name}");
    }
    let mut found = Findings::default();
    found.unhealthy("x").device("x").action("x");
    let findings = found.named("x").collect();
    let facts = Facts::from([("x".to_owned(), "x".to_owned())]);
    let report = Report { facts, ..Report::new("n".into(), 0.0, 0.0, findings, Strictness::default()) };
    let json: serde_json::Value = serde_json::from_str(&report.json(false)).unwrap();
    for key in json.as_object().unwrap().keys() {
        assert!(PAGE.contains(&format!("| `{key}` |")), "{key}");
    }
    for key in json["findings"][0].as_object().unwrap().keys() {
        assert!(PAGE.contains(&format!("`{key}` (")) || PAGE.contains(&format!("`{key}`, ")), "{key}");
    }
}
