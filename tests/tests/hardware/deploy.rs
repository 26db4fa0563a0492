//! The recipes in `deploy/`: what they name exists, and what they say they do they do.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;
use stepwatch_tests::{bins, daemon, peers};

use crate::tree::Tree;

fn deploy(path: &str) -> PathBuf {
    bins::root().join("deploy").join(path)
}

const SCRIPT: &str = "slurm/stepwatch-check.sh";

async fn runs(program: &Path, args: &[&str]) -> Output {
    daemon::command(program).args(args).output().await.unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

#[tokio::test]
async fn scripts_are_sound() {
    let script = deploy(SCRIPT);
    assert!(script.metadata().unwrap().permissions().mode() & 0o111 != 0, "it can be run");
    let script = script.to_str().unwrap();
    let read = runs(Path::new("/bin/bash"), &["-n", script]).await;
    assert!(read.status.success(), "{}", text(&read));
    let Some(shellcheck) = peers::find(&["shellcheck"]) else { return };
    let checked = runs(&shellcheck, &[script]).await;
    assert!(checked.status.success(), "{}", text(&checked));
}

/// A Slurm that remembers what it was told.
struct Slurm {
    dir: tempfile::TempDir,
    tree: Tree,
}

impl Slurm {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::new(&dir.path().join("node"));
        std::fs::create_dir(dir.path().join("bin")).unwrap();
        let slurm = Self { dir, tree };
        let exporter = bins::path(bins::EXPORTER).unwrap();
        let args = slurm.tree.machine().args.join(std::ffi::OsStr::new("' '"));
        slurm.program(
            "stepwatch-exporter",
            &format!("exec '{}' \"$@\" '{}'", exporter.display(), args.to_str().unwrap()),
        );
        slurm.program(
            "scontrol",
            "cd \"$(dirname \"$0\")/..\"\nif [ \"$1\" = show ]; then\n  echo \"NodeName=$3 State=IDLE Reason=$(cat reason 2>/dev/null)\" \
             | sed 's/ Reason=$//'\nelse\n  echo \"$*\" >>told\nfi",
        );
        slurm.program("logger", "cd \"$(dirname \"$0\")/..\"\necho \"$*\" >>log");
        slurm
    }

    fn program(&self, name: &str, body: &str) {
        let path = self.dir.path().join("bin").join(name);
        std::fs::write(&path, format!("#!/bin/bash\n{body}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn reason(&self, reason: &str) {
        std::fs::write(self.dir.path().join("reason"), reason).unwrap();
    }

    /// Exit status of the script, and what it told Slurm.
    async fn run(&self, env: &[(&str, &str)]) -> (i32, String) {
        let told = self.dir.path().join("told");
        let _ = std::fs::remove_file(&told);
        let path = format!("{}:/usr/bin:/bin", self.dir.path().join("bin").display());
        let mut script = daemon::command(deploy(SCRIPT));
        script.env("STEPWATCH_PATH", path).env("SLURMD_NODENAME", "gpu-042");
        script.env("STEPWATCH_SETTINGS", "/nonexistent").env("STEPWATCH_CONFIG", "/nonexistent");
        script
            .env("STEPWATCH_REFERENCE", "/nonexistent")
            .env("STEPWATCH_CHECK_ARGS", "--only nic --timeout 20s");
        let output = script.envs(env.iter().copied()).output().await.unwrap();
        (output.status.code().unwrap(), std::fs::read_to_string(told).unwrap_or_default())
    }
}

const JOB: (&str, &str) = ("SLURM_JOB_ID", "7");

#[tokio::test]
async fn slurm_keeps_jobs_off_a_node_that_is_unhealthy() {
    let slurm = Slurm::new();
    assert_eq!(slurm.run(&[JOB]).await, (0, String::new()));
    slurm.tree.write("sys/class/net/eth1/operstate", "down");
    let drained = "update nodename=gpu-042 state=drain reason=stepwatch: unhealthy nic eth1 is meant to be up and is down; \
                   check its cable and switch port, or set it down if it is not used\n";
    assert_eq!(slurm.run(&[JOB]).await, (1, drained.to_owned()), "before a job");
    assert_eq!(slurm.run(&[]).await, (0, drained.to_owned()), "as a health check");
    slurm.reason("stepwatch: was here [root@2026-11-21T10:00:00]");
    assert_eq!(slurm.run(&[JOB]).await, (1, String::new()), "said once");
    let log = std::fs::read_to_string(slurm.dir.path().join("log")).unwrap();
    assert!(log.contains("eth1 is meant to be up"), "{log}");
}

#[tokio::test]
async fn what_could_not_be_told_drains_where_wanted_only() {
    let slurm = Slurm::new();
    std::fs::remove_dir_all(slurm.dir.path().join("node/sys/class/net")).unwrap();
    slurm.tree.write("sys/class/net", "");
    assert_eq!(slurm.run(&[JOB]).await, (0, String::new()));
    let (status, told) = slurm.run(&[JOB, ("STEPWATCH_DRAIN_UNKNOWN", "1")]).await;
    assert_eq!(status, 1);
    assert!(
        told.starts_with(
            "update nodename=gpu-042 state=drain reason=stepwatch: unknown collectors nic failed"
        )
    );
    // A mistake of the operator is no fault of the node.
    assert_eq!(slurm.run(&[JOB, ("STEPWATCH_CHECK_ARGS", "--only nonsense")]).await, (0, String::new()));
}

#[tokio::test]
async fn a_drain_is_taken_back_by_who_made_it() {
    let slurm = Slurm::new();
    let resume = ("STEPWATCH_RESUME", "1");
    slurm.reason("stepwatch: unhealthy nic eth1 [root@2026-11-21T10:00:00]");
    assert_eq!(slurm.run(&[]).await, (0, String::new()), "not unless it is wanted");
    assert_eq!(slurm.run(&[resume]).await, (0, "update nodename=gpu-042 state=resume\n".to_owned()));
    slurm.reason("broken fan [alice@2026-11-21T10:00:00]");
    assert_eq!(slurm.run(&[resume]).await, (0, String::new()));
}

fn documents(path: &str) -> Vec<Value> {
    let whole = std::fs::read_to_string(deploy(path)).unwrap();
    let parse =
        |text: &str| stepwatch_kit::config::parse::<Value>(path, text).unwrap_or_else(|e| panic!("{e}"));
    whole.split("\n---\n").map(parse).collect()
}

fn strings(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// The part of a document that describes pods.
fn pod(document: &Value) -> &Value {
    if document["kind"] == "Pod" { &document["spec"] } else { &document["spec"]["template"]["spec"] }
}

#[tokio::test]
async fn manifests_name_what_exists() {
    let exporter = bins::path(bins::EXPORTER).unwrap();
    let mut ours = 0;
    for document in ["kubernetes/exporter.yml", "kubernetes/check.yml"].into_iter().flat_map(documents) {
        let pod = pod(&document);
        let volumes: Vec<_> = pod["volumes"].as_array().into_iter().flatten().map(|v| &v["name"]).collect();
        let containers =
            ["initContainers", "containers"].map(|key| pod[key].as_array().into_iter().flatten());
        for container in containers.into_iter().flatten() {
            for mount in container["volumeMounts"].as_array().into_iter().flatten() {
                assert!(volumes.contains(&&mount["name"]), "{mount}");
            }
            if container["image"] != "stepwatch-exporter:0.1.0" {
                continue;
            }
            ours += 1;
            // The help comes only after every argument before it was understood.
            let args = [strings(&container["args"]), vec!["--help"]].concat();
            let output = runs(&exporter, &args).await;
            assert!(output.status.success(), "{args:?}: {}", text(&output));
            let security = &container["securityContext"];
            assert_eq!(security["allowPrivilegeEscalation"], false);
            assert_eq!(strings(&security["capabilities"]["drop"]), ["ALL"]);
        }
    }
    assert_eq!(ours, 2);
    let cdi = &documents("kubernetes/cdi-kmsg.yml")[0];
    let device = format!("{}={}", cdi["kind"].as_str().unwrap(), cdi["devices"][0]["name"].as_str().unwrap());
    let set = documents("kubernetes/exporter.yml").pop().unwrap();
    let annotations = &set["spec"]["template"]["metadata"]["annotations"];
    assert_eq!(annotations["cdi.k8s.io/stepwatch"], device.as_str());
}

#[tokio::test]
async fn the_configuration_in_the_manifest_is_right() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("exporter.yml");
    let map = &documents("kubernetes/exporter.yml")[0];
    std::fs::write(&file, map["data"]["exporter.yml"].as_str().unwrap()).unwrap();
    let exporter = bins::path(bins::EXPORTER).unwrap();
    let output = runs(&exporter, &["config", "check", file.to_str().unwrap()]).await;
    assert!(output.status.success(), "{}", text(&output));
}

#[tokio::test]
async fn units_start_what_exists() {
    for (unit, program) in [("exporter", bins::EXPORTER), ("alerter", bins::ALERTER)] {
        let path = deploy(&format!("systemd/stepwatch-{unit}.service"));
        let whole = std::fs::read_to_string(&path).unwrap();
        let start = whole.lines().find_map(|l| l.strip_prefix("ExecStart=/usr/bin/")).unwrap();
        let (named, args) = start.split_once(' ').unwrap();
        assert_eq!(named, program);
        let args: Vec<&str> = args.split(' ').chain(["--help"]).collect();
        let output = runs(&bins::path(program).unwrap(), &args).await;
        assert!(output.status.success(), "{}", text(&output));
        // Knows every directive, where there is one that does.
        let analyze = Path::new("/usr/bin/systemd-analyze");
        if analyze.exists() {
            let output = runs(analyze, &["verify", path.to_str().unwrap()]).await;
            let said = text(&output);
            let wrong: Vec<_> =
                said.lines().filter(|l| l.contains(unit) && !l.contains("not executable")).collect();
            assert!(wrong.is_empty(), "{wrong:?}");
        }
    }
}
