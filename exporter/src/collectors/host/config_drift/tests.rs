//! Tests with nodes and runs as directory trees.

use std::path::Path;

use stepwatch_wire::{Event, Kind, Value};

use super::*;
use crate::origin::{Origin, Peer};
use crate::roots::Roots;
use crate::testing::Bench;

struct Node {
    dir: tempfile::TempDir,
    bench: Bench,
}

impl Node {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        std::fs::create_dir(&state).unwrap();
        let roots = Roots {
            sysfs: dir.path().join("sys"),
            procfs: dir.path().join("proc"),
            state: Some(state),
            ..Roots::default()
        };
        let node = Self { bench: Bench::new(roots), dir };
        node.write("proc/sys/kernel/osrelease", "6.8.0\n");
        node.write("proc/sys/vm/swappiness", "60\n");
        node
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn at(&self, path: &str) -> String {
        self.dir.path().join(path).display().to_string()
    }

    fn trainer(&self, pid: u32, run: &str, environ: &[&str], cmdline: &[&str]) {
        let stat = format!("{pid} (python3) S 1 1 1 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 {pid}00 1 1 0");
        self.write(&format!("proc/{pid}/stat"), &stat);
        self.write(&format!("proc/{pid}/status"), "Name:\tpython3\nUid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\n");
        self.write(&format!("proc/{pid}/environ"), &environ.join("\0"));
        self.write(&format!("proc/{pid}/cmdline"), &cmdline.join("\0"));
        let maps = format!("7f1c-7f1d r-xp 00000000 08:02 99 {}\n", self.at("lib/libnccl.so.2.21.5"));
        self.write(&format!("proc/{pid}/maps"), &maps);
        std::os::unix::fs::symlink(self.dir.path(), self.dir.path().join(format!("proc/{pid}/cwd"))).unwrap();
        let origin = Origin::Peer(Peer { connection: u64::from(pid), pid: Some(pid), uid: 0 });
        self.bench.hub.publish(origin, Event { rank: Some(pid), ..Event::step(run, 1) });
        self.bench.published();
    }

    fn published(&self) -> Vec<Event> {
        self.bench.published().into_iter().filter(|e| e.kind == Kind::Health).collect()
    }
}

fn reader() -> ConfigDriftReader {
    ConfigDriftReader::new(&Config { node_files: Vec::new(), ..Config::default() })
}

fn text<'a>(event: &'a Event, key: &str) -> Option<&'a str> {
    event.extra.get(key).and_then(Value::as_str)
}

#[test]
fn a_node_that_changes() {
    let node = Node::new();
    let mut reader = reader();
    let page = node.bench.collect(&mut reader);
    assert_eq!(page.get(&VALUE, &["", "kernel", "6.8.0"]), Some(1.0), "{page:?}");
    assert_eq!((page.get(&CHANGES, &["node"]), page.get(&LAST_CHANGE, &["node"])), (Some(0.0), None));
    let [first] = &node.published()[..] else { panic!() };
    assert_eq!((first.name.as_deref(), first.run.as_deref()), (Some("config"), None));
    assert_eq!(text(first, "sysctl.vm.swappiness"), Some("60"));
    let before = text(first, "fingerprint").unwrap().to_owned();
    assert_eq!(page.get(&FINGERPRINT, &["", &before]), Some(1.0));
    node.bench.collect(&mut reader);
    assert!(node.published().is_empty(), "nothing changed");

    node.write("proc/sys/vm/swappiness", "10\n");
    let page = node.bench.collect(&mut reader);
    assert_eq!(page.get(&CHANGES, &["node"]), Some(1.0));
    assert!(page.get(&LAST_CHANGE, &["node"]).is_some() && page.get(&FINGERPRINT, &["", &before]).is_none());
    let [changed] = &node.published()[..] else { panic!() };
    assert_eq!(changed.text.as_deref(), Some("sysctl.vm.swappiness was 60 and is 10"));

    node.write("proc/sys/vm/dirty_ratio", "20\n");
    assert_eq!(node.bench.collect(&mut reader).get(&CHANGES, &["node"]), Some(1.0), "one more is no change");
    assert_eq!(node.published().len(), 1);
}

