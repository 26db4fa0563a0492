//! The recipes in `deploy/`: what they name exists, and they do what they promise.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;
use stepwatch_fake_nvml::{Fleet, SCRIPT as NVML, Script, Stage};
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::{Exporter, bins, daemon, exposition, peers, poll_until};

use crate::tree::Tree;

pub(crate) fn deploy(path: &str) -> PathBuf {
    bins::root().join("deploy").join(path)
}

const SCRIPT: &str = "slurm/stepwatch-check.sh";
pub(crate) const DAEMON_SET: &str = "kubernetes/exporter.yml";
const CLUSTER: &str = "kubernetes/cluster.yml";

pub(crate) async fn runs(program: &Path, args: &[&str]) -> Output {
    daemon::command(program).args(args).output().await.unwrap()
}

pub(crate) fn text(output: &Output) -> String {
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

/// Has one node, by `state` and `reason`, and all by `nodes`; fails without output where there is a
/// file `unreachable`.
const SCONTROL: &str = r#"cd "$(dirname "$0")/.."
if [ -e unreachable ]; then exit 1; fi
case "$*" in
"show node --oneliner") cat nodes 2>/dev/null || true ;;
show*)
    reason=$(cat reason 2>/dev/null)
    echo "NodeName=$3 Arch=x86_64 State=$(cat state 2>/dev/null || echo IDLE) ThreadsPerCore=2${reason:+ Reason=$reason}"
    ;;
*) echo "$*" >>commands ;;
esac"#;

/// A Slurm that remembers the commands that it got.
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
        slurm.program("scontrol", SCONTROL);
        slurm.program("logger", "cd \"$(dirname \"$0\")/..\"\necho \"$*\" >>log");
        slurm.program("sleep", "cd \"$(dirname \"$0\")/..\"\necho \"$*\" >>slept");
        slurm
    }

    fn program(&self, name: &str, body: &str) {
        let path = self.dir.path().join("bin").join(name);
        std::fs::write(&path, format!("#!/bin/bash\n{body}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.dir.path().join(file), text).unwrap();
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(file)).unwrap_or_default()
    }

    /// The state of the node in Slurm from now on.
    fn is(&self, state: &str, reason: &str) {
        self.write("state", state);
        self.write("reason", reason);
    }

    /// The exit statuses of the next checks, in place of real ones.
    fn looks(&self, statuses: &[i32]) {
        let lines: Vec<_> = statuses.iter().map(|status| format!("{status}\n")).collect();
        self.write("statuses", &lines.concat());
        self.program(
            "stepwatch-exporter",
            "cd \"$(dirname \"$0\")/..\"\nstatus=$(head -n 1 statuses)\nsed -i 1d statuses\necho \"status $status\"\nexit \"$status\"",
        );
    }

    /// Exit status of the script, and what it passed to Slurm.
    async fn run(&self, env: &[(&str, &str)]) -> (i32, String) {
        let (status, commands, _) = self.run_with_output(env).await;
        (status, commands)
    }

    /// And what it printed.
    async fn run_with_output(&self, env: &[(&str, &str)]) -> (i32, String, String) {
        let _ = std::fs::remove_file(self.dir.path().join("commands"));
        let path = format!("{}:/usr/bin:/bin", self.dir.path().join("bin").display());
        let mut script = daemon::command(deploy(SCRIPT));
        script.env("STEPWATCH_PATH", path).env("SLURMD_NODENAME", "gpu-042");
        script.env("STEPWATCH_SETTINGS", "/nonexistent").env("STEPWATCH_CONFIG", "/nonexistent");
        script
            .env("STEPWATCH_REFERENCE", "/nonexistent")
            .env("STEPWATCH_CHECK_ARGS", "--only nic,memory --timeout 20s");
        script.env("STEPWATCH_FAILED", self.dir.path().join("failed"));
        let output = script.envs(env.iter().copied()).output().await.unwrap();
        (output.status.code().unwrap(), self.read("commands"), text(&output))
    }
}

const JOB: (&str, &str) = ("SLURM_JOB_ID", "7");

