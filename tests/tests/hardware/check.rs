//! `stepwatch-exporter check` as operators run it: the real binary on nodes with one thing wrong
//! each.

use std::process::Output;
use std::time::{Duration, Instant};

use serde_json::Value;
use stepwatch_fake_nvml::{Code, Effect, Fault, Fleet, Script, Stage};
use stepwatch_tests::{bins, daemon, say};

use crate::tree::Tree;

/// A node with 8 H100 and 8 InfiniBand ports on which nothing is wrong.
struct Node {
    dir: tempfile::TempDir,
    tree: Tree,
    stage: Stage,
}

/// Longer than a busy machine needs, where the time is not what is tested.
const PATIENT: &str = "--timeout=20s";

impl Node {
    fn new() -> Self {
        Self::with(&Script::for_fleet(Fleet::H100))
    }

    fn with(script: &Script) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::new(&dir.path().join("node"));
        let stage = Stage::new(dir.path(), script).unwrap();
        std::fs::write(
            dir.path().join("exporter.yml"),
            format!("node: gpu-042\nstate_dir: '{}/state'\n", dir.path().display()),
        )
        .unwrap();
        Self { dir, tree, stage }
    }

    async fn check(&self, args: &[&str]) -> Output {
        let mut check = daemon::command(bins::path(bins::EXPORTER).unwrap());
        let machine = self.tree.machine();
        check.arg("check").args(args).args(machine.args).args(machine.env.iter().map(|(_, v)| v));
        check.arg("--config").arg(self.dir.path().join("exporter.yml"));
        check.arg("--nvml-library").arg(stepwatch_fake_nvml::library().unwrap());
        check.env(stepwatch_fake_nvml::SCRIPT, self.stage.path());
        check.output().await.unwrap()
    }

    /// As the exporter remembers an interface that it saw up.
    fn was_up(&self, interface: &str) {
        let state = self.dir.path().join("state");
        std::fs::create_dir_all(&state).unwrap();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
        let known = serde_json::json!({interface: {"up_at": now, "pace": {"best": 0.0, "slower_since": null},
            "watch": {"open": null, "down_since": null, "outages": []}}});
        std::fs::write(state.join("learned-nic.json"), known.to_string()).unwrap();
    }

    /// Exit status, and what is wrong.
    async fn wrong(&self) -> (i32, String) {
        // Whether the clock of this machine is disciplined is no matter of the tree.
        let output = self.check(&["--quiet", "--skip=clock", PATIENT]).await;
        (output.status.code().unwrap(), text(&output))
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

#[tokio::test]
async fn a_node_on_which_nothing_is_wrong() {
    let node = Node::new();
    assert_eq!(node.wrong().await, (0, String::new()));
    let output = node.check(&["--format=json", PATIENT]).await;
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((report["schema"].as_u64(), report["node"].as_str()), (Some(1), Some("gpu-042")));
    assert_eq!((report["exit"].as_u64(), output.status.code()), (Some(0), Some(0)));
    assert!(["ok", "warning"].contains(&report["verdict"].as_str().unwrap()), "{report}");
    let findings = report["findings"].as_array().unwrap();
    for finding in findings {
        assert!(["ok", "warning"].contains(&finding["verdict"].as_str().unwrap()), "{finding}");
        assert!(finding["check"].is_string() && finding["text"].is_string(), "{finding}");
    }
    assert!(
        report["facts"]["gpu.name"].as_str().unwrap().starts_with("8 x NVIDIA H100"),
        "{}",
        report["facts"]
    );
    assert!(!node.dir.path().join("state").exists(), "looking changes nothing");
}

#[tokio::test]
async fn it_is_over_before_a_prolog_would_mind() {
    let node = Node::new();
    bins::path(bins::EXPORTER).unwrap();
    let began = Instant::now();
    node.check(&[]).await;
    let took = began.elapsed();
    say::figure(&format!(
        "check of a node with 8 GPUs and 8 InfiniBand ports: {:.0} ms",
        took.as_secs_f64() * 1e3
    ));
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[tokio::test]
async fn a_driver_that_hangs_is_not_waited_for_and_hides_nothing_else() {
    let node = Node::with(&Script::for_fleet(Fleet::H100).fault("nvmlInit*", Effect::Hang));
    // Where it must be built first, that is not what takes its time.
    bins::path(bins::EXPORTER).unwrap();
    node.tree.write("sys/class/net/eth1/operstate", "down");
    node.was_up("eth1");
    let began = Instant::now();
    let output = node.check(&["--quiet"]).await;
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    let said = text(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let hangs =
        said.lines().find(|l| l.starts_with("unhealthy collectors the NVIDIA driver does not answer"));
    let hangs = hangs.unwrap_or_else(|| panic!("{said}"));
    assert!(hangs.contains(": nvmlInit_v2 has not returned for 1."), "{hangs}");
    assert!(hangs.contains("so nothing is known of gpus, recovery"), "{hangs}");
    assert!(said.trim_end().ends_with("set it down if it is not used"), "the worst stands last: {said}");
    node.tree.write("sys/class/net/eth1/operstate", "up");
    for args in [&["--quiet"][..], &["--lenient"]] {
        assert_eq!(node.check(args).await.status.code(), Some(1), "a job would hang too: {args:?}");
    }
    assert_eq!(
        node.check(&["--only=nic"]).await.status.code(),
        Some(0),
        "what is not asked for does not hang"
    );
}

#[tokio::test]
async fn one_thing_wrong_at_a_time() {
    let h100 = || Script::for_fleet(Fleet::H100);
    for (what, script, wanted) in [
        ("a GPU that is lost", Script { lost: vec![3], ..h100() }, "gpus"),
        ("a GPU that fell off", Script { fallen: vec![3], ..h100() }, "gpus"),
        (
            "a driver without GPUs",
            h100().fault("nvmlInit*", Effect::Fail(Code::DriverNotLoaded)),
            "collectors",
        ),
    ] {
        let node = Node::with(&script);
        let (status, said) = node.wrong().await;
        assert_ne!(status, 0, "{what}: {said}");
        assert!(said.lines().any(|l| l.split_whitespace().nth(1) == Some(wanted)), "{what}: {said}");
    }
}

/// As a pod or a Slurm job with four of them sees it: the list of the kernel driver is the host's.
#[tokio::test]
async fn some_of_the_gpus_of_a_node() {
    let h100 = || Script::for_fleet(Fleet::H100);
    let refused = |code: Code| Script { unusable: (4..8).map(|gpu| (gpu, code)).collect(), ..h100() };
    for (what, script) in [
        ("not counted", Script { count: Some(4), ..h100() }),
        ("no permission", refused(Code::NoPermission)),
        ("blocked by a control group", refused(Code::OperatingSystem)),
    ] {
        let node = Node::with(&script);
        for other in 4..8 {
            std::fs::remove_file(node.dir.path().join(format!("node/dev/nvidia{other}"))).unwrap();
        }
        assert_eq!(node.wrong().await, (0, String::new()), "{what}");
        // With the file of the exporter of the whole node.
        let file = node.dir.path().join("exporter.yml");
        let config = std::fs::read_to_string(&file).unwrap() + "collectors: {gpu: {devices: all}}\n";
        std::fs::write(file, config).unwrap();
        assert_eq!(node.wrong().await, (0, String::new()), "{what}");
        node.stage.set(&Script { lost: vec![2], ..script }).unwrap();
        let (status, said) = node.wrong().await;
        assert!(status == 1 && said.contains("3 of 4 GPUs answer"), "{what}: {said}");
    }
}

#[tokio::test]
async fn a_gpu_that_needs_a_reset_is_reset_and_not_power_cycled() {
    let h100 = || Script::for_fleet(Fleet::H100);
    let mut faulty = h100();
    faulty.faults.push(Fault::new("nvmlDeviceGetTemperature", Effect::Fail(Code::ResetRequired)).on(3));
    faulty.faults.push(Fault::new("nvmlDeviceGetFieldValues", Effect::Fail(Code::ResetRequired)).on(3));
    let without_handle = Script { unusable: [(3, Code::ResetRequired)].into(), ..h100() };
    for script in [faulty, without_handle] {
        let (status, said) = Node::with(&script).wrong().await;
        assert_eq!(status, 1, "{said}");
        let lines = |check: &str| {
            let of = |l: &&str| l.split_whitespace().nth(1) == Some(check);
            said.lines().filter(of).map(str::to_owned).collect::<Vec<_>>()
        };
        let (gpus, recovery) = (lines("gpus"), lines("recovery"));
        assert!(gpus.len() == 2 && gpus.iter().all(|l| l.contains("--gpu-reset")), "{said}");
        assert!(recovery.len() == 1 && recovery[0].contains("gpu_reset"), "{said}");
    }
}

#[tokio::test]
async fn what_only_root_may_read() {
    let refused = Effect::Fail(Code::NoPermission);
    let node = Node::with(&Script::for_fleet(Fleet::H100).fault("nvmlDeviceGetSramEccErrorStatus", refused));
    let (status, said) = node.wrong().await;
    assert_eq!(status, 0, "{said}");
    assert!(
        said.starts_with("warning   ecc") && said.contains("nvmlDeviceGetSramEccErrorStatus of 8 GPUs"),
        "{said}"
    );
}

#[tokio::test]
async fn gpus_on_switches_that_have_no_fabric() {
    let none = Script::for_fleet(Fleet::H100).all("fabric.state", 0u64);
    let (status, said) = Node::with(&none).wrong().await;
    assert!(status == 0 && said.starts_with("warning   fabric 8 GPUs have NVLinks to NVSwitches"), "{said}");
    // Joined by bridges.
    assert_eq!(Node::with(&none.all("nvlink.remote", 0u64)).wrong().await, (0, String::new()));
}

#[tokio::test]
async fn a_slow_gpu_is_named_and_one_that_answers_with_errors_is_no_answer() {
    for delay in [8000, 600] {
        let mut script = Script::for_fleet(Fleet::H100);
        script.faults.push(Fault::new("nvmlDevice*", Effect::DelayMs(delay)).on(2));
        let node = Node::with(&script);
        bins::path(bins::EXPORTER).unwrap();
        // Long enough for a call of eight seconds to have returned, on any machine, and for the
        // next one to have lasted as well.
        for args in [&["--timeout=20s", "--skip=clock"][..], &["--timeout=20s", "--skip=clock", "--lenient"]]
        {
            let output = node.check(args).await;
            let said = text(&output);
            assert_eq!(output.status.code(), Some(1), "{said}");
            assert!(said.lines().any(|l| l.starts_with("unhealthy") && l.contains("GPU 2")), "{said}");
        }
    }
    let mut script = Script::for_fleet(Fleet::H100);
    for known in ["nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetPciInfo_v3"] {
        script.faults.push(Fault::new(known, Effect::DelayMs(0)));
    }
    script.faults.push(Fault::new("nvmlDevice*", Effect::Fail(Code::Unknown)).on(2));
    let (status, said) = Node::with(&script).wrong().await;
    assert_eq!(status, 1, "{said}");
    assert!(said.lines().any(|l| l.starts_with("unhealthy gpus") && l.contains("GPU 2")), "{said}");
}

#[tokio::test]
async fn a_driver_of_another_version_than_its_library_eats_no_queue() {
    let script = Script::for_fleet(Fleet::H100).fault("nvmlInit*", Effect::Fail(Code::LibRmVersionMismatch));
    let node = Node::with(&script);
    let output = node.check(&["--skip=clock", "--lenient", PATIENT]).await;
    let said = text(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let gpus = said.lines().find(|l| l.starts_with("unhealthy gpus")).unwrap_or_else(|| panic!("{said}"));
    assert!(gpus.contains("none of 8 GPUs can be used: the driver that is loaded is of another"), "{gpus}");
    assert!(gpus.contains("(loaded is 550.") && gpus.contains("reboot the node"), "{gpus}");
    for check in ["recovery", "ecc", "throttle", "nvlink", "fabric"] {
        let line = |l: &&str| l.split_whitespace().nth(1) == Some(check);
        let line = said.lines().find(line).unwrap_or_else(|| panic!("{check}: {said}"));
        assert!(line.starts_with("unknown "), "nobody looked: {line}");
    }
}

#[tokio::test]
async fn a_reference_from_one_node_judges_another() {
    let node = Node::new();
    let file = node.dir.path().join("node.json");
    let wrote =
        node.check(&[&format!("--write-reference={}", file.display()), "--skip=clock", PATIENT]).await;
    assert!(wrote.status.success(), "{}", text(&wrote));
    let compare = format!("--reference={}", file.display());
    let same = node.check(&[&compare, "--only=reference", PATIENT]).await;
    assert!(same.status.success() && text(&same).contains("facts are as on gpu-042"), "{}", text(&same));
    let other = Node::with(&Script { driver: Some("535.10.01".into()), ..Script::for_fleet(Fleet::H100) });
    let output = other.check(&[&compare, "--only=reference", "--quiet", PATIENT]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("535.10.01"), "{}", text(&output));
}

#[tokio::test]
async fn mistakes_are_distinguished_from_findings() {
    let node = Node::new();
    let unknown = node.check(&["--only=gpu_count"]).await;
    assert_eq!(unknown.status.code(), Some(64));
    assert!(text(&unknown).contains("possible values"), "{}", text(&unknown));
    let no_config = node.check(&["--config", "/nonexistent"]).await;
    assert_eq!(no_config.status.code(), Some(64), "{}", text(&no_config));
}