#[test]
fn what_changed_while_the_exporter_was_down_is_published() {
    let node = Node::new();
    node.bench.collect(&mut reader());
    node.published();
    node.write("proc/sys/kernel/osrelease", "6.11.0\n");
    let page = node.bench.collect(&mut reader());
    assert_eq!(page.get(&CHANGES, &["node"]), Some(1.0));
    assert_eq!(node.published()[0].text.as_deref(), Some("kernel was 6.8.0 and is 6.11.0"));
    let page = node.bench.collect(&mut reader());
    assert_eq!(page.get(&CHANGES, &["node"]), Some(0.0));
}

#[test]
fn many_settings_come_in_parts() {
    let node = Node::new();
    let sysctls: Vec<String> = (0..70).map(|i| format!("vm.s{i:02}")).collect();
    for name in &sysctls {
        node.write(&format!("proc/sys/{}", name.replace('.', "/")), "1\n");
    }
    let mut reader = ConfigDriftReader::new(&Config { sysctls, node_files: Vec::new(), ..Config::default() });
    node.bench.collect(&mut reader);
    let published = node.published();
    assert_eq!(published.len(), 3);
    for (i, event) in published.iter().enumerate() {
        assert_eq!(event.extra["part"], Value::Number((i + 1) as f64));
        assert_eq!(
            (&event.extra["parts"], text(event, "fingerprint")),
            (&Value::Number(3.0), text(&published[0], "fingerprint"))
        );
        assert!(event.dropped == 0 && event.extra.len() <= 31);
    }
    let names: usize =
        published.iter().map(|e| e.extra.keys().filter(|k| k.starts_with("sysctl.vm.s")).count()).sum();
    assert_eq!(names, 71, "with vm.swappiness");
}

#[test]
fn too_many_settings_are_counted() {
    let node = Node::new();
    let sysctls: Vec<String> = (0..250).map(|i| format!("vm.s{i:03}")).collect();
    for name in &sysctls {
        node.write(&format!("proc/sys/{}", name.replace('.', "/")), "1\n");
    }
    let mut reader = ConfigDriftReader::new(&Config { sysctls, node_files: Vec::new(), ..Config::default() });
    let page = node.bench.collect(&mut reader);
    assert_eq!(page.get(&LEFT_OUT, &["limit"]), Some(28.0));
    assert_eq!(page.iter().filter(|s| s.family.name == VALUE.name).count(), MAX_KEYS);
}

#[test]
fn a_run_by_its_environment_libraries_and_files() {
    let node = Node::new();
    node.write("conf/llama.yaml", "lr: 3e-4 # canary\n");
    node.write("train.py", "import torch\n");
    let environ = ["NCCL_IB_HCA=mlx5", "OMP_NUM_THREADS=8", "NCCL_TOKEN=canary", "HF_TOKEN=canary"];
    let cmdline = ["python3", "train.py", "--config", "conf/llama.yaml"];
    for pid in [11, 12] {
        node.trainer(
            pid,
            "llama-70b",
            &[&environ[..], &[&*format!("UCX_NET_DEVICES=mlx5_{pid}")]].concat(),
            &cmdline,
        );
    }
    let mut reader = reader();
    let page = node.bench.collect(&mut reader);
    let published = node.published();
    let run = published.iter().find(|e| e.run.as_deref() == Some("llama-70b")).unwrap();
    for (key, want) in [("env.NCCL_IB_HCA", "mlx5"), ("env.OMP_NUM_THREADS", "8"), ("nccl", "2.21.5")] {
        assert_eq!(text(run, key), Some(want), "{run:?}");
        assert_eq!(page.get(&VALUE, &["llama-70b", key, want]), Some(1.0));
    }
    let file = text(run, "file.llama.yaml").unwrap().to_owned();
    assert!(file.ends_with(" 18 bytes") && text(run, "file.train.py").is_some(), "{file}");
    assert_eq!(text(run, "env.UCX_NET_DEVICES"), Some("(differs by rank)"));
    assert_eq!(run.rank, Some(11), "one of the ranks here");
    assert_eq!(page.get(&LEFT_OUT, &["secret"]), Some(1.0));
    assert!(!format!("{page:?} {published:?}").contains("canary"));

    node.write("conf/llama.yaml", "lr: 1e-4\n");
    let page = node.bench.collect(&mut reader);
    assert_eq!(page.get(&CHANGES, &["run"]), Some(1.0));
    let published = node.published();
    assert_eq!(published.len(), 1);
    assert!(
        published[0].text.as_deref().unwrap().starts_with(&format!("file.llama.yaml was {file} and is "))
    );
}