const FINDING: &str = "stepwatch: unhealthy memory 2 uncorrected errors of host memory; drain the node and have the module \
                       replaced\n";

#[tokio::test]
async fn slurm_keeps_jobs_off_a_node_that_is_unhealthy() {
    let slurm = Slurm::new();
    assert_eq!(slurm.run(&[JOB]).await, (0, String::new()));
    slurm.tree.write("sys/devices/system/edac/mc/mc0/ue_count", "2");
    let before_a_job = (1, String::new(), FINDING.to_owned());
    assert_eq!(slurm.run_with_output(&[JOB]).await, before_a_job, "Slurm drains it by itself");
    let drained = format!("update nodename=gpu-042 state=drain reason={FINDING}");
    assert_eq!(slurm.run(&[]).await, (0, drained.clone()), "as a health check");
    slurm.is("IDLE", "looked at its fans [alice@2026-11-21T10:00:00]");
    assert_eq!(slurm.run(&[]).await, (0, drained), "a reason is no drain");
    slurm.is("IDLE+DRAIN", "stepwatch: was here [root@2026-11-21T10:00:00]");
    assert_eq!(slurm.run(&[]).await, (0, String::new()), "said once");
    let log = slurm.read("log");
    assert!(log.contains("2 uncorrected errors") && log.contains("whose reason was: looked at"), "{log}");
}

#[tokio::test]
async fn one_bad_look_drains_nothing() {
    let slurm = Slurm::new();
    for env in [&[][..], &[JOB]] {
        for looks in [[1, 0], [1, 64], [2, 0]] {
            slurm.looks(&looks);
            assert_eq!(slurm.run(env).await, (0, String::new()), "{looks:?}");
        }
    }
    assert_eq!(slurm.read("slept"), "15\n".repeat(6));
    slurm.looks(&[1, 1]);
    let (status, commands) = slurm.run(&[("STEPWATCH_AGAIN", "3600")]).await;
    assert_eq!((status, commands.contains("state=drain")), (0, true));
    assert!(slurm.read("slept").ends_with("15\n20\n"), "Slurm would kill it");
    assert_eq!(slurm.read("statuses"), "");
}

#[tokio::test]
async fn no_more_nodes_are_drained_than_one_can_spare() {
    let slurm = Slurm::new();
    slurm.write(
        "nodes",
        "NodeName=gpu-001 Arch=x86_64 State=IDLE+DRAIN ThreadsPerCore=2 Reason=stepwatch: unhealthy [root@2026-11-21T10:00:00]\n\
         NodeName=gpu-002 Arch=x86_64 State=DOWN*+DRAIN ThreadsPerCore=2 Reason=stepwatch: unhealthy [root@2026-11-21T10:00:00]\n\
         NodeName=gpu-003 Arch=x86_64 State=IDLE+DRAIN ThreadsPerCore=2 Reason=broken fan [alice@2026-11-21T10:00:00]\n\
         NodeName=gpu-004 Arch=x86_64 State=IDLE ThreadsPerCore=2 Reason=stepwatch: unhealthy [root@2026-11-21T10:00:00]\n",
    );
    slurm.looks(&[1, 1]);
    assert_eq!(slurm.run(&[("STEPWATCH_MAX_DRAINED", "2")]).await, (0, String::new()));
    let log = slurm.read("log");
    assert!(log.contains("does not drain gpu-042: 2 nodes are drained by this check"), "{log}");
    slurm.looks(&[1, 1]);
    assert!(slurm.run(&[("STEPWATCH_MAX_DRAINED", "3")]).await.1.contains("state=drain"));
    // The number of drained nodes is unknown.
    slurm.looks(&[1, 1]);
    slurm.write("unreachable", "");
    assert_eq!(slurm.run(&[]).await, (0, String::new()));
}

