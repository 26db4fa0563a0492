use super::*;

/// A node of files.
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
            kmsg: at("kmsg"),
            nvml_library: Some(at("no-such-library.so")),
            state: None,
        };
        let config = Config { state_dir: at("not/there/yet"), ..Config::default() };
        let tree = Self { dir, roots, config, options: Options::default() };
        for (path, text) in [("proc/stat", "btime 1"), ("sys/class/net/eth0/type", "1")].iter().chain(files) {
            tree.write(path, text);
        }
        tree
    }

    pub(super) fn write(&self, path: &str, text: &str) {
        let path = self.dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, format!("{text}\n")).unwrap();
    }

    /// Makes these checks alone.
    pub(super) fn only(mut self, checks: &[&str]) -> Self {
        self.options.only = checks.iter().map(|c| (*c).to_owned()).collect();
        self
    }

    pub(super) fn check(&self) -> Report {
        run(&self.config, &self.roots, &self.options)
    }

    /// What the check says on a healthy node, or all that is not healthy.
    pub(super) fn says(&self) -> String {
        let report = self.check();
        report.text(report.verdict != Verdict::Ok)
    }
}

const UP: &[(&str, &str)] = &[
    ("sys/class/net/eth0/device/x", ""),
    ("sys/class/net/eth0/operstate", "up"),
    ("sys/class/net/eth0/flags", "0x1003"),
];

#[test]
fn a_healthy_node() {
    let tree = Tree::new(UP).only(&["clock", "disk", "nic"]);
    let report = tree.check();
    assert_eq!((report.verdict, report.exit), (Verdict::Ok, 0), "{}", report.text(false));
    let text = report.text(false);
    assert!(text.contains("ok        nic        eth0 up\n"), "{text}");
    assert_eq!(report.text(true), "");
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
    let report = tree.check();
    assert_eq!(report.exit, 1);
    assert_eq!(
        report.text(true),
        "unhealthy nic eth0 is meant to be up and is down; check its cable and switch port, or set it down if it is not used\n"
    );
    assert_eq!(report.findings.last().unwrap().device.as_deref(), Some("eth0"));
}

#[test]
fn a_node_that_cannot_be_read_or_lost_its_clock() {
    let tree = Tree::new(UP).only(&["clock"]);
    tree.write("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet");
    let report = tree.check();
    assert_eq!(report.exit, 1);
    assert!(report.text(true).contains("hpet is slow"), "{}", report.text(false));
    // A directory that is a file cannot be listed: that is not the same as empty.
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
    let node = Node::look(&tree.config, &tree.roots, &[], Instant::now());
    let (sender, never) = std::sync::mpsc::channel::<()>();
    assert_eq!(node.in_time(move || never.recv().is_err()), None);
    assert_eq!(node.in_time(|| 1), Some(1), "what is quick is done, however late it is");
    drop(sender);
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
}

#[test]
fn lists_read_well() {
    let shown = |names: &[&'static str]| listed(names.iter().copied());
    assert_eq!([shown(&[]), shown(&["a"]), shown(&["a", "b", "c"])], ["anything", "a", "a, b and c"]);
}