/// `import torch` loads NCCL. The plugins for its transport are loaded with the first communicator.
#[test]
fn libraries_that_are_loaded_later() {
    let node = Node::new();
    node.trainer(11, "r", &[], &["python3"]);
    let now = Instant::now();
    let cx = node.bench.context();
    let mut libraries = Libraries::default();
    let versions = |libraries: &mut Libraries, pid: u32, after: Duration| {
        libraries.look(&cx, Some((pid, 1)), now + after);
        libraries.found.keys().cloned().collect::<Vec<_>>()
    };
    assert_eq!(versions(&mut libraries, 11, Duration::ZERO), ["nccl"]);
    let line = |name: &str| format!("7f1c-7f1d r-xp 00000000 08:02 99 {}\n", node.at(name));
    let later = line("lib/libnccl.so.2.21.5") + &line("lib/libibverbs.so.1.14.50.0");
    node.write("proc/11/maps", &later);
    assert_eq!(versions(&mut libraries, 11, LIBRARIES_AGAIN), ["libibverbs", "nccl"]);
    // A process that has just started maps fewer libraries than its predecessor.
    node.trainer(12, "r", &[], &["python3"]);
    node.write("proc/12/maps", "");
    assert_eq!(versions(&mut libraries, 12, LIBRARIES_AGAIN * 2), ["libibverbs", "nccl"]);
    node.write("proc/12/maps", &line("lib/libnccl.so.2.22.3"));
    assert_eq!(versions(&mut libraries, 12, LIBRARIES_AGAIN * 3), ["nccl"]);
    assert_eq!(libraries.found["nccl"], "2.22.3");
}

#[test]
fn a_run_that_is_gone_leaves_the_page_and_comes_back_changed() {
    let node = Node::new();
    node.trainer(11, "r", &["NCCL_ALGO=Ring"], &["python3"]);
    let mut reader = reader();
    let page = node.bench.collect(&mut reader);
    assert_eq!(page.get(&VALUE, &["r", "env.NCCL_ALGO", "Ring"]), Some(1.0));
    node.published();
    let peer = Peer { connection: 11, pid: Some(11), uid: 0 };
    node.bench.hub.closed(peer, crate::training::ProcessFate::Gone);
    let page = node.bench.collect(&mut reader);
    assert!(page.iter().all(|s| s.labels.iter().all(|l| l != "r")), "{page:?}");
    node.trainer(12, "r", &["NCCL_ALGO=Tree"], &["python3"]);
    let page = node.bench.collect(&mut reader);
    assert_eq!(page.get(&CHANGES, &["run"]), Some(1.0));
    let published = node.published();
    assert_eq!(published[0].text.as_deref(), Some("env.NCCL_ALGO was Ring and is Tree"));
}

#[test]
fn a_process_that_may_not_be_looked_at_is_counted() {
    let node = Node::new();
    node.trainer(11, "r", &[], &[]);
    let environ = node.dir.path().join("proc/11/environ");
    std::fs::remove_file(&environ).unwrap();
    std::fs::create_dir(&environ).unwrap();
    let page = node.bench.collect(&mut reader());
    assert_eq!(page.get(&UNREADABLE, &[]), Some(1.0));
    assert!(page.iter().all(|s| s.labels.iter().all(|l| l != "r")));
}

#[test]
fn files_of_the_node() {
    let node = Node::new();
    node.write("etc/nccl.conf", "NCCL_DEBUG=WARN\n");
    let files = vec![node.dir.path().join("etc/nccl.conf"), Path::new("/nowhere/at/all").into()];
    let mut reader =
        ConfigDriftReader::new(&Config { node_files: files, values: false, ..Config::default() });
    let page = node.bench.collect(&mut reader);
    assert!(text(&node.published()[0], "file.nccl.conf").unwrap().ends_with(" 16 bytes"));
    assert!(page.iter().all(|s| s.family.name != VALUE.name), "not on the page");
}

#[test]
fn of_too_many_settings_those_that_explain_most_are_published() {
    let mut settings: Settings = (0..300).map(|i| (format!("arg.a{i:03}"), "1".to_owned())).collect();
    settings.extend([("torch", "2.9"), ("visible_gpus", "8")].map(|(k, v)| (k.to_owned(), v.to_owned())));
    assert_eq!((limit(&mut settings), settings.len()), (78, MAX_KEYS));
    assert!(settings.contains_key("torch") && settings.contains_key("visible_gpus"));
}