#[tokio::test]
async fn an_unknown_state_is_refused_unless_that_is_relaxed() {
    let slurm = Slurm::new();
    std::fs::remove_dir_all(slurm.dir.path().join("node/sys/class/net")).unwrap();
    slurm.tree.write("sys/class/net", "");
    let relaxed = ("STEPWATCH_DRAIN_UNKNOWN", "0");
    for env in [&[relaxed][..], &[JOB, relaxed]] {
        assert_eq!(slurm.run(env).await, (0, String::new()));
    }
    let (status, commands, said) = slurm.run_with_output(&[JOB]).await;
    assert_eq!((status, commands.as_str()), (1, ""));
    assert!(said.starts_with("stepwatch: unknown collectors nic failed"), "{said}");
    let (status, commands) = slurm.run(&[]).await;
    assert_eq!(status, 0);
    assert!(
        commands.starts_with(
            "update nodename=gpu-042 state=drain reason=stepwatch: unknown collectors nic failed"
        )
    );
    // A mistake of the operator is no fault of the node.
    let mistake = ("STEPWATCH_CHECK_ARGS", "--only nonsense");
    assert_eq!(slurm.run(&[JOB, mistake]).await, (0, String::new()));
}

#[tokio::test]
async fn a_drain_is_taken_back_by_who_made_it() {
    let slurm = Slurm::new();
    let (resume, resumed) = (("STEPWATCH_RESUME", "1"), "update nodename=gpu-042 state=resume\n");
    slurm.is("IDLE+DRAIN", "stepwatch: unhealthy nic eth1 [root@2026-11-21T10:00:00]");
    assert_eq!(slurm.run(&[]).await, (0, String::new()), "not unless it is wanted");
    assert_eq!(slurm.run(&[resume]).await, (0, resumed.to_owned()));
    slurm.is("IDLE", "stepwatch: unhealthy nic eth1 [root@2026-11-21T10:00:00]");
    assert_eq!(slurm.run(&[resume]).await, (0, String::new()), "it is not drained");
    slurm.is("IDLE+DRAIN", "broken fan [alice@2026-11-21T10:00:00]");
    assert_eq!(slurm.run(&[resume]).await, (0, String::new()));
    slurm.is("IDLE+DRAIN", "stepwatch: under load: unhealthy nccl slow [root@2026-11-21T10:00:00]");
    assert_eq!(slurm.run(&[resume]).await, (0, String::new()), "this check puts no load on it");
}

#[tokio::test]
async fn a_prolog_that_failed_by_the_check_is_distinguished_from_another_that_did() {
    let slurm = Slurm::new();
    let resume = ("STEPWATCH_RESUME", "1");
    slurm.is("IDLE+DRAIN", "Prolog error [slurm@2026-11-21T10:00:00]");
    slurm.looks(&[0, 1, 1]);
    assert_eq!(slurm.run(&[resume]).await, (0, String::new()), "of another");
    assert_eq!(slurm.run(&[]).await, (0, String::new()), "of another, and unhealthy");
    slurm.looks(&[1, 1, 1, 1, 0, 0]);
    assert_eq!(slurm.run(&[JOB]).await, (1, String::new()));
    let named = "update nodename=gpu-042 reason=stepwatch: status 1\n";
    assert_eq!(slurm.run(&[]).await, (0, named.to_owned()), "the finding in place of Slurm's words");
    let resumed = "update nodename=gpu-042 state=resume\n";
    assert_eq!(slurm.run(&[resume]).await, (0, resumed.to_owned()));
    assert_eq!(slurm.run(&[resume]).await, (0, String::new()), "the next one is another's");
}

/// What the image of the exporter starts, which is what is copied into it.
fn image() -> String {
    let whole = std::fs::read_to_string(deploy("Dockerfile")).unwrap();
    let (_, stage) = whole.split_once(" AS exporter\n").unwrap();
    let steps: Vec<_> =
        stage.lines().take_while(|l| !l.is_empty()).filter_map(|l| l.split_once(' ')).collect();
    let [("COPY", copy), ("ENTRYPOINT", entry)] = steps[..] else { panic!("{steps:?}") };
    let [program]: [String; 1] = serde_json::from_str(entry).unwrap();
    assert_eq!(copy, format!("--from=build /out/{} {program}", bins::EXPORTER));
    program
}

pub(crate) fn documents(path: &str) -> Vec<Value> {
    let whole = std::fs::read_to_string(deploy(path)).unwrap();
    let parse =
        |text: &str| stepwatch_kit::config::parse::<Value>(path, text).unwrap_or_else(|e| panic!("{e}"));
    whole.split("\n---\n").map(parse).collect()
}

pub(crate) fn strings(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// The part of a document that describes pods.
pub(crate) fn pod(document: &Value) -> &Value {
    if document["kind"] == "Pod" { &document["spec"] } else { &document["spec"]["template"]["spec"] }
}

#[tokio::test]
async fn manifests_name_what_exists() {
    let exporter = bins::path(bins::EXPORTER).unwrap();
    let mut ours = 0;
    for document in [DAEMON_SET, CLUSTER, "kubernetes/check.yml"].into_iter().flat_map(documents) {
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
            assert_eq!(strings(&container["command"]), [image().as_str()]);
            let security = &container["securityContext"];
            assert_eq!(security["readOnlyRootFilesystem"], true);
            if security["privileged"] == true {
                assert_eq!(document["kind"], "DaemonSet", "a trainer's pod is not");
                // Together they are refused.
                assert_eq!(security["allowPrivilegeEscalation"], Value::Null);
            } else {
                confined(security);
            }
        }
    }
    assert_eq!(ours, 3);
}

/// It reads the API and nothing of the node on which it happens to be.
#[tokio::test]
async fn the_exporter_of_the_cluster_may_list_and_no_more() {
    let all = documents(CLUSTER);
    let of = |kind: &str| all.iter().find(|document| document["kind"] == kind).unwrap();
    let rules = of("ClusterRole")["rules"].as_array().unwrap();
    assert_eq!(rules.len(), 1);
    assert_eq!(
        (strings(&rules[0]["resources"]), strings(&rules[0]["verbs"])),
        (vec!["nodes", "pods"], vec!["list"])
    );
    assert_eq!(of("ClusterRoleBinding")["roleRef"]["name"], of("ClusterRole")["metadata"]["name"]);
    assert_eq!(pod(of("Deployment"))["serviceAccountName"], of("ServiceAccount")["metadata"]["name"]);
    assert_eq!(pod(of("Deployment"))["securityContext"]["runAsNonRoot"], true);
    let config = of("ConfigMap")["data"]["exporter.yml"].as_str().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("exporter.yml");
    std::fs::write(&file, config).unwrap();
    let exporter = bins::path(bins::EXPORTER).unwrap();
    let output = runs(&exporter, &["config", "check", file.to_str().unwrap()]).await;
    assert!(output.status.success(), "{}", text(&output));
    let config: Value = stepwatch_kit::config::parse("exporter.yml", config).unwrap();
    let collectors = config["collectors"].as_object().unwrap();
    let enabled = collectors.iter().filter(|(_, settings)| settings["enabled"] == true);
    assert_eq!(enabled.map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["kubernetes"]);
    let sample = std::fs::read_to_string(deploy("exporter.yml")).unwrap();
    let sample: Value = stepwatch_kit::config::parse("exporter.yml", &sample).unwrap();
    let by_default = sample["collectors"].as_object().unwrap().iter();
    let by_default: Vec<_> = by_default.filter(|(_, settings)| settings["enabled"] == true).collect();
    assert!(by_default.len() > 20, "{by_default:?}");
    let left_on: Vec<_> = by_default.iter().filter(|(name, _)| !collectors.contains_key(*name)).collect();
    assert!(left_on.is_empty(), "what is on by default is off there: {left_on:?}");
}

pub(crate) fn confined(security: &Value) {
    assert_eq!(security["allowPrivilegeEscalation"], false);
    assert_eq!(strings(&security["capabilities"]["drop"]), ["ALL"]);
    assert_eq!(security["seccompProfile"]["type"], "RuntimeDefault");
}

#[tokio::test]
async fn the_configuration_in_the_manifest_is_right() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("exporter.yml");
    let map = &documents(DAEMON_SET)[0];
    let config = map["data"]["exporter.yml"].as_str().unwrap();
    std::fs::write(&file, config).unwrap();
    // It requests all GPUs of the node, and misses those that it is not given.
    let set = documents(DAEMON_SET).pop().unwrap();
    let env = pod(&set)["containers"][0]["env"].as_array().unwrap();
    assert!(env.iter().any(|e| e["name"] == "NVIDIA_VISIBLE_DEVICES" && e["value"] == "all"));
    let config: Value = stepwatch_kit::config::parse("exporter.yml", config).unwrap();
    assert_eq!(config["collectors"]["gpu"]["devices"], "all");
    let exporter = bins::path(bins::EXPORTER).unwrap();
    let output = runs(&exporter, &["config", "check", file.to_str().unwrap()]).await;
    assert!(output.status.success(), "{}", text(&output));
}

/// A node on which an exporter has run, and the init container of the recipe on it.
struct PodOnNode {
    dir: tempfile::TempDir,
    tree: Tree,
    stage: Stage,
    check: Value,
}

impl PodOnNode {
    async fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("stepwatch").tempdir().unwrap();
        let tree = Tree::new(&dir.path().join("node"));
        let stage = Stage::new(dir.path(), &Script::for_fleet(Fleet::H100)).unwrap();
        let rhythm = "collectors: {rdma: {interval: 100ms}}\n";
        let exporter =
            Exporter::start_on(tree.machine(), &dir.path().join("exporter"), "", rhythm).await.unwrap();
        poll_until("eight ports", PATIENCE, async || {
            let up = exposition::value(&exporter.metrics().await.unwrap(), "rdma_ports_up", &[]);
            (up == Some(8.0)).then_some(())
        })
        .await
        .unwrap();
        let check = pod(&documents("kubernetes/check.yml")[0])["initContainers"][0].clone();
        Self { dir, tree, stage, check }
    }

    /// Where the container finds a directory, if it is given it.
    fn mounted(&self, path: &str, here: &str) -> PathBuf {
        let mounts = self.check["volumeMounts"].as_array().into_iter().flatten();
        let given = mounts.into_iter().any(|mount| mount["mountPath"] == path);
        self.dir.path().join(if given { here } else { "nothing" })
    }

    async fn check(&self) -> Output {
        let mut check = daemon::command(bins::path(bins::EXPORTER).unwrap());
        // This machine has a procfs and a clock of its own, and its root file system can be written
        // to.
        check.args(["--nvml-library".as_ref(), stepwatch_fake_nvml::library().unwrap().as_os_str()]);
        check.env(NVML, self.stage.path()).env("TMPDIR", self.mounted("/tmp", "."));
        check.arg("--path.procfs").arg(self.dir.path().join("node/proc"));
        for arg in strings(&self.check["args"]) {
            let (name, path) = arg.split_once('=').unwrap_or((arg, ""));
            match (name, path) {
                ("--config", file) => {
                    let (dir, name) = file.rsplit_once('/').unwrap();
                    check.arg("--config").arg(self.mounted(dir, "exporter").join(name))
                }
                ("--path.sysfs", dir) => check.arg(name).arg(self.mounted(dir, "node/sys")),
                _ => check.arg(arg),
            };
        }
        check.output().await.unwrap()
    }
}

#[tokio::test]
async fn a_pod_does_not_start_on_a_node_that_has_lost_its_fabric() {
    let node = PodOnNode::new().await;
    let well = node.check().await;
    assert_eq!(well.status.code(), Some(0), "{}", text(&well));
    for i in 0..8 {
        let port = format!("sys/class/infiniband/mlx5_{i}/ports/1");
        node.tree.write(&format!("{port}/state"), "1: DOWN");
        node.tree.write(&format!("{port}/phys_state"), "2: Polling");
    }
    let lost = node.check().await;
    assert_eq!(lost.status.code(), Some(1), "{}", text(&lost));
    assert!(text(&lost).contains("0 of 8 RDMA ports of the fabric are up"), "{}", text(&lost));
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
        // Checks every directive, where there is a systemd that supports them.
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
